//! Pages against their LSN pages: whether a page is the one that last went home.
//!
//! A page that a replay has written is compared with nothing: its LSN is listed by the recovery
//! that follows, not by the log. What an LSN page lists that is older than a page, or can't be
//! used, says nothing of the page.
//!
//! The pass over the groups reads the LSN pages that descriptors say are there. Which of them are
//! older than a page that they list is told when all pages in containers were read.
//!
//! # Memory
//!
//! [`LSN_PAGES_KEPT`] pages, 4 MiB.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use format::defect::{DefectCode, Subject};
use format::group::is_lsn_page_used;
use format::ids::{AnodeNo, FilesetId, Place};
use format::lsn_page::{LsnEntry, Verdict, compare};
use format::page::{PageBytes, PageError, PageHeader, PageKind, PageOwner};
use runtime::sync::{Mutex, MutexGuard};

use crate::reader::{PageWanted, Reader};
use crate::{Check, Stop};

const POOL: Subject = Subject { fileset: FilesetId(0), anode: AnodeNo(0) };

/// LSN pages that are kept: those of 3.9 GiB of pages that follow each other.
const LSN_PAGES_KEPT: usize = 1024;

/// An LSN page; `None`: there is none that can be used.
type LsnPage = Option<Arc<PageBytes>>;

/// LSN pages that were read.
#[derive(Debug, Default)]
pub(crate) struct LsnPages {
    kept: Mutex<BTreeMap<Place, LsnPage>>,
    /// Those that are older than a page that they list.
    stale: Mutex<BTreeSet<Place>>,
}

/// Reads the LSN pages of the group table, and tells which can't be used.
pub(crate) fn of_table(check: &mut Check<'_>) {
    let geometry = check.reader.geometry.clone();
    let indexes = 0..u32::try_from(geometry.group_table_lsn_pages()).unwrap_or(u32::MAX);
    let entry = |index| (geometry.group_table_lsn_place(index), u64::from(index));
    verify(check, indexes.map(entry).collect());
}

/// Reads the LSN pages that a descriptor says are there, and tells which can't be used.
pub(crate) fn of_group(check: &mut Check<'_>, group: u32, descriptor: &PageBytes) {
    let geometry = check.reader.geometry.clone();
    let used = (0..geometry.lsn_pages()).filter(|&index| is_lsn_page_used(descriptor, index));
    let entry =
        |index| (geometry.lsn_page_place(group, index), u64::from(group) << 16 | u64::from(index));
    verify(check, used.map(entry).collect());
}

/// Tells which LSN pages are older than a page that they list: once all pages were read.
pub(crate) fn run(check: &mut Check<'_>) -> Result<(), Stop> {
    let stale = std::mem::take(&mut *check.reader.lsn_pages.stale());
    for place in stale {
        let what = "the LSN page is older than a page that it lists".to_owned();
        check.defect(DefectCode::AG011, POOL, Some(place), what);
    }
    Ok(())
}

/// Tells which LSN pages, by place and index, can't be used, and keeps the others. What a replay
/// has written the next mount completes.
fn verify(check: &mut Check<'_>, lsn_pages: Vec<(Place, u64)>) {
    let wanted: Vec<PageWanted> = lsn_pages
        .into_iter()
        .map(|(place, index)| {
            let owner = PageOwner { index, ..PageOwner::default() };
            PageWanted { place, kind: PageKind::LsnPage, owner: Some(owner) }
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

impl LsnPages {
    fn kept(&self) -> MutexGuard<'_, BTreeMap<Place, LsnPage>> {
        self.kept.lock()
    }

    fn keep(&self, place: Place, page: LsnPage) {
        let mut kept = self.kept();
        if kept.len() >= LSN_PAGES_KEPT {
            kept.clear();
        }
        kept.insert(place, page);
    }

    fn stale(&self) -> MutexGuard<'_, BTreeSet<Place>> {
        self.stale.lock()
    }
}

impl Reader {
    /// Returns an error if a page that verifies is not the one that last went home.
    pub(crate) fn compare_lsn(&self, header: &PageHeader) -> Result<(), PageError> {
        let Some(entry) = self.geometry.lsn_entry(header.place) else { return Ok(()) };
        if self.is_replayed(header.place) {
            return Ok(());
        }
        let Some(page) = self.lsn_page(&entry) else { return Ok(()) };
        match compare(&entry, &page, header.lsn) {
            Verdict::Current => Ok(()),
            // Nothing can be home above the end of the log.
            Verdict::LsnPageStale if header.lsn > self.log_end => {
                let listed = entry.listed(&page).unwrap_or(0);
                Err(PageError::LostWrite { place: header.place, found: header.lsn, listed })
            }
            Verdict::LsnPageStale => {
                self.lsn_pages.stale().insert(entry.page);
                Ok(())
            }
            Verdict::Stale { listed } => {
                let (place, found) = (header.place, header.lsn);
                Err(PageError::LostWrite { place, found, listed })
            }
        }
    }

    /// Whether an LSN page says which page of a place is right.
    pub(crate) fn is_told(&self, place: Place) -> bool {
        let Some(entry) = self.geometry.lsn_entry(place) else { return false };
        self.lsn_page(&entry).is_some_and(|page| entry.listed(&page).is_some())
    }

    /// Returns an LSN page, of several copies the newest; `None` if it can't be used.
    pub(crate) fn lsn_page(&self, entry: &LsnEntry) -> LsnPage {
        if let Some(page) = self.lsn_pages.kept().get(&entry.page) {
            return page.clone();
        }
        let is_page = |bytes: &PageBytes| {
            let header = PageHeader::decode(bytes, self.pool_id, entry.page);
            header.is_ok_and(|header| header.expect(PageKind::LsnPage, entry.owner()).is_ok())
        };
        let newest = self.newest_copy(entry.page, &is_page);
        let read = || self.read_raw_page(entry.page).ok().filter(|bytes| is_page(bytes));
        let page: LsnPage = newest.or_else(read).map(Arc::from);
        self.lsn_pages.keep(entry.page, page.clone());
        page
    }
}
