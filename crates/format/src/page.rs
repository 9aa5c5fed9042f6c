//! The page: 4 KiB of metadata with a header of its own, the only unit of metadata I/O.
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
//! Anode pages and fileset pages keep 7 linktag slots behind the header, and slots of 512 bytes
//! from byte 512 on.
//!
//! # Invariants
//!
//! - P1: A page at home verifies: magic, checksum, version, pool and own place are right.
//! - P2: Checksum and LSN are stamped when a class of transactions closes or when the page goes
//!   home, never by recovery.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::defect::{DefectCode, FoundDefect};
use crate::ids::{AnodeNo, Epoch, FilesetId, Lsn, Place, PoolId};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a page's header.
pub const PAGE_HEADER_BYTES: usize = 128;
/// Bytes of a page behind its header.
pub const PAGE_BODY_BYTES: usize = PAGE_BYTES - PAGE_HEADER_BYTES;
/// Bytes of a slot of an anode page or fileset page.
pub const SLOT_BYTES: usize = 512;
/// Slots of an anode page or fileset page.
pub const SLOTS_PER_PAGE: usize = 7;
/// Where the bytes that a commit stamps begin: checksum, then LSN.
pub const STAMP_OFFSET: usize = 4;
/// How many bytes a commit stamps.
pub const STAMP_BYTES: usize = 12;

/// `HFpg`, little-endian.
const MAGIC: u32 = 0x6770_4648;
/// Version of the page header.
const VERSION: u16 = 1;
const CRC_COVERS_FROM: usize = 8;

/// The bytes of one page.
pub type PageBytes = [u8; PAGE_BYTES];

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PageKind {
    /// Where the log begins; in the journal's region.
    JournalHead = 3,
    /// The list of pages in the double-write area.
    DoubleWriteHead = 4,
    /// Which pages of the group table are there, and the totals of the pool.
    GroupTableRoot = 5,
    /// Entries of the group table.
    GroupTable = 6,
    /// The descriptor of an allocation group.
    GroupDescriptor = 7,
    /// A bitmap of fragments in use.
    FreeMap = 8,
    /// A bitmap of fragments that may be in transition.
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
    /// A bitmap of anodes in use.
    AnodeMap = 16,
    /// Anodes without a name.
    OrphanList = 17,
    /// What a partial segment holds.
    Summary = 18,
    /// Nothing any more.
    Tombstone = 19,
    /// Frees that wait for their group to enter the busy set.
    DeferredFree = 20,
    /// Extended attributes.
    Attributes = 21,
    /// Where cleaned blocks of a segment went.
    Remap = 22,
    /// The LSNs of other pages when they last went home.
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

    /// Returns the kind that `code` stands for on disk.
    #[must_use]
    pub fn from_code(code: u8) -> Option<PageKind> {
        PageKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the byte that stands for this kind on disk.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// The header, byte for byte. Format: `docs/FORMAT.md#page-header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PageHeaderDisk {
    /// Tells a page of ours from anything else.
    magic: U32,
    /// CRC-32C of bytes 8 to 4095. Detects torn writes and rot.
    crc32c: U32,
    /// Position of the commit that stamped the page. Detects a lost write.
    lsn: U64,
    /// A reader refuses a version it does not know.
    version: U16,
    /// A [`PageKind`].
    kind: u8,
    /// Level in a map; 0: a leaf, or no map page.
    level: u8,
    /// Meaning by kind.
    flags: U32,
    /// Detects a page of another pool.
    pool_id: [u8; 16],
    /// The page's own place. Detects a misdirected write.
    place: U64,
    /// Whose container: fileset.
    fileset: U64,
    /// Whose container: anode.
    anode: U64,
    /// Which page of its container: the first logical index it covers.
    index: U64,
    /// Epoch in which this copy of the page was made.
    birth: U64,
    /// Term of the writer; a higher term fences.
    writer_term: U32,
    /// Entries in the page, by kind.
    count: U32,
    /// Highest birth below a map page, so that a send can skip.
    birth_max: U64,
    /// Meaning by kind.
    aux: [U64; 4],
}

const _: () = assert!(size_of::<PageHeaderDisk>() == PAGE_HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(PageHeaderDisk, crc32c) == STAMP_OFFSET);
const _: () = assert!(std::mem::offset_of!(PageHeaderDisk, lsn) == 8);

/// Who a page belongs to: the container and the position in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageOwner {
    /// Fileset of the container; 0 for pages of the pool itself.
    pub fileset: FilesetId,
    /// Anode of the container; 0 for pages outside containers.
    pub anode: AnodeNo,
    /// First logical index that the page covers.
    pub index: u64,
    /// Level in the container's map: 0 is a page of content or a leaf of pointers.
    pub level: u8,
}

/// The verified header of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Position of the commit that stamped the page.
    pub lsn: Lsn,
    /// What the page holds.
    pub kind: PageKind,
    /// Meaning by kind.
    pub flags: u32,
    /// The pool.
    pub pool_id: PoolId,
    /// The page's own place; for pages in fixed regions the byte offset on the device.
    pub place: Place,
    /// Whose page it is.
    pub owner: PageOwner,
    /// Epoch in which this copy was made.
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

