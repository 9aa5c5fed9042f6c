//! Mounting and unmounting a file system.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use engine::api::{FileSystem, FilesetUuid, FsError};

use super::counts::FuseCounts;
use super::kernel::stop::ServiceStop;
use super::kernel::{FuseConnection, KernelTransport};
use super::mountpoint::{self, Mountpoint};
use super::switches::{Remounter, Switches};
use super::transport::{FuseTransport, TransportError, TransportUsed};
use super::{FuseServer, MountOptions};
use crate::locks::{HolderId, LockFacts, LockTable};
use crate::shared::{NotifyingFileSystem, SharedFilesets, Viewer, ViewerCounts};

/// Readahead limit, equal to that of btrfs: four requests keep server and device busy while the
/// reader consumes data.
const READAHEAD_BYTES_MAX: u32 = 4 << 20;

/// Error of a mount or unmount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// Create the directory first.
    #[error("{} is not a directory: create it first", directory.display())]
    NotDirectory {
        /// The given path.
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
        /// The pool mounted there.
        source_path: String,
    },
    /// Load the kernel module, pass the device into the container, or get permission to open it.
    #[error("/dev/fuse: {cause}: {}", step_to_fuse(cause))]
    NoFuse {
        /// The error of opening it.
        cause: std::io::Error,
    },
    /// The kernel refused the mount for this cause.
    #[error("cannot mount {}: {cause}", directory.display())]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// The error of the kernel or the helper.
        cause: std::io::Error,
    },
    /// The mount is still in place.
    #[error("cannot unmount {}: {cause}", directory.display())]
    NotUnmounted {
        /// The directory.
        directory: PathBuf,
        /// The error of the kernel or the helper.
        cause: std::io::Error,
    },
    /// The connection to the kernel failed.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// Unmounted, but the last changes may not be durable.
    #[error("the last changes may not be durable: {0}")]
    Sync(FsError),
}

/// Result of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountOutcome {
    /// The mount was unused. The session ends at once.
    Clean,
    /// Detached from the tree. The session ends when the last process closes its files.
    Detached,
}

/// A served mount.
///
/// Dropping it unmounts without waiting, lazily if files are in use.
#[derive(Debug)]
pub struct MountedSession {
    directory: PathBuf,
    device: Option<String>,
    fs: FsHandle,
    counts: Arc<FuseCounts>,
    viewer: Option<Arc<Viewer>>,
    locks: Option<(Arc<LockTable>, HolderId)>,
    serving: Option<JoinHandle<Result<(), TransportError>>>,
    transport: Arc<TransportUsed>,
    connection: FuseConnection,
    options: MountOptions,
    switches: Arc<Switches>,
    has_replaced_dead: bool,
    stop: Option<Arc<ServiceStop>>,
}

struct FsHandle(Arc<dyn FileSystem>);

impl std::fmt::Debug for FsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileSystem")
    }
}

/// Mounts `fs` on `directory` and serves it on separate threads.
///
/// Detaches a dead mount first. On return the mount answers requests. With `shares`, it shares the
/// fileset with other mounts and exports.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    directory: &Path,
    options: &MountOptions,
    shares: Option<&Arc<SharedFilesets>>,
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

/// A mounted directory, not yet served. Requests wait.
#[derive(Debug)]
pub struct AttachedMount {
    /// Absolute path of the directory.
    pub directory: PathBuf,
    /// Device number of the mount, as `major:minor`, if known.
    pub device: Option<String>,
    /// The FUSE connection.
    pub connection: OwnedFd,
    /// A dead mount was detached first.
    pub has_replaced_dead: bool,
}

/// Mounts `directory` for a server in another process. Detaches a dead mount first.
pub fn attach(directory: &Path, options: &MountOptions) -> Result<AttachedMount, MountError> {
    let (directory, has_replaced_dead) = prepare(directory)?;
    let refused = |cause| MountError::Refused { directory: directory.clone(), cause };
    let connection = super::kernel::attach_only(&directory, options).map_err(refused)?;
    let number = mountpoint::mounted_on(&directory).ok().flatten().map(|entry| entry.device);
    if let Some(number) = &number {
        raise_readahead(number);
    }
    Ok(AttachedMount { directory, device: number, connection, has_replaced_dead })
}

/// Serves a fileset of `fs` on a connection mounted by another process ([`attach`]).
pub fn serve_attached(
    fs: Arc<dyn FileSystem>,
    fileset: FilesetUuid,
    attached: AttachedMount,
    options: &MountOptions,
    shares: Option<&Arc<SharedFilesets>>,
) -> Result<MountedSession, MountError> {
    let AttachedMount { directory, device, connection, .. } = attached;
    let refused = |cause| MountError::Refused { directory: directory.clone(), cause };
    let server = server_of(&fs, fileset, options, shares).map_err(refused)?;
    let transport = KernelTransport::take(connection, options, &server).map_err(refused)?;
    let place = (directory.clone(), device);
    begin(fs, server, transport, (place, options)).map_err(refused)
}

