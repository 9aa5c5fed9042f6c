//! Reshape of a raid5 or stripe: adding or removing a member online.
//!
//! # Layout
//!
//! Segments are moved in order, from rows of one width to rows of the other. Segments before a
//! border are *wide*, over all members. Those behind it are *narrow*, over all but one, in more
//! rows:
//!
//! ```text
//!   rows of members   | wide segments | free by now | narrow segments       |
//!   pool              | segments 0 .. moved         | segments moved ..     |
//! ```
//!
//! Adding a member moves the border forward, removing one moves it back. Before a removal, last
//! allocation groups without room in the narrow layout are emptied ([`EvacuatingGroups`]).
//!
//! # Invariants
//!
//! - RL1: The new place of a segment overlaps the old place of no other unmoved segment. It
//!   overlaps the segment's own old place only for some of the first segments.
//! - RL2: While a segment has a temporary copy, reads use the copy, and its own rows are undefined.
//!
//! Decisions 0090 and 0091 have the argument.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::stripes::Stripes;

/// Temporary copy of a segment whose old and new place overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentCopy {
    /// Number, in its disk group, of the data segment with the copy.
    pub at: u64,
    /// Metadata pages, in two copies each, rather than data under parity.
    pub is_pages: bool,
}

/// Direction of a reshape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReshapeDirection {
    /// A member is added: segments become wide.
    Wide,
    /// A member is removed: segments become narrow.
    Narrow,
}

/// Allocation groups being emptied before a member is removed, closed to allocation. All segments
/// are wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvacuatingGroups {
    /// Number of the disk group.
    pub disk_group: u8,
    /// Leaving member, as an index in the layout.
    pub member: u8,
    /// First group to empty; the end of the groups if there is none.
    pub first: u32,
}

/// Progress of a reshape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// Number of the disk group.
    pub disk_group: u8,
    /// Member without narrow segments, as an index in the layout.
    pub member: u8,
    /// Wide segments, from the first.
    pub moved: u64,
    /// Temporary copy of segment `moved`.
    pub kept: Option<SegmentCopy>,
    /// Direction.
    pub towards: ReshapeDirection,
}

/// A [`Reshape`], or [`EvacuatingGroups`]. Format: `docs/FORMAT.md#reshape`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ReshapeDisk {
    /// Number of the disk group.
    pub disk_group: u8,
    /// Member without narrow segments; or the leaving member.
    pub member: u8,
    /// Temporary copy of segment `moved`: 0: none; 1: data; 2: metadata pages.
    pub kept: u8,
    /// Zero.
    pub reserved_a: u8,
    /// Zero.
    pub reserved_b: U32,
    /// Wide segments; or the first allocation group to empty.
    pub moved: U64,
    /// Segment with the temporary copy.
    pub kept_at: U64,
    /// Zero.
    pub reserved_c: U64,
}

impl Reshape {
    pub(crate) fn to_disk(self) -> ReshapeDisk {
        ReshapeDisk {
            disk_group: self.disk_group,
            member: self.member,
            kept: self.kept.map_or(0, |kept| 1 + u8::from(kept.is_pages)),
            moved: U64::new(self.moved),
            kept_at: U64::new(self.kept.map_or(0, |kept| kept.at)),
            ..ReshapeDisk::default()
        }
    }

    pub(crate) fn from_disk(disk: &ReshapeDisk, towards: ReshapeDirection) -> Option<Reshape> {
        let kept = |is_pages| SegmentCopy { at: disk.kept_at.get(), is_pages };
        let kept = match disk.kept {
            0 => None,
            1 => Some(kept(false)),
            2 => Some(kept(true)),
            _ => return None,
        };
        let (disk_group, member, moved) = (disk.disk_group, disk.member, disk.moved.get());
        Some(Reshape { disk_group, member, moved, kept, towards })
    }
}

impl EvacuatingGroups {
    pub(crate) fn to_disk(self) -> ReshapeDisk {
        ReshapeDisk {
            disk_group: self.disk_group,
            member: self.member,
            moved: U64::new(self.first.into()),
            ..ReshapeDisk::default()
        }
    }

    pub(crate) fn from_disk(disk: &ReshapeDisk) -> Option<EvacuatingGroups> {
        let first = u32::try_from(disk.moved.get()).ok()?;
        Some(EvacuatingGroups { disk_group: disk.disk_group, member: disk.member, first })
    }
}

