//! Sealing: fixes a partial segment, adds its summary, and submits the write.
//!
//! The birth of a block is the next epoch, read under the lock of the open segments, at or after
//! the placement of the block (GT1 of decision 0047). A moved block keeps its birth (MV1 of
//! decision 0050).

use std::collections::BTreeSet;
use std::sync::Arc;

use format::ids::{Epoch, Lsn, Place};
use format::page::{PAGE_BYTES, page_crc};
use format::pointer::BlockPointer;
use format::summary::{ENTRIES_PER_SUMMARY, SegmentSummary, SummaryEntry, SummaryKind};
use runtime::planted;
use storage::device::{AlignedBuffer, IoPurpose, SharedBytes};

use super::in_flight::NOT_SUBMITTED;
use super::{
    Block, BlockAccounting, BlockOrigin, BlockOwner, BlockProgress, FULL_SEGMENTS_MAX, OpenSegment,
    SegmentStream, Segments, SegmentsState,
};
use crate::alloc::{LifetimeLevel, SegmentId};
use crate::convert::wide;
use crate::error::FsResult;
use crate::journal::LogDataId;
use crate::usage::BlockAccounts;

impl Segments {
    pub(crate) fn seal(&self) {
        self.seal_where(|_, _| true);
    }

    pub(crate) fn seal_moved(&self) {
        self.seal_where(|stream, _| stream.level > LifetimeLevel::FIRST);
    }

    pub(crate) fn seal_log_data(&self) {
        self.seal_where(|_, segment| !segment.log_data.is_empty());
    }

    fn seal_where(&self, is_wanted: impl Fn(&SegmentStream, &OpenSegment) -> bool) {
        let mut state = self.lock();
        while let Some(segment) = state.full.pop_front() {
            self.finish(&mut state, segment);
        }
        let wanted = state.open.iter().filter(|(stream, segment)| is_wanted(stream, segment));
        let wanted: Vec<SegmentStream> = wanted.map(|(stream, _)| *stream).collect();
        for stream in wanted {
            let mut segment = state.open.remove(&stream).expect("looked at it");
            self.seal_partial(&mut state, &mut segment);
            self.keep_open(&mut state, stream, segment);
        }
    }

    /// Leaves a full segment to [`Segments::seal_full`], in deferred work.
    pub(super) fn defer_sealing(&self, state: &mut SegmentsState, segment: OpenSegment) {
        state.full.push_back(segment);
        if state.full.len() > FULL_SEGMENTS_MAX
            && let Some(oldest) = state.full.pop_front()
        {
            self.finish(state, oldest);
        }
    }

    pub(crate) fn has_full(&self) -> bool {
        !self.lock().full.is_empty()
    }

    /// Seals the full segments. Returns whether there were any.
    pub(crate) fn seal_full(&self) -> bool {
        let fragment_bytes = self.fragment_bytes();
        let mut has_sealed = false;
        loop {
            let Some((id, blocks, birth)) = self.first_full() else { return has_sealed };
            has_sealed = true;
            // Checksums take most of the time, so no lock that writers need is held. The segment
            // stays in the list, and another thread may seal it first.
            for block in &blocks {
                seal_block(block, birth, fragment_bytes);
            }
            let mut state = self.lock();
            if state.full.front().is_some_and(|segment| segment.id == id)
                && let Some(segment) = state.full.pop_front()
            {
                self.finish(&mut state, segment);
            }
        }
    }

    /// Returns the oldest full segment, its blocks, and a birth for them, which is no later than
    /// that of blocks placed afterwards.
    fn first_full(&self) -> Option<(SegmentId, Vec<Arc<Block>>, Epoch)> {
        let state = self.lock();
        let segment = state.full.front()?;
        Some((segment.id, segment.blocks.clone(), self.store.journal.birth()))
    }

    /// Keeps a segment open, or closes it if it has hardly more room than a summary needs.
    fn keep_open(&self, state: &mut SegmentsState, stream: SegmentStream, segment: OpenSegment) {
        if self.has_room(&segment, self.store.geometry().page_fragments()) {
            state.open.insert(stream, segment);
        } else if let Some(closing) = state.segments.get_mut(&segment.id) {
            closing.is_closed = true;
        }
    }

