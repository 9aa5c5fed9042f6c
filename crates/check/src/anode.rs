//! The anodes of one fileset: its table, its anode map, its list of orphans, and what the walk
//! learns of each anode.

use std::collections::{BTreeMap, BTreeSet};

use format::anode::{
    ANODE_BYTES, ANODE_MAP_ANODE, Anode, AnodeKind, FIRST_FILE_ANODE, ORPHAN_ANODE, ROOT_ANODE,
    slot_offset,
};
use format::bitmap::{self, BITS_PER_PAGE};
use format::fileset::Fileset;
use format::ids::{AnodeNo, Place};
use format::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, SLOTS_PER_PAGE, read_u64,
};

use crate::convert::to_u64;
use crate::map::{Content, subject_of};
use crate::{Check, Stop, attributes, dir, link, path};
use format::defect::{Defect, DefectCode, Subject};

/// Bytes of memory for each anode of the fileset in hand: its facts, and its share of the tree
/// that holds them.
pub(crate) const FACTS_BYTES: u64 = 160;
/// Anode numbers in a page of the orphan list.
const ORPHANS_PER_PAGE: u64 = 496;

/// What the walk learns of one anode, from its slot and from the names that lead to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// `None`: the slot is free.
    pub(crate) kind: Option<AnodeKind>,
    pub(crate) generation: u64,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    pub(crate) entries: u64,
    /// Names that lead to it.
    pub(crate) names: u32,
    /// What the first of them says.
    pub(crate) named_kind: Option<AnodeKind>,
    pub(crate) named_generation: u64,
    pub(crate) named_in: u64,
    /// Whether a later name says something else.
    pub(crate) names_differ: bool,
    /// Names of directories in it.
    pub(crate) subdirectories: u32,
    /// Whether the orphan list has it.
    pub(crate) is_listed: bool,
    /// Whether it is known to lead to the root, or to a defect that was reported.
    pub(crate) is_rooted: bool,
    /// Containers of its attributes; 0: none.
    pub(crate) containers: [u64; 2],
    /// Whether it is a container of attributes whose pages do not add up.
    pub(crate) is_scrambled: bool,
}

/// One fileset while it is checked.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) fileset: Fileset,
    pub(crate) table: Anode,
    pub(crate) facts: BTreeMap<u64, Facts>,
    used: u64,
    anode_map: Option<Anode>,
    orphans: Option<Anode>,
    /// Whether memory for facts ran out.
    is_over: bool,
}

impl Tree {
    pub(crate) fn subject(&self, anode: u64) -> Subject {
        Subject { fileset: self.fileset.id, anode: AnodeNo(anode) }
    }

    /// Returns the facts of `number`, new ones if there are none yet.
    pub(crate) fn facts_of(&mut self, check: &mut Check<'_>, number: u64) -> &mut Facts {
        if !self.facts.contains_key(&number) {
            self.is_over |= check.take_memory(FACTS_BYTES).is_err();
        }
        self.facts.entry(number).or_default()
    }
}

/// Checks one fileset.
pub(crate) fn run(check: &mut Check<'_>, fileset: &Fileset) -> Result<(), Stop> {
    let mut tree = Tree {
        fileset: fileset.clone(),
        table: fileset.table_anode(),
        facts: BTreeMap::new(),
        used: 0,
        anode_map: None,
        orphans: None,
        is_over: false,
    };
    let (outer_incomplete, first_finding) = (check.is_incomplete, check.report.findings.len());
    check.is_incomplete = false;
    let table = tree.table.clone();
    let walked =
        check.walk(&table, Content::Pages(PageKind::Anode), &mut |check, &(index, _), page| {
            if !tree.is_over {
                table_page(check, &mut tree, index, page);
            }
        });
    if tree.is_over {
        check.take_memory(0)?;
    }
    if walked.is_whole {
        compare_table(check, &tree, walked.blocks, walked.fragments);
    }
    reserved(check, &tree);
    anode_map(check, &tree);
    orphan_list(check, &mut tree);
    attributes::compare(check, &tree);
    link::run(check, &mut tree);
    path::name_defects(check, &tree, first_finding);
    check.memory_bytes -= FACTS_BYTES * to_u64(tree.facts.len());
    check.is_incomplete |= outer_incomplete;
    Ok(())
}

fn compare_table(check: &mut Check<'_>, tree: &Tree, pages: u64, fragments: u64) {
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
}

/// Notes a slot that can't be used.
pub(crate) fn bad_slot(
    check: &mut Check<'_>,
    subject: Subject,
    place: Place,
    error: impl Into<Defect>,
) {
    check.is_incomplete = true;
    check.found(error.into().at(place), subject);
}

fn table_page(check: &mut Check<'_>, tree: &mut Tree, index: u64, page: &PageBytes) {
    let place = PageHeader::parse(page).map_or(Place::NONE, |header| header.place);
    for slot in 0..SLOTS_PER_PAGE {
        let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
        let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
        let bytes: &[u8; ANODE_BYTES] = bytes.expect("a page holds 7 slots");
        match Anode::decode(bytes, tree.fileset.id, AnodeNo(number)) {
            Ok(None) => {}
            Ok(Some(anode)) => one_anode(check, tree, place, &anode),
            Err(error) => bad_slot(check, tree.subject(number), place, error),
        }
    }
}

