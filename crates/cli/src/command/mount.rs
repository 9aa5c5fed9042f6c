//! `holdfast mount`: opens a pool and serves it until it is unmounted.

mod all;
mod hand;
mod remount;

use std::any::Any;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use front::fuse::{
    CpuLatency, EndCause, MountOptions, POLL_TIME_MAX, StopSignals, THREADS_MAX, TransportChoice,
};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::members::MemberArgs;
use crate::args::{CpuLatencyName, MountArgs, PlacementName, TransportName};
use crate::backend::{Backend, Discards, Members, OpenOptions, OpenPool, Placement};
use crate::bugs;
use crate::daemon::{self, Answer, Relaunch};
use crate::events::Keep;
use crate::exit::{self, UsageError};
use crate::mounts::{Mounts, check_shared, shares_of, use_of};
use crate::named::{Named, source_of};
use crate::output::Output;
use crate::run_directory::run_directory;
use crate::size::ByteSize;
use crate::status::{self, Served, StatusServer};

/// Smallest cache that holds the pages of the largest operation many times over.
const CACHE_BYTES_MIN: u64 = 4 << 20;

pub(crate) fn run(
    args: &MountArgs,
    backend: &dyn Backend,
    relaunch: &Relaunch,
    output: &Output,
) -> anyhow::Result<u8> {
    if args.all {
        return all::run(args, relaunch, output);
    }
    if remount::is_asked(args)? {
        return remount::run(args, output);
    }
    // Nonsense is refused here and not by a child.
    options_of(args)?;
    if !args.answer_parent
        && let Some(code) = hand::over(args, output)?
    {
        return Ok(code);
    }
    if args.daemon && !args.answer_parent {
        return start_daemon(args, relaunch, output);
    }
    if !args.answer_parent {
        return serve(args, backend, &mut |text, value| {
            output.fact(text, value);
            output.remark("Serving; ^C unmounts and ends.");
            Ok(())
        });
    }
    let mut has_answered = false;
    let served = serve(args, backend, &mut |text, value| {
        has_answered = true;
        let text = text.to_owned();
        daemon::answer_parent(&Answer { error: None, text, value: value.clone() })
    });
    if let (Err(error), false) = (&served, has_answered) {
        let error = Some(format!("{error:#}"));
        daemon::answer_parent(&Answer { error, text: String::new(), value: Value::Null })?;
    }
    served
}

fn start_daemon(args: &MountArgs, relaunch: &Relaunch, output: &Output) -> anyhow::Result<u8> {
    let answer = daemon::start(relaunch, &log_path(args)?)?;
    match answer.error {
        Some(error) => Err(anyhow::anyhow!(error)),
        None => {
            output.fact(&answer.text, &answer.value);
            Ok(exit::DONE)
        }
    }
}

/// What serves a pool beside its mount, until it is dropped.
pub(crate) struct Beside {
    /// Who is asked about the pool.
    pub(crate) asked: Arc<dyn OpenPool>,
    /// Where NFS and HTTP are.
    pub(crate) nfs: Option<SocketAddr>,
    pub(crate) http: Option<SocketAddr>,
    /// What ends it.
    pub(crate) guard: Box<dyn Any>,
}

/// Begins to serve a pool beside its mounts; its device is given.
pub(crate) type Begin<'b> =
    &'b dyn Fn(&Path, &Arc<dyn OpenPool>, &Arc<Mounts>) -> anyhow::Result<Beside>;

