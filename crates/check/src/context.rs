//! The state of a check, which all passes share: the pool, the report, progress and memory.

use std::sync::Arc;

use format::defect::{Defect, DefectCode, Subject};
use format::ids::Place;
use format::pointer::BlockPointer;
use storage::pool::SuperblockReport;

use crate::reader::{PoolReader, ReadError};
use crate::report::{ConsistencyReport, DefectFinding};
use crate::space::FragmentSpace;
use crate::sweep::Sweep;

/// Scope and bounds of a check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Whether to read every block of every file and verify its checksum.
    pub data: bool,
    /// Bytes of memory past which the check stops.
    pub memory_bytes_max: u64,
}

/// Default bound on memory. The space of a full pool of 16 TiB takes 700 MiB, and 30 million anodes
/// about 2.4 GiB.
pub const MEMORY_BYTES_MAX_DEFAULT: u64 = 4 << 30;

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { data: true, memory_bytes_max: MEMORY_BYTES_MAX_DEFAULT }
    }
}

/// Progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// The current pass or step.
    pub pass: &'static str,
    /// Fragments, or groups, that the pass has finished.
    pub done: u64,
    /// Expected number by the pool's own counts, at least `done`; 0 if unknown.
    pub total: u64,
}

const PROGRESS_INTERVAL: u64 = 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    /// Not a pool, or one of an unsupported format.
    #[error(transparent)]
    Pool(#[from] storage::pool::PoolError),
    /// More memory is needed than is allowed: raise the bound.
    #[error(
        "needs more than the {limit} bytes of memory that it may take; give it more with --memory"
    )]
    Memory { limit: u64 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct UncheckedBlock {
    pub(crate) subject: Subject,
    pub(crate) index: u64,
    pub(crate) pointer: BlockPointer,
}

const _: () = assert!(size_of::<UncheckedBlock>() <= 96);

pub(crate) struct Check<'run> {
    pub(crate) superblock: SuperblockReport,
    pub(crate) reader: Arc<PoolReader>,
    pub(crate) options: CheckOptions,
    pub(crate) report: ConsistencyReport,
    pub(crate) space: FragmentSpace,
    pub(crate) sweep: Sweep,
    pub(crate) blocks_waiting: Vec<UncheckedBlock>,
    pub(crate) is_snapshot: bool,
    /// No other fileset shares the current page of a table or a directory.
    pub(crate) is_own_page: bool,
    /// A page with pointers was unusable, so the absence of something proves nothing.
    pub(crate) is_incomplete: bool,
    /// The replay of the log failed: the state may lie between two transactions.
    pub(crate) is_torn: bool,
    pub(crate) memory_bytes: u64,
    pub(crate) is_over: bool,
    pub(crate) progress: &'run mut dyn FnMut(CheckProgress),
    pub(crate) pass: &'static str,
    pub(crate) done: u64,
    pub(crate) total: u64,
}

impl Check<'_> {
    pub(crate) fn defect(
        &mut self,
        code: DefectCode,
        subject: Subject,
        place: Option<Place>,
        what: String,
    ) {
        self.found(Defect { place, ..code.found(what) }, subject);
    }

    pub(crate) fn found(&mut self, defect: Defect, subject: Subject) {
        let defect = Defect { subject, ..defect };
        let geometry = &self.reader.geometry;
        let device_offset = defect.place.and_then(|place| geometry.device_offset(place, 1));
        self.report.add(DefectFinding { defect, path: None, device_offset });
    }

    pub(crate) fn bad_page(&mut self, subject: Subject, place: Place, error: ReadError) {
        self.is_incomplete = true;
        self.found(Defect::from(error).at(place), subject);
    }

    /// Counts memory that grows with the pool.
    ///
    /// # Errors
    ///
    /// [`CheckError::Memory`] past the bound: end the pass.
    pub(crate) fn take_memory(&mut self, bytes: u64) -> Result<(), CheckError> {
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        let limit = self.options.memory_bytes_max;
        self.is_over |= self.memory_bytes > limit;
        if self.is_over { Err(CheckError::Memory { limit }) } else { Ok(()) }
    }

    pub(crate) fn advance(&mut self, count: u64) {
        let before = self.done / PROGRESS_INTERVAL;
        self.done += count;
        if self.done / PROGRESS_INTERVAL != before {
            self.tell();
        }
    }

    /// Begins pass `pass`, which has `total` units of work.
    pub(crate) fn begin(&mut self, pass: &'static str, total: u64) {
        (self.pass, self.done, self.total) = (pass, 0, total);
        self.tell();
    }

    pub(crate) fn step(&mut self, name: &'static str) {
        self.pass = name;
        self.tell();
    }

    fn tell(&mut self) {
        let done = if self.total == 0 { self.done } else { self.done.min(self.total) };
        (self.progress)(CheckProgress { pass: self.pass, done, total: self.total });
    }
}
