//! The segment cache: bytes of closed segments around small files.
//!
//! Small files written one after the other are neighbours in a segment, and are often read
//! together. After a second miss in a segment, the surroundings of the block are read with it, and
//! later reads find them in memory (Shirriff, "Sawmill: A Logging File System for a
//! High-Performance RAID Disk Array", 1995, sections 4.3.3 and 4.3.4). Files above
//! [`SMALL_FILE_BYTES`] bypass the cache: streams and random reads neither fill nor empty it.
//!
//! Chunks obey [`super::chunks`] (SC1 to SC3).
//!
//! # Concurrency
//!
//! One lock, a leaf, not held during device I/O.
//!
//! Not here: the length of a read around a block (`buffer`).

use std::collections::VecDeque;

use format::geometry::Geometry;
use format::ids::Place;
use storage::device::SharedBytes;

use super::chunks::{ChunkCache, ChunkFill};
use crate::alloc::{Extent, SegmentId};
use crate::buffer::{AroundPolicy, ReadAround, RecentMisses};
use crate::convert::{index_wide, wide};
use crate::sync::Mutex;

/// The longest file to use the cache: small files dominate a cold read of a tree.
pub(crate) const SMALL_FILE_BYTES: u64 = 32 << 10;
/// Memory limit: the segments that a walk of a tree returns to.
const CACHE_BYTES_MAX: usize = 32 << 20;
/// Divisor of the page cache size, for a second limit.
const CACHE_SHARE: usize = 8;
/// The first read around a block: several small files, and hardly slower than one.
const FIRST_BYTES: u64 = 128 << 10;
/// A chunk is judged when this many have been read after it.
const CHUNKS_TO_JUDGE: usize = 32;

/// Counts of the segment cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentCacheCounts {
    /// Bytes in memory.
    pub held_bytes: u64,
    /// Limit of `held_bytes`.
    pub limit_bytes: u64,
    /// Reads of small files served from memory.
    pub hits: u64,
    /// Reads of small files from the device.
    pub misses: u64,
    /// Bytes read beyond those requested.
    pub ahead_bytes: u64,
    /// Bytes served from memory.
    pub used_bytes: u64,
    /// Blocks in memory that failed their check, and were read again.
    pub refused: u64,
}

#[derive(Debug)]
pub(crate) enum SegmentCacheLookup {
    /// In memory: a buffer, and the offset of the extent in it.
    Held(SharedBytes, usize),
    /// To be read: the extent and its surroundings.
    Fill(ChunkFill),
    Alone,
}

#[derive(Debug)]
struct SegmentCacheState {
    chunks: ChunkCache,
    missed: RecentMisses,
    /// The last chunks, not yet judged.
    young: VecDeque<Place>,
    around: ReadAround,
    counts: SegmentCacheCounts,
}

#[derive(Debug)]
pub(crate) struct SegmentCache {
    limit_bytes: usize,
    page_fragments: u32,
    segment_fragments: u32,
    fragment_shift: u8,
    state: Mutex<SegmentCacheState>,
}

impl SegmentCache {
    pub(super) fn new(geometry: &Geometry, cache_bytes: usize) -> SegmentCache {
        SegmentCache {
            limit_bytes: (cache_bytes / CACHE_SHARE).min(CACHE_BYTES_MAX),
            page_fragments: geometry.page_fragments(),
            segment_fragments: geometry.segment_fragments,
            fragment_shift: geometry.fragment_shift,
            state: Mutex::new(SegmentCacheState {
                chunks: ChunkCache::new(geometry),
                missed: RecentMisses::default(),
                young: VecDeque::new(),
                around: ReadAround::new(FIRST_BYTES, geometry.segment_bytes()),
                counts: SegmentCacheCounts::default(),
            }),
        }
    }

