//! The file systems that the requests of one thread have used.

use std::sync::Arc;

use engine::vnode::api::FileSystem;

use super::export::Export;
use super::protocol::Status;
use super::turns::Turn;

/// The file systems that the requests of one thread have used.
pub(super) struct Used {
    exports: Vec<Arc<Export>>,
    /// How many turns a pool has.
    turns: usize,
    /// That of the request that is being served.
    pub(super) turn: Option<Turn>,
}

impl Used {
    /// Returns a start, of a thread that may take one of so many turns of each pool.
    pub(super) fn of(turns: usize) -> Used {
        Used { exports: Vec::new(), turns, turn: None }
    }

    pub(super) fn begin(&mut self, export: &Arc<Export>) -> Result<(), Status> {
        self.turn = Some(export.turns().take(self.turns).ok_or(Status::JUKEBOX)?);
        if !self.exports.iter().any(|used| is_same(used.fs(), export.fs())) {
            self.exports.push(Arc::clone(export));
        }
        Ok(())
    }

    /// Runs the deferred work of these file systems, after the answers were sent. It does not delay
    /// requests to other file systems, and holds no lock: a device may block this thread.
    pub(super) fn run_deferred_work(self) {
        for export in self.exports {
            let fs = export.fs();
            if !fs.has_deferred_work() {
                continue;
            }
            // TU1. Where all turns are taken, the thread that has one does it later.
            let Some(_turn) = export.turns().take_free(self.turns) else { continue };
            fs.run_deferred_work();
        }
    }
}

pub(super) fn is_same(one: &Arc<dyn FileSystem>, other: &Arc<dyn FileSystem>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}
