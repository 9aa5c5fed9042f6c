//! Claims of fragments by containers: each fragment has one owner, or is shared within the family.

use format::defect::{DefectCode, Subject};
use format::group::SegmentKind;
use format::ids::Place;
use format::pointer::BlockPointer;

use crate::context::Check;
use crate::convert::index_of;
use crate::space::{FragmentClaim, FragmentUse, is_set};

impl Check<'_> {
    pub(crate) fn claim(
        &mut self,
        holds: FragmentUse,
        pointer: &BlockPointer,
        subject: Subject,
    ) -> FragmentClaim {
        let (place, count) = (pointer.place, pointer.fragments);
        let geometry = &self.reader.geometry;
        let group = place.group();
        let is_inside = place.disk_group() == 0 && geometry.device_offset(place, count).is_some();
        if !is_inside || place.fragment() < geometry.front_fragments(place.group()) {
            let what = format!("pointer to {count} fragments at {place}");
            self.defect(DefectCode::MP001, subject, Some(place), what);
            return FragmentClaim::Refused;
        }
        if !self.space.groups.contains_key(&group) {
            let what = format!("group {group} is not initialised");
            self.defect(DefectCode::AG008, subject, Some(place), what);
            if self.take_memory(self.space.group_bytes(group)).is_err() {
                return FragmentClaim::Refused;
            }
            self.space.add_group(group, false);
        }
        match self.claim_shared(pointer, subject) {
            FragmentClaim::First => {}
            claim @ (FragmentClaim::Shared | FragmentClaim::Refused) => return claim,
        }
        self.report.totals.fragments += u64::from(count);
        // The progress of a verified block is counted when it is read.
        if holds == FragmentUse::Page || !self.options.data {
            self.advance(u64::from(count));
        }
        self.check_segments(holds, place, count, subject);
        let space = self.space.groups.get_mut(&group).expect("just added");
        if space.is_any_set(place.fragment(), count) {
            let what = format!("{count} fragments belong to another container as well");
            self.defect(DefectCode::MP002, subject, Some(place), what);
            return FragmentClaim::Refused;
        }
        space.set(place.fragment(), count);
        FragmentClaim::First
    }

    /// Compares a claim with the parent snapshot, walked before: it must have exactly the fragments
    /// born until it was taken.
    fn claim_shared(&mut self, pointer: &BlockPointer, subject: Subject) -> FragmentClaim {
        let (place, count) = (pointer.place, pointer.fragments);
        let words = index_of(self.reader.geometry.fragments_of(place.group()).div_ceil(64));
        let Some(shares) = &mut self.space.shares else { return FragmentClaim::First };
        if !shares.add(place.group(), place.fragment(), count, words) {
            let what = format!("the fileset has {count} fragments twice");
            self.defect(DefectCode::MP002, subject, Some(place), what);
            return FragmentClaim::Refused;
        }
        if shares.is_freed {
            // Younger than the parent, so not shared with it. A deleted snapshot may share it with
            // its child.
            if !self.is_snapshot && pointer.birth > shares.epoch {
                return FragmentClaim::First;
            }
            self.claim_rest(pointer);
            return FragmentClaim::Shared;
        }
        let (is_born_before, is_whole) = (pointer.birth <= shares.epoch, shares.is_parent_whole);
        let is_born_after = shares.taken_in.is_some_and(|epoch| pointer.birth > epoch);
        let Some(space) = self.space.groups.get(&place.group()) else {
            return FragmentClaim::First;
        };
        let (has_all, has_any) =
            shares.parent_has(place.group(), place.fragment(), count).unwrap_or_else(|| {
                let (first, count) = (place.fragment(), count);
                (space.is_all_set(first, count), space.is_any_set(first, count))
            });
        if is_born_after {
            let what = format!("a snapshot has {count} fragments of epoch {}", pointer.birth.0);
            self.defect(DefectCode::FS013, subject, Some(place), what);
        }
        if is_born_before && has_all {
            return FragmentClaim::Shared;
        }
        if is_born_before && is_whole && !has_any {
            let what =
                format!("{count} fragments of epoch {}, and no snapshot has them", pointer.birth.0);
            self.defect(DefectCode::FS011, subject, Some(place), what);
        }
        FragmentClaim::First
    }

    /// Marks those of the fragments that no other fileset has claimed.
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

    /// Checks the segments under a claim; reports each of the wrong kind once.
    fn check_segments(&mut self, holds: FragmentUse, place: Place, count: u32, subject: Subject) {
        let geometry = &self.reader.geometry;
        let first = geometry.segment_of(place);
        let last = geometry.segment_of(place.advance(count - 1));
        let has_role = geometry.group_layout().may_have_data(place.group());
        let (code, expected) = match holds {
            FragmentUse::Page => (DefectCode::SG003, SegmentKind::Metadata),
            FragmentUse::Block => (DefectCode::SG004, SegmentKind::Data),
        };
        for segment in first..=last {
            let space = self.space.groups.get_mut(&place.group()).expect("added by claim");
            let Some(stated) = space.segments.get_mut(index_of(segment)) else { continue };
            let Some(kind) = stated.kind else { continue };
            let (group, is_misplaced) = (place.group(), holds == FragmentUse::Block && !has_role);
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