    /// Notes that the segment was opened (SC1), before its first block is placed.
    pub(super) fn opened(&self, id: SegmentId) {
        let mut state = self.state.lock();
        let start = state.chunks.start_of(id);
        state.missed.forget(start);
        // Chunks dropped by a reopening are not judged.
        for place in state.chunks.opened(id) {
            state.young.retain(|young| *young != place);
        }
    }

    /// Notes that all writes to the segment have ended.
    pub(super) fn closed(&self, id: SegmentId) {
        self.state.lock().chunks.closed(id);
    }

    /// Looks up an extent of a small file. The caller holds the file's lock.
    pub(crate) fn look(&self, extent: Extent) -> SegmentCacheLookup {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Some((data, before)) = state.held(extent) {
            return SegmentCacheLookup::Held(data, before);
        }
        state.counts.misses += 1;
        if state.chunks.is_open(extent.place) || self.limit_bytes == 0 {
            return SegmentCacheLookup::Alone;
        }
        let segment = state.chunks.start_of(state.chunks.segment_of(extent.place));
        let is_second = state.missed.note(segment, extent.place);
        let wanted = state.around.bytes(is_second);
        match self.around(state, extent, wanted) {
            Some(around) => SegmentCacheLookup::Fill(state.chunks.begin(around)),
            None => SegmentCacheLookup::Alone,
        }
    }

    pub(crate) fn held_now(&self, extent: Extent) -> Option<(SharedBytes, usize)> {
        self.state.lock().held(extent)
    }

    /// Returns an aligned window around `extent`, outside of other chunks. `None` if it is no
    /// longer than the extent.
    fn around(&self, state: &SegmentCacheState, extent: Extent, wanted: u64) -> Option<Extent> {
        let (first, count) = (extent.place.fragment(), extent.fragments);
        let wanted = wanted.min(wide(self.limit_bytes / 2)) >> self.fragment_shift;
        // A power of two, to start at a page boundary.
        let wanted = wanted.checked_ilog2().map_or(0, |log| 1_u64 << log);
        let wanted = u32::try_from(wanted).ok()?.min(self.segment_fragments);
        // A damaged pointer may name any extent.
        let segment_start = first / self.segment_fragments * self.segment_fragments;
        let segment_end = segment_start.checked_add(self.segment_fragments)?;
        let last = first.checked_add(count)?;
        if wanted <= count || last > segment_end {
            return None;
        }
        let inside = first - segment_start;
        let mut start = segment_start + inside / wanted * wanted;
        let mut end = (start + wanted).max(last).next_multiple_of(self.page_fragments);
        end = end.min(segment_end);
        let group = extent.place.group();
        let of_group = |fragment: u32| Place::new(extent.place.disk_group(), group, fragment);
        for other in state.chunks.taken(of_group(segment_start), of_group(segment_end)) {
            let (from, to) = (other.place.fragment(), other.place.fragment() + other.fragments);
            if to <= first {
                start = start.max(to);
            } else if from >= last {
                end = end.min(from);
            } else {
                return None;
            }
        }
        let fragments = end.checked_sub(start).filter(|fragments| *fragments > count)?;
        Some(Extent { place: of_group(start), fragments })
    }

    /// Ends a read of a chunk, with its data on success.
    pub(crate) fn end_fill(&self, fill: &ChunkFill, asked: Extent, data: Option<&SharedBytes>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if data.is_some() {
            let ahead = fill.extent.fragments - asked.fragments;
            state.counts.ahead_bytes += wide(state.chunks.bytes_of(ahead));
        }
        if !state.chunks.end(fill, asked.fragments, data) {
            return;
        }
        state.young.push_back(fill.extent.place);
        if state.young.len() > CHUNKS_TO_JUDGE
            && let Some(place) = state.young.pop_front()
        {
            state.judge(place);
        }
        while index_wide(state.chunks.held_bytes()) > self.limit_bytes
            && let Some(place) = state.chunks.oldest()
        {
            state.remove(place);
        }
    }

