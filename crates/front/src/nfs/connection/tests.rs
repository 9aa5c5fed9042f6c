//! Bounds of one connection, on a socket, with explicit times.

use std::net::{IpAddr, TcpListener};

use super::*;
use crate::nfs::unfinished::{ADDRESS_UNFINISHED_MAX, UNFINISHED_MAX};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn connected(peer: Option<IpAddr>, token: u64) -> (NfsConnection, TcpStream) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there is room");
    let ground = Arc::new(ConnectionContext::new(epoll));
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let client = TcpStream::connect(address).expect("it listens");
    let (socket, found) = listener.accept().expect("it came");
    socket.set_nonblocking(true).expect("it is a socket");
    let peer = SocketAddr::new(peer.unwrap_or(found.ip()), found.port());
    (NfsConnection::new(&ground, socket, peer, token), client)
}

/// Returns a connection that claims to come from `peer`.
pub(in crate::nfs) fn from(peer: IpAddr, token: u64) -> Arc<NfsConnection> {
    Arc::new(connected(Some(peer), token).0)
}

fn pair() -> (NfsConnection, TcpStream) {
    let (connection, client) = connected(None, 99);
    connection.watch().expect("there is room");
    (connection, client)
}

/// Reads as the client until the server has sent more. Returns since when the first queued reply
/// waits.
fn take_more(connection: &NfsConnection, mut client: &TcpStream) -> Option<Instant> {
    let left = |state: &NfsConnectionState| (state.output.len(), state.sent);
    let before = left(&connection.state.lock());
    loop {
        client.read_exact(&mut [0; 64 << 10]).expect("there is more");
        let found = connection.take_input(&mut Vec::new());
        assert!(matches!(found, ConnectionInput::Nothing), "it asks nothing");
        let state = connection.state.lock();
        if left(&state) != before {
            return state.output_since;
        }
    }
}

/// Goal: a client that accepts single bytes is as late as one that accepts none (NC3), and the
/// connection may be closed for memory (NC4). A client that accepts whole replies is not late.
#[test]
fn a_part_of_an_answer_is_no_progress() {
    const ANSWER_BYTES: usize = 12 << 20;
    let (connection, client) = pair();
    (0..3).for_each(|_| connection.send(vec![7; ANSWER_BYTES]));
    let (first, held) = {
        let state = connection.state.lock();
        assert!(state.is_blocked && state.output.len() == 3, "no socket holds so much");
        (state.output_since.expect("it waits"), state.output_bytes)
    };
    assert_eq!(connection.overdue(first + SEND_TIME_MAX), None);
    assert_eq!(connection.overdue(first + seconds(31)), Some(OverdueReason::TakesNoAnswer));
    assert_eq!(connection.bytes_in_the_way(first + CROWDED_TIME_MAX), 0);
    assert_eq!(connection.bytes_in_the_way(first + seconds(6)), held);
    assert_eq!(take_more(&connection, &client), Some(first), "it is the same answer");
    let later = loop {
        let since = take_more(&connection, &client);
        if connection.state.lock().output.len() < 3 {
            break since.expect("the next waits");
        }
        assert_eq!(since, Some(first), "it is the same answer");
    };
    assert!(later > first, "a whole one was taken");
    // The client still lags.
    let left = connection.bytes_in_the_way(first + seconds(6));
    assert!(left > 0 && left < held, "{left} of {held}");
    connection.close();
    assert_eq!(connection.ground.held_bytes.load(Ordering::Relaxed), 0);
}

fn read(connection: &NfsConnection) -> ReceivedInput<'_> {
    loop {
        match connection.take_input(&mut Vec::new()) {
            ConnectionInput::Bytes(taken) if !taken.bytes().is_empty() => return taken,
            ConnectionInput::Bytes(taken) => drop(taken.put_back()),
            ConnectionInput::Nothing | ConnectionInput::End => {
                panic!("nobody else reads, and the client is there")
            }
        }
    }
}

