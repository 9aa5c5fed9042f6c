//! What is told of requests: of whom, about which directories, and which were slow.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use front::watch::{OfPrefix, Slow, Watch, by_prefix};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Request};

/// Most slow requests of one answer: each may have a path.
pub(crate) const SLOW_MAX: usize = 500;

/// What clients asked since they were looked at last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathsFacts {
    /// How long that was; 0: the look has just begun.
    pub lasted_ms: u64,
    /// By client and directory, the busiest first.
    pub list: Vec<PathFacts>,
}

/// What a client asked about the files below a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathFacts {
    /// By which protocol: `nfs` or `fuse`.
    pub front: String,
    /// The client's address; of a mount its directory.
    pub client: String,
    /// The export; of a mount its directory.
    pub place: String,
    /// The directory, from the name of the export or the directory of the mount on; none: all
    /// others, and files of which nobody knows where they are.
    pub path: Option<String>,
    /// How many requests were answered.
    pub answered: u64,
    /// How many of those with an error.
    pub failed: u64,
    /// How long all of them took together.
    pub latency_ns: u64,
}

/// Requests that were slow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlowList {
    /// They, the oldest first.
    pub list: Vec<SlowFacts>,
    /// How many were slow beside those, since the number that was asked for, and are not told.
    pub missed: u64,
    /// The number that the next one gets.
    pub next: u64,
}

/// A request that was slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SlowFacts {
    /// Its number: the next one has the next.
    pub number: u64,
    /// When it was answered: milliseconds since 1970.
    pub at_ms: u64,
    /// How long it took, in microseconds.
    pub took_us: u64,
    /// By which protocol: `nfs` or `fuse`.
    pub front: String,
    /// The client's address and port; of a mount its directory.
    pub client: String,
    /// The user, where the request said one.
    pub user: Option<u32>,
    /// The thread of the program that asked, where the kernel said one.
    pub thread: Option<u32>,
    /// What it asked for, as its protocol has it.
    pub operation: String,
    /// The file; of an operation on a name the directory.
    pub path: String,
    /// Whether the answer was an error.
    pub is_failed: bool,
}

impl PathFacts {
    fn of(it: OfPrefix) -> PathFacts {
        let client = it.address.map_or_else(|| it.place.clone(), |address| address.to_string());
        PathFacts {
            front: it.front.to_owned(),
            client,
            place: it.place,
            path: it.path,
            answered: it.tally.answered,
            failed: it.tally.failed,
            latency_ns: it.tally.latency_ns,
        }
    }
}

impl SlowFacts {
    fn of(slow: Slow) -> SlowFacts {
        let address = slow.asker.address.map(|address| address.to_string());
        let at = slow.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        SlowFacts {
            number: slow.number,
            at_ms: milliseconds(at),
            took_us: u64::try_from(slow.took.as_micros()).unwrap_or(u64::MAX),
            front: slow.place.front.to_owned(),
            client: address.unwrap_or_else(|| slow.place.name.clone()),
            user: slow.asker.uid,
            thread: slow.asker.thread,
            operation: slow.operation.to_owned(),
            path: slow.path.unwrap_or_default(),
            is_failed: slow.is_failed,
        }
    }
}

/// Returns the requests from the number `after` on that took `from` or longer.
pub(crate) fn slow_list(watch: &Watch, after: u64, from: Duration) -> SlowList {
    let slow = watch.slow(after, from, SLOW_MAX);
    let list = slow.list.into_iter().map(SlowFacts::of).collect();
    SlowList { list, missed: slow.missed, next: slow.next }
}

/// Answers what is asked of `watch`, or says why not; `None`: the request is about something else.
#[allow(clippy::wildcard_enum_match_arm, reason = "no other request is about it")]
pub(crate) fn answer(watch: &Watch, request: &Request) -> Option<Result<Answer, String>> {
    let now = Instant::now();
    let asked = match request {
        Request::PathList { look, depth, lasts_ms } => {
            let looked = watch.look(*look, Duration::from_millis(*lasts_ms), now);
            looked.map(|looked| {
                let list = by_prefix(&looked, usize::from(*depth)).into_iter();
                let list = list.map(PathFacts::of).collect();
                Answer::Paths(PathsFacts { lasted_ms: milliseconds(looked.lasted), list })
            })
        }
        Request::SlowList { wish, after, from_us, lasts_ms } => {
            let (from, lasts) = (Duration::from_micros(*from_us), Duration::from_millis(*lasts_ms));
            let kept = watch.keep_slow(*wish, from, lasts, now);
            kept.map(|()| Answer::Slow(slow_list(watch, *after, from)))
        }
        _ => return None,
    };
    Some(asked.map_err(|crowded| crowded.to_string()))
}

/// Returns a number that hardly anybody else has who looks at the same time.
pub(crate) fn own_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(std::process::id()) << 32 | u64::from(now.subsec_nanos())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
