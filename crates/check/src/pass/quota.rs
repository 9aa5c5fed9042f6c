//! The quotas of a fileset: what its records say of users, groups and projects against its anodes.

use std::collections::{BTreeMap, BTreeSet};

use format::anode::Anode;
use format::defect::DefectCode;
use format::page::{PageBytes, PageKind};
use format::quota::{Owned, QuotaHead, QuotaKind, QuotaRecord, QuotaState, RECORDS_PER_PAGE};

use crate::map::Content;
use crate::tree::Tree;
use crate::{Check, Stop};

/// Bytes of memory for what one user, group or project has.
const USAGE_BYTES: u64 = 96;

/// Fragments and inodes of a user, a group or a project.
type Usages = BTreeMap<(QuotaKind, u32), (u64, u64)>;

/// What the passes learn of the quotas of a fileset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Quotas {
    /// The container, where quotas were ever switched on.
    container: Option<Anode>,
    head: Option<QuotaHead>,
    /// What the records say.
    stated: Usages,
    /// What the anodes say that are counted.
    counted: Usages,
    /// Whether records could not be read.
    is_incomplete: bool,
    memory_bytes: u64,
}

/// Reads the container: before the anodes, which come behind it in the table.
pub(crate) fn records(check: &mut Check<'_>, tree: &mut Tree, anode: &Anode) {
    let mut quotas = Quotas { container: Some(anode.clone()), ..Quotas::default() };
    let content = Content::Pages(PageKind::Quota);
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
    // Anodes that were looked at before it are the fileset's own, and the root directory.
    let counted = std::mem::take(&mut tree.quotas.counted);
    quotas.counted = counted;
    quotas.memory_bytes += tree.quotas.memory_bytes;
    tree.quotas = quotas;
}

fn page_of_records(
    check: &mut Check<'_>,
    tree: &Tree,
    quotas: &mut Quotas,
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

fn tree_is_over(check: &mut Check<'_>, quotas: &mut Quotas) {
    if check.take_memory(USAGE_BYTES).is_err() {
        quotas.is_incomplete = true;
    }
}

/// Adds up what an anode takes, where it is one that is counted.
pub(crate) fn count(check: &mut Check<'_>, tree: &mut Tree, anode: &Anode) {
    let number = anode.number.0;
    // The root directory comes before the container.
    let is_root = anode.number == format::anode::ROOT_ANODE;
    let quotas = &mut tree.quotas;
    if quotas.container.is_none() && !is_root {
        return;
    }
    let below = quotas.head.map_or(u64::MAX, |head| head.state.counted_below());
    let Some(owned) = Owned::of(anode).filter(|_| number < below || is_root) else { return };
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

/// Compares what the records say with what the anodes say.
pub(crate) fn compare(check: &mut Check<'_>, tree: &mut Tree) -> Result<(), Stop> {
    let quotas = std::mem::take(&mut tree.quotas);
    check.memory_bytes = check.memory_bytes.saturating_sub(quotas.memory_bytes);
    let Some(head) = quotas.head.filter(|_| !quotas.is_incomplete) else { return Ok(()) };
    // Nobody counts, or nothing is counted yet.
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
