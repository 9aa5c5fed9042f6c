//! A directory of the host as a [`FileTree`].
//!
//! A bounded number of recently used directories is open. Others are opened again when needed, from
//! their parent and never by a path, and checked by device and inode number. So depth and width of
//! a tree are not limited.
//!
//! Every call is relative to an open directory and follows no link (TE1). Extended attributes have
//! no such calls. They are reached through `/proc/self/fd`, which leads to the open directory.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::api::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Stat, StatxAttributes,
    StatxFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::process::Resource;

use super::{
    ATTRIBUTE_BYTES_MAX, ExtendedAttributes, FileMetadata, FileTree, TreeError, TreeResult, aside,
    check_name,
};

/// Bounds of the number of open directories. Between them, it is a quarter of the process's limit
/// of descriptors.
const OPEN_DIRECTORIES_MIN: usize = 8;
const OPEN_DIRECTORIES_MAX: usize = 512;

/// Attributes that a security module sets by its own rules, so they are not copied.
const OWN_ATTRIBUTES: [&[u8]; 2] = [b"security.selinux", b"security.evm"];

pub(crate) struct HostTree {
    root: HostNode,
    opened: Arc<OpenDirectories>,
}

#[derive(Clone)]
pub(crate) struct HostNode(Arc<HostNodeInner>);

struct HostNodeInner {
    /// The open file of the root, or of a regular file.
    file: Option<Arc<File>>,
    place: Option<(HostNode, Vec<u8>)>,
    /// For a directory other than the root. Opened when needed, because a tree may have more
    /// directories than a process may have open files.
    directory: Option<HostDirectory>,
}

#[derive(Clone)]
struct HostDirectory {
    number: u64,
    id: (u64, u64),
    opened: Arc<OpenDirectories>,
}

struct OpenDirectories {
    most: usize,
    table: Mutex<OpenDirectoryTable>,
}

#[derive(Default)]
struct OpenDirectoryTable {
    files: HashMap<u64, (Arc<File>, u64)>,
    clock: u64,
    next: u64,
}

impl OpenDirectories {
    fn new() -> Arc<OpenDirectories> {
        let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let share = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        let most = share.clamp(OPEN_DIRECTORIES_MIN, OPEN_DIRECTORIES_MAX);
        Arc::new(OpenDirectories { most, table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, OpenDirectoryTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, number: u64) -> Option<Arc<File>> {
        let mut table = self.lock();
        table.clock += 1;
        let now = table.clock;
        let (file, used) = table.files.get_mut(&number)?;
        *used = now;
        Some(Arc::clone(file))
    }

    fn put(&self, number: u64, file: Arc<File>) {
        let mut table = self.lock();
        table.clock += 1;
        let now = table.clock;
        if table.files.len() >= self.most {
            let oldest = table.files.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(number, _)| *number);
            oldest.and_then(|oldest| table.files.remove(&oldest));
        }
        table.files.insert(number, (file, now));
    }
}

impl Drop for HostNodeInner {
    fn drop(&mut self) {
        if let Some(HostDirectory { number, opened, .. }) = &self.directory {
            opened.lock().files.remove(number);
        }
        // Drops the chain of parents in a loop: recursion would be as deep as the tree.
        let mut above = self.place.take().map(|(directory, _)| directory);
        while let Some(mut inner) = above.and_then(|node| Arc::into_inner(node.0)) {
            above = inner.place.take().map(|(directory, _)| directory);
        }
    }
}

fn failed(what: &str, error: Errno) -> TreeError {
    let cause = format!("{what}: {}", std::io::Error::from(error));
    let is_final = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO].contains(&error);
    let is_room = [Errno::NOSPC, Errno::DQUOT].contains(&error);
    TreeError { cause, is_final, is_room }
}

fn failed_io(what: &str, error: &std::io::Error) -> TreeError {
    match error.raw_os_error() {
        Some(number) => failed(what, Errno::from_raw_os_error(number)),
        None => TreeError::of_file(format!("{what}: {error}")),
    }
}

impl HostNode {
    /// Returns the open file of a node. `None` if it can be reached only by its name.
    fn file(&self) -> TreeResult<Option<Arc<File>>> {
        let has_one = self.0.file.is_some() || self.0.directory.is_some();
        has_one.then(|| self.descriptor()).transpose()
    }

