//! Operations on files, as front ends call them.
//!
//! A [`Vnode`] is a file in memory: its anode, dirty blocks, and lock. Vnodes are loaded on demand
//! and evicted when unused. The references of front ends outlive a vnode as a count in [`table`],
//! so that millions of references need little memory.
//!
//! [`Core`] is the pool-wide state, and [`OpenFileset`] that of one fileset. Operations are methods
//! of [`Files`], which refers to both.
//!
//! # Invariants
//!
//! - V1: There is at most one vnode of a file.
//! - V2: A vnode with dirty blocks or attributes is in the dirty list and stays in memory.
//! - V3: The size on disk is one that an acknowledged write or truncate has set, and no larger than
//!   the file was when the mapped blocks were written. So after a crash no file ends in the middle
//!   of a write.
//! - V4: While the last block on disk has a newer dirty version, no block after it is mapped and
//!   the size on disk is not raised. Only the dirty version has zeros after the old end, so
//!   truncated bytes never reappear.
//! - V5: While a truncate is in progress, the file does not grow and none of its blocks moves.
//! - V6: The references on a file are counted in its vnode while it has one, else in its shard of
//!   the table, and never in both.
//!
//! # Concurrency
//!
//! An operation begins its change, which enters the fileset's gate. An operation that changes only
//! dirty data in memory enters the gate itself (GT1). Then it locks its vnodes by rising number,
//! then the fileset, then ends the change. No thread waits for the log while it holds a lock.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod attr;
pub(crate) mod enter;
pub(crate) mod flush;
pub(crate) mod fullness;
pub(crate) mod growth;
pub(crate) mod half_freed;
pub(crate) mod inline;
pub(crate) mod link_over;
pub(crate) mod list;
pub(crate) mod lost;
pub(crate) mod names;
pub(crate) mod open_filesets;
pub(crate) mod orphan;
pub(crate) mod payload;
pub(crate) mod placement;
pub(crate) mod preallocation;
pub(crate) mod read;
pub(crate) mod readahead;
pub(crate) mod reclaim;
pub(crate) mod rename;
pub(crate) mod space;
pub(crate) mod steps;
pub(crate) mod table;
pub(crate) mod tmpfile;
pub(crate) mod together;
pub(crate) mod unit;
pub(crate) mod unshare;
pub(crate) mod views;
pub(crate) mod write;
pub(crate) mod xattr;

pub(crate) use enter::AdmittedFiles;
pub(crate) use lost::{AffectedObject, log_affected};
pub(crate) use open_filesets::{Filesets, OpenFileset};
pub(crate) use reclaim::{SegmentReclaimer, SpaceVersion};
pub(crate) use views::{
    BlockMover, BlockReader, FilesetQuotas, Names, Snapshotter, SpaceReclaim, Transfers, Writeback,
    Xattrs,
};
pub(crate) use write::Capabilities;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::anode::{Anode, AnodeKind, DiskTime, ROOT_ANODE};
use format::ids::{AnodeNo, EPOCH_MAX, Generation};

use self::table::{References, VnodeTable};
use crate::api::{ANODE_BITS, Attr, AttributeChange, FileKind, FilesetUuid, Ino, LINKS_MAX};
use crate::error::{FsError, FsResult};
use crate::journal::LogCredits;
use crate::segment::{Block, Segments};
use crate::store::{Change, Store};
use crate::sync::{Mutex, RwLock};
use runtime::clock::Timestamp;

#[derive(Debug)]
pub(crate) struct Vnode {
    pub(crate) ino: Ino,
    pub(crate) number: AnodeNo,
    /// References of front ends, accessed by the table only.
    references: References,
    pub(crate) state: RwLock<VnodeState>,
}

