//! Reads of stripes, from all members in parallel. An unreadable unit is reconstructed from the
//! rest of its row, if the row has parity, or read from the second copy.

use std::ops::Range;
use std::sync::Arc;

use format::page::PAGE_BYTES;
use format::stripes::Stripes;
use runtime::if_planted;

use super::{Striped, UnitPart, absent, count_parity, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, DeviceCompletion, DeviceError, DeviceOperation, IoPurpose, PendingRequest,
    Redundancy, Ticket,
};
use crate::parity::xor_into;
use crate::volume::parity_reads::ParityReader;
use crate::volume::salvage::SalvagedRange;
use crate::volume::set::{MemberSet, MemberView};

/// What is needed to read further after an error.
#[derive(Clone, Debug)]
pub(super) struct StripeReadContext {
    pub(super) set: Arc<MemberSet>,
    pub(super) view: MemberView,
    pub(super) stripes: Stripes,
    pub(super) purpose: IoPurpose,
}

pub(super) struct StripeShares {
    range: Range<u64>,
    has_parity: bool,
    answers: Vec<Result<SalvagedRange, DeviceError>>,
    /// The first error of a member that was then read again, page by page.
    pub(super) said: Option<DeviceError>,
}

impl StripeReadContext {
    pub(super) fn submit(&self, member: usize, range: &Range<u64>) -> Ticket {
        if !self.stripes.has_member(member) {
            // Zeros are neutral in a parity sum.
            let buffer = Some(AlignedBuffer::zeroed(to_usize(range.end - range.start)));
            return Ticket::ready(Ok(DeviceCompletion { buffer }));
        }
        let slot = &self.view[member];
        if slot.readable().is_none() {
            return Ticket::ready(Err(absent(&self.view, member)));
        }
        let buffer = AlignedBuffer::for_reading(to_usize(range.end - range.start));
        let read = DeviceOperation::Read { offset: range.start, buffer };
        self.set.submit(slot, self.purpose, read)
    }

    pub(super) fn read_shares(&self, reader: ParityReader, range: Range<u64>) -> StripeShares {
        count_parity(reader, (&self.stripes, &self.view), 0..self.view.len(), &range);
        let tickets: Vec<Ticket> =
            (0..self.view.len()).map(|member| self.submit(member, &range)).collect();
        let has_parity = self.stripes.shape.has_parity;
        let whole = |bytes| SalvagedRange { bytes, bad: Vec::new() };
        let answers = tickets.into_iter().map(|ticket| bytes_of(ticket).map(whole)).collect();
        StripeShares { range, has_parity, answers, said: None }
    }

    /// Reads failed shares again, page by page, so that one bad sector does not cost whole rows.
    pub(super) fn by_pages(&self, mut shares: StripeShares) -> StripeShares {
        for (slot, answer) in self.view.iter().zip(&mut shares.answers) {
            if let Err(error) = answer
                && slot.readable().is_some()
            {
                shares.said.get_or_insert(error.clone());
                *answer = self.set.by_pages(slot, self.purpose, &shares.range);
            }
        }
        shares
    }

    /// Returns the range to read of each member to reconstruct `parts`: that of a single part, or
    /// whole rows.
    pub(super) fn range_of(&self, parts: &[UnitPart]) -> Range<u64> {
        match parts {
            [] => 0..0,
            [part] => part.place.member_offset..part.member_end(),
            [first, .., last] => {
                self.stripes.row_offset(first.place.row)
                    ..self.stripes.row_offset(last.place.row + 1)
            }
        }
    }

    /// Reads parts again after an error, from other members too.
    fn read_around(
        &self,
        parts: &[UnitPart],
        buffer: &mut AlignedBuffer,
        error: &DeviceError,
    ) -> Result<(), DeviceError> {
        match self.purpose.redundancy() {
            Redundancy::Parity => {
                let shares = self.read_shares(ParityReader::Degraded, self.range_of(parts));
                parts.iter().try_for_each(|part| {
                    shares.put(part, &mut buffer[part.range()]).map_err(|_| error.clone())
                })
            }
            Redundancy::Copies => parts
                .iter()
                .try_for_each(|part| self.put_page(part, &mut buffer[part.range()], error)),
        }
    }

    fn put_page(
        &self,
        part: &UnitPart,
        to: &mut [u8],
        error: &DeviceError,
    ) -> Result<(), DeviceError> {
        let range = part.place.member_offset..part.member_end();
        if let Ok(bytes) = bytes_of(self.submit(part.place.member, &range)) {
            to.copy_from_slice(&bytes);
            return Ok(());
        }
        let Some((member, at)) = self.stripes.second_copy(&part.place) else {
            // No page is stored at this offset, but a long read may include it.
            to.fill(0);
            return Ok(());
        };
        let range = at..at + to_u64(part.length_bytes);
        let bytes = bytes_of(self.submit(member, &range)).map_err(|_| error.clone())?;
        to.copy_from_slice(&bytes);
        Ok(())
    }
}

