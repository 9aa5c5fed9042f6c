//! Writing and cutting the content of files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::anode::{Anode, AnodeKind, INLINE_BYTES_MAX, StorageMode};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, IO_ALIGN_BYTES, SharedBytes};

use super::access::{WRITE, clear_set_bits_of_write, is_exempt};
use super::api::{Around, Attr, Caller, Data, FILE_BYTES_MAX, Ino, SetAttr};
use super::flush::tail_waiting;
use super::inline::{cut_inline, is_inline, settle_storage};
use super::payload::Payload;
use super::unit::Span;
use super::{Core, Files, Vnode, VnodeState, attr_of, seen, tell};
use crate::alloc::Urgency;
use crate::container::{Content, Leaves};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::gate::Inside;
use crate::journal::Reservation;
use crate::segment::{BlockOwner, Claim, Origin};
use crate::store::Change;
use crate::usage::Payer;
use runtime::sync::RwLockWriteGuard;

/// Reclaims in a row of which others may take everything before a writer is refused: to lose one is
/// rare, and each is a checkpoint that he waits for.
const RECLAIMS_LOST_MAX: u32 = 8;

/// Bytes of a file that may wait in memory while they cannot be installed. What waits of another is
/// bounded by the writes that may be in flight.
pub const PENDING_BYTES_MAX: usize = 8 << 20;

pub(super) type StateGuard<'v> = RwLockWriteGuard<'v, VnodeState>;

/// A file that is written to under its lock, and what was seen of its map, which stays as it is
/// until blocks are installed.
pub(super) struct Writing<'w> {
    pub(super) state: &'w mut VnodeState,
    pub(super) leaves: Leaves<'w>,
}

impl Core {
    pub(super) fn writing<'w>(&'w self, state: &'w mut VnodeState) -> Writing<'w> {
        Writing { state, leaves: Leaves::new(&self.store) }
    }

    /// Writes as much of `data` at `offset` as one block takes; returns which, and how much.
    pub(super) fn write_span(
        &self,
        writing: &mut Writing<'_>,
        offset: u64,
        data: &Payload<'_>,
    ) -> FsResult<(Span, usize)> {
        self.check_pending(writing.state)?;
        let span = writing.span_to_write(offset, wide(data.len()))?;
        let mut result = self.write_in(writing, span, offset, data);
        if result == Err(FsError::NoSpace)
            && let Some(whole) = writing.unsplit_span(span)?
        {
            // G5: the block as it is takes no more than the file has for it; a split needs pages.
            result = self.write_in(writing, whole, offset, data);
        }
        result
    }

    /// Refuses a file of which too much waits that cannot be installed, with what keeps it.
    fn check_pending(&self, state: &VnodeState) -> FsResult<()> {
        let Some(error) = &state.not_installed else { return Ok(()) };
        let pending = state.pending.values().map(|block| self.stored_bytes(block.fragments()));
        match pending.sum::<usize>() > PENDING_BYTES_MAX {
            true => Err(FsError::clone(error)),
            false => Ok(()),
        }
    }

    /// Writes as much of `data` at `offset` as `span` takes.
    fn write_in(
        &self,
        writing: &mut Writing<'_>,
        span: Span,
        offset: u64,
        data: &Payload<'_>,
    ) -> FsResult<(Span, usize)> {
        let from = index_wide(offset - span.start);
        let count = (index_wide(span.bytes()) - from).min(data.len());
        self.write_block(writing, span, from, &data.part(0..count))?;
        Ok((span, count))
    }

    /// V2: a write that failed may have placed a block before.
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

    /// Writes `data` at `from` in `span`.
    fn write_block(
        &self,
        writing: &mut Writing<'_>,
        span: Span,
        from: usize,
        data: &Payload<'_>,
    ) -> FsResult<()> {
        let state = &*writing.state;
        // What of the block is part of the file now; behind that it must read as zeros.
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
            None => Some(self.block_content(state, span, valid)?.into()),
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
        self.place_block(writing, span, buffer, length, Origin::User)
    }

