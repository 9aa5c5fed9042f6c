//! The fileset entry: 512 bytes that describe one fileset and hold the root of its anode table.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::{Anode, AnodeKind, StorageMode};
use crate::checksum::crc32c;
use crate::defect::{DefectCode, FoundDefect};
use crate::ids::{AnodeNo, Epoch, FilesetId};
use crate::page::SLOT_BYTES;

/// Bytes of a fileset entry.
pub const FILESET_BYTES: usize = SLOT_BYTES;
/// Slot of the fileset that every pool is born with.
pub const ROOT_SLOT: u32 = 0;
/// Identity of the fileset that every pool is born with.
pub const ROOT_FILESET: FilesetId = FilesetId(1);
/// Anode number by which the pages of a fileset's anode table name their owner.
pub const ANODE_TABLE_ANODE: AnodeNo = AnodeNo(0);

/// Byte for byte. Format: `docs/FORMAT.md#fileset-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct FilesetDisk {
    /// CRC-32C of bytes 4 to 511.
    crc32c: U32,
    /// 0: free; 1: live; 2: clone; 3: fork; 4: being deleted.
    state: u8,
    /// Height of the anode table's map.
    height: u8,
    /// Default block size of files: binary logarithm.
    block_shift: u8,
    /// Zero.
    reserved_a: u8,
    /// Identity. Detects an entry in the wrong slot.
    id: U64,
    /// Own slot.
    slot: U32,
    /// Slot of the fileset that this is a clone or fork of, plus one; 0: none.
    origin_slot: U32,
    /// Anodes in use.
    anodes_used: U64,
    /// Anode numbers at and past this have never been used (Netra's last-inode counter).
    anodes_end: U64,
    /// Zero.
    reserved_b: U64,
    /// Quota in fragments; 0: none.
    quota_fragments: U64,
    /// Epoch of the last clone: blocks born at or before are shared.
    clone_epoch: U64,
    /// Epoch of creation.
    birth: U64,
    /// Container of the dead list; 0: none.
    dead_list: U64,
    /// Youngest clone's slot plus one; 0: none.
    youngest_clone: U32,
    /// Clones.
    clone_count: U32,
    /// Pages of the anode table.
    table_pages: U64,
    /// Fragments of the anode table's own pages, map pages included.
    table_fragments: U64,
    /// Name, padded with zeros.
    name: [u8; 64],
    /// Zero.
    reserved: [u8; 88],
    /// 8 pointers of the anode table.
    root: [u8; 256],
}

const _: () = assert!(size_of::<FilesetDisk>() == FILESET_BYTES);

/// A verified fileset entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fileset {
    /// Identity.
    pub id: FilesetId,
    /// Own slot.
    pub slot: u32,
    /// Default block size of files: binary logarithm.
    pub block_shift: u8,
    /// Anodes in use.
    pub anodes_used: u64,
    /// Anode numbers at and past this have never been used.
    pub anodes_end: u64,
    /// Epoch of the last clone.
    pub clone_epoch: Epoch,
    /// Epoch of creation.
    pub birth: Epoch,
    /// Height of the anode table's map.
    pub height: u8,
    /// Pages of the anode table.
    pub table_pages: u64,
    /// Fragments of the anode table's own pages, map pages included.
    pub table_fragments: u64,
    /// Name.
    pub name: [u8; 64],
    /// 8 pointers of the anode table.
    pub root: [u8; 256],
}

