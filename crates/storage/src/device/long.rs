//! Long pieces of memory, on huge pages if available, for long reads and writes and for `buffer`.
//!
//! The data of a long request enters the kernel twice, from the client and to the device. Each time
//! every page is pinned, and a huge page replaces 512. The system allocator would also remap the
//! memory each time, at a fault per page.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Size and alignment of a huge page, on processors with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Address space per mapping. Physical memory follows with use.
const ARENA_BYTES: usize = 32 << 20;

/// Free pieces. Never returned to the system, so memory stays at its peak.
static FREE_PIECES: Mutex<Vec<FreePiece>> = Mutex::new(Vec::new());

/// [`PIECE_BYTES`] initialised and aligned bytes without another reference.
struct FreePiece(NonNull<u8>);

// SAFETY: it owns its memory, as `Box<[u8]>` does.
unsafe impl Send for FreePiece {}

fn free_pieces() -> MutexGuard<'static, Vec<FreePiece>> {
    // Not a lock for the simulated scheduler: it is held no longer than an allocation.
    FREE_PIECES.lock()
}

/// Returns a piece with arbitrary contents. `None` if the system has no memory.
pub(super) fn take() -> Option<NonNull<u8>> {
    let mut free = free_pieces();
    if free.is_empty() {
        add_arena(&mut free).ok()?;
    }
    free.pop().map(|piece| piece.0)
}

/// Frees a piece from [`take`], once nothing else uses it.
pub(super) fn give_back(piece: NonNull<u8>) {
    free_pieces().push(FreePiece(piece));
}

fn add_arena(free: &mut Vec<FreePiece>) -> io::Result<()> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let length = ARENA_BYTES + HUGE_PAGE_BYTES;
    // SAFETY: a fresh mapping at an address of the kernel's choice changes no existing memory.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
    // SAFETY: the skipped part is less than the huge page by which the mapping is longer.
    let start = unsafe { start.cast::<u8>().add(start.cast::<u8>().align_offset(HUGE_PAGE_BYTES)) };
    // Only a hint. Without huge pages the arena has small ones.
    // SAFETY: the arena is ours, and the advice changes none of its bytes.
    let _ = unsafe { madvise(start.cast(), ARENA_BYTES, Advice::LinuxHugepage) };
    // Pushed in reverse, so that neighbours on one huge page are taken together.
    for piece in (0..ARENA_BYTES / PIECE_BYTES).rev() {
        // SAFETY: the arena has that many pieces, and is not at address 0.
        free.push(FreePiece(unsafe { NonNull::new_unchecked(start.add(piece * PIECE_BYTES)) }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeros_at_first() {
        let mut free = Vec::new();
        add_arena(&mut free).expect("there is memory");
        for piece in &free {
            // SAFETY: nothing else refers to it, and the kernel has zeroed it.
            let bytes = unsafe { std::slice::from_raw_parts(piece.0.as_ptr(), PIECE_BYTES) };
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
        free.into_iter().for_each(|piece| give_back(piece.0));
    }

    #[test]
    fn pieces_are_aligned_and_apart() {
        let pieces: Vec<NonNull<u8>> =
            (0..2 * ARENA_BYTES / PIECE_BYTES).map(|_| take().expect("there is memory")).collect();
        let mut starts: Vec<usize> = pieces.iter().map(|piece| piece.addr().get()).collect();
        starts.sort_unstable();
        assert!(starts.iter().all(|start| start.is_multiple_of(PIECE_BYTES)));
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= PIECE_BYTES), "they overlap");
        pieces.into_iter().for_each(give_back);
    }
}
