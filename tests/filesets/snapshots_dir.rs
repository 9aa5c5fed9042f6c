//! The directory `.snapshots` at the root of a fileset.

use std::sync::Arc;

use engine::api::{
    Attr, Caller, DirEntry, FileHandle, FileKind, FileSystem, FsError, FsResult, Ino, NewInode,
    RenameMode,
};
use engine::{Pool, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::SimClock;
use runtime::sync::Mutex;
use runtime::sync::sim::Scheduler;

use super::{assert_clean, free_all, name, new_pool, open};

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

/// Goal: `.snapshots` leads into the snapshots of the fileset that is mounted, is not listed, and
/// is as it is: nobody makes, removes or changes anything there.
#[test]
fn snapshots_are_reached_through_a_name_that_is_not_listed() {
    let device = new_pool();
    let pool = open(&device, None);
    let caller = Caller::root();
    let file = write(&pool, "f", 1);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("one"), [1; 16])
        .expect("there is room");
    write(&pool, "f", 2);
    assert_eq!(names(&listed(&pool, pool.root(), 0)), [".", "..", "f"]);
    let dir = find(&pool, &[".snapshots"]).expect("it is there");
    assert_eq!((dir.kind, dir.mode), (FileKind::Directory, 0o555));
    assert_eq!(pool.getattr(&caller, dir.ino), Ok(dir.clone()));
    let missing = find(&pool, &[".snapshots", "two"]).map(drop);
    assert_eq!(missing, Err(FsError::NotFound));
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("two"), [2; 16])
        .expect("there is room");
    write(&pool, "f", 3);
    let entries = listed(&pool, dir.ino, 0);
    assert_eq!(names(&entries), [".", "..", "one", "two"]);
    assert_eq!(names(&listed(&pool, dir.ino, entries[2].cookie)), ["two"]);
    for (path, byte) in
        [(&["f"][..], 3), (&[".snapshots", "one", "f"], 1), (&[".snapshots", "two", "f"], 2)]
    {
        let found = find(&pool, path).expect("it is there");
        assert_eq!(first_byte(&pool, found.ino), byte, "{path:?}");
        assert_eq!(found.ino.slot() == file.slot(), path.len() == 1, "{path:?}");
    }
    let one = find(&pool, &[".snapshots", "one"]).expect("it is there");
    assert_eq!(entries[2].ino, one.ino);
    assert_eq!(find(&pool, &[".snapshots", ".."]).map(|it| it.ino), Ok(pool.root()));
    let inside = find(&pool, &[".snapshots", "one", ".snapshots"]).map(drop);
    assert_eq!(inside, Err(FsError::NotFound), "a snapshot has no snapshots");
    refuses_changes(&pool, &dir, &one);
    let handle = pool.handle_of(&one, pool.main_fileset());
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
    resolves_handles(&device, handle);
}

/// Goal: what a snapshot has is copied out of it inside the server, and only for who may read it.
#[test]
fn a_file_is_copied_out_of_a_snapshot() {
    let pool = open(&new_pool(), None);
    let caller = Caller::root();
    let file = write(&pool, "f", 1);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("one"), [1; 16])
        .expect("there is room");
    write(&pool, "f", 2);
    let kept = find(&pool, &[".snapshots", "one", "f"]).expect("it is there");
    let target = write(&pool, "back", 3);
    assert_eq!(pool.copy_range(&caller, (kept.ino, 1000), (target, 0), 1 << 20), Ok(8000));
    assert_eq!(first_byte(&pool, target), 1);
    assert_eq!(first_byte(&pool, file), 2);
    let others = Caller::checked(1000, 1000, Vec::new());
    let refused = pool.copy_range(&others, (kept.ino, 0), (target, 0), 10);
    assert_eq!(refused, Err(FsError::AccessDenied), "it may read the one and not write the other");
    let dir = find(&pool, &[".snapshots"]).expect("it is there");
    assert!(pool.copy_range(&caller, (dir.ino, 0), (target, 0), 10).is_err());
    // Nobody is left inside: it can be deleted.
    pool.fileset_admin().delete_snapshot(&name("root"), &part("one")).expect("nobody holds it");
    let gone = pool.copy_range(&caller, (kept.ino, 0), (target, 0), 10);
    assert_eq!(gone, Err(FsError::Stale));
}

