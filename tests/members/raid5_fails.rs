//! A member of a pool in stripes that fails at a drawn request: under a workload, under the
//! recovery after a power cut, and under the rebuild of another or of itself. The power is cut
//! afterwards, too.

use engine::Pool;
use engine::api::FsError;
use format::members::MemberState;
use runtime::prng::Prng;
use storage::device::RequestKind;
use storage::device::sim::{Fault, FaultPlan, Image, Timeline};
use testkit::canon::Times;
use testkit::crash::judge;
use testkit::ops::{Generator, Outcome, Profile, Session};

use super::raid5::new_raid5;
use super::raid5_crash::{Recorded, cut, history_at, judged, open, run, setting, without};
use super::rebuild::{begin, finish, open as open_hurrying, states};
use super::{Devices, devices_of, reopened};

const STEPS: usize = 36;

/// What an exploration was.
#[derive(Clone, Copy, Debug, Default)]
struct Explored {
    runs: u64,
    hits: u64,
    cuts: u64,
    second_cuts: u64,
    stopped: u64,
}

fn below(prng: &mut Prng, end: usize) -> usize {
    usize::try_from(prng.below(u64::try_from(end).expect("few"))).expect("few")
}

/// Lets the device fail at one of its next `most` requests of a drawn kind.
fn draw_failure(prng: &mut Prng, most: u64) -> Fault {
    let kind = match prng.below(3) {
        0 => RequestKind::Flush,
        _ => RequestKind::Write,
    };
    Fault::Fail { kind, nth: prng.below(most), persists: true }
}

/// Does `STEPS` operations that `seed` chooses until the pool stops; `beside` is called before
/// each, with its number. The last may have been under way.
fn work(
    pool: &Pool,
    timeline: &Timeline,
    seed: u64,
    mut beside: impl FnMut(&Pool, usize),
) -> (Vec<Recorded>, bool) {
    let (mut session, mut prng) = (Session::new(pool, Times::Ignored), Prng::from_seed(seed));
    let mut recorded = Vec::new();
    for (number, step) in
        Generator::history(seed, Profile::syncing(), STEPS).into_iter().enumerate()
    {
        beside(pool, number);
        let began = timeline.now();
        let applied = session.apply(&step);
        let is_stop =
            |error: &FsError| matches!(error, FsError::Io { .. } | FsError::ReadOnly { .. });
        let stops = matches!(&applied.outcome, Outcome::Refused(error) if is_stop(error));
        // What was not answered was under way.
        let ended = if stops { u64::MAX } else { timeline.now() };
        recorded.push(Recorded { step, began, ended, applied });
        if stops
            || prng.one_in(4) && pool.tick().is_err()
            || prng.one_in(12) && pool.checkpoint().is_err()
        {
            return (recorded, true);
        }
    }
    (recorded, false)
}

/// Judges what cuts leave of a run in which the member in slot `failing` has failed: with it as it
/// was, and without it.
fn under_a_workload(seed: u64, explored: &mut Explored) {
    let count = 3 + usize::try_from(seed % 3).expect("few");
    let mut prng = Prng::from_seed(seed ^ 0x1f);
    let base = new_raid5(count);
    let all: Vec<usize> = (0..count).collect();
    let base_pool = open(&reopened(&base, &all)).expect("it opens");
    let devices = reopened(&base, &all);
    let pool = open(&devices).expect("a new pool opens");
    let failing = below(&mut prng, count);
    let fault = draw_failure(&mut prng, 40);
    devices[failing].arm(FaultPlan { faults: vec![fault.clone()] });
    let (recorded, has_stopped) = work(&pool, devices[0].timeline(), seed, |_, _| ());
    assert!(!has_stopped, "seed {seed}, {failing} of {count}, {fault:?}: one may fail");
    explored.runs += 1;
    explored.hits += u64::from(states(&pool)[failing] == MemberState::Failed);
    drop(pool);
    let end = devices[0].timeline().now();
    for _ in 0..8 {
        let time = prng.below(end + 1);
        let history = history_at(&base_pool, &recorded, time);
        let images = cut(&devices, time, &mut prng);
        for missing in [None, Some(failing)] {
            explored.cuts += 1;
            judged(&without(&images, missing), &history).unwrap_or_else(|finding| {
                panic!(
                    "seed {seed}, {failing} of {count} fails, {fault:?}, cut at {time} of {end}, \
                     {missing:?} missing: {finding}"
                )
            });
        }
    }
}

/// Judges recoveries in which the member in slot `failing` fails, and what a cut leaves of them.
fn under_a_recovery(seed: u64, explored: &mut Explored) {
    let count = 3 + usize::try_from(seed % 3).expect("few");
    let base = new_raid5(count);
    let base_pool = open(&reopened(&base, &(0..count).collect::<Vec<_>>())).expect("it opens");
    let (devices, recorded) = run(&base, seed, STEPS);
    let (mut prng, end) = (Prng::from_seed(seed ^ 0x2f), devices[0].timeline().now());
    for _ in 0..12 {
        let time = prng.below(end + 1);
        let history = history_at(&base_pool, &recorded, time);
        let images = cut(&devices, time, &mut prng);
        let failing = below(&mut prng, count);
        let fault = draw_failure(&mut prng, 12);
        let what = format!("seed {seed}, cut at {time}, {failing} of {count}, {fault:?}");
        let left = without(&images, None);
        left[failing].arm(FaultPlan { faults: vec![fault] });
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        explored.runs += 1;
        explored.hits += u64::from(states(&pool)[failing] == MemberState::Failed);
        judge(&history, &pool).unwrap_or_else(|findings| panic!("{what}: {findings:?}"));
        drop(pool);
        let recovered = left[0].timeline().now();
        for _ in 0..2 {
            let at = prng.below(recovered + 1);
            let second = cut(&left, at, &mut prng);
            for missing in [None, Some(failing)] {
                explored.second_cuts += 1;
                judged(&without(&second, missing), &history).unwrap_or_else(|finding| {
                    panic!("{what}, again at {at} of {recovered}, {missing:?} away: {finding}")
                });
            }
        }
    }
}

