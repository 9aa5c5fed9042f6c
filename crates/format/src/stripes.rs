//! Stripe mapping: bytes of groups to members of a `raid5` or `stripe`. Pure arithmetic.
//!
//! # Layout
//!
//! ```text
//!   four members, U = unit          d0    d1    d2    d3       stripe:  d0    d1    d2    d3
//!   fixed regions                   F     F     F     F                 F     F     F     F
//!   row 0 (groups_offset)           D0    D1    D2    P                 D0    D1    D2    D3
//!   row 1 (groups_offset + U)       D4    D5    P     D3                D4    D5    D6    D7
//!   row 2                           D8    P     D6    D7                D8    D9    D10   D11
//! ```
//!
//! A `stripe` is a `raid5` without parity. Each segment begins at a row; its last row may end with
//! zeros outside the pool's bytes.
//!
//! A metadata segment has no parity. Each page has a second copy on another member, half a
//! segment's rows behind the first. So only the lower half of the segment can be used.
//!
//! # Invariants
//!
//! - SP1: Each byte of the groups has one place, and no two share one.
//! - SP2: The units of a row and its parity are on different members.
//! - SP3: The two copies of a page are on two members, and first copies never overlap second ones.
//!
//! Decisions 0065 and 0081 give the reasons.

use std::ops::Range;

use runtime::planted;

/// Fewest members of a `raid5`.
pub const RAID5_WIDTH_MIN: usize = 3;
/// Fewest members of a `stripe`, for the two copies of pages.
pub const STRIPE_WIDTH_MIN: usize = 2;
/// Default stripe unit: one default block, as binary logarithm.
pub const UNIT_SHIFT_DEFAULT: u8 = 14;
/// Largest unusable share of rows, a sixteenth, before units are shortened.
const FITTED_LOST_PERCENT: u64 = 6;
/// Permitted stripe units: from a page to the alignment of fixed regions.
pub const UNIT_SHIFTS: std::ops::RangeInclusive<u8> = 12..=16;

/// Data in one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeWidth {
    /// Units of data.
    pub units: u8,
    /// Binary logarithm of the stripe unit, in [`UNIT_SHIFTS`].
    pub unit_shift: u8,
}

impl StripeWidth {
    /// Returns the bytes of data.
    #[must_use]
    pub fn data_bytes(self) -> u64 {
        u64::from(self.units) << self.unit_shift
    }
}

/// Shape of a disk group's stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeShape {
    /// Members, from [`RAID5_WIDTH_MIN`] or [`STRIPE_WIDTH_MIN`] to
    /// [`crate::members::LAYOUT_SLOTS_MAX`].
    pub members: u8,
    /// Binary logarithm of the stripe unit, in [`UNIT_SHIFTS`].
    pub unit_shift: u8,
    /// Whether one unit of each stripe is parity.
    pub has_parity: bool,
}

impl StripeShape {
    /// Returns the data in one stripe.
    #[must_use]
    pub fn width(self) -> StripeWidth {
        let units = self.members.saturating_sub(u8::from(self.has_parity));
        StripeWidth { units, unit_shift: self.unit_shift }
    }

    /// Returns the bytes of a unit.
    #[must_use]
    pub fn unit_bytes(self) -> u64 {
        1 << self.unit_shift
    }

    /// Returns the bytes of data in a stripe.
    #[must_use]
    pub fn data_bytes(self) -> u64 {
        self.width().data_bytes()
    }

    /// Returns the shape with one member more.
    #[must_use]
    pub fn wider(self) -> StripeShape {
        StripeShape { members: self.members.saturating_add(1), ..self }
    }

    /// Returns the shape with one member less.
    #[must_use]
    pub fn narrower(self) -> StripeShape {
        StripeShape { members: self.members.saturating_sub(1), ..self }
    }

    /// Returns the rows of a segment: even, for second copies of its first half.
    #[must_use]
    pub fn segment_rows(self, segment_bytes: u64) -> u64 {
        2 * segment_bytes.div_ceil(2).div_ceil(self.data_bytes().max(1)).max(1)
    }

