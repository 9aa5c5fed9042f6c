//! The filesets of an open pool: the main one, which is there from the start, and those that
//! somebody has needed since. An opened fileset stays in memory until the pool is closed.
//!
//! # Concurrency
//!
//! One fileset is opened at a time. What was opened is found without a lock.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use format::fileset::{
    Cursor, Fileset as Entry, FilesetState, MoveToken, Moving, NamePart, ROOT_SLOT, joined,
};
use format::ids::FilesetId;
use format::placement::Placement;
use runtime::planted::{self, Planted};

use super::api::{FilesetUuid, Ino};
use super::half_freed::tolerate;
use super::{Core, Files, orphan, readahead};
use crate::error::{FsError, FsResult};
use crate::fileset::birth::make_first_pages;
use crate::fileset::table::{FilesetTable, Index, Node, on_its_way};
use crate::fileset::{MountedFileset, i64_of};
use crate::gate::Gate;
use crate::journal::Reservation;
use crate::sync::{Mutex, MutexGuard};
use crate::usage::Limits;

/// Slots below one node of a [`SlotMap`].
const FAN_OUT: usize = 256;
const LEVELS: u32 = 3;
const _: () = assert!(FAN_OUT.pow(LEVELS) == 1 << 24, "as many as a pool has slots");

/// What belongs to one fileset.
#[derive(Debug)]
pub(crate) struct Fileset {
    /// Its anode table, free anodes and orphans.
    pub(crate) anodes: MountedFileset,
    /// One rename of a directory at a time: loops can't form behind its back.
    pub(super) rename_lock: Mutex<()>,
    /// Whoever changes what is in it is inside.
    pub(super) gate: Gate,
    pub(super) doomed: orphan::Doomed,
    pub(super) readahead: readahead::Readahead,
    /// Whether it is what a fileset was like at one moment: nobody ever changes what is in it.
    pub(super) is_clone: bool,
    /// Whether nobody may change what is in it.
    is_read_only: AtomicBool,
    /// Whether nobody may, until the pool is opened again, whatever is set: what a clone of it
    /// alone held could not be freed.
    pub(super) is_half_freed: AtomicBool,
    /// Whether what a crash has left of it is finished: before that only jobs look at it.
    is_ready: AtomicBool,
    /// Whether it is on its way to another pool: no front may enter it (FM1).
    pub(super) is_closed: AtomicBool,
    /// Whether it was deleted or restored: nobody may enter it.
    pub(super) is_gone: AtomicBool,
    /// Whether its slot has another tree since: it was restored, or got what a stream brought.
    pub(super) is_superseded: AtomicBool,
    /// What its slot has since then, once somebody has opened that.
    successor: OnceLock<Box<Fileset>>,
    /// How many fronts may ask for its files: it can't be deleted then. [`FOR_GOOD`] is added for
    /// those that never end. Whoever opens a pool holds its main fileset once.
    pub(super) holds: AtomicUsize,
    /// FM5: the move whose fronts have been taken over.
    pub(super) taken_over: Mutex<Option<MoveToken>>,
}

/// What is added to the holds of a fileset that stays held as long as the pool is open.
pub(super) const FOR_GOOD: usize = 1 << 32;

/// A map from slots to what is there. Nothing ever leaves it: what was restored leads to its
/// successor.
#[derive(Debug)]
struct SlotMap {
    top: OnceLock<Box<[Middle]>>,
}

type Middle = OnceLock<Box<[Leaf]>>;
type Leaf = OnceLock<Box<[OnceLock<Box<Fileset>>]>>;

fn empty<T>() -> Box<[OnceLock<T>]> {
    (0..FAN_OUT).map(|_| OnceLock::new()).collect()
}

/// Returns the place of `slot` at each level, from the top.
fn indexes(slot: u32) -> [usize; 3] {
    let [low, middle, high, _] = slot.to_le_bytes();
    [high.into(), middle.into(), low.into()]
}

impl SlotMap {
    fn get(&self, slot: u32) -> Option<&Fileset> {
        let [high, middle, low] = indexes(slot);
        let leaf = self.top.get()?.get(high)?.get()?.get(middle)?.get()?;
        let mut fileset = leaf.get(low)?.get()?;
        while let Some(successor) = fileset.successor.get() {
            fileset = successor;
        }
        Some(fileset)
    }

