//! Leader and followers: one thread answers a client that asks without pause, others stand by.
//!
//! For each message the kernel wakes a thread that waits in read(2), whichever thread then takes
//! the message. So while one thread polls, another is woken at each message. It finds nothing, or
//! it takes the message and carries the client's work to another processor's caches. A thread whose
//! polling finds messages again and again therefore takes the *lead*. The other threads, when they
//! come back from an answer, become *followers*: they wait on a condition and not in read(2).
//!
//! # Invariants
//!
//! - LF1: A thread follows only while another has the lead.
//! - LF2: The leader is not at one message for longer than two ticks ([`TICK`]): one of the
//!   followers takes the lead away from it. So no message waits longer because others follow.
//!
//! # Concurrency
//!
//! What the leader does at each message is one exchange of one word, which fails if it has lost the
//! lead meanwhile. The lock is for following and for taking the lead away alone.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How often one of the followers looks whether the leader gets on: each time costs a wake-up
/// of some microseconds, and only while somebody leads.
const TICK: Duration = Duration::from_millis(1);

/// Messages in a row that came so fast that looking for them was worth it, before a thread takes
/// the lead.
const QUICK_MIN: u32 = 16;
/// What a message counts that another thread sent than the one before; one that the same sent
/// counts 1 against it.
const OTHER_COUNTS: u32 = 16;
/// How much of that shows that there are several clients.
const OTHERS_MAX: u32 = 32;
/// Messages for which nobody takes the lead after it had to be given up; four times as many after
/// each hold that was shorter than this, up to [`REST_MAX`].
const REST_MIN: u32 = 4096;
/// See [`REST_MIN`].
const REST_MAX: u32 = REST_MIN << 8;

/// Nobody leads.
const FREE: u64 = 0;
/// Bit of the state: the leader is at a message.
const BUSY: u64 = 1 << 16;
/// What one more message adds to the state; the lowest 16 bits are who leads, from 1 on.
const ONE_MESSAGE: u64 = 1 << 17;

/// The lead of one mount.
#[derive(Debug, Default)]
pub(super) struct Lead {
    state: AtomicU64,
    /// Messages in a row that came fast, those for which the lead is not taken, and how many of
    /// these there were the last time: estimates.
    quick: AtomicU32,
    rest: AtomicU32,
    last_rest: AtomicU32,
    has_deputy: Mutex<bool>,
    ended: Condvar,
}

/// One of the threads that serve a mount, by its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadNo(pub(super) u16);

impl ThreadNo {
    fn holds(self, state: u64) -> bool {
        state & (BUSY - 1) == u64::from(self.0) + 1
    }
}

impl Lead {
    /// Returns whether another than `thread` leads.
    pub(super) fn is_held_by_another(&self, thread: ThreadNo) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state != FREE && !thread.holds(state)
    }

    /// Gives the lead to `thread`, which is at a message, if it is free; returns whether it was.
    pub(super) fn take(&self, thread: ThreadNo) -> bool {
        let held = (u64::from(thread.0) + 1) | BUSY;
        self.state.compare_exchange(FREE, held, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Hears whether a message came so fast that looking for it was worth it.
    pub(super) fn heard(&self, is_quick: bool) {
        let order = Ordering::Relaxed;
        let quick = if is_quick { self.quick.load(order).saturating_add(1) } else { 0 };
        self.quick.store(quick, order);
        self.rest.store(self.rest.load(order).saturating_sub(1), order);
    }

    /// Hears that the lead was given up after a hold of `held` messages, because it was of no use.
    pub(super) fn rest_after(&self, held: u32) {
        let order = Ordering::Relaxed;
        let longer = self.last_rest.load(order).saturating_mul(4).clamp(REST_MIN, REST_MAX);
        let rest = if held < REST_MIN { longer } else { REST_MIN };
        self.rest.store(rest, order);
        self.last_rest.store(rest, order);
    }

    /// Whether a thread that has found a message should take the lead.
    pub(super) fn is_wanted(&self) -> bool {
        let order = Ordering::Relaxed;
        self.quick.load(order) >= QUICK_MIN && self.rest.load(order) == 0
    }

    /// Notes that `thread` is at another message, if it leads.
    pub(super) fn begin(&self, thread: ThreadNo) {
        self.step(thread, |state| (state | BUSY).wrapping_add(ONE_MESSAGE));
    }

    /// Notes that `thread` is done with its message; returns whether it still leads.
    pub(super) fn end(&self, thread: ThreadNo) -> bool {
        self.step(thread, |state| state & !BUSY)
    }

    /// Ends the hold of `thread`, if it has it.
    pub(super) fn leave(&self, thread: ThreadNo) {
        if self.step(thread, |_| FREE) {
            self.call(&mut self.has_deputy.lock());
        }
    }

    /// Changes the state, if `thread` holds the lead; returns whether it did.
    fn step(&self, thread: ThreadNo, next: impl FnOnce(u64) -> u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        thread.holds(state) && self.state.compare_exchange(state, next(state), order, order).is_ok()
    }

    /// LF1: calls the followers, for nobody leads any more.
    fn call(&self, has_deputy: &mut bool) {
        *has_deputy = false;
        self.ended.notify_all();
    }

    /// Waits while another than `thread` leads; ends its hold if it is at one message for
    /// too long.
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
                // LF2
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

/// Who asks the leading thread: one client, or several.
#[derive(Debug, Default)]
pub(super) struct Clients {
    last: u32,
    others: u32,
}

impl Clients {
    /// Hears that `thread` of a client asks, 0 if none does; returns whether there are several.
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
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LEADER: ThreadNo = ThreadNo(0);
    /// So long that whoever waits would have been let go: a hundred ticks.
    const LONG: Duration = Duration::from_millis(100);
    /// A test that waits longer has failed.
    const TOO_LONG: Duration = Duration::from_secs(20);

    /// Returns a lead that the leader has, and what tells that each of `others` has stood by.
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
                // A test that does not get a processor is stuck.
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
