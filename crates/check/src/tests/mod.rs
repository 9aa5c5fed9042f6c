//! Hand-made pools: a healthy one is clean, and each defect that is planted is found.

mod families;
mod fuzz;
mod image;
mod inspected;
mod planted;
mod quotas;
mod replayed;
mod swept;

use format::defect::DefectCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use image::Image;
use storage::device::{Device, DeviceInfo, MemoryDevice, Operation, Purpose, Ticket};

use crate::{Options, run};

/// Checks `image` in full.
fn check(image: &Image) -> crate::report::Report {
    run(image.device.clone(), Options::default(), &mut |_| {})
}

/// More reads than any check of the image needs, and far fewer than an endless one does.
const READS_MAX: u64 = 20_000;

/// What a check of the image without data reads.
const READS_OF_THE_IMAGE: u64 = 31;

/// Counts reads, and panics past the bound: an endless walk becomes a failure.
#[derive(Debug)]
struct Bounded {
    below: Arc<MemoryDevice>,
    reads: AtomicU64,
}

impl Device for Bounded {
    fn info(&self) -> &DeviceInfo {
        self.below.info()
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < READS_MAX, "runs without end");
        self.below.submit(purpose, operation)
    }
}

/// Pages of containers, which are most, are read in a few runs.
///
/// Besides: 4 copies of the superblock and the heads of the journal twice, what is at its tail, the
/// pages of each group, its free map twice, and the root of the group table again for the totals.
#[test]
fn a_check_without_data_reads_pages_in_runs() {
    let image = Image::new(4096);
    let device = Arc::new(Bounded { below: image.device.clone(), reads: AtomicU64::new(0) });
    let options = Options { data: false, ..Options::default() };
    let report = run(device.clone(), options, &mut |_| {});
    assert!(report.is_clean(), "{}", report.to_text());
    let reads = device.reads.load(Ordering::Relaxed);
    assert!(reads <= READS_OF_THE_IMAGE, "{reads} reads of {} pages", report.totals.pages);
}

#[test]
fn a_healthy_pool_is_clean_with_fragments_of_every_size() {
    for fragment_bytes in [4096, 2048, 1024] {
        let report = check(&Image::new(fragment_bytes));
        assert!(report.is_clean(), "{fragment_bytes}: {}", report.to_text());
        assert_eq!(report.totals.anodes, 14);
        assert_eq!(report.totals.names, 209);
        assert_eq!(report.totals.blocks, 23);
        assert!(report.totals.data_bytes > 20 * 16384);
    }
}

/// Codes that only the engine gives out: it meets them on its way, or they are the end of a number.
const OF_THE_ENGINE: [DefectCode; 8] = [
    DefectCode::JR005,
    DefectCode::JR007,
    DefectCode::PG008,
    DefectCode::AG009,
    DefectCode::AG010,
    DefectCode::AL001,
    DefectCode::MP006,
    DefectCode::MP007,
];

/// A code that no test plants could stop working unseen.
#[test]
fn every_code_is_planted() {
    let tests =
        [include_str!("planted.rs"), include_str!("quotas.rs"), include_str!("replayed.rs")];
    for code in DefectCode::ALL.iter().filter(|code| !OF_THE_ENGINE.contains(code)) {
        let mention = format!("DefectCode::{}", code.name());
        assert!(tests.iter().any(|test| test.contains(&mention)), "{mention} is never planted");
    }
}
