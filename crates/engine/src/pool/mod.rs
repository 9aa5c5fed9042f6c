//! An open pool: open, status, periodic work, checkpoint and close. Front ends reach every fileset
//! through a [`Pool`].
//!
//! # Crashes
//!
//! An open of a pool that was not closed replays the log. Before any other write it raises LSN and
//! epoch past every value that was written before the crash, and records both in the superblock. A
//! close checkpoints everything and then marks the pool closed.
//!
//! Not here: creation (`create.rs`), filesets (`filesets.rs`), operations on files (`serve.rs`).

mod create;
mod disk_groups;
mod filesets;
mod in_use;
mod main_group;
mod members;
mod moving;
mod paths;
mod placement;
mod quotas;
mod serve;
mod snapshots;
mod start;
mod trim;
mod unreadable;

pub use create::{GroupPlan, Layouts, NewDiskGroup, PoolCreateOptions};
pub use disk_groups::{DiskGroupError, DiskGroupStatus};
pub use filesets::FilesetInfo;
pub use in_use::{Fronts, PAUSE_NS_MAX};
pub use members::{MemberStatus, SpareStatus};
pub use moving::{Move, MoveError, MoveServices, MoveStep, Pipe};
pub use quotas::{QuotaAccount, QuotaInfo, QuotaLimitsChange, QuotaProgress};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::start::{check_log_without_absent, go_on, recover, rest_of};
use format::fileset::{FilesetName, NamePart, ROOT_SLOT};
use format::geometry::{Geometry, GeometryError};
use format::ids::{Lsn, PoolId};
use format::members::Layout;
use format::page::PAGE_BYTES;
use format::superblock::{LABEL_BYTES, LabelError, Superblock};
use runtime::clock::{Clock, Timestamp};
use runtime::planted;
use storage::device::{DeviceError, SharedDevice};
use storage::heartbeat::{HeartbeatWriter, HostProcesses, SingleProcess, TakeoverConditions};
use storage::pool::PoolError;
use storage::volume::{AddGroupError, MemberFailure, Volume, VolumeDevices};

use crate::alloc::policy::{LogPlacement, PlacementPolicy};
use crate::alloc::{Allocator, SegmentId, Shortage, SpaceCounts};
use crate::api::{FilesetUuid, Ino};
use crate::buffer::{Cache, CacheCounts, LsnCounts};
use crate::error::{FilePart, FsError, FsResult};
use crate::file::fullness::Fullness;
use crate::file::{Core, Files, FilesOptions, Filesets, OpenFileset, mix};
use crate::fileset_table::MountedFileset;
use crate::fileset_table::table::FilesetTable;
use crate::jobs::{
    self, CleanerGauge, DiscardCounts, DiscardOptions, JobRunner, JobStatus, Pace, RebuildCounts,
    ScrubCounts, TrimCounts,
};
use crate::journal::{
    ACTIVE_LOG_BYTES_DEFAULT, CheckpointHooks, DIRTY_PAGES_DEFAULT, Journal, JournalCounts,
    JournalOptions, RecoveryError, RecoveryReport,
};
use crate::relocate::pages::PageMoveReport;
use crate::segment::{ReadaheadCounts, SegmentCacheCounts};
use crate::store::Store;
use crate::sync::Mutex;

/// Options of an open.
#[derive(Debug)]
pub struct PoolOpenOptions {
    /// Bytes of memory for metadata pages.
    pub cache_bytes: usize,
    /// Chooses where new data is placed.
    pub placement: Box<dyn PlacementPolicy>,
    /// Simulated shortages of space, for tests.
    pub shortage: Option<Arc<Shortage>>,
    /// Behaviour of file operations.
    pub files: FilesOptions,
    /// When free segments are discarded.
    pub discard: DiscardOptions,
    /// Random bits for the verifier of this open (`FileSystem::verifier`).
    pub random: u64,
    /// Upper bound of the active log in bytes. Bounds a replay.
    pub active_log_bytes: u64,
    /// Upper bound of logged pages not yet written back. Bounds a replay.
    pub dirty_pages: usize,
    /// Reports the other processes of this machine that may use the pool.
    pub neighbours: Arc<dyn HostProcesses>,
    /// Whether the user asserts that no other machine has the pool open.
    pub is_forced: bool,
    /// The fileset to serve. `None` for the first one.
    pub fileset: Option<FilesetName>,
    /// The snapshot of that fileset to serve in its stead.
    pub snapshot: Option<NamePart>,
}

