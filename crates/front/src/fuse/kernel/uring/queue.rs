//! The queue of one CPU: takes requests from entries, puts replies into them, and gives the entries
//! back to the kernel.
//!
//! The thread that leads the queue waits at its ring. Another thread wakes it by a *call* (see
//! `ring`). The queue's *bell* suppresses further calls while one is on its way.
//!
//! # Invariants
//!
//! - QU1: An entry is given back once, with its reply, by the next flush after the reply is
//!   complete and no thread reads the request any more.
//! - QU2: A thread that receives a call resets the bell, then gives back all entries with replies,
//!   before anything else. Otherwise replies could be lost: several threads may lead a queue, and a
//!   call may reach another thread than the waiter.
//!
//! # Concurrency
//!
//! Any thread may reply. It records the reply, then calls if a leader waits. A leader counts itself
//! as waiting, then gives back the entries with replies, then waits. This order leaves no reply
//! behind.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::super::device::FuseDevice;
use super::super::exchange::{Replies, ReplyParts, refusal, unique_of};
use super::super::fuse_kernel::{InHeader, OutHeader, ReadIn, opcode};
use super::PAYLOAD_BYTES;
use super::ring::{FuseRing, OwnedEntry, RingEvent};

/// Size from which a request is long: answering it takes longer than waking a helper.
const LONG_BYTES_MIN: usize = 64 << 10;

const ARGUMENT_BYTES_MAX: usize = 128;

pub(super) struct UringQueue {
    pub(super) ring: FuseRing,
    slots: Vec<QueueEntry>,
    done: Mutex<Vec<usize>>,
    bell: Bell,
    /// Number of calls of [`UringQueue::look`]: by all threads, and by the queue's own thread.
    rounds: AtomicU64,
    own_rounds: AtomicU64,
}

/// The waiters at the ring, and whether a call is on its way, so that many replies cause one call.
#[derive(Default)]
struct Bell {
    waiting: AtomicU32,
    /// A call was made since the last waiter began to wait.
    is_called: AtomicBool,
}

impl Bell {
    /// Counts the caller as waiting. It must now give back entries with replies. Later replies call
    /// it.
    fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Reset here, not in `end`: a late call for this wait must not suppress those for the next.
        self.was_heard();
    }

    /// Resets the bell after a call was received, maybe by another thread than the waiter.
    fn was_heard(&self) {
        self.is_called.store(false, Ordering::SeqCst);
    }

    fn end(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns whether the caller must call. `false` if a call is on its way.
    fn rings(&self) -> bool {
        !self.is_called.swap(true, Ordering::SeqCst)
    }
}

#[derive(Default)]
struct QueueEntry {
    /// Id of the request, or 0.
    unique: AtomicU64,
    state: Mutex<QueueEntryState>,
}

#[derive(Default)]
struct QueueEntryState {
    /// `None` while the kernel has the entry, or a thread reads the request.
    held: Option<OwnedEntry>,
    is_answered: bool,
    /// A reply that came while the request was being read.
    early: Vec<u8>,
}

pub(super) struct ArrivedRequest {
    pub(super) index: usize,
    opcode: u32,
    bytes: usize,
    asked_bytes: usize,
}

impl ArrivedRequest {
    pub(super) fn is_read(&self) -> bool {
        self.opcode == opcode::READ
    }

    pub(super) fn is_long(&self) -> bool {
        self.bytes.max(self.asked_bytes) >= LONG_BYTES_MIN
    }
}

impl UringQueue {
    pub(super) fn new(ring: FuseRing, entries: u16) -> UringQueue {
        UringQueue {
            ring,
            slots: (0..entries).map(|_| QueueEntry::default()).collect(),
            done: Mutex::default(),
            bell: Bell::default(),
            rounds: AtomicU64::new(0),
            own_rounds: AtomicU64::new(0),
        }
    }

    /// Adds arrived requests to `found`, for the caller to answer next. Returns the error of an
    /// entry that the kernel gave up, if any.
    pub(super) fn look(
        &self,
        is_own: bool,
        told: &mut Vec<RingEvent>,
        found: &mut Vec<ArrivedRequest>,
    ) -> io::Result<Option<Errno>> {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if is_own {
            self.own_rounds.fetch_add(1, Ordering::Relaxed);
        }
        let (mut lost, mut is_called) = (None, false);
        self.ring.reap(told);
        for one in told.drain(..) {
            match one {
                RingEvent::Request(held) => found.extend(self.keep(held)),
                RingEvent::Lost(errno) => lost = Some(errno),
                RingEvent::Call => is_called = true,
            }
        }
        // QU2. If there are no requests, the caller waits next, which gives the entries back too.
        if is_called {
            self.bell.was_heard();
            if !found.is_empty() {
                self.flush()?;
            }
        }
        Ok(lost)
    }

