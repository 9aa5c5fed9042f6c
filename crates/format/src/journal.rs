//! The log: chunks of records, and the head pages that locate its beginning.
//!
//! # Layout
//!
//! A chunk is one log write: a header, records, padding to the next sector. The chunk at LSN `l` is
//! at byte `l % ring` of the ring behind the head pages, and never wraps: a pad chunk, header only,
//! fills the end of the ring.
//!
//! ```text
//!   | head a | a again | head b | b again | chunk ......... | chunk | pad |
//!                                         ^ ring                         ^ ring end
//! ```
//!
//! # Invariants
//!
//! - L1: `previous_crc` is the checksum of the previous chunk, so a reader follows one unbroken
//!   history.
//! - L2: `lsn` is the chunk's position since the pool was made. So chunks of earlier rounds of the
//!   ring, or from before a crash, are recognized by their LSN.
//! - L3: `flushed` is the durable end of the log when the chunk was written. A reader that stops
//!   before the `flushed` of a later whole chunk has found damage, not the end.
//! - L4: `head` is the newest durable head when the chunk was written. A reader that finds only an
//!   older head has lost a head, and the log that the older one names may be overwritten.

use runtime::planted;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{is_zero, length_without_zeros};
use crate::checksum::crc32c;
use crate::geometry::{Geometry, JOURNAL_HEAD_COPIES, JOURNAL_HEADS};
use crate::ids::{
    AnodeNo, EPOCH_MAX, Epoch, FilesetId, Generation, LSN_MAX, Lsn, Place, PoolId, SEQUENCE_MAX,
};
use crate::page::{
    PAGE_BYTES, PageBytes, PageError, PageHeader, PageKind, PageOwner, STAMP_BYTES, stamp,
};

/// Bytes of a chunk's header.
pub const CHUNK_HEADER_BYTES: usize = 64;
/// Most bytes of a chunk, padding included.
pub const CHUNK_BYTES_MAX: usize = 4 << 20;
/// `HFlg`, little-endian.
const CHUNK_MAGIC: u32 = 0x676c_4648;
const CRC_COVERS_FROM: usize = 8;

/// Header of a chunk. Format: `docs/FORMAT.md#log-chunk`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct ChunkDisk {
    /// Detects bytes that are not a chunk.
    magic: U32,
    /// Detects torn writes. Covers the rest of the header and the records.
    crc32c: U32,
    /// Detects a chunk of an earlier round of the ring, or of before a crash (L2).
    lsn: U64,
    /// Header and padding included.
    chunk_bytes: U32,
    /// 0: a pad.
    payload_bytes: U32,
    /// Detects a break in the history (L1).
    previous_crc: U32,
    /// Term of the writer. A higher one fences lower ones.
    writer_term: U32,
    /// Detects the log of another pool.
    pool_id: [u8; 16],
    /// Detects damage before the durable end (L3).
    flushed: U64,
    /// Detects a lost head (L4).
    head: U64,
}

const _: () = assert!(size_of::<ChunkDisk>() == CHUNK_HEADER_BYTES);

/// A chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Own position.
    pub lsn: Lsn,
    /// Bytes of the chunk, header and padding included.
    pub chunk_bytes: u32,
    /// Bytes of the records.
    pub payload_bytes: u32,
    /// Checksum of the previous chunk.
    pub previous_crc: u32,
    /// Term of the writer.
    pub writer_term: u32,
    /// Durable end of the log at the write (L3).
    pub flushed: Lsn,
    /// Sequence of the newest durable head at the write (L4).
    pub head: u64,
}

