//! Verifies pages changed by the log that no pointer leads to. A mount verifies each page that it
//! replays, so damage in one of them makes the mount fail although the page is unused.

use std::collections::BTreeSet;

use format::defect::{Defect, DefectCode, Subject};
use format::ids::{AnodeNo, FilesetId, Place};
use format::page::PageHeader;

use crate::context::{Check, CheckError};

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

/// Verifies every page that the replay changed, except those already in findings.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
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
