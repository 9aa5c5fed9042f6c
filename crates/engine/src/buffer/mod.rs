//! Metadata pages in memory: which are there, which are dirty, who may see what.
//!
//! A page in memory is a [`Buffer`]. Readers take its bytes as they are ([`Buffer::bytes`]) and use
//! them without a lock; a change makes new bytes when a reader still holds the old ones. Buffers
//! never write themselves: `journal::checkpoint` writes them, after their records are durable.
//!
//! # Invariants
//!
//! - U1: A dirty buffer is in the cache: only clean ones that nobody holds are evicted.
//! - U2: There is at most one buffer of a place.
//!
//! # Concurrency
//!
//! Cache shards are locked before buffers; neither is held over I/O, but that a load which others
//! have spoilt [`LOAD_TRIES_MAX`] times holds its shard. A page that is read while another thread
//! reads it too is loaded twice and kept once.

mod ahead;
mod around;
mod lsn;
mod newest;

pub(crate) use around::{AroundPolicy, Missed, ReadAround};
pub use lsn::LsnCounts;
pub(crate) use newest::newest_copy;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use format::defect::{Defect, DefectCode};
use format::ids::{Lsn, Place, PoolId};
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind, PageOwner};
use runtime::planted::{self, Planted};
use rustc_hash::FxHashMap;
use storage::device::{AlignedBuffer, Purpose};
use storage::volume::{Healed, Volume};

use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// Loads of a page that evictions may spoil before one is made under the lock of its shard.
const LOAD_TRIES_MAX: u32 = 8;
/// What is found where a page was before it was moved.
const LEFT: &str = "the page was moved, and somebody looks for it where it was";
/// Shards of the cache, so that threads seldom meet.
const SHARDS: usize = 64;

/// Not used since the hand of the clock came by.
const UNUSED: u8 = 0;
/// Used since then.
const USED: u8 = 1;
/// Read around another page and not used so far: the first to go.
const AHEAD: u8 = 2;

/// The bytes of a page, shared and unchanging.
pub(crate) type PageRef = Arc<AlignedBuffer>;

/// Returns the bytes of a page as a page.
pub(crate) fn page_of(buffer: &AlignedBuffer) -> &PageBytes {
    buffer.first_chunk().expect("page buffers are 4096 bytes long")
}

/// Returns the bytes of a page, to change.
pub(crate) fn page_of_mut(buffer: &mut AlignedBuffer) -> &mut PageBytes {
    buffer.first_chunk_mut().expect("page buffers are 4096 bytes long")
}

/// One page in memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// Where the page is at home.
    pub(crate) place: Place,
    /// What the transaction manager and the checkpointer know of it.
    pub(crate) state: Mutex<BufferState>,
    /// The open class that has changed it; 0: none. Read and set under the manager's lock alone.
    class: AtomicU64,
    /// Set at each use, cleared by the hand of the clock: [`UNUSED`], [`USED`] or [`AHEAD`].
    use_of: AtomicU8,
}

/// What changes of a buffer.
#[derive(Debug)]
pub(crate) struct BufferState {
    /// The page as it is.
    pub(crate) bytes: PageRef,
    /// The first record whose change is not at home; `None`: clean.
    pub(crate) first_lsn: Option<Lsn>,
    /// Which of the sets of dirty pages that checkpoints take it is in, while it is dirty.
    pub(crate) round: u64,
    /// The last record that changed it.
    pub(crate) last_lsn: Lsn,
}

impl Buffer {
    /// Returns the page as it is now.
    pub(crate) fn bytes(&self) -> PageRef {
        Arc::clone(&self.state.lock().bytes)
    }

    /// Returns the open class that has changed the page; 0: none. The caller holds the manager's
    /// lock.
    pub(crate) fn class(&self) -> u64 {
        self.class.load(Ordering::Relaxed)
    }

    /// Sets the open class that has changed the page. The caller holds the manager's lock.
    pub(crate) fn set_class(&self, class: u64) {
        self.class.store(class, Ordering::Relaxed);
    }
}

