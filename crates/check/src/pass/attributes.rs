//! Containers of extended attributes: what is in their pages, and which anode they belong to.
//!
//! A container of a file without a name may be half freed: only its pages are verified then, each
//! for itself.

use std::collections::{BTreeMap, BTreeSet};

use format::acl::Acl;
use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE};
use format::attributes::{self, AttributeName, ValueAt, is_value_page};
use format::ids::{AnodeNo, Place};
use format::page::{PageBytes, PageHeader, PageKind};

use crate::facts::Facts;
use crate::map::{Content, subject_of};
use crate::tree::Tree;
use crate::{Check, Stop};
use format::defect::{Defect, DefectCode};

/// Bytes of memory for what one page says: at most the names that fit in it, and their heads.
const PAGE_MEMORY_BYTES: u64 = 16 << 10;

/// What the pages of one container say.
#[derive(Default)]
struct Pages {
    /// Entry pages, and the number of the next that each names.
    next: BTreeMap<u64, u64>,
    /// Value pages, and the bytes in each.
    values: BTreeMap<u64, u32>,
    /// Values that entries say are in value pages: bytes, and the pages.
    wanted: Vec<(usize, std::ops::Range<u64>)>,
    names: Vec<Vec<u8>>,
    is_damaged: bool,
}

/// Checks the access lists that lie in an anode.
pub(crate) fn inline(check: &mut Check<'_>, place: Place, anode: &Anode) {
    for (name, value) in anode.attributes.iter() {
        access_list(check, anode, place, name, value);
    }
}

fn access_list(
    check: &mut Check<'_>,
    anode: &Anode,
    place: Place,
    name: AttributeName<'_>,
    value: &[u8],
) {
    if let Some(Err(error)) = name.namespace.is_acl().then(|| Acl::decode(value)) {
        check.found(Defect::from(error).at(place), subject_of(anode));
    }
}

/// Checks the container that `anode` describes.
pub(crate) fn run(check: &mut Check<'_>, tree: &mut Tree, anode: &Anode) {
    let mut pages = Pages::default();
    let content = Content::Pages(PageKind::Attributes);
    let before = check.memory_bytes;
    let walked = check.walk(anode, content, &mut |check, &(index, _), page| {
        // What is over the limit is said at the end of the pass.
        if check.take_memory(PAGE_MEMORY_BYTES).is_ok() {
            attribute_page(check, anode, index, page, &mut pages);
        }
    });
    check.memory_bytes = before;
    check.compare_counts(anode, content, &walked);
    let is_whole = walked.is_whole && !pages.is_damaged;
    let is_scrambled = is_whole && !pages.add_up();
    tree.facts_of(check, anode.number.0).is_scrambled = is_scrambled;
}

fn attribute_page(
    check: &mut Check<'_>,
    anode: &Anode,
    index: u64,
    page: &PageBytes,
    pages: &mut Pages,
) {
    if let Err(defect) = attributes::verify(page) {
        let place = PageHeader::parse(page).map(|header| header.place);
        let defect = Defect { place, ..defect.into() };
        check.found(defect, subject_of(anode));
        pages.is_damaged = true;
    }
    if is_value_page(page) {
        pages.values.insert(index, attributes::count(page));
        return;
    }
    pages.next.insert(index, attributes::next(page));
    let place = PageHeader::parse(page).map_or(Place::NONE, |header| header.place);
    for entry in attributes::entries(page) {
        // One in value pages is read when it is used.
        if let ValueAt::Here(value) = entry.value {
            access_list(check, anode, place, entry.name, value);
        }
        pages.names.push(entry.name.full());
        if !entry.value_pages().is_empty() {
            pages.wanted.push((entry.value_bytes, entry.value_pages()));
        }
    }
}

impl Pages {
    /// Whether the entry pages are one chain from page 0 on, every value page is part of one value,
    /// and no attribute is there twice.
    fn add_up(&self) -> bool {
        let names: BTreeSet<&[u8]> = self.names.iter().map(Vec::as_slice).collect();
        names.len() == self.names.len() && self.is_one_chain() && self.are_values_whole()
    }

    fn is_one_chain(&self) -> bool {
        let mut seen = BTreeSet::new();
        let mut number = 0;
        while let Some(&next) = self.next.get(&number) {
            if !seen.insert(number) {
                return false;
            }
            number = next;
            if next == 0 {
                break;
            }
        }
        number == 0 && seen.len() == self.next.len()
    }

