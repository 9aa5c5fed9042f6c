//! Advisory locks of files: one table for all shared mounts of a pool (decision 0111).
//!
//! A [`LockTable`] has byte ranges of fcntl(2) and whole files of flock(2). The table also makes
//! appends of several mounts to one file exclude each other. A front is a *holder*: when it ends,
//! all its locks end. The file system below neither knows of locks nor checks them.
//!
//! ```text
//!   mount A (GETLK, SETLK, FLUSH, RELEASE) --\
//!   mount B -----------------------------------+--> LockTable: file -> held, waiting
//! ```
//!
//! # Invariants
//!
//! - LT1: No two held locks conflict. Locks conflict if they are of one file and one interface, of
//!   two owners, overlap, and one of them is exclusive.
//! - LT2: Held locks of one owner, file and interface do not overlap. Neighbours of one mode
//!   and open file are one lock.
//! - LT3: A waiting request is answered once: granted when nothing held conflicts with it, in order
//!   of arrival, or refused. An answer is given without a lock of the table, so it may use the
//!   table.
//! - LT4: No fcntl request begins to wait for an owner that waits, directly or through others, for
//!   the requester. It is refused instead (`EDEADLK`), as fcntl(2) says. The search for this ends
//!   after [`CHAIN_MAX`] owners, as that of Linux does after 10, or 65,536 locks.
//! - LT5: Memory, and the time of an operation, are bounded ([`LOCKS_MAX`], [`HOLDER_LOCKS_MAX`],
//!   [`FILE_LOCKS_MAX`], [`WAITS_MAX`], [`HOLDER_WAITS_MAX`], [`FILE_WAITS_MAX`]). An unlock that
//!   makes two locks of one is refused only at twice these bounds.
//!
//! Not here: messages of the kernel (`fuse`), and which files a front may lock.

mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::api::{FileHandle, FilesetUuid, Ino};
use parking_lot::{Mutex, MutexGuard};
use runtime::clock::{Clock, Timestamp};

use self::file::{FileLocks, WaitingLock};

/// Most held locks in a table.
pub const LOCKS_MAX: usize = 1 << 18;
/// Most held locks of one holder.
pub const HOLDER_LOCKS_MAX: usize = 1 << 16;
/// Most held locks of one file. Each request for the file looks at all of them.
pub const FILE_LOCKS_MAX: usize = 1 << 14;
/// Most waiting requests in a table.
pub const WAITS_MAX: usize = 1 << 12;
/// Most waiting requests of one holder.
pub const HOLDER_WAITS_MAX: usize = 1 << 11;
/// Most waiting requests for one file. Each release looks at all of them.
pub const FILE_WAITS_MAX: usize = 1 << 10;
/// Locks of appends. Two files seldom share one.
const APPEND_LOCKS: usize = 64;
const APPEND_LOCKS_U64: u64 = 64;
/// Most owners that the search for a deadlock visits.
pub const CHAIN_MAX: usize = 64;
/// Most locks that it looks at.
const CHAIN_LOOKS_MAX: usize = 1 << 16;

/// One front that holds locks, such as a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u64);

/// System call that a lock is of. Locks of one interface do not conflict with those of the other,
/// as on a local file system of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockInterface {
    /// fcntl(2): byte ranges.
    Fcntl,
    /// flock(2): whole files.
    Flock,
}

/// Owner of a lock. Its own locks never conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The front.
    pub holder: HolderId,
    /// Which process or open file of the holder, as the holder calls it.
    pub number: u64,
}

/// Mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// A read lock: excludes exclusive locks.
    Shared,
    /// A write lock: excludes all locks.
    Exclusive,
}

/// Bytes from `first` to `last`, both included. `last` may be beyond the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRange {
    /// First byte.
    pub first: u64,
    /// Last byte, not less than `first`.
    pub last: u64,
}

impl LockRange {
    /// All bytes that a file can have.
    pub const ALL: LockRange = LockRange { first: 0, last: u64::MAX };

    fn overlaps(self, other: LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn touches(self, other: LockRange) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }
}

