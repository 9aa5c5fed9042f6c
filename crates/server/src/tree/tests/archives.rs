//! Tests of unusual archives, made from a pool or by hostile writers.

use engine::api::{Attr, FileKind, Ino, NewInode, RenameMode, SetAttr, SetTime, XattrMode};

use super::*;

fn made(fs: &Arc<dyn FileSystem>, parent: Ino, name: &str, kind: FileKind) -> Attr {
    let new = NewInode::new(kind, 0o755);
    fs.create(&Caller::root(), parent, name.as_bytes(), new, None).expect("there is room")
}

fn find(fs: &Arc<dyn FileSystem>, parent: Ino, name: &str) -> Ino {
    fs.lookup(&Caller::root(), parent, name.as_bytes()).expect("it is there").ino
}

fn give(fs: &Arc<dyn FileSystem>, ino: Ino, name: &[u8], value: &[u8]) {
    fs.setxattr(&Caller::root(), ino, name, value, XattrMode::Set, None).expect("there is room");
}

/// Gives a file more extended attributes than fit in a tar header. The number of user attributes is
/// bounded, so others are used too.
fn give_too_many(fs: &Arc<dyn FileSystem>, ino: Ino) {
    for number in 0..80 {
        give(fs, ino, format!("trusted.{number}").as_bytes(), &[7; 64 << 10]);
    }
}

fn packed(tree: &PoolTree) -> (Vec<u8>, Value) {
    let (mut tar, totals) = (Vec::new(), TreeCopyTotals::default());
    pack::run(tree, &mut tar, &totals);
    assert_eq!(totals.last_word(), None);
    (tar, totals.facts())
}

#[track_caller]
fn assert_told(facts: &Value, words: &[&str]) {
    let errors = facts["errors"].to_string();
    assert_eq!(number(facts, "failed"), u64::try_from(words.len()).expect("few"), "{errors}");
    for words in words {
        assert!(errors.contains(words), "{words}: {errors}");
    }
}

/// Goal: a copy-in reads every archive that a copy-out writes. What does not fit in a tar is
/// reported and affects no other file. Method: files at and above the limits of ranges and
/// attributes, and with unusual attribute names, each followed by another file.
#[test]
fn what_a_copy_out_writes_a_copy_in_reads() {
    let pool = pool(96 << 20);
    let fs = pool.file_system();
    let root = Caller::root();
    let (from, to) = (tree_of(&fs, "/from"), tree_of(&fs, "/to"));
    let at = find(&fs, fs.root(), "from");
    for (name, count) in [("a-most", archive::RANGES_MAX), ("b-more", archive::RANGES_MAX + 5)] {
        let ino = made(&fs, at, name, FileKind::Regular).ino;
        for number in 0..u64::try_from(count).expect("few") {
            fs.write(&root, ino, number * (64 << 10), b"here").expect("there is room");
        }
    }
    give_too_many(&fs, made(&fs, at, "c-heavy", FileKind::Regular).ino);
    let names = made(&fs, at, "d-names", FileKind::Regular).ino;
    for name in [&b"user.a=b"[..], b"user.\xff", b"user.%3D%25%", b"user.=", b"user.%\n"] {
        give(&fs, names, name, b"a=b\n%3D");
    }
    let heavy = made(&fs, at, "e-heavy", FileKind::Directory).ino;
    give_too_many(&fs, heavy);
    made(&fs, heavy, "below", FileKind::Regular);
    made(&fs, at, "z", FileKind::Regular);

    let (tar, facts) = packed(&from);
    let heavy = ["c-heavy: its extended attributes take", "e-heavy: its extended attributes take"];
    assert_told(&facts, &heavy);
    assert_eq!((number(&facts, "files"), number(&facts, "directories")), (6, 1), "{facts}");
    let (facts, word) = unpacked(&tar, &to, CopyPurpose::Copy);
    assert_eq!((number(&facts, "failed"), word), (0, None), "{facts}");
    let facts = copied(&from, &to, CopyPurpose::Verify);
    assert_told(&facts, &["c-heavy: its extended attributes", "e-heavy: its extended attributes"]);
    assert_eq!(number(&facts, "verified"), 5, "{facts}");
    drop((from, to));
    pool.close().expect("memory does not fail");
}

pub(super) fn with_records(name: &str, records: &[u8], kind: u8, content: &[u8]) -> Vec<u8> {
    let length = |bytes: &[u8]| u64::try_from(bytes.len()).expect("small");
    let mut tar = head(b"pax", b'x', b"", length(records));
    tar.extend(records);
    tar.resize(tar.len().next_multiple_of(512), 0);
    tar.extend(head(name.as_bytes(), kind, b"", length(content)));
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
    tar
}

