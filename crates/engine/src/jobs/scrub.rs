//! Scrub: all that a pool holds is read in every way that there is, and what is bad is written
//! again with what the rest gives.
//!
//! Of what all members hold alike, copies that are equal are left: rot does not strike two devices
//! alike. Of each page that is not the same everywhere, what lies there says which copy is right:
//!
//! 1. In a metadata segment, and in the group table: the page that verifies at this place, and is
//!    the one that went home last. Of a segment only what the free map has in use now, is home as
//!    it is in memory, and was made in this life of the segment: pages and summaries of an earlier
//!    one lie where nothing was written since, and verify.
//! 2. In a data segment: the block that the summaries of its incarnation list there, by its
//!    checksum; and a summary itself, by its own. Summaries of an earlier life of the segment lie
//!    where nothing was written since, and births do not tell them apart: who moves keeps his.
//! 3. Nothing in use, as what a crash has left: it stays.
//!
//! The kind of a segment and its incarnation are those that the allocator has. It is pinned
//! meanwhile: its usage page at home may be of its life before.
//!
//! In stripes segments in use alone are looked at: `stripes` says how.
//!
//! Nothing is written but by [`Volume::heal`] and [`Volume::mend_parity`], which hold the range
//! against writers.

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
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose, Redundancy};
use storage::volume::{Compared, Healed, Volume};

use super::pieces::{
    Kept, LOST_NAMED_MAX, Listed, MIB, Notes, PASSED_OVER_MAX, block_at, listed_in, summary_of,
};
use super::{Budget, Job, JobProgress, Step};
use crate::alloc::{Pin, SegmentId};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use crate::vnode::{Affected, Core, log_affected};

/// What a scrub has found so far.
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
    /// Devices of a raid5 that were away meanwhile.
    away: Mutex<BTreeSet<String>>,
    /// One of those that are now.
    away_now: Mutex<Option<String>>,
    is_done: AtomicU64,
    /// Whether it goes on without a device of a raid5 that is away: one that began with all waits
    /// for it, and compares it then.
    accepts_away: AtomicBool,
    names: Mutex<Vec<String>>,
}

/// The same at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Bytes of the pool that were looked at; in stripes what nothing uses counts too.
    pub read_bytes: u64,
    /// How many of these before this mount: what was found there is in the log of that time.
    pub read_before: u64,
    /// Pages of 4 KiB that were not the same on all members, or whose rows do not agree.
    pub differing: u64,
    /// Pages and blocks that were written again.
    pub repaired: u64,
    /// Pages and blocks of which no copy verifies.
    pub lost: u64,
    /// Those of which no copy verifies that could be read, and one could not be: it may be there
    /// all the same.
    pub unread: u64,
    /// Those that are whole, and bad on a device that does not take them, or where somebody writes.
    pub unwritten: u64,
    /// Differing pages that nothing uses.
    pub unused: u64,
    /// Runs of rows whose parity was written again.
    pub parities: u64,
    /// Bytes in use, or around what is, that were verified by their checksums alone: a device of
    /// their raid5 was away, and with it their parity or their other copies.
    pub uncompared_bytes: u64,
    /// Which devices that were.
    pub away: Vec<String>,
    /// Which are lost, cannot be read or are not written: the first of them, files by their paths.
    pub names: Vec<String>,
    /// Whether it has come to the end.
    pub is_done: bool,
    /// Why it waits: it goes on by itself once that is no more.
    pub waits: Option<String>,
}

