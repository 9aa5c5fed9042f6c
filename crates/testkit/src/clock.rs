//! A clock that moves only when a test moves it.

use std::sync::atomic::{AtomicU64, Ordering};

use storage::clock::{Clock, Timestamp};

const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;
/// Where [`ManualClock`] begins: 2001-09-09, far from both ends of every field of time.
const EPOCH_SECONDS: i64 = 1_000_000_000;

/// A clock that stands still until [`ManualClock::advance_ns`].
///
/// Two implementations that share one therefore stamp one operation alike.
#[derive(Debug, Default)]
pub struct ManualClock {
    elapsed_ns: AtomicU64,
}

impl ManualClock {
    /// Starts at a fixed moment.
    #[must_use]
    pub fn new() -> ManualClock {
        ManualClock::default()
    }

    /// Moves on by `step_ns`.
    pub fn advance_ns(&self, step_ns: u64) {
        self.elapsed_ns.fetch_add(step_ns, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let elapsed_ns = self.elapsed_ns.load(Ordering::SeqCst);
        let seconds = i64::try_from(elapsed_ns / NANOSECONDS_PER_SECOND).expect("below 2^63");
        let nanoseconds = u32::try_from(elapsed_ns % NANOSECONDS_PER_SECOND).expect("below 10^9");
        Timestamp { seconds: EPOCH_SECONDS + seconds, nanoseconds }
    }

    fn monotonic_ns(&self) -> u64 {
        self.elapsed_ns.load(Ordering::SeqCst)
    }
}
