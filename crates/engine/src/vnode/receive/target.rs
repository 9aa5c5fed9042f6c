//! Who may receive a stream, and the fileset that receives it.

use format::fileset::{Cursor, Fileset as Entry, FilesetState, Moving, NamePart, joined};
use format::ids::{Epoch, FilesetId};
use format::placement::Placement;
use format::stream::Begin;
use runtime::planted::{self, Planted};

use super::super::filesets::{check_live, key_of, place_of_name};
use super::super::fork::take_on;
use super::super::send::identity_of;
use super::super::{Core, Files, Fileset};
use super::{Arrival, Done, Receiving};
use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::fileset::birth::{NewRoot, make_first_pages};
use crate::fileset::reserved::reserved_of;
use crate::fileset::table::{Index, Node, on_its_way};
use crate::journal::Reservation;
use crate::stream::ReceiveError;

/// Pages that a new fileset takes at most: one of its table, of the anode table, of the anode map
/// and of names, and those of the maps that lead to them.
const PAGES_OF_A_NEW_ONE: u64 = 16;

/// Times that the opening of another fileset is waited for.
const TRIES: usize = 64;

/// What a stream meets in a pool.
pub(super) struct Target {
    /// What came of it already: the slot of the receiving fileset.
    pub(super) partial: Option<u32>,
    /// What it begins from.
    pub(super) base: Option<Base>,
}

/// The clone that a stream begins from, and the fileset that it is of.
pub(super) struct Base {
    pub(super) clone: Entry,
    pub(super) fileset: Entry,
}

impl Arrival {
    /// Returns what a fileset is until the last stream of it has come.
    fn moving(self) -> Moving {
        Moving::Arriving { token: self.token }
    }
}

fn refused(what: String) -> ReceiveError {
    ReceiveError::Target { what }
}

impl Core {
    /// Looks whether the fileset of this name can receive a stream.
    pub(super) fn check_target(
        &self,
        path: &[NamePart],
        begin: &Begin,
        arrival: Option<Arrival>,
    ) -> Done<Target> {
        let index = self.filesets.table.lock(&self.store)?;
        let shown = joined(path);
        let partial = receiving_at(&index, path)?.map(|node| node.slot);
        let base = self.base_of_stream(&index, path, begin, arrival)?;
        let Some(slot) = partial else {
            if begin.resume != (0, 0) {
                return Err(refused(format!(
                    "nothing of the stream has come to {shown} before: send it whole, without \
                     --resume"
                )));
            }
            return Ok(Target { partial, base });
        };
        let entry = index.read_entry(&self.store, slot)?;
        let parent = base.as_ref().map(|base| base.clone.slot);
        let advice = format!("`holdfast receive --abort` gives up what came to {shown}");
        let is_of_move = entry.moving == arrival.map(Arrival::moving);
        if entry.origin != begin.to || entry.parent != parent || !is_of_move {
            return Err(refused(format!(
                "{shown} is receiving another stream: {advice}, and --discard-partial receives \
                 this one in its place"
            )));
        }
        let FilesetState::Receiving(at) = entry.state else { return Err(FsError::Stale.into()) };
        if begin.resume > (at.container, at.end) {
            return Err(refused(format!(
                "the stream goes on behind what has come to {shown}: send it from its token, or \
                 whole; {advice}"
            )));
        }
        if begin.generation_max > entry.generation_base {
            // Files made here later would be taken for those that it brings.
            return Err(refused(format!(
                "the stream brings newer files than it said when it began: send it whole; {advice}"
            )));
        }
        Ok(Target { partial, base })
    }

    /// Whether some of another stream than `begin` has come to the fileset of this name, which a
    /// whole one could take the place of. What a move has left is the move's.
    pub(super) fn is_of_another(&self, path: &[NamePart], begin: &Begin) -> Done<bool> {
        let index = self.filesets.table.lock(&self.store)?;
        let Some(slot) = receiving_at(&index, path)?.map(|node| node.slot) else {
            return Ok(false);
        };
        let base = self.base_of_stream(&index, path, begin, None)?;
        let entry = index.read_entry(&self.store, slot)?;
        let is_same = entry.origin == begin.to && entry.parent == base.map(|it| it.clone.slot);
        Ok(!is_same && entry.moving.is_none() && begin.resume == (0, 0))
    }

