//! Layouts of disk groups: how many members, and how data lies on them.

use std::ops::RangeInclusive;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::slots::Slots;
use crate::stripes::{RAID5_WIDTH_MIN, STRIPE_WIDTH_MIN, StripeShape, UNIT_SHIFTS};
use crate::superblock_error::SuperblockError;

/// Most slots of a layout.
pub const LAYOUT_SLOTS_MAX: usize = 32;
/// Most members of a mirror.
pub const MIRROR_WIDTH_MAX: usize = 3;
/// Most members of a round-robin: each has its own open segments.
pub const ROUND_ROBIN_WIDTH_MAX: usize = 16;

const KIND_SINGLE: u8 = 1;
const KIND_MIRROR: u8 = 2;
const KIND_STRIPE: u8 = 3;
const KIND_ROUND_ROBIN: u8 = 4;
const KIND_RAID5: u8 = 5;
/// A round-robin with explicit ranges.
pub(crate) const KIND_ROUND_ROBIN_APART: u8 = 6;
/// Stripe unit in unstriped layouts: binary logarithm.
const UNIT_SHIFT: u8 = 16;

/// Layout of a disk group. Format: `docs/FORMAT.md#layout`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LayoutDisk {
    /// 1: single; 2: mirror; 3: stripe; 4: round-robin; 5: raid5; 6: round-robin with explicit
    /// ranges. 0: none.
    pub kind: u8,
    /// Slots in use.
    pub width: u8,
    /// Binary logarithm of the stripe unit.
    pub unit_shift: u8,
    /// Zero.
    pub reserved: u8,
    /// Slots of members. In kind 6, bytes from the 17th hold the range of each.
    pub slots: [u8; LAYOUT_SLOTS_MAX],
}

/// Layout of a disk group on its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One member.
    Single,
    /// Two or three copies.
    Mirror,
    /// Each file on one member, in turn. Each member has its own allocation groups. Only for data.
    RoundRobin,
    /// Data in stripes over all members, metadata in two copies: see `stripes.rs`.
    Stripe {
        /// Binary logarithm of the stripe unit, in [`UNIT_SHIFTS`].
        unit_shift: u8,
    },
    /// Data in stripes with parity, metadata in two copies: see `stripes.rs`.
    Raid5 {
        /// Binary logarithm of the stripe unit, in [`UNIT_SHIFTS`].
        unit_shift: u8,
    },
}

impl Layout {
    /// Returns the word in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Layout::Single => "single",
            Layout::Mirror => "mirror",
            Layout::RoundRobin => "round-robin",
            Layout::Stripe { .. } => "stripe",
            Layout::Raid5 { .. } => "raid5",
        }
    }

    /// Returns the stripes over `members` members, if any.
    #[must_use]
    pub fn stripe(self, members: usize) -> Option<StripeShape> {
        let (unit_shift, has_parity) = match self {
            Layout::Single | Layout::Mirror | Layout::RoundRobin => return None,
            Layout::Stripe { unit_shift } => (unit_shift, false),
            Layout::Raid5 { unit_shift } => (unit_shift, true),
        };
        let members = u8::try_from(members).expect("a layout names few slots");
        Some(StripeShape { members, unit_shift, has_parity })
    }

    /// Whether segments span all members, so that a reshape can change their number
    /// ([`crate::reshape`]).
    #[must_use]
    pub fn spreads(self) -> bool {
        match self {
            Layout::Single | Layout::Mirror | Layout::RoundRobin => false,
            Layout::Stripe { .. } | Layout::Raid5 { .. } => true,
        }
    }

    pub(crate) fn to_disk(self, slots: &Slots) -> LayoutDisk {
        let (kind, unit_shift) = match self {
            Layout::Single => (KIND_SINGLE, UNIT_SHIFT),
            Layout::Mirror => (KIND_MIRROR, UNIT_SHIFT),
            Layout::RoundRobin => (KIND_ROUND_ROBIN, UNIT_SHIFT),
            Layout::Stripe { unit_shift } => (KIND_STRIPE, unit_shift),
            Layout::Raid5 { unit_shift } => (KIND_RAID5, unit_shift),
        };
        let width = u8::try_from(slots.len()).expect("a layout names few slots");
        let mut named = [0; LAYOUT_SLOTS_MAX];
        for (slot, number) in named.iter_mut().zip(slots.iter()) {
            *slot = u8::try_from(number).expect("a pool has few slots");
        }
        LayoutDisk { kind, width, unit_shift, reserved: 0, slots: named }
    }

    /// Returns the number of ranges of allocation groups.
    #[must_use]
    pub fn lanes(self, members: usize) -> u8 {
        match self {
            Layout::RoundRobin => u8::try_from(members).expect("a layout names few slots"),
            Layout::Single | Layout::Mirror | Layout::Stripe { .. } | Layout::Raid5 { .. } => 1,
        }
    }

    /// Returns the permitted numbers of members.
    #[must_use]
    pub fn widths(self) -> RangeInclusive<usize> {
        match self {
            Layout::Single => 1..=1,
            Layout::Mirror => 2..=MIRROR_WIDTH_MAX,
            Layout::RoundRobin => 2..=ROUND_ROBIN_WIDTH_MAX,
            Layout::Stripe { .. } => STRIPE_WIDTH_MIN..=LAYOUT_SLOTS_MAX,
            Layout::Raid5 { .. } => RAID5_WIDTH_MIN..=LAYOUT_SLOTS_MAX,
        }
    }
}

