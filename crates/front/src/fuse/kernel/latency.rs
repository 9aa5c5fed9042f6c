//! Keeps processors from halting while a client works.
//!
//! A message wakes a thread twice, and on a virtual machine waking a processor that has halted
//! takes 20 to 35 us: several times what the message itself does. Linux lets a process ask for a
//! bound of that latency: while it holds /dev/cpu_dma_latency open with 0 written to it, idle
//! processors look for work in place of halting (Documentation/power/pm_qos_interface.rst). That
//! takes power, or time of the machine below; so it is asked for only while many messages come, and
//! given back at once when they cease.
//!
//! # Concurrency
//!
//! A thread of its own looks at the count of answered messages. It sleeps for longer the longer
//! there are none.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::fuse::Server;
use crate::fuse::options::CpuLatency;

/// Where latency is asked for.
const DEVICE: &str = "/dev/cpu_dma_latency";
/// What says how processors idle; absent where they can only halt.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

/// How often the count is looked at while messages come.
const TICK: Duration = Duration::from_millis(5);
/// How often when there have been none for long.
const TICK_MAX: Duration = Duration::from_millis(160);
/// Messages of a tick from which on it is asked for: 5,000 a second, a fifth of what one client
/// sends while processors halt.
const MESSAGES_MIN: u64 = 25;
/// Ticks with fewer after which it is given back.
const QUIET_TICKS_MAX: u32 = 4;
/// Most processors with which it is asked for by itself: all of them look for work.
const PROCESSORS_MAX: usize = 8;

/// Returns whether to ask at all, and why.
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

/// Returns whether the processor says that it is one of a virtual machine (x86: CPUID.1:ECX\[31\]).
fn is_virtual_machine() -> bool {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
}

/// When latency is asked for.
#[derive(Debug, Default)]
struct Policy {
    is_asked: bool,
    quiet_ticks: u32,
}

impl Policy {
    /// Hears how many messages came in how many ticks; returns whether to ask.
    fn heard(&mut self, messages: u64, ticks: u32) -> bool {
        if messages >= MESSAGES_MIN.saturating_mul(u64::from(ticks)) {
            (self.is_asked, self.quiet_ticks) = (true, 0);
        } else {
            self.quiet_ticks = self.quiet_ticks.saturating_add(ticks);
            self.is_asked &= self.quiet_ticks <= QUIET_TICKS_MAX;
        }
        self.is_asked
    }

    /// Returns how long to wait until the count is looked at again, in ticks.
    fn ticks(&self, had_messages: bool, last: u32) -> u32 {
        let most = u32::try_from(TICK_MAX.as_millis() / TICK.as_millis()).unwrap_or(1);
        if self.is_asked || had_messages { 1 } else { (last * 2).min(most) }
    }
}

/// Looks after the latency of a mount until it is dropped.
pub(super) struct Latency {
    end: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
}

impl Latency {
    /// Begins to look at how many messages `server` answers, if `choice` says so.
    pub(super) fn start(choice: CpuLatency, server: &Arc<Server>) -> io::Result<Latency> {
        if let Err(reason) = is_wanted(choice) {
            tracing::debug!(reason, "processors may halt while clients work");
            return Ok(Latency { end: None, watch: None });
        }
        let (end, ended) = channel();
        let server = Arc::clone(server);
        let watch = thread::Builder::new().name("fuse-latency".to_owned()).spawn(move || {
            let (mut policy, mut ticks, mut before) = (Policy::default(), 1, server.answered());
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
        Ok(Latency { end: Some(end), watch: Some(watch) })
    }
}

impl Drop for Latency {
    fn drop(&mut self) {
        self.end = None;
        if let Some(watch) = self.watch.take() {
            // It only reads a count.
            let _ = watch.join();
        }
    }
}

/// Asks that no processor halts, until what is returned is closed.
fn ask() -> io::Result<File> {
    let mut file = OpenOptions::new().write(true).open(DEVICE)?;
    // An `s32` of microseconds.
    file.write_all(&[0; 4])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: latency is asked for while a client works without pause, and given back soon.
    #[test]
    fn it_is_asked_for_while_many_messages_come() {
        let mut policy = Policy::default();
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
        let policy = Policy::default();
        let mut ticks = 1;
        let waits: Vec<u32> = (0..7)
            .map(|_| {
                ticks = policy.ticks(false, ticks);
                ticks
            })
            .collect();
        assert_eq!(waits, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(policy.ticks(true, 32), 1);
        assert_eq!(Policy { is_asked: true, quiet_ticks: 0 }.ticks(false, 1), 1);
    }

    #[test]
    fn it_is_not_asked_for_where_it_was_not_wanted() {
        assert_eq!(is_wanted(CpuLatency::Off), Err("as the mount was told"));
        assert_eq!(is_wanted(CpuLatency::On), Ok(()));
    }
}
