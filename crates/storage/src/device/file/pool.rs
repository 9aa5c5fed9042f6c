//! Requests by `pread` and `pwrite`, on a few threads: what works where io_uring is refused.

#![allow(clippy::disallowed_methods, reason = "a real device answers from threads of its own")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::{QUEUE_DEPTH, Target};
use crate::device::{Completion, DeviceError, Operation, PendingRequest, Ticket};

/// Threads, and so requests at the device at one time. A thread that waits for a disk costs
/// little, and more would only wait longer in the disk's own queue.
const POOL_THREADS: usize = 8;

/// A few threads that take requests from one queue. They start with the first request: a caller
/// that only reads and writes at depth 1 needs none.
#[derive(Debug)]
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    target: Arc<Target>,
    state: Mutex<State>,
    /// There is a request, or the pool closes.
    filled: Condvar,
    /// There is room in the queue.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Operation, Arc<Answer>)>,
    is_closing: bool,
}

#[derive(Debug, Default)]
struct Answer {
    result: Mutex<Option<Result<Completion, DeviceError>>>,
    arrived: Condvar,
}

struct PoolRequest(Arc<Answer>);

impl PendingRequest for PoolRequest {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let mut result = self.0.result.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            self.0.arrived.wait(&mut result);
        }
    }
}

impl Pool {
    pub(super) fn new(target: &Arc<Target>) -> Pool {
        let shared = Shared {
            target: Arc::clone(target),
            state: Mutex::new(State::default()),
            filled: Condvar::new(),
            emptied: Condvar::new(),
        };
        Pool { shared: Arc::new(shared), threads: Mutex::new(Vec::new()) }
    }

    pub(super) fn submit(&self, operation: Operation) -> Ticket {
        if !self.start() {
            return Ticket::ready(self.shared.target.execute(operation));
        }
        let answer = Arc::new(Answer::default());
        let mut state = self.shared.state.lock();
        while state.queue.len() >= QUEUE_DEPTH {
            self.shared.emptied.wait(&mut state);
        }
        state.queue.push_back((operation, Arc::clone(&answer)));
        drop(state);
        self.shared.filled.notify_one();
        Ticket::new(Box::new(PoolRequest(answer)))
    }

    /// Starts the threads if they do not run; returns whether any does.
    fn start(&self) -> bool {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            for index in 0..POOL_THREADS {
                let shared = Arc::clone(&self.shared);
                let name = format!("device-{index}");
                let thread = std::thread::Builder::new().name(name).spawn(move || shared.work());
                // Fewer do as well, and none leaves the work to the callers.
                threads.extend(thread.ok());
            }
        }
        !threads.is_empty()
    }
}

impl Drop for Pool {
    /// Answers what is still queued.
    fn drop(&mut self) {
        self.shared.state.lock().is_closing = true;
        self.shared.filled.notify_all();
        for thread in self.threads.lock().drain(..) {
            thread.join().expect("a request does not panic");
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some((operation, answer)) = self.next() {
            let result = self.target.execute(operation);
            *answer.result.lock() = Some(result);
            answer.arrived.notify_one();
        }
    }

    /// Returns the next request, or `None` when the pool closes and all are taken.
    fn next(&self) -> Option<(Operation, Arc<Answer>)> {
        let mut state = self.state.lock();
        loop {
            if let Some(request) = state.queue.pop_front() {
                self.emptied.notify_one();
                return Some(request);
            }
            if state.is_closing {
                return None;
            }
            self.filled.wait(&mut state);
        }
    }
}
