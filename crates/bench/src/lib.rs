//! How fast a file system is, beside others, on the same machine in the same minutes.
//!
//! ```text
//!   run (rounds, targets in turn) -> workload::* (what is done) -> access (how a target is asked)
//!                                 -> noise (was the machine quiet?)
//!   report (medians, ranges, paired ratios) <- stats
//!     -> table, plot
//! ```
//!
//! A workload is written once, against [`access::Access`]: on a directory it makes system calls, in
//! process it calls the vnode interface. So a mount, a peer's mount and an engine without a kernel
//! do the same things to the same names.
//!
//! # Invariants
//!
//! - BE1: a ratio is one of pairs from the same round, and is never told without its interval.
//! - BE2: nothing is timed but the workload's own phase: preparing, settling and removing are not.
//! - BE3: every loop of a workload looks whether it should stop, so that what was made is removed
//!   soon after an interruption.
//!
//! Beside it [`nfs`] puts an NFSv3 server under a mix of calls, by a client of its own.
//!
//! Not here: making pools and mounting them (the program does), setting up other file systems
//! (`scripts/bench-peers.sh`).

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
