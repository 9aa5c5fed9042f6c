//! Damaged metadata with good checksums: the checker, the dump and the explanation never panic, run
//! forever, or exceed their memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use format::ids::Place;
use format::journal::{CHUNK_HEADER_BYTES, put_log_data, put_page_image, put_update};
use format::page::{PAGE_BYTES, PageBytes, PageKind, SLOT_BYTES, stamp};
use runtime::prng::Prng;
use storage::device::SharedDevice;

use super::Bounded;
use super::image::{BIG, SMALL, TestImage};
use super::replayed::{OWNER, open, put_links};
use crate::{CheckOptions, run};
use inspect::dump::{DumpTarget, dump};
use inspect::explain::{FilesetSelector, explain_offset, explain_path};

const SEEDS: u64 = 1500;

fn bounded(image: &TestImage) -> SharedDevice {
    Arc::new(Bounded { below: image.device.clone(), reads: AtomicU64::new(0) })
}

pub(super) fn index_below(prng: &mut Prng, end: usize) -> usize {
    usize::try_from(prng.below(u64::try_from(end).expect("small"))).expect("small")
}

/// Makes up to four changes: flips bits, swaps fields, writes extremes, copies fields.
pub(super) fn mutate(prng: &mut Prng, bytes: &mut [u8]) {
    for _ in 0..=prng.below(4) {
        let at = |prng: &mut Prng| index_below(prng, bytes.len() / 8) * 8;
        let (first, second) = (at(prng), at(prng));
        match prng.below(5) {
            0 => bytes[first] ^= 1 << prng.below(8),
            1 => (0..8).for_each(|offset| bytes.swap(first + offset, second + offset)),
            2 => bytes[first..first + 8].fill(0xff),
            3 => bytes.copy_within(first..first + 8, second),
            _ => bytes[first..first + 8].copy_from_slice(&prng.below(64).to_le_bytes()),
        }
    }
}

/// Gives the slots of a page of anodes or filesets good checksums again.
pub(super) fn restamp_slots(bytes: &mut PageBytes) {
    let is_slotted = [PageKind::Anode, PageKind::FilesetTable].map(PageKind::code);
    if !is_slotted.contains(&bytes[18]) {
        return;
    }
    for slot in bytes[SLOT_BYTES..].chunks_mut(SLOT_BYTES) {
        if slot.iter().any(|&byte| byte != 0) {
            let crc = format::checksum::crc32c(&slot[4..]);
            slot[..4].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

pub(super) fn metadata_places(image: &TestImage) -> Vec<Place> {
    let geometry = &image.geometry;
    let mut places: Vec<Place> = image
        .places
        .values()
        .copied()
        .filter(|&place| image.read_page(place).starts_with(b"HFpg"))
        .collect();
    for group in 0..2 {
        places.push(geometry.descriptor_place(group));
        places.push(geometry.free_map_place(group, 0));
        places.push(geometry.usage_place(group, 0));
    }
    places.push(geometry.group_layout().root_place());
    places.push(geometry.group_table_root_place());
    places.push(geometry.group_table_place(0));
    places
}

fn examine(image: &TestImage) {
    let options = CheckOptions { memory_bytes_max: 32 << 20, ..CheckOptions::default() };
    let report = run(bounded(image), options, &mut |_| {});
    assert!([0, 4, 8].contains(&report.exit_code()));
    let _ = (report.to_text(), report.to_json());
}

#[test]
fn changed_metadata_under_good_checksums_is_survived() {
    let images = [TestImage::new(4096), TestImage::new(1024)];
    let places = [metadata_places(&images[0]), metadata_places(&images[1])];
    let mut found = 0;
    for seed in 0..SEEDS {
        let mut prng = Prng::from_seed(seed);
        let which = index_below(&mut prng, 2);
        let (image, places) = (&images[which], &places[which]);
        let mut before = Vec::new();
        for _ in 0..=prng.below(2) {
            let place = places[index_below(&mut prng, places.len())];
            let whole = image.read_page(place);
            let mut bytes = whole;
            let from = if prng.below(4) == 0 { 16 } else { 128 };
            mutate(&mut prng, &mut bytes[from..]);
            restamp_slots(&mut bytes);
            stamp(&mut bytes, format::ids::Lsn(seed));
            image.write_page(place, &bytes);
            before.push((place, whole));
        }
        let options = CheckOptions { memory_bytes_max: 32 << 20, ..CheckOptions::default() };
        let report = run(bounded(image), options, &mut |_| {});
        found += u64::from(!report.is_clean());
        let _ = (report.to_text(), report.to_json());
        let (place, _) = before[0];
        let _ = dump(&bounded(image), DumpTarget::Page(place));
        let _ = explain_path(&bounded(image), FilesetSelector::First, b"/dir/hard", None);
        let _ = explain_offset(&bounded(image), image.offset(image.places[&(BIG, 4)]));
        for (place, whole) in before.into_iter().rev() {
            image.write_page(place, &whole);
        }
    }
    // Most of a page is zero or free, so many changes put zeros over zeros.
    assert!(found > SEEDS / 3, "only {found} of {SEEDS} changes were noticed");
    assert!(super::check(&images[0]).is_clean(), "the image was not put back");
}

#[test]
fn changed_superblocks_under_good_checksums_are_survived() {
    let image = TestImage::new(4096);
    for seed in 0..SEEDS {
        let mut prng = Prng::from_seed(seed);
        let mut bytes = image.superblock.encode(0);
        // Most of the bytes behind the fields are zero, so aim at the fields.
        let end = if prng.below(2) == 0 { 304 } else { PAGE_BYTES + 512 };
        mutate(&mut prng, &mut bytes[16..end]);
        bytes[32..40].copy_from_slice(&99_u64.to_le_bytes());
        let crc = format::checksum::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        for (index, page) in (0..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
            image.write_page(format::geometry::Geometry::fixed_place(index * 4096), page);
        }
        examine(&image);
        let _ = dump(&bounded(&image), DumpTarget::Superblock(0));
        let _ = dump(&bounded(&image), DumpTarget::Journal);
    }
}

#[test]
fn changed_logs_under_good_checksums_are_survived() {
    for seed in 0..SEEDS / 5 {
        let mut prng = Prng::from_seed(seed);
        let mut image = TestImage::new(4096);
        let mut payload = Vec::new();
        put_links(&image, &mut payload, 7, 1, true);
        put_links(&image, &mut payload, 8, 2, false);
        let place = image.table_place(SMALL);
        let page = image.read_page(place);
        put_update(&mut payload, 3, format::ids::Epoch(3), 1, |log| {
            put_page_image(log, place, &page);
        });
        put_log_data(&mut payload, 3, image.places[&(BIG, 0)], &OWNER, &[5; 4096]);
        let end = payload.len() / 8 * 8;
        let end = if prng.below(2) == 0 { end.min(256) } else { end };
        mutate(&mut prng, &mut payload[..end]);
        let mut log = open(&mut image);
        log.write(&image, &payload);
        examine(&image);
        let _ = dump(&bounded(&image), DumpTarget::Journal);
    }
    const { assert!(CHUNK_HEADER_BYTES.is_multiple_of(8)) };
}
