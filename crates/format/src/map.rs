//! Map pages, and the arithmetic of a container's map.
//!
//! # Layout
//!
//! The anode holds 8 pointers at height `h`: at height 0 to blocks, at height 1 to map pages of 124
//! pointers to blocks, and so on.
//!
//! ```text
//!   height 0:  anode [ p p p p p p p p ]            8 blocks
//!   height 1:  anode [ m m m m m m m m ]            8 * 124 blocks
//!                      |
//!                      +-- page, level 0: 124 pointers to blocks
//!   height 2:  8 * 124 * 124 blocks ...
//! ```
//!
//! A leaf of 16 KiB blocks may be *split* into four *fine leaves*, each with 124 pointers to 4 KiB
//! blocks:
//!
//! ```text
//!   leaf, level 0:  [ b0 b1 b2 ... b123 ]                124 blocks of 16 KiB
//!   split:          [ f f f f ]                          4 * 124 blocks of 4 KiB
//!                     |
//!                     +-- fine leaf: 124 pointers to blocks of 4 KiB
//! ```
//!
//! # Invariants
//!
//! - M1: A map page at level `l` covers `124^(l+1)` blocks, from `index` of its header.
//! - M2: An all-zero pointer is a hole for everything below it.
//! - M3: Only a leaf of a file with 16 KiB blocks is split: four pointers to fine leaves, then
//!   zeros. A fine leaf has level [`FINE_LEVEL`], and its `index` is its first 4 KiB block.

use std::ops::Range;

use crate::page::{FLAGS_OFFSET, PAGE_HEADER_BYTES, PageBytes, read_u32, write_u32};
use crate::pointer::{BlockPointer, POINTER_BYTES};

/// Pointers of a map page.
pub const POINTERS_PER_PAGE: u64 = 124;
/// Pointers in an anode.
pub const ROOT_POINTERS: u64 = 8;
/// Greatest height: `8 * 124^7` blocks of 4 KiB exceed 2^63 bytes.
pub const HEIGHT_MAX: u8 = 7;

/// Binary logarithm of the block size of leaves that may be split.
pub const COARSE_SHIFT: u8 = 14;
/// Binary logarithm of the block size of fine leaves.
pub const FINE_SHIFT: u8 = 12;
/// Fine blocks in a coarse one.
pub const FINE_PER_COARSE: u64 = 1 << (COARSE_SHIFT - FINE_SHIFT);
/// Level in the header of a fine leaf.
pub const FINE_LEVEL: u8 = 255;
/// Header flag of a split leaf.
pub const FLAG_SPLIT: u32 = 1 << 24;
/// Bytes of the header's flags.
pub const FLAGS_RANGE: Range<usize> = FLAGS_OFFSET..FLAGS_OFFSET + 4;

const _: () = assert!(PAGE_HEADER_BYTES + 124 * POINTER_BYTES == crate::page::PAGE_BYTES);

/// Returns the number of blocks below a pointer at `level`; level 0 points to blocks.
#[must_use]
pub fn span_of_pointer(level: u8) -> u64 {
    POINTERS_PER_PAGE.saturating_pow(u32::from(level))
}

/// Returns the capacity of a map of `height`, in blocks.
#[must_use]
pub fn capacity_of_height(height: u8) -> u64 {
    ROOT_POINTERS.saturating_mul(span_of_pointer(height))
}

/// Returns the smallest height for a map with block `index`.
#[must_use]
pub fn height_for(index: u64) -> u8 {
    (0..HEIGHT_MAX).find(|&height| index < capacity_of_height(height)).unwrap_or(HEIGHT_MAX)
}

/// Divides by a constant at each level, which is faster than by the span.
fn pointers_before(index: u64, level: u8) -> u64 {
    (0..level).fold(index, |before, _| before / POINTERS_PER_PAGE)
}

/// Returns the anode's pointer on the path to block `index`.
#[must_use]
pub fn root_slot(index: u64, height: u8) -> usize {
    usize::try_from(pointers_before(index, height)).expect("below 8")
}

/// Returns the page's pointer on the path to block `index`.
#[must_use]
pub fn page_slot(index: u64, level: u8) -> usize {
    let slot = pointers_before(index, level) % POINTERS_PER_PAGE;
    usize::try_from(slot).expect("below 124")
}

/// Returns the first block of the page on the path to block `index`.
#[must_use]
pub fn page_index(index: u64, level: u8) -> u64 {
    pointers_before(index, level + 1) * span_of_pointer(level + 1)
}

/// Returns the offset of pointer `slot` in a map page.
#[must_use]
pub fn slot_offset(slot: usize) -> usize {
    PAGE_HEADER_BYTES + slot * POINTER_BYTES
}

