//! Discard jobs: return free segments to the devices, so that a pool's file takes no more space
//! than the pool uses.
//!
//! A standing job discards segments that have been free for some time. A walk ([`Trim`]) discards
//! all free segments, on request. Only memory records which segments are discarded. So after a
//! mount the standing job discards each free segment once more.
//!
//! The standing job waits for [`DiscardOptions::after`], because the discard of a segment that is
//! reused soon is wasted work. The job works for at most [`STEP_NS`] per tick, a few times a
//! second. Invariants and crashes: `alloc::discard`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runtime::planted;
use storage::device::DeviceError;

use super::pieces::PASSED_OVER_MAX;
use super::{Job, JobProgress, StepBudget, StepOutcome};
use crate::alloc::{DiscardSelection, HeldSegments, SegmentId};
use crate::convert::narrow;
use crate::error::FsResult;
use crate::file::Core;
use crate::sync::Mutex;

/// Longest time for discards per tick: the time of about one read of a disk.
const STEP_NS: u64 = 25_000_000;
/// Most bytes of one discard: a writer that finds no free segment waits for its end (DH2).
const DISCARD_BYTES: u64 = 16 << 20;
/// Failures after which discards stop: the device has a fault, and nothing depends on discards.
const FAILURES_MAX: u64 = 8;

/// Options of the automatic discard of free segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardOptions {
    /// Disk groups to discard on.
    pub on: DiscardScope,
    /// Time that a segment must have been free.
    pub after: Duration,
}

/// Disk groups on which free segments are discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardScope {
    /// Disk groups entirely on files with holes.
    #[default]
    SparseFiles,
    /// All except striped ones.
    All,
    /// None.
    None,
}

impl DiscardOptions {
    /// Discards without delay, on all disk groups that allow it.
    #[must_use]
    pub fn at_once() -> DiscardOptions {
        DiscardOptions { on: DiscardScope::All, after: Duration::ZERO }
    }
}

