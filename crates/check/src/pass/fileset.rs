//! The pool's root page and its table of filesets; runs the passes over each fileset.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use format::anode::{Anode, POOL_DEFERRED_FREES, POOL_FILESET_TABLE, slot_offset};
use format::fileset::{Cursor, Fileset, FilesetState};
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::page::{PageBytes, PageKind, PageOwner, SLOT_BYTES, SLOTS_PER_PAGE};

use super::{FILESET_PASSES, anode};
use crate::context::{Check, CheckError};
use crate::convert::{to_u64, to_usize};
use crate::map::{FreedCursor, MapContent};
use crate::path;
use crate::reader::PageRequest;
use crate::space::{FragmentBitmaps, SharedFragments};
use crate::sweep::Sweep;
use crate::tree::{FilesetCheck, wrong_anodes};
use format::defect::{DefectCode, Subject};

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    check.sweep = Sweep::new(&check.space, &check.reader, check.options.memory_bytes_max);
    let place = check.reader.geometry.group_layout().root_place();
    let owner = Some(PageOwner::default());
    let wanted = PageRequest { place, kind: PageKind::Anode, owner };
    let root = match check.reader.read_page(&wanted) {
        Ok(root) => root,
        Err(error) => {
            check.bad_page(POOL, place, error);
            return Ok(());
        }
    };
    check.report.totals.pages += 1;
    if let Some(frees) = root_anode(check, &root, POOL_DEFERRED_FREES) {
        let content = MapContent::Pages(PageKind::DeferredFree);
        let walked = check.walk(&frees, content, &mut |_, _, _| {});
        check.compare_counts(&frees, content, &walked);
    }
    let Some(table) = root_anode(check, &root, POOL_FILESET_TABLE) else {
        let what = "the root page has no fileset table".to_owned();
        check.defect(DefectCode::FS007, POOL, Some(place), what);
        check.is_incomplete = true;
        return Ok(());
    };
    let (holds, filesets): (Vec<Fileset>, Vec<Fileset>) =
        read_table(check, &table).into_iter().partition(|it| it.state == FilesetState::Hold);
    check.take_memory(to_u64(filesets.len() * size_of::<Fileset>()))?;
    let mut parents = ParentSnapshots::of(&filesets);
    let mut ids = BTreeSet::new();
    // By age: a parent is an older snapshot, so it precedes its children.
    let mut in_order: Vec<&Fileset> = filesets.iter().collect();
    // Filesets being freed come last: shared fragments belong to the others.
    in_order.sort_by_key(|it| match it.state {
        FilesetState::Snapshot => (0, it.id.0),
        FilesetState::Writable | FilesetState::Hold => (1, 0),
        FilesetState::Deleted(_)
        | FilesetState::DeletedSnapshot(_)
        | FilesetState::Receiving(_) => (2, 0),
    });
    for fileset in in_order {
        // Snapshots of several filesets taken at one moment have the same identity.
        if !ids.insert((fileset.id, fileset.state.is_of_snapshot().then_some(fileset.above))) {
            let what = format!("slot {} has {}, as an earlier slot has", fileset.slot, fileset.id);
            check.defect(DefectCode::FS005, POOL, None, what);
            continue;
        }
        check.report.totals.filesets += 1;
        match cursor_of(fileset) {
            None => {
                let reservations = &mut check.space.reservations_bytes;
                *reservations = reservations.saturating_add(fileset.reservation_bytes);
                parents.prepare(check, fileset);
                one_fileset(check, fileset)?;
                parents.keep(check, fileset)?;
            }
            Some(cursor) => {
                if !fileset.state.is_of_snapshot() {
                    // The pool's total counts its anodes until the whole fileset is freed.
                    let anodes = &mut check.report.totals.anodes;
                    *anodes = anodes.saturating_add(fileset.anodes_used);
                }
                parents.prepare_freed(check, fileset);
                deleted_fileset(check, fileset, cursor);
                check.verify_blocks();
                (check.space.shares, check.is_snapshot) = (None, false);
            }
        }
    }
    let mut ids = BTreeSet::new();
    let is_first =
        |it: &&Fileset| ids.insert((it.id, it.state.is_of_snapshot().then_some(it.above)));
    let filesets: Vec<&Fileset> = filesets.iter().filter(is_first).collect();
    names(check, &filesets);
    hold_names(check, &holds, &filesets);
    Ok(())
}

