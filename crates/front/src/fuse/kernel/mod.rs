//! The transport to the kernel: the FUSE protocol on /dev/fuse.
//!
//! ```text
//!   attach       a connection under a directory          fuse_kernel  the protocol's bytes
//!   init         what both sides agree on                 decode       bytes to requests
//!   device       read a message, write a reply            encode       replies to bytes
//!   poll         how long to look before sleeping         exchange     one message, one reply
//!   inbox        where a message is read to               leader       one thread for one client
//!   latency      keeps processors from halting         notices      what others have changed
//!   stop         the end of what is not unmounted
//! ```
//!
//! # Concurrency
//!
//! One thread for each descriptor of the connection (`FUSE_DEV_IOC_CLONE`): it reads a message,
//! asks the server, writes the reply; that of a sync is written by whoever learns that it is
//! over. Nothing else is shared but the server. A thread holds room for the
//! largest message and a buffer for the largest reply, of which only what was ever used takes
//! memory. The data of a WRITE may be kept by the file system, which bounds how much that is.
//!
//! A panic in the file system costs the request (EX1). The loop outside has nothing that panics; if
//! it did, the other threads would go on.

mod attach;
mod decode;
mod device;
mod encode;
pub(super) mod exchange;
mod fuse_kernel;
pub(super) mod inbox;
mod init;
mod latency;
mod leader;
pub(super) mod notices;
mod poll;
pub(super) mod stop;
mod uring;

use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerocopy::IntoBytes;

pub(super) use self::attach::FLAGS_DEFAULT;
pub(super) use self::fuse_kernel::opcode;

use self::decode::{Dialect, Envelope};
use self::device::{Device, FIRST_REQUEST_TIME, Read};
use self::exchange::{Exchange, Replies, ReplyParts, refusal};
use self::inbox::{Inbox, Incoming};
use self::init::{Answer, Requested};
use self::latency::Latency;
use self::leader::{Clients, Lead, ThreadNo};
use self::notices::Notices;
use self::poll::{Crew, GatherPolicy, PollPolicy};
use self::stop::Stop;
use self::uring::{Queues, Serving};
use super::options::{CpuLatency, DirectIo, THREADS_MAX};
use super::transport::{Transport, TransportError, TransportUsed};
use super::{MountOptions, Server, mountpoint};

/// Bytes of a buffer for INIT, which is short; the kernel refuses less than 8 KiB.
const INIT_BYTES_MAX: usize = 8192;

/// How often the handshake may begin again: once for a kernel of a later major version.
const INIT_TRIES_MAX: usize = 2;

/// A mounted directory, whose connection is agreed upon and not yet served.
#[derive(Debug)]
pub(super) struct KernelTransport {
    device: Arc<Device>,
    dialect: Dialect,
    thread_count: usize,
    poll_time: Duration,
    cpu_latency: CpuLatency,
    queues: Option<Queues>,
    used: Arc<TransportUsed>,
    /// Ends it; `None`: who unmounts it does.
    stop: Option<Arc<Stop>>,
}

impl KernelTransport {
    /// Mounts `directory`, an absolute path, and shakes hands with the kernel. Requests wait until
    /// [`Transport::serve`].
    pub(super) fn mount(
        directory: &Path,
        options: &MountOptions,
        server: &Server,
    ) -> io::Result<KernelTransport> {
        // Before the connection: the kernel offers queues only if they are turned on.
        let plan = uring::plan(options.transport);
        let device = attach::attach(directory, options)?;
        // What cannot be served must not stay in the way.
        KernelTransport::agree(device, plan, options, server)
            .inspect_err(|_| drop(mountpoint::detach(directory)))
    }

    /// Takes a connection over that somebody else has put under a directory, and shakes hands.
    pub(super) fn take(
        connection: OwnedFd,
        options: &MountOptions,
        server: &Server,
    ) -> io::Result<KernelTransport> {
        let device = Device::from_descriptor(connection);
        device.check()?;
        if !server.is_of_one_user() {
            return KernelTransport::agree(device, uring::plan(options.transport), options, server);
        }
        // Whoever has a copy of his descriptor says whether that blocks.
        let device = device.cloned()?;
        // The kernel lets go of queues when the connection ends, which is not ours to end.
        let plan = Err("a mounter's mount has none".to_owned());
        let transport = KernelTransport::agree(device, plan, options, server)?;
        Ok(KernelTransport { stop: Some(Arc::new(Stop::new()?)), ..transport })
    }