/// Why 512 bytes are not a usable fileset entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilesetError {
    /// Rot in the slot.
    #[error(
        "{}: fileset slot {slot}: checksum stored {stored:#010x}, computed {computed:#010x}",
        self.code()
    )]
    BadChecksum {
        /// Which slot.
        slot: u32,
        /// On disk.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// A field that can't be so.
    #[error("{}: fileset slot {slot}: {field} is out of bounds", self.code())]
    BadField {
        /// Which slot.
        slot: u32,
        /// Which field.
        field: &'static str,
    },
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
    /// Returns an empty fileset.
    #[must_use]
    pub fn new(id: FilesetId, slot: u32, block_shift: u8) -> Fileset {
        Fileset {
            id,
            slot,
            block_shift,
            anodes_used: 0,
            anodes_end: 0,
            clone_epoch: Epoch(0),
            birth: Epoch(0),
            height: 0,
            table_pages: 0,
            table_fragments: 0,
            name: [0; 64],
            root: [0; 256],
        }
    }

    /// Verifies `slot` and returns the fileset; `None` if it is free.
    ///
    /// # Errors
    ///
    /// See [`FilesetError`].
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
            (disk.state == 1, "state"),
            (disk.height <= crate::map::HEIGHT_MAX, "height"),
            ((12..=20).contains(&disk.block_shift), "block_shift"),
            (disk.anodes_end.get() <= crate::ids::ANODES_MAX, "anodes_end"),
            (disk.anodes_used.get() <= crate::ids::ANODES_MAX, "anodes_used"),
            (disk.table_pages.get() <= crate::ids::FRAGMENTS_MAX, "table_pages"),
            (disk.table_fragments.get() <= crate::ids::FRAGMENTS_MAX, "table_fragments"),
        ];
        if let Some(&(_, field)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(FilesetError::BadField { slot, field });
        }
        Ok(Some(Fileset {
            id: FilesetId(disk.id.get()),
            slot,
            block_shift: disk.block_shift,
            anodes_used: disk.anodes_used.get(),
            anodes_end: disk.anodes_end.get(),
            clone_epoch: Epoch(disk.clone_epoch.get()),
            birth: Epoch(disk.birth.get()),
            height: disk.height,
            table_pages: disk.table_pages.get(),
            table_fragments: disk.table_fragments.get(),
            name: disk.name,
            root: disk.root,
        }))
    }

    /// Returns the bytes of this entry, checksum included.
    #[must_use]
    pub fn encode(&self) -> [u8; FILESET_BYTES] {
        let disk = FilesetDisk {
            crc32c: U32::new(0),
            state: 1,
            height: self.height,
            block_shift: self.block_shift,
            reserved_a: 0,
            id: U64::new(self.id.0),
            slot: U32::new(self.slot),
            origin_slot: U32::new(0),
            anodes_used: U64::new(self.anodes_used),
            anodes_end: U64::new(self.anodes_end),
            reserved_b: U64::new(0),
            quota_fragments: U64::new(0),
            clone_epoch: U64::new(self.clone_epoch.0),
            birth: U64::new(self.birth.0),
            dead_list: U64::new(0),
            youngest_clone: U32::new(0),
            clone_count: U32::new(0),
            table_pages: U64::new(self.table_pages),
            table_fragments: U64::new(self.table_fragments),
            name: self.name,
            reserved: [0; 88],
            root: self.root,
        };
        let mut bytes: [u8; FILESET_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns the anode table as a container: an anode whose blocks are anode pages.
    #[must_use]
    pub fn table_anode(&self) -> Anode {
        let mut anode = Anode::new(AnodeKind::Internal, ANODE_TABLE_ANODE, self.id, 12);
        anode.storage = StorageMode::Blocked;
        anode.height = self.height;
        anode.pages = self.table_pages;
        anode.fragments = self.table_fragments;
        anode.root = self.root;
        anode
    }

    /// Takes over what the anode table's container has become.
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

    #[test]
    fn encode_then_decode_returns_the_fileset_and_flipped_bits_are_refused() {
        let mut fileset = Fileset::new(ROOT_FILESET, 3, 14);
        fileset.anodes_end = 99;
        fileset.root[200] = 1;
        let mut bytes = fileset.encode();
        assert_eq!(Fileset::decode(&bytes, 3), Ok(Some(fileset)));
        for bit in 0..FILESET_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Fileset::decode(&bytes, 3).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
