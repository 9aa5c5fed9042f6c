//! How much of the time a job works: so that it does not take the devices from those who wait.
//!
//! # Invariants
//!
//! - JP1: Under [`Pace::Auto`] a job works all the time while nobody asks the pool for anything. A
//!   step beside somebody is followed by a rest as long, or to the next tick, if that is sooner:
//!   about half of the time, more where steps take longer than ticks are apart. The engine does
//!   not sleep: [`Pool::tick_paced`] says how long its caller is to rest, and the caller does.
//! - JP2: Under [`Pace::Percent`] a step that took `t` is followed by a rest of at least
//!   `t * (100 - percent) / percent`, whoever asks for a tick meanwhile.
//!
//! [`Pool::tick_paced`]: crate::Pool::tick_paced

use std::time::Duration;

/// How much of the time a job works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// All the time while nobody asks the pool for anything, half of it while somebody does.
    #[default]
    Auto,
    /// So many parts of a hundred, always.
    Percent(Percent),
}

/// A number from 1 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent(u8);

impl Percent {
    /// Returns `percent`, if it is from 1 to 100.
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
    /// Returns how long a job rests that has worked for `worked_ns` (JP2).
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

/// What the walks of a tick want of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turns {
    /// Whether any has more to do now; else the next tick in its time is soon enough.
    pub(super) is_more: bool,
    /// How long walks at [`Pace::Auto`] have worked beside somebody who asked.
    pub(super) beside_ns: u64,
    /// In how many nanoseconds the first of those that rest is to go on.
    pub(super) rests_ns: Option<u64>,
}

impl Turns {
    /// Returns in how long walks want the next tick; `None`: in its time (JP1).
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
