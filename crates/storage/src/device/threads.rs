//! A pool of threads for blocking device calls, with deadlines.
//!
//! A system call cannot be interrupted. So the waiter leaves at the deadline, while the thread
//! stays with the call and its memory, and discards a late result. Another thread replaces it, up
//! to the limit of overdue calls. When a late call returns, a surplus thread ends.

#![allow(clippy::disallowed_methods, reason = "a real device answers from threads of its own")]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::file::QUEUE_DEPTH;
use super::health::{Health, OVERDUE_MAX, TimedRequest, deadline_after, time_until};
use super::{
    DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, PendingRequest, Ticket,
};

/// Threads, and so concurrent requests, besides overdue ones. More would only queue in the disk.
pub const POOL_THREADS: usize = 8;

/// A device with blocking calls.
pub(super) trait BlockingDevice: Send + Sync + Debug {
    fn execute(
        &self,
        purpose: IoPurpose,
        operation: DeviceOperation,
    ) -> Result<DeviceCompletion, DeviceError>;
    fn info(&self) -> &DeviceInfo;
    fn health(&self) -> &Health;
}

/// Threads that serve one queue. They start with the first request.
#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<ThreadPoolInner>,
}

#[derive(Debug)]
struct ThreadPoolInner {
    target: Arc<dyn BlockingDevice>,
    state: Mutex<ThreadPoolState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Signals a request, or closing.
    filled: Condvar,
    emptied: Condvar,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct ThreadPoolState {
    queue: VecDeque<QueuedRequest>,
    is_closing: bool,
    alive: usize,
}

#[derive(Debug)]
struct QueuedRequest {
    purpose: IoPurpose,
    operation: DeviceOperation,
    answer: Arc<ThreadCompletion>,
    asked: TimedRequest,
    deadline: Instant,
}

#[derive(Debug, Default)]
struct ThreadCompletion {
    state: Mutex<ThreadCompletionState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
enum ThreadCompletionState {
    #[default]
    Awaited,
    Arrived(Result<DeviceCompletion, DeviceError>),
    /// The waiter has gone.
    Abandoned,
}

struct ThreadRequest {
    shared: Arc<ThreadPoolInner>,
    answer: Arc<ThreadCompletion>,
    asked: TimedRequest,
    deadline: Instant,
}

impl PendingRequest for ThreadRequest {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let mut state = self.answer.state.lock();
        loop {
            if let ThreadCompletionState::Arrived(_) = *state {
                let ThreadCompletionState::Arrived(result) = std::mem::take(&mut *state) else {
                    unreachable!("looked at it under the lock")
                };
                return result;
            }
            if self.answer.arrived.wait_until(&mut state, self.deadline).timed_out() {
                drop(state);
                return self.shared.expire(&self.answer, &self.asked);
            }
        }
    }
}

impl Threads {
    pub(super) fn new(target: Arc<dyn BlockingDevice>) -> Threads {
        let shared = ThreadPoolInner {
            target,
            state: Mutex::new(ThreadPoolState::default()),
            threads: Mutex::new(Vec::new()),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            ended: Condvar::new(),
        };
        Threads { shared: Arc::new(shared) }
    }

    pub(super) fn submit(
        &self,
        purpose: IoPurpose,
        operation: DeviceOperation,
        asked: TimedRequest,
    ) -> Ticket {
        let deadline = asked.deadline_from_now();
        if !self.start() {
            return Ticket::ready(self.shared.target.execute(purpose, operation));
        }
        let answer = Arc::new(ThreadCompletion::default());
        let mut state = self.shared.state.lock();
        while state.queue.len() >= QUEUE_DEPTH {
            if self.shared.emptied.wait_until(&mut state, deadline).timed_out() {
                drop(state);
                let target = &self.shared.target;
                return Ticket::ready(Err(target.health().expire(target.info(), &asked, false)));
            }
        }
        let queued =
            QueuedRequest { purpose, operation, answer: Arc::clone(&answer), asked, deadline };
        state.queue.push_back(queued);
        drop(state);
        self.shared.filled.notify_one();
        let shared = Arc::clone(&self.shared);
        Ticket::new(Box::new(ThreadRequest { shared, answer, asked, deadline }))
    }