/// Returns a pool with files in it, and a device beside it that has nothing.
fn with_spare(count: usize) -> Devices {
    let devices = reopened(&new_raid5(count), &(0..count).collect::<Vec<_>>());
    let pool = open_hurrying(&devices).expect("a new pool opens");
    for number in 0..12 {
        let bytes = super::raid5::content(number, 50_000);
        super::put(&pool, &format!("old{number}"), &bytes).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    let images = devices.iter().map(|device| device.image());
    devices_of(images.chain([Image::blank(super::raid5::MEMBER_BYTES)]).collect())
}

/// Judges rebuilds in which the new device fails, or another, whose return the rebuild then needs.
fn under_a_rebuild(seed: u64, explored: &mut Explored) {
    let count = 3 + usize::try_from(seed % 3).expect("few");
    let mut prng = Prng::from_seed(seed ^ 0x3f);
    let base = with_spare(count);
    let first: Vec<usize> = (0..count).collect();
    let base_pool = open_hurrying(&reopened(&base, &first)).expect("it opens");
    let devices = reopened(&base, &(0..=count).collect::<Vec<_>>());
    let (slot, at) = (below(&mut prng, count), below(&mut prng, STEPS / 2));
    // The last is the new one.
    let failing = if prng.one_in(2) { count } else { (slot + 1) % count };
    let fault = draw_failure(&mut prng, 40);
    let what = format!("seed {seed}, {slot} of {count} replaced, {failing} fails, {fault:?}");
    let pool = open_hurrying(&devices[..count].to_vec()).expect("a new pool opens");
    let timeline = devices[0].timeline().clone();
    let (recorded, has_stopped) = work(&pool, &timeline, seed, |pool, number| {
        if number == at {
            begin(pool, slot, &devices[count]);
            devices[failing].arm(FaultPlan { faults: vec![fault.clone()] });
        }
        if number > at && number % 3 == 0 {
            drop(pool.tick());
        }
    });
    explored.runs += 1;
    let is_hit = devices[failing].harm().failed_writes > 0;
    explored.hits += u64::from(is_hit);
    explored.stopped += u64::from(has_stopped);
    assert!(!has_stopped || failing != count, "{what}: the others have all");
    drop(pool);
    // All that is there comes back, the one that failed as well, and the rebuild goes on.
    let time = timeline.now();
    let history = history_at(&base_pool, &recorded, time);
    let images = cut(&devices, time, &mut prng);
    let members: Vec<Image> = (0..count)
        .map(|member| if member == slot { count } else { member })
        .map(|device| images[device].clone())
        .collect();
    // Without the new one too, where no other has failed.
    let others_failed = is_hit && failing != count;
    for missing in [None, Some(slot)].into_iter().take(if others_failed { 1 } else { 2 }) {
        explored.cuts += 1;
        let left = without(&members, missing);
        let pool = open_hurrying(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        judge(&history, &pool).unwrap_or_else(|findings| panic!("{what}: {findings:?}"));
        if missing.is_none() && states(&pool).contains(&MemberState::Joining) {
            finish(&pool);
            drop(pool);
            let whole: Vec<Image> = left.iter().map(|device| device.image()).collect();
            let lost = below(&mut prng, count);
            judged(&without(&whole, Some(lost)), &history)
                .unwrap_or_else(|finding| panic!("{what}, then without {lost}: {finding}"));
        }
    }
}

/// Goal: a member that fails under a workload at any request takes nothing that was acknowledged,
/// wherever the power is cut. `HOLDFAST_SOAK=N` runs N times as many seeds, of each.
#[test]
fn a_member_that_fails_under_a_workload_takes_nothing() {
    let mut explored = Explored::default();
    for seed in 0..setting("HOLDFAST_SOAK").unwrap_or(1) * 12 {
        under_a_workload(seed, &mut explored);
    }
    println!("{explored:?}");
    assert!(explored.hits >= 6, "{explored:?}");
}

/// Goal: nor does one that fails under a recovery, also if the power is cut in that recovery.
#[test]
fn a_member_that_fails_under_a_recovery_takes_nothing() {
    let mut explored = Explored::default();
    for seed in 0..setting("HOLDFAST_SOAK").unwrap_or(1) * 6 {
        under_a_recovery(seed, &mut explored);
    }
    println!("{explored:?}");
    assert!(explored.hits >= 20, "{explored:?}");
}

/// Goal: nor does one that fails under a rebuild: the new device, or one that the rebuild needs,
/// where the pool stops and goes on when it is back.
#[test]
fn a_member_that_fails_under_a_rebuild_takes_nothing() {
    let mut explored = Explored::default();
    for seed in 0..setting("HOLDFAST_SOAK").unwrap_or(1) * 12 {
        under_a_rebuild(seed, &mut explored);
    }
    println!("{explored:?}");
    assert!(explored.hits >= 6, "{explored:?}");
}
