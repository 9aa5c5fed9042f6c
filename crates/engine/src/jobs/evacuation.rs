//! Emptying a disk group that is to go, and taking it out; or the last allocation groups of one,
//! which are given up.
//!
//! # Invariants
//!
//! - EV1: A disk group is taken out when nothing in it is in use but the fronts of its groups, what
//!   was freed there is released (G2), and a checkpoint has moved the log's tail past all that
//!   speaks of it. So are last allocation groups given up.
//!
//! # Crashes
//!
//! The labels say *leaving* before the first block moves, so that an open goes on. What was moved
//! is told by the segment usage of the disk group itself: a segment that was emptied is passed
//! over, so no cursor is kept (JO2), and a crash repeats what the last checkpoint had not taken
//! home. Then its entries in the group table are cleared, in transactions; then a checkpoint; then
//! the labels are written without it. A crash in between leaves a disk group that leaves and is
//! empty.
//!
//! Moves of blocks are those of the cleaner, those that clones share included; of metadata pages,
//! which last allocation groups may have, those of `vnode::pages`.
//!
//! Not here: whether there is room elsewhere (`pool::disk_groups`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::disk_group::GroupRange;
use format::geometry::Geometry;
use format::ids::Place;
use runtime::planted::{self, Planted};

use storage::device::{Purpose, Ticket};
use storage::volume::AddGroupError;

use super::cleaner::Cleaner;
use super::pieces::LOST_NAMED_MAX;
use super::{Budget, Job, JobProgress, Step};
use crate::alloc::{LOW_SEGMENTS, SegmentId};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use crate::vnode::{Core, Unread, log_affected};

/// Segments that a step empties.
const SEGMENTS_PER_STEP: usize = 8;
/// Of what cannot be read, how much the job's failure names.
const NAMED_MAX: usize = 8;
/// Segments that are emptied before what was freed is released, by a checkpoint: that takes seeks
/// of its own, on a disk as many milliseconds as twenty of them.
const UNSETTLED_MAX: u64 = 256;
/// Steps in a row behind which nothing was less, until the job waits for a tick after each.
const STALLED_STEPS_MAX: u64 = 4;
/// Steps in a row that may move nothing before the job says what is in the way: blocks of a file
/// whose gate is closed are left for the next.
const IDLE_STEPS_MAX: u64 = 64;

/// What leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// A disk group, by its number.
    DiskGroup(u8),
    /// The last allocation groups of one.
    LastGroups(u8),
}

impl Leaving {
    /// Returns its allocation groups; `None`: it does not leave, or is gone.
    fn numbers(self, geometry: &Geometry) -> Option<impl Iterator<Item = u32> + Clone + '_> {
        let (number, from) = match self {
            Leaving::DiskGroup(number) => {
                let is_it = |range: &GroupRange| range.disk_group == number && range.is_leaving;
                geometry.added.iter().find(|range| is_it(range))?;
                (number, 0)
            }
            Leaving::LastGroups(number) => {
                let last = geometry.last_groups.filter(|last| last.disk_group == number)?;
                (number, last.first)
            }
        };
        // Those of a round-robin need not follow each other.
        let is_own = move |group: &u32| {
            *group >= from
                && (geometry.disk_group_of(*group) == Some(number)
                    || planted::is(Planted::LaneGroupsForgotten))
        };
        Some(geometry.numbers_of(number).filter(is_own))
    }
}

/// Moves all that is in a disk group, or in its last allocation groups, elsewhere.
#[derive(Debug)]
pub(crate) struct Evacuation {
    leaving: Leaving,
    name: String,
    cleaner: Arc<Cleaner>,
    /// What was in use when it began, in bytes.
    total_bytes: AtomicU64,
    /// The least that was in use so far.
    least_bytes: AtomicU64,
    /// How many steps ago that was.
    stalled_steps: AtomicU64,
    /// How many of these waited for a tick.
    idle_steps: AtomicU64,
    /// Segments that were emptied since the last checkpoint for them.
    unsettled: AtomicU64,
    /// The devices write to their media what the last step moved, while the next one reads: else
    /// all that they keep in their caches is in the way of the next commit.
    flushing: Mutex<Option<Ticket>>,
    /// What cannot be read, by where it is: files by their paths.
    unread: Mutex<BTreeMap<Place, String>>,
    /// Who of the segments with data has had a turn.
    data_turn: Turn,
    /// The same of those with pages.
    page_turn: Turn,
}

