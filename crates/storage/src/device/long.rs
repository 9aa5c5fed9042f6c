//! Long pieces of memory, on huge pages where the system has them: for data of long reads and
//! writes, and to be cut into pages (`buffer`), which do not become pieces again.
//!
//! Data of long reads and writes passes the kernel twice, as a message and to the device, and each
//! time every page of it is looked up and held. On a huge page that is one look for all of them.
//! The system allocator gives no such memory, maps it anew each time, and then each page costs a
//! fault.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;

use parking_lot::{Mutex, MutexGuard};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// Bytes of a piece.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Bytes and alignment of a huge page, on every processor whose pages have 4 KiB.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Address space that is taken from the system at a time; memory comes with its use.
const ARENA_BYTES: usize = 32 << 20;

/// Pieces that nobody uses. They are never given back: so many were in use at some time.
static FREE_PIECES: Mutex<Vec<Piece>> = Mutex::new(Vec::new());

/// [`PIECE_BYTES`] initialised bytes, aligned so, that nobody else points to.
struct Piece(NonNull<u8>);

// SAFETY: it owns its memory, as `Box<[u8]>` does.
unsafe impl Send for Piece {}

fn free_pieces() -> MutexGuard<'static, Vec<Piece>> {
    // Not a lock that a simulated run schedules: it is held for no longer than an allocation.
    FREE_PIECES.lock()
}

/// Returns a piece, with whatever is in it; `None` if the system has no memory.
pub(super) fn take() -> Option<NonNull<u8>> {
    let mut free = free_pieces();
    if free.is_empty() {
        add_arena(&mut free).ok()?;
    }
    free.pop().map(|piece| piece.0)
}

/// Takes back a piece that [`take`] returned and that nobody uses any more.
pub(super) fn give_back(piece: NonNull<u8>) {
    free_pieces().push(Piece(piece));
}

/// Asks the system for an arena and cuts it into pieces.
fn add_arena(free: &mut Vec<Piece>) -> io::Result<()> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let length = ARENA_BYTES + HUGE_PAGE_BYTES;
    // SAFETY: a new mapping, at a place of the system's choice, changes nothing that is there.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
    // SAFETY: what is skipped is less than the huge page by which the mapping is longer.
    let start = unsafe { start.cast::<u8>().add(start.cast::<u8>().align_offset(HUGE_PAGE_BYTES)) };
    // A hint: where it is not taken the pages are small.
    // SAFETY: the arena is ours, and the advice changes no byte of it.
    let _ = unsafe { madvise(start.cast(), ARENA_BYTES, Advice::LinuxHugepage) };
    // The first are taken first: neighbours share a huge page.
    for piece in (0..ARENA_BYTES / PIECE_BYTES).rev() {
        // SAFETY: the arena has so many pieces, and is not at address 0.
        free.push(Piece(unsafe { NonNull::new_unchecked(start.add(piece * PIECE_BYTES)) }));
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
            // SAFETY: nobody else points to it, and the system has initialised so many bytes.
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
