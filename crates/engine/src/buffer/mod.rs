//! The cache of metadata pages.
//!
//! A cached page is a [`PageBuffer`]. Readers take its bytes ([`PageBuffer::bytes`]) and use them
//! without a lock; a change copies the bytes if a reader still holds them. Buffers never write
//! themselves:
//! `journal::checkpoint` writes them, after their records are durable.
//!
//! # Invariants
//!
//! - U1: A dirty buffer is in the cache: only clean, unreferenced ones are evicted.
//! - U2: There is at most one buffer of a place.
//!
//! # Concurrency
//!
//! Cache shards are locked before buffers. Neither lock is held over I/O, except by a load that
//! evictions have voided [`LOAD_TRIES_MAX`] times. A page that two threads miss at once is read
//! twice and cached once.

mod ahead;
mod around;
mod lsn;
mod newest;

pub(crate) use around::{AroundPolicy, ReadAround, RecentMisses};
pub use lsn::LsnCounts;
pub(crate) use newest::newest_copy;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use format::defect::{Defect, DefectCode};
use format::ids::{Lsn, Place, PoolId};
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind, PageOwner};
use runtime::{if_planted, planted};
use rustc_hash::FxHashMap;
use storage::device::{AlignedBuffer, IoPurpose};
use storage::volume::{RepairOutcome, Volume};

use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// Attempts to load a page without its shard's lock. An eviction during the read voids it. The last
/// attempt holds the lock. Also the attempts to repair a page.
const LOAD_TRIES_MAX: u32 = 8;
const LEFT: &str = "the page was moved, and somebody looks for it where it was";
const SHARDS: usize = 64;

/// Not used since the last sweep.
const UNUSED: u8 = 0;
/// Used since the last sweep.
const USED: u8 = 1;
/// Read around another page and not yet used: evicted first.
const AHEAD: u8 = 2;

pub(crate) type PageRef = Arc<AlignedBuffer>;

pub(crate) fn page_of(buffer: &AlignedBuffer) -> &PageBytes {
    buffer.first_chunk().expect("page buffers are 4096 bytes long")
}

pub(crate) fn page_of_mut(buffer: &mut AlignedBuffer) -> &mut PageBytes {
    buffer.first_chunk_mut().expect("page buffers are 4096 bytes long")
}

#[derive(Debug)]
pub(crate) struct PageBuffer {
    /// Home location.
    pub(crate) place: Place,
    pub(crate) state: Mutex<BufferState>,
    /// The open class that has changed the page; 0 for none. Accessed only under the journal
    /// manager's lock.
    class: AtomicU64,
    /// [`UNUSED`], [`USED`] or [`AHEAD`]. Set at each use, cleared by [`Cache::sweep`].
    use_of: AtomicU8,
}

#[derive(Debug)]
pub(crate) struct BufferState {
    pub(crate) bytes: PageRef,
    /// First record not yet written back; `None` if the page is clean.
    pub(crate) first_lsn: Option<Lsn>,
    pub(crate) round: u64,
    pub(crate) last_lsn: Lsn,
}

impl PageBuffer {
    pub(crate) fn bytes(&self) -> PageRef {
        Arc::clone(&self.state.lock().bytes)
    }

    pub(crate) fn class(&self) -> u64 {
        self.class.load(Ordering::Relaxed)
    }

    pub(crate) fn set_class(&self, class: u64) {
        self.class.store(class, Ordering::Relaxed);
    }
}

/// A bounded cache of pages. Dirty pages may exceed the bound.
#[derive(Debug)]
pub(crate) struct Cache {
    volume: Volume,
    pool_id: PoolId,
    shards: Vec<Mutex<CacheShard>>,
    limit_pages: usize,
    count: AtomicUsize,
    hand: AtomicUsize,
    misses: AtomicU64,
    ahead: ahead::PageReadahead,
    trust: lsn::LsnPageTrust,
    /// End of the log: no written-back page has a higher LSN (CY1).
    log_end: AtomicU64,
    nothing: PageRef,
}

#[derive(Debug, Default)]
struct CacheShard {
    buffers: FxHashMap<Place, Arc<PageBuffer>>,
    /// Counts evictions: a load during which it changes is void (U2).
    evictions: u64,
    hits: u64,
    ahead_used: u64,
    /// Places that pages have left: a lookup of one is a defect.
    left: BTreeSet<Place>,
}

