//! The job that frees a deleted fileset or snapshot. The cursor is in the entry of what is freed
//! (JO2), and is made durable 200 times. A crash repeats at most a hundredth of the work, or one
//! step of some thousand inodes.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Job, JobProgress, StepBudget, StepOutcome};
use crate::error::FsResult;
use crate::file::Core;
use crate::fileset_table::deletion::DeletionProgress;

/// Parts of a deletion, each made durable when done.
const PARTS: u64 = 200;

#[derive(Debug)]
pub(crate) struct Deletion {
    slot: u32,
    name: String,
    durable: AtomicU64,
}

impl Deletion {
    pub(crate) fn new(slot: u32, fileset: &str) -> Deletion {
        let name = format!("freeing the deleted fileset {fileset}");
        Deletion { slot, name, durable: AtomicU64::new(0) }
    }

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

    fn step(&self, core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        for _ in 0..budget.units {
            if core.snapshotter().free_deleted(self.slot)? == DeletionProgress::Gone {
                return Ok(StepOutcome::Done);
            }
            self.keep(core)?;
        }
        Ok(StepOutcome::Again)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let index = core.filesets.table.lock(&core.store).ok()?;
        let node = index.node(self.slot)?;
        let (done, total) = node.freed()?;
        Some(JobProgress { done, total })
    }
}
