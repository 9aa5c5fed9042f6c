//! The page: 4 KiB of metadata with a header, the unit of metadata I/O.
//!
//! # Layout
//!
//! ```text
//!   0                128                                                      4096
//!   +----------------+-----------------------------------------------------------+
//!   | header         | body, by kind                                              |
//!   +----------------+-----------------------------------------------------------+
//! ```
//!
//! Anode and fileset pages have 7 linktag slots behind the header, and slots of 512 bytes from byte
//! 512.
//!
//! # Invariants
//!
//! - P1: A page in its home location verifies: magic, checksum, version, pool and place.
//! - P2: Checksum and LSN are stamped when a class of transactions closes or at write-back, never
//!   by recovery.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::defect::{DefectCode, FoundDefect};
use crate::ids::{AnodeNo, Epoch, FilesetId, Lsn, Place, PoolId};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a page's header.
pub const PAGE_HEADER_BYTES: usize = 128;
/// Bytes behind the header.
pub const PAGE_BODY_BYTES: usize = PAGE_BYTES - PAGE_HEADER_BYTES;
/// Bytes of a slot in anode and fileset pages.
pub const SLOT_BYTES: usize = 512;
/// Slots of anode and fileset pages.
pub const SLOTS_PER_PAGE: usize = 7;
/// Offset of the stamp: checksum, then LSN.
pub const STAMP_OFFSET: usize = 4;
/// Bytes of the stamp.
pub const STAMP_BYTES: usize = 12;

/// `HFpg`, little-endian.
const MAGIC: u32 = 0x6770_4648;
const VERSION: u16 = 1;
const CRC_COVERS_FROM: usize = 8;

/// The bytes of one page.
pub type PageBytes = [u8; PAGE_BYTES];

/// Contents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// The beginning of the log.
    JournalHead = 3,
    /// List of pages in the double-write area.
    DoubleWriteHead = 4,
    /// Bitmap of group table pages, and totals of the pool.
    GroupTableRoot = 5,
    /// Entries of the group table.
    GroupTable = 6,
    /// Descriptor of an allocation group.
    GroupDescriptor = 7,
    /// Bitmap of fragments in use.
    FreeMap = 8,
    /// Bitmap of fragments perhaps in transition.
    BusyMap = 9,
    /// Entries of segment usage.
    SegmentUsage = 10,
    /// Busy anodes of other groups.
    BusyAnodes = 11,
    /// Fileset entries.
    FilesetTable = 12,
    /// Anodes.
    Anode = 13,
    /// Block pointers.
    Map = 14,
    /// Dirents.
    Directory = 15,
    /// Bitmap of anodes in use.
    AnodeMap = 16,
    /// Orphans.
    OrphanList = 17,
    /// Summary of a partial segment.
    Summary = 18,
    /// A freed page.
    Tombstone = 19,
    /// Deferred frees, until their group enters the busy set.
    DeferredFree = 20,
    /// Extended attributes.
    Attributes = 21,
    /// New places of cleaned blocks.
    Remap = 22,
    /// LSNs of other pages at write-back.
    LsnPage = 23,
    /// Quotas of users, groups and projects.
    Quota = 24,
}

impl PageKind {
    /// Every kind.
    pub const ALL: [PageKind; 22] = [
        PageKind::JournalHead,
        PageKind::DoubleWriteHead,
        PageKind::GroupTableRoot,
        PageKind::GroupTable,
        PageKind::GroupDescriptor,
        PageKind::FreeMap,
        PageKind::BusyMap,
        PageKind::SegmentUsage,
        PageKind::BusyAnodes,
        PageKind::FilesetTable,
        PageKind::Anode,
        PageKind::Map,
        PageKind::Directory,
        PageKind::AnodeMap,
        PageKind::OrphanList,
        PageKind::Summary,
        PageKind::Tombstone,
        PageKind::DeferredFree,
        PageKind::Attributes,
        PageKind::Remap,
        PageKind::LsnPage,
        PageKind::Quota,
    ];

