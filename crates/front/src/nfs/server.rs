//! Threads that serve connections.
//!
//! All of them wait for the same events, and whoever gets one does all of what it is about: a new
//! connection, or requests and their answers. So a request costs no change of threads. Requests
//! that come together are served together: their answers go in one write, and what they changed is
//! committed when all of them are done.
//!
//! # Invariants
//! - NV1: No commit waits behind that of another file system. A thread that commits may be kept, as
//!   the leader, for as long as others come with theirs, or by a device: what it has of others is
//!   left to other threads first.
//!
//! # Concurrency
//!
//! One of the threads may be kept as the leader of group commit of each pool, and a part of them
//! may wait for its devices (TU1); the others go on.

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

use super::connection::{Connection, Ground, HELD_BYTES_MAX, Input, Overdue, Taken};
use super::peers::Peers;
use super::rpc::{Front, MARK_BYTES, RECORD_BYTES_MAX, front_of, joined};
use super::service::{Commit, NoCall, ReplySink, Service};
use super::used::Used;
use crate::log_limit::LogLimit;

/// Most threads of a server.
pub const THREADS_MAX: usize = 256;
/// Threads of a server, unless it is told another number: as many as may wait for devices at once.
const THREADS: usize = 16;
/// Most connections: an administrator has that many clients, an attacker has more.
const CONNECTIONS_MAX: usize = 16 << 10;
/// Most connections of one address, unless a server is told another number: one client has a few.
const CONNECTIONS_OF_ONE_MAX: usize = 1024;
/// Idle connections that are closed where the system has no descriptor for another.
const GIVEN_UP_MAX: usize = 16;
/// How long they have asked nothing.
const GIVEN_UP_TIME: Duration = Duration::from_secs(60);
/// Most connections of strangers, which no export admits: `showmount` asks, and is gone.
const STRANGERS_MAX: usize = 64;
/// Most addresses that a server listens at.
const LISTENERS_MAX: usize = 8;
/// Most requests that are answered together.
const BATCH_REQUESTS_MAX: usize = 64;
/// Bytes of answers behind which a batch ends: bounds are asked between batches.
const BATCH_ANSWER_BYTES_MAX: u64 = 1 << 20;
/// How often overdue connections are looked for.
const SWEEP_MS: u64 = 1000;
/// What a thread keeps of a buffer that it has grown: the longest record and what is read behind
/// it, for memory that is asked for anew costs a fault for each page.
const SPARE_BYTES_MAX: usize = RECORD_BYTES_MAX + (64 << 10);
/// What all threads keep of such: where there are many, each keeps less.
const SPARES_BYTES_MAX: usize = HELD_BYTES_MAX / 8;
/// What raises the count of an eventfd(2).
const WAKE: [u8; 8] = 1_u64.to_le_bytes();
/// Token of what ends the threads; listeners have the next, connections those behind.
const STOP: u64 = 0;
const LISTENERS_END: u64 = 16;
/// Token of what says that commits are left.
const LEFT: u64 = LISTENERS_END - 1;
const _: () = assert!(LISTENERS_MAX < 15, "each has a token of its own");

/// How a server is to be.
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

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Something of the system.
    #[error("cannot serve NFS: {0}")]
    System(#[from] std::io::Error),
    /// Fewer addresses.
    #[error("a server listens at {LISTENERS_MAX} addresses at most")]
    Listeners,
}

impl From<rustix::io::Errno> for ServerError {
    fn from(error: rustix::io::Errno) -> ServerError {
        ServerError::System(error.into())
    }
}

/// A machine that is connected, and what came of its connections since the first of them began:
/// what those counted that have ended is in the sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// Which time it is that it is connected: another number, greater, after a time without a
    /// connection, when all is counted from zero again.
    pub since: u64,
    /// Connections.
    pub connections: usize,
    /// Requests that came.
    pub requests: u64,
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of answers.
    pub sent_bytes: u64,
    /// Requests that are not answered yet.
    pub in_flight: usize,
}

