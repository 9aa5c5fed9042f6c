//! Rebuild of a segment for a joining member, and comparison of its redundancy.
//!
//! With parity, the shares of all members sum to zero at each offset, so each share is the sum of
//! the others. Each page of metadata has a copy on a second member. Data of a `stripe` has no
//! redundancy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::members::MemberState;
use format::page::PAGE_BYTES;
use format::stripes::{MemberByte, Stripes};
use runtime::planted;

use super::{Striped, UnitPart, absent, count_parity};
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, Redundancy, SharedBytes,
};
use crate::parity::xor_into;
use crate::volume::composite::{
    PendingRebuild, RebuildRequest, RebuiltPiece, RedundancyComparison,
};
use crate::volume::parity_reads::ParityReader;
use crate::volume::salvage::SalvagedRange;
use crate::volume::set::MemberView;

struct RebuildShares {
    range: Range<u64>,
    of: Vec<Option<SalvagedRange>>,
}

impl RebuildShares {
    fn page(&self, member: usize, offset: u64) -> Option<&[u8]> {
        let at = to_usize(offset.checked_sub(self.range.start)?);
        let share = self.of.get(member)?.as_ref()?;
        share.has(at).then(|| &share.bytes[at..at + PAGE_BYTES])
    }

    fn holes(&self) -> BTreeSet<usize> {
        self.of.iter().flatten().flat_map(|share| share.bad.iter().copied()).collect()
    }
}

impl Striped {
    fn share_of(stripes: &Stripes, piece: &Range<u64>) -> Range<u64> {
        let rows = stripes.rows_of(piece);
        stripes.row_offset(rows.start)..stripes.row_offset(rows.end)
    }

    fn read_shares(
        &self,
        view: &MemberView,
        stripes: &Stripes,
        piece: &Range<u64>,
    ) -> Result<RebuildShares, DeviceError> {
        let range = Striped::share_of(stripes, piece);
        let of = self.salvage(view, stripes, &range)?;
        Ok(RebuildShares { range, of })
    }

    /// Splits `piece` into pages, each with its byte offset in the pool.
    fn pages_of(&self, piece: &Range<u64>) -> Vec<(u64, UnitPart)> {
        let parts = self.parts(piece.start, to_usize(piece.end - piece.start));
        let cut = |part: UnitPart| {
            (0..part.length_bytes).step_by(PAGE_BYTES).map(move |ahead| {
                let mut page = UnitPart { length_bytes: PAGE_BYTES, at: part.at + ahead, ..part };
                page.place.member_offset += to_u64(ahead);
                page
            })
        };
        let start = piece.start;
        parts.into_iter().flat_map(cut).map(|page| (start + to_u64(page.at), page)).collect()
    }