    fn are_values_whole(&self) -> bool {
        let mut seen = BTreeSet::new();
        for (bytes, range) in &self.wanted {
            let mut found = 0;
            for number in range.clone() {
                let Some(&count) = self.values.get(&number).filter(|_| seen.insert(number)) else {
                    return false;
                };
                found += usize::try_from(count).unwrap_or(usize::MAX / 64);
            }
            if found != *bytes {
                return false;
            }
        }
        seen.len() == self.values.len()
    }
}

/// Compares the containers with the anodes that name them.
pub(crate) fn compare(check: &mut Check<'_>, tree: &mut Tree) -> Result<(), Stop> {
    let mut found: Vec<(u64, DefectCode, String)> = Vec::new();
    for (number, facts) in tree.facts.iter() {
        for container in facts.containers.into_iter().filter(|&container| container != 0) {
            found.extend(named(check.is_incomplete, tree, number, container));
        }
        if facts.kind == Some(AnodeKind::Internal) && number >= FIRST_FILE_ANODE.0 {
            found.extend(owned(check.is_incomplete, tree, number, facts));
        }
    }
    for (number, code, what) in found {
        check.defect(code, tree.subject(number), None, what);
    }
    Ok(())
}

/// Says what is wrong with the container that anode `number` names, if anything.
fn named(
    is_incomplete: bool,
    tree: &Tree,
    number: u64,
    container: u64,
) -> Option<(u64, DefectCode, String)> {
    let facts = tree.facts.get(container).filter(|facts| facts.kind.is_some());
    let what = match facts {
        None if is_incomplete => return None,
        None => "which is free".to_owned(),
        Some(facts) if facts.kind != Some(AnodeKind::Internal) => {
            format!("which is {:?}", facts.kind)
        }
        Some(_) if container < FIRST_FILE_ANODE.0 => "which is reserved".to_owned(),
        Some(facts) if facts.parent != number => {
            format!("which belongs to {}", AnodeNo(facts.parent))
        }
        Some(_) => return None,
    };
    let what = format!("{} names {}, {what}", AnodeNo(number), AnodeNo(container));
    Some((number, DefectCode::XA002, what))
}

/// Says what is wrong with container `number`, if anything.
fn owned(
    is_incomplete: bool,
    tree: &Tree,
    number: u64,
    facts: &Facts,
) -> Option<(u64, DefectCode, String)> {
    let owner = tree.facts.get(facts.parent).filter(|owner| owner.containers.contains(&number));
    match owner {
        None if is_incomplete => None,
        None => {
            let what = format!("{} is named by no anode", AnodeNo(number));
            Some((number, DefectCode::XA003, what))
        }
        Some(owner) if facts.is_scrambled && owner.nlink > 0 => {
            let what = format!("pages of {} are not those of its attributes", AnodeNo(number));
            Some((facts.parent, DefectCode::XA004, what))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::Pages;

    fn sound() -> Pages {
        let mut pages = Pages::default();
        pages.next.extend([(0, 3), (3, 0)]);
        pages.values.extend([(1, 3968), (2, 32)]);
        pages.wanted.push((4000, 1..3));
        pages.names.extend([b"user.a".to_vec(), b"user.b".to_vec()]);
        pages
    }

    #[test]
    fn pages_add_up_when_each_is_somebodys() {
        assert!(Pages::default().add_up());
        assert!(sound().add_up());
        let scrambled: [fn(&mut Pages); 8] = [
            |pages| pages.names.push(b"user.a".to_vec()),
            |pages| pages.next.extend([(3, 4)]),
            |pages| pages.next.extend([(3, 3)]),
            |pages| pages.next.extend([(5, 0)]),
            |pages| pages.values.extend([(7, 1)]),
            |pages| pages.values.extend([(2, 31)]),
            |pages| pages.values.retain(|&number, _| number != 2),
            |pages| pages.wanted.push((4000, 1..3)),
        ];
        for (which, scramble) in scrambled.into_iter().enumerate() {
            let mut pages = sound();
            scramble(&mut pages);
            assert!(!pages.add_up(), "{which}");
        }
    }
}
