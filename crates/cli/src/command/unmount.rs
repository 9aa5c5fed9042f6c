//! `holdfast unmount`: unmounts and waits until the pool is closed.

mod unserved;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use crate::args::UnmountArgs;
use crate::output::Output;
use crate::{daemon, exit};
use control::wire::{WireAnswer, WireRequest};
use server::backend::Backend;
use server::copies::{self, NamespaceMount};
use server::holders;
use server::run_directory::run_directory;
use server::status::{self, DiscoveredServer, NoAnswerReason};

/// How long the server may take to end before processes that use the mount are looked for.
const GRACE: Duration = Duration::from_millis(200);
/// How long to retry to unmount a busy mount. A `df` or a scan of mounts makes it busy for a
/// moment.
const BUSY_FOR: Duration = Duration::from_secs(1);
const BUSY_POLL: Duration = Duration::from_millis(50);

pub(crate) fn run(
    args: &UnmountArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    let directory = absolute(&args.directory)?;
    // Read before the mount ends, while the server answers.
    let is_asked = |found: &DiscoveredServer| found.silence != Some(NoAnswerReason::NotReachable);
    let found = status::find_now(&directory)?.filter(|it| it.is_on(&directory) && is_asked(it));
    let silence = found.as_ref().and_then(|found| found.silence);
    let entry = mount_at(&args.directory, &directory, found.as_ref())?;
    if silence == Some(NoAnswerReason::Gone) {
        mountpoint::detach(&directory).with_context(|| format!("cannot detach {shown}"))?;
        let text = format!("{shown}: detached a mount whose server died");
        let facts = json!({ "unmounted": directory.to_string_lossy(), "was_dead": true });
        output.fact(&text, &facts);
        return Ok(exit::DONE);
    }
    match (found, entry) {
        (None, Some(entry)) => unserved::run(args, &directory, &entry, backend, output),
        (found, entry) => served(args, &directory, (found, entry), backend, output),
    }
}

fn served(
    args: &UnmountArgs,
    directory: &Path,
    (found, entry): (Option<DiscoveredServer>, Option<MountEntry>),
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    let silence = found.as_ref().and_then(|found| found.silence);
    let pid = found.as_ref().and_then(DiscoveredServer::pid).and_then(Pid::from_raw);
    let server = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    let mount = MountIdentity::of(entry.as_ref(), found.as_ref(), directory);
    let is_synced = entry.is_some() && silence.is_none() && sync_within(directory, args.timeout)?;
    let mut cut_off = Vec::new();
    if args.force {
        cut_off = force(mount.as_ref().map_err(|cause| refused(args, cause))?)?;
    } else if entry.is_some() {
        take_away(directory, args)?;
    }
    if let (Some((pid, server)), Some(found)) = (server, &found) {
        let is_let_go = || is_let_go(&found.socket, directory);
        if let Ok(mount) = &mount
            && !args.force
            && !has_ended(&server, GRACE)?
            && !is_let_go()
        {
            // Without `--lazy` the mount is gone, so its mount ID may have been reused.
            let detached = entry.as_ref().filter(|_| args.lazy).map(|entry| entry.id);
            cut_off = cut_off_unused(mount, detached).with_context(|| {
                let synced = if is_synced { ", and what was written is synced" } else { "" };
                format!("{shown} is unmounted{synced}, but the pool stays open")
            })?;
        }
        let words = found.socket.with_extension("failed");
        let number = pid.as_raw_nonzero().get().cast_unsigned();
        let is_over = || is_let_go() || daemon::has_last_words(&words, number);
        wait_for_end(&server, args.timeout, &is_over).with_context(|| match silence {
            Some(_) => format!("the server of {shown} (process {pid}) does not answer"),
            None => format!("the server of {shown} is process {pid}"),
        })?;
        if let Some(error) = daemon::take_last_words(&words, number) {
            anyhow::bail!(
                "{shown} is unmounted, but not everything reached the device: {error}. Look at the \
                 device, then `holdfast check`"
            );
        }
    }
    let others = found.as_ref().and_then(|found| still_served(&found.socket));
    if let (None, Some(found)) = (&others, &found) {
        unserved::check_closed(&args.directory, Path::new(found.text("pool")), backend)?;
    }
    let stays = others.is_some().then_some("its server has other work");
    report(args, directory, (&cut_off, stays), output);
    Ok(exit::DONE)
}

