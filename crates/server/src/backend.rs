//! The interface between the program on one side and the engine, the checker and the torture
//! harness on the other.
//!
//! The rest of the program uses only [`Backend`] and [`OpenPool`]. So a change of the engine's
//! interface affects only the implementations, and tests can supply their own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLockReadGuard};
use std::time::Duration;

use control::wire::{ExplainStep, TransferProgress};
use engine::Pool;
use engine::api::{FileSystem, FilesetUuid, Ino};
use format::disk_group::DiskGroupRoles;
use format::fileset::{FilesetName, MoveState, NamePart};
use format::members::Layout;
use format::superblock::Superblock;
use serde::Serialize;
use serde_json::Value;

use crate::peer::Peer;
use control::{Answer, DeviceFacts, Request, Transfer};

/// Health of a pool with an absent member and no other trouble.
pub(crate) const DEGRADED: &str = "degraded";
/// Health of a pool whose last scrub found data that it could not verify or read, and which has no
/// other trouble. The next scrub without such findings clears it.
pub(crate) const DAMAGED: &str = "damaged: a scrub found data that it could not verify or read";

/// Why an operation was refused or failed. Each message ends with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Give the right path, or attach the device.
    #[error("{}: no such device: check the path, or attach the device", device.display())]
    Missing {
        /// The device.
        device: PathBuf,
    },
    /// Unmount first.
    #[error(
        "{}: the pool is in use{by}: unmount it first (`holdfast status` shows where it is \
         mounted)",
        device.display()
    )]
    InUse {
        /// The device.
        device: PathBuf,
        /// ` by process N` if the holder of the lock is known, else empty.
        by: String,
    },
    /// Not a pool: use the tool that owns the device, or `create --force` to overwrite it.
    #[error(
        "{}: {found}: check the path (`holdfast create DEVICE --force` would overwrite what \
         is there)",
        device.display()
    )]
    Foreign {
        /// The device.
        device: PathBuf,
        /// The contents of the device: `not a Holdfast pool`, `an ext4 file system`.
        found: String,
    },
    /// Mount or serve the pool, which replays its log.
    #[error("{}: the pool was not closed, and its log must be replayed", device.display())]
    NotClosed {
        /// The device.
        device: PathBuf,
    },
    /// Update the program.
    #[error(
        "{}: the pool has format {found}, this program knows up to {known}: update Holdfast",
        device.display()
    )]
    NewerFormat {
        /// The device.
        device: PathBuf,
        /// The pool's format.
        found: String,
        /// The newest format this program reads.
        known: String,
    },
    /// Change the option.
    #[error("{option}: {reason}")]
    Option {
        /// The option as typed: `--fragment`.
        option: &'static str,
        /// What is wrong, and which values are possible.
        reason: String,
    },
    /// Any other failure. The cause contains the remedy.
    #[error("{}: {cause}", device.display())]
    Failed {
        /// The device.
        device: PathBuf,
        /// The full error of the layer below.
        cause: String,
    },
}

/// A disk group for a pool to be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLayoutSpec {
    /// RAID layout on the devices.
    pub layout: Layout,
    /// Number of devices.
    pub width: usize,
    /// Roles: data, metadata, journal.
    pub roles: DiskGroupRoles,
}

impl GroupLayoutSpec {
    /// Returns the only disk group of a pool on one device.
    #[must_use]
    pub fn single() -> GroupLayoutSpec {
        let roles = DiskGroupRoles { data: true, metadata: true, journal: true };
        GroupLayoutSpec { layout: Layout::Single, width: 1, roles }
    }
}

