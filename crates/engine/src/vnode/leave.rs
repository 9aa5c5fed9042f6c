//! A fileset on its way to another pool: what its entry says of that, and who may use it meanwhile
//! (decision 0078).
//!
//! # Invariants
//!
//! - FM1: Nobody but the move uses a fileset that leaves or arrives: no front has it when it says
//!   so, or those that have it wait (decision 0082); none gets it, and no name leads to it.
//! - FM2: That a fileset leaves is durable before the last stream of it begins.
//! - FM3: One transaction of the pool that it goes to says that it has arrived, and shows it. From
//!   then on it is there, and nowhere else.
//! - FM4: One that has arrived says so until the pool that it came from has nothing of it any more.
//! - FM5: Fronts that used a fileset go on with it where it has arrived, once that is durable, with
//!   the references that they had. No file that they have open is left behind.
//! - FM6: What is kept free for a fileset is kept free where it goes before it leaves, and what
//!   users may have is set where it has arrived before it is gone where it was.
//!
//! # Crashes
//!
//! Without FM2's entry the fileset is where it was. With it, the other pool is asked: what has
//! arrived there is durable before it is told ([`Core::is_arrived`]).
//!
//! Not here: the order of the steps (`pool/moving.rs`), what arrives (`receive`).

use std::sync::atomic::Ordering;

use format::fileset::{FilesetState, MoveToken, Moving, NamePart, ROOT_SLOT, joined};
use format::ids::{AnodeNo, PoolId};

use super::api::Ino;
use super::diff::Pinned;
use super::filesets::{check_live, check_settled};
use super::{Core, Files, Fileset, Vnode};
use crate::error::{FsError, FsResult};
use crate::fileset::table::{Index, Node, on_its_way};
use crate::journal::Reservation;

/// What clones that a move takes are called begins so; then come its token and a number.
const MOVE_CLONES: &str = "move-";
/// Digits of a token in such a name.
const TOKEN_DIGITS: usize = 32;

/// Returns what the clones of this move are called, but for their numbers.
pub(crate) fn clone_prefix(token: MoveToken) -> String {
    format!("{MOVE_CLONES}{:032x}-", u128::from_le_bytes(token.0))
}

/// Whether a clone of this name is of a move, whichever.
pub(crate) fn is_of_a_move(clone: &NamePart) -> bool {
    let parts = clone.as_str().strip_prefix(MOVE_CLONES).and_then(|rest| rest.split_once('-'));
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    parts.is_some_and(|(token, number)| {
        token.len() == TOKEN_DIGITS
            && token.chars().all(is_hex)
            && !number.is_empty()
            && number.chars().all(|c| c.is_ascii_digit())
    })
}

