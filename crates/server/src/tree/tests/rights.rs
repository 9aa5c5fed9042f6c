//! Tests of owners and rights, during and after a copy.

use engine::api::{FileKind, NewInode, SetAttr};

use super::super::copy::TreeCopyTask;
use super::super::{CAPABILITY, FileTree, TreeCopyRules};
use super::*;

const MTIME: &str = "1000000000";

fn with_rules(bytes: &[u8], tree: &PoolTree, rules: TreeCopyRules) -> (Value, Option<String>) {
    let totals = TreeCopyTotals::default();
    let task = TreeCopyTask { purpose: CopyPurpose::Copy, rules };
    unpack::run((bytes, tree), task, THREADS, &totals);
    (totals.facts(), totals.last_word())
}

pub(super) fn find(fs: &Arc<dyn FileSystem>, path: &str) -> engine::api::Attr {
    let mut at = fs.root();
    let mut found = None;
    for name in path.split('/') {
        let attr = fs.lookup(&Caller::root(), at, name.as_bytes()).expect("it is there");
        at = attr.ino;
        found = Some(attr);
    }
    found.expect("a path has names")
}

pub(super) fn content(fs: &Arc<dyn FileSystem>, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    fs.read(&Caller::root(), find(fs, path).ino, 0, 1 << 20, &mut bytes).expect("it is there");
    bytes
}

