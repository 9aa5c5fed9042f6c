//! Spares: devices that hold nothing and wait to take the place of a member.
//!
//! # Invariants
//!
//! - HS1: A spare has its own label, durably, before the labels of the members list it.
//! - HS2: It is taken off the list and put into a slot by one change of the labels: at no moment is
//!   it both, or neither.
//! - HS3: Nothing but its label is written to a spare before it joins.
//!
//! # Crashes
//!
//! The label of a spare is written once and may be old: the newest label of a member decides what
//! the device is ([`crate::members`], MJ5). A device that has the label of a spare and is listed
//! nowhere is none: a crash was between the two writes, or it was taken off the list.
//!
//! Not here: what is made anew on a spare that was taken (`joining.rs`).

use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_COPIES};
use format::members::{Layout, MemberState, SPARES_MAX, Spare};
use format::reshape::Towards;
use format::superblock::{SUPERBLOCK_HEAD_BYTES, Superblock};
use parking_lot::RwLock;
use runtime::planted::{self, Planted};

use super::Volume;
use super::joining::ReplaceError;
use super::set::{Change, MemberSet};
use crate::device::{AlignedBuffer, DeviceError, Purpose, SharedDevice};
use crate::pool::write_superblock_copy;

/// The spares that are there, by their ids. Held for a copy or an exchange only.
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

/// Why a device cannot become a spare, or be one no longer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpareError {
    /// What a member could not be either.
    #[error(transparent)]
    Unfit(#[from] ReplaceError),
    /// Remove one first.
    #[error("the pool has {SPARES_MAX} spares, and no room for another: remove one first")]
    TooMany,
    /// Name one of those that are listed.
    #[error("there is no such spare")]
    NotListed,
    /// Make the pool of mirrors or raid5.
    #[error(
        "no disk group of the pool can do without a device, so no spare would ever take a place: \
         spares are for a mirror or raid5"
    )]
    NoUse,
    /// What the device said that was to become one. Nothing was changed.
    #[error("{0}; it is no spare")]
    NewDevice(DeviceError),
    /// What a member said: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A spare that was put into a slot.
#[derive(Clone, Debug)]
pub struct TakenSpare {
    /// The slot.
    pub slot: usize,
    /// What it is called.
    pub device: String,
}

/// What the choice may know of a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SpareView {
    size_bytes: u64,
    sector_bytes: u32,
}

/// Chooses the spare that takes the place of a member with `needed_bytes`: the smallest that is
/// large enough, so that a larger one is left for a larger member; of two alike the first.
fn choose(spares: &[SpareView], needed_bytes: u64, sector_bytes_max: u32) -> Option<usize> {
    let fits = |spare: &SpareView| {
        spare.size_bytes >= needed_bytes && spare.sector_bytes <= sector_bytes_max
    };
    let fitting = spares.iter().enumerate().filter(|(_, spare)| fits(spare));
    if planted::is(Planted::LargestSpareTaken) {
        return fitting.max_by_key(|(_, spare)| spare.size_bytes).map(|(at, _)| at);
    }
    fitting.min_by_key(|(_, spare)| spare.size_bytes).map(|(at, _)| at)
}

/// Writes the label of a spare to all its copies, durably.
fn write_label(device: &SharedDevice, label: &Superblock) -> Result<(), DeviceError> {
    for copies in [1..SUPERBLOCK_COPIES, 0..1] {
        for copy in copies {
            write_superblock_copy(device.as_ref(), label, copy)?;
        }
        device.flush(Purpose::Superblock)?;
    }
    Ok(())
}

/// Makes a device one that no pool knows, durably.
pub(super) fn blank_label(device: &SharedDevice) -> Result<(), DeviceError> {
    for copy in 0..SUPERBLOCK_COPIES {
        let offset = Geometry::superblock_offset(device.info().size_bytes, copy);
        let zeros = AlignedBuffer::zeroed(SUPERBLOCK_HEAD_BYTES);
        device.write(Purpose::Superblock, offset, zeros)?;
    }
    device.flush(Purpose::Superblock)
}

