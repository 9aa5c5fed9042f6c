//! From memory to the journal: installing blocks, fsync, and what is done in the background.

use std::collections::BTreeSet;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind};
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::map::ROOT_POINTERS;
use format::page::{PageKind, PageOwner};
use format::pointer::BlockPointer;
use runtime::planted::{self, Planted};

use super::api::{Caller, Ino};
use super::unit::Span;
use super::{Core, Files, Vnode, VnodeState};
use crate::alloc::Urgency;
use crate::container::{InstallStep, NewBlock};
use crate::convert::index_wide;
use crate::error::{Completion, FsError, FsResult};
use crate::journal::{Applied, Reservation};
use crate::segment::Block;
use crate::store::{Change, Pot};
use runtime::sync::RwLockWriteGuard;

/// Most blocks that one transaction installs.
const BLOCKS_PER_INSTALL: usize = 64;
/// Allocation groups in which one transaction installs or frees, before it leaves the next block
/// to another.
const GROUPS_PER_INSTALL: usize = 8;

/// A block that can be installed: where it begins in the file, its pointer and the data write it is
/// part of.
type ReadyBlock = (u64, Arc<Block>, BlockPointer, u64);

/// Most files of which one transaction installs blocks: each has a page of inodes of its own at
/// worst.
const FILES_PER_INSTALL: usize = 32;
/// The same where users, groups and projects are counted: each file may change three pages more.
pub(super) const FILES_COUNTED_PER_CHANGE: usize = 8;

/// How many files were looked at, and which of them are left to others.
type Looked<'v> = (usize, Vec<&'v Arc<Vnode>>);

/// Where the changes come from that install what waits.
pub(super) enum Changes<'p, 's> {
    /// From the store: each waits for room, and enters the gate.
    Waiting,
    /// From a pot, for whoever keeps the gate closed.
    Pot(&'p mut Pot<'s>),
}

impl<'s> Changes<'_, 's> {
    /// Starts a change of the fileset that `vnode` is in; `None`: the pot is empty.
    fn begin<'c>(&mut self, core: &'c Core, vnode: &Vnode) -> FsResult<Option<Change<'c>>>
    where
        's: 'c,
    {
        match self {
            Changes::Waiting => core.begin_of(vnode, Reservation::LARGE).map(Some),
            Changes::Pot(pot) => {
                Ok(pot.begin(Reservation::LARGE, core.fileset_of(vnode).gate.shared_epoch()))
            }
        }
    }

    /// Copies a page that clones hold too, before it is changed. Returns whether it is done: a pot
    /// may be empty before.
    fn unshare(
        &mut self,
        core: &Core,
        vnode: &Vnode,
        page: (PageKind, PageOwner),
    ) -> FsResult<bool> {
        let fileset = core.fileset_of(vnode);
        match self {
            Changes::Waiting => core.unshare(fileset, page).map(|()| true),
            Changes::Pot(pot) => {
                let change = pot.begin(Reservation::LARGE, Epoch(0));
                change.map_or(Ok(false), |change| {
                    core.unshare_alone(fileset, change, page).map(|()| true)
                })
            }
        }
    }

    /// Locks a file for whoever holds others: if it is free, or if none but readers can hold it,
    /// who lock files by rising number as he does.
    fn lock<'v>(&self, vnode: &'v Vnode) -> Option<RwLockWriteGuard<'v, VnodeState>> {
        match self {
            Changes::Waiting => vnode.state.try_write(),
            Changes::Pot(_) => Some(vnode.state.write()),
        }
    }
}

/// Where the journal has what was done to a file.
enum Logged {
    /// It need not be committed.
    Nothing,
    /// In a class that nobody knows.
    Somewhere,
    /// In this class, or in what it is part of by now.
    In(u64),
}

/// What was entered in the map of a file.
struct Installed {
    /// The anode as it is then.
    anode: Anode,
    /// Where each block begins, the block, and how many fragments of it the map leads to.
    blocks: Vec<(u64, Arc<Block>, u32)>,
    /// Whether nothing of the file waits any more.
    is_all: bool,
}

impl Core {
    /// Installs sealed blocks of a file, as many as one transaction can. Returns whether more wait.
    pub(crate) fn install_some(&self, vnode: &Arc<Vnode>) -> FsResult<bool> {
        self.with_unsharing(self.fileset_of(vnode), Urgency::System, || {
            let change = self.begin_of(vnode, Reservation::LARGE)?;
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
        })
    }

