//! A tree of small files with cold caches: checked, then read.
//!
//! Measures that need to close or check the target are left out if it cannot.

use std::io;

use super::tree::{GeneratedDirectory, measure, read_all};
use super::{Lap, WorkloadGroup};
use crate::number::to_f64;
use crate::plan::BenchPlan;

const TOP: &str = "tree";

pub(super) static COLD: WorkloadGroup = WorkloadGroup {
    name: "cold",
    measures: &[
        measure("check", "check the file system that has such a tree, nothing in caches"),
        measure("cold-read", "list every directory and read every file, nothing in caches"),
    ],
    is_threaded: false,
    bytes: BenchPlan::tree_bytes,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let Some(offline) = lap.access.offline() else { return Ok(()) };
    let is_checked = offline.has_checker() && lap.wants(&["check"]);
    let is_read = lap.wants(&["cold-read"]);
    if !is_checked && !is_read {
        return Ok(());
    }
    let count = to_f64(lap.plan.tree_files);
    // Every round uses the same tree.
    let tree = GeneratedDirectory::new(lap.plan.tree_files, 1);
    tree.extract(&lap.preparer(), &lap.dir, TOP)?;
    lap.out_of_use(offline, |lap| match is_checked {
        true => lap.time_on(1, "check", count, |_| offline.check()),
        false => Ok(()),
    })?;
    if is_read {
        // The lap is borrowed mutably.
        let dir = lap.access.open_dir(&lap.dir, ".")?;
        let read = lap.time_on(1, "cold-read", count, |worker| read_all(worker, &dir, TOP));
        lap.access.close(dir);
        read?;
    }
    Ok(())
}
