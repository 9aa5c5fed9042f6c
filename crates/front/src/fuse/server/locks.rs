//! Locks of a shared mount: fcntl(2) and flock(2) of its processes, in the table that all mounts of
//! the pool share (FU9).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use engine::api::{Caller, FileHandle, FsError, FsResult, Ino, WriteData};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::{FuseServer, KERNEL, errno, rest_of};
use crate::fuse::protocol::{NodeId, NodeLock, OpenedFile, Reply};
use crate::locks::{HolderId, Lock, LockError, LockInterface, LockMode, LockOwner, LockTable};
use crate::shared::Viewer;

/// Most interrupts kept for requests that have not arrived. Only those of the moment count: the
/// kernel sends an interrupt after its request, and threads may see them in the other order.
const INTERRUPTS_MAX: usize = 1 << 13;

/// Time that a request for a lock has without waiting, if the file of the conflicting lock is being
/// closed. The kernel sends RELEASE, which ends that lock, after close(2) has returned.
const CLOSING_TIME: Duration = Duration::from_millis(20);

pub(super) struct MountLocks {
    table: Arc<LockTable>,
    holder: HolderId,
    /// Number of the last open file.
    last_open: AtomicU64,
    /// Number of the last request that waited for a close.
    last_wait: AtomicU64,
    waits_for_close: AtomicBool,
    interrupted: Mutex<EarlyInterrupts>,
}

/// Ids of interrupted requests that did not wait for a lock, the oldest first.
#[derive(Default)]
struct EarlyInterrupts(VecDeque<u64>);

impl EarlyInterrupts {
    fn add(&mut self, unique: u64) {
        if self.0.len() >= INTERRUPTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(unique);
    }

    fn take(&mut self, unique: u64) -> bool {
        let index = self.0.iter().position(|it| *it == unique);
        index.and_then(|index| self.0.remove(index)).is_some()
    }
}

/// A notice that may have to precede the grant of a lock (FU9).
pub(in crate::fuse) struct LockNotice {
    pub(in crate::fuse) node: NodeId,
    ino: Ino,
    viewer: Option<Arc<Viewer>>,
}

impl LockNotice {
    /// Calls `tell` if the kernel must be told to forget the file's attributes first.
    pub(in crate::fuse) fn send(&self, tell: impl FnOnce()) {
        let Some(viewer) = &self.viewer else { return };
        if viewer.is_untold(self.ino) {
            let since_ns = viewer.now_ns();
            tell();
            viewer.was_told(self.ino, since_ns);
        }
    }
}

impl Drop for MountLocks {
    fn drop(&mut self) {
        self.table.end_holder(self.holder);
    }
}

impl MountLocks {
    fn lock_of(&self, lock: &NodeLock) -> Option<Lock> {
        Some(Lock {
            owner: self.owner(lock.owner),
            interface: lock.interface,
            mode: lock.mode?,
            range: lock.range,
            open_file: lock.open_file,
            pid: lock.pid,
        })
    }

    fn owner(&self, number: u64) -> LockOwner {
        LockOwner { holder: self.holder, number }
    }

    fn try_lock(&self, file: FileHandle, lock: Lock) -> Result<(), LockError> {
        let refused = match self.table.try_lock(file, lock) {
            Err(refused @ LockError::Conflict { is_closing: true }) => refused,
            done => return done,
        };
        // One thread at a time: RELEASE needs another.
        if self.waits_for_close.swap(true, Ordering::AcqRel) {
            return Err(refused);
        }
        let done = self.lock_soon(file, lock, refused);
        self.waits_for_close.store(false, Ordering::Release);
        done
    }

    fn lock_soon(&self, file: FileHandle, lock: Lock, refused: LockError) -> Result<(), LockError> {
        // Ids of requests are even.
        let id = (self.holder, self.last_wait.fetch_add(2, Ordering::Relaxed) | 1);
        let (tell, told) = sync_channel(1);
        let answer = move |taken: Result<(), LockError>| {
            // The receiver lives until the answer has come.
            let _ = tell.send(taken);
        };
        self.table.lock_soon(file, lock, id, Box::new(answer));
        match told.recv_timeout(CLOSING_TIME) {
            // Another refusal than it would have had without waiting.
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(refused),
            Ok(Ok(())) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                self.table.cancel(id, refused);
                told.recv().unwrap_or(Err(refused))
            }
        }
    }

    fn was_interrupted(&self, unique: u64) -> bool {
        self.interrupted.lock().take(unique)
    }
}