/// A lock, held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its owner.
    pub owner: LockOwner,
    /// System call.
    pub interface: LockInterface,
    /// Mode.
    pub mode: LockMode,
    /// Bytes.
    pub range: LockRange,
    /// The open file through which it was taken. See [`LockTable::end_open_file`].
    pub open_file: u64,
    /// Process id, for display and F_GETLK.
    pub pid: u32,
}

impl Lock {
    fn conflicts_with(&self, other: &Lock) -> bool {
        let is_exclusive = [self.mode, other.mode].contains(&LockMode::Exclusive);
        self.interface == other.interface
            && self.owner != other.owner
            && is_exclusive
            && self.range.overlaps(other.range)
    }
}

/// Why a lock is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another owner holds a conflicting lock (`EAGAIN`).
    #[error("another owner holds a conflicting lock")]
    Conflict {
        /// Its open file has been closed at least once, so it may end at any moment
        /// ([`LockTable::end_owner`]).
        is_closing: bool,
    },
    /// Waiting would never end (`EDEADLK`).
    #[error("the owner of a conflicting lock waits for this one")]
    Deadlock,
    /// A signal ended the waiting (`EINTR`).
    #[error("the waiting was interrupted")]
    Interrupted,
    /// The holder has ended (`ENOLCK`).
    #[error("the mount has ended")]
    Ended,
    /// A bound is reached (`ENOLCK`): see LT5. Release locks, or use fewer.
    #[error("too many locks")]
    TooMany,
}

/// A waiting request: its holder, and a number that is unique in the holder.
pub type WaitId = (HolderId, u64);

/// Receives the answer to a waiting request (LT3). Called once, by any thread.
pub type LockAnswer = Box<dyn FnOnce(Result<(), LockError>) + Send>;

/// A held or waiting lock, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFacts {
    /// The file.
    pub file: FileHandle,
    /// The lock.
    pub lock: Lock,
    /// It waits.
    pub is_waiting: bool,
    /// Time of the grant, or of the request if the lock waits.
    pub since: Timestamp,
}

/// The locks of all files of a pool.
pub struct LockTable {
    clock: Arc<dyn Clock>,
    next_holder: AtomicU64,
    /// Indexed by inode number.
    appends: [Mutex<()>; APPEND_LOCKS],
    state: Mutex<TableState>,
}

#[derive(Default)]
struct TableState {
    files: BTreeMap<FileHandle, FileLocks>,
    /// Held locks of each holder that has any, and their sum.
    counts: BTreeMap<HolderId, usize>,
    held_count: usize,
    /// Where each waiting request waits, for [`LockTable::cancel`].
    waits: BTreeMap<WaitId, (FileHandle, LockOwner)>,
    /// The same by owner, for the search for deadlocks.
    waits_by_owner: BTreeMap<(LockOwner, WaitId), FileHandle>,
}

/// Requests granted or refused while the table was locked, to be answered without its lock (LT3).
type Answers = Vec<(LockAnswer, Result<(), LockError>)>;

fn answer_each(answers: Answers) {
    for (answer, result) in answers {
        answer(result);
    }
}

