//! The fileset entry: 512 bytes that describe one fileset, with the root of its anode table.

mod moving;

use std::fmt;
use std::str::FromStr;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::{Anode, AnodeKind, StorageMode, slot_offset};
use crate::checksum::crc32c;
use crate::defect::{DefectCode, FoundDefect};
use crate::geometry::BLOCK_SHIFTS;
use crate::ids::{AnodeNo, EPOCH_MAX, Epoch, FILESET_SLOTS_MAX, FilesetId};
use crate::page::{PAGE_HEADER_BYTES, PageBytes, SLOT_BYTES, SLOTS_PER_PAGE, read_u64};

pub use moving::{MoveState, MoveToken};

/// Bound on generations, so that no stream can exhaust a pool's epochs.
pub const STREAM_GENERATION_MAX: u64 = 1 << 47;
/// Bytes of a fileset entry.
pub const FILESET_BYTES: usize = SLOT_BYTES;
/// Slot of the root fileset, which every pool has.
pub const ROOT_SLOT: u32 = 0;
/// Identity of the root fileset.
pub const ROOT_FILESET: FilesetId = FilesetId(1);
/// Owner in the pages of an anode table.
pub const ANODE_TABLE_ANODE: AnodeNo = AnodeNo(0);

/// Most bytes of a name part.
pub const NAME_PART_BYTES: usize = 64;
/// Name of the root fileset.
pub const ROOT_NAME: &str = "root";
const FLAG_READ_ONLY: u8 = 1;
/// Bit of `flags`: pointers of files may hold reservations.
const FLAG_MAY_RESERVE: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_READ_ONLY | FLAG_MAY_RESERVE;

const STATE_WRITABLE: u8 = 1;
const STATE_SNAPSHOT: u8 = 2;
const STATE_DELETED: u8 = 3;
const STATE_DELETED_SNAPSHOT: u8 = 4;
const STATE_HOLD: u8 = 5;
const STATE_RECEIVING: u8 = 6;

/// Format: `docs/FORMAT.md#fileset-entry`. For fields without comment see [`Fileset`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct FilesetDisk {
    /// Detects rot. CRC-32C of bytes 4 to 511.
    crc32c: U32,
    /// 0: free; 1: writable; 2: snapshot; 3: deleted, freeing in progress; 4: deleted snapshot,
    /// freeing in progress; 5: hold of a snapshot; 6: receiving a stream.
    state: u8,
    height: u8,
    block_shift: u8,
    /// Bit 0: read-only. Bit 1: pointers of files may hold reservations.
    flags: u8,
    /// Epoch of creation. Detects the entry of an earlier fileset.
    id: U64,
    /// Detects an entry in the wrong slot.
    slot: U32,
    /// Slot plus one; 0: none.
    above: U32,
    anodes_used: U64,
    /// First number never used (Netra's last-inode counter).
    anodes_end: U64,
    /// Owner in pages and blocks: the identity of the family's first fileset.
    family: U64,
    created_seconds: U64,
    /// [`Cursor::container`] of a deleted or receiving fileset; else 0.
    cursor_anode: U64,
    /// [`Cursor::end`] of a deleted or receiving fileset; else 0.
    cursor_end: U64,
    /// [`Cursor::height`] of a deleted or receiving fileset; else 0.
    cursor_height: u8,
    /// Move to another pool: 1: leaving; 2: arriving; 3: arrived; else 0.
    moving: u8,
    reserved_a: [u8; 14],
    table_pages: U64,
    table_fragments: U64,
    name: [u8; 64],
    /// Finds the fileset of a handle.
    uuid: [u8; 16],
    /// Newest epoch shared with the parent; 0: none. May a page be changed in place?
    shared_epoch: U64,
    /// Slot plus one; 0: none.
    parent: U32,
    reserved_b: [u8; 4],
    /// Which writes are refused? 0: no limit.
    quota: U64,
    /// How much space is closed to other filesets?
    reservation: U64,
    /// Keeps new generations above received ones.
    generation_base: U64,
    /// Received or receiving: identity of the content in every pool; 0: `uuid`. Leaving: target
    /// pool. Arrived: source pool.
    origin: [u8; 16],
    /// Which fileset of the other pool is the same one? 0: none.
    move_token: [u8; 16],
    root: [u8; 256],
}

