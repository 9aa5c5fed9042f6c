//! Rate limit for log lines that a remote client can cause: one line in 10 s, with a count of the
//! suppressed lines.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const QUIET_TIME: Duration = Duration::from_secs(10);

/// Rate limiter for log lines.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<(Option<Instant>, u64)>);

impl LogLimit {
    /// Counts a line due at `now`. Returns the number of lines suppressed since the last written
    /// one, or `None` if this line must be suppressed too.
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
