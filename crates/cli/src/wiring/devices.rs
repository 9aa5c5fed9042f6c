//! What is asked of the devices of an open pool.

use std::path::Path;
use std::sync::Arc;

use engine::{MemberStatus, Pool};
use format::geometry::Geometry;
use storage::device::{Device, FileDevice, FileOptions, RequestKind};
use storage::pool::check_writable;
use storage::volume::ReplaceError;

use super::blank::what_is_there;
use super::neighbours::ThisMachine;
use super::{Served, cannot_open, cannot_use, failed, open_device_with, random_bytes};
use crate::backend::BackendError;
use crate::control::DeviceFacts;

/// Returns the devices of a pool; of one device what can be told of it.
pub(super) fn list(pool: &Pool) -> Vec<DeviceFacts> {
    let status = pool.status();
    let pool_bytes = status.geometry.member_bytes();
    let mut devices: Vec<DeviceFacts> =
        status.members.iter().map(|member| facts_of(member, &status.geometry)).collect();
    if devices.is_empty() {
        devices.push(DeviceFacts {
            path: status.device,
            state: "online".to_owned(),
            size_bytes: pool_bytes,
            pool_bytes,
            ..DeviceFacts::default()
        });
    }
    devices
}

pub(super) fn facts_of(status: &MemberStatus, geometry: &Geometry) -> DeviceFacts {
    let MemberStatus { slot, member, counts, rebuilt } = status;
    let pool_bytes = geometry.member_bytes();
    let rebuilt = rebuilt.clone().unwrap_or_default();
    // The cursor is in MiB of the pool; in stripes a device has a share of each.
    let walked = u128::from(member.copied_mib) << 20;
    let share = walked * u128::from(pool_bytes) / u128::from(geometry.device_bytes.max(1));
    let io = |kind| counts.io.of_kind(kind);
    DeviceFacts {
        slot: u64::try_from(*slot).unwrap_or(0),
        id: member.id.iter().map(|byte| format!("{byte:02x}")).collect(),
        path: format::text::shown(&member.path),
        state: member.state.word().to_owned(),
        size_bytes: member.size_bytes,
        pool_bytes,
        copied_bytes: u64::try_from(share).unwrap_or(pool_bytes),
        lost: rebuilt.lost,
        lost_names: rebuilt.names,
        reads: io(RequestKind::Read).requests,
        read_bytes: io(RequestKind::Read).bytes,
        writes: io(RequestKind::Write).requests,
        written_bytes: io(RequestKind::Write).bytes,
        flushes: io(RequestKind::Flush).requests,
        read_errors: counts.read_errors,
        write_errors: counts.write_errors,
        checksum_errors: counts.checksum_errors,
        repaired: counts.repaired,
    }
}

/// Returns the slot of the device that `name` names: by its path, slot or id.
fn slot_of(served: &Served, name: &str) -> Result<usize, BackendError> {
    let devices = list(&served.pool);
    let is_it = |device: &&DeviceFacts| {
        device.path == name || device.id == name || device.slot.to_string() == name
    };
    let found = devices.iter().find(is_it).and_then(|device| usize::try_from(device.slot).ok());
    found.ok_or_else(|| {
        let pool = served.path.display();
        let words = format!("there is no device {name}: `holdfast device list {pool}` shows them");
        failed(&served.path, words)
    })
}

fn refused(served: &Served, error: &ReplaceError) -> BackendError {
    failed(&served.path, error)
}

pub(super) fn fail(served: &Served, name: &str) -> Result<(), BackendError> {
    let slot = slot_of(served, name)?;
    served.pool.fail_member(slot).map_err(|error| refused(served, &error))
}

pub(super) fn replace(
    served: &Served,
    old: &str,
    new: &Path,
    is_forced: bool,
) -> Result<(), BackendError> {
    let slot = slot_of(served, old)?;
    let id = *random_bytes()?.first_chunk().expect("16 of 64 bytes");
    let was_there = new.exists();
    let device = device_for(served, new, is_forced)?;
    let begun = served.pool.replace_member(slot, Arc::<FileDevice>::clone(&device), id);
    begun.map_err(|error| {
        // Where there was nothing before, nothing is left behind.
        if !was_there {
            let _ = std::fs::remove_file(new);
        }
        refused(served, &error)
    })?;
    served.watch(new, device);
    Ok(())
}

/// Opens the device that is to take the place of another, and refuses one that is used.
fn device_for(
    served: &Served,
    new: &Path,
    is_forced: bool,
) -> Result<Arc<FileDevice>, BackendError> {
    if !new.exists() {
        let size_bytes = served.pool.status().geometry.member_bytes();
        return FileDevice::create(new, size_bytes, FileOptions::default())
            .map_err(|error| cannot_open(new, error));
    }
    let device = open_device_with(new, FileOptions::default())?;
    check_writable(device.as_ref()).map_err(|error| cannot_use(new, &error))?;
    let found = what_is_there(new, &device).map_err(|error| failed(new, error))?;
    if let (Some(found), false) = (found, is_forced) {
        let words = format!(
            "there is {found}: check the path (`device replace --force` overwrites what is there)"
        );
        return Err(failed(new, words));
    }
    let shared: storage::device::SharedDevice = Arc::<FileDevice>::clone(&device);
    storage::heartbeat::wait_until_free(&shared, &ThisMachine)
        .map_err(|error| cannot_use(new, &error))?;
    let needed = served.pool.status().geometry.member_bytes();
    if device.info().size_bytes < needed {
        let words = format!("{} bytes, and a member has {needed}", device.info().size_bytes);
        return Err(failed(new, format!("{words}: give a larger device")));
    }
    Ok(device)
}
