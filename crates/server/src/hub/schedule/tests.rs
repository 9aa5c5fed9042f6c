//! Tests of what schedules plan.

use super::*;
use control::Period;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// 2026-11-23 19:42 UTC, a Monday.
const NOW: u64 = 1_795_462_920;

#[test]
fn names_are_those_of_the_calendar() {
    let at = |seconds| {
        [Period::Hour, Period::Day, Period::Week, Period::Month].map(|it| it.name_at(seconds))
    };
    assert_eq!(
        at(NOW),
        [
            "hourly-2026-11-23_19-00",
            "daily-2026-11-23_00-00",
            "weekly-2026-11-23_00-00",
            "monthly-2026-11-01_00-00"
        ]
    );
    // A Sunday, a leap day, and the last second of a century.
    assert_eq!(at(NOW - DAY)[2], "weekly-2026-11-16_00-00");
    assert_eq!(at(1_709_164_800)[1], "daily-2024-02-29_00-00");
    assert_eq!(at(4_102_444_799)[0], "hourly-2099-12-31_23-00");
    assert_eq!(at(0)[3], "monthly-1970-01-01_00-00");
    assert_eq!(at(0)[2], "weekly-1970-01-01_00-00");
}

/// Goal: at any time the newest snapshots of each kind exist, and all of the user's. Method: plans
/// are applied to a list of names, at times that skip hours and days.
#[test]
fn the_newest_are_kept_and_nothing_else_is_touched() {
    let counts = SnapshotCounts::parse("hourly=24,daily=7,weekly=2").expect("it is one");
    let mine = [
        "monday",
        "hourly-mine",
        "hourly-2026-11-23_19-00-old",
        "daily-2026-11-23",
        // No schedule makes these names, because periods begin at full hours and at midnight.
        "hourly-2026-01-23_19-30",
        "daily-2026-01-23_15-00",
        "weekly-2026-01-19_15-00",
    ];
    let mut names: Vec<String> = mine.iter().map(ToString::to_string).collect();
    let (mut seconds, mut planned) = (NOW, NOW);
    for step in 0..500_u64 {
        planned = seconds;
        let due = plan(&counts, seconds, &names);
        assert!(due.delete.iter().all(|name| names.contains(name)), "{due:?}");
        assert!(due.take.iter().all(|name| !names.contains(name)), "{due:?}");
        names.retain(|name| !due.delete.contains(name));
        names.extend(due.take);
        assert_eq!(plan(&counts, seconds, &names), DueSnapshotActions::default(), "once is enough");
        seconds += if step % 50 == 49 { 3 * DAY } else { HOUR / 2 };
    }
    let count = |period: Period| names.iter().filter(|name| period.has_named(name)).count();
    assert_eq!((count(Period::Hour), count(Period::Day), count(Period::Week)), (24, 7, 2));
    assert!(names.contains(&Period::Hour.name_at(planned)));
    for name in mine {
        assert!(names.iter().any(|it| it == name), "{name} was deleted");
    }
}

/// Goal: a schedule's last snapshot stays until the next one exists.
#[test]
fn the_last_one_stays_until_there_is_another() {
    let counts = SnapshotCounts::parse("hourly=1").expect("it is one");
    let [before, now] = [1, 0].map(|hours| Period::Hour.name_at(NOW - hours * HOUR));
    let due = plan(&counts, NOW, std::slice::from_ref(&before));
    assert_eq!(
        due,
        DueSnapshotActions { take: vec![now.clone()], ..DueSnapshotActions::default() }
    );
    let due = plan(&counts, NOW, &[before.clone(), now]);
    assert_eq!(due, DueSnapshotActions { delete: vec![before], ..DueSnapshotActions::default() });
}

/// Goal: a clock that is wrong for a time costs no snapshot.
#[test]
fn a_clock_that_jumps_deletes_nothing_of_use() {
    let counts = SnapshotCounts::parse("hourly=2").expect("it is one");
    let names: Vec<String> = [1, 0].map(|hours| Period::Hour.name_at(NOW - hours * HOUR)).to_vec();
    // The clock was set back, so the due name is older than an existing one.
    assert_eq!(plan(&counts, NOW - HOUR, &names), DueSnapshotActions::default());
    let due = plan(&counts, 0, &names);
    assert_eq!((due.take.len(), due.delete.len()), (1, 0));
    let mut with_future = names.clone();
    with_future.push(Period::Hour.name_at(NOW + 1000 * DAY));
    assert_eq!(plan(&counts, NOW, &with_future), DueSnapshotActions::default());
    // No schedule keeps this kind, so its snapshots belong to the user.
    assert_eq!(plan(&SnapshotCounts::default(), NOW, &names), DueSnapshotActions::default());
}

#[test]
fn counts_are_words_and_others_are_refused() {
    let counts = SnapshotCounts::parse("daily=7,hourly=24").expect("it is one");
    assert_eq!(counts.text(), "hourly=24,daily=7");
    assert_eq!(SnapshotCounts::parse("none"), Ok(SnapshotCounts::default()));
    for text in ["", "hourly", "hourly=x", "yearly=1", "hourly=-1", "hourly=1001"] {
        assert!(SnapshotCounts::parse(text).is_err(), "{text}");
    }
}

/// Goal: if a fileset has no room for a due snapshot, the oldest of the due kind is deleted first.
/// The last one of a kind is kept, and one of another kind is deleted.
#[test]
fn without_room_the_oldest_of_its_own_goes_first() {
    let counts = SnapshotCounts::parse("hourly=9,daily=9").expect("it is one");
    let hours = |ago: std::ops::RangeInclusive<u64>| {
        ago.map(|hours| Period::Hour.name_at(NOW - hours * HOUR)).collect::<Vec<String>>()
    };
    let days = |ago: std::ops::RangeInclusive<u64>| {
        ago.map(|days| Period::Day.name_at(NOW - days * DAY)).collect::<Vec<String>>()
    };
    let names = [hours(1..=3), days(0..=2), vec!["mine".to_owned()]].concat();
    let due = plan(&counts, NOW, &names);
    assert_eq!((due.take, due.delete), (hours(0..=0), vec![]));
    assert_eq!(due.spare, [hours(3..=3), hours(2..=2), days(2..=2), days(1..=1)].concat());
    let names = [hours(1..=1), days(0..=2)].concat();
    assert_eq!(plan(&counts, NOW, &names).spare, [days(2..=2), days(1..=1)].concat());
    let names = [hours(0..=3), days(0..=2)].concat();
    assert_eq!(plan(&counts, NOW, &names), DueSnapshotActions::default());
}
