//! Scrub: reads everything in a pool with all its redundancy, and rewrites bad copies from good
//! ones.
//!
//! Equal copies count as good, because two devices do not rot alike. For each page that differs
//! between copies, the right copy depends on the use of its place:
//!
//! 1. In a metadata segment, and in the group table: the page that verifies at this place and was
//!    written back last. In a segment this applies only if the page is used in the free map, is not
//!    newer in memory, and was written in the segment's present incarnation. Unwritten parts of the
//!    segment may have pages and summaries of an earlier incarnation, which verify too.
//! 2. In a data segment: the block that the summaries of the present incarnation list there, by its
//!    checksum, or a summary, by its own checksum. Summaries of earlier incarnations remain in
//!    unwritten parts. Births do not distinguish them, because a moved block keeps its birth.
//! 3. An unused page, such as a remnant of a crash, is left as it is.
//!
//! The allocator supplies the kind and the incarnation of a segment, since the segment's usage page
//! on disk may be of an earlier incarnation. The segment is pinned during its scrub.
//!
//! In stripes only segments in use are scrubbed (`stripes`).
//!
//! All writes go through [`Volume::heal`] and [`Volume::mend_parity`], which exclude writers from
//! the range.

mod stripes;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::geometry::Geometry;
use format::ids::{Epoch, Place};
use format::members::{Layout, Member, MemberState};
use format::page::PAGE_BYTES;
use runtime::planted;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, Redundancy};
use storage::volume::{RedundancyComparison, RepairOutcome, Volume};

use super::pieces::{
    LOST_NAMED_MAX, ListedBlock, MIB, PASSED_OVER_MAX, PieceRedundancy, ProgressSchedule, block_at,
    listed_in, summary_of,
};
use super::{Job, JobProgress, StepBudget, StepOutcome};
use crate::alloc::{SegmentId, SegmentPin};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::file::{AffectedObject, Core, log_affected};
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct ScrubCounts {
    read_bytes: AtomicU64,
    read_before: AtomicU64,
    differing: AtomicU64,
    repaired: AtomicU64,
    lost: AtomicU64,
    unread: AtomicU64,
    unwritten: AtomicU64,
    unused: AtomicU64,
    parities: AtomicU64,
    uncompared_bytes: AtomicU64,
    away: Mutex<BTreeSet<String>>,
    away_now: Mutex<Option<String>>,
    /// End of the scrub, in seconds since 1970. 0 while it runs.
    ended_seconds: AtomicU64,
    /// Whether a raid5 is scrubbed without its absent device, instead of waiting for it.
    accepts_away: AtomicBool,
    names: Mutex<Vec<String>>,
}

/// Report of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes of the pool scrubbed, including unused parts of stripes.
    pub read_bytes: u64,
    /// The part of `read_bytes` scrubbed before this mount.
    pub read_before: u64,
    /// Pages of 4 KiB that differed between members, or in inconsistent rows.
    pub differing: u64,
    /// Pages and blocks rewritten.
    pub repaired: u64,
    /// Pages and blocks without a copy that verifies.
    pub lost: u64,
    /// Pages and blocks without a copy that verifies, but with an unreadable one.
    pub unread: u64,
    /// Pages and blocks with a good copy and a bad one that could not be rewritten.
    pub unwritten: u64,
    /// Differing pages that are unused.
    pub unused: u64,
    /// Runs of rows with rewritten parity.
    pub parities: u64,
    /// Bytes verified only by checksums, because a device of their raid5 was absent.
    pub uncompared_bytes: u64,
    /// Names of those devices.
    pub away: Vec<String>,
    /// First names of lost, unreadable or unwritten items. Files by their paths.
    pub names: Vec<String>,
    /// Whether the scrub has ended.
    pub is_done: bool,
    /// End of the scrub, in seconds since 1970. 0 while it runs.
    pub ended_seconds: u64,
    /// Reason why the scrub waits. It resumes by itself.
    pub waits: Option<String>,
}

