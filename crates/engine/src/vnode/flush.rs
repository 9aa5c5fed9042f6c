//! From memory to the journal: installing blocks, fsync, and what is done in the background.

use std::collections::BTreeSet;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind};
use format::ids::AnodeNo;
use format::planted::{self, Planted};
use format::pointer::BlockPointer;

use super::api::Ino;
use super::unit::Span;
use super::{Files, Vnode, VnodeState};
use crate::alloc::{FEW_SEGMENTS, LOW_SEGMENTS, PROMISED_SEGMENTS};
use crate::container::{InstallStep, NewBlock};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;
use crate::segment::Block;
use crate::store::Change;

/// Most blocks that one transaction installs.
const BLOCKS_PER_INSTALL: usize = 64;
/// Allocation groups in which one transaction installs or frees, before it leaves the next block
/// to another.
const GROUPS_PER_INSTALL: usize = 8;

/// A block that can be installed: where it begins in the file, its pointer and the data write it is
/// part of.
type ReadyBlock = (u64, Arc<Block>, BlockPointer, u64);

impl Files {
    /// Installs sealed blocks of a file, as many as one transaction can. Returns whether more wait.
    pub(crate) fn install_some(&self, vnode: &Arc<Vnode>) -> FsResult<bool> {
        let change = self.store.begin(Reservation::LARGE)?;
        let mut state = vnode.state.write();
        if state.anode.is_none() {
            return Ok(false);
        }
        let ready = sealed_blocks(&state, BLOCKS_PER_INSTALL);
        if ready.is_empty() && !state.is_attr_dirty {
            return Ok(false);
        }
        self.install_ready(change, &mut state, vnode, ready)?;
        Ok(!sealed_blocks(&state, 1).is_empty())
    }

    /// Installs all that waits of a file now, whatever is written to it meanwhile: a block that is
    /// rewritten after it was sealed is sealed again, for it holds what was accepted before.
    pub(crate) fn install_all(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        let mut wanted: Option<BTreeSet<u64>> = None;
        loop {
            let change = self.store.begin(Reservation::LARGE)?;
            let mut state = vnode.state.write();
            if state.anode.is_none() {
                return Ok(());
            }
            let wanted = wanted.get_or_insert_with(|| state.pending.keys().copied().collect());
            // What waited in parts may wait as one block since.
            *wanted = wanted
                .iter()
                .filter_map(|start| state.waiting_at(*start))
                .map(|block| block.span().start)
                .collect();
            if wanted.is_empty() && !state.is_attr_dirty {
                return Ok(());
            }
            let is_under_way = |block: &Arc<Block>| block.sealed().is_some_and(is_written);
            if !state.pending.values().all(is_under_way) {
                self.segments.seal();
            }
            // V4: the last block on disk first, wanted or not.
            let tail = tail_waiting(&state).map(|(index, _)| index);
            let mut ready = sealed_blocks(&state, usize::MAX);
            ready.retain(|(index, ..)| wanted.contains(index) || tail == Some(*index));
            ready.truncate(BLOCKS_PER_INSTALL);
            for index in self.install_ready(change, &mut state, vnode, ready)? {
                wanted.remove(&index);
            }
            if wanted.is_empty() {
                return Ok(());
            }
        }
    }

    /// Installs `ready`, or as many from its front as lie in few enough groups; returns which.
    fn install_ready(
        &self,
        mut change: Change<'_>,
        state: &mut VnodeState,
        vnode: &Arc<Vnode>,
        ready: Vec<ReadyBlock>,
    ) -> FsResult<Vec<u64>> {
        let mut anode = state.anode()?.clone();
        let tail = waiting_tail(state);
        let new = |(_, block, pointer, _): &ReadyBlock| new_block(state, tail, block, pointer);
        let blocks: Vec<NewBlock> = ready.iter().map(new).collect();
        let mut step = InstallStep::new(GROUPS_PER_INSTALL);
        self.store.install_blocks(&mut change, &mut anode, &blocks, &mut step)?;
        let mut installed = Vec::with_capacity(ready.len());
        for ((index, block, _, sequence), kept) in ready.into_iter().zip(step.kept_fragments()) {
            if !planted::is(Planted::DataNotAwaited) {
                change.tx_mut().depends_on_data(sequence);
            }
            installed.push((index, block, *kept));
        }
        self.end_install(change, state, vnode, anode, &installed)?;
        Ok(installed.into_iter().map(|(index, ..)| index).collect())
    }

    /// Writes the anode with what was installed and ends the change.
    fn end_install(
        &self,
        mut change: Change<'_>,
        state: &mut VnodeState,
        vnode: &Arc<Vnode>,
        mut anode: Anode,
        installed: &[(u64, Arc<Block>, u32)],
    ) -> FsResult<crate::journal::Applied> {
        let is_all = installed.len() == state.pending.len();
        if is_all {
            anode.size_bytes = state.size_bytes;
        }
        self.fileset.write_anode(&self.store, &mut change, &anode)?;
        let applied = change.end();
        for (index, ..) in installed {
            state.pending.remove(index);
        }
        self.segments.installed(installed.iter().map(|(_, block, kept)| (block, *kept)));
        state.anode = Some(anode);
        state.class = applied.class;
        if is_all {
            state.is_attr_dirty = false;
            self.table.mark_clean(vnode.number);
        }
        Ok(applied)
    }

