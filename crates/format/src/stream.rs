//! A stream of a node: records that make a copy of it elsewhere, whole or from an earlier one on.
//!
//! # Layout
//!
//! ```text
//!   | head, begin | head, remove | head, anode | head, page | ... | head, anode end | ...
//!   | head, end |
//! ```
//!
//! A head says what follows it, how long that is and which record of which stream it is. What
//! belongs to an anode stands between its record and its end.
//!
//! # Invariants
//!
//! - ST1: Records are numbered from 0, and each names its stream: one that is missing, twice there,
//!   moved or of another stream is found by its head.
//! - ST2: A checksum covers head and body.
//! - ST3: No body is longer than [`BODY_BYTES_MAX`], whatever a head says.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::ANODE_BYTES;
use crate::checksum::crc32c_of;
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
/// What a stream is written in. A reader refuses every other.
pub const STREAM_VERSION: u16 = 1;
/// No generation in a stream is as high as this, so that none can exhaust the epochs of a pool.
pub const STREAM_GENERATION_MAX: u64 = 1 << 47;

/// `HFstream`.
const MAGIC: [u8; 8] = *b"HFstream";
const _: () = assert!(size_of::<BeginDisk>() < BODY_BYTES_MAX);

/// The head of a record, byte for byte. Format: `docs/FORMAT.md#stream-record`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RecordHeadDisk {
    /// CRC-32C of bytes 4 to 31 and of the body. Detects what a way does to bytes.
    crc32c: U32,
    /// A [`RecordKind`].
    kind: u8,
    /// Meaning by kind.
    flags: u8,
    /// Zero.
    reserved: [u8; 2],
    /// Bytes of the body.
    body_bytes: U32,
    /// Zero.
    reserved_b: U32,
    /// Number of the record. Detects what is missing, twice there or moved.
    sequence: U64,
    /// Which stream. Detects records of another.
    stream: U64,
}

const _: () = assert!(size_of::<RecordHeadDisk>() == RECORD_HEAD_BYTES);

/// The body of the first record. Format: `docs/FORMAT.md#stream-begin`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct BeginDisk {
    /// Tells a stream from anything else.
    magic: [u8; 8],
    /// A reader refuses a version it does not know.
    version: U16,
    /// Default block size of the fileset: its binary logarithm.
    block_shift: u8,
    /// Zero.
    reserved: [u8; 5],
    /// The pool that sends.
    pool_id: [u8; 16],
    /// The node to begin from; 0: nothing.
    from: [u8; 16],
    /// The node that is sent.
    to: [u8; 16],
    /// Every anode number is below this.
    anodes_end: U64,
    /// No generation is above this.
    generation_max: U64,
    /// Where the stream goes on: all containers below this are there.
    resume_container: U64,
    /// And of this one all bytes before this.
    resume_end: U64,
    /// What the node to begin from is called.
    from_name: [u8; 64],
    /// What the node is called that is sent.
    to_name: [u8; 64],
}

/// The front of a body that has data. Format: `docs/FORMAT.md#stream-data`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamDataDisk {
    /// Where the data begins in the file.
    offset: U64,
}

/// A body that says where a file has a hole. Format: `docs/FORMAT.md#stream-hole`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamHoleDisk {
    /// Where it begins.
    offset: U64,
    /// Bytes.
    length: U64,
}

/// A body with a page of a container: of names, or of attributes. Format:
/// `docs/FORMAT.md#stream-page`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamPageDisk {
    /// Which page of its container.
    index: U64,
    /// As in the page's header.
    flags: U32,
    /// As in the page's header.
    count: U32,
    /// As in the page's header.
    aux: [U64; 4],
    /// What the page has behind its header.
    body: [u8; PAGE_BODY_BYTES],
}

/// A body that names a number: of a page, of an anode. Format: `docs/FORMAT.md#stream-number`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamNumberDisk {
    /// The number.
    number: U64,
}

/// The body of the last record. Format: `docs/FORMAT.md#stream-end`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct StreamEndDisk {
    /// Records before this one.
    records: U64,
    /// Anodes among them.
    anodes: U64,
    /// Removals among them.
    removed: U64,
    /// Bytes of data among them.
    data_bytes: U64,
}

