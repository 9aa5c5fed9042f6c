//! The baton scheduler: runs many threads one at a time, in an order determined by the seed.
//!
//! Each client and job of a simulated run is an OS thread that runs only while it holds the baton.
//! Each use of [`crate::sync`] or of a simulated device is a scheduling point, where the seed
//! decides whether the baton moves, and to which thread.
//!
//! Time is virtual. It advances by [`POINT_NS`] at each scheduling point, and jumps to the earliest
//! deadline when no thread can run.
//!
//! # Invariants
//!
//! - B1: At most one registered thread runs between two scheduling points.
//! - B2: Decisions depend only on the seed, and on names, order and actions of the threads. Keys
//!   are addresses, so they are compared but never ordered or hashed.
//! - B3: [`Scheduler::run`] returns, or ends the process with a report. A panic, a deadlock, or too
//!   long a run after a power cut unwinds every thread.
//!
//! # Crashes
//!
//! [`Scheduler::cut_power`] ends the run: sleeping threads wake, simulated devices return
//! `DeviceError::PowerCut`, and the errors end the threads. Threads that still wait are unwound.
//!
//! # Concurrency
//!
//! In the engine and below, only this module starts threads, and a file device without io_uring.

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

/// Virtual nanoseconds of a scheduling point: a short operation in memory, and enough for a thread
/// that polls to reach every deadline.
pub const POINT_NS: u64 = 1_000;

/// Most threads of a run: few enough for linear search.
pub const THREADS_MAX: usize = 256;

/// Scheduling points after a power cut until threads are unwound. A thread that is left by then
/// retries for ever.
pub const POINTS_AFTER_CUT_MAX: u64 = 100_000;

/// Handover probabilities, one for each run: some bugs need long undisturbed stretches, others
/// frequent switches.
const HANDOVER_ONE_IN: [u64; 4] = [2, 4, 16, 64];

/// Identity of a lock or condition. The kind is part of it, because a value and its first field
/// share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockKey {
    address: usize,
    kind: &'static str,
}

impl LockKey {
    pub(super) fn of_lock<T: ?Sized>(lock: &T) -> LockKey {
        LockKey { kind: std::any::type_name::<T>(), address: std::ptr::from_ref(lock).addr() }
    }

    pub(super) fn of_condition(condition: &super::Condvar) -> LockKey {
        LockKey { kind: "Condvar", address: std::ptr::from_ref(condition).addr() }
    }
}

/// Wakes the waiters of a lock on drop, after unlocking.
pub(super) struct LockRelease(Option<LockKey>);

impl LockRelease {
    pub(super) fn to(key: LockKey) -> LockRelease {
        LockRelease(Some(key))
    }

    /// Returns a release without effect, for threads outside a scheduler.
    #[inline]
    pub(super) fn to_nobody() -> LockRelease {
        LockRelease(None)
    }
}

impl Drop for LockRelease {
    #[inline]
    fn drop(&mut self) {
        if let Some(key) = self.0 {
            notify_all(key);
        }
    }
}

/// Panic payload that ends a thread. Not a failure of that thread.
struct UnwindPayload;

#[derive(Clone, Copy, Debug)]
enum SimThreadStatus {
    /// The thread runs or can run.
    Ready,
    /// The thread waits for `key` or `deadline_ns`, whichever comes first.
    Blocked {
        key: Option<LockKey>,
        deadline_ns: Option<u64>,
        place: &'static Location<'static>,
    },
    Finished,
}

struct SimThread {
    name: String,
    status: SimThreadStatus,
    /// Whether the last wait ended by its deadline.
    timed_out: bool,
    /// Signalled when the thread gets the baton.
    baton: Arc<Condvar>,
}

