//! A ground made of the reference: right by construction, so it tells whether the torture is fair;
//! or wrong in one way, so it tells whether that is found.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use engine::api::{
    AccessRights, Attr, AttributeChange, Caller, DirEntry, Fallocate, FileHandle, FileKind,
    FileSystem, FilesetUuid, FsError, FsResult, Ino, NewInode, RenameMode, Seek, SetAttr,
    Stability, StatFs, WriteData, XattrMode,
};
use runtime::sync::sim;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, SharedDevice};

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
        start.device.flush(IoPurpose::Journal).map_err(|error| error.to_string())?;
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
        Ok(Opened { fs, has_failed, close, jobs, snapshots: None, groups: Arc::default() })
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
        let written = self.device.write(IoPurpose::Journal, 0, AlignedBuffer::zeroed(4096));
        let flushed = written.and_then(|()| self.device.flush(IoPurpose::Journal));
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
    engine::forward! { between:
        resolve lookup getattr access readlink cookie_verifier getxattr listxattr seek
    }
    engine::forward! { change:
        setattr create symlink link unlink rmdir rename setxattr removexattr tmpfile
        fallocate copy_range
    }

    fn main_fileset(&self) -> FilesetUuid {
        self.model.main_fileset()
    }
    fn root(&self) -> Ino {
        self.model.root()
    }
    fn verifier(&self) -> u64 {
        self.model.verifier()
    }
    fn forget(&self, ino: Ino, count: u64) {
        self.model.forget(ino, count);
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
    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        stability: Stability,
        _around: Option<&mut AttributeChange>,
    ) -> FsResult<usize> {
        let nth = self.writes.fetch_add(1, Ordering::SeqCst);
        assert!(self.wrong != Wrong::Panics || nth != PANIC_AT_WRITE, "a bug of this ground");
        self.change(|model| model.write(caller, ino, offset, data))?;
        if stability == Stability::Durable {
            self.fsync(caller, ino, false)?;
        }
        Ok(data.len())
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
    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.model.statfs(caller, fileset)
    }
}
