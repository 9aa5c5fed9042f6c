//! A full pool whose snapshots hold most of it.

use engine::Pool;
use engine::api::{Caller, FileKind, FileSystem, FsError, Ino, NewInode, SetAttr};
use format::fileset::NamePart;
use runtime::prng::Prng;

use super::{assert_clean, free_all, name, new_pool, open, used_bytes};

/// Files of the fileset that is written to.
const FILES: usize = 40;
const FILE_BYTES: u64 = 900 << 10;
/// Writes after which a pool that is not full is left so.
const WRITES_MAX: usize = 1_500;

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

fn file(pool: &Pool, number: usize) -> Result<Ino, FsError> {
    let (caller, text) = (Caller::root(), format!("f{number}"));
    let found = pool.lookup(&caller, pool.root(), text.as_bytes());
    let new = NewInode::new(FileKind::Regular, 0o644);
    let attr = match found {
        Err(FsError::NotFound) => pool.create(&caller, pool.root(), text.as_bytes(), new, None)?,
        found => found?,
    };
    pool.forget(attr.ino, 1);
    Ok(attr.ino)
}

/// Writes over files until there is no space, or often; returns how often that went well.
fn fill(pool: &Pool, prng: &mut Prng) -> usize {
    let data = vec![prng.next_u64().to_le_bytes()[0]; 64 << 10];
    for count in 0..WRITES_MAX {
        let number = usize::try_from(prng.below(40)).expect("few") % FILES;
        let written = file(pool, number).and_then(|ino| {
            pool.write(&Caller::root(), ino, prng.below(FILE_BYTES), &data)?;
            if prng.one_in(20) { pool.fsync(&Caller::root(), ino, false) } else { Ok(()) }
        });
        match written {
            Ok(()) => {}
            Err(FsError::NoSpace) => return count,
            Err(error) => panic!("{error}"),
        }
    }
    WRITES_MAX
}

/// Removes and truncates files; returns how often there was no space for that.
fn remove_some(pool: &Pool, prng: &mut Prng) -> usize {
    let mut refused = 0;
    for _ in 0..20 {
        let number = usize::try_from(prng.below(40)).expect("few") % FILES;
        let text = format!("f{number}");
        let caller = Caller::root();
        let Ok(found) = pool.lookup(&caller, pool.root(), text.as_bytes()) else { continue };
        pool.forget(found.ino, 1);
        let done = if prng.one_in(2) {
            pool.unlink(&caller, pool.root(), text.as_bytes(), None)
        } else {
            let size_bytes = Some(prng.below(FILE_BYTES / 2));
            let set = SetAttr { size_bytes, ..SetAttr::default() };
            pool.setattr(&caller, found.ino, &set, None).map(drop)
        };
        match done {
            Ok(()) => {}
            Err(FsError::NoSpace) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    refused
}

/// Goal: in a pool that is full with snapshots, deleting snapshots always goes well and gives space
/// back, removing and truncating files goes well but for the last part of the reserve, and nothing
/// leaks. Method: fill, take snapshots, remove and truncate by chance; then delete snapshots in any
/// order.
#[test]
fn deleting_snapshots_frees_a_full_pool() {
    for seed in 0..4 {
        let device = new_pool();
        let pool = open(&device, None);
        pool.tick().expect("nothing fails");
        let mut prng = Prng::from_seed(seed);
        let mut snapshots: Vec<String> = Vec::new();
        for round in 0..10 {
            let written = fill(&pool, &mut prng);
            let text = format!("c{round}");
            match pool.fileset_admin().create_snapshot(&name("root"), &part(&text), [round; 16]) {
                Ok(_) => snapshots.push(text),
                Err(FsError::NoSpace) => {}
                Err(error) => panic!("seed {seed}, round {round}: {error}"),
            }
            let refused = remove_some(&pool, &mut prng);
            assert!(refused < 20, "seed {seed}, round {round}: nothing can be removed");
            if round > 2 && !snapshots.is_empty() && (written == 0 || prng.one_in(2)) {
                let chosen = usize::try_from(prng.below(100)).expect("few") % snapshots.len();
                let deleted = pool
                    .fileset_admin()
                    .delete_snapshot(&name("root"), &part(&snapshots.remove(chosen)));
                deleted.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
                free_all(&pool);
                pool.checkpoint().expect("nothing fails");
            }
        }
        let full = used_bytes(&pool);
        for snapshot in snapshots {
            pool.fileset_admin()
                .delete_snapshot(&name("root"), &part(&snapshot))
                .unwrap_or_else(|error| panic!("seed {seed}: {snapshot}: {error}"));
            free_all(&pool);
        }
        let left = used_bytes(&pool);
        assert!(left < full, "seed {seed}: {left} of {full} bytes are used");
        for number in 0..FILES {
            let text = format!("f{number}");
            match pool.unlink(&Caller::root(), pool.root(), text.as_bytes(), None) {
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) => panic!("seed {seed}: {text}: {error}"),
            }
        }
        assert!(used_bytes(&pool) < full / 4, "seed {seed}: all files and snapshots are gone");
        assert!(fill(&pool, &mut prng) > 100, "seed {seed}: there is room again");
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);
    }
}