    /// Enters a fileset where none is yet, or as the successor of what is there; returns the one
    /// that is there then.
    fn enter(&self, slot: u32, fileset: Box<Fileset>) -> &Fileset {
        let [high, middle, low] = indexes(slot);
        let middles = &self.top.get_or_init(empty)[high];
        let leaf = &middles.get_or_init(empty)[middle];
        match self.get(slot) {
            Some(last) => last.successor.get_or_init(|| fileset),
            None => leaf.get_or_init(empty)[low].get_or_init(|| fileset),
        }
    }
}

/// The filesets of a pool that are opened.
#[derive(Debug)]
pub(crate) struct Filesets {
    /// The one that is always there: found without a search.
    pub(super) main: Fileset,
    others: SlotMap,
    opened: Mutex<Opened>,
    /// One is opened at a time.
    opening: Mutex<()>,
    /// Whether any of the others was ever held.
    has_held: AtomicBool,
    /// What was given up of streams: slots and names.
    given_up: Mutex<Vec<(u32, String)>>,
    /// A fileset is held, or given back, by one at a time.
    pub(super) holding: Mutex<()>,
    /// All that the pool has.
    pub(crate) table: FilesetTable,
}

/// Which of the others are opened.
#[derive(Debug, Default)]
struct Opened {
    slots: Vec<u32>,
    /// Slots of those of a family that are no clones.
    families: BTreeMap<FilesetId, Vec<u32>>,
}

/// What a new fileset is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewFileset {
    /// Default block size of files: binary logarithm; `None`: as the fileset above it.
    pub block_shift: Option<u8>,
    /// Whether nobody may change what is in it; `None`: as the fileset above it.
    pub is_read_only: Option<bool>,
    /// Most bytes that it may reference; 0: no limit. Not inherited.
    pub quota_bytes: u64,
    /// Bytes that are kept free for it, less what it references. Not inherited.
    pub reservation_bytes: u64,
    /// Which disk group new data of what is made in it should come from; `None`: as its root
    /// directory would inherit it (NR1).
    pub placement: Option<Placement>,
    /// Owner and group of its root directory.
    pub owner: (u32, u32),
    /// Random bits: what handles name it by, and the key of its root directory.
    pub random: [u8; 32],
}

impl Fileset {
    pub(crate) fn new(anodes: MountedFileset) -> Fileset {
        let gate = Gate::new(anodes.shared_epoch());
        let fileset = Fileset::with_gate(anodes, gate);
        fileset.is_ready.store(true, Ordering::Release);
        fileset
    }

    fn with_gate(anodes: MountedFileset, gate: Gate) -> Fileset {
        Fileset {
            is_read_only: AtomicBool::new(anodes.is_read_only()),
            is_half_freed: AtomicBool::new(false),
            is_clone: anodes.is_clone(),
            is_closed: AtomicBool::new(anodes.is_closed()),
            rename_lock: Mutex::new(()),
            gate,
            anodes,
            doomed: orphan::Doomed::default(),
            readahead: readahead::Readahead::default(),
            is_ready: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_superseded: AtomicBool::new(false),
            successor: OnceLock::new(),
            holds: AtomicUsize::new(0),
            taken_over: Mutex::default(),
        }
    }

    /// Returns what handles name it by.
    pub(crate) fn uuid(&self) -> FilesetUuid {
        FilesetUuid(u128::from_le_bytes(self.anodes.uuid))
    }

    /// Returns it, unless it was deleted.
    fn check_there(&self) -> FsResult<&Fileset> {
        if self.is_gone.load(Ordering::Acquire) { Err(FsError::Stale) } else { Ok(self) }
    }

    /// Refuses one that was restored since it was looked up. Asked under the table's lock.
    pub(super) fn check_current(&self) -> FsResult<()> {
        if self.is_superseded.load(Ordering::SeqCst) { Err(FsError::Stale) } else { Ok(()) }
    }

