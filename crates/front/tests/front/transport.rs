//! The server behind a transport of the tests' own: no kernel.

use std::sync::Arc;

use engine::api::{Fallocate, FileKind, FileSystem, Ino, RenameMode, Seek, SetAttr, WriteData};
use front::fuse::protocol::{
    Declined, FuseNode, FuseRequest, ListedName, Listing, NewNode, NodeId, NodeNumbers, ROOT_NODE,
    ReadRequest, Reply, Sender,
};
use front::fuse::{FuseServer, FuseTransport, TransportError};
use rustix::io::Errno;

use crate::memory_fs::{DAMAGED, MemoryFs, PANICKING, ROOT};

const SENDER: Sender = Sender { uid: 1000, gid: 100, thread: 1 };
const NEW: NewNode = NewNode { mode: 0o640, umask: 0 };

fn write(node: NodeId, offset: u64, data: &[u8], kills_set_bits: bool) -> FuseRequest<'_> {
    FuseRequest::Write {
        node,
        offset,
        data: WriteData::Lent(data),
        kills_set_bits,
        is_of_cache: false,
        appends: false,
    }
}

fn server_of(fs: &Arc<MemoryFs>) -> FuseServer {
    let fs: Arc<dyn FileSystem> = fs.clone();
    FuseServer::new(fs)
}

struct Client {
    fs: Arc<MemoryFs>,
    server: FuseServer,
}

impl Client {
    fn new() -> Client {
        let fs = Arc::new(MemoryFs::new());
        let server = server_of(&fs);
        Client { fs, server }
    }

    fn node(&self, request: FuseRequest<'_>) -> Result<FuseNode, Errno> {
        match self.server.answer(SENDER, request, &mut Vec::new()) {
            Reply::Entry(node) | Reply::Created { node, .. } | Reply::Attr(node) => Ok(node),
            Reply::Error(error) => Err(error),
            Reply::Absent => Err(Errno::NOENT),
            other => panic!("not a node: {other:?}"),
        }
    }

    fn done(&self, request: FuseRequest<'_>) -> Result<(), Errno> {
        match self.server.answer(SENDER, request, &mut Vec::new()) {
            Reply::Done | Reply::Silence | Reply::Written(_) => Ok(()),
            Reply::Error(error) => Err(error),
            other => panic!("not just done: {other:?}"),
        }
    }

    fn data(&self, request: FuseRequest<'_>) -> Vec<u8> {
        match self.server.answer(SENDER, request, &mut b"old".to_vec()) {
            Reply::Data(data) => data.to_vec(),
            other => panic!("no data: {other:?}"),
        }
    }

    /// Reads several at once; returns what came of each.
    fn read(&self, asked: &[ReadRequest]) -> Vec<Result<Vec<u8>, Errno>> {
        let mut told = vec![None; asked.len()];
        self.server.read(asked, &mut |index, read| {
            let before = told[index].replace(read.map(|pieces| pieces.concat()));
            assert_eq!(before, None, "told twice");
        });
        told.into_iter().map(|told| told.expect("each is told")).collect()
    }

    fn create(&self, name: &[u8]) -> FuseNode {
        let kind = FileKind::Regular;
        let what = FuseRequest::MakeNode { parent: ROOT_NODE, name, kind, new: NEW, rdev: 0 };
        self.node(what).expect("the name is free")
    }

    fn list(&self, cookie: u64, with_nodes: bool, room: usize) -> Names {
        let mut listing = Names { room, seen: Vec::new() };
        let listing_ = &mut listing;
        let node = ROOT_NODE;
        let what = FuseRequest::ReadDir {
            node,
            cookie,
            with_nodes,
            keeps_atime: false,
            listing: listing_,
        };
        self.done(what).expect("the root is a directory");
        listing
    }
}

struct Names {
    room: usize,
    seen: Vec<(Vec<u8>, NodeId, bool, u64)>,
}

