//! Open segments: file data gets its place as it arrives and is written in long sequential pieces.
//!
//! A block is given its place in the open segment at once (Shirriff, "Sawmill: A Logging File
//! System for a High-Performance RAID Disk Array", 1995, section 5.2.2: on-the-fly layout). Until
//! its partial segment is *sealed* it may be rewritten where it is; from then on it never changes.
//! A partial segment is sealed when the segment is full, when somebody flushes, or when the log's
//! tail must pass a block that is inline log data.
//!
//! Each level has an open segment (`stream`), so that a segment holds what lasts alike.
//!
//! # Invariants
//!
//! - SG1: A sealed block never changes: a rewrite takes a new place.
//! - SG2: A block is installed (its pointer committed) only with a transaction that depends on its
//!   data write, or as inline log data.
//! - SG3: A segment is given back to the allocator's candidates only when each of its blocks is
//!   installed or dead and each of its writes is answered, so that no late write can land in space
//!   that was used again.
//!
//! # Concurrency
//!
//! One lock over the open segments, one in each block; both are leaves but for the allocator and
//! the journal. Callers hold their vnode's lock. Blocks of a full segment are sealed with their own
//! lock alone ([`Segments::seal_full`]).

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
pub(crate) use ahead::{Ahead, Begun, Looked};
pub use cache::SegmentCacheCounts;
pub(crate) use cache::{Nearby, SMALL_FILE_BYTES};
pub(crate) use chunks::Fill;
pub(crate) use stream::Origin;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use format::defect::DefectCode;
use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Place};
use format::journal::LogDataOwner;
use format::page::PAGE_BYTES;
use format::placement::Placement;
use format::pointer::BlockPointer;
use format::summary::ENTRIES_PER_SUMMARY;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, SharedBytes};

use self::cache::SegmentCache;
use self::in_flight::InFlight;
use self::mended::Mended;
use self::stream::Stream;
use crate::alloc::{Extent, SegmentId, Urgency};
use crate::buffer::corrupt;
use crate::convert::{index_wide, narrow, wide};
use crate::error::FsResult;
use crate::store::Store;
use crate::sync::{Mutex, MutexGuard};
use crate::usage::{Asker, Owners, Payer, Usage, accept_all};

/// Most open segments, and as many for files with a placement: the one that was used least lately
/// is finished before another is opened.
const OPEN_SEGMENTS_MAX: usize = 8;
/// Full segments that wait to be sealed by who has time: a writer who fills another seals the
/// oldest.
const FULL_SEGMENTS_MAX: usize = 2;
/// Data writes that may be in flight before a writer waits.
pub const WRITES_IN_FLIGHT_MAX: usize = 12;

/// Whose block it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockOwner {
    pub(crate) fileset: FilesetId,
    pub(crate) anode: AnodeNo,
    pub(crate) generation: Generation,
    pub(crate) index: u64,
    /// Block size: binary logarithm.
    pub(crate) block_shift: u8,
    /// A directory that names the file: the allocation group follows it, if the policy has it so.
    pub(crate) directory: AnodeNo,
    /// Which disk group the file prefers.
    pub(crate) placement: Placement,
}

/// What a file needs and has for a block beside the place of its fragments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    /// Fragments that metadata may need when it is installed.
    pub(crate) extra_fragments: u64,
    /// Fragments that it gives back for it, stored or reserved: not what clones hold too.
    pub(crate) held_fragments: u64,
    /// Fragments that the file counts for it already.
    pub(crate) counted_fragments: u64,
    /// Fragments that were accepted for what waits in its place.
    pub(crate) accepted_fragments: u64,
    /// Where an earlier version of the block is, if there is one.
    pub(crate) previous: Option<Place>,
}

impl Claim {
    /// Returns how urgent a block of `fragments` is.
    fn urgency(self, origin: Origin, fragments: u32) -> Urgency {
        let is_held = self.extra_fragments == 0 && u64::from(fragments) <= self.held_fragments;
        match origin {
            Origin::User if is_held => Urgency::Held,
            Origin::User | Origin::Cleaner(_) => origin.urgency(),
        }
    }
}

/// How far a block has come.
#[derive(Debug)]
enum Progress {
    /// May be rewritten in place.
    Filling,
    /// Never changes again; the pointer to it, and the data write it is part of (0: it is in the
    /// log and is not yet written).
    Sealed { pointer: BlockPointer, sequence: u64 },
    /// Nobody needs it.
    Dead,
}

#[derive(Debug)]
struct BlockState {
    data: SharedBytes,
    fragments: u32,
    /// Fragments promised by the allocator for it, metadata included.
    promised: u64,
    /// Fragments that the file counted for it when it was placed.
    counted: u64,
    /// Bytes of the file once the last write into this block was done.
    file_bytes: u64,
    /// The birth that it had before it was moved; `None`: it gets one when it is sealed.
    kept_birth: Option<Epoch>,
    progress: Progress,
}

