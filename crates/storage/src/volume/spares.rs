//! Hot spares: devices without data that can replace a member.
//!
//! # Invariants
//!
//! - HS1: A spare has its own label, durably, before the labels of the members list it.
//! - HS2: One label update both takes a spare off the list and puts it into a slot.
//! - HS3: Nothing but its label is written to a spare before it joins.
//!
//! # Crashes
//!
//! The label of a spare is written once: the newest label of a member decides the role of the
//! device ([`crate::members`], MJ5). A device with the label of a spare is no spare if no member
//! lists it: either a crash came before the listing, or it was delisted.
//!
//! Not here: the rebuild of a spare in use (`joining.rs`).

use super::Membership;
use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_COPIES};
use format::members::{Layout, MemberState, SPARES_MAX, Spare};
use format::reshape::ReshapeDirection;
use format::superblock::{SUPERBLOCK_HEAD_BYTES, Superblock};
use parking_lot::RwLock;

use super::joining::ReplaceError;
use super::set::{LabelChange, MemberSet};
use crate::device::{AlignedBuffer, DeviceError, IoPurpose, SharedDevice};
use crate::pool::write_superblock_copy;

/// The present spares by id. Held for a copy or an exchange only.
#[derive(Debug, Default)]
pub(super) struct SpareDevices(RwLock<Vec<([u8; 16], SharedDevice)>>);

impl SpareDevices {
    pub(super) fn add(&self, found: Vec<([u8; 16], SharedDevice)>) {
        self.0.write().extend(found);
    }

    fn get(&self, id: [u8; 16]) -> Option<SharedDevice> {
        let devices = self.0.read();
        devices.iter().find(|(own, _)| *own == id).map(|(_, device)| Arc::clone(device))
    }

    fn remove(&self, id: [u8; 16]) {
        self.0.write().retain(|(own, _)| *own != id);
    }
}

/// Why a device cannot become a spare, or be removed as one.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpareError {
    /// The device could not be a member either.
    #[error(transparent)]
    Unfit(#[from] ReplaceError),
    /// Remove a spare first.
    #[error("the pool has {SPARES_MAX} spares, and no room for another: remove one first")]
    TooMany,
    /// Name a listed spare.
    #[error("there is no such spare")]
    NotListed,
    /// Use mirrors or raid5.
    #[error(
        "no disk group of the pool can do without a device, so no spare would ever take a place: \
         spares are for a mirror or raid5"
    )]
    NoUse,
    /// The device failed. Nothing was changed.
    #[error("{0}; it is no spare")]
    NewDevice(DeviceError),
    /// A member error: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A spare in use.
#[derive(Clone, Debug)]
pub struct ActiveSpare {
    /// Slot.
    pub slot: usize,
    /// Device name.
    pub device: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpareView {
    size_bytes: u64,
    sector_bytes: u32,
}

/// Chooses the first of the smallest spares that fit, to leave larger ones for larger members.
fn choose(spares: &[SpareView], needed_bytes: u64, sector_bytes_max: u32) -> Option<usize> {
    let fits = |spare: &SpareView| {
        spare.size_bytes >= needed_bytes && spare.sector_bytes <= sector_bytes_max
    };
    let fitting = spares.iter().enumerate().filter(|(_, spare)| fits(spare));
    fitting.min_by_key(|(_, spare)| spare.size_bytes).map(|(at, _)| at)
}

/// Writes all copies, durably.
fn write_label(device: &SharedDevice, label: &Superblock) -> Result<(), DeviceError> {
    for copies in [1..SUPERBLOCK_COPIES, 0..1] {
        for copy in copies {
            write_superblock_copy(device.as_ref(), label, copy)?;
        }
        device.flush(IoPurpose::Superblock)?;
    }
    Ok(())
}

/// Blanks all copies of the label, durably, so that the device is of no pool.
pub(super) fn blank_label(device: &SharedDevice) -> Result<(), DeviceError> {
    for copy in 0..SUPERBLOCK_COPIES {
        let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
        let zeros = AlignedBuffer::zeroed(SUPERBLOCK_HEAD_BYTES);
        device.write(IoPurpose::Superblock, offset, zeros)?;
    }
    device.flush(IoPurpose::Superblock)
}

impl MemberSet {
    /// Clears paths in `paths`, which other devices have now, from the entries of absent members
    /// and spares.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn forget_paths(&self, paths: &[Vec<u8>]) -> Result<(), DeviceError> {
        self.change(|slots, label| {
            let is_absent = |at: &usize| slots.get(*at).is_none_or(|slot| slot.device.is_none());
            let members = label.members.iter_mut().enumerate().filter(|(at, _)| is_absent(at));
            let is_other = |path: &[u8]| paths.iter().any(|other| other == path);
            let mut change = LabelChange::Nothing;
            for (_, member) in members.filter(|(_, member)| is_other(&member.path)) {
                member.set_path(&[]);
                change = LabelChange::Table;
            }
            for spare in label.spares.iter_mut().filter(|spare| is_other(&spare.path)) {
                if self.spare_devices().get(spare.id).is_none() {
                    spare.set_path(&[]);
                    change = LabelChange::Table;
                }
            }
            change
        })
    }

