//! Open segments: file data gets its place on arrival and is written in long sequential runs.
//!
//! A block gets a place in the open segment at once (Shirriff, "Sawmill: A Logging File System for
//! a High-Performance RAID Disk Array", 1995, section 5.2.2: on-the-fly layout). Until its partial
//! segment is *sealed* (fixed and submitted) the block may be rewritten in place. This happens when
//! the segment is full, at a flush, or when the log's tail must pass inline log data in it.
//!
//! Each level ([`LifetimeLevel`](crate::alloc::LifetimeLevel)) has an open segment (`stream`), so
//! that blocks of similar lifetime share segments.
//!
//! # Invariants
//!
//! - SG1: A sealed block never changes: a rewrite takes another place.
//! - SG2: A block is installed (its pointer committed) only with a transaction that depends on its
//!   data write, or as inline log data.
//! - SG3: A segment returns to the allocator only when each of its blocks is installed or dead and
//!   each of its writes has ended, so that no late write hits reused space.
//!
//! # Concurrency
//!
//! One lock for the open segments, and one in each block. Only locks of the allocator and the
//! journal are below them. Callers hold their vnode's lock. Blocks of a full segment are sealed
//! under their own locks alone ([`Segments::seal_full`]).

mod after_crash;
mod ahead;
mod cache;
mod chunks;
mod in_flight;
mod mended;
mod seal;
mod stream;

pub(crate) use after_crash::{LostBlock, read_segment, summarise_log_data};
pub use ahead::ReadaheadCounts;
pub(crate) use ahead::{ReadaheadBuffer, ReadaheadLookup, ReadaheadStart};
pub use cache::SegmentCacheCounts;
pub(crate) use cache::{SMALL_FILE_BYTES, SegmentCacheLookup};
pub(crate) use chunks::ChunkFill;
pub(crate) use stream::BlockOrigin;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use format::defect::DefectCode;
use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Place};
use format::journal::LogDataOwner;
use format::page::PAGE_BYTES;
use format::placement::Placement;
use format::pointer::BlockPointer;
use format::summary::ENTRIES_PER_SUMMARY;
use runtime::{if_planted, planted};
use storage::device::{AlignedBuffer, SharedBytes};

use self::cache::SegmentCache;
use self::in_flight::WritesInFlight;
use self::mended::RepairedBlocks;
use self::stream::SegmentStream;
use crate::alloc::{Extent, SegmentId, Urgency};
use crate::buffer::corrupt;
use crate::convert::{index_wide, narrow, wide};
use crate::error::FsResult;
use crate::store::Store;
use crate::sync::{Mutex, MutexGuard};
use crate::usage::{BlockAccounts, OwnerAccounts, SpaceRequest, Usage, accept_all};

/// Limit of open segments; the same again for files with a placement. Beyond it the least recently
/// used segment is finished.
const OPEN_SEGMENTS_MAX: usize = 8;
/// Full segments left to deferred work, beyond which writers seal.
const FULL_SEGMENTS_MAX: usize = 2;
/// Data writes that may be in flight before a writer waits.
pub const WRITES_IN_FLIGHT_MAX: usize = 12;

/// The file block that a stored block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOwner {
    pub(crate) fileset: FilesetId,
    pub(crate) anode: AnodeNo,
    pub(crate) generation: Generation,
    pub(crate) index: u64,
    /// Binary logarithm of the block size.
    pub(crate) block_shift: u8,
    /// A parent directory, for the placement policy.
    pub(crate) directory: AnodeNo,
    pub(crate) placement: Placement,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockAccounting {
    /// Fragments that its map update may need for metadata.
    pub(crate) extra_fragments: u64,
    /// Fragments that its map update frees, not shared with snapshots.
    pub(crate) held_fragments: u64,
    /// Fragments that the file counts already for the block's range.
    pub(crate) counted_fragments: u64,
    /// Fragments accepted for the dirty block that it replaces.
    pub(crate) accepted_fragments: u64,
    /// Place of the earlier version.
    pub(crate) previous: Option<Place>,
}

