//! Tests of copies into a pool in memory and out of it.

mod archives;
mod replacing;
mod rights;
mod table;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::api::{Caller, FileSystem};
use serde_json::Value;

use super::copy::{self, CopyPurpose};
use super::host::HostTree;
use super::pool::PoolTree;
use super::{TreeCopyTotals, archive, names_of, pack, unpack};
use crate::backend::{Backend, OpenPool};
use crate::wiring::EngineBackend;

const THREADS: usize = 4;

struct TestTreeDirectory(PathBuf);

impl TestTreeDirectory {
    fn new(name: &str) -> TestTreeDirectory {
        let name = format!("holdfast-tree-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("it can be made");
        TestTreeDirectory(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TestTreeDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pool(size_bytes: u64) -> Arc<dyn OpenPool> {
    EngineBackend.open_in_memory(size_bytes).expect("there is memory")
}

fn tree_of(fs: &Arc<dyn FileSystem>, path: &str) -> PoolTree {
    PoolTree::below(fs, fs.root(), path.as_bytes(), true).expect("it can be made")
}

fn host(path: &Path) -> HostTree {
    fs::create_dir_all(path).expect("it can be made");
    HostTree::new(File::open(path).expect("it is there"))
}

fn fill(root: &Path) {
    fs::create_dir_all(root.join("a/b/c")).expect("it is new");
    fs::write(root.join("a/one"), b"one").expect("it is new");
    fs::write(root.join("a/empty"), b"").expect("it is new");
    let large: Vec<u8> =
        (0..1_000_000_u32).flat_map(|at| [at.to_le_bytes()[0], at.to_le_bytes()[1], 7]).collect();
    fs::write(root.join("a/b/large"), &large).expect("it is new");
    fs::hard_link(root.join("a/b/large"), root.join("a/b/c/other")).expect("it is new");
    fs::hard_link(root.join("a/b/large"), root.join("again")).expect("it is new");
    symlink("../one", root.join("a/b/link")).expect("it is new");
    let long = "n".repeat(200);
    fs::write(root.join("a").join(&long), b"long").expect("it is new");
    let holes = File::create(root.join("holes")).expect("it is new");
    holes.set_len(5 << 20).expect("it is ours");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"middle", 1 << 20).expect("it is ours");
    drop(holes);
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff\nname");
    fs::write(root.join(odd), b"odd").expect("it is new");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .expect("it is new");
    for number in 0..300 {
        let directory = root.join(format!("many/{}", number % 7));
        fs::create_dir_all(&directory).expect("it can be made");
        fs::write(directory.join(number.to_string()), vec![b'x'; number]).expect("it is new");
    }
    fs::set_permissions(root.join("a/one"), fs::Permissions::from_mode(0o4751)).expect("ours");
    fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o1705)).expect("ours");
    let value = b"with a\nline \0 and zeros";
    let path = root.join("a/one");
    let flags = rustix::fs::XattrFlags::empty();
    // Not every test environment supports attributes.
    let _ = rustix::fs::lsetxattr(&path, "user.test", value, flags);
    let old =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_007, 123_456_789);
    for name in ["a/one", "a/empty", "a/b"] {
        let file = File::open(root.join(name)).expect("it is there");
        file.set_modified(old).expect("it is ours");
    }
}

fn number(facts: &Value, name: &str) -> u64 {
    facts[name].as_u64().expect(name)
}

#[track_caller]
fn copied<S: super::FileTree, T: super::FileTree>(
    source: &S,
    target: &T,
    purpose: CopyPurpose,
) -> Value {
    let totals = TreeCopyTotals::default();
    copy::run((source, target), purpose, THREADS, &totals, &mut |_| true);
    assert_eq!(totals.last_word(), None);
    totals.facts()
}

#[track_caller]
fn same(source: &impl super::FileTree, target: &impl super::FileTree) {
    let facts = copied(source, target, CopyPurpose::Verify);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    assert!(number(&facts, "verified") > 300, "{facts}");
}

fn unpacked(bytes: &[u8], tree: &PoolTree, purpose: CopyPurpose) -> (Value, Option<String>) {
    let totals = TreeCopyTotals::default();
    unpack::run((bytes, tree), purpose, THREADS, &totals);
    (totals.facts(), totals.last_word())
}

