//! `holdfast unmount`: takes a mount away and waits until its pool is closed.

use std::time::Duration;

use anyhow::Context;
use front::fuse::mountpoint::{self, Mountpoint};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;

use crate::args::UnmountArgs;
use crate::exit;
use crate::output::Output;
use crate::status;

pub(crate) fn run(args: &UnmountArgs, output: &Output) -> anyhow::Result<u8> {
    let shown = args.directory.display();
    let state = mountpoint::inspect(&args.directory).with_context(|| format!("{shown}"))?;
    let directory = match state {
        Mountpoint::NotDirectory => anyhow::bail!("{shown} is not a directory: check the path"),
        Mountpoint::Free => {
            anyhow::bail!("{shown} is no Holdfast mount: `holdfast status` lists them")
        }
        Mountpoint::Dead => {
            let directory = mountpoint::absolute(&args.directory)?;
            mountpoint::detach(&directory).with_context(|| format!("cannot detach {shown}"))?;
            let text = format!("{shown}: detached a mount whose server died");
            output.fact(
                &text,
                &json!({ "unmounted": directory.to_string_lossy(), "was_dead": true }),
            );
            return Ok(exit::DONE);
        }
        Mountpoint::Live { .. } => mountpoint::absolute(&args.directory)?,
    };

    // Before unmounting, while it can still be asked; and by a descriptor, because a number may
    // come to mean another process.
    let server = status::find(&directory)?.and_then(|found| found.pid()).and_then(Pid::from_raw);
    let server = server.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if args.lazy {
        mountpoint::detach(&directory).with_context(|| format!("cannot detach {shown}"))?;
    } else if let Err(error) = mountpoint::unmount(&directory) {
        if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) {
            anyhow::bail!(
                "{shown} is in use: close its files (`fuser -vm {shown}` lists who has them) or \
                 give --lazy"
            );
        }
        return Err(error).with_context(|| format!("cannot unmount {shown}"));
    }
    if let Some(server) = server {
        wait_for_end(&server, args.timeout)?;
    }
    output.fact(
        &format!("{shown} is unmounted"),
        &json!({ "unmounted": directory.to_string_lossy(), "was_dead": false }),
    );
    Ok(exit::DONE)
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
