//! Filesets that fronts hold and give back.

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode};

use super::{assert_clean, free_all, name, new_fileset, new_pool, open, used_bytes};

/// Goal: what is held is not deleted, and is served until the last who holds it has given it back;
/// then nothing is left of its files without a name, and it can be deleted. Method: a front ends
/// without giving back its references, as a kernel does that unmounts.
#[test]
fn a_fileset_that_is_given_back_keeps_nothing_and_can_be_deleted() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
    let empty = used_bytes(&pool);
    let uuid = pool.fileset_admin().hold_fileset(&name("a")).expect("it is there");
    assert_eq!(pool.fileset_admin().hold_fileset(&name("a")), Ok(uuid));
    let (root, caller) = (pool.root_of(uuid).expect("it is held"), Caller::root());
    for number in 0..4_u8 {
        let name = [b'a' + number];
        let new = NewInode::new(FileKind::Regular, 0o644);
        let ino = pool.create(&caller, root, &name, new, None).expect("there is room").ino;
        pool.write(&caller, ino, 0, &vec![number; 300_000]).expect("there is room");
        pool.unlink(&caller, root, &name, None).expect("it is there");
    }
    pool.sync().expect("nothing fails");
    assert!(used_bytes(&pool) > empty + 1_000_000, "they are open");
    pool.fileset_admin().release_fileset(uuid);
    assert_eq!(pool.root_of(uuid), Ok(root), "one still holds it");
    let refused = pool.fileset_admin().delete_fileset(&name("a")).expect_err("it is held");
    assert!(matches!(refused, FsError::FilesetInUse { .. }), "{refused}");
    pool.fileset_admin().release_fileset(uuid);
    assert_eq!(pool.root_of(uuid), Err(FsError::Stale));
    assert_eq!(pool.getattr(&caller, root), Err(FsError::Stale));
    // Once too often is nothing.
    pool.fileset_admin().release_fileset(uuid);
    for _ in 0..20 {
        pool.tick().expect("nothing fails");
    }
    assert!(used_bytes(&pool) < empty + 200_000, "what nobody has open is freed");
    assert_eq!(pool.fileset_admin().hold_fileset(&name("a")), Ok(uuid));
    assert!(pool.getattr(&caller, root).is_ok());
    pool.fileset_admin().release_fileset(uuid);
    pool.fileset_admin().delete_fileset(&name("a")).expect("nobody holds it");
    free_all(&pool);
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: the fileset that a pool was opened with is held like the others: what nobody has given
/// back of references on it goes with the last hold, and not before; whoever opened the pool has
/// one, so others come and go beside him.
#[test]
fn the_main_fileset_keeps_nothing_for_fronts_that_have_ended() {
    let device = new_pool();
    let pool = open(&device, None);
    let (main, caller) = (pool.main_fileset(), Caller::root());
    let empty = used_bytes(&pool);
    let new = NewInode::new(FileKind::Regular, 0o644);
    let ino = pool.create(&caller, pool.root(), b"f", new, None).expect("there is room").ino;
    pool.write(&caller, ino, 0, &vec![7; 3_000_000]).expect("there is room");
    pool.unlink(&caller, pool.root(), b"f", None).expect("it is there");
    let is_there = || {
        for _ in 0..20 {
            pool.tick().expect("nothing fails");
        }
        used_bytes(&pool) > empty + 2_000_000
    };
    let hold = || assert_eq!(pool.fileset_admin().hold_main_fileset(), main);
    hold();
    pool.fileset_admin().release_fileset(main);
    assert!(is_there(), "whoever opened the pool has it open");
    hold();
    // Whoever opened it leaves it to those who hold it.
    pool.fileset_admin().release_fileset(main);
    assert_eq!(pool.fileset_admin().hold_fileset(&name("root")), Ok(main));
    pool.fileset_admin().release_fileset(main);
    assert!(is_there(), "one still holds it");
    pool.sync().expect("nothing fails");
    pool.fileset_admin().release_fileset(main);
    assert!(!is_there(), "nobody has it open");
    // Its files are there all the same, for whoever comes next.
    hold();
    assert!(pool.getattr(&caller, pool.root()).is_ok());
    pool.close().expect("nothing fails");
    assert_clean(&device);
}