fn one_anode(check: &mut Check<'_>, tree: &mut Tree, place: Place, anode: &Anode) {
    let number = anode.number;
    tree.used += 1;
    check.report.totals.anodes += 1;
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
    facts.entries = anode.entries;
    facts.containers = [anode.xattr.0, anode.acl.0];
    attributes::inline(check, place, anode);
    match anode.kind {
        AnodeKind::Directory => dir::run(check, tree, anode),
        AnodeKind::Internal if number == ANODE_MAP_ANODE => tree.anode_map = Some(anode.clone()),
        AnodeKind::Internal if number == ORPHAN_ANODE => tree.orphans = Some(anode.clone()),
        AnodeKind::Internal => attributes::run(check, tree, anode),
        AnodeKind::Regular
        | AnodeKind::Symlink
        | AnodeKind::BlockDevice
        | AnodeKind::CharDevice
        | AnodeKind::Fifo
        | AnodeKind::Socket => container(check, anode, Content::Data),
    }
}

fn container(check: &mut Check<'_>, anode: &Anode, content: Content) {
    let walked = check.walk(anode, content, &mut |_, _, _| {});
    check.compare_counts(anode, content, &walked);
}

/// Checks that the anodes that every fileset has are there.
fn reserved(check: &mut Check<'_>, tree: &Tree) {
    let expected = [
        (ROOT_ANODE, AnodeKind::Directory, "root directory"),
        (ANODE_MAP_ANODE, AnodeKind::Internal, "anode map"),
        (ORPHAN_ANODE, AnodeKind::Internal, "orphan list"),
    ];
    for (number, kind, name) in expected {
        let found = tree.facts.get(&number.0).and_then(|facts| facts.kind);
        // One that was not found may be in a page that can't be used.
        if found != Some(kind) && !(found.is_none() && check.is_incomplete) {
            let what = format!("the {name} of {} is {found:?}", tree.fileset.id);
            check.defect(DefectCode::AN006, tree.subject(number.0), None, what);
        }
    }
}

/// Compares the anode map with the anodes that are in use.
fn anode_map(check: &mut Check<'_>, tree: &Tree) {
    let Some(anode) = &tree.anode_map else { return };
    let is_table_whole = !check.is_incomplete;
    let mut seen = BTreeSet::new();
    let content = Content::Pages(PageKind::AnodeMap);
    let walked = check.walk(anode, content, &mut |check, &(index, _), page| {
        seen.insert(index);
        if is_table_whole {
            map_page(check, tree, index, page);
        }
    });
    check.compare_counts(anode, content, &walked);
    if !is_table_whole || !walked.is_whole {
        return;
    }
    let missing: BTreeSet<u64> = used_anodes(tree, 0..u64::MAX)
        .map(|number| number / u64::from(BITS_PER_PAGE))
        .filter(|index| !seen.contains(index))
        .collect();
    for index in missing {
        let what = format!("page {index} of the anode map is missing");
        check.defect(DefectCode::AM001, tree.subject(ANODE_MAP_ANODE.0), None, what);
    }
}

/// Steps over the numbers in use, those that are reserved included.
fn used_anodes(tree: &Tree, range: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    let (start, end) = (range.start, range.end);
    let reserved =
        (start..end.min(FIRST_FILE_ANODE.0).max(start)).filter(|&n| n < FIRST_FILE_ANODE.0);
    let first = start.max(FIRST_FILE_ANODE.0);
    let files = tree.facts.range(first..end.max(first));
    reserved.chain(files.filter(|(_, facts)| facts.kind.is_some()).map(|(&number, _)| number))
}

fn map_page(check: &mut Check<'_>, tree: &Tree, index: u64, page: &PageBytes) {
    let bits = u64::from(BITS_PER_PAGE);
    let first = index.saturating_mul(bits);
    let mut expected = [0_u8; PAGE_BYTES];
    for number in used_anodes(tree, first..first.saturating_add(bits)) {
        let bit = u32::try_from(number - first).expect("below the bits of a page");
        bitmap::set(&mut expected, bit, true);
    }
    if expected[PAGE_HEADER_BYTES..] == page[PAGE_HEADER_BYTES..] {
        return;
    }
    for bit in 0..BITS_PER_PAGE {
        let number = first.saturating_add(u64::from(bit));
        let (code, what) = match (bitmap::is_set(&expected, bit), bitmap::is_set(page, bit)) {
            (true, false) => (DefectCode::AM001, "is in use, but marked free"),
            (false, true) => (DefectCode::AM002, "is free, but marked in use"),
            _ => continue,
        };
        let what = format!("{} {what}", AnodeNo(number));
        check.defect(code, tree.subject(number), None, what);
    }
}

/// Reads the orphan list and marks the anodes in it.
fn orphan_list(check: &mut Check<'_>, tree: &mut Tree) {
    let Some(anode) = tree.orphans.clone() else { return };
    let content = Content::Pages(PageKind::OrphanList);
    let walked = check.walk(&anode, content, &mut |check, &(index, _), page| {
        for position in 0..ORPHANS_PER_PAGE {
            let offset = PAGE_HEADER_BYTES + usize::try_from(position * 8).expect("in a page");
            let number = read_u64(page, offset);
            if number == 0 {
                continue;
            }
            let slot = index.saturating_mul(ORPHANS_PER_PAGE).saturating_add(position);
            let known = tree.facts.get_mut(&number).filter(|facts| facts.kind.is_some());
            let what = match known {
                None if check.is_incomplete => continue,
                None => "which is free".to_owned(),
                Some(facts) => {
                    facts.is_listed = true;
                    match (facts.nlink, facts.entries) {
                        (0, entries) if entries == slot.saturating_add(1) => continue,
                        (0, entries) => format!("which says slot {} plus one", entries),
                        (nlink, _) => format!("which has {nlink} links"),
                    }
                }
            };
            let what = format!("slot {slot} has {}, {what}", AnodeNo(number));
            check.defect(DefectCode::OR001, tree.subject(number), None, what);
        }
    });
    check.compare_counts(&anode, content, &walked);
    debug_assert_eq!(subject_of(&anode).anode, ORPHAN_ANODE);
}
