//! Files as programs know them: the operations that front ends call.
//!
//! A [`Vnode`] is a file in memory: its anode, what of its content is not yet in its map, and the
//! lock under which it changes. Vnodes come when they are asked for and go when nobody needs them;
//! the count of references that front ends hold stays behind then, so that millions are cheap.
//!
//! What belongs to the pool is [`Core`]: the store, segments, the vnodes of all filesets, the work
//! that is done for all, and the filesets that are mounted. What belongs to one of these is
//! [`Fileset`]. An operation is a method of [`Files`], which refers to both; what knows no fileset
//! is one of `Core`.
//!
//! # Invariants
//!
//! - V1: There is at most one vnode of a file.
//! - V2: A vnode with pending blocks or unwritten attributes is in the dirty list and stays in
//!   memory.
//! - V3: The size on disk is one that an acknowledged write or truncate has left, and no larger
//!   than what the installed blocks were written for: after a crash a file never ends in the middle
//!   of a write.
//! - V4: No block behind the last block on disk is installed, and the size on disk is not raised,
//!   while a new version of that last block waits: what was cut off is never seen again.
//! - V5: While a truncate has not freed all that lies past the end, the file does not grow and none
//!   of its blocks moves.
//! - V6: The references on a file are counted in its vnode while one is in memory, else in its
//!   shard of the table, and never in both.
//!
//! # Concurrency
//!
//! An operation starts its change, and is inside its fileset's gate with it; or enters the gate,
//! if it changes accepted content without a change (GT1). Then it locks its vnodes by rising
//! number, then the fileset, then ends the change. Nothing waits for the log while it holds a lock.

mod access;
mod acl;
pub mod api;
mod attr;
mod clone;
mod diff;
mod enter;
mod file;
mod filesets;
mod flush;
mod fork;
mod growth;
mod half_freed;
mod held;
mod inline;
mod leave;
mod link_over;
mod list;
mod lost;
mod names;
mod new_root;
mod orphan;
mod pages;
mod payload;
mod placement;
mod preallocation;
mod properties;
mod quota;
mod read;
mod readahead;
mod receive;
mod relocate;
mod rename;
mod room;
mod send;
mod space;
mod steps;
mod table;
mod tmpfile;
mod together;
mod unit;
mod unshare;
mod weigh;
mod xattr;

pub use attr::DIRTY_FILES_MAX;
pub use clone::Still;
pub(crate) use clone::needed_by;
pub use diff::{Became, DIFF_RANGES_MAX, Difference};
pub(crate) use enter::Entered;
pub(crate) use file::Capabilities;
pub use file::PENDING_BYTES_MAX;
pub use filesets::NewFileset;
pub(crate) use filesets::{Fileset, Filesets};
pub use fork::Restored;
pub(crate) use held::{Moves, Unread};
pub(crate) use leave::{Found, Partial, clone_prefix, is_of_a_move};
pub(crate) use lost::{Affected, log_affected};
pub use pages::PagesMoved;
pub use properties::FilesetChange;
pub(crate) use receive::{Arrival, ArrivalEnd};
pub use receive::{ReceiveFailure, Received};
pub(crate) use relocate::Content;
pub(crate) use room::{Empties, Moment};
pub use weigh::{Fullness, Heaviest, HeavyClone};

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::anode::{Anode, AnodeKind, DiskTime, ROOT_ANODE};
use format::ids::{AnodeNo, EPOCH_MAX, Generation};

use self::api::{ANODE_BITS, Around, Attr, FileKind, FilesetUuid, Ino, LINKS_MAX};
use self::table::{References, VnodeTable};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;
use crate::segment::{Block, Segments};
use crate::store::{Change, Store};
use crate::sync::{Mutex, RwLock};
use runtime::clock::Timestamp;

/// A file in memory.
#[derive(Debug)]
pub(crate) struct Vnode {
    /// Fileset and anode.
    ino: Ino,
    pub(crate) number: AnodeNo,
    /// References that front ends hold. Read and set by the table alone.
    references: References,
    state: RwLock<VnodeState>,
}

