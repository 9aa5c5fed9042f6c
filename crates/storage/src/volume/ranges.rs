//! Ranges of the pool with writes in flight, and ranges held against writers.
//!
//! # Invariants
//!
//! - RH1: While a range is held no write that overlaps it is in flight, and none begins.
//! - RH2: A part of the pool that was written counts as written until a flush that began after the
//!   write had ended is answered; for each member apart ([`Ranges::unflushed`]).
//! - RH3: What parts are follows the length of the pool. Where that changes ([`Ranges::cut_anew`])
//!   a part that counts as written is each of those that it overlaps, and a write in flight is in
//!   parts as they are when somebody asks.
//! - RH4: From [`Ranges::hold_no_more`] on no range is held, so who finds something bad as it is
//!   read writes nothing.
//!
//! # Concurrency
//!
//! A hold is refused while a write overlaps that was not handed to its devices yet. The hold waits
//! for a write that was, because the caller of that write may collect the answer much later
//! ([`Ranges::end_writes`]). A write waits for holds, and while members change
//! ([`Ranges::close`]). The holder of a range, and a change of members, wait for devices only: so
//! there is no cycle, whatever a writer holds or has in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use format::geometry::Geometry;
use format::missed::{PARTS, Parts, part_bytes};
use runtime::planted::{self, Planted};
use runtime::sync::{Condvar, Mutex};

use super::shared_ticket::{SharedTicket, wait_all};

/// Places that are told as bad of which nothing is mended; what lies at others is not told.
const TOLD_MAX: usize = 4096;

/// A write in flight.
#[derive(Debug)]
struct Write {
    range: Range<u64>,
    /// What ends it; none until it is handed to its devices.
    ticket: Weak<SharedTicket>,
}

#[derive(Debug)]
struct State {
    /// Bytes of a part.
    part_bytes: u64,
    /// Where the fixed regions end.
    groups_offset: u64,
    next: u64,
    writes: BTreeMap<u64, Write>,
    holds: BTreeMap<u64, Range<u64>>,
    /// Who lets no write begin.
    closed: u64,
    /// Flushes begun so far.
    flushes: u64,
    /// Of each part that was written: how many flushes had begun when the last write to it ended.
    written: BTreeMap<u64, u64>,
    /// Since nothing is held any more: what was told as bad, slot and offset on its member.
    told: Option<BTreeSet<(usize, u64)>>,
}

