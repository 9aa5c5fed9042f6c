//! The file system, from buffers to vnode operations.
//!
//! Layers, lowest first: `convert`, `error`, `sync`, `gate`, `usage`, `buffer`, `journal`, `alloc`,
//! `store`, `container`, `segment`, `dir`, `attributes`, `fileset_table`, `stream`, `api`, `file`,
//! `fileset`, `relocate`, `transfer`, `jobs`,
//! `pool`. A file uses only layers before its own in this list.

mod convert;
pub mod error;
mod sync;

pub mod alloc;
pub mod api;
mod attributes;
mod buffer;
mod container;
mod dir;
mod file;
mod fileset;
mod fileset_table;
mod gate;
mod jobs;
mod journal;
mod pool;
mod relocate;
mod segment;
mod store;
mod stream;
mod transfer;
mod usage;

pub use alloc::{PlacementError, Shortage, SpaceCounts};
pub use buffer::{CacheCounts, LsnCounts};
pub use file::FilesOptions;
pub use file::attr::DIRTY_FILES_MAX;
pub use file::fullness::{Fullness, Heaviest, HeavySnapshot};
pub use file::open_filesets::NewFileset;
pub use file::write::PENDING_BYTES_MAX;
pub use fileset::clone::RestoreReport;
pub use fileset::properties::FilesetChange;
pub use fileset::snapshot::QuiescedFilesets;
pub use jobs::{
    CleanerCounts, CleanerGauge, DiscardCounts, DiscardOptions, DiscardScope, JobProgress,
    JobStatus, Pace, Percent, RebuildReport, ScrubError, ScrubReport, TrimError, TrimReport,
};
pub use journal::{JournalCounts, RecoveryError, RecoveryReport};
pub use pool::{
    DiskGroupError, DiskGroupStatus, FilesetInfo, Fronts, GroupPlan, Layouts, MemberStatus, Move,
    MoveError, MoveServices, MoveStep, NewDiskGroup, PAUSE_NS_MAX, Pipe, Pool, PoolCreateOptions,
    PoolDevices, PoolFilesets, PoolOpenError, PoolOpenOptions, PoolStatus, QuotaAccount, QuotaInfo,
    QuotaLimitsChange, QuotaProgress, SpareStatus,
};
pub use relocate::pages::PageMoveReport;
pub use segment::{ReadaheadCounts, SegmentCacheCounts, WRITES_IN_FLIGHT_MAX};
pub use stream::{ReceiveError, ResumeToken, SendError, TokenError};
pub use transfer::diff::{DIFF_RANGES_MAX, Difference, DifferenceKind};
pub use transfer::receive::{ReceiveFailure, Received};
