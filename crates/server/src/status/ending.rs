//! A server that is closing its pool. It answers until it ends, so that commands can wait for the
//! pool.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::{DiscoveredServer, ServerContext, find_now};
use crate::patience::PollBackoff;

/// Longest wait for a pool to close. Its last writes may go to a slow disk.
pub const CLOSE_TIME: Duration = Duration::from_secs(60);

pub(super) fn closing_facts(served: &ServerContext) -> Value {
    let mut facts = json!(served);
    facts["mounts"] = json!([]);
    facts["is_ending"] = json!(true);
    facts["problem"] =
        json!(format!("process {} is closing the pool: wait until it has ended", served.pid));
    json!({ "server": facts, "pool": {} })
}

/// Returns the server of the pool at `path` or of the mount around `path`. Waits up to
/// [`CLOSE_TIME`] for a server that is closing its pool, because umount(8) returns before the pool
/// is closed.
pub fn find(path: &Path) -> anyhow::Result<Option<DiscoveredServer>> {
    let asked = Instant::now();
    let mut patience = PollBackoff::default();
    let mut server = None;
    loop {
        let found = find_now(path)?;
        let Some(ending) = found.as_ref().filter(|found| found.is_ending()) else {
            if let Some(server) = server.flatten() {
                // The locks of the server are released only when its process ends.
                wait_for_process(&server, CLOSE_TIME.saturating_sub(asked.elapsed()));
            }
            return Ok(found);
        };
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

/// Returns a pidfd, because a PID may be reused. `None` for this process.
fn descriptor_of(pid: Option<i32>) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid?).filter(|pid| *pid != rustix::process::getpid())?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn wait_for_process(process: &OwnedFd, time: Duration) {
    let time = Timespec::try_from(time).ok();
    // If the process does not end, the caller's attempt to lock the pool reports that.
    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], time.as_ref());
}
