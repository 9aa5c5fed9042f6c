//! Moving the segments of a raid5 that gets a member more. The cursor is in the labels (JO2), and
//! `storage::volume` keeps it and knows how a segment is moved.
//!
//! Policy, for each segment in use: it is compared with what else it is kept in, and mended as a
//! scrub does ([`Scrub::mend_segment`]), for a move makes parity agree with whatever it reads. Then
//! it is moved. Of segments that are free nothing is.
//!
//! All members of the disk group must be online: else the job waits until they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use storage::device::{DeviceError, Redundancy};
use storage::volume::{Busy, GrowError, Moved, Reshaping, Way};

use super::cleaner::Cleaner;
use super::pieces::Kept;
use super::scrub::{Scrub, ScrubCounts};
use super::{Budget, Job, JobProgress, Step};
use crate::alloc::SegmentId;
use crate::convert::{index_wide, narrow};
use crate::error::{FsError, FsResult};
use crate::vnode::Core;

/// Segments that are passed over in one step where nothing in them is in use.
const SEGMENTS_PER_STEP: u64 = 64;
/// Steps in a row that may find no free segment before the job says so.
const IDLE_STEPS_MAX: u64 = 64;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Reshape {
    disk_group: u8,
    name: String,
    /// Segments before this one are compared.
    compared: AtomicU64,
    /// Whether what was open when it began is closed: it ended where rows of the old width do.
    has_left: AtomicBool,
    scrub: Scrub,
    cleaner: Arc<Cleaner>,
    /// Steps in a row in which there was no segment to move another by way of.
    idle_steps: AtomicU64,
}

impl Reshape {
    /// Returns the job that moves the segments of `disk_group`.
    pub(super) fn new(core: &Core, disk_group: u8, cleaner: &Arc<Cleaner>) -> Reshape {
        let counts: Arc<ScrubCounts> = Arc::default();
        Reshape {
            disk_group,
            name: format!("spreading disk group {disk_group} over a further device"),
            compared: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            scrub: Scrub::new(core, &counts),
            cleaner: Arc::clone(cleaner),
            idle_steps: AtomicU64::new(0),
        }
    }

    /// Returns the first allocation group of a disk group, and how many segments each has.
    fn numbering(core: &Core, disk_group: u8) -> (u32, u64) {
        let geometry = core.store.geometry();
        let of_group = u64::from((geometry.group_fragments / geometry.segment_fragments).max(1));
        let first = geometry.added.iter().find(|range| range.disk_group == disk_group);
        (first.map_or(0, |range| range.first), of_group)
    }

    fn id_of(core: &Core, disk_group: u8, segment: u64) -> Option<SegmentId> {
        let (first, of_group) = Reshape::numbering(core, disk_group);
        let group = first.checked_add(u32::try_from(segment / of_group).ok()?)?;
        Some(SegmentId { group, segment: narrow(segment % of_group) })
    }

    /// Compares and mends the segments that are to be moved next, `most` of those in use at most.
    /// Returns where the next ones begin; `None`: somebody writes to one.
    fn look(&self, core: &Core, (from, to): (u64, u64), most: u32) -> FsResult<Option<u64>> {
        let (volume, geometry) = (&core.store.volume, core.store.geometry());
        let mut in_use = 0;
        for segment in from..to {
            let Some(id) = Reshape::id_of(core, self.disk_group, segment) else { break };
            let start = geometry.segment_place(id.group, id.segment);
            let Some(offset) = geometry.device_offset(start, 1) else { break };
            let Some(piece) = volume.piece_at(offset) else { break };
            let Some(kept) = Kept::of(core, &piece)? else { continue };
            if in_use == most {
                return Ok(Some(segment));
            }
            in_use += 1;
            if segment < self.compared.load(Ordering::Relaxed) {
                continue;
            }
            let compared = volume.compare(piece, kept.redundancy(), None);
            let compared = match compared {
                Ok(compared) => compared,
                Err(_) if volume.lacks_to_reshape() => return Ok(None),
                Err(error) => return Err(FsError::Io { cause: error.to_string() }),
            };
            let Some(compared) = compared else { return Ok((segment > from).then_some(segment)) };
            if let Kept::Segment(pin) = kept
                && !compared.differing.is_empty()
            {
                self.scrub.mend_segment(core, &pin, compared)?;
            }
            self.compared.fetch_max(segment + 1, Ordering::Relaxed);
        }
        Ok(Some(to))
    }

    /// All are moved: the disk group is what it has become, and as long as it can be.
    fn end(&self, core: &Core) -> FsResult<Step> {
        let (volume, alloc) = (&core.store.volume, &core.store.alloc);
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        let changing = volume.changing();
        let Some(number) = changing.end_reshape().map_err(fail)? else { return Ok(Step::Wait) };
        let Some(mut label) = volume.members().and_then(|members| members.label()) else {
            return Ok(Step::Done);
        };
        let growing = match changing.begin_growth(&label, number) {
            Ok(growing) => growing,
            Err(GrowError::Device(error)) => return Err(fail(error)),
            Err(error) => {
                tracing::warn!(%error, "a disk group has moved to more devices, and is no larger");
                return Ok(Step::Done);
            }
        };
        let coming = growing.geometry().clone();
        let mut refused = None;
        let grown =
            alloc.become_longer(&coming, || match changing.end_growth(growing, &mut label) {
                Ok(_) => Ok(()),
                Err(GrowError::Device(error)) => Err(fail(error)),
                Err(error) => {
                    let cause = refused.insert(error).to_string();
                    Err(FsError::Io { cause })
                }
            });
        if let Some(error) = refused {
            tracing::warn!(%error, "a disk group has moved to more devices, and is no larger");
            return Ok(Step::Done);
        }
        grown?;
        tracing::info!(disk_group = number, "all segments lie over all devices, and it has grown");
        Ok(Step::Done)
    }

