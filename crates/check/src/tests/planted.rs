//! Plants each defect in a healthy pool, and expects the checker to find that defect only.
//!
//! Long: one case for each defect code.

use std::sync::Arc;

use format::anode::{AnodeKind, page_and_slot, slot_offset};
use format::attributes::{self, AttributeName, AttributeValueLocation, Namespace};
use format::directory::{self, NewDirent};
use format::fileset::{Fileset, FilesetState, NamePart};
use format::geometry::Geometry;
use format::group::{
    DESCRIPTOR_FRAGMENTS_OFFSET, DESCRIPTOR_FRAGMENTS_USED_OFFSET, DESCRIPTOR_SEGMENTS_OFFSET,
    DESCRIPTOR_SEGMENTS_USED_OFFSET, SegmentKind, SegmentUsage, TOTAL_ANODES_USED_OFFSET,
    TOTAL_FRAGMENTS_RESERVED_OFFSET, USAGE_BYTES, USAGES_PER_PAGE, entry_offset,
};
use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Lsn, Place};
use format::page::{
    AUX_OFFSET, COUNT_OFFSET, PAGE_HEADER_BYTES, PageBytes, stamp, write_u32, write_u64,
};
use format::pointer::{BlockPointer, SplitHint};
use format::summary::{SegmentSummary, SummaryEntry, SummaryKind};
use format::{bitmap, map};
use storage::device::{
    AlignedBuffer, Device, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice,
    RequestKind, Ticket,
};

use super::check;
use super::image::{ATTRIBUTES, BIG, DIR, EMPTY, MANY, NAMED, ORPHAN, ROOT, SMALL, SUB, TestImage};
use crate::report::ConsistencyReport;
use format::defect::DefectCode;

/// Plants a defect with `plant`. Returns the checker's report.
fn report_of(plant: impl FnOnce(&TestImage)) -> ConsistencyReport {
    let image = TestImage::new(4096);
    plant(&image);
    check(&image)
}

/// Expects exactly the defects `codes`, each once.
#[track_caller]
fn expect(codes: &[DefectCode], plant: impl FnOnce(&TestImage)) -> ConsistencyReport {
    let report = report_of(plant);
    let mut expected: Vec<DefectCode> = codes.to_vec();
    expected.sort_unstable();
    let mut found: Vec<DefectCode> =
        report.findings.iter().map(|finding| finding.defect.code).collect();
    found.sort_unstable();
    assert_eq!(found, expected, "{}", report.to_text());
    assert_eq!(report.exit_code(), 4);
    report
}

/// Changes a page, and leaves its checksum wrong.
fn spoil(image: &TestImage, place: Place, change: impl FnOnce(&mut PageBytes)) {
    let mut bytes = image.read_page(place);
    change(&mut bytes);
    image.write_page(place, &bytes);
}

fn directory_place(image: &TestImage, number: u64) -> Place {
    image.places[&(number, 0)]
}

/// Changes the slot of an anode, and leaves the slot's checksum wrong.
fn spoil_slot(image: &TestImage, number: u64, change: impl FnOnce(&mut [u8])) {
    let offset = slot_offset(page_and_slot(AnodeNo(number)).1);
    image.edit(image.table_place(number), |bytes| change(&mut bytes[offset..offset + 512]));
}

/// Offset of the dirent `name` in `page`.
fn offset_of(page: &PageBytes, name: &[u8]) -> usize {
    directory::dirents(page).find(|dirent| dirent.name == name).expect("there").offset
}

/// Expects a clean pool with one note on a spare copy: `code`.
#[track_caller]
fn expect_note(code: DefectCode, plant: impl FnOnce(&TestImage)) -> ConsistencyReport {
    let report = report_of(plant);
    let noted: Vec<DefectCode> = report.noted.iter().map(|found| found.defect.code).collect();
    assert_eq!(noted, [code], "{}", report.to_text());
    assert_eq!(report.exit_code(), 0, "{}", report.to_text());
    assert!(report.to_text().contains(&format!("note: {code} minor: copy ")));
    assert!(report.to_json().contains(&format!("\"noted\":[{{\"code\":\"{code}\"")));
    report
}

fn put_superblock(image: &TestImage, copy: u16, bytes: &[u8]) {
    let offset = Geometry::superblock_offset(16 << 20, copy);
    image
        .device
        .write(IoPurpose::Superblock, offset, AlignedBuffer::copy_of(bytes))
        .expect("there");
}

