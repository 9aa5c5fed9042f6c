//! Administrative requests about the disk groups of an open pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{DiskGroupError, DiskGroupStatus, Pool};
use format::disk_group::{DiskGroupRoles, DiskGroupState};
use format::members::Layout;
use format::stripes::{StripeShape, UNIT_SHIFT_DEFAULT};
use serde_json::{Value, json};
use storage::device::{FileDevice, FileOptions, SharedDevice};
use storage::volume;

use super::devices::is_spare;
use super::{EnginePool, devices, failed, random_bytes};
use crate::backend::BackendError;
use control::{GroupFacts, NewGroup};

pub(super) fn list(path: &Path, pool: &Pool) -> Result<Vec<GroupFacts>, BackendError> {
    let groups = pool.devices().disk_groups().map_err(|error| failed(path, error))?;
    let devices = devices::list(pool);
    let facts = |group: DiskGroupStatus| {
        let is_own = |slot: u64| usize::try_from(slot).is_ok_and(|at| group.slots.contains(at));
        let own = || devices.iter().filter(|device| is_own(device.slot) && !is_spare(device));
        // An online group with an absent device is shown as degraded, as in `status`.
        let is_degraded = own().any(|device| device.state != "online");
        let is_online = group.state == DiskGroupState::Online;
        let state = if is_online && is_degraded { "degraded" } else { group.state.word() };
        GroupFacts {
            number: u64::from(group.number),
            kind: group.layout.word().to_owned(),
            roles: roles_of(&group).iter().map(|&role| role.to_owned()).collect(),
            state: state.to_owned(),
            devices: own().map(|device| device.path.clone()).collect(),
            slots: group.slots.iter().filter_map(|slot| u64::try_from(slot).ok()).collect(),
            allocation_groups: u64::from(group.allocation_groups),
            member_bytes: group.member_bytes,
            total_bytes: group.total_bytes,
            used_bytes: group.used_bytes,
        }
    };
    Ok(groups.into_iter().map(facts).collect())
}

fn roles_of(group: &DiskGroupStatus) -> Vec<&'static str> {
    let all = [
        (group.has_data, "data"),
        (group.is_main, "metadata"),
        (group.can_be_main() && !group.is_main, "room-for-metadata"),
        (group.has_journal, "journal"),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, role)| role).collect()
}

pub(super) fn space_of(group: &DiskGroupStatus) -> Value {
    json!({
        "number": group.number,
        "kind": group.layout.word(),
        "roles": roles_of(group),
        "state": group.state.word(),
        "slots": group.slots.iter().collect::<Vec<usize>>(),
        "total_bytes": group.total_bytes,
        "used_bytes": group.is_counted.then_some(group.used_bytes),
    })
}

pub(super) fn add(served: &EnginePool, new: &NewGroup) -> Result<Vec<GroupFacts>, BackendError> {
    // The segment length of the pool is fixed, so a wide stripe gets a smaller unit.
    let unit_shift = |has_parity| {
        let members = u8::try_from(new.devices.len()).unwrap_or(u8::MAX);
        let shape = StripeShape { members, unit_shift: UNIT_SHIFT_DEFAULT, has_parity };
        shape.fitted(served.pool.status().geometry.segment_bytes()).unit_shift
    };
    let layout = match new.kind.as_str() {
        "single" => Layout::Single,
        "mirror" => Layout::Mirror,
        "round-robin" => Layout::RoundRobin,
        "stripe" => Layout::Stripe { unit_shift: unit_shift(false) },
        "raid5" => Layout::Raid5 { unit_shift: unit_shift(true) },
        kind => return Err(failed(&served.path, format!("there is no kind {kind}"))),
    };
    let mut made = Vec::new();
    let added = add_on(served, layout, new, &mut made);
    let number = added.inspect_err(|_| {
        for path in &made {
            let _ = std::fs::remove_file(path);
        }
    })?;
    let mut groups = list(&served.path, &served.pool)?;
    groups.retain(|group| group.number == u64::from(number));
    Ok(groups)
}

fn add_on(
    served: &EnginePool,
    layout: Layout,
    new: &NewGroup,
    made: &mut Vec<PathBuf>,
) -> Result<u8, BackendError> {
    let twice = |path: &PathBuf| new.devices.iter().filter(|other| *other == path).count() > 1;
    if let Some(path) = new.devices.iter().find(|path| twice(path)) {
        return Err(failed(path, "it is named twice: a device is in one place, so name each once"));
    }
    let random = random_bytes()?;
    let mut files = Vec::with_capacity(new.devices.len());
    let devices = Vec::with_capacity(new.devices.len());
    let mut group = volume::DiskGroupSpec { layout, devices, roles: roles_asked(served, new)? };
    for (number, path) in (0..).zip(&new.devices) {
        devices::refuse_own(served, path)?;
        let device = device_for(path, new, made)?;
        let mut id: [u8; 16] = *random.first_chunk().expect("16 of 64 bytes");
        id[0] ^= number;
        let shared: SharedDevice = Arc::<FileDevice>::clone(&device);
        group.devices.push((shared, id));
        files.push((path.clone(), device));
    }
    let added = served.pool.devices().add_disk_group(&group);
    // Even after an error the devices may be in the labels already.
    if added.as_ref().map_or_else(DiskGroupError::may_be_listed, |_| true) {
        made.clear();
        for (path, device) in files {
            served.watch(&path, &device);
        }
    }
    added.map_err(|error| failed(&served.path, error))
}

/// Returns the roles of a new disk group. Refuses the role `metadata` without `journal`, unless the
/// journal has its own devices, because the two would be separated.
fn roles_asked(served: &EnginePool, new: &NewGroup) -> Result<DiskGroupRoles, BackendError> {
    let known = ["data", "metadata", "journal"];
    let has = |role: &str| new.roles.iter().any(|asked| asked == role);
    if let Some(role) = new.roles.iter().find(|role| !known.contains(&role.as_str())) {
        return Err(failed(&served.path, format!("there is no role {role}")));
    }
    let is_apart = served.pool.status().geometry.journal_group.is_some();
    let why = match (has("metadata"), has("journal"), is_apart) {
        (true, true, true) => {
            "the journal has devices of its own, and stays there: leave journal \
                               out of the roles, or remove its disk group first"
        }
        (true, false, false) => {
            "the journal lies with the metadata, and would move with it: add \
                                 journal to the roles, or first give it devices of its own"
        }
        (false, true, _) if has("data") => "the journal lies with the metadata or alone",
        _ => {
            let data = has("data") || new.roles.is_empty();
            return Ok(DiskGroupRoles { data, metadata: has("metadata"), journal: has("journal") });
        }
    };
    Err(failed(&served.path, why))
}

fn device_for(
    path: &Path,
    new: &NewGroup,
    made: &mut Vec<PathBuf>,
) -> Result<Arc<FileDevice>, BackendError> {
    if path.exists() {
        return devices::blank(path, new.is_forced, "group add --force");
    }
    let size_bytes = new.size_bytes.ok_or_else(|| BackendError::Option {
        option: "--size",
        reason: format!("{} is not there yet: say how large to make it", path.display()),
    })?;
    let device = FileDevice::create(path, size_bytes & !4095, FileOptions::default())
        .map_err(|error| super::cannot_open(path, error))?;
    made.push(path.to_owned());
    Ok(device)
}