/// Returns the position behind which a deleted fileset owns space. For a fileset being received
/// that is the start, because its parts arrive in any order. `None` for a fileset in use.
fn cursor_of(fileset: &Fileset) -> Option<Cursor> {
    let is_receiving = matches!(fileset.state, FilesetState::Receiving(_));
    if is_receiving { Some(Cursor::START) } else { fileset.state.cursor() }
}

struct ParentSnapshot {
    family: FilesetId,
    id: FilesetId,
    is_freed: bool,
    /// Children not yet checked.
    children: usize,
    held: Option<Rc<FragmentBitmaps>>,
}

/// The snapshots that may be parents.
struct ParentSnapshots {
    snapshots: BTreeMap<u32, ParentSnapshot>,
    /// Families with more than one node.
    families: BTreeSet<FilesetId>,
}

impl ParentSnapshots {
    fn of(filesets: &[Fileset]) -> ParentSnapshots {
        let snapshots = filesets.iter().filter(|it| it.state.is_of_snapshot());
        let children = |slot| filesets.iter().filter(|it| it.parent == Some(slot)).count();
        let parent_of = |it: &Fileset| ParentSnapshot {
            family: it.family,
            id: it.id,
            is_freed: it.state.cursor().is_some(),
            children: children(it.slot),
            held: None,
        };
        let is_related = |it: &&Fileset| it.state.is_of_snapshot() || it.parent.is_some();
        ParentSnapshots {
            snapshots: snapshots.map(|it| (it.slot, parent_of(it))).collect(),
            families: filesets.iter().filter(is_related).map(|it| it.family).collect(),
        }
    }

    fn prepare(&mut self, check: &mut Check<'_>, fileset: &Fileset) {
        check.is_snapshot = fileset.state == FilesetState::Snapshot;
        let subject = Subject { fileset: fileset.family, anode: AnodeNo(0) };
        let found = fileset.parent.and_then(|slot| self.snapshots.get_mut(&slot));
        let expected = (fileset.family, FilesetId(fileset.shared_epoch.0));
        let known = found.as_ref().map(|parent| (parent.family, parent.id));
        let is_younger = !check.is_snapshot || fileset.id.0 > fileset.shared_epoch.0;
        if fileset.parent.is_some() && (known != Some(expected) || !is_younger) {
            let what = format!(
                "slot {} has {:?} of epoch {} as its parent, and that is {known:?}",
                fileset.slot, fileset.parent, fileset.shared_epoch.0
            );
            check.defect(DefectCode::FS010, subject, None, what);
        }
        if found.as_ref().is_some_and(|parent| parent.is_freed && parent.children > 1) {
            let what = format!(
                "slot {} and another have {:?} as their parent, and that is being freed",
                fileset.slot, fileset.parent
            );
            check.defect(DefectCode::FS010, subject, None, what);
        }
        if !self.families.contains(&fileset.family) {
            return;
        }
        let mut shares = SharedFragments::new(fileset.shared_epoch);
        if check.is_snapshot {
            shares.taken_in = Some(Epoch(fileset.id.0));
        }
        if let Some(parent) = found {
            parent.children = parent.children.saturating_sub(1);
            shares.is_parent_whole = !check.is_incomplete && !parent.is_freed;
            let is_last = parent.children == 0;
            shares.parent = if is_last { parent.held.take() } else { parent.held.clone() };
        }
        check.space.shares = Some(shares);
    }

