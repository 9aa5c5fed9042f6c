//! Memory that a device may read and write directly.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut, Range, RangeInclusive};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use super::{IO_ALIGN_BYTES, long};

/// Lengths of which each thread keeps spare memory: pages, and blocks of the default size and those
/// that are filled to a half.
const SPARE_LENGTHS: [usize; 3] = [4096, 8192, 16384];
/// Spare pieces of each length that a thread keeps: 1.75 MiB at most.
const SPARES_MAX: usize = 64;
/// Long pieces of which each thread keeps the last few as well, whatever their length: the system
/// allocator maps them anew each time, so that every page of them costs a fault. They are made in
/// powers of two, and serve what is shorter too: reads are of any length. The longest are kept for
/// all threads together ([`long`]).
const LONG_BYTES: RangeInclusive<usize> = 64 << 10..=long::PIECE_BYTES;
/// Long pieces that a thread keeps: 1 MiB at most.
const LONG_SPARES_MAX: usize = 2;
/// Pages that a long piece is cut into.
const PAGES_PER_PIECE: usize = long::PIECE_BYTES / IO_ALIGN_BYTES;

/// Pages that no thread keeps: the system allocator takes two pages for each that is aligned, so
/// long pieces are cut into them. So they lie on huge pages: a cache of many is looked through in
/// no order, and each small page that it lies on would be looked up by the processor as well. They
/// are never given back: so many were in use at some time.
static FREE_PAGES: Mutex<Vec<FreePage>> = Mutex::new(Vec::new());

/// [`IO_ALIGN_BYTES`] bytes, aligned so, that nobody else points to.
struct FreePage(NonNull<u8>);

// SAFETY: it owns its memory, as `Box<[u8]>` does.
unsafe impl Send for FreePage {}

fn free_pages() -> MutexGuard<'static, Vec<FreePage>> {
    // Not a lock that a simulated run schedules: it is held for no longer than an allocation.
    FREE_PAGES.lock()
}

/// Returns one page, with whatever is in it.
fn take_page() -> NonNull<u8> {
    let mut free = free_pages();
    if free.is_empty() {
        let piece = long::take().unwrap_or_else(|| {
            // There may be room for a piece where there is none for an arena of them.
            let layout = AlignedBuffer::layout(long::PIECE_BYTES);
            // SAFETY: the layout has a size above zero. Zeroed: all of it is initialised.
            NonNull::new(unsafe { alloc_zeroed(layout) })
                .unwrap_or_else(|| handle_alloc_error(layout))
        });
        for page in (0..PAGES_PER_PIECE).rev() {
            // SAFETY: the piece has so many pages, and all of them are initialised.
            free.push(FreePage(unsafe { piece.add(page * IO_ALIGN_BYTES) }));
        }
    }
    free.pop().expect("filled above").0
}

thread_local! {
    static SPARES: RefCell<Spares> =
        const { RefCell::new(Spares { usual: [const { Vec::new() }; 3], long: Vec::new() }) };
}

/// Memory that was given back and waits to be used again: asking the system allocator for aligned
/// memory costs more than what most changes of a page do with it.
struct Spares {
    /// Of each of [`SPARE_LENGTHS`].
    usual: [Vec<NonNull<u8>>; 3],
    /// With the lengths they were made with, the oldest first. Every byte of them is initialised.
    long: Vec<(NonNull<u8>, usize)>,
}

impl Spares {
    fn of(&mut self, length: usize) -> Option<&mut Vec<NonNull<u8>>> {
        let index = SPARE_LENGTHS.iter().position(|&spare| spare == length)?;
        self.usual.get_mut(index)
    }

    /// Returns memory of `length` or more, and of how much.
    fn take(&mut self, length: usize) -> Option<(NonNull<u8>, usize)> {
        if is_kept_by_thread(length) {
            let fitting = self.long.iter().enumerate().filter(|(_, spare)| spare.1 >= length);
            let (index, _) = fitting.min_by_key(|(_, spare)| spare.1)?;
            return Some(self.long.remove(index));
        }
        Some((self.of(length)?.pop()?, length))
    }

