//! Compares the orphan list of a fileset with its anodes.

use format::defect::DefectCode;
use format::ids::AnodeNo;
use format::page::{PAGE_HEADER_BYTES, PageKind, read_u64};

use crate::context::{Check, CheckError};
use crate::map::MapContent;
use crate::tree::FilesetCheck;

/// Anode numbers in a page of the orphan list.
const ORPHANS_PER_PAGE: u64 = 496;

pub(crate) fn run(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
    let Some(anode) = tree.orphans.clone() else { return Ok(()) };
    let content = MapContent::Pages(PageKind::OrphanList);
    let walked = check.walk(&anode, content, &mut |check, &(index, _), page| {
        for position in 0..ORPHANS_PER_PAGE {
            let offset = PAGE_HEADER_BYTES + usize::try_from(position * 8).expect("in a page");
            let number = read_u64(page, offset);
            if number == 0 {
                continue;
            }
            let slot = index.saturating_mul(ORPHANS_PER_PAGE).saturating_add(position);
            let known = tree.facts.get_mut(number).filter(|facts| facts.kind.is_some());
            let what = match known {
                None if check.is_incomplete => continue,
                None => "which is free".to_owned(),
                Some(facts) => {
                    facts.is_listed = true;
                    match facts.orphan_slot {
                        Some(stated) if u64::from(stated) == slot => continue,
                        Some(stated) => format!("which says slot {stated}"),
                        None => format!("which has {} links", facts.nlink),
                    }
                }
            };
            let what = format!("slot {slot} has {}, {what}", AnodeNo(number));
            check.defect(DefectCode::OR001, tree.subject(number), None, what);
        }
    });
    check.compare_counts(&anode, content, &walked);
    Ok(())
}
