//! A fileset on its way to another pool: what its entry says of that, and who may use it meanwhile
//! (decision 0078).
//!
//! # Invariants
//!
//! - FM1: Nobody but the move uses a fileset that leaves or arrives: no front has it when it says
//!   so, none gets it, and no name leads to it.
//! - FM2: That a fileset leaves is durable before the last stream of it begins.
//! - FM3: One transaction of the pool that it goes to says that it has arrived, and shows it. From
//!   then on it is there, and nowhere else.
//! - FM4: One that has arrived says so until the pool that it came from has nothing of it any more.
//!
//! # Crashes
//!
//! Without FM2's entry the fileset is where it was. With it, the other pool is asked: what has
//! arrived there is durable before it is told ([`Core::is_arrived`]).
//!
//! Not here: the order of the steps (`pool/moving.rs`), what arrives (`receive`).

use std::sync::atomic::Ordering;

use format::fileset::{FilesetState, MoveToken, Moving, NamePart, ROOT_SLOT, joined};
use format::ids::PoolId;
use format::quota::QuotaState;

use super::diff::Pinned;
use super::filesets::{check_childless, check_live, check_settled};
use super::{Core, Fileset};
use crate::error::{FsError, FsResult};
use crate::fileset::table::{Index, Node, on_its_way};
use crate::journal::Reservation;

/// What clones that a move takes are called begins so.
pub(crate) const MOVE_CLONES: &str = "move-";

/// What a pool has of a fileset of some name, as a move sees it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    pub(crate) moving: Option<Moving>,
    pub(crate) uuid: [u8; 16],
    pub(crate) is_read_only: bool,
    pub(crate) quota_bytes: u64,
    /// Its clones, the oldest first.
    pub(crate) clones: Vec<NamePart>,
}

/// What has come of a stream, and no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Partial {
    pub(crate) moving: Option<Moving>,
    /// What names the node that comes.
    pub(crate) origin: [u8; 16],
    pub(crate) at: (u64, u64),
}

impl Core {
    /// Returns the fileset of this name, on its way or not.
    pub(crate) fn find_moving(&self, path: &[NamePart]) -> FsResult<Option<Found>> {
        let index = self.filesets.table.lock(&self.store)?;
        let Some(node) = index.find(path) else { return Ok(None) };
        let mut clones: Vec<_> = index.clones_of(node.slot).collect();
        clones.sort_by_key(|clone| clone.id);
        Ok(Some(Found {
            slot: node.slot,
            moving: node.moving,
            uuid: node.uuid,
            is_read_only: node.is_read_only,
            quota_bytes: node.quota_bytes,
            clones: clones.into_iter().map(|clone| clone.name.clone()).collect(),
        }))
    }