impl ChunkHeader {
    /// Writes the header into `chunk`, and returns the chunk's checksum.
    ///
    /// # Panics
    ///
    /// If `chunk` is shorter than the header states.
    pub fn seal(&self, pool_id: PoolId, chunk: &mut [u8]) -> u32 {
        let end = CHUNK_HEADER_BYTES + usize::try_from(self.payload_bytes).expect("fits memory");
        let disk = ChunkDisk {
            magic: U32::new(CHUNK_MAGIC),
            crc32c: U32::new(0),
            lsn: U64::new(self.lsn.0),
            chunk_bytes: U32::new(self.chunk_bytes),
            payload_bytes: U32::new(self.payload_bytes),
            previous_crc: U32::new(self.previous_crc),
            writer_term: U32::new(self.writer_term),
            pool_id: pool_id.0,
            flushed: U64::new(self.flushed.0),
            head: U64::new(self.head),
        };
        disk.write_to_prefix(chunk).expect("a chunk holds a header");
        let crc = crc32c(&chunk[CRC_COVERS_FROM..end]);
        chunk[4..8].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Returns a plausible header. The checksum is not verified, so the records need not be read.
    #[must_use]
    pub fn peek(bytes: &[u8], pool_id: PoolId) -> Option<ChunkHeader> {
        let (disk, _) = ChunkDisk::ref_from_prefix(bytes).ok()?;
        let header = ChunkHeader {
            lsn: Lsn(disk.lsn.get()),
            chunk_bytes: disk.chunk_bytes.get(),
            payload_bytes: disk.payload_bytes.get(),
            previous_crc: disk.previous_crc.get(),
            writer_term: disk.writer_term.get(),
            flushed: Lsn(disk.flushed.get()),
            head: disk.head.get(),
        };
        let chunk_bytes = usize::try_from(header.chunk_bytes).ok()?;
        let payload_bytes = usize::try_from(header.payload_bytes).ok()?;
        let is_pad = payload_bytes == 0;
        let is_sane = disk.magic.get() == CHUNK_MAGIC
            && disk.pool_id == pool_id.0
            && payload_bytes <= CHUNK_BYTES_MAX
            && (is_pad || chunk_bytes <= CHUNK_BYTES_MAX)
            && payload_bytes + CHUNK_HEADER_BYTES <= chunk_bytes;
        is_sane.then_some(header)
    }

    /// Verifies the chunk at the start of `bytes`. Returns its checksum, header and records.
    #[must_use]
    pub fn decode(bytes: &[u8], pool_id: PoolId) -> Option<(u32, ChunkHeader, &[u8])> {
        let header = ChunkHeader::peek(bytes, pool_id)?;
        let payload_bytes = usize::try_from(header.payload_bytes).ok()?;
        let end = CHUNK_HEADER_BYTES + payload_bytes;
        let covered = bytes.get(CRC_COVERS_FROM..end)?;
        let (disk, _) = ChunkDisk::ref_from_prefix(bytes).ok()?;
        let crc = crc32c(covered);
        let is_whole = crc == disk.crc32c.get() || planted!(ChunkChecksumNotCompared);
        is_whole.then(|| (crc, header, &bytes[CHUNK_HEADER_BYTES..end]))
    }
}

const KIND_UPDATE: u8 = 1;
const KIND_COMMIT: u8 = 2;
const KIND_MERGE: u8 = 3;
const KIND_RIDE: u8 = 4;

/// Head of a record. Format: `docs/FORMAT.md#log-record`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct LogRecordDisk {
    /// 1: update; 2: commit; 3: merge; 4: inline log data.
    kind: u8,
    reserved: u8,
    /// Pages of an update.
    pages: U16,
    /// Head included.
    record_bytes: U32,
    class: U64,
    /// Update: epoch of the transaction. Commit: LSN of the stamps. Merge: the surviving class.
    /// Inline log data: its place.
    value: U64,
}

/// Alignment of records.
pub const RECORD_UNIT_BYTES: usize = 8;
/// Bytes in front of every record.
pub const RECORD_HEAD_BYTES: usize = size_of::<LogRecordDisk>();
const _: () = assert!(RECORD_HEAD_BYTES == 24);

/// Head of inline log data. Format: `docs/FORMAT.md#inline-log-data`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct LogDataDisk {
    bytes: U32,
    block_shift: u8,
    reserved: [u8; 3],
    /// Owner: fileset.
    fileset: U64,
    /// Owner: anode.
    anode: U64,
    /// Detects a block of an earlier file.
    generation: U64,
    /// Which block of the file?
    index: U64,
    birth: U64,
}

