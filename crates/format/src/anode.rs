//! The anode: 512 bytes that describe one container, like an inode.
//!
//! # Invariants
//!
//! - A1: `crc32c` covers the rest of the anode, so that rot in one anode leaves its neighbours
//!   readable.
//! - A2: A free anode is all zeros.
//! - A3: Inline data is at most 256 bytes in the place of the pointers, and zeros follow it.
//! - A4: Inline attributes are within their bounds, each once.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::attributes::InlineAttributes;
use crate::bytes::is_zero;
use crate::checksum::crc32c;
use crate::defect::{DefectCode, FoundDefect};
use crate::geometry::BLOCK_SHIFTS;
use crate::ids::{ANODE_NO_MAX, AnodeNo, EPOCH_MAX, Epoch, FRAGMENTS_MAX, FilesetId, Generation};
use crate::map::{HEIGHT_MAX, ROOT_POINTERS};
use crate::page::{PAGE_HEADER_BYTES, PageKind, SLOT_BYTES, SLOTS_PER_PAGE};
use crate::placement::Placement;
use crate::pointer::{BlockPointer, POINTER_BYTES};

/// Most bits of a hash in the number of a directory's page.
pub const DEPTH_MAX: u8 = 40;
/// Bytes of an anode.
pub const ANODE_BYTES: usize = SLOT_BYTES;
/// Most bytes of inline data.
pub const INLINE_BYTES_MAX: usize = 256;
/// Anode of a fileset's root directory.
pub const ROOT_ANODE: AnodeNo = AnodeNo(1);
/// Anode of a fileset's bitmap of anodes in use.
pub const ANODE_MAP_ANODE: AnodeNo = AnodeNo(2);
/// Anode of a fileset's orphan list.
pub const ORPHAN_ANODE: AnodeNo = AnodeNo(3);
/// Anode of a fileset's quotas, once these are switched on.
pub const QUOTA_ANODE: AnodeNo = AnodeNo(4);
/// First anode for files.
pub const FIRST_FILE_ANODE: AnodeNo = AnodeNo(16);
/// Slots for linktags in the head of an anode page.
pub const LINKTAG_SLOTS: usize = 7;
/// Bytes of a linktag slot.
pub const LINKTAG_BYTES: usize = 48;

/// Anode of the pool's fileset table, in the pool's root page.
pub const POOL_FILESET_TABLE: AnodeNo = AnodeNo(0);
/// Anode of the pool's deferred frees, in the pool's root page.
pub const POOL_DEFERRED_FREES: AnodeNo = AnodeNo(1);

/// What an anode describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AnodeKind {
    /// A file of bytes.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A block device node.
    BlockDevice = 4,
    /// A character device node.
    CharDevice = 5,
    /// A named pipe.
    Fifo = 6,
    /// A socket.
    Socket = 7,
    /// A container for internal use.
    Internal = 8,
}

impl AnodeKind {
    /// Every kind.
    pub const ALL: [AnodeKind; 8] = [
        AnodeKind::Regular,
        AnodeKind::Directory,
        AnodeKind::Symlink,
        AnodeKind::BlockDevice,
        AnodeKind::CharDevice,
        AnodeKind::Fifo,
        AnodeKind::Socket,
        AnodeKind::Internal,
    ];

