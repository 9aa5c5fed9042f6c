//! The cleaner: moves what is live out of a segment, so that the segment is free again.
//!
//! Mechanism. `alloc::policy` says which segment; any answer is safe. A block is live if the map
//! of its file still points to it; the summaries of the segment say whose it was. Live blocks are
//! read, verified, and placed one level deeper; their pointers change as for any rewrite, so a
//! crash in the middle leaves each block in one place or the other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Place;
use format::map::{COARSE_SHIFT, FINE_SHIFT};
use format::page::PAGE_BYTES;
use format::pointer::BlockPointer;
use format::summary::{Summary, SummaryEntry, SummaryKind};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, Purpose};

use super::gauge::{CleanerCounts, CleanerGauge, Gauge};
use super::read::bad_data;
use super::unit::Span;
use super::{Core, Files, VnodeState};
use crate::alloc::SegmentId;
use crate::alloc::policy::{CleaningPolicy, CostBenefit, Thorough};
use crate::buffer::io;
use crate::convert::{index_wide, narrow, wide};
use crate::error::{FsError, FsResult};
use crate::segment::{Origin, Segments};

/// Segments that are cleaned between two checkpoints: the cleaner has so many to copy into.
const SEGMENTS_PER_SETTLING: usize = 4;
/// Segments that one call cleans at most where nobody waits for more: it is a step of a job.
const SEGMENTS_PER_STEP: usize = 24;

/// Bytes that are read of a segment at a time: a device that is told to flush first ends what it
/// has begun, and answers nobody meanwhile, so it is never given one long read.
const READ_BYTES: usize = 128 << 10;

/// A segment that is being cleaned, as it was read.
struct Content {
    /// Where it begins.
    start: Place,
    bytes: AlignedBuffer,
}

/// The cleaner of a pool.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    segments: AtomicU64,
    read_fragments: AtomicU64,
    gauge: crate::sync::Mutex<Gauge>,
    /// Held by whoever cleans.
    running: crate::sync::Mutex<()>,
}

impl Core {
    /// Returns what cleaning has cost.
    pub(crate) fn cleaner_gauge(&self) -> CleanerGauge {
        let now_ns = self.store.clock.monotonic_ns();
        self.cleaner.gauge.lock().read(now_ns, self.cleaner_counts())
    }

    /// Looks at the counts, so that they can be told of the last minutes.
    pub(super) fn note_cleaner_counts(&self, now_ns: u64) {
        self.cleaner.gauge.lock().note(now_ns, self.cleaner_counts());
    }

    fn cleaner_counts(&self) -> CleanerCounts {
        let written = self.segments.written();
        CleanerCounts {
            segments: self.cleaner.segments.load(Ordering::Relaxed),
            read_fragments: self.cleaner.read_fragments.load(Ordering::Relaxed),
            moved_fragments: written.moved,
            user_fragments: written.user,
            written_fragments: written.all,
        }
    }

    /// Cleans until `enough` segments are free, or nothing is left to gain, or as many as a step
    /// may. Called with no lock held.
    pub(super) fn clean_step(&self, enough: u32) -> FsResult<()> {
        self.clean_until(enough, &CostBenefit, SEGMENTS_PER_STEP)
    }

    /// Cleans until `enough` segments are free or none gives anything back: what was promised must
    /// be found. Called with no lock held.
    pub(super) fn clean_thoroughly(&self, enough: u32) -> FsResult<()> {
        let candidates = self.store.alloc.candidates().len();
        // One that does not fit into the free segments is begun twice.
        self.clean_until(enough, &Thorough, 2 * candidates)
    }

