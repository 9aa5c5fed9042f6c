//! Leader and followers: one thread serves a busy client while the others wait.
//!
//! The kernel wakes a thread in read(2) for each message. If one thread polls while others wait in
//! read(2), each message wakes one of them in vain, or moves the client's work to another CPU's
//! caches. So a thread that repeatedly finds messages by polling takes the *lead*. The others
//! finish their message and become *followers*: they wait on a condition variable, not in read(2).
//!
//! # Invariants
//!
//! - LF1: A thread follows only while another leads.
//! - LF2: A message keeps the leader for at most two ticks ([`TICK`]). Then a follower takes the
//!   lead. So followers delay no message for longer.
//!
//! # Concurrency
//!
//! Per message, the leader does one compare-exchange, which fails if it has lost the lead. Only
//! following and revoking take the lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Period of progress checks by one follower. Each costs a wake-up of some microseconds.
const TICK: Duration = Duration::from_millis(1);

/// Consecutive messages found by polling before a thread takes the lead.
const QUICK_MIN: u32 = 16;
/// Weight of a message from another client thread than the previous one. From the same thread: -1.
const OTHER_COUNTS: u32 = 16;
/// Sum of weights above which there are several clients.
const OTHERS_MAX: u32 = 32;
/// Shortest pause without a leader after a lead, in messages. Quadruples, up to [`REST_MAX`], after
/// each lead of fewer messages than this.
const REST_MIN: u32 = 4096;
const REST_MAX: u32 = REST_MIN << 8;

const FREE: u64 = 0;
/// State bit: the leader is executing a message.
const BUSY: u64 = 1 << 16;
/// State increment per message. The lowest 16 bits are the leader's number plus 1.
const ONE_MESSAGE: u64 = 1 << 17;

#[derive(Debug, Default)]
pub(super) struct Lead {
    state: AtomicU64,
    /// Heuristics: consecutive fast messages, messages left in the pause, and the length of the
    /// last pause.
    quick: AtomicU32,
    rest: AtomicU32,
    last_rest: AtomicU32,
    has_deputy: Mutex<bool>,
    ended: Condvar,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadNo(pub(super) u16);

impl ThreadNo {
    fn holds(self, state: u64) -> bool {
        state & (BUSY - 1) == u64::from(self.0) + 1
    }
}

impl Lead {
    pub(super) fn is_held_by_another(&self, thread: ThreadNo) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state != FREE && !thread.holds(state)
    }

