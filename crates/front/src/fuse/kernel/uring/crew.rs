//! Helper threads of the queues. They take surplus requests, and lead a queue whose own thread is
//! stuck.
//!
//! # Invariants
//!
//! - CW1: If a queue's thread is busy with a long request while the queue has requests or replies,
//!   a helper leads the queue after at most two ticks ([`TICK`]), unless all helpers are busy with
//!   long requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::queue::{ArrivedRequest, UringQueue};

/// Period of progress checks while there is work. Each costs a wake-up of some microseconds.
const TICK: Duration = Duration::from_millis(1);

/// Ticks without work after which the watch thread sleeps.
const QUIET_TICKS_MAX: u32 = 16;

pub(super) enum HelperJob {
    /// Answer a request of a queue. The flag is set if a helper was woken for the request.
    Answer(usize, ArrivedRequest, bool),
    /// Lead a queue until the round count of its own thread differs from this.
    StandIn(usize, u64),
    Rest,
}

#[derive(Default)]
pub(super) struct QueueHelpers {
    state: Mutex<QueueHelpersState>,
    /// Hint that jobs may exist. If clear, the lock is not taken.
    has_jobs: AtomicBool,
    has_job: Condvar,
    has_ended: AtomicBool,
    /// The watch thread sleeps until there is work.
    is_quiet: Mutex<bool>,
    sleeps: AtomicBool,
    wakes: Condvar,
}

#[derive(Default)]
struct QueueHelpersState {
    jobs: VecDeque<HelperJob>,
    idle: usize,
    /// A job of deferred work ([`HelperJob::Rest`]) is queued or running.
    has_rest: bool,
}

impl QueueHelpers {
    /// Queues a request, and wakes a helper for it if `is_urgent`.
    pub(super) fn add(&self, queue: usize, found: ArrivedRequest, is_urgent: bool) {
        let mut state = self.state.lock();
        let is_called = is_urgent && state.idle > 0;
        state.jobs.push_back(HelperJob::Answer(queue, found, is_called));
        self.has_jobs.store(true, Ordering::Release);
        if is_called {
            self.has_job.notify_one();
        }
    }

    pub(super) fn add_rest(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.has_rest, true) {
            state.jobs.push_back(HelperJob::Rest);
            self.has_job.notify_one();
        }
    }

    pub(super) fn end_rest(&self) {
        self.state.lock().has_rest = false;
    }

    /// Takes the oldest queued request for which no helper was woken, or of all if no helper is
    /// idle.
    pub(super) fn take(&self) -> Option<(usize, ArrivedRequest)> {
        if !self.has_jobs.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state.lock();
        // Without an idle helper, a woken one will not come soon.
        let are_busy = state.idle == 0;
        let is_left = |job: &HelperJob| match job {
            HelperJob::Answer(_, _, is_called) => are_busy || !is_called,
            HelperJob::StandIn(..) | HelperJob::Rest => false,
        };
        let Some(at) = state.jobs.iter().position(is_left) else {
            self.has_jobs.store(!state.jobs.is_empty(), Ordering::Release);
            return None;
        };
        match state.jobs.remove(at) {
            Some(HelperJob::Answer(queue, found, _)) => Some((queue, found)),
            _ => None,
        }
    }

    pub(super) fn take_read(&self) -> Option<(usize, ArrivedRequest)> {
        let mut state = self.state.lock();
        match state.jobs.pop_front() {
            Some(HelperJob::Answer(queue, found, _)) if found.is_read() => Some((queue, found)),
            Some(job) => {
                state.jobs.push_front(job);
                None
            }
            None => None,
        }
    }

    pub(super) fn next(&self) -> Option<HelperJob> {
        let mut state = self.state.lock();
        loop {
            if self.has_ended() {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            self.has_job.wait(&mut state);
            state.idle -= 1;
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(super) fn end(&self, queues: &[UringQueue]) {
        let state = self.state.lock();
        self.has_ended.store(true, Ordering::Release);
        self.has_job.notify_all();
        drop(state);
        *self.is_quiet.lock() = false;
        self.wakes.notify_all();
        queues.iter().for_each(UringQueue::call_all);
    }

    /// Wakes the watch thread. The caller must no longer count as waiting at its queue.
    pub(super) fn notice_work(&self) {
        if self.sleeps.load(Ordering::SeqCst) {
            *self.is_quiet.lock() = false;
            self.sleeps.store(false, Ordering::SeqCst);
            self.wakes.notify_all();
        }
    }

    /// Checks the queues' progress until the end, and sends helpers to stuck ones.
    pub(super) fn watch(&self, queues: &[UringQueue], helpers: usize) {
        let mut seen: Vec<(Option<u64>, u32)> = vec![(None, 0); queues.len()];
        let mut quiet = 0;
        while !self.has_ended() {
            self.rest(queues, &mut quiet);
            quiet += 1;
            for (number, (queue, seen)) in queues.iter().zip(&mut seen).enumerate() {
                let rounds = queue.rounds();
                if rounds.is_some() {
                    quiet = 0;
                }
                let is_stuck = rounds.is_some() && rounds == seen.0;
                *seen = (rounds, if is_stuck { seen.1 + 1 } else { 0 });
                if is_stuck {
                    self.stand_in(number, queue, helpers);
                }
            }
        }
    }

    /// Waits for a tick, or for work after a quiet period.
    fn rest(&self, queues: &[UringQueue], quiet: &mut u32) {
        let mut is_quiet = self.is_quiet.lock();
        if *quiet < QUIET_TICKS_MAX {
            self.wakes.wait_for(&mut is_quiet, TICK);
            return;
        }
        self.sleeps.store(true, Ordering::SeqCst);
        // This thread sets `sleeps`, then checks for work. A thread with work ends its wait, then
        // checks `sleeps`. So either this thread sees the work, or that thread sees `sleeps`.
        *is_quiet = !self.has_ended() && queues.iter().all(|queue| queue.rounds().is_none());
        while *is_quiet {
            self.wakes.wait(&mut is_quiet);
        }
        *quiet = 0;
    }

    /// Sends a helper to a stuck queue, unless every helper already has a job.
    fn stand_in(&self, number: usize, queue: &UringQueue, helpers: usize) {
        let mut state = self.state.lock();
        if state.jobs.len() < helpers.max(1) || state.idle > 0 {
            // At the front, as jobs queued earlier may need this queue's progress.
            state.jobs.push_front(HelperJob::StandIn(number, queue.own_rounds()));
        }
        self.has_job.notify_one();
    }
}
