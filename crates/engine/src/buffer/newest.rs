//! Choice among several copies of a metadata page.
//!
//! A member that drops writes has old copies, which verify too. It may have lost both a page and
//! its LSN page, so no copy is judged by other content of its own member.
//!
//! # Invariants
//!
//! - CY1: Members with stale ranges in their labels are not read. Among the other copies that
//!   verify as the page of the place, with an LSN not above the end of the log, the one with the
//!   highest LSN is right. A copy above that end is damage.
//! - CY2: A repair writes only the right copy, and only if its LSN page does not list a newer one.
//!   Where all copies are older than the version last written back, nothing is written.
//! - CY3: All copies of a page are read where no LSN page identifies the right one: for LSN pages,
//!   for unlisted pages, and for pages with a distrusted LSN page (LC2).
//! - CY4: Copies with one LSN that verify are the same page, so their bytes are not compared.
//!   Reasons: a page's LSN is the position of the chunk with its commit, and a checkpoint completes
//!   that chunk, so later commits have higher LSNs (LP3, K1). No position is used twice, because
//!   after a recovery the log goes on two laps further. A recovery gives a page the checksum of its
//!   commit in the log, and lists LSNs with the end of the log as LSN; a repeated recovery lists
//!   the same. Pages of creation have a lower LSN than the first chunk.
//!
//! Not here: listing LSNs (`journal::lsn_pages`); comparing with them (`lsn.rs`).

use std::sync::atomic::Ordering;

use format::ids::{Lsn, Place};
use format::page::{PAGE_BYTES, PageBytes, page_lsn};
use runtime::planted;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose};
use storage::volume::{RepairOutcome, Volume};

use super::{Cache, lsn, page_of};

/// The right copy of a page (CY1).
pub(crate) struct NewestCopy {
    pub(crate) bytes: AlignedBuffer,
    pub(crate) is_everywhere: bool,
}

impl NewestCopy {
    pub(crate) fn lsn(&self) -> Lsn {
        page_lsn(page_of(&self.bytes))
    }
}

/// Returns the right copy (CY1) that `is_page` accepts, with the log ending at `end`. `None` if
/// there is none, or the pool has one device.
pub(crate) fn newest_copy(
    volume: &Volume,
    place: Place,
    end: Lsn,
    is_page: &dyn Fn(&PageBytes) -> bool,
) -> Option<NewestCopy> {
    let read = |copy| volume.read_copy(copy, IoPurpose::Home, place, PAGE_BYTES);
    let (mut newest, mut others) = (None::<NewestCopy>, 0_u32);
    for copy in (0..).map_while(read) {
        let is_right = |bytes: &AlignedBuffer| {
            let page = page_of(bytes);
            is_page(page) && (page_lsn(page) <= end || planted!(LsnAboveEndTaken))
        };
        let Some(bytes) = copy.ok().filter(is_right) else {
            others += 1;
            continue;
        };
        let found = NewestCopy { bytes, is_everywhere: true };
        match &mut newest {
            None => newest = Some(found),
            Some(known) if known.lsn() == found.lsn() => {}
            Some(known) => {
                others += 1;
                if found.lsn() > known.lsn() && !planted!(FirstCopyTaken) {
                    *known = found;
                }
            }
        }
    }
    newest.map(|newest| NewestCopy { is_everywhere: others == 0, ..newest })
}

impl Cache {
    pub(crate) fn log_ends_at(&self, end: Lsn) {
        self.log_end.fetch_max(end.0, Ordering::Relaxed);
    }

    pub(super) fn is_above_log(&self, found: Lsn) -> bool {
        found.0 > self.log_end.load(Ordering::Relaxed)
    }

    /// Returns the right copy, rewriting the others. `None` if it is older than the version last
    /// written back (CY2).
    pub(super) fn right_copy(
        &self,
        place: Place,
        listed: Option<&lsn::ListedLsn>,
    ) -> Option<AlignedBuffer> {
        let newest = self.newest_of(place)?;
        if listed.is_some_and(|listed| self.is_older_than_listed(&newest.bytes, listed)) {
            return None;
        }
        if !newest.is_everywhere {
            let _ = self.heal_to(place, newest.lsn(), listed);
        }
        Some(newest.bytes)
    }

    fn newest_of(&self, place: Place) -> Option<NewestCopy> {
        let end = Lsn(self.log_end.load(Ordering::Relaxed));
        let is_page = |bytes: &PageBytes| self.verify(place, bytes).is_ok();
        newest_copy(&self.volume, place, end, &is_page)
    }

    /// [`newest_copy`] among `copies`, without I/O.
    pub(crate) fn newest_among(&self, place: Place, copies: &[&[u8]]) -> Option<usize> {
        let mut newest: Option<(Lsn, usize)> = None;
        for (at, copy) in copies.iter().enumerate() {
            let Some(page) = copy.first_chunk::<PAGE_BYTES>() else { continue };
            let lsn = page_lsn(page);
            let is_page = self.verify(place, page).is_ok() && !self.is_above_log(lsn);
            if is_page && newest.is_none_or(|(known, _)| lsn > known) {
                newest = Some((lsn, at));
            }
        }
        newest.map(|(_, at)| at)
    }

    pub(super) fn mend_once(&self, place: Place) -> Option<Result<RepairOutcome, DeviceError>> {
        let newest = self.newest_of(place)?;
        let listed = self.listed(place);
        Some(self.heal_to(place, newest.lsn(), listed.as_ref()))
    }

    /// Rewrites the page on members whose copy is older than `least` or does not verify.
    fn heal_to(
        &self,
        place: Place,
        least: Lsn,
        listed: Option<&lsn::ListedLsn>,
    ) -> Result<RepairOutcome, DeviceError> {
        let is_right = |bytes: &[u8]| {
            let Some(page) = bytes.first_chunk::<PAGE_BYTES>() else { return false };
            let (found, copy) = (page_lsn(page), AlignedBuffer::copy_of(page));
            let is_old = found < least
                || listed.is_some_and(|listed| self.is_older_than_listed(&copy, listed));
            (!is_old || planted!(OlderCopyLeft))
                && !self.is_above_log(found)
                && self.verify(place, page).is_ok()
        };
        self.volume.heal(IoPurpose::Home, place, PAGE_BYTES, &is_right)
    }
}
