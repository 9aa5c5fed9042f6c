//! Copying what a pool holds to a device that takes the place of a member. The cursor is in the
//! labels (JO2), and `storage::volume` keeps it.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Budget, Job, JobProgress, Step};
use crate::error::{FsError, FsResult};
use crate::vnode::Core;

/// Copies to the member in a slot.
#[derive(Debug)]
pub(crate) struct Copying {
    slot: usize,
    name: String,
    /// MiB that are copied; the labels may know of fewer.
    done_mib: AtomicU32,
}

impl Copying {
    /// Returns the job that copies to the joining member in `slot`, of which `done_mib` are there.
    pub(crate) fn new(slot: usize, device: &str, done_mib: u32) -> Copying {
        let name = format!("copying the pool to {device}");
        Copying { slot, name, done_mib: AtomicU32::new(done_mib) }
    }
}

impl Job for Copying {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        let volume = &core.store.volume;
        // Failed, or replaced by another: nothing is left to be copied.
        if volume.joining().is_none_or(|(slot, _)| slot != self.slot) {
            return Ok(Step::Done);
        }
        let from = self.done_mib.load(Ordering::Relaxed);
        let copied = volume.copy_step(self.slot, from, budget.units);
        let to = copied.map_err(|error| FsError::Io { cause: error.to_string() })?;
        self.done_mib.store(to, Ordering::Relaxed);
        match volume.joining() {
            None => Ok(Step::Done),
            Some(_) if to == from => Ok(Step::Wait),
            Some(_) => Ok(Step::Again),
        }
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let (_, copied) = core.store.volume.joining()?;
        let done = u64::from(self.done_mib.load(Ordering::Relaxed));
        Some(JobProgress { done, total: u64::from(copied.total_mib) })
    }
}
