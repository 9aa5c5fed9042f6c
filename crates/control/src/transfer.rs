//! Requests whose data moves through a descriptor: differences, streams, moves, trees.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Transfer request. Names of filesets are `a/b`, without the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Transfer {
    /// Writes one line of JSON for each path that differs between a snapshot and another node of
    /// its family.
    Diff {
        /// Fileset of the snapshot.
        fileset: String,
        /// Snapshot name, without the fileset's.
        from: String,
        /// Fileset of the other node.
        to_fileset: String,
        /// Snapshot of the other fileset. Null for that fileset's present state.
        to: Option<String>,
    },
    /// Writes a snapshot as a stream.
    Send {
        /// Fileset of the snapshot.
        fileset: String,
        /// Snapshot name, without the fileset's.
        snapshot: String,
        /// Earlier snapshot that the receiver has. Null for a full stream.
        from: Option<String>,
        /// Token of an interrupted stream to resume.
        resume: Option<String>,
    },
    /// Receives a stream as a fileset, or as its next snapshot.
    Receive {
        /// Fileset name.
        fileset: String,
        /// Only verify the stream, and whether the fileset could receive it.
        is_dry_run: bool,
        /// Discard an incomplete earlier stream.
        #[serde(default)]
        discards_partial: bool,
    },
    /// Moves a fileset to another pool of the same server.
    Move {
        /// Fileset name.
        fileset: String,
        /// Path of the other pool on the server.
        pool: PathBuf,
        /// Name of the fileset in the other pool.
        to: String,
        /// Cancel the move and discard the copied data instead.
        gives_up: bool,
    },
    /// Copies a tree of files into a fileset.
    CopyIn {
        /// The tree.
        tree: TreeSpec,
    },
    /// Copies files of a fileset or snapshot out into a tree.
    CopyOut {
        /// The tree.
        tree: TreeSpec,
    },
}

/// A tree of files to copy in or out. The descriptor is a directory or a tar file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeSpec {
    /// Fileset name.
    pub fileset: String,
    /// Snapshot of the fileset.
    pub snapshot: Option<String>,
    /// Directory in the fileset, any bytes.
    pub path: Vec<u8>,
    /// Whether the descriptor is a tar file.
    pub is_archive: bool,
    /// Number of copying threads.
    pub threads: usize,
    /// Whether to compare all files afterwards.
    pub verifies: bool,
    /// Whether to count the files of a tree beside the copy, so that progress has a total.
    #[serde(default)]
    pub counts_work: bool,
    /// Rules of copying.
    pub rules: TreeCopyRules,
}

/// Rules for copying a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TreeCopyRules {
    /// From a tar: skip existing files with equal size and modification time.
    pub skips_same: bool,
    /// From a directory: compare contents even if size and modification time are equal.
    pub compares_content: bool,
    /// Omit setuid, setgid and file capabilities.
    pub no_setuid: bool,
    /// Omit device files.
    pub no_devices: bool,
}
