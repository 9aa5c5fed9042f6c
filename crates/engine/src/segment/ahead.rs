//! The readahead buffer: file data read before it is requested, for sequential readers
//! ([`crate::file`] detects them).
//!
//! Readahead data is usually used once, so only the last few fully used chunks stay: a reader of
//! parts of a block takes the whole block each time. Under pressure partly used chunks go first,
//! then the oldest. So a stream takes little more than its window.
//!
//! Chunks obey [`super::chunks`] (SC1 to SC3).
//!
//! # Concurrency
//!
//! One lock, a leaf, not held during device I/O. A reader waits for an overlapping read in flight.
//! The thread of that read holds no other lock, and ends within three deadlines of the device
//! (`storage::device`).

use std::collections::VecDeque;
use std::ops::Range;

use format::geometry::Geometry;
use format::ids::Place;
use runtime::if_planted;
use storage::device::SharedBytes;

use super::chunks::{ChunkCache, ChunkFill};
use crate::alloc::{Extent, SegmentId};
use crate::convert::wide;
use crate::sync::{Condvar, Mutex};

/// Memory limit: the longest windows of four streams.
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Divisor of the page cache size, for a second limit.
const CACHE_SHARE: usize = 8;

/// Fully used chunks that stay.
const USED_CHUNKS_MAX: usize = 8;

/// Counts of readahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadaheadCounts {
    /// Bytes in memory.
    pub held_bytes: u64,
    /// Limit of `held_bytes`.
    pub limit_bytes: u64,
    /// Bytes read ahead.
    pub read_bytes: u64,
    /// Bytes read ahead and then used.
    pub used_bytes: u64,
    /// Reads that waited for a readahead in flight.
    pub waits: u64,
    /// Blocks in memory that failed their check, and were read again.
    pub refused: u64,
}

#[derive(Debug)]
struct ReadaheadBufferState {
    chunks: ChunkCache,
    /// Chunks with used parts, least recently used first.
    used: VecDeque<Place>,
    counts: ReadaheadCounts,
}

#[derive(Debug)]
pub(crate) enum ReadaheadLookup {
    /// In memory: a buffer, and the offset of the extent in it.
    Held(SharedBytes, usize),
    /// A read of the extent or of a part is in flight.
    Coming,
    Nothing,
}

#[derive(Debug)]
pub(crate) enum ReadaheadStart {
    Fill(ChunkFill),
    /// All of it is in memory or in flight.
    Held,
    /// The segment is open, memory is short, or no segment contains the extent.
    Refused,
}

#[derive(Debug)]
pub(crate) struct ReadaheadBuffer {
    limit_bytes: usize,
    page_fragments: u32,
    segment_fragments: u32,
    state: Mutex<ReadaheadBufferState>,
    ended: Condvar,
}

impl ReadaheadBuffer {
    pub(super) fn new(geometry: &Geometry, cache_bytes: usize) -> ReadaheadBuffer {
        ReadaheadBuffer {
            limit_bytes: (cache_bytes / CACHE_SHARE).min(AHEAD_BYTES_MAX),
            page_fragments: geometry.page_fragments(),
            segment_fragments: geometry.segment_fragments,
            state: Mutex::new(ReadaheadBufferState {
                chunks: ChunkCache::new(geometry),
                used: VecDeque::new(),
                counts: ReadaheadCounts::default(),
            }),
            ended: Condvar::default(),
        }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        wide(self.limit_bytes)
    }

    /// Notes that the segment was opened (SC1), before its first block is placed.
    pub(super) fn opened(&self, id: SegmentId) {
        if_planted!(AheadNotDropped, return);
        let mut state = self.state.lock();
        for place in state.chunks.opened(id) {
            state.used.retain(|used| *used != place);
        }
    }

    /// Notes that all writes to the segment have ended.
    pub(super) fn closed(&self, id: SegmentId) {
        self.state.lock().chunks.closed(id);
    }

    /// Looks up an extent without waiting.
    pub(crate) fn look(&self, extent: Extent) -> ReadaheadLookup {
        let mut state = self.state.lock();
        if state.chunks.is_coming(extent) {
            return ReadaheadLookup::Coming;
        }
        state
            .take(extent)
            .map_or(ReadaheadLookup::Nothing, |(data, before)| ReadaheadLookup::Held(data, before))
    }

    /// Returns the buffer with `extent` and its offset there. Waits for reads in flight.
    pub(crate) fn take(&self, extent: Extent) -> Option<(SharedBytes, usize)> {
        let mut state = self.state.lock();
        let is_coming = |state: &ReadaheadBufferState| state.chunks.is_coming(extent);
        state.counts.waits += u64::from(is_coming(&state));
        while is_coming(&state) {
            self.ended.wait(&mut state);
        }
        state.take(extent)
    }

