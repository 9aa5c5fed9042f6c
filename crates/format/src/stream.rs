//! A send stream: records that recreate a fileset or snapshot elsewhere, whole or incrementally.
//!
//! # Layout
//!
//! ```text
//!   | head, begin | head, remove | head, anode | head, page | ... | head, anode end | ...
//!   | head, end |
//! ```
//!
//! An anode's contents are between its record and its end record.
//!
//! # Invariants
//!
//! - ST1: Records are numbered from 0, and each names its stream. So a missing, repeated, moved or
//!   foreign record is detected by its head.
//! - ST2: A checksum covers head and body.
//! - ST3: No body is longer than [`BODY_BYTES_MAX`].

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::ANODE_BYTES;
use crate::checksum::crc32c_of;
pub use crate::fileset::STREAM_GENERATION_MAX;
use crate::fileset::{NAME_PART_BYTES, NamePart};
use crate::ids::{ANODES_MAX, AnodeNo, PoolId};
use crate::page::{
    AUX_OFFSET, COUNT_OFFSET, FLAGS_OFFSET, PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes,
    read_u32, read_u64,
};

/// Bytes of the head of a record.
pub const RECORD_HEAD_BYTES: usize = 32;
/// Most bytes of data in one record.
pub const STREAM_DATA_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a body.
pub const BODY_BYTES_MAX: usize = STREAM_DATA_BYTES_MAX + 8;
/// Version of streams. A reader refuses every other.
pub const STREAM_VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"HFstream";
const _: () = assert!(size_of::<StreamBeginDisk>() < BODY_BYTES_MAX);

/// Head of a record. Format: `docs/FORMAT.md#stream-record`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamRecordHeadDisk {
    /// CRC-32C of bytes 4 to 31 and of the body. Detects damage in transit.
    crc32c: U32,
    /// A [`StreamRecordKind`].
    kind: u8,
    flags: u8,
    reserved: [u8; 2],
    body_bytes: U32,
    reserved_b: U32,
    /// Detects a missing, repeated or moved record.
    sequence: U64,
    /// Detects a record of another stream.
    stream: U64,
}

const _: () = assert!(size_of::<StreamRecordHeadDisk>() == RECORD_HEAD_BYTES);

/// Body of the first record. Format: `docs/FORMAT.md#stream-begin`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamBeginDisk {
    /// Detects a file that is not a stream.
    magic: [u8; 8],
    /// A reader refuses an unknown version.
    version: U16,
    block_shift: u8,
    reserved: [u8; 5],
    /// Sending pool.
    pool_id: [u8; 16],
    /// Identity of the base snapshot; 0: none. Does the receiver have it?
    from: [u8; 16],
    /// Identity of the sent node.
    to: [u8; 16],
    anodes_end: U64,
    generation_max: U64,
    /// Resumed stream: containers below this are complete.
    resume_container: U64,
    /// Resumed stream: end of the received bytes of `resume_container`.
    resume_end: U64,
    from_name: [u8; 64],
    to_name: [u8; 64],
}

/// Front of a body with data. Format: `docs/FORMAT.md#stream-data`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamDataDisk {
    /// Offset in the file.
    offset: U64,
}

/// Hole of a file. Format: `docs/FORMAT.md#stream-hole`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamHoleDisk {
    /// Offset in the file.
    offset: U64,
    length: U64,
}

/// Page of a container of names or attributes. Format: `docs/FORMAT.md#stream-page`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamPageDisk {
    /// Index in the container.
    index: U64,
    flags: U32,
    count: U32,
    aux: [U64; 4],
    body: [u8; PAGE_BODY_BYTES],
}

/// Number of a page or of an anode. Format: `docs/FORMAT.md#stream-number`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamNumberDisk {
    number: U64,
}

/// Body of the last record. Format: `docs/FORMAT.md#stream-end`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamEndDisk {
    /// Detects a cut stream. Counts the records before this one.
    records: U64,
    anodes: U64,
    removed: U64,
    data_bytes: U64,
}

const _: () = assert!(PAGE_HEADER_BYTES + PAGE_BODY_BYTES == 4096);

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamRecordKind {
    /// Parameters of the stream.
    Begin = 1,
    /// An anode; its contents follow.
    Anode = 2,
    /// Bytes of a file.
    Data = 3,
    /// A hole of a file.
    Hole = 4,
    /// A page of a container.
    Page = 5,
    /// A removed page of a container.
    NoPage = 6,
    /// End of an anode's contents.
    AnodeEnd = 7,
    /// A removed anode.
    Remove = 8,
    /// The last record.
    End = 9,
}

