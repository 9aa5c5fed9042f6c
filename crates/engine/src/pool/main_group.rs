//! Another disk group of an open pool becomes the main one: the one with the fixed regions, the
//! pool's root, the journal unless that has devices of its own, and all new metadata.
//!
//! # Crashes
//!
//! First the pool's root page is logged where it will be, and a checkpoint takes it home there: the
//! page is kept for it, so nothing else is ever there. Nobody changes the root meanwhile, for that
//! needs the lock of the table of filesets. Then the fixed regions move while nobody writes the
//! log or a page home (`volume/main_group.rs`). A cut leaves one main disk group or the other, and
//! both have the same.
//!
//! What the one that was it holds stays there until it is removed: then its blocks and pages move
//! as those of any disk group that leaves (`jobs::evacuation`).

use format::disk_group::GroupRange;
use storage::volume::{AddGroupError, MainError};

use super::Pool;
use super::disk_groups::DiskGroupError;

impl Pool {
    /// Makes disk group `number`, which has room for the fixed regions, the main one. New metadata
    /// goes there when this returns; who waits for a commit waits meanwhile.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn make_main(&self, number: u8) -> Result<(), DiskGroupError> {
        self.check_members_change()?;
        if self.volume().geometry().main == number {
            return Ok(());
        }
        // So that little is copied.
        self.core.sync_all()?;
        self.checkpoint()?;
        let store = &self.core.store;
        // LOCK: above all others here. Who has it alone changes the pool's root.
        let _table = self.core.filesets.table.lock(store)?;
        let is_it = |range: &&GroupRange| range.disk_group == number;
        let first = self.volume().geometry().added.iter().find(is_it).map(|range| range.first);
        let first = first.ok_or(MainError::None { number })?;
        if !self.volume().geometry().has_root_page(first) {
            return Err(MainError::NoRoom { number }.into());
        }
        store.alloc.copy_root(first)?;
        store.journal.checkpoint()?;
        let shift = self.volume().geometry().fragment_shift;
        let moved = store.journal.while_at_rest(|active| {
            let mut superblock = self.superblock.lock();
            let volume = self.volume();
            let changing = volume.changing();
            let label = volume.members().and_then(|members| members.label());
            let label = label.ok_or(MainError::None { number })?;
            let coming = changing.plan_main(&label, number)?;
            // Another disk group may have come in the place of that which was looked at.
            if coming.geometry.main_first != first {
                return Err(MainError::None { number }.into());
            }
            store.alloc.become_main(&coming.geometry, |missing| {
                if missing > 0 {
                    let missing_bytes = missing << shift;
                    return Err(DiskGroupError::NoRoomForMetadata { number, missing_bytes });
                }
                let made = changing.make_main(&mut superblock, number, active);
                Ok(made.inspect_err(|error| {
                    if let MainError::Group(AddGroupError::Device(cause)) = error {
                        self.stop_writing(cause);
                    }
                })?)
            })
        });
        moved?
    }
}