    /// Returns the shape with the longest unit that wastes at most a sixteenth of a segment's rows,
    /// else that with the least waste.
    #[must_use]
    pub fn fitted(self, segment_bytes: u64) -> StripeShape {
        let units = (*UNIT_SHIFTS.start()..=self.unit_shift).rev();
        let shapes = units.map(|unit_shift| StripeShape { unit_shift, ..self });
        let lost = |shape: &StripeShape| {
            let room = shape.segment_rows(segment_bytes).saturating_mul(shape.data_bytes());
            let lost = room.saturating_sub(segment_bytes).saturating_mul(100) / room.max(1);
            if lost <= FITTED_LOST_PERCENT { 0 } else { lost }
        };
        // In a tie the first wins, with the longest unit.
        shapes.min_by_key(lost).unwrap_or(self)
    }

    /// Returns the bytes in `rows`: whole segments, and whole rows of the last.
    #[must_use]
    pub fn bytes_of_rows(self, rows: u64, segment_bytes: u64) -> u64 {
        let of_segment = self.segment_rows(segment_bytes);
        let rest = (rows % of_segment).saturating_mul(self.data_bytes());
        let rest = if rest < segment_bytes { rest } else { 0 };
        (rows / of_segment).saturating_mul(segment_bytes).saturating_add(rest)
    }

    /// Returns the rows of the first `bytes` of the groups.
    #[must_use]
    pub fn rows_of_bytes(self, bytes: u64, segment_bytes: u64) -> u64 {
        let (whole, rest) = (bytes / segment_bytes.max(1), bytes % segment_bytes.max(1));
        let rest = rest / self.data_bytes().max(1);
        whole.saturating_mul(self.segment_rows(segment_bytes)).saturating_add(rest)
    }
}

/// A set of members that a mapping leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExcludedMembers(u64);

impl ExcludedMembers {
    /// Most members that the set can hold.
    pub const COUNTED_MAX: usize = 64;
    /// The empty set.
    pub const NONE: ExcludedMembers = ExcludedMembers(0);

    /// Returns the set with `member` added.
    #[must_use]
    pub fn and(self, member: usize) -> ExcludedMembers {
        debug_assert!(member < ExcludedMembers::COUNTED_MAX, "{member}");
        let bit = u32::try_from(member).ok().and_then(|member| 1_u64.checked_shl(member));
        ExcludedMembers(self.0 | bit.unwrap_or(0))
    }

    /// Whether `member` is in the set.
    #[must_use]
    pub fn has(self, member: usize) -> bool {
        member < ExcludedMembers::COUNTED_MAX && self.0 >> member & 1 == 1
    }

    fn before(self, member: usize) -> usize {
        (0..member.min(ExcludedMembers::COUNTED_MAX)).filter(|other| self.has(*other)).count()
    }

    /// Returns the `number`-th member outside the set.
    #[must_use]
    pub fn nth(self, number: usize) -> usize {
        if self == ExcludedMembers::NONE {
            return number;
        }
        let mut others = (0..).filter(|member| !self.has(*member));
        others.nth(number).unwrap_or(number)
    }

    /// Iterates over the set.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..ExcludedMembers::COUNTED_MAX).filter(move |member| self.has(*member))
    }
}

/// Stripe mapping of one disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Shape of the stripes.
    pub shape: StripeShape,
    /// First byte of the groups, in the pool and on each member.
    pub groups_offset: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Members of the disk group outside the mapping.
    pub without: ExcludedMembers,
}

/// Place of a byte of the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitPlace {
    /// Row, from the first group.
    pub row: u64,
    /// Data unit of the row.
    pub index: u64,
    /// Index of the member.
    pub member: usize,
    /// Byte of the member.
    pub member_offset: u64,
    /// Bytes to the end of the unit.
    pub rest_bytes: u64,
}

/// Contents of a byte of a member, behind its fixed regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberByte {
    /// Data, or the first copy of a page: a byte of the pool.
    Data(u64),
    /// Parity of a row. In a metadata segment a second copy, or nothing.
    Parity(u64),
}