    /// Returns whether it keeps the memory.
    fn keep(&mut self, pointer: NonNull<u8>, length: usize) -> bool {
        if is_kept_by_thread(length) {
            if self.long.len() == LONG_SPARES_MAX {
                let (oldest, length) = self.long.remove(0);
                // SAFETY: it was kept here, with this length; nothing else holds it.
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
            // SAFETY: `keep` put it here, with this length; nothing else holds it.
            unsafe { release(pointer, length) }
        }
    }
}

/// Returns whether memory for `length` bytes is long, and not shared by all threads.
fn is_kept_by_thread(length: usize) -> bool {
    LONG_BYTES.contains(&length) && AlignedBuffer::capacity_for(length) < long::PIECE_BYTES
}

/// Takes spare memory of `length` or more, with whatever is in it; returns of how much.
fn take_spare(length: usize) -> Option<(NonNull<u8>, usize)> {
    if AlignedBuffer::capacity_for(length) == long::PIECE_BYTES {
        let piece = long::take();
        let piece = piece.unwrap_or_else(|| handle_alloc_error(AlignedBuffer::layout(length)));
        return Some((piece, long::PIECE_BYTES));
    }
    // A thread that is ending has none.
    let spare = SPARES.try_with(|spares| spares.borrow_mut().take(length)).ok().flatten();
    spare.or_else(|| (length == IO_ALIGN_BYTES).then(|| (take_page(), length)))
}

/// Gives memory back to where memory of `length` comes from.
///
/// # Safety
///
/// It was made with this length, and nothing else holds it.
unsafe fn release(pointer: NonNull<u8>, length: usize) {
    match length {
        IO_ALIGN_BYTES => free_pages().push(FreePage(pointer)),
        long::PIECE_BYTES => long::give_back(pointer),
        // SAFETY: what has any other length was allocated with just this layout.
        _ => unsafe { dealloc(pointer.as_ptr(), AlignedBuffer::layout(length)) },
    }
}

/// Memory aligned to [`IO_ALIGN_BYTES`], of a fixed length.
pub struct AlignedBuffer {
    pointer: NonNull<u8>,
    length: usize,
    /// The length it was made with, by which it is given back: `length` or more.
    capacity: usize,
}

// SAFETY: the buffer owns its memory, as `Box<[u8]>` does; nothing else holds the pointer.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is only by `&[u8]`, as for `Box<[u8]>`.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Returns `length_bytes` zero bytes.
    #[must_use]
    pub fn zeroed(length_bytes: usize) -> AlignedBuffer {
        if let Some((pointer, capacity)) = take_spare(length_bytes) {
            // SAFETY: spare memory has this length or more, and nothing else holds it.
            unsafe { pointer.as_ptr().write_bytes(0, length_bytes) };
            return AlignedBuffer { pointer, length: length_bytes, capacity };
        }
        Self::new_zeroed(length_bytes)
    }

    /// Returns `length_bytes` for a device to read into: zeros, or whatever they held before.
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

    /// Returns a copy of `bytes`, which need not be aligned.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> AlignedBuffer {
        AlignedBuffer::padded(bytes, bytes.len())
    }

    /// Returns a copy of `bytes`, which need not be aligned, with zeros behind them up to `length`.
    ///
    /// # Panics
    ///
    /// If there are more bytes than `length`.
    #[must_use]
    pub fn padded(bytes: &[u8], length: usize) -> AlignedBuffer {
        AlignedBuffer::of_parts([bytes], length)
    }

    /// Returns a copy of `parts`, one behind the other, with zeros behind them up to `length`.
    ///
    /// # Panics
    ///
    /// If there are more bytes than `length`.
    #[must_use]
    pub fn of_parts<const N: usize>(parts: [&[u8]; N], length: usize) -> AlignedBuffer {
        let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
        let zeros = length.checked_sub(bytes).expect("the bytes fit");
        let (pointer, capacity) = take_spare(length).unwrap_or_else(|| {
            let capacity = Self::capacity_for(length);
            let layout = Self::layout(capacity);
            // All of what is longer than asked for is initialised, for those who take it again.
            // SAFETY: the layout has a size above zero.
            let pointer =
                unsafe { if capacity > length { alloc_zeroed(layout) } else { alloc(layout) } };
            (NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(layout)), capacity)
        });
        let mut at = 0;
        for part in parts {
            // SAFETY: the new memory has room for `length` bytes, of which the parts up to this one
            // take no more, and it cannot overlap what the caller borrows.
            unsafe { part.as_ptr().copy_to_nonoverlapping(pointer.add(at).as_ptr(), part.len()) };
            at += part.len();
        }
        // SAFETY: so many bytes are left behind the parts. All of the memory is initialised then.
        unsafe { pointer.add(at).as_ptr().write_bytes(0, zeros) };
        AlignedBuffer { pointer, length, capacity }
    }

    /// Returns how much memory is taken for `length_bytes`.
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
            // SAFETY: the buffer was made with this capacity, and is dropped once.
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

    /// Returns `range` of these bytes, which keeps the whole buffer alive.
    ///
    /// # Panics
    ///
    /// If the range lies outside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> SharedBytes {
        assert!(range.end <= self.range.len());
        let start = self.range.start;
        SharedBytes::new(Arc::clone(&self.buffer), start + range.start..start + range.end)
    }

    /// Grows by `next` if that lies just behind, in the same buffer; returns whether it did.
    pub fn join(&mut self, next: &SharedBytes) -> bool {
        let is_behind =
            Arc::ptr_eq(&self.buffer, &next.buffer) && self.range.end == next.range.start;
        if is_behind {
            self.range.end = next.range.end;
        }
        is_behind
    }

    /// Returns whether a device can take the bytes from where they lie.
    #[must_use]
    pub fn is_aligned(&self) -> bool {
        self.range.start.is_multiple_of(IO_ALIGN_BYTES)
    }

    /// Returns the bytes, to be changed: those of a buffer that nobody else holds and that has no
    /// others, or a copy.
    pub fn make_mut(&mut self) -> &mut [u8] {
        let is_alone =
            self.range == (0..self.buffer.len()) && Arc::get_mut(&mut self.buffer).is_some();
        if !is_alone {
            *self = SharedBytes::from(AlignedBuffer::copy_of(self));
        }
        Arc::get_mut(&mut self.buffer).expect("nobody else holds it")
    }

    /// Returns how many bytes the whole buffer has.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Returns what tells whether anybody still holds the buffer, without holding it.
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

    /// Goal: what a buffer held before is never in the next one, of one page or of more.
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

    /// Goal: no two pages share a byte. Method: as many as several pieces have, each with a number
    /// of its own.
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
