//! Requests by io_uring.
//!
//! # Who reaps
//!
//! No thread of its own: whoever waits first becomes the leader, blocks in the kernel, and takes in
//! all answers that have come, those of others too. When its own is among them it hands the lead
//! to another that waits. So a caller that submits many and waits for many, which is how Holdfast
//! writes and reads ahead, pays a system call for many answers and no change of thread; a reaper
//! thread would add one to each. Who waits leaves at its deadline, the lead too.
//!
//! A device has several rings, and a thread always asks by the same: so each of few threads leads
//! its own, and is woken for its own answers alone (decision 0036).
//!
//! # Invariants
//!
//! - UR1: A request's memory belongs to its slot from the submission until the kernel's answer has
//!   been taken in. Nothing else frees it: not a dropped ticket, not an expired one, and not the
//!   end of the ring, which leaves what is overdue to the process.
//! - UR2: At most [`QUEUE_DEPTH`] slots are taken, and both rings are at least as large, so a push
//!   finds room and no answer is lost.
//! - UR3: Only the leader takes answers from the ring, and entries are pushed under the lock.
//!
//! # Concurrency
//!
//! One lock a ring, never held across a system call.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use super::transfer::{Failure, Progress, slices_after};
use super::{QUEUE_DEPTH, RINGS_MAX, Target};
use crate::convert::{to_u64, to_usize};
use crate::device::health::{Asked, deadline_after, time_until};
use crate::device::{Completion, DeviceError, Operation, PendingRequest, RequestKind, Ticket};

/// Most bytes of one entry, whose length has 32 bits; a longer read takes several.
const READ_BYTES_MAX: usize = 1 << 30;

/// Rings of one device. A thread always asks by the same: so it is told of its own answers alone,
/// and while there are no more threads than rings nobody else has to wake it.
#[derive(Debug)]
pub(super) struct Rings {
    target: Arc<Target>,
    first: Arc<Uring>,
    /// Made when a thread first asks by it; `None` if the kernel refused.
    others: [OnceLock<Option<Arc<Uring>>>; RINGS_MAX - 1],
}

impl Rings {
    pub(super) fn new(ring: IoUring, target: Arc<Target>) -> Rings {
        let first = Uring::new(ring, Arc::clone(&target));
        Rings { target, first, others: Default::default() }
    }

    /// Returns the ring of the calling thread.
    pub(super) fn of_thread(&self) -> &Arc<Uring> {
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let number = NUMBER.with(|number| number % RINGS_MAX);
        let Some(other) = number.checked_sub(1) else { return &self.first };
        let make = || Some(Uring::new(Uring::ring().ok()?, Arc::clone(&self.target)));
        self.others[other].get_or_init(make).as_ref().unwrap_or(&self.first)
    }

    /// Takes in what has come for those who left, so that a stalled device is found to be back.
    pub(super) fn welcome_late_answers(&self) {
        if self.target.health.overdue() > 0 {
            let others = self.others.iter().filter_map(|ring| ring.get()?.as_ref());
            others.chain([&self.first]).for_each(|ring| ring.welcome_late_answers());
        }
    }
}

/// Threads that have asked anything by a ring.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// See the module's header.
pub(super) struct Uring {
    target: Arc<Target>,
    ring: IoUring,
    state: Mutex<State>,
    /// A slot became free, or the lead did.
    room: Condvar,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uring({} in flight)", QUEUE_DEPTH - self.state.lock().free.len())
    }
}

struct State {
    is_led: bool,
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
    /// Slots of requests that nobody waits for any more.
    overdue: usize,
    /// Those who wait for an answer, blocked until it has come or the lead is theirs.
    waiting: Vec<Arc<Answer>>,
}

/// A request that the kernel has (UR1).
struct Request {
    operation: Operation,
    /// Into the pieces of a write; the kernel reads it after the submission.
    vectors: Vec<libc::iovec>,
    progress: Progress,
    answer: Arc<Answer>,
}

// SAFETY: `vectors` points into the pieces that `operation` owns, and only the kernel follows it.
unsafe impl Send for Request {}

