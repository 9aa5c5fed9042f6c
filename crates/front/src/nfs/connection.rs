//! One client's connection: records in, answers out, and the bounds of both.
//!
//! # Invariants
//! - NC1: One thread at a time reads from a connection, and one at a time writes to it.
//! - NC2: Nothing is read while the client does not take its answers, while
//!   [`REQUESTS_IN_FLIGHT_MAX`] of its requests are not answered, or while all connections together
//!   hold [`HELD_BYTES_MAX`]. So a client that only asks fills the socket, and not our memory. The
//!   bound of all is asked when a socket is armed and again when its event comes: past it is no
//!   more than what each thread had begun, a record, and the answers of one batch. An eighth of it
//!   is the most that threads together keep besides, for the next long records.
//! - NC3: A connection that does not take a whole answer in [`SEND_TIME_MAX`], or leaves a record
//!   unfinished as long, is closed. A byte now and then is no progress.
//! - NC4: While the bound of all connections is reached, what is held for those whose clients are
//!   behind for [`CROWDED_TIME_MAX`] is given up, the most first: with it goes the connection.
//! - NC5: A connection of a *stranger*, who may use no export, is closed when nothing was asked by
//!   it for [`STRANGER_IDLE_MAX`].
//! - NC6: An address has no more connections than the server allows one. For one more the one of
//!   them is closed that has asked nothing for the longest time; if all are busy it is refused.
//!
//! # Concurrency
//!
//! The socket is watched for one event at a time. Whoever gets it reads, and serves what it read.
//! Before a request that may take long it puts back what it has read behind it and has the socket
//! watched again, so that another thread goes on: requests of one client overtake each other.
//! Answers come from any thread: the one that finds nobody writing writes, also what others add
//! meanwhile.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::rpc::{Front, MARK_BYTES, RECORD_BYTES_MAX, front_of};
use super::service::ReplySink;

/// Most requests of one connection that are not answered.
const REQUESTS_IN_FLIGHT_MAX: usize = 256;
/// Most bytes of answers that wait for one client.
const OUTPUT_BYTES_MAX: usize = 32 << 20;
/// Most bytes of requests and answers that all connections hold.
pub(super) const HELD_BYTES_MAX: usize = 512 << 20;
/// How long a client may take for an answer, or for a record: 1 MiB at 280 kbit/s.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client may be behind while others wait because of the bound of all.
const CROWDED_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a stranger may ask nothing: `showmount` and `rpcinfo` ask at once.
const STRANGER_IDLE_MAX: Duration = Duration::from_secs(10);
/// Bytes that are read at once, unless a record wants more.
const READ_BYTES: usize = 64 << 10;
/// Most answers that are written at once.
const SLICES_MAX: usize = 64;

/// What all connections share.
pub(super) struct Ground {
    /// What watches the sockets.
    pub(super) epoll: OwnedFd,
    /// Bytes that connections hold.
    pub(super) held_bytes: AtomicUsize,
    /// Connections of strangers.
    pub(super) strangers: AtomicUsize,
}

impl Ground {
    /// Whether nothing more is read before something is given back (NC2).
    pub(super) fn is_full(&self) -> bool {
        self.held_bytes.load(Ordering::Relaxed) > HELD_BYTES_MAX
    }
}

/// Why a connection is closed that its client keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// NC3: of an answer.
    TakesNoAnswer,
    /// NC3: of a record.
    EndsNoRecord,
    /// NC4.
    InTheWay,
    /// NC5.
    IdleStranger,
    /// NC6, and where the system has no descriptor left.
    IdlestOfMany,
}

impl Overdue {
    /// Says so of a client.
    pub(super) fn words(self) -> &'static str {
        match self {
            Overdue::TakesNoAnswer => "it did not take an answer in 30 s",
            Overdue::EndsNoRecord => "it did not end a request in 30 s",
            Overdue::InTheWay => {
                "memory for requests and answers is full, and it is the slowest by far"
            }
            Overdue::IdleStranger => "no export is for its address, and it asks nothing",
            Overdue::IdlestOfMany => "there are too many, and it asks nothing for the longest time",
        }
    }
}

