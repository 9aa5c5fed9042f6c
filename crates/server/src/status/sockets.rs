//! Sockets of a server: one for administrators and, with a configuration, one for other users.
//!
//! ```text
//!   KEY.sock         0600   root and the user who runs the server: all requests
//!   KEY.users.sock   0666   all users, within their roles. Only with a configuration
//! ```
//!
//! Each socket has its own kernel queue and its own accept thread, so that clients on the users'
//! socket cannot delay administrators.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use format::superblock::verify_pool_name;
use rustix::net::Shutdown;

use super::others::UserRequestLimiter;
use super::{
    ACCEPT_PAUSE, AT_ONCE, LONG_MAX, OF_USERS, ServerContext, StatusService, ask, bug, connect,
    peer_of, send, serve, take_name,
};
use crate::backend::OpenPool;
use crate::peer::Peer;
use crate::places::ConcurrencyLimit;
use crate::run_directory;
use crate::transfer::Transfers;
use control::wire::{WireAnswer, WireRequest};

/// Status service of one pool. Drop ends it.
pub struct StatusServer {
    _administrators: StatusListener,
    _others: Option<StatusListener>,
}

impl StatusServer {
    /// Listens at `path` and, if roles exist, at the users' socket beside it. Replaces sockets of
    /// killed servers.
    pub fn start(
        path: PathBuf,
        served: ServerContext,
        pool: Arc<dyn OpenPool>,
    ) -> anyhow::Result<StatusServer> {
        let is_open = served.roles.is_some();
        let name = pool.status()["label"].as_str().unwrap_or_default().to_owned();
        // Without the record, a scan finds the pool.
        let _ = verify_pool_name(&name).is_ok() && take_name(&name, &served.pool);
        let answering = Arc::new(StatusService {
            served: Arc::new(served),
            pool,
            transfers: Transfers::default(),
            long: ConcurrencyLimit::new(LONG_MAX),
            others: UserRequestLimiter::default(),
        });
        let own = Peer::own();
        let of_users = path.with_extension(OF_USERS.trim_start_matches('.'));
        let for_others = Arc::clone(&answering);
        let administrators = StatusListener::start(path, "status", move |stream| {
            serve(stream, &answering, (peer_of(stream)?, own))
        })?;
        run_directory::set_socket(&administrators.path, false)?;
        if !is_open {
            // A killed server with a configuration may have left a users' socket.
            let _ = std::fs::remove_file(of_users);
            return Ok(StatusServer { _administrators: administrators, _others: None });
        }
        let others = StatusListener::start(of_users, "status-users", move |stream| {
            for_others.serve_other(stream, (peer_of(stream)?, own))
        })?;
        run_directory::set_socket(&others.path, true)?;
        Ok(StatusServer { _administrators: administrators, _others: Some(others) })
    }
}

pub(super) struct StatusListener {
    path: PathBuf,
    /// Device and inode of the socket file. Drop removes the file only if it is still this one.
    file: Option<SocketFileNumber>,
    listener: Arc<UnixListener>,
    has_ended: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl StatusListener {
    pub(super) fn start(
        path: PathBuf,
        name: &str,
        serve: impl Fn(&UnixStream) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<StatusListener> {
        // A socket with a full queue has a live server.
        let is_someones = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
        if connect(&path, AT_ONCE).map_or_else(is_someones, |_| true) {
            if let Ok(WireAnswer::Status(status)) = ask(&path, &WireRequest::Status)
                && let Some(name) = status["pool"]["named_by"].as_str()
            {
                anyhow::bail!(
                    "another pool was opened by this path, and goes on without that device: \
                     unmount it, and mount it as {name}, before this one is mounted (process {})",
                    status["server"]["pid"]
                );
            }
            anyhow::bail!("{} answers already: the pool is mounted", path.display());
        }
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        let file = file_at(&path);
        let (listener, has_ended) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let (socket, ended) = (Arc::clone(&listener), Arc::clone(&has_ended));
        let listening = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || listen(&socket, &ended, serve))?;
        Ok(StatusListener { path, file, listener, has_ended, listening: Some(listening) })
    }
}

impl Drop for StatusListener {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        // Shut down by descriptor, because the path may be gone or lead to another server's socket.
        let is_shut = rustix::net::shutdown(&*self.listener, Shutdown::Both).is_ok();
        // The listener keeps the inode in use, so its number cannot belong to another file.
        if self.file.is_some() && file_at(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
        // If the shutdown failed, the thread was not woken, and ends with the process.
        if let Some(listening) = self.listening.take().filter(|_| is_shut) {
            let _ = listening.join();
        }
    }
}

type SocketFileNumber = (u64, u64);

fn file_at(path: &Path) -> Option<SocketFileNumber> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn listen(
    listener: &UnixListener,
    has_ended: &AtomicBool,
    serve: impl Fn(&UnixStream) -> anyhow::Result<()>,
) {
    for stream in listener.incoming() {
        if has_ended.load(Ordering::Acquire) {
            return;
        }
        if stream.is_err() {
            std::thread::park_timeout(ACCEPT_PAUSE);
        }
        let done = stream.map_err(anyhow::Error::from).and_then(|stream| {
            catch_unwind(AssertUnwindSafe(|| serve(&stream)))
                .unwrap_or_else(|_| send(&stream, &bug()))
        });
        if let Err(error) = done {
            tracing::debug!(%error, "a status client was dropped");
        }
    }
}