    /// Returns the kind for a code on disk.
    #[must_use]
    pub fn from_code(code: u8) -> Option<AnodeKind> {
        AnodeKind::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the code on disk.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// How a container stores its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StorageMode {
    /// In the anode.
    Inline = 0,
    /// In blocks under a map, each with only the fragments that its contents need.
    Blocked = 2,
}

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskTime {
    /// Negative before 1970.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Format: `docs/FORMAT.md#anode`. For fields without comment see [`Anode`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AnodeDisk {
    /// CRC-32C of bytes 4 to 511. Detects rot within one slot.
    crc32c: U32,
    /// 0: free.
    kind: u8,
    /// A [`StorageMode`].
    storage: u8,
    height: u8,
    block_shift: u8,
    /// Own number. Detects a copy in the wrong slot.
    number: U64,
    /// Detects an anode of another fileset.
    fileset: U64,
    /// Detects a handle or a name of an earlier file.
    generation: U64,
    mode: U16,
    depth: u8,
    /// A [`Placement`].
    placement: u8,
    nlink: U32,
    uid: U32,
    gid: U32,
    rdev: U32,
    project: U32,
    size: U64,
    fragments: U64,
    /// Access, modification, change, birth.
    seconds: [U64; 4],
    /// Access, modification, change, birth.
    nanoseconds: [U32; 4],
    /// A hint for paths in messages and for the salvager.
    parent: U64,
    data_version: U64,
    birth: U64,
    xattr: U64,
    acl: U64,
    residency: U64,
    key: [U64; 2],
    entries: U32,
    /// Slot plus one; 0: none.
    orphan_slot: U32,
    pages: U64,
    attributes: [u8; 56],
    root: [u8; 256],
}

const _: () = assert!(size_of::<AnodeDisk>() == ANODE_BYTES);
/// Offset of the fragment count.
pub const FRAGMENTS_OFFSET: usize = std::mem::offset_of!(AnodeDisk, fragments);
/// Offset of the kind.
pub const KIND_OFFSET: usize = std::mem::offset_of!(AnodeDisk, kind);
/// Offset of the owner.
pub const UID_OFFSET: usize = std::mem::offset_of!(AnodeDisk, uid);
/// Offset of the group.
pub const GID_OFFSET: usize = std::mem::offset_of!(AnodeDisk, gid);
/// Offset of the project.
pub const PROJECT_OFFSET: usize = std::mem::offset_of!(AnodeDisk, project);
const _: () = assert!(ROOT_POINTERS == 8);

/// A verified anode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anode {
    /// What the anode describes.
    pub kind: AnodeKind,
    /// How the bytes are stored.
    pub storage: StorageMode,
    /// Height of the map.
    pub height: u8,
    /// Binary logarithm of the block size: 12 to 20.
    pub block_shift: u8,
    /// Own number.
    pub number: AnodeNo,
    /// Own fileset.
    pub fileset: FilesetId,
    /// Age of the number.
    pub generation: Generation,
    /// 12 permission bits.
    pub mode: u16,
    /// Number of names; of a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Quota project.
    pub project: u32,
    /// Disk group preferred for new data.
    pub placement: Placement,
    /// Length of the contents.
    pub size_bytes: u64,
    /// Fragments in use, map pages included.
    pub fragments: u64,
    /// Last access.
    pub atime: DiskTime,
    /// Last change of content.
    pub mtime: DiskTime,
    /// Last change of content or attributes.
    pub ctime: DiskTime,
    /// Creation.
    pub btime: DiskTime,
    /// A directory that names the anode.
    pub parent: AnodeNo,
    /// Rises with each change of content.
    pub data_version: u64,
    /// Epoch in which the number was allocated.
    pub birth: Epoch,
    /// Container of extended attributes; 0: none.
    pub xattr: AnodeNo,
    /// Container of an access list; 0: none.
    pub acl: AnodeNo,
    /// Container of residency; 0: all online.
    pub residency: AnodeNo,
    /// Key of a directory's hash.
    pub key: [u64; 2],
    /// Depth of a directory's deepest page.
    pub depth: u8,
    /// Names in a directory.
    pub entries: u32,
    /// Slot in the orphan list, for an unlinked file or a truncate in progress.
    pub orphan_slot: Option<u32>,
    /// Pages of a directory.
    pub pages: u64,
    /// Short extended attributes.
    pub attributes: InlineAttributes,
    /// 8 pointers, or inline data.
    pub root: [u8; 256],
}

/// Why an anode slot is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnodeError {
    /// Rot in the slot.
    #[error(
        "{}: anode {number}: checksum stored {stored:#010x}, computed {computed:#010x}",
        self.code()
    )]
    BadChecksum {
        /// Number found in the slot.
        number: u64,
        /// Checksum on disk.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A field out of its bounds.
    #[error("{}: anode {number}: {field} is out of bounds", self.code())]
    BadField {
        /// Number found in the slot.
        number: u64,
        /// Name of the field.
        field: &'static str,
    },
    /// The anode of another slot or fileset.
    #[error("{}: anode {found} of {found_fileset} in the slot of {expected}", self.code())]
    Misplaced {
        /// Number of the slot.
        expected: AnodeNo,
        /// Number found in the slot.
        found: AnodeNo,
        /// Fileset found in the slot.
        found_fileset: FilesetId,
    },
}

impl FoundDefect for AnodeError {
    fn code(&self) -> DefectCode {
        match self {
            AnodeError::BadChecksum { .. } => DefectCode::AN001,
            AnodeError::BadField { .. } => DefectCode::AN002,
            AnodeError::Misplaced { .. } => DefectCode::AN003,
        }
    }
}

