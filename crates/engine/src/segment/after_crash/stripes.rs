//! In stripes: inline log data goes to its place by whole stripes, with the summary that lists it.
//!
//! The segment is read, what the log has is put over it, and the stripes that differ are written,
//! data and parity. A stripe that was in flight when the power went may hold units of two ages: it
//! is written too, so that what is believed from now on is there whichever member is lost.
//!
//! # Crashes
//!
//! A stripe before the first that the log names is not touched: it may hold what is committed and
//! nowhere else. Behind that, partial segments that were durable are written as they were read, so
//! any part of it is harmless; of those that were not, nothing is committed but what the log has,
//! and a second crash finds it there. Decision 0065 has the argument.

use std::collections::{BTreeMap, BTreeSet};

use format::ids::Lsn;
use format::page::PAGE_BYTES;
use format::pointer::BlockPointer;
use format::summary::{Summary, SummaryEntry, SummaryKind};
use format::superblock::Superblock;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose, SharedBytes};
use storage::volume::Volume;

use super::{Left, offsets_of, read_segment, usage_of};
use crate::alloc::SegmentId;
use crate::convert::index_wide;
use crate::journal::KeptLogData;

/// Writes the blocks of `kept`, by their offsets in the segment, and summaries for those that none
/// lists, not yet durable. Returns how many blocks these list.
pub(super) fn write_home(
    volume: &Volume,
    superblock: &Superblock,
    id: SegmentId,
    kept: &BTreeMap<u32, &KeptLogData<'_>>,
    lsn: Lsn,
) -> Result<u64, DeviceError> {
    let geometry = volume.geometry();
    let (stripe, start) =
        (geometry.stripe_fragments(id.group), geometry.segment_place(id.group, id.segment));
    let Some((&lowest, _)) = kept.first_key_value() else { return Ok(0) };
    let first = lowest / stripe * stripe;
    let (found, unread) = read_segment(volume, start);
    let mut bytes = AlignedBuffer::clone(&found);
    put(volume, &mut bytes, kept);
    let mut count = 0;
    if let Some(usage) = usage_of(volume, superblock, id) {
        let (summaries, listed) = (BTreeMap::new(), BTreeSet::new());
        let first = Some(first);
        let unread = offsets_of(geometry, &unread);
        let mut left =
            Left { volume, superblock, id, usage, bytes, first, summaries, listed, unread };
        left.find_summaries();
        left.heal_listed(kept)?;
        count = left.list_all(kept, lsn)?;
        bytes = left.bytes;
    }
    for at in (first..geometry.segment_fragments).step_by(index_wide(u64::from(stripe))) {
        let bytes_of = |fragments: u32| index_wide(u64::from(fragments) << geometry.fragment_shift);
        let range = bytes_of(at)..bytes_of(geometry.stripe_end(id.group, at + 1));
        let (new, old) = (&bytes[range.clone()], &found[range.clone()]);
        let place = start.advance(at);
        if new == old && volume.agrees(Purpose::Cleaner, place, range.len()) {
            continue;
        }
        if new == old && unread.iter().any(|page| range.contains(page)) {
            // A member that is away may have what nobody gives now, and has it as it was.
            continue;
        }
        if planted::is(Planted::LogDataWithoutParity) && new == old {
            continue;
        }
        let data = vec![SharedBytes::from(AlignedBuffer::copy_of(new))];
        volume.submit_write(Purpose::Data, place, data).wait()?;
    }
    Ok(count)
}

/// Puts the logged blocks over the bytes of their segment.
fn put(volume: &Volume, bytes: &mut AlignedBuffer, kept: &BTreeMap<u32, &KeptLogData<'_>>) {
    let shift = volume.geometry().fragment_shift;
    for (offset, block) in kept {
        let from = index_wide(u64::from(*offset) << shift);
        bytes[from..from + block.bytes.len()].copy_from_slice(block.bytes);
    }
}

impl Left<'_> {
    /// Looks at the blocks behind the first logged one that summaries list and the log does not
    /// have. One that does not verify and does as the rest of its row says is taken from there:
    /// else its parity would be made to match what has rotted.
    fn heal_listed(&mut self, kept: &BTreeMap<u32, &KeptLogData<'_>>) -> Result<(), DeviceError> {
        let offsets: Vec<u32> = self.summaries.keys().copied().collect();
        for at in offsets {
            let from = index_wide(u64::from(at) << self.geometry().fragment_shift);
            let page = self.bytes[from..].first_chunk::<PAGE_BYTES>().copied();
            let Some(summary) = page.and_then(|page| self.summary_in(&page, at)) else { continue };
            let blocks = summary.entries.iter().filter(|entry| entry.kind == SummaryKind::Block);
            for entry in blocks.filter(|entry| !kept.contains_key(&entry.offset)) {
                self.heal_block(&summary, entry)?;
            }
        }
        Ok(())
    }

    fn heal_block(&mut self, summary: &Summary, entry: &SummaryEntry) -> Result<(), DeviceError> {
        let geometry = self.volume.geometry();
        let end = u64::from(entry.offset) + u64::from(entry.fragments);
        let is_inside = end <= u64::from(geometry.segment_fragments);
        // One that reaches into a stripe that is written may have rotted there.
        let is_before = self.first.is_some_and(|first| end <= u64::from(first));
        // The bytes past what is stored are zeros, however long a block is.
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
        // One that was never whole has no version that verifies, and nobody points to it.
        let healed = self.volume.heal(Purpose::Cleaner, place, length, &is_it);
        if let Ok(healed) = healed
            && let Some(good) = healed.bytes
        {
            tracing::warn!(%place, "a block that had rotted is taken from its row");
            self.bytes[from..from + length].copy_from_slice(&good);
        }
        Ok(())
    }
}