fn report(
    args: &UnmountArgs,
    directory: &Path,
    (cut_off, stays): (&[NamespaceMount], Option<&str>),
    output: &Output,
) {
    let facts = json!({
        "unmounted": directory.to_string_lossy(),
        "was_dead": false,
        "cut_off": cut_off,
        "is_pool_open": stays.is_some(),
    });
    let mut text = format!("{} is unmounted", args.directory.display());
    if let Some(cause) = stays {
        text += &format!("; its pool stays open, for {cause}");
    }
    for copy in cut_off {
        text += &format!("; what is left of it answers nobody: {}", copy.text());
    }
    output.fact(&text, &facts);
}

fn refused(args: &UnmountArgs, cause: &str) -> anyhow::Error {
    let shown = args.directory.display();
    anyhow::anyhow!(
        "{shown} is no longer in the mount table, and {cause}: --force could end the connection \
         of another mount. End the processes that use its files, or stop its server"
    )
}

fn still_served(socket: &Path) -> Option<DiscoveredServer> {
    let Ok(WireAnswer::Status(status)) = status::ask(socket, &WireRequest::Status) else {
        return None;
    };
    let found = DiscoveredServer { status, socket: socket.to_owned(), silence: None };
    let lasts = found.status["server"]["lasts"] == true || !found.mounts().is_empty();
    Some(found).filter(|_| lasts)
}

/// Whether the server has released the mount and goes on. If not, it is closing the pool.
fn is_let_go(socket: &Path, directory: &Path) -> bool {
    still_served(socket).is_some_and(|found| !found.is_on(directory))
}

/// How the kernel identifies a mount in every namespace.
struct MountIdentity {
    /// `major:minor`. It may be reused when the mount is gone.
    device: String,
    source: String,
    /// Whether only the server reports the mount, and the mount table does not.
    is_served: bool,
}

impl MountIdentity {
    /// Identifies the mount on exactly `directory` by the mount table, or else by the server.
    fn of(
        entry: Option<&MountEntry>,
        found: Option<&DiscoveredServer>,
        directory: &Path,
    ) -> Result<MountIdentity, &'static str> {
        match (entry, found) {
            (Some(MountEntry { device, source, .. }), _) => Ok(MountIdentity {
                device: device.clone(),
                source: source.clone(),
                is_served: false,
            }),
            (None, Some(found)) => Ok(MountIdentity {
                device: found.device_on(directory)?,
                source: found.text("pool").to_owned(),
                is_served: true,
            }),
            (None, None) => Err("no server answers for it"),
        }
    }

    fn copies(&self) -> Vec<NamespaceMount> {
        copies::of(&self.device, &self.source)
    }

    fn abort(&self) -> anyhow::Result<()> {
        let scratch = run_directory()?.join(format!("connections-{}", std::process::id()));
        mountpoint::abort(&self.device, &scratch)
            .with_context(|| format!("the connection of {} cannot be ended", self.source))
    }
}

/// Ends the connection, and detaches the copies of the mount in this namespace. Returns those in
/// other namespaces.
fn force(mount: &MountIdentity) -> anyhow::Result<Vec<NamespaceMount>> {
    let copies = mount.copies();
    // A mounted copy, or the server's report, proves that the device number belongs to this mount.
    if mount.is_served || !copies.is_empty() {
        mount.abort()?;
    }
    for copy in copies.iter().filter(|copy| copy.is_here) {
        mountpoint::detach(&copy.directory)
            .with_context(|| format!("cannot detach {}", copy.directory.display()))?;
    }
    Ok(copies.into_iter().filter(|copy| !copy.is_here).collect())
}

/// Ends the connection if only unused copies of the mount in other namespaces are left. Returns
/// these. Fails if a copy is in use.
fn cut_off_unused(
    mount: &MountIdentity,
    detached: Option<u64>,
) -> anyhow::Result<Vec<NamespaceMount>> {
    let copies = mount.copies();
    if copies.is_empty() {
        return Ok(copies);
    }
    let users = copies::users(&copies, detached);
    if users.is_empty() && !copies.iter().any(|copy| copy.is_here) {
        mount.abort()?;
        return Ok(copies);
    }
    let places: Vec<String> = copies.iter().map(NamespaceMount::text).collect();
    let users: Vec<String> = users.into_iter().map(holders::process).collect();
    let used = if users.is_empty() { String::new() } else { users.join(", ") + " uses it: " };
    anyhow::bail!(
        "it is still mounted on {}; {used}end what uses it, or `holdfast unmount DIRECTORY \
         --force` cuts it off",
        places.join(", ")
    )
}

