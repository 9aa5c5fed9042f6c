//! The last warnings and errors of the log, for whoever asks a server what went wrong.
//!
//! Of each event the message and its fields are kept, at most [`EVENTS_MAX`] errors and as many
//! warnings of [`TEXT_BYTES_MAX`]: warnings, however many, make no error be forgotten. What an
//! event says of a file, by the fields `file`, `pool`, `fileset`,
//! `first_byte` and `last_byte`, is kept apart: so that events can be put together by file.

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

/// Most errors that are kept, and most warnings.
const EVENTS_MAX: usize = 200;
/// Longest text of one.
const TEXT_BYTES_MAX: usize = 2048;

/// How often the log told of damage since somebody asked, and the last text.
static DAMAGE: Mutex<Option<(u64, String)>> = Mutex::new(None);
static EVENTS: Mutex<Events> = Mutex::new(Events::new());

/// The last errors and the last warnings, the oldest first, each with its number.
struct Events {
    errors: VecDeque<(u64, Kept)>,
    warnings: VecDeque<(u64, Kept)>,
    next: u64,
}

impl Events {
    const fn new() -> Events {
        Events { errors: VecDeque::new(), warnings: VecDeque::new(), next: 0 }
    }

    fn add(&mut self, kept: Kept) {
        let events = if kept.is_error { &mut self.errors } else { &mut self.warnings };
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back((self.next, kept));
        self.next += 1;
    }

    /// Returns all of them, the newest first.
    fn newest_first(&self) -> Vec<Kept> {
        let mut all: Vec<&(u64, Kept)> = self.errors.iter().chain(&self.warnings).collect();
        all.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        all.into_iter().map(|(_, kept)| kept.clone()).collect()
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Kept {
    /// When: seconds since 1970.
    pub(crate) seconds: u64,
    /// Whether it is an error, and not a warning.
    pub(crate) is_error: bool,
    /// What.
    pub(crate) text: String,
    /// The identity of the pool with the file that it is about, as in the list of pools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pool: Option<String>,
    /// The fileset or clone with the file that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fileset: Option<String>,
    /// The path of the file that it is about, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// Which bytes of that file, the first and the last, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<(u64, u64)>,
}

/// Returns the last events, the newest first.
pub(crate) fn recent() -> Vec<Kept> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner).newest_first()
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
        let mut told = Told::default();
        event.record(&mut told);
        let Told { mut text, pool, fileset, path, first, last } = told.settled();
        cut(&mut text);
        let is_error = *event.metadata().level() == Level::ERROR;
        // A notice that could not be told tells of nothing new.
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
        let kept = Kept { seconds: now_seconds(), is_error, text, pool, fileset, path, bytes };
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).add(kept);
    }
}

/// Cuts a text to what is kept of it.
fn cut(text: &mut String) {
    let mut end = TEXT_BYTES_MAX.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}

/// The message with the fields behind it, and apart from that the file that it is about.
#[derive(Default)]
struct Told {
    text: String,
    pool: Option<String>,
    fileset: Option<String>,
    path: Option<String>,
    first: Option<u64>,
    last: Option<u64>,
}

impl Told {
    /// Of an event that is about no file, the pool and the fileset are fields as others.
    fn settled(mut self) -> Told {
        if self.path.is_none() {
            for (name, value) in [("pool", self.pool.take()), ("fileset", self.fileset.take())] {
                if let Some(value) = value {
                    self.add(name, &value);
                }
            }
        }
        self
    }

    fn add(&mut self, name: &str, value: &dyn std::fmt::Debug) {
        if self.text.len() <= TEXT_BYTES_MAX {
            let _ = write!(self.text, " {name}={value:?}");
        }
    }
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        let kept = match field.name() {
            "file" => &mut self.path,
            "pool" => &mut self.pool,
            "fileset" => &mut self.fileset,
            _ => return self.record_debug(field, &value),
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
            "message" if self.text.len() <= TEXT_BYTES_MAX => {
                let message = format!("{value:?}");
                self.text.insert_str(0, &message);
            }
            "message" => {}
            // What only has words, and no text, comes by this way.
            "pool" => self.pool = Some(format!("{value:?}")),
            name => self.add(name, value),
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
        let subscriber = tracing_subscriber::registry().with(Keep);
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
            tracing::warn!(pool = "/pool.hf", fileset = "home", "there is none");
        });
        let events = recent();
        assert_eq!(events.len(), EVENTS_MAX + 3, "warnings make no error be forgotten");
        let of_pool = &events[0];
        assert_eq!(of_pool.text, "there is none pool=\"/pool.hf\" fileset=\"home\"");
        assert_eq!((&of_pool.pool, &of_pool.fileset, &of_pool.path), (&None, &None, &None));
        let events = &events[1..];
        let of_none = &events[0];
        assert!(of_none.text == "lost what=\"the page\"" && of_none.path.is_none(), "{of_none:?}");
        let of_file = &events[1];
        assert_eq!((of_file.text.as_str(), of_file.path.as_deref()), ("lost", Some("/a/c")));
        assert_eq!(of_file.bytes, Some((4096, 8191)));
        assert_eq!(of_file.fileset.as_deref(), Some("home"));
        assert_eq!(of_file.pool.as_deref(), Some("07".repeat(16).as_str()));
        let events = &events[2..];
        assert!(events[0].is_error && events[0].text == "damage path=\"/a/b\"", "{:?}", events[0]);
        assert_eq!(events[1].text.len(), TEXT_BYTES_MAX);
        assert!(!events[2].is_error && events[2].text.contains("number=199"), "{:?}", events[2]);
    }
}
