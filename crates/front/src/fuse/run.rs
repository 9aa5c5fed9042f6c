//! Serving a mount until it is unmounted or a signal arrives.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::mount::{MountError, MountedSession, UnmountOutcome};

/// Grace period for open files after a signal. A service manager kills after 90 s, which leaves
/// time for the last sync.
const DRAIN_TIME: Duration = Duration::from_secs(20);

const POLL_TIME: Duration = Duration::from_millis(50);

/// Reason for the end of service. Everything is durable in each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// The directory was unmounted.
    Unmounted,
    /// A signal arrived, and the directory was unmounted.
    Signal(i32),
    /// A signal arrived. Files were still open after 20 s or at a second signal, and their users
    /// get errors.
    Cut(i32),
}

/// Receiver of SIGTERM, SIGINT, SIGQUIT and SIGHUP (unless ignored at start, as with nohup(1)).
/// Create it before mounting: an earlier signal would leave a dead mount.
#[derive(Debug)]
pub struct StopSignals {
    arrived: Receiver<i32>,
    handle: Handle,
    listener: Option<JoinHandle<()>>,
}

impl StopSignals {
    /// Catches the signals in the whole process.
    pub fn listen() -> std::io::Result<StopSignals> {
        let mut signals = Signals::new([SIGTERM, SIGINT, SIGQUIT])?;
        if !is_ignored(SIGHUP)? {
            signals.add_signal(SIGHUP)?;
        }
        let handle = signals.handle();
        let (sender, arrived) = channel();
        let listener = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                if sender.send(signal).is_err() {
                    return;
                }
            }
        })?;
        Ok(StopSignals { arrived, handle, listener: Some(listener) })
    }

    /// Catches SIGHUP even if it was ignored at start.
    pub fn catch_hangup(&self) -> std::io::Result<()> {
        self.handle.add_signal(SIGHUP)
    }

    /// Waits for a signal, at most `time`.
    #[must_use]
    pub fn wait_within(&self, time: Duration) -> Option<i32> {
        self.arrived.recv_timeout(time).ok()
    }

    /// Waits for a signal. Returns `None` if none can arrive.
    #[must_use]
    pub fn wait(&self) -> Option<i32> {
        self.arrived.recv().ok()
    }
}

/// Returns whether this process ignores `signal` (proc(5): `SigIgn`, a bit each from 1 on).
fn is_ignored(signal: i32) -> std::io::Result<bool> {
    let status = std::fs::read("/proc/self/status")?;
    let ignored = status.split(|&byte| byte == b'\n').find_map(|line| {
        let digits = std::str::from_utf8(line.strip_prefix(b"SigIgn:")?).ok()?;
        u64::from_str_radix(digits.trim(), 16).ok()
    });
    Ok(ignored.is_some_and(|ignored| ignored & (1 << (signal - 1)) != 0))
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(listener) = self.listener.take() {
            // The listener only forwards and cannot have panicked.
            let _ = listener.join();
        }
    }
}

/// Serves `session` until it is unmounted or a signal arrives, then makes everything durable.
pub fn run(session: MountedSession, signals: StopSignals) -> Result<EndCause, MountError> {
    let end = wait(session, &signals.arrived);
    drop(signals);
    end
}

fn wait(session: MountedSession, arrived: &Receiver<i32>) -> Result<EndCause, MountError> {
    let signal = loop {
        match arrived.recv_timeout(POLL_TIME) {
            Ok(signal) => break signal,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                if session.is_ended() {
                    return session.wait().map(|()| EndCause::Unmounted);
                }
            }
        }
    };
    tracing::info!(signal, directory = %session.directory().display(), "unmounting");
    if session.unmount()? == UnmountOutcome::Detached {
        tracing::warn!(
            seconds = DRAIN_TIME.as_secs(),
            "files are still in use; waiting for their users"
        );
    }
    let mut waited = Duration::ZERO;
    while !session.is_ended() {
        let is_impatient = arrived.recv_timeout(POLL_TIME).is_ok();
        waited += POLL_TIME;
        if is_impatient || waited >= DRAIN_TIME {
            session.sync()?;
            return Ok(EndCause::Cut(signal));
        }
    }
    session.wait().map(|()| EndCause::Signal(signal))
}