    /// Seals the current partial segment: fixes its blocks, appends the summary, and submits one
    /// write.
    pub(super) fn seal_partial(&self, state: &mut SegmentsState, segment: &mut OpenSegment) {
        let blocks = std::mem::take(&mut segment.blocks);
        if blocks.is_empty() {
            return;
        }
        let birth = self.store.journal.birth();
        let lsn = self.store.journal.position();
        let fragment_bytes = self.fragment_bytes();
        let mut entries = Vec::with_capacity(blocks.len());
        for block in &blocks {
            if let Some(pointer) = seal_block(block, birth, fragment_bytes) {
                entries.push(self.entry_of(block, &pointer, segment));
            }
        }
        let pieces = self.gather(segment, &blocks, &entries, lsn);
        // Before the map update of these blocks: mapped blocks must be in the filled part of their
        // segment (`docs/FORMAT.md#void-interval`). After a failure readers of summaries have an
        // older end.
        if let Err(error) = self.store.alloc.segment_filled(segment.id, segment.cursor) {
            tracing::warn!(%error, "the end of a segment is not noted");
        }
        let place = self
            .store
            .geometry()
            .segment_place(segment.id.group, segment.id.segment)
            .advance(segment.partial_start);
        let ticket = self.store.volume.submit_write(IoPurpose::Data, place, pieces);
        let sequence = self.store.journal.data_submitted(ticket);
        for block in &blocks {
            self.note_sequence(state, block, sequence);
            let fragments = u64::from(block.fragments());
            match block.origin {
                BlockOrigin::User => state.written.user += fragments,
                BlockOrigin::Cleaner(_) => state.written.moved += fragments,
            }
        }
        state.written.all += u64::from(segment.cursor - segment.partial_start);
        for id in std::mem::take(&mut segment.log_data) {
            self.store.journal.log_data_submitted(id, sequence);
        }
        segment.partial_start = segment.cursor;
        let closing = state.segments.get_mut(&segment.id).expect("entered when it was opened");
        closing.last_sequence = sequence;
    }

    fn entry_of(
        &self,
        block: &Block,
        pointer: &BlockPointer,
        segment: &OpenSegment,
    ) -> SummaryEntry {
        let start = segment.id.segment * self.store.geometry().segment_fragments;
        SummaryEntry {
            kind: SummaryKind::Block,
            block_shift: block.owner.block_shift,
            fragments: pointer.fragments,
            offset: block.place.fragment() - start,
            fileset: block.owner.fileset,
            anode: block.owner.anode,
            generation: block.owner.generation,
            index: block.owner.index,
            birth: pointer.birth,
            check: pointer.check,
        }
    }

    /// Returns the bytes of the partial segment, summary last, and advances the cursor.
    fn gather(
        &self,
        segment: &mut OpenSegment,
        blocks: &[Arc<Block>],
        entries: &[SummaryEntry],
        lsn: Lsn,
    ) -> Vec<SharedBytes> {
        let fragment_bytes = self.fragment_bytes();
        let page_fragments = self.store.geometry().page_fragments();
        let mut pieces: Vec<SharedBytes> = Vec::with_capacity(blocks.len() + 2);
        for block in blocks {
            let stored = block.state.lock().stored(fragment_bytes);
            if !pieces.last_mut().is_some_and(|last| last.join(&stored)) {
                pieces.push(stored);
            }
        }
        let aligned = segment.cursor.next_multiple_of(page_fragments);
        if aligned > segment.cursor {
            let gap = fragment_bytes * crate::convert::index(aligned - segment.cursor);
            pieces.push(SharedBytes::from(AlignedBuffer::zeroed(gap)));
            segment.cursor = aligned;
        }
        let start = self.store.geometry().segment_place(segment.id.group, segment.id.segment);
        let chunks: Vec<&[SummaryEntry]> = if entries.is_empty() {
            vec![&[]]
        } else {
            entries.chunks(ENTRIES_PER_SUMMARY).collect()
        };
        for entries in chunks {
            let summary = SegmentSummary {
                place: start.advance(segment.cursor),
                lsn,
                incarnation: segment.incarnation,
                partial_start: segment.partial_start,
                previous: segment.previous_summary.0,
                previous_crc: segment.previous_summary.1,
                entries: entries.to_vec(),
            };
            let bytes = summary.encode(self.store.pool_id(), &self.secret);
            segment.previous_summary = (segment.cursor + 1, page_crc(&bytes));
            pieces.push(SharedBytes::from(AlignedBuffer::copy_of(&bytes)));
            segment.cursor += page_fragments;
        }
        self.fill_stripe(segment, &mut pieces);
        debug_assert!(wide(pieces.len()) <= wide(storage::device::WRITE_PIECES_MAX));
        debug_assert_eq!(PAGE_BYTES % fragment_bytes, 0);
        pieces
    }

