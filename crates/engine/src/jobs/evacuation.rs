//! Evacuation: empties a leaving disk group and then removes it, or empties the last allocation
//! groups of a disk group that shrinks.
//!
//! # Invariants
//!
//! - EV1: A disk group is removed only when nothing in it is in use except the fixed pages at the
//!   front of its allocation groups, its deferred frees are released (G2), and a checkpoint has
//!   moved the log's tail past all records about it. The same holds for the last allocation groups
//!   of a disk group.
//!
//! # Crashes
//!
//! The labels record the state *leaving* before the first move, so that an open resumes the job.
//! There is no cursor (JO2): the disk group's segment usage shows which segments are emptied, and a
//! crash repeats the moves since the last checkpoint. At the end the entries in the group table are
//! cleared in transactions, then a checkpoint follows, then the labels are written without the disk
//! group. A crash in between leaves an empty disk group that is still leaving.
//!
//! The cleaner moves blocks, including those shared with snapshots. `relocate::pages` moves
//! metadata pages.
//!
//! Not here: the check for space elsewhere (`pool::disk_groups`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::disk_group::GroupRange;
use format::geometry::Geometry;
use format::ids::Place;
use runtime::planted;

use storage::device::{IoPurpose, Ticket};
use storage::volume::AddGroupError;

use super::cleaner::Cleaner;
use super::pieces::LOST_NAMED_MAX;
use super::{Job, JobProgress, StepBudget, StepOutcome};
use crate::alloc::{LOW_SEGMENTS, SegmentId};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::file::{Core, log_affected};
use crate::relocate::shared::UnreadableBlock;
use crate::sync::Mutex;

const SEGMENTS_PER_STEP: usize = 8;
const NAMED_MAX: usize = 8;
/// Segments emptied between two checkpoints. A checkpoint costs a disk as much as twenty segments.
const UNSETTLED_MAX: u64 = 256;
/// Steps without progress, after which each further step waits for a tick.
const STALLED_STEPS_MAX: u64 = 4;
/// Idle steps before the job fails. A block of a file with a closed gate can only be moved later.
const IDLE_STEPS_MAX: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvacuationScope {
    DiskGroup(u8),
    /// The last allocation groups of a disk group.
    LastGroups(u8),
}

impl EvacuationScope {
    /// Returns the allocation groups to empty; `None` if there are none, or they are gone already.
    fn numbers(self, geometry: &Geometry) -> Option<impl Iterator<Item = u32> + Clone + '_> {
        let (number, from) = match self {
            EvacuationScope::DiskGroup(number) => {
                let is_it = |range: &GroupRange| range.disk_group == number && range.is_leaving;
                geometry.added.iter().find(|range| is_it(range))?;
                (number, 0)
            }
            EvacuationScope::LastGroups(number) => {
                let last = geometry.last_groups.filter(|last| last.disk_group == number)?;
                (number, last.first)
            }
        };
        // Groups of a round-robin need not be contiguous.
        let is_own = move |group: &u32| {
            *group >= from && geometry.group_layout().disk_group_of(*group) == Some(number)
        };
        Some(geometry.group_layout().numbers_of(number).filter(is_own))
    }
}

#[derive(Debug)]
pub(crate) struct Evacuation {
    leaving: EvacuationScope,
    name: String,
    cleaner: Arc<Cleaner>,
    total_bytes: AtomicU64,
    /// Least bytes in use so far.
    least_bytes: AtomicU64,
    /// Steps since `least_bytes` fell.
    stalled_steps: AtomicU64,
    idle_steps: AtomicU64,
    /// Segments emptied since the last checkpoint.
    unsettled: AtomicU64,
    /// Flush of the last step's moves, issued beside the next step's reads. Without it a commit
    /// would have to wait until the devices have written their full caches.
    flushing: Mutex<Option<Ticket>>,
    /// Unreadable blocks by place, with the paths of their files.
    unread: Mutex<BTreeMap<Place, String>>,
    data_turn: LastTriedSegment,
    page_turn: LastTriedSegment,
}

#[derive(Debug, Default)]
struct LastTriedSegment(Mutex<Option<SegmentId>>);