impl Stripes {
    fn members(&self) -> u64 {
        u64::from(self.shape.members)
    }

    fn member(&self, number: u64) -> usize {
        self.without.nth(slot(number))
    }

    fn number_of(&self, member: usize) -> Option<usize> {
        if self.without.has(member) {
            return None;
        }
        let number = member - self.without.before(member);
        (number < usize::from(self.shape.members)).then_some(number)
    }

    /// Whether `member` is part of the mapping.
    #[must_use]
    pub fn has_member(&self, member: usize) -> bool {
        self.number_of(member).is_some()
    }

    /// Returns the member with the parity of `row`, if there is parity.
    #[must_use]
    pub fn parity_member(&self, row: u64) -> Option<usize> {
        let turn = row % self.members();
        self.shape.has_parity.then(|| self.member(self.members() - 1 - turn))
    }

    /// Returns the member with data unit `index` of `row`.
    #[must_use]
    pub fn data_member(&self, row: u64, index: u64) -> usize {
        let turn = if self.shape.has_parity { row % self.members() } else { 0 };
        self.member((self.members() - turn + index) % self.members())
    }

    /// Returns the byte of each member at which `row` begins.
    #[must_use]
    pub fn row_offset(&self, row: u64) -> u64 {
        self.groups_offset + (row << self.shape.unit_shift)
    }

    /// Returns the rows of a segment.
    #[must_use]
    pub fn segment_rows(&self) -> u64 {
        self.shape.segment_rows(self.segment_bytes)
    }

    /// Returns the row of byte `offset`, and the offset in that row. The end of a segment belongs
    /// to the next row.
    fn row_at(&self, offset: u64) -> Option<(u64, u64)> {
        let behind = offset.checked_sub(self.groups_offset)?;
        let (segment, in_segment) =
            (behind / self.segment_bytes.max(1), behind % self.segment_bytes.max(1));
        let row = in_segment / self.shape.data_bytes();
        Some((segment * self.segment_rows() + row, in_segment % self.shape.data_bytes()))
    }

    /// Returns the rows of a range of whole rows.
    #[must_use]
    pub fn rows_of(&self, range: &Range<u64>) -> Range<u64> {
        let row = |offset: u64| self.row_at(offset).map_or(0, |(row, _)| row);
        row(range.start)..row(range.end)
    }

    /// Whether byte `offset` of the pool is the start of a row.
    #[must_use]
    pub fn is_row_bound(&self, offset: u64) -> bool {
        self.row_at(offset).is_some_and(|(_, in_row)| in_row == 0)
    }

    /// Returns the place of byte `offset`; `None` in front of the groups.
    #[must_use]
    pub fn locate(&self, offset: u64) -> Option<UnitPlace> {
        let (row, in_row) = self.row_at(offset)?;
        let (index, in_unit) = (in_row >> self.shape.unit_shift, in_row % self.shape.unit_bytes());
        let row_rest = self.row_bytes(row) - in_row;
        Some(UnitPlace {
            row,
            index,
            member: self.data_member(row, index),
            member_offset: self.row_offset(row) + in_unit,
            rest_bytes: (self.shape.unit_bytes() - in_unit).min(row_rest),
        })
    }

    /// Returns the first byte of the pool in or behind `row`.
    #[must_use]
    pub fn row_start(&self, row: u64) -> u64 {
        let (segment, in_segment) = (row / self.segment_rows(), row % self.segment_rows());
        let ahead = (in_segment * self.shape.data_bytes()).min(self.segment_bytes);
        self.groups_offset + segment * self.segment_bytes + ahead
    }

    /// Returns the bytes of the pool in `row`.
    #[must_use]
    pub fn row_bytes(&self, row: u64) -> u64 {
        self.row_start(row + 1) - self.row_start(row)
    }

