//! Owners of fragments: one bit for each fragment, set through the pointers of every container.

use std::collections::BTreeMap;
use std::rc::Rc;

use format::geometry::Geometry;
use format::group::SegmentKind;
use format::ids::{Epoch, Place};

use crate::convert::index_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentUse {
    Page,
    Block,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StatedSegment {
    /// `None` if the usage page is unusable.
    pub(crate) kind: Option<SegmentKind>,
    pub(crate) live: u32,
    /// End of the last summary, in fragments.
    pub(crate) filled: u32,
    pub(crate) incarnation: Epoch,
    pub(crate) is_reported: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct StatedGroup {
    pub(crate) fragments_used: u32,
    pub(crate) segments_used: u32,
    pub(crate) free_map_used: [u8; 8],
}

#[derive(Debug)]
pub(crate) struct GroupSpace {
    /// `None` if the descriptor is absent or unusable.
    pub(crate) stated: Option<StatedGroup>,
    pub(crate) is_initialised: bool,
    /// One bit a fragment, set if owned.
    pub(crate) used: Vec<u64>,
    pub(crate) segments: Vec<StatedSegment>,
}

#[derive(Debug)]
pub(crate) struct FragmentSpace {
    geometry: Geometry,
    pub(crate) groups: BTreeMap<u32, GroupSpace>,
    pub(crate) fragments_stated: u64,
    pub(crate) fragments_reserved: u64,
    pub(crate) reservations_bytes: u64,
    /// What a family shares, while one of its several nodes is checked.
    pub(crate) shares: Option<SharedFragments>,
}

/// Fragments of a node of a family: one bit each, by group.
pub(crate) type FragmentBitmaps = BTreeMap<u32, Vec<u64>>;

#[derive(Debug)]
pub(crate) struct SharedFragments {
    /// The parent holds everything born up to this epoch; 0 without a parent.
    pub(crate) epoch: Epoch,
    /// For a snapshot: the epoch in which it was taken. Nothing in it is younger.
    pub(crate) taken_in: Option<Epoch>,
    /// Whether the fileset is being freed or received. Fragments that only it has are in use too.
    pub(crate) is_freed: bool,
    pub(crate) is_parent_whole: bool,
    /// Fragments of the parent; `None` to use those of all filesets checked so far.
    pub(crate) parent: Option<Rc<FragmentBitmaps>>,
    used: FragmentBitmaps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FragmentClaim {
    /// The first claim: follow the pointer.
    First,
    /// The parent has the fragments too, and its pointer was followed.
    Shared,
    Refused,
}

impl SharedFragments {
    pub(crate) fn new(epoch: Epoch) -> SharedFragments {
        SharedFragments {
            epoch,
            taken_in: None,
            is_freed: false,
            is_parent_whole: false,
            parent: None,
            used: FragmentBitmaps::new(),
        }
    }

    pub(crate) fn into_held(self) -> FragmentBitmaps {
        self.used
    }

    /// Returns whether the parent holds all, and any, of the fragments; `None` if unknown.
    pub(crate) fn parent_has(&self, group: u32, first: u32, count: u32) -> Option<(bool, bool)> {
        let held = self.parent.as_ref()?.get(&group);
        let is_held = |bit| held.is_some_and(|bits| is_set(bits, bit));
        let mut bits = first..first + count;
        Some((bits.clone().all(is_held), bits.any(is_held)))
    }

    /// Records fragments; `false` if the fileset holds one already.
    pub(crate) fn add(&mut self, group: u32, first: u32, count: u32, words: usize) -> bool {
        let used = self.used.entry(group).or_insert_with(|| vec![0; words]);
        if (first..first + count).any(|bit| is_set(used, bit)) {
            return false;
        }
        set_bits(used, first, count);
        true
    }
}

impl FragmentSpace {
    pub(crate) fn new(geometry: Geometry) -> FragmentSpace {
        FragmentSpace {
            geometry,
            groups: BTreeMap::new(),
            fragments_stated: 0,
            fragments_reserved: 0,
            reservations_bytes: 0,
            shares: None,
        }
    }

    pub(crate) fn group_bytes(&self, group: u32) -> u64 {
        let (fragments, segments) =
            (self.geometry.fragments_of(group), self.geometry.segments_of(group));
        u64::from(fragments) / 8 + u64::from(segments) * 12 + 128
    }

    pub(crate) fn add_group(&mut self, group: u32, is_initialised: bool) -> &mut GroupSpace {
        let geometry = &self.geometry;
        let words = index_of(geometry.fragments_of(group).div_ceil(64));
        let unknown = StatedSegment {
            kind: None,
            live: 0,
            filled: 0,
            incarnation: Epoch(0),
            is_reported: false,
        };
        let mut space = GroupSpace {
            stated: None,
            is_initialised,
            used: vec![0; words],
            segments: vec![unknown; index_of(geometry.segments_of(group))],
        };
        for place in front_pages(geometry, group) {
            space.set(place.fragment(), geometry.page_fragments());
        }
        self.groups.entry(group).or_insert(space)
    }
}

#[cfg(test)]
pub(crate) fn front_fragments(geometry: &Geometry, group: u32) -> u32 {
    geometry.page_place(group, geometry.group_layout().kept_pages(group)).fragment()
}

/// Returns the fixed pages at the start of `group`.
pub(crate) fn front_pages(geometry: &Geometry, group: u32) -> impl Iterator<Item = Place> {
    let pages = geometry.group_layout().kept_pages(group);
    (0..pages).map(move |page| geometry.page_place(group, page))
}

impl GroupSpace {
    pub(crate) fn is_any_set(&self, first: u32, count: u32) -> bool {
        (first..first + count).any(|bit| is_set(&self.used, bit))
    }

    pub(crate) fn is_all_set(&self, first: u32, count: u32) -> bool {
        (first..first + count).all(|bit| is_set(&self.used, bit))
    }

    pub(crate) fn set(&mut self, first: u32, count: u32) {
        set_bits(&mut self.used, first, count);
    }

    pub(crate) fn set_segment(&mut self, segment: u32, kind: Option<SegmentKind>, live: u32) {
        if let Some(stated) = self.segments.get_mut(index_of(segment)) {
            *stated = StatedSegment { kind, live, ..*stated };
        }
    }

    pub(crate) fn set_written(&mut self, segment: u32, filled: u32, incarnation: Epoch) {
        if let Some(stated) = self.segments.get_mut(index_of(segment)) {
            *stated = StatedSegment { filled, incarnation, ..*stated };
        }
    }
}

fn set_bits(bits: &mut [u64], first: u32, count: u32) {
    for bit in first..first + count {
        if let Some(word) = bits.get_mut(index_of(bit / 64)) {
            *word |= 1 << (bit % 64);
        }
    }
}

pub(crate) fn is_set(bits: &[u64], bit: u32) -> bool {
    bits.get(index_of(bit / 64)).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

pub(crate) fn count_set(bits: &[u64], first: u32, end: u32) -> u32 {
    let mut count = 0;
    let mut bit = first;
    while bit < end {
        let word = bits.get(index_of(bit / 64)).copied().unwrap_or(0);
        let in_word = (64 - bit % 64).min(end - bit);
        let mask = if in_word == 64 { u64::MAX } else { ((1 << in_word) - 1) << (bit % 64) };
        count += (word & mask).count_ones();
        bit += in_word;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::count_set;

    #[test]
    fn bits_are_counted_at_every_border() {
        let bits = [u64::MAX, 1, u64::MAX];
        for (first, end, expected) in
            [(0, 192, 129), (0, 64, 64), (63, 65, 2), (65, 128, 0), (127, 130, 2), (5, 5, 0)]
        {
            assert_eq!(count_set(&bits, first, end), expected, "{first}..{end}");
        }
    }
}
