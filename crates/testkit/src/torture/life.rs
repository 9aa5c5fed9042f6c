//! The lives of one pool.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::api::{Caller, FileKind, FileSystem, FsError, FsResult, NewInode, SetAttr, Timestamp};
use runtime::clock::{Clock, SimClock, VIRTUAL_EPOCH};
use runtime::prng::Prng;
use runtime::sync::{
    self,
    sim::{self, Scheduler, SimThreadTask},
};
use storage::device::RequestKind;
use storage::device::sim::{
    DiskModel, Fault as DeviceFault, FaultEffects, FaultPlan, Image, PowerSupply, SimDevice,
    SimOptions,
};

use super::client::{Client, Progress, Shared};
use super::fault_plan::LifeFault;
use super::snapshots::{KnownSnapshots, Taker};
use super::survey::{survey, survey_after_failure};
use super::{Fault, Finding, Ground, JobStep, Opened, Options, SeedReport, Start, guarded};
use crate::crash::{History, judge};
use crate::number::{u64_of, usize_of};
use crate::ops::bytes_of;

/// Members that a simulated disk is cut into, and more.
const SLICES_MAX: u32 = 16;
/// The first power cut at a write is below 2 to this power; every exponent is as likely.
const CUT_WRITE_POWER_MAX: u64 = 11;
/// A cut by time comes after a random number of operations and then less than 2 to a power below
/// this, in nanoseconds: up to 8 ms, as long as a disk turns.
const CUT_NS_POWER_MAX: u64 = 24;
/// Power cuts and failing requests in one recovery, at most.
const RECOVERY_CUTS_MAX: u64 = 2;
/// A recovery makes about so many requests of a kind: which fails is below 2 to a power below this.
const RECOVERY_POWER_MAX: u64 = 7;
/// What is given back of a full pool is less than 2 to a power below this, in bytes.
const SLACK_POWER_MAX: u64 = 20;
/// What a pool is filled with.
const BALLAST_NAME: &[u8] = b"ballast";
/// How it is filled: by these many bytes at a time, until there is no room, one after the other.
const BALLAST_WRITE_BYTES: [usize; 3] = [1 << 20, 64 << 10, 4 << 10];
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
    snapshots: KnownSnapshots,
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

/// What a life leaves.
struct Left {
    history: History,
    image: Image,
    clients: Vec<Client>,
    /// Whether the pool was closed, where that was tried.
    is_closed: bool,
    harm: FaultEffects,
}