#[test]
fn superblock_copies_that_fail_are_noted() {
    let spoil_copy = |image: &TestImage, copy: u16, at: usize, byte: u8| {
        let mut bytes = image.superblock.encode(copy);
        bytes[at] = byte;
        put_superblock(image, copy, &bytes);
    };
    expect_note(DefectCode::SB001, |image| spoil_copy(image, 1, 0, 7));
    expect_note(DefectCode::SB002, |image| spoil_copy(image, 3, 500, 7));
    expect_note(DefectCode::SB005, |image| put_superblock(image, 1, &image.superblock.encode(2)));
    for (code, at, byte) in [
        (DefectCode::SB003, 12, 9),
        (DefectCode::SB006, 44, 2),
        (DefectCode::SB004, 47, 1),
        (DefectCode::SB004, 64, 128),
        (DefectCode::SB006, 47, 9),
        (DefectCode::SB007, 12, 1),
    ] {
        expect_note(code, |image| {
            let mut bytes = image.superblock.encode(1);
            bytes[at] = byte;
            let crc = format::checksum::crc32c(&bytes[12..]);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            put_superblock(image, 1, &bytes);
        });
    }
    expect_note(DefectCode::SB008, |image| {
        let mut older = image.superblock.clone();
        older.sequence -= 1;
        put_superblock(image, 3, &older.encode(3));
    });
}

#[test]
fn journal_heads_that_fail_are_noted() {
    for slot in 0..4 {
        expect_note(DefectCode::JR008, |image| {
            let offset = image.geometry.journal_offset + slot * 4096;
            let mut bytes = image.device.read(IoPurpose::Journal, offset, 4096).expect("there");
            bytes[200] ^= 1;
            image.device.write(IoPurpose::Journal, offset, bytes).expect("there");
        });
    }
}

/// Goal: an enlarged device is no defect, though the last superblock copies are at its former end.
#[test]
fn an_enlarged_device_is_told_and_is_no_defect() {
    let image = TestImage::new(4096);
    let larger = MemoryDevice::new("larger", 20 << 20);
    let bytes = image.device.read(IoPurpose::Check, 0, 16 << 20).expect("there");
    larger.write(IoPurpose::Check, 0, bytes).expect("it is larger");
    let report = crate::run(larger, crate::CheckOptions::default(), &mut |_| {});
    assert_eq!((report.exit_code(), report.noted.len()), (0, 0), "{}", report.to_text());
    assert!(report.to_text().contains("note: the device has 4194304 bytes more than the pool"));
}

#[test]
fn no_pass_does_more_than_there_is() {
    let image = TestImage::new(4096);
    // The descriptor counts nothing in use; the pass over filesets finds more.
    image.edit(image.geometry.descriptor_place(1), |bytes| {
        write_u32(bytes, DESCRIPTOR_FRAGMENTS_USED_OFFSET, 0);
    });
    let mut told = Vec::new();
    crate::run(image.device.clone(), crate::CheckOptions::default(), &mut |at| told.push(at));
    assert!(told.iter().all(|at| at.total == 0 || at.done <= at.total), "{told:?}");
    let named = |name| told.iter().any(|at| at.pass == name);
    let fileset = crate::pass::FILESET_PASSES.iter().map(|pass| pass.name);
    let mut passes = crate::pass::PASSES.iter().map(|pass| pass.name).chain(fileset);
    assert!(passes.all(named), "{told:?}");
}

/// Goal: a page and its LSN page are compared with each other. Method: the LSN page lists another
/// LSN, is older than the page, or is damaged.
#[test]
fn pages_that_are_not_the_last_that_went_home_are_named() {
    let list = |image: &TestImage, place: Place| {
        let entry = image.geometry.lsn_entry(place).expect("it is listed");
        image.edit(entry.page, |bytes| entry.list(bytes, 0, Lsn(77)));
    };
    expect(&[DefectCode::PG009], |image| list(image, image.table_place(SMALL)));
    let report = expect(&[DefectCode::AG011], |image| {
        let place = image.table_place(SMALL);
        list(image, place);
        let mut bytes = image.read_page(place);
        stamp(&mut bytes, Lsn(1000));
        image.write_page(place, &bytes);
    });
    assert!(report.to_text().contains("older"), "{}", report.to_text());
    for place in [
        |geometry: &Geometry| geometry.group_table_lsn_place(0),
        |geometry: &Geometry| geometry.lsn_page_place(1, 0),
    ] {
        expect(&[DefectCode::AG011], |image| {
            image.write_page(place(&image.geometry), &[7; 4096]);
        });
    }
}

#[test]
fn a_device_without_a_superblock_is_refused() {
    let device = storage::device::MemoryDevice::new("blank", 16 << 20);
    let report = crate::run(device, crate::CheckOptions::default(), &mut |_| {});
    assert_eq!(report.exit_code(), 8);
    assert!(report.to_text().contains("SB001"), "{}", report.to_text());
}

#[test]
fn too_little_memory_stops_the_check() {
    let image = TestImage::new(4096);
    let options = crate::CheckOptions { memory_bytes_max: 500, ..crate::CheckOptions::default() };
    let report = crate::run(image.device.clone(), options, &mut |_| {});
    assert_eq!(report.exit_code(), 8);
}

