//! The pace of a job: its share of the time, so that the devices stay available to requests.
//!
//! # Invariants
//!
//! - JP1: Under [`Pace::Auto`] a job works all the time while the pool is idle. A step beside
//!   requests is followed by a rest as long, or until the next tick if that is sooner. So the job
//!   works half of the time, or more if steps take longer than ticks are apart. The engine does not
//!   sleep: the caller of [`Pool::tick_paced`] rests for the time that it returns.
//! - JP2: Under [`Pace::Percent`] a step that took `t` is followed by a rest of at least
//!   `t * (100 - percent) / percent`, even if ticks come sooner.
//!
//! [`Pool::tick_paced`]: crate::Pool::tick_paced

use std::time::Duration;

/// A job's share of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// All of the time while the pool is idle, half of it beside requests.
    #[default]
    Auto,
    /// A fixed percentage.
    Percent(Percent),
}

/// A number from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u8);

impl Percent {
    /// Returns `percent` if it is from 1 to 100.
    #[must_use]
    pub fn new(percent: u8) -> Option<Percent> {
        (1..=100).contains(&percent).then_some(Percent(percent))
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Pace {
    /// Returns the rest after `worked_ns` of work (JP2).
    pub(super) fn rest_ns(self, worked_ns: u64) -> u64 {
        match self {
            Pace::Auto => 0,
            Pace::Percent(Percent(percent)) => {
                let percent = u64::from(percent);
                worked_ns.saturating_mul(100 - percent) / percent
            }
        }
    }
}

/// What a tick's walks request for the next tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TickOutcome {
    pub(super) is_more: bool,
    /// Time that walks at [`Pace::Auto`] have worked beside requests.
    pub(super) beside_ns: u64,
    /// Nanoseconds until the first resting walk continues.
    pub(super) rests_ns: Option<u64>,
}

impl TickOutcome {
    /// Returns the time until the next tick is wanted. `None` for the usual time (JP1).
    pub(super) fn next_in(self) -> Option<Duration> {
        let more_ns = self.is_more.then_some(self.beside_ns);
        let first_ns = match (more_ns, self.rests_ns) {
            (Some(more_ns), Some(rests_ns)) => Some(more_ns.min(rests_ns)),
            (more_ns, rests_ns) => more_ns.or(rests_ns),
        };
        first_ns.map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_as_long_as_the_percentage_says() {
        let of = |percent| Pace::Percent(Percent::new(percent).expect("it is one"));
        assert_eq!((of(100).rest_ns(50), of(50).rest_ns(50), of(1).rest_ns(50)), (0, 50, 4950));
        assert_eq!(of(1).rest_ns(u64::MAX), u64::MAX, "it does not wrap");
        assert_eq!((Percent::new(0), Percent::new(101)), (None, None));
        assert_eq!(Pace::Auto.rest_ns(50), 0);
    }
}
