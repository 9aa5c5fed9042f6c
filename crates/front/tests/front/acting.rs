//! A mount whose every request is one user's: who mounted it may choose as whom its kernel asks.

use std::sync::Arc;

use engine::Pool;
use engine::vnode::api::{Caller, FileKind, FileSystem, NewInode, SetAttr};
use front::fuse::Server;
use front::fuse::protocol::{
    NewNode, Node, NodeId, ROOT_NODE, ReadRequest, Reply, Request, Sender,
};
use rustix::io::Errno;

use crate::mounted::new_pool;

/// Whose the mount is.
const ANNA: u32 = 1002;
/// Another group of hers.
const TEAM: u32 = 2000;

fn ask(server: &Server, request: Request<'_>) -> Result<Option<Node>, Errno> {
    // The kernel says root.
    let sender = Sender { uid: 0, gid: 0, thread: 1 };
    match server.answer(sender, request, &mut Vec::new()) {
        Reply::Entry(node) | Reply::Attr(node) => Ok(Some(node)),
        Reply::Done => Ok(None),
        Reply::Error(error) => Err(error),
        other => panic!("no answer to {other:?}"),
    }
}

fn make<'a>(parent: NodeId, name: &'a [u8], kind: FileKind, mode: u16) -> Request<'a> {
    Request::MakeNode { parent, name, kind, new: NewNode { mode, umask: 0 }, rdev: 0 }
}

fn set(node: NodeId, change: SetAttr) -> Request<'static> {
    Request::SetAttr { node, change, kills_set_bits: false }
}

fn mode(mode: u16) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
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
    let server = |pool: &Arc<Pool>| Server::new(Arc::<Pool>::clone(pool));
    let (believing, acting) = (server(&pool), server(&pool).acting_as(ANNA, ANNA, vec![TEAM]));
    let (his, secret) = (acting.node_id(his), acting.node_id(secret));
    let asks = |request: Request<'_>| ask(&acting, request);

    assert_eq!(asks(make(ROOT_NODE, b"a", FileKind::Regular, 0o644)), Err(Errno::ACCESS));
    let made = asks(make(his, b"a", FileKind::Regular, 0o644)).expect("it is his");
    let made = made.expect("a file");
    assert_eq!((made.attr.uid, made.attr.gid), (ANNA, ANNA));
    assert_eq!(asks(set(secret, mode(0o666))), Err(Errno::PERM));
    assert_eq!(asks(set(made.id, owner)).map(drop), Ok(()), "it is as it was");
    let to_root = SetAttr { uid: Some(0), ..SetAttr::default() };
    assert_eq!(asks(set(made.id, to_root)), Err(Errno::PERM));
    let unlink = Request::Unlink { parent: ROOT_NODE, name: b"secret" };
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

    let read = |server: &Server, node: NodeId| {
        let asked = ReadRequest { node, offset: 0, length_bytes: 10, keeps_atime: false };
        let mut answer = None;
        server.read(&[asked], &mut |_, read| answer = Some(read.map(|_| ())));
        answer.expect("it is told")
    };
    assert_eq!((read(&acting, secret), read(&acting, made.id)), (Err(Errno::ACCESS), Ok(())));
    assert_eq!(read(&believing, secret), Ok(()));
    let shown = SetAttr { gid: Some(TEAM), mode: Some(0o640), ..SetAttr::default() };
    assert_eq!(ask(&believing, set(secret, shown)).map(drop), Ok(()));
    assert_eq!(read(&acting, secret), Ok(()), "it is of a group of hers");
    assert_eq!(ask(&believing, set(secret, mode(0o4755))).map(drop), Ok(()));
    drop((believing, acting));
    pool.close().expect("memory does not fail");
}
