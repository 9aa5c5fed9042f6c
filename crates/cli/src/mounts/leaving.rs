//! Mounts that the kernel has ended, until their server has let go of them. umount(2) returns when
//! the connection is ended; the threads of the server hear of it later, and then make durable what
//! was written.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use format::fileset::{FilesetName, NamePart};

use super::Mounts;
use crate::backend::BackendError;
use crate::status::CLOSING;
use crate::uses::{Claim, Use};

/// How long a mount that the kernel has ended may take to be let go of, before the fileset is taken
/// to be in use: its last writes are made durable, by a device that may be slow.
const LEAVE_TIME: Duration = Duration::from_secs(60);
/// How often that is looked for.
const LEAVE_POLL: Duration = Duration::from_millis(10);
/// No more mounts are served: the pool is being closed, or is closed by now.
#[derive(Debug, thiserror::Error)]
#[error("{}: {CLOSING}", pool.display())]
pub(crate) struct Closing {
    pool: PathBuf,
}

impl Closing {
    /// Returns that of a pool.
    pub(crate) fn of(pool: &Path) -> Closing {
        Closing { pool: pool.to_owned() }
    }
}

impl Mounts {
    /// Whether no mount is left and no more come: the pool is being closed.
    pub(crate) fn is_over(&self) -> bool {
        let list = self.lock();
        list.is_closing && !list.is_any()
    }

    /// Whether none of the mounts answers any more and none is coming: a server that has nothing
    /// else to do is about to close the pool.
    pub(crate) fn is_ending(&self) -> bool {
        let list = self.lock();
        let is_left = list.mounted.iter().any(|it| !it.session.has_gone());
        list.coming.is_empty() && !is_left
    }

    /// Whether a mount that the kernel has ended is still to be let go of.
    fn is_leaving(&self) -> bool {
        let list = self.lock();
        list.leaving > 0 || list.mounted.iter().any(|it| it.session.has_gone())
    }

    /// Claims a fileset; waits for a mount of it that the kernel has ended, within [`LEAVE_TIME`]:
    /// umount(2) returns before its server knows.
    pub(super) fn claim(
        &self,
        name: Option<&FilesetName>,
        clone: Option<&NamePart>,
        how: &Use,
    ) -> Result<Claim, BackendError> {
        let asked = Instant::now();
        loop {
            // Before the claim: a mount that leaves meanwhile is no reason to give up.
            let waits = self.is_leaving() && asked.elapsed() < LEAVE_TIME;
            match self.uses.claim(name, clone, how.clone()) {
                Err(_) if waits => std::thread::park_timeout(LEAVE_POLL),
                claimed => return claimed,
            }
        }
    }
}
