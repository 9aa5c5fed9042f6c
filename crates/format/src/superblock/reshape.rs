//! What a superblock says of a disk group that gets a member more, and how that begins and ends.

use super::{Superblock, SuperblockDisk, SuperblockError};
use crate::disk_group::{ADDED_GROUPS_OFFSET, DiskGroup};
use crate::geometry::Geometry;
use crate::members::{Layout, Member};
use crate::reshape::{Lay, Reshape};
use crate::slots::Slots;
use crate::stripes::StripeShape;

/// Returns what is said of a disk group that is reshaped.
pub(super) fn reshape_of(disk: &SuperblockDisk) -> Result<Option<Reshape>, SuperblockError> {
    let bad = SuperblockError::BadField { field: "reshape" };
    match disk.is_reshaped {
        0 => Ok(None),
        1 => Reshape::from_disk(&disk.reshape).map(Some).ok_or(bad),
        _ => Err(bad),
    }
}

/// Returns how many members disk group `number` has that its narrow segments do not lie on.
pub(super) fn narrower(reshape: Option<&Reshape>, number: u8) -> usize {
    usize::from(reshape.is_some_and(|reshape| reshape.disk_group == number))
}

/// Checks what is said of a disk group that is reshaped, and returns its stripes when all have
/// moved.
pub(super) fn verify_reshape(
    geometry: &Geometry,
    ((layout, slots), added): ((Layout, &Slots), &[DiskGroup]),
    reshape: Option<&Reshape>,
) -> Result<Option<(u8, StripeShape)>, &'static str> {
    let Some(reshape) = reshape else { return Ok(None) };
    let group = added.iter().find(|group| group.number == reshape.disk_group);
    let (layout, slots) = match group {
        Some(group) => (group.layout, &group.slots),
        None if reshape.disk_group == 0 => (layout, slots),
        None => return Err("reshape"),
    };
    let segments = geometry.segments_in(reshape.disk_group);
    let is_kept_behind = |at: u64| reshape.moved < at && at < segments;
    let is_one = matches!(layout, Layout::Raid5 { .. })
        && layout.widths().contains(&(slots.len() - 1))
        && usize::from(reshape.member) < slots.len()
        && reshape.moved <= segments
        && reshape.kept.is_none_or(|kept| is_kept_behind(kept.at));
    let wide = layout.stripe(slots.len()).filter(|_| is_one).ok_or("reshape")?;
    Ok(Some((reshape.disk_group, wide)))
}

impl Geometry {
    /// Returns how many segments the allocation groups of a disk group have room for.
    #[must_use]
    pub fn segments_in(&self, disk_group: u8) -> u64 {
        let own = self.added.iter().filter(|range| range.disk_group == disk_group);
        let added: u64 = own
            .flat_map(|range| range.numbers())
            .map(|group| self.segments_of(group))
            .map(u64::from)
            .sum();
        if disk_group > 0 {
            return added;
        }
        (0..self.group_count).map(|group| u64::from(self.segments_of(group))).sum()
    }
}

impl Superblock {
    /// Returns how the stripes of disk group `number` lie on its members; `None`: they do not.
    #[must_use]
    pub fn lay_of(&self, number: u8) -> Option<Lay> {
        let group = self.added.iter().find(|group| group.number == number);
        let narrow = match group {
            Some(group) => {
                let members = group.slots.len() - narrower(self.reshape.as_ref(), number);
                self.geometry.added_stripes(group.layout.stripe(members)?)
            }
            None => self.geometry.stripes()?,
        };
        let reshape = self.reshape.filter(|reshape| reshape.disk_group == number);
        Some(reshape.map_or_else(|| Lay::from(narrow), |reshape| Lay::of(narrow, &reshape)))
    }

    /// Returns the disk group that gets a member more and the slot of that one, if none of its
    /// segments lies there yet.
    #[must_use]
    pub fn coming_slot(&self) -> Option<(u8, usize)> {
        let reshape = self.reshape.filter(|it| it.moved == 0 && it.kept.is_none())?;
        let group = self.added.iter().find(|group| group.number == reshape.disk_group);
        let slots = group.map_or(&self.slots, |group| &group.slots);
        let slot = slots.iter().nth(usize::from(reshape.member))?;
        Some((reshape.disk_group, slot))
    }

    /// Adds `member` to the disk group `number`, a raid5, in the lowest slot that is free: none of
    /// its segments lies there yet. Returns that slot.
    pub fn begin_reshape(&mut self, number: u8, member: Member) -> usize {
        let layout = self.added.iter().find(|group| group.number == number);
        let layout = layout.map_or(self.layout, |group| group.layout);
        let slot = self.attach_as(number, layout, member);
        let group = self.added.iter().find(|group| group.number == number);
        let slots = group.map_or(&self.slots, |group| &group.slots);
        let last = u8::try_from(slots.len().saturating_sub(1)).unwrap_or(u8::MAX);
        self.reshape = Some(Reshape { disk_group: number, member: last, moved: 0, kept: None });
        self.geometry.reshaped = layout.stripe(slots.len()).map(|wide| (number, wide));
        slot
    }

    /// All segments of the disk group that is reshaped are wide: it lies as any other from now on,
    /// and uses as much of its members as they take.
    ///
    /// # Errors
    ///
    /// As [`Superblock::place_added`].
    pub fn end_reshape(&mut self) -> Result<(), SuperblockError> {
        let reshape = self.reshape.take().zip(self.geometry.reshaped.take());
        let Some((reshape, (number, wide))) = reshape else { return Ok(()) };
        let segment_bytes = self.geometry.segment_bytes();
        let bytes = self.geometry.segments_in(reshape.disk_group).saturating_mul(segment_bytes);
        let rows = wide.rows_of_bytes(bytes, segment_bytes);
        match self.added.iter_mut().find(|group| group.number == number) {
            Some(group) => {
                group.member_bytes = 2 * ADDED_GROUPS_OFFSET + (rows << wide.unit_shift);
            }
            None => self.geometry.end_reshape(wide, bytes),
        }
        self.place_added()
    }
}
