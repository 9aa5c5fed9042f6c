//! Pools that were not closed: the checker sees what the next mount would see.

use format::anode::{Anode, page_and_slot, slot_offset};
use format::double_write::DoubleWriteHead;
use format::fileset::ROOT_FILESET;
use format::geometry::JOURNAL_HEADS;
use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Lsn, Place};
use format::journal::{
    CHUNK_HEADER_BYTES, ChunkHeader, JournalHead, LogDataOwner, PageRuns, put_commit, put_log_data,
    put_merge, put_page_image, put_update,
};
use format::page::{PageBytes, STAMP_BYTES, STAMP_OFFSET, page_crc, stamp};
use runtime::clock::{Clock, SystemClock};
use storage::device::{AlignedBuffer, Device, IoPurpose};

use super::check;
use super::image::{BIG, EMPTY, POOL, SMALL, TestImage};
use format::defect::DefectCode;

/// Owner of the inline log data of these tests. Replays do not use it.
pub(super) const OWNER: LogDataOwner = LogDataOwner {
    fileset: FilesetId(1),
    anode: AnodeNo(20),
    generation: Generation(1),
    index: 0,
    birth: Epoch(1),
    block_shift: 14,
};

/// Marks the pool on `image` as open, as a mount does. Returns a writer of its empty log.
pub(super) fn open(image: &mut TestImage) -> LogChunkWriter {
    image.superblock.is_open = true;
    image.write_superblocks();
    LogChunkWriter { next: Lsn(0), previous_crc: 0, flushed: Lsn(0), head: 1 }
}

/// Writes chunks one after the other.
pub(super) struct LogChunkWriter {
    next: Lsn,
    previous_crc: u32,
    flushed: Lsn,
    head: u64,
}

impl LogChunkWriter {
    pub(super) fn write(&mut self, image: &TestImage, payload: &[u8]) {
        let mut chunk = vec![0; CHUNK_HEADER_BYTES];
        chunk.extend_from_slice(payload);
        chunk.resize(chunk.len().next_multiple_of(4096), 0);
        let header = ChunkHeader {
            lsn: self.next,
            chunk_bytes: u32::try_from(chunk.len()).expect("small"),
            payload_bytes: u32::try_from(payload.len()).expect("small"),
            previous_crc: self.previous_crc,
            writer_term: 0,
            flushed: self.flushed,
            head: self.head,
        };
        self.previous_crc = header.seal(POOL, &mut chunk);
        let offset = image.geometry.journal_offset + JOURNAL_HEADS * 4096 + self.next.0;
        let length = u64::try_from(chunk.len()).expect("small");
        let chunk = AlignedBuffer::copy_of(&chunk);
        image.device.write(IoPurpose::Journal, offset, chunk).expect("in range");
        self.next.0 += length;
    }
}

/// Returns `page` with one anode changed and the old stamp.
fn with_links(page: &PageBytes, number: u64, nlink: u32) -> PageBytes {
    let mut page = *page;
    let offset = slot_offset(page_and_slot(AnodeNo(number)).1);
    let slot = page[offset..].first_chunk().expect("a slot");
    let mut anode: Anode =
        Anode::decode(slot, ROOT_FILESET, AnodeNo(number)).expect("whole").expect("in use");
    anode.nlink = nlink;
    page[offset..offset + 512].copy_from_slice(&anode.encode());
    page
}

/// Logs the change of a page from `old` to `new` as one run.
fn put_change(log: &mut Vec<u8>, class: u64, place: Place, old: &PageBytes, new: &PageBytes) {
    let first = (128..4096).find(|&at| old[at] != new[at]).expect("differs");
    let last = (128..4096).rfind(|&at| old[at] != new[at]).expect("differs");
    let stamp = &old[STAMP_OFFSET..STAMP_OFFSET + STAMP_BYTES];
    put_update(log, class, Epoch(class), 1, |log| {
        let mut page = PageRuns::begin(log, place, Some(stamp));
        page.put(first, &old[first..=last], &new[first..=last]);
        page.end();
    });
}

