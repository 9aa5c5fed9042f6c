//! LSN pages of the groups: reports those that are unusable, or older than a page that they list.
//!
//! The pass over the groups reads the LSN pages named by the descriptors. LSN pages older than a
//! page that they list are reported after all pages in containers were read: see `reader/lsn.rs`.

use std::sync::Arc;

use format::defect::{DefectCode, Subject};
use format::group::is_lsn_page_used;
use format::ids::{AnodeNo, FilesetId, Place};
use format::page::{PageBytes, PageKind, PageOwner};

use crate::context::{Check, CheckError};
use crate::reader::PageRequest;

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

pub(crate) fn of_table(check: &mut Check<'_>) {
    let geometry = check.reader.geometry.clone();
    let indexes = 0..u32::try_from(geometry.group_table_lsn_pages()).unwrap_or(u32::MAX);
    let entry = |index| (geometry.group_table_lsn_place(index), u64::from(index));
    verify(check, indexes.map(entry).collect());
}

pub(crate) fn of_group(check: &mut Check<'_>, group: u32, descriptor: &PageBytes) {
    let geometry = check.reader.geometry.clone();
    let used = (0..geometry.lsn_pages()).filter(|&index| is_lsn_page_used(descriptor, index));
    let entry =
        |index| (geometry.lsn_page_place(group, index), u64::from(group) << 16 | u64::from(index));
    verify(check, used.map(entry).collect());
}

pub(crate) fn run(check: &mut Check<'_>) -> Result<(), CheckError> {
    let stale = std::mem::take(&mut *check.reader.lsn_pages.stale());
    for place in stale {
        let what = "the LSN page is older than a page that it lists".to_owned();
        check.defect(DefectCode::AG011, POOL, Some(place), what);
    }
    Ok(())
}

/// Caches usable LSN pages and reports the others, except those that the next mount rebuilds.
fn verify(check: &mut Check<'_>, lsn_pages: Vec<(Place, u64)>) {
    let wanted: Vec<PageRequest> = lsn_pages
        .into_iter()
        .map(|(place, index)| {
            let owner = PageOwner { index, ..PageOwner::default() };
            PageRequest { place, kind: PageKind::LsnPage, owner: Some(owner) }
        })
        .collect();
    let pages = check.reader.read_pages(&wanted);
    for (wanted, page) in wanted.iter().zip(pages) {
        match page {
            Ok(page) => {
                check.report.totals.pages += 1;
                check.reader.lsn_pages.keep(wanted.place, Some(Arc::from(page)));
            }
            Err(_) if check.reader.is_replayed(wanted.place) => {}
            Err(error) => {
                check.defect(DefectCode::AG011, POOL, Some(wanted.place), error.to_string());
            }
        }
    }
}
