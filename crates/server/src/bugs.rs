//! Counts the panics of all threads, so that a server's health reports bugs that otherwise only its
//! log shows.

use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};

use serde::Serialize;
use serde_json::Value;

const MESSAGE_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Bugs {
    pub(crate) count: u64,
    /// Thread, place and message of the last panic.
    pub(crate) last: String,
}

impl Bugs {
    pub(crate) fn trouble(&self) -> Option<String> {
        let Bugs { count, last } = self;
        let text =
            format!("{count} times a bug was met ({last}): see the log, and tell its authors");
        (*count > 0).then_some(text)
    }
}

pub(crate) fn add_to(status: &mut Value) {
    add(status, so_far().trouble());
}

/// Adds the panics to `health` without their number, because notices are sent once per text.
pub(crate) fn add_briefly_to(status: &mut Value) {
    let words = "the server met a bug: see its log, and tell its authors";
    add(status, so_far().trouble().map(|_| words.to_owned()));
}

fn add(status: &mut Value, trouble: Option<String>) {
    let Some((trouble, health)) = trouble.zip(status.get_mut("health")) else { return };
    *health = match health.as_str() {
        Some("ok") | None => trouble.into(),
        Some(other) => format!("{other}; {trouble}").into(),
    };
}

/// Runs `work` for a thread that must go on. If `work` panics, returns the default, and the pool's
/// health reports the panic.
pub(crate) fn spared<T: Default>(what: &str, work: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!("{what} met a bug: it is tried again");
        T::default()
    })
}

static BUGS: Mutex<Bugs> = Mutex::new(Bugs { count: 0, last: String::new() });

/// Installs the counting panic hook. The previous hook still prints to standard error, which is the
/// log of a daemon.
pub fn start_counting() {
    static START: Once = Once::new();
    START.call_once(|| {
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            note(panic);
            said(panic);
        }));
    });
}

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bug_is_part_of_the_health() {
        for (before, expected) in [("ok", "a bug"), ("it is full", "it is full; a bug")] {
            let mut status = json!({ "health": before });
            add(&mut status, None);
            assert_eq!(status["health"], before);
            add(&mut status, Some("a bug".to_owned()));
            assert_eq!(status["health"], expected);
        }
    }

    #[test]
    fn whoever_is_spared_goes_on_after_a_bug() {
        let mut count = 0;
        for _ in 0..3 {
            let told: Vec<u32> = spared("a look", || {
                count += 1;
                assert!(count != 2, "the bug of a test");
                vec![count]
            });
            assert_eq!(told.len(), usize::from(count != 2));
        }
        assert_eq!(count, 3);
    }
}
