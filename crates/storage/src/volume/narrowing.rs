//! Removing a member from a raid5 or stripe of an open pool: begin and end.
//!
//! # Crashes
//!
//! 1. The labels name the allocation groups to give up, for which one member less has no room. No
//!    more is allocated in them. An open resumes here.
//! 2. Those groups are empty, and no record in the log concerns them. The labels drop them. All
//!    segments still have the old width.
//! 3. Segments are moved to the narrow stripes, from the last to the first (`reshaping.rs`). The
//!    border in the labels is correct at each moment.
//! 4. The member is empty. The labels drop it, and then its own label is blanked. An open between
//!    the two finds a device that no label lists (AD3).
//!
//! Every step requires all members of the disk group online. Only [`LayoutChangeGuard::take_back`],
//! which is a single label update, does not.
//!
//! Not here: emptying the groups (`engine::jobs`), and room for their contents (`engine::alloc`).
//! Decision 0091 has the argument.

use super::Membership;
use format::disk_group::DiskGroupState;
use format::geometry::Geometry;
use format::members::MemberState;
use format::reshape::{ReshapeDirection, StripeMapping};
use format::stripes::{ExcludedMembers, Stripes};
use format::superblock::{Superblock, SuperblockError};

use super::attaching::Detached;
use super::growth::LayoutChangeGuard;
use super::open::needed_of;
use super::set::{LabelChange, MemberSet};
use super::slot::{MemberSlot, way_to_online};
use crate::device::DeviceError;

/// Why a member of a raid5 or stripe cannot be removed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NarrowError {
    /// Name another slot.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Slot.
        slot: usize,
    },
    /// Move the data of the disk group.
    #[error(
        "disk group {number} is a {kind}, and only a raid5 or stripe can spread what it has over a \
         device less"
    )]
    NoStripes {
        /// Disk group.
        number: u8,
        /// Kind.
        kind: &'static str,
    },
    /// Replace the member, or move its data.
    #[error(
        "disk group {number} has {members} devices, the fewest of a {kind}: add another first \
         (`holdfast device add POOL NEW --{kind} OLD`), or add a disk group and move all there \
         (`holdfast group add POOL KIND:NEW,...=data,metadata,journal`, and then `holdfast group \
         remove POOL {number}`)"
    )]
    Few {
        /// Disk group.
        number: u8,
        /// Kind.
        kind: &'static str,
        /// Number of devices.
        members: usize,
    },
    /// Wait for the job.
    #[error(
        "a disk group of this pool gets a device, or is losing one: wait until all has moved \
         (`holdfast job list POOL`)"
    )]
    Reshaped,
    /// Wait until the group is gone.
    #[error("disk group {number} leaves the pool, with all of its devices")]
    Leaving {
        /// Disk group.
        number: u8,
    },
    /// Wait until all members are online.
    #[error(
        "the member in slot {slot} is {state}, and a device can go for good only while all of its \
         disk group are online: {}",
        way_to_online(.state)
    )]
    Lacking {
        /// Slot.
        slot: usize,
        /// State.
        state: &'static str,
    },
    /// Use larger devices first.
    #[error(
        "without the device not one allocation group of disk group {number} ({group_bytes} bytes) \
         has room on the others: add one first (`holdfast device add POOL NEW`), or put larger \
         ones in their places in a raid5 (`holdfast device replace POOL OLD NEW`)"
    )]
    TooSmall {
        /// Disk group.
        number: u8,
        /// Bytes of an allocation group.
        group_bytes: u64,
    },
    /// Replace the device, or move the data.
    #[error(
        "segments of {segment_bytes} bytes lie in as many rows of a device less, and cannot be \
         moved in order: put another in its place in a raid5 (`holdfast device replace POOL \
         OLD NEW`), or add a disk group and move all there (`holdfast group add POOL \
         KIND:NEW,...=data,metadata,journal`, and then `holdfast group remove POOL GROUP`)"
    )]
    Short {
        /// Bytes of a segment.
        segment_bytes: u64,
    },
    /// The planned label is invalid: a bug, or a forged label.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A member error: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A planned removal.
