//! The lives of one pool.

use std::sync::{Arc, Mutex, PoisonError};

use engine::vnode::api::{Caller, FileKind, FileSystem, FsError, NewInode, Timestamp};
use storage::clock::{Clock, SimClock, VIRTUAL_EPOCH};
use storage::device::sim::{
    DiskModel, Fault as DeviceFault, FaultPlan, Image, PowerSupply, SimDevice, SimOptions,
};
use storage::prng::Prng;
use storage::sync::{
    self,
    sim::{self, Job, Scheduler},
};

use super::{Fault, Finding, Ground, JobStep, Opened, Options, SeedReport, Start, guarded};
use crate::canon::Times;
use crate::crash::{History, judge};
use crate::number::usize_of;
use crate::ops::{Generator, Outcome, Profile, Route, Session};

/// The first power cut at a write is below 2 to this power; every exponent is as likely.
const CUT_WRITE_POWER_MAX: u64 = 11;
/// A cut by time comes after a random number of operations and then less than 2 to a power below
/// this, in nanoseconds: up to 8 ms, as long as a disk turns.
const CUT_NS_POWER_MAX: u64 = 24;
/// For how many scheduling points a cut by time waits until two operations are in flight.
const COMPANY_POINTS_MAX: u64 = 4096;
/// One operation in so many is followed by a sleep of less than 2 to a power below the second, in
/// nanoseconds.
const THINK_ONE_IN: u64 = 8;
const THINK_NS_POWER_MAX: u64 = 22;
/// Power cuts in one recovery, at most.
const RECOVERY_CUTS_MAX: u64 = 2;
/// Time that passes between two lives.
const REST_NS: u64 = 1_000_000_000;

/// The lives of one pool, one after the other.
pub(super) struct Lives<'a> {
    ground: &'a dyn Ground,
    options: Options,
    random: Prng,
    model: DiskModel,
    epoch: Timestamp,
    report: SeedReport,
}

/// One life: from an open to a power cut.
struct Life {
    scheduler: Arc<Scheduler>,
    device: Arc<SimDevice>,
    power: PowerSupply,
    clock: Arc<dyn Clock>,
    opened: Opened,
    /// Whether the power is to go at a write, if that comes.
    has_planned_cut: bool,
}

/// Whether the power was cut while a pool was opened.
enum Cut {
    Never,
    During(Arc<SimDevice>),
}

/// What the threads of a life share.
struct Shared<'a> {
    scheduler: &'a Arc<Scheduler>,
    power: &'a PowerSupply,
    history: Mutex<History>,
    fault: Mutex<Option<Fault>>,
    progress: sync::Mutex<Progress>,
    /// Notified at each change of `progress`.
    has_progressed: sync::Condvar,
}

#[derive(Clone, Copy)]
struct Progress {
    operations_begun: u64,
    clients_left: usize,
}

impl Shared<'_> {
    fn progressed(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
        self.has_progressed.notify_all();
    }

    fn are_clients_done(&self) -> bool {
        self.progress.lock().clients_left == 0
    }

    /// Cuts the power some time after `operations` were begun, in company if there is any.
    fn cut_power(&self, operations: u64, pause_ns: u64) {
        let mut progress = self.progress.lock();
        while progress.operations_begun < operations && progress.clients_left > 0 {
            self.has_progressed.wait(&mut progress);
        }
        drop(progress);
        sim::sleep_until(self.scheduler.now_ns() + pause_ns);
        for _ in 0..COMPANY_POINTS_MAX {
            if self.scheduler.statistics().in_flight >= 2 || self.are_clients_done() {
                break;
            }
            sim::yield_now();
        }
        self.power.cut();
    }
}

/// Counts a client down however its thread ends.
struct ClientMark<'a, 'b>(&'a Shared<'b>);

