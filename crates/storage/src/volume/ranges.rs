//! Ranges of the pool with writes in flight, and ranges held against writers.
//!
//! # Invariants
//!
//! - RH1: While a range is held, no write that overlaps it is in flight, and none begins.
//! - RH2: A part of the pool that was written counts as written until a flush has completed that
//!   began after the write ended. This is tracked for each member separately
//!   ([`RangeLocks::unflushed`]).
//! - RH3: The size of parts follows the length of the pool. When it changes
//!   ([`RangeLocks::cut_rebuild`]), each written part becomes all the parts that it overlaps. The
//!   parts of a write in flight are computed on use.
//! - RH4: After [`RangeLocks::hold_no_more`] no range is held, so no damage is repaired.
//!
//! # Concurrency
//!
//! A hold is refused while an overlapping write is not yet submitted. A submitted one is completed
//! first, because its caller may collect the answer much later ([`RangeLocks::end_writes`]). A
//! write waits for holds, and for changes of members ([`RangeLocks::close`]). Both wait for devices
//! only, so there is no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use format::geometry::Geometry;
use format::missed::{PARTS, StaleParts, part_bytes};
use runtime::sync::{Condvar, Mutex};

use super::shared_ticket::{SharedTicket, wait_all};

/// Limit on reports of unrepaired damage.
const TOLD_MAX: usize = 4096;

#[derive(Debug)]
struct TrackedWrite {
    range: Range<u64>,
    /// The ticket, once submitted.
    ticket: Weak<SharedTicket>,
}

#[derive(Debug)]
struct RangeLocksState {
    part_bytes: u64,
    groups_offset: u64,
    next: u64,
    writes: BTreeMap<u64, TrackedWrite>,
    holds: BTreeMap<u64, Range<u64>>,
    /// Number of [`WriteExclusion`] guards.
    closed: u64,
    flushes: u64,
    /// Each written part, with the number of flushes begun before its last write ended.
    written: BTreeMap<u64, u64>,
    /// Set by [`RangeLocks::hold_no_more`]: slot and offset of the damage already reported.
    told: Option<BTreeSet<(usize, u64)>>,
}

impl RangeLocksState {
    fn new(part_bytes: u64, groups_offset: u64) -> RangeLocksState {
        RangeLocksState {
            part_bytes,
            groups_offset,
            next: 0,
            writes: BTreeMap::new(),
            holds: BTreeMap::new(),
            closed: 0,
            flushes: 0,
            written: BTreeMap::new(),
            told: None,
        }
    }

    fn parts_of(&self, range: &Range<u64>) -> StaleParts {
        StaleParts::of_size(self.part_bytes, self.groups_offset, range)
    }

    fn add(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn note_written(&mut self, parts: &StaleParts) {
        let flushes = self.flushes;
        self.written.extend((0..PARTS).filter(|part| parts.has(*part)).map(|part| (part, flushes)));
    }
}

#[derive(Debug)]
pub(super) struct RangeLocks {
    groups_offset: u64,
    /// LOCK: nothing is locked behind it.
    state: Mutex<RangeLocksState>,
    released: Condvar,
}

/// A write in flight, until dropped.
#[derive(Debug)]
pub struct InFlightWrite {
    ranges: Arc<RangeLocks>,
    number: u64,
    range: Range<u64>,
}

impl InFlightWrite {
    pub(super) fn parts(&self) -> StaleParts {
        self.ranges.parts_of(&self.range)
    }

