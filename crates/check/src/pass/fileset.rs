//! The pool's root page and its table of filesets.

use std::collections::{BTreeMap, BTreeSet};

use format::anode::{Anode, POOL_DEFERRED_FREES, POOL_FILESET_TABLE, slot_offset};
use format::fileset::{Cursor, Fileset, FilesetState};
use format::ids::{AnodeNo, FilesetId};
use format::page::{PageBytes, PageKind, PageOwner, SLOT_BYTES, SLOTS_PER_PAGE};

use super::{FILESET_PASSES, anode};
use crate::convert::{to_u64, to_usize};
use crate::map::{Content, Past};
use crate::reader::PageWanted;
use crate::space::Shares;
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
    let parents = Parents::of(&filesets);
    let mut ids = BTreeSet::new();
    // A parent comes before what was taken after it: it is the older clone.
    let mut in_order: Vec<&Fileset> = filesets.iter().collect();
    // One that is being freed comes last: what others hold of it is theirs.
    in_order.sort_by_key(|it| match it.state {
        FilesetState::Clone => (0, it.id.0),
        FilesetState::Writable => (1, 0),
        FilesetState::Deleted(_) => (2, 0),
    });
    for fileset in in_order {
        if !ids.insert(fileset.id) {
            let what = format!("slot {} has {}, as an earlier slot has", fileset.slot, fileset.id);
            check.defect(DefectCode::FS005, POOL, None, what);
            continue;
        }
        check.report.totals.filesets += 1;
        match fileset.state.cursor() {
            None => {
                let reservations = &mut check.space.reservations_bytes;
                *reservations = reservations.saturating_add(fileset.reservation_bytes);
                parents.prepare(check, fileset);
                one_fileset(check, fileset)?;
                (check.space.shares, check.is_clone) = (None, false);
            }
            Some(cursor) if parents.is_clone(fileset) => {
                let mut shares = Shares::new(fileset.shared_epoch, false);
                shares.is_freed = true;
                (check.space.shares, check.is_clone) = (Some(shares), true);
                deleted_fileset(check, fileset, cursor);
                (check.space.shares, check.is_clone) = (None, false);
            }
            Some(cursor) => {
                // The pool counts its anodes until the last of it is freed.
                let anodes = &mut check.report.totals.anodes;
                *anodes = anodes.saturating_add(fileset.anodes_used);
                deleted_fileset(check, fileset, cursor);
            }
        }
    }
    let mut ids = BTreeSet::new();
    let filesets: Vec<&Fileset> = filesets.iter().filter(|it| ids.insert(it.id)).collect();
    names(check, &filesets);
    Ok(())
}

/// Which filesets there are, for those that have one of them as their parent.
struct Parents {
    /// Family and identity of each clone, by slot.
    clones: BTreeMap<u32, (FilesetId, FilesetId)>,
    /// Families with clones.
    families: BTreeSet<FilesetId>,
    /// Families of which something is being freed.
    freed: BTreeSet<FilesetId>,
    /// Slots that are the parent of another.
    parents: BTreeSet<u32>,
}

impl Parents {
    fn of(filesets: &[Fileset]) -> Parents {
        let clones = || filesets.iter().filter(|it| it.state == FilesetState::Clone);
        let deleted = filesets.iter().filter(|it| it.state.cursor().is_some());
        Parents {
            clones: clones().map(|it| (it.slot, (it.family, it.id))).collect(),
            families: clones().map(|it| it.family).collect(),
            freed: deleted.map(|it| it.family).collect(),
            parents: filesets.iter().filter_map(|it| it.parent).collect(),
        }
    }

    /// Whether a deleted fileset is a clone: what was taken after it is there.
    fn is_clone(&self, fileset: &Fileset) -> bool {
        self.parents.contains(&fileset.slot)
    }

    /// Prepares the check of one of the filesets: what it may hold that its parent holds too.
    fn prepare(&self, check: &mut Check<'_>, fileset: &Fileset) {
        check.is_clone = fileset.state == FilesetState::Clone;
        let found = fileset.parent.and_then(|slot| self.clones.get(&slot));
        let expected = (fileset.family, FilesetId(fileset.shared_epoch.0));
        let is_freed = self.freed.contains(&fileset.family);
        if fileset.parent.is_some() && found != Some(&expected) && !is_freed {
            let subject = Subject { fileset: fileset.family, anode: AnodeNo(0) };
            let what = format!(
                "slot {} has {:?} of epoch {} as its parent, and that is {found:?}",
                fileset.slot, fileset.parent, fileset.shared_epoch.0
            );
            check.defect(DefectCode::FS010, subject, None, what);
        }
        if self.families.contains(&fileset.family) || is_freed {
            let is_parent_whole = !check.is_incomplete && found.is_some() && !is_freed;
            check.space.shares = Some(Shares::new(fileset.shared_epoch, is_parent_whole));
        }
    }
}

/// Claims what a deleted fileset still has: what lies past the cursor (DL1).
fn deleted_fileset(check: &mut Check<'_>, fileset: &Fileset, cursor: Cursor) {
    let past = Some(Past { container: Cursor::TABLE, cursor });
    let content = Content::Pages(PageKind::Anode);
    let table = fileset.table_anode();
    check.walk_past(&table, content, past, &mut |check, &(index, _), page| {
        for slot in 0..SLOTS_PER_PAGE {
            let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
            if number < cursor.container {
                continue;
            }
            let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
            let bytes = bytes.expect("a page holds 7 slots");
            match Anode::decode(bytes, fileset.family, AnodeNo(number)) {
                Ok(None) => {}
                Ok(Some(anode)) => deleted_container(check, &anode, cursor),
                Err(error) => {
                    let subject = Subject { fileset: fileset.family, anode: AnodeNo(number) };
                    let place = check.reader.geometry.root_place();
                    anode::bad_slot(check, subject, place, error);
                }
            }
        }
    });
}

fn deleted_container(check: &mut Check<'_>, anode: &Anode, cursor: Cursor) {
    let content = anode.content_kind().map_or(Content::Data, Content::Pages);
    let past = Some(Past { container: anode.number.0, cursor });
    check.walk_past(anode, content, past, &mut |_, _, _| {});
}

/// FT1, FT2: names are unique below each fileset, and each is below one that is in use.
fn names(check: &mut Check<'_>, filesets: &[&Fileset]) {
    let live = || filesets.iter().filter(|fileset| fileset.state.cursor().is_none());
    let writable = live().filter(|it| it.state == FilesetState::Writable);
    let above: BTreeMap<u32, Option<u32>> = writable.map(|it| (it.slot, it.above)).collect();
    let mut seen = BTreeSet::new();
    for fileset in live() {
        let subject = Subject { fileset: fileset.family, anode: AnodeNo(0) };
        let name = fileset.name.as_str();
        let is_clone = fileset.state == FilesetState::Clone;
        if !seen.insert((is_clone, fileset.above, &fileset.name)) {
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
            let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
            let Ok(number) = u32::try_from(number) else { continue };
            match Fileset::decode_in(page, slot, number) {
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