    fn agree(
        device: Device,
        plan: Result<uring::Plan, String>,
        options: &MountOptions,
        server: &Server,
    ) -> io::Result<KernelTransport> {
        let queues = plan.and_then(|plan| {
            Queues::new(&device, plan).map_err(|error| format!("io_uring is refused: {error}"))
        });
        let requested = Requested {
            has_writeback_cache: options.has_writeback_cache,
            has_acls: server.has_acls(),
            has_queues: queues.is_ok(),
            is_shared: server.viewer().is_some(),
            has_direct_io: options.direct_io != DirectIo::Asked,
            is_of_one_user: server.is_of_one_user(),
        };
        let dialect = shake_hands(&device, requested)?;
        let queues = queues.and_then(|queues| match dialect.has_queues {
            true => Ok(queues),
            false => Err("the kernel does not offer it".to_owned()),
        });
        let used = TransportUsed::new(queues.as_ref().err());
        Ok(KernelTransport {
            device: Arc::new(device),
            dialect,
            thread_count: options.thread_count.clamp(1, THREADS_MAX),
            poll_time: options.poll_time,
            cpu_latency: options.cpu_latency,
            queues: queues.ok(),
            used: Arc::new(used),
            stop: None,
        })
    }

    /// Returns what ends a mount that is not to be unmounted here; `None`: it is to be.
    pub(super) fn stop(&self) -> Option<Arc<Stop>> {
        self.stop.as_ref().map(Arc::clone)
    }

    /// Returns what tells whether the kernel has ended the connection.
    pub(super) fn connection(&self) -> Connection {
        Connection(Arc::downgrade(&self.device))
    }

    /// Returns what tells how the kernel's requests come.
    pub(super) fn used(&self) -> Arc<TransportUsed> {
        Arc::clone(&self.used)
    }
}

/// A connection that is served, seen from outside; it is not kept open.
#[derive(Debug)]
pub(super) struct Connection(Weak<Device>);

impl Connection {
    /// Whether the kernel has ended it, or no thread serves it any more. The kernel does so before
    /// umount(2) returns, the threads learn of it later.
    pub(super) fn has_ended(&self) -> bool {
        self.0.upgrade().is_none_or(|device| device.has_ended())
    }
}

/// Mounts `directory`, an absolute path, and returns the connection, on which nobody spoke yet.
pub(super) fn attach_only(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    attach::attach(directory, options).map(Device::into_descriptor)
}

fn shake_hands(device: &Device, requested: Requested) -> io::Result<Dialect> {
    let mut buffer = vec![0; INIT_BYTES_MAX];
    for _ in 0..INIT_TRIES_MAX {
        let room = &mut [IoSliceMut::new(&mut buffer)];
        let length = match device.read_within(&FIRST_REQUEST_TIME, room)? {
            Read::Message(length) => length,
            Read::Ended => {
                return Err(io::Error::other("the kernel ended the connection at once"));
            }
            Read::Nothing => {
                return Err(io::Error::other("the kernel asks nothing of who serves the mount"));
            }
        };
        let message = buffer.get(..length).unwrap_or_default();
        let Some((unique, answer)) = init::answer(message, requested) else { break };
        let (out, dialect) = match answer {
            Answer::Agreed(out, dialect) => (out, Some(dialect)),
            Answer::Again(out) => (out, None),
            Answer::Refused(errno) => {
                device.send(&ReplyParts { head: &refusal(unique, errno), data: &[] });
                break;
            }
        };
        device.send(&ReplyParts { head: &init::head(unique), data: &[out.as_bytes()] });
        if let Some(dialect) = dialect {
            return Ok(dialect);
        }
    }
    Err(io::Error::other("the kernel's FUSE is too old: Linux 5.4 or later is needed"))
}

impl Replies for Device {
    /// Sends a reply. One that the kernel does not take is our bug: its request gets `EIO`.
    fn send(&self, reply: &ReplyParts<'_>) {
        let Err(error) = self.write(reply) else { return };
        tracing::error!(%error, "the kernel refused a reply");
        let unique = exchange::unique_of(reply.head);
        let refused = refusal(unique, Errno::IO);
        // If this is refused too, nothing waits for it.
        let _ = self.write(&ReplyParts { head: &refused, data: &[] });
    }