    /// Gives a new version of what `span` holds its place.
    pub(super) fn place_block(
        &self,
        Writing { state, leaves }: &mut Writing<'_>,
        span: Span,
        buffer: SharedBytes,
        length: usize,
        origin: Origin,
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
        let claim = Claim {
            extra_fragments: page * room.map_pages,
            held_fragments: room.held_fragments,
            counted_fragments: room.counted_fragments,
            accepted_fragments: waiting.map(|block| block.accepted_fragments()).sum(),
            previous: state.waiting_as(span).map(|block| block.place).or(room.stored),
        };
        let payer = match fileset.anodes.payer(&self.store, anode, state.is_exempt) {
            // What is moved takes no more than it did.
            Err(FsError::Uncounted { .. }) if origin != Origin::User => {
                Payer::fileset(&fileset.anodes.usage)
            }
            payer => payer?,
        };
        let block = self.segments.place((origin, &payer), owner, buffer, length, claim)?;
        // UN1: what it covers waits no longer.
        for start in covered {
            if let Some(old) = state.pending.remove(&start) {
                block.set_file_bytes(block.file_bytes().max(old.file_bytes()));
                self.segments.replaced(&old);
            }
        }
        state.pending.insert(span.start, block);
        Ok(())
    }

    /// Before the file grows past its end at `to`: what its last block stores behind the end must
    /// read as zeros from now on.
    pub(crate) fn zero_tail(&self, state: &mut VnodeState, to: u64) -> FsResult<()> {
        if to <= state.size_bytes {
            return Ok(());
        }
        let span = self.span_of_end(state)?;
        if span.start == state.size_bytes || to < span.end() {
            // A write into the last block itself zeroes what lies behind the end.
            return Ok(());
        }
        self.rewrite_tail(state, span)
    }

    /// Rewrites the last block, `span`, if it stores anything but zeros behind the end of the file.
    fn rewrite_tail(&self, state: &mut VnodeState, span: Span) -> FsResult<()> {
        let valid = index_wide(span.valid_bytes(state.size_bytes));
        let is_in_parts = state.waiting_as(span).is_none() && !state.waiting_in(span).is_empty();
        let stored = match state.waiting_as(span) {
            Some(block) => block.fragments(),
            None => {
                let unit = self.store.unit(state.anode()?, span.start)?;
                unit.pointer.map_or(0, |pointer| pointer.fragments)
            }
        };
        let stored = self.stored_bytes(stored).min(index_wide(span.bytes()));
        if !is_in_parts {
            if stored <= valid {
                return Ok(());
            }
            let content = self.block_content(state, span, stored)?;
            if content[valid..].iter().all(|&byte| byte == 0) || planted::is(Planted::TailNotZeroed)
            {
                return Ok(());
            }
        }
        self.write_block(&mut self.writing(state), span, valid, &Payload::Lent(&[]))
    }

    /// Before the file grows to `size_bytes`. Changes memory only, but may read the map.
    ///
    /// V2: what this places waits in a file that may have been clean. A clone that is taken before
    /// it is installed must find it: it may be sealed by then, and is born before the clone.
    pub(super) fn prepare_growth(
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

    /// Before the file grows to `size_bytes`: what its last block stores behind the end becomes
    /// zeros.
    fn make_tail_zero(&self, state: &mut VnodeState, size_bytes: u64) -> FsResult<()> {
        let span = self.span_of_end(state)?;
        if size_bytes == state.size_bytes || span.start == state.size_bytes {
            return Ok(());
        }
        self.rewrite_tail(state, span)
    }
}

/// What a write does to the capabilities of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capabilities {
    /// As Linux does for every write.
    Drop,
    /// Of what receives a stream, which has them beside the content.
    Keep,
}

