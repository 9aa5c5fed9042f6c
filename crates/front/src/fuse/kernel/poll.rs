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

    /// Returns whether the last message came within the time that a thread may look.
    pub(super) fn is_worth_it(&self) -> bool {
        self.is_worth_it
    }

    /// Hears how long the last message was waited for, looking and sleeping together.
    pub(super) fn heard_after(&mut self, waited: Duration) {
        self.is_worth_it = waited <= self.poll_max;
    }
}

/// Reads that are answered alone after one beside which there was no other, before a thread looks
/// again.
const ALONE_MAX: u32 = 7;

/// Whether a thread that has a read looks for more before it answers: to look in vain takes a
/// system call, and to find something else makes that wait for the read.
///
/// It looks when it found one the last time, else at every eighth read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GatherPolicy {
    alone: u32,
}

impl GatherPolicy {
    /// Returns whether to look, for a read that has just come.
    pub(super) fn looks(&mut self) -> bool {
        self.alone = self.alone.saturating_sub(1);
        self.alone == 0
    }

    /// Hears whether looking found a read.
    pub(super) fn heard(&mut self, has_more: bool) {
        self.alone = if has_more { 0 } else { ALONE_MAX + 1 };
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
    fn a_read_looks_for_more_while_there_are_some_and_else_seldom() {
        let mut policy = GatherPolicy::default();
        assert!(policy.looks(), "nothing is known");
        policy.heard(true);
        assert!(policy.looks());
        policy.heard(false);
        let looks = |_| policy.looks();
        let looked: Vec<bool> = (0..=ALONE_MAX).map(looks).collect();
        let (last, others) = looked.split_last().expect("eight of them");
        assert!(*last && others.iter().all(|looks| !looks), "{looked:?}");
    }

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
