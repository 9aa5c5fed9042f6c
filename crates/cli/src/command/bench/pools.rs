//! The pools of a bench: made, opened or mounted, and taken away again.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bench::access::{KernelAccess, Offline, ProcessAccess};
use bench::claim::Claim;
use bench::run::{Options, Server, Target, TargetKind};
use front::fuse::mountpoint::{self, Mountpoint};
use serde_json::Value;

use crate::args::{BenchArgs, BenchTarget};
use crate::backend::{Backend, CreateOptions, Members, OpenOptions, OpenPool, Placement};
use crate::command::create;
use crate::daemon::Relaunch;
use crate::size::ByteSize;

/// A pool is so many times as large as what the workloads hold at a time, so that its cleaner is
/// not what is measured.
const POOL_FACTOR: u64 = 3;
/// Least size of a pool: that of its journal and reserve, many times over.
const POOL_BYTES_MIN: u64 = 2 << 30;
/// Parts of the free space, or of the memory, that pools may take: the rest is for others.
const SHARE: (u64, u64) = (3, 4);
/// What mount points of a bench begin with.
const MOUNT_PREFIX: &str = "mnt-";
/// Memory for pages, as `holdfast mount` has it by default.
const CACHE_BYTES: u64 = 256 << 20;

/// The pools of a run. Dropping takes all away: mounts, pools, the directory.
#[derive(Debug)]
pub(super) struct Pools {
    // In the order in which they must go.
    mounts: Vec<Arc<Mounted>>,
    opened: Vec<Opened>,
    claim: Claim,
}

/// A pool of this process, closed when dropped.
struct Opened(Arc<dyn OpenPool>);

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opened")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Its file is removed next; nobody will miss what could not be written.
        let _ = self.0.close();
    }
}

/// A mount with a server of its own, unmounted when dropped.
#[derive(Debug)]
struct Mounted {
    program: PathBuf,
    device: PathBuf,
    directory: PathBuf,
    run_directory: PathBuf,
    /// Options of `holdfast mount`.
    flags: String,
    server: Server,
}

impl Mounted {
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        // A ^C is for the bench, which then ends in order.
        command.process_group(0);
        command.arg(name).stdin(Stdio::null()).env("HOLDFAST_RUN_DIR", &self.run_directory);
        command
    }

    fn mount(&self) -> anyhow::Result<()> {
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

    fn unmount(&self, option: &[&str]) -> anyhow::Result<()> {
        self.server.set(None);
        let ended = self.command("unmount").arg(&self.directory).args(option).output()?;
        let error = String::from_utf8_lossy(&ended.stderr).into_owned();
        anyhow::ensure!(ended.status.success(), "{}", error.trim());
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.unmount(&[]).is_err() {
            // Somebody looks into it: it goes when they leave.
            let _ = self.unmount(&["--lazy"]);
        }
    }
}

impl Offline for Mounted {
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

/// What the kernel caches of all file systems, which the superuser can have dropped: for those that
/// others have mounted.
#[derive(Debug)]
pub(super) struct KernelCaches;

impl Offline for KernelCaches {
    /// `proc_sys_vm(5)`: pages, names and inodes.
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
    /// Makes the directory of the pools in `place`.
    pub(super) fn new(place: &Path, args: &BenchArgs) -> anyhow::Result<Pools> {
        for (name, _) in &args.mounted {
            anyhow::ensure!(!name.contains('/'), "{name}: a name, not a path");
        }
        let claim = Claim::new(place, false, &detach_mounts)?;
        Ok(Pools { mounts: Vec::new(), opened: Vec::new(), claim })
    }

    /// Returns the directory.
    pub(super) fn directory(&self) -> &Path {
        self.claim.directory()
    }

    /// Makes and opens the pools that were asked for.
    pub(super) fn open(
        &mut self,
        args: &BenchArgs,
        options: &Options,
        (backend, relaunch): (&dyn Backend, &Relaunch),
    ) -> anyhow::Result<Vec<Target>> {
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
        let options = CreateOptions {
            devices: vec![device.clone()],
            groups: vec![crate::backend::GroupToMake::single()],
            size_bytes: Some(pool_bytes),
            uses_all: false,
            fragment_bytes: 4096,
            block_bytes: 16_384,
            group_bytes: None,
            journal_bytes: None,
            label: "bench".to_owned(),
            owner_uid: rustix::process::geteuid().as_raw(),
            owner_gid: rustix::process::getegid().as_raw(),
            is_forced: false,
        };
        create::create(backend, options)?;
        Ok(device)
    }

    fn in_process(&mut self, pool_bytes: u64, backend: &dyn Backend) -> anyhow::Result<Target> {
        let device = self.create("process", pool_bytes, backend)?;
        let options = OpenOptions {
            device,
            members: Members::default(),
            is_read_only: false,
            may_replay: true,
            has_no_atime: false,
            cache_bytes: CACHE_BYTES,
            placement: Placement::Log,
            commit_interval: Duration::from_secs(5),
            device_deadline: storage::device::DEADLINE_DEFAULT,
            discards: crate::backend::Discards::default(),
            is_forced: false,
            fileset: None,
            clone: None,
        };
        let what = format!("Holdfast in process, a pool of {} in a file", ByteSize(pool_bytes));
        Ok(self.opened("process", what, backend.open(&options)?))
    }

    fn in_memory(&mut self, pool_bytes: u64, backend: &dyn Backend) -> anyhow::Result<Target> {
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

    fn opened(&mut self, name: &str, what: String, pool: Arc<dyn OpenPool>) -> Target {
        let access = Box::new(ProcessAccess::new(pool.file_system()));
        self.opened.push(Opened(pool));
        let kind = TargetKind::Holdfast;
        Target { name: name.to_owned(), what, kind, access, server: Server::default() }
    }

    fn mount(
        &mut self,
        name: &str,
        flags: &str,
        pool_bytes: u64,
        (backend, relaunch): (&dyn Backend, &Relaunch),
    ) -> anyhow::Result<Target> {
        let device = self.create(name, pool_bytes, backend)?;
        let directory = self.directory().join(format!("{MOUNT_PREFIX}{name}"));
        let run_directory = self.directory().join(format!("run-{name}"));
        std::fs::create_dir(&directory)?;
        std::fs::create_dir(&run_directory)?;
        let mounted = Arc::new(Mounted {
            program: relaunch.program.clone(),
            device,
            directory: directory.clone(),
            run_directory,
            flags: flags.to_owned(),
            server: Server::default(),
        });
        // Before it is there, so that it goes whatever happens in between.
        self.mounts.push(Arc::clone(&mounted));
        mounted.mount()?;
        let server = mounted.server.clone();
        let with = if flags.is_empty() { String::new() } else { format!(" with {flags}") };
        Ok(Target {
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

/// Takes away the mounts that a killed run left in its directory.
fn detach_mounts(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.filter_map(Result::ok) {
        let is_ours = entry.file_name().to_string_lossy().starts_with(MOUNT_PREFIX);
        if is_ours
            && let Ok(Mountpoint::Live { .. } | Mountpoint::Dead) =
                mountpoint::inspect(&entry.path())
        {
            // What stays mounted makes the removal fail, and that is told.
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