/// Bytes in front of inline log data, behind the head of the record.
pub const LOG_DATA_HEAD_BYTES: usize = size_of::<LogDataDisk>();
const _: () = assert!(LOG_DATA_HEAD_BYTES == 48);

/// Owner of a block, as a summary of its segment records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDataOwner {
    /// Fileset.
    pub fileset: FilesetId,
    /// Anode.
    pub anode: AnodeNo,
    /// Generation of the anode.
    pub generation: Generation,
    /// Index in the file.
    pub index: u64,
    /// Birth of the block.
    pub birth: Epoch,
    /// Binary logarithm of the block size.
    pub block_shift: u8,
}

/// Head of each page of an update. Format: `docs/FORMAT.md#log-page`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PageUpdateDisk {
    place: U64,
    /// Runs of bytes that follow.
    runs: U16,
    /// Bit 0: the old stamp follows (12 bytes). Bit 1: a whole page follows instead of runs.
    flags: U16,
    /// Bytes of the whole page; the rest is zero.
    image_bytes: U16,
    reserved: U16,
}

/// Bytes in front of each page of an update.
pub const PAGE_UPDATE_BYTES: usize = size_of::<PageUpdateDisk>();
const _: () = assert!(PAGE_UPDATE_BYTES == 16);

const FLAG_STAMP: u16 = 1;
const FLAG_IMAGE: u16 = 2;
/// Flag in the length of a run: the old bytes are zeros and omitted.
const RUN_OLD_ZERO: u16 = 1 << 15;
/// Flag in the offset of a run: the new bytes are zeros and omitted.
const RUN_NEW_ZERO: u16 = 1 << 15;
static ZEROS: PageBytes = [0; PAGE_BYTES];
/// Bytes in front of each run.
pub const RUN_HEAD_BYTES: usize = 4;
/// Bytes of a page in a commit: place and checksum.
pub const COMMIT_PAGE_BYTES: usize = 12;

/// One run of changed bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageUpdateRun<'log> {
    /// Offset in the page.
    pub offset: usize,
    /// Old bytes; `None` for zeros.
    pub old: Option<&'log [u8]>,
    /// New bytes.
    pub new: &'log [u8],
}

/// Changes of one page in an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageUpdate<'log> {
    /// The page.
    pub place: Place,
    /// Checksum and LSN before the class's first change of the page.
    pub old_stamp: Option<&'log [u8]>,
    /// The whole page without trailing zeros, instead of runs.
    pub image: Option<&'log [u8]>,
    /// Changed bytes, in order.
    pub runs: Vec<PageUpdateRun<'log>>,
}

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord<'log> {
    /// A transaction changed pages.
    Update {
        /// Class of the transaction.
        class: u64,
        /// Epoch of the transaction.
        epoch: Epoch,
        /// The changes.
        pages: Vec<PageUpdate<'log>>,
    },
    /// A class is committed, with all classes merged into it.
    Commit {
        /// The class.
        class: u64,
        /// LSN of the stamps.
        lsn: Lsn,
        /// Pages of the class and their checksums.
        pages: Vec<(Place, u32)>,
    },
    /// A class was merged into another.
    Merge {
        /// The merged class.
        class: u64,
        /// The surviving class.
        into: u64,
    },
    /// Inline log data: bytes of a file, until their segment is written.
    LogData {
        /// Class of the map update.
        class: u64,
        /// Home location.
        place: Place,
        /// Owner of the block.
        owner: LogDataOwner,
        /// The bytes.
        bytes: &'log [u8],
    },
}

fn put_record(
    log: &mut Vec<u8>,
    kind: u8,
    pages: u16,
    class: u64,
    value: u64,
    body: impl FnOnce(&mut Vec<u8>),
) {
    let start = log.len();
    log.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
    body(log);
    let padded = log.len().next_multiple_of(RECORD_UNIT_BYTES);
    log.resize(padded, 0);
    let record_bytes = u32::try_from(log.len() - start).expect("records are bounded");
    let disk = LogRecordDisk {
        kind,
        reserved: 0,
        pages: U16::new(pages),
        record_bytes: U32::new(record_bytes),
        class: U64::new(class),
        value: U64::new(value),
    };
    disk.write_to_prefix(&mut log[start..]).expect("room was made");
}