/// Options of `create`.
#[derive(Clone, Debug)]
pub struct BackendCreateOptions {
    /// Block devices, or files (created if missing), of all disk groups in order.
    pub devices: Vec<PathBuf>,
    /// The disk groups. The first one holds the metadata.
    pub groups: Vec<GroupLayoutSpec>,
    /// Size of the device. `None` to use all of it.
    pub size_bytes: Option<u64>,
    /// Use block devices to the last page, without slack for a slightly smaller replacement.
    pub uses_all: bool,
    /// Unit of allocation.
    pub fragment_bytes: u64,
    /// Unit of a container's map.
    pub block_bytes: u64,
    /// Size of an allocation group. `None` for the engine's choice.
    pub group_bytes: Option<u64>,
    /// Size of the journal. `None` for the engine's choice.
    pub journal_bytes: Option<u64>,
    /// Name of the pool, empty for none.
    pub label: String,
    /// Owner of the root directory: by default the user that creates the pool.
    pub owner_uid: u32,
    /// Group of the root directory.
    pub owner_gid: u32,
    /// Overwrite the old contents of the devices. A pool in use is refused even so.
    pub is_forced: bool,
}

impl BackendCreateOptions {
    /// Returns options with the usual units for a pool in one file, owned by this process's user.
    #[must_use]
    pub fn in_file(device: &Path, size_bytes: u64, label: &str) -> BackendCreateOptions {
        BackendCreateOptions {
            devices: vec![device.to_owned()],
            groups: vec![GroupLayoutSpec::single()],
            size_bytes: Some(size_bytes),
            uses_all: false,
            fragment_bytes: 4096,
            block_bytes: 16_384,
            group_bytes: None,
            journal_bytes: None,
            label: label.to_owned(),
            owner_uid: rustix::process::geteuid().as_raw(),
            owner_gid: rustix::process::getegid().as_raw(),
            is_forced: false,
        }
    }
}

/// What a scan has found.
#[derive(Debug, Default)]
pub struct PoolScan {
    /// Devices with labels.
    pub devices: Vec<ScannedDevice>,
    /// Paths that may have a label and did not answer, or were not looked at after others had not.
    pub unread: Vec<PathBuf>,
}

/// A device of a pool, found by [`Backend::scan`].
#[derive(Clone, Debug)]
pub struct ScannedDevice {
    /// Canonical path.
    pub path: PathBuf,
    /// Newest label.
    pub label: Superblock,
}

/// Result of `create`.
#[derive(Clone, Debug, Serialize)]
pub struct CreateReport {
    /// The pool's id, 32 hexadecimal digits.
    pub pool_id: String,
    /// Size of the pool.
    pub size_bytes: u64,
    /// Unit of allocation.
    pub fragment_bytes: u64,
    /// Unit of a container's map.
    pub block_bytes: u64,
    /// Size of an allocation group.
    pub group_bytes: u64,
    /// Number of allocation groups.
    pub group_count: u64,
    /// Size of the journal.
    pub journal_bytes: u64,
    /// Pages written by the creation.
    pub pages_written: u64,
    /// Warnings, each with its remedy.
    pub warnings: Vec<String>,
}

/// Placement policy for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementPolicyKind {
    /// At the next fragments of the open segment.
    Log,
    /// Near the group of the anode.
    Ffs,
    /// In one group at a time.
    Hotspot,
}

/// Where to search for the members of a pool other than the named one.
#[derive(Clone, Debug, Default)]
pub struct MemberSearchOptions {
    /// Further paths to examine. The label on a device decides whether it is a member.
    pub hints: Vec<PathBuf>,
    /// Whether fewer than half of the members suffice. No others are searched for then.
    pub accepts_missing: bool,
}

/// Devices on which free segments are discarded automatically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardMode {
    /// Sparse files only.
    #[default]
    SparseFiles,
    /// All devices except those of stripes.
    On,
    /// None.
    Off,
}

