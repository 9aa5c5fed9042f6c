//! Types for numbers that must not mix: places, log positions, epochs, anodes, filesets.

use std::fmt;

macro_rules! number {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// Position in the log: bytes since the pool was made. Never repeats.
    Lsn,
    "lsn:"
);
number!(
    /// Transaction counter of the pool, 48 bits. Never repeats; also the source of generations.
    Epoch,
    "epoch:"
);
number!(
    /// Index in a fileset's anode table, 40 bits; 0 is none.
    AnodeNo,
    "anode:"
);
number!(
    /// Identity of a fileset, 64 bits, never reused; 0 is the pool itself.
    FilesetId,
    "fileset:"
);
number!(
    /// Age of an anode number: differs at each reuse of the number.
    Generation,
    "generation:"
);

/// Largest epoch: fits a block pointer.
pub const EPOCH_MAX: u64 = (1 << 48) - 1;
/// Largest log position in a head or superblock: sums stay below 2^64, for 14 years at 10 GB/s.
pub const LSN_MAX: u64 = (1 << 62) - 1;
/// Largest sequence of a head, of a double-write group, or of a superblock.
pub const SEQUENCE_MAX: u64 = (1 << 62) - 1;
/// Largest anode number.
pub const ANODE_NO_MAX: u64 = (1 << 40) - 1;
/// Most fragments of a pool: 2 PiB in fragments of 1 KiB.
pub const FRAGMENTS_MAX: u64 = 1 << 41;
/// Most anodes of a fileset.
pub const ANODES_MAX: u64 = 1 << 40;
/// Most fileset slots of a pool.
pub const FILESET_SLOTS_MAX: u32 = 1 << 24;

/// Identity of a pool: 128 random bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(pub [u8; 16]);

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A position: disk group (8 bits), allocation group (24 bits), offset in fragments (32 bits).
///
/// That is 16 TiB of 4 KiB fragments, far above the largest group, and 16 PiB of 1 GiB groups.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// No place: the descriptor of group 0, to which no pointer leads.
    pub const NONE: Place = Place(0);

    /// Returns the place of `fragment` in `group` of `disk_group`.
    ///
    /// # Panics
    ///
    /// If `group` takes more than 24 bits.
    #[must_use]
    pub fn new(disk_group: u8, group: u32, fragment: u32) -> Place {
        assert!(group < 1 << 24, "group {group} takes more than 24 bits");
        Place(u64::from(disk_group) << 56 | u64::from(group) << 32 | u64::from(fragment))
    }

    /// Returns the place for `bits` on disk.
    #[must_use]
    pub fn from_bits(bits: u64) -> Place {
        Place(bits)
    }

    /// Returns the bits on disk.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the number of the disk group.
    #[must_use]
    pub fn disk_group(self) -> u8 {
        u8::try_from(self.0 >> 56).expect("8 bits")
    }

    /// Returns the number of the allocation group.
    #[must_use]
    pub fn group(self) -> u32 {
        u32::try_from(self.0 >> 32 & 0xff_ffff).expect("24 bits")
    }

    /// Returns the offset in the allocation group, in fragments.
    #[must_use]
    pub fn fragment(self) -> u32 {
        u32::try_from(self.0 & 0xffff_ffff).expect("32 bits")
    }

    /// Returns the place `count` fragments further in the same group.
    ///
    /// # Panics
    ///
    /// If that exceeds 32 bits.
    #[must_use]
    pub fn advance(self, count: u32) -> Place {
        let fragment = self.fragment().checked_add(count).expect("stays inside a group");
        Place::new(self.disk_group(), self.group(), fragment)
    }

    /// Whether this is [`Place::NONE`].
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Place::NONE
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.disk_group(), self.group(), self.fragment())
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}