impl SimThread {
    fn waits_for(&self, key: LockKey) -> bool {
        let SimThreadStatus::Blocked { key: waits_for, .. } = self.status else { return false };
        waits_for == Some(key)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchedulerMode {
    Running,
    /// The power is cut.
    Cut {
        points_left: u64,
    },
    /// Every thread unwinds at its next scheduling point.
    Unwinding,
}

enum SchedulerFailure {
    Panic(Box<dyn Any + Send>),
    /// Report of all waiting threads.
    Deadlock(String),
}

struct SchedulerState {
    prng: Prng,
    handover_one_in: u64,
    now_ns: u64,
    threads: Vec<SimThread>,
    running: Option<usize>,
    mode: SchedulerMode,
    /// First reason for unwinding.
    failure: Option<SchedulerFailure>,
    is_cut: bool,
    statistics: Statistics,
}

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Scheduling points passed.
    pub point_count: u64,
    /// Moves of the baton.
    pub handover_count: u64,
    /// Operations in flight (see [`Scheduler::operation`]).
    pub in_flight: usize,
    /// Most operations in flight at one time.
    pub in_flight_max: usize,
    /// Operations in flight at the power cut. Below two, the run tests no concurrency.
    pub in_flight_at_cut: Option<usize>,
    /// Hash of every decision, and of every call of [`Scheduler::note`].
    pub trace_hash: u64,
}

/// Runs threads one at a time, in an order determined by the seed.
pub struct Scheduler {
    seed: u64,
    state: Mutex<SchedulerState>,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scheduler(seed {})", self.seed)
    }
}

/// One thread of a run: its name in reports, and its work.
pub type SimThreadTask<'env> = (String, Box<dyn FnOnce() + Send + 'env>);

/// Marks an operation as in flight until dropped.
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
    /// Whether `CURRENT` is set. Threads outside a scheduler pay for this check only.
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
}

impl Scheduler {
    /// Returns a scheduler at virtual time 0.
    #[must_use]
    pub fn new(seed: u64) -> Arc<Scheduler> {
        let mut prng = Prng::from_seed(seed);
        let choice = usize::try_from(prng.below(4)).expect("below 4");
        let state = SchedulerState {
            handover_one_in: HANDOVER_ONE_IN[choice],
            prng,
            now_ns: 0,
            threads: Vec::new(),
            running: None,
            mode: SchedulerMode::Running,
            failure: None,
            is_cut: false,
            statistics: Statistics::default(),
        };
        Arc::new(Scheduler { seed, state: Mutex::new(state) })
    }

