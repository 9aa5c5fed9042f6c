//! The cleaner: moves what is live out of a segment, so that the segment is free again.
//!
//! Mechanism. `alloc::policy` says which segment; any answer is safe. The summaries of the segment
//! say whose its blocks were. Each that is live is moved out by `vnode`, which knows how
//! (`vnode/relocate.rs`, and `vnode/held.rs` for what clones hold too).
//!
//! Two ask for it: the runner of jobs, before space is short, and writers who find none.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Place;
use format::page::PAGE_BYTES;
use format::summary::{Summary, SummaryEntry, SummaryKind};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, Purpose, Ticket};

use super::gauge::{CleanerCounts, CleanerGauge, Gauge};
use super::{Budget, Job, Step};
use crate::alloc::policy::{CleaningPolicy, CostBenefit, Thorough};
use crate::alloc::{LOW_SEGMENTS, MainHas, SegmentId};
use crate::buffer::io;
use crate::convert::{narrow, wide};
use crate::error::{FsError, FsResult};
use crate::segment::Segments;
use crate::vnode::{Content, Core, Empties, Moment, Moves, Unread};

/// Segments that are cleaned between two checkpoints: the cleaner has so many to copy into.
const SEGMENTS_PER_SETTLING: usize = 4;
/// Free segments that steps see to while nobody writes.
const SEGMENTS_AT_REST: u32 = 2 * LOW_SEGMENTS;
/// Segments that one call empties because metadata wants room in the main disk group.
const FIRST_EMPTIED_MAX: u32 = 32;
/// Segments that one call cleans at most where nobody waits for more: it is a step of a job.
const SEGMENTS_PER_STEP: usize = 24;

/// Bytes that are read of a segment at a time: a device that is told to flush first ends what it
/// has begun, and answers nobody meanwhile, so it is never given one long read.
const READ_BYTES: usize = 128 << 10;

/// The cleaner of a pool.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    segments: AtomicU64,
    read_fragments: AtomicU64,
    seen: crate::sync::Mutex<Seen>,
    gauge: crate::sync::Mutex<Gauge>,
    /// Held by whoever cleans.
    running: crate::sync::Mutex<()>,
}

impl Job for Cleaner {
    fn name(&self) -> &'static str {
        "cleaner"
    }

    /// Begins below twice the segments that a reclaim wants, so that writers seldom wait for one.
    /// While they write it empties no more than that wants: the later a segment is emptied, the
    /// less of it is live.
    fn step(&self, core: &Core, now_ns: u64, _budget: Budget) -> FsResult<Step> {
        self.gauge.lock().note(now_ns, self.counts(core));
        let alloc = &core.store.alloc;
        let is_short = alloc.free_segments(SEGMENTS_AT_REST)? < SEGMENTS_AT_REST;
        if !is_short && alloc.main_has()? == MainHas::Enough {
            return Ok(Step::Wait);
        }
        // What is freed makes no room for the main disk group in others.
        let is_same = |at: Moment, now: Moment| {
            if is_short { at == now } else { at.blocks_placed == now.blocks_placed }
        };
        let Seen { last, fruitless } = *self.seen.lock();
        let before = core.moment();
        if fruitless.is_some_and(|at| is_same(at, before)) {
            return Ok(Step::Wait);
        }
        let is_at_rest = last.is_some_and(|last| last.blocks_placed == before.blocks_placed);
        core.reclaim_until(if is_at_rest { SEGMENTS_AT_REST } else { LOW_SEGMENTS })?;
        let now = core.moment();
        let is_fruitless = is_at_rest && is_same(before, now);
        *self.seen.lock() = Seen { last: Some(now), fruitless: is_fruitless.then_some(now) };
        Ok(Step::Wait)
    }
}

/// How far the pool was at steps of the cleaner.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// At the end of the last that looked.
    last: Option<Moment>,
    /// When one found nothing to do: until that changes, none looks.
    fruitless: Option<Moment>,
}

impl Empties for Cleaner {
    fn empty_some(&self, core: &Core, enough: u32) -> FsResult<()> {
        self.clean_until(core, enough, &CostBenefit, SEGMENTS_PER_STEP)
    }

    fn empty_thoroughly(&self, core: &Core, enough: u32) -> FsResult<()> {
        let candidates = core.store.alloc.candidates().len();
        // One that does not fit into the free segments is begun twice.
        self.clean_until(core, enough, &Thorough, 2 * candidates)
    }

