//! Measures what the devices cost: random reads by each transport, crash images, and the points
//! of the scheduler.
//!
//! ```text
//! cargo run --release -p storage --features sim --example device_bench -- FILE
//! ```
//!
//! FILE is created with 1 GiB of data if there is nothing, and left there.

#![allow(clippy::disallowed_methods, reason = "it measures a real device")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::prng::Prng;
use storage::device::{
    AlignedBuffer, Device, DeviceOperation, FileDevice, FileOptions, FileTransportChoice,
    IoPurpose, MemoryDevice,
};

const SIZE_BYTES: u64 = 1 << 30;
const PAGE_BYTES: usize = 4096;
const TIME: Duration = Duration::from_secs(2);

fn main() {
    let path = std::env::args().nth(1).expect("the name of a file to read is the argument");
    let path = Path::new(&path);
    if !path.exists() {
        fill(path);
    }
    for transport in [FileTransportChoice::Pread, FileTransportChoice::Uring] {
        let options = FileOptions { transport, ..FileOptions::default() };
        let device = FileDevice::open(path, options).expect("it opens");
        let name = device.info().transport;
        report(name, "read, depth 1", || read_direct(&*device));
        for depth in [1, 32] {
            let label = format!("submit and wait, depth {depth}");
            report(name, &label, || read_queued(&*device, depth));
        }
    }
    let memory: Arc<MemoryDevice> = MemoryDevice::new("memory", SIZE_BYTES);
    report("memory", "read, depth 1", || read_direct(&*memory));
    #[cfg(feature = "sim")]
    {
        images();
        scheduling();
    }
}

fn fill(path: &Path) {
    let device = FileDevice::create(path, SIZE_BYTES, FileOptions::default()).expect("room");
    let mut prng = Prng::from_seed(1);
    for offset in (0..SIZE_BYTES).step_by(1 << 20) {
        let mut buffer = AlignedBuffer::zeroed(1 << 20);
        for word in buffer.chunks_exact_mut(8) {
            word.copy_from_slice(&prng.next_u64().to_le_bytes());
        }
        device.write(IoPurpose::Data, offset, buffer).expect("room");
    }
    device.flush(IoPurpose::Data).expect("the disk works");
}

/// Calls `work`, which returns how many requests it did, for some time, and prints the rate and
/// the processor time of one request.
fn report(transport: &str, what: &str, work: impl FnOnce() -> u64) {
    let (begin, processor_begin) = (Instant::now(), processor_time());
    let count = work();
    let elapsed = begin.elapsed();
    let processor = processor_time().saturating_sub(processor_begin);
    let per_second = u128::from(count) * 1_000_000_000 / elapsed.as_nanos();
    let processor_ns = processor.as_nanos() / u128::from(count.max(1));
    println!("{transport:>10}  {what:<28} {per_second:>9}/s  {processor_ns:>7} ns CPU each");
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).expect("not negative");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("below 10^9"))
}

fn random_offset(prng: &mut Prng) -> u64 {
    prng.below(SIZE_BYTES / 4096) * 4096
}

fn read_direct(device: &dyn Device) -> u64 {
    let (mut prng, begin, mut count) = (Prng::from_seed(2), Instant::now(), 0);
    while begin.elapsed() < TIME {
        device.read(IoPurpose::Data, random_offset(&mut prng), PAGE_BYTES).expect("it reads");
        count += 1;
    }
    count
}

/// Submits `depth` reads, waits for all, and so on.
fn read_queued(device: &dyn Device, depth: u64) -> u64 {
    let (mut prng, begin, mut count) = (Prng::from_seed(3), Instant::now(), 0);
    while begin.elapsed() < TIME {
        let mut submit = |_| {
            let (offset, buffer) = (random_offset(&mut prng), AlignedBuffer::zeroed(PAGE_BYTES));
            device.submit(IoPurpose::Data, DeviceOperation::Read { offset, buffer })
        };
        let tickets: Vec<_> = (0..depth).map(&mut submit).collect();
        for ticket in tickets {
            ticket.wait().expect("it reads");
        }
        count += depth;
    }
    count
}

/// Crash images of a device of 1 TiB with 64 MiB in it and ten unflushed writes of 4 to 64 KiB.
#[cfg(feature = "sim")]
fn images() {
    use storage::device::sim::{SimDevice, SimOptions, Strategy};

    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::new(1 << 40, options);
    let mut prng = Prng::from_seed(4);
    let mut write = |length: usize| {
        let offset = random_offset(&mut prng);
        let mut buffer = AlignedBuffer::zeroed(length);
        buffer.fill(u8::try_from(prng.below(255)).expect("below 255"));
        device.write(IoPurpose::Data, offset, buffer).expect("no faults");
    };
    (0..1024).for_each(|_| write(65_536));
    device.flush(IoPurpose::Data).expect("no faults");
    (1..=10).for_each(|nth| write(4096 * nth));
    let recording = device.recording();
    let point = recording.points().last().expect("the end is a point");
    report("sim", "crash images, opened", || {
        let mut count = 0;
        for crash in point.images(&Strategy::default()) {
            let device = SimDevice::open(crash.image, SimOptions::default());
            count += u64::from(device.info().size_bytes > 0);
        }
        count
    });
}

/// Four simulated threads on one lock.
#[cfg(feature = "sim")]
fn scheduling() {
    use runtime::sync::{Mutex, sim::Scheduler, sim::SimThreadTask};

    for seed in [0, 2, 5, 8] {
        let scheduler = Scheduler::new(seed);
        let value = Mutex::new(0_u64);
        let work = || (0..50_000).for_each(|_| *value.lock() += 1);
        report("sim", "scheduling points", || {
            let job = |_| -> SimThreadTask<'_> { ("adder".to_owned(), Box::new(work)) };
            scheduler.run((0..4).map(job).collect());
            scheduler.statistics().point_count
        });
        println!("{:>10}  {:?}", "", scheduler.statistics());
    }
}
