//! The threads that serve connections.
//!
//! All threads wait for the same events, and each handles its event completely: a new connection,
//! or requests and their replies. So a request needs no thread switch. Requests that arrive
//! together are served as a batch, with one commit and one write of replies.
//!
//! # Invariants
//! - NV1: No commit waits behind that of another file system. Further commits or a device may keep
//!   a committing thread as the leader. So it first leaves other file systems' commits to other
//!   threads.
//!
//! # Concurrency
//!
//! Each pool may occupy one thread as its group commit leader, and a bounded number of threads in
//! waits for its devices (TU1). The other threads continue.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::connection::{
    ConnectionContext, ConnectionInput, HELD_BYTES_MAX, NfsConnection, OverdueReason, ReceivedInput,
};
use super::peers::Peers;
use super::rpc::{MARK_BYTES, RECORD_BYTES_MAX, RecordFront, front_of, joined};
use super::service::{DeferredReply, NotCallError, ReplySink, Service};
use super::used::ExportUse;
use crate::log_limit::LogLimit;

/// Most threads of a server.
pub const THREADS_MAX: usize = 256;
/// Default number of threads: at most this many requests wait for devices.
const THREADS: usize = 16;
/// Most connections. Legitimate clients are fewer.
const CONNECTIONS_MAX: usize = 16 << 10;
/// Default limit per address. Clients have a few connections.
const CONNECTIONS_OF_ONE_MAX: usize = 1024;
/// Most connections closed at once if descriptors run out. They were idle for [`GIVEN_UP_TIME`].
const GIVEN_UP_MAX: usize = 16;
const GIVEN_UP_TIME: Duration = Duration::from_secs(60);
/// Most connections of strangers. `showmount` disconnects at once.
const STRANGERS_MAX: usize = 64;
const LISTENERS_MAX: usize = 8;
const BATCH_REQUESTS_MAX: usize = 64;
/// Bytes of replies that end a batch. Memory bounds are checked only between batches.
const BATCH_ANSWER_BYTES_MAX: u64 = 1 << 20;
const SWEEP_MS: u64 = 1000;
/// Most memory kept of a thread's buffer, as fresh memory costs page faults: the longest record and
/// some bytes behind it.
const SPARE_BYTES_MAX: usize = RECORD_BYTES_MAX + (64 << 10);
/// Most memory kept in buffers of all threads together.
const SPARES_BYTES_MAX: usize = HELD_BYTES_MAX / 8;
const WAKE: [u8; 8] = 1_u64.to_le_bytes();
/// Token of the stop event. Listeners have the tokens after it, connections those from
/// `LISTENERS_END` on.
const STOP: u64 = 0;
const LISTENERS_END: u64 = 16;
/// Token of the event for commits left by others (NV1).
const LEFT: u64 = LISTENERS_END - 1;
const _: () = assert!(LISTENERS_MAX < 15, "each has a token of its own");

/// Options of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Threads.
    pub thread_count: usize,
    /// Most connections of one address.
    pub connections_of_one: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions { thread_count: THREADS, connections_of_one: CONNECTIONS_OF_ONE_MAX }
    }
}

/// Error of starting a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A system call failed.
    #[error("cannot serve NFS: {0}")]
    System(#[from] std::io::Error),
    /// Too many addresses.
    #[error("a server listens at {LISTENERS_MAX} addresses at most")]
    Listeners,
}

impl From<rustix::io::Errno> for ServerError {
    fn from(error: rustix::io::Errno) -> ServerError {
        ServerError::System(error.into())
    }
}

/// A connected client, with totals since it last had no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedClient {
    /// Address.
    pub address: IpAddr,
    /// A number that grows each time the client connects again.
    pub since: u64,
    /// Open connections.
    pub connections: usize,
    /// Requests received.
    pub requests: u64,
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of replies.
    pub sent_bytes: u64,
    /// Unanswered requests.
    pub in_flight: usize,
}

