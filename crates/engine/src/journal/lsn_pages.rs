//! Records the LSNs of written-back pages in LSN pages ("lists" them).
//!
//! A checkpoint closes all classes, then lists the LSNs of its dirty pages in transactions of their
//! own, under the same hold of the manager's lock, and completes the chunk. So the LSN of an LSN
//! page is above all LSNs that it lists from this checkpoint (LP1). Later commits have higher LSNs
//! still (LP3). LSN pages are written back together with the pages that they list (LP2).
//!
//! # Crashes
//!
//! The log is forced up to these transactions before the first page is written back (K1). So either
//! no page of the checkpoint is home, or a replay lists its LSNs again. The replay also restores
//! pages with LSNs that no checkpoint has listed. It lists them itself ([`RecoveredLsns`]) before
//! the log is given up, with the end of the log as the LSN of the LSN pages. It writes these
//! through the double-write area, so that a crash tears none.
//!
//! After a crash during that step an LSN page may hold what the interrupted recovery listed, so its
//! checksum in the log does not fit. Such a page has the end of the log as its LSN. Any other LSN
//! page that does not verify is rebuilt with the LSNs that this recovery found.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use format::geometry::Geometry;
use format::ids::{Lsn, Place, PoolId};
use format::lsn_page::{LsnEntry, empty};
use format::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, page_lsn, stamp,
};
use runtime::unless_planted;
use storage::device::{AlignedBuffer, IoPurpose};
use storage::volume::Volume;

use super::{Epoch, Journal, JournalState, LogCredits, Tx};
use crate::buffer::{PageBuffer, newest_copy, page_of, page_of_mut};
use crate::sync::MutexGuard;

/// LSN pages in one transaction: a fraction of a record's bound.
const PAGES_PER_LISTING: usize = 64;

/// The LSN pages that a checkpoint needs; `None` for one to be rebuilt.
type LsnPages = BTreeMap<Place, Option<Arc<PageBuffer>>>;

impl Journal {
    /// Closes all classes and lists the LSNs of all dirty pages. Returns with the manager's lock
    /// held.
    pub(super) fn close_and_list(&self) -> MutexGuard<'_, JournalState> {
        let mut known = LsnPages::new();
        loop {
            let mut state = self.state.lock();
            let missing = self.missing(&state, &known);
            if missing.is_empty() {
                self.close_all(&mut state);
                unless_planted!(LsnsNotListed, self.list(&mut state, &known));
                return state;
            }
            drop(state);
            // Read with no lock held. Each round adds at least one LSN page, so the loop ends.
            for entry in missing {
                known.insert(entry.page, self.cache.lsn_page(&entry));
            }
        }
    }

    /// Returns one entry for each LSN page that is needed and not in `known`.
    fn missing(&self, state: &JournalState, known: &LsnPages) -> Vec<LsnEntry> {
        let geometry = self.volume.geometry();
        let mut missing: Vec<LsnEntry> = Vec::new();
        for entry in state.dirty.keys().filter_map(|place| geometry.lsn_entry(*place)) {
            let is_last = missing.last().is_some_and(|last| last.page == entry.page);
            if !is_last && !known.contains_key(&entry.page) {
                missing.push(entry);
            }
        }
        missing
    }

    /// Logs the LSNs of all dirty pages. All classes are closed.
    fn list(&self, state: &mut JournalState, known: &LsnPages) {
        let geometry = self.volume.geometry();
        let mut listings: BTreeMap<Place, Vec<(LsnEntry, Lsn)>> = BTreeMap::new();
        for (place, buffer) in &state.dirty {
            if let Some(entry) = geometry.lsn_entry(*place) {
                let lsn = page_lsn(page_of(&buffer.state.lock().bytes));
                listings.entry(entry.page).or_default().push((entry, lsn));
            }
        }
        let listings: Vec<_> = listings.into_iter().collect();
        for listings in listings.chunks(PAGES_PER_LISTING) {
            let epoch = Epoch(state.next_epoch);
            state.next_epoch += 1;
            let memory = state.spare.pop().unwrap_or_default();
            let mut tx = Tx::new(epoch, LogCredits::NONE, memory);
            for (place, listing) in listings {
                let page = known.get(place).and_then(Option::as_ref);
                self.list_in(&mut tx, page, listing);
            }
            tx.memory.compare();
            self.end_in(state, tx);
            let is_new = |place: &&Place| known.get(place).is_some_and(Option::is_none);
            let rebuilt = listings.iter().map(|(place, _)| place).filter(is_new);
            rebuilt.for_each(|place| self.cache.trust_lsn_page(*place));
        }
        self.close_all(state);
    }

    /// Lists LSNs in one LSN page, and rebuilds the page if `page` is `None`.
    fn list_in(&self, tx: &mut Tx, page: Option<&Arc<PageBuffer>>, listing: &[(LsnEntry, Lsn)]) {
        let Some((first, _)) = listing.first() else { return };
        let (bytes, from) = match page {
            Some(page) => {
                let base = (Arc::clone(page), page.bytes());
                (tx.add_edit(base, PAGE_HEADER_BYTES..PAGE_BYTES), PAGE_HEADER_BYTES)
            }
            None => {
                let bytes = tx.new_page(first.page).expect("each LSN page is listed in once");
                empty(bytes, self.cache.pool_id(), first);
                (&mut bytes[..], 0)
            }
        };
        for (entry, lsn) in listing {
            entry.list(bytes, from, *lsn);
        }
    }
}