/// Logs a class that sets the link count of `number`, and its commit if `commits`.
pub(super) fn put_links(
    image: &TestImage,
    log: &mut Vec<u8>,
    nlink: u32,
    class: u64,
    commits: bool,
) -> PageBytes {
    let place = image.table_place(SMALL);
    let old = image.read_page(place);
    let mut new = with_links(&old, SMALL, nlink);
    put_change(log, class, place, &old, &new);
    stamp(&mut new, Lsn(50));
    if commits {
        put_commit(log, class, Lsn(50), &[(place, page_crc(&new))]);
    }
    new
}

#[test]
fn an_open_pool_with_an_empty_log_is_clean_and_says_so() {
    let mut image = TestImage::new(4096);
    open(&mut image);
    let report = check(&image);
    assert!(report.is_clean(), "{}", report.to_text());
    assert!(report.notes[0].contains("was not closed"), "{:?}", report.notes);
}

#[test]
fn what_committed_is_seen_and_what_did_not_is_undone() {
    for fragment_bytes in [4096, 1024] {
        // Committed: the link count is wrong after the replay.
        let mut image = TestImage::new(fragment_bytes);
        let mut log = open(&mut image);
        let mut payload = Vec::new();
        put_links(&image, &mut payload, 7, 1, true);
        log.write(&image, &payload);
        let report = check(&image);
        assert_eq!(
            report.counts.keys().collect::<Vec<_>>(),
            [&DefectCode::LN001],
            "{}",
            report.to_text()
        );

        // Committed, and the page at home is torn: the log heals the page.
        let mut image = TestImage::new(fragment_bytes);
        let place = image.table_place(SMALL);
        image.edit_anode(SMALL, |anode| anode.nlink = 9);
        let mut log = open(&mut image);
        let mut payload = Vec::new();
        let new = put_links(&image, &mut payload, 2, 1, true);
        let mut torn = image.read_page(place);
        torn[2048..].copy_from_slice(&new[2048..]);
        image.write_page(place, &torn);
        log.write(&image, &payload);
        let report = check(&image);
        assert!(report.is_clean(), "{}", report.to_text());

        // Not committed, but written home: undone.
        let mut image = TestImage::new(fragment_bytes);
        let mut log = open(&mut image);
        let mut payload = Vec::new();
        let new = put_links(&image, &mut payload, 7, 1, false);
        image.write_page(place, &new);
        log.write(&image, &payload);
        let report = check(&image);
        assert!(report.is_clean(), "{}", report.to_text());
        assert!(report.notes[0].contains("0 classes kept, 1 undone"), "{:?}", report.notes);
    }
}

#[test]
fn a_merged_class_is_kept_if_what_it_became_is() {
    for (commits, is_clean) in [(true, false), (false, true)] {
        let mut image = TestImage::new(4096);
        let mut log = open(&mut image);
        let mut payload = Vec::new();
        let new = put_links(&image, &mut payload, 7, 1, false);
        put_merge(&mut payload, 1, 2);
        put_merge(&mut payload, 2, 3);
        log.write(&image, &payload);
        let mut payload = Vec::new();
        if commits {
            let pages = [(image.table_place(SMALL), page_crc(&new))];
            put_commit(&mut payload, 3, Lsn(50), &pages);
            log.write(&image, &payload);
        }
        let report = check(&image);
        assert_eq!(report.is_clean(), is_clean, "{}", report.to_text());
    }
}

#[test]
fn a_chunk_that_does_not_follow_is_not_replayed() {
    let write = |change: fn(&mut LogChunkWriter)| {
        let mut image = TestImage::new(4096);
        let mut log = open(&mut image);
        put_nothing(&mut log, &image);
        change(&mut log);
        let mut payload = Vec::new();
        put_links(&image, &mut payload, 7, 1, true);
        log.write(&image, &payload);
        check(&image)
    };
    assert!(!write(|_| {}).is_clean());
    assert!(write(|log| log.previous_crc ^= 1).is_clean(), "L1");
    let mut image = TestImage::new(4096);
    let mut log = open(&mut image);
    put_nothing(&mut log, &image);
    log.previous_crc ^= 1;
    put_nothing(&mut log, &image);
    log.flushed = log.next;
    put_nothing(&mut log, &image);
    let damaged = check(&image);
    assert_eq!(damaged.counts.keys().collect::<Vec<_>>(), [&DefectCode::JR002], "L3");
}

fn put_nothing(log: &mut LogChunkWriter, image: &TestImage) {
    let mut payload = Vec::new();
    put_merge(&mut payload, 90, 91);
    log.write(image, &payload);
}

