//! Rows of which somebody knows pages better than the members: recovery, which has the log.
//!
//! # Invariants
//!
//! - RK1: What is known is laid over first. A page that its member does not give is then the rest
//!   of its *column*, the pages at one byte of all members, if it is the only one that is unknown
//!   there: a known page counts for the rest, whatever its member gives.
//! - RK2: Of a column with several unknown pages none is made up, but for one that keeps the parity
//!   as it is: a page of a member that is away, for nothing is written there. So the column is the
//!   sum of what that member has and of what the others lack, and gives that back when the member
//!   does.
//! - RK3: Of a column with several unknown pages, one of them of a member that joins, that one has
//!   what its member holds, for that is written there again; one other is the rest then. Whether it
//!   has been made right so far only what lies there can tell: such pages are *uncertain*.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::page::PAGE_BYTES;
use format::stripes::{MemberByte, Stripes};
use runtime::planted::{self, Planted};

use super::{Striped, count_parity};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, Operation, Purpose};
use crate::parity::xor_into;
use crate::volume::parity_reads::ParityReader;
use crate::volume::slot::Slot;

/// Bytes of a range of whole rows, with what somebody knows of them laid over what members give.
#[derive(Debug)]
pub struct RowsKnown {
    /// As the members alone give them; zeros where they do not.
    pub found: AlignedBuffer,
    /// Where pages begin that they do not give.
    pub unread: BTreeSet<usize>,
    /// With what is known.
    pub bytes: AlignedBuffer,
    /// Where pages begin that do not come of that either.
    pub lost: BTreeSet<usize>,
    /// Where pages begin that may be right (RK3).
    pub uncertain: BTreeSet<usize>,
    range: Range<u64>,
    columns: Columns,
}

/// The shares of all members, and which pages of them are known.
#[derive(Clone, Debug)]
struct Columns {
    stripes: Stripes,
    /// Byte of each member at which its share begins.
    offset: u64,
    /// Of each member that has a share, with its number.
    shares: Vec<(usize, Share)>,
}

#[derive(Clone, Debug)]
struct Share {
    bytes: AlignedBuffer,
    has: Vec<bool>,
    is_uncertain: Vec<bool>,
    stands: Stands,
}

/// What becomes of the page of a member that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// It is written, and read.
    There,
    /// It is written: the bytes of its share are not believed.
    Joins,
    /// It is not written.
    Away,
}

impl Stands {
    fn of(slot: &Slot) -> Stands {
        match (slot.readable(), slot.writable()) {
            (Some(_), _) => Stands::There,
            (None, Some(_)) if !planted::is(Planted::JoiningTakenForAway) => Stands::Joins,
            (None, _) => Stands::Away,
        }
    }
}

impl Share {
    fn page(&self, column: usize) -> &[u8] {
        &self.bytes[column * PAGE_BYTES..(column + 1) * PAGE_BYTES]
    }
}

impl Columns {
    /// Returns the share and the column that the page at byte `offset` of the pool is in.
    fn locate(&self, offset: u64) -> Option<(usize, usize)> {
        let place = self.stripes.locate(offset)?;
        let share = self.shares.iter().position(|(member, _)| *member == place.member)?;
        let column = to_usize(place.member_offset.checked_sub(self.offset)?) / PAGE_BYTES;
        Some((share, column))
    }

    /// Whether the page of a share in `column` is parity.
    fn is_parity(&self, share: usize, column: usize) -> bool {
        let at = self.offset + to_u64(column * PAGE_BYTES);
        let byte = self.stripes.at_member(self.shares[share].0, at);
        matches!(byte, Some(MemberByte::Parity(_)))
    }

    /// Returns the sum of a column without one share.
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

    /// Rebuilds what can be (RK1, RK3), and nothing else but what keeps parity as it is (RK2).
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
            let one_that = |stands: Stands| {
                unknown.iter().copied().find(|share| self.shares[*share].1.stands == stands)
            };
            let has_parity = !unknown.iter().any(|share| self.is_parity(*share, column));
            if let Some(joins) = one_that(Stands::Joins) {
                if let [one, other] = unknown[..] {
                    self.put_rest(if one == joins { other } else { one }, column);
                    for share in [one, other] {
                        self.shares[share].1.is_uncertain[column] = true;
                    }
                }
            } else if let Some(share) = one_that(Stands::Away).filter(|_| has_parity) {
                self.put_rest(share, column);
            }
        }
    }

    /// Returns the bytes of a range, and where pages begin that are not known, and those of these
    /// that are uncertain.
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

impl RowsKnown {
    /// Returns a block, `within` the bytes, as `verify` says that it is: with one unit of it as the
    /// rest of its row says, what is known counting for that. `None`: in none of these ways.
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
        let may_be = columns.stripes.shape.has_parity && !planted::is(Planted::LogDataNotFirst);
        let units = units.into_iter().filter(|_| may_be);
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
    ) -> RowsKnown {
        let (_, start) = self.seen_at(Purpose::Cleaner, offset);
        let range = start..start + to_u64(length_bytes);
        let stripes = self.at(start);
        let rows = stripes.rows_of(&range);
        let of_member = stripes.row_offset(rows.start)..stripes.row_offset(rows.end);
        let view = self.set.view();
        let with_share = view.iter().enumerate().filter(|(at, _)| stripes.has_member(*at));
        let read = |(at, slot): (usize, &Slot)| {
            let mut share = self.given_by(slot, &of_member);
            for (column, has) in share.has.iter_mut().enumerate() {
                // The end of a row that is not full: zeros, and nobody's.
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
        let mut columns = Columns { stripes, offset: of_member.start, shares };
        let mut alone = columns.clone();
        alone.complete();
        let (mut found, unread, _) = alone.gather(&range);
        unread.iter().for_each(|at| found[*at..*at + PAGE_BYTES].fill(0));
        let is_planted = planted::is(Planted::LogDataNotFirst);
        if is_planted {
            columns = alone;
        }
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
        if !is_planted {
            columns.complete();
        }
        let (bytes, mut lost, uncertain) = columns.gather(&range);
        lost.retain(|page| !uncertain.contains(page));
        RowsKnown { found, unread, bytes, lost, uncertain, range, columns }
    }

    /// Reads what a member gives of its bytes; page by page where the read of all fails.
    fn given_by(&self, slot: &Slot, range: &Range<u64>) -> Share {
        let length = to_usize(range.end - range.start);
        let is_uncertain = vec![false; length / PAGE_BYTES];
        let (mut has, mut bytes) = (is_uncertain.clone(), AlignedBuffer::zeroed(length));
        let stands = Stands::of(slot);
        if stands == Stands::Away {
            return Share { bytes, has, is_uncertain, stands };
        }
        let buffer = AlignedBuffer::for_reading(length);
        let read = Operation::Read { offset: range.start, buffer };
        let whole = self.set.submit(slot, Purpose::Cleaner, read).wait();
        if let Ok(Some(whole)) = whole.map(|done| done.buffer) {
            has.fill(stands == Stands::There);
            return Share { bytes: whole, has, is_uncertain, stands };
        }
        for (column, has) in has.iter_mut().enumerate() {
            let at = column * PAGE_BYTES;
            match self.set.page_of(slot, Purpose::Cleaner, range.start + to_u64(at)) {
                Ok(page) => {
                    bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
                    *has = stands == Stands::There;
                }
                Err(error) => tracing::warn!(%error, "a member does not give a page of a segment"),
            }
        }
        Share { bytes, has, is_uncertain, stands }
    }
}
