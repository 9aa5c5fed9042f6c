//! A tree of small files that nothing is cached of: checked, then read.
//!
//! Only where a target can be taken out of use: elsewhere the measures are left out, and so is the
//! check where there is nobody who does one.

use std::io;

use super::tree::{Tree, measure, read_all};
use super::{Group, Lap};
use crate::number::to_f64;
use crate::plan::Plan;

/// The tree's own directory.
const TOP: &str = "tree";

pub(super) static COLD: Group = Group {
    name: "cold",
    measures: &[
        measure("check", "check the file system that has such a tree, nothing in caches"),
        measure("cold-read", "list every directory and read every file, nothing in caches"),
    ],
    is_threaded: false,
    bytes: Plan::tree_bytes,
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
    // The same tree in every round.
    let tree = Tree::new(lap.plan.tree_files, 1);
    tree.extract(&lap.preparer(), &lap.dir, TOP)?;
    lap.out_of_use(offline, |lap| match is_checked {
        true => lap.time_on(1, "check", count, |_| offline.check()),
        false => Ok(()),
    })?;
    if is_read {
        // Another borrow of the lap's directory than the lap itself.
        let dir = lap.access.open_dir(&lap.dir, ".")?;
        let read = lap.time_on(1, "cold-read", count, |worker| read_all(worker, &dir, TOP));
        lap.access.close(dir);
        read?;
    }
    Ok(())
}