/// Options for opening a pool.
#[derive(Clone, Debug)]
pub struct BackendOpenOptions {
    /// One of the pool's devices.
    pub device: PathBuf,
    /// Where the other members may be.
    pub members: MemberSearchOptions,
    /// Refuse every change. The journal of a pool that was not closed is replayed nevertheless.
    pub is_read_only: bool,
    /// Whether the journal may be replayed, which writes to the pool, before a read-only open.
    pub may_replay: bool,
    /// Never update access times.
    pub has_no_atime: bool,
    /// Memory for cached pages.
    pub cache_bytes: u64,
    /// Placement policy for data.
    pub placement: PlacementPolicyKind,
    /// Age at which unsynced changes are committed.
    pub commit_interval: Duration,
    /// Longest time a device request may take.
    pub device_deadline: Duration,
    /// Devices on which free segments are discarded.
    pub discards: DiscardMode,
    /// Skip the check whether another machine has the pool open. The user asserts that none has.
    pub is_forced: bool,
    /// The fileset to serve. `None` for the first.
    pub fileset: Option<FilesetName>,
    /// The snapshot of that fileset to serve instead of its live files.
    pub snapshot: Option<NamePart>,
}

/// Target of `explain`.
#[derive(Clone, Debug)]
pub enum ExplainTarget {
    /// Bytes of an inode in a mounted pool.
    Inode {
        /// Inode number.
        ino: Ino,
        /// First and last byte. `None` for the whole file.
        range: Option<(u64, u64)>,
    },
    /// Bytes of a file in a pool that is not mounted.
    Path {
        /// The file's fileset. `None` for the first one.
        fileset: Option<FilesetName>,
        /// Path from the root of the fileset.
        path: Vec<u8>,
        /// First and last byte. `None` for the whole file.
        range: Option<(u64, u64)>,
    },
    /// A byte of a device.
    Offset {
        /// Offset from the start of the device.
        offset: u64,
    },
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Defects found. Empty for a clean pool.
    pub defects: Vec<DefectReport>,
    /// Remarks that are no defects, such as a bad superblock copy or a log replayed in memory.
    pub notes: Vec<String>,
    /// Number of defects left out of the list.
    pub unlisted_count: u64,
    /// Why the check stopped early. Further defects may then be undetected.
    pub stopped: Option<String>,
    /// Pages read.
    pub pages_read: u64,
    /// Number of files seen.
    pub inode_count: u64,
    /// Further facts in JSON.
    pub facts: Value,
}

/// One defect of a check.
#[derive(Clone, Debug, Serialize)]
pub struct DefectReport {
    /// Permanent code: `AG001`.
    pub code: String,
    /// Description with place and path.
    pub message: String,
}

/// A page or structure as text.
#[derive(Clone, Debug)]
pub struct DumpReport {
    /// Several lines, for display.
    pub text: String,
    /// JSON, for programs.
    pub value: Value,
}

/// Progress callback: name of the step, amount done, total (0 if unknown). Calls come from one
/// thread at a time, and up to one per test seed or per 1,000 pages, so they must be cheap.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// Progress callback of a transfer. Returns whether to continue.
pub type OnTransfer<'p> = &'p mut dyn FnMut(TransferProgress) -> bool;

/// An open pool, lent to a move of a fileset. Closing the pool waits for the move.
pub struct PoolLease<'p> {
    pub(crate) path: &'p Path,
    pub(crate) pool: Arc<Pool>,
    /// Set when the pool begins to close.
    pub(crate) is_closing: &'p AtomicBool,
    /// Read lock that delays the close of the pool.
    pub(crate) _under_way: RwLockReadGuard<'p, ()>,
}

impl std::fmt::Debug for PoolLease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lent({})", self.path.display())
    }
}

impl PoolLease<'_> {
    /// Returns the moves that the pool has recorded as in progress. `None` if they cannot be read.
    pub(crate) fn moves(&self) -> Option<Vec<(FilesetName, MoveState)>> {
        self.pool.fileset_admin().moves().ok()
    }
}

/// An open pool, shared by its mounts, its exports and the status server.
pub trait OpenPool: Send + Sync {
    /// Returns the pool's file system, the same object at each call.
    fn file_system(&self) -> Arc<dyn FileSystem>;

    /// Holds a fileset or a snapshot open, so that the pool's file system serves its files. Holds
    /// are counted, and each needs a [`OpenPool::release_fileset`]. If `name` is `None`, holds the
    /// fileset that the pool was opened with. The opening holds that fileset once by itself.
    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        snapshot: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError>;