    /// Starts the threads unless they run. Returns whether any runs.
    fn start(&self) -> bool {
        let mut threads = self.shared.threads.lock();
        if threads.is_empty() {
            // Fewer threads are enough. Without any, callers execute their requests themselves.
            threads.extend((0..POOL_THREADS).filter_map(|_| self.shared.start_one()));
        }
        !threads.is_empty()
    }
}

impl Drop for Threads {
    /// Waits until the queue is served, but not for threads in overdue calls.
    fn drop(&mut self) {
        let health = self.shared.target.health();
        let deadline = deadline_after(health.deadline());
        let mut state = self.shared.state.lock();
        state.is_closing = true;
        self.shared.filled.notify_all();
        while state.alive > health.overdue() {
            if self.shared.ended.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        // A thread that returns late must not begin further requests.
        state.queue.clear();
        let is_over = state.alive == 0;
        drop(state);
        for thread in self.shared.threads.lock().drain(..).filter(|_| is_over) {
            thread.join().expect("a request does not panic");
        }
    }
}

impl ThreadPoolInner {
    fn start_one(self: &Arc<ThreadPoolInner>) -> Option<JoinHandle<()>> {
        self.state.lock().alive += 1;
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("device".to_owned());
        let started = started.spawn(move || shared.work());
        started.inspect_err(|_| self.state.lock().alive -= 1).ok()
    }

    /// Starts a thread to replace one in an overdue call, within the limit.
    fn replace_one(self: &Arc<ThreadPoolInner>) {
        let mut threads = self.threads.lock();
        let is_one_more = {
            let state = self.state.lock();
            !state.is_closing && state.alive < POOL_THREADS + OVERDUE_MAX
        };
        if is_one_more {
            threads.retain(|thread| !thread.is_finished());
            threads.extend(self.start_one());
        }
    }

    fn work(&self) {
        while let Some(QueuedRequest { purpose, operation, answer, .. }) = self.next() {
            let kind = operation.kind();
            let result = self.target.execute(purpose, operation);
            let mut state = answer.state.lock();
            if let ThreadCompletionState::Abandoned = *state {
                drop(state);
                self.target.health().returned(kind);
                let mut state = self.state.lock();
                if state.alive > POOL_THREADS {
                    state.alive -= 1;
                    self.ended.notify_all();
                    return;
                }
            } else {
                *state = ThreadCompletionState::Arrived(result);
                answer.arrived.notify_one();
            }
        }
        self.state.lock().alive -= 1;
        self.ended.notify_all();
    }

