//! `holdfast mount`: opens a pool, mounts it, and serves the mount until it is unmounted.

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
    CpuLatency, EndCause, FuseTransportChoice, MountOptions, POLL_TIME_MAX, StopSignals,
    THREADS_MAX,
};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::members::MemberArgs;
use crate::args::{CpuLatencyName, MountArgs, PlacementName, TransportName};
use crate::daemon::{self, DaemonAnswer, Relaunch};
use crate::exit;
use crate::output::Output;
use control::UsageError;
use control::size::ByteSize;
use server::backend::{
    Backend, BackendOpenOptions, DiscardMode, MemberSearchOptions, OpenPool, PlacementPolicyKind,
};
use server::bugs;
use server::events::EventLogLayer;
use server::mounts::{PoolMounts, check_shared, shares_of, use_of};
use server::named::{PoolArgument, source_of};
use server::run_directory::run_directory;
use server::status::{self, ServerContext, StatusServer};

/// The pages of the largest operation fit several times.
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
    // In the parent too, so that invalid options fail before a daemon is started.
    options_of(args)?;
    if !args.answer_parent
        && let Some(code) = hand::over(args, backend, output)?
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
        daemon::answer_parent(&DaemonAnswer { error: None, text, value: value.clone() })
    });
    if let (Err(error), false) = (&served, has_answered) {
        let error = Some(format!("{error:#}"));
        daemon::answer_parent(&DaemonAnswer { error, text: String::new(), value: Value::Null })?;
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

pub(crate) struct MountServers {
    /// The pool that answers status requests.
    pub(crate) asked: Arc<dyn OpenPool>,
    pub(crate) nfs: Option<SocketAddr>,
    pub(crate) http: Option<SocketAddr>,
    /// Dropping it ends the servers.
    pub(crate) guard: Box<dyn Any>,
}

pub(crate) type MountServersStarter<'b> =
    &'b dyn Fn(&Path, &Arc<dyn OpenPool>, &Arc<PoolMounts>) -> anyhow::Result<MountServers>;

/// Opens the pool, mounts it and serves the mount. Calls `ready` with text and facts once it is
/// mounted.
pub(crate) fn serve(
    args: &MountArgs,
    backend: &dyn Backend,
    ready: &mut dyn FnMut(&str, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let nothing = |_: &Path, pool: &Arc<dyn OpenPool>, mounts: &Arc<PoolMounts>| {
        mounts.answer_alone();
        Ok(MountServers { asked: Arc::clone(pool), nfs: None, http: None, guard: Box::new(()) })
    };
    serve_beside(args, backend, &nothing, ready)
}

/// As [`serve`], and starts further servers by `begin`.
pub(crate) fn serve_beside(
    args: &MountArgs,
    backend: &dyn Backend,
    begin: MountServersStarter<'_>,
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
    let mounts = PoolMounts::new(&options.device, &pool);
    // The status server answers until the pool is closed, because the next `mount` waits for that.
    let mut asked = None;
    let end = begin(&options.device, &pool, &mounts).and_then(|beside| {
        let at = (&*directory, log, signals);
        let of = (&pool, &mounts, &mut asked);
        mount_and_run(of, &options, &mount_options, at, beside, ready)
    });
    // Even after an error, so that acknowledged changes become durable.
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
    (pool, mounts, asked): (&Arc<dyn OpenPool>, &Arc<PoolMounts>, &mut Option<StatusServer>),
    options: &BackendOpenOptions,
    mount_options: &MountOptions,
    (directory, log, signals): (&Path, Option<PathBuf>, StopSignals),
    beside: MountServers,
    ready: &mut dyn FnMut(&str, &Value) -> anyhow::Result<()>,
) -> anyhow::Result<EndCause> {
    let claim = mounts.uses.claim(None, None, use_of(mount_options, directory))?;
    let shares = shares_of(mount_options, &claim);
    let session = front::fuse::mount(pool.file_system(), directory, mount_options, shares)?;
    let (directory, replaced_dead) = (session.directory().to_owned(), session.has_replaced_dead());
    mounts.add(session, claim);
    let served = ServerContext {
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

fn device_of(args: &MountArgs) -> Result<&Path, UsageError> {
    args.device.as_deref().ok_or_else(|| UsageError::new("give the pool to mount"))
}

fn directory_of(args: &MountArgs) -> Result<&Path, UsageError> {
    args.directory.as_deref().ok_or_else(|| UsageError::new("give the directory to mount on"))
}

pub(crate) fn options_of(args: &MountArgs) -> anyhow::Result<(BackendOpenOptions, MountOptions)> {
    // Absolute, because the server changes its working directory.
    let named = PoolArgument::of(device_of(args)?)?;
    let device = named.device()?;
    // The mount table shows the pool as mount(8) was given it, so that `mount -a` finds it again.
    let name = args.pool_name.as_deref().filter(|name| status::take_name(name, &device));
    let mut mount_options = MountOptions::new(&source_of(name.map_or(&device, Path::new), &named));
    for options in &args.options {
        mount_options.apply(options).map_err(|error| UsageError::new(error.to_string()))?;
    }
    mount_options.has_writeback_cache = args.writeback_cache;
    mount_options.is_shared |= args.shared;
    check_shared(&mount_options)?;
    mount_options.transport = match args.transport {
        TransportName::Auto => FuseTransportChoice::Auto,
        TransportName::Uring => FuseTransportChoice::Uring,
        TransportName::Dev => FuseTransportChoice::Dev,
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
        PlacementName::Log => PlacementPolicyKind::Log,
        PlacementName::Ffs => PlacementPolicyKind::Ffs,
        PlacementName::Hotspot => PlacementPolicyKind::Hotspot,
    };
    let options = BackendOpenOptions {
        device,
        members: members_of(&args.members),
        is_read_only: mount_options.is_read_only,
        may_replay: true,
        // Each mount has a setting of its own.
        has_no_atime: false,
        cache_bytes: args.cache.0,
        placement,
        commit_interval: args.commit_interval,
        device_deadline: args.device_deadline,
        discards: match mount_options.discards {
            None => DiscardMode::SparseFiles,
            Some(true) => DiscardMode::On,
            Some(false) => DiscardMode::Off,
        },
        is_forced: args.force,
        fileset: named.fileset,
        snapshot: named.snapshot,
    };
    Ok((options, mount_options))
}

pub(crate) fn members_of(args: &MemberArgs) -> MemberSearchOptions {
    MemberSearchOptions { accepts_missing: args.accept_missing, ..args.paths.hints() }
}

pub(crate) fn check_cache(cache: ByteSize) -> Result<(), UsageError> {
    let is_enough = cache.0 >= CACHE_BYTES_MIN;
    if is_enough { Ok(()) } else { Err(UsageError::new("--cache must be at least 4M")) }
}

pub(crate) fn check_threads(threads: usize, max: usize) -> Result<(), UsageError> {
    let is_possible = (1..=max).contains(&threads);
    let refused = || UsageError::new(format!("--threads must be from 1 to {max}"));
    if is_possible { Ok(()) } else { Err(refused()) }
}

fn log_path(args: &MountArgs) -> anyhow::Result<PathBuf> {
    if let Some(path) = &args.log_file {
        return Ok(std::path::absolute(path)?);
    }
    let device = std::fs::canonicalize(PoolArgument::of(device_of(args)?)?.pool)?;
    Ok(run_directory()?.join(format!("{}.log", status::key_of(&device))))
}

/// Starts the log to `path` or standard error. `HOLDFAST_LOG` is the filter, by default `info`.
pub(crate) fn start_log(path: Option<&Path>) -> anyhow::Result<()> {
    start_log_of("info", path)
}

pub(crate) fn start_log_of(default: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_from_env("HOLDFAST_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // The layer would report a failed write on standard error. In a daemon that is the log itself,
    // and failing to write there panics.
    let layer = tracing_subscriber::fmt::layer().with_ansi(false).log_internal_errors(false);
    let kept = tracing_subscriber::registry().with(filter).with(EventLogLayer);
    let started = match path {
        Some(path) => {
            let file: File = daemon::open_log(path)?;
            kept.with(layer.with_writer(std::sync::Mutex::new(file))).try_init()
        }
        None => kept.with(layer.with_writer(std::io::stderr)).try_init(),
    };
    // Fails if the process has a log already, as in tests, and then that one is used.
    let _ = started;
    Ok(())
}
