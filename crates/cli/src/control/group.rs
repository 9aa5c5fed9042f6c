//! What is said of disk groups.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A disk group that is to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGroup {
    /// `single`, `mirror` or `raid5`.
    pub kind: String,
    /// Paths of its devices, as the server finds them.
    pub devices: Vec<PathBuf>,
    /// Size of those that are files and not there yet.
    pub size_bytes: Option<u64>,
    /// Whether what is on them is overwritten.
    pub is_forced: bool,
    /// What it is for: `data`, `metadata`, `journal`; none: data. With `journal` alone, of a
    /// `single` or a `mirror`, the journal moves to it; with `metadata` the metadata does, and the
    /// journal with it where that has no devices of its own.
    #[serde(default)]
    pub roles: Vec<String>,
}

/// What a pool tells of a disk group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroupFacts {
    /// Its number.
    pub number: u64,
    /// `single`, `mirror` or `raid5`.
    pub kind: String,
    /// What it is for: `data`, `metadata`, `journal`; `room-for-metadata` where the metadata could
    /// move to.
    pub roles: Vec<String>,
    /// `online`, `degraded` without a device, `adding` or `leaving`.
    pub state: String,
    /// Where its devices were opened last.
    pub devices: Vec<String>,
    /// Their slots.
    pub slots: Vec<u64>,
    /// Its allocation groups.
    pub allocation_groups: u64,
    /// What it uses of each device.
    pub member_bytes: u64,
    /// What it has room for.
    pub total_bytes: u64,
    /// What of it is in use.
    pub used_bytes: u64,
}

/// What a disk group has gained of devices that have become longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GrownFacts {
    /// Its number.
    pub group: u64,
    /// Its kind.
    pub kind: String,
    /// What it used of each device.
    pub was_bytes: u64,
    /// What it uses of each now.
    pub member_bytes: u64,
    /// What it has room for besides; 0: nothing.
    pub more_bytes: u64,
    /// Why it does not use more.
    pub limit: Option<String>,
}
