//! The transport by io_uring: one queue per CPU, so that a request is served on the CPU it came
//! from.
//!
//! ```text
//!   plan     availability, count of entries         queue    requests and replies in entries
//!   ring     the kernel's side of a queue           crew     helper threads
//! ```
//!
//! On /dev/fuse a message interrupts any idle CPU to wake a thread. Here the message goes to the
//! queue of the client's CPU, and the queue's pinned thread runs there while the client waits.
//! /dev/fuse still serves messages without a queue (FORGET, INTERRUPT) and notices.
//!
//! # Threads
//!
//! A queue's own thread, its *leader*, answers one request at a time, or a batch of short reads. It
//! leaves long reads and all further requests to *helpers*, which are not pinned. While the leader
//! is stuck at a request, a helper leads the queue (CW1). Any thread may put a reply into its
//! entry. The leader gives the entries with replies back to the kernel. Only a long read's entry is
//! given back by its helper, because the kernel copies the data in the context of that thread.
//!
//! # The end
//!
//! The thread at /dev/fuse notices the end of the connection and ends all other threads.

mod crew;
mod plan;
mod queue;
mod ring;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use engine::api::{AlignedBuffer, SharedBytes};
use rustix::thread::CpuSet;

use self::crew::{HelperJob, QueueHelpers};
pub(super) use self::plan::{UringQueuePlan, plan};
use self::queue::{ArrivedRequest, QueueReplies, UringQueue, payload_of};
use self::ring::{FuseRing, RingEvent};
use super::decode::Dialect;
use super::device::FuseDevice;
use super::exchange::{Exchange, Replies};
use super::inbox::{Incoming, MessageData};
use crate::fuse::FuseServer;
use crate::fuse::server::REQUEST_BYTES_MAX;

/// Payload size of an entry, the data of the largest request.
const PAYLOAD_BYTES: usize = {
    assert!(REQUEST_BYTES_MAX == 1 << 20);
    1 << 20
};

/// A WRITE of at least this size is copied once, into a buffer that the file system may keep. The
/// file system keeps no smaller buffer (decision 0030).
const COPIED_BYTES_MIN: usize = PAYLOAD_BYTES / 8 * 7;

/// The queues of a connection. Made before the handshake, because afterwards the kernel sends no
/// request until every queue has an entry.
pub(super) struct Queues(Arc<Vec<UringQueue>>);

impl Queues {
    pub(super) fn new(device: &FuseDevice, plan: UringQueuePlan) -> io::Result<Queues> {
        let make = |number| {
            let ring = FuseRing::new(device.as_raw_fd(), number, plan.entries)?;
            Ok(UringQueue::new(ring, plan.entries))
        };
        (0..plan.queues).map(make).collect::<io::Result<_>>().map(|queues| Queues(Arc::new(queues)))
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Queues").field(&self.0.len()).finish()
    }
}

