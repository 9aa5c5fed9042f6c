//! Copies of a mount: other mounts of the same FUSE connection, in this mount namespace or another
//! (a container, `unshare -m`). As long as there is one, the kernel keeps the connection, and the
//! server goes on, whatever became of the directory that it was mounted on.
//!
//! All of it is asked of /proc, never of a mount. Processes that may not be looked at are left out.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;

use crate::holders::process;
use crate::named::is_source_of;
use crate::output::path_as_text;

/// Users that are named; of more the first.
const USERS_MAX: usize = 8;

/// One mount of the connection.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Copy {
    /// Where it is, in its namespace.
    #[serde(serialize_with = "path_as_text")]
    pub(crate) directory: PathBuf,
    /// A process of that namespace.
    pub(crate) process: i32,
    /// Whether the namespace is that of this process.
    pub(crate) is_here: bool,
    /// The kernel's number of it.
    #[serde(skip)]
    id: u64,
}

impl Copy {
    /// Says where it is, and who keeps it.
    pub(crate) fn text(&self) -> String {
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

/// Finds every mount of the pool `source` whose device is `device` (`major:minor`).
pub(crate) fn of(device: &str, source: &str) -> Vec<Copy> {
    let namespace = |pid: &str| std::fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|n| n.ino());
    let own = namespace("self").ok();
    // One process speaks for its namespace: the first, which is most often the one that made it.
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
            // The number alone may be another mount's by now.
            entry.device == device
                && is_source_of(&entry.source, source)
                && entry.kind == MOUNT_TYPE
        };
        let ours = mounts.into_iter().filter(is_ours);
        copies.extend(ours.map(|MountEntry { id, directory, .. }| Copy {
            directory,
            process,
            is_here: own == Some(namespace),
            id,
        }));
    }
    copies
}

/// Finds the processes that use files by way of `copies`, or of a mount of that number that was
/// `detached` here.
pub(crate) fn users(copies: &[Copy], detached: Option<u64>) -> Vec<i32> {
    let is_one = |id: u64| detached == Some(id) || copies.iter().any(|copy| copy.id == id);
    let own = i32::try_from(std::process::id()).ok();
    let uses = |&pid: &i32| Some(pid) != own && mounts_in_use(pid).into_iter().any(is_one);
    processes().into_iter().filter(uses).take(USERS_MAX).collect()
}

/// Returns the numbers of the mounts in which a process has files open, its directory or its root.
fn mounts_in_use(pid: i32) -> Vec<u64> {
    let mut ids = Vec::new();
    for fd in std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten() {
        ids.extend(mount_id(&fd.path()));
    }
    for place in ["cwd", "root"] {
        // To open it so asks nothing of whoever serves it.
        let path = format!("/proc/{pid}/{place}");
        if let Ok(opened) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            let number = std::os::fd::AsRawFd::as_raw_fd(&opened);
            ids.extend(mount_id(&PathBuf::from(format!("/proc/self/fdinfo/{number}"))));
        }
    }
    ids
}

/// Reads the line `mnt_id:` of proc(5).
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