/// Appends an update of `pages` pages, which `body` writes.
pub fn put_update(
    log: &mut Vec<u8>,
    class: u64,
    epoch: Epoch,
    pages: u16,
    body: impl FnOnce(&mut Vec<u8>),
) {
    put_record(log, KIND_UPDATE, pages, class, epoch.0, body);
}

/// Writer for the changes of one page, as runs of bytes.
#[must_use = "the page is not complete before `end`"]
pub struct PageRuns<'log> {
    log: &'log mut Vec<u8>,
    start: usize,
    disk: PageUpdateDisk,
}

impl<'log> PageRuns<'log> {
    /// Begins the page. `old_stamp` is the stamp before the class's first change.
    pub fn begin(log: &'log mut Vec<u8>, place: Place, old_stamp: Option<&[u8]>) -> Self {
        let start = log.len();
        let disk = PageUpdateDisk {
            place: U64::new(place.bits()),
            runs: U16::new(0),
            flags: U16::new(if old_stamp.is_some() { FLAG_STAMP } else { 0 }),
            image_bytes: U16::new(0),
            reserved: U16::new(0),
        };
        log.extend_from_slice(disk.as_bytes());
        log.extend_from_slice(old_stamp.unwrap_or(&[]));
        PageRuns { log, start, disk }
    }

    /// Appends a change at `offset`; `old` and `new` have equal length.
    pub fn put(&mut self, offset: usize, old: &[u8], new: &[u8]) {
        self.disk.runs += 1;
        let (was_zero, becomes_zero) = (is_zero(old), is_zero(new));
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let offset = u16::try_from(offset).expect("inside a page");
        let length = u16::try_from(new.len()).expect("inside a page");
        let [offset_low, offset_high] = (offset | flag(becomes_zero, RUN_NEW_ZERO)).to_le_bytes();
        let [length_low, length_high] = (length | flag(was_zero, RUN_OLD_ZERO)).to_le_bytes();
        self.log.reserve(RUN_HEAD_BYTES + old.len() + new.len());
        self.log.extend_from_slice(&[offset_low, offset_high, length_low, length_high]);
        if !was_zero {
            self.log.extend_from_slice(old);
        }
        if !becomes_zero {
            self.log.extend_from_slice(new);
        }
    }

    /// Completes the page.
    pub fn end(self) {
        let head = &mut self.log[self.start..];
        self.disk.write_to_prefix(head).expect("it was appended at the beginning");
    }
}

/// Appends a whole page to an update.
pub fn put_page_image(log: &mut Vec<u8>, place: Place, image: &PageBytes) {
    let kept = length_without_zeros(image);
    let disk = PageUpdateDisk {
        place: U64::new(place.bits()),
        runs: U16::new(0),
        flags: U16::new(FLAG_IMAGE),
        image_bytes: U16::new(u16::try_from(kept).expect("inside a page")),
        reserved: U16::new(0),
    };
    log.extend_from_slice(disk.as_bytes());
    log.extend_from_slice(&image[..kept]);
}

/// Appends the commit of `class`: place and stamped checksum of each page.
pub fn put_commit(log: &mut Vec<u8>, class: u64, lsn: Lsn, pages: &[(Place, u32)]) {
    put_record(log, KIND_COMMIT, 0, class, lsn.0, |log| {
        let count = u32::try_from(pages.len()).expect("classes are bounded");
        log.extend_from_slice(&count.to_le_bytes());
        for (place, crc) in pages {
            log.extend_from_slice(&place.bits().to_le_bytes());
            log.extend_from_slice(&crc.to_le_bytes());
        }
    });
}

/// Appends the merge of `class` into `into`.
pub fn put_merge(log: &mut Vec<u8>, class: u64, into: u64) {
    put_record(log, KIND_MERGE, 0, class, into, |_| {});
}