const _: () = assert!(size_of::<FilesetDisk>() == FILESET_BYTES);

/// Counters beside an entry. Format: `docs/FORMAT.md#fileset-counts`.
///
/// Map updates change them without a lock, so the entry's checksum excludes them.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct FilesetCountsDisk {
    /// How much of the quota is used?
    fragments: U64,
    reserved: [u8; 40],
}

/// Bytes of the counters of one entry.
pub const COUNTS_BYTES: usize = 48;
const _: () = assert!(size_of::<FilesetCountsDisk>() == COUNTS_BYTES);
const _: () = assert!(PAGE_HEADER_BYTES + SLOTS_PER_PAGE * COUNTS_BYTES <= SLOT_BYTES);

/// Returns the offset of the counters of `slot` in its page.
#[must_use]
pub fn counts_offset(slot: usize) -> usize {
    PAGE_HEADER_BYTES + slot * COUNTS_BYTES
}

/// One part of a fileset's name: 1 to [`NAME_PART_BYTES`] bytes of text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePart(String);

/// Why text can't name a fileset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Empty, perhaps between two slashes.
    #[error("a part of the name is empty")]
    Empty,
    /// Longer than [`NAME_PART_BYTES`].
    #[error("a part of the name is longer than {NAME_PART_BYTES} bytes")]
    TooLong,
    /// `.` or `..`, which mean directories elsewhere.
    #[error("no part of the name may be \".\" or \"..\"")]
    Dots,
    /// A separator or an unprintable character.
    #[error("the name may not hold \":\", \"@\" or a control character")]
    Character,
}

impl NamePart {
    /// Verifies `text` as a name part.
    ///
    /// # Errors
    ///
    /// [`NameError`]: choose another name.
    pub fn new(text: &str) -> Result<NamePart, NameError> {
        let is_refused = |c: char| matches!(c, ':' | '@' | '/') || c.is_control();
        match text {
            "" => Err(NameError::Empty),
            _ if text.len() > NAME_PART_BYTES => Err(NameError::TooLong),
            "." | ".." => Err(NameError::Dots),
            _ if text.contains(is_refused) => Err(NameError::Character),
            _ => Ok(NamePart(text.to_owned())),
        }
    }

    /// Returns the lower bound of all names. It is no valid name itself.
    #[must_use]
    pub fn first() -> NamePart {
        NamePart(String::new())
    }

    /// Returns the name of the root fileset.
    #[must_use]
    pub fn root() -> NamePart {
        NamePart(ROOT_NAME.to_owned())
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn decode(bytes: &[u8; NAME_PART_BYTES]) -> Option<NamePart> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_PART_BYTES);
        let (text, padding) = bytes.split_at(end);
        let is_padded = padding.iter().all(|&byte| byte == 0);
        let text = std::str::from_utf8(text).ok().filter(|_| is_padded)?;
        NamePart::new(text).ok()
    }

    fn encode(&self) -> [u8; NAME_PART_BYTES] {
        let mut bytes = [0; NAME_PART_BYTES];
        bytes[..self.0.len()].copy_from_slice(self.0.as_bytes());
        bytes
    }
}

/// Full name of a fileset: its parts from the top, written with slashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilesetName(Vec<NamePart>);

impl FilesetName {
    /// Returns the parts, from the top.
    #[must_use]
    pub fn parts(&self) -> &[NamePart] {
        &self.0
    }
}

/// Returns the full name of these parts.
#[must_use]
pub fn joined(parts: &[NamePart]) -> String {
    parts.iter().map(NamePart::as_str).collect::<Vec<_>>().join("/")
}

impl FromStr for FilesetName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<FilesetName, NameError> {
        text.split('/').map(NamePart::new).collect::<Result<_, _>>().map(FilesetName)
    }
}

