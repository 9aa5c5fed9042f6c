//! Holes, fallocate(2), and server-side copies.
//!
//! A punch zeroes partial blocks, and removes whole ones from the map (C5), in one transaction. A
//! long range takes several transactions: for each block on its own, a concurrent write comes
//! before or after the punch.
//!
//! Not here: preallocation (`preallocation`).

use std::ops::Range;
use std::sync::Arc;

use crate::api::{
    COPY_BYTES_MAX, Caller, FILE_BYTES_MAX, Fallocate, Ino, Seek, SetAttr, WriteData,
};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::file::access::{READ, WRITE, is_exempt};
use crate::file::inline::{is_inline, zero_inline};
use crate::file::payload::WritePayload;
use crate::file::unit::BlockSpan;
use crate::file::write::check_regular;
use crate::file::{Core, Files, Vnode, VnodeState};

const COPY_CHUNK_BYTES: usize = 1 << 20;
const SEARCH_BYTES: u64 = 4 << 20;

impl Core {
    /// Returns the range of the mapped and dirty blocks that are wholly in `range`. The last block
    /// of the file is included if `range` reaches the end of the file.
    fn whole_blocks(&self, state: &VnodeState, range: &Range<u64>) -> FsResult<Range<u64>> {
        let anode = state.anode()?;
        let mut whole = range.clone();
        for _ in 0..2 {
            // In two passes, since the dirty block found may end inside a larger mapped one.
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
            let last = BlockSpan::around(end, anode.block_shift);
            // If the file ends at a block boundary, the block there has only a preallocation.
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

    fn write_zeros(&self, state: &mut VnodeState, range: Range<u64>) -> FsResult<()> {
        let zeros = vec![0; index_wide(range.end.saturating_sub(range.start).min(SEARCH_BYTES))];
        let (mut at, mut writing) = (range.start, self.writing(state));
        while at < range.end {
            let count = index_wide((range.end - at).min(wide(zeros.len())));
            let zeros = WritePayload::Lent(&zeros[..count]);
            let (span, written) = self.writeback().write_span(&mut writing, at, &zeros)?;
            if let Some(block) = writing.state.pending.get(&span.start) {
                block.set_file_bytes(writing.state.size_bytes);
            }
            at += wide(written);
        }
        Ok(())
    }

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

    /// Returns the next byte in a hole; the end of the file counts as one.
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

    pub(super) fn reach(&self, caller: &Caller, vnode: &Arc<Vnode>, end: u64) -> FsResult<()> {
        if end > vnode.state.read().size_bytes {
            self.extend(caller, vnode, end, &SetAttr::default(), None)?;
        }
        Ok(())
    }

    /// Zeroes the part of `range` in the file, and frees whole blocks.
    fn zero(&self, caller: &Caller, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<()> {
        self.space_reclaim().make_room()?;
        let mut at = range.start;
        while at < range.end {
            at = self
                .space_reclaim()
                .with_reclaim(|| self.zero_some(caller, vnode, at..range.end))?;
        }
        Ok(())
    }

    /// Zeroes a prefix of `range`, as far as one transaction permits. Returns the start of the
    /// rest.
    fn zero_some(&self, caller: &Caller, vnode: &Arc<Vnode>, range: Range<u64>) -> FsResult<u64> {
        let (mut change, mut state) = self.begin_settled(vnode)?;
        state.is_exempt = is_exempt(caller);
        self.check_content(caller, &state, WRITE)?;
        let in_file = range.start..range.end.min(state.size_bytes);
        if is_inline(state.anode()?) {
            if !state.pending.is_empty() {
                drop((state, change));
                self.writeback().install_all(vnode)?;
                return Ok(range.start);
            }
            zero_inline(state.anode_mut()?, in_file);
            self.writeback().note_write(&mut state, caller, vnode)?;
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
        self.writeback().note_write(&mut state, caller, vnode)?;
        written?;
        if whole.is_empty() {
            return Ok(range.end);
        }
        let mut anode = state.anode()?.clone();
        let rest = self.store.punch_blocks(&mut change, &mut anode, whole.clone())?;
        // A dirty block across the boundary is left whole to the next transaction.
        let first_of = |at| state.waiting_at(at).map_or(at, |block| block.span().start);
        let rest = rest.map(first_of);
        self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        drop_waiting(self, &mut state, &(whole.start..rest.unwrap_or(whole.end)));
        state.anode = Some(anode);
        state.class = applied.class;
        Ok(rest.unwrap_or(range.end))
    }

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
    /// Copies bytes; see [`crate::api::FileSystem::copy_range`]. Called with no lock held, and not
    /// from inside a gate.
    ///
    /// PO1: leaves the snapshot before the write, which may block.
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
            let data = WriteData::Lent(&bytes);
            let written = self.enter(target.0)?.write_some(caller, target.0, to, &data, None);
            match self.named(target.0, b"", written) {
                Ok(written) => done += wide(written),
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            // A short read is at the end of the source. The size is no test, since the copy may
            // raise it.
            if count < wanted {
                break;
            }
        }
        Ok(done)
    }
}

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
    use crate::api::{Caller, Fallocate, FileKind, FileSystem, NewInode};
    use crate::transfer::leave::tests::pool_with_one;

    /// Method: scattered 4 KiB blocks, so that a transaction removes few; a dirty block spans the
    /// boundary of two transactions.
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