impl ScrubCounts {
    pub(crate) fn report(&self) -> ScrubReport {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ScrubReport {
            read_bytes: of(&self.read_bytes),
            read_before: of(&self.read_before),
            differing: of(&self.differing),
            repaired: of(&self.repaired),
            lost: of(&self.lost),
            unread: of(&self.unread),
            unwritten: of(&self.unwritten),
            unused: of(&self.unused),
            parities: of(&self.parities),
            uncompared_bytes: of(&self.uncompared_bytes),
            away: self.away.lock().iter().cloned().collect(),
            names: self.names.lock().clone(),
            is_done: of(&self.ended_seconds) > 0,
            ended_seconds: of(&self.ended_seconds),
            waits: None,
        }
    }

    pub(crate) fn accepts_away(&self) -> bool {
        self.accepts_away.load(Ordering::Relaxed)
    }

    pub(crate) fn accept_away(&self) {
        self.accepts_away.store(true, Ordering::Relaxed);
    }

    /// Counts `what` as unread if an absent device may hold a good copy, else as lost.
    fn lose_or_miss(&self, what: impl Into<AffectedObject>) {
        match self.away_now.lock().clone() {
            Some(device) => self.miss(what, &DeviceError::Failed { device }),
            None => self.lose(what),
        }
    }

    fn lose(&self, what: impl Into<AffectedObject>) {
        let what = what.into();
        self.lost.fetch_add(1, Ordering::Relaxed);
        if self.name(&what) {
            log_affected!(&what, "a scrub found no copy that verifies");
        }
    }

    fn miss(&self, what: impl Into<AffectedObject>, error: &DeviceError) {
        let what = what.into();
        self.unread.fetch_add(1, Ordering::Relaxed);
        if self.name(&what) {
            tracing::warn!(%error, "a scrub could not read a copy");
            log_affected!(&what, "a scrub could not read it, and no other copy verifies");
        }
    }

    fn leave(&self, what: impl Into<AffectedObject>) {
        let what = what.into();
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        if self.name(&what) {
            log_affected!(&what, "a scrub found a good copy, but could not rewrite the bad one");
        }
    }

    fn note_away(&self, away: BTreeSet<String>) {
        *self.away_now.lock() = away.first().cloned();
        self.away.lock().extend(away);
    }

    fn name(&self, what: &AffectedObject) -> bool {
        let (what, mut names) = (what.to_string(), self.names.lock());
        // All pages of a block are reported as one file, whose name is added once.
        let is_new = names.len() < LOST_NAMED_MAX && names.last() != Some(&what);
        if is_new {
            names.push(what);
        }
        is_new
    }

    fn count(&self, healed: Option<&RepairOutcome>, what: impl FnOnce() -> AffectedObject) {
        match healed {
            None => _ = self.unused.fetch_add(1, Ordering::Relaxed),
            // Already repaired together with a neighbour.
            Some(RepairOutcome { bytes: Some(_), bad: 0, .. }) => {}
            Some(RepairOutcome { bytes: Some(_), bad, repaired, .. }) if bad == repaired => {
                self.repaired.fetch_add(1, Ordering::Relaxed);
            }
            Some(RepairOutcome { bytes: Some(_), .. }) => self.leave(what()),
            Some(RepairOutcome { bytes: None, unread: Some(error), .. }) => {
                self.miss(what(), error)
            }
            Some(_) => self.lose_or_miss(what()),
        }
    }
}

/// Why a pool cannot be scrubbed at present.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScrubError {
    /// Use `holdfast check` for such a pool.
    #[error(
        "the pool lies on one device, so there is no other copy to compare with: `holdfast \
         check` verifies it"
    )]
    NotSeveral,
    /// Replace the other devices first.
    #[error(
        "one device alone has all that the pool holds, so there is no other copy to compare \
         with: replace the others first"
    )]
    Alone,
    /// Replace the device or bring it back, or request the scrub while it is absent.
    #[error(
        "a device of a raid5 went missing after the scrub began. The scrub continues when the \
         device is back or replaced; `holdfast scrub POOL` continues it now without the device"
    )]
    Away,
    /// Wait until the device is online.
    #[error(
        "a device of a raid5 is still being rebuilt: wait until that has ended (`holdfast job list \
         POOL` shows its progress)"
    )]
    Joins,
    /// A member's device error. The pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Returns the reason why there is no redundancy to compare, if any. `accepts_away` admits a raid5
