//! The io_uring transport.
//!
//! # Leader
//!
//! There is no reaper thread. The first waiter leads: it blocks in the kernel and processes all
//! completions. When its own has arrived, it passes the lead to another waiter. So a caller with
//! many requests in flight gets many completions per system call without a context switch. Every
//! waiter, the leader included, returns at its deadline.
//!
//! A thread always uses the same ring of a device. So each of a few threads leads its own ring, and
//! is woken only for its own completions (decision 0036).
//!
//! # Invariants
//!
//! - UR1: The memory of a request belongs to its slot from submission until its completion is
//!   processed. Neither a dropped ticket, nor expiry, nor the end of the ring frees it: overdue
//!   requests are leaked.
//! - UR2: At most [`QUEUE_DEPTH`] slots are taken, and both queues are at least as large, so pushes
//!   find room and no completion is lost.
//! - UR3: Only the leader takes completions, and entries are pushed under the lock.
//!
//! # Concurrency
//!
//! One lock per ring, never held across a system call.
#![allow(unsafe_code)]

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;

use super::transfer::{TransferError, TransferProgress, slices_after};
use super::{FileTarget, QUEUE_DEPTH, RINGS_MAX};
use crate::convert::{to_u64, to_usize};
use crate::device::health::{TimedRequest, deadline_after, time_until};
use crate::device::{
    DeviceCompletion, DeviceError, DeviceOperation, PendingRequest, RequestKind, Ticket,
};

/// Read limit per entry, whose length has 32 bits. Longer reads take several.
const READ_BYTES_MAX: usize = 1 << 30;

#[derive(Debug)]
pub(super) struct Rings {
    target: Arc<FileTarget>,
    first: Arc<Uring>,
    /// Further rings, created on first use. `None` if the kernel refused one.
    others: [OnceLock<Option<Arc<Uring>>>; RINGS_MAX - 1],
}

impl Rings {
    pub(super) fn new(ring: IoUring, target: Arc<FileTarget>) -> Rings {
        let first = Uring::new(ring, Arc::clone(&target));
        Rings { target, first, others: Default::default() }
    }

    pub(super) fn of_thread(&self) -> &Arc<Uring> {
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        let number = NUMBER.with(|number| number % RINGS_MAX);
        let Some(other) = number.checked_sub(1) else { return &self.first };
        let make = || Some(Uring::new(Uring::ring().ok()?, Arc::clone(&self.target)));
        self.others[other].get_or_init(make).as_ref().unwrap_or(&self.first)
    }

    /// Processes late completions of abandoned requests, which show that a stalled device works
    /// again.
    pub(super) fn welcome_late_answers(&self) {
        if self.target.health.overdue() > 0 {
            let others = self.others.iter().filter_map(|ring| ring.get()?.as_ref());
            others.chain([&self.first]).for_each(|ring| ring.welcome_late_answers());
        }
    }
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

pub(super) struct Uring {
    target: Arc<FileTarget>,
    ring: IoUring,
    state: Mutex<UringState>,
    /// Signals a free slot, or a free lead.
    room: Condvar,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uring({} in flight)", QUEUE_DEPTH - self.state.lock().free.len())
    }
}

struct UringState {
    is_led: bool,
    slots: Vec<Option<UringSubmission>>,
    free: Vec<usize>,
    /// Slots of abandoned requests.
    overdue: usize,
    /// Waiters that block until their completion arrives or they get the lead.
    waiting: Vec<Arc<UringCompletion>>,
}

/// A submitted request (UR1).
struct UringSubmission {
    operation: DeviceOperation,
    /// Point to the pieces of a write. Read by the kernel after submission.
    vectors: Vec<libc::iovec>,
    progress: TransferProgress,
    answer: Arc<UringCompletion>,
}

// SAFETY: `vectors` points into the pieces that `operation` owns, and only the kernel follows it.
unsafe impl Send for UringSubmission {}