impl MemberSet {
    /// Members and spares that are not there were at none of `paths` last, as far as the labels
    /// tell from now on: others are there.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn forget_paths(&self, paths: &[Vec<u8>]) -> Result<(), DeviceError> {
        self.change(|slots, label| {
            let is_absent = |at: &usize| slots.get(*at).is_none_or(|slot| slot.device.is_none());
            let members = label.members.iter_mut().enumerate().filter(|(at, _)| is_absent(at));
            let is_other = |path: &[u8]| paths.iter().any(|other| other == path);
            let mut change = Change::Nothing;
            for (_, member) in members.filter(|(_, member)| is_other(&member.path)) {
                member.set_path(&[]);
                change = Change::Table;
            }
            for spare in label.spares.iter_mut().filter(|spare| is_other(&spare.path)) {
                if self.spare_devices().get(spare.id).is_none() {
                    spare.set_path(&[]);
                    change = Change::Table;
                }
            }
            change
        })
    }

    /// Returns the spares that the labels list, each with whether it is there.
    #[must_use]
    pub fn spares(&self) -> Vec<(Spare, bool)> {
        let listed = self.label().map_or_else(Vec::new, |label| label.spares);
        let is_there = |spare: &Spare| self.spare_devices().get(spare.id).is_some();
        listed.into_iter().map(|spare| (spare.clone(), is_there(&spare))).collect()
    }
}

impl Volume {
    /// Makes `device`, which is called `id` from now on, a spare. Whatever is on it counts as lost.
    ///
    /// # Errors
    ///
    /// See [`SpareError`].
    pub fn add_spare(&self, device: SharedDevice, id: [u8; 16]) -> Result<(), SpareError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let Some(mut label) = members.label() else { return Ok(()) };
        // For any member that it could stand for; for which it does is seen when it is taken.
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
        // Past that of a creation, which is read as one that was cut off.
        label.sequence += 1;
        let write = || write_label(&device, &label).map_err(SpareError::NewDevice);
        let is_late = planted::is(Planted::SpareListedFirst);
        if !is_late {
            // HS1.
            write()?;
        }
        let mut is_full = false;
        members.change(|_, label| {
            is_full = label.spares.len() >= SPARES_MAX;
            if is_full {
                return Change::Nothing;
            }
            label.spares.push(spare);
            Change::Table
        })?;
        if is_full {
            // Another came between.
            blank_label(&device).map_err(SpareError::NewDevice)?;
            return Err(SpareError::TooMany);
        }
        if is_late {
            write()?;
        }
        members.spare_devices().add(vec![(id, device)]);
        Ok(())
    }

    /// Takes the spare called `id` off the list, and its label off the device, if that is there.
    ///
    /// # Errors
    ///
    /// See [`SpareError`]. What the spare itself says is none: it is a spare no longer.
    pub fn remove_spare(&self, id: [u8; 16]) -> Result<(), SpareError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let mut was_listed = false;
        members.change(|_, label| {
            let before = label.spares.len();
            label.spares.retain(|spare| spare.id != id);
            was_listed = label.spares.len() < before;
            if was_listed { Change::Table } else { Change::Nothing }
        })?;
        if !was_listed {
            return Err(SpareError::NotListed);
        }
        let device = members.spare_devices().get(id);
        members.spare_devices().remove(id);
        // CRASH: no label lists it any more; what is left on it is believed by nobody.
        if let Some(device) = device.filter(|_| !planted::is(Planted::RemovedSpareKeepsLabel))
            && let Err(error) = blank_label(&device)
        {
            tracing::warn!("{error}; the device is a spare no longer, and still has its label");
        }
        Ok(())
    }

    /// Puts a spare into the slot of a member that has failed or is missing, as
    /// [`Volume::begin_replace`] does: of the first of them for which there is one. `None`: nobody
    /// is away, another member is joining, the layouts need what the slots have, or no spare fits.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn take_spare(&self) -> Result<Option<TakenSpare>, DeviceError> {
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
        // Nothing lies there any more, and it goes.
        let goes = label.geometry.reshape.filter(|it| it.towards == Towards::Narrow);
        let going = goes.and_then(|_| label.coming_slot()).map(|(_, slot)| slot);
        let away = away.filter(|slot| Some(*slot) != going);
        let few = if planted::is(Planted::OneSlotAskedForSpares) { 1 } else { usize::MAX };
        for slot in away.take(few) {
            if let Some(taken) = self.take_spare_for(slot, &label, &there)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// The same for one slot.
    fn take_spare_for(
        &self,
        slot: usize,
        label: &Superblock,
        there: &[([u8; 16], SharedDevice)],
    ) -> Result<Option<TakenSpare>, DeviceError> {
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
        // HS2.
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
                Ok(Some(TakenSpare { slot, device: name }))
            }
            Err(ReplaceError::Device(error)) => Err(error),
            // Its layout needs the slot, or another was first: the next turn finds what is so then.
            Err(_) => Ok(None),
        }
    }
}

/// Returns the slots whose members a spare could stand for: those of layouts that can do without
/// one.
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
