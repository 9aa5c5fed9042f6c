//! Phases like those of the modified Andrew benchmark.
//!
//! "The benchmark begins by creating a directory tree, and copying the source code for a program in
//! that tree. It then performs a stat operation on every file in the hierarchy. It subsequently
//! reads every file as part of compiling them" (Chutani and others, 1992). No compiler runs here:
//! the last phase reads every source and writes an object of twice its size, so what is timed is
//! the file system.

use std::io;

use super::{Group, Lap, Measure, Unit, Worker, tree};
use crate::access::{Access, Buffer, Handle};
use crate::number::to_f64;
use crate::plan::Plan;
use tree::Tree;

/// Largest file of a tree, twice.
const OBJECT_BYTES_MAX: usize = 512 << 10;
const SOURCE: &str = "source";
const COPY: &str = "copy";

const fn measure(name: &'static str, what: &'static str, unit: Unit) -> Measure {
    Measure { name, what, unit }
}

pub(super) static ANDREW: Group = Group {
    name: "andrew",
    measures: &[
        measure("andrew-mkdir", "make the directories of a source tree", Unit::Operations),
        measure("andrew-copy", "copy every source file into them", Unit::Files),
        measure("andrew-stat", "list every directory, stat every file", Unit::Files),
        measure("andrew-read", "list every directory, read every file", Unit::Files),
        measure("andrew-make", "read every file, write an object beside it", Unit::Files),
    ],
    is_threaded: false,
    bytes: Plan::andrew_bytes,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = to_f64(lap.plan.andrew_files);
    let tree = Tree::new(lap.plan.andrew_files, 2);
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

fn copy(worker: &Worker<'_>, tree: &Tree, at: &Handle) -> io::Result<()> {
    let access = worker.access;
    let mut data = Buffer::new(OBJECT_BYTES_MAX);
    both(access, at, (SOURCE, COPY), |pair| {
        tree.each_pair(worker, pair, &mut |source, target, name| {
            let bytes = tree::read_file(access, source, name, &mut data)?;
            tree::write_file(access, target, name, data.first(bytes))
        })
    })
}

fn make(worker: &Worker<'_>, tree: &Tree, at: &Handle) -> io::Result<()> {
    let access = worker.access;
    let mut data = Buffer::new(OBJECT_BYTES_MAX);
    both(access, at, (COPY, COPY), |pair| {
        tree.each_pair(worker, pair, &mut |source, target, name| {
            let bytes = tree::read_file(access, source, name, &mut data)?;
            tree::write_file(access, target, &format!("{name}.o"), data.first(2 * bytes))
        })
    })
}

fn both(
    access: &dyn Access,
    at: &Handle,
    (source, target): (&str, &str),
    work: impl FnOnce((&Handle, &Handle)) -> io::Result<()>,
) -> io::Result<()> {
    tree::within(access, at, source, |source| {
        tree::within(access, at, target, |target| work((source, target)))
    })
}
