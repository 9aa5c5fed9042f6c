//! What was read of files before somebody asked for it, until somebody does.
//!
//! Who reads a file in even steps will most likely go on so ([`crate::vnode`] says when), and
//! finds the next bytes here. They are used once: of the chunks that were handed out whole the last
//! few stay, for who reads parts of a block takes all of it each time. Where memory is short those
//! go first that something was handed out of, then what was read ahead first. So a stream that is
//! read once takes little more than its window.
//!
//! What is held is what [`super::chunks`] says (SC1 to SC3).
//!
//! # Concurrency
//!
//! One lock, a leaf. It is not held while a device is waited for. Who asks for what is being read
//! waits for it; who reads it holds no other lock meanwhile, and ends within three deadlines of the
//! device (`storage::device`).

use std::collections::VecDeque;
use std::ops::Range;

use format::geometry::Geometry;
use format::ids::Place;
use runtime::planted::{self, Planted};
use storage::device::SharedBytes;

use super::chunks::{Chunks, Fill};
use crate::alloc::{Extent, SegmentId};
use crate::convert::wide;
use crate::sync::{Condvar, Mutex};

/// Most memory for what is read ahead: the longest windows of four streams.
const AHEAD_BYTES_MAX: usize = 32 << 20;
/// Of the memory for pages, the part that may be read ahead beside it.
const CACHE_SHARE: usize = 8;

/// Chunks all of which was handed out and that stay.
const USED_CHUNKS_MAX: usize = 8;

/// What reading ahead has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadaheadCounts {
    /// Bytes in memory.
    pub held_bytes: u64,
    /// Most bytes there may be.
    pub limit_bytes: u64,
    /// Bytes that were read ahead.
    pub read_bytes: u64,
    /// Bytes of them that were handed out.
    pub used_bytes: u64,
    /// Reads that waited for what was being read ahead.
    pub waits: u64,
    /// Blocks in memory that failed the check of their pointer, and were read again.
    pub refused: u64,
}

#[derive(Debug)]
struct State {
    chunks: Chunks,
    /// Chunks that something was handed out of, the one that this was long ago of first.
    used: VecDeque<Place>,
    counts: ReadaheadCounts,
}

/// What is known of an extent.
#[derive(Debug)]
pub(crate) enum Looked {
    /// Its bytes begin so many bytes behind the first one.
    Held(SharedBytes, usize),
    /// Somebody is reading it, or a part of it.
    Coming,
    Nothing,
}

/// What came of beginning to read ahead.
#[derive(Debug)]
pub(crate) enum Begun {
    Fill(Fill),
    /// All of it is held, or being read.
    Held,
    /// Its content may change, there is no room, or it lies nowhere.
    Refused,
}

/// Bytes that were read ahead, bounded.
#[derive(Debug)]
pub(crate) struct Ahead {
    limit_bytes: usize,
    page_fragments: u32,
    segment_fragments: u32,
    state: Mutex<State>,
    /// A read has ended.
    ended: Condvar,
}

impl Ahead {
    /// Returns what is empty, beside `cache_bytes` of pages.
    pub(super) fn new(geometry: &Geometry, cache_bytes: usize) -> Ahead {
        Ahead {
            limit_bytes: (cache_bytes / CACHE_SHARE).min(AHEAD_BYTES_MAX),
            page_fragments: geometry.page_fragments(),
            segment_fragments: geometry.segment_fragments,
            state: Mutex::new(State {
                chunks: Chunks::new(geometry),
                used: VecDeque::new(),
                counts: ReadaheadCounts::default(),
            }),
            ended: Condvar::default(),
        }
    }

    /// Returns the most bytes that may be in memory.
    pub(crate) fn limit_bytes(&self) -> u64 {
        wide(self.limit_bytes)
    }

    /// Blocks are written to the segment from now on (SC1). Called before the first is placed.
    pub(super) fn opened(&self, id: SegmentId) {
        if planted::is(Planted::AheadNotDropped) {
            return;
        }
        let mut state = self.state.lock();
        for place in state.chunks.opened(id) {
            state.used.retain(|used| *used != place);
        }
    }

    /// Each write to the segment is answered, and none follows.
    pub(super) fn closed(&self, id: SegmentId) {
        self.state.lock().chunks.closed(id);
    }

    /// Returns the bytes of `extent` and how many lie before it, if they were read ahead.
    pub(crate) fn look(&self, extent: Extent) -> Looked {
        let mut state = self.state.lock();
        if state.chunks.is_coming(extent) {
            return Looked::Coming;
        }
        state.take(extent).map_or(Looked::Nothing, |(data, before)| Looked::Held(data, before))
    }

    /// As [`Ahead::look`], once nobody is reading any of it. Waits for who does.
    pub(crate) fn take(&self, extent: Extent) -> Option<(SharedBytes, usize)> {
        let mut state = self.state.lock();
        let is_coming = |state: &State| {
            state.chunks.is_coming(extent) && !planted::is(Planted::AheadNotWaitedFor)
        };
        state.counts.waits += u64::from(is_coming(&state));
        while is_coming(&state) {
            self.ended.wait(&mut state);
        }
        state.take(extent)
    }