    fn wait(&self) {
        drop(self.running.lock());
    }
}

impl Cleaner {
    /// Returns what cleaning has cost.
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

    /// Empties segments, whatever that costs; blocks that cannot be read or verified stay where
    /// they are: returns the first of them. The last that were moved may wait to be written until
    /// [`Cleaner::settle`], behind which alone what was emptied is free.
    pub(crate) fn empty(&self, core: &Core, segments: &[SegmentId]) -> FsResult<Vec<Unread>> {
        let _running = self.running.lock();
        let mut moves = Moves::default();
        let done = self.empty_all(core, segments, &mut moves);
        core.give_up_held(&mut moves);
        done.map(|()| moves.unread())
    }

    /// Makes what was emptied free.
    pub(crate) fn settle(&self, core: &Core) -> FsResult<()> {
        let _running = self.running.lock();
        settle_moves(core, &mut Moves::default())
    }

    fn empty_all(&self, core: &Core, segments: &[SegmentId], moves: &mut Moves) -> FsResult<()> {
        // While the blocks of one are moved the next is read.
        let mut next = segments.iter().map(|&id| (id, Reading::begin(core, id)));
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
        core.settle_held(moves)?;
        core.install_waiting()
    }

    fn clean_until(
        &self,
        core: &Core,
        enough: u32,
        policy: &dyn CleaningPolicy,
        attempts_max: usize,
    ) -> FsResult<()> {
        let _running = self.running.lock();
        let mut moves = Moves::default();
        let done = self.clean_some(core, enough, policy, (attempts_max, &mut moves));
        core.give_up_held(&mut moves);
        done
    }

