//! The consistency checker: finds broken invariants in a whole pool, without changing it.
//!
//! It depends on `format` and `storage` alone, never on the engine. It derives every relation
//! between structures (owners of fragments, names of an anode) from primary evidence and compares
//! it with the pool's own counts, so a bug of the engine cannot hide itself. A pool that was not
//! closed is checked in the state of the next mount: an independent implementation replays the log
//! in memory, as an overlay on the device.
//!
//! # Layout
//!
//! `pass/mod.rs` has the tables of passes, each in a file of its own.
//!
//! ```text
//!   over the pool           superblock, journal, group, fileset, segment, total
//!   over each fileset       anode, anode_map, orphan, attributes, link
//!   in the anodes           map (pointers and owners of fragments), directory, attributes
//!   shared by the passes    context (the check's state), space (used fragments), claims (of them),
//!                           tree, facts (of the anodes of a fileset)
//!   reading                 sweep (metadata, in physical order, ahead), blocks (of files, later)
//!   under the passes        reader (the device under the replay's overlay), replay, lookup
//! ```
//!
//! # Memory
//!
//! Counted are: one bit a fragment and 12 bytes a segment of the groups in use (32 KiB and 12 KiB
//! for a group of 1 GiB), some 85 bytes (`facts`) for each anode of the current fileset and, for a
//! pool that was not closed, the replay's overlay. A check that would exceed
//! [`CheckOptions::memory_bytes_max`] stops and reports that. Buffers with fixed bounds are not
//! counted: reads in flight (16 MiB), the runs of `sweep`, and queued blocks.
//!
//! Not here: printing a pool's structures (`inspect`, through the same reader), repair, and the
//! user's view of each code (`docs/CHECK.md`).
//!
//! Layers, lowest first: `convert`, `report`, `reader`, `replay`, `facts`, `space`, `free_map`,
//! `sweep`, `context`, `claims`, `pages`, `blocks`, `map`, `tree`, `lookup`, `path`, `pass`.

mod blocks;
mod claims;
mod context;
pub mod convert;
mod facts;
mod free_map;
pub mod lookup;
mod map;
mod pages;
mod pass;
mod path;
pub mod reader;
pub mod replay;
pub mod report;
mod space;
mod sweep;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;

use storage::device::SharedDevice;

use crate::context::Check;
use crate::pass::PASSES;
use crate::reader::PoolReader;
use crate::report::ConsistencyReport;
use crate::space::FragmentSpace;
use crate::sweep::Sweep;

pub use crate::context::{CheckOptions, CheckProgress, MEMORY_BYTES_MAX_DEFAULT};

/// Checks the pool on `device`, which is only read.
///
/// A check that stopped early gives the reason in [`ConsistencyReport::stopped`].
pub fn run(
    device: SharedDevice,
    options: CheckOptions,
    progress: &mut dyn FnMut(CheckProgress),
) -> ConsistencyReport {
    let title = format!("check of {}", device.info().name);
    let mut report = ConsistencyReport { title, ..ConsistencyReport::default() };
    let superblock = match pass::superblock::open(&device) {
        Ok(superblock) => superblock,
        Err(stop) => {
            report.stopped = Some(stop.to_string());
            return report;
        }
    };
    report.title = pass::superblock::title(&device, &superblock.current);
    let (geometry, pool_id) = (superblock.current.geometry.clone(), superblock.current.pool_id);
    let mut check = Check {
        superblock,
        space: FragmentSpace::new(geometry.clone()),
        sweep: Sweep::default(),
        blocks_waiting: Vec::new(),
        reader: Arc::new(PoolReader::new(device, geometry, pool_id)),
        options,
        report,
        is_snapshot: false,
        is_own_page: true,
        is_incomplete: false,
        is_torn: false,
        memory_bytes: 0,
        is_over: false,
        progress,
        pass: "",
        done: 0,
        total: 0,
    };
    for pass in &PASSES {
        let total = (pass.total)(&check);
        check.begin(pass.name, total);
        // A pass deep in a walk cannot return this error, so it is checked here.
        let done = (pass.run)(&mut check);
        if let Err(stop) = done.and_then(|()| check.take_memory(0)) {
            check.report.stopped = Some(stop.to_string());
            break;
        }
    }
    let from_copies = check.reader.from_copies();
    if from_copies > 0 {
        check.report.notes.push(format!(
            "{from_copies} pages and blocks are bad on one device, and the others give them: they \
             are written again when a mount reads them there"
        ));
    }
    check.report
}
