//! The log in memory: collects records into chunks, and queues complete chunks for writing.
//!
//! # Invariants
//!
//! - J1: A transaction is acknowledged only after the flush that covers its commit.
//! - J2: A record's LSN is that of its chunk; the log's tail is always the start of a chunk.
//! - J3: A chunk never wraps: a pad chunk fills the end of the ring.
//! - J4: The kept chunks (`keep`) are all chunks handed over for writing, from the tail on.
//!   Nothing before the tail is kept, because the ring may hold newer bytes there.
//!
//! Not here: writing chunks (`commit.rs`) and moving the tail (`checkpoint.rs`).

use std::collections::VecDeque;

use format::ids::{Lsn, PoolId};
use format::journal::{CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES, ChunkHeader};
use storage::device::{AlignedBuffer, SharedBytes};

use crate::convert::{index_wide, wide};

/// Cuts chunks, so that many transactions without a commit do not become one huge write.
pub(super) const CHUNK_BYTES_SOFT: usize = 256 << 10;

#[derive(Clone, Debug)]
pub(super) struct SealedChunk {
    pub(super) lsn: Lsn,
    pub(super) end: Lsn,
    pub(super) bytes: SharedBytes,
    pub(super) data_sequence: u64,
}

impl SealedChunk {
    pub(super) fn from(&self, tail: Lsn) -> Option<SealedChunk> {
        if self.end <= tail {
            return None;
        }
        let before = tail.0.saturating_sub(self.lsn.0);
        let mut rest = self.clone();
        if before > 0 {
            let bytes = AlignedBuffer::copy_of(&self.bytes[index_wide(before)..]);
            (rest.lsn, rest.bytes) = (tail, SharedBytes::from(bytes));
        }
        Some(rest)
    }
}

#[derive(Debug)]
pub(super) struct LogBuffer {
    pool_id: PoolId,
    writer_term: u32,
    sector_bytes: u64,
    pub(super) ring_bytes: u64,
    chunk_lsn: Lsn,
    payload: Vec<u8>,
    data_sequence: u64,
    previous_crc: u32,
    /// Start and `previous_crc` of every chunk from the tail on.
    starts: VecDeque<(Lsn, u32)>,
    pub(super) sealed: VecDeque<SealedChunk>,
    /// Chunks of J4. `None` unless the journal has its own devices.
    kept: Option<VecDeque<SealedChunk>>,
    pub(super) durable: Lsn,
    /// Sequence of the newest durable head, recorded in each chunk (L4).
    pub(super) head: u64,
    pub(super) record_bytes: u64,
}

impl LogBuffer {
    pub(super) fn new(
        pool_id: PoolId,
        writer_term: u32,
        sector_bytes: u32,
        ring_bytes: u64,
        start: Lsn,
        previous_crc: u32,
        head: u64,
    ) -> LogBuffer {
        LogBuffer {
            pool_id,
            writer_term,
            sector_bytes: u64::from(sector_bytes),
            ring_bytes,
            chunk_lsn: start,
            payload: Vec::new(),
            data_sequence: 0,
            previous_crc,
            starts: VecDeque::new(),
            sealed: VecDeque::new(),
            kept: None,
            durable: start,
            head,
            record_bytes: 0,
        }
    }

    pub(super) fn position(&self) -> Lsn {
        self.chunk_lsn
    }

    pub(super) fn pending_bytes(&self) -> u64 {
        wide(self.payload.len())
    }

    fn room_to_ring_end(&self) -> u64 {
        self.ring_bytes - self.chunk_lsn.0 % self.ring_bytes
    }

    fn chunk_bytes(&self, payload_bytes: usize) -> u64 {
        wide(CHUNK_HEADER_BYTES + payload_bytes).next_multiple_of(self.sector_bytes)
    }

    /// Makes room for a record of `record_bytes` and returns its LSN.
    ///
    /// # Panics
    ///
    /// If the record is larger than any chunk: a transaction broke its bound.
    pub(super) fn ensure_room(&mut self, record_bytes: usize) -> Lsn {
        assert!(record_bytes + CHUNK_HEADER_BYTES <= CHUNK_BYTES_MAX, "a record fits a chunk");
        let grown = self.chunk_bytes(self.payload.len() + record_bytes);
        let is_too_long = grown > wide(CHUNK_BYTES_SOFT) || grown > self.room_to_ring_end();
        if is_too_long && !self.payload.is_empty() {
            self.cut();
        }
        if self.chunk_bytes(record_bytes) > self.room_to_ring_end() {
            self.pad();
        }
        self.chunk_lsn
    }

    pub(super) fn append(&mut self, record: &[u8]) {
        self.append_with(|payload| payload.extend_from_slice(record));
    }