impl fmt::Display for FilesetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(&self.0))
    }
}

/// Progress of freeing a deleted fileset, or of receiving a stream.
///
/// The order is post-order: by container, the anode table last, then by end of the byte range, then
/// by height above the content. Everything up to and including the cursor is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// Anode number, or [`Cursor::TABLE`].
    pub container: u64,
    /// End of the byte range in the container.
    pub end: u64,
    /// Content and data 0, fine leaf 1, leaf 2, and so on.
    pub height: u8,
}

impl Cursor {
    /// The anode table, the last container.
    pub const TABLE: u64 = u64::MAX;
    /// No progress yet.
    pub const START: Cursor = Cursor { container: 0, end: 0, height: 0 };
    /// Height of a fine leaf.
    pub const FINE_LEAF_HEIGHT: u8 = 1;

    /// Returns the position of `blocks` blocks of `1 << shift` bytes from `first`, at `height`.
    #[must_use]
    pub fn at(container: u64, (first, blocks): (u64, u64), shift: u8, height: u8) -> Cursor {
        let end = first.saturating_add(blocks).saturating_mul(1 << shift);
        Cursor { container, end, height }
    }

    /// Returns the height for a pointer with `levels` levels of map pages below it.
    #[must_use]
    pub fn height_of(levels: u8) -> u8 {
        if levels == 0 { 0 } else { Cursor::FINE_LEAF_HEIGHT + levels }
    }
}

/// State of a fileset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesetState {
    /// In use.
    Writable,
    /// A read-only state of a fileset at one moment.
    Snapshot,
    /// Unreachable; freed up to the cursor.
    Deleted(Cursor),
    /// An unreachable snapshot; freed up to the cursor.
    DeletedSnapshot(Cursor),
    /// An empty entry: a name that protects a snapshot from deletion.
    Hold,
    /// Unreachable; a stream has arrived up to the cursor.
    Receiving(Cursor),
}

impl FilesetState {
    /// Returns the progress of freeing; `None` unless deleted.
    #[must_use]
    pub fn cursor(self) -> Option<Cursor> {
        match self {
            FilesetState::Writable
            | FilesetState::Snapshot
            | FilesetState::Hold
            | FilesetState::Receiving(_) => None,
            FilesetState::Deleted(cursor) | FilesetState::DeletedSnapshot(cursor) => Some(cursor),
        }
    }

    /// Whether it is a snapshot, deleted or not.
    #[must_use]
    pub fn is_of_snapshot(self) -> bool {
        matches!(self, FilesetState::Snapshot | FilesetState::DeletedSnapshot(_))
    }

    /// Returns the deleted state with freeing done up to `cursor`.
    #[must_use]
    pub fn freed_to(self, cursor: Cursor) -> FilesetState {
        if self.is_of_snapshot() {
            FilesetState::DeletedSnapshot(cursor)
        } else {
            FilesetState::Deleted(cursor)
        }
    }
}

/// A verified fileset entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fileset {
    /// Identity.
    pub id: FilesetId,
    /// Owner in pages and blocks.
    pub family: FilesetId,
    /// Own slot.
    pub slot: u32,
    /// Slot of the parent by name; of a snapshot, its fileset; of a hold, its snapshot.
    pub above: Option<u32>,
    /// State.
    pub state: FilesetState,
    /// Slot of the newest snapshot, or of the origin of a clone; of a snapshot, the previous one.
    pub parent: Option<u32>,
    /// Newest epoch shared with the parent.
    pub shared_epoch: Epoch,
    /// Whether the contents are read-only.
    pub is_read_only: bool,
    /// Whether pointers of files may hold reservations. Set before the first, never cleared.
    pub may_reserve: bool,
    /// Default block size: binary logarithm.
    pub block_shift: u8,
    /// Anodes in use.
    pub anodes_used: u64,
    /// First anode number never used.
    pub anodes_end: u64,
    /// Creation, in seconds since 1970.
    pub created_seconds: u64,
    /// Height of the anode table's map.
    pub height: u8,
    /// Pages of the anode table.
    pub table_pages: u64,
    /// Fragments of the anode table, map pages included.
    pub table_fragments: u64,
    /// Last part of the name.
    pub name: NamePart,
    /// Random identity in handles.
    pub uuid: [u8; 16],
    /// Added to an epoch to make a generation.
    pub generation_base: u64,
    /// Identity of received content in every pool; 0: `uuid`.
    pub origin: [u8; 16],
    /// Move to another pool.
    pub moving: Option<MoveState>,
    /// 8 pointers of the anode table.
    pub root: [u8; 256],
    /// Most bytes referenced; 0: no limit.
    pub quota_bytes: u64,
    /// Bytes reserved, referenced ones included.
    pub reservation_bytes: u64,
    /// Fragments referenced, stored beside the entry ([`counts_offset`]).
    pub fragments: u64,
}

