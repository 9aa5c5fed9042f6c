//! Making anew what a device should have that takes the place of a member, or what a member has
//! missed that comes back. The cursor is in the labels (JO2), and `storage::volume` keeps it and
//! knows how a piece is made anew, and which pieces a member has missed.
//!
//! Where a mirror has several sources all are read: one of them may have stored nothing for a
//! while, and may store nothing still. Of a page of metadata the device gets the newest copy. Data
//! that differs is mended on the sources, and a scrub follows the rebuild: the device may have the
//! older copy.
//!
//! # What is lost
//!
//! What nobody else gives is written as zeros and told: a page that cannot be read elsewhere, if
//! something in it is in use, and a block that does not verify when it is put together. The job
//! goes on. It stops where a member gives nothing at all, and before a piece of which it is not
//! known how it is kept, for the maps of its group cannot be read: the member stays joining.

mod own;

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use format::geometry::Geometry;
use format::ids::Place;
use format::members::{Layout, Member};
use format::page::PAGE_BYTES;
use format::slots::Slots;
use runtime::planted::{self, Planted};
use storage::device::{DeviceError, Redundancy};
use storage::volume::{Choose, Remade, Stay, ToRemake};

use self::own::{Own, save_maps};
use super::pieces::{Kept, LOST_NAMED_MAX, Listed, MIB, Notes, PASSED_OVER_MAX, listed_in};
use super::scrub::{ScrubReport, mend_differing, place_at};
use super::{Budget, Job, JobProgress, Step};
use crate::alloc::SegmentId;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use crate::vnode::{Affected, Core, log_affected};

/// What a rebuild has done so far.
#[derive(Debug, Default)]
pub(crate) struct RebuildCounts {
    slot: usize,
    made_bytes: AtomicU64,
    passed_over_bytes: AtomicU64,
    lost: AtomicU64,
    names: Mutex<Vec<String>>,
    /// Pages and blocks in use that its sources had differently.
    differing: AtomicU64,
    /// Whether its sources had the journal differently.
    log_differs: AtomicBool,
    /// Whether data differed between the sources: the device may have the older copy.
    wants_scrub: AtomicBool,
    is_scrub_told: AtomicBool,
}

/// The same at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Slot of the device.
    pub slot: usize,
    /// Bytes of the pool of which the device has its share now.
    pub made_bytes: u64,
    /// Bytes of the pool in which nothing is in use, or of which it has missed nothing.
    pub passed_over_bytes: u64,
    /// Blocks and pages that no other device gives.
    pub lost: u64,
    /// Which: the first of them.
    pub names: Vec<String>,
}

impl RebuildCounts {
    /// Whether a scrub is to begin when the device is whole; says so once.
    pub(crate) fn take_wants_scrub(&self) -> bool {
        let wants = self.wants_scrub.load(Ordering::Relaxed);
        wants && !self.is_scrub_told.swap(true, Ordering::Relaxed)
    }

    /// Returns the counts of a rebuild of the member in `slot`.
    pub(crate) fn of(slot: usize) -> RebuildCounts {
        RebuildCounts { slot, ..RebuildCounts::default() }
    }

    /// Returns what was done so far.
    pub(crate) fn report(&self) -> RebuildReport {
        RebuildReport {
            slot: self.slot,
            made_bytes: self.made_bytes.load(Ordering::Relaxed),
            passed_over_bytes: self.passed_over_bytes.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            names: self.names.lock().clone(),
        }
    }

    fn lose(&self, what: &Affected) {
        log_affected!(what, "lost: no other device gives it, and it is written as zeros");
        self.lost.fetch_add(1, Ordering::Relaxed);
        let mut names = self.names.lock();
        if names.len() < LOST_NAMED_MAX {
            names.push(what.to_string());
        }
    }
}

/// A piece, and how it is kept if it is to be made anew.
type Planned<'c> = (Range<u64>, Option<Kept<'c>>);

/// What nobody gives of a piece.
struct Lost {
    /// Blocks that do not verify, where segments are kept under parity.
    blocks: Vec<Listed>,
    /// Pages elsewhere: bytes of the pool.
    pages: Vec<u64>,
}

impl Lost {
    fn of(core: &Core, kept: &Kept<'_>, remade: &Remade) -> Lost {
        match kept {
            Kept::Segment(pin) if pin.kept == Redundancy::Parity => {
                let mut blocks = listed_in(core, pin, &remade.bytes);
                blocks.retain(|block| !block.is_in(&remade.bytes));
                Lost { blocks, pages: Vec::new() }
            }
            Kept::Segment(_) | Kept::Alike => {
                Lost { blocks: Vec::new(), pages: remade.lost.clone() }
            }
        }
    }
}

