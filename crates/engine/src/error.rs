//! Errors of file operations, and the response to each.

use std::fmt;

pub use format::defect::{Defect, DefectCode};
use format::ids::PoolId;
use format::page::{PageKind, PageOwner};
use format::quota::QuotaKind;

/// A file that an error concerns, and the bytes affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The pool of the file.
    pub pool: PoolId,
    /// Name of the fileset or snapshot, if known.
    pub fileset: Option<String>,
    /// The path in the fileset, for display.
    pub path: String,
    /// The first and the last byte. `None` for the whole file, or if unknown.
    pub bytes: Option<(u64, u64)>,
}

impl FilePart {
    /// Returns the first byte.
    #[must_use]
    pub fn first_byte(&self) -> Option<u64> {
        self.bytes.map(|(first, _)| first)
    }

    /// Returns the last byte.
    #[must_use]
    pub fn last_byte(&self) -> Option<u64> {
        self.bytes.map(|(_, last)| last)
    }
}

impl fmt::Display for FilePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fileset) = &self.fileset {
            write!(f, "{fileset}:")?;
        }
        f.write_str(&self.path)?;
        match self.bytes {
            Some((first, last)) => write!(f, ", bytes {first} to {last}"),
            None => Ok(()),
        }
    }
}

/// Logs an event with its file, in the same separate fields everywhere. A macro, so that the event
/// names the calling module.
#[macro_export]
macro_rules! log_of_file {
    ($level:ident, $file:expr, $($rest:tt)+) => {{
        let file: Option<&$crate::error::FilePart> = $file;
        tracing::$level!(
            pool = file.map(|file| tracing::field::display(file.pool)),
            fileset = file.and_then(|file| file.fileset.as_deref()),
            file = file.map(|file| file.path.as_str()),
            first_byte = file.and_then($crate::error::FilePart::first_byte),
            last_byte = file.and_then($crate::error::FilePart::last_byte),
            $($rest)+
        );
    }};
}

/// The failure of a file operation: one variant for each distinct result.
/// [`FsError::errno`] returns the POSIX number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// No such name, or the file is gone.
    #[error("no such file or directory")]
    NotFound,
    /// The name exists.
    #[error("file exists")]
    Exists,
    /// A directory is required.
    #[error("not a directory")]
    NotDirectory,
    /// A file other than a directory is required.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// A permission bit, or the sticky bit, forbids it.
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner or the superuser may do this.
    #[error("operation not permitted")]
    NotPermitted,
    /// The request is invalid.
    #[error("invalid argument")]
    Invalid,
    /// A name of more than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// Beyond the largest file size.
    #[error("file too large")]
    FileTooLarge,
    /// The pool is full. Deleting always works.
    #[error("no space left in the pool")]
    NoSpace,
    /// The table of filesets is full: delete some.
    #[error(
        "the pool has {most} filesets, snapshots and holds, as many as one may have: delete some \
         first"
    )]
    TooManyFilesets {
        /// The limit of the table.
        most: usize,
    },
    /// The file has 65,535 names, the maximum.
    #[error("too many links")]
    TooManyLinks,
    /// The pool is mounted read-only, or became read-only after a device failure.
    #[error("read-only pool: {reason}")]
    ReadOnly {
        /// The reason, for the user.
        reason: String,
    },
    /// The handle names an earlier generation of the file, or a fileset that does not exist.
    #[error("stale file handle")]
    Stale,
    /// A limit of the user, group, project or fileset is reached: delete some of its files.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// The two names are in different filesets: copy, then remove.
    #[error("the names are in different filesets")]
    CrossFileset,
    /// The data is being recalled from an archive: retry in some seconds.
    #[error("not here yet, try again later")]
    TryLater,
    /// Snapshots are read-only.
    #[error("a snapshot is read-only")]
    ReadOnlySnapshot,
    /// A fileset of this name exists: choose another name.
    #[error("there is a fileset {name} already: choose another name")]
    FilesetExists {
        /// The name.
        name: String,
    },
    /// No fileset has this name.
    #[error("there is no fileset {name}")]
    NoFileset {
        /// The name.
        name: String,
    },
    /// The fileset is in use by a dependent, which prevents this change.
    #[error("fileset {name}: {by}")]
    FilesetInUse {
        /// The name of the fileset.
        name: String,
        /// The dependent, for the user.
        by: String,
    },
    /// A page shared with a snapshot must be copied first. Internal: the change is retried after
    /// the copy.
    #[error("a page that a snapshot holds must be copied first")]
    Shared {
        /// The kind of the page.
        kind: PageKind,
        /// The owner of the page.
        owner: PageOwner,
    },
    /// A user, group or project lacks a quota record. Internal: the change is retried with one.
    #[error("a record of a quota must be added first")]
    Uncounted {
        /// The kind of the id.
        kind: QuotaKind,
        /// The id.
        id: u32,
    },
    /// The file does not support the operation.
    #[error("operation not supported")]
    NotSupported,
    /// No such attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The caller's buffer is too small.
    #[error("buffer too small")]
    Range,
    /// No data, or no hole, after the offset.
    #[error("no such offset")]
    NoSuchOffset,
    /// The value exceeds the limit of an attribute.
    #[error("argument list too long")]
    TooBig,
    /// A device failed.
    #[error("input/output error: {}{cause}", before(file))]
    Io {
        /// Device, range and cause.
        cause: String,
        /// The file, if known.
        file: Option<Box<FilePart>>,
    },
    /// A device returned other contents than were written. Run `holdfast check`.
    #[error("corrupt: {}{defect}", before(file))]
    Corrupt {
        /// The kind and the place of the damage.
        defect: Box<Defect>,
        /// The file, if known.
        file: Option<Box<FilePart>>,
    },
}