/// What a pool has of a fileset of some name, as a move sees it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) slot: u32,
    pub(crate) name: String,
    pub(crate) moving: Option<Moving>,
    pub(crate) uuid: [u8; 16],
    pub(crate) is_read_only: bool,
    pub(crate) quota_bytes: u64,
    pub(crate) reservation_bytes: u64,
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
        Ok(index.find(path).map(|node| found(&index, node)))
    }

    /// Returns the fileset in `slot`, whatever it is called.
    pub(crate) fn find_slot(&self, slot: u32) -> FsResult<Option<Found>> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(index.node(slot).filter(|node| node.is_live()).map(|node| found(&index, node)))
    }

    /// Returns the name of a fileset that handles name by `uuid`.
    pub(crate) fn find_same(&self, uuid: [u8; 16]) -> FsResult<Option<String>> {
        let index = self.filesets.table.lock(&self.store)?;
        let same = index.nodes().find(|node| node.is_live() && node.uuid == uuid);
        Ok(same.map(|node| index.path_of(node.slot)))
    }

    /// Returns the fileset that is on its way by this move, whatever it is called.
    pub(crate) fn find_of_move(&self, token: MoveToken) -> FsResult<Option<Found>> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_it = |node: &&Node| {
            node.is_live() && node.moving.is_some_and(|moving| moving.token() == token)
        };
        Ok(index.nodes().find(is_it).map(|node| found(&index, node)))
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
        self.is_arrived_in_memory(token)
    }

    fn is_arrived_in_memory(&self, token: MoveToken) -> FsResult<bool> {
        let index = self.filesets.table.lock(&self.store)?;
        let is_it =
            |moving: Moving| matches!(moving, Moving::Arrived { .. }) && moving.token() == token;
        Ok(index.nodes().any(|node| node.moving.is_some_and(is_it)))
    }

    /// Whether the fileset of this move has not arrived and never will, where whoever received it
    /// has ended: what is not in memory then never becomes durable. Waits for no device. Fails
    /// where nobody can say.
    pub(crate) fn is_kept_out(&self, token: MoveToken) -> FsResult<bool> {
        self.store.journal.check_alive()?;
        self.is_arrived_in_memory(token).map(|is_there| !is_there)
    }

    /// Refuses what can't move to another pool, in words. `token` is the move that has begun;
    /// `None`: one that begins, and deletes first what others have left ([`is_of_a_move`]). `holds`
    /// is how often it may be held: by fronts that wait.
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
                      (`holdfast serve POOL`), and mount or export the fileset of that server";
            return Err(FsError::FilesetInUse { name: name()?, by: by.to_owned() });
        }
        if !fileset.is_held_by(holds) {
            return Err(in_use(name()?));
        }
        Ok(())
    }

    /// FM1, FM2: the fileset in `slot` leaves for the pool `to`; that is durable when this returns.
    pub(crate) fn leave(
        &self,
        slot: u32,
        (token, to): (MoveToken, PoolId),
        holds: usize,
    ) -> FsResult<()> {
        self.check_movable(slot, Some(token), holds)?;
        let fileset = self.open_fileset(slot)?;
        // Whoever holds it says so first, and then looks whether it is closed.
        fileset.is_closed.store(true, Ordering::SeqCst);
        let is_free = fileset.is_held_by(holds);
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

    /// The fronts of the fileset in `slot` may go on with it at once: it is known that it stays.
    /// [`Core::stay`] makes that durable; a crash before it finds what it found before, and asks.
    pub(crate) fn reopen(&self, slot: u32) -> FsResult<()> {
        self.store.journal.check_alive()?;
        self.open_fileset(slot)?.is_closed.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// FM5: returns the files of the fileset in `slot` that have no name and are open, and whether
    /// each may get one, once what waits to be freed is.
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

    /// Returns the files of the fileset in `slot` on which fronts have references, and how many.
    pub(crate) fn references_of(&self, slot: u32) -> Vec<(AnodeNo, u64)> {
        let all = self.table.references_of(slot).into_iter();
        all.map(|(ino, count)| (ino.anode(), count)).collect()
    }

    /// FM5: the fileset of this move, which has arrived, is held once by fronts that have used it
    /// where it was, with all references that they had: once, however often that is said. Returns
    /// its slot; `None`: it was said before.
    pub(crate) fn take_over(
        &self,
        token: MoveToken,
        references: &[(AnodeNo, u64)],
        nameless: &[(AnodeNo, bool)],
    ) -> FsResult<Option<u32>> {
        let slot = self.find_of_move(token)?.ok_or(FsError::Stale)?.slot;
        let taken = |fileset: &Fileset| *fileset.taken_over.lock() == Some(token);
        if self.filesets.by_slot_current(slot).is_some_and(taken) {
            return Ok(None);
        }
        let ino = |number: AnodeNo| Ino(number.0).in_slot(slot);
        // Whoever opens it first frees what has no name and is held by nobody.
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
                // Whoever tries again brings all of them.
                for (number, count) in references {
                    let _ = self.table.drop_references(ino(*number), *count);
                }
                return Err(error);
            }
        }
        Ok(Some(slot))
    }

    /// The fronts that held the fileset in `slot` have gone on elsewhere.
    pub(crate) fn let_go(&self, slot: u32) -> FsResult<()> {
        let uuid = self.open_fileset(slot)?.uuid();
        self.release_fileset(uuid);
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
        // Since the look somebody may have made one below it, or a clone.
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

    /// Takes a clone of the fileset in `slot`, which may be leaving.
    pub(crate) fn clone_moving(
        &self,
        slot: u32,
        name: &NamePart,
        random: [u8; 16],
    ) -> FsResult<()> {
        self.create_clones(&[slot], name, &mut || random).map(drop)
    }

    /// FM1: refuses a clone of a fileset that leaves, but to the move that its entry names. So many
    /// of its family as `beside` come in the same transaction.
    pub(super) fn check_clonable(
        &self,
        index: &Index,
        (fileset, beside): (&Fileset, usize),
        name: &NamePart,
    ) -> FsResult<()> {
        let slot = fileset.anodes.slot;
        let moving = index.node(slot).and_then(|node| node.moving);
        let is_own = |moving: Moving| name.as_str().starts_with(&clone_prefix(moving.token()));
        if fileset.is_closed.load(Ordering::SeqCst) && !moving.is_some_and(is_own) {
            return Err(on_its_way(index.path_of(slot)));
        }
        self.check_family_room(index, fileset.anodes.family, beside)
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

    /// Refuses clones that a move has taken and has to delete where somebody holds one.
    pub(crate) fn check_unheld(&self, of: u32, clones: &[NamePart]) -> FsResult<()> {
        let index = self.filesets.table.lock(&self.store)?;
        let taken = clones.iter().filter_map(|clone| index.clone_of(of, clone));
        check_unheld(&index, taken)
    }

    /// Deletes a fileset that is on its way; returns its name.
    pub(crate) fn delete_moving(&self, slot: u32) -> FsResult<String> {
        let name = self.filesets.table.lock(&self.store)?.path_of(slot);
        self.delete_slot(slot, name.clone()).map(|_| name)
    }
}

fn found(index: &Index, node: &Node) -> Found {
    let mut clones: Vec<_> = index.clones_of(node.slot).collect();
    clones.sort_by_key(|clone| clone.id);
    Found {
        slot: node.slot,
        name: index.path_of(node.slot),
        moving: node.moving,
        uuid: node.uuid,
        is_read_only: node.is_read_only,
        quota_bytes: node.quota_bytes,
        reservation_bytes: node.reservation_bytes,
        clones: clones.into_iter().map(|clone| clone.name.clone()).collect(),
    }
}

/// Refuses a fileset with anything that a move does not take along: clones that are not its own,
/// and filesets below it. `None`: those of any move are let pass.
fn check_alone(index: &Index, slot: u32, token: Option<MoveToken>) -> FsResult<()> {
    let refused = |by: String| Err(FsError::FilesetInUse { name: index.path_of(slot), by });
    let prefix = token.map(clone_prefix);
    let is_other = |clone: &&Node| match &prefix {
        Some(prefix) => !clone.name.as_str().starts_with(prefix),
        None => !is_of_a_move(&clone.name),
    };
    let names = |all: Vec<&Node>| {
        let names: Vec<_> = all.into_iter().map(|node| index.path_of(node.slot)).collect();
        names.join(", ")
    };
    let others: Vec<_> = index.clones_of(slot).filter(is_other).collect();
    if !others.is_empty() {
        return refused(format!(
            "it has clones, and a move takes none along: {}: send them (`holdfast send`), and \
             delete them first",
            names(others)
        ));
    }
    check_unheld(index, index.clones_of(slot))?;
    let below: Vec<_> = index.children(slot).collect();
    if !below.is_empty() {
        return refused(format!("these are below it: {}", names(below)));
    }
    Ok(())
}

/// Refuses clones of a move of which somebody holds one: who holds it may never release it, so
/// nobody waits for that.
fn check_unheld<'i>(index: &Index, clones: impl Iterator<Item = &'i Node>) -> FsResult<()> {
    for clone in clones {
        let holds: Vec<_> = index.holds_of(clone.slot).map(NamePart::as_str).collect();
        let Some(first) = holds.first() else { continue };
        let name = index.path_of(clone.slot);
        let by = format!(
            "a move has taken this clone and has to delete it, and it is held by {}: `holdfast \
             clone release POOL:{name} {first}` first",
            holds.join(", ")
        );
        return Err(FsError::FilesetInUse { name, by });
    }
    Ok(())
}

