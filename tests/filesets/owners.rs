//! Quotas of users, groups and projects: what each has is counted exactly, and limits hold. After
//! each test the checker adds up the anodes (FS015).

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, Ino, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, QuotaAccount, QuotaLimitsChange, QuotaProgress};
use format::fileset::NamePart;
use format::quota::QuotaKind;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use testkit::crash::judge_cuts;

use super::{assert_clean, free_all, name, new_pool, open};

const USERS: u64 = 4;
const WRITE: usize = 16 << 10;

fn root() -> Caller {
    Caller::root()
}

fn user(id: u32) -> Caller {
    Caller::checked(id, id + 100, Vec::new())
}

/// Opens the root directory to everybody.
fn open_to_all(pool: &Pool) {
    let change = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    pool.setattr(&root(), pool.root(), &change, None).expect("it is there");
}

fn create(pool: &Pool, caller: &Caller, file: &str) -> Result<Ino, FsError> {
    let new = NewInode::new(FileKind::Regular, 0o644);
    pool.create(caller, pool.root(), file.as_bytes(), new, None).map(|attr| attr.ino)
}

fn switch_on(pool: &Pool) {
    assert_eq!(pool.fileset_admin().switch_quotas_on(&name("root")), Ok(QuotaProgress::On));
}

fn account(pool: &Pool, kind: QuotaKind, id: u32) -> Option<QuotaAccount> {
    let found =
        pool.fileset_admin().quota_accounts(&name("root"), (kind, id), 1).expect("it is there");
    found.into_iter().find(|it| it.id == id)
}

fn has(pool: &Pool, kind: QuotaKind, id: u32) -> (u64, u64) {
    account(pool, kind, id).map_or((0, 0), |it| (it.bytes, it.inodes))
}

fn limit(pool: &Pool, kind: QuotaKind, id: u32, change: &QuotaLimitsChange) {
    pool.fileset_admin().set_quota(&name("root"), (kind, id), change).expect("quotas are on");
}

fn chown(
    pool: &Pool,
    caller: &Caller,
    ino: Ino,
    ids: (Option<u32>, Option<u32>),
) -> Result<(), FsError> {
    let change = SetAttr { uid: ids.0, gid: ids.1, ..SetAttr::default() };
    pool.setattr(caller, ino, &change, None).map(|_| ())
}

