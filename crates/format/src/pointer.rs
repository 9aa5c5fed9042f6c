//! The block pointer: place, length and checksum of one block of a container.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::ids::{EPOCH_MAX, Epoch, Place};

/// Bytes of a block pointer.
pub const POINTER_BYTES: usize = 32;
/// Most fragments of a block: 10 bits hold the count less one.
pub const BLOCK_FRAGMENTS_MAX: u32 = 1024;
/// Block size, in bytes, with four checksums of a quarter each.
pub const QUARTERED_BLOCK_BYTES: usize = 16384;
/// Bytes under each of the four checksums.
pub const QUARTER_BYTES: usize = 4096;

/// Format: `docs/FORMAT.md#block-pointer`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct BlockPointerDisk {
    /// Start of the block; all fields 0: a hole.
    place: U64,
    /// Birth (48 bits), fragments less one (10), check kind (2), compressed, encrypted, offline,
    /// reserved (1 each).
    birth_and_flags: U64,
    /// Detects rot and lost writes of data.
    check: [U32; 4],
}

const _: () = assert!(size_of::<BlockPointerDisk>() == POINTER_BYTES);

/// Meaning of the 16 check bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// One CRC-32C of the whole stored block.
    Whole,
    /// Four CRC-32C, each of [`QUARTER_BYTES`]; 0 past the stored length.
    Quarters,
    /// None: a page verifies itself. For a directory page the bytes hold a [`SplitHint`].
    Page,
    /// A 16-byte MAC.
    Mac,
}

/// Hint on a directory page's last split, so that a lookup in the wrong half needs no second walk
/// of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitHint {
    /// Depth of the page; above 0.
    pub depth: u8,
    /// Place of the page split off last, number `n + 2^(depth - 1)`; `None` once merged back.
    pub sibling: Option<Place>,
}

const FLAG_COMPRESSED: u64 = 1 << 60;
const FLAG_ENCRYPTED: u64 = 1 << 61;
const FLAG_OFFLINE: u64 = 1 << 62;
const FLAG_RESERVED: u64 = 1 << 63;
const FRAGMENTS_SHIFT: u32 = 48;
const CHECK_KIND_SHIFT: u32 = 58;

/// One entry of a container's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPointer {
    /// Start of the block.
    pub place: Place,
    /// Epoch of the block's submission.
    pub birth: Epoch,
    /// Fragments stored: 1 to [`BLOCK_FRAGMENTS_MAX`], or 0 in [`BlockPointer::RESERVED`].
    pub fragments: u32,
    /// Meaning of `check`.
    pub check_kind: CheckKind,
    /// Compressed, with the method in the leaf's header.
    pub is_compressed: bool,
    /// Encrypted, with the method in the leaf's header.
    pub is_encrypted: bool,
    /// Only in an archive; `place` is a copy number.
    pub is_offline: bool,
    /// Preallocation: room for the whole block is reserved, so a write finds space.
    pub is_reserved: bool,
    /// Checksums, or a hint.
    pub check: [u32; 4],
}

impl BlockPointer {
    /// A preallocated block without contents. Reads as zeros.
    pub const RESERVED: BlockPointer = BlockPointer {
        place: Place::NONE,
        birth: Epoch(0),
        fragments: 0,
        check_kind: CheckKind::Whole,
        is_compressed: false,
        is_encrypted: false,
        is_offline: false,
        is_reserved: true,
        check: [0; 4],
    };

    /// Returns a pointer to a page.
    #[must_use]
    pub fn to_page(place: Place, fragments: u32, birth: Epoch) -> BlockPointer {
        BlockPointer::plain(place, fragments, birth, CheckKind::Page, [0; 4])
    }

