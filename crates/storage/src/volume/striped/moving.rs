//! Moving a segment to stripes of another width.

use format::page::PAGE_BYTES;
use format::reshape::Lay;
use format::stripes::Stripes;

use super::Striped;
use crate::convert::to_usize;
use crate::device::{AlignedBuffer, DeviceError, Purpose, Redundancy, SharedBytes};

impl Striped {
    /// Returns how segments lie now.
    pub(in crate::volume) fn lay_now(&self) -> Lay {
        self.lay()
    }

    /// Reads the segment at byte `start`, which is kept as `kind` says and nobody writes to. Of
    /// what no member gives there are zeros: no block of it verified before.
    pub(in crate::volume) fn read_to_move(
        &self,
        start: u64,
        kind: Redundancy,
    ) -> Result<AlignedBuffer, DeviceError> {
        let piece = start..start + self.stripes.segment_bytes;
        let view = self.set.view();
        let mut compared = match kind {
            Redundancy::Parity => self.compare_rows(&view, piece)?,
            Redundancy::Copies => return Ok(self.compare_pages(&view, piece)?.bytes),
        };
        for offset in compared.differing {
            let buffer = AlignedBuffer::for_reading(PAGE_BYTES);
            // As its member has it, or else as the rest of its row says.
            let Ok(done) = self.submit_read(Purpose::Cleaner, offset, buffer).wait() else {
                continue;
            };
            let at = to_usize(offset - start);
            if let Some(page) = done.buffer {
                compared.bytes[at..at + PAGE_BYTES].copy_from_slice(&page);
            }
        }
        Ok(compared.bytes)
    }

    /// Reads the segment at byte `start`, which keeps another, whoever is away.
    pub(in crate::volume) fn read_kept(&self, start: u64) -> Result<AlignedBuffer, DeviceError> {
        let buffer = AlignedBuffer::for_reading(to_usize(self.stripes.segment_bytes));
        let done = self.submit_read(Purpose::Cleaner, start, buffer).wait()?;
        Ok(done.buffer.expect("a read returns its buffer"))
    }

    /// Writes the bytes of a segment to where `stripes` say, not yet durable.
    pub(in crate::volume) fn write_moved(
        &self,
        stripes: &Stripes,
        start: u64,
        kind: Redundancy,
        bytes: &AlignedBuffer,
    ) -> Result<(), DeviceError> {
        match kind {
            Redundancy::Parity => {
                let data = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
                self.write_rows(stripes, Purpose::Cleaner, (start, data), None).wait()?;
            }
            Redundancy::Copies => {
                // Pages lie in the first half.
                let half = bytes.len() / 2;
                let data = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes[..half]))];
                self.write_copies(stripes, Purpose::Cleaner, (start, &data), None).wait()?;
            }
        }
        Ok(())
    }
}
