//! How long a thread looks for the next message before it sleeps.
//!
//! A wake-up costs several times what a request does, and a client that works asks again at once.
//! So it pays to look for a moment; but not when nobody works, for looking takes a processor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The policy, for one thread:
///
/// 1. The last message came within the time that a thread may look: look that long.
/// 2. Otherwise sleep at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollPolicy {
    poll_max: Duration,
    is_worth_it: bool,
}

impl PollPolicy {
    /// A policy that looks for at most `poll_max`; zero: never.
    pub(super) fn new(poll_max: Duration) -> PollPolicy {
        PollPolicy { poll_max, is_worth_it: false }
    }

    /// Returns how long to look.
    pub(super) fn poll_time(&self) -> Duration {
        if self.is_worth_it { self.poll_max } else { Duration::ZERO }
    }

    /// Hears how long the last message was waited for, looking and sleeping together.
    pub(super) fn heard_after(&mut self, waited: Duration) {
        self.is_worth_it = waited <= self.poll_max;
    }
}

/// How many threads are at work, of those that serve one mount.
///
/// Only a thread that is alone may look: when several are awake, several clients are at work, and
/// whoever looks takes a processor from them. (With two clients on two processors, looking by every
/// thread halved what they got done.)
#[derive(Debug)]
pub(super) struct Crew {
    awake: AtomicUsize,
}

impl Crew {
    /// Returns a crew of which all are awake.
    pub(super) fn new(thread_count: usize) -> Crew {
        Crew { awake: AtomicUsize::new(thread_count) }
    }

    /// Returns whether the caller is the only one awake.
    pub(super) fn may_look(&self) -> bool {
        self.awake.load(Ordering::Relaxed) == 1
    }

    /// Runs what makes the caller sleep.
    pub(super) fn asleep<T>(&self, sleep: impl FnOnce() -> T) -> T {
        self.awake.fetch_sub(1, Ordering::Relaxed);
        let result = sleep();
        self.awake.fetch_add(1, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_while_messages_come_at_once_and_sleeps_when_they_do_not() {
        let most = Duration::from_micros(50);
        let mut policy = PollPolicy::new(most);
        assert_eq!(policy.poll_time(), Duration::ZERO, "nobody works yet");
        policy.heard_after(Duration::from_micros(20));
        assert_eq!(policy.poll_time(), most);
        policy.heard_after(Duration::from_micros(51));
        assert_eq!(policy.poll_time(), Duration::ZERO);
        policy.heard_after(most);
        assert_eq!(policy.poll_time(), most);
        let crew = Crew::new(2);
        assert!(!crew.may_look(), "the other may be at work");
        crew.asleep(|| assert!(crew.may_look(), "the other sleeps"));
        assert!(!crew.may_look());
        let mut never = PollPolicy::new(Duration::ZERO);
        never.heard_after(Duration::from_nanos(1));
        assert_eq!(never.poll_time(), Duration::ZERO);
    }
}