impl BlockState {
    /// QT2: returns what it adds to what the fileset references.
    fn accepted(&self) -> u64 {
        self.accepted_with(0)
    }

    /// Returns what it adds once it has `more` fragments.
    fn accepted_with(&self, more: u32) -> u64 {
        (u64::from(self.fragments) + u64::from(more)).saturating_sub(self.counted)
    }

    /// Returns what is stored of the block.
    fn stored(&self, fragment_bytes: usize) -> SharedBytes {
        self.data.slice(0..fragment_bytes * crate::convert::index(self.fragments))
    }
}

/// A block on its way to the disk.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) place: Place,
    pub(crate) owner: BlockOwner,
    origin: Origin,
    segment: SegmentId,
    /// Where it counts until it is installed.
    usage: Arc<Usage>,
    /// Owner, group and project of the file, where they are counted.
    owners: Option<Owners>,
    state: Mutex<BlockState>,
}

impl Block {
    /// Returns whom it counts for besides the fileset.
    pub(crate) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref()
    }

    /// Returns how many fragments were accepted for it beyond what its file had.
    pub(crate) fn accepted_fragments(&self) -> u64 {
        self.state.lock().accepted()
    }

    /// QT2, QA2: counts so much of it no longer.
    fn give_back(&self, fragments: u64) {
        self.usage.give_back(fragments);
        for account in self.owners.iter().flat_map(|owners| owners.iter()) {
            account.give_back(fragments, 0);
        }
    }

    /// Returns the front of the block, at least what is stored of it; past its end it reads as
    /// zeros.
    pub(crate) fn data(&self) -> SharedBytes {
        self.state.lock().data.clone()
    }

    /// Returns how many fragments of the data are stored.
    pub(crate) fn fragments(&self) -> u32 {
        self.state.lock().fragments
    }

    /// Returns how many bytes the file had once the last write into this block was done.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.state.lock().file_bytes
    }

    /// The file has `file_bytes` once the write that this block is part of is done.
    pub(crate) fn set_file_bytes(&self, file_bytes: u64) {
        self.state.lock().file_bytes = file_bytes;
    }

    /// Returns the pointer to the block and its data write, once it is sealed.
    pub(crate) fn sealed(&self) -> Option<(BlockPointer, u64)> {
        match &self.state.lock().progress {
            Progress::Sealed { pointer, sequence } => Some((*pointer, *sequence)),
            Progress::Filling | Progress::Dead => None,
        }
    }

    /// Returns what the log says of the block when it is inline log data.
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

    /// Whether the block may still be rewritten in place.
    pub(crate) fn is_filling(&self) -> bool {
        matches!(self.state.lock().progress, Progress::Filling)
    }
}

/// A segment that blocks are being written to.
#[derive(Debug)]
struct OpenSegment {
    id: SegmentId,
    incarnation: Epoch,
    /// Where the next block goes, in fragments.
    cursor: u32,
    /// Where the partial segment being filled begins.
    partial_start: u32,
    /// Blocks of that partial segment, in order of place.
    blocks: Vec<Arc<Block>>,
    /// Offset of the last summary page plus one, and its checksum.
    previous_summary: (u32, u32),
    /// Inline log data that goes home with it.
    log_data: BTreeSet<crate::journal::LogDataId>,
    /// When a block was placed in it last, counted in blocks.
    used: u64,
}

/// A segment that takes no more blocks.
#[derive(Debug)]
struct Closing {
    /// Blocks that are neither installed nor dead.
    outstanding: u64,
    /// Last data write to it.
    last_sequence: u64,
    /// Whether it takes no more blocks.
    is_closed: bool,
}

/// Fragments written to data segments since the open.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteCounts {
    /// In blocks of users.
    pub(crate) user: u64,
    /// In blocks that the cleaner moved.
    pub(crate) moved: u64,
    /// Altogether, with summaries.
    pub(crate) all: u64,
}

#[derive(Debug, Default)]
struct State {
    open: BTreeMap<Stream, OpenSegment>,
    /// Segments that take no more blocks and are not sealed, the oldest first.
    full: VecDeque<OpenSegment>,
    /// Blocks placed so far.
    placed: u64,
    /// Every segment that is not yet back with the allocator.
    segments: BTreeMap<SegmentId, Closing>,
    /// Files with sealed blocks that wait to be installed.
    to_install: BTreeSet<(FilesetId, AnodeNo)>,
    /// Bytes of blocks whose write is not answered yet, by place, with the number of the write.
    in_flight: InFlight,
    written: WriteCounts,
}