/// What changes of a file in memory.
#[derive(Debug)]
pub(crate) struct VnodeState {
    /// Slot of the fileset that the file is in.
    fileset_slot: u32,
    /// The anode, `None` once the file is freed. Its size is the one on disk (V3).
    anode: Option<Anode>,
    /// Bytes of the file as programs see it.
    size_bytes: u64,
    /// Blocks that are not yet in the map, by where they begin in the file, in bytes (UN1).
    pending: BTreeMap<u64, Arc<Block>>,
    /// Whether times or size differ from what is on disk.
    is_attr_dirty: bool,
    /// Whether a truncate has not yet freed all that lies past the end.
    is_being_cut: bool,
    /// Whether who writes now is held against no limits of users.
    is_exempt: bool,
    /// Class of the last transaction that changed it.
    class: u64,
    /// Why what waits could not be installed when that was tried last.
    not_installed: Option<Box<FsError>>,
}

impl VnodeState {
    /// Returns a file of which nothing is in memory that is not stored.
    fn of(fileset_slot: u32, anode: Anode) -> VnodeState {
        VnodeState {
            fileset_slot,
            size_bytes: anode.size_bytes,
            is_exempt: false,
            is_being_cut: anode_is_being_cut(&anode),
            anode: Some(anode),
            pending: BTreeMap::new(),
            is_attr_dirty: false,
            class: 0,
            not_installed: None,
        }
    }

    /// Returns the anode, or an error if the file is gone.
    fn anode(&self) -> FsResult<&Anode> {
        self.anode.as_ref().ok_or(FsError::Stale)
    }

    fn anode_mut(&mut self) -> FsResult<&mut Anode> {
        self.anode.as_mut().ok_or(FsError::Stale)
    }

    fn is_dirty(&self) -> bool {
        self.is_attr_dirty || !self.pending.is_empty()
    }
}

/// What belongs to the pool: the store, segments, the filesets that are mounted with their vnodes,
/// and the work that is done for all.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) segments: Segments,
    pub(crate) filesets: Filesets,
    pub(crate) table: VnodeTable,
    /// One writer who found no room at a time: what his reclaim gives is not for the others.
    refused_lock: Mutex<()>,
    preallocating: preallocation::Preallocating,
    pub(crate) options: FilesOptions,
    /// Blocks that programs have written: so a writer who found no room knows whether others did.
    blocks_written: AtomicU64,
    /// Whether anybody has asked for anything since a job looked. Set where it is not: processors
    /// share what nobody writes.
    is_asked: AtomicBool,
    /// Whether walks that may take hours end where they are: somebody closes the pool.
    ends_walks: AtomicBool,
    emptier: Arc<dyn Empties>,
    barren: room::Barren,
    scales: weigh::Scales,
    kept: payload::KeptBuffers,
    steps: steps::Steps,
    apart: together::Apart,
}

/// The files of one fileset: what operations on names, attributes and content are methods of. It
/// is two references, made for each operation; what is the pool's it reaches as its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'c> {
    core: &'c Core,
    pub(crate) fileset: &'c Fileset,
}

impl Deref for Files<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core
    }
}

/// How operations on files behave.
#[derive(Clone, Copy, Debug)]
pub struct FilesOptions {
    /// Refuse every change.
    pub is_read_only: bool,
    /// Never update access times.
    pub no_atime: bool,
    /// Data of at most this many bytes goes into the log when it is synced; 0: never.
    pub log_data_bytes_max: usize,
    /// Age, in nanoseconds, at which what was not synced is committed.
    pub commit_interval_ns: u64,
}

impl Default for FilesOptions {
    fn default() -> FilesOptions {
        FilesOptions {
            is_read_only: false,
            no_atime: false,
            log_data_bytes_max: 32 << 10,
            commit_interval_ns: 5_000_000_000,
        }
    }
}

impl Fileset {
    fn ino(&self, number: AnodeNo) -> Ino {
        Ino(u64::from(self.anodes.slot) << ANODE_BITS | number.0)
    }
}