impl StripeShares {
    fn of(&self, member: usize, part: &UnitPart) -> Option<&[u8]> {
        let from = to_usize(part.place.member_offset.checked_sub(self.range.start)?);
        let (share, end) = (self.answers.get(member)?.as_ref().ok()?, from + part.length_bytes);
        let is_bad = share.bad.iter().any(|bad| *bad < end && from < bad + PAGE_BYTES);
        if is_bad { None } else { share.bytes.get(from..end) }
    }

    pub(super) fn gives(&self, member: usize, part: &UnitPart) -> bool {
        self.of(member, part).is_some()
    }

    /// Copies a part, or reconstructs it.
    pub(super) fn put(&self, part: &UnitPart, to: &mut [u8]) -> Result<(), DeviceError> {
        match self.of(part.place.member, part) {
            Some(bytes) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
            None if part.length_bytes > PAGE_BYTES && self.has_some(part) => {
                part.pages().try_for_each(|page| self.put(&page, &mut to[page.within(part)]))
            }
            None => self.rebuild(part, to),
        }
    }

    /// Reconstructs a part from the rest of its row, page by page after an error.
    pub(super) fn rebuild(&self, part: &UnitPart, to: &mut [u8]) -> Result<(), DeviceError> {
        match self.rebuild_at_once(part, to) {
            Err(_) if part.length_bytes > PAGE_BYTES => part
                .pages()
                .try_for_each(|page| self.rebuild_at_once(&page, &mut to[page.within(part)])),
            done => done,
        }
    }

    /// Reconstructs the pages of a part that can be reconstructed. Returns whether there are any.
    pub(super) fn rebuild_given(&self, part: &UnitPart, to: &mut [u8]) -> bool {
        let mut is_given = self.rebuild_at_once(part, to).is_ok();
        if !is_given && part.length_bytes > PAGE_BYTES {
            for page in part.pages() {
                is_given |= self.rebuild_at_once(&page, &mut to[page.within(part)]).is_ok();
            }
        }
        is_given
    }

    fn rebuild_at_once(&self, part: &UnitPart, to: &mut [u8]) -> Result<(), DeviceError> {
        if !self.has_parity {
            if_planted!(StripeLostAsZeros, to.fill(0));
            if_planted!(StripeLostAsZeros, return Ok(()));
            // Without parity nothing can be reconstructed (R6).
            let own = self.answers.get(part.place.member).and_then(|answer| answer.as_ref().err());
            return Err(own.cloned().unwrap_or_else(|| self.lost()));
        }
        let mut others = Vec::with_capacity(self.answers.len());
        for (member, answer) in self.answers.iter().enumerate() {
            if member == part.place.member {
                continue;
            }
            match self.of(member, part) {
                Some(bytes) => others.push(bytes),
                None => return Err(answer.as_ref().err().cloned().unwrap_or_else(|| self.lost())),
            }
        }
        to.fill(0);
        xor_into(to, &others);
        Ok(())
    }

    fn lost(&self) -> DeviceError {
        let of_nobody = || DeviceError::Failed { device: "a member".to_owned() };
        self.said.clone().unwrap_or_else(of_nobody)
    }

    pub(super) fn is_zero_sum(&self) -> bool {
        let whole = |share: &SalvagedRange| share.bad.is_empty();
        let given = self.answers.iter().map(|answer| answer.as_ref().ok().filter(|it| whole(it)));
        let shares: Option<Vec<&[u8]>> = given.map(|it| it.map(|share| &share.bytes[..])).collect();
        let Some(shares) = shares else { return false };
        let mut sum = vec![0; to_usize(self.range.end - self.range.start)];
        xor_into(&mut sum, &shares);
        sum.iter().all(|byte| *byte == 0)
    }

    pub(super) fn has(&self, part: &UnitPart) -> bool {
        self.of(part.place.member, part).is_some()
    }

    pub(super) fn failed(&self, member: usize) -> bool {
        self.answers.get(member).is_some_and(Result::is_err)
    }

    /// Whether the member of a part returned any page.
    pub(super) fn has_some(&self, part: &UnitPart) -> bool {
        self.answers.get(part.place.member).is_some_and(Result::is_ok)
    }
}

pub(super) fn bytes_of(ticket: Ticket) -> Result<AlignedBuffer, DeviceError> {
    ticket.wait().map(|done| done.buffer.expect("a read returns its buffer"))
}

/// A read of one unit, directly into the buffer of the caller.
struct UnitRead {
    source: StripeReadContext,
    part: UnitPart,
    ticket: Ticket,
}

impl PendingRequest for UnitRead {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let UnitRead { source, part, ticket } = *self;
        let error = match ticket.wait() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let mut buffer = AlignedBuffer::for_reading(part.length_bytes);
        source.read_around(&[part], &mut buffer, &error)?;
        Ok(DeviceCompletion { buffer: Some(buffer) })
    }
}

/// A read of several units: one request per member, which includes the parity units between.
struct MultiUnitRead {
    source: StripeReadContext,
    parts: Vec<UnitPart>,
    buffer: AlignedBuffer,
    tickets: Vec<(usize, Range<u64>, Ticket)>,
    /// The read before the allocation groups, and its length.
    front: Option<(Ticket, usize)>,
}