impl Default for DiscardOptions {
    fn default() -> DiscardOptions {
        DiscardOptions { on: DiscardScope::default(), after: Duration::from_secs(5) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct DiscardCounters {
    discards: AtomicU64,
    bytes: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// Counts of discards since the open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardCounts {
    /// Successful discards.
    pub discards: u64,
    /// Bytes of the pool in successful discards.
    pub bytes: u64,
    /// Discards refused by devices without support.
    pub refused: u64,
    /// Discards that failed.
    pub failed: u64,
    /// Bytes of the pool unusable until the next mount, because the device may still execute a
    /// discard of them.
    pub withheld_bytes: u64,
}

impl DiscardCounters {
    fn count(&self, answer: &Result<(), DeviceError>, bytes: u64) {
        let (counter, by) = match answer {
            Ok(()) => (&self.discards, 1),
            Err(DeviceError::NoDiscard { .. }) => (&self.refused, 1),
            // Not counted: an earlier discard is still outstanding, so this one was not sent.
            Err(DeviceError::Stalled { .. }) => (&self.failed, 0),
            Err(_) => (&self.failed, 1),
        };
        let before = counter.fetch_add(by, Ordering::Relaxed);
        if by > 0 && answer.is_err() && self.failed() == FAILURES_MAX && before < FAILURES_MAX {
            tracing::warn!(
                "{FAILURES_MAX} discards have failed: free space is not discarded before the next \
                 mount"
            );
        }
        if answer.is_ok() {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self, core: &Core) -> DiscardCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiscardCounts {
            discards: of(&self.discards),
            bytes: of(&self.bytes),
            refused: of(&self.refused),
            failed: of(&self.failed),
            withheld_bytes: core.store.alloc.withheld.fragments()
                << core.store.geometry().fragment_shift,
        }
    }
}

/// Discards held segments and returns them to the allocator (DH1).
fn discard(core: &Core, held: HeldSegments<'_>) -> (u64, Result<(), DeviceError>) {
    let geometry = core.store.geometry();
    let SegmentId { group, segment } = held.first;
    let place = geometry.segment_place(group, segment);
    let bytes = u64::from(held.count) * geometry.segment_bytes();
    let ticket = core.store.volume.submit_discard(place, held.count * geometry.segment_fragments);
    let answer = if planted!(DiscardNotAwaited) { Ok(()) } else { ticket.wait().map(drop) };
    held.end(&answer);
    if let Err(error) = &answer
        && !matches!(error, DeviceError::NoDiscard { .. } | DeviceError::Stalled { .. })
    {
        tracing::warn!(%error, group, segment, "free segments were not discarded");
    }
    (bytes, answer)
}

fn segments_at_once(core: &Core) -> u32 {
    narrow((DISCARD_BYTES / core.store.geometry().segment_bytes()).max(1))
}

#[derive(Debug)]
pub(crate) struct DiscardJob {
    options: DiscardOptions,
    pub(crate) counters: Arc<DiscardCounters>,
    at: Mutex<DiscardPosition>,
}

#[derive(Debug, Default)]
struct DiscardPosition {
    looked_ns: Option<u64>,
    /// Next segment to examine. `None` after the end of a round.
    next: Option<SegmentId>,
}

impl DiscardJob {
    pub(crate) fn new(options: DiscardOptions) -> DiscardJob {
        DiscardJob { options, counters: Arc::default(), at: Mutex::default() }
    }

    fn is_wanted(&self, core: &Core, group: u32) -> bool {
        let volume = &core.store.volume;
        let is_on = match self.options.on {
            DiscardScope::All => true,
            DiscardScope::SparseFiles => {
                volume.is_sparse(core.store.geometry().segment_place(group, 0))
            }
            DiscardScope::None => false,
        };
        is_on && volume.may_discard(group)
    }

    /// Discards the next segments. Returns the segment after them, or `None` at the end.
    fn discard_next(&self, core: &Core, next: SegmentId) -> FsResult<Option<SegmentId>> {
        let alloc = &core.store.alloc;
        let Some(group) = alloc.loaded_from(next.group) else { return Ok(None) };
        let from = if group == next.group { next } else { SegmentId { group, segment: 0 } };
        let behind = SegmentId { group: group.saturating_add(1), segment: 0 };
        if !self.is_wanted(core, group) {
            return Ok(Some(behind));
        }
        let most = segments_at_once(core);
        let Some(held) = alloc.hold_free(DiscardSelection::FreeLong, from, most)? else {
            return Ok(Some(behind));
        };
        let after = SegmentId { group, segment: held.first.segment + held.count };
        let (bytes, answer) = discard(core, held);
        self.counters.count(&answer, bytes);
        Ok(Some(after))
    }
}

impl Job for DiscardJob {
    fn name(&self) -> &'static str {
        "discards"
    }

    fn step(&self, core: &Core, now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        if self.options.on == DiscardScope::None || self.counters.failed() >= FAILURES_MAX {
            return Ok(StepOutcome::Wait);
        }
        let after_ns = u64::try_from(self.options.after.as_nanos()).unwrap_or(u64::MAX);
        let mut next = {
            let mut at = self.at.lock();
            let is_due = at.looked_ns.is_none_or(|then| now_ns.saturating_sub(then) >= after_ns);
            if at.next.is_none() && is_due {
                if after_ns == 0 {
                    core.store.alloc.note_free_long();
                }
                at.looked_ns = Some(now_ns);
                at.next = Some(SegmentId::FIRST);
            }
            at.next
        };
        let has_begun = next.is_some();
        let clock = &core.store.clock;
        for _ in 0..budget.units {
            let Some(from) = next else { break };
            next = self.discard_next(core, from)?;
            if clock.monotonic_ns().saturating_sub(now_ns) >= STEP_NS {
                break;
            }
        }
        if has_begun && next.is_none() {
            // Segments that are free now, and still free in the next round, count as free for long.
            core.store.alloc.note_free_long();
        }
        self.at.lock().next = next;
        Ok(StepOutcome::Wait)
    }
}

/// Why a pool cannot be trimmed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrimError {
    /// Nothing to do.
    #[error(
        "nothing to discard: all disk groups are of kind raid5 or stripe, and these are never \
         discarded; do not schedule a trim of this pool"
    )]
    Stripes,
    /// Mount the pool for writing.
    #[error("the pool is read-only: mount it for writing")]
    ReadOnly,
    /// The pool takes no changes.
    #[error(transparent)]
    Files(#[from] crate::error::FsError),
}

