//! The sweep: metadata pages in the order in which they lie on the device, read before they are
//! asked for.
//!
//! Walks follow pointers, so by themselves they would wait for one page at a time. What
//! descriptors, usage and free maps say of metadata is known before the first walk. So the sweep
//! reads it in physical order, in long runs with many requests in flight, and keeps each run until
//! every page of it was taken.
//!
//! Nothing is believed: what the free maps say decides when a page is read, never whether. A page
//! that the sweep has not is read by itself, and each page is verified when it is taken.
//!
//! # Memory
//!
//! [`SWEEP_BYTES_MAX`], or the share [`SWEEP_SHARE`] of what the check may take, if that is less.
//! When so much waits to be taken, because walks go another way than pages lie, the sweep stops
//! until some of it was, and pages in front of it are read by themselves.
//!
//! Not here: blocks of files (`blocks`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;

use format::group::SegmentKind;
use format::ids::Place;
use format::page::{PAGE_BYTES, PageBytes};
use storage::device::{Purpose, SharedBytes, Ticket};

use crate::Check;
use crate::convert::{index_of, to_u64, to_usize};
use crate::pass::segment::read_free_map;
use crate::reader::{PageWanted, ReadError, Reader};
use crate::space::{GroupSpace, Space, StatedSegment, is_set};

/// Bytes of pages that wait to be taken, at most: all metadata of 400,000 files, so that their
/// check needs no luck with the order in which they lie.
const SWEEP_BYTES_MAX: u64 = 256 << 20;
/// One part in so many of a check's memory is for the sweep.
const SWEEP_SHARE: u64 = 8;
/// Requests in flight: with runs of 1 MiB twice what disks need for their whole bandwidth.
const RUNS_IN_FLIGHT: usize = 16;
/// Bytes of one run: where sequential reading comes close to what a device can do.
pub(crate) const RUN_BYTES_MAX: u64 = 1 << 20;
/// Gap between pages over which a run goes on: what is read in the time that a request of its own
/// takes.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// A page so far in front of what was asked for is read by itself: what is in flight.
const FAR_BYTES: u64 = 16 << 20;
/// Pages far in front that are read by themselves: the maps of containers often lie behind what
/// they lead to, and to wait for them would be to read everything before the first walk begins. So
/// many single reads take as long as 64 MiB of the sweep; past them it is waited for.
const FAR_READS_MAX: u32 = 512;

/// A page that was read and verified.
#[derive(Debug)]
pub(crate) enum Page {
    /// By itself.
    Alone(Box<PageBytes>),
    /// In a run. It keeps the run in memory, so it is held no longer than it is looked at.
    Swept(SharedBytes),
}

impl Deref for Page {
    type Target = PageBytes;

    fn deref(&self) -> &PageBytes {
        match self {
            Page::Alone(page) => page,
            Page::Swept(bytes) => bytes.first_chunk().expect("a page was taken"),
        }
    }
}

/// Pages near each other on the device, read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    offset: u64,
    length: u64,
    /// Pages in it that somebody will take.
    pages: u32,
}

#[derive(Debug)]
enum State {
    Asked(Ticket),
    Read(SharedBytes),
}

/// A run in memory, or on its way there.
#[derive(Debug)]
struct Held {
    length: u64,
    /// Pages that nobody took yet.
    pages_left: u32,
    state: State,
}

/// The group that the sweep is in.
#[derive(Debug)]
struct InHand {
    group: u32,
    /// A bit a fragment: what its free map says.
    marked: Vec<u64>,
    /// Where the next run is looked for.
    fragment: u32,
}

/// Reads metadata in physical order. See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    bytes_max: u64,
    /// Groups that come later.
    groups: VecDeque<u32>,
    in_hand: Option<InHand>,
    /// What lies before this byte of the device was asked for.
    cursor: u64,
    /// Pages far in front of it that were read by themselves.
    far_reads: u32,
    /// Bytes that are still to be asked for, by what the pool says.
    rest_bytes: u64,
    /// By their first byte.
    held: BTreeMap<u64, Held>,
    held_bytes: u64,
    /// First bytes of the runs that nobody waited for yet, in order.
    in_flight: VecDeque<u64>,
    /// Pages that were claimed and not taken yet: all others that were claimed were read.
    wanted: BTreeSet<u64>,
}

