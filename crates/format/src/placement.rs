//! Placement: the preferred disk group for a file's data.
//!
//! One byte of the anode. A full disk group is passed over. QFS has a similar attribute (`setfa`).
//!
//! # Invariants
//!
//! - PL1: A value is 0 (any), the number of a disk group below [`DISK_GROUPS_MAX`] plus one, or one
//!   of the kinds. The disk group may have been removed.

use crate::superblock::DISK_GROUPS_MAX;

/// Above all numbers of disk groups.
const KIND: u8 = 0x80;
const ROUND_ROBIN: u8 = KIND | 1;
const STRIPED: u8 = KIND | 2;

/// Preferred disk group for a file's new data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// Any disk group.
    #[default]
    Any,
    /// The disk group with this number.
    Group(u8),
    /// Any disk group that stores a file on one device.
    RoundRobin,
    /// Any disk group that stripes a file over all devices, with or without parity.
    Striped,
}

impl Placement {
    /// Returns the code on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Placement::Any => 0,
            Placement::Group(number) => number.saturating_add(1),
            Placement::RoundRobin => ROUND_ROBIN,
            Placement::Striped => STRIPED,
        }
    }

    /// Returns the placement for a code on disk (PL1).
    #[must_use]
    pub fn from_code(code: u8) -> Option<Placement> {
        match code {
            0 => Some(Placement::Any),
            ROUND_ROBIN => Some(Placement::RoundRobin),
            STRIPED => Some(Placement::Striped),
            _ if usize::from(code) <= DISK_GROUPS_MAX => Some(Placement::Group(code - 1)),
            _ => None,
        }
    }

    /// Parses `any`, `round-robin`, `striped`, or the number of a disk group.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Placement> {
        match text {
            "any" => Some(Placement::Any),
            "round-robin" => Some(Placement::RoundRobin),
            "striped" => Some(Placement::Striped),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                let number = text.parse().ok()?;
                (usize::from(number) < DISK_GROUPS_MAX).then_some(Placement::Group(number))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Placement::Any => f.write_str("any"),
            Placement::Group(number) => write!(f, "{number}"),
            Placement::RoundRobin => f.write_str("round-robin"),
            Placement::Striped => f.write_str("striped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_one_byte_and_one_text() {
        let mut known = 0;
        for code in 0..=u8::MAX {
            let Some(placement) = Placement::from_code(code) else { continue };
            known += 1;
            assert_eq!(placement.code(), code, "{placement}");
            assert_eq!(Placement::from_text(&placement.to_string()), Some(placement));
        }
        assert_eq!(known, DISK_GROUPS_MAX + 3);
    }

    #[test]
    fn what_is_no_placement_is_none() {
        for text in ["", "8", "-1", "+1", "256", "Any", "stripe ", "1 ", "raid5"] {
            assert_eq!(Placement::from_text(text), None, "{text:?}");
        }
    }
}
