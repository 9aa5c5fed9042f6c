//! A ground made of the reference: right by construction, so it tells whether the torture is fair;
//! or wrong in one way, so it tells whether that is found.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use engine::vnode::api::{
    Access, Around, Attr, Caller, Data, DirEntry, Fallocate, FileKind, FileSystem, FilesetUuid,
    FsError, FsResult, Handle, Ino, NewInode, RenameMode, Seek, SetAttr, Stability, StatFs,
    XattrMode,
};
use runtime::sync::sim;
use storage::device::{AlignedBuffer, DeviceError, Purpose, SharedDevice};

use super::{Ground, JobStep, Opened, Start};
use crate::model::Model;

/// In which write the ground panics that does.
const PANIC_AT_WRITE: u64 = 20;
/// How often the job of the ground runs, and how long it pauses.
const BEATS: u64 = 1000;
const BEAT_NS: u64 = 50_000;

/// In which way a [`ReferenceGround`] is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// In no way.
    Nothing,
    /// fsync and sync are acknowledged and nothing is durable.
    SyncLies,
    /// Of two syncs that overlap, the older one takes back what the newer one made durable.
    OlderSyncWins,
    /// After a crash there is a file that nobody made.
    Stranger,
    /// Reads answer one byte too few.
    ShortReads,
    /// One write panics.
    Panics,
    /// The pool cannot be opened a second time.
    OpensOnce,
    /// The check finds something.
    CheckComplains,
    /// Of a device that failed nobody is told.
    IgnoresErrors,
    /// A pool whose device failed takes changes all the same.
    GoesOn,
    /// A sync waits for a lock that is never given back.
    Deadlocks,
}

/// Pools whose durable state is a copy of a model, kept here; their device only sees that something
/// is written and flushed.
#[derive(Debug)]
pub struct ReferenceGround {
    wrong: Wrong,
    opens: AtomicU64,
    durable: Arc<Mutex<Option<Model>>>,
    /// The model of the last life, of which a crash may keep all or what is durable.
    live: Mutex<Option<Arc<Model>>>,
}

struct Live {
    wrong: Wrong,
    model: Arc<Model>,
    device: SharedDevice,
    durable: Arc<Mutex<Option<Model>>>,
    writes: AtomicU64,
    /// Copies taken so far: of two that overlap, the newer stays.
    copies: AtomicU64,
    newest_durable: AtomicU64,
    lock: runtime::sync::Mutex<()>,
    has_failed: Arc<AtomicBool>,
}

impl ReferenceGround {
    /// A ground that is wrong in one way, or in none.
    #[must_use]
    pub fn new(wrong: Wrong) -> ReferenceGround {
        let durable = Arc::new(Mutex::new(None));
        ReferenceGround { wrong, opens: AtomicU64::new(0), durable, live: Mutex::new(None) }
    }
}

impl Ground for ReferenceGround {
    fn device_bytes(&self, _pool_seed: u64) -> u64 {
        1 << 20
    }

    fn log_range(&self, _pool_seed: u64) -> Range<u64> {
        0..4096
    }

    fn format(&self, start: &Start) -> Result<(), String> {
        let model = Model::new(Arc::clone(&start.clock));
        *self.durable.lock().expect("nobody panics while he holds it") = Some(model);
        *self.live.lock().expect("nobody panics while he holds it") = None;
        self.opens.store(0, Ordering::SeqCst);
        Ok(())
    }

    fn open(&self, start: &Start) -> Result<Opened, String> {
        start.device.flush(Purpose::Journal).map_err(|error| error.to_string())?;
        if self.opens.fetch_add(1, Ordering::SeqCst) > 0 && self.wrong == Wrong::OpensOnce {
            return Err("it was open once".to_owned());
        }
        let last = self.live.lock().expect("nobody panics while he holds it").take();
        let mut durable = self.durable.lock().expect("nobody panics while he holds it");
        // A crash keeps what is durable, or all that was done.
        let kept = match last {
            Some(live) if start.seed.is_multiple_of(2) && self.wrong != Wrong::SyncLies => {
                live.reopened()
            }
            Some(_) | None => durable.as_ref().ok_or("nothing was made")?.reopened(),
        };
        if self.wrong == Wrong::Stranger && self.opens.load(Ordering::SeqCst) > 1 {
            let new = NewInode::new(FileKind::Regular, 0);
            kept.create(&Caller::root(), kept.root(), b"stranger", new, None).expect("a new name");
        }
        *durable = Some(kept.fork());
        let model = Arc::new(kept);
        *self.live.lock().expect("nobody panics while he holds it") = Some(Arc::clone(&model));
        let has_failed = Arc::new(AtomicBool::new(false));
        let failed = Arc::clone(&has_failed);
        let fs = Live {
            wrong: self.wrong,
            model,
            device: Arc::clone(&start.device),
            durable: Arc::clone(&self.durable),
            writes: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            newest_durable: AtomicU64::new(0),
            lock: runtime::sync::Mutex::new(()),
            has_failed,
        };
        let mut beats = 0_u64;
        let beat = move || {
            beats += 1;
            (beats < BEATS).then_some(BEAT_NS)
        };
        let fs = Arc::new(fs);
        let closing = Arc::clone(&fs);
        let close = Box::new(move || closing.persist().map_err(|error| error.to_string()));
        let has_failed = Box::new(move || failed.load(Ordering::SeqCst));
        let jobs: Vec<(String, JobStep)> = vec![("beat".to_owned(), Box::new(beat))];
        Ok(Opened { fs, has_failed, close, jobs, clones: None, groups: Arc::default() })
    }

