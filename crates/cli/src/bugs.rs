//! Counts the panics of this process, whichever thread they end or spare, so that the health of a
//! server says what only its log would.

use std::panic::PanicHookInfo;
use std::sync::{Mutex, Once, PoisonError};

use serde::Serialize;

/// Bytes of a message that are kept.
const MESSAGE_BYTES_MAX: usize = 512;

/// What has panicked so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Bugs {
    /// How often.
    pub(crate) count: u64,
    /// The last: thread, place, message.
    pub(crate) last: String,
}

impl Bugs {
    /// Returns what to say of the server's health; `None`: there was none.
    pub(crate) fn trouble(&self) -> Option<String> {
        let Bugs { count, last } = self;
        let text =
            format!("{count} times a bug was met ({last}): see the log, and tell its authors");
        (*count > 0).then_some(text)
    }
}

static BUGS: Mutex<Bugs> = Mutex::new(Bugs { count: 0, last: String::new() });

/// Counts from now on. The panic is said on standard error as before, which is a daemon's log.
pub(crate) fn start_counting() {
    static START: Once = Once::new();
    START.call_once(|| {
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            note(panic);
            said(panic);
        }));
    });
}

/// Returns what has panicked since counting began.
pub(crate) fn so_far() -> Bugs {
    BUGS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn note(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let place = panic.location().map(|at| format!("{}:{}", at.file(), at.line()));
    let payload = panic.payload();
    let words = payload.downcast_ref::<&str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let mut last = format!(
        "{} at {}: {}",
        thread.name().unwrap_or("a thread"),
        place.unwrap_or_default(),
        words.unwrap_or("no words")
    );
    let end = (0..=MESSAGE_BYTES_MAX.min(last.len())).rfind(|&end| last.is_char_boundary(end));
    last.truncate(end.unwrap_or(0));
    let mut bugs = BUGS.lock().unwrap_or_else(PoisonError::into_inner);
    bugs.count = bugs.count.saturating_add(1);
    bugs.last = last;
}
