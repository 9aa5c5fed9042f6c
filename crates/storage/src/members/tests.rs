use format::geometry::{Geometry, GeometryOptions};
use format::ids::{Epoch, Lsn, PoolId};
use format::members::Spare;
use format::superblock::{Consistency, LABEL_BYTES};

use super::*;

/// Labels of a fresh mirror of `width` members.
fn pool(width: u8) -> Vec<LabelledDevice> {
    let options = GeometryOptions {
        device_bytes: 16 << 20,
        fragment_bytes: 4096,
        segment_bytes: None,
        group_bytes: None,
        journal_bytes: None,
    };
    let members: Vec<Member> =
        (0..width).map(|slot| Member::new([slot + 1; 16], 16 << 20)).collect();
    let label = Superblock {
        pool_id: PoolId([9; 16]),
        sequence: 1,
        device_index: 0,
        is_open: false,
        consistency: Consistency::Journal,
        features_compatible: 0,
        features_read_only: 0,
        features_incompatible: 0,
        members,
        spares: Vec::new(),
        layout: if width == 1 { Layout::Single } else { Layout::Mirror },
        slots: (0..usize::from(width)).into(),
        added: Vec::new(),
        memberships: vec![Membership::FIRST],
        label: [0; LABEL_BYTES],
        created_seconds: 0,
        mount_count: 0,
        writer_term: 1,
        sector_bytes: 512,
        block_shift: 14,
        geometry: Geometry::plan(&options).expect("16 MiB are enough"),
        lsn_base: Lsn(0),
        epoch_base: Epoch(2),
        busy_generation: 1,
        is_scrubbing: false,
        secret: [0; 16],
        voids: Vec::new(),
        busy_groups: Vec::new(),
    };
    (0..u16::from(width))
        .map(|slot| LabelledDevice {
            name: format!("d{slot}"),
            label: Superblock { device_index: slot, ..label.clone() },
            settled: label.sequence,
            before: None,
        })
        .collect()
}

/// Sets the state of member `slot` in the label of `found` alone, in a fresh epoch.
fn leave_behind(found: &mut LabelledDevice, slot: usize, state: MemberState) {
    found.label.members[slot].state = state;
    found.label.add_membership();
    found.label.sequence += 1;
}

#[test]
fn all_members_of_a_new_pool_are_current_in_any_order() {
    let mut found = pool(3);
    found.reverse();
    let judged = judge(&found).expect("they are one pool");
    assert_eq!(
        judged.slots,
        [MemberSlotState::Current(2), MemberSlotState::Current(1), MemberSlotState::Current(0)]
    );
    assert!(!judged.is_degraded());
    let alone = judge(&pool(1)).expect("one device");
    assert_eq!(alone.slots, [MemberSlotState::Current(0)]);
}

/// Goal: a raid5 opens with one member absent or stale. If more are, the error names them.
#[test]
fn a_pool_in_stripes_does_without_one_member_and_names_those_that_are_away() {
    let in_stripes = || {
        let mut found = pool(4);
        for (slot, device) in found.iter_mut().enumerate() {
            device.label.layout = Layout::Raid5 { unit_shift: 14 };
            for (number, member) in device.label.members.iter_mut().enumerate() {
                member.set_path(format!("/srv/d{number}").as_bytes());
            }
            assert_eq!(usize::from(device.label.device_index), slot);
        }
        found
    };
    for away in 0..4 {
        let mut found = in_stripes();
        found.remove(away);
        let judged = judge(&found).expect("three of four have all");
        assert_eq!(judged.slots[away], MemberSlotState::Absent);
        assert!(judged.is_degraded());
    }
    let mut stale = in_stripes();
    leave_behind(&mut stale[0], 2, MemberState::Failed);
    assert_eq!(judge(&stale).expect("three have all").slots[2], MemberSlotState::Stale(2));
    stale.remove(1);
    let error = judge(&stale).expect_err("one is away, one has missed writes").to_string();
    assert!(error.contains("/srv/d1, /srv/d2"), "{error}");
    assert!(!error.contains("/srv/d0") && !error.contains("/srv/d3"), "{error}");
}

#[test]
fn a_member_that_missed_writes_is_not_current_and_alone_it_is_no_pool_if_it_knows() {
    let mut found = pool(2);
    leave_behind(&mut found[0], 1, MemberState::Failed);
    let judged = judge(&found).expect("one of them has all");
    assert_eq!(
        (judged.newest, judged.slots.as_slice()),
        (0, &[MemberSlotState::Current(0), MemberSlotState::Stale(1)][..])
    );
    assert!(judged.is_degraded());
    // The last label is on a device that its own table lists as failed: alone it makes no pool.
    let mut knows = found.split_off(1);
    knows[0].label.members[1].state = MemberState::Missing;
    knows[0].label.members[0].set_path(b"/srv/d0");
    let error = judge(&knows).expect_err("it has missed writes").to_string();
    assert!(error.contains("/srv/d0"), "{error}");
}

