//! Space: taken ahead and given back, holes found, and copies inside the server.
//!
//! Making a hole is a write of zeros that takes no space (C5 holds for it): what lies in a block
//! with other bytes is written as zeros, whole blocks are taken out of the map, in a chain of
//! transactions for a long range. A write into the range while the chain runs comes before it or
//! after it, block by block.
//!
//! Space that is taken ahead has no place yet, since every version of a block takes a new one: the
//! pointer says that room for the whole block is reserved, and the pool counts what all pointers
//! reserve, so that nobody else can have it (G4). What is stored of the block counts against it; a
//! write of what is stored or reserved finds room (G5). A reservation ends with the pointer: when
//! the block is punched, cut off, or its file is deleted.

use std::ops::Range;
use std::sync::Arc;

use format::anode::INLINE_BYTES_MAX;

use super::api::{COPY_BYTES_MAX, Caller, FILE_BYTES_MAX, Fallocate, Ino, Seek, SetAttr};
use super::file::{StateGuard, check_regular};
use super::inline::{is_inline, zero_inline};
use super::payload::Payload;
use super::unit::Span;
use super::{Files, Vnode, VnodeState};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;

/// Bytes that a copy holds at a time.
const COPY_CHUNK_BYTES: usize = 1 << 20;
/// Bytes of the map that a search for a hole looks at in one go.
const SEARCH_BYTES: u64 = 4 << 20;

