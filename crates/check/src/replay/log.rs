//! The log as it lies on a device: its heads, its chunks, where it ends, and whether more was
//! durable than is there.
//!
//! # What can't be read
//!
//! A copy of a head that can't be read is one that does not verify: each head has two. A page of
//! the ring that can't be read costs the log where the log may go on in it: its bytes may be what
//! was acknowledged. Any other is of an older lap, or lies behind the end, and is passed over; but
//! while a head is missing each is asked whether it tells of it (L4).

use format::defect::DefectCode;
use format::geometry::JOURNAL_HEADS;
use format::ids::Lsn;
use format::journal::{CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES, ChunkHeader, JournalHead};
use format::page::PAGE_BYTES;
use storage::device::DeviceError;

use super::{Chunk, page_of};
use crate::convert::{to_u64, to_usize};
use crate::reader::{ReadError, Reader};

/// Chunks lie at multiples of the smallest sector.
const SECTOR_BYTES: u64 = 512;
/// Bytes that the search for chunks behind the end of the log reads at once: what stays in the
/// cache of a processor while it is looked at.
const SCAN_BYTES: usize = 64 << 10;

/// Why a log does not give the state that was last durable.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    pub(super) code: DefectCode,
    pub(super) device_offset: Option<u64>,
    pub(super) what: String,
    /// The head, and the position in the log, that must have been durable.
    pub(super) proven: (u64, Lsn),
}

/// The heads of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) newest: JournalHead,
    /// No copy of the other head verifies: it may have been newer.
    pub(super) is_in_doubt: bool,
}

/// A log, and what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) head: JournalHead,
    /// Where it ends, as far as it can be read.
    pub(super) end: Lsn,
    pub(super) lost: Option<Lost>,
    /// Whether it may go on at its end, in what can't be read.
    pub(super) is_cut: bool,
    /// Pages behind its end that can't be read.
    pub(super) passed_over: u64,
}

impl Lost {
    /// What the device said of a page in which the log may go on.
    pub(super) fn unread(reader: &Reader, at: Lsn, error: &DeviceError) -> Lost {
        let what = format!("{error}: the log may go on there, at {at}");
        Lost::of(DefectCode::IO001, offset_of(reader, at), what)
    }

    /// One that proves of nothing that it was durable.
    fn of(code: DefectCode, device_offset: u64, what: String) -> Lost {
        Lost { code, device_offset: Some(device_offset), what, proven: (0, Lsn(0)) }
    }

    /// Whether it proves that more was durable than `log` has.
    pub(super) fn tells_of_more_than(&self, log: &Log) -> bool {
        self.proven.0 > log.head.sequence || self.proven.1 > log.end
    }
}

impl Log {
    /// Follows the log from its newest head to its end, and looks behind that.
    pub(super) fn find(reader: &Reader) -> Result<Log, Lost> {
        Ok(Log::from_head(reader, &read_heads(reader)?))
    }

