//! Memory that a device may read and write directly.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::IO_ALIGN_BYTES;

/// Pages that are taken from the allocator at a time.
const PAGES_PER_CHUNK: usize = 64;

/// Memory of dropped buffers of one page, for the next ones: the common allocator takes two pages
/// for each that is aligned. It is never given back, so it is what all buffers took at most.
static FREE_PAGES: Mutex<Vec<FreePage>> = Mutex::new(Vec::new());

/// [`IO_ALIGN_BYTES`] bytes, aligned so, that nobody else points to.
struct FreePage(NonNull<u8>);

// SAFETY: it owns its memory, as `Box<[u8]>` does.
unsafe impl Send for FreePage {}

fn free_pages() -> MutexGuard<'static, Vec<FreePage>> {
    // A list of pages is whole at every moment.
    FREE_PAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns one page of any content.
fn take_page() -> NonNull<u8> {
    let mut free = free_pages();
    if free.is_empty() {
        let layout = AlignedBuffer::layout(PAGES_PER_CHUNK * IO_ALIGN_BYTES);
        // SAFETY: the layout has a size above zero.
        let chunk = unsafe { alloc_zeroed(layout) };
        let chunk = NonNull::new(chunk).unwrap_or_else(|| handle_alloc_error(layout));
        for page in 0..PAGES_PER_CHUNK {
            // SAFETY: the chunk has so many pages.
            free.push(FreePage(unsafe { chunk.add(page * IO_ALIGN_BYTES) }));
        }
    }
    free.pop().expect("filled above").0
}

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
        if length_bytes == IO_ALIGN_BYTES {
            let pointer = take_page();
            // SAFETY: the page has so many bytes, and is ours alone.
            unsafe { pointer.write_bytes(0, IO_ALIGN_BYTES) };
            return AlignedBuffer { pointer, length: length_bytes };
        }
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
        if self.length == IO_ALIGN_BYTES {
            free_pages().push(FreePage(self.pointer));
            return;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a buffer held before is never in the next one, of one page or of more.
    #[test]
    fn a_new_buffer_is_zero_whatever_was_there_before() {
        for pages in [1, 2] {
            let dirty: Vec<AlignedBuffer> = (0..3 * PAGES_PER_CHUNK)
                .map(|_| AlignedBuffer::copy_of(&vec![0xa5; pages * IO_ALIGN_BYTES]))
                .collect();
            assert!(dirty.iter().all(|buffer| buffer.as_ptr().addr() % IO_ALIGN_BYTES == 0));
            drop(dirty);
            for _ in 0..2 * PAGES_PER_CHUNK {
                let new = AlignedBuffer::zeroed(pages * IO_ALIGN_BYTES);
                assert!(new.iter().all(|&byte| byte == 0), "{pages} pages");
            }
        }
    }
}
