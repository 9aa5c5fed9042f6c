//! The transport by io_uring: a queue for each processor, so that a request is served where it was
//! asked.
//!
//! ```text
//!   plan     whether, and with how many entries     queue    requests in entries, and replies
//!   ring     the kernel's side of a queue           crew     threads that help
//! ```
//!
//! A message by /dev/fuse wakes a thread on whichever processor is idle, with an interrupt to it.
//! Here the kernel gives it to the queue of the processor on which it was asked. The queue's thread
//! is pinned there; so it runs when the client waits, and the client when the thread waits.
//! /dev/fuse stays for what the kernel sends by no queue (FORGET, INTERRUPT) and for notices.
//!
//! # Who answers
//!
//! The queue's thread (its *leader*) answers what it finds: one request at a time, and reads that
//! are there together. Long reads, and what more there is of long writes, it leaves to *helpers*,
//! which are not pinned. When it is stuck at one request a helper leads in its place (CW1).
//! A reply is put in the entry by whoever has it, and the entry is given back by who leads; that
//! of a long read by its helper, for the kernel copies it then.
//!
//! # The end
//!
//! When the connection ends, /dev/fuse says so to its reader, which tells all others.

mod crew;
mod plan;
mod queue;
mod ring;

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use engine::vnode::api::{AlignedBuffer, SharedBytes};
use rustix::thread::CpuSet;

use self::crew::{Crew, Job};
pub(super) use self::plan::{Plan, plan};
use self::queue::{Found, Queue, QueueReplies, payload_of};
use self::ring::{Ring, Told};
use super::decode::Dialect;
use super::device::Device;
use super::exchange::{Exchange, Replies};
use super::inbox::{Apart, Incoming};
use crate::fuse::Server;
use crate::fuse::server::REQUEST_BYTES_MAX;

/// Bytes of an entry's payload: the data of the largest request.
const PAYLOAD_BYTES: usize = {
    assert!(REQUEST_BYTES_MAX == 1 << 20);
    1 << 20
};

/// Data from so many bytes on is copied once, to memory that the file system may keep as it is,
/// and not block by block. It keeps none that is smaller (decision 0030).
const COPIED_BYTES_MIN: usize = PAYLOAD_BYTES / 8 * 7;

/// The queues of a connection, made before the kernel is told of them: it asks nothing until each
/// has an entry, so nothing may be missing then.
pub(super) struct Queues(Arc<Vec<Queue>>);

impl Queues {
    /// Makes the queues of `plan`.
    pub(super) fn new(device: &Device, plan: Plan) -> io::Result<Queues> {
        let make = |number| {
            let ring = Ring::new(device.as_raw_fd(), number, plan.entries)?;
            Ok(Queue::new(ring, plan.entries))
        };
        (0..plan.queues).map(make).collect::<io::Result<_>>().map(|queues| Queues(Arc::new(queues)))
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Queues").field(&self.0.len()).finish()
    }
}