/// Makes the member in a slot whole.
#[derive(Debug)]
pub(crate) struct Rebuild {
    slot: usize,
    /// Of the member that it makes whole: another in the slot has its own job.
    stay: Option<Stay>,
    name: String,
    /// Bytes of the pool that are done; the labels may know of fewer.
    done_bytes: AtomicU64,
    notes: Notes,
    counts: Arc<RebuildCounts>,
}

impl Rebuild {
    /// Returns the job called `what` that makes the joining member in `slot`, which is there for
    /// `stay`, whole, from MiB `done_mib` on.
    pub(crate) fn new(
        core: &Core,
        (slot, stay): (usize, Option<Stay>),
        what: String,
        done_mib: u32,
        counts: &Arc<RebuildCounts>,
    ) -> Rebuild {
        let (name, done_bytes) = (what, u64::from(done_mib) * MIB);
        let volume = &core.store.volume;
        let mut notes = Notes::new(core, &volume.walked(slot));
        if let Some(missed_bytes) = volume.missed_bytes(slot) {
            notes = notes.at_most(missed_bytes);
        }
        Rebuild {
            slot,
            stay,
            name,
            done_bytes: AtomicU64::new(done_bytes),
            notes,
            counts: Arc::clone(counts),
        }
    }

    fn is_joining(&self, core: &Core) -> bool {
        let volume = &core.store.volume;
        volume.joining().is_some_and(|(slot, _)| slot == self.slot)
            && volume.stay_in(self.slot) == self.stay
    }