impl FuseServer {
    /// Keeps locks of this mount in `table`, with those of other mounts.
    #[must_use]
    pub fn locking(self, table: &Arc<LockTable>) -> FuseServer {
        let locks = MountLocks {
            holder: table.new_holder(),
            table: Arc::clone(table),
            last_open: AtomicU64::new(0),
            last_wait: AtomicU64::new(0),
            waits_for_close: AtomicBool::new(false),
            interrupted: Mutex::default(),
        };
        FuseServer { locks: Some(locks), ..self }
    }

    pub(in crate::fuse) fn has_locks(&self) -> bool {
        self.locks.is_some()
    }

    /// Returns the table, and the number of this mount in it.
    pub(in crate::fuse) fn lock_table(&self) -> Option<(Arc<LockTable>, HolderId)> {
        self.locks.as_ref().map(|locks| (Arc::clone(&locks.table), locks.holder))
    }

    pub(super) fn opened(&self, is_direct: bool) -> OpenedFile {
        let next = |locks: &MountLocks| locks.last_open.fetch_add(1, Ordering::Relaxed) + 1;
        OpenedFile { number: self.locks.as_ref().map_or(0, next), is_direct }
    }

    /// Returns the file that a lock is of. A mounter could forge the permissions that its kernel
    /// has checked, so they are checked here.
    fn file_to_lock(&self, caller: &Caller, asked: &NodeLock) -> Result<FileHandle, Errno> {
        let ino = self.numbers.ino_of(asked.node);
        let check = || -> FsResult<()> {
            if self.acting.is_some() {
                let rights = self.fs.access(caller, ino)?;
                let may_lock = match (asked.interface, asked.mode) {
                    (LockInterface::Fcntl, Some(LockMode::Exclusive)) => rights.writes,
                    (LockInterface::Fcntl, _) => rights.reads,
                    // flock(2) asks for an open file alone.
                    (LockInterface::Flock, _) => rights.reads || rights.writes,
                };
                if !may_lock {
                    return Err(FsError::AccessDenied);
                }
            }
            Ok(())
        };
        check().map_err(|error| errno("lock", ino, &error))?;
        self.locked_file(caller, asked.node)
    }

    fn locked_file(&self, caller: &Caller, node: NodeId) -> Result<FileHandle, Errno> {
        let ino = self.numbers.ino_of(node);
        let attr = self.fs.getattr(caller, ino).map_err(|error| errno("lock", ino, &error))?;
        Ok(self.fs.handle_of(&attr, self.fileset))
    }

    pub(super) fn conflicting_lock(
        &self,
        caller: &Caller,
        asked: &NodeLock,
    ) -> Result<Option<Lock>, Errno> {
        let locks = self.locks.as_ref().ok_or(Errno::NOSYS)?;
        let lock = locks.lock_of(asked).ok_or(Errno::INVAL)?;
        Ok(locks.table.conflict(self.locked_file(caller, asked.node)?, &lock))
    }

