//! Mounts on the server's machine beside exports: what clients change the mounts are told of.

use std::sync::Arc;

use engine::Pool;
use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use front::nfs::{Export, Service};
use front::shared::{CHANGED_TIME_NS, NotifyingFileSystem, SharedFilesets, Viewer};
use runtime::clock::ManualClock;

use super::client::{Client, FILE_SYNC, Trouble, UNSTABLE, Words};
use super::{Direct, KEY, loopback, new_device, open_pool};

type Asked = Client<Direct>;

/// A pool that is exported, and somebody who is shown it.
struct Beside {
    pool: Arc<Pool>,
    clock: Arc<ManualClock>,
    viewer: Arc<Viewer>,
    client: Asked,
    root: Vec<u8>,
}

impl Beside {
    fn new() -> Beside {
        let (pool, clock) = (open_pool(&new_device(), 1), Arc::new(ManualClock::new()));
        clock.advance_ns(1 << 40);
        let shares = SharedFilesets::new(Arc::<ManualClock>::clone(&clock));
        let viewer = shares.join(pool.root());
        let fs = NotifyingFileSystem::of(Arc::<Pool>::clone(&pool), &shares);
        let rules = "/:rw,squash=none".parse().expect("a test writes rules");
        let service = Service::new(KEY, 2049);
        service.add(Export::new(rules, fs).expect("it is there")).expect("it is the first");
        let mut client = Client::new(Direct::new(&Arc::new(service), loopback(900)));
        let root = client.mount("/").expect("it is exported");
        Beside { pool, clock, viewer, client, root }
    }

    /// Returns whether the mount takes what it remembers of a file for good.
    fn is_believed(&self, ino: Ino) -> bool {
        // Each asks in a thread of its own.
        self.viewer.lets_open(ino, 1) && self.viewer.lets_open(ino, 2)
    }
}

/// Goal: when a change is answered the mount knows of it, be the answer held back until it is
/// durable or not; what reads, and what is refused, is told nobody.
#[test]
fn a_mount_knows_of_a_change_before_the_client_has_its_answer() {
    type Change = fn(&mut Asked, &[u8], &[u8]) -> Result<(), Trouble>;
    let changes: [(&str, bool, Change); 8] = [
        ("UNSTABLE write", true, |client, _, file| {
            client.write(file, 0, b"data", UNSTABLE).map(drop)
        }),
        ("durable write", true, |client, _, file| {
            client.write(file, 0, b"data", FILE_SYNC).map(drop)
        }),
        ("SETATTR", true, |client, _, file| {
            let args = Words::default().opaque(file).set(None, Some(9)).u32(0);
            client.nfs(2, args).map(drop)
        }),
        ("REMOVE", true, |client, root, _| client.remove(root, "file").map(drop)),
        ("RENAME", true, |client, root, _| {
            let names = Words::default().opaque(root).opaque(b"file");
            client.nfs(14, names.opaque(root).opaque(b"moved")).map(drop)
        }),
        ("LINK", true, |client, root, file| {
            client.nfs(15, Words::default().opaque(file).opaque(root).opaque(b"link")).map(drop)
        }),
        ("READ", false, |client, _, file| client.read(file, 0, 100).map(drop)),
        ("a refused REMOVE", false, |client, root, _| {
            assert!(client.remove(root, "absent").is_err());
            Ok(())
        }),
    ];
    for (what, is_told, change) in changes {
        let mut beside = Beside::new();
        let root = beside.root.clone();
        let file = beside.client.create(&root, "file").expect("the name is free");
        let ino = beside.pool.lookup(&Caller::root(), beside.pool.root(), b"file");
        let ino = ino.expect("it is there").ino;
        beside.clock.advance_ns(2 * CHANGED_TIME_NS);
        assert!(beside.is_believed(ino), "{what}: the test needs a file that is known");
        change(&mut beside.client, &root, &file).unwrap_or_else(|why| panic!("{what}: {why:?}"));
        assert_eq!(beside.is_believed(ino), !is_told, "{what}");
        beside.pool.close().expect("memory does not fail");
    }
}

/// Goal: changes of another fileset, and changes that a mount's own file system makes without a
/// teller, are none of its affair; a viewer that has gone is told no more.
#[test]
fn a_mount_is_told_of_its_own_fileset_alone() {
    let mut beside = Beside::new();
    let (root, pool) = (beside.root.clone(), Arc::clone(&beside.pool));
    let elsewhere = Ino(pool.root().0 + (1 << 40));
    beside.client.create(&root, "file").expect("the name is free");
    assert!(!beside.is_believed(pool.root()), "a name in it has come");
    assert!(beside.is_believed(elsewhere));
    beside.clock.advance_ns(2 * CHANGED_TIME_NS);
    let new = NewInode::new(FileKind::Regular, 0o644);
    pool.create(&Caller::root(), pool.root(), b"own", new, None).expect("the name is free");
    assert!(beside.is_believed(pool.root()));
    let told = beside.viewer.told();
    assert_eq!((told.notices, told.overflows), (0, 0), "nobody has taken any");
    pool.close().expect("memory does not fail");
}
