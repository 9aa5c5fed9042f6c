//! What a write brings: bytes that are lent for the call, or memory that blocks may keep.
//!
//! A long write comes in a buffer of its own. Whole blocks of it go to their segment without a
//! copy, as slices of that buffer; what covers a part of a block is copied. Whoever keeps a slice
//! keeps the whole buffer, so the memory that this takes is bounded twice:
//!
//! - Only a buffer that the write fills to seven eighths is kept.
//! - All that are kept at a time have [`KEPT_BYTES_MAX`] together; what comes beyond is copied. A
//!   buffer counts until the last slice of it is gone, however little that slice is: a block may
//!   wait in a segment that fills slowly while its neighbours are long on the disk.
//!
//! Nobody changes the bytes of a buffer that is kept (SG1): a slice is read-only, and a rewrite of
//! a block that still fills copies it first ([`SharedBytes::make_mut`]).

use std::ops::{Deref, Range};
use std::sync::Weak;

use storage::device::{AlignedBuffer, SharedBytes};

use crate::sync::Mutex;

/// Bytes of all buffers of writes that are kept: those of the data writes that may be in flight
/// ([`crate::segment::WRITES_IN_FLIGHT_MAX`], a segment each), and as many again for what fills and
/// what waits to be installed.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// Part of a buffer that a write must fill for it to be kept.
const FILLED: (usize, usize) = (7, 8);

/// What a write brings.
#[derive(Debug)]
pub(crate) enum Payload<'d> {
    /// Bytes to be copied.
    Lent(&'d [u8]),
    /// Bytes of which whole blocks are kept where they are.
    Kept(SharedBytes),
}

impl Payload<'_> {
    /// Returns `range` of it.
    pub(super) fn part(&self, range: Range<usize>) -> Payload<'_> {
        match self {
            Payload::Lent(bytes) => Payload::Lent(&bytes[range]),
            Payload::Kept(bytes) => Payload::Kept(bytes.slice(range)),
        }
    }

    /// Returns the content of a block of `length` bytes, with zeros behind what this has.
    ///
    /// # Panics
    ///
    /// If this has more.
    pub(super) fn block(&self, length: usize) -> SharedBytes {
        match self {
            Payload::Kept(bytes) if bytes.len() == length && bytes.is_aligned() => bytes.clone(),
            Payload::Kept(_) | Payload::Lent(_) => AlignedBuffer::padded(self, length).into(),
        }
    }
}

impl Deref for Payload<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Payload::Lent(bytes) => bytes,
            Payload::Kept(bytes) => bytes,
        }
    }
}

/// The buffers of writes that somebody still holds.
#[derive(Debug, Default)]
pub(super) struct KeptBuffers(Mutex<Vec<(Weak<AlignedBuffer>, usize)>>);

impl KeptBuffers {
    /// Returns `data` to be kept if its buffer is full enough and there is room for it.
    pub(super) fn admit<'d>(&self, data: &'d SharedBytes) -> Payload<'d> {
        let buffer_bytes = data.buffer_bytes();
        if data.len() / FILLED.0 < buffer_bytes / FILLED.1 {
            return Payload::Lent(data);
        }
        let mut kept = self.0.lock();
        kept.retain(|(buffer, _)| buffer.strong_count() > 0);
        let all: usize = kept.iter().map(|(_, bytes)| bytes).sum();
        if all + buffer_bytes > KEPT_BYTES_MAX {
            return Payload::Lent(data);
        }
        kept.push((data.watch(), buffer_bytes));
        Payload::Kept(data.clone())
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

    fn is_kept(payload: &Payload<'_>) -> bool {
        matches!(payload, Payload::Kept(_))
    }

    #[test]
    fn whole_aligned_blocks_are_kept_where_they_are_and_others_copied() {
        let mut buffer = AlignedBuffer::zeroed(4 * BLOCK_BYTES);
        buffer.iter_mut().zip(1..=u8::MAX).for_each(|(byte, value)| *byte = value);
        let data = SharedBytes::from(buffer);
        let payload = Payload::Kept(data.clone());
        let is_in_place = |part: &SharedBytes, at: usize| part.as_ptr() == data[at..].as_ptr();
        let second = payload.part(BLOCK_BYTES..2 * BLOCK_BYTES).block(BLOCK_BYTES);
        assert!(is_in_place(&second, BLOCK_BYTES));
        let shifted = payload.part(100..100 + BLOCK_BYTES).block(BLOCK_BYTES);
        assert!(shifted.is_aligned() && shifted[..155] == data[100..255], "a device can take it");
        let short = payload.part(4096..4096 + 100).block(BLOCK_BYTES);
        assert!(short[100..].iter().all(|&byte| byte == 0) && short.len() == BLOCK_BYTES);
        let lent = Payload::Lent(&data).part(0..BLOCK_BYTES).block(BLOCK_BYTES);
        assert!(!is_in_place(&lent, 0) && lent[..] == data[..BLOCK_BYTES]);
    }

    #[test]
    fn a_buffer_that_is_not_nearly_full_is_copied() {
        let (buffers, room) = (KeptBuffers::default(), 1 << 20);
        for (length, expected) in [(room, true), (room / 8 * 7, true), (room / 8 * 7 - 8, false)] {
            assert_eq!(is_kept(&buffers.admit(&message(length, room))), expected, "{length}");
        }
    }

    /// Goal: slices keep no more than the bound, however little of each buffer they are. Method:
    /// one block of each of many messages is held; then one is let go.
    #[test]
    fn kept_buffers_have_a_bound_until_their_last_slice_is_gone() {
        let buffers = KeptBuffers::default();
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
