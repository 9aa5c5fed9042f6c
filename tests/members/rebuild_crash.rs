//! Power cuts while a device takes the place of a member of a pool in stripes: at every event, each
//! member keeping any subset of what it had not flushed. The rebuild goes on afterwards, perhaps
//! after a second cut; when it has ended everything that was acknowledged is there, whichever
//! member is lost then.

use format::members::MemberState;
use format::superblock::Superblock;
use runtime::prng::Prng;
use storage::device::sim::Image;
use storage::pool::read_superblock;
use testkit::crash::{History, judge};

use super::raid5::{content, new_raid5};
use super::raid5_crash::{Recorded, cut, history_at, judged, setting, without, work};
use super::rebuild::{begin, finish, open, states};
use super::{Devices, devices_of, put};

/// Steps of a workload; the replacement begins after a part of them.
const STEPS: usize = 36;
/// Events before the end of the rebuild each of which is cut.
const NEAR_END: u64 = 24;
/// Identity of the new device.
const NEW: [u8; 16] = [77; 16];

#[derive(Debug, Default)]
struct Explored {
    cuts: u64,
    joining: u64,
    second_cuts: u64,
    ended: u64,
}

fn label_of(device: &storage::device::SharedDevice) -> Option<Superblock> {
    read_superblock(device.as_ref()).ok().map(|read| read.current)
}

/// Returns the images of the members after a cut: those of the first `count` devices, or with the
/// last in the place of the one in `slot`, if the labels say so. Where the new one has no label yet
/// nobody has its place.
fn members(images: &[Image], slot: usize) -> (Vec<Image>, Option<usize>) {
    let count = images.len() - 1;
    let devices = super::shared(&devices_of(images.to_vec()));
    let is_new = |at: &usize| {
        let label = label_of(&devices[*at]);
        label.is_some_and(|label| label.members[slot].id == NEW)
    };
    let mut members = images[..count].to_vec();
    if (0..count).filter(|at| *at != slot).any(|at| is_new(&at)) {
        members[slot] = images[count].clone();
        let has_label = label_of(&devices[count]).is_some_and(|label| label.device_id() == NEW);
        return (members, (!has_label).then_some(slot));
    }
    (members, None)
}

/// Opens what a cut left, lets the rebuild end, and judges; then without any one member.
fn judge_cut(
    images: &[Image],
    slot: usize,
    history: &History,
    explored: &mut Explored,
    prng: &mut Prng,
) -> Result<(), String> {
    let (images, missing) = members(images, slot);
    let devices = without(&images, missing);
    let pool = open(&devices)?;
    if missing.is_some() {
        // The device that was to come is away.
        return judge(history, &pool).map(drop).map_err(|findings| format!("{findings:?}"));
    }
    let is_joining = states(&pool).contains(&MemberState::Joining);
    explored.joining += u64::from(is_joining);
    if is_joining && prng.one_in(3) {
        // Another cut, before or after recovery, and with some of the rebuild done.
        for _ in 0..prng.below(4) {
            pool.tick().map_err(|error| error.to_string())?;
        }
        drop(pool);
        let end = devices[0].timeline().now();
        let second = cut(&devices, prng.below(end + 1), prng);
        explored.second_cuts += 1;
        let devices = devices_of(second);
        let pool = open(&devices).map_err(|error| format!("second cut: {error}"))?;
        finish(&pool);
        judge(history, &pool).map_err(|findings| format!("second cut: {findings:?}"))?;
        drop(pool);
        return judge_each(&devices, history, explored)
            .map_err(|finding| format!("second cut: {finding}"));
    }
    finish(&pool);
    judge(history, &pool).map_err(|findings| format!("whole: {findings:?}"))?;
    drop(pool);
    judge_each(&devices, history, explored)
}

/// Judges without each of the members, after the power was cut.
fn judge_each(devices: &Devices, history: &History, explored: &mut Explored) -> Result<(), String> {
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    explored.ended += 1;
    for lost in 0..images.len() {
        judged(&without(&images, Some(lost)), history)
            .map_err(|finding| format!("without {lost}: {finding}"))?;
    }
    Ok(())
}