impl StreamRecordKind {
    const ALL: [StreamRecordKind; 9] = [
        StreamRecordKind::Begin,
        StreamRecordKind::Anode,
        StreamRecordKind::Data,
        StreamRecordKind::Hole,
        StreamRecordKind::Page,
        StreamRecordKind::NoPage,
        StreamRecordKind::AnodeEnd,
        StreamRecordKind::Remove,
        StreamRecordKind::End,
    ];

    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    fn code(self) -> u8 {
        self as u8
    }
}

/// Flags of an anode in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnodeFlags {
    /// Sent whole: the base snapshot lacks it, or has another file of its number.
    pub is_new: bool,
    /// Not in the order of numbers: belongs to the anode before it.
    pub is_extra: bool,
    /// An earlier, interrupted stream had the first bytes.
    pub is_resumed: bool,
}

impl AnodeFlags {
    fn bits(self) -> u8 {
        u8::from(self.is_new) | u8::from(self.is_extra) << 1 | u8::from(self.is_resumed) << 2
    }

    fn of(bits: u8) -> Option<AnodeFlags> {
        let is_set = |bit: u8| bits & bit != 0;
        let flags = AnodeFlags { is_new: is_set(1), is_extra: is_set(2), is_resumed: is_set(4) };
        (flags.bits() == bits).then_some(flags)
    }
}

/// Parameters of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBegin {
    /// Sending pool.
    pub pool_id: PoolId,
    /// Binary logarithm of the fileset's default block size.
    pub block_shift: u8,
    /// Identity of the base snapshot; zeros: none.
    pub from: [u8; 16],
    /// Identity of the sent node.
    pub to: [u8; 16],
    /// Bound above every anode number.
    pub anodes_end: u64,
    /// Highest possible generation.
    pub generation_max: u64,
    /// Received: all containers below the first number, and its bytes before the second number.
    pub resume: (u64, u64),
    /// Name of the base snapshot.
    pub from_name: Option<NamePart>,
    /// Name of the sent node.
    pub to_name: NamePart,
}

/// A page of a container in a stream.
#[derive(Clone, PartialEq, Eq)]
pub struct StreamPage {
    bytes: Box<[u8; size_of::<StreamPageDisk>()]>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRecord {
    /// See [`StreamRecordKind::Begin`].
    Begin(Box<StreamBegin>),
    /// The encoded anode without places, and its flags.
    Anode(Box<[u8; ANODE_BYTES]>, AnodeFlags),
    /// Offset in the file, and the bytes.
    Data(u64, Vec<u8>),
    /// Offset in the file, and length.
    Hole(u64, u64),
    /// A page of a container.
    Page(StreamPage),
    /// Index in the container.
    NoPage(u64),
    /// See [`StreamRecordKind::AnodeEnd`].
    AnodeEnd,
    /// The anode, and whether it belongs to the anode before it, against the order of numbers.
    Remove(AnodeNo, bool),
    /// Totals of the stream.
    End(StreamTotals),
}

/// Totals of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Records before the last one.
    pub records: u64,
    /// Anodes.
    pub anodes: u64,
    /// Removals.
    pub removed: u64,
    /// Bytes of data.
    pub data_bytes: u64,
}

/// Why a record is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// Damage in transit or in storage.
    #[error("record {sequence}: checksum stored {stored:#010x}, computed {computed:#010x}")]
    BadChecksum {
        /// Number of the expected record.
        sequence: u64,
        /// Checksum in the head.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// Missing or reordered records.
    #[error("record {found} stands where record {expected} belongs")]
    OutOfOrder {
        /// Expected number.
        expected: u64,
        /// Number found.
        found: u64,
    },
    /// A record of another stream.
    #[error("record {sequence} is of another stream")]
    Foreign {
        /// Number of the record.
        sequence: u64,
    },
    /// Not a stream.
    #[error("it is no stream of Holdfast")]
    NotAStream,
    /// Made by an older or newer program.
    #[error("the stream has version {found}, and this program knows {STREAM_VERSION}")]
    BadVersion {
        /// Version found.
        found: u16,
    },
    /// A field out of its bounds.
    #[error("record {sequence}: {field} is out of bounds")]
    BadField {
        /// Number of the record.
        sequence: u64,
        /// Name of the field.
        field: &'static str,
    },
}