#[test]
fn whole_pages_and_riding_bytes_are_seen() {
    let mut image = TestImage::new(4096);
    let table = image.table_place(EMPTY);
    let data = image.places[&(BIG, 19)];
    let (whole_page, whole_data) = (image.read_page(table), image.read_page(data));
    image.write_page(table, &[0xee; 4096]);
    image.write_page(data, &[0xdd; 4096]);
    let mut log = open(&mut image);
    let mut payload = Vec::new();
    put_update(&mut payload, 4, Epoch(4), 1, |log| put_page_image(log, table, &whole_page));
    put_log_data(&mut payload, 4, data, &OWNER, &whole_data);
    log.write(&image, &payload);
    let report = check(&image);
    let found: Vec<_> = report.counts.keys().collect();
    assert_eq!(found, [&DefectCode::MP005], "the class did not commit, so it is not written");

    let mut payload = Vec::new();
    put_commit(&mut payload, 4, Lsn(1), &[(table, page_crc(&whole_page))]);
    log.write(&image, &payload);
    let report = check(&image);
    assert!(report.is_clean(), "{}", report.to_text());
}

#[test]
fn a_whole_group_of_the_double_write_area_is_seen() {
    let mut image = TestImage::new(4096);
    let place = image.table_place(EMPTY);
    let whole = image.read_page(place);
    image.write_page(place, &[0xee; 4096]);
    open(&mut image);
    let head = DoubleWriteHead {
        sequence: 3,
        head_index: 0,
        page_count: 1,
        lsn: Lsn(0),
        entries: vec![(place, page_crc(&whole))],
    };
    let head_bytes = AlignedBuffer::copy_of(&head.encode(POOL, &image.geometry));
    let offset = DoubleWriteHead::head_offset(&image.geometry, 0);
    image.device.write(IoPurpose::DoubleWrite, offset, head_bytes).expect("in range");
    let report = check(&image);
    assert!(!report.is_clean(), "the copy is missing");
    assert!(report.notes[0].contains(" 0 pages from the double-write"), "{:?}", report.notes);
    let offset = DoubleWriteHead::page_offset(&image.geometry, 0);
    let copy = AlignedBuffer::copy_of(&whole);
    image.device.write(IoPurpose::DoubleWrite, offset, copy).expect("in range");
    let report = check(&image);
    assert!(report.is_clean(), "{}", report.to_text());
}

/// Goal: a group written back long ago is ignored, since the places of its pages may hold data.
#[test]
fn a_stale_group_of_the_double_write_area_is_not_seen() {
    let mut image = TestImage::new(4096);
    let data = image.places[&(BIG, 3)];
    let stale = image.read_page(image.table_place(EMPTY));
    open(&mut image);
    for slot in 0..4 {
        let head = JournalHead {
            sequence: slot / 2,
            tail: Lsn(0),
            previous_crc: 0,
            epoch: Epoch(9),
            double_write_sequence: 3,
        };
        let bytes = AlignedBuffer::copy_of(&head.encode(POOL, &image.geometry, slot));
        let offset = image.geometry.journal_offset + slot * 4096;
        image.device.write(IoPurpose::Journal, offset, bytes).expect("in range");
    }
    for (sequence, is_clean) in [(3, true), (4, false)] {
        let entries = vec![(data, page_crc(&stale))];
        let head = DoubleWriteHead { sequence, head_index: 0, page_count: 1, lsn: Lsn(1), entries };
        let head = AlignedBuffer::copy_of(&head.encode(POOL, &image.geometry));
        let offset = DoubleWriteHead::head_offset(&image.geometry, 0);
        image.device.write(IoPurpose::DoubleWrite, offset, head).expect("in range");
        let offset = DoubleWriteHead::page_offset(&image.geometry, 0);
        let copy = AlignedBuffer::copy_of(&stale);
        image.device.write(IoPurpose::DoubleWrite, offset, copy).expect("in range");
        let report = check(&image);
        assert_eq!(report.is_clean(), is_clean, "{sequence}: {}", report.to_text());
    }
}

