//! Page-aligned memory for direct I/O, recycled through per-thread and global free lists.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range, RangeInclusive};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::{IO_ALIGN_BYTES, long};

/// Lengths of which each thread keeps free memory: pages, default blocks, and half-filled blocks.
const SPARE_LENGTHS: [usize; 3] = [4096, 8192, 16384];
/// Free buffers of each such length per thread: 1.75 MiB at most.
const SPARES_MAX: usize = 64;
/// Longer buffers, of which each thread keeps a few, because the system allocator maps them again
/// each time, with a fault per page. Capacities are powers of two, to serve shorter reads too. All
/// threads share the longest ([`long`]).
const LONG_BYTES: RangeInclusive<usize> = 64 << 10..=long::PIECE_BYTES;
/// Long free buffers per thread: 1 MiB at most.
const LONG_SPARES_MAX: usize = 2;
const PAGES_PER_PIECE: usize = long::PIECE_BYTES / IO_ALIGN_BYTES;

/// Free pages that no thread keeps, cut from long pieces, because the system allocator takes two
/// pages for each aligned one. Huge pages save TLB misses in the randomly accessed page cache.
/// Never returned to the system.
static FREE_PAGES: Mutex<Vec<FreePage>> = Mutex::new(Vec::new());

/// [`IO_ALIGN_BYTES`] aligned bytes without another reference.
struct FreePage(NonNull<u8>);

// SAFETY: it owns its memory, as `Box<[u8]>` does.
unsafe impl Send for FreePage {}

fn free_pages() -> MutexGuard<'static, Vec<FreePage>> {
    // Not a lock for the simulated scheduler: it is held no longer than an allocation.
    FREE_PAGES.lock()
}

fn take_page() -> NonNull<u8> {
    let mut free = free_pages();
    if free.is_empty() {
        let piece = long::take().unwrap_or_else(|| {
            // A piece of memory may be found even where a whole arena is not.
            let layout = AlignedBuffer::layout(long::PIECE_BYTES);
            // SAFETY: the layout has a size above zero. Zeroed, so all of it is initialised.
            NonNull::new(unsafe { alloc_zeroed(layout) })
                .unwrap_or_else(|| handle_alloc_error(layout))
        });
        for page in (0..PAGES_PER_PIECE).rev() {
            // SAFETY: the piece has that many pages, all initialised.
            free.push(FreePage(unsafe { piece.add(page * IO_ALIGN_BYTES) }));
        }
    }
    free.pop().expect("filled above").0
}

thread_local! {
    static SPARES: RefCell<Spares> =
        const { RefCell::new(Spares { usual: [const { Vec::new() }; 3], long: Vec::new() }) };
}

/// Freed memory kept for reuse. An aligned allocation costs more than most page changes.
struct Spares {
    /// By [`SPARE_LENGTHS`].
    usual: [Vec<NonNull<u8>>; 3],
    /// With capacities, oldest first. Fully initialised.
    long: Vec<(NonNull<u8>, usize)>,
}

impl Spares {
    fn of(&mut self, length: usize) -> Option<&mut Vec<NonNull<u8>>> {
        let index = SPARE_LENGTHS.iter().position(|&spare| spare == length)?;
        self.usual.get_mut(index)
    }

    /// Returns memory of at least `length` bytes, and its capacity.
    fn take(&mut self, length: usize) -> Option<(NonNull<u8>, usize)> {
        if is_kept_by_thread(length) {
            let fitting = self.long.iter().enumerate().filter(|(_, spare)| spare.1 >= length);
            let (index, _) = fitting.min_by_key(|(_, spare)| spare.1)?;
            return Some(self.long.remove(index));
        }
        Some((self.of(length)?.pop()?, length))
    }

    /// Keeps the memory if there is room. Returns whether it did.
    fn keep(&mut self, pointer: NonNull<u8>, length: usize) -> bool {
        if is_kept_by_thread(length) {
            if self.long.len() == LONG_SPARES_MAX {
                let (oldest, length) = self.long.remove(0);
                // SAFETY: it was kept here with this length, and nothing else holds it.
                unsafe { release(oldest, length) }
            }
            self.long.push((pointer, length));
            return true;
        }
        let Some(spares) = self.of(length).filter(|spares| spares.len() < SPARES_MAX) else {
            return false;
        };
        spares.push(pointer);
        true
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        let usual = self.usual.iter_mut().zip(SPARE_LENGTHS);
        let usual =
            usual.flat_map(|(spares, length)| spares.drain(..).map(move |one| (one, length)));
        for (pointer, length) in usual.chain(self.long.drain(..)) {
            // SAFETY: `keep` put it here with this length, and nothing else holds it.
            unsafe { release(pointer, length) }
        }
    }
}

/// Whether memory of this length is long, but too short to be shared by all threads.
fn is_kept_by_thread(length: usize) -> bool {
    LONG_BYTES.contains(&length) && AlignedBuffer::capacity_for(length) < long::PIECE_BYTES
}

