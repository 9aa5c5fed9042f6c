//! What pools that are tortured are made of: a table, one line for each shape.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use format::disk_group::DiskGroupRoles;
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
    /// What may lie there; the first has the journal unless another has.
    pub roles: DiskGroupRoles,
}

const SINGLE: GroupShape =
    GroupShape { layout: Layout::Single, width: 1, roles: DiskGroupRoles::DATA };

const fn mirror(width: u64) -> GroupShape {
    GroupShape { layout: Layout::Mirror, width, roles: DiskGroupRoles::DATA }
}

const fn raid5(width: u64) -> GroupShape {
    GroupShape {
        layout: Layout::Raid5 { unit_shift: UNIT_SHIFT },
        width,
        roles: DiskGroupRoles::DATA,
    }
}

const fn stripe(width: u64) -> GroupShape {
    GroupShape {
        layout: Layout::Stripe { unit_shift: UNIT_SHIFT },
        width,
        roles: DiskGroupRoles::DATA,
    }
}

const fn round_robin(width: u64) -> GroupShape {
    GroupShape { layout: Layout::RoundRobin, width, roles: DiskGroupRoles::DATA }
}

impl GroupShape {
    /// Returns the same without the role `data`.
    const fn for_metadata(self) -> GroupShape {
        GroupShape { roles: DiskGroupRoles::NONE, ..self }
    }

    /// Returns the same that takes the metadata over when it comes.
    const fn for_all(self) -> GroupShape {
        GroupShape { roles: DiskGroupRoles { data: true, metadata: true, journal: true }, ..self }
    }

    /// Returns the same that takes the metadata over, and has no data.
    const fn for_metadata_from_now(self) -> GroupShape {
        GroupShape { roles: DiskGroupRoles { data: false, metadata: true, journal: true }, ..self }
    }

    /// Returns the same for the journal alone.
    const fn for_journal(self) -> GroupShape {
        GroupShape { roles: DiskGroupRoles::JOURNAL, ..self }
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

/// What happens besides to the members of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Also {
    /// Members that may be weak, of disk groups that have one that may be lost for each.
    pub weak: u64,
    /// Spares wait, and take the place of members.
    pub spares: bool,
    /// Devices become longer, and disk groups with them.
    pub lengthens: bool,
    /// What it has is scrubbed, and bits rot.
    pub scrubs: bool,
    /// The weak member does not answer, or late.
    pub stalls: bool,
    /// A raid5 gets members and loses them.
    pub reshapes: bool,
    /// A round-robin does.
    pub lanes: bool,
    /// All devices of the journal fail, where it has its own.
    pub loses_journal: bool,
}

const ALONE: Also = Also {
    weak: 1,
    spares: false,
    lengthens: false,
    scrubs: false,
    stalls: false,
    reshapes: false,
    lanes: false,
    loses_journal: false,
};
const SPARES: Also = Also { spares: true, ..ALONE };
const LENGTHENS: Also = Also { lengthens: true, ..ALONE };
const SCRUBS: Also = Also { scrubs: true, ..ALONE };
const STALLS: Also = Also { stalls: true, ..ALONE };
const RESHAPES: Also = Also { reshapes: true, ..ALONE };
const LANES: Also = Also { lanes: true, ..ALONE };
const LOSES_JOURNAL: Also = Also { loses_journal: true, ..ALONE };
const TWO_WEAK: Also = Also { weak: 2, ..ALONE };

/// A line of the table.
#[derive(Debug)]
struct Shape {
    name: &'static str,
    /// The disk groups that it is made of: the first has the metadata.
    groups: &'static [GroupShape],
    /// Those that may come while it is in use. Where there are any, they and those that it was made
    /// of leave as well.
    comes: &'static [GroupShape],
    also: Also,
}

impl Shape {
    const fn new(name: &'static str, groups: &'static [GroupShape]) -> Shape {
        Shape { name, groups, comes: &[], also: ALONE }
    }

    /// Returns the same with disk groups that come.
    const fn with(self, comes: &'static [GroupShape]) -> Shape {
        Shape { comes, ..self }
    }

