//! Mounts of one FUSE connection in all mount namespaces (bind mounts, containers, `unshare -m`).
//! Any of these copies keeps the connection and the server alive after the original is unmounted.
//!
//! All facts come from /proc, never from a mount, because a dead mount would block. Unreadable
//! processes are skipped.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::holders::process;
use crate::named::is_source_of;
use control::text::path_as_text;

const USERS_MAX: usize = 8;

/// One mount of the connection.
#[derive(Clone, Debug, Serialize)]
pub struct NamespaceMount {
    /// Mount point in the mount's own namespace.
    #[serde(serialize_with = "path_as_text")]
    pub directory: PathBuf,
    /// A process in the mount's namespace.
    pub(crate) process: i32,
    /// Whether the mount is in this process's namespace.
    pub is_here: bool,
    #[serde(skip)]
    id: u64,
}

impl NamespaceMount {
    /// Returns the mount point and, for another namespace, how to unmount it.
    pub fn text(&self) -> String {
        let directory = self.directory.display();
        match self.is_here {
            true => format!("{directory}"),
            false => format!(
                "{directory} in the mount namespace of {} (`nsenter -t {} -m umount {directory}`)",
                process(self.process),
                self.process
            ),
        }
    }
}

/// Finds every mount of the pool `source` with the device number `device` (`major:minor`).
pub fn of(device: &str, source: &str) -> Vec<NamespaceMount> {
    let namespace = |pid: &str| std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|n| n.ino());
    let own = namespace("self").ok();
    // One process stands for each namespace: the first found, which is most often its creator.
    let mut speakers: BTreeMap<u64, i32> = BTreeMap::new();
    for pid in processes() {
        if let Ok(namespace) = namespace(&pid.to_string()) {
            speakers.entry(namespace).or_insert(pid);
        }
    }
    let mut copies = Vec::new();
    for (namespace, process) in speakers {
        let mounts = mountpoint::mounts_of(process).unwrap_or_default();
        let is_ours = |entry: &MountEntry| {
            // The device number alone does not suffice, because it may be reused.
            entry.device == device
                && is_source_of(&entry.source, source)
                && entry.kind == MOUNT_TYPE
        };
        let ours = mounts.into_iter().filter(is_ours);
        copies.extend(ours.map(|MountEntry { id, directory, .. }| NamespaceMount {
            directory,
            process,
            is_here: own == Some(namespace),
            id,
        }));
    }
    copies
}

/// Finds the processes that use files in `copies`, or in the mount with the ID `detached`.
pub fn users(copies: &[NamespaceMount], detached: Option<u64>) -> Vec<i32> {
    let is_one = |id: u64| detached == Some(id) || copies.iter().any(|copy| copy.id == id);
    let own = i32::try_from(std::process::id()).ok();
    let uses = |&pid: &i32| Some(pid) != own && mounts_in_use(pid).into_iter().any(is_one);
    processes().into_iter().filter(uses).take(USERS_MAX).collect()
}

fn mounts_in_use(pid: i32) -> Vec<u64> {
    let mut ids = Vec::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
        ids.extend(mount_id(&fd.path()));
    }
    for place in ["cwd", "root"] {
        // `O_PATH` sends no request to the file system's server, which may hang.
        let path = format!("/proc/{pid}/{place}");
        if let Ok(opened) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            let number = std::os::fd::AsRawFd::as_raw_fd(&opened);
            ids.extend(mount_id(&PathBuf::from(format!("/proc/self/fdinfo/{number}"))));
        }
    }
    ids
}

fn mount_id(fdinfo: &std::path::Path) -> Option<u64> {
    let text = std::fs::read_to_string(fdinfo).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

fn processes() -> Vec<i32> {
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<i32> =
        names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}
