//! Recovery of inline log data with stripes: whole stripes are written, with the summaries.
//!
//! The segment is read and overlaid with the logged blocks. Changed stripes are written, with
//! parity. So is a stripe that was in flight at the crash, since its units may be of two ages:
//! afterwards it survives the loss of any member.
//!
//! # Unreadable pages
//!
//! *The log comes first*: the logged pages are put in before an unreadable page (absent member, bad
//! sector) is computed from its column. Only pages unknown even then are lost (`RK1` and `RK2` of
//! `storage::volume`).
//!
//! This is right for both kinds of stripe. In a durable stripe the members had stored the logged
//! bytes, and parity matches them. So the column yields the unreadable page even if the logged
//! block's own sector is bad, which would be a second unknown. In any other stripe the column mixes
//! two ages, and the computed page is garbage. But nothing in its partial segment is committed
//! outside the log, so no pointer leads to that page.
//!
//! A stripe without logged changes and with a lost page is left alone. If a stripe must be written,
//! a bad sector that cannot be computed gets zeros. If the second unknown belongs to an absent
//! member, the stripe keeps its parity: when the member returns, both are restored. Lost blocks in
//! use are reported once the pool is open.
//!
//! # Crashes
//!
//! Stripes before the first logged block are not touched: they may hold the only copy of committed
//! data. From there on, durable partial segments are rewritten unchanged, so an incomplete rewrite
//! is harmless. The others have nothing committed outside the log, which a second crash still
//! finds. Decision 0065 has the argument.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use format::ids::{Lsn, Place};
use format::page::PAGE_BYTES;
use format::pointer::BlockPointer;
use format::summary::{SegmentSummary, SummaryEntry, SummaryKind};
use format::superblock::Superblock;
use runtime::planted;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, SharedBytes};
use storage::volume::{KnownRows, Volume};

use super::{LostBlock, SegmentRecovery, offsets_of, read_segment, usage_of};
use crate::alloc::SegmentId;
use crate::convert::{index_wide, narrow, wide};
use crate::journal::ReplayedLogData;

/// A segment as read, and as it should be. Offsets are those of pages, in bytes.
struct StripedSegmentImage {
    /// As the members return it.
    found: AlignedBuffer,
    unread: BTreeSet<usize>,
    /// With logged and computed pages.
    bytes: AlignedBuffer,
    /// Pages that cannot be computed.
    lost: BTreeSet<usize>,
    /// Pages that may be right, depending on the progress of a joining member's rebuild (RK3).
    uncertain: BTreeSet<usize>,
    /// The rows that were read. `None` on a volume without rows.
    rows: Option<KnownRows>,
}

impl StripedSegmentImage {
    fn of(
        volume: &Volume,
        start: Place,
        kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
    ) -> StripedSegmentImage {
        let (geometry, shift) = (volume.geometry(), volume.geometry().fragment_shift);
        let known = kept.iter().map(|(offset, block)| {
            let at = index_wide(u64::from(*offset) << shift);
            (at, block.bytes)
        });
        let known: BTreeMap<usize, &[u8]> =
            known.filter(|(at, _)| at.is_multiple_of(PAGE_BYTES)).collect();
        let length_bytes = index_wide(geometry.segment_bytes());
        let rows = volume.read_known(start, length_bytes, &known);
        let mut read = match rows {
            Some(rows) => StripedSegmentImage {
                found: AlignedBuffer::clone(&rows.found),
                unread: rows.unread.clone(),
                bytes: AlignedBuffer::clone(&rows.bytes),
                lost: rows.lost.clone(),
                uncertain: rows.uncertain.clone(),
                rows: Some(rows),
            },
            None => {
                let (found, unread) = read_segment(volume, start);
                let mut lost = unread.clone();
                for (at, bytes) in known {
                    lost.retain(|page| !(at..at + bytes.len()).contains(page));
                }
                let bytes = AlignedBuffer::clone(&found);
                StripedSegmentImage {
                    found,
                    unread,
                    bytes,
                    lost,
                    uncertain: BTreeSet::new(),
                    rows: None,
                }
            }
        };
        put(volume, &mut read.bytes, kept);
        read
    }

    fn is_as_found(&self, stripe: &Range<usize>, new: &[u8]) -> bool {
        let is_rebuilt = |page: &usize| stripe.contains(page) && !self.lost.contains(page);
        new == &self.found[stripe.clone()] && !self.unread.iter().any(is_rebuilt)
    }
}

