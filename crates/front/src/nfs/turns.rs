//! How many threads of a server one pool may keep.
//!
//! A request that waits for a device keeps its thread for as long, and a device that hangs would
//! keep them all: then nobody is served who asks another pool, nobody is let in, and nobody looks
//! for connections that are overdue.
//!
//! # Invariants
//! - TU1: No more requests of one pool are under way than it has turns.
//! - TU2: Who finds no turn waits for one, for [`STALL_TIME`] at most, and is told then to ask
//!   again later. Where none has come back for so long, so is everybody at once.
//!
//! Not here: commits, of which each pool keeps one thread, whoever leads them; and MNT.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long no turn of a pool has come back when it is taken to hang, and how long a thread waits
/// for one: a disk that is slow answers in a part of it, and others lack that thread meanwhile.
const STALL_TIME: Duration = Duration::from_secs(2);

/// The turns of one pool.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    came_back: Condvar,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// When one came back, or the last one was taken.
    moved_at: Option<Instant>,
}

/// A turn, until it is dropped.
pub(super) struct Turn(Arc<Turns>);

impl Turns {
    /// Takes one of `count` turns. `None`: the pool hangs.
    pub(super) fn take(self: &Arc<Turns>, count: usize) -> Option<Turn> {
        let mut state = self.state.lock();
        let mut waits_until = None;
        while state.taken >= count {
            let now = Instant::now();
            let own = *waits_until.get_or_insert(now + STALL_TIME);
            let until = own.min(state.moved_at? + STALL_TIME);
            if now >= until {
                return None;
            }
            // Looked at again, however it ended.
            let _ = self.came_back.wait_until(&mut state, until);
        }
        Some(self.taken(&mut state, count))
    }

    /// Takes one if there is one now, and another one for whoever asks next.
    pub(super) fn take_free(self: &Arc<Turns>, count: usize) -> Option<Turn> {
        let mut state = self.state.lock();
        (state.taken + usize::from(count > 1) < count).then(|| self.taken(&mut state, count))
    }

    fn taken(self: &Arc<Turns>, state: &mut State, count: usize) -> Turn {
        state.taken += 1;
        if state.taken >= count {
            state.moved_at = Some(Instant::now());
        }
        Turn(Arc::clone(self))
    }
}

impl Drop for Turn {
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

    /// Goal: a turn that comes back is had by who waits, a pool that hangs keeps nobody waiting
    /// again, and one that goes on has all its turns.
    #[test]
    fn who_finds_no_turn_waits_as_long_as_turns_come_back() {
        let turns = Arc::new(Turns::default());
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
        assert!(Arc::new(Turns::default()).take_free(1).is_some(), "there is no other");
    }
}
