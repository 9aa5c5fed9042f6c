//! Moves of a segment to stripes of another width.

use format::page::PAGE_BYTES;
use format::reshape::StripeMapping;
use format::stripes::Stripes;
use runtime::planted;

use super::Striped;
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, IoPurpose, Redundancy, SharedBytes};
use crate::volume::composite::RedundancyComparison;
use crate::volume::parity_reads::ParityReader;
use crate::volume::ranges::InFlightWrite;

impl Striped {
    pub(in crate::volume) fn lay_now(&self) -> StripeMapping {
        self.lay()
    }

    /// Reads the segment at byte `start`, without writes in flight. In a raid5, unreadable pages
    /// become zeros, because their blocks were unreadable before.
    ///
    /// # Errors
    ///
    /// Too many members cannot be read, or in a stripe any page. A retry may succeed.
    pub(in crate::volume) fn read_to_move(
        &self,
        start: u64,
        kind: Redundancy,
    ) -> Result<AlignedBuffer, DeviceError> {
        let piece = start..start + self.stripes.segment_bytes;
        let view = self.set.view();
        let mut compared = match kind {
            Redundancy::Parity if self.stripes.shape.has_parity => {
                self.compare_rows(ParityReader::Rebuild, &view, piece)?
            }
            Redundancy::Parity => self.compare_units(&view, piece)?,
            Redundancy::Copies => {
                let mut compared = self.compare_pages(&view, piece)?;
                if self.needs_all() {
                    self.read_again(start, &mut compared)?;
                }
                return Ok(compared.bytes);
            }
        };
        for offset in compared.differing {
            let buffer = AlignedBuffer::for_reading(PAGE_BYTES);
            // From its member, or reconstructed.
            let done = match self.submit_read(IoPurpose::Cleaner, offset, buffer).wait() {
                Ok(done) => done,
                Err(error) if self.needs_all() => return Err(error),
                Err(_) => continue,
            };
            let at = to_usize(offset - start);
            if let Some(page) = done.buffer {
                compared.bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
            }
        }
        Ok(compared.bytes)
    }

    /// Reads differing pages again, from their first readable copy.
    fn read_again(
        &self,
        start: u64,
        compared: &mut RedundancyComparison,
    ) -> Result<(), DeviceError> {
        for &offset in &compared.differing {
            let read = |copy| self.read_copy_of_pages(copy, IoPurpose::Home, offset, PAGE_BYTES);
            let mut copies = (0..).map_while(read);
            let Some(first) = copies.next() else { continue };
            let page = first.or_else(|error| copies.find_map(Result::ok).ok_or(error))?;
            let at = to_usize(offset - start);
            compared.bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
        }
        Ok(())
    }

    /// Whether every page must be read: without parity, zeros must not replace a page.
    fn needs_all(&self) -> bool {
        !self.stripes.shape.has_parity && !planted!(UnreadMovedAsZeros)
    }

    /// Reads the segment at byte `start`, the copy of a segment in a move. Members may be absent.
    pub(in crate::volume) fn read_kept(
        &self,
        start: u64,
        kind: Redundancy,
    ) -> Result<AlignedBuffer, DeviceError> {
        let read = |offset: u64, length_bytes: usize| {
            let buffer = AlignedBuffer::for_reading(length_bytes);
            let done = self.submit_read(IoPurpose::Cleaner, offset, buffer).wait()?;
            Ok(done.buffer.expect("a read returns its buffer"))
        };
        let length_bytes = to_usize(self.stripes.segment_bytes);
        // Pages are in the first half.
        let used_bytes = if kind == Redundancy::Copies { length_bytes / 2 } else { length_bytes };
        let whole = read(start, used_bytes);
        if whole.is_ok() || self.needs_all() {
            return whole;
        }
        // Page by page, so that one bad sector does not take its neighbours along.
        let mut bytes = AlignedBuffer::zeroed(length_bytes);
        let mut found = whole;
        for at in (0..used_bytes).step_by(PAGE_BYTES) {
            if let Ok(page) = read(start + to_u64(at), PAGE_BYTES) {
                bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
                found = Ok(AlignedBuffer::zeroed(0));
            }
        }
        found.map(|_| bytes)
    }

    /// Writes a segment in the layout `stripes`. Not durable before a flush.
    pub(in crate::volume) fn write_moved(
        &self,
        stripes: &Stripes,
        (start, kind): (u64, Redundancy),
        bytes: &AlignedBuffer,
        in_flight: Option<InFlightWrite>,
    ) -> Result<(), DeviceError> {
        match kind {
            Redundancy::Parity => {
                let data = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
                self.write_rows(stripes, IoPurpose::Cleaner, (start, data), in_flight).wait()?;
            }
            Redundancy::Copies => {
                let half = to_usize(stripes.segment_bytes / 2);
                let data = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes[..half]))];
                self.write_copies(stripes, IoPurpose::Cleaner, (start, &data), in_flight).wait()?;
            }
        }
        Ok(())
    }
}