impl ScrubCounts {
    /// Returns what was found so far.
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
            is_done: of(&self.is_done) > 0,
            waits: None,
        }
    }

    pub(crate) fn accepts_away(&self) -> bool {
        self.accepts_away.load(Ordering::Relaxed)
    }

    /// A raid5 is looked at without the device that is away from now on.
    pub(crate) fn accept_away(&self) {
        self.accepts_away.store(true, Ordering::Relaxed);
    }

    /// Counts `what` as not read if a device is missing, which may hold a good copy; else as lost.
    fn lose_or_miss(&self, what: impl Into<Affected>) {
        match self.away_now.lock().clone() {
            Some(device) => self.miss(what, &DeviceError::Failed { device }),
            None => self.lose(what),
        }
    }

    fn lose(&self, what: impl Into<Affected>) {
        let what = what.into();
        self.lost.fetch_add(1, Ordering::Relaxed);
        if self.name(&what) {
            log_affected!(&what, "a scrub found no copy that verifies");
        }
    }

    /// Notes what a device has said of something that it should have.
    fn miss(&self, what: impl Into<Affected>, error: &DeviceError) {
        let what = what.into();
        self.unread.fetch_add(1, Ordering::Relaxed);
        if self.name(&what) {
            tracing::warn!(%error, "a scrub could not read a copy");
            log_affected!(&what, "a scrub could not read it, and no other copy verifies");
        }
    }

    /// Notes what is bad on a device and whole all the same, and could not be written again there.
    fn leave(&self, what: impl Into<Affected>) {
        let what = what.into();
        self.unwritten.fetch_add(1, Ordering::Relaxed);
        if self.name(&what) {
            log_affected!(&what, "a scrub found a good copy, but could not rewrite the bad one");
        }
    }

    /// Notes which devices of raid5s are away now.
    fn note_away(&self, away: BTreeSet<String>) {
        *self.away_now.lock() = away.first().cloned();
        self.away.lock().extend(away);
    }

    /// Returns whether it has a name in the report that is not there yet: of the others the log
    /// tells the count at the end.
    fn name(&self, what: &Affected) -> bool {
        let (what, mut names) = (what.to_string(), self.names.lock());
        // Each page of a block has the name of its file.
        let is_new = names.len() < LOST_NAMED_MAX && names.last() != Some(&what);
        if is_new {
            names.push(what);
        }
        is_new
    }

    /// Counts what became of something bad.
    fn count(&self, healed: Option<&Healed>, what: impl FnOnce() -> Affected) {
        match healed {
            None => _ = self.unused.fetch_add(1, Ordering::Relaxed),
            // What was mended with its neighbour is the same by now.
            Some(Healed { bytes: Some(_), bad: 0, .. }) => {}
            Some(Healed { bytes: Some(_), bad, repaired, .. }) if bad == repaired => {
                self.repaired.fetch_add(1, Ordering::Relaxed);
            }
            Some(Healed { bytes: Some(_), .. }) if !planted::is(Planted::UnwrittenIsLost) => {
                self.leave(what());
            }
            Some(Healed { bytes: None, unread: Some(error), .. }) => self.miss(what(), error),
            Some(_) => self.lose_or_miss(what()),
        }
    }
}

/// Why a pool cannot be scrubbed now.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScrubError {
    /// `holdfast check` verifies such a pool.
    #[error(
        "the pool lies on one device, so there is no other copy to compare with: `holdfast \
         check` verifies it"
    )]
    NotSeveral,
    /// Replace the others first.
    #[error(
        "one device alone has all that the pool holds, so there is no other copy to compare \
         with: replace the others first"
    )]
    Alone,
    /// Replace it, or bring it back; or ask for the scrub while it is away.
    #[error(
        "a device of a raid5 went missing after the scrub began. The scrub continues when the \
         device is back or replaced; `holdfast scrub POOL` continues it now without the device"
    )]
    Away,
    /// Wait until it is online.
    #[error(
        "a device of a raid5 is still being rebuilt: wait until that has ended (`holdfast job list \
         POOL` shows its progress)"
    )]
    Joins,
    /// What a member said: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Returns why what the pool holds cannot be held against anything now; `None`: it can.