/// Writes stripes with the blocks of `kept`, keyed by offset, and summaries for unlisted ones, not
/// yet durable. Returns the number of blocks listed.
pub(super) fn write_home(
    volume: &Volume,
    superblock: &Superblock,
    id: SegmentId,
    kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
    log: &Range<Lsn>,
    lost: &mut Vec<LostBlock>,
) -> Result<u64, DeviceError> {
    let geometry = volume.geometry();
    let (stripe, start) =
        (geometry.stripe_fragments(id.group), geometry.segment_place(id.group, id.segment));
    let Some((&lowest, _)) = kept.first_key_value() else { return Ok(0) };
    let first = lowest / stripe * stripe;
    let read = StripedSegmentImage::of(volume, start, kept);
    let (mut bytes, mut count) = (AlignedBuffer::clone(&read.bytes), 0);
    let mut left = None;
    if let Some(usage) = usage_of(volume, superblock, id, log.end) {
        let (summaries, listed) = (BTreeMap::new(), BTreeSet::new());
        let first = Some(first);
        let unread = offsets_of(geometry, &read.lost);
        let own = left.insert(SegmentRecovery {
            volume,
            superblock,
            id,
            usage,
            end: log.end,
            bytes,
            first,
            summaries,
            listed,
            unread,
        });
        own.take_summaries(kept, read.rows.as_ref());
        own.find_summaries();
        own.heal_listed(kept, read.rows.as_ref())?;
        count = own.list_all(kept, log.start)?;
        bytes = AlignedBuffer::clone(&own.bytes);
    }
    let mut written_over = BTreeSet::new();
    for at in (first..geometry.segment_fragments).step_by(index_wide(u64::from(stripe))) {
        let bytes_of = |fragments: u32| index_wide(u64::from(fragments) << geometry.fragment_shift);
        let range = bytes_of(at)..bytes_of(geometry.stripe_end(id.group, at + 1));
        let (new, place) = (&bytes[range.clone()], start.advance(at));
        let is_as_found = read.is_as_found(&range, new);
        let agrees = || volume.agrees(IoPurpose::Cleaner, place, range.len());
        if is_as_found && (agrees() || planted!(LogDataWithoutParity)) {
            continue;
        }
        let lost_here = read.lost.range(range.clone());
        if is_as_found && lost_here.clone().next().is_some() {
            // An absent member may have the lost page, and may lack other writes that were in
            // flight.
            volume.note_missed(place, range.len())?;
            continue;
        }
        written_over.extend(lost_here.chain(read.uncertain.range(range.clone())).copied());
        let data = vec![SharedBytes::from(AlignedBuffer::copy_of(new))];
        volume.submit_write(IoPurpose::Data, place, data).wait()?;
    }
    if let Some(left) = left {
        left.name_lost(&written_over, kept, lost);
    }
    Ok(count)
}

fn put(volume: &Volume, bytes: &mut AlignedBuffer, kept: &BTreeMap<u32, &ReplayedLogData<'_>>) {
    let shift = volume.geometry().fragment_shift;
    for (offset, block) in kept {
        let from = index_wide(u64::from(*offset) << shift);
        bytes[from..from + block.bytes.len()].copy_from_slice(block.bytes);
    }
}

