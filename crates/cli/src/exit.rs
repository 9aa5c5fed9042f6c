//! Exit codes: what a script learns from the program.

use crate::args::Command;
use crate::backend::BackendError;

/// Done.
pub(crate) const DONE: u8 = 0;
/// Refused or failed; the message says what to do.
pub(crate) const FAILED: u8 = 1;
/// The arguments make no sense.
pub(crate) const USAGE: u8 = 2;
/// `check` found defects and left them (fsck(8)).
pub(crate) const CHECK_DEFECTS: u8 = 4;
/// `check` could not do its work (fsck(8)).
pub(crate) const CHECK_FAILED: u8 = 8;
/// `check` was asked nonsense (fsck(8)).
pub(crate) const CHECK_USAGE: u8 = 16;

/// Shown by `--help` of the program.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  refused or failed; the message says what to do
  2  the arguments make no sense
  `holdfast check` exits as fsck(8) does: 0 clean, 4 defects, 8 operational error, 16 usage";

/// Shown by `holdfast check --help`.
pub(crate) const CHECK_HELP: &str = "\
Example:
  holdfast check pool.hf

Exit codes, as fsck(8):
  0   clean
  4   defects, left as they are
  8   operational error: a device missing, in use, unreadable; memory at its limit
  16  the arguments make no sense";

/// Returns the exit code of `command` after `error`.
pub(crate) fn code_of(error: &anyhow::Error, command: &Command) -> u8 {
    let is_option = |error: &BackendError| matches!(error, BackendError::Option { .. });
    let is_usage = error.is::<UsageError>() || error.downcast_ref().is_some_and(is_option);
    match (matches!(command, Command::Check(_)), is_usage) {
        (true, true) => CHECK_USAGE,
        (true, false) => CHECK_FAILED,
        (false, true) => USAGE,
        (false, false) => FAILED,
    }
}

/// Arguments that are well formed, each for itself, and make no sense together.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct UsageError {
    message: String,
}

impl UsageError {
    /// Returns an error whose message says what to give instead.
    pub(crate) fn new(message: impl Into<String>) -> UsageError {
        UsageError { message: message.into() }
    }
}