impl Anode {
    /// Returns the kind of the container's pages; `None` for data.
    #[must_use]
    pub fn content_kind(&self) -> Option<PageKind> {
        match (self.kind, self.number) {
            (AnodeKind::Directory, _) => Some(PageKind::Directory),
            (AnodeKind::Internal, ANODE_MAP_ANODE) => Some(PageKind::AnodeMap),
            (AnodeKind::Internal, ORPHAN_ANODE) => Some(PageKind::OrphanList),
            (AnodeKind::Internal, QUOTA_ANODE) => Some(PageKind::Quota),
            (AnodeKind::Internal, _) => Some(PageKind::Attributes),
            _ => None,
        }
    }

    /// Returns an empty anode.
    #[must_use]
    pub fn new(kind: AnodeKind, number: AnodeNo, fileset: FilesetId, block_shift: u8) -> Anode {
        Anode {
            kind,
            storage: StorageMode::Inline,
            height: 0,
            block_shift,
            number,
            fileset,
            generation: Generation(0),
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            project: 0,
            placement: Placement::Any,
            size_bytes: 0,
            fragments: 0,
            atime: DiskTime::default(),
            mtime: DiskTime::default(),
            ctime: DiskTime::default(),
            btime: DiskTime::default(),
            parent: AnodeNo(0),
            data_version: 0,
            birth: Epoch(0),
            xattr: AnodeNo(0),
            acl: AnodeNo(0),
            residency: AnodeNo(0),
            key: [0; 2],
            depth: 0,
            entries: 0,
            orphan_slot: None,
            pages: 0,
            attributes: InlineAttributes::NONE,
            root: [0; 256],
        }
    }

