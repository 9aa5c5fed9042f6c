//! Reads of a damaged member: page by page, so that one bad sector does not hide its neighbours. If
//! the label is unreadable too, the walk must stop, instead of counting all contents as lost.

use std::ops::Range;

use format::page::PAGE_BYTES;

use super::set::{MemberSet, MemberView};
use super::slot::MemberSlot;
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, Ticket};

/// The readable contents of a range.
#[derive(Debug)]
pub(super) struct SalvagedRange {
    /// The contents. Zeros for bad pages.
    pub(super) bytes: AlignedBuffer,
    /// Offsets in `bytes` of unreadable pages, sorted.
    pub(super) bad: Vec<usize>,
}

impl SalvagedRange {
    pub(super) fn has(&self, at: usize) -> bool {
        self.bad.binary_search(&at).is_err()
    }
}

#[derive(Debug)]
pub(super) struct Salvage {
    view: MemberView,
    purpose: IoPurpose,
    range: Range<u64>,
    reads: Vec<Option<Ticket>>,
}

pub(super) fn bytes_of(ticket: Ticket) -> Result<AlignedBuffer, DeviceError> {
    ticket.wait().map(|done| done.buffer.expect("a read returns its buffer"))
}

impl MemberSet {
    fn read_from(
        &self,
        slot: &MemberSlot,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Ticket {
        let buffer = AlignedBuffer::for_reading(length_bytes);
        self.submit(slot, purpose, DeviceOperation::Read { offset, buffer })
    }

    pub(super) fn begin_salvage(
        &self,
        view: &MemberView,
        purpose: IoPurpose,
        range: &Range<u64>,
    ) -> Salvage {
        let length = to_usize(range.end - range.start);
        let begin = |slot: &MemberSlot| {
            slot.readable().map(|_| self.read_from(slot, purpose, range.start, length))
        };
        let reads = view.iter().map(begin).collect();
        Salvage { view: view.clone(), purpose, range: range.clone(), reads }
    }

    /// Returns the contents from each readable member, page by page after an error.
    ///
    /// # Errors
    ///
    /// The error of a member whose label is unreadable too.
    pub(super) fn end_salvage(
        &self,
        salvage: Salvage,
    ) -> Result<Vec<Option<SalvagedRange>>, DeviceError> {
        let Salvage { view, purpose, range, reads } = salvage;
        let wait = |(slot, read): (&MemberSlot, Option<Ticket>)| {
            let Some(read) = read else { return Ok(None) };
            match bytes_of(read) {
                Ok(bytes) => Ok(Some(SalvagedRange { bytes, bad: Vec::new() })),
                Err(_) => self.by_pages(slot, purpose, &range).map(Some),
            }
        };
        view.iter().zip(reads).map(wait).collect()
    }

    pub(super) fn salvage(
        &self,
        view: &MemberView,
        purpose: IoPurpose,
        range: &Range<u64>,
    ) -> Result<Vec<Option<SalvagedRange>>, DeviceError> {
        self.end_salvage(self.begin_salvage(view, purpose, range))
    }

    pub(super) fn by_pages(
        &self,
        slot: &MemberSlot,
        purpose: IoPurpose,
        range: &Range<u64>,
    ) -> Result<SalvagedRange, DeviceError> {
        let mut bytes = AlignedBuffer::zeroed(to_usize(range.end - range.start));
        let mut bad = Vec::new();
        for (number, page) in (0..).zip(bytes.as_chunks_mut::<PAGE_BYTES>().0) {
            let at = number * PAGE_BYTES;
            let read = self.read_from(slot, purpose, range.start + to_u64(at), PAGE_BYTES);
            match bytes_of(read) {
                Ok(found) => page.copy_from_slice(&found),
                Err(error) => {
                    if bad.is_empty() {
                        self.check_answers(slot, error)?;
                    }
                    bad.push(at);
                }
            }
        }
        Ok(SalvagedRange { bytes, bad })
    }

    pub(super) fn page_of(
        &self,
        slot: &MemberSlot,
        purpose: IoPurpose,
        offset: u64,
    ) -> Result<AlignedBuffer, DeviceError> {
        bytes_of(self.read_from(slot, purpose, offset, PAGE_BYTES))
    }

    /// Returns `error` if the label of the member is unreadable too.
    fn check_answers(&self, slot: &MemberSlot, error: DeviceError) -> Result<(), DeviceError> {
        let label = self.read_from(slot, IoPurpose::Superblock, 0, PAGE_BYTES);
        label.wait().map(drop).map_err(|_| error)
    }
}