/// Goal: usage is that of the files there, from the moment at which quotas are switched on, and
/// moves with them.
#[test]
fn what_users_and_groups_have_is_counted_and_moves_with_their_files() {
    let device = new_pool();
    let pool = open(&device, None);
    open_to_all(&pool);
    let old = create(&pool, &user(1), "old").expect("there is room");
    pool.write(&user(1), old, 0, &[1; WRITE]).expect("there is room");
    assert_eq!(account(&pool, QuotaKind::User, 1), None, "nobody counts");
    switch_on(&pool);
    assert_eq!(has(&pool, QuotaKind::User, 1), (16 << 10, 1));
    assert_eq!(has(&pool, QuotaKind::Group, 101), (16 << 10, 1));

    let new = create(&pool, &user(2), "new").expect("there is room");
    pool.write(&user(2), new, 0, &[2; WRITE]).expect("there is room");
    assert_eq!(has(&pool, QuotaKind::User, 2), (16 << 10, 1), "what waits counts");
    pool.fsync(&user(2), new, false).expect("nothing fails");
    assert_eq!(has(&pool, QuotaKind::User, 2), (16 << 10, 1), "once");
    pool.write(&user(2), new, 1 << 20, &[2; WRITE]).expect("there is room");
    chown(&pool, &root(), new, (Some(1), Some(101))).expect("it is there");
    assert_eq!(has(&pool, QuotaKind::User, 2), (0, 0));
    assert_eq!(has(&pool, QuotaKind::Group, 102), (0, 0));
    assert_eq!(has(&pool, QuotaKind::User, 1).1, 2);
    let both = has(&pool, QuotaKind::User, 1).0;
    assert!((48 << 10..=56 << 10).contains(&both), "{both}");
    pool.unlink(&root(), pool.root(), b"old", None).expect("it is there");
    pool.forget(old, 1);
    pool.sync().expect("nothing fails");
    assert_eq!(has(&pool, QuotaKind::User, 1), (both - (16 << 10), 1));
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    pool.setattr(&root(), new, &cut, None).expect("it is there");
    assert_eq!(has(&pool, QuotaKind::User, 1), (0, 1));
    pool.close().expect("nothing fails");
    assert_clean(&device);

    let pool = open(&device, None);
    assert_eq!(has(&pool, QuotaKind::User, 1), (0, 1), "kept");
    pool.fileset_admin().switch_quotas_off(&name("root")).expect("it is on");
    let file = create(&pool, &user(3), "more").expect("there is room");
    pool.write(&user(3), file, 0, &[3; WRITE]).expect("there is room");
    pool.unlink(&root(), pool.root(), b"new", None).expect("it is there");
    pool.forget(new, 1);
    pool.sync().expect("nothing fails");
    switch_on(&pool);
    assert_eq!(has(&pool, QuotaKind::User, 1), (0, 0), "counted again");
    assert_eq!(has(&pool, QuotaKind::User, 3), (16 << 10, 1));
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Does things to files of some users by chance: made, written, cut, given away, deleted.
fn work(pool: &Pool, prng: &mut Prng, steps: usize) {
    for _ in 0..steps {
        let file = format!("f{}", prng.below(12));
        let id = |prng: &mut Prng| u32::try_from(1 + prng.below(USERS)).expect("few");
        let new = NewInode {
            uid: Some(id(prng)),
            gid: Some(id(prng)),
            ..NewInode::new(FileKind::Regular, 0o644)
        };
        let found = pool.lookup(&root(), pool.root(), file.as_bytes()).map(|attr| attr.ino);
        let ino = match found {
            Ok(ino) => ino,
            Err(_) => match pool.create(&root(), pool.root(), file.as_bytes(), new, None) {
                Ok(attr) => attr.ino,
                Err(_) => continue,
            },
        };
        match prng.below(8) {
            0 => drop(pool.unlink(&root(), pool.root(), file.as_bytes(), None)),
            1 => {
                let ids = (Some(id(prng)), prng.one_in(2).then(|| id(prng)));
                drop(chown(pool, &root(), ino, ids));
            }
            2 => {
                let cut = SetAttr { size_bytes: Some(prng.below(100_000)), ..SetAttr::default() };
                drop(pool.setattr(&root(), ino, &cut, None));
            }
            3 => drop(pool.fsync(&root(), ino, false)),
            4 => {
                let to = format!("f{}", prng.below(12));
                let (from, to) = ((pool.root(), file.as_bytes()), (pool.root(), to.as_bytes()));
                let mode = engine::api::RenameMode::Replace;
                drop(pool.rename(&root(), from, to, mode, None));
            }
            _ => {
                let data = vec![7; usize::try_from(1 + prng.below(40_000)).expect("small")];
                drop(pool.write(&root(), ino, prng.below(200_000), &data));
            }
        }
        pool.forget(ino, 1);
    }
}

/// Goal: usage is right whatever is done. Method: histories by seed, with snapshots, clones,
/// switching off and on again, and counting while files change; the checker adds up after each.
#[test]
fn what_users_have_is_right_whatever_is_done() {
    for seed in 0..4 {
        let device = new_pool();
        let mut prng = Prng::from_seed(seed);
        for round in 0..5 {
            let pool = open(&device, None);
            work(&pool, &mut prng, 60);
            if round == 1 || prng.one_in(4) {
                switch_on(&pool);
            }
            super::work(&pool, seed * 10 + round, 150);
            work(&pool, &mut prng, 60);
            let snapshot = NamePart::new(&format!("c{round}")).expect("a name");
            pool.fileset_admin()
                .create_snapshot(&name("root"), &snapshot, [7; 16])
                .expect("there is room");
            work(&pool, &mut prng, 60);
            if round == 3 {
                pool.fileset_admin().switch_quotas_off(&name("root")).expect("nothing fails");
                let clone = name(&format!("clone{seed}"));
                let first = NamePart::new("c2").expect("a name");
                pool.fileset_admin()
                    .create_clone((&name("root"), &first), &clone, [8; 16])
                    .expect("room");
                let oldest = NamePart::new("c0").expect("a name");
                pool.fileset_admin().delete_snapshot(&name("root"), &oldest).expect("it is there");
                free_all(&pool);
            }
            pool.close().expect("nothing fails");
            assert_clean(&device);
        }
        let pool = open(&device, Some(&format!("clone{seed}")));
        work(&pool, &mut prng, 60);
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
}

/// Goal: files may change on both sides of the cursor while they are counted, and a close in the
/// middle loses nothing.
#[test]
fn counting_goes_on_while_files_change() {
    for seed in 0..4 {
        let device = new_pool();
        let pool = open(&device, None);
        let mut prng = Prng::from_seed(seed);
        work(&pool, &mut prng, 40);
        // More anodes than two steps count.
        for number in 0..1200 {
            let ino = create(&pool, &root(), &format!("n{number}")).expect("there is room");
            pool.forget(ino, 1);
        }
        work(&pool, &mut prng, 40);
        pool.fileset_admin().begin_quotas(&name("root")).expect("there is room");
        work(&pool, &mut prng, 40);
        assert_eq!(pool.fileset_admin().count_quotas(&name("root")), Ok(true), "there is more");
        work(&pool, &mut prng, 40);
        for number in (0..1200).step_by(7) {
            let file = format!("n{number}");
            let found = pool.lookup(&root(), pool.root(), file.as_bytes()).expect("it is there");
            let id = u32::try_from(1 + prng.below(USERS)).expect("few");
            chown(&pool, &root(), found.ino, (Some(id), None)).expect("it is there");
            if prng.one_in(2) {
                pool.unlink(&root(), pool.root(), file.as_bytes(), None).expect("it is there");
            }
            pool.forget(found.ino, 1);
        }
        pool.close().expect("nothing fails");
        assert_clean(&device);
        let pool = open(&device, None);
        let info = pool.fileset_admin().quota_info(&name("root")).expect("it is there");
        assert!(matches!(info.progress, QuotaProgress::Counting(1..1000)), "{info:?}");
        work(&pool, &mut prng, 40);
        while pool.fileset_admin().count_quotas(&name("root")).expect("there is room") {}
        work(&pool, &mut prng, 40);
        pool.close().expect("nothing fails");
        assert_clean(&device);
    }
}

/// Goal: a block that waits counts for its owner from the moment at which quotas are switched on:
/// the scan finds only what is installed.
#[test]
fn what_is_written_while_files_are_counted_counts_at_once() {
    let device = new_pool();
    let pool = open(&device, None);
    open_to_all(&pool);
    pool.fileset_admin().begin_quotas(&name("root")).expect("there is room");
    let file = create(&pool, &user(7), "file").expect("there is room");
    pool.write(&user(7), file, 0, &[7; WRITE]).expect("there is room");
    while pool.fileset_admin().count_quotas(&name("root")).expect("there is room") {}
    assert_eq!(has(&pool, QuotaKind::User, 7), (16 << 10, 1), "it waits");
    pool.sync().expect("nothing fails");
    assert_eq!(has(&pool, QuotaKind::User, 7), (16 << 10, 1), "once");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a crash never keeps what was counted and undoes the file. Method: the file is made while
/// quotas are being switched on, so that it changes no record; then a limit is set, which makes the
/// page of records durable and nothing else.
#[test]
fn what_is_counted_a_crash_does_not_undo() {
    let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create_options = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create_options).expect("a pool fits");
    let pool = open(&shared, None);
    open_to_all(&pool);
    pool.fileset_admin().begin_quotas(&name("root")).expect("there is room");
    pool.sync().expect("nothing fails");
    create(&pool, &user(7), "file").expect("there is room");
    while pool.fileset_admin().count_quotas(&name("root")).expect("there is room") {}
    assert_eq!(has(&pool, QuotaKind::User, 7), (0, 1));
    let soft = QuotaLimitsChange { inodes_soft: Some(9), ..QuotaLimitsChange::default() };
    limit(&pool, QuotaKind::User, 7, &soft);
    drop(pool);
    let left: SharedDevice = SimDevice::open(device.durable_image(), SimOptions::default());
    super::expect_clean(&left, "after the crash").expect("what was counted is there");
    let pool = open(&left, None);
    assert_eq!(has(&pool, QuotaKind::User, 7), (0, 1));
}

/// Bytes of the pool that is cut.
const CRASH_POOL_BYTES: u64 = 16 << 20;

fn judge(image: &Image, seed: u64) -> Result<(), String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let checked = |when: &str| super::expect_clean(&shared, when);
    checked("before the open")?;
    let pool = open(&shared, None);
    work(&pool, &mut Prng::from_seed(seed), 6);
    for _ in 0..8 {
        pool.tick().map_err(|error| error.to_string())?;
    }
    pool.close().map_err(|error| error.to_string())?;
    checked("after some work")
}

/// Goal: no crash leaves usage that is wrong, also while it is being counted. Method: cut at every
/// write of a history in which counting goes on while files change on both sides of its cursor.
#[test]
fn a_crash_leaves_what_users_have_right() {
    let mut judged = 0;
    for seed in 0..1 {
        let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let create_options = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
        Pool::create(&shared, &ManualClock::new(), &create_options).expect("a pool fits");
        let pool = open(&shared, None);
        let mut prng = Prng::from_seed(seed);
        // More anodes than one step counts.
        for number in 0..600 {
            let ino = create(&pool, &root(), &format!("n{number}")).expect("there is room");
            pool.forget(ino, 1);
        }
        work(&pool, &mut prng, 40);
        pool.close().expect("nothing fails");
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::open(device.durable_image(), options);
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let pool = open(&shared, None);
        for round in 0..3 {
            pool.fileset_admin().begin_quotas(&name("root")).expect("there is room");
            work(&pool, &mut prng, 8);
            pool.fileset_admin().count_quotas(&name("root")).expect("there is room");
            pool.sync().expect("nothing fails");
            work(&pool, &mut prng, 8);
            switch_on(&pool);
            work(&pool, &mut prng, 8);
            if round == 1 {
                pool.fileset_admin().switch_quotas_off(&name("root")).expect("nothing fails");
            }
            match prng.below(3) {
                0 => pool.sync().expect("nothing fails"),
                1 => pool.checkpoint().expect("nothing fails"),
                _ => {}
            }
        }
        drop(pool);
        let strategy =
            Strategy { exhaustive_writes_max: 2, random_subsets: 1, torn_variants: 1, seed };
        let recording = device.recording();
        judged += judge_cuts(
            &format!("seed {seed}"),
            &recording,
            &strategy,
            |_| (),
            |cut| judge(&cut.image, seed),
        );
    }
    assert!(judged > 100, "{judged} images mean little");
}

/// Goal: hard limits refuse at once, soft ones when the grace is over; what was accepted is never
/// refused later; who is privileged is not refused; deleting works, and a limit below use too.
#[test]
fn limits_refuse_users_and_never_what_was_accepted() {
    let device = new_pool();
    let clock = Arc::new(ManualClock::new());
    let options = engine::PoolOpenOptions::default();
    let pool = Pool::open(Arc::clone(&device), Arc::<ManualClock>::clone(&clock), options)
        .expect("the pool opens");
    open_to_all(&pool);
    let limits = QuotaLimitsChange {
        bytes_soft: Some(256 << 10),
        bytes_hard: Some(1 << 20),
        inodes_hard: Some(3),
        ..QuotaLimitsChange::default()
    };
    let refused = pool.fileset_admin().set_quota(&name("root"), (QuotaKind::User, 1), &limits);
    assert!(matches!(refused, Err(FsError::FilesetInUse { .. })), "quotas are off: {refused:?}");
    switch_on(&pool);
    limit(&pool, QuotaKind::User, 1, &limits);
    let zero = pool.fileset_admin().set_quota(&name("root"), (QuotaKind::User, 0), &limits);
    assert_eq!(zero, Err(FsError::Invalid), "id 0 has no limits");
    let file = create(&pool, &user(1), "f").expect("there is room");
    let data = vec![1; WRITE];
    let fill = |caller: &Caller, from: u64| {
        let mut at = from;
        while at < 8 << 20 {
            match pool.write(caller, file, at, &data) {
                Ok(()) => at += u64::try_from(WRITE).expect("small"),
                Err(error) => {
                    assert_eq!(error, FsError::QuotaExceeded);
                    break;
                }
            }
        }
        at - from
    };
    let accepted = fill(&user(1), 0);
    assert!((960 << 10..=1 << 20).contains(&accepted), "{accepted}");
    pool.write(&user(1), file, 0, &data).expect("an overwrite takes nothing");
    pool.fsync(&user(1), file, false).expect("what was accepted is stored");
    assert_eq!(fill(&user(1), accepted), 0, "it is full");
    pool.write(&root(), file, accepted, &data).expect("root is not refused");
    for file in ["g", "h"] {
        create(&pool, &user(1), file).expect("there is room for three");
    }
    assert_eq!(create(&pool, &user(1), "i"), Err(FsError::QuotaExceeded));
    create(&pool, &user(2), "i").expect("another has no limit");
    // A grace began with the first write past the soft limit.
    let end = account(&pool, QuotaKind::User, 1).expect("it has an account").bytes_grace_end;
    assert!(end > 0);
    let cut = SetAttr { size_bytes: Some(512 << 10), ..SetAttr::default() };
    pool.setattr(&user(1), file, &cut, None).expect("cutting works");
    assert!(fill(&user(1), 512 << 10) > 256 << 10, "in the grace");
    pool.setattr(&user(1), file, &cut, None).expect("cutting works");
    pool.tick().expect("the end of the grace is written");
    clock.advance_ns(8 * 24 * 60 * 60 * 1_000_000_000);
    assert_eq!(fill(&user(1), 512 << 10), 0, "the grace is over");
    pool.close().expect("nothing fails");
    assert_clean(&device);

    let pool = open(&device, None);
    let kept = account(&pool, QuotaKind::User, 1).expect("it has an account");
    assert_eq!((kept.bytes_soft, kept.bytes_hard, kept.inodes_hard), (256 << 10, 1 << 20, 3));
    assert_eq!(kept.bytes_grace_end, end, "the end of the grace is kept");
    let below = QuotaLimitsChange { bytes_soft: Some(0), bytes_hard: Some(4096), ..limits };
    limit(&pool, QuotaKind::User, 1, &below);
    let file = pool.lookup(&root(), pool.root(), b"f").expect("it is there").ino;
    let write = |at| pool.write(&user(1), file, at, &data);
    assert_eq!(write(2 << 20), Err(FsError::QuotaExceeded), "a limit below use");
    write(0).expect("an overwrite takes nothing");
    pool.unlink(&user(1), pool.root(), b"f", None).expect("deleting works");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: what a kernel writes back comes as root's, whoever wrote it: it is held against the limits
/// of whom the file counts for, unless that is root.
#[test]
fn limits_hold_for_what_a_kernel_writes_back() {
    let device = new_pool();
    let pool = open(&device, None);
    open_to_all(&pool);
    switch_on(&pool);
    let limits = QuotaLimitsChange { bytes_hard: Some(1 << 20), ..QuotaLimitsChange::default() };
    limit(&pool, QuotaKind::User, 1, &limits);
    limit(&pool, QuotaKind::Group, 1, &limits);
    let kernel = Caller { writes_back: true, ..Caller::checked_by_kernel(0, 0) };
    let fill = |file: Ino| {
        let writes = (0..64).map(|at| pool.write(&kernel, file, at << 16, &[1; WRITE]));
        writes.filter_map(Result::err).next()
    };
    let own = create(&pool, &user(1), "own").expect("there is room");
    assert_eq!(fill(own), Some(FsError::QuotaExceeded));
    let roots = create(&pool, &root(), "roots").expect("there is room");
    chown(&pool, &root(), roots, (None, Some(1))).expect("root is not refused");
    assert_eq!(fill(roots), None, "it is root's");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: who closes a pool waits for nobody who walks: a walk ends where it is.
#[test]
fn walks_end_before_a_pool_is_closed() {
    let device = new_pool();
    let pool = open(&device, None);
    create(&pool, &root(), "a").expect("there is room");
    let snapshot = NamePart::new("c").expect("a name");
    pool.fileset_admin().create_snapshot(&name("root"), &snapshot, [1; 16]).expect("there is room");
    assert_eq!(pool.fileset_admin().set_project(&name("root"), &[], (7, true)), Ok(2));
    pool.fileset_admin().unique_bytes(&name("root"), &snapshot).expect("it can be read");
    pool.fileset_admin().end_walks();
    let ended = pool.fileset_admin().set_project(&name("root"), &[], (8, true));
    assert_eq!(ended, Err(FsError::TryLater));
    assert_eq!(pool.fileset_admin().unique_bytes(&name("root"), &snapshot), Err(FsError::TryLater));
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a file is given only to a group that has room for it.
#[test]
fn a_file_is_not_given_to_a_group_that_has_no_room() {
    let device = new_pool();
    let pool = open(&device, None);
    open_to_all(&pool);
    switch_on(&pool);
    let limits = QuotaLimitsChange { bytes_hard: Some(8 << 10), ..QuotaLimitsChange::default() };
    limit(&pool, QuotaKind::Group, 7, &limits);
    let member = Caller::checked(1, 1, vec![7]);
    let file = create(&pool, &member, "f").expect("there is room");
    pool.write(&member, file, 0, &[1; WRITE]).expect("there is room");
    let given = chown(&pool, &member, file, (None, Some(7)));
    assert_eq!(given, Err(FsError::QuotaExceeded), "what waits counts");
    assert_eq!(has(&pool, QuotaKind::Group, 7), (0, 0));
    chown(&pool, &root(), file, (None, Some(7))).expect("root is not refused");
    assert_eq!(has(&pool, QuotaKind::Group, 7), (16 << 10, 1));
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: nobody is refused before all is counted.
#[test]
fn limits_hold_only_when_all_is_counted() {
    let device = new_pool();
    let pool = open(&device, None);
    open_to_all(&pool);
    switch_on(&pool);
    let (bytes_hard, inodes_hard) = (Some(4096), Some(2));
    let limits = QuotaLimitsChange { bytes_hard, inodes_hard, ..QuotaLimitsChange::default() };
    limit(&pool, QuotaKind::User, 1, &limits);
    let first = create(&pool, &user(1), "a").expect("there is room");
    create(&pool, &user(1), "b").expect("there is room");
    assert_eq!(create(&pool, &user(1), "c"), Err(FsError::QuotaExceeded));
    // More anodes than one step counts.
    for number in 0..600 {
        create(&pool, &root(), &format!("n{number}")).expect("there is room");
    }
    pool.fileset_admin().switch_quotas_off(&name("root")).expect("it is on");
    create(&pool, &user(1), "c").expect("nobody is counted");
    pool.fileset_admin().begin_quotas(&name("root")).expect("there is room");
    let counted = || pool.fileset_admin().quota_info(&name("root")).expect("it is there").progress;
    while counted() == QuotaProgress::Counting(0) {
        assert_eq!(pool.fileset_admin().count_quotas(&name("root")), Ok(true), "there is more");
    }
    pool.write(&user(1), first, 0, &[1; WRITE]).expect("not all is counted");
    create(&pool, &user(1), "d").expect("not all is counted");
    switch_on(&pool);
    assert_eq!(create(&pool, &user(1), "e"), Err(FsError::QuotaExceeded));
    assert_eq!(has(&pool, QuotaKind::User, 1).1, 4);
    pool.close().expect("nothing fails");
    assert_clean(&device);
}

/// Goal: a directory hands its project to what is made in it; files come into it from elsewhere
/// only by copying; limits of the project hold.
#[test]
fn a_project_is_handed_down_and_kept_apart() {
    let device = new_pool();
    let pool = open(&device, None);
    open_to_all(&pool);
    let new = NewInode::new(FileKind::Directory, 0o777);
    let made = pool.create(&root(), pool.root(), b"src", new, None).expect("there is room").ino;
    let file = |parent, name: &str| {
        let new = NewInode::new(FileKind::Regular, 0o666);
        pool.create(&user(1), parent, name.as_bytes(), new, None).map(|attr| attr.ino)
    };
    let old = file(made, "old").expect("there is room");
    pool.write(&user(1), old, 0, &[1; WRITE]).expect("there is room");
    switch_on(&pool);
    let count = pool.fileset_admin().set_project(&name("root"), &[b"src"], (7, true));
    assert_eq!(count, Ok(2));
    assert_eq!(has(&pool, QuotaKind::Project, 7).1, 2);
    let before = has(&pool, QuotaKind::Project, 7).0;
    let inside = file(made, "inside").expect("there is room");
    pool.write(&user(1), inside, 0, &[1; WRITE]).expect("there is room");
    assert_eq!(has(&pool, QuotaKind::Project, 7), (before + (16 << 10), 3));
    let outside = file(pool.root(), "outside").expect("there is room");
    let top = pool.root();
    let rename =
        |from: (Ino, &[u8]), to: (Ino, &[u8]), mode| pool.rename(&root(), from, to, mode, None);
    let replace = engine::api::RenameMode::Replace;
    let exchange = engine::api::RenameMode::Exchange;
    let crossed = Err(FsError::CrossFileset);
    assert_eq!(rename((top, b"outside"), (made, b"x"), replace), crossed);
    assert_eq!(rename((top, b"outside"), (made, b"old"), exchange), crossed);
    assert_eq!(rename((made, b"old"), (top, b"outside"), exchange), crossed);
    assert_eq!(pool.link(&root(), outside, made, b"x", None).map(|_| ()), crossed);
    rename((made, b"old"), (made, b"new"), replace).expect("within the project");
    rename((made, b"new"), (top, b"new"), replace).expect("out of it, and still of it");
    assert_eq!(has(&pool, QuotaKind::Project, 7).1, 3);
    rename((top, b"new"), (made, b"new"), replace).expect("back");
    let (bytes_hard, inodes_hard) = (Some(64 << 10), Some(4));
    let limits = QuotaLimitsChange { bytes_hard, inodes_hard, ..QuotaLimitsChange::default() };
    limit(&pool, QuotaKind::Project, 7, &limits);
    let refused = pool.write(&user(1), inside, 1 << 20, &[1; 4 * WRITE]);
    assert_eq!(refused, Err(FsError::QuotaExceeded));
    file(made, "fourth").expect("there is room");
    assert_eq!(file(made, "fifth"), Err(FsError::QuotaExceeded));
    file(top, "fifth").expect("another project");
    pool.close().expect("nothing fails");
    assert_clean(&device);
}