#[derive(Debug)]
pub(crate) struct VnodeState {
    fileset_slot: u32,
    /// `None` once the file is freed. The size in it is the one on disk (V3).
    pub(crate) anode: Option<Anode>,
    /// Size as programs see it.
    pub(crate) size_bytes: u64,
    /// Dirty blocks, by their start in the file in bytes (UN1).
    pub(crate) pending: BTreeMap<u64, Arc<Block>>,
    /// Whether times or size differ from those on disk.
    is_attr_dirty: bool,
    pub(crate) is_being_cut: bool,
    is_exempt: bool,
    /// Class of the last transaction that changed the file.
    pub(crate) class: u64,
    not_installed: Option<Box<FsError>>,
}

impl VnodeState {
    pub(crate) fn of(fileset_slot: u32, anode: Anode) -> VnodeState {
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

    /// Returns the anode, or [`FsError::Stale`] once the file is freed.
    pub(crate) fn anode(&self) -> FsResult<&Anode> {
        self.anode.as_ref().ok_or(FsError::Stale)
    }

    fn anode_mut(&mut self) -> FsResult<&mut Anode> {
        self.anode.as_mut().ok_or(FsError::Stale)
    }

    fn is_dirty(&self) -> bool {
        self.is_attr_dirty || !self.pending.is_empty()
    }
}

/// Pool-wide state: store, segments, open filesets with their vnodes, background work.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) segments: Segments,
    pub(crate) filesets: Filesets,
    pub(crate) table: VnodeTable,
    /// Held while a writer without space reclaims, so that other writers do not take its gain.
    refused_lock: Mutex<()>,
    preallocating: preallocation::PreallocationLocks,
    pub(crate) options: FilesOptions,
    /// Count of blocks written. A writer without room compares it to see whether others progress.
    blocks_written: AtomicU64,
    /// Whether a front made a request since [`Core::was_asked`]. Written only to change it, so that
    /// the cache line stays shared.
    is_asked: AtomicBool,
    /// Whether long walks must stop, since the pool is to be closed.
    ends_walks: AtomicBool,
    pub(crate) emptier: Arc<dyn SegmentReclaimer>,
    barren: reclaim::FruitlessReclaim,
    pub(crate) scales: fullness::SnapshotWeighing,
    kept: payload::RetainedBuffers,
    steps: steps::FileReadahead,
    apart: together::UnmergedSegments,
}

/// The files of a fileset: two references, made for each operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'c> {
    pub(crate) core: &'c Core,
    pub(crate) fileset: &'c OpenFileset,
}

impl Deref for Files<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core
    }
}

/// Options for operations on files.
#[derive(Clone, Copy, Debug)]
pub struct FilesOptions {
    /// Refuse every change.
    pub is_read_only: bool,
    /// Never update access times.
    pub no_atime: bool,
    /// Most bytes that a sync writes as in-line log data; 0 for none.
    pub log_data_bytes_max: usize,
    /// Age in nanoseconds at which unsynced changes are committed.
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

impl OpenFileset {
    pub(crate) fn ino(&self, number: AnodeNo) -> Ino {
        Ino(u64::from(self.anodes.slot) << ANODE_BITS | number.0)
    }
}

impl Core {
    pub(crate) fn note_asked(&self) {
        if !self.is_asked.load(Ordering::Relaxed) {
            self.is_asked.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn was_asked(&self) -> bool {
        self.is_asked.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn new(
        store: Arc<Store>,
        filesets: Filesets,
        secret: [u8; 16],
        options: FilesOptions,
        emptier: Arc<dyn SegmentReclaimer>,
    ) -> Core {
        Core {
            segments: Segments::new(Arc::clone(&store), secret),
            store,
            filesets,
            table: VnodeTable::default(),
            refused_lock: Mutex::new(()),
            preallocating: preallocation::PreallocationLocks::default(),
            options,
            blocks_written: AtomicU64::new(0),
            is_asked: AtomicBool::new(false),
            ends_walks: AtomicBool::new(false),
            emptier,
            barren: reclaim::FruitlessReclaim::default(),
            scales: fullness::SnapshotWeighing::default(),
            kept: payload::RetainedBuffers::default(),
            steps: steps::FileReadahead::default(),
            apart: together::UnmergedSegments::default(),
        }
    }

    pub(crate) fn main_files(&self) -> Files<'_> {
        Files { core: self, fileset: &self.filesets.main }
    }

    pub(crate) fn all_files(&self) -> impl Iterator<Item = Files<'_>> {
        self.filesets.iter().map(|fileset| Files { core: self, fileset })
    }

    fn fileset_of(&self, vnode: &Vnode) -> &OpenFileset {
        self.filesets.by_slot(vnode.ino.slot()).expect("files in memory are of mounted filesets")
    }

    /// Starts a change of the vnode's fileset. Called with no lock held.
    fn begin_of(&self, vnode: &Vnode, reservation: LogCredits) -> FsResult<Change<'_>> {
        self.store.begin_in(&self.fileset_of(vnode).gate, reservation)
    }