impl Drop for ClientMark<'_, '_> {
    fn drop(&mut self) {
        self.0.progressed(|progress| progress.clients_left -= 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked has left a fault behind; what is here is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Lives<'a> {
    pub(super) fn new(ground: &'a dyn Ground, options: Options, seed: u64) -> Lives<'a> {
        let mut random = Prng::from_seed(seed);
        let models = [DiskModel::instant(), DiskModel::ssd(), DiskModel::hdd()];
        let model = models[usize_of(random.below(3))];
        let report = SeedReport { seed, ..SeedReport::default() };
        Lives { ground, options, random, model, epoch: VIRTUAL_EPOCH, report }
    }

    pub(super) fn run(mut self) -> SeedReport {
        if let Err(fault) = self.live() {
            let (seed, life) = (self.report.seed, self.report.crashes);
            self.report.finding = Some(Finding { seed, life, fault });
        }
        self.report
    }

    fn live(&mut self) -> Result<(), Fault> {
        let image = self.formatted()?;
        let mut life = self.open(image, FaultPlan::none()).map_err(|(fault, _)| fault)?;
        prepare(&*life.opened.fs, self.options.clients_max)?;
        loop {
            let (history, image) = self.crash(life)?;
            self.report.crashes += 1;
            life = self.reopen(image)?;
            judged(&history, &life)?;
            if !life.has_planned_cut {
                self.check(&life)?;
            }
            if self.report.crashes == self.options.crashes {
                return Ok(());
            }
        }
    }

    fn trace(&mut self, word: u64) {
        self.report.trace_hash =
            Prng::from_seed(self.report.trace_hash.rotate_left(1) ^ word).next_u64();
    }

    fn some_ns(&mut self, power_max: u64) -> u64 {
        let power = self.random.below(power_max);
        self.random.below(1 << power)
    }

    fn device(&mut self, image: Image, faults: FaultPlan) -> (Arc<SimDevice>, PowerSupply) {
        let power = PowerSupply::new();
        let options = SimOptions {
            model: self.model,
            faults,
            power: power.clone(),
            seed: self.random.next_u64(),
            ..SimOptions::default()
        };
        (SimDevice::open(image, options), power)
    }

    fn start(&mut self, device: Arc<SimDevice>, clock: Arc<dyn Clock>) -> Start {
        Start { device, clock, seed: self.random.next_u64(), pool_seed: self.report.seed }
    }

    /// A pool that was just made, as a power cut leaves it.
    fn formatted(&mut self) -> Result<Image, Fault> {
        let blank = Image::blank(self.ground.device_bytes(self.report.seed));
        let (device, _) = self.device(blank, FaultPlan::none());
        let clock = Arc::new(SimClock::starting_at(Scheduler::new(0), self.epoch));
        let start = self.start(device.clone(), clock);
        guarded(|| self.ground.format(&start))?.map_err(Fault::Unusable)?;
        Ok(device.crash_image(&mut self.random))
    }

    /// Opens the pool; where that fails, the device tells whether the power was cut.
    fn open(&mut self, image: Image, faults: FaultPlan) -> Result<Life, (Fault, Cut)> {
        let has_planned_cut = faults != FaultPlan::none();
        let scheduler = Scheduler::new(self.random.next_u64());
        let clock = Arc::new(SimClock::starting_at(Arc::clone(&scheduler), self.epoch));
        let (device, power) = self.device(image, faults);
        let start = self.start(device.clone(), clock.clone());
        let opened = guarded(|| self.ground.open(&start));
        let opened = opened.and_then(|opened| opened.map_err(Fault::Unusable));
        let is_panic = matches!(opened, Err(Fault::Panic(_)));
        match opened {
            Ok(opened) if !power.is_cut() => {
                Ok(Life { scheduler, device, power, clock, opened, has_planned_cut })
            }
            Ok(_) => Err((Fault::Unusable(String::new()), Cut::During(device))),
            Err(fault) if power.is_cut() && !is_panic => Err((fault, Cut::During(device))),
            Err(fault) => Err((fault, Cut::Never)),
        }
    }

    /// Opens the pool after a power cut. The power may be cut again while it recovers.
    fn reopen(&mut self, image: Image) -> Result<Life, Fault> {
        let mut image = image;
        for attempt in 0.. {
            let mut faults = FaultPlan::none();
            if attempt < RECOVERY_CUTS_MAX && self.random.one_in(2) {
                let power = self.random.below(CUT_WRITE_POWER_MAX);
                faults = faults.with(DeviceFault::CutPower { nth: self.random.below(1 << power) });
            }
            match self.open(image, faults) {
                Ok(life) => return Ok(life),
                Err((_, Cut::During(device))) => {
                    self.report.recovery_cuts += 1;
                    image = device.crash_image(&mut self.random);
                    self.trace(image.content_hash());
                }
                Err((fault, Cut::Never)) => return Err(fault),
            }
        }
        unreachable!("the power is not cut more than RECOVERY_CUTS_MAX times")
    }

    /// Lets clients and jobs work until the power is cut, and returns what they did and what the
    /// cut left.
    fn crash(&mut self, life: Life) -> Result<(History, Image), Fault> {
        let Life { scheduler, device, power, clock, opened, has_planned_cut } = life;
        let history = History::after(&*opened.fs)
            .map_err(|error| Fault::Survivor(vec![error.to_string()]))?;
        let client_count = 2 + self.random.below(self.options.clients_max.saturating_sub(1));
        let mut clients: Vec<Client> =
            (0..client_count).map(|index| self.client(index, &history)).collect();
        let steps = clients.iter().map(|client| client.steps).sum::<u64>();
        let shared = Shared {
            scheduler: &scheduler,
            power: &power,
            history: Mutex::new(history),
            fault: Mutex::new(None),
            progress: sync::Mutex::new(Progress {
                operations_begun: 0,
                clients_left: clients.len(),
            }),
            has_progressed: sync::Condvar::new(),
        };
        let fs = Arc::clone(&opened.fs);
        let mut threads: Vec<Job<'_>> = Vec::new();
        for client in &mut clients {
            let (shared, fs) = (&shared, &*fs);
            threads.push((
                format!("client {}", client.index),
                Box::new(move || client.live(shared, fs)),
            ));
        }
        for (name, step) in opened.jobs {
            let shared = &shared;
            threads.push((name, Box::new(move || run_job(step, shared))));
        }
        // Where the power is to go at a write that may never come, it goes late.
        let (early, late) = (self.random.below(steps + 1), self.random.below(steps + 1));
        let operations = if has_planned_cut { early.max(late) } else { early };
        let pause_ns = self.some_ns(CUT_NS_POWER_MAX);
        let cutter = || shared.cut_power(operations, pause_ns);
        threads.push(("power".to_owned(), Box::new(cutter)));
        guarded(|| scheduler.run(threads))?;
        power.cut();
        let image = device.crash_image(&mut self.random);
        if let Some(fault) = lock(&shared.fault).take() {
            return Err(fault);
        }
        let history = shared.history.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(clients);
        guarded(|| drop(opened.fs))?;
        guarded(|| drop(fs))?;
        let statistics = scheduler.statistics();
        let in_flight = statistics.in_flight_at_cut.unwrap_or(0);
        self.report.concurrent_crashes += u64::from(in_flight >= 2);
        self.report.operations += crate::number::u64_of(history.events().len());
        self.trace(statistics.trace_hash);
        self.trace(image.content_hash());
        self.epoch = clock.now().plus_ns(REST_NS);
        Ok((history, image))
    }

    fn client(&mut self, index: u64, history: &History) -> Client {
        let seed = self.random.next_u64();
        let top = Route(vec![top_name(index)]);
        Client {
            index: usize_of(index),
            generator: Generator::below(seed, Profile::crash(), top, history.base()),
            random: self.random.fork(),
            steps: 1 + self.random.below(self.options.steps_max),
        }
    }

    /// The ground's own check, on a copy of what a synced pool holds.
    fn check(&mut self, life: &Life) -> Result<(), Fault> {
        let synced = guarded(|| life.opened.fs.sync())?;
        synced.map_err(|error| Fault::Unusable(format!("sync: {error}")))?;
        let (device, _) = self.device(life.device.image(), FaultPlan::none());
        let start = self.start(device, Arc::clone(&life.clock));
        let defects = guarded(|| self.ground.check(&start))?;
        if defects.is_empty() { Ok(()) } else { Err(Fault::Check(defects)) }
    }
}

fn top_name(index: u64) -> Vec<u8> {
    format!("client{index}").into_bytes()
}

/// Makes the directories that clients work below.
fn prepare(fs: &dyn FileSystem, clients: u64) -> Result<(), Fault> {
    let make = |index: u64| {
        let new = NewInode { kind: FileKind::Directory, mode: 0o777, umask: 0, rdev: 0 };
        let made = fs.create(&Caller::root(), fs.root(), &top_name(index), new)?;
        fs.forget(made.ino, 1);
        Ok(())
    };
    // One more than asked for: at least two work.
    let made = (0..=clients).try_for_each(make).and_then(|()| fs.sync());
    made.map_err(|error: FsError| Fault::Unusable(error.to_string()))
}

fn judged(history: &History, life: &Life) -> Result<(), Fault> {
    let judged = guarded(|| judge(history, &*life.opened.fs))?;
    judged
        .map(drop)
        .map_err(|findings| Fault::Survivor(findings.iter().map(ToString::to_string).collect()))
}

/// Repeats a job until the clients are done or the power is cut.
fn run_job(mut step: JobStep, shared: &Shared<'_>) {
    while !shared.are_clients_done() && !shared.power.is_cut() {
        let Some(pause_ns) = step() else { break };
        sim::sleep_until(shared.scheduler.now_ns() + pause_ns);
    }
}

/// One client.
struct Client {
    index: usize,
    generator: Generator,
    random: Prng,
    steps: u64,
}

impl Client {
    fn live(&mut self, shared: &Shared<'_>, fs: &dyn FileSystem) {
        let _mark = ClientMark(shared);
        let model = self.generator.model();
        let mut expected = Session::new(&*model, Times::Ignored);
        let mut session = Session::new(fs, Times::Ignored);
        for _ in 0..self.steps {
            if self.random.one_in(THINK_ONE_IN) {
                let power = self.random.below(THINK_NS_POWER_MAX);
                sim::sleep_until(shared.scheduler.now_ns() + self.random.below(1 << power));
            }
            if shared.power.is_cut() {
                return;
            }
            if let Err(fault) = self.step(shared, &mut session, &mut expected) {
                lock(&shared.fault).get_or_insert(fault);
                shared.power.cut();
                return;
            }
        }
        session.close_all();
    }

    fn step(
        &mut self,
        shared: &Shared<'_>,
        session: &mut Session<'_>,
        expected: &mut Session<'_>,
    ) -> Result<(), Fault> {
        let step = self.generator.propose();
        let number = lock(&shared.history).begin(self.index, step.clone());
        let mark = shared.scheduler.operation();
        shared.progressed(|progress| progress.operations_begun += 1);
        let applied = session.apply(&step);
        // An answer after the cut reaches nobody: the operation stays in flight.
        let is_heard = !shared.power.is_cut();
        drop(mark);
        if !is_heard {
            return Ok(());
        }
        lock(&shared.history).end(number, &applied);
        if applied.outcome == Outcome::Refused(FsError::NoSpace) {
            return Ok(());
        }
        let expected = self.generator.accept(expected, &step);
        if expected.agrees(&applied.outcome) {
            return Ok(());
        }
        Err(Fault::Answer {
            client: self.index,
            step: step.to_string(),
            told: format!("{:?}", applied.outcome),
            expected: format!("{expected:?}"),
        })
    }
}
