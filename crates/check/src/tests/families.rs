//! Filesets that share what a clone holds: what is their own is held against the bytes, and belongs
//! to nobody else.

use format::anode::{Anode, page_and_slot, slot_offset};
use format::defect::DefectCode;
use format::fileset::{Cursor, Fileset, FilesetState, NamePart, ROOT_FILESET, counts_offset};
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::map;
use format::page::PageBytes;

use super::check;
use super::image::{BIG, CLONE_EPOCH, Image, SMALL};

fn codes_of(image: &Image) -> Vec<DefectCode> {
    let mut codes: Vec<DefectCode> =
        check(image).findings.iter().map(|finding| finding.defect.code).collect();
    codes.sort_unstable();
    codes
}

/// Changes a fileset entry.
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
    let report = check(&Image::with_clone());
    assert!(report.is_clean(), "{}", report.to_text());
}

/// Goal: a pointer that a fileset has of its own is held against the bytes, though a clone holds
/// the block as well. Method: in a leaf that was written since, a checksum that is another, and two
/// pointers whose places are exchanged.
#[test]
fn own_pointers_to_what_a_clone_holds_are_verified() {
    let image = Image::with_clone();
    image.edit(image.places[&(BIG, u64::MAX)], |leaf| {
        let slot = map::page_slot(3, 0);
        let mut pointer = map::pointer_at(leaf, slot).expect("a block");
        pointer.check[1] ^= 1;
        map::set_pointer(leaf, slot, Some(&pointer));
    });
    assert_eq!(codes_of(&image), [DefectCode::MP005]);

    let image = Image::with_clone();
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

/// Goal: what is a fileset's own is nobody else's, also where one of the two is being freed.
/// Method: a deleted fileset of the family, and one of no family, that has the table of the one in
/// use.
#[test]
fn what_is_freed_of_one_fileset_is_not_anothers() {
    for is_related in [true, false] {
        let image = Image::with_clone();
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

/// Goal: what a fileset that is being received has of its own is verified. Method: the fileset that
/// has a clone is one; a block that it has alone has another checksum, and its clone is nobody's.
#[test]
fn blocks_of_what_is_being_received_are_verified() {
    for (is_spoilt, expected) in
        [(false, &[DefectCode::FS009][..]), (true, &[DefectCode::MP005, DefectCode::FS009][..])]
    {
        let image = Image::with_clone();
        image.edit(image.places[&(u64::MAX, 0)], |page| {
            edit_entry(page, 0, |fileset| {
                assert_eq!(fileset.shared_epoch, CLONE_EPOCH);
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

/// Goal: an anode of one fileset that says a wrong count hides no wrong sum of another. Method: an
/// anode of a clone, and the sum of the fileset that it was taken from.
#[test]
fn a_wrong_anode_of_one_fileset_mutes_no_other() {
    let image = Image::with_clone();
    let mut table = None;
    image.edit(image.places[&(u64::MAX, 0)], |page| {
        edit_entry(page, 1, |clone| table = Some(clone.table_anode()));
        page[counts_offset(0)] ^= 1;
    });
    let (index, slot) = page_and_slot(AnodeNo(SMALL));
    let index = usize::try_from(index).expect("small");
    let pointer = table.expect("a clone").root_pointer(index).expect("a page");
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
