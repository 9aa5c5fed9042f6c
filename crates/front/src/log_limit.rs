//! Rate limit for log lines that a stranger can cause: one line in 10 s, with a count of the rest.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Shortest time between two lines.
const QUIET_TIME: Duration = Duration::from_secs(10);

/// The limit of one kind of line.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<(Option<Instant>, u64)>);

impl LogLimit {
    /// Counts a line that is due at `now`. Returns how many were left out since the last one that
    /// was written, if this one is to be written; `None`: leave it out.
    pub fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        let (last, left_out) = *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < QUIET_TIME) {
            state.1 = left_out.saturating_add(1);
            return None;
        }
        *state = (Some(now), 0);
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_written_in_a_time_and_the_others_are_counted() {
        let (limit, now) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.pass(now), Some(0));
        assert_eq!((limit.pass(now), limit.pass(now)), (None, None));
        assert_eq!(limit.pass(now + QUIET_TIME), Some(2));
        assert_eq!(limit.pass(now + 3 * QUIET_TIME), Some(0));
    }
}