/// Goal: an invalid file of an archive costs only that file (TE3). Method: each possible error of a
/// header or map, followed by a good file.
#[test]
fn what_is_wrong_with_a_file_of_an_archive_costs_that_file() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let sparse = [
        archive::record_of("GNU.sparse.major", b"1"),
        archive::record_of("GNU.sparse.realsize", b"9000"),
    ]
    .concat();
    let map = |text: String| {
        let mut map = text.into_bytes();
        map.resize(map.len().next_multiple_of(512), 0);
        map
    };
    let ranges = archive::RANGES_MAX + 1;
    let many = map(format!("{ranges}\n{}", "0\n0\n".repeat(ranges)));
    let head_bytes = usize::try_from(archive::HEAD_BYTES_MAX).expect("small");
    let old = archive::record_of("GNU.sparse.map", b"0,1");
    for (name, records, content, words) in [
        ("long", vec![b'z'; head_bytes + 1], vec![1; 600], "headers take 4194305 bytes"),
        ("none", b"nothing of a pax head".to_vec(), vec![1; 600], "pax header is damaged"),
        ("old", old, vec![1; 600], "a form that is not read"),
        ("many", sparse.clone(), many, "more than 64 ranges"),
        ("endless", sparse.clone(), vec![b'1'; 2048], "has no number"),
        ("falls", sparse.clone(), map("2\n9\n0\n1\n0\n".to_owned()), "is malformed"),
        ("short", sparse.clone(), map("3\n9\n0\n".to_owned()), "holes has no number"),
        ("other", sparse, map("1\n0\n7\n".to_owned()), "does not fit"),
    ] {
        let inside = tree_of(&fs, &format!("/{name}"));
        let mut tar = with_records(name, &records, b'0', &content);
        tar.extend(head(b"good", b'0', b"", 0));
        for purpose in [CopyPurpose::Copy, CopyPurpose::Verify] {
            let (facts, word) = unpacked(&tar, &inside, purpose);
            assert_eq!(word, None, "{name}");
            assert_told(&facts, &[words]);
        }
        let mut names = Vec::new();
        super::super::FileTree::list(
            &inside,
            &super::super::FileTree::root(&inside),
            &mut |name| {
                names.push(name);
            },
        )
        .expect("it is there");
        assert_eq!(names, [b"good".to_vec()], "{name}");
    }
    pool.close().expect("memory does not fail");
}

/// Goal: a file with the name of the snapshot directory affects no other file. Method: an archive
/// and a directory with that name, at the root of a fileset and below it, where the name is
/// ordinary.
#[test]
fn a_name_that_leads_to_snapshots_costs_itself_alone() {
    let place = TestTreeDirectory::new("snapshots");
    let from = place.path("from");
    fs::create_dir_all(from.join(".snapshots/d")).expect("it is new");
    fs::write(from.join(".snapshots/a"), b"a").expect("it is new");
    fs::write(from.join("good"), b"good").expect("it is new");
    let mut tar = head(b".snapshots/a", b'0', b"", 0);
    tar.extend(head(b"hard", b'1', b".snapshots/a", 0));
    tar.extend(head(b"good", b'0', b"", 0));
    let words = "the snapshots of the fileset have this name";
    for (path, told) in [("/", &[words, words][..]), ("/below", &[])] {
        let pool = pool(64 << 20);
        let fs = pool.file_system();
        let take = control::Request::SnapshotCreate {
            fileset: "root".to_owned(),
            snapshot: "a".to_owned(),
        };
        pool.control(&take, crate::peer::Peer::own()).expect("there is room");
        let inside = tree_of(&fs, path);
        let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
        assert_eq!(word, None);
        assert_told(&facts, told);
        let facts = copied(&host(&from), &inside, CopyPurpose::Copy);
        assert_told(&facts, &told[..told.len().min(1)]);
        for name in [&b"good"[..], b"hard", b".snapshots"] {
            let found =
                super::super::FileTree::find(&inside, &super::super::FileTree::root(&inside), name);
            let is_there = found.is_ok_and(|found| found.is_some());
            assert_eq!(is_there, told.is_empty() || name == b"good", "{path}: {name:?}");
        }
        drop(inside);
        assert!(PoolTree::below(&fs, fs.root(), b"/.snapshots/a", true).is_err());
        pool.close().expect("memory does not fail");
    }
}

fn verified(tar: &[u8], tree: &PoolTree) -> Value {
    let totals = TreeCopyTotals::default();
    unpack::verify_all_of((tar, tree), THREADS, &totals);
    assert_eq!(totals.last_word(), None);
    totals.facts()
}