/// Opens, mounts and serves; calls `ready` with a text and facts when the mount answers.
pub(crate) fn serve(
    args: &MountArgs,
    backend: &dyn Backend,
    ready: &mut dyn FnMut(&str, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let nothing = |_: &Path, pool: &Arc<dyn OpenPool>, mounts: &Arc<Mounts>| {
        mounts.answer_alone();
        Ok(Beside { asked: Arc::clone(pool), nfs: None, http: None, guard: Box::new(()) })
    };
    serve_beside(args, backend, &nothing, ready)
}

/// As [`serve`], with what `begin` begins.
pub(crate) fn serve_beside(
    args: &MountArgs,
    backend: &dyn Backend,
    begin: Begin<'_>,
    ready: &mut dyn FnMut(&str, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let signals = StopSignals::listen().context("cannot catch signals")?;
    bugs::start_counting();
    let log = args.log_file.is_some() || args.answer_parent;
    let log = if log { Some(log_path(args)?) } else { None };
    start_log(log.as_deref())?;
    let (options, mount_options) = options_of(args)?;
    let directory = directory_of(args)?;
    let directory = front::fuse::mountpoint::absolute(directory)
        .with_context(|| format!("{}", directory.display()))?;
    if args.answer_parent {
        daemon::leave_terminal()?;
    }

    let pool = backend.open(&options)?;
    let mounts = Mounts::new(&options.device, &pool);
    // It answers until the pool is closed: whoever mounts it next waits for that.
    let mut asked = None;
    let end = begin(&options.device, &pool, &mounts).and_then(|beside| {
        let at = (&*directory, log, signals);
        let of = (&pool, &mounts, &mut asked);
        mount_and_run(of, &options, &mount_options, at, beside, ready)
    });
    // Whatever happened above, what was accepted is made durable.
    let closed = pool.close();
    let end = end.and_then(|end| closed.map(|()| end).map_err(anyhow::Error::from));
    if let Err(error) = &end {
        let left = status::last_words_of(&options.device)
            .and_then(|path| daemon::leave_last_words(&path, error));
        if let Err(cause) = left {
            tracing::error!("{error:#}; cannot report this to `holdfast unmount`: {cause:#}");
        }
    }
    drop(asked);
    let end = end?;
    tracing::info!(?end, "closed");
    match end {
        EndCause::Unmounted | EndCause::Signal(_) => Ok(exit::DONE),
        EndCause::Cut(_) => {
            tracing::warn!("some processes still held files; they get errors now");
            Ok(exit::DONE)
        }
    }
}

fn mount_and_run(
    (pool, mounts, asked): (&Arc<dyn OpenPool>, &Arc<Mounts>, &mut Option<StatusServer>),
    options: &OpenOptions,
    mount_options: &MountOptions,
    (directory, log, signals): (&Path, Option<PathBuf>, StopSignals),
    beside: Beside,
    ready: &mut dyn FnMut(&str, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<EndCause> {
    let claim = mounts.uses.claim(None, None, use_of(mount_options, directory))?;
    let shares = shares_of(mount_options, &claim);
    let session = front::fuse::mount(pool.file_system(), directory, mount_options, shares)?;
    let (directory, replaced_dead) = (session.directory().to_owned(), session.has_replaced_dead());
    mounts.add(session, claim);
    let served = Served {
        pool: options.device.clone(),
        mounts: Arc::clone(mounts),
        lasts: false,
        pid: std::process::id(),
        log,
        nfs: beside.nfs,
        http: beside.http,
        roles: None,
    };
    let warnings = pool.status()["warnings"].take();
    let mut text = ready_text(&served.pool, &directory, replaced_dead);
    for warning in warnings.as_array().into_iter().flatten().filter_map(Value::as_str) {
        tracing::warn!("{warning}");
        text += &format!("\nWarning: {warning}");
    }
    let facts = json!({
        "mounted": status::server_facts(&served),
        "replaced_dead": replaced_dead,
        "warnings": warnings,
    });
    let socket = status::socket_of(&served.pool)?;
    *asked = Some(StatusServer::start(socket, served, Arc::clone(&beside.asked))?);
    ready(&text, &facts)?;
    let end = mounts.run(&signals)?;
    drop(beside.guard);
    Ok(end)
}

fn ready_text(pool: &Path, directory: &Path, has_replaced_dead: bool) -> String {
    let mut text = String::new();
    if has_replaced_dead {
        text = format!("{}: detached a mount whose server died\n", directory.display());
    }
    text + &format!("{} is mounted on {}", pool.display(), directory.display())
}

/// Returns the pool that is named.
fn device_of(args: &MountArgs) -> Result<&Path, UsageError> {
    args.device.as_deref().ok_or_else(|| UsageError::new("name a pool"))
}

/// Returns where its files appear.
fn directory_of(args: &MountArgs) -> Result<&Path, UsageError> {
    args.directory.as_deref().ok_or_else(|| UsageError::new("name a directory"))
}

/// Returns what the arguments ask of the pool and of the mount.
pub(crate) fn options_of(args: &MountArgs) -> anyhow::Result<(OpenOptions, MountOptions)> {
    // Absolute, because the server leaves this directory and `status` shows it.
    let named = Named::of(device_of(args)?)?;
    let device = named.device()?;
    let mut mount_options = MountOptions::new(&source_of(&device, &named));
    for options in &args.options {
        mount_options.apply(options).map_err(|error| UsageError::new(error.to_string()))?;
    }
    mount_options.has_writeback_cache = args.writeback_cache;
    mount_options.is_shared |= args.shared;
    check_shared(&mount_options)?;
    mount_options.transport = match args.transport {
        TransportName::Auto => TransportChoice::Auto,
        TransportName::Uring => TransportChoice::Uring,
        TransportName::Dev => TransportChoice::Dev,
    };
    mount_options.cpu_latency = match args.cpu_latency {
        CpuLatencyName::Auto => CpuLatency::Auto,
        CpuLatencyName::On => CpuLatency::On,
        CpuLatencyName::Off => CpuLatency::Off,
    };
    if let Some(threads) = args.threads {
        check_threads(threads, THREADS_MAX)?;
        mount_options.thread_count = threads;
    }
    if let Some(poll_us) = args.poll_us {
        let poll_time = Duration::from_micros(poll_us);
        if poll_time > POLL_TIME_MAX {
            let message = format!("--poll-us must be at most {}", POLL_TIME_MAX.as_micros());
            return Err(UsageError::new(message).into());
        }
        mount_options.poll_time = poll_time;
    }
    check_cache(args.cache)?;
    let placement = match args.placement {
        PlacementName::Log => Placement::Log,
        PlacementName::Ffs => Placement::Ffs,
        PlacementName::Hotspot => Placement::Hotspot,
    };
    let options = OpenOptions {
        device,
        members: members_of(&args.members),
        is_read_only: mount_options.is_read_only,
        may_replay: true,
        // Each mount has its own.
        has_no_atime: false,
        cache_bytes: args.cache.0,
        placement,
        commit_interval: args.commit_interval,
        device_deadline: args.device_deadline,
        discards: match mount_options.discards {
            None => Discards::SparseFiles,
            Some(true) => Discards::On,
            Some(false) => Discards::Off,
        },
        is_forced: args.force,
        fileset: named.fileset,
        clone: named.clone,
    };
    Ok((options, mount_options))
}

/// Returns where the members of a pool are.
pub(crate) fn members_of(args: &MemberArgs) -> Members {
    Members { accepts_missing: args.accept_missing, ..args.paths.hints() }
}

/// Refuses a cache that is too small to work with.
pub(crate) fn check_cache(cache: ByteSize) -> Result<(), UsageError> {
    let is_enough = cache.0 >= CACHE_BYTES_MIN;
    if is_enough { Ok(()) } else { Err(UsageError::new("--cache must be at least 4M")) }
}

/// Refuses a number of threads that no server has.
pub(crate) fn check_threads(threads: usize, max: usize) -> Result<(), UsageError> {
    let is_possible = (1..=max).contains(&threads);
    let refused = || UsageError::new(format!("--threads must be from 1 to {max}"));
    if is_possible { Ok(()) } else { Err(refused()) }
}

fn log_path(args: &MountArgs) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.log_file {
        return Ok(std::path::absolute(path)?);
    }
    let device = std::fs::canonicalize(Named::of(device_of(args)?)?.pool)?;
    Ok(run_directory()?.join(format!("{}.log", status::key_of(&device))))
}

/// Starts logging to `path`, or to standard error. `HOLDFAST_LOG` says how much (default: `info`).
pub(crate) fn start_log(path: Option<&Path>) -> anyhow::Result<()> {
    start_log_of("info", path)
}

/// As [`start_log`], with another default.
pub(crate) fn start_log_of(default: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_from_env("HOLDFAST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // What cannot be written, as on a full disk, is left out: to tell of it by standard error,
    // which is the log of a daemon, would end in a panic.
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).log_internal_errors(false);
    let kept = tracing_subscriber::registry().with(filter).with(Keep);
    let started = match path {
        Some(path) => {
            let file: File = daemon::open_log(path)?;
            kept.with(layer.with_writer(std::sync::Mutex::new(file))).try_init()
        }
        None => kept.with(layer.with_writer(std::io::stderr)).try_init(),
    };
    // A second mount in one process (a test's) logs where the first does.
    let _ = started;
    Ok(())
}