impl PendingRequest for MultiUnitRead {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let MultiUnitRead { source, parts, mut buffer, tickets, front } = *self;
        let mut failed = None;
        for (member, range, ticket) in tickets {
            let bytes = match bytes_of(ticket) {
                Ok(bytes) => bytes,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            for part in parts.iter().filter(|part| part.place.member == member) {
                let from = to_usize(part.place.member_offset - range.start);
                buffer[part.range()].copy_from_slice(&bytes[from..from + part.length_bytes]);
            }
        }
        if let Some(error) = failed {
            source.read_around(&parts, &mut buffer, &error)?;
        }
        if let Some((ticket, length_bytes)) = front {
            buffer[..length_bytes].copy_from_slice(&bytes_of(ticket)?);
        }
        Ok(DeviceCompletion { buffer: Some(buffer) })
    }
}

/// A read across the border of two layouts.
struct SplitRead {
    first: Ticket,
    rest: Ticket,
    buffer: AlignedBuffer,
}

impl PendingRequest for SplitRead {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let SplitRead { first, rest, mut buffer } = *self;
        let (first, rest) = (bytes_of(first), bytes_of(rest));
        let first = first?;
        let (front, back) = buffer.split_at_mut(first.len());
        front.copy_from_slice(&first);
        back.copy_from_slice(&rest?);
        Ok(DeviceCompletion { buffer: Some(buffer) })
    }
}

impl Striped {
    pub(super) fn source(&self, purpose: IoPurpose, offset: u64) -> StripeReadContext {
        self.source_of(purpose, self.set.view(), offset)
    }

    pub(super) fn source_of(
        &self,
        purpose: IoPurpose,
        view: MemberView,
        offset: u64,
    ) -> StripeReadContext {
        StripeReadContext { set: Arc::clone(&self.set), view, stripes: self.at(offset), purpose }
    }

    fn source_as(&self, purpose: IoPurpose, stripes: Stripes) -> StripeReadContext {
        StripeReadContext { set: Arc::clone(&self.set), view: self.set.view(), stripes, purpose }
    }

    /// Reads a range whose layout changes at byte `border` of the pool.
    fn read_in_two(
        &self,
        purpose: IoPurpose,
        offset: u64,
        border: u64,
        buffer: AlignedBuffer,
    ) -> Ticket {
        let first_bytes = to_usize(border - offset);
        let rest_bytes = buffer.len() - first_bytes;
        let first = self.submit_read(purpose, offset, AlignedBuffer::for_reading(first_bytes));
        let rest = self.submit_read(purpose, border, AlignedBuffer::for_reading(rest_bytes));
        Ticket::new(Box::new(SplitRead { first, rest, buffer }))
    }

    /// Starts a read that ends in the allocation groups. That of a check may begin before them.
    pub(super) fn submit_read(
        &self,
        purpose: IoPurpose,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> Ticket {
        let lay = self.lay();
        let front_bytes = to_usize(self.stripes.groups_offset.saturating_sub(offset));
        let (seen, end) = lay.seen_at(offset + to_u64(front_bytes));
        if end < offset + to_u64(buffer.len()) {
            return self.read_in_two(purpose, offset, end, buffer);
        }
        let purpose =
            if seen == offset + to_u64(front_bytes) { purpose } else { IoPurpose::Cleaner };
        let source = self.source_as(purpose, lay.at(seen));
        let mut parts = parts_of(&source.stripes, seen, buffer.len() - front_bytes);
        parts.iter_mut().for_each(|part| part.at += front_bytes);
        if let (0, [part]) = (front_bytes, parts.as_slice()) {
            let slot = &source.view[part.place.member];
            let ticket = if slot.readable().is_some() {
                let read = DeviceOperation::Read { offset: part.place.member_offset, buffer };
                self.set.submit(slot, purpose, read)
            } else {
                Ticket::ready(Err(absent(&source.view, part.place.member)))
            };
            return Ticket::new(Box::new(UnitRead { source, part: *part, ticket }));
        }
        let front = (front_bytes > 0).then(|| {
            let buffer = AlignedBuffer::for_reading(front_bytes);
            let read = DeviceOperation::Read { offset, buffer };
            (crate::device::Device::submit(&self.fixed, purpose, read), front_bytes)
        });
        let mut tickets = Vec::new();
        for member in 0..source.view.len() {
            let of_member = parts.iter().filter(|part| part.place.member == member);
            let start = of_member.clone().map(|part| part.place.member_offset).min();
            let end = of_member.map(UnitPart::member_end).max();
            let Some((start, end)) = start.zip(end) else { continue };
            if purpose.redundancy() == Redundancy::Parity {
                let at = (&source.stripes, &source.view[..]);
                count_parity(ParityReader::Beside, at, member..member + 1, &(start..end));
            }
            tickets.push((member, start..end, source.submit(member, &(start..end))));
        }
        Ticket::new(Box::new(MultiUnitRead { source, parts, buffer, tickets, front }))
    }
}
