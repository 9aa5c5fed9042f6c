//! Lines of JSON on the status socket of a server: the outer request and the outer answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Answer as ControlAnswer;

/// Outer request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum WireRequest {
    /// Status of the pool and its server.
    Status,
    /// Locations of a file's bytes, layer by layer.
    Explain {
        /// Number of the server's mount, from 0.
        #[serde(default)]
        mount: usize,
        /// Inode number from stat(2).
        node: u64,
        /// First and last byte.
        range: Option<(u64, u64)>,
    },
    /// Starts a transfer, whose data moves through a descriptor passed afterwards.
    Transfer {
        /// Protocol version of `request`.
        version: u32,
        /// A [`crate::Transfer`].
        request: Value,
    },
    /// Starts serving a mount made by the client.
    Mount {
        /// Protocol version of `request`.
        version: u32,
        /// A `MountSpec` of crate `server`.
        request: Value,
    },
    /// Changes a served mount.
    Remount {
        /// Protocol version of `request`.
        version: u32,
        /// A `RemountSpec` of crate `server`.
        request: Value,
    },
    /// Makes a request about the pool or the server.
    Control {
        /// Protocol version of `request`.
        version: u32,
        /// A [`crate::Request`]. Untyped, because another version may have another form.
        request: Value,
    },
}

/// Outer answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WireAnswer {
    /// Status as one JSON object.
    Status(Value),
    /// Steps from the name down to the byte.
    Explain(Vec<ExplainStep>),
    /// Answer to a control request.
    Control(ControlAnswer),
    /// The server is ready for the descriptor.
    Ready,
    /// Progress of a transfer.
    Progress(TransferProgress),
    /// Result of a transfer.
    Transferred(Value),
    /// The mount is served. Its entry in `status`.
    Mounted(Value),
    /// Error text. The request failed; parts of it may be done.
    Error(String),
    /// The pool is closing. Ask again after the server's end.
    Closing,
}

/// Progress of a transfer. A total of 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferProgress {
    /// Bytes done.
    pub bytes: u64,
    /// Bytes in total.
    pub bytes_total: u64,
    /// Files or inodes done.
    pub items: u64,
    /// Files or inodes in total.
    pub items_total: u64,
}

/// One layer of an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct ExplainStep {
    /// The layer: `dirent`, `inode`, `map page`, `segment`, `device`.
    pub layer: String,
    /// Description in one line.
    pub fact: String,
}
