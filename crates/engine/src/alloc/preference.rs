//! The disk groups and members preferred for a file's data.
//!
//! A policy: it orders the disk groups with room (`disk_groups`), by the file's number and its
//! placement, and excludes none.
//!
//! Not here: permission to set a placement, and its inheritance (`vnode`).

use format::geometry::Geometry;
use format::ids::AnodeNo;
use format::placement::Placement;
use format::stripes::StripeShape;

use super::Allocator;
use super::share::SegmentSource;

/// Why a placement is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// No such disk group: name another.
    #[error("there is no disk group {number}: `holdfast group list POOL` shows them")]
    None {
        /// The named disk group.
        number: u8,
    },
    /// No disk group of that kind: name another, or add one.
    #[error("no disk group is {placement}: `holdfast group list POOL` shows what there is")]
    NoneOfKind {
        /// The placement.
        placement: Placement,
    },
    /// The disk group is being removed: name another.
    #[error("disk group {number} is being removed")]
    Leaving {
        /// The named disk group.
        number: u8,
    },
    /// The disk group holds metadata only: name another.
    #[error("disk group {number} has metadata alone: name one with the role data")]
    NoData {
        /// The named disk group.
        number: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RoundRobinPosition(u8);

impl RoundRobinPosition {
    /// Returns the position of a file: consecutive files use consecutive members.
    fn of(anode: AnodeNo, lanes: u8) -> RoundRobinPosition {
        let turn = anode.0 % u64::from(lanes.max(1));
        RoundRobinPosition(u8::try_from(turn).unwrap_or(0))
    }

    /// Returns whether `lane` of `lanes` is selected.
    fn is_of(self, lane: u8, lanes: usize) -> bool {
        usize::from(self.0) % lanes.max(1) == usize::from(lane)
    }
}

/// The disk group and round-robin member preferred for a file's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlacementPreference {
    placement: Placement,
    turn: Option<RoundRobinPosition>,
}

/// Properties that a placement can select, of a disk group or one member of a round-robin group
/// (*lane*).
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacementProperties {
    disk_group: u8,
    lane: Option<u8>,
    is_striped: bool,
}

impl PlacementProperties {
    pub(super) fn new(
        disk_group: u8,
        lane: Option<u8>,
        stripe: Option<StripeShape>,
    ) -> PlacementProperties {
        PlacementProperties { disk_group, lane, is_striped: stripe.is_some() }
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

impl PlacementPreference {
    pub(crate) fn is_placed(self) -> bool {
        self.placement != Placement::Any
    }

    /// Returns whether the placement selects `share` (GR5).
    pub(super) fn serves(self, share: &SegmentSource) -> bool {
        share.kind.serves(self.placement)
    }

    /// Returns whether `share` is a round-robin member other than the file's (GR4).
    pub(super) fn is_anothers_turn(self, share: &SegmentSource, lanes: usize) -> bool {
        let wanted = share.kind.lane.zip(self.turn);
        wanted.is_some_and(|(lane, turn)| !turn.is_of(lane, lanes))
    }
}

/// Returns the disk groups, or their lanes, that take data.
fn kinds_for_data(geometry: &Geometry) -> impl Iterator<Item = PlacementProperties> + '_ {
    let first = PlacementProperties::new(geometry.main, None, geometry.main_stripe);
    let first = Some(first).filter(|_| geometry.main_has_data);
    let staying = geometry.added.iter().filter(|range| !range.is_leaving && range.has_data);
    let added =
        staying.map(|range| PlacementProperties::new(range.disk_group, range.lane, range.stripe));
    first.into_iter().chain(added)
}

impl Allocator {
    /// Returns the most members of a round-robin group that stays.
    pub(crate) fn turns(&self) -> u8 {
        let staying = self.geometry().added.iter().filter(|range| !range.is_leaving);
        staying.filter_map(|range| range.lane).max().map_or(0, |last| last + 1)
    }

    /// Returns the preference for a file's data. Ignores unsatisfiable placements.
    pub(crate) fn preference_of(
        &self,
        anode: AnodeNo,
        placement: Placement,
    ) -> PlacementPreference {
        let geometry = self.geometry();
        if geometry.added.is_empty() {
            return PlacementPreference::default();
        }
        let mut serving = kinds_for_data(geometry).filter(|kind| kind.serves(placement));
        let is_served = serving.next().is_some();
        let placement = if is_served { placement } else { Placement::Any };
        // Without round-robin members to choose from, a position would only split the stream.
        let mut wanted = kinds_for_data(geometry).filter(|kind| kind.serves(placement));
        let has_turns = wanted.any(|kind| kind.lane.is_some());
        let turn = has_turns.then(|| RoundRobinPosition::of(anode, self.turns()));
        PlacementPreference { placement, turn }
    }

    /// Checks that `placement` selects a disk group that takes data.
    ///
    /// # Errors
    ///
    /// The reason if it selects none.
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
