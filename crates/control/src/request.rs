//! Requests that change or list parts of an open pool.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ExportSpec, NewGroup, OwnerKind, OwnerLimitsChange, Properties, ScrubEvery, SnapshotCounts,
};

/// Version of the protocol. Rises with each change that an older program would misread.
pub const VERSION: u32 = 1;

/// Request about a pool or its server. Names of filesets are `a/b`, without the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Lists up to 500 filesets and snapshots, by slot.
    FilesetList {
        /// First slot.
        from: u32,
    },
    /// Creates a fileset. The requesting user owns its root directory.
    FilesetCreate {
        /// Fileset name.
        name: String,
        /// Properties. Absent ones are inherited from the parent fileset.
        properties: Properties,
    },
    /// Changes properties of a fileset.
    FilesetSet {
        /// Fileset name.
        name: String,
        /// Properties to change.
        properties: Properties,
    },
    /// Renames a fileset.
    FilesetRename {
        /// Present name.
        name: String,
        /// New name.
        to: String,
    },
    /// Deletes a fileset, which is unreachable at the answer. A job frees its space.
    FilesetDelete {
        /// Fileset name.
        name: String,
    },
    /// Creates a writable clone of a snapshot.
    CloneCreate {
        /// Fileset of the snapshot.
        fileset: String,
        /// Snapshot name, without the fileset's.
        snapshot: String,
        /// Name of the clone.
        to: String,
    },
    /// Reverts a fileset to a snapshot. Returns the names of its later snapshots, which stay.
    FilesetRestore {
        /// Fileset name.
        fileset: String,
        /// Snapshot name, without the fileset's.
        snapshot: String,
    },
    /// Transfers to a clone the snapshots that it descends from. Returns their new names.
    FilesetPromote {
        /// Name of the clone.
        name: String,
    },
    /// Declares, on the operator's word, that a leaving fileset stays, or that an arrived one's
    /// move is complete. The other pool is not consulted.
    FilesetHere {
        /// Fileset name.
        name: String,
    },
    /// Discards an incomplete stream to a fileset.
    ReceiveAbort {
        /// Fileset name.
        name: String,
    },
    /// Takes a snapshot of a fileset.
    SnapshotCreate {
        /// Fileset name.
        fileset: String,
        /// Name of the snapshot, without the fileset's.
        snapshot: String,
    },
    /// Takes snapshots of a fileset and of all filesets below it, at one moment. Returns their
    /// names.
    SnapshotCreateBelow {
        /// Fileset name.
        fileset: String,
        /// Name of each snapshot, without the fileset's.
        snapshot: String,
    },
    /// Sets or removes a hold, which protects a snapshot from deletion.
    SnapshotHold {
        /// Fileset name.
        fileset: String,
        /// Snapshot name, without the fileset's.
        snapshot: String,
        /// Name of the hold.
        hold: String,
        /// Whether to set or remove the hold.
        is_held: bool,
    },
    /// Deletes a snapshot, which is unreachable at the answer.
    SnapshotDelete {
        /// Fileset name.
        fileset: String,
        /// Snapshot name, without the fileset's.
        snapshot: String,
        /// Identity, as 32 hexadecimal digits. A snapshot of equal name and another identity is
        /// refused. Absent for any identity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uuid: Option<String>,
    },
    /// Returns the bytes that only this snapshot holds. Delays writers to the fileset for a moment,
    /// so the request counts as a change.
    SnapshotUnique {
        /// Fileset name.
        fileset: String,
        /// Snapshot name, without the fileset's.
        snapshot: String,
    },
    /// Gives the pool another name.
    PoolRename {
        /// New name.
        name: String,
    },
    /// Lists the devices.
    DeviceList {},
    /// Marks a device as failed.
    DeviceFail {
        /// Path, slot or id.
        device: String,
    },
    /// Resets error counts of a device, and forgets failed devices that have been replaced.
    DeviceClear {
        /// Path, slot or id of the device. Absent for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Replaces a device. A job copies the data.
    DeviceReplace {
        /// Path, slot or id of the old device.
        old: String,
        /// Path of the new device on the server.
        new: PathBuf,
        /// Whether to overwrite the contents of the new device.
        is_forced: bool,
    },
    /// Brings back an absent device. A job rebuilds its stale ranges.
    DeviceOnline {
        /// Slot or id of the device, or its path on the server.
        device: String,
    },
    /// Adds a spare.
    DeviceAdd {
        /// Device path on the server.
        device: PathBuf,
        /// Whether to overwrite its contents.
        is_forced: bool,
    },
    /// Adds a device to a disk group: as a further copy of a single or mirror (a job copies the
    /// data), as a further member of a raid5 or stripe (a job moves segments to it), or as a
    /// further member of a round-robin group.
    DeviceAttach {
        /// Path, slot or id of a member of the disk group.
        beside: String,
        /// Device path on the server.
        device: PathBuf,
        /// Size of the file to create if the path does not exist. Absent for the size needed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size_bytes: Option<u64>,
        /// Whether to overwrite its contents.
        is_forced: bool,
        /// Whether to widen a raid5 or stripe, instead of copying a single or mirror.
        #[serde(default)]
        is_spread: bool,
        /// Whether to extend a round-robin group, or a single that becomes one.
        #[serde(default)]
        is_in_turn: bool,
    },
    /// Removes a member from a mirror at once, or from a raid5, stripe or round-robin group by a
    /// job.
    DeviceDetach {
        /// Path, slot or id.
        device: String,
        /// Whether the pool may be left with one copy of its data.
        accepts_no_redundancy: bool,
    },
    /// Removes a spare.
    DeviceRemove {
        /// Path or id of the spare.
        device: String,
    },
    /// Uses the full length of devices that have become longer.
    DeviceGrow {
        /// Path, slot or id of each device. Empty for all of the pool.
        devices: Vec<String>,
        /// Length to extend files to first.
        #[serde(default)]
        size_bytes: Option<u64>,
    },
    /// Lists the disk groups.
    GroupList {},
    /// Adds a disk group.
    GroupAdd(NewGroup),
    /// Starts to remove a disk group. A job moves its contents.
    GroupRemove {
        /// Disk group number.
        group: u8,
    },
    /// Moves the metadata to a disk group with room for it, which becomes the main one.
    GroupMetadata {
        /// Disk group number.
        group: u8,
    },
    /// Starts a scrub, or continues the present one.
    Scrub {},
    /// Returns the report of the last scrub.
    ScrubStatus {},
    /// Starts to discard all free space, or continues the present trim.
    Trim {},
    /// Returns the report of the last trim.
    TrimStatus {},
    /// Lists the jobs, except those that are always present (standing jobs).
    JobList {},
    /// Pauses or resumes a job.
    JobPause {
        /// Number of the job.
        job: u64,
        /// Whether to pause or resume.
        is_paused: bool,
    },
    /// Sets a job's share of the time.
    JobPace {
        /// Number of the job.
        job: u64,
        /// Percent, 1 to 100. Null for 100 percent while the pool is idle, and 50 percent while it
        /// serves requests.
        percent: Option<u8>,
    },
    /// Lists up to 100 of the server's exports of this pool, by name.
    ExportList {
        /// Name of the last export on the previous page. Empty for the first page.
        after: String,
    },
    /// Adds an export and stores it for later servers.
    ExportAdd {
        /// Rules of the export.
        export: ExportSpec,
    },
    /// Removes an export. Its handles become stale.
    ExportRemove {
        /// Name of the export.
        name: String,
    },
    /// Lists the connected clients, by address.
    ClientList {},
    /// Lists up to 500 file locks of shared mounts, those that wait first, the oldest first.
    LockList {},
    /// Counts operations by kind, since the server started.
    OperationList {},
    /// Counts requests by directory since the observer's previous poll. An unknown number in `look`
    /// adds an observer.
    PathList {
        /// Number of the observer, drawn at random by the client.
        look: u64,
        /// Number of path components below the root of the mount or export that distinguish
        /// directories. At most 8.
        depth: u8,
        /// Time in milliseconds for which the observer is kept without another poll, at most
        /// 600,000. 0 removes the observer.
        lasts_ms: u64,
    },
    /// Lists slow requests from sequence number `after` on.
    SlowList {
        /// Number of the observer, drawn at random by the client. A request replaces its observer's
        /// earlier limit.
        wish: u64,
        /// First sequence number.
        after: u64,
        /// Shortest latency, in microseconds.
        from_us: u64,
        /// Time in milliseconds for which the limit applies without another poll, at most 600,000.
        /// 0 ends the limit. Without any, requests of 250 ms or more are kept.
        lasts_ms: u64,
    },
    /// Sets the snapshot schedule of a fileset, and stores it for later servers.
    ScheduleSet {
        /// Fileset name.
        fileset: String,
        /// Snapshots to keep of each kind. All 0 removes the schedule.
        keep: SnapshotCounts,
        /// Whether to remove the schedules of deleted filesets of this name. `keep` must then be
        /// all 0.
        #[serde(default)]
        is_gone: bool,
    },
    /// Lists the snapshot schedules of this pool.
    ScheduleList {},
    /// Sets how often the pool is scrubbed, and stores it for later servers.
    ScrubScheduleSet {
        /// Interval. Null for the default.
        every: Option<ScrubEvery>,
    },
    /// Returns the scrub interval and the time of the next scrub.
    ScrubSchedule {},
    /// Sends a test notice to all receivers and returns the results.
    NotifyTest {},
    /// Turns quotas on and counts usage, which takes some seconds. Poll until the state is `on`:
    /// limits are enforced from then on.
    QuotaOn {
        /// Fileset name.
        fileset: String,
    },
    /// Turns quotas off. Limits are kept.
    QuotaOff {
        /// Fileset name.
        fileset: String,
    },
    /// Sets limits of a user, group or project.
    QuotaSet {
        /// Fileset name.
        fileset: String,
        /// Kind of `id`.
        kind: OwnerKind,
        /// Id of the user, group or project.
        id: u32,
        /// Limits to change.
        limits: OwnerLimitsChange,
    },
    /// Sets grace periods.
    QuotaGrace {
        /// Fileset name.
        fileset: String,
        /// Grace period of bytes.
        blocks_seconds: Option<u64>,
        /// Grace period of inodes.
        inodes_seconds: Option<u64>,
    },
    /// Assigns a file to a project. New files in a directory inherit it.
    QuotaProject {
        /// Fileset name.
        fileset: String,
        /// Path in the fileset. Empty for its root directory.
        path: String,
        /// Id of the project. 0 for none.
        project: u32,
        /// Whether to assign all files below, too.
        is_recursive: bool,
    },
    /// Returns usage and limits of up to 500 users, groups or projects, by id.
    QuotaReport {
        /// Fileset name.
        fileset: String,
        /// Kind of the ids.
        kind: OwnerKind,
        /// First id.
        from: u32,
    },
    /// Sets the placement of a file's new data. New files in a directory inherit it.
    PlacementSet {
        /// Fileset name.
        fileset: String,
        /// Path in the fileset. Empty for its root directory.
        path: String,
        /// `any`, the number of a disk group, `round-robin` or `striped`.
        placement: String,
        /// Whether to set it for all files below, too.
        is_recursive: bool,
    },
    /// Returns the placement of a file's new data.
    PlacementShow {
        /// Fileset name.
        fileset: String,
        /// Path in the fileset. Empty for its root directory.
        path: String,
    },
    /// Reloads the server's configuration.
    Reload {},
}

