//! The orphan list: unlinked anodes, and files with a truncate in progress (F2).

use std::collections::BTreeSet;

use format::ids::AnodeNo;
use format::page::{PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageKind, read_u64};

use super::{FilesetGuard, MountedFileset, OrphanSlotChange};
use crate::container::{content_owner, no_page};
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};

pub(super) const ORPHANS_PER_PAGE: u64 = 496;
const _: () = assert!(PAGE_BODY_BYTES / 8 == 496);

#[derive(Debug, Default)]
pub(crate) struct OrphanList {
    /// Slot and anode of each orphan.
    pub(crate) orphans: Vec<(u64, AnodeNo)>,
    /// Unreadable pages, and why.
    pub(crate) unread: Vec<(u64, FsError)>,
}

impl MountedFileset {
    pub(super) fn find_free_orphan_slots(&self, store: &Store) {
        let OrphanList { orphans, unread } = self.orphans(store);
        // Slots of an unreadable page count as used.
        let of_unread = unread.iter().flat_map(|(page, error)| {
            let what = "a page of the orphan list cannot be read: the files in it keep their room";
            tracing::error!(%error, page, "{what}");
            page * ORPHANS_PER_PAGE..(page + 1) * ORPHANS_PER_PAGE
        });
        let taken: BTreeSet<u64> = orphans.iter().map(|(slot, _)| *slot).chain(of_unread).collect();
        let mut state = self.state.lock();
        let end = state.orphan_slots_end;
        state.orphan_slots_free = (0..end).filter(|slot| !taken.contains(slot)).collect();
    }

    /// Returns the orphans in readable pages.
    pub(crate) fn orphans(&self, store: &Store) -> OrphanList {
        let anode = self.state.lock().orphan_anode.clone();
        let mut list = OrphanList::default();
        for page in 0..anode.pages {
            let bytes = match store.content(None, &anode, page, PageKind::OrphanList) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(error) => {
                    list.unread.push((page, error));
                    continue;
                }
            };
            for slot in 0..ORPHANS_PER_PAGE {
                let number = read_u64(&bytes[..], orphan_offset(slot));
                if number != 0 {
                    list.orphans.push((page * ORPHANS_PER_PAGE + slot, AnodeNo(number)));
                }
            }
        }
        list
    }
}

impl FilesetGuard<'_> {
    pub(crate) fn add_orphan(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: AnodeNo,
    ) -> FsResult<u32> {
        self.save();
        let slot = match self.state.orphan_slots_free.pop_first() {
            Some(slot) => slot,
            None => self.grow_orphans(store, change)?,
        };
        self.note_slot(OrphanSlotChange::Taken(slot));
        // An anode stores the slot number plus one in 32 bits.
        let narrow = u32::try_from(slot).ok().filter(|slot| *slot < u32::MAX);
        let narrow = narrow.ok_or(FsError::NoSpace)?;
        self.put_orphan(store, change, slot, number.0)?;
        Ok(narrow)
    }

    fn grow_orphans(&mut self, store: &Store, change: &mut Change<'_>) -> FsResult<u64> {
        let page = self.state.orphan_anode.pages;
        let (state, saved) = self.saved();
        saved.orphan_anode.get_or_insert_with(|| state.orphan_anode.clone());
        store.add_content(change, &mut state.orphan_anode, page, PageKind::OrphanList)?;
        let anode = self.state.orphan_anode.clone();
        self.fileset.write_anode(store, change, &anode)?;
        let first = self.state.orphan_slots_end;
        self.state.orphan_slots_end += ORPHANS_PER_PAGE;
        self.state.orphan_slots_free.extend(first + 1..first + ORPHANS_PER_PAGE);
        Ok(first)
    }

    pub(crate) fn remove_orphan(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        slot: u32,
    ) -> FsResult<()> {
        let slot = u64::from(slot);
        self.save();
        self.put_orphan(store, change, slot, 0)?;
        self.state.orphan_slots_free.insert(slot);
        self.note_slot(OrphanSlotChange::Freed(slot));
        Ok(())
    }

    fn put_orphan(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        slot: u64,
        value: u64,
    ) -> FsResult<()> {
        let (page, in_page) = (slot / ORPHANS_PER_PAGE, slot % ORPHANS_PER_PAGE);
        let anode = &self.state.orphan_anode;
        let pointer = store.block(Some(change), anode, page)?;
        let pointer = pointer.ok_or_else(|| no_page(anode, page))?;
        let (owner, offset) = (content_owner(anode, page), orphan_offset(in_page));
        let range = offset..offset + 8;
        let bytes = change.edit_range(pointer.place, PageKind::OrphanList, owner, range)?;
        bytes.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
}

fn orphan_offset(slot_in_page: u64) -> usize {
    PAGE_HEADER_BYTES + index_wide(slot_in_page) * 8
}
