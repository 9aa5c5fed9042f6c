//! The judge of crashes: is what survived a power cut one of the states that were promised?
//!
//! # What is promised
//!
//! Every operation that changes something *touches* inodes: the file or directory itself, each
//! directory whose names it changes, and the inode that a rename replaces. Operations that touch a
//! common inode are ordered by it; others are not ordered by anything.
//!
//! - C1: An operation survives wholly or not at all, but for the content that a write leaves (C5).
//! - C2: If an operation survives, so does every earlier one that touches an inode which it
//!   touches, and so on: what survives is closed towards the past. So a directory shows the names
//!   of one moment of its history, and a file the attributes of one; and with one client all of
//!   whose operations hang together, the whole tree is a prefix of what was done.
//! - C3: When `fsync` of an inode was acknowledged, every operation that touched that inode and was
//!   acknowledged before the fsync was issued survives; with C2 also what these depend on. Of
//!   `fdatasync`, only those that change names, or the size by truncation.
//! - C4: When `sync` was acknowledged, every operation acknowledged before it was issued survives.
//! - C5: Content of a regular file, by pages of 4 KiB. Each write that C3 or C4 covers is there.
//!   Each page that later writes reached is as it was then or as any one of those writes left it.
//!   The size likewise, or it ends with a page in the midst of such a write; so there may be holes
//!   where a size survived without its data. A truncation
//!   is no write: if it survives, nothing that it cut off is seen again; if it does not, no later
//!   write of that file does either.
//! - C6: What has no name is gone. Nothing is there that nobody made.
//!
//! Not judged: times. Which inode is which is known by number and generation, which stay over
//! restarts; an operation in flight made whatever unknown inode is found under its name.
//!
//! # How
//!
//! The history is repeated on a model, which tells what each operation touched and what each inode
//! was after it. Let `s(op)` mean that an operation survived. Then every rule above has the form
//! "`s(a)`", or "if `s(a)` then `s(b)`": an inode that is not found as it was after the first `m`
//! of its operations says "if the `m`-th survived, so did the next". The least set of operations
//! that obeys all of these is found by going on until nothing changes. It is the answer: if an
//! inode has no next operation to add and still is not as found, no other set would do either.
//!
//! # Clients
//!
//! Several clients may work at one time, each below a directory of its own that is not touched
//! while they do. Each of their histories is judged, but none is ordered with another.
//!
//! Not here: cutting the power of a running pool (torture does). [`judge_cuts`] goes through what
//! a cut may leave of a recorded workload.

mod content;
mod cuts;
mod history;
mod judge;
mod replay;
#[cfg(test)]
mod tests;

pub use cuts::{Cut, judge_cuts};
pub use history::{Ended, Event, History};
pub use judge::{Finding, Judge, Reason, Verdict, judge};