#[test]
fn pages_that_fail_are_named() {
    let place = |image: &TestImage| directory_place(image, DIR);
    let raw =
        |plant: fn(&mut PageBytes)| move |image: &TestImage| spoil(image, place(image), plant);
    let stamped =
        |plant: fn(&mut PageBytes)| move |image: &TestImage| image.edit(place(image), plant);
    let report = expect(&[DefectCode::PG001], raw(|bytes| bytes[0] = 0));
    assert_eq!(report.findings[0].path.as_deref(), Some("/dir"));
    expect(&[DefectCode::PG002], raw(|bytes| bytes[3000] ^= 1));
    expect(&[DefectCode::PG003], stamped(|bytes| bytes[16] = 9));
    expect(&[DefectCode::PG004], stamped(|bytes| bytes[24] ^= 1));
    expect(&[DefectCode::PG005], stamped(|bytes| bytes[40] ^= 1));
    expect(&[DefectCode::PG006], stamped(|bytes| bytes[18] = 99));
    expect(&[DefectCode::PG007], stamped(|bytes| bytes[18] = 16));
    expect(&[DefectCode::PG007], stamped(|bytes| bytes[56] ^= 1));
}

#[test]
fn group_table_and_descriptors_are_compared() {
    let table = |image: &TestImage| image.geometry.group_table_place(0);
    let descriptor = |image: &TestImage, group| image.geometry.descriptor_place(group);
    expect(&[DefectCode::AG001], |image| {
        image.edit(table(image), |bytes| bytes[entry_offset(60)] = 1);
    });
    expect(&[DefectCode::AG001], |image| {
        image.edit(table(image), |bytes| bytes[entry_offset(1) + 4] ^= 1);
    });
    expect(&[DefectCode::AG002], |image| {
        image.edit(descriptor(image, 1), |bytes| bytes[PAGE_HEADER_BYTES] ^= 1);
    });
    // The last group of an enlarged disk group may state a shorter length, if nothing lies behind
    // its end.
    let shorter = |image: &TestImage, group, segments: u32| {
        let fragments = segments * image.geometry.segment_fragments;
        image.edit(descriptor(image, group), |bytes| {
            bytes[DESCRIPTOR_FRAGMENTS_OFFSET..][..4].copy_from_slice(&fragments.to_le_bytes());
            bytes[DESCRIPTOR_SEGMENTS_OFFSET..][..4].copy_from_slice(&segments.to_le_bytes());
        });
    };
    let report = report_of(|image| shorter(image, 1, 8));
    assert_eq!(report.exit_code(), 0, "{}", report.to_text());
    expect(&[DefectCode::AG002, DefectCode::AG002], |image| shorter(image, 1, 7));
    expect(&[DefectCode::AG002], |image| {
        shorter(image, 1, 8);
        let usage = image.geometry.usage_place(1, 0);
        image.edit(usage, |bytes| {
            let data = SegmentUsage { kind: SegmentKind::Data, ..SegmentUsage::FREE };
            let at = SegmentUsage::offset(8);
            bytes[at..at + USAGE_BYTES].copy_from_slice(&data.encode());
        });
        image.edit(descriptor(image, 1), |bytes| bytes[DESCRIPTOR_SEGMENTS_USED_OFFSET] += 1);
    });
    expect(&[DefectCode::AG005], |image| {
        image.edit(descriptor(image, 1), |bytes| bytes[DESCRIPTOR_FRAGMENTS_USED_OFFSET] ^= 1);
    });
    expect(&[DefectCode::AG006], |image| {
        image.edit(descriptor(image, 1), |bytes| bytes[DESCRIPTOR_SEGMENTS_USED_OFFSET] ^= 1);
    });
    expect(&[DefectCode::AG007], |image| {
        let place = image.geometry.group_table_root_place();
        image.edit(place, |bytes| bytes[TOTAL_ANODES_USED_OFFSET] ^= 1);
    });
    expect(&[DefectCode::AG007], |image| {
        let place = image.geometry.group_table_root_place();
        image.edit(place, |bytes| bytes[TOTAL_FRAGMENTS_RESERVED_OFFSET] ^= 4);
    });
    let report = report_of(|image| {
        image.edit(table(image), |bytes| bytes[entry_offset(1)] = 0);
    });
    assert_eq!(report.counts[&DefectCode::AG008], 1, "{}", report.to_text());
}

#[test]
fn free_maps_and_usage_are_compared_with_what_is_found() {
    let map = |image: &TestImage, group| image.geometry.free_map_place(group, 0);
    let count = |image: &TestImage, group, bit, is_set| {
        image.edit(map(image, group), |bytes| bitmap::set(bytes, bit, is_set));
    };
    expect(&[DefectCode::AG003, DefectCode::AG005], |image| {
        count(image, 1, image.places[&(SMALL, 0)].fragment(), false);
    });
    let report =
        expect(&[DefectCode::AG004, DefectCode::AG005], |image| count(image, 1, 500, true));
    assert!(report.findings.iter().any(|found| found.defect.place == Some(Place::new(0, 1, 500))));
    let usage = |image: &TestImage, group, segment: u32, change: fn(&mut SegmentUsage)| {
        image.edit(image.geometry.usage_place(group, 0), |bytes| {
            let mut usage = SegmentUsage::of(bytes, segment).expect("known");
            change(&mut usage);
            let offset = SegmentUsage::offset(segment);
            bytes[offset..offset + 32].copy_from_slice(&usage.encode());
        });
    };
    use format::group::SegmentKind::{Data, Journal, Metadata};
    expect(&[DefectCode::SG001], |image| {
        let place = image.geometry.usage_place(1, 0);
        image.edit(place, |bytes| bytes[SegmentUsage::offset(1)] = 9);
    });
    expect(&[DefectCode::SG002], |image| usage(image, 1, 1, |usage| usage.live += 1));
    expect(&[DefectCode::SG003, DefectCode::SG005], |image| {
        usage(image, 0, 0, |usage| usage.kind = Data)
    });
    expect(&[DefectCode::SG004], |image| usage(image, 1, 1, |usage| usage.kind = Metadata));
    expect(&[DefectCode::SG005], |image| usage(image, 1, 0, |usage| usage.kind = Journal));
}

