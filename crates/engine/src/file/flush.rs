//! Map updates for dirty blocks, fsync, and background flushes.

use crate::file::Writeback;
use std::collections::BTreeSet;
use std::sync::Arc;

use format::anode::Anode;
use format::ids::{AnodeNo, Epoch, FilesetId};
use format::map::ROOT_POINTERS;
use format::page::{PageKind, PageOwner};
use format::pointer::BlockPointer;
use runtime::{if_planted, planted};

use crate::alloc::Urgency;
use crate::api::{Caller, Ino};
use crate::container::{MapUpdateStep, NewBlock};
use crate::convert::index_wide;
use crate::error::{Completion, FsError, FsResult};
use crate::file::unit::BlockSpan;
use crate::file::{Core, Files, Vnode, VnodeState};
use crate::journal::{AppliedTx, LogCredits};
use crate::segment::Block;
use crate::store::{Change, ReservedLogCredits};
use runtime::sync::RwLockWriteGuard;

const BLOCKS_PER_INSTALL: usize = 64;
const GROUPS_PER_INSTALL: usize = 8;

/// A sealed block: start in the file, pointer, sequence number of its data write.
type ReadyBlock = (u64, Arc<Block>, BlockPointer, u64);

/// Most files in a transaction, since each may have an inode page of its own.
const FILES_PER_INSTALL: usize = 32;
/// Most files in a transaction with accounting, since each may change three more pages.
pub(super) const FILES_COUNTED_PER_CHANGE: usize = 8;

type VisitedFiles<'v> = (usize, Vec<&'v Arc<Vnode>>);

pub(crate) enum ChangeSource<'p, 's> {
    /// The store: a change may wait for room, and enters the gate.
    Waiting,
    /// Reserved log credits, for a caller that has closed the gate and must not wait for the log.
    Pot(&'p mut ReservedLogCredits<'s>),
}

impl<'s> ChangeSource<'_, 's> {
    /// Starts a change of the vnode's fileset; `None` if the reserved log credits are used up.
    fn begin<'c>(&mut self, core: &'c Core, vnode: &Vnode) -> FsResult<Option<Change<'c>>>
    where
        's: 'c,
    {
        match self {
            ChangeSource::Waiting => core.begin_of(vnode, LogCredits::LARGE).map(Some),
            ChangeSource::Pot(pot) => {
                Ok(pot.begin(LogCredits::LARGE, core.fileset_of(vnode).gate.shared_epoch()))
            }
        }
    }

    /// Copies a shared page before a change. Returns `false` if the reserved log credits are used
    /// up.
    fn unshare(
        &mut self,
        core: &Core,
        vnode: &Vnode,
        page: (PageKind, PageOwner),
    ) -> FsResult<bool> {
        let fileset = core.fileset_of(vnode);
        match self {
            ChangeSource::Waiting => core.unshare(fileset, page).map(|()| true),
            ChangeSource::Pot(pot) => {
                let change = pot.begin(LogCredits::LARGE, Epoch(0));
                change.map_or(Ok(false), |change| {
                    core.unshare_alone(fileset, change, page).map(|()| true)
                })
            }
        }
    }

    /// Locks a file while other files are locked. Only tries, since the order may be wrong, but
    /// waits behind a closed gate: then only readers lock files, by rising number too.
    fn lock<'v>(&self, vnode: &'v Vnode) -> Option<RwLockWriteGuard<'v, VnodeState>> {
        match self {
            ChangeSource::Waiting => vnode.state.try_write(),
            ChangeSource::Pot(_) => Some(vnode.state.write()),
        }
    }
}

enum FileCommit {
    Nothing,
    Somewhere,
    In(u64),
}

struct MapUpdate {
    anode: Anode,
    /// Start of each block, the block, and its fragments that the map uses.
    blocks: Vec<(u64, Arc<Block>, u32)>,
    is_all: bool,
}

