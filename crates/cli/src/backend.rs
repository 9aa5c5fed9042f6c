//! Everything that needs the engine, the checker or the torture harness.
//!
//! The rest of the program speaks only [`Backend`] and [`OpenPool`], so this is the one file to
//! change when they change. Tests have a backend of their own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::vnode::api::{FileSystem, FilesetUuid, Ino};
use format::disk_group::Roles;
use format::fileset::{FilesetName, NamePart};
use format::members::Layout;
use serde::Serialize;
use serde_json::Value;

use crate::control::{Answer, DeviceFacts, Peer, Request};
use crate::transfer::{OnBytes, Transfer};
pub use crate::wiring::moves::Lent;

/// Health of a pool that goes on without a member, and has no other trouble.
pub(crate) const DEGRADED: &str = "degraded";
/// Health of a pool in which a scrub found data that it could not verify or read, and that has no
/// other trouble. A later scrub without such findings clears it.
pub(crate) const DAMAGED: &str = "damaged: a scrub found data that it could not verify or read";

/// Why something was not done. Each message ends with what to do.
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
        /// ` by process N`, where that is known; else empty.
        by: String,
    },
    /// Not ours: use the tool it belongs to, or `create --force` to overwrite it.
    #[error(
        "{}: {found}: check the path (`holdfast create --force` would overwrite what is there)",
        device.display()
    )]
    Foreign {
        /// The device.
        device: PathBuf,
        /// What is there: `not a Holdfast pool`, `an ext4 file system`.
        found: String,
    },
    /// Mount it, or serve it: that replays its log.
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
        /// The newest known.
        known: String,
    },
    /// Change the option.
    #[error("{option}: {reason}")]
    Option {
        /// The option, as it is typed: `--fragment`.
        option: &'static str,
        /// What is wrong and what is possible.
        reason: String,
    },
    /// Anything else; the cause says what to do.
    #[error("{}: {cause}", device.display())]
    Failed {
        /// The device.
        device: PathBuf,
        /// The error of the layer below, in full.
        cause: String,
    },
}

/// A disk group that a pool is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupToMake {
    /// How it lies on its devices.
    pub layout: Layout,
    /// How many of the devices are its own.
    pub width: usize,
    /// What may lie there.
    pub roles: Roles,
}

impl GroupToMake {
    /// Returns the disk group of a pool on one device.
    #[must_use]
    pub fn single() -> GroupToMake {
        let roles = Roles { data: true, metadata: true, journal: true };
        GroupToMake { layout: Layout::Single, width: 1, roles }
    }
}

/// What `create` makes.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Files, made if they are missing, or block devices: of all disk groups, in their order.
    pub devices: Vec<PathBuf>,
    /// The disk groups, the one with the metadata first.
    pub groups: Vec<GroupToMake>,
    /// Size of the device; `None`: as large as it is.
    pub size_bytes: Option<u64>,
    /// Leave nothing of block devices for one that is a little smaller to replace them.
    pub uses_all: bool,
    /// Unit of allocation.
    pub fragment_bytes: u64,
    /// Unit of a container's map.
    pub block_bytes: u64,
    /// Size of an allocation group; `None`: the engine's choice.
    pub group_bytes: Option<u64>,
    /// Size of the journal; `None`: the engine's choice.
    pub journal_bytes: Option<u64>,
    /// A name for people.
    pub label: String,
    /// Owner of the root directory: whoever makes the pool, so that they can use it.
    pub owner_uid: u32,
    /// Group of the root directory.
    pub owner_gid: u32,
    /// Overwrite what is on the device; a pool in use is refused all the same.
    pub is_forced: bool,
}

/// What `create` made.
#[derive(Clone, Debug, Serialize)]
pub struct CreateReport {
    /// The pool's id, as 32 hexadecimal digits.
    pub pool_id: String,
    /// Size of the device.
    pub size_bytes: u64,
    /// Unit of allocation.
    pub fragment_bytes: u64,
    /// Unit of a container's map.
    pub block_bytes: u64,
    /// Size of an allocation group.
    pub group_bytes: u64,
    /// How many of them.
    pub group_count: u64,
    /// Size of the journal.
    pub journal_bytes: u64,
    /// Pages written.
    pub pages_written: u64,
    /// What should be otherwise, each with what to do.
    pub warnings: Vec<String>,
}