    pub(super) fn append_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.payload.len();
        write(&mut self.payload);
        self.record_bytes += wide(self.payload.len() - before);
    }

    pub(super) fn needs_data(&mut self, sequence: u64) {
        self.data_sequence = self.data_sequence.max(sequence);
    }

    /// Completes the chunk being filled, if any. Returns the end of the log.
    pub(super) fn cut(&mut self) -> Lsn {
        if !self.payload.is_empty() {
            let mut payload = std::mem::take(&mut self.payload);
            let chunk_bytes = self.chunk_bytes(payload.len());
            self.seal(&payload, chunk_bytes, chunk_bytes);
            payload.clear();
            self.payload = payload;
        }
        self.chunk_lsn
    }

    /// Fills the ring up to its end with a pad chunk, of which only the first sector is written.
    fn pad(&mut self) {
        let chunk_bytes = self.room_to_ring_end();
        self.seal(&[], chunk_bytes, self.sector_bytes);
    }

    fn seal(&mut self, payload: &[u8], chunk_bytes: u64, written_bytes: u64) {
        let header = ChunkHeader {
            lsn: self.chunk_lsn,
            chunk_bytes: u32::try_from(chunk_bytes).expect("a ring is below 4 GiB"),
            payload_bytes: u32::try_from(payload.len()).expect("bounded by ensure_room"),
            previous_crc: self.previous_crc,
            writer_term: self.writer_term,
            flushed: self.durable,
            head: self.head,
        };
        let parts = [&[0; CHUNK_HEADER_BYTES], payload];
        let mut bytes = AlignedBuffer::of_parts(parts, index_wide(written_bytes));
        self.starts.push_back((self.chunk_lsn, self.previous_crc));
        self.previous_crc = header.seal(self.pool_id, &mut bytes);
        let (end, bytes) = (Lsn(self.chunk_lsn.0 + chunk_bytes), SharedBytes::from(bytes));
        let data_sequence = std::mem::take(&mut self.data_sequence);
        self.sealed.push_back(SealedChunk { lsn: self.chunk_lsn, end, bytes, data_sequence });
        self.chunk_lsn = end;
    }

    pub(super) fn hand_over(&mut self) -> Vec<SealedChunk> {
        let chunks: Vec<SealedChunk> = self.sealed.drain(..).collect();
        if let Some(kept) = &mut self.kept {
            kept.extend(chunks.iter().cloned());
        }
        chunks
    }

    pub(super) fn handed_over(&self) -> Lsn {
        self.sealed.front().map_or(self.chunk_lsn, |chunk| chunk.lsn)
    }

    /// Keeps the log from its tail on: `before`, and chunks handed over later. `None` stops this.
    pub(super) fn keep(&mut self, before: Option<Vec<SealedChunk>>) {
        self.kept = before.map(VecDeque::from);
    }

    pub(super) fn kept_from(&self, tail: Lsn) -> Option<Vec<SealedChunk>> {
        let kept = self.kept.as_ref()?.iter();
        Some(kept.filter_map(|chunk| chunk.from(tail)).collect())
    }

    pub(super) fn kept_end(&self) -> Option<Lsn> {
        Some(self.kept.as_ref()?.back()?.end)
    }

    pub(super) fn previous_crc_at(&self, lsn: Lsn) -> u32 {
        let known = self.starts.iter().find(|(start, _)| *start == lsn);
        known.map_or(self.previous_crc, |(_, crc)| *crc)
    }

    pub(super) fn forget_before(&mut self, lsn: Lsn) {
        while self.starts.front().is_some_and(|(start, _)| *start < lsn) {
            self.starts.pop_front();
        }
        let Some(kept) = &mut self.kept else { return };
        while let Some(first) = kept.pop_front() {
            if let Some(rest) = first.from(lsn) {
                kept.push_front(rest);
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_follow_each_other_and_never_wrap() {
        let ring = 1 << 16;
        let mut log = LogBuffer::new(PoolId([1; 16]), 1, 512, ring, Lsn(ring), 0, 1);
        let (mut expected, mut crc) = (Lsn(ring), 0);
        for step in 0..500_usize {
            let record = vec![7; 8 * (1 + step * 37 % 400)];
            log.ensure_room(record.len());
            log.append(&record);
            if step % 3 == 0 {
                log.cut();
            }
            while let Some(chunk) = log.sealed.pop_front() {
                let (found, header, _) =
                    ChunkHeader::decode(&chunk.bytes, PoolId([1; 16])).expect("whole");
                assert_eq!((header.lsn, header.previous_crc), (expected, crc));
                assert!(chunk.lsn.0 % ring + (chunk.end.0 - chunk.lsn.0) <= ring, "wraps");
                (expected, crc) = (chunk.end, found);
            }
        }
    }
}