impl BlockAccounting {
    fn urgency(self, origin: BlockOrigin, fragments: u32) -> Urgency {
        let is_held = self.extra_fragments == 0 && u64::from(fragments) <= self.held_fragments;
        match origin {
            BlockOrigin::User if is_held => Urgency::Held,
            BlockOrigin::User | BlockOrigin::Cleaner(_) => origin.urgency(),
        }
    }
}

#[derive(Debug)]
enum BlockProgress {
    /// May be rewritten in place.
    Filling,
    /// Immutable. `sequence` is that of the data write, or 0 while the block is only in the log.
    Sealed { pointer: BlockPointer, sequence: u64 },
    /// Rewritten elsewhere, or truncated.
    Dead,
}

#[derive(Debug)]
struct BlockState {
    data: SharedBytes,
    fragments: u32,
    /// Fragments promised by the allocator, metadata included.
    promised: u64,
    counted: u64,
    /// File size after the last write into this block.
    file_bytes: u64,
    /// The birth of a moved block. Others get one when sealed.
    kept_birth: Option<Epoch>,
    progress: BlockProgress,
}

impl BlockState {
    /// Returns the fragments that the block adds to the fileset's references (QT2).
    fn accepted(&self) -> u64 {
        self.accepted_with(0)
    }

    fn accepted_with(&self, more: u32) -> u64 {
        (u64::from(self.fragments) + u64::from(more)).saturating_sub(self.counted)
    }

    fn stored(&self, fragment_bytes: usize) -> SharedBytes {
        self.data.slice(0..fragment_bytes * crate::convert::index(self.fragments))
    }
}

/// A block on its way to the disk.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) owner: BlockOwner,
    origin: BlockOrigin,
    segment: SegmentId,
    /// The fileset's account, which counts the block until its map update.
    usage: Arc<Usage>,
    owners: Option<OwnerAccounts>,
    state: Mutex<BlockState>,
}

impl Block {
    pub(crate) fn owners(&self) -> Option<&OwnerAccounts> {
        self.owners.as_ref()
    }

    pub(crate) fn accepted_fragments(&self) -> u64 {
        self.state.lock().accepted()
    }

    /// Takes `fragments` out of the accounts (QT2, QA2).
    fn give_back(&self, fragments: u64) {
        self.usage.give_back(fragments);
        for account in self.owners.iter().flat_map(|owners| owners.iter()) {
            account.give_back(fragments, 0);
        }
    }

    /// Returns at least the stored part of the block. The rest of the block is zeros.
    pub(crate) fn data(&self) -> SharedBytes {
        self.state.lock().data.clone()
    }

    pub(crate) fn fragments(&self) -> u32 {
        self.state.lock().fragments
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.state.lock().file_bytes
    }

    pub(crate) fn set_file_bytes(&self, file_bytes: u64) {
        self.state.lock().file_bytes = file_bytes;
    }

    pub(crate) fn sealed(&self) -> Option<(BlockPointer, u64)> {
        match &self.state.lock().progress {
            BlockProgress::Sealed { pointer, sequence } => Some((*pointer, *sequence)),
            BlockProgress::Filling | BlockProgress::Dead => None,
        }
    }

    pub(crate) fn log_data_owner(&self, pointer: &BlockPointer) -> LogDataOwner {
        LogDataOwner {
            fileset: self.owner.fileset,
            anode: self.owner.anode,
            generation: self.owner.generation,
            index: self.owner.index,
            birth: pointer.birth,
            block_shift: self.owner.block_shift,
        }
    }

    pub(crate) fn is_filling(&self) -> bool {
        matches!(self.state.lock().progress, BlockProgress::Filling)
    }
}

