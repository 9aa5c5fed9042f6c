//! The table beside a model that keeps one mode for each byte.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::api::{FileHandle, FilesetUuid, Ino};
use parking_lot::Mutex;
use runtime::clock::ManualClock;
use runtime::prng::Prng;

use super::{
    CHAIN_MAX, FILE_LOCKS_MAX, FILE_WAITS_MAX, HOLDER_LOCKS_MAX, HOLDER_WAITS_MAX, HolderId, Lock,
    LockError, LockFacts, LockInterface, LockMode, LockOwner, LockRange, LockTable, WAITS_MAX,
    WaitId,
};

const BYTES: usize = 16;
const CONFLICT: LockError = LockError::Conflict { is_closing: false };
const FILES: u64 = 2;
const HOLDERS: u64 = 2;
const NUMBERS: u64 = 2;

type OwnerOfKind = (LockOwner, LockInterface);

/// A mode, and the open file through which it was taken.
type ModelByte = Option<(LockMode, u64)>;

/// What each owner holds, byte by byte, and who waits.
#[derive(Default)]
struct ModelTable {
    held: BTreeMap<(FileHandle, OwnerOfKind), [ModelByte; BYTES]>,
    waiting: Vec<(FileHandle, WaitId, Lock)>,
    answers: BTreeMap<WaitId, Result<(), LockError>>,
}

impl ModelTable {
    fn blockers(&self, file: FileHandle, lock: &Lock) -> Vec<LockOwner> {
        let conflicts = |(mode, _): (LockMode, u64)| {
            mode == LockMode::Exclusive || lock.mode == LockMode::Exclusive
        };
        let blocks = |((of, (owner, interface)), bytes): (
            &(FileHandle, OwnerOfKind),
            &[ModelByte; BYTES],
        )| {
            let is_other = *of == file && *owner != lock.owner && *interface == lock.interface;
            let conflicts = bytes_of(lock.range).any(|byte| bytes[byte].is_some_and(conflicts));
            (is_other && conflicts).then_some(*owner)
        };
        self.held.iter().filter_map(blocks).collect()
    }

    fn set(&mut self, file: FileHandle, lock: &Lock, mode: Option<LockMode>) {
        let bytes = self.held.entry((file, (lock.owner, lock.interface))).or_default();
        for byte in bytes_of(lock.range) {
            bytes[byte] = mode.map(|mode| (mode, lock.open_file));
        }
    }

    fn try_lock(&mut self, file: FileHandle, lock: &Lock) -> Result<(), LockError> {
        if lock.interface == LockInterface::Flock {
            let bytes = self.held.entry((file, (lock.owner, lock.interface))).or_default();
            for byte in bytes {
                *byte = byte.filter(|(mode, _)| *mode == lock.mode);
            }
            self.grant(file);
        }
        if !self.blockers(file, lock).is_empty() {
            return Err(CONFLICT);
        }
        self.set(file, lock, Some(lock.mode));
        self.grant(file);
        Ok(())
    }

    fn lock_or_wait(&mut self, file: FileHandle, lock: &Lock, id: WaitId) {
        let result = match self.try_lock(file, lock) {
            Err(CONFLICT) if self.would_deadlock(file, lock) => Err(LockError::Deadlock),
            Err(CONFLICT) => return self.waiting.push((file, id, *lock)),
            other => other,
        };
        self.answers.insert(id, result);
    }

    fn would_deadlock(&self, file: FileHandle, lock: &Lock) -> bool {
        if lock.interface == LockInterface::Flock {
            return false;
        }
        let mut reached: BTreeSet<LockOwner> = self.blockers(file, lock).into_iter().collect();
        loop {
            let of_reached = |(_, _, it): &&(FileHandle, WaitId, Lock)| {
                it.interface == LockInterface::Fcntl && reached.contains(&it.owner)
            };
            let more = self.waiting.iter().filter(of_reached);
            let more: Vec<_> = more.flat_map(|(file, _, it)| self.blockers(*file, it)).collect();
            let before = reached.len();
            reached.extend(more);
            if reached.len() == before {
                return reached.contains(&lock.owner);
            }
        }
    }

    fn grant(&mut self, file: FileHandle) {
        let is_free = |(of, _, lock): &(FileHandle, WaitId, Lock)| {
            *of == file && self.blockers(*of, lock).is_empty()
        };
        if let Some(index) = self.waiting.iter().position(is_free) {
            let (_, id, lock) = self.waiting.remove(index);
            self.set(file, &lock, Some(lock.mode));
            self.answers.insert(id, Ok(()));
            self.grant(file);
        }
    }

