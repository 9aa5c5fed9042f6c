//! What is mounted on a directory, and how to take it away.
//!
//! A FUSE mount whose server died stays in place and answers every request with "Transport endpoint
//! is not connected". It holds nothing, so it may be detached at any time.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::MountOptions;

/// What mount(8) shows as the type of our mounts.
pub const MOUNT_TYPE: &str = "fuse.holdfast";

/// How often a directory is looked at while its server is dying: a request is aborted for each
/// descriptor of the server's that still waits to be closed, and for each entry of its queues
/// (256 of them), at worst.
const ABORTED_TRIES_MAX: usize = 512;

/// Symbolic links on the way to a path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// What a directory is, as a place to mount on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mountpoint {
    /// A directory; other file systems' mount points too.
    Free,
    /// There is no directory here.
    NotDirectory,
    /// A Holdfast mount with a server behind it.
    Live {
        /// The pool's path.
        source: String,
    },
    /// A FUSE mount whose server is gone.
    Dead,
}

/// One line of the kernel's table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The kernel's number of this mount; a copy of it has another.
    pub id: u64,
    /// Where.
    pub directory: PathBuf,
    /// File-system type: [`MOUNT_TYPE`] for ours.
    pub kind: String,
    /// What is mounted: the pool's path for ours.
    pub source: String,
    /// Device number, as `major:minor`.
    pub device: String,
    /// Options of the file system, which all copies of the mount have, and those of this mount.
    pub options: (String, String),
}

impl MountEntry {
    /// Whether the file system is read-only in all copies of the mount.
    #[must_use]
    pub fn is_read_only_for_all(&self) -> bool {
        self.options.0.split(',').any(|word| word == "ro")
    }

    /// Whether it is read-only here.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only_for_all() || self.options.1.split(',').any(|word| word == "ro")
    }
}

/// Returns the absolute path of `directory`. A mount point is not looked at, only the table of
/// mounts: its server may be gone, or never answer.
pub fn absolute(directory: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(directory)?;
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
        let path = std::fs::canonicalize(parent)?.join(name);
        if mounted_on(&path)?.is_some() {
            return Ok(path);
        }
    }
    std::fs::canonicalize(&path)
}

/// Goes the way to `path`, symbolic links and all, and calls `enter` at each of our mounts before
/// anything in it is looked at. What is not there is left to whoever opens the path.
///
/// # Errors
///
/// What `enter` says; the kernel's table of mounts cannot be read; too many links.
pub fn follow<E: From<std::io::Error>>(
    path: &Path,
    enter: &mut dyn FnMut(&MountEntry) -> Result<(), E>,
) -> Result<(), E> {
    let mounts = mounts()?;
    let ours = |at: &Path| {
        let topmost = mounts.iter().rfind(|entry| entry.directory == at);
        topmost.filter(|entry| entry.kind == MOUNT_TYPE)
    };
    let mut way = std::path::absolute(path)?;
    let mut at = PathBuf::new();
    for _ in 0..=LINKS_MAX {
        let mut names = way.components();
        let mut target = None;
        for name in names.by_ref() {
            if name == Component::ParentDir {
                at.pop();
            } else {
                at.push(name);
            }
            if let Some(entry) = ours(&at) {
                enter(entry)?;
            } else if let Ok(link) = std::fs::read_link(&at) {
                target = Some(link);
                break;
            }
        }
        let Some(target) = target else { return Ok(()) };
        at.pop();
        way = target.join(names.as_path());
    }
    Err(std::io::Error::from(Errno::LOOP).into())
}

/// Looks at `directory`.
pub fn inspect(directory: &Path) -> std::io::Result<Mountpoint> {
    let mut metadata = ask(directory);
    // A request that was under way when the server died is aborted; the next is told the truth.
    for _ in 0..ABORTED_TRIES_MAX {
        match &metadata {
            Err(error) if is_dying(error) => metadata = ask(directory),
            Ok(_) | Err(_) => break,
        }
    }
    match metadata {
        Err(error) if is_dead(&error) => Ok(Mountpoint::Dead),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Mountpoint::NotDirectory),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.is_dir() => Ok(Mountpoint::NotDirectory),
        Ok(_) => Ok(match mounted_on(&absolute(directory)?)? {
            Some(entry) if entry.kind == MOUNT_TYPE => Mountpoint::Live { source: entry.source },
            Some(_) | None => Mountpoint::Free,
        }),
    }
}

