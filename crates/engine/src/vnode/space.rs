//! Space: given back and found, and copies inside the server.
//!
//! Making a hole is a write of zeros that takes no space (C5 holds for it): what lies in a block
//! with other bytes is written as zeros, whole blocks are taken out of the map, all at one moment.
//! A range of more blocks than one transaction can take out needs a chain of them, and what is
//! written into it meanwhile comes before the hole or after it block by block.
//!
//! Not here: what space taken ahead is (`preallocation`).

use std::ops::Range;
use std::sync::Arc;

use runtime::planted::{self, Planted};

use super::access::{READ, WRITE, is_exempt};
use super::api::{COPY_BYTES_MAX, Caller, Data, FILE_BYTES_MAX, Fallocate, Ino, Seek, SetAttr};
use super::file::check_regular;
use super::inline::{is_inline, zero_inline};
use super::payload::Payload;
use super::unit::Span;
use super::{Core, Files, Vnode, VnodeState};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};

/// Bytes that a copy holds at a time.
const COPY_CHUNK_BYTES: usize = 1 << 20;
/// Bytes of the map that a search for a hole looks at in one go.
const SEARCH_BYTES: u64 = 4 << 20;

impl Core {
    /// Returns the blocks, in the map and waiting, that lie wholly in `range`; the last block of
    /// the file does if its bytes do. Behind it nothing is stored, but room may be reserved.
    fn whole_blocks(&self, state: &VnodeState, range: &Range<u64>) -> FsResult<Range<u64>> {
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
            let end = range.end.min(state.size_bytes);
            let last = Span::around(end, anode.block_shift);
            // Of a file that ends with a block, what is reserved behind it is not in the range.
            if last.start < end {
                whole.end = whole.end.max(last.end());
            }
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
        let (mut at, mut writing) = (range.start, self.writing(state));
        while at < range.end {
            let count = index_wide((range.end - at).min(wide(zeros.len())));
            let zeros = Payload::Lent(&zeros[..count]);
            let (span, written) = self.write_span(&mut writing, at, &zeros)?;
            if let Some(block) = writing.state.pending.get(&span.start) {
                block.set_file_bytes(writing.state.size_bytes);
            }
            at += wide(written);
        }
        Ok(())
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
}

impl Files<'_> {
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
        self.check_content(caller, &vnode.state.read(), WRITE)?;
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
                self.preallocate(caller, &vnode, offset..end, keep_size)
            }
            Fallocate::CollapseRange | Fallocate::InsertRange => Err(FsError::NotSupported),
        }
    }

    /// Raises the size of a file to `end`, where it is smaller.
    pub(super) fn reach(&self, caller: &Caller, vnode: &Arc<Vnode>, end: u64) -> FsResult<()> {
        if end > vnode.state.read().size_bytes {
            self.extend(caller, vnode, end, &SetAttr::default(), None)?;
        }
        Ok(())
    }

    /// Makes `range`, or what of it lies in the file, read as zeros, and frees whole blocks of it.
    fn zero(&self, caller: &Caller, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<()> {
        self.make_room()?;
        let mut at = range.start;
        while at < range.end {
            at = self.with_reclaim(|| self.zero_some(caller, vnode, at..range.end))?;
        }
        Ok(())
    }

    /// Does what [`Files::zero`] does at one moment, as far as one transaction can take blocks out
    /// of the map. Returns where to go on.
    fn zero_some(&self, caller: &Caller, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<u64> {
        let (mut change, mut state) = self.begin_settled(vnode)?;
        state.is_exempt = is_exempt(caller);
        self.check_content(caller, &state, WRITE)?;
        let in_file = range.start..range.end.min(state.size_bytes);
        if is_inline(state.anode()?) {
            if !state.pending.is_empty() {
                drop((state, change));
                self.install_all(vnode)?;
                return Ok(range.start);
            }
            zero_inline(state.anode_mut()?, in_file);
            self.note_write(&mut state, caller, vnode)?;
            return Ok(range.end);
        }
        let whole = self.whole_blocks(&state, &range)?;
        let edges = if whole.is_empty() {
            [in_file, 0..0]
        } else {
            let (begin, end) = (in_file.start, in_file.end);
            [begin..whole.start.min(end), whole.end.min(end)..end]
        };
        let written = edges.into_iter().try_for_each(|edge| self.write_zeros(&mut state, edge));
        self.note_write(&mut state, caller, vnode)?;
        written?;
        if whole.is_empty() {
            return Ok(range.end);
        }
        let mut anode = state.anode()?.clone();
        let rest = self.store.punch_blocks(&mut change, &mut anode, whole.clone())?;
        // A block that waits over where the map is not punched yet is the next turn's, all of it.
        let first_of = |at| state.waiting_at(at).map_or(at, |block| block.span().start);
        let rest = rest.map(|at| match planted::is(Planted::PunchSplitsWaiting) {
            true => at,
            false => first_of(at),
        });
        self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        drop_waiting(self, &mut state, &(whole.start..rest.unwrap_or(whole.end)));
        state.anode = Some(anode);
        state.class = applied.class;
        Ok(rest.unwrap_or(range.end))
    }

    /// Finds data or a hole; see [`super::api::FileSystem::seek`].
    pub(crate) fn seek_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        what: Seek,
    ) -> FsResult<u64> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        self.check_content(caller, &state, READ)?;
        if offset >= state.size_bytes {
            return Err(FsError::NoSuchOffset);
        }
        match what {
            Seek::Data => self.next_data_of(&state, offset)?.ok_or(FsError::NoSuchOffset),
            Seek::Hole => self.next_hole_of(&state, offset),
        }
    }
}

