//! A mount whose every request is one user's: who mounted it may choose as whom its kernel asks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::api::{
    Caller, Fallocate, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode, Seek, SetAttr,
    WriteData, XattrMode,
};
use engine::{NewFileset, Pool};
use front::fuse::protocol::{
    FuseNode, FuseRequest, ListedName, Listing, NewNode, NodeId, NodeLock, ROOT_NODE, ReadRequest,
    Reply, Sender,
};
use front::fuse::{
    AttachedMount, FuseServer, MountOptions, UnmountOutcome, attach, mount, mountpoint,
    serve_attached,
};
use front::locks::{LockInterface, LockMode, LockRange};
use rustix::io::Errno;

use crate::memory_fs::MemoryFs;
use crate::mounted::{Directory, has_dev_fuse, new_pool};

/// Whose the mount is.
const ANNA: u32 = 1002;
/// Another group of hers.
const TEAM: u32 = 2000;

fn ask(server: &FuseServer, request: FuseRequest<'_>) -> Result<Option<FuseNode>, Errno> {
    // The kernel says root.
    let sender = Sender { uid: 0, gid: 0, thread: 1 };
    match server.answer(sender, request, &mut Vec::new()) {
        Reply::Entry(node) | Reply::Attr(node) => Ok(Some(node)),
        Reply::Done => Ok(None),
        Reply::Error(error) => Err(error),
        other => panic!("no answer to {other:?}"),
    }
}

fn lookup(parent: NodeId, name: &[u8]) -> FuseRequest<'_> {
    FuseRequest::Lookup { parent, name }
}

fn make<'a>(parent: NodeId, name: &'a [u8], kind: FileKind, mode: u16) -> FuseRequest<'a> {
    FuseRequest::MakeNode { parent, name, kind, new: NewNode { mode, umask: 0 }, rdev: 0 }
}

fn set(node: NodeId, change: SetAttr) -> FuseRequest<'static> {
    FuseRequest::SetAttr { node, change, kills_set_bits: false }
}

fn mode(mode: u16) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn read(server: &FuseServer, node: NodeId) -> Result<(), Errno> {
    let asked = ReadRequest { node, offset: 0, length_bytes: 10, keeps_atime: false };
    let mut answer = None;
    server.read(&[asked], &mut |_, read| answer = Some(read.map(|_| ())));
    answer.expect("it is told")
}

/// Goal: whoever the kernel says asks, all is done as the one user, who may do what he may and
/// makes neither a device nor a program that runs as another. Method: requests of root, of files of
/// root's and of his own; the same on a mount that believes its kernel.
#[test]
fn a_mount_of_one_user_does_all_as_him() {
    let pool = new_pool();
    let root = Caller::root();
    let his =
        pool.create(&root, pool.root(), b"his", NewInode::new(FileKind::Directory, 0o755), None);
    let his = his.expect("the name is free").ino;
    let owner = SetAttr { uid: Some(ANNA), gid: Some(ANNA), ..SetAttr::default() };
    pool.setattr(&root, his, &owner, None).expect("it is there");
    let secret = NewInode::new(FileKind::Regular, 0o600);
    let secret = pool.create(&root, pool.root(), b"secret", secret, None).expect("it is free").ino;
    let server = |pool: &Arc<Pool>| FuseServer::new(Arc::<Pool>::clone(pool));
    let (believing, acting) = (server(&pool), server(&pool).acting_as(ANNA, ANNA, vec![TEAM]));
    let (his, secret) = (acting.node_id(his), acting.node_id(secret));
    let asks = |request: FuseRequest<'_>| ask(&acting, request);
    for name in [&b"his"[..], b"secret"] {
        asks(lookup(ROOT_NODE, name)).expect("the root is open");
    }

    assert_eq!(asks(make(ROOT_NODE, b"a", FileKind::Regular, 0o644)), Err(Errno::ACCESS));
    let made = asks(make(his, b"a", FileKind::Regular, 0o644)).expect("it is his");
    let made = made.expect("a file");
    assert_eq!((made.attr.uid, made.attr.gid), (ANNA, ANNA));
    assert_eq!(asks(set(secret, mode(0o666))), Err(Errno::PERM));
    assert_eq!(asks(set(made.id, owner)).map(drop), Ok(()), "it is as it was");
    let to_root = SetAttr { uid: Some(0), ..SetAttr::default() };
    assert_eq!(asks(set(made.id, to_root)), Err(Errno::PERM));
    let unlink = FuseRequest::Unlink { parent: ROOT_NODE, name: b"secret" };
    assert_eq!(asks(unlink), Err(Errno::ACCESS));

    for (name, kind, bits, expected) in [
        (b"b", FileKind::Regular, 0o4755, Err(Errno::PERM)),
        (b"c", FileKind::Regular, 0o2755, Err(Errno::PERM)),
        (b"d", FileKind::BlockDevice, 0o600, Err(Errno::PERM)),
        (b"e", FileKind::CharDevice, 0o600, Err(Errno::PERM)),
        (b"f", FileKind::Fifo, 0o600, Ok(())),
        (b"g", FileKind::Directory, 0o2755, Ok(())),
    ] {
        assert_eq!(asks(make(his, name, kind, bits)).map(drop), expected, "{kind:?}: {bits:o}");
    }
    assert_eq!(asks(set(made.id, mode(0o4755))), Err(Errno::PERM));
    assert_eq!(asks(set(made.id, mode(0o2755))), Err(Errno::PERM));
    assert_eq!(asks(set(made.id, mode(0o1755))).map(drop), Ok(()));
    assert_eq!(asks(set(his, mode(0o2755))).map(drop), Ok(()));

    assert_eq!((read(&acting, secret), read(&acting, made.id)), (Err(Errno::ACCESS), Ok(())));
    assert_eq!(read(&believing, secret), Ok(()));
    let shown = SetAttr { gid: Some(TEAM), mode: Some(0o640), ..SetAttr::default() };
    assert_eq!(ask(&believing, set(secret, shown)).map(drop), Ok(()));
    assert_eq!(read(&acting, secret), Ok(()), "it is of a group of hers");
    assert_eq!(ask(&believing, set(secret, mode(0o4755))).map(drop), Ok(()));
    drop((believing, acting));
    pool.close().expect("memory does not fail");
}

