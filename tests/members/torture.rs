//! Torture on a mirror: several clients at once, power cuts and faults by seed. The members are two
//! halves of one simulated device, so that each cut leaves any subset of what each had not flushed.

use std::ops::Range;
use std::sync::Arc;

use engine::{CreateOptions, OpenOptions, Pool};
use format::geometry::Geometry;
use format::members::Layout;
use storage::device::{
    Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose, SharedDevice,
    Ticket,
};
use storage::volume::{Opening, Volume};
use testkit::torture::{Ground, JobStep, Opened, Options, Start, run};

const MIB: u64 = 1 << 20;
const MEMBER_BYTES: u64 = 24 * MIB;
/// Seeds of a run, times `HOLDFAST_SOAK`.
const SEEDS: u64 = 12;

/// A part of a device that is a device.
#[derive(Debug)]
struct Half {
    info: DeviceInfo,
    inner: SharedDevice,
    start: u64,
}

struct Passed(Ticket);

impl PendingRequest for Passed {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        self.0.wait()
    }
}

impl Half {
    fn of(inner: &SharedDevice, half: u64) -> SharedDevice {
        let info = DeviceInfo {
            name: format!("half {half}"),
            size_bytes: MEMBER_BYTES,
            ..inner.info().clone()
        };
        Arc::new(Half { info, inner: Arc::clone(inner), start: half * MEMBER_BYTES })
    }
}

impl Device for Half {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        let end = operation.offset().unwrap_or(0) + operation.length_bytes();
        assert!(end <= MEMBER_BYTES, "a request past the end of a member");
        let operation = match operation {
            Operation::Read { offset, buffer } => {
                Operation::Read { offset: offset + self.start, buffer }
            }
            Operation::Write { offset, data } => {
                Operation::Write { offset: offset + self.start, data }
            }
            Operation::WriteThrough { offset, data } => {
                Operation::WriteThrough { offset: offset + self.start, data }
            }
            Operation::Flush => Operation::Flush,
            Operation::Discard { offset, length_bytes } => {
                Operation::Discard { offset: offset + self.start, length_bytes }
            }
        };
        Ticket::new(Box::new(Passed(self.inner.submit(purpose, operation))))
    }
}

fn halves(device: &SharedDevice) -> Vec<SharedDevice> {
    [0, 1].map(|half| Half::of(device, half)).to_vec()
}

fn opening(device: &SharedDevice) -> Opening {
    Opening { devices: halves(device), accepts_missing: false }
}

fn create_options() -> CreateOptions {
    let mut options = CreateOptions::new(MEMBER_BYTES, [7; 64]);
    options.geometry.journal_bytes = Some(MIB);
    options.geometry.segment_bytes = Some(256 << 10);
    options.geometry.group_bytes = Some(4 * MIB);
    options
}

struct MirrorGround;

impl Ground for MirrorGround {
    fn device_bytes(&self, _: u64) -> u64 {
        2 * MEMBER_BYTES
    }

    fn log_range(&self, _: u64) -> Range<u64> {
        let geometry = Geometry::plan(&create_options().geometry).expect("it can be made");
        geometry.journal_offset..geometry.journal_offset + geometry.journal_bytes
    }

    fn format(&self, start: &Start) -> Result<(), String> {
        let (devices, clock) = (halves(&start.device), &*start.clock);
        let made = Pool::create_on(&devices, Layout::Mirror, clock, &create_options());
        made.map_err(|error| error.to_string())
    }

    fn open(&self, start: &Start) -> Result<Opened, String> {
        let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
        let pool = Pool::open_members(opening(&start.device), Arc::clone(&start.clock), options);
        let pool = Arc::new(pool.map_err(|error| error.to_string())?);
        let worker = Arc::clone(&pool);
        let tick: JobStep = Box::new(move || worker.tick().ok().map(|()| 250_000_000));
        let (failing, closing) = (Arc::clone(&pool), Arc::clone(&pool));
        let has_failed = Box::new(move || failing.status().read_only.is_some());
        let close = Box::new(move || closing.close().map_err(|error| error.to_string()));
        let jobs = vec![("tick".to_owned(), tick)];
        Ok(Opened { fs: pool, has_failed, close, jobs, clones: None })
    }

    fn check(&self, start: &Start) -> Vec<String> {
        let opened = Volume::open_members(opening(&start.device));
        let (volume, _) = match opened {
            Ok(opened) => opened,
            Err(error) => return vec![error.to_string()],
        };
        let device = Arc::clone(volume.device());
        let report = check::run(device, check::Options::default(), &mut |_| ());
        if report.is_clean() { Vec::new() } else { vec![report.to_text()] }
    }
}

#[test]
fn a_mirror_stands_torture() {
    let soak = std::env::var("HOLDFAST_SOAK").ok().and_then(|text| text.parse().ok());
    let seeds = SEEDS * soak.unwrap_or(1_u64);
    let options = Options { seeds, ..Options::default() };
    let report = run(&MirrorGround, &options, |_| {});
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    println!("{} crashes, {} operations", report.crashes, report.operations);
    assert!(findings.is_empty(), "{findings:#?}");
    assert!(report.crashes > 0);
}
