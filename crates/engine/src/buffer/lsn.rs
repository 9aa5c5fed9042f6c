//! Comparison of pages with their LSN pages, to detect lost writes.
//!
//! An older version of a page, left behind by a device that dropped a write, verifies too. So each
//! page that is loaded has its LSN compared with the one listed for it (`format::lsn_page`).
//!
//! # Invariants
//!
//! - LC1: A page is compared with its LSN page only while no newer version can have been written
//!   back: the page is not cached, and its shard evicted nothing since the read began.
//! - LC2: An LSN page that is unusable, or older than a page that it lists, is *distrusted*: its
//!   other entries may be old too. It is not used until a checkpoint has rebuilt it.
//!
//! Not here: listing LSNs (`journal::lsn_pages`); choosing among several copies (`newest.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::defect::DefectCode;
use format::ids::{Epoch, Place};
use format::lsn_page::{LsnComparison, LsnEntry, compare};
use format::page::{PageError, PageHeader, PageKind, page_lsn};
use runtime::planted;

use super::{Cache, PageBuffer, corrupt, page_of};
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use storage::device::AlignedBuffer;

#[derive(Debug, Default)]
pub(super) struct LsnPageTrust {
    distrusted: Mutex<BTreeSet<Place>>,
    counts: LsnCounters,
}

#[derive(Debug, Default)]
struct LsnCounters {
    lost_writes: AtomicU64,
    distrusted: AtomicU64,
}

/// Findings of the comparison of pages with their LSN pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LsnCounts {
    /// Reads of a page whose last write the device had lost.
    pub lost_writes: u64,
    /// LSN pages that were lost or old, to be rebuilt.
    pub lsn_pages_rebuilt: u64,
}

pub(super) struct ListedLsn {
    entry: LsnEntry,
    /// `None` if the LSN page is distrusted (LC2).
    page: Option<Arc<PageBuffer>>,
}

impl ListedLsn {
    pub(super) fn is_trusted(&self) -> bool {
        self.page.is_some()
    }
}

impl Cache {
    /// Returns the page's LSN entry; `None` if no LSN page covers `place`. Called with no shard
    /// locked.
    pub(super) fn listed(&self, place: Place) -> Option<ListedLsn> {
        let entry = self.volume.geometry().lsn_entry(place)?;
        Some(ListedLsn { entry, page: self.lsn_page(&entry) })
    }

    pub(crate) fn lsn_page(&self, entry: &LsnEntry) -> Option<Arc<PageBuffer>> {
        if self.is_distrusted(entry.page) {
            return None;
        }
        match self.page(entry.page, PageKind::LsnPage, entry.owner()) {
            Ok(page) => Some(page),
            Err(error) => {
                self.distrust(entry.page, &error);
                None
            }
        }
    }

    /// Fails if `bytes` are not the version last written back (LC1). Called with the shard locked.
    pub(super) fn compare_lsn(
        &self,
        place: Place,
        bytes: &AlignedBuffer,
        listed: Option<&ListedLsn>,
    ) -> FsResult<()> {
        let Some(ListedLsn { entry, page: Some(page) }) = listed else { return Ok(()) };
        if self.is_distrusted(entry.page) || planted!(LsnNotCompared) {
            return Ok(());
        }
        let found = page_lsn(page_of(bytes));
        let verdict = compare(entry, page_of(&page.bytes()), found);
        match verdict {
            LsnComparison::Current => Ok(()),
            LsnComparison::LsnPageStale if self.is_above_log(found) => {
                let what = format!("its LSN {found} is above the end of the log");
                Err(corrupt(DefectCode::PG009.found(what).at(place)))
            }
            LsnComparison::LsnPageStale => {
                let what = "the LSN page is older than a page that it lists";
                self.distrust(entry.page, &corrupt(DefectCode::AG011.found(what)));
                Ok(())
            }
            LsnComparison::Stale { listed } => {
                self.trust.counts.lost_writes.fetch_add(1, Ordering::Relaxed);
                Err(corrupt(PageError::LostWrite { place, found, listed }))
            }
        }
    }

    /// [`Cache::compare_lsn`] for readahead: in doubt returns false, without an error. Called with
    /// the shard locked.
    pub(super) fn is_current(&self, bytes: &AlignedBuffer, listed: Option<&ListedLsn>) -> bool {
        let Some(ListedLsn { entry, page }) = listed else { return true };
        let Some(page) = page else { return false };
        let found = page_lsn(page_of(bytes));
        compare(entry, page_of(&page.bytes()), found) == LsnComparison::Current
    }

    pub(super) fn is_told(&self, listed: Option<&ListedLsn>) -> bool {
        let Some(ListedLsn { entry, page: Some(page) }) = listed else { return false };
        entry.listed(page_of(&page.bytes())).is_some() && !self.is_distrusted(entry.page)
    }

    pub(super) fn is_older_than_listed(&self, bytes: &AlignedBuffer, listed: &ListedLsn) -> bool {
        let ListedLsn { entry, page: Some(page) } = listed else { return false };
        let verdict = compare(entry, page_of(&page.bytes()), page_lsn(page_of(bytes)));
        matches!(verdict, LsnComparison::Stale { .. }) && !self.is_distrusted(entry.page)
    }

    /// Returns whether the LSN of `bytes` is the listed one. False without an entry.
    pub(super) fn is_listed(&self, bytes: &AlignedBuffer, listed: &ListedLsn) -> bool {
        let Some(page) = &listed.page else { return false };
        let (page, found) = (page.bytes(), page_lsn(page_of(bytes)));
        listed.entry.listed(page_of(&page)).is_some()
            && compare(&listed.entry, page_of(&page), found) == LsnComparison::Current
    }

    /// Returns whether `bytes` can belong to the segment's current incarnation. A birth before that
    /// incarnation is legal for moved pages and for changes that began earlier, but only if the LSN
    /// page lists this LSN, or lists none because it was rebuilt (LC2).
    pub(crate) fn is_of_this_life(
        &self,
        place: Place,
        bytes: &AlignedBuffer,
        incarnation: Epoch,
    ) -> bool {
        let page = page_of(bytes);
        let Ok(header) = PageHeader::decode(page, self.pool_id, place) else { return false };
        if header.kind == PageKind::Summary {
            return false;
        }
        let Some(listed) = self.listed(place).filter(ListedLsn::is_trusted) else { return true };
        let is_listed_at_all = self.is_told(Some(&listed));
        header.birth >= incarnation || !is_listed_at_all || self.is_listed(bytes, &listed)
    }

    fn is_distrusted(&self, lsn_page: Place) -> bool {
        self.trust.distrusted.lock().contains(&lsn_page)
    }

    fn distrust(&self, lsn_page: Place, error: &FsError) {
        if self.trust.distrusted.lock().insert(lsn_page) {
            self.trust.counts.distrusted.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                %lsn_page,
                %error,
                "an LSN page was lost: it is rebuilt, and until then lost writes of the pages \
                 that it listed are not told"
            );
        }
    }

    pub(crate) fn trust_lsn_page(&self, lsn_page: Place) {
        self.trust.distrusted.lock().remove(&lsn_page);
    }

    pub(crate) fn lsn_counts(&self) -> LsnCounts {
        LsnCounts {
            lost_writes: self.trust.counts.lost_writes.load(Ordering::Relaxed),
            lsn_pages_rebuilt: self.trust.counts.distrusted.load(Ordering::Relaxed),
        }
    }
}
