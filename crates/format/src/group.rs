//! Allocation groups: the group table, descriptors, and segment usage.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{AnodeNo, Epoch};
use crate::page::{PAGE_HEADER_BYTES, PageBytes};

/// Entries of the group table in a page.
pub const GROUPS_PER_TABLE_PAGE: u64 = 62;
/// Bytes of an entry of the group table.
pub const GROUP_ENTRY_BYTES: usize = 64;
/// Entries of segment usage in a page.
pub const USAGES_PER_PAGE: u32 = 124;
/// Bytes of an entry of segment usage.
pub const USAGE_BYTES: usize = 32;

/// Totals of the pool, in the root of the group table behind its header.
/// Format: `docs/FORMAT.md#pool-totals`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct PoolTotalsDisk {
    /// Fragments in use, the fronts of initialised groups included.
    pub fragments_used: U64,
    /// Groups that are initialised.
    pub groups_used: U64,
    /// Anodes in use in all filesets.
    pub anodes_used: U64,
    /// Fragments kept for blocks that are reserved. What may nobody else have?
    pub fragments_reserved: U64,
    /// Bytes that filesets have reserved. Does an open have to add their rests up?
    pub reservations: U64,
}

/// Offset, in the group table's root, of the fragments in use.
pub const TOTAL_FRAGMENTS_USED_OFFSET: usize = PAGE_HEADER_BYTES;
/// Offset, in the group table's root, of the initialised groups.
pub const TOTAL_GROUPS_USED_OFFSET: usize = PAGE_HEADER_BYTES + 8;
/// Offset, in the group table's root, of the anodes in use.
pub const TOTAL_ANODES_USED_OFFSET: usize = PAGE_HEADER_BYTES + 16;
/// Offset, in the group table's root, of the fragments that are reserved.
pub const TOTAL_FRAGMENTS_RESERVED_OFFSET: usize = PAGE_HEADER_BYTES + 24;
/// Offset, in the group table's root, of the bytes that filesets have reserved.
pub const TOTAL_RESERVATIONS_OFFSET: usize = PAGE_HEADER_BYTES + 32;
/// Offset, in the group table's root, of the bitmap of initialised table pages: 2,048 bytes hold
/// 16,384 pages of 62 groups, more than a million groups; larger pools use longer groups.
pub const TABLE_BITMAP_OFFSET: usize = 2048;
/// Most pages of the group table.
pub const TABLE_PAGES_MAX: u64 = 16_384;

/// An entry of the group table, byte for byte. Format: `docs/FORMAT.md#group-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct GroupEntryDisk {
    /// 0: never used; 1: initialised, so a descriptor that fails is a defect; 2: being emptied.
    pub state: u8,
    /// Index of the layout in the superblock.
    pub layout: u8,
    /// Zero.
    pub reserved_a: U16,
    /// Fragments of the group, as its descriptor says.
    pub fragments: U32,
    /// Epoch of initialisation.
    pub birth: U64,
    /// Zero.
    pub reserved: [u8; 48],
}

const _: () = assert!(size_of::<GroupEntryDisk>() == GROUP_ENTRY_BYTES);
const _: () = assert!(PAGE_HEADER_BYTES + 62 * GROUP_ENTRY_BYTES == crate::page::PAGE_BYTES);

/// Offset, in an entry of the group table, of the fragments of the group.
pub const ENTRY_FRAGMENTS_OFFSET: usize = std::mem::offset_of!(GroupEntryDisk, fragments);

/// Returns the offset of the entry of `group` in its page of the group table.
#[must_use]
pub fn entry_offset(group: u32) -> usize {
    let slot = u64::from(group) % GROUPS_PER_TABLE_PAGE;
    PAGE_HEADER_BYTES + usize::try_from(slot).expect("below 62") * GROUP_ENTRY_BYTES
}

/// Whether the group table's root says that table page `index` is there.
#[must_use]
pub fn is_table_page_used(root: &PageBytes, index: u64) -> bool {
    let Ok(index) = usize::try_from(index) else { return false };
    root.get(TABLE_BITMAP_OFFSET + index / 8).is_some_and(|byte| byte & 1 << (index % 8) != 0)
}