/// Goal: the older name `.clones` is a link to `.snapshots`: it can be read, leads there by a
/// handle too, and cannot be made, removed or renamed.
#[test]
fn the_older_name_is_a_link_to_the_directory() {
    let device = new_pool();
    let pool = open(&device, None);
    let caller = Caller::root();
    let root = pool.root();
    write(&pool, "f", 1);
    let link = find(&pool, &[".clones"]).expect("it is there");
    assert_eq!((link.kind, link.size_bytes, link.nlink), (FileKind::Symlink, 10, 1));
    assert_eq!(pool.readlink(&caller, link.ino), Ok(b".snapshots".to_vec()));
    assert_eq!(pool.getattr(&caller, link.ino), Ok(link.clone()));
    assert_eq!(pool.name_in(root, link.ino), Ok(b".clones".to_vec()));
    let handle = pool.handle_of(&link, pool.main_fileset());
    assert_eq!(pool.resolve(&caller, handle), Ok(link.clone()));
    assert_eq!(names(&listed(&pool, root, 0)), [".", "..", "f"]);
    assert!(pool.lookup(&caller, link.ino, b"one").is_err(), "it is no directory");
    let new = NewInode::new(FileKind::Directory, 0o755);
    let made = pool.create(&caller, root, b".clones", new, None).map(drop);
    assert_eq!(made, Err(FsError::Exists));
    assert_eq!(pool.unlink(&caller, root, b".clones", None), Err(FsError::NotPermitted));
    let moved = pool.rename(&caller, (root, b".clones"), (root, b"x"), RenameMode::Replace, None);
    assert_eq!(moved, Err(FsError::NotPermitted));
    assert!(pool.write(&caller, link.ino, 0, b"x").is_err());
    // A snapshot has neither.
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("one"), [1; 16])
        .expect("there is room");
    let inside = find(&pool, &[".snapshots", "one", ".clones"]).map(drop);
    assert_eq!(inside, Err(FsError::NotFound));
    assert!(pool.close().is_ok());
    assert_clean(&device);
}

fn refuses_changes(pool: &Pool, dir: &Attr, one: &Attr) {
    let caller = Caller::root();
    let new = || NewInode::new(FileKind::Regular, 0o644);
    let root = pool.root();
    let made = pool.create(&caller, root, b".snapshots", new(), None).map(drop);
    assert_eq!(made, Err(FsError::Exists));
    let renamed =
        pool.rename(&caller, (root, b"f"), (root, b".snapshots"), RenameMode::Replace, None);
    assert_eq!(renamed, Err(FsError::Exists));
    assert_eq!(pool.rmdir(&caller, root, b".snapshots", None), Err(FsError::NotPermitted));
    let moved =
        pool.rename(&caller, (root, b".snapshots"), (root, b"x"), RenameMode::Replace, None);
    assert_eq!(moved, Err(FsError::NotPermitted));
    for ino in [dir.ino, one.ino] {
        let made = pool.create(&caller, ino, b"new", new(), None).map(drop);
        assert_eq!(made, Err(FsError::ReadOnlySnapshot));
        assert_eq!(pool.unlink(&caller, ino, b"f", None), Err(FsError::ReadOnlySnapshot));
    }
    let moved = pool.rename(&caller, (root, b"f"), (dir.ino, b"new"), RenameMode::Replace, None);
    assert_eq!(moved, Err(FsError::ReadOnlySnapshot));
    let moved = pool.rename(&caller, (root, b"f"), (one.ino, b"new"), RenameMode::Replace, None);
    assert_eq!(moved, Err(FsError::CrossFileset));
    let file = find(pool, &["f"]).expect("it is there");
    let linked = pool.link(&caller, file.ino, dir.ino, b"new", None).map(drop);
    assert_eq!(linked, Err(FsError::ReadOnlySnapshot));
    let linked = pool.link(&caller, file.ino, one.ino, b"new", None).map(drop);
    assert_eq!(linked, Err(FsError::CrossFileset));
    let found = find(pool, &[".snapshots", "one", "f"]).expect("it is there");
    let linked = pool.link(&caller, found.ino, root, b"new", None).map(drop);
    assert_eq!(linked, Err(FsError::CrossFileset));
    let copied = pool.copy_range(&caller, (file.ino, 0), (found.ino, 0), 10);
    assert_eq!(copied, Err(FsError::ReadOnlySnapshot));
    let written = pool.write(&caller, found.ino, 0, b"x");
    assert_eq!(written, Err(FsError::ReadOnlySnapshot));
}

