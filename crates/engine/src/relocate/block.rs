//! Moving live blocks out of a segment, for the cleaner and similar jobs.
//!
//! A block is live if the file that the segment's summaries name still maps it. The block is
//! verified and placed one level deeper. Its pointer changes as at any rewrite, so after a crash it
//! points to the old or the new place.

use crate::file::BlockMover;
use format::ids::{Epoch, Place};
use format::map::{COARSE_SHIFT, FINE_SHIFT};
use format::pointer::BlockPointer;
use format::summary::SummaryEntry;
use storage::device::{AlignedBuffer, IoPurpose};

use crate::alloc::Extent;
use crate::buffer::io;
use crate::container::LocatedPointer;
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::file::read::{bad_data, found_of};
use crate::file::unit::BlockSpan;
use crate::file::{Files, OpenFileset, VnodeState};
use crate::segment::{BlockOrigin, Segments};

pub(crate) struct SegmentContent {
    pub(crate) start: Place,
    pub(crate) bytes: AlignedBuffer,
}

impl BlockMover<'_> {
    /// Moves an unshared block one level deeper. Returns `true` if the block may be shared, so that
    /// the caller must move it through [`crate::relocate::shared`].
    pub(crate) fn move_block(
        &self,
        content: &SegmentContent,
        entry: &SummaryEntry,
    ) -> FsResult<bool> {
        let (filesets, is_all) = self.filesets_of_family(entry.fileset)?;
        let mut must_ask = !is_all || filesets.is_empty();
        for fileset in filesets {
            let shared_epoch = fileset.gate.shared_epoch();
            if entry.birth > shared_epoch && self.move_own_block(fileset, content, entry)? {
                // Born after the latest snapshot, so in no other node of the family.
                return Ok(false);
            }
            must_ask |= shared_epoch > Epoch(0);
        }
        Ok(must_ask)
    }

    /// Moves the parts of a block that only `fileset` has. Returns whether there were any.
    fn move_own_block(
        &self,
        fileset: &OpenFileset,
        content: &SegmentContent,
        entry: &SummaryEntry,
    ) -> FsResult<bool> {
        let place = content.start.advance(entry.offset);
        let vnode = match (Files { core: self, fileset }).vnode_of(entry.anode) {
            Ok(vnode) => vnode,
            Err(FsError::Stale) => return Ok(false),
            Err(error) => return Err(error),
        };
        let _inside = fileset.gate.enter();
        let mut state = vnode.state.write();
        let Some(anode) = state.anode.as_ref() else { return Ok(false) };
        let is_same = anode.generation == entry.generation && anode.fileset == entry.fileset;
        if !is_same || state.is_being_cut {
            return Ok(is_same);
        }
        let parts = self.live_parts(&state, entry, place)?;
        let is_any = !parts.is_empty();
        for (span, pointer) in parts {
            let buffer = self.read_for_move(content, &pointer, span)?;
            let length = self.reader().stored_bytes(pointer.fragments);
            let origin = BlockOrigin::Cleaner(pointer.birth);
            let mut writing = self.writing(&mut state);
            self.writeback().place_block(&mut writing, span, buffer.into(), length, origin)?;
            // Marked dirty first: the block may be mapped, and the file marked clean, at any time
            // after.
            self.note_dirty(&vnode);
        }
        Ok(is_any)
    }

    /// Returns the parts of the listed block that the file still maps at `place`, except dirty
    /// ones. That is the whole block, or quarters after a split.
    fn live_parts(
        &self,
        state: &VnodeState,
        entry: &SummaryEntry,
        place: Place,
    ) -> FsResult<Vec<(BlockSpan, BlockPointer)>> {
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
            let span = BlockSpan { start: unit.start, shift: unit.shift };
            let Some(before) = span.start.checked_sub(start) else { continue };
            let expected = place.bits() + (before >> fragment_shift);
            let is_it = |pointer: &BlockPointer| {
                // Not here: blocks shared with snapshots.
                pointer.place.bits() == expected && pointer.birth > self.shared_epoch_of(state)
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
        content: &SegmentContent,
        pointer: &BlockPointer,
        span: BlockSpan,
    ) -> FsResult<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        let length = self.reader().stored_bytes(pointer.fragments);
        if length > buffer.len() {
            return Err(bad_data(pointer));
        }
        let found = self.bytes_of(content, Segments::extent(pointer), &mut buffer[..length]);
        if found.is_some_and(|bytes| pointer.verifies(bytes)) {
            return Ok(buffer);
        }
        // A copy on another member may be intact.
        let is_it = |data: &[u8]| pointer.verifies(data);
        let healed = self.store.volume.heal(IoPurpose::Cleaner, pointer.place, length, &is_it);
        let data = found_of(pointer, healed.map_err(io)?)?;
        buffer[..length].copy_from_slice(&data);
        Ok(buffer)
    }

    /// Copies `extent` from the segment's bytes; `None` if it is outside of them.
    fn bytes_of<'b>(
        &self,
        content: &SegmentContent,
        extent: Extent,
        to: &'b mut [u8],
    ) -> Option<&'b [u8]> {
        if let Some((data, before)) = self.segments.in_flight(extent) {
            to.copy_from_slice(data.get(before..before + to.len())?);
            return Some(to);
        }
        let ahead = extent.place.bits().checked_sub(content.start.bits())?;
        let before = index_wide(ahead << self.store.geometry().fragment_shift);
        to.copy_from_slice(content.bytes.get(before..before.saturating_add(to.len()))?);
        Some(to)
    }

    /// Returns a shared block from any copy that verifies by the summary entry. If none does, the
    /// damage may be in an unused part: then each of `pointers` must verify its part, and the
    /// caller verifies the other holders' parts.
    pub(super) fn read_held(
        &self,
        content: &SegmentContent,
        entry: &SummaryEntry,
        from: Place,
        pointers: &[LocatedPointer],
    ) -> FsResult<AlignedBuffer> {
        let whole = Extent { place: from, fragments: entry.fragments };
        let mut buffer = AlignedBuffer::zeroed(self.reader().stored_bytes(entry.fragments));
        let is_there = self.bytes_of(content, whole, &mut buffer).is_some();
        let is_listed = |bytes: &[u8]| entry.verifies(bytes);
        if is_there && is_listed(&buffer) {
            return Ok(buffer);
        }
        let volume = &self.store.volume;
        let healed = volume.heal(IoPurpose::Cleaner, from, buffer.len(), &is_listed);
        let mut healed = healed.map_err(io)?;
        if let Some(bytes) = healed.bytes.take() {
            return Ok(bytes);
        }
        for LocatedPointer { pointer, .. } in pointers {
            let before = pointer.place.bits().saturating_sub(from.bits());
            let start = index_wide(before << self.store.geometry().fragment_shift);
            let part = buffer.get(start..start + self.reader().stored_bytes(pointer.fragments));
            if !is_there || !part.is_some_and(|part| pointer.verifies(part)) {
                return Err(healed.unread.map_or_else(|| bad_data(pointer), io));
            }
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use format::summary::SummaryKind;
    use runtime::clock::ManualClock;
    use storage::device::{IoPurpose, MemoryDevice, SharedDevice};

    use super::*;
    use crate::api::{Caller, FileKind, FileSystem, Ino, NewInode};
    use crate::file::Core;
    use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 48 << 20;
    const BLOCK_BYTES: u64 = 16 << 10;
    const BLOCKS: u64 = 800;

    fn new_pool() -> Pool {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
        Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
        Pool::open(device, Arc::new(ManualClock::new()), PoolOpenOptions::default())
            .expect("it opens")
    }

    /// Creates a file in which every 20 blocks have another birth.
    fn new_file(pool: &Pool) -> Ino {
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = pool.create(&Caller::root(), pool.root(), b"file", new, None).expect("room");
        for part in 0..BLOCKS / 20 {
            let data = vec![part.to_le_bytes()[0]; index_wide(20 * BLOCK_BYTES)];
            let offset = part * 20 * BLOCK_BYTES;
            pool.write(&Caller::root(), made.ino, offset, &data).expect("there is room");
            pool.fsync(&Caller::root(), made.ino, false).expect("nothing fails");
        }
        // Makes the segments worth cleaning.
        for block in (0..BLOCKS).step_by(3) {
            let data = vec![3; index_wide(BLOCK_BYTES)];
            pool.write(&Caller::root(), made.ino, block * BLOCK_BYTES, &data).expect("room");
        }
        pool.sync().expect("nothing fails");
        made.ino
    }

    fn pointers(core: &Core, ino: Ino) -> BTreeMap<u64, BlockPointer> {
        let vnode = core.table.find(ino).expect("it is in use");
        let state = vnode.state.read();
        let anode = state.anode.as_ref().expect("it is there");
        let units = core.store.units(anode, 0, BLOCKS * BLOCK_BYTES).expect("nothing fails");
        units.iter().filter_map(|unit| Some((unit.start, unit.pointer?))).collect()
    }

    #[test]
    fn a_block_that_is_moved_keeps_its_birth() {
        let pool = new_pool();
        let ino = new_file(&pool);
        let core = pool.core();
        let before = pointers(core, ino);
        let births: std::collections::BTreeSet<Epoch> =
            before.values().map(|pointer| pointer.birth).collect();
        assert!(births.len() > 10, "{births:?}");
        core.emptier.empty_thoroughly(core, u32::MAX).expect("nothing fails");
        let after = pointers(core, ino);
        let is_moved = |(start, pointer): (&u64, &BlockPointer)| {
            after.get(start).is_some_and(|now| now.place != pointer.place)
        };
        assert!(before.iter().filter(|it| is_moved(*it)).count() > 100, "few blocks were moved");
        for (start, pointer) in &before {
            let now = after.get(start).copied().expect("it is there");
            assert_eq!(BlockPointer { place: pointer.place, ..now }, *pointer, "at {start}");
        }
    }

    #[test]
    fn what_is_written_to_a_block_on_its_way_is_a_version_of_its_own() {
        let pool = new_pool();
        let ino = new_file(&pool);
        let core = pool.core();
        let before = pointers(core, ino);
        let (first, second) = (before[&BLOCK_BYTES], before[&(2 * BLOCK_BYTES)]);
        let anode = core.table.find(ino).expect("in use").state.read().anode.clone();
        let anode = anode.expect("it is there");
        for (index, pointer) in (1..).zip([first, second]) {
            let read = core.store.volume.read(IoPurpose::Cleaner, pointer.place, 16 << 10);
            let mut bytes = AlignedBuffer::zeroed(16 << 10);
            bytes.copy_from_slice(&read.expect("memory does not fail"));
            let content = SegmentContent { start: pointer.place, bytes };
            let entry = SummaryEntry {
                kind: SummaryKind::Block,
                block_shift: anode.block_shift,
                fragments: pointer.fragments,
                offset: 0,
                fileset: anode.fileset,
                anode: anode.number,
                generation: anode.generation,
                index,
                birth: pointer.birth,
                check: pointer.check,
            };
            core.mover().move_block(&content, &entry).expect("nothing fails");
        }
        pool.write(&Caller::root(), ino, BLOCK_BYTES + 100, &[9; 5]).expect("there is room");
        pool.sync().expect("nothing fails");
        let after = pointers(core, ino);
        assert!(after[&BLOCK_BYTES].birth > first.birth, "it was written to");
        assert_eq!(after[&(2 * BLOCK_BYTES)].birth, second.birth, "it was moved alone");
        assert!(after[&(2 * BLOCK_BYTES)].place != second.place);
    }
}