/// Takes spare memory of at least `length` bytes, with arbitrary contents, and its capacity.
fn take_spare(length: usize) -> Option<(NonNull<u8>, usize)> {
    if AlignedBuffer::capacity_for(length) == long::PIECE_BYTES {
        let piece = long::take();
        let piece = piece.unwrap_or_else(|| handle_alloc_error(AlignedBuffer::layout(length)));
        return Some((piece, long::PIECE_BYTES));
    }
    // A thread that is ending has no spares.
    let spare = SPARES.try_with(|spares| spares.borrow_mut().take(length)).ok().flatten();
    spare.or_else(|| (length == IO_ALIGN_BYTES).then(|| (take_page(), length)))
}

/// Returns memory to its free list or to the allocator.
///
/// # Safety
///
/// The memory was allocated with this length, and nothing else holds it.
unsafe fn release(pointer: NonNull<u8>, length: usize) {
    match length {
        IO_ALIGN_BYTES => free_pages().push(FreePage(pointer)),
        long::PIECE_BYTES => long::give_back(pointer),
        // SAFETY: memory of any other length was allocated with this layout.
        _ => unsafe { dealloc(pointer.as_ptr(), AlignedBuffer::layout(length)) },
    }
}

/// Memory of fixed length, aligned to [`IO_ALIGN_BYTES`].
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    length: usize,
    /// Allocated length, needed for the release. At least `length`.
    capacity: usize,
}