    /// Drops one hold on a fileset. No request for it may be in flight or follow.
    fn release_fileset(&self, fileset: FilesetUuid);

    /// Returns the current name of a held fileset.
    fn fileset_name(&self, fileset: FilesetUuid) -> Option<String>;

    /// Returns the pool's secret key, the same in every opening.
    fn secret(&self) -> [u8; 16];

    /// Returns facts and counters as one JSON object: sizes, cache, journal, jobs, `health` (`ok`
    /// or the trouble) and `warnings`, each with its remedy. Must not wait for a device: takes no
    /// lock that an operation holds across I/O.
    fn status(&self) -> Value;

    /// Explains a file or an offset of this pool.
    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError>;

    /// Executes an administrative request. The caller has checked the rights of `peer`.
    fn control(&self, request: &Request, peer: Peer) -> Result<Answer, BackendError>;

    /// Executes a request that moves bulk data through `file`, in one direction, and returns totals
    /// as one JSON object. The caller has checked the rights of `peer`. Writes into a fileset go
    /// through the file system `fronts`, so that shared mounts are notified. `None` if the fileset
    /// has no mounts or exports.
    fn transfer(
        &self,
        request: &Transfer,
        peer: Peer,
        file: &mut File,
        fronts: Option<Arc<dyn FileSystem>>,
        progress: OnTransfer<'_>,
    ) -> Result<Value, BackendError>;

    /// Lends the pool to a move of a fileset. `None` if this pool supports no moves.
    fn lend(&self) -> Option<PoolLease<'_>> {
        None
    }

    /// Makes everything durable, marks the pool clean and stops its jobs. Called once, after the
    /// last operation. References that kernels hold from lookups need no release after it.
    fn close(&self) -> Result<(), BackendError>;
}

/// The operations of the engine, the checker and the harness that the program uses.
///
/// A method refuses a device that is missing, in use by another process, foreign, or of a newer
/// format, and does not write to it.
pub trait Backend {
    /// Creates a pool.
    fn create(&self, options: &BackendCreateOptions) -> Result<CreateReport, BackendError>;

    /// Opens a pool, with recovery first if it was not closed.
    fn open(&self, options: &BackendOpenOptions) -> Result<Arc<dyn OpenPool>, BackendError>;

    /// Creates a pool of `size_bytes` in memory and opens it. Closing discards it.
    fn open_in_memory(&self, size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError>;

    /// Verifies a pool that is not in use, in at most `memory_bytes_max` of memory. Defects are in
    /// the report. An error means that the check could not run.
    fn check(
        &self,
        device: &Path,
        members: &MemberSearchOptions,
        memory_bytes_max: u64,
        progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError>;

    /// Dumps a structure of a pool. If the pool is in use, the dump may be inconsistent. `what` is
    /// the user's word, such as `superblock`. The error for an unknown word lists the valid ones.
    fn dump(
        &self,
        device: &Path,
        members: &MemberSearchOptions,
        what: &str,
    ) -> Result<DumpReport, BackendError>;

    /// Lists the devices of a pool from the labels found. Works for a pool that lacks too many
    /// members to be opened.
    fn listed(
        &self,
        device: &Path,
        members: &MemberSearchOptions,
    ) -> Result<Vec<DeviceFacts>, BackendError> {
        let _ = members;
        Err(BackendError::Missing { device: device.to_owned() })
    }

    /// Finds devices of pools: each of `places` is a device, or a folder with files and block
    /// devices, and can be reached. Each of `devices` may be gone, or never answer. Opens nothing
    /// for writing, and takes no lock.
    fn scan(&self, places: &[PathBuf], devices: &[PathBuf]) -> PoolScan {
        let _ = (places, devices);
        PoolScan::default()
    }

    /// Explains a file or an offset of a pool that is not mounted.
    fn explain(
        &self,
        device: &Path,
        members: &MemberSearchOptions,
        target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError>;
}