    fn keep(&self, held: OwnedEntry) -> Option<ArrivedRequest> {
        let header = held.header();
        let (sent, _) = InHeader::read_from_prefix(&header.in_out).ok()?;
        let (index, unique, header_of_read) = (held.index(), header.commit_id, header.op_in);
        let slot = self.slots.get(index)?;
        let mut state = slot.state.lock();
        (state.held, state.is_answered) = (Some(held), false);
        slot.unique.store(unique, Ordering::Release);
        let bytes = usize::try_from(sent.len).unwrap_or(0);
        let asked =
            ReadIn::read_from_prefix(&header_of_read).ok().filter(|_| sent.opcode == opcode::READ);
        let asked_bytes = asked.map_or(0, |(asked, _)| usize::try_from(asked.size).unwrap_or(0));
        Some(ArrivedRequest { index, opcode: sent.opcode, bytes, asked_bytes })
    }

    /// Copies the request to `head`. The data of a WRITE stays in the returned entry, which must be
    /// passed to [`UringQueue::close`].
    pub(super) fn open(&self, found: &ArrivedRequest, head: &mut Vec<u8>) -> Option<OwnedEntry> {
        head.clear();
        let mut state = self.slots.get(found.index)?.state.lock();
        let held = state.held.take()?;
        let header = held.header();
        let payload = payload_of(&held);
        let fixed = size_of::<InHeader>();
        let argument = found.bytes.saturating_sub(fixed + payload.len()).min(ARGUMENT_BYTES_MAX);
        head.extend_from_slice(&header.in_out[..fixed]);
        head.extend_from_slice(&header.op_in[..argument]);
        if found.opcode == opcode::WRITE && !payload.is_empty() {
            return Some(held);
        }
        head.extend_from_slice(payload);
        state.held = Some(held);
        None
    }

    /// Takes an entry back from the reader of its request. If the reply came earlier, puts it in.
    pub(super) fn close(&self, held: OwnedEntry) {
        let index = held.index();
        let Some(slot) = self.slots.get(index) else { return };
        let mut state = slot.state.lock();
        let state = &mut *state;
        let early = std::mem::take(&mut state.early);
        let held = state.held.insert(held);
        if let Some((head, data)) = early.split_at_checked(size_of::<OutHeader>()) {
            put(held, &ReplyParts { head, data: &[data] });
            state.is_answered = true;
            self.note(index);
        }
    }

    /// Puts `reply` into the entry of its request. Returns `false` if the request is of another
    /// queue.
    fn answer(&self, unique: u64, reply: &ReplyParts<'_>, gives_back: bool) -> bool {
        let is_it = |slot: &QueueEntry| slot.unique.load(Ordering::Acquire) == unique;
        let Some(index) = self.slots.iter().position(is_it) else { return false };
        let slot = &self.slots[index];
        let mut state = slot.state.lock();
        if !is_it(slot) || state.is_answered {
            return true;
        }
        match &mut state.held {
            Some(held) => {
                put(held, reply);
                state.is_answered = true;
                drop(state);
                if gives_back {
                    self.done.lock().push(index);
                    if let Err(error) = self.flush() {
                        tracing::error!(%error, "an entry is not given back");
                    }
                } else {
                    self.note(index);
                }
            }
            None => state.early = [reply.head, &reply.data.concat()].concat(),
        }
        true
    }

    fn note(&self, index: usize) {
        self.done.lock().push(index);
        if self.bell.is_waited_for() {
            self.call();
        }
    }

    /// Wakes the current or the next waiter, unless a call is on its way.
    fn call(&self) {
        if self.bell.rings() {
            self.call_all();
        }
    }

    pub(super) fn call_all(&self) {
        if let Err(error) = self.ring.call() {
            tracing::error!(%error, "who waits at a queue is not called");
        }
    }