/// What was done, and when the replacement began and ended.
struct Run {
    devices: Devices,
    recorded: Vec<Recorded>,
    begun: u64,
    ended: u64,
}

/// Runs a workload in the midst of which the member in `slot` is replaced.
fn replaced(seed: u64, base: &Devices, slot: usize) -> Run {
    let count = base.len() - 1;
    let devices = devices_of(base.iter().map(|device| device.image()).collect());
    let pool = open(&devices[..count].to_vec()).expect("a new pool opens");
    let (mut begun, mut ended) = (0, 0);
    let timeline = devices[0].timeline().clone();
    let recorded = work(&pool, &timeline, (seed, STEPS), |pool, number| {
        if number == STEPS / 3 {
            begun = timeline.now();
            begin(pool, slot, &devices[count]);
        }
        if number > STEPS / 3 {
            // So that it takes as long as the workload: most steps lie beside a part of it.
            for job in pool.jobs() {
                pool.pause_job(job.id, number % 4 != 0);
            }
            pool.tick().expect("nothing fails");
            if ended == 0 && !states(pool).contains(&MemberState::Joining) {
                ended = timeline.now();
            }
        }
    });
    for job in pool.jobs() {
        pool.pause_job(job.id, false);
    }
    finish(&pool);
    drop(pool);
    let ended = if ended == 0 { timeline.now() } else { ended };
    Run { devices, recorded, begun, ended }
}

/// Returns a pool with files in it, and its members as they were before.
fn filled(count: usize) -> (Devices, Vec<Image>) {
    let old: Vec<Image> = new_raid5(count).iter().map(|device| device.image()).collect();
    let devices = devices_of(old.clone());
    let pool = open(&devices).expect("a new pool opens");
    for number in 0..12 {
        put(&pool, &format!("old{number}"), &content(number, 50_000)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    (devices, old)
}

fn explore(seed: u64, cut_one_in: u64, explored: &mut Explored) {
    let count = 3 + usize::try_from(seed % 3).expect("few");
    let mut prng = Prng::from_seed(seed);
    let slot = usize::try_from(prng.below(u64::try_from(count).expect("few"))).expect("few");
    let (filled, old) = filled(count);
    let images = || filled.iter().map(|device| device.image());
    // The spare has pages of this very pool that are out of date.
    let base = devices_of(images().chain([old[slot].clone()]).collect());
    let base_pool = open(&devices_of(images().collect())).expect("it opens");
    let Run { devices, recorded, begun, ended } = replaced(seed, &base, slot);
    let end = devices[0].timeline().now();
    for time in begun..=end {
        // Around the two moments at which the labels change every event is cut, more than once.
        let is_near = time < begun + 12 || time <= ended && time + NEAR_END > ended;
        if !is_near && !prng.one_in(cut_one_in) {
            continue;
        }
        for _ in 0..if is_near { 2 } else { 1 } {
            explored.cuts += 1;
            let history = history_at(&base_pool, &recorded, time);
            let images = cut(&devices, time, &mut prng);
            judge_cut(&images, slot, &history, explored, &mut prng).unwrap_or_else(|finding| {
                panic!(
                    "seed {seed}, cut at {time} of {begun}, {ended}, {end}, {count} members, \
                     {slot} replaced: {finding}"
                )
            });
        }
    }
}

/// Goal: no cut in a rebuild takes what was acknowledged. `HOLDFAST_SOAK=N` runs N times as many
/// seeds.
#[test]
fn no_cut_in_a_rebuild_takes_what_was_acknowledged() {
    let seeds = setting("HOLDFAST_SOAK").unwrap_or(1) * 5;
    let mut explored = Explored::default();
    for seed in 0..seeds {
        explore(seed, 14, &mut explored);
    }
    println!("{explored:?}");
    assert!(explored.joining > 40 && explored.second_cuts > 10, "{explored:?}");
    assert!(explored.ended > 100, "{explored:?}");
}
