//! `holdfast unmount`: takes a mount away and waits until its pool is closed.

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
use crate::backend::Backend;
use crate::copies::{self, Copy};
use crate::daemon;
use crate::exit;
use crate::holders;
use crate::output::Output;
use crate::run_directory::run_directory;
use crate::status::{self, Answer, Found, Question, Silence};

/// How long a server that nothing keeps may take to end before it is looked for what does.
const GRACE: Duration = Duration::from_millis(200);
/// How long a mount may be busy before that is told: who only looks (`df`, a scan of all mounts)
/// holds it for a moment.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// Between two tries.
const BUSY_POLL: Duration = Duration::from_millis(50);

pub(crate) fn run(
    args: &UnmountArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    let directory = absolute(&args.directory)?;
    // Before unmounting, while it can still be asked.
    let is_asked = |found: &Found| found.silence != Some(Silence::NotReachable);
    let found = status::find_now(&directory)?.filter(|it| it.is_on(&directory) && is_asked(it));
    let silence = found.as_ref().and_then(|found| found.silence);
    let entry = mount_at(&args.directory, &directory, found.as_ref())?;
    if silence == Some(Silence::Gone) {
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

/// Unmounts what a server serves that answers, or that the kernel knows.
fn served(
    args: &UnmountArgs,
    directory: &Path,
    (found, entry): (Option<Found>, Option<MountEntry>),
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    let silence = found.as_ref().and_then(|found| found.silence);
    // By a descriptor, because a number may come to mean another process.
    let pid = found.as_ref().and_then(Found::pid).and_then(Pid::from_raw);
    let server = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    let mount = Mount::of(entry.as_ref(), found.as_ref(), directory);
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
            // A mount that was not busy is gone, and its number may be another's by now.
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

/// Says that it is done; `stays` is why the pool stays open, if it does.
fn report(
    args: &UnmountArgs,
    directory: &Path,
    (cut_off, stays): (&[Copy], Option<&str>),
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

/// Returns why `--force` cuts nothing off.
fn refused(args: &UnmountArgs, cause: &str) -> anyhow::Error {
    let shown = args.directory.display();
    anyhow::anyhow!(
        "{shown} is no longer in the mount table, and {cause}: --force could end the connection \
         of another mount. End the processes that use its files, or stop its server"
    )
}

/// Returns what a server says whose pool stays open without one of its mounts; `None`: nothing, or
/// it has no other.
fn still_served(socket: &Path) -> Option<Found> {
    let Ok(Answer::Status(status)) = status::ask(socket, &Question::Status) else { return None };
    let found = Found { status, socket: socket.to_owned(), silence: None };
    let lasts = found.status["server"]["lasts"] == true || !found.mounts().is_empty();
    Some(found).filter(|_| lasts)
}

/// Whether the server has let go of the mount on `directory`, and goes on without it: one that does
/// not closes the pool, and is waited for.
fn is_let_go(socket: &Path, directory: &Path) -> bool {
    still_served(socket).is_some_and(|found| !found.is_on(directory))
}

/// What the kernel calls a mount of ours, wherever it is.
struct Mount {
    /// `major:minor`. Another mount may have it when this one is gone.
    device: String,
    source: String,
    /// Whether its server goes on with it, although no table may have it any more.
    is_served: bool,
}

impl Mount {
    /// Takes what the table of mounts says, or where it is there no more its server: of exactly
    /// this directory. Else returns why nothing is known that may be believed.
    fn of(
        entry: Option<&MountEntry>,
        found: Option<&Found>,
        directory: &Path,
    ) -> Result<Mount, &'static str> {
        match (entry, found) {
            (Some(MountEntry { device, source, .. }), _) => {
                Ok(Mount { device: device.clone(), source: source.clone(), is_served: false })
            }
            (None, Some(found)) => Ok(Mount {
                device: found.device_on(directory)?,
                source: found.text("pool").to_owned(),
                is_served: true,
            }),
            (None, None) => Err("no server answers for it"),
        }
    }

    fn copies(&self) -> Vec<Copy> {
        copies::of(&self.device, &self.source)
    }

    /// Ends the connection.
    fn abort(&self) -> anyhow::Result<()> {
        let scratch = run_directory()?.join(format!("connections-{}", std::process::id()));
        mountpoint::abort(&self.device, &scratch)
            .with_context(|| format!("the connection of {} cannot be ended", self.source))
    }
}

/// Cuts off whoever uses a mount, and takes it away where that can be done; returns the copies that
/// are left, in other namespaces.
fn force(mount: &Mount) -> anyhow::Result<Vec<Copy>> {
    let copies = mount.copies();
    // While it is mounted somewhere, or a server has just said that it goes on, its number is its
    // own.
    if mount.is_served || !copies.is_empty() {
        mount.abort()?;
    }
    for copy in copies.iter().filter(|copy| copy.is_here) {
        mountpoint::detach(&copy.directory)
            .with_context(|| format!("cannot detach {}", copy.directory.display()))?;
    }
    Ok(copies.into_iter().filter(|copy| !copy.is_here).collect())
}

/// Ends the connection of a mount that was taken away here and is kept by copies elsewhere that
/// nobody uses, and returns them. Others are told, and left alone.
fn cut_off_unused(mount: &Mount, detached: Option<u64>) -> anyhow::Result<Vec<Copy>> {
    let copies = mount.copies();
    if copies.is_empty() {
        return Ok(copies);
    }
    let users = copies::users(&copies, detached);
    if users.is_empty() && !copies.iter().any(|copy| copy.is_here) {
        mount.abort()?;
        return Ok(copies);
    }
    let places: Vec<String> = copies.iter().map(Copy::text).collect();
    let users: Vec<String> = users.into_iter().map(holders::process).collect();
    let used = if users.is_empty() { String::new() } else { users.join(", ") + " uses it: " };
    anyhow::bail!(
        "it is still mounted on {}; {used}end what uses it, or `holdfast unmount --force` and the \
         same directory cuts it off",
        places.join(", ")
    )
}

/// Has what the kernel holds of a mount written to its server, and committed there, whoever else
/// keeps the mount. A
/// server that answers here may still not answer there, so it is waited for by another thread.
/// Returns whether that was done.
fn sync_within(directory: &Path, timeout: Duration) -> anyhow::Result<bool> {
    let (tell, told) = std::sync::mpsc::channel();
    let directory = directory.to_owned();
    std::thread::Builder::new().name("sync".to_owned()).spawn(move || {
        let opened = std::fs::File::open(&directory);
        let is_synced = opened.is_ok_and(|opened| {
            // A pool that refuses changes has none to lose.
            let is_read_only =
                |error: std::io::Error| error.kind() == ErrorKind::ReadOnlyFilesystem;
            rustix::fs::syncfs(&opened).is_ok()
                && opened.sync_all().map_or_else(is_read_only, |()| true)
        });
        let _ = tell.send(is_synced);
    })?;
    Ok(told.recv_timeout(timeout).unwrap_or(false))
}

/// Returns the absolute path of a directory, without looking at what may be mounted there.
fn absolute(directory: &Path) -> anyhow::Result<PathBuf> {
    let shown = directory.display();
    match mountpoint::absolute(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            anyhow::bail!("{shown} is not a directory: check the path")
        }
        path => path.with_context(|| format!("{shown}")),
    }
}

/// Returns the mount of ours on `path`; `None`: it was taken away from here and its server goes on.
/// Asks the table of mounts and not the mount, whose server may never answer.
fn mount_at(
    given: &Path,
    path: &Path,
    found: Option<&Found>,
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

/// Returns whether the server has ended within `time`.
fn has_ended(server: &impl AsFd, time: Duration) -> anyhow::Result<bool> {
    let timeout = Timespec::try_from(time).context("--timeout is too long")?;
    Ok(poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&timeout))? > 0)
}

/// Waits until the server has ended, or has let go of the mount, or has said its last words: past
/// these it does nothing, and
/// may be kept by a call to its device that the kernel does not give back.
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
