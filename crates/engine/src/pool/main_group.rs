//! Makes another disk group of an open pool the main one: home of the fixed regions, the pool's
//! root, the journal unless that has its own devices, and all new metadata.
//!
//! # Crashes
//!
//! First the pool's root page is logged at its future place, and a checkpoint writes it back there.
//! That place is reserved for the root, so it holds nothing else. The lock of the fileset table
//! keeps the root unchanged during the change. Then the fixed regions move while log writes and
//! write-back are stopped (`volume/main_group.rs`). A crash leaves either the old or the new main
//! disk group, with identical contents.
//!
//! Other contents of the old main disk group stay there until its removal. Then its blocks and
//! pages move like those of any disk group (`jobs::evacuation`).

use super::PoolDevices;
use format::disk_group::GroupRange;
use storage::volume::{AddGroupError, MainGroupError};

use super::disk_groups::DiskGroupError;

impl PoolDevices<'_> {
    /// Makes disk group `number` the main one, if it has room for the fixed regions. On return new
    /// metadata goes there. Commits block during the change.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn make_main(&self, number: u8) -> Result<(), DiskGroupError> {
        self.check_members_change()?;
        if self.volume().geometry().main == number {
            return Ok(());
        }
        // Sync and checkpoint first, so that little log is copied.
        self.core.writeback().sync_all()?;
        self.checkpoint()?;
        let store = &self.core.store;
        // LOCK: before all others here. Only its holder changes the pool's root.
        let _table = self.core.filesets.table.lock(store)?;
        let is_it = |range: &&GroupRange| range.disk_group == number;
        let first = self.volume().geometry().added.iter().find(is_it).map(|range| range.first);
        let first = first.ok_or(MainGroupError::None { number })?;
        if !self.volume().geometry().group_layout().has_root_page(first) {
            return Err(MainGroupError::NoRoom { number }.into());
        }
        store.alloc.group_space().copy_root(first)?;
        store.journal.checkpoint()?;
        let shift = self.volume().geometry().fragment_shift;
        let moved = store.journal.while_at_rest(|active| {
            let mut superblock = self.superblock.lock();
            let volume = self.volume();
            let changing = volume.membership().changing();
            let label = volume.members().and_then(|members| members.label());
            let label = label.ok_or(MainGroupError::None { number })?;
            let coming = changing.plan_main(&label, number)?;
            // Since `first` was read, another disk group may have taken the number.
            if coming.geometry.main_first != first {
                return Err(MainGroupError::None { number }.into());
            }
            store.alloc.group_space().become_main(&coming.geometry, |missing| {
                if missing > 0 {
                    let missing_bytes = missing << shift;
                    return Err(DiskGroupError::NoRoomForMetadata { number, missing_bytes });
                }
                let made = changing.make_main(&mut superblock, number, active);
                Ok(made.inspect_err(|error| {
                    if let MainGroupError::Group(AddGroupError::Device(cause)) = error {
                        self.stop_writing(cause);
                    }
                })?)
            })
        });
        moved?
    }
}