    /// Verifies the slot of anode `number`; `None` if it is free.
    ///
    /// # Errors
    ///
    /// [`AnodeError`] if the slot is damaged; its neighbours are usable.
    pub fn decode(
        bytes: &[u8; ANODE_BYTES],
        fileset: FilesetId,
        number: AnodeNo,
    ) -> Result<Option<Anode>, AnodeError> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let disk: &AnodeDisk = zerocopy::transmute_ref!(bytes);
        let (stored, computed) = (disk.crc32c.get(), crc32c(&bytes[4..]));
        if stored != computed {
            return Err(AnodeError::BadChecksum { number: disk.number.get(), stored, computed });
        }
        let (found, found_fileset) = (AnodeNo(disk.number.get()), FilesetId(disk.fileset.get()));
        if found != number || found_fileset != fileset {
            return Err(AnodeError::Misplaced { expected: number, found, found_fileset });
        }
        Self::parse(disk).map(Some)
    }

    fn parse(disk: &AnodeDisk) -> Result<Anode, AnodeError> {
        let bad = |field| AnodeError::BadField { number: disk.number.get(), field };
        let storage = match disk.storage {
            0 => StorageMode::Inline,
            2 => StorageMode::Blocked,
            _ => return Err(bad("storage")),
        };
        let anode = Anode {
            kind: AnodeKind::from_code(disk.kind).ok_or(bad("kind"))?,
            storage,
            height: disk.height,
            block_shift: disk.block_shift,
            number: AnodeNo(disk.number.get()),
            fileset: FilesetId(disk.fileset.get()),
            generation: Generation(disk.generation.get()),
            mode: disk.mode.get(),
            nlink: disk.nlink.get(),
            uid: disk.uid.get(),
            gid: disk.gid.get(),
            rdev: disk.rdev.get(),
            project: disk.project.get(),
            placement: Placement::from_code(disk.placement).ok_or(bad("placement"))?,
            size_bytes: disk.size.get(),
            fragments: disk.fragments.get(),
            atime: time_of(disk, 0),
            mtime: time_of(disk, 1),
            ctime: time_of(disk, 2),
            btime: time_of(disk, 3),
            parent: AnodeNo(disk.parent.get()),
            data_version: disk.data_version.get(),
            birth: Epoch(disk.birth.get()),
            xattr: AnodeNo(disk.xattr.get()),
            acl: AnodeNo(disk.acl.get()),
            residency: AnodeNo(disk.residency.get()),
            key: disk.key.map(U64::get),
            depth: disk.depth,
            entries: disk.entries.get(),
            orphan_slot: disk.orphan_slot.get().checked_sub(1),
            pages: disk.pages.get(),
            attributes: InlineAttributes(disk.attributes),
            root: disk.root,
        };
        anode.verify().map_err(bad)?;
        anode.verify_counts().map_err(bad)?;
        Ok(anode)
    }

    /// Bounds counters above any pool's size and far below overflow.
    fn verify_counts(&self) -> Result<(), &'static str> {
        let checks = [
            (self.fragments <= FRAGMENTS_MAX, "fragments"),
            (self.pages <= FRAGMENTS_MAX, "pages"),
            (self.depth <= DEPTH_MAX, "depth"),
            (self.nlink <= 1 << 31, "nlink"),
            (self.data_version <= i64::MAX.unsigned_abs(), "data_version"),
            (self.generation.0 <= EPOCH_MAX, "generation"),
            (self.birth.0 <= EPOCH_MAX, "birth"),
            (self.parent.0 <= ANODE_NO_MAX, "parent"),
        ];
        checks.iter().find(|(holds, _)| !holds).map_or(Ok(()), |&(_, field)| Err(field))
    }

    /// Checks the bounds of every field.
    ///
    /// # Errors
    ///
    /// The name of the first field out of its bounds.
    pub fn verify(&self) -> Result<(), &'static str> {
        let is_inline = self.storage == StorageMode::Inline;
        let inline_max = u64::try_from(INLINE_BYTES_MAX).expect("small");
        let times = [self.atime, self.mtime, self.ctime, self.btime];
        let checks = [
            (self.number.0 <= ANODE_NO_MAX, "number"),
            (self.mode < 1 << 12, "mode"),
            (BLOCK_SHIFTS.contains(&self.block_shift), "block_shift"),
            (self.height <= HEIGHT_MAX, "height"),
            (self.size_bytes <= i64::MAX.unsigned_abs(), "size"),
            (!is_inline || self.size_bytes <= inline_max || !self.holds_bytes(), "inline size"),
            (!is_inline || self.is_zero_behind(), "inline bytes"),
            (self.attributes.is_sound(), "attributes"),
            (times.iter().all(|time| time.nanoseconds < 1_000_000_000), "nanoseconds"),
        ];
        checks.iter().find(|(holds, _)| !holds).map_or(Ok(()), |&(_, field)| Err(field))
    }

    fn holds_bytes(&self) -> bool {
        matches!(self.kind, AnodeKind::Symlink | AnodeKind::Regular)
    }

    fn is_zero_behind(&self) -> bool {
        let length = usize::try_from(self.size_bytes).unwrap_or(INLINE_BYTES_MAX);
        let behind = self.root.get(length..).unwrap_or(&[]);
        !self.holds_bytes() || is_zero(behind)
    }

    /// Returns the bytes of the anode, with its checksum.
    ///
    /// # Panics
    ///
    /// If a field is out of its bounds.
    #[must_use]
    pub fn encode(&self) -> [u8; ANODE_BYTES] {
        assert_eq!(self.verify(), Ok(()));
        let times = [self.atime, self.mtime, self.ctime, self.btime];
        let disk = AnodeDisk {
            crc32c: U32::new(0),
            kind: self.kind.code(),
            storage: match self.storage {
                StorageMode::Inline => 0,
                StorageMode::Blocked => 2,
            },
            height: self.height,
            block_shift: self.block_shift,
            number: U64::new(self.number.0),
            fileset: U64::new(self.fileset.0),
            generation: U64::new(self.generation.0),
            mode: U16::new(self.mode),
            depth: self.depth,
            placement: self.placement.code(),
            nlink: U32::new(self.nlink),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            rdev: U32::new(self.rdev),
            project: U32::new(self.project),
            size: U64::new(self.size_bytes),
            fragments: U64::new(self.fragments),
            seconds: times.map(|time| U64::new(time.seconds.cast_unsigned())),
            nanoseconds: times.map(|time| U32::new(time.nanoseconds)),
            parent: U64::new(self.parent.0),
            data_version: U64::new(self.data_version),
            birth: U64::new(self.birth.0),
            xattr: U64::new(self.xattr.0),
            acl: U64::new(self.acl.0),
            residency: U64::new(self.residency.0),
            key: self.key.map(U64::new),
            entries: U32::new(self.entries),
            orphan_slot: U32::new(self.orphan_slot.map_or(0, |slot| slot.saturating_add(1))),
            pages: U64::new(self.pages),
            attributes: self.attributes.0,
            root: self.root,
        };
        let mut bytes: [u8; ANODE_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns pointer `slot` of the root; `None` for a hole.
    #[must_use]
    pub fn root_pointer(&self, slot: usize) -> Option<BlockPointer> {
        let field = self.root.get(slot * POINTER_BYTES..)?.first_chunk::<POINTER_BYTES>()?;
        BlockPointer::decode(field)
    }

    /// Sets pointer `slot` of the root.
    ///
    /// # Panics
    ///
    /// If `slot` is not below 8.
    pub fn set_root_pointer(&mut self, slot: usize, pointer: Option<&BlockPointer>) {
        let encoded = pointer.map_or([0; POINTER_BYTES], BlockPointer::encode);
        self.root[slot * POINTER_BYTES..(slot + 1) * POINTER_BYTES].copy_from_slice(&encoded);
    }

    /// Returns the block size in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }
}

fn time_of(disk: &AnodeDisk, index: usize) -> DiskTime {
    let seconds = disk.seconds.get(index).map_or(0, |field| field.get());
    let nanoseconds = disk.nanoseconds.get(index).map_or(0, |field| field.get());
    DiskTime { seconds: seconds.cast_signed(), nanoseconds }
}

/// Returns the anode table page of anode `number`, and the slot in it.
#[must_use]
pub fn page_and_slot(number: AnodeNo) -> (u64, usize) {
    let slots = u64::try_from(SLOTS_PER_PAGE).expect("small");
    (number.0 / slots, usize::try_from(number.0 % slots).expect("below 7"))
}

/// Returns the offset of `slot` in an anode page.
#[must_use]
pub fn slot_offset(slot: usize) -> usize {
    SLOT_BYTES + slot * SLOT_BYTES
}

/// Record of a change to an anode's link count (Netra NFS, section 5). Format:
/// `docs/FORMAT.md#linktag`.
///
/// The working-set check reads the named directory page and corrects the count.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LinktagDisk {
    /// The anode; 0: the slot is empty.
    pub target: U64,
    /// Generation of the anode.
    pub generation: U64,
    /// The changed directory.
    pub directory: U64,
    /// The changed page of the directory.
    pub page: U64,
    /// Link count after the change.
    pub expected: U32,
    /// Unused.
    pub flags: U32,
    /// Epoch of the change.
    pub epoch: U64,
}

