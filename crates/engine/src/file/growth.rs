//! Growth of the table of filesets, ahead of its use.

use crate::alloc::Urgency;
use crate::error::FsResult;
use crate::file::Core;
use crate::journal::LogCredits;

impl Core {
    /// Adds several adjacent pages to a full table. Single pages would be scattered among those of
    /// the filesets, and slow listings down. If there is no room for several, the creation of a
    /// fileset adds one page.
    pub(crate) fn grow_table(&self) -> FsResult<()> {
        if self.filesets.table.lock(&self.store)?.pages_to_grow() == 0 {
            return Ok(());
        }
        let mut change = self.store.begin_pool(LogCredits::LARGE)?;
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