    fn end(&mut self, is_ended: impl Fn(&(FileHandle, OwnerOfKind), u64) -> bool) {
        for (of, bytes) in &mut self.held {
            for byte in bytes {
                *byte = byte.filter(|(_, open_file)| !is_ended(of, *open_file));
            }
        }
        for number in 0..FILES {
            self.grant(file_of(number));
        }
    }

    fn cancel(&mut self, error: LockError, is_cancelled: impl Fn(WaitId) -> bool) {
        let (ended, rest) =
            std::mem::take(&mut self.waiting).into_iter().partition(|it| is_cancelled(it.1));
        self.waiting = rest;
        let ended: Vec<(FileHandle, WaitId, Lock)> = ended;
        self.answers.extend(ended.iter().map(|it| (it.1, Err(error))));
    }
}

fn bytes_of(range: LockRange) -> std::ops::Range<usize> {
    let end = |byte: u64| usize::try_from(byte).unwrap_or(BYTES).min(BYTES);
    end(range.first)..end(range.last.saturating_add(1))
}

fn file_of(number: u64) -> FileHandle {
    // Two files of one inode number, so that the generation counts.
    FileHandle { fileset: FilesetUuid(7), ino: Ino(3), generation: number }
}

fn owner_of(holder: u64, number: u64) -> LockOwner {
    LockOwner { holder: HolderId(holder), number }
}

/// The real table, and the answers that it has given to waiting requests.
struct Tried {
    table: LockTable,
    answers: Arc<Mutex<BTreeMap<WaitId, Result<(), LockError>>>>,
}

impl Tried {
    fn new() -> Tried {
        Tried { table: LockTable::new(Arc::new(ManualClock::new())), answers: Arc::default() }
    }

    fn lock_or_wait(&self, file: FileHandle, lock: Lock, id: WaitId) {
        let answers = Arc::clone(&self.answers);
        let answer = move |result| {
            let before = answers.lock().insert(id, result);
            assert_eq!(before, None, "{id:?} is answered twice (LT3)");
        };
        self.table.lock_or_wait(file, lock, id, Box::new(answer));
    }

    /// Goal: what the table holds is what the model holds, in as few locks as there can be (LT2).
    fn check(&self, model: &ModelTable) {
        assert_eq!(*self.answers.lock(), model.answers);
        let listed = self.table.list();
        let (waiting, held): (Vec<LockFacts>, Vec<LockFacts>) =
            listed.into_iter().partition(|it| it.is_waiting);
        assert_eq!(self.table.counts(), (held.len(), waiting.len()));
        let mut shown: BTreeMap<(FileHandle, OwnerOfKind), [ModelByte; BYTES]> = BTreeMap::new();
        for it in &held {
            let of = (it.file, (it.lock.owner, it.lock.interface));
            let bytes = shown.entry(of).or_default();
            let range = bytes_of(it.lock.range);
            let next = bytes.get(range.end).copied().flatten();
            let last = range.start.checked_sub(1).and_then(|last| bytes[last]);
            let own = (it.lock.mode, it.lock.open_file);
            assert!(![next, last].contains(&Some(own)), "neighbours are not one: {it:?}");
            for byte in range {
                assert_eq!(bytes[byte].replace(own), None, "held twice: {it:?}");
            }
        }
        let wanted = model.held.iter().filter(|(_, bytes)| bytes.iter().any(Option::is_some));
        assert_eq!(shown, wanted.map(|(of, bytes)| (*of, *bytes)).collect());
        let order = |listed: &[(FileHandle, WaitId, Lock)]| {
            let mut by_file: Vec<(FileHandle, Lock)> =
                listed.iter().map(|it| (it.0, it.2)).collect();
            by_file.sort_by_key(|it| it.0);
            by_file
        };
        let waiting: Vec<_> = waiting.iter().map(|it| (it.file, it.lock)).collect();
        assert_eq!(waiting, order(&model.waiting));
    }
}