/// Handles of what lies in a snapshot outlive a restart, and lead nowhere once the snapshot is
/// gone.
fn resolves_handles(device: &storage::device::SharedDevice, handle: FileHandle) {
    let pool = open(device, None);
    let caller = Caller::root();
    assert_eq!(pool.resolve(&caller, handle).map(|it| it.ino), Ok(handle.ino));
    let dir = find(&pool, &[".snapshots"]).expect("it is there");
    let handle_of_dir = dir.handle(pool.main_fileset());
    assert_eq!(pool.resolve(&caller, handle_of_dir).map(|it| it.ino), Ok(dir.ino));
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(device, None);
    pool.fileset_admin().delete_snapshot(&name("root"), &part("one")).expect("nobody has it");
    assert_eq!(pool.resolve(&caller, handle).map(drop), Err(FsError::Stale));
    let other =
        pool.fileset_admin().create_fileset(&name("other"), &super::new_fileset(9)).expect("room");
    let foreign = FileHandle { fileset: other.uuid, ..handle };
    assert_eq!(pool.resolve(&caller, foreign).map(drop), Err(FsError::Stale));
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(device);
}

/// Goal: whoever goes by the times of `.snapshots` learns that snapshots have come and gone, as
/// clients of NFS do, and that none has. Method: a clock that stands still.
#[test]
fn times_of_the_directory_tell_that_snapshots_have_come_and_gone() {
    let pool = open(&new_pool(), None);
    let times =
        || find(&pool, &[".snapshots"]).map(|attr| (attr.mtime, attr.ctime)).expect("it is");
    let none = times();
    assert_eq!(times(), none);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("mon"), [1; 16])
        .expect("there is room");
    let one = times();
    assert!(one.0 > none.0 && one.1 > none.1, "{none:?} {one:?}");
    write(&pool, "f", 1);
    assert_eq!(times(), one);
    pool.fileset_admin().delete_snapshot(&name("root"), &part("mon")).expect("nobody has it");
    let gone = times();
    assert!(gone.0 > one.0 && gone.1 > one.1, "{one:?} {gone:?}");
    pool.close().expect("nothing fails");
}

/// Goal: a handle of what lies in a snapshot that was deleted is stale for ever, also once another
/// snapshot of the fileset has its slot, which the file is in under the same number.
#[test]
fn a_handle_into_a_snapshot_that_is_gone_leads_into_no_other() {
    let (device, caller) = (new_pool(), Caller::root());
    let pool = open(&device, None);
    write(&pool, "f", 1);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("mon"), [1; 16])
        .expect("there is room");
    let monday = find(&pool, &[".snapshots", "mon", "f"]).expect("it is there");
    let handle = pool.handle_of(&monday, pool.main_fileset());
    assert_eq!(pool.resolve(&caller, handle).map(|it| it.ino), Ok(monday.ino));
    pool.fileset_admin().delete_snapshot(&name("root"), &part("mon")).expect("nobody has it");
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(&device, None);
    write(&pool, "f", 2);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("tue"), [2; 16])
        .expect("there is room");
    let tuesday = find(&pool, &[".snapshots", "tue", "f"]).expect("it is there");
    assert_eq!(
        (tuesday.ino, tuesday.generation),
        (monday.ino, monday.generation),
        "the test needs a slot that is used again"
    );
    assert_eq!(pool.resolve(&caller, handle).map(drop), Err(FsError::Stale));
    let handle = pool.handle_of(&tuesday, pool.main_fileset());
    assert_eq!(pool.resolve(&caller, handle).map(|it| it.ino), Ok(tuesday.ino));
    pool.close().expect("nothing fails");
}

