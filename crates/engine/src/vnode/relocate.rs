//! Moving a block that is live out of its segment: what the cleaner does to each, and any other job
//! that empties segments.
//!
//! A block is live if the map of its file still points to it; the summaries of its segment say
//! whose it was. It is verified and placed one level deeper; its pointer changes as for any
//! rewrite, so a crash in the middle leaves the block in one place or the other.

use format::ids::Place;
use format::map::{COARSE_SHIFT, FINE_SHIFT};
use format::pointer::BlockPointer;
use format::summary::SummaryEntry;
use storage::device::AlignedBuffer;

use super::read::bad_data;
use super::unit::Span;
use super::{Core, Files, VnodeState};
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::segment::{Origin, Segments};

/// A segment that is being emptied, as it was read.
pub(crate) struct Content {
    /// Where it begins.
    pub(crate) start: Place,
    pub(crate) bytes: AlignedBuffer,
}

impl Core {
    /// Moves a block one level deeper if its file still has it here.
    pub(crate) fn move_block(&self, content: &Content, entry: &SummaryEntry) -> FsResult<()> {
        let place = content.start.advance(entry.offset);
        // A fileset that is gone has no block that is live.
        let Some(fileset) = self.fileset_of_family(entry.fileset)? else { return Ok(()) };
        let vnode = match (Files { core: self, fileset }).vnode_of(entry.anode) {
            Ok(vnode) => vnode,
            Err(FsError::Stale) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _inside = fileset.gate.enter();
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
            let is_it = |pointer: &BlockPointer| {
                // What clones hold too stays where they look for it.
                pointer.place.bits() == expected && pointer.birth > self.shared_epoch_of(anode)
            };
            let pointer = unit.pointer.filter(is_it);
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