    /// Prepares the check of a fileset being freed or received: shared fragments belong to the
    /// others.
    fn prepare_freed(&self, check: &mut Check<'_>, fileset: &Fileset) {
        check.is_snapshot = fileset.state.is_of_snapshot();
        if self.families.contains(&fileset.family) {
            let mut shares = SharedFragments::new(fileset.shared_epoch);
            shares.is_freed = true;
            check.space.shares = Some(shares);
        }
    }

    fn keep(&mut self, check: &mut Check<'_>, fileset: &Fileset) -> Result<(), CheckError> {
        let mut shares = check.space.shares.take();
        check.is_snapshot = false;
        let asked = shares.as_mut().and_then(|shares| shares.parent.take());
        if let Some(held) = asked.and_then(|asked| Rc::try_unwrap(asked).ok()) {
            check.memory_bytes = check.memory_bytes.saturating_sub(bytes_of(&held));
        }
        let Some(parent) = self.snapshots.get_mut(&fileset.slot) else { return Ok(()) };
        if let Some(shares) = shares.filter(|_| parent.children > 0) {
            let held = shares.into_held();
            check.take_memory(bytes_of(&held))?;
            parent.held = Some(Rc::new(held));
        }
        Ok(())
    }
}

fn bytes_of(held: &FragmentBitmaps) -> u64 {
    held.values().map(|words| to_u64(words.len() * 8)).sum()
}

/// Claims the space behind the cursor (DL1). For a fileset being received that is all of its space,
/// and its blocks are verified.
fn deleted_fileset(check: &mut Check<'_>, fileset: &Fileset, cursor: Cursor) {
    let has_bytes = fileset.state.cursor().is_none();
    let past = FreedCursor { container: Cursor::TABLE, cursor, has_bytes };
    let content = MapContent::Pages(PageKind::Anode);
    let table = fileset.table_anode();
    check.walk_past(&table, content, Some(past), &mut |check, &(index, _), page| {
        for slot in 0..SLOTS_PER_PAGE {
            let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
            if number < cursor.container {
                continue;
            }
            let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
            let bytes = bytes.expect("a page holds 7 slots");
            match Anode::decode(bytes, fileset.family, AnodeNo(number)) {
                Ok(None) => {}
                Ok(Some(anode)) => deleted_container(check, &anode, past),
                Err(error) => {
                    let subject = Subject { fileset: fileset.family, anode: AnodeNo(number) };
                    let place = check.reader.geometry.group_layout().root_place();
                    anode::bad_slot(check, subject, place, error);
                }
            }
        }
    });
}

fn deleted_container(check: &mut Check<'_>, anode: &Anode, past: FreedCursor) {
    let content = anode.content_kind().map_or(MapContent::Data, MapContent::Pages);
    let past = FreedCursor { container: anode.number.0, ..past };
    check.walk_past(anode, content, Some(past), &mut |_, _, _| {});
}

/// Each hold belongs to a snapshot in use, under a unique name.
fn hold_names(check: &mut Check<'_>, holds: &[Fileset], filesets: &[&Fileset]) {
    let snapshots = filesets.iter().filter(|it| it.state == FilesetState::Snapshot);
    let snapshots: BTreeSet<u32> = snapshots.map(|it| it.slot).collect();
    let mut seen = BTreeSet::new();
    for hold in holds {
        let subject = Subject { fileset: hold.family, anode: AnodeNo(0) };
        let name = hold.name.as_str();
        if !hold.above.is_some_and(|slot| snapshots.contains(&slot)) {
            let what =
                format!("the hold {name:?} is of slot {:?}, which has no snapshot", hold.above);
            check.defect(DefectCode::FS009, subject, None, what);
        }
        if !seen.insert((hold.above, name)) {
            let what = format!("slot {} is the hold {name:?}, as an earlier slot is", hold.slot);
            check.defect(DefectCode::FS008, subject, None, what);
        }
    }
}

