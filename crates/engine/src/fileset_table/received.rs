//! Support for a fileset that receives a stream: anode numbers from the stream, and generations
//! above the received ones.

use format::ids::AnodeNo;

use super::{FilesetGuard, MountedFileset};
use crate::error::FsResult;
use crate::store::{Change, Store};

impl MountedFileset {
    pub(crate) fn generation_base(&self) -> u64 {
        self.generation_base
    }

    /// Whether `number` is a deferred free (F3).
    pub(crate) fn is_pending(&self, number: AnodeNo) -> bool {
        self.state.lock().pending_set.contains(&number.0)
    }
}

impl FilesetGuard<'_> {
    /// Allocates the free anode `number`. The caller writes the anode.
    pub(crate) fn allocate_number(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: AnodeNo,
    ) -> FsResult<()> {
        self.save();
        let map_page = self.ensure_map_page(store, change, number.0)?;
        self.ensure_table_page(store, change, number.0)?;
        self.check_free(store, change, number.0)?;
        self.mark(change, map_page, number.0, true)?;
        let state = &mut *self.state;
        state.entry.anodes_end = state.entry.anodes_end.max(number.0 + 1);
        state.entry.anodes_used += 1;
        change.count_anodes(1);
        self.write_entry(change)
    }
}
