//! A raid5 is to have a member less while the pool is in use: how that begins, and how it ends.
//!
//! # Crashes
//!
//! 1. The labels say which allocation groups are given up: those for which there is no room without
//!    the member. Nothing new goes there. An open goes on with that.
//! 2. Nothing is there any more, and nothing in the log speaks of it. The labels say that the disk
//!    group is without them, and as long as it will be; all of its segments are wide.
//! 3. Segments become narrow, from the last on, as `reshaping.rs` says. The border in the labels is
//!    true at each moment.
//! 4. None lies on the member. The labels no longer name it, and then its own is blanked: until
//!    that, an open finds a device that they do not know (AD3).
//!
//! All members of the disk group are online at each of these. They need not be where a member is
//! taken back to which nothing was moved yet: one update of the labels is all.
//!
//! Not here: who empties what is given up (`engine::jobs`), and that there is room elsewhere
//! (`engine::alloc`). Decision 0091 has the argument.

use format::disk_group::DiskGroupState;
use format::geometry::Geometry;
use format::members::MemberState;
use format::reshape::{Lay, Towards};
use format::stripes::{Stripes, Without};
use format::superblock::Superblock;

use super::Volume;
use super::attaching::Detached;
use super::growth::{Changing, changes_to_come};
use super::open::needed_of;
use super::set::{Change, MemberSet};
use super::slot::{Slot, way_to_online};
use crate::device::DeviceError;

/// Editions from the beginning to the end: what is given up leaves, it is gone, so is the member,
/// and the disk group is longer again.
const CHANGES_TO_NARROW: usize = 4;

/// Why a member of a raid5 or stripe cannot go.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NarrowError {
    /// Name another.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Which was named.
        slot: usize,
    },
    /// Move its data.
    #[error(
        "disk group {number} is a {kind}, and only a raid5 or stripe can spread what it has over a \
         device less"
    )]
    NoStripes {
        /// Number of the disk group.
        number: u8,
        /// What it is.
        kind: &'static str,
    },
    /// Replace the member, or move the data of its disk group.
    #[error(
        "disk group {number} has {members} devices, the fewest of a {kind}: add another first \
         (holdfast device add --{kind}), or add a disk group and move all there (holdfast group \
         add, and group remove)"
    )]
    Few {
        /// Number of the disk group.
        number: u8,
        /// What it is.
        kind: &'static str,
        /// How many devices it has.
        members: usize,
    },
    /// Wait for it.
    #[error(
        "a disk group of this pool gets a device, or is losing one: wait until all has moved \
         (holdfast job list)"
    )]
    Reshaped,
    /// Wait until it is gone.
    #[error("disk group {number} leaves the pool, with all of its devices")]
    Leaving {
        /// Its number.
        number: u8,
    },
    /// Bring it back, or replace it, and wait until it has all.
    #[error(
        "the member in slot {slot} is {state}, and a device can go for good only while all of its \
         disk group are online: {}",
        way_to_online(.state)
    )]
    Lacking {
        /// Which one.
        slot: usize,
        /// What it is.
        state: &'static str,
    },
    /// Use larger devices first.
    #[error(
        "without the device not one allocation group of disk group {number} ({group_bytes} bytes) \
         has room on the others: add one first (holdfast device add --raid5, or --stripe), or \
         put larger ones in their places in a raid5 (holdfast device replace)"
    )]
    TooSmall {
        /// Number of the disk group.
        number: u8,
        /// Bytes of an allocation group.
        group_bytes: u64,
    },
    /// There is no way: its segments are too short.
    #[error(
        "segments of {segment_bytes} bytes lie in as many rows of a device less, and cannot be \
         moved in order: put another in its place in a raid5 (holdfast device replace), or \
         add a disk group and move all there (holdfast group add, and group remove)"
    )]
    Short {
        /// How long a segment is.
        segment_bytes: u64,
    },
    /// Close the pool and open it again.
    #[error(
        "the disk groups of this pool have changed too often since it was opened: unmount it and \
         mount it again"
    )]
    Often,
    /// What a member said: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A member that is to go: what the labels will say.
#[derive(Debug)]
pub struct Narrowing {
    edition: usize,
    slot: usize,
    /// The first allocation group that is given up.
    first: u32,
    geometry: Geometry,
}

impl Narrowing {
    /// Returns the number of the disk group.
    #[must_use]
    pub fn disk_group(&self) -> u8 {
        self.geometry.last_groups.map_or(0, |last| last.disk_group)
    }