#[derive(Debug)]
pub struct PlannedNarrowing {
    slot: usize,
    first: u32,
    geometry: Geometry,
}

impl PlannedNarrowing {
    /// Returns the number of the disk group.
    #[must_use]
    pub fn disk_group(&self) -> u8 {
        self.geometry.last_groups.map_or(0, |last| last.disk_group)
    }

    /// Returns the geometry from the begin on.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

impl LayoutChangeGuard<'_> {
    /// Plans the removal of the member in `slot` from its raid5 or stripe. Writes nothing.
    ///
    /// # Errors
    ///
    /// See [`NarrowError`].
    pub fn plan_narrowing(&self, slot: usize) -> Result<PlannedNarrowing, NarrowError> {
        let volume = self.volume();
        let members = volume.members().ok_or(NarrowError::NoSlot { slot })?;
        let mut coming = members.label().ok_or(NarrowError::NoSlot { slot })?;
        let first = may_narrow(&members.all(), &coming, slot)?;
        coming.begin_giving_up(slot, first);
        Ok(PlannedNarrowing { slot, first, geometry: coming.geometry })
    }

    /// Marks the planned groups as given up, durably, and then shows that in the volume. Sets
    /// `superblock` to the written label.
    ///
    /// # Errors
    ///
    /// See [`NarrowError`].
    pub fn begin_giving_up(
        &self,
        narrowing: &PlannedNarrowing,
        superblock: &mut Superblock,
    ) -> Result<(), NarrowError> {
        let volume = self.volume();
        let slot = narrowing.slot;
        let members = volume.members().ok_or(NarrowError::NoSlot { slot })?;
        let mut begun = Ok(());
        members.change(|slots, label| {
            begun = may_narrow(slots, label, slot).map(drop);
            if begun.is_err() {
                return LabelChange::Nothing;
            }
            label.begin_giving_up(slot, narrowing.first);
            LabelChange::Table
        })?;
        begun?;
        volume.membership().take_label(superblock);
        Ok(volume.show(superblock)?)
    }