    pub(crate) fn check_writable(&self) -> FsResult<()> {
        if self.options.is_read_only {
            return Err(FsError::ReadOnly { reason: "mounted read-only".to_owned() });
        }
        self.store.journal.check_alive()
    }

    pub(crate) fn end_walks(&self) {
        self.ends_walks.store(true, Ordering::Release);
    }

    /// Checks whether a long walk may continue; called at each step.
    ///
    /// # Errors
    ///
    /// [`FsError::TryLater`] if the walk must stop: return at once.
    pub(crate) fn check_walk(&self) -> FsResult<()> {
        if self.ends_walks.load(Ordering::Acquire) { Err(FsError::TryLater) } else { Ok(()) }
    }

    /// V2: puts the file in the dirty list.
    pub(crate) fn note_dirty(&self, vnode: &Vnode) {
        self.table.mark_dirty(vnode.ino, self.store.clock.monotonic_ns());
    }

    pub(crate) fn now(&self) -> DiskTime {
        to_disk(self.store.now())
    }
}

impl Files<'_> {
    pub(crate) fn uuid(&self) -> FilesetUuid {
        self.fileset.uuid()
    }

    /// Starts a change of the fileset. Called with no lock held.
    pub(crate) fn begin(&self, reservation: LogCredits) -> FsResult<Change<'_>> {
        self.core.store.begin_in(&self.fileset.gate, reservation)
    }

    pub(crate) fn root(&self) -> Ino {
        self.ino(ROOT_ANODE)
    }

    pub(crate) fn ino(&self, number: AnodeNo) -> Ino {
        self.fileset.ino(number)
    }

    fn number(&self, ino: Ino) -> FsResult<AnodeNo> {
        if ino.slot() != self.fileset.anodes.slot {
            return Err(FsError::Stale);
        }
        Ok(AnodeNo(ino.0 & ((1 << ANODE_BITS) - 1)))
    }

    fn vnode(&self, ino: Ino) -> FsResult<Arc<Vnode>> {
        let number = self.number(ino)?;
        if self.fileset.doomed.contains(number) {
            return Err(FsError::Stale);
        }
        self.vnode_of(number)
    }

    pub(crate) fn vnode_of(&self, number: AnodeNo) -> FsResult<Arc<Vnode>> {
        if let Some(vnode) = self.table.find(self.ino(number)) {
            return Ok(vnode);
        }
        let load = || -> FsResult<Vnode> {
            // A restore may have put another tree into the slot: an [`OpenFileset`] of the replaced
            // tree must not load the files of its successor.
            self.fileset.check_current()?;
            let anode = self.fileset.anodes.read_anode(&self.store, number)?;
            let anode = anode.filter(|anode| anode.kind != AnodeKind::Internal);
            let anode = anode.ok_or(FsError::Stale)?;
            let mut vnode = Vnode::new(self.ino(number), anode);
            // A snapshot never continues a truncate, so V5 does not apply.
            vnode.state.get_mut().is_being_cut &= !self.fileset.is_snapshot();
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

/// F2: a named file in the orphan list has a truncate in progress.
fn anode_is_being_cut(anode: &Anode) -> bool {
    anode.kind == AnodeKind::Regular && anode.nlink > 0 && anode.orphan_slot.is_some()
}

fn to_disk(time: Timestamp) -> DiskTime {
    DiskTime { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn from_disk(time: DiskTime) -> Timestamp {
    Timestamp { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

pub(crate) fn kind_of(kind: AnodeKind) -> FileKind {
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

/// A directory beyond the limit reports 1, so that programs do not rely on the count.
fn reported_nlink(anode: &Anode) -> u32 {
    let is_past = anode.kind == AnodeKind::Directory && anode.nlink > LINKS_MAX;
    if is_past { 1 } else { anode.nlink }
}

fn attr_of(files: &Files<'_>, state: &VnodeState) -> FsResult<Attr> {
    let anode = state.anode()?;
    let mut attr = attr_of_anode(files, anode);
    attr.size_bytes = state.size_bytes;
    if !state.pending.is_empty() {
        files.count_waiting(state, &mut attr)?;
    }
    Ok(attr)
}

fn seen<T>(
    files: &Files<'_>,
    around: &Option<&mut T>,
    state: &VnodeState,
) -> FsResult<Option<Attr>> {
    around.is_some().then(|| attr_of(files, state)).transpose()
}

fn tell(
    files: &Files<'_>,
    around: Option<&mut AttributeChange>,
    before: Option<Attr>,
    state: &VnodeState,
) -> FsResult<()> {
    if let Some(around) = around {
        *around = AttributeChange { before, after: Some(attr_of(files, state)?) };
    }
    Ok(())
}

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

/// Mixes the bits of a number (the finaliser of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Files<'_> {
    fn generation_of(&self, change: &Change<'_>) -> Generation {
        let base = self.fileset.anodes.generation_base();
        Generation(change.epoch().0.saturating_add(base).min(EPOCH_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FileSystem;
    use format::anode::page_and_slot;
    use format::ids::FilesetId;

    /// Goal: an [`OpenFileset`] obtained before a restore loads no files of its successor.
    #[test]
    fn files_of_a_tree_that_was_replaced_are_not_loaded() {
        let (pool, slot) = crate::transfer::leave::tests::pool_with_one();
        let core = pool.core();
        let (path, snapshot) =
            ([crate::transfer::leave::tests::part("a")], crate::transfer::leave::tests::part("c"));
        core.snapshotter().create_snapshot(&path, &snapshot, [3; 16]).expect("there is room");
        let fileset = core.open_fileset(slot).expect("it can be read");
        let files = Files { core, fileset };
        files.vnode_of(ROOT_ANODE).expect("it is there");
        core.snapshotter().restore_fileset((&path, &snapshot)).expect("nobody uses it");
        let loaded = files.vnode_of(ROOT_ANODE).map(|vnode| vnode.number);
        assert_eq!(loaded, Err(FsError::Stale));
    }

    /// Goal: a freed anode reads as free both before and after its page is given up in the table.
    #[test]
    fn an_anode_of_a_page_that_is_given_up_is_free() {
        let (pool, _) = crate::transfer::leave::tests::pool_with_one();
        let core = pool.core();
        let (anodes, store) = (&core.filesets.main.anodes, &core.store);
        let page_of = |number| page_and_slot(number).0;
        let files = (0..).map(|number| {
            let new = crate::api::NewInode::new(FileKind::Regular, 0o644);
            let name = format!("file {number}");
            let (root, root_name) = (pool.root(), name.as_bytes());
            let made = pool.create(&crate::api::Caller::root(), root, root_name, new, None);
            AnodeNo(made.expect("there is room").ino.0 & ((1 << ANODE_BITS) - 1))
        });
        let mut files = files.skip_while(|number| page_of(*number) == page_of(ROOT_ANODE));
        let alone = files.next().expect("pages are small");
        assert_eq!(anodes.read_anode(store, alone).map(|it| it.is_some()), Ok(true));

        let mut change = core.store.begin_pool(LogCredits::LARGE).expect("there is room");
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