    /// Makes pieces anew from byte `from` on. Returns where it goes on, and whether that is the
    /// end.
    fn walk(&self, core: &Core, from: u64, budget: Budget) -> FsResult<(u64, bool)> {
        let volume = &core.store.volume;
        let (planned, end, is_end) = self.plan(core, from, budget)?;
        let makes: Vec<(&Range<u64>, &Kept<'_>)> =
            planned.iter().filter_map(|(piece, kept)| Some((piece, kept.as_ref()?))).collect();
        let pages = match self.has_several_sources(core) {
            true => self.segments_of_pages(core, makes.iter().map(|(piece, _)| *piece)),
            false => BTreeSet::new(),
        };
        let choose: Choose<'_> = Rc::new(|offset, copies: &[&[u8]]| {
            if planted::is(Planted::RebuiltFromStale) {
                return None;
            }
            let place = page_place(core.store.geometry(), offset, &pages)?;
            core.store.cache.newest_among(place, copies)
        });
        let mut own = volume.is_returning(self.slot).then(|| Own::new(core, self.slot));
        let with_own = |(piece, kept): &(&Range<u64>, &Kept<'_>)| {
            let keeps =
                own.as_mut().map_or_else(|| Some(BTreeSet::new()), |own| own.keeps(piece, kept))?;
            Some(ToRemake { piece: (*piece).clone(), kept: kept.redundancy(), keeps })
        };
        let wanted: Vec<ToRemake> = makes.iter().map_while(with_own).collect();
        let (mut lost, mut differing, mut is_unsure) = (Vec::new(), Vec::new(), false);
        let made = volume.remake_pieces(self.slot, &wanted, &choose, |at, remade| {
            lost.extend(makes.get(at).map(|(_, kept)| Lost::of(core, kept, &remade)));
            differing.extend(remade.differing);
            is_unsure |= remade.is_unsure;
        });
        let made = made.map_err(|error| FsError::io(error.to_string()))?;
        let stop = makes.get(made).map(|(piece, _)| piece.start);
        for (piece, kept) in &planned {
            if stop.is_some_and(|stop| stop <= piece.start) {
                break;
            }
            let length = piece.end - piece.start;
            let count = match kept {
                Some(_) => &self.counts.made_bytes,
                None => &self.counts.passed_over_bytes,
            };
            count.fetch_add(length, Ordering::Relaxed);
        }
        // Here and not above: it waits for locks, whose owners may wait for what was held there.
        lost.iter().for_each(|lost| self.tell_lost(core, lost));
        self.mend_sources(core, &differing, &pages)?;
        if is_unsure {
            self.counts.log_differs.store(true, Ordering::Relaxed);
            self.want_scrub(core)?;
        }
        Ok((stop.unwrap_or(end), is_end && stop.is_none()))
    }

    /// Whether several members of a mirror have what the device is to have.
    fn has_several_sources(&self, core: &Core) -> bool {
        let Some(label) = core.store.volume.members().and_then(|members| members.label()) else {
            return false;
        };
        let is_online = |slot: &usize| label.members.get(*slot).is_some_and(Member::is_online);
        let has_several = |slots: &Slots| {
            slots.iter().any(|slot| slot == self.slot) && slots.iter().filter(is_online).count() > 1
        };
        let added = label.added.iter().map(|group| (group.layout, &group.slots));
        let mut groups = iter::once((label.layout, &label.slots)).chain(added);
        groups.any(|(layout, slots)| layout == Layout::Mirror && has_several(slots))
    }

    /// Returns which segments of `pieces` hold pages of metadata.
    fn segments_of_pages<'p>(
        &self,
        core: &Core,
        pieces: impl Iterator<Item = &'p Range<u64>>,
    ) -> BTreeSet<SegmentId> {
        let geometry = core.store.geometry();
        let places = pieces.flat_map(|piece| piece.clone().step_by(PAGE_BYTES));
        let places = places.filter(|offset| *offset >= geometry.groups_offset);
        let mut segments: Vec<SegmentId> = places
            .filter_map(|offset| geometry.place_at(offset))
            .map(|place| segment_at(geometry, place))
            .collect();
        segments.dedup();
        let mut pages = BTreeSet::new();
        for id in segments {
            // Where its maps cannot be read it is not known to hold any.
            if let Ok(Some(pin)) = core.store.alloc.pin(id)
                && pin.kept == Redundancy::Copies
            {
                pages.insert(id);
            }
        }
        pages
    }

    /// Mends what the sources of the device had differently: one of them may have stored nothing
    /// for a while. Of pages the device has the right ones ([`Cache::newest_among`]). Of data it
    /// may have the older copy too: a scrub compares all when the device is whole.
    ///
    /// [`Cache::newest_among`]: crate::buffer::Cache::newest_among
    fn mend_sources(
        &self,
        core: &Core,
        differing: &[u64],
        pages: &BTreeSet<SegmentId>,
    ) -> FsResult<()> {
        if differing.is_empty() || planted::is(Planted::RebuiltFromStale) {
            return Ok(());
        }
        let geometry = core.store.geometry();
        let is_chosen = |offset: &u64| page_place(geometry, *offset, pages).is_some();
        let (chosen, other): (Vec<u64>, Vec<u64>) = differing.iter().partition(|it| is_chosen(it));
        let (log, data): (Vec<u64>, Vec<u64>) =
            other.iter().partition(|offset| **offset < geometry.group_table_offset);
        self.counts.log_differs.fetch_or(!log.is_empty(), Ordering::Relaxed);
        let of_pages = mend_differing(core, &chosen)?;
        let of_data = mend_differing(core, &data)?;
        let in_use =
            |found: &ScrubReport| found.repaired + found.unwritten + found.lost + found.unread;
        let count = in_use(&of_pages) + in_use(&of_data);
        self.counts.differing.fetch_add(count, Ordering::Relaxed);
        if in_use(&of_data) > 0 {
            self.want_scrub(core)?;
        }
        core.store.journal.check_alive()
    }

    /// A scrub is to follow the rebuild: the device may have the older copy of some data.
    fn want_scrub(&self, core: &Core) -> FsResult<()> {
        if self.counts.wants_scrub.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // CRASH: the labels say so before this rebuild can be over, or be interrupted.
        core.store.volume.begin_scrub().map_err(|error| core.store.journal.fail(&error))?;
        Ok(())
    }

    /// Returns the pieces of a step from byte `from` on, each with how it is kept if it is to be
    /// made anew, where they end, and whether that is the end of all. A piece of which it is not
    /// known how it is kept ends them: it can be neither made anew nor passed over, for what is in
    /// it may be good on the others. At the front it is an error.
    fn plan<'c>(
        &self,
        core: &'c Core,
        from: u64,
        budget: Budget,
    ) -> FsResult<(Vec<Planned<'c>>, u64, bool)> {
        let volume = &core.store.volume;
        // Of several disk groups that of the member alone.
        let walked = volume.walked(self.slot);
        let (mut at, mut makes, mut passed_over) = (from.max(walked.start), 0, 0);
        let mut planned = Vec::new();
        loop {
            let piece = volume.piece_at(at).filter(|piece| piece.start < walked.end);
            let Some(piece) = piece else { return Ok((planned, at, true)) };
            if makes == budget.units || passed_over == PASSED_OVER_MAX {
                return Ok((planned, at, false));
            }
            let kept = match volume.must_remake(self.slot, &piece) {
                true => self.kept(core, &piece),
                false => Ok(None),
            };
            let kept = match kept {
                Ok(kept) => kept,
                Err(_) if !planned.is_empty() => return Ok((planned, at, false)),
                Err(error) => return Err(unknown(&piece, &error)),
            };
            at = piece.end;
            let count = if kept.is_some() { &mut makes } else { &mut passed_over };
            *count += 1;
            planned.push((piece, kept));
        }
    }

    /// Returns how a piece is kept; `None`: nothing in it is in use.
    fn kept<'c>(&self, core: &'c Core, piece: &Range<u64>) -> FsResult<Option<Kept<'c>>> {
        let group = core.store.geometry().place_at(piece.start).map(|place| place.group());
        match (Kept::of(core, piece), group) {
            (Err(_), Some(group)) if core.store.volume.is_returning(self.slot) => {
                save_maps(core, self.slot, group);
                Kept::of(core, piece)
            }
            (kept, _) => kept,
        }
    }

    fn tell_lost(&self, core: &Core, lost: &Lost) {
        for &offset in &lost.pages {
            let place = core.store.geometry().place_at(offset);
            // Where its maps cannot be read it may be.
            let is_used = |place| core.store.alloc.is_page_used(place).unwrap_or(true);
            if place.is_none_or(is_used) {
                let what = place.map_or_else(
                    || format!("bytes {offset} to {} of the pool", offset + 4095),
                    |place| format!("the page of metadata at {place}"),
                );
                self.counts.lose(&Affected::Other(what));
            }
        }
        for block in &lost.blocks {
            if let Some(who) = core.who_lost(&block.entry, block.place) {
                self.counts.lose(&who);
            }
        }
    }
}

