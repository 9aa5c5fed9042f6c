//! Devices that have become longer, or are made so: what an open pool uses of them.

use std::collections::BTreeSet;
use std::path::Path;

use engine::{Pool, PoolStatus};
use serde_json::{Value, json};
use storage::device::{Device, FileDevice};
use storage::volume::{Room, why_no_more};

use super::{Served, all_of, cannot_open, devices, failed};
use crate::backend::BackendError;
use crate::control::{DeviceFacts, GrownFacts};
use crate::size::ByteSize;

/// What of a device is left, as a part of it, and at most: twenty times what disks of one size that
/// makers sell differ by.
const SLACK_PART: u64 = 100;
const SLACK_BYTES_MAX: u64 = 1 << 30;
/// It begins and ends at whole pages.
const SLACK_ALIGN_BYTES: u64 = 4096;

/// Returns what is left of a device of `device_bytes` for one that is smaller to replace it.
pub(super) fn slack_of(device_bytes: u64) -> u64 {
    let slack = (device_bytes / SLACK_PART).min(SLACK_BYTES_MAX);
    slack - slack % SLACK_ALIGN_BYTES
}

/// Makes the disk groups longer that have the devices in `names`, or all; files get `size_bytes`
/// first. Returns what each of them has gained: at least one has.
pub(super) fn grow(
    served: &Served,
    names: &[String],
    size_bytes: Option<u64>,
) -> Result<Vec<GrownFacts>, BackendError> {
    if served.mode.is_read_only {
        let words = "it is open for reading alone: mount it for writing to make it longer";
        return Err(failed(&served.path, words));
    }
    let chosen = chosen(served, names)?;
    if let Some(size_bytes) = size_bytes {
        for device in &chosen {
            extend(served, device, size_bytes)?;
        }
    }
    let numbers: BTreeSet<u8> =
        chosen.iter().filter_map(|device| u8::try_from(device.group).ok()).collect();
    let (mut grown, mut refusals) = (Vec::new(), Vec::new());
    for number in numbers {
        match served.pool.grow_disk_group(number) {
            Ok(room) => grown.push(facts_of(&room)),
            Err(error) => refusals.push((number, error.to_string())),
        }
    }
    if grown.is_empty() {
        let mut words: Vec<String> = refusals.into_iter().map(|(_, words)| words).collect();
        if size_bytes.is_some() {
            words.push("the files stay as long as --size made them".to_owned());
        }
        return Err(failed(&served.path, words.join("; ")));
    }
    // Those that were named and did not grow say why.
    let named = refusals.into_iter().filter(|_| !names.is_empty());
    grown.extend(named.map(|(number, words)| GrownFacts {
        group: number.into(),
        limit: Some(words),
        ..GrownFacts::default()
    }));
    grown.sort_by_key(|facts| facts.group);
    Ok(grown)
}

/// Returns the members in `names`, or all.
fn chosen(served: &Served, names: &[String]) -> Result<Vec<DeviceFacts>, BackendError> {
    if names.is_empty() {
        let mut all = devices::list(&served.pool);
        all.retain(|device| !devices::is_spare(device));
        return Ok(all);
    }
    let member = |name: &String| {
        let device = devices::named(served, name)?;
        if devices::is_spare(&device) {
            let words = format!("{} is a spare, and the pool uses nothing of it", device.path);
            return Err(failed(&served.path, words));
        }
        Ok(device)
    };
    names.iter().map(member).collect()
}

/// Makes the file of a member `size_bytes` long; never shorter.
fn extend(served: &Served, device: &DeviceFacts, size_bytes: u64) -> Result<(), BackendError> {
    let path = Path::new(&device.path);
    let files = all_of(&served.files);
    let is_it = |file: &FileDevice, own: &Path| Path::new(&file.info().name) == path || own == path;
    let found = files.iter().find(|(own, file)| is_it(file, own)).map(|(_, file)| file);
    let file = found.ok_or_else(|| failed(path, "the pool does not have it open"))?;
    if file.is_block_device() {
        let words = "it is no file, so --size cannot make it longer: extend the device itself \
                     (lvextend, losetup -c), and leave --size out";
        return Err(failed(path, words));
    }
    let now = file.length_now().map_err(|error| failed(path, error))?;
    if size_bytes < now {
        let (now, wanted) = (ByteSize(now), ByteSize(size_bytes));
        let words = format!("it has {now} already, and never becomes shorter: {wanted} is less");
        return Err(failed(path, words));
    }
    file.extend(size_bytes).map_err(|error| cannot_open(path, error))
}

fn facts_of(room: &Room) -> GrownFacts {
    GrownFacts {
        group: room.disk_group.into(),
        kind: room.layout.word().to_owned(),
        was_bytes: room.member_bytes,
        member_bytes: room.usable_bytes,
        more_bytes: room.more_bytes,
        limit: room.limit.map(why_no_more),
    }
}

/// Returns what the status of a pool says of devices that are longer than what it uses of them:
/// how much more there would be, and the command that uses it.
pub(super) fn room_of(path: &Path, pool: &Pool, status: &PoolStatus) -> Value {
    let rooms = if status.read_only.is_some() { Vec::new() } else { pool.rooms() };
    let rooms = rooms.iter().filter_map(|room| room.as_ref().ok());
    // What a creation left is no room that the user is to be told of.
    let is_told = |room: &&Room| {
        room.usable_bytes - room.member_bytes.min(room.usable_bytes) > slack_of(room.usable_bytes)
    };
    let more_bytes: u64 = rooms.filter(is_told).map(|room| room.more_bytes).sum();
    let command = format!("holdfast device grow {}", path.display());
    json!({ "more_bytes": more_bytes, "command": command })
}
