//! Access to a mounted directory by system calls.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self, Advice, AtFlags, Dir, Mode, OFlags, Timespec, Timestamps};
use rustix::io::{Errno, pread, pwrite};

use super::{BenchHandle, OpenMode, TargetAccess, TargetReopener, TransferBuffer};

/// A mounted directory.
#[derive(Debug)]
pub struct KernelAccess {
    directory: PathBuf,
    /// Device number of the file system, to detect an unmount.
    device: AtomicU64,
    offline: Option<Arc<dyn TargetReopener>>,
}

impl KernelAccess {
    /// Accesses files below `directory`. Fails after an unmount, except one by `offline`.
    pub fn new(
        directory: &Path,
        offline: Option<Arc<dyn TargetReopener>>,
    ) -> io::Result<KernelAccess> {
        let device = AtomicU64::new(fs::stat(directory)?.st_dev);
        Ok(KernelAccess { directory: directory.to_owned(), device, offline })
    }
}

fn fd(handle: &BenchHandle) -> io::Result<BorrowedFd<'_>> {
    match handle {
        BenchHandle::Descriptor(fd) => Ok(std::os::fd::AsFd::as_fd(fd)),
        BenchHandle::Inode(_) | BenchHandle::Closed => {
            Err(io::Error::other("a handle of another target"))
        }
    }
}

