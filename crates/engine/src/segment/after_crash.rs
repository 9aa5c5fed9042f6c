//! Recovery of inline log data: writes summaries for logged blocks whose partial segment was never
//! written. Without summaries the owners of these blocks are unknown, and the cleaner cannot empty
//! the segment.
//!
//! # Crashes
//!
//! Runs after the replayed pages are written back and before the head gives up the old log. A
//! second crash repeats this step, which skips listed blocks.
//!
//! There is always room: a partial segment reserves room for its summary behind its blocks
//! (`has_room`). If a block is unlisted, its summary page is missing, so no block in use can be in
//! that room. The free map shows the blocks in use.
//!
//! With stripes the blocks are written here too: see `stripes`.

mod stripes;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::bitmap::{self, BITS_PER_PAGE};
use format::geometry::Geometry;
use format::group::{SegmentKind, SegmentUsage, USAGES_PER_PAGE};
use format::ids::{Lsn, Place};
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind, page_crc};
use format::summary::{ENTRIES_PER_SUMMARY, SegmentSummary, SummaryEntry, SummaryKind};
use format::superblock::Superblock;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, SharedBytes};
use storage::volume::Volume;

use crate::alloc::SegmentId;
use crate::buffer::{newest_copy, page_of};
use crate::convert::{index_wide, narrow, wide};
use crate::journal::ReplayedLogData;

struct SegmentRecovery<'a> {
    volume: &'a Volume,
    superblock: &'a Superblock,
    id: SegmentId,
    usage: SegmentUsage,
    end: Lsn,
    bytes: AlignedBuffer,
    /// With stripes: the first offset to change. Summaries go into `bytes`, which is written later.
    first: Option<u32>,
    /// Summary pages of this incarnation: offset in fragments, and checksum.
    summaries: BTreeMap<u32, u32>,
    /// Offsets of the blocks that `summaries` list.
    listed: BTreeSet<u32>,
    /// Offsets of unreadable pages. Nothing is written there, because their contents are unknown.
    unread: BTreeSet<u32>,
}

/// An unreadable block or page that was overwritten.
#[derive(Clone, Debug)]
pub(crate) struct LostBlock {
    pub(crate) place: Place,
    /// The block's entry in a summary, if it has one.
    pub(crate) entry: Option<SummaryEntry>,
}