    /// Returns a pointer to plain data.
    #[must_use]
    pub fn plain(
        place: Place,
        fragments: u32,
        birth: Epoch,
        check_kind: CheckKind,
        check: [u32; 4],
    ) -> BlockPointer {
        BlockPointer {
            place,
            birth,
            fragments,
            check_kind,
            is_compressed: false,
            is_encrypted: false,
            is_offline: false,
            is_reserved: false,
            check,
        }
    }

    /// Returns the split hint of a directory page.
    #[must_use]
    pub fn split_hint(&self) -> Option<SplitHint> {
        let [low, high, depth, _] = self.check;
        let depth = u8::try_from(depth).ok().filter(|depth| *depth > 0)?;
        if self.check_kind != CheckKind::Page {
            return None;
        }
        let place = Place::from_bits(u64::from(high) << 32 | u64::from(low));
        Some(SplitHint { depth, sibling: (place != Place::NONE).then_some(place) })
    }

    /// Returns the pointer with another split hint.
    #[must_use]
    pub fn with_split_hint(self, hint: Option<SplitHint>) -> BlockPointer {
        let depth = hint.map_or(0, |hint| hint.depth);
        let place = hint.and_then(|hint| hint.sibling).unwrap_or(Place::NONE).bits();
        let [low, high] = zerocopy::transmute!(U64::new(place));
        let (low, high): (U32, U32) = (low, high);
        let check = [low.get(), high.get(), u32::from(depth), 0];
        BlockPointer { check, ..self }
    }

    /// Decodes a pointer; `None` for a hole.
    #[must_use]
    pub fn decode(bytes: &[u8; POINTER_BYTES]) -> Option<BlockPointer> {
        let disk: &BlockPointerDisk = zerocopy::transmute_ref!(bytes);
        if disk.place.get() == 0 && disk.birth_and_flags.get() == 0 {
            return None;
        }
        let bits = disk.birth_and_flags.get();
        if disk.place.get() == 0 && bits == FLAG_RESERVED {
            return Some(BlockPointer::RESERVED);
        }
        let fragments = u32::try_from(bits >> FRAGMENTS_SHIFT & 0x3ff).expect("10 bits") + 1;
        let check_kind = match bits >> CHECK_KIND_SHIFT & 3 {
            0 => CheckKind::Whole,
            1 => CheckKind::Quarters,
            2 => CheckKind::Page,
            _ => CheckKind::Mac,
        };
        Some(BlockPointer {
            place: Place::from_bits(disk.place.get()),
            birth: Epoch(bits & EPOCH_MAX),
            fragments,
            check_kind,
            is_compressed: bits & FLAG_COMPRESSED != 0,
            is_encrypted: bits & FLAG_ENCRYPTED != 0,
            is_offline: bits & FLAG_OFFLINE != 0,
            is_reserved: bits & FLAG_RESERVED != 0,
            check: disk.check.map(U32::get),
        })
    }

    /// Returns the bytes of the pointer.
    ///
    /// # Panics
    ///
    /// If a field is out of its bounds.
    #[must_use]
    pub fn encode(&self) -> [u8; POINTER_BYTES] {
        assert!(self.birth.0 <= EPOCH_MAX);
        if *self == BlockPointer::RESERVED {
            return zerocopy::transmute!(BlockPointerDisk {
                place: U64::new(0),
                birth_and_flags: U64::new(FLAG_RESERVED),
                check: [U32::new(0); 4],
            });
        }
        assert!((1..=BLOCK_FRAGMENTS_MAX).contains(&self.fragments));
        let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
        let check_kind: u64 = match self.check_kind {
            CheckKind::Whole => 0,
            CheckKind::Quarters => 1,
            CheckKind::Page => 2,
            CheckKind::Mac => 3,
        };
        let bits = self.birth.0
            | u64::from(self.fragments - 1) << FRAGMENTS_SHIFT
            | check_kind << CHECK_KIND_SHIFT
            | flag(self.is_compressed, FLAG_COMPRESSED)
            | flag(self.is_encrypted, FLAG_ENCRYPTED)
            | flag(self.is_offline, FLAG_OFFLINE)
            | flag(self.is_reserved, FLAG_RESERVED);
        zerocopy::transmute!(BlockPointerDisk {
            place: U64::new(self.place.bits()),
            birth_and_flags: U64::new(bits),
            check: self.check.map(U32::new),
        })
    }

