//! A pool: made, opened, used, closed.
//!
//! # Crashes
//!
//! An open that finds the pool open replays the log, raises LSNs and epochs past anything the lost
//! life can have written, and says so in the superblock before it writes anything else. A close
//! takes everything home and then marks the pool closed.
//!
//! Not here: how a pool is made (`create.rs`), its filesets (`filesets.rs`), operations on files
//! (`serve.rs`).

mod clones;
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
mod start;
mod trim;
mod unreadable;

pub use create::{CreateOptions, GroupPlan, Layouts, NewDiskGroup};
pub use disk_groups::{DiskGroupError, DiskGroupStatus};
pub use filesets::FilesetInfo;
pub use in_use::{Fronts, PAUSE_NS_MAX};
pub use members::{MemberStatus, SpareStatus};
pub use moving::{Move, MoveError, MoveHow, MoveStep, Pipe};
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
use runtime::planted::{self, Planted};
use storage::device::{DeviceError, SharedDevice};
use storage::heartbeat::{Alone, Neighbours, Pulse, Taking};
use storage::pool::PoolError;
use storage::volume::{AddGroupError, MemberFailure, Opening, Volume};

use crate::alloc::policy::{LogPlacement, PlacementPolicy};
use crate::alloc::{Allocator, SegmentId, Shortage, SpaceCounts};
use crate::buffer::{Cache, CacheCounts, LsnCounts};
use crate::error::{FilePart, FsError, FsResult};
use crate::fileset::MountedFileset;
use crate::fileset::table::FilesetTable;
use crate::jobs::{
    self, CleanerGauge, DiscardCounts, DiscardOptions, JobStatus, Jobs, Pace, RebuildCounts,
    ScrubCounts, TrimCounts,
};
use crate::journal::{
    ACTIVE_LOG_BYTES_DEFAULT, CheckpointHooks, DIRTY_PAGES_DEFAULT, Journal, JournalCounts,
    JournalOptions, RecoveryError, RecoveryReport,
};
use crate::segment::{ReadaheadCounts, SegmentCacheCounts};
use crate::store::Store;
use crate::sync::Mutex;
use crate::vnode::api::{FilesetUuid, Ino};
use crate::vnode::{Core, Files, FilesOptions, Fileset, Filesets, Fullness, PagesMoved, mix};

/// How a pool is opened.
#[derive(Debug)]
pub struct OpenOptions {
    /// Bytes of memory for metadata pages.
    pub cache_bytes: usize,
    /// Where data goes.
    pub placement: Box<dyn PlacementPolicy>,
    /// Needs of space that are not met, whatever there is: for tests. `None`: none.
    pub shortage: Option<Arc<Shortage>>,
    /// How operations on files behave.
    pub files: FilesOptions,
    /// When free segments are discarded.
    pub discard: DiscardOptions,
    /// Random bits, for what tells this opening from every other (see `FileSystem::verifier`).
    pub random: u64,
    /// Most bytes of active log: bounds a replay.
    pub active_log_bytes: u64,
    /// Most pages whose changes are not at home: bounds a replay.
    pub dirty_pages: usize,
    /// What this machine knows of itself, for others that look whether the pool is in use.
    pub neighbours: Arc<dyn Neighbours>,
    /// Whether the user says that no other machine has the pool open.
    pub is_forced: bool,
    /// The fileset whose files are served; `None`: the first.
    pub fileset: Option<FilesetName>,
    /// The clone of that fileset whose files are served, instead of its own.
    pub clone: Option<NamePart>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            cache_bytes: 256 << 20,
            placement: Box::new(LogPlacement),
            shortage: None,
            files: FilesOptions::default(),
            discard: DiscardOptions::default(),
            random: 0,
            active_log_bytes: ACTIVE_LOG_BYTES_DEFAULT,
            dirty_pages: DIRTY_PAGES_DEFAULT,
            neighbours: Arc::new(Alone),
            is_forced: false,
            fileset: None,
            clone: None,
        }
    }
}

