//! Reading: each member's share at once; what a member does not give comes from the rest of its
//! row, if that has parity, or from the other copy.

use std::ops::Range;
use std::sync::Arc;

use format::page::PAGE_BYTES;
use format::stripes::Stripes;
use runtime::planted::{self, Planted};

use super::{Part, Striped, absent, count_parity, parts_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, Completion, DeviceError, Operation, PendingRequest, Purpose, Redundancy, Ticket,
};
use crate::parity::xor_into;
use crate::volume::parity_reads::ParityReader;
use crate::volume::salvage::Salvaged;
use crate::volume::set::{MemberSet, View};

/// What it takes to read on when a request is waited for.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) set: Arc<MemberSet>,
    pub(super) view: View,
    pub(super) stripes: Stripes,
    pub(super) purpose: Purpose,
}

/// What each member answered, of the same bytes of all.
pub(super) struct Shares {
    range: Range<u64>,
    has_parity: bool,
    answers: Vec<Result<Salvaged, DeviceError>>,
    /// What a member said of pages that it has not given.
    pub(super) said: Option<DeviceError>,
}

impl Source {
    /// Begins to read `range` of the member in slot `member`.
    pub(super) fn submit(&self, member: usize, range: &Range<u64>) -> Ticket {
        if !self.stripes.has_member(member) {
            // It has no share, which is zeros in every sum.
            let buffer = Some(AlignedBuffer::zeroed(to_usize(range.end - range.start)));
            return Ticket::ready(Ok(Completion { buffer }));
        }
        let slot = &self.view[member];
        if slot.readable().is_none() {
            return Ticket::ready(Err(absent(&self.view, member)));
        }
        let buffer = AlignedBuffer::for_reading(to_usize(range.end - range.start));
        let read = Operation::Read { offset: range.start, buffer };
        self.set.submit(slot, self.purpose, read)
    }

    /// Reads `range` of each member: what rows need to be put together.
    pub(super) fn read_shares(&self, reader: ParityReader, range: Range<u64>) -> Shares {
        count_parity(reader, (&self.stripes, &self.view), 0..self.view.len(), &range);
        let tickets: Vec<Ticket> =
            (0..self.view.len()).map(|member| self.submit(member, &range)).collect();
        let has_parity = self.stripes.shape.has_parity;
        let whole = |bytes| Salvaged { bytes, bad: Vec::new() };
        let answers = tickets.into_iter().map(|ticket| bytes_of(ticket).map(whole)).collect();
        Shares { range, has_parity, answers, said: None }
    }