#[test]
fn absurd_logs_are_reported() {
    let mut image = TestImage::new(4096);
    let mut log = open(&mut image);
    let mut payload = Vec::new();
    put_log_data(&mut payload, 1, Place::new(0, 9999, 0), &OWNER, b"nowhere");
    put_commit(&mut payload, 1, Lsn(1), &[]);
    payload.extend_from_slice(&[0xff; 24]);
    log.write(&image, &payload);
    let report = check(&image);
    assert_eq!(report.counts[&DefectCode::JR003], 2, "{}", report.to_text());

    let mut image = TestImage::new(4096);
    open(&mut image);
    let offset = image.geometry.journal_offset;
    let nothing = AlignedBuffer::zeroed(4 * 4096);
    image.device.write(IoPurpose::Journal, offset, nothing).expect("in range");
    let report = check(&image);
    assert_eq!(
        report.counts.keys().collect::<Vec<_>>(),
        [&DefectCode::JR001],
        "{}",
        report.to_text()
    );
}

/// Goal: a chunk that refers to a missing head is reported (L4), in a closed pool too.
#[test]
fn a_lost_head_is_reported() {
    for is_open in [true, false] {
        for (head, is_known) in [(1, true), (2, false)] {
            let mut image = TestImage::new(4096);
            let mut log = open(&mut image);
            log.head = head;
            put_nothing(&mut log, &image);
            image.superblock.is_open = is_open;
            image.write_superblocks();
            let report = check(&image);
            assert_eq!(report.is_clean(), is_known, "{head}: {}", report.to_text());
            let found: Vec<_> = report.counts.keys().collect();
            assert!(is_known || found == [&DefectCode::JR006], "{found:?}");
        }
    }
}

/// Goal: a damaged page that the log changes and no pointer leads to is reported exactly if a mount
/// would refuse it. Method: a run of bytes for a free place without a page; then a whole page of a
/// class that was undone.
#[test]
fn a_damaged_page_of_the_log_that_nobody_needs_is_named() {
    for (is_whole, commits, expected) in
        [(false, true, Some(1)), (false, false, Some(1)), (true, false, None)]
    {
        let mut image = TestImage::new(4096);
        let mut log = open(&mut image);
        let place = Place::new(0, 0, image.geometry.fragments_of(0) - 1);
        let (old, new) = ([0; 4096], [7; 4096]);
        let mut payload = Vec::new();
        if is_whole {
            put_update(&mut payload, 1, Epoch(1), 1, |log| put_page_image(log, place, &new));
        } else {
            put_change(&mut payload, 1, place, &old, &new);
        }
        if commits {
            put_commit(&mut payload, 1, Lsn(50), &[]);
        }
        log.write(&image, &payload);
        let report = check(&image);
        let found = report.counts.get(&DefectCode::JR004).copied();
        assert_eq!(found, expected, "{}", report.to_text());
        assert_eq!(report.defect_count(), expected.unwrap_or(0), "{}", report.to_text());
    }
}

/// Goal: the time of a replay does not depend on the order in which classes were merged. Method:
/// long chains of merges in both orders, and a cycle. If the last class committed, all are kept.
#[test]
fn a_long_chain_of_merges_is_followed_once() {
    const CLASSES: u64 = 30_000;
    let clock = SystemClock::new();
    let began_ns = clock.monotonic_ns();
    let chain = || (1..CLASSES).map(|class| (class, class + 1));
    let upwards: Vec<(u64, u64)> = chain().collect();
    let downwards: Vec<(u64, u64)> = chain().rev().collect();
    let around = chain().chain([(CLASSES, 1)]).collect();
    for (merges, commits) in [(upwards, true), (downwards, true), (around, false)] {
        let mut image = TestImage::new(4096);
        let mut log = open(&mut image);
        for merges in merges.chunks(2000) {
            let mut payload = Vec::new();
            merges.iter().for_each(|(class, into)| put_merge(&mut payload, *class, *into));
            log.write(&image, &payload);
        }
        if commits {
            let mut payload = Vec::new();
            put_commit(&mut payload, CLASSES, Lsn(50), &[]);
            log.write(&image, &payload);
        }
        let report = check(&image);
        assert!(report.is_clean(), "{}", report.to_text());
        let kept = format!("{} classes kept", if commits { CLASSES } else { 0 });
        assert!(report.notes.iter().any(|note| note.contains(&kept)), "{:?}", report.notes);
    }
    let took_ns = clock.monotonic_ns() - began_ns;
    assert!(took_ns < 20_000_000_000, "{took_ns} ns");
}
