//! The pages that the log of a pool changes and that no pointer leads to: a mount verifies each
//! page that it replays, so one that is damaged is refused though nobody needs it any more.

use std::collections::BTreeSet;

use format::defect::{Defect, DefectCode, Subject};
use format::ids::{AnodeNo, FilesetId, Place};
use format::page::PageHeader;

use crate::{Check, Stop};

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

/// Verifies every page that the replay changed, but for those that other passes have named.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
    let named: BTreeSet<Place> =
        check.report.findings.iter().filter_map(|finding| finding.defect.place).collect();
    let logged = check.reader.logged.clone();
    for place in logged.difference(&named).copied() {
        let page = match check.reader.read_raw_page(place) {
            Ok(page) => page,
            Err(error) => {
                check.found(Defect::from(error).at(place), POOL);
                continue;
            }
        };
        if let Err(error) = PageHeader::decode(&page, check.reader.pool_id, place) {
            let what = format!("a page that the log changes does not verify: {error}");
            check.defect(DefectCode::JR004, POOL, Some(place), what);
        }
    }
    Ok(())
}