impl StreamBegin {
    /// Returns the identifier of the stream in its records.
    #[must_use]
    pub fn stream(&self) -> u64 {
        let words = [self.from, self.to].map(u128::from_le_bytes);
        let mixed = words[0].rotate_left(17) ^ words[1];
        let [low, high]: [U64; 2] = zerocopy::transmute!(mixed.to_le_bytes());
        low.get() ^ high.get().rotate_left(31)
    }

    fn encode(&self) -> [u8; size_of::<StreamBeginDisk>()] {
        let name = |part: Option<&NamePart>| {
            let mut bytes = [0; NAME_PART_BYTES];
            let text = part.map_or("", NamePart::as_str);
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            bytes
        };
        zerocopy::transmute!(StreamBeginDisk {
            magic: MAGIC,
            version: U16::new(STREAM_VERSION),
            block_shift: self.block_shift,
            reserved: [0; 5],
            pool_id: self.pool_id.0,
            from: self.from,
            to: self.to,
            anodes_end: U64::new(self.anodes_end),
            generation_max: U64::new(self.generation_max),
            resume_container: U64::new(self.resume.0),
            resume_end: U64::new(self.resume.1),
            from_name: name(self.from_name.as_ref()),
            to_name: name(Some(&self.to_name)),
        })
    }

    fn decode(body: &[u8]) -> Result<StreamBegin, StreamError> {
        let disk = StreamBeginDisk::ref_from_bytes(body).map_err(|_| StreamError::NotAStream)?;
        if disk.magic != MAGIC {
            return Err(StreamError::NotAStream);
        }
        let found = disk.version.get();
        if found != STREAM_VERSION {
            return Err(StreamError::BadVersion { found });
        }
        let bad = |field| StreamError::BadField { sequence: 0, field };
        let name = |bytes: &[u8; NAME_PART_BYTES]| {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            let text = bytes.get(..end).and_then(|text| std::str::from_utf8(text).ok());
            text.and_then(|text| NamePart::new(text).ok())
        };
        let checks = [
            (crate::geometry::BLOCK_SHIFTS.contains(&disk.block_shift), "block_shift"),
            (disk.to != [0; 16], "to"),
            (disk.anodes_end.get() <= ANODES_MAX, "anodes_end"),
            (disk.generation_max.get() < STREAM_GENERATION_MAX, "generation_max"),
        ];
        if let Some(&(_, field)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(bad(field));
        }
        let from_name = if disk.from == [0; 16] {
            None
        } else {
            Some(name(&disk.from_name).ok_or(bad("from_name"))?)
        };
        Ok(StreamBegin {
            pool_id: PoolId(disk.pool_id),
            block_shift: disk.block_shift,
            from: disk.from,
            to: disk.to,
            anodes_end: disk.anodes_end.get(),
            generation_max: disk.generation_max.get(),
            resume: (disk.resume_container.get(), disk.resume_end.get()),
            from_name,
            to_name: name(&disk.to_name).ok_or(bad("to_name"))?,
        })
    }
}

impl std::fmt::Debug for StreamPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {}", self.index())
    }
}

impl StreamPage {
    /// Returns the stream form of `page`, at `index` of its container.
    #[must_use]
    pub fn of(page: &PageBytes, index: u64) -> StreamPage {
        let mut body = [0; PAGE_BODY_BYTES];
        body.copy_from_slice(&page[PAGE_HEADER_BYTES..]);
        let aux = [0, 8, 16, 24].map(|at| U64::new(read_u64(page, AUX_OFFSET + at)));
        let bytes = zerocopy::transmute!(StreamPageDisk {
            index: U64::new(index),
            flags: U32::new(read_u32(page, FLAGS_OFFSET)),
            count: U32::new(read_u32(page, COUNT_OFFSET)),
            aux,
            body,
        });
        StreamPage { bytes: Box::new(bytes) }
    }

    fn disk(&self) -> &StreamPageDisk {
        zerocopy::transmute_ref!(&*self.bytes)
    }

    /// Returns the index in the container.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.disk().index.get()
    }

    /// Writes the contents into `page`, whose header is already written.
    pub fn put(&self, page: &mut PageBytes) {
        let disk = self.disk();
        page[FLAGS_OFFSET..FLAGS_OFFSET + 4].copy_from_slice(disk.flags.as_bytes());
        page[COUNT_OFFSET..COUNT_OFFSET + 4].copy_from_slice(disk.count.as_bytes());
        page[AUX_OFFSET..AUX_OFFSET + 32].copy_from_slice(disk.aux.as_bytes());
        page[PAGE_HEADER_BYTES..].copy_from_slice(&disk.body);
    }
}

