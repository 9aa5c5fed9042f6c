//! Access to a file system in this process, by its vnode interface. Without a kernel, each use of a
//! name takes one lookup, and a close drops the reference.

use std::sync::Arc;
use std::{fmt, io};

use engine::api::{
    Caller, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode, SetAttr, SetTime, Timestamp,
};

use super::{BenchHandle, OpenMode, TargetAccess, TransferBuffer};

/// A file system in this process.
pub struct ProcessAccess {
    fs: Arc<dyn FileSystem>,
    caller: Caller,
}

impl fmt::Debug for ProcessAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessAccess")
    }
}

impl ProcessAccess {
    /// Works below the root of `fs`, as the superuser.
    #[must_use]
    pub fn new(fs: Arc<dyn FileSystem>) -> ProcessAccess {
        ProcessAccess { fs, caller: Caller::root() }
    }

    /// Calls `work` on a name's inode, with a reference held.
    fn with<T>(
        &self,
        at: &BenchHandle,
        name: &str,
        work: impl FnOnce(Ino) -> Result<T, FsError>,
    ) -> io::Result<T> {
        let found = self.fs.lookup(&self.caller, ino(at)?, name.as_bytes()).map_err(told)?;
        let done = work(found.ino);
        self.fs.forget(found.ino, 1);
        done.map_err(told)
    }
}

fn ino(handle: &BenchHandle) -> io::Result<Ino> {
    match handle {
        BenchHandle::Inode(ino) => Ok(*ino),
        BenchHandle::Descriptor(_) | BenchHandle::Closed => {
            Err(io::Error::other("a handle of another target"))
        }
    }
}

fn told(error: FsError) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

fn regular() -> NewInode {
    NewInode::new(FileKind::Regular, 0o644)
}

impl TargetAccess for ProcessAccess {
    fn root(&self) -> io::Result<BenchHandle> {
        Ok(BenchHandle::Inode(self.fs.root()))
    }

    fn make_dir(&self, at: &BenchHandle, name: &str) -> io::Result<()> {
        let new = NewInode::new(FileKind::Directory, 0o755);
        let made =
            self.fs.create(&self.caller, ino(at)?, name.as_bytes(), new, None).map_err(told)?;
        self.fs.forget(made.ino, 1);
        Ok(())
    }

    fn open_dir(&self, at: &BenchHandle, name: &str) -> io::Result<BenchHandle> {
        let found = self.fs.lookup(&self.caller, ino(at)?, name.as_bytes()).map_err(told)?;
        Ok(BenchHandle::Inode(found.ino))
    }

    fn create(&self, at: &BenchHandle, name: &str, _is_direct: bool) -> io::Result<BenchHandle> {
        let made = self.fs.create(&self.caller, ino(at)?, name.as_bytes(), regular(), None);
        Ok(BenchHandle::Inode(made.map_err(told)?.ino))
    }

    fn open(&self, at: &BenchHandle, name: &str, _what_for: OpenMode) -> io::Result<BenchHandle> {
        self.open_dir(at, name)
    }

    fn close(&self, handle: BenchHandle) {
        if let BenchHandle::Inode(ino) = handle
            && ino != self.fs.root()
        {
            self.fs.forget(ino, 1);
        }
    }

    fn read(
        &self,
        file: &BenchHandle,
        offset: u64,
        into: &mut TransferBuffer,
    ) -> io::Result<usize> {
        into.read.clear();
        self.fs.read(&Caller::root(), ino(file)?, offset, into.length, &mut into.read).map_err(told)
    }

    fn write(&self, file: &BenchHandle, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fs.write(&self.caller, ino(file)?, offset, data).map_err(told)
    }

    fn sync_file(&self, file: &BenchHandle) -> io::Result<()> {
        self.fs.fsync(&Caller::root(), ino(file)?, false).map_err(told)
    }

    fn stat(&self, at: &BenchHandle, name: &str) -> io::Result<u64> {
        self.with(at, name, |ino| Ok(self.fs.getattr(&Caller::root(), ino)?.size_bytes))
    }

    fn stat_file(&self, file: &BenchHandle) -> io::Result<u64> {
        Ok(self.fs.getattr(&Caller::root(), ino(file)?).map_err(told)?.size_bytes)
    }

    fn unlink(&self, at: &BenchHandle, name: &str) -> io::Result<()> {
        self.fs.unlink(&self.caller, ino(at)?, name.as_bytes(), None).map_err(told)
    }

    fn remove_dir(&self, at: &BenchHandle, name: &str) -> io::Result<()> {
        self.fs.rmdir(&self.caller, ino(at)?, name.as_bytes(), None).map_err(told)
    }

    fn rename(&self, at: &BenchHandle, from: &str, to: &str) -> io::Result<()> {
        let (source, target) = ((ino(at)?, from.as_bytes()), (ino(at)?, to.as_bytes()));
        self.fs.rename(&self.caller, source, target, RenameMode::Replace, None).map_err(told)
    }

    fn link(&self, at: &BenchHandle, from: &str, to: &str) -> io::Result<()> {
        let parent = ino(at)?;
        self.with(at, from, |ino| {
            let linked = self.fs.link(&self.caller, ino, parent, to.as_bytes(), None)?;
            self.fs.forget(linked.ino, 1);
            Ok(())
        })
    }

    fn symlink(&self, at: &BenchHandle, name: &str, target: &str) -> io::Result<()> {
        let made = self.fs.symlink(
            &self.caller,
            ino(at)?,
            name.as_bytes(),
            target.as_bytes(),
            NewInode::SYMLINK,
            None,
        );
        self.fs.forget(made.map_err(told)?.ino, 1);
        Ok(())
    }

    fn read_link(&self, at: &BenchHandle, name: &str) -> io::Result<usize> {
        self.with(at, name, |ino| Ok(self.fs.readlink(&Caller::root(), ino)?.len()))
    }

    fn set_mode(&self, at: &BenchHandle, name: &str, mode: u16) -> io::Result<()> {
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.with(at, name, |ino| self.fs.setattr(&self.caller, ino, &change, None).map(|_| ()))
    }

    fn set_times(&self, file: &BenchHandle, seconds: i64) -> io::Result<()> {
        let time = Some(SetTime::To(Timestamp { seconds, nanoseconds: 0 }));
        let change = SetAttr { atime: time, mtime: time, ..SetAttr::default() };
        self.fs.setattr(&self.caller, ino(file)?, &change, None).map(|_| ()).map_err(told)
    }

    fn list(&self, dir: &BenchHandle, each: &mut dyn FnMut(&str, bool)) -> io::Result<()> {
        let listed = self.fs.readdir(&Caller::root(), ino(dir)?, 0, &mut |entry| {
            // Benchmark names are ASCII.
            if let Ok(name) = std::str::from_utf8(&entry.name)
                && name != "."
                && name != ".."
            {
                each(name, entry.kind == FileKind::Directory);
            }
            true
        });
        listed.map_err(told)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.fs.statfs(&Caller::root(), self.fs.main_fileset()).map_err(told)?.available_bytes)
    }

    fn forget_content(&self, _file: &BenchHandle) -> io::Result<()> {
        // No kernel page cache is involved.
        Ok(())
    }

    fn settle(&self) -> io::Result<()> {
        self.fs.sync().map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: errors have the same errno as on a mount.
    #[test]
    fn refusals_keep_their_errno() {
        assert_eq!(told(FsError::NotFound).kind(), io::ErrorKind::NotFound);
    }
}
