//! Quotas of users, groups and projects, as they are asked for and told.

use format::quota::QuotaKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Most accounts of one answer: whoever wants more asks again from there on.
pub(crate) const ACCOUNTS_MAX: usize = 500;

/// Whom a quota is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OwnerKind {
    /// The owner of files.
    User,
    /// Their group.
    Group,
    /// Their project.
    Project,
}

impl OwnerKind {
    /// Returns the kind as records have it.
    pub(crate) fn kind(self) -> QuotaKind {
        match self {
            OwnerKind::User => QuotaKind::User,
            OwnerKind::Group => QuotaKind::Group,
            OwnerKind::Project => QuotaKind::Project,
        }
    }
}

/// Limits that are to be changed. 0: no limit from now on; absent: as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes past which the grace begins.
    pub blocks_soft_bytes: Option<u64>,
    /// Most bytes.
    pub blocks_hard_bytes: Option<u64>,
    /// Inodes past which the grace begins.
    pub inodes_soft: Option<u64>,
    /// Most inodes.
    pub inodes_hard: Option<u64>,
}

/// Whether quotas of a fileset are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaState {
    /// Nobody is counted.
    Off,
    /// Not all is counted yet: nobody is refused.
    Counting,
    /// Limits hold.
    On,
}

/// What the quotas of a fileset are like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuotaFacts {
    /// Whether they are on.
    pub state: QuotaState,
    /// While they are counted: how much is, in parts of 1,000.
    pub counted_permille: Option<u64>,
    /// Seconds for which a soft limit of bytes may be passed.
    pub blocks_grace_seconds: u64,
    /// Seconds for which a soft limit of inodes may be passed.
    pub inodes_grace_seconds: u64,
}

/// What a user, a group or a project has and may have. Absent: no limit, or no grace that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountFacts {
    /// Of what kind the id is.
    pub kind: OwnerKind,
    /// Whose it is.
    pub id: u32,
    /// What his files take, with what waits to be written.
    pub used_bytes: u64,
    /// His files.
    pub inodes: u64,
    /// Bytes past which the grace begins.
    pub blocks_soft_bytes: Option<u64>,
    /// Most bytes.
    pub blocks_hard_bytes: Option<u64>,
    /// Inodes past which the grace begins.
    pub inodes_soft: Option<u64>,
    /// Most inodes.
    pub inodes_hard: Option<u64>,
    /// When the grace of bytes ends: seconds since 1970.
    pub blocks_grace_end_seconds: Option<u64>,
    /// When the grace of inodes ends.
    pub inodes_grace_end_seconds: Option<u64>,
}
