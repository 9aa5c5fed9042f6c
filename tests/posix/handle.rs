use engine::api::{Caller, FileHandle, FileSystem, FilesetUuid, FsError};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use std::sync::Arc;
use storage::device::{MemoryDevice, SharedDevice};
use whole_system::{Ground, behaviours};

static ROOT: Caller = Caller::root();

fn handle_of(at: &Ground<'_>, place: &str) -> FileHandle {
    at.attr(place).handle(at.fs().main_fileset())
}

behaviours! {
    fn a_handle_names_its_file_wherever_the_name_goes(at) {
        at.does("create /d directory 755\ncreate /d/f file 644\nlink /d/f /g");
        at.write("/g", 0, b"here");
        let handle = handle_of(at, "/d/f");
        at.does("rename /d/f /h replace\nunlink /g");
        let found = at.fs().resolve(&ROOT, handle).expect("it is there");
        assert_eq!(found, at.attr("/h"));
        at.fs().forget(found.ino, 1);
        let directory = at.fs().resolve(&ROOT, handle_of(at, "/d")).expect("it is there");
        at.fs().forget(directory.ino, 1);
    }

    fn a_handle_takes_a_reference(at) {
        at.does("create /f file 644");
        at.write("/f", 0, b"here");
        let handle = handle_of(at, "/f");
        let held = at.fs().resolve(&ROOT, handle).expect("it is there");
        at.does("unlink /f");
        let mut bytes = Vec::new();
        assert_eq!(at.fs().read(&ROOT, held.ino, 0, 9, &mut bytes), Ok(4));
        // Somebody holds it, so it is there for others too.
        let again = at.fs().resolve(&ROOT, handle).expect("somebody holds it");
        at.fs().forget(again.ino, 1);
        at.fs().forget(held.ino, 1);
        assert_eq!(at.fs().resolve(&ROOT, handle), Err(FsError::Stale));
    }

    /// Method: files come and go until a number is used again, where that happens.
    fn a_handle_of_a_file_that_is_gone_is_stale_whoever_has_its_number(at) {
        at.does("create /f file 644");
        let handle = handle_of(at, "/f");
        at.does("unlink /f\nsync");
        for nth in 0..200 {
            assert_eq!(at.fs().resolve(&ROOT, handle), Err(FsError::Stale));
            at.does(&format!("create /{nth} file 644"));
        }
        assert_eq!(at.fs().resolve(&ROOT, handle), Err(FsError::Stale));
    }

    fn a_handle_of_another_age_or_fileset_is_stale(at) {
        at.does("create /f file 644");
        let handle = handle_of(at, "/f");
        let older = FileHandle { generation: handle.generation + 1, ..handle };
        let elsewhere = FileHandle { fileset: FilesetUuid(handle.fileset.0 ^ 1), ..handle };
        for handle in [older, elsewhere] {
            assert_eq!(at.fs().resolve(&ROOT, handle), Err(FsError::Stale));
        }
        let fs = at.fs();
        assert_eq!(fs.root_of(handle.fileset), Ok(fs.root()));
        assert_eq!(fs.root_of(elsewhere.fileset), Err(FsError::Stale));
        assert!(fs.statfs(&ROOT, elsewhere.fileset).is_err());
    }
}

/// Goal: what a client kept over a restart leads to the same file or is told to be stale, and it
/// learns that what it did not sync may be lost. Method: a pool is opened twice.
#[test]
fn handles_outlive_a_restart_and_the_verifier_does_not() {
    const POOL_BYTES: u64 = 16 << 20;
    let clock = Arc::new(ManualClock::new());
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let mut verifiers = std::collections::BTreeSet::new();
    let mut handles: Option<[FileHandle; 2]> = None;
    for _ in 0..3 {
        let pool = Pool::open(Arc::clone(&device), clock.clone(), PoolOpenOptions::default());
        let pool = pool.expect("it opens");
        assert!(verifiers.insert(pool.verifier()), "one of its own");
        assert_eq!(pool.verifier(), pool.verifier());
        let made = ["stays", "goes"].map(|name| {
            let mut ground = Ground::new(&pool, &|| ());
            if handles.is_none() {
                ground.does(&format!("create /{name} file 644"));
            }
            ground.probe(&format!("/{name}")).map(|attr| attr.handle(pool.main_fileset()))
        });
        if let Some([stays, goes]) = handles {
            assert_eq!(made, [Some(stays), None]);
            assert!(pool.resolve(&ROOT, stays).is_ok());
            assert_eq!(pool.resolve(&ROOT, goes), Err(FsError::Stale));
        } else {
            handles = Some(made.map(|handle| handle.expect("just made")));
            Ground::new(&pool, &|| ()).does("unlink /goes");
        }
        pool.close().expect("it closes");
    }
}
