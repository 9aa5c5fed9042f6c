//! Containers of extended attributes: checks their pages, and the anodes they belong to.
//!
//! The container of an unlinked file may be half freed, so its pages are only verified one by one.

use format::acl::Acl;
use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE};
use format::attributes::{
    self, AttributeName, AttributeValueLocation, ContainerPages, is_value_page,
};
use format::ids::{AnodeNo, Place};
use format::page::{PageBytes, PageHeader, PageKind};

use crate::context::{Check, CheckError};
use crate::facts::AnodeFacts;
use crate::map::{MapContent, subject_of};
use crate::tree::FilesetCheck;
use format::defect::{Defect, DefectCode};

/// Bound of the names in a page, and their heads.
const PAGE_MEMORY_BYTES: u64 = 16 << 10;

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

pub(crate) fn run(check: &mut Check<'_>, tree: &mut FilesetCheck, anode: &Anode) {
    let (mut pages, mut is_damaged) = (ContainerPages::default(), false);
    let content = MapContent::Pages(PageKind::Attributes);
    let before = check.memory_bytes;
    let walked = check.walk(anode, content, &mut |check, &(index, _), page| {
        // A refusal is reported at the end of the pass.
        if check.take_memory(PAGE_MEMORY_BYTES).is_ok() {
            is_damaged |= !attribute_page(check, anode, index, page, &mut pages);
        }
    });
    check.memory_bytes = before;
    check.compare_counts(anode, content, &walked);
    let is_whole = walked.is_whole && !is_damaged;
    let is_scrambled = is_whole && !pages.add_up();
    tree.facts_of(check, anode.number.0).is_scrambled = is_scrambled;
}

fn attribute_page(
    check: &mut Check<'_>,
    anode: &Anode,
    index: u64,
    page: &PageBytes,
    pages: &mut ContainerPages,
) -> bool {
    let verified = attributes::verify(page);
    let is_sound = verified.is_ok();
    let place = PageHeader::parse(page).map(|header| header.place);
    if let Err(defect) = verified {
        check.found(Defect { place, ..defect.into() }, subject_of(anode));
    }
    pages.add(index, page);
    if is_value_page(page) {
        return is_sound;
    }
    for entry in attributes::entries(page) {
        // An access list in value pages is verified when it is used.
        if let AttributeValueLocation::Here(value) = entry.value {
            access_list(check, anode, place.unwrap_or(Place::NONE), entry.name, value);
        }
    }
    is_sound
}

pub(crate) fn compare(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
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

fn named(
    is_incomplete: bool,
    tree: &FilesetCheck,
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

fn owned(
    is_incomplete: bool,
    tree: &FilesetCheck,
    number: u64,
    facts: &AnodeFacts,
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