/// Stripe mapping of a disk group, also during a reshape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeMapping {
    /// Mapping of narrow segments; without a reshape, of all.
    pub narrow: Stripes,
    /// Mapping of wide segments, before the border.
    pub wide: Stripes,
    /// First byte behind the wide segments; without a reshape, the start of the groups.
    pub border: u64,
    /// First bytes of the segment with a temporary copy, and of the copy.
    pub kept: Option<(u64, u64)>,
}

impl From<Stripes> for StripeMapping {
    fn from(stripes: Stripes) -> StripeMapping {
        let border = stripes.groups_offset;
        StripeMapping { narrow: stripes, wide: stripes, border, kept: None }
    }
}

impl StripeMapping {
    /// Returns the mapping during a reshape. `narrow` still includes the member without narrow
    /// segments.
    #[must_use]
    pub fn of(narrow: Stripes, reshape: &Reshape) -> StripeMapping {
        let wide = Stripes { shape: narrow.shape.wider(), ..narrow };
        let without = narrow.without.and(usize::from(reshape.member));
        let narrow = Stripes { without, ..narrow };
        let start = |segment: u64| {
            narrow.groups_offset.saturating_add(segment.saturating_mul(narrow.segment_bytes))
        };
        let kept = reshape.kept.map(|kept| (start(reshape.moved), start(kept.at)));
        StripeMapping { narrow, wide, border: start(reshape.moved), kept }
    }

    /// Whether a reshape is in progress.
    #[must_use]
    pub fn is_reshaped(&self) -> bool {
        self.narrow != self.wide
    }

    /// Whether wide segments take fewer rows.
    #[must_use]
    pub fn gains(&self) -> bool {
        self.wide.segment_rows() < self.narrow.segment_rows()
    }

    /// Returns the mapping of the segment at byte `offset` of the pool.
    #[must_use]
    pub fn at(&self, offset: u64) -> Stripes {
        if offset < self.border { self.wide } else { self.narrow }
    }

    /// Returns the byte to read for byte `offset` (RL2), and the end of that mapping.
    #[must_use]
    pub fn seen_at(&self, offset: u64) -> (u64, u64) {
        let segment_bytes = self.narrow.segment_bytes;
        let end = if offset < self.border { self.border } else { u64::MAX };
        match self.kept {
            Some((start, copy)) if (start..start + segment_bytes).contains(&offset) => {
                (copy + (offset - start), start + segment_bytes)
            }
            Some((start, _)) if offset < start => (offset, end.min(start)),
            Some(_) | None => (offset, end),
        }
    }

    /// Returns the number of first segments that need a temporary copy (RL1).
    #[must_use]
    pub fn kept_first(&self) -> u64 {
        let (wide, narrow) = (self.wide.segment_rows(), self.narrow.segment_rows());
        wide.div_ceil(narrow.saturating_sub(wide).max(1))
    }

    /// Returns the end of the segments that can become wide without overlap (RL1), if the labels
    /// have those before `from` as wide.
    #[must_use]
    pub fn may_move_to(&self, from: u64) -> u64 {
        let (wide, narrow) = (self.wide.segment_rows(), self.narrow.segment_rows());
        from.saturating_mul(narrow) / wide.max(1)
    }

