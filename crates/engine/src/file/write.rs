//! Writing and truncating the content of files.

use crate::file::Writeback;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::anode::{Anode, AnodeKind, INLINE_BYTES_MAX, StorageMode};
use runtime::planted;
use storage::device::{AlignedBuffer, IO_ALIGN_BYTES, SharedBytes};

use crate::alloc::Urgency;
use crate::api::{Attr, AttributeChange, Caller, FILE_BYTES_MAX, Ino, SetAttr, WriteData};
use crate::container::{ContainerContent, LeafCursor};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::file::access::{WRITE, clear_set_bits_of_write, is_exempt};
use crate::file::flush::tail_waiting;
use crate::file::inline::{cut_inline, is_inline, settle_storage};
use crate::file::payload::WritePayload;
use crate::file::unit::BlockSpan;
use crate::file::{Core, Files, Vnode, VnodeState, attr_of, seen, tell};
use crate::gate::GateGuard;
use crate::journal::LogCredits;
use crate::segment::{BlockAccounting, BlockOrigin, BlockOwner};
use crate::store::Change;
use crate::usage::BlockAccounts;
use runtime::sync::RwLockWriteGuard;

/// A write fails after this many consecutive reclaims whose gain went to other writers. Each waits
/// for a checkpoint.
const RECLAIMS_LOST_MAX: u32 = 8;

/// Most dirty bytes of a file whose map update fails. Other files need no bound but the one on
/// writes in flight.
pub const PENDING_BYTES_MAX: usize = 8 << 20;

pub(super) type StateGuard<'v> = RwLockWriteGuard<'v, VnodeState>;

/// A locked file being written, with a cache of its map, valid until blocks are mapped.
pub(crate) struct FileWriter<'w> {
    pub(super) state: &'w mut VnodeState,
    pub(super) leaves: LeafCursor<'w>,
}

impl Core {
    pub(crate) fn writing<'w>(&'w self, state: &'w mut VnodeState) -> FileWriter<'w> {
        FileWriter { state, leaves: LeafCursor::new(&self.store) }
    }
}