/// Why bytes are not the page that was looked for. Each calls for a different action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// Not a page at all: a damaged pointer, or a write that was lost.
    #[error("{} at {place}: not a metadata page (magic {found:#010x})", self.code())]
    BadMagic {
        /// Where.
        place: Place,
        /// What is there instead.
        found: u32,
    },
    /// Damaged: use another copy, or run a check.
    #[error(
        "{} at {place}: checksum stored {stored:#010x}, computed {computed:#010x}",
        self.code()
    )]
    BadChecksum {
        /// Where.
        place: Place,
        /// On disk.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// Written by software that is newer.
    #[error("{} at {place}: page version {found} is newer than this software", self.code())]
    UnsupportedVersion {
        /// Where.
        place: Place,
        /// On disk.
        found: u16,
    },
    /// A page of another pool: suspect the device or its cabling.
    #[error("{} at {place}: page belongs to pool {found}", self.code())]
    ForeignPool {
        /// Where.
        place: Place,
        /// Whose it is.
        found: PoolId,
    },
    /// A page that should be elsewhere: a misdirected write.
    #[error("{} at {place}: page says it is at {found}", self.code())]
    Misplaced {
        /// Where it was read.
        place: Place,
        /// Where it says it is.
        found: Place,
    },
    /// A whole page, but an older one than the device was given: its last write, or another page's
    /// over it, was lost. Use another copy, or run a check.
    #[error(
        "{} at {place}: a write of the device was lost: the page is of LSN {found}, the one that \
         went home last of one that ends in {listed:#010x}",
        self.code()
    )]
    LostWrite {
        /// Where.
        place: Place,
        /// LSN of the page that is there.
        found: Lsn,
        /// Lower bits of the LSN that its LSN page lists.
        listed: u32,
    },
    /// A kind that this version does not know.
    #[error("{} at {place}: unknown page kind {found}", self.code())]
    UnknownKind {
        /// Where.
        place: Place,
        /// On disk.
        found: u8,
    },
    /// A field that can't be so, under a good checksum: a bug, or malice.
    #[error("{} at {place}: {field} is out of bounds", self.code())]
    BadField {
        /// Where.
        place: Place,
        /// Which field.
        field: &'static str,
    },
    /// A whole page, but not the one that was looked for: a lost write or a damaged pointer.
    #[error("{} at {place}: expected {expected}, found {found}", self.code())]
    WrongOwner {
        /// Where.
        place: Place,
        /// In words.
        expected: String,
        /// In words.
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
    /// See [`PageError`].
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

    /// Returns the header of a page that was verified when it was read, without verifying again.
    /// `None` if its kind is unknown.
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

    /// Writes the header into `bytes`, checksum and LSN included as they are: call [`stamp`] when
    /// the page is complete.
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

    /// Returns a header with nothing in it but what every page has.
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

    /// Returns an error unless the page that `bytes` hold is `kind` and belongs to `owner`.
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

    /// Returns an error unless the page is `kind` and belongs to `owner`.
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

/// Offset of the epoch in which a copy of a page was made, 8 bytes.
pub const BIRTH_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, birth);
/// Offset of the highest birth below a map page, 8 bytes.
pub const BIRTH_MAX_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, birth_max);
/// Offset of the `flags` field in every page.
pub const FLAGS_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, flags);
/// Offset of the `count` field in every page.
pub const COUNT_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, count);
/// Offset of the `aux` fields in every page, 8 bytes each.
pub const AUX_OFFSET: usize = std::mem::offset_of!(PageHeaderDisk, aux);

/// Returns the checksum of a page: CRC-32C of everything behind the checksum.
#[must_use]
pub fn page_crc(bytes: &PageBytes) -> u32 {
    crc32c(&bytes[CRC_COVERS_FROM..])
}

/// Sets LSN and checksum: the page is complete as of `lsn`. Returns the checksum.
pub fn stamp(bytes: &mut PageBytes, lsn: Lsn) -> u32 {
    write_u64(bytes, 8, lsn.0);
    let crc = page_crc(bytes);
    write_u32(bytes, STAMP_OFFSET, crc);
    crc
}

/// Returns the LSN in a page's header.
#[must_use]
pub fn page_lsn(bytes: &PageBytes) -> Lsn {
    Lsn(read_u64(bytes, 8))
}

/// Reads a little-endian number at `offset`; 0 past the end.
#[must_use]
pub fn read_u64(bytes: &[u8], offset: usize) -> u64 {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<8>());
    field.map_or(0, |field| u64::from_le_bytes(*field))
}

/// Returns the epoch in which this copy of a page was made.
#[must_use]
pub fn birth_of(page: &PageBytes) -> Epoch {
    Epoch(read_u64(page, BIRTH_OFFSET))
}

/// Reads a little-endian number at `offset`; 0 past the end.
#[must_use]
pub fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<4>());
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

/// Reads a little-endian number at `offset`; 0 past the end.
#[must_use]
pub fn read_u16(bytes: &[u8], offset: usize) -> u16 {
    let field = bytes.get(offset..).and_then(|rest| rest.first_chunk::<2>());
    field.map_or(0, |field| u16::from_le_bytes(*field))
}

/// Writes a little-endian number at `offset`.
///
/// # Panics
///
/// If it does not fit in `bytes`.
pub fn write_u64(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

/// Writes a little-endian number at `offset`.
///
/// # Panics
///
/// If it does not fit in `bytes`.
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
