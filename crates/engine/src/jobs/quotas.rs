//! Quotas of users, groups and projects are counted once they are switched on, and the ends of
//! graces are written. The cursor is in the container of the quotas (JO2): every mount goes on from
//! it without being told.

use super::{Budget, Job, Step};
use crate::error::{FsError, FsResult};
use crate::vnode::Core;

/// Counts, and writes ends of graces.
#[derive(Debug)]
pub(crate) struct QuotaKeeper;

impl Job for QuotaKeeper {
    fn name(&self) -> &'static str {
        "quotas"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        for _ in 0..budget.units {
            match core.tend_quotas() {
                Ok(true) => {}
                // What is full, deleted or restored meanwhile is none of the pool's failures.
                Ok(false)
                | Err(
                    FsError::NoSpace | FsError::Stale | FsError::QuotaExceeded | FsError::TryLater,
                ) => {
                    return Ok(Step::Wait);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Step::Again)
    }
}
