//! Moves of a fileset to another pool: the state in its entry, and the exclusion of other users
//! (decision 0078).
//!
//! # Invariants
//!
//! - FM1: Only the move uses a fileset that leaves or arrives. Fronts wait (decision 0082) or are
//!   refused, and no name resolves to the fileset.
//! - FM2: The leaving state is durable before the last stream begins.
//! - FM3: One transaction of the target pool marks the fileset as arrived and makes it visible.
//!   From then on the fileset exists only in the target.
//! - FM4: The arrived state stays until the source pool has deleted the fileset.
//! - FM5: The fileset's fronts continue on the target once the arrival is durable, with their
//!   references. No open file is lost.
//! - FM6: The target makes the reservation before the fileset leaves, and sets account limits
//!   before the source deletes it.
//!
//! # Crashes
//!
//! Until the entry of FM2 is durable the fileset is in the source pool. After that the target pool
//! decides: it reports only durable arrivals (`Transfers::is_arrived`).
//!
//! Not here: the order of the steps (`pool/moving.rs`), the transfer (`receive`).

use crate::file::Transfers;
use std::sync::atomic::Ordering;

use format::fileset::{FilesetState, MoveState, MoveToken, NamePart, ROOT_SLOT, joined};
use format::ids::{AnodeNo, PoolId};

use crate::api::Ino;
use crate::error::{FsError, FsResult};
use crate::file::{Files, OpenFileset, Vnode};
use crate::fileset::lifecycle::{check_live, check_settled};
use crate::fileset::pin::SnapshotPin;
use crate::fileset_table::table::{FilesetIndex, FilesetNode, on_its_way};
use crate::journal::LogCredits;

const MOVE_SNAPSHOTS: &str = "move-";
const TOKEN_DIGITS: usize = 32;

pub(crate) fn snapshot_prefix(token: MoveToken) -> String {
    format!("{MOVE_SNAPSHOTS}{:032x}-", u128::from_le_bytes(token.0))
}

pub(crate) fn is_of_a_move(snapshot: &NamePart) -> bool {
    let parts =
        snapshot.as_str().strip_prefix(MOVE_SNAPSHOTS).and_then(|rest| rest.split_once('-'));
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    parts.is_some_and(|(token, number)| {
        token.len() == TOKEN_DIGITS
            && token.chars().all(is_hex)
            && !number.is_empty()
            && number.chars().all(|c| c.is_ascii_digit())
    })
}

#[derive(Clone, Debug)]
pub(crate) struct FilesetMoveInfo {
    pub(crate) slot: u32,
    pub(crate) name: String,
    pub(crate) moving: Option<MoveState>,
    pub(crate) uuid: [u8; 16],
    pub(crate) is_read_only: bool,
    pub(crate) quota_bytes: u64,
    pub(crate) reservation_bytes: u64,
    /// Snapshots of the fileset, oldest first.
    pub(crate) snapshots: Vec<NamePart>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PartialFileset {
    pub(crate) moving: Option<MoveState>,
    pub(crate) origin: [u8; 16],
    pub(crate) at: (u64, u64),
}

impl<'c> Transfers<'c> {
    pub(crate) fn find_moving(&self, path: &[NamePart]) -> FsResult<Option<FilesetMoveInfo>> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(index.find(path).map(|node| found(&index, node)))
    }