pub(super) struct Connection {
    ground: Arc<Ground>,
    socket: TcpStream,
    pub(super) token: u64,
    pub(super) peer: SocketAddr,
    begun: Instant,
    /// Whether its peer may use no export.
    is_stranger: AtomicBool,
    /// Requests that came, their bytes, and those of answers that were given to be sent.
    counts: [AtomicU64; 3],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// NC1: somebody reads, or serves what it read.
    is_reading: bool,
    /// NC1: somebody writes.
    is_writing: bool,
    /// The client does not take what is sent.
    is_blocked: bool,
    /// Nobody watches the socket, for a bound is reached.
    is_parked: bool,
    is_closed: bool,
    /// What was read and is not served.
    input: Vec<u8>,
    input_since: Option<Instant>,
    output: VecDeque<Vec<u8>>,
    /// How much of the first of them is sent.
    sent: usize,
    output_bytes: usize,
    /// Since when the client could have taken the first of them.
    output_since: Option<Instant>,
    /// Since when it has not taken all of them.
    behind_since: Option<Instant>,
    /// Requests that are not answered.
    in_flight: usize,
    /// When the last request was begun.
    asked_at: Option<Instant>,
}

/// What one who reads has taken of a connection's input. Bytes that he neither begins to serve nor
/// puts back are given back when this is dropped, also by a panic.
pub(super) struct Taken<'c> {
    connection: &'c Connection,
    bytes: Vec<u8>,
    /// How many of them are of requests that were begun: those are held no more.
    begun: usize,
}

/// What a thread that may read from a connection finds there.
pub(super) enum Input<'c> {
    /// Bytes that may hold records.
    Bytes(Taken<'c>),
    /// Nothing to do.
    Nothing,
    /// The connection has ended.
    End,
}

impl Connection {
    pub(super) fn new(
        ground: &Arc<Ground>,
        socket: TcpStream,
        peer: SocketAddr,
        token: u64,
    ) -> Connection {
        let ground = Arc::clone(ground);
        let (counts, state) = (Default::default(), Mutex::default());
        let (begun, is_stranger) = (Instant::now(), AtomicBool::new(false));
        Connection { ground, socket, token, peer, begun, is_stranger, counts, state }
    }

    /// Says whether its peer may use no export.
    pub(super) fn set_stranger(&self, is_stranger: bool) {
        let was_one = self.is_stranger.swap(is_stranger, Ordering::Relaxed);
        match (was_one, is_stranger) {
            (false, true) => drop(self.ground.strangers.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.ground.strangers.fetch_sub(1, Ordering::Relaxed)),
            (false, false) | (true, true) => {}
        }
    }

