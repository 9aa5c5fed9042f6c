//! The pool's root page and its table of filesets.

use std::collections::BTreeSet;

use format::anode::{Anode, POOL_DEFERRED_FREES, POOL_FILESET_TABLE, slot_offset};
use format::fileset::{FILESET_BYTES, Fileset};
use format::ids::{AnodeNo, FilesetId};
use format::page::{PageBytes, PageKind, PageOwner, SLOT_BYTES, SLOTS_PER_PAGE};

use super::{FILESET_PASSES, anode};
use crate::convert::{to_u64, to_usize};
use crate::map::Content;
use crate::reader::PageWanted;
use crate::sweep::Sweep;
use crate::tree::Tree;
use crate::{Check, Stop, path};
use format::defect::{DefectCode, Subject};

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

/// Reads the root page, the fileset table and every fileset.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
    check.sweep = Sweep::new(&check.space, &check.reader, check.options.memory_bytes_max);
    let place = check.reader.geometry.root_place();
    let owner = Some(PageOwner::default());
    let wanted = PageWanted { place, kind: PageKind::Anode, owner };
    let root = match check.reader.read_page(&wanted) {
        Ok(root) => root,
        Err(error) => {
            check.bad_page(POOL, place, error);
            return Ok(());
        }
    };
    check.report.totals.pages += 1;
    if let Some(frees) = root_anode(check, &root, POOL_DEFERRED_FREES) {
        let content = Content::Pages(PageKind::DeferredFree);
        let walked = check.walk(&frees, content, &mut |_, _, _| {});
        check.compare_counts(&frees, content, &walked);
    }
    let Some(table) = root_anode(check, &root, POOL_FILESET_TABLE) else {
        let what = "the root page has no fileset table".to_owned();
        check.defect(DefectCode::FS007, POOL, Some(place), what);
        check.is_incomplete = true;
        return Ok(());
    };
    let filesets = read_table(check, &table);
    check.take_memory(to_u64(filesets.len() * size_of::<Fileset>()))?;
    let mut ids = BTreeSet::new();
    for fileset in &filesets {
        if !ids.insert(fileset.id) {
            let what = format!("slot {} has {}, as an earlier slot has", fileset.slot, fileset.id);
            check.defect(DefectCode::FS005, POOL, None, what);
            continue;
        }
        check.report.totals.filesets += 1;
        one_fileset(check, fileset)?;
    }
    Ok(())
}

fn one_fileset(check: &mut Check<'_>, fileset: &Fileset) -> Result<(), Stop> {
    let mut tree = Tree::new(fileset.clone());
    let (outer_incomplete, first_finding) = (check.is_incomplete, check.report.findings.len());
    check.is_incomplete = false;
    for pass in &FILESET_PASSES {
        check.step(pass.name);
        (pass.run)(check, &mut tree)?;
    }
    path::name_defects(check, &tree, first_finding);
    tree.release(check);
    check.is_incomplete |= outer_incomplete;
    Ok(())
}

/// Returns an anode of the root page; notes one that can't be used.
fn root_anode(check: &mut Check<'_>, root: &PageBytes, number: AnodeNo) -> Option<Anode> {
    let offset = slot_offset(to_usize(number.0));
    let slot = root.get(offset..)?.first_chunk::<SLOT_BYTES>()?;
    match Anode::decode(slot, FilesetId(0), number) {
        Ok(anode) => anode,
        Err(error) => {
            let place = check.reader.geometry.root_place();
            anode::bad_slot(check, POOL, place, error);
            None
        }
    }
}

fn read_table(check: &mut Check<'_>, table: &Anode) -> Vec<Fileset> {
    let mut filesets = Vec::new();
    let content = Content::Pages(PageKind::FilesetTable);
    let walked = check.walk(table, content, &mut |check, &(index, _), page| {
        for slot in 0..SLOTS_PER_PAGE {
            let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
            let bytes: &[u8; FILESET_BYTES] = bytes.expect("a page holds 7 slots");
            let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
            let Ok(number) = u32::try_from(number) else { continue };
            match Fileset::decode(bytes, number) {
                Ok(fileset) => filesets.extend(fileset),
                Err(error) => {
                    let place = check.reader.geometry.root_place();
                    anode::bad_slot(check, POOL, place, error);
                }
            }
        }
    });
    check.compare_counts(table, content, &walked);
    filesets
}
