//! Threads that serve connections.
//!
//! All of them wait for the same events, and whoever gets one does all of what it is about: a new
//! connection, or requests and their answers. So a request costs no change of threads. Requests
//! that come together are served together: their answers go in one write, and what they changed is
//! committed when all of them are done.
//!
//! # Concurrency
//!
//! One of the threads may be kept as the leader of group commit, and any may wait for a device; the
//! others go on.

use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::connection::{Connection, Ground, Input};
use super::rpc::{Front, MARK_BYTES, front_of, joined};
use super::service::{Commit, NoCall, ReplySink, Service};

/// Most threads of a server.
pub const THREADS_MAX: usize = 256;
/// Threads of a server, unless it is told another number: as many as may wait for devices at once.
const THREADS: usize = 16;
/// Most connections: an administrator has that many clients, an attacker has more.
const CONNECTIONS_MAX: usize = 16 << 10;
/// Most addresses that a server listens at.
const LISTENERS_MAX: usize = 8;
/// Most requests that are answered together.
const BATCH_REQUESTS_MAX: usize = 64;
/// How often overdue connections are looked for.
const SWEEP_MS: u64 = 1000;
/// What a thread keeps of a buffer that it has grown.
const SPARE_BYTES_MAX: usize = 256 << 10;
/// What raises the count of an eventfd(2): eight bytes that are not all 0 and not all 255.
const WAKE: [u8; 8] = [1; 8];
/// Token of what ends the threads; listeners have the next, connections those behind.
const STOP: u64 = 0;
const LISTENERS_END: u64 = 16;

/// How a server is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Threads.
    pub thread_count: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions { thread_count: THREADS }
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

/// A machine that is connected, and what came of its connections since they began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
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

impl Client {
    fn new(address: IpAddr) -> Client {
        Client {
            address,
            connections: 0,
            requests: 0,
            received_bytes: 0,
            sent_bytes: 0,
            in_flight: 0,
        }
    }
}