#[derive(Debug, Default)]
pub(crate) struct TrimCounts {
    counters: DiscardCounters,
    discarded_bytes: AtomicU64,
    refused_bytes: AtomicU64,
    striped_bytes: AtomicU64,
    is_done: AtomicU64,
}

/// Report of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimReport {
    /// Bytes of free segments discarded.
    pub discarded_bytes: u64,
    /// Bytes of free segments on devices without support for discards.
    pub refused_bytes: u64,
    /// Bytes of the pool in stripes, which are not discarded.
    pub striped_bytes: u64,
    /// Failed discards. The log has the reasons.
    pub failed: u64,
    /// Whether the trim has ended.
    pub is_done: bool,
}

impl TrimCounts {
    pub(crate) fn report(&self) -> TrimReport {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrimReport {
            discarded_bytes: of(&self.discarded_bytes),
            refused_bytes: of(&self.refused_bytes),
            striped_bytes: of(&self.striped_bytes),
            failed: self.counters.failed(),
            is_done: of(&self.is_done) > 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Trim {
    next: Mutex<SegmentId>,
    done: AtomicU64,
    counts: Arc<TrimCounts>,
    all: Arc<DiscardCounters>,
}

impl Trim {
    pub(crate) fn new(counts: &Arc<TrimCounts>, all: &Arc<DiscardCounters>) -> Trim {
        let next = Mutex::new(SegmentId::FIRST);
        Trim { next, done: AtomicU64::new(0), counts: Arc::clone(counts), all: Arc::clone(all) }
    }

    fn pass_over(&self, core: &Core, group: u32) {
        let geometry = core.store.geometry();
        if geometry.group_layout().is_striped(group) {
            let bytes = u64::from(geometry.segments_of(group)) * geometry.segment_bytes();
            self.counts.striped_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn discard_next(&self, core: &Core, from: SegmentId) -> FsResult<Option<SegmentId>> {
        let most = segments_at_once(core);
        let Some(held) = core.store.alloc.hold_free(DiscardSelection::Free, from, most)? else {
            return Ok(None);
        };
        let after = SegmentId { segment: held.first.segment + held.count, ..held.first };
        let (bytes, answer) = discard(core, held);
        for counters in [self.all.as_ref(), &self.counts.counters] {
            counters.count(&answer, bytes);
        }
        match answer {
            Ok(()) => _ = self.counts.discarded_bytes.fetch_add(bytes, Ordering::Relaxed),
            Err(DeviceError::NoDiscard { .. }) => {
                self.counts.refused_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(_) => {}
        }
        Ok(Some(after))
    }
}

impl Job for Trim {
    fn name(&self) -> &'static str {
        "trim"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        let (mut units, mut passed_over) = (0, 0);
        while units < budget.units && passed_over < PASSED_OVER_MAX {
            if self.counts.counters.failed() >= FAILURES_MAX {
                self.counts.is_done.store(1, Ordering::Relaxed);
                return Ok(StepOutcome::Done);
            }
            let next = *self.next.lock();
            let geometry = core.store.geometry();
            let Some(group) = geometry.group_layout().groups().find(|group| *group >= next.group)
            else {
                self.counts.is_done.store(1, Ordering::Relaxed);
                return Ok(StepOutcome::Done);
            };
            let from = if group == next.group { next } else { SegmentId { group, segment: 0 } };
            let after = match core.store.volume.may_discard(group) {
                true => self.discard_next(core, from)?,
                false => None,
            };
            if after.is_none() {
                self.pass_over(core, group);
                self.done.fetch_add(1, Ordering::Relaxed);
                passed_over += 1;
            } else {
                units += 1;
            }
            *self.next.lock() = after.unwrap_or(SegmentId { group: group + 1, segment: 0 });
        }
        Ok(StepOutcome::Again)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let total = u64::try_from(core.store.geometry().group_layout().groups().count()).ok()?;
        Some(JobProgress { done: self.done.load(Ordering::Relaxed), total })
    }
}