/// Why a fileset entry is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilesetError {
    /// Rot in the slot.
    #[error(
        "{}: fileset slot {slot}: checksum stored {stored:#010x}, computed {computed:#010x}",
        self.code()
    )]
    BadChecksum {
        /// The slot.
        slot: u32,
        /// Checksum on disk.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A field out of its bounds.
    #[error("{}: fileset slot {slot}: {field} is out of bounds", self.code())]
    BadField {
        /// The slot.
        slot: u32,
        /// Name of the field.
        field: &'static str,
    },
}

impl FilesetDisk {
    fn cursor(&self) -> Cursor {
        let (container, end) = (self.cursor_anode.get(), self.cursor_end.get());
        Cursor { container, end, height: self.cursor_height }
    }
}

impl FoundDefect for FilesetError {
    fn code(&self) -> DefectCode {
        match self {
            FilesetError::BadChecksum { .. } => DefectCode::FS001,
            FilesetError::BadField { .. } => DefectCode::FS002,
        }
    }
}

impl Fileset {
    /// Returns an empty fileset, the first of its family.
    #[must_use]
    pub fn new(id: FilesetId, slot: u32, name: NamePart, block_shift: u8) -> Fileset {
        Fileset {
            id,
            family: id,
            slot,
            above: None,
            state: FilesetState::Writable,
            parent: None,
            shared_epoch: Epoch(0),
            is_read_only: false,
            may_reserve: false,
            block_shift,
            anodes_used: 0,
            anodes_end: 0,
            created_seconds: 0,
            height: 0,
            table_pages: 0,
            table_fragments: 0,
            name,
            uuid: [0; 16],
            generation_base: 0,
            origin: [0; 16],
            moving: None,
            root: [0; 256],
            quota_bytes: 0,
            reservation_bytes: 0,
            fragments: 0,
        }
    }

    /// Verifies entry `slot` of a page with its counters; `number` is the slot in the pool. `None`
    /// if free.
    ///
    /// # Errors
    ///
    /// [`FilesetError`] if the entry is damaged.
    ///
    /// # Panics
    ///
    /// If a page has no such slot.
    pub fn decode_in(
        page: &PageBytes,
        slot: usize,
        number: u32,
    ) -> Result<Option<Fileset>, FilesetError> {
        let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
        let bytes = bytes.expect("slots lie inside the page");
        let Some(mut fileset) = Fileset::decode(bytes, number)? else { return Ok(None) };
        fileset.fragments = read_u64(page, counts_offset(slot));
        if fileset.fragments > crate::ids::FRAGMENTS_MAX {
            return Err(FilesetError::BadField { slot: number, field: "fragments" });
        }
        Ok(Some(fileset))
    }

    /// Returns the bytes of the counters.
    #[must_use]
    pub fn encode_counts(&self) -> [u8; COUNTS_BYTES] {
        let disk = FilesetCountsDisk { fragments: U64::new(self.fragments), reserved: [0; 40] };
        zerocopy::transmute!(disk)
    }

