//! In stripes: inline log data goes to its place by whole stripes, with the summary that lists it.
//!
//! The segment is read with what the log has laid over it, and the stripes that differ are written,
//! data and parity. A stripe that was in flight when the power went may hold units of two ages: it
//! is written too, so that what is believed from now on is there whichever member is lost.
//!
//! # What a member does not give
//!
//! One rule: *the log comes first*. A page that its member does not give, for that is away or the
//! sector is bad, is what makes the sum of its column right once the pages that the log has lie in
//! it; only what is unknown even then is lost (`RK1` and `RK2` of `storage::volume`).
//!
//! It is right whatever the stripe was. Was it durable, then the members had in these places what
//! the log has, bit for bit, and the parity that is there was made with it: so the sum gives the
//! neighbour as it was, also where the page under the logged block itself is bad, which would be a
//! second unknown one in the column. Was it not durable, then the sum is of two ages and the
//! neighbour comes out as nobody's bytes: but then nothing of its partial segment is committed
//! except what the log has, so nobody has a pointer to it.
//!
//! A stripe in which the log changes nothing and of which a page is lost stays as it is. One that
//! must be written for the log's sake has zeros in a bad sector that nothing else gives, and keeps
//! its parity where the other unknown page is of a member that is away: if that comes back with
//! it, both are there again. What is lost so and in use is named when the pool is open.
//!
//! # Crashes
//!
//! A stripe before the first that the log names is not touched: it may hold what is committed and
//! nowhere else. Behind that, partial segments that were durable are written as they were, so any
//! part of it is harmless; of those that were not, nothing is committed but what the log has, and a
//! second crash finds it there. Decision 0065 has the argument.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use format::ids::{Lsn, Place};
use format::page::PAGE_BYTES;
use format::pointer::BlockPointer;
use format::summary::{Summary, SummaryEntry, SummaryKind};
use format::superblock::Superblock;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose, SharedBytes};
use storage::volume::{RowsKnown, Volume};

use super::{Left, LostBlock, offsets_of, read_segment, usage_of};
use crate::alloc::SegmentId;
use crate::convert::{index_wide, narrow, wide};
use crate::journal::KeptLogData;

/// A segment as it was read, and with what the log has.
struct Read {
    /// As the members give it.
    found: AlignedBuffer,
    /// Where pages begin that they do not give.
    unread: BTreeSet<usize>,
    /// With what the log has, and what follows from it.
    bytes: AlignedBuffer,
    /// Where pages begin that do not follow from it either.
    lost: BTreeSet<usize>,
    /// Where pages begin that may be right, of a member that joins and beside it.
    uncertain: BTreeSet<usize>,
    /// What all that comes of; `None`: nothing but copies in memory.
    rows: Option<RowsKnown>,
}

impl Read {
    fn of(volume: &Volume, start: Place, kept: &BTreeMap<u32, &KeptLogData<'_>>) -> Read {
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
            Some(rows) => Read {
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
                Read { found, unread, bytes, lost, uncertain: BTreeSet::new(), rows: None }
            }
        };
        put(volume, &mut read.bytes, kept);
        read
    }

    /// Whether a stripe is as the members gave it.
    fn is_as_found(&self, stripe: &Range<usize>, new: &[u8]) -> bool {
        let is_rebuilt = |page: &usize| stripe.contains(page) && !self.lost.contains(page);
        new == &self.found[stripe.clone()] && !self.unread.iter().any(is_rebuilt)
    }
}

/// Writes the blocks of `kept`, by their offsets in the segment, and summaries for those that none
/// lists, not yet durable. `log` is the last chunk of the log, to its end. Returns how many blocks
/// these list.
pub(super) fn write_home(
    volume: &Volume,
    superblock: &Superblock,
    id: SegmentId,
    kept: &BTreeMap<u32, &KeptLogData<'_>>,
    log: &Range<Lsn>,
    lost: &mut Vec<LostBlock>,
) -> Result<u64, DeviceError> {
    let geometry = volume.geometry();
    let (stripe, start) =
        (geometry.stripe_fragments(id.group), geometry.segment_place(id.group, id.segment));
    let Some((&lowest, _)) = kept.first_key_value() else { return Ok(0) };
    let first = lowest / stripe * stripe;
    let read = Read::of(volume, start, kept);
    let (mut bytes, mut count) = (AlignedBuffer::clone(&read.bytes), 0);
    let mut left = None;
    if let Some(usage) = usage_of(volume, superblock, id, log.end) {
        let (summaries, listed) = (BTreeMap::new(), BTreeSet::new());
        let first = Some(first);
        let unread = offsets_of(geometry, &read.lost);
        let own = left.insert(Left {
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
        if is_as_found && volume.agrees(Purpose::Cleaner, place, range.len()) {
            continue;
        }
        let lost_here = read.lost.range(range.clone());
        if is_as_found && lost_here.clone().next().is_some() {
            // A member that is away may have what nobody gives now, and has it as it was. Of what
            // was in flight the others may have more.
            volume.note_missed(place, range.len())?;
            continue;
        }
        if planted::is(Planted::LogDataWithoutParity) && is_as_found {
            continue;
        }
        written_over.extend(lost_here.chain(read.uncertain.range(range.clone())).copied());
        let data = vec![SharedBytes::from(AlignedBuffer::copy_of(new))];
        volume.submit_write(Purpose::Data, place, data).wait()?;
    }
    if let Some(left) = left {
        left.name_lost(&written_over, kept, lost);
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
    /// Takes summaries that have rotted from the rest of their rows: what they list could not be
    /// looked at else, and parity would be made to match what of it has rotted with them.
    fn take_summaries(&mut self, kept: &BTreeMap<u32, &KeptLogData<'_>>, rows: Option<&RowsKnown>) {
        let Some(rows) = rows.filter(|_| !planted::is(Planted::SummaryNotFromRow)) else { return };
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

    /// Looks at the blocks behind the first logged one that summaries list and the log does not
    /// have. One that does not verify and does as the rest of its row says is taken from there:
    /// else its parity would be made to match what has rotted.
    fn heal_listed(
        &mut self,
        kept: &BTreeMap<u32, &KeptLogData<'_>>,
        rows: Option<&RowsKnown>,
    ) -> Result<(), DeviceError> {
        for (summary, entry) in self.listed_but(kept) {
            self.heal_block(&summary, &entry, rows)?;
        }
        Ok(())
    }

    /// Returns the blocks that summaries list and the log does not have, each with its summary.
    fn listed_but(
        &self,
        kept: &BTreeMap<u32, &KeptLogData<'_>>,
    ) -> Vec<(Rc<Summary>, SummaryEntry)> {
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

    /// Tells of what lay in `pages`, which were written over, and in use.
    fn name_lost(
        &self,
        pages: &BTreeSet<usize>,
        kept: &BTreeMap<u32, &KeptLogData<'_>>,
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
        summary: &Summary,
        entry: &SummaryEntry,
        rows: Option<&RowsKnown>,
    ) -> Result<(), DeviceError> {
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
        let healed = healed.ok().and_then(|healed| healed.bytes);
        let with_log = || rows.and_then(|rows| rows.healed(from..from + length, &is_it));
        if let Some(good) = healed.or_else(with_log) {
            tracing::warn!(%place, "a block that had rotted is taken from its row");
            self.bytes[from..from + length].copy_from_slice(&good);
        }
        Ok(())
    }
}
