//! What a user names: a pool, a fileset in it, or a clone of that.
//!
//! They are written `POOL`, `POOL:a/b` and `POOL:a/b@monday`. What exists as a path is a pool,
//! whatever colons it has; anything else is split at its last colon. The directory of a mount
//! stands for its fileset, so `DIRECTORY@monday` is a clone of that.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use format::fileset::{FilesetName, NamePart};

use crate::exit::UsageError;

/// What an argument names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// The pool's path.
    pub(crate) pool: PathBuf,
    /// The fileset; `None`: the argument names only the pool.
    pub(crate) fileset: Option<FilesetName>,
    /// A clone of that fileset.
    pub(crate) clone: Option<NamePart>,
}

impl Named {
    /// Returns what `argument` names. Looks whether it exists as a path.
    pub(crate) fn of(argument: &Path) -> Result<Named, UsageError> {
        // Of a path that cannot be looked at, whoever opens it tells why.
        let is_too_long = |error: &std::io::Error| error.kind() == ErrorKind::InvalidFilename;
        // A name that is too long for a path may be one of a fileset that is too long.
        let is_path = argument.try_exists().unwrap_or_else(|error| !is_too_long(&error));
        let of_mount = if is_path { None } else { Named::of_mount(argument)? };
        of_mount.map_or_else(|| Named::split(argument, is_path), Ok)
    }

    /// Returns the clone that `DIRECTORY@monday` names, if there is such a directory.
    fn of_mount(argument: &Path) -> Result<Option<Named>, UsageError> {
        let bytes = argument.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|&byte| byte == b'@') else { return Ok(None) };
        let directory = Path::new(OsStr::from_bytes(&bytes[..at]));
        if !directory.is_dir() {
            return Ok(None);
        }
        let refused = |cause: &dyn Display| {
            let argument = argument.display();
            UsageError::new(format!("{argument}: {cause}: name a clone as DIRECTORY@monday"))
        };
        let name = std::str::from_utf8(&bytes[at + 1..]);
        let name = name.map_err(|_| refused(&"the name is not UTF-8"))?;
        let clone = NamePart::new(name).map_err(|error| refused(&error))?;
        Ok(Some(Named { pool: directory.to_owned(), fileset: None, clone: Some(clone) }))
    }

    /// Returns what `argument` names where that may be no clone: `cause` is why not.
    pub(crate) fn of_no_clone(argument: &Path, cause: &str) -> Result<Named, UsageError> {
        let named = Named::of(argument)?;
        match named.clone {
            Some(_) => Err(UsageError::new(format!("{}: {cause}", argument.display()))),
            None => Ok(named),
        }
    }

    /// Returns the pool's path without links and relative parts.
    pub(crate) fn device(&self) -> anyhow::Result<PathBuf> {
        std::fs::canonicalize(&self.pool)
            .with_context(|| format!("{}: check the path of the pool", self.pool.display()))
    }

    fn split(argument: &Path, is_path: bool) -> Result<Named, UsageError> {
        let bytes = argument.as_os_str().as_bytes();
        let colon = bytes.iter().rposition(|&byte| byte == b':').filter(|_| !is_path);
        let Some(colon) = colon else {
            return Ok(Named { pool: argument.to_owned(), fileset: None, clone: None });
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
        let (fileset, clone) = match name.split_once('@') {
            Some((fileset, clone)) => (fileset, Some(clone)),
            None => (name, None),
        };
        let fileset = fileset.parse().map_err(|error| refused(&error))?;
        let clone = clone.map(NamePart::new).transpose().map_err(|error| refused(&error))?;
        let pool = OsStr::from_bytes(pool).into();
        Ok(Named { pool, fileset: Some(fileset), clone })
    }
}

/// Whether the table of mounts calls a mount of `pool`, or of a fileset of it, `source`. The helper
/// of users who are not root takes no commas.
pub(crate) fn is_source_of(source: &str, pool: &str) -> bool {
    [pool.replace(',', "_"), pool.to_owned()].iter().any(|pool| {
        source
            .strip_prefix(pool.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    })
}

/// Returns the pools that `source` of the table of mounts may be of: itself, or what is before its
/// last colon. Nothing is looked at.
pub(crate) fn pools_in(source: &str) -> impl Iterator<Item = &str> {
    let before = source.rsplit_once(':').map(|(pool, _)| pool);
    [Some(source), before].into_iter().flatten()
}

/// Returns what a mount of what an argument names is called in the table of mounts; `pool` is its
/// path without links.
pub(crate) fn source_of(pool: &Path, named: &Named) -> String {
    let mut source = pool.to_string_lossy().into_owned();
    if let Some(fileset) = &named.fileset {
        source += &format!(":{fileset}");
    }
    if let Some(clone) = &named.clone {
        source += &format!("@{}", clone.as_str());
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_split_at_its_last_colon_unless_it_is_a_path() {
        for (argument, is_path, pool, fileset, clone) in [
            ("pool.hf", true, "pool.hf", None, None),
            ("missing.hf", false, "missing.hf", None, None),
            ("a:b", true, "a:b", None, None),
            ("a:b", false, "a", Some("b"), None),
            ("/srv/x:y:a/b", false, "/srv/x:y", Some("a/b"), None),
            ("p:a/b@monday", false, "p", Some("a/b"), Some("monday")),
        ] {
            let named = Named::split(argument.as_ref(), is_path).expect("it is well formed");
            assert_eq!(named.pool, Path::new(pool), "{argument}");
            let found = named.fileset.map(|name| name.to_string());
            assert_eq!(found.as_deref(), fileset, "{argument}");
            assert_eq!(named.clone.as_ref().map(NamePart::as_str), clone, "{argument}");
        }
    }

    #[test]
    fn a_directory_stands_for_the_fileset_whose_clone_is_named() {
        let named = Named::of("/@monday".as_ref()).expect("it is well formed");
        assert_eq!((named.pool.as_path(), named.fileset), (Path::new("/"), None));
        assert_eq!(named.clone.as_ref().map(NamePart::as_str), Some("monday"));
        let refused = Named::of("/@x:y".as_ref()).map(|it| it.pool);
        assert!(refused.is_err_and(|it| it.to_string().contains("DIRECTORY@monday")));
        let long = format!("/p.hf:{}", "a".repeat(300));
        let refused = Named::of(long.as_ref()).expect_err("it is too long").to_string();
        assert!(refused.contains("64"), "{refused}");
        let other = Named::of("/nothere:a@monday".as_ref()).expect("it is well formed");
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
            let refused = Named::split(argument, false).expect_err("it is no name").to_string();
            assert!(refused.contains(words), "{refused}");
            assert!(refused.contains("POOL:a/b"), "{refused}");
        }
    }
}
