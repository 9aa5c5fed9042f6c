//! Allocation groups: the group table, descriptors, and segment usage.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{AnodeNo, Epoch};
use crate::page::{PAGE_HEADER_BYTES, PageBytes};

/// Groups in a page of the group table.
pub const GROUPS_PER_TABLE_PAGE: u64 = 62;
/// Bytes of a group table entry.
pub const GROUP_ENTRY_BYTES: usize = 64;
/// Segments in a page of segment usage.
pub const USAGES_PER_PAGE: u32 = 124;
/// Bytes of a segment usage entry.
pub const USAGE_BYTES: usize = 32;

/// Totals in the root page of the group table. Format: `docs/FORMAT.md#pool-totals`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct PoolTotalsDisk {
    /// Fragments in use, fronts of initialised groups included.
    pub fragments_used: U64,
    /// Initialised groups.
    pub groups_used: U64,
    /// Anodes in use in all filesets.
    pub anodes_used: U64,
    /// Fragments reserved for blocks. How much is closed to other allocations?
    pub fragments_reserved: U64,
    /// Bytes reserved by filesets. If not 0, an open adds up what of them is unused.
    pub reservations: U64,
}

/// Offset of `fragments_used` in the root page.
pub const TOTAL_FRAGMENTS_USED_OFFSET: usize = PAGE_HEADER_BYTES;
/// Offset of `groups_used` in the root page.
pub const TOTAL_GROUPS_USED_OFFSET: usize = PAGE_HEADER_BYTES + 8;
/// Offset of `anodes_used` in the root page.
pub const TOTAL_ANODES_USED_OFFSET: usize = PAGE_HEADER_BYTES + 16;
/// Offset of `fragments_reserved` in the root page.
pub const TOTAL_FRAGMENTS_RESERVED_OFFSET: usize = PAGE_HEADER_BYTES + 24;
/// Offset of `reservations` in the root page.
pub const TOTAL_RESERVATIONS_OFFSET: usize = PAGE_HEADER_BYTES + 32;
/// Offset, in the root page, of the bitmap of initialised table pages.
pub const TABLE_BITMAP_OFFSET: usize = 2048;
/// Most pages of the group table.
pub const TABLE_PAGES_MAX: u64 = 16_384;

/// Entry of the group table. Format: `docs/FORMAT.md#group-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct GroupEntryDisk {
    /// 0: never used; 1: initialised, so a bad descriptor is a defect; 2: being emptied.
    pub state: u8,
    /// Index of the layout in the superblock.
    pub layout: u8,
    /// Zero.
    pub reserved_a: U16,
    /// Fragments of the group, as in its descriptor.
    pub fragments: U32,
    /// Epoch of initialisation.
    pub birth: U64,
    /// Zero.
    pub reserved: [u8; 48],
}

const _: () = assert!(size_of::<GroupEntryDisk>() == GROUP_ENTRY_BYTES);
const _: () = assert!(PAGE_HEADER_BYTES + 62 * GROUP_ENTRY_BYTES == crate::page::PAGE_BYTES);

/// Offset of `fragments` in an entry.
pub const ENTRY_FRAGMENTS_OFFSET: usize = std::mem::offset_of!(GroupEntryDisk, fragments);

/// Returns the offset of the entry of `group` in its page.
#[must_use]
pub fn entry_offset(group: u32) -> usize {
    let slot = u64::from(group) % GROUPS_PER_TABLE_PAGE;
    PAGE_HEADER_BYTES + usize::try_from(slot).expect("below 62") * GROUP_ENTRY_BYTES
}

/// Whether table page `index` is initialised.
#[must_use]
pub fn is_table_page_used(root: &PageBytes, index: u64) -> bool {
    let Ok(index) = usize::try_from(index) else { return false };
    root.get(TABLE_BITMAP_OFFSET + index / 8).is_some_and(|byte| byte & 1 << (index % 8) != 0)
}

/// Body of a group descriptor. Format: `docs/FORMAT.md#group-descriptor`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct DescriptorDisk {
    /// Detects a descriptor in the wrong group.
    pub group: U32,
    /// Fewer than in the geometry if the group was lengthened, and not used since.
    pub fragments: U32,
    /// Fragments of a segment.
    pub segment_fragments: U32,
    /// Segments of the group.
    pub segments: U32,
    /// Fragments in use, the front included.
    pub fragments_used: U32,
    /// Segments that are neither free nor bad.
    pub segments_used: U32,
    /// Are busy marks valid? Only if equal to the superblock's generation.
    pub generation: U64,
    /// Bit per initialised page of the free map. Others are all free.
    pub free_map_used: [u8; 8],
    /// Bit per initialised page of the busy map.
    pub busy_map_used: [u8; 8],
    /// Bit per initialised page of segment usage. Others are all free.
    pub usage_used: [u8; 8],
    /// Length of the list in the page of busy anodes.
    pub busy_anodes: U32,
    /// Busy anodes of other groups (ibusy).
    pub busy_anodes_elsewhere: U32,
    /// Bit per initialised LSN page. Others cover no metadata.
    pub lsn_pages_used: [u8; 256],
    /// Zero.
    pub reserved: [u8; 128],
}

