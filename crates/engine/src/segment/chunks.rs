//! Bytes of closed segments in memory, in pieces that were read at one time each.
//!
//! # Invariants
//!
//! - SC1: A chunk holds what the device held at one time since its segment took blocks last: it is
//!   read while the segment is closed, and dropped, also while it is being read, when the segment
//!   is opened again.
//! - SC2: What is handed out is verified by the check of the pointer that asks for it. What fails
//!   is dropped, and read from the device alone.
//! - SC3: Chunks do not overlap, and take at most the memory that they were given.
//!
//! A segment is closed when each of its writes is answered (SG3), and only its writes change what a
//! pointer to data may lead to: `docs/decisions/0043-segment-cache.md`.
//!
//! Not here: what is read into a chunk, and when one goes that may stay (`cache`, `ahead`); locks.

use std::collections::{BTreeMap, BTreeSet};

use format::geometry::Geometry;
use format::ids::Place;
use storage::device::SharedBytes;

use crate::alloc::{Extent, SegmentId};
use crate::convert::{index, wide};

/// A chunk that is being read. To be ended by [`Chunks::end`].
#[derive(Debug)]
pub(crate) struct Fill {
    number: u64,
    pub(crate) extent: Extent,
}

#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) fragments: u32,
    pub(super) data: SharedBytes,
    /// Fragments that nobody had asked for when it was read.
    pub(super) ahead_fragments: u32,
    /// Fragments that were handed out since.
    pub(super) used_fragments: u64,
    /// When it was used last.
    used: u64,
}

#[derive(Debug)]
struct Filling {
    number: u64,
    extent: Extent,
    /// The segment was opened meanwhile (SC1).
    is_void: bool,
}

/// Chunks, and those that are being read.
#[derive(Debug)]
pub(super) struct Chunks {
    segment_fragments: u32,
    fragment_shift: u8,
    /// Segments whose content changes.
    open: BTreeSet<SegmentId>,
    by_place: BTreeMap<Place, Chunk>,
    /// Chunks by when they were used last.
    by_use: BTreeMap<u64, Place>,
    filling: Vec<Filling>,
    /// Counts uses and fills.
    clock: u64,
    held_bytes: u64,
}

impl Chunks {
    pub(super) fn new(geometry: &Geometry) -> Chunks {
        Chunks {
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

    /// Returns the memory behind all chunks.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(super) fn start_of(&self, id: SegmentId) -> Place {
        Place::new(0, id.group, id.segment * self.segment_fragments)
    }

    pub(super) fn segment_of(&self, place: Place) -> SegmentId {
        SegmentId { group: place.group(), segment: place.fragment() / self.segment_fragments }
    }

    /// Returns whether the content of the segment that has `place` changes.
    pub(super) fn is_open(&self, place: Place) -> bool {
        self.open.contains(&self.segment_of(place))
    }

    /// Blocks are written to the segment from now on (SC1). Returns where its chunks began.
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

    /// Each write to the segment is answered, and none follows.
    pub(super) fn closed(&mut self, id: SegmentId) {
        self.open.remove(&id);
    }

    /// Returns the chunk that has all of `extent`, its first place, and the fragments before it.
    fn find(&mut self, extent: Extent) -> Option<(Place, u32, &mut Chunk)> {
        let (start, chunk) = self.by_place.range_mut(..=extent.place).next_back()?;
        let before = u32::try_from(extent.place.bits() - start.bits()).ok()?;
        let behind = chunk.fragments.checked_sub(before)?;
        (extent.fragments <= behind).then_some((*start, before, chunk))
    }

    /// Returns the bytes that hold `extent`, and how many lie before it; counts it as used.
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

    /// Returns what lies between two places of one group and is held or being read.
    pub(super) fn taken(&self, start: Place, end: Place) -> impl Iterator<Item = Extent> {
        let of = (start.disk_group(), start.group());
        let fillings = self.filling.iter().map(|filling| filling.extent);
        let held = self.by_place.range(start..end);
        let held = held.map(|(place, chunk)| Extent { place: *place, fragments: chunk.fragments });
        held.chain(fillings)
            .filter(move |other| (other.place.disk_group(), other.place.group()) == of)
    }

    /// Begins to read `extent`, of a closed segment, which overlaps nothing (SC3).
    pub(super) fn begin(&mut self, extent: Extent) -> Fill {
        self.clock += 1;
        let number = self.clock;
        self.filling.push(Filling { number, extent, is_void: false });
        Fill { number, extent }
    }

    /// Returns whether somebody is reading a part of `extent`.
    pub(super) fn is_coming(&self, extent: Extent) -> bool {
        self.filling.iter().any(|filling| filling.extent.overlaps(extent))
    }

    /// Returns the memory that what is being read will take.
    pub(super) fn coming_bytes(&self) -> u64 {
        self.filling.iter().map(|filling| self.memory_for(filling.extent.fragments)).sum()
    }

    /// Returns the memory that a chunk of so many fragments takes.
    pub(super) fn memory_for(&self, fragments: u32) -> u64 {
        wide(self.bytes_of(fragments).next_power_of_two())
    }

    /// Ends a read: `data` is what the device brought, if it did; `asked_fragments` of it were
    /// asked for. Returns whether it is held now (SC1).
    pub(super) fn end(
        &mut self,
        fill: &Fill,
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
        let chunk = Chunk {
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

    pub(super) fn get(&self, place: Place) -> Option<&Chunk> {
        self.by_place.get(&place)
    }

    /// Returns where the chunk begins that has `place`.
    pub(super) fn around(&self, place: Place) -> Option<Place> {
        let (start, chunk) = self.by_place.range(..=place).next_back()?;
        (place.bits() - start.bits() < u64::from(chunk.fragments)).then_some(*start)
    }

    /// Returns where the chunk begins that was used least lately.
    pub(super) fn oldest(&self) -> Option<Place> {
        self.by_use.first_key_value().map(|(_, place)| *place)
    }

    /// Drops the chunk that begins at `place`.
    pub(super) fn remove(&mut self, place: Place) -> Option<Chunk> {
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

/// Returns the memory behind `data`: long pieces are made in powers of two.
fn taken_by(data: &SharedBytes) -> u64 {
    wide(data.buffer_bytes().next_power_of_two())
}
