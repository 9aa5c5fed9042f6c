//! Phases like those of the modified Andrew benchmark.
//!
//! "The benchmark begins by creating a directory tree, and copying the source code for a program in
//! that tree. It then performs a stat operation on every file in the hierarchy. It subsequently
//! reads every file as part of compiling them" (Chutani and others, 1992). Without a compiler, the
//! last phase reads every source and writes an object of twice its size.

use std::io;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, WorkloadThread, tree};
use crate::access::{BenchHandle, TargetAccess, TransferBuffer};
use crate::number::to_f64;
use crate::plan::BenchPlan;
use tree::GeneratedDirectory;

/// Twice the largest file of a tree.
const OBJECT_BYTES_MAX: usize = 512 << 10;
const SOURCE: &str = "source";
const COPY: &str = "copy";

const fn measure(name: &'static str, what: &'static str, unit: MeasureUnit) -> Measure {
    Measure { name, what, unit }
}

pub(super) static ANDREW: WorkloadGroup = WorkloadGroup {
    name: "andrew",
    measures: &[
        measure("andrew-mkdir", "make the directories of a source tree", MeasureUnit::Operations),
        measure("andrew-copy", "copy every source file into them", MeasureUnit::Files),
        measure("andrew-stat", "list every directory, stat every file", MeasureUnit::Files),
        measure("andrew-read", "list every directory, read every file", MeasureUnit::Files),
        measure("andrew-make", "read every file, write an object beside it", MeasureUnit::Files),
    ],
    is_threaded: false,
    bytes: BenchPlan::andrew_bytes,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = to_f64(lap.plan.andrew_files);
    let tree = GeneratedDirectory::new(lap.plan.andrew_files, 2);
    let access = lap.access;
    tree.extract(&lap.preparer(), &lap.dir, SOURCE)?;
    let dir = access.open_dir(&lap.dir, ".")?;
    let dirs = to_f64(tree.dir_count());
    lap.time_on(1, "andrew-mkdir", dirs, |worker| tree.make_dirs(worker, &dir, COPY))?;
    if lap.wants_from("andrew-copy") {
        lap.time_on(1, "andrew-copy", count, |worker| copy(worker, &tree, &dir))?;
    }
    if lap.wants(&["andrew-stat"]) {
        lap.time_on(1, "andrew-stat", count, |worker| tree::stat_all(worker, &dir, COPY))?;
    }
    if lap.wants(&["andrew-read"]) {
        lap.time_on(1, "andrew-read", count, |worker| tree::read_all(worker, &dir, COPY))?;
    }
    if lap.wants(&["andrew-make"]) {
        lap.time_on(1, "andrew-make", count, |worker| make(worker, &tree, &dir))?;
    }
    access.close(dir);
    Ok(())
}

fn copy(
    worker: &WorkloadThread<'_>,
    tree: &GeneratedDirectory,
    at: &BenchHandle,
) -> io::Result<()> {
    let access = worker.access;
    let mut data = TransferBuffer::new(OBJECT_BYTES_MAX);
    both(access, at, (SOURCE, COPY), |pair| {
        tree.each_pair(worker, pair, &mut |source, target, name| {
            let bytes = tree::read_file(access, source, name, &mut data)?;
            tree::write_file(access, target, name, data.first(bytes))
        })
    })
}

fn make(
    worker: &WorkloadThread<'_>,
    tree: &GeneratedDirectory,
    at: &BenchHandle,
) -> io::Result<()> {
    let access = worker.access;
    let mut data = TransferBuffer::new(OBJECT_BYTES_MAX);
    both(access, at, (COPY, COPY), |pair| {
        tree.each_pair(worker, pair, &mut |source, target, name| {
            let bytes = tree::read_file(access, source, name, &mut data)?;
            tree::write_file(access, target, &format!("{name}.o"), data.first(2 * bytes))
        })
    })
}

fn both(
    access: &dyn TargetAccess,
    at: &BenchHandle,
    (source, target): (&str, &str),
    work: impl FnOnce((&BenchHandle, &BenchHandle)) -> io::Result<()>,
) -> io::Result<()> {
    tree::within(access, at, source, |source| {
        tree::within(access, at, target, |target| work((source, target)))
    })
}
