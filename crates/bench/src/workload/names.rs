//! Name operations: create, stat, open, rename and unlink, in a directory per client.

use std::io;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, file_names};
use crate::access::OpenMode;
use crate::number::to_f64;

/// Passes of a read-only phase, which would otherwise be too short to time.
const PASSES: u64 = 3;

const fn measure(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, unit: MeasureUnit::Operations }
}

pub(super) static NAMES: WorkloadGroup = WorkloadGroup {
    name: "names",
    measures: &[
        measure("create", "create and close an empty file"),
        measure("stat", "stat of a file just made"),
        measure("open", "open and close of a file just made"),
        measure("rename", "rename within a directory"),
        measure("unlink", "unlink of an empty file"),
    ],
    is_threaded: true,
    bytes: |plan| plan.names * 4096,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = lap.part_of(lap.plan.names);
    let (names, renamed) = (file_names("file-", count), file_names("name-", count));
    let dirs = lap.thread_dirs()?;
    lap.time("create", to_f64(count), |worker| {
        let (access, dir) = (worker.access, &dirs[worker.index]);
        let mut names = names.iter();
        worker.each(count, |_, _| {
            names.next().map_or(Ok(()), |name| {
                access.close(access.create(dir, name, false)?);
                Ok(())
            })
        })
    })?;
    if lap.wants(&["stat"]) {
        lap.time("stat", to_f64(count * PASSES), |worker| {
            let (access, dir) = (worker.access, &dirs[worker.index]);
            let mut names = names.iter().cycle();
            worker.each(count * PASSES, |_, _| {
                names.next().map_or(Ok(()), |name| access.stat(dir, name).map(|_| ()))
            })
        })?;
    }
    if lap.wants(&["open"]) {
        lap.time("open", to_f64(count * PASSES), |worker| {
            let (access, dir) = (worker.access, &dirs[worker.index]);
            let mut names = names.iter().cycle();
            worker.each(count * PASSES, |_, _| {
                names.next().map_or(Ok(()), |name| {
                    access.close(access.open(dir, name, OpenMode::Read)?);
                    Ok(())
                })
            })
        })?;
    }
    if lap.wants_from("rename") {
        lap.time("rename", to_f64(count), |worker| {
            let (access, dir) = (worker.access, &dirs[worker.index]);
            let mut pairs = names.iter().zip(&renamed);
            worker.each(count, |_, _| {
                pairs.next().map_or(Ok(()), |(from, to)| access.rename(dir, from, to))
            })
        })?;
    }
    if lap.wants(&["unlink"]) {
        lap.time("unlink", to_f64(count), |worker| {
            let (access, dir) = (worker.access, &dirs[worker.index]);
            let mut names = renamed.iter();
            worker.each(count, |_, _| names.next().map_or(Ok(()), |name| access.unlink(dir, name)))
        })?;
    }
    lap.close_all(dirs);
    Ok(())
}
