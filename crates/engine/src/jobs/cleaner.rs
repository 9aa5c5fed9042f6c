//! The cleaner: moves live blocks out of a segment, so that the segment becomes free.
//!
//! Mechanism only. `alloc::policy` selects the segment, and any selection is safe. The segment's
//! summaries name the owners of its blocks. `relocate/block.rs` moves each live block, and
//! `relocate/shared.rs` the blocks shared with snapshots.
//!
//! Cleaning is started by the runner of jobs before space is short, and by writers that find no
//! free segment.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Place;
use format::page::PAGE_BYTES;
use format::summary::{SegmentSummary, SummaryEntry, SummaryKind};
use storage::device::{AlignedBuffer, IoPurpose, Ticket};

use super::gauge::{CleanerCounts, CleanerGauge, CleanerSamples};
use super::{Job, StepBudget, StepOutcome};
use crate::alloc::policy::{CleaningPolicy, CostBenefit, Thorough};
use crate::alloc::{LOW_SEGMENTS, MetadataHeadroom, SegmentId};
use crate::buffer::io;
use crate::convert::{narrow, wide};
use crate::error::{FsError, FsResult};
use crate::file::{Core, SegmentReclaimer, SpaceVersion};
use crate::relocate::block::SegmentContent;
use crate::relocate::shared::{BlockMoves, UnreadableBlock};
use crate::segment::Segments;

/// Segments cleaned between two checkpoints: as many as the cleaner has in reserve to copy into.
const SEGMENTS_PER_SETTLING: usize = 4;
const SEGMENTS_AT_REST: u32 = 2 * LOW_SEGMENTS;
/// Most segments cleaned per call for metadata space in the main disk group.
const FIRST_EMPTIED_MAX: u32 = 32;
const SEGMENTS_PER_STEP: usize = 24;

/// Bytes per read. One long read would delay a later flush, and all requests behind it.
const READ_BYTES: usize = 128 << 10;

#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    segments: AtomicU64,
    read_fragments: AtomicU64,
    seen: crate::sync::Mutex<LastCleaning>,
    gauge: crate::sync::Mutex<CleanerSamples>,
    /// LOCK: held during cleaning.
    running: crate::sync::Mutex<()>,
}