/// with an absent device.
pub(crate) fn scrub_lacks(volume: &Volume, accepts_away: bool) -> Option<ScrubError> {
    let Some(label) = volume.members().and_then(|members| members.label()) else {
        return Some(ScrubError::NotSeveral);
    };
    let is_online = |slot: &usize| label.members.get(*slot).is_some_and(Member::is_online);
    let is_joining = |slot: usize| {
        let member = label.members.get(slot);
        member.is_some_and(|member| member.state == MemberState::Joining)
    };
    // The journal's disk group is not scrubbed: each open compares its copies.
    let added = label.added.iter().filter(|group| !group.has_journal);
    let added = added.map(|group| (group.layout, &group.slots));
    let groups = iter::once((label.layout, &label.slots)).chain(added);
    let mut is_on_one = true;
    for (layout, slots) in groups {
        let online = slots.iter().filter(is_online).count();
        match layout {
            Layout::Single => continue,
            Layout::Mirror if online < 2 => return Some(ScrubError::Alone),
            // Not yet: the joining device is scrubbed once its rebuild is complete.
            Layout::Raid5 { .. } if slots.iter().any(is_joining) => return Some(ScrubError::Joins),
            Layout::Raid5 { .. } if online < slots.len() && !accepts_away => {
                return Some(ScrubError::Away);
            }
            Layout::Mirror | Layout::RoundRobin | Layout::Stripe { .. } | Layout::Raid5 { .. } => {}
        }
        is_on_one = false;
    }
    is_on_one.then_some(ScrubError::NotSeveral)
}

/// Returns the readable members, by slot. The set must not change during a comparison.
fn readable(volume: &Volume) -> Vec<bool> {
    let all = volume.members().map_or_else(Vec::new, |members| members.all());
    all.iter().map(|slot| slot.readable().is_some()).collect()
}

fn away_of(volume: &Volume) -> BTreeSet<String> {
    let Some(label) = volume.members().and_then(|members| members.label()) else {
        return BTreeSet::new();
    };
    let added = label.added.iter().filter(|group| !group.has_journal);
    let added = added.map(|group| (group.layout, &group.slots));
    let groups = iter::once((label.layout, &label.slots)).chain(added);
    let raid5s = groups.filter(|(layout, _)| matches!(layout, Layout::Raid5 { .. }));
    let name = |slot: usize| {
        let member = label
            .members
            .get(slot)
            .filter(|member| matches!(member.state, MemberState::Missing | MemberState::Failed))?;
        let path = format::text::shown(&member.path);
        Some(if path.is_empty() { format!("slot {slot}") } else { format!("{path} (slot {slot})") })
    };
    raid5s.flat_map(|(_, slots)| slots.iter()).filter_map(name).collect()
}

/// A scrub of the whole pool. Resumes from the progress in the labels.
#[derive(Debug)]
pub(crate) struct Scrub {
    at: AtomicU64,
    noted: AtomicU64,
    notes: ProgressSchedule,
    counts: Arc<ScrubCounts>,
    bad_before: Vec<u64>,
}

fn bad_ranges(volume: &Volume) -> Vec<u64> {
    let all = volume.members().map_or_else(Vec::new, |members| members.all());
    all.iter().map(|slot| slot.counts().checksum_errors).collect()
}

