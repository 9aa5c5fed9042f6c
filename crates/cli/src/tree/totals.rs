//! What a copy has done so far, for who waits and for who asked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use engine::vnode::api::FileKind;
use serde_json::{Value, json};

use super::{TreeError, shown};
use crate::output::printable;

/// Errors that are kept word for word; the others are counted, and are in the log.
const ERRORS_KEPT: usize = 20;

/// Counts, and what went wrong.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Regular files that were written.
    pub(crate) files: AtomicU64,
    /// Their bytes.
    pub(crate) bytes: AtomicU64,
    /// Directories that were made.
    pub(crate) directories: AtomicU64,
    /// Symbolic links that were made.
    pub(crate) symlinks: AtomicU64,
    /// Devices, fifos and sockets that were made.
    pub(crate) others: AtomicU64,
    /// Further names of files that were made.
    pub(crate) links: AtomicU64,
    /// Names that were there as they should be.
    pub(crate) skipped: AtomicU64,
    /// Names that were there and were something else.
    pub(crate) replaced: AtomicU64,
    /// Names that were compared and are the same.
    pub(crate) verified: AtomicU64,
    /// Bytes that were read and written or compared, for who watches.
    pub(crate) moved_bytes: AtomicU64,
    /// The directory that is copied, where paths are to be told with it.
    root: Option<PathBuf>,
    errors: Mutex<Errors>,
    /// Whether everybody is to stop.
    is_stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct Errors {
    count: u64,
    kept: Vec<String>,
    /// What was left out on purpose.
    left_out_count: u64,
    left_out: Vec<String>,
    last_word: Option<String>,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Totals {
    /// Returns totals of a copy of the directory `root`: paths are told as they lie below it.
    pub(crate) fn below(root: Option<PathBuf>) -> Totals {
        Totals { root, ..Totals::default() }
    }

    /// Returns a path as whoever asked for the copy knows it.
    fn known_as(&self, path: &[u8]) -> String {
        match &self.root {
            Some(root) if path == b"." => shown(root.as_os_str().as_bytes()),
            Some(root) => shown(root.join(OsStr::from_bytes(path)).as_os_str().as_bytes()),
            None => shown(path),
        }
    }

    fn errors(&self) -> std::sync::MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a file that was made.
    pub(crate) fn count_made(&self, kind: FileKind) {
        match kind {
            FileKind::Regular => count(&self.files),
            FileKind::Directory => count(&self.directories),
            FileKind::Symlink => count(&self.symlinks),
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                count(&self.others);
            }
        }
    }

    /// Notes what went wrong with a file; what ends all, ends all.
    pub(crate) fn fail(&self, path: &[u8], error: &TreeError) {
        let words = format!("{}: {error}", self.known_as(path));
        let mut errors = self.errors();
        if error.is_final {
            errors.last_word.get_or_insert(words);
            self.is_stopped.store(true, Ordering::Release);
            return;
        }
        errors.count += 1;
        if errors.kept.len() < ERRORS_KEPT {
            errors.kept.push(words);
        } else {
            tracing::warn!("a file was not copied as it is: {}", printable(&words));
        }
    }

    /// Notes that something was left out on purpose.
    pub(crate) fn leave_out(&self, path: &[u8], why: &str) {
        let mut errors = self.errors();
        errors.left_out_count += 1;
        let words = format!("{}: {why}", self.known_as(path));
        if errors.left_out.len() < ERRORS_KEPT {
            errors.left_out.push(words);
        } else {
            tracing::warn!("left out: {}", printable(&words));
        }
    }

    /// Ends all, for `why`.
    pub(crate) fn stop(&self, why: &str) {
        self.errors().last_word.get_or_insert_with(|| why.to_owned());
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether everybody is to stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Returns why everybody stopped; `None`: nobody did.
    pub(crate) fn last_word(&self) -> Option<String> {
        self.errors().last_word.clone()
    }

    /// Returns what is there so far, for people.
    pub(crate) fn so_far(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} files of {} bytes and {} directories were written before, and {} names were there \
             already",
            of(&self.files),
            of(&self.bytes),
            of(&self.directories),
            of(&self.skipped)
        )
    }

    /// Returns all of it.
    pub(crate) fn facts(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let errors = self.errors();
        json!({
            "files": of(&self.files),
            "bytes": of(&self.bytes),
            "directories": of(&self.directories),
            "symlinks": of(&self.symlinks),
            "others": of(&self.others),
            "links": of(&self.links),
            "skipped": of(&self.skipped),
            "replaced": of(&self.replaced),
            "verified": of(&self.verified),
            "failed": errors.count,
            "errors": errors.kept,
            "left_out": errors.left_out_count,
            "what_was_left_out": errors.left_out,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_told_with_the_directory_that_was_named() {
        let told = |root: Option<&str>, path: &[u8]| {
            let totals = Totals::below(root.map(PathBuf::from));
            totals.fail(path, &TreeError::of_file("it is gone"));
            totals.facts()["errors"][0].as_str().map(str::to_owned)
        };
        assert_eq!(told(Some("/home/ann"), b"a/b").as_deref(), Some("/home/ann/a/b: it is gone"));
        assert_eq!(told(Some("/home/ann"), b".").as_deref(), Some("/home/ann: it is gone"));
        assert_eq!(told(None, b"a/b").as_deref(), Some("a/b: it is gone"));
    }
}
