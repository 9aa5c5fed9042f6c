//! Requests for and facts about quotas of users, groups and projects.

use format::quota::QuotaKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most accounts of one answer. A client requests the rest from the next id on.
pub const ACCOUNTS_MAX: usize = 500;

/// Kind of the owner that a quota applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerKind {
    /// Owner of the files.
    User,
    /// Group of the files.
    Group,
    /// Project of the files.
    Project,
}

impl OwnerKind {
    /// Returns the kind as stored in quota records.
    pub fn kind(self) -> QuotaKind {
        match self {
            OwnerKind::User => QuotaKind::User,
            OwnerKind::Group => QuotaKind::Group,
            OwnerKind::Project => QuotaKind::Project,
        }
    }
}

/// Limits to change. 0 removes a limit. An absent one stays unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OwnerLimitsChange {
    /// Soft limit of bytes. Above it the grace period runs.
    pub blocks_soft_bytes: Option<u64>,
    /// Hard limit of bytes.
    pub blocks_hard_bytes: Option<u64>,
    /// Soft limit of inodes. Above it the grace period runs.
    pub inodes_soft: Option<u64>,
    /// Hard limit of inodes.
    pub inodes_hard: Option<u64>,
}

/// State of a fileset's quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaStateName {
    /// Usage is not counted.
    Off,
    /// Usage is being counted. Limits are not enforced yet.
    Counting,
    /// Limits are enforced.
    On,
}

/// State of a fileset's quotas, with grace periods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaFacts {
    /// Whether usage is counted and limits are enforced.
    pub state: QuotaStateName,
    /// Progress of the count of usage, in parts of 1,000. Null unless the count is running.
    pub counted_permille: Option<u64>,
    /// Grace period above a soft limit of bytes.
    pub blocks_grace_seconds: u64,
    /// Grace period above a soft limit of inodes.
    pub inodes_grace_seconds: u64,
}

/// Usage and limits of a user, a group or a project. Null for no limit and for no running grace
/// period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountFacts {
    /// Kind of the id.
    pub kind: OwnerKind,
    /// Id of the user, group or project.
    pub id: u32,
    /// Bytes of the owner's files, dirty blocks included.
    pub used_bytes: u64,
    /// Number of the owner's files.
    pub inodes: u64,
    /// Soft limit of bytes.
    pub blocks_soft_bytes: Option<u64>,
    /// Hard limit of bytes.
    pub blocks_hard_bytes: Option<u64>,
    /// Soft limit of inodes.
    pub inodes_soft: Option<u64>,
    /// Hard limit of inodes.
    pub inodes_hard: Option<u64>,
    /// End of the grace period of bytes, in seconds since 1970.
    pub blocks_grace_end_seconds: Option<u64>,
    /// End of the grace period of inodes, in seconds since 1970.
    pub inodes_grace_end_seconds: Option<u64>,
}
