//! Hand-made pools: one without defects is clean, and each planted defect is found.

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

use image::TestImage;
use storage::device::{Device, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice, Ticket};

use crate::{CheckOptions, run};

fn check(image: &TestImage) -> crate::report::ConsistencyReport {
    run(image.device.clone(), CheckOptions::default(), &mut |_| {})
}

/// Bound of reads: more than any check of the image needs, far fewer than an endless one.
const READS_MAX: u64 = 20_000;

/// Most reads of a check of the image, without data.
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

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < READS_MAX, "runs without end");
        self.below.submit(purpose, operation)
    }
}

/// Goal: most pages of containers are read together, in a few runs.
///
/// The other reads are 4 copies of the superblock, the heads of the journal twice, the log's tail,
/// the fixed pages of each group, its free map twice, and the root of the group table again for the
/// totals.
#[test]
fn a_check_without_data_reads_pages_in_runs() {
    let image = TestImage::new(4096);
    let device = Arc::new(Bounded { below: image.device.clone(), reads: AtomicU64::new(0) });
    let options = CheckOptions { data: false, ..CheckOptions::default() };
    let report = run(device.clone(), options, &mut |_| {});
    assert!(report.is_clean(), "{}", report.to_text());
    let reads = device.reads.load(Ordering::Relaxed);
    assert!(reads <= READS_OF_THE_IMAGE, "{reads} reads of {} pages", report.totals.pages);
}

#[test]
fn a_healthy_pool_is_clean_with_fragments_of_every_size() {
    for fragment_bytes in [4096, 2048, 1024] {
        let report = check(&TestImage::new(fragment_bytes));
        assert!(report.is_clean(), "{fragment_bytes}: {}", report.to_text());
        assert_eq!(report.totals.anodes, 14);
        assert_eq!(report.totals.names, 209);
        assert_eq!(report.totals.blocks, 23);
        assert!(report.totals.data_bytes > 20 * 16384);
    }
}

/// Codes that only the engine reports: it meets these defects in operation, or a number is used up.
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

/// Goal: each code that the checker reports is planted by a test.
#[test]
fn every_code_is_planted() {
    let tests =
        [include_str!("planted.rs"), include_str!("quotas.rs"), include_str!("replayed.rs")];
    for code in DefectCode::ALL.iter().filter(|code| !OF_THE_ENGINE.contains(code)) {
        let mention = format!("DefectCode::{}", code.name());
        assert!(tests.iter().any(|test| test.contains(&mention)), "{mention} is never planted");
    }
}
