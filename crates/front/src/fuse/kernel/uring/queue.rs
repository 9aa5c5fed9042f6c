//! The queue of one processor: requests in entries, replies put there, entries given back.
//!
//! # Invariants
//!
//! - QU1: An entry is given back once, with the reply to the request that is in it: by whoever
//!   flushes the queue next, once the reply is there and nobody reads the request any more.
//! - QU2: Who takes a call lets the bell ring again, and then gives back the entries with a reply
//!   before it does anything else. Several may lead a queue at once, and who takes a call may take
//!   it from one who was about to wait.
//!
//! # Concurrency
//!
//! Replies come from any thread. Whoever leads the queue gives entries back before it waits; who
//! replies while it waits calls it. A reply is noted before it is asked whether somebody waits, and
//! who waits says so before it looks for replies: so one of both sees the other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::super::device::Device;
use super::super::exchange::{Replies, ReplyParts, refusal, unique_of};
use super::super::fuse_kernel::{InHeader, OutHeader, ReadIn, opcode};
use super::PAYLOAD_BYTES;
use super::ring::{Held, Ring, Told};

/// A request that moves so many bytes or more is long: to answer it takes longer than to wake a
/// helper.
const LONG_BYTES_MIN: usize = 64 << 10;

/// Bytes of an entry's first argument at most.
const ARGUMENT_BYTES_MAX: usize = 128;

pub(super) struct Queue {
    pub(super) ring: Ring,
    slots: Vec<Slot>,
    /// Entries with a reply.
    done: Mutex<Vec<usize>>,
    bell: Bell,
    /// How often somebody looked for requests, and how often the queue's own thread did.
    rounds: AtomicU64,
    own_rounds: AtomicU64,
}

/// Whether somebody waits at the ring, and was called: so that many replies call once.
#[derive(Default)]
struct Bell {
    waiting: AtomicU32,
    /// Whether somebody was called since the last began to wait.
    is_called: AtomicBool,
}

impl Bell {
    /// Begins to wait. What is noted before is found by looking now; what is noted later rings.
    fn begin(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // Here and not at the end: who rings then may come late, and would silence the next.
        self.was_heard();
    }

    /// Notes that somebody has heard it, perhaps not who waits: what is noted from now on rings.
    fn was_heard(&self) {
        self.is_called.store(false, Ordering::SeqCst);
    }