    fn descriptor(&self) -> TreeResult<Arc<File>> {
        if let Some(file) = &self.0.file {
            return Ok(Arc::clone(file));
        }
        // Collects the closed directories up to the nearest open one above.
        let (mut closed, mut at) = (Vec::new(), self);
        let mut file = loop {
            let closed_error = || TreeError::of_file("it is not open");
            if let Some(file) = &at.0.file {
                break Arc::clone(file);
            }
            let directory = at.0.directory.as_ref().ok_or_else(closed_error)?;
            if let Some(file) = directory.opened.get(directory.number) {
                break file;
            }
            let (above, name) = at.0.place.as_ref().ok_or_else(closed_error)?;
            closed.push((directory, name));
            at = above;
        };
        for (directory, name) in closed.into_iter().rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let opened = Arc::new(HostTree::open_in(&file, name, flags)?);
            let stat = rustix::fs::fstat(&opened);
            let stat = stat.map_err(|error| failed("its attributes cannot be read", error))?;
            if (stat.st_dev, stat.st_ino) != directory.id {
                return Err(TreeError::of_file("a directory was replaced meanwhile: try again"));
            }
            directory.opened.put(directory.number, Arc::clone(&opened));
            file = opened;
        }
        Ok(file)
    }

    /// Returns a path for calls that take no descriptor. It is valid while the returned file is
    /// held.
    fn path(&self) -> TreeResult<(Vec<u8>, Arc<File>)> {
        let (file, name) = match &self.0.place {
            Some((directory, name)) => (directory.descriptor()?, &name[..]),
            None => (self.descriptor()?, &b"."[..]),
        };
        let mut path = format!("/proc/self/fd/{}/", file.as_raw_fd()).into_bytes();
        path.extend_from_slice(name);
        Ok((path, file))
    }
}

impl HostTree {
    pub(crate) fn new(directory: File) -> HostTree {
        let file = Some(Arc::new(directory));
        let root = HostNode(Arc::new(HostNodeInner { file, place: None, directory: None }));
        HostTree { root, opened: OpenDirectories::new() }
    }

    fn node(file: Option<Arc<File>>, directory: &HostNode, name: &[u8]) -> HostNode {
        let place = Some((directory.clone(), name.to_vec()));
        HostNode(Arc::new(HostNodeInner { file, place, directory: None }))
    }

    fn directory_node(
        &self,
        file: File,
        (directory, name): (&HostNode, &[u8]),
    ) -> TreeResult<HostNode> {
        let stat =
            rustix::fs::fstat(&file).map_err(|error| failed("it cannot be looked at", error))?;
        let number = {
            let mut table = self.opened.lock();
            table.next += 1;
            table.next
        };
        self.opened.put(number, Arc::new(file));
        let id = (stat.st_dev, stat.st_ino);
        let place = Some((directory.clone(), name.to_vec()));
        let directory = Some(HostDirectory { number, id, opened: Arc::clone(&self.opened) });
        Ok(HostNode(Arc::new(HostNodeInner { file: None, place, directory })))
    }

    fn change_owner(node: &HostNode, (uid, gid): (Option<Uid>, Option<Gid>)) -> Result<(), Errno> {
        match (node.file().map_err(|_| Errno::BADF)?, &node.0.place) {
            (Some(file), _) => rustix::fs::fchown(&file, uid, gid),
            (None, Some((directory, name))) => {
                let at = directory.descriptor().map_err(|_| Errno::BADF)?;
                rustix::fs::chownat(at, &name[..], uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            (None, None) => Ok(()),
        }
    }

    fn change_mode(node: &HostNode, mode: u16) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode.into());
        match (node.file().map_err(|_| Errno::BADF)?, &node.0.place) {
            (Some(file), _) => rustix::fs::fchmod(&file, mode),
            (None, Some((directory, name))) => {
                // O_PATH with O_NOFOLLOW, so that the mode of a link's target is not changed.
                let at = directory.descriptor().map_err(|_| Errno::BADF)?;
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened: OwnedFd = rustix::fs::openat(at, &name[..], flags, Mode::empty())?;
                rustix::fs::chmod(format!("/proc/self/fd/{}", opened.as_raw_fd()), mode)
            }
            (None, None) => Ok(()),
        }
    }

    fn open_in(at: &File, name: &[u8], flags: OFlags) -> TreeResult<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut opened = rustix::fs::openat(at, name, flags | OFlags::NOATIME, Mode::empty());
        if matches!(opened, Err(Errno::PERM)) {
            opened = rustix::fs::openat(at, name, flags, Mode::empty());
        }
        opened.map(File::from).map_err(|error| failed("it cannot be opened", error))
    }
}