    /// Installs all that waits of a file now, whatever is written to it meanwhile: a block that is
    /// rewritten after it was sealed is sealed again, for it holds what was accepted before.
    pub(crate) fn install_all(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        self.install_all_by(vnode, &mut Changes::Waiting).map(|_| ())
    }

    /// As [`Core::install_all`]. Returns whether it is done: a pot may be empty before.
    fn install_all_by(&self, vnode: &Arc<Vnode>, changes: &mut Changes<'_, '_>) -> FsResult<bool> {
        self.install_wanted(vnode, changes).inspect_err(|error| note_not_installed(vnode, error))
    }

    fn install_wanted(&self, vnode: &Arc<Vnode>, changes: &mut Changes<'_, '_>) -> FsResult<bool> {
        let mut wanted: Option<BTreeSet<u64>> = None;
        loop {
            let Some(change) = changes.begin(self, vnode)? else { return Ok(false) };
            let mut state = vnode.state.write();
            if state.anode.is_none() {
                return Ok(true);
            }
            let wanted = wanted.get_or_insert_with(|| state.pending.keys().copied().collect());
            // What waited in parts may wait as one block since.
            *wanted = wanted
                .iter()
                .filter_map(|start| state.waiting_at(*start))
                .map(|block| block.span().start)
                .collect();
            if wanted.is_empty() && !state.is_attr_dirty {
                return Ok(true);
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
            let installed = match self.install_ready(change, &mut state, vnode, ready) {
                Err(FsError::Shared { kind, owner }) => {
                    drop(state);
                    if !changes.unshare(self, vnode, (kind, owner))? {
                        return Ok(false);
                    }
                    continue;
                }
                installed => installed?,
            };
            for index in installed {
                wanted.remove(&index);
            }
            if wanted.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Installs all that waits of the files of the fileset in `slot`. Returns whether it is done: a
    /// pot may be empty before.
    pub(super) fn install_dirty(&self, slot: u32, changes: &mut Changes<'_, '_>) -> FsResult<bool> {
        let dirty = self.table.dirty_of(slot).into_iter();
        let dirty: Vec<_> = dirty.filter_map(|ino| self.table.find(ino)).collect();
        let mut rest = &dirty[..];
        while !rest.is_empty() {
            let Some((count, left)) = self.install_small(rest, changes)? else { return Ok(false) };
            for vnode in left {
                if vnode.state.read().is_dirty() && !self.install_all_by(vnode, changes)? {
                    return Ok(false);
                }
            }
            rest = &rest[count..];
        }
        Ok(true)
    }

    /// Installs `ready`, or as many from its front as lie in few enough groups; returns which.
    fn install_ready(
        &self,
        mut change: Change<'_>,
        state: &mut VnodeState,
        vnode: &Arc<Vnode>,
        ready: Vec<ReadyBlock>,
    ) -> FsResult<Vec<u64>> {
        let mut step = InstallStep::new(GROUPS_PER_INSTALL);
        let installed = self.enter_ready(&mut change, (vnode, state), ready, &mut step)?;
        step.end(&mut change)?;
        let starts = installed.blocks.iter().map(|(start, ..)| *start).collect();
        let applied = change.end();
        self.settle_installed(state, vnode, installed, applied);
        Ok(starts)
    }

    /// Enters `ready` in the map of a file, or as many from its front as `step` may.
    fn enter_ready(
        &self,
        change: &mut Change<'_>,
        (vnode, state): (&Vnode, &VnodeState),
        ready: Vec<ReadyBlock>,
        step: &mut InstallStep,
    ) -> FsResult<Installed> {
        let mut anode = state.anode()?.clone();
        let tail = waiting_tail(state);
        let new = |(_, block, pointer, _): &ReadyBlock| new_block(state, tail, block, pointer);
        let new: Vec<NewBlock> = ready.iter().map(new).collect();
        let before = step.kept_fragments().len();
        self.store.install_blocks(change, &mut anode, &new, step)?;
        let mut blocks = Vec::with_capacity(ready.len());
        for ((start, block, _, sequence), kept) in
            ready.into_iter().zip(&step.kept_fragments()[before..])
        {
            if !planted::is(Planted::DataNotAwaited) {
                change.tx_mut().depends_on_data(sequence);
            }
            blocks.push((start, block, *kept));
        }
        self.write_installed(change, (vnode, state), anode, blocks)
    }

    /// Writes the anode of a file in whose map `blocks` were entered.
    fn write_installed(
        &self,
        change: &mut Change<'_>,
        (vnode, state): (&Vnode, &VnodeState),
        mut anode: Anode,
        blocks: Vec<(u64, Arc<Block>, u32)>,
    ) -> FsResult<Installed> {
        let is_all = blocks.len() == state.pending.len();
        if is_all {
            anode.size_bytes = state.size_bytes;
        }
        let anodes = &self.fileset_of(vnode).anodes;
        anodes.write_anode(&self.store, change, &anode)?;
        let accepted = blocks.iter().map(|(_, block, _)| block.accepted_fragments()).sum();
        change.note_usage(&anodes.usage, 0, accepted);
        for (_, block, _) in &blocks {
            if let Some(owners) = block.owners() {
                change.note_waited(&anodes.usage, owners, block.accepted_fragments());
            }
        }
        Ok(Installed { anode, blocks, is_all })
    }

    /// The change that installed these blocks has ended: they wait no longer.
    fn settle_installed(
        &self,
        state: &mut VnodeState,
        vnode: &Arc<Vnode>,
        Installed { anode, blocks, is_all }: Installed,
        applied: Applied,
    ) {
        for (start, ..) in &blocks {
            state.pending.remove(start);
        }
        self.segments.installed(blocks.iter().map(|(_, block, kept)| (block, *kept)));
        state.anode = Some(anode);
        state.class = applied.class;
        state.not_installed = None;
        if is_all {
            state.is_attr_dirty = false;
            self.table.mark_clean(vnode.ino);
        }
    }

    fn check_alive(&self) -> FsResult<()> {
        self.store.journal.check_alive()
    }

    /// Puts what is not yet in the journal there, data included, if it is little. Returns the class
    /// to commit, or `None` if the data must go home first.
    fn install_in_log(&self, vnode: &Arc<Vnode>) -> FsResult<Option<u64>> {
        let mut change = self.begin_of(vnode, Reservation::LARGE)?;
        let mut state = vnode.state.write();
        if state.anode.is_none() || !state.is_dirty() {
            return Ok(Some(state.class));
        }
        let bytes: usize =
            state.pending.values().map(|block| self.stored_bytes(block.fragments())).sum();
        let is_filling = state.pending.values().all(|block| block.is_filling());
        if bytes > self.options.log_data_bytes_max || !is_filling {
            return Ok(None);
        }
        let mut anode = state.anode()?.clone();
        let (mut blocks, mut places) = (Vec::new(), BTreeSet::new());
        let tail = waiting_tail(&state);
        for block in state.pending.values() {
            // Somebody may have sealed the partial segment since: then it is on its way home.
            let Some((pointer, data)) = self.segments.seal_for_log(block) else {
                return Ok(None);
            };
            blocks.push(new_block(&state, tail, block, &pointer));
            change.tx_mut().add_log_data(pointer.place, block.log_data_owner(&pointer), data);
            places.insert(pointer.place);
        }
        let mut step = InstallStep::new(usize::MAX);
        self.store.install_blocks(&mut change, &mut anode, &blocks, &mut step)?;
        if step.kept_fragments().len() < blocks.len() {
            return Ok(None);
        }
        let kept = step.kept_fragments().iter();
        let waiting = state.pending.iter().map(|(start, block)| (*start, Arc::clone(block)));
        let blocks = waiting.zip(kept).map(|((start, block), kept)| (start, block, *kept));
        let installed =
            self.write_installed(&mut change, (vnode, &state), anode, blocks.collect())?;
        step.end(&mut change)?;
        let applied = change.end();
        self.settle_installed(&mut state, vnode, installed, applied);
        if let Some(id) = applied.log_data {
            self.segments.note_logged(&places, id);
        }
        Ok(Some(applied.class))
    }

    /// Installs all that waits. Called with no lock held. A file of which that fails keeps no other
    /// waiting: it stays dirty, and [`Core::flush_dirty`] and whoever syncs it tell of it.
    pub(crate) fn install_waiting(&self) -> FsResult<()> {
        let waiting = self.segments.take_installable().into_iter();
        // Of those of a family it is one's, and it costs a look to ask the others.
        let find = |(family, number): (FilesetId, AnodeNo)| {
            let opened = self.filesets.opened_of(family);
            opened.filter_map(move |fileset| self.table.find(fileset.ino(number)))
        };
        let mut waiting: Vec<_> = waiting.flat_map(find).collect();
        // A change is of one fileset.
        waiting.sort_by_key(|vnode| vnode.ino.slot());
        for of_one in waiting.chunk_by(|one, other| one.ino.slot() == other.ino.slot()) {
            let mut rest = of_one;
            while !rest.is_empty() {
                let installed = self.install_small(rest, &mut Changes::Waiting)?;
                let Some((count, left)) = installed else { break };
                for vnode in left {
                    if let Err(error) = self.install_sealed(vnode) {
                        self.check_alive()?;
                        note_not_installed(vnode, &error);
                        let ino = vnode.ino.0;
                        tracing::debug!(%error, ino, "what waits of a file goes on waiting");
                    }
                }
                rest = &rest[count..];
            }
        }
        Ok(())
    }

    fn install_sealed(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        while self.install_some(vnode)? {}
        Ok(())
    }

    /// Installs what waits of small files of one fileset in one transaction, of as many from the
    /// front of `vnodes` as it may: the inodes of neighbours share pages, and their blocks lie side
    /// by side. Returns how many it looked at, and which of them are left to others: larger files,
    /// and those that somebody holds, for whom nobody is to wait who holds the rest. `None`: the
    /// pot is empty.
    fn install_small<'v>(
        &self,
        vnodes: &'v [Arc<Vnode>],
        changes: &mut Changes<'_, '_>,
    ) -> FsResult<Option<Looked<'v>>> {
        let is_counted = |vnode: &Arc<Vnode>| self.fileset_of(vnode).anodes.quotas.is_on();
        let most = match vnodes.first() {
            Some(first) if is_counted(first) => FILES_COUNTED_PER_CHANGE,
            _ => FILES_PER_INSTALL,
        };
        let vnodes = &vnodes[..vnodes.len().min(most)];
        let one_by_one = || Ok(Some((vnodes.len(), vnodes.iter().collect())));
        let [first, _, ..] = vnodes else { return one_by_one() };
        let Some(mut change) = changes.begin(self, first)? else { return Ok(None) };
        let mut step = InstallStep::new(GROUPS_PER_INSTALL);
        let (mut count, mut left, mut entered) = (0, Vec::new(), Vec::with_capacity(vnodes.len()));
        for vnode in vnodes {
            let locked = changes.lock(vnode);
            let small = locked.and_then(|state| Some((waiting_in_root(&state)?, state)));
            if let Some((ready, state)) = small {
                let blocks = step.kept_fragments().len() + ready.len();
                if step.is_over() || blocks > BLOCKS_PER_INSTALL {
                    break;
                }
                match self.enter_ready(&mut change, (vnode, &state), ready, &mut step) {
                    Ok(installed) => entered.push((vnode, state, installed)),
                    // Each by itself tells whose error it is.
                    Err(_) => return one_by_one(),
                }
            } else {
                left.push(vnode);
            }
            count += 1;
        }
        if step.end(&mut change).is_err() {
            return one_by_one();
        }
        let applied = change.end();
        for (vnode, mut state, installed) in entered {
            self.settle_installed(&mut state, vnode, installed, applied);
            if !sealed_blocks(&state, 1).is_empty() {
                left.push(vnode);
            }
        }
        Ok(Some((count, left)))
    }

    /// Whether a file has changes that are not in the journal, from before `since_ns`.
    pub(crate) fn is_dirty_since(&self, since_ns: u64) -> bool {
        !self.table.dirty_since(since_ns).is_empty()
    }

    /// Puts the changes of files that have been dirty since `since_ns` into the journal. A file of
    /// which that fails keeps no other: it stays dirty, and has its turn again when it has aged
    /// once more.
    ///
    /// # Errors
    ///
    /// What the first of those said that could not be flushed when they had their turn last.
    pub(crate) fn flush_dirty(&self, since_ns: u64) -> FsResult<()> {
        let aged: BTreeSet<Ino> = self.table.dirty_since(since_ns);
        if !aged.is_empty() || self.segments.has_installable() {
            self.segments.seal();
            self.install_waiting()?;
        }
        for ino in aged {
            let dirty = self.table.find(ino).filter(|vnode| vnode.state.read().is_dirty());
            let flushed = dirty.map_or(Ok(()), |vnode| self.install_all(&vnode));
            match self.named(ino, b"", flushed) {
                Ok(()) => self.table.note_flushed(ino),
                Err(error) => {
                    self.check_alive()?;
                    self.table.put_off(ino, self.store.clock.monotonic_ns(), error);
                }
            }
        }
        self.table.flush_failure().map_or(Ok(()), Err)
    }

    /// Makes everything accepted so far durable: all that can be, where some of it cannot.
    pub(crate) fn sync_all(&self) -> FsResult<()> {
        self.check_alive()?;
        self.reap_all_doomed();
        let flushed = self.flush_dirty(u64::MAX);
        self.store.journal.commit_all().and(flushed)
    }
}

impl Files<'_> {
    /// Syncs one file; see [`super::api::FileSystem::fsync`].
    pub(crate) fn sync_file(&self, caller: &Caller, ino: Ino) -> FsResult<()> {
        match self.log_file(caller, ino)? {
            Logged::Nothing => Ok(()),
            Logged::Somewhere => self.store.journal.commit_all(),
            Logged::In(class) => self.store.journal.commit(class),
        }
    }