    /// Syncs one file; see [`super::api::FileSystem::fsync`].
    pub(crate) fn sync_file(&self, ino: Ino) -> FsResult<()> {
        self.check_alive()?;
        let vnode = self.vnode(ino)?;
        let class = match self.ride(&vnode)? {
            Some(class) => class,
            None => {
                // Once: what is written from now on is not this sync's, and must not delay it.
                self.install_all(&vnode)?;
                vnode.state.read().class
            }
        };
        if planted::is(Planted::DirectorySyncSkipped)
            && vnode.state.read().anode()?.kind == AnodeKind::Directory
        {
            return Ok(());
        }
        // A vnode that came back from disk does not know its class.
        if class == 0 { self.store.journal.commit_all() } else { self.store.journal.commit(class) }
    }

    fn check_alive(&self) -> FsResult<()> {
        self.store.journal.check_alive()
    }

    /// Puts what is not yet in the journal there, data included, if it is little. Returns the class
    /// to commit, or `None` if the data must go home first.
    fn ride(&self, vnode: &Arc<Vnode>) -> FsResult<Option<u64>> {
        let mut change = self.store.begin(Reservation::LARGE)?;
        let mut state = vnode.state.write();
        if state.anode.is_none() || !state.is_dirty() {
            return Ok(Some(state.class));
        }
        let bytes: usize =
            state.pending.values().map(|block| self.stored_bytes(block.fragments())).sum();
        let is_filling = state.pending.values().all(|block| block.is_filling());
        if bytes > self.options.ride_bytes_max || !is_filling {
            return Ok(None);
        }
        let mut anode = state.anode()?.clone();
        let (mut blocks, mut places) = (Vec::new(), BTreeSet::new());
        let tail = waiting_tail(&state);
        for block in state.pending.values() {
            // Somebody may have sealed the piece since: then it is on its way home.
            let Some((pointer, data)) = self.segments.seal_for_ride(block) else {
                return Ok(None);
            };
            blocks.push(new_block(&state, tail, block, &pointer));
            change.tx_mut().ride(pointer.place, block.ride_owner(&pointer), data);
            places.insert(pointer.place);
        }
        let mut step = InstallStep::new(usize::MAX);
        self.store.install_blocks(&mut change, &mut anode, &blocks, &mut step)?;
        if step.kept_fragments().len() < blocks.len() {
            return Ok(None);
        }
        let kept = step.kept_fragments().iter();
        let waiting = state.pending.iter().map(|(index, block)| (*index, Arc::clone(block)));
        let installed: Vec<_> =
            waiting.zip(kept).map(|((index, block), kept)| (index, block, *kept)).collect();
        let applied = self.end_install(change, &mut state, vnode, anode, &installed)?;
        if let Some(ride) = applied.ride {
            self.segments.rides_logged(&places, ride);
        }
        Ok(Some(applied.class))
    }

    /// Installs all that waits. Called with no lock held.
    pub(crate) fn install_waiting(&self) -> FsResult<()> {
        for (_, number) in self.segments.take_installable() {
            if let Some(vnode) = self.table.find(number) {
                while self.install_some(&vnode)? {}
            }
        }
        Ok(())
    }

    /// Before a write: bounds what is in memory and sees to it that there are segments to write
    /// to. Called with no lock held.
    pub(crate) fn make_room(&self) -> FsResult<()> {
        self.segments.throttle()?;
        if self.segments.has_installable() {
            self.install_waiting()?;
        }
        if self.store.alloc.free_segments(FEW_SEGMENTS)? < FEW_SEGMENTS {
            self.reclaim()?;
        }
        Ok(())
    }

    /// Does what the last writers have left to others: see
    /// [`super::api::FileSystem::catch_up`]. Called with no lock held.
    pub(crate) fn catch_up(&self) -> FsResult<()> {
        if self.segments.seal_full() { self.make_room() } else { Ok(()) }
    }

    /// Does `operation`, and if there is no space once more after a reclaim: space that waits for a
    /// checkpoint or for the cleaner may be enough. Called with no lock held.
    pub(crate) fn with_reclaim<T>(&self, operation: impl Fn() -> FsResult<T>) -> FsResult<T> {
        match operation() {
            Err(FsError::NoSpace) => {
                self.reclaim_promised()?;
                operation()
            }
            other => other,
        }
    }

    /// Makes freed space usable, however little each segment gives back: what the pool has promised
    /// is there, if only in pieces.
    pub(crate) fn reclaim_promised(&self) -> FsResult<()> {
        self.reap_doomed();
        // Each block that waits holds the map pages that it may need: what is installed does not.
        self.segments.seal();
        self.settle_space()?;
        self.clean_thoroughly(PROMISED_SEGMENTS)
    }

