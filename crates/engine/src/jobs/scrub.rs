//! Scrub: all that a pool holds is read in every way that there is, and what is bad is written
//! again with what the rest gives.
//!
//! Of what all members hold alike, copies that are equal are left: rot does not strike two devices
//! alike. Of each page that is not the same everywhere, what lies there says which copy is right:
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
//! In stripes segments in use alone are looked at: `stripes` says how.
//!
//! Nothing is written but by [`Volume::heal`] and [`Volume::mend_parity`], which hold the range
//! against writers.

mod stripes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::geometry::Geometry;
use format::group::{SegmentKind, SegmentUsage, USAGES_PER_PAGE};
use format::ids::Place;
use format::page::{PAGE_BYTES, PageHeader};
use format::summary::{SummaryEntry, SummaryKind};
use storage::device::{DeviceError, Purpose};
use storage::volume::{Healed, Volume};

use super::pieces::{Kept, LOST_NAMED_MAX, PASSED_OVER_MAX, is_block, summary_of};
use super::{Budget, Job, JobProgress, Step};
use crate::alloc::SegmentId;
use crate::buffer::page_of;
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use crate::vnode::Core;

/// What a scrub has found so far.
#[derive(Debug, Default)]
pub(crate) struct ScrubCounts {
    read_bytes: AtomicU64,
    differing: AtomicU64,
    repaired: AtomicU64,
    lost: AtomicU64,
    unused: AtomicU64,
    parities: AtomicU64,
    is_done: AtomicU64,
    names: Mutex<Vec<String>>,
}

/// The same at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes of the pool that were looked at; in stripes what nothing uses counts too.
    pub read_bytes: u64,
    /// Pages of 4 KiB that were not the same on all members, or whose rows do not agree.
    pub differing: u64,
    /// Pages and blocks that were written again.
    pub repaired: u64,
    /// Pages and blocks of which no copy verifies, or that could not be written again.
    pub lost: u64,
    /// Differing pages that nothing uses.
    pub unused: u64,
    /// Runs of rows whose parity was written again.
    pub parities: u64,
    /// Which are lost: the first of them, files by their paths.
    pub names: Vec<String>,
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
            parities: of(&self.parities),
            names: self.names.lock().clone(),
            is_done: of(&self.is_done) > 0,
        }
    }

    fn lose(&self, what: String) {
        tracing::error!(what, "a scrub finds nothing that verifies, or cannot write it");
        self.lost.fetch_add(1, Ordering::Relaxed);
        let mut names = self.names.lock();
        if names.len() < LOST_NAMED_MAX {
            names.push(what);
        }
    }

    /// Counts what became of something bad.
    fn count(&self, healed: Option<&Healed>, what: impl FnOnce() -> String) {
        match healed {
            None => _ = self.unused.fetch_add(1, Ordering::Relaxed),
            // What was mended with its neighbour is the same by now.
            Some(Healed { bytes: Some(_), bad: 0, .. }) => {}
            Some(Healed { bytes: Some(_), bad, repaired, .. }) if bad == repaired => {
                self.repaired.fetch_add(1, Ordering::Relaxed);
            }
            Some(_) => self.lose(what()),
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
        let (mut read, mut passed_over) = (0, 0);
        while read < budget.units && passed_over < PASSED_OVER_MAX {
            let at = self.at.load(Ordering::Relaxed);
            let Some(piece) = volume.piece_at(at) else {
                volume.flush(Purpose::Cleaner).map_err(|error| core.store.journal.fail(&error))?;
                self.counts.is_done.store(1, Ordering::Relaxed);
                return Ok(Step::Done);
            };
            let (end, length) = (piece.end, piece.end - at);
            match Kept::of(core, &piece) {
                Ok(Some(kept)) => {
                    read += 1;
                    let compared = volume.compare(piece.clone(), kept.redundancy(), None);
                    // A write is at it.
                    let Some(compared) = compared.map_err(io)? else { return Ok(Step::Wait) };
                    match kept {
                        Kept::Alike => self.mend_all(core, &compared.differing)?,
                        Kept::Segment(pin) => self.mend_segment(core, &pin, compared)?,
                    }
                }
                Ok(None) => passed_over += 1,
                Err(error) => {
                    let (from, to) = (piece.start, end - 1);
                    self.counts.lose(format!("bytes {from} to {to} of the pool: {error}"));
                }
            }
            self.counts.read_bytes.fetch_add(length, Ordering::Relaxed);
            self.at.store(end, Ordering::Relaxed);
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

fn io(error: DeviceError) -> FsError {
    FsError::Io { cause: error.to_string() }
}

/// Returns the place at byte `offset` of the pool, in a group or in front of them.
fn place_at(geometry: &Geometry, offset: u64) -> Option<Place> {
    match offset < geometry.groups_offset {
        true => Some(Geometry::fixed_place(offset)),
        false => geometry.place_at(offset),
    }
}

impl Scrub {
    fn mend_all(&self, core: &Core, differing: &[u64]) -> FsResult<()> {
        let mut segments = BTreeMap::new();
        differing.iter().try_for_each(|&offset| self.mend(core, offset, &mut segments))
    }

    /// Repairs the page at `offset`, which is not the same on all members.
    fn mend(
        &self,
        core: &Core,
        offset: u64,
        segments: &mut BTreeMap<SegmentId, Listed>,
    ) -> FsResult<()> {
        self.counts.differing.fetch_add(1, Ordering::Relaxed);
        let geometry = core.store.geometry();
        let Some(place) = place_at(geometry, offset) else {
            self.counts.unused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        let is_in_group = offset >= geometry.groups_offset;
        let kind = match is_in_group {
            true => usage_at_home(core, place).map(|usage| usage.kind),
            false => Some(SegmentKind::Metadata),
        };
        let healed = match kind {
            Some(SegmentKind::Metadata) => core.store.cache.mend(place),
            Some(SegmentKind::Data) => self.mend_data(core, place, segments)?,
            Some(_) | None => None,
        };
        self.counts.count(healed.as_ref(), || format!("what lies at {place}"));
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
        let is_it = |bytes: &[u8]| is_block(entry, block, bytes);
        heal(block, core.stored_bytes(entry.fragments), &is_it)
    }
}

/// Whether one of the copies is what `is_it` looks for.
fn has_copy(volume: &Volume, place: Place, is_it: &dyn Fn(&[u8]) -> bool) -> bool {
    let read = |copy| volume.read_copy(copy, Purpose::Cleaner, place, PAGE_BYTES);
    (0..).map_while(read).any(|copy| copy.is_ok_and(|bytes| is_it(&bytes)))
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

/// Returns the usage of the segment at `place` as its usage page at home says; `None`: there is no
/// group, or the page can't be used.
pub(super) fn usage_at_home(core: &Core, place: Place) -> Option<SegmentUsage> {
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
    SegmentUsage::of(page_of(&page), segment)
}
