//! Mount of a pool that a server has open. This command mounts, and passes the FUSE connection to
//! the server.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use front::fuse::CpuLatency;
use serde_json::json;

use super::{device_of, directory_of, options_of};
use crate::args::{MountArgs, PlacementName, TransportName};
use crate::exit;
use crate::output::Output;
use control::UsageError;
use server::backend::Backend;
use server::mounts::{MountSpec, PoolClosingError};
use server::named::PoolArgument;
use server::patience::PollBackoff;
use server::pool_names;
use server::status::{self, CLOSE_TIME, DiscoveredServer};

/// Mounts and hands the mount to the pool's server. `None` if there is no server.
pub(super) fn over(
    args: &MountArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<Option<u8>> {
    let named = PoolArgument::of(device_of(args)?)?;
    // If the pool is missing, opening it reports that.
    let Ok(device) = named.device() else { return Ok(None) };
    let asked = Instant::now();
    let mut patience = PollBackoff::default();
    loop {
        match once(args, &named, &device, (backend, output)) {
            Err(error) if error.is::<PoolClosingError>() && asked.elapsed() < CLOSE_TIME => {
                patience.wait()
            }
            done => return done,
        }
    }
}

/// Makes one attempt of [`over`]. Fails with [`PoolClosingError`] if the server is closing the
/// pool.
fn once(
    args: &MountArgs,
    named: &PoolArgument,
    device: &Path,
    (backend, output): (&dyn Backend, &Output),
) -> anyhow::Result<Option<u8>> {
    let socket = status::socket_to(device)?;
    let is_its = |found: &DiscoveredServer| found.is_called(&socket) || found.has_member(device);
    let Some(found) = pool_names::server_at(device, backend)?.filter(is_its) else {
        return Ok(None);
    };
    if !found.advice().is_empty() {
        // If the server was killed or is stopped, opening the pool reports that.
        return Ok(None);
    }
    refuse_options_of_the_pool(args, &found)?;
    let (_, mount_options) = options_of(args)?;
    let directory = directory_of(args)?;
    let directory = front::fuse::mountpoint::absolute(directory)
        .map_err(|error| anyhow::anyhow!("{}: {error}", directory.display()))?;
    let spec = MountSpec {
        fileset: named.fileset.as_ref().map(ToString::to_string),
        snapshot: named.snapshot.as_ref().map(|snapshot| snapshot.as_str().to_owned()),
        directory: directory.as_os_str().as_bytes().to_vec(),
        options: options_text(args),
        threads: mount_options.thread_count,
        poll_us: u64::try_from(mount_options.poll_time.as_micros()).unwrap_or(0),
        has_writeback_cache: mount_options.has_writeback_cache,
        transport: match args.transport {
            TransportName::Auto => "auto",
            TransportName::Uring => "uring",
            TransportName::Dev => "dev",
        }
        .to_owned(),
        cpu_latency: match mount_options.cpu_latency {
            CpuLatency::Auto => "auto",
            CpuLatency::On => "on",
            CpuLatency::Off => "off",
        }
        .to_owned(),
    };
    let handed = status::hand_over(&found.socket, &spec, &directory, &mount_options);
    let (mount, has_replaced_dead) = handed?;
    tell(args, &found, (&directory, has_replaced_dead), &mount, output)?;
    Ok(Some(exit::DONE))
}

fn options_text(args: &MountArgs) -> String {
    let shared = args.shared.then(|| "shared".to_owned());
    args.options.iter().cloned().chain(shared).collect::<Vec<_>>().join(",")
}

fn tell(
    args: &MountArgs,
    found: &DiscoveredServer,
    (directory, has_replaced_dead): (&Path, bool),
    mount: &serde_json::Value,
    output: &Output,
) -> anyhow::Result<()> {
    let pid = found.pid().unwrap_or(0);
    let shown = device_of(args)?.display();
    let mut text = format!("{shown} is mounted on {}", directory.display());
    text += &format!("; process {pid}, which has the pool open, serves it");
    if has_replaced_dead {
        text = format!("{}: detached a mount whose server died\n{text}", directory.display());
    }
    let mut mounted = mount.clone();
    mounted["pool"] = json!(found.text("pool"));
    mounted["pid"] = json!(pid);
    let facts = json!({
        "mounted": mounted,
        "replaced_dead": has_replaced_dead,
        "warnings": [],
    });
    output.fact(&text, &facts);
    Ok(())
}

/// Refuses options that apply to the whole pool, which is open already.
fn refuse_options_of_the_pool(
    args: &MountArgs,
    found: &DiscoveredServer,
) -> Result<(), UsageError> {
    let given = [
        ("--cache", args.cache.0 != 256 << 20),
        ("--placement", args.placement != PlacementName::Log),
        ("--commit-interval", args.commit_interval != Duration::from_secs(5)),
        ("--device-deadline", args.device_deadline != Duration::from_secs(30)),
        ("--log-file", args.log_file.is_some()),
        ("--member", !args.members.paths.is_empty()),
        ("--accept-missing", args.members.accept_missing),
    ];
    let Some((option, _)) = given.into_iter().find(|(_, is_given)| *is_given) else {
        return Ok(());
    };
    let (pool, pid) = (found.text("pool"), found.pid().unwrap_or(0));
    Err(UsageError::new(format!(
        "{option} is for the whole pool, and {pool} is open already (process {pid}): leave it out, \
         or unmount the others first"
    )))
}
