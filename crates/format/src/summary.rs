//! Segment summaries: owners of the blocks in a partial segment, found without the map.
//!
//! # Layout
//!
//! A partial segment is one flush: blocks, then summary pages. Each summary page names the previous
//! one. The last ends at the fill mark.
//!
//! ```text
//!   segment  | block | block | S | block | block | block | S | S | free ...    |
//!            '- partial segment 1 -'----- partial segment 2 -------'
//!                              ^ previous ------------------------+
//! ```
//!
//! # Invariants
//!
//! - Y1: `seal` is keyed by the pool's secret, so a file can't forge a summary.
//! - Y2: `previous_crc` is the checksum of the previous summary page; a mismatch ends the chain.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::hash::siphash13;
use crate::ids::{AnodeNo, Epoch, FilesetId, Generation, Lsn, Place, PoolId};
use crate::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, PageOwner, read_u64, stamp,
};
use crate::pointer::check_of;

/// Entries of a summary page.
pub const ENTRIES_PER_SUMMARY: usize = 62;
/// Bytes of an entry.
pub const SUMMARY_ENTRY_BYTES: usize = 64;

const _: () = assert!(PAGE_HEADER_BYTES + 62 * SUMMARY_ENTRY_BYTES == PAGE_BYTES);

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryKind {
    /// A block of a file.
    Block,
    /// The file was cut to `index` blocks.
    Truncated,
    /// A hole was punched: `fragments` blocks from `index`.
    Punched,
    /// The anode was freed.
    Freed,
}

impl SummaryKind {
    fn code(self) -> u8 {
        match self {
            SummaryKind::Block => 1,
            SummaryKind::Truncated => 2,
            SummaryKind::Punched => 3,
            SummaryKind::Freed => 4,
        }
    }

    fn from_code(code: u8) -> Option<SummaryKind> {
        match code {
            1 => Some(SummaryKind::Block),
            2 => Some(SummaryKind::Truncated),
            3 => Some(SummaryKind::Punched),
            4 => Some(SummaryKind::Freed),
            _ => None,
        }
    }
}

/// Format: `docs/FORMAT.md#summary-entry`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct SummaryEntryDisk {
    /// A [`SummaryKind`].
    kind: u8,
    block_shift: u8,
    /// Count less one.
    fragments: U16,
    offset: U32,
    /// Owner: fileset.
    fileset: U64,
    /// Owner: anode.
    anode: U64,
    /// Detects an entry of an earlier file.
    generation: U64,
    /// Which block of the file?
    index: U64,
    birth: U64,
    /// From the block pointer.
    check: [U32; 4],
}

const _: () = assert!(size_of::<SummaryEntryDisk>() == SUMMARY_ENTRY_BYTES);

/// One entry of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryEntry {
    /// Kind of the entry.
    pub kind: SummaryKind,
    /// Binary logarithm of the block size.
    pub block_shift: u8,
    /// Fragments of the block: 1 to 65,536.
    pub fragments: u32,
    /// Offset in the segment, in fragments.
    pub offset: u32,
    /// Fileset of the owner.
    pub fileset: FilesetId,
    /// Anode of the owner.
    pub anode: AnodeNo,
    /// Generation of the anode.
    pub generation: Generation,
    /// Index of the block in the file.
    pub index: u64,
    /// Epoch of the submission.
    pub birth: Epoch,
    /// Check of the block pointer.
    pub check: [u32; 4],
}

/// One page of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Own place.
    pub place: Place,
    /// Position in the log at the time of the write.
    pub lsn: Lsn,
    /// Epoch of the segment's opening.
    pub incarnation: Epoch,
    /// First fragment of the partial segment, or of this page's entries.
    pub partial_start: u32,
    /// Offset in the segment of the previous summary page plus one; 0: none.
    pub previous: u32,
    /// Checksum of the previous summary page.
    pub previous_crc: u32,
    /// At most [`ENTRIES_PER_SUMMARY`].
    pub entries: Vec<SummaryEntry>,
}

impl SegmentSummary {
    /// Returns the bytes of the page.
    ///
    /// # Panics
    ///
    /// If there are too many entries.
    #[must_use]
    pub fn encode(&self, pool_id: PoolId, secret: &[u8; 16]) -> PageBytes {
        assert!(self.entries.len() <= ENTRIES_PER_SUMMARY);
        let mut bytes = [0; PAGE_BYTES];
        let owner = PageOwner { index: self.incarnation.0, ..PageOwner::default() };
        let mut header = PageHeader::new(PageKind::Summary, pool_id, self.place, owner);
        header.lsn = self.lsn;
        header.birth = self.incarnation;
        header.count = u32::try_from(self.entries.len()).expect("bounded");
        header.aux = [
            u64::from(self.partial_start),
            u64::from(self.previous) << 32 | u64::from(self.previous_crc),
            seal_of(secret, self.place, self.incarnation, self.lsn),
            0,
        ];
        header.encode(&mut bytes);
        for (slot, entry) in self.entries.iter().enumerate() {
            let offset = PAGE_HEADER_BYTES + slot * SUMMARY_ENTRY_BYTES;
            bytes[offset..offset + SUMMARY_ENTRY_BYTES].copy_from_slice(&entry.encode());
        }
        stamp(&mut bytes, self.lsn);
        bytes
    }

