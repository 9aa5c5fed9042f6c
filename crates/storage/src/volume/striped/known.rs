//! Rows of which recovery knows some pages from the log. The members may lack them.
//!
//! # Invariants
//!
//! - RK1: Known pages first replace those of the members. Then an unreadable page is reconstructed
//!   from its *column*, the pages at one offset of all members, if it is the only unknown page
//!   there. A known page counts in the sum, whatever its member returned.
//! - RK2: In a column with several unknown pages none is reconstructed. An exception is the page of
//!   an absent member, to which nothing is written: it is set to the sum of the others, which
//!   leaves the parity as it is. So once that member returns, an unreadable page can be
//!   reconstructed.
//! - RK3: In a column with two unknown pages, one of them of a joining member, that page is left as
//!   it is, and the other is reconstructed. Whether the rebuild has reached that column shows only
//!   in the contents: both pages are *uncertain*.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::page::PAGE_BYTES;
use format::stripes::{MemberByte, Stripes};
use runtime::planted;

use super::{Striped, count_parity};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceOperation, IoPurpose};
use crate::parity::xor_into;
use crate::volume::parity_reads::ParityReader;
use crate::volume::slot::MemberSlot;

/// A range of whole rows, in which known pages replace those of the members.
#[derive(Debug)]
pub struct KnownRows {
    /// Contents from the members alone. Zeros where unreadable.
    pub found: AlignedBuffer,
    /// Offsets of pages that the members cannot provide.
    pub unread: BTreeSet<usize>,
    /// Contents with the known pages.
    pub bytes: AlignedBuffer,
    /// Offsets of pages that stay unknown.
    pub lost: BTreeSet<usize>,
    /// Offsets of pages that may be right (RK3).
    pub uncertain: BTreeSet<usize>,
    range: Range<u64>,
    columns: MemberColumns,
}

/// The shares of all members, with marks of known pages.
#[derive(Clone, Debug)]
struct MemberColumns {
    stripes: Stripes,
    offset: u64,
    /// Each member with its share of the rows.
    shares: Vec<(usize, MemberShare)>,
}

#[derive(Clone, Debug)]
struct MemberShare {
    bytes: AlignedBuffer,
    has: Vec<bool>,
    is_uncertain: Vec<bool>,
    stands: MemberRowState,
}

/// The state of a member for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberRowState {
    /// Read and written.
    There,
    /// Written. Its contents are not trusted.
    Joins,
    /// Not written.
    Away,
}

impl MemberRowState {
    fn of(slot: &MemberSlot) -> MemberRowState {
        match (slot.readable(), slot.writable()) {
            (Some(_), _) => MemberRowState::There,
            (None, Some(_)) if !planted!(JoiningTakenForAway) => MemberRowState::Joins,
            (None, _) => MemberRowState::Away,
        }
    }
}

impl MemberShare {
    fn page(&self, column: usize) -> &[u8] {
        &self.bytes[column * PAGE_BYTES..(column + 1) * PAGE_BYTES]
    }
}

impl MemberColumns {
    fn locate(&self, offset: u64) -> Option<(usize, usize)> {
        let place = self.stripes.locate(offset)?;
        let share = self.shares.iter().position(|(member, _)| *member == place.member)?;
        let column = to_usize(place.member_offset.checked_sub(self.offset)?) / PAGE_BYTES;
        Some((share, column))
    }

    fn is_parity(&self, share: usize, column: usize) -> bool {
        let at = self.offset + to_u64(column * PAGE_BYTES);
        let byte = self.stripes.at_member(self.shares[share].0, at);
        matches!(byte, Some(MemberByte::Parity(_)))
    }

    fn rest(&self, share: usize, column: usize) -> AlignedBuffer {
        let others = self.shares.iter().enumerate().filter(|(at, _)| *at != share);
        let others: Vec<&[u8]> = others.map(|(_, (_, share))| share.page(column)).collect();
        let mut sum = AlignedBuffer::zeroed(PAGE_BYTES);
        xor_into(&mut sum, &others);
        sum
    }

    fn put(&mut self, (share, column): (usize, usize), page: &[u8]) {
        let (_, share) = &mut self.shares[share];
        share.bytes[column * PAGE_BYTES..(column + 1) * PAGE_BYTES].copy_from_slice(page);
    }

    fn unknown(&self, column: usize) -> Vec<usize> {
        let unknown = self.shares.iter().enumerate().filter(|(_, (_, share))| !share.has[column]);
        unknown.map(|(at, _)| at).collect()
    }

    fn put_rest(&mut self, share: usize, column: usize) {
        let page = self.rest(share, column);
        self.put((share, column), &page);
    }

    /// Reconstructs pages (RK1, RK3), or leaves the parity as it is (RK2).
    fn complete(&mut self) {
        if !self.stripes.shape.has_parity {
            return;
        }
        let columns = self.shares.first().map_or(0, |(_, share)| share.has.len());
        for column in 0..columns {
            let unknown = self.unknown(column);
            if let [share] = unknown[..] {
                self.put_rest(share, column);
                self.shares[share].1.has[column] = true;
                continue;
            }
            let one_that = |stands: MemberRowState| {
                unknown.iter().copied().find(|share| self.shares[*share].1.stands == stands)
            };
            let has_parity = !unknown.iter().any(|share| self.is_parity(*share, column));
            if let Some(joins) = one_that(MemberRowState::Joins) {
                if let [one, other] = unknown[..] {
                    self.put_rest(if one == joins { other } else { one }, column);
                    for share in [one, other] {
                        self.shares[share].1.is_uncertain[column] = true;
                    }
                }
            } else if let Some(share) = one_that(MemberRowState::Away).filter(|_| has_parity) {
                self.put_rest(share, column);
            }
        }
    }