/// Writes back the kernel's dirty pages and makes the server commit. Runs in a thread, because the
/// call may hang. Returns whether it succeeded within `timeout`.
fn sync_within(directory: &Path, timeout: Duration) -> anyhow::Result<bool> {
    let (tell, told) = std::sync::mpsc::channel();
    let directory = directory.to_owned();
    std::thread::Builder::new().name("sync".to_owned()).spawn(move || {
        let opened = std::fs::File::open(&directory);
        let is_synced = opened.is_ok_and(|opened| {
            // With a read-only pool there is nothing to lose.
            let is_read_only =
                |error: std::io::Error| error.kind() == ErrorKind::ReadOnlyFilesystem;
            rustix::fs::syncfs(&opened).is_ok()
                && opened.sync_all().map_or_else(is_read_only, |()| true)
        });
        let _ = tell.send(is_synced);
    })?;
    Ok(told.recv_timeout(timeout).unwrap_or(false))
}

/// Returns the absolute path, without a lookup in the mount, which may hang.
fn absolute(directory: &Path) -> anyhow::Result<PathBuf> {
    let shown = directory.display();
    match mountpoint::absolute(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            anyhow::bail!("{shown} is not a directory: check the path")
        }
        path => path.with_context(|| format!("{shown}")),
    }
}

/// Returns the Holdfast mount on `path` from the mount table. `None` if only the server reports it.
fn mount_at(
    given: &Path,
    path: &Path,
    found: Option<&DiscoveredServer>,
) -> anyhow::Result<Option<MountEntry>> {
    let shown = given.display();
    match mountpoint::mounted_on(path)? {
        Some(entry) if entry.kind == MOUNT_TYPE => Ok(Some(entry)),
        None if !path.is_dir() => anyhow::bail!("{shown} is not a directory: check the path"),
        Some(_) | None if found.is_some() => Ok(None),
        Some(_) | None => {
            anyhow::bail!("{shown} is no Holdfast mount: `holdfast status` lists them")
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "nobody tells when a mount is busy no longer")]
fn take_away(directory: &Path, args: &UnmountArgs) -> anyhow::Result<()> {
    let shown = args.directory.display();
    if args.lazy {
        return mountpoint::detach(directory).with_context(|| format!("cannot detach {shown}"));
    }
    let is_busy = |error: &std::io::Error| {
        error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
    };
    let mut unmounted = mountpoint::unmount(directory);
    let began = Instant::now();
    while unmounted.as_ref().is_err_and(is_busy) && began.elapsed() < BUSY_FOR {
        std::thread::sleep(BUSY_POLL);
        unmounted = mountpoint::unmount(directory);
    }
    match unmounted {
        Err(error) if is_busy(&error) => {
            anyhow::bail!(
                "{shown} is in use: close its files (`fuser -vm {shown}` lists who has them) \
                 or give --lazy, which waits for them, or --force, which cuts them off"
            )
        }
        done => done.with_context(|| format!("cannot unmount {shown}")),
    }
}

fn has_ended(server: &impl AsFd, time: Duration) -> anyhow::Result<bool> {
    let timeout = Timespec::try_from(time).context("--timeout is too long")?;
    Ok(poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&timeout))? > 0)
}

/// Waits until the server has ended, has released the mount, or has recorded the error of a failed
/// close. After such an error, a device request may still keep the process from ending.
fn wait_for_end(
    server: &impl AsFd,
    timeout: Duration,
    is_done: &dyn Fn() -> bool,
) -> anyhow::Result<()> {
    let asked = Instant::now();
    let mut is_over = has_ended(server, timeout.min(GRACE))?;
    while !is_over && asked.elapsed() < timeout {
        let has_words = is_done();
        is_over = has_ended(server, GRACE)? || has_words;
    }
    anyhow::ensure!(
        is_over,
        "unmounted, but the server has not ended after {} s: it may still write; wait for it, or \
         look at its log (`holdfast status`)",
        timeout.as_secs()
    );
    Ok(())
}