pub(super) fn file_of(name: &str, content: &[u8], records: &[(&str, &[u8])]) -> Vec<u8> {
    let all: Vec<u8> =
        records.iter().flat_map(|(key, value)| archive::record_of(key, value)).collect();
    let mut tar = Vec::new();
    let length = |bytes: &[u8]| u64::try_from(bytes.len()).expect("small");
    if !all.is_empty() {
        tar.extend(head(b"pax", b'x', b"", length(&all)));
        tar.extend(&all);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.extend(head(name.as_bytes(), b'0', b"", length(content)));
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
    tar
}

/// Changes bytes of a header without content, and updates its checksum.
fn changed(mut block: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().take(512).map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Goal: no user gains rights by a hard link to another user's file. Method: root's secret file has
/// a name in a user's directory, where the source has a file of that user with equal size and time.
/// Then a file whose names are all in the source.
#[test]
fn a_file_with_names_beyond_the_source_is_not_given_away() {
    let place = TestTreeDirectory::new("beyond");
    let from = place.path("from");
    fs::create_dir_all(from.join("home")).expect("it is new");
    for name in ["home/mine", "pair"] {
        fs::write(from.join(name), b"own\n").expect("it is new");
    }
    fs::hard_link(from.join("pair"), from.join("home/pair")).expect("it is new");
    for name in ["home/mine", "pair"] {
        fs::set_permissions(from.join(name), fs::Permissions::from_mode(0o666)).expect("ours");
    }
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let (source, inside) = (host(&from), tree_of(&fs, "/"));
    copied(&source, &inside, CopyPurpose::Copy);
    let root = Caller::root();
    let (mine, pair) = (find(&fs, "home/mine"), find(&fs, "pair"));
    for ino in [mine.ino, pair.ino] {
        let change =
            SetAttr { mode: Some(0o600), uid: Some(0), gid: Some(0), ..SetAttr::default() };
        fs.setattr(&root, ino, &change, None).expect("it is there");
    }
    fs.link(&root, mine.ino, fs.root(), b"secret", None).expect("it is new");
    let facts = copied(&source, &inside, CopyPurpose::Copy);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");
    let secret = find(&fs, "secret");
    assert_eq!((secret.ino, secret.mode, secret.nlink), (mine.ino, 0o600, 1));
    let given = find(&fs, "home/mine");
    assert_eq!((given.ino == mine.ino, given.mode), (false, 0o666));
    let both = (find(&fs, "pair"), find(&fs, "home/pair"));
    assert_eq!((both.0.ino, both.1.ino, both.0.mode), (pair.ino, pair.ino, 0o666));
    let facts = copied(&source, &inside, CopyPurpose::Verify);
    assert_eq!(number(&facts, "failed"), 0, "{facts}");

    // A repeated copy-in of an archive does not change the rights of the other name either.
    let tar = file_of("home/mine", b"new\n", &[("mtime", MTIME.as_bytes())]);
    assert_eq!(with_rules(&tar, &inside, TreeCopyRules::default()).1, None);
    let mine = find(&fs, "home/mine");
    fs.link(&root, mine.ino, fs.root(), b"other", None).expect("it is new");
    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fs.setattr(&root, mine.ino, &change, None).expect("it is there");
    let rules = TreeCopyRules { skips_same: true, ..TreeCopyRules::default() };
    assert_eq!(with_rules(&tar, &inside, rules).1, None);
    assert_eq!((find(&fs, "other").mode, find(&fs, "home/mine").mode), (0o600, 0o644));
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: during a copy-in, and after an interrupted one, no user has a right that the complete file
/// does not grant. The next copy-in finishes. Method: an archive that ends within a file.
#[test]
fn what_a_copy_in_has_not_finished_is_its_owners_alone() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    fs.create(&Caller::root(), fs.root(), b"old", NewInode::new(FileKind::Directory, 0o751), None)
        .expect("it is new");
    let mut tar = head(b"open/", b'5', b"", 0);
    tar = changed(tar, 100, b"0000777\0");
    tar.extend(head(b"old/", b'5', b"", 0));
    tar.extend(file_of("open/big", &[7; 2 << 20], &[]));
    tar.extend(file_of("implied/small", b"1", &[]));
    let cut = 4096;
    let word = with_rules(&tar[..cut], &inside, TreeCopyRules::default()).1;
    assert!(word.is_some_and(|word| word.contains("breaks off")));
    assert_eq!((find(&fs, "open").mode, find(&fs, "old").mode), (0o700, 0o751));
    let left = fs.lookup(&Caller::root(), find(&fs, "open").ino, b"big");
    assert!(left.is_err(), "a file that is not whole is not left: {left:?}");
    assert_eq!(with_rules(&tar, &inside, TreeCopyRules::default()).1, None);
    assert_eq!((find(&fs, "open").mode, find(&fs, "old").mode), (0o777, 0o644));
    assert_eq!((find(&fs, "implied").mode, find(&fs, "open/big").mode), (0o755, 0o644));

    let made = inside.make(
        &inside.root(),
        b"begun",
        &inside.meta(&inside.root()).expect("it is there"),
        b"",
    );
    drop(made.expect("it is new"));
    assert_eq!((find(&fs, "begun").mode, find(&fs, "begun").uid), (0o700, 0));
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: attributes that the pool cannot store affect neither content nor rights. An access list in
/// text form is applied. Capabilities are set after the owner, or left out on request.
#[test]
fn attributes_cost_no_content() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let words = b"user::rw-,user:1001:rw-,group::---,mask::rw-,other::---";
    let mut tar = Vec::new();
    for (name, records) in [
        ("apple", vec![("SCHILY.xattr.com.apple.provenance", &b"x"[..]), ("mtime", b"-1.5")]),
        ("nfs", vec![("SCHILY.xattr.system.nfs4_acl", &b"x"[..])]),
        ("able", vec![("SCHILY.xattr.security.capability", &capability[..]), ("uid", b"7")]),
        ("list", vec![("SCHILY.acl.access", &words[..])]),
        ("unknown", vec![("SCHILY.acl.access", &b"user::rw-,user:no-such:rw-"[..])]),
    ] {
        tar.extend(file_of(name, b"hello", &records));
    }
    let (facts, word) = with_rules(&tar, &inside, TreeCopyRules::default());
    assert_eq!(
        (word, number(&facts, "failed"), number(&facts, "left_out")),
        (None, 1, 2),
        "{facts}"
    );
    assert!(facts["errors"].to_string().contains("unknown: its access list is malformed"));
    for name in ["apple", "nfs", "able", "list", "unknown"] {
        assert_eq!(content(&fs, name), b"hello", "{name}");
    }
    let apple = find(&fs, "apple").mtime;
    assert_eq!((apple.seconds, apple.nanoseconds), (-2, 500_000_000));
    assert_eq!((find(&fs, "list").mode, find(&fs, "unknown").mode), (0o660, 0o604));
    let group = Caller::checked(5, 0, Vec::new());
    let mut bytes = Vec::new();
    let read = fs.read(&group, find(&fs, "list").ino, 0, 9, &mut bytes);
    assert!(read.is_err(), "the list keeps the group out");
    let able = |rules| {
        assert_eq!(with_rules(&tar, &inside, rules).1, None);
        fs.getxattr(&Caller::root(), find(&fs, "able").ino, CAPABILITY).ok()
    };
    assert_eq!(able(TreeCopyRules::default()).as_deref(), Some(&capability[..]));
    assert_eq!(able(TreeCopyRules { no_setuid: true, ..TreeCopyRules::default() }), None);
    let (facts, _) = unpacked(&tar, &inside, CopyPurpose::Verify);
    assert_eq!(number(&facts, "failed"), 1, "the capability alone: {facts}");
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: attributes that do not fit in a file are reported, and affect neither content nor rights
/// nor later files.
#[test]
fn attributes_without_room_are_told_and_the_copy_goes_on() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    let value = vec![b'v'; 65_536];
    let keys: Vec<String> = (0..5).map(|it| format!("SCHILY.xattr.user.{it}")).collect();
    let mut records: Vec<(&str, &[u8])> = keys.iter().map(|key| (&key[..], &value[..])).collect();
    records.push(("uid", b"7"));
    let mut tar = file_of("many", b"hello", &records);
    tar.extend(file_of("next", b"hello", &[]));
    let (facts, word) = with_rules(&tar, &inside, TreeCopyRules::default());
    assert_eq!((word, number(&facts, "failed"), number(&facts, "files")), (None, 2, 2), "{facts}");
    assert!(facts["errors"].to_string().contains("a file has at most 256 KiB"), "{facts}");
    assert_eq!((content(&fs, "many"), content(&fs, "next")), (b"hello".into(), b"hello".into()));
    assert_eq!(find(&fs, "many").uid, 7);
    let kept = fs.listxattr(&Caller::root(), find(&fs, "many").ino).expect("it is read");
    assert_eq!(kept.len(), 3);
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: headers with missing or invalid fields affect no content and grant no rights.
#[test]
fn a_head_that_makes_no_sense_costs_no_content() {
    let pool = pool(64 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    let mut tar = Vec::new();
    let set = |name: &[u8], at: usize, bytes: &[u8]| {
        let block = changed(head(name, b'0', b"", 0), 100, b"0004755\0");
        changed(block, at, bytes)
    };
    tar.extend(set(b"blank", 108, &[0; 16]));
    tar.extend(set(b"spaces", 108, &[b' '; 16]));
    tar.extend(set(b"minus", 108, b"-1\0\0\0\0\0\0"));
    tar.extend(set(b"mode", 100, b"abc\0\0\0\0\0"));
    tar.extend(set(b"huge", 108, b"\x80\0\0\x01\0\0\0\0"));
    tar.extend(set(b"before", 136, b"\xff\xff\xff\xff\xff\xff\xff\xff\xf6\x98\xa6\x80"));
    tar.extend(set(b"unknown", 156, b"Z"));
    tar.extend([0; 1024]);
    let (facts, word) = with_rules(&tar, &inside, TreeCopyRules::default());
    assert_eq!((word, number(&facts, "failed")), (None, 4), "{facts}");
    assert_eq!(number(&facts, "files"), 7, "{facts}");
    for name in ["blank", "spaces", "minus", "huge"] {
        let found = find(&fs, name);
        assert_eq!((found.uid, found.mode), (0, 0o755), "{name}");
    }
    assert_eq!((find(&fs, "mode").mode, find(&fs, "before").mtime.seconds), (0o600, -157_768_064));
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: an existing file is replaced only by a complete one, and its other names keep it. The last
/// entry of a name counts, in comparisons too. Method: a pool without space for both files, a
/// directory with content, and an archive with repeated names.
#[test]
fn what_is_there_is_replaced_whole_or_not_at_all() {
    let place = TestTreeDirectory::new("replaced");
    let from = place.path("from");
    fs::create_dir_all(&from).expect("it is new");
    let bytes = |seed: u32, megabytes: u32| -> Vec<u8> {
        (0..megabytes << 20)
            .map(|at| (at ^ seed).wrapping_mul(2_654_435_761).to_le_bytes()[2])
            .collect()
    };
    fs::write(from.join("big"), bytes(1, 12)).expect("there is room");
    let pool = pool(48 << 20);
    let fs = pool.file_system();
    let (source, inside) = (host(&from), tree_of(&fs, "/"));
    copied(&source, &inside, CopyPurpose::Copy);
    let old = find(&fs, "big");
    fs::write(from.join("big"), bytes(2, 40)).expect("there is room");
    fs::write(from.join("small"), b"comes").expect("there is room");
    let facts = copied(&source, &inside, CopyPurpose::Copy);
    assert_eq!(number(&facts, "failed"), 1, "{facts}");
    assert!(facts["errors"].to_string().contains("the existing file was kept"), "{facts}");
    let mut there = Vec::new();
    fs.read(&Caller::root(), old.ino, 0, 12 << 20, &mut there).expect("it is there");
    assert!(there == bytes(1, 12) && find(&fs, "big").ino == old.ino);
    assert_eq!(content(&fs, "small"), b"comes");

    let mut tar = file_of("dir/file", b"below", &[]);
    for (name, content) in [("twice", &b"first"[..]), ("kept", b"1")] {
        tar.extend(file_of(name, content, &[]));
    }
    tar.extend(head(b"link", b'1', b"twice", 0));
    tar.extend(file_of("twice", b"2nd", &[]));
    tar.extend(file_of("dir", b"no directory", &[]));
    for _ in 0..2 {
        let (facts, word) = with_rules(&tar, &inside, TreeCopyRules::default());
        assert_eq!((word, number(&facts, "failed")), (None, 1), "{facts}");
        assert!(facts["errors"].to_string().contains("dir: a directory with content"), "{facts}");
        assert_eq!(
            (content(&fs, "twice"), content(&fs, "link")),
            (b"2nd".to_vec(), b"first".to_vec())
        );
    }
    let (facts, _) = unpacked(&tar, &inside, CopyPurpose::Verify);
    assert_eq!(number(&facts, "failed"), 1, "`dir` alone: {facts}");
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: a file of equal size and time is replaced only if contents are compared.
#[test]
fn content_is_compared_where_that_is_asked() {
    let place = TestTreeDirectory::new("content");
    let from = place.path("from");
    fs::create_dir_all(&from).expect("it is new");
    fs::write(from.join("f"), b"AAAA").expect("there is room");
    let pool = pool(32 << 20);
    let fs = pool.file_system();
    let (source, inside) = (host(&from), tree_of(&fs, "/"));
    copied(&source, &inside, CopyPurpose::Copy);
    let root = Caller::root();
    let f = find(&fs, "f");
    fs.write(&root, f.ino, 0, b"B").expect("there is room");
    let change = SetAttr { mtime: Some(engine::api::SetTime::To(f.mtime)), ..SetAttr::default() };
    fs.setattr(&root, f.ino, &change, None).expect("it is there");
    copied(&source, &inside, CopyPurpose::Copy);
    assert_eq!(content(&fs, "f"), b"BAAA");
    let totals = TreeCopyTotals::default();
    let rules = TreeCopyRules { compares_content: true, ..TreeCopyRules::default() };
    let task = TreeCopyTask { purpose: CopyPurpose::Copy, rules };
    copy::run((&source, &inside), task, THREADS, &totals, &mut |_| true);
    assert_eq!((content(&fs, "f"), number(&totals.facts(), "replaced")), (b"AAAA".to_vec(), 1));
    drop(inside);
    pool.close().expect("memory does not fail");
}

/// Goal: a writer on a pipe can write all of its padding. Other data after the end is reported.
#[test]
fn what_is_behind_the_end_is_read() {
    let pool = pool(32 << 20);
    let fs = pool.file_system();
    let inside = tree_of(&fs, "/");
    let mut tar = file_of("f", b"1", &[]);
    tar.resize(tar.len() + (1 << 20), 0);
    let mut reader = &tar[..];
    let totals = TreeCopyTotals::default();
    unpack::run((&mut reader, &inside), CopyPurpose::Copy, THREADS, &totals);
    assert_eq!((reader.len(), number(&totals.facts(), "left_out")), (0, 0));
    tar.extend(file_of("g", b"1", &[]));
    let (facts, word) = unpacked(&tar, &inside, CopyPurpose::Copy);
    assert_eq!((word, number(&facts, "left_out")), (None, 1), "{facts}");
    drop(inside);
    pool.close().expect("memory does not fail");
}
