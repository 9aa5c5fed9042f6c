//! What pools that are tortured are made of: a table, one line for each shape.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use format::members::Layout;
use runtime::prng::Prng;

use crate::number::{u64_of, usize_of};

/// Stripe unit of pools in stripes: small, so that few bytes are many rows.
const UNIT_SHIFT: u8 = 13;

/// A disk group that pools are made of, or that comes while they are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    /// How it lies on its members.
    pub layout: Layout,
    /// How many it has.
    pub width: u64,
    /// Whether data may lie there.
    pub has_data: bool,
}

const SINGLE: GroupShape = GroupShape { layout: Layout::Single, width: 1, has_data: true };

const fn mirror(width: u64) -> GroupShape {
    GroupShape { layout: Layout::Mirror, width, has_data: true }
}

const fn raid5(width: u64) -> GroupShape {
    GroupShape { layout: Layout::Raid5 { unit_shift: UNIT_SHIFT }, width, has_data: true }
}

const fn stripe(width: u64) -> GroupShape {
    GroupShape { layout: Layout::Stripe { unit_shift: UNIT_SHIFT }, width, has_data: true }
}

const fn round_robin(width: u64) -> GroupShape {
    GroupShape { layout: Layout::RoundRobin, width, has_data: true }
}

impl GroupShape {
    /// Returns the same without the role `data`.
    const fn for_metadata(self) -> GroupShape {
        GroupShape { has_data: false, ..self }
    }

    /// Whether it can do without one of its members.
    #[must_use]
    pub fn is_redundant(self) -> bool {
        match self.layout {
            Layout::Single | Layout::RoundRobin | Layout::Stripe { .. } => false,
            Layout::Mirror | Layout::Raid5 { .. } => true,
        }
    }
}

/// A line of the table.
#[derive(Debug)]
struct Shape {
    name: &'static str,
    /// The disk groups that it is made of: the first has the metadata.
    groups: &'static [GroupShape],
    /// Those that may come while it is in use. Where there are any, they and those that it was made
    /// of leave as well.
    comes: &'static [GroupShape],
}

/// What may come to a pool.
const COMES: &[GroupShape] = &[SINGLE, mirror(2), raid5(3), stripe(2)];

/// The same where files take devices in turn.
const COMES_IN_TURN: &[GroupShape] = &[SINGLE, mirror(2), round_robin(2)];

const SHAPES: &[Shape] = &[
    Shape { name: "single", groups: &[SINGLE], comes: &[] },
    Shape { name: "mirror2", groups: &[mirror(2)], comes: &[] },
    Shape { name: "mirror3", groups: &[mirror(3)], comes: &[] },
    Shape { name: "raid5-3", groups: &[raid5(3)], comes: &[] },
    Shape { name: "raid5-4", groups: &[raid5(4)], comes: &[] },
    Shape { name: "raid5-5", groups: &[raid5(5)], comes: &[] },
    Shape { name: "single-grows", groups: &[SINGLE], comes: COMES },
    Shape { name: "mirror2-grows", groups: &[mirror(2)], comes: COMES },
    Shape { name: "raid5-3-grows", groups: &[raid5(3)], comes: COMES },
    Shape { name: "single+mirror2", groups: &[SINGLE, mirror(2)], comes: COMES },
    Shape { name: "raid5-3+mirror2", groups: &[raid5(3), mirror(2)], comes: COMES },
    Shape {
        name: "meta-mirror2+raid5-3",
        groups: &[mirror(2).for_metadata(), raid5(3)],
        comes: COMES,
    },
    Shape {
        name: "meta-mirror2+single+single",
        groups: &[mirror(2).for_metadata(), SINGLE, SINGLE],
        comes: COMES,
    },
    Shape { name: "stripe-3", groups: &[stripe(3)], comes: &[] },
    Shape {
        name: "meta-mirror2+stripe-2",
        groups: &[mirror(2).for_metadata(), stripe(2)],
        comes: COMES,
    },
    Shape {
        name: "meta-single+mirror2",
        groups: &[SINGLE.for_metadata(), mirror(2)],
        comes: COMES,
    },
    Shape {
        name: "meta-mirror2+round-robin-2",
        groups: &[mirror(2).for_metadata(), round_robin(2)],
        comes: COMES_IN_TURN,
    },
];

/// How a pool lies on devices: a line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolKind(usize);

impl PoolKind {
    /// One device.
    pub const SINGLE: PoolKind = PoolKind(0);

    /// Returns every kind.
    pub fn all() -> impl Iterator<Item = PoolKind> {
        (0..SHAPES.len()).map(PoolKind)
    }

    fn shape(self) -> &'static Shape {
        &SHAPES[self.0]
    }

    /// Returns the disk groups that it is made of: the first has the metadata.
    #[must_use]
    pub fn groups(self) -> &'static [GroupShape] {
        self.shape().groups
    }

    /// Returns those that may come while it is in use; none: nor does any leave.
    #[must_use]
    pub fn comes(self) -> &'static [GroupShape] {
        self.shape().comes
    }

    /// Whether its disk groups come and go, or it has several.
    #[must_use]
    pub fn has_groups(self) -> bool {
        self.groups().len() > 1 || !self.comes().is_empty()
    }

    /// Returns how many members it is made with.
    #[must_use]
    pub fn members(self) -> u64 {
        self.groups().iter().map(|group| group.width).sum()
    }

    /// Returns the slots that each disk group is made with.
    pub fn slots(self) -> impl Iterator<Item = (GroupShape, Range<u64>)> {
        let mut end = 0;
        self.groups().iter().map(move |group| {
            end += group.width;
            (*group, end - group.width..end)
        })
    }

    /// Whether a segment of it is whole stripes.
    #[must_use]
    pub fn is_striped(self) -> bool {
        self.groups().iter().any(|group| match group.layout {
            Layout::Single | Layout::Mirror | Layout::RoundRobin => false,
            Layout::Raid5 { .. } | Layout::Stripe { .. } => true,
        })
    }
}

/// Which kinds of pools are tortured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pools {
    /// All of one kind.
    Of(PoolKind),
    /// Each seed chooses.
    Any,
}

impl Pools {
    /// Returns the kind of the pool of a seed.
    #[must_use]
    pub fn kind(self, pool_seed: u64) -> PoolKind {
        match self {
            Pools::Of(kind) => kind,
            Pools::Any => {
                let random = &mut Prng::from_seed(pool_seed ^ 0x6d65_6d62);
                PoolKind(usize_of(random.below(u64_of(SHAPES.len()))))
            }
        }
    }
}

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pools::Of(kind) => kind.fmt(f),
            Pools::Any => f.write_str("any"),
        }
    }
}

impl FromStr for Pools {
    type Err = String;

    fn from_str(text: &str) -> Result<Pools, String> {
        if text == "any" { Ok(Pools::Any) } else { text.parse().map(Pools::Of) }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shape().name)
    }
}

impl FromStr for PoolKind {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolKind, String> {
        let found = PoolKind::all().find(|kind| kind.shape().name == text);
        found.ok_or_else(|| {
            let all: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
            format!("{text} is no kind of pool: any, {}", all.join(", "))
        })
    }
}