    fn push(&self) -> io::Result<bool> {
        let mut has_any = false;
        loop {
            let Some(index) = self.done.lock().pop() else { return Ok(has_any) };
            let slot = &self.slots[index];
            let held = slot.state.lock().held.take();
            let unique = slot.unique.swap(0, Ordering::AcqRel);
            if let Some(held) = held {
                self.ring.commit(held, unique)?;
                has_any = true;
            }
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        if self.push()? { self.ring.submit() } else { Ok(()) }
    }

    pub(super) fn wait(&self) -> io::Result<()> {
        self.bell.begin();
        let waited = self.push().and_then(|_| self.ring.wait());
        self.bell.end();
        waited
    }

    /// Returns the number of rounds of all threads, or `None` while a thread waits.
    pub(super) fn rounds(&self) -> Option<u64> {
        (!self.bell.is_waited_for()).then(|| self.rounds.load(Ordering::Relaxed))
    }

    pub(super) fn own_rounds(&self) -> u64 {
        self.own_rounds.load(Ordering::Relaxed)
    }
}

pub(super) fn payload_of(held: &OwnedEntry) -> &[u8] {
    let bytes = usize::try_from(held.header().payload_bytes).unwrap_or(usize::MAX);
    &held.payload()[..bytes.min(PAYLOAD_BYTES)]
}

fn put(held: &mut OwnedEntry, reply: &ReplyParts<'_>) {
    let header_bytes = size_of::<OutHeader>();
    let data_bytes = reply.data.iter().map(|piece| piece.len()).sum::<usize>();
    let refused;
    let Some((head, rest)) = reply.head.split_at_checked(header_bytes) else { return };
    let (head, rest, data) = if rest.len() + data_bytes <= PAYLOAD_BYTES {
        (head, rest, reply.data)
    } else {
        tracing::error!(bytes = data_bytes, "a reply is longer than its request allows");
        refused = refusal(unique_of(head), Errno::IO);
        (&refused[..], &[][..], &[][..])
    };
    let payload = held.payload_mut();
    let mut end = 0;
    for piece in std::iter::once(&rest).chain(data) {
        payload[end..end + piece.len()].copy_from_slice(piece);
        end += piece.len();
    }
    let header = held.header_mut();
    header.in_out[..header_bytes].copy_from_slice(head);
    header.payload_bytes = u32::try_from(end).expect("PAYLOAD_BYTES fits");
}

pub(super) struct QueueReplies {
    pub(super) queues: Arc<Vec<UringQueue>>,
    pub(super) first: usize,
    /// This thread gives entries with long replies back itself. Set for helpers: the kernel copies
    /// the reply in their context, in parallel to the client.
    pub(super) gives_back: bool,
    pub(super) device: Arc<FuseDevice>,
}

impl Replies for QueueReplies {
    fn send(&self, reply: &ReplyParts<'_>) {
        let unique = unique_of(reply.head);
        let (before, from) = self.queues.split_at(self.first.min(self.queues.len()));
        // The request of an unknown id has ended with its connection.
        let bytes = reply.data.iter().map(|piece| piece.len()).sum::<usize>();
        let gives_back = self.gives_back && bytes >= LONG_BYTES_MIN;
        let _ = from.iter().chain(before).any(|queue| queue.answer(unique, reply, gives_back));
    }

