//! Inspection and removal of mounts.
//!
//! A FUSE mount without a server stays in place and fails every request with "Transport endpoint is
//! not connected". It holds no state and may be detached at any time.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::MountOptions;

/// File system type of our mounts in mount(8).
pub const MOUNT_TYPE: &str = "fuse.holdfast";

/// Most tries while a server exits. Each descriptor and each queue entry (256) may abort one
/// request.
const ABORTED_TRIES_MAX: usize = 512;

/// Most symbolic links in a path (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// State of a directory as a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mountpoint {
    /// A directory, maybe a mount point of another file system.
    Free,
    /// Absent, or not a directory.
    NotDirectory,
    /// A served Holdfast mount.
    Live {
        /// Path of the pool.
        source: String,
    },
    /// A FUSE mount without a server.
    Dead,
}

/// A line of the kernel's mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Mount id. Bind mounts have their own.
    pub id: u64,
    /// The mount point.
    pub directory: PathBuf,
    /// File system type, [`MOUNT_TYPE`] for ours.
    pub kind: String,
    /// The source, for ours the pool's path.
    pub source: String,
    /// Device number, as `major:minor`.
    pub device: String,
    /// Superblock options, common to all bind mounts, and options of this mount.
    pub options: (String, String),
}

impl MountEntry {
    /// Returns whether the superblock is read-only.
    #[must_use]
    pub fn is_read_only_for_all(&self) -> bool {
        self.options.0.split(',').any(|word| word == "ro")
    }

    /// Returns whether this mount is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only_for_all() || self.options.1.split(',').any(|word| word == "ro")
    }
}

/// Returns the absolute path of `directory`. Never accesses a mount point, as its server may hang.
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

/// Walks `path` through symbolic links, and calls `enter` at each of our mounts before accessing
/// anything in it. Ignores missing components.
///
/// # Errors
///
/// An error of `enter`, an unreadable mount table, or too many links.
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

/// Returns the state of `directory`.
pub fn inspect(directory: &Path) -> std::io::Result<Mountpoint> {
    let mut metadata = ask(directory);
    // Requests in progress when the server dies are aborted. Later ones get the final error.
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

/// Returns the metadata. Calls statfs(2) first: the kernel may answer stat(2) from its cache long
/// after the server's end.
fn ask(directory: &Path) -> std::io::Result<std::fs::Metadata> {
    rustix::fs::statfs(directory)?;
    std::fs::metadata(directory)
}

/// Returns whether the server went away during the request (`ECANCELED`: the thread of the
/// request's queue ended).
fn is_dying(error: &std::io::Error) -> bool {
    let dying = [Errno::CONNABORTED, Errno::CANCELED].map(|errno| Some(errno.raw_os_error()));
    dying.contains(&error.raw_os_error())
}

fn is_dead(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error())
}

/// Returns the topmost mount on exactly `directory`, an absolute path.
pub fn mounted_on(directory: &Path) -> std::io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.directory == directory))
}

/// Returns the mount table of this process.
pub fn mounts() -> std::io::Result<Vec<MountEntry>> {
    mounts_in(Path::new("/proc/self/mountinfo"))
}

/// Returns the mount table of the namespace of process `pid`.
pub fn mounts_of(pid: i32) -> std::io::Result<Vec<MountEntry>> {
    mounts_in(&PathBuf::from(format!("/proc/{pid}/mountinfo")))
}

fn mounts_in(table: &Path) -> std::io::Result<Vec<MountEntry>> {
    let table = std::fs::read(table)?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse_mount).collect())
}

/// Changes the flags of the mount on `directory`, of its superblock and its own, to those of
/// `options`.
///
/// # Errors
///
/// Needs root. `EBUSY` if the mount is to be read-only and has files open for writing.
pub fn remount(directory: &Path, options: &MountOptions) -> std::io::Result<()> {
    Ok(rustix::mount::mount_remount(directory, options.kernel_flags(), "")?)
}

/// Detaches the mount on `directory`, even if in use.
pub fn detach(directory: &Path) -> std::io::Result<()> {
    unmount_with(directory, UnmountFlags::DETACH)
}

/// Unmounts `directory`. Fails with `EBUSY` while files in it are in use.
pub fn unmount(directory: &Path) -> std::io::Result<()> {
    unmount_with(directory, UnmountFlags::empty())
}

/// Mount point of the FUSE control file system.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts the connection of the FUSE mount with device number `device` (`major:minor`), in all
/// namespaces, which ends its server. `scratch` must not exist. If necessary, the FUSE control file
/// system is mounted at `scratch` for a moment.
///
/// # Errors
///
/// Needs root or the mount's user.
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
    // The control file system is not mounted, as in most containers.
    std::fs::create_dir(scratch)?;
    let mounted = rustix::mount::mount("none", scratch, "fusectl", MountFlags::empty(), None);
    let done = mounted.map_err(std::io::Error::from).and_then(|()| {
        let done = order(scratch);
        detach(scratch)?;
        match done {
            // The connection ended before the abort.
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
        // Unmounting needs root, or the setuid helper.
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
    // The exit code does not name the cause, and the text is always English.
    let message = String::from_utf8_lossy(&output.stderr);
    if message.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(std::io::Error::other(format!("fusermount3 -u: {}", message.trim())))
}

/// Parses a line of /proc/self/mountinfo (proc(5)): `id parent major:minor root directory options
/// [optional fields] - type source options`.
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

/// Decodes octal escapes: a backslash and three digits.
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

    /// Goal: symbolic links and missing components do not stop the walk. Only a loop is refused.
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