#[derive(Default)]
struct Answer {
    state: Mutex<AnswerState>,
    /// Waited for under the lock of the state of the ring.
    arrived: Condvar,
}

#[derive(Default)]
enum AnswerState {
    #[default]
    Awaited,
    Arrived(Result<Completion, DeviceError>),
    /// The deadline has passed and nobody waits any more.
    Abandoned,
}

impl Answer {
    fn has_arrived(&self) -> bool {
        matches!(*self.state.lock(), AnswerState::Arrived(_))
    }

    /// Returns the answer; `None` if it has not arrived.
    fn take(&self) -> Option<Result<Completion, DeviceError>> {
        let mut state = self.state.lock();
        match std::mem::take(&mut *state) {
            AnswerState::Arrived(result) => Some(result),
            other @ (AnswerState::Awaited | AnswerState::Abandoned) => {
                *state = other;
                None
            }
        }
    }
}

struct UringRequest {
    uring: Arc<Uring>,
    answer: Arc<Answer>,
    asked: Asked,
    deadline: Instant,
}

impl PendingRequest for UringRequest {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        self.uring.wait(&self.answer, &self.asked, self.deadline)
    }
}

impl Uring {
    /// Asks the kernel for a ring that can be waited for with a deadline (Linux 5.11).
    pub(super) fn ring() -> std::io::Result<IoUring> {
        let ring = IoUring::new(u32::try_from(QUEUE_DEPTH).expect("128"))?;
        if !ring.params().is_feature_ext_arg() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        Ok(ring)
    }

    pub(super) fn new(ring: IoUring, target: Arc<Target>) -> Arc<Uring> {
        let state = State {
            is_led: false,
            slots: (0..QUEUE_DEPTH).map(|_| None).collect(),
            free: (0..QUEUE_DEPTH).rev().collect(),
            overdue: 0,
            waiting: Vec::new(),
        };
        Arc::new(Uring { target, ring, state: Mutex::new(state), room: Condvar::new() })
    }

    /// Hands a request to the kernel.
    pub(super) fn submit(self: &Arc<Uring>, operation: Operation, asked: Asked) -> Ticket {
        let ticket = self.prepare(operation, asked);
        self.hand_over();
        ticket
    }

    fn hand_over(&self) {
        // If the kernel is short of memory now, the leader's next call submits it.
        let _ = self.ring.submit();
    }

    /// Puts a request on the ring. The kernel gets it when its ticket is waited for, with all that
    /// is on the ring then, or with another that is submitted.
    pub(super) fn prepare(self: &Arc<Uring>, operation: Operation, asked: Asked) -> Ticket {
        let deadline = asked.deadline_from_now();
        let answer = Arc::new(Answer::default());
        let mut state = self.state.lock();
        let slot = loop {
            if let Some(slot) = state.free.pop() {
                break slot;
            }
            let timed_out = if state.is_led {
                self.room.wait_until(&mut state, deadline).timed_out()
            } else {
                self.lead_while(&mut state, deadline, |state| state.free.is_empty());
                time_until(deadline).is_none()
            };
            if timed_out && state.free.is_empty() {
                let target = &self.target;
                return Ticket::ready(Err(target.health.expire(target.info(), &asked, false)));
            }
        };
        if !state.is_led {
            // Another that waits for room may have to lead.
            self.room.notify_one();
        }
        let length = to_usize(operation.length_bytes());
        let (vectors, progress) = (Vec::new(), Progress::new(length));
        let request = Request { operation, vectors, progress, answer: Arc::clone(&answer) };
        let request = state.slots[slot].insert(request);
        self.push(request, slot);
        drop(state);
        Ticket::new(Box::new(UringRequest { uring: Arc::clone(self), answer, asked, deadline }))
    }

    /// Takes in what has come for those who left, so that a stalled device is found to be back.
    fn welcome_late_answers(&self) {
        let mut state = self.state.lock();
        if !state.is_led {
            self.take_answers(&mut state);
        }
    }