impl Request {
    /// Parses a request of protocol version `version`.
    pub fn parse(version: u32, value: Value) -> Result<Request, String> {
        parse_as(version, value)
    }

    /// Whether the request changes anything, delays other requests, or reveals facts about a path
    /// that it names.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Request::FilesetList { .. }
                | Request::JobList {}
                | Request::ExportList { .. }
                | Request::ClientList {}
                | Request::LockList {}
                | Request::DeviceList {}
                | Request::GroupList {}
                | Request::ScrubStatus {}
                | Request::TrimStatus {}
                | Request::OperationList {}
                | Request::PathList { .. }
                | Request::SlowList { .. }
                | Request::ScheduleList {}
                | Request::ScrubSchedule {}
                | Request::QuotaReport { .. }
        )
    }
}

/// Parses a request of another type than [`Request`].
pub fn parse_as<T: serde::de::DeserializeOwned>(version: u32, value: Value) -> Result<T, String> {
    if version != VERSION {
        return Err(other_version(version));
    }
    serde_json::from_value(value).map_err(|error| format!("the request is refused: {error}"))
}

fn other_version(version: u32) -> String {
    format!(
        "the request has version {version} and the server knows {VERSION}: run the `holdfast` that \
         serves the pool, or mount it again with this one"
    )
}
