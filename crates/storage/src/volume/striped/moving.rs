//! Moving a segment to stripes of another width.

use format::page::PAGE_BYTES;
use format::reshape::Lay;
use format::stripes::Stripes;
use runtime::planted::{self, Planted};

use super::Striped;
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, DeviceError, Purpose, Redundancy, SharedBytes};
use crate::volume::composite::Compared;
use crate::volume::parity_reads::ParityReader;
use crate::volume::ranges::InFlight;

impl Striped {
    /// Returns how segments lie now.
    pub(in crate::volume) fn lay_now(&self) -> Lay {
        self.lay()
    }

    /// Reads the segment at byte `start`, which is kept as `kind` says and nobody writes to. Of
    /// what no member gives there are zeros: no block of it verified before.
    ///
    /// # Errors
    ///
    /// What a member said: one without which nothing is known, or of a stripe any. Its bytes may be
    /// there the next time.
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
            // As its member has it, or else as the rest of its row says.
            let done = match self.submit_read(Purpose::Cleaner, offset, buffer).wait() {
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

    /// Reads pages again whose copies differ, or of which one was not given: the first that is.
    fn read_again(&self, start: u64, compared: &mut Compared) -> Result<(), DeviceError> {
        for &offset in &compared.differing {
            let read = |copy| self.read_copy_of_pages(copy, Purpose::Home, offset, PAGE_BYTES);
            let mut copies = (0..).map_while(read);
            let Some(first) = copies.next() else { continue };
            let page = first.or_else(|error| copies.find_map(Result::ok).ok_or(error))?;
            let at = to_usize(offset - start);
            compared.bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
        }
        Ok(())
    }

    /// Whether what is lost of one member is lost: zeros must not take the place of what is only
    /// not read now.
    fn needs_all(&self) -> bool {
        !self.stripes.shape.has_parity && !planted::is(Planted::UnreadMovedAsZeros)
    }

    /// Reads the segment at byte `start`, which keeps another that is kept as `kind` says, whoever
    /// is away.
    pub(in crate::volume) fn read_kept(
        &self,
        start: u64,
        kind: Redundancy,
    ) -> Result<AlignedBuffer, DeviceError> {
        let read = |offset: u64, length_bytes: usize| {
            let buffer = AlignedBuffer::for_reading(length_bytes);
            let done = self.submit_read(Purpose::Cleaner, offset, buffer).wait()?;
            Ok(done.buffer.expect("a read returns its buffer"))
        };
        let length_bytes = to_usize(self.stripes.segment_bytes);
        // Pages lie in the first half.
        let used_bytes = if kind == Redundancy::Copies { length_bytes / 2 } else { length_bytes };
        let whole = read(start, used_bytes);
        if whole.is_ok() || self.needs_all() {
            return whole;
        }
        // One bad sector must not stand for its neighbours.
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

    /// Writes the bytes of a segment to where `stripes` say, not yet durable.
    pub(in crate::volume) fn write_moved(
        &self,
        stripes: &Stripes,
        (start, kind): (u64, Redundancy),
        bytes: &AlignedBuffer,
        in_flight: Option<InFlight>,
    ) -> Result<(), DeviceError> {
        match kind {
            Redundancy::Parity => {
                let data = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
                self.write_rows(stripes, Purpose::Cleaner, (start, data), in_flight).wait()?;
            }
            Redundancy::Copies => {
                let half = to_usize(stripes.segment_bytes / 2);
                let data = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes[..half]))];
                self.write_copies(stripes, Purpose::Cleaner, (start, &data), in_flight).wait()?;
            }
        }
        Ok(())
    }
}