    /// Sends a notice. A kernel that has nothing of the file says so, and [`Device::write`] takes
    /// that to be done.
    fn notify(&self, notice: &[u8]) {
        if let Err(error) = self.write(&ReplyParts { head: notice, data: &[] }) {
            tracing::error!(%error, "the kernel refused a notice");
        }
    }
}

impl Transport for KernelTransport {
    fn serve(self: Box<Self>, server: Arc<Server>) -> Result<(), TransportError> {
        // Until it is served no more.
        let _latency = Latency::start(self.cpu_latency, &server)?;
        let KernelTransport {
            device, dialect, thread_count, poll_time, queues, used, stop, ..
        } = *self;
        let replies: Arc<dyn Replies> = Arc::<Device>::clone(&device);
        let _notices = Notices::start(&server, replies)?;
        if let Some(queues) = queues {
            match Serving::start(queues, &server, &device, dialect, thread_count)? {
                Ok(serving) => {
                    let ended = read_device(device, &server, dialect);
                    serving.end();
                    return Ok(ended.and(serving.join())?);
                }
                Err(reason) => used.fall_back(reason),
            }
        }
        let mut devices = Vec::with_capacity(thread_count);
        for _ in 1..thread_count {
            devices.push(Arc::new(device.cloned()?));
        }
        devices.push(device);
        let crew = Arc::new(Crew::new(thread_count));
        let lead = Arc::new(Lead::default());
        let mut workers = Vec::with_capacity(thread_count);
        for (number, device) in (0..).zip(devices) {
            let (crew, lead) = (Arc::clone(&crew), Arc::clone(&lead));
            let shared = (crew, lead, ThreadNo(number));
            let mut worker = Worker::new(device, &server, dialect, poll_time, shared);
            worker.stop = stop.as_ref().map(Arc::clone);
            let name = format!("fuse-{number}");
            workers.push(thread::Builder::new().name(name).spawn(move || worker.run())?);
        }
        let mut result = Ok(());
        for worker in workers {
            let ended =
                worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result = result.and(ended);
        }
        Ok(result?)
    }
}

/// Answers what the kernel sends by no queue.
fn read_device(device: Arc<Device>, server: &Arc<Server>, dialect: Dialect) -> io::Result<()> {
    let shared = (Arc::new(Crew::new(1)), Arc::new(Lead::default()), ThreadNo(0));
    Worker::new(device, server, dialect, Duration::ZERO, shared).run()
}

/// A thread with a descriptor of its own.
struct Worker {
    device: Arc<Device>,
    /// Whether the descriptor is set to wait for messages.
    blocks: bool,
    exchange: Exchange,
    policy: PollPolicy,
    gather: GatherPolicy,
    crew: Arc<Crew>,
    number: ThreadNo,
    lead: Arc<Lead>,
    /// Whether the thread took the lead and has not given it up.
    is_leader: bool,
    /// Messages since then.
    held: u32,
    /// Who asks the leading thread.
    clients: Clients,
    stop: Option<Arc<Stop>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Who stands by must hear that the connection has ended.
        self.lead.leave(self.number);
    }
}

impl Worker {
    fn new(
        device: Arc<Device>,
        server: &Arc<Server>,
        dialect: Dialect,
        poll_time: Duration,
        (crew, lead, number): (Arc<Crew>, Arc<Lead>, ThreadNo),
    ) -> Worker {
        let replies: Arc<dyn Replies> = Arc::<Device>::clone(&device);
        Worker {
            device,
            blocks: true,
            exchange: Exchange::with_dialect(Arc::clone(server), replies, dialect),
            policy: PollPolicy::new(poll_time),
            gather: GatherPolicy::default(),
            crew,
            number,
            lead,
            is_leader: false,
            held: 0,
            clients: Clients::default(),
            stop: None,
        }
    }