/// Decodes layout and slots. Members in two disk groups are refused later (DG2).
pub(crate) fn layout_of(disk: &LayoutDisk) -> Result<(Layout, Slots), SuperblockError> {
    let not = |what| Err(SuperblockError::NotImplemented { what });
    let layout = match disk.kind {
        KIND_SINGLE => Layout::Single,
        KIND_MIRROR => Layout::Mirror,
        KIND_STRIPE if UNIT_SHIFTS.contains(&disk.unit_shift) => {
            Layout::Stripe { unit_shift: disk.unit_shift }
        }
        KIND_ROUND_ROBIN | KIND_ROUND_ROBIN_APART => Layout::RoundRobin,
        KIND_RAID5 if UNIT_SHIFTS.contains(&disk.unit_shift) => {
            Layout::Raid5 { unit_shift: disk.unit_shift }
        }
        _ => return Err(SuperblockError::BadField { field: "layout" }),
    };
    let width = usize::from(disk.width);
    if !layout.widths().contains(&width) {
        return not("another number of devices than its layout has");
    }
    let named = disk.slots.iter().take(width);
    Ok((layout, named.map(|slot| usize::from(*slot)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(range: std::ops::Range<usize>) -> Slots {
        range.into()
    }

    #[test]
    fn layouts_that_are_not_done_are_refused() {
        assert!(
            layout_of(&LayoutDisk { kind: 7, ..Layout::Mirror.to_disk(&slots(0..2)) }).is_err()
        );
        for (members, is_known) in [(1, false), (2, true), (16, true), (17, false)] {
            let disk = Layout::RoundRobin.to_disk(&slots(0..members));
            assert_eq!(layout_of(&disk).is_ok(), is_known, "{members}");
        }
        for of in [vec![0, 1], vec![4, 5, 6], vec![3, 0, 7]] {
            let of: Slots = of.into_iter().collect();
            let disk = Layout::Mirror.to_disk(&of);
            assert_eq!(layout_of(&disk), Ok((Layout::Mirror, of)));
        }
        assert!(layout_of(&Layout::Single.to_disk(&slots(0..2))).is_err());
        let raid5 = Layout::Raid5 { unit_shift: 14 };
        for (members, is_known) in [(2, false), (3, true), (32, true)] {
            assert_eq!(
                layout_of(&raid5.to_disk(&slots(0..members))).is_ok(),
                is_known,
                "{members}"
            );
        }
        let stripe = Layout::Stripe { unit_shift: 14 };
        for (members, is_known) in [(1, false), (2, true), (32, true)] {
            assert_eq!(
                layout_of(&stripe.to_disk(&slots(0..members))).is_ok(),
                is_known,
                "{members}"
            );
        }
        assert_eq!(layout_of(&stripe.to_disk(&slots(2..5))), Ok((stripe, slots(2..5))));
        assert!(layout_of(&Layout::Raid5 { unit_shift: 17 }.to_disk(&slots(0..3))).is_err());
        assert!(layout_of(&Layout::Stripe { unit_shift: 11 }.to_disk(&slots(0..3))).is_err());
        assert!(layout_of(&Layout::Mirror.to_disk(&slots(0..4))).is_err());
    }
}