#[test]
fn data_in_a_disk_group_for_metadata_alone_is_found() {
    let report = expect(&[DefectCode::SG006; 3], |image| {
        let mut label = image.superblock.clone();
        label.geometry.main_has_data = false;
        (0..4).for_each(|copy| put_superblock(image, copy, &label.encode(copy)));
    });
    assert!(report.to_text().contains("for metadata alone"), "{}", report.to_text());
}

#[test]
fn pointers_are_checked() {
    let pointer = |image: &TestImage, number, change: fn(&mut format::pointer::BlockPointer)| {
        image.edit_anode(number, |anode| {
            let mut pointer = anode.root_pointer(0).expect("there");
            change(&mut pointer);
            anode.set_root_pointer(0, Some(&pointer));
        });
    };
    let report = report_of(|image| {
        pointer(image, SMALL, |pointer| pointer.place = Place::new(0, 1, 1 << 20));
    });
    assert_eq!(report.counts[&DefectCode::MP001], 1, "{}", report.to_text());
    let report = report_of(|image| {
        pointer(image, SMALL, |pointer| pointer.place = Place::new(0, 1, 0));
    });
    assert_eq!(report.counts[&DefectCode::MP001], 1, "{}", report.to_text());
    let report = report_of(|image| {
        let other = image.places[&(BIG, 3)];
        image.edit_anode(SMALL, |anode| {
            let mut pointer = anode.root_pointer(0).expect("there");
            pointer.place = other;
            anode.set_root_pointer(0, Some(&pointer));
        });
    });
    assert_eq!(report.counts[&DefectCode::MP002], 1, "{}", report.to_text());
    let named = report.findings.iter().find(|found| found.defect.code == DefectCode::MP002);
    let path = named.and_then(|defect| defect.path.as_deref());
    assert!(path == Some("/small") || path == Some("/dir/hard"), "{path:?}");
    expect(&[DefectCode::MP003], |image| pointer(image, SMALL, |pointer| pointer.fragments = 5));
    expect(&[DefectCode::MP003], |image| pointer(image, BIG, |pointer| pointer.fragments = 2));
    let forms: [fn(&mut BlockPointer); 4] = [
        |pointer| pointer.is_compressed = true,
        |pointer| pointer.is_encrypted = true,
        |pointer| pointer.is_offline = true,
        |pointer| (pointer.place, pointer.is_offline) = (Place::NONE, true),
    ];
    for form in forms {
        expect(&[DefectCode::MP003], |image| pointer(image, SMALL, form));
        expect(&[DefectCode::MP003], |image| pointer(image, DIR, form));
    }
    expect(&[DefectCode::MP004], |image| image.edit_anode(SMALL, |anode| anode.size_bytes = 0));
    let report = expect(&[DefectCode::MP005], |image| {
        let place = image.places[&(BIG, 19)];
        spoil(image, place, |bytes| bytes[77] ^= 1);
    });
    assert_eq!(report.findings[0].path.as_deref(), Some("/big"));
    expect(&[DefectCode::PG007], |image| {
        image.edit(image.places[&(BIG, u64::MAX)], |bytes| bytes[64] = 1);
    });
    expect(&[DefectCode::MP005], |image| {
        image.edit(image.places[&(BIG, u64::MAX)], |bytes| {
            let first = map::pointer_at(bytes, 0).expect("there");
            let second = map::pointer_at(bytes, 1).expect("there");
            let swapped = format::pointer::BlockPointer { check: second.check, ..first };
            map::set_pointer(bytes, 0, Some(&swapped));
        });
    });
}

/// Plants a summary that lists the last block of a file, with a birth.
fn put_summary(image: &TestImage, birth: Epoch) {
    let of_file = image.places.iter().filter(|((number, index), _)| *number == BIG && *index < 99);
    let ((_, index), data) = of_file.max_by_key(|(_, place)| place.bits()).expect("it has blocks");
    let geometry = &image.geometry;
    let segment = geometry.segment_of(*data);
    let start = geometry.segment_place(data.group(), segment);
    let entry = SummaryEntry {
        kind: SummaryKind::Block,
        block_shift: 14,
        fragments: 1,
        offset: data.fragment() - start.fragment(),
        fileset: FilesetId(1),
        anode: AnodeNo(BIG),
        generation: Generation(1000 + BIG),
        index: *index,
        birth,
        check: [0; 4],
    };
    let place = start.advance(geometry.segment_fragments - geometry.page_fragments());
    let summary = SegmentSummary {
        place,
        lsn: Lsn(1),
        incarnation: Epoch(7),
        partial_start: 0,
        previous: 0,
        previous_crc: 0,
        entries: vec![entry],
    };
    image.write_page(place, &summary.encode(super::image::POOL, &image.superblock.secret));
    image.edit(geometry.usage_place(data.group(), segment / USAGES_PER_PAGE), |bytes| {
        let usage = SegmentUsage::of(bytes, segment).expect("it is in use");
        let filled = geometry.segment_fragments;
        let usage = SegmentUsage { filled, incarnation: Epoch(7), ..usage };
        let offset = SegmentUsage::offset(segment);
        bytes[offset..offset + 32].copy_from_slice(&usage.encode());
    });
}