impl Default for PoolOpenOptions {
    fn default() -> PoolOpenOptions {
        PoolOpenOptions {
            cache_bytes: 256 << 20,
            placement: Box::new(LogPlacement),
            shortage: None,
            files: FilesOptions::default(),
            discard: DiscardOptions::default(),
            random: 0,
            active_log_bytes: ACTIVE_LOG_BYTES_DEFAULT,
            dirty_pages: DIRTY_PAGES_DEFAULT,
            neighbours: Arc::new(SingleProcess),
            is_forced: false,
            fileset: None,
            snapshot: None,
        }
    }
}

/// Why a pool can't be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolOpenError {
    /// Impossible sizes: choose others.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// Impossible default block size: choose another.
    #[error("a block is a power of two from 4 KiB to 1 MiB and a quarter of a segment")]
    Block,
    /// Unusable pool name: choose another.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// Give more devices, or fewer.
    #[error("{kind} lies on {least} to {most} devices, not on {found}: give so many")]
    Width {
        /// Layout kind.
        kind: &'static str,
        /// Devices given.
        found: usize,
        /// Fewest devices allowed.
        least: usize,
        /// Most devices allowed.
        most: usize,
    },
    /// The log cannot be replayed without an absent device: attach it.
    #[error(
        "the log of a pool that was not closed cannot be read whole without what is away: attach \
         {missing}, or name where it is with --member PATH, and open the pool with it. Nothing \
         was changed. {cause}"
    )]
    LogAway {
        /// Paths of the absent members.
        missing: String,
        /// The replay error without the absent members.
        cause: Box<RecoveryError>,
    },
    /// Choose fragments of 4 KiB.
    #[error("{kind} has fragments of 4 KiB: leave the size of fragments out")]
    Fragment {
        /// Layout kind.
        kind: &'static str,
    },
    /// Choose a larger device, or make the pool smaller.
    #[error(
        "{device}: {found_bytes} bytes, and each member holds {needed_bytes}: give a larger device"
    )]
    SmallMember {
        /// Device name.
        device: String,
        /// Size of the device.
        found_bytes: u64,
        /// Least size of a member.
        needed_bytes: u64,
    },
    /// Give metadata a disk group of another kind.
    #[error(
        "a {kind} is for data alone: name another disk group for metadata (as in `--group \
         mirror:m0,m1=metadata,journal --group {kind}:d0,d1=data`)"
    )]
    NoMetadata {
        /// Layout kind.
        kind: &'static str,
    },
    /// Give a disk group the role data.
    #[error("no disk group has the role data: files could have no content")]
    NoData,
    /// Give one disk group the role journal.
    #[error("one disk group has the journal, and no other: name it once")]
    Journals,
    /// Give the journal, or the data, devices of their own.
    #[error(
        "a disk group has the journal and data and no metadata: the journal lies with the \
         metadata, or on devices of its own"
    )]
    JournalWithData,
    /// Give a larger device, or a smaller journal.
    #[error(
        "a device for the journal has {found_bytes} bytes, and {needed_bytes} are needed: give a \
         larger one, or a smaller journal (--journal-size)"
    )]
    JournalTooSmall {
        /// Size of the smallest device.
        found_bytes: u64,
        /// Least size of each device.
        needed_bytes: u64,
    },
    /// An unusable disk group.
    #[error(transparent)]
    Group(#[from] AddGroupError),
    /// No usable superblock: see the cause.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The log can't be replayed.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Unusable metadata.
    #[error(transparent)]
    Files(#[from] FsError),
    /// The log needs a replay, and the device is read-only or was opened read-only.
    #[error(
        "the pool was not closed, so its log must be replayed, and the device is read-only; make \
         it writable (blockdev --setrw, or losetup without -r) and mount it once, or mount a copy"
    )]
    NotClosed,
    /// Mount the pool read-only.
    #[error(
        "data is missing with {missing}, so nothing can be written: mount it with -o ro, and \
         copy what is left to another pool"
    )]
    DataAway {
        /// Paths of the absent members.
        missing: String,
    },
    /// Writing needs a pool feature that this software lacks.
    #[error("the pool can only be mounted read-only by this software (features {features:#x})")]
    ReadOnlyFeatures {
        /// Unknown feature bits.
        features: u64,
    },
}