    pub(super) fn set_lock(
        &self,
        caller: &Caller,
        asked: &NodeLock,
    ) -> Result<Reply<'static>, Errno> {
        let locks = self.locks.as_ref().ok_or(Errno::NOSYS)?;
        let done = match locks.lock_of(asked) {
            Some(lock) => locks.try_lock(self.file_to_lock(caller, asked)?, lock),
            None => {
                let file = (self.fileset, self.numbers.ino_of(asked.node));
                let owner = locks.owner(asked.owner);
                locks.table.unlock(file, owner, asked.interface, asked.range)
            }
        };
        done.map(|()| Reply::Done).map_err(lock_errno)
    }

    /// Takes a lock, and then calls `told`: before returning, or when the lock is free, or when the
    /// request `unique` is interrupted. No thread waits meanwhile.
    pub(in crate::fuse) fn wait_for_lock(
        &self,
        asked: &NodeLock,
        unique: u64,
        told: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let Some(locks) = &self.locks else { return told(Err(Errno::NOSYS)) };
        if self.given().is_some_and(|given| !given.has(asked.node)) {
            return told(Err(Errno::STALE));
        }
        let Some(lock) = locks.lock_of(asked) else { return told(Err(Errno::INVAL)) };
        let caller = self.acting.as_ref().map_or(&KERNEL, |acting| &acting.caller);
        let file = match self.file_to_lock(caller, asked) {
            Ok(file) => file,
            Err(error) => return told(Err(error)),
        };
        let id = (locks.holder, unique);
        let answer = Box::new(|taken: Result<(), LockError>| told(taken.map_err(lock_errno)));
        locks.table.lock_or_wait(file, lock, id, answer);
        // An interrupt before this line is in the list, a later one finds the waiting request.
        if locks.was_interrupted(unique) {
            locks.table.cancel(id, LockError::Interrupted);
        }
    }

    /// Writes at the end of the file. On a shared mount this may be beyond `offset`, the end that
    /// the kernel knows. The kernel drops the pages that it has filled there when it next fetches
    /// attributes: it forgets them with the reply, and the mtime differs.
    pub(super) fn append(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
    ) -> FsResult<usize> {
        let Some(locks) = &self.locks else { return self.write(caller, ino, offset, data) };
        let _alone = locks.table.lock_appends(ino);
        let end = self.fs.getattr(caller, ino)?.size_bytes;
        let mut done = self.write(caller, ino, end, data)?;
        // The kernel would append the rest later, after what others append meanwhile.
        while done < data.len() {
            let at = u64::try_from(done).ok().and_then(|done| end.checked_add(done));
            let at = at.ok_or(FsError::FileTooLarge)?;
            match self.write(caller, ino, at, &rest_of(data, done)) {
                Ok(0) | Err(_) => break,
                Ok(more) => done += more,
            }
        }
        Ok(done)
    }

    /// Returns the notice that may have to precede the grant of a lock of `node`.
    pub(in crate::fuse) fn lock_notice(&self, node: NodeId) -> LockNotice {
        let viewer = self.viewer.as_ref().map(Arc::clone);
        LockNotice { node, ino: self.numbers.ino_of(node), viewer }
    }

    /// Ends the waiting of request `unique`, now or as soon as it begins.
    pub(in crate::fuse) fn interrupt(&self, unique: u64) {
        let Some(locks) = &self.locks else { return };
        let id = (locks.holder, unique);
        if locks.table.cancel(id, LockError::Interrupted) {
            return;
        }
        locks.interrupted.lock().add(unique);
        if locks.table.cancel(id, LockError::Interrupted) {
            locks.was_interrupted(unique);
        }
    }

    pub(super) fn flush_locks(&self, node: NodeId, owner: u64, open_file: u64) -> Reply<'static> {
        if let Some(locks) = &self.locks {
            let file = (self.fileset, self.numbers.ino_of(node));
            locks.table.end_owner(file, locks.owner(owner), open_file);
        }
        Reply::Done
    }

    pub(super) fn release_locks(&self, node: NodeId, open_file: u64) -> Reply<'static> {
        if let Some(locks) = &self.locks {
            let file = (self.fileset, self.numbers.ino_of(node));
            locks.table.end_open_file(file, locks.holder, open_file);
        }
        Reply::Done
    }
}

fn lock_errno(error: LockError) -> Errno {
    match error {
        LockError::Conflict { .. } => Errno::AGAIN,
        LockError::Deadlock => Errno::DEADLK,
        LockError::Interrupted => Errno::INTR,
        LockError::Ended | LockError::TooMany => Errno::NOLCK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_of_the_moment_are_kept() {
        let mut early = EarlyInterrupts::default();
        let last = u64::try_from(INTERRUPTS_MAX).expect("small");
        for unique in 0..=last {
            early.add(unique);
        }
        assert_eq!(early.0.len(), INTERRUPTS_MAX);
        assert_eq!([0, 1, last, last].map(|unique| early.take(unique)), [false, true, true, false]);
    }
}