#[test]
fn a_block_with_another_birth_than_its_summary_has_is_found() {
    let image = TestImage::new(4096);
    put_summary(&image, Epoch(5));
    assert!(check(&image).is_clean(), "{}", check(&image).to_text());
    expect(&[DefectCode::MP008], |image| put_summary(image, Epoch(77)));
}

#[test]
fn a_map_that_leads_back_into_itself_ends() {
    expect(&[DefectCode::MP002], |image| {
        image.edit_anode(BIG, |anode| {
            let pointer = anode.root_pointer(0);
            anode.set_root_pointer(1, pointer.as_ref());
        });
    });
}

#[test]
fn data_is_not_read_without_the_option() {
    let image = TestImage::new(4096);
    spoil(&image, image.places[&(BIG, 19)], |bytes| bytes[77] ^= 1);
    let options = crate::CheckOptions { data: false, ..crate::CheckOptions::default() };
    let report = crate::run(image.device.clone(), options, &mut |_| {});
    assert!(report.is_clean(), "{}", report.to_text());
    assert_eq!(report.totals.data_bytes, 0);
}

#[test]
fn anodes_are_checked() {
    expect(&[DefectCode::AN001], |image| spoil_slot(image, EMPTY, |slot| slot[100] ^= 1));
    let restamped = |image: &TestImage, change: fn(&mut [u8])| {
        spoil_slot(image, EMPTY, |slot| {
            change(slot);
            let crc = format::checksum::crc32c(&slot[4..]);
            slot[..4].copy_from_slice(&crc.to_le_bytes());
        });
    };
    expect(&[DefectCode::AN002], |image| restamped(image, |slot| slot[6] = 20));
    expect(&[DefectCode::AN003], |image| restamped(image, |slot| slot[8] = 99));
    expect(&[DefectCode::AN004], |image| image.edit_anode(SMALL, |anode| anode.fragments += 1));
    expect(&[DefectCode::AN005], |image| image.edit_anode(DIR, |anode| anode.pages += 1));
    expect(&[DefectCode::AN006, DefectCode::MP003], |image| {
        image.edit_anode(3, |anode| anode.kind = AnodeKind::Regular);
    });
}

#[test]
fn the_anode_map_is_compared() {
    let bit = |image: &TestImage, bit, is_set| {
        image.edit(image.places[&(2, 0)], |bytes| bitmap::set(bytes, bit, is_set));
    };
    let report = expect(&[DefectCode::AM001], |image| bit(image, 17, false));
    assert_eq!(report.findings[0].path.as_deref(), Some("/big"));
    expect(&[DefectCode::AM001], |image| bit(image, 5, false));
    expect(&[DefectCode::AM002], |image| bit(image, 600, true));
}

#[test]
fn the_orphan_list_is_compared() {
    let list = |image: &TestImage, slot: usize, number| {
        image.edit(image.places[&(3, 0)], |bytes| {
            write_u64(bytes, PAGE_HEADER_BYTES + slot * 8, number);
        });
    };
    expect(&[DefectCode::OR001], |image| list(image, 7, SMALL));
    expect(&[DefectCode::OR001], |image| list(image, 7, 25_000));
    expect(&[DefectCode::OR001], |image| list(image, 7, ORPHAN));
    expect(&[DefectCode::OR002], |image| list(image, 0, 0));
}