fn run(seed: u64) {
    let (tried, mut model) = (Tried::new(), ModelTable::default());
    let mut random = Prng::from_seed(seed);
    for step in 0..200 {
        let file = file_of(random.below(FILES));
        let owner = owner_of(random.below(HOLDERS), random.below(NUMBERS));
        let interface =
            if random.below(4) == 0 { LockInterface::Flock } else { LockInterface::Fcntl };
        let mode = if random.below(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
        let first = random.below(10);
        let last = if random.below(5) == 0 { u64::MAX } else { first + random.below(4) };
        let range = match interface {
            LockInterface::Fcntl => LockRange { first, last },
            LockInterface::Flock => LockRange::ALL,
        };
        let open_file = random.below(2);
        let lock = Lock { owner, interface, mode, range, open_file, pid: 1 };
        let id = (owner.holder, step);
        match random.below(16) {
            0..5 => {
                let done = tried.table.try_lock(file, lock);
                let is_conflict = matches!(done, Err(LockError::Conflict { .. }));
                let done = if is_conflict { Err(CONFLICT) } else { done };
                assert_eq!(done, model.try_lock(file, &lock));
            }
            5..9 => {
                tried.lock_or_wait(file, lock, id);
                model.lock_or_wait(file, &lock, id);
            }
            9..12 => {
                let of_both = (file.fileset, file.ino);
                assert_eq!(tried.table.unlock(of_both, owner, interface, range), Ok(()));
                for number in 0..FILES {
                    model.set(file_of(number), &lock, None);
                    model.grant(file_of(number));
                }
            }
            12 => {
                let id = (owner.holder, random.below(step + 1));
                let waits = model.waiting.iter().any(|it| it.1 == id);
                assert_eq!(tried.table.cancel(id, LockError::Interrupted), waits);
                model.cancel(LockError::Interrupted, |it| it == id);
            }
            13 => {
                tried.table.end_owner((file.fileset, file.ino), owner, open_file);
                model.end(|(_, of), _| *of == (owner, LockInterface::Fcntl));
            }
            14 => {
                tried.table.end_open_file((file.fileset, file.ino), owner.holder, open_file);
                model.end(|(_, of), through| of.0.holder == owner.holder && through == open_file);
            }
            _ => {
                tried.table.end_holder(owner.holder);
                model.cancel(LockError::Ended, |it| it.0 == owner.holder);
                model.end(|(_, of), _| of.0.holder == owner.holder);
            }
        }
        let blockers = model.blockers(file, &lock);
        let conflict = tried.table.conflict(file, &lock);
        assert_eq!(conflict.is_some(), !blockers.is_empty());
        assert!(conflict.is_none_or(|it| blockers.contains(&it.owner)));
        tried.check(&model);
    }
}

/// Goal: every answer and every held byte is that of the model.
#[test]
fn the_table_answers_as_a_model_of_bytes_does() {
    for seed in 0..2000 {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("seed {seed}");
        }
    }
}

fn exclusive(number: u64, range: LockRange) -> Lock {
    Lock {
        owner: owner_of(1, number),
        interface: LockInterface::Fcntl,
        mode: LockMode::Exclusive,
        range,
        open_file: 0,
        pid: 1,
    }
}

/// Goal: two processes that lock two bytes in opposite order do not wait for ever.
#[test]
fn who_would_wait_for_itself_is_refused() {
    let tried = Tried::new();
    let byte = |first| LockRange { first, last: first };
    let file = file_of(0);
    assert_eq!(tried.table.try_lock(file, exclusive(1, byte(0))), Ok(()));
    assert_eq!(tried.table.try_lock(file, exclusive(2, byte(1))), Ok(()));
    tried.lock_or_wait(file, exclusive(1, byte(1)), (HolderId(1), 10));
    tried.lock_or_wait(file, exclusive(2, byte(0)), (HolderId(1), 11));
    let answer = tried.answers.lock().get(&(HolderId(1), 11)).copied();
    assert_eq!(answer, Some(Err(LockError::Deadlock)));
    assert_eq!(tried.table.counts(), (2, 1));
}

/// Goal: the search for a deadlock ends: who closes a longer circle waits.
#[test]
fn a_long_circle_is_not_searched_to_its_end() {
    let byte = |number| LockRange { first: number, last: number };
    let closes = |length: u64| {
        let tried = Tried::new();
        for number in 0..length {
            assert_eq!(tried.table.try_lock(file_of(0), exclusive(number, byte(number))), Ok(()));
        }
        for number in 0..length {
            let next = byte((number + 1) % length);
            tried.lock_or_wait(file_of(0), exclusive(number, next), (HolderId(1), number));
        }
        let answers = tried.answers.lock().clone();
        answers.get(&(HolderId(1), length - 1)).copied()
    };
    let longest = u64::try_from(CHAIN_MAX).expect("small");
    assert_eq!(closes(longest), Some(Err(LockError::Deadlock)));
    assert_eq!(closes(longest + 2), None);
}