impl Listing for Names {
    fn add(&mut self, name: ListedName<'_>, node: Option<&FuseNode>) -> bool {
        if self.seen.len() == self.room {
            return false;
        }
        self.seen.push((name.name.to_vec(), name.id, node.is_some(), name.cookie));
        true
    }
}

/// Goal: node ids and inode numbers are one to one, with the root at 1, and what is not in its slot
/// has the number of nothing that is.
#[test]
fn node_ids_and_inodes_are_one_to_one() {
    for root in [Ino(1), ROOT] {
        let numbers = NodeNumbers::new(root);
        assert_eq!(numbers.node_of(root), ROOT_NODE);
        for number in [1, 2, root.0, root.0 + 1, u64::MAX] {
            assert_eq!(numbers.ino_of(numbers.node_of(Ino(number))), Ino(number));
            assert_eq!(numbers.node_of(numbers.ino_of(NodeId(number))), NodeId(number));
        }
    }
    let client = Client::new();
    let made = client.create(b"first");
    assert_eq!(made.attr.ino, Ino(1), "the test needs an inode whose number is the root's node id");
    assert_eq!(made.id, NodeId(Ino(1).in_slot(ROOT.slot()).0));
    assert_eq!(client.node(FuseRequest::GetAttr { node: made.id }).expect("it is there"), made);
}

#[test]
fn what_is_made_belongs_to_the_sender_and_is_found_again() {
    let client = Client::new();
    let made = client.create(b"a\xff");
    assert_eq!((made.attr.uid, made.attr.gid, made.attr.mode), (1000, 100, 0o640));
    let name = b"a\xff";
    let found = client.node(FuseRequest::Lookup { parent: ROOT_NODE, name }).expect("it is there");
    assert_eq!(found, made);
    assert_eq!(client.fs.references(made.attr.ino), Some(2), "FU3: one a reply");
    client.done(FuseRequest::Unlink { parent: ROOT_NODE, name }).expect("it is there");
    client.done(FuseRequest::Forget { node: made.id, count: 2 }).expect("forget cannot fail");
    assert_eq!(client.fs.references(made.attr.ino), None, "without names and references it goes");
}

/// Goal: a handle from before a restart resolves, whatever its kind.
#[test]
fn a_lookup_of_dot_finds_a_file_by_its_number_alone() {
    let client = Client::new();
    let made = client.create(b"file");
    let found =
        client.node(FuseRequest::Lookup { parent: made.id, name: b"." }).expect("it is there");
    assert_eq!(found, made);
    let gone = client.node(FuseRequest::Lookup { parent: NodeId(999), name: b"." });
    assert_eq!(gone, Err(Errno::STALE));
}

#[test]
fn data_is_read_as_written_and_never_mixed_with_what_was_there() {
    let client = Client::new();
    let node = client.create(b"file").id;
    client.done(write(node, 3, b"abc", false)).expect("it is a file");
    let read = |offset, length_bytes| {
        let mut read =
            client.read(&[ReadRequest { node, offset, length_bytes, keeps_atime: false }]);
        read.remove(0).expect("it is a file")
    };
    assert_eq!(read(0, 100), b"\0\0\0abc");
    assert_eq!(read(4, 1), b"b");
    assert_eq!(read(6, 100), b"");
    assert_eq!(read(0, u32::MAX), b"\0\0\0abc", "a length past the limit is cut");
    let asked = [(node, 3), (NodeId(999), 0), (node, 5)];
    let asked = asked.map(|(node, offset)| ReadRequest {
        node,
        offset,
        length_bytes: 2,
        keeps_atime: false,
    });
    let read = client.read(&asked);
    assert_eq!(read, [Ok(b"ab".to_vec()), Err(Errno::STALE), Ok(b"c".to_vec())]);
}

