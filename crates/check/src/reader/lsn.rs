//! Compares each page's LSN with the one in its LSN page (`format::lsn_page`), to detect lost
//! writes.
//!
//! Pages that the replay changed are exempt: the recovery at the next mount lists their LSNs, not
//! the log. An unusable LSN page proves nothing. Nor does one older than the page, unless the
//! page's LSN is above the end of the log: that is a lost write.
//!
//! # Memory
//!
//! [`LSN_PAGES_KEPT`] pages, 4 MiB.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use format::ids::Place;
use format::lsn_page::{LsnComparison, LsnEntry, compare};
use format::page::{PageBytes, PageError, PageHeader, PageKind};
use runtime::sync::{Mutex, MutexGuard};

use super::PoolReader;

/// LSN pages cached: enough for 3.9 GiB of adjacent pages.
const LSN_PAGES_KEPT: usize = 1024;

/// `None` if unusable.
type LsnPage = Option<Arc<PageBytes>>;

#[derive(Debug, Default)]
pub(crate) struct LsnPageCache {
    kept: Mutex<BTreeMap<Place, LsnPage>>,
    stale: Mutex<BTreeSet<Place>>,
}

impl LsnPageCache {
    fn kept(&self) -> MutexGuard<'_, BTreeMap<Place, LsnPage>> {
        self.kept.lock()
    }

    pub(crate) fn keep(&self, place: Place, page: LsnPage) {
        let mut kept = self.kept();
        if kept.len() >= LSN_PAGES_KEPT {
            kept.clear();
        }
        kept.insert(place, page);
    }

    pub(crate) fn stale(&self) -> MutexGuard<'_, BTreeSet<Place>> {
        self.stale.lock()
    }
}

impl PoolReader {
    /// Fails if the page is not the version last written back.
    pub(crate) fn compare_lsn(&self, header: &PageHeader) -> Result<(), PageError> {
        let Some(entry) = self.geometry.lsn_entry(header.place) else { return Ok(()) };
        if self.is_replayed(header.place) {
            return Ok(());
        }
        let Some(page) = self.lsn_page(&entry) else { return Ok(()) };
        match compare(&entry, &page, header.lsn) {
            LsnComparison::Current => Ok(()),
            LsnComparison::LsnPageStale if header.lsn > self.log_end => {
                let listed = entry.listed(&page).unwrap_or(0);
                Err(PageError::LostWrite { place: header.place, found: header.lsn, listed })
            }
            LsnComparison::LsnPageStale => {
                self.lsn_pages.stale().insert(entry.page);
                Ok(())
            }
            LsnComparison::Stale { listed } => {
                let (place, found) = (header.place, header.lsn);
                Err(PageError::LostWrite { place, found, listed })
            }
        }
    }

    pub(crate) fn is_told(&self, place: Place) -> bool {
        let Some(entry) = self.geometry.lsn_entry(place) else { return false };
        self.lsn_page(&entry).is_some_and(|page| entry.listed(&page).is_some())
    }

    /// Returns the newest copy of an LSN page; `None` if it is unusable.
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
