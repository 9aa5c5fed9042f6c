//! Places of the pages of several anodes, looked up together before they are read.

use std::sync::Arc;

use format::anode::{Anode, page_and_slot};
use format::ids::{AnodeNo, Place};
use format::page::PageKind;

use super::{MountedFileset, decode_slot};
use crate::buffer::page_of;
use crate::container::content_owner;
use crate::error::FsResult;
use crate::store::Store;

pub(crate) struct AnodePlaces {
    table: Arc<Anode>,
    pages: Vec<(u64, Place)>,
}

impl AnodePlaces {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Place> {
        self.pages.iter().map(|(_, place)| *place)
    }

    fn place_of(&self, page: u64) -> Option<Place> {
        let index = self.pages.binary_search_by_key(&page, |(number, _)| *number).ok()?;
        self.pages.get(index).map(|(_, place)| *place)
    }
}

impl MountedFileset {
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

    /// Reads an anode from its place in `places`, if that is still valid.
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
        // If the page was moved or freed after the lookup, use the current table.
        match bytes.map(|bytes| decode_slot(page_of(&bytes), self.family, number, slot)) {
            Some(Ok(anode)) if self.is_still(&places.table) => Ok(anode),
            _ => self.read_anode(store, number),
        }
    }
}