impl CacheShard {
    fn find(&mut self, place: Place) -> Option<&Arc<PageBuffer>> {
        let buffer = self.buffers.get(&place)?;
        if buffer.use_of.load(Ordering::Relaxed) == AHEAD {
            self.ahead_used += 1;
        }
        buffer.use_of.store(USED, Ordering::Relaxed);
        Some(buffer)
    }
}

/// Activity of the cache since the pool was opened.
#[derive(Clone, Copy, Debug)]
pub struct CacheCounts {
    /// Cached pages.
    pub pages: usize,
    /// Bound of cached pages, which dirty pages may exceed.
    pub limit_pages: usize,
    /// Lookups that found the page in memory.
    pub hits: u64,
    /// Lookups that read the page from a device.
    pub misses: u64,
    /// Pages that were read around missed ones.
    pub ahead: u64,
    /// Pages that were read around missed ones, and then used.
    pub ahead_used: u64,
}

impl Cache {
    pub(crate) fn new(volume: Volume, pool_id: PoolId, limit_pages: usize) -> Cache {
        Cache {
            volume,
            pool_id,
            shards: (0..SHARDS).map(|_| Mutex::new(CacheShard::default())).collect(),
            limit_pages: limit_pages.max(SHARDS),
            count: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            misses: AtomicU64::new(0),
            ahead: ahead::PageReadahead::new(limit_pages.max(SHARDS)),
            trust: lsn::LsnPageTrust::default(),
            log_end: AtomicU64::new(0),
            nothing: Arc::new(AlignedBuffer::zeroed(PAGE_BYTES)),
        }
    }

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

    pub(crate) fn pool_id(&self) -> PoolId {
        self.pool_id
    }

    pub(crate) fn limit_pages(&self) -> usize {
        self.limit_pages
    }

    fn shard(&self, place: Place) -> &Mutex<CacheShard> {
        let mixed = place.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[index_wide(mixed) % SHARDS]
    }

    pub(crate) fn is_in_memory(&self, place: Place) -> bool {
        self.find(place).is_some()
    }

    /// Returns whether the page is cached and newer than on disk, so that a checkpoint will write
    /// it.
    pub(crate) fn is_newer_in_memory(&self, place: Place) -> bool {
        let Some(buffer) = self.find(place) else { return false };
        let page = buffer.state.lock();
        // A page under construction has no header.
        page.first_lsn.is_some() || PageHeader::parse(page_of(&page.bytes)).is_none()
    }

    fn find(&self, place: Place) -> Option<Arc<PageBuffer>> {
        self.shard(place).lock().find(place).map(Arc::clone)
    }

