//! The passes of a check: each looks for one kind of broken invariant, in a file of its own.
//!
//! A pass of the pool runs once ([`PASSES`]); a pass of a fileset runs once for each fileset
//! ([`FILESET_PASSES`]), from the pool's pass `filesets`. A pass leaves what later ones need in
//! [`Check`], or in [`Tree`] for its fileset. Each metadata page is read once: what looks into the
//! containers that the pass `anodes` comes across (`attributes`, `directory`, `map.rs`) is called
//! from there.
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
mod orphan;
pub(crate) mod quota;
pub(crate) mod segment;
pub(crate) mod superblock;
mod total;

use crate::tree::Tree;
use crate::{Check, Stop, blocks};

/// A look at the whole pool.
pub(crate) struct Pass {
    /// For progress.
    pub(crate) name: &'static str,
    /// How much there is to do, in the unit of [`Check::advance`]; 0: not known.
    pub(crate) total: fn(&Check<'_>) -> u64,
    pub(crate) run: fn(&mut Check<'_>) -> Result<(), Stop>,
}

/// A look at one fileset.
pub(crate) struct FilesetPass {
    /// For progress.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Check<'_>, &mut Tree) -> Result<(), Stop>,
}

/// The passes over the pool, in order.
pub(crate) const PASSES: [Pass; 8] = [
    // The copies of the superblock that are not the current one.
    Pass { name: "superblocks", total: |_| 0, run: superblock::run },
    // The journal's heads; of a pool that was not closed the log, replayed in memory.
    Pass { name: "journal", total: |_| 0, run: journal::run },
    // What the pool says of its space: group table, descriptors, segment usage.
    Pass { name: "groups", total: groups, run: group::run },
    // The root page and the fileset table, then each fileset. Collects which fragments are used.
    Pass { name: "filesets", total: |check| check.space.fragments_stated, run: fileset::run },
    // Pages that the log changes, and that no pass before has looked at.
    Pass { name: "pages of the log", total: |_| 0, run: logged::run },
    // LSN pages that are older than a page that they list.
    Pass { name: "LSN pages", total: |_| 0, run: crate::lsn::run },
    // What was found against what the pool says: free maps, live counts.
    Pass { name: "segments", total: groups, run: segment::run },
    // The same of the totals.
    Pass { name: "totals", total: |_| 0, run: total::run },
];

/// The passes over a fileset, in order.
pub(crate) const FILESET_PASSES: [FilesetPass; 8] = [
    // The anode table, and in each anode its map, its directory pages, its attributes. Collects
    // facts of each anode, and the names that lead to it.
    FilesetPass { name: "anodes", run: anode::run },
    // The blocks of files that the pass before has found and not read.
    FilesetPass { name: "data", run: blocks::run },
    // What users, groups and projects have, as their records say, against the anodes.
    FilesetPass { name: "quotas", run: quota::compare },
    // The anodes that every fileset has.
    FilesetPass { name: "reserved anodes", run: anode::reserved },
    // The map of numbers in use against the anodes.
    FilesetPass { name: "anode map", run: anode_map::run },
    // The orphan list against the anodes.
    FilesetPass { name: "orphans", run: orphan::run },
    // The containers of attributes against the anodes that name them.
    FilesetPass { name: "attributes", run: attributes::compare },
    // Names against link counts, parents, reachability.
    FilesetPass { name: "links", run: link::run },
];

fn groups(check: &Check<'_>) -> u64 {
    check.reader.geometry.groups().map(|_| 1).sum()
}
