//! What clients ask now, by file, for as long as somebody looks; and the last requests that were
//! slow.
//!
//! Both fronts tell the same [`Watch`]. Who looks asks again and again, and is told what happened
//! since it asked last; where it asks no more, its look ends by itself. Requests that took long are
//! kept whether anybody looks or not: those from [`SLOW_FROM`] on, and shorter ones while somebody
//! wants to see them.
//!
//! # Invariants
//!
//! - WA1: While nobody looks, a request that is not slow costs one comparison, and takes no lock.
//! - WA2: Memory is bounded: [`LOOKS_MAX`] looks of [`FILES_MAX`] files each, and [`SLOW_MAX`]
//!   requests. What has no room is counted, without its file.
//! - WA3: A look ends at the time that it was given, [`LOOK_TIME_MAX`] at most: the next request
//!   finds that out.
//! - WA4: Nothing here keeps a file system open, and no path is looked for while a client waits.
//!
//! # Concurrency
//!
//! One lock, the last of all: nothing else is done under it.

mod prefix;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use engine::vnode::api::{FileSystem, Ino};
use parking_lot::Mutex;

pub use self::prefix::{DEPTH_MAX, OfPrefix, PREFIXES_MAX, by_prefix};

/// Most that look at a time, and most that want to see shorter requests than [`SLOW_FROM`].
pub const LOOKS_MAX: usize = 4;
/// Longest time for which files are counted without being asked for.
pub const LOOK_TIME_MAX: Duration = Duration::from_secs(600);
/// Most files of all clients that one look tells apart from one question to the next: some 8 MiB.
pub const FILES_MAX: usize = 65_536;
/// Most slow requests that are kept: some 200 KiB.
pub const SLOW_MAX: usize = 1024;
/// From here on a request is kept in any case: a disk that turns answers in a tenth of it, and
/// people notice.
pub const SLOW_FROM: Duration = Duration::from_millis(250);

/// Where a client reaches files: a mount, or an export.
pub struct Place {
    number: u64,
    /// The front: `fuse` or `nfs`.
    pub front: &'static str,
    /// What people call it, as an absolute path: the directory of a mount, the name of an export.
    pub name: String,
    /// `None`: it is gone.
    fs: Option<Weak<dyn FileSystem>>,
    root: Ino,
}

impl Place {
    /// Returns the place where `root` of `fs` appears.
    #[must_use]
    pub fn new(front: &'static str, name: String, fs: &Arc<dyn FileSystem>, root: Ino) -> Place {
        Place { fs: Some(Arc::downgrade(fs)), ..Place::of_nothing(front, name, root) }
    }

    fn of_nothing(front: &'static str, name: String, root: Ino) -> Place {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Place { number, front, name, fs: None, root }
    }

    fn fs(&self) -> Option<Arc<dyn FileSystem>> {
        self.fs.as_ref().and_then(Weak::upgrade)
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("front", &self.front).field("name", &self.name).finish()
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// The machine, and its port; `None`: this one, through a mount.
    pub address: Option<SocketAddr>,
    /// The user, where the request says one.
    pub uid: Option<u32>,
    /// The thread of the program, where the kernel says one.
    pub thread: Option<u32>,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    /// Where.
    pub place: &'a Arc<Place>,
    /// Whom.
    pub asker: Asker,
    /// What it asked for, as its protocol has it.
    pub operation: &'static str,
    /// About which file; of an operation on a name the directory.
    pub ino: Ino,
    /// How long that took.
    pub took: Duration,
    /// Whether the answer was an error.
    pub is_failed: bool,
}

/// What is counted of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many were answered.
    pub answered: u64,
    /// Those among them whose answer was an error.
    pub failed: u64,
    /// How long all of them took together.
    pub latency_ns: u64,
}

impl Tally {
    fn count(&mut self, answered: &Answered<'_>) {
        self.answered += 1;
        self.failed += u64::from(answered.is_failed);
        self.latency_ns = self.latency_ns.saturating_add(nanoseconds(answered.took));
    }

    fn add(&mut self, other: Tally) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.latency_ns = self.latency_ns.saturating_add(other.latency_ns);
    }
}

