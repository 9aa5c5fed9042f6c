//! The engine, the checker and the harness behind [`Backend`].

mod blank;
mod control;
mod create;
mod devices;
mod failures;
mod figures;
mod groups;
mod growth;
mod jobs;
mod look;
mod members;
pub(crate) mod moves;
pub(crate) mod neighbours;
mod quota;
mod search;
mod shares;
mod torture;
mod transfer;
mod trees;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use check::report::Finding;
use engine::vnode::api::{FileSystem, FilesetUuid, FsError};
use engine::{DiscardOn, DiscardOptions, FilesOptions, Pool};
use format::fileset::{FilesetName, NamePart, ROOT_NAME};
use format::geometry::GeometryError;
use format::superblock::SuperblockError;
use inspect::InspectError;
use inspect::explain::{Explanation, Whose, explain_offset, explain_path};
use runtime::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use storage::device::{
    Access, DEADLINE_MIN, FileDevice, FileOptions, MemoryDevice, OpenError, SharedDevice,
};
use storage::members::MembersError;
use storage::pool::PoolError;
use storage::volume::Opening;
use testkit::prove;

use self::figures::{is_degraded, status_of};
use self::jobs::{Jobs, TICK};
use self::moves::Lent;
use self::neighbours::ThisMachine;
use self::transfer::Watched;
use crate::backend::{
    Backend, BackendError, CheckReport, CreateOptions, CreateReport, DAMAGED, DEGRADED,
    DefectReport, Discards, DumpReport, ExplainStep, ExplainTarget, Members, OnProgress,
    OpenOptions, OpenPool, Placement, ProveAlphabet, ProveChoice, ProveFinding, ProveOptions,
    ProveReport, TortureOptions, TortureReport,
};
use crate::control::{Answer, DeviceFacts, Peer, Request};
use crate::holders::{file_behind, is_held_here, kernel_claims, kernel_uses, lock_holders};
use crate::transfer::{OnBytes, Transfer};

/// How long a device in use is asked for again: the kernel lets go of a killed server's requests,
/// and with them of its lock, a moment after the server is gone.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is asked for.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// The real engine.
#[derive(Debug)]
pub struct EngineBackend;

