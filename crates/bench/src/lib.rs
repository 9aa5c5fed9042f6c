//! Benchmarks of file systems, compared on the same machine at the same time.
//!
//! ```text
//!   run (rounds, targets in turn) -> workload::* (operations) -> access (kernel or in process)
//!                                 -> noise (was the machine quiet?)
//!   report (medians, ranges, paired ratios) <- stats
//!     -> table, plot
//! ```
//!
//! A workload is written against [`TargetAccess`](access::TargetAccess), which makes system calls
//! in a directory, or calls the vnode interface in process. So all targets get the same operations
//! on the same names.
//!
//! # Invariants
//!
//! - BE1: A ratio is of pairs from the same round, and always reported with its interval.
//! - BE2: Only the workload's own phase is timed, not preparation, settling and removal.
//! - BE3: Every loop of a workload checks for a stop, so that an interruption soon leads to
//!   cleanup.
//!
//! [`nfs`] separately loads an NFSv3 server with a mix of calls, with its own client.
//!
//! Not here: creating and mounting pools (the program), and setting up other file systems
//! (`scripts/bench-peers.sh`).
//!
//! Layers, lowest first: `number`, `stats`, `claim`, `plan`, `access`, `noise`, `workload`, `run`,
//! `report`, `table`, `plot`, `nfs`.

pub mod access;
pub mod claim;
pub mod nfs;
pub mod noise;
mod number;
pub mod plan;
pub mod plot;
pub mod report;
pub mod run;
pub mod stats;
pub mod table;
pub mod workload;