/// Goal: a long record in pieces is read into the thread's spare buffer. The rest left to the
/// connection has no spare capacity, as thousands of connections may have unfinished records.
#[test]
fn a_record_in_pieces_is_read_into_memory_that_is_there() {
    const PIECE: usize = 100_000;
    let (connection, mut client) = pair();
    let mut spare = Vec::with_capacity(RECORD_BYTES_MAX);
    let memory = spare.as_ptr();
    client.write_all(&[0x80, 0x10, 0, 0]).expect("the server reads");
    for number in 1..6 {
        client.write_all(&vec![7; PIECE]).expect("the server reads");
        while connection.state.lock().input.len() < number * PIECE + 4 {
            let ConnectionInput::Bytes(taken) = connection.take_input(&mut spare) else {
                panic!("nobody else reads, and the client is there")
            };
            assert_eq!(taken.bytes().as_ptr(), memory);
            spare = taken.put_back();
        }
        let state = connection.state.lock();
        assert!(state.input.capacity() <= state.input.len() + 4096);
    }
}

/// Goal: bytes of a reader are released on every path. Otherwise the bound of all connections would
/// be reached for ever.
#[test]
fn what_a_reader_had_when_its_connection_was_closed_is_given_back() {
    let ends: [fn(ReceivedInput<'_>); 3] = [
        |taken| drop(taken.put_back()),
        |taken| drop(taken),
        |taken| panic!("{} bytes", taken.bytes().len()),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        for is_closed in [true, false] {
            let (connection, mut client) = pair();
            let held = || connection.ground.held_bytes.load(Ordering::Relaxed);
            client.write_all(&[7; 100]).expect("the server reads");
            let mut taken = read(&connection);
            taken.begin_request(40);
            assert_eq!(held(), 60);
            if is_closed {
                connection.close();
            }
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| end(taken)));
            assert_eq!(ended.is_err(), number == 2);
            connection.close();
            assert_eq!(held(), 0, "end {number}, closed before: {is_closed}");
        }
    }
}

/// Goal: connections armed before all reached the bound read nothing beyond it (NC2). Their
/// requests are not lost.
#[test]
fn nothing_is_read_past_the_bound_of_all_by_who_was_armed_before() {
    let (connection, mut client) = pair();
    connection.ground.held_bytes.store(HELD_BYTES_MAX + 1, Ordering::Relaxed);
    client.write_all(&[7; 100]).expect("the server has a socket");
    assert!(matches!(connection.take_input(&mut Vec::new()), ConnectionInput::Nothing));
    assert_eq!(connection.ground.held_bytes.load(Ordering::Relaxed), HELD_BYTES_MAX + 1);
    assert!(connection.state.lock().is_parked);
    assert_eq!(connection.overdue(connection.begun), None);
    assert!(connection.state.lock().is_parked, "the bound is still reached");
    connection.ground.held_bytes.store(0, Ordering::Relaxed);
    assert_eq!(connection.overdue(connection.begun), None);
    assert!(!connection.state.lock().is_parked, "the sweep goes on");
    assert_eq!(read(&connection).bytes().len(), 100);
}

/// Goal: at the bound of all connections, a client is late with an unread record only if none of
/// its requests is in progress.
#[test]
fn unfinished_records_are_not_waited_for_without_end() {
    let (connection, _client) = pair();
    let begun = [0x80, 0, 0, 40, 1, 2, 3];
    connection.ground.held_bytes.store(HELD_BYTES_MAX + begun.len(), Ordering::Relaxed);
    connection.state.lock().is_reading = true;
    connection.put_back(begun.to_vec());
    let since = connection.state.lock().input_since.expect("it is not whole");
    assert!(connection.state.lock().is_parked, "the bound is reached");
    connection.state.lock().in_flight = 1;
    assert_eq!(connection.overdue(since + seconds(31)), None);
    connection.state.lock().in_flight = 0;
    assert_eq!(connection.overdue(since + SEND_TIME_MAX), None);
    assert_eq!(connection.overdue(since + seconds(31)), Some(OverdueReason::EndsNoRecord));
    assert_eq!(connection.bytes_in_the_way(since + CROWDED_TIME_MAX), 0);
    assert_eq!(connection.bytes_in_the_way(since + seconds(6)), begun.len());
}

