//! The anode table of a fileset: checks each anode, its map and its content, and the reserved
//! anodes.

use format::anode::{
    ANODE_BYTES, ANODE_MAP_ANODE, Anode, AnodeKind, ORPHAN_ANODE, QUOTA_ANODE, ROOT_ANODE,
    slot_offset,
};
use format::defect::{Defect, DefectCode, Subject};
use format::ids::{AnodeNo, Place};
use format::page::{PageBytes, PageHeader, PageKind, SLOTS_PER_PAGE};

use super::{attributes, directory, quota};
use crate::context::{Check, CheckError};
use crate::convert::to_u64;
use crate::map::MapContent;
use crate::tree::FilesetCheck;

pub(crate) fn run(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
    let table = tree.table.clone();
    let walked =
        check.walk(&table, MapContent::Pages(PageKind::Anode), &mut |check, &(index, _), page| {
            if !tree.is_over {
                table_page(check, tree, index, page);
            }
        });
    if tree.is_over {
        check.take_memory(0)?;
    }
    if walked.is_whole {
        compare_table(check, tree, walked.blocks, walked.fragments);
    }
    Ok(())
}

fn compare_table(check: &mut Check<'_>, tree: &FilesetCheck, pages: u64, fragments: u64) {
    let fileset = &tree.fileset;
    let pairs =
        [("pages", fileset.table_pages, pages), ("fragments", fileset.table_fragments, fragments)];
    for (what, stated, counted) in pairs {
        if stated != counted {
            let what = format!("{} says {stated} {what}, has {counted}", fileset.id);
            check.defect(DefectCode::FS006, tree.subject(0), None, what);
        }
    }
    if !check.is_incomplete && fileset.anodes_used != tree.used {
        let (stated, counted) = (fileset.anodes_used, tree.used);
        let what = format!("{} says {stated} anodes in use, has {counted}", fileset.id);
        check.defect(DefectCode::FS003, tree.subject(0), None, what);
    }
    // Each anode's count was compared with its map. If an anode is wrong, so is the sum.
    let counted = tree.fragments.saturating_add(fragments);
    if !tree.is_sound(check) {
        check.report.notes.push(format!(
            "anodes of {} say wrong counts of fragments: sums of them are not compared",
            fileset.id
        ));
    } else if !check.is_incomplete && fileset.fragments != counted {
        let stated = fileset.fragments;
        let what = format!("{} says it references {stated} fragments, has {counted}", fileset.id);
        check.defect(DefectCode::FS012, tree.subject(0), None, what);
    }
}

pub(crate) fn bad_slot(
    check: &mut Check<'_>,
    subject: Subject,
    place: Place,
    error: impl Into<Defect>,
) {
    check.is_incomplete = true;
    check.found(error.into().at(place), subject);
}

fn table_page(check: &mut Check<'_>, tree: &mut FilesetCheck, index: u64, page: &PageBytes) {
    let place = PageHeader::parse(page).map_or(Place::NONE, |header| header.place);
    for slot in 0..SLOTS_PER_PAGE {
        let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
        let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
        let bytes: &[u8; ANODE_BYTES] = bytes.expect("a page holds 7 slots");
        match Anode::decode(bytes, tree.fileset.family, AnodeNo(number)) {
            Ok(None) => {}
            Ok(Some(anode)) => one_anode(check, tree, place, &anode),
            Err(error) => bad_slot(check, tree.subject(number), place, error),
        }
    }
}

fn one_anode(check: &mut Check<'_>, tree: &mut FilesetCheck, place: Place, anode: &Anode) {
    let number = anode.number;
    tree.used += 1;
    tree.fragments = tree.fragments.saturating_add(anode.fragments);
    // The pool's total excludes snapshots, which are read-only.
    check.report.totals.anodes += u64::from(!check.is_snapshot);
    if number.0 >= tree.fileset.anodes_end {
        let what =
            format!("{number} in use, but none from {} on was ever", tree.fileset.anodes_end);
        check.defect(DefectCode::FS004, tree.subject(number.0), Some(place), what);
    }
    let facts = tree.facts_of(check, number.0);
    facts.kind = Some(anode.kind);
    facts.generation = anode.generation.0;
    facts.nlink = anode.nlink;
    facts.parent = anode.parent.0;
    facts.orphan_slot = anode.orphan_slot;
    facts.containers = [anode.xattr.0, anode.acl.0];
    attributes::inline(check, place, anode);
    quota::count(check, tree, anode);
    match anode.kind {
        AnodeKind::Directory => directory::run(check, tree, anode),
        AnodeKind::Internal if number == ANODE_MAP_ANODE => tree.anode_map = Some(anode.clone()),
        AnodeKind::Internal if number == ORPHAN_ANODE => tree.orphans = Some(anode.clone()),
        AnodeKind::Internal if number == QUOTA_ANODE => quota::records(check, tree, anode),
        AnodeKind::Internal => attributes::run(check, tree, anode),
        AnodeKind::Regular
        | AnodeKind::Symlink
        | AnodeKind::BlockDevice
        | AnodeKind::CharDevice
        | AnodeKind::Fifo
        | AnodeKind::Socket => container(check, anode, MapContent::Data),
    }
}

fn container(check: &mut Check<'_>, anode: &Anode, content: MapContent) {
    let walked = check.walk(anode, content, &mut |_, _, _| {});
    check.compare_counts(anode, content, &walked);
}

pub(crate) fn reserved(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
    let expected = [
        (ROOT_ANODE, AnodeKind::Directory, "root directory"),
        (ANODE_MAP_ANODE, AnodeKind::Internal, "anode map"),
        (ORPHAN_ANODE, AnodeKind::Internal, "orphan list"),
    ];
    for (number, kind, name) in expected {
        let found = tree.facts.get(number.0).and_then(|facts| facts.kind);
        // If no anode was found, it may be in an unusable page.
        if found != Some(kind) && !(found.is_none() && check.is_incomplete) {
            let what = format!("the {name} of {} is {found:?}", tree.fileset.id);
            check.defect(DefectCode::AN006, tree.subject(number.0), None, what);
        }
    }
    Ok(())
}
