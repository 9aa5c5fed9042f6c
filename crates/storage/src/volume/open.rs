//! Several devices become one volume: their labels are read and judged, and a layout is put over
//! the members.

use std::sync::Arc;

use format::geometry::Geometry;
use format::members::{Layout, MemberState};
use format::page::PAGE_BYTES;
use format::superblock::{Superblock, SuperblockError};

use super::Volume;
use super::composite::Composite;
use super::mirror::Mirror;
use super::raid5::Raid5;
use super::set::{MemberSet, Slot};
use crate::convert::to_u64;
use crate::device::{DeviceInfo, SharedDevice};
use crate::members::{self, Found, Judged};
use crate::pool::{PoolError, read_superblock};

/// Which devices are opened, and how.
#[derive(Clone, Debug)]
pub struct Opening {
    /// All that was found of one pool.
    pub devices: Vec<SharedDevice>,
    /// Whether fewer than half of the members that should be current will do.
    pub accepts_missing: bool,
}

impl Opening {
    /// Returns the opening of one device, which may be all that is left of several.
    #[must_use]
    pub fn of_one(device: SharedDevice) -> Opening {
        Opening { devices: vec![device], accepts_missing: false }
    }
}

impl Volume {
    /// Reads the labels of the devices, and returns the space of their pool with what the newest
    /// says. Writes nothing: see [`Volume::leave_absent_behind`].
    ///
    /// # Errors
    ///
    /// What [`read_superblock`] says of any of them; [`PoolError::Members`] if they do not make a
    /// pool.
    pub fn open_members(opening: Opening) -> Result<(Volume, Superblock), PoolError> {
        let mut found = Vec::with_capacity(opening.devices.len());
        for device in &opening.devices {
            let label = read_superblock(device.as_ref())?.current;
            found.push(Found { name: device.info().name.clone(), label });
        }
        let judged = members::judge(&found)?;
        let mut superblock = found.swap_remove(judged.newest).label;
        if superblock.layout == Layout::Single {
            let device = opening.devices.into_iter().nth(judged.newest);
            let device = device.ok_or(members::MembersError::Nothing)?;
            return Ok((Volume::new(device, superblock.geometry.clone()), superblock));
        }
        if !opening.accepts_missing {
            members::check_enough(&judged, &superblock.members)?;
        }
        let slots = slots_of(&mut superblock, &judged, &opening.devices);
        let spares = spares_of(&mut superblock, &judged, &opening.devices);
        let volume = Volume::over(slots, &superblock, Some(superblock.clone()))?;
        if let Some(members) = volume.members() {
            members.spares.add(spares);
        }
        Ok((volume, superblock))
    }

    /// Returns the space of a pool that is being made on `devices`, as `superblock` lays it out.
    ///
    /// # Errors
    ///
    /// [`PoolError::Superblock`] for what this software does not do.
    pub fn of_new(devices: &[SharedDevice], superblock: &Superblock) -> Result<Volume, PoolError> {
        match (superblock.layout, devices) {
            (Layout::Single, [device]) => {
                Ok(Volume::new(Arc::clone(device), superblock.geometry.clone()))
            }
            _ => {
                let slot = |device: &SharedDevice| {
                    Slot::new(Some(Arc::clone(device)), MemberState::Online)
                };
                Volume::over(devices.iter().map(slot).collect(), superblock, None)
            }
        }
    }

    /// Puts the layout over the members.
    fn over(
        slots: Vec<Slot>,
        superblock: &Superblock,
        label: Option<Superblock>,
    ) -> Result<Volume, PoolError> {
        let geometry = &superblock.geometry;
        let info = info_of(&slots, geometry);
        let not = |what| PoolError::Superblock {
            device: info.name.clone(),
            cause: SuperblockError::NotImplemented { what },
        };
        let composite: Arc<dyn Composite> = match superblock.layout {
            Layout::Single => return Err(not("several devices and the layout single")),
            Layout::Mirror if geometry.fragment_bytes() != to_u64(PAGE_BYTES) => {
                return Err(not("a mirror of fragments smaller than 4 KiB"));
            }
            Layout::Mirror => {
                let set = MemberSet::new(slots, label, 1);
                Arc::new(Mirror::new(info, set, geometry.groups_offset))
            }
            Layout::Raid5 { .. } => {
                let stripes = geometry.stripes().ok_or_else(|| not("raid5 without stripes"))?;
                let set = MemberSet::new(slots, label, superblock.members.len() - 1);
                Arc::new(Raid5::new(info, set, stripes))
            }
        };
        let device: SharedDevice = composite;
        Ok(Volume::new(device, geometry.clone()))
    }
}

/// Puts each device into its slot; what the label says of paths becomes what they are.
fn slots_of(superblock: &mut Superblock, judged: &Judged, devices: &[SharedDevice]) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(superblock.members.len());
    for (member, slot) in superblock.members.iter_mut().zip(&judged.slots) {
        let device = match slot {
            members::Slot::Current(at) | members::Slot::Joining(at) => devices.get(*at),
            // MJ3: what has missed writes is not touched.
            members::Slot::Stale(_) | members::Slot::Absent => None,
        };
        if let Some(device) = device.filter(|device| device.info().name.starts_with('/')) {
            member.set_path(device.info().name.as_bytes());
        }
        slots.push(Slot::new(device.map(Arc::clone), member.state));
    }
    slots
}

/// Returns the spares that are there, with what they are called; the same of their paths.
fn spares_of(
    superblock: &mut Superblock,
    judged: &Judged,
    devices: &[SharedDevice],
) -> Vec<([u8; 16], SharedDevice)> {
    let mut found = Vec::new();
    for (spare, at) in superblock.spares.iter_mut().zip(&judged.spares) {
        let Some(device) = at.and_then(|at| devices.get(at)) else { continue };
        if device.info().name.starts_with('/') {
            spare.set_path(device.info().name.as_bytes());
        }
        found.push((spare.id, Arc::clone(device)));
    }
    found
}

/// Returns what the members are together: as small as the smallest, with sectors as large as the
/// largest, and no better than the worst.
fn info_of(slots: &[Slot], geometry: &Geometry) -> DeviceInfo {
    let infos: Vec<&DeviceInfo> =
        slots.iter().filter_map(|slot| Some(slot.device.as_ref()?.info())).collect();
    let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
    DeviceInfo {
        name: names.join(", "),
        size_bytes: geometry.device_bytes,
        sector_bytes: infos.iter().map(|info| info.sector_bytes).max().unwrap_or(512),
        is_read_only: infos.iter().any(|info| info.is_read_only),
        has_write_through: infos.iter().all(|info| info.has_write_through),
        transport: infos.first().map_or("none", |info| info.transport),
    }
}
