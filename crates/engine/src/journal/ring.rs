//! Reader of the log's ring for a recovery. Reads large pieces, once each while the log is
//! followed, and falls back to single pages where a piece cannot be read, so that one bad sector
//! does not hide its neighbours.
//!
//! # Invariants
//!
//! - LU1: No byte of an unreadable page is returned: a read that touches the page fails, and reads
//!   beside it succeed.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use format::geometry::JOURNAL_HEADS;
use format::page::PAGE_BYTES;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose};
use storage::volume::Volume;

use super::ring_bytes;
use crate::convert::{index_wide, wide};

/// Cached pieces: more than the largest chunk can touch.
const PIECES_MAX: usize = 8;

pub(super) struct LogRing<'a> {
    volume: &'a Volume,
    piece_bytes: u64,
    bytes: u64,
    offset: u64,
    pieces: BTreeMap<u64, RingPiece>,
}

struct RingPiece {
    bytes: AlignedBuffer,
    /// Unreadable pages by their offset in the piece, each with its error.
    unread: BTreeMap<usize, DeviceError>,
}

impl<'a> LogRing<'a> {
    pub(super) fn new(volume: &'a Volume, piece_bytes: u64) -> LogRing<'a> {
        let geometry = volume.geometry();
        LogRing {
            volume,
            piece_bytes,
            bytes: ring_bytes(geometry),
            offset: geometry.journal_offset + JOURNAL_HEADS * wide(PAGE_BYTES),
            pieces: BTreeMap::new(),
        }
    }

    /// Returns the bytes from `offset`, which is inside the ring, to the end of the piece or to the
    /// next unreadable page.
    ///
    /// # Errors
    ///
    /// The device's error for the page at `offset` (LU1).
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
                entry.insert(RingPiece::read(self.volume, self.offset + start, length)?)
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

    /// Copies `length` bytes at ring offset `offset`, cut off at the end of the ring.
    ///
    /// # Errors
    ///
    /// The device's error if one of the pages cannot be read.
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

impl RingPiece {
    fn read(volume: &Volume, offset: u64, length: usize) -> Result<RingPiece, DeviceError> {
        match volume.read_fixed(IoPurpose::Journal, offset, length) {
            Ok(bytes) => return Ok(RingPiece { bytes, unread: BTreeMap::new() }),
            Err(DeviceError::Io { .. }) => {}
            // The device is gone or does not answer, so reading single pages would fail too.
            Err(error) => return Err(error),
        }
        let (mut bytes, mut unread) = (AlignedBuffer::zeroed(length), BTreeMap::new());
        for (number, page) in bytes.as_chunks_mut::<PAGE_BYTES>().0.iter_mut().enumerate() {
            let at = number * PAGE_BYTES;
            match volume.read_fixed(IoPurpose::Journal, offset + wide(at), PAGE_BYTES) {
                Ok(found) => page.copy_from_slice(&found),
                Err(error) => _ = unread.insert(at, error),
            }
        }
        Ok(RingPiece { bytes, unread })
    }
}
