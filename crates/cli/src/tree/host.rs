//! A directory of this machine as a [`Tree`].
//!
//! Every call is relative to an open directory and follows no link (TE1). Extended attributes have
//! no calls of that kind: they are reached through `/proc/self/fd`, which leads to the directory
//! itself and not to its path.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use engine::vnode::api::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;

use super::{ATTRIBUTE_BYTES_MAX, Attributes, Meta, Tree, TreeError, TreeResult, check_name};

/// Attributes that a security module gives by its own rules.
const OWN_ATTRIBUTES: [&[u8]; 2] = [b"security.selinux", b"security.evm"];

/// A directory, and all below it on the same file system.
pub(crate) struct HostTree {
    root: HostNode,
}

/// A file or directory.
#[derive(Clone)]
pub(crate) struct HostNode(Arc<Inner>);

struct Inner {
    /// Open, where it can be.
    file: Option<File>,
    /// Where its name is; `None`: it is the root.
    place: Option<(HostNode, Vec<u8>)>,
}

fn failed(what: &str, error: Errno) -> TreeError {
    let cause = format!("{what}: {}", std::io::Error::from(error));
    let is_final = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO].contains(&error);
    TreeError { cause, is_final }
}

fn failed_io(what: &str, error: &std::io::Error) -> TreeError {
    match error.raw_os_error() {
        Some(number) => failed(what, Errno::from_raw_os_error(number)),
        None => TreeError::of_file(format!("{what}: {error}")),
    }
}

impl HostNode {
    fn descriptor(&self) -> TreeResult<&File> {
        let closed = || TreeError::of_file("it is not open");
        self.0.file.as_ref().ok_or_else(closed)
    }

    /// Returns the path by which calls without a descriptor reach it.
    fn path(&self) -> TreeResult<Vec<u8>> {
        match (&self.0.file, &self.0.place) {
            (_, Some((directory, name))) => {
                let number = directory.descriptor()?.as_raw_fd();
                let mut path = format!("/proc/self/fd/{number}/").into_bytes();
                path.extend_from_slice(name);
                Ok(path)
            }
            (Some(file), None) => Ok(format!("/proc/self/fd/{}/.", file.as_raw_fd()).into_bytes()),
            (None, None) => Err(TreeError::of_file("it is not open")),
        }
    }
}

impl HostTree {
    /// Returns the tree below an open directory.
    pub(crate) fn new(directory: File) -> HostTree {
        HostTree { root: HostNode(Arc::new(Inner { file: Some(directory), place: None })) }
    }

    fn node(file: Option<File>, directory: &HostNode, name: &[u8]) -> HostNode {
        HostNode(Arc::new(Inner { file, place: Some((directory.clone(), name.to_vec())) }))
    }

    /// Opens a name, without taking note of it where that is allowed.
    fn open_at(directory: &HostNode, name: &[u8], flags: OFlags) -> TreeResult<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let at = directory.descriptor()?;
        let mut opened = rustix::fs::openat(at, name, flags | OFlags::NOATIME, Mode::empty());
        if matches!(opened, Err(Errno::PERM)) {
            opened = rustix::fs::openat(at, name, flags, Mode::empty());
        }
        opened.map(File::from).map_err(|error| failed("it cannot be opened", error))
    }
}

fn meta_of(stat: &Stat) -> TreeResult<Meta> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Unknown => return Err(TreeError::of_file("it is of no kind that is known")),
    };
    let time = |seconds: i64, nanoseconds: u64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
    Ok(Meta {
        kind,
        mode: u16::try_from(stat.st_mode & 0o7777).unwrap_or(0),
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: if is_device { u32::try_from(stat.st_rdev).unwrap_or(u32::MAX) } else { 0 },
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        links: stat.st_nlink,
        id: (stat.st_dev, stat.st_ino),
    })
}

fn type_of(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
    }
}

impl Tree for HostTree {
    type Node = HostNode;

    const TIMES_WAIT: bool = false;

    fn root(&self) -> HostNode {
        self.root.clone()
    }

