//! Why a superblock is unusable, and the version that this software reads.

use crate::defect::{DefectCode, FoundDefect};

/// Major version. Readers refuse an unknown one.
pub const VERSION_MAJOR: u16 = 7;
/// Minor version. Readers ignore an unknown one.
pub const VERSION_MINOR: u16 = 4;

/// Why a superblock is unusable. Each variant calls for a different action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Blank, or other software's device: refuse it, do not repair it.
    #[error("{}: not a pool device: magic {found:02x?}", self.code())]
    BadMagic {
        /// Magic found.
        found: [u8; 8],
    },
    /// Damaged: use another copy, then rewrite this one.
    #[error(
        "{}: superblock checksum stored {stored:#010x}, computed {computed:#010x}",
        self.code()
    )]
    BadChecksum {
        /// Checksum on disk.
        stored: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// Made by newer software: use that.
    #[error(
        "{}: pool format {major}.{minor} is newer than this software ({VERSION_MAJOR}.x)",
        self.code()
    )]
    UnsupportedVersion {
        /// Major version on disk.
        major: u16,
        /// Minor version on disk.
        minor: u16,
    },
    /// Made by older software: copy the files with that to a new pool.
    #[error(
        "{}: pool format {major}.{minor} is older than what this software reads \
         ({VERSION_MAJOR}.x): mount it with the version of holdfast that made it, and copy its \
         files to a new pool",
        self.code()
    )]
    OldVersion {
        /// Major version on disk.
        major: u16,
        /// Minor version on disk.
        minor: u16,
    },
    /// An unknown feature: use newer software.
    #[error(
        "{}: the pool uses features that this software does not know: {features:#x}",
        self.code()
    )]
    UnsupportedFeatures {
        /// The unknown bits.
        features: u64,
    },
    /// A use of the format that this software lacks: use newer software.
    #[error("{}: the pool has {what}, which this software does not know", self.code())]
    NotImplemented {
        /// The unknown use.
        what: &'static str,
    },
    /// A copy in the place of another: suspect the device or its cabling.
    #[error("{}: superblock copy {found} found at the position of copy {expected}", self.code())]
    Misplaced {
        /// Copy that belongs here.
        expected: u16,
        /// Copy found.
        found: u16,
    },
    /// A field out of its bounds under a good checksum: a bug, or a forged label.
    #[error("{}: superblock field {field} is out of bounds", self.code())]
    BadField {
        /// Name of the field.
        field: &'static str,
    },
}

impl FoundDefect for SuperblockError {
    fn code(&self) -> DefectCode {
        match self {
            SuperblockError::BadMagic { .. } => DefectCode::SB001,
            SuperblockError::BadChecksum { .. } => DefectCode::SB002,
            SuperblockError::UnsupportedVersion { .. } => DefectCode::SB003,
            SuperblockError::UnsupportedFeatures { .. }
            | SuperblockError::NotImplemented { .. } => DefectCode::SB004,
            SuperblockError::Misplaced { .. } => DefectCode::SB005,
            SuperblockError::BadField { .. } => DefectCode::SB006,
            SuperblockError::OldVersion { .. } => DefectCode::SB007,
        }
    }
}
