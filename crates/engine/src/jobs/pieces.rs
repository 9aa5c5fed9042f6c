//! Pieces of the pool, for jobs that walk over all of it: redundancy of a piece, blocks listed by
//! the summaries of a segment, and notes of progress.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use format::geometry::Geometry;
use format::ids::{Epoch, Place};
use format::page::PAGE_BYTES;
use format::summary::{SegmentSummary, SummaryEntry, SummaryKind};

use runtime::planted;
use storage::device::Redundancy;

use super::JobProgress;
use crate::alloc::{SegmentId, SegmentPin};
use crate::convert::{index_wide, narrow, wide};
use crate::error::FsResult;
use crate::file::Core;

pub(super) const PASSED_OVER_MAX: u32 = 1024;
pub(super) const LOST_NAMED_MAX: usize = 64;

/// Redundancy of a piece, which cannot change while this exists.
#[derive(Debug)]
pub(super) enum PieceRedundancy<'a> {
    /// Identical copies on all members.
    Alike,
    /// A segment in stripes.
    Segment(SegmentPin<'a>),
}

impl<'a> PieceRedundancy<'a> {
    /// Returns the redundancy of `piece`. `None` if it is unused.
    ///
    /// # Errors
    ///
    /// Corruption of the group's maps, so that the redundancy is unknown.
    pub(super) fn of(core: &'a Core, piece: &Range<u64>) -> FsResult<Option<PieceRedundancy<'a>>> {
        let geometry = core.store.geometry();
        if piece.end <= geometry.groups_offset {
            return Ok(Some(PieceRedundancy::Alike));
        }
        let place = geometry.place_at(piece.start);
        // The fixed regions belong to the main disk group. In a mirror they may end inside a piece.
        let is_skipped = planted!(PieceOfFixedRegionSkipped) && geometry.has_stripes();
        let of_first = geometry.group_layout().is_striped(0) || is_skipped;
        let is_striped =
            place.map_or(of_first, |place| geometry.group_layout().is_striped(place.group()));
        if !is_striped {
            return Ok(Some(PieceRedundancy::Alike));
        }
        let Some(place) = place else { return Ok(None) };
        let id = SegmentId { group: place.group(), segment: geometry.segment_of(place) };
        Ok(core.store.alloc.pin(id)?.map(PieceRedundancy::Segment))
    }

    pub(super) fn redundancy(&self) -> Redundancy {
        match self {
            PieceRedundancy::Alike => Redundancy::Copies,
            PieceRedundancy::Segment(pin) => pin.kept,
        }
    }
}

/// Work of a walk, and the schedule by which it records its progress in the labels: once for each
/// part of the work.
#[derive(Debug)]
pub(super) struct ProgressSchedule {
    /// Ranges of the pool in order, each with the bytes of it that are read. Estimated once.
    works: Vec<(Range<u64>, u64)>,
    part_bytes: u64,
    since: AtomicU64,
}

/// Unit of the cursors in the labels.
pub(super) const MIB: u64 = 1 << 20;
/// Parts of a walk's work, after each of which the progress is recorded. A crash repeats one part,
/// or one MiB.
const NOTED_PARTS: u64 = 128;
/// Most group descriptors read, and most ranges kept, to estimate the work.
const LOOKED_AT_MAX: u32 = 4096;

impl ProgressSchedule {
    /// Returns the schedule of a walk over `walked`. In striped groups only space in use is work.
    pub(super) fn new(core: &Core, walked: &Range<u64>) -> ProgressSchedule {
        let geometry = core.store.geometry();
        let within = |bytes: Range<u64>| {
            let start = bytes.start.max(walked.start);
            start..bytes.end.min(walked.end).max(start)
        };
        let layout = geometry.group_layout();
        let all = iter::once(layout.main_numbers());
        let all: Vec<_> = all.chain(geometry.added.iter().map(|range| range.numbers())).collect();
        let count: usize = all.iter().map(ExactSizeIterator::len).sum();
        let step = count.div_ceil(index_wide(LOOKED_AT_MAX.into())).max(1);
        let mut budget = LOOKED_AT_MAX;
        let fixed = within(0..geometry.groups_offset);
        let mut works = vec![(fixed.clone(), fixed.end - fixed.start)];
        for numbers in all {
            for first in numbers.clone().step_by(step) {
                let end = numbers.end.min(first.saturating_add(narrow(wide(step))));
                let end_byte = geometry.group_offset(end - 1)
                    + (u64::from(geometry.fragments_of(end - 1)) << geometry.fragment_shift);
                let bytes = within(geometry.group_offset(first)..end_byte);
                let mut work = bytes.end - bytes.start;
                if layout.is_striped(first) && work > 0 {
                    let space = core.store.alloc.group_space();
                    let space = space.space_within(first..end, &mut budget);
                    // Without a descriptor, all space is assumed to be in use.
                    let used = if space.is_counted { space.used } else { space.capacity };
                    work = work.min(used << geometry.fragment_shift);
                }
                works.push((bytes, work));
            }
        }
        works.retain(|(bytes, _)| !bytes.is_empty());
        let mut schedule = ProgressSchedule { works, part_bytes: MIB, since: AtomicU64::new(0) };
        schedule.part_bytes = (schedule.at(walked.end).total / NOTED_PARTS).max(MIB);
        schedule
    }