    /// Verifies an entry without its counters; `None` if it is free.
    ///
    /// # Errors
    ///
    /// [`FilesetError`] if the entry is damaged.
    pub fn decode(bytes: &[u8; FILESET_BYTES], slot: u32) -> Result<Option<Fileset>, FilesetError> {
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let disk: &FilesetDisk = zerocopy::transmute_ref!(bytes);
        let (stored, computed) = (disk.crc32c.get(), crc32c(&bytes[4..]));
        if stored != computed {
            return Err(FilesetError::BadChecksum { slot, stored, computed });
        }
        let checks = [
            (disk.slot.get() == slot, "slot"),
            (disk.height <= crate::map::HEIGHT_MAX, "height"),
            (BLOCK_SHIFTS.contains(&disk.block_shift), "block_shift"),
            (disk.flags & !FLAGS_KNOWN == 0, "flags"),
            (disk.above.get() <= FILESET_SLOTS_MAX, "above"),
            (disk.above.get().checked_sub(1) != Some(slot), "above"),
            (disk.parent.get() <= FILESET_SLOTS_MAX, "parent"),
            (disk.parent.get().checked_sub(1) != Some(slot), "parent"),
            ((disk.parent.get() == 0) == (disk.shared_epoch.get() == 0), "shared_epoch"),
            (disk.shared_epoch.get() <= EPOCH_MAX, "shared_epoch"),
            (disk.generation_base.get() < STREAM_GENERATION_MAX, "generation_base"),
            (disk.family.get() != 0, "family"),
            (disk.anodes_end.get() <= crate::ids::ANODES_MAX, "anodes_end"),
            (disk.anodes_used.get() <= crate::ids::ANODES_MAX, "anodes_used"),
            (disk.table_pages.get() <= crate::ids::FRAGMENTS_MAX, "table_pages"),
            (disk.table_fragments.get() <= crate::ids::FRAGMENTS_MAX, "table_fragments"),
        ];
        if let Some(&(_, field)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(FilesetError::BadField { slot, field });
        }
        let bad = |field| FilesetError::BadField { slot, field };
        let cursor = disk.cursor();
        let state = match disk.state {
            STATE_WRITABLE if cursor == Cursor::START => FilesetState::Writable,
            STATE_SNAPSHOT if cursor == Cursor::START => FilesetState::Snapshot,
            STATE_HOLD if cursor == Cursor::START => FilesetState::Hold,
            STATE_WRITABLE | STATE_SNAPSHOT | STATE_HOLD => return Err(bad("cursor")),
            STATE_DELETED => FilesetState::Deleted(cursor),
            STATE_DELETED_SNAPSHOT => FilesetState::DeletedSnapshot(cursor),
            STATE_RECEIVING => FilesetState::Receiving(cursor),
            _ => return Err(bad("state")),
        };
        let moving = MoveState::decode(disk.moving, state, (disk.move_token, disk.origin))
            .ok_or_else(|| bad("moving"))?;
        let is_other_pool = moving.is_some_and(|moving| moving.other().is_some());
        Ok(Some(Fileset {
            id: FilesetId(disk.id.get()),
            family: FilesetId(disk.family.get()),
            slot,
            above: disk.above.get().checked_sub(1),
            state,
            parent: disk.parent.get().checked_sub(1),
            shared_epoch: Epoch(disk.shared_epoch.get()),
            is_read_only: disk.flags & FLAG_READ_ONLY != 0,
            may_reserve: disk.flags & FLAG_MAY_RESERVE != 0,
            block_shift: disk.block_shift,
            anodes_used: disk.anodes_used.get(),
            anodes_end: disk.anodes_end.get(),
            created_seconds: disk.created_seconds.get(),
            height: disk.height,
            table_pages: disk.table_pages.get(),
            table_fragments: disk.table_fragments.get(),
            name: NamePart::decode(&disk.name).ok_or_else(|| bad("name"))?,
            uuid: disk.uuid,
            generation_base: disk.generation_base.get(),
            origin: if is_other_pool { [0; 16] } else { disk.origin },
            moving,
            root: disk.root,
            quota_bytes: disk.quota.get(),
            reservation_bytes: disk.reservation.get(),
            fragments: 0,
        }))
    }

