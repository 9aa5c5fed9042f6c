use super::*;
use crate::disk_group::DiskGroupRoles;
use crate::geometry::GeometryOptions;
use crate::members::MemberState;
use crate::missed::StaleParts;

pub(super) fn sample() -> Superblock {
    let geometry = Geometry::plan(&GeometryOptions {
        device_bytes: 1 << 30,
        fragment_bytes: 4096,
        segment_bytes: None,
        group_bytes: None,
        journal_bytes: None,
    });
    let void = VoidInterval {
        lsn_first: Lsn(1),
        lsn_end: Lsn(2),
        epoch_first: Epoch(3),
        epoch_end: Epoch(4),
    };
    Superblock {
        pool_id: PoolId([1; 16]),
        sequence: 7,
        device_index: 0,
        is_open: true,
        consistency: Consistency::Journal,
        features_compatible: 0,
        features_incompatible: 0,
        features_read_only: 0,
        members: vec![Member::new([2; 16], 1 << 30)],
        spares: Vec::new(),
        layout: Layout::Single,
        slots: (0..1).into(),
        added: Vec::new(),
        memberships: vec![Membership::FIRST],
        label: [0; LABEL_BYTES],
        created_seconds: 5,
        mount_count: 6,
        writer_term: 1,
        sector_bytes: 512,
        block_shift: 14,
        geometry: geometry.expect("1 GiB is enough"),
        lsn_base: Lsn(4096),
        epoch_base: Epoch(9),
        busy_generation: 2,
        is_scrubbing: true,
        secret: [3; 16],
        voids: vec![void; 3],
        busy_groups: vec![5, 6],
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let mut bytes = sample().encode(2);
    assert_eq!(Superblock::decode(&bytes, 2), Ok(sample()));
    for bit in 0..SUPERBLOCK_BYTES * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&bytes, 2).is_err(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// Goal: a label gives both the bytes used of each member and the pool's length.
#[test]
fn a_pool_in_stripes_comes_back_as_it_was_written() {
    let options = GeometryOptions {
        device_bytes: 1 << 30,
        fragment_bytes: 4096,
        segment_bytes: None,
        group_bytes: None,
        journal_bytes: None,
    };
    for layout in [Layout::Raid5 { unit_shift: 14 }, Layout::Stripe { unit_shift: 14 }] {
        let shape = layout.stripe(4).expect("it has stripes");
        let geometry = Geometry::plan_striped(&options, shape).expect("it fits");
        let members = (1..=4).map(|id| Member::new([id; 16], 1 << 30)).collect();
        let striped = Superblock { layout, geometry, members, slots: (0..4).into(), ..sample() };
        assert_eq!(Superblock::decode(&striped.encode(1), 1), Ok(striped));
    }
}

/// Goal: the label of a spare decodes, and all listed spares are read.
#[test]
fn the_label_of_a_spare_comes_back_as_it_was_written() {
    for count in [1, 4, 5, 8] {
        let mut spares: Vec<Spare> = (1..=count).map(|id| Spare::new([id; 16], 1 << 30)).collect();
        spares.iter_mut().for_each(|spare| spare.id[0] += 100);
        let of_spare = Superblock { device_index: u16::from(count), spares, ..sample() };
        let bytes = of_spare.encode(0);
        assert_eq!(Superblock::decode(&without_rest(bytes), 0), Ok(of_spare.clone()), "{count}");
        assert!(of_spare.is_of_spare());
        assert_eq!(of_spare.device_id(), of_spare.spares[usize::from(count) - 1].id);
        assert_eq!(bytes_in_use(&bytes) == SUPERBLOCK_HEAD_BYTES, count < 5, "{count}");
    }
    assert!(!sample().is_of_spare());
}

/// Goal: stale parts are in the label, and all of them are read.
#[test]
fn what_a_member_has_missed_comes_back_as_it_was_written() {
    let mut away = sample();
    away.members.push(Member::new([3; 16], 1 << 30));
    (away.layout, away.slots) = (Layout::Mirror, (0..2).into());
    away.members[1].state = MemberState::Failed;
    away.members[1].missed = Some(StaleParts::of(&away.geometry, &(0..300 << 20)));
    let bytes = away.encode(0);
    assert_eq!(Superblock::decode(&without_rest(bytes), 0), Ok(away));
    assert_eq!(bytes_in_use(&bytes), SUPERBLOCK_BYTES);
}

#[test]
fn a_copy_in_the_wrong_position_is_refused() {
    let decoded = Superblock::decode(&sample().encode(2), 1);
    assert_eq!(decoded, Err(SuperblockError::Misplaced { expected: 1, found: 2 }));
}

/// Goal: an older version is distinguished from damage.
#[test]
fn an_older_version_is_refused_by_name() {
    let mut old = sample().encode(0);
    old[12] = 3;
    let crc = crc32c(&old[CRC_COVERS_FROM..SUPERBLOCK_BYTES_BEFORE_4]);
    old[8..12].copy_from_slice(&crc.to_le_bytes());
    let refused = SuperblockError::OldVersion { major: 3, minor: VERSION_MINOR };
    assert_eq!(Superblock::decode(&old, 0), Err(refused));
    old[100] ^= 1;
    let decoded = Superblock::decode(&old, 0);
    assert!(matches!(decoded, Err(SuperblockError::BadChecksum { .. })), "{decoded:?}");
}

#[test]
fn a_newer_version_or_feature_is_refused_by_name() {
    let restamp = |bytes: &mut [u8; SUPERBLOCK_BYTES]| {
        let crc = crc32c(&bytes[CRC_COVERS_FROM..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    };
    let mut newer = sample().encode(0);
    newer[12] = 9;
    restamp(&mut newer);
    let decoded = Superblock::decode(&newer, 0);
    let refused = SuperblockError::UnsupportedVersion { major: 9, minor: VERSION_MINOR };
    assert_eq!(decoded, Err(refused));
    let mut featured = sample().encode(0);
    let offset = std::mem::offset_of!(SuperblockDisk, features_incompatible);
    featured[offset] = 4;
    restamp(&mut featured);
    let decoded = Superblock::decode(&featured, 0);
    assert_eq!(decoded, Err(SuperblockError::UnsupportedFeatures { features: 4 }));
}

/// Returns a pool with a single, an added mirror and an added single.
fn with_added() -> Superblock {
    let mut superblock = sample();
    superblock.members.extend((3..6).map(|id| Member::new([id; 16], 1 << 30)));
    let plans = [(1, Layout::Mirror, 1..3), (2, Layout::Single, 3..4)];
    for (number, layout, slots) in plans {
        let plan = superblock.geometry.group_layout().plan_added(
            number,
            (layout, DiskGroupRoles::DATA),
            slots.into(),
            1 << 30,
        );
        let plan = plan.expect("there is room");
        superblock.added.push(DiskGroup { state: DiskGroupState::Online, ..plan });
        superblock.place_added().expect("as it was planned");
    }
    superblock
}

/// Goal: disk groups decode with their ranges; one in state adding has none.
#[test]
fn disk_groups_come_back_as_they_were_written() {
    let mut superblock = with_added();
    assert_eq!(superblock.geometry.added.len(), 2);
    assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
    superblock.added[1].state = DiskGroupState::Adding;
    superblock.place_added().expect("as it was planned");
    assert_eq!(superblock.geometry.added.len(), 1);
    assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
    let numbers = superblock.geometry.group_layout().group_numbers();
    superblock.take_out(1);
    assert_eq!(superblock.members.len(), 4, "the last slot has a member");
    assert!(superblock.members[1].is_gone() && superblock.members[2].is_gone());
    assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
    superblock.take_out(2);
    assert_eq!(superblock.members.len(), 1);
    assert!(superblock.geometry.group_layout().group_numbers() < numbers);
    assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
}

/// Goal: any disk group can become the main one without moving groups, and back; the old one can be
/// removed.
#[test]
fn another_disk_group_becomes_the_main_one() {
    let roles = DiskGroupRoles { data: true, metadata: true, journal: false };
    for (layout, members) in [
        (Layout::Single, 1),
        (Layout::Mirror, 2),
        (Layout::Stripe { unit_shift: 16 }, 2),
        (Layout::Raid5 { unit_shift: 16 }, 3),
    ] {
        let mut superblock = with_added();
        superblock.members.extend((6..6 + members).map(|id| Member::new([id; 16], 1 << 30)));
        let slots = (4..4 + usize::from(members)).into();
        let geometry = &superblock.geometry;
        let plan = geometry.group_layout().plan_added(3, (layout, roles), slots, 1 << 30);
        let plan = plan.expect("there is room");
        superblock.added.push(DiskGroup { state: DiskGroupState::Online, ..plan });
        superblock.place_added().expect("as it was planned");
        let before = superblock.clone();
        assert!(superblock.make_main(1).is_err(), "it has no room for the fixed regions");
        superblock.make_main(3).expect("it has room");
        let (now, then) = (&superblock.geometry, &before.geometry);
        assert_eq!((now.main, now.group_layout().disk_group_of(0)), (3, Some(0)), "{layout:?}");
        assert_eq!(now.group_layout().root_place().group(), now.main_first);
        assert_eq!(now.verify(), Ok(()));
        assert!(now.group_layout().groups().eq(then.group_layout().groups()));
        for group in now.group_layout().groups() {
            assert_eq!(now.fragments_of(group), then.fragments_of(group), "{group}");
            assert_eq!(
                now.group_layout().stripe_of(group),
                then.group_layout().stripe_of(group),
                "{group}"
            );
            assert_eq!(
                now.group_layout().disk_group_of(group),
                then.group_layout().disk_group_of(group),
                "{group}"
            );
            assert_eq!(
                now.group_layout().has_root_page(group),
                then.group_layout().has_root_page(group),
                "{group}"
            );
        }
        assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
        let mut back = superblock.clone();
        back.make_main(0).expect("it has room still");
        assert_eq!(back, before);
        superblock.take_out(0);
        assert_eq!(superblock.geometry.group_layout().disk_group_of(0), None);
        assert_eq!(superblock.free_group_number(), Some(0));
        assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
        let bytes = all_bytes(&superblock);
        let plan = superblock.geometry.group_layout().plan_added(
            0,
            (Layout::Single, DiskGroupRoles::DATA),
            (0..1).into(),
            bytes,
        );
        assert_eq!(plan.expect("there is room").first_group, 0, "what it left is given out again");
    }
}

/// Returns a pool with a round-robin of three, and another disk group.
fn with_round_robin() -> Superblock {
    let mut superblock = sample();
    superblock.members.extend((3..7).map(|id| Member::new([id; 16], 1 << 30)));
    for (number, layout, slots) in [(1, Layout::RoundRobin, 1..4), (2, Layout::Single, 4..5)] {
        let plan = superblock.geometry.group_layout().plan_added(
            number,
            (layout, DiskGroupRoles::DATA),
            slots.into(),
            1 << 30,
        );
        let plan = plan.expect("there is room");
        superblock.added.push(DiskGroup { state: DiskGroupState::Online, ..plan });
        superblock.place_added().expect("as it was planned");
    }
    superblock
}

fn ranges_of(superblock: &Superblock, disk_group: u8) -> Vec<(u32, Option<u8>)> {
    let own = superblock.geometry.added.iter().filter(|range| range.disk_group == disk_group);
    own.map(|range| (range.first, range.lane)).collect()
}

/// Goal: devices of a round-robin come and go without moving other ranges.
#[test]
fn devices_of_a_round_robin_go_and_come() {
    let mut superblock = with_round_robin();
    let same = |superblock: &Superblock| {
        assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(superblock));
    };
    let plain: SuperblockDisk = zerocopy::transmute!(superblock.encode(0));
    assert_eq!(plain.layouts[1].kind, 4, "as software knows it that knows no more");
    let all = superblock.geometry.added.clone();
    let (first, count) = (all[0].first, all[0].count);
    superblock.split_off(2, 3).expect("it is one of three");
    same(&superblock);
    assert_eq!(ranges_of(&superblock, 1), [(first, Some(0)), (first + 2 * count, Some(1))]);
    assert_eq!(ranges_of(&superblock, 3), [(first + count, None)]);
    assert!(superblock.geometry.leaves(first + count) && !superblock.geometry.leaves(first));
    let disk: SuperblockDisk = zerocopy::transmute!(superblock.encode(0));
    assert_eq!(disk.layouts[1].kind, 6, "older software must not take it for another");
    assert!(
        superblock
            .geometry
            .group_layout()
            .groups_of(1)
            .eq((first..first + count).chain(all[2].numbers()))
    );
    superblock.take_out(3);
    same(&superblock);
    // Another disk group may take a part of the freed range.
    let one = superblock.geometry.group_layout().range_of(first).copied().expect("it stays");
    let (lane, free) = superblock.geometry.free_lane(&one).expect("there is room");
    assert_eq!((lane, free.numbers()), (1, all[1].numbers()));
    let slots = || (2..3).into();
    let plan = superblock.geometry.group_layout().plan_added(
        3,
        (Layout::Single, DiskGroupRoles::DATA),
        slots(),
        9 << 20,
    );
    let small = DiskGroup { state: DiskGroupState::Online, ..plan.expect("it fits") };
    superblock.members[2] = Member::new([8; 16], 1 << 30);
    superblock.added.push(small);
    superblock.place_added().expect("as it was planned");
    assert_eq!(ranges_of(&superblock, 3)[0].0, all[1].first);
    let (lane, free) = superblock.geometry.free_lane(&one).expect("there is room");
    assert!(
        lane > 2 && free.first >= superblock.geometry.group_layout().numbers_of(2).end,
        "{lane} {free:?}"
    );
    superblock.take_out(3);
    // A range whose numbers the first disk group has is not free.
    let mut grown = superblock.geometry.clone();
    let group_bytes = u64::from(grown.group_fragments) << grown.fragment_shift;
    grown.device_bytes = grown.groups_offset + u64::from(all[1].first + 1) * group_bytes;
    let (_, free) = grown.free_lane(&one).expect("there is room");
    assert!(
        free.first >= grown.group_layout().taken_by_main().end && free.first > all[1].first,
        "{free:?}"
    );
    // A device is added in the middle again.
    superblock.members[2] = Member::new([9; 16], 1 << 30);
    let plan = superblock.geometry.group_layout().plan_added(
        3,
        (Layout::Single, DiskGroupRoles::DATA),
        slots(),
        all_bytes(&superblock),
    );
    superblock.added.push(DiskGroup { first_group: all[1].first, ..plan.expect("it fits") });
    same(&superblock);
    superblock.join_as_lane(3, 1, 1).expect("the range is free");
    same(&superblock);
    let now = [(first, Some(0)), (first + 2 * count, Some(1)), (first + count, Some(2))];
    assert_eq!(ranges_of(&superblock, 1), now);
    // The remaining single keeps its range.
    for slot in [1, 3] {
        let number = superblock.free_group_number().expect("few are there");
        superblock.split_off(slot, number).expect("it is one of several");
        same(&superblock);
        superblock.take_out(number);
        same(&superblock);
    }
    assert_eq!(ranges_of(&superblock, 1), [(first + count, None)]);
    assert_eq!(superblock.added[0].layout, Layout::Single);
    assert!(superblock.split_off(2, 3).is_err(), "it is one of one");
    assert!(superblock.split_off(4, 3).is_err(), "it is in no round-robin");
}

fn all_bytes(superblock: &Superblock) -> u64 {
    superblock.added[0].member_bytes
}

/// Goal: equal ranges are refused, and so are explicit ranges in a row.
#[test]
fn ranges_that_cannot_be_are_refused() {
    let mut superblock = with_round_robin();
    superblock.split_off(2, 3).expect("it is one of three");
    for named in [[0, 0], [2, 2], [0, 1], [255, 254], [0, 3]] {
        let mut disk: SuperblockDisk = zerocopy::transmute!(superblock.encode(0));
        disk.layouts[1].slots[16..18].copy_from_slice(&named);
        let mut bytes: [u8; SUPERBLOCK_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&bytes[CRC_COVERS_FROM..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert!(Superblock::decode(&bytes, 0).is_err(), "{named:?}");
    }
}

/// Goal: a round-robin has one range for each device, and no metadata.
#[test]
fn a_round_robin_has_a_range_for_each_of_its_devices() {
    let mut superblock = sample();
    superblock.members.extend((3..6).map(|id| Member::new([id; 16], 1 << 30)));
    let plan = superblock.geometry.group_layout().plan_added(
        1,
        (Layout::RoundRobin, DiskGroupRoles::DATA),
        (1..4).into(),
        1 << 30,
    );
    let plan = plan.expect("there is room");
    superblock.added.push(DiskGroup { state: DiskGroupState::Online, ..plan });
    superblock.place_added().expect("as it was planned");
    let ranges = superblock.geometry.added.clone();
    assert_eq!(ranges.iter().map(|range| range.lane).collect::<Vec<_>>(), [0, 1, 2].map(Some));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].numbers().end, pair[1].first);
        assert_eq!(
            (pair[0].count, pair[0].last_fragments),
            (pair[1].count, pair[1].last_fragments)
        );
    }
    assert_eq!(
        superblock.geometry.group_layout().numbers_of(1),
        ranges[0].first..ranges[2].numbers().end
    );
    assert_eq!(Superblock::decode(&superblock.encode(0), 0).as_ref(), Ok(&superblock));
    let mut disk: SuperblockDisk = zerocopy::transmute!(superblock.encode(0));
    disk.layouts[0].kind = 4;
    let mut bytes: [u8; SUPERBLOCK_BYTES] = zerocopy::transmute!(disk);
    let crc = crc32c(&bytes[CRC_COVERS_FROM..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    // A round-robin needs several devices.
    let error = Superblock::decode(&bytes, 0).expect_err("metadata is there").to_string();
    assert!(error.contains("number of devices"), "{error}");
}

/// Goal: invalid disk groups are refused, although the checksum is right.
#[test]
fn disk_groups_that_cannot_be_are_refused() {
    let refused = |change: &dyn Fn(&mut SuperblockDisk), what: &str| {
        let mut disk: SuperblockDisk = zerocopy::transmute!(with_added().encode(0));
        change(&mut disk);
        let mut bytes: [u8; SUPERBLOCK_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&bytes[CRC_COVERS_FROM..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert!(Superblock::decode(&bytes, 0).is_err(), "{what}");
    };
    refused(&|disk| disk.disk_groups[1].roles = 5, "the journal beside data");
    refused(&|disk| disk.disk_groups[1].state = 4, "a state");
    refused(&|disk| disk.disk_groups[1].layout = 2, "the layout of another");
    refused(&|disk| disk.disk_groups[1].first_group = U32::new(0), "the range of the first");
    refused(&|disk| disk.disk_groups[2].first_group = disk.disk_groups[1].first_group, "twice");
    refused(&|disk| disk.disk_groups[1].first_group = U32::new(u32::MAX), "past the table");
    refused(&|disk| disk.disk_groups[1].member_bytes = U64::new(u64::MAX), "endless");
    refused(&|disk| disk.disk_groups[1].member_bytes = U64::new(4096), "no room for a group");
    refused(&|disk| disk.layouts[1].slots[0] = 3, "the member of another group");
    refused(&|disk| disk.layouts[2].slots[0] = 2, "a member in two groups");
    refused(&|disk| disk.layouts[2].slots[0] = 9, "no such slot");
    refused(&|disk| disk.layouts[1].slots[0] = 2, "one member twice");
    refused(&|disk| disk.disk_groups[2].roles = 0, "a member in none");
    refused(&|disk| disk.layouts[1].kind = 5, "raid5 of two");
    refused(&|disk| disk.layouts[0].slots[0] = 1, "a member in none, another in two");
}