/// Appends inline log data for `place`.
pub fn put_log_data(
    log: &mut Vec<u8>,
    class: u64,
    place: Place,
    owner: &LogDataOwner,
    bytes: &[u8],
) {
    let disk = LogDataDisk {
        bytes: U32::new(u32::try_from(bytes.len()).expect("inline log data is small")),
        block_shift: owner.block_shift,
        reserved: [0; 3],
        fileset: U64::new(owner.fileset.0),
        anode: U64::new(owner.anode.0),
        generation: U64::new(owner.generation.0),
        index: U64::new(owner.index),
        birth: U64::new(owner.birth.0),
    };
    put_record(log, KIND_RIDE, 0, class, place.bits(), |log| {
        log.extend_from_slice(disk.as_bytes());
        log.extend_from_slice(bytes);
    });
}

/// Iterates over the records of a chunk. A malformed record yields `None` and ends the iteration:
/// since the checksum is right, it is a bug.
pub fn records(payload: &[u8]) -> impl Iterator<Item = Option<LogRecord<'_>>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some((record, behind)) = take_record(rest) else {
            rest = &[];
            return Some(None);
        };
        rest = behind;
        Some(Some(record))
    })
}

fn take_record(bytes: &[u8]) -> Option<(LogRecord<'_>, &[u8])> {
    let (disk, _) = LogRecordDisk::ref_from_prefix(bytes).ok()?;
    let record_bytes = usize::try_from(disk.record_bytes.get()).ok()?;
    let body = bytes.get(RECORD_HEAD_BYTES..record_bytes)?;
    let behind = bytes.get(record_bytes..)?;
    let (class, value) = (disk.class.get(), disk.value.get());
    let record = match disk.kind {
        KIND_UPDATE => {
            let pages = take_pages(body, disk.pages.get())?;
            LogRecord::Update { class, epoch: Epoch(value), pages }
        }
        KIND_COMMIT => LogRecord::Commit { class, lsn: Lsn(value), pages: take_commit(body)? },
        KIND_MERGE => LogRecord::Merge { class, into: value },
        KIND_RIDE => {
            let (disk, bytes) = LogDataDisk::ref_from_prefix(body).ok()?;
            let bytes = bytes.get(..usize::try_from(disk.bytes.get()).ok()?)?;
            let owner = LogDataOwner {
                fileset: FilesetId(disk.fileset.get()),
                anode: AnodeNo(disk.anode.get()),
                generation: Generation(disk.generation.get()),
                index: disk.index.get(),
                birth: Epoch(disk.birth.get()),
                block_shift: disk.block_shift,
            };
            LogRecord::LogData { class, place: Place::from_bits(value), owner, bytes }
        }
        _ => return None,
    };
    Some((record, behind))
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (field, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_le_bytes(*field), rest))
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (field, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_le_bytes(*field), rest))
}

fn take_commit(body: &[u8]) -> Option<Vec<(Place, u32)>> {
    let (count, rest) = take_u32(body)?;
    let count = usize::try_from(count).ok()?;
    let bytes = rest.get(..count.checked_mul(COMMIT_PAGE_BYTES)?)?;
    let (entries, _) = bytes.as_chunks::<COMMIT_PAGE_BYTES>();
    entries
        .iter()
        .map(|entry| {
            let (place, rest) = entry.split_first_chunk::<8>()?;
            let (crc, _) = take_u32(rest)?;
            Some((Place::from_bits(u64::from_le_bytes(*place)), crc))
        })
        .collect()
}

fn take_pages(mut rest: &[u8], count: u16) -> Option<Vec<PageUpdate<'_>>> {
    let mut pages = Vec::new();
    for _ in 0..count {
        let (disk, behind) = PageUpdateDisk::ref_from_prefix(rest).ok()?;
        rest = behind;
        let flags = disk.flags.get();
        let mut page = PageUpdate {
            place: Place::from_bits(disk.place.get()),
            old_stamp: None,
            image: None,
            runs: Vec::new(),
        };
        if flags & FLAG_STAMP != 0 {
            page.old_stamp = Some(rest.get(..STAMP_BYTES)?);
            rest = rest.get(STAMP_BYTES..)?;
        }
        if flags & FLAG_IMAGE != 0 {
            let kept = usize::from(disk.image_bytes.get());
            if kept > PAGE_BYTES {
                return None;
            }
            page.image = Some(rest.get(..kept)?);
            rest = rest.get(kept..)?;
        }
        for _ in 0..disk.runs.get() {
            let (run, behind) = take_run(rest)?;
            page.runs.push(run);
            rest = behind;
        }
        pages.push(page);
    }
    Some(pages)
}

