//! The transport to the kernel: the FUSE protocol on /dev/fuse.
//!
//! ```text
//!   attach       mount a connection               fuse_kernel  protocol structures
//!   init         the handshake                    decode       bytes to requests
//!   device       read a message, write a reply    encode       replies to bytes
//!   poll         busy polling before sleep        exchange     one message, one reply
//!   inbox        the receive buffer               leader       one thread for one client
//!   latency      keeps CPUs from halting          notices      invalidations for the kernel
//!   stop         ends a mount without umount      uring        requests by io_uring
//! ```
//!
//! # Concurrency
//!
//! One thread per descriptor of the connection (`FUSE_DEV_IOC_CLONE`) reads a message, calls the
//! server and writes the reply, which for a sync is written by the completing thread. The threads
//! share only the server. Each has buffers for the largest message and reply, of which untouched
//! pages take no memory. The file system may keep the data of a WRITE, and bounds how much.
//! A panic in the file system costs only the request (EX1). After a panic in a thread's own loop,
//! the other threads continue.

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
use self::device::{FIRST_REQUEST_TIME, FuseDevice, FuseReadOutcome};
use self::exchange::{Exchange, Replies, ReplyParts, refusal};
use self::inbox::{Inbox, Incoming};
use self::init::{InitOutcome, RequestedCapabilities};
use self::latency::CpuLatencyControl;
use self::leader::{Clients, Lead, ThreadNo};
use self::notices::Notices;
use self::poll::{AwakeThreads, GatherPolicy, PollPolicy};
use self::stop::ServiceStop;
use self::uring::{Queues, UringService};
use super::options::{CpuLatency, DirectIo, THREADS_MAX};
use super::transport::{FuseTransport, TransportError, TransportUsed};
use super::{FuseServer, MountOptions, mountpoint};

/// Buffer size for INIT, which is short. The kernel refuses less than 8 KiB.
const INIT_BYTES_MAX: usize = 8192;

/// Why a shared mount has no queues.
const LOCKS_WAIT: &str = "on a shared mount, locks that wait would fill its queues";

/// Most INIT messages: a kernel of a later major version sends a second one.
const INIT_TRIES_MAX: usize = 2;

#[derive(Debug)]
pub(super) struct KernelTransport {
    device: Arc<FuseDevice>,
    dialect: Dialect,
    thread_count: usize,
    poll_time: Duration,
    cpu_latency: CpuLatency,
    queues: Option<Queues>,
    used: Arc<TransportUsed>,
    stop: Option<Arc<ServiceStop>>,
}

impl KernelTransport {
    /// Mounts `directory`, an absolute path, and does the handshake. Requests wait until
    /// [`FuseTransport::serve`].
    pub(super) fn mount(
        directory: &Path,
        options: &MountOptions,
        server: &FuseServer,
    ) -> io::Result<KernelTransport> {
        // Done before mounting: the kernel offers queues to a connection only if they are enabled.
        let plan = uring::plan(options.transport);
        let device = attach::attach(directory, options)?;
        // A mount must not stay without a server.
        KernelTransport::agree(device, plan, options, server)
            .inspect_err(|_| drop(mountpoint::detach(directory)))
    }

    /// Takes over a connection mounted by another process, and does the handshake.
    pub(super) fn take(
        connection: OwnedFd,
        options: &MountOptions,
        server: &FuseServer,
    ) -> io::Result<KernelTransport> {
        let device = FuseDevice::from_descriptor(connection);
        device.check()?;
        if !server.is_of_one_user() {
            return KernelTransport::agree(device, uring::plan(options.transport), options, server);
        }
        // A clone, as the mounter could change the blocking mode of the original.
        let device = device.cloned()?;
        // The kernel releases queues only when the connection ends, which the mounter controls.
        let plan = Err("a mounter's mount has none".to_owned());
        let transport = KernelTransport::agree(device, plan, options, server)?;
        Ok(KernelTransport { stop: Some(Arc::new(ServiceStop::new()?)), ..transport })
    }

