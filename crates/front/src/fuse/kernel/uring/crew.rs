//! Threads that help those of the queues: with what a queue's thread has too much of, and in its
//! place while it is stuck.
//!
//! # Invariants
//!
//! - CW1: While a queue has requests or replies, one of the helpers looks at it at the latest two
//!   ticks ([`TICK`]) after its own thread has begun a request that takes long, unless all helpers
//!   are at such requests.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::queue::{Found, Queue};

/// How often it is looked whether the queues get on, while there is work: each time costs a wake-up
/// of some microseconds.
const TICK: Duration = Duration::from_millis(1);

/// Ticks without any work after which nobody looks any more.
const QUIET_TICKS_MAX: u32 = 16;

/// What a helper does next.
pub(super) enum Job {
    /// Answer the request in an entry of a queue; a helper was woken for it, or not.
    Answer(usize, Found, bool),
    /// Lead a queue until its own thread, which has looked so often, looks again.
    StandIn(usize, u64),
    /// Do what requests have put off.
    Rest,
}

#[derive(Default)]
pub(super) struct Crew {
    state: Mutex<State>,
    /// Whether there may be jobs: so nobody locks to find none.
    has_jobs: AtomicBool,
    /// Helpers wait here.
    has_job: Condvar,
    has_ended: AtomicBool,
    /// Whether the watch sleeps until there is work.
    is_quiet: Mutex<bool>,
    sleeps: AtomicBool,
    wakes: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    /// Whether somebody does, or will do, what requests have put off.
    has_rest: bool,
}

impl Crew {
    /// Leaves a request; wakes a helper for it if `is_urgent`. What is not, whoever comes by does.
    pub(super) fn add(&self, queue: usize, found: Found, is_urgent: bool) {
        let mut state = self.state.lock();
        let is_called = is_urgent && state.idle > 0;
        state.jobs.push_back(Job::Answer(queue, found, is_called));
        self.has_jobs.store(true, Ordering::Release);
        if is_called {
            self.has_job.notify_one();
        }
    }

    /// Has a helper do what requests have put off, unless one is asked to already.
    pub(super) fn add_rest(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.has_rest, true) {
            state.jobs.push_back(Job::Rest);
            self.has_job.notify_one();
        }
    }

    /// Notes that a helper did what requests had put off.
    pub(super) fn end_rest(&self) {
        self.state.lock().has_rest = false;
    }

    /// Takes the oldest request that somebody left, and for which no helper was woken.
    pub(super) fn take(&self) -> Option<(usize, Found)> {
        if !self.has_jobs.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state.lock();
        // Where all helpers are busy, whoever was woken is not there soon.
        let are_busy = state.idle == 0;
        let is_left =
            |job: &Job| matches!(job, Job::Answer(_, _, is_called) if are_busy || !is_called);
        let Some(at) = state.jobs.iter().position(is_left) else {
            self.has_jobs.store(!state.jobs.is_empty(), Ordering::Release);
            return None;
        };
        match state.jobs.remove(at) {
            Some(Job::Answer(queue, found, _)) => Some((queue, found)),
            _ => None,
        }
    }

    /// Takes the oldest request, if it is a read.
    pub(super) fn take_read(&self) -> Option<(usize, Found)> {
        let mut state = self.state.lock();
        match state.jobs.pop_front() {
            Some(Job::Answer(queue, found, _)) if found.is_read() => Some((queue, found)),
            Some(job) => {
                state.jobs.push_front(job);
                None
            }
            None => None,
        }
    }

    /// Waits for a job. `None`: it is over.
    pub(super) fn next(&self) -> Option<Job> {
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

    /// Returns whether the connection has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the work of all.
    pub(super) fn end(&self, queues: &[Queue]) {
        let state = self.state.lock();
        self.has_ended.store(true, Ordering::Release);
        self.has_job.notify_all();
        drop(state);
        *self.is_quiet.lock() = false;
        self.wakes.notify_all();
        queues.iter().for_each(Queue::call_all);
    }

    /// Says that there is work, after one has ended to wait at a queue.
    pub(super) fn notice_work(&self) {
        if self.sleeps.load(Ordering::SeqCst) {
            *self.is_quiet.lock() = false;
            self.sleeps.store(false, Ordering::SeqCst);
            self.wakes.notify_all();
        }
    }

    /// Looks whether the queues get on, until it is over; calls helpers where they do not.
    pub(super) fn watch(&self, queues: &[Queue], helpers: usize) {
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

    /// Waits for a tick, or for work if there was none for long.
    fn rest(&self, queues: &[Queue], quiet: &mut u32) {
        let mut is_quiet = self.is_quiet.lock();
        if *quiet < QUIET_TICKS_MAX {
            self.wakes.wait_for(&mut is_quiet, TICK);
            return;
        }
        self.sleeps.store(true, Ordering::SeqCst);
        // Who has work has ended to wait before it asks whether the watch sleeps: so one of both
        // sees the other.
        *is_quiet = !self.has_ended() && queues.iter().all(|queue| queue.rounds().is_none());
        while *is_quiet {
            self.wakes.wait(&mut is_quiet);
        }
        *quiet = 0;
    }

    /// Sends a helper to a queue that is stuck, unless as many are on their way as there are.
    fn stand_in(&self, number: usize, queue: &Queue, helpers: usize) {
        let mut state = self.state.lock();
        if state.jobs.len() < helpers.max(1) || state.idle > 0 {
            // Before what others have left: it may have to be done for that.
            state.jobs.push_front(Job::StandIn(number, queue.own_rounds()));
        }
        self.has_job.notify_one();
    }
}