/// Whose requests about which file are counted together: of a machine all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    place: u64,
    address: Option<std::net::IpAddr>,
    /// `None`: there was no room for another file (WA2).
    ino: Option<Ino>,
}

/// What happened from one question of a look to the next.
#[derive(Debug)]
pub struct Looked {
    /// How long that was; zero: the look has just begun.
    pub lasted: Duration,
    places: BTreeMap<u64, Arc<Place>>,
    files: HashMap<Key, Tally>,
}

struct Look {
    number: u64,
    ends: Instant,
    asked: Instant,
    places: BTreeMap<u64, Arc<Place>>,
    files: HashMap<Key, Tally>,
}

impl Look {
    fn count(&mut self, answered: &Answered<'_>) {
        let place = answered.place.number;
        let address = answered.asker.address.map(|it| it.ip());
        let mut key = Key { place, address, ino: Some(answered.ino) };
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&key) {
            // WA2. Of many machines the last have none either.
            key.ino = None;
            if self.files.len() >= 2 * FILES_MAX && !self.files.contains_key(&key) {
                key.address = None;
            }
        }
        self.places.entry(place).or_insert_with(|| Arc::clone(answered.place));
        self.files.entry(key).or_default().count(answered);
    }
}

/// Somebody who wants to see shorter requests than those that are kept in any case.
struct Wish {
    number: u64,
    ends: Instant,
    from_ns: u64,
}

/// A request that was slow.
#[derive(Clone, Debug)]
pub struct Slow {
    /// Its number: the next one has the next.
    pub number: u64,
    /// When it was answered.
    pub at: SystemTime,
    /// Where.
    pub place: Arc<Place>,
    /// Whom.
    pub asker: Asker,
    /// What it asked for, as its protocol has it.
    pub operation: &'static str,
    /// How long it took.
    pub took: Duration,
    /// Whether the answer was an error.
    pub is_failed: bool,
    ino: Ino,
    /// What it was about, once somebody has asked.
    pub path: Option<String>,
}

/// Requests that were slow.
#[derive(Debug)]
pub struct SlowOnes {
    /// They, the oldest first.
    pub list: Vec<Slow>,
    /// How many there were that are kept no more, since the number that was asked for.
    pub missed: u64,
    /// The number that the next one gets.
    pub next: u64,
}

/// As many look as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{LOOKS_MAX} look already: end one of them, or wait until one has ended")]
pub struct Crowded;

/// Sees what clients ask.
pub struct Watch {
    /// WA1: a request that took so long, or longer, is told of.
    from_ns: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    looks: Vec<Look>,
    wishes: Vec<Wish>,
    slow: VecDeque<Slow>,
    next: u64,
}

impl Default for Watch {
    fn default() -> Watch {
        let state = State::default();
        Watch { from_ns: AtomicU64::new(state.told_from_ns()), state: Mutex::new(state) }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("from_ns", &self.from_ns).finish_non_exhaustive()
    }
}

impl State {
    /// Returns from which time on a request is told of.
    fn told_from_ns(&self) -> u64 {
        if self.looks.is_empty() { self.slow_from_ns() } else { 0 }
    }

    /// Returns from which time on a request is kept.
    fn slow_from_ns(&self) -> u64 {
        let wished = self.wishes.iter().map(|wish| wish.from_ns);
        wished.fold(nanoseconds(SLOW_FROM), u64::min)
    }

    /// WA3.
    fn end_overdue(&mut self, now: Instant) {
        self.looks.retain(|look| look.ends > now);
        self.wishes.retain(|wish| wish.ends > now);
    }

    fn keep(&mut self, answered: &Answered<'_>) {
        if self.slow.len() == SLOW_MAX {
            self.slow.pop_front();
        }
        self.slow.push_back(Slow {
            number: self.next,
            at: SystemTime::now(),
            place: Arc::clone(answered.place),
            asker: answered.asker,
            operation: answered.operation,
            took: answered.took,
            is_failed: answered.is_failed,
            ino: answered.ino,
            path: None,
        });
        self.next += 1;
    }
}

