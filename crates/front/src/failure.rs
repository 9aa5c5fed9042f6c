//! What the log is told of operations that failed.

use engine::vnode::api::{FsError, Ino};

/// Logs what the administrator must see: here a failure leaves our hands. Refusals are the
/// program's affair and are not logged.
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
