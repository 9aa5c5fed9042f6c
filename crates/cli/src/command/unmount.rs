//! `holdfast unmount`: takes a mount away and waits until its pool is closed.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use front::fuse::mountpoint::{self, MOUNT_TYPE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use crate::args::UnmountArgs;
use crate::daemon;
use crate::exit;
use crate::output::Output;
use crate::status::{self, Found, Silence};

pub(crate) fn run(args: &UnmountArgs, output: &Output) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    let directory = mount_at(&args.directory)?;
    // Before unmounting, while it can still be asked.
    let found = status::find(&directory)?.filter(|found| found.directory() == directory);
    let silence = found.as_ref().and_then(|found| found.silence);
    if silence == Some(Silence::Gone) {
        mountpoint::detach(&directory).with_context(|| format!("cannot detach {shown}"))?;
        let text = format!("{shown}: detached a mount whose server died");
        let facts = json!({ "unmounted": directory.to_string_lossy(), "was_dead": true });
        output.fact(&text, &facts);
        return Ok(exit::DONE);
    }
    // By a descriptor, because a number may come to mean another process.
    let pid = found.as_ref().and_then(Found::pid).and_then(Pid::from_raw);
    let server = pid.and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
    take_away(&directory, args)?;
    if let (Some((pid, server)), Some(found)) = (server, &found) {
        wait_for_end(&server, args.timeout).with_context(|| match silence {
            Some(_) => format!("the server of {shown} (process {pid}) does not answer"),
            None => format!("the server of {shown} is process {pid}"),
        })?;
        let words = found.socket.with_extension("failed");
        if let Some(error) =
            daemon::take_last_words(&words, pid.as_raw_nonzero().get().cast_unsigned())
        {
            anyhow::bail!(
                "{shown} is unmounted, but not everything reached the device: {error}. Look at the \
                 device, then `holdfast check`"
            );
        }
    }
    let facts = json!({ "unmounted": directory.to_string_lossy(), "was_dead": false });
    output.fact(&format!("{shown} is unmounted"), &facts);
    Ok(exit::DONE)
}

/// Returns the absolute path of a mount of ours. Asks the table of mounts and not the mount, whose
/// server may never answer.
fn mount_at(directory: &Path) -> anyhow::Result<PathBuf> {
    let shown = directory.display();
    let path = match mountpoint::absolute(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            anyhow::bail!("{shown} is not a directory: check the path")
        }
        path => path.with_context(|| format!("{shown}"))?,
    };
    match mountpoint::mounted_on(&path)? {
        Some(entry) if entry.kind == MOUNT_TYPE => Ok(path),
        None if !path.is_dir() => anyhow::bail!("{shown} is not a directory: check the path"),
        Some(_) | None => {
            anyhow::bail!("{shown} is no Holdfast mount: `holdfast status` lists them")
        }
    }
}

fn take_away(directory: &Path, args: &UnmountArgs) -> anyhow::Result<()> {
    let shown = args.directory.display();
    if args.lazy {
        return mountpoint::detach(directory).with_context(|| format!("cannot detach {shown}"));
    }
    match mountpoint::unmount(directory) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
            anyhow::bail!(
                "{shown} is in use: close its files (`fuser -vm {shown}` lists who has them) or \
                 give --lazy"
            )
        }
        done => done.with_context(|| format!("cannot unmount {shown}")),
    }
}

fn wait_for_end(server: &impl std::os::fd::AsFd, timeout: Duration) -> anyhow::Result<()> {
    let timeout_spec = Timespec::try_from(timeout).context("--timeout is too long")?;
    let ended = poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&timeout_spec))?;
    anyhow::ensure!(
        ended > 0,
        "unmounted, but the server has not ended after {} s: it may still write; wait for it, or \
         look at its log (`holdfast status`)",
        timeout.as_secs()
    );
    Ok(())
}
