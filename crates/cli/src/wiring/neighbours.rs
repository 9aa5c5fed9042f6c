//! What this machine says of itself in a heartbeat, and knows of its processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use format::heartbeat::{Holder, MACHINE_NAME_BYTES};
use rustix::io::Errno;
use rustix::process::Pid;
use storage::heartbeat::{Neighbours, Pulse};

/// How often the thread of a heartbeat looks whether one is due.
const LOOK: Duration = Duration::from_millis(500);

/// This process on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThisMachine;

impl Neighbours for ThisMachine {
    fn own(&self) -> Holder {
        let process = std::process::id();
        Holder {
            machine_id: hex_of("/etc/machine-id"),
            boot_id: hex_of("/proc/sys/kernel/random/boot_id"),
            process,
            process_started: started_of("self").unwrap_or(0),
            process_namespace: namespace(),
            lock: None,
            machine_name: machine_name(),
        }
    }

    fn is_alive(&self, other: &Holder) -> Option<bool> {
        if other.boot_id == [0; 16] || other.process_namespace != namespace() {
            return None;
        }
        let process = Pid::from_raw(i32::try_from(other.process).ok()?)?;
        if rustix::process::test_kill_process(process) == Err(Errno::SRCH) {
            return Some(false);
        }
        // A number that somebody else has by now began later. Where /proc hides the processes of
        // others it cannot be seen.
        let started = started_of(&other.process.to_string())?;
        Some(started == other.process_started && has_threads(other.process))
    }

    fn wait_ns(&self, nanoseconds: u64) {
        wait(Duration::from_nanos(nanoseconds));
    }

    fn begun(&self, pulse: &Arc<Pulse>) {
        let pulse = Arc::downgrade(pulse);
        let thread = std::thread::Builder::new().name("heartbeat".to_owned());
        if let Err(error) = thread.spawn(move || beat(&pulse)) {
            tracing::error!(%error, "no thread for the heartbeat: the background work writes it");
        }
    }
}

/// Writes the heartbeat for as long as the pool is there. That it cannot be written the pool learns
/// when it ticks.
fn beat(pulse: &Weak<Pulse>) {
    while let Some(pulse) = pulse.upgrade() {
        if pulse.beat().is_err() {
            return;
        }
        drop(pulse);
        wait(LOOK);
    }
}

/// Waits for as long as that; nobody wakes this thread before.
fn wait(time: Duration) {
    let begun = Instant::now();
    while let Some(left) = time.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::park_timeout(left);
    }
}

/// Returns the number of 32 hexadecimal digits in a file; zero if there is none.
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

/// Returns the fields of a process or thread behind its name, the state first (proc(5)).
fn fields_of(path: &str) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
    // The name may have any character, parentheses too.
    let (_, fields) = text.rsplit_once(") ")?;
    Some(fields.split(' ').map(str::to_owned).collect())
}

/// Returns when a process began, in ticks since the system did.
pub(crate) fn started_of(process: &str) -> Option<u64> {
    // Field 22, of which two are before the state.
    fields_of(&format!("/proc/{process}/stat"))?.get(19)?.parse().ok()
}

/// Whether a process has a thread that runs: of one that has ended, and that its parent has not
/// asked for, the number alone is left.
pub(crate) fn has_threads(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.filter_map(|thread| fields_of(thread.path().join("stat").to_str()?)).any(|fields| {
        let state = fields.first().map_or("X", String::as_str);
        !["Z", "X"].contains(&state)
    })
}

/// Returns the namespace in which the numbers of processes count here.
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
        let own = ThisMachine.own();
        assert_ne!(own.boot_id, [0; 16]);
        assert_ne!(own.process_started, 0);
        assert_eq!(ThisMachine.is_alive(&own), Some(true));
        let later = Holder { process_started: own.process_started + 1, ..own };
        assert_eq!(ThisMachine.is_alive(&later), Some(false));
        let elsewhere = Holder { process_namespace: 1, ..own };
        assert_eq!(ThisMachine.is_alive(&elsewhere), None);
    }

    /// Goal: a process that was killed is gone, whether or not its parent has asked for it.
    #[test]
    fn a_killed_process_is_gone() {
        let mut child =
            Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep");
        let process = child.id();
        let process_started = started_of(&process.to_string()).expect("it is there");
        let holder = Holder { process, process_started, ..ThisMachine.own() };
        assert_eq!(ThisMachine.is_alive(&holder), Some(true));
        child.kill().expect("it is ours");
        while ThisMachine.is_alive(&holder) != Some(false) {
            std::thread::yield_now();
        }
        child.wait().expect("it is ours");
        assert_eq!(ThisMachine.is_alive(&holder), Some(false));
    }
}
