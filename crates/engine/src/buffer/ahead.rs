//! Readahead: pages around a missed page, read with it in one request.
//!
//! # Invariants
//!
//! - AP1: A page read ahead enters the cache only if it verifies as the page of its place and
//!   agrees with its LSN page, under the rules of a requested page (U2, LC1). Others are dropped
//!   silently: a later request for the page reports the error.
//!
//! The surroundings of a page may be free space with any content. A page created there later
//! replaces the cached bytes before any pointer leads to its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Place;
use format::page::PAGE_BYTES;
use storage::device::{AlignedBuffer, IoPurpose};

use super::around::{AroundPolicy, ReadAround, RecentMisses};
use super::{AHEAD, Cache, PageBuffer};
use crate::convert::{index, narrow, wide};
use crate::sync::Mutex;

/// Size of the first windows.
const FIRST_BYTES: u64 = 64 << 10;
/// Largest window: verifying pages takes time too.
const WINDOW_BYTES_MAX: u64 = 64 << 10;
/// A window is at most this fraction of the cache.
const CACHE_SHARE: usize = 16;

#[derive(Debug)]
pub(super) struct PageReadahead {
    state: Mutex<PageReadaheadState>,
    read: AtomicU64,
}

#[derive(Debug)]
struct PageReadaheadState {
    missed: RecentMisses,
    policy: ReadAround,
    /// Pages read ahead, and those used, at the last `learn`.
    told: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
struct PageReadaheadWindow {
    start: Place,
    pages: usize,
}

impl PageReadahead {
    pub(super) fn new(limit_pages: usize) -> PageReadahead {
        let share = wide(limit_pages / CACHE_SHARE * PAGE_BYTES);
        let policy = ReadAround::new(FIRST_BYTES, WINDOW_BYTES_MAX.min(share));
        let state = PageReadaheadState { missed: RecentMisses::default(), policy, told: (0, 0) };
        PageReadahead { state: Mutex::new(state), read: AtomicU64::new(0) }
    }

    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Cache {
    /// Reads the page with its surroundings; `None` if the caller must read the page alone.
    pub(super) fn load_around(&self, place: Place) -> Option<Arc<PageBuffer>> {
        let window = self.window(place)?;
        let places: Vec<Place> = self.places_in(window).collect();
        // An eviction during the read voids it (U2).
        let evictions: Vec<u64> =
            places.iter().map(|place| self.shard(*place).lock().evictions).collect();
        let bytes = self.volume.read(IoPurpose::Home, window.start, window.pages * PAGE_BYTES);
        let bytes = bytes.ok()?;
        let pages = bytes.as_chunks::<PAGE_BYTES>().0;
        let mut found = None;
        for ((at, before), page) in places.into_iter().zip(evictions).zip(pages) {
            let brought = self.bring_one(at, before, page, at == place);
            if at == place {
                found = Some(brought?);
            }
        }
        found
    }

    /// Inserts `page` if it is the version last written back.
    fn bring_one(
        &self,
        place: Place,
        evictions: u64,
        page: &[u8; PAGE_BYTES],
        is_asked: bool,
    ) -> Option<Arc<PageBuffer>> {
        if let Some(buffer) = self.shard(place).lock().buffers.get(&place) {
            return Some(Arc::clone(buffer));
        }
        let bytes = self.verified(place, AlignedBuffer::copy_of(page)).ok()?;
        let listed = self.listed(place);
        if self.volume.has_copies() && !self.is_told(listed.as_ref()) {
            // Read it alone, from all copies (CY3).
            return None;
        }
        self.make_room();
        let mut shard = self.shard(place).lock();
        if shard.evictions != evictions
            || shard.buffers.contains_key(&place)
            || !self.is_current(&bytes, listed.as_ref())
        {
            return None;
        }
        let buffer = self.insert(&mut shard, place, Arc::new(bytes));
        if !is_asked {
            buffer.use_of.store(AHEAD, Ordering::Relaxed);
            self.ahead.read.fetch_add(1, Ordering::Relaxed);
        }
        Some(buffer)
    }

    fn window(&self, place: Place) -> Option<PageReadaheadWindow> {
        let geometry = self.volume.geometry();
        // LSN pages are excluded, because the others are compared with them.
        geometry.lsn_entry(place)?;
        let (page, segment) = (geometry.page_fragments(), geometry.segment_fragments);
        let first = place.fragment();
        let segment_start = first / segment * segment;
        let segment_end = segment_start.checked_add(segment)?;
        if place.disk_group() != 0 {
            return None;
        }
        let at = |fragment: u32| Place::new(0, place.group(), fragment);
        let wanted = self.wanted_bytes(at(segment_start), place) >> geometry.fragment_shift;
        let wanted = narrow(1 << wanted.checked_ilog2()?).min(segment);
        let start = segment_start + (first - segment_start) / wanted * wanted;
        let pages = start..(start + wanted).min(segment_end);
        let pages: Vec<Place> = pages.step_by(index(page)).map(at).collect();
        let is_here = |at: &Place| *at != place && self.shard(*at).lock().buffers.contains_key(at);
        let before = pages.iter().take_while(|at| is_here(at)).count();
        let behind = pages.iter().rev().take_while(|at| is_here(at)).count();
        let count = pages.len().checked_sub(before + behind).filter(|count| *count > 1)?;
        Some(PageReadaheadWindow { start: *pages.get(before)?, pages: count })
    }

    fn wanted_bytes(&self, segment: Place, place: Place) -> u64 {
        let mut state = self.ahead.state.lock();
        let is_second = state.missed.note(segment, place);
        let wanted = state.policy.bytes(is_second);
        if wanted > 0 {
            let now = (self.ahead.read(), self.ahead_used());
            let (read, used) = (now.0 - state.told.0, now.1 - state.told.1);
            state.told = now;
            state.policy.learn(used, read);
        }
        wanted
    }

    fn places_in(&self, window: PageReadaheadWindow) -> impl Iterator<Item = Place> {
        let page = index(self.volume.geometry().page_fragments());
        let ahead = (0..window.pages).map(move |count| narrow(wide(count * page)));
        ahead.map(move |ahead| window.start.advance(ahead))
    }
}
