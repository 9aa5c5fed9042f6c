//! A live view of client requests by file, and a log of the most recent slow requests.
//!
//! Both fronts report to one [`Watch`]. An *observation* ([`Watch::look`]) counts requests by file.
//! Its observer polls it for the counts since the last poll. Requests of [`SLOW_FROM`] or longer
//! are always logged, shorter ones if an observer orders it ([`Watch::keep_slow`]).
//!
//! # Invariants
//!
//! - WA1: Without observations, a request that is not slow costs one comparison and takes no lock.
//! - WA2: Memory is bounded: [`LOOKS_MAX`] observations of [`FILES_MAX`] files each, and
//!   [`SLOW_MAX`] slow requests. On overflow requests are counted without their file.
//! - WA3: An observation ends at its given time, after [`LOOK_TIME_MAX`] at most. The next request
//!   or poll notices the expiry.
//! - WA4: A watch keeps no file system open, and no client waits for a path search.
//!
//! # Concurrency
//!
//! One lock, the last in the lock order: under it nothing outside this module is called.

mod prefix;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use engine::api::{FileSystem, Ino};
use parking_lot::Mutex;

pub use self::prefix::{DEPTH_MAX, PREFIXES_MAX, PrefixTally, by_prefix, paths_of};

/// Most concurrent observations, and most concurrent orders to log requests below [`SLOW_FROM`].
pub const LOOKS_MAX: usize = 4;
/// Longest time between polls of an observation.
pub const LOOK_TIME_MAX: Duration = Duration::from_secs(600);
/// Most files of all clients that one observation counts separately between polls, some 8 MiB.
pub const FILES_MAX: usize = 65_536;
/// Most slow requests kept, some 200 KiB.
pub const SLOW_MAX: usize = 1024;
/// Latency from which a request is always kept. A hard disk answers in a tenth of it, and users
/// notice such a delay.
pub const SLOW_FROM: Duration = Duration::from_millis(250);

/// A mount or an export, through which clients reach files.
pub struct AccessPoint {
    number: u64,
    /// The front: `fuse` or `nfs`.
    pub front: &'static str,
    /// Absolute path: the mount point, or the name of the export.
    pub name: String,
    /// `None` in tests, for a file system that is closed.
    fs: Option<Weak<dyn FileSystem>>,
    root: Ino,
}

impl AccessPoint {
    /// Returns the access point at which `root` of `fs` appears.
    #[must_use]
    pub fn new(
        front: &'static str,
        name: String,
        fs: &Arc<dyn FileSystem>,
        root: Ino,
    ) -> AccessPoint {
        AccessPoint { fs: Some(Arc::downgrade(fs)), ..AccessPoint::of_nothing(front, name, root) }
    }

    fn of_nothing(front: &'static str, name: String, root: Ino) -> AccessPoint {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        AccessPoint { number, front, name, fs: None, root }
    }

    fn fs(&self) -> Option<Arc<dyn FileSystem>> {
        self.fs.as_ref().and_then(Weak::upgrade)
    }
}

impl std::fmt::Debug for AccessPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("front", &self.front).field("name", &self.name).finish()
    }
}

/// The origin of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSource {
    /// The client's address and port, or `None` for this machine through a mount.
    pub address: Option<SocketAddr>,
    /// The user, where the request has one.
    pub uid: Option<u32>,
    /// The calling thread, where the kernel reports one.
    pub thread: Option<u32>,
}

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredRequest<'a> {
    /// The mount or export.
    pub place: &'a Arc<AccessPoint>,
    /// The origin of the request.
    pub asker: RequestSource,
    /// Operation name in the protocol.
    pub operation: &'static str,
    /// The file, or the directory for an operation on a name.
    pub ino: Ino,
    /// Latency.
    pub took: Duration,
    /// Whether the answer was an error.
    pub is_failed: bool,
}

/// Counters of a set of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests answered, errors included.
    pub answered: u64,
    /// Requests answered with an error, other than that a name or an attribute does not exist.
    pub failed: u64,
    /// Sum of latencies.
    pub latency_ns: u64,
}