    /// Puts what is left of a request on the ring.
    fn push(&self, request: &mut Request, slot: usize) {
        let file = types::Fd(self.target.file.as_raw_fd());
        let done = request.progress.done();
        let is_through = matches!(request.operation, Operation::WriteThrough { .. });
        let entry = match &mut request.operation {
            Operation::Read { offset, buffer } => {
                let rest = &mut buffer[done..];
                let length = u32::try_from(rest.len().min(READ_BYTES_MAX)).expect("2^30");
                opcode::Read::new(file, rest.as_mut_ptr(), length)
                    .offset(*offset + to_u64(done))
                    .build()
            }
            Operation::Write { offset, data } | Operation::WriteThrough { offset, data } => {
                let vector = |slice: &std::io::IoSlice<'_>| libc::iovec {
                    iov_base: slice.as_ptr().cast_mut().cast(),
                    iov_len: slice.len(),
                };
                request.vectors = slices_after(data, done).iter().map(vector).collect();
                let count = u32::try_from(request.vectors.len()).expect("WRITE_PIECES_MAX");
                opcode::Writev::new(file, request.vectors.as_ptr(), count)
                    .offset(*offset + to_u64(done))
                    .rw_flags(if is_through { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            Operation::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Operation::Discard { offset, length_bytes } => {
                opcode::Fallocate::new(file, *length_bytes)
                    .offset(*offset)
                    .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                    .build()
            }
        };
        let entry = entry.user_data(to_u64(slot));
        // SAFETY: callers hold the lock of the state, so this is the only submission queue (UR3);
        // and all that the entry points to stays where it is until the answer (UR1).
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        pushed.expect("UR2: the ring has room");
    }

    fn wait(
        &self,
        answer: &Arc<Answer>,
        asked: &Asked,
        deadline: Instant,
    ) -> Result<Completion, DeviceError> {
        let mut state = self.state.lock();
        let mut has_handed_over = false;
        loop {
            if let Some(result) = answer.take() {
                return result;
            }
            if time_until(deadline).is_none() {
                // What has come meanwhile counts: the waiter may have come late, not the answer.
                if !state.is_led {
                    self.take_answers(&mut state);
                }
                return answer.take().unwrap_or_else(|| {
                    *answer.state.lock() = AnswerState::Abandoned;
                    state.overdue += 1;
                    Err(self.target.health.expire(self.target.info(), asked, true))
                });
            }
            if state.is_led {
                if !has_handed_over && self.has_prepared(&state) {
                    // A leader that is in the kernel already does not see it.
                    has_handed_over = true;
                    MutexGuard::unlocked(&mut state, || self.hand_over());
                    continue;
                }
                state.waiting.push(Arc::clone(answer));
                answer.arrived.wait_until(&mut state, deadline);
                state.waiting.retain(|other| !Arc::ptr_eq(other, answer));
            } else {
                self.lead_while(&mut state, deadline, |_| !answer.has_arrived());
            }
        }
    }

    /// Returns whether something is on the ring that the kernel has not been told of.
    fn has_prepared(&self, _: &MutexGuard<'_, State>) -> bool {
        // SAFETY: the guard is that of the lock under which entries are pushed (UR3).
        !unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Takes in answers while `goes_on`, until `deadline` at most; then hands the lead on.
    fn lead_while(
        &self,
        state: &mut MutexGuard<'_, State>,
        deadline: Instant,
        goes_on: impl Fn(&State) -> bool,
    ) {
        assert!(!state.is_led);
        state.is_led = true;
        while goes_on(state) {
            let Some(left) = time_until(deadline) else { break };
            MutexGuard::unlocked(state, || self.block_for_answers(left));
            self.take_answers(state);
        }
        state.is_led = false;
        // To one without an answer: one that has its answer would leave without leading.
        if let Some(next) = state.waiting.iter().find(|answer| !answer.has_arrived()) {
            next.arrived.notify_one();
        }
        self.room.notify_one();
    }

    /// Submits what is left to submit, and returns when there is an answer, or after `left`.
    fn block_for_answers(&self, left: std::time::Duration) {
        let time = types::Timespec::from(left);
        let arguments = types::SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::TIME) => {}
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => std::thread::yield_now(),
                // The kernel still has the memory of the requests, so there is no way on.
                Some(_) | None => panic!("io_uring_enter refused a valid ring: {error}"),
            },
        }
    }