    /// As [`Log::find`], from the newest of `heads` on.
    pub(super) fn from_head(reader: &Reader, heads: &Heads) -> Log {
        let head = heads.newest;
        let mut log = Log { head, end: head.tail, lost: None, is_cut: false, passed_over: 0 };
        let mut chunks = Chunks::of(reader, &head);
        let walked = loop {
            match chunks.read_next(reader) {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        log.end = chunks.next;
        match walked {
            Ok(()) => log.look_behind(reader, heads),
            Err(error) => {
                log.lost = Some(Lost::unread(reader, log.end, &error));
                log.is_cut = true;
            }
        }
        log
    }

    /// Whether the log of a pool that was closed ends at its head, and the head is the newest.
    pub(super) fn is_at_rest(reader: &Reader) -> Result<bool, Lost> {
        let heads = read_heads(reader)?;
        let head = heads.newest;
        let next = read_chunk(reader, head.tail)
            .map_err(|error| Lost::unread(reader, head.tail, &error))?;
        if next.is_some_and(|(_, next)| next.header.previous_crc == head.previous_crc) {
            return Ok(false);
        }
        if heads.is_in_doubt {
            let mut log = Log { head, end: head.tail, lost: None, is_cut: false, passed_over: 0 };
            log.look_behind(reader, &heads);
            log.lost.map_or(Ok(()), Err)?;
        }
        Ok(true)
    }

    /// Looks in the whole ring for a chunk that was written after more was durable (L3), or after a
    /// head that is not there any more (L4).
    fn look_behind(&mut self, reader: &Reader, heads: &Heads) {
        let (ring_offset, ring_bytes) = ring(reader);
        let mut at = 0;
        while at < ring_bytes {
            let length = SCAN_BYTES.min(to_usize(ring_bytes - at));
            match reader.read_fixed(ring_offset + at, length) {
                Ok(bytes) => self.look_in(reader, at, &bytes),
                Err(_) => self.look_in_pages(reader, (at, length), heads.is_in_doubt),
            }
            if self.lost.is_some() {
                return;
            }
            at += to_u64(length);
        }
    }

    /// As `look_in`, page by page, for one bad sector must not stand for its neighbours.
    fn look_in_pages(&mut self, reader: &Reader, (from, length): (u64, usize), is_in_doubt: bool) {
        let ring_offset = ring(reader).0;
        for start in (0..length).step_by(PAGE_BYTES) {
            let at = from + to_u64(start);
            match reader.read_fixed(ring_offset + at, PAGE_BYTES.min(length - start)) {
                Ok(bytes) => self.look_in(reader, at, &bytes),
                Err(error) if is_in_doubt => {
                    let what = format!("{error}: it may tell of the head that is lost");
                    self.lost = Some(Lost::of(DefectCode::IO001, ring_offset + at, what));
                }
                Err(_) => self.passed_over += 1,
            }
            if self.lost.is_some() {
                return;
            }
        }
    }

    /// Looks at what lies from byte `from` of the ring on.
    fn look_in(&mut self, reader: &Reader, from: u64, bytes: &[u8]) {
        let ring_bytes = ring(reader).1;
        let sectors = bytes.chunks(to_usize(SECTOR_BYTES));
        for (position, sector) in (from..).step_by(to_usize(SECTOR_BYTES)).zip(sectors) {
            let Some(header) = ChunkHeader::peek(sector, reader.pool_id) else { continue };
            if header.lsn.0 % ring_bytes != position {
                continue;
            }
            let tells_head = header.head > self.head.sequence;
            let is_behind = header.lsn > self.end && header.lsn.0 - self.end.0 < ring_bytes;
            let tells_flushed = is_behind && header.flushed > self.end;
            if !tells_head && !tells_flushed {
                continue;
            }
            match read_chunk(reader, header.lsn) {
                Ok(None) => {}
                Ok(Some(_)) => {
                    self.lost = Some(self.told_by(reader, &header));
                    return;
                }
                Err(error) => {
                    self.lost = Some(Lost::unread(reader, header.lsn, &error));
                    return;
                }
            }
        }
    }

    /// Returns what a chunk tells of that is not there.
    fn told_by(&self, reader: &Reader, header: &ChunkHeader) -> Lost {
        if header.head > self.head.sequence {
            let what = format!(
                "the newest head that verifies is {}, but the chunk at {} was written after head \
                 {} was durable",
                self.head.sequence, header.lsn, header.head
            );
            let lost = Lost::of(DefectCode::JR006, reader.geometry.journal_offset, what);
            return Lost { proven: (header.head, Lsn(0)), ..lost };
        }
        let what = format!(
            "the log ends at {}, but the chunk at {} says that all before {} was durable",
            self.end, header.lsn, header.flushed
        );
        let lost = Lost::of(DefectCode::JR002, offset_of(reader, self.end), what);
        Lost { proven: (0, header.flushed), ..lost }
    }
}

/// Reads the copies of the heads. Where they can't be read at once each is tried alone: one bad
/// sector is one copy.
pub(crate) fn copies_of_heads(reader: &Reader) -> Vec<Result<JournalHead, ReadError>> {
    let first = reader.geometry.journal_offset;
    let all = reader.read_fixed(first, to_usize(JOURNAL_HEADS) * PAGE_BYTES);
    let decode = |slot: u64| {
        let start = slot * to_u64(PAGE_BYTES);
        let page = match &all {
            Ok(bytes) => page_of(&bytes[to_usize(start)..]),
            Err(_) => page_of(&reader.read_fixed(first + start, PAGE_BYTES)?),
        };
        Ok(JournalHead::decode(&page, reader.pool_id, &reader.geometry, slot)?)
    };
    (0..JOURNAL_HEADS).map(decode).collect()
}

pub(super) fn read_heads(reader: &Reader) -> Result<Heads, Lost> {
    let copies = copies_of_heads(reader);
    let heads = || copies.iter().flatten();
    let Some(&newest) = heads().max_by_key(|head| head.sequence) else {
        let unread = copies.iter().find_map(|copy| match copy {
            Err(error @ ReadError::Device(_)) => Some(error.to_string()),
            _ => None,
        });
        let (code, what) = match unread {
            Some(error) => (DefectCode::IO001, error),
            None => (DefectCode::JR001, "no head verifies".to_owned()),
        };
        return Err(Lost::of(code, reader.geometry.journal_offset, what));
    };
    let is_in_doubt = heads().all(|head| head.first_slot() == newest.first_slot());
    Ok(Heads { newest, is_in_doubt })
}

/// Follows the chunks of a log from its tail on.
pub(super) struct Chunks {
    /// Where the next one would be.
    pub(super) next: Lsn,
    previous_crc: u32,
    end: Lsn,
}

impl Chunks {
    pub(super) fn of(reader: &Reader, head: &JournalHead) -> Chunks {
        // No more than one round of the ring: past it, chunks would be overwritten ones.
        let end = Lsn(head.tail.0.saturating_add(ring(reader).1));
        Chunks { next: head.tail, previous_crc: head.previous_crc, end }
    }

    /// Returns the next chunk that has records; `None`: the log ends at `next`.
    ///
    /// # Errors
    ///
    /// What the device said; the log may go on at `next`.
    pub(super) fn read_next(&mut self, reader: &Reader) -> Result<Option<Chunk>, DeviceError> {
        while self.next < self.end {
            let found = read_chunk(reader, self.next)?;
            let Some((crc, chunk)) =
                found.filter(|(_, chunk)| chunk.header.previous_crc == self.previous_crc)
            else {
                break;
            };
            self.previous_crc = crc;
            self.next = Lsn(self.next.0.saturating_add(u64::from(chunk.header.chunk_bytes)));
            if chunk.header.payload_bytes > 0 {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }
}

/// Reads the chunk whose position is `lsn`, and its checksum; `None` if there is no whole one. Of
/// one of an older lap no more than its header is read.
fn read_chunk(reader: &Reader, lsn: Lsn) -> Result<Option<(u32, Chunk)>, DeviceError> {
    let (ring_offset, ring_bytes) = ring(reader);
    let at = lsn.0 % ring_bytes;
    let left = ring_bytes - at;
    if left < to_u64(CHUNK_HEADER_BYTES) {
        return Ok(None);
    }
    let head = reader.read_fixed(ring_offset + at, CHUNK_HEADER_BYTES)?;
    let header = ChunkHeader::peek(&head, reader.pool_id).filter(|header| header.lsn == lsn);
    let Some(header) = header else { return Ok(None) };
    let covered = to_u64(CHUNK_HEADER_BYTES) + u64::from(header.payload_bytes);
    let is_step = header.chunk_bytes > 0 && u64::from(header.chunk_bytes) <= left;
    if !is_step || covered > to_u64(CHUNK_BYTES_MAX + CHUNK_HEADER_BYTES) {
        return Ok(None);
    }
    let bytes = reader.read_fixed(ring_offset + at, to_usize(covered))?;
    Ok(ChunkHeader::decode(&bytes, reader.pool_id)
        .map(|(crc, header, payload)| (crc, Chunk { lsn, header, payload: payload.to_vec() })))
}

/// Returns where the ring begins on the device, and how long it is.
fn ring(reader: &Reader) -> (u64, u64) {
    let geometry = &reader.geometry;
    let heads = JOURNAL_HEADS * to_u64(PAGE_BYTES);
    (geometry.journal_offset + heads, geometry.journal_bytes.saturating_sub(heads).max(1))
}

fn offset_of(reader: &Reader, lsn: Lsn) -> u64 {
    let (ring_offset, ring_bytes) = ring(reader);
    ring_offset + lsn.0 % ring_bytes
}

const _: () = assert!(CHUNK_HEADER_BYTES < 512, "a header lies in one sector");