/// Goal: a program that runs as another is not made where nobody can say what the file is: it may
/// be no directory.
#[test]
fn what_cannot_be_looked_at_gets_no_set_bits() {
    let fs = Arc::new(MemoryFs::new());
    let server = FuseServer::new(Arc::<MemoryFs>::clone(&fs)).acting_as(ANNA, ANNA, Vec::new());
    let made = ask(&server, make(ROOT_NODE, b"a", FileKind::Regular, 0o644));
    let made = made.expect("it is new").expect("a file").id;
    fs.hides_attributes.store(true, Ordering::Relaxed);
    assert_eq!(ask(&server, set(made, mode(0o4755))), Err(Errno::PERM));
    fs.hides_attributes.store(false, Ordering::Relaxed);
    let now = ask(&server, FuseRequest::GetAttr { node: made }).expect("it is there");
    assert_eq!(now.expect("a file").attr.mode, 0o644);
}

#[track_caller]
fn assert_stale(server: &FuseServer, request: FuseRequest<'_>) {
    assert_eq!(ask(server, request), Err(Errno::STALE));
}

/// A listing that has room for all.
#[derive(Default)]
struct All(usize);

impl Listing for All {
    fn add(&mut self, _: ListedName<'_>, node: Option<&FuseNode>) -> bool {
        self.0 += usize::from(node.is_some());
        true
    }
}

