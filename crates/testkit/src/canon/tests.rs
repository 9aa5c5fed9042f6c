use std::sync::Arc;

use engine::api::{
    Caller, FileKind, FileSystem, Ino, NewInode, RenameMode, SetAttr, SetTime, Timestamp,
};

use super::{CanonAttr, Difference, Path, Side, Times, compare_trees, walk};
use crate::model::Model;
use runtime::clock::ManualClock;

fn sample() -> Model {
    let model = Model::new(Arc::new(ManualClock::new()));
    let directory = make(&model, model.root(), b"d", FileKind::Directory);
    let file = make(&model, directory, b"f", FileKind::Regular);
    model.write(&Caller::root(), file, 10_000, b"here").expect("a file takes bytes");
    model.link(&Caller::root(), file, model.root(), b"g", None).expect("a second name");
    model
        .symlink(&Caller::root(), directory, b"s", b"../g", NewInode::SYMLINK, None)
        .expect("a symbolic link");
    model
}

fn make(model: &Model, parent: Ino, name: &[u8], kind: FileKind) -> Ino {
    let new = NewInode::new(kind, 0o644);
    model.create(&Caller::root(), parent, name, new, None).expect("a new name").ino
}

/// Goal: nothing that is compared can change unseen. Method: change one thing in a copy.
fn changed(change: impl FnOnce(&Model, Ino, Ino)) -> Vec<Difference> {
    let model = sample();
    let copy = model.fork();
    let root = Caller::root();
    let directory = copy.lookup(&root, copy.root(), b"d").expect("it is there").ino;
    let file = copy.lookup(&root, copy.root(), b"g").expect("it is there").ino;
    change(&copy, directory, file);
    compare_trees(&model, &copy, Times::Changes)
}

#[test]
fn a_copy_is_alike_and_its_tree_has_every_name() {
    assert_eq!(changed(|_, _, _| ()), []);
    let model = sample();
    let tree = walk(&model, Times::All).expect("the model is sound");
    let names: Vec<String> = tree.names.keys().map(Path::to_string).collect();
    assert_eq!(names, ["/", "/d", "/d/f", "/d/s", "/g"]);
    assert_eq!(tree.names[&Path(b"d/f".to_vec())], tree.names[&Path(b"g".to_vec())]);
}

#[test]
fn one_byte_of_content_is_a_difference() {
    let found = changed(|fs, _, file| {
        fs.write(&Caller::root(), file, 10_003, b"E").expect("a file takes bytes");
    });
    assert_eq!(found, [Difference::Page { path: Path(b"d/f".to_vec()), page: 2 }]);
}

#[test]
fn a_missing_name_and_a_moved_link_are_differences() {
    let path = Path(b"g".to_vec());
    let found = changed(|fs, _, _| {
        fs.unlink(&Caller::root(), fs.root(), b"g", None).expect("the name is there");
    });
    assert!(found.contains(&Difference::OnlyIn { side: Side::Left, path }), "{found:?}");
    let found = changed(|fs, directory, _| {
        let (first, second) = ((fs.root(), &b"g"[..]), (directory, &b"s"[..]));
        fs.rename(&Caller::root(), first, second, RenameMode::Exchange, None)
            .expect("both are there");
    });
    assert!(!found.is_empty());
}

#[test]
fn names_of_two_inodes_are_not_names_of_one() {
    let build = |is_linked: bool| {
        let model = Model::new(Arc::new(ManualClock::new()));
        for first in [b"a", b"b"] {
            let file = make(&model, model.root(), first, FileKind::Regular);
            let second = if is_linked { [first[0], b'2'] } else { [first[0] ^ 3, b'2'] };
            model.link(&Caller::root(), file, model.root(), &second, None).expect("a second name");
        }
        model
    };
    for (left, right) in [(true, false), (false, true)] {
        let found = compare_trees(&build(left), &build(right), Times::All);
        assert_eq!(found.first(), Some(&Difference::Links { path: Path(b"a2".to_vec()) }));
    }
}

#[test]
fn times_are_compared_as_asked() {
    // After every change, so that the walk, which reads, leaves atime alone.
    let late = Timestamp { seconds: 2_000_000_000, nanoseconds: 0 };
    let model = sample();
    let copy = model.fork();
    let set = |change: SetAttr| {
        copy.setattr(&Caller::root(), copy.root(), &change, None).expect("the superuser may");
    };
    set(SetAttr { atime: Some(SetTime::To(late)), ..SetAttr::default() });
    assert_eq!(compare_trees(&model, &copy, Times::Changes), []);
    assert_ne!(compare_trees(&model, &copy, Times::All), []);
    set(SetAttr { mtime: Some(SetTime::To(late)), ..SetAttr::default() });
    assert_eq!(compare_trees(&model, &copy, Times::Ignored), []);
    assert_ne!(compare_trees(&model, &copy, Times::Changes), []);
}

#[test]
fn far_content_of_a_huge_file_is_read() {
    for at in [0, 1_u64 << 33, (1 << 45) - 4096, (1 << 62) + 100, i64::MAX.unsigned_abs() - 9] {
        let model = sample();
        let file = model.lookup(&Caller::root(), model.root(), b"g").expect("there").ino;
        let change = SetAttr { size_bytes: Some(i64::MAX.unsigned_abs()), ..SetAttr::default() };
        model.setattr(&Caller::root(), file, &change, None).expect("the largest file");
        let copy = model.fork();
        copy.write(&Caller::root(), file, at, b"far").expect("below the limit");
        let found = compare_trees(&model, &copy, Times::Ignored);
        assert_eq!(found, [Difference::Page { path: Path(b"d/f".to_vec()), page: at / 4096 }]);
    }
}

#[test]
fn sizes_of_directories_do_not_count() {
    let model = sample();
    let mut attr = model.getattr(&Caller::root(), model.root()).expect("the root is there");
    let first = CanonAttr::of(&attr, Times::All);
    attr.size_bytes += 4096;
    attr.blocks_512 += 8;
    attr.ino = Ino(99);
    assert_eq!(CanonAttr::of(&attr, Times::All), first);
}