/// An open pool.
pub struct Pool {
    superblock: Mutex<Superblock>,
    /// The heartbeat. `None` if this pool writes nothing.
    pulse: Option<Arc<HeartbeatWriter>>,
    core: Arc<Core>,
    jobs: JobRunner,
    scrub: Mutex<Option<Arc<ScrubCounts>>>,
    has_left_scrub: AtomicBool,
    trim: Mutex<Option<Arc<TrimCounts>>>,
    rebuild: Mutex<Option<Arc<RebuildCounts>>>,
    /// LOCK: held alone.
    unreadable: Mutex<unreadable::ReadErrorHistory>,
    has_resumed: AtomicBool,
    recovery: RecoveryReport,
    is_read_only: bool,
    lost_with: Option<String>,
    main_fileset: FilesetUuid,
    verifier: u64,
    secret: [u8; 16],
    snapshots_seen: snapshots::SnapshotsDirectoryTime,
}

impl CheckpointHooks for Core {
    fn submit_log_data(&self) {
        self.segments.seal_log_data();
    }

    fn released(&self, tail: Lsn) {
        self.store.alloc.release(tail);
        self.filesets.iter().for_each(|fileset| fileset.anodes.release(tail));
    }
}

/// The report of `status`.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Layout of the main disk group.
    pub layout: Layout,
    /// The members, in a pool of several devices.
    pub members: Vec<MemberStatus>,
    /// Members that failed since the open, or that a spare has replaced.
    pub failures: Vec<MemberFailure>,
    /// The disk groups.
    pub groups: Vec<DiskGroupStatus>,
    /// The spares.
    pub spares: Vec<SpareStatus>,
    /// Name given by the user.
    pub label: String,
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Device name.
    pub device: String,
    /// I/O interface of the device.
    pub transport: &'static str,
    /// Number of mounts so far.
    pub mount_count: u64,
    /// Layout of the pool.
    pub geometry: Geometry,
    /// Space in fragments.
    pub space: SpaceCounts,
    /// Report on a pool that has refused a change for lack of space.
    pub full: Option<Fullness>,
    /// Figures of the journal.
    pub journal: JournalCounts,
    /// Figures of the page cache.
    pub cache: CacheCounts,
    /// Figures of the segment cache.
    pub segment_cache: SegmentCacheCounts,
    /// Figures of readahead.
    pub readahead: ReadaheadCounts,
    /// Figures of the comparison of pages with their LSN pages.
    pub lsn: LsnCounts,
    /// Files with recently repaired blocks.
    pub mended: Vec<FilePart>,
    /// Cost of cleaning.
    pub cleaner: CleanerGauge,
    /// Figures of discards.
    pub discards: DiscardCounts,
    /// Figures of the replay at the open.
    pub recovery: RecoveryReport,
    /// Files with changes that are not in the journal.
    pub dirty_files: usize,
    /// Files referenced by front ends.
    pub referenced_files: usize,
    /// Inodes in use in all filesets. Those of snapshots are not counted.
    pub inodes: u64,
    /// Why the pool refuses changes, if it does.
    pub read_only: Option<String>,
    /// Paths of absent members without which data is missing.
    pub lost_with: Option<String>,
    /// The journal's devices, once the last of them has failed.
    pub lost_journal: Option<String>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("device", &self.volume().name()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns the pool's secret, equal in every open. Front ends derive their keys from it.
    #[must_use]
    pub fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Opens the pool on `device`, replaying its log if it was not closed.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn open(
        device: SharedDevice,
        clock: Arc<dyn Clock>,
        options: PoolOpenOptions,
    ) -> Result<Pool, PoolOpenError> {
        Pool::open_members(VolumeDevices::of_one(device), clock, options)
    }

    /// Opens a pool on several devices. Absent members are recorded as missing, durably, before any
    /// other write.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn open_members(
        devices: VolumeDevices,
        clock: Arc<dyn Clock>,
        options: PoolOpenOptions,
    ) -> Result<Pool, PoolOpenError> {
        let (mut volume, mut superblock) = Volume::open_members(devices)?;
        let lost_with = volume.lost_with(&superblock);
        if let Some(missing) = &lost_with {
            if !options.files.is_read_only {
                return Err(PoolOpenError::DataAway { missing: missing.clone() });
            }
            // CRASH: nothing is written, so the absent member does not become stale.
            volume = volume.in_memory();
            tracing::warn!(missing, "data is missing with a member: nothing is written");
        }
        let features =
            superblock.features_read_only & !format::superblock::READ_ONLY_COMPATIBLE_KNOWN;
        if features != 0 && !options.files.is_read_only {
            return Err(PoolOpenError::ReadOnlyFeatures { features });
        }
        if !options.files.is_read_only {
            volume.check_writable()?;
        }
        // Log chunks fill whole sectors. The largest sector size of all devices that the pool was
        // ever on applies.
        superblock.sector_bytes = superblock.sector_bytes.max(volume.sector_bytes());
        let is_read_only = options.files.is_read_only;
        let rest = rest_of(&volume, &superblock)?;
        let pulse = match rest {
            Some(_) if is_read_only => None,
            None if volume.is_read_only() => return Err(PoolOpenError::NotClosed),
            Some(_) | None => Some(take(&volume, &superblock, &clock, &options)?),
        };
        if rest.is_none() {
            check_log_without_absent(&volume, superblock.pool_id)?;
        }
        if pulse.is_some() && !planted!(AbsentNotLeftBehind) {
            volume.begin_writing(&mut superblock)?;
        }
        if pulse.is_some() {
            // CRASH: comes before any other write to the disk groups.
            volume.membership().changing().end_interrupted_move(&mut superblock)?;
        }
        let mut lost = Vec::new();
        let (start, recovery) = match rest {
            Some(head) => {
                (go_on(&volume, &superblock, head, is_read_only)?, RecoveryReport::default())
            }
            None => recover(&volume, &mut superblock, &mut lost)?,
        };
        if !is_read_only || recovery.was_needed {
            superblock.is_open = true;
            superblock.mount_count += 1;
            superblock.writer_term += 1;
            superblock.lsn_base = start.lsn;
            superblock.epoch_base = start.epoch;
            // Every copy of the superblock: otherwise a stale one, marked closed, could hide the
            // log.
            volume.update_superblocks(&mut superblock)?;
            if let Some(pulse) = &pulse {
                // If two machines have taken the pool at the same time, only one passes this check.
                pulse.verify()?;
            }
        }
        if is_read_only {
            volume.mend_no_more();
        }
        let limit_pages = (options.cache_bytes / PAGE_BYTES).max(256);
        let cache = Arc::new(Cache::new(volume.clone(), superblock.pool_id, limit_pages));
        let journal_options = JournalOptions {
            active_bytes_max: options.active_log_bytes,
            dirty_pages_max: options.dirty_pages,
        };
        let journal = Arc::new(Journal::new(
            volume.clone(),
            Arc::clone(&cache),
            Arc::clone(&clock),
            &superblock,
            journal_options,
            start,
        ));
        let alloc = Arc::new(Allocator::open(
            volume.clone(),
            Arc::clone(&cache),
            Arc::clone(&journal),
            (options.placement, options.shortage),
            superblock.block_shift,
        )?);
        let verifier = verifier_of(&superblock, options.random, clock.now());
        let store = Arc::new(Store { volume, cache, journal, alloc, clock });
        let table = FilesetTable::default();
        if store.alloc.has_reservations() {
            let shift = store.geometry().fragment_shift;
            let kept = table.lock(&store)?.nodes().map(|node| node.kept(shift)).sum();
            store.alloc.kept.change(0, kept);
        }
        let slot = match &options.fileset {
            None => ROOT_SLOT,
            Some(name) => {
                table.lock(&store)?.slot_of_node(name.parts(), options.snapshot.as_ref())?
            }
        };
        let fileset = MountedFileset::open(&store, slot)?;
        let main_fileset = FilesetUuid(u128::from_le_bytes(fileset.uuid));
        let filesets = Filesets::new(OpenFileset::new(fileset), table);
        let jobs = JobRunner::new(options.discard);
        let (secret, emptier) = (superblock.secret, jobs.emptier());
        let core = Arc::new(Core::new(store, filesets, secret, options.files, emptier));
        let weak: std::sync::Weak<dyn CheckpointHooks> = {
            let shared: Arc<dyn CheckpointHooks> = Arc::<Core>::clone(&core);
            Arc::downgrade(&shared)
        };
        core.store.journal.connect(weak);
        let superblock = Mutex::new(superblock);
        let pool = Pool {
            superblock,
            pulse,
            core,
            jobs,
            unreadable: Mutex::default(),
            scrub: Mutex::new(None),
            has_left_scrub: AtomicBool::new(false),
            trim: Mutex::new(None),
            rebuild: Mutex::new(None),
            has_resumed: AtomicBool::new(false),
            recovery,
            is_read_only,
            lost_with,
            main_fileset,
            verifier,
            secret,
            snapshots_seen: snapshots::SnapshotsDirectoryTime::default(),
        };
        pool.core.tell_lost(&lost);
        let is_changed = !is_read_only && !pool.files().is_of_snapshot();
        let is_changed = is_changed && pool.core.snapshotter().finish_main_deletion()?;
        if is_changed && pool.files().finish_orphans()? > 0 {
            // A checkpoint makes the freed space usable.
            pool.checkpoint()?;
        }
        Ok(pool)
    }

    fn volume(&self) -> &Volume {
        &self.core.store.volume
    }

    /// Returns the pool as one device, for readers beside the engine.
    #[must_use]
    pub fn device(&self) -> SharedDevice {
        Arc::clone(self.volume().device())
    }

    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    #[cfg(test)]
    pub(crate) fn add_job(&self, job: Arc<dyn crate::jobs::Job>) -> u64 {
        self.jobs.add(&self.core, job)
    }

    fn files(&self) -> Files<'_> {
        self.core.main_files()
    }

    /// Checkpoints everything and marks the pool closed. No change may follow: it would be in the
    /// log after the close, and the next open would find it.
    ///
    /// # Errors
    ///
    /// The device's error, or the reason why a file could not be journaled. Other accepted changes
    /// are durable all the same, and the next open replays the log.
    pub fn close(&self) -> FsResult<()> {
        if self.is_read_only && !self.recovery.was_needed {
            return Ok(());
        }
        let store = &self.core.store;
        self.core.writeback().sync_all()?;
        store.journal.checkpoint()?;
        if let Some(pulse) = &self.pulse {
            // HB2, HB3: the heartbeat stops, and the pool must still be ours.
            pulse.stop();
            pulse.verify().map_err(|error| store.journal.fail(&error))?;
        }
        let mut superblock = self.superblock.lock();
        superblock.is_open = false;
        let fail = |error| store.journal.fail(&error);
        store.volume.update_superblocks(&mut superblock).map_err(fail)?;
        if store.volume.has_lost_journal() {
            // The update may have found the journal lost. Another machine may own the pool by then.
            self.pulse.as_ref().map_or(Ok(()), |pulse| pulse.verify()).map_err(fail)?;
        }
        store.journal.lost_log().rebuild_if_lost()
    }

    /// Runs background work that is due. A front end calls it or [`Pool::tick_paced`] a few times a
    /// second.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn tick(&self) -> FsResult<()> {
        self.tick_paced().map(|_| ())
    }

    /// [`Pool::tick`]. Returns the time until the next call that the walks need, if sooner than
    /// usual.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn tick_paced(&self) -> FsResult<Option<Duration>> {
        // In an idle pool no request would find that a device has become shorter.
        self.volume().check_end().map_err(|error| self.core.store.journal.fail(&error))?;
        self.beat()?;
        if self.is_read_only {
            return Ok(None);
        }
        // A pool without commits would not notice that it has no journal.
        self.core.store.journal.lost_log().rebuild_if_lost()?;
        jobs::mended::name_some(&self.core);
        // On the first tick instead of at the open, because it reads the whole fileset table.
        if !self.has_resumed.swap(true, Ordering::Relaxed) {
            self.fileset_admin().resume_deletions()?;
            self.devices().resume_rebuild();
            self.devices().resume_reshape();
            self.devices().resume_evacuations();
            let is_left = self.volume().scrubbed().is_some();
            self.has_left_scrub.store(is_left, Ordering::Relaxed);
        }
        self.fail_unreadable();
        self.devices().take_back()?;
        self.devices().take_spare()?;
        self.devices().resume_scrub()?;
        match self.jobs.tick(&self.core) {
            // A full pool is no error here, so that the caller's periodic work continues.
            Err(FsError::NoSpace) => Ok(None),
            other => other,
        }
    }

    /// Returns the walks, oldest first.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.jobs.status(&self.core)
    }

    /// Pauses or resumes a job, a failed one included. Returns whether the job exists.
    pub fn pause_job(&self, id: u64, is_paused: bool) -> bool {
        self.jobs.pause(id, is_paused)
    }

    /// Sets which share of the time a job works. Returns whether the job exists.
    pub fn pace_job(&self, id: u64, pace: Pace) -> bool {
        self.jobs.set_pace(id, pace)
    }

    /// Writes the heartbeat if it is due, as long as the pool accepts changes (HB3).
    fn beat(&self) -> FsResult<()> {
        let Some(pulse) = &self.pulse else { return Ok(()) };
        let journal = &self.core.store.journal;
        if journal.check_alive().is_err() {
            pulse.stop();
        }
        pulse.beat().map_err(|error| journal.fail(&error))
    }

    /// Writes every change back, so that the log is empty.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn checkpoint(&self) -> FsResult<()> {
        if self.is_read_only {
            // Nothing is left: the open has written back the changes of a recovery.
            return Ok(());
        }
        self.core.reap_all_doomed();
        self.core.store.journal.checkpoint()
    }

    /// Cleans every segment that yields free space.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn clean(&self) -> FsResult<()> {
        if self.is_read_only { Ok(()) } else { self.core.space_reclaim().clean() }
    }

    /// Moves the metadata pages of an allocation group elsewhere, except those with a fixed place.
    ///
    /// # Errors
    ///
    /// Corruption of the group's maps. [`FsError::ReadOnly`] once the pool has failed.
    pub fn move_pages(&self, group: u32) -> FsResult<PageMoveReport> {
        let mut all = PageMoveReport::default();
        for segment in 0..self.core.store.geometry().segments_of(group) {
            let of_segment = self.core.mover().move_pages(SegmentId { group, segment })?;
            all.moved += of_segment.moved;
            all.busy += of_segment.busy;
            all.no_room += of_segment.no_room;
            all.bad += of_segment.bad;
        }
        Ok(all)
    }

    /// Returns a path from the root to a file.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`] if the file has no name in the directory that its anode records.
    pub fn path_of(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.core.enter(ino)?.names().path_of(ino)
    }

    /// Returns the fileset of an inode.
    pub fn fileset_of(&self, ino: Ino) -> FsResult<FilesetUuid> {
        Ok(self.core.files_of(ino)?.uuid())
    }

    /// Returns the report of `status`.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let files = self.files();
        let groups = self.devices().groups_for_status();
        // A failure to read the fileset table is reported by other operations.
        let inodes = self.core.inodes_used().unwrap_or_default();
        let superblock = self.superblock.lock();
        let label_end = superblock.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES);
        PoolStatus {
            layout: groups.first().map_or(superblock.layout, |group| group.layout),
            members: self.devices().members(),
            groups,
            spares: self.devices().spares(),
            failures: self.volume().failures(),
            label: format::text::shown(&superblock.label[..label_end]),
            pool_id: superblock.pool_id,
            device: self.volume().name().to_owned(),
            transport: self.volume().transport(),
            mount_count: superblock.mount_count,
            geometry: self.volume().geometry().clone(),
            space: files.store.alloc.counts(),
            // As for the inodes.
            full: self.core.space_reclaim().fullness().unwrap_or_default(),
            journal: files.store.journal.counts(),
            cache: files.store.cache.counts(),
            segment_cache: files.segments.cache.counts(),
            readahead: files.segments.ahead.counts(),
            lsn: files.store.cache.lsn_counts(),
            mended: files.segments.mended.named(),
            cleaner: self.jobs.cleaner_gauge(&self.core),
            discards: self.devices().discard_counts(),
            recovery: self.recovery,
            dirty_files: files.table.dirty_count(),
            referenced_files: files.table.reference_count(),
            inodes,
            read_only: files.store.journal.check_alive().err().map(|error| error.to_string()),
            lost_with: self.lost_with.clone(),
            lost_journal: files.store.journal.lost_log().lost_devices(),
        }
    }
}