/// Goal: setuid and setgid go when the kernel says that they must, whoever writes.
#[test]
fn set_bits_go_where_the_kernel_says_so() {
    let client = Client::new();
    let node = client.create(b"file").id;
    let set = |change, kills_set_bits| {
        let changed = client.node(FuseRequest::SetAttr { node, change, kills_set_bits });
        changed.expect("it is there").attr.mode
    };
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let size = || SetAttr { size_bytes: Some(1), ..SetAttr::default() };
    assert_eq!(set(mode(0o6711), false), 0o6711);
    client.done(write(node, 0, b"abc", false)).expect("it is a file");
    assert_eq!(set(size(), false), 0o6711);
    assert_eq!(set(size(), true), 0o711);
    assert_eq!(set(mode(0o6711), true), 0o6711, "no new size");
    client.done(write(node, 0, b"abc", true)).expect("it is a file");
    assert_eq!(client.node(FuseRequest::GetAttr { node }).expect("it is there").attr.mode, 0o711);
}

#[test]
fn links_and_renames_reach_the_right_names() {
    let client = Client::new();
    let a = client.create(b"a");
    let b = client.create(b"b");
    let rename = |mode| {
        let (source, target) = ((ROOT_NODE, &b"a"[..]), (ROOT_NODE, &b"b"[..]));
        client.done(FuseRequest::Rename { source, target, mode })
    };
    let find = |name: &[u8]| client.node(FuseRequest::Lookup { parent: ROOT_NODE, name });
    assert_eq!(rename(RenameMode::NoReplace), Err(Errno::EXIST));
    rename(RenameMode::Exchange).expect("both are there");
    assert_eq!(find(b"a").expect("there").id, b.id);
    rename(RenameMode::Replace).expect("a is there");
    assert_eq!(find(b"a"), Err(Errno::NOENT));
    assert_eq!(find(b"b").expect("there").id, b.id);

    let what = FuseRequest::Link { node: b.id, parent: ROOT_NODE, name: b"c" };
    assert_eq!(client.node(what).expect("c is free").attr.nlink, 2);
    let what = FuseRequest::Symlink { parent: ROOT_NODE, name: b"s", target: b"to\xfe" };
    let link = client.node(what).expect("s is free");
    assert_eq!(client.data(FuseRequest::ReadLink { node: link.id }), b"to\xfe");
    assert_eq!(client.node(FuseRequest::GetAttr { node: a.id }).expect("referenced").attr.nlink, 0);
}

#[test]
fn a_listing_goes_on_where_it_stopped() {
    let client = Client::new();
    for number in 0..200 {
        client.create(format!("{number:03}").as_bytes());
    }
    for with_nodes in [false, true] {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let part = client.list(cookie, with_nodes, 70).seen;
            let Some(last) = part.last() else { break };
            cookie = last.3;
            names.extend(part.into_iter().map(|(name, ..)| name));
        }
        assert_eq!(names.len(), 202, "with_nodes={with_nodes}");
        assert_eq!(names[..3], [b".".to_vec(), b"..".to_vec(), b"000".to_vec()]);
        assert!(names[2..].is_sorted(), "with_nodes={with_nodes}");
    }
}

/// Goal: FU3 in listings. What did not fit, and `.` and `..`, carry no reference.
#[test]
fn a_listing_with_nodes_references_what_it_shows_and_no_more() {
    let client = Client::new();
    let nodes: Vec<FuseNode> = [b"a", b"b", b"c"].map(|name| client.create(name)).into();
    assert_eq!(client.list(0, true, 4).seen.len(), 4, ". .. a b");
    let references = |index: usize| client.fs.references(nodes[index].attr.ino);
    assert_eq!([references(0), references(1), references(2)], [Some(2), Some(2), Some(1)]);
    assert_eq!(client.fs.references(ROOT), Some(0));
    client.list(0, false, 10);
    assert_eq!(references(0), Some(2), "names alone take none");
}

#[test]
fn an_unreadable_file_is_listed_without_a_reference() {
    let client = Client::new();
    let made = client.create(DAMAGED);
    let seen = client.list(0, true, 10).seen;
    let (name, id, has_node, _) = seen.last().expect("it is listed");
    assert_eq!((&name[..], *id, *has_node), (DAMAGED, made.id, false));
    assert_eq!(client.fs.references(made.attr.ino), Some(1));
    let error = client.node(FuseRequest::Lookup { parent: ROOT_NODE, name: DAMAGED });
    assert_eq!(error, Err(Errno::UCLEAN));
}