/// The result of a file operation.
pub type FsResult<T> = Result<T, FsError>;

/// A completion callback: called once, on any thread. Must not block.
pub type Completion = Box<dyn FnOnce(FsResult<()>) + Send>;

impl From<Defect> for FsError {
    fn from(defect: Defect) -> FsError {
        FsError::Corrupt { defect: Box::new(defect), file: None }
    }
}

/// Returns the start of an error message that names the file.
fn before(file: &Option<Box<FilePart>>) -> String {
    file.as_ref().map_or_else(String::new, |file| format!("{file}: "))
}

impl FsError {
    /// Returns the error for a device failure.
    #[must_use]
    pub fn io(cause: impl Into<String>) -> FsError {
        FsError::Io { cause: cause.into(), file: None }
    }

    /// Returns the file concerned, if it is known.
    #[must_use]
    pub fn file(&self) -> Option<&FilePart> {
        let (FsError::Io { file, .. } | FsError::Corrupt { file, .. }) = self else { return None };
        file.as_deref()
    }

    /// Adds the affected bytes to the error's file.
    pub(crate) fn in_bytes(mut self, offset: u64, length_bytes: usize) -> FsError {
        let length = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        if let FsError::Io { file: Some(file), .. } | FsError::Corrupt { file: Some(file), .. } =
            &mut self
            && file.bytes.is_none()
            && length > 0
        {
            file.bytes = Some((offset, offset.saturating_add(length - 1)));
        }
        self
    }

    /// Returns the Linux error number (errno(3)).
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            FsError::NotPermitted => 1,
            FsError::NotFound | FsError::NoFileset { .. } => 2,
            FsError::Io { .. } => 5,
            FsError::NoSuchOffset => 6,
            FsError::TooBig => 7,
            FsError::AccessDenied => 13,
            FsError::FilesetInUse { .. } => 16,
            FsError::Exists | FsError::FilesetExists { .. } => 17,
            FsError::NotDirectory => 20,
            FsError::IsDirectory => 21,
            FsError::Invalid => 22,
            FsError::FileTooLarge => 27,
            FsError::NoSpace | FsError::TooManyFilesets { .. } => 28,
            FsError::ReadOnly { .. } => 30,
            FsError::TooManyLinks => 31,
            FsError::Range => 34,
            FsError::NameTooLong => 36,
            FsError::NotEmpty => 39,
            FsError::NoAttribute => 61,
            FsError::QuotaExceeded => 122,
            FsError::CrossFileset => 18,
            FsError::TryLater | FsError::Shared { .. } | FsError::Uncounted { .. } => 11,
            FsError::ReadOnlySnapshot => 30,
            FsError::NotSupported => 95,
            FsError::Stale => 116,
            // EUCLEAN, as ext4, XFS and btrfs return for damaged structures.
            FsError::Corrupt { .. } => 117,
        }
    }
}
