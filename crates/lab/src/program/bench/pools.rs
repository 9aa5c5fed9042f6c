//! Pools of a bench: made, opened or mounted, and removed afterwards.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bench::access::{KernelAccess, ProcessAccess, TargetReopener};
use bench::claim::BenchDirectory;
use bench::run::{BenchOptions, ServerProcess, SystemUnderTest, TargetKind};
use front::fuse::mountpoint::{self, Mountpoint};
use serde_json::Value;

use crate::program::args::{BenchArgs, BenchTarget};
use cli::create;
use cli::daemon::Relaunch;
use control::size::ByteSize;
use server::backend::{
    Backend, BackendCreateOptions, BackendOpenOptions, MemberSearchOptions, OpenPool,
    PlacementPolicyKind,
};

/// Pool size relative to the workloads' data, so that the cleaner does not dominate.
const POOL_FACTOR: u64 = 3;
/// Least pool size: many times the journal and the reserve.
const POOL_BYTES_MIN: u64 = 2 << 30;
/// Fraction of the free space or memory that pools may take.
const SHARE: (u64, u64) = (3, 4);
const MOUNT_PREFIX: &str = "mnt-";
const CACHE_BYTES: u64 = 256 << 20;

/// Pools of a run. Dropping them removes mounts, pools and the directory.
#[derive(Debug)]
pub(super) struct Pools {
    // In the order of removal.
    mounts: Vec<Arc<MountedPool>>,
    opened: Vec<InProcessPool>,
    claim: BenchDirectory,
}

/// A pool in this process, closed when dropped.
struct InProcessPool(Arc<dyn OpenPool>);

impl std::fmt::Debug for InProcessPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opened")
    }
}

impl Drop for InProcessPool {
    fn drop(&mut self) {
        // The pool's file is removed next, so a failed write does not matter.
        let _ = self.0.close();
    }
}

/// A mount with its own server, unmounted when dropped.
#[derive(Debug)]
pub(super) struct MountedPool {
    program: PathBuf,
    device: PathBuf,
    directory: PathBuf,
    run_directory: PathBuf,
    flags: String,
    server: ServerProcess,
}

impl MountedPool {
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        // ^C must reach only the bench, which then ends in order.
        command.process_group(0);
        command.arg(name).stdin(Stdio::null()).env("HOLDFAST_RUN_DIR", &self.run_directory);
        command
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    pub(super) fn mount(&self) -> anyhow::Result<()> {
        let mut command = self.command("mount");
        command.args([&self.device, &self.directory]).args(["--daemon", "--json"]);
        command.args(self.flags.split_whitespace());
        let ended = command.output().context("cannot start the server")?;
        let told: Value = serde_json::from_slice(&ended.stdout).unwrap_or_default();
        if !ended.status.success() {
            let error = told.get("error").and_then(Value::as_str).map(str::to_owned);
            let error =
                error.unwrap_or_else(|| String::from_utf8_lossy(&ended.stderr).into_owned());
            anyhow::bail!("{} cannot be mounted: {}", self.device.display(), error.trim());
        }
        let pid = told.pointer("/mounted/pid").and_then(Value::as_u64);
        self.server.set(pid.and_then(|pid| pid.try_into().ok()));
        Ok(())
    }

    pub(super) fn unmount(&self, option: &[&str]) -> anyhow::Result<()> {
        self.server.set(None);
        let ended = self.command("unmount").arg(&self.directory).args(option).output()?;
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        anyhow::ensure!(ended.status.success(), "{}", error.trim());
        Ok(())
    }
}

impl Drop for MountedPool {
    fn drop(&mut self) {
        if self.unmount(&[]).is_err() {
            // In use: detached, and ended with the last user.
            let _ = self.unmount(&["--lazy"]);
        }
    }
}

impl TargetReopener for MountedPool {
    fn close(&self) -> io::Result<()> {
        self.unmount(&[]).map_err(io::Error::other)?;
        if rustix::process::geteuid().is_root() {
            KernelCaches.close()?;
        }
        Ok(())
    }

    fn has_checker(&self) -> bool {
        true
    }

