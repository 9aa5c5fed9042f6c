//! Listing the LSNs of the pages that go home, in their LSN pages.
//!
//! A checkpoint closes all classes, then logs the LSNs of its dirty pages in transactions of their
//! own, under the same hold of the manager's lock, and completes the chunk. So the LSN of an LSN
//! page is above all that it lists from this checkpoint (LP1), whatever commits later is above
//! that (LP3), and the LSN pages go home with the pages that they list (LP2).
//!
//! # Crashes
//!
//! The log is forced up to behind these transactions before the first page goes home (K1). So
//! either no page of the checkpoint is home, or a replay lists its LSNs again. A replay gives pages
//! LSNs that no LSN page lists: it lists them itself ([`Recovered`]), before the log is given up,
//! with the position behind the log as the LSN of the LSN pages. They go through the double-write
//! area, so that a crash in the middle of that tears none.
//!
//! After such a crash an LSN page may hold what an earlier recovery of the same log has listed, so
//! that the checksums in the log don't fit it. It is recognised by its LSN. An LSN page that does
//! not verify otherwise begins anew: it lists what this recovery knows.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use format::geometry::Geometry;
use format::ids::{Lsn, Place, PoolId};
use format::lsn_page::{LsnEntry, empty};
use format::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, page_lsn, stamp,
};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose};
use storage::volume::Volume;

use super::{Epoch, Journal, Reservation, State, Tx};
use crate::buffer::{Buffer, newest_copy, page_of, page_of_mut};
use crate::sync::MutexGuard;

/// LSN pages in one transaction: a fraction of what a record may hold.
const PAGES_PER_LISTING: usize = 64;

/// The LSN pages that a checkpoint needs, in memory; `None`: to be made anew.
type LsnPages = BTreeMap<Place, Option<Arc<Buffer>>>;

impl Journal {
    /// Closes all classes and lists the LSNs of all dirty pages. Returns with the manager's lock
    /// held.
    pub(super) fn close_and_list(&self) -> MutexGuard<'_, State> {
        let mut known = LsnPages::new();
        loop {
            let mut state = self.state.lock();
            let missing = self.missing(&state, &known);
            if missing.is_empty() {
                self.close_all(&mut state);
                if !planted::is(Planted::LsnsNotListed) {
                    self.list(&mut state, &known);
                }
                return state;
            }
            drop(state);
            // Read with no lock held. Each turn adds at least one of the pages that may be dirty.
            for entry in missing {
                known.insert(entry.page, self.cache.lsn_page(&entry));
            }
        }
    }

    /// Returns an entry of each LSN page that is needed and not known.
    fn missing(&self, state: &State, known: &LsnPages) -> Vec<LsnEntry> {
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

    /// Logs the LSNs of all dirty pages, which no open class has changed.
    fn list(&self, state: &mut State, known: &LsnPages) {
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
            let mut tx = Tx::new(epoch, Reservation::NONE, memory);
            for (place, listing) in listings {
                let page = known.get(place).and_then(Option::as_ref);
                self.list_in(&mut tx, page, listing);
            }
            tx.memory.compare();
            self.end_in(state, tx);
            let is_new = |place: &&Place| known.get(place).is_some_and(Option::is_none);
            let remade = listings.iter().map(|(place, _)| place).filter(is_new);
            remade.for_each(|place| self.cache.trust_lsn_page(*place));
        }
        self.close_all(state);
    }

    /// Lists LSNs in one LSN page, which is made anew if it is not in memory.
    fn list_in(&self, tx: &mut Tx, page: Option<&Arc<Buffer>>, listing: &[(LsnEntry, Lsn)]) {
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

/// The LSN pages of a pool whose log was replayed.
pub(super) struct Recovered<'a> {
    pub(super) volume: &'a Volume,
    pub(super) pool_id: PoolId,
    /// Where the log ends: the LSN of what is listed now.
    pub(super) end: Lsn,
}

impl Recovered<'_> {
    /// Returns the LSN pages of `pages`, in which their LSNs are listed; `pages` hold what became
    /// of LSN pages that are in the log.
    pub(super) fn list(
        &self,
        pages: &BTreeMap<Place, AlignedBuffer>,
    ) -> Result<BTreeMap<Place, AlignedBuffer>, DeviceError> {
        let mut lsn_pages: BTreeMap<Place, AlignedBuffer> = BTreeMap::new();
        for (place, page) in pages {
            let Some(entry) = self.geometry().lsn_entry(*place) else { continue };
            let lsn_page = match lsn_pages.entry(entry.page) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.lsn_page(&entry, pages.get(&entry.page))?),
            };
            if !planted::is(Planted::RecoveredLsnsNotListed) {
                entry.list(page_of_mut(lsn_page), 0, page_lsn(page_of(page)));
            }
        }
        for page in lsn_pages.values_mut() {
            stamp(page_of_mut(page), self.end);
        }
        Ok(lsn_pages)
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    /// Returns an LSN page as an earlier recovery of this log has left it, or as this one has
    /// `replayed` it, or as it is at home; an empty one if none of these verifies. Nothing is
    /// written: all copies become what is returned.
    fn lsn_page(
        &self,
        entry: &LsnEntry,
        replayed: Option<&AlignedBuffer>,
    ) -> Result<AlignedBuffer, DeviceError> {
        let is_page = |bytes: &PageBytes| self.header(entry, bytes).is_some();
        let copies = newest_copy(self.volume, entry.page, self.end, &is_page);
        let copies = copies.filter(|_| !planted::is(Planted::RecoveryTakesFirstLsnPage));
        let home = match copies {
            Some(newest) => newest.bytes,
            None => match self.volume.read_page(Purpose::Home, entry.page) {
                Err(_) if !planted::is(Planted::UnreadStopsOpen) => {
                    AlignedBuffer::zeroed(PAGE_BYTES)
                }
                home => home?,
            },
        };
        let at_home = self.header(entry, page_of(&home));
        if at_home.is_some_and(|lsn| lsn == self.end || replayed.is_none()) {
            return Ok(home);
        }
        if let Some(replayed) = replayed
            && self.header(entry, page_of(replayed)).is_some()
        {
            return Ok(AlignedBuffer::clone(replayed));
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        empty(page_of_mut(&mut page), self.pool_id, entry);
        Ok(page)
    }

    /// Returns the LSN of an LSN page that verifies.
    fn header(&self, entry: &LsnEntry, bytes: &PageBytes) -> Option<Lsn> {
        let header = PageHeader::decode(bytes, self.pool_id, entry.page).ok()?;
        header.expect(PageKind::LsnPage, entry.owner()).ok()?;
        Some(header.lsn)
    }
}