impl LastTriedSegment {
    /// Returns the next segments in turn, and whether they end a round over all. So segments that
    /// cannot be emptied do not block the others.
    fn choose(&self, left: &[SegmentId]) -> (Vec<SegmentId>, bool) {
        let mut last = self.0.lock();
        let behind = |id: &SegmentId| {
            last.is_some_and(|last: SegmentId| (id.group, id.segment) > (last.group, last.segment))
        };
        let first = left.iter().position(behind).unwrap_or(0);
        let turn = left.iter().cycle().skip(first).take(left.len().min(SEGMENTS_PER_STEP));
        let chosen: Vec<SegmentId> = turn.copied().collect();
        *last = chosen.last().copied().or(*last);
        (chosen, first + SEGMENTS_PER_STEP >= left.len())
    }
}

impl Evacuation {
    pub(crate) fn new(leaving: EvacuationScope, cleaner: &Arc<Cleaner>) -> Evacuation {
        let name = match leaving {
            EvacuationScope::DiskGroup(number) => format!("emptying disk group {number}"),
            EvacuationScope::LastGroups(number) => {
                format!("emptying the last allocation groups of disk group {number}")
            }
        };
        Evacuation {
            leaving,
            name,
            cleaner: Arc::clone(cleaner),
            total_bytes: AtomicU64::new(0),
            least_bytes: AtomicU64::new(u64::MAX),
            idle_steps: AtomicU64::new(0),
            stalled_steps: AtomicU64::new(0),
            unsettled: AtomicU64::new(0),
            flushing: Mutex::new(None),
            unread: Mutex::default(),
            data_turn: LastTriedSegment::default(),
            page_turn: LastTriedSegment::default(),
        }
    }

    /// EV1: removes the emptied part.
    fn take_out(
        &self,
        core: &Core,
        numbers: impl Iterator<Item = u32> + Clone,
    ) -> FsResult<StepOutcome> {
        // All members must be online, since the labels of all have to be written.
        if let EvacuationScope::LastGroups(disk_group) = self.leaving
            && core.store.volume.membership().lacks_in(disk_group)
        {
            return Ok(StepOutcome::Wait);
        }
        core.store.journal.checkpoint()?;
        if !core.store.alloc.group_space().forget_groups(numbers)? {
            return Ok(StepOutcome::Wait);
        }
        // CRASH: the checkpoint comes first. Else redo could refer to pages without a place.
        let checkpoints = if planted!(TakenOutBeforeCheckpoint) { 0 } else { 2 };
        (0..checkpoints).try_for_each(|_| core.store.journal.checkpoint())?;
        match self.leaving {
            EvacuationScope::DiskGroup(disk_group) => {
                let taken = core.store.volume.membership().take_group_out(disk_group);
                taken.map_err(|error| {
                    if let AddGroupError::Device(cause) = &error {
                        return core.store.journal.fail(cause);
                    }
                    FsError::io(error.to_string())
                })?;
                core.store.alloc.group_space().note_disk_groups()?;
                tracing::info!(disk_group, "the disk group is empty, and was taken out");
                Ok(StepOutcome::Done)
            }
            // The reshape job continues from here.
            EvacuationScope::LastGroups(_) => Ok(StepOutcome::Done),
        }
    }

    fn note(&self, left_bytes: u64) -> bool {
        self.total_bytes.fetch_max(left_bytes, Ordering::Relaxed);
        let gets_on = left_bytes < self.least_bytes.fetch_min(left_bytes, Ordering::Relaxed);
        if gets_on {
            self.stalled_steps.store(0, Ordering::Relaxed);
            self.idle_steps.store(0, Ordering::Relaxed);
        }
        gets_on
    }

    fn note_idle(&self, left_bytes: u64, segments: usize) -> FsResult<()> {
        // After so many more steps each segment has had its turn.
        let round = wide(segments.div_ceil(SEGMENTS_PER_STEP));
        if self.idle_steps.fetch_add(1, Ordering::Relaxed) < IDLE_STEPS_MAX + round {
            return Ok(());
        }
        self.idle_steps.store(0, Ordering::Relaxed);
        let (EvacuationScope::DiskGroup(number) | EvacuationScope::LastGroups(number)) =
            self.leaving;
        // Cleared, because a resumed job starts over.
        let names: BTreeSet<String> =
            std::mem::take(&mut *self.unread.lock()).into_values().collect();
        let named: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
        let what = match named.as_slice() {
            [] => "run `holdfast check POOL`, which tells whose they are, and resume the job"
                .to_owned(),
            [..] => format!(
                "these cannot be read: {}{}; write them anew or remove them, snapshots of them \
                 too, and resume the job",
                named.join("; "),
                if names.len() > NAMED_MAX { "; and more" } else { "" }
            ),
        };
        let cause = format!("{left_bytes} bytes of disk group {number} cannot be moved: {what}");
        Err(FsError::io(cause))
    }

