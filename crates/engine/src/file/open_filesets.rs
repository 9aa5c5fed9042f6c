//! The open filesets of a pool. An opened one stays in memory until the pool is closed.
//!
//! # Concurrency
//!
//! One fileset is opened at a time. Open ones are found without a lock.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use format::fileset::{MoveToken, NamePart, joined};
use format::ids::FilesetId;
use format::placement::Placement;

use crate::api::{FilesetUuid, Ino};
use crate::error::{FsError, FsResult};
use crate::file::half_freed::tolerate;
use crate::file::{Core, Files, orphan, readahead};
use crate::fileset_table::MountedFileset;
use crate::fileset_table::table::{FilesetNode, FilesetTable, on_its_way};
use crate::gate::FilesetGate;
use crate::sync::{Mutex, MutexGuard};

const FAN_OUT: usize = 256;
const LEVELS: u32 = 3;
const _: () = assert!(FAN_OUT.pow(LEVELS) == 1 << 24, "as many as a pool has slots");

#[derive(Debug)]
pub(crate) struct OpenFileset {
    pub(crate) anodes: MountedFileset,
    /// Serialises renames of directories, which could form a loop otherwise.
    pub(super) rename_lock: Mutex<()>,
    /// Entered by each change of the fileset, and closed by a snapshot.
    pub(crate) gate: FilesetGate,
    pub(super) doomed: orphan::DeferredDeletes,
    pub(super) readahead: readahead::InodeReadahead,
    pub(super) is_snapshot: bool,
    is_read_only: AtomicBool,
    /// Forces read-only until the next open: a deleted snapshot could not be freed.
    pub(crate) is_half_freed: AtomicBool,
    /// Whether orphans are recovered. Until then only jobs use the fileset.
    is_ready: AtomicBool,
    /// Whether a move excludes fronts (FM1).
    pub(crate) is_closed: AtomicBool,
    /// Whether a deletion or restore excludes all operations.
    pub(crate) is_gone: AtomicBool,
    /// Whether a restore or a receive has put another tree into the slot.
    pub(crate) is_superseded: AtomicBool,
    /// The fileset that replaced this one in its slot, once opened.
    successor: OnceLock<Box<OpenFileset>>,
    /// Number of fronts that use the fileset, which prevents its deletion, plus [`FOR_GOOD`] for a
    /// use without end. The opener of the pool holds the main fileset.
    pub(super) holds: AtomicUsize,
    /// FM5: the move whose fronts this fileset has taken over.
    pub(crate) taken_over: Mutex<Option<MoveToken>>,
}

/// Added to [`OpenFileset::holds`] by a use that lasts until the pool is closed.
pub(super) const FOR_GOOD: usize = 1 << 32;

/// Lock-free map from slots to filesets. An entry stays. If its fileset was replaced, it leads to
/// the successor.
#[derive(Debug)]
struct SlotMap {
    top: OnceLock<Box<[SlotMapMiddle]>>,
}

type SlotMapMiddle = OnceLock<Box<[SlotMapLeaf]>>;
type SlotMapLeaf = OnceLock<Box<[OnceLock<Box<OpenFileset>>]>>;

fn empty<T>() -> Box<[OnceLock<T>]> {
    (0..FAN_OUT).map(|_| OnceLock::new()).collect()
}

fn indexes(slot: u32) -> [usize; 3] {
    let [low, middle, high, _] = slot.to_le_bytes();
    [high.into(), middle.into(), low.into()]
}

impl SlotMap {
    fn get(&self, slot: u32) -> Option<&OpenFileset> {
        let [high, middle, low] = indexes(slot);
        let leaf = self.top.get()?.get(high)?.get()?.get(middle)?.get()?;
        let mut fileset = leaf.get(low)?.get()?;
        while let Some(successor) = fileset.successor.get() {
            fileset = successor;
        }
        Some(fileset)
    }