    /// Lets no front enter any more, unless one has.
    pub(super) fn close_to_fronts(&self) -> Result<(), ()> {
        // Whoever holds it says so first, and then looks whether it is gone.
        self.is_gone.store(true, Ordering::SeqCst);
        if self.is_held() {
            self.is_gone.store(false, Ordering::SeqCst);
            return Err(());
        }
        Ok(())
    }

    /// Whether it is gone, or on its way: what has no name in it is freed with it.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst) || self.is_superseded.load(Ordering::SeqCst)
    }

    /// Waits for whoever frees files without a name and has not seen yet that it is leaving.
    pub(super) fn wait_for_reapers(&self) {
        drop(self.gate.close());
    }

    /// Whether fronts may ask for its files.
    pub(super) fn is_held(&self) -> bool {
        self.holds.load(Ordering::SeqCst) > 0
    }

    /// Whether fronts hold it no more than so often.
    pub(super) fn is_held_by(&self, holds: usize) -> bool {
        self.holds.load(Ordering::SeqCst) <= holds
    }

    /// Whether it is what a fileset was like at one moment.
    pub(super) fn is_clone(&self) -> bool {
        self.is_clone
    }

    /// Says whether nobody may change what is in it.
    pub(super) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Release);
    }

    /// Whether nobody may change what is in it.
    pub(super) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire) || self.is_half_freed()
    }
}

impl Filesets {
    pub(crate) fn new(main: Fileset, table: FilesetTable) -> Filesets {
        main.holds.store(1, Ordering::SeqCst);
        Filesets {
            main,
            others: SlotMap { top: OnceLock::new() },
            opened: Mutex::new(Opened::default()),
            opening: Mutex::new(()),
            has_held: AtomicBool::new(false),
            given_up: Mutex::new(Vec::new()),
            holding: Mutex::new(()),
            table,
        }
    }

    /// Waits until nobody opens a fileset. Called with no lock held.
    pub(super) fn wait_until_unopened(&self) {
        drop(self.opening.lock());
    }

    /// Whether fronts serve the fileset in `slot`.
    pub(super) fn is_used(&self, slot: u32) -> bool {
        slot == self.main_slot() || self.by_slot(slot).is_some_and(Fileset::is_held)
    }

    /// Returns each fileset that is opened.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fileset> {
        let others = self.opened.lock().slots.clone();
        let others = others.into_iter().filter_map(|slot| self.others.get(slot));
        std::iter::once(&self.main).chain(others)
    }

    /// Keeps everybody from opening a fileset, and from moving blocks of one. Called with no lock
    /// held.
    pub(super) fn keep_all_unopened(&self) -> MutexGuard<'_, ()> {
        self.opening.lock()
    }

    /// Keeps everybody from opening a fileset; `None`: somebody opens one. Whoever waits for that
    /// holds nothing.
    pub(super) fn keep_unopened(&self) -> Option<MutexGuard<'_, ()>> {
        self.opening.try_lock()
    }

    /// Returns what was given up of streams and nobody frees yet: slots and names.
    pub(crate) fn take_given_up(&self) -> Vec<(u32, String)> {
        std::mem::take(&mut *self.given_up.lock())
    }

    /// Notes that what came of a stream is given up.
    pub(super) fn note_given_up(&self, slot: u32, name: String) {
        self.given_up.lock().push((slot, name));
    }

    /// Nobody finds the fileset any more: it is gone.
    pub(super) fn forget(&self, fileset: &Fileset) {
        fileset.is_gone.store(true, Ordering::SeqCst);
        let (slot, family) = (fileset.anodes.slot, fileset.anodes.family);
        let mut opened = self.opened.lock();
        opened.slots.retain(|it| *it != slot);
        if let Some(slots) = opened.families.get_mut(&family) {
            slots.retain(|it| *it != slot);
        }
    }

    /// Returns the slot of the one that is always there.
    pub(crate) fn main_slot(&self) -> u32 {
        self.main.anodes.slot
    }

    pub(super) fn by_slot(&self, slot: u32) -> Option<&Fileset> {
        if slot == self.main.anodes.slot { Some(&self.main) } else { self.others.get(slot) }
    }

    /// As [`Filesets::by_slot`], unless it was restored and nobody has opened what it is now.
    pub(super) fn by_slot_current(&self, slot: u32) -> Option<&Fileset> {
        self.by_slot(slot).filter(|fileset| fileset.check_current().is_ok())
    }

    /// Returns the opened filesets whose blocks name `family` and that are no clones.
    pub(super) fn opened_of(&self, family: FilesetId) -> impl Iterator<Item = &Fileset> {
        let main = Some(&self.main).filter(|main| main.anodes.family == family && !main.is_clone);
        let slots = self.opened.lock().families.get(&family).cloned().unwrap_or_default();
        main.into_iter().chain(slots.into_iter().filter_map(|slot| self.others.get(slot)))
    }

    fn enter(&self, slot: u32, fileset: Fileset) -> &Fileset {
        let family = (!fileset.is_clone).then_some(fileset.anodes.family);
        let is_first = self.others.get(slot).is_none();
        let entered = self.others.enter(slot, Box::new(fileset));
        if !is_first {
            return entered;
        }
        let mut opened = self.opened.lock();
        opened.slots.push(slot);
        if let Some(family) = family {
            opened.families.entry(family).or_default().push(slot);
        }
        entered
    }
}