impl Sweep {
    /// Returns a sweep of what `space` says is metadata.
    pub(crate) fn new(space: &Space, reader: &Reader, memory_bytes_max: u64) -> Sweep {
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

    /// Whether the page at `offset` is here, or on its way, or will be when it is asked for.
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

    /// Whether there is room for all up to the page at `offset`.
    fn can_reach(&self, offset: u64) -> bool {
        let is_at_end = self.in_hand.is_none() && self.groups.is_empty();
        let room = self.bytes_max.saturating_sub(self.held_bytes);
        let ahead = offset.checked_sub(self.cursor).filter(|_| !is_at_end);
        ahead.is_some_and(|ahead| ahead.min(self.rest_bytes) <= room)
    }

    /// Returns how many bytes wait to be taken, or are on their way.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Returns the first byte of the run that has the page at `offset`.
    fn run_around(&self, offset: u64) -> Option<u64> {
        let (&start, held) = self.held.range(..=offset).next_back()?;
        (offset < start + held.length).then_some(start)
    }

    /// Notes that the page at `offset`, which was claimed, will be taken.
    pub(crate) fn expect(&mut self, offset: u64) {
        if offset >= self.cursor {
            self.wanted.insert(offset);
        }
    }

    /// Takes the page at `offset`; `None` if the sweep has not read it.
    pub(crate) fn take(
        &mut self,
        reader: &Reader,
        space: &Space,
        offset: u64,
    ) -> Option<SharedBytes> {
        let page = self.look_for(reader, space, offset);
        self.wanted.remove(&offset);
        page
    }

    fn look_for(&mut self, reader: &Reader, space: &Space, offset: u64) -> Option<SharedBytes> {
        loop {
            self.fill(reader, space);
            if let Some(start) = self.run_around(offset) {
                return self.take_of(reader, start, offset);
            }
            if !self.can_reach(offset) {
                return None;
            }
            // Further on: what is in flight makes room for it.
            let oldest = *self.in_flight.front()?;
            self.settle(reader, oldest);
        }
    }

    fn take_of(&mut self, reader: &Reader, start: u64, offset: u64) -> Option<SharedBytes> {
        self.settle(reader, start);
        let held = self.held.get_mut(&start)?;
        let State::Read(bytes) = &held.state else { return None };
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

    /// Waits for the run that begins at `start`. One that can't be read is forgotten, and its pages
    /// are read by themselves: each tells of its own sectors.
    fn settle(&mut self, reader: &Reader, start: u64) {
        let Some(position) = self.in_flight.iter().position(|&other| other == start) else {
            return;
        };
        self.in_flight.remove(position);
        let Some(Held { length, pages_left, state: State::Asked(ticket) }) =
            self.held.remove(&start)
        else {
            return;
        };
        match reader.finish(ticket, start, to_usize(length)) {
            Ok(bytes) => {
                let state = State::Read(bytes);
                self.held.insert(start, Held { length, pages_left, state });
            }
            Err(_) => self.held_bytes -= length,
        }
    }

    /// Asks for the next runs, as far as there is room.
    fn fill(&mut self, reader: &Reader, space: &Space) {
        while self.in_flight.len() < RUNS_IN_FLIGHT
            && self.held_bytes + RUN_BYTES_MAX <= self.bytes_max
        {
            let Some(run) = self.next_run(reader, space) else { return };
            self.cursor = run.offset + run.length;
            let bytes = u64::from(run.pages) * to_u64(PAGE_BYTES);
            self.rest_bytes = self.rest_bytes.saturating_sub(bytes);
            self.held_bytes += run.length;
            let state =
                State::Asked(reader.submit(Purpose::Check, run.offset, to_usize(run.length)));
            self.held.insert(run.offset, Held { length: run.length, pages_left: run.pages, state });
            self.in_flight.push_back(run.offset);
        }
    }

    /// Returns the next run; `None` at the end of the pool.
    fn next_run(&mut self, reader: &Reader, space: &Space) -> Option<Run> {
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

/// Begins with `group`, if there is any metadata behind its front.
fn begin(reader: &Reader, space: &GroupSpace, group: u32) -> Option<InHand> {
    let has_pages = |segment: &StatedSegment| is_metadata(segment) && segment.live > 0;
    let is_any = space.segments.iter().any(has_pages);
    is_any.then(|| InHand { group, marked: free_map(reader, group, space), fragment: 0 })
}

fn is_metadata(segment: &StatedSegment) -> bool {
    segment.kind == Some(SegmentKind::Metadata)
}

impl InHand {
    /// Returns the next run of pages that are in use and that nobody took yet; `None` if there is
    /// none in the group any more.
    fn next_run(&mut self, reader: &Reader, space: &Space, wanted: &BTreeSet<u64>) -> Option<Run> {
        let geometry = &reader.geometry;
        let stated = space.groups.get(&self.group)?;
        let (step, segment_fragments) = (geometry.page_fragments(), geometry.segment_fragments);
        let mut run: Option<Run> = None;
        while self.fragment < geometry.fragments_of(self.group) {
            let at = self.fragment;
            let segment = stated.segments.get(index_of(at / segment_fragments))?;
            if !is_metadata(segment) {
                self.fragment = (at / segment_fragments + 1) * segment_fragments;
                continue;
            }
            let offset = geometry.device_offset(Place::new(0, self.group, at), step)?;
            let is_taken = || is_set(&stated.used, at) && !wanted.contains(&offset);
            if is_set(&self.marked, at) && !is_taken() && !Run::add(&mut run, offset) {
                break;
            }
            self.fragment += step;
        }
        run
    }
}

impl Run {
    /// Makes the page at `offset`, which lies behind it, part of `run`; whether it could.
    fn add(run: &mut Option<Run>, offset: u64) -> bool {
        let end = offset + to_u64(PAGE_BYTES);
        let run = run.get_or_insert(Run { offset, length: 0, pages: 0 });
        let gap = offset - (run.offset + run.length);
        let is_near = gap <= GAP_BYTES_MAX && end - run.offset <= RUN_BYTES_MAX;
        if is_near {
            run.length = end - run.offset;
            run.pages += 1;
        }
        is_near
    }
}

/// Returns which fragments of `group` its free map says are in use. What can't be read may be.
fn free_map(reader: &Reader, group: u32, space: &GroupSpace) -> Vec<u64> {
    let geometry = &reader.geometry;
    let words = index_of(geometry.fragments_of(group).div_ceil(64));
    let Some(stated) = space.stated else { return vec![u64::MAX; words] };
    let mut is_whole = true;
    let marked = read_free_map(reader, group, &stated, &mut |_, failure| {
        is_whole &= failure.is_none();
    });
    if is_whole { marked } else { vec![u64::MAX; words] }
}

impl Check<'_> {
    /// Begins to read `wanted`, which were claimed. Those that the sweep does not bring are read
    /// now, together.
    pub(crate) fn ask(&mut self, wanted: &[PageWanted]) -> Asked {
        let mut asked = Asked { alone: BTreeMap::new() };
        let mut missing = Vec::new();
        for (index, page) in wanted.iter().enumerate() {
            match self.reader.page_offset(page.place) {
                Some(offset) if self.sweep.is_coming(offset) => self.sweep.expect(offset),
                _ => missing.push((index, *page)),
            }
        }
        let pages: Vec<PageWanted> = missing.iter().map(|&(_, page)| page).collect();
        for ((index, _), page) in missing.into_iter().zip(self.reader.read_pages(&pages)) {
            asked.alone.insert(index, page);
        }
        asked
    }

    /// Returns page `index` of those that were asked for, verified.
    pub(crate) fn asked(
        &mut self,
        asked: &mut Asked,
        index: usize,
        wanted: &PageWanted,
    ) -> Result<Page, ReadError> {
        if let Some(page) = asked.alone.remove(&index) {
            return page.map(Page::Alone);
        }
        let offset =
            self.reader.page_offset(wanted.place).ok_or(ReadError::Outside(wanted.place))?;
        let Some(bytes) = self.sweep.take(&self.reader, &self.space, offset) else {
            return self.reader.read_page(wanted).map(Page::Alone);
        };
        let page = Page::Swept(bytes);
        match self.reader.verify(wanted, &page) {
            Ok(()) => Ok(page),
            Err(_) if self.reader.has_copies() => self.reader.read_page(wanted).map(Page::Alone),
            Err(error) => Err(error),
        }
    }
}

/// Pages that were asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Those that were read by themselves.
    alone: BTreeMap<usize, Result<Box<PageBytes>, ReadError>>,
}
