//! The workloads, what proving them finds, and their logs.

use std::collections::BTreeSet;

use storage::device::sim::{Image, SimDevice, SimOptions};

use super::export::{FLAG_FLUSH, FLAG_MARK, MAGIC, SECTOR_BYTES, VERSION, log_of};
use super::run::{new_pool, run};
use super::workload::{
    Action, alphabet, alphabet_of_kinds, core_alphabet, count, persistence_points,
};
use super::{Alphabet, Choice, Options, Set, chosen, fnv1a, prove};
use crate::number::{u64_of, usize_of};

/// Hash of the 316 distinct workloads of one operation that bounded black-box crash testing
/// generates: their texts, sorted, with an empty line between.
const WORKLOADS_OF_ONE_HASH: u64 = 0x3f59_44f5_d59e_faa3;

#[test]
fn workloads_of_one_are_those_of_bounded_black_box_testing() {
    let set = Set::new(1, Alphabet::All);
    let texts: BTreeSet<String> =
        (0..set.count()).map(|index| set.get(index).to_string()).collect();
    assert_eq!(texts.len(), 316);
    let texts: Vec<String> = texts.into_iter().collect();
    assert_eq!(fnv1a(texts.join("\n").into_bytes()), WORKLOADS_OF_ONE_HASH);
}

/// Goal: every longer workload runs, and each of its operations is done. Method: one in so many.
#[test]
fn longer_workloads_run_and_their_numbers_name_them() {
    let sizes = [alphabet(), alphabet_of_kinds(), core_alphabet()].map(|all| all.len());
    assert_eq!(sizes, [76, 19, 8]);
    let base = new_pool();
    let sets = [
        (2, Alphabet::All, 1499),
        (3, Alphabet::Kinds, 1499),
        (3, Alphabet::Core, 499),
        (3, Alphabet::Snapshots, 499),
    ];
    for (bound, alphabet, step) in sets {
        let set = Set::new(bound, alphabet);
        let mut texts = BTreeSet::new();
        for index in (0..set.count()).step_by(step) {
            let workload = set.get(index);
            assert_eq!(workload, set.get(index));
            let done = run(&base, &workload);
            assert!(done.is_ok(), "{bound}/{index}: {:?}\n{workload}", done.err());
            texts.insert(workload.to_string());
        }
        assert!(u64_of(texts.len()) * 3 > set.count() / u64_of(step), "{}", texts.len());
    }
    assert_eq!(count(&alphabet(), 1), 316);
}

/// Goal: no kind of operation, of space taken or given back, or of persistence point is missing
/// from the alphabet of kinds, but remove(3).
#[test]
fn the_alphabet_of_kinds_has_every_kind() {
    let kinds = |actions: Vec<Action>| {
        let kind = |action: &Action| format!("{action:?}").split('(').next().map(str::to_owned);
        let (mut operations, mut spaces, mut points) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for action in actions {
            operations.extend(kind(&action));
            points.extend(persistence_points(action));
            if let Action::Fallocate(_, kind, ..) = action {
                spaces.insert(kind);
            }
        }
        (operations, spaces, points)
    };
    let (mut all, reduced) = (kinds(alphabet()), kinds(alphabet_of_kinds()));
    assert!(all.0.remove("Remove"));
    assert_eq!(all, reduced);
}

fn field(bytes: &[u8], index: usize) -> u64 {
    let at = index * 8;
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("a sector has 64 fields"))
}

/// Plays a log onto `image`, and hands each entry that is no write to `each`.
fn replay(image: &mut Image, log: &[u8], mut each: impl FnMut(&Image, u64, &[u8])) {
    let head = &log[..SECTOR_BYTES];
    assert_eq!((field(head, 0), field(head, 1)), (MAGIC, VERSION));
    assert_eq!(head[24..28], 512_u32.to_le_bytes());
    let mut at = SECTOR_BYTES;
    for _ in 0..field(head, 2) {
        let entry = &log[at..at + SECTOR_BYTES];
        at += SECTOR_BYTES;
        let (sector, length) = (field(entry, 0), usize_of(field(entry, 1)) * SECTOR_BYTES);
        image.write(sector * u64_of(SECTOR_BYTES), &log[at..at + length]);
        at += length;
        if field(entry, 2) != 0 {
            each(image, field(entry, 2), &entry[32..32 + usize_of(field(entry, 3))]);
        }
    }
    assert_eq!(at, log.len());
}

