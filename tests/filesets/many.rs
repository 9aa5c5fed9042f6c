//! Many filesets in one pool: what is asked of it costs what it tells, and not what is there.

use std::sync::Arc;
use std::time::Instant;

use engine::api::FsError;
use engine::{Pool, PoolOpenOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions};
use whole_system::soak::memory_bytes_peak;

use super::{expect_clean, free_all, name, new_fileset};

/// Filesets of a run in CI; `HOLDFAST_FILESETS` says otherwise.
const FILESETS: u64 = 2_000;
/// Filesets below one.
const BELOW: u64 = 100;
/// Filesets of which snapshots are taken, and that are deleted, at most.
const SOME: u64 = 100;
/// Bytes that a fileset takes in the pool, its first pages and its share of the log, and more.
const BYTES_EACH: u64 = 48 << 10;
/// Device reads of an open, and of a list of a few filesets, at most.
const OPEN_READS: u64 = 400;
/// Device reads of a list beside those of the pages of their table.
const LIST_READS: u64 = 60;

/// Does `work` so often, and returns how many microseconds each time took: told, and held against
/// nothing.
fn timed(times: u64, mut work: impl FnMut(u64)) -> u128 {
    let begun = Instant::now();
    (0..times).for_each(&mut work);
    begun.elapsed().as_micros() / u128::from(times.max(1))
}

fn open(device: &Arc<SimDevice>) -> Pool {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let opened = Pool::open(shared, Arc::new(ManualClock::new()), PoolOpenOptions::default());
    opened.expect("the pool opens")
}

/// Goal: a pool with many filesets is opened, asked, listed in parts, changed and checked as one
/// with few: an open reads none of them, a list reads each page of their table once, and no
/// operation on one looks at all. Method: filesets below some that have a hundred each; device
/// reads are counted; names are held against those that were made.
#[test]
fn many_filesets_cost_what_is_asked_of_them() {
    let count = std::env::var("HOLDFAST_FILESETS").ok().and_then(|text| text.parse().ok());
    let count = count.unwrap_or(FILESETS);
    let bytes = (256 << 20) + (count * BYTES_EACH).next_multiple_of(1 << 20);
    let device = SimDevice::new(bytes, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = engine::PoolCreateOptions::new(bytes, [3; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&device);
    let name_of = |number: u64| match number % BELOW {
        0 => format!("p{number:06}"),
        _ => format!("p{:06}/f{number:06}", number / BELOW * BELOW),
    };
    let made = timed(count, |number| {
        let new = new_fileset(number.to_le_bytes()[0]);
        pool.fileset_admin().create_fileset(&name(&name_of(number)), &new).expect("there is room");
    });
    let refused = pool.fileset_admin().delete_fileset(&name(&name_of(0)));
    let refused = refused.expect_err("others are below it").to_string();
    assert!(refused.contains("p000000/f000099"), "{refused}");
    pool.close().expect("nothing fails");
    drop(pool);
    let reads = || device.counts().reads();
    let before = reads();
    let pool = open(&device);
    let opened = reads() - before;
    assert!(opened < OPEN_READS, "{opened} reads of an open");
    assert_eq!(pool.status().full, None, "it is told beside them");
    let before = reads();
    let (mut found, mut from) = (Vec::new(), 0);
    let told = timed(1, |_| {
        while let Some(part) =
            Some(pool.fileset_admin().filesets_from(from, 100).expect("the table can be read"))
            && let Some(last) = part.last()
        {
            from = last.slot + 1;
            found.extend(part.into_iter().map(|info| info.name));
        }
    });
    let listed = reads() - before;
    // A page of the table has seven, and its pages lie side by side.
    assert!(listed < LIST_READS + count / 30, "{listed} reads of a list of {count}");
    found.retain(|name| name != "root");
    assert_eq!(found, (0..count).map(name_of).collect::<Vec<_>>());
    let before = reads();
    let (one, other) = (name_of(count / 2 + 1), name_of(count - 1));
    pool.fileset_admin().delete_fileset(&name(&one)).expect("none is below it");
    pool.fileset_admin().create_fileset(&name(&one), &new_fileset(1)).expect("there is room");
    let again = pool.fileset_admin().create_fileset(&name(&other), &new_fileset(2));
    assert!(matches!(again, Err(FsError::FilesetExists { .. })), "{again:?}");
    free_all(&pool);
    let changed = reads() - before;
    assert!(changed < OPEN_READS, "{changed} reads of some changes");
    let some = |number: u64| name(&name_of(number * BELOW + 1));
    let snapshot = NamePart::new("c").expect("it is a name");
    let taken = timed(count.min(SOME * BELOW) / BELOW, |number| {
        pool.fileset_admin()
            .create_snapshot(&some(number), &snapshot, [7; 16])
            .expect("there is room");
    });
    let given_up = timed(count.min(SOME * BELOW) / BELOW, |number| {
        pool.fileset_admin().delete_snapshot(&some(number), &snapshot).expect("nobody needs it");
    });
    let deleted = timed(count.min(SOME * BELOW) / BELOW, |number| {
        pool.fileset_admin().delete_fileset(&some(number)).expect("none is below it");
    });
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    let before = reads();
    expect_clean(&shared, "at the end").unwrap_or_else(|found| panic!("{found}"));
    let checked = reads() - before;
    println!(
        "{count} filesets: {opened} reads of an open, {listed} of a list, {changed} of a deletion \
         and more, {checked} of a check, {} MiB",
        memory_bytes_peak() >> 20
    );
    println!(
        "microseconds: {made} to make one, {told} to list all, {taken} and {given_up} to take and \
         delete a snapshot of one, {deleted} to delete one"
    );
}
