//! What a check of a pool asks for: long reads in the order of the device, not one for each page or
//! each block of a small file.

use super::*;

const DIRS: usize = 40;
const FILES_PER_DIR: usize = 200;
/// Bytes of a file: too many to lie in its anode.
const FILE_BYTES: usize = 3000;

/// Returns a closed pool with a tree of small files.
fn small_files() -> Arc<CountingDevice> {
    let counted = Counted::new(1 << 30, 14);
    let (caller, data) = (Caller::root(), vec![7; FILE_BYTES]);
    for dir in 0..DIRS {
        let at = counted.make(counted.pool.root(), &format!("d{dir}"), FileKind::Directory);
        for file in 0..FILES_PER_DIR {
            let ino = counted.make(at, &format!("f{file}"), FileKind::Regular);
            counted.pool.write(&caller, ino, 0, &data).expect("there is room");
        }
    }
    counted.close()
}

/// Goal: a check reads a tree of small files in runs: of metadata alone at most one request for 150
/// files, with its data one for 80; and it reads little that it does not need.
#[test]
fn a_check_of_small_files_reads_in_runs() {
    let device = small_files();
    let files = u64::try_from(DIRS * FILES_PER_DIR).expect("few");
    for (data, files_per_read) in [(true, 80), (false, 150)] {
        let before = device.counts();
        let shared: SharedDevice = Arc::<CountingDevice>::clone(&device);
        let options = check::CheckOptions { data, ..check::CheckOptions::default() };
        let report = check::run(shared, options, &mut |_| {});
        assert!(report.is_clean(), "{}", report.to_text());
        let cost = device.counts() - before;
        let reads = cost.of_kind(RequestKind::Read);
        let needed = report.totals.pages * 4096 + report.totals.data_bytes;
        println!(
            "{files} files, data {data}: {} reads, {} of {needed} bytes",
            cost.reads(),
            reads.bytes
        );
        assert!(cost.reads() <= files / files_per_read, "{cost:?}");
        assert!(reads.bytes <= needed * 3 / 2, "{cost:?}");
    }
}