const _: () = assert!(size_of::<LinktagDisk>() == LINKTAG_BYTES);
const _: () = assert!(PAGE_HEADER_BYTES + LINKTAG_SLOTS * LINKTAG_BYTES <= SLOT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{AttributeName, Namespace};

    fn sample() -> Anode {
        let mut anode = Anode::new(AnodeKind::Regular, AnodeNo(77), FilesetId(5), 14);
        anode.storage = StorageMode::Blocked;
        anode.mtime = DiskTime { seconds: -5, nanoseconds: 999_999_999 };
        anode.size_bytes = 12345;
        anode.root[3] = 9;
        (anode.depth, anode.entries, anode.orphan_slot) = (3, 70_000, Some(12));
        anode.placement = Placement::Group(2);
        let name = AttributeName { namespace: Namespace::User, suffix: b"a" };
        anode.attributes = anode.attributes.with(name, b"value").expect("it fits");
        anode
    }

    #[test]
    fn encode_then_decode_returns_the_anode() {
        let anode = sample();
        let decoded = Anode::decode(&anode.encode(), FilesetId(5), AnodeNo(77));
        assert_eq!(decoded, Ok(Some(anode)));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let mut bytes = sample().encode();
        for bit in 0..ANODE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Anode::decode(&bytes, FilesetId(5), AnodeNo(77)).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_disk_group_that_no_pool_can_have_is_refused() {
        let mut bytes = sample().encode();
        bytes[std::mem::offset_of!(AnodeDisk, placement)] = 9;
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let decoded = Anode::decode(&bytes, FilesetId(5), AnodeNo(77));
        assert_eq!(decoded, Err(AnodeError::BadField { number: 77, field: "placement" }));
    }

    #[test]
    fn an_anode_of_another_slot_is_refused() {
        let bytes = sample().encode();
        let decoded = Anode::decode(&bytes, FilesetId(5), AnodeNo(78));
        assert!(matches!(decoded, Err(AnodeError::Misplaced { .. })));
    }
}
