//! Requests by io_uring.
//!
//! # Who reaps
//!
//! No thread of its own: whoever waits first becomes the leader, blocks in the kernel, and takes in
//! all answers that have come, those of others too. When its own is among them it hands the lead
//! to another that waits. So a caller that submits many and waits for many, which is how Holdfast
//! writes and reads ahead, pays a system call for many answers and no change of thread; a reaper
//! thread would add one to each.
//!
//! # Invariants
//!
//! - U1: A request's memory belongs to its slot from the submission until the kernel's answer has
//!   been taken in. Nothing else frees it, a dropped ticket least of all.
//! - U2: At most [`QUEUE_DEPTH`] slots are taken, and both rings are at least as large, so a push
//!   finds room and no answer is lost.
//! - U3: Only the leader takes answers from the ring, and entries are pushed under the lock.
//!
//! # Concurrency
//!
//! One lock, never held across a system call.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use super::transfer::{Failure, Progress, slices_after};
use super::{QUEUE_DEPTH, Target};
use crate::convert::{to_u64, to_usize};
use crate::device::{Completion, DeviceError, Operation, PendingRequest, Ticket};

/// Most bytes of one entry, whose length has 32 bits; a longer read takes several.
const READ_BYTES_MAX: usize = 1 << 30;

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
    /// Those who wait for an answer, blocked until it has come or the lead is theirs.
    waiting: Vec<Arc<Answer>>,
}

/// A request that the kernel has (U1).
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
    result: Mutex<Option<Result<Completion, DeviceError>>>,
    /// Waited for under the lock of the state.
    arrived: Condvar,
}

struct UringRequest {
    uring: Arc<Uring>,
    answer: Arc<Answer>,
}

impl PendingRequest for UringRequest {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        self.uring.wait(&self.answer)
    }
}

impl Uring {
    /// Asks the kernel for a ring.
    pub(super) fn ring() -> std::io::Result<IoUring> {
        IoUring::new(u32::try_from(QUEUE_DEPTH).expect("128"))
    }

    pub(super) fn new(ring: IoUring, target: Arc<Target>) -> Arc<Uring> {
        let state = State {
            is_led: false,
            slots: (0..QUEUE_DEPTH).map(|_| None).collect(),
            free: (0..QUEUE_DEPTH).rev().collect(),
            waiting: Vec::new(),
        };
        Arc::new(Uring { target, ring, state: Mutex::new(state), room: Condvar::new() })
    }