/// Goal: a snapshot that was entered is deleted like any other. Who is in it is told that it is
/// stale, by every operation, names lead nowhere, and one of the same name is another. Method: a
/// snapshot is entered and its files are read, so that they are in memory; it is deleted, as the
/// newest and as an older one.
#[test]
fn a_snapshot_that_was_entered_is_deleted_and_stale_then() {
    for is_newest in [true, false] {
        let device = new_pool();
        let pool = open(&device, None);
        let caller = Caller::root();
        write(&pool, "f", 1);
        pool.fileset_admin()
            .create_snapshot(&name("root"), &part("one"), [1; 16])
            .expect("there is room");
        write(&pool, "f", 2);
        if !is_newest {
            pool.fileset_admin()
                .create_snapshot(&name("root"), &part("two"), [2; 16])
                .expect("there is room");
            write(&pool, "f", 3);
        }
        let root = find(&pool, &[".snapshots", "one"]).expect("it is there");
        // As the kernel does, this keeps its reference.
        let file = pool.lookup(&caller, root.ino, b"f").expect("it is there");
        assert_eq!(first_byte(&pool, file.ino), 1);
        let handle = pool.handle_of(&file, pool.main_fileset());
        assert_eq!(pool.resolve(&caller, handle).map(|it| it.ino), Ok(file.ino));
        pool.fileset_admin()
            .delete_snapshot(&name("root"), &part("one"))
            .expect("nobody has mounted it");
        free_all(&pool);
        let mut bytes = Vec::new();
        let stale = [
            pool.lookup(&caller, root.ino, b"f").map(drop),
            pool.getattr(&caller, file.ino).map(drop),
            pool.read(&caller, file.ino, 0, 10, &mut bytes).map(drop),
            pool.readdir(&caller, root.ino, 0, &mut |_| true),
            pool.access(&caller, file.ino).map(drop),
            pool.listxattr(&caller, file.ino).map(drop),
            pool.fsync(&caller, file.ino, false),
            pool.resolve(&caller, handle).map(drop),
            pool.path_of(file.ino).map(drop),
        ];
        assert_eq!(stale, std::array::from_fn(|_| Err(FsError::Stale)), "newest {is_newest}");
        assert_eq!(find(&pool, &[".snapshots", "one"]).map(drop), Err(FsError::NotFound));
        pool.forget(file.ino, 1);
        pool.fileset_admin()
            .create_snapshot(&name("root"), &part("one"), [3; 16])
            .expect("there is room");
        let again = find(&pool, &[".snapshots", "one", "f"]).expect("it is there");
        assert_ne!(again.ino.slot(), file.ino.slot(), "no number comes again");
        assert_eq!(first_byte(&pool, again.ino), if is_newest { 2 } else { 3 });
        assert_eq!(pool.getattr(&caller, file.ino).map(drop), Err(FsError::Stale));
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);
    }
}

