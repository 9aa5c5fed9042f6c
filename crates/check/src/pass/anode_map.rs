//! Compares the anode map of a fileset with the anodes in use.

use std::collections::BTreeSet;

use format::anode::{ANODE_MAP_ANODE, FIRST_FILE_ANODE};
use format::bitmap::{self, BITS_PER_PAGE};
use format::defect::DefectCode;
use format::ids::AnodeNo;
use format::page::{PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageKind};

use crate::context::{Check, CheckError};
use crate::map::MapContent;
use crate::tree::FilesetCheck;

pub(crate) fn run(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
    let tree = &*tree;
    let Some(anode) = &tree.anode_map else { return Ok(()) };
    let is_table_whole = !check.is_incomplete;
    let mut seen = BTreeSet::new();
    let content = MapContent::Pages(PageKind::AnodeMap);
    let walked = check.walk(anode, content, &mut |check, &(index, _), page| {
        seen.insert(index);
        if is_table_whole {
            map_page(check, tree, index, page);
        }
    });
    check.compare_counts(anode, content, &walked);
    if !is_table_whole || !walked.is_whole {
        return Ok(());
    }
    let missing: BTreeSet<u64> = used_anodes(tree, 0..u64::MAX)
        .map(|number| number / u64::from(BITS_PER_PAGE))
        .filter(|index| !seen.contains(index))
        .collect();
    for index in missing {
        let what = format!("page {index} of the anode map is missing");
        check.defect(DefectCode::AM001, tree.subject(ANODE_MAP_ANODE.0), None, what);
    }
    Ok(())
}

/// Iterates over the numbers in use, reserved ones included.
fn used_anodes(tree: &FilesetCheck, range: std::ops::Range<u64>) -> impl Iterator<Item = u64> {
    let (start, end) = (range.start, range.end);
    let reserved =
        (start..end.min(FIRST_FILE_ANODE.0).max(start)).filter(|&n| n < FIRST_FILE_ANODE.0);
    let first = start.max(FIRST_FILE_ANODE.0);
    let files = tree.facts.iter_from(first).take_while(move |&(number, _)| number < end);
    reserved.chain(files.filter(|(_, facts)| facts.kind.is_some()).map(|(number, _)| number))
}

fn map_page(check: &mut Check<'_>, tree: &FilesetCheck, index: u64, page: &PageBytes) {
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