    /// Sets the ticket that completes the write.
    pub(super) fn ends_with(&self, ticket: Weak<SharedTicket>) {
        let mut state = self.ranges.state.lock();
        if let Some(write) = state.writes.get_mut(&self.number) {
            write.ticket = ticket;
        }
    }
}

/// Blocks new writes, until dropped.
#[derive(Debug)]
pub(super) struct WriteExclusion(Arc<RangeLocks>);

/// A range held against writers, until dropped.
#[derive(Debug)]
pub struct RangeHold {
    ranges: Arc<RangeLocks>,
    number: u64,
}

impl RangeHold {
    /// Records a write by the holder to the range (RH2).
    pub(super) fn note_written(&self) {
        let mut state = self.ranges.state.lock();
        if let Some(range) = state.holds.get(&self.number).cloned() {
            let parts = state.parts_of(&range);
            state.note_written(&parts);
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl RangeLocks {
    pub(super) fn new(geometry: &Geometry) -> Arc<RangeLocks> {
        RangeLocks::cut(part_bytes(geometry), geometry.groups_offset)
    }

    fn cut(part_bytes: u64, groups_offset: u64) -> Arc<RangeLocks> {
        let state = Mutex::new(RangeLocksState::new(part_bytes, groups_offset));
        Arc::new(RangeLocks { groups_offset, state, released: Condvar::default() })
    }

    pub(super) fn beside(&self) -> Arc<RangeLocks> {
        RangeLocks::cut(self.state.lock().part_bytes, self.groups_offset)
    }

    /// Changes the size of parts, with the length of the pool (RH3).
    pub(super) fn cut_rebuild(&self, geometry: &Geometry) {
        let mut state = self.state.lock();
        let (before, after) = (state.part_bytes, part_bytes(geometry));
        let written = std::mem::take(&mut state.written);
        state.part_bytes = after;
        for (part, ended) in written {
            let start = state.groups_offset.saturating_add(part.saturating_mul(before));
            let parts = state.parts_of(&(start..start.saturating_add(before)));
            for part in (0..PARTS).filter(|part| parts.has(*part)) {
                let known = state.written.entry(part).or_insert(ended);
                *known = (*known).max(ended);
            }
        }
    }

    pub(super) fn parts_of(&self, range: &Range<u64>) -> StaleParts {
        self.state.lock().parts_of(range)
    }

    pub(super) fn groups_offset(&self) -> u64 {
        self.groups_offset
    }

    /// Blocks new writes. Writes in flight go on.
    pub(super) fn close(self: &Arc<RangeLocks>) -> WriteExclusion {
        self.state.lock().closed += 1;
        WriteExclusion(Arc::clone(self))
    }

    pub(super) fn in_flight(&self) -> StaleParts {
        let state = self.state.lock();
        let writes = state.writes.values();
        writes.fold(StaleParts::NONE, |parts, write| parts.with(state.parts_of(&write.range)))
    }

    /// Begins a flush, which covers the writes that ended before. Returns its number.
    pub(super) fn begin_flush(&self) -> u64 {
        let mut state = self.state.lock();
        state.flushes += 1;
        state.flushes
    }

    /// Returns the parts that may not be durable on a member with last completed flush `flushed`
    /// (RH2).
    pub(super) fn unflushed(&self, flushed: u64) -> StaleParts {
        let state = self.state.lock();
        let mut parts = StaleParts::NONE;
        let late = state.written.iter().filter(|(_, ended)| **ended >= flushed);
        late.for_each(|(part, _)| parts.add(*part));
        // A held range may be written by its holder.
        let writes = state.writes.values().map(|write| &write.range);
        let others = writes.chain(state.holds.values());
        others.fold(parts, |parts, range| parts.with(state.parts_of(range)))
    }

    /// Begins a write. Waits while its range is held, or members change.
    pub(super) fn begin_write(self: &Arc<RangeLocks>, range: Range<u64>) -> InFlightWrite {
        let mut state = self.state.lock();
        while state.closed > 0 || state.holds.values().any(|held| overlap(held, &range)) {
            self.released.wait(&mut state);
        }
        let number = state.add();
        state.writes.insert(number, TrackedWrite { range: range.clone(), ticket: Weak::new() });
        InFlightWrite { ranges: Arc::clone(self), number, range }
    }

    /// Waits for the submitted writes to `range`, and settles their failures and stale parts. In an
    /// idle pool no caller may collect their answers.
    pub(super) fn end_writes(&self, range: &Range<u64>) {
        let state = self.state.lock();
        let writes = state.writes.values().filter(|write| overlap(&write.range, range));
        let tickets: Vec<Weak<SharedTicket>> =
            writes.map(|write| Weak::clone(&write.ticket)).collect();
        drop(state);
        wait_all(tickets);
    }

    /// Refuses later holds (RH4).
    pub(super) fn hold_no_more(&self) {
        self.state.lock().told.get_or_insert_default();
    }

    pub(super) fn holds_any(&self) -> bool {
        self.state.lock().told.is_none()
    }

    /// Whether to report damage at `offset` of the member in `slot`: unrepaired damage only once.
    pub(super) fn is_news(&self, slot: usize, offset: u64) -> bool {
        let mut state = self.state.lock();
        state.told.as_mut().is_none_or(|told| told.len() < TOLD_MAX && told.insert((slot, offset)))
    }

    /// Holds a range. `None` while a write or another hold overlaps it.
    pub(super) fn try_hold(self: &Arc<RangeLocks>, range: Range<u64>) -> Option<RangeHold> {
        let mut state = self.state.lock();
        if state.told.is_some() {
            return None;
        }
        let writes = state.writes.values().map(|write| &write.range);
        let mut others = writes.chain(state.holds.values());
        if others.any(|other| overlap(other, &range)) {
            return None;
        }
        let number = state.add();
        state.holds.insert(number, range);
        Some(RangeHold { ranges: Arc::clone(self), number })
    }
}

impl Drop for InFlightWrite {
    fn drop(&mut self) {
        let mut state = self.ranges.state.lock();
        state.writes.remove(&self.number);
        let parts = state.parts_of(&self.range);
        state.note_written(&parts);
    }
}

impl Drop for WriteExclusion {
    fn drop(&mut self) {
        self.0.state.lock().closed -= 1;
        self.0.released.notify_all();
    }
}

impl Drop for RangeHold {
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
        let ranges = RangeLocks::new(&geometry());
        let start = ranges.groups_offset;
        let (part, size) = (|at: u64| StaleParts::of(&geometry(), &(at..at + 1)), 4 << 20);
        assert_eq!(ranges.unflushed(0), StaleParts::NONE);
        let write = ranges.begin_write(start..start + 4096);
        assert_eq!(ranges.unflushed(0), part(start), "in flight");
        let during = ranges.begin_flush();
        assert_eq!(ranges.unflushed(during), part(start), "it may have passed the flush");
        drop(write);
        assert_eq!(ranges.unflushed(during), part(start), "answered after the flush began");
        let after = ranges.begin_flush();
        assert_eq!(ranges.unflushed(after), StaleParts::NONE);
        drop(ranges.begin_write(start + size..start + size + 4096));
        let late = ranges.begin_flush();
        assert_eq!(ranges.unflushed(after), part(start + size), "of one that missed a flush");
        assert_eq!(ranges.unflushed(late), StaleParts::NONE, "of one that did not");
        ranges.try_hold(start..start + 1).expect("nobody writes").note_written();
        assert_eq!(ranges.unflushed(late), part(start), "repaired");
        drop(ranges.begin_write(0..4096));
        assert_eq!(ranges.unflushed(late), part(start), "fixed regions are in no part");
    }

    /// Goal: when the pool grows, earlier writes and writes in flight count in the parts that they
    /// lie in afterwards, unless a flush followed (RH3).
    #[test]
    fn what_was_written_counts_when_the_pool_has_become_longer() {
        let (short, long) = (geometry(), geometry().grown(5 << 30).0);
        let ranges = RangeLocks::new(&short);
        let start = short.groups_offset;
        let at = |mib: u64| start + (mib << 20)..start + (mib << 20) + 4096;
        drop(ranges.begin_write(at(100)));
        let flushed = ranges.begin_flush();
        drop(ranges.begin_write(at(700)));
        let in_flight = ranges.begin_write(at(900));
        ranges.cut_rebuild(&long);
        let part = |mib: u64| StaleParts::of(&long, &at(mib));
        let unflushed = ranges.unflushed(flushed);
        assert!(unflushed.has_all(&part(700)) && unflushed.has_all(&part(900)), "{unflushed:?}");
        assert!(!unflushed.has_any(&part(100)), "{unflushed:?}");
        assert_eq!((in_flight.parts(), ranges.in_flight()), (part(900), part(900)));
        drop(in_flight);
        drop(ranges.begin_write(at(4000)));
        assert!(ranges.unflushed(flushed).has_all(&part(4000)));
        assert_eq!(ranges.unflushed(ranges.begin_flush()), StaleParts::NONE);
    }

    #[test]
    fn a_hold_is_refused_while_a_write_overlaps_and_holds_later_ones_back() {
        let ranges = RangeLocks::new(&geometry());
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