    fn end(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns whether to call; else somebody has.
    fn rings(&self) -> bool {
        !self.is_called.swap(true, Ordering::SeqCst)
    }
}

/// What is known of an entry that is ours.
#[derive(Default)]
struct Slot {
    /// The request in it; 0: none.
    unique: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None`: the kernel has it, or whoever reads the request.
    held: Option<Held>,
    is_answered: bool,
    /// A reply that came while the request was still read.
    early: Vec<u8>,
}

/// A request as it was found in its entry.
pub(super) struct Found {
    pub(super) index: usize,
    opcode: u32,
    /// Of the message.
    bytes: usize,
    /// Of what a READ asks for.
    asked_bytes: usize,
}

impl Found {
    pub(super) fn is_read(&self) -> bool {
        self.opcode == opcode::READ
    }

    /// Returns whether so much data is moved that waking a helper costs little beside it.
    pub(super) fn is_long(&self) -> bool {
        self.bytes.max(self.asked_bytes) >= LONG_BYTES_MIN
    }
}

impl Queue {
    pub(super) fn new(ring: Ring, entries: u16) -> Queue {
        Queue {
            ring,
            slots: (0..entries).map(|_| Slot::default()).collect(),
            done: Mutex::default(),
            bell: Bell::default(),
            rounds: AtomicU64::new(0),
            own_rounds: AtomicU64::new(0),
        }
    }

    /// Takes what has come: adds requests to `found`. Where there are any, they are to be answered
    /// next; where there are none, the caller waits. Returns the last error with which the kernel
    /// gave up an entry.
    pub(super) fn look(
        &self,
        is_own: bool,
        told: &mut Vec<Told>,
        found: &mut Vec<Found>,
    ) -> io::Result<Option<Errno>> {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        if is_own {
            self.own_rounds.fetch_add(1, Ordering::Relaxed);
        }
        let (mut lost, mut is_called) = (None, false);
        self.ring.reap(told);
        for one in told.drain(..) {
            match one {
                Told::Request(held) => found.extend(self.keep(held)),
                Told::Lost(errno) => lost = Some(errno),
                Told::Call => is_called = true,
            }
        }
        // QU2; who waits gives them back with the same system call.
        if is_called {
            self.bell.was_heard();
            if !found.is_empty() {
                self.flush()?;
            }
        }
        Ok(lost)
    }

    /// Puts an entry with a request in its slot.
    fn keep(&self, held: Held) -> Option<Found> {
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
        Some(Found { index, opcode: sent.opcode, bytes, asked_bytes })
    }

    /// Copies the request in the entry `found` to `head`. Of a WRITE the data stays where it is,
    /// and the entry is returned, which [`Queue::close`] takes back.
    pub(super) fn open(&self, found: &Found, head: &mut Vec<u8>) -> Option<Held> {
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

    /// Takes back an entry whose request nobody reads any more.
    pub(super) fn close(&self, held: Held) {
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

    /// Puts `reply` where it belongs; returns whether its request is here.
    fn answer(&self, unique: u64, reply: &ReplyParts<'_>, gives_back: bool) -> bool {
        let is_it = |slot: &Slot| slot.unique.load(Ordering::Acquire) == unique;
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

    /// Notes that an entry can be given back, and calls who waits.
    fn note(&self, index: usize) {
        self.done.lock().push(index);
        if self.bell.is_waited_for() {
            self.call();
        }
    }

    /// Calls who waits, or the next who will; for a reply, unless somebody has since that began to
    /// wait.
    fn call(&self) {
        if self.bell.rings() {
            self.call_all();
        }
    }

    /// Calls all who wait, or the next who will: who leaves calls those who come after it.
    pub(super) fn call_all(&self) {
        if let Err(error) = self.ring.call() {
            tracing::error!(%error, "who waits at a queue is not called");
        }
    }

    /// Pushes the entries with a reply; returns whether there were any.
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

    /// Gives back the entries with a reply.
    pub(super) fn flush(&self) -> io::Result<()> {
        if self.push()? { self.ring.submit() } else { Ok(()) }
    }

    /// Gives back the entries with a reply, and waits for a request or a call.
    pub(super) fn wait(&self) -> io::Result<()> {
        self.bell.begin();
        let waited = self.push().and_then(|_| self.ring.wait());
        self.bell.end();
        waited
    }

    /// Returns how often somebody looked, and `None` in its place while somebody waits.
    pub(super) fn rounds(&self) -> Option<u64> {
        (!self.bell.is_waited_for()).then(|| self.rounds.load(Ordering::Relaxed))
    }

    /// Returns how often the queue's own thread looked.
    pub(super) fn own_rounds(&self) -> u64 {
        self.own_rounds.load(Ordering::Relaxed)
    }
}

/// Returns what of the payload the kernel has filled.
pub(super) fn payload_of(held: &Held) -> &[u8] {
    let bytes = usize::try_from(held.header().payload_bytes).unwrap_or(usize::MAX);
    &held.payload()[..bytes.min(PAYLOAD_BYTES)]
}

/// Writes `reply` to the entry.
fn put(held: &mut Held, reply: &ReplyParts<'_>) {
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

/// Replies to requests that came by any queue of a mount.
pub(super) struct QueueReplies {
    pub(super) queues: Arc<Vec<Queue>>,
    /// Where to look first.
    pub(super) first: usize,
    /// Whether the thread gives long replies back itself. It is that of a helper: the kernel copies
    /// them in its name, beside the client and the queue's thread.
    pub(super) gives_back: bool,
    pub(super) device: Arc<Device>,
}

impl Replies for QueueReplies {
    fn send(&self, reply: &ReplyParts<'_>) {
        let unique = unique_of(reply.head);
        let (before, from) = self.queues.split_at(self.first.min(self.queues.len()));
        // One that is nowhere was taken back with its connection.
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

    /// Changes lengths and kind of what is in an entry, and in one of three cases all headers.
    fn fill_at_random(held: &mut Held, prng: &mut Prng) {
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

    /// Goal: whatever is in an entry, what is read of it lies in it, and a reply finds its place.
    #[test]
    fn entries_of_any_sort_are_read_within_their_bounds() {
        let prng = &mut Prng::from_seed(41);
        let ring = Ring::new(-1, 0, 2).expect("io_uring can be had where this is tested");
        let queue = Queue::new(ring, 2);
        let mut held = Held::new(1);
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
                let data = lent.as_ref().map(|held| super::super::Apart::Lent(payload_of(held)));
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

    /// Goal: who waits at a queue finds each reply, though a helper that leaves took the call.
    #[test]
    fn a_reply_is_given_back_whoever_takes_the_call_for_it() {
        const REPLIES: usize = 20_000;
        const SOON: Duration = Duration::from_secs(10);
        let ring = Ring::new(-1, 0, 2).expect("io_uring can be had where this is tested");
        let queue = &Queue::new(ring, 2);
        let has_ended = &AtomicBool::new(false);
        let goes_on = || !has_ended.load(Ordering::Acquire);
        std::thread::scope(|scope| {
            queue.ring.register().expect("it can be submitted");
            scope.spawn(move || {
                while goes_on() {
                    queue.look(true, &mut Vec::new(), &mut Vec::new()).expect("it looks");
                    queue.wait().expect("it can be waited at");
                }
            });
            // It has a request to answer each time, and leaves.
            scope.spawn(move || {
                while goes_on() {
                    let one = Found { index: 1, opcode: 0, bytes: 0, asked_bytes: 0 };
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
            queue.call_all();
            // The helper may take that, too.
            while queue.bell.is_waited_for() {
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
        // Somebody saw that it is waited, and then took its time.
        bell.end();
        assert!(bell.rings());
        bell.begin();
        assert!(bell.rings(), "what is noted from now on is found by nobody else");
    }
}
