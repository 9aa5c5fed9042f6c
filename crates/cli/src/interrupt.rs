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
    // In this order, so that only the second signal finds the flag set.
    signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED.into(), Arc::clone(flag))?;
    signal_hook::flag::register(SIGINT, Arc::clone(flag))?;
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
