//! What lies in a piece of the pool, for jobs that walk over all of it: how it is kept, and which
//! blocks the summaries of a segment list.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use format::geometry::Geometry;
use format::ids::{Epoch, Place};
use format::page::PAGE_BYTES;
use format::summary::{Summary, SummaryEntry, SummaryKind};

use runtime::planted::{self, Planted};
use storage::device::Redundancy;

use crate::alloc::{Pin, SegmentId};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::vnode::Core;

/// Pieces that a step may pass over because nothing is in them.
pub(super) const PASSED_OVER_MAX: u32 = 1024;
/// How many of what is lost a report names: the log has all.
pub(super) const LOST_NAMED_MAX: usize = 64;

/// How a piece is kept, for as long as this lives.
#[derive(Debug)]
pub(super) enum Kept<'a> {
    /// The same on all members.
    Alike,
    /// A segment in stripes.
    Segment(Pin<'a>),
}

impl<'a> Kept<'a> {
    /// Returns how `piece` is kept; `None`: nothing in it is in use.
    ///
    /// # Errors
    ///
    /// What is wrong with the maps of its group: nobody knows how it is kept.
    pub(super) fn of(core: &'a Core, piece: &Range<u64>) -> FsResult<Option<Kept<'a>>> {
        let geometry = core.store.geometry();
        if piece.end <= geometry.groups_offset {
            return Ok(Some(Kept::Alike));
        }
        let place = geometry.place_at(piece.start);
        // One that begins before the groups is of the main disk group, whatever lies in stripes
        // beside it: where that is a mirror the fixed regions end inside a piece.
        let is_planted = planted::is(Planted::PieceOfFixedRegionSkipped);
        let of_first = if is_planted { geometry.has_stripes() } else { geometry.is_striped(0) };
        let is_striped = place.map_or(of_first, |place| geometry.is_striped(place.group()));
        if !is_striped {
            return Ok(Some(Kept::Alike));
        }
        let Some(place) = place else { return Ok(None) };
        let id = SegmentId { group: place.group(), segment: geometry.segment_of(place) };
        Ok(core.store.alloc.pin(id)?.map(Kept::Segment))
    }

    pub(super) fn redundancy(&self) -> Redundancy {
        match self {
            Kept::Alike => Redundancy::Copies,
            Kept::Segment(pin) => pin.kept,
        }
    }
}

/// When a walk says in the labels how far it is: each time that it has done a part of its work.
#[derive(Debug)]
pub(super) struct Notes {
    part_bytes: u64,
    /// Bytes of pieces that were worked on since the last note.
    since: AtomicU64,
}

/// Unit of the cursors in the labels.
pub(super) const MIB: u64 = 1 << 20;
/// Parts of a walk's work after which it notes how far it is: a crash repeats one, or a MiB.
const NOTED_PARTS: u64 = 128;
/// Descriptors of allocation groups that are read to tell how much work there is.
const LOOKED_AT_MAX: u32 = 4096;

impl Notes {
    /// Returns when a walk over `walked` notes. Of what lies in stripes it works on what is in use
    /// alone.
    pub(super) fn new(core: &Core, walked: &Range<u64>) -> Notes {
        let geometry = core.store.geometry();
        let overlap = |bytes: Range<u64>| {
            bytes.end.min(walked.end).saturating_sub(bytes.start.max(walked.start))
        };
        let added = geometry.added.iter().map(|range| (range.numbers(), geometry.bytes_of(range)));
        let main = (geometry.main_numbers(), geometry.main_bytes());
        let mut budget = LOOKED_AT_MAX;
        let mut work_of = |(numbers, bytes): (Range<u32>, Range<u64>)| {
            let walked_bytes = overlap(bytes);
            if walked_bytes == 0 || !geometry.is_striped(numbers.start) {
                return walked_bytes;
            }
            let space = core.store.alloc.space_within(numbers, &mut budget);
            // Too many to look at: as if all were in use, so that it does not note too often.
            let used = if space.is_counted { space.used } else { space.capacity };
            (used << geometry.fragment_shift).min(walked_bytes)
        };
        let groups = iter::once(main).chain(added);
        let work = overlap(0..geometry.groups_offset) + groups.map(&mut work_of).sum::<u64>();
        Notes { part_bytes: (work / NOTED_PARTS).max(MIB), since: AtomicU64::new(0) }
    }

