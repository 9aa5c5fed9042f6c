//! Who reads parity of a pool in stripes: reads of what a member does not give, repairs, jobs; and
//! never a write.
//!
//! That no write of stripes reads anything of a member is asserted where it is handed to members,
//! in every suite (`storage::volume`, R5).

use engine::Pool;
use storage::device::SharedDevice;
use storage::device::sim::Image;
use storage::volume::ParityReader;

use super::raid5::{MEMBER_BYTES, content, new_raid5};
use super::rebuild::{finish, open};
use super::{devices_of, get, put};

/// Returns the bytes of parity that each reader has read of all members.
fn read_of(pool: &Pool) -> Vec<u64> {
    let members = pool.devices().members();
    let of = |reader: &ParityReader| {
        members.iter().map(|member| member.counts.parity_reads.of(*reader)).sum()
    };
    ParityReader::ALL.iter().map(of).collect()
}

/// Returns who has read parity while `work` was done, what lies between units apart.
fn readers(pool: &Pool, work: impl FnOnce()) -> Vec<ParityReader> {
    let before = read_of(pool);
    work();
    let both = ParityReader::ALL.into_iter().zip(read_of(pool).into_iter().zip(before));
    let readers = both.filter(|(_, (now, before))| now > before).map(|(reader, _)| reader);
    readers.filter(|reader| *reader != ParityReader::Beside).collect()
}

/// Goal: each reason to read parity is counted as what it is, and writes have none, whoever is
/// away.
#[test]
fn parity_is_read_for_what_is_counted_and_for_no_write() {
    let count = 4;
    let images = new_raid5(count).iter().map(|device| device.image()).collect::<Vec<Image>>();
    let devices = devices_of([images, vec![Image::blank(MEMBER_BYTES)]].concat());
    let pool = open(&devices[..count].to_vec()).expect("all are there");
    let write = |version: u8| {
        for number in 0..12 {
            let bytes = content(number ^ version, 60_000);
            put(&pool, &format!("file{number}"), &bytes).expect("there is room");
        }
        pool.checkpoint().expect("nothing fails");
        pool.tick().expect("nothing fails");
    };
    let read = |version: u8| {
        for number in 0..12 {
            let found = get(&pool, &format!("file{number}"));
            assert!(found == Some(content(number ^ version, 60_000)), "file{number}");
        }
    };
    assert_eq!(readers(&pool, || (0..4).for_each(write)), []);
    assert_eq!(readers(&pool, || read(3)), []);
    let scrub = || {
        assert!(pool.devices().scrub().expect("there is something to compare"));
        let is_done = |_| {
            pool.tick().expect("nothing fails");
            pool.devices().scrub_report().filter(|report| report.is_done)
        };
        (0..1000).find_map(is_done).expect("it ends");
    };
    assert_eq!(readers(&pool, scrub), [ParityReader::Scrub]);
    pool.devices().fail_member(1).expect("the others have all");
    assert_eq!(readers(&pool, || (4..8).for_each(write)), []);
    let found = readers(&pool, || read(7));
    assert!(found.contains(&ParityReader::Degraded) && found.len() <= 2, "{found:?}");
    let new: SharedDevice = devices[count].clone();
    pool.devices().replace_member(1, new, [77; 16]).expect("the others have all");
    assert_eq!(readers(&pool, || finish(&pool)), [ParityReader::Rebuild]);
    assert_eq!(readers(&pool, || (8..12).for_each(write)), []);
    assert_eq!(readers(&pool, || read(11)), []);
}