    /// Moves pages. Returns whether only a send or a deletion prevents the rest.
    fn move_pages(&self, core: &Core, left: &[SegmentId]) -> FsResult<bool> {
        let (mut busy, mut bad) = (0, 0);
        for id in self.page_turn.choose(left).0 {
            let moved = core.mover().move_pages(id)?;
            (busy, bad) = (busy + moved.busy, bad + moved.bad + moved.no_room);
        }
        Ok(busy > 0 && bad == 0)
    }

    fn end_flush(&self, core: &Core) -> FsResult<()> {
        let last = self.flushing.lock().take();
        last.map_or(Ok(()), |last| {
            last.wait().map(drop).map_err(|error| core.store.journal.fail(&error))
        })
    }

    fn flush_behind(&self, core: &Core) -> FsResult<()> {
        self.end_flush(core)?;
        *self.flushing.lock() = Some(core.store.volume.submit_flush(IoPurpose::Cleaner));
        Ok(())
    }

    fn note_unread(&self, core: &Core, unread: &[UnreadableBlock]) {
        for UnreadableBlock { entry, place } in unread {
            let known = self.unread.lock();
            if known.contains_key(place) || known.len() >= LOST_NAMED_MAX {
                continue;
            }
            drop(known);
            // A block without an owner is no loss.
            let Some(what) = core.who_lost(entry, *place) else { continue };
            log_affected!(&what, "it cannot be read, and stays on the devices that are to go");
            self.unread.lock().insert(*place, what.to_string());
        }
    }
}

impl Job for Evacuation {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, _now_ns: u64, _budget: StepBudget) -> FsResult<StepOutcome> {
        let alloc = &core.store.alloc;
        let geometry = core.store.geometry();
        let Some(numbers) = self.leaving.numbers(geometry) else { return Ok(StepOutcome::Done) };
        core.segments.leave(|group| geometry.leaves(group));
        let left = alloc.group_space().left_in(numbers.clone())?;
        if left.bytes == 0 || planted!(TakenOutWithLiveBlocks) {
            // Waits for the flush: no request may be outstanding when a leaving device is blanked.
            self.end_flush(core)?;
            return self.take_out(core, numbers);
        }
        let live_bytes = left.bytes.saturating_sub(left.freed_bytes);
        let gets_on = self.note(live_bytes);
        // Space elsewhere is sufficient (GR3), but may be fragmented.
        if alloc.free_segments(LOW_SEGMENTS)? < LOW_SEGMENTS {
            core.space_reclaim().reclaim()?;
        }
        let (chosen, is_round) = self.data_turn.choose(&left.segments);
        let unread = self.cleaner.empty(core, &chosen)?;
        self.note_unread(core, &unread);
        let is_busy = self.move_pages(core, &left.pages);
        let emptied = wide(chosen.len());
        let unsettled = self.unsettled.fetch_add(emptied, Ordering::Relaxed) + emptied;
        if is_round || is_busy.is_err() || unsettled >= UNSETTLED_MAX {
            // Frees emptied segments: blocks in open ones are written, and deferred frees released.
            self.cleaner.settle(core)?;
            self.unsettled.store(0, Ordering::Relaxed);
        }
        if is_busy? {
            // A send or a deletion holds the pages, which may take long.
            self.idle_steps.store(0, Ordering::Relaxed);
        }
        // Moved blocks may be unwritten for some steps, during which no bytes seem to be freed.
        let is_stalled = self.stalled_steps.fetch_add(1, Ordering::Relaxed) >= STALLED_STEPS_MAX;
        if gets_on || (!is_round && !is_stalled) {
            self.flush_behind(core)?;
            return Ok(StepOutcome::Again);
        }
        self.end_flush(core)?;
        // A lack of space or held pages may pass with time, so each idle step waits for a tick.
        if live_bytes > 0 {
            self.note_idle(live_bytes, left.segments.len() + left.pages.len())?;
        }
        Ok(StepOutcome::Wait)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let numbers = self.leaving.numbers(core.store.geometry())?;
        let left = core.store.alloc.group_space().left_in(numbers).ok()?;
        let left = left.bytes.saturating_sub(left.freed_bytes);
        let total = self.total_bytes.load(Ordering::Relaxed).max(left);
        Some(JobProgress { done: total - left, total })
    }
}