    /// Returns what a stream begins from, if the fileset of this name is that still.
    pub(super) fn base_of_stream(
        &self,
        index: &Index,
        path: &[NamePart],
        begin: &Begin,
        arrival: Option<Arrival>,
    ) -> Done<Option<Base>> {
        let (shown, found) = (joined(path), index.find(path));
        let Some(from) = &begin.from_name else {
            return match found {
                Some(_) => Err(refused(format!(
                    "there is a fileset {shown} already: receive into a new one, or send what \
                     changed since a clone that both have (--from)"
                ))),
                None => Ok(None),
            };
        };
        let slot = found.map(|node| node.slot);
        let slot = slot.ok_or_else(|| FsError::NoFileset { name: shown.clone() })?;
        let fileset = index.read_entry(&self.store, slot)?;
        let is_arriving = fileset.moving.filter(|moving| moving.is_closed());
        if is_arriving != arrival.map(Arrival::moving) {
            return Err(on_its_way(shown).into());
        }
        let is_held = self.filesets.is_used(slot);
        if is_held {
            // A front may write at any time.
            return Err(refused(format!("{shown} is mounted or served: unmount it first")));
        }
        let newest = match fileset.parent {
            Some(parent) => Some(index.read_entry(&self.store, parent)?),
            None => None,
        };
        // One that is being freed is compared with what is below it.
        let is_it =
            |clone: &Entry| identity_of(clone) == begin.from && clone.state == FilesetState::Clone;
        let Some(clone) = newest.clone().filter(|it| is_it(it)) else {
            let newest = newest.map_or_else(
                || "it has no clone".to_owned(),
                |clone| format!("the newest clone of {shown} is {}, another", clone.name.as_str()),
            );
            return Err(refused(format!(
                "the stream begins from a clone {}, and {newest}",
                from.as_str()
            )));
        };
        let is_changed = clone.table_anode() != fileset.table_anode();
        if is_changed {
            let name = clone.name.as_str();
            return Err(refused(format!(
                "{shown} has changed since its clone {name}: it must be what it was then; keep \
                 what changed elsewhere, and keep the fileset read-only (`holdfast fileset set`)"
            )));
        }
        // A move sends each clone once.
        for known in index.clones_of(slot).filter(|_| arrival.is_none()) {
            let known = index.read_entry(&self.store, known.slot)?;
            if identity_of(&known) == begin.to {
                return Err(refused(format!(
                    "{shown} has what the stream brings already, as its clone {}: `holdfast \
                     fileset restore` goes back to that",
                    known.name.as_str()
                )));
            }
        }
        if index.clone_of(slot, &begin.to_name).is_some() {
            let name = format!("{shown}@{}", begin.to_name.as_str());
            return Err(FsError::FilesetExists { name }.into());
        }
        Ok(Some(Base { clone, fileset }))
    }