impl Core {
    /// Returns the fileset in `slot`; opens it if nobody has yet. Called with no lock held.
    pub(crate) fn open_fileset(&self, slot: u32) -> FsResult<&Fileset> {
        let is_ready = |fileset: &&Fileset| fileset.is_ready.load(Ordering::Acquire);
        if let Some(fileset) = self.filesets.by_slot_current(slot).filter(is_ready) {
            return fileset.check_there();
        }
        let _opening = self.filesets.opening.lock();
        let fileset = self.open_unready(slot)?;
        if !is_ready(&fileset) {
            if !self.options.is_read_only && !fileset.is_clone {
                // Nobody had it open: what is in the list was left by a crash.
                (Files { core: self, fileset }).finish_orphans()?;
            }
            fileset.is_ready.store(true, Ordering::Release);
        }
        fileset.check_there()
    }

    /// Returns the fileset in `slot` for a job that looks at it, and must not wait for space: what
    /// a crash has left of it is finished when somebody else opens it. `None`: another one is being
    /// opened.
    pub(super) fn open_for_job(&self, slot: u32) -> FsResult<Option<&Fileset>> {
        if let Some(fileset) = self.filesets.by_slot_current(slot) {
            return fileset.check_there().map(Some);
        }
        let Some(_opening) = self.filesets.opening.try_lock() else { return Ok(None) };
        self.open_unready(slot)?.check_there().map(Some)
    }

    /// Does so for whoever keeps others from opening any.
    fn open_unready(&self, slot: u32) -> FsResult<&Fileset> {
        if let Some(fileset) = self.filesets.by_slot_current(slot) {
            return Ok(fileset);
        }
        let anodes = MountedFileset::open(&self.store, slot)?;
        let gate = Gate::new_closed(anodes.shared_epoch());
        let fileset = self.filesets.enter(slot, Fileset::with_gate(anodes, gate));
        let closed = fileset.gate.take();
        if !self.options.is_read_only && !fileset.is_clone {
            tolerate(self.finish_clone_deletion(fileset, &closed))?;
        }
        Ok(fileset)
    }

    /// Opens a fileset, or a clone of it, for fronts. It can't be deleted until each of them has
    /// given it back ([`Core::release_fileset`]).
    pub(crate) fn hold_fileset(
        &self,
        path: &[NamePart],
        clone: Option<&NamePart>,
    ) -> FsResult<FilesetUuid> {
        let slot = self.filesets.table.lock(&self.store)?.slot_of_node(path, clone)?;
        match self.hold_slot_with(slot, 1) {
            Err(FsError::Stale) => Err(FsError::NoFileset { name: joined(path) }),
            held => held,
        }
    }