    /// Returns the geometry that the pool has from then on.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

impl Changing<'_> {
    /// Plans that the member in `slot`, of a raid5 or stripe, is to go. Nothing is changed yet.
    ///
    /// # Errors
    ///
    /// See [`NarrowError`].
    pub fn plan_narrowing(&self, slot: usize) -> Result<Narrowing, NarrowError> {
        let volume = self.volume();
        let members = volume.members().ok_or(NarrowError::NoSlot { slot })?;
        let mut coming = members.label().ok_or(NarrowError::NoSlot { slot })?;
        let kept = changes_to_come(&coming) + CHANGES_TO_NARROW - 1;
        let edition = volume.next_edition(kept).map_err(|_| NarrowError::Often)?;
        let first = may_narrow(&members.all(), &coming, slot)?;
        coming.begin_giving_up(slot, first);
        Ok(Narrowing { edition, slot, first, geometry: coming.geometry })
    }

    /// Says in the labels, durably, what was planned, and shows it; `superblock` becomes what they
    /// say.
    ///
    /// # Errors
    ///
    /// See [`NarrowError`].
    pub fn begin_giving_up(
        &self,
        narrowing: &Narrowing,
        superblock: &mut Superblock,
    ) -> Result<(), NarrowError> {
        let volume = self.volume();
        let slot = narrowing.slot;
        let members = volume.members().ok_or(NarrowError::NoSlot { slot })?;
        let mut begun = Ok(());
        members.change(|slots, label| {
            begun = may_narrow(slots, label, slot).map(drop);
            if begun.is_err() {
                return Change::Nothing;
            }
            label.begin_giving_up(slot, narrowing.first);
            Change::Table
        })?;
        begun?;
        volume.take_label(superblock);
        volume.show(narrowing.edition, superblock).map_err(|_| NarrowError::Often)
    }

    /// Says in the labels, durably, that what was given up is gone, and shows it: segments become
    /// narrow from now on. Returns whether it is so; else a member is not online.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn begin_narrowing(&self) -> Result<bool, DeviceError> {
        let volume = self.volume();
        let label = volume.members().and_then(|members| members.label());
        let last = label.as_ref().and_then(|label| label.geometry.last_groups);
        let Some(last) = last else { return Ok(true) };
        let Some(set) = volume.set_of(last.disk_group) else { return Ok(false) };
        // It was kept for this.
        let Ok(edition) = volume.next_edition(0) else { return Ok(false) };
        let mut begun = false;
        set.change(|_, label| {
            // What it has missed goes by parts of the pool, which change.
            if is_lacking(&set, None) {
                return Change::Nothing;
            }
            let mut coming = label.clone();
            if let Err(error) = coming.begin_narrowing() {
                tracing::error!(%error, "a disk group cannot be without a device");
                return Change::Nothing;
            }
            *label = coming;
            if last.disk_group == label.geometry.main {
                set.cut_anew(&label.geometry);
            }
            if let Some(lay) = label.geometry.lay_of(last.disk_group) {
                set.set_lay(lay);
            }
            begun = true;
            Change::Table
        })?;
        if begun {
            volume.show_label(edition);
        }
        Ok(begun)
    }

    /// Says in the labels, durably, that the member is gone on which no segment lies any more.
    /// Returns it, and the number of its disk group; `None`: one lies there yet, or a member is not
    /// online.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn end_narrowing(&self) -> Result<Option<(u8, Detached)>, DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.reshaping() else { return Ok(None) };
        let number = reshaping.reshape.disk_group;
        let Some(set) = volume.set_of(number) else { return Ok(None) };
        // It was kept for this.
        let Ok(edition) = volume.next_edition(0) else { return Ok(None) };
        let mut ended = None;
        set.change(|slots, label| {
            // It has nothing that the others need.
            let own = label.coming_slot().and_then(|(_, slot)| set.own_of(slot));
            if is_lacking(&set, own) {
                return Change::Nothing;
            }
            let mut coming = label.clone();
            let Some(slot) = coming.end_narrowing() else { return Change::Nothing };
            let Some(at) = slots.get_mut(slot) else { return Change::Nothing };
            let out = std::mem::replace(at, Slot::gone());
            *label = coming;
            set.leave_slot(slot);
            let group = label.added.iter().find(|group| group.number == number);
            let (layout, slots) =
                group.map_or((label.layout, &label.slots), |group| (group.layout, &group.slots));
            set.need(needed_of(layout, slots.len()), None);
            ended = Some(Detached::of(out));
            Change::States
        })?;
        let Some(ended) = ended else { return Ok(None) };
        // Requests to it may be under way, and its own slot stays: the set leaves it out.
        set.set_lay(Lay::from(Stripes { without: Without::NONE, ..reshaping.lay.narrow }));
        volume.show_label(edition);
        Ok(Some((number, ended)))
    }

    /// Takes the member in `slot` out again, which a raid5 or stripe is only getting: no segment
    /// lies on it yet. The labels say so, durably, when this returns, and it is to be blanked then
    /// ([`Detached::blank`]). `None`: it is no such member, or segments lie on it.
    ///
    /// Others may be away, if the disk group can do without them: it needs nothing that this has.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn take_back(&self, slot: usize) -> Result<Option<Detached>, DeviceError> {
        let volume = self.volume();
        let reshaping = volume.reshaping().filter(|it| it.reshape.towards == Towards::Wide);
        let Some(reshaping) = reshaping else { return Ok(None) };
        let number = reshaping.reshape.disk_group;
        let Some(set) = volume.set_of(number) else { return Ok(None) };
        // It was kept for the end.
        let Ok(edition) = volume.next_edition(0) else { return Ok(None) };
        let mut taken = None;
        set.change(|slots, label| {
            if label.coming_slot() != Some((number, slot)) {
                return Change::Nothing;
            }
            let group = label.group_of_slot(slot);
            let needed = group.map(|(_, layout, own)| needed_of(layout, own.len() - 1));
            let own = set.own_of(slot);
            let view = set.view();
            let online = view
                .iter()
                .enumerate()
                .filter(|(at, it)| Some(*at) != own && it.state == MemberState::Online);
            let Some(needed) = needed.filter(|needed| online.count() >= *needed) else {
                return Change::Nothing;
            };
            let mut coming = label.clone();
            let Some(at) = slots.get_mut(slot) else { return Change::Nothing };
            if coming.end_narrowing().is_none() {
                return Change::Nothing;
            }
            taken = Some(Detached::of(std::mem::replace(at, Slot::gone())));
            *label = coming;
            set.leave_slot(slot);
            set.need(needed, None);
            Change::States
        })?;
        if taken.is_some() {
            set.set_lay(Lay::from(Stripes { without: Without::NONE, ..reshaping.lay.narrow }));
            if let Some(label) = set.label()
                && let Err(error) = volume.show(edition, &label)
            {
                tracing::error!(%error, "a disk group cannot be shown as what it is again");
            }
        }
        Ok(taken)
    }
}