/// Goal: a comparison with an archive checks holes too, before, between and after data, in small
/// and large files. Method: a byte is written in a hole, and the file's time is reset.
#[test]
fn a_comparison_finds_what_lies_in_a_hole() {
    let pool = pool(128 << 20);
    let fs = pool.file_system();
    let root = Caller::root();
    let tree = tree_of(&fs, "/from");
    let at = find(&fs, fs.root(), "from");
    let sizes = [("empty", 0, 1 << 20), ("small", 9000, 1 << 20), ("large", 3 << 20, 9 << 20)];
    for (name, stored, size) in sizes {
        let ino = made(&fs, at, name, FileKind::Regular).ino;
        if stored > 0 {
            fs.write(&root, ino, 128 << 10, &vec![9; stored]).expect("there is room");
        }
        let change = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
        fs.setattr(&root, ino, &change, None).expect("it is ours");
    }
    let (tar, facts) = packed(&tree);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    assert!(tar.len() < 4 << 20, "holes are kept: {}", tar.len());
    assert_eq!(number(&verified(&tar, &tree), "failed"), 0);
    for (name, stored, size) in sizes {
        let ino = find(&fs, at, name);
        let behind = (128 << 10) + u64::try_from(stored).expect("small") + (64 << 10);
        for place in [0, 100 << 10, behind, size - 1] {
            let before = fs.getattr(&root, ino).expect("it is there");
            let times = |before: &Attr| SetAttr {
                atime: Some(SetTime::To(before.atime)),
                mtime: Some(SetTime::To(before.mtime)),
                ..SetAttr::default()
            };
            fs.write(&root, ino, place, b"!").expect("there is room");
            fs.setattr(&root, ino, &times(&before), None).expect("it is ours");
            let differs = format!("{name}: its content differs from byte {place} on");
            assert_told(&verified(&tar, &tree), &[&differs]);
            fs.write(&root, ino, place, b"\0").expect("there is room");
            fs.setattr(&root, ino, &times(&before), None).expect("it is ours");
            assert_eq!(number(&verified(&tar, &tree), "failed"), 0, "{name}: zeros are a hole");
        }
    }
    drop(tree);
    pool.close().expect("memory does not fail");
}

/// Goal: a comparison with an archive of a whole tree finds each file that the archive lacks.
/// Method: each name in turn is moved away while the archive is written.
#[test]
fn a_comparison_finds_what_an_archive_lacks() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let root = Caller::root();
    let tree = tree_of(&fs, "/from");
    let at = find(&fs, fs.root(), "from");
    let names = ["a", "d", "d.e", "d/a", "d/z", "e", "e/f", "e/f/g", "z"];
    let parent_of = |path: &str| match path.rsplit_once('/') {
        None => (at, path.to_owned()),
        Some((above, name)) => {
            let parent = above.split('/').fold(at, |parent, name| find(&fs, parent, name));
            (parent, name.to_owned())
        }
    };
    for path in names {
        let (parent, name) = parent_of(path);
        let is_directory = ["d", "e", "e/f"].contains(&path);
        let kind = if is_directory { FileKind::Directory } else { FileKind::Regular };
        made(&fs, parent, &name, kind);
    }
    made(&fs, at, "m-socket", FileKind::Socket);
    let (tar, _) = packed(&tree);
    assert_eq!(number(&verified(&tar, &tree), "failed"), 0);
    for path in names {
        let (parent, name) = parent_of(path);
        let times = |ino: Ino| fs.getattr(&root, ino).expect("it is there").mtime;
        let rename = |from: (Ino, &[u8]), to: (Ino, &[u8])| {
            fs.rename(&root, from, to, RenameMode::Replace, None).expect("it is there");
        };
        rename((parent, name.as_bytes()), (fs.root(), b"away"));
        let (tar, _) = packed(&tree);
        let before = times(parent);
        rename((fs.root(), b"away"), (parent, name.as_bytes()));
        let below = names.iter().filter(|it| it.starts_with(&format!("{path}/"))).copied();
        let lacks: Vec<String> = [path]
            .into_iter()
            .chain(below)
            .map(|it| format!("{it}: the archive lacks it"))
            .collect();
        let mut told: Vec<&str> = lacks.iter().map(String::as_str).collect();
        // Moving the file back may have changed the time of the directory.
        let facts = verified(&tar, &tree);
        if times(parent) != before {
            told.push("its modification time differs");
        }
        assert_told(&facts, &told);
    }
    drop(tree);
    pool.close().expect("memory does not fail");
}