impl Scrub {
    pub(crate) fn new(core: &Core, at: u64, counts: &Arc<ScrubCounts>) -> Scrub {
        let before = at.saturating_sub(core.store.geometry().group_table_offset);
        counts.read_bytes.store(before, Ordering::Relaxed);
        counts.read_before.store(before, Ordering::Relaxed);
        let walked = core.store.geometry().group_table_offset..core.store.volume.used_end();
        let notes = ProgressSchedule::new(core, &walked);
        let noted = AtomicU64::new(at);
        let (counts, bad_before) = (Arc::clone(counts), bad_ranges(&core.store.volume));
        Scrub { at: AtomicU64::new(at), noted, notes, counts, bad_before }
    }

    /// Restarts at byte `from` after the loss of a member, whose comparisons may be invalid.
    fn again_from(&self, from: u64) -> StepOutcome {
        let at = self.at.swap(from, Ordering::Relaxed);
        self.counts.read_bytes.fetch_sub(at.saturating_sub(from), Ordering::Relaxed);
        StepOutcome::Wait
    }

    fn note(&self, volume: &Volume, to: u64) -> Result<(), DeviceError> {
        let from = self.noted.swap(to, Ordering::Relaxed);
        volume.note_scrubbed(from, to)
    }

    /// Ends the walk, or restarts it for a member that has joined during the walk.
    fn end(&self, core: &Core) -> Result<StepOutcome, DeviceError> {
        let volume = &core.store.volume;
        let end = volume.used_end();
        self.note(volume, end)?;
        if let Some(left) = volume.scrubbed().filter(|left| left + MIB < end) {
            volume.begin_scrub()?;
            self.at.store(left, Ordering::Relaxed);
            self.noted.store(left, Ordering::Relaxed);
            return Ok(StepOutcome::Again);
        }
        self.done(core)
    }

    fn done(&self, core: &Core) -> Result<StepOutcome, DeviceError> {
        let volume = &core.store.volume;
        volume.end_scrub()?;
        let now = u64::try_from(core.store.now().seconds).unwrap_or(0);
        self.counts.ended_seconds.store(now.max(1), Ordering::Relaxed);
        self.tell(volume);
        Ok(StepOutcome::Done)
    }

    fn tell(&self, volume: &Volume) {
        let ScrubReport {
            repaired, lost, unread, unwritten, parities, uncompared_bytes, away, ..
        } = self.counts.report();
        let devices = self.bad_devices(volume).join(", ");
        if (repaired, lost, unread, unwritten, parities) != (0, 0, 0, 0, 0) {
            tracing::warn!(
                devices,
                repaired,
                parities,
                lost,
                unread,
                unwritten,
                "a scrub found copies that do not verify"
            );
        }
        if uncompared_bytes > 0 {
            let away = Vec::from_iter(away).join(", ");
            tracing::warn!(away, uncompared_bytes, "a scrub verified data by checksum only");
        }
    }

    fn bad_devices(&self, volume: &Volume) -> Vec<String> {
        let label = volume.members().and_then(|members| members.label());
        let members = label.map_or_else(Vec::new, |label| label.members);
        let both = bad_ranges(volume).into_iter().zip(self.bad_before.iter().copied()).enumerate();
        let name = |(slot, (now, before)): (usize, (u64, u64))| {
            let more = now.saturating_sub(before);
            let path = members.get(slot).map(|member| format::text::shown(&member.path));
            (more > 0).then(|| format!("{} (slot {slot}): {more}", path.unwrap_or_default()))
        };
        both.filter_map(name).collect()
    }
}