/// Writes summaries for the unlisted blocks in `kept`, not yet durable. `log` reaches from the last
/// chunk of the log to its end. Returns the number of blocks listed. `lost` gets unreadable blocks
/// that were overwritten.
///
/// # Errors
///
/// Errors of the device.
pub(crate) fn summarise_log_data(
    volume: &Volume,
    superblock: &Superblock,
    kept: &[ReplayedLogData<'_>],
    log: &Range<Lsn>,
    lost: &mut Vec<LostBlock>,
) -> Result<u64, DeviceError> {
    let mut segments: BTreeMap<SegmentId, BTreeMap<u32, &ReplayedLogData<'_>>> = BTreeMap::new();
    let geometry = volume.geometry();
    for block in kept {
        let segment = geometry.segment_of(block.place);
        let id = SegmentId { group: block.place.group(), segment };
        let offset = block.place.fragment() % geometry.segment_fragments;
        segments.entry(id).or_default().insert(offset, block);
    }
    let mut count = 0;
    for (id, kept) in segments {
        if geometry.group_layout().is_striped(id.group) {
            count += stripes::write_home(volume, superblock, id, &kept, log, lost)?;
            continue;
        }
        let Some(mut left) = SegmentRecovery::read(volume, superblock, id, log.end)? else {
            continue;
        };
        count += left.list_all(&kept, log.start)?;
    }
    Ok(count)
}

fn entry_of(offset: u32, block: &ReplayedLogData<'_>) -> SummaryEntry {
    SummaryEntry {
        kind: SummaryKind::Block,
        block_shift: block.owner.block_shift,
        fragments: block.fragments,
        offset,
        fileset: block.owner.fileset,
        anode: block.owner.anode,
        generation: block.owner.generation,
        index: block.owner.index,
        birth: block.owner.birth,
        check: block.check,
    }
}

/// Reads the newest home copy of a metadata page not above LSN `end`. `None` if unreadable or not
/// of `kind`.
fn home_page(
    volume: &Volume,
    superblock: &Superblock,
    (place, end): (Place, Lsn),
    kind: PageKind,
) -> Option<PageBytes> {
    let is_page = |bytes: &PageBytes| {
        let header = PageHeader::decode(bytes, superblock.pool_id, place);
        header.is_ok_and(|header| header.kind == kind)
    };
    if volume.has_copies() {
        let newest = newest_copy(volume, place, end, &is_page)?;
        return Some(*page_of(&newest.bytes));
    }
    let read = volume.read_page(IoPurpose::Home, place);
    let bytes = read.inspect_err(|error| tracing::warn!(%error, "a page can't be read")).ok()?;
    is_page(page_of(&bytes)).then(|| *page_of(&bytes))
}

fn usage_of(
    volume: &Volume,
    superblock: &Superblock,
    id: SegmentId,
    end: Lsn,
) -> Option<SegmentUsage> {
    let place = volume.geometry().usage_place(id.group, id.segment / USAGES_PER_PAGE);
    let page = home_page(volume, superblock, (place, end), PageKind::SegmentUsage);
    let usage = page.and_then(|page| SegmentUsage::of(&page, id.segment));
    usage.filter(|usage| usage.kind == SegmentKind::Data)
}

/// Reads a segment. Also returns the unreadable pages, which are zeros in the buffer and fail their
/// checks.
pub(crate) fn read_segment(volume: &Volume, start: Place) -> (AlignedBuffer, BTreeSet<usize>) {
    let geometry = volume.geometry();
    let length = index_wide(geometry.segment_bytes());
    if let Ok(bytes) = volume.read(IoPurpose::Cleaner, start, length) {
        return (bytes, BTreeSet::new());
    }
    let (mut bytes, mut unread) = (AlignedBuffer::zeroed(length), BTreeSet::new());
    for (number, page) in (0..).zip(bytes.as_chunks_mut::<PAGE_BYTES>().0) {
        let place = start.advance(number * geometry.page_fragments());
        match volume.read(IoPurpose::Cleaner, place, PAGE_BYTES) {
            Ok(found) => page.copy_from_slice(&found),
            Err(error) => {
                tracing::warn!(%error, "no member gives a page of a segment");
                unread.insert(index_wide(u64::from(number)) * PAGE_BYTES);
            }
        }
    }
    (bytes, unread)
}

fn offsets_of(geometry: &Geometry, pages: &BTreeSet<usize>) -> BTreeSet<u32> {
    pages.iter().map(|at| narrow(wide(*at) >> geometry.fragment_shift)).collect()
}

impl<'a> SegmentRecovery<'a> {
    /// Reads a data segment. `None` for other segments, and if the segment usage is unreadable,
    /// which the load of the group reports.
    fn read(
        volume: &'a Volume,
        superblock: &'a Superblock,
        id: SegmentId,
        end: Lsn,
    ) -> Result<Option<SegmentRecovery<'a>>, DeviceError> {
        let geometry = volume.geometry();
        let Some(usage) = usage_of(volume, superblock, id, end) else { return Ok(None) };
        let start = geometry.segment_place(id.group, id.segment);
        let (bytes, unread) = read_segment(volume, start);
        let unread = offsets_of(geometry, &unread);
        let (summaries, listed) = (BTreeMap::new(), BTreeSet::new());
        let first = None;
        let mut left = SegmentRecovery {
            volume,
            superblock,
            id,
            usage,
            end,
            bytes,
            first,
            summaries,
            listed,
            unread,
        };
        left.take_from_copies()?;
        left.find_summaries();
        Ok(Some(left))
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    fn start(&self) -> Place {
        self.geometry().segment_place(self.id.group, self.id.segment)
    }

    fn summary_in(&self, page: &PageBytes, offset: u32) -> Option<SegmentSummary> {
        let (pool_id, secret) = (self.superblock.pool_id, self.superblock.secret);
        let summary = SegmentSummary::decode(page, pool_id, &secret, self.start().advance(offset));
        summary.filter(|summary| summary.incarnation == self.usage.incarnation)
    }

    /// Collects the summaries of all copies and writes them to all, so that the loss of a member
    /// loses none.
    fn take_from_copies(&mut self) -> Result<(), DeviceError> {
        let (start, step) = (self.start(), self.geometry().page_fragments());
        let (length, mut found) = (self.bytes.len(), BTreeMap::new());
        for copy in 0.. {
            let bytes = self.volume.read_copy(copy, IoPurpose::Cleaner, start, length);
            let Some(bytes) = bytes else { break };
            let bytes = bytes.unwrap_or_else(|_| self.copy_by_pages(copy));
            for (index, page) in (0..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
                if self.summary_in(page, index * step).is_some() {
                    found.entry(index).or_insert(*page);
                }
            }
        }
        for (index, page) in found {
            let at = index_wide(u64::from(index)) * PAGE_BYTES;
            self.bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
            let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(&page))];
            let place = start.advance(index * step);
            self.volume.submit_write(IoPurpose::Data, place, pieces).wait()?;
            self.unread.remove(&(index * step));
        }
        Ok(())
    }

    /// Reads one copy, with zeros for unreadable pages.
    fn copy_by_pages(&self, copy: usize) -> AlignedBuffer {
        let (start, step) = (self.start(), self.geometry().page_fragments());
        let mut bytes = AlignedBuffer::zeroed(self.bytes.len());
        for (index, page) in (0..).zip(bytes.as_chunks_mut::<PAGE_BYTES>().0) {
            let place = start.advance(index * step);
            let found = self.volume.read_copy(copy, IoPurpose::Cleaner, place, PAGE_BYTES);
            if let Some(Ok(found)) = found {
                page.copy_from_slice(&found);
            }
        }
        bytes
    }

    fn find_summaries(&mut self) {
        let step = self.geometry().page_fragments();
        let mut found = Vec::new();
        for (index, page) in (0..).zip(self.bytes.as_chunks::<PAGE_BYTES>().0) {
            let offset = index * step;
            let Some(summary) = self.summary_in(page, offset) else { continue };
            found.push((offset, page_crc(page), summary));
        }
        for (offset, crc, summary) in found {
            {
                self.summaries.insert(offset, crc);
                let blocks =
                    summary.entries.iter().filter(|entry| entry.kind == SummaryKind::Block);
                self.listed.extend(blocks.map(|entry| entry.offset));
            }
        }
    }

    /// Writes summaries for the unlisted blocks. Returns their number.
    fn list_all(
        &mut self,
        kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
        lsn: Lsn,
    ) -> Result<u64, DeviceError> {
        let unlisted = kept.iter().filter(|(offset, _)| !self.listed.contains(offset));
        let entries: Vec<SummaryEntry> =
            unlisted.map(|(offset, block)| entry_of(*offset, block)).collect();
        let mut count = 0;
        for entries in entries.chunks(ENTRIES_PER_SUMMARY) {
            count += self.list(entries, lsn)?;
        }
        Ok(count)
    }

    /// Writes one summary page into unused space.
    fn list(&mut self, entries: &[SummaryEntry], lsn: Lsn) -> Result<u64, DeviceError> {
        let Some(offset) = self.room(entries) else {
            // Not expected: a bug, or malice. The blocks stay readable, but their segment cannot be
            // cleaned.
            let SegmentId { group, segment } = self.id;
            tracing::warn!(group, segment, "no room for a summary of inline log data");
            return Ok(0);
        };
        let before = self.summaries.range(..offset).next_back();
        let (previous, previous_crc) = before.map_or((0, 0), |(offset, crc)| (offset + 1, *crc));
        let summary = SegmentSummary {
            place: self.start().advance(offset),
            lsn,
            incarnation: self.usage.incarnation,
            partial_start: entries.first().map_or(0, |entry| entry.offset),
            previous,
            previous_crc,
            entries: entries.to_vec(),
        };
        let bytes = summary.encode(self.superblock.pool_id, &self.superblock.secret);
        self.summaries.insert(offset, page_crc(&bytes));
        if self.first.is_some() {
            let at = index_wide(u64::from(offset) << self.geometry().fragment_shift);
            self.bytes[at..at + PAGE_BYTES].copy_from_slice(&bytes);
            return Ok(wide(entries.len()));
        }
        let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes))];
        self.volume.submit_write(IoPurpose::Data, summary.place, pieces).wait()?;
        Ok(wide(entries.len()))
    }

    /// Returns the offset of an unused page: behind the last of `entries` if possible.
    fn room(&self, entries: &[SummaryEntry]) -> Option<u32> {
        let step = self.geometry().page_fragments();
        let end = entries.last().map_or(0, |entry| entry.offset + entry.fragments);
        let first = end.next_multiple_of(step);
        let whole = self.geometry().segment_fragments;
        let behind = (first..whole).step_by(index_wide(u64::from(step)));
        let start = self.first.unwrap_or(0);
        let before = (start..first.min(whole)).step_by(index_wide(u64::from(step))).rev();
        for offset in behind.chain(before) {
            let is_known = !self.unread.contains(&offset);
            if is_known && !self.summaries.contains_key(&offset) && !self.is_used(offset, step) {
                return Some(offset);
            }
        }
        None
    }

    /// Returns whether any of the fragments may be in use.
    fn is_used(&self, offset: u32, count: u32) -> bool {
        let fragment = self.id.segment * self.geometry().segment_fragments + offset;
        let place = self.geometry().free_map_place(self.id.group, fragment / BITS_PER_PAGE);
        let map = home_page(self.volume, self.superblock, (place, self.end), PageKind::FreeMap);
        let Some(map) = map else { return true };
        // A page's fragments never cross a map page: their number divides the bits of a map page.
        let first = fragment % BITS_PER_PAGE;
        (first..first + count).any(|bit| bitmap::is_set(&map, bit))
    }
}

const _: () = assert!(BITS_PER_PAGE.is_multiple_of(4));
