//! Simulated disks, used by threads in virtual time.

use std::sync::Arc;

use runtime::clock::{Clock, SimClock};
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, SimThreadTask};
use storage::device::SharedDevice;
use storage::device::sim::{DiskModel, Image, SimDevice, SimOptions};

use crate::LabError;
use crate::report::to_u64;

const SEED: u64 = 1;

/// Work of one thread, given its number and a random generator.
pub(crate) type RigWork<'a> = &'a (dyn Fn(usize, &mut Prng) -> Result<(), LabError> + Sync);

pub(crate) struct Rig {
    pub(crate) disks: Vec<SharedDevice>,
    pub(crate) clock: Arc<SimClock>,
    scheduler: Arc<Scheduler>,
}

impl Rig {
    pub(crate) fn new(model: DiskModel, images: &[Image]) -> Rig {
        let scheduler = Scheduler::new(SEED);
        let disk = |(number, image): (usize, &Image)| -> SharedDevice {
            let name = format!("disk {number}");
            SimDevice::open(image.clone(), SimOptions { name, model, ..SimOptions::default() })
        };
        let clock = Arc::new(SimClock::new(Arc::clone(&scheduler)));
        Rig { disks: images.iter().enumerate().map(disk).collect(), clock, scheduler }
    }

    /// Runs `work` on `streams` threads. Returns the virtual time taken, in nanoseconds.
    pub(crate) fn run(&self, streams: usize, work: RigWork<'_>) -> Result<u64, LabError> {
        let failed = Mutex::new(None);
        let failed_at = &failed;
        let begun = self.clock.monotonic_ns();
        let jobs = (0..streams).map(|stream| -> SimThreadTask<'_> {
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
