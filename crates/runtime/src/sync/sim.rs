//! The baton scheduler: many threads, of which one runs, and the seed says which.
//!
//! Each client and each job of a simulated run is an OS thread that runs only while it holds the
//! baton. Whatever it does with [`crate::sync`] or with a simulated device is a scheduling point:
//! there the seed decides whether to hand the baton on, and to whom. A thread that must wait is
//! parked with what it waits for. So the interleaving of a run is a function of its seed.
//!
//! Time is virtual: it moves by [`POINT_NS`] at each scheduling point, and jumps to the earliest
//! sleeper when nobody can run.
//!
//! # Invariants
//!
//! - B1: At most one registered thread runs between two scheduling points.
//! - B2: Nothing but the seed, the names and the order of the threads, and what they do, enters a
//!   decision. Keys are addresses, so they are compared and never ordered or hashed.
//! - B3: [`Scheduler::run`] returns, or ends the process with a report: a thread that panics, a
//!   deadlock, and a run that goes on for too long after a power cut unwind every thread.
//!
//! # Crashes
//!
//! [`Scheduler::cut_power`] ends the run as a power cut does: sleepers wake, simulated devices
//! answer `DeviceError::PowerCut`, and the threads end by those errors. One that
//! then waits for a condition that nobody is left to signal is unwound, as a cut would end it.
//!
//! # Concurrency
//!
//! This is the one place in the engine and below that starts threads, but for those of a file
//! device without io_uring.

#![allow(
    clippy::disallowed_methods,
    reason = "the scheduler brings the threads of a simulated run"
)]

#[cfg(test)]
mod tests;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::prng::Prng;

/// Virtual nanoseconds that pass at each scheduling point: about what a short operation in memory
/// costs, and enough that a thread which polls reaches every deadline.
pub const POINT_NS: u64 = 1_000;

/// Most threads in one run: far above any test, and small enough to search linearly.
pub const THREADS_MAX: usize = 256;

/// Scheduling points after a power cut before the threads left are unwound: an operation that has
/// met an error ends within far fewer, so one that is still there tries for ever.
pub const POINTS_AFTER_CUT_MAX: u64 = 100_000;

/// Chances, of which the seed picks one for the run, that a point hands the baton on: one in so
/// many. Rare handovers find what needs a long undisturbed stretch, frequent ones what needs none.
const HANDOVER_ONE_IN: [u64; 4] = [2, 4, 16, 64];

/// What a thread waits for: a lock or a condition, told apart by its address while it is waited
/// for. The kind is part of it because a value and its first field share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    address: usize,
    kind: &'static str,
}

impl Key {
    pub(super) fn of_lock<T: ?Sized>(lock: &T) -> Key {
        Key { kind: std::any::type_name::<T>(), address: std::ptr::from_ref(lock).addr() }
    }

    pub(super) fn of_condition(condition: &super::Condvar) -> Key {
        Key { kind: "Condvar", address: std::ptr::from_ref(condition).addr() }
    }
}

/// Wakes those who wait for a lock when it is dropped, which a guard does after unlocking.
pub(super) struct Release(Option<Key>);

impl Release {
    /// Wakes those who wait for `key`.
    pub(super) fn to(key: Key) -> Release {
        Release(Some(key))
    }

    /// Wakes nobody: the thread belongs to no scheduler.
    #[inline]
    pub(super) fn to_nobody() -> Release {
        Release(None)
    }
}

impl Drop for Release {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.0 {
            notify_all(key);
        }
    }
}

/// The payload that unwinds a thread which must not go on; not a failure of that thread.
struct Unwound;

#[derive(Clone, Copy, Debug)]
enum Status {
    /// Runs or could run.
    Ready,
    /// Waits for `key`, or for `deadline_ns`, or for whichever comes first.
    Blocked {
        key: Option<Key>,
        deadline_ns: Option<u64>,
        place: &'static Location<'static>,
    },
    Finished,
}

struct Thread {
    name: String,
    status: Status,
    /// Whether the last wait ended by its deadline.
    timed_out: bool,
    /// Signalled when the baton is for this thread.
    baton: Arc<Condvar>,
}