/// Goal: who plays the log gets what the device held, and a sound pool at every flush.
#[test]
fn a_log_played_onto_its_base_gives_the_pool_at_every_flush() {
    let (base, set) = (new_pool(), Set::new(1, Alphabet::All));
    for index in (0..set.count()).step_by(29) {
        let workload = set.get(index);
        let done = run(&base, &workload).expect("nothing fails");
        let (mut image, mut flushes, mut marks) = (base.clone(), 0, Vec::new());
        replay(&mut image, &log_of(&done), |image, flag, mark| {
            if flag == FLAG_MARK {
                marks.push(String::from_utf8_lossy(mark).into_owned());
                return;
            }
            assert_eq!(flag, FLAG_FLUSH);
            flushes += 1;
            let device = SimDevice::open(image.clone(), SimOptions::default());
            let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
            assert!(report.is_clean(), "{workload}{}", report.to_text());
        });
        assert_eq!(marks, ["checkpoint 1"], "{workload}");
        assert!(flushes > 3, "{workload}");
        assert_eq!(image.content_hash(), done.device.image().content_hash(), "{workload}");
    }
}

/// Goal: the same options give the same states.
#[test]
fn what_is_proved_repeats() {
    let alphabet = Alphabet::All;
    let options =
        Options { bound: 2, alphabet, choice: Choice::Sample(2), failures: false, seed: 5 };
    let told = || {
        let report = prove(&options, |_, _| ()).expect("a pool fits");
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        (report.set_hash, report.points, report.states, report.images, report.judged)
    };
    let first = told();
    assert!(first.4 > 50, "{first:?}");
    assert_eq!(first, told());
}

#[test]
fn the_parts_of_a_set_are_the_set() {
    let set = Set::new(1, Alphabet::All);
    let part = |index| Options {
        bound: 1,
        alphabet: Alphabet::All,
        choice: Choice::Part { index, count: 7 },
        failures: false,
        seed: 0,
    };
    let parts: BTreeSet<u64> = (0..7).flat_map(|index| chosen(&set, &part(index))).collect();
    let sizes: usize = (0..7).map(|index| chosen(&set, &part(index)).len()).sum();
    assert_eq!((u64_of(parts.len()), u64_of(sizes)), (set.count(), set.count()));
}

/// Goal: no power cut loses a snapshot, changes one, or leaves what nobody holds. Method: workloads
/// of three operations, one in so many of those that take or delete a snapshot.
#[test]
fn no_cut_loses_or_changes_a_snapshot() {
    let (alphabet, bound) = (Alphabet::Snapshots, 3);
    let set = Set::new(bound, alphabet);
    let has_snapshot = |index: &u64| set.get(*index).to_string().contains("snapshot");
    let with_snapshots: Vec<u64> =
        (0..set.count()).step_by(499).filter(has_snapshot).take(12).collect();
    assert_eq!(with_snapshots.len(), 12);
    let mut judged = 0;
    for index in with_snapshots {
        let options =
            Options { bound, alphabet, choice: Choice::Only(index), failures: false, seed: 4 };
        let report = prove(&options, |_, _| ()).expect("a pool fits");
        assert!(report.findings.is_empty(), "{}", report.findings[0].message);
        judged += report.judged;
    }
    assert!(judged > 200, "{judged} states mean little");
}

/// Goal: each request and need of space of some workloads fails, and nothing acknowledged is lost.
#[test]
fn whatever_fails_nothing_acknowledged_is_lost() {
    let choice = Choice::Part { index: 5, count: 12 };
    let alphabet = Alphabet::All;
    let options = Options { bound: 1, alphabet, choice, failures: true, seed: 3 };
    let report = prove(&options, |_, _| ()).expect("a pool fits");
    assert!(report.findings.is_empty(), "{}", report.findings[0].message);
    assert!(report.failures > 1500, "{report:?}");
}
