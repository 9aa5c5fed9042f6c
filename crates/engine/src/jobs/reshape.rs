//! Reshape of a raid5 or stripe that gains or loses a member: moves its segments to rows of another
//! width. The cursor is in the labels (JO2). `storage::volume` writes the cursor and moves single
//! segments. Before a member leaves, the allocation groups that no longer fit are evacuated.
//!
//! Policy, for each segment in use: first it is compared with its redundancy and repaired as by a
//! scrub ([`Scrub::mend_segment`]), because a move computes parity from the data as read. Then it
//! is moved. Free segments are not moved. A stripe has no redundancy, so a segment with an
//! unreadable part is emptied instead of moved.
//!
//! All members of the disk group must be online. Otherwise the job waits.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::page::PAGE_BYTES;
use format::reshape::ReshapeDirection;
use storage::device::{DeviceError, Redundancy};
use storage::volume::{
    Detached, GrowError, RedundancyComparison, ReshapeProgress, SegmentBusyError, SegmentMoveMode,
    SegmentMoveOutcome,
};

use super::cleaner::Cleaner;
use super::evacuation::{Evacuation, EvacuationScope};
use super::pieces::{ListedBlock, PieceRedundancy, listed_in};
use super::scrub::{Scrub, ScrubCounts};
use super::{Job, JobProgress, StepBudget, StepOutcome};
use crate::alloc::{SegmentId, SegmentPin};
use crate::convert::{index_wide, narrow, wide};
use crate::error::{FilePart, FsError, FsResult};
use crate::file::Core;
use crate::sync::Mutex;

const SEGMENTS_PER_STEP: u64 = 64;
const IDLE_STEPS_MAX: u64 = 64;
/// Most successive attempts to empty a partly unreadable segment of a stripe.
const UNREAD_STEPS_MAX: u64 = 8;

#[derive(Debug)]
pub(crate) struct ReshapeJob {
    disk_group: u8,
    towards: ReshapeDirection,
    name: String,
    /// Boundary of the segments compared so far: all below it (widening), or from it on
    /// (narrowing).
    compared: AtomicU64,
    /// Whether the segments that were open at the start are closed: they end at rows of the old
    /// width.
    has_left: AtomicBool,
    scrub: Scrub,
    cleaner: Arc<Cleaner>,
    emptying: Evacuation,
    /// The removed member, to be blanked once its requests are complete.
    out: Mutex<Option<Detached>>,
    /// Successive steps that could do nothing: without a free segment, with an unreadable one, or
    /// with outstanding requests.
    idle_steps: AtomicU64,
}

impl ReshapeJob {
    pub(super) fn new(
        core: &Core,
        disk_group: u8,
        towards: ReshapeDirection,
        cleaner: &Arc<Cleaner>,
    ) -> ReshapeJob {
        let counts: Arc<ScrubCounts> = Arc::default();
        let (name, compared) = match towards {
            ReshapeDirection::Wide => {
                (format!("spreading disk group {disk_group} over a further device"), 0)
            }
            ReshapeDirection::Narrow => {
                (format!("taking a device out of disk group {disk_group}"), u64::MAX)
            }
        };
        ReshapeJob {
            disk_group,
            towards,
            name,
            compared: AtomicU64::new(compared),
            has_left: AtomicBool::new(false),
            scrub: Scrub::new(core, core.store.geometry().group_table_offset, &counts),
            cleaner: Arc::clone(cleaner),
            emptying: Evacuation::new(EvacuationScope::LastGroups(disk_group), cleaner),
            out: Mutex::default(),
            idle_steps: AtomicU64::new(0),
        }
    }

    fn numbering(core: &Core, disk_group: u8) -> (u32, u64) {
        let geometry = core.store.geometry();
        let of_group = u64::from((geometry.group_fragments / geometry.segment_fragments).max(1));
        let first = geometry.added.iter().find(|range| range.disk_group == disk_group);
        (first.map_or(0, |range| range.first), of_group)
    }

    fn id_of(core: &Core, disk_group: u8, segment: u64) -> Option<SegmentId> {
        let (first, of_group) = ReshapeJob::numbering(core, disk_group);
        let group = first.checked_add(u32::try_from(segment / of_group).ok()?)?;
        Some(SegmentId { group, segment: narrow(segment % of_group) })
    }