    /// Returns the same of a walk that works on `bytes` at most.
    pub(super) fn at_most(self, bytes: u64) -> Notes {
        Notes { part_bytes: self.part_bytes.min(bytes / NOTED_PARTS).max(MIB), ..self }
    }

    /// Whether a walk that has worked on `bytes` more notes how far it is.
    pub(super) fn are_due(&self, bytes: u64) -> bool {
        let since = self.since.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_due = since >= self.part_bytes;
        if is_due {
            self.since.store(0, Ordering::Relaxed);
        }
        is_due
    }
}

/// Returns the bytes of the whole rows that a range of a segment in `group` lies in.
pub(super) fn rows_around(geometry: &Geometry, group: u32, range: &Range<usize>) -> Range<usize> {
    let rows = geometry.stripes_around(group, &(wide(range.start)..wide(range.end)));
    index_wide(rows.start)..index_wide(rows.end)
}

/// A block that a summary lists.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) place: Place,
    /// Where it lies in the bytes of its segment.
    pub(super) range: Range<usize>,
    pub(super) entry: SummaryEntry,
}

impl Listed {
    /// Whether `bytes` are what the block is.
    pub(super) fn is_it(&self, bytes: &[u8]) -> bool {
        self.entry.verifies(bytes)
    }

    /// Whether the block is what it is in the bytes of its segment.
    pub(super) fn is_in(&self, segment: &[u8]) -> bool {
        segment.get(self.range.clone()).is_some_and(|bytes| self.is_it(bytes))
    }
}

/// Returns the summary in a page at `place`.
pub(super) fn summary_of(core: &Core, bytes: &[u8], place: Place) -> Option<Summary> {
    let page = bytes.first_chunk()?;
    Summary::decode(page, core.segments.pool_id(), core.segments.secret(), place)
}

/// Returns the blocks that the summaries of a pinned segment list, by where they lie.
pub(super) fn listed_in(core: &Core, pin: &Pin<'_>, segment: &[u8]) -> Vec<Listed> {
    listed_of(core, pin.id, pin.incarnation, segment)
}

/// Returns the blocks that the summaries of one incarnation of a segment list, by where they lie.
pub(super) fn listed_of(
    core: &Core,
    id: SegmentId,
    incarnation: Epoch,
    segment: &[u8],
) -> Vec<Listed> {
    let geometry = core.store.geometry();
    let start = geometry.segment_place(id.group, id.segment);
    let mut blocks = BTreeMap::new();
    for (number, page) in (0..).zip(segment.as_chunks::<PAGE_BYTES>().0) {
        let place = start.advance(number * geometry.page_fragments());
        let Some(summary) = summary_of(core, page, place) else { continue };
        if summary.incarnation != incarnation && !planted::is(Planted::OldSummaryTrusted) {
            continue;
        }
        let listed = blocks_of(core, start, summary.entries);
        blocks.extend(listed.into_iter().map(|block| (block.entry.offset, block)));
    }
    blocks.into_values().collect()
}

/// Returns the block of `listed` that covers the fragment at `place`: of several the last.
pub(super) fn block_at(listed: &[Listed], place: Place) -> Option<&Listed> {
    let covers = |block: &&Listed| {
        let end = block.place.advance(block.entry.fragments);
        (block.place.fragment()..end.fragment()).contains(&place.fragment())
    };
    listed.iter().filter(covers).max_by_key(|block| block.entry.birth)
}

/// Returns the blocks that a summary lists of the segment that begins at `start`.
pub(super) fn blocks_of(core: &Core, start: Place, entries: Vec<SummaryEntry>) -> Vec<Listed> {
    let geometry = core.store.geometry();
    let block = |entry: SummaryEntry| {
        let from = index_wide(u64::from(entry.offset) << geometry.fragment_shift);
        let range = from..from.saturating_add(core.stored_bytes(entry.fragments));
        let is_inside = wide(range.end) <= geometry.segment_bytes();
        let is_it = entry.kind == SummaryKind::Block && is_inside;
        is_it.then(|| Listed { place: start.advance(entry.offset), range, entry })
    };
    entries.into_iter().filter_map(block).collect()
}