/// The pages in memory, bounded.
#[derive(Debug)]
pub(crate) struct Cache {
    volume: Volume,
    pool_id: PoolId,
    shards: Vec<Mutex<Shard>>,
    /// Most pages.
    limit_pages: usize,
    count: AtomicUsize,
    /// Which shard the hand of the clock is at.
    hand: AtomicUsize,
    misses: AtomicU64,
    /// Pages that are read around others.
    ahead: ahead::Ahead,
    /// Which LSN pages are believed.
    trust: lsn::Trust,
    /// Position of the log above which no page at home can have its LSN (CY1).
    log_end: AtomicU64,
    /// Zeros: what a page holds that is being made.
    nothing: PageRef,
}

#[derive(Debug, Default)]
struct Shard {
    buffers: FxHashMap<Place, Arc<Buffer>>,
    /// Counts evictions: a load that began before one must look again (U2).
    evictions: u64,
    /// Uses that found the page in memory.
    hits: u64,
    /// Those that were the first use of a page that was read around another.
    ahead_used: u64,
    /// Places that pages have left: whoever still has one of them is told so.
    left: BTreeSet<Place>,
}

impl Shard {
    /// Returns the buffer of `place`, which is used now.
    fn find(&mut self, place: Place) -> Option<&Arc<Buffer>> {
        let buffer = self.buffers.get(&place)?;
        if buffer.use_of.load(Ordering::Relaxed) == AHEAD {
            self.ahead_used += 1;
        }
        buffer.use_of.store(USED, Ordering::Relaxed);
        Some(buffer)
    }
}

/// What the cache has done so far.
#[derive(Clone, Copy, Debug)]
pub struct CacheCounts {
    /// Pages in memory.
    pub pages: usize,
    /// Most pages there may be.
    pub limit_pages: usize,
    /// Uses that found the page in memory.
    pub hits: u64,
    /// Uses that read the page from a device.
    pub misses: u64,
    /// Pages that were read around those that were missed.
    pub ahead: u64,
    /// Those of them that were used.
    pub ahead_used: u64,
}

impl Cache {
    /// Returns an empty cache of at most `limit_pages` clean pages.
    pub(crate) fn new(volume: Volume, pool_id: PoolId, limit_pages: usize) -> Cache {
        Cache {
            volume,
            pool_id,
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            limit_pages: limit_pages.max(SHARDS),
            count: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            misses: AtomicU64::new(0),
            ahead: ahead::Ahead::new(limit_pages.max(SHARDS)),
            trust: lsn::Trust::default(),
            log_end: AtomicU64::new(0),
            nothing: Arc::new(AlignedBuffer::zeroed(PAGE_BYTES)),
        }
    }

    /// Returns what the cache has done so far.
    pub(crate) fn counts(&self) -> CacheCounts {
        CacheCounts {
            pages: self.count.load(Ordering::Relaxed),
            limit_pages: self.limit_pages,
            hits: self.shards.iter().map(|shard| shard.lock().hits).sum(),
            misses: self.misses.load(Ordering::Relaxed),
            ahead: self.ahead.read(),
            ahead_used: self.ahead_used(),
        }
    }