impl Job for Scrub {
    fn name(&self) -> &'static str {
        "scrub"
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        let volume = &core.store.volume;
        // MS3: after a failure, memory and labels may disagree about the members.
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        match scrub_lacks(volume, self.counts.accepts_away()) {
            None => {}
            // The other members were removed for good.
            Some(ScrubError::NotSeveral) => return self.done(core).map_err(fail),
            // Nothing to report: the scrub resumes by itself.
            Some(
                ScrubError::Alone | ScrubError::Away | ScrubError::Joins | ScrubError::Device(_),
            ) => {
                return Ok(StepOutcome::Wait);
            }
        }
        let there = readable(volume);
        // Logs one line with a count at the end, instead of one for each block.
        let _counted = volume.count_mends();
        self.counts.note_away(away_of(volume));
        let from = self.at.load(Ordering::Relaxed);
        let (mut read, mut read_bytes, mut passed_over, mut uncompared) = (0, 0, 0, 0);
        let (mut is_busy, mut is_end) = (false, false);
        while read < budget.units && passed_over < PASSED_OVER_MAX {
            let at = self.at.load(Ordering::Relaxed);
            let Some(piece) = volume.membership().piece_at(at) else {
                is_end = true;
                break;
            };
            let (end, length) = (piece.end, piece.end - at);
            match PieceRedundancy::of(core, &piece) {
                Ok(Some(kept)) => {
                    let compared = volume.compare(piece.clone(), kept.redundancy(), None);
                    if compared.is_err() && readable(volume) != there {
                        return Ok(self.again_from(from));
                    }
                    let Some(compared) = compared.map_err(io)? else {
                        // A write is in progress.
                        is_busy = true;
                        break;
                    };
                    read += 1;
                    read_bytes += length;
                    uncompared += uncompared_in(&kept, &compared);
                    match kept {
                        PieceRedundancy::Alike => self.mend_all(core, &compared.differing)?,
                        PieceRedundancy::Segment(pin) => self.mend_segment(core, &pin, compared)?,
                    }
                }
                Ok(None) => passed_over += 1,
                Err(error) => {
                    passed_over += 1;
                    let (from, to) = (piece.start, end - 1);
                    self.counts.lose(format!("bytes {from} to {to} of the pool: {error}"));
                }
            }
            self.counts.read_bytes.fetch_add(length, Ordering::Relaxed);
            self.at.store(end, Ordering::Relaxed);
        }
        // A member lost during the comparisons may have made them invalid.
        if readable(volume) != there {
            return Ok(self.again_from(from));
        }
        self.counts.uncompared_bytes.fetch_add(uncompared, Ordering::Relaxed);
        if is_end {
            return self.end(core).map_err(fail);
        }
        if self.notes.are_due(read_bytes) {
            self.note(volume, self.at.load(Ordering::Relaxed)).map_err(fail)?;
        }
        Ok(if is_busy { StepOutcome::Wait } else { StepOutcome::Again })
    }

    fn progress(&self, _core: &Core) -> Option<JobProgress> {
        Some(self.notes.at(self.at.load(Ordering::Relaxed)))
    }
}

fn uncompared_in(kept: &PieceRedundancy<'_>, compared: &RedundancyComparison) -> u64 {
    if !compared.is_short {
        return 0;
    }
    match kept.redundancy() {
        Redundancy::Copies => wide(compared.alone.len() * PAGE_BYTES),
        Redundancy::Parity => wide(compared.bytes.len()),
    }
}

struct ScrubSegment<'c> {
    pin: SegmentPin<'c>,
    /// In a data segment: the blocks that any copy of the summaries of its incarnation lists.
    blocks: Vec<ListedBlock>,
}

fn io(error: DeviceError) -> FsError {
    FsError::io(error.to_string())
}

/// Repairs the pages at `differing`, bytes of the pool from the group table on. Returns the
/// findings.
pub(super) fn mend_differing(core: &Core, differing: &[u64]) -> FsResult<ScrubReport> {
    let counts = Arc::default();
    if !differing.is_empty() {
        let _counted = core.store.volume.count_mends();
        let (notes, noted) = (ProgressSchedule::new(core, &(0..0)), AtomicU64::new(0));
        let scrub = Scrub {
            at: AtomicU64::new(0),
            noted,
            notes,
            counts: Arc::clone(&counts),
            bad_before: Vec::new(),
        };
        scrub.mend_all(core, differing)?;
    }
    Ok(counts.report())
}

pub(super) fn place_at(geometry: &Geometry, offset: u64) -> Option<Place> {
    match offset < geometry.groups_offset {
        true => Some(Geometry::fixed_place(offset)),
        false => geometry.place_at(offset),
    }
}

