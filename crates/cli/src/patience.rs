//! How often a server is asked for what it has not done yet: a job, the end of a pool.

use std::time::Duration;

/// The first time: most deletions are done by then.
const SHORTEST: Duration = Duration::from_millis(5);
/// In the end: whoever looks at the progress sees it move.
const LONGEST: Duration = Duration::from_millis(200);

/// How long to wait before the next question: twice as long each time, up to a bound.
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(SHORTEST)
    }

    /// Waits until it is time to ask again.
    pub(crate) fn wait(&mut self) {
        std::thread::park_timeout(self.0);
        self.0 = self.0.saturating_mul(2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_become_rarer_up_to_a_bound() {
        let mut patience = Patience::new();
        assert_eq!(patience.0, SHORTEST);
        for _ in 0..7 {
            patience.wait();
        }
        assert_eq!(patience.0, LONGEST);
    }
}