const _: () = assert!(PAGE_HEADER_BYTES + PAGE_BODY_BYTES == 4096);

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// What the stream is of.
    Begin = 1,
    /// An anode, and what belongs to it follows.
    Anode = 2,
    /// Bytes of a file.
    Data = 3,
    /// A hole of a file.
    Hole = 4,
    /// A page of a container.
    Page = 5,
    /// A page that the container has not any more.
    NoPage = 6,
    /// Nothing of the anode follows any more.
    AnodeEnd = 7,
    /// An anode that is gone.
    Remove = 8,
    /// The last record.
    End = 9,
}

impl RecordKind {
    const ALL: [RecordKind; 9] = [
        RecordKind::Begin,
        RecordKind::Anode,
        RecordKind::Data,
        RecordKind::Hole,
        RecordKind::Page,
        RecordKind::NoPage,
        RecordKind::AnodeEnd,
        RecordKind::Remove,
        RecordKind::End,
    ];

    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    fn code(self) -> u8 {
        self as u8
    }
}

/// How an anode stands in its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnodeFlags {
    /// It is whole here: the node to begin from has it not, or another file of its number.
    pub is_new: bool,
    /// It follows the anode before it out of turn, and belongs to it.
    pub is_extra: bool,
    /// Its first bytes were in the stream that broke off.
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

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The pool that sends.
    pub pool_id: PoolId,
    /// Default block size of the fileset: its binary logarithm.
    pub block_shift: u8,
    /// The node to begin from; zeros: nothing.
    pub from: [u8; 16],
    /// The node that is sent.
    pub to: [u8; 16],
    /// Every anode number is below this.
    pub anodes_end: u64,
    /// No generation is above this.
    pub generation_max: u64,
    /// Where the stream goes on: all containers below the first are there, and of it all bytes
    /// before the second.
    pub resume: (u64, u64),
    /// What the node to begin from is called; `None`: there is none.
    pub from_name: Option<NamePart>,
    /// What the node is called that is sent.
    pub to_name: NamePart,
}

/// A page of a container, as a stream has it.
#[derive(Clone, PartialEq, Eq)]
pub struct SentPage {
    bytes: Box<[u8; size_of::<StreamPageDisk>()]>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// See [`RecordKind::Begin`].
    Begin(Box<Begin>),
    /// The anode as it is encoded, without places.
    Anode(Box<[u8; ANODE_BYTES]>, AnodeFlags),
    /// Where it begins in the file, and the bytes.
    Data(u64, Vec<u8>),
    /// Where it begins, and how many bytes it has.
    Hole(u64, u64),
    /// A page of a container.
    Page(SentPage),
    /// Its number in the container.
    NoPage(u64),
    /// See [`RecordKind::AnodeEnd`].
    AnodeEnd,
    /// The anode; whether it follows the record before it out of turn.
    Remove(AnodeNo, bool),
    /// Totals.
    End(Totals),
}

/// What a stream had, as its last record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records before the last one.
    pub records: u64,
    /// Anodes among them.
    pub anodes: u64,
    /// Removals among them.
    pub removed: u64,
    /// Bytes of data among them.
    pub data_bytes: u64,
}

/// Why bytes are no record of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The way, or the store, has changed them.
    #[error("record {sequence}: checksum stored {stored:#010x}, computed {computed:#010x}")]
    BadChecksum {
        /// The record that was expected.
        sequence: u64,
        /// In the head.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// Records are missing, or not in order.
    #[error("record {found} stands where record {expected} belongs")]
    OutOfOrder {
        /// The number that comes next.
        expected: u64,
        /// The number that came.
        found: u64,
    },
    /// A record of another stream.
    #[error("record {sequence} is of another stream")]
    Foreign {
        /// Its number.
        sequence: u64,
    },
    /// It is no stream at all.
    #[error("it is no stream of Holdfast")]
    NotAStream,
    /// A program of another time has made it.
    #[error("the stream has version {found}, and this program knows {STREAM_VERSION}")]
    BadVersion {
        /// Its version.
        found: u16,
    },
    /// A field that can't be so.
    #[error("record {sequence}: {field} is out of bounds")]
    BadField {
        /// Its number.
        sequence: u64,
        /// Which field.
        field: &'static str,
    },
}

