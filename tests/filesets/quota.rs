//! Quotas of filesets: what is accepted, what is refused, and that nothing accepted is refused
//! later. After each test the checker counts what the fileset references (F4).

use std::sync::Arc;

use engine::api::{
    Caller, Fallocate, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode, SetAttr,
};
use engine::{FilesetChange, NewFileset, Pool, PoolCreateOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use testkit::crash::judge_cuts;

use super::{assert_clean, free_all, name, new_fileset, new_pool, open};

/// The quota of most tests.
const QUOTA: u64 = 4 << 20;
/// Bytes of one write.
const WRITE: usize = 64 << 10;
/// What map pages and pages of anodes may take beyond the quota: they are made when what was
/// accepted is put in its place.
const BEYOND: u64 = 128 << 10;

fn root() -> Caller {
    Caller::root()
}

fn with_quota(quota_bytes: u64) -> NewFileset {
    NewFileset { quota_bytes, ..new_fileset(1) }
}

fn set_quota(pool: &Pool, bytes: u64) {
    let change = FilesetChange { quota_bytes: Some(bytes), ..FilesetChange::default() };
    pool.fileset_admin().change_fileset(&name("a"), &change).expect("it is there");
}

fn create(pool: &Pool, file: &str) -> Result<Ino, FsError> {
    let new = NewInode::new(FileKind::Regular, 0o644);
    pool.create(&root(), pool.root(), file.as_bytes(), new, None).map(|attr| attr.ino)
}

/// Writes to the end of the quota; returns how many bytes were accepted.
fn fill(pool: &Pool, ino: Ino, from: u64) -> u64 {
    let data = vec![7; WRITE];
    let mut at = from;
    loop {
        match pool.write(&root(), ino, at, &data) {
            Ok(()) => at += u64::try_from(WRITE).expect("small"),
            Err(error) => {
                assert_eq!(error, FsError::QuotaExceeded);
                return at - from;
            }
        }
        assert!(at < 16 * QUOTA, "the quota never ends");
    }
}

fn referenced(pool: &Pool) -> u64 {
    let all = pool.fileset_admin().filesets().expect("the table can be read");
    all.iter().find(|it| it.name == "a").expect("it is listed").referenced_bytes
}

/// Goal: writes past the quota are refused, those that wait count, nothing accepted is refused
/// later, and what is deleted, cut or punched may be written again. A quota below use refuses
/// writes and nothing else.
#[test]
fn a_quota_refuses_writes_and_what_was_accepted_is_never_refused_later() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin().create_fileset(&name("a"), &with_quota(QUOTA)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, Some("a"));
    let file = create(&pool, "f").expect("there is room");
    let accepted = fill(&pool, file, 0);
    assert!(accepted > QUOTA - BEYOND && accepted <= QUOTA, "{accepted}");
    let overwrite = pool.write(&root(), file, 0, &[8; WRITE]);
    assert_eq!(overwrite, Ok(()), "an overwrite takes nothing");
    pool.fsync(&root(), file, false).expect("what was accepted is stored");
    let stored = referenced(&pool);
    assert!(stored >= accepted && stored <= QUOTA + BEYOND, "{stored} of {accepted}");
    assert_eq!(fill(&pool, file, accepted), 0, "it is full");
    let overwrite = pool.write(&root(), file, 0, &[9; WRITE]);
    assert_eq!(overwrite, Ok(()), "an overwrite takes nothing");

    let cut = SetAttr { size_bytes: Some(accepted / 2), ..SetAttr::default() };
    pool.setattr(&root(), file, &cut, None).expect("cutting works");
    assert!(fill(&pool, file, accepted / 2) >= accepted / 2 - BEYOND);
    pool.fallocate(&root(), file, 0, 1 << 20, Fallocate::PunchHole).expect("punching works");
    assert!(fill(&pool, file, accepted + BEYOND) >= (1 << 20) - BEYOND);

    set_quota(&pool, QUOTA / 2);
    assert_eq!(fill(&pool, file, 2 * QUOTA), 0, "a quota below use");
    pool.write(&root(), file, 2 << 20, &[5; 4096]).expect("an overwrite takes nothing");
    set_quota(&pool, 0);
    pool.write(&root(), file, 4 * QUOTA, &[5; 4096]).expect("there is no quota");
    set_quota(&pool, QUOTA / 2);
    pool.unlink(&root(), pool.root(), b"f", None).expect("deleting works");
    pool.forget(file, 1);
    pool.sync().expect("nothing fails");
    assert!(referenced(&pool) < BEYOND);
    let file = create(&pool, "g").expect("there is room again");
    assert!(fill(&pool, file, 0) > QUOTA / 2 - BEYOND);
    pool.close().expect("nothing fails");
    assert_clean(&device);
    let pool = open(&device, Some("a"));
    let found = pool.lookup(&root(), pool.root(), b"g").expect("it is there");
    assert_eq!(fill(&pool, found.ino, found.size_bytes), 0, "the quota is that of before");
    pool.close().expect("nothing fails");
}