impl Core {
    /// Notes that a front asks for something.
    pub(crate) fn note_asked(&self) {
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether any front has asked for anything since this was called last.
    pub(crate) fn was_asked(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn new(
        store: Arc<Store>,
        filesets: Filesets,
        secret: [u8; 16],
        options: FilesOptions,
        emptier: Arc<dyn Empties>,
    ) -> Core {
        Core {
            segments: Segments::new(Arc::clone(&store), secret),
            store,
            filesets,
            table: VnodeTable::default(),
            refused_lock: Mutex::new(()),
            preallocating: preallocation::Preallocating::default(),
            options,
            blocks_written: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            ends_walks: AtomicBool::new(false),
            emptier,
            barren: room::Barren::default(),
            scales: weigh::Scales::default(),
            kept: payload::KeptBuffers::default(),
            steps: steps::Steps::default(),
            apart: together::Apart::default(),
        }
    }

    /// Returns the files of the main fileset.
    pub(crate) fn main_files(&self) -> Files<'_> {
        Files { core: self, fileset: &self.filesets.main }
    }

    /// Returns the files of each fileset that is mounted.
    pub(crate) fn all_files(&self) -> impl Iterator<Item = Files<'_>> {
        self.filesets.iter().map(|fileset| Files { core: self, fileset })
    }

    /// Returns the fileset that a file in memory is in.
    fn fileset_of(&self, vnode: &Vnode) -> &Fileset {
        self.filesets.by_slot(vnode.ino.slot()).expect("files in memory are of mounted filesets")
    }

    /// Starts a change of the fileset that a file in memory is in. Called with no lock held.
    fn begin_of(&self, vnode: &Vnode, reservation: Reservation) -> FsResult<Change<'_>> {
        self.store.begin_in(&self.fileset_of(vnode).gate, reservation)
    }

    fn check_writable(&self) -> FsResult<()> {
        if self.options.is_read_only {
            return Err(FsError::ReadOnly { reason: "mounted read-only".to_owned() });
        }
        self.store.journal.check_alive()
    }

    /// Walks that may take hours end where they are, from now on.
    pub(crate) fn end_walks(&self) {
        self.ends_walks.store(true, Ordering::Release);
    }

    /// Asked by whoever walks, at each step.
    ///
    /// # Errors
    ///
    /// [`FsError::TryLater`]: he is to end where he is.
    pub(crate) fn check_walk(&self) -> FsResult<()> {
        if self.ends_walks.load(Ordering::Acquire) { Err(FsError::TryLater) } else { Ok(()) }
    }

    /// V2: the file has changes that are not in the journal.
    fn note_dirty(&self, vnode: &Vnode) {
        self.table.mark_dirty(vnode.ino, self.store.clock.monotonic_ns());
    }

    fn now(&self) -> DiskTime {
        to_disk(self.store.now())
    }
}

impl Files<'_> {
    /// Returns what handles name the fileset by.
    pub(crate) fn uuid(&self) -> FilesetUuid {
        self.fileset.uuid()
    }

    /// Starts a change of the fileset. Called with no lock held.
    fn begin(&self, reservation: Reservation) -> FsResult<Change<'_>> {
        self.core.store.begin_in(&self.fileset.gate, reservation)
    }

    /// Returns the root directory.
    pub(crate) fn root(&self) -> Ino {
        self.ino(ROOT_ANODE)
    }

    fn ino(&self, number: AnodeNo) -> Ino {
        self.fileset.ino(number)
    }

    fn number(&self, ino: Ino) -> FsResult<AnodeNo> {
        if ino.slot() != self.fileset.anodes.slot {
            return Err(FsError::Stale);
        }
        Ok(AnodeNo(ino.0 & ((1 << ANODE_BITS) - 1)))
    }

    /// Returns the vnode of a file, reading its anode if need be.
    fn vnode(&self, ino: Ino) -> FsResult<Arc<Vnode>> {
        let number = self.number(ino)?;
        if self.fileset.doomed.contains(number) {
            return Err(FsError::Stale);
        }
        self.vnode_of(number)
    }

    fn vnode_of(&self, number: AnodeNo) -> FsResult<Arc<Vnode>> {
        if let Some(vnode) = self.table.find(self.ino(number)) {
            return Ok(vnode);
        }
        let load = || -> FsResult<Vnode> {
            // Whoever still has a fileset whose slot was given another tree loads none of its
            // files: the new tree's would be taken for them.
            self.fileset.check_current()?;
            let anode = self.fileset.anodes.read_anode(&self.store, number)?;
            let anode = anode.filter(|anode| anode.kind != AnodeKind::Internal);
            let anode = anode.ok_or(FsError::Stale)?;
            let mut vnode = Vnode::new(self.ino(number), anode);
            // V5 is about files that go on.
            vnode.state.get_mut().is_being_cut &= !self.fileset.is_clone();
            Ok(vnode)
        };
        self.table.find_or_load(self.ino(number), load)
    }
}

