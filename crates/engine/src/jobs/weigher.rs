//! Weighs the snapshots of a full pool, so that an out-of-space error can name the ones to delete.
//! Keeps no state in the pool.

use super::{Job, StepBudget, StepOutcome};
use crate::error::FsResult;
use crate::file::Core;

#[derive(Debug)]
pub(crate) struct Weigher;

impl Job for Weigher {
    fn name(&self) -> &'static str {
        "weigher"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        for _ in 0..budget.units {
            match core.space_reclaim().weigh_some() {
                Ok(true) => {}
                Ok(false) => return Ok(StepOutcome::Wait),
                // Unreadable snapshots are not weighed, and block nothing else.
                Err(error) => {
                    core.store.journal.check_alive()?;
                    tracing::debug!(%error, "snapshots are not weighed");
                    return Ok(StepOutcome::Wait);
                }
            }
        }
        Ok(StepOutcome::Again)
    }
}
