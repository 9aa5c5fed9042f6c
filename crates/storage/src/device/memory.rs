//! A sparse device in memory, which allocates only the written chunks.
//!
//! # Concurrency
//!
//! The locks are held for a copy only, never across a scheduling point, so they are plain ones.
//! Requests on different chunks run in parallel.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::range::check_request;
use super::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, SharedBytes,
    Ticket,
};
use crate::convert::{to_u64, to_usize};

/// Unit of allocation: small enough for sparse pools, large enough for a short table (16 Mi chunks
/// at 16 TiB).
const CHUNK_BYTES: u64 = 1 << 20;

type MemoryChunk = RwLock<Box<[u8]>>;

/// A device in memory. Every write is durable for as long as the process lives.
pub struct MemoryDevice {
    info: DeviceInfo,
    chunks: RwLock<BTreeMap<u64, Arc<MemoryChunk>>>,
}

impl std::fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDevice({}, {} bytes)", self.info.name, self.info.size_bytes)
    }
}

impl MemoryDevice {
    /// Creates a device of zeros with 512-byte sectors.
    ///
    /// # Panics
    ///
    /// If `size_bytes` is not a multiple of [`super::IO_ALIGN_BYTES`].
    #[must_use]
    pub fn new(name: &str, size_bytes: u64) -> Arc<MemoryDevice> {
        assert!(size_bytes.is_multiple_of(to_u64(super::IO_ALIGN_BYTES)));
        let info = DeviceInfo {
            name: name.to_owned(),
            size_bytes,
            sector_bytes: 512,
            is_read_only: false,
            has_write_through: true,
            is_sparse: false,
            transport: "memory",
        };
        Arc::new(MemoryDevice { info, chunks: RwLock::new(BTreeMap::new()) })
    }

    /// Returns the memory allocated for contents.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        to_u64(self.chunks.read().len()) * CHUNK_BYTES
    }

    fn read_into(&self, offset: u64, target: &mut [u8]) {
        for piece in pieces_of(offset, target.len()) {
            let part = &mut target[piece.in_request.clone()];
            let chunk = self.chunks.read().get(&piece.chunk).map(Arc::clone);
            match chunk {
                Some(chunk) => {
                    let end = piece.in_chunk + part.len();
                    part.copy_from_slice(&chunk.read()[piece.in_chunk..end]);
                }
                None => part.fill(0),
            }
        }
    }

    fn write_from(&self, offset: u64, source: &[u8]) {
        for piece in pieces_of(offset, source.len()) {
            let part = &source[piece.in_request.clone()];
            let chunk = self.chunk_for_write(piece.chunk);
            chunk.write()[piece.in_chunk..piece.in_chunk + part.len()].copy_from_slice(part);
        }
    }

    fn write_pieces(&self, offset: u64, data: &[SharedBytes]) {
        let mut offset = offset;
        for piece in data {
            self.write_from(offset, piece);
            offset += to_u64(piece.len());
        }
    }

    fn chunk_for_write(&self, index: u64) -> Arc<MemoryChunk> {
        if let Some(chunk) = self.chunks.read().get(&index) {
            return Arc::clone(chunk);
        }
        let new_chunk = || {
            let length = to_usize(CHUNK_BYTES.min(self.info.size_bytes - index * CHUNK_BYTES));
            Arc::new(RwLock::new(vec![0; length].into_boxed_slice()))
        };
        Arc::clone(self.chunks.write().entry(index).or_insert_with(new_chunk))
    }

    /// Frees the chunks entirely inside the range.
    fn discard(&self, offset: u64, length_bytes: u64) {
        let first = offset.div_ceil(CHUNK_BYTES);
        let end = (offset + length_bytes) / CHUNK_BYTES;
        if first < end {
            let mut chunks = self.chunks.write();
            let mut after = chunks.split_off(&first);
            chunks.append(&mut after.split_off(&end));
        }
    }
}

struct ChunkSlice {
    chunk: u64,
    in_chunk: usize,
    in_request: std::ops::Range<usize>,
}