/// Goal: a tree that is copied in and out is unchanged, and a second copy has nothing to do.
/// Method: files of all kinds, compared byte by byte.
#[test]
fn a_tree_comes_out_as_it_went_in() {
    let place = TestTreeDirectory::new("round");
    fill(&place.path("from"));
    let pool = pool(256 << 20);
    let fs = pool.file_system();
    let (from, inside) = (host(&place.path("from")), tree_of(&fs, "/x/y"));
    let facts = copied(&from, &inside, CopyPurpose::Copy);
    assert_eq!((number(&facts, "failed"), number(&facts, "links")), (0, 2), "{facts}");
    assert_eq!(number(&facts, "files"), 300 + 6, "{facts}");
    same(&from, &inside);
    let facts = copied(&from, &inside, CopyPurpose::Copy);
    assert_eq!((number(&facts, "files"), number(&facts, "bytes")), (0, 0), "{facts}");
    assert_eq!(number(&facts, "skipped"), 300 + 6 + 2 + 2, "{facts}");

    let to = host(&place.path("to"));
    let facts = copied(&inside, &to, CopyPurpose::Copy);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    same(&inside, &to);
    same(&from, &to);
    let holes = fs::metadata(place.path("to/holes")).expect("it is there");
    assert!(holes.blocks() * 512 < 1 << 20, "{} blocks", holes.blocks());

    let mut tar = Vec::new();
    let totals = TreeCopyTotals::default();
    pack::run(&inside, &mut tar, &totals);
    assert_eq!((totals.last_word(), number(&totals.facts(), "failed")), (None, 0));
    assert!(tar.len() < 5 << 20, "holes are kept: {}", tar.len());
    let again = tree_of(&fs, "/again");
    let (facts, word) = unpacked(&tar, &again, CopyPurpose::Copy);
    assert_eq!((number(&facts, "failed"), &word), (0, &None), "{facts}");
    same(&inside, &again);
    let (facts, word) = unpacked(&tar, &again, CopyPurpose::Verify);
    assert_eq!((number(&facts, "failed"), &word), (0, &None), "{facts}");
    let totals = TreeCopyTotals::default();
    let rules = super::TreeCopyRules { skips_same: true, ..super::TreeCopyRules::default() };
    let task = copy::TreeCopyTask { purpose: CopyPurpose::Copy, rules };
    unpack::run((&tar[..], &again), task, THREADS, &totals);
    let facts = totals.facts();
    assert_eq!(number(&facts, "files"), 0, "{facts}");
    assert!(number(&facts, "skipped") >= 300, "{facts}");
    drop((inside, again));
    pool.close().expect("memory does not fail");
}

/// Goal: a comparison finds each difference, and the next copy repairs it. Method: content, length,
/// link and attributes are changed one by one.
#[test]
fn what_differs_is_found_and_mended() {
    let place = TestTreeDirectory::new("differs");
    fill(&place.path("from"));
    let pool = pool(256 << 20);
    let fs = pool.file_system();
    let (from, inside) = (host(&place.path("from")), tree_of(&fs, "/"));
    copied(&from, &inside, CopyPurpose::Copy);
    let root = Caller::root();
    let directory = fs.lookup(&root, fs.root(), b"a").expect("it is there").ino;
    let one = fs.lookup(&root, directory, b"one").expect("it is there");
    fs.write(&root, one.ino, 1, b"N").expect("there is room");
    fs.unlink(&root, directory, b"empty", None).expect("it is there");
    let again = fs.lookup(&root, fs.root(), b"again").expect("it is there").ino;
    fs.write(&root, again, 2_999_999, b"?").expect("there is room");
    let facts = copied(&from, &inside, CopyPurpose::Verify);
    let errors = facts["errors"].to_string();
    for words in ["a/one: its modification time differs", "a/empty: it is missing", "a/b/large: "] {
        assert!(errors.contains(words), "{words}: {errors}");
    }
    let facts = copied(&from, &inside, CopyPurpose::Copy);
    assert_eq!((number(&facts, "failed"), number(&facts, "files")), (0, 3), "{facts}");
    same(&from, &inside);
    drop(inside);
    pool.close().expect("memory does not fail");
}