/// `accepts_away`: a raid5 is looked at without the device that is away.
pub(crate) fn scrub_lacks(volume: &Volume, accepts_away: bool) -> Option<ScrubError> {
    let Some(label) = volume.members().and_then(|members| members.label()) else {
        return Some(ScrubError::NotSeveral);
    };
    let is_online = |slot: &usize| label.members.get(*slot).is_some_and(Member::is_online);
    let is_joining = |slot: usize| {
        let member = label.members.get(slot);
        member.is_some_and(|member| member.state == MemberState::Joining)
    };
    // The journal is not walked over: it is compared when the pool is opened.
    let added = label.added.iter().filter(|group| !group.has_journal);
    let added = added.map(|group| (group.layout, &group.slots));
    let groups = iter::once((label.layout, &label.slots)).chain(added);
    let mut is_on_one = true;
    for (layout, slots) in groups {
        let online = slots.iter().filter(is_online).count();
        match layout {
            Layout::Single => continue,
            Layout::Mirror if online < 2 => return Some(ScrubError::Alone),
            // It has all soon, and is to be compared with the others then.
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

/// Returns which members can be read now, by slot: while a piece is compared it must not change.
fn readable(volume: &Volume) -> Vec<bool> {
    let all = volume.members().map_or_else(Vec::new, |members| members.all());
    all.iter().map(|slot| slot.readable().is_some()).collect()
}

/// Returns what the devices of raid5s are called that are away, by their paths or slots.
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

/// A scrub of the whole pool. How far it is the labels tell: one that was interrupted goes on.
#[derive(Debug)]
pub(crate) struct Scrub {
    at: AtomicU64,
    /// What was noted last.
    noted: AtomicU64,
    notes: Notes,
    counts: Arc<ScrubCounts>,
    /// Ranges that did not verify when it began, by slot.
    bad_before: Vec<u64>,
}

fn bad_ranges(volume: &Volume) -> Vec<u64> {
    let all = volume.members().map_or_else(Vec::new, |members| members.all());
    all.iter().map(|slot| slot.counts().checksum_errors).collect()
}

impl Scrub {
    /// Returns a scrub that goes on at byte `at` of the pool, and counts in `counts`.
    pub(crate) fn new(core: &Core, at: u64, counts: &Arc<ScrubCounts>) -> Scrub {
        let before = at.saturating_sub(core.store.geometry().group_table_offset);
        counts.read_bytes.store(before, Ordering::Relaxed);
        counts.read_before.store(before, Ordering::Relaxed);
        let notes = Notes::new(core, &(0..core.store.volume.used_end()));
        let noted = AtomicU64::new(at);
        let (counts, bad_before) = (Arc::clone(counts), bad_ranges(&core.store.volume));
        Scrub { at: AtomicU64::new(at), noted, notes, counts, bad_before }
    }

    /// A member went: what was walked over since byte `from` may have been compared with nothing.
    fn again_from(&self, from: u64) -> Step {
        let at = self.at.swap(from, Ordering::Relaxed);
        self.counts.read_bytes.fetch_sub(at.saturating_sub(from), Ordering::Relaxed);
        Step::Wait
    }

    fn note(&self, volume: &Volume, to: u64) -> Result<(), DeviceError> {
        let from = self.noted.swap(to, Ordering::Relaxed);
        volume.note_scrubbed(from, to)
    }

    /// All was walked over. A member that came meanwhile has the rest from the start.
    fn end(&self, volume: &Volume) -> Result<Step, DeviceError> {
        let end = volume.used_end();
        self.note(volume, end)?;
        if let Some(left) = volume.scrubbed().filter(|left| left + MIB < end) {
            volume.begin_scrub()?;
            self.at.store(left, Ordering::Relaxed);
            self.noted.store(left, Ordering::Relaxed);
            return Ok(Step::Again);
        }
        self.done(volume)
    }

    fn done(&self, volume: &Volume) -> Result<Step, DeviceError> {
        volume.end_scrub()?;
        self.counts.is_done.store(1, Ordering::Relaxed);
        self.tell(volume);
        Ok(Step::Done)
    }

    /// Tells the log of all that was found in one line.
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

    /// Returns the devices that had what did not verify since the scrub began, each with how often.
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

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        let volume = &core.store.volume;
        // What memory and the labels say of the members may differ after a failure (MS3).
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        match scrub_lacks(volume, self.counts.accepts_away()) {
            None => {}
            // The others were taken out, and do not come back.
            Some(ScrubError::NotSeveral) => return self.done(volume).map_err(fail),
            // It goes on once that is there.
            Some(
                ScrubError::Alone | ScrubError::Away | ScrubError::Joins | ScrubError::Device(_),
            ) => {
                return Ok(Step::Wait);
            }
        }
        let there = readable(volume);
        // No line for each mended block: the log has one line when the scrub ends.
        let _counted = volume.count_mends();
        self.counts.note_away(away_of(volume));
        let from = self.at.load(Ordering::Relaxed);
        let (mut read, mut read_bytes, mut passed_over, mut uncompared) = (0, 0, 0, 0);
        let (mut is_busy, mut is_end) = (false, false);
        while read < budget.units && passed_over < PASSED_OVER_MAX {
            let at = self.at.load(Ordering::Relaxed);
            let Some(piece) = volume.piece_at(at) else {
                is_end = true;
                break;
            };
            let (end, length) = (piece.end, piece.end - at);
            match Kept::of(core, &piece) {
                Ok(Some(kept)) => {
                    let compared = volume.compare(piece.clone(), kept.redundancy(), None);
                    if compared.is_err() && readable(volume) != there {
                        return Ok(self.again_from(from));
                    }
                    let Some(compared) = compared.map_err(io)? else {
                        // A write is at it.
                        is_busy = true;
                        break;
                    };
                    read += 1;
                    read_bytes += length;
                    uncompared += uncompared_in(&kept, &compared);
                    match kept {
                        Kept::Alike => self.mend_all(core, &compared.differing)?,
                        Kept::Segment(pin) => self.mend_segment(core, &pin, compared)?,
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
        // One that went meanwhile was compared with nothing.
        if readable(volume) != there {
            return Ok(self.again_from(from));
        }
        self.counts.uncompared_bytes.fetch_add(uncompared, Ordering::Relaxed);
        if is_end {
            return self.end(volume).map_err(fail);
        }
        if self.notes.are_due(read_bytes) {
            self.note(volume, self.at.load(Ordering::Relaxed)).map_err(fail)?;
        }
        Ok(if is_busy { Step::Wait } else { Step::Again })
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let done = self.counts.read_bytes.load(Ordering::Relaxed);
        let total = core.store.volume.used_end() - core.store.geometry().group_table_offset;
        // A member that is back is compared with the others from the start.
        Some(JobProgress { done: done.min(total), total })
    }
}

/// Returns how many bytes of a piece were verified by checksum only, because a member is missing.
fn uncompared_in(kept: &Kept<'_>, compared: &Compared) -> u64 {
    if planted::is(Planted::UncomparedNotCounted) || !compared.is_short {
        return 0;
    }
    match kept.redundancy() {
        Redundancy::Copies => wide(compared.alone.len() * PAGE_BYTES),
        Redundancy::Parity => wide(compared.bytes.len()),
    }
}

/// A segment of which a page is not the same on all members.
struct Segment<'c> {
    /// Keeps it what it is.
    pin: Pin<'c>,
    /// What the summaries of its incarnation list, of all copies, if it is one for data.
    blocks: Vec<Listed>,
}

fn io(error: DeviceError) -> FsError {
    FsError::io(error.to_string())
}

/// Mends what lies at `differing`, bytes of the pool from the group table on, as a scrub would that
/// found them not the same on all members, and returns what it found.
pub(super) fn mend_differing(core: &Core, differing: &[u64]) -> FsResult<ScrubReport> {
    let counts = Arc::default();
    if !differing.is_empty() {
        let _counted = core.store.volume.count_mends();
        let (notes, noted) = (Notes::new(core, &(0..0)), AtomicU64::new(0));
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

/// Returns the place at byte `offset` of the pool, in a group or in front of them.
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

    /// Repairs the page at `offset`, which is not the same on all members.
    fn mend<'c>(
        &self,
        core: &'c Core,
        offset: u64,
        segments: &mut BTreeMap<SegmentId, Option<Segment<'c>>>,
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

    /// Repairs a page of metadata that has copies, in a segment that has been one for pages since
    /// epoch `incarnation`.
    fn mend_page(&self, core: &Core, place: Place, incarnation: Epoch) {
        let what = || format!("the page of metadata at {place}").into();
        let known = look_at_page(core, place, incarnation);
        let healed = match known {
            Ok(AtHome::Nothing) if !planted::is(Planted::EarlierLifeBelieved) => {
                self.counts.count(None, what);
                return;
            }
            Ok(AtHome::Nothing | AtHome::Page) => core.store.cache.mend(place),
            Ok(AtHome::Lost) => None,
            Err(error) => {
                self.counts.lose(format!("the page of metadata at {place}: {error}"));
                return;
            }
        };
        // It may have been freed, or changed, since it was looked at.
        let is_whole = healed.as_ref().is_some_and(|healed| healed.bytes.is_some());
        let is_needed = || {
            let is_used = core.store.alloc.is_page_used(place);
            is_used.unwrap_or(true) && !core.store.cache.is_in_memory(place)
        };
        if is_whole || planted::is(Planted::LostPageIsUnused) || !is_needed() {
            self.counts.count(healed.as_ref().filter(|_| is_whole), what);
            return;
        }
        let read = |copy| core.store.volume.read_copy(copy, Purpose::Home, place, PAGE_BYTES);
        let (read, unread): (Vec<_>, Vec<_>) =
            (0..).map_while(read).partition(|copy: &Result<_, _>| copy.is_ok());
        match unread.into_iter().find_map(Result::err) {
            Some(error) => self.counts.miss(what(), &error),
            None if read.len() > 1 => self.counts.lose(what()),
            None => self.counts.lose_or_miss(what()),
        }
    }
}

/// What the copies at the place of a metadata page mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtHome {
    /// Nothing: the place is unused, or its page has not been written back yet.
    Nothing,
    /// One of them may be the page.
    Page,
    /// The page should be there, and none of them is of this life of the segment.
    Lost,
}

/// Looks at the copies of the page at `place`, in a segment that has been one for pages since epoch
/// `incarnation`. A copy of an earlier life of the segment verifies as one of this life does.
fn look_at_page(core: &Core, place: Place, incarnation: Epoch) -> FsResult<AtHome> {
    let (alloc, cache, volume) = (&core.store.alloc, &core.store.cache, &core.store.volume);
    let is_in_front = alloc.is_in_front(place);
    if !is_in_front && !alloc.is_page_used(place)? || cache.is_newer_in_memory(place) {
        return Ok(AtHome::Nothing);
    }
    if is_in_front {
        return Ok(AtHome::Page);
    }
    let read = |copy| volume.read_copy(copy, Purpose::Home, place, PAGE_BYTES);
    let mut copies = (0..).map_while(read).filter_map(Result::ok);
    let is_there = copies.any(|copy| cache.is_of_this_life(place, &copy, incarnation));
    Ok(if is_there { AtHome::Page } else { AtHome::Lost })
}

/// Repairs the page at `place` of a data segment; `None`: nothing uses it. `who` becomes the path
/// of what is lost with it.
fn mend_data(
    core: &Core,
    place: Place,
    segment: &Segment<'_>,
    who: &mut Option<Affected>,
) -> FsResult<Option<Healed>> {
    let volume = &core.store.volume;
    let heal = |place, length, is_it: &dyn Fn(&[u8]) -> bool| {
        let healed = volume.heal(Purpose::Cleaner, place, length, is_it);
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
    // A crash leaves summaries of blocks that were never durable, and that no map leads to.
    *who = core.who_lost(&block.entry, block.place);
    Ok(healed.filter(|_| who.is_some()))
}

/// Whether `bytes`, from `place`, are a summary of this incarnation of its segment.
fn is_summary_of(core: &Core, bytes: &[u8], place: Place, incarnation: Epoch) -> bool {
    let summary = summary_of(core, bytes, place);
    summary.is_some_and(|summary| summary.incarnation == incarnation)
}

/// Whether one of the copies is what `is_it` looks for.
fn has_copy(volume: &Volume, place: Place, is_it: &dyn Fn(&[u8]) -> bool) -> bool {
    let read = |copy| volume.read_copy(copy, Purpose::Cleaner, place, PAGE_BYTES);
    (0..).map_while(read).any(|copy| copy.is_ok_and(|bytes| is_it(&bytes)))
}

/// Returns what is to be known of a segment; `None`: nothing in it is in use.
fn look_at(core: &Core, id: SegmentId) -> FsResult<Option<Segment<'_>>> {
    let Some(pin) = core.store.alloc.pin(id)? else { return Ok(None) };
    let mut blocks = Vec::new();
    if pin.kept == Redundancy::Parity {
        let (geometry, volume) = (core.store.geometry(), &core.store.volume);
        let start = geometry.segment_place(id.group, id.segment);
        let length = index_wide(geometry.segment_bytes());
        let read = |copy| volume.read_copy(copy, Purpose::Cleaner, start, length);
        for (copy, bytes) in (0..).map_while(read).enumerate() {
            // A bad sector under a block must not hide what the summaries list.
            let bytes = bytes.unwrap_or_else(|_| read_in_pages(core, copy, start, length));
            blocks.extend(listed_in(core, &pin, &bytes));
        }
    }
    Ok(Some(Segment { pin, blocks }))
}

/// Reads a copy of `length` bytes from `start` page by page; what is not given is zeros.
fn read_in_pages(core: &Core, copy: usize, start: Place, length: usize) -> AlignedBuffer {
    let (geometry, volume) = (core.store.geometry(), &core.store.volume);
    let mut bytes = AlignedBuffer::zeroed(length);
    let Some(offset) = geometry.device_offset(start, 1) else { return bytes };
    for (page, at) in bytes.chunks_exact_mut(PAGE_BYTES).zip((offset..).step_by(PAGE_BYTES)) {
        let place = geometry.place_at(at);
        let read = place.and_then(|it| volume.read_copy(copy, Purpose::Cleaner, it, PAGE_BYTES));
        if let Some(Ok(own)) = read {
            page.copy_from_slice(&own);
        }
    }
    bytes
}
