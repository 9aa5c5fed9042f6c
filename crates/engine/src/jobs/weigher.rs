//! In a full pool, what clones hold is counted, so that who is refused space learns which to
//! delete. It keeps nothing in the pool.

use super::{Budget, Job, Step};
use crate::error::FsResult;
use crate::vnode::Core;

/// Weighs the clones of a full pool.
#[derive(Debug)]
pub(crate) struct Weigher;

impl Job for Weigher {
    fn name(&self) -> &'static str {
        "weigher"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        for _ in 0..budget.units {
            match core.weigh_some() {
                Ok(true) => {}
                Ok(false) => return Ok(Step::Wait),
                // What can't be read keeps nobody from anything else.
                Err(error) => {
                    core.store.journal.check_alive()?;
                    tracing::debug!(%error, "clones are not weighed");
                    return Ok(Step::Wait);
                }
            }
        }
        Ok(Step::Again)
    }
}
