//! Facts about devices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of a device. Counts begin when the pool is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFacts {
    /// Slot of a member. Spares have the numbers after the last slot.
    pub slot: u64,
    /// Number of the disk group. 0 for a spare.
    #[serde(default)]
    pub group: u64,
    /// Identity, as 32 hexadecimal digits.
    pub id: String,
    /// Path of the last open. Empty if unknown.
    pub path: String,
    /// `online`, `missing`, `failed` or `joining` for a member. `spare` or `spare away` (absent)
    /// for a spare.
    pub state: String,
    /// Size in bytes when the device joined, or when the pool last grew.
    pub size_bytes: u64,
    /// Bytes of the device in use by the pool.
    pub pool_bytes: u64,
    /// The part of `pool_bytes` that the rebuild of a joining device has passed, unchanged ranges
    /// included.
    pub copied_bytes: u64,
    /// The part of `pool_bytes` written while the device was absent. A device that comes back is
    /// rebuilt only there and in the fixed regions.
    #[serde(default)]
    pub missed_bytes: u64,
    /// Blocks and pages that no other device could supply for the rebuild, since the pool was
    /// opened.
    #[serde(default)]
    pub lost: u64,
    /// Some of the lost blocks and pages. Files by their paths.
    #[serde(default)]
    pub lost_names: Vec<String>,
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Ranges that did not verify.
    pub checksum_errors: u64,
    /// Ranges rewritten from another device's copy.
    pub repaired: u64,
}