impl Begin {
    /// Returns what each record of the stream names.
    #[must_use]
    pub fn stream(&self) -> u64 {
        let words = [self.from, self.to].map(u128::from_le_bytes);
        let mixed = words[0].rotate_left(17) ^ words[1];
        let [low, high]: [U64; 2] = zerocopy::transmute!(mixed.to_le_bytes());
        low.get() ^ high.get().rotate_left(31)
    }

    fn encode(&self) -> [u8; size_of::<BeginDisk>()] {
        let name = |part: Option<&NamePart>| {
            let mut bytes = [0; NAME_PART_BYTES];
            let text = part.map_or("", NamePart::as_str);
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            bytes
        };
        zerocopy::transmute!(BeginDisk {
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

    fn decode(body: &[u8]) -> Result<Begin, StreamError> {
        let disk = BeginDisk::ref_from_bytes(body).map_err(|_| StreamError::NotAStream)?;
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
        Ok(Begin {
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

impl std::fmt::Debug for SentPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {}", self.index())
    }
}

impl SentPage {
    /// Returns what a stream has of `page`, number `index` of its container.
    #[must_use]
    pub fn of(page: &PageBytes, index: u64) -> SentPage {
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
        SentPage { bytes: Box::new(bytes) }
    }

    fn disk(&self) -> &StreamPageDisk {
        zerocopy::transmute_ref!(&*self.bytes)
    }

    /// Returns which page of its container it is.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.disk().index.get()
    }

    /// Makes `page`, whose header is there, what was sent.
    pub fn put(&self, page: &mut PageBytes) {
        let disk = self.disk();
        page[FLAGS_OFFSET..FLAGS_OFFSET + 4].copy_from_slice(disk.flags.as_bytes());
        page[COUNT_OFFSET..COUNT_OFFSET + 4].copy_from_slice(disk.count.as_bytes());
        page[AUX_OFFSET..AUX_OFFSET + 32].copy_from_slice(disk.aux.as_bytes());
        page[PAGE_HEADER_BYTES..].copy_from_slice(&disk.body);
    }
}

/// The head of a record, with a kind that is known and a length that is possible.
#[derive(Clone, Copy, Debug)]
pub struct RecordHead {
    kind: RecordKind,
    bytes: [u8; RECORD_HEAD_BYTES],
    /// Bytes of the body.
    pub body_bytes: usize,
}

impl RecordHead {
    /// Returns a head, of which nothing is verified but what a reader must know to go on.
    ///
    /// # Errors
    ///
    /// [`StreamError::NotAStream`], [`StreamError::BadField`].
    pub fn decode(
        bytes: [u8; RECORD_HEAD_BYTES],
        sequence: u64,
    ) -> Result<RecordHead, StreamError> {
        let disk: &RecordHeadDisk = zerocopy::transmute_ref!(&bytes);
        let bad = |field| match sequence {
            0 => StreamError::NotAStream,
            _ => StreamError::BadField { sequence, field },
        };
        let kind = RecordKind::ALL.into_iter().find(|kind| kind.code() == disk.kind);
        let kind = kind.ok_or(bad("kind"))?;
        let body_bytes = usize::try_from(disk.body_bytes.get()).map_err(|_| bad("body_bytes"))?;
        // ST3.
        let is_possible = match kind {
            RecordKind::Begin => body_bytes == size_of::<BeginDisk>(),
            RecordKind::Anode => body_bytes == ANODE_BYTES,
            RecordKind::Data => (9..=BODY_BYTES_MAX).contains(&body_bytes),
            RecordKind::Hole => body_bytes == size_of::<StreamHoleDisk>(),
            RecordKind::Page => body_bytes == size_of::<StreamPageDisk>(),
            RecordKind::NoPage | RecordKind::Remove => body_bytes == size_of::<StreamNumberDisk>(),
            RecordKind::AnodeEnd => body_bytes == 0,
            RecordKind::End => body_bytes == size_of::<StreamEndDisk>(),
        };
        let is_first = kind == RecordKind::Begin;
        if !is_possible || is_first != (sequence == 0) {
            return Err(bad("body_bytes"));
        }
        Ok(RecordHead { kind, bytes, body_bytes })
    }

    fn disk(&self) -> &RecordHeadDisk {
        zerocopy::transmute_ref!(&self.bytes)
    }

    /// Returns the record that this head and `body` are, record `sequence` of `stream`; of the
    /// first one nobody knows the stream.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn record(
        &self,
        body: &[u8],
        sequence: u64,
        stream: Option<u64>,
    ) -> Result<Record, StreamError> {
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
        if !is_zero || (disk.flags != 0 && self.kind != RecordKind::Anode && !self.may_be_extra()) {
            return Err(bad("reserved"));
        }
        let record = self.body(body, bad)?;
        if let Record::Begin(begin) = &record
            && begin.stream() != disk.stream.get()
        {
            return Err(StreamError::Foreign { sequence });
        }
        Ok(record)
    }

    fn may_be_extra(&self) -> bool {
        self.kind == RecordKind::Remove && self.disk().flags == 1
    }

    fn body(
        &self,
        body: &[u8],
        bad: impl Fn(&'static str) -> StreamError,
    ) -> Result<Record, StreamError> {
        let number = || -> Result<u64, StreamError> {
            let disk = StreamNumberDisk::ref_from_bytes(body).map_err(|_| bad("body"))?;
            Ok(disk.number.get())
        };
        Ok(match self.kind {
            RecordKind::Begin => Record::Begin(Box::new(Begin::decode(body)?)),
            RecordKind::Anode => {
                let flags = AnodeFlags::of(self.disk().flags).ok_or(bad("flags"))?;
                let bytes: &[u8; ANODE_BYTES] = body.try_into().map_err(|_| bad("body"))?;
                Record::Anode(Box::new(*bytes), flags)
            }
            RecordKind::Data => {
                let (disk, data) =
                    StreamDataDisk::ref_from_prefix(body).map_err(|_| bad("body"))?;
                Record::Data(disk.offset.get(), data.to_vec())
            }
            RecordKind::Hole => {
                let disk = StreamHoleDisk::ref_from_bytes(body).map_err(|_| bad("body"))?;
                Record::Hole(disk.offset.get(), disk.length.get())
            }
            RecordKind::Page => {
                let bytes = body.try_into().map_err(|_| bad("body"))?;
                Record::Page(SentPage { bytes: Box::new(bytes) })
            }
            RecordKind::NoPage => Record::NoPage(number()?),
            RecordKind::AnodeEnd => Record::AnodeEnd,
            RecordKind::Remove => Record::Remove(AnodeNo(number()?), self.may_be_extra()),
            RecordKind::End => {
                let disk = StreamEndDisk::ref_from_bytes(body).map_err(|_| bad("body"))?;
                Record::End(Totals {
                    records: disk.records.get(),
                    anodes: disk.anodes.get(),
                    removed: disk.removed.get(),
                    data_bytes: disk.data_bytes.get(),
                })
            }
        })
    }
}

impl Record {
    /// Returns the bytes of this record, number `sequence` of `stream`.
    ///
    /// # Panics
    ///
    /// If it has more data than a record may: a bug in the caller.
    #[must_use]
    pub fn encode(&self, sequence: u64, stream: u64) -> Vec<u8> {
        let number = |number| StreamNumberDisk { number: U64::new(number) }.as_bytes().to_vec();
        let (kind, flags, body) = match self {
            Record::Begin(begin) => (RecordKind::Begin, 0, begin.encode().to_vec()),
            Record::Anode(bytes, flags) => (RecordKind::Anode, flags.bits(), bytes.to_vec()),
            Record::Data(offset, data) => {
                let front = data_front(*offset, &[data], sequence, stream);
                return [&front[..], data].concat();
            }
            Record::Hole(offset, length) => {
                let hole = StreamHoleDisk { offset: U64::new(*offset), length: U64::new(*length) };
                (RecordKind::Hole, 0, hole.as_bytes().to_vec())
            }
            Record::Page(page) => (RecordKind::Page, 0, page.bytes.to_vec()),
            Record::NoPage(index) => (RecordKind::NoPage, 0, number(*index)),
            Record::AnodeEnd => (RecordKind::AnodeEnd, 0, Vec::new()),
            Record::Remove(anode, is_extra) => {
                (RecordKind::Remove, u8::from(*is_extra), number(anode.0))
            }
            Record::End(totals) => {
                let end = StreamEndDisk {
                    records: U64::new(totals.records),
                    anodes: U64::new(totals.anodes),
                    removed: U64::new(totals.removed),
                    data_bytes: U64::new(totals.data_bytes),
                };
                (RecordKind::End, 0, end.as_bytes().to_vec())
            }
        };
        let head = head_of((kind, flags), &[&body], sequence, stream);
        [head.as_bytes(), &body].concat()
    }
}

/// Bytes of a record of data before the data.
pub const DATA_FRONT_BYTES: usize = RECORD_HEAD_BYTES + size_of::<StreamDataDisk>();

/// Returns what [`Record::encode`] puts before its data, which is `parts`, one behind the other:
/// who has that need not copy it.
///
/// # Panics
///
/// If there is more data than a record may have: a bug in the caller.
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
    let head = head_of((RecordKind::Data, 0), &body, sequence, stream);
    let mut front = [0; DATA_FRONT_BYTES];
    front[..RECORD_HEAD_BYTES].copy_from_slice(head.as_bytes());
    front[RECORD_HEAD_BYTES..].copy_from_slice(place.as_bytes());
    front
}

/// Returns the head of a record whose body is `parts`, one behind the other.
fn head_of(
    (kind, flags): (RecordKind, u8),
    parts: &[&[u8]],
    sequence: u64,
    stream: u64,
) -> RecordHeadDisk {
    let body_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let body_bytes = u32::try_from(body_bytes).expect("ST3: far below 2^32");
    let mut head = RecordHeadDisk {
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

    fn begin() -> Begin {
        Begin {
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

    fn samples() -> Vec<Record> {
        let mut page = [0; PAGE_BYTES];
        page.iter_mut().zip(0..).for_each(|(byte, at): (&mut u8, usize)| {
            *byte = u8::try_from(at % 251).expect("small");
        });
        let flags = AnodeFlags { is_new: true, is_extra: false, is_resumed: true };
        vec![
            Record::Begin(Box::new(begin())),
            Record::Remove(AnodeNo(16), true),
            Record::Anode(Box::new([3; ANODE_BYTES]), flags),
            Record::Data(4096, vec![9; 5000]),
            Record::Hole(16384, 8192),
            Record::Page(SentPage::of(&page, 5)),
            Record::NoPage(6),
            Record::AnodeEnd,
            Record::End(Totals { records: 8, anodes: 1, removed: 1, data_bytes: 5000 }),
        ]
    }

    fn decoded(bytes: &[u8], sequence: u64) -> Result<Record, StreamError> {
        let head = bytes.first_chunk().ok_or(StreamError::NotAStream)?;
        let head = RecordHead::decode(*head, sequence)?;
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
        let Record::Page(sent) = &samples()[5] else { panic!("it is a page") };
        let mut page = [0; PAGE_BYTES];
        sent.put(&mut page);
        assert_eq!(SentPage::of(&page, 5), *sent);
        assert!(page[..FLAGS_OFFSET].iter().all(|&byte| byte == 0));
        let header = crate::page::PageHeader::parse(&page);
        assert!(header.is_none(), "it has no header of its own");
    }

    #[test]
    fn a_stream_of_another_version_says_so() {
        let mut bytes = begin().encode();
        bytes[8] = 9;
        assert_eq!(Begin::decode(&bytes), Err(StreamError::BadVersion { found: 9 }));
        bytes[0] = 0;
        assert_eq!(Begin::decode(&bytes), Err(StreamError::NotAStream));
    }
}