/// Goal: a crash amid a label update leaves a pool. Method: only the newest label lists the failure
/// of a member.
#[test]
fn the_table_of_the_newest_label_decides_not_the_age_of_others() {
    let mut found = pool(3);
    leave_behind(&mut found[1], 2, MemberState::Failed);
    let judged = judge(&found).expect("two of three have all");
    assert_eq!(judged.newest, 1);
    assert_eq!(
        judged.slots,
        [MemberSlotState::Current(0), MemberSlotState::Current(1), MemberSlotState::Stale(2)]
    );
}

#[test]
fn halves_that_were_opened_apart_are_refused_by_name() {
    let mut found = pool(2);
    leave_behind(&mut found[0], 1, MemberState::Missing);
    leave_behind(&mut found[1], 0, MemberState::Missing);
    for further in 0..2 {
        let error = judge(&found).expect_err("their histories differ");
        assert!(matches!(error, MembersError::Apart { .. }), "{further}: {error}");
        let text = error.to_string();
        assert!(text.contains("d0") && text.contains("d1"), "{text}");
        // One half has a longer history, still without the other's epoch.
        found[0].label.add_membership();
    }
}

/// Goal: a device with a label older than a settled one is an outdated copy, unless a crash
/// explains the older label.
#[test]
fn an_older_copy_is_known_by_a_label_that_all_had() {
    for (own, settled, is_older) in [(3, 4, true), (3, 3, false), (4, 4, false), (1, 6, true)] {
        let mut found = pool(3);
        for device in &mut found {
            (device.label.sequence, device.settled) = (settled + 1, settled);
        }
        (found[1].label.sequence, found[1].settled) = (own, own);
        let judged = judge(&found).expect("two of three have all");
        let expected =
            if is_older { MemberSlotState::Older(1) } else { MemberSlotState::Current(1) };
        assert_eq!(
            judged.slots,
            [MemberSlotState::Current(0), expected, MemberSlotState::Current(2)]
        );
        assert_eq!(judged.settled, settled);
    }
    let mut found = pool(2);
    (found[0].label.sequence, found[0].settled) = (5, 5);
    let judged = judge(&found).expect("one has all");
    check_enough(&judged, &found[0].label).expect("the other is known to be older");
    let mut stripes = pool(3);
    stripes.iter_mut().for_each(|found| found.label.layout = Layout::Raid5 { unit_shift: 14 });
    (stripes[0].label.sequence, stripes[0].settled) = (5, 5);
    let error = judge(&stripes).expect_err("two are older, and parity is for one");
    assert!(matches!(error, MembersError::TooManyAway { .. }), "{error}");
}

/// Goal: a half that was used in the preceding epoch is distinguished from a member on which a
/// crash left the label of that epoch.
#[test]
fn a_half_that_went_on_in_the_epoch_before_is_refused() {
    for (own, settled, is_apart) in [(6, 6, true), (4, 4, true), (4, 3, false), (3, 3, false)] {
        let mut found = pool(2);
        (found[1].label.sequence, found[1].settled) = (3, 3);
        leave_behind(&mut found[1], 0, MemberState::Missing);
        found[1].settled = 4;
        (found[0].label.sequence, found[0].settled) = (own, settled);
        let judged = judge(&found);
        assert_eq!(matches!(judged, Err(MembersError::Apart { .. })), is_apart, "{judged:?}");
        if let Ok(judged) = judged {
            assert_eq!(judged.slots, [MemberSlotState::Stale(0), MemberSlotState::Current(1)]);
        }
    }
}

