//! The table of filesets grows ahead of those that are made.

use super::Core;
use crate::alloc::Urgency;
use crate::error::FsResult;
use crate::journal::Reservation;

impl Core {
    /// Makes the table of filesets larger if it is full, by several pages at once: pages that come
    /// one by one lie among those of the filesets, and a list of many reads each of them. Where
    /// there is no room for several, whoever takes a slot adds one.
    pub(super) fn grow_table(&self) -> FsResult<()> {
        if self.filesets.table.lock(&self.store)?.pages_to_grow() == 0 {
            return Ok(());
        }
        let mut change = self.store.begin_pool(Reservation::LARGE)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let pages = index.pages_to_grow();
        let fragments = pages * u64::from(self.store.geometry().page_fragments());
        let has_room = self.store.alloc.check_room(fragments, Urgency::User, 0).is_ok();
        if pages > 0 && has_room {
            let grown = index.grow(&self.store, &mut change, pages)?;
            change.end();
            index.note_grown(grown);
        }
        Ok(())
    }
}