/// The body of a group descriptor, byte for byte. Format: `docs/FORMAT.md#group-descriptor`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct DescriptorDisk {
    /// Own number. Detects a descriptor in the wrong group.
    pub group: U32,
    /// Fragments of the group; fewer than the superblock says if it was the last of its disk group
    /// when that became longer, and was not used since.
    pub fragments: U32,
    /// Fragments of a segment.
    pub segment_fragments: U32,
    /// Segments of the group.
    pub segments: U32,
    /// Fragments in use, the front included.
    pub fragments_used: U32,
    /// Segments that are neither free nor bad.
    pub segments_used: U32,
    /// Busy marks count only while this is the superblock's generation.
    pub generation: U64,
    /// Bit per page of the free map: it is there; a page that is not is all free.
    pub free_map_used: [u8; 8],
    /// Bit per page of the busy map: it is there.
    pub busy_map_used: [u8; 8],
    /// Bit per page of segment usage: it is there; a page that is not is all free.
    pub usage_used: [u8; 8],
    /// Busy anodes of this group: count of the list that follows in the page of busy anodes.
    pub busy_anodes: U32,
    /// Busy anodes of other groups (ibusy).
    pub busy_anodes_elsewhere: U32,
    /// Bit per LSN page: it is there. One that is not covers no metadata.
    pub lsn_pages_used: [u8; 256],
    /// Zero.
    pub reserved: [u8; 128],
}

const _: () = assert!(crate::lsn_page::LSN_PAGES_PER_GROUP_MAX == 256 * 8);

/// Offset, in a descriptor, of the fragments in use.
pub const DESCRIPTOR_FRAGMENTS_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, fragments_used);
/// Offset, in a descriptor, of the fragments of its group.
pub const DESCRIPTOR_FRAGMENTS_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, fragments);
/// Offset, in a descriptor, of the segments of its group.
pub const DESCRIPTOR_SEGMENTS_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, segments);
/// Offset, in a descriptor, of the segments in use.
pub const DESCRIPTOR_SEGMENTS_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, segments_used);
/// Offset, in a descriptor, of the bits that say which pages of the free map are there.
pub const FREE_MAP_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, free_map_used);
/// Offset, in a descriptor, of the bits that say which LSN pages are there.
pub const LSN_PAGES_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, lsn_pages_used);
/// Offset, in a descriptor, of the bits that say which pages of segment usage are there.
pub const USAGE_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, usage_used);

impl DescriptorDisk {
    /// Returns the body of a descriptor page.
    #[must_use]
    pub fn of(page: &PageBytes) -> DescriptorDisk {
        let body = &page[PAGE_HEADER_BYTES..];
        DescriptorDisk::read_from_prefix(body).expect("a page holds a descriptor").0
    }

    /// Writes this body into a descriptor page.
    pub fn store(&self, page: &mut [u8]) {
        self.write_to_prefix(&mut page[PAGE_HEADER_BYTES..]).expect("a page holds a descriptor");
    }
}

/// Returns which bit of a descriptor, counted from the end of its header, says that LSN page
/// `index` is there.
#[must_use]
pub fn lsn_page_bit(index: u32) -> u32 {
    let bytes = u32::try_from(LSN_PAGES_USED_OFFSET - PAGE_HEADER_BYTES).expect("a page is small");
    bytes * 8 + index
}

/// Whether a descriptor says that LSN page `index` of its group is there.
#[must_use]
pub fn is_lsn_page_used(descriptor: &PageBytes, index: u32) -> bool {
    let Ok(index) = usize::try_from(index) else { return false };
    let byte = descriptor.get(LSN_PAGES_USED_OFFSET + index / 8);
    index < 2048 && byte.is_some_and(|byte| byte & 1 << (index % 8) != 0)
}

/// Whether bit `index` of a descriptor's bits is set.
#[must_use]
pub fn is_bit_set(bits: &[u8; 8], index: u32) -> bool {
    index < 64 && u64::from_le_bytes(*bits) >> index & 1 == 1
}

/// What a segment is for. Changes only while it is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Nothing yet.
    Free,
    /// Blocks of files, written in order.
    Data,
    /// Pages, rewritten in place.
    Metadata,
    /// The journal.
    Journal,
}

impl SegmentKind {
    /// Returns the kind that `code` stands for.
    #[must_use]
    pub fn from_code(code: u8) -> Option<SegmentKind> {
        match code {
            0 => Some(SegmentKind::Free),
            1 => Some(SegmentKind::Data),
            2 => Some(SegmentKind::Metadata),
            3 => Some(SegmentKind::Journal),
            _ => None,
        }
    }

