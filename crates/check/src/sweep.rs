//! The sweep: reads metadata pages ahead, in physical order.
//!
//! A walk follows pointers and would wait for one page at a time. But descriptors, segment usage
//! and free maps locate all metadata before the first walk. The sweep reads it in physical order,
//! in long runs with many requests in flight, and keeps each run until all its pages were taken.
//!
//! The free maps are not trusted: they decide when a page is read, never whether. A page outside
//! the sweep is read alone, and each page is verified when it is taken.
//!
//! # Memory
//!
//! [`SWEEP_BYTES_MAX`], or one part in [`SWEEP_SHARE`] of the check's bound if that is less. If
//! walks take pages in another order and this memory fills up, the sweep pauses, and pages ahead of
//! it are read alone.
//!
//! Not here: blocks of files (`blocks`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;

use format::group::SegmentKind;
use format::ids::Place;
use format::page::{PAGE_BYTES, PageBytes};
use storage::device::{IoPurpose, SharedBytes, Ticket};

use crate::convert::{index_of, to_u64, to_usize};
use crate::free_map::read_free_map;
use crate::reader::PoolReader;
use crate::space::{FragmentSpace, GroupSpace, StatedSegment, is_set};

/// Bound of the runs in memory: all metadata of 400,000 files, whatever its order.
const SWEEP_BYTES_MAX: u64 = 256 << 20;
const SWEEP_SHARE: u64 = 8;
const RUNS_IN_FLIGHT: usize = 16;
pub(crate) const RUN_BYTES_MAX: u64 = 1 << 20;
/// Largest gap inside a run: read in about the time of a separate request.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// A page that is further ahead of the requested runs is read alone.
const FAR_BYTES: u64 = 16 << 20;
/// Bound of single reads far ahead, which take as long as 64 MiB of the sweep. Maps of containers
/// often lie behind their content: without these reads they would wait for most of the sweep.
const FAR_READS_MAX: u32 = 512;

#[derive(Debug)]
pub(crate) enum SweepPage {
    Alone(Box<PageBytes>),
    /// A page in a run. It keeps the whole run in memory, so it must be dropped soon.
    Swept(SharedBytes),
}

impl Deref for SweepPage {
    type Target = PageBytes;

