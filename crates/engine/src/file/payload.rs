//! The data of a write: borrowed bytes, or a buffer to be kept.
//!
//! A long write arrives in its own buffer, of which whole blocks are kept as slices, and partial
//! blocks copied. A slice keeps the whole buffer in memory, so there are two bounds:
//!
//! - Only a buffer that the write fills to seven eighths is kept.
//! - Kept buffers have [`KEPT_BYTES_MAX`] in total. A buffer counts until its last slice is
//!   dropped: a block may wait in a slowly filling segment long after its neighbours are on disk.
//!
//! A kept buffer never changes (SG1): slices are read-only, and a rewrite of a filling block copies
//! it first ([`SharedBytes::make_mut`]).

use std::ops::{Deref, Range};
use std::sync::Weak;

use storage::device::{AlignedBuffer, SharedBytes};

use crate::sync::Mutex;

/// Most bytes of kept buffers: for the data writes in flight
/// ([`crate::segment::WRITES_IN_FLIGHT_MAX`], a segment each), and as many for filling and unmapped
/// blocks.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Fraction of a buffer that a write must fill for the buffer to be kept.
const FILLED: (usize, usize) = (7, 8);

#[derive(Debug)]
pub(crate) enum WritePayload<'d> {
    Lent(&'d [u8]),
    /// Bytes of which whole blocks are kept in place.
    Kept(SharedBytes),
}

impl WritePayload<'_> {
    pub(super) fn part(&self, range: Range<usize>) -> WritePayload<'_> {
        match self {
            WritePayload::Lent(bytes) => WritePayload::Lent(&bytes[range]),
            WritePayload::Kept(bytes) => WritePayload::Kept(bytes.slice(range)),
        }
    }

    /// Returns a block of `length` bytes, padded with zeros.
    ///
    /// # Panics
    ///
    /// If the content is longer.
    pub(super) fn block(&self, length: usize) -> SharedBytes {
        match self {
            WritePayload::Kept(bytes) if bytes.len() == length && bytes.is_aligned() => {
                bytes.clone()
            }
            WritePayload::Kept(_) | WritePayload::Lent(_) => {
                AlignedBuffer::padded(self, length).into()
            }
        }
    }
}

impl Deref for WritePayload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            WritePayload::Lent(bytes) => bytes,
            WritePayload::Kept(bytes) => bytes,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct RetainedBuffers(Mutex<Vec<(Weak<AlignedBuffer>, usize)>>);

impl RetainedBuffers {
    /// Returns `data` to be kept, if within the bounds.
    pub(super) fn admit<'d>(&self, data: &'d SharedBytes) -> WritePayload<'d> {
        let buffer_bytes = data.buffer_bytes();
        if data.len() / FILLED.0 < buffer_bytes / FILLED.1 {
            return WritePayload::Lent(data);
        }
        let mut kept = self.0.lock();
        kept.retain(|(buffer, _)| buffer.strong_count() > 0);
        let all: usize = kept.iter().map(|(_, bytes)| bytes).sum();
        if all + buffer_bytes > KEPT_BYTES_MAX {
            return WritePayload::Lent(data);
        }
        kept.push((data.watch(), buffer_bytes));
        WritePayload::Kept(data.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: usize = 16 << 10;

    fn message(length: usize, buffer_bytes: usize) -> SharedBytes {
        let buffer = AlignedBuffer::zeroed(buffer_bytes);
        SharedBytes::from(buffer).slice(0..length)
    }

    fn is_kept(payload: &WritePayload<'_>) -> bool {
        matches!(payload, WritePayload::Kept(_))
    }

    #[test]
    fn whole_aligned_blocks_are_kept_where_they_are_and_others_copied() {
        let mut buffer = AlignedBuffer::zeroed(4 * BLOCK_BYTES);
        buffer.iter_mut().zip(1..=u8::MAX).for_each(|(byte, value)| *byte = value);
        let data = SharedBytes::from(buffer);
        let payload = WritePayload::Kept(data.clone());
        let is_in_place = |part: &SharedBytes, at: usize| part.as_ptr() == data[at..].as_ptr();
        let second = payload.part(BLOCK_BYTES..2 * BLOCK_BYTES).block(BLOCK_BYTES);
        assert!(is_in_place(&second, BLOCK_BYTES));
        let shifted = payload.part(100..100 + BLOCK_BYTES).block(BLOCK_BYTES);
        assert!(shifted.is_aligned() && shifted[..155] == data[100..255], "a device can take it");
        let short = payload.part(4096..4096 + 100).block(BLOCK_BYTES);
        assert!(short[100..].iter().all(|&byte| byte == 0) && short.len() == BLOCK_BYTES);
        let lent = WritePayload::Lent(&data).part(0..BLOCK_BYTES).block(BLOCK_BYTES);
        assert!(!is_in_place(&lent, 0) && lent[..] == data[..BLOCK_BYTES]);
    }

    #[test]
    fn a_buffer_that_is_not_nearly_full_is_copied() {
        let (buffers, room) = (RetainedBuffers::default(), 1 << 20);
        for (length, expected) in [(room, true), (room / 8 * 7, true), (room / 8 * 7 - 8, false)] {
            assert_eq!(is_kept(&buffers.admit(&message(length, room))), expected, "{length}");
        }
    }

    /// Method: one block of each of many messages is held; then one is dropped.
    #[test]
    fn kept_buffers_have_a_bound_until_their_last_slice_is_gone() {
        let buffers = RetainedBuffers::default();
        let mut held = Vec::new();
        for _ in 0..KEPT_BYTES_MAX >> 20 {
            let data = message(1 << 20, 1 << 20);
            let payload = buffers.admit(&data);
            assert!(is_kept(&payload));
            held.push(payload.part(0..BLOCK_BYTES).block(BLOCK_BYTES));
        }
        assert!(!is_kept(&buffers.admit(&message(1 << 20, 1 << 20))), "past the bound");
        held.pop();
        assert!(is_kept(&buffers.admit(&message(1 << 20, 1 << 20))), "room again");
        assert!(is_kept(&buffers.admit(&message(1 << 20, 1 << 20))), "nobody kept the last one");
    }
}