/// Goal (GN1): whoever mounts may say any number in his kernel's place, and gets an answer for
/// those alone that a reply has named. Method: numbers behind a directory that is closed to him,
/// and of another fileset, all that others may read and write; each request that has one. Then
/// files that he has listed or looked up, until he has forgotten them.
#[test]
fn a_number_that_no_reply_has_named_is_stale() {
    let (pool, root) = (new_pool(), Caller::root());
    let made = |parent: Ino, name: &[u8], kind: FileKind, mode: u16| {
        let made = pool.create(&root, parent, name, NewInode::new(kind, mode), None);
        made.expect("the name is free").ino
    };
    let other = "other".parse().expect("a name");
    pool.fileset_admin().create_fileset(&other, &NewFileset::default()).expect("there is room");
    let other = pool.fileset_admin().hold_fileset(&other).expect("it is there");
    let other = pool.root_of(other).expect("it is held");
    let closed = made(pool.root(), b"closed", FileKind::Directory, 0o700);
    let open = made(pool.root(), b"open", FileKind::Directory, 0o1777);
    let known = made(open, b"known", FileKind::Regular, 0o666);
    let acting = FuseServer::new(Arc::<Pool>::clone(&pool)).acting_as(ANNA, ANNA, Vec::new());
    let asks = |request: FuseRequest<'_>| ask(&acting, request);
    let open = asks(lookup(ROOT_NODE, b"open")).expect("it is open").expect("a file").id;
    let stale = |request: FuseRequest<'_>| assert_stale(&acting, request);

    for directory in [closed, other] {
        let file = made(directory, b"file", FileKind::Regular, 0o666);
        let tree = made(directory, b"tree", FileKind::Directory, 0o1777);
        let (node, dir) = (acting.node_id(file), acting.node_id(tree));
        let data = || WriteData::Lent(b"data");
        let (name, new) = (b"new", NewNode { mode: 0o644, umask: 0 });
        stale(FuseRequest::GetAttr { node });
        stale(FuseRequest::Statx { node });
        stale(lookup(node, b"."));
        stale(lookup(dir, b".."));
        stale(set(node, SetAttr { size_bytes: Some(0), ..SetAttr::default() }));
        stale(FuseRequest::ReadLink { node });
        stale(FuseRequest::Open { node, is_directory: false });
        stale(make(dir, name, FileKind::Regular, 0o644));
        stale(FuseRequest::Create { parent: dir, name, new, is_exclusive: true });
        stale(FuseRequest::Tmpfile { parent: dir, new });
        stale(FuseRequest::Symlink { parent: dir, name, target: b"x" });
        stale(FuseRequest::Link { node, parent: open, name });
        stale(FuseRequest::Link { node: open, parent: dir, name });
        stale(FuseRequest::Unlink { parent: dir, name });
        stale(FuseRequest::Rmdir { parent: dir, name });
        let mode = RenameMode::Replace;
        stale(FuseRequest::Rename { source: (dir, name), target: (open, name), mode });
        stale(FuseRequest::Rename { source: (open, name), target: (dir, name), mode });
        let (offset, length_bytes) = (0, 4);
        for is_of_cache in [false, true] {
            let (data, kills_set_bits, appends) = (data(), false, !is_of_cache);
            stale(FuseRequest::Write { node, offset, data, kills_set_bits, is_of_cache, appends });
        }
        for mode in [None, Some(LockMode::Shared)] {
            let (interface, range) = (LockInterface::Fcntl, LockRange::ALL);
            let (owner, open_file, pid) = (1, 1, 1);
            let lock = NodeLock { node, owner, open_file, interface, mode, range, pid };
            stale(FuseRequest::GetLock(lock));
            stale(FuseRequest::SetLock(lock));
        }
        for with_nodes in [false, true] {
            let (listing, cookie, keeps_atime) = (&mut All::default(), 0, false);
            stale(FuseRequest::ReadDir { node: dir, cookie, with_nodes, keeps_atime, listing });
        }
        let (name, room_bytes, value, kills_setgid) = (b"user.a", 100, b"v", false);
        stale(FuseRequest::GetXattr { node, name, room_bytes });
        stale(FuseRequest::ListXattr { node, room_bytes });
        let mode = XattrMode::Set;
        stale(FuseRequest::SetXattr { node, name, value, mode, kills_setgid });
        stale(FuseRequest::RemoveXattr { node, name });
        let (mode, what, is_long) = (Fallocate::PunchHole, Seek::Data, true);
        stale(FuseRequest::Fallocate { node, offset, length_bytes, mode });
        stale(FuseRequest::Seek { node, offset, what });
        let (unknown, own) = ((node, 0), (open, 0));
        for (source, target) in [(unknown, own), (own, unknown)] {
            stale(FuseRequest::CopyRange { source, target, length_bytes, is_long });
        }
        assert_eq!(read(&acting, node), Err(Errno::STALE));
        let (sender, receiver) = std::sync::mpsc::channel();
        acting.sync(node, false, move |done| sender.send(done).expect("it waits"));
        assert_eq!(receiver.recv(), Ok(Err(Errno::STALE)));
        let there = pool.getattr(&root, file).expect("it is there");
        assert_eq!((there.size_bytes, there.nlink), (0, 1), "nothing has changed");
        assert_eq!(pool.lookup(&root, tree, b"new").err(), Some(FsError::NotFound));
    }

    let known = acting.node_id(known);
    stale(FuseRequest::GetAttr { node: known });
    let mut listing = All::default();
    let (cookie, with_nodes, keeps_atime, room) = (0, true, false, &mut listing);
    asks(FuseRequest::ReadDir { node: open, cookie, with_nodes, keeps_atime, listing: room })
        .expect("it is open to all");
    assert_eq!(listing.0, 1);
    assert_eq!(read(&acting, known), Ok(()), "a listing has named it");
    asks(lookup(open, b"known")).expect("it is there");
    let forget = |count: u64| {
        let request = FuseRequest::Forget { node: known, count };
        let sender = Sender { uid: 0, gid: 0, thread: 1 };
        assert_eq!(acting.answer(sender, request, &mut Vec::new()), Reply::Silence);
    };
    forget(1);
    assert_eq!(read(&acting, known), Ok(()), "one is left");
    forget(1);
    assert_eq!(read(&acting, known), Err(Errno::STALE));
    let mut reads = [open, known].map(|node| (node, None));
    let of = |node| ReadRequest { node, offset: 0, length_bytes: 1, keeps_atime: false };
    acting.read(&reads.map(|(node, _)| of(node)), &mut |at, read| reads[at].1 = read.err());
    let expected = [Some(Errno::ISDIR), Some(Errno::STALE)];
    assert_eq!(reads.map(|(_, error)| error), expected, "each has its own answer");
    drop(acting);
    pool.close().expect("memory does not fail");
}

