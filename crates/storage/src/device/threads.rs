//! Calls that block, made by a few threads, so that whoever asked need not wait for ever.
//!
//! A thread in a system call cannot be called back. So the caller waits for an answer until the
//! deadline and leaves; the thread stays with the call and its memory, and throws a late answer
//! away. Another thread takes its place, so that what the device still answers is answered; as many
//! at most as calls may be overdue. When a late call returns, a thread is one too many, and ends.

#![allow(clippy::disallowed_methods, reason = "a real device answers from threads of its own")]

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::file::QUEUE_DEPTH;
use super::health::{Asked, Health, OVERDUE_MAX, deadline_after, time_until};
use super::{Completion, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose, Ticket};

/// Threads, and so requests at the device at one time, beside those that are overdue. A thread that
/// waits for a disk costs little, and more would only wait longer in the disk's own queue.
pub const POOL_THREADS: usize = 8;

/// What the threads call.
pub(super) trait Blocking: Send + Sync + Debug {
    /// Does what is asked, however long it takes.
    fn execute(&self, purpose: Purpose, operation: Operation) -> Result<Completion, DeviceError>;
    /// What it is called.
    fn info(&self) -> &DeviceInfo;
    /// Whether it can still be trusted.
    fn health(&self) -> &Health;
}

/// A few threads that take requests from one queue. They start with the first request.
#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: Arc<dyn Blocking>,
    state: Mutex<State>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// There is a request, or the threads are to end.
    filled: Condvar,
    /// There is room in the queue.
    emptied: Condvar,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Queued>,
    is_closing: bool,
    /// Threads that have not ended.
    alive: usize,
}

/// A request that no thread has taken.
#[derive(Debug)]
struct Queued {
    purpose: Purpose,
    operation: Operation,
    answer: Arc<Answer>,
    asked: Asked,
    deadline: Instant,
}