    /// Begins to read ahead what nobody has or reads already of `extent`, in whole pages.
    pub(crate) fn begin(&self, extent: Extent) -> Begun {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some((within, mut start, mut end)) = self.pages_of(extent) else {
            return Begun::Refused;
        };
        if state.chunks.is_open(extent.place) {
            return Begun::Refused;
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
            return Begun::Held;
        };
        let coming = state.chunks.coming_bytes() + state.chunks.memory_for(fragments);
        if coming > self.limit_bytes() {
            return Begun::Refused;
        }
        state.make_room(self.limit_bytes() - coming);
        Begun::Fill(state.chunks.begin(Extent { place: at(start), fragments }))
    }

    /// Returns the fragments of the segment that `extent` lies in, and where its pages begin and
    /// end; `None`: in none, for a pointer may name any place.
    fn pages_of(&self, extent: Extent) -> Option<(Range<u32>, u32, u32)> {
        let (first, page) = (extent.place.fragment(), self.page_fragments);
        let segment_start = first - first % self.segment_fragments;
        let segment_end = segment_start.checked_add(self.segment_fragments)?;
        let end = first.checked_add(extent.fragments)?.checked_next_multiple_of(page)?;
        (end <= segment_end).then_some((segment_start..segment_end, first - first % page, end))
    }

    /// Ends a read: `data` is what the device brought, if it did.
    pub(crate) fn end(&self, fill: &Fill, data: Option<&SharedBytes>) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.chunks.end(fill, 0, data);
        if data.is_some() {
            state.counts.read_bytes += wide(state.chunks.bytes_of(fill.extent.fragments));
        }
        self.ended.notify_all();
    }

    /// A block that was handed out fails its check: nothing of its chunk is handed out again (SC2).
    pub(crate) fn refuse(&self, place: Place) {
        let mut state = self.state.lock();
        state.counts.refused += 1;
        if let Some(start) = state.chunks.around(place) {
            state.remove(start);
        }
    }

    /// Returns what it has done so far.
    pub(crate) fn counts(&self) -> ReadaheadCounts {
        let state = self.state.lock();
        let held_bytes = state.chunks.held_bytes();
        ReadaheadCounts { held_bytes, limit_bytes: self.limit_bytes(), ..state.counts }
    }
}

impl State {
    fn take(&mut self, extent: Extent) -> Option<(SharedBytes, usize)> {
        let start = self.chunks.around(extent.place)?;
        let used = |chunks: &Chunks| {
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

    /// Drops chunks until no more than `most_bytes` are held.
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

    /// Holds 2 MiB; a segment has 256 fragments.
    fn ahead() -> Ahead {
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: 1 << 30,
            fragment_bytes: 4096,
            segment_bytes: Some(1 << 20),
            group_bytes: None,
            journal_bytes: None,
        });
        Ahead::new(&geometry.expect("a pool fits"), 16 << 20)
    }

    fn at(fragment: u32, fragments: u32) -> Extent {
        Extent { place: Place::new(0, 1, 2 * 256 + fragment), fragments }
    }

    fn begun(ahead: &Ahead, extent: Extent) -> Fill {
        match ahead.begin(extent) {
            Begun::Fill(fill) => fill,
            other @ (Begun::Held | Begun::Refused) => panic!("{other:?}"),
        }
    }

    fn bring(ahead: &Ahead, extent: Extent) {
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
        // A part of a block that has one check is all of the block.
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

    /// SC1.
    #[test]
    fn nothing_of_a_segment_that_was_opened_is_handed_out() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        let coming = begun(&ahead, at(40, 8));
        ahead.opened(SEGMENT);
        assert!(matches!(ahead.begin(at(80, 8)), Begun::Refused), "its content changes");
        ahead.closed(SEGMENT);
        let length = 8 * FRAGMENT_BYTES;
        ahead.end(&coming, Some(&AlignedBuffer::zeroed(length).into()));
        assert!(ahead.take(at(8, 16)).is_none(), "read before");
        assert!(ahead.take(at(40, 8)).is_none(), "begun before");
        assert_eq!(ahead.counts().held_bytes, 0);
    }

    /// SC2.
    #[test]
    fn what_fails_its_check_is_not_handed_out_again() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        ahead.refuse(at(10, 1).place);
        assert!(ahead.take(at(8, 4)).is_none());
        assert_eq!(ahead.counts().refused, 1);
    }

    /// SC3.
    #[test]
    fn memory_is_bounded_and_nothing_is_read_twice() {
        let ahead = ahead();
        bring(&ahead, at(8, 16));
        let before = begun(&ahead, at(4, 24));
        assert_eq!(before.extent, at(4, 4), "what lies before what is held");
        ahead.end(&before, None);
        assert!(matches!(ahead.begin(at(12, 4)), Begun::Held), "all of it is held");
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
        assert!(matches!(ahead.begin(more), Begun::Refused), "as much as may be is being read");
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

    /// Goal: a pointer from a damaged map harms nothing. Method: places at all the edges.
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
                        if let Begun::Fill(fill) = ahead.begin(extent) {
                            ahead.end(&fill, None);
                        }
                    }
                }
            }
        }
        assert_eq!(ahead.state.lock().chunks.counted(), (0, 0, 0));
    }
}
