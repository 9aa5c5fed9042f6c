//! The implementation of [`Backend`] by the engine, the checker and the harness.

mod blank;
mod create;
mod devices;
mod failures;
mod figures;
mod groups;
mod growth;
mod jobs;
mod look;
mod members;
pub mod moves;
mod quota;
mod requests;
mod scan;
mod search;
mod shares;
mod transfer;
mod trees;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use check::report::DefectFinding;
use engine::api::{FileSystem, FilesetUuid, FsError};
use engine::{DiscardOptions, DiscardScope, FilesOptions, Pool};
use format::fileset::{FilesetName, NamePart, ROOT_NAME};
use format::geometry::GeometryError;
use format::superblock::SuperblockError;
use inspect::InspectError;
use inspect::explain::{Explanation, FilesetSelector, explain_offset, explain_path};
use runtime::clock::{Clock, SystemClock};
use serde_json::{Value, json};
use storage::device::{
    DEADLINE_MIN, DeviceAccess, DeviceOpenError, FileDevice, FileOptions, MemoryDevice,
    SharedDevice,
};
use storage::members::MembersError;
use storage::pool::PoolError;
use storage::volume::VolumeDevices;

use self::figures::{is_degraded, status_of};
use self::jobs::{JobThread, TICK};
use self::transfer::TransferFile;
use crate::backend::{
    Backend, BackendCreateOptions, BackendError, BackendOpenOptions, CheckReport, CreateReport,
    DAMAGED, DEGRADED, DefectReport, DiscardMode, DumpReport, ExplainTarget, MemberSearchOptions,
    OnProgress, OnTransfer, OpenPool, PlacementPolicyKind, PoolLease, PoolScan,
};
use crate::holders::{file_behind, is_held_here, kernel_claims, kernel_uses, lock_holders};
use crate::neighbours::LinuxHostProcesses;
use crate::peer::Peer;
use control::wire::ExplainStep;
use control::{Answer, DeviceFacts, Request, Transfer};

/// How long to retry to open a device in use. The kernel keeps the requests of a killed server, and
/// with them its lock on the device, for a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_POLL: Duration = Duration::from_millis(20);

/// The backend of the real engine.
#[derive(Debug)]
pub struct EngineBackend;

