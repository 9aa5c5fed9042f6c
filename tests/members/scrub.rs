//! Scrub: what is bad on one member is written again with what another has, and nothing else.

use engine::api::{Caller, FileSystem};
use engine::{Pool, ScrubReport};
use format::page::{PageHeader, PageKind};
use runtime::prng::Prng;
use storage::device::RequestKind;
use storage::device::sim::{Fault, FaultPlan};
use storage::pool::read_superblock;

use super::{Devices, NOTHING, POOL_BYTES, get, new_mirror, open, put, reopened, unmended};

const FILES: usize = 40;

fn content(name: usize) -> Vec<u8> {
    let length = 1000 + name * 3000;
    format!("file {name} ").bytes().cycle().take(length).collect()
}

fn filled() -> Devices {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = open(&devices).expect("a new mirror opens");
    for name in 0..FILES {
        put(&pool, &format!("f{name}"), &content(name)).expect("there is room");
    }
    pool.close().expect("nothing fails");
    drop(pool);
    reopened(&devices, &[0, 1])
}

fn scrub(pool: &Pool) -> ScrubReport {
    assert!(pool.devices().scrub().expect("there are two"));
    for _ in 0..1000 {
        pool.tick().expect("nothing fails");
        let report = pool.devices().scrub_report().expect("one was begun");
        if report.is_done {
            return report;
        }
    }
    panic!("the scrub does not end: {:?}", pool.jobs());
}

/// Goal: rot on one member is repaired from the other, wherever it is, and then that member alone
/// has everything. Method: bits all over the groups turn over.
#[test]
fn what_rots_on_one_member_is_written_again_from_the_other() {
    let mut repaired = 0;
    for seed in 0..8 {
        let devices = filled();
        let pool = open(&devices).expect("it was closed");
        assert_eq!(scrub(&pool).differing, 0, "nothing has rotted");
        let (mut prng, bad) = (Prng::from_seed(seed), usize::from(seed % 2 == 0));
        let groups = pool.status().geometry.groups_offset;
        for _ in 0..3000 {
            let offset = groups + prng.below(POOL_BYTES - (128 << 10) - groups);
            devices[bad].rot(offset, 1 << prng.below(8));
        }
        let found = scrub(&pool);
        assert!(found.repaired > 0, "seed {seed}: {found:?}");
        assert_eq!(unmended(&found), NOTHING, "seed {seed}: {found:?}");
        repaired += found.repaired;
        let again = scrub(&pool);
        assert_eq!((again.repaired, unmended(&again)), (0, NOTHING), "seed {seed}: {again:?}");
        assert_eq!(again.differing, again.unused);
        pool.close().expect("nothing fails");
        drop(pool);
        let alone = reopened(&devices, &[bad]);
        let pool = open(&alone).expect("it has all");
        for name in 0..FILES {
            let found = get(&pool, &format!("f{name}"));
            assert!(found == Some(content(name)), "seed {seed}: file {name} is another");
        }
    }
    println!("{repaired} repaired");
}

/// Goal: a write that one member has lost, and told nobody of, is found: the other has the newer.
#[test]
fn a_write_that_one_member_has_lost_is_written_again() {
    for nth in 0..40 {
        let devices = filled();
        let pool = open(&devices).expect("it was closed");
        let faults = vec![Fault::LoseWrite { purpose: None, nth }];
        devices[1].arm(FaultPlan { faults });
        for name in 0..6 {
            put(&pool, &format!("f{name}"), &vec![7; 20_000]).expect("both take it");
        }
        pool.checkpoint().expect("both take it");
        let found = scrub(&pool);
        assert_eq!(unmended(&found), NOTHING, "{nth}: {found:?}");
        pool.close().expect("both take it");
        drop(pool);
        let alone = reopened(&devices, &[1]);
        let Ok(pool) = open(&alone) else { continue };
        for name in 6..FILES {
            let found = get(&pool, &format!("f{name}"));
            assert!(found == Some(content(name)), "{nth}: file {name} is another");
        }
    }
}