    /// Returns the start of the segments that can become narrow without overlap (RL1), if the
    /// labels have those from `to` on as narrow.
    #[must_use]
    pub fn may_move_from(&self, to: u64) -> u64 {
        let (wide, narrow) = (self.wide.segment_rows(), self.narrow.segment_rows());
        to.saturating_mul(wide).div_ceil(narrow.max(1))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::stripes::{ExcludedMembers, MemberByte, StripeShape};

    fn lays() -> impl Iterator<Item = (StripeMapping, u64)> {
        let widths = (3..=12).map(|members| (members, true));
        widths.chain((2..=12).map(|members| (members, false))).flat_map(|(members, has_parity)| {
            [(960 << 10, 2), (1 << 20, 0), (128 << 10, 1)].into_iter().flat_map(
                move |(segment_bytes, member)| {
                    let shape = StripeShape { members, unit_shift: 14, has_parity };
                    let groups_offset = 3 << 16;
                    let narrow = Stripes {
                        shape,
                        groups_offset,
                        segment_bytes,
                        without: ExcludedMembers::NONE,
                    };
                    (0..12).map(move |moved| {
                        let towards = ReshapeDirection::Wide;
                        let reshape = Reshape { disk_group: 0, member, moved, kept: None, towards };
                        (StripeMapping::of(narrow, &reshape), moved)
                    })
                },
            )
        })
    }

    /// Goal: a segment's new rows belong to no other unmoved segment (RL1).
    #[test]
    fn a_new_place_meets_no_old_one_but_its_own() {
        for (lay, moved) in lays() {
            let (wide, narrow) = (lay.wide.segment_rows(), lay.narrow.segment_rows());
            if wide == narrow {
                continue;
            }
            let new = moved * wide..(moved + 1) * wide;
            for other in moved..moved + 20 {
                let old = other * narrow..(other + 1) * narrow;
                let meets = new.start < old.end && old.start < new.end;
                let may = other == moved && moved < lay.kept_first();
                assert!(!meets || may, "{lay:?} {moved} {other}");
            }
            let to = lay.may_move_to(moved);
            assert_eq!(to > moved, moved >= lay.kept_first(), "{lay:?} {moved}");
            assert!(to * wide <= moved * narrow, "{lay:?} {moved}");
            // The other direction: the last wide segment, `moved`, becomes narrow.
            let new = moved * narrow..(moved + 1) * narrow;
            for other in 0..=moved {
                let old = other * wide..(other + 1) * wide;
                let meets = new.start < old.end && old.start < new.end;
                let may = other == moved && moved < lay.kept_first();
                assert!(!meets || may, "{lay:?} {moved} {other}");
            }
            let from = lay.may_move_from(moved + 1);
            assert_eq!(from <= moved, moved >= lay.kept_first(), "{lay:?} {moved}");
            assert!(from * narrow >= (moved + 1) * wide, "{lay:?} {moved}");
        }
    }

    /// Goal: every byte has a unique place, and no narrow segment uses the left-out member.
    #[test]
    fn each_byte_has_a_place_on_either_side_of_the_border() {
        for (lay, moved) in lays() {
            let (start, bytes) = (lay.narrow.groups_offset, lay.narrow.segment_bytes);
            let mut seen = BTreeSet::new();
            for offset in (start..start + bytes * 14).step_by(4096) {
                let stripes = lay.at(offset);
                let is_wide = offset < start + moved * bytes;
                let place = stripes.locate(offset).expect("in the groups");
                let at = stripes.at_member(place.member, place.member_offset);
                assert_eq!(at, Some(MemberByte::Data(offset)), "{lay:?}");
                assert!(is_wide || !lay.narrow.without.has(place.member));
                assert!(seen.insert((is_wide, place.member, place.member_offset)), "{lay:?}");
                let parity = stripes.parity_member(place.row);
                assert_eq!(parity.is_some(), stripes.shape.has_parity, "{lay:?}");
                assert_ne!(parity, Some(place.member), "{lay:?}");
                assert!(parity.is_none_or(|parity| stripes.has_member(parity)));
                assert!(stripes.has_member(place.member));
                if let Some((member, _)) = stripes.second_copy(&place) {
                    assert!(stripes.has_member(member) && member != place.member, "{lay:?}");
                }
            }
        }
    }

    /// Goal: a segment with a temporary copy is read from the copy (RL2).
    #[test]
    fn a_segment_that_is_kept_elsewhere_is_read_there() {
        let shape = StripeShape { members: 4, unit_shift: 14, has_parity: true };
        let narrow = Stripes {
            shape,
            groups_offset: 1 << 16,
            segment_bytes: 1 << 20,
            without: ExcludedMembers::NONE,
        };
        let kept = Some(SegmentCopy { at: 9, is_pages: false });
        let towards = ReshapeDirection::Narrow;
        let reshape = Reshape { disk_group: 0, member: 4, moved: 2, kept, towards };
        let lay = StripeMapping::of(narrow, &reshape);
        let start = |segment: u64| (1 << 16) + (segment << 20);
        assert_eq!(lay.seen_at(start(0)), (start(0), start(2)));
        assert_eq!(lay.seen_at(start(2) + 5), (start(9) + 5, start(3)));
        assert_eq!(lay.seen_at(start(3)), (start(3), u64::MAX));
        let disk = reshape.to_disk();
        assert_eq!(Reshape::from_disk(&disk, towards), Some(reshape));
        assert_eq!(Reshape::from_disk(&ReshapeDisk { kept: 3, ..disk }, towards), None);
        let last = EvacuatingGroups { disk_group: 3, member: 1, first: 70_000 };
        assert_eq!(EvacuatingGroups::from_disk(&last.to_disk()), Some(last));
        assert!(!StripeMapping::from(narrow).is_reshaped());
    }
}
