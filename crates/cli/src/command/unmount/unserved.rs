//! Unmount when the server cannot be reached. The pool's lock and log show whether it was closed.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde_json::json;

use super::{MountIdentity, force, report, sync_within, take_away};
use crate::args::UnmountArgs;
use crate::args::members::MemberPaths;
use crate::output::Output;
use crate::{daemon, exit};
use server::backend::{Backend, BackendError, BackendOpenOptions, PlacementPolicyKind};
use server::holders::{self, holders_of};
use server::named::{PoolArgument, is_source_of, pool_of_source};
use server::patience::PollBackoff;
use server::pool_names;
use server::status;

/// Cache for opening the pool to check that it was closed.
const CACHE_BYTES: u64 = 16 << 20;
const DEVICE_DEADLINE: Duration = Duration::from_secs(30);

/// Unmounts. Then waits within `--timeout` until the pool is closed, unless another mount keeps it
/// open.
pub(super) fn run(
    args: &UnmountArgs,
    directory: &Path,
    entry: &MountEntry,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    // The pool in the mount table may not be found, though its server has it open.
    let scanned = || {
        let resolved = pool_names::resolve(Path::new(&entry.source), backend).ok()??;
        PoolArgument::of(&resolved.argument).ok()?.device().ok()
    };
    let pool = pool_of_source(&entry.source).or_else(scanned);
    let held = pool.as_deref().map(PoolLockHolders::of).filter(PoolLockHolders::is_held);
    let asked = Instant::now();
    let is_synced = sync_within(directory, args.timeout)?;
    anyhow::ensure!(
        is_synced || asked.elapsed() < args.timeout || args.lazy || args.force,
        "{shown}: its server is not found, and did not answer within {} s: `holdfast unmount \
         --lazy {shown}` takes the directory away",
        args.timeout.as_secs()
    );
    let mut cut_off = Vec::new();
    if args.force {
        cut_off =
            force(&MountIdentity::of(Some(entry), None, directory).map_err(anyhow::Error::msg)?)?;
    } else {
        take_away(directory, args)?;
    }
    let Some(pool) = pool else {
        anyhow::bail!(
            "{shown} is unmounted, but neither its server nor its pool {} was found. The server \
             may still be writing: find its process, and wait until it has ended",
            entry.source
        );
    };
    let Some(held) = held else {
        let text = format!("{shown}: detached a mount whose server died");
        let facts = json!({ "unmounted": directory.to_string_lossy(), "was_dead": true });
        output.fact(&text, &facts);
        return Ok(exit::DONE);
    };
    let others = other_mounts(&pool, entry, &held);
    if let Some(other) = others.first() {
        anyhow::ensure!(
            is_synced || args.force,
            "{shown} is unmounted, but what was written last may not be durable: its server did \
             not confirm it; look at its log"
        );
        let stays = format!("it is mounted on {} too", other.display());
        report(args, directory, (&cut_off, Some(&stays)), output);
        return Ok(exit::DONE);
    }
    held.wait(args.timeout).with_context(|| format!("{shown} is unmounted"))?;
    // A server whose run directory is gone cannot record the error of a failed close.
    let words = status::last_words_of(&pool).ok();
    for pid in &held.by {
        let left = |words| daemon::take_last_words(words, pid.cast_unsigned());
        if let Some(error) = words.as_deref().and_then(left) {
            anyhow::bail!(
                "{shown} is unmounted, but not everything reached the device: {error}. Look at the \
                 device, then `holdfast check`"
            );
        }
    }
    check_closed(&args.directory, &pool, backend)?;
    report(args, directory, (&cut_off, None), output);
    Ok(exit::DONE)
}

/// Fails if the pool's log must be replayed. If the pool is open again or cannot be opened, passes.
pub(super) fn check_closed(shown: &Path, pool: &Path, backend: &dyn Backend) -> anyhow::Result<()> {
    let options = BackendOpenOptions {
        device: pool.to_owned(),
        members: MemberPaths::NONE.hints(),
        is_read_only: true,
        may_replay: false,
        has_no_atime: true,
        cache_bytes: CACHE_BYTES,
        placement: PlacementPolicyKind::Log,
        commit_interval: Duration::ZERO,
        device_deadline: DEVICE_DEADLINE,
        discards: server::backend::DiscardMode::Off,
        is_forced: false,
        fileset: None,
        snapshot: None,
    };
    match backend.open(&options) {
        Ok(opened) => Ok(opened.close()?),
        Err(BackendError::NotClosed { .. }) => anyhow::bail!(
            "{} is unmounted, but its server ended without closing the pool: what was synced is \
             there, and the next mount of {} replays the log; look at the server's log",
            shown.display(),
            pool.display()
        ),
        Err(_) => Ok(()),
    }
}

fn other_mounts(pool: &Path, entry: &MountEntry, held: &PoolLockHolders) -> Vec<PathBuf> {
    let mut mounts = mountpoint::mounts().unwrap_or_default();
    for &pid in &held.by {
        mounts.extend(mountpoint::mounts_of(pid).unwrap_or_default());
    }
    let is_other = |it: &MountEntry| {
        it.kind == MOUNT_TYPE
            && it.device != entry.device
            && is_source_of(&it.source, &pool.to_string_lossy())
    };
    mounts.into_iter().filter(is_other).map(|it| it.directory).collect()
}

struct PoolLockHolders {
    pool: PathBuf,
    by: Vec<i32>,
}

impl PoolLockHolders {
    fn of(pool: &Path) -> PoolLockHolders {
        PoolLockHolders { pool: pool.to_owned(), by: holders_of(pool) }
    }

    /// Whether a process still has the lock. If no process is known, because it is in another PID
    /// namespace, tries to take the lock.
    fn is_held(&self) -> bool {
        if !self.by.is_empty() {
            let now = holders_of(&self.pool);
            return self.by.iter().any(|pid| now.contains(pid));
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(&self.pool, flags, Mode::empty()).is_ok_and(|file| {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
        })
    }

    fn wait(&self, timeout: Duration) -> anyhow::Result<()> {
        let (asked, mut patience) = (Instant::now(), PollBackoff::default());
        while self.is_held() {
            let by: Vec<String> = self.by.iter().map(|&pid| holders::process(pid)).collect();
            let by = if by.is_empty() { "another process".to_owned() } else { by.join(", ") };
            anyhow::ensure!(
                asked.elapsed() < timeout,
                "{} is still being closed by {by} after {} s: it may still write; wait until it \
                 has ended",
                self.pool.display(),
                timeout.as_secs()
            );
            patience.wait();
        }
        Ok(())
    }
}
