//! Compares the totals of the pool, in the root of the group table, with the sums.

use format::defect::{DefectCode, Subject};
use format::group::{
    TOTAL_ANODES_USED_OFFSET, TOTAL_FRAGMENTS_RESERVED_OFFSET, TOTAL_FRAGMENTS_USED_OFFSET,
    TOTAL_GROUPS_USED_OFFSET, TOTAL_RESERVATIONS_OFFSET,
};
use format::ids::{AnodeNo, FilesetId};
use format::page::{PageKind, PageOwner, read_u64};

use crate::context::{Check, CheckError};
use crate::convert::to_u64;
use crate::reader::PageRequest;

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    if check.is_incomplete {
        return Ok(());
    }
    let fragments_used = check.report.totals.fragments;
    let groups = check.space.groups.values();
    let groups_used = to_u64(groups.filter(|space| space.is_initialised).count());
    let wanted = PageRequest {
        place: check.reader.geometry.group_table_root_place(),
        kind: PageKind::GroupTableRoot,
        owner: Some(PageOwner::default()),
    };
    // The pass `groups` has verified this page.
    let Ok(root) = check.reader.read_page(&wanted) else { return Ok(()) };
    let pairs = [
        ("fragments in use", TOTAL_FRAGMENTS_USED_OFFSET, fragments_used),
        ("fragments reserved", TOTAL_FRAGMENTS_RESERVED_OFFSET, check.space.fragments_reserved),
        ("groups in use", TOTAL_GROUPS_USED_OFFSET, groups_used),
        ("bytes reserved by filesets", TOTAL_RESERVATIONS_OFFSET, check.space.reservations_bytes),
        ("anodes in use", TOTAL_ANODES_USED_OFFSET, check.report.totals.anodes),
    ];
    for (what, offset, counted) in pairs {
        let stated = read_u64(root.as_slice(), offset);
        if stated != counted {
            let what = format!("the pool says {stated} {what}, has {counted}");
            check.defect(DefectCode::AG007, POOL, Some(wanted.place), what);
        }
    }
    Ok(())
}
