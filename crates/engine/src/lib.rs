//! The file system, from buffers to vnode operations.
//!
//! Layers, lowest first: `convert`, `error`, `sync`, `gate`, `usage`, `buffer`, `journal`, `alloc`,
//! `store`, `container`, `segment`, `dir`, `attributes`, `fileset`, `stream`, `vnode`, `jobs`,
//! `pool`. A file uses only what comes before it in this list.

mod convert;
pub mod error;
mod sync;

pub mod alloc;
mod attributes;
mod buffer;
mod container;
mod dir;
mod fileset;
mod gate;
mod jobs;
mod journal;
mod pool;
mod segment;
mod store;
mod stream;
mod usage;
pub mod vnode;

pub use alloc::{PlacementError, Shortage, SpaceCounts};
pub use buffer::{CacheCounts, LsnCounts};
pub use jobs::{
    CleanerCounts, CleanerGauge, DiscardCounts, DiscardOn, DiscardOptions, JobProgress, JobStatus,
    Pace, Percent, RebuildReport, ScrubError, ScrubReport, TrimError, TrimReport,
};
pub use journal::{JournalCounts, RecoveryError, RecoveryReport};
pub use pool::{
    CreateOptions, DiskGroupError, DiskGroupStatus, FilesetInfo, Fronts, GroupPlan, Layouts,
    MemberStatus, Move, MoveError, MoveHow, MoveStep, NewDiskGroup, OpenError, OpenOptions,
    PAUSE_NS_MAX, Pipe, Pool, PoolStatus, QuotaAccount, QuotaInfo, QuotaLimitsChange,
    QuotaProgress, SpareStatus,
};
pub use segment::{ReadaheadCounts, SegmentCacheCounts, WRITES_IN_FLIGHT_MAX};
pub use stream::{ReceiveError, ResumeToken, SendError, TokenError};
pub use vnode::{
    Became, DIFF_RANGES_MAX, DIRTY_FILES_MAX, Difference, FilesOptions, FilesetChange, Fullness,
    Heaviest, HeavyClone, NewFileset, PENDING_BYTES_MAX, PagesMoved, ReceiveFailure, Received,
    Restored, Still,
};
