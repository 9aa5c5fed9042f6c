//! Random overwrites of a large file with periodic syncs, and random direct reads.

use std::io;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, stream};
use crate::access::{BenchHandle, OpenMode, TransferBuffer};
use crate::number::{to_f64, to_u64};
use crate::plan::{OVERWRITES_PER_SYNC, SMALL_BYTES};

const FILE: &str = "large";
/// Measure and queue depth.
const DEPTHS: [(&str, usize); 2] = [("random-read", 1), ("random-read-16", 16)];

const fn measure(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, unit: MeasureUnit::Operations }
}

pub(super) static OVERWRITE: WorkloadGroup = WorkloadGroup {
    name: "overwrite",
    measures: &[measure("overwrite-4k", "overwrite 4 KiB at random, fsync after every 32")],
    is_threaded: true,
    // Overwritten blocks stay allocated until they are cleaned.
    bytes: |plan| plan.random_file_bytes + plan.overwrites * 16_384,
    run: overwrite,
};

pub(super) static RANDOM_READ: WorkloadGroup = WorkloadGroup {
    name: "random-read",
    measures: &[
        measure("random-read", "read 4 KiB at random with O_DIRECT, one at a time"),
        measure("random-read-16", "the same, 16 at a time"),
    ],
    is_threaded: false,
    bytes: |plan| plan.random_file_bytes,
    run: read,
};

/// Creates a large file, synced and dropped from the cache.
fn make_file(lap: &Lap<'_>, at: &BenchHandle, bytes: u64) -> io::Result<()> {
    let access = lap.access;
    let file = access.create(at, FILE, false)?;
    let filled = stream::fill(&mut lap.preparer(), &file, bytes);
    let forgotten = filled.and_then(|()| access.forget_content(&file));
    access.close(file);
    forgotten
}

fn overwrite(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = lap.part_of(lap.plan.overwrites);
    let bytes = lap.part_of(lap.plan.random_file_bytes).next_multiple_of(1 << 20);
    let dirs = lap.thread_dirs()?;
    dirs.iter().try_for_each(|dir| make_file(lap, dir, bytes))?;
    lap.time("overwrite-4k", to_f64(count), |worker| {
        let access = worker.access;
        let file = access.open(&dirs[worker.index], FILE, OpenMode::Write)?;
        let data = TransferBuffer::new(SMALL_BYTES);
        let piece = to_u64(SMALL_BYTES);
        let written = worker.each(count, |number, prng| {
            access.write(&file, prng.below(bytes / piece) * piece, data.bytes())?;
            let is_due = (number + 1).is_multiple_of(OVERWRITES_PER_SYNC) || number + 1 == count;
            if is_due { access.sync_file(&file) } else { Ok(()) }
        });
        access.close(file);
        written
    })?;
    lap.close_all(dirs);
    Ok(())
}

fn read(lap: &mut Lap<'_>) -> io::Result<()> {
    let bytes = lap.plan.random_file_bytes;
    make_file(lap, &lap.dir, bytes)?;
    let file = match lap.access.open(&lap.dir, FILE, OpenMode::ReadDirect) {
        // Skip a file system without O_DIRECT.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
        file => file?,
    };
    let mut done = Ok(());
    for (name, depth) in DEPTHS {
        if done.is_ok() && lap.wants(&[name]) {
            let count = (lap.plan.random_reads / to_u64(depth)).max(1);
            done = lap.time_on(depth, name, to_f64(count), |worker| {
                let access = worker.access;
                let mut data = TransferBuffer::new(SMALL_BYTES);
                let piece = to_u64(SMALL_BYTES);
                worker.each(count, |_, prng| {
                    let at = prng.below(bytes / piece) * piece;
                    access.read(&file, at, &mut data).map(|_| ())
                })
            });
        }
    }
    lap.access.close(file);
    done
}