pub(super) struct UringService {
    queues: Arc<Vec<UringQueue>>,
    crew: Arc<QueueHelpers>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl UringService {
    /// Starts the threads. The inner error is the kernel's reason to refuse the queues. The kernel
    /// then sends requests by /dev/fuse.
    pub(super) fn start(
        queues: Queues,
        server: &Arc<FuseServer>,
        device: &Arc<FuseDevice>,
        dialect: Dialect,
        helpers: usize,
    ) -> io::Result<Result<UringService, String>> {
        let crew = Arc::new(QueueHelpers::default());
        let mut serving = UringService { queues: queues.0, crew, threads: Vec::new() };
        let (tell, told) = channel();
        let member = |first: usize, gives_back: bool, serving: &UringService| {
            let (queues, device) = (Arc::clone(&serving.queues), Arc::clone(device));
            let replies: Arc<dyn Replies> =
                Arc::new(QueueReplies { queues, first, gives_back, device });
            FuseUringThread {
                queues: Arc::clone(&serving.queues),
                crew: Arc::clone(&serving.crew),
                exchange: Exchange::with_dialect(Arc::clone(server), replies, dialect),
                leads: false,
                head: Vec::new(),
                told: Vec::new(),
                found: Vec::new(),
            }
        };
        let allowed = rustix::thread::sched_getaffinity(None).ok();
        for number in 0..serving.queues.len() {
            let (member, tell) = (member(number, false, &serving), tell.clone());
            let pinned =
                allowed.filter(|allowed| number < CpuSet::MAX_CPU && allowed.is_set(number));
            serving.spawn(format!("fuse-queue-{number}"), move || {
                member.serve_queue(number, pinned.is_some(), &tell)
            })?;
        }
        drop(tell);
        if let Err(reason) = serving.hear(&told) {
            serving.end();
            serving.join()?;
            return Ok(Err(reason));
        }
        for number in 0..helpers {
            let member = member(0, true, &serving);
            serving.spawn(format!("fuse-{number}"), move || member.help())?;
        }
        let (queues, crew) = (Arc::clone(&serving.queues), Arc::clone(&serving.crew));
        serving.spawn("fuse-watch".to_owned(), move || {
            crew.watch(&queues, helpers);
            Ok(())
        })?;
        Ok(Ok(serving))
    }

    fn spawn(
        &mut self,
        name: String,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    fn hear(&self, told: &Receiver<Result<(), String>>) -> Result<(), String> {
        for _ in &*self.queues {
            told.recv().unwrap_or_else(|_| Err("a thread of a queue panicked".to_owned()))?;
        }
        Ok(())
    }

    pub(super) fn end(&self) {
        self.crew.end(&self.queues);
    }

    pub(super) fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads {
            let ended = thread.join();
            result =
                result.and(ended.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))));
        }
        result
    }
}

struct FuseUringThread {
    queues: Arc<Vec<UringQueue>>,
    crew: Arc<QueueHelpers>,
    exchange: Exchange,
    leads: bool,
    head: Vec<u8>,
    told: Vec<RingEvent>,
    found: Vec<ArrivedRequest>,
}

impl FuseUringThread {
    /// Serves queue `number` until the connection ends. First reports on `tell` whether the kernel
    /// has accepted an entry.
    fn serve_queue(
        mut self,
        number: usize,
        is_pinned: bool,
        tell: &Sender<Result<(), String>>,
    ) -> io::Result<()> {
        if is_pinned {
            pin(number);
        }
        let queues = Arc::clone(&self.queues);
        let Some(queue) = queues.get(number) else { return Ok(()) };
        let begun = self.register(queue);
        let has_begun = begun.is_ok();
        // The receiver may be gone.
        let _ = tell.send(begun);
        if has_begun { self.lead(number, queue, None) } else { Ok(()) }
    }

    /// Offers all entries to the kernel. Fails if it accepts none.
    fn register(&mut self, queue: &UringQueue) -> Result<(), String> {
        let refused = queue
            .ring
            .register()
            .and_then(|()| queue.look(true, &mut self.told, &mut self.found))
            .map_err(|error| format!("io_uring_enter: {error}"))?;
        match refused {
            Some(errno) if !queue.ring.has_entries() => {
                Err(format!("the kernel refuses the entries of a queue: {errno}"))
            }
            _ => Ok(()),
        }
    }

