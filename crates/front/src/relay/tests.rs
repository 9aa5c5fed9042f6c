//! Waiting requests, references released during a stop, and commits in progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use engine::api::FileKind;
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

use super::*;

const POOL_BYTES: u64 = 16 << 20;

fn pool() -> Arc<dyn FileSystem> {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let create = PoolCreateOptions::new(POOL_BYTES, [3; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let clock = Arc::new(ManualClock::new());
    Arc::new(Pool::open(device, clock, PoolOpenOptions::default()).expect("it opens"))
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

/// Goal: a request during a stop waits (RY2). A reference released during the stop is queued
/// without waiting (RY4), and released afterwards.
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

/// A file system with one request, and commits, that block until released by the test.
fn slow(relay: &Relay, work: impl FnOnce()) -> (bool, bool) {
    let commit = RelayCommit::begin(&relay.commits);
    let by_commit = relay.stop().is_some();
    drop(commit);
    let here = relay.here().expect("it is known where it is");
    let by_request = relay.stop().is_some();
    work();
    drop(here);
    (by_commit, by_request)
}

/// Goal: a stop gives up on a long request or commit, blocks nothing afterwards, and releases the
/// queued references.
#[test]
fn what_takes_long_is_not_waited_for() {
    let relay = relay();
    let made = file(&relay);
    assert_eq!(slow(&relay, || relay.forget(made.ino, 0)), (false, false));
    assert!(!relay.late.lock().is_kept);
    assert!(relay.stop().is_some(), "none is under way any more");
}

/// Goal: a stop waits for an asynchronous commit, but not for a thread that stays as the leader of
/// other commits (RY2).
#[test]
fn a_commit_is_under_way_until_it_is_answered() {
    let relay = relay();
    let made = file(&relay);
    let (tell, told) = channel();
    let fs = Arc::clone(&relay);
    let completion = Box::new(move |done: FsResult<()>| {
        // The completing thread releases references, which must not wait, stopped or not.
        fs.forget(made.ino, 0);
        tell.send((done, *fs.commits.count.lock())).expect("somebody listens");
    });
    relay.commit_then(&Caller::root(), made.ino, false, completion);
    assert_eq!(told.recv().expect("it is answered"), (Ok(()), 1));
    assert_eq!(*relay.commits.count.lock(), 0);
}

/// Goal: each request is refused while the location of the fileset is uncertain, and works
/// afterwards.
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

/// Goal: a reference is released while `go_on` waits for a running request (RY4).
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
        // Until `go_on` waits for the lock.
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