fn take_run(rest: &[u8]) -> Option<(PageUpdateRun<'_>, &[u8])> {
    let (flagged_offset, rest) = take_u16(rest)?;
    let (flagged, mut rest) = take_u16(rest)?;
    let length = usize::from(flagged & !RUN_OLD_ZERO);
    let offset = usize::from(flagged_offset & !RUN_NEW_ZERO);
    if offset + length > PAGE_BYTES {
        return None;
    }
    let mut old = None;
    if flagged & RUN_OLD_ZERO == 0 {
        old = Some(rest.get(..length)?);
        rest = rest.get(length..)?;
    }
    if flagged_offset & RUN_NEW_ZERO != 0 {
        return Some((PageUpdateRun { offset, old, new: ZEROS.get(..length)? }, rest));
    }
    let new = rest.get(..length)?;
    Some((PageUpdateRun { offset, old, new }, rest.get(length..)?))
}

/// Contents of a head page: the beginning of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHead {
    /// Rises by one at each update; the valid head with the highest is current.
    pub sequence: u64,
    /// Position of the first chunk that recovery needs.
    pub tail: Lsn,
    /// Checksum of the chunk before `tail` (L1).
    pub previous_crc: u32,
    /// Above every epoch allocated before this head was written.
    pub epoch: Epoch,
    /// Last double-write group that is written home. Only a later one is replayed.
    pub double_write_sequence: u64,
}

impl JournalHead {
    /// Returns the first of the adjacent slots for the copies of this head.
    #[must_use]
    pub fn first_slot(&self) -> u64 {
        self.sequence % (JOURNAL_HEADS / JOURNAL_HEAD_COPIES) * JOURNAL_HEAD_COPIES
    }

    /// Returns the page for `slot`, below [`JOURNAL_HEADS`].
    #[must_use]
    pub fn encode(&self, pool_id: PoolId, geometry: &Geometry, slot: u64) -> PageBytes {
        let mut bytes = [0; PAGE_BYTES];
        let place = Self::place(geometry, slot);
        let owner = PageOwner { index: self.sequence, ..PageOwner::default() };
        let mut header = PageHeader::new(PageKind::JournalHead, pool_id, place, owner);
        header.aux =
            [self.tail.0, u64::from(self.previous_crc), self.epoch.0, self.double_write_sequence];
        header.encode(&mut bytes);
        stamp(&mut bytes, self.tail);
        bytes
    }

    /// Verifies the head in `slot`.
    ///
    /// # Errors
    ///
    /// [`PageError`] if the page is damaged: use another copy or the other head.
    pub fn decode(
        bytes: &PageBytes,
        pool_id: PoolId,
        geometry: &Geometry,
        slot: u64,
    ) -> Result<JournalHead, PageError> {
        let place = Self::place(geometry, slot);
        let header = PageHeader::decode(bytes, pool_id, place)?;
        header.expect(PageKind::JournalHead, header.owner)?;
        let head = JournalHead {
            sequence: header.owner.index,
            tail: Lsn(header.aux[0]),
            previous_crc: u32::try_from(header.aux[1] & 0xffff_ffff).expect("masked"),
            epoch: Epoch(header.aux[2]),
            double_write_sequence: header.aux[3],
        };
        let checks = [
            (head.sequence <= SEQUENCE_MAX, "sequence"),
            (slot / JOURNAL_HEAD_COPIES == head.first_slot() / JOURNAL_HEAD_COPIES, "sequence"),
            (head.tail.0 <= LSN_MAX, "tail"),
            (head.epoch.0 <= EPOCH_MAX, "epoch"),
            (head.double_write_sequence <= SEQUENCE_MAX, "double-write sequence"),
        ];
        match checks.iter().find(|(holds, _)| !holds) {
            Some(&(_, field)) => Err(PageError::BadField { place, field }),
            None => Ok(head),
        }
    }

