//! Every decoder of `format`.

use format::anode::{ANODE_BYTES, Anode};
use format::directory;
use format::double_write::DoubleWriteHead;
use format::fileset::{FILESET_BYTES, Fileset};
use format::geometry::{Geometry, GeometryOptions};
use format::group::SegmentUsage;
use format::ids::{AnodeNo, FilesetId, Lsn, Place, PoolId};
use format::journal::{ChunkHeader, JournalHead, records};
use format::map::pointer_at;
use format::page::{PAGE_BYTES, PageBytes, PageHeader, stamp};
use format::pointer::BlockPointer;
use format::stream::{RECORD_HEAD_BYTES, StreamRecordHead};
use format::summary::SegmentSummary;
use format::superblock::{SUPERBLOCK_BYTES, Superblock};

use super::iterations;

const POOL: PoolId = PoolId([7; 16]);
/// More steps than a walk over one page or one chunk can take.
const WALK_MAX: usize = 1 << 16;

fn geometry() -> Geometry {
    let options = GeometryOptions {
        device_bytes: 64 << 20,
        fragment_bytes: 4096,
        segment_bytes: None,
        group_bytes: None,
        journal_bytes: None,
    };
    Geometry::plan(&options).expect("64 MiB are enough")
}

/// Returns a page that begins with `bytes`.
fn page_of(bytes: &[u8]) -> PageBytes {
    let mut page = [0; PAGE_BYTES];
    let count = bytes.len().min(PAGE_BYTES);
    page[..count].copy_from_slice(&bytes[..count]);
    page
}

/// Asks every decoder of a page.
fn decode_page(page: &PageBytes, geometry: &Geometry) {
    let place = Place::new(0, 0, 1);
    let _ = PageHeader::decode(page, POOL, place);
    let _ = PageHeader::parse(page);
    let _ = JournalHead::decode(page, POOL, geometry, 0);
    let _ = DoubleWriteHead::decode(page, POOL, geometry, 0);
    let _ = SegmentSummary::decode(page, POOL, &[3; 16], place);
    let _ = (0..200).filter_map(|slot| pointer_at(page, slot)).count();
    let _ = (0..200).filter_map(|segment| SegmentUsage::of(page, segment)).count();
    for slot in page.chunks_exact(ANODE_BYTES) {
        let slot: &[u8; ANODE_BYTES] = slot.first_chunk().expect("chunks are whole");
        if let Ok(Some(anode)) = Anode::decode(slot, FilesetId(1), AnodeNo(1)) {
            let _ = anode.verify();
            let _ = (0..8).filter_map(|slot| anode.root_pointer(slot)).count();
        }
    }
    let slot: &[u8; FILESET_BYTES] = page.first_chunk().expect("a page holds one");
    let _ = Fileset::decode(slot, 0);
    assert!(directory::dirents(page).take(WALK_MAX).count() < WALK_MAX, "a walk has no end");
    let _ = directory::verify(page, 0);
    let _ = directory::find(page, 1, b"name");
    let _ = directory::depth(page);
}

#[test]
fn decoders_of_pages_answer() {
    let geometry = geometry();
    bolero::check!().with_iterations(iterations()).for_each(|bytes: &[u8]| {
        let mut page = page_of(bytes);
        decode_page(&page, &geometry);
        stamp(&mut page, Lsn(1));
        decode_page(&page, &geometry);
    });
}

#[test]
fn decoders_of_the_log_answer() {
    bolero::check!().with_iterations(iterations()).for_each(|bytes: &[u8]| {
        let _ = ChunkHeader::peek(bytes, POOL);
        let _ = ChunkHeader::decode(bytes, POOL);
        assert!(records(bytes).take(WALK_MAX).count() < WALK_MAX, "a walk has no end");
    });
}

#[test]
fn decoders_of_superblocks_and_pointers_answer() {
    bolero::check!().with_iterations(iterations()).for_each(|bytes: &[u8]| {
        let page = page_of(bytes);
        let mut superblock = [0; SUPERBLOCK_BYTES];
        let length = bytes.len().min(SUPERBLOCK_BYTES);
        superblock[..length].copy_from_slice(&bytes[..length]);
        let _ = Superblock::decode(&superblock, 0);
        if let Some(pointer) = page.first_chunk() {
            let _ = BlockPointer::decode(pointer);
        }
    });
}

/// Bytes of the bodies of records.
const LENGTHS: [u32; 8] = [0, 8, 16, 32, 224, 512, 4016, 900];

/// Goal: no record of a stream ends its reader, whatever its bytes are, also with a checksum that
/// is right; and what is read is written as the same bytes.
#[test]
fn the_decoder_of_streams_answers() {
    bolero::check!().with_iterations(iterations()).for_each(|bytes: &[u8]| {
        let mut head = [0; RECORD_HEAD_BYTES];
        let length = bytes.len().min(RECORD_HEAD_BYTES);
        head[..length].copy_from_slice(&bytes[..length]);
        for kind in 0..16 {
            head[4] = kind;
            for sequence in [0, 7] {
                head[16..24].copy_from_slice(&u64::to_le_bytes(sequence));
                let Ok(decoded) = StreamRecordHead::decode(head, sequence) else {
                    // A length that some kind has.
                    let length = LENGTHS[usize::from(kind) % LENGTHS.len()];
                    head[8..12].copy_from_slice(&length.to_le_bytes());
                    continue;
                };
                let body: Vec<u8> =
                    bytes.iter().copied().cycle().take(decoded.body_bytes).collect();
                let mut body = if bytes.is_empty() { vec![0; decoded.body_bytes] } else { body };
                let _ = decoded.record(&body, sequence, None);
                if sequence == 0 && body.len() > 10 {
                    body[..10].copy_from_slice(b"HFstream\x01\0");
                }
                let checksum = checksum_of(&head, &body);
                head[..4].copy_from_slice(&checksum.to_le_bytes());
                let good = StreamRecordHead::decode(head, sequence).expect("it was good");
                if let Ok(record) = good.record(&body, sequence, None) {
                    let stream = u64::from_le_bytes(*head[24..].first_chunk().expect("8 bytes"));
                    assert_eq!(record.encode(sequence, stream), [&head[..], &body].concat());
                }
            }
        }
    });
}

fn checksum_of(head: &[u8; RECORD_HEAD_BYTES], body: &[u8]) -> u32 {
    format::checksum::crc32c(&[&head[4..], body].concat())
}