    /// Returns the byte that stands for this kind.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            SegmentKind::Free => 0,
            SegmentKind::Data => 1,
            SegmentKind::Metadata => 2,
            SegmentKind::Journal => 3,
        }
    }
}

/// An entry of segment usage, byte for byte. Format: `docs/FORMAT.md#segment-usage`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct UsageDisk {
    /// A [`SegmentKind`].
    kind: u8,
    /// Bit 0: has a remap table.
    flags: u8,
    /// Fragments written so far, summaries included: where the last summary ends. Segments have at
    /// most 4,096 fragments.
    filled: U16,
    /// Fragments that something points to.
    live: U32,
    /// Epoch in which the segment was opened; a pointer to it is no older.
    incarnation: U64,
    /// Youngest birth in it.
    newest: U64,
    /// Container of the remap table; 0: none.
    remap: U64,
}

const _: () = assert!(size_of::<UsageDisk>() == USAGE_BYTES);

/// How much of a segment is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    /// What it is for.
    pub kind: SegmentKind,
    /// Whether it has a remap table.
    pub has_remap: bool,
    /// Fragments written so far.
    pub filled: u32,
    /// Fragments that something points to.
    pub live: u32,
    /// Epoch in which it was opened.
    pub incarnation: Epoch,
    /// Youngest birth in it.
    pub newest: Epoch,
    /// Container of the remap table.
    pub remap: AnodeNo,
}

impl SegmentUsage {
    /// The usage of a segment that was never used.
    pub const FREE: SegmentUsage = SegmentUsage {
        kind: SegmentKind::Free,
        has_remap: false,
        filled: 0,
        live: 0,
        incarnation: Epoch(0),
        newest: Epoch(0),
        remap: AnodeNo(0),
    };

    /// Returns the offset of the usage of `segment` in its page.
    #[must_use]
    pub fn offset(segment: u32) -> usize {
        let slot = usize::try_from(segment % USAGES_PER_PAGE).expect("below 124");
        PAGE_HEADER_BYTES + slot * USAGE_BYTES
    }

    /// Returns the usage of `segment` in its page; `None` if the kind is unknown.
    #[must_use]
    pub fn of(page: &PageBytes, segment: u32) -> Option<SegmentUsage> {
        let bytes = page.get(Self::offset(segment)..)?;
        let (disk, _) = UsageDisk::read_from_prefix(bytes).ok()?;
        let kind = SegmentKind::from_code(disk.kind)?;
        Some(SegmentUsage {
            kind,
            has_remap: disk.flags & 1 != 0,
            filled: u32::from(disk.filled.get()),
            live: disk.live.get(),
            incarnation: Epoch(disk.incarnation.get()),
            newest: Epoch(disk.newest.get()),
            remap: AnodeNo(disk.remap.get()),
        })
    }

    /// Returns the bytes of this entry.
    #[must_use]
    pub fn encode(&self) -> [u8; USAGE_BYTES] {
        let filled = u16::try_from(self.filled).expect("segments have at most 4096 fragments");
        zerocopy::transmute!(UsageDisk {
            kind: self.kind.code(),
            flags: u8::from(self.has_remap),
            filled: U16::new(filled),
            live: U32::new(self.live),
            incarnation: U64::new(self.incarnation.0),
            newest: U64::new(self.newest.0),
            remap: U64::new(self.remap.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_BYTES;

    #[test]
    fn encode_then_decode_returns_the_usage() {
        let usage = SegmentUsage {
            kind: SegmentKind::Data,
            has_remap: true,
            filled: 255,
            live: 200,
            incarnation: Epoch(9),
            newest: Epoch(12),
            remap: AnodeNo(44),
        };
        for filled in [0, 1, 255, 4096] {
            let usage = SegmentUsage { filled, ..usage };
            let mut page = [0_u8; PAGE_BYTES];
            let offset = SegmentUsage::offset(125);
            page[offset..offset + USAGE_BYTES].copy_from_slice(&usage.encode());
            assert_eq!(SegmentUsage::of(&page, 1), Some(usage));
        }
        assert_eq!(SegmentUsage::of(&[0; PAGE_BYTES], 3), Some(SegmentUsage::FREE));
    }
}
