//! Reading of a member what it still gives: one bad sector must not stand for its neighbours.
//!
//! A member that gives nothing at all, not its label either, is another thing than one with bad
//! sectors: whoever walks over the pool must stop then, and not take all of it for lost.

use std::ops::Range;

use format::page::PAGE_BYTES;

use super::set::{MemberSet, View};
use super::slot::Slot;
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, Operation, Purpose, Ticket};

/// What a member gave of a range.
#[derive(Debug)]
pub(super) struct Salvaged {
    /// Its bytes; zeros where it gave none.
    pub(super) bytes: AlignedBuffer,
    /// Where pages begin that it did not give, in `bytes`.
    pub(super) bad: Vec<usize>,
}

impl Salvaged {
    /// Whether a page that begins at `at` was given.
    pub(super) fn has(&self, at: usize) -> bool {
        self.bad.binary_search(&at).is_err()
    }
}

/// A range that is being read of each member that may be read.
#[derive(Debug)]
pub(super) struct Salvage {
    view: View,
    purpose: Purpose,
    range: Range<u64>,
    reads: Vec<Option<Ticket>>,
}

/// Waits for a read.
pub(super) fn bytes_of(ticket: Ticket) -> Result<AlignedBuffer, DeviceError> {
    ticket.wait().map(|done| done.buffer.expect("a read returns its buffer"))
}

impl MemberSet {
    fn read_from(&self, slot: &Slot, purpose: Purpose, offset: u64, length_bytes: usize) -> Ticket {
        let buffer = AlignedBuffer::for_reading(length_bytes);
        self.submit(slot, purpose, Operation::Read { offset, buffer })
    }

    /// Begins to read `range` of each member of `view` that may be read.
    pub(super) fn begin_salvage(
        &self,
        view: &View,
        purpose: Purpose,
        range: &Range<u64>,
    ) -> Salvage {
        let length = to_usize(range.end - range.start);
        let begin = |slot: &Slot| {
            slot.readable().map(|_| self.read_from(slot, purpose, range.start, length))
        };
        let reads = view.iter().map(begin).collect();
        Salvage { view: view.clone(), purpose, range: range.clone(), reads }
    }

    /// Returns what each member gives; page by page where the read of all fails. `None`: it may not
    /// be read.
    ///
    /// # Errors
    ///
    /// What a member said that does not give its label either.
    pub(super) fn end_salvage(
        &self,
        salvage: Salvage,
    ) -> Result<Vec<Option<Salvaged>>, DeviceError> {
        let Salvage { view, purpose, range, reads } = salvage;
        let wait = |(slot, read): (&Slot, Option<Ticket>)| {
            let Some(read) = read else { return Ok(None) };
            match bytes_of(read) {
                Ok(bytes) => Ok(Some(Salvaged { bytes, bad: Vec::new() })),
                Err(_) => self.by_pages(slot, purpose, &range).map(Some),
            }
        };
        view.iter().zip(reads).map(wait).collect()
    }

    /// Both: begins, and waits.
    ///
    /// # Errors
    ///
    /// See [`MemberSet::end_salvage`].
    pub(super) fn salvage(
        &self,
        view: &View,
        purpose: Purpose,
        range: &Range<u64>,
    ) -> Result<Vec<Option<Salvaged>>, DeviceError> {
        self.end_salvage(self.begin_salvage(view, purpose, range))
    }

    pub(super) fn by_pages(
        &self,
        slot: &Slot,
        purpose: Purpose,
        range: &Range<u64>,
    ) -> Result<Salvaged, DeviceError> {
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
        Ok(Salvaged { bytes, bad })
    }

    /// Reads the page at byte `offset` of a member.
    pub(super) fn page_of(
        &self,
        slot: &Slot,
        purpose: Purpose,
        offset: u64,
    ) -> Result<AlignedBuffer, DeviceError> {
        bytes_of(self.read_from(slot, purpose, offset, PAGE_BYTES))
    }

    /// Whether a member that did not give a page gives its label.
    fn check_answers(&self, slot: &Slot, error: DeviceError) -> Result<(), DeviceError> {
        let label = self.read_from(slot, Purpose::Superblock, 0, PAGE_BYTES);
        label.wait().map(drop).map_err(|_| error)
    }
}
