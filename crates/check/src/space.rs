//! Who owns which fragment: one bit for each, filled from the pointers of every container.

use std::collections::BTreeMap;
use std::rc::Rc;

use format::geometry::Geometry;
use format::group::SegmentKind;
use format::ids::{Epoch, Place};
use format::pointer::BlockPointer;

use crate::Check;
use crate::convert::index_of;
use format::defect::{DefectCode, Subject};

/// What a claimed fragment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Page,
    Block,
}

/// What the usage page says of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatedSegment {
    /// `None`: not known, because its page can't be used.
    pub(crate) kind: Option<SegmentKind>,
    pub(crate) live: u32,
    /// Where its last summary ends, in fragments.
    pub(crate) filled: u32,
    /// In which epoch it was opened.
    pub(crate) incarnation: Epoch,
    /// Whether a claim of the wrong kind was reported.
    is_reported: bool,
}

/// What the descriptor says of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatedGroup {
    pub(crate) fragments_used: u32,
    pub(crate) segments_used: u32,
    pub(crate) free_map_used: [u8; 8],
}

/// The fragments of one group.
#[derive(Debug)]
pub(crate) struct GroupSpace {
    /// What its descriptor says; `None`: there is none, or it can't be used.
    pub(crate) stated: Option<StatedGroup>,
    pub(crate) is_initialised: bool,
    /// A bit a fragment: set when something owns it.
    pub(crate) used: Vec<u64>,
    pub(crate) segments: Vec<StatedSegment>,
}

/// The fragments of the pool.
#[derive(Debug)]
pub(crate) struct Space {
    geometry: Geometry,
    pub(crate) groups: BTreeMap<u32, GroupSpace>,
    /// What the descriptors say is in use.
    pub(crate) fragments_stated: u64,
    /// What pointers to blocks reserve.
    pub(crate) fragments_reserved: u64,
    /// What filesets reserve.
    pub(crate) reservations_bytes: u64,
    /// Of a fileset of a family that has clones.
    pub(crate) shares: Option<Shares>,
}

/// What one node of a family holds: a bit a fragment, by group.
pub(crate) type Held = BTreeMap<u32, Vec<u64>>;

/// What a fileset may hold that others of its family hold too, and what it was found to hold.
#[derive(Debug)]
pub(crate) struct Shares {
    /// What was born in this epoch or before it, the parent holds too; 0: there is none.
    pub(crate) epoch: Epoch,
    /// Of a clone: the epoch that took it, after which nothing of it was born.
    pub(crate) taken_in: Option<Epoch>,
    /// Whether it is being freed, or received: what it has and nobody else is still in use.
    pub(crate) is_freed: bool,
    /// Whether all that the parent holds was found.
    pub(crate) is_parent_whole: bool,
    /// What the parent holds; `None`: what is known is what all others hold.
    pub(crate) parent: Option<Rc<Held>>,
    /// What this one holds.
    used: Held,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the first: what it leads to is to be looked at.
    First,
    /// The parent has it as well, and it was looked at there.
    Shared,
    /// It can't be.
    Refused,
}

impl Shares {
    pub(crate) fn new(epoch: Epoch) -> Shares {
        Shares {
            epoch,
            taken_in: None,
            is_freed: false,
            is_parent_whole: false,
            parent: None,
            used: Held::new(),
        }
    }

    /// Returns what it was found to hold.
    pub(crate) fn into_held(self) -> Held {
        self.used
    }

    /// Returns whether each of some fragments is the parent's, and whether any is; `None`: what the
    /// parent holds is not known.
    fn parent_has(&self, group: u32, first: u32, count: u32) -> Option<(bool, bool)> {
        let held = self.parent.as_ref()?.get(&group);
        let is_held = |bit| held.is_some_and(|bits| is_set(bits, bit));
        let mut bits = first..first + count;
        Some((bits.clone().all(is_held), bits.any(is_held)))
    }