    fn take_answers(&self, state: &mut MutexGuard<'_, State>) {
        loop {
            // SAFETY: the caller leads and holds the lock: no other completion queue (UR3).
            let Some(entry) = unsafe { self.ring.completion_shared() }.next() else {
                return;
            };
            let slot = to_usize(entry.user_data());
            let step = match usize::try_from(entry.result()) {
                Ok(count) => Ok(count),
                Err(_) => Err(Errno::from_raw_os_error(-entry.result())),
            };
            let mut request = state.slots[slot].take().expect("UR1: an answer has its request");
            match end_of(&mut request, step) {
                Some(end) => {
                    state.free.push(slot);
                    self.room.notify_one();
                    let kind = request.operation.kind();
                    if !self.deliver(request, end) {
                        state.overdue -= 1;
                        self.target.health.returned(kind);
                    }
                }
                None => self.push(state.slots[slot].insert(request), slot),
            }
        }
    }

    /// Tells the answer to whoever waits for it; returns whether anybody still does.
    fn deliver(&self, request: Request, end: Result<(), Failure>) -> bool {
        let Request { operation, answer, .. } = request;
        let (kind, length_bytes) = (operation.kind(), operation.length_bytes());
        let offset = operation.offset().unwrap_or(0);
        let mut result = self.target.answer(kind, offset, length_bytes, end);
        if let Operation::WriteThrough { .. } = operation {
            result = self.target.answer_through(result);
        }
        let result = result.map(|()| {
            let buffer = match operation {
                Operation::Read { buffer, .. } => Some(buffer),
                Operation::Write { .. }
                | Operation::WriteThrough { .. }
                | Operation::Flush
                | Operation::Discard { .. } => None,
            };
            Completion { buffer }
        });
        let mut state = answer.state.lock();
        // If it is late, its memory is free now, and nobody sees what is in it.
        let is_awaited = !matches!(*state, AnswerState::Abandoned);
        if is_awaited {
            *state = AnswerState::Arrived(result);
            answer.arrived.notify_one();
        }
        is_awaited
    }
}

/// Takes in one answer of the kernel; returns how the request ended, if it did.
fn end_of(request: &mut Request, step: Result<usize, Errno>) -> Option<Result<(), Failure>> {
    match request.operation.kind() {
        // Never again, whatever it was (D3).
        RequestKind::Flush => Some(step.map(drop).map_err(Failure::System)),
        RequestKind::Discard => Some(step.map(drop).map_err(Failure::System)),
        RequestKind::Read | RequestKind::Write => request.progress.advance(step),
    }
}