    /// Compares and repairs segments in the order of their moves, up to `most` in use. Returns the
    /// range done, or `None` if the first segment has a write in progress.
    fn look(&self, core: &Core, next: Range<u64>, most: u32) -> FsResult<Option<Range<u64>>> {
        let in_order: Vec<u64> = match self.towards {
            ReshapeDirection::Wide => next.clone().collect(),
            ReshapeDirection::Narrow => next.clone().rev().collect(),
        };
        let done = |count: u64| match self.towards {
            ReshapeDirection::Wide => next.start..next.start + count,
            ReshapeDirection::Narrow => next.end - count..next.end,
        };
        let mut in_use = 0;
        for (count, segment) in (0..).zip(in_order) {
            let Some(kept) = self.kept(core, segment)? else { continue };
            if in_use == most {
                return Ok(Some(done(count)));
            }
            in_use += 1;
            if self.is_compared(segment) {
                continue;
            }
            if !self.compare(core, kept)? {
                return Ok(Some(done(count)).filter(|_| count > 0));
            }
            match self.towards {
                ReshapeDirection::Wide => self.compared.fetch_max(segment + 1, Ordering::Relaxed),
                ReshapeDirection::Narrow => self.compared.fetch_min(segment, Ordering::Relaxed),
            };
        }
        Ok(Some(next))
    }

    fn is_compared(&self, segment: u64) -> bool {
        let border = self.compared.load(Ordering::Relaxed);
        match self.towards {
            ReshapeDirection::Wide => segment < border,
            ReshapeDirection::Narrow => segment >= border,
        }
    }

