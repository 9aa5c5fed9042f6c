//! One client connection: records in, replies out, and their bounds.
//!
//! # Invariants
//! - NC1: At most one thread reads from a connection, and at most one writes to it.
//! - NC2: Nothing is read while the client does not accept its replies, while it has
//!   [`REQUESTS_IN_FLIGHT_MAX`] unanswered requests, or while all connections hold
//!   [`HELD_BYTES_MAX`]. So a flood of requests fills the socket, not our memory. The bound of all
//!   connections is checked when a socket is armed and again at its event. The bytes held may
//!   exceed it by a record per thread, the replies of one batch, and buffers kept by threads (an
//!   eighth of the bound).
//! - NC3: A connection that does not accept a whole reply within [`SEND_TIME_MAX`], or leaves a
//!   record unfinished that long, is closed. Single bytes are no progress.
//! - NC4: At the bound of all connections, those whose clients have lagged for [`CROWDED_TIME_MAX`]
//!   are closed, the largest holder first.
//! - NC5: A *stranger* is a connection whose address and port no export admits. It is closed after
//!   [`STRANGER_IDLE_MAX`] without a request.
//! - NC6: An address has no more connections than the server allows. For a further one, the
//!   connection of this address that has been idle longest is closed. If all are busy, the further
//!   one is refused. A connection whose record has been unfinished for [`UNFINISHED_BUSY_TIME`]
//!   counts as idle.
//! - NC7: Bytes of unfinished records have their own limits: [`STRANGER_UNFINISHED_MAX`] for a
//!   stranger, and those of [`UnfinishedInput`] for an address and for all. Beyond a stranger's
//!   limit, that connection is closed. Beyond an address's limit, the connection of that address
//!   with the most unfinished bytes. Beyond the limit for all, that of the address which holds the
//!   most. So no address blocks the others.
//!
//! # Concurrency
//!
//! The socket is armed for one event at a time. The thread that gets the event reads and serves.
//! Before a request that may take long, the thread puts the bytes behind it back and rearms the
//! socket, so that another thread continues. Requests of one client may overtake each other. Any
//! thread may reply: the first becomes the writer, and also writes replies that others queue.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::rpc::{MARK_BYTES, RECORD_BYTES_MAX, RecordFront, front_of};
use super::service::ReplySink;
use super::unfinished::UnfinishedInput;

const REQUESTS_IN_FLIGHT_MAX: usize = 256;
const OUTPUT_BYTES_MAX: usize = 32 << 20;
pub(super) const HELD_BYTES_MAX: usize = 512 << 20;
/// Time limit of a client per reply or record: 1 MiB at 280 kbit/s.
const SEND_TIME_MAX: Duration = Duration::from_secs(30);
const CROWDED_TIME_MAX: Duration = Duration::from_secs(5);
/// Idle limit of a stranger. `showmount` and `rpcinfo` send requests at once.
const STRANGER_IDLE_MAX: Duration = Duration::from_secs(10);
/// Time for which an unfinished record counts as busy: longer than sending a record takes.
const UNFINISHED_BUSY_TIME: Duration = Duration::from_secs(1);
/// Most bytes of a stranger's unfinished record. Calls to MOUNT and the portmapper are shorter.
const STRANGER_UNFINISHED_MAX: usize = 8 << 10;
const READ_BYTES: usize = 64 << 10;
const SLICES_MAX: usize = 64;

pub(super) struct ConnectionContext {
    pub(super) epoll: OwnedFd,
    pub(super) held_bytes: AtomicUsize,
    pub(super) strangers: AtomicUsize,
    pub(super) unfinished: Mutex<UnfinishedInput>,
}

impl ConnectionContext {
    pub(super) fn new(epoll: OwnedFd) -> ConnectionContext {
        let (held_bytes, strangers) = (AtomicUsize::new(0), AtomicUsize::new(0));
        ConnectionContext { epoll, held_bytes, strangers, unfinished: Mutex::default() }
    }