impl Thread {
    fn waits_for(&self, key: Key) -> bool {
        matches!(self.status, Status::Blocked { key: Some(waits_for), .. } if waits_for == key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Running,
    /// The power is cut; so many more scheduling points are allowed.
    Cut {
        points_left: u64,
    },
    /// Every thread unwinds at its next scheduling point.
    Unwinding,
}

enum Failure {
    /// What a thread panicked with.
    Panic(Box<dyn Any + Send>),
    /// Who waited for what.
    Deadlock(String),
}

struct State {
    prng: Prng,
    handover_one_in: u64,
    now_ns: u64,
    threads: Vec<Thread>,
    /// Who holds the baton.
    running: Option<usize>,
    mode: Mode,
    /// Why every thread is unwound; the first reason stays.
    failure: Option<Failure>,
    is_cut: bool,
    statistics: Statistics,
}

/// What happened in a run so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Scheduling points passed.
    pub point_count: u64,
    /// Times the baton went to another thread.
    pub handover_count: u64,
    /// Operations begun and not ended (see [`Scheduler::operation`]).
    pub in_flight: usize,
    /// Most operations in flight at one time.
    pub in_flight_max: usize,
    /// Operations in flight when the power was cut. A run that was cut with fewer than two says
    /// nothing about concurrency.
    pub in_flight_at_cut: Option<usize>,
    /// Hash of every decision and of everything given to [`Scheduler::note`].
    pub trace_hash: u64,
}

/// Runs threads one at a time, in an order that only the seed decides.
pub struct Scheduler {
    seed: u64,
    state: Mutex<State>,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scheduler(seed {})", self.seed)
    }
}

/// One thread of a run: its name for reports, and what it does.
pub type Job<'env> = (String, Box<dyn FnOnce() + Send + 'env>);

/// Marks an operation as in flight until it is dropped.
#[must_use = "the operation ends when this is dropped"]
#[derive(Debug)]
pub struct OperationMark(Arc<Scheduler>);

impl Drop for OperationMark {
    fn drop(&mut self) {
        self.0.state.lock().statistics.in_flight -= 1;
    }
}

thread_local! {
    static CURRENT: RefCell<Option<(Arc<Scheduler>, usize)>> = const { RefCell::new(None) };
    /// Whether there is a current one: what every lock of every thread asks.
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
}