fn clone_in(index: &Index, of: u32, clone: &NamePart) -> FsResult<u32> {
    let no_clone =
        || FsError::NoFileset { name: format!("{}@{}", index.path_of(of), clone.as_str()) };
    index.clone_of(of, clone).map(|node| node.slot).ok_or_else(no_clone)
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
pub(super) mod tests {
    use std::sync::Arc;

    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use super::*;
    use crate::vnode::NewFileset;
    use crate::{CreateOptions, OpenOptions, Pool};

    const POOL_BYTES: u64 = 64 << 20;

    pub(in crate::vnode) const TOKEN: MoveToken = MoveToken([0xa1; 16]);

    pub(in crate::vnode) fn part(text: &str) -> NamePart {
        NamePart::new(text).expect("it is a name")
    }

    /// Makes a pool with a fileset `a` that has a clone of the move; returns its slot.
    pub(in crate::vnode) fn pool_with_one() -> (Pool, u32) {
        let device: SharedDevice = MemoryDevice::new("pool", POOL_BYTES);
        let create = CreateOptions::new(POOL_BYTES, [1; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let clock = Arc::new(ManualClock::new());
        let pool = Pool::open(device, clock, OpenOptions::default()).expect("it opens");
        let slot = pool.core().create_fileset(&[part("a")], &NewFileset::default());
        let slot = slot.expect("there is room").slot;
        let first = part(&format!("{}1", clone_prefix(TOKEN)));
        pool.core().clone_moving(slot, &first, [2; 16]).expect("there is room");
        (pool, slot)
    }

    #[test]
    fn a_fileset_that_leaves_has_no_clones_but_those_of_its_move() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        core.leave(slot, (TOKEN, PoolId([9; 16])), 0).expect("nobody uses it");
        let other = format!("{}1", clone_prefix(MoveToken([0xb2; 16])));
        for name in ["mine", "move-mine", &other] {
            let refused = core.clone_moving(slot, &part(name), [3; 16]);
            assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "{name}: {refused:?}");
        }
        let second = part(&format!("{}2", clone_prefix(TOKEN)));
        core.clone_moving(slot, &second, [4; 16]).expect("it is the move's");
        core.stay(slot).expect("nothing fails");
        core.clone_moving(slot, &part("mine"), [5; 16]).expect("it is in use");
        let refused = core.leave(slot, (TOKEN, PoolId([9; 16])), 0).expect_err("it has a clone");
        assert!(refused.to_string().contains("a@mine"), "{refused}");
    }

    /// Goal: fronts are taken over once, however often that is said, and not at all where it fails.
    #[test]
    fn fronts_are_taken_over_once() {
        let (pool, slot) = pool_with_one();
        let core = pool.core();
        let fileset = core.open_fileset(slot).expect("it is there");
        let all = [(AnodeNo(7), 3)];
        let change = |from, to| core.change_moving(fileset, from, to).expect("there is room");
        let leaving = Some(Moving::Leaving { token: TOKEN, to: [9; 16] });
        change(None, leaving);
        fileset.is_closed.store(true, Ordering::SeqCst);
        assert!(core.take_over(TOKEN, &all, &[]).is_err(), "nobody may hold it");
        assert_eq!(core.references_of(slot), []);
        fileset.is_closed.store(false, Ordering::SeqCst);
        change(leaving, Some(Moving::Arrived { token: TOKEN, from: [9; 16] }));
        assert_eq!(core.take_over(TOKEN, &all, &[]), Ok(Some(slot)));
        assert_eq!(core.take_over(TOKEN, &all, &[]), Ok(None));
        assert_eq!(core.references_of(slot), all);
        assert!(fileset.is_held_by(1), "it is held as often as it was said");
    }

    #[test]
    fn clones_of_moves_are_told_from_those_of_users() {
        let token = "0123456789abcdef".repeat(2);
        assert!(is_of_a_move(&part(&format!("move-{token}-1"))));
        assert!(is_of_a_move(&part(&format!("{}17", clone_prefix(TOKEN)))));
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