    fn kept<'c>(
        &self,
        core: &'c Core,
        segment: u64,
    ) -> FsResult<Option<(Range<u64>, PieceRedundancy<'c>)>> {
        let (volume, geometry) = (&core.store.volume, core.store.geometry());
        let Some(id) = ReshapeJob::id_of(core, self.disk_group, segment) else { return Ok(None) };
        let start = geometry.segment_place(id.group, id.segment);
        let piece = geometry
            .device_offset(start, 1)
            .and_then(|offset| volume.membership().piece_at(offset));
        let Some(piece) = piece else { return Ok(None) };
        let kept = PieceRedundancy::of(core, &piece)?;
        Ok(kept.map(|kept| (piece, kept)))
    }

    /// Compares and repairs a segment. Returns `false` if a write is in progress or a member is
    /// missing.
    fn compare(
        &self,
        core: &Core,
        (piece, kept): (Range<u64>, PieceRedundancy<'_>),
    ) -> FsResult<bool> {
        let volume = &core.store.volume;
        let start = piece.start;
        let compared = match volume.compare(piece, kept.redundancy(), None) {
            Ok(compared) => compared,
            Err(_) if volume.membership().lacks_to_reshape() => return Ok(false),
            Err(error) => return Err(FsError::io(error.to_string())),
        };
        let Some(compared) = compared else { return Ok(false) };
        let PieceRedundancy::Segment(pin) = kept else { return Ok(true) };
        if compared.differing.is_empty() {
            return Ok(true);
        }
        let is_once = pin.kept == Redundancy::Parity
            && volume.membership().reshaping().is_some_and(|it| !it.lay.wide.shape.has_parity);
        if is_once {
            return self.empty_unread(core, pin, (start, &compared));
        }
        self.scrub.mend_segment(core, &pin, compared)?;
        Ok(true)
    }

    /// Empties a segment of a stripe with an unreadable part. After too many attempts, fails with
    /// the name of a damaged file.
    fn empty_unread(
        &self,
        core: &Core,
        pin: SegmentPin<'_>,
        (start, compared): (u64, &RedundancyComparison),
    ) -> FsResult<bool> {
        let id = pin.id;
        if self.idle_steps.fetch_add(1, Ordering::Relaxed) >= UNREAD_STEPS_MAX {
            self.idle_steps.store(0, Ordering::Relaxed);
            let file = ReshapeJob::unread_of(core, &pin, (start, compared)).map(Box::new);
            let segment = core.store.geometry().segment_place(id.group, id.segment);
            let way = match &file {
                Some(_) => "write the file anew or remove it, its snapshots too",
                None => {
                    "what is in it cannot be moved elsewhere: make room, or let the device answer \
                     again"
                }
            };
            let cause = format!(
                "a part of the segment at {segment} cannot be read, and a stripe has it once: \
                 {way}, and resume the job"
            );
            return Err(FsError::Io { cause, file });
        }
        drop(pin);
        _ = self.cleaner.empty(core, &[id])?;
        self.cleaner.settle(core)?;
        Ok(false)
    }

    fn unread_of(
        core: &Core,
        pin: &SegmentPin<'_>,
        (start, compared): (u64, &RedundancyComparison),
    ) -> Option<FilePart> {
        let listed = listed_in(core, pin, &compared.bytes);
        let is_unread = |block: &&ListedBlock| {
            let bytes = start + wide(block.range.start)..start + wide(block.range.end);
            let page = wide(PAGE_BYTES);
            compared.differing.iter().any(|at| *at < bytes.end && bytes.start < at + page)
        };
        let who_has = |block: &ListedBlock| core.who_has(&block.entry, block.place).ok().flatten();
        listed.iter().filter(is_unread).find_map(who_has)
    }

    /// After the evacuation: drops the emptied groups from the labels, and begins the narrowing.
    fn begin_narrowing(core: &Core) -> FsResult<StepOutcome> {
        let (volume, alloc) = (&core.store.volume, &core.store.alloc);
        let changing = volume.membership().changing();
        let mut has_begun = false;
        alloc.group_space().become_shorter(|| {
            has_begun =
                changing.begin_narrowing().map_err(|error| core.store.journal.fail(&error))?;
            Ok::<(), FsError>(())
        })?;
        Ok(if has_begun { StepOutcome::Again } else { StepOutcome::Wait })
    }

    /// After the last move: records the final width in the labels, and grows the disk group if
    /// possible.
    fn end(&self, core: &Core) -> FsResult<StepOutcome> {
        let (volume, alloc) = (&core.store.volume, &core.store.alloc);
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        let changing = volume.membership().changing();
        let ended = match self.towards {
            ReshapeDirection::Wide => changing.end_reshape().map_err(fail)?,
            ReshapeDirection::Narrow => match changing.end_narrowing().map_err(fail)? {
                Some((number, out)) => {
                    *self.out.lock() = Some(out);
                    Some(number)
                }
                None => None,
            },
        };
        let Some(number) = ended else { return Ok(StepOutcome::Wait) };
        let Some(mut label) = volume.members().and_then(|members| members.label()) else {
            return Ok(StepOutcome::Done);
        };
        let growing = match changing.begin_growth(&label, number) {
            Ok(growing) => growing,
            Err(GrowError::Device(error)) => return Err(fail(error)),
            // Nothing to gain: the removed member's share exceeds the remainder of an allocation
            // group.
            Err(GrowError::NothingMore { .. }) if self.towards == ReshapeDirection::Narrow => {
                return Ok(StepOutcome::Done);
            }
            Err(error) => {
                tracing::warn!(%error, "a disk group has moved to other devices, and is no larger");
                return Ok(StepOutcome::Done);
            }
        };
        let coming = growing.geometry().clone();
        let mut refused = None;
        let grown = alloc.group_space().become_longer(&coming, || {
            match changing.end_growth(growing, &mut label) {
                Ok(_) => Ok(()),
                Err(GrowError::Device(error)) => Err(fail(error)),
                Err(error) => {
                    let cause = refused.insert(error).to_string();
                    Err(FsError::io(cause))
                }
            }
        });
        if let Some(error) = refused {
            tracing::warn!(%error, "a disk group has moved to other devices, and is no larger");
            return Ok(StepOutcome::Done);
        }
        grown?;
        tracing::info!(disk_group = number, "all segments are moved, and it has grown");
        Ok(StepOutcome::Done)
    }

    /// Blanks the removed device (AD3) once its requests are complete, before another use of it.
    fn blank(&self) -> StepOutcome {
        let mut out = self.out.lock();
        let Some(gone) = out.as_ref() else { return StepOutcome::Done };
        let is_late = self.idle_steps.fetch_add(1, Ordering::Relaxed) >= IDLE_STEPS_MAX;
        if gone.unanswered() > 0 && !is_late {
            return StepOutcome::Wait;
        }
        let device = gone.name().unwrap_or("a device that is not there");
        match gone.blank() {
            Ok(()) => tracing::info!(device, "the device is out of the pool"),
            Err(error) => tracing::warn!(
                device,
                "{error}; the device is out of the pool, which refuses it by its label"
            ),
        }
        *out = None;
        StepOutcome::Done
    }

    fn advance(
        &self,
        core: &Core,
        reshaping: &ReshapeProgress,
        budget: StepBudget,
    ) -> FsResult<StepOutcome> {
        let alloc = &core.store.alloc;
        let (next, is_kept) = reshaping.next(SEGMENTS_PER_STEP);
        let Some(next) = self.look(core, next, budget.units)? else { return Ok(StepOutcome::Wait) };
        let first = ReshapeJob::id_of(core, self.disk_group, next.start);
        let is_free = first.is_some_and(|id| alloc.kind_now(id) == Some(None));
        let mut pin = None;
        let way = match is_kept {
            false => SegmentMoveMode::Straight,
            true if is_free => SegmentMoveMode::Free,
            true => {
                let behind = reshaping.lay.kept_first();
                pin = alloc
                    .pin_free(|group| alloc.group_space().is_of(group, self.disk_group), behind)?;
                let Some(pin) = &pin else { return self.make_room(core, behind) };
                SegmentMoveMode::Segment(self.number_of(core, pin.id))
            }
        };
        self.idle_steps.store(0, Ordering::Relaxed);
        let kind_of = |segment: u64| -> Result<Option<Redundancy>, SegmentBusyError> {
            match ReshapeJob::id_of(core, self.disk_group, segment) {
                Some(id) => alloc.kind_now(id).ok_or(SegmentBusyError),
                None => Ok(None),
            }
        };
        let mut moved = SegmentMoveOutcome::Busy;
        let first = match self.towards {
            ReshapeDirection::Wide => next.start..next.start + 1,
            ReshapeDirection::Narrow => next.end - 1..next.end,
        };
        // One of several segments may have a write in progress: try the first alone.
        for segments in [next.clone(), first] {
            let changing = core.store.volume.membership().changing();
            moved = changing
                .move_segments(segments, way, &kind_of)
                .map_err(|error| core.store.journal.fail(&error))?;
            if moved != SegmentMoveOutcome::Busy {
                break;
            }
        }
        drop(pin);
        if moved == SegmentMoveOutcome::All {
            return Ok(StepOutcome::Again);
        }
        // Compared data may rot or change before the next attempt, so it is compared again.
        let border = match self.towards {
            ReshapeDirection::Wide => next.start,
            ReshapeDirection::Narrow => next.end,
        };
        self.compared.store(border, Ordering::Relaxed);
        match moved {
            SegmentMoveOutcome::Unread { cause } => Err(FsError::io(cause)),
            SegmentMoveOutcome::All | SegmentMoveOutcome::Busy | SegmentMoveOutcome::Away => {
                Ok(StepOutcome::Wait)
            }
        }
    }

    /// Empties a segment of the disk group after its first `behind` segments, because none is free.
    fn make_room(&self, core: &Core, behind: u64) -> FsResult<StepOutcome> {
        let alloc = &core.store.alloc;
        if self.idle_steps.fetch_add(1, Ordering::Relaxed) >= IDLE_STEPS_MAX {
            self.idle_steps.store(0, Ordering::Relaxed);
            let cause = format!(
                "disk group {} has no free segment, and its first ones are moved by way of one: \
                 remove files, or add room for what it holds (`holdfast group add POOL \
                 KIND:NEW,...`), and resume the job",
                self.disk_group
            );
            return Err(FsError::io(cause));
        }
        let is_wanted = |id: &SegmentId| {
            alloc.group_space().is_of(id.group, self.disk_group)
                && self.number_of(core, *id) >= behind
        };
        let views = alloc.candidates();
        let mut wanted: Vec<_> =
            views.iter().filter(|view| is_wanted(&view.segment.into())).collect();
        wanted.sort_by_key(|view| view.live_fragments);
        // Each call takes another segment, so that one that cannot be emptied does not block the
        // others.
        let turn = self.idle_steps.load(Ordering::Relaxed).saturating_sub(1);
        let turn = index_wide(turn) % wanted.len().max(1);
        if let Some(view) = wanted.get(turn) {
            _ = self.cleaner.empty(core, &[view.segment.into()])?;
        }
        self.cleaner.settle(core)?;
        Ok(StepOutcome::Wait)
    }

    fn number_of(&self, core: &Core, id: SegmentId) -> u64 {
        let (first, of_group) = ReshapeJob::numbering(core, self.disk_group);
        u64::from(id.group.saturating_sub(first)) * of_group + u64::from(id.segment)
    }
}