    pub(crate) fn find_slot(&self, slot: u32) -> FsResult<Option<FilesetMoveInfo>> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(index.node(slot).filter(|node| node.is_live()).map(|node| found(&index, node)))
    }

    pub(crate) fn find_same(&self, uuid: [u8; 16]) -> FsResult<Option<String>> {
        let index = self.filesets.table.lock(&self.store)?;
        let same = index.nodes().find(|node| node.is_live() && node.uuid == uuid);
        Ok(same.map(|node| index.path_of(node.slot)))
    }

    pub(crate) fn find_of_move(&self, token: MoveToken) -> FsResult<Option<FilesetMoveInfo>> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_it = |node: &&FilesetNode| {
            node.is_live() && node.moving.is_some_and(|moving| moving.token() == token)
        };
        Ok(index.nodes().find(is_it).map(|node| found(&index, node)))
    }

    pub(crate) fn find_partial(&self, path: &[NamePart]) -> FsResult<Option<PartialFileset>> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_it =
            |node: &&FilesetNode| node.is_receiving() && index.path_of(node.slot) == joined(path);
        let Some(slot) = index.nodes().find(is_it).map(|node| node.slot) else { return Ok(None) };
        let entry = index.read_entry(&self.store, slot)?;
        let FilesetState::Receiving(at) = entry.state else { return Ok(None) };
        let at = (at.container, at.end);
        Ok(Some(PartialFileset { moving: entry.moving, origin: entry.origin, at }))
    }

    /// Whether the fileset of this move has arrived durably. After an error that is unknown.
    pub(crate) fn is_arrived(&self, token: MoveToken) -> FsResult<bool> {
        // An arrival in memory could still be lost in a crash.
        self.store.journal.commit_all()?;
        self.is_arrived_in_memory(token)
    }

    fn is_arrived_in_memory(&self, token: MoveToken) -> FsResult<bool> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_it = |moving: MoveState| {
            matches!(moving, MoveState::Arrived { .. }) && moving.token() == token
        };
        Ok(index.nodes().any(|node| node.moving.is_some_and(is_it)))
    }

    /// Whether the fileset of this move has not arrived and never will. Valid only after the end of
    /// its receiver: an arrival that is not in memory then can't become durable. Does no I/O. After
    /// an error this is unknown.
    pub(crate) fn is_kept_out(&self, token: MoveToken) -> FsResult<bool> {
        self.store.journal.check_alive()?;
        self.is_arrived_in_memory(token).map(|is_there| !is_there)
    }

    /// Refuses a fileset that can't be moved. `token` is `None` before the move begins: then
    /// snapshots of earlier moves are tolerated, to be deleted ([`is_of_a_move`]). `holds` is the
    /// number of fronts that wait for the move.
    pub(crate) fn check_movable(
        &self,
        slot: u32,
        token: Option<MoveToken>,
        holds: usize,
    ) -> FsResult<()> {
        let index = self.filesets.table.lock(&self.store)?;
        let refused = |by: String| Err(FsError::FilesetInUse { name: index.path_of(slot), by });
        if slot == ROOT_SLOT {
            return refused("it is the first of the pool, which always has one".to_owned());
        }
        check_alone(&index, slot, token)?;
        check_settled(&index, slot)?;
        drop(index);
        let fileset = self.open_fileset(slot)?;
        let name = || self.filesets.table.lock(&self.store).map(|index| index.path_of(slot));
        if self.is_main(fileset) {
            let by = "its pool was opened to serve it, for as long as it is open: serve the pool \
                      (`holdfast serve POOL --nfs ADDRESS:PORT`), and mount or export the \
                      fileset of that server";
            return Err(FsError::FilesetInUse { name: name()?, by: by.to_owned() });
        }
        if !fileset.is_held_by(holds) {
            return Err(in_use(name()?));
        }
        Ok(())
    }

    /// FM1, FM2: marks a fileset as leaving, durable on return.
    pub(crate) fn leave(
        &self,
        slot: u32,
        (token, to): (MoveToken, PoolId),
        holds: usize,
    ) -> FsResult<()> {
        self.check_movable(slot, Some(token), holds)?;
        let fileset = self.open_fileset(slot)?;
        // Marks first and checks the count then. [`Core::hold_slot_with`] does the reverse, so at
        // least one of the two fails.
        fileset.is_closed.store(true, Ordering::SeqCst);
        let is_free = fileset.is_held_by(holds);
        let left = if is_free {
            self.change_moving(fileset, None, Some(MoveState::Leaving { token, to: to.0 }))
        } else {
            Err(in_use(self.filesets.table.lock(&self.store)?.path_of(slot)))
        };
        // After a journal failure the durable state is unknown: stay closed.
        if left.is_err() && self.store.journal.check_alive().is_ok() {
            fileset.is_closed.store(false, Ordering::SeqCst);
        }
        left
    }

    /// Ends a move that did not arrive: the fileset stays here. Durable on return.
    pub(crate) fn stay(&self, slot: u32) -> FsResult<()> {
        let fileset = self.open_fileset(slot)?;
        let leaving = fileset.anodes.lock().entry().moving;
        self.change_moving(fileset, leaving, None)?;
        fileset.is_closed.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Readmits the fronts before `Transfers::stay` makes that durable. After a crash in between,
    /// the target is queried again.
    pub(crate) fn reopen(&self, slot: u32) -> FsResult<()> {
        self.store.journal.check_alive()?;
        self.open_fileset(slot)?.is_closed.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// FM5: returns the open unlinked files, and whether each may be linked.
    pub(crate) fn nameless_of(&self, slot: u32) -> FsResult<Vec<(AnodeNo, bool)>> {
        let files = Files { core: self, fileset: self.open_fileset(slot)? };
        files.reap_doomed();
        let mut nameless = Vec::new();
        let list = files.fileset.anodes.orphans(&self.store);
        if let Some((_, error)) = list.unread.into_iter().next() {
            return Err(error);
        }
        for (_, number) in list.orphans {
            let ino = files.fileset.ino(number);
            if self.table.is_referenced(ino) && is_nameless(&*files.vnode_of(number)?) {
                nameless.push((number, self.table.is_linkable(ino)));
            }
        }
        Ok(nameless)
    }

    pub(crate) fn references_of(&self, slot: u32) -> Vec<(AnodeNo, u64)> {
        let all = self.table.references_of(slot).into_iter();
        all.map(|(ino, count)| (ino.anode(), count)).collect()
    }

    /// FM5: holds the arrived fileset for its former fronts, with their references and unlinked
    /// files. Returns the fileset's slot; `None` if an earlier call has done it.
    pub(crate) fn take_over(
        &self,
        token: MoveToken,
        references: &[(AnodeNo, u64)],
        nameless: &[(AnodeNo, bool)],
    ) -> FsResult<Option<u32>> {
        let slot = self.find_of_move(token)?.ok_or(FsError::Stale)?.slot;
        let taken = |fileset: &OpenFileset| *fileset.taken_over.lock() == Some(token);
        if self.filesets.by_slot_current(slot).is_some_and(taken) {
            return Ok(None);
        }
        let ino = |number: AnodeNo| Ino(number.0).in_slot(slot);
        // The references come first, since opening the fileset frees unlinked files without
        // references.
        for (number, count) in references {
            self.table.add_references(ino(*number), *count);
        }
        for (number, is_linkable) in nameless {
            self.table.mark_nameless(ino(*number));
            if *is_linkable {
                self.table.mark_linkable(ino(*number));
            }
        }
        let held = self.hold_slot_with(slot, 1).and_then(|_| self.open_fileset(slot));
        match held {
            Ok(fileset) => *fileset.taken_over.lock() = Some(token),
            Err(error) => {
                // Dropped, since a retry adds the references again.
                for (number, count) in references {
                    let _ = self.table.drop_references(ino(*number), *count);
                }
                return Err(error);
            }
        }
        Ok(Some(slot))
    }

    pub(crate) fn let_go(&self, slot: u32) -> FsResult<()> {
        let uuid = self.open_fileset(slot)?.uuid();
        self.release_fileset(uuid);
        Ok(())
    }

    /// FM4: ends the arrived state of the fileset, once the source has deleted its own.
    pub(crate) fn settle_arrival(&self, slot: u32) -> FsResult<()> {
        let fileset = self.open_fileset(slot)?;
        let arrived = fileset.anodes.lock().entry().moving;
        self.change_moving(fileset, arrived, None)
    }

    fn change_moving(
        &self,
        fileset: &OpenFileset,
        from: Option<MoveState>,
        to: Option<MoveState>,
    ) -> FsResult<()> {
        self.check_writable()?;
        let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        check_live(&index, fileset.anodes.slot)?;
        fileset.check_current()?;
        // A child or a snapshot may have been created since the first check.
        if let Some(moving) = to.filter(|moving| moving.is_closed()) {
            check_alone(&index, fileset.anodes.slot, Some(moving.token()))?;
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

    pub(crate) fn snapshot_moving(
        &self,
        slot: u32,
        name: &NamePart,
        random: [u8; 16],
    ) -> FsResult<()> {
        self.snapshotter().create_snapshots(&[slot], name, &mut || random).map(drop)
    }

    /// FM1: only its own move may take a snapshot of a leaving fileset. `beside` is the number of
    /// other snapshots of the family in the transaction.
    pub(crate) fn check_clonable(
        &self,
        index: &FilesetIndex,
        (fileset, beside): (&OpenFileset, usize),
        name: &NamePart,
    ) -> FsResult<()> {
        let slot = fileset.anodes.slot;
        let moving = index.node(slot).and_then(|node| node.moving);
        let is_own =
            |moving: MoveState| name.as_str().starts_with(&snapshot_prefix(moving.token()));
        if fileset.is_closed.load(Ordering::SeqCst) && !moving.is_some_and(is_own) {
            return Err(on_its_way(index.path_of(slot)));
        }
        self.snapshotter().check_family_room(index, fileset.anodes.family, beside)
    }

    /// Pins a snapshot of a fileset that may be moving, which `Snapshotter::pin_snapshot` refuses.
    pub(crate) fn pin_moving(&self, of: u32, snapshot: &NamePart) -> FsResult<SnapshotPin<'c>> {
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = snapshot_in(&index, of, snapshot)?;
        self.0.snapshotter().pin_slot(&mut index, slot)
    }

    pub(crate) fn delete_snapshot_moving(&self, of: u32, snapshot: &NamePart) -> FsResult<u32> {
        self.snapshotter().delete_snapshot_at(&|index| snapshot_in(index, of, snapshot))
    }

    /// Refuses snapshots with user holds, since the move has to delete them.
    pub(crate) fn check_unheld(&self, of: u32, snapshots: &[NamePart]) -> FsResult<()> {
        let index = self.filesets.table.lock(&self.store)?;
        let taken = snapshots.iter().filter_map(|snapshot| index.snapshot_of(of, snapshot));
        check_unheld(&index, taken)
    }

    pub(crate) fn delete_moving(&self, slot: u32) -> FsResult<String> {
        let name = self.filesets.table.lock(&self.store)?.path_of(slot);
        self.delete_slot(slot, name.clone()).map(|_| name)
    }
}

fn found(index: &FilesetIndex, node: &FilesetNode) -> FilesetMoveInfo {
    let mut snapshots: Vec<_> = index.snapshots_of(node.slot).collect();
    snapshots.sort_by_key(|snapshot| snapshot.id);
    FilesetMoveInfo {
        slot: node.slot,
        name: index.path_of(node.slot),
        moving: node.moving,
        uuid: node.uuid,
        is_read_only: node.is_read_only,
        quota_bytes: node.quota_bytes,
        reservation_bytes: node.reservation_bytes,
        snapshots: snapshots.into_iter().map(|snapshot| snapshot.name.clone()).collect(),
    }
}

/// Refuses a fileset with children, or with snapshots not of the move `token` (`None`: of any
/// move).
fn check_alone(index: &FilesetIndex, slot: u32, token: Option<MoveToken>) -> FsResult<()> {
    let refused = |by: String| Err(FsError::FilesetInUse { name: index.path_of(slot), by });
    let prefix = token.map(snapshot_prefix);
    let is_other = |snapshot: &&FilesetNode| match &prefix {
        Some(prefix) => !snapshot.name.as_str().starts_with(prefix),
        None => !is_of_a_move(&snapshot.name),
    };
    let names = |all: Vec<&FilesetNode>| {
        let names: Vec<_> = all.into_iter().map(|node| index.path_of(node.slot)).collect();
        names.join(", ")
    };
    let others: Vec<_> = index.snapshots_of(slot).filter(is_other).collect();
    if !others.is_empty() {
        return refused(format!(
            "it has snapshots, and a move takes none along: {}: send them (`holdfast send`), and \
             delete them first",
            names(others)
        ));
    }
    check_unheld(index, index.snapshots_of(slot))?;
    let below: Vec<_> = index.children(slot).collect();
    if !below.is_empty() {
        return refused(format!("these are below it: {}", names(below)));
    }
    Ok(())
}

/// Refuses snapshots with user holds. A hold may last forever, so the move does not wait for it.
fn check_unheld<'i>(
    index: &FilesetIndex,
    snapshots: impl Iterator<Item = &'i FilesetNode>,
) -> FsResult<()> {
    for snapshot in snapshots {
        let holds: Vec<_> = index.holds_of(snapshot.slot).map(NamePart::as_str).collect();
        let Some(first) = holds.first() else { continue };
        let name = index.path_of(snapshot.slot);
        let by = format!(
            "a move has taken this snapshot and has to delete it, and it is held by {}: `holdfast \
             snapshot release POOL:{name} {first}` first",
            holds.join(", ")
        );
        return Err(FsError::FilesetInUse { name, by });
    }
    Ok(())
}

fn snapshot_in(index: &FilesetIndex, of: u32, snapshot: &NamePart) -> FsResult<u32> {
    let no_snapshot =
        || FsError::NoFileset { name: format!("{}@{}", index.path_of(of), snapshot.as_str()) };
    index.snapshot_of(of, snapshot).map(|node| node.slot).ok_or_else(no_snapshot)
}

fn is_nameless(vnode: &Vnode) -> bool {
    vnode.state.read().anode.as_ref().is_some_and(|anode| anode.nlink == 0)
}

fn in_use(name: String) -> FsError {
    let by = "it is mounted or exported by another server than the one that moves it, or is being \
              copied: end that, or try again later";
    FsError::FilesetInUse { name, by: by.to_owned() }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use super::*;
    use crate::file::open_filesets::NewFileset;
    use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 64 << 20;

    pub(crate) const TOKEN: MoveToken = MoveToken([0xa1; 16]);

    pub(crate) fn part(text: &str) -> NamePart {
        NamePart::new(text).expect("it is a name")
    }

    /// Returns a pool with a fileset `a` that has a snapshot of the move, and its slot.
    pub(crate) fn pool_with_one() -> (Pool, u32) {
        let device: SharedDevice = MemoryDevice::new("pool", POOL_BYTES);
        let create = PoolCreateOptions::new(POOL_BYTES, [1; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let clock = Arc::new(ManualClock::new());
        let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("it opens");
        let slot = pool.core().create_fileset(&[part("a")], &NewFileset::default());
        let slot = slot.expect("there is room").slot;
        let first = part(&format!("{}1", snapshot_prefix(TOKEN)));
        pool.core().transfers().snapshot_moving(slot, &first, [2; 16]).expect("there is room");
        (pool, slot)
    }

    #[test]
    fn a_fileset_that_leaves_has_no_snapshots_but_those_of_its_move() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        core.transfers().leave(slot, (TOKEN, PoolId([9; 16])), 0).expect("nobody uses it");
        let other = format!("{}1", snapshot_prefix(MoveToken([0xb2; 16])));
        for name in ["mine", "move-mine", &other] {
            let refused = core.transfers().snapshot_moving(slot, &part(name), [3; 16]);
            assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{name}: {refused:?}");
        }
        let second = part(&format!("{}2", snapshot_prefix(TOKEN)));
        core.transfers().snapshot_moving(slot, &second, [4; 16]).expect("it is the move's");
        core.transfers().stay(slot).expect("nothing fails");
        core.transfers().snapshot_moving(slot, &part("mine"), [5; 16]).expect("it is in use");
        let refused = core
            .transfers()
            .leave(slot, (TOKEN, PoolId([9; 16])), 0)
            .expect_err("it has a snapshot");
        assert!(refused.to_string().contains("a@mine"), "{refused}");
    }

    /// Goal: fronts are taken over once, and a failed takeover leaves no references.
    #[test]
    fn fronts_are_taken_over_once() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let fileset = core.open_fileset(slot).expect("it is there");
        let all = [(AnodeNo(7), 3)];
        let change =
            |from, to| core.transfers().change_moving(fileset, from, to).expect("there is room");
        let leaving = Some(MoveState::Leaving { token: TOKEN, to: [9; 16] });
        change(None, leaving);
        fileset.is_closed.store(true, Ordering::SeqCst);
        assert!(core.transfers().take_over(TOKEN, &all, &[]).is_err(), "nobody may hold it");
        assert_eq!(core.transfers().references_of(slot), []);
        fileset.is_closed.store(false, Ordering::SeqCst);
        change(leaving, Some(MoveState::Arrived { token: TOKEN, from: [9; 16] }));
        assert_eq!(core.transfers().take_over(TOKEN, &all, &[]), Ok(Some(slot)));
        assert_eq!(core.transfers().take_over(TOKEN, &all, &[]), Ok(None));
        assert_eq!(core.transfers().references_of(slot), all);
        assert!(fileset.is_held_by(1), "it is held as often as it was said");
    }

    #[test]
    fn snapshots_of_moves_are_told_from_those_of_users() {
        let token = "0123456789abcdef".repeat(2);
        assert!(is_of_a_move(&part(&format!("move-{token}-1"))));
        assert!(is_of_a_move(&part(&format!("{}17", snapshot_prefix(TOKEN)))));
        let others = [
            format!("move-{token}"),
            format!("move-{token}-"),
            format!("move-{token}-1a"),
            format!("move-{}-1", token.to_uppercase()),
            format!("move-{token}0-1"),
            "move-abcd-1".to_owned(),
            format!("moved-{token}-1"),
            "move-before-upgrade".to_owned(),
        ];
        for name in others {
            assert!(!is_of_a_move(&part(&name)), "{name}");
        }
    }
}