    /// Returns the kind for a code on disk.
    #[must_use]
    pub fn from_code(code: u8) -> Option<PageKind> {
        PageKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the code on disk.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Header of a page. Format: `docs/FORMAT.md#page-header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PageHeaderDisk {
    /// Detects bytes that are not a page.
    magic: U32,
    /// CRC-32C of bytes 8 to 4095. Detects torn writes and rot.
    crc32c: U32,
    /// Detects a lost write.
    lsn: U64,
    /// A reader refuses an unknown version.
    version: U16,
    /// A [`PageKind`].
    kind: u8,
    /// 0 for leaves and other pages.
    level: u8,
    flags: U32,
    /// Detects a page of another pool.
    pool_id: [u8; 16],
    /// Own place. Detects a misdirected write.
    place: U64,
    /// Owner: fileset. Detects a wrong pointer.
    fileset: U64,
    /// Owner: anode.
    anode: U64,
    /// First logical index that the page covers. Detects a wrong pointer.
    index: U64,
    /// Epoch of this copy. May a snapshot share it?
    birth: U64,
    /// Term of the writer. A higher one fences lower ones.
    writer_term: U32,
    count: U32,
    /// Highest birth below a map page. Can an incremental send skip it?
    birth_max: U64,
    aux: [U64; 4],
}

const _: () = assert!(size_of::<PageHeaderDisk>() == PAGE_HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(PageHeaderDisk, crc32c) == STAMP_OFFSET);
const _: () = assert!(std::mem::offset_of!(PageHeaderDisk, lsn) == 8);

/// Owner of a page: a container, and the position in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageOwner {
    /// Fileset; 0 for pages of the pool itself.
    pub fileset: FilesetId,
    /// Anode; 0 for pages outside containers.
    pub anode: AnodeNo,
    /// First logical index that the page covers.
    pub index: u64,
    /// Level in the container's map: 0 for content and leaves.
    pub level: u8,
}

/// The header of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Position of the stamping commit.
    pub lsn: Lsn,
    /// Contents of the page.
    pub kind: PageKind,
    /// Meaning by kind.
    pub flags: u32,
    /// The pool.
    pub pool_id: PoolId,
    /// Own place; in fixed regions it counts pages.
    pub place: Place,
    /// Owner.
    pub owner: PageOwner,
    /// Epoch of this copy.
    pub birth: Epoch,
    /// Term of the writer.
    pub writer_term: u32,
    /// Entries, by kind.
    pub count: u32,
    /// Highest birth below a map page.
    pub birth_max: Epoch,
    /// Meaning by kind.
    pub aux: [u64; 4],
}

/// Why a page is unusable. Each variant calls for a different action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// Not a page: a damaged pointer or a lost write.
    #[error("{} at {place}: not a metadata page (magic {found:#010x})", self.code())]
    BadMagic {
        /// Place of the read.
        place: Place,
        /// Magic found.
        found: u32,
    },
    /// Damaged: use another copy, or run a check.
    #[error(
        "{} at {place}: checksum stored {stored:#010x}, computed {computed:#010x}",
        self.code()
    )]
    BadChecksum {
        /// Place of the read.
        place: Place,
        /// Checksum on disk.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// Written by newer software.
    #[error("{} at {place}: page version {found} is newer than this software", self.code())]
    UnsupportedVersion {
        /// Place of the read.
        place: Place,
        /// Version on disk.
        found: u16,
    },
    /// A page of another pool: suspect the device or its cabling.
    #[error("{} at {place}: page belongs to pool {found}", self.code())]
    ForeignPool {
        /// Place of the read.
        place: Place,
        /// Pool in the header.
        found: PoolId,
    },
    /// A misdirected write.
    #[error("{} at {place}: page says it is at {found}", self.code())]
    Misplaced {
        /// Place of the read.
        place: Place,
        /// Place in the header.
        found: Place,
    },
    /// Old: its last write was lost, or another page's write over it. Use another copy, or run a
    /// check.
    #[error(
        "{} at {place}: a write of the device was lost: the page is of LSN {found}, the one that \
         went home last of one that ends in {listed:#010x}",
        self.code()
    )]
    LostWrite {
        /// Place of the read.
        place: Place,
        /// LSN of the page.
        found: Lsn,
        /// Lower bits of the LSN in the LSN page.
        listed: u32,
    },
    /// An unknown kind.
    #[error("{} at {place}: unknown page kind {found}", self.code())]
    UnknownKind {
        /// Place of the read.
        place: Place,
        /// Code on disk.
        found: u8,
    },
    /// A field out of its bounds under a good checksum: a bug, or a forged page.
    #[error("{} at {place}: {field} is out of bounds", self.code())]
    BadField {
        /// Place of the read.
        place: Place,
        /// Name of the field.
        field: &'static str,
    },
    /// Another page than expected: a lost write or a damaged pointer.
    #[error("{} at {place}: expected {expected}, found {found}", self.code())]
    WrongOwner {
        /// Place of the read.
        place: Place,
        /// Expected owner, in words.
        expected: String,
        /// Owner found, in words.
        found: String,
    },
}

impl FoundDefect for PageError {
    fn code(&self) -> DefectCode {
        match self {
            PageError::BadMagic { .. } => DefectCode::PG001,
            PageError::BadChecksum { .. } => DefectCode::PG002,
            PageError::UnsupportedVersion { .. } => DefectCode::PG003,
            PageError::ForeignPool { .. } => DefectCode::PG004,
            PageError::Misplaced { .. } => DefectCode::PG005,
            PageError::UnknownKind { .. } => DefectCode::PG006,
            PageError::BadField { .. } => DefectCode::PG008,
            PageError::WrongOwner { .. } => DefectCode::PG007,
            PageError::LostWrite { .. } => DefectCode::PG009,
        }
    }

    fn place(&self) -> Option<Place> {
        match self {
            PageError::BadMagic { place, .. }
            | PageError::BadChecksum { place, .. }
            | PageError::UnsupportedVersion { place, .. }
            | PageError::ForeignPool { place, .. }
            | PageError::LostWrite { place, .. }
            | PageError::Misplaced { place, .. }
            | PageError::UnknownKind { place, .. }
            | PageError::BadField { place, .. }
            | PageError::WrongOwner { place, .. } => Some(*place),
        }
    }
}

impl PageHeader {
    /// Verifies `bytes`, read from `place`, and returns the header.
    ///
    /// # Errors
    ///
    /// [`PageError`]: the variant names the action.
    pub fn decode(
        bytes: &PageBytes,
        pool_id: PoolId,
        place: Place,
    ) -> Result<PageHeader, PageError> {
        let disk = Self::disk(bytes);
        let found = disk.magic.get();
        if found != MAGIC {
            return Err(PageError::BadMagic { place, found });
        }
        let (stored, computed) = (disk.crc32c.get(), page_crc(bytes));
        if stored != computed {
            return Err(PageError::BadChecksum { place, stored, computed });
        }
        let found = disk.version.get();
        if found > VERSION {
            return Err(PageError::UnsupportedVersion { place, found });
        }
        let found = PoolId(disk.pool_id);
        if found != pool_id {
            return Err(PageError::ForeignPool { place, found });
        }
        let found = Place::from_bits(disk.place.get());
        if found != place {
            return Err(PageError::Misplaced { place, found });
        }
        Self::parse(bytes).ok_or(PageError::UnknownKind { place, found: disk.kind })
    }

    /// Returns the header of a page verified earlier; `None` if its kind is unknown.
    #[must_use]
    pub fn parse(bytes: &PageBytes) -> Option<PageHeader> {
        let disk = Self::disk(bytes);
        Some(PageHeader {
            lsn: Lsn(disk.lsn.get()),
            kind: PageKind::from_code(disk.kind)?,
            flags: disk.flags.get(),
            pool_id: PoolId(disk.pool_id),
            place: Place::from_bits(disk.place.get()),
            owner: PageOwner {
                fileset: FilesetId(disk.fileset.get()),
                anode: AnodeNo(disk.anode.get()),
                index: disk.index.get(),
                level: disk.level,
            },
            birth: Epoch(disk.birth.get()),
            writer_term: disk.writer_term.get(),
            count: disk.count.get(),
            birth_max: Epoch(disk.birth_max.get()),
            aux: disk.aux.map(U64::get),
        })
    }

    fn disk(bytes: &PageBytes) -> &PageHeaderDisk {
        let (disk, _) = PageHeaderDisk::ref_from_prefix(bytes).expect("a page holds a header");
        disk
    }

    /// Writes the header without a checksum. Call [`stamp`] for the complete page.
    pub fn encode(&self, bytes: &mut PageBytes) {
        let disk = PageHeaderDisk {
            magic: U32::new(MAGIC),
            crc32c: U32::new(0),
            lsn: U64::new(self.lsn.0),
            version: U16::new(VERSION),
            kind: self.kind.code(),
            level: self.owner.level,
            flags: U32::new(self.flags),
            pool_id: self.pool_id.0,
            place: U64::new(self.place.bits()),
            fileset: U64::new(self.owner.fileset.0),
            anode: U64::new(self.owner.anode.0),
            index: U64::new(self.owner.index),
            birth: U64::new(self.birth.0),
            writer_term: U32::new(self.writer_term),
            count: U32::new(self.count),
            birth_max: U64::new(self.birth_max.0),
            aux: self.aux.map(U64::new),
        };
        disk.write_to_prefix(bytes).expect("a page holds a header");
    }

    /// Returns a header with only the common fields set.
    #[must_use]
    pub fn new(kind: PageKind, pool_id: PoolId, place: Place, owner: PageOwner) -> PageHeader {
        PageHeader {
            lsn: Lsn(0),
            kind,
            flags: 0,
            pool_id,
            place,
            owner,
            birth: Epoch(0),
            writer_term: 0,
            count: 0,
            birth_max: Epoch(0),
            aux: [0; 4],
        }
    }

    /// Checks kind and owner before decoding the header.
    ///
    /// # Errors
    ///
    /// [`PageError::WrongOwner`], [`PageError::UnknownKind`].
    pub fn expect_in(bytes: &PageBytes, kind: PageKind, owner: PageOwner) -> Result<(), PageError> {
        let disk = Self::disk(bytes);
        let is_it = disk.kind == kind.code()
            && disk.index.get() == owner.index
            && disk.anode.get() == owner.anode.0
            && disk.fileset.get() == owner.fileset.0
            && disk.level == owner.level;
        if is_it {
            return Ok(());
        }
        let place = Place::from_bits(disk.place.get());
        let unknown = PageError::UnknownKind { place, found: disk.kind };
        Self::parse(bytes).ok_or(unknown)?.expect(kind, owner)
    }

    /// Checks kind and owner.
    ///
    /// # Errors
    ///
    /// [`PageError::WrongOwner`].
    pub fn expect(&self, kind: PageKind, owner: PageOwner) -> Result<(), PageError> {
        if self.kind == kind && self.owner == owner {
            return Ok(());
        }
        let words = |kind: PageKind, owner: PageOwner| {
            format!(
                "{kind:?} page {} level {} of {} {}",
                owner.index, owner.level, owner.fileset, owner.anode
            )
        };
        Err(PageError::WrongOwner {
            place: self.place,
            expected: words(kind, owner),
            found: words(self.kind, self.owner),
        })
    }
}

/// Offset of the 8-byte epoch of a page's copy.
pub const BIRTH_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, birth);
/// Offset of the 8-byte highest birth below a map page.
pub const BIRTH_MAX_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, birth_max);
/// Offset of `flags`.
pub const FLAGS_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, flags);
/// Offset of `count`.
pub const COUNT_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, count);
/// Offset of the `aux` fields, 8 bytes each.
pub const AUX_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, aux);

/// Returns the CRC-32C of everything behind the checksum.
#[must_use]
pub fn page_crc(bytes: &PageBytes) -> u32 {
    crc32c(&bytes[CRC_COVERS_FROM..])
}

/// Sets LSN and checksum, and returns the checksum. The page is then complete.
pub fn stamp(bytes: &mut PageBytes, lsn: Lsn) -> u32 {
    write_u64(bytes, 8, lsn.0);
    let crc = page_crc(bytes);
    write_u32(bytes, STAMP_OFFSET, crc);
    crc
}

/// Returns the LSN in the header.
#[must_use]
pub fn page_lsn(bytes: &PageBytes) -> Lsn {
    Lsn(read_u64(bytes, 8))
}

/// Reads a little-endian number; 0 past the end.
#[must_use]
pub fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<8>());
    field.map_or(0, |field| u64::from_le_bytes(*field))
}

/// Returns the epoch of this copy of a page.
#[must_use]
pub fn birth_of(page: &PageBytes) -> Epoch {
    Epoch(read_u64(page, BIRTH_OFFSET))
}

/// Reads a little-endian number; 0 past the end.
#[must_use]
pub fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<4>());
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

/// Reads a little-endian number; 0 past the end.
#[must_use]
pub fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<2>());
    field.map_or(0, |field| u16::from_le_bytes(*field))
}

/// Writes a little-endian number.
///
/// # Panics
///
/// If `bytes` are too short.
pub fn write_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian number.
///
/// # Panics
///
/// If `bytes` are too short.
pub fn write_u32(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PageBytes {
        let mut bytes = [0_u8; PAGE_BYTES];
        let owner = PageOwner { fileset: FilesetId(3), anode: AnodeNo(9), index: 5, level: 1 };
        let header = PageHeader::new(PageKind::Map, PoolId([7; 16]), Place::new(1, 2, 3), owner);
        header.encode(&mut bytes);
        bytes[1000] = 42;
        stamp(&mut bytes, Lsn(77));
        bytes
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let mut bytes = sample();
        let decode = |bytes: &PageBytes| {
            PageHeader::decode(bytes, PoolId([7; 16]), Place::new(1, 2, 3)).is_ok()
        };
        assert!(decode(&bytes));
        for bit in 0..PAGE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!decode(&bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_page_of_another_pool_or_place_is_refused() {
        let bytes = sample();
        let place = Place::new(1, 2, 3);
        let foreign = PageHeader::decode(&bytes, PoolId([8; 16]), place);
        assert!(matches!(foreign, Err(PageError::ForeignPool { .. })));
        let misplaced = PageHeader::decode(&bytes, PoolId([7; 16]), Place::new(1, 2, 4));
        assert!(matches!(misplaced, Err(PageError::Misplaced { .. })));
    }
}