impl State {
    fn new(part_bytes: u64, groups_offset: u64) -> State {
        State {
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

    fn parts_of(&self, range: &Range<u64>) -> Parts {
        Parts::of_size(self.part_bytes, self.groups_offset, range)
    }

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
    /// Where the fixed regions end.
    groups_offset: u64,
    /// LOCK: nothing is locked behind it.
    state: Mutex<State>,
    released: Condvar,
}

/// A write in flight, until it is dropped.
#[derive(Debug)]
pub struct InFlight {
    ranges: Arc<Ranges>,
    number: u64,
    range: Range<u64>,
}

impl InFlight {
    /// Returns the parts of the pool that it writes to.
    pub(super) fn parts(&self) -> Parts {
        self.ranges.parts_of(&self.range)
    }

    /// Whoever waits for `ticket` ends it.
    pub(super) fn ends_with(&self, ticket: Weak<SharedTicket>) {
        let mut state = self.ranges.state.lock();
        if let Some(write) = state.writes.get_mut(&self.number) {
            write.ticket = ticket;
        }
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
            let parts = state.parts_of(&range);
            state.note_written(&parts);
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Ranges {
    pub(super) fn new(geometry: &Geometry) -> Arc<Ranges> {
        Ranges::cut(part_bytes(geometry), geometry.groups_offset)
    }

    fn cut(part_bytes: u64, groups_offset: u64) -> Arc<Ranges> {
        let state = Mutex::new(State::new(part_bytes, groups_offset));
        Arc::new(Ranges { groups_offset, state, released: Condvar::default() })
    }

    /// Returns the ranges of another disk group of the same pool.
    pub(super) fn beside(&self) -> Arc<Ranges> {
        Ranges::cut(self.state.lock().part_bytes, self.groups_offset)
    }

    /// The pool has another length from now on (RH3).
    pub(super) fn cut_anew(&self, geometry: &Geometry) {
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

    /// Returns the parts of the pool that a range of it lies in.
    pub(super) fn parts_of(&self, range: &Range<u64>) -> Parts {
        self.state.lock().parts_of(range)
    }

    /// Returns where the fixed regions end.
    pub(super) fn groups_offset(&self) -> u64 {
        self.groups_offset
    }

    /// Lets no write begin. Those in flight go on.
    pub(super) fn close(self: &Arc<Ranges>) -> Closed {
        self.state.lock().closed += 1;
        Closed(Arc::clone(self))
    }

    /// Returns the parts of the pool that writes in flight write to.
    pub(super) fn in_flight(&self) -> Parts {
        let state = self.state.lock();
        let writes = state.writes.values();
        writes.fold(Parts::NONE, |parts, write| parts.with(state.parts_of(&write.range)))
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
        let writes = state.writes.values().map(|write| &write.range);
        let others = writes.chain(state.holds.values());
        others.fold(parts, |parts, range| parts.with(state.parts_of(range)))
    }

    /// Begins a write; waits while its range is held, or members change.
    pub(super) fn begin_write(self: &Arc<Ranges>, range: Range<u64>) -> InFlight {
        let mut state = self.state.lock();
        while state.closed > 0 || state.holds.values().any(|held| overlap(held, &range)) {
            self.released.wait(&mut state);
        }
        let number = state.add();
        state.writes.insert(number, Write { range: range.clone(), ticket: Weak::new() });
        InFlight { ranges: Arc::clone(self), number, range }
    }

    /// Ends the writes that overlap `range` and are handed to their devices: waits for them,
    /// settles what has failed, and makes durable what members have missed. An idle pool collects
    /// no answer of a write, and whoever needs its range must not wait until it does.
    pub(super) fn end_writes(&self, range: &Range<u64>) {
        if planted::is(Planted::WriteEndsWhenCollected) {
            return;
        }
        let state = self.state.lock();
        let writes = state.writes.values().filter(|write| overlap(&write.range, range));
        let tickets: Vec<Weak<SharedTicket>> =
            writes.map(|write| Weak::clone(&write.ticket)).collect();
        drop(state);
        wait_all(tickets);
    }

    /// RH4: nobody may write but who begins a write, and soon nobody at all.
    pub(super) fn hold_no_more(&self) {
        self.state.lock().told.get_or_insert_default();
    }

    pub(super) fn holds_any(&self) -> bool {
        self.state.lock().told.is_none()
    }

    /// Whether what is bad at `offset` of the member in `slot` is to be told: once, if it is not
    /// mended.
    pub(super) fn is_news(&self, slot: usize, offset: u64) -> bool {
        let mut state = self.state.lock();
        state.told.as_mut().is_none_or(|told| told.len() < TOLD_MAX && told.insert((slot, offset)))
    }

    /// Holds a range; `None` while a write overlaps it, or another hold does.
    pub(super) fn try_hold(self: &Arc<Ranges>, range: Range<u64>) -> Option<Hold> {
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
        Some(Hold { ranges: Arc::clone(self), number })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = self.ranges.state.lock();
        state.writes.remove(&self.number);
        let parts = state.parts_of(&self.range);
        state.note_written(&parts);
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
        let ranges = Ranges::new(&geometry());
        let start = ranges.groups_offset;
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

    /// Goal: what was written before the pool became longer counts afterwards, in the parts that
    /// it then lies in; a write in flight too, and one that ended before a flush does not (RH3).
    #[test]
    fn what_was_written_counts_when_the_pool_has_become_longer() {
        let (short, long) = (geometry(), geometry().grown(5 << 30).0);
        let ranges = Ranges::new(&short);
        let start = short.groups_offset;
        let at = |mib: u64| start + (mib << 20)..start + (mib << 20) + 4096;
        drop(ranges.begin_write(at(100)));
        let flushed = ranges.begin_flush();
        drop(ranges.begin_write(at(700)));
        let in_flight = ranges.begin_write(at(900));
        ranges.cut_anew(&long);
        let part = |mib: u64| Parts::of(&long, &at(mib));
        let unflushed = ranges.unflushed(flushed);
        assert!(unflushed.has_all(&part(700)) && unflushed.has_all(&part(900)), "{unflushed:?}");
        assert!(!unflushed.has_any(&part(100)), "{unflushed:?}");
        assert_eq!((in_flight.parts(), ranges.in_flight()), (part(900), part(900)));
        drop(in_flight);
        drop(ranges.begin_write(at(4000)));
        assert!(ranges.unflushed(flushed).has_all(&part(4000)));
        assert_eq!(ranges.unflushed(ranges.begin_flush()), Parts::NONE);
    }

    #[test]
    fn a_hold_is_refused_while_a_write_overlaps_and_holds_later_ones_back() {
        let ranges = Ranges::new(&geometry());
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
