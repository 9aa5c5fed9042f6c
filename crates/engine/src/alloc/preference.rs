//! Which disk groups, and which members of them, a file's data is wanted in.
//!
//! Policy: it orders the disk groups that have room (`disk_groups`), and none is left out. What it
//! goes by is the file's number, and its placement, which users set.
//!
//! Not here: who may set a placement, and who takes it from whom (`vnode`).

use format::geometry::Geometry;
use format::ids::AnodeNo;
use format::placement::Placement;
use format::stripes::StripeShape;
use runtime::planted::{self, Planted};

use super::Allocator;
use super::share::Share;

/// Why no data can be wanted in a disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// Name another.
    #[error("there is no disk group {number}: `holdfast group list` shows them")]
    None {
        /// Which was named.
        number: u8,
    },
    /// Name another, or add one of that kind.
    #[error("no disk group is {placement}: `holdfast group list` shows what there is")]
    NoneOfKind {
        /// What was named.
        placement: Placement,
    },
    /// Name another.
    #[error("disk group {number} is being removed")]
    Leaving {
        /// Which was named.
        number: u8,
    },
    /// Name another.
    #[error("disk group {number} has metadata alone: name one with the role data")]
    NoData {
        /// Which was named.
        number: u8,
    },
}

/// Whose turn it is among the members of a disk group that files take in turn (round-robin).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u8);

impl Turn {
    /// Returns the turn of a file: that of its number, so that files made one after the other take
    /// one member after the other, and all blocks of a file, whenever they are written, the same.
    fn of(anode: AnodeNo, lanes: u8) -> Turn {
        let turn = anode.0 % u64::from(lanes.max(1));
        Turn(u8::try_from(turn).unwrap_or(0))
    }

    /// Whether it is that of part `lane` of `lanes`.
    fn is_of(self, lane: u8, lanes: usize) -> bool {
        usize::from(self.0) % lanes.max(1) == usize::from(lane)
    }
}

/// Where a file's data is wanted. By default it is anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Preference {
    placement: Placement,
    turn: Option<Turn>,
}

/// What a placement can go by, of a disk group or a part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    disk_group: u8,
    lane: Option<u8>,
    is_striped: bool,
}

impl Kind {
    pub(super) fn new(disk_group: u8, lane: Option<u8>, stripe: Option<StripeShape>) -> Kind {
        Kind { disk_group, lane, is_striped: stripe.is_some() }
    }

    fn serves(self, placement: Placement) -> bool {
        match placement {
            Placement::Any => true,
            Placement::Group(number) => self.disk_group == number,
            Placement::RoundRobin => self.lane.is_some(),
            Placement::Striped => self.is_striped,
        }
    }
}

impl Preference {
    /// Whether somebody has set where the data should go.
    pub(crate) fn is_placed(self) -> bool {
        self.placement != Placement::Any
    }

    /// Whether data is wanted in `share` (GR5).
    pub(super) fn serves(self, share: &Share) -> bool {
        share.kind.serves(self.placement)
    }

    /// Whether `share` is a part, of `lanes`, where other files have their turn (GR4).
    pub(super) fn is_anothers_turn(self, share: &Share, lanes: usize) -> bool {
        let wanted = share.kind.lane.zip(self.turn);
        wanted.is_some_and(|(lane, turn)| !turn.is_of(lane, lanes))
            && !planted::is(Planted::TurnForgotten)
    }
}

/// Returns the disk groups, or their parts, that data may go to.
fn kinds_for_data(geometry: &Geometry) -> impl Iterator<Item = Kind> + '_ {
    let first = Kind::new(geometry.main, None, geometry.main_stripe);
    let first = Some(first).filter(|_| geometry.main_has_data);
    let staying = geometry.added.iter().filter(|range| !range.is_leaving && range.has_data);
    let added = staying.map(|range| Kind::new(range.disk_group, range.lane, range.stripe));
    first.into_iter().chain(added)
}

impl Allocator {
    /// Returns how many members files take in turn, of the disk group with the most that stays; 0:
    /// there is none.
    pub(crate) fn turns(&self) -> u8 {
        let staying = self.geometry().added.iter().filter(|range| !range.is_leaving);
        staying.filter_map(|range| range.lane).max().map_or(0, |last| last + 1)
    }

    /// Returns where data of a file is wanted. A disk group that is gone, or leaves, is wanted by
    /// nobody.
    pub(crate) fn preference_of(&self, anode: AnodeNo, placement: Placement) -> Preference {
        let geometry = self.geometry();
        if geometry.added.is_empty() {
            return Preference::default();
        }
        let mut serving = kinds_for_data(geometry).filter(|kind| kind.serves(placement));
        let is_served = serving.next().is_some();
        let placement = if is_served { placement } else { Placement::Any };
        // Where all that is wanted has no turns, each would be a stream for nothing.
        let mut wanted = kinds_for_data(geometry).filter(|kind| kind.serves(placement));
        let has_turns = wanted.any(|kind| kind.lane.is_some());
        let turn = has_turns.then(|| Turn::of(anode, self.turns()));
        Preference { placement, turn }
    }

    /// Whether data can be wanted where `placement` says.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) fn check_placement(&self, placement: Placement) -> Result<(), PlacementError> {
        let geometry = self.geometry();
        if kinds_for_data(geometry).any(|kind| kind.serves(placement)) {
            return Ok(());
        }
        Err(match placement {
            Placement::Group(number) if number == geometry.main => {
                PlacementError::NoData { number }
            }
            Placement::Group(number) => {
                let mut added = geometry.added.iter();
                match added.find(|range| range.disk_group == number) {
                    Some(range) if !range.is_leaving => PlacementError::NoData { number },
                    Some(_) => PlacementError::Leaving { number },
                    None => PlacementError::None { number },
                }
            }
            Placement::Any | Placement::RoundRobin | Placement::Striped => {
                PlacementError::NoneOfKind { placement }
            }
        })
    }
}
