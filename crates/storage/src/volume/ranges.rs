//! Ranges of the pool with writes in flight, and ranges held against writers.
//!
//! # Invariants
//!
//! - RH1: While a range is held no write that overlaps it is in flight, and none begins.
//! - RH2: A part of the pool that was written counts as written until a flush that began after the
//!   write had ended is answered; for each member apart ([`Ranges::unflushed`]).
//!
//! # Concurrency
//!
//! A hold never waits: it is refused while a write overlaps. A write waits for holds, and while
//! members change ([`Ranges::close`]); whoever holds a range, or changes members, waits for devices
//! only. So nobody waits in a circle, whatever a writer
//! holds or has in flight.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use format::geometry::Geometry;
use format::missed::{PARTS, Parts};
use runtime::sync::{Condvar, Mutex};

#[derive(Debug, Default)]
struct State {
    next: u64,
    writes: BTreeMap<u64, Range<u64>>,
    holds: BTreeMap<u64, Range<u64>>,
    /// Who lets no write begin.
    closed: u64,
    /// Flushes begun so far.
    flushes: u64,
    /// Of each part that was written: how many flushes had begun when the last write to it ended.
    written: BTreeMap<u64, u64>,
}

impl State {
    fn add(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Notes that a write to `parts` has ended.
    fn note_written(&mut self, parts: &Parts) {
        let flushes = self.flushes;
        self.written.extend((0..PARTS).filter(|part| parts.has(*part)).map(|part| (part, flushes)));
    }
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Says which part a byte is in.
    geometry: Geometry,
    /// LOCK: nothing is locked behind it.
    state: Mutex<State>,
    released: Condvar,
}

/// A write in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    ranges: Arc<Ranges>,
    number: u64,
    parts: Parts,
}

impl InFlight {
    /// Returns the parts of the pool that it writes to.
    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }
}

/// No write begins until it is dropped.
#[derive(Debug)]
pub(super) struct Closed(Arc<Ranges>);

/// A range that nobody writes to, until it is dropped.
#[derive(Debug)]
pub struct Hold {
    ranges: Arc<Ranges>,
    number: u64,
}

impl Hold {
    /// Notes that who holds the range has written to it (RH2).
    pub(super) fn note_written(&self) {
        let mut state = self.ranges.state.lock();
        if let Some(range) = state.holds.get(&self.number).cloned() {
            let parts = self.ranges.parts_of(&range);
            state.note_written(&parts);
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ranges {
    pub(super) fn new(geometry: Geometry) -> Arc<Ranges> {
        Arc::new(Ranges { geometry, state: Mutex::default(), released: Condvar::default() })
    }

    /// Returns the parts of the pool that a range of it lies in.
    pub(super) fn parts_of(&self, range: &Range<u64>) -> Parts {
        Parts::of(&self.geometry, range)
    }

    /// Returns what says which part a byte is in.
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns where the fixed regions end.
    pub(super) fn groups_offset(&self) -> u64 {
        self.geometry.groups_offset
    }

    /// Lets no write begin. Those in flight go on.
    pub(super) fn close(self: &Arc<Ranges>) -> Closed {
        self.state.lock().closed += 1;
        Closed(Arc::clone(self))
    }

    /// Returns the parts of the pool that writes in flight write to.
    pub(super) fn in_flight(&self) -> Parts {
        let state = self.state.lock();
        state.writes.values().fold(Parts::NONE, |parts, range| parts.with(self.parts_of(range)))
    }

    /// Begins a flush. Returns its number: it covers what has ended before.
    pub(super) fn begin_flush(&self) -> u64 {
        let mut state = self.state.lock();
        state.flushes += 1;
        state.flushes
    }

    /// Returns the parts that may hold what is not durable on a member whose last flush had the
    /// number `flushed` (RH2).
    pub(super) fn unflushed(&self, flushed: u64) -> Parts {
        let state = self.state.lock();
        let mut parts = Parts::NONE;
        let late = state.written.iter().filter(|(_, ended)| **ended >= flushed);
        late.for_each(|(part, _)| parts.add(*part));
        // Who holds a range may write to it.
        let others = state.writes.values().chain(state.holds.values());
        others.fold(parts, |parts, range| parts.with(self.parts_of(range)))
    }

    /// Begins a write; waits while its range is held, or members change.
    pub(super) fn begin_write(self: &Arc<Ranges>, range: Range<u64>) -> InFlight {
        let mut state = self.state.lock();
        while state.closed > 0 || state.holds.values().any(|held| overlap(held, &range)) {
            self.released.wait(&mut state);
        }
        let (number, parts) = (state.add(), self.parts_of(&range));
        state.writes.insert(number, range);
        InFlight { ranges: Arc::clone(self), number, parts }
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
        let mut state = self.ranges.state.lock();
        state.writes.remove(&self.number);
        state.note_written(&self.parts);
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.state.lock().closed -= 1;
        self.0.released.notify_all();
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
    use format::geometry::GeometryOptions;

    use super::*;

    fn geometry() -> Geometry {
        let options = GeometryOptions {
            device_bytes: 1 << 30,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        };
        Geometry::plan(&options).expect("it fits")
    }

    #[test]
    fn what_was_written_counts_until_a_flush_that_began_after_it() {
        let ranges = Ranges::new(geometry());
        let start = ranges.geometry.groups_offset;
        let (part, size) = (|at: u64| Parts::of(&geometry(), &(at..at + 1)), 4 << 20);
        assert_eq!(ranges.unflushed(0), Parts::NONE);
        let write = ranges.begin_write(start..start + 4096);
        assert_eq!(ranges.unflushed(0), part(start), "in flight");
        let during = ranges.begin_flush();
        assert_eq!(ranges.unflushed(during), part(start), "it may have passed the flush");
        drop(write);
        assert_eq!(ranges.unflushed(during), part(start), "answered after the flush began");
        let after = ranges.begin_flush();
        assert_eq!(ranges.unflushed(after), Parts::NONE);
        drop(ranges.begin_write(start + size..start + size + 4096));
        let late = ranges.begin_flush();
        assert_eq!(ranges.unflushed(after), part(start + size), "of one that missed a flush");
        assert_eq!(ranges.unflushed(late), Parts::NONE, "of one that did not");
        ranges.try_hold(start..start + 1).expect("nobody writes").note_written();
        assert_eq!(ranges.unflushed(late), part(start), "repaired");
        drop(ranges.begin_write(0..4096));
        assert_eq!(ranges.unflushed(late), part(start), "fixed regions are in no part");
    }

    #[test]
    fn a_hold_is_refused_while_a_write_overlaps_and_holds_later_ones_back() {
        let ranges = Ranges::new(geometry());
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
