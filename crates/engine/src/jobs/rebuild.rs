//! Rebuild of a joining device: the whole contents of a replacement or an attached mirror member,
//! or the stale ranges of a returning member. The cursor is in the labels (JO2). `storage::volume`
//! writes the cursor, rebuilds single pieces, and tracks the stale ranges.
//!
//! A mirror with several sources is read from all of them, because a device may silently lose
//! writes. The joining device gets the newest copy of each metadata page. Differing data is
//! repaired on the sources. A scrub follows the rebuild, because the joining device may have the
//! older copy.
//!
//! # What is lost
//!
//! If no source can read a page, or a block does not verify after reconstruction, zeros are
//! written. If it is in use it is reported as lost, and the job continues. The job stops if a
//! source fails entirely, and before a piece whose redundancy is unknown because of unreadable
//! group maps. The member then stays joining.

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
use runtime::{if_planted, planted};
use storage::device::{DeviceError, Redundancy};
use storage::volume::{Choose, MemberTenure, RebuildRequest, RebuiltPiece};

use self::own::{MemberSalvage, save_maps};
use super::pieces::{
    LOST_NAMED_MAX, ListedBlock, MIB, PASSED_OVER_MAX, PieceRedundancy, ProgressSchedule, listed_in,
};
use super::scrub::{ScrubReport, mend_differing, place_at};
use super::{Job, JobProgress, StepBudget, StepOutcome};
use crate::alloc::SegmentId;
use crate::error::{FsError, FsResult};
use crate::file::{AffectedObject, Core, log_affected};
use crate::sync::Mutex;

#[derive(Debug, Default)]
pub(crate) struct RebuildCounts {
    slot: usize,
    made_bytes: AtomicU64,
    passed_over_bytes: AtomicU64,
    lost: AtomicU64,
    names: Mutex<Vec<String>>,
    differing: AtomicU64,
    log_differs: AtomicBool,
    /// Whether data differed between the sources.
    wants_scrub: AtomicBool,
    is_scrub_told: AtomicBool,
}

/// Report of a rebuild.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Slot of the device.
    pub slot: usize,
    /// Bytes of the pool rebuilt.
    pub made_bytes: u64,
    /// Bytes of the pool skipped, because unused or not stale.
    pub passed_over_bytes: u64,
    /// Blocks and pages that no source could supply.
    pub lost: u64,
    /// Names of the first lost ones.
    pub names: Vec<String>,
}

impl RebuildCounts {
    /// Returns true once if a scrub must follow the rebuild, and false after that.
    pub(crate) fn take_wants_scrub(&self) -> bool {
        let wants = self.wants_scrub.load(Ordering::Relaxed);
        wants && !self.is_scrub_told.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn of(slot: usize) -> RebuildCounts {
        RebuildCounts { slot, ..RebuildCounts::default() }
    }

    pub(crate) fn report(&self) -> RebuildReport {
        RebuildReport {
            slot: self.slot,
            made_bytes: self.made_bytes.load(Ordering::Relaxed),
            passed_over_bytes: self.passed_over_bytes.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            names: self.names.lock().clone(),
        }
    }

    fn lose(&self, what: &AffectedObject) {
        log_affected!(what, "lost: no other device gives it, and it is written as zeros");
        self.lost.fetch_add(1, Ordering::Relaxed);
        let mut names = self.names.lock();
        if names.len() < LOST_NAMED_MAX {
            names.push(what.to_string());
        }
    }
}

type PlannedPiece<'c> = (Range<u64>, Option<PieceRedundancy<'c>>);

struct PieceLosses {
    /// Blocks that do not verify, under parity.
    blocks: Vec<ListedBlock>,
    /// Unreadable pages of pieces without parity, as bytes of the pool.
    pages: Vec<u64>,
}

