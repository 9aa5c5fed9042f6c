//! Tests of the replacement of existing files, after failures and kills too.

use engine::api::{Attr, FileKind, FsError, NewInode};

use super::super::aside::{self, tests::name_of_the_dead};
use super::super::copy::TreeCopyTask;
use super::super::{FileTree, TreeCopyRules};
use super::rights::{content, file_of, find};
use super::*;

fn bytes(megabytes: u32) -> Vec<u8> {
    (0..megabytes << 20).map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes()[2]).collect()
}

fn make(fs: &Arc<dyn FileSystem>, name: &str, kind: FileKind) -> Attr {
    let new = NewInode::new(kind, 0o751);
    fs.create(&Caller::root(), fs.root(), name.as_bytes(), new, None).expect("there is room")
}

fn write(fs: &Arc<dyn FileSystem>, name: &str, content: &[u8]) -> Attr {
    let made = make(fs, name, FileKind::Regular);
    fs.write(&Caller::root(), made.ino, 0, content).expect("there is room");
    made
}

fn names(fs: &Arc<dyn FileSystem>) -> Vec<String> {
    let tree = tree_of(fs, "/");
    let mut names = Vec::new();
    tree.list(&tree.root(), &mut |name| names.push(String::from_utf8(name).expect("ASCII")))
        .expect("it is there");
    names.sort();
    names
}

