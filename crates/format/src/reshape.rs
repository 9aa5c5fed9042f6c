//! A raid5 or stripe that is getting a member more, or is to have one less: which segments lie over
//! all of its members.
//!
//! # Layout
//!
//! Segments are moved in order, each from rows of one width to rows of the other. What lies in
//! front of a border is *wide*, over all members, and what lies behind it is *narrow*, over all but
//! one, and takes more rows:
//!
//! ```text
//!   rows of members   | wide segments | free by now | narrow segments       |
//!   pool              | segments 0 .. moved         | segments moved ..     |
//! ```
//!
//! With a member more the border moves from the first segment to the last, with one less from the
//! last to the first. Before the latter, allocation groups are given up for which there is no room
//! then, from the last on ([`LastGroups`]).
//!
//! # Invariants
//!
//! - RL1: The new place of a segment meets the old place of itself alone, of those that are not
//!   moved yet; and of itself only where it is one of the first.
//! - RL2: While a segment is kept elsewhere its bytes are there, whatever lies in its own rows.
//!
//! Decisions 0090 and 0091 have the argument.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::stripes::Stripes;

/// A segment that is moved by way of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptSegment {
    /// Number, in its disk group, of the segment that has its bytes, as data.
    pub at: u64,
    /// Whether what it keeps are pages of metadata, in two copies each: else data under parity.
    pub is_pages: bool,
}

/// Which way the border moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// Segments become wide: there is a member more.
    Wide,
    /// Segments become narrow: there is to be a member less.
    Narrow,
}

/// The last allocation groups of a disk group that is to have a member less: nothing new goes
/// there, and what is there is moved elsewhere. All segments are wide yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastGroups {
    /// The number of the disk group.
    pub disk_group: u8,
    /// Which of its members is to go, counted in its layout.
    pub member: u8,
    /// The first allocation group that is given up; the one behind the last: there is none.
    pub first: u32,
}

/// How far a disk group is that gets a member more, or is to have one less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshape {
    /// Its number.
    pub disk_group: u8,
    /// Which of its members, counted in its layout, narrow segments do not lie on.
    pub member: u8,
    /// Segments, from its first, that are wide.
    pub moved: u64,
    /// The segment behind these, if its bytes are elsewhere.
    pub kept: Option<KeptSegment>,
    /// What becomes of the others.
    pub towards: Towards,
}

/// The same on disk. Format: `docs/FORMAT.md#reshape`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ReshapeDisk {
    /// Number of the disk group.
    pub disk_group: u8,
    /// Which of its members narrow segments do not lie on.
    pub member: u8,
    /// 0: no segment is kept elsewhere; 1: one of data; 2: one of metadata pages.
    pub kept: u8,
    /// Zero.
    pub reserved_a: u8,
    /// Zero.
    pub reserved_b: U32,
    /// Segments that are wide. Where the last allocation groups are given up: the first of these.
    pub moved: U64,
    /// Segment of the disk group that keeps the one behind these.
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

    pub(crate) fn from_disk(disk: &ReshapeDisk, towards: Towards) -> Option<Reshape> {
        let kept = |is_pages| KeptSegment { at: disk.kept_at.get(), is_pages };
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

impl LastGroups {
    pub(crate) fn to_disk(self) -> ReshapeDisk {
        ReshapeDisk {
            disk_group: self.disk_group,
            member: self.member,
            moved: U64::new(self.first.into()),
            ..ReshapeDisk::default()
        }
    }

    pub(crate) fn from_disk(disk: &ReshapeDisk) -> Option<LastGroups> {
        let first = u32::try_from(disk.moved.get()).ok()?;
        Some(LastGroups { disk_group: disk.disk_group, member: disk.member, first })
    }
}

/// How the segments of a disk group in stripes lie at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lay {
    /// Of all segments, or of the narrow ones.
    pub narrow: Stripes,
    /// Of the wide ones, in front of the border.
    pub wide: Stripes,
    /// First byte behind the wide segments; where none are told apart, in front of all.
    pub border: u64,
    /// First byte of the segment that is kept elsewhere, and of where.
    pub kept: Option<(u64, u64)>,
}

impl From<Stripes> for Lay {
    fn from(stripes: Stripes) -> Lay {
        let border = stripes.groups_offset;
        Lay { narrow: stripes, wide: stripes, border, kept: None }
    }
}

