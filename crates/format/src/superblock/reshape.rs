//! What a superblock says of a disk group that gets a member more, and how that begins and ends.

use super::{Superblock, SuperblockDisk, SuperblockError};
use crate::disk_group::{ADDED_GROUPS_OFFSET, DiskGroup};
use crate::geometry::Geometry;
use crate::members::{Layout, Member};
use crate::reshape::{Lay, Reshape};
use crate::slots::Slots;

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

/// Checks what is said of a disk group that is reshaped, and names what is wrong.
pub(super) fn verify_reshape(
    geometry: &Geometry,
    ((layout, slots), added): ((Layout, &Slots), &[DiskGroup]),
) -> Result<(), &'static str> {
    let Some(reshape) = &geometry.reshape else { return Ok(()) };
    let group = added.iter().find(|group| group.number == reshape.disk_group);
    let (layout, slots) = match group {
        Some(group) => (group.layout, &group.slots),
        None if reshape.disk_group == 0 => (layout, slots),
        None => return Err("reshape"),
    };
    let segments = geometry.segments_in(reshape.disk_group);
    let is_kept_behind = |at: u64| reshape.moved < at && at < segments;
    let is_one = matches!(layout, Layout::Raid5 { .. })
        && slots.len().checked_sub(1).is_some_and(|narrow| layout.widths().contains(&narrow))
        && usize::from(reshape.member) < slots.len()
        && reshape.moved <= segments
        && geometry.lay_of(reshape.disk_group).is_some_and(|lay| lay.gains())
        && reshape.kept.is_none_or(|kept| is_kept_behind(kept.at));
    if is_one { Ok(()) } else { Err("reshape") }
}

impl Geometry {
    /// Whether a disk group is getting a member more.
    #[must_use]
    pub fn is_reshaped(&self, disk_group: u8) -> bool {
        self.reshape.is_some_and(|reshape| reshape.disk_group == disk_group)
    }

    /// Returns how the stripes of a disk group lie on its members; `None`: they do not.
    #[must_use]
    pub fn lay_of(&self, disk_group: u8) -> Option<Lay> {
        let range = self.added.iter().find(|range| range.disk_group == disk_group);
        let narrow = match range {
            Some(range) => self.added_stripes(range.stripe?),
            None if disk_group == 0 => self.stripes()?,
            None => return None,
        };
        let reshape = self.reshape.filter(|reshape| reshape.disk_group == disk_group);
        Some(reshape.map_or_else(|| Lay::from(narrow), |reshape| Lay::of(narrow, &reshape)))
    }

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
    /// Returns the disk group that gets a member more and the slot of that one, if none of its
    /// segments lies there yet.
    #[must_use]
    pub fn coming_slot(&self) -> Option<(u8, usize)> {
        let reshape = self.geometry.reshape.filter(|it| it.moved == 0 && it.kept.is_none())?;
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
        let reshape = Reshape { disk_group: number, member: last, moved: 0, kept: None };
        self.geometry.reshape = Some(reshape);
        slot
    }

    /// All segments of the disk group that is reshaped are wide: it lies as any other from now on,
    /// and uses as much of its members as they take.
    ///
    /// # Errors
    ///
    /// As [`Superblock::place_added`].
    pub fn end_reshape(&mut self) -> Result<(), SuperblockError> {
        let Some(reshape) = self.geometry.reshape else { return Ok(()) };
        let number = reshape.disk_group;
        let Some(lay) = self.geometry.lay_of(number) else { return Ok(()) };
        self.geometry.reshape = None;
        let (wide, segment_bytes) = (lay.wide.shape, self.geometry.segment_bytes());
        let bytes = self.geometry.segments_in(number).saturating_mul(segment_bytes);
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