    /// Returns the page at `place`, which must be `kind` and belong to `owner`.
    ///
    /// # Errors
    ///
    /// [`FsError::Io`] if it cannot be read, [`FsError::Corrupt`] if it is not that page.
    pub(crate) fn page(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<Arc<PageBuffer>> {
        self.look(place, (kind, owner), |buffer, _| Arc::clone(buffer))
    }

    pub(crate) fn page_with_bytes(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<(Arc<PageBuffer>, PageRef)> {
        self.look(place, (kind, owner), |buffer, bytes| (Arc::clone(buffer), Arc::clone(bytes)))
    }

    pub(crate) fn bytes(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
    ) -> FsResult<PageRef> {
        self.look(place, (kind, owner), |_, bytes| Arc::clone(bytes))
    }

    /// Returns the current bytes of the page at `place`, whatever its kind and owner.
    ///
    /// # Errors
    ///
    /// As [`Cache::page`].
    pub(crate) fn any_page(&self, place: Place) -> FsResult<PageRef> {
        let known = self.find(place);
        Ok(known.map_or_else(|| self.load_page(place), Ok)?.bytes())
    }

    /// Marks a page as moved away from `place`: looking it up there is a defect, until another page
    /// is created there.
    pub(crate) fn leave(&self, place: Place) {
        self.shard(place).lock().left.insert(place);
    }

    fn look<R>(
        &self,
        place: Place,
        expected: (PageKind, PageOwner),
        take: impl FnOnce(&Arc<PageBuffer>, &PageRef) -> R,
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

    fn load_page(&self, place: Place) -> FsResult<Arc<PageBuffer>> {
        let errors = self.volume.read_errors();
        let loaded = self.load_page_from_any(place)?;
        self.mend_unread(errors, &[place]);
        Ok(loaded)
    }

    /// Repairs `places` on members that failed to return them, if the count of read errors is no
    /// longer `errors`.
    fn mend_unread(&self, errors: u64, places: &[Place]) {
        let is_in_vain = || !self.volume.mends() || planted!(UnreadNotMended);
        if self.volume.read_errors() == errors || is_in_vain() {
            return;
        }
        for place in places {
            let _ = self.mend(*place);
        }
    }

    fn load_page_from_any(&self, place: Place) -> FsResult<Arc<PageBuffer>> {
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

    /// Reads the pages that are not cached, in one call. Later lookups retry those that fail.
    pub(crate) fn bring_in(&self, mut places: Vec<Place>) {
        places.retain(|place| self.find(*place).is_none());
        places.iter().for_each(|_| self.make_room());
        let evictions = |place: &Place| self.shard(*place).lock().evictions;
        let before: Vec<u64> = places.iter().map(evictions).collect();
        let reads = places.iter().map(|place| (*place, PAGE_BYTES));
        let errors = self.volume.read_errors();
        let tickets = self.volume.submit_reads(IoPurpose::Home, reads);
        for ((&place, before), ticket) in places.iter().zip(before).zip(tickets) {
            let Some(bytes) = ticket.wait().ok().and_then(|answer| answer.buffer) else { continue };
            let Ok(bytes) = self.verified(place, bytes) else { continue };
            let listed = self.listed(place);
            if self.volume.has_copies() && !self.is_told(listed.as_ref()) {
                continue;
            }
            let mut shard = self.shard(place).lock();
            // An eviction during the read voids it (U2).
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

    fn load(&self, place: Place, listed: Option<&lsn::ListedLsn>) -> FsResult<AlignedBuffer> {
        let is_told = self.is_told(listed);
        if !is_told && let Some(bytes) = self.right_copy(place, listed) {
            return Ok(bytes);
        }
        let bytes = self.volume.read_page(IoPurpose::Home, place).map_err(io)?;
        let verified = self.verified(place, bytes);
        if verified.as_ref().is_ok_and(|bytes| !is_told || self.is_current(bytes, listed)) {
            return verified;
        }
        self.right_copy(place, listed).map_or(verified, Ok)
    }

    /// Rewrites the page on members with a bad copy. `None` if no copy is good, or the page is
    /// cached, so that a checkpoint may write it.
    pub(crate) fn mend(&self, place: Place) -> Option<RepairOutcome> {
        let mut healed = self.mend_once(place)?;
        for _ in 1..LOAD_TRIES_MAX {
            let is_found = !matches!(&healed, Ok(RepairOutcome { bytes: None, .. }));
            if is_found {
                break;
            }
            // A checkpoint lists a page's LSN before it writes the page. A cached page will be
            // written to all copies; one that is no longer cached was.
            if self.find(place).is_some() {
                return None;
            }
            healed = self.mend_once(place)?;
        }
        healed.ok()
    }

    /// Rewrites a page from the returned member in `slot`, whose copy may be stale: only if the LSN
    /// page lists its LSN (RN5).
    pub(crate) fn save_from(&self, slot: usize, place: Place) {
        let Some(listed) = self.listed(place).filter(lsn::ListedLsn::is_trusted) else { return };
        let is_it = |bytes: &[u8]| {
            let page = self.verified(place, AlignedBuffer::copy_of(bytes));
            page.is_ok_and(|page| self.is_listed(&page, &listed) || planted!(ReturnSavesStale))
        };
        let found = self.volume.read_page(IoPurpose::Home, place);
        if found.is_ok_and(|page| is_it(&page)) {
            return;
        }
        match self.volume.heal_with(slot, IoPurpose::Home, place, PAGE_BYTES, &is_it) {
            Ok(RepairOutcome { bytes: Some(_), repaired, .. }) => {
                tracing::warn!(%place, repaired, "only a member that came back had a page");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%place, %error, "a page cannot be written again"),
        }
    }

    fn verified(&self, place: Place, bytes: AlignedBuffer) -> FsResult<AlignedBuffer> {
        self.verify(place, page_of(&bytes))?;
        Ok(bytes)
    }

    /// Returns an error if `bytes` are not a page of that place.
    fn verify(&self, place: Place, bytes: &PageBytes) -> FsResult<()> {
        let unverified = || PageHeader::parse(bytes).filter(|_| planted!(PageChecksumNotCompared));
        let header = PageHeader::decode(bytes, self.pool_id, place);
        let header = header.or_else(|error| unverified().ok_or(error)).map_err(corrupt)?;
        verify_content(&header, bytes)
    }

    fn insert(&self, shard: &mut CacheShard, place: Place, bytes: PageRef) -> Arc<PageBuffer> {
        let state = BufferState { bytes, first_lsn: None, round: 0, last_lsn: Lsn(0) };
        let buffer = Arc::new(PageBuffer {
            place,
            state: Mutex::new(state),
            class: AtomicU64::new(0),
            use_of: AtomicU8::new(USED),
        });
        shard.buffers.insert(place, Arc::clone(&buffer));
        self.count.fetch_add(1, Ordering::Relaxed);
        buffer
    }

    /// Returns the buffer for a page that is created at `place`.
    pub(crate) fn fresh(&self, place: Place) -> Arc<PageBuffer> {
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

    /// Evicts unused pages, in at most two rounds of the clock algorithm.
    fn make_room(&self) {
        let mut rounds = 0;
        while self.count.load(Ordering::Relaxed) >= self.limit_pages && rounds < 2 * SHARDS {
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % SHARDS;
            self.sweep(&mut self.shards[at].lock());
            rounds += 1;
        }
    }

    /// Evicts at most a quarter of a shard.
    fn sweep(&self, shard: &mut CacheShard) {
        let mut victims: Vec<Place> = shard
            .buffers
            .values()
            .filter(|buffer| {
                let is_clean = || buffer.state.lock().first_lsn.is_none();
                if_planted!(DirtyPageEvicted, return true);
                Arc::strong_count(buffer) == 1
                    && buffer.use_of.swap(UNUSED, Ordering::Relaxed) != USED
                    && is_clean()
            })
            .map(|buffer| buffer.place)
            .collect();
        // Sorted, so that the order of the hash map has no effect.
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

fn take_from<R>(
    buffer: &Arc<PageBuffer>,
    (kind, owner): (PageKind, PageOwner),
    take: impl FnOnce(&Arc<PageBuffer>, &PageRef) -> R,
) -> FsResult<R> {
    let state = buffer.state.lock();
    PageHeader::expect_in(page_of(&state.bytes), kind, owner).map_err(corrupt)?;
    Ok(take(buffer, &state.bytes))
}

/// Verifies the content beyond the header, once: changes rely on it.
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

pub(crate) fn io(error: storage::device::DeviceError) -> FsError {
    if matches!(error, storage::device::DeviceError::NoSpace { .. }) {
        return FsError::NoSpace;
    }
    FsError::io(error.to_string())
}

pub(crate) fn corrupt(defect: impl Into<Defect>) -> FsError {
    FsError::from(defect.into())
}

fn bad_content(header: &PageHeader, defect: Defect) -> FsError {
    let PageOwner { fileset, anode, index, .. } = header.owner;
    let what = format!("{} (page {index})", defect.what);
    corrupt(Defect { what, ..defect }.of(fileset, anode).at(header.place))
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, Weak};

    use format::geometry::{Geometry, GeometryOptions};
    use format::page::stamp;
    use storage::device::{
        Device, DeviceInfo, DeviceOperation, MemoryDevice, SharedDevice, Ticket,
    };

    use super::*;

    /// A device whose reads count as evictions of the cache, unless the shard is locked.
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

        fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
            self.reads.fetch_add(1, Ordering::SeqCst);
            let cache = self.cache.get().and_then(Weak::upgrade).expect("it is in use");
            if let Some(mut shard) = cache.shard(self.place).try_lock() {
                shard.evictions += 1;
            }
            self.inner.submit(purpose, operation)
        }
    }

    /// Goal: a load ends however often it is spoilt. Method: each load is, unless its shard is
    /// locked.
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
            .write(IoPurpose::Home, offset, AlignedBuffer::copy_of(&bytes))
            .expect("memory does not fail");
        let (cache, reads) = (OnceLock::new(), AtomicU64::new(0));
        let spoiler = Arc::new(Spoiler { inner, cache, place, reads });
        let device: SharedDevice = Arc::<Spoiler>::clone(&spoiler);
        let cache = Arc::new(Cache::new(Volume::new(device, geometry), pool_id, 256));
        spoiler.cache.set(Arc::downgrade(&cache)).expect("set once");
        cache.page(place, PageKind::GroupTableRoot, PageOwner::default()).expect("it is there");
        assert_eq!(spoiler.reads.load(Ordering::SeqCst), u64::from(LOAD_TRIES_MAX) + 2);
    }
}