    /// Whether all connections together are at their bound (NC2).
    pub(super) fn is_full(&self) -> bool {
        self.held_bytes.load(Ordering::Relaxed) > HELD_BYTES_MAX
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverdueReason {
    /// The client does not accept a reply (NC3).
    TakesNoAnswer,
    /// The client does not complete a record (NC3).
    EndsNoRecord,
    /// Memory is full, and the client lags (NC4).
    InTheWay,
    /// The most unfinished bytes beyond a limit (NC7).
    UnfinishedMost,
    /// No export admits the client, and it sends no requests (NC5).
    IdleStranger,
    /// Idle longest at a bound of connections (NC6), or when descriptors run out.
    IdlestOfMany,
}

impl OverdueReason {
    pub(super) fn words(self) -> &'static str {
        match self {
            OverdueReason::TakesNoAnswer => "it did not take an answer in 30 s",
            OverdueReason::EndsNoRecord => "it did not end a request in 30 s",
            OverdueReason::InTheWay => {
                "memory for requests and answers is full, and it is the slowest by far"
            }
            OverdueReason::UnfinishedMost => "its unfinished requests exceed a memory limit",
            OverdueReason::IdleStranger => "no export is for its address, and it asks nothing",
            OverdueReason::IdlestOfMany => {
                "there are too many, and it asks nothing for the longest time"
            }
        }
    }
}

pub(super) struct NfsConnection {
    ground: Arc<ConnectionContext>,
    socket: TcpStream,
    pub(super) token: u64,
    pub(super) peer: SocketAddr,
    begun: Instant,
    is_stranger: AtomicBool,
    /// Requests received, their bytes, and bytes of replies queued.
    counts: [AtomicU64; 3],
    state: Mutex<NfsConnectionState>,
}

#[derive(Default)]
struct NfsConnectionState {
    /// A thread reads the socket, or serves the bytes read (NC1).
    is_reading: bool,
    /// A thread writes to the socket (NC1).
    is_writing: bool,
    /// The client does not accept data.
    is_blocked: bool,
    /// Not armed because of a bound.
    is_parked: bool,
    is_closed: bool,
    input: Vec<u8>,
    /// Bytes of `input` counted as unfinished (NC7).
    unfinished_bytes: usize,
    input_since: Option<Instant>,
    output: VecDeque<Vec<u8>>,
    sent: usize,
    output_bytes: usize,
    /// Since when the first queued reply waits for the client.
    output_since: Option<Instant>,
    /// Since when the client lags.
    behind_since: Option<Instant>,
    in_flight: usize,
    asked_at: Option<Instant>,
}

/// Input taken by the reading thread. On drop, bytes neither begun nor put back stop counting as
/// held.
pub(super) struct ReceivedInput<'c> {
    connection: &'c NfsConnection,
    bytes: Vec<u8>,
    /// Bytes of requests begun. They no longer count as held.
    begun: usize,
}

pub(super) enum ConnectionInput<'c> {
    Bytes(ReceivedInput<'c>),
    Nothing,
    End,
}

impl NfsConnection {
    pub(super) fn new(
        ground: &Arc<ConnectionContext>,
        socket: TcpStream,
        peer: SocketAddr,
        token: u64,
    ) -> NfsConnection {
        let ground = Arc::clone(ground);
        let (counts, state) = (Default::default(), Mutex::default());
        let (begun, is_stranger) = (Instant::now(), AtomicBool::new(false));
        NfsConnection { ground, socket, token, peer, begun, is_stranger, counts, state }
    }

    pub(super) fn set_stranger(&self, is_stranger: bool) {
        let was_one = self.is_stranger.swap(is_stranger, Ordering::Relaxed);
        match (was_one, is_stranger) {
            (false, true) => drop(self.ground.strangers.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.ground.strangers.fetch_sub(1, Ordering::Relaxed)),
            (false, false) | (true, true) => {}
        }
    }

    pub(super) fn is_stranger(&self) -> bool {
        self.is_stranger.load(Ordering::Relaxed)
    }