/// Whether the power was cut while a pool was opened, or the device failed.
enum Cut {
    Never,
    During(Arc<SimDevice>),
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A thread that panicked has left a fault behind; what is here is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Lives<'a> {
    pub(super) fn new(ground: &'a dyn Ground, options: Options, seed: u64) -> Lives<'a> {
        let mut random = Prng::from_seed(seed);
        let models = [DiskModel::instant(), DiskModel::ssd(), DiskModel::hdd()];
        let model = models[usize_of(random.below(3))];
        let report = SeedReport { seed, ..SeedReport::default() };
        let snapshots = KnownSnapshots::default();
        Lives { ground, options, random, model, epoch: VIRTUAL_EPOCH, report, snapshots }
    }

    pub(super) fn run(mut self) -> SeedReport {
        if let Err(fault) = self.live() {
            let (seed, life) = (self.report.seed, self.report.crashes);
            let has_snapshots = self.options.has_snapshots;
            self.report.finding = Some(Finding { seed, life, has_snapshots, fault });
        }
        self.report
    }

    fn live(&mut self) -> Result<(), Fault> {
        let image = self.formatted()?;
        let mut life = self.open(image, FaultPlan::none()).map_err(|(fault, _)| fault)?;
        prepare(&*life.opened.fs, self.options.clients_max)?;
        loop {
            let is_last = self.report.crashes + 1 == self.options.crashes;
            let log = self.ground.log_range(self.report.seed);
            let mut planned = LifeFault::None;
            if self.ground.has_members(self.report.seed) {
                let image = life.device.image();
                planned = LifeFault::draw_space(&mut self.random, &image);
                if life.has_planned_cut {
                    // The power may go before the pool is full.
                    planned = LifeFault::None;
                }
            } else if !life.has_planned_cut {
                let image = life.device.image();
                planned = LifeFault::draw(&mut self.random, &image, is_last, log);
            }
            let left = self.lived(life, &planned)?;
            if matches!(planned, LifeFault::Lies(_)) {
                return self.believed(left);
            }
            self.report.crashes += 1;
            life = self.reopen(left.image)?;
            while let Err(fault) = judged(&left.history, &life) {
                // Who reads mends: that write may meet a cut which recovery did not come to.
                if matches!(fault, Fault::Panic(_)) || !life.power.is_cut() {
                    return Err(fault);
                }
                self.report.recovery_cuts += 1;
                let image = life.device.crash_image(&mut self.random);
                life = self.reopen(image)?;
            }
            self.judge_snapshots(&left.history, &life)?;
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

    fn device(&mut self, image: Image, faults: FaultPlan) -> (Arc<SimDevice>, PowerSupply) {
        let power = PowerSupply::new();
        let own = SimOptions::default();
        let has_members = self.ground.has_members(self.report.seed);
        let options = SimOptions {
            // Every third pool is on a device that has flushes alone.
            has_write_through: !self.report.seed.is_multiple_of(3),
            model: self.model,
            // Members that are slices of one disk with one arm take their time one after the other.
            deadline: if has_members { own.deadline * SLICES_MAX } else { own.deadline },
            faults,
            power: power.clone(),
            seed: self.random.next_u64(),
            ..own
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

    /// Opens the pool; where that fails, the device tells whether the power was cut or it failed.
    fn open(&mut self, image: Image, faults: FaultPlan) -> Result<Life, (Fault, Cut)> {
        let has_planned_cut =
            faults.faults.iter().any(|fault| matches!(fault, DeviceFault::CutPower { .. }));
        let scheduler = Scheduler::new(self.random.next_u64());
        let clock = Arc::new(SimClock::starting_at(Arc::clone(&scheduler), self.epoch));
        let (device, power) = self.device(image, faults);
        let start = self.start(device.clone(), clock.clone());
        let opened = guarded(|| self.ground.open(&start));
        let opened = opened.and_then(|opened| opened.map_err(Fault::Unusable));
        let is_panic = matches!(opened, Err(Fault::Panic(_)));
        let harm = device.harm();
        let is_cut = power.is_cut() || harm.failed_writes > 0;
        match opened {
            Ok(opened) if !is_cut => {
                if !has_planned_cut {
                    device.arm(FaultPlan::none());
                }
                Ok(Life { scheduler, device, power, clock, opened, has_planned_cut })
            }
            Ok(_) => Err((Fault::Unusable(String::new()), Cut::During(device))),
            Err(fault) if (is_cut || harm != FaultEffects::default()) && !is_panic => {
                Err((fault, Cut::During(device)))
            }
            Err(fault) => Err((fault, Cut::Never)),
        }
    }

    /// What goes wrong while a pool is opened after a cut.
    fn recovery_faults(&mut self) -> FaultPlan {
        let fault = match self.random.below(8) {
            0..4 => DeviceFault::CutPower { nth: self.random.below_power(CUT_WRITE_POWER_MAX) },
            4 if !self.ground.has_members(self.report.seed) => {
                let kinds = [RequestKind::Read, RequestKind::Write, RequestKind::Flush];
                let kind = kinds[usize_of(self.random.below(3))];
                let nth = self.random.below_power(RECOVERY_POWER_MAX);
                DeviceFault::Fail { kind, nth, persists: self.random.one_in(2) }
            }
            _ => return FaultPlan::none(),
        };
        FaultPlan::none().with(fault)
    }

    /// Opens the pool after a life. The power may be cut again while it recovers, or a request
    /// fail; then once more, until it is well (TR6).
    fn reopen(&mut self, image: Image) -> Result<Life, Fault> {
        let mut image = image;
        for attempt in 0.. {
            let mut faults = FaultPlan::none();
            if attempt < RECOVERY_CUTS_MAX {
                faults = self.recovery_faults();
            }
            match self.open(image, faults) {
                Ok(life) => return Ok(life),
                Err((_, Cut::During(device))) => {
                    let errors = device.harm().failed_reads + device.harm().failed_writes;
                    self.report.device_errors += errors;
                    self.report.recovery_cuts += u64::from(errors == 0);
                    image = device.crash_image(&mut self.random);
                    self.trace(image.content_hash());
                }
                Err((fault, Cut::Never)) => return Err(fault),
            }
        }
        unreachable!("nothing goes wrong more than RECOVERY_CUTS_MAX times")
    }

    /// Lets clients and jobs work until the power is cut, or on a device that lies until they are
    /// done; returns what they did and what that left.
    fn lived(&mut self, life: Life, planned: &LifeFault) -> Result<Left, Fault> {
        let Life { scheduler, device, power, clock, opened, has_planned_cut } = life;
        if !has_planned_cut {
            match remove_ballast(&*opened.fs) {
                Ok(()) => {}
                // With snapshots even that may need room.
                Err(fault) if self.snapshots.is_empty() => return Err(fault),
                Err(_) => {
                    if let Some(snapshots) = &opened.snapshots {
                        self.snapshots.delete_all(&**snapshots)?;
                    }
                    remove_ballast(&*opened.fs)?;
                }
            }
        }
        let may_snapshot = matches!(planned, LifeFault::None | LifeFault::FullPool);
        let snapshots = opened.snapshots.filter(|_| self.options.has_snapshots);
        if *planned == LifeFault::FullPool {
            let slack_bytes = self.random.below_power(SLACK_POWER_MAX);
            fill(&*opened.fs, device.image().size_bytes(), slack_bytes)?;
        }
        let history = History::after(&*opened.fs)
            .map_err(|error| Fault::Survivor(vec![error.to_string()]))?;
        let client_count = 2 + self.random.below(self.options.clients_max.saturating_sub(1));
        let mut clients: Vec<Client> = (0..client_count)
            .map(|index| Client::new(index, &mut self.random, self.options.steps_max, &history))
            .collect();
        let steps = clients.iter().map(|client| client.steps).sum::<u64>();
        if planned.is_of_device() {
            device.arm(planned.plan());
        }
        let shared = Shared {
            scheduler: &scheduler,
            power: &power,
            device: &device,
            planned,
            has_failed: &opened.has_failed,
            has_snapshots: snapshots.is_some(),
            history: Mutex::new(history),
            fault: Mutex::new(None),
            progress: sync::Mutex::new(Progress {
                operations_begun: 0,
                clients_left: clients.len(),
            }),
            has_progressed: sync::Condvar::new(),
        };
        let fs = Arc::clone(&opened.fs);
        let mut known_snapshots = std::mem::take(&mut self.snapshots);
        let mut threads: Vec<SimThreadTask<'_>> = Vec::new();
        for client in &mut clients {
            let (shared, fs) = (&shared, &*fs);
            threads.push((
                format!("client {}", client.index),
                Box::new(move || client.live(shared, fs)),
            ));
        }
        if let Some(snapshots) = snapshots.as_deref().filter(|_| may_snapshot) {
            let (random, client, known) = (self.random.fork(), client_count, &mut known_snapshots);
            let client = usize_of(client);
            let mut taker = Taker { snapshots, known, random, client };
            let shared = &shared;
            threads.push(("snapshots".to_owned(), Box::new(move || taker.live(shared))));
        }
        for (name, step) in opened.jobs {
            let shared = &shared;
            threads.push((name, Box::new(move || run_job(step, shared))));
        }
        // Where something is to happen that may never come, the power goes late.
        let (early, late) = (self.random.below(steps + 1), self.random.below(steps + 1));
        let is_late = has_planned_cut || planned.is_of_device();
        let operations = if is_late { early.max(late) } else { early };
        let pause_ns = self.random.below_power(CUT_NS_POWER_MAX);
        let ends_in_order = matches!(planned, LifeFault::Lies(_));
        if !ends_in_order {
            let cutter = || shared.cut_power(operations, pause_ns);
            threads.push(("power".to_owned(), Box::new(cutter)));
        }
        guarded(|| scheduler.run(threads))?;
        let counted = |count: &AtomicU64| count.load(Ordering::Relaxed);
        self.report.groups_added += counted(&opened.groups.added);
        self.report.groups_leaving += counted(&opened.groups.leaving);
        self.report.groups_gone += counted(&opened.groups.gone);
        self.report.placements += counted(&opened.groups.placed);
        self.report.attached += counted(&opened.groups.attached);
        self.report.detached += counted(&opened.groups.detached);
        self.report.events.add(&opened.groups.events.all());
        self.snapshots = known_snapshots;
        let is_closed = ends_in_order && guarded(&opened.close)?.is_ok();
        power.cut();
        let image =
            if ends_in_order { device.image() } else { device.crash_image(&mut self.random) };
        if let Some(fault) = lock(&shared.fault).take() {
            return Err(fault);
        }
        let history = shared.history.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(opened.close);
        drop(opened.has_failed);
        drop(snapshots);
        guarded(|| drop(opened.fs))?;
        guarded(|| drop(fs))?;
        let harm = device.harm();
        let statistics = scheduler.statistics();
        let in_flight = statistics.in_flight_at_cut.unwrap_or(0);
        self.report.concurrent_crashes += u64::from(in_flight >= 2);
        self.report.operations += u64_of(history.events().len());
        self.report.device_errors += harm.failed_reads + harm.failed_writes;
        self.report.lies += harm.lies;
        self.report.errors_told += clients.iter().map(|client| client.errors).sum::<u64>();
        let refusals = clients.iter().map(|client| client.refusals).sum::<u64>();
        self.report.full_pools += u64::from(refusals > 0);
        self.trace(statistics.trace_hash);
        self.trace(image.content_hash());
        self.epoch = clock.now().plus_ns(REST_NS);
        Ok(Left { history, image, clients, is_closed, harm })
    }

    /// TR5: what a device that lied leaves is right, or told of.
    fn believed(&mut self, left: Left) -> Result<(), Fault> {
        let Left { mut history, image, clients, is_closed, harm } = left;
        if is_closed {
            let number = history.begin(0, crate::ops::Step::root(crate::ops::Op::Sync));
            let outcome = crate::ops::Outcome::Done;
            history.end(number, &crate::ops::Applied { outcome, made: None });
        }
        let (device, _) = self.device(image.clone(), FaultPlan::none());
        let clock = Arc::new(SimClock::starting_at(Scheduler::new(0), self.epoch));
        let start = self.start(device, clock.clone());
        let opened = guarded(|| self.ground.open(&start))?;
        let (mut told, mut words) = (0, String::new());
        match opened {
            Err(why) => (told, words) = (1, why),
            Ok(opened) if !is_closed => told = survey_after_failure(&history, &*opened.fs)?,
            Ok(opened) => {
                for client in clients.iter().filter(|client| !client.is_uncertain) {
                    let model = client.generator.model();
                    let (index, top) = (client.index, client.top());
                    told += guarded(|| survey(index, &model, &top, &*opened.fs))??;
                }
            }
        }
        self.report.errors_told += told;
        self.report.lives_of_lies += 1;
        if harm.lies == 0 && (told > 0 || !is_closed) {
            return Err(Fault::Unusable(format!("{told} errors where nothing went wrong {words}")));
        }
        let (device, _) = self.device(image, FaultPlan::none());
        let start = self.start(device, clock);
        let defects = guarded(|| self.ground.check(&start))?;
        if told > 0 && defects.is_empty() {
            let told = format!("nothing, and yet {told} answers tell of damage {words}");
            return Err(Fault::Check(vec![told]));
        }
        if harm.lies == 0 && !defects.is_empty() { Err(Fault::Check(defects)) } else { Ok(()) }
    }

    /// Looks at the snapshots, on a copy of what was opened after a cut: who looks at one keeps it.
    fn judge_snapshots(&mut self, history: &History, life: &Life) -> Result<(), Fault> {
        if !self.options.has_snapshots {
            return Ok(());
        }
        let (device, _) = self.device(life.device.image(), FaultPlan::none());
        let start = self.start(device, Arc::clone(&life.clock));
        let opened = guarded(|| self.ground.open(&start))?.map_err(Fault::Unusable)?;
        let Some(snapshots) = &opened.snapshots else { return Ok(()) };
        let known = &mut self.snapshots;
        guarded(|| known.judge(history, &*opened.fs, &**snapshots))??;
        self.report.snapshots_judged += self.snapshots.count();
        Ok(())
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

pub(super) fn top_name(index: u64) -> Vec<u8> {
    format!("client{index}").into_bytes()
}

/// Makes the directories that clients work below.
fn prepare(fs: &dyn FileSystem, clients: u64) -> Result<(), Fault> {
    let make = |index: u64| {
        let new = NewInode::new(FileKind::Directory, 0o777);
        let made = fs.create(&Caller::root(), fs.root(), &top_name(index), new, None)?;
        fs.forget(made.ino, 1);
        Ok(())
    };
    // One more than asked for: at least two work.
    let made = (0..=clients).try_for_each(make).and_then(|()| fs.sync());
    made.map_err(|error: FsError| Fault::Unusable(error.to_string()))
}

/// Fills the pool, gives less than `slack_bytes` back, and makes that durable.
fn fill(fs: &dyn FileSystem, bytes_max: u64, slack_bytes: u64) -> Result<(), Fault> {
    let filled = || -> FsResult<()> {
        let new = NewInode::new(FileKind::Regular, 0o600);
        let ballast = match fs.create(&Caller::root(), fs.root(), BALLAST_NAME, new, None) {
            Err(FsError::NoSpace) => return Ok(()),
            made => made?.ino,
        };
        let mut end = 0;
        for length in BALLAST_WRITE_BYTES {
            let bytes = bytes_of(1, length);
            while end < bytes_max {
                match fs.write(&Caller::root(), ballast, end, &bytes) {
                    Ok(()) => end += u64_of(length),
                    Err(FsError::NoSpace) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        let size_bytes = Some(end.saturating_sub(slack_bytes));
        fs.setattr(&Caller::root(), ballast, &SetAttr { size_bytes, ..SetAttr::default() }, None)?;
        fs.forget(ballast, 1);
        fs.sync()
    };
    guarded(filled)?.map_err(|error| Fault::Unusable(format!("while it was filled: {error}")))
}

/// TR4: removes what an earlier life filled the pool with, and makes that durable.
fn remove_ballast(fs: &dyn FileSystem) -> Result<(), Fault> {
    let remove =
        || fs.unlink(&Caller::root(), fs.root(), BALLAST_NAME, None).and_then(|()| fs.sync());
    match guarded(remove)? {
        Ok(()) | Err(FsError::NotFound) => Ok(()),
        Err(error) => Err(Fault::Unusable(format!("a full pool cannot be emptied: {error}"))),
    }
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