    /// Begins readahead of the missing pages of `extent`.
    pub(crate) fn begin(&self, extent: Extent) -> ReadaheadStart {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some((within, mut start, mut end)) = self.pages_of(extent) else {
            return ReadaheadStart::Refused;
        };
        if state.chunks.is_open(extent.place) {
            return ReadaheadStart::Refused;
        }
        let place = extent.place;
        let at = |fragment: u32| Place::new(place.disk_group(), place.group(), fragment);
        for other in state.chunks.taken(at(within.start), at(within.end)) {
            let (from, to) = (other.place.fragment(), other.place.fragment() + other.fragments);
            if from <= start {
                start = start.max(to);
            } else {
                end = end.min(from);
            }
        }
        let Some(fragments) = end.checked_sub(start).filter(|fragments| *fragments > 0) else {
            return ReadaheadStart::Held;
        };
        let coming = state.chunks.coming_bytes() + state.chunks.memory_for(fragments);
        if coming > self.limit_bytes() {
            return ReadaheadStart::Refused;
        }
        state.make_room(self.limit_bytes() - coming);
        ReadaheadStart::Fill(state.chunks.begin(Extent { place: at(start), fragments }))
    }

    /// Returns the segment and page bounds of `extent`. `None` if a damaged pointer crosses
    /// segments.
    fn pages_of(&self, extent: Extent) -> Option<(Range<u32>, u32, u32)> {
        let (first, page) = (extent.place.fragment(), self.page_fragments);
        let segment_start = first - first % self.segment_fragments;
        let segment_end = segment_start.checked_add(self.segment_fragments)?;
        let end = first.checked_add(extent.fragments)?.checked_next_multiple_of(page)?;
        (end <= segment_end).then_some((segment_start..segment_end, first - first % page, end))
    }

    pub(crate) fn end(&self, fill: &ChunkFill, data: Option<&SharedBytes>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.chunks.end(fill, 0, data);
        if data.is_some() {
            state.counts.read_bytes += wide(state.chunks.bytes_of(fill.extent.fragments));
        }
        self.ended.notify_all();
    }

    /// Drops the chunk with a block that failed its check (SC2).
    pub(crate) fn refuse(&self, place: Place) {
        let mut state = self.state.lock();
        state.counts.refused += 1;
        if let Some(start) = state.chunks.around(place) {
            state.remove(start);
        }
    }

    pub(crate) fn counts(&self) -> ReadaheadCounts {
        let state = self.state.lock();
        let held_bytes = state.chunks.held_bytes();
        ReadaheadCounts { held_bytes, limit_bytes: self.limit_bytes(), ..state.counts }
    }
}

impl ReadaheadBufferState {
    fn take(&mut self, extent: Extent) -> Option<(SharedBytes, usize)> {
        let start = self.chunks.around(extent.place)?;
        let used = |chunks: &ChunkCache| {
            let chunk = chunks.get(start)?;
            Some(chunk.used_fragments.min(chunk.fragments.into()))
        };
        let before = used(&self.chunks)?;
        let held = self.chunks.held(extent)?;
        let more = used(&self.chunks)? - before;
        self.counts.used_bytes += more * wide(self.chunks.bytes_of(1));
        self.used.retain(|used| *used != start);
        self.used.push_back(start);
        let is_used_up = |place: &Place| {
            let chunk = self.chunks.get(*place);
            chunk.is_some_and(|chunk| chunk.used_fragments >= chunk.fragments.into())
        };
        let mut used_up = self.used.iter().copied().filter(is_used_up);
        let oldest = used_up.next();
        if used_up.count() >= USED_CHUNKS_MAX
            && let Some(oldest) = oldest
        {
            self.remove(oldest);
        }
        Some(held)
    }

    fn make_room(&mut self, most_bytes: u64) {
        while self.chunks.held_bytes() > most_bytes
            && let Some(place) = self.used.pop_front().or_else(|| self.chunks.oldest())
        {
            self.chunks.remove(place);
        }
    }

    fn remove(&mut self, place: Place) {
        self.used.retain(|used| *used != place);
        self.chunks.remove(place);
    }
}

#[cfg(test)]
mod tests {
    use format::geometry::GeometryOptions;
    use storage::device::AlignedBuffer;

    use super::*;

    const FRAGMENT_BYTES: usize = 4096;
    const SEGMENT: SegmentId = SegmentId { group: 1, segment: 2 };

