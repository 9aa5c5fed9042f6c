//! Freeing what a deleted fileset held. The cursor is in the fileset's entry (JO2), and is durable
//! each time that it has gone on by half a hundredth: after a crash no more than a hundredth is
//! done again, or one step, of some thousand inodes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Budget, Job, JobProgress, Step};
use crate::error::FsResult;
use crate::fileset::deletion::Progress;
use crate::vnode::Core;

/// Parts of a deletion, each of which is made durable when it is done.
const PARTS: u64 = 200;

/// Frees the deleted fileset in a slot.
#[derive(Debug)]
pub(crate) struct Deletion {
    slot: u32,
    name: String,
    /// How far it was when it was made durable last.
    durable: AtomicU64,
}

impl Deletion {
    /// Returns the job that frees the deleted fileset in `slot`, which was called `fileset`.
    pub(crate) fn new(slot: u32, fileset: &str) -> Deletion {
        let name = format!("freeing the deleted fileset {fileset}");
        Deletion { slot, name, durable: AtomicU64::new(0) }
    }

    /// Makes the cursor durable if it has gone on far enough.
    fn keep(&self, core: &Core) -> FsResult<()> {
        let Some(JobProgress { done, total }) = self.progress(core) else { return Ok(()) };
        let gone_on = done.saturating_sub(self.durable.load(Ordering::Relaxed));
        if gone_on == 0 || gone_on < total / PARTS {
            return Ok(());
        }
        core.store.journal.commit_all()?;
        self.durable.store(done, Ordering::Relaxed);
        Ok(())
    }
}

impl Job for Deletion {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        for _ in 0..budget.units {
            if core.free_deleted(self.slot)? == Progress::Gone {
                return Ok(Step::Done);
            }
            self.keep(core)?;
        }
        Ok(Step::Again)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let index = core.filesets.table.lock(&core.store).ok()?;
        let node = index.node(self.slot)?;
        let (done, total) = node.freed()?;
        Some(JobProgress { done, total })
    }
}
