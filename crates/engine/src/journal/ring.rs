//! The ring of the log as a recovery reads it: in large pieces, each once while the log is
//! followed; page by page where a piece cannot be read, for one bad sector must not stand for its
//! neighbours.
//!
//! # Invariants
//!
//! - LU1: Of a page that could not be read no byte is given: who asks for it is told, and who does
//!   not ask need not know.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use format::geometry::JOURNAL_HEADS;
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose};
use storage::volume::Volume;

use super::ring_bytes;
use crate::convert::{index_wide, wide};

/// Pieces kept in memory: more than the largest chunk can touch.
const PIECES_MAX: usize = 8;

/// See the module's header.
pub(super) struct Ring<'a> {
    volume: &'a Volume,
    piece_bytes: u64,
    bytes: u64,
    /// Where it begins on the device.
    offset: u64,
    /// Pieces read so far, by number.
    pieces: BTreeMap<u64, Piece>,
}

struct Piece {
    bytes: AlignedBuffer,
    /// Where pages begin that could not be read, and what was said.
    unread: BTreeMap<usize, DeviceError>,
}

impl<'a> Ring<'a> {
    /// Returns the ring of a pool, of which nothing was read.
    pub(super) fn new(volume: &'a Volume, piece_bytes: u64) -> Ring<'a> {
        let geometry = volume.geometry();
        Ring {
            volume,
            piece_bytes,
            bytes: ring_bytes(geometry),
            offset: geometry.journal_offset + JOURNAL_HEADS * wide(PAGE_BYTES),
            pieces: BTreeMap::new(),
        }
    }

    /// Returns where the piece ends that the byte at `offset` is in.
    pub(super) fn piece_end(&self, offset: u64) -> u64 {
        (offset / self.piece_bytes + 1) * self.piece_bytes
    }

    /// Returns the ring from `offset`, which is below its end, to the end of its piece, or to the
    /// next page that could not be read.
    ///
    /// # Errors
    ///
    /// What the device said of the page that has the byte at `offset` (LU1).
    pub(super) fn from(&mut self, offset: u64) -> Result<&[u8], DeviceError> {
        let number = offset / self.piece_bytes;
        let start = number * self.piece_bytes;
        if self.pieces.len() > PIECES_MAX {
            self.pieces.clear();
        }
        let length = index_wide(self.piece_bytes.min(self.bytes - start));
        let piece = match self.pieces.entry(number) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(Piece::read(self.volume, self.offset + start, length)?)
            }
        };
        let at = index_wide(offset - start);
        let page = at / PAGE_BYTES * PAGE_BYTES;
        match piece.unread.range(page..).next() {
            Some((&bad, error)) if bad == page => Err(error.clone()),
            Some((&bad, _)) => Ok(&piece.bytes[at..bad]),
            None => Ok(&piece.bytes[at..]),
        }
    }

    /// Copies `length` bytes at ring offset `offset`, as far as the ring goes.
    ///
    /// # Errors
    ///
    /// What the device said of one of them.
    pub(super) fn bytes_at(
        &mut self,
        offset: u64,
        length: u64,
    ) -> Result<AlignedBuffer, DeviceError> {
        let end = (offset + length).min(self.bytes);
        let mut bytes = AlignedBuffer::zeroed(index_wide(end - offset));
        let mut at = offset;
        while at < end {
            let piece = self.from(at)?;
            let count = piece.len().min(index_wide(end - at));
            let to = index_wide(at - offset);
            bytes[to..to + count].copy_from_slice(&piece[..count]);
            at += wide(count);
        }
        Ok(bytes)
    }
}

impl Piece {
    fn read(volume: &Volume, offset: u64, length: usize) -> Result<Piece, DeviceError> {
        match volume.read_fixed(Purpose::Journal, offset, length) {
            Ok(bytes) => return Ok(Piece { bytes, unread: BTreeMap::new() }),
            Err(DeviceError::Io { .. }) if !planted::is(Planted::RingReadWhole) => {}
            // It does not answer, or is gone: no page is another.
            Err(error) => return Err(error),
        }
        let (mut bytes, mut unread) = (AlignedBuffer::zeroed(length), BTreeMap::new());
        for (number, page) in bytes.as_chunks_mut::<PAGE_BYTES>().0.iter_mut().enumerate() {
            let at = number * PAGE_BYTES;
            match volume.read_fixed(Purpose::Journal, offset + wide(at), PAGE_BYTES) {
                Ok(found) => page.copy_from_slice(&found),
                Err(error) => _ = unread.insert(at, error),
            }
        }
        Ok(Piece { bytes, unread })
    }
}