// SAFETY: the buffer owns its memory, as `Box<[u8]>` does. Nothing else holds the pointer.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is only by `&[u8]`, as for `Box<[u8]>`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Returns `length_bytes` zero bytes.
    #[must_use]
    pub fn zeroed(length_bytes: usize) -> AlignedBuffer {
        if let Some((pointer, capacity)) = take_spare(length_bytes) {
            // SAFETY: spare memory has at least this length, and nothing else holds it.
            unsafe { pointer.as_ptr().write_bytes(0, length_bytes) };
            return AlignedBuffer { pointer, length: length_bytes, capacity };
        }
        Self::new_zeroed(length_bytes)
    }

    /// Returns `length_bytes` with arbitrary contents, as the target of a read.
    #[must_use]
    pub fn for_reading(length_bytes: usize) -> AlignedBuffer {
        match take_spare(length_bytes) {
            Some((pointer, capacity)) => AlignedBuffer { pointer, length: length_bytes, capacity },
            None => Self::new_zeroed(length_bytes),
        }
    }

    fn new_zeroed(length_bytes: usize) -> AlignedBuffer {
        let capacity = Self::capacity_for(length_bytes);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size above zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        let pointer = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout));
        AlignedBuffer { pointer, length: length_bytes, capacity }
    }

    /// Copies `bytes`, of any alignment.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> AlignedBuffer {
        AlignedBuffer::padded(bytes, bytes.len())
    }

    /// Copies `bytes`, of any alignment, and pads with zeros to `length`.
    ///
    /// # Panics
    ///
    /// If `bytes` exceeds `length`.
    #[must_use]
    pub fn padded(bytes: &[u8], length: usize) -> AlignedBuffer {
        AlignedBuffer::of_parts([bytes], length)
    }

    /// Concatenates `parts` and pads with zeros to `length`.
    ///
    /// # Panics
    ///
    /// If the parts exceed `length`.
    #[must_use]
    pub fn of_parts<const N: usize>(parts: [&[u8]; N], length: usize) -> AlignedBuffer {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let zeros = length.checked_sub(bytes).expect("the bytes fit");
        let (pointer, capacity) = take_spare(length).unwrap_or_else(|| {
            let capacity = Self::capacity_for(length);
            let layout = Self::layout(capacity);
            // The bytes after `length` are initialised too, for later users of the memory.
            // SAFETY: the layout has a size above zero.
            let pointer =
                unsafe { if capacity > length { alloc_zeroed(layout) } else { alloc(layout) } };
            (NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout)), capacity)
        });
        let mut at = 0;
        for part in parts {
            // SAFETY: the memory has `length` bytes, enough for all parts, and does not overlap the
            // caller's.
            unsafe { part.as_ptr().copy_to_nonoverlapping(pointer.add(at).as_ptr(), part.len()) };
            at += part.len();
        }
        // SAFETY: `zeros` bytes remain after the parts. All of the memory is initialised then.
        unsafe { pointer.add(at).as_ptr().write_bytes(0, zeros) };
        AlignedBuffer { pointer, length, capacity }
    }

    fn capacity_for(length_bytes: usize) -> usize {
        if LONG_BYTES.contains(&length_bytes) {
            length_bytes.next_power_of_two()
        } else {
            length_bytes
        }
    }

    fn layout(length_bytes: usize) -> Layout {
        Layout::from_size_align(length_bytes.max(1), IO_ALIGN_BYTES)
            .expect("the alignment is a power of two and no request is near isize::MAX")
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        let keep = |spares: &RefCell<Spares>| spares.borrow_mut().keep(self.pointer, self.capacity);
        // A thread that is ending keeps nothing.
        if !SPARES.try_with(keep).unwrap_or(false) {
            // SAFETY: the buffer was allocated with this capacity, and is dropped once.
            unsafe { release(self.pointer, self.capacity) }
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `length` bytes were allocated and initialised.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `length` bytes were allocated and initialised, and `&mut self` is the only
        // access.
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

/// A shared, immutable range of an [`AlignedBuffer`].
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
    /// If the range is outside the buffer.
    #[must_use]
    pub fn new(buffer: Arc<AlignedBuffer>, range: Range<usize>) -> SharedBytes {
        assert!(range.start <= range.end);
        assert!(range.end <= buffer.len());
        SharedBytes { buffer, range }
    }

    /// Returns `range` of these bytes. Keeps the whole buffer alive.
    ///
    /// # Panics
    ///
    /// If the range is outside these bytes.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> SharedBytes {
        assert!(range.end <= self.range.len());
        let start = self.range.start;
        SharedBytes::new(Arc::clone(&self.buffer), start + range.start..start + range.end)
    }

    /// Extends the range by `next`, if that follows in the same buffer. Returns whether it did.
    pub fn join(&mut self, next: &SharedBytes) -> bool {
        let is_behind =
            Arc::ptr_eq(&self.buffer, &next.buffer) && self.range.end == next.range.start;
        if is_behind {
            self.range.end = next.range.end;
        }
        is_behind
    }

    /// Whether the bytes are aligned for direct I/O.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        self.range.start.is_multiple_of(IO_ALIGN_BYTES)
    }

    /// Returns the bytes for a change, in place if the buffer is unshared and entirely covered,
    /// else in a copy.
    pub fn make_mut(&mut self) -> &mut [u8] {
        let is_alone =
            self.range == (0..self.buffer.len()) && Arc::get_mut(&mut self.buffer).is_some();
        if !is_alone {
            *self = SharedBytes::from(AlignedBuffer::copy_of(self));
        }
        Arc::get_mut(&mut self.buffer).expect("nobody else holds it")
    }

    /// Returns the length of the whole buffer.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns a weak reference, to observe when the buffer is released.
    #[must_use]
    pub fn watch(&self) -> Weak<AlignedBuffer> {
        Arc::downgrade(&self.buffer)
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

    /// Goal: old contents never appear in another buffer.
    #[test]
    fn a_new_buffer_is_zero_whatever_was_there_before() {
        for pages in [1, 2] {
            let dirty: Vec<AlignedBuffer> = (0..3 * PAGES_PER_PIECE)
                .map(|_| AlignedBuffer::copy_of(&vec![0xa5; pages * IO_ALIGN_BYTES]))
                .collect();
            assert!(dirty.iter().all(|buffer| buffer.as_ptr().addr() % IO_ALIGN_BYTES == 0));
            drop(dirty);
            for _ in 0..2 * PAGES_PER_PIECE {
                let new = AlignedBuffer::zeroed(pages * IO_ALIGN_BYTES);
                assert!(new.iter().all(|&byte| byte == 0), "{pages} pages");
            }
            drop(AlignedBuffer::copy_of(&vec![0xa5; pages * IO_ALIGN_BYTES]));
            let padded = AlignedBuffer::padded(b"data", pages * IO_ALIGN_BYTES);
            assert_eq!(padded[..4], *b"data");
            assert!(padded[4..].iter().all(|&byte| byte == 0), "{pages} pages");
        }
    }

    /// Goal: pages in use share no byte. Method: fills several pieces of pages, each page with its
    /// number.
    #[test]
    fn pages_that_are_in_use_share_no_byte() {
        let numbers = 0..3 * PAGES_PER_PIECE;
        let page_of =
            |number: usize| number.to_le_bytes().repeat(IO_ALIGN_BYTES / size_of::<usize>());
        let pages: Vec<AlignedBuffer> =
            numbers.clone().map(|number| AlignedBuffer::copy_of(&page_of(number))).collect();
        for (number, page) in numbers.zip(&pages) {
            assert!(**page == page_of(number)[..], "page {number} was written by another");
        }
    }

    #[test]
    fn long_buffers_are_used_again_and_few_are_kept() {
        let lengths = [64 << 10, 128 << 10, 512 << 10];
        drop(lengths.map(|length| AlignedBuffer::copy_of(&vec![0xa5; length])));
        let kept: Vec<usize> =
            SPARES.with(|spares| spares.borrow().long.iter().map(|one| one.1).collect());
        assert_eq!(kept, lengths[1..].to_vec(), "the oldest goes");
        let again = AlignedBuffer::zeroed(512 << 10);
        assert!(again.iter().all(|&byte| byte == 0));
        assert_eq!(SPARES.with(|spares| spares.borrow().long.len()), 1);
        drop(AlignedBuffer::zeroed((1 << 20) + IO_ALIGN_BYTES));
        assert_eq!(SPARES.with(|spares| spares.borrow().long.len()), 1, "too long to keep");
        drop(again);
        let shorter = AlignedBuffer::for_reading(300 << 10);
        assert_eq!((shorter.len(), shorter.capacity), (300 << 10, 512 << 10), "what fits serves");
        assert_eq!(SPARES.with(|spares| spares.borrow().long.len()), 1, "and nothing new is made");
        drop(shorter);
        assert_eq!(SPARES.with(|spares| spares.borrow().long.len()), 2, "it is kept again");
    }
}