/// A record head with a known kind and a possible length.
#[derive(Clone, Copy, Debug)]
pub struct StreamRecordHead {
    kind: StreamRecordKind,
    bytes: [u8; RECORD_HEAD_BYTES],
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl StreamRecordHead {
    /// Decodes a head far enough to read the body, unverified.
    ///
    /// # Errors
    ///
    /// [`StreamError::NotAStream`], [`StreamError::BadField`].
    pub fn decode(
        bytes: [u8; RECORD_HEAD_BYTES],
        sequence: u64,
    ) -> Result<StreamRecordHead, StreamError> {
        let disk: &StreamRecordHeadDisk = zerocopy::transmute_ref!(&bytes);
        let bad = |field| match sequence {
            0 => StreamError::NotAStream,
            _ => StreamError::BadField { sequence, field },
        };
        let kind = StreamRecordKind::ALL.into_iter().find(|kind| kind.code() == disk.kind);
        let kind = kind.ok_or(bad("kind"))?;
        let body_bytes = usize::try_from(disk.body_bytes.get()).map_err(|_| bad("body_bytes"))?;
        // Each kind limits the length of its body (ST3).
        let is_possible = match kind {
            StreamRecordKind::Begin => body_bytes == size_of::<StreamBeginDisk>(),
            StreamRecordKind::Anode => body_bytes == ANODE_BYTES,
            StreamRecordKind::Data => (9..=BODY_BYTES_MAX).contains(&body_bytes),
            StreamRecordKind::Hole => body_bytes == size_of::<StreamHoleDisk>(),
            StreamRecordKind::Page => body_bytes == size_of::<StreamPageDisk>(),
            StreamRecordKind::NoPage | StreamRecordKind::Remove => {
                body_bytes == size_of::<StreamNumberDisk>()
            }
            StreamRecordKind::AnodeEnd => body_bytes == 0,
            StreamRecordKind::End => body_bytes == size_of::<StreamEndDisk>(),
        };
        let is_first = kind == StreamRecordKind::Begin;
        if !is_possible || is_first != (sequence == 0) {
            return Err(bad("body_bytes"));
        }
        Ok(StreamRecordHead { kind, bytes, body_bytes })
    }

    fn disk(&self) -> &StreamRecordHeadDisk {
        zerocopy::transmute_ref!(&self.bytes)
    }

    /// Verifies record `sequence` of `stream`, which may be unknown for the first record.
    ///
    /// # Errors
    ///
    /// [`StreamError`]: the stream is unusable from here.
    pub fn record(
        &self,
        body: &[u8],
        sequence: u64,
        stream: Option<u64>,
    ) -> Result<StreamRecord, StreamError> {
        let disk = self.disk();
        let covered = self.bytes.get(4..).unwrap_or(&[]);
        let (stored, computed) = (disk.crc32c.get(), crc32c_of([covered, body]));
        if stored != computed {
            return Err(StreamError::BadChecksum { sequence, stored, computed });
        }
        let found = disk.sequence.get();
        if found != sequence {
            return Err(StreamError::OutOfOrder { expected: sequence, found });
        }
        if stream.is_some_and(|stream| stream != disk.stream.get()) {
            return Err(StreamError::Foreign { sequence });
        }
        let bad = |field| StreamError::BadField { sequence, field };
        let is_zero = disk.reserved == [0; 2] && disk.reserved_b.get() == 0;
        if !is_zero
            || (disk.flags != 0 && self.kind != StreamRecordKind::Anode && !self.may_be_extra())
        {
            return Err(bad("reserved"));
        }
        let record = self.body(body, bad)?;
        if let StreamRecord::Begin(begin) = &record
            && begin.stream() != disk.stream.get()
        {
            return Err(StreamError::Foreign { sequence });
        }
        Ok(record)
    }

    fn may_be_extra(&self) -> bool {
        self.kind == StreamRecordKind::Remove && self.disk().flags == 1
    }

    fn body(
        &self,
        body: &[u8],
        bad: impl Fn(&'static str) -> StreamError,
    ) -> Result<StreamRecord, StreamError> {
        let number = || -> Result<u64, StreamError> {
            let disk = StreamNumberDisk::ref_from_bytes(body).map_err(|_| bad("body"))?;
            Ok(disk.number.get())
        };
        Ok(match self.kind {
            StreamRecordKind::Begin => StreamRecord::Begin(Box::new(StreamBegin::decode(body)?)),
            StreamRecordKind::Anode => {
                let flags = AnodeFlags::of(self.disk().flags).ok_or(bad("flags"))?;
                let bytes: &[u8; ANODE_BYTES] = body.try_into().map_err(|_| bad("body"))?;
                StreamRecord::Anode(Box::new(*bytes), flags)
            }
            StreamRecordKind::Data => {
                let (disk, data) =
                    StreamDataDisk::ref_from_prefix(body).map_err(|_| bad("body"))?;
                StreamRecord::Data(disk.offset.get(), data.to_vec())
            }
            StreamRecordKind::Hole => {
                let disk = StreamHoleDisk::ref_from_bytes(body).map_err(|_| bad("body"))?;
                StreamRecord::Hole(disk.offset.get(), disk.length.get())
            }
            StreamRecordKind::Page => {
                let bytes = body.try_into().map_err(|_| bad("body"))?;
                StreamRecord::Page(StreamPage { bytes: Box::new(bytes) })
            }
            StreamRecordKind::NoPage => StreamRecord::NoPage(number()?),
            StreamRecordKind::AnodeEnd => StreamRecord::AnodeEnd,
            StreamRecordKind::Remove => {
                StreamRecord::Remove(AnodeNo(number()?), self.may_be_extra())
            }
            StreamRecordKind::End => {
                let disk = StreamEndDisk::ref_from_bytes(body).map_err(|_| bad("body"))?;
                StreamRecord::End(StreamTotals {
                    records: disk.records.get(),
                    anodes: disk.anodes.get(),
                    removed: disk.removed.get(),
                    data_bytes: disk.data_bytes.get(),
                })
            }
        })
    }
}

impl StreamRecord {
    /// Returns the bytes of record `sequence` of `stream`.
    ///
    /// # Panics
    ///
    /// If there is more data than fits a record.
    #[must_use]
    pub fn encode(&self, sequence: u64, stream: u64) -> Vec<u8> {
        let number = |number| StreamNumberDisk { number: U64::new(number) }.as_bytes().to_vec();
        let (kind, flags, body) = match self {
            StreamRecord::Begin(begin) => (StreamRecordKind::Begin, 0, begin.encode().to_vec()),
            StreamRecord::Anode(bytes, flags) => {
                (StreamRecordKind::Anode, flags.bits(), bytes.to_vec())
            }
            StreamRecord::Data(offset, data) => {
                let front = data_front(*offset, &[data], sequence, stream);
                return [&front[..], data].concat();
            }
            StreamRecord::Hole(offset, length) => {
                let hole = StreamHoleDisk { offset: U64::new(*offset), length: U64::new(*length) };
                (StreamRecordKind::Hole, 0, hole.as_bytes().to_vec())
            }
            StreamRecord::Page(page) => (StreamRecordKind::Page, 0, page.bytes.to_vec()),
            StreamRecord::NoPage(index) => (StreamRecordKind::NoPage, 0, number(*index)),
            StreamRecord::AnodeEnd => (StreamRecordKind::AnodeEnd, 0, Vec::new()),
            StreamRecord::Remove(anode, is_extra) => {
                (StreamRecordKind::Remove, u8::from(*is_extra), number(anode.0))
            }
            StreamRecord::End(totals) => {
                let end = StreamEndDisk {
                    records: U64::new(totals.records),
                    anodes: U64::new(totals.anodes),
                    removed: U64::new(totals.removed),
                    data_bytes: U64::new(totals.data_bytes),
                };
                (StreamRecordKind::End, 0, end.as_bytes().to_vec())
            }
        };
        let head = head_of((kind, flags), &[&body], sequence, stream);
        [head.as_bytes(), &body].concat()
    }
}

/// Bytes in front of the data of a data record.
pub const DATA_FRONT_BYTES: usize = RECORD_HEAD_BYTES + size_of::<StreamDataDisk>();

/// Returns the front of a data record, so that a sender need not copy `parts`.
///
/// # Panics
///
/// If there is more data than fits a record.
#[must_use]
pub fn data_front(
    offset: u64,
    parts: &[&[u8]],
    sequence: u64,
    stream: u64,
) -> [u8; DATA_FRONT_BYTES] {
    let data_bytes: usize = parts.iter().map(|part| part.len()).sum();
    assert!((1..=STREAM_DATA_BYTES_MAX).contains(&data_bytes));
    let place = StreamDataDisk { offset: U64::new(offset) };
    let body: Vec<&[u8]> = [place.as_bytes()].into_iter().chain(parts.iter().copied()).collect();
    let head = head_of((StreamRecordKind::Data, 0), &body, sequence, stream);
    let mut front = [0; DATA_FRONT_BYTES];
    front[..RECORD_HEAD_BYTES].copy_from_slice(head.as_bytes());
    front[RECORD_HEAD_BYTES..].copy_from_slice(place.as_bytes());
    front
}

fn head_of(
    (kind, flags): (StreamRecordKind, u8),
    parts: &[&[u8]],
    sequence: u64,
    stream: u64,
) -> StreamRecordHeadDisk {
    let body_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let body_bytes = u32::try_from(body_bytes).expect("ST3: far below 2^32");
    let mut head = StreamRecordHeadDisk {
        crc32c: U32::new(0),
        kind: kind.code(),
        flags,
        reserved: [0; 2],
        body_bytes: U32::new(body_bytes),
        reserved_b: U32::new(0),
        sequence: U64::new(sequence),
        stream: U64::new(stream),
    };
    let bytes = head;
    let covered = [&bytes.as_bytes()[4..]].into_iter().chain(parts.iter().copied());
    head.crc32c = U32::new(crc32c_of(covered));
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PAGE_BYTES;

    fn begin() -> StreamBegin {
        StreamBegin {
            pool_id: PoolId([7; 16]),
            block_shift: 14,
            from: [1; 16],
            to: [2; 16],
            anodes_end: 99,
            generation_max: 12,
            resume: (17, 4096),
            from_name: NamePart::new("monday").ok(),
            to_name: NamePart::new("tuesday").expect("a name"),
        }
    }

    fn samples() -> Vec<StreamRecord> {
        let mut page = [0; PAGE_BYTES];
        page.iter_mut().zip(0..).for_each(|(byte, at): (&mut u8, usize)| {
            *byte = u8::try_from(at % 251).expect("small");
        });
        let flags = AnodeFlags { is_new: true, is_extra: false, is_resumed: true };
        vec![
            StreamRecord::Begin(Box::new(begin())),
            StreamRecord::Remove(AnodeNo(16), true),
            StreamRecord::Anode(Box::new([3; ANODE_BYTES]), flags),
            StreamRecord::Data(4096, vec![9; 5000]),
            StreamRecord::Hole(16384, 8192),
            StreamRecord::Page(StreamPage::of(&page, 5)),
            StreamRecord::NoPage(6),
            StreamRecord::AnodeEnd,
            StreamRecord::End(StreamTotals { records: 8, anodes: 1, removed: 1, data_bytes: 5000 }),
        ]
    }

    fn decoded(bytes: &[u8], sequence: u64) -> Result<StreamRecord, StreamError> {
        let head = bytes.first_chunk().ok_or(StreamError::NotAStream)?;
        let head = StreamRecordHead::decode(*head, sequence)?;
        let stream = (sequence > 0).then(|| begin().stream());
        head.record(&bytes[RECORD_HEAD_BYTES..], sequence, stream)
    }

    #[test]
    fn encode_then_decode_returns_the_record_and_flipped_bits_are_refused() {
        for (sequence, record) in (0..).zip(samples()) {
            let mut bytes = record.encode(sequence, begin().stream());
            assert_eq!(decoded(&bytes, sequence), Ok(record));
            for bit in 0..bytes.len().min(700) * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(decoded(&bytes, sequence).is_err(), "record {sequence}, bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert!(decoded(&bytes, sequence + 1).is_err(), "another place");
            let foreign = samples()[3].encode(3, 12);
            assert_eq!(decoded(&foreign, 3), Err(StreamError::Foreign { sequence: 3 }));
        }
    }

    #[test]
    fn a_page_is_what_it_was_but_for_whose_it_is() {
        let StreamRecord::Page(sent) = &samples()[5] else { panic!("it is a page") };
        let mut page = [0; PAGE_BYTES];
        sent.put(&mut page);
        assert_eq!(StreamPage::of(&page, 5), *sent);
        assert!(page[..FLAGS_OFFSET].iter().all(|&byte| byte == 0));
        let header = crate::page::PageHeader::parse(&page);
        assert!(header.is_none(), "it has no header of its own");
    }

    #[test]
    fn a_stream_of_another_version_says_so() {
        let mut bytes = begin().encode();
        bytes[8] = 9;
        assert_eq!(StreamBegin::decode(&bytes), Err(StreamError::BadVersion { found: 9 }));
        bytes[0] = 0;
        assert_eq!(StreamBegin::decode(&bytes), Err(StreamError::NotAStream));
    }
}
