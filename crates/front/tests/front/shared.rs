//! Several fronts of one fileset, before kernels of the tests' own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use engine::Pool;
use engine::api::{
    Caller, FileKind, FileSystem, Ino, NewInode, RenameMode, SetAttr, Stability, WriteData,
};
use front::fuse::protocol::{FuseNode, FuseRequest, NewNode, NodeId, ROOT_NODE, Reply, Sender};
use front::fuse::{
    CollectedReplies, Exchange, FuseServer, Incoming, Replies, ReplyParts, tell_changes,
};
use front::shared::{
    ASKED_MAX, ASKED_TIME_NS, CHANGED_MAX, CHANGED_TIME_NS, NOTICES_MAX, NotifyingFileSystem,
    SharedFilesets, Viewer,
};
use parking_lot::Mutex;
use runtime::clock::ManualClock;
use rustix::io::Errno;

use crate::memory_fs::{self, MemoryFs, SLOW, SLOW_TIME};
use crate::mounted::new_pool;

const NEW: NewNode = NewNode { mode: 0o640, umask: 0 };
const ROOT: Caller = Caller::root();

/// A mount, as its kernel asks.
struct Kernel {
    server: Arc<FuseServer>,
    viewer: Arc<Viewer>,
    fs: Arc<NotifyingFileSystem>,
}

/// A pool with two mounts and somebody outside.
struct Fronts {
    pool: Arc<Pool>,
    clock: Arc<ManualClock>,
    kernels: [Kernel; 2],
    outside: Arc<NotifyingFileSystem>,
}

impl Fronts {
    fn new() -> Fronts {
        let (pool, clock) = (new_pool(), Arc::new(ManualClock::new()));
        clock.advance_ns(1 << 40);
        let shares = SharedFilesets::new(Arc::<ManualClock>::clone(&clock));
        let kernels = [0, 1].map(|_| {
            let viewer = shares.join(pool.root());
            let fs = NotifyingFileSystem::for_viewer(Arc::<Pool>::clone(&pool), &shares, &viewer);
            let server =
                FuseServer::of(Arc::<NotifyingFileSystem>::clone(&fs), pool.main_fileset());
            let server = Arc::new(server.expect("it is there").shared(Arc::clone(&viewer)));
            Kernel { server, viewer, fs }
        });
        let outside = NotifyingFileSystem::of(Arc::<Pool>::clone(&pool), &shares);
        Fronts { pool, clock, kernels, outside }
    }

    /// Makes a file that everybody knows since long.
    fn old_file(&self, name: &[u8]) -> Ino {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = self.outside.create(&ROOT, self.pool.root(), name, new, None);
        self.clock.advance_ns(2 * CHANGED_TIME_NS);
        made.expect("the name is free").ino
    }

    fn write(&self, ino: Ino, data: &[u8]) {
        let (data, stability) = (WriteData::Lent(data), Stability::Unstable);
        self.outside.write_some(&ROOT, ino, 0, &data, stability, None).expect("there is room");
    }

    fn close(self) {
        let Fronts { pool, kernels, outside, .. } = self;
        drop((kernels, outside));
        pool.close().expect("memory does not fail");
    }
}

impl Kernel {
    fn ask(&self, thread: u32, request: FuseRequest<'_>) -> Result<Option<FuseNode>, Errno> {
        let sender = Sender { uid: 0, gid: 0, thread };
        match self.server.answer(sender, request, &mut Vec::new()) {
            Reply::Entry(node) | Reply::Created { node, .. } | Reply::Attr(node) => Ok(Some(node)),
            Reply::Opened { .. } | Reply::Silence => Ok(None),
            Reply::Absent => Err(Errno::NOENT),
            Reply::Error(error) => Err(error),
            other => panic!("no answer to {other:?}"),
        }
    }

    fn open(&self, thread: u32, ino: Ino) -> Result<(), Errno> {
        self.ask(thread, FuseRequest::Open { node: self.server.node_id(ino), is_directory: false })
            .map(drop)
    }

