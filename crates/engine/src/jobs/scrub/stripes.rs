//! Scrub of stripes: of the segments in use.
//!
//! Policy for a segment with parity:
//!
//! 1. A summary that verifies only when reconstructed from its row is rewritten.
//! 2. Every block that a summary lists is verified, even in consistent rows. A block that does not
//!    verify is reconstructed from its row and rewritten, even if no map points to it, because its
//!    map update may still be in progress. If reconstruction fails too and no file maps the block,
//!    it is unused.
//! 3. Inconsistent rows get new parity, together with all rows that blocks connect to them, if
//!    every mapped block in them verifies. Otherwise the old parity stays, since the bad block may
//!    be reconstructed from it some day. Rows that this incarnation has not written hold remnants
//!    of an earlier one. They stay, and the next write makes them consistent.
//!
//! In a metadata segment the two copies of each page are compared, as in a mirror.
//!
//! If a member of a raid5 is absent, its units are computed from the others. Blocks are verified as
//! usual, and so are pages of which one copy remains. A block that does not verify may be good on
//! the absent member. Parity and second copies on that member are not compared, and the report
//! counts those bytes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use format::geometry::Geometry;
use format::page::PAGE_BYTES;
use runtime::planted;
use storage::device::{IoPurpose, Redundancy};
use storage::volume::{ParityCheckOutcome, RedundancyComparison};

use super::{Scrub, has_copy, is_summary_of};
use crate::alloc::SegmentPin;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::file::{AffectedObject, Core};
use crate::jobs::pieces::{ListedBlock, listed_in, rows_around};

/// A segment with parity during its scrub.
struct ScrubRows<'a> {
    start: u64,
    geometry: &'a Geometry,
    group: u32,
    /// Blocks that a file maps, or may map.
    blocks: &'a [ListedBlock],
    lost: &'a BTreeSet<usize>,
    /// End of the part written in this incarnation, in bytes of the segment.
    filled: usize,
}

impl ScrubRows<'_> {
    /// Returns the rows that blocks across rows connect with the row of byte `at`. `None` if one of
    /// these blocks is lost.
    fn tied_to(&self, at: usize) -> Option<Range<usize>> {
        let mut range = rows_around(self.geometry, self.group, &(at..at + 1));
        loop {
            let before = range.clone();
            for block in self.blocks_in(&before) {
                let is_lost = self.lost.contains(&block.range.start);
                if is_lost && !planted!(ScrubTrustsBadRow) {
                    return None;
                }
                let rows = rows_around(self.geometry, self.group, &block.range);
                range = range.start.min(rows.start)..range.end.max(rows.end);
            }
            if range == before {
                return Some(range);
            }
        }
    }

    fn are_unwritten(&self, range: &Range<usize>) -> bool {
        range.start >= self.filled && self.blocks_in(range).next().is_none()
    }

    fn blocks_in(&self, range: &Range<usize>) -> impl Iterator<Item = &ListedBlock> {
        let range = range.clone();
        let overlaps = move |block: &&ListedBlock| {
            block.range.start < range.end && range.start < block.range.end
        };
        self.blocks.iter().filter(overlaps)
    }
}

impl Scrub {
    pub(in crate::jobs) fn mend_segment(
        &self,
        core: &Core,
        pin: &SegmentPin<'_>,
        compared: RedundancyComparison,
    ) -> FsResult<()> {
        self.counts.differing.fetch_add(wide(compared.differing.len()), Ordering::Relaxed);
        match pin.kept {
            Redundancy::Copies => {
                let RedundancyComparison { differing, alone, .. } = compared;
                let pages = differing.iter().chain(&alone);
                pages.for_each(|&offset| self.mend_page_at(core, pin, offset));
                Ok(())
            }
            Redundancy::Parity => self.mend_rows(core, pin, compared),
        }
    }

    fn mend_page_at(&self, core: &Core, pin: &SegmentPin<'_>, offset: u64) {
        if let Some(place) = core.store.geometry().place_at(offset) {
            self.mend_page(core, place, pin.incarnation);
        }
    }

