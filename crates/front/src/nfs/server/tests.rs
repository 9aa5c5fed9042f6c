//! Bounds of connections, on sockets.

use std::io::{Read as _, Write as _};

use super::super::xdr::XdrWriter;
use super::*;
use crate::nfs::HandleKey;

/// Goal: at the bound of all connections, only the lagging connection that holds the most is closed
/// (NC4). Method: two unfinished records, and a bound exceeded by a byte.
#[test]
fn who_holds_most_and_is_behind_makes_room() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
    let server = NfsServer::start(service, vec![listener], &ServerOptions::default());
    let server = server.expect("it starts");
    let begins = |bytes: usize| {
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it is long");
        let record = [&[0x80, 0, 0x10, 0][..], &vec![0; bytes - 4]].concat();
        socket.write_all(&record).expect("it reads");
        // Bytes count as held from the read on, but the client lags only after they are put back.
        let some_day = Instant::now() + Duration::from_secs(3600);
        let waits = |it: &Arc<NfsConnection>| it.bytes_in_the_way(some_day) == bytes;
        while !server.shared.connections.lock().values().any(waits) {
            std::thread::yield_now();
        }
        socket
    };
    let (few, mut many) = (begins(100), begins(2000));
    let ground = &server.shared.ground;
    ground.held_bytes.fetch_add(HELD_BYTES_MAX, Ordering::Relaxed);
    server.sweep(Instant::now());
    assert_eq!(server.connection_count(), 2, "nobody is behind yet");
    ground.held_bytes.fetch_sub(100 + 1000, Ordering::Relaxed);
    server.sweep(Instant::now() + Duration::from_secs(6));
    assert_eq!(server.connection_count(), 1);
    assert_eq!(many.read(&mut [0; 1]).ok(), Some(0), "it holds most");
    ground.held_bytes.fetch_sub(HELD_BYTES_MAX - 1100, Ordering::Relaxed);
    assert_eq!(server.held_bytes(), 100);
    drop(few);
}

fn server_of(connections_of_one: usize) -> (NfsServer, SocketAddr) {
    let listener = TcpListener::bind("0.0.0.0:0").expect("there is a port");
    let port = listener.local_addr().expect("it has one").port();
    let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
    let options = ServerOptions { connections_of_one, ..ServerOptions::default() };
    let server = NfsServer::start(service, vec![listener], &options).expect("it starts");
    (server, SocketAddr::from(([127, 0, 0, 1], port)))
}

fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("there is room");
    bind(&socket, &SocketAddr::from((from, 0))).expect("it is ours");
    connect(&socket, &to).expect("it listens");
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("it is long");
    socket
}

fn ask(mut socket: &TcpStream) {
    let mut call = XdrWriter::default();
    call.words(&[1 << 31 | 40, 7, 0, 2, 100_000, 2, 0, 0, 0, 0, 0]);
    socket.write_all(&call.into_inner()).expect("it reads");
    socket.read_exact(&mut [0; 28]).expect("it is answered");
}

fn settle(server: &NfsServer) {
    let is_busy = |it: &Arc<NfsConnection>| it.idle_since(Instant::now()).is_none();
    while server.shared.connections.lock().values().any(is_busy) {
        std::thread::yield_now();
    }
}

/// Goal: beyond an address's limit its longest idle connection is closed (NC6), and none of another
/// address.
#[test]
fn one_address_has_so_many_connections() {
    let (server, address) = server_of(2);
    let other = connect_from([127, 0, 0, 2], address);
    ask(&other);
    let (first, mut second) =
        (connect_from([127, 0, 0, 1], address), connect_from([127, 0, 0, 1], address));
    for socket in [&first, &second, &first] {
        ask(socket);
    }
    settle(&server);
    let third = connect_from([127, 0, 0, 1], address);
    assert_eq!(second.read(&mut [0; 1]).ok(), Some(0), "it was idle the longest");
    for socket in [&first, &third, &other] {
        ask(socket);
    }
    assert_eq!(server.connection_count(), 3);
}

/// Goal: if descriptors run out at accept, the server does not spin. It closes idle connections and
/// listens again. Method: an unarmed listener.
#[test]
fn a_server_that_could_not_accept_listens_again() {
    let (server, address) = server_of(9);
    let shared = &server.shared;
    let (mut idle, asks) =
        (connect_from([127, 0, 0, 1], address), connect_from([127, 0, 0, 2], address));
    ask(&idle);
    ask(&asks);
    let (listener, data) = (&shared.listeners[0], EventData::new_u64(STOP + 1));
    epoll::modify(&shared.ground.epoll, listener, data, EventFlags::ONESHOT)
        .expect("it is watched");
    let late = connect_from([127, 0, 0, 1], address);
    assert_eq!(server.connection_count(), 2, "the test needs a listener that nobody watches");
    shared.is_deaf.store(true, Ordering::Release);
    // The server's own sweep may come first and find no connection idle for long enough.
    ask(&late);
    assert!(!shared.is_deaf.load(Ordering::Acquire));
    assert_eq!(server.connection_count(), 3);
    // Strangers would be closed anyway after 10 s without a request.
    let now = Instant::now() + GIVEN_UP_TIME;
    ask(&asks);
    settle(&server);
    shared.hear_again(&mut shared.connections.lock(), now);
    assert_eq!(idle.read(&mut [0; 1]).ok(), Some(0), "it asks nothing");
    ask(&asks);
}
