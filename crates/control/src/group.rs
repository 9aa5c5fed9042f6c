//! Facts about disk groups.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A disk group to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// `single`, `mirror`, `round-robin`, `stripe` or `raid5`.
    pub kind: String,
    /// Paths of the devices on the server.
    pub devices: Vec<PathBuf>,
    /// Size of the files to create for paths that do not exist.
    pub size_bytes: Option<u64>,
    /// Whether to overwrite the contents of the devices.
    pub is_forced: bool,
    /// Roles: `data`, `metadata`, `journal`. Empty for `data`. The role `journal` alone, of a
    /// `single` or a `mirror`, moves the journal there. The role `metadata` moves the metadata
    /// there. It needs the role `journal` too, unless the journal has its own devices.
    #[serde(default)]
    pub roles: Vec<String>,
}

/// State of a disk group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupFacts {
    /// Disk group number.
    pub number: u64,
    /// `single`, `mirror`, `round-robin`, `stripe` or `raid5`.
    pub kind: String,
    /// Roles: `data`, `metadata`, `journal`. `room-for-metadata` if the metadata could move there.
    pub roles: Vec<String>,
    /// `online`, `degraded` (a device is absent), `adding` or `leaving`.
    pub state: String,
    /// Paths of the devices at their last open.
    pub devices: Vec<String>,
    /// Slots of the devices.
    pub slots: Vec<u64>,
    /// Number of allocation groups.
    pub allocation_groups: u64,
    /// Bytes used of each device.
    pub member_bytes: u64,
    /// Capacity in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
}

/// Growth of a disk group whose devices have become longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupGrowthFacts {
    /// Disk group number.
    pub group: u64,
    /// Kind of the disk group.
    pub kind: String,
    /// Bytes used of each device before the growth.
    pub was_bytes: u64,
    /// Bytes used of each device after the growth.
    pub member_bytes: u64,
    /// Additional capacity. 0 for none.
    pub more_bytes: u64,
    /// Reason why the disk group does not grow further.
    pub limit: Option<String>,
}
