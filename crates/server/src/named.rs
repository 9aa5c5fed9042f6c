//! Parses the names that users type for a pool, a fileset or a snapshot.
//!
//! The forms are `POOL`, `POOL:a/b` and `POOL:a/b@monday`. An argument that exists as a path is a
//! pool, even if it contains colons. Any other argument is split at its last colon. The directory
//! of a mount stands for the mounted fileset, so `DIRECTORY@monday` is a snapshot of that fileset.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use format::fileset::{FilesetName, NamePart};
use format::superblock::verify_pool_name;

use crate::run_directory;
use control::UsageError;

/// A parsed argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolArgument {
    /// The pool's path.
    pub pool: PathBuf,
    /// The fileset. `None` if the argument names only the pool.
    pub fileset: Option<FilesetName>,
    /// A snapshot of that fileset.
    pub snapshot: Option<NamePart>,
}

impl PoolArgument {
    /// Parses `argument`. The form depends on whether `argument` exists as a path.
    pub fn of(argument: &Path) -> Result<PoolArgument, UsageError> {
        // A path that cannot be examined counts as existing, so that opening it reports the reason.
        // A name that is too long for a path is no path, but perhaps the name of a fileset.
        let is_too_long = |error: &std::io::Error| error.kind() == ErrorKind::InvalidFilename;
        let is_path = argument.try_exists().unwrap_or_else(|error| !is_too_long(&error));
        let of_mount = if is_path { None } else { PoolArgument::of_mount(argument)? };
        of_mount.map_or_else(|| PoolArgument::split(argument, is_path), Ok)
    }

    /// Parses `DIRECTORY@monday`. `None` if that directory does not exist.
    fn of_mount(argument: &Path) -> Result<Option<PoolArgument>, UsageError> {
        let bytes = argument.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else { return Ok(None) };
        let directory = Path::new(OsStr::from_bytes(&bytes[..at]));
        if !directory.is_dir() {
            return Ok(None);
        }
        let refused = |cause: &dyn Display| {
            let argument = argument.display();
            UsageError::new(format!("{argument}: {cause}: name a snapshot as DIRECTORY@monday"))
        };
        let name = std::str::from_utf8(&bytes[at + 1..]);
        let name = name.map_err(|_| refused(&"the name is not UTF-8"))?;
        let snapshot = NamePart::new(name).map_err(|error| refused(&error))?;
        Ok(Some(PoolArgument {
            pool: directory.to_owned(),
            fileset: None,
            snapshot: Some(snapshot),
        }))
    }

    /// Parses `argument` and refuses a snapshot, for the reason `cause`.
    pub fn of_no_snapshot(argument: &Path, cause: &str) -> Result<PoolArgument, UsageError> {
        let named = PoolArgument::of(argument)?;
        match named.snapshot {
            Some(_) => Err(UsageError::new(format!("{}: {cause}", argument.display()))),
            None => Ok(named),
        }
    }

    /// Returns the canonical path of the pool.
    pub fn device(&self) -> anyhow::Result<PathBuf> {
        std::fs::canonicalize(&self.pool)
            .with_context(|| format!("{}: check the path of the pool", self.pool.display()))
    }

    fn split(argument: &Path, is_path: bool) -> Result<PoolArgument, UsageError> {
        let bytes = argument.as_os_str().as_bytes();
        let colon = bytes.iter().rposition(|&byte| byte == b':').filter(|_| !is_path);
        let Some(colon) = colon else {
            return Ok(PoolArgument { pool: argument.to_owned(), fileset: None, snapshot: None });
        };
        let refused = |cause: &dyn Display| {
            let argument = argument.display();
            UsageError::new(format!("{argument}: {cause}: name a fileset as POOL:a/b"))
        };
        let (pool, name) = (&bytes[..colon], &bytes[colon + 1..]);
        if pool.is_empty() {
            return Err(refused(&"there is no pool before the colon"));
        }
        let name = std::str::from_utf8(name).map_err(|_| refused(&"the name is not UTF-8"))?;
        let (fileset, snapshot) = match name.split_once('@') {
            Some((fileset, snapshot)) => (fileset, Some(snapshot)),
            None => (name, None),
        };
        let fileset = fileset.parse().map_err(|error| refused(&error))?;
        let snapshot = snapshot.map(NamePart::new).transpose().map_err(|error| refused(&error))?;
        let pool = OsStr::from_bytes(pool).into();
        Ok(PoolArgument { pool, fileset: Some(fileset), snapshot })
    }
}