/// How data is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Next fragments of the open segment.
    Log,
    /// Near the anode's group.
    Ffs,
    /// One group at a time.
    Hotspot,
}

/// Where the members of a pool are, beside the one that is named.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// Where to look: the identity of a device decides whether it is one.
    pub hints: Vec<PathBuf>,
    /// Whether fewer than half of them will do, and no others are looked for.
    pub accepts_missing: bool,
}

/// On what free segments are discarded without being asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discards {
    /// On files with holes.
    #[default]
    SparseFiles,
    /// On all devices but stripes.
    On,
    /// On none.
    Off,
}

/// How a pool is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The pool's device, or one of them.
    pub device: PathBuf,
    /// The others.
    pub members: Members,
    /// Refuse every change; what a crash left in the journal is replayed all the same.
    pub is_read_only: bool,
    /// Whether a pool that was not closed is changed all the same, so that it can be read only.
    pub may_replay: bool,
    /// Never renew access times.
    pub has_no_atime: bool,
    /// Memory for pages.
    pub cache_bytes: u64,
    /// How data is placed.
    pub placement: Placement,
    /// Age at which what was not synced is committed.
    pub commit_interval: Duration,
    /// How long the device may take to answer.
    pub device_deadline: Duration,
    /// When what is free is discarded.
    pub discards: Discards,
    /// Whether no other machine has the pool open, for the user says so.
    pub is_forced: bool,
    /// The fileset whose files are served; `None`: the first.
    pub fileset: Option<FilesetName>,
    /// The clone of that fileset that is served, instead of its own files.
    pub clone: Option<NamePart>,
}

/// What to explain.
#[derive(Clone, Debug)]
pub enum ExplainTarget {
    /// Bytes of an inode.
    Inode {
        /// Its number.
        ino: Ino,
        /// First and last byte; `None`: the whole file.
        range: Option<(u64, u64)>,
    },
    /// Bytes of a file in a pool that is not mounted.
    Path {
        /// Whose: `None`: the first fileset's.
        fileset: Option<FilesetName>,
        /// The path from the root.
        path: Vec<u8>,
        /// First and last byte; `None`: the whole file.
        range: Option<(u64, u64)>,
    },
    /// A place on a device.
    Offset {
        /// Bytes from the start of the device.
        offset: u64,
    },
}

/// One layer of an explanation, from the name downwards or from the byte upwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct ExplainStep {
    /// The layer: `dirent`, `inode`, `map page`, `segment`, `device`.
    pub layer: String,
    /// What it says, in one line.
    pub fact: String,
}

/// What a check says.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// What is wrong. Empty: the pool is clean.
    pub defects: Vec<DefectReport>,
    /// What to know besides: spare copies that fail, a log that was replayed in memory.
    pub notes: Vec<String>,
    /// Defects found beyond those listed.
    pub unlisted_count: u64,
    /// Why the check ended before its end, if it did: there may be more.
    pub stopped: Option<String>,
    /// Pages read.
    pub pages_read: u64,
    /// Files seen.
    pub inode_count: u64,
    /// More facts, for programs.
    pub facts: Value,
}

/// One defect.
#[derive(Clone, Debug, Serialize)]
pub struct DefectReport {
    /// Its permanent code: `AG001`.
    pub code: String,
    /// What it is, where, and by which path.
    pub message: String,
}

/// A page or structure as text.
#[derive(Clone, Debug)]
pub struct DumpReport {
    /// For people; several lines.
    pub text: String,
    /// For programs.
    pub value: Value,
}

/// What is tortured.
#[derive(Clone, Debug)]
pub struct TortureOptions {
    /// The first seed.
    pub seed_first: u64,
    /// How many seeds.
    pub seed_count: u64,
    /// Of what pools.
    pub of: TortureOf,
    /// What they lie on.
    pub pools: String,
}

/// What pools are tortured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TortureOf {
    /// One fileset, and clients at work on it.
    #[default]
    Clients,
    /// The same, and clones that are taken and deleted meanwhile.
    Clones,
    /// Several filesets with clones, forks and restores.
    Filesets,
}

impl TortureOf {
    /// Returns the option that asks for it.
    pub(crate) fn option(self) -> &'static str {
        match self {
            TortureOf::Clients => "",
            TortureOf::Clones => "--clones ",
            TortureOf::Filesets => "--filesets ",
        }
    }
}

