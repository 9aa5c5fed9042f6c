//! Pools that are made of several disk groups, each for what its roles say: data here, metadata and
//! the journal there.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsError, NewInode};
use engine::{DiskGroupError, NewDiskGroup, Pool, PoolCreateOptions, PoolOpenError};
use format::disk_group::DiskGroupRoles;
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Image, Recording, SimDevice};
use storage::device::{IoPurpose, RequestKind, SharedDevice};

use super::groups::{check_all, content, group_of, groups};
use super::removal::finish;
use super::{Devices, POOL_BYTES, cut_at, devices_of, get, open, put, shared};

const MIB: usize = 1 << 20;
const RAID5: Layout = Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT };
const STRIPE: Layout = Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT };

/// A disk group to be made: its layout, its devices, whether data may lie there.
pub(super) type Spec = (Layout, usize, bool);

/// Makes a pool on new devices of `bytes` each; the first disk group has the metadata.
pub(super) fn make(specs: &[Spec], bytes: u64) -> (Devices, Result<(), PoolOpenError>) {
    let count: usize = specs.iter().map(|(_, width, _)| width).sum();
    let devices = devices_of(vec![Image::blank(bytes); count]);
    let made = make_on(specs, &devices);
    (devices, made)
}

fn make_on(specs: &[Spec], devices: &Devices) -> Result<(), PoolOpenError> {
    let mut options = PoolCreateOptions::new(0, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    let mut rest = shared(devices);
    // Who is not the first and has no data has the journal.
    let is_apart = specs.iter().skip(1).any(|(.., has_data)| !has_data);
    let group = |(nth, (layout, width, has_data)): (usize, &Spec)| {
        let devices = rest.drain(..*width).collect();
        let journal = if nth == 0 { !is_apart } else { !has_data };
        NewDiskGroup {
            layout: *layout,
            devices,
            roles: DiskGroupRoles { data: *has_data, metadata: journal, journal },
        }
    };
    let groups: Vec<NewDiskGroup> = specs.iter().enumerate().map(group).collect();
    Pool::create_groups(&groups, &ManualClock::new(), &options)
}

fn data_writes(devices: &[Arc<storage::device::sim::SimDevice>]) -> u64 {
    let of = |device: &Arc<storage::device::sim::SimDevice>| {
        device.counts().of(IoPurpose::Data, RequestKind::Write).bytes
    };
    devices.iter().map(of).sum()
}

/// Goal: a pool is made of disk groups of all kinds; no data goes to one that has no role for it,
/// and no more than is there is promised; all is there after a close, and a check finds nothing.
#[test]
fn each_disk_group_has_what_its_roles_say() {
    let cases: [&[Spec]; 13] = [
        &[(Layout::Single, 1, true), (Layout::Single, 1, false)],
        &[(Layout::Mirror, 2, true), (Layout::Mirror, 2, false)],
        &[(RAID5, 3, true), (Layout::Mirror, 3, false)],
        &[(Layout::Mirror, 2, false), (Layout::Single, 1, false), (RAID5, 4, true)],
        &[(Layout::Mirror, 2, false), (RAID5, 4, true)],
        &[(Layout::Mirror, 2, false), (STRIPE, 3, true)],
        &[(Layout::Mirror, 2, false), (Layout::RoundRobin, 3, true)],
        &[(Layout::Single, 1, false), (Layout::Single, 1, true)],
        &[(Layout::Mirror, 2, false), (Layout::Single, 1, true), (Layout::Mirror, 2, true)],
        &[(RAID5, 3, false), (RAID5, 3, true)],
        &[(Layout::Mirror, 2, false), (RAID5, 3, true), (RAID5, 4, true)],
        &[(RAID5, 4, true), (RAID5, 3, true)],
        &[(Layout::Single, 1, true), (Layout::Mirror, 2, true)],
    ];
    for specs in cases {
        let what = format!("{specs:?}");
        let (devices, made) = make(specs, 2 * POOL_BYTES);
        made.unwrap_or_else(|error| panic!("{what}: {error}"));
        check_all(&devices, &what);
        let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
        let of_data: u64 =
            groups(&pool).iter().filter(|it| it.has_data).map(|it| it.total_bytes).sum();
        let statfs = pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open");
        assert!(statfs.available_bytes < of_data, "{what}: {statfs:?} of {of_data}");
        assert!(statfs.free_bytes <= of_data, "{what}: {statfs:?} of {of_data}");
        assert!(statfs.available_bytes > of_data / 2, "{what}: {statfs:?} of {of_data}");
        let before = data_writes(&devices[..specs[0].1]);
        let mut files = 0;
        while put(&pool, &format!("f{files}"), &content(files, 1, MIB / 2)).is_ok() {
            files += 1;
        }
        let written = u64::try_from(files * MIB / 2).expect("small");
        assert!(written * 10 > statfs.available_bytes * 8, "{what}: {written} of {statfs:?}");
        let first = data_writes(&devices[..specs[0].1]) - before;
        assert_eq!(first > 0, specs[0].2, "{what}: {first} bytes of data in the first");
        let of_data = groups(&pool).into_iter().skip(1).filter(|it| it.has_data);
        let used: Vec<u64> = of_data.map(|it| it.used_bytes).collect();
        assert!(used.iter().all(|used| *used > 4 << 20), "{what}: {used:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);
        let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
        for file in 0..files {
            let found = get(&pool, &format!("f{file}"));
            assert!(found == Some(content(file, 1, MIB / 2)), "{what}: file {file}");
        }
        // A full pool can be emptied.
        for file in 0..files {
            let name = format!("f{file}");
            pool.unlink(&Caller::root(), pool.root(), name.as_bytes(), None).expect("it is there");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
        put(&pool, "again", &content(0, 2, MIB)).expect("there is room again");
        pool.close().expect("nothing fails");
        drop(pool);
        check_all(&devices, &what);
    }
}

/// Goal: where the disk group for metadata is full before the others are, writers are refused, what
/// was accepted is kept, and removing makes room. Method: blocks so far apart that each has pages
/// of a map of its own.
#[test]
fn writers_are_refused_where_metadata_has_no_room() {
    let specs: [Spec; 2] = [(Layout::Single, 1, false), (Layout::Single, 1, true)];
    let (devices, made) = make(&specs, POOL_BYTES);
    made.expect("it fits");
    let devices = devices_of(vec![devices[0].image(), Image::blank(8 * POOL_BYTES)]);
    make_on(&specs, &devices).expect("it fits");
    let pool = open(&devices).expect("it was made");
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let ino = pool.create(&caller, pool.root(), b"far", new, None).expect("there is room").ino;
    let at = |block: usize| u64::try_from(block).expect("small") << 20;
    let mut blocks = 0;
    let refused = loop {
        match pool.write(&caller, ino, at(blocks), &content(blocks, 1, 4096)) {
            Ok(_) => blocks += 1,
            Err(error) => break error,
        }
        if blocks % 64 == 0 {
            pool.fsync(&caller, ino, false).expect("what was accepted is installed");
        }
        assert!(blocks < 20_000, "metadata has room without end");
    };
    assert!(matches!(refused, FsError::NoSpace), "{refused}");
    pool.sync().expect("what was accepted is installed");
    let used: Vec<u64> = groups(&pool).iter().map(|it| it.used_bytes).collect();
    assert!(used[1] < 60 << 20, "data has room left: {used:?}");
    println!("{blocks} blocks, {used:?} bytes in use");
    for block in 0..blocks {
        let mut bytes = Vec::new();
        pool.read(&caller, ino, at(block), 4096, &mut bytes).expect("it is there");
        assert!(bytes == content(block, 1, 4096), "block {block}");
    }
    pool.unlink(&caller, pool.root(), b"far", None).expect("a full pool can be emptied");
    pool.close().expect("nothing fails");
    drop(pool);
    let pool = open(&devices).expect("it was closed");
    put(&pool, "again", &content(1, 1, MIB)).expect("there is room again");
    pool.close().expect("nothing fails");
    drop(pool);
    check_all(&devices, "after metadata was full");
}

/// Goal: what cannot be a pool, or leave it, is refused, in words and before anything is written.
#[test]
fn what_cannot_be_is_refused() {
    let cases: [(&[Spec], &str); 7] = [
        (&[(Layout::Single, 1, true), (RAID5, 3, false)], "the journal cannot lie on a raid5"),
        (&[(Layout::Single, 1, true), (Layout::Mirror, 4, false)], "mirror"),
        (
            &[(Layout::Single, 1, true), (Layout::Single, 1, false), (Layout::Single, 1, false)],
            "name it once",
        ),
        (&[(Layout::Single, 1, false)], "role data"),
        (&[(Layout::Single, 1, false), (RAID5, 2, true)], "raid5"),
        (&[(Layout::Single, 1, true), (Layout::Mirror, 1, true)], "mirror"),
        (&[(Layout::Single, 1, true); 9], "8 disk groups"),
    ];
    for (specs, words) in cases {
        let (devices, made) = make(specs, POOL_BYTES);
        let error = made.expect_err(words).to_string();
        assert!(error.contains(words), "{specs:?}: {error}");
        assert!(devices.iter().all(|device| device.counts().writes() == 0), "{specs:?}");
    }
    let specs: [Spec; 2] = [(Layout::Single, 1, false), (Layout::Single, 1, true)];
    let (devices, made) = make(&specs, POOL_BYTES);
    made.expect("it fits");
    let devices =
        devices_of([devices[0].image(), devices[1].image(), Image::blank(POOL_BYTES)].to_vec());
    let pool = open(&devices[..2]).expect("it was made");
    pool.tick().expect("nothing fails");
    let error = pool.devices().remove_disk_group(1).expect_err("no other has data");
    assert!(matches!(error, DiskGroupError::LastForData { number: 1 }), "{error}");
    put(&pool, "f", &content(1, 1, MIB)).expect("there is room");
    pool.devices().add_disk_group(&group_of(&devices, Layout::Single, &[2])).expect("it fits");
    pool.devices().remove_disk_group(1).expect("another has data now");
    finish(&pool, 2, "the first for data");
    assert!(get(&pool, "f") == Some(content(1, 1, MIB)));
}

/// Goal: a creation that is cut off leaves no pool, or all of it.
#[test]
fn a_creation_that_is_cut_off_leaves_no_part_of_a_pool() {
    let specs: [Spec; 2] = [(Layout::Mirror, 2, false), (Layout::Single, 1, true)];
    let (devices, made) = make(&specs, POOL_BYTES);
    made.expect("it fits");
    let end = devices.iter().map(|device| device.time()).max().expect("there are devices");
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(6);
    let (mut states, mut whole) = (0, 0);
    for time in 0..=end {
        for state in 0..4 {
            let images = cut_at(&recordings, time, state == 0, &mut prng);
            let what = format!("cut at {time} of {end}, state {state}");
            states += 1;
            match open(&devices_of(images)) {
                Err(_) => assert!(time < end, "{what}: a pool that was made cannot be opened"),
                Ok(pool) => {
                    whole += 1;
                    assert_eq!(groups(&pool).len(), 2, "{what}");
                    put(&pool, "f", &content(1, 1, 100_000)).unwrap_or_else(|error| {
                        panic!("{what}: {error}");
                    });
                }
            }
        }
    }
    println!("{states} states, {whole} of them a pool");
    assert!(whole > 3 && whole < states / 2, "{whole} of {states}");
}

/// Goal: whatever is acknowledged is there after a power cut at any moment, whichever member of
/// any disk group is away afterwards: also where the journal is apart.
#[test]
fn a_cut_with_any_member_missing_loses_nothing() {
    let cases: [&[Spec]; 3] = [
        &[(Layout::Mirror, 2, false), (RAID5, 3, true)],
        &[(Layout::Mirror, 2, true), (Layout::Mirror, 2, false)],
        &[(RAID5, 3, true), (Layout::Mirror, 2, false), (Layout::Mirror, 2, true)],
    ];
    cases.into_iter().for_each(cut_with_any_member_missing);
}

fn cut_with_any_member_missing(specs: &[Spec]) {
    let (devices, made) = make(specs, POOL_BYTES);
    made.expect("it fits");
    let devices = devices_of(devices.iter().map(|device| device.image()).collect());
    let now = || devices.iter().map(|device| device.time()).max().expect("there are devices");
    let pool = open(&devices).expect("it was made");
    let begun = now();
    let mut acknowledged = Vec::new();
    for file in 0..6 {
        put(&pool, &format!("f{file}"), &content(file, 1, 150_000)).expect("there is room");
        acknowledged.push((now(), file));
        if file == 3 {
            pool.checkpoint().expect("nothing fails");
        }
    }
    let end = now();
    drop(pool);
    let devices_in_all = devices.len();
    let recordings: Vec<Recording> = devices.iter().map(|device| device.recording()).collect();
    let mut prng = Prng::from_seed(8);
    let mut states = 0;
    for time in (begun..=end).step_by(3) {
        for missing in 0..=devices.len() {
            let images = cut_at(&recordings, time, states % 5 == 0, &mut prng);
            let left: Vec<Image> = (0..)
                .zip(images)
                .filter(|(at, _)| *at != missing)
                .map(|(_, image)| image)
                .collect();
            let what = format!("cut at {time} of {begun} to {end}, without {missing}");
            let devices = devices_of(left);
            let pool = open(&devices).unwrap_or_else(|error| panic!("{what}: {error}"));
            for (_, file) in acknowledged.iter().filter(|(at, _)| *at <= time) {
                let found = get(&pool, &format!("f{file}"));
                assert!(found == Some(content(*file, 1, 150_000)), "{what}: file {file}");
            }
            put(&pool, "after", &content(9, 9, 50_000))
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            pool.close().unwrap_or_else(|error| panic!("{what}: {error}"));
            drop(pool);
            if missing == devices_in_all {
                check_all(&devices, &what);
            }
            states += 1;
        }
    }
    println!("{specs:?}: {states} states");
    assert!(states > 200, "{specs:?}: {states}");
}

/// Goal: a device that takes the place of one of the mirror with the metadata has all of it, beside
/// stripes too: the fixed regions, which end inside a piece, and what lies behind them. Method: the
/// pool is opened and checked with the new one alone.
#[test]
fn a_member_of_the_metadata_mirror_is_made_whole_beside_stripes() {
    let stripe = Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT };
    for (layout, width) in [(RAID5, 3), (stripe, 2)] {
        let what = layout.word();
        let (devices, made) =
            make(&[(Layout::Mirror, 2, false), (layout, width, true)], POOL_BYTES);
        made.unwrap_or_else(|error| panic!("{what}: {error}"));
        let images = devices.iter().map(|device| device.image());
        let devices = devices_of(images.chain([Image::blank(POOL_BYTES)]).collect());
        let members = devices.len() - 1;
        let pool = open(&devices[..members]).expect("it was made");
        for file in 0..6 {
            put(&pool, &format!("f{file}"), &content(file, 1, 150_000)).expect("there is room");
        }
        pool.checkpoint().expect("nothing fails");
        let new: SharedDevice = Arc::<SimDevice>::clone(&devices[members]);
        pool.devices().replace_member(0, new, [9; 16]).expect("the other has all");
        for round in 0.. {
            pool.tick().expect("nothing fails");
            if pool.devices().members().iter().all(|it| it.member.is_online()) {
                break;
            }
            assert!(round < 500, "{what}: the rebuild does not end: {:?}", pool.jobs());
        }
        pool.close().expect("nothing fails");
        drop(pool);
        let left = devices_of(devices[2..].iter().map(|device| device.image()).collect());
        check_all(&left, what);
        let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
        for file in 0..6 {
            let found = get(&pool, &format!("f{file}"));
            assert!(found == Some(content(file, 1, 150_000)), "{what}: file {file}");
        }
    }
}

/// Goal: the journal that is apart is on the devices that are for it and nowhere else, and each of
/// them has all of it. Method: writes are counted by purpose; a device takes the place of one, and
/// the pool goes on after a crash with that alone.
#[test]
fn the_journal_that_is_apart_is_on_its_own_devices() {
    let specs: [Spec; 2] = [(Layout::Mirror, 2, true), (Layout::Mirror, 2, false)];
    let (devices, made) = make(&specs, POOL_BYTES);
    made.expect("it fits");
    let images = devices.iter().map(|device| device.image());
    let devices = devices_of(images.chain([Image::blank(POOL_BYTES)]).collect());
    let pool = open(&devices[..4]).expect("it was made");
    for file in 0..6 {
        put(&pool, &format!("f{file}"), &content(file, 1, 150_000)).expect("there is room");
    }
    let writes = |at: usize, purpose| devices[at].counts().of(purpose, RequestKind::Write).bytes;
    let of_journal: Vec<u64> = (0..4).map(|at| writes(at, IoPurpose::Journal)).collect();
    assert_eq!(of_journal[..2], [0, 0], "the first disk group has none of it");
    assert!(of_journal[2] > 0 && of_journal[2] == of_journal[3], "{of_journal:?}");
    let others = [IoPurpose::Data, IoPurpose::Home, IoPurpose::DoubleWrite, IoPurpose::Summary];
    let of_others: u64 = [2, 3].iter().flat_map(|at| others.map(|it| writes(*at, it))).sum();
    assert_eq!(of_others, 0, "and those have nothing else");
    let statuses = groups(&pool);
    assert_eq!(
        statuses.iter().map(|it| (it.has_metadata, it.has_journal)).collect::<Vec<_>>(),
        [(true, false), (false, true)]
    );

    let new: SharedDevice = Arc::<SimDevice>::clone(&devices[4]);
    pool.devices().replace_member(2, new, [9; 16]).expect("the other has all");
    for round in 0.. {
        put(&pool, "meanwhile", &content(round, 1, 40_000)).expect("there is room");
        pool.tick().expect("nothing fails");
        if pool.devices().members().iter().all(|it| it.member.is_online()) {
            break;
        }
        assert!(round < 500, "the rebuild does not end: {:?}", pool.jobs());
    }
    put(&pool, "last", &content(7, 1, 90_000)).expect("there is room");
    // CRASH: the device that was replaced and the other of the old two are away.
    let left = [0, 1, 4].map(|at: usize| devices[at].image()).to_vec();
    drop(pool);
    let left = devices_of(left);
    check_all(&left, "with the new device alone");
    let pool = open(&left).expect("the new one has all of the journal");
    for file in 0..6 {
        assert!(get(&pool, &format!("f{file}")) == Some(content(file, 1, 150_000)), "{file}");
    }
    assert!(get(&pool, "last") == Some(content(7, 1, 90_000)), "what was acknowledged last");
    pool.close().expect("nothing fails");
}

/// Goal: a pool whose journal is away is refused by the path of the device, and nothing is written.
#[test]
fn a_pool_without_its_journal_is_refused() {
    let specs: [Spec; 2] = [(Layout::Single, 1, true), (Layout::Single, 1, false)];
    let (devices, made) = make(&specs, POOL_BYTES);
    made.expect("it fits");
    let devices = devices_of(devices.iter().map(|device| device.image()).collect());
    let error = open(&devices[..1]).expect_err("the journal is away").to_string();
    assert!(error.contains("/sim/d1"), "{error}");
    assert_eq!(devices[0].counts().writes(), 0);
    open(&devices).expect("both are there").close().expect("nothing fails");
}

/// Goal: while the journal is apart each member of each disk group is made whole on another device.
/// Method: one after the other is replaced, then each is away in turn after a crash.
#[test]
fn each_member_is_made_whole_with_the_journal_apart() {
    for first in [(Layout::Mirror, 2, true), (RAID5, 3, true)] {
        let specs = [first, (Layout::Mirror, 2, false)];
        let (devices, made) = make(&specs, POOL_BYTES);
        made.expect("it fits");
        let members = devices.len();
        let images = devices.iter().map(|device| device.image());
        let new = (0..members).map(|_| Image::blank(POOL_BYTES));
        let devices = devices_of(images.chain(new).collect());
        let pool = open(&devices[..members]).expect("it was made");
        for slot in 0..members {
            put(&pool, &format!("f{slot}"), &content(slot, 1, 150_000)).expect("there is room");
            let new: SharedDevice = Arc::<SimDevice>::clone(&devices[members + slot]);
            let id = u8::try_from(slot + 20).expect("few");
            pool.devices().replace_member(slot, new, [id; 16]).expect("the others have all");
            for round in 0.. {
                pool.tick().expect("nothing fails");
                if pool.devices().members().iter().all(|it| it.member.is_online()) {
                    break;
                }
                assert!(round < 500, "{first:?}: slot {slot} gets no further: {:?}", pool.jobs());
            }
        }
        drop(pool);
        for away in 0..members {
            let left = (0..members).filter(|slot| *slot != away);
            let left = devices_of(left.map(|slot| devices[members + slot].image()).collect());
            let pool = open(&left).unwrap_or_else(|error| panic!("{first:?}, {away}: {error}"));
            for slot in 0..members {
                let found = get(&pool, &format!("f{slot}"));
                assert!(found == Some(content(slot, 1, 150_000)), "{first:?}, {away}: {slot}");
            }
        }
    }
}