    /// Returns the progress of a walk whose cursor is `at`, in bytes of work.
    pub(super) fn at(&self, at: u64) -> JobProgress {
        let done_of = |(bytes, work): &(Range<u64>, u64)| {
            let (passed, length) =
                (at.clamp(bytes.start, bytes.end) - bytes.start, bytes.end - bytes.start);
            let done = u128::from(*work) * u128::from(passed) / u128::from(length.max(1));
            u64::try_from(done).unwrap_or(*work)
        };
        JobProgress {
            done: self.works.iter().map(done_of).sum(),
            total: self.works.iter().map(|(_, work)| work).sum(),
        }
    }

    pub(super) fn at_most(self, bytes: u64) -> ProgressSchedule {
        ProgressSchedule { part_bytes: self.part_bytes.min(bytes / NOTED_PARTS).max(MIB), ..self }
    }

    /// Adds `bytes` of work. Returns whether the progress is to be recorded.
    pub(super) fn are_due(&self, bytes: u64) -> bool {
        let since = self.since.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_due = since >= self.part_bytes;
        if is_due {
            self.since.store(0, Ordering::Relaxed);
        }
        is_due
    }
}

/// Extends a byte range of a segment in `group` to whole rows.
pub(super) fn rows_around(geometry: &Geometry, group: u32, range: &Range<usize>) -> Range<usize> {
    let rows = geometry.stripes_around(group, &(wide(range.start)..wide(range.end)));
    index_wide(rows.start)..index_wide(rows.end)
}

#[derive(Clone, Debug)]
pub(super) struct ListedBlock {
    pub(super) place: Place,
    pub(super) range: Range<usize>,
    pub(super) entry: SummaryEntry,
}

impl ListedBlock {
    pub(super) fn is_it(&self, bytes: &[u8]) -> bool {
        self.entry.verifies(bytes)
    }

    pub(super) fn is_in(&self, segment: &[u8]) -> bool {
        segment.get(self.range.clone()).is_some_and(|bytes| self.is_it(bytes))
    }
}

pub(super) fn summary_of(core: &Core, bytes: &[u8], place: Place) -> Option<SegmentSummary> {
    let page = bytes.first_chunk()?;
    SegmentSummary::decode(page, core.segments.pool_id(), core.segments.secret(), place)
}

pub(super) fn listed_in(core: &Core, pin: &SegmentPin<'_>, segment: &[u8]) -> Vec<ListedBlock> {
    listed_of(core, pin.id, pin.incarnation, segment)
}

/// Returns the blocks that the summaries of the segment's present incarnation list, by offset.
pub(super) fn listed_of(
    core: &Core,
    id: SegmentId,
    incarnation: Epoch,
    segment: &[u8],
) -> Vec<ListedBlock> {
    let geometry = core.store.geometry();
    let start = geometry.segment_place(id.group, id.segment);
    let mut blocks = BTreeMap::new();
    for (number, page) in (0..).zip(segment.as_chunks::<PAGE_BYTES>().0) {
        let place = start.advance(number * geometry.page_fragments());
        let Some(summary) = summary_of(core, page, place) else { continue };
        if summary.incarnation != incarnation && !planted!(OldSummaryTrusted) {
            continue;
        }
        let listed = blocks_of(core, start, summary.entries);
        blocks.extend(listed.into_iter().map(|block| (block.entry.offset, block)));
    }
    blocks.into_values().collect()
}

pub(super) fn block_at(listed: &[ListedBlock], place: Place) -> Option<&ListedBlock> {
    let covers = |block: &&ListedBlock| {
        let end = block.place.advance(block.entry.fragments);
        (block.place.fragment()..end.fragment()).contains(&place.fragment())
    };
    listed.iter().filter(covers).max_by_key(|block| block.entry.birth)
}

pub(super) fn blocks_of(core: &Core, start: Place, entries: Vec<SummaryEntry>) -> Vec<ListedBlock> {
    let geometry = core.store.geometry();
    let block = |entry: SummaryEntry| {
        let from = index_wide(u64::from(entry.offset) << geometry.fragment_shift);
        let range = from..from.saturating_add(core.reader().stored_bytes(entry.fragments));
        let is_inside = wide(range.end) <= geometry.segment_bytes();
        let is_it = entry.kind == SummaryKind::Block && is_inside;
        is_it.then(|| ListedBlock { place: start.advance(entry.offset), range, entry })
    };
    entries.into_iter().filter_map(block).collect()
}