impl Lay {
    /// Returns how segments lie of which `narrow` says how the narrow ones do: over all members.
    #[must_use]
    pub fn of(narrow: Stripes, reshape: &Reshape) -> Lay {
        let wide = Stripes { shape: narrow.shape.wider(), ..narrow };
        let without = narrow.without.and(usize::from(reshape.member));
        let narrow = Stripes { without, ..narrow };
        let start = |segment: u64| {
            narrow.groups_offset.saturating_add(segment.saturating_mul(narrow.segment_bytes))
        };
        let kept = reshape.kept.map(|kept| (start(reshape.moved), start(kept.at)));
        Lay { narrow, wide, border: start(reshape.moved), kept }
    }

    /// Whether a disk group is being reshaped.
    #[must_use]
    pub fn is_reshaped(&self) -> bool {
        self.narrow != self.wide
    }

    /// Whether segments take less of each member when they are wide.
    #[must_use]
    pub fn gains(&self) -> bool {
        self.wide.segment_rows() < self.narrow.segment_rows()
    }

    /// Returns how the segment lies that has byte `offset` of the pool.
    #[must_use]
    pub fn at(&self, offset: u64) -> Stripes {
        if offset < self.border { self.wide } else { self.narrow }
    }

    /// Returns where the bytes from `offset` on are to be read, and up to which byte that is so
    /// (RL2).
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

    /// Returns how many of the first segments must be moved by way of another (RL1).
    #[must_use]
    pub fn kept_first(&self) -> u64 {
        let (wide, narrow) = (self.wide.segment_rows(), self.narrow.segment_rows());
        wide.div_ceil(narrow.saturating_sub(wide).max(1))
    }

    /// Returns up to which segment those from `from` on can become wide, the labels saying that
    /// those before are: no new place meets an old one of them (RL1).
    #[must_use]
    pub fn may_move_to(&self, from: u64) -> u64 {
        let (wide, narrow) = (self.wide.segment_rows(), self.narrow.segment_rows());
        from.saturating_mul(narrow) / wide.max(1)
    }

    /// Returns from which segment on those before `to` can become narrow, the labels saying that
    /// those from there on are: as [`Lay::may_move_to`].
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
    use crate::stripes::{MemberByte, StripeShape, Without};

    fn lays() -> impl Iterator<Item = (Lay, u64)> {
        let widths = (3..=12).map(|members| (members, true));
        widths.chain((2..=12).map(|members| (members, false))).flat_map(|(members, has_parity)| {
            [(960 << 10, 2), (1 << 20, 0), (128 << 10, 1)].into_iter().flat_map(
                move |(segment_bytes, member)| {
                    let shape = StripeShape { members, unit_shift: 14, has_parity };
                    let groups_offset = 3 << 16;
                    let narrow =
                        Stripes { shape, groups_offset, segment_bytes, without: Without::NONE };
                    (0..12).map(move |moved| {
                        let towards = Towards::Wide;
                        let reshape = Reshape { disk_group: 0, member, moved, kept: None, towards };
                        (Lay::of(narrow, &reshape), moved)
                    })
                },
            )
        })
    }

    /// RL1: rows of a segment's new place are those of no other that is not moved.
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
            // The other way: segment `moved` is the last wide one, and becomes narrow.
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

    /// Goal: every byte has a place on a member, which is its own there, on either side of the
    /// border; none on the member that narrow segments do not lie on.
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

    /// RL2.
    #[test]
    fn a_segment_that_is_kept_elsewhere_is_read_there() {
        let shape = StripeShape { members: 4, unit_shift: 14, has_parity: true };
        let narrow = Stripes {
            shape,
            groups_offset: 1 << 16,
            segment_bytes: 1 << 20,
            without: Without::NONE,
        };
        let kept = Some(KeptSegment { at: 9, is_pages: false });
        let towards = Towards::Narrow;
        let reshape = Reshape { disk_group: 0, member: 4, moved: 2, kept, towards };
        let lay = Lay::of(narrow, &reshape);
        let start = |segment: u64| (1 << 16) + (segment << 20);
        assert_eq!(lay.seen_at(start(0)), (start(0), start(2)));
        assert_eq!(lay.seen_at(start(2) + 5), (start(9) + 5, start(3)));
        assert_eq!(lay.seen_at(start(3)), (start(3), u64::MAX));
        let disk = reshape.to_disk();
        assert_eq!(Reshape::from_disk(&disk, towards), Some(reshape));
        assert_eq!(Reshape::from_disk(&ReshapeDisk { kept: 3, ..disk }, towards), None);
        let last = LastGroups { disk_group: 3, member: 1, first: 70_000 };
        assert_eq!(LastGroups::from_disk(&last.to_disk()), Some(last));
        assert!(!Lay::from(narrow).is_reshaped());
    }
}
