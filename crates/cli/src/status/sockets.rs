//! The sockets of a server: one of administrators, and one of others where they may have a role.
//!
//! ```text
//!   KEY.sock         0600   root and the user who runs the server: all
//!   KEY.users.sock   0666   anybody: what his role gives him. Where there is a configuration
//! ```
//!
//! Each has a queue of its own, which the kernel keeps, and a thread that empties it: whoever
//! connects again and again to the second keeps nobody from the first.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context;
use rustix::net::Shutdown;

use super::others::Others;
use super::{ACCEPT_PAUSE, AT_ONCE, Answer, Answering, LONG_MAX, OF_USERS, Question, Served};
use super::{ask, bug, connect, peer_of, send, serve};
use crate::backend::OpenPool;
use crate::control::Peer;
use crate::places::Places;
use crate::run_directory;
use crate::transfer::Transfers;

/// What answers for one server, until it is dropped.
pub(crate) struct StatusServer {
    _administrators: Listening,
    _others: Option<Listening>,
}

impl StatusServer {
    /// Listens at `path`, and beside it to others where they may have a role; replaces sockets that
    /// nobody answers.
    pub(crate) fn start(
        path: PathBuf,
        served: Served,
        pool: Arc<dyn OpenPool>,
    ) -> anyhow::Result<StatusServer> {
        let is_open = served.roles.is_some();
        let answering = Arc::new(Answering {
            served: Arc::new(served),
            pool,
            transfers: Transfers::default(),
            long: Places::new(LONG_MAX),
            others: Others::default(),
        });
        let own = Peer::own();
        let of_users = path.with_extension(OF_USERS.trim_start_matches('.'));
        let for_others = Arc::clone(&answering);
        let administrators = Listening::start(path, "status", move |stream| {
            serve(stream, &answering, (peer_of(stream)?, own))
        })?;
        run_directory::set_socket(&administrators.path, false)?;
        if !is_open {
            // A server of before that had a configuration, and was killed.
            let _ = std::fs::remove_file(of_users);
            return Ok(StatusServer { _administrators: administrators, _others: None });
        }
        let others = Listening::start(of_users, "status-users", move |stream| {
            for_others.serve_other(stream, (peer_of(stream)?, own))
        })?;
        run_directory::set_socket(&others.path, true)?;
        Ok(StatusServer { _administrators: administrators, _others: Some(others) })
    }
}

/// A socket and the thread that accepts who comes there.
pub(super) struct Listening {
    path: PathBuf,
    /// What `path` is, while it is ours.
    file: Option<FileNumber>,
    listener: Arc<UnixListener>,
    has_ended: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at `path`, replacing a socket that nobody answers.
    pub(super) fn start(
        path: PathBuf,
        name: &str,
        serve: impl Fn(&UnixStream) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Listening> {
        // A queue that is full is somebody's.
        let is_someones = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
        if connect(&path, AT_ONCE).map_or_else(is_someones, |_| true) {
            if let Ok(Answer::Status(status)) = ask(&path, &Question::Status)
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
        Ok(Listening { path, file, listener, has_ended, listening: Some(listening) })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        // By the socket, not by its path: that may be gone, or another server's by now.
        let is_shut = rustix::net::shutdown(&*self.listener, Shutdown::Both).is_ok();
        // The number is not given to another file: the listener still holds its own.
        if self.file.is_some() && file_at(&self.path) == self.file {
            let _ = std::fs::remove_file(&self.path);
        }
        // A thread that could not be told goes with the process.
        if let Some(listening) = self.listening.take().filter(|_| is_shut) {
            let _ = listening.join();
        }
    }
}

/// Device and inode of a file.
type FileNumber = (u64, u64);

fn file_at(path: &Path) -> Option<FileNumber> {
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
        // The end of one client is not that of the others.
        let done = stream.map_err(anyhow::Error::from).and_then(|stream| {
            catch_unwind(AssertUnwindSafe(|| serve(&stream)))
                .unwrap_or_else(|_| send(&stream, &bug()))
        });
        if let Err(error) = done {
            // The client's affair.
            tracing::debug!(%error, "a status client was dropped");
        }
    }
}