#[test]
fn directory_pages_are_checked() {
    let page = |image: &TestImage, number, change: fn(&mut PageBytes)| {
        image.edit(directory_place(image, number), change);
    };
    expect(&[DefectCode::DR001], |image| {
        page(image, DIR, |bytes| bytes[offset_of(bytes, b"sub") + 22] += 1);
    });
    let report = report_of(|image| {
        page(image, DIR, |bytes| bytes[offset_of(bytes, b"sub") + 24] = b'/');
    });
    assert_eq!(report.counts[&DefectCode::DR002], 1, "{}", report.to_text());
    expect(&[DefectCode::DR003], |image| page(image, DIR, |bytes| bytes[COUNT_OFFSET] += 1));
    expect(&[DefectCode::DR004], |image| page(image, DIR, |bytes| bytes[AUX_OFFSET] += 8));
    let report = report_of(|image| {
        page(image, DIR, |bytes| {
            let (from, to) = (offset_of(bytes, b"sub"), offset_of(bytes, b"hard"));
            bytes.copy_within(from..from + 8, to);
        });
    });
    assert_eq!(report.counts[&DefectCode::DR005], 1, "{}", report.to_text());
    assert_eq!(report.counts[&DefectCode::DR007], 1, "{}", report.to_text());
    let swapped = |image: &TestImage| {
        // Two pages of one directory, with their contents exchanged.
        let places = [image.places[&(MANY, 0)], image.places[&(MANY, 1)]];
        let pages = places.map(|place| image.read_page(place));
        for (place, from) in places.into_iter().zip([pages[1], pages[0]]) {
            image.edit(place, |bytes| {
                bytes[COUNT_OFFSET..COUNT_OFFSET + 4]
                    .copy_from_slice(&from[COUNT_OFFSET..COUNT_OFFSET + 4]);
                bytes[AUX_OFFSET..].copy_from_slice(&from[AUX_OFFSET..]);
            });
        }
    };
    expect(&[DefectCode::DR006, DefectCode::DR006], swapped);
    expect(&[DefectCode::DR013], |image| image.edit_anode(DIR, |anode| anode.entries += 1));
    expect(&[DefectCode::DR007, DefectCode::DR007], |image| {
        image.edit_anode(DIR, |anode| anode.key[0] ^= 1)
    });
    let report = report_of(|image| {
        page(image, MANY, |bytes| directory::set_depth(bytes, 3));
    });
    assert_eq!(report.counts[&DefectCode::DR008], 1, "{}", report.to_text());
    let twice = report_of(|image| {
        page(image, DIR, |bytes| {
            let first = directory::dirents(bytes.as_slice()).find(|d| d.name == b"hard");
            let first = first.expect("there");
            let (cookie, anode, generation) = (first.cookie + 1, first.anode, first.generation);
            let kind = first.kind;
            let new = NewDirent { cookie, anode, generation, kind, name: b"hard" };
            directory::insert(bytes, &new).expect("room");
        });
    });
    assert_eq!(twice.counts[&DefectCode::DR009], 1, "{}", twice.to_text());
}

#[test]
fn what_a_pointer_tells_of_a_split_is_compared_with_the_pages() {
    let hint = |image: &TestImage, depth, sibling: u64| {
        let sibling = Some(image.places[&(MANY, sibling)]);
        image.edit(image.places[&(MANY, u64::MAX)], |leaf| {
            let pointer = map::pointer_at(leaf, 1).expect("page 1 is there");
            let hinted = pointer.with_split_hint(Some(SplitHint { depth, sibling }));
            map::set_pointer(leaf, 1, Some(&hinted));
        });
    };
    // All pages have depth 4, so page 9 split off page 1 last.
    let report = report_of(|image| hint(image, 4, 9));
    assert_eq!(report.exit_code(), 0, "{}", report.to_text());
    expect(&[DefectCode::DR014], |image| hint(image, 4, 5));
    expect(&[DefectCode::DR014], |image| hint(image, 3, 5));
}

#[test]
fn names_are_compared_with_what_they_lead_to() {
    let retarget = |image: &TestImage, name: &[u8], number, generation, kind| {
        image.edit(directory_place(image, ROOT), |bytes| {
            let offset = offset_of(bytes, name);
            let head = &mut bytes[directory::head_at(offset)];
            directory::retarget(head, AnodeNo(number), Generation(generation), kind);
        });
    };
    let regular = AnodeKind::Regular;
    let report = expect(&[DefectCode::DR010, DefectCode::LN004], |image| {
        retarget(image, b"a", 99, 1, regular)
    });
    let freed = report.findings.iter().find(|found| found.defect.code == DefectCode::DR010);
    assert_eq!(freed.and_then(|defect| defect.path.as_deref()), Some("/a"));
    expect(&[DefectCode::DR011], |image| retarget(image, b"a", EMPTY, 999, regular));
    expect(&[DefectCode::DR012], |image| {
        retarget(image, b"a", EMPTY, 1000 + EMPTY, AnodeKind::Fifo);
    });
    expect(&[DefectCode::DR011], |image| retarget(image, b"small", SMALL, 999, regular));
}

