//! Logging of failed operations.

use engine::api::{FsError, Ino};

/// Logs an I/O error or a corruption for the administrator. Other errors concern only the calling
/// program, and are not logged.
pub(crate) fn log_failure(front: &str, operation: &str, ino: Option<Ino>, error: &FsError) {
    if !matches!(error, FsError::Io { .. } | FsError::Corrupt { .. }) {
        return;
    }
    engine::log_of_file!(
        error,
        error.file(),
        front,
        operation,
        ino = ino.map(|ino| ino.0),
        %error,
        "an operation failed"
    );
}