struct NfsServerInner {
    service: Arc<Service>,
    ground: Arc<ConnectionContext>,
    listeners: Vec<TcpListener>,
    connections: Mutex<Peers>,
    next_token: AtomicU64,
    thread_count: usize,
    connections_of_one: usize,
    /// Connections refused or closed at a bound, since the last log line.
    surplus: AtomicUsize,
    unfinished_ended: LogLimit,
    /// The listeners are not armed, since the system had no descriptors left.
    is_deaf: AtomicBool,
    /// Commits left to other threads, by file system (NV1). Bounded by the requests in flight.
    left: Mutex<VecDeque<Vec<DeferredReply>>>,
    has_left: AtomicBool,
    more: OwnedFd,
    /// The exports' change count when connections were last checked for strangers.
    compared: AtomicU64,
    stop: OwnedFd,
    is_stopping: AtomicBool,
    started: Instant,
    swept_ms: AtomicU64,
    panics: AtomicUsize,
}

struct RpcRecord {
    range: std::ops::Range<usize>,
    /// Joined record of several fragments.
    joined: Option<Vec<u8>>,
}

struct BatchCommits {
    commits: Vec<DeferredReply>,
    used: ExportUse,
}

enum BatchOutcome {
    Served,
    /// The last record may take long, and was not executed.
    Slow(RpcRecord),
    /// No record follows.
    Garbage,
}

