//! Sealing: fixing a partial segment, summing it up, and handing it to the device.
//!
//! The birth of a block is the next epoch, read under the lock of the open segments, at or after
//! the moment when the block was placed (GT1 of decision 0047). A block that was moved keeps the
//! birth that it had (MV1 of decision 0050).

use std::collections::BTreeSet;
use std::sync::Arc;

use format::ids::{Epoch, Lsn, Place};
use format::page::{PAGE_BYTES, page_crc};
use format::pointer::BlockPointer;
use format::summary::{ENTRIES_PER_SUMMARY, Summary, SummaryEntry, SummaryKind};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, Purpose, SharedBytes};

use super::in_flight::NOT_SUBMITTED;
use super::{
    Block, BlockOwner, Claim, FULL_SEGMENTS_MAX, OpenSegment, Origin, Progress, Segments, State,
    Stream,
};
use crate::alloc::{Level, SegmentId};
use crate::convert::wide;
use crate::error::FsResult;
use crate::journal::LogDataId;
use crate::usage::Payer;

impl Segments {
    /// Seals what the open segments hold, so that their blocks can be installed.
    pub(crate) fn seal(&self) {
        self.seal_where(|_, _| true);
    }

    /// Seals what the cleaner has moved, and what lies beside it.
    pub(crate) fn seal_moved(&self) {
        self.seal_where(|stream, _| stream.level > Level::FIRST);
    }

    /// Seals the partial segments whose blocks are inline log data.
    pub(crate) fn seal_log_data(&self) {
        self.seal_where(|_, segment| !segment.log_data.is_empty());
    }

    fn seal_where(&self, is_wanted: impl Fn(&Stream, &OpenSegment) -> bool) {
        let mut state = self.lock();
        while let Some(segment) = state.full.pop_front() {
            self.finish(&mut state, segment);
        }
        let wanted = state.open.iter().filter(|(stream, segment)| is_wanted(stream, segment));
        let wanted: Vec<Stream> = wanted.map(|(stream, _)| *stream).collect();
        for stream in wanted {
            let mut segment = state.open.remove(&stream).expect("looked at it");
            self.seal_partial(&mut state, &mut segment);
            self.keep_open(&mut state, stream, segment);
        }
    }

    /// Leaves a full segment to be sealed by [`Segments::seal_full`], when nobody waits for it.
    pub(super) fn defer_sealing(&self, state: &mut State, segment: OpenSegment) {
        state.full.push_back(segment);
        if state.full.len() > FULL_SEGMENTS_MAX
            && let Some(oldest) = state.full.pop_front()
        {
            self.finish(state, oldest);
        }
    }

    /// Returns whether segments are full and not sealed.
    pub(crate) fn has_full(&self) -> bool {
        !self.lock().full.is_empty()
    }

