//! Looking for bytes that verify, where those that were read do not, and writing again what is bad.

use std::collections::BTreeSet;
use std::ops::Range;

use format::members::MemberState;
use format::stripes::Stripes;
use runtime::planted::{self, Planted};

use super::read::{Shares, Source, bytes_of};
use super::{Part, Striped, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, Operation, Purpose, SharedBytes};
use crate::volume::composite::{Healed, Verify};
use crate::volume::parity_reads::ParityReader;
use crate::volume::ranges::Hold;
use crate::volume::set::View;
use crate::volume::slot::Slot;

/// A range that verifies.
struct Together {
    whole: AlignedBuffer,
    /// What members that may be read have not given, or not as it should be.
    rebuilt: Vec<Part>,
}

impl Source {
    /// Puts parts together of what their members have and of the rest of their rows, until they
    /// verify; `None`: they do in no way.
    ///
    /// # Errors
    ///
    /// Why a member could not be read without which they do not.
    fn put_together(
        &self,
        parts: &[Part],
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Option<Together>, DeviceError> {
        let shares = self.read_shares(ParityReader::Repair, self.range_of(parts));
        let together = self.put_shares_together(&shares, parts, length_bytes, verify);
        let is_failed = |slot: &Slot, member| slot.readable().is_some() && shares.failed(member);
        if !self.view.iter().zip(0..).any(|(slot, member)| is_failed(slot, member)) {
            return together;
        }
        let Ok(Some(mut together)) = together else {
            // Each page is a request that is waited for, of a device that may be dying.
            let shares = self.by_pages(shares);
            let together = self.put_shares_together(&shares, parts, length_bytes, verify)?;
            // Not of a member that no part needs.
            let lacks = self.lacks_for(&shares, parts);
            return match (together, shares.said) {
                (None, Some(error)) if lacks => Err(error),
                (together, _) => Ok(together),
            };
        };
        if parts.len() > 1 {
            // What cannot be read may lie beside.
            let Together { whole, rebuilt } = &mut together;
            rebuilt.retain(|part| {
                let own = part.place.member_offset..part.member_end();
                let own = bytes_of(self.submit(part.place.member, &own));
                !own.is_ok_and(|own| own[..] == whole[part.range()])
            });
        }
        Ok(Some(together))
    }

    /// Whether a member that may be read has not given a unit that is in one row with a part: the
    /// part may be whole with it. Without parity a part has its own alone, and that was given.
    fn lacks_for(&self, shares: &Shares, parts: &[Part]) -> bool {
        let readable = self.view.iter().zip(0..).filter(|(slot, _)| slot.readable().is_some());
        let members: Vec<usize> = readable.map(|(_, member)| member).collect();
        let is_lacking = |part: &Part| members.iter().any(|member| !shares.gives(*member, part));
        self.stripes.shape.has_parity && parts.iter().any(is_lacking)
    }

    fn put_shares_together(
        &self,
        shares: &Shares,
        parts: &[Part],
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Option<Together>, DeviceError> {
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
            // A part with a bad sector may have rotted besides.
            rebuilt.retain(|part| helped.iter().all(|other| other.at != part.at));
            rebuilt.extend(helped);
        }
        Ok(Some(Together { whole, rebuilt }))
    }
}

impl Striped {
    /// Returns where copy `copy` of parts is, which lie as `stripes` say: member and byte of each;
    /// `None`: no page can be there.
    fn copy_of(stripes: &Stripes, copy: usize, parts: &[Part]) -> Option<Vec<(usize, u64)>> {
        let first = |part: &Part| Some((part.place.member, part.place.member_offset));
        let second = |part: &Part| stripes.second_copy(&part.place);
        match copy {
            0 => parts.iter().map(first).collect(),
            1 => parts.iter().map(second).collect(),
            _ => None,
        }
    }