impl Scrub {
    fn mend_all(&self, core: &Core, differing: &[u64]) -> FsResult<()> {
        let mut segments = BTreeMap::new();
        differing.iter().try_for_each(|&offset| self.mend(core, offset, &mut segments))
    }

    fn mend<'c>(
        &self,
        core: &'c Core,
        offset: u64,
        segments: &mut BTreeMap<SegmentId, Option<ScrubSegment<'c>>>,
    ) -> FsResult<()> {
        self.counts.differing.fetch_add(1, Ordering::Relaxed);
        let geometry = core.store.geometry();
        let Some(place) = place_at(geometry, offset) else {
            self.counts.unused.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        if offset < geometry.groups_offset {
            let healed = core.store.cache.mend(place);
            self.counts.count(healed.as_ref(), || format!("what lies at {place}").into());
            return Ok(());
        }
        let id = SegmentId { group: place.group(), segment: geometry.segment_of(place) };
        let segment = match segments.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => match look_at(core, id) {
                Ok(segment) => new.insert(segment),
                Err(error) => {
                    self.counts.lose(format!("what lies at {place}: {error}"));
                    return Ok(());
                }
            },
        };
        let mut who = None;
        let healed = match segment {
            Some(segment) if segment.pin.kept == Redundancy::Copies => {
                self.mend_page(core, place, segment.pin.incarnation);
                return Ok(());
            }
            Some(segment) => mend_data(core, place, segment, &mut who)?,
            None => None,
        };
        self.counts.count(healed.as_ref(), || {
            who.unwrap_or_else(|| format!("what lies at {place}").into())
        });
        Ok(())
    }

    /// Repairs a metadata page with copies, in a segment of this incarnation.
    fn mend_page(&self, core: &Core, place: Place, incarnation: Epoch) {
        let what = || format!("the page of metadata at {place}").into();
        let known = look_at_page(core, place, incarnation);
        let healed = match known {
            Ok(PageCopyVerdict::Nothing) => {
                self.counts.count(None, what);
                return;
            }
            Ok(PageCopyVerdict::Page) => core.store.cache.mend(place),
            Ok(PageCopyVerdict::Lost) => None,
            Err(error) => {
                self.counts.lose(format!("the page of metadata at {place}: {error}"));
                return;
            }
        };
        // A page freed or changed since the comparison needs no repair.
        let is_whole = healed.as_ref().is_some_and(|healed| healed.bytes.is_some());
        let is_needed = || {
            let is_used = core.store.alloc.is_page_used(place);
            is_used.unwrap_or(true) && !core.store.cache.is_in_memory(place)
        };
        if is_whole || planted!(LostPageIsUnused) || !is_needed() {
            self.counts.count(healed.as_ref().filter(|_| is_whole), what);
            return;
        }
        let read = |copy| core.store.volume.read_copy(copy, IoPurpose::Home, place, PAGE_BYTES);
        let (read, unread): (Vec<_>, Vec<_>) =
            (0..).map_while(read).partition(|copy: &Result<_, _>| copy.is_ok());
        match unread.into_iter().find_map(Result::err) {
            Some(error) => self.counts.miss(what(), &error),
            None if read.len() > 1 => self.counts.lose(what()),
            None => self.counts.lose_or_miss(what()),
        }
    }
}

/// Meaning of the copies at the place of a metadata page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageCopyVerdict {
    /// Unused, or not written back yet.
    Nothing,
    /// A copy may be the page.
    Page,
    /// No copy is of the segment's present incarnation.
    Lost,
}

/// Examines the copies of a metadata page. A copy of an earlier incarnation verifies too.
fn look_at_page(core: &Core, place: Place, incarnation: Epoch) -> FsResult<PageCopyVerdict> {
    let (alloc, cache, volume) = (&core.store.alloc, &core.store.cache, &core.store.volume);
    let is_in_front = alloc.is_in_front(place);
    if !is_in_front && !alloc.is_page_used(place)? || cache.is_newer_in_memory(place) {
        return Ok(PageCopyVerdict::Nothing);
    }
    if is_in_front {
        return Ok(PageCopyVerdict::Page);
    }
    let read = |copy| volume.read_copy(copy, IoPurpose::Home, place, PAGE_BYTES);
    let mut copies = (0..).map_while(read).filter_map(Result::ok);
    let is_there = copies.any(|copy| cache.is_of_this_life(place, &copy, incarnation));
    Ok(if is_there { PageCopyVerdict::Page } else { PageCopyVerdict::Lost })
}

