//! Bounds and expiry of a watch.

use std::net::{IpAddr, SocketAddr};

use engine::api::Ino;

use super::*;

/// An access point whose file system is closed, so that every name lookup fails.
fn gone(front: &'static str, name: &str) -> Arc<AccessPoint> {
    let place = AccessPoint::of_nothing(front, name.to_owned(), Ino(1));
    Arc::new(place)
}

fn answered(place: &Arc<AccessPoint>, ino: u64, took_ms: u64) -> AnsweredRequest<'_> {
    let (took, ino) = (Duration::from_millis(took_ms), Ino(ino));
    let asker = RequestSource::default();
    AnsweredRequest { place, asker, operation: "READ", ino, took, is_failed: false }
}

fn tell(watch: &Watch, answered: &AnsweredRequest<'_>, now: Instant) {
    if watch.wants(answered.took) {
        watch.tell(answered, now);
    }
}

const LASTS: Duration = Duration::from_secs(10);

/// Goal: an observation counts from its first poll on, and ends at its time or on request (WA1,
/// WA3).
#[test]
fn a_look_counts_while_it_asks_and_ends_by_itself() {
    let (watch, place, begun) = (Watch::default(), gone("fuse", "/mnt"), Instant::now());
    let quick = answered(&place, 7, 1);
    assert!(!watch.wants(quick.took), "nobody looks");
    let first = watch.look(1, LASTS, begun).expect("there is room");
    assert!(first.lasted.is_zero() && first.files.is_empty());
    tell(&watch, &quick, begun);
    tell(&watch, &AnsweredRequest { is_failed: true, ..quick }, begun);
    let second = Duration::from_secs(1);
    let looked = watch.look(1, LASTS, begun + second).expect("there is room");
    let tally = Tally { answered: 2, failed: 1, latency_ns: 2_000_000 };
    assert_eq!(looked.lasted, second);
    assert_eq!(looked.files.values().copied().collect::<Vec<_>>(), [tally]);
    let told = by_prefix(&looked, 1);
    assert_eq!((told.len(), &told[0].path, told[0].tally), (1, &None, tally));
    let looked = watch.look(1, LASTS, begun + second).expect("there is room");
    assert!(looked.files.is_empty(), "each is told once");
    // The second poll has extended the observation by a second.
    tell(&watch, &quick, begun + LASTS);
    assert!(watch.wants(quick.took));
    tell(&watch, &quick, begun + second + LASTS);
    assert!(!watch.wants(quick.took), "the look has ended");
    watch.look(2, LASTS, begun).expect("there is room");
    watch.look(2, Duration::ZERO, begun).expect("it goes");
    assert!(!watch.wants(quick.took), "the look was ended");
    watch.look(3, Duration::from_secs(86_400), begun).expect("there is room");
    tell(&watch, &quick, begun + LOOK_TIME_MAX);
    assert!(!watch.wants(quick.took), "no look lasts for a day");
}

/// Goal: WA2, and every request is counted. Method: too many files, from many clients; too many
/// observations; too many slow requests.
#[test]
fn what_is_kept_is_bounded_and_nothing_is_left_uncounted() {
    let (watch, place, now) = (Watch::default(), gone("nfs", "/home"), Instant::now());
    for number in 0..LOOKS_MAX {
        let number = number.try_into().expect("it is small");
        watch.look(number, LASTS, now).expect("there is room");
    }
    assert_eq!(watch.look(99, LASTS, now).err(), Some(TooManyObserversError));
    watch.look(0, LASTS, now).expect("who looks goes on");
    let count = u64::try_from(3 * FILES_MAX).expect("it is small");
    for ino in 0..count {
        let host = u32::try_from(ino).expect("it is small");
        let address = Some(SocketAddr::new(IpAddr::from(host.to_le_bytes()), 1000));
        let asker = RequestSource { address, ..RequestSource::default() };
        tell(&watch, &AnsweredRequest { asker, ..answered(&place, ino, 1) }, now);
    }
    let looked = watch.look(0, LASTS, now).expect("there is room");
    let sum: u64 = looked.files.values().map(|tally| tally.answered).sum();
    assert_eq!(sum, count);
    assert!(looked.files.len() <= 2 * FILES_MAX + 1, "{}", looked.files.len());
    let told = by_prefix(&looked, 1);
    assert!(told.len() <= 2 * PREFIXES_MAX + 1, "{}", told.len());
    assert_eq!(told.iter().map(|it| it.tally.answered).sum::<u64>(), count);

    let more = u64::try_from(SLOW_MAX).expect("it is small") + 10;
    for ino in 0..more {
        tell(&watch, &answered(&place, ino, 300), now);
    }
    let slow = watch.slow(0, SLOW_FROM, SLOW_MAX);
    assert_eq!((slow.list.len(), slow.missed, slow.next), (SLOW_MAX, 10, more));
    let slow = watch.slow(more - 5, SLOW_FROM, 3);
    assert_eq!((slow.list.len(), slow.missed), (3, 2), "the last of them");
    assert_eq!(slow.list[2].number, more - 1);
}

/// Goal: slow requests are logged without an observer, and faster ones on order.
#[test]
fn slow_requests_are_kept_and_shorter_ones_by_wish() {
    let (watch, place, now) = (Watch::default(), gone("fuse", "/mnt"), Instant::now());
    let told = |from_ms| {
        let slow = watch.slow(0, Duration::from_millis(from_ms), SLOW_MAX);
        slow.list.iter().map(|it| it.took.as_millis()).collect::<Vec<_>>()
    };
    for took_ms in [100, 250, 900] {
        tell(&watch, &answered(&place, 7, took_ms), now);
    }
    assert_eq!(told(0), [250, 900]);
    watch.keep_slow(1, Duration::from_millis(50), LASTS, now).expect("there is room");
    for took_ms in [49, 50] {
        tell(&watch, &answered(&place, 7, took_ms), now);
    }
    assert_eq!((told(0), told(300)), (vec![250, 900, 50], vec![900]));
    tell(&watch, &answered(&place, 7, 51), now + LASTS);
    assert_eq!(told(0).len(), 3, "the wish has ended");
    let path = watch.slow(0, SLOW_FROM, 1).list.pop().and_then(|slow| slow.path);
    assert_eq!(path.as_deref(), Some("/mnt/(inode 7)"), "nobody has its name any more");
}