    /// Adds a fileset to its slot. In an occupied slot it becomes the successor. Returns the winner
    /// of concurrent additions.
    fn enter(&self, slot: u32, fileset: Box<OpenFileset>) -> &OpenFileset {
        let [high, middle, low] = indexes(slot);
        let middles = &self.top.get_or_init(empty)[high];
        let leaf = &middles.get_or_init(empty)[middle];
        match self.get(slot) {
            Some(last) => last.successor.get_or_init(|| fileset),
            None => leaf.get_or_init(empty)[low].get_or_init(|| fileset),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Filesets {
    /// The main fileset, found without a search.
    pub(crate) main: OpenFileset,
    others: SlotMap,
    opened: Mutex<OpenSlots>,
    opening: Mutex<()>,
    has_held: AtomicBool,
    given_up: Mutex<Vec<(u32, String)>>,
    /// Held by the functions that change `holds`.
    pub(super) holding: Mutex<()>,
    pub(crate) table: FilesetTable,
}

#[derive(Debug, Default)]
struct OpenSlots {
    slots: Vec<u32>,
    /// Slots of a family's filesets, without snapshots.
    families: BTreeMap<FilesetId, Vec<u32>>,
}

/// Properties of a new fileset.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewFileset {
    /// Default block size, as a binary logarithm; `None` to inherit.
    pub block_shift: Option<u8>,
    /// Whether the fileset is read-only; `None` to inherit.
    pub is_read_only: Option<bool>,
    /// Limit of referenced bytes; 0 for none. Not inherited.
    pub quota_bytes: u64,
    /// Reserved bytes, including those referenced. Not inherited.
    pub reservation_bytes: u64,
    /// Preferred disk group; `None` to inherit (NR1).
    pub placement: Option<Placement>,
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
    /// Random bits for the UUID and the root's hash key.
    pub random: [u8; 32],
}

impl OpenFileset {
    pub(crate) fn new(anodes: MountedFileset) -> OpenFileset {
        let gate = FilesetGate::new(anodes.shared_epoch());
        let fileset = OpenFileset::with_gate(anodes, gate);
        fileset.is_ready.store(true, Ordering::Release);
        fileset
    }

    fn with_gate(anodes: MountedFileset, gate: FilesetGate) -> OpenFileset {
        OpenFileset {
            is_read_only: AtomicBool::new(anodes.is_read_only()),
            is_half_freed: AtomicBool::new(false),
            is_snapshot: anodes.is_snapshot(),
            is_closed: AtomicBool::new(anodes.is_closed()),
            rename_lock: Mutex::new(()),
            gate,
            anodes,
            doomed: orphan::DeferredDeletes::default(),
            readahead: readahead::InodeReadahead::default(),
            is_ready: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_superseded: AtomicBool::new(false),
            successor: OnceLock::new(),
            holds: AtomicUsize::new(0),
            taken_over: Mutex::default(),
        }
    }

    pub(crate) fn uuid(&self) -> FilesetUuid {
        FilesetUuid(u128::from_le_bytes(self.anodes.uuid))
    }

    fn check_there(&self) -> FsResult<&OpenFileset> {
        if self.is_gone.load(Ordering::Acquire) { Err(FsError::Stale) } else { Ok(self) }
    }

    /// Refuses a replaced fileset. Called under the table's lock.
    pub(crate) fn check_current(&self) -> FsResult<()> {
        if self.is_superseded.load(Ordering::SeqCst) { Err(FsError::Stale) } else { Ok(()) }
    }

    /// Closes the fileset to fronts; fails if a front holds it.
    pub(crate) fn close_to_fronts(&self) -> Result<(), ()> {
        // Marks first and checks the count then. [`Core::hold_slot_with`] does the reverse, so at
        // least one of the two fails.
        self.is_gone.store(true, Ordering::SeqCst);
        if self.is_held() {
            self.is_gone.store(false, Ordering::SeqCst);
            return Err(());
        }
        Ok(())
    }

    /// Whether the whole tree is being freed.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst) || self.is_superseded.load(Ordering::SeqCst)
    }

    /// Waits for threads that free unlinked files, and that began before
    /// [`OpenFileset::is_leaving`].
    pub(crate) fn wait_for_reapers(&self) {
        drop(self.gate.close());
    }

    pub(super) fn is_held(&self) -> bool {
        self.holds.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn is_held_by(&self, holds: usize) -> bool {
        self.holds.load(Ordering::SeqCst) <= holds
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        self.is_snapshot
    }

    pub(crate) fn set_read_only(&self, is_read_only: bool) {
        self.is_read_only.store(is_read_only, Ordering::Release);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only.load(Ordering::Acquire) || self.is_half_freed()
    }
}

impl Filesets {
    pub(crate) fn new(main: OpenFileset, table: FilesetTable) -> Filesets {
        main.holds.store(1, Ordering::SeqCst);
        Filesets {
            main,
            others: SlotMap { top: OnceLock::new() },
            opened: Mutex::new(OpenSlots::default()),
            opening: Mutex::new(()),
            has_held: AtomicBool::new(false),
            given_up: Mutex::new(Vec::new()),
            holding: Mutex::new(()),
            table,
        }
    }

    /// Waits until no fileset is being opened. Called with no lock held.
    pub(crate) fn wait_until_unopened(&self) {
        drop(self.opening.lock());
    }

    pub(crate) fn is_used(&self, slot: u32) -> bool {
        slot == self.main_slot() || self.by_slot(slot).is_some_and(OpenFileset::is_held)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &OpenFileset> {
        let others = self.opened.lock().slots.clone();
        let others = others.into_iter().filter_map(|slot| self.others.get(slot));
        std::iter::once(&self.main).chain(others)
    }

    /// Prevents opening of filesets, and so also moves of blocks. Called with no lock held.
    pub(crate) fn keep_all_unopened(&self) -> MutexGuard<'_, ()> {
        self.opening.lock()
    }

    /// Prevents opening of filesets; `None` while one is being opened. The caller must wait for
    /// that only without locks.
    pub(crate) fn keep_unopened(&self) -> Option<MutexGuard<'_, ()>> {
        self.opening.try_lock()
    }

    pub(crate) fn take_given_up(&self) -> Vec<(u32, String)> {
        std::mem::take(&mut *self.given_up.lock())
    }

    pub(crate) fn note_given_up(&self, slot: u32, name: String) {
        self.given_up.lock().push((slot, name));
    }

    /// Marks a fileset as gone, and removes it from the list of open filesets.
    pub(crate) fn forget(&self, fileset: &OpenFileset) {
        fileset.is_gone.store(true, Ordering::SeqCst);
        let (slot, family) = (fileset.anodes.slot, fileset.anodes.family);
        let mut opened = self.opened.lock();
        opened.slots.retain(|it| *it != slot);
        if let Some(slots) = opened.families.get_mut(&family) {
            slots.retain(|it| *it != slot);
        }
    }

    pub(crate) fn main_slot(&self) -> u32 {
        self.main.anodes.slot
    }

    pub(crate) fn by_slot(&self, slot: u32) -> Option<&OpenFileset> {
        if slot == self.main.anodes.slot { Some(&self.main) } else { self.others.get(slot) }
    }

    /// Returns [`Filesets::by_slot`]; `None` if that was replaced and the successor is not open.
    pub(crate) fn by_slot_current(&self, slot: u32) -> Option<&OpenFileset> {
        self.by_slot(slot).filter(|fileset| fileset.check_current().is_ok())
    }

    pub(super) fn opened_of(&self, family: FilesetId) -> impl Iterator<Item = &OpenFileset> {
        let main =
            Some(&self.main).filter(|main| main.anodes.family == family && !main.is_snapshot);
        let slots = self.opened.lock().families.get(&family).cloned().unwrap_or_default();
        main.into_iter().chain(slots.into_iter().filter_map(|slot| self.others.get(slot)))
    }

    fn enter(&self, slot: u32, fileset: OpenFileset) -> &OpenFileset {
        let family = (!fileset.is_snapshot).then_some(fileset.anodes.family);
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
    /// Opens the fileset in `slot` on demand. Called with no lock held.
    pub(crate) fn open_fileset(&self, slot: u32) -> FsResult<&OpenFileset> {
        let is_ready = |fileset: &&OpenFileset| fileset.is_ready.load(Ordering::Acquire);
        if let Some(fileset) = self.filesets.by_slot_current(slot).filter(is_ready) {
            return fileset.check_there();
        }
        let _opening = self.filesets.opening.lock();
        let fileset = self.open_unready(slot)?;
        if !is_ready(&fileset) {
            if !self.options.is_read_only && !fileset.is_snapshot {
                // The fileset is opened just now, so its orphans are from before a crash or close.
                (Files { core: self, fileset }).finish_orphans()?;
            }
            fileset.is_ready.store(true, Ordering::Release);
        }
        fileset.check_there()
    }

    /// Opens a fileset for a job. A job must not wait for space, so orphans are left to
    /// [`Core::open_fileset`]. `None` while another fileset is being opened.
    pub(crate) fn open_for_job(&self, slot: u32) -> FsResult<Option<&OpenFileset>> {
        if let Some(fileset) = self.filesets.by_slot_current(slot) {
            return fileset.check_there().map(Some);
        }
        let Some(_opening) = self.filesets.opening.try_lock() else { return Ok(None) };
        self.open_unready(slot)?.check_there().map(Some)
    }

    /// Opens a fileset without its orphans' recovery. The caller holds `opening`.
    fn open_unready(&self, slot: u32) -> FsResult<&OpenFileset> {
        if let Some(fileset) = self.filesets.by_slot_current(slot) {
            return Ok(fileset);
        }
        let anodes = MountedFileset::open(&self.store, slot)?;
        let gate = FilesetGate::new_closed(anodes.shared_epoch());
        let fileset = self.filesets.enter(slot, OpenFileset::with_gate(anodes, gate));
        let closed = fileset.gate.take();
        if !self.options.is_read_only && !fileset.is_snapshot {
            tolerate(self.snapshotter().finish_snapshot_deletion(fileset, &closed))?;
        }
        Ok(fileset)
    }

    /// Opens a fileset or snapshot for a front, which must call [`Core::release_fileset`] at its
    /// end.
    pub(crate) fn hold_fileset(
        &self,
        path: &[NamePart],
        snapshot: Option<&NamePart>,
    ) -> FsResult<FilesetUuid> {
        let slot = self.filesets.table.lock(&self.store)?.slot_of_node(path, snapshot)?;
        match self.hold_slot_with(slot, 1) {
            Err(FsError::Stale) => Err(FsError::NoFileset { name: joined(path) }),
            held => held,
        }
    }

    /// Opens the fileset or snapshot in `slot` for a front, until the pool is closed.
    pub(crate) fn hold_slot(&self, slot: u32) -> FsResult<FilesetUuid> {
        let is_kept = |fileset: &&OpenFileset| fileset.holds.load(Ordering::SeqCst) >= FOR_GOOD;
        if let Some(fileset) = self.filesets.by_slot_current(slot).filter(is_kept) {
            return Ok(fileset.check_there()?.uuid());
        }
        self.hold_slot_with(slot, FOR_GOOD)
    }

    pub(crate) fn hold_slot_with(&self, slot: u32, holds: usize) -> FsResult<FilesetUuid> {
        let fileset = self.open_fileset(slot)?;
        let _holding = self.filesets.holding.lock();
        // Counts first and checks the marks then. [`OpenFileset::close_to_fronts`] does the
        // reverse, so at least one of the two fails.
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

    pub(crate) fn hold_main(&self) -> FilesetUuid {
        let _holding = self.filesets.holding.lock();
        self.filesets.main.holds.fetch_add(1, Ordering::SeqCst);
        self.filesets.main.uuid()
    }

    /// Ends a front's use, which has no requests in flight. The last release drops the references
    /// that the front left, which frees unlinked files.
    pub(crate) fn release_fileset(&self, fileset: FilesetUuid) {
        let _holding = self.filesets.holding.lock();
        let Ok(files) = self.files_named(fileset) else { return };
        let holds = &files.fileset.holds;
        // References are dropped under the hold, so that the fileset can't be deleted or replaced.
        if holds.load(Ordering::SeqCst) == 1 {
            for (ino, count) in self.table.references_of(files.fileset.anodes.slot) {
                files.forget(ino, count);
            }
        }
        let less = |holds: usize| (!holds.is_multiple_of(FOR_GOOD)).then(|| holds - 1);
        // A permanent hold stays.
        let _ = holds.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }

    pub(crate) fn is_main(&self, fileset: &OpenFileset) -> bool {
        std::ptr::eq(fileset, &self.filesets.main)
    }

    pub(crate) fn has_held(&self) -> bool {
        self.filesets.has_held.load(Ordering::Acquire)
    }

    pub(crate) fn held_files(&self) -> impl Iterator<Item = Files<'_>> {
        self.all_files().skip(1).filter(|files| files.fileset.is_held())
    }

    pub(crate) fn is_of_main(&self, ino: Ino) -> bool {
        ino.slot() == self.filesets.main_slot()
    }

    pub(crate) fn files_of(&self, ino: Ino) -> FsResult<Files<'_>> {
        if self.is_of_main(ino) {
            return Ok(self.main_files());
        }
        let fileset = self.filesets.by_slot(ino.slot());
        let fileset = fileset.filter(|fileset| fileset.is_held() && !fileset.is_put_out());
        Ok(Files { core: self, fileset: fileset.ok_or(FsError::Stale)? })
    }

    pub(crate) fn snapshot_of_slot(&self, slot: u32) -> Option<FilesetUuid> {
        let fileset = self.filesets.by_slot(slot).filter(|fileset| fileset.is_snapshot());
        fileset.map(OpenFileset::uuid)
    }

    pub(crate) fn files_named(&self, fileset: FilesetUuid) -> FsResult<Files<'_>> {
        let main = self.main_files();
        if main.uuid() == fileset {
            return Ok(main);
        }
        self.held_files().find(|files| files.uuid() == fileset).ok_or(FsError::Stale)
    }