/// Goal: a conflict with a lock whose open file is being closed is told from others.
#[test]
fn a_lock_that_is_about_to_end_is_told() {
    let tried = Tried::new();
    let file = file_of(0);
    let of_file = (file.fileset, file.ino);
    let flock = |number, open_file| Lock {
        interface: LockInterface::Flock,
        mode: LockMode::Shared,
        open_file,
        ..exclusive(number, LockRange::ALL)
    };
    for number in [1, 2] {
        assert_eq!(tried.table.try_lock(file, flock(number, number)), Ok(()));
    }
    let wanted = Lock { mode: LockMode::Exclusive, ..flock(3, 3) };
    assert_eq!(tried.table.try_lock(file, wanted), Err(CONFLICT));
    tried.table.end_owner(of_file, owner_of(1, 9), 1);
    assert_eq!(tried.table.try_lock(file, wanted), Err(CONFLICT), "one of two stays");
    tried.table.end_owner(of_file, owner_of(1, 9), 2);
    let closing = Err(LockError::Conflict { is_closing: true });
    assert_eq!(tried.table.try_lock(file, wanted), closing);
    tried.table.end_open_file(of_file, HolderId(1), 1);
    tried.table.end_open_file(of_file, HolderId(1), 2);
    assert_eq!(tried.table.try_lock(file, wanted), Ok(()));
}

/// Goal: each bound is kept (LT5). Method: one holder takes a byte of each of many files, then
/// makes two locks of one for as long as it may; another waits.
#[test]
fn locks_and_waits_are_bounded() {
    let tried = Tried::new();
    let number = |index: usize| u64::try_from(index).expect("small");
    let byte = |index: usize| {
        let first = 2 * number(index) + 1;
        LockRange { first, last: first }
    };
    let file = |index: usize| FileHandle { ino: Ino(number(index) + 10), ..file_of(0) };
    let place = |index: usize| (file(index).fileset, file(index).ino);
    let too_many = Err(LockError::TooMany);
    for index in 0..FILE_LOCKS_MAX {
        assert_eq!(tried.table.try_lock(file(0), exclusive(1, byte(index))), Ok(()));
    }
    assert_eq!(tried.table.try_lock(file(0), exclusive(1, byte(FILE_LOCKS_MAX))), too_many);
    for index in FILE_LOCKS_MAX..HOLDER_LOCKS_MAX {
        assert_eq!(tried.table.try_lock(file(index), exclusive(1, LockRange::ALL)), Ok(()));
    }
    assert_eq!(tried.table.try_lock(file(1), exclusive(1, byte(0))), too_many);
    // Of locks that it has, by files of which each stays below its own bound.
    let split = |index: usize| {
        let at = FILE_LOCKS_MAX + index / FILE_LOCKS_MAX;
        tried.table.unlock(
            place(at),
            owner_of(1, 1),
            LockInterface::Fcntl,
            byte(index % FILE_LOCKS_MAX),
        )
    };
    for index in 0..HOLDER_LOCKS_MAX {
        assert_eq!(split(index), Ok(()), "{index}");
    }
    assert_eq!(split(HOLDER_LOCKS_MAX), too_many);
    assert_eq!(tried.table.counts().0, 2 * HOLDER_LOCKS_MAX);
    // What is released whole is never refused.
    let whole = tried.table.unlock(
        place(FILE_LOCKS_MAX),
        owner_of(1, 1),
        LockInterface::Fcntl,
        LockRange::ALL,
    );
    assert_eq!(whole, Ok(()));
    let wait = |holder: u64, count: usize, of: usize| {
        let id = (HolderId(holder), number(count));
        let wanted = Lock { owner: owner_of(holder, id.1), ..exclusive(0, byte(0)) };
        tried.lock_or_wait(file(of), wanted, id);
        tried.answers.lock().get(&id).copied()
    };
    let last = HOLDER_LOCKS_MAX - 1;
    for count in 0..FILE_WAITS_MAX {
        assert_eq!(wait(2, count, last - 20), None);
    }
    assert_eq!(wait(2, 1_000_000, last - 20), Some(too_many));
    for count in FILE_WAITS_MAX..HOLDER_WAITS_MAX {
        assert_eq!(wait(2, count, last), None);
    }
    assert_eq!(wait(2, 1_000_001, last - 1), Some(too_many));
    for count in 0..WAITS_MAX - HOLDER_WAITS_MAX {
        let holder = 3 + number(count / HOLDER_WAITS_MAX);
        assert_eq!(wait(holder, count, last - 2 - count / FILE_WAITS_MAX), None);
    }
    assert_eq!(wait(9, 0, last - 9), Some(too_many));
    for holder in 1..10 {
        tried.table.end_holder(HolderId(holder));
    }
    assert_eq!(tried.table.counts(), (0, 0));
}