impl Files {
    /// Takes or gives back space; see [`super::api::FileSystem::fallocate`].
    pub(crate) fn fallocate_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        check_regular(&vnode.state.read())?;
        let end = offset.checked_add(length_bytes).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooLarge)?;
        if length_bytes == 0 {
            return Err(FsError::Invalid);
        }
        match mode {
            Fallocate::PunchHole | Fallocate::ZeroRange { keep_size: true } => {
                self.zero(caller, &vnode, offset..end)
            }
            Fallocate::ZeroRange { keep_size: false } => {
                self.zero(caller, &vnode, offset..end)?;
                self.reach(caller, &vnode, end)
            }
            Fallocate::Allocate { keep_size } => {
                self.allocate(&vnode, offset..end)?;
                self.note_write(&mut *self.settled(&vnode)?, caller, &vnode)?;
                if keep_size { Ok(()) } else { self.reach(caller, &vnode, end) }
            }
            Fallocate::CollapseRange | Fallocate::InsertRange => Err(FsError::NotSupported),
        }
    }

    /// Raises the size of a file to `end`, where it is smaller.
    fn reach(&self, caller: &Caller, vnode: &Arc<Vnode>, end: u64) -> FsResult<()> {
        if end > vnode.state.read().size_bytes {
            self.extend(caller, vnode, end, &SetAttr::default())?;
        }
        Ok(())
    }

    /// Reserves room for every block that `range` touches.
    fn allocate(&self, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<()> {
        self.make_room()?;
        self.with_reclaim(|| self.check_allocation(vnode, &range))?;
        let mut at = range.start;
        while at < range.end {
            at = self.with_reclaim(|| self.allocate_some(vnode, at..range.end))?;
        }
        Ok(())
    }

    /// Refuses at once what the pool can't have even if all that the file has lies in `range`.
    fn check_allocation(&self, vnode: &Vnode, range: &Range<u64>) -> FsResult<()> {
        let wanted_bytes = range.end - range.start;
        let wanted = wanted_bytes >> self.store.geometry().fragment_shift;
        let held = vnode.state.read().anode()?.fragments;
        let available = self.store.alloc.counts().available;
        if wanted > held.saturating_add(available) { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Reserves room for the first blocks of `range`, as many as one transaction can. Returns where
    /// to go on.
    fn allocate_some(&self, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<u64> {
        let mut change = self.store.begin(Reservation::LARGE)?;
        let mut state = vnode.state.write();
        if state.is_being_cut {
            drop((state, change));
            self.finish_truncate(vnode)?;
            return Ok(range.start);
        }
        let mut anode = state.anode()?.clone();
        if is_inline(&anode) && state.pending.is_empty() && range.end <= wide(INLINE_BYTES_MAX) {
            // The anode has room for it.
            return Ok(range.end);
        }
        if is_inline(&anode) && (anode.size_bytes > 0 || !state.pending.is_empty()) {
            drop(change);
            self.leave_inline(&mut state)?;
            self.note_dirty(vnode);
            drop(state);
            self.install_all(vnode)?;
            return Ok(range.start);
        }
        let end = self.store.reserve_blocks(&mut change, &mut anode, range)?;
        self.fileset.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        state.anode = Some(anode);
        state.class = applied.class;
        Ok(end)
    }

    /// Makes `range`, or what of it lies in the file, read as zeros, and frees whole blocks of it.
    fn zero(&self, caller: &Caller, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<()> {
        self.make_room()?;
        loop {
            let edges = || self.zero_edges(caller, vnode, range.clone());
            let (whole, size_bytes) = self.with_reclaim(edges)?;
            // The last block of the file goes whole, though `range` may end in it.
            let size_max = if whole.end > range.end { size_bytes } else { u64::MAX };
            let mut at = Some(whole.start);
            while let Some(start) = at.filter(|start| *start < whole.end) {
                at = self.punch_some(vnode, start..whole.end, size_max)?;
            }
            if at.is_some() {
                return Ok(());
            }
        }
    }

    /// Writes zeros where `range` begins and ends inside a block; returns what lies between, which
    /// is whole blocks, and how long the file is.
    fn zero_edges(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        range: Range<u64>,
    ) -> FsResult<(Range<u64>, u64)> {
        let mut state = self.out_of_anode(vnode)?;
        check_regular(&state)?;
        let (size_bytes, asked_end) = (state.size_bytes, range.end);
        let range = range.start..range.end.min(size_bytes);
        let is_in_anode = is_inline(state.anode()?) && state.pending.is_empty();
        if range.is_empty() || is_in_anode {
            let behind = if is_in_anode { 0..0 } else { range.start..asked_end };
            if is_in_anode {
                zero_inline(state.anode_mut()?, range);
            }
            self.note_write(&mut state, caller, vnode)?;
            return Ok((behind, size_bytes));
        }
        let whole = self.whole_blocks(&state, &range, asked_end)?;
        let edges = if whole.is_empty() {
            [range.clone(), 0..0]
        } else {
            [range.start..whole.start.min(range.end), whole.end.min(range.end)..range.end]
        };
        let written = edges.into_iter().try_for_each(|edge| self.write_zeros(&mut state, edge));
        self.note_write(&mut state, caller, vnode)?;
        written?;
        Ok((whole, size_bytes))
    }

    /// Locks a file that is wholly in its anode or not at all.
    fn out_of_anode<'v>(&self, vnode: &'v Arc<Vnode>) -> FsResult<StateGuard<'v>> {
        loop {
            let state = self.settled(vnode)?;
            if !is_inline(state.anode()?) || state.pending.is_empty() {
                return Ok(state);
            }
            drop(state);
            self.install_all(vnode)?;
        }
    }

    /// Returns the blocks, in the map and waiting, that lie wholly in `range`; the last block of
    /// the file does if its bytes do. Behind it nothing is stored, but room may be reserved as far
    /// as `asked_end`.
    fn whole_blocks(
        &self,
        state: &VnodeState,
        range: &Range<u64>,
        asked_end: u64,
    ) -> FsResult<Range<u64>> {
        let anode = state.anode()?;
        let mut whole = range.clone();
        for _ in 0..2 {
            // Twice: a block that waits may reach into a larger one of the map.
            let unit = self.store.unit(anode, whole.start)?;
            if unit.start < whole.start && unit.pointer.is_some() {
                whole.start = unit.end();
            }
            if let Some(block) = state.waiting_at(whole.start)
                && block.span().start < whole.start
            {
                whole.start = block.span().end();
            }
        }
        if range.end >= state.size_bytes {
            whole.end = asked_end.max(Span::around(range.end, anode.block_shift).end());
            return Ok(whole);
        }
        for _ in 0..2 {
            let unit = self.store.unit(anode, whole.end)?;
            if unit.pointer.is_some() {
                whole.end = unit.start;
            }
            if let Some(block) = state.waiting_at(whole.end) {
                whole.end = block.span().start;
            }
        }
        Ok(whole)
    }

    /// Writes zeros over what `range` has; holes stay.
    fn write_zeros(&self, state: &mut VnodeState, range: Range<u64>) -> FsResult<()> {
        let zeros = vec![0; index_wide(range.end.saturating_sub(range.start).min(SEARCH_BYTES))];
        let mut at = range.start;
        while at < range.end {
            let count = index_wide((range.end - at).min(wide(zeros.len())));
            let (span, written) = self.write_span(state, at, &Payload::Lent(&zeros[..count]))?;
            if let Some(block) = state.pending.get(&span.start) {
                block.set_file_bytes(state.size_bytes);
            }
            at += wide(written);
        }
        Ok(())
    }

    /// Takes whole blocks in `range` out of the map, as many as one transaction can, and drops what
    /// waits there. Returns where to go on; `None`: the file is longer than `size_max` by now, and
    /// nothing is done.
    fn punch_some(
        &self,
        vnode: &Arc<Vnode>,
        range: Range<u64>,
        size_max: u64,
    ) -> FsResult<Option<u64>> {
        let mut change = self.store.begin(Reservation::LARGE)?;
        let mut state = vnode.state.write();
        if state.is_being_cut {
            drop((state, change));
            self.finish_truncate(vnode)?;
            return Ok(Some(range.start));
        }
        if state.size_bytes > size_max {
            return Ok(None);
        }
        let Some(mut anode) = state.anode.clone() else { return Ok(Some(range.end)) };
        if is_inline(&anode) {
            // Cut to nothing meanwhile, and perhaps written again.
            return Ok(Some(range.end));
        }
        let rest = self.store.punch_blocks(&mut change, &mut anode, range.clone())?;
        let end = rest.unwrap_or(range.end);
        self.fileset.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        drop_waiting(self, &mut state, &(range.start..end));
        state.anode = Some(anode);
        state.class = applied.class;
        Ok(Some(end))
    }

    /// Finds data or a hole; see [`super::api::FileSystem::seek`].
    pub(crate) fn seek_file(&self, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        check_regular(&state)?;
        if offset >= state.size_bytes {
            return Err(FsError::NoSuchOffset);
        }
        match what {
            Seek::Data => self.next_data_of(&state, offset)?.ok_or(FsError::NoSuchOffset),
            Seek::Hole => self.next_hole_of(&state, offset),
        }
    }

    /// Returns the first byte at or behind `offset` that is no hole.
    fn next_data_of(&self, state: &VnodeState, offset: u64) -> FsResult<Option<u64>> {
        let anode = state.anode()?;
        if is_inline(anode) && offset < anode.size_bytes || state.waiting_at(offset).is_some() {
            return Ok(Some(offset));
        }
        let waiting = state.pending.range(offset..).next().map(|(start, _)| *start);
        let stored = self.store.next_data(anode, offset)?.map(|unit| unit.start.max(offset));
        let next = waiting.into_iter().chain(stored).min();
        Ok(next.filter(|next| *next < state.size_bytes))
    }

    /// Returns the first byte at or behind `offset` in a hole; the end of the file is one.
    fn next_hole_of(&self, state: &VnodeState, offset: u64) -> FsResult<u64> {
        let anode = state.anode()?;
        let inline_end = if is_inline(anode) { anode.size_bytes } else { 0 };
        let mut at = offset.max(inline_end);
        while at < state.size_bytes {
            if let Some(block) = state.waiting_at(at) {
                at = block.span().end();
                continue;
            }
            let next = state.pending.range(at..).next().map_or(u64::MAX, |(start, _)| *start);
            let end = next.min(at.saturating_add(SEARCH_BYTES)).min(state.size_bytes);
            for unit in self.store.units(anode, at, end)? {
                if unit.pointer.is_none() {
                    return Ok(at.max(unit.start));
                }
                at = unit.end().min(next).max(at);
            }
        }
        Ok(at.min(state.size_bytes))
    }

    /// Copies bytes; see [`super::api::FileSystem::copy_range`].
    pub(crate) fn copy_file_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        check_regular(&self.vnode(source.0)?.state.read())?;
        check_regular(&self.vnode(target.0)?.state.read())?;
        let length = length_bytes.min(COPY_BYTES_MAX);
        let overlaps = source.0 == target.0 && source.1.abs_diff(target.1) < length;
        if overlaps {
            return Err(FsError::Invalid);
        }
        let mut done = 0;
        let mut bytes = Vec::new();
        while done < length {
            bytes.clear();
            let wanted = index_wide((length - done).min(wide(COPY_CHUNK_BYTES)));
            let from = source.1.saturating_add(done);
            let count = self.read_file(source.0, from, wanted, &mut bytes)?;
            if count == 0 {
                break;
            }
            let to = target.1.checked_add(done).ok_or(FsError::FileTooLarge)?;
            match self.write_file(caller, target.0, to, &bytes) {
                // A short read is the end of the source, which the copy itself may move.
                Ok(()) if count < wanted => return Ok(done + wide(count)),
                Ok(()) => done += wide(count),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

/// Drops the blocks that wait and lie wholly in `range`.
fn drop_waiting(files: &Files, state: &mut VnodeState, range: &Range<u64>) {
    let waiting = state.pending.range(range.clone());
    let gone: Vec<u64> = waiting
        .filter(|(_, block)| block.span().end() <= range.end)
        .map(|(start, _)| *start)
        .collect();
    for start in gone {
        if let Some(block) = state.pending.remove(&start) {
            files.segments.kill(&block);
        }
    }
}
