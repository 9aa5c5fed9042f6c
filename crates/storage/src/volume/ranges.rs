//! Ranges of the pool with writes in flight, and ranges held against writers.
//!
//! # Invariants
//!
//! - RH1: While a range is held no write that overlaps it is in flight, and none begins.
//!
//! # Concurrency
//!
//! A hold never waits: it is refused while a write overlaps. A write waits for holds alone, and
//! whoever holds a range waits for devices only. So nobody waits in a circle, whatever a writer
//! holds or has in flight.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use runtime::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    next: u64,
    writes: BTreeMap<u64, Range<u64>>,
    holds: BTreeMap<u64, Range<u64>>,
}

impl State {
    fn add(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// LOCK: nothing is locked behind it.
    state: Mutex<State>,
    released: Condvar,
}

/// A write in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    ranges: Arc<Ranges>,
    number: u64,
}

/// A range that nobody writes to, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    ranges: Arc<Ranges>,
    number: u64,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ranges {
    /// Begins a write; waits while its range is held.
    pub(super) fn begin_write(self: &Arc<Ranges>, range: Range<u64>) -> InFlight {
        let mut state = self.state.lock();
        while state.holds.values().any(|held| overlap(held, &range)) {
            self.released.wait(&mut state);
        }
        let number = state.add();
        state.writes.insert(number, range);
        InFlight { ranges: Arc::clone(self), number }
    }

    /// Holds a range; `None` while a write overlaps it, or another hold does.
    pub(super) fn try_hold(self: &Arc<Ranges>, range: Range<u64>) -> Option<Hold> {
        let mut state = self.state.lock();
        let mut others = state.writes.values().chain(state.holds.values());
        if others.any(|other| overlap(other, &range)) {
            return None;
        }
        let number = state.add();
        state.holds.insert(number, range);
        Some(Hold { ranges: Arc::clone(self), number })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.ranges.state.lock().writes.remove(&self.number);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.ranges.state.lock().holds.remove(&self.number);
        self.ranges.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_refused_while_a_write_overlaps_and_holds_later_ones_back() {
        let ranges = Arc::new(Ranges::default());
        let write = ranges.begin_write(4096..8192);
        assert!(ranges.try_hold(0..4097).is_none());
        let beside = ranges.try_hold(8192..12288).expect("they touch and do not overlap");
        assert!(ranges.try_hold(8192..8193).is_none(), "held by another");
        drop(write);
        let held = ranges.try_hold(0..8192).expect("nobody writes");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| drop(ranges.begin_write(0..1)));
            std::thread::yield_now();
            assert!(!writer.is_finished() || ranges.state.lock().holds.is_empty());
            drop((held, beside));
            writer.join().expect("it ends");
        });
    }
}