/// Returns the absolute path, free for a mount, and whether a dead mount was detached.
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
    shares: Option<&Arc<SharedFilesets>>,
) -> std::io::Result<Arc<FuseServer>> {
    let wrong = std::io::Error::other::<FsError>;
    let server = match shares {
        None => FuseServer::of(Arc::clone(fs), fileset).map_err(wrong)?,
        Some(shares) => {
            let viewer = shares.join(fs.root_of(fileset).map_err(wrong)?);
            let teller = NotifyingFileSystem::for_viewer(Arc::clone(fs), shares, &viewer);
            FuseServer::of(teller, fileset).map_err(wrong)?.shared(viewer).locking(shares.locks())
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
    server: Arc<FuseServer>,
    transport: KernelTransport,
    ((directory, device), options): ((PathBuf, Option<String>), &MountOptions),
) -> std::io::Result<MountedSession> {
    let (used, stop, connection) = (transport.used(), transport.stop(), transport.connection());
    let transport = Box::new(transport);
    let (viewer, locks) = (server.viewer().map(Arc::clone), server.lock_table());
    let (counts, switches) = (Arc::clone(server.counts()), Arc::clone(server.switches()));
    let serving = std::thread::Builder::new()
        .name("fuse".to_owned())
        .spawn(move || transport.serve(server))?;
    Ok(MountedSession {
        directory,
        device,
        fs: FsHandle(fs),
        viewer,
        locks,
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

/// Detaches dead mounts and refuses a live one. Returns whether one was detached.
fn make_room(directory: &Path) -> Result<bool, MountError> {
    let refused = |cause| MountError::Refused { directory: directory.to_path_buf(), cause };
    let mut has_replaced_dead = false;
    // Repeated crashes stack dead mounts. Each turn detaches one.
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

/// Raises the kernel's readahead limit from its 128 KiB for FUSE. Without root this fails, and
/// reads are slower.
fn raise_readahead(device: &str) {
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (READAHEAD_BYTES_MAX / 1024).to_string()) {
        tracing::debug!(path, %error, "read-ahead stays at the kernel's default");
    }
}

impl MountedSession {
    /// Returns the absolute path of the directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the device number as `major:minor`, if the mount table was readable.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Returns the transport in use.
    #[must_use]
    pub fn transport(&self) -> &Arc<TransportUsed> {
        &self.transport
    }

    /// Returns the counters of a shared mount.
    #[must_use]
    pub fn told(&self) -> Option<ViewerCounts> {
        self.viewer.as_ref().map(|viewer| viewer.told())
    }

    /// Returns the numbers of locks that processes hold through a shared mount, and of requests
    /// that wait for one.
    #[must_use]
    pub fn lock_counts(&self) -> Option<(usize, usize)> {
        self.locks.as_ref().map(|(table, holder)| table.counts_of(*holder))
    }

    /// Returns the locks that processes hold or wait for through a shared mount.
    #[must_use]
    pub fn locks(&self) -> Vec<LockFacts> {
        let Some((table, holder)) = &self.locks else { return Vec::new() };
        let is_own = |facts: &LockFacts| facts.lock.owner.holder == *holder;
        table.list().into_iter().filter(is_own).collect()
    }

    /// Returns the request counters.
    #[must_use]
    pub fn counts(&self) -> &Arc<FuseCounts> {
        &self.counts
    }

    /// Returns whether a dead mount was detached first.
    #[must_use]
    pub fn has_replaced_dead(&self) -> bool {
        self.has_replaced_dead
    }

    /// Returns whether the service has ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.serving.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Returns whether the service or the connection has ended. Threads may notice an ended
    /// connection later.
    #[must_use]
    pub fn has_gone(&self) -> bool {
        self.is_ended() || self.connection.has_ended()
    }

    /// Unmounts, lazily if files are in use. For a per-user mount this only ends the service:
    /// another process must unmount it, because its path is untrusted.
    pub fn unmount(&self) -> Result<UnmountOutcome, MountError> {
        if let Some(stop) = &self.stop {
            stop.set();
            return Ok(UnmountOutcome::Clean);
        }
        if !self.is_in_tree() {
            return Ok(UnmountOutcome::Clean);
        }
        match mountpoint::unmount(&self.directory) {
            Ok(()) => Ok(UnmountOutcome::Clean),
            // In use, or the helper gave no reason.
            Err(_) => match mountpoint::detach(&self.directory) {
                Ok(()) => Ok(UnmountOutcome::Detached),
                Err(_) if !self.is_in_tree() => Ok(UnmountOutcome::Clean),
                Err(cause) => {
                    Err(MountError::NotUnmounted { directory: self.directory.clone(), cause })
                }
            },
        }
    }

    /// Waits for the kernel to end the session, then makes everything durable.
    pub fn wait(mut self) -> Result<(), MountError> {
        let served = self.join();
        self.sync()?;
        Ok(served?)
    }

    /// Makes all accepted changes durable.
    pub fn sync(&self) -> Result<(), MountError> {
        sync(self.fs.0.as_ref())
    }

    /// Returns the options of the mount, without changes by a remount.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Returns a handle for remounts.
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

    /// Returns whether the topmost mount on the directory is still this one.
    fn is_in_tree(&self) -> bool {
        let entry = mountpoint::mounted_on(&self.directory).ok().flatten();
        entry.is_some_and(|e| Some(&e.device) == self.device.as_ref())
    }
}

pub(super) fn sync(fs: &dyn FileSystem) -> Result<(), MountError> {
    match fs.sync() {
        // A read-only pool has no changes to lose.
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