    /// Returns the bytes of the entry, with its checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; FILESET_BYTES] {
        let (state, cursor) = match self.state {
            FilesetState::Writable => (STATE_WRITABLE, Cursor::START),
            FilesetState::Snapshot => (STATE_SNAPSHOT, Cursor::START),
            FilesetState::Deleted(cursor) => (STATE_DELETED, cursor),
            FilesetState::DeletedSnapshot(cursor) => (STATE_DELETED_SNAPSHOT, cursor),
            FilesetState::Hold => (STATE_HOLD, Cursor::START),
            FilesetState::Receiving(cursor) => (STATE_RECEIVING, cursor),
        };
        let other = self.moving.and_then(MoveState::other);
        let disk = FilesetDisk {
            crc32c: U32::new(0),
            state,
            height: self.height,
            block_shift: self.block_shift,
            flags: if self.is_read_only { FLAG_READ_ONLY } else { 0 }
                | if self.may_reserve { FLAG_MAY_RESERVE } else { 0 },
            id: U64::new(self.id.0),
            slot: U32::new(self.slot),
            above: U32::new(self.above.map_or(0, |slot| slot + 1)),
            anodes_used: U64::new(self.anodes_used),
            anodes_end: U64::new(self.anodes_end),
            family: U64::new(self.family.0),
            created_seconds: U64::new(self.created_seconds),
            cursor_anode: U64::new(cursor.container),
            cursor_end: U64::new(cursor.end),
            cursor_height: cursor.height,
            moving: self.moving.map_or(0, MoveState::code),
            reserved_a: [0; 14],
            table_pages: U64::new(self.table_pages),
            table_fragments: U64::new(self.table_fragments),
            name: self.name.encode(),
            uuid: self.uuid,
            shared_epoch: U64::new(self.shared_epoch.0),
            parent: U32::new(self.parent.map_or(0, |slot| slot + 1)),
            reserved_b: [0; 4],
            quota: U64::new(self.quota_bytes),
            reservation: U64::new(self.reservation_bytes),
            generation_base: U64::new(self.generation_base),
            origin: other.unwrap_or(self.origin),
            move_token: self.moving.map_or([0; 16], |moving| moving.token().0),
            root: self.root,
        };
        let mut bytes: [u8; FILESET_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the anode table as a container of anode pages.
    #[must_use]
    pub fn table_anode(&self) -> Anode {
        let mut anode = Anode::new(AnodeKind::Internal, ANODE_TABLE_ANODE, self.family, 12);
        anode.storage = StorageMode::Blocked;
        anode.height = self.height;
        anode.pages = self.table_pages;
        anode.fragments = self.table_fragments;
        anode.root = self.root;
        anode
    }

    /// Stores the changed container of the anode table.
    pub fn set_table_anode(&mut self, anode: &Anode) {
        self.height = anode.height;
        self.table_pages = anode.pages;
        self.table_fragments = anode.fragments;
        self.root = anode.root;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(text: &str) -> NamePart {
        NamePart::new(text).expect("a name")
    }

    #[test]
    fn encode_then_decode_returns_the_fileset_and_flipped_bits_are_refused() {
        let mut fileset = Fileset::new(ROOT_FILESET, 3, part("home"), 14);
        fileset.anodes_end = 99;
        fileset.above = Some(7);
        (fileset.parent, fileset.shared_epoch) = (Some(5), Epoch(70));
        (fileset.is_read_only, fileset.may_reserve) = (true, true);
        (fileset.generation_base, fileset.origin) = (77, [9; 16]);
        fileset.root[200] = 1;
        (fileset.quota_bytes, fileset.reservation_bytes) = (10 << 30, 1 << 30);
        let mut bytes = fileset.encode();
        assert_eq!(Fileset::decode(&bytes, 3), Ok(Some(fileset)));
        for bit in 0..FILESET_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Fileset::decode(&bytes, 3).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_counts_of_an_entry_lie_beside_it_and_are_held_against_their_bound() {
        let mut page = [0; crate::page::PAGE_BYTES];
        let mut fileset = Fileset::new(FilesetId(9), 13, part("home"), 14);
        fileset.fragments = 77;
        let (entry, counts) = (slot_offset(6), counts_offset(6));
        page[entry..entry + FILESET_BYTES].copy_from_slice(&fileset.encode());
        page[counts..counts + COUNTS_BYTES].copy_from_slice(&fileset.encode_counts());
        assert_eq!(Fileset::decode_in(&page, 6, 13), Ok(Some(fileset)));
        assert_eq!(Fileset::decode_in(&page, 5, 12), Ok(None));
        page[counts + 7] = 0x80;
        let refused = FilesetError::BadField { slot: 13, field: "fragments" };
        assert_eq!(Fileset::decode_in(&page, 6, 13), Err(refused));
    }

    #[test]
    fn a_deleted_fileset_keeps_its_cursor_and_one_in_use_has_none() {
        let mut fileset = Fileset::new(FilesetId(9), 1, part("old"), 14);
        let cursor = Cursor { container: Cursor::TABLE, end: 4096, height: 2 };
        fileset.state = FilesetState::Snapshot;
        fileset.state = fileset.state.freed_to(cursor);
        let again = Fileset::decode(&fileset.encode(), 1).expect("whole").expect("in use");
        assert_eq!(again.state, FilesetState::DeletedSnapshot(cursor));
        fileset.state = FilesetState::Deleted(cursor);
        let mut bytes = fileset.encode();
        let decoded = Fileset::decode(&bytes, 1).expect("whole").expect("in use");
        assert_eq!(decoded.state.cursor(), Some(cursor));
        bytes[4] = STATE_WRITABLE;
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        let refused = FilesetError::BadField { slot: 1, field: "cursor" };
        assert_eq!(Fileset::decode(&bytes, 1), Err(refused));
    }

    #[test]
    fn a_fileset_on_its_way_keeps_its_move_and_no_other_state_has_one() {
        let (token, other) = (MoveToken([7; 16]), [8; 16]);
        let mut fileset = Fileset::new(FilesetId(9), 1, part("old"), 14);
        for moving in [
            MoveState::Leaving { token, to: other },
            MoveState::Arriving { token },
            MoveState::Arrived { token, from: other },
        ] {
            fileset.moving = Some(moving);
            fileset.state = FilesetState::Writable;
            assert_eq!(Fileset::decode(&fileset.encode(), 1), Ok(Some(fileset.clone())));
            fileset.state = FilesetState::Snapshot;
            let refused = FilesetError::BadField { slot: 1, field: "moving" };
            assert_eq!(Fileset::decode(&fileset.encode(), 1), Err(refused.clone()));
            fileset.state = FilesetState::Writable;
            fileset.moving = Some(MoveState::Arriving { token: MoveToken([0; 16]) });
            assert_eq!(Fileset::decode(&fileset.encode(), 1), Err(refused));
        }
    }

    #[test]
    fn cursors_rise_in_post_order_and_the_anode_table_is_last() {
        let at = |container, end, height| Cursor { container, end, height };
        let order = [
            Cursor::START,
            at(4, 4096, 0),
            at(4, 8192, 0),
            at(4, 8192, 2),
            at(4, 16384, 0),
            at(9, 4096, 0),
            at(Cursor::TABLE, 4096, 0),
            at(Cursor::TABLE, 4096, 2),
        ];
        assert!(order.is_sorted());
    }

    #[test]
    fn what_separates_names_or_cannot_be_printed_is_in_none() {
        for (text, error) in [
            ("", NameError::Empty),
            ("..", NameError::Dots),
            ("a/b", NameError::Character),
            ("a:b", NameError::Character),
            ("a@b", NameError::Character),
            ("a\nb", NameError::Character),
            (&"x".repeat(65), NameError::TooLong),
        ] {
            assert_eq!(NamePart::new(text), Err(error), "{text:?}");
        }
        assert_eq!(part(&"x".repeat(64)).encode(), [b'x'; 64]);
    }
}