    pub(super) fn submit(self: &Arc<Uring>, operation: Operation) -> Ticket {
        let answer = Arc::new(Answer::default());
        let mut state = self.state.lock();
        let slot = loop {
            match state.free.pop() {
                Some(slot) => break slot,
                None if state.is_led => self.room.wait(&mut state),
                None => self.lead_while(&mut state, |state| state.free.is_empty()),
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
        // If the kernel is short of memory now, the leader's next call submits it.
        let _ = self.ring.submit();
        Ticket::new(Box::new(UringRequest { uring: Arc::clone(self), answer }))
    }

    /// Puts what is left of a request on the ring.
    fn push(&self, request: &mut Request, slot: usize) {
        let file = types::Fd(self.target.file.as_raw_fd());
        let done = request.progress.done();
        let entry = match &mut request.operation {
            Operation::Read { offset, buffer } => {
                let rest = &mut buffer[done..];
                let length = u32::try_from(rest.len().min(READ_BYTES_MAX)).expect("2^30");
                opcode::Read::new(file, rest.as_mut_ptr(), length)
                    .offset(*offset + to_u64(done))
                    .build()
            }
            Operation::Write { offset, data } => {
                let vector = |slice: &std::io::IoSlice<'_>| libc::iovec {
                    iov_base: slice.as_ptr().cast_mut().cast(),
                    iov_len: slice.len(),
                };
                request.vectors = slices_after(data, done).iter().map(vector).collect();
                let count = u32::try_from(request.vectors.len()).expect("WRITE_PIECES_MAX");
                opcode::Writev::new(file, request.vectors.as_ptr(), count)
                    .offset(*offset + to_u64(done))
                    .build()
            }
            Operation::Flush => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Operation::Discard { .. } => unreachable!("the device does these itself"),
        };
        let entry = entry.user_data(to_u64(slot));
        // SAFETY: callers hold the lock of the state, so this is the only submission queue (U3);
        // and all that the entry points to stays where it is until the answer (U1).
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        pushed.expect("U2: the ring has room");
    }

    fn wait(&self, answer: &Arc<Answer>) -> Result<Completion, DeviceError> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = answer.result.lock().take() {
                return result;
            }
            if state.is_led {
                state.waiting.push(Arc::clone(answer));
                answer.arrived.wait(&mut state);
                state.waiting.retain(|other| !Arc::ptr_eq(other, answer));
            } else {
                self.lead_while(&mut state, |_| answer.result.lock().is_none());
            }
        }
    }

    /// Takes in answers while `goes_on`; then hands the lead on.
    fn lead_while(&self, state: &mut MutexGuard<'_, State>, goes_on: impl Fn(&State) -> bool) {
        assert!(!state.is_led);
        state.is_led = true;
        while goes_on(state) {
            MutexGuard::unlocked(state, || self.block_for_answers());
            self.take_answers(state);
        }
        state.is_led = false;
        // To one without an answer: one that has its answer would leave without leading.
        if let Some(next) = state.waiting.iter().find(|answer| answer.result.lock().is_none()) {
            next.arrived.notify_one();
        }
        self.room.notify_one();
    }

    /// Submits what is left to submit, and returns when there is an answer to take.
    fn block_for_answers(&self) {
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => std::thread::yield_now(),
                // The kernel still has the memory of the requests, so there is no way on.
                Some(_) | None => panic!("io_uring_enter refused a valid ring: {error}"),
            },
        }
    }

    fn take_answers(&self, state: &mut MutexGuard<'_, State>) {
        loop {
            // SAFETY: the caller leads and holds the lock: no other completion queue (U3).
            let Some(entry) = unsafe { self.ring.completion_shared() }.next() else {
                return;
            };
            let slot = to_usize(entry.user_data());
            let step = match usize::try_from(entry.result()) {
                Ok(count) => Ok(count),
                Err(_) => Err(Errno::from_raw_os_error(-entry.result())),
            };
            let mut request = state.slots[slot].take().expect("U1: an answer has its request");
            match end_of(&mut request, step) {
                Some(end) => {
                    state.free.push(slot);
                    self.room.notify_one();
                    self.deliver(request, end);
                }
                None => self.push(state.slots[slot].insert(request), slot),
            }
        }
    }

    fn deliver(&self, request: Request, end: Result<(), Failure>) {
        let Request { operation, answer, .. } = request;
        let (kind, length_bytes) = (operation.kind(), operation.length_bytes());
        let offset = operation.offset().unwrap_or(0);
        let result = self.target.answer(kind, offset, length_bytes, end).map(|()| {
            let buffer = match operation {
                Operation::Read { buffer, .. } => Some(buffer),
                Operation::Write { .. } | Operation::Flush | Operation::Discard { .. } => None,
            };
            Completion { buffer }
        });
        *answer.result.lock() = Some(result);
        answer.arrived.notify_one();
    }
}

/// Takes in one answer of the kernel; returns how the request ended, if it did.
fn end_of(request: &mut Request, step: Result<usize, Errno>) -> Option<Result<(), Failure>> {
    if matches!(request.operation, Operation::Flush) {
        // Never again, whatever it was (D3).
        return Some(step.map(drop).map_err(Failure::System));
    }
    request.progress.advance(step)
}

impl Drop for Uring {
    /// Waits for the requests whose tickets were dropped (U1).
    fn drop(&mut self) {
        let mut state = self.state.lock();
        self.lead_while(&mut state, |state| state.free.len() < QUEUE_DEPTH);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::device::{AlignedBuffer, DeviceInfo};

    /// A ring on a pipe, whose reads are answered when the test writes. `None` without io_uring.
    fn ring_on_pipe() -> Option<(Arc<Uring>, std::io::PipeWriter)> {
        let ring = Uring::ring().inspect_err(|e| eprintln!("SKIPPED io_uring: {e}")).ok()?;
        let (reader, writer) = std::io::pipe().expect("a process may have a pipe");
        let (name, transport) = ("pipe".to_owned(), "io_uring");
        let info = DeviceInfo { name, size_bytes: 4096, sector_bytes: 512, transport };
        let (file, has_failed) = (reader.into(), AtomicBool::new(false));
        Some((Uring::new(ring, Arc::new(Target { file, info, has_failed })), writer))
    }

    fn read() -> Operation {
        Operation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) }
    }

    fn spin_until(uring: &Uring, condition: impl Fn(&State) -> bool) {
        while !condition(&uring.state.lock()) {
            std::thread::yield_now();
        }
    }

    /// Either of two requests may be the one that is answered first, so each is once the leader's.
    #[test]
    fn leader_that_leaves_hands_the_lead_to_one_that_waits() {
        for is_swapped in [false, true] {
            let Some((uring, mut writer)) = ring_on_pipe() else { return };
            let mut tickets = [uring.submit(read()), uring.submit(read())];
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

    #[test]
    fn short_read_goes_on_where_it_ended() {
        let Some((uring, mut writer)) = ring_on_pipe() else { return };
        let ticket = uring.submit(read());
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
}
