//! Putting a file system under a directory, and taking it away.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use engine::vnode::api::{FileSystem, FilesetUuid, FsError};

use super::counts::FuseCounts;
use super::kernel::stop::Stop;
use super::kernel::{Connection, KernelTransport};
use super::mountpoint::{self, Mountpoint};
use super::switches::{Remounter, Switches};
use super::transport::{Transport, TransportError, TransportUsed};
use super::{MountOptions, Server};
use crate::shared::{Shares, Teller, Told, Viewer};

/// Bytes that the kernel may read ahead of a stream: four requests, so that the server and its
/// device have some to work on while the reader takes what has come. As much as btrfs reads ahead.
const READAHEAD_BYTES_MAX: u32 = 4 << 20;

/// Why a directory was not mounted or not unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// Make the directory first.
    #[error("{} is not a directory: create it first", directory.display())]
    NotDirectory {
        /// The path given.
        directory: PathBuf,
    },
    /// Unmount it first, or choose another directory.
    #[error(
        "{source_path} is mounted on {} already: run `holdfast unmount {}` first",
        directory.display(), directory.display()
    )]
    AlreadyMounted {
        /// The directory.
        directory: PathBuf,
        /// The pool that is there.
        source_path: String,
    },
    /// Load the kernel's module, pass the device into the container, or get the right to open it.
    #[error("/dev/fuse: {cause}: {}", step_to_fuse(cause))]
    NoFuse {
        /// Why it cannot be opened.
        cause: std::io::Error,
    },
    /// The kernel refused; the cause says why.
    #[error("cannot mount {}: {cause}", directory.display())]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// What the kernel or the helper said.
        cause: std::io::Error,
    },
    /// The mount is still there.
    #[error("cannot unmount {}: {cause}", directory.display())]
    NotUnmounted {
        /// The directory.
        directory: PathBuf,
        /// What the kernel or the helper said.
        cause: std::io::Error,
    },
    /// The kernel could not be served to the end.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Unmounted, but what was written last may not be durable.
    #[error("the last changes may not be durable: {0}")]
    Sync(FsError),
}

/// How a mount went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody used it; the session ends at once.
    Clean,
    /// Gone from the tree, but some process holds files; the session ends with the last of them.
    Detached,
}

/// A mounted directory that is being served.
///
/// Dropping it unmounts, lazily where it is busy, and does not wait.
#[derive(Debug)]
pub struct MountedSession {
    directory: PathBuf,
    device: Option<String>,
    fs: FsHandle,
    counts: Arc<FuseCounts>,
    viewer: Option<Arc<Viewer>>,
    serving: Option<JoinHandle<Result<(), TransportError>>>,
    transport: Arc<TransportUsed>,
    connection: Connection,
    options: MountOptions,
    switches: Arc<Switches>,
    has_replaced_dead: bool,
    /// Ends what is not ours to unmount.
    stop: Option<Arc<Stop>>,
}

struct FsHandle(Arc<dyn FileSystem>);

impl std::fmt::Debug for FsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileSystem")
    }
}

/// Mounts `fs` on `directory` and serves it in threads of its own.
///
/// A dead mount that is in the way is detached first. When this returns, the mount answers. One of
/// `shares` hears what others change, and tells them what it does; without any it is alone.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    directory: &Path,
    options: &MountOptions,
    shares: Option<&Arc<Shares>>,
) -> Result<MountedSession, MountError> {
    let (directory, has_replaced_dead) = prepare(directory)?;
    let refused = |cause| MountError::Refused { directory: directory.clone(), cause };
    let server = server_of(&fs, fs.main_fileset(), options, shares).map_err(refused)?;
    let transport = KernelTransport::mount(&directory, options, &server).map_err(refused)?;
    let device = mountpoint::mounted_on(&directory).ok().flatten().map(|entry| entry.device);
    if let Some(device) = &device {
        raise_readahead(device);
    }
    let place = (directory.clone(), device);
    let mut session = begin(fs, server, transport, (place, options)).map_err(refused)?;
    session.has_replaced_dead = has_replaced_dead;
    Ok(session)
}

/// A directory that is mounted and whose connection nobody serves yet: every request waits.
#[derive(Debug)]
pub struct Attached {
    /// The directory, as an absolute path.
    pub directory: PathBuf,
    /// Device number of what is mounted, as `major:minor`; `None`: not known.
    pub device: Option<String>,
    /// The connection.
    pub connection: OwnedFd,
    /// Whether a mount whose server had died was detached to make room.
    pub has_replaced_dead: bool,
}

/// Mounts `directory` for a server in another process, which gets the connection. A dead mount that
/// is in the way is detached first.
pub fn attach(directory: &Path, options: &MountOptions) -> Result<Attached, MountError> {
    let (directory, has_replaced_dead) = prepare(directory)?;
    let refused = |cause| MountError::Refused { directory: directory.clone(), cause };
    let connection = super::kernel::attach_only(&directory, options).map_err(refused)?;
    let number = mountpoint::mounted_on(&directory).ok().flatten().map(|entry| entry.device);
    if let Some(number) = &number {
        raise_readahead(number);
    }
    Ok(Attached { directory, device: number, connection, has_replaced_dead })
}