const _: () = assert!(crate::lsn_page::LSN_PAGES_PER_GROUP_MAX == 256 * 8);

/// Offset of `fragments_used` in a descriptor.
pub const DESCRIPTOR_FRAGMENTS_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, fragments_used);
/// Offset of `fragments` in a descriptor.
pub const DESCRIPTOR_FRAGMENTS_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, fragments);
/// Offset of `segments` in a descriptor.
pub const DESCRIPTOR_SEGMENTS_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, segments);
/// Offset of `segments_used` in a descriptor.
pub const DESCRIPTOR_SEGMENTS_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, segments_used);
/// Offset of `free_map_used` in a descriptor.
pub const FREE_MAP_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, free_map_used);
/// Offset of `lsn_pages_used` in a descriptor.
pub const LSN_PAGES_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, lsn_pages_used);
/// Offset of `usage_used` in a descriptor.
pub const USAGE_USED_OFFSET: usize =
    PAGE_HEADER_BYTES + std::mem::offset_of!(DescriptorDisk, usage_used);

impl DescriptorDisk {
    /// Returns the body of a descriptor page.
    #[must_use]
    pub fn of(page: &PageBytes) -> DescriptorDisk {
        let body = &page[PAGE_HEADER_BYTES..];
        DescriptorDisk::read_from_prefix(body).expect("a page holds a descriptor").0
    }

    /// Writes the body into a descriptor page.
    pub fn store(&self, page: &mut [u8]) {
        self.write_to_prefix(&mut page[PAGE_HEADER_BYTES..]).expect("a page holds a descriptor");
    }
}

/// Returns the bit of an LSN page, from the end of the descriptor's header.
#[must_use]
pub fn lsn_page_bit(index: u32) -> u32 {
    let bytes = u32::try_from(LSN_PAGES_USED_OFFSET - PAGE_HEADER_BYTES).expect("a page is small");
    bytes * 8 + index
}

/// Whether LSN page `index` of the group is initialised.
#[must_use]
pub fn is_lsn_page_used(descriptor: &PageBytes, index: u32) -> bool {
    let Ok(index) = usize::try_from(index) else { return false };
    let byte = descriptor.get(LSN_PAGES_USED_OFFSET + index / 8);
    index < 2048 && byte.is_some_and(|byte| byte & 1 << (index % 8) != 0)
}

/// Whether bit `index` is set.
#[must_use]
pub fn is_bit_set(bits: &[u8; 8], index: u32) -> bool {
    index < 64 && u64::from_le_bytes(*bits) >> index & 1 == 1
}

/// Use of a segment. Changes only while the segment is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Unused.
    Free,
    /// Blocks of files, written in order.
    Data,
    /// Pages, rewritten in place.
    Metadata,
    /// The journal.
    Journal,
}

impl SegmentKind {
    /// Returns the kind for a code on disk.
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

    /// Returns the code on disk.
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

/// Format: `docs/FORMAT.md#segment-usage`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct UsageDisk {
    /// A [`SegmentKind`].
    kind: u8,
    /// Bit 0: has a remap table.
    flags: u8,
    /// End of the last summary: at most 4,096.
    filled: U16,
    /// Fragments with a pointer. How much must the cleaner copy?
    live: U32,
    /// Detects a pointer from before the segment's opening.
    incarnation: U64,
    /// Youngest birth.
    newest: U64,
    /// 0: none.
    remap: U64,
}

const _: () = assert!(size_of::<UsageDisk>() == USAGE_BYTES);

/// Usage of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentUsage {
    /// Use of the segment.
    pub kind: SegmentKind,
    /// Whether there is a remap table.
    pub has_remap: bool,
    /// Fragments written, summaries included.
    pub filled: u32,
    /// Fragments with a pointer.
    pub live: u32,
    /// Epoch of the segment's opening.
    pub incarnation: Epoch,
    /// Youngest birth.
    pub newest: Epoch,
    /// Container of the remap table.
    pub remap: AnodeNo,
}

impl SegmentUsage {
    /// Usage of a segment never used.
    pub const FREE: SegmentUsage = SegmentUsage {
        kind: SegmentKind::Free,
        has_remap: false,
        filled: 0,
        live: 0,
        incarnation: Epoch(0),
        newest: Epoch(0),
        remap: AnodeNo(0),
    };

    /// Returns the offset of `segment` in its page.
    #[must_use]
    pub fn offset(segment: u32) -> usize {
        let slot = usize::try_from(segment % USAGES_PER_PAGE).expect("below 124");
        PAGE_HEADER_BYTES + slot * USAGE_BYTES
    }

    /// Returns the usage of `segment`; `None` if the kind is unknown.
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

    /// Returns the bytes of the entry.
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