/// Goal: what takes room otherwise is held against the quota too: names, attributes, preallocation;
/// `statfs` tells what is left.
#[test]
fn names_attributes_and_preallocation_are_held_against_the_quota_and_df_tells_it() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin().create_fileset(&name("a"), &with_quota(QUOTA)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, Some("a"));
    let sizes = || pool.statfs(&root(), pool.main_fileset()).expect("there are sizes");
    assert_eq!(sizes().total_bytes, QUOTA);
    assert_eq!(sizes().total_bytes - sizes().free_bytes, referenced(&pool));
    let file = create(&pool, "f").expect("there is room");
    let ahead = |from, bytes| {
        pool.fallocate(&root(), file, from, bytes, Fallocate::Allocate { keep_size: false })
    };
    assert_eq!(ahead(0, 2 * QUOTA), Err(FsError::QuotaExceeded));
    assert!(referenced(&pool) < BEYOND, "nothing of it stays");
    ahead(0, QUOTA / 2).expect("there is room");
    assert!(sizes().free_bytes <= QUOTA / 2 && sizes().free_bytes > QUOTA / 2 - BEYOND);
    assert_eq!(ahead(QUOTA / 2, QUOTA / 2), Err(FsError::QuotaExceeded));
    pool.write(&root(), file, 0, &vec![1; 1 << 20]).expect("room was taken for it");
    assert!(sizes().free_bytes > QUOTA / 2 - BEYOND, "it counts once");
    fill(&pool, file, QUOTA / 2);
    let small = |number: u64| pool.write(&root(), file, 2 * QUOTA + (number << 20), b"x");
    assert!((0..100).any(|number| small(number).is_err()), "the last fragments");
    pool.sync().expect("nothing fails");
    let made = (0..5000).map(|number| create(&pool, &format!("n{number}")));
    let refused = made.filter_map(Result::err).next();
    assert_eq!(refused, Some(FsError::QuotaExceeded), "names take pages");
    pool.unlink(&root(), pool.root(), b"f", None).expect("deleting works");
    pool.forget(file, 1);
    pool.sync().expect("nothing fails");
    create(&pool, "again").expect("there is room again");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: no name goes past the quota: one more of a file, and a longer one in place of another, are