#[derive(Debug, Default)]
struct Answer {
    state: Mutex<AnswerState>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
enum AnswerState {
    #[default]
    Awaited,
    Arrived(Result<Completion, DeviceError>),
    /// Nobody waits any more.
    Abandoned,
}

struct ThreadRequest {
    shared: Arc<Shared>,
    answer: Arc<Answer>,
    asked: Asked,
    deadline: Instant,
}

impl PendingRequest for ThreadRequest {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let mut state = self.answer.state.lock();
        loop {
            if let AnswerState::Arrived(_) = *state {
                let AnswerState::Arrived(result) = std::mem::take(&mut *state) else {
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
    pub(super) fn new(target: Arc<dyn Blocking>) -> Threads {
        let shared = Shared {
            target,
            state: Mutex::new(State::default()),
            threads: Mutex::new(Vec::new()),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            ended: Condvar::new(),
        };
        Threads { shared: Arc::new(shared) }
    }

    pub(super) fn submit(&self, purpose: Purpose, operation: Operation, asked: Asked) -> Ticket {
        let deadline = asked.deadline_from_now();
        if !self.start() {
            return Ticket::ready(self.shared.target.execute(purpose, operation));
        }
        let answer = Arc::new(Answer::default());
        let mut state = self.shared.state.lock();
        while state.queue.len() >= QUEUE_DEPTH {
            if self.shared.emptied.wait_until(&mut state, deadline).timed_out() {
                drop(state);
                let target = &self.shared.target;
                return Ticket::ready(Err(target.health().expire(target.info(), &asked, false)));
            }
        }
        let queued = Queued { purpose, operation, answer: Arc::clone(&answer), asked, deadline };
        state.queue.push_back(queued);
        drop(state);
        self.shared.filled.notify_one();
        let shared = Arc::clone(&self.shared);
        Ticket::new(Box::new(ThreadRequest { shared, answer, asked, deadline }))
    }

    /// Starts the threads if they do not run; returns whether any does.
    fn start(&self) -> bool {
        let mut threads = self.shared.threads.lock();
        if threads.is_empty() {
            // Fewer do as well, and none leaves the work to the callers.
            threads.extend((0..POOL_THREADS).filter_map(|_| self.shared.start_one()));
        }
        !threads.is_empty()
    }
}

impl Drop for Threads {
    /// Answers what is still queued. Threads whose calls are overdue are left behind with them.
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
        // What nobody has begun is not begun by a thread that comes back.
        state.queue.clear();
        let is_over = state.alive == 0;
        drop(state);
        for thread in self.shared.threads.lock().drain(..).filter(|_| is_over) {
            thread.join().expect("a request does not panic");
        }
    }
}

impl Shared {
    fn start_one(self: &Arc<Shared>) -> Option<JoinHandle<()>> {
        self.state.lock().alive += 1;
        let shared = Arc::clone(self);
        let started = std::thread::Builder::new().name("device".to_owned());
        let started = started.spawn(move || shared.work());
        started.inspect_err(|_| self.state.lock().alive -= 1).ok()
    }

    /// Starts a thread in place of one whose call is overdue, unless there are too many.
    fn replace_one(self: &Arc<Shared>) {
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
        while let Some(Queued { purpose, operation, answer, .. }) = self.next() {
            let kind = operation.kind();
            let result = self.target.execute(purpose, operation);
            let mut state = answer.state.lock();
            if let AnswerState::Abandoned = *state {
                drop(state);
                self.target.health().returned(kind);
                let mut state = self.state.lock();
                if state.alive > POOL_THREADS {
                    state.alive -= 1;
                    self.ended.notify_all();
                    return;
                }
            } else {
                *state = AnswerState::Arrived(result);
                answer.arrived.notify_one();
            }
        }
        self.state.lock().alive -= 1;
        self.ended.notify_all();
    }

    /// Returns the next request, or `None` when the threads are to end and all are taken.
    fn next(&self) -> Option<Queued> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.queue.pop_front() {
                self.emptied.notify_one();
                if time_until(request.deadline).is_some() {
                    return Some(request);
                }
                let health = self.target.health();
                let expired = health.expire(self.target.info(), &request.asked, false);
                *request.answer.state.lock() = AnswerState::Arrived(Err(expired));
                request.answer.arrived.notify_one();
                continue;
            }
            if state.is_closing {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }

    /// The deadline has passed: the request leaves the queue, or its call is overdue from now on.
    fn expire(
        self: &Arc<Shared>,
        answer: &Arc<Answer>,
        asked: &Asked,
    ) -> Result<Completion, DeviceError> {
        let mut state = self.state.lock();
        let waiting = state.queue.iter().position(|queued| Arc::ptr_eq(&queued.answer, answer));
        if let Some(index) = waiting {
            state.queue.remove(index);
            self.emptied.notify_one();
        }
        let mut answered = answer.state.lock();
        if let AnswerState::Arrived(result) = std::mem::take(&mut *answered) {
            return result;
        }
        *answered = AnswerState::Abandoned;
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

    /// A device whose reads return, filled with a pattern, when the gate is opened.
    #[derive(Debug)]
    struct Gate {
        info: DeviceInfo,
        health: Health,
        is_open: Mutex<bool>,
        opened: Condvar,
        begun: AtomicUsize,
    }

    impl Gate {
        fn new() -> Arc<Gate> {
            Gate::with_deadline(DEADLINE_MIN)
        }

        fn with_deadline(deadline: Duration) -> Arc<Gate> {
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
            Arc::new(Gate {
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

    impl Blocking for Gate {
        fn execute(&self, _: Purpose, operation: Operation) -> Result<Completion, DeviceError> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let is_read = matches!(operation, Operation::Read { .. });
            let mut is_open = self.is_open.lock();
            while is_read && !*is_open {
                self.opened.wait(&mut is_open);
            }
            let Operation::Read { mut buffer, .. } = operation else {
                return Ok(Completion::default());
            };
            buffer.fill(0xca);
            Ok(Completion { buffer: Some(buffer) })
        }

        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn health(&self) -> &Health {
            &self.health
        }
    }

    fn submit_read(threads: &Threads, gate: &Gate) -> Ticket {
        let read = Operation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
        let asked = gate.health.admit(&gate.info, &read).expect("not stalled");
        threads.submit(Purpose::Data, read, asked)
    }

    fn is_expired(answer: &Result<Completion, DeviceError>) -> bool {
        matches!(answer, Err(DeviceError::Expired { kind: RequestKind::Read, .. }))
    }

    /// Goal: a late answer is seen by nobody, and a request that no thread has taken is not made
    /// after its deadline. Method: more reads than threads of a device that answers when all have
    /// left.
    #[test]
    fn overdue_calls_keep_their_memory_and_queued_ones_are_never_made() {
        let gate = Gate::new();
        let threads = Threads::new(Arc::<Gate>::clone(&gate));
        let tickets: Vec<Ticket> =
            (0..POOL_THREADS + 4).map(|_| submit_read(&threads, &gate)).collect();
        // The queued ones first: behind a call that is overdue another thread takes them.
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

    /// Goal: what a device still answers is answered, however many other calls hang; no more
    /// threads than promised wait for it, and they go when it is back. Method: reads hang, flushes
    /// do not.
    #[test]
    fn overdue_calls_stop_no_others() {
        // Beside overdue calls a flush gets a sixteenth of it.
        let gate = Gate::with_deadline(16 * DEADLINE_MIN);
        let threads = Threads::new(Arc::<Gate>::clone(&gate));
        let alive = || threads.shared.state.lock().alive;
        let flush = || {
            let asked = gate.health.admit(&gate.info, &Operation::Flush)?;
            threads.submit(Purpose::Journal, Operation::Flush, asked).wait()
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
        let gate = Gate::new();
        let threads = Threads::new(Arc::<Gate>::clone(&gate));
        let (first, second) = (submit_read(&threads, &gate), submit_read(&threads, &gate));
        assert!(is_expired(&first.wait()));
        // One is overdue, of the other nobody knows.
        drop(second);
        drop(threads);
        assert!(Arc::strong_count(&gate) > 1, "the call has nothing left to work on");
        gate.open();
        while Arc::strong_count(&gate) > 1 {
            std::thread::yield_now();
        }
    }
}
