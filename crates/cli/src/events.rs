//! The last warnings and errors of the log, for whoever asks a server what went wrong.
//!
//! Of each event the message and its fields are kept, at most [`EVENTS_MAX`] events of
//! [`TEXT_BYTES_MAX`].

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use format::defect::DefectCode;
use schemars::JsonSchema;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Most events that are kept.
const EVENTS_MAX: usize = 200;
/// Longest text of one.
const TEXT_BYTES_MAX: usize = 2048;

/// How often the log told of damage since somebody asked, and the last text.
static DAMAGE: Mutex<Option<(u64, String)>> = Mutex::new(None);
static EVENTS: Mutex<VecDeque<Kept>> = Mutex::new(VecDeque::new());

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Kept {
    /// When: seconds since 1970.
    pub(crate) seconds: u64,
    /// Whether it is an error, and not a warning.
    pub(crate) is_error: bool,
    /// What.
    pub(crate) text: String,
}

/// Returns the last events, the newest first.
pub(crate) fn recent() -> Vec<Kept> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
}

/// Returns how often the log told of damage since this was asked last, and the last text.
pub(crate) fn take_damage() -> Option<(u64, String)> {
    DAMAGE.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Whether a text names a defect by its permanent code: what only looks like one (the path of a
/// pool, say) is none.
fn tells_of_damage(text: &str) -> bool {
    let is_code = |word: &str| DefectCode::ALL.iter().any(|code| code.name() == word);
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_code)
}

/// Returns the time, in seconds since 1970.
pub(crate) fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Keeps what is logged.
pub(crate) struct Keep;

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // Smaller is worse.
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let mut end = TEXT_BYTES_MAX.min(text.0.len());
        while !text.0.is_char_boundary(end) {
            end -= 1;
        }
        text.0.truncate(end);
        let is_error = *event.metadata().level() == Level::ERROR;
        // A notice that could not be told tells of nothing new.
        let is_of_notices = event.metadata().target().ends_with("::receivers");
        if is_error && !is_of_notices && tells_of_damage(&text.0) {
            let mut damage = DAMAGE.lock().unwrap_or_else(PoisonError::into_inner);
            let before = damage.as_ref().map_or(0, |(count, _)| *count);
            *damage = Some((before + 1, text.0.clone()));
        }
        let kept = Kept { seconds: now_seconds(), is_error, text: text.0 };
        let mut events = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(kept);
    }
}

/// The message, and the fields behind it.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if self.0.len() > TEXT_BYTES_MAX {
            return;
        }
        let _ = if field.name() == "message" {
            let message = format!("{value:?}");
            self.0.insert_str(0, &message);
            Ok(())
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn a_code_of_a_defect_is_known_in_a_text() {
        for (text, is_damage) in [
            ("operation failed error=AN001: anode 7", true),
            ("(AN002)", true),
            ("schedules: /dev/VG001/pool: no space", false),
            ("io 12345, AB12, ab001, AN0011", false),
            ("a device is gone", false),
        ] {
            assert_eq!(tells_of_damage(text), is_damage, "{text}");
        }
    }

    #[test]
    fn warnings_and_errors_are_kept_up_to_a_bound() {
        let subscriber = tracing_subscriber::registry().with(Keep);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not this");
            for number in 0..EVENTS_MAX {
                tracing::warn!(number, "a warning");
            }
            tracing::error!(path = "/a", "{}", "x".repeat(2 * TEXT_BYTES_MAX));
            tracing::error!(path = "/a/b", "damage");
        });
        let events = recent();
        assert_eq!(events.len(), EVENTS_MAX);
        assert!(events[0].is_error && events[0].text == "damage path=\"/a/b\"", "{:?}", events[0]);
        assert_eq!(events[1].text.len(), TEXT_BYTES_MAX);
        assert!(!events[2].is_error && events[2].text.contains("number=199"), "{:?}", events[2]);
    }
}