/// Returns the place of the page of metadata at `offset`; `None`: something else lies there, as far
/// as `pages`, the segments that hold pages, say.
fn page_place(geometry: &Geometry, offset: u64, pages: &BTreeSet<SegmentId>) -> Option<Place> {
    if offset < geometry.group_table_offset {
        return None;
    }
    let is_fixed = offset < geometry.groups_offset;
    let place = place_at(geometry, offset);
    place.filter(|place| is_fixed || pages.contains(&segment_at(geometry, *place)))
}

fn segment_at(geometry: &Geometry, place: Place) -> SegmentId {
    SegmentId { group: place.group(), segment: geometry.segment_of(place) }
}

/// Says that the walk stands before `piece`.
fn unknown(piece: &Range<u64>, error: &FsError) -> FsError {
    let cause = format!(
        "bytes {} to {} of the pool: {error}; how they are kept is not known, so the device is not \
         whole: run holdfast check, and resume the job once it is clean",
        piece.start, piece.end
    );
    FsError::io(cause)
}

impl Job for Rebuild {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: Budget) -> FsResult<Step> {
        let volume = &core.store.volume;
        // Failed, or replaced by another: nothing is left to be done.
        let Some(stay) = self.stay.as_ref().filter(|_| self.is_joining(core)) else {
            return Ok(Step::Done);
        };
        // MS3: what memory and the labels say of the members may differ now.
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        let from = self.done_bytes.load(Ordering::Relaxed);
        let made_before = self.counts.made_bytes.load(Ordering::Relaxed);
        let (to, is_end) = self.walk(core, from, budget)?;
        let made_bytes = self.counts.made_bytes.load(Ordering::Relaxed) - made_before;
        self.done_bytes.store(to, Ordering::Relaxed);
        if is_end {
            if self.counts.log_differs.load(Ordering::Relaxed) {
                // The device may have the log of a member that has not stored it. Behind a new tail
                // it has what was written since it joined.
                core.store.journal.checkpoint()?;
            }
            if self.counts.wants_scrub.load(Ordering::Relaxed) {
                // CRASH: another scrub may have ended meanwhile, without this device.
                volume.begin_scrub().map_err(fail)?;
            }
            let differing = self.counts.differing.load(Ordering::Relaxed);
            if differing > 0 {
                let job = &self.name;
                tracing::warn!(
                    "{job}: its sources had {differing} pages and blocks differently: they were \
                     mended"
                );
            }
            volume.end_join(self.slot, stay).map_err(fail)?;
            return Ok(Step::Done);
        }
        if self.notes.are_due(made_bytes) {
            volume.note_walked((self.slot, stay), to).map_err(fail)?;
        }
        match self.is_joining(core) {
            false => Ok(Step::Done),
            true if to == from => Ok(Step::Wait),
            true => Ok(Step::Again),
        }
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        let (_, copied) = core.store.volume.joining()?;
        let done = self.done_bytes.load(Ordering::Relaxed) / MIB;
        Some(JobProgress { done, total: u64::from(copied.total_mib) })
    }
}