    /// Answers messages until the connection ends.
    fn run(mut self) -> io::Result<()> {
        let mut inbox = Inbox::new();
        loop {
            let Some(length) = self.next_message(&mut inbox)? else { return Ok(()) };
            let message = inbox.message(length);
            if !self.exchange.gather(message) {
                self.answer(message);
                continue;
            }
            let other = self.find_more_reads(&mut inbox)?;
            self.exchange.answer_gathered();
            match other {
                Some(length) => self.answer(inbox.message(length)),
                None if self.exchange.has_deferred_work() => self.exchange.run_deferred_work(),
                None => {}
            }
        }
    }

    fn answer(&mut self, message: Incoming<'_>) {
        self.exchange.answer(message);
        self.exchange.run_deferred_work();
    }

    /// Gathers the reads that have come by now. Returns the length of a message in `inbox` that
    /// came behind them and is none.
    fn find_more_reads(&mut self, inbox: &mut Inbox) -> io::Result<Option<usize>> {
        if !self.gather.looks() {
            return Ok(None);
        }
        self.set_blocking(false)?;
        let (mut has_more, mut other) = (false, None);
        while self.exchange.has_room()
            && other.is_none()
            // That the connection has ended is heard again.
            && let Read::Message(length) = self.device.read(&mut inbox.room())?
        {
            let is_read = self.exchange.gather(inbox.message(length));
            has_more |= is_read;
            other = (!is_read).then_some(length);
        }
        self.gather.heard(has_more && other.is_none());
        Ok(other)
    }

    /// Waits for a message. `None`: the connection has ended.
    fn next_message(&mut self, inbox: &mut Inbox) -> io::Result<Option<usize>> {
        if self.is_leader && !self.lead.end(self.number) {
            // It took too long.
            self.is_leader = false;
            self.lead.rest_after(self.held);
        }
        if self.lead.is_held_by_another(self.number) {
            self.crew.asleep(|| self.lead.follow(self.number));
        }
        if self.stop.as_ref().is_some_and(|stop| stop.is_set()) {
            return Ok(None);
        }
        let start = Instant::now();
        let mut read = self.look(inbox, start)?;
        if read == Read::Nothing {
            self.leave_lead();
            self.set_blocking(self.stop.is_none())?;
            read = self.crew.asleep(|| match &self.stop {
                None => self.device.read(&mut inbox.room()),
                Some(stop) => stop.read(&self.device, inbox),
            })?;
        }
        self.policy.heard_after(start.elapsed());
        self.lead.heard(self.policy.is_worth_it());
        match read {
            Read::Message(length) => Ok(Some(length)),
            Read::Ended | Read::Nothing => Ok(None),
        }
    }

    /// Looks for a message for a moment, if that is worth it.
    fn look(&mut self, inbox: &mut Inbox, start: Instant) -> io::Result<Read> {
        let poll_time = self.policy.poll_time();
        if poll_time.is_zero() || !(self.is_leader || self.crew.may_look()) {
            return Ok(Read::Nothing);
        }
        self.set_blocking(false)?;
        let mut read = self.device.read(&mut inbox.room())?;
        while read == Read::Nothing && start.elapsed() < poll_time {
            // Who asks may want this processor to do so.
            thread::yield_now();
            read = self.device.read(&mut inbox.room())?;
        }
        if let Read::Message(length) = read {
            self.begin_as_leader(inbox.message(length));
        }
        Ok(read)
    }

    /// A message was found: takes the lead, keeps it, or leaves it.
    fn begin_as_leader(&mut self, message: Incoming<'_>) {
        let asking = Envelope::of(message.head).map_or(0, |envelope| envelope.sender.thread);
        if !self.is_leader {
            (self.clients, self.held) = (Clients::default(), 0);
            self.is_leader = self.lead.is_wanted() && self.lead.take(self.number);
        } else if self.clients.are_several(asking) {
            self.leave_lead();
            self.lead.rest_after(self.held);
        } else {
            self.held = self.held.saturating_add(1);
            self.lead.begin(self.number);
        }
    }

    fn leave_lead(&mut self) {
        if std::mem::take(&mut self.is_leader) {
            self.lead.leave(self.number);
        }
    }

    fn set_blocking(&mut self, blocks: bool) -> io::Result<()> {
        if self.blocks != blocks {
            self.device.set_blocking(blocks)?;
            self.blocks = blocks;
        }
        Ok(())
    }
}
