//! Types of the control protocol: requests to a server about an open pool, and its answers.
//!
//! A server reads a request as a line of JSON on its status socket, or as the body of an HTTP POST.
//! Without a server, the command opens the pool and applies the same typed request to it. A request
//! of another version, with an unknown field or word, or longer than [`LINE_BYTES_MAX`] is refused
//! with an error text.
//!
//! Doc comments of these types are the descriptions in the JSON schema and in OpenAPI.
//!
//! Each kind of object (filesets, snapshots, jobs) has its own variants of [`Request`], a listing
//! variant of [`Answer`], and a command that sends the requests.
//!
//! # Invariants
//!
//! - CO1: A server accepts these requests only from administrators: root and the server's own user
//!   (`may_change` of crate `server`). `server::roles` lists the requests of other users.
//!
//! Layers, lowest first: `size`, `text`, `usage`, `device`, `export`, `group`, `quota`, `schedule`,
//! `transfer`, `watch`, `fileset`, `answer`, `request`, `wire`.

mod answer;
mod device;
mod export;
mod fileset;
mod group;
mod quota;
mod request;
mod schedule;
pub mod size;
pub mod text;
mod transfer;
mod usage;
pub mod watch;
pub mod wire;

pub use answer::{Answer, JobFacts, NoticeTestFacts, ScrubFacts, TrimFacts};
pub use device::DeviceFacts;
pub use export::{ClientFacts, ExportFacts, ExportSource, ExportSpec, OperationFacts, SquashName};
pub use fileset::{
    FilesetFacts, Properties, UseFacts, limit_of, name_of, parse_placement, snapshot_of,
};
pub use group::{GroupFacts, GroupGrowthFacts, NewGroup};
pub use quota::{
    ACCOUNTS_MAX, AccountFacts, OwnerKind, OwnerLimitsChange, QuotaFacts, QuotaStateName,
};
pub use request::{Request, VERSION, parse_as};
pub use schedule::{
    Period, ScrubEvery, ScrubResult, ScrubSchedule, ScrubScheduleSource, SnapshotCounts,
    SnapshotSchedule, moment,
};
pub use transfer::{Transfer, TreeCopyRules, TreeSpec};
pub use usage::UsageError;
pub use watch::{LockFacts, LocksFacts, PathFacts, PathsFacts, SlowFacts, SlowList};

/// Longest request. Two names of filesets with some dozen parts each fit.
pub const LINE_BYTES_MAX: u64 = 64 << 10;
/// Most entries of one answer. The `next` of the answer is where the client's next request starts.
pub const LIST_MAX: usize = 500;
/// Most exports of one answer. Each may have 64 networks and two paths.
pub const EXPORTS_MAX: usize = 100;
/// Most clients of one answer.
pub const CLIENTS_MAX: usize = 4096;

#[cfg(test)]
mod tests;