impl Tally {
    fn count(&mut self, answered: &AnsweredRequest<'_>) {
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

/// Key of a count. All connections of a client are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct TallyKey {
    place: u64,
    address: Option<std::net::IpAddr>,
    /// `None` for a file beyond the bound (WA2).
    ino: Option<Ino>,
}

/// The counts between two polls of an observation.
#[derive(Debug)]
pub struct WatchCounts {
    /// Time since the last poll. Zero at the first poll.
    pub lasted: Duration,
    places: BTreeMap<u64, Arc<AccessPoint>>,
    files: HashMap<TallyKey, Tally>,
}

struct WatchObserver {
    number: u64,
    ends: Instant,
    asked: Instant,
    places: BTreeMap<u64, Arc<AccessPoint>>,
    files: HashMap<TallyKey, Tally>,
}

impl WatchObserver {
    fn count(&mut self, answered: &AnsweredRequest<'_>) {
        let place = answered.place.number;
        let address = answered.asker.address.map(|it| it.ip());
        let mut key = TallyKey { place, address, ino: Some(answered.ino) };
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&key) {
            // WA2: without the file, and on further overflow without the client.
            key.ino = None;
            if self.files.len() >= 2 * FILES_MAX && !self.files.contains_key(&key) {
                key.address = None;
            }
        }
        self.places.entry(place).or_insert_with(|| Arc::clone(answered.place));
        self.files.entry(key).or_default().count(answered);
    }
}

/// An observer's order to log requests faster than [`SLOW_FROM`].
struct SlowLogRequest {
    number: u64,
    ends: Instant,
    from_ns: u64,
}

/// A slow request.
#[derive(Clone, Debug)]
pub struct SlowRequest {
    /// Sequence number.
    pub number: u64,
    /// Time of the answer.
    pub at: SystemTime,
    /// The mount or export.
    pub place: Arc<AccessPoint>,
    /// The origin of the request.
    pub asker: RequestSource,
    /// Operation name in the protocol.
    pub operation: &'static str,
    /// Latency.
    pub took: Duration,
    /// Whether the answer was an error.
    pub is_failed: bool,
    ino: Ino,
    /// Path of the file, filled in by [`Watch::slow`].
    pub path: Option<String>,
}

/// Result of [`Watch::slow`].
#[derive(Debug)]
pub struct SlowRequests {
    /// The requests, oldest first.
    pub list: Vec<SlowRequest>,
    /// Requests since `after` that were dropped, or are beyond `count_max`.
    pub missed: u64,
    /// Sequence number of the next slow request.
    pub next: u64,
}

/// Error: [`LOOKS_MAX`] observations or orders exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{LOOKS_MAX} look already: end one of them, or wait until one has ended")]
pub struct TooManyObserversError;

/// Collector of the requests of all fronts.
pub struct Watch {
    /// Requests with at least this latency must be reported (WA1).
    from_ns: AtomicU64,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    looks: Vec<WatchObserver>,
    wishes: Vec<SlowLogRequest>,
    slow: VecDeque<SlowRequest>,
    next: u64,
}

impl Default for Watch {
    fn default() -> Watch {
        let state = WatchState::default();
        Watch { from_ns: AtomicU64::new(state.told_from_ns()), state: Mutex::new(state) }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("from_ns", &self.from_ns).finish_non_exhaustive()
    }
}

impl WatchState {
    fn told_from_ns(&self) -> u64 {
        if self.looks.is_empty() { self.slow_from_ns() } else { 0 }
    }

    fn slow_from_ns(&self) -> u64 {
        let wished = self.wishes.iter().map(|wish| wish.from_ns);
        wished.fold(nanoseconds(SLOW_FROM), u64::min)
    }

    /// Ends what has expired (WA3).
    fn end_overdue(&mut self, now: Instant) {
        self.looks.retain(|look| look.ends > now);
        self.wishes.retain(|wish| wish.ends > now);
    }