/// Goal: a snapshot that a front serves is not deleted, and goes on to be served; one that it has
/// given back is.
#[test]
fn a_snapshot_that_is_served_stays_until_it_is_given_back() {
    let device = new_pool();
    let pool = open(&device, None);
    write(&pool, "f", 1);
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part("one"), [1; 16])
        .expect("there is room");
    let file = find(&pool, &[".snapshots", "one", "f"]).expect("it is there");
    let held =
        pool.fileset_admin().hold_snapshot(&name("root"), &part("one")).expect("it is there");
    let told = pool
        .fileset_admin()
        .delete_snapshot(&name("root"), &part("one"))
        .expect_err("it is held")
        .to_string();
    assert!(told.contains("root@one") && told.contains("mounted"), "{told}");
    assert_eq!(first_byte(&pool, file.ino), 1, "whoever entered it goes on");
    let root = pool.root_of(held).expect("it is held");
    assert_eq!(pool.lookup(&Caller::root(), root, b"f").map(|it| it.ino), Ok(file.ino));
    pool.fileset_admin().release_fileset(held);
    pool.fileset_admin().delete_snapshot(&name("root"), &part("one")).expect("it was given back");
    assert_eq!(pool.getattr(&Caller::root(), file.ino).map(drop), Err(FsError::Stale));
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Files of a snapshot that is read while it is deleted; their names fill several pages.
const FILES: usize = 120;
/// Moments of a rest: a deletion takes fewer.
const REST: usize = 20_000;

fn file_name(number: usize) -> String {
    format!("{number:03}-{}", "x".repeat(120))
}

/// Looks each file of a snapshot up and reads it, until that is stale; returns what else came of
/// it.
fn read_all(pool: &Pool, root: Ino) -> Result<bool, String> {
    let caller = Caller::root();
    for number in 0..FILES {
        let name = file_name(number);
        let read = || -> FsResult<Vec<u8>> {
            let found = pool.lookup(&caller, root, name.as_bytes())?;
            let mut bytes = Vec::new();
            pool.read(&caller, found.ino, 0, 9_000, &mut bytes)?;
            pool.forget(found.ino, 1);
            Ok(bytes)
        };
        match read() {
            Err(FsError::Stale) => return Ok(true),
            Err(error) => return Err(format!("{name}: {error}")),
            Ok(bytes) if bytes == [u8::try_from(number).expect("few"); 5_000] => {}
            Ok(_) => return Err(format!("{name} holds something else")),
        }
    }
    Ok(false)
}

/// Lists a snapshot, and lets others go on for long behind the first name; returns whether it is
/// stale.
fn list_slowly(
    pool: &Pool,
    root: Ino,
    others: &Mutex<Result<bool, String>>,
) -> Result<bool, String> {
    let mut count = 0;
    let listed = pool.readdir(&Caller::root(), root, 0, &mut |entry| {
        if count == 0 {
            // Each is a moment at which another thread may go on.
            (0..REST).for_each(|_| drop(others.lock()));
        }
        count += usize::from(!entry.name.starts_with(b"."));
        true
    });
    match listed {
        Err(FsError::Stale) => Ok(true),
        Err(error) => Err(format!("a listing: {error}")),
        Ok(()) if count == FILES => Ok(false),
        Ok(()) => Err(format!("{count} of {FILES} names are listed")),
    }
}