/// Lists the LSNs of replayed pages in LSN pages.
pub(super) struct RecoveredLsns<'a> {
    pub(super) volume: &'a Volume,
    pub(super) pool_id: PoolId,
    /// End of the log: the LSN of the LSN pages.
    pub(super) end: Lsn,
}

impl RecoveredLsns<'_> {
    /// Returns the LSN pages for `pages`, with their LSNs listed. LSN pages that were replayed are
    /// in `pages`.
    pub(super) fn list(
        &self,
        pages: &BTreeMap<Place, AlignedBuffer>,
    ) -> BTreeMap<Place, AlignedBuffer> {
        let mut lsn_pages: BTreeMap<Place, AlignedBuffer> = BTreeMap::new();
        for (place, page) in pages {
            let Some(entry) = self.geometry().lsn_entry(*place) else { continue };
            let lsn_page = match lsn_pages.entry(entry.page) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.lsn_page(&entry, pages.get(&entry.page))),
            };
            let (lsn_page, lsn) = (page_of_mut(lsn_page), page_lsn(page_of(page)));
            unless_planted!(RecoveredLsnsNotListed, entry.list(lsn_page, 0, lsn));
        }
        for page in lsn_pages.values_mut() {
            stamp(page_of_mut(page), self.end);
        }
        lsn_pages
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    /// Returns the content of an LSN page to begin with: what an interrupted recovery of this log
    /// left, else `replayed`, else the page on disk; an empty page if that does not verify.
    fn lsn_page(&self, entry: &LsnEntry, replayed: Option<&AlignedBuffer>) -> AlignedBuffer {
        let is_page = |bytes: &PageBytes| self.header(entry, bytes).is_some();
        let copies = newest_copy(self.volume, entry.page, self.end, &is_page);
        let home = match copies {
            Some(newest) => newest.bytes,
            None => {
                let read = self.volume.read_page(IoPurpose::Home, entry.page);
                read.unwrap_or_else(|_| AlignedBuffer::zeroed(PAGE_BYTES))
            }
        };
        let at_home = self.header(entry, page_of(&home));
        if at_home.is_some_and(|lsn| lsn == self.end || replayed.is_none()) {
            return home;
        }
        if let Some(replayed) = replayed
            && self.header(entry, page_of(replayed)).is_some()
        {
            return AlignedBuffer::clone(replayed);
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        empty(page_of_mut(&mut page), self.pool_id, entry);
        page
    }

    fn header(&self, entry: &LsnEntry, bytes: &PageBytes) -> Option<Lsn> {
        let header = PageHeader::decode(bytes, self.pool_id, entry.page).ok()?;
        header.expect(PageKind::LsnPage, entry.owner()).ok()?;
        Some(header.lsn)
    }
}