/// Goal: a spare is found by its id, and its label never decides. Method: its label has a forgotten
/// epoch and the highest sequence.
#[test]
fn a_spare_is_found_by_its_id_and_its_label_decides_nothing() {
    let mut found = pool(3);
    for device in &mut found {
        device.label.spares = vec![Spare::new([70; 16], 1 << 30), Spare::new([71; 16], 1 << 30)];
    }
    let mut label = Superblock { device_index: 4, ..found[0].label.clone() };
    label.sequence += 1000;
    let settled = label.sequence;
    found.push(LabelledDevice { name: "s1".to_owned(), label, settled, before: None });
    for _ in 0..40 {
        leave_behind(&mut found[0], 2, MemberState::Failed);
    }
    for device in 1..3 {
        let label = found[0].label.clone();
        found[device].label = Superblock { device_index: index_of(device), ..label };
    }
    let judged = judge(&found).expect("two of three have all");
    assert!(judged.newest < 3, "not the spare, whose sequence is the highest");
    assert_eq!(judged.slots[2], MemberSlotState::Stale(2));
    assert_eq!(judged.spares, [None, Some(3)]);
    // The spare replaces a member. Its own label does not list that yet.
    for device in &mut found[..3] {
        device.label.members[2] = Member::new([71; 16], 1 << 30);
        device.label.spares.remove(1);
    }
    leave_behind(&mut found[0], 2, MemberState::Joining);
    found.remove(2);
    let judged = judge(&found).expect("two of three have all");
    assert_eq!(judged.slots[2], MemberSlotState::Joining(2));
    assert_eq!(judged.spares, [None]);
    found[0].label.members[2] = Member::new([72; 16], 1 << 30);
    leave_behind(&mut found[0], 2, MemberState::Failed);
    let error = judge(&found).expect_err("it is a spare no more").to_string();
    assert!(error.contains("s1") && error.contains("no member"), "{error}");
    let error = judge(&found[2..]).expect_err("it holds nothing").to_string();
    assert!(error.contains("s1 is a spare"), "{error}");
}

/// Goal: an epoch whose label update was only begun is not the newest, and does not make its device
/// a half.
#[test]
fn one_that_only_began_an_epoch_has_missed_what_others_did_since() {
    let mut found = pool(2);
    for _ in 0..3 {
        leave_behind(&mut found[0], 1, MemberState::Failed);
    }
    leave_behind(&mut found[1], 0, MemberState::Missing);
    found[1].settled = found[1].label.sequence;
    let error = judge(&found).expect_err("both may have answered somebody");
    assert!(matches!(error, MembersError::Apart { .. }), "{error}");
    found[0].before = Some(Box::new(pool(2).swap_remove(0).label));
    let judged = judge(&found).expect("one has begun epochs, and answered nobody");
    assert_eq!(judged.newest, 1);
    assert_eq!(judged.slots, [MemberSlotState::Stale(0), MemberSlotState::Current(1)]);
    // The device was used in the epoch before.
    found[0].settled = found[1].label.sequence;
    let error = judge(&found).expect_err("it was used as well");
    assert!(matches!(error, MembersError::Apart { .. }), "{error}");
}

/// Goal: a label whose update was only begun causes no refusal, unless the absent members may have
/// gone on.
#[test]
fn a_label_that_was_only_begun_refuses_nothing_that_others_cannot_have() {
    // In a raid5 of three, the second device began a label that lists the third as missing. The
    // first is absent.
    let mut found = pool(3);
    found.iter_mut().for_each(|it| it.label.layout = Layout::Raid5 { unit_shift: 14 });
    found[1].before = Some(Box::new(found[1].label.clone()));
    leave_behind(&mut found[1], 2, MemberState::Missing);
    let believed = believe(&found[1..], false).expect("two of three have all");
    assert_eq!(
        believed.judged.slots,
        [MemberSlotState::Absent, MemberSlotState::Current(0), MemberSlotState::Current(1)]
    );
    assert_eq!(believed.label.membership(), Membership::FIRST);
    assert_eq!(believed.begun, Some(found[1].label.clone()));
    let all = believe(&found, false).expect("all are there");
    assert_eq!(all.begun, None, "it is not refused");
    let before = found[1].before.take();
    let error = believe(&found[1..], false).expect_err("it was not only begun");
    assert!(matches!(error, MembersError::TooManyAway { .. }), "{error}");
    // In a mirror of four, the two absent members may have gone on.
    let mut found = pool(4);
    found[1].before = before.map(|_| Box::new(found[1].label.clone()));
    leave_behind(&mut found[1], 3, MemberState::Missing);
    let [_, second, _, fourth] = &found[..] else { unreachable!("there are four") };
    let error = believe(&[second.clone(), fourth.clone()], false).expect_err("two went on");
    assert!(matches!(error, MembersError::TooFew { .. }), "{error}");
}

fn index_of(slot: usize) -> u16 {
    u16::try_from(slot).expect("small")
}

#[test]
fn strangers_copies_and_replaced_members_are_refused() {
    let mut other = pool(2);
    other[1].label.pool_id = PoolId([8; 16]);
    assert!(matches!(judge(&other), Err(MembersError::OtherPool { .. })));
    let mut twice = pool(2);
    twice[1] = LabelledDevice { name: "copy".to_owned(), ..twice[0].clone() };
    assert!(matches!(judge(&twice), Err(MembersError::Twice { .. })));
    let mut replaced = pool(2);
    replaced[0].label.members[1].id = [7; 16];
    replaced[0].label.add_membership();
    let device = "d1".to_owned();
    assert_eq!(judge(&replaced), Err(MembersError::Replaced { device }));
    assert_eq!(judge(&[]), Err(MembersError::Nothing));
}
