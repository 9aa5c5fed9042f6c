//! Attributes around a change: those before it and those after it, and nobody's in between.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::api::{
    Attr, AttributeChange, Caller, FileKind, FileSystem, FsResult, Ino, NewInode, RenameMode,
    SetAttr, Stability, WriteData, XattrMode,
};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};
use testkit::ops::bytes_of;
use whole_system::{Ground, behaviours};

static ROOT: Caller = Caller::root();

/// Without what a sync may change: pages of the map, which are made when blocks are stored.
fn known(attr: Attr) -> Attr {
    Attr { blocks_512: 0, blocks_may_change: false, ..attr }
}

/// Does `change`, and expects what it says of `ino` to be what everybody sees.
#[track_caller]
fn expect<T>(
    at: &Ground<'_>,
    ino: Ino,
    change: impl FnOnce(Option<&mut AttributeChange>) -> FsResult<T>,
) -> (Attr, T) {
    let attr = || known(at.fs().getattr(&ROOT, ino).expect("it is there"));
    let before = attr();
    at.pass_time();
    let mut around = AttributeChange::default();
    let done = change(Some(&mut around)).expect("it is done");
    assert_eq!(around.before.map(known), Some(before.clone()));
    assert_eq!(around.after.map(known), Some(attr()));
    assert_ne!(before, attr());
    (before, done)
}

behaviours! {
    fn names_tell_of_their_directory(at) {
        at.does("create /d directory 755");
        let (fs, dir) = (at.fs(), at.ino("/d"));
        let new = NewInode::new(FileKind::Regular, 0o644);
        let (_, made) = expect(at, dir, |around| fs.create(&ROOT, dir, b"f", new, around));
        let sub = NewInode::new(FileKind::Directory, 0o755);
        let (before, sub) = expect(at, dir, |around| fs.create(&ROOT, dir, b"e", sub, around));
        assert_eq!(at.attr("/d").nlink, before.nlink + 1);
        let (_, link) = expect(at, dir, |around| {
            fs.symlink(&ROOT, dir, b"s", b"t", NewInode::SYMLINK, around)
        });
        expect(at, dir, |around| fs.link(&ROOT, made.ino, dir, b"g", around));
        expect(at, dir, |around| fs.unlink(&ROOT, dir, b"g", around));
        expect(at, dir, |around| fs.unlink(&ROOT, dir, b"s", around));
        expect(at, dir, |around| fs.rmdir(&ROOT, dir, b"e", around));
        for (ino, count) in [(made.ino, 2), (sub.ino, 1), (link.ino, 1)] {
            fs.forget(ino, count);
        }
    }

    fn a_rename_tells_of_both_directories(at) {
        at.does("create /a directory 755\ncreate /b directory 755\ncreate /a/f file 644");
        let inos = [at.ino("/a"), at.ino("/b")];
        for [from, to] in [inos, [inos[1], inos[0]], [inos[0]; 2]] {
            let (source, target) = ((from, &b"f"[..]), (to, &b"f"[..]));
            let target = if from == to { (to, &b"g"[..]) } else { target };
            let mut around = [AttributeChange::default(), AttributeChange::default()];
            let mut before = Vec::new();
            for ino in [from, to] {
                before.push(at.fs().getattr(&ROOT, ino).ok());
            }
            at.pass_time();
            let mode = RenameMode::Replace;
            let renamed = at.fs().rename(&ROOT, source, target, mode, Some(&mut around));
            assert_eq!(renamed, Ok(()));
            for (nth, ino) in [from, to].into_iter().enumerate() {
                assert_eq!(around[nth].before, before[nth]);
                assert_eq!(around[nth].after, at.fs().getattr(&ROOT, ino).ok());
                assert_ne!(around[nth].before, around[nth].after);
            }
        }
    }

    fn content_and_attributes_tell_of_their_file(at) {
        at.does("create /f file 644");
        let (fs, ino) = (at.fs(), at.ino("/f"));
        for (offset, data) in [(0, vec![1; 100]), (50, bytes_of(1, 50_000)), (9, vec![2; 3])] {
            for stability in [Stability::Unstable, Stability::Durable] {
                let data = WriteData::Lent(&data);
                let (_, count) = expect(at, ino, |around| {
                    fs.write_some(&ROOT, ino, offset, &data, stability, around)
                });
                assert_eq!(count, data.len());
            }
        }
        for size_bytes in [20_000, 70_000, 3, 0] {
            let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
            expect(at, ino, |around| fs.setattr(&ROOT, ino, &change, around));
        }
        let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        expect(at, ino, |around| fs.setattr(&ROOT, ino, &change, around));
        let (name, mode) = (b"user.a", XattrMode::Set);
        expect(at, ino, |around| fs.setxattr(&ROOT, ino, name, b"v", mode, around));
        expect(at, ino, |around| fs.removexattr(&ROOT, ino, name, around));
    }

    fn a_directory_keeps_the_verifier_of_its_cookies(at) {
        at.does("create /d directory 750\ncreate /f file 644");
        let (fs, dir) = (at.fs(), at.ino("/d"));
        let verifier = fs.cookie_verifier(&ROOT, dir).expect("it is a directory");
        at.does("create /d/f file 644\nrename /d/f /d/g replace\nunlink /d/g\nmode /d 711\nsync");
        assert_eq!(fs.cookie_verifier(&ROOT, dir), Ok(verifier));
        assert!(fs.cookie_verifier(&ROOT, at.ino("/f")).is_err());
        assert!(fs.cookie_verifier(&Caller::checked(7, 7, Vec::new()), dir).is_err());
    }
}

/// Goal: between what a change says was before it and what it says is after it lies nobody else's
/// change. Method: four threads make directories in one, each of which adds one link to it; so
/// after is before and one link, and no two changes have the same before.
#[test]
fn nobody_changes_a_directory_between_before_and_after() {
    const POOL_BYTES: u64 = 32 << 20;
    const THREADS: u32 = 4;
    const EACH: u32 = 100;
    let clock = Arc::new(ManualClock::new());
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, clock.as_ref(), &options).expect("a pool fits");
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("it opens");
    let root = pool.root();
    let make = |thread: u32| {
        let mut seen = Vec::new();
        for nth in 0..EACH {
            let (name, mut around) = (format!("{thread}-{nth}"), AttributeChange::default());
            let new = NewInode::new(FileKind::Directory, 0o755);
            let made = pool.create(&ROOT, root, name.as_bytes(), new, Some(&mut around));
            pool.forget(made.expect("there is room").ino, 1);
            let links = |attr: Option<Attr>| attr.expect("it was asked for").nlink;
            seen.push((links(around.before), links(around.after)));
        }
        seen
    };
    let make = &make;
    let seen: Vec<(u32, u32)> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || make(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no thread fails")).collect()
    });
    assert!(seen.iter().all(|(before, after)| before + 1 == *after));
    let before: BTreeSet<u32> = seen.iter().map(|(before, _)| *before).collect();
    assert_eq!(before, (2..2 + THREADS * EACH).collect());
}