/// Returns the bytes of the pointers `slots` in a map page, whole words.
#[must_use]
pub fn pointers_range(slots: Range<usize>) -> Range<usize> {
    slot_offset(slots.start)..slot_offset(slots.end)
}

/// Returns pointer `slot`; `None` for a hole, or past the end.
#[must_use]
pub fn pointer_at(bytes: &PageBytes, slot: usize) -> Option<BlockPointer> {
    first_pointer(bytes.get(slot_offset(slot)..)?)
}

/// Returns the pointer at the start of `bytes`; `None` for a hole or short `bytes`.
#[must_use]
pub fn first_pointer(bytes: &[u8]) -> Option<BlockPointer> {
    BlockPointer::decode(bytes.first_chunk()?)
}

/// Sets pointer `slot`.
pub fn set_pointer(bytes: &mut [u8], slot: usize, pointer: Option<&BlockPointer>) {
    bytes[pointers_range(slot..slot + 1)].copy_from_slice(&encode_pointer(pointer));
}

/// Returns the bytes of a pointer or hole.
#[must_use]
pub fn encode_pointer(pointer: Option<&BlockPointer>) -> [u8; POINTER_BYTES] {
    pointer.map_or([0; POINTER_BYTES], BlockPointer::encode)
}

/// Whether a leaf is split (M3).
#[must_use]
pub fn is_split(bytes: &PageBytes) -> bool {
    says_split(&bytes[FLAGS_RANGE])
}

/// Whether the flags in [`FLAGS_RANGE`] mark a split leaf (M3).
#[must_use]
pub fn says_split(flags: &[u8]) -> bool {
    read_u32(flags, 0) & FLAG_SPLIT != 0
}

/// Turns a leaf into an empty split leaf.
pub fn split(bytes: &mut PageBytes) {
    let flags = read_u32(bytes, FLAGS_OFFSET) | FLAG_SPLIT;
    write_u32(bytes, FLAGS_OFFSET, flags);
    bytes[PAGE_HEADER_BYTES..].fill(0);
}

/// Returns the first block of the fine leaf for 4 KiB block `fine`.
#[must_use]
pub fn fine_index(fine: u64) -> u64 {
    fine / POINTERS_PER_PAGE * POINTERS_PER_PAGE
}

/// Returns the pointer of a split leaf on the path to block `fine`.
#[must_use]
pub fn split_slot(fine: u64) -> usize {
    usize::try_from(fine / POINTERS_PER_PAGE % FINE_PER_COARSE).expect("below 4")
}

/// Returns the pointer of a fine leaf for block `fine`.
#[must_use]
pub fn fine_slot(fine: u64) -> usize {
    page_slot(fine, 0)
}

/// Whether a map page has no pointer.
#[must_use]
pub fn is_empty(bytes: &PageBytes) -> bool {
    bytes[PAGE_HEADER_BYTES..].iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_hold_what_they_say() {
        for height in 0..HEIGHT_MAX {
            let capacity = capacity_of_height(height);
            assert_eq!(height_for(capacity - 1), height);
            assert_eq!(height_for(capacity), height + 1);
        }
        let blocks_of_largest_file = (i64::MAX.unsigned_abs() >> 12) + 1;
        assert!(capacity_of_height(HEIGHT_MAX) >= blocks_of_largest_file);
    }

    #[test]
    fn the_fine_leaves_of_a_split_leaf_cover_its_bytes() {
        for leaf in [0, POINTERS_PER_PAGE, 77 * POINTERS_PER_PAGE] {
            let ways: Vec<_> = (leaf * FINE_PER_COARSE..(leaf + 124) * FINE_PER_COARSE)
                .map(|fine| (split_slot(fine), fine_index(fine), fine_slot(fine)))
                .collect();
            let expected = (0..4).flat_map(|child| {
                let first = leaf * FINE_PER_COARSE + POINTERS_PER_PAGE * child;
                (0..124).map(move |slot| (usize::try_from(child).expect("below 4"), first, slot))
            });
            assert_eq!(ways, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_way_to_a_block_is_unique() {
        for index in [0, 7, 8, 991, 992, 123_007, 123_008, 9_999_999] {
            let height = height_for(index);
            let mut rebuilt = u64::try_from(root_slot(index, height)).expect("small");
            for level in (0..height).rev() {
                let slot = u64::try_from(page_slot(index, level)).expect("small");
                rebuilt = rebuilt * POINTERS_PER_PAGE + slot;
            }
            assert_eq!(rebuilt, index);
        }
    }
}