/// Goal: a block that moved, and is older than what lay there in an earlier life of its segment, is
/// repaired all the same. Method: the cleaner moves old files into segments that young ones had;
/// bits of each block turn over on one member.
#[test]
fn blocks_that_moved_are_not_taken_for_those_that_lay_there() {
    for bad in 0..2 {
        let devices = reopened(&new_mirror(2), &[0, 1]);
        let pool = open(&devices).expect("a new mirror opens");
        let keeps = |name: usize| name < 120 && name.is_multiple_of(4);
        let block = |name: usize| vec![u8::try_from(name % 251).expect("small"); 16 << 10];
        let (caller, root) = (Caller::root(), pool.root());
        // So many that there is no segment which never had any.
        for round in [0..120, 120..280, 280..440, 440..600] {
            for name in round.clone() {
                put(&pool, &format!("f{name}"), &block(name)).expect("there is room");
            }
            pool.checkpoint().expect("nothing fails");
            for name in round.filter(|name| !keeps(*name)) {
                let name = format!("f{name}");
                let ino = pool.lookup(&caller, root, name.as_bytes()).expect("it is there").ino;
                pool.unlink(&caller, root, name.as_bytes(), None).expect("it is there");
                pool.forget(ino, 2);
            }
            pool.checkpoint().expect("nothing fails");
        }
        for _ in 0..8 {
            pool.tick().expect("nothing fails");
            pool.checkpoint().expect("nothing fails");
            pool.clean().expect("nothing fails");
        }
        pool.checkpoint().expect("nothing fails");
        let groups = pool.status().geometry.groups_offset;
        for offset in (groups..POOL_BYTES - (128 << 10)).step_by(4096) {
            devices[bad].rot(offset + 77, 4);
        }
        let found = scrub(&pool);
        assert_eq!(unmended(&found), NOTHING, "{found:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        let alone = reopened(&devices, &[bad]);
        let pool = open(&alone).expect("it has all");
        for name in (0..120).filter(|name| keeps(*name)) {
            assert!(get(&pool, &format!("f{name}")) == Some(block(name)), "file {name}");
        }
    }
}

/// Goal: sectors that cannot be read are written again, and a member that takes no write fails.
#[test]
fn what_cannot_be_read_is_written_again() {
    let devices = filled();
    let pool = open(&devices).expect("it was closed");
    let kind = RequestKind::Read;
    let faults = (0..30).map(|nth| Fault::Fail { kind, nth: nth * 2, persists: false });
    devices[1].arm(FaultPlan { faults: faults.collect() });
    let found = scrub(&pool);
    assert_eq!(unmended(&found), NOTHING, "{found:?}");
    assert!(pool.devices().members().iter().all(|member| member.member.is_online()));
}

/// Goal: a long read over sectors that cannot be read, some on one member and some on the other, is
/// answered with each block from where it can be read.
#[test]
fn a_long_read_takes_each_block_from_where_it_can_be_read() {
    let devices = reopened(&new_mirror(2), &[0, 1]);
    let pool = open(&devices).expect("a new mirror opens");
    let block = |number: u64| (0xb10c_0000 + number).to_le_bytes().repeat((16 << 10) / 8);
    let all: Vec<u8> = (0..32).flat_map(block).collect();
    put(&pool, "long", &all).expect("there is room");
    pool.close().expect("nothing fails");
    drop(pool);
    for (first, second) in [(3, 9), (0, 1), (20, 4)] {
        let devices = reopened(&devices, &[0, 1]);
        for (member, number) in [(0, first), (1, second)] {
            let (start, mut found) = (block(number), None);
            devices[member].image().for_each_page(|offset, bytes| {
                let is_it = bytes == &start[..bytes.len()];
                found = found.or(is_it.then_some(offset));
            });
            let offset = found.expect("it is on both");
            devices[member].arm(FaultPlan { faults: vec![Fault::BadSector { offset }] });
        }
        let pool = open(&devices).expect("it was closed");
        assert!(get(&pool, "long") == Some(all.clone()), "{first} and {second}");
        assert!(pool.devices().members().iter().all(|member| member.member.is_online()));
    }
}

/// Goal: a page of metadata in use that no device gives is told: as lost where it has rotted on
/// both,
/// as unread where neither can be read. Method: all pages of maps and directories, rotten in
/// different places, or in bad sectors.
#[test]
fn a_page_of_metadata_that_nobody_gives_is_told() {
    for is_rotten in [true, false] {
        let devices = filled();
        let label = read_superblock(devices[0].as_ref()).expect("it has one").current;
        let image = devices[0].image();
        let geometry = &label.geometry;
        let groups = geometry.groups_offset..geometry.device_bytes - (128 << 10);
        let is_page = |offset: &u64| {
            let mut bytes = Box::new([0; 4096]);
            image.read(*offset, &mut bytes[..]);
            let Some(place) = geometry.place_at(*offset) else { return false };
            let header = PageHeader::decode(&bytes, label.pool_id, place);
            header.is_ok_and(|it| matches!(it.kind, PageKind::Map | PageKind::Directory))
        };
        let pages: Vec<u64> = groups.step_by(4096).filter(is_page).collect();
        assert!(!pages.is_empty());
        for (device, mask) in devices.iter().zip([1, 2]) {
            if is_rotten {
                pages.iter().for_each(|offset| device.rot(offset + 100, mask));
            } else {
                let bad = pages.iter().map(|offset| Fault::BadSector { offset: *offset });
                device.arm(bad.fold(FaultPlan::none(), FaultPlan::with));
            }
        }
        let pool = open(&devices).expect("what it needs is there");
        let found = scrub(&pool);
        println!("{} pages: {found:?}", pages.len());
        let (told, other) =
            if is_rotten { (found.lost, found.unread) } else { (found.unread, found.lost) };
        assert!(told > 0 && other == 0, "rotten: {is_rotten}: {found:?}");
    }
}