/// A running server. Dropping it stops it.
pub struct NfsServer {
    shared: Arc<NfsServerInner>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for NfsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl NfsServer {
    /// Starts a server for connections to `listeners`.
    pub fn start(
        service: Arc<Service>,
        listeners: Vec<TcpListener>,
        options: &ServerOptions,
    ) -> Result<NfsServer, ServerError> {
        if listeners.len() > LISTENERS_MAX {
            return Err(ServerError::Listeners);
        }
        let thread_count = options.thread_count.clamp(1, THREADS_MAX);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        let more = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &more, EventData::new_u64(LEFT), EventFlags::IN | EventFlags::ET)?;
        for (token, listener) in (STOP + 1..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            let events = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(&epoll, listener, EventData::new_u64(token), events)?;
        }
        let shared = Arc::new(NfsServerInner {
            service,
            ground: Arc::new(ConnectionContext::new(epoll)),
            listeners,
            connections: Mutex::default(),
            next_token: AtomicU64::new(LISTENERS_END),
            thread_count,
            connections_of_one: options.connections_of_one.max(1),
            surplus: AtomicUsize::new(0),
            unfinished_ended: LogLimit::default(),
            is_deaf: AtomicBool::new(false),
            left: Mutex::default(),
            has_left: AtomicBool::new(false),
            more,
            compared: AtomicU64::new(0),
            stop,
            is_stopping: AtomicBool::new(false),
            started: Instant::now(),
            swept_ms: AtomicU64::new(0),
            panics: AtomicUsize::new(0),
        });
        let mut server = NfsServer { shared, threads: Vec::new() };
        for number in 0..thread_count {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new().name(format!("nfs-{number}"));
            server.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(server)
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// Returns the connected clients, by address.
    #[must_use]
    pub fn clients(&self) -> Vec<ConnectedClient> {
        self.shared.connections.lock().clients()
    }

    /// Returns the bytes of requests and replies held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.shared.ground.held_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that caused a panic.
    #[must_use]
    pub fn panic_count(&self) -> usize {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Closes connections overdue at `now`. The server does so once a second.
    pub fn sweep(&self, now: Instant) {
        self.shared.sweep_at(now);
    }

    /// Returns the service.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.shared.service
    }
}

impl Drop for NfsServer {
    /// Stops accepting requests, and waits for those in progress.
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // The counter cannot overflow.
        let _ = rustix::io::write(&self.shared.stop, &WAKE);
        for thread in self.threads.drain(..) {
            // Panics are caught in the thread.
            let _ = thread.join();
        }
        self.shared.run_left();
        for connection in self.shared.connections.lock().values() {
            connection.close();
        }
    }
}

impl NfsServerInner {
    fn work(&self) {
        let mut spare = Vec::new();
        let mut events = Vec::with_capacity(1);
        let patience = Timespec { tv_sec: 1, tv_nsec: 0 };
        while !self.is_stopping.load(Ordering::Acquire) {
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.ground.epoll, room, Some(&patience)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "NFS: cannot wait for requests");
                    return;
                }
            }
            for event in &events {
                self.handle(event.data.u64(), &mut spare);
            }
            self.run_left();
            self.sweep();
        }
    }

    fn handle(&self, token: u64, spare: &mut Vec<u8>) {
        if token == STOP {
            return;
        }
        if token == LEFT {
            // Resets the event. Its count has no meaning.
            let _ = rustix::io::read(&self.more, &mut [0; 8]);
            return;
        }
        let listener = usize::try_from(token - 1).ok().and_then(|at| self.listeners.get(at));
        if let Some(listener) = listener {
            self.accept(listener, token);
            return;
        }
        let connection = self.connections.lock().get(token).map(Arc::clone);
        let Some(connection) = connection else { return };
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&connection, spare)));
        if served.is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!(peer = %connection.peer, "NFS: a request made the server panic");
            connection.close();
        }
        if connection.is_closed() {
            self.connections.lock().remove(token);
        }
    }

    fn accept(&self, listener: &TcpListener, token: u64) {
        loop {
            match listener.accept() {
                Ok((socket, peer)) => self.welcome(socket, peer),
                Err(error) if is_of_a_peer(&error) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    // An immediate retry would fail too. The sweep frees descriptors.
                    tracing::warn!(%error, "NFS: cannot accept a connection");
                    self.is_deaf.store(true, Ordering::Release);
                    return;
                }
            }
        }
        self.listen(listener, token);
    }

    fn listen(&self, listener: &TcpListener, token: u64) {
        let events = EventFlags::IN | EventFlags::ONESHOT;
        let data = EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.ground.epoll, listener, data, events) {
            tracing::error!(%error, "NFS: cannot listen any more");
        }
    }

    fn welcome(&self, socket: TcpStream, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let mut connections = self.connections.lock();
        let is_stranger = !self.service.admits(peer);
        if !self.make_room_for(&mut connections, peer.ip(), is_stranger) {
            return;
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let is_ready = socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_nodelay(true))
            .and_then(|()| Ok(rustix::net::sockopt::set_socket_keepalive(&socket, true)?));
        let connection = Arc::new(NfsConnection::new(&self.ground, socket, peer, token));
        connection.set_stranger(is_stranger);
        connections.insert(Arc::clone(&connection));
        drop(connections);
        if is_ready.and_then(|()| connection.watch()).is_err() {
            self.connections.lock().remove(token);
        }
    }

    /// Returns whether another connection is allowed. At a bound (for an address: NC6), closes an
    /// idle one.
    fn make_room_for(&self, connections: &mut Peers, address: IpAddr, is_stranger: bool) -> bool {
        // PE1: searches all connections only at a bound.
        if connections.count_of(address) >= self.connections_of_one
            && !self.close_idlest(connections, |it| it.peer.ip() == address)
        {
            return false;
        }
        if is_stranger
            && self.ground.strangers.load(Ordering::Relaxed) >= STRANGERS_MAX
            && !self.close_idlest(connections, |it| it.is_stranger())
        {
            return false;
        }
        connections.len() < CONNECTIONS_MAX || self.close_idlest(connections, |_| true)
    }

    /// Closes the longest idle connection of those chosen by `of`. Returns whether there was one.
    fn close_idlest(
        &self,
        connections: &mut Peers,
        of: impl Fn(&Arc<NfsConnection>) -> bool,
    ) -> bool {
        self.surplus.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let chosen = connections.values().filter(|it| of(it));
        let idle = chosen.filter_map(|it| Some((it.idle_since(now)?, it.token)));
        let idlest = idle.min().and_then(|(_, token)| connections.remove(token));
        idlest.inspect(|idlest| end(idlest, OverdueReason::IdlestOfMany)).is_some()
    }

    /// Enforces the limits of unfinished records after a read from `connection` (NC7).
    fn bound_unfinished(&self, connection: &NfsConnection) {
        if connection.is_stranger_with_much() {
            return self.end_unfinished(connection);
        }
        let past_bound = || self.ground.unfinished.lock().past_bound(connection.peer.ip());
        while let Some(address) = past_bound() {
            let connections = self.connections.lock();
            let of_address = connections.values().filter(|it| it.peer.ip() == address);
            let unfinished = of_address.map(|it| (it.unfinished_bytes(), it.token));
            let most = unfinished.max().filter(|(bytes, _)| *bytes > 0);
            let Some(most) = most.and_then(|(_, token)| connections.get(token)) else { return };
            self.end_unfinished(most);
        }
    }

    fn end_unfinished(&self, connection: &NfsConnection) {
        let others = self.unfinished_ended.pass(Instant::now());
        if let (Some(others), peer) = (others, connection.peer) {
            let words = OverdueReason::UnfinishedMost.words();
            tracing::warn!(%peer, others, "NFS: a connection is closed: {words}");
        }
        connection.close();
    }

    /// Rearms the listeners after descriptors ran out, and closes some idle connections.
    fn hear_again(&self, connections: &mut Peers, now: Instant) {
        let is_idle = |since: &Instant| now.saturating_duration_since(*since) > GIVEN_UP_TIME;
        let idle = connections
            .values()
            .filter_map(|it| Some((it.idle_since(now).filter(is_idle)?, it.token)));
        let mut idle: Vec<(Instant, u64)> = idle.collect();
        idle.sort_unstable();
        for (_, token) in idle.into_iter().take(GIVEN_UP_MAX) {
            if let Some(connection) = connections.remove(token) {
                end(&connection, OverdueReason::IdlestOfMany);
            }
        }
        for (token, listener) in (STOP + 1..).zip(&self.listeners) {
            self.listen(listener, token);
        }
    }

    fn serve(&self, connection: &Arc<NfsConnection>, spare: &mut Vec<u8>) {
        let mut input = match connection.take_input(spare) {
            ConnectionInput::Bytes(taken) => taken,
            ConnectionInput::Nothing => return,
            ConnectionInput::End => return connection.close(),
        };
        let sink: Arc<dyn ReplySink> = Arc::<NfsConnection>::clone(connection);
        let used = ExportUse::of(self.service.turns_of(self.thread_count));
        let mut done = BatchCommits { commits: Vec::new(), used };
        let slow = match self.serve_batch(connection, &mut input, &sink, &mut done) {
            BatchOutcome::Served => None,
            BatchOutcome::Slow(record) => Some(record),
            BatchOutcome::Garbage => {
                drop(input);
                // The replies are cached for retransmissions on another connection.
                self.commit(done.commits);
                return connection.close();
            }
        };
        // Another thread serves the bytes that follow a long request.
        let mut input = input.put_back();
        self.bound_unfinished(connection);
        self.commit(done.commits);
        if let Some(record) = slow {
            let joined = record.joined;
            let bytes = joined.as_deref().unwrap_or(&input[record.range]);
            match self.service.serve_with(connection.peer, bytes, &sink, &mut done.used) {
                Ok(commit) => commit.into_iter().for_each(DeferredReply::run),
                Err(NotCallError) => connection.close(),
            }
        }
        input.clear();
        input.shrink_to(SPARE_BYTES_MAX.min(SPARES_BYTES_MAX / self.thread_count));
        if input.capacity() > spare.capacity() {
            *spare = input;
        }
        done.used.run_deferred_work();
    }

    /// Commits the changes of a batch, whose replies are then sent.
    fn commit(&self, commits: Vec<DeferredReply>) {
        let mut groups = DeferredReply::by_file_system(commits);
        let Some(own) = groups.pop() else { return };
        if !groups.is_empty() {
            let mut left = self.left.lock();
            left.extend(groups);
            self.has_left.store(true, Ordering::Release);
            drop(left);
            self.wake_for_left();
        }
        DeferredReply::run_together(own);
    }

    /// Runs commits left by other threads (NV1).
    fn run_left(&self) {
        while self.has_left.load(Ordering::Acquire) {
            let mut left = self.left.lock();
            let next = left.pop_front();
            let are_more = !left.is_empty();
            self.has_left.store(are_more, Ordering::Release);
            drop(left);
            if are_more {
                // The first commit may keep this thread, so another takes the rest.
                self.wake_for_left();
            }
            let Some(next) = next else { return };
            let run = catch_unwind(AssertUnwindSafe(|| DeferredReply::run_together(next)));
            if run.is_err() {
                self.panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!("NFS: a commit made the server panic");
            }
        }
    }

    fn wake_for_left(&self) {
        // Each wake-up resets the counter, so it cannot overflow.
        let _ = rustix::io::write(&self.more, &WAKE);
    }

    /// Serves the records at the front of `input`, up to one that may take long.
    fn serve_batch(
        &self,
        connection: &NfsConnection,
        input: &mut ReceivedInput<'_>,
        sink: &Arc<dyn ReplySink>,
        done: &mut BatchCommits,
    ) -> BatchOutcome {
        let mut at = 0;
        let before = connection.answered_bytes();
        for _ in 0..BATCH_REQUESTS_MAX {
            // Replies are bounded here (NC2).
            if connection.answered_bytes() - before > BATCH_ANSWER_BYTES_MAX {
                break;
            }
            let front = &input.bytes()[at..];
            let (length, joined) = match front_of(front) {
                RecordFront::Partial { .. } => return BatchOutcome::Served,
                RecordFront::Garbage => return BatchOutcome::Garbage,
                RecordFront::Whole { end } => (end, None),
                RecordFront::Fragments { end } => (end, Some(joined(front))),
            };
            let range = at + MARK_BYTES..at + length;
            let is_slow =
                Service::may_take_long(joined.as_deref().unwrap_or(&input.bytes()[range.clone()]));
            if is_slow && !done.commits.is_empty() {
                // The commits so far may keep this thread. So another thread serves this request.
                return BatchOutcome::Served;
            }
            at = range.end;
            input.begin_request(length);
            if is_slow {
                return BatchOutcome::Slow(RpcRecord { range, joined });
            }
            let bytes = joined.as_deref().unwrap_or(&input.bytes()[range]);
            match self.service.serve_with(connection.peer, bytes, sink, &mut done.used) {
                Ok(commit) => done.commits.extend(commit),
                Err(NotCallError) => return BatchOutcome::Garbage,
            }
        }
        BatchOutcome::Served
    }

    fn sweep(&self) {
        let now = Instant::now();
        let now_ms = u64::try_from((now - self.started).as_millis()).unwrap_or(u64::MAX);
        let swept_ms = self.swept_ms.load(Ordering::Relaxed);
        let is_due = now_ms.saturating_sub(swept_ms) >= SWEEP_MS;
        let exchange =
            |to| self.swept_ms.compare_exchange(swept_ms, to, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && exchange(now_ms).is_ok() {
            self.sweep_at(now);
        }
    }

    fn sweep_at(&self, now: Instant) {
        let changes = self.service.changes();
        let is_changed = self.compared.swap(changes, Ordering::Relaxed) != changes;
        let mut connections = self.connections.lock();
        if is_changed {
            for connection in connections.values() {
                connection.set_stranger(!self.service.admits(connection.peer));
            }
        }
        if self.ground.is_full() {
            self.make_room(&connections, now);
        }
        connections.retain(|connection| {
            if let Some(why) = connection.overdue(now) {
                end(connection, why);
            }
            !connection.is_closed()
        });
        if self.is_deaf.swap(false, Ordering::AcqRel) {
            self.hear_again(&mut connections, now);
        }
        drop(connections);
        let surplus = self.surplus.swap(0, Ordering::Relaxed);
        if surplus > 0 {
            let of_one = self.connections_of_one;
            tracing::warn!(
                "NFS: {surplus} connections were refused, or made others of their address be \
                 closed: {CONNECTIONS_MAX} can be open, {of_one} of them of one address"
            );
        }
    }

    /// Closes lagging connections that hold much memory (NC4).
    fn make_room(&self, connections: &Peers, now: Instant) {
        let bytes_of = |connection: &Arc<NfsConnection>| connection.bytes_in_the_way(now);
        let mut all: Vec<_> = connections.values().map(|it| (bytes_of(it), it)).collect();
        all.retain(|(bytes, _)| *bytes > 0);
        all.sort_unstable_by_key(|(bytes, connection)| (*bytes, connection.token));
        while self.ground.is_full()
            && let Some((_, most)) = all.pop()
        {
            end(most, OverdueReason::InTheWay);
        }
    }
}

/// Returns whether the error concerns only the accepted connection, not the listener.
fn is_of_a_peer(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

fn end(connection: &NfsConnection, why: OverdueReason) {
    let (peer, words) = (connection.peer, why.words());
    match why {
        OverdueReason::IdleStranger | OverdueReason::IdlestOfMany => {
            tracing::debug!(%peer, "NFS: a connection is closed: {words}")
        }
        OverdueReason::TakesNoAnswer
        | OverdueReason::EndsNoRecord
        | OverdueReason::InTheWay
        | OverdueReason::UnfinishedMost => {
            tracing::warn!(%peer, "NFS: a connection is closed: {words}");
        }
    }
    connection.close();
}

#[cfg(test)]
mod tests;
