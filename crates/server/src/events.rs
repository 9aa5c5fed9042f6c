//! The last warnings and errors of the log, kept in memory for the status of a server.
//!
//! Holds at most [`EVENTS_MAX`] errors and as many warnings, each of at most [`TEXT_BYTES_MAX`].
//! The two queues are separate, so a flood of warnings evicts no error. The fields `file`, `pool`,
//! `fileset`, `first_byte` and `last_byte` say what the event is about. They are kept apart from
//! the text, so that events can be grouped by file. The text is a sentence: the message, the field
//! `error` as its cause, and the other fields.

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

/// Most errors kept, and most warnings.
const EVENTS_MAX: usize = 200;
const TEXT_BYTES_MAX: usize = 2048;

/// Damage reported in the log since the last [`take_damage`]: the number of messages, and the last
/// one's text.
static DAMAGE: Mutex<Option<(u64, String)>> = Mutex::new(None);
static EVENTS: Mutex<RecentEvents> = Mutex::new(RecentEvents::new());

struct RecentEvents {
    errors: VecDeque<(u64, LogEvent)>,
    warnings: VecDeque<(u64, LogEvent)>,
    next: u64,
}

impl RecentEvents {
    const fn new() -> RecentEvents {
        RecentEvents { errors: VecDeque::new(), warnings: VecDeque::new(), next: 0 }
    }

    fn add(&mut self, kept: LogEvent) {
        let events = if kept.is_error { &mut self.errors } else { &mut self.warnings };
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back((self.next, kept));
        self.next += 1;
    }

    fn newest_first(&self) -> Vec<LogEvent> {
        let mut all: Vec<&(u64, LogEvent)> = self.errors.iter().chain(&self.warnings).collect();
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        all.into_iter().map(|(_, kept)| kept.clone()).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LogEvent {
    /// Time of the message, in seconds since 1970.
    pub(crate) seconds: u64,
    pub(crate) is_error: bool,
    /// The message, its cause and its other fields in words.
    pub(crate) text: String,
    /// Pool of the event: its identity or its path, as in the list of pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fileset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// First and last damaged byte of the file, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<(u64, u64)>,
}

pub(crate) fn recent() -> Vec<LogEvent> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).newest_first()
}

/// Returns and clears [`DAMAGE`].
pub(crate) fn take_damage() -> Option<(u64, String)> {
    DAMAGE.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Returns whether a text contains the code of a known defect as a whole word.
fn tells_of_damage(text: &str) -> bool {
    let is_code = |word: &str| DefectCode::ALL.iter().any(|code| code.name() == word);
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_code)
}

/// Returns the time in seconds since 1970.
pub fn now_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Layer for `tracing` that keeps warnings and errors.
pub struct EventLogLayer;

impl<S: Subscriber> Layer<S> for EventLogLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        // In `tracing`, a more severe level is smaller.
        if *event.metadata().level() > Level::WARN {
            return;
        }
        let mut told = EventFields::default();
        event.record(&mut told);
        let text = told.sentence();
        let EventFields { pool, fileset, path, first, last, .. } = told;
        let is_error = *event.metadata().level() == Level::ERROR;
        // The failure of a notice receiver repeats the notice's text, so damage in it is counted
        // already.
        let is_of_notices = event.metadata().target().ends_with("::receivers");
        if is_error && !is_of_notices && tells_of_damage(&text) {
            let mut damage = DAMAGE.lock().unwrap_or_else(PoisonError::into_inner);
            let before = damage.as_ref().map_or(0, |(count, _)| *count);
            let of = |name: &str, value: &Option<String>| {
                value.as_ref().map_or_else(String::new, |value| format!(" {name}={value:?}"))
            };
            let file = [("pool", &pool), ("fileset", &fileset), ("file", &path)];
            let file = file.map(|(name, value)| of(name, value)).concat();
            *damage = Some((before + 1, text.clone() + &file));
        }
        let bytes = first.zip(last);
        let kept = LogEvent { seconds: now_seconds(), is_error, text, pool, fileset, path, bytes };
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).add(kept);
    }
}

