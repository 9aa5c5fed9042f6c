//! What a remount changes of a server: whether it makes changes, and renews access times.
//!
//! # Invariants
//!
//! - RM1: A server of a mount that was made read-only refuses each change with `EROFS`, until it is
//!   made writable by the same way, or the kernel's table of mounts has it as writable: `mount -i
//!   -o remount,rw` asks no server, and the kernel sends no change by a mount that it has as
//!   read-only.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::vnode::api::FileSystem;

use super::MountOptions;
use super::mount::{MountError, sync};
use super::mountpoint;
use super::protocol::Request;

/// What is set now.
#[derive(Debug, Default)]
pub(super) struct Switches {
    is_read_only: AtomicBool,
    keeps_atime: AtomicBool,
    keeps_atime_of_directories: AtomicBool,
    /// The device number of the mount, once it was remounted.
    device: Mutex<Option<String>>,
}

impl Switches {
    /// Sets whether access times stay as they are.
    pub(super) fn set_atime(&self, of_all: bool, of_directories: bool) {
        self.keeps_atime.store(of_all, Ordering::Release);
        self.keeps_atime_of_directories.store(of_directories, Ordering::Release);
    }

    /// Whether nothing that is read has its access time renewed.
    pub(super) fn keeps_atime(&self) -> bool {
        self.keeps_atime.load(Ordering::Relaxed) || self.is_read_only.load(Ordering::Relaxed)
    }

    /// Whether no directory that is listed has.
    pub(super) fn keeps_atime_of_directories(&self) -> bool {
        self.keeps_atime() || self.keeps_atime_of_directories.load(Ordering::Relaxed)
    }

    /// RM1: whether `request` is refused, for the mount is read-only.
    pub(super) fn refuses(&self, request: &Request<'_>) -> bool {
        if !self.is_read_only.load(Ordering::Acquire) || !request.is_change() {
            return false;
        }
        let is_read_only = !self.is_writable_in_kernel();
        self.is_read_only.store(is_read_only, Ordering::Release);
        is_read_only
    }

    fn is_writable_in_kernel(&self) -> bool {
        let device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = mountpoint::mounts().unwrap_or_default();
        let is_it = |entry: &&mountpoint::MountEntry| Some(&entry.device) == device.as_ref();
        mounts.iter().find(is_it).is_some_and(|entry| !entry.is_read_only_for_all())
    }
}

/// What changes a session that is served.
pub struct Remounter {
    pub(super) switches: Arc<Switches>,
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) device: Option<String>,
}

impl Remounter {
    /// Sets whether the session makes changes and renews access times. Whatever was accepted is
    /// durable when it makes none any more.
    ///
    /// # Errors
    ///
    /// What was accepted last may not be durable; it makes no changes all the same.
    pub fn set(&self, options: &MountOptions) -> Result<(), MountError> {
        let switches = &self.switches;
        let mut device = switches.device.lock().unwrap_or_else(PoisonError::into_inner);
        device.clone_from(&self.device);
        drop(device);
        switches.set_atime(options.has_no_atime(), options.has_no_diratime());
        switches.is_read_only.store(options.is_read_only, Ordering::Release);
        if options.is_read_only { sync(self.fs.as_ref()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::NodeId;
    use super::*;

    const UNLINK: Request<'_> = Request::Unlink { parent: NodeId(1), name: b"a" };

    /// Goal: a server of a mount that was made read-only makes no change (RM1), but where the
    /// kernel has the mount as writable. Method: the device number of a mount that is writable, if
    /// there is any.
    #[test]
    fn a_read_only_server_makes_no_change_until_the_kernel_sends_some() {
        let switches = Switches::default();
        assert!(!switches.refuses(&UNLINK));
        switches.is_read_only.store(true, Ordering::Release);
        assert!(switches.refuses(&UNLINK) && !switches.refuses(&Request::StatFs));
        assert!(switches.keeps_atime() && switches.keeps_atime_of_directories());
        let mounts = mountpoint::mounts().expect("Linux tells");
        let Some(writable) = mounts.into_iter().find(|entry| !entry.is_read_only_for_all()) else {
            return;
        };
        *switches.device.lock().expect("no bug") = Some(writable.device);
        assert!(!switches.refuses(&UNLINK) && !switches.keeps_atime());
    }
}
