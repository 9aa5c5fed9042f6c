//! Facts and properties of filesets, and their names.

use format::fileset::{FilesetName, NamePart};
use format::placement::Placement;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::UsageError;
use crate::size::ByteSize;

/// Adjustable properties of a fileset. An absent property stays unchanged, or is inherited from the
/// parent fileset at creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Properties {
    /// Block size of new files.
    pub block_bytes: Option<u64>,
    /// Whether the fileset is read-only.
    pub is_read_only: Option<bool>,
    /// Most bytes that the fileset may reference. 0 for no limit.
    pub quota_bytes: Option<u64>,
    /// Bytes reserved for the fileset, less those that it references. 0 for none.
    pub reservation_bytes: Option<u64>,
    /// Placement of new data in the fileset: `any`, the number of a disk group, `round-robin` or
    /// `striped`.
    pub placement: Option<String>,
}

impl Properties {
    /// Parses `KEY=VALUE` words. An unknown key, a bad value and a repeated key are errors.
    pub fn of(words: &[String]) -> Result<Properties, UsageError> {
        const KNOWN: &str = "properties are block=SIZE, readonly=on|off, quota=SIZE|none, \
                             reservation=SIZE|none and placement=any|GROUP|round-robin|striped";
        let mut properties = Properties::default();
        for word in words {
            let refused = |cause: &str| UsageError::new(format!("`{word}`: {cause}: {KNOWN}"));
            let (key, value) = word.split_once('=').ok_or_else(|| refused("it is no KEY=VALUE"))?;
            let is_given_twice = match key {
                "block" => {
                    let size: ByteSize =
                        value.parse().map_err(|error| refused(&format!("{error}")))?;
                    properties.block_bytes.replace(size.0).is_some()
                }
                "readonly" => {
                    let is_on = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(refused("it is on or off")),
                    };
                    properties.is_read_only.replace(is_on).is_some()
                }
                "quota" => {
                    let bytes = limit_of(value).map_err(|cause| refused(&cause))?;
                    properties.quota_bytes.replace(bytes).is_some()
                }
                "reservation" => {
                    let bytes = limit_of(value).map_err(|cause| refused(&cause))?;
                    properties.reservation_bytes.replace(bytes).is_some()
                }
                "placement" => {
                    let placement = parse_placement(value).map_err(|cause| refused(&cause))?;
                    properties.placement.replace(placement.to_string()).is_some()
                }
                _ => return Err(refused("there is no such property")),
            };
            if is_given_twice {
                return Err(refused("it is given twice"));
            }
        }
        Ok(properties)
    }
}

/// Parses a size, or `none` as 0.
pub fn limit_of(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 == 0 {
        Err("a limit of nothing: write none for no limit".to_owned())
    } else {
        Ok(size.0)
    }
}

/// State of a fileset or snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FilesetFacts {
    /// Name, `a/b` or `a/b@monday`.
    pub name: String,
    /// Slot: the upper bits of the fileset's inode numbers.
    pub slot: u32,
    /// Identity, as 32 hexadecimal digits. Part of file handles.
    pub uuid: String,
    /// Block size of new files.
    pub block_bytes: u64,
    /// Whether it is a snapshot. Its name is `a/b@monday` then.
    #[serde(default)]
    pub is_snapshot: bool,
    /// Names of the holds on a snapshot. A held snapshot cannot be deleted.
    #[serde(default)]
    pub holds: Vec<String>,
    /// Why a snapshot cannot be deleted, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed_by: Option<String>,
    /// Whether a fileset or snapshot of the same family is being freed. Until then no snapshot of
    /// the family can be deleted.
    #[serde(default)]
    pub is_family_freed: bool,
    /// Most snapshots of the fileset, its clones included. 0 if unknown.
    #[serde(default)]
    pub snapshots_max: u64,
    /// Number of further snapshots possible.
    #[serde(default)]
    pub snapshots_left: u64,
    /// Whether a stream to the fileset is incomplete. Until it is complete, the fileset is hidden.
    #[serde(default)]
    pub is_receiving: bool,
    /// State of a move between pools: `leaving` this pool, `arriving`, or `arrived` while the
    /// source pool may not have recorded the end of the move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<String>,
    /// Snapshot that the fileset descends from: its own latest one, or the one it was cloned from.
    #[serde(default)]
    pub origin: Option<String>,
    /// Bytes that only this snapshot holds and its deletion frees. Absent in lists, because the
    /// request `snapshot-unique` computes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_bytes: Option<u64>,
    /// Whether the fileset is read-only.
    pub is_read_only: bool,
    /// Creation time, in seconds since 1970.
    pub created_seconds: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Bytes referenced by files and metadata.
    #[serde(default)]
    pub referenced_bytes: u64,
    /// Bytes that the fileset may still take, by its quota and the space of the pool. Null for a
    /// snapshot.
    #[serde(default)]
    pub available_bytes: Option<u64>,
    /// Most bytes that the fileset may reference. Null for no limit.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Bytes reserved, less the referenced ones. Null for none.
    #[serde(default)]
    pub reservation_bytes: Option<u64>,
    /// Placement of the root directory, which new files inherit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// Whether this server has the fileset mounted.
    pub is_mounted: bool,
    /// Uses of the fileset in this server.
    #[serde(default)]
    pub used_by: Vec<UseFacts>,
    /// Freed part of a deleted fileset, in parts of 1,000. Null if it is not deleted.
    pub freed_permille: Option<u64>,
}

/// A server's use of a fileset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UseFacts {
    /// `mount`, `export`, or `copy-in` of a tree.
    pub kind: String,
    /// Directory of a mount, name of an export, empty for a copy-in.
    pub at: String,
}

impl UseFacts {
    /// Returns the use in words: `mounted on /mnt`.
    pub fn words(&self) -> String {
        match self.kind.as_str() {
            "mount" => format!("mounted on {}", self.at),
            "export" => format!("exported as {}", self.at),
            _ => "being copied into".to_owned(),
        }
    }

    /// Returns the command that ends this use of a fileset of `pool`.
    pub fn advice(&self, pool: &str) -> String {
        match self.kind.as_str() {
            "mount" => format!("`holdfast unmount {}` first", self.at),
            "export" => format!(
                "`holdfast export remove {pool} {}` first, or where holdfast.toml has it, remove \
                 it there and `holdfast reload {pool}`",
                self.at
            ),
            _ => "wait until that has ended".to_owned(),
        }
    }
}

/// Parses the part of a snapshot's name behind the `@`.
pub fn snapshot_of(text: &str) -> Result<NamePart, String> {
    NamePart::new(text).map_err(|error| format!("{text}: {error}: name a snapshot as a/b@monday"))
}

/// Parses the name of a fileset.
pub fn name_of(text: &str) -> Result<FilesetName, String> {
    text.parse().map_err(|error| format!("{text}: {error}: name a fileset as a/b"))
}

/// Parses a placement.
pub fn parse_placement(text: &str) -> Result<Placement, String> {
    Placement::from_text(text).ok_or_else(|| {
        format!(
            "`{text}` is no placement: write any, the number of a disk group (0 to 7), \
             round-robin, or striped"
        )
    })
}
