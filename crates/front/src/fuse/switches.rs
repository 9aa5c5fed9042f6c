//! Server settings that a remount changes: read-only, and updates of access times.
//!
//! # Invariants
//!
//! - RM1: The server of a mount made read-only refuses each change with `EROFS`, until a remount
//!   makes it writable or the kernel's mount table shows it as writable. The mount table covers
//!   `mount -i -o remount,rw`, which informs no server. The kernel sends no changes through a
//!   read-only mount.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::api::FileSystem;

use super::mount::{MountError, sync};
use super::protocol::FuseRequest;
use super::{MountOptions, mountpoint};

#[derive(Debug, Default)]
pub(super) struct Switches {
    is_read_only: AtomicBool,
    keeps_atime: AtomicBool,
    keeps_atime_of_directories: AtomicBool,
    /// Device number of the mount, after the first remount.
    device: Mutex<Option<String>>,
}

impl Switches {
    pub(super) fn set_atime(&self, of_all: bool, of_directories: bool) {
        self.keeps_atime.store(of_all, Ordering::Release);
        self.keeps_atime_of_directories.store(of_directories, Ordering::Release);
    }

    pub(super) fn keeps_atime(&self) -> bool {
        self.keeps_atime.load(Ordering::Relaxed) || self.is_read_only.load(Ordering::Relaxed)
    }

    pub(super) fn keeps_atime_of_directories(&self) -> bool {
        self.keeps_atime() || self.keeps_atime_of_directories.load(Ordering::Relaxed)
    }

    /// RM1: returns whether `request` is refused on a read-only mount.
    pub(super) fn refuses(&self, request: &FuseRequest<'_>) -> bool {
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

/// Changes the settings of a served session.
pub struct Remounter {
    pub(super) switches: Arc<Switches>,
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) device: Option<String>,
}

impl Remounter {
    /// Sets read-only mode and updates of access times. On a change to read-only, makes all
    /// accepted changes durable.
    ///
    /// # Errors
    ///
    /// The last changes may not be durable. The session is read-only anyway.
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

    const UNLINK: FuseRequest<'_> = FuseRequest::Unlink { parent: NodeId(1), name: b"a" };

    /// Goal: a server made read-only refuses changes, unless the kernel's mount is writable (RM1).
    #[test]
    fn a_read_only_server_makes_no_change_until_the_kernel_sends_some() {
        let switches = Switches::default();
        assert!(!switches.refuses(&UNLINK));
        switches.is_read_only.store(true, Ordering::Release);
        assert!(switches.refuses(&UNLINK) && !switches.refuses(&FuseRequest::StatFs));
        assert!(switches.keeps_atime() && switches.keeps_atime_of_directories());
        let mounts = mountpoint::mounts().expect("Linux tells");
        let Some(writable) = mounts.into_iter().find(|entry| !entry.is_read_only_for_all()) else {
            return;
        };
        *switches.device.lock().expect("no bug") = Some(writable.device);
        assert!(!switches.refuses(&UNLINK) && !switches.keeps_atime());
    }
}