fn verifier_of(superblock: &Superblock, random: u64, now: Timestamp) -> u64 {
    let nanoseconds = u64::from(now.nanoseconds) << 32;
    [superblock.mount_count, now.seconds.cast_unsigned(), nanoseconds]
        .into_iter()
        .fold(random, |so_far, next| mix(so_far ^ next))
}

/// Takes the pool, before any write to it (HB1).
fn take(
    volume: &Volume,
    superblock: &Superblock,
    clock: &Arc<dyn Clock>,
    options: &PoolOpenOptions,
) -> Result<Arc<HeartbeatWriter>, PoolOpenError> {
    let taking = TakeoverConditions { is_open: superblock.is_open, is_forced: options.is_forced };
    let neighbours = options.neighbours.as_ref();
    Ok(HeartbeatWriter::take(volume, superblock.pool_id, clock, neighbours, taking)?)
}

runtime::view! {
    /// The devices and disk groups of a pool: addition, failure, replacement, rebuild, scrub, trim.
    pub struct PoolDevices of Pool;
    /// Returns the devices and disk groups of the pool.
    fn devices;
}

runtime::view! {
    /// Administration of the filesets of a pool: creation, snapshots, clones, quotas, streams,
    /// moves.
    pub struct PoolFilesets of Pool;
    /// Returns the administration of the filesets of the pool.
    fn fileset_admin;
}