/// Goal: whoever reads in a snapshot that is deleted reads what it holds, or is told that it is
/// stale; never what is free (PO1). Method: one thread looks up and reads, with a cache of few
/// pages, and lists a directory with a long rest in the middle; another deletes the snapshot, frees
/// it and writes over the place, in the order of a seed.
#[test]
fn a_snapshot_is_deleted_while_it_is_read_and_nobody_reads_what_is_free() {
    let (mut stale, mut whole) = (0, 0);
    for seed in 0..30 {
        let device = new_pool();
        let shared = Arc::clone(&device);
        let scheduler = Scheduler::new(seed);
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        let opened = Mutex::new(None);
        let prepare = || {
            let options = PoolOpenOptions { cache_bytes: 0, ..PoolOpenOptions::default() };
            *opened.lock() = Pool::open(shared, clock, options).ok();
        };
        scheduler.run(vec![("open".to_owned(), Box::new(prepare))]);
        let pool = opened.into_inner().expect("the pool opens");
        let caller = Caller::root();
        for number in 0..FILES {
            let ino = write(&pool, &file_name(number), 0);
            let content = [u8::try_from(number).expect("few"); 5_000];
            let set = engine::api::SetAttr { size_bytes: Some(0), ..Default::default() };
            pool.setattr(&caller, ino, &set, None).expect("there is room");
            pool.write(&caller, ino, 0, &content).expect("there is room");
        }
        pool.fileset_admin()
            .create_snapshot(&name("root"), &part("one"), [1; 16])
            .expect("there is room");
        for number in 0..FILES {
            let name = file_name(number);
            pool.unlink(&caller, pool.root(), name.as_bytes(), None).expect("there is room");
        }
        let root = find(&pool, &[".snapshots", "one"]).expect("it is there").ino;
        let (found, deleted) = (Mutex::new(Ok(false)), Mutex::new(Ok(())));
        let read = || {
            let mut last = list_slowly(&pool, root, &found);
            while last == Ok(false) {
                last = read_all(&pool, root);
            }
            *found.lock() = last;
        };
        let delete = || {
            let done = pool.fileset_admin().delete_snapshot(&name("root"), &part("one"));
            let done = done.and_then(|()| pool.checkpoint());
            *deleted.lock() = done;
            for number in 0..FILES {
                write(&pool, &file_name(number), 255);
            }
        };
        scheduler.run(vec![
            ("read".to_owned(), Box::new(read)),
            ("delete".to_owned(), Box::new(delete)),
        ]);
        assert_eq!(deleted.into_inner(), Ok(()), "seed {seed}");
        match found.into_inner() {
            Ok(true) => stale += 1,
            Ok(false) => whole += 1,
            Err(words) => panic!("seed {seed}: {words}"),
        }
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);
    }
    assert_eq!((stale, whole), (30, 0), "each reader comes to the end of the snapshot");
}

/// Goal: whoever syncs a file of a snapshot, as COMMIT of NFS does, and whoever deletes the
/// snapshot do not wait for each other; the one has nothing to wait for, until it is told that it
/// is stale. Method: one thread syncs again and again while another deletes, in the order of a
/// seed.
#[test]
fn a_snapshot_is_deleted_while_its_files_are_synced() {
    let mut stale = 0;
    for seed in 0..30 {
        let device = new_pool();
        let shared = Arc::clone(&device);
        let scheduler = Scheduler::new(seed);
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        let opened = Mutex::new(None);
        let prepare =
            || *opened.lock() = Pool::open(shared, clock, PoolOpenOptions::default()).ok();
        scheduler.run(vec![("open".to_owned(), Box::new(prepare))]);
        let pool = opened.into_inner().expect("the pool opens");
        write(&pool, "file", 7);
        pool.fileset_admin()
            .create_snapshot(&name("root"), &part("one"), [1; 16])
            .expect("there is room");
        let ino = find(&pool, &[".snapshots", "one", "file"]).expect("it is there").ino;
        let told = Arc::new(Mutex::new(Ok(())));
        let sync = || {
            for _ in 0..200 {
                let tell = Arc::clone(&told);
                let done = Box::new(move |done| *tell.lock() = done);
                pool.commit_each(&Caller::root(), vec![(ino, done)]);
                if told.lock().is_err() {
                    return;
                }
            }
        };
        let deleted = Mutex::new(Ok(()));
        let delete =
            || *deleted.lock() = pool.fileset_admin().delete_snapshot(&name("root"), &part("one"));
        scheduler.run(vec![
            ("sync".to_owned(), Box::new(sync)),
            ("delete".to_owned(), Box::new(delete)),
        ]);
        assert_eq!(deleted.into_inner(), Ok(()), "seed {seed}");
        match &*told.lock() {
            Err(FsError::Stale) => stale += 1,
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(()) => {}
        }
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);
    }
    assert!(stale > 0, "none was under way when the snapshot was deleted");
}
