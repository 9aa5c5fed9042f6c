//! ^C during a long command: the first one asks the command to stop and to report what is there, a
//! second one ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::SIGINT;

use crate::exit::{INTERRUPTED, InterruptedError};

static IS_INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes SIGINT set a flag from now on.
pub(crate) fn watch() -> std::io::Result<()> {
    if IS_INTERRUPTED.get().is_some() {
        return Ok(());
    }
    let flag = IS_INTERRUPTED.get_or_init(Arc::default);
    // The flag first: SIGINT does not end the process any more, so it must not be lost.
    signal_hook::flag::register(SIGINT, Arc::clone(flag))?;
    // In this order, so that only a later signal ends the process.
    let was_told = Arc::new(AtomicBool::new(false));
    let (code, told) = (INTERRUPTED.into(), Arc::clone(&was_told));
    signal_hook::flag::register_conditional_shutdown(SIGINT, code, told)?;
    signal_hook::flag::register(SIGINT, was_told)?;
    Ok(())
}

/// Returns whether SIGINT has come since [`watch`].
pub(crate) fn has_come() -> bool {
    IS_INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails with `words` if SIGINT has come.
pub(crate) fn check(words: impl FnOnce() -> String) -> anyhow::Result<()> {
    if has_come() { Err(InterruptedError(words()).into()) } else { Ok(()) }
}
