//! Writing and cutting the content of files.

use std::sync::Arc;

use format::anode::{Anode, AnodeKind, StorageMode};
use storage::device::AlignedBuffer;

use super::access::{check_change, clear_set_bits_of_write};
use super::api::{Caller, FILE_BYTES_MAX, Ino, SetAttr};
use super::flush::tail_waiting;
use super::read::own;
use super::{Files, Vnode, VnodeState};
use crate::container::Content;
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;
use crate::segment::{BlockOwner, Temperature};
use crate::store::Change;
use storage::sync::RwLockWriteGuard;

type StateGuard<'v> = RwLockWriteGuard<'v, VnodeState>;

impl Files {
    /// Writes; see [`super::api::FileSystem::write`].
    pub(crate) fn write_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) -> FsResult<()> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        check_regular(&vnode.state.read())?;
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(wide(data.len())).ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        self.make_room()?;
        self.with_reclaim(|| self.write_locked(caller, &vnode, offset, data))
    }

    fn write_locked(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        offset: u64,
        data: &[u8],
    ) -> FsResult<()> {
        let mut state = self.settled(vnode)?;
        check_regular(&state)?;
        self.zero_tail(&mut state, offset)?;
        let block_bytes = state.anode()?.block_bytes();
        let mut done = 0;
        while done < data.len() {
            let at = offset + wide(done);
            let (index, from) = (at / block_bytes, index_wide(at % block_bytes));
            let count = (index_wide(block_bytes) - from).min(data.len() - done);
            let result = self.write_block(&mut state, index, from, &data[done..done + count]);
            // V3: what was placed is part of the file even if the next block finds no room.
            if result.is_ok() {
                if let Some(block) = state.pending.get(&index) {
                    block.set_file_bytes(state.size_bytes.max(offset + wide(data.len())));
                }
                done += count;
                state.size_bytes = state.size_bytes.max(at + wide(count));
            } else if done == 0 {
                return result;
            } else {
                self.note_write(&mut state, caller, vnode)?;
                return result;
            }
        }
        self.note_write(&mut state, caller, vnode)
    }

    fn note_write(
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

    /// Writes `data` at `from` in block `index`.
    pub(crate) fn write_block(
        &self,
        state: &mut VnodeState,
        index: u64,
        from: usize,
        data: &[u8],
    ) -> FsResult<()> {
        let block_bytes = index_wide(state.anode()?.block_bytes());
        let start = index * wide(block_bytes);
        // What of the block is part of the file now; behind that it must read as zeros.
        let valid = index_wide(state.size_bytes.saturating_sub(start).min(wide(block_bytes)));
        let length = valid.max(from + data.len());
        let put = |buffer: &mut AlignedBuffer| {
            buffer[valid..].fill(0);
            buffer[from..from + data.len()].copy_from_slice(data);
        };
        let known = state.pending.get(&index).cloned();
        if let Some(block) = &known
            && self.segments.rewrite(block, length, put)
        {
            return Ok(());
        }
        let mut buffer = match &known {
            Some(block) => own(block.data()),
            None if from == 0 && data.len() >= valid => AlignedBuffer::zeroed(block_bytes),
            None => self.block_content(state, index, valid)?,
        };
        put(&mut buffer);
        self.place_block(state, index, buffer, length, Temperature::Hot)
    }

    /// Gives a new version of block `index` its place.
    pub(crate) fn place_block(
        &self,
        state: &mut VnodeState,
        index: u64,
        buffer: AlignedBuffer,
        length: usize,
        temperature: Temperature,
    ) -> FsResult<()> {
        let anode = state.anode()?;
        let owner = BlockOwner {
            fileset: anode.fileset,
            anode: anode.number,
            generation: anode.generation,
            index,
            block_shift: anode.block_shift,
            directory: anode.parent,
        };
        // A block where there was none may need a map page of its own, and more the higher the map.
        let is_new = self.store.block(None, anode, index)?.is_none();
        let page = u64::from(self.store.geometry().page_fragments());
        let extra = if is_new { page } else { 0 };
        let block = self.segments.place(temperature, owner, buffer, length, extra)?;
        if let Some(old) = state.pending.insert(index, block) {
            self.segments.kill(&old);
        }
        Ok(())
    }

    /// Before the file grows past its end at `to`: what its last block stores behind the end must
    /// read as zeros from now on.
    pub(crate) fn zero_tail(&self, state: &mut VnodeState, to: u64) -> FsResult<()> {
        let block_bytes = state.anode()?.block_bytes();
        let (size, index) = (state.size_bytes, state.size_bytes / block_bytes);
        let valid = index_wide(size % block_bytes);
        if to <= size || valid == 0 || to / block_bytes == index {
            // A write into the last block itself zeroes what lies behind the end.
            return Ok(());
        }
        self.rewrite_tail(state, index, valid)
    }

    /// Rewrites block `index` if it stores anything but zeros behind its first `valid` bytes.
    fn rewrite_tail(&self, state: &mut VnodeState, index: u64, valid: usize) -> FsResult<()> {
        let stored = match state.pending.get(&index) {
            Some(block) => block.fragments(),
            None => {
                let pointer = self.store.block(None, state.anode()?, index)?;
                pointer.map_or(0, |pointer| pointer.fragments)
            }
        };
        let stored = self.stored_bytes(stored).min(index_wide(state.anode()?.block_bytes()));
        if stored <= valid {
            return Ok(());
        }
        let content = self.block_content(state, index, stored)?;
        if content[valid..].iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        self.write_block(state, index, valid, &[])
    }

    /// Sets the size of a file, and whatever else `set` says with it.
    pub(crate) fn truncate(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        size_bytes: u64,
        set: &SetAttr,
    ) -> FsResult<()> {
        let (mut change, mut state) = self.begin_settled(vnode)?;
        check_change(caller, state.anode()?, set)?;
        if size_bytes >= state.size_bytes {
            drop(state);
            drop(change);
            return self.extend(caller, vnode, size_bytes, set);
        }
        let block_bytes = state.anode()?.block_bytes();
        let first_gone = size_bytes.div_ceil(block_bytes);
        let is_waiting =
            tail_waiting(&state).is_some() || state.pending.range(..first_gone).next().is_some();
        if size_bytes > state.anode()?.size_bytes && is_waiting {
            // CRASH: V3, V4. The size on disk is smaller yet, and would be raised over blocks that
            // are not in the map: a crash would show zeros that nobody wrote.
            drop(state);
            drop(change);
            self.install_all(vnode)?;
            return self.truncate(caller, vnode, size_bytes, set);
        }
        let mut anode = state.anode()?.clone();
        anode.size_bytes = size_bytes;
        self.apply_change(caller, &mut anode, set);
        let is_done =
            self.store.truncate_blocks(&mut change, &mut anode, first_gone, Content::Data)?;
        let mut guard = None;
        if !is_done && anode.nlink > 0 {
            // F2: the rest is freed in further transactions, or after a crash.
            let fileset = guard.insert(self.fileset.lock());
            let slot = fileset.add_orphan(&self.store, &mut change, anode.number)?;
            anode.entries = slot + 1;
        }
        self.fileset.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        if let Some(guard) = guard {
            guard.settle(applied.lsn);
        }
        let gone = state.pending.split_off(&first_gone);
        gone.values().for_each(|block| self.segments.kill(block));
        state.anode = Some(anode);
        state.size_bytes = size_bytes;
        state.is_being_cut = !is_done;
        state.class = applied.class;
        drop(state);
        if !is_done {
            self.finish_truncate(vnode)?;
        }
        Ok(())
    }

    /// Before the file grows to `size_bytes`. Changes memory only, but may read the map.
    fn make_tail_zero(&self, state: &mut VnodeState, size_bytes: u64) -> FsResult<()> {
        let block_bytes = state.anode()?.block_bytes();
        let valid = index_wide(state.size_bytes % block_bytes);
        if size_bytes == state.size_bytes || valid == 0 {
            return Ok(());
        }
        self.rewrite_tail(state, state.size_bytes / block_bytes, valid)
    }

    /// Raises the size of a file.
    ///
    /// CRASH: V4. What the last block stores behind the end must read as zeros before the size
    /// passes it, so a new version of that block is installed first.
    fn extend(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        size_bytes: u64,
        set: &SetAttr,
    ) -> FsResult<()> {
        loop {
            let (mut change, mut state) = self.begin_settled(vnode)?;
            check_change(caller, state.anode()?, set)?;
            self.make_tail_zero(&mut state, size_bytes)?;
            if tail_waiting(&state).is_some() {
                drop(state);
                drop(change);
                self.install_all(vnode)?;
                continue;
            }
            let mut anode = state.anode()?.clone();
            anode.size_bytes = size_bytes.max(state.size_bytes);
            self.apply_change(caller, &mut anode, set);
            self.fileset.write_anode(&self.store, &mut change, &anode)?;
            let applied = change.end();
            state.size_bytes = anode.size_bytes;
            state.anode = Some(anode);
            state.class = applied.class;
            return Ok(());
        }
    }

    /// V5: starts a change of a file of which nothing lies past the end. Called with no lock held.
    fn begin_settled<'v>(&self, vnode: &'v Arc<Vnode>) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        loop {
            let change = self.store.begin(Reservation::LARGE)?;
            let state = vnode.state.write();
            if !state.is_being_cut {
                return Ok((change, state));
            }
            drop((state, change));
            self.finish_truncate(vnode)?;
        }
    }

    /// V5: locks a file of which nothing lies past the end. Called with no lock held.
    fn settled<'v>(&self, vnode: &'v Arc<Vnode>) -> FsResult<StateGuard<'v>> {
        loop {
            let state = vnode.state.write();
            if !state.is_being_cut {
                return Ok(state);
            }
            drop(state);
            self.finish_truncate(vnode)?;
        }
    }

    /// Frees what still lies past the end of a file that is being cut. One with a name is in the
    /// orphan list for that, and is taken out.
    pub(crate) fn finish_truncate(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        loop {
            let mut change = self.store.begin(Reservation::LARGE)?;
            let mut state = vnode.state.write();
            // Nobody holds a file that is gone.
            let Some(mut anode) = state.anode.clone().filter(|_| state.is_being_cut) else {
                return Ok(());
            };
            let first = anode.size_bytes.max(state.size_bytes).div_ceil(anode.block_bytes());
            let is_done =
                self.store.truncate_blocks(&mut change, &mut anode, first, Content::Data)?;
            let mut guard = None;
            if is_done && anode.nlink > 0 {
                let fileset = guard.insert(self.fileset.lock());
                fileset.remove_orphan(&self.store, &mut change, anode.entries - 1)?;
                anode.entries = 0;
            }
            self.fileset.write_anode(&self.store, &mut change, &anode)?;
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
