//! Giving a defect its name: from an anode upwards, looking for it in the directory that names it.
//!
//! Costs reads, so only the first [`PATHS_MAX`] defects of a fileset get one, and a directory is
//! searched up to a bound.

use std::collections::BTreeMap;

use format::anode::{ANODE_BYTES, Anode, ROOT_ANODE, page_and_slot, slot_offset};
use format::directory;
use format::fileset::ROOT_FILESET;
use format::ids::AnodeNo;
use format::map;
use format::page::{PageBytes, PageKind};
use format::pointer::BlockPointer;

use crate::Check;
use crate::anode::Tree;
use crate::dir::shown;
use crate::map::{Indexed, page_pointers, root_pointers, wanted_page};
use crate::reader::Reader;

/// Most defects of a fileset that get a path.
const PATHS_MAX: usize = 100;
/// Deepest path that is followed.
const DEPTH_MAX: usize = 128;
/// Most pages that the search for one name reads: a directory of a million names.
const PAGES_SEARCHED_MAX: usize = 32_768;

/// Gives the defects from `first` on their paths.
pub(crate) fn name_defects(check: &mut Check<'_>, tree: &Tree, first: usize) {
    let mut names = BTreeMap::new();
    for index in first..check.report.defects.len().min(first + PATHS_MAX) {
        let Some(defect) = check.report.defects.get(index) else { return };
        let subject = defect.subject;
        if subject.fileset != tree.fileset.id || subject.anode.0 == 0 {
            continue;
        }
        let path = path_of(&check.reader, tree, subject.anode.0, &mut names);
        if let Some(defect) = check.report.defects.get_mut(index) {
            defect.path = path;
        }
    }
}

/// Returns the path of `number`; `None` where it has no name that could be found.
fn path_of(
    reader: &Reader,
    tree: &Tree,
    number: u64,
    names: &mut BTreeMap<u64, Option<String>>,
) -> Option<String> {
    let mut parts = Vec::new();
    let mut next = number;
    while next != ROOT_ANODE.0 {
        let facts = tree.facts.get(&next).filter(|facts| facts.names > 0)?;
        let name = names
            .entry(next)
            .or_insert_with(|| {
                let parent = read_anode(reader, &tree.table, AnodeNo(facts.named_in))?;
                name_in(reader, &parent, AnodeNo(next))
            })
            .clone()?;
        parts.push(name);
        if parts.len() > DEPTH_MAX {
            return None;
        }
        next = facts.named_in;
    }
    parts.reverse();
    let path = format!("/{}", parts.join("/"));
    let is_root = tree.fileset.id == ROOT_FILESET;
    Some(if is_root { path } else { format!("{}:{path}", tree.fileset.id) })
}

/// Returns the pointer to block `index` of `anode`; `None` for a hole or a map that can't be read.
pub(crate) fn find_block(reader: &Reader, anode: &Anode, index: u64) -> Option<BlockPointer> {
    if index >= map::capacity_of_height(anode.height) {
        return None;
    }
    let (first, pointer) = root_pointers(anode).into_iter().rfind(|(first, _)| *first <= index)?;
    let mut found: Indexed = (first, pointer);
    let is_inside = |found: &Indexed, level| index - found.0 < map::span_of_pointer(level);
    for level in (0..anode.height).rev() {
        if !is_inside(&found, level + 1) {
            return None;
        }
        let wanted = wanted_page(anode, PageKind::Map, level, &found);
        let page = reader.read_page(&wanted).ok()?;
        found = page_pointers(&page, found.0, level).into_iter().rfind(|p| p.0 <= index)?;
    }
    (found.0 == index).then_some(found.1)
}

/// Reads anode `number` of the fileset whose anode table is `table`.
pub(crate) fn read_anode(reader: &Reader, table: &Anode, number: AnodeNo) -> Option<Anode> {
    let (index, slot) = page_and_slot(number);
    let page = read_content(reader, table, PageKind::Anode, index)?;
    let bytes: &[u8; ANODE_BYTES] = page.get(slot_offset(slot)..)?.first_chunk()?;
    Anode::decode(bytes, table.fileset, number).ok()?
}

/// Reads page `index` of a container of pages.
pub(crate) fn read_content(
    reader: &Reader,
    anode: &Anode,
    kind: PageKind,
    index: u64,
) -> Option<Box<PageBytes>> {
    let pointer = find_block(reader, anode, index)?;
    reader.read_page(&wanted_page(anode, kind, 0, &(index, pointer))).ok()
}

/// Hands each pointer to a block of `anode` to `each`, until it returns `false` or the bound on
/// pages is reached.
pub(crate) fn each_block(
    reader: &Reader,
    anode: &Anode,
    pages_max: usize,
    each: &mut dyn FnMut(&Indexed) -> bool,
) {
    let mut left = pages_max;
    let mut stack: Vec<(u8, Indexed)> =
        root_pointers(anode).into_iter().rev().map(|pointer| (anode.height, pointer)).collect();
    while let Some((level, pointer)) = stack.pop() {
        if left == 0 {
            return;
        }
        left -= 1;
        let Some(below) = level.checked_sub(1) else {
            if each(&pointer) {
                continue;
            }
            return;
        };
        let wanted = wanted_page(anode, PageKind::Map, below, &pointer);
        let Ok(page) = reader.read_page(&wanted) else { continue };
        let pointers = page_pointers(&page, pointer.0, below);
        stack.extend(pointers.into_iter().rev().map(|pointer| (below, pointer)));
    }
}

/// Returns the name under which `directory` has `target`.
pub(crate) fn name_in(reader: &Reader, directory: &Anode, target: AnodeNo) -> Option<String> {
    let mut name = None;
    each_block(reader, directory, PAGES_SEARCHED_MAX, &mut |pointer| {
        let wanted = wanted_page(directory, PageKind::Directory, 0, pointer);
        if let Ok(page) = reader.read_page(&wanted) {
            let found = directory::dirents(page.as_slice()).find(|d| d.anode == target);
            name = found.map(|dirent| shown(dirent.name));
        }
        name.is_none()
    });
    name
}