    /// Runs `jobs` as threads to their end. Callable again for a next phase, unless the power was
    /// cut.
    ///
    /// # Panics
    ///
    /// With the first panic of a thread, or a report of a deadlock, after unwinding every thread.
    pub fn run(self: &Arc<Scheduler>, jobs: Vec<SimThreadTask<'_>>) {
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
            // The panic hook has reported it already.
            Some(SchedulerFailure::Panic(payload)) => resume_unwind(payload),
            Some(SchedulerFailure::Deadlock(report)) => panic!("seed {}: {report}", self.seed),
        }
    }

    fn enlist(&self, jobs: &[SimThreadTask<'_>]) {
        let mut state = self.state.lock();
        assert!(!state.is_cut, "the power is cut: a new life needs a new scheduler");
        assert!(state.running.is_none(), "a scheduler runs one set of threads at a time");
        state.threads.clear();
        state.threads.extend(jobs.iter().map(|(name, _)| SimThread {
            name: name.clone(),
            status: SimThreadStatus::Ready,
            timed_out: false,
            baton: Arc::new(Condvar::new()),
        }));
        state.running = state.choose();
    }

    /// Body of thread `index`.
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
        state.threads[index].status = SimThreadStatus::Finished;
        if let Err(payload) = outcome
            && !payload.is::<UnwindPayload>()
        {
            state.failure.get_or_insert(SchedulerFailure::Panic(payload));
            state.unwind_all();
        }
        state.running = state.choose();
        state.signal_running();
    }

    fn await_baton(&self, mut state: MutexGuard<'_, SchedulerState>, me: usize) {
        let baton = Arc::clone(&state.threads[me].baton);
        while state.running != Some(me) {
            baton.wait(&mut state);
        }
    }

    /// Passes the baton to a thread chosen by the seed, and waits until `me` has it again.
    fn hand_over(&self, mut state: MutexGuard<'_, SchedulerState>, me: usize) {
        state.running = state.choose();
        if state.running == Some(me) {
            return;
        }
        state.statistics.handover_count += 1;
        state.signal_running();
        self.await_baton(state, me);
    }

    /// Passes a scheduling point. The baton moves if `always`, or by the seed.
    fn point(&self, me: usize, always: bool) {
        let mut state = self.state.lock();
        state.pass_point();
        let one_in = state.handover_one_in;
        if always || state.prng.one_in(one_in) {
            self.hand_over(state, me);
        }
    }

    /// Parks `me` until `key` is notified or the deadline passes, and returns whether the deadline
    /// passed. In a run that is unwound, the caller unwinds later, when it has its locks again.
    fn block(
        &self,
        me: usize,
        key: Option<LockKey>,
        deadline_ns: Option<u64>,
        place: &'static Location<'static>,
    ) -> bool {
        let mut state = self.state.lock();
        state.pass_point();
        state.threads[me].timed_out = false;
        state.threads[me].status = SimThreadStatus::Blocked { key, deadline_ns, place };
        self.hand_over(state, me);
        self.state.lock().threads[me].timed_out
    }

    /// Returns the virtual time in nanoseconds.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    /// Returns the seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Cuts the power, for good: see the module's header.
    pub fn cut_power(&self) {
        let mut state = self.state.lock();
        if state.is_cut {
            return;
        }
        state.is_cut = true;
        state.statistics.in_flight_at_cut = Some(state.statistics.in_flight);
        if state.mode == SchedulerMode::Running {
            state.mode = SchedulerMode::Cut { points_left: POINTS_AFTER_CUT_MAX };
        }
        for thread in &mut state.threads {
            if matches!(thread.status, SimThreadStatus::Blocked { key: None, .. }) {
                thread.status = SimThreadStatus::Ready;
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

    /// Adds a word to the trace hash, so that results must repeat too.
    pub fn note(&self, word: u64) {
        self.state.lock().trace(word);
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.state.lock().statistics
    }
}

impl SchedulerState {
    fn trace(&mut self, word: u64) {
        self.statistics.trace_hash =
            Prng::from_seed(self.statistics.trace_hash.rotate_left(1) ^ word).next_u64();
    }

    fn pass_point(&mut self) {
        self.statistics.point_count += 1;
        self.now_ns += POINT_NS;
        self.wake_due();
        if let SchedulerMode::Cut { points_left } = &mut self.mode {
            *points_left -= 1;
            if *points_left == 0 {
                self.unwind_all();
            }
        }
    }

    fn wake_due(&mut self) {
        for thread in &mut self.threads {
            if let SimThreadStatus::Blocked { deadline_ns: Some(deadline), .. } = thread.status
                && deadline <= self.now_ns
            {
                thread.status = SimThreadStatus::Ready;
                thread.timed_out = true;
            }
        }
    }

    /// Returns the next thread to run; `None` when all have finished.
    fn choose(&mut self) -> Option<usize> {
        loop {
            let is_ready = |thread: &SimThread| matches!(thread.status, SimThreadStatus::Ready);
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
            if self.threads.iter().all(|thread| matches!(thread.status, SimThreadStatus::Finished))
            {
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
            SimThreadStatus::Blocked { deadline_ns, .. } => deadline_ns,
            SimThreadStatus::Ready | SimThreadStatus::Finished => None,
        });
        deadlines.min()
    }

    /// Ends a run in which no thread is ready or sleeps.
    fn resolve_stillstand(&mut self) {
        match self.mode {
            SchedulerMode::Running => {
                let report = self.deadlock_report();
                self.failure.get_or_insert(SchedulerFailure::Deadlock(report));
                self.unwind_all();
            }
            // The other threads wait for threads that the power cut has ended.
            SchedulerMode::Cut { .. } => self.unwind_all(),
            SchedulerMode::Unwinding => {
                // Destructors wait for each other, so no thread can be ended (B3).
                eprintln!("while unwinding: {}", self.deadlock_report());
                std::process::abort();
            }
        }
    }

    fn deadlock_report(&self) -> String {
        let mut report = format!("deadlock at {} ns: no thread can go on", self.now_ns);
        for thread in &self.threads {
            let line = match thread.status {
                SimThreadStatus::Blocked { key: Some(key), place, .. } => {
                    format!("waits for {} {:#x} at {place}", key.kind, key.address)
                }
                SimThreadStatus::Blocked { key: None, place, .. } => format!("sleeps at {place}"),
                SimThreadStatus::Ready => "is ready".to_owned(),
                SimThreadStatus::Finished => "has finished".to_owned(),
            };
            write!(report, "\n  {} {line}", thread.name).expect("a String takes any text");
        }
        report
    }

    fn unwind_all(&mut self) {
        self.mode = SchedulerMode::Unwinding;
        for thread in &mut self.threads {
            if matches!(thread.status, SimThreadStatus::Blocked { .. }) {
                thread.status = SimThreadStatus::Ready;
            }
        }
    }

    fn signal_running(&self) {
        if let Some(index) = self.running {
            self.threads[index].baton.notify_one();
        }
    }

    fn waiters_of(&self, key: LockKey) -> Vec<usize> {
        let waiters = self.threads.iter().enumerate().filter(|(_, thread)| thread.waits_for(key));
        waiters.map(|(index, _)| index).collect()
    }
}

/// Calls `action` with this thread's scheduler, if any.
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

/// Unwinds this thread if the run is being unwound, unless it already unwinds.
fn unwind_if_told(scheduler: &Scheduler) {
    if !std::thread::panicking() && scheduler.state.lock().mode == SchedulerMode::Unwinding {
        resume_unwind(Box::new(UnwindPayload));
    }
}

#[inline]
pub(super) fn is_registered() -> bool {
    IS_REGISTERED.get()
}

/// Returns this thread's scheduler.
#[must_use]
pub fn current() -> Option<Arc<Scheduler>> {
    with_current(|scheduler, _| Arc::clone(scheduler))
}

/// Passes a scheduling point, where the baton may move. No effect outside a scheduler.
pub fn schedule() {
    with_current(|scheduler, me| {
        scheduler.point(me, false);
        unwind_if_told(scheduler);
    });
}

/// Gives the baton to a thread chosen by the seed. No effect outside a scheduler.
pub fn yield_now() {
    with_current(|scheduler, me| {
        scheduler.point(me, true);
        unwind_if_told(scheduler);
    });
}

/// Sleeps until virtual time `deadline_ns` or a power cut. No effect outside a scheduler.
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

/// Repeats `attempt` until it succeeds, parked on `key` in between.
#[track_caller]
pub(super) fn acquire<G>(key: LockKey, mut attempt: impl FnMut() -> Option<G>) -> G {
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

/// Waits for `condition` with the mutex unlocked. Returns whether the timeout passed.
#[track_caller]
pub(super) fn wait_condition<T: ?Sized>(
    condition: LockKey,
    guard: &mut MutexGuard<'_, T>,
    timeout_ns: Option<u64>,
) -> bool {
    let place = Location::caller();
    let mutex = MutexGuard::mutex(guard);
    let key = LockKey::of_lock(mutex);
    with_current(|scheduler, me| {
        let deadline_ns = timeout_ns.map(|timeout| scheduler.now_ns().saturating_add(timeout));
        // `unlocked` locks the mutex again at its end, even if unwinding, and must not block there,
        // because this OS thread holds the baton. So nothing inside unwinds, and it ends only when
        // the mutex is free.
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

/// Wakes one waiter of `key`, chosen by the seed.
pub(super) fn notify_one(key: LockKey) {
    with_current(|scheduler, _| {
        let mut state = scheduler.state.lock();
        let waiters = state.waiters_of(key);
        let bound = u64::try_from(waiters.len()).expect("at most THREADS_MAX");
        let nth = usize::try_from(state.prng.below(bound)).expect("at most THREADS_MAX");
        if let Some(&index) = waiters.get(nth) {
            state.threads[index].status = SimThreadStatus::Ready;
        }
    });
}

/// Wakes all waiters of `key`.
#[cold]
pub(super) fn notify_all(key: LockKey) {
    with_current(|scheduler, _| {
        let mut state = scheduler.state.lock();
        for thread in &mut state.threads {
            if thread.waits_for(key) {
                thread.status = SimThreadStatus::Ready;
            }
        }
    });
}