    /// Returns who receives a stream: the fileset that has some of it already, or a new one.
    pub(super) fn begin_receiving(
        &self,
        path: &[NamePart],
        (begin, arrival): (Begin, Option<Arrival>),
        random: [u8; 32],
    ) -> Done<Receiving<'_>> {
        let target = self.check_target(path, &begin, arrival)?;
        let lender = self.lender_of(target.base.as_ref())?;
        let slot = match target.partial {
            Some(slot) => slot,
            None => {
                let own = lender.map_or(0, |lender| lender.anodes.usage.counts().kept);
                self.make_receiving(path, (&begin, arrival), (target.base, own), random)?
            }
        };
        let in_use = FsError::FilesetInUse {
            name: joined(path),
            by: "somebody else is sending to it".to_owned(),
        };
        {
            let mut index = self.filesets.table.lock(&self.store)?;
            if index.is_pinned(slot) {
                return Err(in_use.into());
            }
            // Somebody may have given it up since it was found.
            if !index.node(slot).is_some_and(Node::is_receiving) {
                return Err(FsError::TryLater.into());
            }
            index.pin(slot);
        }
        let fileset = match self.open_fileset(slot) {
            Ok(fileset) => fileset,
            Err(error) => {
                self.filesets.table.lock(&self.store)?.unpin(slot);
                return Err(error.into());
            }
        };
        if let Some(lender) = lender {
            fileset.anodes.usage.borrow_from(&lender.anodes.usage);
        }
        Ok(Receiving {
            core: self,
            arrival,
            files: Files { core: self, fileset },
            target: path.to_vec(),
            begin,
            current: None,
            last: None,
            data_end: 0,
            anodes: 0,
            bytes: 0,
        })
    }

    /// Returns the fileset that a stream is for, if something is reserved for it (QT5). It is
    /// opened as for a job: what it holds stays what it is.
    fn lender_of(&self, base: Option<&Base>) -> FsResult<Option<&Fileset>> {
        let Some(base) = base.filter(|base| base.fileset.reservation_bytes > 0) else {
            return Ok(None);
        };
        for _ in 0..TRIES {
            if let Some(fileset) = self.open_for_job(base.fileset.slot)? {
                return Ok(Some(fileset));
            }
            self.filesets.wait_until_unopened();
        }
        Err(FsError::TryLater)
    }

    /// Makes a fileset that nobody can find: an empty one, or what the stream begins from. `own` is
    /// what is kept free for the fileset that the stream is for.
    fn make_receiving(
        &self,
        path: &[NamePart],
        (begin, arrival): (&Begin, Option<Arrival>),
        (base, own): (Option<Base>, u64),
        random: [u8; 32],
    ) -> FsResult<u32> {
        // What the files of the clone reserve, whoever is written to has once more.
        let reserved = match &base {
            Some(base) => {
                // Pinned, so that nobody moves a page that it is about to look at.
                let mut index = self.filesets.table.lock(&self.store)?;
                let is_there = index.node(base.clone.slot).is_some_and(Node::is_clone);
                let pinned = is_there.then(|| self.pin_slot(&mut index, base.clone.slot));
                drop(index);
                reserved_of(&self.store, &pinned.ok_or(FsError::TryLater)??.entry)?
            }
            None => 0,
        };
        let pages = PAGES_OF_A_NEW_ONE * u64::from(self.store.geometry().page_fragments());
        self.store.alloc.check_room(pages + reserved, Urgency::User, own)?;
        if !self.store.geometry().can_have_blocks(begin.block_shift) {
            return Err(FsError::Invalid);
        }
        let mut change = self.store.begin_pool(Reservation::LARGE)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        // Another stream to the same name may have begun since somebody looked.
        if receiving_at(&index, path)?.is_some() {
            return Err(FsError::TryLater);
        }
        if let Some(base) = &base {
            check_live(&index, base.fileset.slot)?;
            let is_there = |node: &Node| node.is_clone() && node.id == base.clone.id;
            if !index.node(base.clone.slot).is_some_and(is_there) {
                return Err(FsError::TryLater);
            }
            self.check_family_room(&index, base.fileset.family, 0)?;
        }
        // Pages may have moved since they were found to be the same.
        let begins_from = match &base {
            Some(base) => {
                let now = index.read_entry(&self.store, base.fileset.slot)?;
                let clone = index.read_entry(&self.store, base.clone.slot)?;
                if now.table_anode() != clone.table_anode() {
                    return Err(FsError::TryLater);
                }
                Some(now)
            }
            None => None,
        };
        let (above, name) = place_of_name(&index, path)?;
        let taken = index.take_slot(&self.store, &mut change)?;
        let id = FilesetId(change.epoch().0);
        let mut entry = match begins_from {
            Some(fileset) => Entry { id, slot: taken.slot, ..fileset },
            None => Entry::new(id, taken.slot, name.clone(), begin.block_shift),
        };
        (entry.above, entry.name) = (above, name);
        entry.state = FilesetState::Receiving(Cursor::START);
        (entry.is_read_only, entry.moving) = (false, arrival.map(Arrival::moving));
        // It keeps to the quota of the fileset, and draws on its reservation, which stays there.
        entry.reservation_bytes = 0;
        if let Some(base) = &base {
            (entry.parent, entry.shared_epoch) = (Some(base.clone.slot), Epoch(base.clone.id.0));
        }
        entry.origin = begin.to;
        entry.generation_base = entry.generation_base.max(begin.generation_max);
        entry.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        entry.uuid.copy_from_slice(&random[..16]);
        if base.is_some() {
            take_on(&mut change, &entry, reserved);
        } else {
            // Numbers of disk groups mean nothing where it comes from.
            let (key, placement) = (key_of(&random), Placement::Any);
            let root = NewRoot { owner: (0, 0), key, created: self.now(), placement };
            make_first_pages(&self.store, &mut change, &mut entry, &root)?;
        }
        index.write_entry(&self.store, &mut change, &entry, Some(&taken))?;
        let applied = change.end();
        index.note_new(&entry, taken);
        drop(index);
        self.store.journal.commit(applied.class)?;
        Ok(entry.slot)
    }

    /// Gives up what came of a stream to the fileset of this name. Returns the slot of what is
    /// freed from now on; `None`: nothing had come.
    pub(crate) fn abort_receiving(&self, path: &[NamePart]) -> FsResult<Option<u32>> {
        self.check_writable()?;
        let slot = {
            let index = self.filesets.table.lock(&self.store)?;
            receiving_at(&index, path)?.map(|node| node.slot)
        };
        let Some(slot) = slot else { return Ok(None) };
        let in_use = || {
            let by = "somebody is sending to it: end that first".to_owned();
            FsError::FilesetInUse { name: joined(path), by }
        };
        if self.filesets.table.lock(&self.store)?.is_pinned(slot) {
            return Err(in_use());
        }
        let fileset = self.open_fileset(slot)?;
        if !self.give_up(fileset, &in_use)? {
            return Ok(None);
        }
        self.filesets.forget(fileset);
        self.table.remove_all_of(slot);
        self.filesets.note_given_up(slot, joined(path));
        Ok(Some(slot))
    }

    /// Returns whether it was there still: another may have given it up meanwhile.
    fn give_up(&self, fileset: &Fileset, in_use: &dyn Fn() -> FsError) -> FsResult<bool> {
        self.sync_all()?;
        // As of a fileset that is deleted: the walk looks at nothing but its maps.
        self.store.journal.checkpoint()?;
        let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = fileset.anodes.slot;
        if !planted::is(Planted::GivenUpTwice) {
            if index.is_pinned(slot) {
                return Err(in_use());
            }
            if !index.node(slot).is_some_and(Node::is_receiving) {
                return Ok(false);
            }
        }
        let mut guard = fileset.anodes.lock();
        let entry = guard.change_entry(&mut change, |entry| {
            (entry.state, entry.moving) = (FilesetState::Deleted(Cursor::START), None);
        })?;
        let applied = change.end();
        guard.end_fileset();
        guard.settle(applied.lsn);
        index.note(&entry);
        drop(index);
        self.store.journal.commit(applied.class)?;
        Ok(true)
    }
}