    fn agree(
        device: FuseDevice,
        plan: Result<uring::UringQueuePlan, String>,
        options: &MountOptions,
        server: &FuseServer,
    ) -> io::Result<KernelTransport> {
        // Each lock that waits would hold an entry of a queue.
        let has_locks = server.has_locks();
        let plan =
            plan.and_then(|plan| if has_locks { Err(LOCKS_WAIT.to_owned()) } else { Ok(plan) });
        let queues = plan.and_then(|plan| {
            Queues::new(&device, plan).map_err(|error| format!("io_uring is refused: {error}"))
        });
        let requested = RequestedCapabilities {
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

    /// Returns the stop signal of a mount that must not be unmounted here, or `None` for others.
    pub(super) fn stop(&self) -> Option<Arc<ServiceStop>> {
        self.stop.as_ref().map(Arc::clone)
    }

    pub(super) fn connection(&self) -> FuseConnection {
        FuseConnection(Arc::downgrade(&self.device))
    }

    pub(super) fn used(&self) -> Arc<TransportUsed> {
        Arc::clone(&self.used)
    }
}

#[derive(Debug)]
pub(super) struct FuseConnection(Weak<FuseDevice>);

impl FuseConnection {
    /// Returns whether the kernel has ended the connection, or no thread serves it. Threads notice
    /// later.
    pub(super) fn has_ended(&self) -> bool {
        self.0.upgrade().is_none_or(|device| device.has_ended())
    }
}

/// Mounts `directory`, an absolute path, and returns the connection before the handshake.
pub(super) fn attach_only(directory: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    attach::attach(directory, options).map(FuseDevice::into_descriptor)
}

fn shake_hands(device: &FuseDevice, requested: RequestedCapabilities) -> io::Result<Dialect> {
    let mut buffer = vec![0; INIT_BYTES_MAX];
    for _ in 0..INIT_TRIES_MAX {
        let room = &mut [IoSliceMut::new(&mut buffer)];
        let length = match device.read_within(&FIRST_REQUEST_TIME, room)? {
            FuseReadOutcome::Message(length) => length,
            FuseReadOutcome::Ended => {
                return Err(io::Error::other("the kernel ended the connection at once"));
            }
            FuseReadOutcome::Nothing => {
                return Err(io::Error::other("the kernel asks nothing of who serves the mount"));
            }
        };
        let message = buffer.get(..length).unwrap_or_default();
        let Some((unique, answer)) = init::answer(message, requested) else { break };
        let (out, dialect) = match answer {
            InitOutcome::Agreed(out, dialect) => (out, Some(dialect)),
            InitOutcome::Again(out) => (out, None),
            InitOutcome::Refused(errno) => {
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

impl Replies for FuseDevice {
    /// Sends a reply. If the kernel refuses the reply (a bug here), the request gets `EIO`.
    fn send(&self, reply: &ReplyParts<'_>) {
        let Err(error) = self.write(reply) else { return };
        tracing::error!(%error, "the kernel refused a reply");
        let unique = exchange::unique_of(reply.head);
        let refused = refusal(unique, Errno::IO);
        // If the kernel refuses this reply too, no request waits for it.
        let _ = self.write(&ReplyParts { head: &refused, data: &[] });
    }

    /// Sends a notice. [`FuseDevice::write`] ignores the error for a file that the kernel does not
    /// cache.
    fn notify(&self, notice: &[u8]) {
        if let Err(error) = self.write(&ReplyParts { head: notice, data: &[] }) {
            tracing::error!(%error, "the kernel refused a notice");
        }
    }
}

impl FuseTransport for KernelTransport {
    fn serve(self: Box<Self>, server: Arc<FuseServer>) -> Result<(), TransportError> {
        let _latency = CpuLatencyControl::start(self.cpu_latency, &server)?;
        let KernelTransport {
            device, dialect, thread_count, poll_time, queues, used, stop, ..
        } = *self;
        let replies: Arc<dyn Replies> = Arc::<FuseDevice>::clone(&device);
        let _notices = Notices::start(&server, replies)?;
        if let Some(queues) = queues {
            match UringService::start(queues, &server, &device, dialect, thread_count)? {
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
        let crew = Arc::new(AwakeThreads::new(thread_count));
        let lead = Arc::new(Lead::default());
        let mut workers = Vec::with_capacity(thread_count);
        for (number, device) in (0..).zip(devices) {
            let (crew, lead) = (Arc::clone(&crew), Arc::clone(&lead));
            let shared = (crew, lead, ThreadNo(number));
            let mut worker = FuseDeviceThread::new(device, &server, dialect, poll_time, shared);
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

fn read_device(
    device: Arc<FuseDevice>,
    server: &Arc<FuseServer>,
    dialect: Dialect,
) -> io::Result<()> {
    let shared = (Arc::new(AwakeThreads::new(1)), Arc::new(Lead::default()), ThreadNo(0));
    FuseDeviceThread::new(device, server, dialect, Duration::ZERO, shared).run()
}

struct FuseDeviceThread {
    device: Arc<FuseDevice>,
    blocks: bool,
    exchange: Exchange,
    policy: PollPolicy,
    gather: GatherPolicy,
    crew: Arc<AwakeThreads>,
    number: ThreadNo,
    lead: Arc<Lead>,
    /// The thread took the lead and has not given it up. The lead may have been revoked.
    is_leader: bool,
    held: u32,
    clients: Clients,
    stop: Option<Arc<ServiceStop>>,
}

impl Drop for FuseDeviceThread {
    fn drop(&mut self) {
        // Followers wake and notice the end of the connection.
        self.lead.leave(self.number);
    }
}

impl FuseDeviceThread {
    fn new(
        device: Arc<FuseDevice>,
        server: &Arc<FuseServer>,
        dialect: Dialect,
        poll_time: Duration,
        (crew, lead, number): (Arc<AwakeThreads>, Arc<Lead>, ThreadNo),
    ) -> FuseDeviceThread {
        let replies: Arc<dyn Replies> = Arc::<FuseDevice>::clone(&device);
        FuseDeviceThread {
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

    /// Gathers reads that have arrived. Returns the length of the first message that is no read.
    fn find_more_reads(&mut self, inbox: &mut Inbox) -> io::Result<Option<usize>> {
        if !self.gather.looks() {
            return Ok(None);
        }
        self.set_blocking(false)?;
        let (mut has_more, mut other) = (false, None);
        while self.exchange.has_room()
            && other.is_none()
            // If the connection has ended, the next read reports it again.
            && let FuseReadOutcome::Message(length) = self.device.read(&mut inbox.room())?
        {
            let is_read = self.exchange.gather(inbox.message(length));
            has_more |= is_read;
            other = (!is_read).then_some(length);
        }
        self.gather.heard(has_more && other.is_none());
        Ok(other)
    }

    fn next_message(&mut self, inbox: &mut Inbox) -> io::Result<Option<usize>> {
        if self.is_leader && !self.lead.end(self.number) {
            // A follower has revoked the lead during a long message.
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
        if read == FuseReadOutcome::Nothing {
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
            FuseReadOutcome::Message(length) => Ok(Some(length)),
            FuseReadOutcome::Ended | FuseReadOutcome::Nothing => Ok(None),
        }
    }

    fn look(&mut self, inbox: &mut Inbox, start: Instant) -> io::Result<FuseReadOutcome> {
        let poll_time = self.policy.poll_time();
        if poll_time.is_zero() || !(self.is_leader || self.crew.may_look()) {
            return Ok(FuseReadOutcome::Nothing);
        }
        self.set_blocking(false)?;
        let mut read = self.device.read(&mut inbox.room())?;
        while read == FuseReadOutcome::Nothing && start.elapsed() < poll_time {
            // The client may need this CPU to send its request.
            thread::yield_now();
            read = self.device.read(&mut inbox.room())?;
        }
        if let FuseReadOutcome::Message(length) = read {
            self.begin_as_leader(inbox.message(length));
        }
        Ok(read)
    }

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
