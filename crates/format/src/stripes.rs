//! Where the bytes of groups lie on the members of a disk group in stripes, `raid5` or `stripe`:
//! pure arithmetic.
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
//! A `stripe` is a `raid5` without the unit of parity. All else is the same of both.
//!
//! Each segment begins with a row of its own. One that is no whole number of rows ends in the
//! middle of one: the rest of its rows is zeros that are no bytes of the pool.
//!
//! A metadata segment has no parity. The first copy of a page lies where data would, the second
//! half the rows of a segment further on another member. So its upper half has no room of its own.
//!
//! # Invariants
//!
//! - SP1: Each byte of the groups has one place, and no two have the same.
//! - SP2: The units of a row and its parity lie on members of their own.
//! - SP3: The two copies of a page lie on two members, and no first copy lies where a second does.
//!
//! Decisions 0065 and 0081 say why.

use std::ops::Range;

use runtime::planted::{self, Planted};

/// Fewest members of a `raid5`.
pub const RAID5_WIDTH_MIN: usize = 3;
/// Fewest members of a `stripe`: two copies of a page lie on two.
pub const STRIPE_WIDTH_MIN: usize = 2;
/// Stripe unit: binary logarithm of the default block, so that a block lies in one unit.
pub const UNIT_SHIFT_DEFAULT: u8 = 14;
/// What of the rows of a disk group that comes to a pool may be empty, before its units become
/// shorter: a sixteenth.
const FITTED_LOST_PERCENT: u64 = 6;
/// Smallest and largest stripe unit: a page, and what fixed regions are aligned to.
pub const UNIT_SHIFTS: std::ops::RangeInclusive<u8> = 12..=16;

/// What a stripe has of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeWidth {
    /// Units of data in a stripe.
    pub units: u8,
    /// Stripe unit: binary logarithm of its bytes, in [`UNIT_SHIFTS`].
    pub unit_shift: u8,
}

impl StripeWidth {
    /// Returns the bytes of data in a stripe.
    #[must_use]
    pub fn data_bytes(self) -> u64 {
        u64::from(self.units) << self.unit_shift
    }
}

/// How the stripes of a disk group lie on its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeShape {
    /// Members: at most [`crate::members::LAYOUT_SLOTS_MAX`], at least [`RAID5_WIDTH_MIN`] with
    /// parity and [`STRIPE_WIDTH_MIN`] without.
    pub members: u8,
    /// Stripe unit: binary logarithm of its bytes, in [`UNIT_SHIFTS`].
    pub unit_shift: u8,
    /// Whether one unit of each stripe is parity.
    pub has_parity: bool,
}

impl StripeShape {
    /// Returns what a stripe has of data.
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

    /// Returns the shape with a member more.
    #[must_use]
    pub fn wider(self) -> StripeShape {
        StripeShape { members: self.members.saturating_add(1), ..self }
    }

    /// Returns the shape with a member less.
    #[must_use]
    pub fn narrower(self) -> StripeShape {
        StripeShape { members: self.members.saturating_sub(1), ..self }
    }

    /// Returns how many rows a segment of `segment_bytes` has: an even number, for both copies of
    /// its first half have room in them.
    #[must_use]
    pub fn segment_rows(self, segment_bytes: u64) -> u64 {
        2 * segment_bytes.div_ceil(2).div_ceil(self.data_bytes().max(1)).max(1)
    }

    /// Returns the shape with the unit that a disk group should have which comes to segments of
    /// `segment_bytes`: this one, or a shorter one where with this one more than a sixteenth of the
    /// rows would be empty.
    #[must_use]
    pub fn fitted(self, segment_bytes: u64) -> StripeShape {
        let units = (*UNIT_SHIFTS.start()..=self.unit_shift).rev();
        let shapes = units.map(|unit_shift| StripeShape { unit_shift, ..self });
        let lost = |shape: &StripeShape| {
            let room = shape.segment_rows(segment_bytes).saturating_mul(shape.data_bytes());
            let lost = room.saturating_sub(segment_bytes).saturating_mul(100) / room.max(1);
            if lost <= FITTED_LOST_PERCENT { 0 } else { lost }
        };
        // Of several the first, which has the longest units.
        shapes.min_by_key(lost).unwrap_or(self)
    }

    /// Returns how many bytes of whole segments lie in `rows`, and of those that are whole rows of
    /// a segment that is not.
    #[must_use]
    pub fn bytes_of_rows(self, rows: u64, segment_bytes: u64) -> u64 {
        let of_segment = self.segment_rows(segment_bytes);
        let rest = (rows % of_segment).saturating_mul(self.data_bytes());
        let rest = if rest < segment_bytes { rest } else { 0 };
        (rows / of_segment).saturating_mul(segment_bytes).saturating_add(rest)
    }