impl Watch {
    /// Whether a request that took so long is to be told of (WA1).
    #[must_use]
    pub fn wants(&self, took: Duration) -> bool {
        // Most are shorter than what 64 bits hold; one that is not is slow.
        nanoseconds(took) >= self.from_ns.load(Ordering::Relaxed)
    }

    /// Tells of a request that was answered at `now`, and that is wanted.
    #[cold]
    pub fn tell(&self, answered: &Answered<'_>, now: Instant) {
        let mut state = self.state.lock();
        state.end_overdue(now);
        for look in &mut state.looks {
            look.count(answered);
        }
        if nanoseconds(answered.took) >= state.slow_from_ns() {
            state.keep(answered);
        }
        self.from_ns.store(state.told_from_ns(), Ordering::Relaxed);
    }

    /// Returns what happened since the look of this number asked last, and counts on for `lasts`
    /// at most; zero: no more. One that is not known begins.
    pub fn look(&self, number: u64, lasts: Duration, now: Instant) -> Result<Looked, Crowded> {
        let mut state = self.state.lock();
        state.end_overdue(now);
        let found = state.looks.iter().position(|look| look.number == number);
        let before = found.map(|at| state.looks.swap_remove(at));
        let looked = Looked {
            lasted: before.as_ref().map_or(Duration::ZERO, |it| now.duration_since(it.asked)),
            places: before.as_ref().map(|it| it.places.clone()).unwrap_or_default(),
            files: before.map(|it| it.files).unwrap_or_default(),
        };
        if !lasts.is_zero() {
            if state.looks.len() >= LOOKS_MAX {
                return Err(Crowded);
            }
            let (places, files) = (BTreeMap::new(), HashMap::new());
            let ends = now + lasts.min(LOOK_TIME_MAX);
            state.looks.push(Look { number, ends, asked: now, places, files });
        }
        self.from_ns.store(state.told_from_ns(), Ordering::Relaxed);
        Ok(looked)
    }

    /// From now on requests from `from` on are kept, for `lasts` at most; zero: no more. The wish
    /// of this number is changed, if there is one.
    pub fn keep_slow(
        &self,
        number: u64,
        from: Duration,
        lasts: Duration,
        now: Instant,
    ) -> Result<(), Crowded> {
        let mut state = self.state.lock();
        state.end_overdue(now);
        state.wishes.retain(|wish| wish.number != number);
        if !lasts.is_zero() {
            if state.wishes.len() >= LOOKS_MAX {
                return Err(Crowded);
            }
            let ends = now + lasts.min(LOOK_TIME_MAX);
            state.wishes.push(Wish { number, ends, from_ns: nanoseconds(from) });
        }
        self.from_ns.store(state.told_from_ns(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the requests from the number `after` on that took `from` or longer, the last
    /// `count_max` of them, each with its path.
    #[must_use]
    pub fn slow(&self, after: u64, from: Duration, count_max: usize) -> SlowOnes {
        let state = self.state.lock();
        let first = state.slow.front().map_or(state.next, |slow| slow.number);
        let is_meant = |slow: &&Slow| slow.number >= after && slow.took >= from;
        let mut list: Vec<Slow> = state.slow.iter().rev().filter(is_meant).cloned().collect();
        let next = state.next;
        drop(state);
        let left_out = list.len().saturating_sub(count_max);
        list.truncate(count_max);
        list.reverse();
        let missed = first.saturating_sub(after) + u64::try_from(left_out).unwrap_or(u64::MAX);
        self.name(&mut list);
        SlowOnes { list, missed, next }
    }

    /// Finds the paths of those that have none, and keeps them: WA4, outside the lock.
    fn name(&self, list: &mut [Slow]) {
        let mut named: HashMap<u64, String> = HashMap::new();
        let mut names = prefix::Names::begin();
        for slow in list.iter_mut().filter(|slow| slow.path.is_none()) {
            let path = names.path_of(&slow.place, slow.ino);
            named.insert(slow.number, path.clone());
            slow.path = Some(path);
        }
        let mut state = self.state.lock();
        for slow in &mut state.slow {
            if let Some(path) = named.remove(&slow.number) {
                slow.path = Some(path);
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
