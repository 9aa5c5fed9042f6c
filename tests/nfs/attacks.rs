//! Peers that no export is for, or that hold what others need: nobody else notices.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use front::nfs::{NfsServer, ServerOptions};

use super::client::{Client, Direct, NFS, Socket, Trouble, Wire as _, Words};
use super::{new_device, open_pool, service_of};

const REMOVE: u32 = 12;
const RENAME: u32 = 14;
/// NFS3ERR_ACCES.
const ACCES: Trouble = Trouble::Status(13);
/// As `ENTRIES_MAX` of the server, and some more.
const JUNK: u32 = 34_000;
/// As `ADDRESS_UNFINISHED_MAX` of the server.
const ADDRESS_UNFINISHED_MAX: usize = 64 << 20;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Goal: requests that no export admits, however many, make no answer be forgotten that another
/// client may need: a RENAME that comes again is not done again, which would fail. Nor do WRITEs of
/// another client, which are remembered apart.
#[test]
fn strangers_make_no_answer_be_forgotten() {
    let service = service_of(&open_pool(&new_device(), 1), &["/:rw,squash=none,to=10.0.0.0/8"]);
    let client = |address: [u8; 4]| Client::new(Direct::new(&service, (address, 900).into()));
    let (mut good, mut stranger) = (client([10, 0, 0, 1]), client([11, 0, 0, 1]));
    let root = good.mount("/").expect("it is exported");
    good.create(&root, "a").expect("it is new");
    let words = Words::default().opaque(&root).opaque(b"a").opaque(&root).opaque(b"b");
    let rename = good.record(NFS, RENAME, &words);
    let xid = good.xid;
    let asked = |client: &mut Client<Direct>| {
        let reply = client.wire.exchange(&rename);
        super::client::open(xid, reply).expect("it is answered").u32()
    };
    assert_eq!(asked(&mut good), 0);
    for number in 0..JUNK {
        let name = number.to_be_bytes();
        let refused = stranger.nfs(REMOVE, Words::default().opaque(&root).opaque(&name));
        assert_eq!(refused.err(), Some(ACCES));
    }
    assert_eq!(asked(&mut good), 0, "it is answered as before, and not done again");
}

fn serve() -> (NfsServer, SocketAddr) {
    let rules = ["/:rw,squash=none,insecure,to=127.0.0.2,to=127.0.0.3"];
    let service = service_of(&open_pool(&new_device(), 1), &rules);
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("there is a port");
    let port = listener.local_addr().expect("it has one").port();
    let server = NfsServer::start(service, vec![listener], &ServerOptions::default());
    (server.expect("it starts"), ([127, 0, 0, 1], port).into())
}

fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("there is room");
    bind(&socket, &SocketAddr::from((from, 0))).expect("it is ours");
    connect(&socket, &to).expect("it listens");
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).expect("it is long");
    socket
}

/// Sends a record of 1 MiB but for its last byte. The server may close the connection meanwhile.
fn leave_unfinished(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let mut socket = connect_from(from, to);
    let record = [&[0x80, 0x10, 0, 0][..], &vec![0; (1 << 20) - 1]].concat();
    let _ = socket.write_all(&record);
    socket
}

fn is_closed(mut socket: &TcpStream) -> bool {
    !matches!(socket.read(&mut [0; 1]), Ok(1..))
}

/// Goal: unfinished records keep nobody from being served: those of a stranger are given up at
/// once, those of a client's address are bounded, and the longest goes first.
#[test]
fn unfinished_records_are_bounded_for_each_address() {
    let (server, address) = serve();
    let mut good = Client::new(Socket(connect_from([127, 0, 0, 2], address)));
    let root = good.mount("/").expect("it is exported");
    let stranger = leave_unfinished([127, 0, 0, 9], address);
    assert!(is_closed(&stranger), "no export is for its address");

    let count = ADDRESS_UNFINISHED_MAX / (1 << 20) + 16;
    let held: Vec<TcpStream> =
        (0..count).map(|_| leave_unfinished([127, 0, 0, 3], address)).collect();
    held.iter().for_each(|socket| socket.set_nonblocking(true).expect("it is one"));
    let is_gone = |mut socket: &TcpStream| {
        !socket.read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    let (begun, mut latest) = (Instant::now(), Duration::ZERO);
    while held.iter().filter(|socket| is_gone(socket)).count() < 16
        || server.held_bytes() > ADDRESS_UNFINISHED_MAX
    {
        assert!(begun.elapsed() < PATIENCE, "{} bytes are held", server.held_bytes());
        let asked = Instant::now();
        good.getattr(&root).expect("it is served meanwhile");
        latest = latest.max(asked.elapsed());
    }
    assert!(latest < Duration::from_secs(5), "it was served after {latest:?}");
    good.getattr(&root).expect("it is served");
}

/// Goal: a stranger is told of no exports of others; a client sees those that it may use.
#[test]
fn exports_of_others_are_not_listed() {
    const MOUNT: (u32, u32) = (100_005, 3);
    let pool = open_pool(&new_device(), 1);
    let service = service_of(&pool, &["/a:to=10.0.0.1", "/b:to=10.0.0.2"]);
    let listed = |address: [u8; 4]| {
        let mut client = Client::new(Direct::new(&Arc::clone(&service), (address, 900).into()));
        let mut told = client.call(MOUNT, 5, Words::default()).expect("it is answered");
        let mut names = Vec::new();
        while told.u32() == 1 {
            names.push(told.opaque());
            while told.u32() == 1 {
                told.opaque();
            }
        }
        names
    };
    assert_eq!(listed([10, 0, 0, 1]), [b"/a".to_vec()]);
    assert_eq!(listed([10, 0, 0, 2]), [b"/b".to_vec()]);
    assert!(listed([10, 0, 0, 3]).is_empty());
}

/// Goal: a client that mounts without `nolock` is refused locks at once (ENOLCK), and may unlock.
#[test]
fn a_lock_manager_answers_that_there_are_no_locks() {
    const NLM: (u32, u32) = (100_021, 4);
    let service = service_of(&open_pool(&new_device(), 1), &["/:rw"]);
    let mut client = Client::new(Direct::new(&service, ([127, 0, 0, 1], 900).into()));
    assert!(client.call(NLM, 0, Words::default()).expect("it is answered").is_at_end());
    for (procedure, status) in [(1, 2), (2, 2), (3, 0), (4, 0), (20, 2), (21, 0), (22, 2)] {
        let args = Words::default().opaque(b"cookie").u32(1);
        let mut told = client.call(NLM, procedure, args).expect("it is answered");
        assert_eq!((told.opaque(), told.u32()), (b"cookie".to_vec(), status), "{procedure}");
        assert!(procedure < 20 || procedure == 22 || told.u32() == 0, "the sequence");
        assert!(told.is_at_end(), "{procedure}");
    }
    let short = Words::default().u32(9);
    assert_eq!(client.call(NLM, 2, short).err(), Some(Trouble::Rpc(20)));
}