/// Returns what `directory` is. The kernel may answer stat(2) from its cache long after the server
/// died, but not statfs(2).
fn ask(directory: &Path) -> std::io::Result<std::fs::Metadata> {
    rustix::fs::statfs(directory)?;
    std::fs::metadata(directory)
}

/// Returns whether `error` says that a mount's server went while it was asked: `ECANCELED` if its
/// thread had ended that was to take the request.
fn is_dying(error: &std::io::Error) -> bool {
    let dying = [Errno::CONNABORTED, Errno::CANCELED].map(|errno| Some(errno.raw_os_error()));
    dying.contains(&error.raw_os_error())
}

/// Returns whether `error` says that a mount's server is gone.
fn is_dead(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

/// Returns the topmost mount on exactly `directory`, an absolute path.
pub fn mounted_on(directory: &Path) -> std::io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.directory == directory))
}

/// Returns the kernel's table of mounts.
pub fn mounts() -> std::io::Result<Vec<MountEntry>> {
    mounts_in(Path::new("/proc/self/mountinfo"))
}

/// Returns the table of mounts of another process, and so of its namespace.
pub fn mounts_of(pid: i32) -> std::io::Result<Vec<MountEntry>> {
    mounts_in(&PathBuf::from(format!("/proc/{pid}/mountinfo")))
}

fn mounts_in(table: &Path) -> std::io::Result<Vec<MountEntry>> {
    let table = std::fs::read(table)?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse_mount).collect())
}

/// Changes the flags of the mount on `directory` to those of `options`: as all copies have them,
/// and its own.
///
/// # Errors
///
/// What the system says: only root may; `EBUSY` if it is to be read only, and somebody writes.
pub fn remount(directory: &Path, options: &MountOptions) -> std::io::Result<()> {
    Ok(rustix::mount::mount_remount(directory, options.kernel_flags(), "")?)
}

/// Takes the mount on `directory` away from the tree, whoever still uses it.
pub fn detach(directory: &Path) -> std::io::Result<()> {
    unmount_with(directory, UnmountFlags::DETACH)
}

/// Unmounts `directory`; fails with `EBUSY` while files in it are in use.
pub fn unmount(directory: &Path) -> std::io::Result<()> {
    unmount_with(directory, UnmountFlags::empty())
}