#[derive(Debug)]
struct OpenSegment {
    id: SegmentId,
    incarnation: Epoch,
    /// Offset of the next block, in fragments.
    cursor: u32,
    /// Offset of the current partial segment.
    partial_start: u32,
    /// Blocks of the current partial segment, in order of place.
    blocks: Vec<Arc<Block>>,
    /// Offset of the last summary page plus one, and its checksum.
    previous_summary: (u32, u32),
    /// Inline log data written with the current partial segment.
    log_data: BTreeSet<crate::journal::LogDataId>,
    /// Value of `placed` at the last use.
    used: u64,
}

/// A segment not yet returned to the allocator.
#[derive(Debug)]
struct ClosingSegment {
    /// Blocks neither installed nor dead.
    outstanding: u64,
    /// The last data write.
    last_sequence: u64,
    is_closed: bool,
}

/// Fragments written to data segments since the open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteCounts {
    pub(crate) user: u64,
    /// Moved by the cleaner.
    pub(crate) moved: u64,
    /// Including summaries and padding.
    pub(crate) all: u64,
}

#[derive(Debug, Default)]
struct SegmentsState {
    open: BTreeMap<SegmentStream, OpenSegment>,
    /// Full segments to be sealed, the oldest first.
    full: VecDeque<OpenSegment>,
    placed: u64,
    /// Segments not yet returned to the allocator.
    segments: BTreeMap<SegmentId, ClosingSegment>,
    /// Files with sealed blocks that await their map update.
    to_install: BTreeSet<(FilesetId, AnodeNo)>,
    in_flight: WritesInFlight,
    written: WriteCounts,
}

#[derive(Debug)]
pub(crate) struct Segments {
    store: Arc<Store>,
    state: Mutex<SegmentsState>,
    pub(crate) cache: SegmentCache,
    pub(crate) ahead: ReadaheadBuffer,
    pub(crate) mended: RepairedBlocks,
    /// Key of the checksums of summaries.
    secret: [u8; 16],
}

impl Segments {
    pub(crate) fn new(store: Arc<Store>, secret: [u8; 16]) -> Segments {
        let cache_bytes = store.cache.limit_pages() * PAGE_BYTES;
        let cache = SegmentCache::new(store.geometry(), cache_bytes);
        let ahead = ReadaheadBuffer::new(store.geometry(), cache_bytes);
        let (state, mended) = (Mutex::new(SegmentsState::default()), RepairedBlocks::default());
        Segments { store, state, cache, ahead, mended, secret }
    }

    fn fragment_bytes(&self) -> usize {
        index_wide(self.store.geometry().fragment_bytes())
    }

    fn fragments_for(&self, bytes: usize) -> u32 {
        narrow(wide(bytes).div_ceil(self.store.geometry().fragment_bytes())).max(1)
    }