fn cut(text: &mut String) {
    let mut end = TEXT_BYTES_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

#[derive(Default)]
struct EventFields {
    message: String,
    cause: String,
    /// Other fields, each with its name.
    others: String,
    pool: Option<String>,
    fileset: Option<String>,
    path: Option<String>,
    first: Option<u64>,
    last: Option<u64>,
}

impl EventFields {
    fn sentence(&self) -> String {
        let EventFields { message, cause, others, .. } = self;
        let mut text = message.clone();
        for part in [(": ", cause, ""), (" (", others, ")")] {
            if !part.1.is_empty() {
                text.extend([part.0, part.1, part.2]);
            }
        }
        cut(&mut text);
        text
    }

    fn add(&mut self, name: &str, value: &dyn std::fmt::Display) {
        // The kind of a notice is for programs.
        if name == "kind" {
            return;
        }
        let (into, start) = match name {
            "message" => (&mut self.message, String::new()),
            "error" => (&mut self.cause, String::new()),
            _ if self.others.is_empty() => (&mut self.others, format!("{name} ")),
            _ => (&mut self.others, format!(", {name} ")),
        };
        if into.len() <= TEXT_BYTES_MAX {
            let _ = write!(into, "{}{value}", start.replace('_', " "));
        }
    }
}

impl Visit for EventFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        let kept = match field.name() {
            "file" => &mut self.path,
            "pool" => &mut self.pool,
            "fileset" => &mut self.fileset,
            name => return self.add(name, &value),
        };
        let mut value = value.to_owned();
        cut(&mut value);
        *kept = Some(value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "first_byte" => self.first = Some(value),
            "last_byte" => self.last = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            // A value that implements only `Display` or `Debug` comes here instead of to
            // `record_str`.
            "pool" => self.pool = Some(format!("{value:?}")),
            name => self.add(name, &format_args!("{value:?}")),
        }
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
        let subscriber = tracing_subscriber::registry().with(EventLogLayer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("not this");
            for number in 0..EVENTS_MAX {
                tracing::warn!(number, "a warning");
            }
            tracing::error!(path = "/a", "{}", "x".repeat(2 * TEXT_BYTES_MAX));
            tracing::error!(path = "/a/b", "damage");
            let none: Option<&str> = None;
            let (first, last) = (Some(4096_u64), Some(8191_u64));
            let is = "/a/c";
            let pool = Some(tracing::field::display(format::ids::PoolId([7; 16])));
            tracing::error!(
                pool,
                fileset = Some("home"),
                what = none,
                file = is,
                first_byte = first,
                last_byte = last,
                "lost"
            );
            tracing::warn!(what = "the page", file = none, first_byte = None::<u64>, "lost");
            let (pool, error) = ("/pool.hf", format_args!("no such fileset"));
            let (kind, of) = ("space", "a \"b\"");
            tracing::warn!(pool, fileset = "home", most_s = 30, %error, kind, of, "there is none");
        });
        let events = recent();
        assert_eq!(events.len(), EVENTS_MAX + 3, "warnings make no error be forgotten");
        let of_pool = &events[0];
        assert_eq!(of_pool.text, "there is none: no such fileset (most s 30, of a \"b\")");
        assert_eq!((of_pool.pool.as_deref(), &of_pool.path), (Some("/pool.hf"), &None));
        assert_eq!(of_pool.fileset.as_deref(), Some("home"));
        let events = &events[1..];
        let of_none = &events[0];
        assert!(of_none.text == "lost (what the page)" && of_none.path.is_none(), "{of_none:?}");
        let of_file = &events[1];
        assert_eq!((of_file.text.as_str(), of_file.path.as_deref()), ("lost", Some("/a/c")));
        assert_eq!(of_file.bytes, Some((4096, 8191)));
        assert_eq!(of_file.fileset.as_deref(), Some("home"));
        assert_eq!(of_file.pool.as_deref(), Some("07".repeat(16).as_str()));
        let events = &events[2..];
        assert!(events[0].is_error && events[0].text == "damage (path /a/b)", "{:?}", events[0]);
        assert_eq!(events[1].text.len(), TEXT_BYTES_MAX);
        assert!(!events[2].is_error && events[2].text.contains("number 199"), "{:?}", events[2]);
    }
}
