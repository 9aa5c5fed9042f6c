//! Pages that are read around one that is missed, with it, in one read.
//!
//! # Invariants
//!
//! - AP1: A page that was not asked for comes into memory only if it verifies as the page of its
//!   place and agrees with its LSN page, and only under the rules of one that was asked for (U2,
//!   LC1). What does not is left alone, silently: nobody may need it, and whoever does is told.
//!
//! What lies around a page may be free, and hold anything. A page is made new before a pointer
//! leads to it, whatever is in memory in its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Place;
use format::page::PAGE_BYTES;
use storage::device::{AlignedBuffer, Purpose};

use super::around::{AroundPolicy, Missed, ReadAround};
use super::{AHEAD, Buffer, Cache};
use crate::convert::{index, narrow, wide};
use crate::sync::Mutex;

/// What is read around a page at first.
const FIRST_BYTES: u64 = 64 << 10;
/// Most that is: verifying a page takes time too.
const WINDOW_BYTES_MAX: u64 = 64 << 10;
/// Of the pages that the cache may hold, the part that a window may be.
const CACHE_SHARE: usize = 16;

/// Pages that are read around others.
#[derive(Debug)]
pub(super) struct Ahead {
    state: Mutex<State>,
    /// Pages that were brought in so.
    read: AtomicU64,
}

#[derive(Debug)]
struct State {
    missed: Missed,
    policy: ReadAround,
    /// Pages brought in, and used, when the policy was told last.
    told: (u64, u64),
}

/// Pages side by side.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: Place,
    pages: usize,
}

impl Ahead {
    /// Returns what is known at first beside a cache of `limit_pages`.
    pub(super) fn new(limit_pages: usize) -> Ahead {
        let share = wide(limit_pages / CACHE_SHARE * PAGE_BYTES);
        let policy = ReadAround::new(FIRST_BYTES, WINDOW_BYTES_MAX.min(share));
        let state = State { missed: Missed::default(), policy, told: (0, 0) };
        Ahead { state: Mutex::new(state), read: AtomicU64::new(0) }
    }

    /// Returns how many pages were brought in.
    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Cache {
    /// Reads what lies around the page at `place` with it, if that is worth it. Returns the page,
    /// `None` if it is to be read alone.
    pub(super) fn load_around(&self, place: Place) -> Option<Arc<Buffer>> {
        let window = self.window(place)?;
        let places: Vec<Place> = self.places_in(window).collect();
        // As for pages that are asked for (U2): what is read may be older than what is evicted.
        let evictions: Vec<u64> =
            places.iter().map(|place| self.shard(*place).lock().evictions).collect();
        let bytes = self.volume.read(Purpose::Home, window.start, window.pages * PAGE_BYTES);
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

    /// Brings `page`, read from `place`, into memory if it is not there, and is what went home
    /// last.
    fn bring_one(
        &self,
        place: Place,
        evictions: u64,
        page: &[u8; PAGE_BYTES],
        is_asked: bool,
    ) -> Option<Arc<Buffer>> {
        if let Some(buffer) = self.shard(place).lock().buffers.get(&place) {
            return Some(Arc::clone(buffer));
        }
        let bytes = self.verified(place, AlignedBuffer::copy_of(page)).ok()?;
        let listed = self.listed(place);
        if self.volume.has_copies() && !self.is_told(listed.as_ref()) {
            // CY3: it is read alone, in all copies.
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

    /// Returns the pages to read around `place`, itself among them.
    fn window(&self, place: Place) -> Option<Window> {
        let geometry = self.volume.geometry();
        // Neither LSN pages, which the others are compared with, nor what has no neighbours.
        geometry.lsn_entry(place)?;
        let (page, segment) = (geometry.page_fragments(), geometry.segment_fragments);
        let first = place.fragment();
        // A pointer may name any place.
        let segment_start = first / segment * segment;
        let segment_end = segment_start.checked_add(segment)?;
        if place.disk_group() != 0 {
            return None;
        }
        let at = |fragment: u32| Place::new(0, place.group(), fragment);
        let wanted = self.wanted_bytes(at(segment_start), place) >> geometry.fragment_shift;
        // A power of two, as segments are.
        let wanted = narrow(1 << wanted.checked_ilog2()?).min(segment);
        let start = segment_start + (first - segment_start) / wanted * wanted;
        let pages = start..(start + wanted).min(segment_end);
        let pages: Vec<Place> = pages.step_by(index(page)).map(at).collect();
        // Those at the ends that are here already need not be read.
        let is_here = |at: &Place| *at != place && self.shard(*at).lock().buffers.contains_key(at);
        let before = pages.iter().take_while(|at| is_here(at)).count();
        let behind = pages.iter().rev().take_while(|at| is_here(at)).count();
        let count = pages.len().checked_sub(before + behind).filter(|count| *count > 1)?;
        Some(Window { start: *pages.get(before)?, pages: count })
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

    fn places_in(&self, window: Window) -> impl Iterator<Item = Place> {
        let page = index(self.volume.geometry().page_fragments());
        let ahead = (0..window.pages).map(move |count| narrow(wide(count * page)));
        ahead.map(move |ahead| window.start.advance(ahead))
    }
}