fn pieces_of(offset: u64, length: usize) -> impl Iterator<Item = ChunkSlice> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + to_u64(done);
        let in_chunk = to_usize(at % CHUNK_BYTES);
        let count = (length - done).min(to_usize(CHUNK_BYTES) - in_chunk);
        let in_request = done..done + count;
        done += count;
        Some(ChunkSlice { chunk: at / CHUNK_BYTES, in_chunk, in_request })
    })
}

impl MemoryDevice {
    fn execute(
        &self,
        purpose: IoPurpose,
        operation: DeviceOperation,
    ) -> Result<DeviceCompletion, DeviceError> {
        check_request(&self.info, purpose, &operation)?;
        match operation {
            DeviceOperation::Read { offset, mut buffer } => {
                self.read_into(offset, &mut buffer);
                return Ok(DeviceCompletion { buffer: Some(buffer) });
            }
            DeviceOperation::Write { offset, data }
            | DeviceOperation::WriteThrough { offset, data } => {
                self.write_pieces(offset, &data);
            }
            DeviceOperation::Flush => {}
            DeviceOperation::Discard { offset, length_bytes } => self.discard(offset, length_bytes),
        }
        Ok(DeviceCompletion::default())
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        Ticket::ready(self.execute(purpose, operation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AlignedBuffer;

    fn filled(length: usize, byte: u8) -> AlignedBuffer {
        AlignedBuffer::copy_of(&vec![byte; length])
    }

    #[test]
    fn sixteen_tebibytes_cost_what_was_written() {
        let device = MemoryDevice::new("memory", 16 << 40);
        let last = (16 << 40) - 4096;
        device.write(IoPurpose::Home, last, filled(4096, 7)).expect("in range");
        assert_eq!(device.allocated_bytes(), CHUNK_BYTES);
        let read = device.read(IoPurpose::Home, last - 4096, 8192).expect("in range");
        assert!(read[..4096].iter().all(|&byte| byte == 0));
        assert!(read[4096..].iter().all(|&byte| byte == 7));
        assert_eq!(device.allocated_bytes(), CHUNK_BYTES, "a read allocated");
    }

    #[test]
    fn write_of_pieces_across_chunks_reads_back() {
        let device = MemoryDevice::new("memory", 4 << 20);
        let buffer = Arc::new(filled(3 << 20, 1));
        let pieces = vec![
            SharedBytes::new(Arc::clone(&buffer), 0..1 << 20),
            SharedBytes::from(filled(8192, 2)),
            SharedBytes::new(buffer, 4096..(1 << 20) + 4096),
        ];
        let offset = (1 << 20) - 4096;
        let write = DeviceOperation::Write { offset, data: pieces };
        device.submit(IoPurpose::Data, write).wait().expect("in range");
        let read = device.read(IoPurpose::Data, 0, 4 << 20).expect("in range");
        let boundary = to_usize(offset) + (1 << 20);
        let ends = [to_usize(offset), boundary, boundary + 8192, boundary + 8192 + (1 << 20)];
        let expected = |at: usize| match ends.iter().position(|&end| at < end) {
            Some(1 | 3) => 1,
            Some(2) => 2,
            _ => 0,
        };
        let wrong = read.iter().enumerate().find(|&(at, &byte)| byte != expected(at));
        assert_eq!(wrong, None);
    }

    #[test]
    fn discard_frees_whole_chunks_and_harms_nothing_else() {
        let device = MemoryDevice::new("memory", 4 << 20);
        device.write(IoPurpose::Data, 0, filled(4 << 20, 9)).expect("in range");
        let discard = DeviceOperation::Discard { offset: 4096, length_bytes: (3 << 20) - 4096 };
        device.submit(IoPurpose::Data, discard).wait().expect("in range");
        assert_eq!(device.allocated_bytes(), 2 * CHUNK_BYTES);
        let head = device.read(IoPurpose::Data, 0, 4096).expect("in range");
        let tail = device.read(IoPurpose::Data, 3 << 20, 1 << 20).expect("in range");
        assert!(head.iter().chain(tail.iter()).all(|&byte| byte == 9));
    }
}
