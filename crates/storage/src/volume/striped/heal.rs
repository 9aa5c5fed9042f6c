//! Repair: finds bytes that verify, and rewrites bad units or copies.

use std::collections::BTreeSet;
use std::ops::Range;

use format::members::MemberState;
use format::stripes::Stripes;
use runtime::planted;

use super::read::{StripeReadContext, StripeShares, bytes_of};
use super::{Striped, UnitPart, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, SharedBytes};
use crate::volume::composite::{RepairOutcome, Verify};
use crate::volume::parity_reads::ParityReader;
use crate::volume::ranges::RangeHold;
use crate::volume::set::MemberView;
use crate::volume::slot::MemberSlot;

/// A range that verifies.
struct VerifiedRange {
    whole: AlignedBuffer,
    /// Reconstructed parts, which readable members returned wrong or not at all.
    rebuilt: Vec<UnitPart>,
}

impl StripeReadContext {
    /// Combines shares and reconstructed parts until they verify.
    ///
    /// # Errors
    ///
    /// The error of a member without which the range does not verify.
    fn put_together(
        &self,
        parts: &[UnitPart],
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Option<VerifiedRange>, DeviceError> {
        let shares = self.read_shares(ParityReader::Repair, self.range_of(parts));
        let together = self.put_shares_together(&shares, parts, length_bytes, verify);
        let is_failed =
            |slot: &MemberSlot, member| slot.readable().is_some() && shares.failed(member);
        if !self.view.iter().zip(0..).any(|(slot, member)| is_failed(slot, member)) {
            return together;
        }
        let Ok(Some(mut together)) = together else {
            // Each page is a serial request to a device that may be dying.
            let shares = self.by_pages(shares);
            let together = self.put_shares_together(&shares, parts, length_bytes, verify)?;
            // An error counts only if some part needs the member that failed.
            let lacks = self.lacks_for(&shares, parts);
            return match (together, shares.said) {
                (None, Some(error)) if lacks => Err(error),
                (together, _) => Ok(together),
            };
        };
        if parts.len() > 1 {
            // Each part is read alone. A part that reads well needs no repair.
            let VerifiedRange { whole, rebuilt } = &mut together;
            rebuilt.retain(|part| {
                let own = part.place.member_offset..part.member_end();
                let own = bytes_of(self.submit(part.place.member, &own));
                !own.is_ok_and(|own| own[..] == whole[part.range()])
            });
        }
        Ok(Some(together))
    }

    /// Whether an unreadable unit keeps some part from being reconstructed by parity.
    fn lacks_for(&self, shares: &StripeShares, parts: &[UnitPart]) -> bool {
        let readable = self.view.iter().zip(0..).filter(|(slot, _)| slot.readable().is_some());
        let members: Vec<usize> = readable.map(|(_, member)| member).collect();
        let is_lacking =
            |part: &UnitPart| members.iter().any(|member| !shares.gives(*member, part));
        self.stripes.shape.has_parity && parts.iter().any(is_lacking)
    }

    fn put_shares_together(
        &self,
        shares: &StripeShares,
        parts: &[UnitPart],
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Option<VerifiedRange>, DeviceError> {
        let mut whole = AlignedBuffer::zeroed(length_bytes);
        let mut rebuilt = Vec::new();
        for part in parts {
            if !shares.has(part) && self.view[part.place.member].readable().is_some() {
                rebuilt.push(*part);
            }
            shares.put(part, &mut whole[part.range()])?;
        }
        if !verify(&whole) {
            let Some(helped) = those_that_help(shares, parts, &mut whole, verify) else {
                return Ok(None);
            };
            // These parts were damaged besides any bad sector.
            rebuilt.retain(|part| helped.iter().all(|other| other.at != part.at));
            rebuilt.extend(helped);
        }
        Ok(Some(VerifiedRange { whole, rebuilt }))
    }
}

impl Striped {
    /// Returns the member and offset of copy `copy` of each part. `None` outside the pages of a
    /// segment.
    fn copy_of(stripes: &Stripes, copy: usize, parts: &[UnitPart]) -> Option<Vec<(usize, u64)>> {
        let first = |part: &UnitPart| Some((part.place.member, part.place.member_offset));
        let second = |part: &UnitPart| stripes.second_copy(&part.place);
        match copy {
            0 => parts.iter().map(first).collect(),
            1 => parts.iter().map(second).collect(),
            _ => None,
        }
    }

    fn read_pages_at(
        &self,
        purpose: IoPurpose,
        view: &MemberView,
        parts: &[UnitPart],
        at: &[(usize, u64)],
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        if at.iter().any(|(member, _)| view[*member].readable().is_none()) {
            return None;
        }
        let length_bytes = parts.iter().map(|part| part.length_bytes).sum();
        let mut whole = AlignedBuffer::zeroed(length_bytes);
        for (part, &(member, offset)) in parts.iter().zip(at) {
            let buffer = AlignedBuffer::for_reading(part.length_bytes);
            let read = DeviceOperation::Read { offset, buffer };
            match self.set.submit(&view[member], purpose, read).wait() {
                Ok(done) => {
                    let bytes = done.buffer.expect("a read returns its buffer");
                    whole[part.range()].copy_from_slice(&bytes);
                }
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(whole))
    }

    /// Reads pages from the `copy`-th (from 0) of their readable copies.
    pub(super) fn read_copy_of_pages(
        &self,
        copy: usize,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let stripes = self.at(offset);
        let parts = parts_of(&stripes, offset, length_bytes);
        let copies = (0..2).filter_map(|copy| Striped::copy_of(&stripes, copy, &parts));
        let view = self.set.view();
        copies.filter_map(|at| self.read_pages_at(purpose, &view, &parts, &at)).nth(copy)
    }

    /// Reads a range. Version 0 takes every part from its own member, version n (from 1)
    /// reconstructs the n-th part from parity. `None` past the last version: without parity that is
    /// 0.
    pub(super) fn read_version(
        &self,
        version: usize,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let parts = self.parts(offset, length_bytes);
        let rebuilt = if self.stripes.shape.has_parity { parts.len() } else { 0 };
        if version > rebuilt {
            return None;
        }
        let source = self.source(purpose, offset);
        let shares = source.read_shares(ParityReader::Repair, source.range_of(&parts));
        let mut whole = AlignedBuffer::zeroed(length_bytes);
        for (number, part) in parts.iter().enumerate() {
            let to = &mut whole[part.range()];
            let put =
                if number + 1 == version { shares.rebuild(part, to) } else { shares.put(part, to) };
            if let Err(error) = put {
                return Some(Err(error));
            }
        }
        Some(Ok(whole))
    }

    /// Whether the rows of a range agree with their parity. False if any member is unreadable,
    /// joining or absent, because it may have part of an interrupted write. Recovery then rewrites
    /// the row.
    pub(super) fn rows_agree(&self, purpose: IoPurpose, offset: u64, length_bytes: usize) -> bool {
        let parts = self.parts(offset, length_bytes);
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
        let source = self.source(purpose, offset);
        let view = Striped::sharing(&source.view, &source.stripes);
        let unknown =
            |slot: &&MemberSlot| slot.readable().is_none() && slot.state != MemberState::Gone;
        if let Some(unknown) = view.iter().find(unknown) {
            return planted!(RecoveryTrustsAbsent) && unknown.is_away();
        }
        let rows = first.place.row..last.place.row + 1;
        let stripes = &source.stripes;
        let range = stripes.row_offset(rows.start)..stripes.row_offset(rows.end);
        source.read_shares(ParityReader::Recovery, range).is_zero_sum()
    }

    pub(super) fn heal_pages(
        &self,
        purpose: IoPurpose,
        view: &MemberView,
        range: Range<u64>,
        verify: Verify<'_>,
    ) -> Result<RepairOutcome, DeviceError> {
        // Read under the hold, because a move changes the layout under a hold. Without one nothing
        // is rewritten.
        let hold = self.set.try_hold(range.clone());
        let stripes = self.at(range.start);
        let parts = parts_of(&stripes, range.start, to_usize(range.end - range.start));
        let (mut healed, mut bad, mut unread) = (RepairOutcome::default(), Vec::new(), None);
        for at in (0..2).filter_map(|copy| Striped::copy_of(&stripes, copy, &parts)) {
            match self.read_pages_at(purpose, view, &parts, &at) {
                Some(Ok(bytes)) if verify(&bytes) => {
                    healed.good += 1;
                    healed.bytes.get_or_insert(bytes);
                }
                Some(Ok(_)) => bad.push((at, true)),
                Some(Err(error)) => {
                    unread.get_or_insert(error);
                    bad.push((at, false));
                }
                None => {}
            }
        }
        healed.bad = to_u64(bad.len());
        let Some(bytes) = &healed.bytes else {
            let was_read = bad.iter().filter(|(_, was_read)| *was_read);
            let members = was_read.flat_map(|(at, _)| at);
            members.for_each(|(member, _)| view[*member].count_damage(false));
            return Ok(RepairOutcome { unread, ..healed });
        };
        let mut repaired = 0;
        for (at, _) in bad {
            let mut is_repaired = true;
            for (part, &(member, offset)) in parts.iter().zip(&at) {
                let good = &bytes[part.range()];
                is_repaired &= self.repair(purpose, member, offset, good, hold.as_ref())?;
            }
            repaired += u64::from(is_repaired);
        }
        healed.repaired = repaired;
        Ok(healed)
    }

    /// Does as [`Striped::heal_blocks`], but rewrites nothing.
    pub(super) fn look_at_blocks(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        let source = self.source(purpose, offset);
        let parts = parts_of(&source.stripes, offset, length_bytes);
        match source.put_together(&parts, length_bytes, verify) {
            Ok(Some(VerifiedRange { whole, rebuilt })) => {
                let bad = to_u64(rebuilt.len());
                RepairOutcome { bytes: Some(whole), good: 1, bad, ..RepairOutcome::default() }
            }
            Ok(None) => RepairOutcome { bad: 1, ..RepairOutcome::default() },
            Err(error) => RepairOutcome { bad: 1, unread: Some(error), ..RepairOutcome::default() },
        }
    }

    pub(super) fn heal_blocks(
        &self,
        purpose: IoPurpose,
        view: MemberView,
        range: Range<u64>,
        verify: Verify<'_>,
    ) -> Result<RepairOutcome, DeviceError> {
        let length_bytes = to_usize(range.end - range.start);
        let rows_in = |stripes: &Stripes| {
            let parts = parts_of(stripes, range.start, length_bytes);
            let (first, last) = (parts.first()?.place.row, parts.last()?.place.row);
            Some((stripes.row_start(first)..stripes.row_start(last + 1), parts))
        };
        let before = self.at(range.start);
        let Some((rows, _)) = rows_in(&before) else { return Ok(RepairOutcome::default()) };
        // A write of one unit writes the whole row.
        let hold = self.set.try_hold(rows);
        let source = self.source_of(purpose, view, range.start);
        // If the segment has moved since, the hold covers other rows.
        let hold = hold.filter(|_| source.stripes == before);
        let Some((_, parts)) = rows_in(&source.stripes) else {
            return Ok(RepairOutcome::default());
        };
        let together = match source.put_together(&parts, length_bytes, verify) {
            Ok(Some(together)) => together,
            Ok(None) => {
                let view = &source.view;
                parts.iter().for_each(|part| view[part.place.member].count_damage(false));
                return Ok(RepairOutcome { bad: 1, ..RepairOutcome::default() });
            }
            Err(error) => {
                return Ok(RepairOutcome {
                    bad: 1,
                    unread: Some(error),
                    ..RepairOutcome::default()
                });
            }
        };
        let VerifiedRange { whole, rebuilt } = together;
        let bad = to_u64(rebuilt.len());
        let mut healed = RepairOutcome { good: 1, bad, ..RepairOutcome::default() };
        for part in rebuilt {
            let place = part.place;
            let good = &whole[part.range()];
            let is_repaired =
                self.repair(purpose, place.member, place.member_offset, good, hold.as_ref())?;
            healed.repaired += u64::from(is_repaired);
        }
        healed.bytes = Some(whole);
        Ok(healed)
    }

    /// Rewrites part of `member`, or fails the member. Without a hold rewrites nothing, because a
    /// write may be in flight.
    pub(super) fn repair(
        &self,
        purpose: IoPurpose,
        member: usize,
        offset: u64,
        bytes: &[u8],
        hold: Option<&RangeHold>,
    ) -> Result<bool, DeviceError> {
        let view = self.set.view();
        let slot = &view[member];
        if slot.readable().is_none() {
            // The rebuild will rewrite it on a returning member.
            return Ok(false);
        }
        if !self.set.is_news(member, offset) {
            return Ok(false);
        }
        let mut is_repaired = hold.is_some() && !self.info.is_read_only;
        if is_repaired {
            let data = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
            let write = self.set.submit(slot, purpose, DeviceOperation::Write { offset, data });
            if let Err(error) = write.wait() {
                is_repaired = false;
                self.set.fail(member, slot, error)?;
            }
        }
        if let Some(hold) = hold.filter(|_| is_repaired) {
            hold.note_written();
        }
        slot.count_damage(is_repaired);
        let device = slot.device.as_ref().map_or("", |device| &device.info().name);
        if !self.set.tells_mends() {
            return Ok(is_repaired);
        }
        tracing::warn!(
            device,
            offset,
            is_repaired,
            "what was read does not verify; it was put together from other members"
        );
        Ok(is_repaired)
    }
}

/// Reconstructs each part in turn, and then all parts of each member, until the whole range
/// verifies. Returns the reconstructed parts. Parts with some unreadable pages are tried too,
/// because their other pages may be damaged.
fn those_that_help(
    shares: &StripeShares,
    parts: &[UnitPart],
    whole: &mut AlignedBuffer,
    verify: Verify<'_>,
) -> Option<Vec<UnitPart>> {
    let is_suspect = |part: &&UnitPart| shares.has_some(part);
    let with: Vec<UnitPart> = parts.iter().filter(is_suspect).copied().collect();
    let of_member =
        |member: usize| with.iter().filter(|part| part.place.member == member).copied().collect();
    let mut suspects: Vec<Vec<UnitPart>> = with.iter().map(|part| vec![*part]).collect();
    let members = with.iter().map(|part| part.place.member).collect::<BTreeSet<usize>>();
    suspects
        .extend(members.into_iter().map(of_member).filter(|parts: &Vec<UnitPart>| parts.len() > 1));
    for suspects in suspects {
        let own = AlignedBuffer::clone(whole);
        let mut is_other = false;
        for part in &suspects {
            is_other |= shares.rebuild_given(part, &mut whole[part.range()]);
        }
        if is_other && verify(whole) {
            return Some(suspects);
        }
        *whole = own;
    }
    None
}
