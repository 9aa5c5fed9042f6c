//! A server that closes its pool: it answers until it has, and a command that needs the pool waits.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::{Found, Served, find_now};
use crate::patience::Patience;

/// How long a pool that is being closed is waited for: its last writes go to a disk that may be
/// slow.
pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(60);

/// Why something is refused while a pool is being closed.
pub(crate) const CLOSING: &str = "the pool is being closed: try again";

/// Returns what `status` says of a server that is closing its pool, of which nothing is asked.
pub(super) fn closing_facts(served: &Served) -> Value {
    let mut facts = json!(served);
    facts["mounts"] = json!([]);
    facts["is_ending"] = json!(true);
    facts["problem"] =
        json!(format!("process {} is closing the pool: wait until it has ended", served.pid));
    json!({ "server": facts, "pool": {} })
}

/// Returns the server of a pool, or of the mount that `path` is in. One that closes its pool is
/// waited for, within [`CLOSE_TIME`]: umount(8) returns before it has.
pub(crate) fn find(path: &Path) -> anyhow::Result<Option<Found>> {
    let asked = Instant::now();
    let mut patience = Patience::new();
    let mut server = None;
    loop {
        let found = find_now(path)?;
        let Some(ending) = found.as_ref().filter(|found| found.is_ending()) else {
            if let Some(server) = server.flatten() {
                // What it holds is let go of with the process.
                wait_for_process(&server, CLOSE_TIME.saturating_sub(asked.elapsed()));
            }
            return Ok(found);
        };
        // By a descriptor, because a number may come to mean another process.
        server = server.or_else(|| Some(descriptor_of(ending.pid())));
        anyhow::ensure!(
            asked.elapsed() < CLOSE_TIME,
            "{}: the pool is still being closed by process {} after {} s: wait until it has \
             ended; `holdfast status` names its log",
            path.display(),
            ending.pid().unwrap_or_default(),
            CLOSE_TIME.as_secs()
        );
        patience.wait();
    }
}

/// Returns a descriptor of another process.
fn descriptor_of(pid: Option<i32>) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid?).filter(|pid| *pid != rustix::process::getpid())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended, or for as long as `time`.
fn wait_for_process(process: &OwnedFd, time: Duration) {
    let time = Timespec::try_from(time).ok();
    // A process that does not end keeps the lock of the pool: the caller that takes the lock next
    // reports it.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], time.as_ref());
}