/// The open segments of a pool.
#[derive(Debug)]
pub(crate) struct Segments {
    store: Arc<Store>,
    state: Mutex<State>,
    /// Bytes of segments that are closed.
    pub(crate) cache: SegmentCache,
    /// Bytes that were read before anybody asked for them.
    pub(crate) ahead: Ahead,
    /// Blocks that reads have mended.
    pub(crate) mended: Mended,
    /// Secret that seals summaries.
    secret: [u8; 16],
}

impl Segments {
    pub(crate) fn new(store: Arc<Store>, secret: [u8; 16]) -> Segments {
        let cache_bytes = store.cache.limit_pages() * PAGE_BYTES;
        let cache = SegmentCache::new(store.geometry(), cache_bytes);
        let ahead = Ahead::new(store.geometry(), cache_bytes);
        let (state, mended) = (Mutex::new(State::default()), Mended::default());
        Segments { store, state, cache, ahead, mended, secret }
    }

    fn fragment_bytes(&self) -> usize {
        index_wide(self.store.geometry().fragment_bytes())
    }

    fn fragments_for(&self, bytes: usize) -> u32 {
        narrow(wide(bytes).div_ceil(self.store.geometry().fragment_bytes())).max(1)
    }

    /// Gives a block a place. `data` begins as the block does and has all that is stored: its first
    /// `length_bytes`, in whole fragments.
    ///
    /// # Errors
    ///
    /// [`crate::error::FsError::NoSpace`]; [`crate::error::FsError::QuotaExceeded`] by `payer`,
    /// for whom the block counts until it is installed.
    pub(crate) fn place(
        &self,
        (origin, payer): (Origin, &Payer<'_>),
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
        claim: Claim,
    ) -> FsResult<Arc<Block>> {
        let mut state = self.state.lock();
        self.place_counted(&mut state, (origin, payer), owner, data, length_bytes, claim)
    }

    /// QT2: gives a block a place, and counts it.
    fn place_counted(
        &self,
        state: &mut State,
        (origin, payer): (Origin, &Payer<'_>),
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
        claim: Claim,
    ) -> FsResult<Arc<Block>> {
        let fragments = u64::from(self.fragments_for(length_bytes));
        let more = fragments.saturating_sub(claim.counted_fragments);
        let instead = claim.accepted_fragments;
        let usage = payer.usage;
        usage.accept(more, instead, origin == Origin::User)?;
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
                let back = Asker { may_be_refused: false, ..payer.asker };
                accept_all(owners, (instead, more), back)?;
            }
        }
        placed
    }

