//! Freeing what a deleted fileset held. The cursor is in the fileset's entry (JO2).

use super::{Budget, Job, JobProgress, Step};
use crate::error::FsResult;
use crate::fileset::deletion::Progress;
use crate::vnode::Core;

/// Frees the deleted fileset in a slot.
#[derive(Debug)]
pub(crate) struct Deletion {
    slot: u32,
    name: String,
}

impl Deletion {
    /// Returns the job that frees the deleted fileset in `slot`, which was called `fileset`.
    pub(crate) fn new(slot: u32, fileset: &str) -> Deletion {
        Deletion { slot, name: format!("freeing the deleted fileset {fileset}") }
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