/// Threads that serve the queues.
pub(super) struct Serving {
    queues: Arc<Vec<Queue>>,
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Serving {
    /// Begins to serve. The error says why the kernel refuses the queues; it asks by /dev/fuse
    /// then.
    pub(super) fn start(
        queues: Queues,
        server: &Arc<Server>,
        device: &Arc<Device>,
        dialect: Dialect,
        helpers: usize,
    ) -> io::Result<Result<Serving, String>> {
        let crew = Arc::new(Crew::default());
        let mut serving = Serving { queues: queues.0, crew, threads: Vec::new() };
        let (tell, told) = channel();
        let member = |first: usize, gives_back: bool, serving: &Serving| {
            let (queues, device) = (Arc::clone(&serving.queues), Arc::clone(device));
            let replies: Arc<dyn Replies> =
                Arc::new(QueueReplies { queues, first, gives_back, device });
            Member {
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

    /// Hears from each queue whether the kernel has taken its entries.
    fn hear(&self, told: &Receiver<Result<(), String>>) -> Result<(), String> {
        for _ in &*self.queues {
            told.recv().unwrap_or_else(|_| Err("a thread of a queue panicked".to_owned()))?;
        }
        Ok(())
    }

    /// Tells all threads that it is over.
    pub(super) fn end(&self) {
        self.crew.end(&self.queues);
    }

    /// Waits until all have ended.
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

/// One of the threads.
struct Member {
    queues: Arc<Vec<Queue>>,
    crew: Arc<Crew>,
    exchange: Exchange,
    /// Whether it leads a queue.
    leads: bool,
    /// The message at hand, but for the data of a WRITE.
    head: Vec<u8>,
    told: Vec<Told>,
    found: Vec<Found>,
}

impl Member {
    /// Serves the queue `number` until the connection ends; tells first whether the kernel has
    /// taken its entries.
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
        // Who started us may have ended.
        let _ = tell.send(begun);
        if has_begun { self.lead(number, queue, None) } else { Ok(()) }
    }

    /// Offers the entries; one that the kernel takes is enough.
    fn register(&mut self, queue: &Queue) -> Result<(), String> {
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

    /// Does what others leave, until the connection ends.
    fn help(mut self) -> io::Result<()> {
        let (queues, crew) = (Arc::clone(&self.queues), Arc::clone(&self.crew));
        while let Some(job) = crew.next() {
            match job {
                Job::Answer(number, found, _) => self.answer(number, found),
                Job::Rest => {
                    self.exchange.run_deferred_work();
                    crew.end_rest();
                    if self.exchange.has_deferred_work() {
                        crew.add_rest();
                    }
                }
                Job::StandIn(number, rounds) => {
                    if let Some(queue) = queues.get(number) {
                        self.lead(number, queue, Some(rounds))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Leads a queue until the connection ends, or until its own thread, which has looked
    /// `rounds` times, looks again.
    fn lead(&mut self, number: usize, queue: &Queue, rounds: Option<u64>) -> io::Result<()> {
        self.leads = true;
        let ended = self.lead_on(number, queue, rounds);
        self.leads = false;
        ended
    }

    fn lead_on(&mut self, number: usize, queue: &Queue, rounds: Option<u64>) -> io::Result<()> {
        loop {
            if rounds.is_some_and(|rounds| rounds != queue.own_rounds()) {
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
            // However much comes, what was left has its turn.
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

    /// Answers what was found in the queue `number`, and leaves to others what is too much.
    fn answer_found(&mut self, number: usize) {
        let mut found = std::mem::take(&mut self.found);
        let mut own = None;
        for one in found.drain(..) {
            // The kernel reads ahead: who has asked goes on meanwhile, on this processor.
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

    /// Answers the request `found` of the queue `number`; a read with others that were left.
    fn answer(&mut self, number: usize, found: Found) {
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
            Some(copied) => Some(Apart::Shared(copied)),
            None => payload.map(Apart::Lent),
        };
        self.exchange.answer(Incoming { head: &self.head, data });
        if let Some(held) = lent {
            queue.close(held);
        }
        self.finish();
    }

    fn gather(&mut self, number: usize, found: &Found) {
        let queues = Arc::clone(&self.queues);
        let Some(queue) = queues.get(number) else { return };
        let _ = queue.open(found, &mut self.head);
        if !self.exchange.gather(self.head[..].into()) {
            // It is broken, and gets an error.
            self.exchange.answer(self.head[..].into());
        }
    }

    fn answer_reads(&mut self) {
        self.exchange.answer_gathered();
        self.finish();
    }

    /// Sees to it that what was put off is done, by somebody for whom no client waits.
    fn finish(&mut self) {
        if !self.exchange.has_deferred_work() {
            return;
        }
        if self.leads { self.crew.add_rest() } else { self.exchange.run_deferred_work() }
    }
}

/// Pins the calling thread to a processor, if that is there.
fn pin(number: usize) {
    let mut only = CpuSet::new();
    only.set(number);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &only) {
        tracing::debug!(number, %error, "the thread of a queue runs on any processor");
    }
}
