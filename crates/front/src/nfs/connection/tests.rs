//! Bounds of one connection, on a socket, at moments that the test names.

use std::net::{IpAddr, TcpListener};

use super::*;
use crate::nfs::unfinished::{ADDRESS_UNFINISHED_MAX, UNFINISHED_MAX};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Returns a connection, and the client's end of it.
fn connected(peer: Option<IpAddr>, token: u64) -> (Connection, TcpStream) {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there is room");
    let ground = Arc::new(Ground::new(epoll));
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let client = TcpStream::connect(address).expect("it listens");
    let (socket, found) = listener.accept().expect("it came");
    socket.set_nonblocking(true).expect("it is a socket");
    let peer = SocketAddr::new(peer.unwrap_or(found.ip()), found.port());
    (Connection::new(&ground, socket, peer, token), client)
}

/// Returns a connection that is said to come from `peer`.
pub(in crate::nfs) fn from(peer: IpAddr, token: u64) -> Arc<Connection> {
    Arc::new(connected(Some(peer), token).0)
}

/// Returns a connection that is watched, and the client's end of it.
fn pair() -> (Connection, TcpStream) {
    let (connection, client) = connected(None, 99);
    connection.watch().expect("there is room");
    (connection, client)
}

/// The client reads until the server has sent more; returns since when the answer waits that is
/// the first then.
fn take_more(connection: &Connection, mut client: &TcpStream) -> Option<Instant> {
    let left = |state: &State| (state.output.len(), state.sent);
    let before = left(&connection.state.lock());
    loop {
        client.read_exact(&mut [0; 64 << 10]).expect("there is more");
        // The socket can be written to, perhaps.
        let found = connection.take_input(&mut Vec::new());
        assert!(matches!(found, Input::Nothing), "it asks nothing");
        let state = connection.state.lock();
        if left(&state) != before {
            return state.output_since;
        }
    }
}

/// Goal: who takes a byte of an answer now and then is as late as who takes none (NC3), and
/// what is held for him is in the way of others (NC4); who takes whole answers is not late.
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
    assert_eq!(connection.overdue(first + seconds(31)), Some(Overdue::TakesNoAnswer));
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
    // But he is behind still.
    let left = connection.bytes_in_the_way(first + seconds(6));
    assert!(left > 0 && left < held, "{left} of {held}");
    connection.close();
    assert_eq!(connection.ground.held_bytes.load(Ordering::Relaxed), 0);
}

/// Reads what the client has sent, which may be on its way.
fn read(connection: &Connection) -> Taken<'_> {
    loop {
        match connection.take_input(&mut Vec::new()) {
            Input::Bytes(taken) if !taken.bytes().is_empty() => return taken,
            Input::Bytes(taken) => drop(taken.put_back()),
            Input::Nothing | Input::End => panic!("nobody else reads, and the client is there"),
        }
    }
}

/// Goal: a long record that comes in pieces is read into memory that the thread has, for new
/// memory costs a fault for each page; and what is left to the connection has no more room than
/// bytes, for thousands may be in the middle of one.
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
            let Input::Bytes(taken) = connection.take_input(&mut spare) else {
                panic!("nobody else reads, and the client is there")
            };
            assert_eq!(taken.bytes().as_ptr(), memory);
            spare = taken.put_back();
        }
        let state = connection.state.lock();
        assert!(state.input.capacity() <= state.input.len() + 4096);
    }
}

/// Goal: what a reader has taken is counted no more when it is gone, whatever became of the
/// connection and of the reader meanwhile: else the bound of all is reached for ever.
#[test]
fn what_a_reader_had_when_its_connection_was_closed_is_given_back() {
    let ends: [fn(Taken<'_>); 3] = [
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

/// Goal: the bound of all holds for connections too that were armed when there was room (NC2):
/// else each of thousands that were idle is served once. What it asked is not lost.
#[test]
fn nothing_is_read_past_the_bound_of_all_by_who_was_armed_before() {
    let (connection, mut client) = pair();
    connection.ground.held_bytes.store(HELD_BYTES_MAX + 1, Ordering::Relaxed);
    client.write_all(&[7; 100]).expect("the server has a socket");
    assert!(matches!(connection.take_input(&mut Vec::new()), Input::Nothing));
    assert_eq!(connection.ground.held_bytes.load(Ordering::Relaxed), HELD_BYTES_MAX + 1);
    assert!(connection.state.lock().is_parked);
    assert_eq!(connection.overdue(connection.begun), None);
    assert!(connection.state.lock().is_parked, "the bound is still reached");
    connection.ground.held_bytes.store(0, Ordering::Relaxed);
    assert_eq!(connection.overdue(connection.begun), None);
    assert!(!connection.state.lock().is_parked, "the sweep goes on");
    assert_eq!(read(&connection).bytes().len(), 100);
}

/// Goal: while the bound of all is reached nobody is late with a record that is not read on, as
/// long as something is being done for him; else he is: what is held may be such records alone.
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
    assert_eq!(connection.overdue(since + seconds(31)), Some(Overdue::EndsNoRecord));
    assert_eq!(connection.bytes_in_the_way(since + CROWDED_TIME_MAX), 0);
    assert_eq!(connection.bytes_in_the_way(since + seconds(6)), begun.len());
}

/// Goal: NC6, NC7: a record that is not ended soon keeps no connection busy, what is unfinished
/// is counted by address as long as it is there, and an address past its bound is told before
/// others.
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

/// Goal: a whole request that waits for a thread for long is no reason to close a connection.
#[test]
fn a_request_that_is_whole_is_not_overdue() {
    let (connection, _client) = pair();
    connection.state.lock().is_reading = true;
    connection.put_back(vec![0x80, 0, 0, 4, 1, 2, 3, 4]);
    let since = connection.state.lock().input_since.expect("it is not served");
    assert_eq!(connection.overdue(since + seconds(31)), None);
}

/// Goal: a stranger is idle when nothing was asked, whatever bytes came, and nothing is being
/// done (NC5); he is counted as long as he is connected.
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
    assert_eq!(connection.overdue(begun + seconds(11)), Some(Overdue::IdleStranger));
    connection.begin_request(0);
    let asked = connection.state.lock().asked_at.expect("just now");
    assert_eq!(connection.overdue(asked + seconds(11)), None, "he waits for an answer");
    connection.send(vec![0; 28]);
    assert_eq!(connection.overdue(asked + STRANGER_IDLE_MAX), None);
    connection.state.lock().input_since = Some(asked);
    assert_eq!(connection.overdue(asked + seconds(11)), Some(Overdue::IdleStranger));
    drop(connection);
    assert_eq!(ground.strangers.load(Ordering::Relaxed), 0);
}