/// Returns what receives a stream to the fileset of this name.
fn receiving_at<'i>(index: &'i Index, path: &[NamePart]) -> FsResult<Option<&'i Node>> {
    let (above, name) = place_of_name(index, path)?;
    let is_it = |node: &&Node| node.is_receiving() && (node.above, &node.name) == (above, &name);
    Ok(index.nodes().find(is_it))
}

#[cfg(test)]
mod tests {
    use format::fileset::FilesetName;
    use format::ids::PoolId;

    use super::*;
    use crate::vnode::leave::tests::{part, pool_with_one};

    /// Goal: two who give the same up at once free it once: the second would begin anew what the
    /// first is freeing. Method: both have found it there.
    #[test]
    fn what_came_of_a_stream_is_given_up_once() {
        let (pool, _) = pool_with_one();
        let name = |text: &str| text.parse::<FilesetName>().expect("it is a name");
        pool.create_clone(&name("root"), &part("c"), [2; 16]).expect("there is room");
        let (mut stream, mut tell) = (Vec::new(), |_, _| ());
        let from = (&name("root"), &part("c"));
        pool.send(from, None, None, &mut stream, &mut tell).expect("it can be read");
        let mut begun = &stream[..stream.len() - 50];
        let failed = pool.receive(&name("copy"), &mut begun, [3; 32], &mut tell);
        assert!(failed.is_err_and(|failure| failure.token.is_some()), "it broke off");
        let (core, path) = (pool.core(), [part("copy")]);
        let slot = {
            let index = core.filesets.table.lock(&core.store).expect("it can be read");
            let node = receiving_at(&index, &path).expect("it is a name");
            node.expect("some of it came").slot
        };
        let fileset = core.open_fileset(slot).expect("it is there");
        // One that had looked before this came makes no second.
        let begin = Begin {
            pool_id: PoolId([1; 16]),
            block_shift: 14,
            from: [0; 16],
            to: [9; 16],
            anodes_end: 100,
            generation_max: 1,
            resume: (0, 0),
            from_name: None,
            to_name: part("c"),
        };
        let second = core.make_receiving(&path, (&begin, None), (None, 0), [4; 32]);
        assert_eq!(second, Err(FsError::TryLater));
        let in_use = || FsError::TryLater;
        assert_eq!(core.give_up(fileset, &in_use), Ok(true));
        assert_eq!(core.give_up(fileset, &in_use), Ok(false));
    }
}