#[derive(Default)]
struct UringCompletion {
    state: Mutex<UringCompletionState>,
    /// Used with the lock of the ring's state.
    arrived: Condvar,
}

#[derive(Default)]
enum UringCompletionState {
    #[default]
    Awaited,
    Arrived(Result<DeviceCompletion, DeviceError>),
    /// The waiter has expired.
    Abandoned,
}

impl UringCompletion {
    fn has_arrived(&self) -> bool {
        matches!(*self.state.lock(), UringCompletionState::Arrived(_))
    }

    fn take(&self) -> Option<Result<DeviceCompletion, DeviceError>> {
        let mut state = self.state.lock();
        match std::mem::take(&mut *state) {
            UringCompletionState::Arrived(result) => Some(result),
            other @ (UringCompletionState::Awaited | UringCompletionState::Abandoned) => {
                *state = other;
                None
            }
        }
    }
}

struct UringRequest {
    uring: Arc<Uring>,
    answer: Arc<UringCompletion>,
    asked: TimedRequest,
    deadline: Instant,
}

impl PendingRequest for UringRequest {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        self.uring.wait(&self.answer, &self.asked, self.deadline)
    }
}

impl Uring {
    /// Creates a ring whose waits can time out (Linux 5.11).
    pub(super) fn ring() -> std::io::Result<IoUring> {
        let ring = IoUring::new(u32::try_from(QUEUE_DEPTH).expect("128"))?;
        if !ring.params().is_feature_ext_arg() {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        Ok(ring)
    }

    pub(super) fn new(ring: IoUring, target: Arc<FileTarget>) -> Arc<Uring> {
        let state = UringState {
            is_led: false,
            slots: (0..QUEUE_DEPTH).map(|_| None).collect(),
            free: (0..QUEUE_DEPTH).rev().collect(),
            overdue: 0,
            waiting: Vec::new(),
        };
        Arc::new(Uring { target, ring, state: Mutex::new(state), room: Condvar::new() })
    }

    pub(super) fn submit(
        self: &Arc<Uring>,
        operation: DeviceOperation,
        asked: TimedRequest,
    ) -> Ticket {
        let ticket = self.prepare(operation, asked);
        self.hand_over();
        ticket
    }

    fn hand_over(&self) {
        // If the kernel is short of memory, the leader's next system call submits the entries.
        let _ = self.ring.submit();
    }

    /// Pushes a request. It is submitted with all others on the ring, at the first wait or next
    /// submission.
    pub(super) fn prepare(
        self: &Arc<Uring>,
        operation: DeviceOperation,
        asked: TimedRequest,
    ) -> Ticket {
        let deadline = asked.deadline_from_now();
        let answer = Arc::new(UringCompletion::default());
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
            // Another submitter waiting for room may have to lead.
            self.room.notify_one();
        }
        let length = to_usize(operation.length_bytes());
        let (vectors, progress) = (Vec::new(), TransferProgress::new(length));
        let request = UringSubmission { operation, vectors, progress, answer: Arc::clone(&answer) };
        let request = state.slots[slot].insert(request);
        self.push(request, slot);
        drop(state);
        Ticket::new(Box::new(UringRequest { uring: Arc::clone(self), answer, asked, deadline }))
    }

    fn welcome_late_answers(&self) {
        let mut state = self.state.lock();
        if !state.is_led {
            self.take_answers(&mut state);
        }
    }

