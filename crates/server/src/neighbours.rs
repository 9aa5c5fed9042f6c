//! The identity of this machine and process for heartbeats, and the liveness test of other
//! processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use format::heartbeat::{MACHINE_NAME_BYTES, PoolHolder};
use rustix::io::Errno;
use rustix::process::Pid;
use storage::heartbeat::{HeartbeatWriter, HostProcesses};

/// How often the heartbeat thread checks whether a heartbeat is due.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub(crate) struct LinuxHostProcesses;

impl HostProcesses for LinuxHostProcesses {
    fn own(&self) -> PoolHolder {
        let process = std::process::id();
        PoolHolder {
            machine_id: hex_of("/etc/machine-id"),
            boot_id: hex_of("/proc/sys/kernel/random/boot_id"),
            process,
            process_started: started_of("self").unwrap_or(0),
            process_namespace: namespace(),
            lock: None,
            machine_name: machine_name(),
        }
    }

    fn is_alive(&self, other: &PoolHolder) -> Option<bool> {
        if other.boot_id == [0; 16] || other.process_namespace != namespace() {
            return None;
        }
        let process = Pid::from_raw(i32::try_from(other.process).ok()?)?;
        if rustix::process::test_kill_process(process) == Err(Errno::SRCH) {
            return Some(false);
        }
        // A reused process id has a later start time. If /proc hides other users' processes, the
        // answer is unknown.
        let started = started_of(&other.process.to_string())?;
        Some(started == other.process_started && has_threads(other.process))
    }

    fn wait_ns(&self, nanoseconds: u64) {
        wait(Duration::from_nanos(nanoseconds));
    }

    fn begun(&self, pulse: &Arc<HeartbeatWriter>) {
        let pulse = Arc::downgrade(pulse);
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        if let Err(error) = thread.spawn(move || beat(&pulse)) {
            tracing::error!(%error, "no thread for the heartbeat: the background work writes it");
        }
    }
}

/// Writes heartbeats until the pool is closed. A write error ends the thread. The pool's background
/// work then reports the error.
fn beat(pulse: &Weak<HeartbeatWriter>) {
    while let Some(pulse) = pulse.upgrade() {
        if pulse.beat().is_err() {
            return;
        }
        drop(pulse);
        wait(LOOK);
    }
}

fn wait(time: Duration) {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Returns the first 32 hexadecimal digits of a file as a number, or zero.
fn hex_of(path: &str) -> [u8; 16] {
    let text = fs::read_to_string(path).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    let mut number = [0; 16];
    for (byte, pair) in number.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16).unwrap_or(0);
    }
    number
}

/// Returns the fields of a `stat` file after the process name (proc(5)).
fn fields_of(path: &str) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
    // The name may contain any character, even parentheses.
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

pub(crate) fn started_of(process: &str) -> Option<u64> {
    // Field 22. The process id and the name precede the first field here.
    fields_of(&format!("/proc/{process}/stat"))?.get(19)?.parse().ok()
}

/// Returns whether a process has a running thread. A zombie has none.
pub(crate) fn has_threads(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fields_of(thread.path().join("stat").to_str()?)).any(|fields| {
        let state = fields.first().map_or("X", String::as_str);
        !["Z", "X"].contains(&state)
    })
}

fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

fn machine_name() -> [u8; MACHINE_NAME_BYTES] {
    let told = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut name = [0; MACHINE_NAME_BYTES];
    for (to, from) in name.iter_mut().zip(told.trim_ascii_end()) {
        *to = *from;
    }
    name
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_is_there_and_one_that_began_at_another_time_is_not() {
        let own = LinuxHostProcesses.own();
        assert_ne!(own.boot_id, [0; 16]);
        assert_ne!(own.process_started, 0);
        assert_eq!(LinuxHostProcesses.is_alive(&own), Some(true));
        let later = PoolHolder { process_started: own.process_started + 1, ..own };
        assert_eq!(LinuxHostProcesses.is_alive(&later), Some(false));
        let elsewhere = PoolHolder { process_namespace: 1, ..own };
        assert_eq!(LinuxHostProcesses.is_alive(&elsewhere), None);
    }

    /// Goal: a killed process counts as gone, even before its parent reaps it.
    #[test]
    fn a_killed_process_is_gone() {
        let mut child =
            Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep");
        let process = child.id();
        let process_started = started_of(&process.to_string()).expect("it is there");
        let holder = PoolHolder { process, process_started, ..LinuxHostProcesses.own() };
        assert_eq!(LinuxHostProcesses.is_alive(&holder), Some(true));
        child.kill().expect("it is ours");
        while LinuxHostProcesses.is_alive(&holder) != Some(false) {
            std::thread::yield_now();
        }
        child.wait().expect("it is ours");
        assert_eq!(LinuxHostProcesses.is_alive(&holder), Some(false));
    }
}