#[test]
fn errors_keep_their_numbers() {
    let client = Client::new();
    let file = client.create(b"file").id;
    let name = b"x";
    let long = [b'n'; 256];
    let make = |parent, name| {
        let kind = FileKind::Fifo;
        client.node(FuseRequest::MakeNode { parent, name, kind, new: NEW, rdev: 0 })
    };
    assert_eq!(client.node(FuseRequest::Lookup { parent: ROOT_NODE, name }), Err(Errno::NOENT));
    assert_eq!(make(file, name), Err(Errno::NOTDIR));
    assert_eq!(make(ROOT_NODE, &long), Err(Errno::NAMETOOLONG));
    assert_eq!(client.done(FuseRequest::Rmdir { parent: ROOT_NODE, name }), Err(Errno::NOENT));
    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    assert_eq!(
        client.node(FuseRequest::SetAttr { node: NodeId(999), change, kills_set_bits: false }),
        Err(Errno::STALE)
    );
}

#[test]
fn what_is_declined_makes_the_kernel_help_itself() {
    let client = Client::new();
    let decline = |what| client.done(FuseRequest::Decline(what));
    let open = FuseRequest::Open { node: ROOT_NODE, is_directory: true };
    assert_eq!(client.done(open), Err(Errno::NOSYS), "there is nothing to open");
    let (parent, name) = (ROOT_NODE, &b"new"[..]);
    let create = FuseRequest::Create { parent, name, new: NEW, is_exclusive: false };
    assert_eq!(client.done(create), Err(Errno::NOSYS));
    for what in [Declined::Flush, Declined::Access, Declined::Lock] {
        assert_eq!(decline(what), Err(Errno::NOSYS), "{what:?}");
    }
    assert_eq!(decline(Declined::Ioctl), Err(Errno::NOTTY));
    // What the file system has not is declined in the same way.
    let node = client.create(b"file").id;
    let what = FuseRequest::GetXattr { node, name: b"user.x", room_bytes: 0 };
    assert_eq!(client.done(what), Err(Errno::NOSYS));
    let what = FuseRequest::Seek { node, offset: 0, what: Seek::Data };
    assert_eq!(client.done(what), Err(Errno::NOSYS));
    assert_eq!(
        client.done(FuseRequest::Tmpfile { parent: ROOT_NODE, new: NEW }),
        Err(Errno::NOSYS)
    );
    // But not for good what is only refused this time.
    let mode = Fallocate::PunchHole;
    let what = FuseRequest::Fallocate { node, offset: 0, length_bytes: 1, mode };
    assert_eq!(client.done(what), Err(Errno::OPNOTSUPP));
}

/// A transport that is a list of names to look up.
struct Lookups {
    names: Vec<&'static [u8]>,
    replies: Arc<parking_lot::Mutex<Vec<bool>>>,
}

impl FuseTransport for Lookups {
    fn serve(self: Box<Self>, server: Arc<FuseServer>) -> Result<(), TransportError> {
        let mut scratch = Vec::new();
        for name in self.names {
            let request = FuseRequest::Lookup { parent: ROOT_NODE, name };
            let reply = server.answer(SENDER, request, &mut scratch);
            self.replies.lock().push(matches!(reply, Reply::Entry(_)));
        }
        Ok(())
    }
}

#[test]
fn a_transport_carries_each_request_to_its_reply() {
    let fs = Arc::new(MemoryFs::new());
    let server = Arc::new(server_of(&fs));
    let client = Client { server: server_of(&fs), fs };
    client.create(PANICKING);
    let replies = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let names = vec![PANICKING, b"absent", b"."];
    let transport = Box::new(Lookups { names, replies: Arc::clone(&replies) });
    transport.serve(server).expect("a list cannot fail");
    assert_eq!(*replies.lock(), [true, false, true]);
}