impl Scheduler {
    /// Returns a scheduler at virtual time 0 that has run nothing.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Scheduler> {
        let mut prng = Prng::from_seed(seed);
        let choice = usize::try_from(prng.below(4)).expect("below 4");
        let state = State {
            handover_one_in: HANDOVER_ONE_IN[choice],
            prng,
            now_ns: 0,
            threads: Vec::new(),
            running: None,
            mode: Mode::Running,
            failure: None,
            is_cut: false,
            statistics: Statistics::default(),
        };
        Arc::new(Scheduler { seed, state: Mutex::new(state) })
    }

    /// Runs `jobs` as threads to their end.
    ///
    /// May be called again for a next phase, unless the power was cut.
    ///
    /// # Panics
    ///
    /// With the panic of the first thread that panicked, or with a report of who waits for what
    /// when no thread can go on. Both after every thread has been unwound.
    pub fn run(self: &Arc<Scheduler>, jobs: Vec<Job<'_>>) {
        assert!(jobs.len() <= THREADS_MAX, "at most {THREADS_MAX} threads in a run");
        assert!(!is_registered(), "a simulated thread cannot run a scheduler");
        self.enlist(&jobs);
        std::thread::scope(|scope| {
            for (index, (name, work)) in jobs.into_iter().enumerate() {
                let scheduler = Arc::clone(self);
                std::thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, move || scheduler.live(index, work))
                    .expect("the system has room for THREADS_MAX threads");
            }
        });
        let failure = self.state.lock().failure.take();
        match failure {
            None => {}
            // Reported by the panic hook where it happened.
            Some(Failure::Panic(payload)) => resume_unwind(payload),
            Some(Failure::Deadlock(report)) => panic!("seed {}: {report}", self.seed),
        }
    }

    fn enlist(&self, jobs: &[Job<'_>]) {
        let mut state = self.state.lock();
        assert!(!state.is_cut, "the power is cut: a new life needs a new scheduler");
        assert!(state.running.is_none(), "a scheduler runs one set of threads at a time");
        state.threads.clear();
        state.threads.extend(jobs.iter().map(|(name, _)| Thread {
            name: name.clone(),
            status: Status::Ready,
            timed_out: false,
            baton: Arc::new(Condvar::new()),
        }));
        state.running = state.choose();
    }

    /// The life of thread `index`: waits for the baton, works, and hands the baton on.
    fn live(self: &Arc<Scheduler>, index: usize, work: Box<dyn FnOnce() + Send + '_>) {
        CURRENT.set(Some((Arc::clone(self), index)));
        IS_REGISTERED.set(true);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.await_baton(self.state.lock(), index);
            unwind_if_told(self);
            work();
        }));
        IS_REGISTERED.set(false);
        CURRENT.set(None);

        let mut state = self.state.lock();
        state.threads[index].status = Status::Finished;
        if let Err(payload) = outcome
            && !payload.is::<Unwound>()
        {
            state.failure.get_or_insert(Failure::Panic(payload));
            state.unwind_all();
        }
        state.running = state.choose();
        state.signal_running();
    }

    /// Blocks the OS thread until `me` holds the baton.
    fn await_baton(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let baton = Arc::clone(&state.threads[me].baton);
        while state.running != Some(me) {
            baton.wait(&mut state);
        }
    }

    /// Gives the baton to a thread the seed picks, and returns when `me` has it again.
    fn hand_over(&self, mut state: MutexGuard<'_, State>, me: usize) {
        state.running = state.choose();
        if state.running == Some(me) {
            return;
        }
        state.statistics.handover_count += 1;
        state.signal_running();
        self.await_baton(state, me);
    }

    /// Passes a scheduling point; the baton moves if `always`, or if the seed says so.
    fn point(&self, me: usize, always: bool) {
        let mut state = self.state.lock();
        state.pass_point();
        let one_in = state.handover_one_in;
        if always || state.prng.one_in(one_in) {
            self.hand_over(state, me);
        }
    }

    /// Parks `me` until `key` is notified or the deadline has come; returns whether the latter.
    /// Does not unwind: callers do, once they hold what they must hold.
    fn block(
        &self,
        me: usize,
        key: Option<Key>,
        deadline_ns: Option<u64>,
        place: &'static Location<'static>,
    ) -> bool {
        let mut state = self.state.lock();
        state.pass_point();
        state.threads[me].timed_out = false;
        state.threads[me].status = Status::Blocked { key, deadline_ns, place };
        self.hand_over(state, me);
        self.state.lock().threads[me].timed_out
    }

    /// Returns the virtual time, in nanoseconds since the scheduler was made.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Cuts the power: see the module's header. Once cut it stays cut.
    pub fn cut_power(&self) {
        let mut state = self.state.lock();
        if state.is_cut {
            return;
        }
        state.is_cut = true;
        state.statistics.in_flight_at_cut = Some(state.statistics.in_flight);
        if state.mode == Mode::Running {
            state.mode = Mode::Cut { points_left: POINTS_AFTER_CUT_MAX };
        }
        for thread in &mut state.threads {
            if matches!(thread.status, Status::Blocked { key: None, .. }) {
                thread.status = Status::Ready;
            }
        }
    }

    /// Returns whether the power is cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.state.lock().is_cut
    }

    /// Counts an operation as in flight until the mark is dropped.
    pub fn operation(self: &Arc<Scheduler>) -> OperationMark {
        let mut state = self.state.lock();
        let statistics = &mut state.statistics;
        statistics.in_flight += 1;
        statistics.in_flight_max = statistics.in_flight_max.max(statistics.in_flight);
        OperationMark(Arc::clone(self))
    }

    /// Adds a word to the trace hash, so that a run's results are part of what must repeat.
    pub fn note(&self, word: u64) {
        self.state.lock().trace(word);
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.state.lock().statistics
    }
}

impl State {
    fn trace(&mut self, word: u64) {
        self.statistics.trace_hash =
            Prng::from_seed(self.statistics.trace_hash.rotate_left(1) ^ word).next_u64();
    }

