//! Keeps CPUs out of deep idle states while a client works.
//!
//! Each message wakes a thread twice. On a virtual machine waking a halted CPU takes 20 to 35 us,
//! several times the cost of the message. While /dev/cpu_dma_latency is open with 0 written to it,
//! idle CPUs poll instead (Documentation/power/pm_qos_interface.rst). That costs power, or time of
//! the host, so it lasts only while many messages come.
//!
//! # Concurrency
//!
//! A separate thread samples the count of answered messages.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::fuse::FuseServer;
use crate::fuse::options::CpuLatency;

const DEVICE: &str = "/dev/cpu_dma_latency";
/// The kernel's idle driver. Absent where CPUs can only halt.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

const TICK: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_millis(160);
/// Messages per tick that turn polling on: 5,000 a second, a fifth of one client's rate with
/// halting CPUs.
const MESSAGES_MIN: u64 = 25;
const QUIET_TICKS_MAX: u32 = 4;
/// Most CPUs for automatic use, since all of them poll.
const PROCESSORS_MAX: usize = 8;

fn is_wanted(choice: CpuLatency) -> Result<(), &'static str> {
    match choice {
        CpuLatency::Off => Err("as the mount was told"),
        CpuLatency::On => Ok(()),
        CpuLatency::Auto if std::fs::metadata(IDLE_DRIVER).is_err() => {
            Err("the kernel has no other way to idle than to halt")
        }
        CpuLatency::Auto if !is_virtual_machine() => Err("this is no virtual machine"),
        CpuLatency::Auto => {
            let count = thread::available_parallelism().map_or(usize::MAX, std::num::NonZero::get);
            if count <= PROCESSORS_MAX { Ok(()) } else { Err("there are many processors") }
        }
    }
}

/// Returns whether the CPU reports a hypervisor (x86: CPUID.1:ECX\[31\]).
fn is_virtual_machine() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

#[derive(Debug, Default)]
struct CpuLatencyPolicy {
    is_asked: bool,
    quiet_ticks: u32,
}

impl CpuLatencyPolicy {
    /// Takes the number of messages in the last `ticks` ticks. Returns whether CPUs should poll.
    fn heard(&mut self, messages: u64, ticks: u32) -> bool {
        if messages >= MESSAGES_MIN.saturating_mul(u64::from(ticks)) {
            (self.is_asked, self.quiet_ticks) = (true, 0);
        } else {
            self.quiet_ticks = self.quiet_ticks.saturating_add(ticks);
            self.is_asked &= self.quiet_ticks <= QUIET_TICKS_MAX;
        }
        self.is_asked
    }

    fn ticks(&self, had_messages: bool, last: u32) -> u32 {
        let most = u32::try_from(TICK_MAX.as_millis() / TICK.as_millis()).unwrap_or(1);
        if self.is_asked || had_messages { 1 } else { (last * 2).min(most) }
    }
}

/// Controls the idle latency for one mount until dropped.
pub(super) struct CpuLatencyControl {
    end: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

impl CpuLatencyControl {
    pub(super) fn start(
        choice: CpuLatency,
        server: &Arc<FuseServer>,
    ) -> io::Result<CpuLatencyControl> {
        if let Err(reason) = is_wanted(choice) {
            tracing::debug!(reason, "processors may halt while clients work");
            return Ok(CpuLatencyControl { end: None, watch: None });
        }
        let (end, ended) = channel();
        let server = Arc::clone(server);
        let watch = thread::Builder::new().name("fuse-latency".to_owned()).spawn(move || {
            let (mut policy, mut ticks, mut before) =
                (CpuLatencyPolicy::default(), 1, server.answered());
            let mut asked: Option<File> = None;
            while ended.recv_timeout(TICK * ticks) == Err(RecvTimeoutError::Timeout) {
                let now = server.answered();
                let messages = now.wrapping_sub(before);
                before = now;
                match (policy.heard(messages, ticks), &asked) {
                    (true, None) => match ask() {
                        Ok(file) => asked = Some(file),
                        Err(error) => {
                            tracing::debug!(%error, "{DEVICE}: processors may halt");
                            return;
                        }
                    },
                    (false, Some(_)) => asked = None,
                    _ => {}
                }
                ticks = policy.ticks(messages > 0, ticks);
            }
        })?;
        Ok(CpuLatencyControl { end: Some(end), watch: Some(watch) })
    }
}

impl Drop for CpuLatencyControl {
    fn drop(&mut self) {
        self.end = None;
        if let Some(watch) = self.watch.take() {
            // The thread only reads a counter.
            let _ = watch.join();
        }
    }
}

/// Keeps CPUs polling until the returned file is closed.
fn ask() -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(DEVICE)?;
    // The latency limit: an `s32` of microseconds.
    file.write_all(&[0; 4])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: polling is on while a client works without pause, and off soon after.
    #[test]
    fn it_is_asked_for_while_many_messages_come() {
        let mut policy = CpuLatencyPolicy::default();
        assert!(!policy.heard(MESSAGES_MIN - 1, 1), "somebody looks around");
        assert!(policy.heard(MESSAGES_MIN, 1));
        for _ in 0..QUIET_TICKS_MAX {
            assert!(policy.heard(0, 1), "a client may think for a moment");
        }
        assert!(!policy.heard(0, 1));
        assert!(!policy.heard(MESSAGES_MIN, 2), "it is the rate that counts");
        assert!(policy.heard(2 * MESSAGES_MIN, 2));
    }

    #[test]
    fn an_idle_mount_is_looked_at_seldom() {
        let policy = CpuLatencyPolicy::default();
        let mut ticks = 1;
        let waits: Vec<u32> = (0..7)
            .map(|_| {
                ticks = policy.ticks(false, ticks);
                ticks
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(policy.ticks(true, 32), 1);
        assert_eq!(CpuLatencyPolicy { is_asked: true, quiet_ticks: 0 }.ticks(false, 1), 1);
    }

    #[test]
    fn it_is_not_asked_for_where_it_was_not_wanted() {
        assert_eq!(is_wanted(CpuLatency::Off), Err("as the mount was told"));
        assert_eq!(is_wanted(CpuLatency::On), Ok(()));
    }
}
