//! Power cuts of a pool in stripes: at every event of a workload, whatever each member kept of what
//! it had not flushed, whichever of them is missing or has rotted afterwards, and whichever is lost
//! after the recovery. Some recoveries are cut too.
//!
//! With one member away everything that was acknowledged is there; so is it with one byte of one
//! member turned over. Both at a time, which are more than a parity is for, are in `raid5_both.rs`,
//! and members that fail meanwhile in `raid5_fails.rs`.

use std::sync::Arc;

use engine::{Pool, PoolOpenOptions};
use runtime::clock::{Clock, ManualClock};
use runtime::prng::Prng;
use storage::device::sim::{Image, Timeline};
use storage::volume::VolumeDevices;
use testkit::canon::Times;
use testkit::crash::{History, judge};
use testkit::ops::{Applied, Generator, Profile, Session, Step};

use super::raid5::new_raid5;
use super::{Devices, devices_of, reopened, shared};

/// One operation, and where the timeline stood when it began and when it was acknowledged.
pub(crate) struct Recorded {
    pub(crate) step: Step,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) applied: Applied,
}

/// What an exploration was.
#[derive(Clone, Copy, Debug, Default)]
struct Explored {
    cuts: u64,
    opened: u64,
    second_cuts: u64,
}

/// What is wrong with the members when the pool is opened after a cut.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Nothing,
    Missing(usize),
    Rotted { member: usize, offset: u64 },
}

pub(crate) fn open(devices: &Devices) -> Result<Pool, String> {
    open_by(devices, Arc::new(ManualClock::new()))
}

pub(crate) fn open_by(devices: &Devices, clock: Arc<dyn Clock>) -> Result<Pool, String> {
    let options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    Pool::open_members(opening, clock, options).map_err(|error| format!("does not open: {error}"))
}

pub(crate) fn without(images: &[Image], missing: Option<usize>) -> Devices {
    let kept = images.iter().enumerate().filter(|(at, _)| Some(*at) != missing);
    devices_of(kept.map(|(_, image)| image.clone()).collect())
}

pub(crate) fn judged(devices: &Devices, history: &History) -> Result<(), String> {
    let pool = open(devices)?;
    judge(history, &pool).map(drop).map_err(|findings| {
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })
}

/// Runs the workload; returns the devices and what was done.
pub(crate) fn run(base: &Devices, seed: u64, steps: usize) -> (Devices, Vec<Recorded>) {
    let all: Vec<usize> = (0..base.len()).collect();
    let devices = reopened(base, &all);
    let pool = open(&devices).expect("a new pool opens");
    let recorded = work(&pool, devices[0].timeline(), (seed, steps), |_, _| ());
    drop(pool);
    (devices, recorded)
}

/// Does `steps` operations that `seed` chooses, and ticks and checkpoints between them; `beside`
/// is called before each, with its number.
pub(crate) fn work(
    pool: &Pool,
    timeline: &Timeline,
    (seed, steps): (u64, usize),
    mut beside: impl FnMut(&Pool, usize),
) -> Vec<Recorded> {
    let (mut session, mut prng) = (Session::new(pool, Times::Ignored), Prng::from_seed(seed));
    let mut recorded = Vec::new();
    let profile = if prng.one_in(2) { Profile::syncing() } else { Profile::crash() };
    for (number, step) in Generator::history(seed, profile, steps).into_iter().enumerate() {
        beside(pool, number);
        let began = timeline.now();
        let applied = session.apply(&step);
        recorded.push(Recorded { step, began, ended: timeline.now(), applied });
        if prng.one_in(4) {
            pool.tick().expect("nothing fails");
        }
        if prng.one_in(12) {
            pool.checkpoint().expect("nothing fails");
        }
    }
    recorded
}

pub(crate) fn history_at(base: &Pool, recorded: &[Recorded], time: u64) -> History {
    let mut history = History::after(base).expect("the base can be walked");
    for entry in recorded.iter().filter(|entry| entry.began < time) {
        let number = history.begin(0, entry.step.clone());
        if entry.ended <= time {
            history.end(number, &entry.applied);
        }
    }
    history
}

/// Returns the members as a power cut at `time` may have left them.
pub(crate) fn cut(devices: &Devices, time: u64, prng: &mut Prng) -> Vec<Image> {
    let point = |device: &Arc<storage::device::sim::SimDevice>| {
        device.recording().point_at(time).image(prng).image
    };
    devices.iter().map(point).collect()
}

fn harm(images: &[Image], prng: &mut Prng) -> Harm {
    let members = u64::try_from(images.len()).expect("few");
    let member = usize::try_from(prng.below(members)).expect("few");
    match prng.below(4) {
        0 => Harm::Nothing,
        1 => Harm::Rotted { member, offset: prng.below(images[member].size_bytes()) },
        _ => Harm::Missing(member),
    }
}