    fn check(&self) -> io::Result<()> {
        let ended = self.command("check").arg(&self.device).output()?;
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            return Err(io::Error::other(format!("the check found: {}", said.trim())));
        }
        Ok(())
    }

    fn open(&self) -> io::Result<()> {
        self.mount().map_err(io::Error::other)
    }
}

/// Kernel caches of all file systems, for those under test that the bench did not mount. Only root
/// can drop them.
#[derive(Debug)]
pub(super) struct KernelCaches;

impl TargetReopener for KernelCaches {
    /// Drops pages, dentries and inodes (`proc_sys_vm(5)`).
    fn close(&self) -> io::Result<()> {
        std::fs::write("/proc/sys/vm/drop_caches", "3")
    }

    fn has_checker(&self) -> bool {
        false
    }

    fn check(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn open(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Pools {
    pub(super) fn new(place: &Path, args: &BenchArgs) -> anyhow::Result<Pools> {
        for (name, _) in &args.mounted {
            anyhow::ensure!(!name.contains('/'), "{name}: a name, not a path");
        }
        let claim = BenchDirectory::new(place, false, &detach_mounts)?;
        Ok(Pools { mounts: Vec::new(), opened: Vec::new(), claim })
    }

    /// Makes one pool, mounted.
    pub(super) fn one(
        place: &Path,
        pool_bytes: u64,
        with: (&dyn Backend, &Relaunch),
    ) -> anyhow::Result<(Pools, Arc<MountedPool>)> {
        let claim = BenchDirectory::new(place, false, &detach_mounts)?;
        let mut pools = Pools { mounts: Vec::new(), opened: Vec::new(), claim };
        pools.check_place(pool_bytes, 1)?;
        pools.mount("kill", "", pool_bytes, with)?;
        let mounted = pools.mounts.first().map(Arc::clone).context("it is mounted")?;
        Ok((pools, mounted))
    }

    pub(super) fn directory(&self) -> &Path {
        self.claim.directory()
    }

    pub(super) fn open(
        &mut self,
        args: &BenchArgs,
        options: &BenchOptions,
        (backend, relaunch): (&dyn Backend, &Relaunch),
    ) -> anyhow::Result<Vec<SystemUnderTest>> {
        let needed = options.needed_bytes()?;
        let pool_bytes = needed.saturating_mul(POOL_FACTOR).max(POOL_BYTES_MIN);
        let of_files = args
            .targets
            .iter()
            .filter(|target| matches!(target, BenchTarget::Fuse | BenchTarget::Process));
        let file_count = (of_files.count() + args.mounted.len()).try_into().unwrap_or(u64::MAX);
        self.check_place(pool_bytes, file_count)?;
        let mut targets = Vec::new();
        for target in &args.targets {
            let made = match target {
                BenchTarget::Fuse => self.mount("fuse", "", pool_bytes, (backend, relaunch)),
                BenchTarget::Process => self.in_process(pool_bytes, backend),
                BenchTarget::Memory => self.in_memory(pool_bytes, backend),
                BenchTarget::None => continue,
            };
            targets.push(made?);
        }
        for (name, flags) in &args.mounted {
            targets.push(self.mount(name, flags, pool_bytes, (backend, relaunch))?);
        }
        Ok(targets)
    }

    fn check_place(&self, pool_bytes: u64, count: u64) -> anyhow::Result<()> {
        let stat = rustix::fs::statvfs(self.directory())?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize) / SHARE.1 * SHARE.0;
        let wanted = pool_bytes.saturating_mul(count);
        anyhow::ensure!(
            wanted <= free,
            "{count} pools of {} may not fit in {}, where they may take {}: give a smaller \
             --scale, fewer --targets, or another --place",
            ByteSize(pool_bytes),
            self.directory().parent().unwrap_or(self.directory()).display(),
            ByteSize(free),
        );
        Ok(())
    }

    fn create(
        &self,
        name: &str,
        pool_bytes: u64,
        backend: &dyn Backend,
    ) -> anyhow::Result<PathBuf> {
        let device = self.directory().join(format!("{name}.hf"));
        let options = BackendCreateOptions::in_file(&device, pool_bytes, "bench");
        create(backend, options)?;
        Ok(device)
    }

    fn in_process(
        &mut self,
        pool_bytes: u64,
        backend: &dyn Backend,
    ) -> anyhow::Result<SystemUnderTest> {
        let device = self.create("process", pool_bytes, backend)?;
        let options = BackendOpenOptions {
            device,
            members: MemberSearchOptions::default(),
            is_read_only: false,
            may_replay: true,
            has_no_atime: false,
            cache_bytes: CACHE_BYTES,
            placement: PlacementPolicyKind::Log,
            commit_interval: Duration::from_secs(5),
            device_deadline: storage::device::DEADLINE_DEFAULT,
            discards: server::backend::DiscardMode::default(),
            is_forced: false,
            fileset: None,
            snapshot: None,
        };
        let what = format!("Holdfast in process, a pool of {} in a file", ByteSize(pool_bytes));
        Ok(self.opened("process", what, backend.open(&options)?))
    }

    fn in_memory(
        &mut self,
        pool_bytes: u64,
        backend: &dyn Backend,
    ) -> anyhow::Result<SystemUnderTest> {
        if let Some(available) = memory_available() {
            let free = available / SHARE.1 * SHARE.0;
            anyhow::ensure!(
                pool_bytes <= free,
                "a pool of {} in memory would take more than {}: give a smaller --scale, or \
                 --targets without memory",
                ByteSize(pool_bytes),
                ByteSize(free),
            );
        }
        let what = format!("Holdfast in process, a pool of {} in memory", ByteSize(pool_bytes));
        let pool = backend.open_in_memory(pool_bytes)?;
        Ok(self.opened("memory", what, pool))
    }

    fn opened(&mut self, name: &str, what: String, pool: Arc<dyn OpenPool>) -> SystemUnderTest {
        let access = Box::new(ProcessAccess::new(pool.file_system()));
        self.opened.push(InProcessPool(pool));
        let kind = TargetKind::Holdfast;
        SystemUnderTest {
            name: name.to_owned(),
            what,
            kind,
            access,
            server: ServerProcess::default(),
        }
    }

    fn mount(
        &mut self,
        name: &str,
        flags: &str,
        pool_bytes: u64,
        (backend, relaunch): (&dyn Backend, &Relaunch),
    ) -> anyhow::Result<SystemUnderTest> {
        let device = self.create(name, pool_bytes, backend)?;
        let directory = self.directory().join(format!("{MOUNT_PREFIX}{name}"));
        let run_directory = self.directory().join(format!("run-{name}"));
        std::fs::create_dir(&directory)?;
        std::fs::create_dir(&run_directory)?;
        let mounted = Arc::new(MountedPool {
            program: relaunch.program.clone(),
            device,
            directory: directory.clone(),
            run_directory,
            flags: flags.to_owned(),
            server: ServerProcess::default(),
        });
        // Listed before mounting, so that it is removed after an error too.
        self.mounts.push(Arc::clone(&mounted));
        mounted.mount()?;
        let server = mounted.server.clone();
        let with = if flags.is_empty() { String::new() } else { format!(" with {flags}") };
        Ok(SystemUnderTest {
            name: name.to_owned(),
            what: format!(
                "Holdfast through FUSE{with}, a pool of {} in a file",
                ByteSize(pool_bytes)
            ),
            kind: TargetKind::Holdfast,
            access: Box::new(KernelAccess::new(&directory, Some(mounted))?),
            server,
        })
    }
}

/// Detaches mounts left by a killed run.
fn detach_mounts(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok) {
        let is_ours = entry.file_name().to_string_lossy().starts_with(MOUNT_PREFIX);
        if is_ours
            && let Ok(Mountpoint::Live { .. } | Mountpoint::Dead) =
                mountpoint::inspect(&entry.path())
        {
            // The removal of the directory then fails and is reported.
            let _ = mountpoint::detach(&entry.path());
        }
    }
}

fn memory_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes << 10)
}
