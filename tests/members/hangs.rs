//! Goal: a member that does not answer, or answers late, keeps nobody waiting for more than a few
//! deadlines, is left out where it did not take what it was given, and costs nothing that was
//! acknowledged. One that is slow and within its deadline stays.
//!
//! Method: the same files on a mirror and on a `raid5`, in virtual time; one member misses its
//! answer at a request of each kind, once or from then on; then the power goes, and the files are
//! read with the member and without it.

use std::sync::Arc;
use std::time::Duration;

use engine::Pool;
use format::members::MemberState;
use storage::device::RequestKind;
use storage::device::sim::{Fault, FaultPlan, SimDevice};
use storage::pool::read_superblock;

use super::raid5::{all_but, content, new_raid5};
use super::{Devices, get, new_mirror, open, put, reopened};

const FILES: u8 = 12;
/// What a device has without `--device-deadline`.
const DEADLINE: Duration = storage::device::DEADLINE_DEFAULT;
/// One operation asks a member that hangs for a few things, one after the other: the first takes a
/// deadline, and each further one a sixteenth of it, until the member is left out.
const DEADLINES_PER_OPERATION: u64 = 3;

fn name_of(number: u8) -> String {
    format!("file{number}")
}

/// Does `work`, which must end within a few deadlines; returns how long it took.
fn timed<T>(devices: &[Arc<SimDevice>], what: &str, work: impl FnOnce() -> T) -> (T, Duration) {
    let begun_ns = devices[0].now_ns();
    let done = work();
    let took = Duration::from_nanos(devices[0].now_ns() - begun_ns);
    let most = DEADLINE * u32::try_from(DEADLINES_PER_OPERATION).expect("few");
    assert!(took <= most, "{what}: {took:?}");
    (done, took)
}

/// Writes and reads files while `lost` misses answers; returns how long all of it took.
fn use_it(devices: &Devices, pool: &Pool, what: &str) -> Duration {
    let mut all = Duration::ZERO;
    for number in 0..FILES {
        let (written, took) =
            timed(devices, what, || put(pool, &name_of(number), &content(number, 40_000)));
        written.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (found, read) = timed(devices, what, || get(pool, "first"));
        assert!(found == Some(content(99, 200_000)), "{what}");
        all += took + read;
    }
    all
}

fn check_files(devices: &[Arc<SimDevice>], which: &[usize], what: &str) {
    let left = reopened(devices, which);
    let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(get(&pool, "first") == Some(content(99, 200_000)), "{what}");
    for number in 0..FILES {
        let found = get(&pool, &name_of(number));
        assert!(found == Some(content(number, 40_000)), "{what}: file {number}");
    }
}

/// Runs the files on a pool of `new`, whose member `lost` has `fault`; returns whether it was left
/// out, and how long all took.
fn run(new: &dyn Fn() -> Devices, lost: usize, fault: Fault, what: &str) -> (bool, Duration) {
    let new = new();
    let count = new.len();
    let devices = reopened(&new, &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    put(&pool, "first", &content(99, 200_000)).expect("there is room");
    pool.checkpoint().expect("nothing fails");
    devices[lost].arm(FaultPlan { faults: vec![fault] });
    let took = use_it(&devices, &pool, what);
    let other = devices[(lost + 1) % count].as_ref();
    let label = read_superblock(other).expect("a label").current;
    let is_out = label.members[lost].state == MemberState::Failed;
    // The power goes.
    drop(pool);
    check_files(&devices, &all_but(count, lost), what);
    check_files(&devices, &all_but(count, count), what);
    (is_out, took)
}

const KINDS: [RequestKind; 3] = [RequestKind::Write, RequestKind::Flush, RequestKind::Read];

/// Goal: as above, of a member that hangs.
#[test]
fn a_member_that_hangs_keeps_nobody_waiting() {
    let (mut left_out, mut longest) = (0, Duration::ZERO);
    let makers: [(&str, &dyn Fn() -> Devices); 2] =
        [("mirror", &|| new_mirror(2)), ("raid5", &|| new_raid5(4))];
    for (layout, new) in makers {
        for kind in KINDS {
            for (nth, lost) in [(0, 0), (1, 1), (4, 0), (9, 1)] {
                for (takes_effect, persists) in [(false, true), (false, false), (true, true)] {
                    let fault = Fault::Hang { kind, nth, takes_effect, persists };
                    let what = format!("{layout}, member {lost}: {fault:?}");
                    let (is_out, took) = run(new, lost, fault, &what);
                    left_out += u64::from(is_out);
                    longest = longest.max(took);
                }
            }
        }
    }
    println!("left out {left_out} times; the longest took {longest:?}");
    assert!(left_out >= 30, "{left_out}");
    assert!(longest <= DEADLINE * 8, "{longest:?} for {FILES} files");
}

/// Goal: a member that is slow and answers within its deadline stays, and one that does not is left
/// out. Method: one of its writes is late, by less than the deadline and by more.
#[test]
fn a_member_that_is_slow_stays_until_it_misses_its_deadline() {
    let late = DEADLINE / 2;
    let too_late = DEADLINE + Duration::from_secs(1);
    let makers: [(&str, &dyn Fn() -> Devices); 2] =
        [("mirror", &|| new_mirror(2)), ("raid5", &|| new_raid5(4))];
    for (delay, is_left_out) in [(late, false), (too_late, true)] {
        for (layout, new) in makers {
            let delay_ns = u64::try_from(delay.as_nanos()).expect("seconds");
            let fault = Fault::Delay { kind: RequestKind::Write, nth: 3, delay_ns };
            let what = format!("{layout}: {fault:?}");
            let (is_out, _) = run(new, 1, fault, &what);
            assert_eq!(is_out, is_left_out, "{what}");
        }
    }
}