#[test]
fn link_counts_are_compared_with_names() {
    let report =
        expect(&[DefectCode::LN001], |image| image.edit_anode(SMALL, |anode| anode.nlink = 3));
    assert!(report.findings[0].path.is_some());
    expect(&[DefectCode::LN001, DefectCode::OR002], |image| {
        image.edit_anode(EMPTY, |anode| anode.nlink = 0);
    });
    expect(&[DefectCode::LN004], |image| {
        image.edit_anode(ORPHAN, |anode| anode.nlink = 1);
    });
    for slot in [None, Some(5)] {
        expect(&[DefectCode::OR001], |image| {
            image.edit_anode(ORPHAN, |anode| anode.orphan_slot = slot);
        });
    }
    expect(&[DefectCode::LN003], |image| {
        image.edit_anode(SUB, |anode| anode.parent = AnodeNo(ROOT))
    });
    expect(&[DefectCode::LN003], |image| {
        image.edit_anode(ROOT, |anode| anode.parent = AnodeNo(DIR))
    });
    expect(&[DefectCode::LN006], |image| image.edit_anode(DIR, |anode| anode.nlink = 2));
    expect(&[DefectCode::LN001], |image| image.edit_anode(NAMED, |anode| anode.nlink = 1));
    let retarget = |image: &TestImage, directory, name: &[u8], number| {
        image.edit(directory_place(image, directory), |bytes| {
            let (offset, generation) = (offset_of(bytes, name), Generation(1000 + number));
            let kind = AnodeKind::Directory;
            let head = &mut bytes[directory::head_at(offset)];
            directory::retarget(head, AnodeNo(number), generation, kind);
        });
    };
    // "many" names the directory of "dir", which thus has two names; another directory has none.
    expect(&[DefectCode::LN002, DefectCode::LN004], |image| retarget(image, ROOT, b"many", DIR));
    // "sub" is moved below itself, and has no other name.
    let report = report_of(|image| {
        retarget(image, DIR, b"sub", DIR);
        retarget(image, ROOT, b"dir", MANY);
        image.edit_anode(DIR, |anode| anode.parent = AnodeNo(DIR));
    });
    assert_eq!(report.counts[&DefectCode::LN005], 1, "{}", report.to_text());
}

#[test]
fn attributes_are_checked() {
    let page = |image: &TestImage, number, change: fn(&mut PageBytes)| {
        image.edit(image.places[&(ATTRIBUTES, number)], change);
    };
    let report = expect(&[DefectCode::XA001], |image| page(image, 0, |bytes| bytes[129] = 99));
    assert!(report.findings[0].defect.place.is_some());
    expect(&[DefectCode::XA001], |image| page(image, 0, |bytes| bytes[129] = 0));
    expect(&[DefectCode::XA001], |image| page(image, 2, |bytes| bytes[COUNT_OFFSET + 1] = 99));
    let report = expect(&[DefectCode::XA002, DefectCode::XA003], |image| {
        image.edit_anode(SMALL, |anode| anode.xattr = AnodeNo(BIG));
    });
    assert!(report.findings.iter().any(|found| found.path.as_deref() == Some("/small")));
    expect(&[DefectCode::XA002], |image| image.edit_anode(BIG, |anode| anode.acl = AnodeNo(99)));
    expect(&[DefectCode::XA002], |image| image.edit_anode(BIG, |anode| anode.acl = AnodeNo(2)));
    expect(&[DefectCode::XA002], |image| {
        image.edit_anode(BIG, |anode| anode.acl = AnodeNo(ATTRIBUTES))
    });
    expect(&[DefectCode::XA003], |image| image.edit_anode(SMALL, |anode| anode.xattr = AnodeNo(0)));
    expect(&[DefectCode::XA004], |image| page(image, 2, |bytes| bytes[COUNT_OFFSET] = 31));
    expect(&[DefectCode::XA004], |image| page(image, 0, |bytes| bytes[AUX_OFFSET + 8] = 1));
    let acl = AttributeName { namespace: Namespace::AccessAcl, suffix: b"" };
    expect(&[DefectCode::XA005], |image| {
        image.edit_anode(BIG, |anode| {
            anode.attributes = anode.attributes.with(acl, b"abc").expect("short");
        });
    });
    expect(&[DefectCode::XA005], |image| {
        image.edit(image.places[&(ATTRIBUTES, 0)], |bytes| {
            assert!(attributes::insert(bytes, acl, 3, AttributeValueLocation::Here(b"abc")));
        });
    });
    expect(&[DefectCode::AN002], |image| {
        spoil_slot(image, SMALL, |slot| {
            slot[200] = 99;
            let crc = format::checksum::crc32c(&slot[4..]);
            slot[..4].copy_from_slice(&crc.to_le_bytes());
        });
    });
    expect(&[DefectCode::AN004], |image| {
        image.edit_anode(ATTRIBUTES, |anode| anode.fragments += 1)
    });
    expect(&[DefectCode::AN005], |image| image.edit_anode(ATTRIBUTES, |anode| anode.pages += 1));
}

