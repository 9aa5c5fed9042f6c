//! Mounts that the kernel has ended and the server has not yet released. The kernel ends the
//! connection and umount(2) returns, while the server still makes the last writes durable.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use format::fileset::{FilesetName, NamePart};

use super::PoolMounts;
use crate::backend::BackendError;
use crate::messages::CLOSING;
use crate::uses::{FilesetUse, FilesetUseGuard};

/// Longest wait for the release of an ended mount, whose last writes may go to a slow device.
const LEAVE_TIME: Duration = Duration::from_secs(60);
const LEAVE_POLL: Duration = Duration::from_millis(10);
/// Error for a mount request while the pool is being closed, or after.
#[derive(Debug, thiserror::Error)]
#[error("{}: {CLOSING}", pool.display())]
pub struct PoolClosingError {
    pool: PathBuf,
}

impl PoolClosingError {
    pub(crate) fn of(pool: &Path) -> PoolClosingError {
        PoolClosingError { pool: pool.to_owned() }
    }
}

impl PoolMounts {
    /// Whether the pool is being closed: no mount is left, and further ones are refused.
    pub(crate) fn is_over(&self) -> bool {
        let list = self.lock();
        list.is_closing && !list.is_any()
    }

    /// Whether no mount is live or in hand-over. A server with no other work closes the pool then.
    pub(crate) fn is_ending(&self) -> bool {
        let list = self.lock();
        let is_left = list.mounted.iter().any(|it| !it.session.has_gone());
        list.coming.is_empty() && !is_left
    }

    fn is_leaving(&self) -> bool {
        let list = self.lock();
        list.leaving > 0 || list.mounted.iter().any(|it| it.session.has_gone())
    }

    /// Claims a fileset. Waits up to [`LEAVE_TIME`] for ended mounts to be released: after
    /// umount(2) returns, the fileset may still be claimed for a moment.
    pub(super) fn claim(
        &self,
        name: Option<&FilesetName>,
        snapshot: Option<&NamePart>,
        how: &FilesetUse,
    ) -> Result<FilesetUseGuard, BackendError> {
        let asked = Instant::now();
        loop {
            // Read before the claim, because a mount that is released between the two is a reason
            // to retry.
            let waits = self.is_leaving() && asked.elapsed() < LEAVE_TIME;
            match self.uses.claim(name, snapshot, how.clone()) {
                Err(_) if waits => std::thread::park_timeout(LEAVE_POLL),
                claimed => return claimed,
            }
        }
    }
}
