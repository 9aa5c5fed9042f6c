//! Pages held against their LSN pages: whether the page that was read is the one that went home.
//!
//! A page verifies itself, and so does an older version of it, which a device that dropped a write
//! leaves behind. Whoever brings a page into memory compares its LSN with the one that is listed
//! for it (`format::lsn_page`).
//!
//! # Invariants
//!
//! - LC1: A page is compared while nobody can have taken a newer version of it home: no page was
//!   evicted from its shard since it was read, and it is not in memory.
//! - LC2: An LSN page that is found to be older than a page it lists, or that can't be used, is
//!   *distrusted*: nothing is compared with it until a checkpoint has made it anew, for what it
//!   lists of other pages may be as old.
//!
//! Not here: listing LSNs (`journal::lsn_pages`); which of several copies is right (`newest.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::defect::DefectCode;
use format::ids::{Epoch, Place};
use format::lsn_page::{LsnEntry, Verdict, compare};
use format::page::{PageError, PageHeader, PageKind, page_lsn};
use runtime::planted::{self, Planted};

use super::{Buffer, Cache, corrupt, page_of};
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use storage::device::AlignedBuffer;

/// What is known of LSN pages beyond their content.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// LSN pages that are to be made anew (LC2).
    distrusted: Mutex<BTreeSet<Place>>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    lost_writes: AtomicU64,
    distrusted: AtomicU64,
}

/// What comparing pages with their LSN pages has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LsnCounts {
    /// Reads of a page whose last write the device had lost.
    pub lost_writes: u64,
    /// LSN pages that were lost or old, and are made anew.
    pub lsn_pages_remade: u64,
}

/// The LSN page of a page, and the page's entry there.
pub(super) struct Listed {
    entry: LsnEntry,
    /// `None`: it is distrusted.
    page: Option<Arc<Buffer>>,
}

impl Listed {
    /// Whether what it says of the page is believed.
    pub(super) fn is_trusted(&self) -> bool {
        self.page.is_some()
    }
}

impl Cache {
    /// Returns the LSN page of the page at `place`, read if it is not in memory; `None` for a page
    /// whose LSN is not kept. Called with no shard locked.
    pub(super) fn listed(&self, place: Place) -> Option<Listed> {
        let entry = self.volume.geometry().lsn_entry(place)?;
        Some(Listed { entry, page: self.lsn_page(&entry) })
    }

    /// Returns an LSN page; `None` if it is distrusted.
    pub(crate) fn lsn_page(&self, entry: &LsnEntry) -> Option<Arc<Buffer>> {
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

    /// LC1: returns an error if `bytes`, read from `place`, are not what went home last. The caller
    /// holds the lock of the page's shard.
    pub(super) fn compare_lsn(
        &self,
        place: Place,
        bytes: &AlignedBuffer,
        listed: Option<&Listed>,
    ) -> FsResult<()> {
        let Some(Listed { entry, page: Some(page) }) = listed else { return Ok(()) };
        if self.is_distrusted(entry.page) || planted::is(Planted::LsnNotCompared) {
            return Ok(());
        }
        let found = page_lsn(page_of(bytes));
        let verdict = compare(entry, page_of(&page.bytes()), found);
        match verdict {
            Verdict::Current => Ok(()),
            Verdict::LsnPageStale if self.is_above_log(found) => {
                let what = format!("its LSN {found} is above the end of the log");
                Err(corrupt(DefectCode::PG009.found(what).at(place)))
            }
            Verdict::LsnPageStale => {
                let what = "the LSN page is older than a page that it lists";
                self.distrust(entry.page, &corrupt(DefectCode::AG011.found(what)));
                Ok(())
            }
            Verdict::Stale { listed } => {
                self.trust.counts.lost_writes.fetch_add(1, Ordering::Relaxed);
                Err(corrupt(PageError::LostWrite { place, found, listed }))
            }
        }
    }

    /// LC1: whether `bytes` are what went home last, as far as can be told: for a page that nobody
    /// asked for. The caller holds the lock of its shard.
    pub(super) fn is_current(&self, bytes: &AlignedBuffer, listed: Option<&Listed>) -> bool {
        let Some(Listed { entry, page }) = listed else { return true };
        let Some(page) = page else { return false };
        let found = page_lsn(page_of(bytes));
        compare(entry, page_of(&page.bytes()), found) == Verdict::Current
    }

    /// Whether an LSN page says which page of its place is right, as far as is known.
    pub(super) fn is_told(&self, listed: Option<&Listed>) -> bool {
        let Some(Listed { entry, page: Some(page) }) = listed else { return false };
        entry.listed(page_of(&page.bytes())).is_some() && !self.is_distrusted(entry.page)
    }

    /// Whether a newer page than `bytes` is listed, by an LSN page that is believed.
    pub(super) fn is_older_than_listed(&self, bytes: &AlignedBuffer, listed: &Listed) -> bool {
        let Listed { entry, page: Some(page) } = listed else { return false };
        let verdict = compare(entry, page_of(&page.bytes()), page_lsn(page_of(bytes)));
        matches!(verdict, Verdict::Stale { .. }) && !self.is_distrusted(entry.page)
    }

    /// Whether the LSN of `bytes` is listed, and not merely that no other is.
    pub(super) fn is_listed(&self, bytes: &AlignedBuffer, listed: &Listed) -> bool {
        let Some(page) = &listed.page else { return false };
        let (page, found) = (page.bytes(), page_lsn(page_of(bytes)));
        listed.entry.listed(page_of(&page)).is_some()
            && compare(&listed.entry, page_of(&page), found) == Verdict::Current
    }

    /// Whether `bytes`, a copy of the page in use at `place` that is not newer in memory, can be of
    /// this life of its segment, which began in epoch `incarnation`. What is in use and home was
    /// listed when it went there: a page that moved, or was made in a change that is older than the
    /// segment, has its birth from before. An LSN page that was made anew (LC2) lists it no more.
    pub(crate) fn is_of_this_life(
        &self,
        place: Place,
        bytes: &AlignedBuffer,
        incarnation: Epoch,
    ) -> bool {
        let page = page_of(bytes);
        let Ok(header) = PageHeader::decode(page, self.pool_id, place) else { return false };
        // In a segment for pages there is none.
        if header.kind == PageKind::Summary {
            return false;
        }
        let Some(listed) = self.listed(place).filter(Listed::is_trusted) else { return true };
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
                "an LSN page was lost: it is made anew, and until then lost writes of the pages \
                 that it listed are not told"
            );
        }
    }

    /// An LSN page has been made anew.
    pub(crate) fn trust_lsn_page(&self, lsn_page: Place) {
        self.trust.distrusted.lock().remove(&lsn_page);
    }

    /// Returns what comparing pages with their LSN pages has found.
    pub(crate) fn lsn_counts(&self) -> LsnCounts {
        LsnCounts {
            lost_writes: self.trust.counts.lost_writes.load(Ordering::Relaxed),
            lsn_pages_remade: self.trust.counts.distrusted.load(Ordering::Relaxed),
        }
    }
}