impl LockTable {
    /// Returns a table without locks.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> LockTable {
        let appends = std::array::from_fn(|_| Mutex::new(()));
        LockTable { clock, next_holder: AtomicU64::new(1), appends, state: Mutex::default() }
    }

    /// Returns a number for a new holder. It must call [`LockTable::end_holder`] at its end.
    #[must_use]
    pub fn new_holder(&self) -> HolderId {
        HolderId(self.next_holder.fetch_add(1, Ordering::Relaxed))
    }

    /// Excludes other appends to the file through shared mounts, until the guard is dropped.
    pub fn lock_appends(&self, ino: Ino) -> MutexGuard<'_, ()> {
        let index = usize::try_from(ino.0 % APPEND_LOCKS_U64).unwrap_or(0);
        self.appends[index].lock()
    }

    /// Returns a held lock that conflicts with `lock` (F_GETLK).
    #[must_use]
    pub fn conflict(&self, file: FileHandle, lock: &Lock) -> Option<Lock> {
        self.state.lock().files.get(&file)?.conflict(lock).map(|held| held.lock)
    }

    /// Takes a lock, or refuses it. A new lock replaces the owner's earlier locks of its range.
    ///
    /// # Errors
    ///
    /// Nothing was changed, with one exception: a lock of flock(2) that cannot be converted is
    /// lost, as flock(2) says.
    pub fn try_lock(&self, file: FileHandle, lock: Lock) -> Result<(), LockError> {
        let now = self.clock.now();
        let mut answers = Answers::new();
        let result = self.state.lock().try_lock(file, lock, now, &mut answers);
        answer_each(answers);
        result
    }

    /// Takes a lock as [`LockTable::try_lock`] does, but waits where that refuses a conflict.
    /// `answer` is called once: before the return, or later by the thread that ends the waiting.
    pub fn lock_or_wait(&self, file: FileHandle, lock: Lock, id: WaitId, answer: LockAnswer) {
        self.wait_for(file, (lock, id, answer), false);
    }

    /// As [`LockTable::lock_or_wait`], for a caller that cancels the request soon. So it is in no
    /// circle of waiting owners (LT4).
    pub fn lock_soon(&self, file: FileHandle, lock: Lock, id: WaitId, answer: LockAnswer) {
        self.wait_for(file, (lock, id, answer), true);
    }

    fn wait_for(&self, file: FileHandle, wanted: (Lock, WaitId, LockAnswer), is_brief: bool) {
        let now = self.clock.now();
        let mut answers = Answers::new();
        self.state.lock().lock_or_wait(file, wanted, (is_brief, now), &mut answers);
        answer_each(answers);
    }

    /// Releases what `owner` holds of `range`. `file` is named without its generation, as no other
    /// file has its number while it is open.
    ///
    /// # Errors
    ///
    /// [`LockError::TooMany`], if a lock would become two at twice the bounds (LT5). Nothing was
    /// released then.
    pub fn unlock(
        &self,
        file: (FilesetUuid, Ino),
        owner: LockOwner,
        interface: LockInterface,
        range: LockRange,
    ) -> Result<(), LockError> {
        let mut refused = false;
        self.change_each(file, owner.holder, |locks, has_room| {
            if !has_room && locks.would_split(owner, interface, range) {
                refused = true;
                return 0;
            }
            locks.release(owner, interface, range)
        });
        if refused { Err(LockError::TooMany) } else { Ok(()) }
    }

    /// Releases the locks of fcntl(2) that `owner` has on a file, as its close(2) does, and notes
    /// that `open_file` has one reference less: its other locks may be about to end.
    pub fn end_owner(&self, file: (FilesetUuid, Ino), owner: LockOwner, open_file: u64) {
        self.change_each(file, owner.holder, |locks, _| {
            locks.note_closing(owner.holder, open_file);
            locks.remove(|lock| lock.owner == owner && lock.interface == LockInterface::Fcntl)
        });
    }

    /// Releases the locks that a holder took through an open file, after its last close: those of
    /// flock(2), and open file description locks of fcntl(2). Locks of processes are gone by then
    /// ([`LockTable::end_owner`]).
    pub fn end_open_file(&self, file: (FilesetUuid, Ino), holder: HolderId, open_file: u64) {
        self.change_each(file, holder, |locks, _| {
            locks.remove(|lock| lock.owner.holder == holder && lock.open_file == open_file)
        });
    }

    /// Changes the locks of a holder on each file of this number. `change` is told whether there is
    /// room for one more lock at twice the bounds.
    fn change_each(
        &self,
        (fileset, ino): (FilesetUuid, Ino),
        holder: HolderId,
        mut change: impl FnMut(&mut FileLocks, bool) -> isize,
    ) {
        let now = self.clock.now();
        let mut answers = Answers::new();
        let mut state = self.state.lock();
        // Most closes are of holders without a lock.
        if !state.counts.contains_key(&holder) {
            return;
        }
        let of = |generation| FileHandle { fileset, ino, generation };
        let files = state.files.range(of(0)..=of(u64::MAX)).map(|(file, _)| *file);
        for file in files.collect::<Vec<_>>() {
            let has_room = state.has_room(&file, holder, 2);
            state.change((file, holder), now, &mut answers, |locks| change(locks, has_room));
        }
        drop(state);
        answer_each(answers);
    }

    /// Releases all locks of a holder that has ended, and refuses its waiting requests.
    pub fn end_holder(&self, holder: HolderId) {
        let now = self.clock.now();
        let mut answers = Answers::new();
        let mut state = self.state.lock();
        let waits: Vec<WaitId> = state.waits.keys().copied().filter(|it| it.0 == holder).collect();
        let ended = waits.into_iter().filter_map(|id| state.take_wait(id));
        answers.extend(ended.map(|it| (it.answer, Err(LockError::Ended))));
        if state.counts.contains_key(&holder) {
            for file in state.files.keys().copied().collect::<Vec<_>>() {
                state.change((file, holder), now, &mut answers, |locks| {
                    locks.remove(|lock| lock.owner.holder == holder)
                });
            }
        }
        drop(state);
        answer_each(answers);
    }

    /// Ends the waiting of a request with `result`. Returns `false` if it does not wait any more.
    pub fn cancel(&self, id: WaitId, result: LockError) -> bool {
        let ended = self.state.lock().take_wait(id);
        let is_found = ended.is_some();
        if let Some(waiting) = ended {
            (waiting.answer)(Err(result));
        }
        is_found
    }

    /// Returns all locks, by file, those that are held before those that wait.
    #[must_use]
    pub fn list(&self) -> Vec<LockFacts> {
        let state = self.state.lock();
        let of_file = |(file, locks): (&FileHandle, &FileLocks)| {
            let fact = |lock, since, is_waiting| LockFacts { file: *file, lock, is_waiting, since };
            let held = locks.held.iter().map(|it| fact(it.lock, it.since, false));
            let waiting = locks.waiting.iter().map(|it| fact(it.lock, it.since, true));
            held.chain(waiting).collect::<Vec<_>>()
        };
        state.files.iter().flat_map(of_file).collect()
    }

    /// Returns the numbers of held locks and of waiting requests.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.held_count, state.waits.len())
    }

    /// Returns the numbers of held locks and of waiting requests of one holder.
    #[must_use]
    pub fn counts_of(&self, holder: HolderId) -> (usize, usize) {
        let state = self.state.lock();
        (state.counts.get(&holder).copied().unwrap_or(0), state.waits_of(holder))
    }
}