    /// Seals the segments that are full. Returns whether there were any.
    pub(crate) fn seal_full(&self) -> bool {
        let fragment_bytes = self.fragment_bytes();
        let mut has_sealed = false;
        loop {
            let Some((id, blocks, birth)) = self.first_full() else { return has_sealed };
            has_sealed = true;
            // Checksums, which take most of the time, with no lock that a writer waits for. The
            // segment stays where others find it, who may be faster.
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

    /// Returns the full segment that waits longest, its blocks, and the birth that they get.
    ///
    /// The birth is as old as the list: what is placed later gets a later one, or the same.
    fn first_full(&self) -> Option<(SegmentId, Vec<Arc<Block>>, Epoch)> {
        let state = self.lock();
        let segment = state.full.front()?;
        Some((segment.id, segment.blocks.clone(), self.store.journal.birth()))
    }

    /// A segment with room for little more than a summary takes no more blocks.
    fn keep_open(&self, state: &mut State, stream: Stream, segment: OpenSegment) {
        if self.has_room(&segment, self.store.geometry().page_fragments()) {
            state.open.insert(stream, segment);
        } else if let Some(closing) = state.segments.get_mut(&segment.id) {
            closing.is_closed = true;
        }
    }

    /// Seals the partial segment being filled: blocks get their pointers, the partial segment its
    /// summary, and all of it is handed to the device in one write.
    pub(super) fn seal_partial(&self, state: &mut State, segment: &mut OpenSegment) {
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
        // Before anybody can install a block of the partial segment: what is installed lies before
        // what its segment calls filled (`docs/FORMAT.md#void-interval`). The group's maps were
        // read when the segment was opened; a failure now leaves readers of summaries with an older
        // end.
        if let Err(error) = self.store.alloc.segment_filled(segment.id, segment.cursor) {
            tracing::warn!(%error, "the end of a segment is not noted");
        }
        let place = self
            .store
            .geometry()
            .segment_place(segment.id.group, segment.id.segment)
            .advance(segment.partial_start);
        let ticket = self.store.volume.submit_write(Purpose::Data, place, pieces);
        let sequence = self.store.journal.data_submitted(ticket);
        for block in &blocks {
            self.note_sequence(state, block, sequence);
            let fragments = u64::from(block.fragments());
            match block.origin {
                Origin::User => state.written.user += fragments,
                Origin::Cleaner(_) => state.written.moved += fragments,
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

    /// Returns the bytes of the partial segment, its summary last, and moves the cursor past it.
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
            // Blocks of one long write lie side by side in memory too.
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
            let summary = Summary {
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

    /// Ends a partial segment with a stripe: zeros behind its summary. So no stripe is ever written
    /// in two parts, and parity needs nothing that was written before (decision 0065).
    fn fill_stripe(&self, segment: &mut OpenSegment, pieces: &mut Vec<SharedBytes>) {
        let end = self.store.geometry().stripe_end(segment.id.group, segment.cursor);
        if end == segment.cursor || planted::is(Planted::StripeNotPadded) {
            return;
        }
        let gap = self.fragment_bytes() * crate::convert::index(end - segment.cursor);
        pieces.push(SharedBytes::from(AlignedBuffer::zeroed(gap)));
        segment.cursor = end;
    }

    /// Notes which write carries a block, for those who read or install it.
    fn note_sequence(&self, state: &mut State, block: &Arc<Block>, number: u64) {
        let fragment_bytes = self.fragment_bytes();
        let mut block_state = block.state.lock();
        if let Progress::Sealed { sequence, .. } = &mut block_state.progress {
            *sequence = number;
            let data = block_state.stored(fragment_bytes);
            state.in_flight.insert(block.place, block_state.fragments, number, data);
            state.to_install.insert((block.owner.fileset, block.owner.anode));
        } else {
            // Installed as inline log data, perhaps dead since: readers wait for the write all the
            // same.
            state.in_flight.submitted(block.place, number);
        }
    }

    /// Fixes a block that goes into the log with the transaction that installs it; `None` if its
    /// partial segment was sealed meanwhile.
    pub(crate) fn seal_for_log(&self, block: &Arc<Block>) -> Option<(BlockPointer, SharedBytes)> {
        self.fix_for_log(&mut self.lock(), block)
    }

    fn fix_for_log(
        &self,
        state: &mut State,
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

    /// Gives a block a place and fixes it at once, to go into the log.
    pub(crate) fn place_for_log(
        &self,
        payer: &Payer<'_>,
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
    ) -> FsResult<(Arc<Block>, BlockPointer, SharedBytes)> {
        let mut state = self.lock();
        let (origin, claim) = ((Origin::User, payer), Claim::default());
        let block = self.place_counted(&mut state, origin, owner, data, length_bytes, claim)?;
        let fixed = self.fix_for_log(&mut state, &block);
        let (pointer, bytes) = fixed.expect("nobody else has seen the block");
        Ok((block, pointer, bytes))
    }

    /// The inline log data of a transaction is logged: the tail waits until it is home.
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
        // Partial segments that were sealed between the fixing of the blocks and the end of the
        // transaction: what is not in flight any more was answered.
        let answered = self.store.journal.data_answered();
        let write_of = |place: &Place| state.in_flight.write_of(*place).unwrap_or(answered);
        let sequence = places.iter().map(write_of).max().unwrap_or(NOT_SUBMITTED);
        // Under the lock: the next seal tells of a partial segment that was counted.
        self.store.journal.log_data_waits(id, partial_segments, sequence);
    }
}

/// Seals one block; `None` if it is dead. One of inline log data is sealed already.
fn seal_block(block: &Block, birth: Epoch, fragment_bytes: usize) -> Option<BlockPointer> {
    let mut state = block.state.lock();
    match &state.progress {
        Progress::Dead => return None,
        Progress::Sealed { pointer, .. } => return Some(*pointer),
        Progress::Filling => {}
    }
    let kept_birth = state.kept_birth.filter(|_| !planted::is(Planted::MoveTakesNewBirth));
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
    state.progress = Progress::Sealed { pointer, sequence: 0 };
    Some(pointer)
}
