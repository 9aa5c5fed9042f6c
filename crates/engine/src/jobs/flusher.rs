//! The flusher: aged changes are committed, the log and the dirty pages are kept short, and the
//! answers of data writes are collected that an idle pool does not wait for.

use runtime::planted::{self, Planted};

use super::{Budget, Job, Step};
use crate::error::FsResult;
use crate::vnode::Core;

/// It has nothing to keep: how old a change is, the files and the journal know.
#[derive(Debug)]
pub(crate) struct Flusher;

impl Job for Flusher {
    fn name(&self) -> &'static str {
        "flusher"
    }

    fn step(&self, core: &Core, now_ns: u64, _budget: Budget) -> FsResult<Step> {
        let aged_ns = now_ns.saturating_sub(core.options.commit_interval_ns);
        core.store.journal.collect_idle_data()?;
        core.segments.seal_full();
        core.segments.tidy();
        core.store.alloc.count_more();
        core.reap_all_doomed();
        let mut flushed = Ok(());
        if !planted::is(Planted::AgedNotCommitted) {
            // What is put into the journal now is as old as what was put there then.
            let is_any = core.is_dirty_since(aged_ns) && !planted::is(Planted::AgedTwice);
            flushed = core.flush_dirty(aged_ns);
            // What is in the journal does not wait for a file that cannot be put there.
            match is_any {
                true => core.store.journal.commit_all()?,
                false => core.store.journal.commit_aged(aged_ns)?,
            }
        }
        if core.store.journal.wants_checkpoint() {
            core.store.journal.checkpoint()?;
        }
        flushed.map(|()| Step::Wait)
    }
}
