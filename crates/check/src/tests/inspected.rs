//! Dumps and explanations of the hand-made pool.

use format::ids::Place;
use storage::device::{AlignedBuffer, Device, IoPurpose, SharedDevice};

use super::image::{ATTRIBUTES, BIG, DIR, MANY, ROOT, SMALL, TestImage};
use super::replayed::{open, put_links};
use inspect::dump::{DumpTarget, dump};
use inspect::explain::{Explanation, FilesetSelector, explain_offset, explain_path};

fn device(image: &TestImage) -> SharedDevice {
    image.device.clone()
}

fn dump_text(image: &TestImage, target: &str) -> String {
    dump(&device(image), target.parse().expect("a target")).expect("there")
}

#[test]
fn every_kind_of_page_is_shown_with_what_it_holds() {
    let image = TestImage::new(4096);
    let page = |place: Place| dump_text(&image, &place.to_string());
    let geometry = &image.geometry;
    let cases = [
        (geometry.group_table_root_place(), "groups in use: 2"),
        (geometry.group_table_place(0), "group 1: state 1"),
        (geometry.descriptor_place(1), "fragments_used"),
        (geometry.free_map_place(1, 0), "set: 0 to "),
        (geometry.usage_place(1, 0), "kind: Data"),
        (geometry.group_layout().root_place(), "anode:0 Internal"),
        (image.places[&(u64::MAX, 0)], "fileset:1"),
        (image.table_place(SMALL), "anode:18 Regular generation:1018"),
        (image.table_place(19), "inline \"small\""),
        (image.places[&(BIG, u64::MAX)], "block 19: place "),
        (image.places[&(ROOT, 0)], "Directory anode:21 generation:1021 \"dir\""),
        (image.places[&(2, 0)], "set: 0 to 26"),
        (image.places[&(3, 0)], "slot 0: anode:25"),
        (image.table_place(SMALL), "attribute \"user.a\" \"inline\""),
        (image.places[&(ATTRIBUTES, 0)], "\"user.long\" 4000 bytes from page 1"),
        (image.places[&(ATTRIBUTES, 1)], "3968 bytes of a value"),
    ];
    for (place, expected) in cases {
        let text = page(place);
        assert!(text.contains("\nverifies\n"), "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(dump_text(&image, "superblock:3").contains("sequence: 2"));
    assert!(!dump_text(&image, "superblock").contains("3,\n        3,"), "the secret is shown");
    let head = dump_text(&image, &geometry.journal_offset.to_string());
    assert!(head.contains("sequence 0 tail 0"), "{head}");
}

#[test]
fn damaged_pages_and_plain_data_are_shown_as_well() {
    let image = TestImage::new(1024);
    let place = image.places[&(DIR, 0)];
    let mut bytes = image.read_page(place);
    bytes[4000] ^= 1;
    image.write_page(place, &bytes);
    let text = dump_text(&image, &place.to_string());
    assert!(text.contains("does not verify: PG002"), "{text}");
    assert!(text.contains("\"hard\""), "{text}");
    let data = dump_text(&image, &image.places[&(BIG, 0)].to_string());
    assert!(data.contains("does not verify: PG001"), "{data}");
    assert!(data.contains("  0000  11 12 13"), "{data}");
    // Data that would be an anode page if it had the magic.
    image.write_page(place, &[13; 4096]);
    let data = dump_text(&image, &place.to_string());
    assert!(data.contains("  0000  0d 0d 0d") && !data.contains("owner"), "{data}");
}

#[test]
fn targets_are_read_or_refused() {
    let target = |text: &str| text.parse::<DumpTarget>().ok();
    assert_eq!(target("superblock:2"), Some(DumpTarget::Superblock(2)));
    assert_eq!(target("0:3:17"), Some(DumpTarget::Page(Place::new(0, 3, 17))));
    assert_eq!(target("65536"), Some(DumpTarget::DeviceByte(65536)));
    assert_eq!(target("journal"), Some(DumpTarget::Journal));
    for bad in ["", "superblock:4", "1:2", "0:16777216:0", "256:0:0", "x", "1:2:3:4", "0:x:1:2"] {
        assert_eq!(target(bad), None, "{bad:?}");
    }
    let image = TestImage::new(4096);
    for absent in [DumpTarget::DeviceByte(u64::MAX), DumpTarget::Page(Place::new(0, 99, 0))] {
        assert!(dump(&device(&image), absent).is_err(), "{absent:?}");
    }
}

#[test]
fn the_log_is_shown_record_by_record() {
    let mut image = TestImage::new(4096);
    let mut log = open(&mut image);
    let mut payload = Vec::new();
    put_links(&image, &mut payload, 2 + 1, 6, true);
    log.write(&image, &payload);
    let text = dump_text(&image, "journal");
    for expected in ["log from 0", "to lsn:4096", "chunk lsn:0 of 4096", "update class 6", "commit"]
    {
        assert!(text.replace("lsn:0 (", "0 (").contains(expected), "{expected}: {text}");
    }
    let nothing = AlignedBuffer::zeroed(4 * 4096);
    let offset = image.geometry.journal_offset;
    image.device.write(IoPurpose::Journal, offset, nothing).expect("in range");
    assert!(dump_text(&image, "journal").contains("JR001"));
}

fn has(explanation: &Explanation, layer: &str, what: &str) -> bool {
    explanation.layers.iter().any(|found| found.layer == layer && found.what.contains(what))
}

#[test]
fn a_path_leads_to_the_bytes_and_the_bytes_lead_back() {
    for fragment_bytes in [4096, 1024] {
        let image = TestImage::new(fragment_bytes);
        let cases = [("/big", BIG, 19), ("/dir/hard", SMALL, 0), ("/small", SMALL, 0)];
        for (path, number, index) in cases {
            let place = image.places[&(number, index)];
            let range = index * 16384..index * 16384 + 1;
            let there =
                explain_path(&device(&image), FilesetSelector::First, path.as_bytes(), Some(range));
            let there = there.expect("there");
            let blocks: Vec<_> =
                there.layers.iter().filter(|layer| layer.layer == "block").collect();
            assert_eq!(blocks.len(), 1, "{}", there.to_text());
            assert_eq!(blocks[0].place, Some(place));
            assert!(blocks[0].what.contains("verifies"), "{}", there.to_text());
            let offset = blocks[0].device_offset.expect("in the pool");
            assert_eq!(offset, image.offset(place));
            assert_eq!(has(&there, "map", "level 0"), number == BIG, "{}", there.to_text());
            assert!(has(&there, "segment", "Data"), "{}", there.to_text());

            let back = explain_offset(&device(&image), offset + 700).expect("on the device");
            assert!(has(&back, "block", &format!("{index}: ")), "{}", back.to_text());
            assert!(has(&back, "anode", &format!("anode:{number} ")), "{}", back.to_text());
        }
        let big = image.offset(image.places[&(BIG, 3)]);
        image.edit_anode(BIG, |anode| anode.parent = format::ids::AnodeNo(ROOT));
        let back = explain_offset(&device(&image), big).expect("on the device");
        assert!(has(&back, "path", "/big"), "{}", back.to_text());
        assert!(back.to_json().contains("\"layer\":\"path\",\"what\":\"/big\""));

        let in_page = image.offset(image.places[&(MANY, 2)]) + 4095;
        let back = explain_offset(&device(&image), in_page).expect("on the device");
        assert!(has(&back, "page", "Directory page 2"), "{}", back.to_text());
        assert!(has(&back, "path", "/many"), "{}", back.to_text());
    }
}

#[test]
fn every_region_of_the_device_has_a_name() {
    let image = TestImage::new(4096);
    let geometry = &image.geometry;
    let cases = [
        (5, "superblock", "copy 0"),
        (65536, "superblock", "copy 1"),
        ((16 << 20) - 1, "superblock", "copy 3"),
        (geometry.journal_offset, "journal", "head 0"),
        (geometry.journal_offset + 4 * 4096 + 7, "journal", "byte 7 of the ring"),
        (geometry.double_write_offset, "double-write", "head 0"),
        (geometry.group_table_offset + 4096, "group table", "page 0"),
        (geometry.groups_offset, "front", "descriptor"),
        (geometry.groups_offset + 4096, "front", "page 0 of the free map"),
        (geometry.groups_offset + 3 * 4096, "front", "page 0 of the segment usage"),
        (geometry.group_offset(1) + 500 * 4096, "free", "nothing points here"),
    ];
    for (offset, layer, what) in cases {
        let found = explain_offset(&device(&image), offset).expect("on the device");
        assert!(has(&found, layer, what), "{offset}: {}", found.to_text());
    }
    assert!(explain_offset(&device(&image), 16 << 20).is_err());
    for absent in ["/nothing", "/dir/nothing", "/small/x"] {
        assert!(
            explain_path(&device(&image), FilesetSelector::First, absent.as_bytes(), None).is_err(),
            "{absent}"
        );
    }
    let split =
        explain_path(&device(&image), FilesetSelector::First, b"/many/n123", None).expect("there");
    assert!(has(&split, "dirent", "n123"), "{}", split.to_text());
    let big = explain_path(&device(&image), FilesetSelector::First, b"/big", None).expect("there");
    let count = |layer| big.layers.iter().filter(|found| found.layer == layer).count();
    assert_eq!((count("map"), count("block")), (1, 20), "{}", big.to_text());
    let small =
        explain_path(&device(&image), FilesetSelector::First, b"/small", None).expect("there");
    for what in ["\"user.a\" in the anode", "page 0 of anode:26: \"user.note\", \"user.long\""] {
        assert!(has(&small, "attribute", what), "{}", small.to_text());
    }
    let hole = explain_path(&device(&image), FilesetSelector::First, b"/a", None).expect("there");
    assert!(has(&hole, "data", "in the anode"), "{}", hole.to_text());
}

#[test]
fn a_summary_names_the_owner_without_a_search() {
    use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Lsn};
    use format::summary::{SegmentSummary, SummaryEntry, SummaryKind};
    let image = TestImage::new(4096);
    let data = image.places[&(BIG, 3)];
    let segment = image.geometry.segment_of(data);
    let start = image.geometry.segment_place(1, segment);
    let entry = SummaryEntry {
        kind: SummaryKind::Block,
        block_shift: 14,
        fragments: 4,
        offset: data.fragment() - start.fragment(),
        fileset: FilesetId(1),
        anode: AnodeNo(BIG),
        generation: Generation(1000 + BIG),
        index: 3,
        birth: Epoch(5),
        check: [0; 4],
    };
    // At the end of the segment, over a block that no other test of this image uses.
    let place = start.advance(image.geometry.segment_fragments - 1);
    // The first entry is of a block that was rewritten elsewhere since, as the map shows.
    let stale = SummaryEntry { index: 7, ..entry };
    let summary = SegmentSummary {
        place,
        lsn: Lsn(1),
        incarnation: Epoch(1),
        partial_start: 0,
        previous: 0,
        previous_crc: 0,
        entries: vec![stale, entry],
    };
    image.write_page(place, &summary.encode(super::image::POOL, &image.superblock.secret));
    let opened = inspect::InspectedPool::raw(&device(&image)).expect("a pool");
    let found = inspect::explain::owner_by_summary(&opened, data.advance(2));
    let (anode, found) = found.expect("the summary names it");
    assert_eq!((anode.number, found.index), (AnodeNo(BIG), 3));
    assert!(inspect::explain::owner_by_summary(&opened, start.advance(0)).is_none());
}