    /// A buffer of at most 2 MiB. A segment has 256 fragments.
    fn ahead() -> ReadaheadBuffer {
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: 1 << 30,
            fragment_bytes: 4096,
            segment_bytes: Some(1 << 20),
            group_bytes: None,
            journal_bytes: None,
        });
        ReadaheadBuffer::new(&geometry.expect("a pool fits"), 16 << 20)
    }

    fn at(fragment: u32, fragments: u32) -> Extent {
        Extent { place: Place::new(0, 1, 2 * 256 + fragment), fragments }
    }

    fn begun(ahead: &ReadaheadBuffer, extent: Extent) -> ChunkFill {
        match ahead.begin(extent) {
            ReadaheadStart::Fill(fill) => fill,
            other @ (ReadaheadStart::Held | ReadaheadStart::Refused) => panic!("{other:?}"),
        }
    }

    fn bring(ahead: &ReadaheadBuffer, extent: Extent) {
        let fill = begun(ahead, extent);
        let length = crate::convert::index(fill.extent.fragments) * FRAGMENT_BYTES;
        ahead.end(&fill, Some(&AlignedBuffer::zeroed(length).into()));
    }

    #[test]
    fn what_was_handed_out_goes_when_others_were() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        let (data, lead) = ahead.take(at(8, 4)).expect("it was read");
        assert_eq!((data.len(), lead), (16 * FRAGMENT_BYTES, 0));
        // Reading a part of a block takes the whole block, since it has one checksum.
        for _ in 0..9 {
            assert_eq!(ahead.take(at(12, 12)).map(|(_, lead)| lead), Some(4 * FRAGMENT_BYTES));
        }
        let counts = ahead.counts();
        assert_eq!((counts.read_bytes, counts.used_bytes), (16 * 4096, 16 * 4096));
        assert_eq!((counts.refused, counts.waits), (0, 0));
        for other in 0..USED_CHUNKS_MAX {
            let extent = at(40 + 8 * u32::try_from(other).expect("few"), 4);
            bring(&ahead, extent);
            assert!(ahead.take(at(8, 4)).is_some(), "it was used last");
            assert!(ahead.take(extent).is_some());
        }
        assert!(ahead.take(at(40, 4)).is_none(), "that was longest ago");
        assert_eq!(ahead.state.lock().used.len(), USED_CHUNKS_MAX);
    }

    /// Goal: a chunk is not returned once its segment was opened (SC1).
    #[test]
    fn nothing_of_a_segment_that_was_opened_is_handed_out() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        let coming = begun(&ahead, at(40, 8));
        ahead.opened(SEGMENT);
        assert!(matches!(ahead.begin(at(80, 8)), ReadaheadStart::Refused), "its content changes");
        ahead.closed(SEGMENT);
        let length = 8 * FRAGMENT_BYTES;
        ahead.end(&coming, Some(&AlignedBuffer::zeroed(length).into()));
        assert!(ahead.take(at(8, 16)).is_none(), "read before");
        assert!(ahead.take(at(40, 8)).is_none(), "begun before");
        assert_eq!(ahead.counts().held_bytes, 0);
    }

    /// Goal: a chunk with a block that failed its check is not returned again (SC2).
    #[test]
    fn what_fails_its_check_is_not_handed_out_again() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        ahead.refuse(at(10, 1).place);
        assert!(ahead.take(at(8, 4)).is_none());
        assert_eq!(ahead.counts().refused, 1);
    }

    /// Goal: memory stays bounded, and nothing is read twice (SC3).
    #[test]
    fn memory_is_bounded_and_nothing_is_read_twice() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        let before = begun(&ahead, at(4, 24));
        assert_eq!(before.extent, at(4, 4), "what lies before what is held");
        ahead.end(&before, None);
        assert!(matches!(ahead.begin(at(12, 4)), ReadaheadStart::Held), "all of it is held");
        for segment in 3..12 {
            bring(&ahead, Extent { place: Place::new(0, 1, 256 * segment), fragments: 256 });
            let counts = ahead.counts();
            assert!(counts.held_bytes <= counts.limit_bytes, "{counts:?}");
        }
        assert!(ahead.take(at(8, 16)).is_none(), "it came first");
        let whole = Extent { place: Place::new(0, 2, 0), fragments: 256 };
        let coming = [whole, Extent { place: Place::new(0, 2, 256), ..whole }];
        let coming = coming.map(|extent| begun(&ahead, extent));
        let more = Extent { place: Place::new(0, 2, 512), fragments: 1 };
        assert!(
            matches!(ahead.begin(more), ReadaheadStart::Refused),
            "as much as may be is being read"
        );
        coming.iter().for_each(|fill| ahead.end(fill, None));
    }

    #[test]
    fn who_asks_for_what_is_being_read_waits_for_it() {
        let ahead = ahead();
        let fill = begun(&ahead, at(8, 16));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| ahead.take(at(12, 4)).map(|(_, lead)| lead));
            while !reader.is_finished() && ahead.state.lock().counts.waits == 0 {
                std::thread::yield_now();
            }
            ahead.end(&fill, Some(&AlignedBuffer::zeroed(16 * FRAGMENT_BYTES).into()));
            assert_eq!(reader.join().expect("it ends"), Some(4 * FRAGMENT_BYTES));
        });
    }

    /// Goal: pointers from a damaged map are harmless. Method: places at all limits of the fields.
    #[test]
    fn a_pointer_may_name_any_place() {
        let ahead = ahead();
        for group in [0, 1, (1 << 24) - 1] {
            for fragment in [0, 255, 256, u32::MAX - 256, u32::MAX - 1, u32::MAX] {
                for fragments in [1, 2, 256, 1024] {
                    for disk_group in [0, 255] {
                        let place = Place::new(disk_group, group, fragment);
                        let extent = Extent { place, fragments };
                        assert!(ahead.take(extent).is_none());
                        if let ReadaheadStart::Fill(fill) = ahead.begin(extent) {
                            ahead.end(&fill, None);
                        }
                    }
                }
            }
        }
        assert_eq!(ahead.state.lock().chunks.counted(), (0, 0, 0));
    }
}
