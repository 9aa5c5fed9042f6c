//! The passes of a check: each finds one kind of broken invariant, in a file of its own.
//!
//! A pass of the pool runs once ([`PASSES`]). A pass of a fileset runs once for each fileset
//! ([`FILESET_PASSES`]), from the pass `filesets`. Results for later passes go into [`Check`], or
//! into [`FilesetCheck`] for a fileset. Each metadata page is read once, so the pass `anodes` calls
//! the code for the containers that it finds (`attributes`, `directory`, `map.rs`).
//!
//! To add a pass: a file with its `run`, and a line in a table.

pub(crate) mod anode;
pub(crate) mod anode_map;
pub(crate) mod attributes;
pub(crate) mod directory;
mod fileset;
mod group;
mod journal;
mod link;
mod logged;
mod lsn;
mod orphan;
pub(crate) mod quota;
pub(crate) mod segment;
pub(crate) mod superblock;
mod total;

use crate::context::{Check, CheckError};
use crate::tree::FilesetCheck;

pub(crate) struct Pass {
    pub(crate) name: &'static str,
    /// In the unit of [`Check::advance`]; 0 if unknown.
    pub(crate) total: fn(&Check<'_>) -> u64,
    pub(crate) run: fn(&mut Check<'_>) -> Result<(), CheckError>,
}

pub(crate) struct FilesetPass {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Check<'_>, &mut FilesetCheck) -> Result<(), CheckError>,
}

/// The passes over the pool, in order.
pub(crate) const PASSES: [Pass; 8] = [
    // The copies of the superblock other than the current one.
    Pass { name: "superblocks", total: |_| 0, run: superblock::run },
    // The journal's heads; for a pool that was not closed, the log, replayed in memory.
    Pass { name: "journal", total: |_| 0, run: journal::run },
    // The pool's own description of its space: group table, descriptors, segment usage.
    Pass { name: "groups", total: groups, run: group::run },
    // The root page and the fileset table, then each fileset. Collects the used fragments.
    Pass { name: "filesets", total: |check| check.space.fragments_stated, run: fileset::run },
    // Pages changed by the log that no earlier pass read.
    Pass { name: "pages of the log", total: |_| 0, run: logged::run },
    // LSN pages that are older than a page that they list.
    Pass { name: "LSN pages", total: |_| 0, run: lsn::run },
    // Free maps and live counts, compared with the used fragments.
    Pass { name: "segments", total: groups, run: segment::run },
    // Totals of the pool, compared with the sums.
    Pass { name: "totals", total: |_| 0, run: total::run },
];

/// The passes over a fileset, in order.
pub(crate) const FILESET_PASSES: [FilesetPass; 8] = [
    // The anode table and, for each anode, its map, directory pages and attributes. Collects facts
    // of each anode, and the names that lead to it.
    FilesetPass { name: "anodes", run: anode::run },
    // Blocks of files that the pass before has queued.
    FilesetPass { name: "data", run: blocks },
    // Quota records of users, groups and projects, compared with the anodes.
    FilesetPass { name: "quotas", run: quota::compare },
    // The anodes that every fileset has.
    FilesetPass { name: "reserved anodes", run: anode::reserved },
    // The map of numbers in use, compared with the anodes.
    FilesetPass { name: "anode map", run: anode_map::run },
    // The orphan list, compared with the anodes.
    FilesetPass { name: "orphans", run: orphan::run },
    // The containers of attributes, compared with the anodes that name them.
    FilesetPass { name: "attributes", run: attributes::compare },
    // Names, compared with link counts, parents and reachability.
    FilesetPass { name: "links", run: link::run },
];

fn blocks(check: &mut Check<'_>, _: &mut FilesetCheck) -> Result<(), CheckError> {
    check.verify_blocks();
    Ok(())
}

fn groups(check: &Check<'_>) -> u64 {
    check.reader.geometry.group_layout().groups().map(|_| 1).sum()
}