    /// Pushes the rest of a request.
    fn push(&self, request: &mut UringSubmission, slot: usize) {
        let file = types::Fd(self.target.file.as_raw_fd());
        let done = request.progress.done();
        let is_through = matches!(request.operation, DeviceOperation::WriteThrough { .. });
        let entry = match &mut request.operation {
            DeviceOperation::Read { offset, buffer } => {
                let rest = &mut buffer[done..];
                let length = u32::try_from(rest.len().min(READ_BYTES_MAX)).expect("2^30");
                opcode::Read::new(file, rest.as_mut_ptr(), length)
                    .offset(*offset + to_u64(done))
                    .build()
            }
            DeviceOperation::Write { offset, data }
            | DeviceOperation::WriteThrough { offset, data } => {
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
            DeviceOperation::Flush => {
                opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build()
            }
            DeviceOperation::Discard { offset, length_bytes } => {
                opcode::Fallocate::new(file, *length_bytes)
                    .offset(*offset)
                    .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                    .build()
            }
        };
        let entry = entry.user_data(to_u64(slot));
        // SAFETY: callers hold the state lock, so this is the only submission queue (UR3), and all
        // that the entry points to stays in place until completion (UR1).
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        pushed.expect("UR2: the ring has room");
    }

    fn wait(
        &self,
        answer: &Arc<UringCompletion>,
        asked: &TimedRequest,
        deadline: Instant,
    ) -> Result<DeviceCompletion, DeviceError> {
        let mut state = self.state.lock();
        let mut has_handed_over = false;
        loop {
            if let Some(result) = answer.take() {
                return result;
            }
            if time_until(deadline).is_none() {
                // A completion that has arrived counts: the waiter may be late, not the device.
                if !state.is_led {
                    self.take_answers(&mut state);
                }
                return answer.take().unwrap_or_else(|| {
                    *answer.state.lock() = UringCompletionState::Abandoned;
                    state.overdue += 1;
                    Err(self.target.health.expire(self.target.info(), asked, true))
                });
            }
            if state.is_led {
                if !has_handed_over && self.has_prepared(&state) {
                    // A leader already in the kernel does not submit it.
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

    /// Whether the ring holds entries not yet submitted.
    fn has_prepared(&self, _: &MutexGuard<'_, UringState>) -> bool {
        // SAFETY: the guard is of the lock under which entries are pushed (UR3).
        !unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Leads while `goes_on`, at most until `deadline`, and then passes the lead on.
    fn lead_while(
        &self,
        state: &mut MutexGuard<'_, UringState>,
        deadline: Instant,
        goes_on: impl Fn(&UringState) -> bool,
    ) {
        assert!(!state.is_led);
        state.is_led = true;
        while goes_on(state) {
            let Some(left) = time_until(deadline) else { break };
            MutexGuard::unlocked(state, || self.block_for_answers(left));
            self.take_answers(state);
        }
        state.is_led = false;
        // A waiter whose completion has arrived would return without leading.
        if let Some(next) = state.waiting.iter().find(|answer| !answer.has_arrived()) {
            next.arrived.notify_one();
        }
        self.room.notify_one();
    }

    /// Submits pending entries and waits for a completion, at most for `left`.
    fn block_for_answers(&self, left: std::time::Duration) {
        let time = types::Timespec::from(left);
        let arguments = types::SubmitArgs::new().timespec(&time);
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::TIME) => {}
                Some(Errno::INTR | Errno::AGAIN | Errno::BUSY) => std::thread::yield_now(),
                // The kernel still has the requests' memory, so there is no recovery.
                Some(_) | None => panic!("io_uring_enter refused a valid ring: {error}"),
            },
        }
    }

    fn take_answers(&self, state: &mut MutexGuard<'_, UringState>) {
        loop {
            // SAFETY: the caller leads and holds the lock, so this is the only completion queue
            // (UR3).
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

    /// Delivers a completion. Returns false if the waiter has left.
    fn deliver(&self, request: UringSubmission, end: Result<(), TransferError>) -> bool {
        let UringSubmission { operation, answer, .. } = request;
        let (kind, length_bytes) = (operation.kind(), operation.length_bytes());
        let offset = operation.offset().unwrap_or(0);
        let mut result = self.target.answer(kind, offset, length_bytes, end);
        if let DeviceOperation::WriteThrough { .. } = operation {
            result = self.target.answer_through(result);
        }
        let result = result.map(|()| {
            let buffer = match operation {
                DeviceOperation::Read { buffer, .. } => Some(buffer),
                DeviceOperation::Write { .. }
                | DeviceOperation::WriteThrough { .. }
                | DeviceOperation::Flush
                | DeviceOperation::Discard { .. } => None,
            };
            DeviceCompletion { buffer }
        });
        let mut state = answer.state.lock();
        // A late completion frees its memory unread.
        let is_awaited = !matches!(*state, UringCompletionState::Abandoned);
        if is_awaited {
            *state = UringCompletionState::Arrived(result);
            answer.arrived.notify_one();
        }
        is_awaited
    }
}

/// Accounts for one completion. Returns the result once the request has ended.
fn end_of(
    request: &mut UringSubmission,
    step: Result<usize, Errno>,
) -> Option<Result<(), TransferError>> {
    match request.operation.kind() {
        // Not retried, even after EINTR (D3).
        RequestKind::Flush => Some(step.map(drop).map_err(TransferError::System)),
        RequestKind::Discard => Some(step.map(drop).map_err(TransferError::System)),
        RequestKind::Read | RequestKind::Write => request.progress.advance(step),
    }
}

impl Drop for Uring {
    /// Waits for requests whose tickets were dropped (UR1), but not for overdue ones, with one
    /// deadline for all rings.
    fn drop(&mut self) {
        let health = &self.target.health;
        let deadline = *self.target.ends_at.get_or_init(|| deadline_after(health.deadline()));
        let mut state = self.state.lock();
        self.lead_while(&mut state, deadline, |state| {
            state.free.len() + state.overdue < QUEUE_DEPTH
        });
        for request in state.slots.iter_mut().filter_map(Option::take) {
            // The kernel may still write to the memory of the request (UR1).
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

    /// A ring on a pipe, whose reads complete when the test writes. `None` without io_uring.
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
            Uring::new(ring, Arc::new(FileTarget::new(file, Vec::new(), false, info, health))),
            writer,
        ))
    }

    fn submit_read(uring: &Arc<Uring>) -> Ticket {
        let read = DeviceOperation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
        match uring.target.health.admit(uring.target.info(), &read) {
            Ok(asked) => uring.submit(read, asked),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    fn spin_until(uring: &Uring, condition: impl Fn(&UringState) -> bool) {
        while !condition(&uring.state.lock()) {
            std::thread::yield_now();
        }
    }

    /// Goal: threads use different rings, and the next request on any ring finds a late completion
    /// on each.
    #[test]
    fn threads_ask_by_rings_of_their_own() {
        let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_MIN) else { return };
        let ring = Uring::ring().expect("there was one");
        let rings = Rings::new(ring, Arc::clone(&uring.target));
        let mine = Arc::as_ptr(rings.of_thread());
        assert_eq!(Arc::as_ptr(rings.of_thread()), mine);
        // Ring numbers are given out in sequence, also to other tests.
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

    /// Goal: dropping a dead device takes one deadline, with any number of rings.
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

    /// Either request may complete first, so each waiter leads once.
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
                // Only the other waiter can lead.
                spin_until(&uring, |state| state.is_led);
                writer.write_all(&[2; 4096]).expect("the pipe has room");
            });
        }
    }

    /// Goal: entries pushed while another thread leads are submitted.
    #[test]
    fn what_is_prepared_while_another_leads_is_handed_over() {
        let Some((uring, mut writer)) = ring_on_pipe(DEADLINE_DEFAULT) else { return };
        let first = submit_read(&uring);
        std::thread::scope(|scope| {
            let leader = scope.spawn(move || first.wait());
            spin_until(&uring, |state| state.is_led);
            let prepare = |_| {
                let read = DeviceOperation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
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

    fn is_expired(answer: &Result<DeviceCompletion, DeviceError>) -> bool {
        matches!(answer, Err(DeviceError::Expired { kind: RequestKind::Read, .. }))
    }

    /// Goal: a late completion writes only to unused memory. Method: the pipe delivers a pattern
    /// late, and all pages allocated until then are inspected.
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

    /// Goal: no caller hangs on a full queue, a leader, or the drop. Method: several threads read
    /// from a silent pipe, with more requests than slots.
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
