//! Scrub of a pool in stripes: blocks, parity and both copies of pages, and nothing made to match
//! what is bad.

use std::sync::{Arc, Mutex};

use engine::{Pool, ScrubReport};
use runtime::prng::Prng;
use storage::device::RequestKind;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice};
use storage::pool::read_superblock;

use super::raid5::{MEMBER_BYTES, all_but, content, new_raid5};
use super::rebuild::{finish, open};
use super::{Devices, NOTHING, devices_of, get, put, reopened, unmended};

const FILES: u8 = 14;

fn filled(count: usize) -> Devices {
    let devices = reopened(&new_raid5(count), &all_but(count, count));
    let pool = open(&devices).expect("all are there");
    for number in 0..FILES {
        put(&pool, &format!("file{number}"), &content(number, 50_000)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &all_but(count, count))
}

fn scrub(pool: &Pool) -> ScrubReport {
    assert!(pool.devices().scrub().expect("there are several"));
    for _ in 0..1000 {
        pool.tick().expect("nothing fails");
        let report = pool.devices().scrub_report().expect("one was begun");
        if report.is_done {
            return report;
        }
    }
    panic!("the scrub does not end: {:?}", pool.jobs());
}

fn verify(pool: &Pool, what: &str) {
    for number in 0..FILES {
        let found = get(pool, &format!("file{number}"));
        assert!(found == Some(content(number, 50_000)), "{what}: file{number} is another");
    }
}

/// Goal: whatever has rotted on one member, data, parity, summaries or pages, is written again;
/// then the others can be lost one by one. Method: bits all over one member turn over.
#[test]
fn what_rots_on_one_member_is_written_again() {
    let (mut repaired, mut parities) = (0, 0);
    for seed in 0..6 {
        let count = 3 + usize::try_from(seed % 3).expect("few");
        let devices = filled(count);
        let pool = open(&devices).expect("it was closed");
        let clean = scrub(&pool);
        assert_eq!(
            (clean.repaired, unmended(&clean), clean.parities),
            (0, NOTHING, 0),
            "{clean:?}"
        );
        let mut prng = Prng::from_seed(seed);
        let bad = usize::try_from(prng.below(u64::try_from(count).expect("few"))).expect("few");
        let geometry = pool.status().geometry;
        for _ in 0..1500 {
            let span = MEMBER_BYTES - (128 << 10) - geometry.groups_offset;
            devices[bad].rot(geometry.groups_offset + prng.below(span), 1 << prng.below(8));
        }
        let found = scrub(&pool);
        assert!(found.repaired > 0 && found.parities > 0, "seed {seed}: {found:?}");
        assert_eq!(unmended(&found), NOTHING, "seed {seed}: {found:?}");
        (repaired, parities) = (repaired + found.repaired, parities + found.parities);
        let again = scrub(&pool);
        let found = (again.repaired, unmended(&again), again.parities);
        assert_eq!(found, (0, NOTHING, 0), "seed {seed}: {again:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        for lost in 0..count {
            let left = reopened(&devices, &all_but(count, lost));
            let pool = open(&left).expect("all but one are enough");
            verify(&pool, &format!("seed {seed}, {bad} had rotted, without {lost}"));
        }
    }
    println!("{repaired} pages and blocks, {parities} parities");
}

/// Goal: what has rotted on a member that takes no writes is told as what it is: whole, and not
/// written again. It is neither lost nor not read, and its files are read. Method: all
/// that a member of a raid5 has rots, and its writes fail.
#[test]
fn what_is_not_written_again_is_no_loss() {
    let count = 4;
    let devices = filled(count);
    let pool = open(&devices).expect("it was closed");
    let groups = pool.status().geometry.groups_offset;
    for offset in (groups..MEMBER_BYTES - (128 << 10)).step_by(4096) {
        devices[1].rot(offset + 77, 4);
    }
    let faults = vec![Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true }];
    assert!(pool.devices().scrub().expect("there are several"));
    devices[1].arm(FaultPlan { faults });
    for _ in 0..50 {
        pool.tick().expect("the pool goes on");
    }
    let found = pool.devices().scrub_report().expect("one was begun");
    assert!(found.unwritten > 0, "{found:?}");
    assert_eq!(unmended(&found), (0, 0, found.unwritten), "{found:?}");
    assert!(found.waits.is_some(), "the member has failed: {found:?}");
    verify(&pool, "the others have it");
}

/// Goal: where two members have rotted in one row what is lost is told by its path, and parity is
/// not made to match: with the rot of one undone the other is rebuilt from it.
#[test]
fn parity_is_never_made_to_match_what_is_bad() {
    let count = 4;
    let devices = filled(count);
    let geometry = read_superblock(devices[0].as_ref()).expect("a label").current.geometry;
    let stripes = geometry.stripes().expect("it has stripes");
    let images: Vec<Image> = devices.iter().map(|device| device.image()).collect();
    let page_at = |member: usize, offset: u64| {
        let mut page = [0; 4096];
        images[member].read(offset, &mut page);
        page
    };
    let is_data = |page: &[u8; 4096]| {
        let has = |number| content(number, 50_000).chunks_exact(4096).any(|chunk| chunk == page);
        (0..FILES).any(has)
    };
    let members_of = |row: u64| [0, 1].map(|index| stripes.data_member(row, index));
    let rows = 0..(MEMBER_BYTES - (128 << 10) - geometry.groups_offset) / 8192;
    let is_full = |row: &u64| {
        let offset = stripes.row_offset(*row);
        members_of(*row).iter().all(|&member| is_data(&page_at(member, offset)))
    };
    let row = rows.into_iter().find(is_full).expect("a row of data");
    let ([one, other], offset) = (members_of(row), stripes.row_offset(row) + 77);
    devices[one].rot(offset, 4);
    devices[other].rot(offset, 8);
    let pool = open(&devices).expect("it was closed");
    let found = scrub(&pool);
    assert!(found.lost > 0 && unmended(&found) == (found.lost, 0, 0), "{found:?}");
    assert!(found.names.iter().any(|name| name.contains("/file")), "{found:?}");
    assert_eq!(found.parities, 0, "{found:?}");
    // The rot of one is undone: what is left of the other is in the parity.
    devices[one].rot(offset, 4);
    let found = scrub(&pool);
    assert_eq!(unmended(&found), NOTHING, "{found:?}");
    verify(&pool, "rebuilt from a parity that was left alone");
}