    fn check(&self, _start: &Start) -> Vec<String> {
        let is_wrong = self.wrong == Wrong::CheckComplains;
        if is_wrong { vec!["XX001: one too many".to_owned()] } else { Vec::new() }
    }
}

impl Live {
    /// What lies between asking and answering: others run, or the power goes.
    fn between<T>(&self, work: impl FnOnce(&Model) -> FsResult<T>) -> FsResult<T> {
        sim::yield_now();
        let answer = work(&self.model);
        sim::yield_now();
        answer
    }

    /// As `between`, for what changes something.
    fn change<T>(&self, work: impl FnOnce(&Model) -> FsResult<T>) -> FsResult<T> {
        if self.has_failed.load(Ordering::SeqCst) && self.wrong != Wrong::GoesOn {
            return Err(FsError::ReadOnly { reason: "sim:0 failed".to_owned() });
        }
        self.between(work)
    }

    /// The device failed: nothing is acknowledged from now on.
    fn failed(&self, error: &DeviceError) -> FsResult<()> {
        if self.wrong == Wrong::IgnoresErrors {
            return Ok(());
        }
        self.has_failed.store(true, Ordering::SeqCst);
        Err(FsError::io(error.to_string()))
    }

    fn persist(&self) -> FsResult<()> {
        self.change(|_| Ok(()))?;
        let (copy, number) = (self.model.fork(), self.copies.fetch_add(1, Ordering::SeqCst));
        let written = self.device.write(Purpose::Journal, 0, AlignedBuffer::zeroed(4096));
        let flushed = written.and_then(|()| self.device.flush(Purpose::Journal));
        if let Err(error) = flushed {
            return self.failed(&error);
        }
        if self.wrong == Wrong::Deadlocks {
            std::mem::forget(self.lock.lock());
        }
        let lies = self.wrong == Wrong::SyncLies && sim::current().is_some();
        let newest = self.newest_durable.fetch_max(number, Ordering::SeqCst);
        if !lies && (number >= newest || self.wrong == Wrong::OlderSyncWins) {
            *self.durable.lock().expect("nobody panics while he holds it") = Some(copy);
        }
        Ok(())
    }
}

impl FileSystem for Live {
    fn main_fileset(&self) -> FilesetUuid {
        self.model.main_fileset()
    }
    fn root(&self) -> Ino {
        self.model.root()
    }
    fn verifier(&self) -> u64 {
        self.model.verifier()
    }
    fn resolve(&self, caller: &Caller, handle: Handle) -> FsResult<Attr> {
        self.between(|model| model.resolve(caller, handle))
    }
    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.between(|model| model.lookup(caller, parent, name))
    }
    fn forget(&self, ino: Ino, count: u64) {
        self.model.forget(ino, count);
    }
    fn getattr(&self, caller: &Caller, ino: Ino) -> FsResult<Attr> {
        self.between(|model| model.getattr(caller, ino))
    }
    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<Access> {
        self.between(|model| model.access(caller, ino))
    }
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.change(|model| model.setattr(caller, ino, change, around))
    }
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.change(|model| model.create(caller, parent, name, new, around))
    }
    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.change(|model| model.symlink(caller, parent, name, target, new, around))
    }
    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        self.between(|model| model.readlink(caller, ino))
    }
    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.change(|model| model.link(caller, ino, parent, name, around))
    }
    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.change(|model| model.unlink(caller, parent, name, around))
    }
    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.change(|model| model.rmdir(caller, parent, name, around))
    }
    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        around: Option<&mut [Around; 2]>,
    ) -> FsResult<()> {
        self.change(|model| model.rename(caller, source, target, mode, around))
    }
    fn read(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let is_short = self.wrong == Wrong::ShortReads && sim::current().is_some();
        let length = if is_short { length.saturating_sub(1) } else { length };
        self.between(|model| model.read(caller, ino, offset, length, into))
    }
    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let nth = self.writes.fetch_add(1, Ordering::SeqCst);
        assert!(self.wrong != Wrong::Panics || nth != PANIC_AT_WRITE, "a bug of this ground");
        self.change(|model| model.write(caller, ino, offset, data))
    }
    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &Data<'_>,
        stability: Stability,
        _around: Option<&mut Around>,
    ) -> FsResult<usize> {
        self.write(caller, ino, offset, data)?;
        if stability == Stability::Durable {
            self.fsync(caller, ino, false)?;
        }
        Ok(data.len())
    }
    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        self.between(|model| model.cookie_verifier(caller, ino))
    }
    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        self.between(|model| model.readdir(caller, ino, cookie, each))
    }
    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> FsResult<()> {
        self.model.fsync(caller, ino, data_only)?;
        self.persist()
    }
    fn sync(&self) -> FsResult<()> {
        self.persist()
    }
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        self.between(|model| model.getxattr(caller, ino, name))
    }
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.change(|model| model.setxattr(caller, ino, name, value, mode, around))
    }
    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        self.between(|model| model.listxattr(caller, ino))
    }
    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.change(|model| model.removexattr(caller, ino, name, around))
    }
    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        self.change(|model| model.tmpfile(caller, parent, new))
    }
    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()> {
        self.change(|model| model.fallocate(caller, ino, offset, length_bytes, mode))
    }
    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        self.between(|model| model.seek(caller, ino, offset, what))
    }
    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        self.change(|model| model.copy_range(caller, source, target, length_bytes))
    }
    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.model.statfs(caller, fileset)
    }
}