    fn look_up(&self, thread: u32, name: &[u8]) -> Result<FuseNode, Errno> {
        let found = self.ask(thread, FuseRequest::Lookup { parent: ROOT_NODE, name })?;
        Ok(found.expect("a file"))
    }

    /// Opens as Linux does: what is stale is looked up again, once.
    fn open_by_name(&self, thread: u32, name: &[u8], remembered: Ino) -> Result<FuseNode, Errno> {
        match self.open(thread, remembered) {
            Err(Errno::STALE) => {
                let node = self.look_up(thread, name)?;
                self.open(thread, node.attr.ino).map(|()| node)
            }
            opened => opened.map(|()| panic!("it was taken as it was")),
        }
    }
}

/// Keeps notices: the node of each.
#[derive(Default)]
struct Notices(Mutex<Vec<u64>>);

impl Replies for Notices {
    fn send(&self, _reply: &ReplyParts<'_>) {}

    fn notify(&self, notice: &[u8]) {
        let code = i32::from_le_bytes(notice[4..8].try_into().expect("4 bytes"));
        let offset = i64::from_le_bytes(notice[24..32].try_into().expect("8 bytes"));
        assert_eq!((code, offset, notice.len()), (2, -1, 40), "attributes alone: no lock is taken");
        self.0.lock().push(u64::from_le_bytes(notice[16..24].try_into().expect("8 bytes")));
    }
}

/// Returns the nodes of which `kernel` is told until it has been told of `last`.
fn told(kernel: &Kernel, last: Ino) -> Vec<NodeId> {
    let notices = Notices::default();
    let last = kernel.server.node_id(last);
    thread::scope(|scope| {
        scope.spawn(|| tell_changes(&kernel.server, &notices));
        while !notices.0.lock().contains(&last.0) {
            thread::yield_now();
        }
        kernel.viewer.end();
    });
    notices.0.into_inner().into_iter().map(NodeId).collect()
}

/// Goal: SH1. Every kind of change is told to the other mount, and not to the one that makes it.
#[test]
fn a_change_is_told_to_the_others() {
    type Change = fn(&dyn FileSystem, Ino, Ino);
    let changes: [(&str, Change); 12] = [
        ("setattr", |fs, _, file| {
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(&ROOT, file, &change, None).map(drop).expect("it is there");
        }),
        ("write", |fs, _, file| fs.write(&ROOT, file, 0, b"data").expect("there is room")),
        ("link", |fs, root, file| {
            fs.link(&ROOT, file, root, b"link", None).map(drop).expect("the name is free");
        }),
        ("unlink", |fs, root, _| fs.unlink(&ROOT, root, b"file", None).expect("it is there")),
        ("rename", |fs, root, _| {
            let (from, to) = ((root, &b"file"[..]), (root, &b"to"[..]));
            fs.rename(&ROOT, from, to, RenameMode::Replace, None).expect("it is there");
        }),
        ("replace", |fs, root, _| {
            let (from, to) = ((root, &b"other"[..]), (root, &b"file"[..]));
            fs.rename(&ROOT, from, to, RenameMode::Replace, None).expect("it is there");
        }),
        ("setxattr", |fs, _, file| {
            let mode = engine::api::XattrMode::Set;
            fs.setxattr(&ROOT, file, b"user.x", b"v", mode, None).expect("there is room");
        }),
        ("fallocate", |fs, _, file| {
            let mode = engine::api::Fallocate::Allocate { keep_size: false };
            fs.fallocate(&ROOT, file, 0, 10, mode).expect("there is room");
        }),
        ("copy", |fs, root, file| {
            let other = fs.lookup(&ROOT, root, b"other").expect("it is there").ino;
            fs.copy_range(&ROOT, (other, 0), (file, 0), 4).expect("there is room");
        }),
        ("create", |fs, root, _| {
            let new = NewInode::new(FileKind::Regular, 0o644);
            fs.create(&ROOT, root, b"new", new, None).map(drop).expect("the name is free");
        }),
        ("symlink", |fs, root, _| {
            let made = fs.symlink(&ROOT, root, b"new", b"to", NewInode::SYMLINK, None);
            made.map(drop).expect("the name is free");
        }),
        ("rmdir", |fs, root, _| fs.rmdir(&ROOT, root, b"dir", None).expect("it is empty")),
    ];
    for (what, change) in changes {
        let fronts = Fronts::new();
        let root = fronts.pool.root();
        let (file, other) = (fronts.old_file(b"file"), fronts.old_file(b"other"));
        fronts.write(other, b"data");
        let new = NewInode::new(FileKind::Directory, 0o755);
        fronts.pool.create(&ROOT, root, b"dir", new, None).expect("the name is free");
        fronts.clock.advance_ns(2 * CHANGED_TIME_NS);
        let [own, seen] = &fronts.kernels;
        assert!(seen.viewer.lets_open(file, 1) && seen.viewer.lets_open(root, 1));
        change(&*own.fs, root, file);
        let subject = if ["create", "symlink", "rmdir"].contains(&what) { root } else { file };
        assert!(!seen.viewer.lets_open(subject, 1), "{what}");
        assert!(own.viewer.lets_open(subject, 1), "{what}: its own kernel knows");
        fronts.close();
    }
}

/// Goal: SH1. What was changed before the rest failed is told too. Method: a new owner, and a size
/// for which there is no room.
#[test]
fn a_change_that_fails_in_the_middle_is_told() {
    let (fs, clock) = (Arc::new(MemoryFs::new()), Arc::new(ManualClock::new()));
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = fs.create(&ROOT, memory_fs::ROOT, b"file", new, None).expect("it is free").ino;
    clock.advance_ns(1 << 40);
    let shares = SharedFilesets::new(clock);
    let viewer = shares.join(file);
    let outside = NotifyingFileSystem::of(Arc::<MemoryFs>::clone(&fs), &shares);
    assert!(viewer.lets_open(file, 1));
    fs.size_bytes_max.store(10, Ordering::SeqCst);
    let change = SetAttr { uid: Some(7), size_bytes: Some(20), ..SetAttr::default() };
    assert!(outside.setattr(&ROOT, file, &change, None).is_err());
    assert_eq!(fs.getattr(&ROOT, file).map(|attr| attr.uid), Ok(7));
    assert!(!viewer.lets_open(file, 1), "it has another owner");
}

/// Goal: who opens what another has changed gets it as it is, whether it was written, replaced or
/// removed, is refused once at most, and not for longer than the kernel remembers.
#[test]
fn what_is_opened_is_looked_up_again_once() {
    let fronts = Fronts::new();
    let file = fronts.old_file(b"file");
    let (root, kernel) = (fronts.pool.root(), &fronts.kernels[0]);
    kernel.open(1, file).expect("nobody has changed it");
    fronts.write(file, b"data");
    let seen = kernel.open_by_name(1, b"file", file).expect("it is there");
    assert_eq!((seen.attr.ino, seen.attr.size_bytes), (file, 4));
    kernel.open_by_name(2, b"file", file).expect("another thread is sent back too");

    // Replaced by one that has just changed too.
    let new = NewInode::new(FileKind::Regular, 0o644);
    let made = fronts.outside.create(&ROOT, root, b"t", new, None).expect("the name is free");
    fronts.write(made.ino, b"longer");
    let names = ((root, &b"t"[..]), (root, &b"file"[..]));
    let renamed = fronts.outside.rename(&ROOT, names.0, names.1, RenameMode::Replace, None);
    renamed.expect("both are there");
    let seen = kernel.open_by_name(1, b"file", file).expect("refused twice");
    assert_eq!((seen.attr.ino, seen.attr.size_bytes), (made.ino, 6));

    // Removed: what was asked for then says nothing of the next file.
    let other = fronts.old_file(b"other");
    fronts.outside.unlink(&ROOT, root, b"other", None).expect("it is there");
    fronts.write(made.ino, b"again");
    assert_eq!(kernel.open_by_name(1, b"other", other), Err(Errno::NOENT));
    assert_eq!(kernel.open(1, made.ino), Err(Errno::STALE));
    kernel.open(1, made.ino).expect("whoever opens by a descriptor looks nothing up");
    kernel.open(0, made.ino).expect("a thread that is not known cannot be told apart");
    fronts.clock.advance_ns(2 * CHANGED_TIME_NS);
    kernel.open(3, made.ino).expect("the kernel has forgotten the names by now");
    fronts.close();
}

/// Goal: a file that others made in between is opened, and not refused as one that is there.
#[test]
fn who_is_second_to_make_a_file_opens_it() {
    let fronts = Fronts::new();
    let [first, second] = &fronts.kernels;
    let create = |kernel: &Kernel, is_exclusive| {
        let (parent, name) = (ROOT_NODE, &b"new"[..]);
        kernel.ask(7, FuseRequest::Create { parent, name, new: NEW, is_exclusive })
    };
    let made = create(first, false).expect("the name is free").expect("a file");
    fronts.write(made.attr.ino, b"data");
    assert_eq!(create(second, true), Err(Errno::EXIST));
    assert_eq!(create(second, false), Err(Errno::STALE));
    let found = second.look_up(7, b"new").expect("it is there");
    assert_eq!(found.attr.ino, made.attr.ino);
    second.open(7, found.attr.ino).expect("the kernel would pass a second refusal on");
    fronts.close();
}

/// Goal: SH2. A kernel that takes no notice, because a request holds what it waits for, keeps
/// nobody from changing anything; SH3: meanwhile what is kept is bounded, and the rest runs out.
#[test]
fn a_kernel_that_takes_no_notice_stops_nobody() {
    struct Stuck(Mutex<mpsc::Receiver<()>>, AtomicUsize);
    impl Replies for Stuck {
        fn send(&self, _reply: &ReplyParts<'_>) {}

        fn notify(&self, _notice: &[u8]) {
            if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
                let freed = self.0.lock().recv_timeout(Duration::from_secs(60));
                freed.expect("the change was answered");
            }
        }
    }
    let fronts = Fronts::new();
    let file = fronts.old_file(b"file");
    let (free, freed) = mpsc::channel();
    let stuck = Stuck(Mutex::new(freed), AtomicUsize::new(0));
    let kernel = &fronts.kernels[0];
    thread::scope(|scope| {
        scope.spawn(|| tell_changes(&kernel.server, &stuck));
        fronts.write(file, b"data");
        while stuck.1.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // An open of the file does not wait for ever for the notice that is on its way.
        assert_eq!(kernel.open(1, file), Err(Errno::STALE));
        let new = NewInode::new(FileKind::Directory, 0o755);
        let root = fronts.pool.root();
        let most = u32::try_from(NOTICES_MAX).expect("it is small");
        for number in 0..=most {
            let name = number.to_string();
            let made = fronts.outside.create(&ROOT, root, name.as_bytes(), new, None);
            let made = made.expect("there is room").ino;
            let change = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            fronts.outside.setattr(&ROOT, made, &change, None).expect("it is there");
        }
        assert_eq!(kernel.viewer.told().overflows, 1);
        free.send(()).expect("it waits");
        kernel.viewer.end();
    });
    let told = stuck.1.load(Ordering::SeqCst);
    assert!(told < NOTICES_MAX, "{told} notices");
    assert_eq!(kernel.open(2, file), Err(Errno::STALE), "what overflows is not forgotten");
    fronts.close();
}

/// Goal: where more files are changed than are kept, every file is taken to be changed (SH3).
#[test]
fn with_too_many_changes_every_open_looks_again() {
    let fronts = Fronts::new();
    let untouched = fronts.old_file(b"untouched");
    let kernel = &fronts.kernels[0];
    let slot = u64::from(untouched.slot()) << 40;
    let most = u64::try_from(CHANGED_MAX).expect("it is small");
    let touch = |number: u64| {
        // The number of no file: whoever is told looks at none.
        let ino = Ino(slot | 1 << 30 | number);
        let written = fronts.outside.write(&ROOT, ino, 0, b"");
        written.expect_err("there is no such file");
    };
    (0..most).for_each(touch);
    kernel.open(1, untouched).expect("it has not changed");
    touch(most);
    assert_eq!(kernel.open(1, untouched), Err(Errno::STALE));
    kernel.open(1, untouched).expect("it was looked up again");
    fronts.clock.advance_ns(2 * CHANGED_TIME_NS);
    kernel.open(1, untouched).expect("that was long ago");
    fronts.close();
}

/// Goal: SH4. What a mount holds when it ends is let go: a removed file goes with it.
#[test]
fn a_mount_that_ends_gives_its_references_back() {
    let fronts = Fronts::new();
    let root = fronts.pool.root();
    let used = || fronts.pool.statfs(&ROOT, fronts.pool.main_fileset()).expect("told").inode_count;
    let before = used();
    let [first, second] = &fronts.kernels;
    let (parent, name) = (ROOT_NODE, &b"file"[..]);
    let create = FuseRequest::Create { parent, name, new: NEW, is_exclusive: true };
    let made = first.ask(1, create).expect("the name is free").expect("a file");
    let ino = made.attr.ino;
    for _ in 0..3 {
        second.look_up(1, name).expect("it is there");
    }
    let forgotten = first.ask(1, FuseRequest::Forget { node: made.id, count: 1 });
    assert_eq!(forgotten, Ok(None), "it has no reply");
    fronts.outside.unlink(&ROOT, root, name, None).expect("it is there");
    assert!(fronts.pool.getattr(&ROOT, ino).is_ok(), "the second holds it");
    let Fronts { pool, kernels: [_first, second], .. } = fronts;
    drop(second);
    assert!(pool.getattr(&ROOT, ino).is_err(), "nobody holds it");
    let after = pool.statfs(&ROOT, pool.main_fileset()).expect("told").inode_count;
    assert_eq!(after, before);
}

/// Goal: a notice names what has changed, in the numbers of that mount: the root is 1 there.
#[test]
fn notices_name_what_has_changed() {
    let fronts = Fronts::new();
    let root = fronts.pool.root();
    let file = fronts.old_file(b"file");
    let kernel = &fronts.kernels[1];
    fronts.write(file, b"data");
    fronts.write(file, b"more");
    fronts.outside.unlink(&ROOT, root, b"file", None).expect("it is there");
    let node = kernel.server.node_id(file);
    let nodes = told(kernel, file);
    // One is as good as two, as long as it waits. The root was told of when the file was made.
    assert_eq!(nodes, [ROOT_NODE, node]);
    fronts.close();
}

/// Goal: the kernel keeps names and attributes for a second, a name that is not there not at all,
/// and no pages from one open to the next; one that is alone keeps them for long.
#[test]
fn a_shared_mount_keeps_what_it_knows_for_a_second() {
    const YEAR: u64 = 86_400 * 365;
    let fronts = Fronts::new();
    fronts.old_file(b"file");
    let alone = FuseServer::new(Arc::<Pool>::clone(&fronts.pool));
    let shared = Arc::clone(&fronts.kernels[0].server);
    for (server, known, absent, opened) in
        [(shared, 1, 0, Some(0_u32)), (Arc::new(alone), YEAR, YEAR, None)]
    {
        let sent = Arc::new(CollectedReplies::default());
        let mut exchange = Exchange::new(server, Arc::<CollectedReplies>::clone(&sent));
        let mut ask = |opcode: u32, body: &[u8]| {
            let mut message = Vec::new();
            let length = u32::try_from(40 + body.len()).expect("it is short");
            message.extend([length, opcode].iter().flat_map(|word| word.to_le_bytes()));
            message.extend([7_u64, 1].iter().flat_map(|long| long.to_le_bytes()));
            message.extend([0_u32, 0, 4711, 0].iter().flat_map(|word| word.to_le_bytes()));
            message.extend(body);
            exchange.answer(Incoming::from(&message[..]));
            sent.take().pop().expect("a reply")
        };
        let long = |reply: &[u8], at: usize| {
            u64::from_le_bytes(reply[at..at + 8].try_into().expect("8 bytes"))
        };
        let entry = ask(1, b"file\0");
        assert_eq!((long(&entry, 32), long(&entry, 40)), (known, known));
        assert_eq!(long(&ask(1, b"absent\0"), 32), absent);
        assert_eq!(long(&ask(3, &[0; 16]), 16), known);
        for open in [14, 27] {
            let reply = ask(open, &[0; 8]);
            let flags = reply.get(24..28).map(|it| it.try_into().expect("4 bytes"));
            assert_eq!(flags.map(u32::from_le_bytes), opened);
        }
    }
    fronts.close();
}

/// Goal: threads that were sent back and have ended since are forgotten, so that others are sent
/// back again, and who gets the number of such a thread later is not taken for it.
#[test]
fn threads_that_have_ended_are_forgotten() {
    let fronts = Fronts::new();
    let file = fronts.old_file(b"file");
    let viewer = &fronts.kernels[0].viewer;
    let all = u32::try_from(ASKED_MAX).expect("few");
    fronts.write(file, b"new");
    for thread in 1..=all {
        assert!(!viewer.lets_open(file, thread), "{thread} is sent back");
    }
    assert!(viewer.lets_open(file, all + 1), "there is no room for more");
    fronts.clock.advance_ns(ASKED_TIME_NS / 2);
    fronts.write(file, b"newer");
    assert!(viewer.lets_open(file, all + 1), "they may come yet");
    assert!(viewer.lets_open(file, 1), "it was sent back");
    fronts.clock.advance_ns(ASKED_TIME_NS / 2);
    fronts.write(file, b"newest");
    assert!(!viewer.lets_open(file, all + 1), "they come no more");
    assert!(!viewer.lets_open(file, 2), "it is another by that number");
    fronts.close();
}

/// Goal: nobody makes a file under a name between the look where that leads and the rename there:
/// it would be replaced, and nobody told. Method: the look takes a while, and somebody else makes a
/// file meanwhile; he waits, and finds the name taken.
#[test]
fn nobody_makes_a_file_where_another_is_about_to_be_moved() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemoryFs::new());
    let shares = SharedFilesets::new(Arc::new(ManualClock::new()));
    let viewer = shares.join(memory_fs::ROOT);
    let tellers = [0, 1].map(|_| NotifyingFileSystem::of(Arc::clone(&fs), &shares));
    let new = || NewInode::new(FileKind::Regular, 0o644);
    let root = memory_fs::ROOT;
    let moved = tellers[0].create(&ROOT, root, b"moved", new(), None).expect("it is free").ino;
    let made = thread::scope(|scope| {
        let making = scope.spawn(|| {
            thread::park_timeout(SLOW_TIME / 4);
            tellers[1].create(&ROOT, root, SLOW, new(), None)
        });
        let (source, target) = ((root, &b"moved"[..]), (root, SLOW));
        tellers[0].rename(&ROOT, source, target, RenameMode::Replace, None).expect("it moves");
        making.join().expect("no bug")
    });
    assert!(made.is_err(), "a file was made in the midst of a rename, which replaced it");
    assert_eq!(fs.lookup(&ROOT, root, SLOW).map(|attr| attr.ino), Ok(moved));
    drop(viewer);
}