/// Returns an error that names its device once, at the front, even if the cause names it too.
fn failed(device: &Path, cause: impl std::fmt::Display) -> BackendError {
    let (cause, name) = (cause.to_string(), format!("{}: ", device.display()));
    let cause = match cause.strip_prefix(&name) {
        Some(rest) => rest.to_owned(),
        None => cause.replacen(&format!(": {name}"), ": ", 1),
    };
    BackendError::Failed { device: device.to_owned(), cause }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
fn cannot_open(device: &Path, error: DeviceOpenError) -> BackendError {
    match error {
        DeviceOpenError::NotFound { .. } => BackendError::Missing { device: device.to_owned() },
        DeviceOpenError::InUse { .. } if is_held_here(device) => failed(
            device,
            "it is open here already: it is named twice, perhaps by another of its names, or is a \
             device of the pool: name each device once",
        ),
        DeviceOpenError::InUse { .. } => {
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
fn cannot_start(device: &Path, error: engine::PoolOpenError) -> BackendError {
    let option = |option| BackendError::Option { option, reason: error.to_string() };
    match error {
        engine::PoolOpenError::Pool(error) => cannot_use(device, &error),
        engine::PoolOpenError::Geometry(ref error) => option(option_of(error)),
        engine::PoolOpenError::Block => option("--block"),
        engine::PoolOpenError::Label(_) => option("--name"),
        engine::PoolOpenError::Files(error @ FsError::Corrupt { .. }) => {
            let advice = format!("{error}: run `holdfast check {}`", device.display());
            failed(device, advice)
        }
        engine::PoolOpenError::Files(error @ FsError::NoFileset { .. }) => {
            requests::refused(device, &error)
        }
        other => failed(device, other),
    }
}

fn not_replayed(error: BackendError) -> BackendError {
    let BackendError::Failed { device, cause } = error else { return error };
    let cause =
        format!("the pool was not closed, so its log must be replayed, read-only or not: {cause}");
    BackendError::Failed { device, cause }
}

fn message_of(found: &DefectFinding) -> String {
    let path = found.path.as_ref().map_or(String::new(), |path| format!("{path}: "));
    let severity = found.defect.code.severity().word();
    let place = found.defect.place.map_or(String::new(), |place| format!(", place {place}"));
    let byte = found.device_offset.map_or(String::new(), |byte| format!(", device byte {byte}"));
    format!("{path}{} ({severity}{place}{byte})", found.defect.what)
}

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
            Err(DeviceOpenError::InUse { .. }) if asked.elapsed() < LOCK_PATIENCE => {
                std::thread::park_timeout(LOCK_POLL);
            }
            Err(error) => return Err(cannot_open(path, error)),
        }
    }
}

/// Refuses to overwrite a file or device that the kernel uses without a lock on it, such as through
/// a loop device.
fn refuse_used(path: &Path) -> Result<(), BackendError> {
    match kernel_uses(path) {
        Some(uses) => Err(failed(path, format!("it is in use {uses}"))),
        None => Ok(()),
    }
}

fn open_pool(
    options: &BackendOpenOptions,
    devices: VolumeDevices,
) -> Result<Pool, engine::PoolOpenError> {
    let commit_interval_ns = u64::try_from(options.commit_interval.as_nanos()).unwrap_or(u64::MAX);
    let open = engine::PoolOpenOptions {
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
        neighbours: Arc::new(LinuxHostProcesses),
        is_forced: options.is_forced,
        fileset: options.fileset.clone(),
        snapshot: options.snapshot.clone(),
        ..engine::PoolOpenOptions::default()
    };
    Pool::open_members(devices, Arc::new(SystemClock::new()), open)
}

fn discard_on(discards: DiscardMode) -> DiscardScope {
    match discards {
        DiscardMode::SparseFiles => DiscardScope::SparseFiles,
        DiscardMode::On => DiscardScope::All,
        DiscardMode::Off => DiscardScope::None,
    }
}

fn to_read() -> FileOptions {
    FileOptions { access: DeviceAccess::ReadOnly, ..FileOptions::default() }
}

/// Returns random bits. Zero if the system has none, which is acceptable because openings of a pool
/// differ in other data too.
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
    fn create(&self, options: &BackendCreateOptions) -> Result<CreateReport, BackendError> {
        create::create(options)
    }

    fn open(&self, options: &BackendOpenOptions) -> Result<Arc<dyn OpenPool>, BackendError> {
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
        let access =
            if options.is_read_only { DeviceAccess::ReadAlone } else { DeviceAccess::ReadWrite };
        let mut found = devices_for(access)?;
        let mut pool = open_pool(options, found.opening());
        if options.is_read_only && matches!(pool, Err(engine::PoolOpenError::NotClosed)) {
            if !options.may_replay {
                return Err(BackendError::NotClosed { device: path.clone() });
            }
            // Replay writes to home locations, so even a read-only open needs write access.
            drop(found);
            found = devices_for(DeviceAccess::ReadWrite).map_err(not_replayed)?;
            pool = open_pool(options, found.opening());
        }
        let pool = pool.map_err(|error| cannot_start(path, error))?;
        pool.forget_paths(&found.others).map_err(|error| failed(path, error))?;
        let BackendOpenOptions { is_read_only, commit_interval, .. } = *options;
        let mode = ReportedOpenOptions { is_read_only, commit_interval };
        let mut served = EnginePool::start(path.clone(), found.files, mode, pool);
        served.reports = found.reports;
        if let Some(name) = &options.fileset {
            let snapshot =
                options.snapshot.as_ref().map(|snapshot| format!("@{}", snapshot.as_str()));
            served.fileset = Mutex::new(format!("{name}{}", snapshot.unwrap_or_default()));
        }
        Ok(Arc::new(served))
    }

    fn open_in_memory(&self, size_bytes: u64) -> Result<Arc<dyn OpenPool>, BackendError> {
        let path = Path::new("memory");
        let device: SharedDevice = MemoryDevice::new("memory", size_bytes & !4095);
        let create = engine::PoolCreateOptions::new(size_bytes & !4095, random_bytes()?);
        Pool::create(&device, &SystemClock::new(), &create)
            .map_err(|error| cannot_start(path, error))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let pool = Pool::open(Arc::clone(&device), clock, engine::PoolOpenOptions::default())
            .map_err(|error| cannot_start(path, error))?;
        let commit_interval_ns = FilesOptions::default().commit_interval_ns;
        let commit_interval = Duration::from_nanos(commit_interval_ns);
        let mode = ReportedOpenOptions { is_read_only: false, commit_interval };
        Ok(Arc::new(EnginePool::start(path.to_owned(), Vec::new(), mode, pool)))
    }

    fn check(
        &self,
        path: &Path,
        members: &MemberSearchOptions,
        memory_bytes_max: u64,
        progress: OnProgress<'_>,
    ) -> Result<CheckReport, BackendError> {
        let members::ReadOnlyPoolDevice { device, away } =
            members::to_read(path, members, to_read())?;
        if let Err(error) = storage::pool::read_superblock(device.as_ref()) {
            return Err(cannot_use(path, &error));
        }
        let options = check::CheckOptions { memory_bytes_max, ..check::CheckOptions::default() };
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

    fn dump(
        &self,
        path: &Path,
        members: &MemberSearchOptions,
        what: &str,
    ) -> Result<DumpReport, BackendError> {
        let target = what.parse().map_err(|error: InspectError| BackendError::Option {
            option: "WHAT",
            reason: error.to_string(),
        })?;
        let device: SharedDevice = match target {
            // A label is dumped from the named device, so the other members are not needed.
            inspect::dump::DumpTarget::Superblock(_) => open_device_with(path, to_read())?,
            inspect::dump::DumpTarget::Journal
            | inspect::dump::DumpTarget::Page(_)
            | inspect::dump::DumpTarget::DeviceByte(_) => {
                members::to_read(path, members, to_read())?.device
            }
        };
        let text = inspect::dump::dump(&device, target).map_err(|error| failed(path, error))?;
        let value = json!({ "what": what, "text": text });
        Ok(DumpReport { text, value })
    }

    fn listed(
        &self,
        path: &Path,
        members: &MemberSearchOptions,
    ) -> Result<Vec<DeviceFacts>, BackendError> {
        members::listed(path, members, to_read())
    }

    fn scan(&self, places: &[PathBuf], devices: &[PathBuf]) -> PoolScan {
        scan::scan(places, devices)
    }

    fn explain(
        &self,
        path: &Path,
        members: &MemberSearchOptions,
        target: &ExplainTarget,
    ) -> Result<Vec<ExplainStep>, BackendError> {
        let device = members::to_read(path, members, to_read())?.device;
        explain_on(&device, path, target, None)
    }
}

fn placement_of(placement: PlacementPolicyKind) -> Box<dyn engine::alloc::policy::PlacementPolicy> {
    let name = match placement {
        PlacementPolicyKind::Log => "log",
        PlacementPolicyKind::Ffs => "ffs",
        PlacementPolicyKind::Hotspot => "hotspot",
    };
    engine::alloc::policy::placement(name).expect("every name of the command line has a policy")
}

fn explain_on(
    device: &SharedDevice,
    name: &Path,
    target: &ExplainTarget,
    pool: Option<&Pool>,
) -> Result<Vec<ExplainStep>, BackendError> {
    // `range` includes its last byte. Saturation is harmless, because the maximum is no valid
    // offset.
    let range_of =
        |range: &Option<(u64, u64)>| range.map(|(first, last)| first..last.saturating_add(1));
    let explained: Result<Explanation, InspectError> = match target {
        ExplainTarget::Path { fileset, path, range } => {
            let whose = fileset.as_ref().map_or(FilesetSelector::First, FilesetSelector::Named);
            explain_path(device, whose, path, range_of(range))
        }
        ExplainTarget::Offset { offset } => explain_offset(device, *offset),
        ExplainTarget::Inode { ino, range } => {
            let path = pool.map(|pool| pool.path_of(*ino));
            let path = path.ok_or_else(|| failed(name, "give the path inside the pool"))?;
            let path = path.map_err(|error| failed(name, error))?;
            let uuid = pool.map_or(0, |pool| pool.fileset_of(*ino).map_or(0, |fileset| fileset.0));
            explain_path(device, FilesetSelector::Uuid(uuid.to_le_bytes()), &path, range_of(range))
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

#[derive(Clone, Copy)]
struct ReportedOpenOptions {
    is_read_only: bool,
    commit_interval: Duration,
}

/// Files of the open devices, by path. The references are weak, so that only the pool keeps a file
/// open: if the pool drops a device, its last request closes the file, which can then be opened
/// again.
type OpenDeviceFiles = Arc<Mutex<Vec<(PathBuf, Weak<FileDevice>)>>>;

struct EnginePool {
    path: PathBuf,
    /// Files of the devices. Empty for a pool in memory.
    files: OpenDeviceFiles,
    mode: ReportedOpenOptions,
    pool: Arc<Pool>,
    jobs: JobThread,
    reports: Vec<String>,
    fileset: Mutex<String>,
    /// Held shared by each transfer and change, and exclusively by [`OpenPool::close`].
    transfers: RwLock<()>,
    is_closing: AtomicBool,
}

impl EnginePool {
    fn start(
        path: PathBuf,
        files: Vec<(PathBuf, Arc<FileDevice>)>,
        mode: ReportedOpenOptions,
        pool: Pool,
    ) -> EnginePool {
        let pool = Arc::new(pool);
        let mut told: Vec<PathBuf> = Vec::new();
        let weak = |(path, file): (PathBuf, Arc<FileDevice>)| (path, Arc::downgrade(&file));
        let files: OpenDeviceFiles = Arc::new(Mutex::new(files.into_iter().map(weak).collect()));
        let watched = Arc::clone(&files);
        let jobs = JobThread::start(TICK, {
            let pool = Arc::clone(&pool);
            move || {
                for (path, file) in all_of(&watched) {
                    // Logged once per path, because a removed file does not return.
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
        EnginePool { path, files, mode, pool, jobs, reports, fileset, transfers, is_closing }
    }

    /// Checks a further device for removal of its file.
    fn watch(&self, path: &Path, file: &Arc<FileDevice>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.push((path.to_owned(), Arc::downgrade(file)));
    }

    /// Returns the path of another member by which to name the pool, if the device it was opened by
    /// was removed from the pool.
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

    /// Replaces the pool's path in an error by [`EnginePool::named_by`], at the front and in
    /// suggested commands.
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

    fn troubles(&self, status: &engine::PoolStatus) -> Vec<String> {
        let failure = status.read_only.clone();
        let files = all_of(&self.files);
        let losses = files.iter().filter_map(|(path, file)| loss_of(path, file));
        // After a failure of the pool there is no background work, and `failure` is the reason.
        let jobs = self.jobs.trouble().filter(|_| failure.is_none());
        failure.into_iter().chain(losses).chain(jobs).collect()
    }
}

fn all_of(files: &OpenDeviceFiles) -> Vec<(PathBuf, Arc<FileDevice>)> {
    let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|(_, file)| file.strong_count() > 0);
    files.iter().filter_map(|(path, file)| Some((path.clone(), file.upgrade()?))).collect()
}

fn openness_of(path: &Path, file: &FileDevice) -> Option<String> {
    let mode = file.permissions_of_others()?;
    Some(format!(
        "{path} has mode {mode:04o}: whoever may open it can read every file of the pool, and keep \
         it from being mounted by a lock: `chmod 600 {path}`",
        path = path.display()
    ))
}

fn loss_of(path: &Path, file: &FileDevice) -> Option<String> {
    let text = format!(
        "{}: the pool's file was removed, and is gone for good when its server ends: copy what is \
         mounted elsewhere before you unmount",
        path.display()
    );
    file.is_removed().then_some(text)
}

impl OpenPool for EnginePool {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::<Pool>::clone(&self.pool)
    }

    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        snapshot: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError> {
        let held = match (name, snapshot) {
            (None, _) => Ok(self.pool.fileset_admin().hold_main_fileset()),
            (Some(name), Some(snapshot)) => self.pool.fileset_admin().hold_snapshot(name, snapshot),
            (Some(name), None) => self.pool.fileset_admin().hold_fileset(name),
        };
        held.map_err(|error| requests::refused(&self.path, &error))
    }

    fn release_fileset(&self, fileset: FilesetUuid) {
        self.pool.fileset_admin().release_fileset(fileset);
    }

    fn fileset_name(&self, fileset: FilesetUuid) -> Option<String> {
        let slot = self.pool.root_of(fileset).ok()?.slot();
        let found = self.pool.fileset_admin().filesets_from(slot, 1).ok()?.into_iter().next();
        found.filter(|found| found.slot == slot).map(|found| found.name)
    }

    fn secret(&self) -> [u8; 16] {
        self.pool.secret()
    }

    fn status(&self) -> Value {
        let status = self.pool.status();
        let troubles = self.troubles(&status);
        let scrub = self.pool.devices().scrub_report();
        let damage = scrub.as_ref().and_then(devices::damage_of);
        let health = match troubles.as_slice() {
            [] if damage.is_some() => DAMAGED.to_owned(),
            [] if is_degraded(&status) => DEGRADED.to_owned(),
            [] => "ok".to_owned(),
            troubles => troubles.join("; "),
        };
        let files = all_of(&self.files);
        let open = files.iter().filter_map(|(path, file)| openness_of(path, file));
        let full = status.full.as_ref().map(requests::advised);
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
        status["scrub"] = json!(scrub.map(requests::scrub_facts));
        status["named_by"] = json!(named_by);
        status["jobs"] = json!(requests::job_list(&self.pool));
        status["warnings"] = json!(warnings);
        status["fileset"] = json!(*self.fileset.lock().unwrap_or_else(PoisonError::into_inner));
        status["is_read_only"] = json!(self.mode.is_read_only);
        status["commit_interval_ms"] = json!(self.mode.commit_interval.as_millis());
        status
    }

    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError> {
        // Dirty blocks have no place on the device yet, so they are written out first.
        let synced = self.pool.sync().and_then(|()| self.pool.checkpoint());
        synced.map_err(|error| failed(&self.path, error))?;
        explain_on(&self.pool.device(), &self.path, target, Some(&self.pool))
    }

    fn control(&self, request: &Request, peer: Peer) -> Result<Answer, BackendError> {
        let is_closing = || self.is_closing.load(Ordering::Acquire);
        let closing = || failed(&self.path, "the pool is being closed: what was done stays");
        // As for a transfer, but fails instead of waiting for a close.
        let under_way = match self.transfers.try_read() {
            _ if !request.is_change() => None,
            _ if is_closing() => return Err(closing()),
            Ok(under_way) => Some(under_way),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => return Err(closing()),
        };
        let answer = requests::asked(self, request, peer);
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
        progress: OnTransfer<'_>,
    ) -> Result<Value, BackendError> {
        // LOCK: `close` waits for this lock. Reads and writes of [`TransferFile`] fail once `close`
        // has begun, so the wait is short.
        let _under_way = self.transfers.read().unwrap_or_else(PoisonError::into_inner);
        let mut file = TransferFile::new(file, &self.is_closing);
        let pool = (&*self.path, &self.pool);
        transfer::transfer(pool, request, peer, (&mut file, fronts), progress)
    }

    fn lend(&self) -> Option<PoolLease<'_>> {
        let _under_way = self.transfers.read().unwrap_or_else(PoisonError::into_inner);
        let (path, pool) = (&self.path, Arc::clone(&self.pool));
        let is_closing = &self.is_closing;
        Some(PoolLease { path, pool, is_closing, _under_way })
    }

    fn close(&self) -> Result<(), BackendError> {
        self.is_closing.store(true, Ordering::Release);
        self.pool.fileset_admin().end_walks();
        let _alone = self.transfers.write().unwrap_or_else(PoisonError::into_inner);
        self.jobs.stop();
        self.pool.close().map_err(|error| failed(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use storage::device::DeviceError;

    use super::*;

    /// Goal: an error names its device in front and nowhere else.
    #[test]
    fn errors_name_their_device_once() {
        let device = Path::new("/srv/pool.hf");
        let name = || "/srv/pool.hf".to_owned();
        let cut = DeviceError::Failed { device: name() };
        let io = FsError::io(cut.to_string());
        let errors = [
            cannot_start(device, engine::PoolOpenError::Device(cut)),
            cannot_start(device, engine::PoolOpenError::Files(io)),
            cannot_start(device, engine::PoolOpenError::NotClosed),
            cannot_open(device, DeviceOpenError::NotADevice { path: device.to_owned() }),
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