    /// Places a block. `data` has its first `length_bytes`, padded to whole fragments.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoSpace`], or [`crate::error::FsError::QuotaExceeded`] from
    /// `payer`, whose accounts count the block until its map update.
    pub(crate) fn place(
        &self,
        (origin, payer): (BlockOrigin, &BlockAccounts<'_>),
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
        claim: BlockAccounting,
    ) -> FsResult<Arc<Block>> {
        let mut state = self.state.lock();
        self.place_counted(&mut state, (origin, payer), owner, data, length_bytes, claim)
    }

    /// Counts a block in the accounts (QT2), and places it.
    fn place_counted(
        &self,
        state: &mut SegmentsState,
        (origin, payer): (BlockOrigin, &BlockAccounts<'_>),
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
        claim: BlockAccounting,
    ) -> FsResult<Arc<Block>> {
        let fragments = u64::from(self.fragments_for(length_bytes));
        let more = fragments.saturating_sub(claim.counted_fragments);
        let instead = claim.accepted_fragments;
        let usage = payer.usage;
        usage.accept(more, instead, origin == BlockOrigin::User)?;
        if let Some(owners) = &payer.owners
            && let Err(error) = accept_all(owners, (more, instead), payer.asker)
        {
            usage.accept(instead, more, false)?;
            return Err(error);
        }
        let placed = self.place_in(state, (origin, payer), owner, data, length_bytes, claim);
        if placed.is_err() {
            usage.accept(instead, more, false)?;
            if let Some(owners) = &payer.owners {
                let back = SpaceRequest { may_be_refused: false, ..payer.asker };
                accept_all(owners, (instead, more), back)?;
            }
        }
        placed
    }

    fn place_in(
        &self,
        state: &mut SegmentsState,
        (origin, payer): (BlockOrigin, &BlockAccounts<'_>),
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
        claim: BlockAccounting,
    ) -> FsResult<Arc<Block>> {
        let fragments = self.fragments_for(length_bytes);
        let promised = u64::from(fragments) + claim.extra_fragments;
        let own = payer.usage.counts().kept;
        self.store.alloc.promise(promised, claim.urgency(origin, fragments), own)?;
        let room = self
            .stream_of(origin, owner, claim.previous)
            .and_then(|stream| self.room(state, origin, stream, fragments));
        let segment = match room {
            Ok(segment) => segment,
            Err(error) => {
                self.store.alloc.unpromise(promised);
                return Err(error);
            }
        };
        let start = self.store.geometry().segment_place(segment.id.group, segment.id.segment);
        let block = Arc::new(Block {
            place: start.advance(segment.cursor),
            owner,
            origin,
            segment: segment.id,
            usage: Arc::clone(payer.usage),
            owners: payer.owners.clone(),
            state: Mutex::new(BlockState {
                data,
                fragments,
                promised,
                counted: claim.counted_fragments,
                file_bytes: 0,
                kept_birth: origin.kept_birth(),
                progress: BlockProgress::Filling,
            }),
        });
        segment.cursor += fragments;
        segment.blocks.push(Arc::clone(&block));
        let id = segment.id;
        state.segments.get_mut(&id).expect("entered when it was opened").outstanding += 1;
        Ok(block)
    }

    /// Returns an open segment with room for a block and the summary.
    fn room<'s>(
        &self,
        state: &'s mut SegmentsState,
        origin: BlockOrigin,
        wanted: SegmentStream,
        fragments: u32,
    ) -> FsResult<&'s mut OpenSegment> {
        let is_full =
            state.open.get(&wanted).is_some_and(|segment| !self.has_room(segment, fragments));
        if is_full {
            let segment = state.open.remove(&wanted).expect("looked at it");
            match origin {
                BlockOrigin::User => self.defer_sealing(state, segment),
                // Nothing waits for the cleaner, and its data is due for the device anyway.
                BlockOrigin::Cleaner(_) => self.finish(state, segment),
            }
        }
        let stream = if state.open.contains_key(&wanted) {
            wanted
        } else {
            self.open_stream(state, origin, wanted, fragments)?
        };
        state.placed += 1;
        let placed = state.placed;
        let segment = state.open.get_mut(&stream).expect("opened above");
        segment.used = placed;
        if !self.has_room(segment, fragments) {
            // Pools have smaller blocks, so the superblock or an anode is damaged.
            let what = format!("a block of {fragments} fragments fits in no segment");
            return Err(corrupt(DefectCode::AN002.found(what)));
        }
        Ok(segment)
    }

    fn enter(
        &self,
        state: &mut SegmentsState,
        stream: SegmentStream,
        (id, incarnation): (SegmentId, Epoch),
    ) {
        let closing = ClosingSegment { outstanding: 0, last_sequence: 0, is_closed: false };
        state.segments.insert(id, closing);
        // The caches must drop the segment's chunks before a block is placed (SC1).
        self.cache.opened(id);
        self.ahead.opened(id);
        self.store.alloc.set_level(id, stream.level);
        let segment = OpenSegment {
            id,
            incarnation,
            cursor: 0,
            partial_start: 0,
            blocks: Vec::new(),
            previous_summary: (0, 0),
            log_data: BTreeSet::new(),
            used: 0,
        };
        state.open.insert(stream, segment);
    }

    fn finish_oldest(&self, state: &mut SegmentsState, may_end: impl Fn(&SegmentStream) -> bool) {
        let open = state.open.iter().filter(|(stream, _)| may_end(stream));
        let oldest = open.min_by_key(|(_, segment)| segment.used);
        let Some(stream) = oldest.map(|(stream, _)| *stream) else { return };
        if let Some(segment) = state.open.remove(&stream) {
            self.finish(state, segment);
        }
    }

    fn summary_fragments(&self, blocks: usize) -> u32 {
        let pages = narrow(wide(blocks.div_ceil(ENTRIES_PER_SUMMARY)));
        pages * self.store.geometry().page_fragments()
    }

    fn has_room(&self, segment: &OpenSegment, fragments: u32) -> bool {
        // A page is aligned to its size.
        let page = self.store.geometry().page_fragments();
        let blocks_end = (segment.cursor + fragments).next_multiple_of(page);
        let summary = self.summary_fragments(segment.blocks.len() + 1);
        blocks_end + summary <= self.store.geometry().segment_fragments
    }

    /// Seals the rest of a segment that takes no more blocks.
    fn finish(&self, state: &mut SegmentsState, mut segment: OpenSegment) {
        self.seal_partial(state, &mut segment);
        if let Some(closing) = state.segments.get_mut(&segment.id) {
            closing.is_closed = true;
        }
    }

    /// Rewrites an unsealed block in place, if it has room. Returns false if it was not rewritten.
    pub(crate) fn rewrite(
        &self,
        block: &Arc<Block>,
        length_bytes: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let fragments = self.fragments_for(length_bytes);
        let mut state = self.state.lock();
        // Held to the end. No deadlock: `seal_full` holds no other lock with it.
        let mut block_state = block.state.lock();
        let is_filling = matches!(block_state.progress, BlockProgress::Filling);
        if !is_filling && !planted!(SealedBlockRewritten) {
            return false;
        }
        if fragments > block_state.fragments
            && !self.extend(&mut state, block, &mut block_state, fragments)
        {
            return false;
        }
        let stored = crate::convert::index(block_state.fragments) * self.fragment_bytes();
        if block_state.data.len() < stored {
            let whole = AlignedBuffer::padded(&block_state.data, 1 << block.owner.block_shift);
            block_state.data = whole.into();
        }
        change(block_state.data.make_mut());
        // A moved block that is rewritten becomes a different version.
        block_state.kept_birth = None;
        true
    }

    /// Grows the last block of an open segment in place, so that small appends use space for one
    /// block only.
    fn extend(
        &self,
        state: &mut SegmentsState,
        block: &Arc<Block>,
        block_state: &mut BlockState,
        fragments: u32,
    ) -> bool {
        let owner_segment = state.open.values_mut().find(|segment| segment.id == block.segment);
        let Some(segment) = owner_segment else { return false };
        let more = fragments - block_state.fragments;
        let is_last = segment.blocks.last().is_some_and(|last| Arc::ptr_eq(last, block));
        if !is_last || !self.has_room(segment, more) {
            return false;
        }
        let (before, after) = (block_state.accepted(), block_state.accepted_with(more));
        if block.usage.accept(after, before, true).is_err() {
            return false;
        }
        if let Some(owners) = &block.owners {
            // The caller then tries a new version of the block, which reports the refusal.
            if accept_all(owners, (after, before), self.store.asker(false)).is_err() {
                block.usage.give_back(after - before);
                return false;
            }
        }
        // If refused, a new version of the block may still find space (G5).
        let own = block.usage.counts().kept;
        if self.store.alloc.promise(u64::from(more), Urgency::User, own).is_err() {
            block.give_back(after - before);
            return false;
        }
        segment.cursor += more;
        block_state.fragments = fragments;
        block_state.promised += u64::from(more);
        true
    }

    pub(crate) fn kill(&self, block: &Arc<Block>) {
        if self.replaced(block) {
            block.give_back(block.accepted_fragments());
        }
    }

    /// Marks a replaced block as dead. Its accepted fragments are given back already. Returns
    /// whether the block was alive.
    pub(crate) fn replaced(&self, block: &Arc<Block>) -> bool {
        let mut state = self.state.lock();
        let promised = {
            let mut block_state = block.state.lock();
            let was_alive = !matches!(block_state.progress, BlockProgress::Dead);
            block_state.progress = BlockProgress::Dead;
            was_alive.then_some(block_state.promised)
        };
        if let Some(promised) = promised {
            self.store.alloc.unpromise(promised);
            done_with(&mut state, block);
        }
        promised.is_some()
    }

    /// Removes mapped blocks, and releases the unused rest of their promises. The map update has
    /// given back their accepted fragments (QT3).
    pub(crate) fn installed<'b>(&self, blocks: impl IntoIterator<Item = (&'b Arc<Block>, u32)>) {
        let mut state = self.state.lock();
        let mut rest = 0;
        for (block, fragments) in blocks {
            rest += block.state.lock().promised - u64::from(fragments);
            done_with(&mut state, block);
        }
        self.store.alloc.unpromise(rest);
    }

    /// Returns the buffer of the write in flight that contains `extent`, and the offset in bytes.
    pub(crate) fn in_flight(&self, extent: Extent) -> Option<(SharedBytes, usize)> {
        if_planted!(InFlightNotSeen, return None);
        let (data, before) = self.state.lock().in_flight.get(extent.place, extent.fragments)?;
        Some((data, crate::convert::index(before) << self.store.geometry().fragment_shift))
    }

    pub(crate) fn take_installable(&self) -> BTreeSet<(FilesetId, AnodeNo)> {
        std::mem::take(&mut self.state.lock().to_install)
    }

    pub(crate) fn has_installable(&self) -> bool {
        !self.state.lock().to_install.is_empty()
    }

    /// Waits until few enough writes are in flight. Called without locks.
    pub(crate) fn throttle(&self) -> FsResult<()> {
        self.store.journal.wait_for_data(WRITES_IN_FLIGHT_MAX)?;
        self.tidy();
        Ok(())
    }

    /// Drops ended writes, and returns finished segments to the allocator (SG3).
    pub(crate) fn tidy(&self) {
        let answered = self.store.journal.data_answered();
        let mut state = self.state.lock();
        state.in_flight.drop_answered(answered);
        let finished: Vec<SegmentId> = state
            .segments
            .iter()
            .filter(|(_, closing)| {
                closing.is_closed && closing.outstanding == 0 && closing.last_sequence <= answered
            })
            .map(|(id, _)| *id)
            .collect();
        for id in finished {
            state.segments.remove(&id);
            self.cache.closed(id);
            self.ahead.closed(id);
            self.store.alloc.close_segment(id);
        }
    }

    pub(crate) fn placed(&self) -> u64 {
        self.state.lock().placed
    }

    pub(crate) fn written(&self) -> WriteCounts {
        self.state.lock().written
    }

    pub(crate) fn pool_id(&self) -> format::ids::PoolId {
        self.store.pool_id()
    }

    pub(crate) fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    fn lock(&self) -> MutexGuard<'_, SegmentsState> {
        self.state.lock()
    }

    pub(crate) fn extent(pointer: &BlockPointer) -> Extent {
        Extent { place: pointer.place, fragments: pointer.fragments }
    }
}

fn done_with(state: &mut SegmentsState, block: &Arc<Block>) {
    let closing = state.segments.get_mut(&block.segment).expect("the block was outstanding");
    closing.outstanding -= 1;
}
