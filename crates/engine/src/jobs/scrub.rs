//! Scrub: all copies of what a pool holds are read and held against each other, and what is bad on
//! one member is written again with what another has.
//!
//! Copies that are equal are left: rot does not strike two devices alike. Of each page that is not
//! the same everywhere, what lies there says which copy is right:
//!
//! 1. In a metadata segment, and in the group table: the page that verifies at this place, and is
//!    the one that went home last.
//! 2. In a data segment: the newest block that the summaries list there, by its checksum; and a
//!    summary itself, by its own.
//! 3. Nothing in use, as what a crash has left: it stays.
//!
//! The kind of a segment is that of the usage page at home. It may be behind what memory knows, but
//! for a segment that was free: that is left to the next scrub.
//!
//! Nothing is written but by [`Volume::heal`], which holds the range against writers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::group::{SegmentKind, SegmentUsage, USAGES_PER_PAGE};
use format::ids::Place;
use format::page::{PAGE_BYTES, PageHeader};
use format::pointer::BlockPointer;
use format::summary::{Summary, SummaryEntry, SummaryKind};
use storage::device::Purpose;
use storage::volume::{Healed, Volume};

use super::{Budget, Job, JobProgress, Step};
use crate::alloc::SegmentId;
use crate::buffer::page_of;
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::vnode::Core;

/// What is read at a time, of each member.
const PIECE_BYTES: u64 = 1 << 20;

/// What a scrub has found so far.
#[derive(Debug, Default)]
pub(crate) struct ScrubCounts {
    read_bytes: AtomicU64,
    differing: AtomicU64,
    repaired: AtomicU64,
    lost: AtomicU64,
    unused: AtomicU64,
    is_done: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes of the pool that were held against each other.
    pub read_bytes: u64,
    /// Pages of 4 KiB that were not the same on all members.
    pub differing: u64,
    /// Pages and blocks that were written again.
    pub repaired: u64,
    /// Pages and blocks of which no copy verifies, or that could not be written again.
    pub lost: u64,
    /// Differing pages that nothing uses.
    pub unused: u64,
    /// Whether it has come to the end.
    pub is_done: bool,
}

impl ScrubCounts {
    /// Returns what was found so far.
    pub(crate) fn report(&self) -> ScrubReport {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ScrubReport {
            read_bytes: of(&self.read_bytes),
            differing: of(&self.differing),
            repaired: of(&self.repaired),
            lost: of(&self.lost),
            unused: of(&self.unused),
            is_done: of(&self.is_done) > 0,
        }
    }
}

/// A scrub of the whole pool. It begins anew where it was interrupted by a close.
#[derive(Debug)]
pub(crate) struct Scrub {
    at: AtomicU64,
    counts: Arc<ScrubCounts>,
}

impl Scrub {
    /// Returns a scrub that counts in `counts`.
    pub(crate) fn new(core: &Core, counts: &Arc<ScrubCounts>) -> Scrub {
        let at = AtomicU64::new(core.store.geometry().group_table_offset);
        Scrub { at, counts: Arc::clone(counts) }
    }
}

impl Job for Scrub {
    fn name(&self) -> &'static str {
        "scrub"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        let volume = &core.store.volume;
        let end = volume.used_end();
        for _ in 0..budget.units {
            let at = self.at.load(Ordering::Relaxed);
            if at >= end {
                volume.flush(Purpose::Cleaner).map_err(|error| core.store.journal.fail(&error))?;
                self.counts.is_done.store(1, Ordering::Relaxed);
                return Ok(Step::Done);
            }
            let length = (PIECE_BYTES - at % PIECE_BYTES).min(end - at);
            let pages = volume.differing_pages(at, index_wide(length));
            let pages = pages.map_err(|error| FsError::Io { cause: error.to_string() })?;
            let mut segments = BTreeMap::new();
            for offset in pages {
                self.mend(core, offset, &mut segments)?;
            }
            self.counts.read_bytes.fetch_add(length, Ordering::Relaxed);
            self.at.store(at + length, Ordering::Relaxed);
        }
        Ok(Step::Again)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let done = self.counts.read_bytes.load(Ordering::Relaxed);
        let total = core.store.volume.used_end() - core.store.geometry().group_table_offset;
        Some(JobProgress { done, total })
    }
}

/// What the summaries of a segment say, of all copies.
#[derive(Debug, Default)]
struct Listed {
    entries: Vec<SummaryEntry>,
}

impl Listed {
    /// Returns the newest block that covers the fragment at `offset` of the segment.
    fn newest_at(&self, offset: u32) -> Option<&SummaryEntry> {
        let covers = |entry: &&SummaryEntry| {
            let end = entry.offset.saturating_add(entry.fragments);
            entry.kind == SummaryKind::Block && (entry.offset..end).contains(&offset)
        };
        self.entries.iter().filter(covers).max_by_key(|entry| entry.birth)
    }
}

