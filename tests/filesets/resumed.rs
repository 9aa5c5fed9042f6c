//! What a crash has a job do again.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode};
use engine::{Pool, PoolCreateOptions};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions, Strategy};
use testkit::crash::judge_cuts;

use super::{expect_clean, free_all, name, open};

const POOL_BYTES: u64 = 512 << 20;
const FILES: u64 = 30_000;
/// Of so many cuts one is gone on from to the end.
const ENDED_EACH: usize = 256;
/// What one step of the job frees, in thousandths of all: about 4,100 files.
const STEP_PERMILLE: u64 = 140;
/// Small enough to lie in the inode.
const CONTENT_BYTES: usize = 40;

fn change_all(pool: &Pool, files: &[Ino], byte: u8) {
    for ino in files {
        let written = pool.write(&Caller::root(), *ino, 0, &[byte; CONTENT_BYTES]);
        written.expect("there is room");
    }
}

fn take_snapshot(pool: &Pool, snapshot: &str) -> NamePart {
    let snapshot = NamePart::new(snapshot).expect("a name");
    pool.fileset_admin().create_snapshot(&name("root"), &snapshot, [9; 16]).expect("there is room");
    snapshot
}

/// Returns how many thousandths are freed of what is being freed.
fn freed_permille(pool: &Pool) -> Option<u64> {
    let all = pool.fileset_admin().filesets().expect("they can be read");
    all.into_iter().find_map(|it| it.freed_permille)
}

/// Goal: a crash has at most one step of the deletion of a snapshot done again, where that is more
/// than a hundredth. Method: the snapshot has a page of its own for each in the fileset. What is
/// durable at each write goes on by no more than that, and from some the deletion goes on to the
/// end.
#[test]
fn a_deletion_goes_on_where_it_was() {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = open(&shared, None);
    let files = (0..FILES).map(|number| {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let file = number.to_string();
        let made = pool.create(&Caller::root(), pool.root(), file.as_bytes(), new, None);
        made.map(|attr| attr.ino)
    });
    let files: Vec<Ino> = files.collect::<Result<_, _>>().expect("there is room");
    let old = take_snapshot(&pool, "old");
    change_all(&pool, &files, 1);
    // What comes after it is a snapshot: a job frees it.
    take_snapshot(&pool, "new");
    change_all(&pool, &files, 2);
    pool.close().expect("nothing fails");
    drop(pool);

    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::open(device.durable_image(), options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let pool = open(&shared, None);
    pool.fileset_admin().delete_snapshot(&name("root"), &old).expect("nobody holds it");
    let begun = device.position();
    free_all(&pool);
    drop(pool);

    let seen = Mutex::new(BTreeSet::from([0, 1000]));
    let strategy =
        Strategy { exhaustive_writes_max: 0, random_subsets: 0, torn_variants: 0, seed: 0 };
    let begun = |at: usize| at >= begun;
    judge_cuts("a deletion", &device.recording(), &strategy, begun, |cut| {
        if !cut.known {
            return Ok(());
        }
        let shared: SharedDevice = SimDevice::open(cut.image.clone(), SimOptions::default());
        let pool = open(&shared, None);
        seen.lock().expect("nobody panics").extend(freed_permille(&pool));
        if cut.at % ENDED_EACH != 0 {
            return Ok(());
        }
        free_all(&pool);
        pool.close().map_err(|error| error.to_string())?;
        drop(pool);
        expect_clean(&shared, "afterwards")
    });
    let durable = seen.into_inner().expect("nobody panics");
    let steps = durable.iter().zip(durable.iter().skip(1));
    let longest = steps.map(|(before, after)| after - before).max().expect("it goes on");
    println!("{} states, at most {longest} in 1,000 again", durable.len());
    assert!(longest <= STEP_PERMILLE, "{durable:?}");
}