impl Vnode {
    fn new(ino: Ino, anode: Anode) -> Vnode {
        Vnode {
            ino,
            number: anode.number,
            references: References::default(),
            state: RwLock::new(VnodeState::of(ino.slot(), anode)),
        }
    }
}

/// A named file in the orphan list is one whose truncate was interrupted (F2).
fn anode_is_being_cut(anode: &Anode) -> bool {
    anode.kind == AnodeKind::Regular && anode.nlink > 0 && anode.orphan_slot.is_some()
}

fn to_disk(time: Timestamp) -> DiskTime {
    DiskTime { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn from_disk(time: DiskTime) -> Timestamp {
    Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn kind_of(kind: AnodeKind) -> FileKind {
    match kind {
        AnodeKind::Regular | AnodeKind::Internal => FileKind::Regular,
        AnodeKind::Directory => FileKind::Directory,
        AnodeKind::Symlink => FileKind::Symlink,
        AnodeKind::BlockDevice => FileKind::BlockDevice,
        AnodeKind::CharDevice => FileKind::CharDevice,
        AnodeKind::Fifo => FileKind::Fifo,
        AnodeKind::Socket => FileKind::Socket,
    }
}

fn anode_kind_of(kind: FileKind) -> AnodeKind {
    match kind {
        FileKind::Regular => AnodeKind::Regular,
        FileKind::Directory => AnodeKind::Directory,
        FileKind::Symlink => AnodeKind::Symlink,
        FileKind::BlockDevice => AnodeKind::BlockDevice,
        FileKind::CharDevice => AnodeKind::CharDevice,
        FileKind::Fifo => AnodeKind::Fifo,
        FileKind::Socket => AnodeKind::Socket,
    }
}

/// Directories past the limit on links say 1: that programs must not count on it.
fn reported_nlink(anode: &Anode) -> u32 {
    let is_past = anode.kind == AnodeKind::Directory && anode.nlink > LINKS_MAX;
    if is_past { 1 } else { anode.nlink }
}

/// Returns the attributes of a file as programs see them.
fn attr_of(files: &Files<'_>, state: &VnodeState) -> FsResult<Attr> {
    let anode = state.anode()?;
    let mut attr = attr_of_anode(files, anode);
    attr.size_bytes = state.size_bytes;
    if !state.pending.is_empty() {
        files.count_waiting(state, &mut attr)?;
    }
    Ok(attr)
}

/// Returns the attributes of a file if somebody wants them from `around`.
fn seen<T>(
    files: &Files<'_>,
    around: &Option<&mut T>,
    state: &VnodeState,
) -> FsResult<Option<Attr>> {
    around.is_some().then(|| attr_of(files, state)).transpose()
}

/// Tells the attributes around a change to who wants them: `before`, and those that it has left.
fn tell(
    files: &Files<'_>,
    around: Option<&mut Around>,
    before: Option<Attr>,
    state: &VnodeState,
) -> FsResult<()> {
    if let Some(around) = around {
        *around = Around { before, after: Some(attr_of(files, state)?) };
    }
    Ok(())
}

/// Returns the attributes of a file of which nothing is in memory that is not stored.
fn attr_of_anode(files: &Files<'_>, anode: &Anode) -> Attr {
    Attr {
        ino: files.ino(anode.number),
        generation: anode.generation.0,
        kind: kind_of(anode.kind),
        mode: anode.mode,
        nlink: reported_nlink(anode),
        uid: anode.uid,
        gid: anode.gid,
        project: anode.project,
        rdev: anode.rdev,
        size_bytes: anode.size_bytes,
        blocks_512: files.blocks_512(anode.fragments),
        blocks_may_change: false,
        atime: from_disk(anode.atime),
        mtime: from_disk(anode.mtime),
        ctime: from_disk(anode.ctime),
        btime: from_disk(anode.btime),
    }
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Files<'_> {
    /// Returns the generation of an anode made by this transaction.
    fn generation_of(&self, change: &Change<'_>) -> Generation {
        let base = self.fileset.anodes.generation_base();
        Generation(change.epoch().0.saturating_add(base).min(EPOCH_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::api::FileSystem;
    use super::*;
    use format::anode::page_and_slot;
    use format::ids::FilesetId;

    /// Goal: a fileset was restored, and somebody still has what its slot held before.
    #[test]
    fn files_of_a_tree_that_was_replaced_are_not_loaded() {
        let (pool, slot) = leave::tests::pool_with_one();
        let core = pool.core();
        let (path, clone) = ([leave::tests::part("a")], leave::tests::part("c"));
        core.create_clone(&path, &clone, [3; 16]).expect("there is room");
        let fileset = core.open_fileset(slot).expect("it can be read");
        let files = Files { core, fileset };
        files.vnode_of(ROOT_ANODE).expect("it is there");
        core.restore_fileset((&path, &clone)).expect("nobody uses it");
        let loaded = files.vnode_of(ROOT_ANODE).map(|vnode| vnode.number);
        assert_eq!(loaded, Err(FsError::Stale));
    }

    /// Goal: a change has freed the last anode of a page, and the table does not say so yet.
    #[test]
    fn an_anode_of_a_page_that_is_given_up_is_free() {
        let (pool, _) = leave::tests::pool_with_one();
        let core = pool.core();
        let (anodes, store) = (&core.filesets.main.anodes, &core.store);
        let page_of = |number| page_and_slot(number).0;
        let files = (0..).map(|number| {
            let new = api::NewInode::new(FileKind::Regular, 0o644);
            let name = format!("file {number}");
            let (root, root_name) = (pool.root(), name.as_bytes());
            let made = pool.create(&api::Caller::root(), root, root_name, new, None);
            AnodeNo(made.expect("there is room").ino.0 & ((1 << ANODE_BITS) - 1))
        });
        let mut files = files.skip_while(|number| page_of(*number) == page_of(ROOT_ANODE));
        let alone = files.next().expect("pages are small");
        assert_eq!(anodes.read_anode(store, alone).map(|it| it.is_some()), Ok(true));

        let mut change = core.store.begin_pool(Reservation::LARGE).expect("there is room");
        let mut guard = anodes.lock();
        guard.free_anode(store, &mut change, alone).expect("it is there");
        let applied = change.end();
        assert_eq!(anodes.read_anode(store, alone).map(|it| it.is_some()), Ok(false), "before");
        guard.settle(applied.lsn);
        assert_eq!(anodes.read_anode(store, alone).map(|it| it.is_some()), Ok(false), "after");
    }

    #[test]
    fn a_directory_past_the_limit_reports_one_link() {
        let mut anode = Anode::new(AnodeKind::Directory, AnodeNo(20), FilesetId(1), 12);
        for (nlink, reported) in [(2, 2), (LINKS_MAX, LINKS_MAX), (LINKS_MAX + 1, 1)] {
            anode.nlink = nlink;
            assert_eq!(reported_nlink(&anode), reported);
        }
    }
}
