//! Absurd numbers where such numbers are, under checksums that are good again.

use format::checksum::crc32c;
use format::geometry::JOURNAL_HEADS;
use format::journal::{CHUNK_HEADER_BYTES, ChunkHeader};
use format::page::{PAGE_BYTES, page_lsn, stamp};
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use runtime::prng::Prng;
use storage::device::sim::Image;

use super::index_below;

/// What counts and positions are tried with.
const ABSURD: [u64; 24] = [
    0,
    1,
    2,
    3,
    7,
    15,
    31,
    62,
    63,
    64,
    127,
    255,
    4095,
    4096,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 40,
    (1 << 48) - 1,
    1 << 62,
    i64::MAX.unsigned_abs(),
    1 << 63,
    u64::MAX,
];

/// An image, and where its parts are.
pub(super) struct Base {
    image: Image,
    superblock: Superblock,
    /// Offsets of pages with a header.
    pages: Vec<u64>,
    /// Offset and length of the chunks of the log, in order.
    chunks: Vec<(u64, usize)>,
}

impl Base {
    pub(super) fn of(image: Image) -> Base {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        image.read(0, &mut bytes);
        let superblock = Superblock::decode(&bytes, 0).expect("whole");
        let mut pages = Vec::new();
        image.for_each_page(|offset, bytes| {
            pages.extend(bytes.starts_with(b"HFpg").then_some(offset));
        });
        let chunks = chunks_of(&image, &superblock);
        Base { image, superblock, pages, chunks }
    }

    /// Returns the image with a few lies in it.
    pub(super) fn lying(&self, prng: &mut Prng) -> Image {
        let mut image = self.image.clone();
        for _ in 0..=prng.below(3) {
            match prng.below(12) {
                0 => self.lie_in_superblocks(prng, &mut image),
                1..=3 if !self.chunks.is_empty() => self.lie_in_log(prng, &mut image),
                _ => self.lie_in_page(prng, &mut image),
            }
        }
        image
    }

    fn lie_in_superblocks(&self, prng: &mut Prng, image: &mut Image) {
        let mut bytes = self.superblock.encode(0);
        // Most of what is behind the fields is zero, so aim at the fields.
        let end = if prng.below(3) == 0 { PAGE_BYTES } else { 304 };
        lie(prng, &mut bytes[32..end]);
        let size = self.image.size_bytes();
        for copy in 0..4_u16 {
            bytes[40..42].copy_from_slice(&copy.to_le_bytes());
            let crc = crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            image.write(format::geometry::Geometry::superblock_offset(size, copy), &bytes);
        }
    }

    fn lie_in_page(&self, prng: &mut Prng, image: &mut Image) {
        let offset = self.pages[index_below(prng, self.pages.len())];
        let mut bytes = [0; PAGE_BYTES];
        image.read(offset, &mut bytes);
        let kind = bytes[18];
        match prng.below(4) {
            0 => lie(prng, &mut bytes[80..128]),
            1 => lie(prng, &mut bytes[8..128]),
            2 => lie(prng, &mut bytes[128..]),
            // Where most fields are.
            _ => lie(prng, &mut bytes[128..1024]),
        }
        // Slots of anodes and filesets have checksums of their own.
        if kind == 12 || kind == 13 {
            for slot in bytes[512..].chunks_mut(512) {
                if slot.iter().any(|&byte| byte != 0) {
                    let crc = crc32c(&slot[4..]);
                    slot[..4].copy_from_slice(&crc.to_le_bytes());
                }
            }
        }
        let lsn = page_lsn(&bytes);
        stamp(&mut bytes, lsn);
        image.write(offset, &bytes);
    }

    /// Lies in one chunk and makes the chain of those behind it good again.
    fn lie_in_log(&self, prng: &mut Prng, image: &mut Image) {
        let recent = self.chunks.len().saturating_sub(12);
        let first = recent + index_below(prng, self.chunks.len() - recent);
        let mut previous = None;
        for &(offset, length) in &self.chunks[first..] {
            let mut chunk = vec![0; length.min(512 << 10)];
            image.read(offset, &mut chunk);
            let payload =
                usize::try_from(u32::from_le_bytes(*chunk[20..].first_chunk().expect("a header")))
                    .expect("small");
            let end = (CHUNK_HEADER_BYTES + payload).min(chunk.len());
            match previous {
                None if prng.below(5) == 0 => lie(prng, &mut chunk[8..64]),
                None => lie(prng, &mut chunk[CHUNK_HEADER_BYTES..end]),
                Some(crc) => chunk[24..28].copy_from_slice(&u32::to_le_bytes(crc)),
            }
            let crc = crc32c(&chunk[8..end]);
            chunk[4..8].copy_from_slice(&crc.to_le_bytes());
            image.write(offset, &chunk);
            previous = Some(crc);
        }
    }
}

/// Returns offset and length of the chunks in the ring of the log, in the order in which they lie.
fn chunks_of(image: &Image, superblock: &Superblock) -> Vec<(u64, usize)> {
    let start = superblock.geometry.journal_offset + JOURNAL_HEADS * 4096;
    let ring_bytes = superblock.geometry.journal_bytes - JOURNAL_HEADS * 4096;
    let mut ring = vec![0; usize::try_from(ring_bytes).expect("small")];
    image.read(start, &mut ring);
    let sector = usize::try_from(superblock.sector_bytes).expect("small");
    let (mut chunks, mut at) = (Vec::new(), 0);
    while at < ring.len() {
        let end = ring.len().min(at + (512 << 10));
        match ChunkHeader::decode(&ring[at..end], superblock.pool_id) {
            Some((_, header, _)) => {
                let length = usize::try_from(header.chunk_bytes).expect("small");
                chunks.push((start + u64::try_from(at).expect("small"), length));
                at += length.next_multiple_of(sector);
            }
            None => at += sector,
        }
    }
    chunks
}

/// Writes up to four absurd numbers of 1, 2, 4 or 8 bytes where such numbers are.
fn lie(prng: &mut Prng, bytes: &mut [u8]) {
    if bytes.len() < 16 {
        return;
    }
    for _ in 0..=prng.below(4) {
        let width = 1 << prng.below(4);
        let at = index_below(prng, bytes.len() / width) * width;
        let mut old = [0; 8];
        old[..width].copy_from_slice(&bytes[at..at + width]);
        let old = u64::from_le_bytes(old);
        let absurd = ABSURD[index_below(prng, ABSURD.len())];
        let new = match prng.below(6) {
            0 => old.wrapping_add(1 + prng.below(3)),
            1 => old.wrapping_sub(1 + prng.below(3)),
            2 => old ^ 1 << prng.below(64),
            3 => {
                let from = index_below(prng, bytes.len() / width) * width;
                let mut other = [0; 8];
                other[..width].copy_from_slice(&bytes[from..from + width]);
                u64::from_le_bytes(other)
            }
            4 => old.wrapping_add(absurd),
            _ => absurd,
        };
        bytes[at..at + width].copy_from_slice(&new.to_le_bytes()[..width]);
    }
}