    fn place_in(
        &self,
        state: &mut State,
        (origin, payer): (Origin, &Payer<'_>),
        owner: BlockOwner,
        data: SharedBytes,
        length_bytes: usize,
        claim: Claim,
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
                progress: Progress::Filling,
            }),
        });
        segment.cursor += fragments;
        segment.blocks.push(Arc::clone(&block));
        let id = segment.id;
        state.segments.get_mut(&id).expect("entered when it was opened").outstanding += 1;
        Ok(block)
    }

    /// Returns the open segment, with room for `fragments` and the summary; opens one if need be.
    fn room<'s>(
        &self,
        state: &'s mut State,
        origin: Origin,
        wanted: Stream,
        fragments: u32,
    ) -> FsResult<&'s mut OpenSegment> {
        let is_full =
            state.open.get(&wanted).is_some_and(|segment| !self.has_room(segment, fragments));
        if is_full {
            let segment = state.open.remove(&wanted).expect("looked at it");
            match origin {
                Origin::User => self.defer_sealing(state, segment),
                // Nobody waits for the cleaner, and what it leaves would go to the device at once.
                Origin::Cleaner(_) => self.finish(state, segment),
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
            // Creation keeps blocks well below segments: a superblock or an anode on disk is
            // absurd.
            let what = format!("a block of {fragments} fragments fits in no segment");
            return Err(corrupt(DefectCode::AN002.found(what)));
        }
        Ok(segment)
    }

    fn enter(&self, state: &mut State, stream: Stream, (id, incarnation): (SegmentId, Epoch)) {
        let closing = Closing { outstanding: 0, last_sequence: 0, is_closed: false };
        state.segments.insert(id, closing);
        // SC1: before a block of it has a place.
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

    /// Finishes the open segment that was used least lately, of those that `may_end` says.
    fn finish_oldest(&self, state: &mut State, may_end: impl Fn(&Stream) -> bool) {
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
        // A page is aligned to its own size.
        let page = self.store.geometry().page_fragments();
        let blocks_end = (segment.cursor + fragments).next_multiple_of(page);
        let summary = self.summary_fragments(segment.blocks.len() + 1);
        blocks_end + summary <= self.store.geometry().segment_fragments
    }

    /// Seals what is left of a segment that takes no more blocks.
    fn finish(&self, state: &mut State, mut segment: OpenSegment) {
        self.seal_partial(state, &mut segment);
        if let Some(closing) = state.segments.get_mut(&segment.id) {
            closing.is_closed = true;
        }
    }

    /// Rewrites a block in place if it may still change and there is room. Returns whether it did;
    /// if not, it needs a new place.
    pub(crate) fn rewrite(
        &self,
        block: &Arc<Block>,
        length_bytes: usize,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        let fragments = self.fragments_for(length_bytes);
        let mut state = self.state.lock();
        // Held to the end: a block of a full segment may be sealed with this lock alone.
        let mut block_state = block.state.lock();
        let is_filling = matches!(block_state.progress, Progress::Filling);
        if !is_filling && !planted::is(Planted::SealedBlockRewritten) {
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
        // What was moved is another version from now on.
        block_state.kept_birth = None;
        true
    }

    /// Grows a block to `fragments` where it is: only the last of an open segment can. So a file
    /// that is appended to piece by piece takes the room of its blocks once.
    fn extend(
        &self,
        state: &mut State,
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
            // Refused, it is asked again as a new version of the block, and told.
            if accept_all(owners, (after, before), self.store.asker(false)).is_err() {
                block.usage.give_back(after - before);
                return false;
            }
        }
        // Refused, it may find room as a new version of what the file holds (G5).
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

    /// Nobody needs the block any more: it was rewritten elsewhere, or cut off.
    pub(crate) fn kill(&self, block: &Arc<Block>) {
        if self.replaced(block) {
            block.give_back(block.accepted_fragments());
        }
    }

    /// As [`Segments::kill`], of a block that another has replaced: what was accepted for it was
    /// given back when that was placed. Returns whether it was alive.
    pub(crate) fn replaced(&self, block: &Arc<Block>) -> bool {
        let mut state = self.state.lock();
        let promised = {
            let mut block_state = block.state.lock();
            let was_alive = !matches!(block_state.progress, Progress::Dead);
            block_state.progress = Progress::Dead;
            was_alive.then_some(block_state.promised)
        };
        if let Some(promised) = promised {
            self.store.alloc.unpromise(promised);
            done_with(&mut state, block);
        }
        promised.is_some()
    }

    /// The pointers of these blocks are in a map now, or pointers to so many fragments from their
    /// fronts: their promises are used up but for what was kept for metadata. What was accepted for
    /// them was given back by the change (QT3).
    pub(crate) fn installed<'b>(&self, blocks: impl IntoIterator<Item = (&'b Arc<Block>, u32)>) {
        let mut state = self.state.lock();
        let mut rest = 0;
        for (block, fragments) in blocks {
            rest += block.state.lock().promised - u64::from(fragments);
            done_with(&mut state, block);
        }
        self.store.alloc.unpromise(rest);
    }

    /// Returns bytes on their way to the disk, all those of `extent` among them, and how many of
    /// them lie before these.
    pub(crate) fn in_flight(&self, extent: Extent) -> Option<(SharedBytes, usize)> {
        if planted::is(Planted::InFlightNotSeen) {
            return None;
        }
        let (data, before) = self.state.lock().in_flight.get(extent.place, extent.fragments)?;
        Some((data, crate::convert::index(before) << self.store.geometry().fragment_shift))
    }

    /// Returns files whose sealed blocks wait to be installed, and forgets them.
    pub(crate) fn take_installable(&self) -> BTreeSet<(FilesetId, AnodeNo)> {
        std::mem::take(&mut self.state.lock().to_install)
    }

    /// Whether files wait to have blocks installed.
    pub(crate) fn has_installable(&self) -> bool {
        !self.state.lock().to_install.is_empty()
    }

    /// Waits until few enough writes are in flight, and tidies up behind those that were answered.
    /// Called with no lock held.
    pub(crate) fn throttle(&self) -> FsResult<()> {
        self.store.journal.wait_for_data(WRITES_IN_FLIGHT_MAX)?;
        self.tidy();
        Ok(())
    }

    /// Drops the bytes of answered writes, and gives finished segments back (SG3).
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

    /// Returns how many blocks were placed.
    pub(crate) fn placed(&self) -> u64 {
        self.state.lock().placed
    }

    /// Returns what was written so far.
    pub(crate) fn written(&self) -> WriteCounts {
        self.state.lock().written
    }

    /// Identity of the pool.
    pub(crate) fn pool_id(&self) -> format::ids::PoolId {
        self.store.pool_id()
    }

    /// Secret that seals summaries.
    pub(crate) fn secret(&self) -> &[u8; 16] {
        &self.secret
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the extent that a sealed block takes.
    pub(crate) fn extent(pointer: &BlockPointer) -> Extent {
        Extent { place: pointer.place, fragments: pointer.fragments }
    }
}

fn done_with(state: &mut State, block: &Arc<Block>) {
    let closing = state.segments.get_mut(&block.segment).expect("the block was outstanding");
    closing.outstanding -= 1;
}
