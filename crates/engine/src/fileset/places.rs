//! Where some anodes are, read at once for who looks at them a moment later.

use std::sync::Arc;

use format::anode::{Anode, page_and_slot};
use format::ids::{AnodeNo, Place};
use format::page::PageKind;

use super::{MountedFileset, decode_slot};
use crate::buffer::page_of;
use crate::container::content_owner;
use crate::error::FsResult;
use crate::store::Store;

/// Where some anodes were a moment ago.
pub(crate) struct AnodePlaces {
    table: Arc<Anode>,
    /// Pages of the table by their number, which rises.
    pages: Vec<(u64, Place)>,
}

impl AnodePlaces {
    /// Returns the pages, each once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> {
        self.pages.iter().map(|(_, place)| *place)
    }

    fn place_of(&self, page: u64) -> Option<Place> {
        let index = self.pages.binary_search_by_key(&page, |(number, _)| *number).ok()?;
        self.pages.get(index).map(|(_, place)| *place)
    }
}

impl MountedFileset {
    /// Returns where the anodes `numbers` are.
    pub(crate) fn places_of(
        &self,
        store: &Store,
        numbers: impl Iterator<Item = AnodeNo>,
    ) -> AnodePlaces {
        let table = Arc::clone(&self.table.read());
        let mut pages: Vec<u64> = numbers.map(|number| page_and_slot(number).0).collect();
        pages.sort_unstable();
        pages.dedup();
        let pages = store.places_of(&table, pages);
        AnodePlaces { table, pages }
    }

    /// As [`MountedFileset::read_anode`], with one look if the anode is where it was.
    pub(crate) fn read_anode_near(
        &self,
        store: &Store,
        places: &AnodePlaces,
        number: AnodeNo,
    ) -> FsResult<Option<Anode>> {
        let (page, slot) = page_and_slot(number);
        let owner = content_owner(&places.table, page);
        let at = places.place_of(page);
        let bytes = at.and_then(|at| store.cache.bytes(at, PageKind::Anode, owner).ok());
        // A page that went meanwhile is a tombstone, or another's, or a clone's alone: the table
        // knows better.
        match bytes.map(|bytes| decode_slot(page_of(&bytes), self.family, number, slot)) {
            Some(Ok(anode)) if self.is_still(&places.table) => Ok(anode),
            _ => self.read_anode(store, number),
        }
    }
}