impl Scrub {
    /// Repairs the page at `offset`, which is not the same on all members.
    fn mend(
        &self,
        core: &Core,
        offset: u64,
        segments: &mut BTreeMap<SegmentId, Listed>,
    ) -> FsResult<()> {
        self.counts.differing.fetch_add(1, Ordering::Relaxed);
        let geometry = core.store.geometry();
        let Some(place) = geometry.place_at(offset) else {
            self.counts.unused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let is_in_group = offset >= geometry.groups_offset;
        let kind = if is_in_group { kind_of(core, place) } else { Some(SegmentKind::Metadata) };
        let healed = match kind {
            Some(SegmentKind::Metadata) => core.store.cache.mend(place),
            Some(SegmentKind::Data) => self.mend_data(core, place, segments)?,
            Some(_) | None => None,
        };
        let count = match healed {
            None => &self.counts.unused,
            // What was mended with its neighbour is the same by now.
            Some(Healed { bytes: Some(_), bad: 0, .. }) => return Ok(()),
            Some(Healed { bytes: Some(_), bad, repaired, .. }) if bad == repaired => {
                &self.counts.repaired
            }
            Some(_) => {
                tracing::error!(%place, "a scrub finds no copy that verifies, or cannot write it");
                &self.counts.lost
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn mend_data(
        &self,
        core: &Core,
        place: Place,
        segments: &mut BTreeMap<SegmentId, Listed>,
    ) -> FsResult<Option<Healed>> {
        let (geometry, volume) = (core.store.geometry(), &core.store.volume);
        let id = SegmentId { group: place.group(), segment: geometry.segment_of(place) };
        let start = geometry.segment_place(id.group, id.segment);
        let listed = segments.entry(id).or_insert_with(|| read_listed(core, start));
        let heal = |place, length, is_it: &dyn Fn(&[u8]) -> bool| {
            let healed = volume.heal(Purpose::Cleaner, place, length, is_it);
            healed.map(Some).map_err(|error| core.store.journal.fail(&error))
        };
        let Some(entry) = listed.newest_at(place.fragment() - start.fragment()) else {
            let is_summary = |bytes: &[u8]| summary_of(core, bytes, place).is_some();
            if has_copy(volume, place, &is_summary) {
                return heal(place, PAGE_BYTES, &is_summary);
            }
            return Ok(None);
        };
        let block = start.advance(entry.offset);
        let is_it = |bytes: &[u8]| {
            let block_bytes = 1_usize << entry.block_shift.min(20);
            let pointer =
                BlockPointer::to_data(block, entry.fragments, entry.birth, block_bytes, bytes);
            pointer.check == entry.check
        };
        heal(block, core.stored_bytes(entry.fragments), &is_it)
    }
}

/// Whether one of the copies is what `is_it` looks for.
fn has_copy(volume: &Volume, place: Place, is_it: &dyn Fn(&[u8]) -> bool) -> bool {
    let read = |copy| volume.read_copy(copy, Purpose::Cleaner, place, PAGE_BYTES);
    (0..).map_while(read).any(|copy| copy.is_ok_and(|bytes| is_it(&bytes)))
}

fn summary_of(core: &Core, bytes: &[u8], place: Place) -> Option<Summary> {
    let page = bytes.first_chunk()?;
    Summary::decode(page, core.segments.pool_id(), core.segments.secret(), place)
}

/// Reads what the summaries of a segment list, on any of the members.
fn read_listed(core: &Core, start: Place) -> Listed {
    let (geometry, volume) = (core.store.geometry(), &core.store.volume);
    let length = index_wide(geometry.segment_bytes());
    let mut listed = Listed::default();
    let read = |copy| volume.read_copy(copy, Purpose::Cleaner, start, length);
    for bytes in (0..).map_while(read).filter_map(Result::ok) {
        for (index, page) in (0..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
            let place = start.advance(index * geometry.page_fragments());
            let entries = summary_of(core, page, place).map(|summary| summary.entries);
            listed.entries.extend(entries.into_iter().flatten());
        }
    }
    listed
}

/// Returns the kind of the segment at `place` as its usage page at home says; `None`: there is no
/// group, or the page can't be used.
fn kind_of(core: &Core, place: Place) -> Option<SegmentKind> {
    let geometry = core.store.geometry();
    let segment = geometry.segment_of(place);
    let at = geometry.usage_place(place.group(), segment / USAGES_PER_PAGE);
    let is_it = |bytes: &[u8]| {
        let header =
            bytes.first_chunk().map(|page| PageHeader::decode(page, core.segments.pool_id(), at));
        header.is_some_and(|header| header.is_ok())
    };
    let read = |copy| core.store.volume.read_copy(copy, Purpose::Home, at, PAGE_BYTES);
    let copies = (0..).map_while(read).filter_map(Result::ok);
    let page = copies.into_iter().find(|bytes| is_it(bytes))?;
    SegmentUsage::of(page_of(&page), segment).map(|usage| usage.kind)
}