/// Why a pool can't be made or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The sizes asked for are impossible: choose others.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The default size of blocks is none: choose another.
    #[error("a block is a power of two from 4 KiB to 1 MiB and a quarter of a segment")]
    Block,
    /// The name for the user is none: choose another.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// Give more devices, or fewer.
    #[error("{kind} lies on {least} to {most} devices, not on {found}: give so many")]
    Width {
        /// Of the layout.
        kind: &'static str,
        /// How many there are.
        found: usize,
        /// How few there may be.
        least: usize,
        /// How many there may be.
        most: usize,
    },
    /// The log cannot be replayed without a device that is away. Attach it.
    #[error(
        "the log of a pool that was not closed cannot be read whole without what is away: attach \
         {missing}, or name where it is with --member PATH, and open the pool with it. Nothing \
         was changed. {cause}"
    )]
    LogAway {
        /// The paths of what is away.
        missing: String,
        /// What the devices that are there give.
        cause: Box<RecoveryError>,
    },
    /// Choose fragments of 4 KiB.
    #[error("{kind} has fragments of 4 KiB: leave the size of fragments out")]
    Fragment {
        /// Of the layout.
        kind: &'static str,
    },
    /// Choose a larger device, or make the pool smaller.
    #[error(
        "{device}: {found_bytes} bytes, and each member holds {needed_bytes}: give a larger device"
    )]
    SmallMember {
        /// Its name.
        device: String,
        /// How large it is.
        found_bytes: u64,
        /// How large it must be.
        needed_bytes: u64,
    },
    /// Give metadata a disk group of another kind.
    #[error(
        "a {kind} is for data alone: name another disk group for metadata (as in `--group \
         mirror:m0,m1=metadata,journal --group {kind}:d0,d1=data`)"
    )]
    NoMetadata {
        /// Which layout.
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
        /// The smallest.
        found_bytes: u64,
        /// What each needs.
        needed_bytes: u64,
    },
    /// A disk group cannot be one of the pool.
    #[error(transparent)]
    Group(#[from] AddGroupError),
    /// No usable superblock: see the cause.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The log can't be replayed.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Metadata can't be used.
    #[error(transparent)]
    Files(#[from] FsError),
    /// The log is to be replayed, and the device takes no writes, or was opened for none.
    #[error(
        "the pool was not closed, so its log must be replayed, and the device is read-only; make \
         it writable (blockdev --setrw, or losetup without -r) and mount it once, or mount a copy"
    )]
    NotClosed,
    /// Mount it read-only.
    #[error(
        "data is missing with {missing}, so nothing can be written: mount it with -o ro, and \
         copy what is left to another pool"
    )]
    DataAway {
        /// The paths of the members that are away.
        missing: String,
    },
    /// The pool needs a feature to be written that this software does not have.
    #[error("the pool can only be mounted read-only by this software (features {features:#x})")]
    ReadOnlyFeatures {
        /// Unknown bits.
        features: u64,
    },
}

/// An open pool: a file system.
pub struct Pool {
    superblock: Mutex<Superblock>,
    /// `None`: nothing is written.
    pulse: Option<Arc<Pulse>>,
    core: Arc<Core>,
    jobs: Jobs,
    /// What the last scrub has found.
    scrub: Mutex<Option<Arc<ScrubCounts>>>,
    /// Whether the labels tell of a scrub that this open has not gone on with yet.
    has_left_scrub: AtomicBool,
    /// What the last trim has done.
    trim: Mutex<Option<Arc<TrimCounts>>>,
    /// What the last rebuild has done.
    rebuild: Mutex<Option<Arc<RebuildCounts>>>,
    /// Locked with nothing else.
    unreadable: Mutex<unreadable::Unreadable>,
    /// Whether the jobs of the life before go on.
    has_resumed: AtomicBool,
    recovery: RecoveryReport,
    is_read_only: bool,
    /// The members that are away without which data is nowhere, by path.
    lost_with: Option<String>,
    main_fileset: FilesetUuid,
    /// Of this opening alone.
    verifier: u64,
    secret: [u8; 16],
    clones_seen: clones::Seen,
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

/// Everything that `status` tells.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// How the pool lies on its members.
    pub layout: Layout,
    /// The members, where there are several.
    pub members: Vec<MemberStatus>,
    /// The members that have failed since the pool was opened, or that a spare stands for.
    pub failures: Vec<MemberFailure>,
    /// The disk groups.
    pub groups: Vec<DiskGroupStatus>,
    /// The spares.
    pub spares: Vec<SpareStatus>,
    /// Name that the user gave.
    pub label: String,
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Name of the device.
    pub device: String,
    /// How requests travel to it.
    pub transport: &'static str,
    /// How often it was mounted.
    pub mount_count: u64,
    /// Where everything lies.
    pub geometry: Geometry,
    /// How full it is, in fragments.
    pub space: SpaceCounts,
    /// What there is to say of a pool that has refused a change for want of space; `None`: it has
    /// not, or there is space again.
    pub full: Option<Fullness>,
    /// The journal.
    pub journal: JournalCounts,
    /// The page cache.
    pub cache: CacheCounts,
    /// The segment cache.
    pub segment_cache: SegmentCacheCounts,
    /// What was read of files before it was asked for.
    pub readahead: ReadaheadCounts,
    /// What comparing pages with their LSN pages has found.
    pub lsn: LsnCounts,
    /// The last files of which a read found blocks bad on a member, and wrote them again.
    pub mended: Vec<FilePart>,
    /// What cleaning has cost.
    pub cleaner: CleanerGauge,
    /// What discards have come to.
    pub discards: DiscardCounts,
    /// What the open replayed.
    pub recovery: RecoveryReport,
    /// Files with changes that are not in the journal.
    pub dirty_files: usize,
    /// Files that front ends hold.
    pub referenced_files: usize,
    /// Inodes in use.
    pub inodes: u64,
    /// Why the pool takes no changes, if it does not.
    pub read_only: Option<String>,
    /// The members that are away without which data is nowhere, by path.
    pub lost_with: Option<String>,
    /// The devices that the journal was on, if the last of them has failed since the pool was
    /// opened and it has none of its own.
    pub lost_journal: Option<String>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("device", &self.volume().name()).finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns what only this pool knows, in every opening: fronts make their keys of it.
    #[must_use]
    pub fn secret(&self) -> [u8; 16] {
        self.secret
    }