    /// Returns the pointer to `data`, part of a block of `block_bytes`, with its checksum.
    #[must_use]
    pub fn to_data(
        place: Place,
        fragments: u32,
        birth: Epoch,
        block_bytes: usize,
        data: &[u8],
    ) -> BlockPointer {
        let (check_kind, check) = check_of(block_bytes, data);
        BlockPointer::plain(place, fragments, birth, check_kind, check)
    }

    /// Returns the pointer if any fragment is stored.
    #[must_use]
    pub fn stored(self) -> Option<BlockPointer> {
        (self.fragments > 0).then_some(self)
    }

    /// Returns the preallocated fragments beyond the stored ones.
    #[must_use]
    pub fn reserved_fragments(&self, block_shift: u8, fragment_shift: u8) -> u32 {
        let whole = 1_u32.checked_shl(u32::from(block_shift.saturating_sub(fragment_shift)));
        let whole = whole.unwrap_or(BLOCK_FRAGMENTS_MAX).min(BLOCK_FRAGMENTS_MAX);
        if self.is_reserved { whole.saturating_sub(self.fragments) } else { 0 }
    }

    /// Whether the stored bytes are the contents: no other encoding is implemented.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        !self.is_compressed && !self.is_encrypted && !self.is_offline
    }

    /// Whether the quarters can become blocks: plain, with a checksum each.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        self.is_plain() && self.check_kind == CheckKind::Quarters
    }

    /// Returns quarter `quarter` (0 to 3) of a divisible block as a block of [`QUARTER_BYTES`];
    /// `None` if it is not stored.
    #[must_use]
    pub fn quarter(&self, quarter: usize, fragment_shift: u8) -> Option<BlockPointer> {
        let length = u32::try_from(QUARTER_BYTES).ok()? >> fragment_shift;
        let before = u32::try_from(quarter).ok()? * length;
        let fragments = self.fragments.checked_sub(before)?.min(length);
        let check = [*self.check.get(quarter)?, 0, 0, 0];
        if fragments == 0 || !self.is_divisible() {
            return None;
        }
        let fragment = self.place.fragment().checked_add(before)?;
        let place = Place::new(self.place.disk_group(), self.place.group(), fragment);
        Some(BlockPointer { place, fragments, check_kind: CheckKind::Whole, check, ..*self })
    }

    /// Whether `data`, the whole stored block, is intact and in a known encoding.
    #[must_use]
    pub fn verifies(&self, data: &[u8]) -> bool {
        if !self.is_plain() {
            return false;
        }
        match self.check_kind {
            CheckKind::Whole => crc32c(data) == self.check[0],
            CheckKind::Quarters => quarters_of(data) == self.check,
            CheckKind::Page => true,
            CheckKind::Mac => false,
        }
    }
}

/// Returns the checksum of the stored part of a block.
pub(crate) fn check_of(block_bytes: usize, data: &[u8]) -> (CheckKind, [u32; 4]) {
    if block_bytes == QUARTERED_BLOCK_BYTES {
        (CheckKind::Quarters, quarters_of(data))
    } else {
        (CheckKind::Whole, [crc32c(data), 0, 0, 0])
    }
}