    /// Makes `thread`, which is executing a message, the leader if there is none.
    pub(super) fn take(&self, thread: ThreadNo) -> bool {
        let held = (u64::from(thread.0) + 1) | BUSY;
        self.state.compare_exchange(FREE, held, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    pub(super) fn heard(&self, is_quick: bool) {
        let order = Ordering::Relaxed;
        let quick = if is_quick { self.quick.load(order).saturating_add(1) } else { 0 };
        self.quick.store(quick, order);
        self.rest.store(self.rest.load(order).saturating_sub(1), order);
    }

    /// Starts a pause after a useless lead of `held` messages.
    pub(super) fn rest_after(&self, held: u32) {
        let order = Ordering::Relaxed;
        let longer = self.last_rest.load(order).saturating_mul(4).clamp(REST_MIN, REST_MAX);
        let rest = if held < REST_MIN { longer } else { REST_MIN };
        self.rest.store(rest, order);
        self.last_rest.store(rest, order);
    }

    pub(super) fn is_wanted(&self) -> bool {
        let order = Ordering::Relaxed;
        self.quick.load(order) >= QUICK_MIN && self.rest.load(order) == 0
    }

    /// Marks the next message of `thread` as begun, if it leads.
    pub(super) fn begin(&self, thread: ThreadNo) {
        self.step(thread, |state| (state | BUSY).wrapping_add(ONE_MESSAGE));
    }

    /// Marks the message of `thread` as done. Returns whether `thread` still leads.
    pub(super) fn end(&self, thread: ThreadNo) -> bool {
        self.step(thread, |state| state & !BUSY)
    }

    pub(super) fn leave(&self, thread: ThreadNo) {
        if self.step(thread, |_| FREE) {
            self.call(&mut self.has_deputy.lock());
        }
    }

    /// Changes the state if `thread` leads. Returns whether it did.
    fn step(&self, thread: ThreadNo, next: impl FnOnce(u64) -> u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        thread.holds(state) && self.state.compare_exchange(state, next(state), order, order).is_ok()
    }

    /// Wakes all followers, as there is no leader (LF1).
    fn call(&self, has_deputy: &mut bool) {
        *has_deputy = false;
        self.ended.notify_all();
    }

    /// Waits while another thread leads. Revokes a lead that is stuck at one message.
    pub(super) fn follow(&self, thread: ThreadNo) {
        let mut has_deputy = self.has_deputy.lock();
        let (mut is_deputy, mut seen) = (false, FREE);
        loop {
            if !self.is_held_by_another(thread) {
                return;
            }
            is_deputy |= !std::mem::replace(&mut *has_deputy, true);
            if !is_deputy {
                self.ended.wait(&mut has_deputy);
            } else if self.ended.wait_for(&mut has_deputy, TICK).timed_out() {
                let state = self.state.load(Ordering::Relaxed);
                let order = Ordering::Relaxed;
                // LF2: no progress for a tick.
                if state == seen
                    && state & BUSY != 0
                    && self.state.compare_exchange(state, FREE, order, order).is_ok()
                {
                    self.call(&mut has_deputy);
                    return;
                }
                seen = state;
            }
        }
    }
}

/// Estimates whether one or several clients send to the leader.
#[derive(Debug, Default)]
pub(super) struct Clients {
    last: u32,
    others: u32,
}

impl Clients {
    /// Counts a message from client thread `thread` (0 if unknown). Returns whether there are
    /// several clients.
    pub(super) fn are_several(&mut self, thread: u32) -> bool {
        if thread == self.last || thread == 0 {
            self.others = self.others.saturating_sub(1);
        } else {
            (self.last, self.others) = (thread, self.others + OTHER_COUNTS);
        }
        self.others > OTHERS_MAX
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LEADER: ThreadNo = ThreadNo(0);
    const LONG: Duration = Duration::from_millis(100);
    const TOO_LONG: Duration = Duration::from_secs(20);

    /// Returns a lead taken by `LEADER`. The channel gets each follower that stops waiting.
    fn held_beside(others: u16) -> (Arc<Lead>, mpsc::Receiver<u16>) {
        let lead = Arc::new(Lead::default());
        assert!(lead.take(LEADER));
        let (tell, told) = mpsc::channel();
        for number in 1..=others {
            let (lead, tell) = (Arc::clone(&lead), tell.clone());
            thread::spawn(move || {
                lead.follow(ThreadNo(number));
                tell.send(number).expect("the test listens");
            });
        }
        (lead, told)
    }

    #[test]
    fn followers_are_called_when_the_leader_leaves() {
        let (lead, told) = held_beside(3);
        assert!(lead.end(LEADER));
        assert!(told.recv_timeout(LONG).is_err(), "it waits for messages: nobody has to help");
        lead.leave(LEADER);
        for _ in 0..3 {
            told.recv_timeout(TOO_LONG).expect("it is called");
        }
        assert!(lead.take(ThreadNo(2)), "it is free");
    }

    #[test]
    fn a_leader_that_gets_on_is_left_alone() {
        let (lead, told) = held_beside(2);
        let (start, mut begun) = (Instant::now(), Instant::now());
        while start.elapsed() < LONG {
            if !lead.end(LEADER) {
                // Revoked only if this test got no CPU for a tick.
                assert!(begun.elapsed() >= TICK);
                return;
            }
            begun = Instant::now();
            lead.begin(LEADER);
        }
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_leader_that_is_stuck_loses_the_lead() {
        let (lead, told) = held_beside(3);
        for _ in 0..3 {
            told.recv_timeout(TOO_LONG).expect("it goes to work");
        }
        assert!(lead.take(ThreadNo(1)));
        assert!(!lead.end(LEADER), "it hears of it");
        lead.leave(LEADER);
        assert!(lead.is_held_by_another(LEADER), "what it does counts no more");
        assert!(!lead.is_held_by_another(ThreadNo(1)));
    }

    #[test]
    fn the_lead_is_for_a_client_that_asks_at_once() {
        let lead = Lead::default();
        (1..QUICK_MIN).for_each(|_| lead.heard(true));
        assert!(!lead.is_wanted());
        lead.heard(true);
        assert!(lead.is_wanted());
        lead.heard(false);
        assert!(!lead.is_wanted(), "it takes its time");
        (0..QUICK_MIN).for_each(|_| lead.heard(true));
        let rests_after = |held| {
            lead.rest_after(held);
            let hears = |_: &u32| !lead.is_wanted();
            (0..).take_while(hears).inspect(|_| lead.heard(true)).count()
        };
        let rests = [0, 0, 0, REST_MIN, 0, 0, 0, 0, 0, 0].map(rests_after);
        assert_eq!(rests.map(|rest| rest >> 12), [1, 4, 16, 1, 4, 16, 64, 256, 256, 256]);
    }

    #[test]
    fn several_clients_are_noticed() {
        let mut clients = Clients::default();
        let one_after_the_other = |number: u32| 1 + number / 32;
        assert!(!(0..1000).any(|number| clients.are_several(one_after_the_other(number))));
        let with_the_kernel = |number: u32| number % 2 * 7;
        assert!(!(0..1000).any(|number| clients.are_several(with_the_kernel(number))));
        let two = |number: u32| 1 + number / 8 % 2;
        assert!((0..64).any(|number| clients.are_several(two(number))), "in bursts of eight");
    }
}