impl PieceLosses {
    fn of(core: &Core, kept: &PieceRedundancy<'_>, rebuilt: &RebuiltPiece) -> PieceLosses {
        match kept {
            PieceRedundancy::Segment(pin) if pin.kept == Redundancy::Parity => {
                let mut blocks = listed_in(core, pin, &rebuilt.bytes);
                blocks.retain(|block| !block.is_in(&rebuilt.bytes));
                PieceLosses { blocks, pages: Vec::new() }
            }
            PieceRedundancy::Segment(_) | PieceRedundancy::Alike => {
                PieceLosses { blocks: Vec::new(), pages: rebuilt.lost.clone() }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Rebuild {
    slot: usize,
    /// Identifies the device: another device in the slot has its own job.
    stay: Option<MemberTenure>,
    name: String,
    /// Cursor in bytes of the pool. The cursor in the labels may be behind.
    done_bytes: AtomicU64,
    notes: ProgressSchedule,
    counts: Arc<RebuildCounts>,
}

impl Rebuild {
    pub(crate) fn new(
        core: &Core,
        (slot, stay): (usize, Option<MemberTenure>),
        what: String,
        done_mib: u32,
        counts: &Arc<RebuildCounts>,
    ) -> Rebuild {
        let (name, done_bytes) = (what, u64::from(done_mib) * MIB);
        let volume = &core.store.volume;
        let mut notes = ProgressSchedule::new(core, &volume.membership().walked(slot));
        if let Some(missed_bytes) = volume.membership().missed_bytes(slot) {
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
        volume.membership().joining().is_some_and(|(slot, _)| slot == self.slot)
            && volume.membership().stay_in(self.slot) == self.stay
    }

    /// Rebuilds pieces from byte `from` on. Returns the next byte, and whether that is the end.
    fn walk(&self, core: &Core, from: u64, budget: StepBudget) -> FsResult<(u64, bool)> {
        let volume = &core.store.volume;
        let (planned, end, is_end) = self.plan(core, from, budget)?;
        let makes: Vec<(&Range<u64>, &PieceRedundancy<'_>)> =
            planned.iter().filter_map(|(piece, kept)| Some((piece, kept.as_ref()?))).collect();
        let pages = match self.has_several_sources(core) {
            true => self.segments_of_pages(core, makes.iter().map(|(piece, _)| *piece)),
            false => BTreeSet::new(),
        };
        let choose: Choose<'_> = Rc::new(|offset, copies: &[&[u8]]| {
            if_planted!(RebuiltFromStale, return None);
            let place = page_place(core.store.geometry(), offset, &pages)?;
            core.store.cache.newest_among(place, copies)
        });
        let mut own = volume
            .membership()
            .is_returning(self.slot)
            .then(|| MemberSalvage::new(core, self.slot));
        let with_own = |(piece, kept): &(&Range<u64>, &PieceRedundancy<'_>)| {
            let keeps =
                own.as_mut().map_or_else(|| Some(BTreeSet::new()), |own| own.keeps(piece, kept))?;
            Some(RebuildRequest { piece: (*piece).clone(), kept: kept.redundancy(), keeps })
        };
        let wanted: Vec<RebuildRequest> = makes.iter().map_while(with_own).collect();
        let (mut lost, mut differing, mut is_unsure) = (Vec::new(), Vec::new(), false);
        let made =
            volume.membership().rebuild_pieces(self.slot, &wanted, &choose, |at, rebuilt| {
                lost.extend(makes.get(at).map(|(_, kept)| PieceLosses::of(core, kept, &rebuilt)));
                differing.extend(rebuilt.differing);
                is_unsure |= rebuilt.is_unsure;
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
        // After the pieces are released: naming a file waits for locks, and their holders may wait
        // for a piece.
        lost.iter().for_each(|lost| self.tell_lost(core, lost));
        self.mend_sources(core, &differing, &pages)?;
        if is_unsure {
            self.counts.log_differs.store(true, Ordering::Relaxed);
            self.want_scrub(core)?;
        }
        Ok((stop.unwrap_or(end), is_end && stop.is_none()))
    }

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
            // With unreadable maps the kind of a segment is unknown, and its pages are not metadata
            // here.
            if let Ok(Some(pin)) = core.store.alloc.pin(id)
                && pin.kept == Redundancy::Copies
            {
                pages.insert(id);
            }
        }
        pages
    }

    /// Repairs differences between the sources. The joining device has the right version of pages
    /// ([`Cache::newest_among`]), but maybe the older version of data, so a scrub follows.
    ///
    /// [`Cache::newest_among`]: crate::buffer::Cache::newest_among
    fn mend_sources(
        &self,
        core: &Core,
        differing: &[u64],
        pages: &BTreeSet<SegmentId>,
    ) -> FsResult<()> {
        if differing.is_empty() || planted!(RebuiltFromStale) {
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

    fn want_scrub(&self, core: &Core) -> FsResult<()> {
        if self.counts.wants_scrub.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // CRASH: the labels record the scrub before this rebuild can end or be interrupted.
        core.store.volume.begin_scrub().map_err(|error| core.store.journal.fail(&error))?;
        Ok(())
    }

    /// Plans a step from byte `from` on. Returns each piece, with its redundancy if it must be
    /// rebuilt, the end of the last piece, and whether that is the end of the walk. The plan ends
    /// before a piece of unknown redundancy. Such a piece may be intact on the sources, so it must
    /// not be skipped: if it comes first, the plan fails.
    fn plan<'c>(
        &self,
        core: &'c Core,
        from: u64,
        budget: StepBudget,
    ) -> FsResult<(Vec<PlannedPiece<'c>>, u64, bool)> {
        let volume = &core.store.volume;
        // Only pieces of the member's disk group.
        let walked = volume.membership().walked(self.slot);
        let (mut at, mut makes, mut passed_over) = (from.max(walked.start), 0, 0);
        let mut planned = Vec::new();
        loop {
            let piece = volume.membership().piece_at(at).filter(|piece| piece.start < walked.end);
            let Some(piece) = piece else { return Ok((planned, at, true)) };
            if makes == budget.units || passed_over == PASSED_OVER_MAX {
                return Ok((planned, at, false));
            }
            let kept = match volume.membership().must_rebuild(self.slot, &piece) {
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

    fn kept<'c>(
        &self,
        core: &'c Core,
        piece: &Range<u64>,
    ) -> FsResult<Option<PieceRedundancy<'c>>> {
        let group = core.store.geometry().place_at(piece.start).map(|place| place.group());
        match (PieceRedundancy::of(core, piece), group) {
            (Err(_), Some(group)) if core.store.volume.membership().is_returning(self.slot) => {
                save_maps(core, self.slot, group);
                PieceRedundancy::of(core, piece)
            }
            (kept, _) => kept,
        }
    }

    fn tell_lost(&self, core: &Core, lost: &PieceLosses) {
        for &offset in &lost.pages {
            let place = core.store.geometry().place_at(offset);
            // Where the maps are unreadable, a page counts as used.
            let is_used = |place| core.store.alloc.is_page_used(place).unwrap_or(true);
            if place.is_none_or(is_used) {
                let what = place.map_or_else(
                    || format!("bytes {offset} to {} of the pool", offset + 4095),
                    |place| format!("the page of metadata at {place}"),
                );
                self.counts.lose(&AffectedObject::Other(what));
            }
        }
        for block in &lost.blocks {
            if let Some(who) = core.who_lost(&block.entry, block.place) {
                self.counts.lose(&who);
            }
        }
    }
}

/// Returns the place of a metadata page at `offset`. `None` for other contents.
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

fn unknown(piece: &Range<u64>, error: &FsError) -> FsError {
    let cause = format!(
        "bytes {} to {} of the pool: {error}; how they are kept is not known, so the device is not \
         whole: run `holdfast check POOL`, and resume the job once it is clean",
        piece.start, piece.end
    );
    FsError::io(cause)
}

impl Job for Rebuild {
    fn name(&self) -> &str {
        &self.name
    }

    fn step(&self, core: &Core, _now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome> {
        let volume = &core.store.volume;
        // The device has failed or was replaced.
        let Some(stay) = self.stay.as_ref().filter(|_| self.is_joining(core)) else {
            return Ok(StepOutcome::Done);
        };
        // MS3: after a failure, memory and labels may disagree about the members.
        let fail = |error: DeviceError| core.store.journal.fail(&error);
        let from = self.done_bytes.load(Ordering::Relaxed);
        let made_before = self.counts.made_bytes.load(Ordering::Relaxed);
        let (to, is_end) = self.walk(core, from, budget)?;
        let made_bytes = self.counts.made_bytes.load(Ordering::Relaxed) - made_before;
        self.done_bytes.store(to, Ordering::Relaxed);
        if is_end {
            if self.counts.log_differs.load(Ordering::Relaxed) {
                // The device may have the log of a source that loses writes. Behind the new tail
                // its log is complete, and only that part counts after a checkpoint.
                core.store.journal.checkpoint()?;
            }
            if self.counts.wants_scrub.load(Ordering::Relaxed) {
                // CRASH: a scrub that ended during the rebuild has left this device out.
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
            volume.membership().end_join(self.slot, stay).map_err(fail)?;
            return Ok(StepOutcome::Done);
        }
        if self.notes.are_due(made_bytes) {
            volume.membership().note_walked((self.slot, stay), to).map_err(fail)?;
        }
        match self.is_joining(core) {
            false => Ok(StepOutcome::Done),
            true if to == from => Ok(StepOutcome::Wait),
            true => Ok(StepOutcome::Again),
        }
    }

    fn progress(&self, core: &Core) -> Option<JobProgress> {
        core.store.volume.membership().joining()?;
        Some(self.notes.at(self.done_bytes.load(Ordering::Relaxed)))
    }
}