    fn notify(&self, notice: &[u8]) {
        self.device.notify(notice);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use runtime::prng::Prng;
    use zerocopy::IntoBytes;

    use super::super::super::decode::{Dialect, Envelope, decode};
    use super::super::super::inbox::Incoming;
    use super::*;

    fn fill(bytes: &mut [u8], prng: &mut Prng) {
        bytes.fill_with(|| prng.next_u64().to_le_bytes()[0]);
    }

    fn fill_at_random(held: &mut OwnedEntry, prng: &mut Prng) {
        const OPCODES: [u32; 6] =
            [opcode::READ, opcode::WRITE, opcode::LOOKUP, opcode::SETATTR, opcode::GETXATTR, 9999];
        let edges = [0, 1, 39, 40, 41, 128, 167, 168, 169, 4096, 1 << 20, (1 << 20) + 1, u32::MAX];
        let pick = |prng: &mut Prng| {
            let length = u64::try_from(edges.len()).expect("few");
            edges[usize::try_from(prng.below(length)).expect("few")]
        };
        let header = held.header_mut();
        if prng.one_in(3) {
            fill(&mut header.in_out, prng);
            fill(&mut header.op_in, prng);
        }
        if let Ok((sent, _)) = InHeader::mut_from_prefix(&mut header.in_out) {
            sent.opcode = OPCODES[usize::try_from(prng.below(6)).expect("few")];
            sent.len = pick(prng);
        }
        header.payload_bytes = pick(prng);
        header.commit_id = 1 + prng.below(u64::MAX - 1);
        fill(&mut held.payload_mut()[..256], prng);
    }

    /// Goal: any entry is read within its bounds, and a reply goes to its request.
    #[test]
    fn entries_of_any_sort_are_read_within_their_bounds() {
        let prng = &mut Prng::from_seed(41);
        let ring = FuseRing::new(-1, 0, 2).expect("io_uring can be had where this is tested");
        let queue = UringQueue::new(ring, 2);
        let mut held = OwnedEntry::new(1);
        let (mut head, mut decoded) = (Vec::new(), 0);
        for _ in 0..20_000 {
            fill_at_random(&mut held, prng);
            let unique = held.header().commit_id;
            let found = queue.keep(held).expect("headers have a header's length");
            let lent = queue.open(&found, &mut head);
            let fixed = size_of::<InHeader>() + ARGUMENT_BYTES_MAX;
            assert!(head.len() <= fixed + PAYLOAD_BYTES);
            assert!(lent.is_none() || head.len() <= fixed);
            if let Some(envelope) = Envelope::of(&head) {
                let data =
                    lent.as_ref().map(|held| super::super::MessageData::Lent(payload_of(held)));
                let incoming = Incoming { head: &head, data };
                let _ = decode(&envelope, incoming, Dialect::default());
                decoded += 1;
            }
            let reply = vec![7; usize::try_from(prng.below(3) << 19).expect("small") + 9];
            let out = OutHeader { len: 0, error: 0, unique };
            let parts = ReplyParts { head: out.as_bytes(), data: &[&reply] };
            assert!(queue.answer(unique, &parts, false), "the request is here");
            if let Some(held) = lent {
                queue.close(held);
            }
            assert_eq!(queue.done.lock().pop(), Some(1));
            held = queue.slots[1].state.lock().held.take().expect("it is ours");
            let bytes = usize::try_from(held.header().payload_bytes).expect("small");
            assert_eq!(bytes, if reply.len() <= PAYLOAD_BYTES { reply.len() } else { 0 });
            queue.slots[1].unique.store(0, Ordering::Release);
        }
        assert!(decoded > 10_000, "{decoded}");
    }

    /// Goal: each reply is given back, even if a helper receives the call meant for the waiter and
    /// leaves.
    #[test]
    fn a_reply_is_given_back_whoever_takes_the_call_for_it() {
        const REPLIES: usize = 20_000;
        const SOON: Duration = Duration::from_secs(10);
        let ring = FuseRing::new(-1, 0, 2).expect("io_uring can be had where this is tested");
        let queue = &UringQueue::new(ring, 2);
        let has_ended = &AtomicBool::new(false);
        let goes_on = || !has_ended.load(Ordering::Acquire);
        std::thread::scope(|scope| {
            queue.ring.register().expect("it can be submitted");
            let waiter = scope.spawn(move || {
                while goes_on() {
                    queue.look(true, &mut Vec::new(), &mut Vec::new()).expect("it looks");
                    queue.wait().expect("it can be waited at");
                }
            });
            // A helper, which always has a request and never waits.
            scope.spawn(move || {
                while goes_on() {
                    let one = ArrivedRequest { index: 1, opcode: 0, bytes: 0, asked_bytes: 0 };
                    queue.look(false, &mut Vec::new(), &mut vec![one]).expect("it looks");
                    std::thread::yield_now();
                }
            });
            let mut are_found = true;
            for _ in 0..REPLIES {
                queue.note(0);
                let noted = Instant::now();
                while are_found && !queue.done.lock().is_empty() {
                    are_found = noted.elapsed() < SOON;
                    std::thread::yield_now();
                }
            }
            has_ended.store(true, Ordering::Release);
            // The helper may receive a call too, and the waiter begin to wait after one.
            while !waiter.is_finished() {
                queue.call_all();
                std::thread::yield_now();
            }
            assert!(are_found, "a reply was noted, and who waits was not called");
        });
    }

    #[test]
    fn many_ring_once_and_who_rings_late_silences_nobody() {
        let bell = Bell::default();
        assert!(!bell.is_waited_for());
        bell.begin();
        assert!(bell.is_waited_for());
        assert_eq!([bell.rings(), bell.rings()], [true, false]);
        bell.end();
        bell.begin();
        // A replying thread saw the waiter, and calls only now.
        bell.end();
        assert!(bell.rings());
        bell.begin();
        assert!(bell.rings(), "what is noted from now on is found by nobody else");
    }
}