impl Writeback<'_> {
    /// Writes a prefix of `data` that fits in one block. Returns the block's span and the count.
    pub(super) fn write_span(
        &self,
        writing: &mut FileWriter<'_>,
        offset: u64,
        data: &WritePayload<'_>,
    ) -> FsResult<(BlockSpan, usize)> {
        self.check_pending(writing.state)?;
        let span = writing.span_to_write(offset, wide(data.len()))?;
        let mut result = self.write_in(writing, span, offset, data);
        if result == Err(FsError::NoSpace)
            && let Some(whole) = writing.unsplit_span(span)?
        {
            // G5: a full-size block needs only room that the file has already, but a split needs
            // map pages.
            result = self.write_in(writing, whole, offset, data);
        }
        result
    }

    /// Refuses a file with too many unmappable dirty bytes, with the error of the map update.
    fn check_pending(&self, state: &VnodeState) -> FsResult<()> {
        let Some(error) = &state.not_installed else { return Ok(()) };
        let pending =
            state.pending.values().map(|block| self.reader().stored_bytes(block.fragments()));
        match pending.sum::<usize>() > PENDING_BYTES_MAX {
            true => Err(FsError::clone(error)),
            false => Ok(()),
        }
    }

    fn write_in(
        &self,
        writing: &mut FileWriter<'_>,
        span: BlockSpan,
        offset: u64,
        data: &WritePayload<'_>,
    ) -> FsResult<(BlockSpan, usize)> {
        let from = index_wide(offset - span.start);
        let count = (index_wide(span.bytes()) - from).min(data.len());
        self.write_block(writing, span, from, &data.part(0..count))?;
        Ok((span, count))
    }

    /// V2: marks the file dirty if a write placed a block before it failed.
    fn note_placed(&self, state: &VnodeState, vnode: &Vnode) {
        if !state.pending.is_empty() {
            self.note_dirty(vnode);
        }
    }

    pub(super) fn note_write(
        &self,
        state: &mut VnodeState,
        caller: &Caller,
        vnode: &Arc<Vnode>,
    ) -> FsResult<()> {
        let now = self.now();
        let anode = state.anode_mut()?;
        anode.mtime = now;
        anode.ctime = now;
        anode.data_version += 1;
        clear_set_bits_of_write(caller, anode);
        state.is_attr_dirty = true;
        self.note_dirty(vnode);
        Ok(())
    }

    fn write_block(
        &self,
        writing: &mut FileWriter<'_>,
        span: BlockSpan,
        from: usize,
        data: &WritePayload<'_>,
    ) -> FsResult<()> {
        let state = &*writing.state;
        // Bytes of the block within the file; the rest must read as zeros.
        let valid = index_wide(span.valid_bytes(state.size_bytes));
        let length = valid.max(from + data.len());
        let end = from + data.len();
        let put = |buffer: &mut [u8]| {
            buffer[valid.min(from)..from].fill(0);
            buffer[from..end].copy_from_slice(data);
            buffer[valid.max(end)..].fill(0);
        };
        let known = state.waiting_as(span).cloned();
        if let Some(block) = &known
            && self.segments.rewrite(block, length, put)
        {
            return Ok(());
        }
        let before = match &known {
            _ if from == 0 && data.len() >= valid => None,
            Some(block) => Some(block.data()),
            None => Some(self.reader().block_content(state, span, valid)?.into()),
        };
        let block_bytes = index_wide(span.bytes());
        let buffer = match before {
            Some(mut buffer) => {
                if buffer.len() < length {
                    buffer = AlignedBuffer::padded(&buffer, block_bytes).into();
                }
                put(buffer.make_mut());
                buffer
            }
            None => data.block(memory_for(length).min(block_bytes)),
        };
        self.place_block(writing, span, buffer, length, BlockOrigin::User)
    }
    pub(crate) fn place_block(
        &self,
        FileWriter { state, leaves }: &mut FileWriter<'_>,
        span: BlockSpan,
        buffer: SharedBytes,
        length: usize,
        origin: BlockOrigin,
    ) -> FsResult<()> {
        let anode = state.anode()?;
        let owner = BlockOwner {
            fileset: anode.fileset,
            anode: anode.number,
            generation: anode.generation,
            index: span.start >> span.shift,
            block_shift: span.shift,
            directory: anode.parent,
            placement: anode.placement,
        };
        let page = u64::from(self.store.geometry().page_fragments());
        let fileset = self.filesets.by_slot(state.fileset_slot).ok_or(FsError::Stale)?;
        let room = leaves.room_for(anode, span.start, span.shift, fileset.gate.shared_epoch())?;
        let covered = state.waiting_in(span);
        let waiting = covered.iter().filter_map(|start| state.pending.get(start));
        let claim = BlockAccounting {
            extra_fragments: page * room.map_pages,
            held_fragments: room.held_fragments,
            counted_fragments: room.counted_fragments,
            accepted_fragments: waiting.map(|block| block.accepted_fragments()).sum(),
            previous: state.waiting_as(span).map(|block| block.place).or(room.stored),
        };
        let payer = match fileset.anodes.payer(&self.store, anode, state.is_exempt) {
            // A moved block uses no more space than before, so it needs no account.
            Err(FsError::Uncounted { .. }) if origin != BlockOrigin::User => {
                BlockAccounts::fileset(&fileset.anodes.usage)
            }
            payer => payer?,
        };
        let block = self.segments.place((origin, &payer), owner, buffer, length, claim)?;
        // UN1: the new block replaces the dirty ones that it covers.
        for start in covered {
            if let Some(old) = state.pending.remove(&start) {
                block.set_file_bytes(block.file_bytes().max(old.file_bytes()));
                self.segments.replaced(&old);
            }
        }
        state.pending.insert(span.start, block);
        Ok(())
    }

    /// Zeroes the bytes that the last block stores past the end of the file, before a write at `to`
    /// extends the file.
    pub(crate) fn zero_tail(&self, state: &mut VnodeState, to: u64) -> FsResult<()> {
        if to <= state.size_bytes {
            return Ok(());
        }
        let span = self.span_of_end(state)?;
        if span.start == state.size_bytes || to < span.end() {
            // The write at `to` begins in the last block, and zeroes the rest of that block.
            return Ok(());
        }
        self.rewrite_tail(state, span)
    }

    /// Rewrites the last block if it stores nonzero bytes past the end of the file.
    fn rewrite_tail(&self, state: &mut VnodeState, span: BlockSpan) -> FsResult<()> {
        let valid = index_wide(span.valid_bytes(state.size_bytes));
        let is_in_parts = state.waiting_as(span).is_none() && !state.waiting_in(span).is_empty();
        let stored = match state.waiting_as(span) {
            Some(block) => block.fragments(),
            None => {
                let unit = self.store.unit(state.anode()?, span.start)?;
                unit.pointer.map_or(0, |pointer| pointer.fragments)
            }
        };
        let stored = self.reader().stored_bytes(stored).min(index_wide(span.bytes()));
        if !is_in_parts {
            if stored <= valid {
                return Ok(());
            }
            let content = self.reader().block_content(state, span, stored)?;
            if content[valid..].iter().all(|&byte| byte == 0) || planted!(TailNotZeroed) {
                return Ok(());
            }
        }
        self.write_block(&mut self.writing(state), span, valid, &WritePayload::Lent(&[]))
    }

    /// Prepares growth to `size_bytes`, in memory only.
    ///
    /// V2: a block placed here makes a clean file dirty. A snapshot must find the file in the dirty
    /// list, since the block may be sealed already, with a birth before the snapshot.
    pub(crate) fn prepare_growth(
        &self,
        state: &mut VnodeState,
        vnode: &Vnode,
        size_bytes: u64,
    ) -> FsResult<()> {
        let leaves = size_bytes > wide(INLINE_BYTES_MAX);
        let left = if leaves { self.leave_inline(state) } else { Ok(()) };
        let prepared = left.and_then(|()| self.make_tail_zero(state, size_bytes));
        self.note_placed(state, vnode);
        prepared
    }

    /// Zeroes the bytes that the last block stores past the end of the file, before the size is
    /// set.
    fn make_tail_zero(&self, state: &mut VnodeState, size_bytes: u64) -> FsResult<()> {
        let span = self.span_of_end(state)?;
        if size_bytes == state.size_bytes || span.start == state.size_bytes {
            return Ok(());
        }
        self.rewrite_tail(state, span)
    }
}

