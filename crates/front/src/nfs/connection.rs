//! One client's connection: records in, answers out, and the bounds of both.
//!
//! # Invariants
//! - NC1: One thread at a time reads from a connection, and one at a time writes to it.
//! - NC2: Nothing is read while the client does not take its answers, while
//!   [`REQUESTS_IN_FLIGHT_MAX`] of its requests are not answered, or while all connections together
//!   hold [`HELD_BYTES_MAX`]. So a client that only asks fills the socket, and not our memory.
//! - NC3: A connection that takes no byte of its answers for [`SEND_TIME_MAX`], or leaves a record
//!   unfinished as long, is closed.
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
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
const HELD_BYTES_MAX: usize = 512 << 20;
/// How long a client may take no answer, or send nothing more of a record.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);
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
}

pub(super) struct Connection {
    ground: Arc<Ground>,
    socket: TcpStream,
    pub(super) token: u64,
    pub(super) peer: SocketAddr,
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
    output_since: Option<Instant>,
    /// Requests that are not answered.
    in_flight: usize,
}

/// What a thread that may read from a connection finds there.
pub(super) enum Input {
    /// Bytes that may hold records.
    Bytes(Vec<u8>),
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
        Connection { ground, socket, token, peer, counts, state }
    }

    /// Has the socket watched for the first time.
    pub(super) fn watch(&self) -> std::io::Result<()> {
        let events = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&self.ground.epoll, &self.socket, EventData::new_u64(self.token), events)?;
        Ok(())
    }

    /// An event came: becomes the one who reads, and reads into `spare` or what was left.
    pub(super) fn take_input(&self, spare: &mut Vec<u8>) -> Input {
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
        state.is_reading = true;
        let mut input = std::mem::take(&mut state.input);
        drop(state);
        if input.capacity() == 0 {
            input = std::mem::take(spare);
        }
        self.read_more(input)
    }

    fn read_more(&self, mut input: Vec<u8>) -> Input {
        let had = input.len();
        let wanted = match front_of(&input) {
            Front::Partial { wanted } => wanted.saturating_sub(had).clamp(READ_BYTES, 2 << 20),
            // What is there is to be served first.
            Front::Whole { .. } | Front::Fragments { .. } => return Input::Bytes(input),
            Front::Garbage => return self.end_of_input(had),
        };
        // A record grows as it comes: what a client announces costs nothing.
        let room = wanted.min(had.max(READ_BYTES));
        input.resize(had + room, 0);
        match (&self.socket).read(&mut input[had..]) {
            Ok(0) => self.end_of_input(had),
            Ok(count) => {
                input.truncate(had + count);
                self.ground.held_bytes.fetch_add(count, Ordering::Relaxed);
                Input::Bytes(input)
            }
            Err(error) if is_transient(&error) => {
                input.truncate(had);
                Input::Bytes(input)
            }
            Err(_) => self.end_of_input(had),
        }
    }

    fn end_of_input(&self, held: usize) -> Input {
        self.drop_input(held);
        Input::End
    }

    /// Whoever reads puts back what it does not serve, and lets another read.
    pub(super) fn put_back(&self, rest: Vec<u8>) {
        let mut state = self.state.lock();
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

    /// A request is taken out of what was read: `bytes` less are held.
    pub(super) fn begin_request(&self, bytes: usize) {
        self.ground.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.counts[0].fetch_add(1, Ordering::Relaxed);
        self.counts[1].fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.in_flight += 1;
        state.input_since = None;
    }

    /// Has the socket watched for what matters next. Whoever reads does so in the end.
    fn arm(&self, state: &mut State) {
        if state.is_closed || state.is_reading {
            return;
        }
        let is_full = state.in_flight >= REQUESTS_IN_FLIGHT_MAX
            || state.output_bytes > OUTPUT_BYTES_MAX
            || self.ground.held_bytes.load(Ordering::Relaxed) > HELD_BYTES_MAX;
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
                    self.settle(&mut state, batch, count);
                    state.output_since = None;
                }
                Err(error) if is_transient(&error) => {
                    self.settle(&mut state, batch, 0);
                    state.output_since = state.output_since.or_else(|| Some(Instant::now()));
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
        if state.is_blocked || state.is_parked {
            self.arm(&mut state);
        }
    }

    /// `count` bytes more of `batch` are sent: puts back what is not.
    fn settle(&self, state: &mut State, mut batch: Vec<Vec<u8>>, count: usize) {
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
        self.ground.held_bytes.fetch_sub(freed, Ordering::Relaxed);
        if state.is_closed {
            let left: usize = batch.iter().map(Vec::len).sum();
            self.ground.held_bytes.fetch_sub(left, Ordering::Relaxed);
            return;
        }
        for reply in batch.into_iter().rev() {
            state.output.push_front(reply);
        }
    }

    /// Looks at the clock: returns whether the connection is to be closed, and goes on where a
    /// bound held it up.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let mut state = self.state.lock();
        let is_late = |since: Option<Instant>| {
            since.is_some_and(|since| now.saturating_duration_since(since) > SEND_TIME_MAX)
        };
        // NC3. A record that is not read on because of a bound is nobody's fault; but if nothing is
        // being done, unfinished records are what is held, and nobody would be served again.
        let is_idle =
            state.in_flight == 0 && matches!(front_of(&state.input), Front::Partial { .. });
        let is_stuck =
            is_late(state.input_since) && !state.is_reading && (!state.is_parked || is_idle);
        if state.is_parked {
            self.arm(&mut state);
        }
        is_late(state.output_since) || (is_stuck && !state.is_blocked)
    }

    /// Ends the connection. What is being done for it is done, and answered to nobody.
    pub(super) fn close(&self) {
        self.close_locked(&mut self.state.lock());
    }

    /// Gives back what bytes a reader still held.
    pub(super) fn drop_input(&self, bytes: usize) {
        self.ground.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn close_locked(&self, state: &mut State) {
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        let queued: usize = state.output.drain(..).map(|reply| reply.len()).sum();
        let held = queued + std::mem::take(&mut state.input).len();
        self.ground.held_bytes.fetch_sub(held, Ordering::Relaxed);
        // Nobody is there to be told.
        let _ = epoll::delete(&self.ground.epoll, &self.socket);
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Returns how many requests came, their bytes, the bytes of answers, and how many requests are
    /// not answered.
    pub(super) fn counts(&self) -> ([u64; 3], usize) {
        let in_flight = self.state.lock().in_flight;
        (self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)), in_flight)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
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

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// A record is never longer than what is read of one.
const _: () = assert!(RECORD_BYTES_MAX + MARK_BYTES < 2 << 20);
