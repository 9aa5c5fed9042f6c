//! What happens when the library itself panics.
//!
//! A panic in the file system costs one request, because [`Adapter`](super::Adapter) catches it. A
//! panic in the library, outside that, ends one of its threads while the connection lives on, so
//! that the request it held waits for ever, and in time every request does. (`fuser` 0.18 panics on
//! a time of -2^63 seconds, which any user can set on a file of their own.) So the whole connection
//! is aborted: every request gets an error, the session ends, and the pool is closed in order. That
//! goes for every mount of the process, for the hook does not learn whose thread it was.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::mount::UnmountFlags;

/// How the library names its threads.
const THREAD_PREFIX: &str = "fuser-";

/// Where the connections to abort are mounted.
static MOUNTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, whose panics the caller catches.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> T {
    IS_CAUGHT.set(true);
    let result = work();
    IS_CAUGHT.set(false);
    result
}

/// To be called after a panic was caught.
pub(super) fn after_panic() {
    IS_CAUGHT.set(false);
}

/// A mount whose connection is aborted when the library panics, until this is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    directory: PathBuf,
}

impl Guard {
    /// Guards the connection of the mount on `directory`.
    pub(crate) fn new(directory: &Path) -> Guard {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let next = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
                next(info);
                on_panic();
            }));
        });
        mounts().push(directory.to_owned());
        Guard { directory: directory.to_owned() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        mounts().retain(|directory| *directory != self.directory);
    }
}

fn mounts() -> MutexGuard<'static, Vec<PathBuf>> {
    // The list is whole between any two statements.
    MOUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_panic() {
    let thread = std::thread::current();
    let is_library = thread.name().is_some_and(|name| name.starts_with(THREAD_PREFIX));
    if !is_library || IS_CAUGHT.get() {
        return;
    }
    tracing::error!("the FUSE library failed; its mounts are given up");
    for directory in mounts().iter() {
        // Force aborts the connection, busy or not; only root may. The end of the process aborts
        // it for others, and recovery does the rest.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        if rustix::mount::unmount(directory, flags).is_err() {
            std::process::abort();
        }
    }
}
