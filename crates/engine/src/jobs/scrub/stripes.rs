//! Scrub of a pool in stripes: segments in use, each as it is kept.
//!
//! Policy, for a segment under parity:
//!
//! 1. A summary that does not verify, and does as the rest of its row says, is written again.
//! 2. Every block that a summary lists is verified, whether or not its rows agree. One that does
//!    not verify is rebuilt from its row and written again: where no map leads to it, somebody may
//!    have written it and not entered it in his map yet. Where its row does not give it either, and
//!    nobody has it, it is dead.
//! 3. Rows that do not agree get a new parity, with all rows that blocks tie them to, if every
//!    block in them that somebody has verifies. Else parity is all that is left of what is bad.
//!    Where nothing was written in this life of the segment rows are of an earlier one, which had
//!    pages: they stay, and the write that comes there makes them whole.
//!
//! In a metadata segment both copies of each page are held against each other, as in a mirror.
//!
//! If a member of a raid5 is missing, its units are computed from the others. Blocks are verified
//! as usual, and so are pages with one copy left. What does not verify may be good on that member.
//! Parity and second copies on that member are not compared; the report says how much that is.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use format::geometry::Geometry;
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};
use storage::device::{Purpose, Redundancy};
use storage::volume::{Compared, ParityMended};

use super::{Scrub, has_copy, is_summary_of};
use crate::alloc::Pin;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::jobs::pieces::{Listed, listed_in, rows_around};
use crate::vnode::{Affected, Core};

/// A segment under parity while it is looked at.
struct Rows<'a> {
    /// First byte of the pool.
    start: u64,
    geometry: &'a Geometry,
    /// The allocation group that it lies in.
    group: u32,
    /// The blocks that somebody has, or may have.
    blocks: &'a [Listed],
    /// Of those the ones that are lost: by where they lie.
    lost: &'a BTreeSet<usize>,
    /// Where what was written in this life of the segment ends, as a byte of it.
    filled: usize,
}

impl Rows<'_> {
    /// Returns the rows, as bytes of the segment, that the one of byte `at` is tied to by blocks
    /// which lie in several; `None`: one of these is lost.
    fn tied_to(&self, at: usize) -> Option<Range<usize>> {
        let mut range = rows_around(self.geometry, self.group, &(at..at + 1));
        loop {
            let before = range.clone();
            for block in self.blocks_in(&before) {
                let is_lost = self.lost.contains(&block.range.start);
                if is_lost && !planted::is(Planted::ScrubTrustsBadRow) {
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

    /// Whether rows are of an earlier life of the segment: nothing was written there since.
    fn are_unwritten(&self, range: &Range<usize>) -> bool {
        range.start >= self.filled
            && self.blocks_in(range).next().is_none()
            && !planted::is(Planted::UnwrittenRowsMended)
    }

    fn blocks_in(&self, range: &Range<usize>) -> impl Iterator<Item = &Listed> {
        let range = range.clone();
        let overlaps =
            move |block: &&Listed| block.range.start < range.end && range.start < block.range.end;
        self.blocks.iter().filter(overlaps)
    }
}

impl Scrub {
    /// Looks at a segment, which is pinned, and repairs what is bad in it.
    pub(in crate::jobs) fn mend_segment(
        &self,
        core: &Core,
        pin: &Pin<'_>,
        compared: Compared,
    ) -> FsResult<()> {
        self.counts.differing.fetch_add(wide(compared.differing.len()), Ordering::Relaxed);
        match pin.kept {
            Redundancy::Copies => {
                let Compared { differing, alone, .. } = compared;
                let pages = differing.iter().chain(&alone);
                pages.for_each(|&offset| self.mend_page_at(core, pin, offset));
                Ok(())
            }
            Redundancy::Parity => self.mend_rows(core, pin, compared),
        }
    }

    fn mend_page_at(&self, core: &Core, pin: &Pin<'_>, offset: u64) {
        if let Some(place) = core.store.geometry().place_at(offset) {
            self.mend_page(core, place, pin.incarnation);
        }
    }

    fn mend_rows(&self, core: &Core, pin: &Pin<'_>, compared: Compared) -> FsResult<()> {
        let Compared { mut bytes, differing, is_short, .. } = compared;
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
            // Nothing tells what parity should be.
            return Ok(());
        }
        let group = pin.id.group;
        let filled = index_wide(u64::from(pin.filled) << geometry.fragment_shift);
        let rows = Rows { start: first, geometry, group, blocks: &blocks, lost: &lost, filled };
        self.mend_parities(core, &rows, &differing)
    }

    /// Writes summaries again that do not verify and do as the rest of their rows say; `bytes`
    /// becomes what they are.
    fn mend_summaries(
        &self,
        core: &Core,
        (pin, first): (&Pin<'_>, u64),
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
            let healed = core.store.volume.heal(Purpose::Cleaner, place, PAGE_BYTES, &is_summary);
            let healed = healed.map_err(|error| core.store.journal.fail(&error))?;
            self.counts.count(Some(&healed), || format!("the summary at {place}").into());
            if let Some(good) = healed.bytes {
                page.copy_from_slice(&good);
            }
        }
        Ok(())
    }

    /// Rebuilds a block that does not verify. Returns whether it does now. `who` is told of what is
    /// lost; `None`: no map leads to it, so that nothing may be.
    fn mend_block(&self, core: &Core, block: &Listed, who: Option<Affected>) -> FsResult<bool> {
        let length = block.range.len();
        let is_it = |bytes: &[u8]| block.is_it(bytes);
        let healed = core.store.volume.heal(Purpose::Cleaner, block.place, length, &is_it);
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
            // It was put together, and the member that is to have it does not take it.
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

    fn mend_parities(&self, core: &Core, rows: &Rows<'_>, differing: &[u64]) -> FsResult<()> {
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
                ParityMended::Agrees => {}
                ParityMended::Written => _ = self.counts.parities.fetch_add(1, Ordering::Relaxed),
                ParityMended::Left => _ = self.counts.unused.fetch_add(1, Ordering::Relaxed),
            }
        }
        Ok(())
    }
}