/// refused where they take a page; what takes none works.
#[test]
fn links_and_longer_names_are_held_against_the_quota() {
    let device = new_pool();
    let pool = open(&device, None);
    pool.fileset_admin().create_fileset(&name("a"), &with_quota(QUOTA)).expect("there is room");
    pool.close().expect("nothing fails");
    let pool = open(&device, Some("a"));
    let file = create(&pool, "f").expect("there is room");
    let link = |name: &str| {
        pool.link(&root(), file, pool.root(), name.as_bytes(), None).map(|attr| {
            pool.forget(attr.ino, 1);
        })
    };
    let long = |number: u64| format!("{number:0>250}");
    let rename = |from: &str, to: &str| {
        let (from, to) = ((pool.root(), from.as_bytes()), (pool.root(), to.as_bytes()));
        pool.rename(&root(), from, to, RenameMode::Replace, None)
    };
    (0..400).for_each(|number| link(&format!("s{number}")).expect("there is room"));
    fill(&pool, file, 0);
    let small = |number: u64| pool.write(&root(), file, 2 * QUOTA + (number << 20), b"x");
    assert!((0..100).any(|number| small(number).is_err()), "the last fragments");
    pool.sync().expect("nothing fails");
    let before = referenced(&pool);
    let renamed = (0..400).map(|number| rename(&format!("s{number}"), &long(number)));
    assert_eq!(renamed.filter_map(Result::err).next(), Some(FsError::QuotaExceeded));
    let linked = (400..800).map(|number| link(&long(number)));
    assert_eq!(linked.filter_map(Result::err).next(), Some(FsError::QuotaExceeded));
    rename("s399", "t").expect("it takes no page");
    let grown = referenced(&pool).saturating_sub(before);
    assert!(grown <= BEYOND, "{grown} bytes");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: what is reserved for a fileset nobody else gets, also after a reopening; it gets it, and
/// more than there is can't be reserved.
#[test]
fn what_is_reserved_for_a_fileset_nobody_else_gets() {
    const RESERVATION: u64 = 12 << 20;
    let device = new_pool();
    let pool = open(&device, None);
    let new = NewFileset { reservation_bytes: 1 << 30, ..new_fileset(1) };
    assert!(matches!(pool.fileset_admin().create_fileset(&name("a"), &new), Err(FsError::NoSpace)));
    let new = NewFileset { reservation_bytes: 1 << 20, ..with_quota(1 << 19) };
    assert!(matches!(
        pool.fileset_admin().create_fileset(&name("a"), &new),
        Err(FsError::FilesetInUse { .. })
    ));
    pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
    let reserve = |pool: &Pool, bytes| {
        let change = FilesetChange { reservation_bytes: Some(bytes), ..FilesetChange::default() };
        pool.fileset_admin().change_fileset(&name("a"), &change)
    };
    let available = |pool: &Pool| {
        pool.statfs(&root(), pool.main_fileset()).expect("there are sizes").available_bytes
    };
    let before = available(&pool);
    reserve(&pool, RESERVATION).expect("there is room");
    assert!(available(&pool) <= before - RESERVATION + BEYOND);
    pool.close().expect("nothing fails");
    assert_clean(&device);

    let pool = open(&device, None);
    let file = create(&pool, "f").expect("there is room");
    let (mut at, data) = (0, vec![7; WRITE]);
    while pool.write(&root(), file, at, &data).is_ok() {
        at += u64::try_from(WRITE).expect("small");
    }
    assert!(at <= before - RESERVATION, "{at} of {before}");
    assert!(matches!(reserve(&pool, 2 * RESERVATION), Err(FsError::NoSpace)));
    pool.close().expect("nothing fails");

    let pool = open(&device, Some("a"));
    assert!(available(&pool) >= RESERVATION - BEYOND);
    let file = create(&pool, "f").expect("it is reserved");
    for at in (0..RESERVATION - BEYOND).step_by(WRITE) {
        pool.write(&root(), file, at, &data).expect("it is reserved");
    }
    pool.sync().expect("what was accepted is stored");
    reserve(&pool, 0).expect("it is there");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a restore leaves the reservation: free is kept what it is above what the fileset is then,
/// also after a reopening. Where there is no room for so much, the fileset stays what it is.
#[test]
fn a_restored_fileset_keeps_its_reservation() {
    const RESERVATION: u64 = 12 << 20;
    for is_full in [false, true] {
        let device = new_pool();
        let pool = open(&device, None);
        let new = NewFileset { reservation_bytes: RESERVATION, ..new_fileset(1) };
        pool.fileset_admin().create_fileset(&name("a"), &new).expect("there is room");
        pool.close().expect("nothing fails");
        let pool = open(&device, Some("a"));
        let snapshot = NamePart::new("c").expect("a name");
        let write = |file: &str, bytes: usize| {
            let ino = create(&pool, file).expect("there is room");
            pool.write(&root(), ino, 0, &vec![7; bytes]).expect("it is reserved");
        };
        write("before", 1 << 20);
        pool.fileset_admin()
            .create_snapshot(&name("a"), &snapshot, [7; 16])
            .expect("there is room");
        write("after", 9 << 20);
        pool.close().expect("nothing fails");

        let pool = open(&device, None);
        let kept = |pool: &Pool| pool.status().space.kept << 12;
        assert_eq!(kept(&pool), RESERVATION - referenced(&pool));
        let ballast = create(&pool, "ballast").expect("there is room");
        let mut at = 0;
        while is_full && pool.write(&root(), ballast, at, &[7; WRITE]).is_ok() {
            at += u64::try_from(WRITE).expect("small");
        }
        pool.sync().expect("what was accepted is stored");
        let before = (kept(&pool), referenced(&pool));
        let restore = || pool.fileset_admin().restore_fileset(&name("a"), &snapshot).map(drop);
        if is_full {
            assert_eq!(restore(), Err(FsError::NoSpace), "9 MiB more are to be kept");
            assert_eq!((kept(&pool), referenced(&pool)), before, "nothing has changed");
            pool.unlink(&root(), pool.root(), b"ballast", None).expect("deleting works");
            pool.forget(ballast, 1);
            pool.checkpoint().expect("nothing fails");
        }
        restore().expect("there is room");
        assert!(referenced(&pool) < 2 << 20, "{} bytes", referenced(&pool));
        assert_eq!(kept(&pool), RESERVATION - referenced(&pool));
        free_all(&pool);
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);

        let pool = open(&device, None);
        assert_eq!(kept(&pool), RESERVATION - referenced(&pool));
        let info = pool.fileset_admin().filesets().expect("the table can be read");
        let info = info.into_iter().find(|it| it.name == "a").expect("it is listed");
        assert_eq!(info.reservation_bytes, RESERVATION);
        let ballast = create(&pool, "others").expect("there is room");
        let mut at = 0;
        while pool.write(&root(), ballast, at, &[7; WRITE]).is_ok() {
            at += u64::try_from(WRITE).expect("small");
        }
        pool.close().expect("nothing fails");
        let pool = open(&device, Some("a"));
        let file = create(&pool, "again").expect("it is reserved");
        let left = RESERVATION - referenced(&pool) - BEYOND;
        for at in (0..left).step_by(WRITE) {
            pool.write(&root(), file, at, &[7; WRITE]).expect("it is reserved");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        assert_clean(&device);
    }
}

/// Goal: what a fileset references is counted whatever is done, snapshots or not. Method: histories
/// by seed with snapshots among them, changed and deleted, and quotas that come and go; the checker
/// counts after each.
#[test]
fn what_is_referenced_is_counted_whatever_is_done() {
    for seed in 0..4 {
        let device = new_pool();
        let pool = open(&device, None);
        pool.fileset_admin().create_fileset(&name("a"), &new_fileset(1)).expect("there is room");
        pool.close().expect("nothing fails");
        let mut prng = Prng::from_seed(seed);
        for round in 0..4 {
            let pool = open(&device, Some("a"));
            set_quota(&pool, if prng.one_in(2) { 0 } else { (2 << 20) + prng.below(6 << 20) });
            super::work(&pool, seed * 10 + round, 250);
            let snapshot = NamePart::new(&format!("c{round}")).expect("a name");
            pool.fileset_admin()
                .create_snapshot(&name("a"), &snapshot, [7; 16])
                .expect("there is room");
            super::work(&pool, seed * 10 + round + 5, 150);
            if round == 2 {
                let snapshot = NamePart::new("c0").expect("a name");
                pool.fileset_admin().delete_snapshot(&name("a"), &snapshot).expect("it is there");
                free_all(&pool);
            }
            pool.close().expect("nothing fails");
            assert_clean(&device);
        }
    }
}

/// Bytes of the pool that is cut.
const CRASH_POOL_BYTES: u64 = 16 << 20;

/// Does what a quota counts and refuses, and changes the limits; returns where each pair of quota
/// and reservation was asked for, and where it was answered.
fn work_with_quotas(
    device: &SimDevice,
    pool: &Pool,
    prng: &mut Prng,
) -> Vec<((u64, u64), usize, usize)> {
    let mut limits = vec![((0, 0), 0, 0)];
    for round in 0..10 {
        let quota = (1 << 20) + prng.below(1 << 20);
        let reservation = if prng.one_in(2) { 0 } else { prng.below(1 << 20) };
        let change = FilesetChange {
            quota_bytes: Some(quota),
            reservation_bytes: Some(reservation),
            ..FilesetChange::default()
        };
        let asked = device.position();
        pool.fileset_admin().change_fileset(&name("root"), &change).expect("there is room");
        limits.push(((quota, reservation), asked, device.position()));
        let file = format!("f{}", round % 3);
        // Refused or not: what counts is what a crash leaves of the count.
        if let Ok(ino) = create(pool, &file) {
            fill(pool, ino, prng.below(1 << 16));
            let cut = SetAttr { size_bytes: Some(prng.below(1 << 20)), ..SetAttr::default() };
            drop(pool.setattr(&root(), ino, &cut, None));
            pool.forget(ino, 1);
        } else {
            drop(pool.unlink(&root(), pool.root(), file.as_bytes(), None));
        }
        match prng.below(3) {
            0 => pool.sync().expect("nothing fails"),
            1 => pool.checkpoint().expect("nothing fails"),
            _ => {}
        }
    }
    limits
}

fn judge(image: &Image, allowed: &[(u64, u64)]) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let checked = |when: &str| super::expect_clean(&shared, when);
    checked("before the open")?;
    let pool = open(&shared, None);
    let all = pool.fileset_admin().filesets().map_err(|error| error.to_string())?;
    let found = all.first().map(|it| (it.quota_bytes, it.reservation_bytes));
    let found = found.ok_or("there is no fileset")?;
    if !allowed.contains(&found) {
        return Err(format!("the limits are {found:?}, and may be {allowed:?}"));
    }
    if let Ok(ino) = create(&pool, "after").and_then(|ino| {
        pool.write(&root(), ino, 0, &[3; 4096])?;
        Ok(ino)
    }) {
        pool.forget(ino, 1);
    }
    pool.close().map_err(|error| error.to_string())?;
    checked("after some work")
}

/// Goal: no crash leaves a count of what is referenced that is wrong, or limits that nobody set.
/// Method: cut at every write of a history with quotas; the checker counts, also after more work.
#[test]
fn a_crash_leaves_the_count_right_and_the_limits_whole() {
    let mut judged = 0;
    for seed in 0..2 {
        let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create_options = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
        Pool::create(&shared, &ManualClock::new(), &create_options).expect("a pool fits");
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::open(device.durable_image(), options);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let pool = open(&shared, None);
        let limits = work_with_quotas(&device, &pool, &mut Prng::from_seed(seed));
        drop(pool);
        let strategy =
            Strategy { exhaustive_writes_max: 2, random_subsets: 1, torn_variants: 1, seed };
        let allowed_at = |at: usize| {
            // Each until the next is answered, from when it was asked for.
            let ends = limits.iter().skip(1).map(|it| it.2).chain([usize::MAX]);
            let may_be = limits.iter().zip(ends);
            let may_be = may_be.filter(|((_, asked, _), end)| *asked < at.max(1) && at <= *end);
            may_be.map(|((pair, ..), _)| *pair).collect::<Vec<(u64, u64)>>()
        };
        let recording = device.recording();
        judged += judge_cuts(&format!("seed {seed}"), &recording, &strategy, allowed_at, |cut| {
            judge(&cut.image, &cut.known)
        });
    }
    assert!(judged > 100, "{judged} images mean little");
}
