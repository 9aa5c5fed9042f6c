//! The log on a device: its heads, its chunks, its end, and proofs that more was durable.
//!
//! # Unreadable sectors
//!
//! Each head has two copies, so an unreadable copy counts as one that does not verify. The log is
//! lost if it may continue in an unreadable page of the ring, because the bytes there may have been
//! acknowledged. Other unreadable pages are of an older lap or behind the end, and are skipped.
//! While a head is missing they count, because a chunk there may refer to that head (L4).

use format::defect::DefectCode;
use format::geometry::JOURNAL_HEADS;
use format::ids::Lsn;
use format::journal::{CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES, ChunkHeader, JournalHead};
use format::page::PAGE_BYTES;
use storage::device::DeviceError;

use super::{ReplayedChunk, page_of};
use crate::convert::{to_u64, to_usize};
use crate::reader::{PoolReader, ReadError};

const SECTOR_BYTES: u64 = 512;
/// Bytes searched at a time: they fit in a processor's cache.
const SCAN_BYTES: usize = 64 << 10;

/// Why a log does not lead to the last durable state.
#[derive(Clone, Debug)]
pub(super) struct LogLoss {
    pub(super) code: DefectCode,
    pub(super) device_offset: Option<u64>,
    pub(super) what: String,
    /// Head sequence and position that must have been durable; zeros if unknown.
    pub(super) proven: (u64, Lsn),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LogHeads {
    pub(super) newest: JournalHead,
    /// No copy of the other head verifies, and that head may have been newer.
    pub(super) is_in_doubt: bool,
}

#[derive(Clone, Debug)]
pub(super) struct DeviceLog {
    pub(super) head: JournalHead,
    pub(super) end: Lsn,
    pub(super) lost: Option<LogLoss>,
    /// Whether the log may continue behind `end`, in unreadable sectors.
    pub(super) is_cut: bool,
    pub(super) passed_over: u64,
}

impl LogLoss {
    pub(super) fn unread(reader: &PoolReader, at: Lsn, error: &DeviceError) -> LogLoss {
        let what = format!("{error}: the log may go on there, at {at}");
        LogLoss::of(DefectCode::IO001, offset_of(reader, at), what)
    }

    /// Returns a loss that does not prove how much was durable.
    fn of(code: DefectCode, device_offset: u64, what: String) -> LogLoss {
        LogLoss { code, device_offset: Some(device_offset), what, proven: (0, Lsn(0)) }
    }

    pub(super) fn tells_of_more_than(&self, log: &DeviceLog) -> bool {
        self.proven.0 > log.head.sequence || self.proven.1 > log.end
    }
}

impl DeviceLog {
    pub(super) fn find(reader: &PoolReader) -> Result<DeviceLog, LogLoss> {
        Ok(DeviceLog::from_head(reader, &read_heads(reader)?))
    }