#[test]
fn fileset_entries_are_checked() {
    let spoil_entry = |image: &TestImage, change: fn(&mut [u8])| {
        image.edit(image.places[&(u64::MAX, 0)], |bytes| change(&mut bytes[512..1024]));
    };
    let restamp = |slot: &mut [u8]| {
        let crc = format::checksum::crc32c(&slot[4..]);
        slot[..4].copy_from_slice(&crc.to_le_bytes());
    };
    expect(&[DefectCode::FS001], |image| spoil_entry(image, |slot| slot[400] ^= 1));
    expect(&[DefectCode::FS002], |image| {
        image.edit(image.places[&(u64::MAX, 0)], |bytes| {
            bytes[512 + 4] = 7;
            restamp(&mut bytes[512..1024]);
        });
    });
    expect(&[DefectCode::FS003], |image| image.edit_fileset(|fileset| fileset.anodes_used += 1));
    expect(&[DefectCode::FS004], |image| {
        image.edit_fileset(|fileset| fileset.anodes_end = ATTRIBUTES)
    });
    expect(&[DefectCode::FS006], |image| image.edit_fileset(|fileset| fileset.table_pages += 1));
    expect(&[DefectCode::FS006], |image| {
        image.edit_fileset(|fileset| fileset.table_fragments += 1)
    });
    expect(&[DefectCode::FS005], |image| {
        image.edit(image.places[&(u64::MAX, 0)], |bytes| {
            let slot = bytes[512..1024].first_chunk().expect("a slot");
            let mut twin = Fileset::decode(slot, 0).expect("whole").expect("in use");
            twin.slot = 1;
            bytes[1024..1536].copy_from_slice(&twin.encode());
        });
    });
    // The second fileset is empty: it lacks the three anodes that every fileset has.
    let lacking = [DefectCode::AN006; 3];
    expect(&[&lacking[..], &[DefectCode::FS008]].concat(), |image| {
        image.edit(image.places[&(u64::MAX, 0)], |bytes| {
            let slot = bytes[512..1024].first_chunk().expect("a slot");
            let first = Fileset::decode(slot, 0).expect("whole").expect("in use");
            let twin = Fileset::new(FilesetId(77), 1, first.name, 14);
            bytes[1024..1536].copy_from_slice(&twin.encode());
        });
    });
    expect(&[DefectCode::FS009], |image| image.edit_fileset(|fileset| fileset.above = Some(5)));
    expect(&[DefectCode::FS010], |image| {
        image.edit_fileset(|fileset| {
            (fileset.parent, fileset.shared_epoch) = (Some(5), Epoch(1));
        });
    });
    // The snapshot is empty, and the fileset's blocks are older than it.
    let report = report_of(|image| {
        image.edit(image.places[&(u64::MAX, 0)], |bytes| {
            let slot = bytes[512..1024].first_chunk().expect("a slot");
            let mut first = Fileset::decode(slot, 0).expect("whole").expect("in use");
            let name = NamePart::new("monday").expect("a name");
            let mut snapshot = Fileset::new(FilesetId(1 << 40), 1, name, 14);
            (snapshot.family, snapshot.above, snapshot.state) =
                (first.family, Some(0), FilesetState::Snapshot);
            (first.parent, first.shared_epoch) = (Some(1), Epoch(1 << 40));
            bytes[512..1024].copy_from_slice(&first.encode());
            bytes[1024..1536].copy_from_slice(&snapshot.encode());
        });
    });
    assert_eq!(report.counts[&DefectCode::AN006], 3, "{}", report.to_text());
    assert!(report.counts[&DefectCode::FS011] > 30, "{}", report.to_text());
    expect(&[DefectCode::FS012], |image| {
        image.edit(image.places[&(u64::MAX, 0)], |bytes| {
            bytes[format::fileset::counts_offset(0)] ^= 1;
        });
    });
    // A snapshot taken before anything was created.
    let report = report_of(|image| {
        image.edit_fileset(|fileset| {
            (fileset.state, fileset.id) = (FilesetState::Snapshot, FilesetId(0));
        });
    });
    assert!(report.counts[&DefectCode::FS013] > 30, "{}", report.to_text());
    // A reservation behind the end of a file.
    let report = report_of(|image| {
        image.edit_anode(SMALL, |anode| anode.set_root_pointer(1, Some(&BlockPointer::RESERVED)));
    });
    assert_eq!(report.counts[&DefectCode::FS014], 1, "{}", report.to_text());
    expect(&[DefectCode::FS007], |image| {
        image.edit(image.geometry.group_layout().root_place(), |bytes| bytes[512..1024].fill(0));
    });
}

#[test]
fn a_device_that_cannot_read_is_reported_and_the_rest_is_checked() {
    let image = TestImage::new(4096);
    let bad = image.offset(image.places[&(BIG, 3)]);
    let device = Arc::new(BadSector { below: image.device.clone(), bad });
    let report = crate::run(device, crate::CheckOptions::default(), &mut |_| {});
    assert_eq!(report.counts[&DefectCode::IO001], 1, "{}", report.to_text());
    assert_eq!(report.defect_count(), 1, "{}", report.to_text());
    assert!(report.findings[0].defect.what.starts_with("block 3:"), "{}", report.to_text());
    // A bad sector costs one block, although the block's neighbours are read with it.
    let whole = check(&image).totals.data_bytes;
    assert_eq!(report.totals.data_bytes, whole - 16384);
}

/// A device with one unreadable page.
#[derive(Debug)]
pub(super) struct BadSector {
    pub(super) below: Arc<MemoryDevice>,
    pub(super) bad: u64,
}

impl Device for BadSector {
    fn info(&self) -> &DeviceInfo {
        self.below.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if let DeviceOperation::Read { offset, buffer } = &operation
            && (*offset..offset + u64::try_from(buffer.len()).expect("small")).contains(&self.bad)
        {
            return Ticket::ready(Err(DeviceError::Io {
                device: "bad".to_owned(),
                kind: RequestKind::Read,
                offset: *offset,
                length_bytes: 4096,
                cause: "unreadable sector".to_owned(),
            }));
        }
        self.below.submit(purpose, operation)
    }
}
