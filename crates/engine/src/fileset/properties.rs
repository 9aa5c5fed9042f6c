//! Changes of a fileset's properties and name.

use format::fileset::{Fileset as Entry, FilesetName, MoveState, MoveToken, NamePart, joined};

use crate::error::{FsError, FsResult};
use crate::file::Core;
use crate::fileset::lifecycle::{check_live, check_new_name};
use crate::fileset_table::{i64_of, limits_of};
use crate::journal::LogCredits;

/// Properties to change; `None` leaves one unchanged.
#[derive(Clone, Debug, Default)]
pub struct FilesetChange {
    /// Default block size, as a binary logarithm.
    pub block_shift: Option<u8>,
    /// Whether the fileset is read-only.
    pub is_read_only: Option<bool>,
    /// Limit of referenced bytes; 0 for none.
    pub quota_bytes: Option<u64>,
    /// Reserved bytes, including those referenced.
    pub reservation_bytes: Option<u64>,
    /// New name.
    pub name: Option<FilesetName>,
}

impl Core {
    pub(crate) fn change_fileset(&self, path: &[NamePart], new: &FilesetChange) -> FsResult<()> {
        self.check_writable()?;
        self.check_block_shift(new.block_shift)?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.change_slot(slot, &joined(path), new, None)
    }

    /// Sets the reservation of a fileset that is arriving by the move `token`.
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

    /// Changes the fileset in `slot`, even while it is arriving by the move `token`.
    fn change_slot(
        &self,
        slot: u32,
        shown: &str,
        new: &FilesetChange,
        token: Option<MoveToken>,
    ) -> FsResult<()> {
        let fileset = self.open_fileset(slot)?;
        let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        check_live(&index, slot)?;
        let arriving = token.map(|token| MoveState::Arriving { token });
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

    /// Refuses a reservation beyond the quota or the room. Of the room, `kept` fragments are
    /// reserved already for this fileset, and `taken` are needed for something else.
    pub(crate) fn check_reservation(
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

    pub(crate) fn check_block_shift(&self, shift: Option<u8>) -> FsResult<()> {
        let is_refused = |shift| !self.store.geometry().can_have_blocks(shift);
        if shift.is_some_and(is_refused) { Err(FsError::Invalid) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use format::ids::PoolId;

    use super::*;
    use crate::transfer::leave::tests::{TOKEN, part, pool_with_one};

    /// Goal: properties do not change once a move has begun, since the target pool would miss that.
    #[test]
    fn a_fileset_that_has_begun_to_leave_is_not_changed() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let name = Some("b".parse().expect("it is a name"));
        let renamed = FilesetChange { name, ..FilesetChange::default() };
        let limited = FilesetChange { quota_bytes: Some(1 << 20), ..FilesetChange::default() };
        core.transfers().leave(slot, (TOKEN, PoolId([9; 16])), 0).expect("nobody uses it");
        for change in [&renamed, &limited] {
            let refused = core.change_slot(slot, "a", change, None);
            assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
        }
        let refused = core.snapshotter().promote_slot(slot, &[part("a")]);
        assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{refused:?}");
        let told = refused.expect_err("it leaves").to_string();
        assert!(!told.contains("no clone"), "it is the leaving that refuses: {told}");
        core.transfers().stay(slot).expect("nothing fails");
        core.change_slot(slot, "a", &limited, None).expect("it is in use");
        let told = core
            .snapshotter()
            .promote_slot(slot, &[part("a")])
            .expect_err("it is no clone")
            .to_string();
        assert!(told.contains("no clone"), "{told}");
        core.change_slot(slot, "a", &renamed, None).expect("it is in use");
    }
}