/// Checks that names are unique below each fileset (FT1), and that each fileset is below one in use
/// (FT2).
fn names(check: &mut Check<'_>, filesets: &[&Fileset]) {
    let live = || filesets.iter().filter(|fileset| cursor_of(fileset).is_none());
    let writable = live().filter(|it| it.state == FilesetState::Writable);
    let above: BTreeMap<u32, Option<u32>> = writable.map(|it| (it.slot, it.above)).collect();
    let mut seen = BTreeSet::new();
    for fileset in live() {
        let subject = Subject { fileset: fileset.family, anode: AnodeNo(0) };
        let name = fileset.name.as_str();
        let is_snapshot = fileset.state == FilesetState::Snapshot;
        if !seen.insert((is_snapshot, fileset.above, &fileset.name)) {
            let what = format!("slot {} is called {name:?}, as an earlier slot is", fileset.slot);
            check.defect(DefectCode::FS008, subject, None, what);
        }
        let (mut next, mut steps) = (fileset.above, 0);
        while let Some(slot) = next.filter(|_| steps <= filesets.len()) {
            steps += 1;
            next = above.get(&slot).copied().unwrap_or_else(|| {
                let what = format!("{name:?} is below slot {slot}, which has no fileset in use");
                check.defect(DefectCode::FS009, subject, None, what);
                None
            });
        }
        if steps > filesets.len() {
            let what = format!("{name:?} is below itself");
            check.defect(DefectCode::FS009, subject, None, what);
        }
    }
}

fn one_fileset(check: &mut Check<'_>, fileset: &Fileset) -> Result<(), CheckError> {
    let mut tree = FilesetCheck::new(fileset.clone());
    tree.wrong_before = wrong_anodes(check);
    let (outer_incomplete, first_finding) = (check.is_incomplete, check.report.findings.len());
    check.is_incomplete = check.is_torn;
    let reserved = check.space.fragments_reserved;
    for pass in &FILESET_PASSES {
        check.step(pass.name);
        (pass.run)(check, &mut tree)?;
    }
    let reserved = check.space.fragments_reserved.saturating_sub(reserved);
    if reserved > 0 && !fileset.may_reserve {
        let subject = Subject { fileset: fileset.family, anode: AnodeNo(0) };
        let what = format!("slot {} reserves {reserved} fragments", fileset.slot);
        check.defect(DefectCode::FS014, subject, None, what);
    }
    path::name_defects(check, &tree, first_finding);
    tree.release(check);
    check.is_incomplete |= outer_incomplete;
    Ok(())
}

fn root_anode(check: &mut Check<'_>, root: &PageBytes, number: AnodeNo) -> Option<Anode> {
    let offset = slot_offset(to_usize(number.0));
    let slot = root.get(offset..)?.first_chunk::<SLOT_BYTES>()?;
    match Anode::decode(slot, FilesetId(0), number) {
        Ok(anode) => anode,
        Err(error) => {
            let place = check.reader.geometry.group_layout().root_place();
            anode::bad_slot(check, POOL, place, error);
            None
        }
    }
}

fn read_table(check: &mut Check<'_>, table: &Anode) -> Vec<Fileset> {
    let mut filesets = Vec::new();
    let content = MapContent::Pages(PageKind::FilesetTable);
    let walked = check.walk(table, content, &mut |check, &(index, _), page| {
        for slot in 0..SLOTS_PER_PAGE {
            let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
            let Ok(number) = u32::try_from(number) else { continue };
            match Fileset::decode_in(page, slot, number) {
                Ok(fileset) => filesets.extend(fileset),
                Err(error) => {
                    let place = check.reader.geometry.group_layout().root_place();
                    anode::bad_slot(check, POOL, place, error);
                }
            }
        }
    });
    check.compare_counts(table, content, &walked);
    filesets
}