    /// As [`Core::hold_fileset`], of the fileset or clone in `slot`, for as long as the pool is
    /// open.
    pub(crate) fn hold_slot(&self, slot: u32) -> FsResult<FilesetUuid> {
        let is_kept = |fileset: &&Fileset| fileset.holds.load(Ordering::SeqCst) >= FOR_GOOD;
        if let Some(fileset) = self.filesets.by_slot_current(slot).filter(is_kept) {
            return Ok(fileset.check_there()?.uuid());
        }
        self.hold_slot_with(slot, FOR_GOOD)
    }

    pub(super) fn hold_slot_with(&self, slot: u32, holds: usize) -> FsResult<FilesetUuid> {
        let fileset = self.open_fileset(slot)?;
        let _holding = self.filesets.holding.lock();
        // Whoever deletes says so first, and then looks whether it is held.
        fileset.holds.fetch_add(holds, Ordering::SeqCst);
        let is_closed = fileset.is_closed.load(Ordering::SeqCst);
        if is_closed || fileset.is_gone.load(Ordering::SeqCst) {
            fileset.holds.fetch_sub(holds, Ordering::SeqCst);
            let name = || self.filesets.table.lock(&self.store).map(|it| it.path_of(slot));
            return Err(if is_closed { on_its_way(name()?) } else { FsError::Stale });
        }
        if !self.is_main(fileset) {
            self.filesets.has_held.store(true, Ordering::Release);
        }
        Ok(fileset.uuid())
    }

    /// As [`Core::hold_fileset`], of the main fileset.
    pub(crate) fn hold_main(&self) -> FilesetUuid {
        let _holding = self.filesets.holding.lock();
        self.filesets.main.holds.fetch_add(1, Ordering::SeqCst);
        self.filesets.main.uuid()
    }

    /// A front that held a fileset has ended: it asks for nothing more, and none of its requests is
    /// under way. With the last one go the references that fronts have not given back, and with
    /// them files without a name.
    pub(crate) fn release_fileset(&self, fileset: FilesetUuid) {
        let _holding = self.filesets.holding.lock();
        let Ok(files) = self.files_named(fileset) else { return };
        let holds = &files.fileset.holds;
        // While it is held still: nobody deletes the fileset, or puts another in its place, while
        // its files are freed.
        let is_kept = self.is_main(files.fileset) && planted::is(Planted::MainReferencesKept);
        if holds.load(Ordering::SeqCst) == 1 && !is_kept {
            for (ino, count) in self.table.references_of(files.fileset.anodes.slot) {
                files.forget(ino, count);
            }
        }
        let less = |holds: usize| (!holds.is_multiple_of(FOR_GOOD)).then(|| holds - 1);
        // Who holds it for good keeps it.
        let _ = holds.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    pub(super) fn is_main(&self, fileset: &Fileset) -> bool {
        std::ptr::eq(fileset, &self.filesets.main)
    }

    /// Whether any fileset besides the main one is held.
    pub(crate) fn has_held(&self) -> bool {
        self.filesets.has_held.load(Ordering::Acquire)
    }

    /// Returns the files of each fileset that is held, besides the main one.
    pub(crate) fn held_files(&self) -> impl Iterator<Item = Files<'_>> {
        self.all_files().skip(1).filter(|files| files.fileset.is_held())
    }

    /// Whether `ino` is of the main fileset.
    pub(crate) fn is_of_main(&self, ino: Ino) -> bool {
        ino.slot() == self.filesets.main_slot()
    }