    /// Starts the reads for a rebuild of a segment: see [`Composite::begin_rebuild`].
    ///
    /// [`Composite::begin_rebuild`]: crate::volume::composite::Composite::begin_rebuild
    pub(super) fn begin_segment(&self, slot: usize, wanted: RebuildRequest) -> PendingRebuild<'_> {
        let stripes = self.at(wanted.piece.start);
        let range = Striped::share_of(&stripes, &wanted.piece);
        let view = Striped::sharing(&self.set.view(), &stripes);
        let salvage = self.set.begin_salvage(&view, IoPurpose::Cleaner, &range);
        if wanted.kept == Redundancy::Parity {
            let reader = ParityReader::Rebuild;
            count_parity(reader, (&stripes, &view), 0..view.len(), &range);
        }
        Box::new(move || {
            let of = self.end_salvage(salvage, &stripes, &range)?;
            self.rebuild_segment(slot, &wanted, RebuildShares { range, of })
        })
    }

    fn rebuild_segment(
        &self,
        slot: usize,
        wanted: &RebuildRequest,
        shares: RebuildShares,
    ) -> Result<Option<RebuiltPiece>, DeviceError> {
        let RebuildRequest { kept, keeps, .. } = wanted;
        let view = self.set.view();
        let joining = view.get(slot).filter(|slot| slot.state == MemberState::Joining);
        let Some(joining) = joining else { return Ok(None) };
        let is_away = |member: &usize| *member != slot && shares.of[*member].is_none();
        if let Some(member) = (0..view.len()).find(is_away) {
            return Err(absent(&view, member));
        }
        // A returning member may have pages that the others lack. A replacement has no contents of
        // this pool.
        let may_have = joining.missed.is_some() && !planted!(ReturnForgetsOwn);
        let has_parity = *kept == Redundancy::Parity && self.stripes.shape.has_parity;
        let is_asked = has_parity && !shares.holes().is_empty() || !keeps.is_empty();
        let own = match may_have && is_asked {
            true => Some(self.set.by_pages(joining, IoPurpose::Cleaner, &shares.range)?),
            false => None,
        };
        let (share, rebuilt) = match kept {
            Redundancy::Parity => self.sum_of(slot, wanted, &shares, own.as_ref()),
            Redundancy::Copies => self.copies_of(slot, wanted, &shares, own.as_ref()),
        };
        let (offset, data) = (shares.range.start, vec![SharedBytes::from(share)]);
        let write = DeviceOperation::Write { offset, data };
        let write = self.set.submit(joining, IoPurpose::Cleaner, write);
        self.set.together(&view, vec![(slot, write)], None).wait()?;
        Ok(Some(rebuilt))
    }

    /// Returns the share of `slot`, as the sum of the others, and the contents of the piece. `own`
    /// is the earlier share, for columns with another unreadable page.
    fn sum_of(
        &self,
        slot: usize,
        RebuildRequest { piece, keeps, .. }: &RebuildRequest,
        shares: &RebuildShares,
        own: Option<&SalvagedRange>,
    ) -> (AlignedBuffer, RebuiltPiece) {
        let mut sum = AlignedBuffer::zeroed(to_usize(shares.range.end - shares.range.start));
        let others: Vec<&[u8]> = shares.of.iter().flatten().map(|share| &share.bytes[..]).collect();
        xor_into(&mut sum, &others);
        let holes = match self.stripes.shape.has_parity {
            true => shares.holes(),
            false => (0..sum.len()).step_by(PAGE_BYTES).collect(),
        };
        let mut given = BTreeMap::new();
        for &at in &holes {
            let page = at..at + PAGE_BYTES;
            match own.filter(|own| own.has(at)) {
                Some(own) => {
                    // At this offset the sum of all shares is the unreadable page, if only one is.
                    xor_into(&mut sum[page.clone()], &[&own.bytes[page.clone()]]);
                    given.insert(at, sum[page.clone()].to_vec());
                    sum[page.clone()].copy_from_slice(&own.bytes[page]);
                }
                None => sum[page].fill(0),
            }
        }
        let mut bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
        let mut lost = Vec::new();
        for (offset, page) in self.pages_of(piece) {
            let (member, at) = (page.place.member, page.place.member_offset);
            let in_share = to_usize(at - shares.range.start);
            let own = own.filter(|own| keeps.contains(&offset) && own.has(in_share));
            if let Some(own) = own.filter(|_| member == slot) {
                let range = in_share..in_share + PAGE_BYTES;
                sum[range.clone()].copy_from_slice(&own.bytes[range]);
            }
            let is_given = !holes.contains(&in_share) || given.contains_key(&in_share);
            let found = match shares.page(member, at) {
                _ if member == slot && !is_given => None,
                _ if member == slot => Some(&sum[in_share..in_share + PAGE_BYTES]),
                None => given.get(&in_share).map(|page: &Vec<u8>| &page[..]),
                found => found,
            };
            match found {
                Some(found) => bytes[page.range()].copy_from_slice(found),
                None => lost.push(offset),
            }
        }
        (sum, RebuiltPiece::new(bytes, lost))
    }

    /// Returns the share of `slot`, from the second copies, and the contents of the piece.
    fn copies_of(
        &self,
        slot: usize,
        RebuildRequest { piece, keeps, .. }: &RebuildRequest,
        shares: &RebuildShares,
        held: Option<&SalvagedRange>,
    ) -> (AlignedBuffer, RebuiltPiece) {
        let mut share = AlignedBuffer::zeroed(to_usize(shares.range.end - shares.range.start));
        let mut bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
        let (mut lost, stripes) = (Vec::new(), self.at(piece.start));
        for (offset, page) in self.pages_of(piece) {
            let first = (page.place.member, page.place.member_offset);
            let Some(second) = stripes.second_copy(&page.place) else { continue };
            let (own, other) = if first.0 == slot { (first, second) } else { (second, first) };
            let mut found = shares.page(other.0, other.1);
            if own.0 == slot {
                let at = to_usize(own.1 - shares.range.start);
                let held = held.filter(|held| keeps.contains(&offset) && held.has(at));
                found = held.map(|held| &held.bytes[at..at + PAGE_BYTES]).or(found);
                match found {
                    Some(found) => share[at..at + PAGE_BYTES].copy_from_slice(found),
                    None => lost.push(offset),
                }
            } else if found.is_none() {
                found = shares.page(own.0, own.1);
            }
            if let Some(found) = found {
                bytes[page.range()].copy_from_slice(found);
            }
        }
        (share, RebuiltPiece::new(bytes, lost))
    }

    /// Compares the rows of a piece with their parity. All data of a column with a wrong sum, or an
    /// unreadable page, counts as differing. If one member is absent, its pages are reconstructed,
    /// and only columns with an unreadable page differ.
    pub(super) fn compare_rows(
        &self,
        reader: ParityReader,
        view: &MemberView,
        piece: Range<u64>,
    ) -> Result<RedundancyComparison, DeviceError> {
        let stripes = self.at(piece.start);
        let shares = self.read_shares(view, &stripes, &piece)?;
        count_parity(reader, (&stripes, view), 0..view.len(), &shares.range);
        let away: Vec<usize> =
            (0..shares.of.len()).filter(|member| shares.of[*member].is_none()).collect();
        if let [_, second, ..] = away[..] {
            return Err(absent(view, second));
        }
        let away = away.first().copied();
        let mut sum = AlignedBuffer::zeroed(to_usize(shares.range.end - shares.range.start));
        let all: Vec<&[u8]> = shares.of.iter().flatten().map(|share| &share.bytes[..]).collect();
        xor_into(&mut sum, &all);
        let mut columns = shares.holes();
        if away.is_none() {
            let is_zero = |page: &[u8; PAGE_BYTES]| page.iter().all(|byte| *byte == 0);
            let pages = (0..).step_by(PAGE_BYTES).zip(sum.as_chunks::<PAGE_BYTES>().0);
            columns.extend(pages.filter(|(_, page)| !is_zero(page)).map(|(at, _)| at));
        }
        let mut differing = BTreeSet::new();
        for &at in &columns {
            for member in 0..view.len() {
                let byte = stripes.at_member(member, shares.range.start + to_u64(at));
                if let Some(MemberByte::Data(offset)) = byte {
                    differing.insert(offset);
                }
            }
        }
        let mut bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
        for (_, page) in self.pages_of(&piece) {
            let (member, offset) = (page.place.member, page.place.member_offset);
            let at = to_usize(offset - shares.range.start);
            let rebuilt =
                (Some(member) == away && !columns.contains(&at)).then(|| &sum[at..at + PAGE_BYTES]);
            if let Some(found) = shares.page(member, offset).or(rebuilt) {
                bytes[page.range()].copy_from_slice(found);
            }
        }
        let (differing, is_short) = (differing.into_iter().collect(), away.is_some());
        Ok(RedundancyComparison { bytes, differing, alone: Vec::new(), is_short })
    }

    /// Reads data without redundancy. Unreadable pages differ.
    pub(super) fn compare_units(
        &self,
        view: &MemberView,
        piece: Range<u64>,
    ) -> Result<RedundancyComparison, DeviceError> {
        let shares = self.read_shares(view, &self.at(piece.start), &piece)?;
        let mut bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
        let mut differing = Vec::new();
        for (offset, page) in self.pages_of(&piece) {
            match shares.page(page.place.member, page.place.member_offset) {
                Some(found) => bytes[page.range()].copy_from_slice(found),
                None => differing.push(offset),
            }
        }
        Ok(RedundancyComparison { bytes, differing, alone: Vec::new(), is_short: false })
    }

    pub(super) fn compare_pages(
        &self,
        view: &MemberView,
        piece: Range<u64>,
    ) -> Result<RedundancyComparison, DeviceError> {
        let stripes = self.at(piece.start);
        let shares = self.read_shares(view, &stripes, &piece)?;
        let mut bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
        let (mut differing, mut alone) = (Vec::new(), Vec::new());
        // Pages are stored in the first half, whose last row may reach into the second half.
        let end = piece.start + stripes.segment_bytes / 2;
        for (offset, page) in self.pages_of(&piece).into_iter().filter(|(at, _)| *at < end) {
            let Some((member, at)) = stripes.second_copy(&page.place) else { continue };
            let first = shares.page(page.place.member, page.place.member_offset);
            let second = shares.page(member, at);
            let is_away = |member: usize| shares.of.get(member).is_none_or(Option::is_none);
            if is_away(page.place.member) || is_away(member) {
                alone.push(offset);
            } else if first.is_none() || first != second {
                differing.push(offset);
            }
            if let Some(found) = first.or(second) {
                bytes[page.range()].copy_from_slice(found);
            }
        }
        let is_short = shares.of.iter().any(Option::is_none);
        Ok(RedundancyComparison { bytes, differing, alone, is_short })
    }
}
