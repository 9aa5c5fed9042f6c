//! Facts about requests of clients: counts by directory, and slow requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Counts of requests since the observer's previous poll.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathsFacts {
    /// Time since the previous poll. 0 at the first poll.
    pub lasted_ms: u64,
    /// Counts by client and directory, busiest first.
    pub list: Vec<PathFacts>,
}

/// Counts of one client's requests below one directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathFacts {
    /// `nfs` or `fuse`.
    pub front: String,
    /// Address of the client. Directory of a mount.
    pub client: String,
    /// Name of the export. Directory of the mount.
    pub place: String,
    /// Path of the directory, which begins with the export's name or the mount point. Null for the
    /// sum of all other directories and of files without a known path.
    pub path: Option<String>,
    /// Requests answered.
    pub answered: u64,
    /// Requests answered with an error, other than that a name or an attribute does not exist.
    pub failed: u64,
    /// Sum of all latencies.
    pub latency_ns: u64,
}

/// File locks of shared mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LocksFacts {
    /// The locks: those that wait first, the oldest first. At most 500.
    pub list: Vec<LockFacts>,
    /// Number of held locks.
    pub held: u64,
    /// Number of requests that wait for a lock.
    pub waiting: u64,
}

/// A lock of a file, held or waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockFacts {
    /// `fuse`.
    pub front: String,
    /// Directory of the mount.
    pub client: String,
    /// Process id.
    pub pid: u32,
    /// `fcntl` or `flock`: the system call.
    pub interface: String,
    /// Whether it excludes all other locks, not only exclusive ones.
    pub is_exclusive: bool,
    /// First byte.
    pub first_byte: u64,
    /// Last byte. Null for all bytes that the file can have.
    pub last_byte: Option<u64>,
    /// Path of the file.
    pub path: String,
    /// Inode number.
    pub inode: u64,
    /// Whether it waits for another lock to be released.
    pub is_waiting: bool,
    /// Time of the grant, or of the request if it waits, in milliseconds since 1970.
    pub since_ms: u64,
}

/// Slow requests since a sequence number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlowList {
    /// The requests, oldest first.
    pub list: Vec<SlowFacts>,
    /// Number of slow requests, from the requested sequence number on, that were dropped or did not
    /// fit in the answer.
    pub missed: u64,
    /// Sequence number of the next slow request.
    pub next: u64,
}

/// A slow request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlowFacts {
    /// Sequence number. Rises by one per slow request.
    pub number: u64,
    /// Time of the answer, in milliseconds since 1970.
    pub at_ms: u64,
    /// Latency in microseconds.
    pub took_us: u64,
    /// `nfs` or `fuse`.
    pub front: String,
    /// Address and port of the client. Directory of a mount.
    pub client: String,
    /// User id, if the request has one.
    pub user: Option<u32>,
    /// Requesting thread, if the kernel reports it.
    pub thread: Option<u32>,
    /// Name of the operation in its protocol.
    pub operation: String,
    /// Path of the file. For an operation on a name, path of the directory.
    pub path: String,
    /// Whether the answer was an error.
    pub is_failed: bool,
}