struct Shared {
    service: Arc<Service>,
    ground: Arc<Ground>,
    listeners: Vec<TcpListener>,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next_token: AtomicU64,
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

/// How far the records of a buffer are served: up to `end`.
enum Batch {
    Served {
        end: usize,
    },
    /// The last one may take long, and is not.
    Slow {
        record: Record,
        end: usize,
    },
    /// What is behind is no record.
    Garbage {
        end: usize,
    },
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
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &stop, EventData::new_u64(STOP), EventFlags::IN)?;
        for (token, listener) in (STOP + 1..).zip(&listeners) {
            listener.set_nonblocking(true)?;
            let events = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(&epoll, listener, EventData::new_u64(token), events)?;
        }
        let shared = Arc::new(Shared {
            service,
            ground: Arc::new(Ground { epoll, held_bytes: AtomicUsize::new(0) }),
            listeners,
            connections: Mutex::default(),
            next_token: AtomicU64::new(LISTENERS_END),
            stop,
            is_stopping: AtomicBool::new(false),
            started: Instant::now(),
            swept_ms: AtomicU64::new(0),
            panics: AtomicUsize::new(0),
        });
        let mut server = Server { shared, threads: Vec::new() };
        for number in 0..options.thread_count.clamp(1, THREADS_MAX) {
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
        let mut clients: BTreeMap<IpAddr, Client> = BTreeMap::new();
        for connection in self.shared.connections.lock().values() {
            let ([requests, received_bytes, sent_bytes], in_flight) = connection.counts();
            let address = connection.peer.ip();
            let client = clients.entry(address).or_insert_with(|| Client::new(address));
            client.connections += 1;
            client.requests += requests;
            client.received_bytes += received_bytes;
            client.sent_bytes += sent_bytes;
            client.in_flight += in_flight;
        }
        clients.into_values().collect()
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
            self.sweep();
        }
    }

    fn handle(&self, token: u64, spare: &mut Vec<u8>) {
        if token == STOP {
            return;
        }
        let listener = usize::try_from(token - 1).ok().and_then(|at| self.listeners.get(at));
        if let Some(listener) = listener {
            self.accept(listener, token);
            return;
        }
        let connection = self.connections.lock().get(&token).map(Arc::clone);
        let Some(connection) = connection else { return };
        let served = catch_unwind(AssertUnwindSafe(|| self.serve(&connection, spare)));
        if served.is_err() {
            self.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!(peer = %connection.peer, "NFS: a request made the server panic");
            connection.close();
        }
        if connection.is_closed() {
            self.connections.lock().remove(&token);
        }
    }

    fn accept(&self, listener: &TcpListener, token: u64) {
        loop {
            match listener.accept() {
                Ok((socket, peer)) => self.welcome(socket, peer),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    // Nothing is left to accept with; who hangs up gives some back.
                    tracing::warn!(%error, "NFS: cannot accept a connection");
                    break;
                }
            }
        }
        let events = EventFlags::IN | EventFlags::ONESHOT;
        let data = EventData::new_u64(token);
        if let Err(error) = epoll::modify(&self.ground.epoll, listener, data, events) {
            tracing::error!(%error, "NFS: cannot listen any more");
        }
    }

    fn welcome(&self, socket: TcpStream, peer: SocketAddr) {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let mut connections = self.connections.lock();
        if connections.len() >= CONNECTIONS_MAX {
            tracing::warn!(%peer, "NFS: {CONNECTIONS_MAX} clients are connected, no more can be");
            return;
        }
        let token = self.next_token.fetch_add(1, Ordering::Relaxed);
        let is_ready = socket
            .set_nonblocking(true)
            .and_then(|()| socket.set_nodelay(true))
            .and_then(|()| Ok(rustix::net::sockopt::set_socket_keepalive(&socket, true)?));
        let connection = Arc::new(Connection::new(&self.ground, socket, peer, token));
        connections.insert(token, Arc::clone(&connection));
        drop(connections);
        if is_ready.and_then(|()| connection.watch()).is_err() {
            self.connections.lock().remove(&token);
        }
    }

    /// Serves what a connection has sent.
    fn serve(&self, connection: &Arc<Connection>, spare: &mut Vec<u8>) {
        let mut input = match connection.take_input(spare) {
            Input::Bytes(bytes) => bytes,
            Input::Nothing => return,
            Input::End => return connection.close(),
        };
        let sink: Arc<dyn ReplySink> = Arc::<Connection>::clone(connection);
        let mut commits = Vec::new();
        let batch = self.serve_batch(connection, &input, &sink, &mut commits);
        let (end, slow) = match batch {
            Batch::Served { end } => (end, None),
            Batch::Slow { record, end } => (end, Some(record)),
            Batch::Garbage { end } => {
                connection.drop_input(input.len() - end);
                // What was done is remembered, for whoever asks again on another connection.
                Commit::run_all(commits);
                return connection.close();
            }
        };
        // What is behind a request that may take long is another thread's.
        connection.put_back(input.split_off(end));
        Commit::run_all(commits);
        if let Some(record) = slow {
            let joined = record.joined;
            let bytes = joined.as_deref().unwrap_or(&input[record.range]);
            match self.service.serve(connection.peer, bytes, &sink) {
                Ok(commit) => commit.into_iter().for_each(Commit::run),
                Err(NoCall) => connection.close(),
            }
        }
        input.clear();
        input.shrink_to(SPARE_BYTES_MAX);
        if spare.capacity() == 0 {
            *spare = input;
        }
        self.service.run_deferred_work();
    }

    /// Serves the records at the front of `input`, up to one that may take long.
    fn serve_batch(
        &self,
        connection: &Connection,
        input: &[u8],
        sink: &Arc<dyn ReplySink>,
        commits: &mut Vec<Commit>,
    ) -> Batch {
        let mut at = 0;
        for _ in 0..BATCH_REQUESTS_MAX {
            let (length, joined) = match front_of(&input[at..]) {
                Front::Partial { .. } => return Batch::Served { end: at },
                Front::Garbage => return Batch::Garbage { end: at },
                Front::Whole { end } => (end, None),
                Front::Fragments { end } => (end, Some(joined(&input[at..]))),
            };
            let range = at + MARK_BYTES..at + length;
            let bytes = joined.as_deref().unwrap_or(&input[range.clone()]);
            let is_slow = Service::may_take_long(bytes);
            if is_slow && !commits.is_empty() {
                // Commits may keep this thread for as long as others come with theirs: what is not
                // begun yet goes back, and is another's.
                return Batch::Served { end: at };
            }
            at = range.end;
            connection.begin_request(length);
            if is_slow {
                return Batch::Slow { record: Record { range, joined }, end: at };
            }
            match self.service.serve(connection.peer, bytes, sink) {
                Ok(commit) => commits.extend(commit),
                Err(NoCall) => return Batch::Garbage { end: at },
            }
        }
        Batch::Served { end: at }
    }

    /// Closes connections that are overdue, once in a while.
    fn sweep(&self) {
        let now = Instant::now();
        let now_ms = u64::try_from((now - self.started).as_millis()).unwrap_or(u64::MAX);
        let swept_ms = self.swept_ms.load(Ordering::Relaxed);
        let is_due = now_ms.saturating_sub(swept_ms) >= SWEEP_MS;
        let exchange =
            |to| self.swept_ms.compare_exchange(swept_ms, to, Ordering::Relaxed, Ordering::Relaxed);
        if !is_due || exchange(now_ms).is_err() {
            return;
        }
        let mut connections = self.connections.lock();
        connections.retain(|_, connection| {
            if connection.is_overdue(now) {
                tracing::warn!(peer = %connection.peer, "NFS: a client takes no answers, closed");
                connection.close();
            }
            !connection.is_closed()
        });
    }
}