    /// Returns member and byte of a page's second copy; `None` if no page can be at `first`.
    #[must_use]
    pub fn second_copy(&self, first: &UnitPlace) -> Option<(usize, u64)> {
        let half = self.segment_rows() / 2;
        if first.row % self.segment_rows() >= half {
            return None;
        }
        let step = 1 + first.row % (self.members() - 1);
        let step = if planted!(CopiesOnOneMember) { 0 } else { step };
        let number = u64::try_from(self.number_of(first.member)?).ok()? + step;
        let member = self.member(number % self.members());
        Some((member, first.member_offset + (half << self.shape.unit_shift)))
    }

    /// Returns the contents of byte `offset` of `member`; `None` if it has none.
    #[must_use]
    pub fn at_member(&self, member: usize, offset: u64) -> Option<MemberByte> {
        let behind = offset.checked_sub(self.groups_offset)?;
        let (row, in_unit) = (behind >> self.shape.unit_shift, behind % self.shape.unit_bytes());
        let number = self.number_of(member)?;
        let index = match self.parity_member(row) {
            Some(parity) if member == parity => return Some(MemberByte::Parity(row)),
            Some(parity) => {
                let members = slot(self.members());
                (number + members - self.number_of(parity)? - 1) % members
            }
            None => number,
        };
        let index = u64::try_from(index).ok()?;
        let in_row = (index << self.shape.unit_shift) + in_unit;
        (in_row < self.row_bytes(row)).then(|| MemberByte::Data(self.row_start(row) + in_row))
    }
}