/// Effect of a write on capabilities (`security.capability`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// Remove them, as Linux does at every write.
    Drop,
    /// Keep them: the receiver of a stream sets capabilities separately.
    Keep,
}

impl Files<'_> {
    pub(crate) fn write_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        (data, capabilities): (&[u8], Capabilities),
    ) -> FsResult<()> {
        let data = (&WritePayload::Lent(data), capabilities);
        self.write_payload(caller, ino, offset, data, &mut 0, None)
    }

    pub(crate) fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<usize> {
        let data = match data {
            WriteData::Lent(bytes) => WritePayload::Lent(bytes),
            WriteData::Shared(bytes) => self.kept.admit(bytes),
        };
        let mut done = 0;
        let data = (&data, Capabilities::Drop);
        match self.write_payload(caller, ino, offset, data, &mut done, around) {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Writes all of `data`, and counts the written bytes in `done`, also before an error.
    fn write_payload(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        (data, capabilities): (&WritePayload<'_>, Capabilities),
        done: &mut usize,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        self.check_content(caller, &state, WRITE)?;
        if data.is_empty() {
            return Ok(());
        }
        let drops_capability =
            capabilities == Capabilities::Drop && self.xattrs().has_capability(&state)?;
        drop(state);
        if drops_capability {
            self.xattrs().remove_capability(ino)?;
        }
        let end = offset.checked_add(wide(data.len())).ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        self.space_reclaim().make_room()?;
        let (mut refused_at, mut lost) = (None, 0);
        let mut turn = None;
        loop {
            let result = self.unsharing(Urgency::User, || {
                self.write_locked(caller, &vnode, offset, data, done, around.as_deref_mut())
            });
            if result != Err(FsError::NoSpace) {
                return result;
            }
            // One reclaim may be too little, and other writers may take its gain: repeat while any
            // writer makes progress.
            let now = (*done, self.blocks_written.load(Ordering::Relaxed));
            lost = if refused_at.is_some_and(|(at, _)| at == *done) { lost + 1 } else { 0 };
            if refused_at == Some(now) || lost > RECLAIMS_LOST_MAX {
                self.space_reclaim().note_refused();
                return result;
            }
            refused_at = Some(now);
            turn.get_or_insert_with(|| self.refused_lock.lock());
            self.space_reclaim().reclaim_promised()?;
        }
    }

    fn write_locked(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        offset: u64,
        data: &WritePayload<'_>,
        done: &mut usize,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let (_inside, mut state) = self.settled(vnode)?;
        state.is_exempt = match caller.writes_back {
            true => state.anode()?.uid == 0,
            false => is_exempt(caller),
        };
        self.check_content(caller, &state, WRITE)?;
        // After a reclaim, `before` keeps the attributes of the first attempt.
        let before = match &around {
            Some(told) if *done > 0 => told.before.clone(),
            _ => seen(self, &around, &state)?,
        };
        if self.writeback().write_inline(&mut state, offset, data)? {
            *done = data.len();
            self.writeback().note_write(&mut state, caller, vnode)?;
            return tell(self, around, before, &state);
        }
        // A truncate since the last attempt stays in effect: the bytes that it cut are zeroed
        // first.
        let at = offset + wide(*done);
        let prepared = self
            .writeback()
            .leave_inline(&mut state)
            .and_then(|()| self.writeback().zero_tail(&mut state, at));
        if let Err(error) = prepared {
            self.writeback().note_placed(&state, vnode);
            return Err(error);
        }
        let mut result = Ok(());
        let mut writing = self.writing(&mut state);
        while *done < data.len() {
            let at = offset + wide(*done);
            let written =
                self.writeback().write_span(&mut writing, at, &data.part(*done..data.len()));
            match written {
                // V3: the placed blocks are part of the file even if there is no room for the next
                // block.
                Ok((span, count)) => {
                    let state = &mut *writing.state;
                    if let Some(block) = state.pending.get(&span.start) {
                        block.set_file_bytes(state.size_bytes.max(offset + wide(data.len())));
                    }
                    self.blocks_written.fetch_add(1, Ordering::Relaxed);
                    *done += count;
                    state.size_bytes = state.size_bytes.max(at + wide(count));
                }
                Err(error) if *done == 0 => {
                    self.writeback().note_placed(&state, vnode);
                    return Err(error);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.writeback().note_write(&mut state, caller, vnode)?;
        tell(self, around, before, &state)?;
        result
    }

    pub(crate) fn truncate(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        size_bytes: u64,
        set: &SetAttr,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let (mut change, mut state) = self.begin_settled(vnode)?;
        state.is_exempt = is_exempt(caller);
        self.check_change(caller, state.anode()?, set)?;
        // Not for an equal size: that frees preallocations past the end.
        if size_bytes > state.size_bytes {
            drop(state);
            drop(change);
            return match self.extend(caller, vnode, size_bytes, set, around.as_deref_mut())? {
                Some(attr) => Ok(attr),
                None => self.truncate(caller, vnode, size_bytes, set, around),
            };
        }
        let is_waiting =
            tail_waiting(&state).is_some() || state.pending.range(..size_bytes).next().is_some();
        if size_bytes > state.anode()?.size_bytes && is_waiting {
            // CRASH: V3, V4. The dirty blocks are mapped first. Else the size on disk would include
            // unmapped blocks, which would read as zeros after a crash.
            drop(state);
            drop(change);
            self.writeback().install_all(vnode)?;
            return self.truncate(caller, vnode, size_bytes, set, around);
        }
        let before = seen(self, &around, &state)?;
        let mut anode = state.anode()?.clone();
        anode.size_bytes = size_bytes;
        self.apply_change(caller, &mut anode, set);
        let is_done = is_inline(&anode)
            || self.store.truncate_blocks(
                &mut change,
                &mut anode,
                size_bytes,
                ContainerContent::Data,
            )?;
        if is_inline(&anode) {
            cut_inline(&mut anode, size_bytes);
        }
        if is_done {
            settle_storage(&mut anode);
        }
        let mut guard = None;
        if !is_done && anode.nlink > 0 {
            // F2: further transactions, or recovery, free the rest.
            let fileset = guard.insert(self.fileset.anodes.lock());
            let slot = fileset.add_orphan(&self.store, &mut change, anode.number)?;
            anode.orphan_slot = Some(slot);
        }
        self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        if let Some(guard) = guard {
            guard.settle(applied.lsn);
        }
        let gone = state.pending.split_off(&size_bytes);
        gone.values().for_each(|block| self.segments.kill(block));
        if state.pending.is_empty() {
            state.not_installed = None;
        }
        // V3: the truncate also cuts the dirty blocks, so they vouch for no larger size on disk.
        for block in state.pending.values() {
            block.set_file_bytes(block.file_bytes().min(size_bytes));
        }
        state.anode = Some(anode);
        state.size_bytes = size_bytes;
        state.is_being_cut = !is_done;
        state.class = applied.class;
        tell(self, around, before, &state)?;
        let mut attr = attr_of(self, &state)?;
        drop(state);
        if !is_done {
            self.finish_truncate(vnode)?;
            attr.blocks_512 = attr_of(self, &vnode.state.read())?.blocks_512;
        }
        Ok(attr)
    }

    /// Raises the size; `None`, without a change, if the file is larger already.
    ///
    /// CRASH: V4. The zeroed version of the last block is mapped before the size passes it.
    pub(crate) fn extend(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        size_bytes: u64,
        set: &SetAttr,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Option<Attr>> {
        loop {
            let (mut change, mut state) = self.begin_settled(vnode)?;
            state.is_exempt = is_exempt(caller);
            if size_bytes < state.size_bytes {
                return Ok(None);
            }
            self.check_change(caller, state.anode()?, set)?;
            self.writeback().prepare_growth(&mut state, vnode, size_bytes)?;
            if tail_waiting(&state).is_some() {
                drop(state);
                drop(change);
                self.writeback().install_all(vnode)?;
                continue;
            }
            let before = seen(self, &around, &state)?;
            let mut anode = state.anode()?.clone();
            anode.size_bytes = size_bytes;
            settle_storage(&mut anode);
            self.apply_change(caller, &mut anode, set);
            self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
            let applied = change.end();
            state.size_bytes = size_bytes;
            state.anode = Some(anode);
            state.class = applied.class;
            tell(self, around, before, &state)?;
            return attr_of(self, &state).map(Some);
        }
    }

    /// V5: starts a change after any truncate in progress. Called with no lock held.
    pub(crate) fn begin_settled<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
    ) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        loop {
            let change = self.begin(LogCredits::LARGE)?;
            let state = vnode.state.write();
            if !state.is_being_cut {
                self.check_anode_own(&state)?;
                return Ok((change, state));
            }
            drop((state, change));
            self.finish_truncate(vnode)?;
        }
    }

    /// V5: enters the gate and locks a file after any truncate in progress. Called with no lock
    /// held.
    pub(super) fn settled<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
    ) -> FsResult<(Option<GateGuard<'_>>, StateGuard<'v>)> {
        loop {
            let inside = (!planted!(GateNotHeldByWrites)).then(|| self.fileset.gate.enter());
            let state = vnode.state.write();
            if !state.is_being_cut {
                self.check_anode_own(&state)?;
                return Ok((inside, state));
            }
            drop((state, inside));
            self.finish_truncate(vnode)?;
        }
    }

    /// Completes a truncate. A named file then leaves the orphan list.
    pub(crate) fn finish_truncate(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        self.unsharing(Urgency::System, || self.finish_cut(vnode))
    }

    fn finish_cut(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        loop {
            let mut change = self.begin(LogCredits::LARGE)?;
            let mut state = vnode.state.write();
            // A freed file has no anode, and nothing left to free.
            let Some(mut anode) = state.anode.clone().filter(|_| state.is_being_cut) else {
                return Ok(());
            };
            let size = anode.size_bytes.max(state.size_bytes);
            let is_done = self.store.truncate_blocks(
                &mut change,
                &mut anode,
                size,
                ContainerContent::Data,
            )?;
            if is_done {
                settle_storage(&mut anode);
            }
            let mut guard = None;
            if is_done
                && anode.nlink > 0
                && let Some(slot) = anode.orphan_slot.take()
            {
                let fileset = guard.insert(self.fileset.anodes.lock());
                fileset.remove_orphan(&self.store, &mut change, slot)?;
            }
            self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
            let applied = change.end();
            if let Some(guard) = guard {
                guard.settle(applied.lsn);
            }
            state.anode = Some(anode);
            state.is_being_cut = !is_done;
            state.class = applied.class;
            if is_done {
                return Ok(());
            }
        }
    }
}

/// Returns the memory for a block with `length` stored bytes: a power of two, so that a small file
/// uses little. Growth allocates a whole block.
fn memory_for(length: usize) -> usize {
    length.next_power_of_two().max(IO_ALIGN_BYTES)
}

pub(crate) fn check_regular(state: &VnodeState) -> FsResult<()> {
    check_regular_anode(state.anode()?)
}

pub(crate) fn check_regular_anode(anode: &Anode) -> FsResult<()> {
    match anode.kind {
        AnodeKind::Regular => Ok(()),
        AnodeKind::Directory => Err(FsError::IsDirectory),
        AnodeKind::Symlink
        | AnodeKind::BlockDevice
        | AnodeKind::CharDevice
        | AnodeKind::Fifo
        | AnodeKind::Socket
        | AnodeKind::Internal => Err(FsError::Invalid),
    }
}

pub(crate) fn make_blocked(anode: &mut Anode) {
    anode.storage = StorageMode::Blocked;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{FileKind, FileSystem, NewInode};
    use crate::transfer::leave::tests::pool_with_one;

    /// Method: a truncate into the first part of a write, then the rest of the write, in a block
    /// that stores bytes past the cut.
    #[test]
    fn a_write_that_goes_on_shows_nothing_of_what_was_cut_meanwhile() {
        const BYTES: usize = 1 << 20;
        const DONE: usize = 256 << 10;
        const CUT: usize = 10_000;
        let (pool, _) = pool_with_one();
        let caller = Caller::root();
        let new = NewInode::new(FileKind::Regular, 0o644);
        let ino = pool.create(&caller, pool.root(), b"file", new, None).expect("room").ino;
        pool.write(&caller, ino, 0, &vec![1; BYTES]).expect("there is room");
        pool.fsync(&caller, ino, false).expect("nothing fails");
        let cut = SetAttr { size_bytes: Some(wide(CUT)), ..SetAttr::default() };
        pool.setattr(&caller, ino, &cut, None).expect("it can be cut");
        let files = pool.core().main_files();
        let vnode = files.vnode(ino).expect("it is there");
        let (data, mut done) = (vec![2; BYTES], DONE);
        files
            .write_locked(&caller, &vnode, 0, &WritePayload::Lent(&data), &mut done, None)
            .expect("there is room");
        assert_eq!(done, BYTES);
        let mut read = Vec::new();
        pool.read(&caller, ino, 0, BYTES, &mut read).expect("it reads");
        assert!(read[..CUT].iter().all(|byte| *byte == 1));
        let seen = read[CUT..DONE].iter().position(|byte| *byte != 0);
        assert_eq!(seen, None, "what was cut");
        assert!(read[DONE..].iter().all(|byte| *byte == 2));
    }
}
