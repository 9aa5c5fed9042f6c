//! The post: one thread that answers a client alone, while the others keep out of the way.
//!
//! For each message the kernel wakes a thread that waits in read(2), whoever takes the message. So
//! while one thread looks for messages, another is woken at each of them, to find nothing, or to
//! take it and to carry the client's work to other caches. A thread that looks and finds, again and
//! again, therefore takes the *post*, and whoever comes back from an answer meanwhile stands by
//! instead of going to read(2).
//!
//! # Invariants
//!
//! - PO1: A thread stands by only while another holds the post.
//! - PO2: The holder is not at one message for longer than two ticks ([`TICK`]): one of those who
//!   stand by ends its hold. So a message waits no longer than that because others stand by.
//!
//! # Concurrency
//!
//! What the holder does at each message is one exchange of one word, which fails if its hold was
//! ended meanwhile. The lock is for standing by and for ending a hold alone.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// How often one of those who stand by looks whether the holder gets on: each time costs a wake-up
/// of some microseconds, and only while somebody holds the post.
const TICK: Duration = Duration::from_millis(1);

/// Messages in a row that came so fast that looking for them was worth it, before a thread takes
/// the post.
const QUICK_MIN: u32 = 16;
/// What a message counts that another thread sent than the one before; one that the same sent
/// counts 1 against it.
const OTHER_COUNTS: u32 = 16;
/// How much of that shows that there are several clients.
const OTHERS_MAX: u32 = 32;
/// Messages for which nobody takes the post after it had to be given up; four times as many after
/// each hold that was shorter than this, up to [`REST_MAX`].
const REST_MIN: u32 = 4096;
/// See [`REST_MIN`].
const REST_MAX: u32 = REST_MIN << 8;

/// Nobody holds the post.
const FREE: u64 = 0;
/// Bit of the state: the holder is at a message.
const BUSY: u64 = 1 << 16;
/// What one more message adds to the state; the lowest 16 bits are who holds the post, from 1 on.
const ONE_MESSAGE: u64 = 1 << 17;

/// The post of one mount.
#[derive(Debug, Default)]
pub(super) struct Post {
    state: AtomicU64,
    /// Messages in a row that came fast, those for which the post is not taken, and how many of
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

impl Post {
    /// Returns whether another than `thread` holds the post.
    pub(super) fn is_held_by_another(&self, thread: ThreadNo) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state != FREE && !thread.holds(state)
    }

    /// Gives the post to `thread`, which is at a message, if it is free; returns whether it was.
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

    /// Hears that the post was given up after a hold of `held` messages, because it was of no use.
    pub(super) fn rest_after(&self, held: u32) {
        let order = Ordering::Relaxed;
        let longer = self.last_rest.load(order).saturating_mul(4).clamp(REST_MIN, REST_MAX);
        let rest = if held < REST_MIN { longer } else { REST_MIN };
        self.rest.store(rest, order);
        self.last_rest.store(rest, order);
    }

    /// Whether a thread that has found a message should take the post.
    pub(super) fn is_wanted(&self) -> bool {
        let order = Ordering::Relaxed;
        self.quick.load(order) >= QUICK_MIN && self.rest.load(order) == 0
    }

    /// Notes that `thread` is at another message, if it holds the post.
    pub(super) fn begin(&self, thread: ThreadNo) {
        self.step(thread, |state| (state | BUSY).wrapping_add(ONE_MESSAGE));
    }

    /// Notes that `thread` is done with its message; returns whether it still holds the post.
    pub(super) fn end(&self, thread: ThreadNo) -> bool {
        self.step(thread, |state| state & !BUSY)
    }

    /// Ends the hold of `thread`, if it has it.
    pub(super) fn leave(&self, thread: ThreadNo) {
        if self.step(thread, |_| FREE) {
            self.call(&mut self.has_deputy.lock());
        }
    }

    /// Changes the state, if `thread` holds the post; returns whether it did.
    fn step(&self, thread: ThreadNo, next: impl FnOnce(u64) -> u64) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        thread.holds(state) && self.state.compare_exchange(state, next(state), order, order).is_ok()
    }

    /// PO1: calls those who stand by, for nobody holds the post any more.
    fn call(&self, has_deputy: &mut bool) {
        *has_deputy = false;
        self.ended.notify_all();
    }

    /// Waits while another than `thread` holds the post; ends its hold if it is at one message for
    /// too long.
    pub(super) fn stand_by(&self, thread: ThreadNo) {
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
                // PO2
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

/// Who asks the thread at the post: one client, or several.
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

    const HOLDER: ThreadNo = ThreadNo(0);
    /// So long that whoever waits would have been let go: a hundred ticks.
    const LONG: Duration = Duration::from_millis(100);
    /// A test that waits longer has failed.
    const TOO_LONG: Duration = Duration::from_secs(20);

    /// Returns a post that the holder has, and what tells that each of `others` has stood by.
    fn held_beside(others: u16) -> (Arc<Post>, mpsc::Receiver<u16>) {
        let post = Arc::new(Post::default());
        assert!(post.take(HOLDER));
        let (tell, told) = mpsc::channel();
        for number in 1..=others {
            let (post, tell) = (Arc::clone(&post), tell.clone());
            thread::spawn(move || {
                post.stand_by(ThreadNo(number));
                tell.send(number).expect("the test listens");
            });
        }
        (post, told)
    }

    #[test]
    fn who_stands_by_is_called_when_the_holder_leaves() {
        let (post, told) = held_beside(3);
        assert!(post.end(HOLDER));
        assert!(told.recv_timeout(LONG).is_err(), "it waits for messages: nobody has to help");
        post.leave(HOLDER);
        for _ in 0..3 {
            told.recv_timeout(TOO_LONG).expect("it is called");
        }
        assert!(post.take(ThreadNo(2)), "it is free");
    }

    #[test]
    fn a_holder_that_gets_on_is_left_alone() {
        let (post, told) = held_beside(2);
        let (start, mut begun) = (Instant::now(), Instant::now());
        while start.elapsed() < LONG {
            if !post.end(HOLDER) {
                // A test that does not get a processor is stuck.
                assert!(begun.elapsed() >= TICK);
                return;
            }
            begun = Instant::now();
            post.begin(HOLDER);
        }
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn a_holder_that_is_stuck_loses_the_post() {
        let (post, told) = held_beside(3);
        for _ in 0..3 {
            told.recv_timeout(TOO_LONG).expect("it goes to work");
        }
        assert!(post.take(ThreadNo(1)));
        assert!(!post.end(HOLDER), "it hears of it");
        post.leave(HOLDER);
        assert!(post.is_held_by_another(HOLDER), "what it does counts no more");
        assert!(!post.is_held_by_another(ThreadNo(1)));
    }

    #[test]
    fn the_post_is_for_a_client_that_asks_at_once() {
        let post = Post::default();
        (1..QUICK_MIN).for_each(|_| post.heard(true));
        assert!(!post.is_wanted());
        post.heard(true);
        assert!(post.is_wanted());
        post.heard(false);
        assert!(!post.is_wanted(), "it takes its time");
        (0..QUICK_MIN).for_each(|_| post.heard(true));
        let rests_after = |held| {
            post.rest_after(held);
            let hears = |_: &u32| !post.is_wanted();
            (0..).take_while(hears).inspect(|_| post.heard(true)).count()
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
