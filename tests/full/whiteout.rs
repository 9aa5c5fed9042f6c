//! A whiteout takes the room of a new file.

use engine::vnode::api::{Caller, FileKind, FileSystem, FsError, RenameMode};

use super::ahead::fill;
use super::{Ground, Shape};

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
