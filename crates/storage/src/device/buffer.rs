//! Memory that a device may read and write directly.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use super::IO_ALIGN_BYTES;

/// Zeroed memory aligned to [`IO_ALIGN_BYTES`], of a fixed length.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the buffer owns its memory, as `Box<[u8]>` does; nothing else holds the pointer.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is only by `&[u8]`, as for `Box<[u8]>`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Returns `length_bytes` zero bytes.
    #[must_use]
    pub fn zeroed(length_bytes: usize) -> AlignedBuffer {
        let layout = Self::layout(length_bytes);
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBuffer { pointer, length: length_bytes }
    }

    /// Returns a copy of `bytes`, which need not be aligned.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn layout(length_bytes: usize) -> Layout {
        Layout::from_size_align(length_bytes.max(1), IO_ALIGN_BYTES)
            .expect("the alignment is a power of two and no request is near isize::MAX")
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, and freed once.
        unsafe { dealloc(self.pointer.as_ptr(), Self::layout(self.length)) }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes were allocated and initialised to zero.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl Clone for AlignedBuffer {
    fn clone(&self) -> AlignedBuffer {
        AlignedBuffer::copy_of(self)
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.length)
    }
}

/// A range of an [`AlignedBuffer`] that several may hold and none may change.
#[derive(Clone)]
pub struct SharedBytes {
    buffer: Arc<AlignedBuffer>,
    range: Range<usize>,
}

impl SharedBytes {
    /// Returns `range` of `buffer`.
    ///
    /// # Panics
    ///
    /// If the range lies outside the buffer.
    #[must_use]
    pub fn new(buffer: Arc<AlignedBuffer>, range: Range<usize>) -> SharedBytes {
        assert!(range.start <= range.end);
        assert!(range.end <= buffer.len());
        SharedBytes { buffer, range }
    }
}

impl From<AlignedBuffer> for SharedBytes {
    fn from(buffer: AlignedBuffer) -> SharedBytes {
        let range = 0..buffer.len();
        SharedBytes { buffer: Arc::new(buffer), range }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}