    /// Syncs one file; see [`super::api::FileSystem::commit_then`].
    pub(crate) fn sync_file_then(&self, caller: &Caller, ino: Ino, completion: Completion) {
        match self.log_file(caller, ino) {
            Ok(Logged::In(class)) => self.store.journal.commit_then(class, completion),
            Ok(Logged::Somewhere) => self.store.journal.commit_all_then(completion),
            Ok(Logged::Nothing) => completion(Ok(())),
            Err(error) => completion(Err(error)),
        }
    }

    /// Puts all of a file in the journal. Returns what must be committed then.
    fn log_file(&self, caller: &Caller, ino: Ino) -> FsResult<Logged> {
        self.check_alive()?;
        let vnode = self.vnode(ino)?;
        self.check_open(caller, vnode.state.read().anode()?)?;
        let in_log = match self.install_in_log(&vnode) {
            // What is sealed by now goes home first.
            Err(FsError::Shared { .. }) => None,
            class => class?,
        };
        let class = match in_log {
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
            return Ok(Logged::Nothing);
        }
        // A vnode that came back from disk does not know its class.
        Ok(if class == 0 { Logged::Somewhere } else { Logged::In(class) })
    }
}

impl Core {
    /// Syncs several files at once; see [`super::api::FileSystem::commit_each`].
    pub(crate) fn sync_each_then(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        let mut classes = Vec::with_capacity(files.len());
        for (ino, completion) in files {
            // Nothing of a clone waits. A change would, inside of its gate, and whoever deletes the
            // clone waits until nobody is.
            let logged = if ino.is_clones_directory() {
                Ok(Logged::Nothing)
            } else {
                self.enter(ino).and_then(|files| {
                    let waits = !files.is_of_clone() || planted::is(Planted::CloneSyncChanges);
                    if waits { files.log_file(caller, ino) } else { Ok(Logged::Nothing) }
                })
            };
            match logged {
                Ok(Logged::In(class)) => classes.push((Some(class), completion)),
                Ok(Logged::Somewhere) => classes.push((None, completion)),
                Ok(Logged::Nothing) => completion(Ok(())),
                Err(error) => completion(Err(error)),
            }
        }
        self.store.journal.commit_each_then(classes);
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

/// Returns the blocks of a file that can be installed, if nothing but these or its attributes waits
/// and its map is in its anode and stays there.
fn waiting_in_root(state: &VnodeState) -> Option<Vec<ReadyBlock>> {
    let anode = state.anode.as_ref().filter(|anode| anode.height == 0)?;
    let ready = sealed_blocks(state, index_wide(ROOT_POINTERS));
    let is_in_root = |(start, block, ..): &ReadyBlock| {
        block.span().shift == anode.block_shift && start >> anode.block_shift < ROOT_POINTERS
    };
    let is_some_done =
        if state.pending.is_empty() { state.is_attr_dirty } else { !ready.is_empty() };
    (is_some_done && ready.iter().all(is_in_root)).then_some(ready)
}

/// Until something of the file is installed, [`super::PENDING_BYTES_MAX`] of it may wait.
fn note_not_installed(vnode: &Vnode, error: &FsError) {
    vnode.state.write().not_installed = Some(Box::new(error.clone()));
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