    /// Moves what comes next.
    fn advance(&self, core: &Core, reshaping: &Reshaping, budget: Budget) -> FsResult<Step> {
        let alloc = &core.store.alloc;
        let (next, is_kept) = reshaping.next(SEGMENTS_PER_STEP);
        let Some(to) = self.look(core, (next.start, next.end), budget.units)? else {
            return Ok(Step::Wait);
        };
        let first = Reshape::id_of(core, self.disk_group, next.start);
        let is_free = first.is_some_and(|id| alloc.kind_now(id) == Some(None));
        let mut pin = None;
        let way = match is_kept {
            false => Way::Straight,
            true if is_free => Way::Free,
            true => {
                let behind = reshaping.lay.kept_first();
                pin = alloc.pin_free(|group| alloc.is_of(group, self.disk_group), behind)?;
                let Some(pin) = &pin else { return self.make_room(core, behind) };
                Way::Segment(self.number_of(core, pin.id))
            }
        };
        self.idle_steps.store(0, Ordering::Relaxed);
        let kind_of = |segment: u64| -> Result<Option<Redundancy>, Busy> {
            match Reshape::id_of(core, self.disk_group, segment) {
                Some(id) => alloc.kind_now(id).ok_or(Busy),
                None => Ok(None),
            }
        };
        let mut moved = Moved::Busy;
        // Somebody may be at one of several.
        for end in [to, next.start + 1] {
            let changing = core.store.volume.changing();
            moved = changing
                .move_segments(next.start..end, way, &kind_of)
                .map_err(|error| core.store.journal.fail(&error))?;
            if moved != Moved::Busy {
                break;
            }
        }
        drop(pin);
        if moved == Moved::All {
            return Ok(Step::Again);
        }
        // What was compared may rot, or be written, until it is tried again.
        self.compared.store(next.start, Ordering::Relaxed);
        match moved {
            Moved::Unread { cause } => Err(FsError::Io { cause }),
            Moved::All | Moved::Busy | Moved::Away => Ok(Step::Wait),
        }
    }

    /// Empties a segment of the disk group, not among its first `behind`, for there is none that is
    /// free.
    fn make_room(&self, core: &Core, behind: u64) -> FsResult<Step> {
        let alloc = &core.store.alloc;
        if self.idle_steps.fetch_add(1, Ordering::Relaxed) >= IDLE_STEPS_MAX {
            self.idle_steps.store(0, Ordering::Relaxed);
            let cause = format!(
                "disk group {} has no free segment, and its first ones are moved by way of one: \
                 remove files, or add room for what it holds (holdfast group add), and resume the \
                 job",
                self.disk_group
            );
            return Err(FsError::Io { cause });
        }
        let is_wanted = |id: &SegmentId| {
            alloc.is_of(id.group, self.disk_group) && self.number_of(core, *id) >= behind
        };
        let views = alloc.candidates();
        let mut wanted: Vec<_> =
            views.iter().filter(|view| is_wanted(&view.segment.into())).collect();
        wanted.sort_by_key(|view| view.live_fragments);
        // One that cannot be emptied keeps no other from its turn.
        let turn = self.idle_steps.load(Ordering::Relaxed).saturating_sub(1);
        let turn = index_wide(turn) % wanted.len().max(1);
        if let Some(view) = wanted.get(turn) {
            self.cleaner.empty(core, &[view.segment.into()])?;
        }
        // What was freed waits for a checkpoint.
        core.store.journal.checkpoint()?;
        Ok(Step::Wait)
    }

    fn number_of(&self, core: &Core, id: SegmentId) -> u64 {
        let (first, of_group) = Reshape::numbering(core, self.disk_group);
        u64::from(id.group.saturating_sub(first)) * of_group + u64::from(id.segment)
    }
}

impl Job for Reshape {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        let volume = &core.store.volume;
        let Some(reshaping) = volume.reshaping() else { return Ok(Step::Done) };
        if reshaping.reshape.disk_group != self.disk_group {
            return Ok(Step::Done);
        }
        // It gets the fixed regions first; and a rebuild reads what would move below it.
        if volume.joining().is_some() || volume.lacks_to_reshape() {
            return Ok(Step::Wait);
        }
        if !self.has_left.swap(true, Ordering::Relaxed) {
            let alloc = &core.store.alloc;
            core.segments.leave(|group| alloc.is_of(group, self.disk_group));
            core.segments.seal();
        }
        if reshaping.next(1).0.is_empty() {
            return self.end(core);
        }
        self.advance(core, &reshaping, budget)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let reshaping = core.store.volume.reshaping()?;
        Some(JobProgress { done: reshaping.reshape.moved, total: reshaping.segments })
    }
}