    /// Opens the pool on `device`, replaying its log if it was not closed.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open(
        device: SharedDevice,
        clock: Arc<dyn Clock>,
        options: OpenOptions,
    ) -> Result<Pool, OpenError> {
        Pool::open_members(Opening::of_one(device), clock, options)
    }

    /// Opens the pool on several devices, as [`Pool::open`] does. Members that are not there are
    /// left behind, durably, before anything else is written.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_members(
        devices: Opening,
        clock: Arc<dyn Clock>,
        options: OpenOptions,
    ) -> Result<Pool, OpenError> {
        let (mut volume, mut superblock) = Volume::open_members(devices)?;
        let lost_with = volume.lost_with(&superblock);
        if let Some(missing) = &lost_with {
            if !options.files.is_read_only {
                return Err(OpenError::DataAway { missing: missing.clone() });
            }
            // CRASH: nothing is written, so the member may still come back with what it has.
            volume = volume.in_memory();
            tracing::warn!(missing, "data is missing with a member: nothing is written");
        }
        let features =
            superblock.features_read_only & !format::superblock::READ_ONLY_COMPATIBLE_KNOWN;
        if features != 0 && !options.files.is_read_only {
            return Err(OpenError::ReadOnlyFeatures { features });
        }
        if !options.files.is_read_only {
            volume.check_writable()?;
        }
        // A chunk of the log fills whole sectors of any device that the pool has been on.
        superblock.sector_bytes = superblock.sector_bytes.max(volume.sector_bytes());
        let is_read_only = options.files.is_read_only;
        let rest = rest_of(&volume, &superblock)?;
        let pulse = match rest {
            Some(_) if is_read_only => None,
            None if volume.is_read_only() => return Err(OpenError::NotClosed),
            Some(_) | None => Some(take(&volume, &superblock, &clock, &options)?),
        };
        if rest.is_none() {
            check_log_without_absent(&volume, superblock.pool_id)?;
        }
        if pulse.is_some() && !planted::is(Planted::AbsentNotLeftBehind) {
            volume.begin_writing(&mut superblock)?;
        }
        if pulse.is_some() {
            // CRASH: before anything else is written to the groups.
            volume.changing().end_interrupted_move(&mut superblock)?;
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
            // Every copy: one that still said "closed" would, if the others rotted, hide the log.
            volume.update_superblocks(&mut superblock)?;
            if let Some(pulse) = &pulse {
                // Of two that took a closed pool at one time one goes on.
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
            Some(name) => table.lock(&store)?.slot_of_node(name.parts(), options.clone.as_ref())?,
        };
        let fileset = MountedFileset::open(&store, slot)?;
        let main_fileset = FilesetUuid(u128::from_le_bytes(fileset.uuid));
        let filesets = Filesets::new(Fileset::new(fileset), table);
        let jobs = Jobs::new(options.discard);
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
            clones_seen: clones::Seen::default(),
        };
        pool.core.tell_lost(&lost);
        let is_changed = !is_read_only && !pool.files().is_of_clone();
        let is_changed = is_changed && pool.core.finish_main_deletion()?;
        if is_changed && pool.files().finish_orphans()? > 0 {
            // What they had can be used again, and counts as available, from then on.
            pool.checkpoint()?;
        }
        Ok(pool)
    }

    fn volume(&self) -> &Volume {
        &self.core.store.volume
    }

    /// Returns the pool as one device, for who reads it beside the engine.
    #[must_use]
    pub fn device(&self) -> SharedDevice {
        Arc::clone(self.volume().device())
    }

    /// Returns what belongs to the pool.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    #[cfg(test)]
    pub(crate) fn add_job(&self, job: Arc<dyn crate::jobs::Job>) -> u64 {
        self.jobs.add(&self.core, job)
    }

    /// Returns the files of the main fileset.
    fn files(&self) -> Files<'_> {
        self.core.main_files()
    }

    /// Takes everything home and marks the pool closed. It should not be used afterwards; what is
    /// synced all the same lies in the log behind the last checkpoint, where the next open finds
    /// it.
    ///
    /// # Errors
    ///
    /// What the device said, or why a file could not be put into the journal: all else that was
    /// accepted is durable, and the next open replays the log.
    pub fn close(&self) -> FsResult<()> {
        if self.is_read_only && !self.recovery.was_needed {
            return Ok(());
        }
        let store = &self.core.store;
        self.core.sync_all()?;
        store.journal.checkpoint()?;
        if let Some(pulse) = &self.pulse {
            // HB2, HB3.
            pulse.stop();
            pulse.verify().map_err(|error| store.journal.fail(&error))?;
        }
        let mut superblock = self.superblock.lock();
        superblock.is_open = false;
        let fail = |error| store.journal.fail(&error);
        store.volume.update_superblocks(&mut superblock).map_err(fail)?;
        if store.volume.has_lost_journal() {
            // That has found it. Nobody else may have the pool by now.
            self.pulse.as_ref().map_or(Ok(()), |pulse| pulse.verify()).map_err(fail)?;
        }
        store.journal.make_anew_if_lost()
    }

    /// Does the background work that is due. A front end calls it a few times a second, or
    /// [`Pool::tick_paced`].
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn tick(&self) -> FsResult<()> {
        self.tick_paced().map(|_| ())
    }

    /// Does the same, and returns in how long jobs that have an end want to be called again, if
    /// sooner than in its time. `None`: there are none, or all wait.
    ///
    /// # Errors
    ///
    /// As [`Pool::tick`].
    pub fn tick_paced(&self) -> FsResult<Option<Duration>> {
        // A pool that nobody writes to would not learn of it.
        self.volume().check_end().map_err(|error| self.core.store.journal.fail(&error))?;
        self.beat()?;
        if self.is_read_only {
            return Ok(None);
        }
        // A pool in which nobody commits would go on without it.
        self.core.store.journal.make_anew_if_lost()?;
        jobs::mended::name_some(&self.core);
        // Here and not at the open: it reads the whole table of filesets.
        if !self.has_resumed.swap(true, Ordering::Relaxed) {
            self.resume_deletions()?;
            self.resume_rebuild();
            self.resume_reshape();
            self.resume_evacuations();
            let is_left = self.volume().scrubbed().is_some();
            self.has_left_scrub.store(is_left, Ordering::Relaxed);
        }
        self.fail_unreadable();
        self.take_back()?;
        self.take_spare()?;
        self.resume_scrub()?;
        match self.jobs.tick(&self.core) {
            // A full pool is no reason to stop the clock.
            Err(FsError::NoSpace) => Ok(None),
            other => other,
        }
    }

    /// Returns the jobs that have an end, oldest first.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobStatus> {
        self.jobs.status(&self.core)
    }

    /// Makes a job pause, or go on, also one that has failed. Returns whether there is such a job.
    pub fn pause_job(&self, id: u64, is_paused: bool) -> bool {
        self.jobs.pause(id, is_paused)
    }

    /// Sets how much of the time a job works. Returns whether there is such a job.
    pub fn pace_job(&self, id: u64, pace: Pace) -> bool {
        self.jobs.set_pace(id, pace)
    }

    /// Says that the pool is in use, if that is due, for as long as it takes changes (HB3).
    fn beat(&self) -> FsResult<()> {
        let Some(pulse) = &self.pulse else { return Ok(()) };
        let journal = &self.core.store.journal;
        if journal.check_alive().is_err() {
            pulse.stop();
        }
        pulse.beat().map_err(|error| journal.fail(&error))
    }

    /// Takes every change home, so that the log is empty.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn checkpoint(&self) -> FsResult<()> {
        if self.is_read_only {
            // What a recovery changed is home since the open.
            return Ok(());
        }
        self.core.reap_all_doomed();
        self.core.store.journal.checkpoint()
    }

    /// Empties every segment that gives anything back.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] once the pool has failed.
    pub fn clean(&self) -> FsResult<()> {
        if self.is_read_only { Ok(()) } else { self.core.clean() }
    }

    /// Moves the metadata pages of an allocation group elsewhere, those left out that are fixed
    /// there: what the job does with those that are given up.
    ///
    /// # Errors
    ///
    /// What is wrong with the maps of the group; [`FsError::ReadOnly`] once the pool has failed.
    pub fn move_pages(&self, group: u32) -> FsResult<PagesMoved> {
        let mut all = PagesMoved::default();
        for segment in 0..self.core.store.geometry().segments_of(group) {
            let of_segment = self.core.move_pages(SegmentId { group, segment })?;
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
    /// [`FsError::NotFound`] if it has no name where its anode remembers one.
    pub fn path_of(&self, ino: Ino) -> FsResult<Vec<u8>> {
        self.core.enter(ino)?.path_of(ino)
    }

    /// Returns the fileset that an inode is in.
    pub fn fileset_of(&self, ino: Ino) -> FsResult<FilesetUuid> {
        Ok(self.core.files_of(ino)?.uuid())
    }

    /// Returns everything that `status` tells.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let files = self.files();
        let groups = self.groups_for_status();
        let superblock = self.superblock.lock();
        let label_end = superblock.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL_BYTES);
        PoolStatus {
            layout: groups.first().map_or(superblock.layout, |group| group.layout),
            members: self.members(),
            groups,
            spares: self.spares(),
            failures: self.volume().failures(),
            label: format::text::shown(&superblock.label[..label_end]),
            pool_id: superblock.pool_id,
            device: self.volume().name().to_owned(),
            transport: self.volume().transport(),
            mount_count: superblock.mount_count,
            geometry: self.volume().geometry().clone(),
            space: files.store.alloc.counts(),
            // Whoever can't read the table of filesets is told elsewhere.
            full: self.core.fullness().unwrap_or_default(),
            journal: files.store.journal.counts(),
            cache: files.store.cache.counts(),
            segment_cache: files.segments.cache.counts(),
            readahead: files.segments.ahead.counts(),
            lsn: files.store.cache.lsn_counts(),
            mended: files.segments.mended.named(),
            cleaner: self.jobs.cleaner_gauge(&self.core),
            discards: self.discard_counts(),
            recovery: self.recovery,
            dirty_files: files.table.dirty_count(),
            referenced_files: files.table.reference_count(),
            inodes: files.fileset.anodes.anodes_used(),
            read_only: files.store.journal.check_alive().err().map(|error| error.to_string()),
            lost_with: self.lost_with.clone(),
            lost_journal: files.store.journal.lost_devices(),
        }
    }
}

/// Returns what tells this opening from every other: by chance, and where none was given by the
/// count of mounts and the time.
fn verifier_of(superblock: &Superblock, random: u64, now: Timestamp) -> u64 {
    let nanoseconds = u64::from(now.nanoseconds) << 32;
    [superblock.mount_count, now.seconds.cast_unsigned(), nanoseconds]
        .into_iter()
        .fold(random, |so_far, next| mix(so_far ^ next))
}

/// Takes the pool, before anything is written to it (HB1).
fn take(
    volume: &Volume,
    superblock: &Superblock,
    clock: &Arc<dyn Clock>,
    options: &OpenOptions,
) -> Result<Arc<Pulse>, OpenError> {
    let taking = Taking { is_open: superblock.is_open, is_forced: options.is_forced };
    let neighbours = options.neighbours.as_ref();
    Ok(Pulse::take(volume, superblock.pool_id, clock, neighbours, taking)?)
}