    fn pass_point(&mut self) {
        self.statistics.point_count += 1;
        self.now_ns += POINT_NS;
        self.wake_due();
        if let Mode::Cut { points_left } = &mut self.mode {
            *points_left -= 1;
            if *points_left == 0 {
                self.unwind_all();
            }
        }
    }

    /// Makes ready whose deadline has come.
    fn wake_due(&mut self) {
        for thread in &mut self.threads {
            if let Status::Blocked { deadline_ns: Some(deadline), .. } = thread.status
                && deadline <= self.now_ns
            {
                thread.status = Status::Ready;
                thread.timed_out = true;
            }
        }
    }

    /// Returns who runs next, or `None` when every thread has finished.
    fn choose(&mut self) -> Option<usize> {
        loop {
            let is_ready = |thread: &Thread| matches!(thread.status, Status::Ready);
            let ready_count = self.threads.iter().filter(|thread| is_ready(thread)).count();
            if ready_count > 0 {
                let bound = u64::try_from(ready_count).expect("at most THREADS_MAX");
                let nth = usize::try_from(self.prng.below(bound)).expect("at most THREADS_MAX");
                let ready = self.threads.iter().enumerate().filter(|(_, thread)| is_ready(thread));
                let index = ready.map(|(index, _)| index).nth(nth).expect("below ready_count");
                self.trace(u64::try_from(index).expect("at most THREADS_MAX"));
                self.trace(self.now_ns);
                return Some(index);
            }
            if self.threads.iter().all(|thread| matches!(thread.status, Status::Finished)) {
                return None;
            }
            match self.earliest_deadline() {
                Some(deadline_ns) => {
                    self.now_ns = self.now_ns.max(deadline_ns);
                    self.wake_due();
                }
                None => self.resolve_stillstand(),
            }
        }
    }

    fn earliest_deadline(&self) -> Option<u64> {
        let deadlines = self.threads.iter().filter_map(|thread| match thread.status {
            Status::Blocked { deadline_ns, .. } => deadline_ns,
            Status::Ready | Status::Finished => None,
        });
        deadlines.min()
    }

    /// Nobody can run and nobody sleeps.
    fn resolve_stillstand(&mut self) {
        match self.mode {
            Mode::Running => {
                let report = self.deadlock_report();
                self.failure.get_or_insert(Failure::Deadlock(report));
                self.unwind_all();
            }
            // Those left wait for threads that the cut ended.
            Mode::Cut { .. } => self.unwind_all(),
            Mode::Unwinding => {
                // B3: destructors wait for each other, so no thread can be ended.
                eprintln!("while unwinding: {}", self.deadlock_report());
                std::process::abort();
            }
        }
    }

    fn deadlock_report(&self) -> String {
        let mut report = format!("deadlock at {} ns: no thread can go on", self.now_ns);
        for thread in &self.threads {
            let line = match thread.status {
                Status::Blocked { key: Some(key), place, .. } => {
                    format!("waits for {} {:#x} at {place}", key.kind, key.address)
                }
                Status::Blocked { key: None, place, .. } => format!("sleeps at {place}"),
                Status::Ready => "is ready".to_owned(),
                Status::Finished => "has finished".to_owned(),
            };
            write!(report, "\n  {} {line}", thread.name).expect("a String takes any text");
        }
        report
    }

    /// Tells every thread to unwind, and makes it able to.
    fn unwind_all(&mut self) {
        self.mode = Mode::Unwinding;
        for thread in &mut self.threads {
            if matches!(thread.status, Status::Blocked { .. }) {
                thread.status = Status::Ready;
            }
        }
    }

    fn signal_running(&self) {
        if let Some(index) = self.running {
            self.threads[index].baton.notify_one();
        }
    }

    fn waiters_of(&self, key: Key) -> Vec<usize> {
        let waiters = self.threads.iter().enumerate().filter(|(_, thread)| thread.waits_for(key));
        waiters.map(|(index, _)| index).collect()
    }
}

/// Calls `action` with the scheduler of this thread, if it has one.
#[inline]
fn with_current<R>(action: impl FnOnce(&Arc<Scheduler>, usize) -> R) -> Option<R> {
    if !is_registered() {
        return None;
    }
    let access = CURRENT.try_with(|current| {
        current.borrow().as_ref().map(|(scheduler, me)| action(scheduler, *me))
    });
    access.ok().flatten()
}

