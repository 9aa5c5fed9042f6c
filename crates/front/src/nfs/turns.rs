//! Bound of the threads that one pool may occupy.
//!
//! A request keeps its thread while it waits for a device. A hanging device would occupy all
//! threads, so that other pools, new connections and the sweep of overdue ones are not served.
//!
//! # Invariants
//! - TU1: A request in progress holds a *permit* of its pool. So a pool has at most as many
//!   requests in progress as permits.
//! - TU2: Without a free permit, a request waits for [`STALL_TIME`] at most, and is then refused
//!   with JUKEBOX. If no permit has been returned for that long, requests are refused at once.
//!
//! Not here: commits, which occupy one thread of each pool (the leader), and MNT.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Longest wait for a permit. A pool hangs if no permit is returned for this long. Slow disks
/// answer much faster.
const STALL_TIME: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct ThreadPermits {
    state: Mutex<ThreadPermitsState>,
    came_back: Condvar,
}

#[derive(Debug, Default)]
struct ThreadPermitsState {
    taken: usize,
    /// When a permit was last returned, or when the last free one was taken.
    moved_at: Option<Instant>,
}

/// A permit, returned on drop.
pub(super) struct ThreadPermit(Arc<ThreadPermits>);

impl ThreadPermits {
    /// Takes one of `count` permits. Returns `None` if the pool hangs.
    pub(super) fn take(self: &Arc<ThreadPermits>, count: usize) -> Option<ThreadPermit> {
        let mut state = self.state.lock();
        let mut waits_until = None;
        while state.taken >= count {
            let now = Instant::now();
            let own = *waits_until.get_or_insert(now + STALL_TIME);
            let until = own.min(state.moved_at? + STALL_TIME);
            if now >= until {
                return None;
            }
            // Returned or timed out: the loop checks both.
            let _ = self.came_back.wait_until(&mut state, until);
        }
        Some(self.taken(&mut state, count))
    }

    /// Takes a permit if at least one more stays free, or if there is only one in all.
    pub(super) fn take_free(self: &Arc<ThreadPermits>, count: usize) -> Option<ThreadPermit> {
        let mut state = self.state.lock();
        (state.taken + usize::from(count > 1) < count).then(|| self.taken(&mut state, count))
    }

    fn taken(
        self: &Arc<ThreadPermits>,
        state: &mut ThreadPermitsState,
        count: usize,
    ) -> ThreadPermit {
        state.taken += 1;
        if state.taken >= count {
            state.moved_at = Some(Instant::now());
        }
        ThreadPermit(Arc::clone(self))
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.taken -= 1;
        state.moved_at = Some(Instant::now());
        drop(state);
        self.0.came_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a waiting request gets the next permit returned. Once none has been returned for
    /// [`STALL_TIME`], requests are refused without waiting. When the requests end, all permits are
    /// free again.
    #[test]
    fn who_finds_no_turn_waits_as_long_as_turns_come_back() {
        let turns = Arc::new(ThreadPermits::default());
        let first = turns.take(2).expect("it is free");
        let second = turns.take(2).expect("it is free");
        assert!(turns.take_free(2).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| turns.take(2).is_some());
            drop(first);
            assert!(waits.join().expect("it does not panic"));
        });
        assert!(turns.take_free(2).is_none(), "the last is for who asks");
        let third = turns.take(2).expect("it came back");
        assert!(turns.take(2).is_none(), "none comes back");
        let since = Instant::now();
        assert!(turns.take(2).is_none());
        assert!(since.elapsed() < STALL_TIME, "it is known already");
        drop((second, third));
        assert!(turns.take_free(2).is_some());
        assert!(turns.take(2).is_some());
        assert!(Arc::new(ThreadPermits::default()).take_free(1).is_some(), "there is no other");
    }
}
