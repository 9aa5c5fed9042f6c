//! What goes along with a fileset that moves to another pool beside its files: what is kept free
//! for it, and what users may have.

use engine::{
    FilesetChange, MoveError, MoveStep, Pool, QuotaAccount, QuotaLimitsChange, QuotaProgress,
};
use format::quota::QuotaKind;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::to_other_pool::{Both, filled, info, judge_cuts_of_a_move, judge_move, open};
use super::{free_all, name, new_fileset};

const RESERVATION: u64 = 6 << 20;
const GRACES: [u64; 2] = [3600, 7200];

fn reserve(pool: &Pool, fileset: &str, bytes: u64) -> Result<(), engine::api::FsError> {
    let change = FilesetChange { reservation_bytes: Some(bytes), ..FilesetChange::default() };
    pool.fileset_admin().change_fileset(&name(fileset), &change)
}

/// What is to go along.
#[derive(Debug, PartialEq, Eq)]
struct Along {
    reservation_bytes: u64,
    is_on: bool,
    graces: [u64; 2],
    accounts: Vec<QuotaAccount>,
}

fn along(pool: &Pool, fileset: &str) -> Along {
    let it = info(pool, fileset).expect("it is there");
    let quotas = pool.fileset_admin().quota_info(&name(fileset)).expect("it is there");
    let mut accounts = Vec::new();
    for kind in [QuotaKind::User, QuotaKind::Group, QuotaKind::Project] {
        let all = pool
            .fileset_admin()
            .quota_accounts(&name(fileset), (kind, 0), 1000)
            .expect("it is there");
        // Blocks may lie otherwise in the other pool: those the checker counts.
        let all = all.into_iter().map(|it| QuotaAccount { bytes: 0, ..it });
        // Who has nothing and may have all has no record where nobody wrote one.
        accounts.extend(all.filter(|it| {
            let limits = [it.bytes_soft, it.bytes_hard, it.inodes_soft, it.inodes_hard];
            it.inodes > 0 || limits != [0; 4]
        }));
    }
    Along {
        reservation_bytes: it.reservation_bytes,
        is_on: quotas.progress == QuotaProgress::On,
        graces: [quotas.bytes_grace_seconds, quotas.inodes_grace_seconds],
        accounts,
    }
}

/// Two pools, one with a fileset `a` that has a reservation and limits of users; and those.
fn limited(is_on: bool) -> ([Image; 2], super::send::Known, Along) {
    let ([source, target], kept) = filled();
    let device = SimDevice::open(source, SimOptions::default());
    let pool = open(&device, None).expect("it opens");
    let a = name("a");
    assert_eq!(pool.fileset_admin().switch_quotas_on(&a), Ok(QuotaProgress::On));
    for (kind, id, bytes_hard, inodes_soft) in [
        (QuotaKind::User, 7, Some(5 << 20), None),
        (QuotaKind::User, 4_000_000_000, Some(8 << 10), Some(3)),
        (QuotaKind::Group, 7, None, Some(1000)),
        (QuotaKind::Project, 9, Some(1 << 30), Some(1)),
    ] {
        let change = QuotaLimitsChange { bytes_hard, inodes_soft, ..Default::default() };
        pool.fileset_admin().set_quota(&a, (kind, id), &change).expect("they are on");
    }
    pool.fileset_admin().set_quota_graces(&a, GRACES.map(Some)).expect("they are on");
    reserve(&pool, "a", RESERVATION).expect("there is room");
    if !is_on {
        pool.fileset_admin().switch_quotas_off(&a).expect("they are on");
    }
    let limits = along(&pool, "a");
    assert!(limits.accounts.len() >= 4 && limits.graces == GRACES, "{limits:?}");
    free_all(&pool);
    pool.close().expect("nothing fails");
    ([device.durable_image(), target], kept, limits)
}

/// Returns what has gone along to `b` of an image, once all is counted.
fn along_in(image: &Image) -> Along {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    let pool = open(&device, None).expect("it opens");
    while pool.fileset_admin().count_quotas(&name("b")).expect("it is there") {}
    let found = along(&pool, "b");
    pool.close().expect("nothing fails");
    found
}

/// Goal: limits of users, groups and projects, how long they may be passed, and what is kept free
/// go along with a fileset that moves, whoever ends the move where; also limits that are kept while
/// nobody is counted. Method: moves that are ended at each step, and go on.
#[test]
fn what_users_may_have_and_what_is_kept_free_go_along() {
    use MoveStep::{
        Arrived, Copied, Deleted, LastSnapshot, Leaves, Limited, Settled, SnapshotTaken,
    };
    for is_on in [true, false] {
        let (images, kept, limits) = limited(is_on);
        for last in
            [SnapshotTaken, Copied, Leaves, LastSnapshot, Arrived, Limited, Deleted, Settled]
        {
            let both = Both::open([&images[0], &images[1]], false).expect("they open");
            let ended = both.with(None, &mut |step| step != last, |this, how| this.run(how));
            assert!(matches!(ended, Err(MoveError::Ended)), "{last:?}: {ended:?}");
            let durable = both.devices.clone().map(|device| device.durable_image());
            let moved = judge_move([&durable[0], &durable[1]], &kept);
            let moved = moved.unwrap_or_else(|why| panic!("{last:?}: {why}"));
            let found = along_in(&moved[1]);
            if is_on {
                assert_eq!(found, limits, "{last:?}");
            } else {
                let of = |it: &Along| (it.is_on, it.graces, it.reservation_bytes);
                assert_eq!(of(&found), of(&limits), "{last:?}");
                let hard = |it: &Along| -> Vec<_> {
                    let all = it.accounts.iter().map(|it| (it.kind, it.id, it.bytes_hard));
                    all.filter(|(.., hard)| *hard > 0).collect()
                };
                assert_eq!(hard(&found), hard(&limits), "{last:?}");
            }
            let device = SimDevice::open(moved[0].clone(), SimOptions::default());
            let pool = open(&device, None).expect("it opens");
            assert_eq!(pool.status().space.kept, 0, "{last:?}: the source keeps it free still");
            pool.close().expect("nothing fails");
        }
    }
}