/// Unwinds this thread if the run is over for it. Not while it already unwinds.
fn unwind_if_told(scheduler: &Scheduler) {
    if !std::thread::panicking() && scheduler.state.lock().mode == Mode::Unwinding {
        resume_unwind(Box::new(Unwound));
    }
}

/// Returns whether this thread belongs to a scheduler.
#[inline]
pub(super) fn is_registered() -> bool {
    IS_REGISTERED.get()
}

/// Returns the scheduler this thread belongs to.
#[must_use]
pub fn current() -> Option<Arc<Scheduler>> {
    with_current(|scheduler, _| Arc::clone(scheduler))
}

/// Passes a scheduling point, where the seed may hand the baton on. Outside a scheduler nothing.
pub fn schedule() {
    with_current(|scheduler, me| {
        scheduler.point(me, false);
        unwind_if_told(scheduler);
    });
}

/// Gives the baton away, to whom the seed picks. Outside a scheduler nothing.
pub fn yield_now() {
    with_current(|scheduler, me| {
        scheduler.point(me, true);
        unwind_if_told(scheduler);
    });
}

/// Sleeps until virtual time `deadline_ns`, or until the power is cut. Outside a scheduler nothing.
#[track_caller]
pub fn sleep_until(deadline_ns: u64) {
    let place = Location::caller();
    with_current(|scheduler, me| {
        if scheduler.is_cut() {
            scheduler.point(me, true);
        } else {
            scheduler.block(me, None, Some(deadline_ns), place);
        }
        unwind_if_told(scheduler);
    });
}

/// Takes what `attempt` takes, parking on `key` whenever it cannot be had.
#[track_caller]
pub(super) fn acquire<G>(key: Key, mut attempt: impl FnMut() -> Option<G>) -> G {
    let place = Location::caller();
    schedule();
    loop {
        if let Some(guard) = attempt() {
            return guard;
        }
        with_current(|scheduler, me| {
            scheduler.block(me, Some(key), None, place);
            unwind_if_told(scheduler);
        });
    }
}

/// Waits for `condition`, unlocked meanwhile; returns whether the time passed.
#[track_caller]
pub(super) fn wait_condition<T: ?Sized>(
    condition: Key,
    guard: &mut MutexGuard<'_, T>,
    timeout_ns: Option<u64>,
) -> bool {
    let place = Location::caller();
    let mutex = MutexGuard::mutex(guard);
    let key = Key::of_lock(mutex);
    with_current(|scheduler, me| {
        let deadline_ns = timeout_ns.map(|timeout| scheduler.now_ns().saturating_add(timeout));
        // `unlocked` locks again on the way out whatever happens, and would then block the OS
        // thread that holds the baton. So no unwinding inside, and out only when the lock is free.
        let timed_out = MutexGuard::unlocked(guard, || {
            notify_all(key);
            let timed_out = scheduler.block(me, Some(condition), deadline_ns, place);
            while mutex.is_locked() {
                scheduler.block(me, Some(key), None, place);
            }
            timed_out
        });
        unwind_if_told(scheduler);
        timed_out
    })
    .expect("called on a registered thread only")
}

/// Makes one of those who wait for `key` ready; the seed picks which.
pub(super) fn notify_one(key: Key) {
    with_current(|scheduler, _| {
        let mut state = scheduler.state.lock();
        let waiters = state.waiters_of(key);
        let bound = u64::try_from(waiters.len()).expect("at most THREADS_MAX");
        let nth = usize::try_from(state.prng.below(bound)).expect("at most THREADS_MAX");
        if let Some(&index) = waiters.get(nth) {
            state.threads[index].status = Status::Ready;
        }
    });
}

/// Makes all who wait for `key` ready.
#[cold]
pub(super) fn notify_all(key: Key) {
    with_current(|scheduler, _| {
        let mut state = scheduler.state.lock();
        for thread in &mut state.threads {
            if thread.waits_for(key) {
                thread.status = Status::Ready;
            }
        }
    });
}