/// Returns whether `source`, from the mount table, is a mount of `pool` or of a fileset of it. Also
/// compares with commas replaced, because fusermount3 accepts none.
pub fn is_source_of(source: &str, pool: &str) -> bool {
    let is_by_path = [pool.replace(',', "_"), pool.to_owned()].iter().any(|pool| {
        source
            .strip_prefix(pool.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    });
    is_by_path || pools_in(source).any(|it| it == pool)
}

/// Returns the possible pools of `source`, from the mount table: the whole text, and the part
/// before the last colon. For a name, the path recorded in the run directory. Looks up no path of a
/// pool, so a dead mount cannot block the caller.
pub(crate) fn pools_in(source: &str) -> impl Iterator<Item = String> {
    let before = source.rsplit_once(':').map(|(pool, _)| pool);
    [Some(source), before].into_iter().flatten().flat_map(|text| {
        let is_name = verify_pool_name(text).is_ok();
        let recorded = if is_name { run_directory::pools_named(text) } else { Vec::new() };
        let recorded = recorded.iter().map(|path| path.to_string_lossy().into_owned());
        let recorded: Vec<String> = recorded.collect();
        if recorded.is_empty() { vec![text.to_owned()] } else { recorded }
    })
}

/// Returns the canonical path of the pool of a mount's `source`, if it is there.
pub fn pool_of_source(source: &str) -> Option<PathBuf> {
    let paths = pools_in(source).filter(|pool| pool.starts_with('/'));
    paths.filter_map(|pool| std::fs::canonicalize(pool).ok()).next()
}

/// Returns the mount table's source text for a mount of `named`. `pool` is the canonical path, or
/// the pool's name.
pub fn source_of(pool: &Path, named: &PoolArgument) -> String {
    let mut source = pool.to_string_lossy().into_owned();
    if let Some(fileset) = &named.fileset {
        source += &format!(":{fileset}");
    }
    if let Some(snapshot) = &named.snapshot {
        source += &format!("@{}", snapshot.as_str());
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_split_at_its_last_colon_unless_it_is_a_path() {
        for (argument, is_path, pool, fileset, snapshot) in [
            ("pool.hf", true, "pool.hf", None, None),
            ("missing.hf", false, "missing.hf", None, None),
            ("a:b", true, "a:b", None, None),
            ("a:b", false, "a", Some("b"), None),
            ("/srv/x:y:a/b", false, "/srv/x:y", Some("a/b"), None),
            ("p:a/b@monday", false, "p", Some("a/b"), Some("monday")),
        ] {
            let named = PoolArgument::split(argument.as_ref(), is_path).expect("it is well formed");
            assert_eq!(named.pool, Path::new(pool), "{argument}");
            let found = named.fileset.map(|name| name.to_string());
            assert_eq!(found.as_deref(), fileset, "{argument}");
            assert_eq!(named.snapshot.as_ref().map(NamePart::as_str), snapshot, "{argument}");
        }
    }

    #[test]
    fn a_directory_stands_for_the_fileset_whose_snapshot_is_named() {
        let named = PoolArgument::of("/@monday".as_ref()).expect("it is well formed");
        assert_eq!((named.pool.as_path(), named.fileset), (Path::new("/"), None));
        assert_eq!(named.snapshot.as_ref().map(NamePart::as_str), Some("monday"));
        let refused = PoolArgument::of("/@x:y".as_ref()).map(|it| it.pool);
        assert!(refused.is_err_and(|it| it.to_string().contains("DIRECTORY@monday")));
        let long = format!("/p.hf:{}", "a".repeat(300));
        let refused = PoolArgument::of(long.as_ref()).expect_err("it is too long").to_string();
        assert!(refused.contains("64"), "{refused}");
        let other = PoolArgument::of("/nothere:a@monday".as_ref()).expect("it is well formed");
        assert_eq!(other.pool, Path::new("/nothere"));
    }

    #[test]
    fn what_is_no_name_is_refused_with_words() {
        for (argument, words) in [
            (&b":a"[..], "no pool before the colon"),
            (b"p:", "empty"),
            (b"p:a//b", "empty"),
            (b"p:../a", "no part"),
            (b"p:a@", "empty"),
            (b"p:a@x@y", "may not hold"),
            (b"p:a@x/y", "may not hold"),
            (b"p:\xff", "not UTF-8"),
        ] {
            let argument = Path::new(OsStr::from_bytes(argument));
            let refused =
                PoolArgument::split(argument, false).expect_err("it is no name").to_string();
            assert!(refused.contains(words), "{refused}");
            assert!(refused.contains("POOL:a/b"), "{refused}");
        }
    }
}