    /// Pads a partial segment to a whole stripe, so that parity needs no earlier data (decision
    /// 0065).
    fn fill_stripe(&self, segment: &mut OpenSegment, pieces: &mut Vec<SharedBytes>) {
        let end = self.store.geometry().stripe_end(segment.id.group, segment.cursor);
        if end == segment.cursor || planted!(StripeNotPadded) {
            return;
        }
        let gap = self.fragment_bytes() * crate::convert::index(end - segment.cursor);
        pieces.push(SharedBytes::from(AlignedBuffer::zeroed(gap)));
        segment.cursor = end;
    }

    /// Notes the write that carries a block.
    fn note_sequence(&self, state: &mut SegmentsState, block: &Arc<Block>, number: u64) {
        let fragment_bytes = self.fragment_bytes();
        let mut block_state = block.state.lock();
        if let BlockProgress::Sealed { sequence, .. } = &mut block_state.progress {
            *sequence = number;
            let data = block_state.stored(fragment_bytes);
            state.in_flight.insert(block.place, block_state.fragments, number, data);
            state.to_install.insert((block.owner.fileset, block.owner.anode));
        } else {
            // Mapped as inline log data, and perhaps dead. Reads use the bytes in memory until the
            // write ends.
            state.in_flight.submitted(block.place, number);
        }
    }

    /// Fixes a block as inline log data. `None` if its partial segment is already sealed.
    pub(crate) fn seal_for_log(&self, block: &Arc<Block>) -> Option<(BlockPointer, SharedBytes)> {
        self.fix_for_log(&mut self.lock(), block)
    }

    fn fix_for_log(
        &self,
        state: &mut SegmentsState,
        block: &Arc<Block>,
    ) -> Option<(BlockPointer, SharedBytes)> {
        if !block.is_filling() {
            return None;
        }
        let birth = self.store.journal.birth();
        let fragment_bytes = self.fragment_bytes();
        let pointer = seal_block(block, birth, fragment_bytes)?;
        let data = block.state.lock().stored(fragment_bytes);
        state.in_flight.insert(block.place, pointer.fragments, NOT_SUBMITTED, data.clone());
        Some((pointer, data))
    }

    /// Places a block and fixes it at once as inline log data.
    pub(crate) fn place_for_log(
        &self,
        payer: &BlockAccounts<'_>,
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
    ) -> FsResult<(Arc<Block>, BlockPointer, SharedBytes)> {
        let mut state = self.lock();
        let (origin, claim) = ((BlockOrigin::User, payer), BlockAccounting::default());
        let block = self.place_counted(&mut state, origin, owner, data, length_bytes, claim)?;
        let fixed = self.fix_for_log(&mut state, &block);
        let (pointer, bytes) = fixed.expect("nobody else has seen the block");
        Ok((block, pointer, bytes))
    }

    /// Notes the inline log data of a logged transaction. The log's tail stops before that
    /// transaction until the data is written home.
    pub(crate) fn note_logged(&self, places: &BTreeSet<Place>, id: LogDataId) {
        let geometry = self.store.geometry();
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut partial_segments = 0;
        for segment in state.open.values_mut().chain(&mut state.full) {
            let is_in = |place: &Place| {
                let id = SegmentId { group: place.group(), segment: geometry.segment_of(*place) };
                id == segment.id
                    && place.fragment() % geometry.segment_fragments >= segment.partial_start
            };
            if places.iter().any(is_in) {
                segment.log_data.insert(id);
                partial_segments += 1;
            }
        }
        // Some partial segments may have been sealed before. A write that is no longer in flight
        // has ended.
        let answered = self.store.journal.data_answered();
        let write_of = |place: &Place| state.in_flight.write_of(*place).unwrap_or(answered);
        let sequence = places.iter().map(write_of).max().unwrap_or(NOT_SUBMITTED);
        // Called with the segments locked, so that the next seal cannot miss this data.
        self.store.journal.log_data_waits(id, partial_segments, sequence);
    }
}

/// Seals one block. `None` if it is dead.
fn seal_block(block: &Block, birth: Epoch, fragment_bytes: usize) -> Option<BlockPointer> {
    let mut state = block.state.lock();
    match &state.progress {
        BlockProgress::Dead => return None,
        BlockProgress::Sealed { pointer, .. } => return Some(*pointer),
        BlockProgress::Filling => {}
    }
    let kept_birth = state.kept_birth.filter(|_| !planted!(MoveTakesNewBirth));
    let birth = kept_birth.unwrap_or(birth);
    let block_bytes = 1_usize << block.owner.block_shift;
    let stored = crate::convert::index(state.fragments) * fragment_bytes;
    let pointer = BlockPointer::to_data(
        block.place,
        state.fragments,
        birth,
        block_bytes,
        &state.data[..stored],
    );
    state.progress = BlockProgress::Sealed { pointer, sequence: 0 };
    Some(pointer)
}
