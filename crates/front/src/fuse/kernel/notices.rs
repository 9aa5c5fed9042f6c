//! The thread that sends the kernel invalidations of files changed by other fronts (SH2).

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use super::encode::attributes_notice;
use super::exchange::Replies;
use crate::fuse::FuseServer;
use crate::shared::Viewer;

/// Sends `replies` an invalidation for each change that reaches the viewer of `server`, until the
/// viewer ends. Returns at once if the mount is not shared.
pub fn tell_changes(server: &FuseServer, replies: &dyn Replies) {
    let Some(viewer) = server.viewer() else { return };
    viewer.tell_each(&mut |ino| replies.notify(&attributes_notice(server.node_id(ino))));
}

pub(super) struct Notices {
    viewer: Arc<Viewer>,
    thread: Option<JoinHandle<()>>,
}

impl Notices {
    pub(super) fn start(
        server: &Arc<FuseServer>,
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
        // The connection has ended, so the kernel does not block the thread. A panic was logged.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