/// Goal: bounded memory is held for directories, and each gets its attributes and times. Method: a
/// wide tree with attributes far above the limit, and a deep one, in which none can be finished
/// early, so that the excess is reported while the others are copied.
#[test]
fn directories_of_an_archive_are_held_up_to_a_bound() {
    let pool = pool(128 << 20);
    let fs = pool.file_system();
    let (from, to) = (tree_of(&fs, "/from"), tree_of(&fs, "/to"));
    let at = find(&fs, fs.root(), "from");
    let directory = |parent: Ino, name: &str| {
        let ino = made(&fs, parent, name, FileKind::Directory).ino;
        give(&fs, ino, b"user.long", &[7; 40_000]);
        ino
    };
    let held = unpack::DIRECTORIES_BYTES_MAX / 40_000;
    for number in 0..10 * held {
        let outer = directory(at, &format!("d{number}"));
        let inner = directory(outer, "inner");
        made(&fs, inner, "file", FileKind::Regular);
        made(&fs, outer, "last", FileKind::Regular);
    }
    let (tar, _) = packed(&from);
    assert!(tar.len() > 10 * unpack::DIRECTORIES_BYTES_MAX);
    let (facts, word) = unpacked(&tar, &to, CopyPurpose::Copy);
    assert_eq!((number(&facts, "failed"), word), (0, None), "{facts}");
    let facts = copied(&from, &to, CopyPurpose::Verify);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    let (facts, word) = unpacked(&tar, &to, CopyPurpose::Verify);
    assert_eq!((number(&facts, "failed"), word), (0, None), "{facts}");

    let deep = tree_of(&fs, "/deep");
    let mut parent = find(&fs, fs.root(), "deep");
    for _ in 0..held + 2 {
        parent = directory(parent, "below");
    }
    made(&fs, parent, "file", FileKind::Regular);
    let (tar, _) = packed(&deep);
    let other = tree_of(&fs, "/other");
    let (facts, word) = unpacked(&tar, &other, CopyPurpose::Copy);
    assert_eq!((number(&facts, "files"), word), (1, None), "{facts}");
    let words = "its own attributes and times are left out";
    assert_told(&facts, &[words, words]);
    drop((from, to, deep, other));
    pool.close().expect("memory does not fail");
}

struct Buggy(&'static [u8]);

impl std::io::Read for Buggy {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        assert!(!self.0.is_empty(), "the bug of a test");
        self.0.read(into)
    }
}

/// Goal: a panic of the reading thread ends the copy-in with an error.
#[test]
fn a_bug_of_the_reader_ends_the_copy_in() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = pool(64 << 20);
        let inside = tree_of(&pool.file_system(), "/in");
        let tar: Vec<u8> = (0..9).flat_map(|it| head(&[b'a' + it], b'0', b"", 0)).collect();
        let totals = TreeCopyTotals::default();
        let reader = Buggy(tar.leak());
        unpack::run((reader, &inside), CopyPurpose::Copy, THREADS, &totals);
        drop(inside);
        pool.close().expect("memory does not fail");
        tell.send(totals.last_word()).expect("somebody waits");
    });
    // Only a hanging thread would take a minute.
    let told = told.recv_timeout(std::time::Duration::from_secs(60));
    let word = told.expect("the copy-in ends");
    assert!(word.as_ref().is_some_and(|word| word.contains("a bug")), "{word:?}");
}

#[test]
fn a_time_before_all_times_is_none() {
    let pool = pool(64 << 20);
    let inside = tree_of(&pool.file_system(), "/in");
    for (name, text, seconds) in [
        ("a", "-9223372036854775808.5", 1),
        ("b", "-99999999999999999999", 1),
        ("c", "-3.25", -4),
        ("d", "7", 7),
    ] {
        let records = archive::record_of("mtime", text.as_bytes());
        let tar = with_records(name, &records, b'0', b"");
        let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
        assert_eq!((word, number(&facts, "failed")), (None, 0), "{text}: {facts}");
        let found = super::super::FileTree::find(
            &inside,
            &super::super::FileTree::root(&inside),
            name.as_bytes(),
        );
        let meta = found.expect("it is read").expect("it is there");
        assert_eq!(meta.mtime.seconds, seconds, "{text}");
    }
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: an invalid owner or attribute costs only itself (TE3).
#[test]
fn what_is_wrong_with_attributes_costs_no_content() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let name = |number| format!("SCHILY.xattr.user.{number:0>200}");
    let list = (0..319).flat_map(|number| archive::record_of(name(number), b"")).collect();
    for (name, records, words) in [
        ("whose", archive::record_of("uid", b"5000000000"), "uid 5000000000"),
        ("value", archive::record_of("SCHILY.xattr.user.a", &[7; 65_537]), "65537 bytes"),
        ("list", list, "take 65714 bytes"),
    ] {
        let inside = tree_of(&fs, "/");
        let tar = with_records(name, &records, b'0', &[1; 600]);
        let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
        assert_eq!(word, None, "{name}");
        assert_told(&facts, &[words]);
        let found = fs.lookup(&Caller::root(), fs.root(), name.as_bytes()).expect("it is there");
        assert_eq!((found.size_bytes, found.uid), (600, 0), "{name}");
    }
    pool.close().expect("memory does not fail");
}
