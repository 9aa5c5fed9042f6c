//! Goal: what a read has asked the device for is not given to others before the device has
//! answered.
//!
//! Method: in virtual time, on a device that looks at a place only long after it was asked to. Two
//! files are read together; meanwhile one of them is cut to nothing, and others write all that is
//! free several times over.

use std::sync::Arc;

use engine::api::{Caller, FileReadRequest, FileSystem, Ino, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::{ManualClock, SimClock};
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, SimThreadTask, current, sleep_until};
use storage::device::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice,
    PendingRequest, RequestKind, SharedDevice, Ticket,
};

use super::{content, find, make};

static ROOT: Caller = Caller::root();

const POOL_BYTES: u64 = 10 << 20;
const BLOCK_BYTES: usize = 16 << 10;
/// Three segments of blocks.
const FILE_BYTES: usize = 21 * BLOCK_BYTES;
/// What stays free when others have written.
const SPARE_BYTES: u64 = 256 << 10;
/// How long the device waits before it looks.
const LATE_NS: u64 = 1_000_000_000;
/// How often all that is free is written: to be given out, a freed segment has to be found empty.
const ROUNDS: u64 = 4;

/// A device that does a read of data when it answers it, and not before [`LATE_NS`].
#[derive(Debug)]
struct LateReads(SharedDevice);

struct Late(SharedDevice, DeviceOperation);

impl PendingRequest for Late {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        if let Some(scheduler) = current() {
            sleep_until(scheduler.now_ns() + LATE_NS);
        }
        self.0.submit(IoPurpose::Data, self.1).wait()
    }
}

impl Device for LateReads {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if purpose == IoPurpose::Data && operation.kind() == RequestKind::Read {
            return Ticket::new(Box::new(Late(Arc::clone(&self.0), operation)));
        }
        self.0.submit(purpose, operation)
    }
}

/// Returns a device with a pool of small segments that has two files of some segments each, and
/// one of nothing.
fn pool_with_files(names: [&str; 2]) -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let mut create = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    create.geometry.journal_bytes = Some(1 << 20);
    create.geometry.segment_bytes = Some(128 << 10);
    create.geometry.group_bytes = Some(2 << 20);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    let pool = super::open(&device).expect("it was just made");
    for (seed, name) in (0..).zip(names) {
        let file = make(&pool, name).expect("there is room");
        let written = pool.write(&Caller::root(), file, 0, &content(seed, FILE_BYTES));
        written.expect("there is room");
    }
    make(&pool, "others").expect("there is room");
    pool.close().expect("memory does not fail");
    device
}

/// Cuts `victim` to nothing, and writes what is free several times over.
fn reuse(pool: &Pool, victim: Ino) {
    let nothing = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    pool.setattr(&Caller::root(), victim, &nothing, None).expect("it frees");
    let others = find(pool, "others").expect("it is there");
    for round in 0..ROUNDS {
        pool.checkpoint().expect("memory does not fail");
        let free =
            pool.statfs(&Caller::root(), pool.main_fileset()).expect("it is open").available_bytes;
        for offset in (0..free.saturating_sub(SPARE_BYTES)).step_by(BLOCK_BYTES) {
            let bytes = content(100 + round, BLOCK_BYTES);
            pool.write(&Caller::root(), others, offset, &bytes).expect("there is room");
        }
        pool.sync().expect("memory does not fail");
        pool.setattr(&Caller::root(), others, &nothing, None).expect("it frees");
    }
}

fn read_while_one_is_cut(victim: usize) {
    const SEED: u64 = 1;
    let names = ["first", "second"];
    let device: SharedDevice = Arc::new(LateReads(pool_with_files(names)));
    let scheduler = Scheduler::new(SEED);
    let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("it was closed");
    let files = names.map(|name| find(&pool, name).expect("it is there"));
    let asked = files.map(|ino| FileReadRequest {
        caller: &ROOT,
        ino,
        offset: 0,
        length_bytes: FILE_BYTES,
    });
    let answers = Mutex::new(vec![None, None]);
    let jobs: Vec<SimThreadTask<'_>> = vec![
        (
            "reader".to_owned(),
            Box::new(|| {
                pool.read_each(&asked, &mut |index, read| {
                    answers.lock()[index] = Some(read.map(<[&[u8]]>::concat));
                });
            }),
        ),
        (
            "writer".to_owned(),
            Box::new(|| {
                sleep_until(LATE_NS / 2);
                reuse(&pool, files[victim]);
            }),
        ),
    ];
    scheduler.run(jobs);
    for (seed, answer) in (0..).zip(answers.into_inner()) {
        let bytes = answer.expect("it was told").expect("memory does not fail");
        assert!(bytes == content(seed, FILE_BYTES), "file {seed} of which {victim} was cut");
    }
    pool.close().expect("memory does not fail");
}

#[test]
fn a_place_that_is_being_read_is_not_given_to_others() {
    read_while_one_is_cut(0);
}

#[test]
fn a_place_that_is_read_behind_another_is_not_given_to_others() {
    read_while_one_is_cut(1);
}
