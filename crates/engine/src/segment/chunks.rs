//! Chunks: bytes of closed segments in memory, each from one read.
//!
//! # Invariants
//!
//! - SC1: A chunk has the device's contents of one moment since its segment was last open. It is
//!   read while the segment is closed, and dropped, even in flight, when the segment is opened
//!   again.
//! - SC2: Bytes are verified by the check of the requesting pointer. A chunk that fails is dropped,
//!   and the block is read alone from the device.
//! - SC3: Chunks do not overlap, and stay within their memory limit.
//!
//! A segment is closed when each of its writes has ended (SG3), and only its own writes change the
//! target of a data pointer (`docs/decisions/0043-segment-cache-and-readahead.md`).
//!
//! Not here: what to read, and what to drop (`cache`, `ahead`); locks.

use std::collections::{BTreeMap, BTreeSet};

use format::geometry::Geometry;
use format::ids::Place;
use storage::device::SharedBytes;

use crate::alloc::{Extent, SegmentId};
use crate::convert::{index, wide};

/// A read of a chunk in flight. Ended by [`ChunkCache::end`].
#[derive(Debug)]
pub(crate) struct ChunkFill {
    number: u64,
    pub(crate) extent: Extent,
}

#[derive(Debug)]
pub(super) struct CachedChunk {
    pub(super) fragments: u32,
    pub(super) data: SharedBytes,
    /// Fragments read beyond those requested.
    pub(super) ahead_fragments: u32,
    /// Fragments served from the chunk.
    pub(super) used_fragments: u64,
    used: u64,
}

#[derive(Debug)]
struct ChunkInFlight {
    number: u64,
    extent: Extent,
    /// The segment was opened during the read (SC1).
    is_void: bool,
}

/// Chunks in memory and in flight.
#[derive(Debug)]
pub(super) struct ChunkCache {
    segment_fragments: u32,
    fragment_shift: u8,
    /// Open segments, whose contents may change.
    open: BTreeSet<SegmentId>,
    by_place: BTreeMap<Place, CachedChunk>,
    by_use: BTreeMap<u64, Place>,
    filling: Vec<ChunkInFlight>,
    /// Number of uses and reads so far.
    clock: u64,
    held_bytes: u64,
}

impl ChunkCache {
    pub(super) fn new(geometry: &Geometry) -> ChunkCache {
        ChunkCache {
            segment_fragments: geometry.segment_fragments,
            fragment_shift: geometry.fragment_shift,
            open: BTreeSet::new(),
            by_place: BTreeMap::new(),
            by_use: BTreeMap::new(),
            filling: Vec::new(),
            clock: 0,
            held_bytes: 0,
        }
    }