/// Goal: a hard link of an archive leads to the archive's file, or is not made. Method: the names
/// of the links have existing files, and the targets fail or are left out. One target has a second
/// entry, which succeeds.
#[test]
fn a_link_to_what_did_not_come_in_touches_nothing() {
    let pool = pool(32 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    let old = ["big", "to-big", "to-that", "device", "to-device", "damaged", "to-damaged", "last"];
    let inos: Vec<_> = old.iter().map(|name| write(&fs, name, name.as_bytes()).ino).collect();
    let link = |name: &str, target: &str| head(name.as_bytes(), b'1', target.as_bytes(), 0);
    let mut tar = file_of("big", &bytes(40), &[]);
    for (name, target) in [("to-big", "./big"), ("to-that", "to-big"), ("new", "to-that")] {
        tar.extend(link(name, target));
    }
    tar.extend(head(b"device", b'3', b"", 0));
    tar.extend(link("to-device", "device"));
    tar.extend(super::archives::with_records("damaged", b"no records", b'0', b"1"));
    tar.extend(link("to-damaged", "damaged"));
    tar.extend(file_of("big", b"second", &[]));
    tar.extend(link("last", "big"));
    let totals = TreeCopyTotals::default();
    let rules = TreeCopyRules { no_devices: true, ..TreeCopyRules::default() };
    let task = TreeCopyTask { purpose: CopyPurpose::Copy, rules };
    unpack::run((&tar[..], &inside), task, THREADS, &totals);
    let facts = totals.facts();
    assert_eq!((totals.last_word(), number(&facts, "failed")), (None, 6), "{facts}");
    assert_eq!((number(&facts, "left_out"), number(&facts, "links")), (2, 1), "{facts}");
    for (name, ino) in old.iter().zip(inos).filter(|(name, _)| !["big", "last"].contains(name)) {
        assert_eq!((find(&fs, name).ino, content(&fs, name)), (ino, name.as_bytes().to_vec()));
    }
    assert_eq!(
        (content(&fs, "big"), content(&fs, "last")),
        (b"second".to_vec(), b"second".to_vec())
    );
    assert!(!names(&fs).contains(&"new".to_owned()));
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Returns a pool, full if `is_full`, and an archive, in which each name has files of different
/// kinds.
fn of_other_kinds(is_full: bool) -> (Arc<dyn OpenPool>, Vec<u8>) {
    let pool = pool(32 << 20);
    let fs = pool.file_system();
    let root = Caller::root();
    write(&fs, "file", b"old");
    fs.symlink(&root, fs.root(), b"link", b"file", NewInode::SYMLINK, None).expect("it is new");
    for name in ["dir", "further", "filler"] {
        make(&fs, name, FileKind::Directory);
    }
    let filler = find(&fs, "filler").ino;
    let full = (0..if is_full { 1_000_000 } else { 0 }).find_map(|number: u32| {
        let name = format!("{number:0>200}");
        let new = NewInode::new(FileKind::Directory, 0o700);
        fs.create(&root, filler, name.as_bytes(), new, None).err()
    });
    assert_eq!(full, is_full.then_some(FsError::NoSpace));
    let mut tar = head(b"file/", b'5', b"", 0);
    tar.extend(head(b"link/", b'5', b"", 0));
    tar.extend(head(b"dir", b'0', b"", 0));
    tar.extend(head(b"further", b'1', b"dir", 0));
    (pool, tar)
}

/// Goal: if there is no space for the new file, the name keeps the old one. Method: a pool without
/// space for one more name. A file and a link are replaced by a directory, and an empty directory
/// by a file, from an archive and from a directory.
#[test]
fn without_room_the_old_one_stays_whatever_its_kind() {
    let place = TestTreeDirectory::new("kinds");
    let from = place.path("from");
    for directory in ["file", "link"] {
        fs::create_dir_all(from.join(directory)).expect("it is new");
    }
    fs::write(from.join("dir"), b"").expect("it is new");
    fs::hard_link(from.join("dir"), from.join("further")).expect("it is new");
    let (pool, tar) = of_other_kinds(true);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    let all = || {
        ["file", "link", "dir", "further"].map(|name| {
            let attr = find(&fs, name);
            (attr.ino, attr.mode)
        })
    };
    let before = all();
    let (unpacked, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
    assert_eq!(word, None);
    for facts in [unpacked, copied(&host(&from), &inside, CopyPurpose::Copy)] {
        let errors = facts["errors"].to_string();
        assert_eq!(number(&facts, "failed"), 4, "{facts}");
        assert!(errors.matches("the existing file was kept").count() >= 3, "{errors}");
        assert_eq!(before, all());
        assert_eq!((names(&fs).len(), content(&fs, "file")), (5, b"old".to_vec()));
    }
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: with enough space each file is replaced, and no temporary name is left. A directory with
/// content stays.
#[test]
fn what_is_there_is_replaced_by_another_kind() {
    let (pool, mut tar) = of_other_kinds(false);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    tar.extend(head(b"full", b'1', b"dir", 0));
    let full = make(&fs, "full", FileKind::Directory).ino;
    let new = NewInode::new(FileKind::Regular, 0o600);
    fs.create(&Caller::root(), full, b"content", new, None).expect("it is new");
    let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
    assert_eq!((word, number(&facts, "failed")), (None, 1), "{facts}");
    assert!(facts["errors"].to_string().contains("full: a directory with content"), "{facts}");
    assert_eq!((number(&facts, "replaced"), number(&facts, "links")), (4, 1), "{facts}");
    assert_eq!(names(&fs), ["dir", "file", "filler", "full", "further", "link"]);
    let kinds = ["file", "link", "dir", "further"].map(|name| find(&fs, name).kind);
    assert_eq!(kinds[..2], [FileKind::Directory; 2]);
    assert_eq!(kinds[2..], [FileKind::Regular; 2]);
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: only what killed copies left is removed. Method: temporary names of each kind of an ended
/// process, and similar names, in a pool and in a host directory, for directories and archives.
#[test]
fn what_a_killed_process_left_is_removed() {
    let place = TestTreeDirectory::new("left");
    let (from, to) = (place.path("from"), place.path("to"));
    let name = |random| String::from_utf8(name_of_the_dead(random)).expect("ASCII");
    let own = String::from_utf8(aside::name().expect("there are random numbers")).expect("ASCII");
    let fill = |at: &Path| {
        fs::create_dir_all(at.join(name(1))).expect("it is new");
        fs::create_dir_all(at.join(name(2)).join("with content")).expect("it is new");
        symlink("away", at.join(name(3))).expect("it is new");
        for name in [&name(4), &name(5), &own, ".holdfast-1-2", "file"] {
            fs::write(at.join(name), name).expect("it is new");
        }
    };
    // In the source, such a name is an ordinary file, and is copied.
    fs::create_dir_all(from.join("d")).expect("it is new");
    fs::write(from.join("d").join(name(5)), b"of the source").expect("it is new");
    fill(&to.join("d"));
    let kept = |with_source: bool| {
        let mut kept = vec![name(2), own.clone(), ".holdfast-1-2".to_owned(), "file".to_owned()];
        kept.extend(with_source.then(|| name(5)));
        kept.sort();
        kept
    };
    let listed = |tree: &PoolTree| {
        let mut names = Vec::new();
        let d = tree.find(&tree.root(), b"d").expect("it is read").expect("it is there");
        let d = tree.open(&tree.root(), b"d", &d).expect("it is there");
        tree.list(&d, &mut |name| names.push(String::from_utf8(name).expect("ASCII")))
            .expect("it is there");
        names.sort();
        names
    };
    let pool = pool(32 << 20);
    let fs = pool.file_system();
    for (path, is_archive) in [("/copied", false), ("/unpacked", true)] {
        let inside = tree_of(&fs, path);
        copied(&host(&to), &inside, CopyPurpose::Copy);
        assert_eq!(listed(&inside).len(), 8, "{path}");
        let facts = if is_archive {
            super::unpacked(&head(b"d/file", b'0', b"", 0), &inside, CopyPurpose::Copy).0
        } else {
            copied(&host(&from), &inside, CopyPurpose::Copy)
        };
        assert_eq!((number(&facts, "failed"), listed(&inside)), (0, kept(!is_archive)), "{facts}");
    }
    let facts = copied(&host(&from), &host(&to), CopyPurpose::Copy);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    let names = fs::read_dir(to.join("d")).expect("it is there");
    let mut names: Vec<_> = names
        .map(|entry| entry.expect("it is read").file_name().into_string().expect("ASCII"))
        .collect();
    names.sort();
    assert_eq!(names, kept(true));
    pool.close().expect("memory does not fail");
}

/// Goal: an export replaces files of other kinds and leaves no temporary name.
#[test]
fn an_export_replaces_other_kinds() {
    let place = TestTreeDirectory::new("export-kinds");
    let (from, to) = (place.path("from"), place.path("to"));
    fs::create_dir_all(from.join("dir/below")).expect("it is new");
    for name in ["one", "two"] {
        fs::write(from.join(name), b"content").expect("it is new");
    }
    fs::hard_link(from.join("two"), from.join("dir/further")).expect("it is new");
    symlink("one", from.join("link")).expect("it is new");
    for name in ["one", "two", "link"] {
        fs::create_dir_all(to.join(name)).expect("it is new");
    }
    fs::write(to.join("dir"), b"old").expect("it is new");
    let (source, target) = (host(&from), host(&to));
    let facts = copied(&source, &target, CopyPurpose::Copy);
    assert_eq!((number(&facts, "failed"), number(&facts, "replaced")), (0, 4), "{facts}");
    let facts = copied(&source, &target, CopyPurpose::Verify);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    let mut names: Vec<_> = fs::read_dir(&to)
        .expect("it is there")
        .map(|entry| entry.expect("it is read").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["dir", "link", "one", "two"]);
}