    /// Reads one copy of pages; `None`: one of its members may not be read.
    fn read_pages_at(
        &self,
        purpose: Purpose,
        view: &View,
        parts: &[Part],
        at: &[(usize, u64)],
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        if at.iter().any(|(member, _)| view[*member].readable().is_none()) {
            return None;
        }
        let length_bytes = parts.iter().map(|part| part.length_bytes).sum();
        let mut whole = AlignedBuffer::zeroed(length_bytes);
        for (part, &(member, offset)) in parts.iter().zip(at) {
            let buffer = AlignedBuffer::for_reading(part.length_bytes);
            let read = Operation::Read { offset, buffer };
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

    /// Reads copy number `copy` of pages, of those that may be read.
    pub(super) fn read_copy_of_pages(
        &self,
        copy: usize,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let stripes = self.at(offset);
        let parts = parts_of(&stripes, offset, length_bytes);
        let copies = (0..2).filter_map(|copy| Striped::copy_of(&stripes, copy, &parts));
        let view = self.set.view();
        copies.filter_map(|at| self.read_pages_at(purpose, &view, &parts, &at)).nth(copy)
    }

    /// Reads blocks in the way numbered `version`: as their members have them, then with each unit
    /// in turn as the rest of its row says.
    pub(super) fn read_version(
        &self,
        version: usize,
        purpose: Purpose,
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

    /// Whether the rows of a range are the sums that they should be. A member that fails to be read
    /// tells that something is wrong, and so does one that is joining or away: it may have been
    /// written to, and nobody may look. One that is away gets the row when it comes back, for it is
    /// written now.
    pub(super) fn rows_agree(&self, purpose: Purpose, offset: u64, length_bytes: usize) -> bool {
        let parts = self.parts(offset, length_bytes);
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
        let source = self.source(purpose, offset);
        let view = Striped::sharing(&source.view, &source.stripes);
        let unknown = |slot: &&Slot| slot.readable().is_none() && slot.state != MemberState::Gone;
        if let Some(unknown) = view.iter().find(unknown) {
            let is_away = unknown.is_away();
            return planted::is(Planted::RecoveryTrustsJoining) && !is_away
                || planted::is(Planted::RecoveryTrustsAbsent) && is_away;
        }
        let rows = first.place.row..last.place.row + 1;
        let stripes = &source.stripes;
        let range = stripes.row_offset(rows.start)..stripes.row_offset(rows.end);
        source.read_shares(ParityReader::Recovery, range).is_zero_sum()
    }

    pub(super) fn heal_pages(
        &self,
        purpose: Purpose,
        view: &View,
        range: Range<u64>,
        verify: Verify<'_>,
    ) -> Result<Healed, DeviceError> {
        // Behind the hold: who moves a segment has one. Where somebody is at it nothing is written.
        let hold = self.set.try_hold(range.clone());
        let stripes = self.at(range.start);
        let parts = parts_of(&stripes, range.start, to_usize(range.end - range.start));
        let (mut healed, mut bad, mut unread) = (Healed::default(), Vec::new(), None);
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
            return Ok(Healed { unread, ..healed });
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

    /// As [`Striped::heal_blocks`], but that nothing is written again.
    pub(super) fn look_at_blocks(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Healed {
        let source = self.source(purpose, offset);
        let parts = parts_of(&source.stripes, offset, length_bytes);
        match source.put_together(&parts, length_bytes, verify) {
            Ok(Some(Together { whole, rebuilt })) => {
                let bad = to_u64(rebuilt.len());
                Healed { bytes: Some(whole), good: 1, bad, ..Healed::default() }
            }
            Ok(None) => Healed { bad: 1, ..Healed::default() },
            Err(error) => Healed { bad: 1, unread: Some(error), ..Healed::default() },
        }
    }

    pub(super) fn heal_blocks(
        &self,
        purpose: Purpose,
        view: View,
        range: Range<u64>,
        verify: Verify<'_>,
    ) -> Result<Healed, DeviceError> {
        let length_bytes = to_usize(range.end - range.start);
        let rows_in = |stripes: &Stripes| {
            let parts = parts_of(stripes, range.start, length_bytes);
            let (first, last) = (parts.first()?.place.row, parts.last()?.place.row);
            Some((stripes.row_start(first)..stripes.row_start(last + 1), parts))
        };
        let before = self.at(range.start);
        let Some((rows, _)) = rows_in(&before) else { return Ok(Healed::default()) };
        // Whoever writes one of the units writes the whole row.
        let hold = self.set.try_hold(rows);
        let source = self.source_of(purpose, view, range.start);
        // Moved just now: where it is nobody holds it.
        let hold = hold.filter(|_| source.stripes == before);
        let Some((_, parts)) = rows_in(&source.stripes) else { return Ok(Healed::default()) };
        let together = match source.put_together(&parts, length_bytes, verify) {
            Ok(Some(together)) => together,
            Ok(None) => {
                let view = &source.view;
                parts.iter().for_each(|part| view[part.place.member].count_damage(false));
                return Ok(Healed { bad: 1, ..Healed::default() });
            }
            Err(error) => return Ok(Healed { bad: 1, unread: Some(error), ..Healed::default() }),
        };
        let Together { whole, rebuilt } = together;
        let bad = to_u64(rebuilt.len());
        let mut healed = Healed { good: 1, bad, ..Healed::default() };
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

    /// Writes bytes again to the member in slot `member`, which fails if it cannot, unless somebody
    /// may be writing there.
    pub(super) fn repair(
        &self,
        purpose: Purpose,
        member: usize,
        offset: u64,
        bytes: &[u8],
        hold: Option<&Hold>,
    ) -> Result<bool, DeviceError> {
        let view = self.set.view();
        let slot = &view[member];
        if slot.readable().is_none() {
            // It has come back, and gets it when its piece is made anew.
            return Ok(false);
        }
        if !self.set.is_news(member, offset) {
            return Ok(false);
        }
        let mut is_repaired = hold.is_some() && !self.info.is_read_only;
        if is_repaired {
            let data = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
            let write = self.set.submit(slot, purpose, Operation::Write { offset, data });
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

/// Looks for the part without whose own bytes the whole verifies, or for the member without all of
/// whose parts it does. Then it does. A part of which only some pages were given is no better than
/// another: these may have rotted.
fn those_that_help(
    shares: &Shares,
    parts: &[Part],
    whole: &mut AlignedBuffer,
    verify: Verify<'_>,
) -> Option<Vec<Part>> {
    let is_suspect = |part: &&Part| match planted::is(Planted::SalvagedNotSuspected) {
        true => shares.has(part),
        false => shares.has_some(part),
    };
    let with: Vec<Part> = parts.iter().filter(is_suspect).copied().collect();
    let of_member =
        |member: usize| with.iter().filter(|part| part.place.member == member).copied().collect();
    let mut suspects: Vec<Vec<Part>> = with.iter().map(|part| vec![*part]).collect();
    let members = with.iter().map(|part| part.place.member).collect::<BTreeSet<usize>>();
    suspects.extend(members.into_iter().map(of_member).filter(|parts: &Vec<Part>| parts.len() > 1));
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
