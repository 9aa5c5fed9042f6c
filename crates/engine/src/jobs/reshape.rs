//! Moving the segments of a raid5 or stripe that gets a member more, or is to have one less. The
//! cursor is in the labels (JO2), and `storage::volume` keeps it and knows how a segment is moved.
//! Before a member goes the allocation groups are emptied for which there is no room without it.
//!
//! Policy, for each segment in use: it is compared with what else it is kept in, and mended as a
//! scrub does ([`Scrub::mend_segment`]), for a move makes parity agree with whatever it reads. Then
//! it is moved. Of segments that are free nothing is. A stripe has nothing else: a segment of which
//! a member does not give all is emptied, so that it need not be moved.
//!
//! All members of the disk group must be online: else the job waits until they are.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::page::PAGE_BYTES;
use format::reshape::Towards;
use storage::device::{DeviceError, Redundancy};
use storage::volume::{Busy, Compared, Detached, GrowError, Moved, Reshaping, Way};

use super::cleaner::Cleaner;
use super::evacuation::{Evacuation, Leaving};
use super::pieces::{Kept, Listed, listed_in};
use super::scrub::{Scrub, ScrubCounts};
use super::{Budget, Job, JobProgress, Step};
use crate::alloc::{Pin, SegmentId};
use crate::convert::{index_wide, narrow, wide};
use crate::error::{FilePart, FsError, FsResult};
use crate::sync::Mutex;
use crate::vnode::Core;

/// Segments that are passed over in one step where nothing in them is in use.
const SEGMENTS_PER_STEP: u64 = 64;
/// Steps in a row that may find no free segment before the job says so.
const IDLE_STEPS_MAX: u64 = 64;
/// Steps in a row in which a segment of a stripe may not be emptied of which not all is read.
const UNREAD_STEPS_MAX: u64 = 8;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Reshape {
    disk_group: u8,
    towards: Towards,
    name: String,
    /// Segments in front of this one, or behind those before it where they become narrow, are
    /// compared.
    compared: AtomicU64,
    /// Whether what was open when it began is closed: it ended where rows of the old width do.
    has_left: AtomicBool,
    scrub: Scrub,
    cleaner: Arc<Cleaner>,
    /// What is done before a member goes.
    emptying: Evacuation,
    /// The member that has gone, and is to be blanked once it has answered all.
    out: Mutex<Option<Detached>>,
    /// Steps in a row in which there was no segment to move another by way of, or not all was
    /// answered.
    idle_steps: AtomicU64,
}

impl Reshape {
    /// Returns the job that moves the segments of `disk_group`.
    pub(super) fn new(
        core: &Core,
        disk_group: u8,
        towards: Towards,
        cleaner: &Arc<Cleaner>,
    ) -> Reshape {
        let counts: Arc<ScrubCounts> = Arc::default();
        let (name, compared) = match towards {
            Towards::Wide => {
                (format!("spreading disk group {disk_group} over a further device"), 0)
            }
            Towards::Narrow => {
                (format!("taking a device out of disk group {disk_group}"), u64::MAX)
            }
        };
        Reshape {
            disk_group,
            towards,
            name,
            compared: AtomicU64::new(compared),
            has_left: AtomicBool::new(false),
            scrub: Scrub::new(core, core.store.geometry().group_table_offset, &counts),
            cleaner: Arc::clone(cleaner),
            emptying: Evacuation::new(Leaving::LastGroups(disk_group), cleaner),
            out: Mutex::default(),
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

    /// Compares and mends the segments of `next` in the order in which they are to be moved, `most`
    /// of those in use at most. Returns those that were; `None`: somebody writes to the first.
    fn look(&self, core: &Core, next: Range<u64>, most: u32) -> FsResult<Option<Range<u64>>> {
        let in_order: Vec<u64> = match self.towards {
            Towards::Wide => next.clone().collect(),
            Towards::Narrow => next.clone().rev().collect(),
        };
        let done = |count: u64| match self.towards {
            Towards::Wide => next.start..next.start + count,
            Towards::Narrow => next.end - count..next.end,
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
                Towards::Wide => self.compared.fetch_max(segment + 1, Ordering::Relaxed),
                Towards::Narrow => self.compared.fetch_min(segment, Ordering::Relaxed),
            };
        }
        Ok(Some(next))
    }

    fn is_compared(&self, segment: u64) -> bool {
        let border = self.compared.load(Ordering::Relaxed);
        match self.towards {
            Towards::Wide => segment < border,
            Towards::Narrow => segment >= border,
        }
    }

    /// Returns a segment of the disk group with how it is kept; `None`: nothing in it is in use.
    fn kept<'c>(&self, core: &'c Core, segment: u64) -> FsResult<Option<(Range<u64>, Kept<'c>)>> {
        let (volume, geometry) = (&core.store.volume, core.store.geometry());
        let Some(id) = Reshape::id_of(core, self.disk_group, segment) else { return Ok(None) };
        let start = geometry.segment_place(id.group, id.segment);
        let piece = geometry.device_offset(start, 1).and_then(|offset| volume.piece_at(offset));
        let Some(piece) = piece else { return Ok(None) };
        let kept = Kept::of(core, &piece)?;
        Ok(kept.map(|kept| (piece, kept)))
    }