impl Core {
    /// Copies bytes; see [`super::api::FileSystem::copy_range`]. The files may be of two filesets.
    /// Called with no lock held, and by nobody who is inside of one.
    ///
    /// PO1: who reads from a clone has left it before he writes: a write may wait for long.
    pub(crate) fn copy_file_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        let inos = [(source.0, READ), (target.0, WRITE)];
        for (ino, _) in inos {
            check_regular(&self.enter(ino)?.vnode(ino)?.state.read())?;
        }
        for (ino, right) in inos {
            let files = self.enter(ino)?;
            files.check_content(caller, &files.vnode(ino)?.state.read(), right)?;
        }
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
            let read = self.enter(source.0)?.read_file(caller, source.0, from, wanted, &mut bytes);
            let count = self.named(source.0, b"", read)?;
            if count == 0 {
                break;
            }
            let to = target.1.checked_add(done).ok_or(FsError::FileTooLarge)?;
            let data = Data::Lent(&bytes);
            let written = self.enter(target.0)?.write_some(caller, target.0, to, &data, None);
            match self.named(target.0, b"", written) {
                Ok(written) => done += wide(written),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            // A short read is the end of the source, which the copy itself may move.
            if count < wanted {
                break;
            }
        }
        Ok(done)
    }
}

/// Drops the blocks that wait and lie wholly in `range`.
fn drop_waiting(files: &Files<'_>, state: &mut VnodeState, range: &Range<u64>) {
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

#[cfg(test)]
mod tests {
    use crate::vnode::api::{Caller, Fallocate, FileKind, FileSystem, NewInode};
    use crate::vnode::leave::tests::pool_with_one;

    /// Goal: all of a range that is punched reads as zeros, also where one transaction ends inside
    /// of a block that waits. Method: blocks in quarters, no two of which lie side by side on the
    /// device, so that a transaction takes few of them; a whole one waits over where it ends.
    #[test]
    fn a_long_punch_leaves_nothing_of_a_block_that_waits() {
        const UNIT: usize = 4096;
        const UNITS: usize = 128;
        let (pool, _) = pool_with_one();
        let caller = Caller::root();
        let new = NewInode::new(FileKind::Regular, 0o644);
        let ino = pool.create(&caller, pool.root(), b"file", new, None).expect("room").ino;
        let write = |unit: usize, bytes: &[u8]| {
            let at = u64::try_from(unit * UNIT).expect("small");
            pool.write(&caller, ino, at, bytes).expect("there is room");
        };
        write(0, &vec![1; 2 * UNITS * UNIT]);
        pool.fsync(&caller, ino, false).expect("nothing fails");
        for first in [0, 1] {
            (first..UNITS).step_by(2).for_each(|unit| write(unit, &[2; UNIT]));
            pool.fsync(&caller, ino, false).expect("nothing fails");
        }
        for waiting in (4..UNITS - 4).step_by(4) {
            write(waiting, &[3; 4 * UNIT]);
            let (from, end) = (UNIT, UNITS * UNIT);
            let wide = |bytes: usize| u64::try_from(bytes).expect("small");
            pool.fallocate(&caller, ino, wide(from), wide(end - from), Fallocate::PunchHole)
                .expect("it can be");
            let mut read = Vec::new();
            pool.read(&caller, ino, wide(from), end - from, &mut read).expect("it reads");
            let left = read.iter().position(|byte| *byte != 0);
            assert_eq!(left, None, "a block waits at unit {waiting}");
            (1..UNITS).step_by(2).for_each(|unit| write(unit, &[2; UNIT]));
            pool.fsync(&caller, ino, false).expect("nothing fails");
            (2..UNITS).step_by(2).for_each(|unit| write(unit, &[2; UNIT]));
            pool.fsync(&caller, ino, false).expect("nothing fails");
        }
    }
}
