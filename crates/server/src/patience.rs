//! Poll interval while a server works on a job or closes a pool.

use std::time::Duration;

/// First interval. Most deletions need no longer.
const SHORTEST: Duration = Duration::from_millis(5);
/// Longest interval, short enough for a moving progress bar.
const LONGEST: Duration = Duration::from_millis(200);

/// Wait before the next poll. Each wait is twice the one before, up to a bound.
pub struct PollBackoff(Duration);

impl Default for PollBackoff {
    fn default() -> PollBackoff {
        PollBackoff(SHORTEST)
    }
}

impl PollBackoff {
    /// Returns a poll interval that starts at the shortest wait.
    pub fn new() -> PollBackoff {
        PollBackoff(SHORTEST)
    }

    /// Waits one interval.
    pub fn wait(&mut self) {
        std::thread::park_timeout(self.0);
        self.0 = self.0.saturating_mul(2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_become_rarer_up_to_a_bound() {
        let mut patience = PollBackoff::default();
        assert_eq!(patience.0, SHORTEST);
        for _ in 0..7 {
            patience.wait();
        }
        assert_eq!(patience.0, LONGEST);
    }
}