fn head(name: &[u8], kind: u8, target: &[u8], size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(size);
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Goal: no archive changes anything outside its tree, and refused names are reported. Method:
/// names with `..`, absolute names, and names below a symbolic link.
#[test]
fn a_hostile_archive_stays_in_its_tree() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/in");
    let outside = tree_of(&fs, "/out");
    let mut tar = Vec::new();
    for (name, kind, target) in [
        (&b"../out/climbs"[..], b'0', &b""[..]),
        (b"x/../../out/climbs", b'0', b""),
        (b"/out/absolute", b'0', b""),
        (b"away", b'2', b"/out"),
        (b"away/below", b'0', b""),
        (b"up", b'2', b"../out"),
        (b"up/below", b'0', b""),
        (b"hard", b'1', b"../out/secret"),
        (b"hard2", b'1', b"/out/secret"),
        (b"hard3", b'1', b"away"),
        (b"strange", b'V', b""),
        (b"good", b'0', b""),
    ] {
        tar.extend(head(name, kind, target, 0));
    }
    let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
    assert_eq!(word, None);
    assert_eq!(number(&facts, "failed"), 7, "{facts}");
    assert_eq!(number(&facts, "left_out"), 1, "{facts}");
    let errors = facts["errors"].to_string();
    for words in ["leads out of the tree", "is no directory there", "what it is a link to"] {
        assert!(errors.contains(words), "{words}: {errors}");
    }
    let mut names = Vec::new();
    super::FileTree::list(&outside, &super::FileTree::root(&outside), &mut |name| names.push(name))
        .expect("it is there");
    assert!(names.is_empty(), "{names:?}");
    let find = |name: &[u8]| {
        super::FileTree::find(&inside, &super::FileTree::root(&inside), name).expect("it is read")
    };
    assert!(find(b"good").is_some() && find(b"up").is_some() && find(b"hard").is_none());
    drop((inside, outside));
    pool.close().expect("memory does not fail");
}

/// Goal: a truncated or invalid archive is reported, and existing files stay. The complete archive
/// then finishes the copy. Method: a good archive, cut at each block and within blocks.
#[test]
fn an_archive_that_breaks_off_says_so() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let mut tar = Vec::new();
    for name in [&b"one"[..], b"two"] {
        tar.extend(head(name, b'0', b"", 700));
        tar.extend(vec![b'y'; 1024]);
    }
    let whole = tar.len();
    tar.extend([0; 1024]);
    for cut in (0..whole).step_by(128) {
        let inside = tree_of(&fs, &format!("/{cut}"));
        let (_, word) = unpacked(&tar[..cut], &inside, CopyPurpose::Copy);
        let is_between = cut > 0 && cut % (whole / 2) == 0;
        let is_told = word.as_ref().is_some_and(|word| {
            word.contains("breaks off") || (cut == 0 && word.contains("empty"))
        });
        // A cut between two files is not an error, because some writers omit the end blocks.
        assert!(is_told || is_between, "{cut}: {word:?}");
        let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
        assert_eq!((number(&facts, "failed"), word), (0, None), "{cut}: {facts}");
        let (facts, _) = unpacked(&tar, &inside, CopyPurpose::Verify);
        assert_eq!((number(&facts, "failed"), number(&facts, "verified")), (0, 2), "{facts}");
    }
    let inside = tree_of(&fs, "/no");
    for (bytes, words) in [(&b"\x1f\x8b\x08"[..], "gzip"), (b"hello", "it is no tar")] {
        let mut block = bytes.to_vec();
        block.resize(512, 0);
        let (_, word) = unpacked(&block, &inside, CopyPurpose::Copy);
        assert!(word.as_ref().is_some_and(|word| word.contains(words)), "{word:?}");
    }
    let mut long = head(b"x", b'x', b"", archive::HEAD_BYTES_MAX + 1);
    long.resize(1 << 20, b'z');
    let (_, word) = unpacked(&long, &inside, CopyPurpose::Copy);
    assert!(word.as_ref().is_some_and(|word| word.contains("breaks off")), "{word:?}");
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: a pool that becomes full ends a copy-in with an error, and the files copied so far are
/// complete. Once there is space, a second copy-in finishes.
#[test]
fn a_full_pool_ends_a_copy_in_and_the_next_goes_on() {
    let place = TestTreeDirectory::new("full");
    let from = place.path("from");
    fs::create_dir_all(&from).expect("it is new");
    for number in 0..40 {
        let mut file = File::create(from.join(format!("file{number}"))).expect("it is new");
        let block: Vec<u8> =
            (0..1_u32 << 20).map(|at| at.wrapping_mul(number).to_le_bytes()[2]).collect();
        file.write_all(&block).expect("there is room");
    }
    let pool = pool(32 << 20);
    let fs = pool.file_system();
    let (source, inside) = (host(&from), tree_of(&fs, "/"));
    let totals = TreeCopyTotals::default();
    copy::run((&source, &inside), CopyPurpose::Copy, THREADS, &totals, &mut |_| true);
    let word = totals.last_word().expect("it does not fit");
    assert!(word.contains("no space"), "{word}");
    let there = number(&totals.facts(), "files");
    assert!(there > 3, "{there} files");
    for number in 20..40 {
        fs::remove_file(from.join(format!("file{number}"))).expect("it is there");
    }
    let root = Caller::root();
    for number in 20..40 {
        let _ = fs.unlink(&root, fs.root(), format!("file{number}").as_bytes(), None);
    }
    fs.sync().expect("memory does not fail");
    let facts = copied(&source, &inside, CopyPurpose::Copy);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    assert!(number(&facts, "skipped") > 0, "{facts}");
    let facts = copied(&source, &inside, CopyPurpose::Verify);
    assert_eq!((number(&facts, "failed"), number(&facts, "verified")), (0, 20), "{facts}");
    drop(inside);
    pool.close().expect("memory does not fail");
}

