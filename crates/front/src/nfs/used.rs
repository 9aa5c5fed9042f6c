//! The file systems used by the requests of one thread.

use std::sync::Arc;

use engine::api::FileSystem;

use super::export::Export;
use super::protocol::NfsStatus;
use super::turns::ThreadPermit;

pub(super) struct ExportUse {
    exports: Vec<Arc<Export>>,
    turns: usize,
    pub(super) turn: Option<ThreadPermit>,
}

impl ExportUse {
    pub(super) fn of(turns: usize) -> ExportUse {
        ExportUse { exports: Vec::new(), turns, turn: None }
    }

    pub(super) fn begin(&mut self, export: &Arc<Export>) -> Result<(), NfsStatus> {
        self.turn = Some(export.turns().take(self.turns).ok_or(NfsStatus::JUKEBOX)?);
        if !self.exports.iter().any(|used| is_same(used.fs(), export.fs())) {
            self.exports.push(Arc::clone(export));
        }
        Ok(())
    }

    /// Runs the deferred work of these file systems, after the replies were sent. The caller must
    /// hold no lock, as a device may block this thread.
    pub(super) fn run_deferred_work(self) {
        for export in self.exports {
            let fs = export.fs();
            if !fs.has_deferred_work() {
                continue;
            }
            // TU1: if no permit is free, another thread with a permit does the work later.
            let Some(_turn) = export.turns().take_free(self.turns) else { continue };
            fs.run_deferred_work();
        }
    }
}

pub(super) fn is_same(one: &Arc<dyn FileSystem>, other: &Arc<dyn FileSystem>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
