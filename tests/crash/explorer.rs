//! The crash explorer: every moment at which the power could have been cut, and what it may leave.
//!
//! A workload runs once on a recording device, alone with background work between its operations,
//! or beside checkpoints: then pages are written back all the time, as the seed interleaves the
//! two. Each crash point of the recording gives images: every subset of the unflushed writes where
//! they are few, chosen and random ones where they are many, each also torn. Each image is opened
//! (which recovers it), judged, and checked; some are cut a second time in the middle of that
//! recovery.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::{ManualClock, SimClock};
use runtime::prng::Prng;
use runtime::sync::sim::{self, Scheduler, SimThreadTask};
use storage::device::SharedDevice;
use storage::device::sim::{CrashPoint, Image, SimDevice, SimOptions, Strategy};
use testkit::canon::Times;
use testkit::crash::{History, Judge};
use testkit::ops::{Applied, Generator, Profile, Session, Step};

/// Bytes of the pools that are cut.
const POOL_BYTES: u64 = 16 << 20;
/// Images of a moment of a recovery that a second cut chooses among.
const SECOND_IMAGES_MAX: u64 = 8;
/// Beside checkpoints there are fewer scheduling points than this between two checkpoints.
const PAUSE_POINTS_MAX: u64 = 200;

/// What an exploration was.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Explored {
    /// Moments at which the power could have been cut.
    pub(crate) points: u64,
    /// Images opened and judged.
    pub(crate) images: u64,
    /// Images made by a second cut, during recovery.
    pub(crate) second_images: u64,
}

/// What to explore.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Of the workload and of what is random.
    pub(crate) seed: u64,
    /// Operations of the workload.
    pub(crate) steps: usize,
    /// Images of each point.
    pub(crate) strategy: Strategy,
    /// One in so many images is cut a second time.
    pub(crate) second_cut_one_in: u64,
    /// The background work is done after one in so many operations.
    pub(crate) tick_one_in: u64,
    /// Pages are taken home after one in so many operations.
    pub(crate) checkpoint_one_in: u64,
    /// Pages are taken home beside the operations instead, most of which are syncs.
    pub(crate) is_beside_checkpoints: bool,
    /// One in so many renames that may leave a whiteout does; 0: none.
    pub(crate) whiteout_one_in: u64,
}

/// One operation, and where the recording stood when it began and when it was acknowledged.
struct Recorded {
    step: Step,
    began: usize,
    ended: Option<(usize, Applied)>,
}

fn options(is_recorded: bool) -> SimOptions {
    SimOptions { is_recorded, ..SimOptions::default() }
}

fn open(device: &Arc<SimDevice>) -> Result<Pool, String> {
    let device: SharedDevice = Arc::<SimDevice>::clone(device);
    let clock = Arc::new(ManualClock::new());
    Pool::open(device, clock, PoolOpenOptions::default()).map_err(|error| error.to_string())
}

/// Returns the image of a new pool.
pub(crate) fn new_pool() -> Image {
    let device = SimDevice::new(POOL_BYTES, options(false));
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    device.durable_image()
}

/// Runs the workload; returns the device and what was done.
fn run(base: &Image, plan: &Plan) -> (Arc<SimDevice>, Vec<Recorded>) {
    // Every second workload on a device that has flushes alone.
    let has_write_through = plan.seed.is_multiple_of(2);
    let device = SimDevice::open(base.clone(), SimOptions { has_write_through, ..options(true) });
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(shared, clock.clone(), PoolOpenOptions::default()).expect("a pool opens");
    let mut session = Session::new(&pool, Times::Ignored);
    let mut prng = Prng::from_seed(plan.seed);
    let mut recorded = Vec::new();
    let profile = Profile { whiteout_one_in: plan.whiteout_one_in, ..Profile::crash() };
    for step in Generator::history(plan.seed, profile, plan.steps) {
        let began = device.position();
        let applied = session.apply(&step);
        recorded.push(Recorded { step, began, ended: Some((device.position(), applied)) });
        clock.advance_ns(1_000_000_000);
        if prng.one_in(plan.tick_one_in) {
            pool.tick().expect("nothing fails");
        }
        if prng.one_in(plan.checkpoint_one_in) {
            pool.checkpoint().expect("nothing fails");
        }
    }
    (device, recorded)
}