impl TargetAccess for KernelAccess {
    fn root(&self) -> io::Result<BenchHandle> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(&self.directory, flags, Mode::empty())?;
        if fs::fstat(&root)?.st_dev != self.device.load(Ordering::Relaxed) {
            let message = format!("{} is no longer mounted", self.directory.display());
            return Err(io::Error::new(io::ErrorKind::NotConnected, message));
        }
        Ok(BenchHandle::Descriptor(root))
    }

    fn make_dir(&self, at: &BenchHandle, name: &str) -> io::Result<()> {
        Ok(fs::mkdirat(fd(at)?, name, Mode::from_raw_mode(0o755))?)
    }

    fn open_dir(&self, at: &BenchHandle, name: &str) -> io::Result<BenchHandle> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(BenchHandle::Descriptor(fs::openat(fd(at)?, name, flags, Mode::empty())?))
    }

    fn create(&self, at: &BenchHandle, name: &str, is_direct: bool) -> io::Result<BenchHandle> {
        let mut flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        flags.set(OFlags::DIRECT, is_direct);
        Ok(BenchHandle::Descriptor(fs::openat(fd(at)?, name, flags, Mode::from_raw_mode(0o644))?))
    }

    fn open(&self, at: &BenchHandle, name: &str, what_for: OpenMode) -> io::Result<BenchHandle> {
        let flags = match what_for {
            OpenMode::Read => OFlags::RDONLY,
            OpenMode::Write => OFlags::WRONLY,
            OpenMode::ReadDirect => OFlags::RDONLY | OFlags::DIRECT,
        };
        let flags = flags | OFlags::CLOEXEC;
        Ok(BenchHandle::Descriptor(fs::openat(fd(at)?, name, flags, Mode::empty())?))
    }

    fn close(&self, handle: BenchHandle) {
        drop(handle);
    }

    fn read(
        &self,
        file: &BenchHandle,
        offset: u64,
        into: &mut TransferBuffer,
    ) -> io::Result<usize> {
        let file = fd(file)?;
        let target = into.bytes_mut();
        let mut done = 0;
        while done < target.len() {
            let at = offset + crate::number::to_u64(done);
            let count = pread(file, &mut target[done..], at)?;
            if count == 0 {
                break;
            }
            done += count;
        }
        Ok(done)
    }

    fn write(&self, file: &BenchHandle, offset: u64, data: &[u8]) -> io::Result<()> {
        let file = fd(file)?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + crate::number::to_u64(done);
            match pwrite(file, &data[done..], at)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => done += count,
            }
        }
        Ok(())
    }

    fn sync_file(&self, file: &BenchHandle) -> io::Result<()> {
        Ok(fs::fsync(fd(file)?)?)
    }

    fn stat(&self, at: &BenchHandle, name: &str) -> io::Result<u64> {
        let stat = fs::statat(fd(at)?, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn stat_file(&self, file: &BenchHandle) -> io::Result<u64> {
        Ok(u64::try_from(fs::fstat(fd(file)?)?.st_size).unwrap_or(0))
    }

    fn unlink(&self, at: &BenchHandle, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(fd(at)?, name, AtFlags::empty())?)
    }

    fn remove_dir(&self, at: &BenchHandle, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(fd(at)?, name, AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, at: &BenchHandle, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(fd(at)?, from, fd(at)?, to)?)
    }

    fn link(&self, at: &BenchHandle, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::linkat(fd(at)?, from, fd(at)?, to, AtFlags::empty())?)
    }

    fn symlink(&self, at: &BenchHandle, name: &str, target: &str) -> io::Result<()> {
        Ok(fs::symlinkat(target, fd(at)?, name)?)
    }

    fn read_link(&self, at: &BenchHandle, name: &str) -> io::Result<usize> {
        Ok(fs::readlinkat(fd(at)?, name, Vec::new())?.as_bytes().len())
    }

    fn set_mode(&self, at: &BenchHandle, name: &str, mode: u16) -> io::Result<()> {
        Ok(fs::chmodat(fd(at)?, name, Mode::from_raw_mode(mode.into()), AtFlags::empty())?)
    }

    fn set_times(&self, file: &BenchHandle, seconds: i64) -> io::Result<()> {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(fs::futimens(fd(file)?, &times)?)
    }

    fn list(&self, dir: &BenchHandle, each: &mut dyn FnMut(&str, bool)) -> io::Result<()> {
        for entry in Dir::read_from(fd(dir)?)? {
            let entry = entry?;
            let name = entry.file_name().to_str().map_err(io::Error::other)?;
            if name != "." && name != ".." {
                let mut kind = entry.file_type();
                if kind == fs::FileType::Unknown {
                    // Some file systems return no file type in a listing.
                    let stat = fs::statat(fd(dir)?, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    kind = fs::FileType::from_raw_mode(stat.st_mode);
                }
                each(name, kind == fs::FileType::Directory);
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = fs::statvfs(&self.directory)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn forget_content(&self, file: &BenchHandle) -> io::Result<()> {
        Ok(fs::fadvise(fd(file)?, 0, None, Advice::DontNeed)?)
    }

    fn settle(&self) -> io::Result<()> {
        let root = self.root()?;
        fs::syncfs(fd(&root)?)?;
        // syncfs(2) does not reach a FUSE server. An fsync makes its journal commit.
        match fs::fsync(fd(&root)?) {
            // Some file systems cannot fsync a directory.
            Err(Errno::INVAL | Errno::NOSYS | Errno::ISDIR | Errno::NOTSUP) => Ok(()),
            other => Ok(other?),
        }
    }

    fn offline(&self) -> Option<&dyn TargetReopener> {
        self.offline.is_some().then_some(self)
    }
}

impl TargetReopener for KernelAccess {
    fn close(&self) -> io::Result<()> {
        self.settle()?;
        self.offline.as_ref().map_or(Ok(()), |offline| offline.close())
    }

    fn has_checker(&self) -> bool {
        self.offline.as_ref().is_some_and(|offline| offline.has_checker())
    }

    fn check(&self) -> io::Result<()> {
        self.offline.as_ref().map_or(Ok(()), |offline| offline.check())
    }

    fn open(&self) -> io::Result<()> {
        if let Some(offline) = &self.offline {
            offline.open()?;
            self.device.store(fs::stat(&self.directory)?.st_dev, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: after an unmount, the file system below the mount point is not measured.
    #[test]
    fn another_file_system_at_the_same_path_is_refused() {
        let directory = std::env::temp_dir();
        let access = KernelAccess::new(&directory, None).expect("it is there");
        assert!(access.root().is_ok());
        access.device.fetch_add(1, Ordering::Relaxed);
        let refused = access.root().expect_err("another file system");
        assert_eq!(refused.kind(), io::ErrorKind::NotConnected);
    }
}