    /// Returns the files of the fileset that `ino` is in.
    pub(crate) fn files_of(&self, ino: Ino) -> FsResult<Files<'_>> {
        if self.is_of_main(ino) {
            return Ok(self.main_files());
        }
        let fileset = self.filesets.by_slot(ino.slot());
        let fileset = fileset.filter(|fileset| fileset.is_held() && !fileset.is_put_out());
        Ok(Files { core: self, fileset: fileset.ok_or(FsError::Stale)? })
    }

    /// Returns what identifies the clone in `slot`, where one is opened there.
    pub(crate) fn clone_of_slot(&self, slot: u32) -> Option<FilesetUuid> {
        let fileset = self.filesets.by_slot(slot).filter(|fileset| fileset.is_clone());
        fileset.map(Fileset::uuid)
    }

    /// Returns the files of the fileset that handles name so.
    pub(crate) fn files_named(&self, fileset: FilesetUuid) -> FsResult<Files<'_>> {
        let main = self.main_files();
        if main.uuid() == fileset {
            return Ok(main);
        }
        self.held_files().find(|files| files.uuid() == fileset).ok_or(FsError::Stale)
    }

    /// Says of an error which file it is about, as [`Files::named`] does.
    pub(crate) fn named<T>(&self, ino: Ino, name: &[u8], result: FsResult<T>) -> FsResult<T> {
        match self.files_of(ino) {
            Ok(files) => files.named(ino, name, result),
            Err(_) => result,
        }
    }

    /// Returns the filesets in use whose blocks name `family`, opened for a job, and whether these
    /// are all. Called with no lock held.
    pub(crate) fn filesets_of_family(&self, family: FilesetId) -> FsResult<(Vec<&Fileset>, bool)> {
        let slots: Vec<u32> = {
            let index = self.filesets.table.lock(&self.store)?;
            let is_written = |node: &&Node| node.is_live() || node.is_receiving();
            index.family(family).filter(is_written).map(|node| node.slot).collect()
        };
        let (mut found, mut is_all) = (Vec::with_capacity(slots.len()), true);
        for slot in slots {
            match self.open_for_job(slot) {
                Ok(Some(fileset)) => found.push(fileset),
                Ok(None) => is_all = false,
                // It was deleted meanwhile.
                Err(FsError::Stale | FsError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((found, is_all))
    }

    /// Returns the filesets in slot `from` and the next ones with their names, `count` at most,
    /// those too that are being freed.
    pub(crate) fn list_filesets(&self, from: u32, count: usize) -> FsResult<Vec<(String, Node)>> {
        let index = self.filesets.table.lock(&self.store)?;
        let found = index.nodes_from(from).take(count);
        let mut all: Vec<_> = found.map(|node| (index.path_of(node.slot), node.clone())).collect();
        for (_, node) in &mut all {
            if let Some(fileset) = self.filesets.by_slot_current(node.slot) {
                node.anodes_used = fileset.anodes.anodes_used();
                node.fragments = fileset.anodes.usage.counts().used;
            }
        }
        Ok(all)
    }

    /// Returns the slots and names of those that were deleted and are not all freed.
    pub(crate) fn deleted_filesets(&self) -> FsResult<Vec<(u32, String)>> {
        let index = self.filesets.table.lock(&self.store)?;
        let deleted = index.nodes().filter(|node| node.is_deleted());
        Ok(deleted.map(|node| (node.slot, index.path_of(node.slot))).collect())
    }

    /// Whether a deleted fileset is not all freed yet.
    pub(crate) fn has_deleted_filesets(&self) -> FsResult<bool> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(index.nodes().any(Node::is_deleted))
    }

    /// Makes a fileset; it is durable when this returns.
    pub(crate) fn create_fileset(&self, path: &[NamePart], new: &NewFileset) -> FsResult<Node> {
        self.check_writable()?;
        self.check_block_shift(new.block_shift)?;
        self.grow_table()?;
        let mut change = self.store.begin_pool(Reservation::LARGE)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        let (above, name) = check_new_name(&index, None, path)?;
        let model = index.node(above.unwrap_or(ROOT_SLOT)).ok_or(FsError::Invalid)?;
        let (above_slot, block_shift) = (model.slot, new.block_shift.unwrap_or(model.block_shift));
        let inherited = above.is_some() && model.is_read_only;
        let taken = index.take_slot(&self.store, &mut change)?;
        let id = FilesetId(change.epoch().0);
        let mut entry = Entry::new(id, taken.slot, name, block_shift);
        entry.above = above;
        entry.is_read_only = new.is_read_only.unwrap_or(inherited);
        (entry.quota_bytes, entry.reservation_bytes) = (new.quota_bytes, new.reservation_bytes);
        self.check_reservation(&joined(path), &entry, (0, 0))?;
        change.count_reservations(i64_of(entry.reservation_bytes));
        entry.created_seconds = u64::try_from(self.store.now().seconds).unwrap_or(0);
        entry.uuid.copy_from_slice(&new.random[..16]);
        let root = self.new_root(&index, above_slot, new)?;
        make_first_pages(&self.store, &mut change, &mut entry, &root)?;
        index.write_entry(&self.store, &mut change, &entry, Some(&taken))?;
        let applied = change.end();
        index.note_new(&entry, taken);
        let made = index.node(entry.slot).cloned().ok_or(FsError::Invalid)?;
        self.store.alloc.kept.change(0, made.kept(self.store.geometry().fragment_shift));
        drop(index);
        self.store.journal.commit(applied.class)?;
        Ok(made)
    }

    /// As [`Core::delete_clone`], of the clone that `uuid` identifies alone. That is looked at
    /// under the lock of the table, in the transaction that deletes it.
    pub(crate) fn delete_this_clone(
        &self,
        path: &[NamePart],
        name: &NamePart,
        uuid: FilesetUuid,
    ) -> FsResult<u32> {
        self.delete_clone_at(&|index| {
            let slot = index.slot_of_node(path, Some(name))?;
            let found = index.node(slot).map(|node| u128::from_le_bytes(node.uuid));
            if found == Some(uuid.0) || planted::is(Planted::CloneDeletedByName) {
                return Ok(slot);
            }
            let by = "it is another clone than the one that was to be deleted: somebody has taken \
                      it anew by this name, and it stays";
            Err(FsError::FilesetInUse { name: index.path_of(slot), by: by.to_owned() })
        })
    }

    /// Deletes a fileset that nobody has mounted: it is out of reach, and that is durable, when
    /// this returns. What it held is freed by a job. Returns its slot.
    pub(crate) fn delete_fileset(&self, path: &[NamePart]) -> FsResult<u32> {
        self.check_writable()?;
        let slot = self.filesets.table.lock(&self.store)?.slot_of(path)?;
        self.delete_slot(slot, joined(path))
    }

    /// As [`Core::delete_fileset`], of the one in `slot`, which is called `name`.
    pub(super) fn delete_slot(&self, slot: u32, name: String) -> FsResult<u32> {
        let in_use = |by: &str| FsError::FilesetInUse { name: name.clone(), by: by.to_owned() };
        if slot == ROOT_SLOT {
            return Err(in_use("it is the first of the pool, which always has one"));
        }
        if slot == self.filesets.main.anodes.slot {
            return Err(in_use("it is mounted: unmount it first"));
        }
        let fileset = self.open_fileset(slot)?;
        {
            let index = self.filesets.table.lock(&self.store)?;
            check_settled(&index, slot)?;
            check_childless(&index, slot)?;
        }
        fileset.close_to_fronts().map_err(|()| in_use("it is served: end its server first"))?;
        self.emptier.wait();
        let done = self.make_unreachable(fileset);
        if done.is_err() {
            fileset.is_gone.store(false, Ordering::Release);
        }
        done.map(|()| slot)
    }

    fn make_unreachable(&self, fileset: &Fileset) -> FsResult<()> {
        fileset.wait_for_reapers();
        // What was moved in it is entered in its maps, and its data is home: the walk that frees it
        // looks at nothing but its maps.
        self.sync_all()?;
        self.store.journal.checkpoint()?;
        let mut change = self.store.begin_in(&fileset.gate, Reservation::SMALL)?;
        let mut index = self.filesets.table.lock(&self.store)?;
        // Since the first look somebody may have deleted it, or made one below it.
        check_live(&index, fileset.anodes.slot)?;
        fileset.check_current()?;
        check_childless(&index, fileset.anodes.slot)?;
        check_no_clone_freed(&index, fileset)?;
        let mut guard = fileset.anodes.lock();
        check_settled(&index, fileset.anodes.slot)?;
        let reservation = guard.entry().reservation_bytes;
        let entry = guard.change_entry(&mut change, |entry| {
            entry.state = FilesetState::Deleted(Cursor::START);
            entry.moving = None;
            (entry.quota_bytes, entry.reservation_bytes) = (0, 0);
        })?;
        change.count_reservations(-i64_of(reservation));
        let applied = change.end();
        guard.end_fileset();
        guard.settle(applied.lsn);
        fileset.anodes.usage.set_limits(Limits::default());
        index.note(&entry);
        drop(index);
        self.store.journal.commit(applied.class)
    }
}

/// Refuses a fileset that was deleted meanwhile.
pub(super) fn check_live(index: &Index, slot: u32) -> FsResult<()> {
    if index.node(slot).is_some_and(Node::is_live) { Ok(()) } else { Err(FsError::Stale) }
}

/// FM4: refuses what would make one forget that it has arrived, before the pool that it came from
/// knows.
pub(super) fn check_settled(index: &Index, slot: u32) -> FsResult<()> {
    let moving = index.node(slot).and_then(|node| node.moving);
    if !matches!(moving, Some(Moving::Arrived { .. })) {
        return Ok(());
    }
    let by = "it has come from another pool, which does not know yet: serve both by one server, or \
              give the `holdfast fileset move` again";
    Err(FsError::FilesetInUse { name: index.path_of(slot), by: by.to_owned() })
}

/// DL3: refuses to free a fileset beside a clone that is being freed: the one is to be compared
/// with the other.
fn check_no_clone_freed(index: &Index, fileset: &Fileset) -> FsResult<()> {
    if !index.is_clone_freed(fileset.anodes.family) {
        return Ok(());
    }
    let by = "a clone that it goes back to is being freed: try again when that is done".to_owned();
    Err(FsError::FilesetInUse { name: index.path_of(fileset.anodes.slot), by })
}

/// FT2: refuses a fileset that others are below.
pub(super) fn check_childless(index: &Index, slot: u32) -> FsResult<()> {
    let clones: Vec<_> = index.clones_of(slot).map(|node| index.path_of(node.slot)).collect();
    if !clones.is_empty() {
        let by = format!("it has clones: {}: delete these first", clones.join(", "));
        return Err(FsError::FilesetInUse { name: index.path_of(slot), by });
    }
    let below: Vec<_> = index.children(slot).map(|node| index.path_of(node.slot)).collect();
    if below.is_empty() {
        return Ok(());
    }
    let by = format!("these are below it: {}", below.join(", "));
    Err(FsError::FilesetInUse { name: index.path_of(slot), by })
}

/// Returns which fileset one called `path` is below, and its own name.
pub(super) fn place_of_name(index: &Index, path: &[NamePart]) -> FsResult<(Option<u32>, NamePart)> {
    let (name, above) = path.split_last().ok_or(FsError::Invalid)?;
    let above = match above {
        [] => None,
        above => Some(index.slot_of(above)?),
    };
    Ok((above, name.clone()))
}

/// Returns where a fileset is once it is called `path`: the one in `slot`, or a new one.
pub(super) fn check_new_name(
    index: &Index,
    slot: Option<u32>,
    path: &[NamePart],
) -> FsResult<(Option<u32>, NamePart)> {
    let (above, name) = place_of_name(index, path)?;
    let is_taken = index.child(above, &name).is_some_and(|node| Some(node.slot) != slot);
    if is_taken {
        return Err(FsError::FilesetExists { name: joined(path) });
    }
    let mut next = above;
    while let Some(at) = next {
        if Some(at) == slot {
            let by = "it can't be below itself".to_owned();
            return Err(FsError::FilesetInUse { name: joined(path), by });
        }
        next = index.node(at).and_then(|node| node.above);
    }
    Ok((above, name))
}

pub(super) fn key_of(random: &[u8; 32]) -> [u64; 2] {
    let word = |from: usize| {
        random[from..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_le_bytes(*bytes))
    };
    [word(16), word(24)]
}

impl Files<'_> {
    /// Whether they are a clone's: nobody ever changes them.
    pub(crate) fn is_of_clone(&self) -> bool {
        self.fileset.is_clone()
    }

    /// Refuses a change where nobody may make one.
    pub(super) fn check_writable(&self) -> FsResult<()> {
        if self.fileset.is_clone() {
            return Err(FsError::ReadOnlyClone);
        }
        if self.fileset.is_read_only() {
            return Err(FsError::ReadOnly { reason: "the fileset is read-only".to_owned() });
        }
        self.core.check_writable()
    }
}
