//! Which copy of a page of metadata is believed, where there are several.
//!
//! A member that answers writes and stores nothing has older copies that verify. It may have lost a
//! page and the LSN page that lists it, so no copy is judged by what its own member has elsewhere.
//!
//! # Invariants
//!
//! - CY1: Labels decide first: members that have missed writes are not asked. Of the copies of the
//!   others that verify as the page of a place, and whose LSN is not above the end of the log, the
//!   one with the highest LSN is right. A copy above that end is damage.
//! - CY2: A repair writes only the right copy, and only if its LSN page does not list a newer one:
//!   where all copies are older than what went home last, nothing is written.
//! - CY3: All copies of a page are read where no LSN page says which one is right: of LSN pages, of
//!   pages that are not listed, and of those whose LSN page is distrusted (LC2).
//! - CY4: Copies with one LSN that verify are the same page, so their bytes are not compared. The
//!   LSN of a page is the position of the chunk that has its commit, and a checkpoint completes
//!   that chunk, so what is committed later has a higher LSN (LP3, K1). No position is used twice:
//!   the log goes on two laps behind the end of what a recovery has read. A recovery gives a page
//!   the checksum that its commit has in the log. It lists LSNs with the position of that end, and
//!   recovering the same log again lists the same. The pages of creation have a lower LSN than the
//!   first chunk.
//!
//! Not here: listing LSNs (`journal::lsn_pages`); comparing with them (`lsn.rs`).

use std::sync::atomic::Ordering;

use format::ids::{Lsn, Place};
use format::page::{PAGE_BYTES, PageBytes, page_lsn};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose};
use storage::volume::{Healed, Volume};

use super::{Cache, lsn, page_of};

/// The right copy of a page (CY1).
pub(crate) struct NewestCopy {
    pub(crate) bytes: AlignedBuffer,
    /// Whether every other copy was read and is the same page.
    pub(crate) is_everywhere: bool,
}

impl NewestCopy {
    pub(crate) fn lsn(&self) -> Lsn {
        page_lsn(page_of(&self.bytes))
    }
}

/// Returns the right copy of the page at `place` (CY1), of those that `is_page` accepts; `end` is
/// the end of the log. `None`: no copy is that page, or there is only one device.
pub(crate) fn newest_copy(
    volume: &Volume,
    place: Place,
    end: Lsn,
    is_page: &dyn Fn(&PageBytes) -> bool,
) -> Option<NewestCopy> {
    let read = |copy| volume.read_copy(copy, Purpose::Home, place, PAGE_BYTES);
    let (mut newest, mut others) = (None::<NewestCopy>, 0_u32);
    for copy in (0..).map_while(read) {
        let is_right = |bytes: &AlignedBuffer| {
            let page = page_of(bytes);
            is_page(page) && (page_lsn(page) <= end || planted::is(Planted::LsnAboveEndTaken))
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
                if found.lsn() > known.lsn() && !planted::is(Planted::FirstCopyTaken) {
                    *known = found;
                }
            }
        }
    }
    newest.map(|newest| NewestCopy { is_everywhere: others == 0, ..newest })
}

impl Cache {
    /// The log is written up to `end`: no page that is home has a higher LSN.
    pub(crate) fn log_ends_at(&self, end: Lsn) {
        self.log_end.fetch_max(end.0, Ordering::Relaxed);
    }

    /// Whether a page of LSN `found` cannot have gone home: the log does not reach that far (CY1).
    pub(super) fn is_above_log(&self, found: Lsn) -> bool {
        found.0 > self.log_end.load(Ordering::Relaxed)
    }

    /// Returns the right copy of the page at `place`, which becomes what all members have; `None`:
    /// there is none, or it is older than what went home last (CY2).
    pub(super) fn right_copy(
        &self,
        place: Place,
        listed: Option<&lsn::Listed>,
    ) -> Option<AlignedBuffer> {
        let newest = self.newest_of(place)?;
        if listed.is_some_and(|listed| self.is_older_than_listed(&newest.bytes, listed)) {
            return None;
        }
        if !newest.is_everywhere {
            // What can't be written again was read all the same.
            let _ = self.heal_to(place, newest.lsn(), listed);
        }
        Some(newest.bytes)
    }

    fn newest_of(&self, place: Place) -> Option<NewestCopy> {
        let end = Lsn(self.log_end.load(Ordering::Relaxed));
        let is_page = |bytes: &PageBytes| self.verify(place, bytes).is_ok();
        newest_copy(&self.volume, place, end, &is_page)
    }

    /// Returns the index of the right one of several copies of the page at `place` (CY1), and waits
    /// for nothing; `None`: none of them is that page.
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

    /// Writes the page at `place` again where a member does not have the right copy; `None`: no
    /// copy is a page of that place.
    pub(super) fn mend_once(&self, place: Place) -> Option<Result<Healed, DeviceError>> {
        let newest = self.newest_of(place)?;
        let listed = self.listed(place);
        Some(self.heal_to(place, newest.lsn(), listed.as_ref()))
    }

    /// Writes the page at `place` again to members whose copy is older than `least` or does not
    /// verify.
    fn heal_to(
        &self,
        place: Place,
        least: Lsn,
        listed: Option<&lsn::Listed>,
    ) -> Result<Healed, DeviceError> {
        let is_right = |bytes: &[u8]| {
            let Some(page) = bytes.first_chunk::<PAGE_BYTES>() else { return false };
            let (found, copy) = (page_lsn(page), AlignedBuffer::copy_of(page));
            let is_old = found < least
                || listed.is_some_and(|listed| self.is_older_than_listed(&copy, listed));
            (!is_old || planted::is(Planted::OlderCopyLeft))
                && !self.is_above_log(found)
                && self.verify(place, page).is_ok()
        };
        self.volume.heal(Purpose::Home, place, PAGE_BYTES, &is_right)
    }
}