    /// Drops the given-up groups from the labels, durably, so that segments can become narrow.
    /// Returns `false` if a member is not online.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn begin_narrowing(&self) -> Result<bool, DeviceError> {
        let volume = self.volume();
        let label = volume.members().and_then(|members| members.label());
        let last = label.as_ref().and_then(|label| label.geometry.last_groups);
        let Some(last) = last else { return Ok(true) };
        let Some(set) = volume.membership().set_of(last.disk_group) else { return Ok(false) };
        let mut begun = false;
        set.change(|_, label| {
            // The size of parts changes: maps of stale parts would be wrong.
            if is_lacking(&set, None) {
                return LabelChange::Nothing;
            }
            let mut coming = label.clone();
            if let Err(error) = coming.begin_narrowing() {
                tracing::error!(%error, "a disk group cannot be without a device");
                return LabelChange::Nothing;
            }
            *label = coming;
            if last.disk_group == label.geometry.main {
                set.cut_rebuild(&label.geometry);
            }
            if let Some(lay) = label.geometry.lay_of(last.disk_group) {
                set.set_lay(lay);
            }
            begun = true;
            LabelChange::Table
        })?;
        if begun {
            volume.membership().show_label();
        }
        Ok(begun)
    }

    /// Drops the emptied member from the labels, durably. Returns its disk group and the member.
    /// `None` if it still has segments, or another member is not online.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn end_narrowing(&self) -> Result<Option<(u8, Detached)>, DeviceError> {
        let volume = self.volume();
        let Some(reshaping) = volume.membership().reshaping() else { return Ok(None) };
        let number = reshaping.reshape.disk_group;
        let Some(set) = volume.membership().set_of(number) else { return Ok(None) };
        let mut ended = None;
        set.change(|slots, label| {
            // Only the emptied member may be absent.
            let own = label.coming_slot().and_then(|(_, slot)| set.own_of(slot));
            if is_lacking(&set, own) {
                return LabelChange::Nothing;
            }
            let mut coming = label.clone();
            let Some(slot) = coming.end_narrowing() else { return LabelChange::Nothing };
            let Some(at) = slots.get_mut(slot) else { return LabelChange::Nothing };
            let out = std::mem::replace(at, MemberSlot::gone());
            *label = coming;
            set.leave_slot(slot);
            let group = label.added.iter().find(|group| group.number == number);
            let (layout, slots) =
                group.map_or((label.layout, &label.slots), |group| (group.layout, &group.slots));
            set.need(needed_of(layout, slots.len()), None);
            ended = Some(Detached::of(out));
            LabelChange::States
        })?;
        let Some(ended) = ended else { return Ok(None) };
        // Requests to the removed member may be in flight, so its own slot stays, and
        // [`MemberSet::set_lay`] skips that.
        set.set_lay(StripeMapping::from(Stripes {
            without: ExcludedMembers::NONE,
            ..reshaping.lay.narrow
        }));
        volume.membership().show_label();
        Ok(Some((number, ended)))
    }

    /// Removes a just added member of a raid5 or stripe before a segment moved to it, durably. The
    /// caller then blanks it ([`Detached::blank`]). `None` for any other member. Others may be
    /// absent as far as the layout allows.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn take_back(&self, slot: usize) -> Result<Option<Detached>, DeviceError> {
        let volume = self.volume();
        let reshaping = volume
            .membership()
            .reshaping()
            .filter(|it| it.reshape.towards == ReshapeDirection::Wide);
        let Some(reshaping) = reshaping else { return Ok(None) };
        let number = reshaping.reshape.disk_group;
        let Some(set) = volume.membership().set_of(number) else { return Ok(None) };
        let mut taken = None;
        set.change(|slots, label| {
            if label.coming_slot() != Some((number, slot)) {
                return LabelChange::Nothing;
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
                return LabelChange::Nothing;
            };
            let mut coming = label.clone();
            let Some(at) = slots.get_mut(slot) else { return LabelChange::Nothing };
            if coming.end_narrowing().is_none() {
                return LabelChange::Nothing;
            }
            taken = Some(Detached::of(std::mem::replace(at, MemberSlot::gone())));
            *label = coming;
            set.leave_slot(slot);
            set.need(needed, None);
            LabelChange::States
        })?;
        if taken.is_some() {
            set.set_lay(StripeMapping::from(Stripes {
                without: ExcludedMembers::NONE,
                ..reshaping.lay.narrow
            }));
            if let Some(label) = set.label()
                && let Err(error) = volume.show(&label)
            {
                tracing::error!(%error, "a disk group cannot be shown as what it is again");
            }
        }
        Ok(taken)
    }
}

impl Membership<'_> {
    /// Whether a member of a disk group is not online: then no segment moves.
    #[must_use]
    pub fn lacks_in(&self, disk_group: u8) -> bool {
        self.set_of(disk_group).is_some_and(|set| is_lacking(&set, None))
    }
}

/// Whether a member other than own slot `but` is not online.
pub(super) fn is_lacking(set: &MemberSet, but: Option<usize>) -> bool {
    let is_lacking = |(own, slot): (usize, &MemberSlot)| {
        Some(own) != but && !matches!(slot.state, MemberState::Online | MemberState::Gone)
    };
    set.view().iter().enumerate().any(is_lacking)
}

/// Returns the first allocation group to give up.
fn may_narrow(slots: &[MemberSlot], label: &Superblock, slot: usize) -> Result<u32, NarrowError> {
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
    // Only the bytes in use, which every replacement has.
    let used = label.member_bytes(slot);
    let too_small = || NarrowError::TooSmall { number, group_bytes: label.geometry.group_bytes() };
    label.geometry.staying_without_one(number, used).ok_or_else(too_small)
}