    fn deref(&self) -> &PageBytes {
        match self {
            SweepPage::Alone(page) => page,
            SweepPage::Swept(bytes) => bytes.first_chunk().expect("a page was taken"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SweepRun {
    offset: u64,
    length: u64,
    pages: u32,
}

#[derive(Debug)]
enum BufferedRunState {
    Asked(Ticket),
    Read(SharedBytes),
}

#[derive(Debug)]
struct BufferedRun {
    length: u64,
    pages_left: u32,
    state: BufferedRunState,
}

#[derive(Debug)]
struct GroupScan {
    group: u32,
    marked: Vec<u64>,
    fragment: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Sweep {
    bytes_max: u64,
    groups: VecDeque<u32>,
    in_hand: Option<GroupScan>,
    /// Device offset up to which runs were requested.
    cursor: u64,
    far_reads: u32,
    /// Bytes not yet requested, by the pool's own counts.
    rest_bytes: u64,
    held: BTreeMap<u64, BufferedRun>,
    held_bytes: u64,
    in_flight: VecDeque<u64>,
    /// Claimed pages that the sweep will read and a walk has yet to take.
    wanted: BTreeSet<u64>,
}

impl Sweep {
    pub(crate) fn new(space: &FragmentSpace, reader: &PoolReader, memory_bytes_max: u64) -> Sweep {
        let page_fragments = u64::from(reader.geometry.page_fragments());
        let live = space.groups.values().flat_map(|group| &group.segments);
        let live = live
            .filter(|segment| segment.kind == Some(SegmentKind::Metadata))
            .map(|segment| u64::from(segment.live.min(reader.geometry.segment_fragments)));
        let mut sweep = Sweep {
            bytes_max: SWEEP_BYTES_MAX.min(memory_bytes_max / SWEEP_SHARE),
            groups: space.groups.keys().copied().collect(),
            rest_bytes: live.sum::<u64>() / page_fragments * to_u64(PAGE_BYTES),
            ..Sweep::default()
        };
        sweep.fill(reader, space);
        sweep
    }

    /// Returns whether the page is in memory, in flight, or will be read soon enough.
    pub(crate) fn is_coming(&mut self, offset: u64) -> bool {
        if self.run_around(offset).is_some() {
            return true;
        }
        let is_far = offset.saturating_sub(self.cursor) > FAR_BYTES;
        if is_far && self.far_reads < FAR_READS_MAX {
            self.far_reads += 1;
            return false;
        }
        self.can_reach(offset)
    }

    /// Whether memory has room for everything up to `offset`.
    fn can_reach(&self, offset: u64) -> bool {
        let is_at_end = self.in_hand.is_none() && self.groups.is_empty();
        let room = self.bytes_max.saturating_sub(self.held_bytes);
        let ahead = offset.checked_sub(self.cursor).filter(|_| !is_at_end);
        ahead.is_some_and(|ahead| ahead.min(self.rest_bytes) <= room)
    }

    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    fn run_around(&self, offset: u64) -> Option<u64> {
        let (&start, held) = self.held.range(..=offset).next_back()?;
        (offset < start + held.length).then_some(start)
    }

    pub(crate) fn expect(&mut self, offset: u64) {
        if offset >= self.cursor {
            self.wanted.insert(offset);
        }
    }

    /// Takes the page at `offset`; `None` if the sweep has not read it.
    pub(crate) fn take(
        &mut self,
        reader: &PoolReader,
        space: &FragmentSpace,
        offset: u64,
    ) -> Option<SharedBytes> {
        let page = self.look_for(reader, space, offset);
        self.wanted.remove(&offset);
        page
    }

    fn look_for(
        &mut self,
        reader: &PoolReader,
        space: &FragmentSpace,
        offset: u64,
    ) -> Option<SharedBytes> {
        loop {
            self.fill(reader, space);
            if let Some(start) = self.run_around(offset) {
                return self.take_of(reader, start, offset);
            }
            if !self.can_reach(offset) {
                return None;
            }
            // Further ahead: complete the oldest request to continue.
            let oldest = *self.in_flight.front()?;
            self.settle(reader, oldest);
        }
    }

    fn take_of(&mut self, reader: &PoolReader, start: u64, offset: u64) -> Option<SharedBytes> {
        self.settle(reader, start);
        let held = self.held.get_mut(&start)?;
        let BufferedRunState::Read(bytes) = &held.state else { return None };
        let at = to_usize(offset - start);
        let page = bytes.slice(at..at + PAGE_BYTES);
        held.pages_left = held.pages_left.saturating_sub(1);
        if held.pages_left == 0
            && let Some(held) = self.held.remove(&start)
        {
            self.held_bytes -= held.length;
        }
        Some(page)
    }

    /// Waits for a run. Drops an unreadable one: its pages are read alone later, so that each bad
    /// sector is reported.
    fn settle(&mut self, reader: &PoolReader, start: u64) {
        let Some(position) = self.in_flight.iter().position(|&other| other == start) else {
            return;
        };
        self.in_flight.remove(position);
        let Some(BufferedRun { length, pages_left, state: BufferedRunState::Asked(ticket) }) =
            self.held.remove(&start)
        else {
            return;
        };
        match reader.finish(ticket, start, to_usize(length)) {
            Ok(bytes) => {
                let state = BufferedRunState::Read(bytes);
                self.held.insert(start, BufferedRun { length, pages_left, state });
            }
            Err(_) => self.held_bytes -= length,
        }
    }

    fn fill(&mut self, reader: &PoolReader, space: &FragmentSpace) {
        while self.in_flight.len() < RUNS_IN_FLIGHT
            && self.held_bytes + RUN_BYTES_MAX <= self.bytes_max
        {
            let Some(run) = self.next_run(reader, space) else { return };
            self.cursor = run.offset + run.length;
            let bytes = u64::from(run.pages) * to_u64(PAGE_BYTES);
            self.rest_bytes = self.rest_bytes.saturating_sub(bytes);
            self.held_bytes += run.length;
            let state = BufferedRunState::Asked(reader.submit(
                IoPurpose::Check,
                run.offset,
                to_usize(run.length),
            ));
            self.held.insert(
                run.offset,
                BufferedRun { length: run.length, pages_left: run.pages, state },
            );
            self.in_flight.push_back(run.offset);
        }
    }

    fn next_run(&mut self, reader: &PoolReader, space: &FragmentSpace) -> Option<SweepRun> {
        loop {
            let Some(in_hand) = &mut self.in_hand else {
                let group = self.groups.pop_front()?;
                self.in_hand = space.groups.get(&group).and_then(|of| begin(reader, of, group));
                continue;
            };
            match in_hand.next_run(reader, space, &self.wanted) {
                Some(run) => return Some(run),
                None => self.in_hand = None,
            }
        }
    }
}

fn begin(reader: &PoolReader, space: &GroupSpace, group: u32) -> Option<GroupScan> {
    let has_pages = |segment: &StatedSegment| is_metadata(segment) && segment.live > 0;
    let is_any = space.segments.iter().any(has_pages);
    is_any.then(|| GroupScan { group, marked: free_map(reader, group, space), fragment: 0 })
}

fn is_metadata(segment: &StatedSegment) -> bool {
    segment.kind == Some(SegmentKind::Metadata)
}

impl GroupScan {
    /// Returns the next run of pages in use. Skips pages that were taken.
    fn next_run(
        &mut self,
        reader: &PoolReader,
        space: &FragmentSpace,
        wanted: &BTreeSet<u64>,
    ) -> Option<SweepRun> {
        let geometry = &reader.geometry;
        let stated = space.groups.get(&self.group)?;
        let (step, segment_fragments) = (geometry.page_fragments(), geometry.segment_fragments);
        let mut run: Option<SweepRun> = None;
        while self.fragment < geometry.fragments_of(self.group) {
            let at = self.fragment;
            let segment = stated.segments.get(index_of(at / segment_fragments))?;
            if !is_metadata(segment) {
                self.fragment = (at / segment_fragments + 1) * segment_fragments;
                continue;
            }
            let offset = geometry.device_offset(Place::new(0, self.group, at), step)?;
            let is_taken = || is_set(&stated.used, at) && !wanted.contains(&offset);
            if is_set(&self.marked, at) && !is_taken() && !SweepRun::add(&mut run, offset) {
                break;
            }
            self.fragment += step;
        }
        run
    }
}

impl SweepRun {
    /// Adds a page to the run. Returns false if it does not fit.
    fn add(run: &mut Option<SweepRun>, offset: u64) -> bool {
        let end = offset + to_u64(PAGE_BYTES);
        let run = run.get_or_insert(SweepRun { offset, length: 0, pages: 0 });
        let gap = offset - (run.offset + run.length);
        let is_near = gap <= GAP_BYTES_MAX && end - run.offset <= RUN_BYTES_MAX;
        if is_near {
            run.length = end - run.offset;
            run.pages += 1;
        }
        is_near
    }
}

/// Reads a group's free map. All bits are set if it is unreadable.
fn free_map(reader: &PoolReader, group: u32, space: &GroupSpace) -> Vec<u64> {
    let geometry = &reader.geometry;
    let words = index_of(geometry.fragments_of(group).div_ceil(64));
    let Some(stated) = space.stated else { return vec![u64::MAX; words] };
    let mut is_whole = true;
    let marked = read_free_map(reader, group, &stated, &mut |_, failure| {
        is_whole &= failure.is_none();
    });
    if is_whole { marked } else { vec![u64::MAX; words] }
}