/// Where the kernel keeps what controls FUSE connections.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection of the FUSE mount whose device is `device` (`major:minor`): whatever is
/// asked of it, by whoever holds it in whichever namespace, fails from now on, and its server ends.
/// `scratch` is where the control file system may be mounted for a moment; it must not be there.
///
/// # Errors
///
/// What the system says: only root and the mount's user may.
pub fn abort(device: &str, scratch: &Path) -> std::io::Result<()> {
    let minor = device.split_once(':').map_or(device, |(_, minor)| minor);
    let order = |connections: &Path| {
        let path = connections.join(minor).join("abort");
        std::fs::OpenOptions::new().write(true).open(path)?.write_all(b"1")
    };
    match order(Path::new(CONNECTIONS)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        done => return done,
    }
    // Nobody has mounted it here, as in most containers.
    std::fs::create_dir(scratch)?;
    let mounted = rustix::mount::mount("none", scratch, "fusectl", MountFlags::empty(), None);
    let done = mounted.map_err(std::io::Error::from).and_then(|()| {
        let done = order(scratch);
        detach(scratch)?;
        match done {
            // It has ended by itself.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    });
    std::fs::remove_dir(scratch)?;
    done
}

fn unmount_with(directory: &Path, flags: UnmountFlags) -> std::io::Result<()> {
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // Only root may; the setuid helper does it for others.
        Err(Errno::PERM) => unmount_by_helper(directory, flags.contains(UnmountFlags::DETACH)),
        Err(error) => Err(error.into()),
    }
}

fn unmount_by_helper(directory: &Path, is_lazy: bool) -> std::io::Result<()> {
    let mut helper = std::process::Command::new("fusermount3");
    helper.arg("-u");
    if is_lazy {
        helper.arg("-z");
    }
    let output = helper.arg("--").arg(directory).output()?;
    if output.status.success() {
        return Ok(());
    }
    // It has no exit code for it, and no other language.
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(std::io::Error::other(format!("fusermount3 -u: {}", message.trim())))
}

/// Parses a line of /proc/self/mountinfo (proc(5)):
/// `id parent major:minor root directory options [optional fields] - type source options`.
fn parse_mount(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = fields.nth(1)?;
    let directory = fields.nth(1)?;
    let own = fields.next()?;
    let mut after = fields.skip_while(|&field| field != b"-").skip(1);
    let (kind, source) = (after.next()?, after.next()?);
    let of_all = after.next().unwrap_or_default();
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    Some(MountEntry {
        id,
        directory: PathBuf::from(OsString::from_vec(unescape(directory))),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        device: String::from_utf8_lossy(device).into_owned(),
        options: (text(of_all), text(own)),
    })
}

/// Replaces each backslash and three octal digits by the byte they stand for.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\');
        let byte = octal.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_taken_apart() {
        let line = b"36 35 0:52 / /mnt/a\\040b rw,noatime master:1 shared:2 - fuse.holdfast \
                     /srv/my\\134pool.hf rw,user_id=0";
        let entry = parse_mount(line).expect("the line is complete");
        assert_eq!(entry.directory, Path::new("/mnt/a b"));
        assert_eq!(entry.kind, MOUNT_TYPE);
        assert_eq!(entry.source, "/srv/my\\pool.hf");
        assert_eq!((entry.id, entry.device.as_str()), (36, "0:52"));
        assert_eq!(entry.options, ("rw,user_id=0".to_owned(), "rw,noatime".to_owned()));
    }

    #[test]
    fn lines_that_are_cut_off_are_left_out() {
        for line in [&b""[..], b"36 35", b"36 35 0:52 / /mnt rw", b"36 35 0:52 / /mnt rw - fuse"] {
            assert_eq!(parse_mount(line), None, "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn only_whole_octal_escapes_are_replaced() {
        assert_eq!(unescape(b"a\\040b\\"), b"a b\\");
        assert_eq!(unescape(b"\\04"), b"\\04");
        assert_eq!(unescape(b"\\999"), b"\\999");
    }

    /// Goal: a way is gone to its end, whatever links lead there and whatever is missing behind.
    /// Method: none of our mounts is on it, so only a way without an end is refused.
    #[test]
    fn a_way_ends_whatever_its_links() {
        let place = std::env::temp_dir().join(format!("holdfast-way-{}", std::process::id()));
        std::fs::create_dir_all(&place).expect("it can be made");
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, place.join(name)).expect("the name is new");
        };
        link(".", "here");
        link("../../../../../../../proc/self", "up");
        link("endless", "endless");
        let follow = |name: &str| {
            follow(&place.join(name), &mut |entry| {
                Err(std::io::Error::other(format!("{entry:?} is none of this test's")))
            })
        };
        for name in ["here/here/missing/more", "up/../self/exe", "", "here/../.."] {
            follow(name).expect(name);
        }
        let error = follow("here/endless/more").expect_err("it leads nowhere");
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        std::fs::remove_dir_all(&place).expect("it is ours");
    }

    #[test]
    fn the_root_is_mounted_and_a_file_is_no_directory() {
        assert!(mounted_on(Path::new("/")).expect("mountinfo is readable").is_some());
        let file = std::env::current_exe().expect("a test has a path");
        assert_eq!(inspect(&file).expect("stat works"), Mountpoint::NotDirectory);
        assert_eq!(inspect(Path::new("/no/such")).expect("stat"), Mountpoint::NotDirectory);
    }
}