    fn settle_space(&self) -> FsResult<()> {
        self.segments.seal_full();
        self.install_waiting()?;
        self.store.journal.checkpoint()?;
        self.segments.tidy();
        Ok(())
    }

    /// Makes freed space usable: a checkpoint, and the cleaner until there are segments enough or
    /// nothing is left to gain.
    fn reclaim(&self) -> FsResult<()> {
        self.settle_space()?;
        self.clean_step(LOW_SEGMENTS)
    }

    /// Puts the changes of files that have been dirty since `since_ns` into the journal.
    pub(crate) fn flush_dirty(&self, since_ns: u64) -> FsResult<()> {
        let aged: BTreeSet<AnodeNo> = self.table.dirty_since(since_ns);
        if aged.is_empty() && !self.segments.has_installable() {
            return Ok(());
        }
        self.segments.seal();
        self.install_waiting()?;
        for number in aged {
            if let Some(vnode) = self.table.find(number) {
                self.install_all(&vnode)?;
            }
        }
        Ok(())
    }

    /// Makes everything accepted so far durable.
    pub(crate) fn sync_all(&self) -> FsResult<()> {
        self.check_alive()?;
        self.reap_doomed();
        self.flush_dirty(u64::MAX)?;
        self.store.journal.commit_all()
    }

    /// Background work that is due: aged changes are committed, the log and the dirty pages are
    /// kept short, segments are cleaned. A front end calls it a few times a second.
    pub(crate) fn tick(&self) -> FsResult<()> {
        self.check_alive()?;
        let now_ns = self.store.clock.monotonic_ns();
        let aged_ns = now_ns.saturating_sub(self.options.commit_interval_ns);
        self.note_cleaner_counts(now_ns);
        self.segments.seal_full();
        self.segments.tidy();
        self.reap_doomed();
        if !planted::is(Planted::AgedNotCommitted) {
            self.flush_dirty(aged_ns)?;
            self.store.journal.commit_aged(aged_ns)?;
        }
        if self.store.journal.wants_checkpoint() {
            self.store.journal.checkpoint()?;
        }
        if self.store.alloc.free_segments(2 * LOW_SEGMENTS)? < 2 * LOW_SEGMENTS {
            self.reclaim()?;
        }
        Ok(())
    }
}

/// Returns what installing `block` does.
///
/// CRASH: V4. One that lies before the last block on disk is installed without it, but leaves it to
/// `tail`, the new version of that one, if it waits, to raise the size.
fn new_block(
    state: &VnodeState,
    tail: Option<&Arc<Block>>,
    block: &Block,
    pointer: &BlockPointer,
) -> NewBlock {
    let Span { start, shift } = block.span();
    let mut size_bytes = size_reached(state, block);
    if let Some(tail) = tail.filter(|tail| start < tail.span().start) {
        tail.set_file_bytes(size_bytes.max(tail.file_bytes()));
        size_bytes = 0;
    }
    NewBlock { start, shift, pointer: *pointer, size_bytes }
}

/// V3: returns the size of a file on disk once `block` is in its map: one that some write has left,
/// and one whose blocks are there.
fn size_reached(state: &VnodeState, block: &Block) -> u64 {
    if planted::is(Planted::SizePastWrites) {
        return block.span().end();
    }
    state.size_bytes.min(block.file_bytes())
}

/// Returns where the last block of the file on disk begins if a new version of it waits, and
/// whether that is on its way to the disk.
pub(crate) fn tail_waiting(state: &VnodeState) -> Option<(u64, bool)> {
    let tail = waiting_tail(state)?;
    Some((tail.span().start, tail.sealed().is_some_and(is_written)))
}

/// Returns the new version of the last block of the file on disk, if one waits.
fn waiting_tail(state: &VnodeState) -> Option<&Arc<Block>> {
    let end = state.anode.as_ref()?.size_bytes;
    let block = state.waiting_at(end).filter(|_| !planted::is(Planted::CutOffBytesInstalled))?;
    (block.span().start < end).then_some(block)
}

fn is_written((_, sequence): (BlockPointer, u64)) -> bool {
    sequence != 0
}

/// Returns pending blocks whose data write is under way, with their pointers.
///
/// V4: none behind the last block of the file on disk while that one waits: once the size on disk
/// passes its end, what it stores behind the end must read as zeros, and only its new version does.
fn sealed_blocks(state: &VnodeState, limit: usize) -> Vec<ReadyBlock> {
    let last = tail_waiting(state).map_or(
        u64::MAX,
        |(index, is_sealed)| {
            if is_sealed { u64::MAX } else { index }
        },
    );
    let ready = state.pending.range(..=last).filter_map(|(index, block)| {
        let (pointer, sequence) = block.sealed().filter(|sealed| is_written(*sealed))?;
        Some((*index, Arc::clone(block), pointer, sequence))
    });
    ready.take(limit).collect()
}