    /// Drops the chunk with a block that failed its check (SC2).
    pub(crate) fn refuse(&self, place: Place) {
        let mut state = self.state.lock();
        state.counts.refused += 1;
        if let Some(start) = state.chunks.around(place) {
            state.remove(start);
        }
    }

    pub(crate) fn counts(&self) -> SegmentCacheCounts {
        let state = self.state.lock();
        let held_bytes = state.chunks.held_bytes();
        SegmentCacheCounts { held_bytes, limit_bytes: wide(self.limit_bytes), ..state.counts }
    }
}

impl SegmentCacheState {
    fn held(&mut self, extent: Extent) -> Option<(SharedBytes, usize)> {
        let held = self.chunks.held(extent)?;
        self.counts.hits += 1;
        self.counts.used_bytes += wide(self.chunks.bytes_of(extent.fragments));
        Some(held)
    }

    /// Reports to the readahead policy how much of a chunk was used.
    fn judge(&mut self, place: Place) {
        let Some(chunk) = self.chunks.get(place) else { return };
        let ahead = u64::from(chunk.ahead_fragments);
        self.around.learn(chunk.used_fragments.min(ahead), ahead);
    }

    fn remove(&mut self, place: Place) {
        if let Some(at) = self.young.iter().position(|young| *young == place) {
            self.young.remove(at);
            self.judge(place);
        }
        self.chunks.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use format::geometry::GeometryOptions;
    use storage::device::AlignedBuffer;

    use super::*;

    const FRAGMENT_BYTES: usize = 4096;
    /// Page cache size for a segment cache of 2 MiB.
    const CACHE_BYTES: usize = 16 << 20;
    const SEGMENT: SegmentId = SegmentId { group: 1, segment: 2 };

    fn cache() -> SegmentCache {
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: 1 << 30,
            fragment_bytes: 4096,
            segment_bytes: Some(1 << 20),
            group_bytes: None,
            journal_bytes: None,
        });
        SegmentCache::new(&geometry.expect("a pool fits"), CACHE_BYTES)
    }

    /// Two fragments of a segment of 256.
    fn at(segment: u32, fragment: u32) -> Extent {
        Extent { place: Place::new(0, 1, 256 * segment + fragment), fragments: 2 }
    }

    /// Misses until a read includes surroundings of `extent`.
    fn miss(cache: &SegmentCache, extent: Extent) -> ChunkFill {
        match cache.look(extent) {
            SegmentCacheLookup::Fill(fill) => fill,
            other @ (SegmentCacheLookup::Held(..) | SegmentCacheLookup::Alone) => {
                panic!("{other:?}")
            }
        }
    }

    fn bring(cache: &SegmentCache, fill: &ChunkFill, asked: Extent) {
        let length = index_wide(fill.extent.fragments.into()) * FRAGMENT_BYTES;
        cache.end_fill(fill, asked, Some(&AlignedBuffer::zeroed(length).into()));
    }

    fn filled() -> SegmentCache {
        let cache = cache();
        assert!(
            matches!(cache.look(at(2, 40)), SegmentCacheLookup::Alone),
            "the first of its segment"
        );
        let fill = miss(&cache, at(2, 60));
        assert!(fill.extent.has(at(2, 60)) && !fill.extent.has(at(2, 64)), "{fill:?}");
        bring(&cache, &fill, at(2, 60));
        cache
    }

    #[test]
    fn what_was_read_around_a_block_is_found() {
        let cache = filled();
        let SegmentCacheLookup::Held(data, before) = cache.look(at(2, 40)) else {
            panic!("it was read")
        };
        assert_eq!((data.len(), before), (128 << 10, 8 * FRAGMENT_BYTES));
        assert!(cache.held_now(at(2, 63)).is_none(), "half of it lies behind the chunk");
        assert!(
            matches!(cache.look(at(2, 63)), SegmentCacheLookup::Alone),
            "chunks do not overlap"
        );
        let counts = cache.counts();
        assert_eq!((counts.hits, counts.misses), (1, 3));
        assert_eq!((counts.ahead_bytes, counts.used_bytes), (30 * 4096, 2 * 4096));
    }

    /// Goal: a chunk is not returned once its segment was opened (SC1).
    #[test]
    fn nothing_of_a_segment_that_was_opened_is_handed_out() {
        let cache = filled();
        cache.opened(SEGMENT);
        assert!(matches!(cache.look(at(2, 40)), SegmentCacheLookup::Alone), "it is being written");
        assert!(matches!(cache.look(at(2, 60)), SegmentCacheLookup::Alone), "and again");
        assert_eq!(cache.counts().held_bytes, 0);
        cache.closed(SEGMENT);
        let mut ways = [at(2, 20), at(2, 90)].map(|extent| cache.look(extent)).into_iter();
        assert!(ways.any(|way| matches!(way, SegmentCacheLookup::Fill(_))), "it is closed again");
    }

    /// Goal: a read begun before the segment was opened is dropped, even after the segment is
    /// closed again (SC1).
    #[test]
    fn what_is_being_read_when_its_segment_is_opened_is_not_kept() {
        let cache = filled();
        let fill = miss(&cache, at(2, 90));
        cache.opened(SEGMENT);
        cache.closed(SEGMENT);
        bring(&cache, &fill, at(2, 90));
        assert!(cache.held_now(at(2, 90)).is_none());
        assert_eq!(cache.counts().held_bytes, 0);
    }

    #[test]
    fn nobody_else_reads_what_is_being_read() {
        let cache = filled();
        let fill = miss(&cache, at(2, 90));
        assert!(matches!(cache.look(at(2, 94)), SegmentCacheLookup::Alone));
        cache.end_fill(&fill, at(2, 90), None);
        bring(&cache, &miss(&cache, at(2, 92)), at(2, 92));
        assert!(cache.held_now(at(2, 90)).is_some());
    }

    /// Goal: a chunk with a block that failed its check is not returned again (SC2).
    #[test]
    fn what_fails_its_check_is_not_handed_out_again() {
        let cache = filled();
        cache.refuse(at(2, 40).place);
        cache.refuse(at(7, 40).place);
        assert!(cache.held_now(at(2, 60)).is_none());
        assert_eq!((cache.counts().refused, cache.counts().held_bytes), (2, 0));
    }

    /// Goal: memory stays bounded, and the chunks used last stay (SC3).
    #[test]
    fn memory_is_bounded_and_what_was_used_last_stays() {
        let cache = filled();
        for segment in 3..60 {
            for fragment in [3, 35, 67] {
                if let SegmentCacheLookup::Fill(fill) = cache.look(at(segment, fragment)) {
                    bring(&cache, &fill, at(segment, fragment));
                }
                assert!(cache.held_now(at(2, 40)).is_some(), "it was used last");
            }
            let counts = cache.counts();
            assert!(counts.held_bytes <= counts.limit_bytes, "{counts:?}");
        }
        let state = cache.state.lock();
        let (chunks, by_use, _) = state.chunks.counted();
        assert!(chunks > 8, "{chunks}");
        assert_eq!(chunks, by_use);
        assert!(state.young.len() <= CHUNKS_TO_JUDGE);
    }

    /// Goal: pointers from a damaged map are harmless. Method: places at all limits of the fields.
    #[test]
    fn a_pointer_may_name_any_place() {
        let cache = cache();
        for group in [0, 1, (1 << 24) - 1] {
            for fragment in [0, 255, 256, u32::MAX - 256, u32::MAX - 1, u32::MAX] {
                for fragments in [1, 2, 1024] {
                    for disk_group in [0, 255] {
                        let place = Place::new(disk_group, group, fragment);
                        let extent = Extent { place, fragments };
                        if let SegmentCacheLookup::Fill(fill) = cache.look(extent) {
                            cache.end_fill(&fill, extent, None);
                        }
                    }
                }
            }
        }
        assert_eq!(cache.state.lock().chunks.counted(), (0, 0, 0));
    }
}
