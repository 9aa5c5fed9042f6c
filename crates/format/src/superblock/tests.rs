use super::*;
use crate::geometry::GeometryOptions;

fn sample() -> Superblock {
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

/// Goal: a label says of each member what it uses of it, and of the pool what it holds.
#[test]
fn a_pool_in_stripes_comes_back_as_it_was_written() {
    let options = GeometryOptions {
        device_bytes: 1 << 30,
        fragment_bytes: 4096,
        segment_bytes: None,
        group_bytes: None,
        journal_bytes: None,
    };
    let layout = Layout::Raid5 { unit_shift: 14 };
    let shape = layout.stripe(4).expect("it has stripes");
    let geometry = Geometry::plan_striped(&options, shape).expect("it fits");
    let members = (1..=4).map(|id| Member::new([id; 16], 1 << 30)).collect();
    let striped = Superblock { layout, geometry, members, ..sample() };
    assert_eq!(Superblock::decode(&striped.encode(1), 1), Ok(striped));
}

/// Goal: a label of a spare says whose it is, and no copy is cut short of spares that it lists.
#[test]
fn the_label_of_a_spare_comes_back_as_it_was_written() {
    for count in [1, 6, 7, 8] {
        let mut spares: Vec<Spare> = (1..=count).map(|id| Spare::new([id; 16], 1 << 30)).collect();
        spares.iter_mut().for_each(|spare| spare.id[0] += 100);
        let of_spare = Superblock { device_index: u16::from(count), spares, ..sample() };
        let bytes = of_spare.encode(0);
        assert_eq!(Superblock::decode(&without_rest(bytes), 0), Ok(of_spare.clone()), "{count}");
        assert!(of_spare.is_of_spare());
        assert_eq!(of_spare.device_id(), of_spare.spares[usize::from(count) - 1].id);
        assert_eq!(bytes_in_use(&bytes) == SUPERBLOCK_HEAD_BYTES, count < 7, "{count}");
    }
    assert!(!sample().is_of_spare());
}

#[test]
fn a_copy_in_the_wrong_position_is_refused() {
    let decoded = Superblock::decode(&sample().encode(2), 1);
    assert_eq!(decoded, Err(SuperblockError::Misplaced { expected: 1, found: 2 }));
}

/// Goal: a pool of an older version is told from a damaged one, though its copies were shorter.
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