    fn clean_until(
        &self,
        enough: u32,
        policy: &dyn CleaningPolicy,
        attempts_max: usize,
    ) -> FsResult<()> {
        let _running = self.cleaner.running.lock();
        let mut tried = BTreeSet::new();
        for attempt in 1..=attempts_max {
            if self.store.alloc.free_segments(enough)? >= enough {
                return Ok(());
            }
            let mut candidates = self.store.alloc.candidates();
            candidates.retain(|view| !tried.contains(&view.segment));
            let Some(chosen) = policy.choose(&candidates) else { break };
            tried.insert(chosen);
            match self.clean_segment(chosen.into()) {
                Ok(()) => {}
                // Not even the cleaner's own segments are free: what is pending must be released.
                Err(FsError::NoSpace) => {
                    self.settle_moves()?;
                    if self.store.alloc.free_segments(1)? == 0 {
                        return Ok(());
                    }
                    // It goes on where it stopped.
                    tried.remove(&chosen);
                }
                // A block that can't be read or verified stays where it is, and its segment too:
                // one bad sector must not keep the others from being cleaned.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    self.store.journal.check_alive()?;
                    let SegmentId { group, segment } = chosen.into();
                    tracing::warn!(%error, group, segment, "a segment is not cleaned");
                }
                Err(error) => return Err(error),
            }
            if attempt % SEGMENTS_PER_SETTLING == 0 {
                self.settle_moves()?;
            }
        }
        self.settle_moves()
    }

    /// Installs what was moved and checkpoints, so that the emptied segments are free.
    fn settle_moves(&self) -> FsResult<()> {
        self.segments.seal_moved();
        self.install_waiting()?;
        self.store.journal.checkpoint()?;
        self.segments.tidy();
        Ok(())
    }

    fn clean_segment(&self, id: SegmentId) -> FsResult<()> {
        let (content, entries) = self.live_candidates(id)?;
        for entry in entries {
            self.move_block(&content, &entry)?;
        }
        self.cleaner.segments.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads the segment; returns it, with what its summaries list.
    fn live_candidates(&self, id: SegmentId) -> FsResult<(Content, Vec<SummaryEntry>)> {
        let geometry = self.store.geometry();
        let start = geometry.segment_place(id.group, id.segment);
        let Some(incarnation) = self.store.alloc.incarnation_of(id) else {
            return Ok((Content { start, bytes: AlignedBuffer::zeroed(0) }, Vec::new()));
        };
        let length = self.stored_bytes(geometry.segment_fragments);
        let bytes = self.read_segment(start, length)?;
        let fragments = u64::from(geometry.segment_fragments);
        self.cleaner.read_fragments.fetch_add(fragments, Ordering::Relaxed);
        let step = geometry.page_fragments();
        let mut entries = Vec::new();
        // Every page: after a crash one summary may be missing, and one more be written where there
        // was room, so their chain alone would not find all. What is no summary costs a comparison.
        for (index, page) in (0..).zip(bytes.as_chunks::<PAGE_BYTES>().0) {
            let summary = self.segments.decode_summary(page, start.advance(index * step));
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

    /// Reads `length` bytes of a segment that begins at `start`, a part at a time.
    fn read_segment(&self, start: Place, length: usize) -> FsResult<AlignedBuffer> {
        let mut bytes = AlignedBuffer::for_reading(length);
        let mut place = start;
        for part in bytes.chunks_mut(READ_BYTES) {
            let read = self.store.volume.read(Purpose::Cleaner, place, part.len()).map_err(io)?;
            part.copy_from_slice(&read);
            let fragments = part.len() >> self.store.geometry().fragment_shift;
            place = place.advance(narrow(wide(fragments)));
        }
        Ok(bytes)
    }

    /// Moves a block one level deeper if its file still has it here.
    fn move_block(&self, content: &Content, entry: &SummaryEntry) -> FsResult<()> {
        let place = content.start.advance(entry.offset);
        // A fileset that is gone has no block that is live.
        let Some(fileset) = self.filesets.by_id(entry.fileset) else { return Ok(()) };
        let vnode = match (Files { core: self, fileset }).vnode_of(entry.anode) {
            Ok(vnode) => vnode,
            Err(FsError::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut state = vnode.state.write();
        let Some(anode) = state.anode.as_ref() else { return Ok(()) };
        let is_same = anode.generation == entry.generation && anode.fileset == entry.fileset;
        if !is_same || state.is_being_cut {
            return Ok(());
        }
        for (span, pointer) in self.live_parts(&state, entry, place)? {
            let buffer = self.read_for_move(content, &pointer, span)?;
            let length = self.stored_bytes(pointer.fragments);
            let mut writing = self.writing(&mut state);
            self.place_block(&mut writing, span, buffer.into(), length, Origin::Cleaner)?;
            // Before anybody can install the block and call the file clean.
            self.note_dirty(&vnode);
        }
        Ok(())
    }

    /// Returns what of the block at `place` its file still has there, and nothing newer of: all of
    /// it, or those of its quarters that a split has made blocks.
    fn live_parts(
        &self,
        state: &VnodeState,
        entry: &SummaryEntry,
        place: Place,
    ) -> FsResult<Vec<(Span, BlockPointer)>> {
        let anode = state.anode()?;
        let is_fine = entry.block_shift == FINE_SHIFT && anode.block_shift == COARSE_SHIFT;
        let start = entry.index.checked_mul(1 << entry.block_shift);
        let (Some(start), true) = (start, is_fine || entry.block_shift == anode.block_shift) else {
            return Ok(Vec::new());
        };
        let end = start.saturating_add(1 << entry.block_shift);
        let fragment_shift = self.store.geometry().fragment_shift;
        let mut parts = Vec::new();
        for unit in self.store.units(anode, start, end)? {
            let span = Span { start: unit.start, shift: unit.shift };
            let Some(before) = span.start.checked_sub(start) else { continue };
            let expected = place.bits() + (before >> fragment_shift);
            let pointer = unit.pointer.filter(|pointer| pointer.place.bits() == expected);
            let is_waiting =
                state.waiting_at(span.start).is_some() || !state.waiting_in(span).is_empty();
            if let Some(pointer) = pointer.filter(|_| !is_waiting) {
                parts.push((span, pointer));
            }
        }
        Ok(parts)
    }

    fn read_for_move(
        &self,
        content: &Content,
        pointer: &BlockPointer,
        span: Span,
    ) -> FsResult<AlignedBuffer> {
        let place = pointer.place;
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        let length = self.stored_bytes(pointer.fragments);
        if length > buffer.len() {
            return Err(bad_data(pointer));
        }
        if let Some((data, before)) = self.segments.in_flight(Segments::extent(pointer)) {
            buffer[..length].copy_from_slice(&data[before..before + length]);
            return Ok(buffer);
        }
        let ahead = place.bits().saturating_sub(content.start.bits());
        let before = index_wide(ahead << self.store.geometry().fragment_shift);
        let data = content.bytes.get(before..before.saturating_add(length));
        // Left where it is: a read names it, a scrub may mend it, and nothing is made to fit.
        let data = data.filter(|data| pointer.verifies(data)).ok_or_else(|| bad_data(pointer))?;
        buffer[..length].copy_from_slice(data);
        Ok(buffer)
    }
}

impl crate::segment::Segments {
    /// Returns the summary in `page`, if it is one of this pool's.
    fn decode_summary(&self, page: &format::page::PageBytes, place: Place) -> Option<Summary> {
        Summary::decode(page, self.pool_id(), self.secret(), place)
    }
}