    /// Returns what has come of a stream to the fileset of this name.
    pub(crate) fn find_partial(&self, path: &[NamePart]) -> FsResult<Option<Partial>> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_it = |node: &&Node| node.is_receiving() && index.path_of(node.slot) == joined(path);
        let Some(slot) = index.nodes().find(is_it).map(|node| node.slot) else { return Ok(None) };
        let entry = index.read_entry(&self.store, slot)?;
        let FilesetState::Receiving(at) = entry.state else { return Ok(None) };
        let at = (at.container, at.end);
        Ok(Some(Partial { moving: entry.moving, origin: entry.origin, at }))
    }

    /// Whether the fileset of this move has arrived, durably. Fails where nobody can say.
    pub(crate) fn is_arrived(&self, token: MoveToken) -> FsResult<bool> {
        // What is in memory and not durable may be gone tomorrow.
        self.store.journal.commit_all()?;
        let index = self.filesets.table.lock(&self.store)?;
        let is_it =
            |moving: Moving| matches!(moving, Moving::Arrived { .. }) && moving.token() == token;
        Ok(index.nodes().any(|node| node.moving.is_some_and(is_it)))
    }

    /// Refuses what can't move to another pool, in words.
    pub(crate) fn check_movable(&self, slot: u32) -> FsResult<()> {
        let index = self.filesets.table.lock(&self.store)?;
        let refused = |by: String| Err(FsError::FilesetInUse { name: index.path_of(slot), by });
        if slot == ROOT_SLOT {
            return refused("it is the first of the pool, which always has one".to_owned());
        }
        let is_other = |clone: &&Node| !clone.name.as_str().starts_with(MOVE_CLONES);
        let others: Vec<_> = index.clones_of(slot).filter(is_other).collect();
        if !others.is_empty() {
            let names: Vec<_> = others.iter().map(|clone| index.path_of(clone.slot)).collect();
            return refused(format!(
                "it has clones, and a move takes none along: {}: send them (`holdfast send`), and \
                 delete them first",
                names.join(", ")
            ));
        }
        if index.children(slot).next().is_some() {
            return check_childless(&index, slot);
        }
        let entry = index.read_entry(&self.store, slot)?;
        check_settled(&index, slot)?;
        if entry.reservation_bytes > 0 {
            return refused("it has a reservation: set reservation=none first".to_owned());
        }
        drop(index);
        let fileset = self.open_fileset(slot)?;
        let name = || self.filesets.table.lock(&self.store).map(|index| index.path_of(slot));
        if fileset.anodes.quotas.state() != QuotaState::Off {
            let by = "it counts what users have, and a move does not take that along: `holdfast \
                      quota off` first";
            return Err(FsError::FilesetInUse { name: name()?, by: by.to_owned() });
        }
        if self.is_main(fileset) || fileset.is_held() {
            return Err(in_use(name()?));
        }
        Ok(())
    }

    /// FM1, FM2: the fileset in `slot` leaves for the pool `to`; that is durable when this returns.
    pub(crate) fn leave(&self, slot: u32, token: MoveToken, to: PoolId) -> FsResult<()> {
        self.check_movable(slot)?;
        let fileset = self.open_fileset(slot)?;
        // Whoever holds it says so first, and then looks whether it is closed.
        fileset.is_closed.store(true, Ordering::SeqCst);
        let is_free = !fileset.is_held();
        let left = if is_free {
            self.change_moving(fileset, None, Some(Moving::Leaving { token, to: to.0 }))
        } else {
            Err(in_use(self.filesets.table.lock(&self.store)?.path_of(slot)))
        };
        // Where the log has failed nobody knows what is durable: then it stays closed.
        if left.is_err() && self.store.journal.check_alive().is_ok() {
            fileset.is_closed.store(false, Ordering::SeqCst);
        }
        left
    }

    /// The fileset in `slot` does not leave: the other pool has none of this move, and is asked no
    /// more. It is in use again when this returns.
    pub(crate) fn stay(&self, slot: u32) -> FsResult<()> {
        let fileset = self.open_fileset(slot)?;
        let leaving = fileset.anodes.lock().entry().moving;
        self.change_moving(fileset, leaving, None)?;
        fileset.is_closed.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// FM4: the pool that it came from knows that this fileset has arrived.
    pub(crate) fn settle_arrival(&self, slot: u32) -> FsResult<()> {
        let fileset = self.open_fileset(slot)?;
        let arrived = fileset.anodes.lock().entry().moving;
        self.change_moving(fileset, arrived, None)
    }

    fn change_moving(
        &self,
        fileset: &Fileset,
        from: Option<Moving>,
        to: Option<Moving>,
    ) -> FsResult<()> {
        self.check_writable()?;
        let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        check_live(&index, fileset.anodes.slot)?;
        fileset.check_current()?;
        // Somebody may have made one below it, or a clone.
        if to.is_some_and(Moving::is_closed) && index.children(fileset.anodes.slot).next().is_some()
        {
            check_childless(&index, fileset.anodes.slot)?;
        }
        let mut guard = fileset.anodes.lock();
        if guard.entry().moving != from {
            return Err(on_its_way(index.path_of(fileset.anodes.slot)));
        }
        let entry = guard.change_entry(&mut change, |entry| entry.moving = to)?;
        let applied = change.end();
        guard.settle(applied.lsn);
        index.note(&entry);
        drop(index);
        self.store.journal.commit(applied.class)
    }

    /// Takes a clone of the fileset in `slot`, which may be leaving.
    pub(crate) fn clone_moving(
        &self,
        slot: u32,
        name: &NamePart,
        random: [u8; 16],
    ) -> FsResult<()> {
        self.create_clones(&[slot], name, &mut || random).map(drop)
    }

    /// FM1: refuses a clone of a fileset that leaves, but to the move.
    pub(super) fn check_clonable(
        &self,
        index: &Index,
        fileset: &Fileset,
        name: &NamePart,
    ) -> FsResult<()> {
        let is_closed = fileset.is_closed.load(Ordering::SeqCst);
        if is_closed && !name.as_str().starts_with(MOVE_CLONES) {
            return Err(on_its_way(index.path_of(fileset.anodes.slot)));
        }
        self.check_family_room(index, fileset.anodes.family)
    }

    /// As [`Core::pin_clone`], of a fileset that may be on its way.
    pub(crate) fn pin_moving(&self, of: u32, clone: &NamePart) -> FsResult<Pinned<'_>> {
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = clone_in(&index, of, clone)?;
        self.pin_slot(&mut index, slot)
    }

    /// Deletes a clone of a fileset that may be on its way; returns its slot.
    pub(crate) fn delete_clone_moving(&self, of: u32, clone: &NamePart) -> FsResult<u32> {
        self.delete_clone_at(&|index| clone_in(index, of, clone))
    }

    /// Deletes a fileset that is on its way; returns its slot.
    pub(crate) fn delete_moving(&self, slot: u32) -> FsResult<u32> {
        let name = self.filesets.table.lock(&self.store)?.path_of(slot);
        self.delete_slot(slot, name)
    }
}

fn clone_in(index: &Index, of: u32, clone: &NamePart) -> FsResult<u32> {
    let no_clone =
        || FsError::NoFileset { name: format!("{}@{}", index.path_of(of), clone.as_str()) };
    index.clone_of(of, clone).map(|node| node.slot).ok_or_else(no_clone)
}

fn in_use(name: String) -> FsError {
    let by = "it is mounted or exported, and a move in use is not there yet: unmount it, and \
              remove its exports first";
    FsError::FilesetInUse { name, by: by.to_owned() }
}