#[test]
fn names_that_climb_are_none() {
    assert_eq!(names_of(b"./a//b/."), Ok(vec![&b"a"[..], b"b"]));
    assert_eq!(names_of(b"./"), Ok(Vec::new()));
    for wrong in [&b"/a"[..], b"..", b"a/../b", b"a\0b"] {
        assert!(names_of(wrong).is_err(), "{wrong:?}");
    }
}

/// Goal: a copy-in of arbitrary bytes ends without a panic and stays in its tree. Method: good
/// archives of each form with bytes changed, removed or doubled, by seed.
#[test]
fn damaged_archives_end_and_stay_inside() {
    let place = TestTreeDirectory::new("damaged");
    let from = place.path("from");
    fs::create_dir_all(from.join("d")).expect("it is new");
    fs::write(from.join("d/file"), b"content").expect("it is new");
    fs::hard_link(from.join("d/file"), from.join("again")).expect("it is new");
    symlink("d", from.join("link")).expect("it is new");
    let holes = File::create(from.join("n".repeat(150))).expect("it is new");
    holes.set_len(200_000).expect("it is ours");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"middle", 100_000).expect("it is ours");
    drop(holes);
    let mut good = Vec::new();
    let totals = TreeCopyTotals::default();
    pack::run(&host(&from), &mut good, &totals);
    assert_eq!(totals.last_word(), None);
    let pool = pool(128 << 20);
    let fs = pool.file_system();
    let outside = |fs: &Arc<dyn FileSystem>| {
        let mut names = Vec::new();
        let tree = tree_of(fs, "/");
        super::FileTree::list(&tree, &super::FileTree::root(&tree), &mut |name| names.push(name))
            .expect("it is there");
        names
    };
    for seed in 0..300 {
        let mut prng = runtime::prng::Prng::from_seed(seed);
        let mut tar = good.clone();
        let below = |prng: &mut runtime::prng::Prng, end: usize| {
            usize::try_from(prng.below(u64::try_from(end).expect("small"))).expect("small")
        };
        for _ in 0..=prng.below(4) {
            let at = below(&mut prng, tar.len());
            match prng.below(4) {
                0 => tar[at] = prng.next_u64().to_le_bytes()[0],
                1 => tar.truncate(at.max(1)),
                2 => drop(tar.drain(at..(at + 512).min(tar.len()))),
                _ => {
                    let block = tar[at..(at + 512).min(tar.len())].to_vec();
                    tar.splice(at..at, block);
                }
            }
            if tar.is_empty() {
                tar.push(0);
            }
        }
        // Half of the checksums are repaired, so that damage reaches the code behind that check.
        if prng.one_in(2) {
            for block in tar.chunks_exact_mut(512) {
                let mut header = tar::Header::new_old();
                header.as_mut_bytes().copy_from_slice(block);
                header.set_cksum();
                if &block[257..262] == b"ustar" {
                    block.copy_from_slice(header.as_bytes());
                }
            }
        }
        let inside = tree_of(&fs, "/in");
        let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
        let is_bug = word.as_ref().is_some_and(|word| word.contains("bug"));
        assert!(!is_bug, "seed {seed}: {word:?} {facts}");
        assert_eq!(outside(&fs), [b"in".to_vec()], "seed {seed}");
    }
    pool.close().expect("memory does not fail");
}