    /// Verifies a page; `None` unless it is a summary of this pool.
    #[must_use]
    pub fn decode(
        bytes: &PageBytes,
        pool_id: PoolId,
        secret: &[u8; 16],
        place: Place,
    ) -> Option<SegmentSummary> {
        let header = PageHeader::decode(bytes, pool_id, place).ok()?;
        let seal = seal_of(secret, place, header.birth, header.lsn);
        let count = usize::try_from(header.count).ok()?;
        if header.kind != PageKind::Summary || header.aux[2] != seal || count > ENTRIES_PER_SUMMARY
        {
            return None;
        }
        let entries: Option<Vec<_>> =
            (0..count).map(|slot| SummaryEntry::of_slot(bytes, slot)).collect();
        Some(SegmentSummary {
            place,
            lsn: header.lsn,
            incarnation: header.birth,
            partial_start: u32::try_from(header.aux[0]).ok()?,
            previous: u32::try_from(header.aux[1] >> 32).ok()?,
            previous_crc: u32::try_from(header.aux[1] & 0xffff_ffff).ok()?,
            entries: entries?,
        })
    }
}

fn seal_of(secret: &[u8; 16], place: Place, incarnation: Epoch, lsn: Lsn) -> u64 {
    let key = [read_u64(secret, 0), read_u64(secret, 8)];
    let mut sealed = [0_u8; 24];
    sealed[..8].copy_from_slice(&place.bits().to_le_bytes());
    sealed[8..16].copy_from_slice(&incarnation.0.to_le_bytes());
    sealed[16..].copy_from_slice(&lsn.0.to_le_bytes());
    siphash13(key, &sealed)
}

impl SummaryEntry {
    /// Whether `bytes`, the stored part of the block, match the check.
    #[must_use]
    pub fn verifies(&self, bytes: &[u8]) -> bool {
        check_of(1 << self.block_shift.min(20), bytes).1 == self.check
    }

    fn encode(&self) -> [u8; SUMMARY_ENTRY_BYTES] {
        zerocopy::transmute!(SummaryEntryDisk {
            kind: self.kind.code(),
            block_shift: self.block_shift,
            fragments: U16::new(u16::try_from(self.fragments.max(1) - 1).expect("at most 65536")),
            offset: U32::new(self.offset),
            fileset: U64::new(self.fileset.0),
            anode: U64::new(self.anode.0),
            generation: U64::new(self.generation.0),
            index: U64::new(self.index),
            birth: U64::new(self.birth.0),
            check: self.check.map(U32::new),
        })
    }

    fn of_slot(bytes: &PageBytes, slot: usize) -> Option<SummaryEntry> {
        let field = bytes.get(PAGE_HEADER_BYTES + slot * SUMMARY_ENTRY_BYTES..)?;
        let (disk, _) = SummaryEntryDisk::ref_from_prefix(field).ok()?;
        Some(SummaryEntry {
            kind: SummaryKind::from_code(disk.kind)?,
            block_shift: disk.block_shift,
            fragments: u32::from(disk.fragments.get()) + 1,
            offset: disk.offset.get(),
            fileset: FilesetId(disk.fileset.get()),
            anode: AnodeNo(disk.anode.get()),
            generation: Generation(disk.generation.get()),
            index: disk.index.get(),
            birth: Epoch(disk.birth.get()),
            check: disk.check.map(U32::get),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SegmentSummary {
        let entry = SummaryEntry {
            kind: SummaryKind::Block,
            block_shift: 14,
            fragments: 4,
            offset: 12,
            fileset: FilesetId(1),
            anode: AnodeNo(20),
            generation: Generation(8),
            index: 3,
            birth: Epoch(77),
            check: [1, 2, 3, 4],
        };
        SegmentSummary {
            place: Place::new(0, 1, 300),
            lsn: Lsn(5000),
            incarnation: Epoch(70),
            partial_start: 256,
            previous: 255,
            previous_crc: 0xdead_beef,
            entries: vec![entry; ENTRIES_PER_SUMMARY],
        }
    }

    #[test]
    fn encode_then_decode_returns_the_summary() {
        let bytes = sample().encode(PoolId([1; 16]), &[2; 16]);
        let place = sample().place;
        assert_eq!(
            SegmentSummary::decode(&bytes, PoolId([1; 16]), &[2; 16], place),
            Some(sample())
        );
    }

    #[test]
    fn a_summary_sealed_with_another_secret_is_none() {
        let bytes = sample().encode(PoolId([1; 16]), &[2; 16]);
        let place = sample().place;
        assert_eq!(SegmentSummary::decode(&bytes, PoolId([1; 16]), &[3; 16], place), None);
    }
}