/// What torture did with filesets and clones.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FilesetCounts {
    /// Operations on them that were done.
    pub done: u64,
    /// Clones that were taken.
    pub clones: u64,
    /// Operations on them that were refused, as they should be.
    pub refused: u64,
    /// Answers that the pool is full, or a quota.
    pub full: u64,
    /// Crashes in the midst of such an operation.
    pub crashes_amid: u64,
    /// Trees that were compared with the model's.
    pub compared: u64,
    /// Fragments that the cleaner moved.
    pub moved: u64,
}

/// What torture found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TortureReport {
    /// Seeds run.
    pub seeds: u64,
    /// Crashes in them.
    pub crashes: u64,
    /// Crashes with two operations in flight or more.
    pub concurrent_crashes: u64,
    /// Crashes during the recovery from another.
    pub recovery_crashes: u64,
    /// Seeds none of whose crashes had two operations in flight: they say little.
    pub seeds_apart: u64,
    /// Requests to devices that failed, as planned.
    pub device_errors: u64,
    /// Times that a pool ran full under its clients.
    pub full_pools: u64,
    /// Writes that were lost or misdirected, and bytes that rotted.
    pub lies: u64,
    /// Answers to clients that told of device errors and damage.
    pub errors_told: u64,
    /// Operations that clients did.
    pub operations: u64,
    /// What was done with filesets and clones, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesets: Option<FilesetCounts>,
    /// What was wrong. Empty: nothing.
    pub findings: Vec<TortureFinding>,
}

/// One failed seed.
#[derive(Clone, Debug, Serialize)]
pub struct TortureFinding {
    /// The seed.
    pub seed: u64,
    /// What went wrong.
    pub message: String,
}

/// Which workloads are proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProveChoice {
    /// All.
    All,
    /// So many, by chance.
    Sample(u64),
    /// Part `index`, from 0, of `count` parts.
    Part {
        /// Which.
        index: u64,
        /// Of how many.
        count: u64,
    },
    /// The one of this number.
    Only(u64),
}

/// Which operations workloads are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProveAlphabet {
    /// All of bounded black-box crash testing.
    All,
    /// Each kind once.
    Kinds,
    /// So few that of three all workloads can be tried.
    Core,
    /// These, and clones that are taken and deleted.
    Clones,
}

/// What to prove.
#[derive(Clone, Debug)]
pub struct ProveOptions {
    /// Operations of a workload: 1 to 3.
    pub bound: u32,
    /// Of which.
    pub alphabet: ProveAlphabet,
    /// Of what is left to chance.
    pub seed: u64,
    /// Which workloads.
    pub choice: ProveChoice,
    /// Whether each request and each need of space fails in turn, instead of the power.
    pub failures: bool,
    /// Where workloads are written as base images and logs.
    pub export: Option<PathBuf>,
}

/// What was proved.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProveReport {
    /// Operations of a workload.
    pub bound: u32,
    /// Workloads that ran.
    pub workloads: u64,
    /// Workloads of the set.
    pub workloads_of_set: u64,
    /// Hash of the texts of those that ran, as 16 hexadecimal digits.
    pub set_hash: String,
    /// Moments at which the power could have been cut.
    pub points: u64,
    /// Runs in which a request failed, or a need of space was not met.
    pub failures: u64,
    /// States that the cuts or failures may leave.
    pub states: u64,
    /// States that a second cut, during the recovery, may leave.
    pub second_states: u64,
    /// Distinct images.
    pub images: u64,
    /// States judged: image and history differ.
    pub judged: u64,
    /// Distinct images that their recoveries left: each was checked.
    pub checked: u64,
    /// Workloads without an operation that is not there yet, by its name.
    pub unsupported: std::collections::BTreeMap<String, u64>,
    /// How long it took.
    pub milliseconds: u64,
    /// What was wrong. Empty: nothing.
    pub findings: Vec<ProveFinding>,
}

/// One failed workload.
#[derive(Clone, Debug, Serialize)]
pub struct ProveFinding {
    /// Its number.
    pub workload: u64,
    /// What went wrong.
    pub message: String,
}

