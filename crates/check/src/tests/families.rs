//! Filesets that share blocks with a snapshot: their own pointers are verified, and their own
//! fragments have no other owner.

use format::anode::{Anode, page_and_slot, slot_offset};
use format::defect::DefectCode;
use format::fileset::{Cursor, Fileset, FilesetState, NamePart, ROOT_FILESET, counts_offset};
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::map;
use format::page::PageBytes;

use super::check;
use super::image::{BIG, SMALL, SNAPSHOT_EPOCH, TestImage};

fn codes_of(image: &TestImage) -> Vec<DefectCode> {
    let mut codes: Vec<DefectCode> =
        check(image).findings.iter().map(|finding| finding.defect.code).collect();
    codes.sort_unstable();
    codes
}

fn edit_entry(page: &mut PageBytes, slot: usize, change: impl FnOnce(&mut Fileset)) {
    let range = slot_offset(slot)..slot_offset(slot + 1);
    let number = u32::try_from(slot).expect("few");
    let entry = page[range.clone()].first_chunk().expect("a slot");
    let mut fileset = Fileset::decode(entry, number).expect("whole").expect("in use");
    change(&mut fileset);
    page[range].copy_from_slice(&fileset.encode());
}

#[test]
fn a_healthy_family_is_clean() {
    let report = check(&TestImage::with_snapshot());
    assert!(report.is_clean(), "{}", report.to_text());
}

/// Goal: a fileset's own pointer to a block is verified, even if a snapshot has the block too.
/// Method: in a leaf written after the snapshot, a wrong checksum, and two pointers with exchanged
/// places.
#[test]
fn own_pointers_to_what_a_snapshot_holds_are_verified() {
    let image = TestImage::with_snapshot();
    image.edit(image.places[&(BIG, u64::MAX)], |leaf| {
        let slot = map::page_slot(3, 0);
        let mut pointer = map::pointer_at(leaf, slot).expect("a block");
        pointer.check[1] ^= 1;
        map::set_pointer(leaf, slot, Some(&pointer));
    });
    assert_eq!(codes_of(&image), [DefectCode::MP005]);

    let image = TestImage::with_snapshot();
    image.edit(image.places[&(BIG, u64::MAX)], |leaf| {
        let slots = [map::page_slot(3, 0), map::page_slot(4, 0)];
        let [mut third, mut fourth] =
            slots.map(|slot| map::pointer_at(leaf, slot).expect("a block"));
        std::mem::swap(&mut third.place, &mut fourth.place);
        map::set_pointer(leaf, slots[0], Some(&third));
        map::set_pointer(leaf, slots[1], Some(&fourth));
    });
    assert_eq!(codes_of(&image), [DefectCode::MP005; 2]);
}

/// Goal: fragments of one fileset are not accepted in another, even if one of the two is being
/// freed. Method: a deleted fileset, of the same family or of another, has the table of the fileset
/// in use.
#[test]
fn what_is_freed_of_one_fileset_is_not_anothers() {
    for is_related in [true, false] {
        let image = TestImage::with_snapshot();
        image.edit(image.places[&(u64::MAX, 0)], |page| {
            let entry = page[slot_offset(0)..].first_chunk().expect("a slot");
            let used = Fileset::decode(entry, 0).expect("whole").expect("in use");
            let mut deleted = Fileset { slot: 2, id: FilesetId(77), anodes_used: 0, ..used };
            deleted.name = NamePart::new("gone").expect("a name");
            deleted.state = FilesetState::Deleted(Cursor::START);
            if !is_related {
                (deleted.family, deleted.parent) = (FilesetId(77), None);
                deleted.shared_epoch = Epoch(0);
            }
            page[slot_offset(2)..slot_offset(3)].copy_from_slice(&deleted.encode());
        });
        let codes = codes_of(&image);
        let is_it = !codes.is_empty() && codes.iter().all(|code| *code == DefectCode::MP002);
        assert!(is_it, "{is_related}: {codes:?}");
    }
}

/// Goal: the own blocks of a fileset that is being received are verified. Method: the fileset with
/// a snapshot is marked as receiving, and one of its own blocks gets a wrong checksum. Its snapshot
/// then belongs to no fileset in use (FS009).
#[test]
fn blocks_of_what_is_being_received_are_verified() {
    for (is_spoilt, expected) in
        [(false, &[DefectCode::FS009][..]), (true, &[DefectCode::MP005, DefectCode::FS009][..])]
    {
        let image = TestImage::with_snapshot();
        image.edit(image.places[&(u64::MAX, 0)], |page| {
            edit_entry(page, 0, |fileset| {
                assert_eq!(fileset.shared_epoch, SNAPSHOT_EPOCH);
                fileset.state = FilesetState::Receiving(Cursor::START);
            });
        });
        if is_spoilt {
            image.edit_anode(SMALL, |anode| {
                let mut pointer = anode.root_pointer(0).expect("a block");
                pointer.check[0] ^= 1;
                anode.set_root_pointer(0, Some(&pointer));
            });
        }
        assert_eq!(codes_of(&image), expected);
    }
}

/// Goal: a wrong count in an anode of one fileset does not hide a wrong sum of another. Method: an
/// anode of a snapshot, and the sum of the snapshot's fileset.
#[test]
fn a_wrong_anode_of_one_fileset_mutes_no_other() {
    let image = TestImage::with_snapshot();
    let mut table = None;
    image.edit(image.places[&(u64::MAX, 0)], |page| {
        edit_entry(page, 1, |snapshot| table = Some(snapshot.table_anode()));
        page[counts_offset(0)] ^= 1;
    });
    let (index, slot) = page_and_slot(AnodeNo(SMALL));
    let index = usize::try_from(index).expect("small");
    let pointer = table.expect("a snapshot").root_pointer(index).expect("a page");
    let range = slot_offset(slot)..slot_offset(slot + 1);
    image.edit(pointer.place, |page| {
        let bytes = page[range.clone()].first_chunk().expect("a slot");
        let anode = Anode::decode(bytes, ROOT_FILESET, AnodeNo(SMALL));
        let mut anode = anode.expect("whole").expect("in use");
        anode.fragments += 1;
        page[range].copy_from_slice(&anode.encode());
    });
    assert_eq!(codes_of(&image), [DefectCode::AN004, DefectCode::FS012]);
}