impl TableState {
    fn try_lock(
        &mut self,
        file: FileHandle,
        lock: Lock,
        now: Timestamp,
        answers: &mut Answers,
    ) -> Result<(), LockError> {
        let holder = lock.owner.holder;
        if !self.has_room(&file, holder, 1) {
            return Err(LockError::TooMany);
        }
        if lock.interface == LockInterface::Flock {
            // A conversion is not atomic: the old lock goes first, and who waits for it may come
            // before the new one (flock(2)).
            self.change((file, holder), now, answers, |locks| locks.release_other_mode(&lock));
        }
        if let Some(held) = self.files.get(&file).and_then(|locks| locks.conflict(&lock)) {
            return Err(LockError::Conflict { is_closing: held.is_closing });
        }
        // A lock that becomes shared may let others in.
        self.change((file, holder), now, answers, |locks| locks.hold(lock, now));
        Ok(())
    }

    fn lock_or_wait(
        &mut self,
        file: FileHandle,
        (lock, id, answer): (Lock, WaitId, LockAnswer),
        (is_brief, now): (bool, Timestamp),
        answers: &mut Answers,
    ) {
        let result = match self.try_lock(file, lock, now, answers) {
            Err(LockError::Conflict { .. }) => self.may_wait(file, &lock, (id, is_brief)),
            other => return answers.push((answer, other)),
        };
        if let Err(error) = result {
            return answers.push((answer, Err(error)));
        }
        self.waits.insert(id, (file, lock.owner));
        if !is_brief {
            self.waits_by_owner.insert((lock.owner, id), file);
        }
        let waiting = WaitingLock { id, lock, answer, since: now };
        self.files.entry(file).or_default().waiting.push(waiting);
    }

