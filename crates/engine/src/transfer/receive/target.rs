//! Admission of streams, and creation of the receiving fileset.

use crate::file::Transfers;
use format::fileset::{Cursor, Fileset as Entry, FilesetState, MoveState, NamePart, joined};
use format::ids::{Epoch, FilesetId};
use format::placement::Placement;
use format::stream::StreamBegin;

use super::{FilesetArrival, ReceiveResult, ReceiveState};
use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::file::{Files, OpenFileset};
use crate::fileset::clone::take_on;
use crate::fileset::lifecycle::{check_live, key_of, place_of_name};
use crate::fileset_table::birth::{NewRoot, make_first_pages};
use crate::fileset_table::reserved::reserved_of;
use crate::fileset_table::table::{FilesetIndex, FilesetNode, on_its_way};
use crate::journal::LogCredits;
use crate::stream::ReceiveError;
use crate::transfer::send::identity_of;

/// Pages of a new fileset: its table, anode table, anode map and names, with map pages.
const PAGES_OF_A_NEW_ONE: u64 = 16;

const TRIES: usize = 64;

pub(super) struct ReceiveTarget {
    pub(super) partial: Option<u32>,
    pub(super) base: Option<StreamBase>,
}

/// The snapshot that a stream starts from, and its fileset.
pub(super) struct StreamBase {
    pub(super) snapshot: Entry,
    pub(super) fileset: Entry,
}

impl FilesetArrival {
    fn moving(self) -> MoveState {
        MoveState::Arriving { token: self.token }
    }
}

fn refused(what: String) -> ReceiveError {
    ReceiveError::Target { what }
}