    fn keep(&mut self, answered: &AnsweredRequest<'_>) {
        if self.slow.len() == SLOW_MAX {
            self.slow.pop_front();
        }
        self.slow.push_back(SlowRequest {
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
    /// Returns whether a request with this latency must be reported (WA1).
    #[must_use]
    pub fn wants(&self, took: Duration) -> bool {
        // A latency beyond 64 bits saturates and counts as slow.
        nanoseconds(took) >= self.from_ns.load(Ordering::Relaxed)
    }

    /// Records a request answered at `now` for which [`Watch::wants`] returned true.
    #[cold]
    pub fn tell(&self, answered: &AnsweredRequest<'_>, now: Instant) {
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

    /// Returns the counts since the last poll of observation `number`, and continues it for at most
    /// `lasts`. Zero ends the observation. An unknown number begins one.
    pub fn look(
        &self,
        number: u64,
        lasts: Duration,
        now: Instant,
    ) -> Result<WatchCounts, TooManyObserversError> {
        let mut state = self.state.lock();
        state.end_overdue(now);
        let found = state.looks.iter().position(|look| look.number == number);
        let before = found.map(|at| state.looks.swap_remove(at));
        let looked = WatchCounts {
            lasted: before.as_ref().map_or(Duration::ZERO, |it| now.duration_since(it.asked)),
            places: before.as_ref().map(|it| it.places.clone()).unwrap_or_default(),
            files: before.map(|it| it.files).unwrap_or_default(),
        };
        if !lasts.is_zero() {
            if state.looks.len() >= LOOKS_MAX {
                return Err(TooManyObserversError);
            }
            let (places, files) = (BTreeMap::new(), HashMap::new());
            let ends = now + lasts.min(LOOK_TIME_MAX);
            state.looks.push(WatchObserver { number, ends, asked: now, places, files });
        }
        self.from_ns.store(state.told_from_ns(), Ordering::Relaxed);
        Ok(looked)
    }

    /// Logs requests with a latency of `from` or more, for at most `lasts`. Zero ends the logging.
    /// Replaces the earlier order of observer `number`.
    pub fn keep_slow(
        &self,
        number: u64,
        from: Duration,
        lasts: Duration,
        now: Instant,
    ) -> Result<(), TooManyObserversError> {
        let mut state = self.state.lock();
        state.end_overdue(now);
        state.wishes.retain(|wish| wish.number != number);
        if !lasts.is_zero() {
            if state.wishes.len() >= LOOKS_MAX {
                return Err(TooManyObserversError);
            }
            let ends = now + lasts.min(LOOK_TIME_MAX);
            state.wishes.push(SlowLogRequest { number, ends, from_ns: nanoseconds(from) });
        }
        self.from_ns.store(state.told_from_ns(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the last `count_max` slow requests with a sequence number of at least `after` and a
    /// latency of at least `from`, with their paths.
    #[must_use]
    pub fn slow(&self, after: u64, from: Duration, count_max: usize) -> SlowRequests {
        let state = self.state.lock();
        let first = state.slow.front().map_or(state.next, |slow| slow.number);
        let is_meant = |slow: &&SlowRequest| slow.number >= after && slow.took >= from;
        let mut list: Vec<SlowRequest> =
            state.slow.iter().rev().filter(is_meant).cloned().collect();
        let next = state.next;
        drop(state);
        let left_out = list.len().saturating_sub(count_max);
        list.truncate(count_max);
        list.reverse();
        let missed = first.saturating_sub(after) + u64::try_from(left_out).unwrap_or(u64::MAX);
        self.name(&mut list);
        SlowRequests { list, missed, next }
    }

    /// Finds the missing paths and stores them. The search runs without the lock (WA4).
    fn name(&self, list: &mut [SlowRequest]) {
        let mut named: HashMap<u64, String> = HashMap::new();
        let mut names = prefix::PathCache::begin();
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
