//! A request to mount, as a client sends it.

#[cfg(test)]
use std::os::unix::ffi::OsStrExt;
#[cfg(test)]
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Bounds on the texts of a mounter's request, which are logged. The directory is bounded by the
/// kernel's PATH_MAX.
const DIRECTORY_BYTES_MAX: usize = 4096;
const WORDS_BYTES_MAX: usize = 1024;

/// A request to mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSpec {
    /// Fileset, `None` for the one with which the pool was opened.
    pub fileset: Option<String>,
    /// Snapshot of the fileset.
    pub snapshot: Option<String>,
    /// Mount point in the client's namespace, as bytes.
    pub directory: Vec<u8>,
    /// Options in the form of mount(8).
    pub options: String,
    /// Serving threads.
    pub threads: usize,
    /// Microseconds of busy polling before a thread sleeps.
    pub poll_us: u64,
    /// Whether the kernel uses its write-back cache.
    pub has_writeback_cache: bool,
    /// `auto`, `uring` or `dev`.
    pub transport: String,
    /// Whether CPUs are kept out of deep idle states: `auto`, `on` or `off`.
    pub cpu_latency: String,
}

impl MountSpec {
    pub(crate) fn check_lengths(&self) -> Result<(), String> {
        let names = [self.fileset.as_deref(), self.snapshot.as_deref(), Some(&self.options)];
        let is_long = names.into_iter().flatten().any(|words| words.len() > WORDS_BYTES_MAX);
        if is_long || self.directory.len() > DIRECTORY_BYTES_MAX {
            return Err("the names and options of a mount are too long".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
impl MountSpec {
    pub(crate) fn plain(fileset: Option<&str>, directory: &Path) -> MountSpec {
        MountSpec {
            fileset: fileset.map(str::to_owned),
            snapshot: None,
            directory: directory.as_os_str().as_bytes().to_vec(),
            options: String::new(),
            threads: 1,
            poll_us: 0,
            has_writeback_cache: false,
            transport: "dev".to_owned(),
            cpu_latency: "off".to_owned(),
        }
    }
}