/// Serves a fileset of `fs` on a connection that another process has mounted ([`attach`]), in
/// threads of its own; `shares` as of [`mount()`].
pub fn serve_attached(
    fs: Arc<dyn FileSystem>,
    fileset: FilesetUuid,
    attached: Attached,
    options: &MountOptions,
    shares: Option<&Arc<Shares>>,
) -> Result<MountedSession, MountError> {
    let Attached { directory, device, connection, .. } = attached;
    let refused = |cause| MountError::Refused { directory: directory.clone(), cause };
    let server = server_of(&fs, fileset, options, shares).map_err(refused)?;
    let transport = KernelTransport::take(connection, options, &server).map_err(refused)?;
    let place = (directory.clone(), device);
    begin(fs, server, transport, (place, options)).map_err(refused)
}

/// Returns the directory as an absolute path, with room for a mount, and whether a dead one was
/// taken away.
fn prepare(directory: &Path) -> Result<(PathBuf, bool), MountError> {
    let refused = |cause| MountError::Refused { directory: directory.to_path_buf(), cause };
    let has_replaced_dead = make_room(directory)?;
    let directory = mountpoint::absolute(directory).map_err(refused)?;
    std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|cause| MountError::NoFuse { cause })?;
    Ok((directory, has_replaced_dead))
}

fn server_of(
    fs: &Arc<dyn FileSystem>,
    fileset: FilesetUuid,
    options: &MountOptions,
    shares: Option<&Arc<Shares>>,
) -> std::io::Result<Arc<Server>> {
    let wrong = std::io::Error::other::<FsError>;
    let server = match shares {
        None => Server::of(Arc::clone(fs), fileset).map_err(wrong)?,
        Some(shares) => {
            let viewer = shares.join(fs.root_of(fileset).map_err(wrong)?);
            let teller = Teller::for_viewer(Arc::clone(fs), shares, &viewer);
            Server::of(teller, fileset).map_err(wrong)?.shared(viewer)
        }
    };
    let server = server.keeping_atime(options.has_no_atime(), options.has_no_diratime());
    let server = match &options.acts_as {
        Some((uid, gid, groups)) => server.acting_as(*uid, *gid, groups.clone()),
        None => server,
    };
    let server = server.with_direct_io(options.direct_io);
    let server = if options.has_small_numbers { server.with_small_numbers() } else { server };
    Ok(Arc::new(if options.has_no_xattrs { server.without_xattrs() } else { server }))
}

fn begin(
    fs: Arc<dyn FileSystem>,
    server: Arc<Server>,
    transport: KernelTransport,
    ((directory, device), options): ((PathBuf, Option<String>), &MountOptions),
) -> std::io::Result<MountedSession> {
    let (used, stop, connection) = (transport.used(), transport.stop(), transport.connection());
    let transport = Box::new(transport);
    let viewer = server.viewer().map(Arc::clone);
    let (counts, switches) = (Arc::clone(server.counts()), Arc::clone(server.switches()));
    let serving = std::thread::Builder::new()
        .name("fuse".to_owned())
        .spawn(move || transport.serve(server))?;
    Ok(MountedSession {
        directory,
        device,
        fs: FsHandle(fs),
        viewer,
        counts,
        serving: Some(serving),
        transport: used,
        connection,
        options: options.clone(),
        switches,
        has_replaced_dead: false,
        stop,
    })
}

/// Detaches a dead mount, says so, and returns whether there was one; refuses a live one.
fn make_room(directory: &Path) -> Result<bool, MountError> {
    let refused = |cause| MountError::Refused { directory: directory.to_path_buf(), cause };
    let mut has_replaced_dead = false;
    // Dead mounts can lie on top of each other, one for each crash. Each turn removes one.
    loop {
        match mountpoint::inspect(directory).map_err(refused)? {
            Mountpoint::Free => return Ok(has_replaced_dead),
            Mountpoint::Dead => {
                let path = mountpoint::absolute(directory).map_err(refused)?;
                mountpoint::detach(&path).map_err(refused)?;
                tracing::warn!(directory = %path.display(), "detached a mount whose server died");
                has_replaced_dead = true;
            }
            Mountpoint::NotDirectory => {
                return Err(MountError::NotDirectory { directory: directory.to_path_buf() });
            }
            Mountpoint::Live { source } => {
                return Err(MountError::AlreadyMounted {
                    directory: directory.to_path_buf(),
                    source_path: source,
                });
            }
        }
    }
}

/// Lets the kernel read ahead up to [`READAHEAD_BYTES_MAX`]; it caps FUSE at 128 KiB otherwise, and
/// takes more only from here. Only root may; others read slower.
fn raise_readahead(device: &str) {
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (READAHEAD_BYTES_MAX / 1024).to_string()) {
        tracing::debug!(path, %error, "read-ahead stays at the kernel's default");
    }
}