/// Opens what a cut left, with what is wrong besides, and again without one member; judges both.
fn judge_cut(
    images: &[Image],
    harm: Harm,
    history: &History,
    prng: &mut Prng,
    explored: &mut Explored,
) -> Result<(), String> {
    let missing = if let Harm::Missing(member) = harm { Some(member) } else { None };
    let devices = without(images, missing);
    if let Harm::Rotted { member, offset } = harm {
        devices[member].rot(offset, 0x10);
    }
    explored.opened += 1;
    judged(&devices, history)?;
    if missing.is_some() {
        return Ok(());
    }
    // What recovery believed must be there whichever member is lost next; what had rotted and was
    // not read is still rotten.
    let lost = match harm {
        Harm::Rotted { member, .. } => member,
        Harm::Nothing | Harm::Missing(_) => {
            usize::try_from(prng.below(u64::try_from(images.len()).expect("few"))).expect("few")
        }
    };
    let left: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    explored.opened += 1;
    judged(&without(&left, Some(lost)), history)
        .map_err(|finding| format!("recovered whole, then without {lost}: {finding}"))
}

/// Cuts the power in the middle of the recovery of what a cut left.
fn cut_recovery(
    images: &[Image],
    missing: Option<usize>,
    history: &History,
    prng: &mut Prng,
    explored: &mut Explored,
) -> Result<(), String> {
    let devices = without(images, missing);
    drop(open(&devices)?);
    let end = devices[0].timeline().now();
    for _ in 0..3 {
        let time = prng.below(end + 1);
        let second = cut(&devices, time, prng);
        explored.second_cuts += 1;
        let harm = match missing {
            Some(_) => Harm::Nothing,
            None => harm(&second, prng),
        };
        let judged = match missing {
            Some(_) => judged(&without(&second, None), history),
            None => judge_cut(&second, harm, history, prng, explored),
        };
        judged.map_err(|finding| format!("second cut at {time} of {end}, {harm:?}: {finding}"))?;
    }
    Ok(())
}

/// Judges what a cut left once its recovery was cut off too, at any moment of it.
pub(crate) fn judged_again(
    images: &[Image],
    history: &History,
    prng: &mut Prng,
) -> Result<(), String> {
    let recovering = without(images, None);
    drop(open(&recovering).expect("it was judged"));
    let at = prng.below(recovering[0].timeline().now() + 1);
    judged(&without(&cut(&recovering, at, prng), None), history)
        .map_err(|finding| format!("again at {at}: {finding}"))
}

/// Explores one workload; panics at the first finding, with what repeats it.
fn explore(seed: u64, steps: usize, cut_one_in: u64) -> Explored {
    let count = 3 + usize::try_from(seed % 3).expect("few");
    let base = new_raid5(count);
    let base_pool = open(&reopened(&base, &(0..count).collect::<Vec<_>>())).expect("it opens");
    let (devices, recorded) = run(&base, seed, steps);
    let (mut prng, mut explored) = (Prng::from_seed(!seed), Explored::default());
    let end = devices[0].timeline().now();
    for time in 0..=end {
        if !prng.one_in(cut_one_in) {
            continue;
        }
        explored.cuts += 1;
        let history = history_at(&base_pool, &recorded, time);
        let images = cut(&devices, time, &mut prng);
        let harm = harm(&images, &mut prng);
        let context = || format!("seed {seed}, cut at {time} of {end}, {count} members, {harm:?}");
        judge_cut(&images, harm, &history, &mut prng, &mut explored)
            .unwrap_or_else(|finding| panic!("{}: {finding}", context()));
        if prng.one_in(8) {
            let missing = if let Harm::Missing(member) = harm { Some(member) } else { None };
            cut_recovery(&images, missing, &history, &mut prng, &mut explored)
                .unwrap_or_else(|finding| panic!("{}: {finding}", context()));
        }
    }
    explored
}

pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Goal: no hole. `HOLDFAST_SOAK=N` runs N times as many seeds.
#[test]
fn no_cut_and_no_lost_member_takes_what_was_acknowledged() {
    let seeds = setting("HOLDFAST_SOAK").unwrap_or(1) * 18;
    let mut total = Explored::default();
    for seed in 0..seeds {
        let explored = explore(seed, 40, 12);
        total.cuts += explored.cuts;
        total.opened += explored.opened;
        total.second_cuts += explored.second_cuts;
    }
    println!("{total:?}");
    assert!(total.cuts > 100 && total.second_cuts > 20, "{total:?}");
}