fn slot(number: u64) -> usize {
    usize::try_from(number).expect("at most 32 members")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all() -> impl Iterator<Item = Stripes> {
        let shapes = (2..=32).flat_map(|members| [(members, false), (members, members > 2)]);
        shapes.flat_map(|(members, has_parity)| {
            let of_rows = [(12, 4), (14, 2), (14, 8), (16, 6)].map(|(unit_shift, rows)| {
                let shape = StripeShape { members, unit_shift, has_parity };
                {
                    let segment_bytes = rows * shape.data_bytes();
                    Stripes {
                        shape,
                        groups_offset: 3 << 16,
                        segment_bytes,
                        without: ExcludedMembers::NONE,
                    }
                }
            });
            let of_bytes = [(12, 128 << 10), (14, 1 << 20), (14, 40 << 12), (16, 960 << 10)];
            let of_bytes = of_bytes.map(|(unit_shift, segment_bytes)| {
                let shape = StripeShape { members, unit_shift, has_parity };
                Stripes {
                    shape,
                    groups_offset: 3 << 16,
                    segment_bytes,
                    without: ExcludedMembers::NONE,
                }
            });
            of_rows.into_iter().chain(of_bytes)
        })
    }

    /// Goal: an added disk group of any width uses nearly all of its members.
    #[test]
    fn units_are_as_long_as_segments_allow() {
        let fitted = |members, segment_bytes| {
            let shape = StripeShape { members, unit_shift: 14, has_parity: true };
            shape.fitted(segment_bytes)
        };
        assert_eq!(fitted(3, 1 << 20).unit_shift, 14);
        assert_eq!(fitted(5, 128 << 10).unit_shift, 14);
        assert_eq!(fitted(9, 128 << 10).unit_shift, 13);
        assert_eq!(fitted(32, 1 << 20).unit_shift, 12);
        for members in 3..=32 {
            let shape = fitted(members, 1 << 20);
            let room = shape.segment_rows(1 << 20) * shape.data_bytes();
            assert!((1 << 20) * 100 >= room * 80, "{shape:?}: {room}");
        }
    }

    /// Goal: bytes have distinct places (SP1), and parity is on another member (SP2), over two
    /// turns of the rotation and two segments.
    #[test]
    fn each_unit_has_a_place_of_its_own_and_parity_is_on_another_member() {
        for stripes in all() {
            let width = usize::from(stripes.shape.members);
            let rows = u64::from(stripes.shape.members) * 2 * stripes.segment_rows();
            let mut seen = BTreeSet::new();
            let mut parities = vec![0_u64; width];
            let mut next = stripes.groups_offset;
            for row in 0..rows {
                let mut members = BTreeSet::new();
                if let Some(parity) = stripes.parity_member(row) {
                    members.insert(parity);
                    parities[parity] += 1;
                    let at = stripes.at_member(parity, stripes.row_offset(row));
                    assert_eq!(at, Some(MemberByte::Parity(row)));
                }
                assert_eq!(stripes.row_start(row), next, "{stripes:?} {row}");
                next += stripes.row_bytes(row);
                for index in 0..u64::from(stripes.shape.width().units) {
                    let in_row = index * stripes.shape.unit_bytes();
                    let member = stripes.data_member(row, index);
                    if in_row >= stripes.row_bytes(row) {
                        assert_eq!(stripes.at_member(member, stripes.row_offset(row)), None);
                        continue;
                    }
                    let offset = stripes.row_start(row) + in_row;
                    let place = stripes.locate(offset).expect("in the groups");
                    assert_eq!((place.row, place.index), (row, index), "{stripes:?}");
                    let rest = (stripes.row_bytes(row) - in_row).min(stripes.shape.unit_bytes());
                    assert_eq!(place.rest_bytes, rest);
                    assert!(members.insert(place.member), "{stripes:?} {row}");
                    assert!(seen.insert((place.member, place.member_offset)), "{stripes:?}");
                    assert_eq!(
                        stripes.at_member(place.member, place.member_offset),
                        Some(MemberByte::Data(offset))
                    );
                    let inner = stripes.locate(offset + 4095).expect("in the groups");
                    assert_eq!(inner.member_offset, place.member_offset + 4095);
                    assert_eq!(inner.rest_bytes, place.rest_bytes - 4095);
                }
                let full = stripes.row_bytes(row) == stripes.shape.data_bytes();
                assert!(!full || members.len() == width, "{stripes:?} {row}");
                assert!(stripes.is_row_bound(next));
            }
            let whole = stripes.segment_bytes * u64::from(stripes.shape.members) * 2;
            assert_eq!(next, stripes.groups_offset + whole, "{stripes:?}");
            assert_eq!(stripes.rows_of(&(stripes.groups_offset..next)), 0..rows);
            assert_eq!(stripes.shape.bytes_of_rows(rows, stripes.segment_bytes), whole);
            assert_eq!(stripes.shape.rows_of_bytes(whole, stripes.segment_bytes), rows);
            let each = u64::from(stripes.shape.has_parity) * 2 * stripes.segment_rows();
            let all_alike = parities.iter().all(|count| *count == each);
            assert!(all_alike, "parity rotates: {stripes:?} {parities:?}");
            assert_eq!(stripes.locate(stripes.groups_offset - 1), None);
        }
    }

    /// Goal: the copies of a page are on two members, and overlap no page (SP3).
    #[test]
    fn two_copies_of_a_page_lie_on_two_members_and_none_on_another_page() {
        for stripes in all() {
            let (mut seen, mut partners) = (BTreeSet::new(), BTreeSet::new());
            for segment in 0..u64::from(stripes.shape.members) * 2 {
                let start = stripes.groups_offset + segment * stripes.segment_bytes;
                for offset in (start..start + stripes.segment_bytes / 2).step_by(4096) {
                    let first = stripes.locate(offset).expect("in the groups");
                    let second = stripes.second_copy(&first);
                    let (member, at) = second.expect("the first half has room for both");
                    assert_ne!(member, first.member, "{stripes:?} {offset}");
                    partners.insert((first.member, member));
                    for place in [(first.member, first.member_offset), (member, at)] {
                        assert!(seen.insert(place), "{stripes:?} {offset} {place:?}");
                        // The second copy is in the same segment.
                        let row = (place.1 - stripes.groups_offset) / stripes.shape.unit_bytes();
                        assert_eq!(row / stripes.segment_rows(), segment, "{stripes:?}");
                    }
                }
            }
            let of_members: BTreeSet<usize> = partners.iter().map(|(first, _)| *first).collect();
            // Half of a short segment may have less than a row.
            let is_even = stripes.segment_bytes / 2 >= stripes.shape.data_bytes();
            assert!(!is_even || of_members.len() == usize::from(stripes.shape.members));
        }
    }
}