impl Files<'_> {
    /// Writes; see [`super::api::FileSystem::write`].
    pub(crate) fn write_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        (data, capabilities): (&[u8], Capabilities),
    ) -> FsResult<()> {
        let data = (&Payload::Lent(data), capabilities);
        self.write_payload(caller, ino, offset, data, &mut 0, None)
    }

    /// Writes what there is room for; see [`super::api::FileSystem::write_some`].
    pub(crate) fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &Data<'_>,
        around: Option<&mut Around>,
    ) -> FsResult<usize> {
        let data = match data {
            Data::Lent(bytes) => Payload::Lent(bytes),
            Data::Shared(bytes) => self.kept.admit(bytes),
        };
        let mut done = 0;
        let data = (&data, Capabilities::Drop);
        match self.write_payload(caller, ino, offset, data, &mut done, around) {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Writes all of `data`; `done` counts what is written, also before an error.
    fn write_payload(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        (data, capabilities): (&Payload<'_>, Capabilities),
        done: &mut usize,
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        self.check_content(caller, &state, WRITE)?;
        if data.is_empty() {
            return Ok(());
        }
        let drops_capability = capabilities == Capabilities::Drop && self.has_capability(&state)?;
        drop(state);
        if drops_capability {
            self.remove_capability(ino)?;
        }
        let end = offset.checked_add(wide(data.len())).ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        self.make_room()?;
        let (mut refused_at, mut lost) = (None, 0);
        let mut turn = None;
        loop {
            let result = self.unsharing(Urgency::User, || {
                self.write_locked(caller, &vnode, offset, data, done, around.as_deref_mut())
            });
            if result != Err(FsError::NoSpace) {
                return result;
            }
            // A long write may take more than one reclaim gives, and others may take what it gave:
            // again, as long as anybody goes on.
            let now = (*done, self.blocks_written.load(Ordering::Relaxed));
            lost = if refused_at.is_some_and(|(at, _)| at == *done) { lost + 1 } else { 0 };
            if refused_at == Some(now) || lost > RECLAIMS_LOST_MAX {
                self.note_refused();
                return result;
            }
            refused_at = Some(now);
            turn.get_or_insert_with(|| self.refused_lock.lock());
            self.reclaim_promised()?;
        }
    }

    /// Writes `data` from its byte `done` on, and counts it up.
    fn write_locked(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        offset: u64,
        data: &Payload<'_>,
        done: &mut usize,
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        let (_inside, mut state) = self.settled(vnode)?;
        state.is_exempt = match caller.writes_back && !planted::is(Planted::WritebackExempt) {
            true => state.anode()?.uid == 0,
            false => is_exempt(caller),
        };
        self.check_content(caller, &state, WRITE)?;
        // Where room was made in between, the first part counts.
        let before = match &around {
            Some(told) if *done > 0 => told.before.clone(),
            _ => seen(self, &around, &state)?,
        };
        if self.write_inline(&mut state, offset, data)? {
            *done = data.len();
            self.note_write(&mut state, caller, vnode)?;
            return tell(self, around, before, &state);
        }
        // A write that goes on may find the file cut since: nothing of what went shows again.
        let at = offset + wide(*done);
        let prepared = self.leave_inline(&mut state).and_then(|()| self.zero_tail(&mut state, at));
        if let Err(error) = prepared {
            self.note_placed(&state, vnode);
            return Err(error);
        }
        let mut result = Ok(());
        let mut writing = self.writing(&mut state);
        while *done < data.len() {
            let at = offset + wide(*done);
            let written = self.write_span(&mut writing, at, &data.part(*done..data.len()));
            match written {
                // V3: what was placed is part of the file even if the next block finds no room.
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
                    self.note_placed(&state, vnode);
                    return Err(error);
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.note_write(&mut state, caller, vnode)?;
        tell(self, around, before, &state)?;
        result
    }

    /// Sets the size of a file, and whatever else `set` says with it; returns the attributes that
    /// this leaves.
    pub(crate) fn truncate(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        size_bytes: u64,
        set: &SetAttr,
        mut around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let (mut change, mut state) = self.begin_settled(vnode)?;
        state.is_exempt = is_exempt(caller);
        self.check_change(caller, state.anode()?, set)?;
        // A cut at the end gives up what is reserved behind it.
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
            // CRASH: V3, V4. The size on disk is smaller yet, and would be raised over blocks that
            // are not in the map: a crash would show zeros that nobody wrote.
            drop(state);
            drop(change);
            self.install_all(vnode)?;
            return self.truncate(caller, vnode, size_bytes, set, around);
        }
        let before = seen(self, &around, &state)?;
        let mut anode = state.anode()?.clone();
        anode.size_bytes = size_bytes;
        self.apply_change(caller, &mut anode, set);
        let is_done = is_inline(&anode)
            || self.store.truncate_blocks(&mut change, &mut anode, size_bytes, Content::Data)?;
        if is_inline(&anode) {
            cut_inline(&mut anode, size_bytes);
        }
        if is_done {
            settle_storage(&mut anode);
        }
        let mut guard = None;
        if !is_done && anode.nlink > 0 {
            // F2: the rest is freed in further transactions, or after a crash.
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
        // V3: what is left was part of a write whose end is cut off.
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

    /// Raises the size of a file, and returns the attributes that this leaves; `None`, and nothing
    /// is done, if the file is larger by now.
    ///
    /// CRASH: V4. What the last block stores behind the end must read as zeros before the size
    /// passes it, so a new version of that block is installed first.
    pub(super) fn extend(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        size_bytes: u64,
        set: &SetAttr,
        around: Option<&mut Around>,
    ) -> FsResult<Option<Attr>> {
        loop {
            let (mut change, mut state) = self.begin_settled(vnode)?;
            state.is_exempt = is_exempt(caller);
            if size_bytes < state.size_bytes {
                return Ok(None);
            }
            self.check_change(caller, state.anode()?, set)?;
            self.prepare_growth(&mut state, vnode, size_bytes)?;
            if tail_waiting(&state).is_some() {
                drop(state);
                drop(change);
                self.install_all(vnode)?;
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

    /// V5: starts a change of a file of which nothing lies past the end. Called with no lock held.
    pub(super) fn begin_settled<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
    ) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        loop {
            let change = self.begin(Reservation::LARGE)?;
            let state = vnode.state.write();
            if !state.is_being_cut {
                self.check_anode_own(&state)?;
                return Ok((change, state));
            }
            drop((state, change));
            self.finish_truncate(vnode)?;
        }
    }

    /// V5: enters the gate and locks a file of which nothing lies past the end. Called with no lock
    /// held.
    pub(super) fn settled<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
    ) -> FsResult<(Option<Inside<'_>>, StateGuard<'v>)> {
        loop {
            let enters = !planted::is(Planted::GateNotHeldByWrites);
            let inside = enters.then(|| self.fileset.gate.enter());
            let state = vnode.state.write();
            if !state.is_being_cut {
                self.check_anode_own(&state)?;
                return Ok((inside, state));
            }
            drop((state, inside));
            self.finish_truncate(vnode)?;
        }
    }

    /// Frees what still lies past the end of a file that is being cut. One with a name is in the
    /// orphan list for that, and is taken out.
    pub(crate) fn finish_truncate(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        self.unsharing(Urgency::System, || self.finish_cut(vnode))
    }

    fn finish_cut(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        loop {
            let mut change = self.begin(Reservation::LARGE)?;
            let mut state = vnode.state.write();
            // Nobody holds a file that is gone.
            let Some(mut anode) = state.anode.clone().filter(|_| state.is_being_cut) else {
                return Ok(());
            };
            let size = anode.size_bytes.max(state.size_bytes);
            let is_done =
                self.store.truncate_blocks(&mut change, &mut anode, size, Content::Data)?;
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

/// Returns how much memory a new block takes of which `length` bytes are stored: whole fragments,
/// and for a small file no more. It is as large as a block from where it grows.
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

/// Makes an empty container of data.
pub(crate) fn make_blocked(anode: &mut Anode) {
    anode.storage = StorageMode::Blocked;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vnode::api::{FileKind, FileSystem, NewInode};
    use crate::vnode::leave::tests::pool_with_one;

    /// Goal: a write that made room in between goes on in a file that was cut meanwhile, and shows
    /// nothing of what went. Method: the rest of a write behind a cut into its first part, in a
    /// block that is stored and keeps what lies behind the cut.
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
            .write_locked(&caller, &vnode, 0, &Payload::Lent(&data), &mut done, None)
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
