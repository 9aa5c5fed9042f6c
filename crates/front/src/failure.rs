//! What the log is told of operations that failed.

use engine::vnode::api::{FilePart, FsError, Ino};

/// Logs what the administrator must see: here a failure leaves our hands. Refusals are the
/// program's affair and are not logged.
pub(crate) fn log_failure(front: &str, operation: &str, ino: Option<Ino>, error: &FsError) {
    if !matches!(error, FsError::Io { .. } | FsError::Corrupt { .. }) {
        return;
    }
    let file = error.file();
    tracing::error!(
        front,
        operation,
        ino = ino.map(|ino| ino.0),
        file = file.map(|file| file.path.as_str()),
        first_byte = file.and_then(FilePart::first_byte),
        last_byte = file.and_then(FilePart::last_byte),
        %error,
        "an operation failed"
    );
}