struct Shared {
    service: Arc<Service>,
    ground: Arc<Ground>,
    listeners: Vec<TcpListener>,
    connections: Mutex<Peers>,
    next_token: AtomicU64,
    thread_count: usize,
    connections_of_one: usize,
    /// Connections that were refused, or closed for others, since that was last told.
    surplus: AtomicUsize,
    /// Connections that were closed for their unfinished records, in the log.
    unfinished_ended: LogLimit,
    /// Nobody watches a listener: the system had nothing left to accept with.
    is_deaf: AtomicBool,
    /// NV1: commits that are to be run, those of one file system together. Each is of a request in
    /// flight, which are bounded.
    left: Mutex<VecDeque<Vec<Commit>>>,
    has_left: AtomicBool,
    more: OwnedFd,
    /// How often exports had changed when peers were last compared with them.
    compared: AtomicU64,
    stop: OwnedFd,
    is_stopping: AtomicBool,
    started: Instant,
    /// When overdue connections were looked for, in milliseconds after the start.
    swept_ms: AtomicU64,
    panics: AtomicUsize,
}

/// Where a record is that is not served yet.
struct Record {
    range: std::ops::Range<usize>,
    /// Its content, where that came in fragments.
    joined: Option<Vec<u8>>,
}

/// What one thread has served and what of it is to be done still.
struct Done {
    commits: Vec<Commit>,
    used: Used,
}

/// How far the records of a buffer are served: all that were begun.
enum Batch {
    Served,
    /// The last one may take long, and is not.
    Slow(Record),
    /// What is behind is no record.
    Garbage,
}

/// A server that listens. It stops when it is dropped.
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Server {
    /// Serves who comes to `listeners`.
    pub fn start(
        service: Arc<Service>,
        listeners: Vec<TcpListener>,
        options: &ServerOptions,
    ) -> Result<Server, ServerError> {
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
        let shared = Arc::new(Shared {
            service,
            ground: Arc::new(Ground::new(epoll)),
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
        let mut server = Server { shared, threads: Vec::new() };
        for number in 0..thread_count {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new().name(format!("nfs-{number}"));
            server.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(server)
    }

    /// Returns how many clients are connected.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// Returns who is connected, by address.
    #[must_use]
    pub fn clients(&self) -> Vec<Client> {
        self.shared.connections.lock().clients()
    }

    /// Returns how many bytes of requests and answers are held.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.shared.ground.held_bytes.load(Ordering::Relaxed)
    }

    /// Returns how many requests have made a thread panic: each is a bug.
    #[must_use]
    pub fn panic_count(&self) -> usize {
        self.shared.panics.load(Ordering::Relaxed)
    }

    /// Closes connections that are overdue at `now`. The server does so itself, once a second.
    pub fn sweep(&self, now: Instant) {
        self.shared.sweep_at(now);
    }

    /// Returns what answers.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.shared.service
    }
}

impl Drop for Server {
    /// Takes no more requests, and waits for those that are being done.
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // The count is not at its end, so it is raised.
        let _ = rustix::io::write(&self.shared.stop, &WAKE);
        for thread in self.threads.drain(..) {
            // Its panics are caught.
            let _ = thread.join();
        }
        self.shared.run_left();
        for connection in self.shared.connections.lock().values() {
            connection.close();
        }
    }
}

