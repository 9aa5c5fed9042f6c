//! Compares the quota records of users, groups and projects with the anodes of a fileset.

use std::collections::BTreeSet;

use format::anode::Anode;
use format::defect::DefectCode;
use format::page::{PageBytes, PageKind};
use format::quota::{QuotaCharge, QuotaHead, QuotaKind, QuotaRecord, QuotaState, RECORDS_PER_PAGE};

use crate::context::{Check, CheckError};
use crate::map::MapContent;
use crate::tree::{FilesetCheck, QuotaComparison};

const USAGE_BYTES: u64 = 96;

/// Reads the container of records. It precedes the anodes of files in the table.
pub(crate) fn records(check: &mut Check<'_>, tree: &mut FilesetCheck, anode: &Anode) {
    let mut quotas =
        QuotaComparison { container: Some(anode.clone()), ..QuotaComparison::default() };
    let content = MapContent::Pages(PageKind::Quota);
    let mut seen = BTreeSet::new();
    let walked = check.walk(anode, content, &mut |check, &(index, _), page| {
        seen.insert(index);
        page_of_records(check, tree, &mut quotas, index, page);
    });
    check.compare_counts(anode, content, &walked);
    quotas.is_incomplete |= !walked.is_whole;
    if walked.is_whole && quotas.head.is_none() && !seen.contains(&0) {
        let what = "the container of quotas has no page 0".to_owned();
        check.defect(DefectCode::FS016, tree.subject(anode.number.0), None, what);
        quotas.is_incomplete = true;
    }
    // Usage of anodes before the container: the fileset's internal ones, and the root directory.
    let counted = std::mem::take(&mut tree.quotas.counted);
    quotas.counted = counted;
    quotas.memory_bytes += tree.quotas.memory_bytes;
    tree.quotas = quotas;
}

fn page_of_records(
    check: &mut Check<'_>,
    tree: &FilesetCheck,
    quotas: &mut QuotaComparison,
    index: u64,
    page: &PageBytes,
) {
    let subject = tree.subject(format::anode::QUOTA_ANODE.0);
    let bad = |check: &mut Check<'_>, what: String| {
        check.defect(DefectCode::FS016, subject, None, what);
    };
    if index == 0 {
        quotas.head = QuotaHead::of(page);
        if quotas.head.is_none() {
            bad(check, "the head of the quotas can't be so".to_owned());
            quotas.is_incomplete = true;
        }
    }
    for slot in 0..RECORDS_PER_PAGE {
        let number = index.saturating_mul(RECORDS_PER_PAGE).saturating_add(slot);
        match QuotaRecord::decode_in(page, slot) {
            Ok(None) => {}
            Ok(Some(record)) => {
                let (id, usage) = ((record.kind, record.id), (record.fragments, record.inodes));
                if quotas.stated.insert(id, usage).is_some() {
                    let (kind, id) = (record.kind.word(), record.id);
                    bad(check, format!("record {number} is of {kind} {id}, as another is"));
                    quotas.is_incomplete = true;
                }
                quotas.memory_bytes += USAGE_BYTES;
                tree_is_over(check, quotas);
            }
            Err(field) => {
                bad(check, format!("record {number}: {field} is out of bounds"));
                quotas.is_incomplete = true;
            }
        }
    }
}

fn tree_is_over(check: &mut Check<'_>, quotas: &mut QuotaComparison) {
    if check.take_memory(USAGE_BYTES).is_err() {
        quotas.is_incomplete = true;
    }
}

/// Adds the usage of an anode, if quotas count it.
pub(crate) fn count(check: &mut Check<'_>, tree: &mut FilesetCheck, anode: &Anode) {
    let number = anode.number.0;
    // Counted in any case, since it precedes the container.
    let is_root = anode.number == format::anode::ROOT_ANODE;
    let quotas = &mut tree.quotas;
    if quotas.container.is_none() && !is_root {
        return;
    }
    let below = quotas.head.map_or(u64::MAX, |head| head.state.counted_below());
    let Some(owned) = QuotaCharge::of(anode).filter(|_| number < below || is_root) else { return };
    for id in QuotaKind::ALL.into_iter().zip(owned.ids) {
        if !quotas.counted.contains_key(&id) {
            quotas.memory_bytes += USAGE_BYTES;
            tree_is_over(check, quotas);
        }
        let (fragments, inodes) = quotas.counted.entry(id).or_default();
        *fragments = fragments.saturating_add(owned.fragments);
        *inodes = inodes.saturating_add(1);
    }
}

pub(crate) fn compare(check: &mut Check<'_>, tree: &mut FilesetCheck) -> Result<(), CheckError> {
    let quotas = std::mem::take(&mut tree.quotas);
    check.memory_bytes = check.memory_bytes.saturating_sub(quotas.memory_bytes);
    let Some(head) = quotas.head.filter(|_| !quotas.is_incomplete) else { return Ok(()) };
    // Quotas are off, or nothing is counted yet.
    if check.is_incomplete || !tree.is_sound(check) || head.state.counted_below() <= 1 {
        return Ok(());
    }
    if matches!(head.state, QuotaState::Off | QuotaState::Clearing(_)) {
        return Ok(());
    }
    let ids: BTreeSet<_> = quotas.stated.keys().chain(quotas.counted.keys()).collect();
    for id in ids {
        let stated = quotas.stated.get(id).copied().unwrap_or_default();
        let counted = quotas.counted.get(id).copied().unwrap_or_default();
        if stated != counted {
            let what = format!(
                "{} {} says {} fragments in {} inodes, has {} in {}",
                id.0.word(),
                id.1,
                stated.0,
                stated.1,
                counted.0,
                counted.1
            );
            check.defect(DefectCode::FS015, tree.subject(0), None, what);
        }
    }
    Ok(())
}
