//! Several devices in one pool: what each layout promises while members come, fail and go.

mod attach;
mod begun;
mod crash;
mod discard;
mod equal_lsn;
mod evacuation_time;
mod groups;
mod hangs;
mod idle;
mod journal_apart;
mod journal_lost;
mod longer;
mod main_group;
mod narrow;
mod narrow_again;
mod older;
mod parity_reads;
mod placement;
mod placement_kept;
mod raid5;
mod raid5_both;
mod raid5_crash;
mod raid5_fails;
mod raid5_known;
mod raid5_rot;
mod raid5_scrub;
mod rebuild;
mod rebuild_crash;
mod rebuild_rows;
mod rebuild_snapshots;
mod removal;
mod replace;
mod reshape;
mod reshape_stripe;
mod returns;
mod returns_own;
mod roles;
mod round_robin;
mod round_robin_changes;
mod scrub;
mod scrub_cut;
mod scrub_lives;
mod set;
mod skeleton;
mod spares;
mod stale;
mod stopped_storing;
mod stripe;
mod torture;
mod unread;

use std::rc::Rc;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, FsResult, NewInode};
use engine::{
    DiscardOptions, Pool, PoolCreateOptions, PoolOpenError, PoolOpenOptions, ScrubReport,
};
use format::members::Layout;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, PowerSupply, Recording, SimDevice, SimOptions, Timeline};
use storage::volume::{Choose, VolumeDevices};

/// As few as are laid out well.
const POOL_BYTES: u64 = 10 << 20;

/// Several simulated devices.
type Devices = Vec<Arc<SimDevice>>;

/// Returns devices called `/sim/dN` that hold `images`, of one power supply and one timeline.
fn devices_of(images: Vec<Image>) -> Devices {
    let (power, timeline) = (PowerSupply::new(), Timeline::default());
    let device = |(number, image): (usize, Image)| {
        let options = SimOptions {
            name: format!("/sim/d{number}"),
            power: power.clone(),
            timeline: timeline.clone(),
            is_recorded: true,
            ..SimOptions::default()
        };
        SimDevice::open(image, options)
    };
    images.into_iter().enumerate().map(device).collect()
}

/// Returns what a power cut at `time` leaves of what was recorded of devices, a state of its own of
/// each: what is durable there, or some of the rest too.
fn cut_at(recordings: &[Recording], time: u64, is_durable: bool, prng: &mut Prng) -> Vec<Image> {
    let image = |recording: &Recording| {
        let point = recording.point_at(time);
        if is_durable { point.durable().clone() } else { point.image(prng).image }
    };
    recordings.iter().map(image).collect()
}

/// Returns the devices as a pool takes them.
fn shared(devices: &[Arc<SimDevice>]) -> Vec<SharedDevice> {
    devices.iter().map(|device| -> SharedDevice { Arc::<SimDevice>::clone(device) }).collect()
}

/// Takes the first copy of a page, whatever others are.
fn first_copy() -> Choose<'static> {
    Rc::new(|_, _| None)
}

/// Returns the devices of a new mirror.
fn new_mirror(count: usize) -> Devices {
    let devices = devices_of(vec![Image::blank(POOL_BYTES); count]);
    let mut options = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
    options.geometry.journal_bytes = Some(1 << 20);
    options.geometry.segment_bytes = Some(128 << 10);
    options.geometry.group_bytes = Some(2 << 20);
    Pool::create_on(&shared(&devices), Layout::Mirror, &ManualClock::new(), &options)
        .expect("a mirror fits");
    devices
}

/// Returns the devices after an orderly end, all or some of them.
fn reopened(devices: &[Arc<SimDevice>], which: &[usize]) -> Devices {
    devices_of(which.iter().map(|&at| devices[at].image()).collect())
}

/// Opens the pool on `devices`.
fn open(devices: &[Arc<SimDevice>]) -> Result<Pool, PoolOpenError> {
    let discard = DiscardOptions::at_once();
    let options = PoolOpenOptions { cache_bytes: 1 << 20, discard, ..PoolOpenOptions::default() };
    let opening = VolumeDevices { devices: shared(devices), accepts_missing: false };
    Pool::open_members(opening, Arc::new(ManualClock::new()), options)
}

/// Writes `content` to a file, durably.
fn put(pool: &Pool, name: &str, content: &[u8]) -> FsResult<()> {
    let (caller, root) = (Caller::root(), pool.root());
    let found = pool.lookup(&caller, root, name.as_bytes());
    let made = |_| {
        let new = NewInode::new(FileKind::Regular, 0o644);
        pool.create(&caller, root, name.as_bytes(), new, None)
    };
    let ino = found.or_else(made)?.ino;
    pool.write(&caller, ino, 0, content)?;
    pool.fsync(&caller, ino, false)
}

/// What a scrub has found bad and not made whole: lost, not read, and not written again.
type Unmended = (u64, u64, u64);

const NOTHING: Unmended = (0, 0, 0);

fn unmended(report: &ScrubReport) -> Unmended {
    (report.lost, report.unread, report.unwritten)
}

/// Returns what a file holds; `None`: it is not there.
fn get(pool: &Pool, name: &str) -> Option<Vec<u8>> {
    let caller = Caller::root();
    let attr = pool.lookup(&caller, pool.root(), name.as_bytes()).ok()?;
    let length = usize::try_from(attr.size_bytes).expect("files are small");
    let mut content = Vec::new();
    pool.read(&caller, attr.ino, 0, length, &mut content).expect("it can be read");
    assert_eq!(content.len(), length);
    Some(content)
}