fn quarters_of(data: &[u8]) -> [u32; 4] {
    let mut check = [0; 4];
    for (to, quarter) in check.iter_mut().zip(data.chunks(QUARTER_BYTES)) {
        *to = crc32c(quarter);
    }
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode_then_decode_returns_the_pointer() {
        let pointer = BlockPointer {
            is_offline: true,
            is_reserved: true,
            ..BlockPointer::plain(
                Place::new(255, 0xff_ffff, u32::MAX),
                BLOCK_FRAGMENTS_MAX,
                Epoch(EPOCH_MAX),
                CheckKind::Mac,
                [1, 2, 3, u32::MAX],
            )
        };
        assert_eq!(BlockPointer::decode(&pointer.encode()), Some(pointer));
        assert_eq!(BlockPointer::decode(&[0; POINTER_BYTES]), None);
    }

    #[test]
    fn a_reservation_keeps_what_is_not_stored() {
        let reserved = BlockPointer::RESERVED;
        assert_eq!(BlockPointer::decode(&reserved.encode()), Some(reserved));
        assert_eq!(reserved.stored(), None);
        let place = Place::new(0, 1, 2);
        let short = BlockPointer::plain(place, 3, Epoch(5), CheckKind::Whole, [1, 0, 0, 0]);
        for (block_shift, fragment_shift, nothing, some) in [(14, 12, 4, 1), (12, 10, 4, 1)] {
            let kept = BlockPointer { is_reserved: true, ..short };
            assert_eq!(reserved.reserved_fragments(block_shift, fragment_shift), nothing);
            assert_eq!(kept.reserved_fragments(block_shift, fragment_shift), some);
            assert_eq!(short.reserved_fragments(block_shift, fragment_shift), 0);
        }
        let absurd = BlockPointer { fragments: 1024, is_reserved: true, ..short };
        assert_eq!(absurd.reserved_fragments(12, 12), 0);
    }

    #[test]
    fn a_hint_is_what_was_set() {
        let pointer = BlockPointer::to_page(Place::new(0, 1, 2), 1, Epoch(5));
        assert_eq!(pointer.split_hint(), None);
        for sibling in [None, Some(Place::new(0, 0xff_fffe, 0xffff_fffd))] {
            let hint = SplitHint { depth: 17, sibling };
            let hinted = pointer.with_split_hint(Some(hint));
            assert_eq!(BlockPointer::decode(&hinted.encode()), Some(hinted));
            assert_eq!(hinted.split_hint(), Some(hint));
            assert_eq!(hinted.with_split_hint(None), pointer);
        }
    }

    #[test]
    fn each_quarter_verifies_as_a_block_of_its_own() {
        for (fragment_shift, fragments) in [(12, 4), (12, 3), (11, 7), (10, 16), (10, 1), (10, 6)] {
            let stored = usize::try_from(fragments).expect("small") << fragment_shift;
            let data: Vec<u8> = (0..stored).map(|at| ((at * 31) >> 3).to_le_bytes()[0]).collect();
            let place = Place::new(0, 3, 40);
            let block =
                BlockPointer::to_data(place, fragments, Epoch(5), QUARTERED_BLOCK_BYTES, &data);
            let mut next = place;
            for (quarter, bytes) in data.chunks(QUARTER_BYTES).enumerate() {
                let pointer = block.quarter(quarter, fragment_shift).expect("it is stored");
                let expected =
                    BlockPointer::to_data(next, pointer.fragments, Epoch(5), QUARTER_BYTES, bytes);
                assert_eq!(pointer, expected, "quarter {quarter} of {fragments}");
                next = next.advance(pointer.fragments);
            }
            assert_eq!(next, place.advance(fragments));
            assert_eq!(block.quarter(data.len().div_ceil(QUARTER_BYTES), fragment_shift), None);
        }
    }

    #[test]
    fn a_changed_byte_of_data_does_not_verify() {
        for block_bytes in [4096, QUARTERED_BLOCK_BYTES] {
            let mut data = vec![9_u8; 4096];
            let pointer =
                BlockPointer::to_data(Place::new(0, 1, 2), 1, Epoch(5), block_bytes, &data);
            assert!(pointer.verifies(&data));
            data[4000] ^= 1;
            assert!(!pointer.verifies(&data));
        }
    }
}
