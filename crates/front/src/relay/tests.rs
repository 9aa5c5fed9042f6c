//! Requests that wait, references that are given back meanwhile, and commits that are under way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use engine::vnode::api::FileKind;
use engine::{CreateOptions, OpenOptions, Pool};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

use super::*;

const POOL_BYTES: u64 = 16 << 20;

fn pool() -> Arc<dyn FileSystem> {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let create = CreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let clock = Arc::new(ManualClock::new());
    Arc::new(Pool::open(device, clock, OpenOptions::default()).expect("it opens"))
}

fn relay() -> Arc<Relay> {
    let fs = pool();
    let fileset = fs.main_fileset();
    Relay::new(fs, fileset).expect("it is there")
}

fn file(relay: &Relay) -> Attr {
    let new = NewInode::new(FileKind::Regular, 0o644);
    relay.create(&Caller::root(), relay.root(), b"file", new, None).expect("there is room")
}

/// Goal: a request that comes while others are stopped waits, and is answered when they go on; who
/// gives a reference back does not wait, and it is given back then (RY2, RY4).
#[test]
fn requests_wait_while_they_are_stopped_and_references_do_not() {
    let relay = relay();
    let made = file(&relay);
    relay.unlink(&Caller::root(), relay.root(), b"file", None).expect("it is there");
    let is_let_go = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopped = relay.stop().expect("none is under way");
        let asking = scope.spawn(|| {
            let found = relay.getattr(&Caller::root(), relay.root());
            assert!(is_let_go.load(Ordering::SeqCst), "it did not wait");
            found
        });
        relay.forget(made.ino, 1);
        assert_eq!(relay.late.lock().given_back, [(made.ino, 1)]);
        is_let_go.store(true, Ordering::SeqCst);
        drop(stopped);
        assert!(asking.join().expect("it waited").is_ok());
    });
    assert_eq!(relay.late.lock().given_back, []);
    let gone = relay.getattr(&Caller::root(), made.ino).map(drop);
    assert_eq!(gone, Err(FsError::Stale), "nobody holds it any more");
}

/// A file system of which one request takes until it is told to end, and commits too.
fn slow(relay: &Relay, work: impl FnOnce()) -> (bool, bool) {
    let commit = Commit::begin(&relay.commits);
    let by_commit = relay.stop().is_some();
    drop(commit);
    let here = relay.here().expect("it is known where it is");
    let by_request = relay.stop().is_some();
    work();
    drop(here);
    (by_commit, by_request)
}

/// Goal: a request or a commit that takes long is not waited for, and keeps nobody waiting then;
/// what was given back meanwhile is.
#[test]
fn what_takes_long_is_not_waited_for() {
    let relay = relay();
    let made = file(&relay);
    assert_eq!(slow(&relay, || relay.forget(made.ino, 0)), (false, false));
    assert!(!relay.late.lock().is_kept);
    assert!(relay.stop().is_some(), "none is under way any more");
}

/// Goal: a commit that is answered later is waited for, and a thread that is kept for the commits
/// of others is not (RY2): it holds nothing.
#[test]
fn a_commit_is_under_way_until_it_is_answered() {
    let relay = relay();
    let made = file(&relay);
    let (tell, told) = channel();
    let fs = Arc::clone(&relay);
    let completion = Box::new(move |done: FsResult<()>| {
        // Whoever answers gives references back: that does not wait, stopped or not.
        fs.forget(made.ino, 0);
        tell.send((done, *fs.commits.count.lock())).expect("somebody listens");
    });
    relay.commit_then(&Caller::root(), made.ino, false, completion);
    assert_eq!(told.recv().expect("it is answered"), (Ok(()), 1));
    assert_eq!(*relay.commits.count.lock(), 0);
}

/// Goal: where nobody knows where the fileset is each request is refused, and goes on afterwards.
#[test]
fn requests_are_refused_until_it_is_known_where_they_belong() {
    let relay = relay();
    let made = file(&relay);
    let mut stopped = relay.stop().expect("none is under way");
    stopped.refuse();
    drop(stopped);
    let asked = relay.getattr(&Caller::root(), made.ino).map(drop);
    assert_eq!(asked, Err(FsError::TryLater));
    let (tell, told) = channel();
    let completion = Box::new(move |done| tell.send(done).expect("somebody listens"));
    relay.commit_each(&Caller::root(), vec![(made.ino, completion)]);
    assert_eq!(told.recv(), Ok(Err(FsError::TryLater)));
    relay.go_on();
    assert!(relay.getattr(&Caller::root(), made.ino).is_ok());
}

/// Goal: a reference is given back while requests are let go on that were refused, though one that
/// is under way keeps that waiting (RY4).
#[test]
fn a_reference_waits_for_no_request_that_is_under_way() {
    const UNDER_WAY: std::time::Duration = std::time::Duration::from_secs(2);
    let relay = relay();
    let made = file(&relay);
    let mut stopped = relay.stop().expect("none is under way");
    stopped.refuse();
    drop(stopped);
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let under_way = relay.at.read();
        scope.spawn(|| relay.go_on());
        // Until it waits.
        while relay.at.try_read().is_some() && begun.elapsed() < UNDER_WAY {
            std::thread::yield_now();
        }
        let giving = scope.spawn(|| relay.forget(made.ino, 0));
        while !giving.is_finished() && begun.elapsed() < UNDER_WAY {
            std::thread::yield_now();
        }
        drop(under_way);
        giving.join().expect("no bug");
    });
    assert!(begun.elapsed() < UNDER_WAY, "it waited for the request");
}
