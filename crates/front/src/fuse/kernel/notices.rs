//! Tells the kernel what others have changed, from a thread of its own (SH2).

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::encode::attributes_notice;
use super::exchange::Replies;
use crate::fuse::Server;
use crate::shared::Viewer;

/// Tells `replies` of each change that the viewer of `server` hears of, until the viewer ends.
/// Returns at once where the mount is alone.
pub fn tell_changes(server: &Server, replies: &dyn Replies) {
    let Some(viewer) = server.viewer() else { return };
    viewer.tell_each(&mut |ino| replies.notify(&attributes_notice(server.node_id(ino))));
}

/// The thread that does so, until this is dropped.
pub(super) struct Notices {
    viewer: Arc<Viewer>,
    thread: Option<JoinHandle<()>>,
}

impl Notices {
    /// Begins, where the mount is not alone.
    pub(super) fn start(
        server: &Arc<Server>,
        replies: Arc<dyn Replies>,
    ) -> io::Result<Option<Notices>> {
        let Some(viewer) = server.viewer().map(Arc::clone) else { return Ok(None) };
        let server = Arc::clone(server);
        let thread = thread::Builder::new().name("fuse-notices".to_owned());
        let thread = thread.spawn(move || tell_changes(&server, &*replies))?;
        Ok(Some(Notices { viewer, thread: Some(thread) }))
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.viewer.end();
        // The connection has ended, so the kernel keeps it no longer. A bug in it was logged.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