    /// Returns the rows that the first `bytes` of the groups lie in.
    #[must_use]
    pub fn rows_of_bytes(self, bytes: u64, segment_bytes: u64) -> u64 {
        let (whole, rest) = (bytes / segment_bytes.max(1), bytes % segment_bytes.max(1));
        let rest = rest / self.data_bytes().max(1);
        whole.saturating_mul(self.segment_rows(segment_bytes)).saturating_add(rest)
    }
}

/// Members of a disk group that something does not lie on, counted among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without(u64);

impl Without {
    /// How many members can be told apart.
    pub const COUNTED_MAX: usize = 64;
    /// It lies on all.
    pub const NONE: Without = Without(0);

    /// Returns the same without `member` too.
    #[must_use]
    pub fn and(self, member: usize) -> Without {
        debug_assert!(member < Without::COUNTED_MAX, "{member}");
        let bit = u32::try_from(member).ok().and_then(|member| 1_u64.checked_shl(member));
        Without(self.0 | bit.unwrap_or(0))
    }

    /// Whether it does not lie on `member`.
    #[must_use]
    pub fn has(self, member: usize) -> bool {
        member < Without::COUNTED_MAX && self.0 >> member & 1 == 1
    }

    /// Returns how many of these are in front of `member`.
    fn before(self, member: usize) -> usize {
        (0..member.min(Without::COUNTED_MAX)).filter(|other| self.has(*other)).count()
    }

    /// Returns which member that one is which is number `number` of those that it lies on.
    #[must_use]
    pub fn nth(self, number: usize) -> usize {
        if self == Without::NONE {
            return number;
        }
        let mut others = (0..).filter(|member| !self.has(*member));
        others.nth(number).unwrap_or(number)
    }

    /// Returns them.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Without::COUNTED_MAX).filter(move |member| self.has(*member))
    }
}

/// The arithmetic of one disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// How wide.
    pub shape: StripeShape,
    /// First byte of the groups, of the pool and of each member.
    pub groups_offset: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Which members of the disk group these do not lie on.
    pub without: Without,
}

/// Where a byte of the groups lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitPlace {
    /// Row, counted from the first group.
    pub row: u64,
    /// Which unit of the row's data.
    pub index: u64,
    /// Slot of the member.
    pub member: usize,
    /// Byte of the member.
    pub member_offset: u64,
    /// Bytes from there to the end of the unit.
    pub rest_bytes: u64,
}

/// What lies at a byte of a member, behind its fixed regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberByte {
    /// Data, or the first copy of a page: this byte of the pool.
    Data(u64),
    /// Parity of this row; nothing in a metadata segment, unless it is a second copy.
    Parity(u64),
}

impl Stripes {
    fn members(&self) -> u64 {
        u64::from(self.shape.members)
    }

    /// Returns which member of the disk group that one is which is number `number` of those that
    /// these lie on.
    fn member(&self, number: u64) -> usize {
        self.without.nth(slot(number))
    }

    /// Returns the opposite; `None`: these do not lie on `member`.
    fn number_of(&self, member: usize) -> Option<usize> {
        if self.without.has(member) {
            return None;
        }
        let number = member - self.without.before(member);
        (number < usize::from(self.shape.members)).then_some(number)
    }

    /// Whether these lie on `member` of the disk group.
    #[must_use]
    pub fn has_member(&self, member: usize) -> bool {
        self.number_of(member).is_some()
    }

    /// Returns the slot whose member has the parity of `row`; `None`: there is none.
    #[must_use]
    pub fn parity_member(&self, row: u64) -> Option<usize> {
        let turn = if planted::is(Planted::RotationWrong) { 0 } else { row % self.members() };
        self.shape.has_parity.then(|| self.member(self.members() - 1 - turn))
    }

    /// Returns the slot whose member has data unit `index` of `row`.
    #[must_use]
    pub fn data_member(&self, row: u64, index: u64) -> usize {
        let turn = if self.shape.has_parity { row % self.members() } else { 0 };
        self.member((self.members() - turn + index) % self.members())
    }

    /// Returns the byte of each member at which its unit of `row` begins.
    #[must_use]
    pub fn row_offset(&self, row: u64) -> u64 {
        self.groups_offset + (row << self.shape.unit_shift)
    }

    /// Returns how many rows a segment has.
    #[must_use]
    pub fn segment_rows(&self) -> u64 {
        self.shape.segment_rows(self.segment_bytes)
    }