    pub(super) fn watch(&self) -> std::io::Result<()> {
        let events = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&self.ground.epoll, &self.socket, EventData::new_u64(self.token), events)?;
        Ok(())
    }

    /// Handles an event: makes this thread the reader, and reads on after earlier bytes, or into
    /// `spare`.
    pub(super) fn take_input(&self, spare: &mut Vec<u8>) -> ConnectionInput<'_> {
        let mut state = self.state.lock();
        if state.is_closed {
            return ConnectionInput::End;
        }
        if state.is_reading {
            return ConnectionInput::Nothing;
        }
        if state.is_blocked {
            state.is_blocked = false;
            drop(state);
            self.flush();
            state = self.state.lock();
            if state.is_blocked || state.is_reading || state.is_closed {
                return ConnectionInput::Nothing;
            }
        }
        // NC2: the memory may have filled up since arming.
        if self.ground.is_full() {
            state.is_parked = true;
            return ConnectionInput::Nothing;
        }
        state.is_reading = true;
        let mut bytes = std::mem::take(&mut state.input);
        self.count_unfinished(&mut state, 0);
        drop(state);
        if bytes.capacity() < spare.capacity() {
            // The thread's spare buffer is larger, and its pages are already allocated: continue
            // the record in it, instead of growing a new buffer.
            let begun = std::mem::replace(&mut bytes, std::mem::take(spare));
            bytes.clear();
            bytes.extend_from_slice(&begun);
        }
        self.read_more(ReceivedInput { connection: self, bytes, begun: 0 })
    }

    fn read_more<'c>(&'c self, mut input: ReceivedInput<'c>) -> ConnectionInput<'c> {
        let mut has_read = false;
        loop {
            let bytes = &mut input.bytes;
            let had = bytes.len();
            let wanted = match front_of(bytes) {
                RecordFront::Partial { wanted } => {
                    wanted.saturating_sub(had).clamp(READ_BYTES, 2 << 20)
                }
                // Serve complete records before reading more.
                RecordFront::Whole { .. } | RecordFront::Fragments { .. } => {
                    return ConnectionInput::Bytes(input);
                }
                RecordFront::Garbage if has_read => return ConnectionInput::Bytes(input),
                RecordFront::Garbage => return ConnectionInput::End,
            };
            // The buffer grows with the data received, not with the announced length.
            let room = wanted.min(had.max(READ_BYTES));
            // No more than this, so that a thread does not keep twice a record.
            bytes.reserve_exact(room);
            bytes.resize(had + room, 0);
            let read = (&self.socket).read(&mut bytes[had..]);
            let count = *read.as_ref().unwrap_or(&0);
            bytes.truncate(had + count);
            self.ground.held_bytes.fetch_add(count, Ordering::Relaxed);
            has_read |= count > 0;
            match read {
                Ok(0) if has_read => return ConnectionInput::Bytes(input),
                Ok(0) => return ConnectionInput::End,
                Ok(count) if count == room && !self.ground.is_full() => {}
                Ok(_) => return ConnectionInput::Bytes(input),
                Err(error) if is_transient(&error) => return ConnectionInput::Bytes(input),
                Err(_) => return ConnectionInput::End,
            }
        }
    }

    fn put_back(&self, rest: Vec<u8>) {
        let mut state = self.state.lock();
        if state.is_closed {
            // Closed during the read: only this thread can release these bytes.
            self.give_back(rest.len());
            return;
        }
        state.input_since = match (rest.is_empty(), state.input_since) {
            (true, _) => None,
            (false, since) => since.or_else(|| Some(Instant::now())),
        };
        let is_partial = matches!(front_of(&rest), RecordFront::Partial { .. });
        self.count_unfinished(&mut state, if is_partial { rest.len() } else { 0 });
        state.input = rest;
        state.is_reading = false;
        self.arm(&mut state);
        drop(state);
        // Other threads left their replies to the reader.
        self.flush();
    }

    fn count_unfinished(&self, state: &mut NfsConnectionState, bytes: usize) {
        let before = std::mem::replace(&mut state.unfinished_bytes, bytes);
        if before != bytes {
            self.ground.unfinished.lock().change(self.peer.ip(), before, bytes);
        }
    }

    pub(super) fn unfinished_bytes(&self) -> usize {
        self.state.lock().unfinished_bytes
    }

    /// NC7: returns whether a stranger has exceeded its limit.
    pub(super) fn is_stranger_with_much(&self) -> bool {
        self.is_stranger() && self.unfinished_bytes() > STRANGER_UNFINISHED_MAX
    }

    fn give_back(&self, bytes: usize) {
        self.ground.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn begin_request(&self, bytes: usize) {
        self.give_back(bytes);
        self.counts[0].fetch_add(1, Ordering::Relaxed);
        self.counts[1].fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.in_flight += 1;
        state.input_since = None;
        state.asked_at = Some(Instant::now());
    }

    /// Arms the socket for the next event, unless a reader will do so.
    fn arm(&self, state: &mut NfsConnectionState) {
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
        let has_record = !matches!(front_of(&state.input), RecordFront::Partial { .. });
        let events = match (state.is_blocked, has_record) {
            (true, _) => EventFlags::OUT,
            // A writable socket, so the event comes at once.
            (false, true) => EventFlags::IN | EventFlags::OUT,
            (false, false) => EventFlags::IN,
        };
        let data = EventData::new_u64(self.token);
        let events = events | EventFlags::ONESHOT;
        if epoll::modify(&self.ground.epoll, &self.socket, data, events).is_err() {
            self.close_locked(state);
        }
    }

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
                    // NC3: only a whole reply is progress.
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

    /// Accounts for `count` more bytes sent of `batch`, and requeues the rest. Returns the number
    /// of replies sent completely.
    fn settle(
        &self,
        state: &mut NfsConnectionState,
        mut batch: Vec<Vec<u8>>,
        count: usize,
    ) -> usize {
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

    /// Returns the reason to close the connection, if any, and rearms a parked socket.
    pub(super) fn overdue(&self, now: Instant) -> Option<OverdueReason> {
        let mut state = self.state.lock();
        let is_late = |since| is_longer(since, now, SEND_TIME_MAX);
        // NC3: a client is not late while a bound stops reading its record, nor while a complete
        // record waits for a thread. But at a bound without requests in progress it is late, as
        // unfinished records alone may fill the memory.
        let is_partial = matches!(front_of(&state.input), RecordFront::Partial { .. });
        let is_waited_for = !state.is_parked || state.in_flight == 0;
        let is_stuck =
            is_late(state.input_since) && is_partial && !state.is_reading && is_waited_for;
        if state.is_parked {
            self.arm(&mut state);
        }
        if is_late(state.output_since) {
            return Some(OverdueReason::TakesNoAnswer);
        }
        if is_stuck && !state.is_blocked {
            return Some(OverdueReason::EndsNoRecord);
        }
        let asked_at = Some(state.asked_at.unwrap_or(self.begun));
        let is_idle = state.in_flight == 0 && is_longer(asked_at, now, STRANGER_IDLE_MAX);
        (is_idle && self.is_stranger()).then_some(OverdueReason::IdleStranger)
    }

    /// Returns the time of the last request or else of connecting. `None` if the connection is
    /// busy.
    pub(super) fn idle_since(&self, now: Instant) -> Option<Instant> {
        let state = self.state.lock();
        // NC6: unfinished for long is not busy.
        let is_stale =
            state.unfinished_bytes > 0 && is_longer(state.input_since, now, UNFINISHED_BUSY_TIME);
        let asks_nothing = state.input.is_empty() || is_stale;
        let is_idle = state.in_flight == 0 && !state.is_reading && asks_nothing;
        is_idle.then(|| state.asked_at.unwrap_or(self.begun))
    }

    /// Returns the bytes held for the client if it lags (NC4).
    pub(super) fn bytes_in_the_way(&self, now: Instant) -> usize {
        let state = self.state.lock();
        let is_behind = |since| is_longer(since, now, CROWDED_TIME_MAX);
        let output = if is_behind(state.behind_since) { state.output_bytes } else { 0 };
        let is_unfinished = matches!(front_of(&state.input), RecordFront::Partial { .. });
        let waits_for_more = is_unfinished && !state.is_reading && is_behind(state.input_since);
        output + if waits_for_more { state.input.len() } else { 0 }
    }

    /// Closes the connection. Requests in progress complete, but get no reply.
    pub(super) fn close(&self) {
        self.close_locked(&mut self.state.lock());
    }

    fn close_locked(&self, state: &mut NfsConnectionState) {
        if std::mem::replace(&mut state.is_closed, true) {
            return;
        }
        self.count_unfinished(state, 0);
        let queued: usize = state.output.drain(..).map(|reply| reply.len()).sum();
        let held = queued + std::mem::take(&mut state.input).len();
        self.give_back(held);
        let _ = epoll::delete(&self.ground.epoll, &self.socket);
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub(super) fn counts(&self) -> ([u64; 3], usize) {
        let in_flight = self.state.lock().in_flight;
        (self.totals(), in_flight)
    }

    pub(super) fn totals(&self) -> [u64; 3] {
        self.counts.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(super) fn count_for_test(&self, counts: [u64; 3]) {
        for (own, count) in self.counts.iter().zip(counts) {
            own.store(count, Ordering::Relaxed);
        }
    }

    pub(super) fn answered_bytes(&self) -> u64 {
        self.counts[2].load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

impl ReceivedInput<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn begin_request(&mut self, bytes: usize) {
        self.connection.begin_request(bytes);
        self.begun += bytes;
    }

    /// Puts back the bytes of requests not begun. Returns the others.
    pub(super) fn put_back(mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.begun);
        let begun = std::mem::take(&mut self.bytes);
        self.begun = 0;
        self.connection.put_back(rest);
        begun
    }
}

impl Drop for ReceivedInput<'_> {
    fn drop(&mut self) {
        self.connection.give_back(self.bytes.len() - self.begun);
    }
}

impl Drop for NfsConnection {
    fn drop(&mut self) {
        self.set_stranger(false);
    }
}

impl ReplySink for NfsConnection {
    /// Leaves the reply to the reader, if there is one, so that a batch is sent together.
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

fn send(mut socket: &TcpStream, batch: &[Vec<u8>], sent: usize) -> std::io::Result<usize> {
    let first = batch.first().map_or(&[][..], |first| &first[sent..]);
    let rest = batch.iter().skip(1).map(Vec::as_slice);
    let slices: Vec<IoSlice<'_>> = std::iter::once(first).chain(rest).map(IoSlice::new).collect();
    match socket.write_vectored(&slices) {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        done => done,
    }
}

fn is_longer(since: Option<Instant>, now: Instant, most: Duration) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) > most)
}

fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The largest read holds the longest record.
const _: () = assert!(RECORD_BYTES_MAX + MARK_BYTES < 2 << 20);

#[cfg(test)]
pub(super) mod tests;