    /// Reads page by page what members may be read and have not given: one bad sector must not
    /// stand for the whole rows of a block. Not of a member that gives nothing at all.
    pub(super) fn by_pages(&self, mut shares: Shares) -> Shares {
        if planted::is(Planted::BadSectorTakesRows) {
            return shares;
        }
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

    /// Returns the bytes of all members that parts need for a rebuild: those of one part, or whole
    /// rows.
    pub(super) fn range_of(&self, parts: &[Part]) -> Range<u64> {
        match parts {
            [] => 0..0,
            [part] => part.place.member_offset..part.member_end(),
            [first, .., last] => {
                self.stripes.row_offset(first.place.row)
                    ..self.stripes.row_offset(last.place.row + 1)
            }
        }
    }

    /// Reads parts whose members, or one of them, could not be read; `error` is what was said.
    fn read_around(
        &self,
        parts: &[Part],
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

    /// Reads a part of pages from the first copy that can be read.
    fn put_page(&self, part: &Part, to: &mut [u8], error: &DeviceError) -> Result<(), DeviceError> {
        let range = part.place.member_offset..part.member_end();
        if let Ok(bytes) = bytes_of(self.submit(part.place.member, &range)) {
            to.copy_from_slice(&bytes);
            return Ok(());
        }
        let Some((member, at)) = self.stripes.second_copy(&part.place) else {
            // No page is ever here: whoever reads over it looks at what lies around.
            to.fill(0);
            return Ok(());
        };
        let range = at..at + to_u64(part.length_bytes);
        let bytes = bytes_of(self.submit(member, &range)).map_err(|_| error.clone())?;
        to.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Shares {
    fn of(&self, member: usize, part: &Part) -> Option<&[u8]> {
        let from = to_usize(part.place.member_offset.checked_sub(self.range.start)?);
        let (share, end) = (self.answers.get(member)?.as_ref().ok()?, from + part.length_bytes);
        let is_bad = share.bad.iter().any(|bad| *bad < end && from < bad + PAGE_BYTES);
        if is_bad { None } else { share.bytes.get(from..end) }
    }

    /// Whether a member gave its share of the row of a part.
    pub(super) fn gives(&self, member: usize, part: &Part) -> bool {
        self.of(member, part).is_some()
    }

    /// Puts a part into `to`: as its member has it, or from the rest of the row.
    pub(super) fn put(&self, part: &Part, to: &mut [u8]) -> Result<(), DeviceError> {
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

    /// Puts a part into `to` as the rest of its row says; page by page where some pages of the rest
    /// are not there.
    pub(super) fn rebuild(&self, part: &Part, to: &mut [u8]) -> Result<(), DeviceError> {
        match self.rebuild_at_once(part, to) {
            Err(_) if part.length_bytes > PAGE_BYTES => part
                .pages()
                .try_for_each(|page| self.rebuild_at_once(&page, &mut to[page.within(part)])),
            done => done,
        }
    }

    /// The same, but that pages which the rest of the row does not give stay as they are; whether
    /// there is another.
    pub(super) fn rebuild_given(&self, part: &Part, to: &mut [u8]) -> bool {
        if planted::is(Planted::SuspectWholeOnly) {
            return self.rebuild(part, to).is_ok();
        }
        let mut is_given = self.rebuild_at_once(part, to).is_ok();
        if !is_given && part.length_bytes > PAGE_BYTES {
            for page in part.pages() {
                is_given |= self.rebuild_at_once(&page, &mut to[page.within(part)]).is_ok();
            }
        }
        is_given
    }

    fn rebuild_at_once(&self, part: &Part, to: &mut [u8]) -> Result<(), DeviceError> {
        if !self.has_parity && planted::is(Planted::StripeLostAsZeros) {
            to.fill(0);
            return Ok(());
        }
        if !self.has_parity {
            // R6: the rest of the row says nothing of it.
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

    /// Whether all members gave their shares, and these cancel out.
    pub(super) fn is_zero_sum(&self) -> bool {
        let whole = |share: &Salvaged| share.bad.is_empty();
        let given = self.answers.iter().map(|answer| answer.as_ref().ok().filter(|it| whole(it)));
        let shares: Option<Vec<&[u8]>> = given.map(|it| it.map(|share| &share.bytes[..])).collect();
        let Some(shares) = shares else { return false };
        let mut sum = vec![0; to_usize(self.range.end - self.range.start)];
        xor_into(&mut sum, &shares);
        sum.iter().all(|byte| *byte == 0)
    }

    /// Whether the member of a part gave it.
    pub(super) fn has(&self, part: &Part) -> bool {
        self.of(part.place.member, part).is_some()
    }

    /// Whether a member gave nothing.
    pub(super) fn failed(&self, member: usize) -> bool {
        self.answers.get(member).is_some_and(Result::is_err)
    }

    /// Whether the member of a part gave any page of its rows.
    pub(super) fn has_some(&self, part: &Part) -> bool {
        self.answers.get(part.place.member).is_some_and(Result::is_ok)
    }
}

/// Waits for a read.
pub(super) fn bytes_of(ticket: Ticket) -> Result<AlignedBuffer, DeviceError> {
    ticket.wait().map(|done| done.buffer.expect("a read returns its buffer"))
}

/// A read of one unit, which goes straight into the buffer of who asked.
struct OnePart {
    source: Source,
    part: Part,
    ticket: Ticket,
}

impl PendingRequest for OnePart {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let OnePart { source, part, ticket } = *self;
        let error = match ticket.wait() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let mut buffer = AlignedBuffer::for_reading(part.length_bytes);
        source.read_around(&[part], &mut buffer, &error)?;
        Ok(Completion { buffer: Some(buffer) })
    }
}

/// A read of several units: one request a member, over parity that lies between.
struct ManyParts {
    source: Source,
    parts: Vec<Part>,
    buffer: AlignedBuffer,
    tickets: Vec<(usize, Range<u64>, Ticket)>,
    /// The part in front of the groups, and how much it fills.
    front: Option<(Ticket, usize)>,
}

impl PendingRequest for ManyParts {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let ManyParts { source, parts, mut buffer, tickets, front } = *self;
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
        Ok(Completion { buffer: Some(buffer) })
    }
}

/// A read of what lies in two ways.
struct TwoReads {
    first: Ticket,
    rest: Ticket,
    buffer: AlignedBuffer,
}

impl PendingRequest for TwoReads {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let TwoReads { first, rest, mut buffer } = *self;
        let (first, rest) = (bytes_of(first), bytes_of(rest));
        let first = first?;
        let (front, back) = buffer.split_at_mut(first.len());
        front.copy_from_slice(&first);
        back.copy_from_slice(&rest?);
        Ok(Completion { buffer: Some(buffer) })
    }
}

impl Striped {
    /// Returns what it takes to read the segment that has byte `offset`.
    pub(super) fn source(&self, purpose: Purpose, offset: u64) -> Source {
        self.source_of(purpose, self.set.view(), offset)
    }

    pub(super) fn source_of(&self, purpose: Purpose, view: View, offset: u64) -> Source {
        Source { set: Arc::clone(&self.set), view, stripes: self.at(offset), purpose }
    }

    fn source_as(&self, purpose: Purpose, stripes: Stripes) -> Source {
        Source { set: Arc::clone(&self.set), view: self.set.view(), stripes, purpose }
    }

    /// Reads what lies in one way up to byte `border` of the pool, and in another behind it.
    fn read_in_two(
        &self,
        purpose: Purpose,
        offset: u64,
        border: u64,
        buffer: AlignedBuffer,
    ) -> Ticket {
        let first_bytes = to_usize(border - offset);
        let rest_bytes = buffer.len() - first_bytes;
        let first = self.submit_read(purpose, offset, AlignedBuffer::for_reading(first_bytes));
        let rest = self.submit_read(purpose, border, AlignedBuffer::for_reading(rest_bytes));
        Ticket::new(Box::new(TwoReads { first, rest, buffer }))
    }

    /// Reads what ends in the groups; who checks a pool may begin in front of them.
    pub(super) fn submit_read(
        &self,
        purpose: Purpose,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> Ticket {
        let lay = self.lay();
        let front_bytes = to_usize(self.stripes.groups_offset.saturating_sub(offset));
        let (seen, end) = lay.seen_at(offset + to_u64(front_bytes));
        if end < offset + to_u64(buffer.len()) {
            return self.read_in_two(purpose, offset, end, buffer);
        }
        let purpose = if seen == offset + to_u64(front_bytes) { purpose } else { Purpose::Cleaner };
        let source = self.source_as(purpose, lay.at(seen));
        let mut parts = parts_of(&source.stripes, seen, buffer.len() - front_bytes);
        parts.iter_mut().for_each(|part| part.at += front_bytes);
        if let (0, [part]) = (front_bytes, parts.as_slice()) {
            let slot = &source.view[part.place.member];
            let ticket = if slot.readable().is_some() {
                let read = Operation::Read { offset: part.place.member_offset, buffer };
                self.set.submit(slot, purpose, read)
            } else {
                Ticket::ready(Err(absent(&source.view, part.place.member)))
            };
            return Ticket::new(Box::new(OnePart { source, part: *part, ticket }));
        }
        let front = (front_bytes > 0).then(|| {
            let buffer = AlignedBuffer::for_reading(front_bytes);
            let read = Operation::Read { offset, buffer };
            (crate::device::Device::submit(&self.fixed, purpose, read), front_bytes)
        });
        let mut tickets = Vec::new();
        for member in 0..source.view.len() {
            let of_member = parts.iter().filter(|part| part.place.member == member);
            let start = of_member.clone().map(|part| part.place.member_offset).min();
            let end = of_member.map(Part::member_end).max();
            let Some((start, end)) = start.zip(end) else { continue };
            if purpose.redundancy() == Redundancy::Parity {
                let at = (&source.stripes, &source.view[..]);
                count_parity(ParityReader::Beside, at, member..member + 1, &(start..end));
            }
            tickets.push((member, start..end, source.submit(member, &(start..end))));
        }
        Ticket::new(Box::new(ManyParts { source, parts, buffer, tickets, front }))
    }
}