    /// Has the socket watched for the first time.
    pub(super) fn watch(&self) -> std::io::Result<()> {
        let events = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&self.ground.epoll, &self.socket, EventData::new_u64(self.token), events)?;
        Ok(())
    }

    /// An event came: becomes the one who reads, and reads into `spare` or what was left.
    pub(super) fn take_input(&self, spare: &mut Vec<u8>) -> Input<'_> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Input::End;
        }
        if state.is_reading {
            return Input::Nothing;
        }
        if state.is_blocked {
            state.is_blocked = false;
            drop(state);
            self.flush();
            state = self.state.lock();
            if state.is_blocked || state.is_reading || state.is_closed {
                return Input::Nothing;
            }
        }
        // NC2: it was armed perhaps when there was room.
        if self.ground.is_full() {
            state.is_parked = true;
            return Input::Nothing;
        }
        state.is_reading = true;
        let mut bytes = std::mem::take(&mut state.input);
        drop(state);
        if bytes.capacity() < spare.capacity() {
            // Its memory is in use, and has the room that a long record comes to.
            let begun = std::mem::replace(&mut bytes, std::mem::take(spare));
            bytes.clear();
            bytes.extend_from_slice(&begun);
        }
        self.read_more(Taken { connection: self, bytes, begun: 0 })
    }

    fn read_more<'c>(&'c self, mut input: Taken<'c>) -> Input<'c> {
        let mut has_read = false;
        loop {
            let bytes = &mut input.bytes;
            let had = bytes.len();
            let wanted = match front_of(bytes) {
                Front::Partial { wanted } => wanted.saturating_sub(had).clamp(READ_BYTES, 2 << 20),
                // What is there is to be served first.
                Front::Whole { .. } | Front::Fragments { .. } => return Input::Bytes(input),
                Front::Garbage if has_read => return Input::Bytes(input),
                Front::Garbage => return Input::End,
            };
            // A record grows as it comes: what a client announces costs nothing.
            let room = wanted.min(had.max(READ_BYTES));
            // No more than is asked for, or the thread would keep twice a record.
            bytes.reserve_exact(room);
            bytes.resize(had + room, 0);
            let read = (&self.socket).read(&mut bytes[had..]);
            let count = *read.as_ref().unwrap_or(&0);
            bytes.truncate(had + count);
            self.ground.held_bytes.fetch_add(count, Ordering::Relaxed);
            has_read |= count > 0;
            match read {
                // Whoever is next finds the end again.
                Ok(0) if has_read => return Input::Bytes(input),
                Ok(0) => return Input::End,
                // There is more of a long record, it seems.
                Ok(count) if count == room && !self.ground.is_full() => {}
                Ok(_) => return Input::Bytes(input),
                Err(error) if is_transient(&error) => return Input::Bytes(input),
                Err(_) => return Input::End,
            }
        }
    }

    /// Whoever reads puts back what it does not serve, and lets another read.
    fn put_back(&self, rest: Vec<u8>) {
        let mut state = self.state.lock();
        if state.is_closed {
            // It was closed while he read: nobody else knows of these bytes.
            self.give_back(rest.len());
            return;
        }
        state.input_since = match (rest.is_empty(), state.input_since) {
            (true, _) => None,
            (false, since) => since.or_else(|| Some(Instant::now())),
        };
        state.input = rest;
        state.is_reading = false;
        self.arm(&mut state);
        drop(state);
        // Answers that came meanwhile were left to the one who reads.
        self.flush();
    }

    fn give_back(&self, bytes: usize) {
        self.ground.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A request is taken out of what was read: `bytes` less are held.
    fn begin_request(&self, bytes: usize) {
        self.give_back(bytes);
        self.counts[0].fetch_add(1, Ordering::Relaxed);
        self.counts[1].fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.in_flight += 1;
        state.input_since = None;
        state.asked_at = Some(Instant::now());
    }

    /// Has the socket watched for what matters next. Whoever reads does so in the end.
    fn arm(&self, state: &mut State) {
        if state.is_closed || state.is_reading {
            return;
        }
        let is_full = state.in_flight >= REQUESTS_IN_FLIGHT_MAX
            || state.output_bytes > OUTPUT_BYTES_MAX
            || self.ground.is_full();
        state.is_parked = is_full && !state.is_blocked;
        if state.is_parked {
            return;
        }
        let has_record = !matches!(front_of(&state.input), Front::Partial { .. });
        let events = match (state.is_blocked, has_record) {
            (true, _) => EventFlags::OUT,
            // It can be written to, so the event comes at once.
            (false, true) => EventFlags::IN | EventFlags::OUT,
            (false, false) => EventFlags::IN,
        };
        let data = EventData::new_u64(self.token);
        let events = events | EventFlags::ONESHOT;
        if epoll::modify(&self.ground.epoll, &self.socket, data, events).is_err() {
            self.close_locked(state);
        }
    }

    /// Sends what is to be sent, as far as the client takes it.
    fn flush(&self) {
        let mut state = self.state.lock();
        if state.is_writing || state.is_blocked || state.is_closed || state.output.is_empty() {
            return;
        }
        state.is_writing = true;
        while !state.is_closed && !state.output.is_empty() {
            let count = state.output.len().min(SLICES_MAX);
            let batch: Vec<Vec<u8>> = state.output.drain(..count).collect();
            let sent = state.sent;
            drop(state);
            let written = send(&self.socket, &batch, sent);
            state = self.state.lock();
            match written {
                Ok(count) => {
                    // NC3: less than a whole answer is no progress.
                    if self.settle(&mut state, batch, count) > 0 {
                        state.output_since = None;
                    }
                }
                Err(error) if is_transient(&error) => {
                    self.settle(&mut state, batch, 0);
                    let now = Instant::now();
                    state.output_since = state.output_since.or(Some(now));
                    state.behind_since = state.behind_since.or(Some(now));
                    state.is_blocked = true;
                    break;
                }
                Err(_) => {
                    self.settle(&mut state, batch, 0);
                    self.close_locked(&mut state);
                }
            }
        }
        state.is_writing = false;
        if state.output.is_empty() {
            state.behind_since = None;
        }
        if state.is_blocked || state.is_parked {
            self.arm(&mut state);
        }
    }

    /// `count` bytes more of `batch` are sent: puts back what is not. Returns how many whole
    /// answers have gone.
    fn settle(&self, state: &mut State, mut batch: Vec<Vec<u8>>, count: usize) -> usize {
        let mut gone = state.sent + count;
        let whole = batch.iter().take_while(|reply| {
            let is_gone = reply.len() <= gone;
            gone -= if is_gone { reply.len() } else { 0 };
            is_gone
        });
        let whole = whole.count();
        let freed: usize = batch.drain(..whole).map(|reply| reply.len()).sum();
        state.sent = gone;
        state.output_bytes = state.output_bytes.saturating_sub(freed);
        state.in_flight = state.in_flight.saturating_sub(whole);
        self.give_back(freed);
        if state.is_closed {
            self.give_back(batch.iter().map(Vec::len).sum());
            return whole;
        }
        for reply in batch.into_iter().rev() {
            state.output.push_front(reply);
        }
        whole
    }

    /// Looks at the clock: returns why the connection is to be closed, and goes on where a bound
    /// held it up.
    pub(super) fn overdue(&self, now: Instant) -> Option<Overdue> {
        let mut state = self.state.lock();
        let is_late = |since| is_longer(since, now, SEND_TIME_MAX);
        // NC3. A record that is not read on because of a bound is nobody's fault; but if nothing is
        // being done, unfinished records are what is held, and nobody would be served again.
        // Nor is a whole one that waits for a thread.
        let is_partial = matches!(front_of(&state.input), Front::Partial { .. });
        let is_waited_for = !state.is_parked || state.in_flight == 0;
        let is_stuck =
            is_late(state.input_since) && is_partial && !state.is_reading && is_waited_for;
        if state.is_parked {
            self.arm(&mut state);
        }
        if is_late(state.output_since) {
            return Some(Overdue::TakesNoAnswer);
        }
        if is_stuck && !state.is_blocked {
            return Some(Overdue::EndsNoRecord);
        }
        let asked_at = Some(state.asked_at.unwrap_or(self.begun));
        let is_idle = state.in_flight == 0 && is_longer(asked_at, now, STRANGER_IDLE_MAX);
        let is_stranger = self.is_stranger.load(Ordering::Relaxed);
        (is_idle && is_stranger).then_some(Overdue::IdleStranger)
    }

    /// Returns since when nothing was asked; `None`: something is being done.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let is_idle = state.in_flight == 0 && !state.is_reading && state.input.is_empty();
        is_idle.then(|| state.asked_at.unwrap_or(self.begun))
    }

    /// NC4: returns how many bytes are held for a client that is behind.
    pub(super) fn bytes_in_the_way(&self, now: Instant) -> usize {
        let state = self.state.lock();
        let is_behind = |since| is_longer(since, now, CROWDED_TIME_MAX);
        let output = if is_behind(state.behind_since) { state.output_bytes } else { 0 };
        let is_unfinished = matches!(front_of(&state.input), Front::Partial { .. });
        let waits_for_more = is_unfinished && !state.is_reading && is_behind(state.input_since);
        output + if waits_for_more { state.input.len() } else { 0 }
    }

    /// Ends the connection. What is being done for it is done, and answered to nobody.
    pub(super) fn close(&self) {
        self.close_locked(&mut self.state.lock());
    }

    fn close_locked(&self, state: &mut State) {
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        let queued: usize = state.output.drain(..).map(|reply| reply.len()).sum();
        let held = queued + std::mem::take(&mut state.input).len();
        self.give_back(held);
        // Nobody is there to be told.
        let _ = epoll::delete(&self.ground.epoll, &self.socket);
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Returns how many requests came, their bytes, the bytes of answers, and how many requests are
    /// not answered.
    pub(super) fn counts(&self) -> ([u64; 3], usize) {
        let in_flight = self.state.lock().in_flight;
        (self.totals(), in_flight)
    }

    /// Returns the first three of those. Takes no lock.
    pub(super) fn totals(&self) -> [u64; 3] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(super) fn count_for_test(&self, counts: [u64; 3]) {
        for (own, count) in self.counts.iter().zip(counts) {
            own.store(count, Ordering::Relaxed);
        }
    }

    /// Returns how many bytes of answers were given to be sent, since it began.
    pub(super) fn answered_bytes(&self) -> u64 {
        self.counts[2].load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

impl Taken<'_> {
    /// Returns what was read, what is served already too.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Begins the request of the next `bytes`.
    pub(super) fn begin_request(&mut self, bytes: usize) {
        self.connection.begin_request(bytes);
        self.begun += bytes;
    }

    /// Puts back what was not begun, and returns the rest.
    pub(super) fn put_back(mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.begun);
        let begun = std::mem::take(&mut self.bytes);
        self.begun = 0;
        self.connection.put_back(rest);
        begun
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.connection.give_back(self.bytes.len() - self.begun);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.set_stranger(false);
    }
}