impl Volume {
    /// Whether a member of a disk group is not online: nothing of it is moved, or given up, then.
    #[must_use]
    pub fn lacks_in(&self, disk_group: u8) -> bool {
        self.set_of(disk_group).is_some_and(|set| is_lacking(&set, None))
    }
}

/// Whether one of the members is not online, but the one whose own slot is `but`.
pub(super) fn is_lacking(set: &MemberSet, but: Option<usize>) -> bool {
    let is_lacking = |(own, slot): (usize, &Slot)| {
        Some(own) != but && !matches!(slot.state, MemberState::Online | MemberState::Gone)
    };
    set.view().iter().enumerate().any(is_lacking)
}

/// Returns from which allocation group on those of its disk group are given up, if the member in
/// `slot` can go, by what the members and the label are now.
fn may_narrow(slots: &[Slot], label: &Superblock, slot: usize) -> Result<u32, NarrowError> {
    let group = label.group_of_slot(slot).ok_or(NarrowError::NoSlot { slot })?;
    let (number, layout, own) = group;
    if !layout.spreads() {
        return Err(NarrowError::NoStripes { number, kind: layout.word() });
    }
    if label.geometry.reshape.is_some() || label.geometry.last_groups.is_some() {
        return Err(NarrowError::Reshaped);
    }
    let added = label.added.iter().find(|group| group.number == number);
    if added.is_some_and(|group| group.state != DiskGroupState::Online) {
        return Err(NarrowError::Leaving { number });
    }
    if !layout.widths().contains(&(own.len() - 1)) {
        return Err(NarrowError::Few { number, kind: layout.word(), members: own.len() });
    }
    let state_of = |slot: usize| slots.get(slot).map_or(MemberState::Missing, |slot| slot.state);
    let is_lacking = |slot: &usize| state_of(*slot) != MemberState::Online;
    if let Some(slot) = own.iter().find(is_lacking) {
        return Err(NarrowError::Lacking { slot, state: state_of(slot).word() });
    }
    let segment_bytes = label.geometry.segment_bytes();
    let rows = |width| layout.stripe(width).map(|shape| shape.segment_rows(segment_bytes));
    if rows(own.len()) >= rows(own.len() - 1) {
        return Err(NarrowError::Short { segment_bytes });
    }
    // No more than is used of each: whatever takes the place of one has that.
    let used = label.member_bytes(slot);
    let too_small = || NarrowError::TooSmall { number, group_bytes: label.geometry.group_bytes() };
    label.geometry.staying_without_one(number, used).ok_or_else(too_small)
}