    pub(crate) fn named<T>(&self, ino: Ino, name: &[u8], result: FsResult<T>) -> FsResult<T> {
        if result.is_ok() {
            return result;
        }
        match self.files_of(ino) {
            Ok(files) => files.named(ino, name, result),
            Err(_) => result,
        }
    }

    /// Opens the filesets of a family for a job. Also returns whether the list is complete. Called
    /// with no lock held.
    pub(crate) fn filesets_of_family(
        &self,
        family: FilesetId,
    ) -> FsResult<(Vec<&OpenFileset>, bool)> {
        let slots: Vec<u32> = {
            let index = self.filesets.table.lock(&self.store)?;
            let is_written = |node: &&FilesetNode| node.is_live() || node.is_receiving();
            index.family(family).filter(is_written).map(|node| node.slot).collect()
        };
        let (mut found, mut is_all) = (Vec::with_capacity(slots.len()), true);
        for slot in slots {
            match self.open_for_job(slot) {
                Ok(Some(fileset)) => found.push(fileset),
                Ok(None) => is_all = false,
                // Deleted since it was listed.
                Err(FsError::Stale | FsError::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((found, is_all))
    }

    /// Returns filesets with names from slot `from` on, including those being freed.
    pub(crate) fn list_filesets(
        &self,
        from: u32,
        count: usize,
    ) -> FsResult<Vec<(String, FilesetNode)>> {
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

    /// Returns the number of inodes in use in all filesets, without snapshots and deleted filesets.
    /// Does not wait for the table: if another thread has it, the last number.
    pub(crate) fn inodes_used(&self) -> FsResult<u64> {
        let seen = &self.filesets.table.inodes_seen;
        let Some(index) = self.filesets.table.try_lock(&self.store)? else {
            return Ok(seen.load(Ordering::Relaxed));
        };
        let counted = index.nodes().filter(|node| !node.is_snapshot() && !node.is_deleted());
        let used = |node: &FilesetNode| match self.filesets.by_slot_current(node.slot) {
            Some(fileset) => fileset.anodes.anodes_used(),
            None => node.anodes_used,
        };
        seen.store(counted.map(used).sum(), Ordering::Relaxed);
        Ok(seen.load(Ordering::Relaxed))
    }

    pub(crate) fn deleted_filesets(&self) -> FsResult<Vec<(u32, String)>> {
        let index = self.filesets.table.lock(&self.store)?;
        let deleted = index.nodes().filter(|node| node.is_deleted());
        Ok(deleted.map(|node| (node.slot, index.path_of(node.slot))).collect())
    }

    pub(crate) fn has_deleted_filesets(&self) -> FsResult<bool> {
        let index = self.filesets.table.lock(&self.store)?;
        Ok(index.nodes().any(FilesetNode::is_deleted))
    }
}

impl Files<'_> {
    pub(crate) fn is_of_snapshot(&self) -> bool {
        self.fileset.is_snapshot()
    }

    pub(super) fn check_writable(&self) -> FsResult<()> {
        if self.fileset.is_snapshot() {
            return Err(FsError::ReadOnlySnapshot);
        }
        if self.fileset.is_read_only() {
            return Err(FsError::ReadOnly { reason: "the fileset is read-only".to_owned() });
        }
        self.core.check_writable()
    }
}