    fn may_wait(
        &self,
        file: FileHandle,
        lock: &Lock,
        (id, is_brief): (WaitId, bool),
    ) -> Result<(), LockError> {
        let is_checked = lock.interface == LockInterface::Fcntl && !is_brief;
        if is_checked && self.would_deadlock(file, lock) {
            return Err(LockError::Deadlock);
        }
        let of_file = self.files.get(&file).map_or(0, |locks| locks.waiting.len());
        let is_full = self.waits.len() >= WAITS_MAX
            || self.waits_of(id.0) >= HOLDER_WAITS_MAX
            || of_file >= FILE_WAITS_MAX
            || self.waits.contains_key(&id);
        if is_full { Err(LockError::TooMany) } else { Ok(()) }
    }

    fn waits_of(&self, holder: HolderId) -> usize {
        self.waits.range((holder, 0)..=(holder, u64::MAX)).count()
    }

    /// Returns whether there is room for one more lock, at so many times the bounds.
    fn has_room(&self, file: &FileHandle, holder: HolderId, times: usize) -> bool {
        let of_holder = self.counts.get(&holder).copied().unwrap_or(0);
        let of_file = self.files.get(file).map_or(0, |locks| locks.held.len());
        of_holder < times * HOLDER_LOCKS_MAX
            && of_file < times * FILE_LOCKS_MAX
            && self.held_count < times * LOCKS_MAX
    }

    /// Changes the locks of a holder, then grants what does not conflict any more. `change` returns
    /// by how many locks the holder has more or less.
    fn change(
        &mut self,
        (file, holder): (FileHandle, HolderId),
        now: Timestamp,
        answers: &mut Answers,
        change: impl FnOnce(&mut FileLocks) -> isize,
    ) {
        let locks = self.files.entry(file).or_default();
        let mut changes = vec![(holder, change(locks))];
        while let Some((waiting, more)) = locks.grant_next(now) {
            changes.push((waiting.lock.owner.holder, more));
            self.waits.remove(&waiting.id);
            self.waits_by_owner.remove(&(waiting.lock.owner, waiting.id));
            answers.push((waiting.answer, Ok(())));
        }
        if locks.is_empty() {
            self.files.remove(&file);
        }
        for (holder, more) in changes {
            let count = self.counts.entry(holder).or_default();
            *count = count.saturating_add_signed(more);
            if *count == 0 {
                self.counts.remove(&holder);
            }
            self.held_count = self.held_count.saturating_add_signed(more);
        }
    }

    fn take_wait(&mut self, id: WaitId) -> Option<WaitingLock> {
        let (file, owner) = self.waits.remove(&id)?;
        self.waits_by_owner.remove(&(owner, id));
        let locks = self.files.get_mut(&file)?;
        let index = locks.waiting.iter().position(|waiting| waiting.id == id)?;
        let taken = locks.waiting.remove(index);
        if locks.is_empty() {
            self.files.remove(&file);
        }
        Some(taken)
    }

    /// Returns whether an owner that `lock` would wait for waits for the owner of `lock`, directly
    /// or through others (LT4).
    fn would_deadlock(&self, file: FileHandle, lock: &Lock) -> bool {
        let mut seen = BTreeSet::new();
        let mut looks = 0;
        let mut next: Vec<LockOwner> = self.blockers_of(&file, lock).into_iter().collect();
        while let Some(owner) = next.pop() {
            if owner == lock.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            let first = (HolderId(0), 0);
            let of_owner = self.waits_by_owner.range((owner, first)..);
            for ((_, id), file) in of_owner.take_while(|((it, _), _)| *it == owner) {
                let Some(locks) = self.files.get(file) else { continue };
                looks += locks.held.len() + locks.waiting.len();
                if seen.len() > CHAIN_MAX || looks > CHAIN_LOOKS_MAX {
                    return false;
                }
                let waiting = locks.waiting_of(*id);
                if let Some(waiting) = waiting.filter(|it| it.interface == LockInterface::Fcntl) {
                    let blockers = self.blockers_of(file, waiting);
                    next.extend(blockers.into_iter().filter(|owner| !seen.contains(owner)));
                }
            }
        }
        false
    }

    fn blockers_of(&self, file: &FileHandle, lock: &Lock) -> BTreeSet<LockOwner> {
        let held = self.files.get(file).map_or(&[][..], |locks| &locks.held);
        let conflicting = held.iter().filter(|it| it.lock.conflicts_with(lock));
        conflicting.map(|it| it.lock.owner).collect()
    }
}

impl std::fmt::Debug for LockTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockTable").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
