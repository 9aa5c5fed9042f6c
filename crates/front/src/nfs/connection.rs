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
//! - NC5: A *stranger* is a connection whose address and port no export admits. It is closed when
//!   it has been idle for [`STRANGER_IDLE_MAX`].
//! - NC6: An address has no more connections than the server allows. A further one closes the one
//!   of that address that has been idle longest; if all are busy, the new one is refused. A record
//!   that is unfinished for [`UNFINISHED_BUSY_TIME`] does not count as busy.
//! - NC7: Bytes of unfinished records have limits of their own: [`STRANGER_UNFINISHED_MAX`] for a
//!   connection of a stranger, and those of [`Unfinished`] for an address and for all. Past a limit
//!   the connection with the most bytes is closed at once (`server`), so that no address blocks the
//!   others.
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
use super::unfinished::Unfinished;

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
/// How long an unfinished record counts as something that is being done: a record that comes over a
/// network comes in less.
const UNFINISHED_BUSY_TIME: Duration = Duration::from_secs(1);
/// Most bytes of an unfinished record of a stranger: calls to MOUNT and to a portmapper are
/// shorter.
const STRANGER_UNFINISHED_MAX: usize = 8 << 10;
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
    /// Bytes of unfinished records.
    pub(super) unfinished: Mutex<Unfinished>,
}

impl Ground {
    pub(super) fn new(epoll: OwnedFd) -> Ground {
        let (held_bytes, strangers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ground { epoll, held_bytes, strangers, unfinished: Mutex::default() }
    }

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
    /// NC7.
    UnfinishedMost,
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
            Overdue::UnfinishedMost => "its unfinished requests exceed a memory limit",
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
    /// Whether no export admits its peer.
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
    /// Bytes of it that are counted as unfinished (NC7).
    unfinished_bytes: usize,
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

    /// Says whether no export admits its peer.
    pub(super) fn set_stranger(&self, is_stranger: bool) {
        let was_one = self.is_stranger.swap(is_stranger, Ordering::Relaxed);
        match (was_one, is_stranger) {
            (false, true) => drop(self.ground.strangers.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.ground.strangers.fetch_sub(1, Ordering::Relaxed)),
            (false, false) | (true, true) => {}
        }
    }

    /// Whether no export admits its peer.
    pub(super) fn is_stranger(&self) -> bool {
        self.is_stranger.load(Ordering::Relaxed)
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
        self.count_unfinished(&mut state, 0);
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
        let is_partial = matches!(front_of(&rest), Front::Partial { .. });
        self.count_unfinished(&mut state, if is_partial { rest.len() } else { 0 });
        state.input = rest;
        state.is_reading = false;
        self.arm(&mut state);
        drop(state);
        // Answers that came meanwhile were left to the one who reads.
        self.flush();
    }

    /// NC7: from now on so many bytes of a record wait for more.
    fn count_unfinished(&self, state: &mut State, bytes: usize) {
        let before = std::mem::replace(&mut state.unfinished_bytes, bytes);
        if before != bytes {
            self.ground.unfinished.lock().change(self.peer.ip(), before, bytes);
        }
    }

    /// Returns how many bytes of an unfinished record wait for more.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.state.lock().unfinished_bytes
    }

    /// NC7: whether a stranger has begun what no stranger asks.
    pub(super) fn is_stranger_with_much(&self) -> bool {
        self.is_stranger() && self.unfinished_bytes() > STRANGER_UNFINISHED_MAX
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
        (is_idle && self.is_stranger()).then_some(Overdue::IdleStranger)
    }

    /// Returns since when nothing was asked; `None`: something is being done at `now`.
    pub(super) fn idle_since(&self, now: Instant) -> Option<Instant> {
        let state = self.state.lock();
        // NC6.
        let is_stale =
            state.unfinished_bytes > 0 && is_longer(state.input_since, now, UNFINISHED_BUSY_TIME);
        let asks_nothing = state.input.is_empty() || is_stale;
        let is_idle = state.in_flight == 0 && !state.is_reading && asks_nothing;
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
        self.count_unfinished(state, 0);
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
pub(super) mod tests;