/// Goal (GN2): a mount gives back what it has taken: files that others have open stay, and none is
/// held for ever. Method: a file without a name that two mounts have; the one that is not believed
/// forgets it more often than it was given, and another ends without a word.
#[test]
fn a_mount_gives_back_what_it_was_given_and_no_more() {
    let (pool, root) = (new_pool(), Caller::root());
    let server = || FuseServer::new(Arc::<Pool>::clone(&pool));
    let anna = || server().acting_as(ANNA, ANNA, Vec::new());
    let open = NewInode::new(FileKind::Regular, 0o644);
    let made = pool.create(&root, pool.root(), b"file", open, None).expect("the name is free");
    pool.forget(made.ino, 1);
    let (believing, acting, ending) = (server(), anna(), anna());
    let look = |server: &FuseServer| ask(server, lookup(ROOT_NODE, b"file")).map(drop);
    for server in [&believing, &acting, &ending] {
        assert_eq!(look(server), Ok(()));
    }
    let unlink = FuseRequest::Unlink { parent: ROOT_NODE, name: b"file" };
    assert_eq!(ask(&believing, unlink).map(drop), Ok(()));
    let (node, sender) = (believing.node_id(made.ino), Sender { uid: 0, gid: 0, thread: 1 });
    let forget = |server: &FuseServer, count: u64| {
        server.answer(sender, FuseRequest::Forget { node, count }, &mut Vec::new());
    };
    for _ in 0..2 {
        forget(&acting, 1 << 40);
        assert_eq!(read(&believing, node), Ok(()), "others have it open");
    }
    forget(&believing, 1);
    assert_eq!(read(&ending, node), Ok(()), "it is the last");
    drop(ending);
    assert_eq!(pool.getattr(&root, made.ino).err(), Some(FsError::Stale), "nobody holds it");
    drop((believing, acting));
    pool.close().expect("memory does not fail");
}

/// Goal: a mount that a user hands over ends when the server says so, and whatever he calls its
/// directory stays mounted. Method: he names the directory and the device of another's mount, and
/// keeps a copy of the descriptor; a session that is ended, and one that is dropped.
#[test]
fn what_a_mounter_names_is_not_unmounted() {
    if !has_dev_fuse("what_a_mounter_names_is_not_unmounted") {
        return;
    }
    let pool = new_pool();
    let fs = || -> Arc<dyn FileSystem> { Arc::<Pool>::clone(&pool) };
    let (others, his) = (Directory::new(), Directory::new());
    let plain = MountOptions::new("pool.hf");
    let mounted = mount(fs(), &others.0, &plain, None).expect("there is a /dev/fuse");
    let device = mounted.device().expect("it is in the table").to_owned();
    let mut options = MountOptions::new("pool.hf");
    options.acts_as = Some((ANNA, ANNA, Vec::new()));
    for is_dropped in [false, true] {
        let attached = attach(&his.0, &options).expect("there is a /dev/fuse");
        let kept = attached.connection.try_clone().expect("there is room");
        let (directory, device) = (others.0.clone(), Some(device.clone()));
        let lie = AttachedMount { directory, device, ..attached };
        let session = serve_attached(fs(), pool.main_fileset(), lie, &options, None);
        let session = session.expect("it is mounted");
        assert!(std::fs::metadata(&his.0).expect("it is answered").is_dir());
        if is_dropped {
            drop(session);
        } else {
            assert_eq!(session.unmount().expect("nothing is to be done"), UnmountOutcome::Clean);
            let there = mountpoint::mounted_on(&others.0).expect("the table is there");
            assert!(there.is_some(), "it is another's");
            session.wait().expect("memory does not fail");
        }
        drop(kept);
        let there = mountpoint::mounted_on(&others.0).expect("the table is there");
        assert!(there.is_some(), "it is another's");
        mountpoint::detach(&his.0).expect("it is there still");
    }
    assert_eq!(mounted.unmount().expect("nobody uses it"), UnmountOutcome::Clean);
    mounted.wait().expect("memory does not fail");
}
