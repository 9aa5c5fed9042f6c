//! The flusher: commits aged changes, bounds the log and the dirty pages by checkpoints, and
//! collects the completions of data writes, which in an idle pool no other thread does.

use super::{Job, StepBudget, StepOutcome};
use crate::error::FsResult;
use crate::file::Core;

/// Keeps no state: files and the journal record the age of changes.
#[derive(Debug)]
pub(crate) struct Flusher;

impl Job for Flusher {
    fn name(&self) -> &'static str {
        "flusher"
    }

    fn step(&self, core: &Core, now_ns: u64, _budget: StepBudget) -> FsResult<StepOutcome> {
        let aged_ns = now_ns.saturating_sub(core.options.commit_interval_ns);
        core.store.journal.collect_idle_data()?;
        core.segments.seal_full();
        core.segments.tidy();
        core.store.alloc.count_more();
        core.reap_all_doomed();
        // The changes of aged files enter the journal only at this flush, so all classes are
        // committed.
        let is_any = core.writeback().is_dirty_since(aged_ns);
        let flushed = core.writeback().flush_dirty(aged_ns);
        // The journal is committed even if a file cannot be flushed.
        match is_any {
            true => core.store.journal.commit_all()?,
            false => core.store.journal.commit_aged(aged_ns)?,
        }
        if core.store.journal.wants_checkpoint() {
            core.store.journal.checkpoint()?;
        }
        flushed.map(|()| StepOutcome::Wait)
    }
}