impl ReplySink for Connection {
    /// While somebody reads, answers are left to him: those to requests that came together go
    /// together.
    fn send(&self, reply: Vec<u8>) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        self.ground.held_bytes.fetch_add(reply.len(), Ordering::Relaxed);
        self.counts[2].fetch_add(u64::try_from(reply.len()).unwrap_or(0), Ordering::Relaxed);
        state.output_bytes += reply.len();
        state.output.push_back(reply);
        let is_reading = state.is_reading;
        drop(state);
        if !is_reading {
            self.flush();
        }
    }

    fn forgo(&self) {
        let mut state = self.state.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.is_parked {
            self.arm(&mut state);
        }
    }
}

/// Sends what follows the first `sent` bytes of `batch`.
fn send(mut socket: &TcpStream, batch: &[Vec<u8>], sent: usize) -> std::io::Result<usize> {
    let first = batch.first().map_or(&[][..], |first| &first[sent..]);
    let rest = batch.iter().skip(1).map(Vec::as_slice);
    let slices: Vec<IoSlice<'_>> = std::iter::once(first).chain(rest).map(IoSlice::new).collect();
    match socket.write_vectored(&slices) {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        done => done,
    }
}

/// Whether what began `since` takes longer than `most`.
fn is_longer(since: Option<Instant>, now: Instant, most: Duration) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) > most)
}

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A record is never longer than what is read of one.
const _: () = assert!(RECORD_BYTES_MAX + MARK_BYTES < 2 << 20);

#[cfg(test)]
pub(super) mod tests {
    use std::net::{IpAddr, TcpListener};

    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Returns a connection, and the client's end of it.
    fn connected(peer: Option<IpAddr>, token: u64) -> (Connection, TcpStream) {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there is room");
        let (held_bytes, strangers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let ground = Arc::new(Ground { epoll, held_bytes, strangers });
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it has one");
        let client = TcpStream::connect(address).expect("it listens");
        let (socket, found) = listener.accept().expect("it came");
        socket.set_nonblocking(true).expect("it is a socket");
        let peer = SocketAddr::new(peer.unwrap_or(found.ip()), found.port());
        (Connection::new(&ground, socket, peer, token), client)
    }

    /// Returns a connection that is said to come from `peer`.
    pub(in super::super) fn from(peer: IpAddr, token: u64) -> Arc<Connection> {
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
}