impl Job for ReshapeJob {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        let volume = &core.store.volume;
        if self.out.lock().is_some() {
            return Ok(self.blank());
        }
        let last = core.store.geometry().last_groups;
        if last.is_some_and(|last| last.disk_group == self.disk_group) {
            let step = self.emptying.step(core, now_ns, budget)?;
            // `Done` is only the end of the evacuation: the next step begins the narrowing.
            return Ok(if step == StepOutcome::Done { Self::begin_narrowing(core)? } else { step });
        }
        let Some(reshaping) = volume.membership().reshaping() else { return Ok(StepOutcome::Done) };
        if reshaping.reshape.disk_group != self.disk_group {
            return Ok(StepOutcome::Done);
        }
        let is_moved = reshaping.next(1).0.is_empty();
        if is_moved && self.towards == ReshapeDirection::Narrow {
            // The leaving member may be absent by now.
            let step = self.end(core)?;
            return Ok(if step == StepOutcome::Done { self.blank() } else { step });
        }
        // A joining device first needs the fixed regions. Its rebuild reads rows, which a move
        // changes.
        if volume.membership().joining().is_some() || volume.membership().lacks_to_reshape() {
            return Ok(StepOutcome::Wait);
        }
        if !self.has_left.swap(true, Ordering::Relaxed) {
            let alloc = &core.store.alloc;
            core.segments.leave(|group| alloc.group_space().is_of(group, self.disk_group));
            core.segments.seal();
        }
        if is_moved {
            return self.end(core);
        }
        self.advance(core, &reshaping, budget)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        if let Some(progress) = self.emptying.progress(core) {
            return Some(progress);
        }
        let reshaping = core.store.volume.membership().reshaping()?;
        Some(JobProgress { done: reshaping.moved(), total: reshaping.segments })
    }
}