impl Shared {
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
            // Its count is of no use but to wake.
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
                    // Asked again at once it would say the same: the sweep makes room.
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
        let connection = Arc::new(Connection::new(&self.ground, socket, peer, token));
        connection.set_stranger(is_stranger);
        connections.insert(Arc::clone(&connection));
        drop(connections);
        if is_ready.and_then(|()| connection.watch()).is_err() {
            self.connections.lock().remove(token);
        }
    }

    /// Returns whether one more connection may be open, and closes another for it where a bound is
    /// reached: of its address (NC6), of strangers, of all.
    fn make_room_for(&self, connections: &mut Peers, address: IpAddr, is_stranger: bool) -> bool {
        // PE1: only where there are too many is each looked at.
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

    /// Closes the connection that has asked nothing for the longest time, among those that `of`
    /// chooses. Returns whether there was one.
    fn close_idlest(&self, connections: &mut Peers, of: impl Fn(&Arc<Connection>) -> bool) -> bool {
        self.surplus.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let chosen = connections.values().filter(|it| of(it));
        let idle = chosen.filter_map(|it| Some((it.idle_since(now)?, it.token)));
        let idlest = idle.min().and_then(|(_, token)| connections.remove(token));
        idlest.inspect(|idlest| end(idlest, Overdue::IdlestOfMany)).is_some()
    }

    /// NC7: closes what has left too much of its requests unfinished, after `connection` was read.
    fn bound_unfinished(&self, connection: &Connection) {
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

    fn end_unfinished(&self, connection: &Connection) {
        let others = self.unfinished_ended.pass(Instant::now());
        if let (Some(others), peer) = (others, connection.peer) {
            let words = Overdue::UnfinishedMost.words();
            tracing::warn!(%peer, others, "NFS: a connection is closed: {words}");
        }
        connection.close();
    }

    /// Has the listeners watched again where the system had no descriptor left, and gives up
    /// connections that ask nothing.
    fn hear_again(&self, connections: &mut Peers, now: Instant) {
        let is_idle = |since: &Instant| now.saturating_duration_since(*since) > GIVEN_UP_TIME;
        let idle = connections
            .values()
            .filter_map(|it| Some((it.idle_since(now).filter(is_idle)?, it.token)));
        let mut idle: Vec<(Instant, u64)> = idle.collect();
        idle.sort_unstable();
        for (_, token) in idle.into_iter().take(GIVEN_UP_MAX) {
            if let Some(connection) = connections.remove(token) {
                end(&connection, Overdue::IdlestOfMany);
            }
        }
        for (token, listener) in (STOP + 1..).zip(&self.listeners) {
            self.listen(listener, token);
        }
    }

    /// Serves what a connection has sent.
    fn serve(&self, connection: &Arc<Connection>, spare: &mut Vec<u8>) {
        let mut input = match connection.take_input(spare) {
            Input::Bytes(taken) => taken,
            Input::Nothing => return,
            Input::End => return connection.close(),
        };
        let sink: Arc<dyn ReplySink> = Arc::<Connection>::clone(connection);
        let used = Used::of(self.service.turns_of(self.thread_count));
        let mut done = Done { commits: Vec::new(), used };
        let slow = match self.serve_batch(connection, &mut input, &sink, &mut done) {
            Batch::Served => None,
            Batch::Slow(record) => Some(record),
            Batch::Garbage => {
                drop(input);
                // What was done is remembered, for whoever asks again on another connection.
                self.commit(done.commits);
                return connection.close();
            }
        };
        // What is behind a request that may take long is another thread's.
        let mut input = input.put_back();
        self.bound_unfinished(connection);
        self.commit(done.commits);
        if let Some(record) = slow {
            let joined = record.joined;
            let bytes = joined.as_deref().unwrap_or(&input[record.range]);
            match self.service.serve_with(connection.peer, bytes, &sink, &mut done.used) {
                Ok(commit) => commit.into_iter().for_each(Commit::run),
                Err(NoCall) => connection.close(),
            }
        }
        input.clear();
        input.shrink_to(SPARE_BYTES_MAX.min(SPARES_BYTES_MAX / self.thread_count));
        if input.capacity() > spare.capacity() {
            *spare = input;
        }
        done.used.run_deferred_work();
    }

    /// Has the answers of a batch sent when what was done is durable.
    fn commit(&self, commits: Vec<Commit>) {
        let mut groups = Commit::by_file_system(commits);
        let Some(own) = groups.pop() else { return };
        if !groups.is_empty() {
            let mut left = self.left.lock();
            left.extend(groups);
            self.has_left.store(true, Ordering::Release);
            drop(left);
            self.wake_for_left();
        }
        Commit::run_together(own);
    }

    /// NV1: runs commits that others have left.
    fn run_left(&self) {
        while self.has_left.load(Ordering::Acquire) {
            let mut left = self.left.lock();
            let next = left.pop_front();
            let are_more = !left.is_empty();
            self.has_left.store(are_more, Ordering::Release);
            drop(left);
            if are_more {
                // This thread may be kept by the first.
                self.wake_for_left();
            }
            let Some(next) = next else { return };
            let run = catch_unwind(AssertUnwindSafe(|| Commit::run_together(next)));
            if run.is_err() {
                self.panics.fetch_add(1, Ordering::Relaxed);
                tracing::error!("NFS: a commit made the server panic");
            }
        }
    }

    fn wake_for_left(&self) {
        // Its count is read by whoever wakes, and far from its end.
        let _ = rustix::io::write(&self.more, &WAKE);
    }

    /// Serves the records at the front of `input`, up to one that may take long.
    fn serve_batch(
        &self,
        connection: &Connection,
        input: &mut Taken<'_>,
        sink: &Arc<dyn ReplySink>,
        done: &mut Done,
    ) -> Batch {
        let mut at = 0;
        let before = connection.answered_bytes();
        for _ in 0..BATCH_REQUESTS_MAX {
            // NC2.
            if connection.answered_bytes() - before > BATCH_ANSWER_BYTES_MAX {
                break;
            }
            let front = &input.bytes()[at..];
            let (length, joined) = match front_of(front) {
                Front::Partial { .. } => return Batch::Served,
                Front::Garbage => return Batch::Garbage,
                Front::Whole { end } => (end, None),
                Front::Fragments { end } => (end, Some(joined(front))),
            };
            let range = at + MARK_BYTES..at + length;
            let is_slow =
                Service::may_take_long(joined.as_deref().unwrap_or(&input.bytes()[range.clone()]));
            if is_slow && !done.commits.is_empty() {
                // Commits may keep this thread for as long as others come with theirs: what is not
                // begun yet goes back, and is another's.
                return Batch::Served;
            }
            at = range.end;
            input.begin_request(length);
            if is_slow {
                return Batch::Slow(Record { range, joined });
            }
            let bytes = joined.as_deref().unwrap_or(&input.bytes()[range]);
            match self.service.serve_with(connection.peer, bytes, sink, &mut done.used) {
                Ok(commit) => done.commits.extend(commit),
                Err(NoCall) => return Batch::Garbage,
            }
        }
        Batch::Served
    }

    /// Closes connections that are overdue, once in a while.
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

    /// NC4.
    fn make_room(&self, connections: &Peers, now: Instant) {
        let bytes_of = |connection: &Arc<Connection>| connection.bytes_in_the_way(now);
        let mut all: Vec<_> = connections.values().map(|it| (bytes_of(it), it)).collect();
        all.retain(|(bytes, _)| *bytes > 0);
        all.sort_unstable_by_key(|(bytes, connection)| (*bytes, connection.token));
        while self.ground.is_full()
            && let Some((_, most)) = all.pop()
        {
            end(most, Overdue::InTheWay);
        }
    }
}

/// Whether a connection failed before it was accepted, and not what accepts.
fn is_of_a_peer(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

/// Closes a connection, and says why.
fn end(connection: &Connection, why: Overdue) {
    let (peer, words) = (connection.peer, why.words());
    match why {
        Overdue::IdleStranger | Overdue::IdlestOfMany => {
            tracing::debug!(%peer, "NFS: a connection is closed: {words}")
        }
        Overdue::TakesNoAnswer
        | Overdue::EndsNoRecord
        | Overdue::InTheWay
        | Overdue::UnfinishedMost => {
            tracing::warn!(%peer, "NFS: a connection is closed: {words}");
        }
    }
    connection.close();
}

#[cfg(test)]
mod tests;