/// Returns an error that names its device once, in front, whether or not the cause names it too.
fn failed(device: &Path, cause: impl std::fmt::Display) -> BackendError {
    let (cause, name) = (cause.to_string(), format!("{}: ", device.display()));
    let cause = match cause.strip_prefix(&name) {
        Some(rest) => rest.to_owned(),
        None => cause.replacen(&format!(": {name}"), ": ", 1),
    };
    BackendError::Failed { device: device.to_owned(), cause }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
fn cannot_open(device: &Path, error: OpenError) -> BackendError {
    match error {
        OpenError::NotFound { .. } => BackendError::Missing { device: device.to_owned() },
        OpenError::InUse { .. } if is_held_here(device) => failed(
            device,
            "it is open here already: it is named twice, perhaps by another of its names, or is a \
             device of the pool: name each device once",
        ),
        OpenError::InUse { .. } => {
            let mut by = lock_holders(device);
            if let Some(file) = file_behind(device).filter(|_| by.is_empty()) {
                by = lock_holders(&file);
            }
            match kernel_claims(device).filter(|_| by.is_empty()) {
                Some(uses) => failed(device, format!("it is in use {uses}")),
                None => BackendError::InUse { device: device.to_owned(), by },
            }
        }
        other => failed(device, other),
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
fn cannot_use(device: &Path, error: &PoolError) -> BackendError {
    match error {
        PoolError::Superblock { cause: SuperblockError::BadMagic { .. }, .. } => {
            BackendError::Foreign {
                device: device.to_owned(),
                found: "not a Holdfast pool".to_owned(),
            }
        }
        PoolError::Superblock {
            cause: SuperblockError::UnsupportedVersion { major, minor },
            ..
        } => BackendError::NewerFormat {
            device: device.to_owned(),
            found: format!("{major}.{minor}"),
            known: format!("{}.x", format::superblock::VERSION_MAJOR),
        },
        PoolError::Superblock {
            cause: SuperblockError::UnsupportedFeatures { features }, ..
        } => BackendError::NewerFormat {
            device: device.to_owned(),
            found: format!("feature bits {features:#x}"),
            known: "none of them".to_owned(),
        },
        PoolError::Members(MembersError::Apart { .. }) => {
            let advice = "mount that with --accept-missing, which looks for no other, and then put \
                          the other in its own place (`holdfast device replace POOL OTHER OTHER \
                          --force`), which loses what that alone has";
            failed(device, format!("{error}: {advice}"))
        }
        other => failed(device, other),
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
fn cannot_start(device: &Path, error: engine::OpenError) -> BackendError {
    let option = |option| BackendError::Option { option, reason: error.to_string() };
    match error {
        engine::OpenError::Pool(error) => cannot_use(device, &error),
        engine::OpenError::Geometry(ref error) => option(option_of(error)),
        engine::OpenError::Block => option("--block"),
        engine::OpenError::Label(_) => option("--label"),
        engine::OpenError::Files(error @ FsError::Corrupt { .. }) => {
            let advice = format!("{error}: run `holdfast check {}`", device.display());
            failed(device, advice)
        }
        engine::OpenError::Files(error @ FsError::NoFileset { .. }) => {
            failed(device, format!("{error}: check the name, or leave it out to mount the first"))
        }
        other => failed(device, other),
    }
}

/// Says why a pool that was not closed has to be written to, where it cannot be.
fn not_replayed(error: BackendError) -> BackendError {
    let BackendError::Failed { device, cause } = error else { return error };
    let cause =
        format!("the pool was not closed, so its log must be replayed, read-only or not: {cause}");
    BackendError::Failed { device, cause }
}

/// Says what was found, and where to look for it.
fn message_of(found: &Finding) -> String {
    let path = found.path.as_ref().map_or(String::new(), |path| format!("{path}: "));
    let severity = found.defect.code.severity().word();
    let place = found.defect.place.map_or(String::new(), |place| format!(", place {place}"));
    let byte = found.device_offset.map_or(String::new(), |byte| format!(", device byte {byte}"));
    format!("{path}{} ({severity}{place}{byte})", found.defect.what)
}

/// Returns the option to change.
fn option_of(error: &GeometryError) -> &'static str {
    let GeometryError::BadOption { what, .. } = error else { return "--size" };
    match *what {
        "fragment" => "--fragment",
        "group" => "--allocation-group-size",
        "journal" => "--journal-size",
        _ => "--size",
    }
}

fn open_device_with(path: &Path, options: FileOptions) -> Result<Arc<FileDevice>, BackendError> {
    let asked = Instant::now();
    loop {
        match FileDevice::open(path, options) {
            Ok(device) => return Ok(device),
            Err(OpenError::InUse { .. }) if asked.elapsed() < LOCK_PATIENCE => {
                // Nobody can tell when the kernel is done, so it is asked again.
                std::thread::park_timeout(LOCK_POLL);
            }
            Err(error) => return Err(cannot_open(path, error)),
        }
    }
}

/// Refuses a file or device that is to be overwritten where the kernel has it in a way that no lock
/// shows: through a loop device.
fn refuse_used(path: &Path) -> Result<(), BackendError> {
    match kernel_uses(path) {
        Some(uses) => Err(failed(path, format!("it is in use {uses}"))),
        None => Ok(()),
    }
}

fn open_pool(options: &OpenOptions, devices: Opening) -> Result<Pool, engine::OpenError> {
    let commit_interval_ns = u64::try_from(options.commit_interval.as_nanos()).unwrap_or(u64::MAX);
    let open = engine::OpenOptions {
        cache_bytes: usize::try_from(options.cache_bytes).unwrap_or(usize::MAX),
        placement: placement_of(options.placement),
        files: FilesOptions {
            is_read_only: options.is_read_only,
            no_atime: options.has_no_atime,
            commit_interval_ns,
            ..FilesOptions::default()
        },
        discard: DiscardOptions { on: discard_on(options.discards), ..DiscardOptions::default() },
        random: random_number(),
        neighbours: Arc::new(ThisMachine),
        is_forced: options.is_forced,
        fileset: options.fileset.clone(),
        clone: options.clone.clone(),
        ..engine::OpenOptions::default()
    };
    Pool::open_members(devices, Arc::new(SystemClock::new()), open)
}

fn discard_on(discards: Discards) -> DiscardOn {
    match discards {
        Discards::SparseFiles => DiscardOn::SparseFiles,
        Discards::On => DiscardOn::All,
        Discards::Off => DiscardOn::None,
    }
}

fn to_read() -> FileOptions {
    FileOptions { access: Access::ReadOnly, ..FileOptions::default() }
}

/// Returns random bits; none where the system gives none: the pool has more to tell openings by.
fn random_number() -> u64 {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_or(0, |()| u64::from_le_bytes(random))
}

fn random_bytes() -> Result<[u8; 64], BackendError> {
    let mut random = [0; 64];
    getrandom::fill(&mut random).map_err(|error| failed(Path::new("/dev/urandom"), error))?;
    Ok(random)
}

impl Backend for EngineBackend {
    fn create(&self, options: &CreateOptions) -> Result<CreateReport, BackendError> {
        create::create(options)
    }

    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn OpenPool>, BackendError> {
        let path = &options.device;
        if options.device_deadline < DEADLINE_MIN {
            let reason = format!("at least {} ms", DEADLINE_MIN.as_millis());
            return Err(BackendError::Option { option: "--device-deadline", reason });
        }
        let devices_for = |access| {
            let deadline = options.device_deadline;
            let file_options = FileOptions { access, deadline, ..FileOptions::default() };
            members::find(path, &options.members, file_options)
        };
        let access = if options.is_read_only { Access::ReadAlone } else { Access::ReadWrite };
        let mut found = devices_for(access)?;
        let mut pool = open_pool(options, found.opening());
        if options.is_read_only && matches!(pool, Err(engine::OpenError::NotClosed)) {
            if !options.may_replay {
                return Err(BackendError::NotClosed { device: path.clone() });
            }
            // A log that must be replayed is written home, for a read-only mount too.
            drop(found);
            found = devices_for(Access::ReadWrite).map_err(not_replayed)?;
            pool = open_pool(options, found.opening());
        }
        let pool = pool.map_err(|error| cannot_start(path, error))?;
        pool.forget_paths(&found.others).map_err(|error| failed(path, error))?;
        let OpenOptions { is_read_only, commit_interval, .. } = *options;
        let mode = Mode { is_read_only, commit_interval };
        let mut served = Served::start(path.clone(), found.files, mode, pool);
        served.reports = found.reports;
        if let Some(name) = &options.fileset {
            let clone = options.clone.as_ref().map(|clone| format!("@{}", clone.as_str()));
            served.fileset = Mutex::new(format!("{name}{}", clone.unwrap_or_default()));
        }
        Ok(Arc::new(served))
    }

    fn open_in_memory(&self, size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError> {
        let path = Path::new("memory");
        let device: SharedDevice = MemoryDevice::new("memory", size_bytes & !4095);
        let create = engine::CreateOptions::new(size_bytes & !4095, random_bytes()?);
        Pool::create(&device, &SystemClock::new(), &create)
            .map_err(|error| cannot_start(path, error))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let pool = Pool::open(Arc::clone(&device), clock, engine::OpenOptions::default())
            .map_err(|error| cannot_start(path, error))?;
        let commit_interval_ns = FilesOptions::default().commit_interval_ns;
        let commit_interval = Duration::from_nanos(commit_interval_ns);
        let mode = Mode { is_read_only: false, commit_interval };
        Ok(Arc::new(Served::start(path.to_owned(), Vec::new(), mode, pool)))
    }

    fn check(
        &self,
        path: &Path,
        members: &Members,
        memory_bytes_max: u64,
        progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError> {
        let members::ToRead { device, away } = members::to_read(path, members, to_read())?;
        if let Err(error) = storage::pool::read_superblock(device.as_ref()) {
            return Err(cannot_use(path, &error));
        }
        let options = check::Options { memory_bytes_max, ..check::Options::default() };
        let report = check::run(device, options, &mut |at| {
            progress(at.pass, at.done, at.total);
        });
        let listed: Vec<DefectReport> = report
            .findings
            .iter()
            .map(|found| DefectReport {
                code: found.defect.code.name().to_owned(),
                message: message_of(found),
            })
            .collect();
        let listed_count = u64::try_from(listed.len()).unwrap_or(u64::MAX);
        Ok(CheckReport {
            unlisted_count: report.defect_count().saturating_sub(listed_count),
            defects: listed,
            stopped: report.stopped.clone(),
            notes: away.into_iter().chain(report.note_lines()).collect(),
            pages_read: report.totals.pages,
            inode_count: report.totals.anodes,
            facts: serde_json::from_str(&report.to_json()).unwrap_or(Value::Null),
        })
    }

    fn dump(&self, path: &Path, members: &Members, what: &str) -> Result<DumpReport, BackendError> {
        let target = what.parse().map_err(|error: InspectError| BackendError::Option {
            option: "WHAT",
            reason: error.to_string(),
        })?;
        let device: SharedDevice = match target {
            // The label is of the device that is named, whatever became of the others.
            inspect::dump::Target::Superblock(_) => open_device_with(path, to_read())?,
            inspect::dump::Target::Journal
            | inspect::dump::Target::Page(_)
            | inspect::dump::Target::DeviceByte(_) => {
                members::to_read(path, members, to_read())?.device
            }
        };
        let text = inspect::dump::dump(&device, target).map_err(|error| failed(path, error))?;
        let value = json!({ "what": what, "text": text });
        Ok(DumpReport { text, value })
    }

    fn listed(&self, path: &Path, members: &Members) -> Result<Vec<DeviceFacts>, BackendError> {
        members::listed(path, members, to_read())
    }

    fn explain(
        &self,
        path: &Path,
        members: &Members,
        target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError> {
        let device = members::to_read(path, members, to_read())?.device;
        explain_on(&device, path, target, None)
    }

    fn torture(
        &self,
        options: &TortureOptions,
        progress: OnProgress<'_>,
    ) -> Result<TortureReport, BackendError> {
        torture::run(options, progress)
    }

    fn prove(
        &self,
        options: &ProveOptions,
        progress: OnProgress<'_>,
    ) -> Result<ProveReport, BackendError> {
        let begun = std::time::Instant::now();
        let ProveOptions { bound, alphabet, seed, choice, failures, export } = options;
        let alphabet = match alphabet {
            ProveAlphabet::All => prove::Alphabet::All,
            ProveAlphabet::Kinds => prove::Alphabet::Kinds,
            ProveAlphabet::Core => prove::Alphabet::Core,
            ProveAlphabet::Clones => prove::Alphabet::Clones,
        };
        let set_count = prove::Set::new(*bound, alphabet).count();
        let choice = match *choice {
            ProveChoice::All => prove::Choice::All,
            ProveChoice::Sample(count) => prove::Choice::Sample(count),
            ProveChoice::Part { index, count } => prove::Choice::Part { index, count },
            ProveChoice::Only(index) if index < set_count => prove::Choice::Only(index),
            ProveChoice::Only(_) => {
                let reason = format!("there are {set_count} workloads, counted from 0");
                return Err(BackendError::Option { option: "--only", reason });
            }
        };
        let (bound, seed, failures) = (*bound, *seed, *failures);
        let chosen = prove::Options { bound, alphabet, choice, failures, seed };
        if let Some(directory) = export {
            prove::export(&chosen, directory)
                .map_err(|cause| BackendError::Failed { device: directory.clone(), cause })?;
        }
        let report = prove::prove(&chosen, |done, total| progress("workloads", done, total));
        let report = report.map_err(|cause| failed(Path::new("memory"), cause))?;
        let findings = report
            .findings
            .into_iter()
            .map(|finding| ProveFinding { workload: finding.workload, message: finding.message });
        let unsupported =
            report.unsupported.into_iter().map(|(what, count)| (what.to_owned(), count));
        Ok(ProveReport {
            bound,
            workloads: report.workloads,
            workloads_of_set: report.workloads_of_set,
            set_hash: format!("{:016x}", report.set_hash),
            points: report.points,
            failures: report.failures,
            states: report.states,
            second_states: report.second_states,
            images: report.images,
            judged: report.judged,
            checked: report.checked,
            unsupported: unsupported.collect(),
            milliseconds: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            findings: findings.collect(),
        })
    }
}

fn placement_of(placement: Placement) -> Box<dyn engine::alloc::policy::PlacementPolicy> {
    let name = match placement {
        Placement::Log => "log",
        Placement::Ffs => "ffs",
        Placement::Hotspot => "hotspot",
    };
    engine::alloc::policy::placement(name).expect("every name of the command line has a policy")
}

fn explain_on(
    device: &SharedDevice,
    name: &Path,
    target: &ExplainTarget,
    pool: Option<&Pool>,
) -> Result<Vec<ExplainStep>, BackendError> {
    // The last byte is named; a range ends behind it. No file has a byte of the largest number.
    let range_of =
        |range: &Option<(u64, u64)>| range.map(|(first, last)| first..last.saturating_add(1));
    let explained: Result<Explanation, InspectError> = match target {
        ExplainTarget::Path { fileset, path, range } => {
            let whose = fileset.as_ref().map_or(Whose::First, Whose::Named);
            explain_path(device, whose, path, range_of(range))
        }
        ExplainTarget::Offset { offset } => explain_offset(device, *offset),
        ExplainTarget::Inode { ino, range } => {
            let path = pool.map(|pool| pool.path_of(*ino));
            let path = path.ok_or_else(|| failed(name, "give the path inside the pool"))?;
            let path = path.map_err(|error| failed(name, error))?;
            let uuid = pool.map_or(0, |pool| pool.fileset_of(*ino).map_or(0, |fileset| fileset.0));
            explain_path(device, Whose::Uuid(uuid.to_le_bytes()), &path, range_of(range))
        }
    };
    let explained = explained.map_err(|error| failed(name, error))?;
    let steps = explained.layers.into_iter().map(|layer| {
        let mut fact = layer.what;
        if let Some(place) = layer.place {
            fact.push_str(&format!(", place {place}"));
        }
        if let Some(offset) = layer.device_offset {
            fact.push_str(&format!(", device byte {offset}"));
        }
        ExplainStep { layer: layer.layer.to_owned(), fact }
    });
    Ok(steps.collect())
}

/// What of a pool's options `status` tells.
#[derive(Clone, Copy)]
struct Mode {
    is_read_only: bool,
    commit_interval: Duration,
}

/// Files of devices, each with its path. The pool alone keeps them: what it has let go of is closed
/// when the last request to it is answered, and can be opened again then.
type Files = Arc<Mutex<Vec<(PathBuf, Weak<FileDevice>)>>>;

/// An open pool, with the thread that does its background work.
struct Served {
    path: PathBuf,
    /// What the devices are on; none: memory.
    files: Files,
    /// How it was opened.
    mode: Mode,
    pool: Arc<Pool>,
    jobs: Jobs,
    /// What was found of the pool and is not used.
    reports: Vec<String>,
    /// The name of the fileset whose files are served.
    fileset: Mutex<String>,
    /// Held shared by each transfer, and by whoever closes the pool alone.
    transfers: RwLock<()>,
    /// Whether somebody closes it.
    is_closing: AtomicBool,
}

impl Served {
    fn start(
        path: PathBuf,
        files: Vec<(PathBuf, Arc<FileDevice>)>,
        mode: Mode,
        pool: Pool,
    ) -> Served {
        let pool = Arc::new(pool);
        let mut told: Vec<PathBuf> = Vec::new();
        let weak = |(path, file): (PathBuf, Arc<FileDevice>)| (path, Arc::downgrade(&file));
        let files: Files = Arc::new(Mutex::new(files.into_iter().map(weak).collect()));
        let watched = Arc::clone(&files);
        let jobs = Jobs::start(TICK, {
            let pool = Arc::clone(&pool);
            move || {
                for (path, file) in all_of(&watched) {
                    // Said once: it does not come back.
                    if !told.contains(&path)
                        && let Some(loss) = loss_of(&path, &file)
                    {
                        tracing::error!("{loss}");
                        told.push(path);
                    }
                }
                pool.tick_paced().map_err(|error| error.to_string())
            }
        });
        let fileset = Mutex::new(ROOT_NAME.to_owned());
        let (transfers, is_closing) = (RwLock::new(()), AtomicBool::new(false));
        let reports = Vec::new();
        Served { path, files, mode, pool, jobs, reports, fileset, transfers, is_closing }
    }

    /// Looks from now on at what a new device is on too.
    fn watch(&self, path: &Path, file: &Arc<FileDevice>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push((path.to_owned(), Arc::downgrade(file)));
    }

    /// Returns a device by which the pool is to be named from now on, if that by which it was
    /// opened is none of it any more.
    fn named_by(&self, status: &engine::PoolStatus) -> Option<String> {
        let shown: Vec<(bool, String)> = status
            .members
            .iter()
            .map(|it| (it.member.is_online(), format::text::shown(&it.member.path)))
            .collect();
        let is_open = all_of(&self.files).iter().any(|(path, _)| *path == self.path);
        let is_listed = shown.iter().any(|(_, path)| Path::new(path) == self.path);
        let other = shown.into_iter().find(|(is_online, path)| *is_online && !path.is_empty())?;
        (!is_open && !is_listed).then_some(other.1)
    }

    /// Has an error name the pool by a device that it has, in front and in the commands that it
    /// tells.
    fn by_its_name(&self, error: BackendError) -> BackendError {
        let BackendError::Failed { device, mut cause } = error else { return error };
        let Some(name) = self.named_by(&self.pool.status()) else {
            return BackendError::Failed { device, cause };
        };
        let own = self.path.display().to_string();
        for behind in [" ", "`"] {
            cause = cause.replace(&format!("{own}{behind}"), &format!("{name}{behind}"));
        }
        let device = if device == self.path { PathBuf::from(name) } else { device };
        BackendError::Failed { device, cause }
    }

    /// Returns what is wrong; empty: nothing.
    fn troubles(&self, status: &engine::PoolStatus) -> Vec<String> {
        let failure = status.read_only.clone();
        let files = all_of(&self.files);
        let losses = files.iter().filter_map(|(path, file)| loss_of(path, file));
        // A pool that has failed has no background work, and said why.
        let jobs = self.jobs.trouble().filter(|_| failure.is_none());
        failure.into_iter().chain(losses).chain(jobs).collect()
    }
}

/// Returns those that the pool has, and forgets the others.
fn all_of(files: &Files) -> Vec<(PathBuf, Arc<FileDevice>)> {
    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|(_, file)| file.strong_count() > 0);
    files.iter().filter_map(|(path, file)| Some((path.clone(), file.upgrade()?))).collect()
}

/// Says that others than its owner may open a pool's file; `None`: they may not.
fn openness_of(path: &Path, file: &FileDevice) -> Option<String> {
    let mode = file.permissions_of_others()?;
    Some(format!(
        "{path} has mode {mode:04o}: whoever may open it can read every file of the pool, and keep \
         it from being mounted by a lock: `chmod 600 {path}`",
        path = path.display()
    ))
}

/// Says that a pool's file was removed under it; `None`: it has a name.
fn loss_of(path: &Path, file: &FileDevice) -> Option<String> {
    let text = format!(
        "{}: the pool's file was removed, and is gone for good when its server ends: copy what is \
         mounted elsewhere before you unmount",
        path.display()
    );
    file.is_removed().then_some(text)
}

impl OpenPool for Served {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::<Pool>::clone(&self.pool)
    }

    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        clone: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError> {
        let held = match (name, clone) {
            (None, _) => Ok(self.pool.hold_main_fileset()),
            (Some(name), Some(clone)) => self.pool.hold_clone(name, clone),
            (Some(name), None) => self.pool.hold_fileset(name),
        };
        held.map_err(|error| control::refused(&self.path, &error))
    }

    fn release_fileset(&self, fileset: FilesetUuid) {
        self.pool.release_fileset(fileset);
    }

    fn fileset_name(&self, fileset: FilesetUuid) -> Option<String> {
        let slot = self.pool.root_of(fileset).ok()?.slot();
        let found = self.pool.filesets_from(slot, 1).ok()?.into_iter().next();
        found.filter(|found| found.slot == slot).map(|found| found.name)
    }

    fn secret(&self) -> [u8; 16] {
        self.pool.secret()
    }

    fn status(&self) -> Value {
        let status = self.pool.status();
        let troubles = self.troubles(&status);
        let scrub = self.pool.scrub_report();
        let damage = scrub.as_ref().and_then(devices::damage_of);
        let health = match troubles.as_slice() {
            [] if damage.is_some() => DAMAGED.to_owned(),
            [] if is_degraded(&status) => DEGRADED.to_owned(),
            [] => "ok".to_owned(),
            troubles => troubles.join("; "),
        };
        let files = all_of(&self.files);
        let open = files.iter().filter_map(|(path, file)| openness_of(path, file));
        let full = status.full.as_ref().map(control::advised);
        let named_by = self.named_by(&status);
        let renamed = named_by.as_ref().map(|other| {
            let own = self.path.display();
            format!(
                "{own}, by which the pool was opened, is no device of it any more: name it by \
                 another from now on, as {other}, in /etc/fstab too"
            )
        });
        let warnings = open.chain(damage).chain(devices::away(&status));
        let warnings = warnings.chain(failures::warnings(&self.path, &status));
        let warnings = warnings.chain(devices::lost_journal(&status));
        let warnings = warnings.chain(renamed).chain(self.reports.iter().cloned());
        let warnings: Vec<String> = warnings.chain(full).collect();
        let room = growth::room_of(&self.path, &self.pool, &status);
        let mut status = status_of(&status, &health);
        status["growth"] = room;
        status["named_by"] = json!(named_by);
        status["jobs"] = json!(control::job_list(&self.pool));
        status["warnings"] = json!(warnings);
        status["fileset"] = json!(*self.fileset.lock().unwrap_or_else(PoisonError::into_inner));
        status["is_read_only"] = json!(self.mode.is_read_only);
        status["commit_interval_ms"] = json!(self.mode.commit_interval.as_millis());
        status
    }

    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError> {
        // What is only in memory has no place yet.
        let synced = self.pool.sync().and_then(|()| self.pool.checkpoint());
        synced.map_err(|error| failed(&self.path, error))?;
        explain_on(&self.pool.device(), &self.path, target, Some(&self.pool))
    }

    fn control(&self, request: &Request, peer: Peer) -> Result<Answer, BackendError> {
        let is_closing = || self.is_closing.load(Ordering::Acquire);
        let closing = || failed(&self.path, "the pool is being closed: what was done stays");
        // As of a transfer, but whoever closes the pool is not waited for.
        let under_way = match self.transfers.try_read() {
            _ if !request.is_change() => None,
            _ if is_closing() => return Err(closing()),
            Ok(under_way) => Some(under_way),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return Err(closing()),
        };
        let answer = control::asked(self, request, peer);
        drop(under_way);
        let answer = answer.map_err(|error| match is_closing() {
            true => closing(),
            false => self.by_its_name(error),
        })?;
        if request.is_change() {
            self.jobs.wake();
        }
        Ok(answer)
    }

    fn transfer(
        &self,
        request: &Transfer,
        peer: Peer,
        file: &mut File,
        fronts: Option<Arc<dyn FileSystem>>,
        progress: OnBytes<'_>,
    ) -> Result<Value, BackendError> {
        // Whoever closes the pool waits for this, and this looks whether somebody does.
        let _under_way = self.transfers.read().unwrap_or_else(PoisonError::into_inner);
        let mut file = Watched::new(file, &self.is_closing);
        let pool = (&*self.path, &self.pool);
        transfer::transfer(pool, request, peer, (&mut file, fronts), progress)
    }

    fn lend(&self) -> Option<Lent<'_>> {
        let _under_way = self.transfers.read().unwrap_or_else(PoisonError::into_inner);
        let (path, pool) = (&self.path, Arc::clone(&self.pool));
        let is_closing = &self.is_closing;
        Some(Lent { path, pool, is_closing, _under_way })
    }

    fn close(&self) -> Result<(), BackendError> {
        self.is_closing.store(true, Ordering::Release);
        self.pool.end_walks();
        let _alone = self.transfers.write().unwrap_or_else(PoisonError::into_inner);
        self.jobs.stop();
        self.pool.close().map_err(|error| failed(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use storage::device::DeviceError;

    use super::*;

    /// Goal: who reads an error finds the device's name in front, and there alone.
    #[test]
    fn errors_name_their_device_once() {
        let device = Path::new("/srv/pool.hf");
        let name = || "/srv/pool.hf".to_owned();
        let cut = DeviceError::Failed { device: name() };
        let io = FsError::io(cut.to_string());
        let errors = [
            cannot_start(device, engine::OpenError::Device(cut)),
            cannot_start(device, engine::OpenError::Files(io)),
            cannot_start(device, engine::OpenError::NotClosed),
            cannot_open(device, OpenError::NotADevice { path: device.to_owned() }),
            failed(device, FsError::ReadOnly { reason: "/srv/pool.hf: it is gone".to_owned() }),
        ];
        for error in errors.map(|error| error.to_string()) {
            assert!(error.starts_with("/srv/pool.hf: "), "{error}");
            assert_eq!(error.matches("/srv/pool.hf: ").count(), 1, "{error}");
        }
        let other = failed(device, "below/srv/pool.hf: another").to_string();
        assert_eq!(other, "/srv/pool.hf: below/srv/pool.hf: another");
    }
}
