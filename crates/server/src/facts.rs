//! Conversions between the types of the front ends and those of the control protocol.
//!
//! They are here, and not in the control protocol, because that depends on no front end.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use control::{
    Answer, ExportSpec, OperationFacts, PathFacts, PathsFacts, Request, SlowFacts, SlowList,
    SquashName,
};
use front::counts::OperationCounts;
use front::nfs::{ExportRules, Network, Squash};
use front::watch::{PrefixTally, SlowRequest, Watch, by_prefix};

const DIRECTORY_BYTES_MAX: usize = 4096;

/// Returns the text form of `rules`. `fileset` is the current name of the exported fileset.
pub fn export_spec(rules: &ExportRules, fileset: Option<String>) -> ExportSpec {
    let nobody = ExportRules::new("/").nobody;
    let is_near = rules.networks == Network::loopback();
    let networks = rules.networks.iter().filter(|_| !is_near);
    let directory = String::from_utf8_lossy(&rules.directory).into_owned();
    ExportSpec {
        name: rules.name.clone(),
        pool: None,
        fileset,
        dir: (!directory.is_empty()).then_some(directory),
        to: networks.map(ToString::to_string).collect(),
        rw: rules.is_writable,
        squash: match rules.squash {
            Squash::None => SquashName::None,
            Squash::Root => SquashName::Root,
            Squash::All => SquashName::All,
        },
        anon: (rules.nobody != nobody).then_some(rules.nobody),
        insecure: !rules.needs_secure_port,
        is_async: rules.is_async,
    }
}

/// Returns the rules of a text form, or the reason why it is invalid.
pub fn export_rules(spec: &ExportSpec) -> Result<ExportRules, String> {
    // A colon would start the options, which are separate fields here.
    if spec.name.contains(':') {
        return Err(format!("{}: the name of an export has no colon", spec.name));
    }
    let plain: ExportRules = spec.name.parse().map_err(|error| format!("{error}"))?;
    let directory = spec.dir.clone().unwrap_or_default();
    if directory.len() > DIRECTORY_BYTES_MAX {
        let most = DIRECTORY_BYTES_MAX;
        return Err(format!("{}: dir has at most {most} bytes", spec.name));
    }
    let mut networks = Vec::new();
    for network in &spec.to {
        let network: Network =
            network.parse().map_err(|error| format!("{}: to: {error}", spec.name))?;
        networks.push(network);
    }
    if networks.is_empty() {
        networks = Network::loopback();
    }
    if networks.len() > ExportRules::NETWORKS_MAX {
        let most = ExportRules::NETWORKS_MAX;
        return Err(format!("{}: an export has at most {most} networks", spec.name));
    }
    Ok(ExportRules {
        fileset: spec.fileset.clone(),
        directory: directory.into_bytes(),
        networks,
        is_writable: spec.rw,
        squash: match spec.squash {
            SquashName::None => Squash::None,
            SquashName::Root => Squash::Root,
            SquashName::All => Squash::All,
        },
        nobody: spec.anon.unwrap_or(plain.nobody),
        needs_secure_port: !spec.insecure,
        is_async: spec.is_async,
        ..plain
    })
}

/// Returns the counters of one kind of operation.
pub fn operation_facts(front: &str, count: &OperationCounts) -> OperationFacts {
    OperationFacts {
        front: front.to_owned(),
        operation: count.name.to_owned(),
        answered: count.answered,
        failed: count.failed,
        latency_ns: count.latency_ns,
    }
}

/// Most slow requests in one answer. Each may carry a path.
pub const SLOW_MAX: usize = 500;

fn path_facts(it: PrefixTally) -> PathFacts {
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

fn slow_facts(slow: SlowRequest) -> SlowFacts {
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

/// Returns the requests with numbers from `after` on that took at least `from`.
pub fn slow_list(watch: &Watch, after: u64, from: Duration) -> SlowList {
    let slow = watch.slow(after, from, SLOW_MAX);
    let list = slow.list.into_iter().map(slow_facts).collect();
    SlowList { list, missed: slow.missed, next: slow.next }
}

/// Answers a request about paths or slow requests. `None` if `request` is about something else.
#[allow(clippy::wildcard_enum_match_arm, reason = "no other request is about it")]
pub fn answer(watch: &Watch, request: &Request) -> Option<Result<Answer, String>> {
    let now = Instant::now();
    let asked = match request {
        Request::PathList { look, depth, lasts_ms } => {
            let looked = watch.look(*look, Duration::from_millis(*lasts_ms), now);
            looked.map(|looked| {
                let list = by_prefix(&looked, usize::from(*depth)).into_iter();
                let list = list.map(path_facts).collect();
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

/// Returns a number for this observer of requests, almost surely unique among concurrent observers.
pub fn own_number() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(std::process::id()) << 32 | u64::from(now.subsec_nanos())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_survive_their_text_and_nonsense_is_refused() {
        for text in ["/a", "/a:rw,to=10.0.0.0/8,to=::1,squash=all,anon=7:8,dir=/x,insecure,async"] {
            let rules: ExportRules = text.parse().expect("a test writes rules");
            let spec = export_spec(&rules, None);
            let written = toml::to_string(&spec).expect("it is plain");
            let spec: ExportSpec = toml::from_str(&written).expect("what was written is read");
            assert_eq!(export_rules(&spec).as_ref(), Ok(&rules), "{written}");
        }
        let spec = export_spec(&ExportRules::new("/a"), None);
        for (wrong, words) in [
            (ExportSpec { name: "a".to_owned(), ..spec.clone() }, "path from /"),
            (ExportSpec { name: "/a:rw".to_owned(), ..spec.clone() }, "no colon"),
            (ExportSpec { to: vec!["10/8".to_owned()], ..spec.clone() }, "no network"),
            (ExportSpec { to: vec!["::1".to_owned(); 65], ..spec.clone() }, "at most 64"),
            (ExportSpec { dir: Some("x".repeat(4097)), ..spec }, "at most 4096"),
        ] {
            let refused = export_rules(&wrong).expect_err("it makes no sense");
            assert!(refused.contains(words), "{refused}");
        }
    }
}
