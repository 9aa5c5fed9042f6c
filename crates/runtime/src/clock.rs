//! Clocks, always passed in.

#![allow(clippy::disallowed_methods, reason = "here is where time comes from")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

#[cfg(feature = "sim")]
use std::sync::Arc;

#[cfg(feature = "sim")]
use crate::sync::sim::Scheduler;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Wall-clock time, as in POSIX.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 UTC; negative before.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// Returns the time `nanoseconds` later.
    ///
    /// # Panics
    ///
    /// After the year 292 billion.
    #[must_use]
    pub fn plus_ns(self, nanoseconds: u64) -> Timestamp {
        let sum = u64::from(self.nanoseconds) + nanoseconds % NS_PER_SECOND;
        let carry = nanoseconds / NS_PER_SECOND + sum / NS_PER_SECOND;
        Timestamp {
            seconds: self.seconds.checked_add_unsigned(carry).expect("within 292 billion years"),
            nanoseconds: u32::try_from(sum % NS_PER_SECOND).expect("below 10^9"),
        }
    }
}

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the time of day.
    fn now(&self) -> Timestamp;
    /// Returns nanoseconds since a fixed moment; never goes back.
    fn monotonic_ns(&self) -> u64;
}

/// The clock of the machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Returns a clock with monotonic time 0.
    #[must_use]
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        // A machine clock before 1970 is unset: take 1970.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp {
            seconds: i64::try_from(since.as_secs()).expect("within 292 billion years"),
            nanoseconds: since.subsec_nanos(),
        }
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a process lives below 584 years")
    }
}

/// Time of day at virtual time 0: 2001-09-09 01:46:40 UTC, unlike real times and zero.
pub const VIRTUAL_EPOCH: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };

/// A clock that only tests advance.
#[derive(Debug, Default)]
pub struct ManualClock {
    elapsed_ns: AtomicU64,
}

impl ManualClock {
    /// Returns a clock at [`VIRTUAL_EPOCH`].
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Advances the clock.
    pub fn advance_ns(&self, nanoseconds: u64) {
        self.elapsed_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        VIRTUAL_EPOCH.plus_ns(self.monotonic_ns())
    }

    fn monotonic_ns(&self) -> u64 {
        self.elapsed_ns.load(Ordering::Relaxed)
    }
}

/// The virtual time of a scheduler.
#[cfg(feature = "sim")]
#[derive(Clone, Debug)]
pub struct SimClock {
    scheduler: Arc<Scheduler>,
    epoch: Timestamp,
}

#[cfg(feature = "sim")]
impl SimClock {
    /// Returns the clock of `scheduler`, with time 0 at [`VIRTUAL_EPOCH`].
    #[must_use]
    pub fn new(scheduler: Arc<Scheduler>) -> SimClock {
        SimClock::starting_at(scheduler, VIRTUAL_EPOCH)
    }

    /// Returns the clock of `scheduler` with time 0 at `epoch`. After a power cut, `epoch` must be
    /// past the last time of the run before.
    #[must_use]
    pub fn starting_at(scheduler: Arc<Scheduler>, epoch: Timestamp) -> SimClock {
        SimClock { scheduler, epoch }
    }
}

#[cfg(feature = "sim")]
impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        self.epoch.plus_ns(self.scheduler.now_ns())
    }

    fn monotonic_ns(&self) -> u64 {
        self.scheduler.now_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_carry_into_seconds_also_before_1970() {
        let late = Timestamp { seconds: -2, nanoseconds: 999_999_999 };
        assert_eq!(late.plus_ns(1), Timestamp { seconds: -1, nanoseconds: 0 });
        assert_eq!(late.plus_ns(3_000_000_001), Timestamp { seconds: 2, nanoseconds: 0 });
    }

    #[test]
    fn manual_clock_moves_only_when_advanced() {
        let clock = ManualClock::new();
        assert_eq!((clock.now(), clock.monotonic_ns()), (VIRTUAL_EPOCH, 0));
        clock.advance_ns(1_500_000_000);
        assert_eq!(clock.monotonic_ns(), 1_500_000_000);
        let moved = Timestamp { seconds: 1_000_000_001, nanoseconds: 500_000_000 };
        assert_eq!(clock.now(), moved);
    }

    #[test]
    fn system_clock_is_past_2020_and_never_goes_back() {
        let clock = SystemClock::new();
        assert!(clock.now().seconds > 1_577_836_800);
        let first = clock.monotonic_ns();
        assert!(clock.monotonic_ns() >= first);
    }
}
