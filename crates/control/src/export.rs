//! Facts and rules of exports, and facts about clients.
//!
//! Field names of [`ExportSpec`] are the keys of `holdfast.toml`, and of the server's file of the
//! exports that `holdfast export add` made.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rules of an export, as written in `holdfast.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSpec {
    /// Path that clients mount, from the root of the server.
    pub name: String,
    /// Path of the pool, in `holdfast.toml` only. A request ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PathBuf>,
    /// Name of the fileset. Absent for the fileset that the pool is served with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fileset: Option<String>,
    /// Exported directory of the fileset. Absent for its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Networks of the permitted clients. Empty for the server's machine alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// Whether clients may write.
    #[serde(default)]
    pub rw: bool,
    /// Which users of a client are squashed to `anon`.
    #[serde(default)]
    pub squash: SquashName,
    /// User and group id of squashed users. Absent for the default, nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anon: Option<(u32, u32)>,
    /// Whether requests may come from unprivileged ports.
    #[serde(default)]
    pub insecure: bool,
    /// Whether changes of names and attributes are acknowledged before they are durable.
    #[serde(default, rename = "async")]
    pub is_async: bool,
}

/// Users of a client that are squashed
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SquashName {
    /// None: a client's superuser is superuser on the server
    None,
    /// A client's superuser
    #[default]
    Root,
    /// All users
    All,
}

/// State of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportFacts {
    /// Rules of the export.
    pub export: ExportSpec,
    /// Origin of the export.
    pub by: ExportSource,
    /// Command line that mounts the export on a client. Empty if it is not served.
    pub mount: String,
    /// Reason why a stored export (`kept`) is not served. Absent if it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
}

/// Origin of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExportSource {
    /// The server's command line, until the server ends.
    CommandLine,
    /// `holdfast.toml`.
    Configuration,
    /// `holdfast export add`. The server stores it.
    Kept,
    /// A whole pool, exported because no other export exists. The first `holdfast export add`
    /// stores this export too, as `kept`.
    Default,
}

/// State of an NFS client or of a mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientFacts {
    /// `nfs` or `fuse`. Bytes and requests in flight are not counted for `fuse`.
    #[serde(default)]
    pub front: String,
    /// Address of an NFS client. Directory of a mount.
    pub address: String,
    /// Number that changes when the client reconnects or remounts, which restarts its counts.
    #[serde(default)]
    pub since: u64,
    /// Open connections.
    pub connections: u64,
    /// Requests received.
    pub requests: u64,
    /// Bytes of the requests.
    pub received_bytes: u64,
    /// Bytes of the answers.
    pub sent_bytes: u64,
    /// Requests without an answer yet.
    pub in_flight: u64,
}

/// Counts of one kind of operation since the server started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OperationFacts {
    /// `nfs` or `fuse`.
    pub front: String,
    /// Name of the operation in its protocol.
    pub operation: String,
    /// Operations answered.
    pub answered: u64,
    /// Operations answered with an error, other than that a name or an attribute does not exist.
    pub failed: u64,
    /// Sum of all latencies.
    pub latency_ns: u64,
}