    fn place(geometry: &Geometry, slot: u64) -> Place {
        Geometry::fixed_place(geometry.journal_offset + slot * 4096)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: LogDataOwner = LogDataOwner {
        fileset: FilesetId(1),
        anode: AnodeNo(20),
        generation: Generation(3),
        index: 5,
        birth: Epoch(6),
        block_shift: 14,
    };

    fn sample_payload() -> Vec<u8> {
        let mut log = Vec::new();
        let (mut old, mut new) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        old[200] = 1;
        new[200] = 2;
        new[300] = 3;
        old[400] = 4;
        put_update(&mut log, 5, Epoch(6), 2, |log| {
            let mut page = PageRuns::begin(log, Place::new(0, 1, 2), Some(&[9; 12]));
            for at in [200, 300, 400] {
                page.put(at, &old[at..=at], &new[at..=at]);
            }
            page.end();
            put_page_image(log, Place::new(0, 1, 3), &new);
        });
        put_merge(&mut log, 5, 7);
        put_log_data(&mut log, 7, Place::new(0, 2, 2), &OWNER, b"hello");
        put_commit(&mut log, 7, Lsn(44), &[(Place::new(0, 1, 2), 99)]);
        log
    }

    #[test]
    fn records_come_back_as_they_were_put() {
        let log = sample_payload();
        let found: Option<Vec<_>> = records(&log).collect();
        let found = found.expect("all records are whole");
        assert_eq!(found.len(), 4);
        let LogRecord::Update { class: 5, epoch: Epoch(6), pages } = &found[0] else {
            panic!("not the update: {:?}", found[0]);
        };
        assert_eq!(pages[0].old_stamp, Some(&[9_u8; 12][..]));
        assert_eq!(pages[0].runs[0], PageUpdateRun { offset: 200, old: Some(&[1]), new: &[2] });
        assert_eq!(pages[0].runs[1], PageUpdateRun { offset: 300, old: None, new: &[3] });
        assert_eq!(pages[0].runs[2], PageUpdateRun { offset: 400, old: Some(&[4]), new: &[0] });
        assert_eq!(pages[1].image.map(<[u8]>::len), Some(301));
        assert_eq!(found[1], LogRecord::Merge { class: 5, into: 7 });
        let place = Place::new(0, 2, 2);
        assert_eq!(found[2], LogRecord::LogData { class: 7, place, owner: OWNER, bytes: b"hello" });
        let pages = vec![(Place::new(0, 1, 2), 99)];
        assert_eq!(found[3], LogRecord::Commit { class: 7, lsn: Lsn(44), pages });
    }

    #[test]
    fn every_cut_and_every_flipped_bit_of_a_chunk_is_refused() {
        let payload = sample_payload();
        let mut chunk = vec![0; CHUNK_HEADER_BYTES];
        chunk.extend_from_slice(&payload);
        let header = ChunkHeader {
            lsn: Lsn(4096),
            chunk_bytes: u32::try_from(chunk.len()).expect("small"),
            payload_bytes: u32::try_from(payload.len()).expect("small"),
            previous_crc: 3,
            writer_term: 1,
            flushed: Lsn(0),
            head: 9,
        };
        let crc = header.seal(PoolId([1; 16]), &mut chunk);
        let decoded = ChunkHeader::decode(&chunk, PoolId([1; 16]));
        assert_eq!(decoded, Some((crc, header, &payload[..])));
        assert_eq!(ChunkHeader::decode(&chunk, PoolId([2; 16])), None);
        for length in 0..chunk.len() {
            assert_eq!(ChunkHeader::decode(&chunk[..length], PoolId([1; 16])), None);
        }
        for bit in 0..chunk.len() * 8 {
            chunk[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ChunkHeader::decode(&chunk, PoolId([1; 16])), None, "bit {bit}");
            chunk[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn damaged_records_never_panic() {
        let payload = sample_payload();
        for length in 0..payload.len() {
            let _ = records(&payload[..length]).count();
        }
        for bit in 0..payload.len() * 8 {
            let mut payload = payload.clone();
            payload[bit / 8] ^= 1 << (bit % 8);
            assert!(records(&payload).count() < 100);
        }
    }
}
