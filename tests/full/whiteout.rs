//! A whiteout takes the room of a new file.

use engine::api::{Caller, FileKind, FileSystem, FsError, RenameMode};

use super::ahead::fill;
use super::{Ground, Shape};

/// Goal: who is refused again and again, while nothing else happens, costs no device request.
/// Method: a pool full of data and names, and operations that are all refused.
#[test]
fn refusals_of_a_full_pool_cost_nothing() {
    let ground = Ground::new(&Shape::new(16, 4096, 128, 14));
    let (pool, root) = (&ground.pool, ground.pool.root());
    ground.make(root, "f", FileKind::Regular).expect("there is room in an empty pool");
    fill(&ground, "data", 5000);
    fill(&ground, "name", 0);
    let refused = || {
        assert_eq!(ground.make(root, "new", FileKind::Regular), Err(FsError::NoSpace));
        let to = (root, &b"g"[..]);
        let renamed =
            pool.rename(&Caller::root(), (root, b"f"), to, RenameMode::WhiteoutNoReplace, None);
        assert_eq!(renamed, Err(FsError::NoSpace));
    };
    // The first may still find something.
    (0..4).for_each(|_| refused());
    let before = pool.status().journal.checkpoints;
    (0..100).for_each(|_| refused());
    assert_eq!(pool.status().journal.checkpoints, before);
    // What is given back is found.
    pool.unlink(&Caller::root(), root, b"data0", None).expect("a full pool frees");
    ground.make(root, "new", FileKind::Regular).expect("there is room again");
    assert_eq!(ground.defects(), None);
}

/// Goal: where no file can be made no name moves for a whiteout, and what was there stays; without
/// one it moves. Method: a pool full of data, then of names.
#[test]
fn a_full_pool_moves_no_name_for_a_whiteout() {
    let ground = Ground::new(&Shape::new(16, 4096, 128, 14));
    let (pool, root) = (&ground.pool, ground.pool.root());
    let [moved, _] = ["f", "h"].map(|name| {
        ground.make(root, name, FileKind::Regular).expect("there is room in an empty pool")
    });
    fill(&ground, "data", 5000);
    fill(&ground, "name", 0);
    assert_eq!(ground.make(root, "new", FileKind::Regular), Err(FsError::NoSpace));
    let inodes =
        || pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is in memory").inode_count;
    let before = inodes();
    let rename =
        |to: &[u8], mode| pool.rename(&Caller::root(), (root, b"f"), (root, to), mode, None);
    assert_eq!(rename(b"g", RenameMode::WhiteoutNoReplace), Err(FsError::NoSpace));
    assert_eq!(rename(b"h", RenameMode::Whiteout), Err(FsError::NoSpace));
    let ino_of = |name: &[u8]| {
        let found = pool.lookup(&Caller::root(), root, name)?;
        pool.forget(found.ino, 1);
        Ok(found.ino)
    };
    assert_eq!((ino_of(b"f"), ino_of(b"g")), (Ok(moved), Err(FsError::NotFound)));
    assert_eq!(inodes(), before);
    rename(b"g", RenameMode::Replace).expect("in a full pool a name can be moved");
    assert_eq!(ino_of(b"g"), Ok(moved));
    assert_eq!(ground.defects(), None);
}
