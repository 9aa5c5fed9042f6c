//! The directory `.clones` at the root of a fileset.

use engine::Pool;
use engine::vnode::api::{
    Attr, Caller, DirEntry, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode,
};
use format::fileset::NamePart;

use super::{assert_clean, name, new_pool, open};

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

fn find(pool: &Pool, path: &[&str]) -> Result<Attr, FsError> {
    let mut at = pool.getattr(&Caller::root(), pool.root())?;
    for name in path {
        at = pool.lookup(&Caller::root(), at.ino, name.as_bytes())?;
        pool.forget(at.ino, 1);
    }
    Ok(at)
}

fn write(pool: &Pool, text: &str, byte: u8) -> Ino {
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = match find(pool, &[text]) {
        Ok(attr) => attr,
        Err(_) => {
            let made = pool.create(&Caller::root(), pool.root(), text.as_bytes(), new, None);
            made.expect("there is room")
        }
    };
    pool.write(&Caller::root(), made.ino, 0, &[byte; 9_000]).expect("there is room");
    made.ino
}

fn listed(pool: &Pool, ino: Ino, from: u64) -> Vec<DirEntry> {
    let mut all = Vec::new();
    let each = &mut |entry: &DirEntry| {
        all.push(entry.clone());
        true
    };
    pool.readdir(&Caller::root(), ino, from, each).expect("it can be read");
    all
}

fn names(entries: &[DirEntry]) -> Vec<String> {
    entries.iter().map(|it| String::from_utf8_lossy(&it.name).into_owned()).collect()
}

fn first_byte(pool: &Pool, ino: Ino) -> u8 {
    let mut bytes = Vec::new();
    pool.read(&Caller::root(), ino, 0, 10, &mut bytes).expect("it can be read");
    bytes[0]
}

/// Goal: `.clones` leads into the clones of the fileset that is mounted, is not listed, and is as
/// it is: nobody makes, removes or changes anything there.
#[test]
fn clones_are_reached_through_a_name_that_is_not_listed() {
    let device = new_pool();
    let pool = open(&device, None);
    let caller = Caller::root();
    let file = write(&pool, "f", 1);
    pool.create_clone(&name("root"), &part("one"), [1; 16]).expect("there is room");
    write(&pool, "f", 2);
    assert_eq!(names(&listed(&pool, pool.root(), 0)), [".", "..", "f"]);
    let dir = find(&pool, &[".clones"]).expect("it is there");
    assert_eq!((dir.kind, dir.mode), (FileKind::Directory, 0o555));
    assert_eq!(pool.getattr(&caller, dir.ino), Ok(dir.clone()));
    let missing = find(&pool, &[".clones", "two"]).map(drop);
    assert_eq!(missing, Err(FsError::NotFound));
    pool.create_clone(&name("root"), &part("two"), [2; 16]).expect("there is room");
    write(&pool, "f", 3);
    let entries = listed(&pool, dir.ino, 0);
    assert_eq!(names(&entries), [".", "..", "one", "two"]);
    assert_eq!(names(&listed(&pool, dir.ino, entries[2].cookie)), ["two"]);
    for (path, byte) in
        [(&["f"][..], 3), (&[".clones", "one", "f"], 1), (&[".clones", "two", "f"], 2)]
    {
        let found = find(&pool, path).expect("it is there");
        assert_eq!(first_byte(&pool, found.ino), byte, "{path:?}");
        assert_eq!(found.ino.slot() == file.slot(), path.len() == 1, "{path:?}");
    }
    let one = find(&pool, &[".clones", "one"]).expect("it is there");
    assert_eq!(entries[2].ino, one.ino);
    assert_eq!(find(&pool, &[".clones", ".."]).map(|it| it.ino), Ok(pool.root()));
    let inside = find(&pool, &[".clones", "one", ".clones"]).map(drop);
    assert_eq!(inside, Err(FsError::NotFound), "a clone has no clones");
    refuses_changes(&pool, &dir, &one);
    let deleted = pool.delete_clone(&name("root"), &part("one"));
    assert!(matches!(deleted, Err(FsError::FilesetInUse { .. })), "{deleted:?}: it is in use");
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
    resolves_handles(&device, &one);
}

fn refuses_changes(pool: &Pool, dir: &Attr, one: &Attr) {
    let caller = Caller::root();
    let new = || NewInode::new(FileKind::Regular, 0o644);
    let root = pool.root();
    let made = pool.create(&caller, root, b".clones", new(), None).map(drop);
    assert_eq!(made, Err(FsError::Exists));
    let renamed = pool.rename(&caller, (root, b"f"), (root, b".clones"), RenameMode::Replace, None);
    assert_eq!(renamed, Err(FsError::Exists));
    assert_eq!(pool.rmdir(&caller, root, b".clones", None), Err(FsError::NotPermitted));
    let moved = pool.rename(&caller, (root, b".clones"), (root, b"x"), RenameMode::Replace, None);
    assert_eq!(moved, Err(FsError::NotPermitted));
    for ino in [dir.ino, one.ino] {
        let made = pool.create(&caller, ino, b"new", new(), None).map(drop);
        assert_eq!(made, Err(FsError::ReadOnlyClone));
        assert_eq!(pool.unlink(&caller, ino, b"f", None), Err(FsError::ReadOnlyClone));
    }
    let found = find(pool, &[".clones", "one", "f"]).expect("it is there");
    let written = pool.write(&caller, found.ino, 0, b"x");
    assert_eq!(written, Err(FsError::ReadOnlyClone));
}

/// Handles of what lies in a clone outlive a restart, and lead nowhere once the clone is gone.
fn resolves_handles(device: &storage::device::SharedDevice, one: &Attr) {
    let pool = open(device, None);
    let caller = Caller::root();
    let handle = one.handle(pool.main_fileset());
    assert_eq!(pool.resolve(&caller, handle).map(|it| it.ino), Ok(one.ino));
    let dir = find(&pool, &[".clones"]).expect("it is there");
    let handle_of_dir = dir.handle(pool.main_fileset());
    assert_eq!(pool.resolve(&caller, handle_of_dir).map(|it| it.ino), Ok(dir.ino));
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(device, None);
    pool.delete_clone(&name("root"), &part("one")).expect("nobody has it");
    assert_eq!(pool.resolve(&caller, handle).map(drop), Err(FsError::Stale));
    let other = pool.create_fileset(&name("other"), &super::new_fileset(9)).expect("room");
    let foreign = one.handle(other.uuid);
    assert_eq!(pool.resolve(&caller, foreign).map(drop), Err(FsError::Stale));
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(device);
}