impl MountedSession {
    /// Returns the directory, as an absolute path.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the device number of what is mounted, as `major:minor`: that of every copy, in
    /// whichever namespace. `None`: the kernel's table of mounts could not be read.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns what tells by what the kernel's requests come.
    #[must_use]
    pub fn transport(&self) -> &Arc<TransportUsed> {
        &self.transport
    }

    /// Returns what it was told of changes by others; `None`: the mount is alone.
    #[must_use]
    pub fn told(&self) -> Option<Told> {
        self.viewer.as_ref().map(|viewer| viewer.told())
    }

    /// Returns what it was asked, by operation.
    #[must_use]
    pub fn counts(&self) -> &Arc<FuseCounts> {
        &self.counts
    }

    /// Returns whether a mount whose server had died was detached to make room.
    #[must_use]
    pub fn has_replaced_dead(&self) -> bool {
        self.has_replaced_dead
    }

    /// Returns whether the kernel has ended the session.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns whether the kernel has ended the session, or is about to: nothing can be asked by
    /// way of the mount, though a thread may not have heard of it yet.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.is_ended() || self.connection.has_ended()
    }

    /// Takes the mount out of the tree, whether or not files are in use. One that acts as a user is
    /// no longer answered, and stays where he has put it: what is on a directory that he names is
    /// for others to take away.
    pub fn unmount(&self) -> Result<Unmounted, MountError> {
        if let Some(stop) = &self.stop {
            stop.set();
            return Ok(Unmounted::Clean);
        }
        if !self.is_in_tree() {
            return Ok(Unmounted::Clean);
        }
        match mountpoint::unmount(&self.directory) {
            Ok(()) => Ok(Unmounted::Clean),
            // Busy, or a helper that does not say why.
            Err(_) => match mountpoint::detach(&self.directory) {
                Ok(()) => Ok(Unmounted::Detached),
                Err(_) if !self.is_in_tree() => Ok(Unmounted::Clean),
                Err(cause) => {
                    Err(MountError::NotUnmounted { directory: self.directory.clone(), cause })
                }
            },
        }
    }

    /// Waits until the kernel ends the session, which it does when the last user of an unmounted
    /// directory is gone; then makes everything durable.
    pub fn wait(mut self) -> Result<(), MountError> {
        let served = self.join();
        self.sync()?;
        Ok(served?)
    }

    /// Makes everything accepted so far durable.
    pub fn sync(&self) -> Result<(), MountError> {
        sync(self.fs.0.as_ref())
    }

    /// Returns how it was mounted, whatever a remount has changed since.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Returns what changes the session while it is served.
    #[must_use]
    pub fn remounter(&self) -> Remounter {
        Remounter {
            switches: Arc::clone(&self.switches),
            fs: Arc::clone(&self.fs.0),
            device: self.device.clone(),
        }
    }

    fn join(&mut self) -> Result<(), TransportError> {
        match self.serving.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                let cause = std::io::Error::other("the serving thread panicked");
                Err(TransportError::Connection(cause))
            }
            None => Ok(()),
        }
    }

    /// Returns whether what is mounted on the directory now is still ours: another mount may have
    /// taken the place since.
    fn is_in_tree(&self) -> bool {
        let entry = mountpoint::mounted_on(&self.directory).ok().flatten();
        entry.is_some_and(|e| Some(&e.device) == self.device.as_ref())
    }
}

/// Makes everything durable that was accepted.
pub(super) fn sync(fs: &dyn FileSystem) -> Result<(), MountError> {
    match fs.sync() {
        // A pool that refuses changes has none to lose.
        Ok(()) | Err(FsError::ReadOnly { .. }) => Ok(()),
        Err(error) => Err(MountError::Sync(error)),
    }
}

impl Drop for MountedSession {
    fn drop(&mut self) {
        if self.serving.is_none() {
            return;
        }
        if let Err(error) = self.unmount() {
            tracing::error!(%error, "a mount stays behind");
        }
    }
}
/// What to do where `/dev/fuse` cannot be opened.
fn step_to_fuse(cause: &std::io::Error) -> &'static str {
    if cause.kind() == std::io::ErrorKind::PermissionDenied {
        "mount as root, or let users open it (`chmod 666 /dev/fuse`), as most systems do"
    } else {
        "run `modprobe fuse` as root; in a container give it --device /dev/fuse"
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn where_fuse_cannot_be_opened_the_step_fits_the_cause() {
        let told = |kind| MountError::NoFuse { cause: Error::from(kind) }.to_string();
        assert!(told(ErrorKind::NotFound).contains("modprobe fuse"));
        let denied = told(ErrorKind::PermissionDenied);
        assert!(denied.contains("chmod 666") && !denied.contains("modprobe"), "{denied}");
    }
}