    pub(super) fn from_head(reader: &PoolReader, heads: &LogHeads) -> DeviceLog {
        let head = heads.newest;
        let mut log = DeviceLog { head, end: head.tail, lost: None, is_cut: false, passed_over: 0 };
        let mut chunks = LogChunkCursor::of(reader, &head);
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
                log.lost = Some(LogLoss::unread(reader, log.end, &error));
                log.is_cut = true;
            }
        }
        log
    }

    /// Returns whether the log of a closed pool ends at its head, and that head is the newest.
    pub(super) fn is_at_rest(reader: &PoolReader) -> Result<bool, LogLoss> {
        let heads = read_heads(reader)?;
        let head = heads.newest;
        let next = read_chunk(reader, head.tail)
            .map_err(|error| LogLoss::unread(reader, head.tail, &error))?;
        if next.is_some_and(|(_, next)| next.header.previous_crc == head.previous_crc) {
            return Ok(false);
        }
        if heads.is_in_doubt {
            let mut log =
                DeviceLog { head, end: head.tail, lost: None, is_cut: false, passed_over: 0 };
            log.look_behind(reader, &heads);
            log.lost.map_or(Ok(()), Err)?;
        }
        Ok(true)
    }

    /// Searches the ring for a chunk that proves more was durable (L3) or refers to a newer head
    /// (L4).
    fn look_behind(&mut self, reader: &PoolReader, heads: &LogHeads) {
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

    /// Searches page by page, so that a bad sector does not hide its neighbours.
    fn look_in_pages(
        &mut self,
        reader: &PoolReader,
        (from, length): (u64, usize),
        is_in_doubt: bool,
    ) {
        let ring_offset = ring(reader).0;
        for start in (0..length).step_by(PAGE_BYTES) {
            let at = from + to_u64(start);
            match reader.read_fixed(ring_offset + at, PAGE_BYTES.min(length - start)) {
                Ok(bytes) => self.look_in(reader, at, &bytes),
                Err(error) if is_in_doubt => {
                    let what = format!("{error}: it may tell of the head that is lost");
                    self.lost = Some(LogLoss::of(DefectCode::IO001, ring_offset + at, what));
                }
                Err(_) => self.passed_over += 1,
            }
            if self.lost.is_some() {
                return;
            }
        }
    }

    fn look_in(&mut self, reader: &PoolReader, from: u64, bytes: &[u8]) {
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
                    self.lost = Some(LogLoss::unread(reader, header.lsn, &error));
                    return;
                }
            }
        }
    }

    fn told_by(&self, reader: &PoolReader, header: &ChunkHeader) -> LogLoss {
        if header.head > self.head.sequence {
            let what = format!(
                "the newest head that verifies is {}, but the chunk at {} was written after head \
                 {} was durable",
                self.head.sequence, header.lsn, header.head
            );
            let lost = LogLoss::of(DefectCode::JR006, reader.geometry.journal_offset, what);
            return LogLoss { proven: (header.head, Lsn(0)), ..lost };
        }
        let what = format!(
            "the log ends at {}, but the chunk at {} says that all before {} was durable",
            self.end, header.lsn, header.flushed
        );
        let lost = LogLoss::of(DefectCode::JR002, offset_of(reader, self.end), what);
        LogLoss { proven: (0, header.flushed), ..lost }
    }
}

/// Reads the copies of the heads, one by one if need be: one bad sector costs one copy.
pub(crate) fn copies_of_heads(reader: &PoolReader) -> Vec<Result<JournalHead, ReadError>> {
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

pub(super) fn read_heads(reader: &PoolReader) -> Result<LogHeads, LogLoss> {
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
        return Err(LogLoss::of(code, reader.geometry.journal_offset, what));
    };
    let is_in_doubt = heads().all(|head| head.first_slot() == newest.first_slot());
    Ok(LogHeads { newest, is_in_doubt })
}

pub(super) struct LogChunkCursor {
    pub(super) next: Lsn,
    previous_crc: u32,
    end: Lsn,
}

impl LogChunkCursor {
    pub(super) fn of(reader: &PoolReader, head: &JournalHead) -> LogChunkCursor {
        let end = Lsn(head.tail.0.saturating_add(ring(reader).1));
        LogChunkCursor { next: head.tail, previous_crc: head.previous_crc, end }
    }

    /// Returns the next chunk with records; `None` if the log ends at `next`.
    ///
    /// # Errors
    ///
    /// The device's error; the log may continue at `next`.
    pub(super) fn read_next(
        &mut self,
        reader: &PoolReader,
    ) -> Result<Option<ReplayedChunk>, DeviceError> {
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

/// Returns the chunk at `lsn` and its checksum, if whole. Reads only the header of an older lap's
/// chunk.
fn read_chunk(reader: &PoolReader, lsn: Lsn) -> Result<Option<(u32, ReplayedChunk)>, DeviceError> {
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
    Ok(ChunkHeader::decode(&bytes, reader.pool_id).map(|(crc, header, payload)| {
        (crc, ReplayedChunk { lsn, header, payload: payload.to_vec() })
    }))
}

fn ring(reader: &PoolReader) -> (u64, u64) {
    let geometry = &reader.geometry;
    let heads = JOURNAL_HEADS * to_u64(PAGE_BYTES);
    (geometry.journal_offset + heads, geometry.journal_bytes.saturating_sub(heads).max(1))
}

fn offset_of(reader: &PoolReader, lsn: Lsn) -> u64 {
    let (ring_offset, ring_bytes) = ring(reader);
    ring_offset + lsn.0 % ring_bytes
}

const _: () = assert!(CHUNK_HEADER_BYTES < 512, "a header lies in one sector");