    /// Notes that the fileset holds `count` fragments; `false`: it holds one of them already.
    fn add(&mut self, group: u32, first: u32, count: u32, words: usize) -> bool {
        let used = self.used.entry(group).or_insert_with(|| vec![0; words]);
        if (first..first + count).any(|bit| is_set(used, bit)) {
            return false;
        }
        set_bits(used, first, count);
        true
    }
}

impl Space {
    pub(crate) fn new(geometry: Geometry) -> Space {
        Space {
            geometry,
            groups: BTreeMap::new(),
            fragments_stated: 0,
            fragments_reserved: 0,
            reservations_bytes: 0,
            shares: None,
        }
    }

    /// Returns how many bytes the bits and segments of a group take.
    pub(crate) fn group_bytes(&self, group: u32) -> u64 {
        let (fragments, segments) =
            (self.geometry.fragments_of(group), self.geometry.segments_of(group));
        u64::from(fragments) / 8 + u64::from(segments) * 12 + 128
    }

    /// Makes the space of `group`, its front in use.
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

/// Returns the first fragment of `group` that a container may own.
#[cfg(test)]
pub(crate) fn front_fragments(geometry: &Geometry, group: u32) -> u32 {
    geometry.page_place(group, geometry.kept_pages(group)).fragment()
}

/// Returns the pages at the start of `group` that no container may own.
pub(crate) fn front_pages(geometry: &Geometry, group: u32) -> impl Iterator<Item = Place> {
    let pages = geometry.kept_pages(group);
    (0..pages).map(move |page| geometry.page_place(group, page))
}

impl GroupSpace {
    /// Whether a bit of `count` from `first` on is set.
    fn is_any_set(&self, first: u32, count: u32) -> bool {
        (first..first + count).any(|bit| is_set(&self.used, bit))
    }

    /// Whether each bit of `count` from `first` on is set.
    fn is_all_set(&self, first: u32, count: u32) -> bool {
        (first..first + count).all(|bit| is_set(&self.used, bit))
    }

    /// Notes that `count` fragments from `first` on are owned.
    pub(crate) fn set(&mut self, first: u32, count: u32) {
        set_bits(&mut self.used, first, count);
    }

    pub(crate) fn set_segment(&mut self, segment: u32, kind: Option<SegmentKind>, live: u32) {
        if let Some(stated) = self.segments.get_mut(index_of(segment)) {
            *stated = StatedSegment { kind, live, ..*stated };
        }
    }

