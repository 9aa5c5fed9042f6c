//! What a fileset is like, and its name: changed while it is in use.

use format::fileset::{Fileset as Entry, FilesetName, MoveToken, Moving, NamePart, joined};

use super::Core;
use super::filesets::{check_live, check_new_name};
use crate::error::{FsError, FsResult};
use crate::fileset::{i64_of, limits_of};
use crate::journal::Reservation;

/// What of a fileset is to be changed.
#[derive(Clone, Debug, Default)]
pub struct FilesetChange {
    /// Default block size of new files: binary logarithm.
    pub block_shift: Option<u8>,
    /// Whether nobody may change what is in it.
    pub is_read_only: Option<bool>,
    /// Most bytes that it may reference; 0: no limit.
    pub quota_bytes: Option<u64>,
    /// Bytes that are kept free for it, less what it references.
    pub reservation_bytes: Option<u64>,
    /// Another name.
    pub name: Option<FilesetName>,
}

impl Core {
    /// Changes what a fileset is like, or its name; it is durable when this returns.
    pub(crate) fn change_fileset(&self, path: &[NamePart], new: &FilesetChange) -> FsResult<()> {
        self.check_writable()?;
        self.check_block_shift(new.block_shift)?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.change_slot(slot, &joined(path), new, None)
    }

    /// Keeps so much free for the fileset in `slot`, which is arriving by this move.
    pub(crate) fn reserve_arriving(
        &self,
        slot: u32,
        token: MoveToken,
        reservation_bytes: u64,
    ) -> FsResult<()> {
        self.check_writable()?;
        let shown = self.filesets.table.lock(&self.store)?.path_of(slot);
        let reservation_bytes = Some(reservation_bytes);
        let new = FilesetChange { reservation_bytes, ..FilesetChange::default() };
        self.change_slot(slot, &shown, &new, Some(token))
    }

    /// As [`Core::change_fileset`], of the one in `slot`, which was called `shown` a moment ago,
    /// and may be arriving by this move.
    fn change_slot(
        &self,
        slot: u32,
        shown: &str,
        new: &FilesetChange,
        token: Option<MoveToken>,
    ) -> FsResult<()> {
        let fileset = self.open_fileset(slot)?;
        let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        check_live(&index, slot)?;
        let arriving = token.map(|token| Moving::Arriving { token });
        let moving = index.node(slot).and_then(|node| node.moving);
        if arriving.is_none() || moving != arriving {
            index.check_here(slot)?;
        }
        fileset.check_current()?;
        let above = match &new.name {
            Some(name) => Some(check_new_name(&index, Some(slot), name.parts())?),
            None => None,
        };
        let mut guard = fileset.anodes.lock();
        let reservation_before = guard.entry().reservation_bytes;
        let kept_before = fileset.anodes.usage.counts().kept;
        let entry = guard.change_entry(&mut change, |entry| {
            entry.block_shift = new.block_shift.unwrap_or(entry.block_shift);
            entry.is_read_only = new.is_read_only.unwrap_or(entry.is_read_only);
            entry.quota_bytes = new.quota_bytes.unwrap_or(entry.quota_bytes);
            entry.reservation_bytes = new.reservation_bytes.unwrap_or(entry.reservation_bytes);
            if let Some((above, name)) = above {
                (entry.above, entry.name) = (above, name);
            }
        })?;
        if new.quota_bytes.is_some() || new.reservation_bytes.is_some() {
            self.check_reservation(shown, &entry, (kept_before, 0))?;
        }
        change.count_reservations(i64_of(entry.reservation_bytes) - i64_of(reservation_before));
        let applied = change.end();
        guard.settle(applied.lsn);
        fileset.set_read_only(entry.is_read_only);
        let limits = limits_of(&entry, self.store.geometry().fragment_shift);
        fileset.anodes.usage.set_limits(limits);
        index.note(&entry);
        drop(index);
        self.store.journal.commit(applied.class)
    }

    /// Refuses a reservation for which the pool has no room, or that its quota forbids to use, of a
    /// fileset for which `kept` fragments are kept already, and which takes `taken` besides.
    pub(super) fn check_reservation(
        &self,
        name: &str,
        entry: &Entry,
        (kept, taken): (u64, u64),
    ) -> FsResult<()> {
        let limits = limits_of(entry, self.store.geometry().fragment_shift);
        let rest = limits.reservation.saturating_sub(entry.fragments);
        if limits.quota.is_some_and(|quota| quota < limits.reservation) {
            let by = "its quota is below its reservation: raise the one, or lower the other";
            return Err(FsError::FilesetInUse { name: name.to_owned(), by: by.to_owned() });
        }
        let available = self.store.alloc.counts().available;
        let wanted = rest.saturating_add(taken);
        if wanted > kept.saturating_add(available) { Err(FsError::NoSpace) } else { Ok(()) }
    }

    pub(super) fn check_block_shift(&self, shift: Option<u8>) -> FsResult<()> {
        let is_refused = |shift| !self.store.geometry().can_have_blocks(shift);
        if shift.is_some_and(is_refused) { Err(FsError::Invalid) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use format::ids::PoolId;

    use super::*;
    use crate::vnode::leave::tests::{TOKEN, part, pool_with_one};

    /// Goal: a fileset that begins to leave after its name was looked up gets no other name, nor
    /// clones of others: the pool that it goes to would know nothing of it.
    #[test]
    fn a_fileset_that_has_begun_to_leave_is_not_changed() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let name = Some("b".parse().expect("it is a name"));
        let renamed = FilesetChange { name, ..FilesetChange::default() };
        let limited = FilesetChange { quota_bytes: Some(1 << 20), ..FilesetChange::default() };
        core.leave(slot, (TOKEN, PoolId([9; 16])), 0).expect("nobody uses it");
        for change in [&renamed, &limited] {
            let refused = core.change_slot(slot, "a", change, None);
            assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
        }
        let refused = core.promote_slot(slot, &[part("a")]);
        assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
        let told = refused.expect_err("it leaves").to_string();
        assert!(!told.contains("no fork"), "it is the leaving that refuses: {told}");
        core.stay(slot).expect("nothing fails");
        core.change_slot(slot, "a", &limited, None).expect("it is in use");
        let told = core.promote_slot(slot, &[part("a")]).expect_err("it is no fork").to_string();
        assert!(told.contains("no fork"), "{told}");
        core.change_slot(slot, "a", &renamed, None).expect("it is in use");
    }
}
