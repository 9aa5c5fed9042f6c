//! Busy polling: how long a thread polls for the next message before it sleeps.
//!
//! A wake-up costs several times as much as a request, and a busy client sends its next request at
//! once. So a short poll pays off for a busy client. For others it wastes a CPU.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The policy of one thread:
///
/// 1. If the last message came within the polling limit, poll that long.
/// 2. Otherwise sleep at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct PollPolicy {
    poll_max: Duration,
    is_worth_it: bool,
}

impl PollPolicy {
    /// `poll_max` is the polling limit. Zero disables polling.
    pub(super) fn new(poll_max: Duration) -> PollPolicy {
        PollPolicy { poll_max, is_worth_it: false }
    }

    pub(super) fn poll_time(&self) -> Duration {
        if self.is_worth_it { self.poll_max } else { Duration::ZERO }
    }

    pub(super) fn is_worth_it(&self) -> bool {
        self.is_worth_it
    }

    /// Takes the time waited for the last message, polling and sleep together.
    pub(super) fn heard_after(&mut self, waited: Duration) {
        self.is_worth_it = waited <= self.poll_max;
    }
}

/// Reads answered alone after an attempt to gather in vain, before the next attempt.
const ALONE_MAX: u32 = 7;

/// Decides whether a thread with a read tries to gather more reads first: after a successful
/// attempt always, otherwise at every eighth read. A vain attempt costs a system call, and delays
/// any other message that it finds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GatherPolicy {
    alone: u32,
}

impl GatherPolicy {
    pub(super) fn looks(&mut self) -> bool {
        self.alone = self.alone.saturating_sub(1);
        self.alone == 0
    }

    pub(super) fn heard(&mut self, has_more: bool) {
        self.alone = if has_more { 0 } else { ALONE_MAX + 1 };
    }
}

/// Counts the awake threads of one mount. A thread may poll only if no other is awake: otherwise
/// polling takes a CPU from clients. (With two clients on two CPUs it halved throughput.)
#[derive(Debug)]
pub(super) struct AwakeThreads {
    awake: AtomicUsize,
}

impl AwakeThreads {
    pub(super) fn new(thread_count: usize) -> AwakeThreads {
        AwakeThreads { awake: AtomicUsize::new(thread_count) }
    }

    pub(super) fn may_look(&self) -> bool {
        self.awake.load(Ordering::Relaxed) == 1
    }

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
        let crew = AwakeThreads::new(2);
        assert!(!crew.may_look(), "the other may be at work");
        crew.asleep(|| assert!(crew.may_look(), "the other sleeps"));
        assert!(!crew.may_look());
        let mut never = PollPolicy::new(Duration::ZERO);
        never.heard_after(Duration::from_nanos(1));
        assert_eq!(never.poll_time(), Duration::ZERO);
    }
}
