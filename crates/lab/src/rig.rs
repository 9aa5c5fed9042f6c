//! Simulated disks, and threads that use them in virtual time.

use std::sync::Arc;

use runtime::clock::{Clock, SimClock};
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::{Job, Scheduler};
use storage::device::SharedDevice;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};

use crate::LabError;
use crate::report::to_u64;

/// Of the order in which threads run, and of what is random.
const SEED: u64 = 1;

/// What one thread of a load does: it is given its number and its chance.
pub(crate) type Work<'a> = &'a (dyn Fn(usize, &mut Prng) -> Result<(), LabError> + Sync);

/// Disks of one model, and a clock.
pub(crate) struct Rig {
    pub(crate) disks: Vec<SharedDevice>,
    pub(crate) clock: Arc<SimClock>,
    scheduler: Arc<Scheduler>,
}

impl Rig {
    /// Disks that hold `images`.
    pub(crate) fn new(model: DiskModel, images: &[Image]) -> Rig {
        let scheduler = Scheduler::new(SEED);
        let disk = |(number, image): (usize, &Image)| -> SharedDevice {
            let name = format!("disk {number}");
            SimDevice::open(image.clone(), SimOptions { name, model, ..SimOptions::default() })
        };
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        Rig { disks: images.iter().enumerate().map(disk).collect(), clock, scheduler }
    }

    /// Has `streams` threads do `work`. Returns the virtual time that it took, in nanoseconds.
    pub(crate) fn run(&self, streams: usize, work: Work<'_>) -> Result<u64, LabError> {
        let failed = Mutex::new(None);
        let failed_at = &failed;
        let begun = self.clock.monotonic_ns();
        let jobs = (0..streams).map(|stream| -> Job<'_> {
            let run = move || {
                let mut prng = Prng::from_seed(SEED ^ to_u64(stream) << 32);
                if let Err(error) = work(stream, &mut prng) {
                    failed_at.lock().get_or_insert(error);
                }
            };
            (format!("stream {stream}"), Box::new(run))
        });
        self.scheduler.run(jobs.collect());
        let took = self.clock.monotonic_ns() - begun;
        failed.into_inner().map_or(Ok(took), Err)
    }
}
