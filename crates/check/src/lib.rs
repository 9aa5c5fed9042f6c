//! The consistency checker: looks for broken invariants in a whole pool and changes nothing.
//!
//! It shares bytes with the engine, never beliefs: it uses `format` and `storage` alone, derives
//! every fact between structures (who owns a fragment, how many names an anode has) from primary
//! evidence and compares it with what the pool states. So a bug of the engine can't hide itself.
//! A pool that was not closed is checked as the next mount will see it: the log is replayed in
//! memory, by an implementation of its own, and laid over the device.
//!
//! # Layout
//!
//! `pass/mod.rs` has the tables of passes, each in a file of its own.
//!
//! ```text
//!   over the pool           superblock, journal, group, fileset, segment, total
//!   over each fileset       anode, anode_map, orphan, attributes, link
//!   in what the anodes have map (pointers of a container: who owns what), directory, attributes
//!   what passes share       space (used fragments), tree, facts (of the anodes of a fileset)
//!   how they read           sweep (metadata, in physical order, ahead), blocks (of files, later)
//!   under the passes        reader (the device under what a replay would write), replay, lookup
//! ```
//!
//! # Memory
//!
//! One bit a fragment and 8 bytes a segment of the groups in use (32 KiB and 8 KiB for a group of
//! 1 GiB), some 85 bytes (`facts`) for each anode of the fileset in hand and, for a pool that was
//! not closed, what its log writes. All of it is counted, and a check that would pass
//! [`Options::memory_bytes_max`] stops and says so. What does not grow with the pool is not
//! counted: what is being read (16 MiB), what `sweep` has read ahead, and blocks that wait.
//!
//! Not here: what a pool holds as text (`inspect`, which reads it the same way), repair, and what
//! each code means for the user (`docs/CHECK.md`).

mod blocks;
pub mod convert;
mod facts;
pub mod lookup;
mod lsn;
mod map;
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

use format::ids::Place;
use storage::device::SharedDevice;
use storage::pool::SuperblockReport;

use crate::blocks::BlockWaiting;
use crate::pass::{PASSES, Pass};
use crate::reader::{ReadError, Reader};
use crate::report::{Finding, Report};
use crate::space::Space;
use crate::sweep::Sweep;
use format::defect::{Defect, DefectCode, Subject};

/// What to check, and at what cost.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether to read every block of every file and verify its checksum.
    pub data: bool,
    /// Bytes of memory past which the check stops.
    pub memory_bytes_max: u64,
}

/// Default bound on memory: a full pool of 16 TiB needs 640 MiB for its space, and 30 million
/// anodes about 3 GiB.
pub const MEMORY_BYTES_MAX_DEFAULT: u64 = 4 << 30;

impl Default for Options {
    fn default() -> Options {
        Options { data: true, memory_bytes_max: MEMORY_BYTES_MAX_DEFAULT }
    }
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The pass at work.
    pub pass: &'static str,
    /// Fragments, or groups, that it has dealt with.
    pub done: u64,
    /// How many there are, as the pool says, and never less than `done`; 0: not known.
    pub total: u64,
}

/// Pages and blocks between two reports of progress.
const PROGRESS_INTERVAL: u64 = 1024;

/// Why a check could not be done to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stop {
    /// Not a pool, or not one that this software reads.
    #[error(transparent)]
    Pool(#[from] storage::pool::PoolError),
    /// More memory is needed than is allowed: raise the bound.
    #[error(
        "needs more than the {limit} bytes of memory that it may take; give it more with --memory"
    )]
    Memory { limit: u64 },
}

/// What the passes share.
pub(crate) struct Check<'run> {
    pub(crate) superblock: SuperblockReport,
    pub(crate) reader: Arc<Reader>,
    pub(crate) options: Options,
    pub(crate) report: Report,
    pub(crate) space: Space,
    pub(crate) sweep: Sweep,
    /// Blocks that were claimed, and whose bytes are not verified yet.
    pub(crate) blocks_waiting: Vec<BlockWaiting>,
    /// Whether it is a clone that is looked at.
    pub(crate) is_clone: bool,
    /// Whether the page that is looked at, of a table or a directory, is no other fileset's too.
    pub(crate) is_own_page: bool,
    /// Whether some page that leads to others could not be used, so that what was found is not
    /// all there is, and nothing follows from what was not found.
    pub(crate) is_incomplete: bool,
    /// Whether the log could not be replayed, so that all of it may lie between two states.
    pub(crate) is_torn: bool,
    /// Bytes of memory that grow with the pool.
    pub(crate) memory_bytes: u64,
    /// Whether more was wanted than is allowed.
    is_over: bool,
    progress: &'run mut dyn FnMut(Progress),
    pass: &'static str,
    done: u64,
    total: u64,
}

impl Check<'_> {
    /// Notes a defect.
    pub(crate) fn defect(
        &mut self,
        code: DefectCode,
        subject: Subject,
        place: Option<Place>,
        what: String,
    ) {
        self.found(Defect { place, ..code.found(what) }, subject);
    }

    /// Notes a defect of `subject`.
    pub(crate) fn found(&mut self, defect: Defect, subject: Subject) {
        let defect = Defect { subject, ..defect };
        let geometry = &self.reader.geometry;
        let device_offset = defect.place.and_then(|place| geometry.device_offset(place, 1));
        self.report.add(Finding { defect, path: None, device_offset });
    }

    /// Notes that a page can't be used; what it leads to stays unknown.
    pub(crate) fn bad_page(&mut self, subject: Subject, place: Place, error: ReadError) {
        self.is_incomplete = true;
        self.found(Defect::from(error).at(place), subject);
    }

    /// Counts memory that grows with the pool.
    pub(crate) fn take_memory(&mut self, bytes: u64) -> Result<(), Stop> {
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        let limit = self.options.memory_bytes_max;
        self.is_over |= self.memory_bytes > limit;
        if self.is_over { Err(Stop::Memory { limit }) } else { Ok(()) }
    }

    /// Says that `count` more were dealt with.
    pub(crate) fn advance(&mut self, count: u64) {
        let before = self.done / PROGRESS_INTERVAL;
        self.done += count;
        if self.done / PROGRESS_INTERVAL != before {
            self.tell();
        }
    }

    fn begin(&mut self, pass: &Pass) {
        (self.pass, self.done) = (pass.name, 0);
        self.total = (pass.total)(self);
        self.tell();
    }

    /// Says that a step of the pass begins.
    pub(crate) fn step(&mut self, name: &'static str) {
        self.pass = name;
        self.tell();
    }

    fn tell(&mut self) {
        // What the pool says of itself may be too little.
        let done = if self.total == 0 { self.done } else { self.done.min(self.total) };
        (self.progress)(Progress { pass: self.pass, done, total: self.total });
    }
}

/// Checks the pool on `device`, which is only read, and returns what was found.
///
/// A check that could not be done, or not to its end, says why in [`Report::stopped`].
pub fn run(device: SharedDevice, options: Options, progress: &mut dyn FnMut(Progress)) -> Report {
    let title = format!("check of {}", device.info().name);
    let mut report = Report { title, ..Report::default() };
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
        space: Space::new(geometry.clone()),
        sweep: Sweep::default(),
        blocks_waiting: Vec::new(),
        reader: Arc::new(Reader::new(device, geometry, pool_id)),
        options,
        report,
        is_clone: false,
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
        check.begin(pass);
        // What a pass could not return, because it was deep in a walk, is said again here.
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