/// Repairs a page of a data segment. `None` if it is unused. `who` receives the path of a lost
/// file.
fn mend_data(
    core: &Core,
    place: Place,
    segment: &ScrubSegment<'_>,
    who: &mut Option<AffectedObject>,
) -> FsResult<Option<RepairOutcome>> {
    let volume = &core.store.volume;
    let heal = |place, length, is_it: &dyn Fn(&[u8]) -> bool| {
        let healed = volume.heal(IoPurpose::Cleaner, place, length, is_it);
        healed.map(Some).map_err(|error| core.store.journal.fail(&error))
    };
    let Some(block) = block_at(&segment.blocks, place) else {
        let incarnation = segment.pin.incarnation;
        let is_summary = |bytes: &[u8]| is_summary_of(core, bytes, place, incarnation);
        if has_copy(volume, place, &is_summary) {
            return heal(place, PAGE_BYTES, &is_summary);
        }
        return Ok(None);
    };
    let healed = heal(block.place, block.range.len(), &|bytes: &[u8]| block.is_it(bytes))?;
    if healed.as_ref().is_none_or(|healed| healed.bytes.is_some()) {
        return Ok(healed);
    }
    // No owner means no loss: a crash leaves summaries of blocks that were never durable or mapped.
    *who = core.who_lost(&block.entry, block.place);
    Ok(healed.filter(|_| who.is_some()))
}

fn is_summary_of(core: &Core, bytes: &[u8], place: Place, incarnation: Epoch) -> bool {
    let summary = summary_of(core, bytes, place);
    summary.is_some_and(|summary| summary.incarnation == incarnation)
}

fn has_copy(volume: &Volume, place: Place, is_it: &dyn Fn(&[u8]) -> bool) -> bool {
    let read = |copy| volume.read_copy(copy, IoPurpose::Cleaner, place, PAGE_BYTES);
    (0..).map_while(read).any(|copy| copy.is_ok_and(|bytes| is_it(&bytes)))
}

fn look_at(core: &Core, id: SegmentId) -> FsResult<Option<ScrubSegment<'_>>> {
    let Some(pin) = core.store.alloc.pin(id)? else { return Ok(None) };
    let mut blocks = Vec::new();
    if pin.kept == Redundancy::Parity {
        let (geometry, volume) = (core.store.geometry(), &core.store.volume);
        let start = geometry.segment_place(id.group, id.segment);
        let length = index_wide(geometry.segment_bytes());
        let read = |copy| volume.read_copy(copy, IoPurpose::Cleaner, start, length);
        for (copy, bytes) in (0..).map_while(read).enumerate() {
            // A bad sector under a block must not hide the summaries.
            let bytes = bytes.unwrap_or_else(|_| read_in_pages(core, copy, start, length));
            blocks.extend(listed_in(core, &pin, &bytes));
        }
    }
    Ok(Some(ScrubSegment { pin, blocks }))
}

fn read_in_pages(core: &Core, copy: usize, start: Place, length: usize) -> AlignedBuffer {
    let (geometry, volume) = (core.store.geometry(), &core.store.volume);
    let mut bytes = AlignedBuffer::zeroed(length);
    let Some(offset) = geometry.device_offset(start, 1) else { return bytes };
    for (page, at) in bytes.chunks_exact_mut(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
        let place = geometry.place_at(at);
        let read = place.and_then(|it| volume.read_copy(copy, IoPurpose::Cleaner, it, PAGE_BYTES));
        if let Some(Ok(own)) = read {
            page.copy_from_slice(&own);
        }
    }
    bytes
}
