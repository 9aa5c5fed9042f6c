//! Growth of a pool after its devices have become longer.

use std::collections::BTreeSet;
use std::path::Path;

use engine::{Pool, PoolStatus};
use serde_json::{Value, json};
use storage::device::{Device, FileDevice};
use storage::volume::{PossibleGrowth, why_no_more};

use super::{EnginePool, all_of, cannot_open, devices, failed};
use crate::backend::BackendError;
use control::size::ByteSize;
use control::{DeviceFacts, GroupGrowthFacts};

/// The slack at the end of a device is this fraction of it, up to a maximum. That is twenty times
/// the difference between disks sold as one size.
const SLACK_PART: u64 = 100;
const SLACK_BYTES_MAX: u64 = 1 << 30;
const SLACK_ALIGN_BYTES: u64 = 4096;

pub(super) fn slack_of(device_bytes: u64) -> u64 {
    let slack = (device_bytes / SLACK_PART).min(SLACK_BYTES_MAX);
    slack - slack % SLACK_ALIGN_BYTES
}

/// Grows the disk groups of the devices in `names`, or all groups. Files are first extended to
/// `size_bytes`. Returns the growth of each group, and fails if no group grew.
pub(super) fn grow(
    served: &EnginePool,
    names: &[String],
    size_bytes: Option<u64>,
) -> Result<Vec<GroupGrowthFacts>, BackendError> {
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
        match served.pool.devices().grow_disk_group(number) {
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
    // If the user named devices, the refusals of their groups are listed too.
    let named = refusals.into_iter().filter(|_| !names.is_empty());
    grown.extend(named.map(|(number, words)| GroupGrowthFacts {
        group: number.into(),
        limit: Some(words),
        ..GroupGrowthFacts::default()
    }));
    grown.sort_by_key(|facts| facts.group);
    Ok(grown)
}

fn chosen(served: &EnginePool, names: &[String]) -> Result<Vec<DeviceFacts>, BackendError> {
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

fn extend(served: &EnginePool, device: &DeviceFacts, size_bytes: u64) -> Result<(), BackendError> {
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

fn facts_of(room: &PossibleGrowth) -> GroupGrowthFacts {
    GroupGrowthFacts {
        group: room.disk_group.into(),
        kind: room.layout.word().to_owned(),
        was_bytes: room.member_bytes,
        member_bytes: room.usable_bytes,
        more_bytes: room.more_bytes,
        limit: room.limit.map(why_no_more),
    }
}

pub(super) fn room_of(path: &Path, pool: &Pool, status: &PoolStatus) -> Value {
    let rooms = if status.read_only.is_some() { Vec::new() } else { pool.devices().rooms() };
    let rooms = rooms.iter().filter_map(|room| room.as_ref().ok());
    // Slack that was left on purpose at the creation does not count.
    let is_told = |room: &&PossibleGrowth| {
        room.usable_bytes - room.member_bytes.min(room.usable_bytes) > slack_of(room.usable_bytes)
    };
    let more_bytes: u64 = rooms.filter(is_told).map(|room| room.more_bytes).sum();
    let command = format!("holdfast device grow {}", path.display());
    json!({ "more_bytes": more_bytes, "command": command })
}