impl Transfers<'_> {
    pub(super) fn check_target(
        &self,
        path: &[NamePart],
        begin: &StreamBegin,
        arrival: Option<FilesetArrival>,
    ) -> ReceiveResult<ReceiveTarget> {
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
            return Ok(ReceiveTarget { partial, base });
        };
        let entry = index.read_entry(&self.store, slot)?;
        let parent = base.as_ref().map(|base| base.snapshot.slot);
        let advice = format!("`holdfast receive POOL:{shown} --abort` gives up what came to it");
        let is_of_move = entry.moving == arrival.map(FilesetArrival::moving);
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
            // Files created in the target would have the generations of new files of the stream.
            return Err(refused(format!(
                "the stream brings newer files than it said when it began: send it whole; {advice}"
            )));
        }
        Ok(ReceiveTarget { partial, base })
    }

    /// Whether `path` has partial state of another stream. A whole stream may replace such state,
    /// but never that of a move.
    pub(super) fn is_of_another(
        &self,
        path: &[NamePart],
        begin: &StreamBegin,
    ) -> ReceiveResult<bool> {
        let index = self.filesets.table.lock(&self.store)?;
        let Some(slot) = receiving_at(&index, path)?.map(|node| node.slot) else {
            return Ok(false);
        };
        let base = self.base_of_stream(&index, path, begin, None)?;
        let entry = index.read_entry(&self.store, slot)?;
        let is_same = entry.origin == begin.to && entry.parent == base.map(|it| it.snapshot.slot);
        Ok(!is_same && entry.moving.is_none() && begin.resume == (0, 0))
    }

    /// Returns the stream's base, if the fileset is still identical to it.
    pub(super) fn base_of_stream(
        &self,
        index: &FilesetIndex,
        path: &[NamePart],
        begin: &StreamBegin,
        arrival: Option<FilesetArrival>,
    ) -> ReceiveResult<Option<StreamBase>> {
        let (shown, found) = (joined(path), index.find(path));
        let Some(from) = &begin.from_name else {
            return match found {
                Some(_) => Err(refused(format!(
                    "there is a fileset {shown} already: receive into a new one, or send what \
                     changed since a snapshot that both have (--from)"
                ))),
                None => Ok(None),
            };
        };
        let slot = found.map(|node| node.slot);
        let slot = slot.ok_or_else(|| FsError::NoFileset { name: shown.clone() })?;
        let fileset = index.read_entry(&self.store, slot)?;
        let is_arriving = fileset.moving.filter(|moving| moving.is_closed());
        if is_arriving != arrival.map(FilesetArrival::moving) {
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
        // A snapshot being freed is compared with its fileset, so it can't be a base.
        let is_it = |snapshot: &Entry| {
            identity_of(snapshot) == begin.from && snapshot.state == FilesetState::Snapshot
        };
        let Some(snapshot) = newest.clone().filter(|it| is_it(it)) else {
            let newest = newest.map_or_else(
                || "it has no snapshot".to_owned(),
                |snapshot| {
                    format!("the newest snapshot of {shown} is {}, another", snapshot.name.as_str())
                },
            );
            return Err(refused(format!(
                "the stream begins from a snapshot {}, and {newest}",
                from.as_str()
            )));
        };
        let is_changed = snapshot.table_anode() != fileset.table_anode();
        if is_changed {
            let name = snapshot.name.as_str();
            return Err(refused(format!(
                "{shown} has changed since its snapshot {name}: it must be what it was then; keep \
                 what changed elsewhere, and keep the fileset read-only (`holdfast fileset \
                 set POOL:{shown} readonly=on`)"
            )));
        }
        // A move sends each snapshot once.
        for known in index.snapshots_of(slot).filter(|_| arrival.is_none()) {
            let known = index.read_entry(&self.store, known.slot)?;
            if identity_of(&known) == begin.to {
                return Err(refused(format!(
                    "{shown} has what the stream brings already, as its snapshot {}: `holdfast \
                     fileset restore POOL:{shown}@{}` goes back to that",
                    known.name.as_str(),
                    known.name.as_str()
                )));
            }
        }
        if index.snapshot_of(slot, &begin.to_name).is_some() {
            let name = format!("{shown}@{}", begin.to_name.as_str());
            return Err(FsError::FilesetExists { name }.into());
        }
        Ok(Some(StreamBase { snapshot, fileset }))
    }

    pub(super) fn begin_receiving(
        &self,
        path: &[NamePart],
        (begin, arrival): (StreamBegin, Option<FilesetArrival>),
        random: [u8; 32],
    ) -> ReceiveResult<ReceiveState<'_>> {
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
            // The partial state was discarded since the lookup.
            if !index.node(slot).is_some_and(FilesetNode::is_receiving) {
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
        Ok(ReceiveState {
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

    /// Opens the target, without recovery of its orphans, if it has a reservation to borrow (QT5).
    fn lender_of(&self, base: Option<&StreamBase>) -> FsResult<Option<&OpenFileset>> {
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

    /// Creates the receiving fileset, empty or from the base. `own` is the kept space of the
    /// target.
    fn make_receiving(
        &self,
        path: &[NamePart],
        (begin, arrival): (&StreamBegin, Option<FilesetArrival>),
        (base, own): (Option<StreamBase>, u64),
        random: [u8; 32],
    ) -> FsResult<u32> {
        // The copy of the base's files reserves as much again.
        let reserved = match &base {
            Some(base) => {
                // The snapshot is pinned, so that its pages stay readable.
                let mut index = self.filesets.table.lock(&self.store)?;
                let is_there = index.node(base.snapshot.slot).is_some_and(FilesetNode::is_snapshot);
                let pinned =
                    is_there.then(|| self.snapshotter().pin_slot(&mut index, base.snapshot.slot));
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
        let mut change = self.store.begin_pool(LogCredits::LARGE)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        // Another receive may have begun since the lookup.
        if receiving_at(&index, path)?.is_some() {
            return Err(FsError::TryLater);
        }
        if let Some(base) = &base {
            check_live(&index, base.fileset.slot)?;
            let is_there = |node: &FilesetNode| node.is_snapshot() && node.id == base.snapshot.id;
            if !index.node(base.snapshot.slot).is_some_and(is_there) {
                return Err(FsError::TryLater);
            }
            self.snapshotter().check_family_room(&index, base.fileset.family, 0)?;
        }
        // Pages may have moved since the comparison, so the entries are compared again.
        let begins_from = match &base {
            Some(base) => {
                let now = index.read_entry(&self.store, base.fileset.slot)?;
                let snapshot = index.read_entry(&self.store, base.snapshot.slot)?;
                if now.table_anode() != snapshot.table_anode() {
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
        (entry.is_read_only, entry.moving) = (false, arrival.map(FilesetArrival::moving));
        // The receiving fileset has the target's quota, and borrows its reservation.
        entry.reservation_bytes = 0;
        if let Some(base) = &base {
            (entry.parent, entry.shared_epoch) =
                (Some(base.snapshot.slot), Epoch(base.snapshot.id.0));
        }
        entry.origin = begin.to;
        entry.generation_base = entry.generation_base.max(begin.generation_max);
        entry.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        entry.uuid.copy_from_slice(&random[..16]);
        if base.is_some() {
            take_on(&mut change, &entry, reserved);
        } else {
            // Placements name disk groups, which differ in another pool.
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

    /// Discards the partial state at `path`. Returns its slot, which is being freed.
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

    /// Marks the partial state as deleted; `false` if another thread has done so.
    fn give_up(&self, fileset: &OpenFileset, in_use: &dyn Fn() -> FsError) -> FsResult<bool> {
        self.writeback().sync_all()?;
        // The walk that frees it reads only maps, as for any deletion.
        self.store.journal.checkpoint()?;
        let mut change = self.store.begin_in(&fileset.gate, LogCredits::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = fileset.anodes.slot;
        if index.is_pinned(slot) {
            return Err(in_use());
        }
        if !index.node(slot).is_some_and(FilesetNode::is_receiving) {
            return Ok(false);
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

fn receiving_at<'i>(
    index: &'i FilesetIndex,
    path: &[NamePart],
) -> FsResult<Option<&'i FilesetNode>> {
    let (above, name) = place_of_name(index, path)?;
    let is_it =
        |node: &&FilesetNode| node.is_receiving() && (node.above, &node.name) == (above, &name);
    Ok(index.nodes().find(is_it))
}

#[cfg(test)]
mod tests {
    use format::fileset::FilesetName;
    use format::ids::PoolId;

    use super::*;
    use crate::transfer::leave::tests::{part, pool_with_one};

    /// Goal: of two concurrent aborts only one frees the state, since a second would restart the
    /// freeing. Method: both have found the state.
    #[test]
    fn what_came_of_a_stream_is_given_up_once() {
        let (pool, _) = pool_with_one();
        let name = |text: &str| text.parse::<FilesetName>().expect("it is a name");
        pool.fileset_admin()
            .create_snapshot(&name("root"), &part("c"), [2; 16])
            .expect("there is room");
        let (mut stream, mut tell) = (Vec::new(), |_, _| ());
        let from = (&name("root"), &part("c"));
        pool.fileset_admin()
            .send(from, None, None, &mut stream, &mut tell)
            .expect("it can be read");
        let mut begun = &stream[..stream.len() - 50];
        let failed = pool.fileset_admin().receive(&name("copy"), &mut begun, [3; 32], &mut tell);
        assert!(failed.is_err_and(|failure| failure.token.is_some()), "it broke off");
        let (core, path) = (pool.core(), [part("copy")]);
        let slot = {
            let index = core.filesets.table.lock(&core.store).expect("it can be read");
            let node = receiving_at(&index, &path).expect("it is a name");
            node.expect("some of it came").slot
        };
        let fileset = core.open_fileset(slot).expect("it is there");
        // A receive with an earlier lookup creates no second fileset.
        let begin = StreamBegin {
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
        let second = core.transfers().make_receiving(&path, (&begin, None), (None, 0), [4; 32]);
        assert_eq!(second, Err(FsError::TryLater));
        let in_use = || FsError::TryLater;
        assert_eq!(core.transfers().give_up(fileset, &in_use), Ok(true));
        assert_eq!(core.transfers().give_up(fileset, &in_use), Ok(false));
    }
}