/// Runs a workload of many syncs while pages are taken home; returns the device and what was done.
fn run_beside_checkpoints(base: &Image, plan: &Plan) -> (Arc<SimDevice>, Vec<Recorded>) {
    // Every second workload on a device that has flushes alone.
    let has_write_through = plan.seed.is_multiple_of(2);
    let device = SimDevice::open(base.clone(), SimOptions { has_write_through, ..options(true) });
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let scheduler = Scheduler::new(plan.seed);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let pool = Pool::open(shared, clock, PoolOpenOptions::default()).expect("a pool opens");
    let (mut recorded, is_done) = (Vec::new(), AtomicBool::new(false));
    let client = || {
        let mut session = Session::new(&pool, Times::Ignored);
        for step in Generator::history(plan.seed, Profile::syncing(), plan.steps) {
            let began = device.position();
            let applied = session.apply(&step);
            recorded.push(Recorded { step, began, ended: Some((device.position(), applied)) });
        }
        is_done.store(true, Ordering::Relaxed);
    };
    let take_home = || {
        let mut prng = Prng::from_seed(plan.seed);
        while !is_done.load(Ordering::Relaxed) {
            pool.checkpoint().expect("nothing fails");
            (0..prng.below(PAUSE_POINTS_MAX)).for_each(|_| sim::yield_now());
        }
    };
    let jobs: Vec<SimThreadTask<'_>> = vec![
        ("client".to_owned(), Box::new(client)),
        ("checkpoint".to_owned(), Box::new(take_home)),
    ];
    scheduler.run(jobs);
    (device, recorded)
}

/// Returns how many operations had begun, and how many were acknowledged, when the recording stood
/// at `position`.
fn known_at(recorded: &[Recorded], position: usize) -> (usize, usize) {
    let begun = recorded.iter().filter(|entry| entry.began < position).count();
    let is_ended = |entry: &&Recorded| matches!(&entry.ended, Some((at, _)) if *at <= position);
    (begun, recorded.iter().filter(is_ended).count())
}

/// Returns the history as it was known when the recording stood at `position`.
fn history_at(base: &Pool, recorded: &[Recorded], position: usize) -> History {
    let mut history = History::after(base).expect("the base can be walked");
    for entry in recorded.iter().filter(|entry| entry.began < position) {
        let number = history.begin(0, entry.step.clone());
        if let Some((ended, applied)) = &entry.ended
            && *ended <= position
        {
            history.end(number, applied);
        }
    }
    history
}

/// Opens an image, judges what is there, and checks it.
fn judge_image(image: &Image, judge: &Judge<'_>) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), options(false));
    let pool = open(&device).map_err(|error| format!("does not open: {error}"))?;
    judge.judge(&pool).map_err(|findings| {
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })?;
    let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

/// Cuts the power in the middle of recovering `image`, and judges what is left.
fn cut_recovery(image: &Image, judge: &Judge<'_>, prng: &mut Prng) -> Result<u64, String> {
    let device = SimDevice::open(image.clone(), options(true));
    let pool = open(&device)?;
    drop(pool);
    let recording = device.recording();
    let strategy = Strategy {
        exhaustive_writes_max: 2,
        random_subsets: 2,
        torn_variants: 1,
        seed: prng.next_u64(),
    };
    let mut judged = 0;
    for point in recording.points() {
        let skipped = usize::try_from(prng.below(SECOND_IMAGES_MAX)).expect("few");
        let Some(second) = point.images(&strategy).take(skipped + 1).last() else { continue };
        judge_image(&second.image, judge).map_err(|finding| {
            format!("second cut at {} of the recovery: {finding}", point.position())
        })?;
        judged += 1;
    }
    Ok(judged)
}

/// Explores a workload; panics at the first finding, with what repeats it.
pub(crate) fn explore(plan: &Plan) -> Explored {
    let base = new_pool();
    let base_device = SimDevice::open(base.clone(), options(false));
    let base_pool = open(&base_device).expect("a new pool opens");
    let (device, recorded) = if plan.is_beside_checkpoints {
        run_beside_checkpoints(&base, plan)
    } else {
        run(&base, plan)
    };
    let recording = device.recording();
    let mut explored = Explored::default();
    let mut seen = BTreeSet::new();
    let mut prng = Prng::from_seed(plan.seed);
    let mut points = recording.points().peekable();
    while let Some(first) = points.peek() {
        // Many points lie within one operation: what is known of them is the same.
        let known = known_at(&recorded, first.position());
        let history = history_at(&base_pool, &recorded, first.position());
        let judge = Judge::new(&history);
        let is_known = |point: &CrashPoint| known_at(&recorded, point.position()) == known;
        while let Some(point) = points.next_if(is_known) {
            explored.points += 1;
            for (number, image) in point.images(&plan.strategy).enumerate() {
                // The same bytes with the same history need no second look.
                if !seen.insert((image.image.content_hash(), known)) {
                    continue;
                }
                explored.images += 1;
                let context = || {
                    format!(
                        "seed {} steps {}: cut at {} image {number} ({:?})",
                        plan.seed,
                        plan.steps,
                        point.position(),
                        image.survived
                    )
                };
                if let Err(finding) = judge_image(&image.image, &judge) {
                    panic!("{}: {finding}", context());
                }
                if prng.one_in(plan.second_cut_one_in) {
                    match cut_recovery(&image.image, &judge, &mut prng) {
                        Ok(judged) => explored.second_images += judged,
                        Err(finding) => panic!("{}: {finding}", context()),
                    }
                }
            }
        }
    }
    explored
}