    /// Notes where the last summary of a segment ends, and when the segment was opened.
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

/// Whether `bit` of `bits` is set.
pub(crate) fn is_set(bits: &[u64], bit: u32) -> bool {
    bits.get(index_of(bit / 64)).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

/// Returns how many of `bits` are set from `first` to before `end`.
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

impl Check<'_> {
    /// Notes that a container holds what `pointer` leads to.
    pub(crate) fn claim(&mut self, holds: Use, pointer: &BlockPointer, subject: Subject) -> Claim {
        let (place, count) = (pointer.place, pointer.fragments);
        let geometry = &self.reader.geometry;
        let group = place.group();
        let is_inside = place.disk_group() == 0 && geometry.device_offset(place, count).is_some();
        if !is_inside || place.fragment() < geometry.front_fragments(place.group()) {
            let what = format!("pointer to {count} fragments at {place}");
            self.defect(DefectCode::MP001, subject, Some(place), what);
            return Claim::Refused;
        }
        if !self.space.groups.contains_key(&group) {
            let what = format!("group {group} is not initialised");
            self.defect(DefectCode::AG008, subject, Some(place), what);
            if self.take_memory(self.space.group_bytes(group)).is_err() {
                return Claim::Refused;
            }
            self.space.add_group(group, false);
        }
        match self.claim_shared(pointer, subject) {
            Claim::First => {}
            claim @ (Claim::Shared | Claim::Refused) => return claim,
        }
        self.report.totals.fragments += u64::from(count);
        // A block whose bytes are verified is dealt with when they were read.
        if holds == Use::Page || !self.options.data {
            self.advance(u64::from(count));
        }
        self.check_segments(holds, place, count, subject);
        let space = self.space.groups.get_mut(&group).expect("just added");
        if space.is_any_set(place.fragment(), count) {
            let what = format!("{count} fragments belong to another container as well");
            self.defect(DefectCode::MP002, subject, Some(place), what);
            return Claim::Refused;
        }
        space.set(place.fragment(), count);
        Claim::First
    }

    /// Tells of what a fileset with clones holds whether its parent does, which was looked at
    /// before it: that must be so of what was born before the parent was taken, and of nothing
    /// else.
    fn claim_shared(&mut self, pointer: &BlockPointer, subject: Subject) -> Claim {
        let (place, count) = (pointer.place, pointer.fragments);
        let words = index_of(self.reader.geometry.fragments_of(place.group()).div_ceil(64));
        let Some(shares) = &mut self.space.shares else { return Claim::First };
        if !shares.add(place.group(), place.fragment(), count, words) {
            let what = format!("the fileset has {count} fragments twice");
            self.defect(DefectCode::MP002, subject, Some(place), what);
            return Claim::Refused;
        }
        if shares.is_freed {
            // What is younger than its parent is its own (a clone's may be its child's too).
            if !self.is_clone && pointer.birth > shares.epoch {
                return Claim::First;
            }
            self.claim_rest(pointer);
            return Claim::Shared;
        }
        let (is_born_before, is_whole) = (pointer.birth <= shares.epoch, shares.is_parent_whole);
        let is_born_after = shares.taken_in.is_some_and(|epoch| pointer.birth > epoch);
        let Some(space) = self.space.groups.get(&place.group()) else { return Claim::First };
        let (has_all, has_any) =
            shares.parent_has(place.group(), place.fragment(), count).unwrap_or_else(|| {
                let (first, count) = (place.fragment(), count);
                (space.is_all_set(first, count), space.is_any_set(first, count))
            });
        if is_born_after {
            let what = format!("a clone has {count} fragments of epoch {}", pointer.birth.0);
            self.defect(DefectCode::FS013, subject, Some(place), what);
        }
        if is_born_before && has_all {
            return Claim::Shared;
        }
        if is_born_before && is_whole && !has_any {
            let what =
                format!("{count} fragments of epoch {}, and no clone has them", pointer.birth.0);
            self.defect(DefectCode::FS011, subject, Some(place), what);
        }
        Claim::First
    }

    /// Notes that what of `pointer` nobody else holds is still in use.
    fn claim_rest(&mut self, pointer: &BlockPointer) {
        let (group, first) = (pointer.place.group(), pointer.place.fragment());
        let Some(space) = self.space.groups.get_mut(&group) else { return };
        for fragment in first..first + pointer.fragments {
            if !is_set(&space.used, fragment) {
                space.set(fragment, 1);
                self.report.totals.fragments += 1;
            }
        }
    }

    /// Checks that the segments under a claim are of the right kind; reports each once.
    fn check_segments(&mut self, holds: Use, place: Place, count: u32, subject: Subject) {
        let geometry = &self.reader.geometry;
        let first = geometry.segment_of(place);
        let last = geometry.segment_of(place.advance(count - 1));
        let has_role = geometry.may_have_data(place.group());
        let (code, expected) = match holds {
            Use::Page => (DefectCode::SG003, SegmentKind::Metadata),
            Use::Block => (DefectCode::SG004, SegmentKind::Data),
        };
        for segment in first..=last {
            let space = self.space.groups.get_mut(&place.group()).expect("added by claim");
            let Some(stated) = space.segments.get_mut(index_of(segment)) else { continue };
            let Some(kind) = stated.kind else { continue };
            let (group, is_misplaced) = (place.group(), holds == Use::Block && !has_role);
            if stated.is_reported || kind == expected && !is_misplaced {
                continue;
            }
            stated.is_reported = true;
            if kind != expected {
                let what = format!("segment {segment} of group {group} is {kind:?}");
                self.defect(code, subject, Some(place), what);
            } else {
                let what = format!("segment {segment} of group {group} is for metadata alone");
                self.defect(DefectCode::SG006, subject, Some(place), what);
            }
        }
    }
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