impl SegmentRecovery<'_> {
    /// Reconstructs damaged summaries from their rows, so that the blocks that they list are
    /// checked, and new parity does not cover the damage.
    fn take_summaries(
        &mut self,
        kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
        rows: Option<&KnownRows>,
    ) {
        let Some(rows) = rows else { return };
        let step = self.geometry().page_fragments();
        let is_kept = |offset: u32| {
            let before = kept.range(..=offset).next_back();
            let shift = self.geometry().fragment_shift;
            before.is_some_and(|(at, block)| {
                wide(block.bytes.len()) > u64::from(offset - at) << shift
            })
        };
        let mut taken = Vec::new();
        for (offset, page) in (0..).map(|index| index * step).zip(self.bytes.as_chunks().0) {
            if is_kept(offset) || self.summary_in(page, offset).is_some() {
                continue;
            }
            let is_it = |bytes: &[u8]| {
                bytes.first_chunk().is_some_and(|page| self.summary_in(page, offset).is_some())
            };
            let from = index_wide(u64::from(offset) << self.geometry().fragment_shift);
            taken.extend(rows.healed(from..from + PAGE_BYTES, &is_it).map(|page| (from, page)));
        }
        for (from, page) in taken {
            self.bytes[from..from + PAGE_BYTES].copy_from_slice(&page);
        }
    }

    /// Reconstructs listed, unlogged blocks that fail their check, so that new parity does not
    /// cover the damage.
    fn heal_listed(
        &mut self,
        kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
        rows: Option<&KnownRows>,
    ) -> Result<(), DeviceError> {
        for (summary, entry) in self.listed_but(kept) {
            self.heal_block(&summary, &entry, rows)?;
        }
        Ok(())
    }

    /// Returns the listed, unlogged blocks, each with its summary.
    fn listed_but(
        &self,
        kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
    ) -> Vec<(Rc<SegmentSummary>, SummaryEntry)> {
        let mut listed = Vec::new();
        for &at in self.summaries.keys() {
            let from = index_wide(u64::from(at) << self.geometry().fragment_shift);
            let page = self.bytes[from..].first_chunk::<PAGE_BYTES>();
            let Some(summary) = page.and_then(|page| self.summary_in(page, at)) else { continue };
            let summary = Rc::new(summary);
            let blocks = summary.entries.iter().filter(|entry| entry.kind == SummaryKind::Block);
            let blocks = blocks.filter(|entry| !kept.contains_key(&entry.offset));
            listed.extend(blocks.map(|entry| (Rc::clone(&summary), *entry)));
        }
        listed
    }

    /// Adds the used blocks in `pages`, which were overwritten unread, to `lost`.
    fn name_lost(
        &self,
        pages: &BTreeSet<usize>,
        kept: &BTreeMap<u32, &ReplayedLogData<'_>>,
        lost: &mut Vec<LostBlock>,
    ) {
        let shift = self.geometry().fragment_shift;
        let mut unnamed = pages.clone();
        for (_, entry) in self.listed_but(kept) {
            let from = index_wide(u64::from(entry.offset) << shift);
            let range = from..from + index_wide(u64::from(entry.fragments) << shift);
            let own: Vec<usize> = pages.range(range.clone()).copied().collect();
            let bytes = self.bytes.get(range).filter(|_| !own.is_empty());
            if bytes.is_some_and(|bytes| !entry.verifies(bytes)) {
                let place = self.start().advance(entry.offset);
                lost.push(LostBlock { place, entry: Some(entry) });
            }
            unnamed.retain(|page| !own.contains(page));
        }
        for page in unnamed {
            let offset = narrow(wide(page) >> shift);
            let bytes = self.bytes[page..].first_chunk::<PAGE_BYTES>();
            let is_summary = bytes.is_some_and(|page| self.summary_in(page, offset).is_some());
            if !is_summary && self.is_used(offset, self.geometry().page_fragments()) {
                lost.push(LostBlock { place: self.start().advance(offset), entry: None });
            }
        }
    }

    fn heal_block(
        &mut self,
        summary: &SegmentSummary,
        entry: &SummaryEntry,
        rows: Option<&KnownRows>,
    ) -> Result<(), DeviceError> {
        let geometry = self.volume.geometry();
        let end = u64::from(entry.offset) + u64::from(entry.fragments);
        let is_inside = end <= u64::from(geometry.segment_fragments);
        // Blocks before the first rewritten stripe cannot be damaged by the rewrite.
        let is_before = self.first.is_some_and(|first| end <= u64::from(first));
        // Bounds the shift before the check, since bytes past the stored part count as zeros.
        let is_block = format::geometry::BLOCK_SHIFTS.contains(&entry.block_shift);
        if !is_inside || is_before || !is_block || summary.partial_start > entry.offset {
            return Ok(());
        }
        let place = self.start().advance(entry.offset);
        let is_it = |bytes: &[u8]| {
            let block_bytes = 1_usize << entry.block_shift;
            let pointer =
                BlockPointer::to_data(place, entry.fragments, entry.birth, block_bytes, bytes);
            pointer.check == entry.check
        };
        let length = index_wide(u64::from(entry.fragments) << geometry.fragment_shift);
        let from = index_wide(u64::from(entry.offset) << geometry.fragment_shift);
        if is_it(&self.bytes[from..from + length]) {
            return Ok(());
        }
        // A block that was never whole has no good version, and no pointer.
        let healed = self.volume.heal(IoPurpose::Cleaner, place, length, &is_it);
        let healed = healed.ok().and_then(|healed| healed.bytes);
        let with_log = || rows.and_then(|rows| rows.healed(from..from + length, &is_it));
        if let Some(good) = healed.or_else(with_log) {
            tracing::warn!(%place, "a block that had rotted is taken from its row");
            self.bytes[from..from + length].copy_from_slice(&good);
        }
        Ok(())
    }
}
