//! Exit codes of the program.

use control::UsageError;
use server::backend::BackendError;

/// Success.
pub const DONE: u8 = 0;
/// The command was refused or failed. The message has the remedy.
pub const FAILED: u8 = 1;
/// The arguments are invalid.
pub const USAGE: u8 = 2;
/// `check` found defects and left them (fsck(8)).
pub const CHECK_DEFECTS: u8 = 4;
/// `check` failed to run (fsck(8)).
pub const CHECK_FAILED: u8 = 8;
/// The arguments of `check` are invalid (fsck(8)).
pub const CHECK_USAGE: u8 = 16;

/// The command was interrupted by ^C (128 + SIGINT, as shells have it).
pub const INTERRUPTED: u8 = 130;

/// A command that ^C has ended. The message says what goes on, and how.
#[derive(Debug)]
pub(crate) struct InterruptedError(pub(crate) String);

impl std::fmt::Display for InterruptedError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InterruptedError {}

/// Shown by `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done
  1  refused or failed; the message says what to do
  2  the arguments make no sense
  130  interrupted by ^C; the message says what goes on
  `holdfast check` exits as fsck(8) does: 0 clean, 4 defects, 8 operational error, 16 usage";

/// Shown by `check --help`.
pub const CHECK_HELP: &str = "\
Example:
  holdfast check pool.hf

Exit codes, as fsck(8):
  0   clean
  4   defects, left as they are
  8   operational error: a device missing, in use, unreadable; memory at its limit
  16  the arguments make no sense";

pub(crate) fn code_of(error: &anyhow::Error, is_check: bool) -> u8 {
    if error.is::<InterruptedError>() {
        return INTERRUPTED;
    }
    match (is_check, is_usage(error)) {
        (true, true) => CHECK_USAGE,
        (true, false) => CHECK_FAILED,
        (false, true) => USAGE,
        (false, false) => FAILED,
    }
}

/// Returns the exit code after `error` of commands other than `check`.
#[must_use]
pub fn of_error(error: &anyhow::Error) -> u8 {
    if is_usage(error) { USAGE } else { FAILED }
}

fn is_usage(error: &anyhow::Error) -> bool {
    let is_option = |error: &BackendError| matches!(error, BackendError::Option { .. });
    error.is::<UsageError>() || error.downcast_ref().is_some_and(is_option)
}