    /// Returns the row of byte `offset` of the pool, which lies in the groups, and what is in front
    /// of it there; of the end of a segment the first row of the next.
    fn row_at(&self, offset: u64) -> Option<(u64, u64)> {
        let behind = offset.checked_sub(self.groups_offset)?;
        let (segment, in_segment) =
            (behind / self.segment_bytes.max(1), behind % self.segment_bytes.max(1));
        let row = in_segment / self.shape.data_bytes();
        Some((segment * self.segment_rows() + row, in_segment % self.shape.data_bytes()))
    }

    /// Returns the rows that a range of the pool, of whole ones in the groups, has.
    #[must_use]
    pub fn rows_of(&self, range: &Range<u64>) -> Range<u64> {
        let row = |offset: u64| self.row_at(offset).map_or(0, |(row, _)| row);
        row(range.start)..row(range.end)
    }

    /// Whether a row begins or ends at byte `offset` of the pool.
    #[must_use]
    pub fn is_row_bound(&self, offset: u64) -> bool {
        self.row_at(offset).is_some_and(|(_, in_row)| in_row == 0)
    }

    /// Returns where byte `offset` of the pool lies; `None`: in front of the groups.
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

    /// Returns the first byte of the pool that lies in `row`, or behind it if none does.
    #[must_use]
    pub fn row_start(&self, row: u64) -> u64 {
        let (segment, in_segment) = (row / self.segment_rows(), row % self.segment_rows());
        let ahead = (in_segment * self.shape.data_bytes()).min(self.segment_bytes);
        self.groups_offset + segment * self.segment_bytes + ahead
    }

    /// Returns how many bytes of the pool lie in `row`.
    #[must_use]
    pub fn row_bytes(&self, row: u64) -> u64 {
        self.row_start(row + 1) - self.row_start(row)
    }

    /// Returns where the second copy of what `first` is the place of lies, were it a page: a slot
    /// and a byte of its member; `None`: it lies where no page can be.
    #[must_use]
    pub fn second_copy(&self, first: &UnitPlace) -> Option<(usize, u64)> {
        let half = self.segment_rows() / 2;
        if first.row % self.segment_rows() >= half {
            return None;
        }
        let step = 1 + first.row % (self.members() - 1);
        let step = if planted::is(Planted::CopiesOnOneMember) { 0 } else { step };
        let number = u64::try_from(self.number_of(first.member)?).ok()? + step;
        let member = self.member(number % self.members());
        Some((member, first.member_offset + (half << self.shape.unit_shift)))
    }

    /// Returns what byte `offset` of member `member` holds; `None`: it lies in the fixed regions,
    /// or behind the end of its segment, or these do not lie on the member.
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

    /// Of each shape segments of whole rows, and others.
    fn all() -> impl Iterator<Item = Stripes> {
        let shapes = (2..=32).flat_map(|members| [(members, false), (members, members > 2)]);
        shapes.flat_map(|(members, has_parity)| {
            let of_rows = [(12, 4), (14, 2), (14, 8), (16, 6)].map(|(unit_shift, rows)| {
                let shape = StripeShape { members, unit_shift, has_parity };
                {
                    let segment_bytes = rows * shape.data_bytes();
                    Stripes { shape, groups_offset: 3 << 16, segment_bytes, without: Without::NONE }
                }
            });
            let of_bytes = [(12, 128 << 10), (14, 1 << 20), (14, 40 << 12), (16, 960 << 10)];
            let of_bytes = of_bytes.map(|(unit_shift, segment_bytes)| {
                let shape = StripeShape { members, unit_shift, has_parity };
                Stripes { shape, groups_offset: 3 << 16, segment_bytes, without: Without::NONE }
            });
            of_rows.into_iter().chain(of_bytes)
        })
    }

    /// Goal: a disk group of any width that comes to a pool has room for nearly all that its
    /// members have, with units as long as that allows.
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

    /// SP1, SP2, over two turns of the rotation and two segments at least.
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

    /// SP3.
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
                        // Within its own segment.
                        let row = (place.1 - stripes.groups_offset) / stripes.shape.unit_bytes();
                        assert_eq!(row / stripes.segment_rows(), segment, "{stripes:?}");
                    }
                }
            }
            let of_members: BTreeSet<usize> = partners.iter().map(|(first, _)| *first).collect();
            // Half of a short segment may have fewer units than a row.
            let is_even = stripes.segment_bytes / 2 >= stripes.shape.data_bytes();
            assert!(!is_even || of_members.len() == usize::from(stripes.shape.members));
        }
    }
}
