//! Answers to requests, and the facts they list.

use crate::{
    AccountFacts, ClientFacts, DeviceFacts, ExportFacts, FilesetFacts, GroupFacts,
    GroupGrowthFacts, LocksFacts, OperationFacts, PathsFacts, QuotaFacts, ScrubResult,
    ScrubSchedule, SlowList, SnapshotSchedule,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The change is durable.
    Done,
    /// Number of files changed.
    Count(u64),
    /// Placement of new data: `any`, the number of a disk group, `round-robin` or `striped`.
    Placement(String),
    /// State of a fileset's quotas.
    Quota(QuotaFacts),
    /// Usage of users, groups or projects.
    QuotaAccounts {
        /// State of the fileset's quotas.
        quota: QuotaFacts,
        /// Accounts, by rising id.
        list: Vec<AccountFacts>,
        /// First id of the next request. Null after the last account.
        next: Option<u32>,
    },
    /// Filesets, by slot.
    Filesets {
        /// The filesets.
        list: Vec<FilesetFacts>,
        /// First slot of the next request. Null after the last fileset.
        next: Option<u32>,
    },
    /// Jobs, oldest first.
    Jobs(Vec<JobFacts>),
    /// Exports, by name.
    Exports {
        /// The exports.
        list: Vec<ExportFacts>,
        /// Whether more exports follow the last one.
        has_more: bool,
    },
    /// Clients, by address.
    Clients(Vec<ClientFacts>),
    /// File locks of shared mounts.
    Locks(LocksFacts),
    /// Counts of operations, by kind.
    Operations(Vec<OperationFacts>),
    /// Counts of requests, by directory.
    Paths(PathsFacts),
    /// Slow requests.
    Slow(SlowList),
    /// Snapshot schedules, by fileset.
    Schedules(Vec<SnapshotSchedule>),
    /// Scrub interval and next scrub.
    ScrubSchedule(ScrubSchedule),
    /// The change is durable. Names of the filesets or snapshots concerned.
    Names(Vec<String>),
    /// Result of a test notice for each receiver.
    Told(Vec<NoticeTestFacts>),
    /// Number of bytes.
    Bytes(u64),
    /// Devices, by slot.
    Devices(Vec<DeviceFacts>),
    /// Disk groups, by number.
    Groups(Vec<GroupFacts>),
    /// Growth of disk groups, by number.
    Grown(Vec<GroupGrowthFacts>),
    /// Report of the last scrub since the pool was opened. Null if there was none.
    Scrub(Option<ScrubFacts>),
    /// Report of the last trim since the pool was opened. Null if there was none.
    Trim(Option<TrimFacts>),
}

/// Progress of a trim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TrimFacts {
    /// Bytes of free segments discarded.
    pub discarded_bytes: u64,
    /// Bytes of free segments on devices without support for discards.
    pub refused_bytes: u64,
    /// Bytes of the pool in stripes, which are not discarded.
    pub striped_bytes: u64,
    /// Failed discards.
    pub failed: u64,
    /// Whether the trim has ended.
    pub is_done: bool,
}

/// Result of a test notice for one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NoticeTestFacts {
    /// The receiver: `command /usr/bin/logger`, `webhook http://...`.
    pub receiver: String,
    /// Whether the delivery succeeded.
    pub ok: bool,
    /// Cause of the failure.
    pub error: Option<String>,
}

/// Progress and findings of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubFacts {
    /// Bytes of the pool scrubbed.
    pub read_bytes: u64,
    /// The part of `read_bytes` scrubbed before this mount. Its findings are in the log of that
    /// mount's server.
    #[serde(default)]
    pub read_before: u64,
    /// Pages of 4 KiB that differed between devices.
    pub differing: u64,
    /// Pages and blocks rewritten.
    pub repaired: u64,
    /// Pages and blocks without a copy that verifies.
    pub lost: u64,
    /// Pages and blocks without a verified copy, but with an unreadable copy that may become
    /// readable again when its device returns.
    #[serde(default)]
    pub unread: u64,
    /// Pages and blocks with a good copy and a bad one that could not be rewritten.
    #[serde(default)]
    pub unwritten: u64,
    /// Pages that differ between devices but are unused.
    pub unused: u64,
    /// Ranges of stripes with rewritten parity.
    #[serde(default)]
    pub parities: u64,
    /// Bytes verified only by checksums, because a device of their raid5 was absent.
    #[serde(default)]
    pub uncompared_bytes: u64,
    /// Names of the absent devices of `uncompared_bytes`.
    #[serde(default)]
    pub away: Vec<String>,
    /// Some of the lost, unreadable or unwritten pages and blocks. Files by their paths.
    #[serde(default)]
    pub names: Vec<String>,
    /// Whether the scrub has ended.
    pub is_done: bool,
    /// End of the scrub, in seconds since 1970. Null while it runs.
    #[serde(default)]
    pub ended_seconds: Option<u64>,
    /// Reason why the scrub waits. It resumes by itself.
    #[serde(default)]
    pub waits: Option<String>,
}

impl ScrubFacts {
    /// Returns the result, if the scrub has ended.
    #[must_use]
    pub fn result(&self) -> Option<ScrubResult> {
        let damaged = self.lost + self.unread + self.unwritten;
        let ended_seconds = self.ended_seconds?;
        Some(ScrubResult { ended_seconds, repaired: self.repaired, damaged })
    }
}

/// State of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobFacts {
    /// Number of the job since the mount.
    pub id: u64,
    /// Name for people.
    pub name: String,
    /// Work done, in the job's own unit.
    pub done: u64,
    /// Total work, in the unit of `done`. 0 if unknown.
    pub total: u64,
    /// Estimated time to the end. Null if unknown.
    pub ends_in_seconds: Option<u64>,
    /// Whether the job is paused by request.
    pub is_paused: bool,
    /// Share of the time in percent. Null for the automatic pace (see `job-pace`).
    pub pace_percent: Option<u8>,
    /// Cause of a failure that stopped the job.
    pub failure: Option<String>,
}