/// The last segment that was tried.
#[derive(Debug, Default)]
struct Turn(Mutex<Option<SegmentId>>);

impl Turn {
    /// Returns the segments that have their turn: those behind the last that had, so that some that
    /// cannot be emptied keep no others from it. And whether that is the last of a round.
    fn choose(&self, left: &[SegmentId]) -> (Vec<SegmentId>, bool) {
        let mut last = self.0.lock();
        let behind = |id: &SegmentId| {
            let is_behind = last
                .is_some_and(|last: SegmentId| (id.group, id.segment) > (last.group, last.segment));
            is_behind && !planted::is(Planted::SameSegmentsTried)
        };
        let first = left.iter().position(behind).unwrap_or(0);
        let turn = left.iter().cycle().skip(first).take(left.len().min(SEGMENTS_PER_STEP));
        let chosen: Vec<SegmentId> = turn.copied().collect();
        *last = chosen.last().copied().or(*last);
        (chosen, first + SEGMENTS_PER_STEP >= left.len())
    }
}

impl Evacuation {
    /// Returns the job that takes out what leaves.
    pub(crate) fn new(leaving: Leaving, cleaner: &Arc<Cleaner>) -> Evacuation {
        let name = match leaving {
            Leaving::DiskGroup(number) => format!("emptying disk group {number}"),
            Leaving::LastGroups(number) => {
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
            data_turn: Turn::default(),
            page_turn: Turn::default(),
        }
    }

    /// EV1: takes it out once nothing is in it.
    fn take_out(&self, core: &Core, numbers: impl Iterator<Item = u32> + Clone) -> FsResult<Step> {
        // They are gone when the labels say so, for which all are wanted.
        if let Leaving::LastGroups(disk_group) = self.leaving
            && core.store.volume.lacks_in(disk_group)
        {
            return Ok(Step::Wait);
        }
        core.store.journal.checkpoint()?;
        if !core.store.alloc.forget_groups(numbers)? {
            return Ok(Step::Wait);
        }
        // CRASH: until these, a redo could speak of pages that have no place any more.
        if !planted::is(Planted::TakenOutBeforeCheckpoint) {
            core.store.journal.checkpoint()?;
            core.store.journal.checkpoint()?;
        }
        match self.leaving {
            Leaving::DiskGroup(disk_group) => {
                let taken = core.store.volume.take_group_out(disk_group);
                taken.map_err(|error| {
                    if let AddGroupError::Device(cause) = &error {
                        return core.store.journal.fail(cause);
                    }
                    FsError::io(error.to_string())
                })?;
                core.store.alloc.note_disk_groups()?;
                tracing::info!(disk_group, "the disk group is empty, and was taken out");
                Ok(Step::Done)
            }
            // What becomes of the disk group its job knows.
            Leaving::LastGroups(_) => Ok(Step::Done),
        }
    }

    /// Notes what is left; returns whether that is less than ever.
    fn note(&self, left_bytes: u64) -> bool {
        self.total_bytes.fetch_max(left_bytes, Ordering::Relaxed);
        let gets_on = left_bytes < self.least_bytes.fetch_min(left_bytes, Ordering::Relaxed);
        if gets_on {
            self.stalled_steps.store(0, Ordering::Relaxed);
            self.idle_steps.store(0, Ordering::Relaxed);
        }
        gets_on
    }

    /// Notes a step that waits for the next tick, for nothing got less. An error once that has been
    /// so for long.
    fn note_idle(&self, left_bytes: u64, segments: usize) -> FsResult<()> {
        // Each has had its turn then.
        let round = wide(segments.div_ceil(SEGMENTS_PER_STEP));
        if self.idle_steps.fetch_add(1, Ordering::Relaxed) < IDLE_STEPS_MAX + round {
            return Ok(());
        }
        self.idle_steps.store(0, Ordering::Relaxed);
        let (Leaving::DiskGroup(number) | Leaving::LastGroups(number)) = self.leaving;
        // Who resumes the job has done something about them.
        let names: BTreeSet<String> =
            std::mem::take(&mut *self.unread.lock()).into_values().collect();
        let named: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
        let what = match named.as_slice() {
            [] => "run holdfast check, which tells whose they are, and resume the job".to_owned(),
            [..] => format!(
                "these cannot be read: {}{}; write them anew or remove them, clones of them too, \
                 and resume the job",
                named.join("; "),
                if names.len() > NAMED_MAX { "; and more" } else { "" }
            ),
        };
        let cause = format!("{left_bytes} bytes of disk group {number} cannot be moved: {what}");
        Err(FsError::io(cause))
    }

    /// Moves pages. Returns whether some are kept where they are by somebody, and nothing else is
    /// in the way.
    fn move_pages(&self, core: &Core, left: &[SegmentId]) -> FsResult<bool> {
        let (mut busy, mut bad) = (0, 0);
        for id in self.page_turn.choose(left).0 {
            let moved = core.move_pages(id)?;
            (busy, bad) = (busy + moved.busy, bad + moved.bad + moved.no_room);
        }
        Ok(busy > 0 && bad == 0)
    }

    /// Waits until the devices have written what the last step moved.
    fn end_flush(&self, core: &Core) -> FsResult<()> {
        let last = self.flushing.lock().take();
        last.map_or(Ok(()), |last| {
            last.wait().map(drop).map_err(|error| core.store.journal.fail(&error))
        })
    }

    /// Has the devices write what this step moved, after they have written what the last one did.
    fn flush_behind(&self, core: &Core) -> FsResult<()> {
        self.end_flush(core)?;
        *self.flushing.lock() = Some(core.store.volume.submit_flush(Purpose::Cleaner));
        Ok(())
    }

    /// Notes blocks that cannot be read, and tells of those that are new.
    fn note_unread(&self, core: &Core, unread: &[Unread]) {
        for Unread { entry, place } in unread {
            let known = self.unread.lock();
            if known.contains_key(place) || known.len() >= LOST_NAMED_MAX {
                continue;
            }
            drop(known);
            // Nobody has it any more.
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

    fn step(&self, core: &Core, _now_ns: u64, _budget: Budget) -> FsResult<Step> {
        let alloc = &core.store.alloc;
        let geometry = core.store.geometry();
        let Some(numbers) = self.leaving.numbers(geometry) else { return Ok(Step::Done) };
        core.segments.leave(|group| geometry.leaves(group));
        let left = alloc.left_in(numbers.clone())?;
        if left.bytes == 0 || planted::is(Planted::TakenOutWithLiveBlocks) {
            // A device that goes is blanked once it has answered all.
            self.end_flush(core)?;
            return self.take_out(core, numbers);
        }
        let live_bytes = left.bytes.saturating_sub(left.freed_bytes);
        let gets_on = self.note(live_bytes);
        // Its room elsewhere is there (GR3), and may be in pieces.
        if alloc.free_segments(LOW_SEGMENTS)? < LOW_SEGMENTS {
            core.reclaim()?;
        }
        let (chosen, is_round) = self.data_turn.choose(&left.segments);
        let unread = self.cleaner.empty(core, &chosen)?;
        self.note_unread(core, &unread);
        let is_busy = self.move_pages(core, &left.pages);
        let emptied = wide(chosen.len());
        let unsettled = self.unsettled.fetch_add(emptied, Ordering::Relaxed) + emptied;
        if is_round || is_busy.is_err() || unsettled >= UNSETTLED_MAX {
            // What is open, or freed and not released, is so no longer behind that.
            self.cleaner.settle(core)?;
            self.unsettled.store(0, Ordering::Relaxed);
        }
        if is_busy? {
            // Somebody sends them, or frees a clone that has them: that takes its time.
            self.idle_steps.store(0, Ordering::Relaxed);
        }
        // What was moved may wait to be written for some steps.
        let is_stalled = self.stalled_steps.fetch_add(1, Ordering::Relaxed) >= STALLED_STEPS_MAX;
        if gets_on || (!is_round && !is_stalled) {
            self.flush_behind(core)?;
            return Ok(Step::Again);
        }
        self.end_flush(core)?;
        // Where there was no room, or somebody holds what is there, time helps: idle steps are
        // those of ticks. What is freed alone is released in its time.
        if live_bytes > 0 {
            self.note_idle(live_bytes, left.segments.len() + left.pages.len())?;
        }
        Ok(Step::Wait)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let numbers = self.leaving.numbers(core.store.geometry())?;
        let left = core.store.alloc.left_in(numbers).ok()?;
        let left = left.bytes.saturating_sub(left.freed_bytes);
        let total = self.total_bytes.load(Ordering::Relaxed).max(left);
        Some(JobProgress { done: total - left, total })
    }
}