impl Drop for Uring {
    /// Waits for the requests whose tickets were dropped (UR1), but not again for overdue ones, and
    /// for those of all rings no longer than for one.
    fn drop(&mut self) {
        let health = &self.target.health;
        let deadline = *self.target.ends_at.get_or_init(|| deadline_after(health.deadline()));
        let mut state = self.state.lock();
        self.lead_while(&mut state, deadline, |state| {
            state.free.len() + state.overdue < QUEUE_DEPTH
        });
        for request in state.slots.iter_mut().filter_map(Option::take) {
            // UR1: the kernel may still write there.
            std::mem::forget(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::device::health::Health;
    use crate::device::{AlignedBuffer, DEADLINE_DEFAULT, DEADLINE_MIN, DeviceInfo};

    /// A ring on a pipe, whose reads are answered when the test writes. `None` without io_uring.
    fn ring_on_pipe(deadline: Duration) -> Option<(Arc<Uring>, std::io::PipeWriter)> {
        let ring = Uring::ring().inspect_err(|e| eprintln!("SKIPPED io_uring: {e}")).ok()?;
        let (reader, writer) = std::io::pipe().expect("a process may have a pipe");
        let (name, transport) = ("pipe".to_owned(), "io_uring");
        let info = DeviceInfo {
            name,
            size_bytes: 4096,
            sector_bytes: 512,
            is_read_only: false,
            has_write_through: false,
            is_sparse: false,
            transport,
        };
        let (file, health) = (reader.into(), Health::new(deadline));
        Some((
            Uring::new(ring, Arc::new(Target::new(file, Vec::new(), false, info, health))),
            writer,
        ))
    }

    fn submit_read(uring: &Arc<Uring>) -> Ticket {
        let read = Operation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
        match uring.target.health.admit(uring.target.info(), &read) {
            Ok(asked) => uring.submit(read, asked),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    fn spin_until(uring: &Uring, condition: impl Fn(&State) -> bool) {
        while !condition(&uring.state.lock()) {
            std::thread::yield_now();
        }
    }

    /// Goal: a thread asks by its own ring, and others by theirs while there are enough; what is
    /// late on any is found by whoever asks next.
    #[test]
    fn threads_ask_by_rings_of_their_own() {
        let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_MIN) else { return };
        let ring = Uring::ring().expect("there was one");
        let rings = Rings::new(ring, Arc::clone(&uring.target));
        let mine = Arc::as_ptr(rings.of_thread());
        assert_eq!(Arc::as_ptr(rings.of_thread()), mine);
        // Numbers are given out in order, and to threads of other tests meanwhile.
        let of_another = || {
            std::thread::scope(|scope| {
                let expire = || {
                    let ring = rings.of_thread();
                    assert!(is_expired(&submit_read(ring).wait()));
                    Arc::as_ptr(ring).addr()
                };
                scope.spawn(expire).join().expect("no panic")
            })
        };
        let others: std::collections::BTreeSet<usize> =
            (0..RINGS_MAX).map(|_| of_another()).collect();
        assert!(others.len() > 1, "all by one");
        assert_eq!(rings.target.health.overdue(), RINGS_MAX);
        (0..RINGS_MAX).for_each(|_| writer.write_all(&[1; 4096]).expect("the pipe has room"));
        while rings.target.health.overdue() > 0 {
            rings.welcome_late_answers();
        }
    }

    /// Goal: a device that never answers is let go after one deadline, however many rings it has.
    #[test]
    fn rings_end_together() {
        let Some((uring, _writer)) = ring_on_pipe(DEADLINE_MIN) else { return };
        let ring = Uring::ring().expect("there was one");
        let rings = Rings::new(ring, Arc::clone(&uring.target));
        for _ in 0..RINGS_MAX {
            std::thread::scope(|scope| {
                scope.spawn(|| drop(submit_read(rings.of_thread())));
            });
        }
        let second_deadline = deadline_after(2 * DEADLINE_MIN);
        drop(rings);
        assert!(time_until(second_deadline).is_some(), "one after the other");
    }

    /// Either of two requests may be the one that is answered first, so each is once the leader's.
    #[test]
    fn leader_that_leaves_hands_the_lead_to_one_that_waits() {
        for is_swapped in [false, true] {
            let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_DEFAULT) else { return };
            let mut tickets = [submit_read(&uring), submit_read(&uring)];
            if is_swapped {
                tickets.reverse();
            }
            let done = AtomicUsize::new(0);
            let wait = &|ticket: Ticket| {
                ticket.wait().expect("the pipe works");
                done.fetch_add(1, Ordering::SeqCst);
            };
            let [first, second] = tickets;
            std::thread::scope(|scope| {
                scope.spawn(move || wait(first));
                spin_until(&uring, |state| state.is_led);
                scope.spawn(move || wait(second));
                spin_until(&uring, |state| state.waiting.len() == 1);
                writer.write_all(&[1; 4096]).expect("the pipe has room");
                spin_until(&uring, |_| done.load(Ordering::SeqCst) == 1);
                // Nobody but the other is left to lead.
                spin_until(&uring, |state| state.is_led);
                writer.write_all(&[2; 4096]).expect("the pipe has room");
            });
        }
    }

    /// Goal: what was put on the ring behind the back of a leader reaches the kernel all the same.
    #[test]
    fn what_is_prepared_while_another_leads_is_handed_over() {
        let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_DEFAULT) else { return };
        let first = submit_read(&uring);
        std::thread::scope(|scope| {
            let leader = scope.spawn(move || first.wait());
            spin_until(&uring, |state| state.is_led);
            let prepare = |_| {
                let read = Operation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
                let asked = uring.target.health.admit(uring.target.info(), &read).expect("sound");
                uring.prepare(read, asked)
            };
            let prepared: Vec<Ticket> = (0..2).map(prepare).collect();
            let behind = scope.spawn(|| prepared.into_iter().map(Ticket::wait).collect::<Vec<_>>());
            spin_until(&uring, |state| state.waiting.len() == 1);
            let mut ring = uring.state.lock();
            assert!(!uring.has_prepared(&ring), "the kernel does not know of them");
            MutexGuard::unlocked(&mut ring, || {
                (0..3).for_each(|_| writer.write_all(&[1; 4096]).expect("the pipe has room"));
            });
            drop(ring);
            leader.join().expect("no panic").expect("the pipe works");
            for answer in behind.join().expect("no panic") {
                answer.expect("the pipe works");
            }
        });
    }

    #[test]
    fn short_read_goes_on_where_it_ended() {
        let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_DEFAULT) else { return };
        let ticket = submit_read(&uring);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || ticket.wait());
            for part in [[1; 1024], [2; 1024], [3; 1024], [4; 1024]] {
                spin_until(&uring, |state| state.is_led);
                writer.write_all(&part).expect("the pipe has room");
            }
            let answer = reader.join().expect("no panic").expect("the pipe works");
            let buffer = answer.buffer.expect("a read");
            let found: Vec<u8> = buffer.chunks(1024).map(|part| part[1023]).collect();
            assert_eq!(found, [1, 2, 3, 4]);
        });
    }

    fn is_expired(answer: &Result<Completion, DeviceError>) -> bool {
        matches!(answer, Err(DeviceError::Expired { kind: RequestKind::Read, .. }))
    }

    /// Goal: a late answer lands in memory that nobody has, and nobody sees it. Method: the pipe
    /// answers with a pattern when the reader has left; every page that could be given out again
    /// meanwhile is held and looked at.
    #[test]
    fn read_that_expires_keeps_its_memory_until_it_is_answered() {
        let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_MIN) else { return };
        let answer = submit_read(&uring).wait();
        assert!(is_expired(&answer), "{answer:?}");
        assert_eq!(uring.target.health.overdue(), 1);
        let others: Vec<AlignedBuffer> = (0..512).map(|_| AlignedBuffer::zeroed(4096)).collect();
        writer.write_all(&[0xca; 4096]).expect("the pipe has room");
        while uring.target.health.overdue() > 0 {
            uring.welcome_late_answers();
        }
        assert!(others.iter().all(|page| page.iter().all(|&byte| byte == 0)), "seen");
        assert!((0..512).all(|_| AlignedBuffer::zeroed(4096).iter().all(|&byte| byte == 0)));
        assert_eq!(uring.state.lock().free.len(), QUEUE_DEPTH, "its place is free again");
        let ticket = submit_read(&uring);
        writer.write_all(&[1; 4096]).expect("the pipe has room");
        let buffer = ticket.wait().expect("it answers again").buffer.expect("a read");
        assert!(buffer.iter().all(|&byte| byte == 1));
    }

    /// Goal: no caller stays behind a full queue, a leader, or the end of the device. Method: more
    /// reads than there are slots, from several threads, of a pipe that nobody writes to.
    #[test]
    fn ring_that_never_answers_lets_everybody_go() {
        let Some((uring, _writer)) = ring_on_pipe(DEADLINE_MIN) else { return };
        let uring = &uring;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let submit = |_| submit_read(uring);
                    let tickets: Vec<Ticket> = (0..QUEUE_DEPTH / 4 + 4).map(submit).collect();
                    for ticket in tickets {
                        let error = ticket.wait().expect_err("nobody answers");
                        let is_told = matches!(
                            error,
                            DeviceError::Expired { .. } | DeviceError::Stalled { .. }
                        );
                        assert!(is_told, "{error}");
                    }
                });
            }
        });
        assert_eq!(uring.target.health.overdue(), QUEUE_DEPTH, "one for each slot");
    }
}