/// Told as work goes on: what is being done, how much is done, and of how much (0: not known).
/// Called from one thread at a time; cheap enough to be called for each seed or each 1,000 pages.
pub type OnProgress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// An open pool. One for each mount; shared by the front's threads and the status server.
pub trait OpenPool: Send + Sync {
    /// Returns the file system to mount. The same one each time.
    fn file_system(&self) -> Arc<dyn FileSystem>;

    /// Opens one more fileset of the pool, or a clone of it, whose files are asked for like those
    /// of the first, until it is given back as often as it was opened. `None`: the first itself,
    /// which whoever opened the pool holds once.
    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        clone: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError>;

    /// Gives a fileset back: nothing more is asked of it, and no request is under way.
    fn release_fileset(&self, fileset: FilesetUuid);

    /// Returns the name that an opened fileset has now.
    fn fileset_name(&self, fileset: FilesetUuid) -> Option<String>;

    /// Returns what only this pool knows, the same in every opening.
    fn secret(&self) -> [u8; 16];

    /// Returns facts and counters as one JSON object: sizes, cache, journal, jobs, `health` (`ok`,
    /// or what is wrong), `warnings` (what should be otherwise, each with what to do). Answers at
    /// once; takes no lock that an operation holds across I/O.
    fn status(&self) -> Value;

    /// Explains a file of this pool.
    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError>;

    /// Does what is asked of the pool beside its files. Who calls has seen to it that `peer` may.
    fn control(&self, request: &Request, peer: Peer) -> Result<Answer, BackendError>;

    /// Does what is asked and moves more than an answer: through `file`, in one direction. Returns
    /// totals, as one JSON object. Who calls has seen to it that `peer` may. What is written into a
    /// fileset goes through `fronts`, which tell each other; `None`: it has no fronts.
    fn transfer(
        &self,
        request: &Transfer,
        peer: Peer,
        file: &mut File,
        fronts: Option<Arc<dyn FileSystem>>,
        progress: OnBytes<'_>,
    ) -> Result<Value, BackendError>;

    /// Lends the pool to a move of a fileset; `None`: it can't move any.
    fn lend(&self) -> Option<Lent<'_>> {
        None
    }

    /// Makes everything durable, marks the pool clean and ends its jobs. Called once, after the
    /// last operation; references that the kernel has not given back are void from here on.
    fn close(&self) -> Result<(), BackendError>;
}

/// What the program needs of the engine, the checker and the harness.
///
/// Each method that takes a device refuses, with the bytes untouched: a device that is missing, in
/// use by another process, foreign, or of a newer format.
pub trait Backend {
    /// Makes a pool.
    fn create(&self, options: &CreateOptions) -> Result<CreateReport, BackendError>;

    /// Opens a pool, recovering it first where it was not closed.
    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn OpenPool>, BackendError>;

    /// Makes a pool of `size_bytes` in memory, gone when it is closed, and opens it.
    fn open_in_memory(&self, size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError>;

    /// Verifies a pool that is not in use, in at most so many bytes of memory. Defects are in the
    /// report; an error means that the check itself could not be done.
    fn check(
        &self,
        device: &Path,
        members: &Members,
        memory_bytes_max: u64,
        progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError>;

    /// Shows a structure of a pool, which may be in use: then what it shows may be changing.
    /// `what` is the user's word, `superblock` for one; the error names the words that are known.
    fn dump(
        &self,
        device: &Path,
        members: &Members,
        what: &str,
    ) -> Result<DumpReport, BackendError>;

    /// Returns the devices of a pool by the labels of those that are found: also of a pool that
    /// cannot be opened without the others.
    fn listed(&self, device: &Path, members: &Members) -> Result<Vec<DeviceFacts>, BackendError> {
        let _ = members;
        Err(BackendError::Missing { device: device.to_owned() })
    }

    /// Explains a file or a place of a pool that is not mounted.
    fn explain(
        &self,
        device: &Path,
        members: &Members,
        target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError>;

    /// Runs seeds. A finding does not end the run.
    fn torture(
        &self,
        options: &TortureOptions,
        progress: OnProgress<'_>,
    ) -> Result<TortureReport, BackendError>;

    /// Tries every power cut of small workloads. A finding does not end the run.
    fn prove(
        &self,
        options: &ProveOptions,
        progress: OnProgress<'_>,
    ) -> Result<ProveReport, BackendError>;
}