    /// Returns the contents of a range, with offsets of unknown and of uncertain pages.
    fn gather(&self, range: &Range<u64>) -> (AlignedBuffer, BTreeSet<usize>, BTreeSet<usize>) {
        let mut bytes = AlignedBuffer::zeroed(to_usize(range.end - range.start));
        let (mut unknown, mut uncertain) = (BTreeSet::new(), BTreeSet::new());
        for at in (0..bytes.len()).step_by(PAGE_BYTES) {
            let Some((share, column)) = self.locate(range.start + to_u64(at)) else { continue };
            let (_, share) = &self.shares[share];
            bytes[at..at + PAGE_BYTES].copy_from_slice(share.page(column));
            if !share.has[column] {
                unknown.insert(at);
            }
            if share.is_uncertain[column] {
                uncertain.insert(at);
            }
        }
        (bytes, unknown, uncertain)
    }
}

impl KnownRows {
    /// Returns the block at `within` of the bytes if it passes `verify` once one of its units,
    /// which may include known pages, is reconstructed.
    #[must_use]
    pub fn healed(
        &self,
        within: Range<usize>,
        verify: &dyn Fn(&[u8]) -> bool,
    ) -> Option<AlignedBuffer> {
        let (columns, start) = (&self.columns, self.range.start);
        let unit_of = |at: &usize| {
            let place = columns.stripes.locate(start + to_u64(*at))?;
            Some((place.row, place.index))
        };
        let pages: Vec<usize> = within.clone().step_by(PAGE_BYTES).collect();
        let units: BTreeSet<(u64, u64)> = pages.iter().filter_map(unit_of).collect();
        let units = units.into_iter().filter(|_| columns.stripes.shape.has_parity);
        units.into_iter().find_map(|unit| {
            let mut block = AlignedBuffer::copy_of(&self.bytes[within.clone()]);
            for at in pages.iter().filter(|at| unit_of(at) == Some(unit)) {
                let (share, column) = columns.locate(start + to_u64(*at))?;
                let from = at - within.start;
                let page = columns.rest(share, column);
                let length = PAGE_BYTES.min(block.len() - from);
                block[from..from + length].copy_from_slice(&page[..length]);
            }
            verify(&block).then_some(block)
        })
    }
}

impl Striped {
    /// See [`crate::volume::Composite::read_known`].
    pub(super) fn read_rows_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> KnownRows {
        let (_, start) = self.seen_at(IoPurpose::Cleaner, offset);
        let range = start..start + to_u64(length_bytes);
        let stripes = self.at(start);
        let rows = stripes.rows_of(&range);
        let of_member = stripes.row_offset(rows.start)..stripes.row_offset(rows.end);
        let view = self.set.view();
        let with_share = view.iter().enumerate().filter(|(at, _)| stripes.has_member(*at));
        let read = |(at, slot): (usize, &MemberSlot)| {
            let mut share = self.given_by(slot, &of_member);
            for (column, has) in share.has.iter_mut().enumerate() {
                // The unused end of a partial row counts as zeros.
                let byte = of_member.start + to_u64(column * PAGE_BYTES);
                if stripes.at_member(at, byte).is_none() {
                    share.bytes[column * PAGE_BYTES..(column + 1) * PAGE_BYTES].fill(0);
                    *has = true;
                }
            }
            (at, share)
        };
        let shares = with_share.map(read).collect();
        count_parity(ParityReader::Recovery, (&stripes, &view), 0..view.len(), &of_member);
        let mut columns = MemberColumns { stripes, offset: of_member.start, shares };
        let mut alone = columns.clone();
        alone.complete();
        let (mut found, unread, _) = alone.gather(&range);
        unread.iter().for_each(|at| found[*at..*at + PAGE_BYTES].fill(0));
        for (at, bytes) in known {
            for (page, own) in bytes.chunks(PAGE_BYTES).enumerate() {
                let byte = range.start + to_u64(at + page * PAGE_BYTES);
                if let Some((share, column)) = columns.locate(byte)
                    && own.len() == PAGE_BYTES
                {
                    columns.put((share, column), own);
                    columns.shares[share].1.has[column] = true;
                }
            }
        }
        columns.complete();
        let (bytes, mut lost, uncertain) = columns.gather(&range);
        lost.retain(|page| !uncertain.contains(page));
        KnownRows { found, unread, bytes, lost, uncertain, range, columns }
    }

    /// Reads the share of a member, page by page after an error.
    fn given_by(&self, slot: &MemberSlot, range: &Range<u64>) -> MemberShare {
        let length = to_usize(range.end - range.start);
        let is_uncertain = vec![false; length / PAGE_BYTES];
        let (mut has, mut bytes) = (is_uncertain.clone(), AlignedBuffer::zeroed(length));
        let stands = MemberRowState::of(slot);
        if stands == MemberRowState::Away {
            return MemberShare { bytes, has, is_uncertain, stands };
        }
        let buffer = AlignedBuffer::for_reading(length);
        let read = DeviceOperation::Read { offset: range.start, buffer };
        let whole = self.set.submit(slot, IoPurpose::Cleaner, read).wait();
        if let Ok(Some(whole)) = whole.map(|done| done.buffer) {
            has.fill(stands == MemberRowState::There);
            return MemberShare { bytes: whole, has, is_uncertain, stands };
        }
        for (column, has) in has.iter_mut().enumerate() {
            let at = column * PAGE_BYTES;
            match self.set.page_of(slot, IoPurpose::Cleaner, range.start + to_u64(at)) {
                Ok(page) => {
                    bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
                    *has = stands == MemberRowState::There;
                }
                Err(error) => tracing::warn!(%error, "a member does not give a page of a segment"),
            }
        }
        MemberShare { bytes, has, is_uncertain, stands }
    }
}