    /// Compares a segment, and mends it. Returns whether it could be: nobody writes to it, and all
    /// members are there.
    fn compare(&self, core: &Core, (piece, kept): (Range<u64>, Kept<'_>)) -> FsResult<bool> {
        let volume = &core.store.volume;
        let start = piece.start;
        let compared = match volume.compare(piece, kept.redundancy(), None) {
            Ok(compared) => compared,
            Err(_) if volume.lacks_to_reshape() => return Ok(false),
            Err(error) => return Err(FsError::io(error.to_string())),
        };
        let Some(compared) = compared else { return Ok(false) };
        let Kept::Segment(pin) = kept else { return Ok(true) };
        if compared.differing.is_empty() {
            return Ok(true);
        }
        let is_once = pin.kept == Redundancy::Parity
            && volume.reshaping().is_some_and(|it| !it.lay.wide.shape.has_parity);
        if is_once {
            return self.empty_unread(core, pin, (start, &compared));
        }
        self.scrub.mend_segment(core, &pin, compared)?;
        Ok(true)
    }

    /// Moves what is in use of a segment elsewhere of which a member does not give all, and which
    /// nobody else has. Returns that it cannot be moved now; if it cannot be emptied either, that
    /// is an error which names what cannot be read.
    fn empty_unread(
        &self,
        core: &Core,
        pin: Pin<'_>,
        (start, compared): (u64, &Compared),
    ) -> FsResult<bool> {
        let id = pin.id;
        if self.idle_steps.fetch_add(1, Ordering::Relaxed) >= UNREAD_STEPS_MAX {
            self.idle_steps.store(0, Ordering::Relaxed);
            let file = Reshape::unread_of(core, &pin, (start, compared)).map(Box::new);
            let segment = core.store.geometry().segment_place(id.group, id.segment);
            let way = match &file {
                Some(_) => "write the file anew or remove it, its clones too",
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

    /// Returns a file that has a block in a segment of which a member does not give all, and which
    /// begins at byte `start` of the pool.
    fn unread_of(
        core: &Core,
        pin: &Pin<'_>,
        (start, compared): (u64, &Compared),
    ) -> Option<FilePart> {
        let listed = listed_in(core, pin, &compared.bytes);
        let is_unread = |block: &&Listed| {
            let bytes = start + wide(block.range.start)..start + wide(block.range.end);
            let page = wide(PAGE_BYTES);
            compared.differing.iter().any(|at| *at < bytes.end && bytes.start < at + page)
        };
        let who_has = |block: &Listed| core.who_has(&block.entry, block.place).ok().flatten();
        listed.iter().filter(is_unread).find_map(who_has)
    }

    /// What was given up is empty: the labels say that it is gone, and that segments become narrow.
    fn begin_narrowing(core: &Core) -> FsResult<Step> {
        let (volume, alloc) = (&core.store.volume, &core.store.alloc);
        let changing = volume.changing();
        let mut has_begun = false;
        alloc.become_shorter(|| {
            has_begun =
                changing.begin_narrowing().map_err(|error| core.store.journal.fail(&error))?;
            Ok::<(), FsError>(())
        })?;
        Ok(if has_begun { Step::Again } else { Step::Wait })
    }

    /// All are moved: the disk group is what it has become, and as long as it can be.
    fn end(&self, core: &Core) -> FsResult<Step> {
        let (volume, alloc) = (&core.store.volume, &core.store.alloc);
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        let changing = volume.changing();
        let ended = match self.towards {
            Towards::Wide => changing.end_reshape().map_err(fail)?,
            Towards::Narrow => match changing.end_narrowing().map_err(fail)? {
                Some((number, out)) => {
                    *self.out.lock() = Some(out);
                    Some(number)
                }
                None => None,
            },
        };
        let Some(number) = ended else { return Ok(Step::Wait) };
        let Some(mut label) = volume.members().and_then(|members| members.label()) else {
            return Ok(Step::Done);
        };
        let growing = match changing.begin_growth(&label, number) {
            Ok(growing) => growing,
            Err(GrowError::Device(error)) => return Err(fail(error)),
            // What it has lost is more than what is left of an allocation group.
            Err(GrowError::NothingMore { .. }) if self.towards == Towards::Narrow => {
                return Ok(Step::Done);
            }
            Err(error) => {
                tracing::warn!(%error, "a disk group has moved to other devices, and is no larger");
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
                    Err(FsError::io(cause))
                }
            });
        if let Some(error) = refused {
            tracing::warn!(%error, "a disk group has moved to other devices, and is no larger");
            return Ok(Step::Done);
        }
        grown?;
        tracing::info!(disk_group = number, "all segments are moved, and it has grown");
        Ok(Step::Done)
    }

    /// Makes the device of the member that has gone one that no pool knows (AD3). What was sent to
    /// it before lands before it is anybody else's.
    fn blank(&self) -> Step {
        let mut out = self.out.lock();
        let Some(gone) = out.as_ref() else { return Step::Done };
        let is_late = self.idle_steps.fetch_add(1, Ordering::Relaxed) >= IDLE_STEPS_MAX;
        if gone.unanswered() > 0 && !is_late {
            return Step::Wait;
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
        Step::Done
    }

    /// Moves what comes next.
    fn advance(&self, core: &Core, reshaping: &Reshaping, budget: Budget) -> FsResult<Step> {
        let alloc = &core.store.alloc;
        let (next, is_kept) = reshaping.next(SEGMENTS_PER_STEP);
        let Some(next) = self.look(core, next, budget.units)? else { return Ok(Step::Wait) };
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
        let first = match self.towards {
            Towards::Wide => next.start..next.start + 1,
            Towards::Narrow => next.end - 1..next.end,
        };
        // Somebody may be at one of several.
        for segments in [next.clone(), first] {
            let changing = core.store.volume.changing();
            moved = changing
                .move_segments(segments, way, &kind_of)
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
        let border = match self.towards {
            Towards::Wide => next.start,
            Towards::Narrow => next.end,
        };
        self.compared.store(border, Ordering::Relaxed);
        match moved {
            Moved::Unread { cause } => Err(FsError::io(cause)),
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
            return Err(FsError::io(cause));
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
            _ = self.cleaner.empty(core, &[view.segment.into()])?;
        }
        self.cleaner.settle(core)?;
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

    fn step(&self, core: &Core, now_ns: u64, budget: Budget) -> FsResult<Step> {
        let volume = &core.store.volume;
        if self.out.lock().is_some() {
            return Ok(self.blank());
        }
        let last = core.store.geometry().last_groups;
        if last.is_some_and(|last| last.disk_group == self.disk_group) {
            let step = self.emptying.step(core, now_ns, budget)?;
            // It has other work then.
            return Ok(if step == Step::Done { Self::begin_narrowing(core)? } else { step });
        }
        let Some(reshaping) = volume.reshaping() else { return Ok(Step::Done) };
        if reshaping.reshape.disk_group != self.disk_group {
            return Ok(Step::Done);
        }
        let is_moved = reshaping.next(1).0.is_empty();
        if is_moved && self.towards == Towards::Narrow {
            // Whether the one that goes is there makes no difference any more.
            let step = self.end(core)?;
            return Ok(if step == Step::Done { self.blank() } else { step });
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
        if is_moved {
            return self.end(core);
        }
        self.advance(core, &reshaping, budget)
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        if let Some(progress) = self.emptying.progress(core) {
            return Some(progress);
        }
        let reshaping = core.store.volume.reshaping()?;
        Some(JobProgress { done: reshaping.moved(), total: reshaping.segments })
    }
}