impl Job for Cleaner {
    fn name(&self) -> &'static str {
        "cleaner"
    }

    /// Cleans while fewer than [`SEGMENTS_AT_REST`] are free, so that writers seldom wait. Beside
    /// writes it stops at [`LOW_SEGMENTS`], because a segment cleaned later has fewer live blocks.
    fn step(&self, core: &Core, now_ns: u64, _budget: StepBudget) -> FsResult<StepOutcome> {
        self.gauge.lock().note(now_ns, self.counts(core));
        let alloc = &core.store.alloc;
        let is_short = alloc.free_segments(SEGMENTS_AT_REST)? < SEGMENTS_AT_REST;
        if !is_short && alloc.group_space().main_has()? == MetadataHeadroom::Enough {
            return Ok(StepOutcome::Wait);
        }
        // If only the main disk group is short, frees in other groups are no reason to try again.
        let is_same = |at: SpaceVersion, now: SpaceVersion| {
            if is_short { at == now } else { at.blocks_placed == now.blocks_placed }
        };
        let LastCleaning { last, fruitless } = *self.seen.lock();
        let before = core.space_reclaim().moment();
        if fruitless.is_some_and(|at| is_same(at, before)) {
            return Ok(StepOutcome::Wait);
        }
        let is_at_rest = last.is_some_and(|last| last.blocks_placed == before.blocks_placed);
        core.space_reclaim().reclaim_until(if is_at_rest {
            SEGMENTS_AT_REST
        } else {
            LOW_SEGMENTS
        })?;
        let now = core.space_reclaim().moment();
        let is_fruitless = is_at_rest && is_same(before, now);
        *self.seen.lock() =
            LastCleaning { last: Some(now), fruitless: is_fruitless.then_some(now) };
        Ok(StepOutcome::Wait)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct LastCleaning {
    /// State at the end of the last step that cleaned.
    last: Option<SpaceVersion>,
    /// State after a fruitless step. No step cleans until this changes.
    fruitless: Option<SpaceVersion>,
}

impl SegmentReclaimer for Cleaner {
    fn empty_some(&self, core: &Core, enough: u32) -> FsResult<()> {
        self.clean_until(core, enough, &CostBenefit, SEGMENTS_PER_STEP)
    }

    fn empty_thoroughly(&self, core: &Core, enough: u32) -> FsResult<()> {
        let candidates = core.store.alloc.candidates().len();
        // Twice: a segment whose live blocks exceed the free segments needs a second attempt.
        self.clean_until(core, enough, &Thorough, 2 * candidates)
    }

    fn wait(&self) {
        drop(self.running.lock());
    }
}

impl Cleaner {
    pub(crate) fn gauge(&self, core: &Core) -> CleanerGauge {
        let now_ns = core.store.clock.monotonic_ns();
        self.gauge.lock().read(now_ns, self.counts(core))
    }

    fn counts(&self, core: &Core) -> CleanerCounts {
        let written = core.segments.written();
        CleanerCounts {
            segments: self.segments.load(Ordering::Relaxed),
            read_fragments: self.read_fragments.load(Ordering::Relaxed),
            moved_fragments: written.moved,
            user_fragments: written.user,
            written_fragments: written.all,
        }
    }

    /// Empties segments regardless of cost. Returns the unreadable blocks, which stay in place. The
    /// moves are complete, and the segments free, only after [`Cleaner::settle`].
    pub(crate) fn empty(
        &self,
        core: &Core,
        segments: &[SegmentId],
    ) -> FsResult<Vec<UnreadableBlock>> {
        let _running = self.running.lock();
        let mut moves = BlockMoves::default();
        let done = self.empty_all(core, segments, &mut moves);
        core.mover().give_up_held(&mut moves);
        done.map(|()| moves.unread())
    }

    pub(crate) fn settle(&self, core: &Core) -> FsResult<()> {
        let _running = self.running.lock();
        settle_moves(core, &mut BlockMoves::default())
    }

    fn empty_all(
        &self,
        core: &Core,
        segments: &[SegmentId],
        moves: &mut BlockMoves,
    ) -> FsResult<()> {
        let mut next = segments.iter().map(|&id| (id, SegmentRead::begin(core, id)));
        let mut reading = next.next();
        while let Some((id, read)) = reading {
            reading = next.next();
            match self.clean_segment(core, (id, read), moves) {
                Ok(()) => {}
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    core.store.journal.check_alive()?;
                    let SegmentId { group, segment } = id;
                    tracing::warn!(%error, group, segment, "a segment cannot be emptied");
                }
                Err(FsError::NoSpace) => {
                    settle_moves(core, moves)?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        core.mover().settle_held(moves)?;
        core.writeback().install_waiting()
    }

    fn clean_until(
        &self,
        core: &Core,
        enough: u32,
        policy: &dyn CleaningPolicy,
        attempts_max: usize,
    ) -> FsResult<()> {
        let _running = self.running.lock();
        let mut moves = BlockMoves::default();
        let done = self.clean_some(core, enough, policy, (attempts_max, &mut moves));
        core.mover().give_up_held(&mut moves);
        done
    }

    fn clean_some(
        &self,
        core: &Core,
        enough: u32,
        policy: &dyn CleaningPolicy,
        (attempts_max, moves): (usize, &mut BlockMoves),
    ) -> FsResult<()> {
        let (mut tried, mut of_first_left) = (BTreeSet::new(), FIRST_EMPTIED_MAX);
        let mut is_settled = true;
        for attempt in 1..=attempts_max {
            let has_enough = core.store.alloc.free_segments(enough)? >= enough;
            let main_has = match of_first_left {
                0 => MetadataHeadroom::Enough,
                _ => core.store.alloc.group_space().main_has()?,
            };
            if has_enough && main_has == MetadataHeadroom::Enough {
                break;
            }
            let mut candidates = core.store.alloc.candidates();
            candidates.retain(|view| !tried.contains(&view.segment));
            // G8: for metadata space, any segment of the main disk group will do.
            let chosen = match main_has {
                MetadataHeadroom::LessThanOthers if has_enough => {
                    core.store.alloc.group_space().least_of_main(&candidates)
                }
                MetadataHeadroom::Enough
                | MetadataHeadroom::LessThanOthers
                | MetadataHeadroom::Little => policy.choose(&candidates),
            };
            of_first_left -= u32::from(has_enough);
            let Some(chosen) = chosen else { break };
            tried.insert(chosen);
            is_settled = false;
            let chosen_id = SegmentId::from(chosen);
            let reading = (chosen_id, SegmentRead::later(core, chosen_id));
            match self.clean_segment(core, reading, moves) {
                Ok(()) => {}
                // Even the cleaner's reserve is used up: release deferred frees.
                Err(FsError::NoSpace) => {
                    settle_moves(core, moves)?;
                    if core.store.alloc.free_segments(1)? == 0 {
                        return Ok(());
                    }
                    // The segment is tried again, and resumes where this attempt ended.
                    tried.remove(&chosen);
                }
                // An unreadable block keeps its own segment in use, but must not stop the cleaning
                // of others.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    core.store.journal.check_alive()?;
                    let SegmentId { group, segment } = chosen_id;
                    tracing::warn!(%error, group, segment, "a segment is not cleaned");
                }
                Err(error) => return Err(error),
            }
            if attempt % SEGMENTS_PER_SETTLING == 0 {
                settle_moves(core, moves)?;
                is_settled = true;
            }
        }
        if is_settled { Ok(()) } else { settle_moves(core, moves) }
    }

    fn clean_segment(
        &self,
        core: &Core,
        (id, reading): (SegmentId, SegmentRead),
        moves: &mut BlockMoves,
    ) -> FsResult<()> {
        let (content, entries) = self.live_candidates(core, id, reading)?;
        let (mut held, mut bad) = (Vec::new(), None);
        for entry in entries {
            match core.mover().move_block(&content, &entry) {
                Ok(true) => held.push(entry),
                Ok(false) => {}
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    core.store.journal.check_alive()?;
                    moves.note_unread(&entry, content.start.advance(entry.offset));
                    bad.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        core.mover().copy_held(&content, &held, moves)?;
        if let Some(error) = bad {
            return Err(error);
        }
        self.segments.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn live_candidates(
        &self,
        core: &Core,
        id: SegmentId,
        reading: SegmentRead,
    ) -> FsResult<(SegmentContent, Vec<SummaryEntry>)> {
        let geometry = core.store.geometry();
        let start = geometry.segment_place(id.group, id.segment);
        let Some(incarnation) = core.store.alloc.incarnation_of(id) else {
            return Ok((SegmentContent { start, bytes: AlignedBuffer::zeroed(0) }, Vec::new()));
        };
        let bytes = reading.end(core)?;
        let fragments = u64::from(geometry.segment_fragments);
        self.read_fragments.fetch_add(fragments, Ordering::Relaxed);
        let step = geometry.page_fragments();
        let mut entries = Vec::new();
        // Every page may be a summary: after a crash the chain of summaries may have a gap.
        for (index, page) in (0..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
            let summary = core.segments.decode_summary(page, start.advance(index * step));
            if let Some(summary) = summary.filter(|summary| summary.incarnation == incarnation) {
                entries.extend(summary.entries);
            }
        }
        let is_inside = |entry: &SummaryEntry| {
            let end = entry.offset.checked_add(entry.fragments);
            end.is_some_and(|end| end <= geometry.segment_fragments)
        };
        entries.retain(is_inside);
        entries.retain(|entry| entry.kind == SummaryKind::Block);
        Ok((SegmentContent { start, bytes }, entries))
    }
}

/// Maps the moved blocks and checkpoints, so that the emptied segments are free.
fn settle_moves(core: &Core, moves: &mut BlockMoves) -> FsResult<()> {
    core.segments.seal_moved();
    core.mover().settle_held(moves)?;
    core.writeback().install_waiting()?;
    core.store.journal.checkpoint()?;
    core.segments.tidy();
    Ok(())
}

/// A segment being read in parts, submitted together or on demand.
struct SegmentRead {
    start: Place,
    tickets: Vec<Ticket>,
    length: usize,
}

impl SegmentRead {
    /// Reads a part at a time, when it is needed, so that no long read delays a concurrent flush.
    fn later(core: &Core, id: SegmentId) -> SegmentRead {
        let geometry = core.store.geometry();
        let start = geometry.segment_place(id.group, id.segment);
        let length = core.reader().stored_bytes(geometry.segment_fragments);
        SegmentRead { start, tickets: Vec::new(), length }
    }

    fn begin(core: &Core, id: SegmentId) -> SegmentRead {
        let geometry = core.store.geometry();
        let SegmentRead { start, length, .. } = SegmentRead::later(core, id);
        let part = |from: usize| {
            let fragments = narrow(wide(from >> geometry.fragment_shift));
            (start.advance(fragments), READ_BYTES.min(length - from))
        };
        let parts = (0..length).step_by(READ_BYTES).map(part);
        let tickets = core.store.volume.submit_reads(IoPurpose::Cleaner, parts);
        SegmentRead { start, tickets, length }
    }

    /// Returns the segment. An unreadable part is read page by page, with zeros for bad pages.
    fn end(self, core: &Core) -> FsResult<AlignedBuffer> {
        let mut bytes = AlignedBuffer::for_reading(self.length);
        let mut place = self.start;
        let mut tickets = self.tickets.into_iter();
        for part in bytes.chunks_mut(READ_BYTES) {
            let read = match tickets.next() {
                None => core.store.volume.read(IoPurpose::Cleaner, place, part.len()),
                Some(ticket) => {
                    let answer = ticket.wait();
                    answer.map(|answer| answer.buffer.expect("a read returns its buffer"))
                }
            };
            match read {
                Ok(read) => part.copy_from_slice(&read),
                Err(error) if !read_pages(core, place, part) => return Err(io(error)),
                Err(_) => {}
            }
            let fragments = part.len() >> core.store.geometry().fragment_shift;
            place = place.advance(narrow(wide(fragments)));
        }
        Ok(bytes)
    }
}

fn read_pages(core: &Core, place: Place, part: &mut [u8]) -> bool {
    let step = core.store.geometry().page_fragments();
    let mut is_any = false;
    for (number, page) in (0..).zip(part.chunks_mut(PAGE_BYTES)) {
        let at = place.advance(number * step);
        match core.store.volume.read(IoPurpose::Cleaner, at, page.len()) {
            Ok(read) => {
                page.copy_from_slice(&read);
                is_any = true;
            }
            Err(_) => page.fill(0),
        }
    }
    is_any
}

impl Segments {
    fn decode_summary(
        &self,
        page: &format::page::PageBytes,
        place: Place,
    ) -> Option<SegmentSummary> {
        SegmentSummary::decode(page, self.pool_id(), self.secret(), place)
    }
}