    fn list(&self, directory: &HostNode, each: &mut dyn FnMut(Vec<u8>)) -> TreeResult<()> {
        let unread = |error| failed("it cannot be listed", error);
        let mut names = Dir::read_from(directory.descriptor()?).map_err(unread)?;
        while let Some(entry) = names.read() {
            let name = entry.map_err(unread)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                each(name);
            }
        }
        Ok(())
    }

    fn find(&self, directory: &HostNode, name: &[u8]) -> TreeResult<Option<Meta>> {
        check_name(name)?;
        let at = directory.descriptor()?;
        match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => meta_of(&stat).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("it cannot be looked at", error)),
        }
    }

    fn open(&self, directory: &HostNode, name: &[u8], meta: &Meta) -> TreeResult<HostNode> {
        check_name(name)?;
        let flags = match meta.kind {
            FileKind::Directory => OFlags::RDONLY | OFlags::DIRECTORY,
            FileKind::Regular => OFlags::RDONLY,
            FileKind::Symlink
            | FileKind::BlockDevice
            | FileKind::CharDevice
            | FileKind::Fifo
            | FileKind::Socket => return Ok(HostTree::node(None, directory, name)),
        };
        let file = HostTree::open_at(directory, name, flags)?;
        let stat =
            rustix::fs::fstat(&file).map_err(|error| failed("it cannot be looked at", error));
        // Another may have taken its name since.
        if meta_of(&stat?)?.id != meta.id {
            return Err(TreeError::of_file("it was replaced while it was looked at: try again"));
        }
        Ok(HostTree::node(Some(file), directory, name))
    }

    fn meta(&self, node: &HostNode) -> TreeResult<Meta> {
        let stat = match (&node.0.file, &node.0.place) {
            (None, Some((directory, name))) => {
                rustix::fs::statat(directory.descriptor()?, &name[..], AtFlags::SYMLINK_NOFOLLOW)
            }
            _ => rustix::fs::fstat(node.descriptor()?),
        };
        meta_of(&stat.map_err(|error| failed("it cannot be looked at", error))?)
    }

    fn target(&self, node: &HostNode) -> TreeResult<Vec<u8>> {
        let Some((directory, name)) = &node.0.place else {
            return Err(TreeError::of_file("it is no symbolic link"));
        };
        let target = rustix::fs::readlinkat(directory.descriptor()?, &name[..], Vec::new());
        target
            .map(std::ffi::CString::into_bytes)
            .map_err(|error| failed("the link cannot be read", error))
    }

    fn attributes(&self, node: &HostNode) -> TreeResult<Attributes> {
        let unread = |error| failed("its extended attributes cannot be read", error);
        let path = node.path()?;
        let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
        let length = match rustix::fs::llistxattr(&path[..], &mut names[..]) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(error) => return Err(unread(error)),
        };
        let mut all = Vec::new();
        let mut value = Vec::new();
        let names = names[..length].split(|&byte| byte == 0);
        for name in names.filter(|name| !name.is_empty() && !OWN_ATTRIBUTES.contains(name)) {
            value.resize(ATTRIBUTE_BYTES_MAX, 0);
            match rustix::fs::lgetxattr(&path[..], name, &mut value[..]) {
                Ok(length) => all.push((name.to_vec(), value[..length].to_vec())),
                // Gone since, or not for this user.
                Err(Errno::NODATA | Errno::PERM | Errno::NOTSUP) => {}
                Err(error) => return Err(unread(error)),
            }
        }
        all.sort();
        Ok(all)
    }

    fn read(
        &self,
        node: &HostNode,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> TreeResult<usize> {
        let start = into.len();
        into.resize(start + length_bytes, 0);
        let (mut done, file) = (0, node.descriptor()?);
        while done < length_bytes {
            let at = offset + u64::try_from(done).unwrap_or(0);
            match file.read_at(&mut into[start + done..], at) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    into.truncate(start);
                    return Err(failed_io("it cannot be read", &error));
                }
            }
        }
        into.truncate(start + done);
        Ok(done)
    }

    fn data(&self, node: &HostNode, offset: u64) -> TreeResult<Option<(u64, u64)>> {
        let file = node.descriptor()?;
        match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(start) => {
                let end = rustix::fs::seek(file, SeekFrom::Hole(start));
                end.map(|end| Some((start, end))).map_err(|error| failed("its holes", error))
            }
            Err(Errno::NXIO) => Ok(None),
            // No holes are known: all is data.
            Err(Errno::INVAL | Errno::NOTSUP) => {
                let size = self.meta(node)?.size_bytes;
                Ok((offset < size).then_some((offset, size)))
            }
            Err(error) => Err(failed("its holes cannot be found", error)),
        }
    }

    fn make(
        &self,
        directory: &HostNode,
        name: &[u8],
        meta: &Meta,
        target: &[u8],
    ) -> TreeResult<HostNode> {
        check_name(name)?;
        let unmade = |error| failed("it cannot be made", error);
        let at = directory.descriptor()?;
        let private = Mode::RUSR | Mode::WUSR;
        let file = match meta.kind {
            FileKind::Regular => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                Some(File::from(rustix::fs::openat(at, name, flags, private).map_err(unmade)?))
            }
            FileKind::Directory => {
                rustix::fs::mkdirat(at, name, Mode::RWXU).map_err(unmade)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(at, name, flags, Mode::empty());
                return Ok(HostTree::node(Some(opened.map_err(unmade)?.into()), directory, name));
            }
            FileKind::Symlink => {
                rustix::fs::symlinkat(target, at, name).map_err(unmade)?;
                None
            }
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                let kind = type_of(meta.kind);
                rustix::fs::mknodat(at, name, kind, private, meta.rdev.into()).map_err(unmade)?;
                None
            }
        };
        let node = HostTree::node(file, directory, name);
        self.set_owner_and_mode(&node, meta)?;
        if meta.kind != FileKind::Regular || meta.size_bytes == 0 {
            self.set_times(&node, meta)?;
        }
        Ok(node)
    }

    fn write(&self, node: &HostNode, offset: u64, bytes: &[u8]) -> TreeResult<()> {
        let written = node.descriptor()?.write_all_at(bytes, offset);
        written.map_err(|error| failed_io("it cannot be written", &error))
    }

    fn resize(&self, node: &HostNode, size_bytes: u64) -> TreeResult<()> {
        let resized = rustix::fs::ftruncate(node.descriptor()?, size_bytes);
        resized.map_err(|error| failed("its size cannot be set", error))
    }

    fn link(&self, node: &HostNode, directory: &HostNode, name: &[u8]) -> TreeResult<()> {
        check_name(name)?;
        let Some((from, old)) = &node.0.place else {
            return Err(TreeError::of_file("the root has one name"));
        };
        let (from, to) = (from.descriptor()?, directory.descriptor()?);
        let linked = rustix::fs::linkat(from, &old[..], to, name, AtFlags::empty());
        linked.map_err(|error| failed("the hard link cannot be made", error))
    }

    fn remove(&self, directory: &HostNode, name: &[u8]) -> TreeResult<()> {
        check_name(name)?;
        let removed = rustix::fs::unlinkat(directory.descriptor()?, name, AtFlags::empty());
        removed.map_err(|error| failed("what is there cannot be removed", error))
    }

    fn set_owner_and_mode(&self, node: &HostNode, meta: &Meta) -> TreeResult<()> {
        let unset = |error| failed("its owner and mode cannot be set", error);
        let (uid, gid) = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
        let mode = Mode::from_raw_mode(meta.mode.into());
        let is_root = rustix::process::geteuid().is_root();
        // Who is not root keeps what it may: the rest is told by a comparison.
        let may_keep =
            |error: Errno| if error == Errno::PERM && !is_root { Ok(()) } else { Err(error) };
        match (&node.0.file, &node.0.place) {
            (Some(file), _) => {
                rustix::fs::fchown(file, uid, gid).or_else(may_keep).map_err(unset)?;
                rustix::fs::fchmod(file, mode).map_err(unset)
            }
            (None, Some((directory, name))) => {
                let at = directory.descriptor()?;
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(at, &name[..], uid, gid, flags)
                    .or_else(may_keep)
                    .map_err(unset)?;
                if meta.kind == FileKind::Symlink {
                    return Ok(());
                }
                // It was made just now, in a directory that is open; no link is followed.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(at, &name[..], flags, Mode::empty());
                let opened: OwnedFd = opened.map_err(unset)?;
                let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
                rustix::fs::chmod(path, mode).map_err(unset)
            }
            (None, None) => Ok(()),
        }
    }

    fn set_attribute(&self, node: &HostNode, name: &[u8], value: Option<&[u8]>) -> TreeResult<()> {
        let path = node.path()?;
        let set = match value {
            Some(value) => rustix::fs::lsetxattr(&path[..], name, value, XattrFlags::empty()),
            None => rustix::fs::lremovexattr(&path[..], name),
        };
        let what = format!("its attribute {} cannot be set", String::from_utf8_lossy(name));
        set.map_err(|error| failed(&what, error))
    }

    fn set_times(&self, node: &HostNode, meta: &Meta) -> TreeResult<()> {
        let time =
            |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
        let times =
            Timestamps { last_access: time(meta.atime), last_modification: time(meta.mtime) };
        let set = match (&node.0.file, &node.0.place) {
            (None, Some((directory, name))) => {
                let (at, flags) = (directory.descriptor()?, AtFlags::SYMLINK_NOFOLLOW);
                rustix::fs::utimensat(at, &name[..], &times, flags)
            }
            _ => rustix::fs::futimens(node.descriptor()?, &times),
        };
        set.map_err(|error| failed("its times cannot be set", error))
    }

    fn sync(&self) -> TreeResult<()> {
        let synced = rustix::fs::syncfs(self.root.descriptor()?);
        synced.map_err(|error| failed("what was written cannot be made durable", error))
    }

    fn parked(&self, node: &HostNode) -> HostNode {
        match &node.0.place {
            Some((directory, name)) => HostTree::node(None, directory, name),
            None => node.clone(),
        }
    }
}