fn meta_of(stat: &Stat) -> TreeResult<FileMetadata> {
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
    Ok(FileMetadata {
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

/// Returns the mode of a file whose owner or group could not be set. It lacks setuid if the owner
/// differs, and setgid if the group differs.
fn mode_under(meta: &FileMetadata, there: &FileMetadata) -> u16 {
    let mut mode = meta.mode;
    if meta.gid != there.gid {
        mode &= !0o2000;
    }
    if meta.uid != there.uid {
        mode &= if meta.kind == FileKind::Directory { !0o4000 } else { !0o6000 };
    }
    mode
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

fn exchange_names(at: &File, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    match rustix::fs::renameat_with(at, from, at, to, RenameFlags::EXCHANGE) {
        // Some file systems, such as NFS, have no exchange.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => exchange_in_steps(at, from, to),
        exchanged => exchanged,
    }
}

/// Exchanges two names by three renames. If the first or second fails, both names are as before. If
/// the third fails, the old file of `to` stays under a name of [`aside::kept_name`].
fn exchange_in_steps(at: &File, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    // CRASH: between the first two renames, `to` does not exist. Its old file then has a name that
    // no copy removes (AN2).
    let aside = aside::kept_name().map_err(|_| Errno::IO)?;
    rustix::fs::renameat(at, to, at, &aside[..])?;
    if let Err(error) = rustix::fs::renameat(at, from, at, to) {
        rustix::fs::renameat(at, &aside[..], at, to)?;
        return Err(error);
    }
    rustix::fs::renameat(at, &aside[..], at, from)
}

impl FileTree for HostTree {
    type Node = HostNode;

    const TIMES_WAIT: bool = false;

    fn root(&self) -> HostNode {
        self.root.clone()
    }

    fn list(&self, directory: &HostNode, each: &mut dyn FnMut(Vec<u8>)) -> TreeResult<()> {
        let unread = |error| failed("it cannot be listed", error);
        let mut names = Dir::read_from(&*directory.descriptor()?).map_err(unread)?;
        while let Some(entry) = names.read() {
            let name = entry.map_err(unread)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                each(name);
            }
        }
        Ok(())
    }

    fn find(&self, directory: &HostNode, name: &[u8]) -> TreeResult<Option<FileMetadata>> {
        check_name(name)?;
        let at = directory.descriptor()?;
        match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => meta_of(&stat).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("it cannot be looked at", error)),
        }
    }

    fn open(&self, directory: &HostNode, name: &[u8], meta: &FileMetadata) -> TreeResult<HostNode> {
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
        let file = HostTree::open_in(&*directory.descriptor()?, name, flags)?;
        let stat =
            rustix::fs::fstat(&file).map_err(|error| failed("it cannot be looked at", error));
        // The name may have got another file since the lookup.
        if meta_of(&stat?)?.id != meta.id {
            return Err(TreeError::of_file("it was replaced while it was looked at: try again"));
        }
        if meta.kind == FileKind::Directory {
            return self.directory_node(file, (directory, name));
        }
        Ok(HostTree::node(Some(Arc::new(file)), directory, name))
    }

    /// Files on an overlay have the device number of their layer. So a file that is no directory is
    /// on another file system only if it is a mount point.
    fn is_elsewhere(
        &self,
        directory: &HostNode,
        name: &[u8],
        meta: &FileMetadata,
        device: u64,
    ) -> TreeResult<bool> {
        if meta.id.0 == device || meta.kind == FileKind::Directory {
            return Ok(meta.id.0 != device);
        }
        let at = directory.descriptor()?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = rustix::fs::statx(at, name, flags, StatxFlags::BASIC_STATS)
            .map_err(|error| failed("it cannot be looked at", error))?;
        Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    fn meta(&self, node: &HostNode) -> TreeResult<FileMetadata> {
        let stat = match (node.file()?, &node.0.place) {
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

    fn attributes(&self, node: &HostNode) -> TreeResult<ExtendedAttributes> {
        let unread = |error| failed("its extended attributes cannot be read", error);
        let (path, _held) = node.path()?;
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
                // The attribute was removed since the listing, or this user may not read it.
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
        match rustix::fs::seek(&*file, SeekFrom::Data(offset)) {
            Ok(start) => {
                let end = rustix::fs::seek(&*file, SeekFrom::Hole(start));
                end.map(|end| Some((start, end))).map_err(|error| failed("its holes", error))
            }
            Err(Errno::NXIO) => Ok(None),
            // The file system reports no holes, so everything counts as data.
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
        meta: &FileMetadata,
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
                rustix::fs::mkdirat(&at, name, Mode::RWXU).map_err(unmade)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(&at, name, flags, Mode::empty());
                return self.directory_node(opened.map_err(unmade)?.into(), (directory, name));
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
        Ok(HostTree::node(file.map(Arc::new), directory, name))
    }

    fn link_over(&self, node: &HostNode, directory: &HostNode, name: &[u8]) -> TreeResult<()> {
        let beside = aside::name()?;
        self.link(node, directory, &beside)?;
        let renamed = self.rename(node, directory, (&beside, name));
        renamed.map(drop).inspect_err(|_| {
            // If this fails too, only a superfluous hard link remains.
            let _ = self.remove(directory, &beside);
        })
    }

    fn rename(
        &self,
        node: &HostNode,
        directory: &HostNode,
        (from, to): (&[u8], &[u8]),
    ) -> TreeResult<HostNode> {
        check_name(to)?;
        let at = directory.descriptor()?;
        let renamed = rustix::fs::renameat(&at, from, &at, to);
        renamed.map_err(|error| failed("it cannot replace the existing file", error))?;
        Ok(HostTree::node(node.0.file.clone(), directory, to))
    }

    fn exchange(
        &self,
        node: &HostNode,
        directory: &HostNode,
        (from, to): (&[u8], &[u8]),
    ) -> TreeResult<HostNode> {
        check_name(to)?;
        exchange_names(&*directory.descriptor()?, from, to)
            .map_err(|error| failed("it cannot take the place of what is there", error))?;
        let place = Some((directory.clone(), to.to_vec()));
        let HostNodeInner { file, directory, .. } = &*node.0;
        Ok(HostNode(Arc::new(HostNodeInner {
            file: file.clone(),
            place,
            directory: directory.clone(),
        })))
    }

    fn is_empty(&self, directory: &HostNode) -> TreeResult<bool> {
        let unread = |error| failed("it cannot be listed", error);
        let mut names = Dir::read_from(&*directory.descriptor()?).map_err(unread)?;
        while let Some(entry) = names.read() {
            if ![&b"."[..], b".."].contains(&entry.map_err(unread)?.file_name().to_bytes()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn remove_directory(&self, directory: &HostNode, name: &[u8]) -> TreeResult<()> {
        check_name(name)?;
        let removed = rustix::fs::unlinkat(directory.descriptor()?, name, AtFlags::REMOVEDIR);
        removed.map_err(|error| match error {
            Errno::NOTEMPTY | Errno::EXIST => TreeError::of_file(super::HAS_CONTENT),
            error => failed("the existing directory cannot be removed", error),
        })
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

    fn set_owner_and_mode(
        &self,
        node: &HostNode,
        meta: &FileMetadata,
    ) -> TreeResult<Vec<TreeError>> {
        let mut told = Vec::new();
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        let mut owned = HostTree::change_owner(node, (Some(uid), Some(gid)));
        if owned.is_err() {
            // An unprivileged owner may still change the group to one of its own groups.
            let _ = HostTree::change_owner(node, (None, Some(gid)));
        }
        if meta.kind == FileKind::Symlink && owned.is_ok() {
            return Ok(told);
        }
        let there = self.meta(node)?;
        if (there.uid, there.gid) == (meta.uid, meta.gid) {
            owned = Ok(());
        }
        // Without root, a refused change of owner is expected and not reported. Only a comparison
        // shows it.
        let is_root = rustix::process::geteuid().is_root();
        if let Err(error) = owned.as_ref().map_err(|error| *error)
            && (is_root || error != Errno::PERM)
        {
            told.push(TreeError { is_final: false, ..failed("its owner cannot be set", error) });
        }
        if meta.kind == FileKind::Symlink {
            return Ok(told);
        }
        let set = HostTree::change_mode(node, mode_under(meta, &there));
        if let Err(error) = set {
            told.push(TreeError { is_final: false, ..failed("its mode cannot be set", error) });
        }
        Ok(told)
    }

    fn set_attribute(&self, node: &HostNode, name: &[u8], value: Option<&[u8]>) -> TreeResult<()> {
        let (path, _held) = node.path()?;
        let set = match value {
            Some(value) => rustix::fs::lsetxattr(&path[..], name, value, XattrFlags::empty()),
            None => rustix::fs::lremovexattr(&path[..], name),
        };
        let what = format!("its attribute {} cannot be set", String::from_utf8_lossy(name));
        set.map_err(|error| failed(&what, error))
    }

    fn set_times(&self, node: &HostNode, meta: &FileMetadata) -> TreeResult<()> {
        let time =
            |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
        let times =
            Timestamps { last_access: time(meta.atime), last_modification: time(meta.mtime) };
        let set = match (node.file()?, &node.0.place) {
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
            Some((directory, name)) if node.0.directory.is_none() => {
                HostTree::node(None, directory, name)
            }
            _ => node.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Goal: without an exchange call, three renames exchange two names. If one of the first two
    /// fails, the names are unchanged.
    #[test]
    fn names_are_exchanged_in_steps() {
        let name = format!("holdfast-tree-steps-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("directory")).expect("it can be made");
        fs::write(path.join("file"), b"content").expect("it can be made");
        let at = File::open(&path).expect("it is there");
        exchange_in_steps(&at, b"directory", b"file").expect("both are there");
        assert!(path.join("file").is_dir() && path.join("directory").is_file());
        assert_eq!(exchange_in_steps(&at, b"no such", b"file"), Err(Errno::NOENT));
        assert!(path.join("file").is_dir());
        assert_eq!(fs::read_dir(&path).expect("it is there").count(), 2);
        fs::remove_dir_all(&path).expect("it is ours");
    }
}