    fn clean_some(
        &self,
        core: &Core,
        enough: u32,
        policy: &dyn CleaningPolicy,
        (attempts_max, moves): (usize, &mut Moves),
    ) -> FsResult<()> {
        let (mut tried, mut of_first_left) = (BTreeSet::new(), FIRST_EMPTIED_MAX);
        let mut is_settled = true;
        for attempt in 1..=attempts_max {
            let has_enough = core.store.alloc.free_segments(enough)? >= enough;
            let main_has = match of_first_left {
                0 => MainHas::Enough,
                _ => core.store.alloc.main_has()?,
            };
            if has_enough && main_has == MainHas::Enough {
                break;
            }
            let mut candidates = core.store.alloc.candidates();
            candidates.retain(|view| !tried.contains(&view.segment));
            // G8: whatever lies there, it makes room where it is wanted.
            let chosen = match main_has {
                MainHas::LessThanOthers if has_enough => {
                    core.store.alloc.least_of_main(&candidates)
                }
                MainHas::Enough | MainHas::LessThanOthers | MainHas::Little => {
                    policy.choose(&candidates)
                }
            };
            of_first_left -= u32::from(has_enough);
            let Some(chosen) = chosen else { break };
            tried.insert(chosen);
            is_settled = false;
            let chosen_id = SegmentId::from(chosen);
            let reading = (chosen_id, Reading::later(core, chosen_id));
            match self.clean_segment(core, reading, moves) {
                Ok(()) => {}
                // Not even the cleaner's own segments are free: what is pending must be released.
                Err(FsError::NoSpace) => {
                    settle_moves(core, moves)?;
                    if core.store.alloc.free_segments(1)? == 0 {
                        return Ok(());
                    }
                    // It goes on where it stopped.
                    tried.remove(&chosen);
                }
                // A block that can't be read or verified stays where it is, and its segment too:
                // one bad sector must not keep the others from being cleaned.
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
        (id, reading): (SegmentId, Reading),
        moves: &mut Moves,
    ) -> FsResult<()> {
        let (content, entries) = self.live_candidates(core, id, reading)?;
        let (mut held, mut bad) = (Vec::new(), None);
        for entry in entries {
            match core.move_block(&content, &entry) {
                Ok(true) => held.push(entry),
                Ok(false) => {}
                // It stays where it is, and keeps none of the others there.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. }))
                    if !planted::is(Planted::BadBlockKeepsSegment) =>
                {
                    core.store.journal.check_alive()?;
                    moves.note_unread(&entry, content.start.advance(entry.offset));
                    bad.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        core.copy_held(&content, &held, moves)?;
        if let Some(error) = bad {
            return Err(error);
        }
        self.segments.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the segment; returns it, with what its summaries list.
    fn live_candidates(
        &self,
        core: &Core,
        id: SegmentId,
        reading: Reading,
    ) -> FsResult<(Content, Vec<SummaryEntry>)> {
        let geometry = core.store.geometry();
        let start = geometry.segment_place(id.group, id.segment);
        let Some(incarnation) = core.store.alloc.incarnation_of(id) else {
            return Ok((Content { start, bytes: AlignedBuffer::zeroed(0) }, Vec::new()));
        };
        let bytes = reading.end(core)?;
        let fragments = u64::from(geometry.segment_fragments);
        self.read_fragments.fetch_add(fragments, Ordering::Relaxed);
        let step = geometry.page_fragments();
        let mut entries = Vec::new();
        // Every page: after a crash one summary may be missing, and one more be written where there
        // was room, so their chain alone would not find all. What is no summary costs a comparison.
        for (index, page) in (0..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
            let summary = core.segments.decode_summary(page, start.advance(index * step));
            if let Some(summary) = summary.filter(|summary| summary.incarnation == incarnation) {
                let count =
                    if planted::is(Planted::SummaryLost) { 0 } else { summary.entries.len() };
                entries.extend(summary.entries.into_iter().take(count));
            }
        }
        let is_inside = |entry: &SummaryEntry| {
            let end = entry.offset.checked_add(entry.fragments);
            end.is_some_and(|end| end <= geometry.segment_fragments)
        };
        entries.retain(is_inside);
        entries.retain(|entry| entry.kind == SummaryKind::Block);
        Ok((Content { start, bytes }, entries))
    }
}

/// Installs what was moved and checkpoints, so that the emptied segments are free.
fn settle_moves(core: &Core, moves: &mut Moves) -> FsResult<()> {
    core.segments.seal_moved();
    core.settle_held(moves)?;
    core.install_waiting()?;
    core.store.journal.checkpoint()?;
    core.segments.tidy();
    Ok(())
}

/// A segment that is being read, in parts: all at one time, or one after the other once it is
/// wanted.
struct Reading {
    start: Place,
    /// Of the first parts.
    tickets: Vec<Ticket>,
    length: usize,
}

impl Reading {
    /// Nothing is in the way of who flushes meanwhile.
    fn later(core: &Core, id: SegmentId) -> Reading {
        let geometry = core.store.geometry();
        let start = geometry.segment_place(id.group, id.segment);
        let length = core.stored_bytes(geometry.segment_fragments);
        Reading { start, tickets: Vec::new(), length }
    }

    fn begin(core: &Core, id: SegmentId) -> Reading {
        let geometry = core.store.geometry();
        let Reading { start, length, .. } = Reading::later(core, id);
        let part = |from: usize| {
            let fragments = narrow(wide(from >> geometry.fragment_shift));
            (start.advance(fragments), READ_BYTES.min(length - from))
        };
        let parts = (0..length).step_by(READ_BYTES).map(part);
        let tickets = core.store.volume.submit_reads(Purpose::Cleaner, parts);
        Reading { start, tickets, length }
    }

    /// Returns the segment; page by page where a part cannot be read: of a page that cannot be read
    /// there are zeros, and no block in it verifies.
    fn end(self, core: &Core) -> FsResult<AlignedBuffer> {
        let mut bytes = AlignedBuffer::for_reading(self.length);
        let mut place = self.start;
        let mut tickets = self.tickets.into_iter();
        for part in bytes.chunks_mut(READ_BYTES) {
            let read = match tickets.next() {
                None => core.store.volume.read(Purpose::Cleaner, place, part.len()),
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

/// Reads what lies from `place` on page by page. Returns whether there was any.
fn read_pages(core: &Core, place: Place, part: &mut [u8]) -> bool {
    let step = core.store.geometry().page_fragments();
    let mut is_any = false;
    for (number, page) in (0..).zip(part.chunks_mut(PAGE_BYTES)) {
        let at = place.advance(number * step);
        match core.store.volume.read(Purpose::Cleaner, at, page.len()) {
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
    /// Returns the summary in `page`, if it is one of this pool's.
    fn decode_summary(&self, page: &format::page::PageBytes, place: Place) -> Option<Summary> {
        Summary::decode(page, self.pool_id(), self.secret(), place)
    }
}
