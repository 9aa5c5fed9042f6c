//! Goal: whichever request fails, nothing acknowledged is lost, and nobody is left without an
//! answer.
//!
//! Method: a fixed workload, once for each request that it makes, with that one failing, or it and
//! all that follow. Afterwards the pool says why it takes no changes, still reads, and opens again.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::Pool;
use engine::api::{Caller, FileSystem, FsError, FsResult};
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions};
use storage::device::{RequestKind, SharedDevice};

use super::{content, defects, device_of, find, make, new_pool, open, read};

/// No workload here makes more requests of one kind.
const REQUESTS_MAX: u64 = 2000;
/// Requests, one after the other, whose failure does no harm: behind so many none hits any more.
const HARMLESS_MAX: u64 = 12;

/// What the workload has been promised: content by name.
type Promised = BTreeMap<String, Vec<u8>>;

/// Works until something fails.
fn work(pool: &Pool, promised: &mut Promised) -> FsResult<()> {
    let caller = Caller::root();
    for round in 0..6_u64 {
        let (small, large) = (format!("small{round}"), format!("large{round}"));
        make(pool, &small)?;
        let ino = find(pool, &small)?;
        let bytes = content(round, 3000);
        pool.write(&caller, ino, 0, &bytes)?;
        pool.fsync(&Caller::root(), ino, false)?;
        promised.insert(small.clone(), bytes);
        make(pool, &large)?;
        let ino = find(pool, &large)?;
        let bytes = content(100 + round, 200_000);
        pool.write(&caller, ino, 0, &bytes)?;
        pool.fsync(&Caller::root(), ino, false)?;
        promised.insert(large, bytes);
        if round % 2 == 1 {
            let (old, new) = (format!("large{}", round - 1), format!("moved{round}"));
            let root = pool.root();
            // From here to the sync it has either name: no promise names it.
            let bytes = promised.remove(&old).expect("made in the round before");
            let mode = engine::api::RenameMode::Replace;
            pool.rename(&caller, (root, old.as_bytes()), (root, new.as_bytes()), mode, None)?;
            promised.remove(&small);
            pool.unlink(&caller, root, small.as_bytes(), None)?;
            pool.sync()?;
            promised.insert(new, bytes);
            pool.checkpoint()?;
        }
        pool.tick()?;
        for (name, bytes) in promised.iter() {
            assert_eq!(read(pool, name)?, *bytes, "{name}");
        }
    }
    pool.close()
}

fn is_told(error: &FsError) {
    let text = error.to_string();
    assert!(matches!(error, FsError::Io { .. } | FsError::ReadOnly { .. } | FsError::NoSpace));
    assert!(text.contains("sim:0") || *error == FsError::NoSpace, "does not say where: {text}");
}

/// Works with `faults`; returns whether they hit, judged by the number of requests and the answers.
fn work_with(base: &Image, faults: FaultPlan, kind: Option<RequestKind>) -> bool {
    // Flushes fail where commits need them.
    let has_write_through = kind != Some(RequestKind::Flush);
    let options = SimOptions { faults: faults.clone(), has_write_through, ..SimOptions::default() };
    let device = SimDevice::open(base.clone(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let mut promised = Promised::new();
    let mut failed = false;
    match open(&shared) {
        Err(error) => {
            failed = true;
            assert!(error.to_string().contains("sim:0"), "does not say where: {error}");
        }
        Ok(pool) => {
            if let Err(error) = work(&pool, &mut promised) {
                failed = true;
                is_told(&error);
                after_failure(&pool, &promised, kind, &faults);
            }
        }
    }
    for image in [device.image(), device.crash_image(&mut Prng::from_seed(1))] {
        let again = device_of(&image);
        let pool = open(&again).unwrap_or_else(|error| panic!("{faults:?}: reopen: {error}"));
        for (name, bytes) in &promised {
            let found = read(&pool, name).unwrap_or_else(|error| panic!("{faults:?}: {error}"));
            assert_eq!(found, *bytes, "{faults:?}: {name}");
        }
        pool.close().expect("nothing fails any more");
        assert_eq!(defects(&again), None, "{faults:?}");
    }
    failed
}

/// A failed write or flush: the pool takes no changes, says why, and still reads.
fn after_failure(pool: &Pool, promised: &Promised, kind: Option<RequestKind>, faults: &FaultPlan) {
    let is_read = kind == Some(RequestKind::Read);
    if !is_read && pool.status().read_only.is_some() {
        let error = make(pool, "late").expect_err("the pool takes a change after a failed write");
        assert!(matches!(error, FsError::ReadOnly { .. }), "{faults:?}: {error}");
        assert!(error.to_string().contains("sim:0"), "{error}");
    }
    if !is_read {
        for (name, bytes) in promised {
            let found = read(pool, name).unwrap_or_else(|error| panic!("{faults:?}: {error}"));
            assert_eq!(found, *bytes, "{faults:?}: {name} in the failed pool");
        }
    }
    // Whatever it answers, it answers.
    let _ = pool.sync();
    let _ = pool.tick();
    let _ = pool.close();
}

fn each_request(kind: RequestKind, persists: bool) -> u64 {
    each_fault(kind, |nth| Fault::Fail { kind, nth, persists })
}

/// Works once with each fault in turn, until none hits; returns how many did.
fn each_fault(kind: RequestKind, fault: impl Fn(u64) -> Fault) -> u64 {
    let base = new_pool();
    let (mut hits, mut harmless) = (0, 0);
    for nth in 0..REQUESTS_MAX {
        let faults = FaultPlan::none().with(fault(nth));
        if work_with(&base, faults, Some(kind)) {
            (hits, harmless) = (hits + 1, 0);
            continue;
        }
        // Reads of a page that is there twice may be answered all the same, and of the log one that
        // fails once, for its pages are read again.
        harmless += 1;
        if harmless > HARMLESS_MAX {
            return hits;
        }
    }
    panic!("the workload never succeeds")
}

#[test]
fn a_write_that_fails_once_loses_nothing() {
    let hits = each_request(RequestKind::Write, false);
    assert!(hits > 40, "{hits}");
}

#[test]
fn writes_that_fail_from_then_on_lose_nothing() {
    let hits = each_request(RequestKind::Write, true);
    assert!(hits > 40, "{hits}");
}

#[test]
fn a_flush_that_fails_loses_nothing() {
    let hits = each_request(RequestKind::Flush, false);
    assert!(hits > 20, "{hits}");
}

#[test]
fn reads_that_fail_are_told_and_harm_nothing() {
    for persists in [false, true] {
        let hits = each_request(RequestKind::Read, persists);
        assert!(hits > 5, "{hits}");
    }
}

#[test]
fn a_write_that_finds_no_room_below_loses_nothing() {
    for persists in [false, true] {
        let hits = each_fault(RequestKind::Write, |nth| Fault::NoRoom { nth, persists });
        assert!(hits > 40, "{hits}");
    }
}

#[test]
fn a_device_without_room_below_loses_nothing() {
    let base = new_pool();
    let step = 64 << 10;
    for number in 0..REQUESTS_MAX {
        let allocated_bytes = base.allocated_bytes() + number * step;
        let faults = FaultPlan::none().with(Fault::Full { allocated_bytes });
        if !work_with(&base, faults, None) {
            assert!(number > 5, "it failed {number} times");
            return;
        }
    }
    panic!("the workload never succeeds")
}
