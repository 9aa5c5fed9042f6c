//! The job that counts quota usage after quotas are switched on, and writes the ends of graces. The
//! cursor is in the quota container (JO2), so the count resumes after a mount.

use super::{Job, StepBudget, StepOutcome};
use crate::error::{FsError, FsResult};
use crate::file::Core;

#[derive(Debug)]
pub(crate) struct QuotaCountJob;

impl Job for QuotaCountJob {
    fn name(&self) -> &'static str {
        "quotas"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        for _ in 0..budget.units {
            match core.quotas().tend_quotas() {
                Ok(true) => {}
                // Not failures of the job: a full pool, and a fileset deleted or restored since.
                Ok(false)
                | Err(
                    FsError::NoSpace | FsError::Stale | FsError::QuotaExceeded | FsError::TryLater,
                ) => {
                    return Ok(StepOutcome::Wait);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(StepOutcome::Again)
    }
}