    fn help(mut self) -> io::Result<()> {
        let (queues, crew) = (Arc::clone(&self.queues), Arc::clone(&self.crew));
        while let Some(job) = crew.next() {
            match job {
                HelperJob::Answer(number, found, _) => self.answer(number, found),
                HelperJob::Rest => {
                    self.exchange.run_deferred_work();
                    crew.end_rest();
                    if self.exchange.has_deferred_work() {
                        crew.add_rest();
                    }
                }
                HelperJob::StandIn(number, rounds) => {
                    if let Some(queue) = queues.get(number) {
                        self.lead(number, queue, Some(rounds))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Leads a queue until the connection ends. A helper passes the round count of the queue's own
    /// thread in `rounds`, and stops leading when the count changes.
    fn lead(&mut self, number: usize, queue: &UringQueue, rounds: Option<u64>) -> io::Result<()> {
        self.leads = true;
        let ended = self.lead_on(number, queue, rounds);
        self.leads = false;
        ended
    }

    fn lead_on(
        &mut self,
        number: usize,
        queue: &UringQueue,
        rounds: Option<u64>,
    ) -> io::Result<()> {
        loop {
            if rounds.is_some_and(|rounds| rounds != queue.own_rounds()) {
                // It may have received the call of the end, for which the queue's own thread waits.
                if self.crew.has_ended() {
                    queue.call_all();
                }
                return Ok(());
            }
            let lost = queue.look(rounds.is_none(), &mut self.told, &mut self.found)?;
            if let Some(errno) = lost.filter(|_| !self.crew.has_ended()) {
                tracing::debug!(%errno, number, "the kernel gave up an entry");
            }
            let has_found = !self.found.is_empty();
            if has_found {
                self.crew.notice_work();
                self.answer_found(number);
            }
            // One queued job per round, so that this queue's requests do not wait for many.
            if let Some((number, found)) = self.crew.take() {
                queue.flush()?;
                self.answer(number, found);
            } else if self.crew.has_ended() {
                queue.call_all();
                return Ok(());
            } else if !has_found {
                queue.wait()?;
            }
        }
    }

    /// Answers one request of `found` or a batch of short reads, and leaves the rest to the crew.
    fn answer_found(&mut self, number: usize) {
        let mut found = std::mem::take(&mut self.found);
        let mut own = None;
        for one in found.drain(..) {
            // A long read is readahead: the client runs on, on this CPU.
            let is_long_read = one.is_read() && one.is_long();
            if one.is_read() && !is_long_read && self.exchange.has_room() && own.is_none() {
                self.gather(number, &one);
            } else if !is_long_read && own.is_none() && !self.exchange.has_reads() {
                own = Some(one);
            } else {
                let is_urgent = one.is_read() || one.is_long();
                self.crew.add(number, one, is_urgent);
            }
        }
        self.found = found;
        match own {
            Some(own) => self.answer(number, own),
            None if self.exchange.has_reads() => self.answer_reads(),
            None => {}
        }
    }

    /// Answers `found` of queue `number`. A read is batched with queued reads.
    fn answer(&mut self, number: usize, found: ArrivedRequest) {
        if found.is_read() {
            self.gather(number, &found);
            while self.exchange.has_room()
                && let Some((number, found)) = self.crew.take_read()
            {
                self.gather(number, &found);
            }
            self.answer_reads();
            return;
        }
        let queues = Arc::clone(&self.queues);
        let Some(queue) = queues.get(number) else { return };
        let lent = queue.open(&found, &mut self.head);
        let payload = lent.as_ref().map(payload_of);
        let copied = payload.filter(|payload| payload.len() >= COPIED_BYTES_MIN);
        let copied = copied.map(|payload| SharedBytes::from(AlignedBuffer::copy_of(payload)));
        let data = match &copied {
            Some(copied) => Some(MessageData::Shared(copied)),
            None => payload.map(MessageData::Lent),
        };
        self.exchange.answer(Incoming { head: &self.head, data });
        if let Some(held) = lent {
            queue.close(held);
        }
        self.finish();
    }

    fn gather(&mut self, number: usize, found: &ArrivedRequest) {
        let queues = Arc::clone(&self.queues);
        let Some(queue) = queues.get(number) else { return };
        let _ = queue.open(found, &mut self.head);
        if !self.exchange.gather(self.head[..].into()) {
            // A malformed read gets an error.
            self.exchange.answer(self.head[..].into());
        }
    }

    fn answer_reads(&mut self) {
        self.exchange.answer_gathered();
        self.finish();
    }

    /// Runs deferred work. A leader queues it for a helper, so that no client waits.
    fn finish(&mut self) {
        if !self.exchange.has_deferred_work() {
            return;
        }
        if self.leads { self.crew.add_rest() } else { self.exchange.run_deferred_work() }
    }
}

/// Pins the calling thread to a CPU, if it is online.
fn pin(number: usize) {
    let mut only = CpuSet::new();
    only.set(number);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &only) {
        tracing::debug!(number, %error, "the thread of a queue runs on any processor");
    }
}