/// Goal: the same wherever power fails.
#[test]
fn limits_and_reservation_go_along_wherever_power_fails() {
    let (images, kept, limits) = limited(true);
    let judged = judge_cuts_of_a_move(&images, &|both| {
        let moved = judge_move(both, &kept)?;
        let found = along_in(&moved[1]);
        if found == limits { Ok(()) } else { Err(format!("{found:?} has gone along")) }
    });
    assert!(judged > 30, "{judged} images mean little");
}

/// Goal: limits that somebody sets where the fileset has arrived are never undone by a move that is
/// finished later, which sets once more those of the pool that it came from. Method: a move that is
/// ended where it has arrived; all that changes limits is refused there, also by the next process,
/// and is done once the move is finished, or an operator has said that the fileset is here.
#[test]
fn limits_are_not_changed_while_a_move_that_brings_them_is_not_finished() {
    let (images, kept, limits) = limited(true);
    for (last, says_here) in
        [(MoveStep::Arrived, false), (MoveStep::Limited, false), (MoveStep::Limited, true)]
    {
        let both = Both::open([&images[0], &images[1]], false).expect("they open");
        let ended = both.with(None, &mut |step| step != last, |this, how| this.run(how));
        assert!(matches!(ended, Err(MoveError::Ended)), "{last:?}: {ended:?}");
        let durable = both.devices.clone().map(|device| device.durable_image());
        let both = Both::open([&durable[0], &durable[1]], false).expect("they open");
        let (pool, b) = (&both.pools[1], name("b"));
        let change = QuotaLimitsChange { bytes_hard: Some(4 << 10), ..Default::default() };
        let refused = [
            pool.fileset_admin().set_quota(&b, (QuotaKind::User, 7), &change),
            pool.fileset_admin().set_quota_graces(&b, [Some(1), None]),
            pool.fileset_admin().switch_quotas_on(&b).map(drop),
            pool.fileset_admin().begin_quotas(&b),
            pool.fileset_admin().switch_quotas_off(&b),
        ];
        for refused in refused {
            let words = refused.expect_err("the move is not finished").to_string();
            assert!(words.contains("give the `holdfast fileset move` again"), "{words}");
        }
        if says_here {
            pool.fileset_admin().take_as_here(&b).expect("it has arrived");
            pool.fileset_admin().set_quota(&b, (QuotaKind::User, 7), &change).expect("it is here");
            both.run().expect_err("both pools have it");
        } else {
            both.run().expect("it goes on");
            pool.fileset_admin()
                .set_quota(&b, (QuotaKind::User, 7), &change)
                .expect("it is finished");
        }
        let images = both.devices.clone().map(|device| device.durable_image());
        let mut wanted = limits.accounts.clone();
        let own = |it: &&mut QuotaAccount| (it.kind, it.id) == (QuotaKind::User, 7);
        wanted.iter_mut().find(own).expect("he has one").bytes_hard = 4 << 10;
        assert_eq!(along_in(&images[1]).accounts, wanted, "{last:?}");
        super::send::assert_same(
            &super::to_other_pool::content(&images[1], "b"),
            &kept,
            "moved c0",
        );
    }
}

/// Goal: a reservation for which the other pool has no room refuses the move, in words; one that
/// changes while the fileset moves is taken as it is then.
#[test]
fn a_reservation_needs_room_where_the_fileset_goes() {
    let (images, kept, _) = limited(true);
    let both = Both::open([&images[0], &images[1]], false).expect("they open");
    both.pools[1]
        .fileset_admin()
        .create_fileset(&name("z"), &new_fileset(5))
        .expect("there is room");
    let most = (1..64).rev().find(|most| reserve(&both.pools[1], "z", most << 20).is_ok());
    let most = most.expect("there is room for some");
    reserve(&both.pools[1], "z", (most - 2) << 20).expect("it is less");
    let refused = both.run().expect_err("there is no room for both").to_string();
    let words = "b: the other pool has no room for its reservation of 6291456 bytes";
    assert!(refused.contains(words), "{refused}");
    assert_eq!(both.usable(), [true, false]);
    reserve(&both.pools[1], "z", 0).expect("it is less");
    // Between the copy and the switch it is raised.
    let raised = RESERVATION + (1 << 20);
    let raise = &mut |step| {
        if step == MoveStep::Copied {
            reserve(&both.pools[0], "a", raised).expect("there is room");
        }
        true
    };
    let busy = both.with(None, raise, |this, how| this.run(how));
    assert!(matches!(busy, Err(MoveError::Busy(_))), "{busy:?}");
    assert_eq!(both.usable(), [true, false]);
    both.run().expect("nothing is in its way");
    assert_eq!(info(&both.pools[1], "b").expect("it is there").reservation_bytes, raised);
    let moved = both.close().expect("both are clean");
    super::send::assert_same(&super::to_other_pool::content(&moved[1], "b"), &kept, "moved c0");
}