    fn ahead_used(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().ahead_used).sum()
    }

    /// Identity of the pool, for new page headers.
    pub(crate) fn pool_id(&self) -> PoolId {
        self.pool_id
    }

    /// Returns the most clean pages that it keeps.
    pub(crate) fn limit_pages(&self) -> usize {
        self.limit_pages
    }

    fn shard(&self, place: Place) -> &Mutex<Shard> {
        let mixed = place.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[index_wide(mixed) % SHARDS]
    }

    /// Whether the page at `place` is in memory.
    pub(crate) fn is_in_memory(&self, place: Place) -> bool {
        self.find(place).is_some()
    }

    /// Whether the page at `place` is in memory and what of it is at home, if anything is, is
    /// older: a checkpoint is to take it there.
    pub(crate) fn is_newer_in_memory(&self, place: Place) -> bool {
        let Some(buffer) = self.find(place) else { return false };
        let page = buffer.state.lock();
        // One that is being made is not dirty yet, and has no header.
        page.first_lsn.is_some() || PageHeader::parse(page_of(&page.bytes)).is_none()
    }

    fn find(&self, place: Place) -> Option<Arc<Buffer>> {
        self.shard(place).lock().find(place).map(Arc::clone)
    }

    /// Returns the page at `place`, which must be `kind` and belong to `owner`.
    ///
    /// # Errors
    ///
    /// [`FsError::Io`] if it can't be read, [`FsError::Corrupt`] if it is not that page.
    pub(crate) fn page(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<Arc<Buffer>> {
        self.look(place, (kind, owner), |buffer, _| Arc::clone(buffer))
    }

    /// As [`Cache::page`]; returns its bytes as they are now too.
    pub(crate) fn page_with_bytes(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<(Arc<Buffer>, PageRef)> {
        self.look(place, (kind, owner), |buffer, bytes| (Arc::clone(buffer), Arc::clone(bytes)))
    }

    /// As [`Cache::page`]; returns its bytes as they are now, for somebody who only reads.
    pub(crate) fn bytes(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<PageRef> {
        self.look(place, (kind, owner), |_, bytes| Arc::clone(bytes))
    }

    /// Returns the page at `place` as it is now, whatever it is.
    ///
    /// # Errors
    ///
    /// As [`Cache::page`].
    pub(crate) fn any_page(&self, place: Place) -> FsResult<PageRef> {
        let known = self.find(place);
        Ok(known.map_or_else(|| self.load_page(place), Ok)?.bytes())
    }

    /// The page at `place` is elsewhere from now on, and what lies there was left as it was: who
    /// still looks for it there finds a defect, until another page is made there.
    pub(crate) fn leave(&self, place: Place) {
        self.shard(place).lock().left.insert(place);
    }

    /// Returns what `take` takes of the page at `place`, which is read if it is not in memory.
    fn look<R>(
        &self,
        place: Place,
        expected: (PageKind, PageOwner),
        take: impl FnOnce(&Arc<Buffer>, &PageRef) -> R,
    ) -> FsResult<R> {
        {
            let mut shard = self.shard(place).lock();
            if shard.left.contains(&place) {
                return Err(corrupt(DefectCode::PG007.found(LEFT).at(place)));
            }
            if let Some(buffer) = shard.find(place) {
                let taken = take_from(buffer, expected, take);
                shard.hits += 1;
                return taken;
            }
        }
        take_from(&self.load_page(place)?, expected, take)
    }

    /// Brings the page at `place` into memory, which it was not a moment ago. Where a member did
    /// not give it, it is written again to that one.
    fn load_page(&self, place: Place) -> FsResult<Arc<Buffer>> {
        let errors = self.volume.read_errors();
        let loaded = self.load_page_from_any(place)?;
        self.mend_unread(errors, &[place]);
        Ok(loaded)
    }

    /// Writes pages again to members that did not give them, if there was any since
    /// [`Volume::read_errors`] were `errors`.
    fn mend_unread(&self, errors: u64, places: &[Place]) {
        let is_in_vain = || !self.volume.mends() || planted::is(Planted::UnreadNotMended);
        if self.volume.read_errors() == errors || is_in_vain() {
            return;
        }
        for place in places {
            // What is still bad has been read all the same.
            let _ = self.mend(*place);
        }
    }

    fn load_page_from_any(&self, place: Place) -> FsResult<Arc<Buffer>> {
        self.misses.fetch_add(1, Ordering::Relaxed);
        if let Some(buffer) = self.load_around(place) {
            return Ok(buffer);
        }
        self.make_room();
        let listed = self.listed(place);
        for _ in 0..LOAD_TRIES_MAX {
            let evictions = self.shard(place).lock().evictions;
            let bytes = self.load(place, listed.as_ref())?;
            let mut shard = self.shard(place).lock();
            if let Some(buffer) = shard.buffers.get(&place) {
                return Ok(Arc::clone(buffer));
            }
            // What was read may be older than what was evicted meanwhile (U2).
            if shard.evictions == evictions {
                self.compare_lsn(place, &bytes, listed.as_ref())?;
                return Ok(self.insert(&mut shard, place, Arc::new(bytes)));
            }
        }
        let mut shard = self.shard(place).lock();
        if let Some(buffer) = shard.buffers.get(&place) {
            return Ok(Arc::clone(buffer));
        }
        let bytes = self.load(place, listed.as_ref())?;
        self.compare_lsn(place, &bytes, listed.as_ref())?;
        Ok(self.insert(&mut shard, place, Arc::new(bytes)))
    }

    /// Reads the pages at `places` that are not in memory, with one call to the device. What can't
    /// be read, or is evicted at once, is left to whoever asks for it.
    pub(crate) fn bring_in(&self, mut places: Vec<Place>) {
        places.retain(|place| self.find(*place).is_none());
        places.iter().for_each(|_| self.make_room());
        let evictions = |place: &Place| self.shard(*place).lock().evictions;
        let before: Vec<u64> = places.iter().map(evictions).collect();
        let reads = places.iter().map(|place| (*place, PAGE_BYTES));
        let errors = self.volume.read_errors();
        let tickets = self.volume.submit_reads(Purpose::Home, reads);
        for ((&place, before), ticket) in places.iter().zip(before).zip(tickets) {
            let Some(bytes) = ticket.wait().ok().and_then(|answer| answer.buffer) else { continue };
            let Ok(bytes) = self.verified(place, bytes) else { continue };
            let listed = self.listed(place);
            if self.volume.has_copies() && !self.is_told(listed.as_ref()) {
                continue;
            }
            let mut shard = self.shard(place).lock();
            // U2, as for a page that is read alone.
            if shard.evictions == before
                && !shard.buffers.contains_key(&place)
                && self.compare_lsn(place, &bytes, listed.as_ref()).is_ok()
            {
                self.misses.fetch_add(1, Ordering::Relaxed);
                self.insert(&mut shard, place, Arc::new(bytes));
            }
        }
        self.mend_unread(errors, &places);
    }

    /// Reads the page at `place`: of several copies the one that is right (CY1).
    fn load(&self, place: Place, listed: Option<&lsn::Listed>) -> FsResult<AlignedBuffer> {
        let is_told = self.is_told(listed);
        if !is_told && let Some(bytes) = self.right_copy(place, listed) {
            return Ok(bytes);
        }
        let bytes = self.volume.read_page(Purpose::Home, place).map_err(io)?;
        let verified = self.verified(place, bytes);
        if verified.as_ref().is_ok_and(|bytes| !is_told || self.is_current(bytes, listed)) {
            return verified;
        }
        self.right_copy(place, listed).map_or(verified, Ok)
    }

    /// Writes the page at `place` again where it is bad on a member and good on another; `None`: no
    /// copy is a page of that place, or all are to be what memory has.
    pub(crate) fn mend(&self, place: Place) -> Option<Healed> {
        let mut healed = self.mend_once(place)?;
        for _ in 1..LOAD_TRIES_MAX {
            let is_found = !matches!(&healed, Ok(Healed { bytes: None, .. }));
            if is_found || planted::is(Planted::CheckpointIsLoss) {
                break;
            }
            // A checkpoint lists the LSN of a page before it takes that home: what is in memory is
            // what both copies get, and what is no more there they have got.
            if self.find(place).is_some() {
                return None;
            }
            healed = self.mend_once(place)?;
        }
        healed.ok()
    }

    /// Looks for the page at `place`, where it is not what went home last, on the member in `slot`,
    /// which has come back, and writes it again to the others. Its copy is taken only if the LSN
    /// page lists its LSN: it may be of before (RN5).
    pub(crate) fn save_from(&self, slot: usize, place: Place) {
        let Some(listed) = self.listed(place).filter(lsn::Listed::is_trusted) else { return };
        let is_it = |bytes: &[u8]| {
            let page = self.verified(place, AlignedBuffer::copy_of(bytes));
            page.is_ok_and(|page| {
                self.is_listed(&page, &listed) || planted::is(Planted::ReturnSavesStale)
            })
        };
        let found = self.volume.read_page(Purpose::Home, place);
        if found.is_ok_and(|page| is_it(&page)) {
            return;
        }
        match self.volume.heal_with(slot, Purpose::Home, place, PAGE_BYTES, &is_it) {
            Ok(Healed { bytes: Some(_), repaired, .. }) => {
                tracing::warn!(%place, repaired, "only a member that came back had a page");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%place, %error, "a page cannot be written again"),
        }
    }

    /// Returns what was read from `place`, if it is a page of that place.
    fn verified(&self, place: Place, bytes: AlignedBuffer) -> FsResult<AlignedBuffer> {
        self.verify(place, page_of(&bytes))?;
        Ok(bytes)
    }

    /// Returns an error if `bytes` are not a page of that place.
    fn verify(&self, place: Place, bytes: &PageBytes) -> FsResult<()> {
        let header = if planted::is(Planted::PageChecksumNotCompared) {
            PageHeader::parse(bytes).ok_or_else(|| unknown_kind(place))?
        } else {
            PageHeader::decode(bytes, self.pool_id, place).map_err(corrupt)?
        };
        verify_content(&header, bytes)
    }

    fn insert(&self, shard: &mut Shard, place: Place, bytes: PageRef) -> Arc<Buffer> {
        let state = BufferState { bytes, first_lsn: None, round: 0, last_lsn: Lsn(0) };
        let buffer = Arc::new(Buffer {
            place,
            state: Mutex::new(state),
            class: AtomicU64::new(0),
            use_of: AtomicU8::new(USED),
        });
        shard.buffers.insert(place, Arc::clone(&buffer));
        self.count.fetch_add(1, Ordering::Relaxed);
        buffer
    }

    /// Returns the buffer of a page that is being made new; what it held does not matter.
    pub(crate) fn fresh(&self, place: Place) -> Arc<Buffer> {
        {
            let mut shard = self.shard(place).lock();
            shard.left.remove(&place);
            if let Some(buffer) = shard.find(place) {
                return Arc::clone(buffer);
            }
        }
        self.make_room();
        let mut shard = self.shard(place).lock();
        if let Some(buffer) = shard.buffers.get(&place) {
            return Arc::clone(buffer);
        }
        self.insert(&mut shard, place, Arc::clone(&self.nothing))
    }

    /// Evicts clean pages that nobody uses until there is room for one more, or none is left.
    fn make_room(&self) {
        let mut rounds = 0;
        while self.count.load(Ordering::Relaxed) >= self.limit_pages && rounds < 2 * SHARDS {
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            self.sweep(&mut self.shards[at].lock());
            rounds += 1;
        }
    }

    /// One turn of the clock over a shard: what was not used since the last turn goes.
    fn sweep(&self, shard: &mut Shard) {
        let mut victims: Vec<Place> = shard
            .buffers
            .values()
            .filter(|buffer| {
                let is_clean = || buffer.state.lock().first_lsn.is_none();
                if planted::is(Planted::DirtyPageEvicted) {
                    return true;
                }
                Arc::strong_count(buffer) == 1
                    && buffer.use_of.swap(UNUSED, Ordering::Relaxed) != USED
                    && is_clean()
            })
            .map(|buffer| buffer.place)
            .collect();
        // The order of a hash map must not show: places decide.
        victims.sort_unstable();
        victims.truncate(1 + shard.buffers.len() / 4);
        for place in &victims {
            shard.buffers.remove(place);
        }
        if !victims.is_empty() {
            shard.evictions += 1;
            self.count.fetch_sub(victims.len(), Ordering::Relaxed);
        }
    }
}

/// Returns what `take` takes of a page, if its kind and owner are those that are expected.
fn take_from<R>(
    buffer: &Arc<Buffer>,
    (kind, owner): (PageKind, PageOwner),
    take: impl FnOnce(&Arc<Buffer>, &PageRef) -> R,
) -> FsResult<R> {
    let state = buffer.state.lock();
    PageHeader::expect_in(page_of(&state.bytes), kind, owner).map_err(corrupt)?;
    Ok(take(buffer, &state.bytes))
}

/// Checks what a page says of itself beyond its header, once, when it is read: those who change it
/// rely on it.
fn verify_content(header: &PageHeader, bytes: &PageBytes) -> FsResult<()> {
    if header.kind == PageKind::Directory {
        return format::directory::verify(bytes, header.owner.index)
            .map_err(|defect| bad_content(header, defect.into()));
    }
    if header.kind == PageKind::Attributes {
        return format::attributes::verify(bytes)
            .map_err(|defect| bad_content(header, defect.into()));
    }
    Ok(())
}

/// A device error as the caller of a file operation sees it.
pub(crate) fn io(error: storage::device::DeviceError) -> FsError {
    if matches!(error, storage::device::DeviceError::NoSpace { .. }) {
        return FsError::NoSpace;
    }
    FsError::io(error.to_string())
}

/// A defect as the caller of a file operation sees it.
pub(crate) fn corrupt(defect: impl Into<Defect>) -> FsError {
    FsError::from(defect.into())
}

fn bad_content(header: &PageHeader, defect: Defect) -> FsError {
    let PageOwner { fileset, anode, index, .. } = header.owner;
    let what = format!("{} (page {index})", defect.what);
    corrupt(Defect { what, ..defect }.of(fileset, anode).at(header.place))
}

fn unknown_kind(place: Place) -> FsError {
    corrupt(format::page::PageError::UnknownKind { place, found: 0 })
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use format::geometry::{Geometry, GeometryOptions};
    use format::page::stamp;
    use storage::device::{Device, DeviceInfo, MemoryDevice, Operation, SharedDevice, Ticket};

    use super::*;

    /// A device during whose reads the cache evicts something, unless its shard is locked.
    #[derive(Debug)]
    struct Spoiler {
        inner: SharedDevice,
        cache: OnceLock<Weak<Cache>>,
        place: Place,
        reads: AtomicU64,
    }

    impl Device for Spoiler {
        fn info(&self) -> &DeviceInfo {
            self.inner.info()
        }

        fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let cache = self.cache.get().and_then(Weak::upgrade).expect("it is in use");
            if let Some(mut shard) = cache.shard(self.place).try_lock() {
                shard.evictions += 1;
            }
            self.inner.submit(purpose, operation)
        }
    }

    /// Goal: a load ends however often it is spoilt. Method: each load is, as long as its shard is
    /// not locked.
    #[test]
    fn a_page_is_loaded_within_a_bounded_number_of_tries() {
        let options = GeometryOptions {
            device_bytes: 16 << 20,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        };
        let geometry = Geometry::plan(&options).expect("a pool fits");
        let place = geometry.group_table_root_place();
        let pool_id = PoolId([7; 16]);
        let inner: SharedDevice = MemoryDevice::new("memory", 16 << 20);
        let mut bytes = [0; format::page::PAGE_BYTES];
        PageHeader::new(PageKind::GroupTableRoot, pool_id, place, PageOwner::default())
            .encode(&mut bytes);
        stamp(&mut bytes, Lsn(1));
        let offset = geometry.device_offset(place, 1).expect("it is in the pool");
        inner
            .write(Purpose::Home, offset, AlignedBuffer::copy_of(&bytes))
            .expect("memory does not fail");
        let (cache, reads) = (OnceLock::new(), AtomicU64::new(0));
        let spoiler = Arc::new(Spoiler { inner, cache, place, reads });
        let device: SharedDevice = Arc::<Spoiler>::clone(&spoiler);
        let cache = Arc::new(Cache::new(Volume::new(device, geometry), pool_id, 256));
        spoiler.cache.set(Arc::downgrade(&cache)).expect("set once");
        cache.page(place, PageKind::GroupTableRoot, PageOwner::default()).expect("it is there");
        // One more: its LSN page, which is not there.
        assert_eq!(spoiler.reads.load(Ordering::SeqCst), u64::from(LOAD_TRIES_MAX) + 2);
    }
}