    fn mend_rows(
        &self,
        core: &Core,
        pin: &SegmentPin<'_>,
        compared: RedundancyComparison,
    ) -> FsResult<()> {
        let RedundancyComparison { mut bytes, differing, is_short, .. } = compared;
        let geometry = core.store.geometry();
        let start = geometry.segment_place(pin.id.group, pin.id.segment);
        let first = geometry.device_offset(start, 1).unwrap_or(0);
        self.mend_summaries(core, (pin, first), &differing, &mut bytes)?;
        let (mut blocks, mut lost) = (listed_in(core, pin, &bytes), BTreeSet::new());
        let mut dead = BTreeSet::new();
        for block in blocks.iter().filter(|block| !block.is_in(&bytes)) {
            let at = block.range.start;
            let who = core.who_lost(&block.entry, block.place);
            let left = if who.is_some() { &mut lost } else { &mut dead };
            if !self.mend_block(core, block, who)? {
                left.insert(at);
            }
        }
        blocks.retain(|block| !dead.contains(&block.range.start));
        if is_short {
            // The right parity is not known.
            return Ok(());
        }
        let group = pin.id.group;
        let filled = index_wide(u64::from(pin.filled) << geometry.fragment_shift);
        let rows =
            ScrubRows { start: first, geometry, group, blocks: &blocks, lost: &lost, filled };
        self.mend_parities(core, &rows, &differing)
    }

    /// Rewrites summaries that verify only when reconstructed, on the member and in `bytes`.
    fn mend_summaries(
        &self,
        core: &Core,
        (pin, first): (&SegmentPin<'_>, u64),
        differing: &[u64],
        bytes: &mut [u8],
    ) -> FsResult<()> {
        for &offset in differing {
            let Some(place) = core.store.geometry().place_at(offset) else { continue };
            let at = index_wide(offset - first);
            let Some(page) = bytes.get_mut(at..at + PAGE_BYTES) else { continue };
            let is_summary = |bytes: &[u8]| is_summary_of(core, bytes, place, pin.incarnation);
            if is_summary(page) || !has_copy(&core.store.volume, place, &is_summary) {
                continue;
            }
            let healed = core.store.volume.heal(IoPurpose::Cleaner, place, PAGE_BYTES, &is_summary);
            let healed = healed.map_err(|error| core.store.journal.fail(&error))?;
            self.counts.count(Some(&healed), || format!("the summary at {place}").into());
            if let Some(good) = healed.bytes {
                page.copy_from_slice(&good);
            }
        }
        Ok(())
    }

    /// Reconstructs a bad block. Returns whether it then verifies. `who` is the owner to report, if
    /// a map points to the block.
    fn mend_block(
        &self,
        core: &Core,
        block: &ListedBlock,
        who: Option<AffectedObject>,
    ) -> FsResult<bool> {
        let length = block.range.len();
        let is_it = |bytes: &[u8]| block.is_it(bytes);
        let healed = core.store.volume.heal(IoPurpose::Cleaner, block.place, length, &is_it);
        match healed {
            Ok(healed) => {
                let is_good = healed.bytes.is_some();
                if is_good || who.is_some() {
                    let unnamed = || format!("the block at {}", block.place).into();
                    let named = || who.unwrap_or_else(unnamed);
                    self.counts.count(Some(&healed), named);
                }
                Ok(is_good)
            }
            // Reconstructed, but a member has refused the write.
            Err(error) => {
                core.store.journal.check_alive()?;
                tracing::warn!(%error, "a scrub cannot write again what it has put together");
                if let Some(who) = who {
                    self.counts.leave(who);
                }
                Ok(false)
            }
        }
    }

    fn mend_parities(&self, core: &Core, rows: &ScrubRows<'_>, differing: &[u64]) -> FsResult<()> {
        let wanted: BTreeSet<usize> =
            differing.iter().map(|offset| index_wide(offset - rows.start)).collect();
        let mut done = 0;
        for at in wanted {
            if at < done {
                continue;
            }
            let Some(range) = rows.tied_to(at) else { continue };
            if rows.are_unwritten(&range) {
                done = range.end;
                self.counts.unused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let are_good = |bytes: &[u8]| {
                rows.blocks_in(&range).all(|block| {
                    let at = block.range.start - range.start..block.range.end - range.start;
                    bytes.get(at).is_some_and(|bytes| block.is_it(bytes))
                })
            };
            let pool = rows.start + wide(range.start)..rows.start + wide(range.end);
            let mended = core.store.volume.mend_parity(pool, &are_good, None);
            done = range.end;
            match mended.map_err(|error| core.store.journal.fail(&error))? {
                ParityCheckOutcome::Agrees => {}
                ParityCheckOutcome::Written => {
                    _ = self.counts.parities.fetch_add(1, Ordering::Relaxed)
                }
                ParityCheckOutcome::Left => _ = self.counts.unused.fetch_add(1, Ordering::Relaxed),
            }
        }
        Ok(())
    }
}