/// Rots pages of a member, data, parity and metadata alike: those at `step` bytes from each other.
fn rot_pages(device: &SimDevice, groups_offset: u64, step: usize) {
    for offset in (groups_offset..MEMBER_BYTES - (128 << 10)).step_by(step) {
        device.rot(offset + 77, 4);
    }
}

/// Goal: without a member a scrub that is asked for looks at what can be looked at, finds nothing
/// where nothing is bad, and tells what it compared with nothing, and for which device. What is bad
/// on another member is told as not read, by path: the one that is away may have it. When that is
/// back another scrub makes all whole.
#[test]
fn without_a_member_what_can_be_looked_at_is_and_the_rest_is_told() {
    let count = 4;
    let devices = filled(count);
    let (away, rotten) = (1, 2);
    let left = reopened(&devices, &all_but(count, away));
    let pool = open(&left).expect("all but one are enough");
    let clean = scrub(&pool);
    assert_eq!((clean.repaired, unmended(&clean), clean.parities), (0, NOTHING, 0), "{clean:?}");
    assert!(clean.uncompared_bytes > u64::from(FILES) * 50_000, "{clean:?}");
    assert!(matches!(&clean.away[..], [device] if device.contains("slot 1")), "{clean:?}");
    let groups = pool.status().geometry.groups_offset;
    // The one behind those that are there is in slot 2 with all of them.
    rot_pages(&left[rotten - 1], groups, 3 * 4096);
    let found = scrub(&pool);
    assert!(found.unread > 0 && unmended(&found) == (0, found.unread, 0), "{found:?}");
    assert!(found.repaired > 0, "pages of metadata have their copies elsewhere: {found:?}");
    assert!(found.names.iter().any(|name| name.contains("/file")), "{found:?}");
    assert_eq!(found.parities, 0, "{found:?}");
    pool.close().expect("nothing fails");
    drop(pool);
    let mut back = reopened(&left, &[0, 1, 2]);
    back.insert(away, reopened(&devices, &[away]).remove(0));
    let back = devices_of(back.iter().map(|device| device.image()).collect());
    let pool = open(&back).expect("all are there");
    finish(&pool);
    let found = scrub(&pool);
    assert_eq!((unmended(&found), found.uncompared_bytes), (NOTHING, 0), "{found:?}");
    assert_eq!(found.away, [""; 0], "{found:?}");
    verify(&pool, "the member that was away had it");
}

/// Goal: a scrub that began with all members and lost one goes on without it when it is asked for
/// again, and not by itself.
#[test]
fn a_scrub_that_waits_for_a_member_goes_on_without_it_when_it_is_asked_for() {
    let count = 4;
    let devices = filled(count);
    let pool = open(&devices).expect("all are there");
    assert!(pool.devices().scrub().expect("there are several"));
    pool.tick().expect("nothing fails");
    pool.devices().fail_member(1).expect("the others have all");
    (0..50).for_each(|_| pool.tick().expect("nothing fails"));
    let waits = pool.devices().scrub_report().expect("one was begun");
    assert!(!waits.is_done && waits.waits.is_some(), "{waits:?}");
    assert!(!pool.devices().scrub().expect("it is under way"));
    (0..200).for_each(|_| pool.tick().expect("nothing fails"));
    let found = pool.devices().scrub_report().expect("one was begun");
    assert!(found.is_done && found.uncompared_bytes > 0, "{found:?}");
    assert_eq!(unmended(&found), NOTHING, "{found:?}");
}

/// Keeps the warnings and errors of a thread.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().expect("nobody panicked").push(text.0);
    }
    fn enter(&self, _span: &tracing::span::Id) {}
    fn exit(&self, _span: &tracing::span::Id) {}
}

/// Goal: what a scrub writes again is one line of the log, with counts and the device, however much
/// it is; and the device has errors from then on, until they are cleared.
#[test]
fn what_a_scrub_finds_is_one_line_of_the_log() {
    let devices = filled(4);
    let pool = open(&devices).expect("it was closed");
    let groups = pool.status().geometry.groups_offset;
    rot_pages(&devices[2], groups, 4096);
    let lines = Arc::new(Lines::default());
    let found = tracing::subscriber::with_default(Arc::clone(&lines), || scrub(&pool));
    assert!(found.repaired > 20 && unmended(&found) == NOTHING, "{found:?}");
    let lines = lines.0.lock().expect("nobody panicked").clone();
    let told: Vec<&String> = lines.iter().filter(|line| line.contains("a scrub found")).collect();
    let [line] = told[..] else { panic!("{lines:?}") };
    let repaired = format!("repaired={} ", found.repaired);
    assert!(line.contains(&repaired) && line.contains("slot 2"), "{line}");
    // Others may read meanwhile, and mend what they meet.
    assert!(lines.len() < 10, "{lines:?}");
    let errors = |slot: usize| pool.devices().members()[slot].counts.checksum_errors;
    assert!(errors(2) > 20 && errors(1) == 0);
    pool.devices().clear_errors(Some(2));
    assert_eq!(errors(2), 0);
}
