//! What can go wrong with an operation on files, and what the caller should do.

use std::fmt;

pub use format::defect::{Defect, DefectCode};
use format::ids::PoolId;
use format::page::{PageKind, PageOwner};
use format::quota::QuotaKind;

/// A file that an error is about, and which bytes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The pool that it is in.
    pub pool: PoolId,
    /// The name of the fileset or clone that it is in; none: it is not known.
    pub fileset: Option<String>,
    /// Its path there, as people are shown it.
    pub path: String,
    /// The first byte and the last; none: the whole file, or it is not known.
    pub bytes: Option<(u64, u64)>,
}

impl FilePart {
    /// Returns the first of the bytes.
    #[must_use]
    pub fn first_byte(&self) -> Option<u64> {
        self.bytes.map(|(first, _)| first)
    }

    /// Returns the last of the bytes.
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

/// Logs something with the file that it is about, in fields of their own that are the same
/// everywhere: whoever reads the log puts together what is told of one file. A macro, so that the
/// log names the module that tells.
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

/// Why an operation on files did not happen.
///
/// Each variant is one answer to a program. The POSIX number is [`FsError::errno`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// No such name, or the file is gone.
    #[error("no such file or directory")]
    NotFound,
    /// The name is there already.
    #[error("file exists")]
    Exists,
    /// A directory was needed.
    #[error("not a directory")]
    NotDirectory,
    /// Anything but a directory was needed.
    #[error("is a directory")]
    IsDirectory,
    /// The directory still has names in it.
    #[error("directory not empty")]
    NotEmpty,
    /// A permission bit, or the sticky bit, forbids it.
    #[error("permission denied")]
    AccessDenied,
    /// Only the owner, or the superuser, may do this.
    #[error("operation not permitted")]
    NotPermitted,
    /// The request makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// A name of more than 255 bytes.
    #[error("file name too long")]
    NameTooLong,
    /// Past the largest file.
    #[error("file too large")]
    FileTooLarge,
    /// The pool is full. Deleting always works.
    #[error("no space left in the pool")]
    NoSpace,
    /// The table of filesets has no room for one more: delete some.
    #[error(
        "the pool has {most} filesets, clones and holds, as many as one may have: delete some first"
    )]
    TooManyFilesets {
        /// How many it may have.
        most: usize,
    },
    /// 65,535 names already.
    #[error("too many links")]
    TooManyLinks,
    /// The pool is mounted read-only, or turned so after a device failed.
    #[error("read-only pool: {reason}")]
    ReadOnly {
        /// Why, in words for the user.
        reason: String,
    },
    /// The handle names a file of an earlier generation, or a fileset that is not there.
    #[error("stale file handle")]
    Stale,
    /// A limit of the user, the group, the project or the fileset is reached: free something of
    /// theirs.
    #[error("disk quota exceeded")]
    QuotaExceeded,
    /// The two names are in different filesets: copy, then remove.
    #[error("the names are in different filesets")]
    CrossFileset,
    /// What is asked for is being brought from far away: ask again in some seconds.
    #[error("not here yet, try again later")]
    TryLater,
    /// A clone never changes.
    #[error("a clone is read-only")]
    ReadOnlyClone,
    /// A fileset of this name is there already: choose another.
    #[error("there is a fileset {name} already: choose another name")]
    FilesetExists {
        /// Its name.
        name: String,
    },
    /// No fileset has this name.
    #[error("there is no fileset {name}")]
    NoFileset {
        /// The name.
        name: String,
    },
    /// The fileset can't be changed so as long as something depends on it.
    #[error("fileset {name}: {by}")]
    FilesetInUse {
        /// Its name.
        name: String,
        /// What keeps it, in words for the user.
        by: String,
    },
    /// A page that clones hold too must be copied first. Whoever starts changes sees to it and
    /// tries again: no program is ever told.
    #[error("a page that a clone holds must be copied first")]
    Shared {
        /// What it holds.
        kind: PageKind,
        /// Whose it is.
        owner: PageOwner,
    },
    /// A user, a group or a project has no record yet, where they are counted. Whoever starts
    /// changes adds it and tries again: no program is ever told.
    #[error("a record of a quota must be added first")]
    Uncounted {
        /// Of what kind the id is.
        kind: QuotaKind,
        /// Whose it is.
        id: u32,
    },
    /// The operation is not there on this kind of file.
    #[error("operation not supported")]
    NotSupported,
    /// The attribute is not there.
    #[error("no such attribute")]
    NoAttribute,
    /// The caller's buffer is too small.
    #[error("buffer too small")]
    Range,
    /// Nothing of what was sought lies behind the offset.
    #[error("no such offset")]
    NoSuchOffset,
    /// The value is larger than an attribute may be.
    #[error("argument list too long")]
    TooBig,
    /// A device failed.
    #[error("input/output error: {}{cause}", before(file))]
    Io {
        /// Device, range and cause.
        cause: String,
        /// The file, where it is known.
        file: Option<Box<FilePart>>,
    },
    /// What a device returned is not what was written there. Run `holdfast check`.
    #[error("corrupt: {}{defect}", before(file))]
    Corrupt {
        /// What is wrong, and where.
        defect: Box<Defect>,
        /// The file, where it is known.
        file: Option<Box<FilePart>>,
    },
}

/// The result of an operation on files.
pub type FsResult<T> = Result<T, FsError>;

/// A completion callback: called once with how an operation ended, by whatever thread learns it. It
/// must not block.
pub type Completion = Box<dyn FnOnce(FsResult<()>) + Send>;

impl From<Defect> for FsError {
    fn from(defect: Defect) -> FsError {
        FsError::Corrupt { defect: Box::new(defect), file: None }
    }
}

/// Returns what stands before the cause.
fn before(file: &Option<Box<FilePart>>) -> String {
    file.as_ref().map_or_else(String::new, |file| format!("{file}: "))
}

impl FsError {
    /// Returns a failure of a device.
    #[must_use]
    pub fn io(cause: impl Into<String>) -> FsError {
        FsError::Io { cause: cause.into(), file: None }
    }

    /// Returns the file that it is about, where it is a failure of a device or damage and the file
    /// is known.
    #[must_use]
    pub fn file(&self) -> Option<&FilePart> {
        let (FsError::Io { file, .. } | FsError::Corrupt { file, .. }) = self else { return None };
        file.as_deref()
    }

    /// Returns the error as one about `length_bytes` at `offset` of its file.
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

    /// Returns the number that Linux programs know it by (errno(3)).
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
            FsError::ReadOnlyClone => 30,
            FsError::NotSupported => 95,
            FsError::Stale => 116,
            // EUCLEAN, as ext4, XFS and btrfs answer for a damaged structure.
            FsError::Corrupt { .. } => 117,
        }
    }
}