    /// Returns the listed spares, each with whether it is present.
    #[must_use]
    pub fn spares(&self) -> Vec<(Spare, bool)> {
        let listed = self.label().map_or_else(Vec::new, |label| label.spares);
        let is_there = |spare: &Spare| self.spare_devices().get(spare.id).is_some();
        listed.into_iter().map(|spare| (spare.clone(), is_there(&spare))).collect()
    }
}

impl Membership<'_> {
    /// Makes `device` a spare with `id`. Its contents are lost.
    ///
    /// # Errors
    ///
    /// See [`SpareError`].
    pub fn add_spare(&self, device: SharedDevice, id: [u8; 16]) -> Result<(), SpareError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let Some(mut label) = members.label() else { return Ok(()) };
        // A spare must fit at least one member. [`Volume::take_spare`] checks the slot that needs
        // one.
        let of_use = slots_of_use(&label);
        let fits = |slot: &usize| self.check_fits(&label, *slot, &device).is_ok();
        if !of_use.iter().any(fits) {
            let smallest = of_use.into_iter().min_by_key(|slot| label.member_bytes(*slot));
            let smallest = smallest.ok_or(SpareError::NoUse)?;
            self.check_fits(&label, smallest, &device)?;
        }
        let mut spare = Spare::new(id, device.info().size_bytes);
        if device.info().name.starts_with('/') {
            spare.set_path(device.info().name.as_bytes());
        }
        if label.spares.len() >= SPARES_MAX {
            return Err(SpareError::TooMany);
        }
        label.spares.push(spare.clone());
        let behind = label.members.len() + label.spares.len() - 1;
        label.device_index = u16::try_from(behind).expect("a pool has few devices");
        // With the sequence of a creation the label would seem of an interrupted one.
        label.sequence += 1;
        // Before the listing (HS1).
        write_label(&device, &label).map_err(SpareError::NewDevice)?;
        let mut is_full = false;
        members.change(|_, label| {
            is_full = label.spares.len() >= SPARES_MAX;
            if is_full {
                return LabelChange::Nothing;
            }
            label.spares.push(spare);
            LabelChange::Table
        })?;
        if is_full {
            // Another thread has added the last possible spare.
            blank_label(&device).map_err(SpareError::NewDevice)?;
            return Err(SpareError::TooMany);
        }
        members.spare_devices().add(vec![(id, device)]);
        Ok(())
    }

    /// Delists spare `id`, and blanks its label if it is present.
    ///
    /// # Errors
    ///
    /// See [`SpareError`]. An error of the spare itself is only logged.
    pub fn remove_spare(&self, id: [u8; 16]) -> Result<(), SpareError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let mut was_listed = false;
        members.change(|_, label| {
            let before = label.spares.len();
            label.spares.retain(|spare| spare.id != id);
            was_listed = label.spares.len() < before;
            if was_listed { LabelChange::Table } else { LabelChange::Nothing }
        })?;
        if !was_listed {
            return Err(SpareError::NotListed);
        }
        let device = members.spare_devices().get(id);
        members.spare_devices().remove(id);
        // CRASH: no label lists the device any more, so an open does not use its own label.
        if let Some(device) = device
            && let Err(error) = blank_label(&device)
        {
            tracing::warn!("{error}; the device is a spare no longer, and still has its label");
        }
        Ok(())
    }

    /// Replaces the first absent member that a spare fits, as
    /// [`Membership::begin_replace`](crate::volume::membership::Membership::begin_replace). `None`
    /// if none is absent, another is joining, the layout needs the slot, or no spare fits.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn take_spare(&self) -> Result<Option<ActiveSpare>, DeviceError> {
        let Some(members) = self.members().filter(|members| members.is_degraded()) else {
            return Ok(None);
        };
        let there: Vec<([u8; 16], SharedDevice)> = members
            .spares()
            .into_iter()
            .filter_map(|(spare, _)| Some((spare.id, members.spare_devices().get(spare.id)?)))
            .collect();
        let Some(label) = members.label() else { return Ok(None) };
        let away = members.all();
        let away = (0..).zip(&away).filter(|(_, slot)| slot.is_away()).map(|(at, _)| at);
        // An emptied member that is being removed needs no spare.
        let goes = label.geometry.reshape.filter(|it| it.towards == ReshapeDirection::Narrow);
        let going = goes.and_then(|_| label.coming_slot()).map(|(_, slot)| slot);
        let away = away.filter(|slot| Some(*slot) != going);
        for slot in away {
            if let Some(taken) = self.take_spare_for(slot, &label, &there)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    fn take_spare_for(
        &self,
        slot: usize,
        label: &Superblock,
        there: &[([u8; 16], SharedDevice)],
    ) -> Result<Option<ActiveSpare>, DeviceError> {
        let view_of = |(_, device): &([u8; 16], SharedDevice)| SpareView {
            size_bytes: device.info().size_bytes,
            sector_bytes: device.info().sector_bytes,
        };
        let views: Vec<SpareView> = there.iter().map(view_of).collect();
        let sector_bytes = self.sector_bytes().max(label.sector_bytes);
        let chosen = choose(&views, label.member_bytes(slot), sector_bytes);
        let Some((id, device)) = chosen.and_then(|at| there.get(at)) else { return Ok(None) };
        let name = device.info().name.clone();
        let gone = label.members.get(slot).map_or_else(
            || (String::new(), MemberState::Missing),
            |member| (format::text::shown(&member.path), member.state),
        );
        // One label update (HS2).
        match self.replace_with_spare(slot, Arc::clone(device), *id) {
            Ok(()) => {
                if let Some(members) = self.members() {
                    members.spare_devices().remove(*id);
                    members.note_spare(slot, (gone.0.clone(), gone.1.word()), &name);
                }
                tracing::warn!(
                    slot,
                    device = name,
                    failed = gone.0,
                    spares_left = there.len().saturating_sub(1),
                    "a spare takes the place of a member"
                );
                Ok(Some(ActiveSpare { slot, device: name }))
            }
            Err(ReplaceError::Device(error)) => Err(error),
            // The layout needs the slot, or another thread was first. The next call tries again.
            Err(_) => Ok(None),
        }
    }
}

/// Returns the slots of layouts that can lose a member.
fn slots_of_use(label: &Superblock) -> Vec<usize> {
    let can_lose = |layout: Layout| match layout {
        Layout::Single | Layout::RoundRobin | Layout::Stripe { .. } => false,
        Layout::Mirror | Layout::Raid5 { .. } => true,
    };
    let added = label.added.iter().map(|group| (group.layout, &group.slots));
    let all = std::iter::once((label.layout, &label.slots)).chain(added);
    all.filter(|(layout, _)| can_lose(*layout)).flat_map(|(_, slots)| slots.iter()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_spare_that_fits_is_chosen_and_of_two_alike_the_first() {
        let spare = |size_bytes, sector_bytes| SpareView { size_bytes, sector_bytes };
        let spares = [spare(9, 512), spare(50, 512), spare(20, 4096), spare(20, 512)];
        assert_eq!(choose(&spares, 10, 4096), Some(2));
        assert_eq!(choose(&spares, 10, 512), Some(3), "sectors that the pool cannot use");
        assert_eq!(choose(&spares, 21, 512), Some(1));
        assert_eq!(choose(&spares, 51, 4096), None);
        assert_eq!(choose(&[], 0, 4096), None);
    }
}