/// Goal: an unfinished record soon stops counting as busy (NC6), is counted by address, and an
/// address beyond its limit is reported first (NC7).
#[test]
fn what_is_unfinished_is_counted_and_soon_keeps_nothing_busy() {
    let (connection, _client) = pair();
    connection.state.lock().is_reading = true;
    connection.put_back(vec![0x80]);
    let since = connection.state.lock().input_since.expect("it is not whole");
    assert_eq!(connection.idle_since(since), None);
    assert_eq!(connection.idle_since(since + seconds(2)), Some(connection.begun));
    let (own, ground) = (connection.peer.ip(), Arc::clone(&connection.ground));
    let unfinished = |of: IpAddr| {
        let unfinished = ground.unfinished.lock();
        (unfinished.total, unfinished.of_address.get(&of).copied())
    };
    assert_eq!(unfinished(own), (1, Some(1)));
    let other = IpAddr::from([10, 0, 0, 1]);
    let change = |before, now| ground.unfinished.lock().change(other, before, now);
    change(0, UNFINISHED_MAX - 1);
    assert_eq!(ground.unfinished.lock().past_bound(own), None);
    change(UNFINISHED_MAX - 1, UNFINISHED_MAX);
    assert_eq!(ground.unfinished.lock().past_bound(own), Some(other), "it has the most");
    change(UNFINISHED_MAX, ADDRESS_UNFINISHED_MAX + 1);
    assert_eq!(ground.unfinished.lock().past_bound(other), Some(other));
    assert_eq!(ground.unfinished.lock().past_bound(own), None);
    change(ADDRESS_UNFINISHED_MAX + 1, 0);
    assert_eq!(unfinished(other), (1, None));
    connection.close();
    assert_eq!(unfinished(own), (0, None));
}

/// Goal: a complete request that waits long for a thread does not close the connection.
#[test]
fn a_request_that_is_whole_is_not_overdue() {
    let (connection, _client) = pair();
    connection.state.lock().is_reading = true;
    connection.put_back(vec![0x80, 0, 0, 4, 1, 2, 3, 4]);
    let since = connection.state.lock().input_since.expect("it is not served");
    assert_eq!(connection.overdue(since + seconds(31)), None);
}

/// Goal: a stranger without a request in progress is idle, whatever bytes it sends (NC5).
#[test]
fn a_stranger_who_asks_is_not_idle() {
    let (connection, _client) = pair();
    let begun = connection.begun;
    assert_eq!(connection.overdue(begun + seconds(11)), None, "he may use an export");
    connection.set_stranger(true);
    connection.set_stranger(true);
    let ground = Arc::clone(&connection.ground);
    assert_eq!(ground.strangers.load(Ordering::Relaxed), 1);
    assert_eq!(connection.overdue(begun + STRANGER_IDLE_MAX), None);
    assert_eq!(connection.overdue(begun + seconds(11)), Some(OverdueReason::IdleStranger));
    connection.begin_request(0);
    let asked = connection.state.lock().asked_at.expect("just now");
    assert_eq!(connection.overdue(asked + seconds(11)), None, "he waits for an answer");
    connection.send(vec![0; 28]);
    assert_eq!(connection.overdue(asked + STRANGER_IDLE_MAX), None);
    connection.state.lock().input_since = Some(asked);
    assert_eq!(connection.overdue(asked + seconds(11)), Some(OverdueReason::IdleStranger));
    drop(connection);
    assert_eq!(ground.strangers.load(Ordering::Relaxed), 0);
}