    const fn also(self, also: Also) -> Shape {
        Shape { also, ..self }
    }
}

/// What may come to a pool.
const COMES: &[GroupShape] = &[SINGLE, mirror(2), raid5(3), stripe(2)];

/// The same where files take devices in turn.
const COMES_IN_TURN: &[GroupShape] = &[SINGLE, mirror(2), round_robin(2)];

/// The same where the journal goes to devices of its own and back.
const COMES_JOURNAL: &[GroupShape] = &[SINGLE.for_journal(), mirror(2).for_journal(), SINGLE];

/// The same where the metadata goes to what comes.
const COMES_MAIN: &[GroupShape] =
    &[SINGLE.for_all(), mirror(2).for_all(), raid5(3).for_all(), SINGLE];

/// The same where the metadata is apart from data, or beside it, by turns.
const COMES_MAIN_APART: &[GroupShape] = &[
    mirror(2).for_metadata_from_now(),
    SINGLE.for_metadata_from_now(),
    mirror(2).for_all(),
    raid5(3).for_all(),
    SINGLE,
];

/// The widest of each layout that there is room for.
const COMES_WIDE: &[GroupShape] = &[mirror(3), raid5(5), round_robin(3)];

const SHAPES: &[Shape] = &[
    Shape::new("single", &[SINGLE]),
    Shape::new("mirror2", &[mirror(2)]),
    Shape::new("mirror3", &[mirror(3)]),
    Shape::new("raid5-3", &[raid5(3)]),
    Shape::new("raid5-4", &[raid5(4)]),
    Shape::new("raid5-5", &[raid5(5)]),
    Shape::new("single-grows", &[SINGLE]).with(COMES),
    Shape::new("mirror2-grows", &[mirror(2)]).with(COMES),
    Shape::new("raid5-3-grows", &[raid5(3)]).with(COMES),
    Shape::new("single+mirror2", &[SINGLE, mirror(2)]).with(COMES),
    Shape::new("raid5-3+mirror2", &[raid5(3), mirror(2)]).with(COMES),
    Shape::new("meta-mirror2+raid5-3", &[mirror(2).for_metadata(), raid5(3)]).with(COMES),
    Shape::new("meta-mirror2+single+single", &[mirror(2).for_metadata(), SINGLE, SINGLE])
        .with(COMES),
    Shape::new("stripe-3", &[stripe(3)]),
    Shape::new("meta-mirror2+stripe-2", &[mirror(2).for_metadata(), stripe(2)]).with(COMES),
    Shape::new("meta-single+mirror2", &[SINGLE.for_metadata(), mirror(2)]).with(COMES),
    Shape::new("meta-mirror2+round-robin-2", &[mirror(2).for_metadata(), round_robin(2)])
        .with(COMES_IN_TURN),
    Shape::new("raid5-3+round-robin-2", &[raid5(3), round_robin(2)]).with(COMES),
    Shape::new("raid5-4-grows-wide", &[raid5(4)]).with(COMES_WIDE),
    Shape::new("mirror2-spares", &[mirror(2)]).also(SPARES),
    Shape::new("raid5-4-spares", &[raid5(4)]).also(SPARES),
    Shape::new("mirror2-lengthens", &[mirror(2)]).also(LENGTHENS),
    Shape::new("raid5-3-lengthens", &[raid5(3)]).also(LENGTHENS),
    Shape::new("mirror2-scrubs", &[mirror(2)]).also(SCRUBS),
    Shape::new("raid5-4-scrubs", &[raid5(4)]).also(SCRUBS),
    Shape::new("mirror2-stalls", &[mirror(2)]).also(STALLS),
    Shape::new("raid5-4-stalls", &[raid5(4)]).also(STALLS),
    Shape::new("raid5-4-reshapes", &[raid5(4)]).also(RESHAPES),
    Shape::new("stripe-3-reshapes", &[stripe(3)]).also(RESHAPES),
    Shape::new("mirror3-two-weak", &[mirror(3)]).also(TWO_WEAK),
    Shape::new("mirror2+raid5-3-two-weak", &[mirror(2), raid5(3)]).also(TWO_WEAK),
    Shape::new("round-robin-3-changes", &[mirror(2).for_metadata(), round_robin(3)]).also(LANES),
    Shape::new("single+journal-mirror2", &[SINGLE, mirror(2).for_journal()]).with(COMES),
    Shape::new("mirror2+journal-single", &[mirror(2), SINGLE.for_journal()]),
    Shape::new("mirror2-journal-moves", &[mirror(2)]).with(COMES_JOURNAL),
    Shape::new("raid5-3-journal-moves", &[raid5(3)]).with(COMES_JOURNAL),
    Shape::new(
        "meta-mirror2+journal-mirror2+raid5-3",
        &[mirror(2).for_metadata(), mirror(2).for_journal(), raid5(3)],
    )
    .with(COMES),
    Shape::new("mirror2+journal-single-lost", &[mirror(2), SINGLE.for_journal()])
        .with(COMES_JOURNAL)
        .also(LOSES_JOURNAL),
    Shape::new("raid5-3+journal-mirror2-lost", &[raid5(3), mirror(2).for_journal()])
        .with(COMES_JOURNAL)
        .also(LOSES_JOURNAL),
    Shape::new("mirror2-metadata-moves", &[mirror(2)]).with(COMES_MAIN),
    Shape::new("raid5-3-metadata-moves", &[raid5(3)]).with(COMES_MAIN),
    Shape::new("meta-mirror2+raid5-3-metadata-moves", &[mirror(2).for_metadata(), raid5(3)])
        .with(COMES_MAIN_APART),
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

    /// Whether what comes takes the metadata over, and then the disk group leaves that had it, even
    /// if it is the first, and has the weak member.
    #[must_use]
    pub fn moves_metadata(self) -> bool {
        self.comes().iter().any(|group| group.roles.metadata)
    }

    /// Returns what happens besides to its members.
    #[must_use]
    pub fn also(self) -> Also {
        self.shape().also
    }

    /// Whether anything does.
    #[must_use]
    pub fn has_more(self) -> bool {
        self.also() != ALONE
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
