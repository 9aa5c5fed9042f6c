//! Counters and errors of a copy, for progress reports and the result.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use engine::api::FileKind;
use serde_json::{Value, json};

use super::{TreeError, shown};
use control::size::ByteSize;
use control::text::printable;

/// Most errors kept as text. Further ones are counted and logged.
const ERRORS_KEPT: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct TreeCopyTotals {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) directories: AtomicU64,
    pub(crate) symlinks: AtomicU64,
    pub(crate) others: AtomicU64,
    pub(crate) links: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) verified: AtomicU64,
    /// Bytes copied or compared, for progress reports.
    pub(crate) moved_bytes: AtomicU64,
    /// The copied directory. With it, messages have absolute paths.
    root: Option<PathBuf>,
    errors: Mutex<TreeCopyErrors>,
    is_stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct TreeCopyErrors {
    count: u64,
    kept: Vec<String>,
    left_out_count: u64,
    left_out: Vec<String>,
    last_word: Option<String>,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl TreeCopyTotals {
    pub(crate) fn below(root: Option<PathBuf>) -> TreeCopyTotals {
        TreeCopyTotals { root, ..TreeCopyTotals::default() }
    }

    fn known_as(&self, path: &[u8]) -> String {
        match &self.root {
            Some(root) if path == b"." => shown(root.as_os_str().as_bytes()),
            Some(root) => shown(root.join(OsStr::from_bytes(path)).as_os_str().as_bytes()),
            None => shown(path),
        }
    }

    fn errors(&self) -> std::sync::MutexGuard<'_, TreeCopyErrors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// Records an error of a file. An error of the whole tree stops the copy.
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

    pub(crate) fn stop(&self, why: &str) {
        self.errors().last_word.get_or_insert_with(|| why.to_owned());
        self.is_stopped.store(true, Ordering::Release);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(crate) fn last_word(&self) -> Option<String> {
        self.errors().last_word.clone()
    }

    /// Returns the files that are done, without directories.
    pub(crate) fn items(&self) -> u64 {
        let all = [&self.files, &self.symlinks, &self.others, &self.links, &self.skipped];
        let verified = self.verified.load(Ordering::Relaxed);
        all.map(|it| it.load(Ordering::Relaxed)).iter().sum::<u64>() + verified
    }

    pub(crate) fn so_far(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} files ({}) and {} directories were written, and {} were there already",
            of(&self.files),
            ByteSize(of(&self.bytes)),
            of(&self.directories),
            of(&self.skipped)
        )
    }

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
            let totals = TreeCopyTotals::below(root.map(PathBuf::from));
            totals.fail(path, &TreeError::of_file("it is gone"));
            totals.facts()["errors"][0].as_str().map(str::to_owned)
        };
        assert_eq!(told(Some("/home/ann"), b"a/b").as_deref(), Some("/home/ann/a/b: it is gone"));
        assert_eq!(told(Some("/home/ann"), b".").as_deref(), Some("/home/ann: it is gone"));
        assert_eq!(told(None, b"a/b").as_deref(), Some("a/b: it is gone"));
    }
}