impl Writeback<'_> {
    /// Maps sealed blocks of a file, as far as one transaction permits. Returns whether there are
    /// more.
    pub(crate) fn install_some(&self, vnode: &Arc<Vnode>) -> FsResult<bool> {
        self.with_unsharing(self.fileset_of(vnode), Urgency::System, || {
            let change = self.begin_of(vnode, LogCredits::LARGE)?;
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

    /// Maps all blocks that are dirty now. A block rewritten after its seal is sealed again, since
    /// it holds earlier data too.
    pub(crate) fn install_all(&self, vnode: &Arc<Vnode>) -> FsResult<()> {
        self.install_all_by(vnode, &mut ChangeSource::Waiting).map(|_| ())
    }

    /// Performs [`Writeback::install_all`] with `changes`. Returns `false` if their log credits are
    /// used up.
    fn install_all_by(
        &self,
        vnode: &Arc<Vnode>,
        changes: &mut ChangeSource<'_, '_>,
    ) -> FsResult<bool> {
        self.install_wanted(vnode, changes).inspect_err(|error| note_not_installed(vnode, error))
    }

    fn install_wanted(
        &self,
        vnode: &Arc<Vnode>,
        changes: &mut ChangeSource<'_, '_>,
    ) -> FsResult<bool> {
        let mut wanted: Option<BTreeSet<u64>> = None;
        loop {
            let Some(change) = changes.begin(self, vnode)? else { return Ok(false) };
            let mut state = vnode.state.write();
            if state.anode.is_none() {
                return Ok(true);
            }
            let wanted = wanted.get_or_insert_with(|| state.pending.keys().copied().collect());
            // Several dirty blocks may have been merged into one since.
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
            // V4: the last block on disk is mapped first, even if not requested.
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

    /// Maps all dirty blocks of the fileset in `slot`. Returns `false` if the reserved log credits
    /// are used up.
    pub(crate) fn install_dirty(
        &self,
        slot: u32,
        changes: &mut ChangeSource<'_, '_>,
    ) -> FsResult<bool> {
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

    /// Maps a prefix of `ready` that touches few enough allocation groups. Returns the starts of
    /// these blocks.
    fn install_ready(
        &self,
        mut change: Change<'_>,
        state: &mut VnodeState,
        vnode: &Arc<Vnode>,
        ready: Vec<ReadyBlock>,
    ) -> FsResult<Vec<u64>> {
        let mut step = MapUpdateStep::new(GROUPS_PER_INSTALL);
        let installed = self.enter_ready(&mut change, (vnode, state), ready, &mut step)?;
        step.end(&mut change)?;
        let starts = installed.blocks.iter().map(|(start, ..)| *start).collect();
        let applied = change.end();
        self.settle_installed(state, vnode, installed, applied);
        Ok(starts)
    }

    fn enter_ready(
        &self,
        change: &mut Change<'_>,
        (vnode, state): (&Vnode, &VnodeState),
        ready: Vec<ReadyBlock>,
        step: &mut MapUpdateStep,
    ) -> FsResult<MapUpdate> {
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
            change.tx_mut().depends_on_data(sequence);
            blocks.push((start, block, *kept));
        }
        self.write_installed(change, (vnode, state), anode, blocks)
    }

    fn write_installed(
        &self,
        change: &mut Change<'_>,
        (vnode, state): (&Vnode, &VnodeState),
        mut anode: Anode,
        blocks: Vec<(u64, Arc<Block>, u32)>,
    ) -> FsResult<MapUpdate> {
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
        Ok(MapUpdate { anode, blocks, is_all })
    }

    fn settle_installed(
        &self,
        state: &mut VnodeState,
        vnode: &Arc<Vnode>,
        MapUpdate { anode, blocks, is_all }: MapUpdate,
        applied: AppliedTx,
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

    /// Writes a small dirty file into the journal, data included. Returns the class to commit;
    /// `None` if the data must go to its segment first.
    fn install_in_log(&self, vnode: &Arc<Vnode>) -> FsResult<Option<u64>> {
        let mut change = self.begin_of(vnode, LogCredits::LARGE)?;
        let mut state = vnode.state.write();
        if state.anode.is_none() || !state.is_dirty() {
            return Ok(Some(state.class));
        }
        let bytes: usize =
            state.pending.values().map(|block| self.reader().stored_bytes(block.fragments())).sum();
        let is_filling = state.pending.values().all(|block| block.is_filling());
        if bytes > self.options.log_data_bytes_max || !is_filling {
            return Ok(None);
        }
        let mut anode = state.anode()?.clone();
        let (mut blocks, mut places) = (Vec::new(), BTreeSet::new());
        let tail = waiting_tail(&state);
        for block in state.pending.values() {
            // The block is sealed, and its write under way.
            let Some((pointer, data)) = self.segments.seal_for_log(block) else {
                return Ok(None);
            };
            blocks.push(new_block(&state, tail, block, &pointer));
            change.tx_mut().add_log_data(pointer.place, block.log_data_owner(&pointer), data);
            places.insert(pointer.place);
        }
        let mut step = MapUpdateStep::new(usize::MAX);
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

    /// Maps all sealed blocks. Called with no lock held. A failing file stays dirty, for
    /// [`Writeback::flush_dirty`] or a sync to report, and does not affect others.
    pub(crate) fn install_waiting(&self) -> FsResult<()> {
        let waiting = self.segments.take_installable().into_iter();
        // A block names only the family, so each of its open filesets is searched.
        let find = |(family, number): (FilesetId, AnodeNo)| {
            let opened = self.filesets.opened_of(family);
            opened.filter_map(move |fileset| self.table.find(fileset.ino(number)))
        };
        let mut waiting: Vec<_> = waiting.flat_map(find).collect();
        waiting.sort_by_key(|vnode| vnode.ino.slot());
        for of_one in waiting.chunk_by(|one, other| one.ino.slot() == other.ino.slot()) {
            let mut rest = of_one;
            while !rest.is_empty() {
                let installed = self.install_small(rest, &mut ChangeSource::Waiting)?;
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

    /// Maps small files of one fileset together: neighbouring inodes share pages, and their blocks
    /// are adjacent. Visits a prefix of `vnodes`. Returns its length and the skipped files: those
    /// too large, and locked ones, since other locks are held. `None` if the reserved log credits
    /// are used up.
    fn install_small<'v>(
        &self,
        vnodes: &'v [Arc<Vnode>],
        changes: &mut ChangeSource<'_, '_>,
    ) -> FsResult<Option<VisitedFiles<'v>>> {
        let is_counted = |vnode: &Arc<Vnode>| self.fileset_of(vnode).anodes.quotas.is_on();
        let most = match vnodes.first() {
            Some(first) if is_counted(first) => FILES_COUNTED_PER_CHANGE,
            _ => FILES_PER_INSTALL,
        };
        let vnodes = &vnodes[..vnodes.len().min(most)];
        let one_by_one = || Ok(Some((vnodes.len(), vnodes.iter().collect())));
        let [first, _, ..] = vnodes else { return one_by_one() };
        let Some(mut change) = changes.begin(self, first)? else { return Ok(None) };
        let mut step = MapUpdateStep::new(GROUPS_PER_INSTALL);
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
                    // The files are retried one by one, to find the one with the error.
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

    pub(crate) fn is_dirty_since(&self, since_ns: u64) -> bool {
        !self.table.dirty_since(since_ns).is_empty()
    }

    /// Flushes files dirty since `since_ns` or earlier into the journal. A failing file stays dirty
    /// until it has aged again, and does not affect others.
    ///
    /// # Errors
    ///
    /// The error of the first file whose last flush failed: report it, the retry is automatic.
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

    /// Makes everything durable, or after an error as much as possible.
    pub(crate) fn sync_all(&self) -> FsResult<()> {
        self.check_alive()?;
        self.reap_all_doomed();
        let flushed = self.flush_dirty(u64::MAX);
        self.store.journal.commit_all().and(flushed)
    }
}

impl Files<'_> {
    pub(crate) fn sync_file(&self, caller: &Caller, ino: Ino) -> FsResult<()> {
        match self.log_file(caller, ino)? {
            FileCommit::Nothing => Ok(()),
            FileCommit::Somewhere => self.store.journal.commit_all(),
            FileCommit::In(class) => self.store.journal.commit(class),
        }
    }

    pub(crate) fn sync_file_then(&self, caller: &Caller, ino: Ino, completion: Completion) {
        match self.log_file(caller, ino) {
            Ok(FileCommit::In(class)) => self.store.journal.commit_then(class, completion),
            Ok(FileCommit::Somewhere) => self.store.journal.commit_all_then(completion),
            Ok(FileCommit::Nothing) => completion(Ok(())),
            Err(error) => completion(Err(error)),
        }
    }

    /// Puts a file into the journal. Returns what to commit.
    fn log_file(&self, caller: &Caller, ino: Ino) -> FsResult<FileCommit> {
        self.writeback().check_alive()?;
        let vnode = self.vnode(ino)?;
        self.check_open(caller, vnode.state.read().anode()?)?;
        let in_log = match self.writeback().install_in_log(&vnode) {
            // The anode's page is shared: the map update below copies it.
            Err(FsError::Shared { .. }) => None,
            class => class?,
        };
        let class = match in_log {
            Some(class) => class,
            None => {
                // Once only, since later writes must not delay this sync.
                self.writeback().install_all(&vnode)?;
                vnode.state.read().class
            }
        };
        // A vnode reloaded from disk does not hold the class of its last change.
        Ok(if class == 0 { FileCommit::Somewhere } else { FileCommit::In(class) })
    }
}

impl Writeback<'_> {
    pub(crate) fn sync_each_then(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        let mut classes = Vec::with_capacity(files.len());
        for (ino, completion) in files {
            // A snapshot is clean. A change in it could block inside its gate, which a deletion
            // waits to close.
            let logged = if ino.is_virtual() {
                Ok(FileCommit::Nothing)
            } else {
                self.enter(ino).and_then(|files| {
                    let waits = !files.is_of_snapshot();
                    if waits { files.log_file(caller, ino) } else { Ok(FileCommit::Nothing) }
                })
            };
            match logged {
                Ok(FileCommit::In(class)) => classes.push((Some(class), completion)),
                Ok(FileCommit::Somewhere) => classes.push((None, completion)),
                Ok(FileCommit::Nothing) => completion(Ok(())),
                Err(error) => completion(Err(error)),
            }
        }
        self.store.journal.commit_each_then(classes);
    }
}

/// Returns the map update for a block.
///
/// CRASH: V4. While the last block on disk has a dirty version `tail`, the blocks before it do not
/// raise the size on disk. `tail` raises it when it is mapped.
fn new_block(
    state: &VnodeState,
    tail: Option<&Arc<Block>>,
    block: &Block,
    pointer: &BlockPointer,
) -> NewBlock {
    let BlockSpan { start, shift } = block.span();
    let mut size_bytes = size_reached(state, block);
    if let Some(tail) = tail.filter(|tail| start < tail.span().start) {
        tail.set_file_bytes(size_bytes.max(tail.file_bytes()));
        size_bytes = 0;
    }
    NewBlock { start, shift, pointer: *pointer, size_bytes }
}

/// V3: returns the size on disk once `block` is mapped.
fn size_reached(state: &VnodeState, block: &Block) -> u64 {
    if_planted!(SizePastWrites, return block.span().end());
    state.size_bytes.min(block.file_bytes())
}

/// Returns the start of the last block on disk if it has a dirty version, and whether the write of
/// the dirty version is under way.
pub(crate) fn tail_waiting(state: &VnodeState) -> Option<(u64, bool)> {
    let tail = waiting_tail(state)?;
    Some((tail.span().start, tail.sealed().is_some_and(is_written)))
}

fn waiting_tail(state: &VnodeState) -> Option<&Arc<Block>> {
    let end = state.anode.as_ref()?.size_bytes;
    let block = state.waiting_at(end).filter(|_| !planted!(CutOffBytesInstalled))?;
    (block.span().start < end).then_some(block)
}

/// Returns the sealed blocks of a dirty file whose map fits in the anode; `None` for other files.
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

/// Keeps the error for later writes, which return it beyond
/// [`PENDING_BYTES_MAX`](crate::file::write::PENDING_BYTES_MAX).
fn note_not_installed(vnode: &Vnode, error: &FsError) {
    vnode.state.write().not_installed = Some(Box::new(error.clone()));
}

fn is_written((_, sequence): (BlockPointer, u64)) -> bool {
    sequence != 0
}

/// Returns dirty blocks whose write is under way.
///
/// V4: no block after the last one on disk is returned, while that one has a dirty version that is
/// not under way. Only the dirty version has zeros after the old end of the file.
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
