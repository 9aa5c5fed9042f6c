//! Numbers that must not mix: places, log positions, epochs, anodes, filesets.

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
    /// The pool's transaction counter. 48 bits. Never repeats; also the source of generations.
    Epoch,
    "epoch:"
);
number!(
    /// Index of an anode in its fileset's anode table. 40 bits; 0 is none.
    AnodeNo,
    "anode:"
);
number!(
    /// Identity of a fileset. 64 bits, never reused; 0 is the pool itself.
    FilesetId,
    "fileset:"
);
number!(
    /// Age of an anode number: differs each time the number is used again.
    Generation,
    "generation:"
);

/// Largest epoch that fits a block pointer.
pub const EPOCH_MAX: u64 = (1 << 48) - 1;
/// Largest position in the log that a head or a superblock may state: what is added to it on the
/// way stays below 2^64. At 10 GB/s it is 14 years away.
pub const LSN_MAX: u64 = (1 << 62) - 1;
/// Largest sequence of a head, of a group of the double-write area, or of a superblock.
pub const SEQUENCE_MAX: u64 = (1 << 62) - 1;
/// Largest anode number.
pub const ANODE_NO_MAX: u64 = (1 << 40) - 1;
/// No pool has more fragments: 2 PiB in fragments of 1 KiB.
pub const FRAGMENTS_MAX: u64 = 1 << 41;
/// Anodes a fileset can have.
pub const ANODES_MAX: u64 = 1 << 40;
/// Fileset slots a pool can have.
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

/// Where something is: disk group (8 bits), allocation group (24 bits), offset in fragments from
/// the start of the allocation group (32 bits).
///
/// 32 bits of 4 KiB fragments are 16 TiB, far above the largest group; 24 bits of 1 GiB groups are
/// 16 PiB a disk group.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// The place that stands for none. It is the descriptor of the first group, to which no
    /// pointer ever points.
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

    /// Returns the place that `bits` on disk stand for.
    #[must_use]
    pub fn from_bits(bits: u64) -> Place {
        Place(bits)
    }

    /// Returns the bits that stand for this place on disk.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the number of the disk group.
    #[must_use]
    pub fn disk_group(self) -> u8 {
        u8::try_from(self.0 >> 56).expect("8 bits")
    }

    /// Returns the number of the allocation group in its disk group.
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
    /// If that is past the end of any possible group.
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