    pub(super) fn bytes_of(&self, fragments: u32) -> usize {
        index(fragments) << self.fragment_shift
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(super) fn start_of(&self, id: SegmentId) -> Place {
        Place::new(0, id.group, id.segment * self.segment_fragments)
    }

    pub(super) fn segment_of(&self, place: Place) -> SegmentId {
        SegmentId { group: place.group(), segment: place.fragment() / self.segment_fragments }
    }

    pub(super) fn is_open(&self, place: Place) -> bool {
        self.open.contains(&self.segment_of(place))
    }

    /// Marks the segment as open and drops its chunks (SC1). Returns their places.
    pub(super) fn opened(&mut self, id: SegmentId) -> Vec<Place> {
        self.open.insert(id);
        let start = self.start_of(id);
        let all = Extent { place: start, fragments: self.segment_fragments };
        for filling in &mut self.filling {
            filling.is_void |= filling.extent.overlaps(all);
        }
        let held = self.by_place.range(start..start.advance(self.segment_fragments));
        let held: Vec<Place> = held.map(|(place, _)| *place).collect();
        for place in &held {
            self.remove(*place);
        }
        held
    }

    pub(super) fn closed(&mut self, id: SegmentId) {
        self.open.remove(&id);
    }

    /// Returns the chunk that contains `extent`, its first place, and the offset of `extent` in
    /// fragments.
    fn find(&mut self, extent: Extent) -> Option<(Place, u32, &mut CachedChunk)> {
        let (start, chunk) = self.by_place.range_mut(..=extent.place).next_back()?;
        let before = u32::try_from(extent.place.bits() - start.bits()).ok()?;
        let behind = chunk.fragments.checked_sub(before)?;
        (extent.fragments <= behind).then_some((*start, before, chunk))
    }

    /// Returns the buffer with `extent` and its offset there. Counts a use.
    pub(super) fn held(&mut self, extent: Extent) -> Option<(SharedBytes, usize)> {
        self.clock += 1;
        let now = self.clock;
        let (start, before, chunk) = self.find(extent)?;
        let was = std::mem::replace(&mut chunk.used, now);
        chunk.used_fragments += u64::from(extent.fragments);
        let data = chunk.data.clone();
        self.by_use.remove(&was);
        self.by_use.insert(now, start);
        Some((data, self.bytes_of(before)))
    }

    /// Returns chunks in memory or in flight between two places of a group.
    pub(super) fn taken(&self, start: Place, end: Place) -> impl Iterator<Item = Extent> {
        let of = (start.disk_group(), start.group());
        let fillings = self.filling.iter().map(|filling| filling.extent);
        let held = self.by_place.range(start..end);
        let held = held.map(|(place, chunk)| Extent { place: *place, fragments: chunk.fragments });
        held.chain(fillings)
            .filter(move |other| (other.place.disk_group(), other.place.group()) == of)
    }

    /// Begins a read in a closed segment that overlaps no chunk (SC3).
    pub(super) fn begin(&mut self, extent: Extent) -> ChunkFill {
        self.clock += 1;
        let number = self.clock;
        self.filling.push(ChunkInFlight { number, extent, is_void: false });
        ChunkFill { number, extent }
    }

    pub(super) fn is_coming(&self, extent: Extent) -> bool {
        self.filling.iter().any(|filling| filling.extent.overlaps(extent))
    }

    pub(super) fn coming_bytes(&self) -> u64 {
        self.filling.iter().map(|filling| self.memory_for(filling.extent.fragments)).sum()
    }

    pub(super) fn memory_for(&self, fragments: u32) -> u64 {
        wide(self.bytes_of(fragments).next_power_of_two())
    }

    /// Ends a read, with its data on success. Returns whether the chunk is kept (SC1).
    pub(super) fn end(
        &mut self,
        fill: &ChunkFill,
        asked_fragments: u32,
        data: Option<&SharedBytes>,
    ) -> bool {
        let Some(at) = self.filling.iter().position(|filling| filling.number == fill.number) else {
            return false;
        };
        let is_void = self.filling.swap_remove(at).is_void;
        let Some(data) = data.filter(|_| !is_void) else { return false };
        self.clock += 1;
        let Extent { place, fragments } = fill.extent;
        let chunk = CachedChunk {
            fragments,
            data: data.clone(),
            ahead_fragments: fragments - asked_fragments,
            used_fragments: 0,
            used: self.clock,
        };
        self.by_use.insert(chunk.used, place);
        self.held_bytes += taken_by(&chunk.data);
        self.by_place.insert(place, chunk);
        true
    }

    pub(super) fn get(&self, place: Place) -> Option<&CachedChunk> {
        self.by_place.get(&place)
    }

    /// Returns the first place of the chunk that contains `place`.
    pub(super) fn around(&self, place: Place) -> Option<Place> {
        let (start, chunk) = self.by_place.range(..=place).next_back()?;
        (place.bits() - start.bits() < u64::from(chunk.fragments)).then_some(*start)
    }

    pub(super) fn oldest(&self) -> Option<Place> {
        self.by_use.first_key_value().map(|(_, place)| *place)
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<CachedChunk> {
        let chunk = self.by_place.remove(&place)?;
        self.by_use.remove(&chunk.used);
        self.held_bytes -= taken_by(&chunk.data);
        Some(chunk)
    }

    #[cfg(test)]
    pub(super) fn counted(&self) -> (usize, usize, usize) {
        (self.by_place.len(), self.by_use.len(), self.filling.len())
    }
}

/// Returns the memory of `data`, in buffers of powers of two.
fn taken_by(data: &SharedBytes) -> u64 {
    wide(data.buffer_bytes().next_power_of_two())
}