    /// Returns the next request. `None` once closing and the queue is empty.
    fn next(&self) -> Option<QueuedRequest> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.queue.pop_front() {
                self.emptied.notify_one();
                if time_until(request.deadline).is_some() {
                    return Some(request);
                }
                let health = self.target.health();
                let expired = health.expire(self.target.info(), &request.asked, false);
                *request.answer.state.lock() = ThreadCompletionState::Arrived(Err(expired));
                request.answer.arrived.notify_one();
                continue;
            }
            if state.is_closing {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    /// Expires a request: removes it from the queue, or marks its call overdue.
    fn expire(
        self: &Arc<ThreadPoolInner>,
        answer: &Arc<ThreadCompletion>,
        asked: &TimedRequest,
    ) -> Result<DeviceCompletion, DeviceError> {
        let mut state = self.state.lock();
        let waiting = state.queue.iter().position(|queued| Arc::ptr_eq(&queued.answer, answer));
        if let Some(index) = waiting {
            state.queue.remove(index);
            self.emptied.notify_one();
        }
        let mut answered = answer.state.lock();
        if let ThreadCompletionState::Arrived(result) = std::mem::take(&mut *answered) {
            return result;
        }
        *answered = ThreadCompletionState::Abandoned;
        let expired = self.target.health().expire(self.target.info(), asked, waiting.is_none());
        drop((answered, state));
        if waiting.is_none() {
            self.replace_one();
        }
        Err(expired)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::device::{AlignedBuffer, DEADLINE_MIN, RequestKind};

    /// A device whose reads block until the gate opens, and then return a pattern.
    #[derive(Debug)]
    struct GatedDevice {
        info: DeviceInfo,
        health: Health,
        is_open: Mutex<bool>,
        opened: Condvar,
        begun: AtomicUsize,
    }

    impl GatedDevice {
        fn new() -> Arc<GatedDevice> {
            GatedDevice::with_deadline(DEADLINE_MIN)
        }

        fn with_deadline(deadline: Duration) -> Arc<GatedDevice> {
            let name = "gate".to_owned();
            let info = DeviceInfo {
                name,
                size_bytes: 1 << 20,
                sector_bytes: 512,
                is_read_only: false,
                has_write_through: false,
                is_sparse: false,
                transport: "gate",
            };
            Arc::new(GatedDevice {
                info,
                health: Health::new(deadline),
                is_open: Mutex::new(false),
                opened: Condvar::new(),
                begun: AtomicUsize::new(0),
            })
        }

        fn open(&self) {
            *self.is_open.lock() = true;
            self.opened.notify_all();
        }
    }

    impl BlockingDevice for GatedDevice {
        fn execute(
            &self,
            _: IoPurpose,
            operation: DeviceOperation,
        ) -> Result<DeviceCompletion, DeviceError> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let is_read = matches!(operation, DeviceOperation::Read { .. });
            let mut is_open = self.is_open.lock();
            while is_read && !*is_open {
                self.opened.wait(&mut is_open);
            }
            let DeviceOperation::Read { mut buffer, .. } = operation else {
                return Ok(DeviceCompletion::default());
            };
            buffer.fill(0xca);
            Ok(DeviceCompletion { buffer: Some(buffer) })
        }

        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn health(&self) -> &Health {
            &self.health
        }
    }

    fn submit_read(threads: &Threads, gate: &GatedDevice) -> Ticket {
        let read = DeviceOperation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
        let asked = gate.health.admit(&gate.info, &read).expect("not stalled");
        threads.submit(IoPurpose::Data, read, asked)
    }

    fn is_expired(answer: &Result<DeviceCompletion, DeviceError>) -> bool {
        matches!(answer, Err(DeviceError::Expired { kind: RequestKind::Read, .. }))
    }

    /// Goal: a late result is discarded, and a queued request does not begin after its deadline.
    /// Method: a device that responds only after all waiters have left.
    #[test]
    fn overdue_calls_keep_their_memory_and_queued_ones_are_never_made() {
        let gate = GatedDevice::new();
        let threads = Threads::new(Arc::<GatedDevice>::clone(&gate));
        let tickets: Vec<Ticket> =
            (0..POOL_THREADS + 4).map(|_| submit_read(&threads, &gate)).collect();
        // The queued ones first, else a replacement thread would take them.
        for ticket in tickets.into_iter().rev() {
            let answer = ticket.wait();
            assert!(is_expired(&answer), "{answer:?}");
        }
        assert_eq!(gate.health.overdue(), POOL_THREADS);
        let others: Vec<AlignedBuffer> = (0..512).map(|_| AlignedBuffer::zeroed(4096)).collect();
        gate.open();
        while gate.health.overdue() > 0 {
            std::thread::yield_now();
        }
        assert!(others.iter().all(|page| page.iter().all(|&byte| byte == 0)), "seen");
        assert_eq!(gate.begun.load(Ordering::SeqCst), POOL_THREADS);
        submit_read(&threads, &gate).wait().expect("it answers again");
        drop(threads);
        assert_eq!(Arc::strong_count(&gate), 1, "a thread is left");
    }

    /// Goal: while some calls hang, others go on, with a bounded number of threads, which shrinks
    /// when the calls return. Method: only reads hang.
    #[test]
    fn overdue_calls_stop_no_others() {
        // While calls are overdue, a flush gets a sixteenth of the deadline.
        let gate = GatedDevice::with_deadline(16 * DEADLINE_MIN);
        let threads = Threads::new(Arc::<GatedDevice>::clone(&gate));
        let alive = || threads.shared.state.lock().alive;
        let flush = || {
            let asked = gate.health.admit(&gate.info, &DeviceOperation::Flush)?;
            threads.submit(IoPurpose::Journal, DeviceOperation::Flush, asked).wait()
        };
        let tickets: Vec<Ticket> =
            (0..POOL_THREADS).map(|_| submit_read(&threads, &gate)).collect();
        tickets.into_iter().for_each(|ticket| assert!(is_expired(&ticket.wait())));
        flush().expect("it hangs for reads alone");
        while gate.health.overdue() < OVERDUE_MAX {
            assert!(is_expired(&submit_read(&threads, &gate).wait()));
        }
        assert_eq!(alive(), POOL_THREADS + OVERDUE_MAX);
        gate.open();
        while alive() > POOL_THREADS {
            std::thread::yield_now();
        }
        flush().expect("it answers again");
        drop(threads);
        assert_eq!(Arc::strong_count(&gate), 1, "a thread is left");
    }

    #[test]
    fn threads_end_although_a_call_does_not_return() {
        let gate = GatedDevice::new();
        let threads = Threads::new(Arc::<GatedDevice>::clone(&gate));
        let (first, second) = (submit_read(&threads, &gate), submit_read(&threads, &gate));
        assert!(is_expired(&first.wait()));
        // The first call is overdue. The second is not, because nothing waited for its ticket.
        drop(second);
        drop(threads);
        assert!(Arc::strong_count(&gate) > 1, "the call has nothing left to work on");
        gate.open();
        while Arc::strong_count(&gate) > 1 {
            std::thread::yield_now();
        }
    }
}
