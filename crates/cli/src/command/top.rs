//! `holdfast top` and `holdfast trace`: what clients do now, and which requests were slow.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::clone::time_of;
use super::controlled::{Controlled, Opener};
use crate::args::top::{TopArgs, TraceArgs};
use crate::backend::Backend;
use crate::control::watch::own_number;
use crate::control::{Answer, ClientFacts, OperationFacts, PathsFacts, Request, SlowFacts};
use crate::exit;
use crate::output::{Output, printable};

/// Most directories that people are shown at a time; programs get all.
const ROWS_MAX: usize = 20;
/// How long a server counts on for who asks no more: whoever is late goes on nevertheless.
const LATENESS: Duration = Duration::from_secs(10);

/// What was counted at one moment.
struct Look {
    at: Instant,
    clients: Vec<ClientFacts>,
    operations: Vec<OperationFacts>,
}

impl Look {
    fn take(at: &Controlled) -> anyhow::Result<Look> {
        let (clients, operations) =
            (at.ask(&Request::ClientList {})?, at.ask(&Request::OperationList {})?);
        let (Answer::Clients(clients), Answer::Operations(operations)) = (clients, operations)
        else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        Ok(Look { at: Instant::now(), clients, operations })
    }
}

/// Who looks at what clients ask by directory.
struct ByPath<'a> {
    at: &'a Controlled,
    /// The number of the look; `None`: nobody looks.
    look: Option<u64>,
    depth: u8,
    every: Duration,
}

impl ByPath<'_> {
    /// Returns what was asked since this was called last, and whether it is called again.
    fn take(&mut self, goes_on: bool, output: &Output) -> anyhow::Result<Option<PathsFacts>> {
        let Some(look) = self.look else { return Ok(None) };
        let lasts = if goes_on { self.every + LATENESS } else { Duration::ZERO };
        let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        match self.at.ask(&Request::PathList { look, depth: self.depth, lasts_ms }) {
            Ok(Answer::Paths(paths)) => Ok(Some(paths)),
            Ok(_) => anyhow::bail!("{}: the server answered nonsense", self.at.pool.display()),
            // The rest is worth seeing without them.
            Err(error) => {
                output.remark(&format!("Directories are not shown: {error:#}"));
                self.look = None;
                Ok(None)
            }
        }
    }
}

/// `holdfast top`.
pub(crate) fn top(args: &TopArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let at = Controlled::find(&args.pool, Opener::plain(backend), false)?;
    let at = at.need_server("clients are of a server")?;
    let look = (args.depth > 0).then(own_number);
    let mut by_path = ByPath { at: &at, look, depth: args.depth, every: args.every };
    let mut last = Look::take(&at)?;
    by_path.take(args.times != Some(0), output)?;
    let mut done = 0;
    while args.times.is_none_or(|times| done < times) {
        std::thread::park_timeout(args.every);
        done += 1;
        let now = Look::take(&at)?;
        let paths = by_path.take(args.times.is_none_or(|times| done < times), output)?;
        let (mut text, mut facts) = difference(&last, &now);
        if let Some(paths) = paths {
            let (shown, list) = by_directory(&paths);
            text += &shown;
            facts["paths"] = list;
        }
        output.fact(&text, &facts);
        last = now;
    }
    Ok(exit::DONE)
}

/// Returns what was asked by directory, of which there is at most [`ROWS_MAX`] for people.
fn by_directory(paths: &PathsFacts) -> (String, Value) {
    let rate = |count: u64| count.saturating_mul(1000) / paths.lasted_ms.max(1);
    let mut text =
        String::from("CLIENT                 answered/s   failed/s   average us  DIRECTORY\n");
    let mut list = Vec::new();
    for (row, facts) in paths.list.iter().enumerate() {
        let (answered, failed) = (rate(facts.answered), rate(facts.failed));
        let average_us = facts.latency_ns / facts.answered.max(1) / 1000;
        let path = facts.path.clone().unwrap_or_else(|| format!("{} (others)", facts.place));
        if row < ROWS_MAX {
            let (client, path) = (printable(&facts.client), printable(&path));
            let _ =
                writeln!(text, "{client:<22} {answered:>10} {failed:>10} {average_us:>12}  {path}");
        }
        list.push(json!({
            "front": facts.front, "client": facts.client, "place": facts.place,
            "path": facts.path, "answered_per_second": answered, "failed_per_second": failed,
            "average_us": average_us,
        }));
    }
    if let Some(more) = paths.list.len().checked_sub(ROWS_MAX).filter(|&more| more > 0) {
        let _ = writeln!(text, "and {more} more, less used");
    }
    (text, json!(list))
}

/// `holdfast trace`.
pub(crate) fn trace(
    args: &TraceArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let at = Controlled::find(&args.pool, Opener::plain(backend), false)?;
    let at = at.need_server("requests are asked of a server")?;
    let (wish, mut after, mut done) = (own_number(), 0, 0);
    let from_us = u64::try_from(args.slower.as_micros()).unwrap_or(u64::MAX);
    while args.times.is_none_or(|times| done < times) {
        if done > 0 {
            std::thread::park_timeout(args.every);
        }
        done += 1;
        let goes_on = args.times.is_none_or(|times| done < times);
        let lasts = if goes_on { args.every + LATENESS } else { Duration::ZERO };
        let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        let Answer::Slow(slow) = at.ask(&Request::SlowList { wish, after, from_us, lasts_ms })?
        else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        // What was before the first question nobody has asked for.
        if after > 0 && slow.missed > 0 {
            output.remark(&format!("{} more came too fast to be kept", slow.missed));
        }
        for facts in &slow.list {
            output.fact(&line_of(facts), &json!(facts));
        }
        after = slow.next;
    }
    Ok(exit::DONE)
}

/// Returns a slow request as people read it.
fn line_of(slow: &SlowFacts) -> String {
    let at = time_of(slow.at_ms / 1000);
    let at = at.trim_end_matches(" UTC");
    let took = format!("{}.{:03} ms", slow.took_us / 1000, slow.took_us % 1000);
    let user = slow.user.map(|uid| format!(" user {uid}")).unwrap_or_default();
    let thread = slow.thread.map(|thread| format!(" thread {thread}")).unwrap_or_default();
    let failed = if slow.is_failed { " (failed)" } else { "" };
    printable(&format!(
        "{at}.{:03} {took:>14}  {} {} {}{failed}  by {}{user}{thread}",
        slow.at_ms % 1000,
        slow.front,
        slow.operation,
        slow.path,
        slow.client
    ))
}

/// Returns what happened between two looks.
fn difference(last: &Look, now: &Look) -> (String, Value) {
    let ms = u64::try_from((now.at - last.at).as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = |count: u64| count.saturating_mul(1000) / ms;
    let key = |it: &ClientFacts| (it.front.clone(), it.address.clone(), it.since);
    let before: BTreeMap<_, &ClientFacts> = last.clients.iter().map(|it| (key(it), it)).collect();
    let (mut clients, mut operations) = (Vec::new(), Vec::new());
    let mut text =
        String::from("CLIENT                 requests/s   received/s       sent/s  waiting\n");
    for client in &now.clients {
        // One that has connected or was mounted again is another: it counts from its beginning.
        let old = before.get(&key(client));
        let grown = |of: fn(&ClientFacts) -> u64| {
            rate(of(client).saturating_sub(old.map_or(0, |old| of(old))))
        };
        let (requests, received, sent) =
            (grown(|it| it.requests), grown(|it| it.received_bytes), grown(|it| it.sent_bytes));
        let (address, waiting) = (printable(&client.address), client.in_flight);
        let _ =
            writeln!(text, "{address:<22} {requests:>10} {received:>12} {sent:>12} {waiting:>8}");
        clients.push(json!({
            "front": client.front, "address": client.address, "requests_per_second": requests,
            "received_bytes_per_second": received, "sent_bytes_per_second": sent,
            "in_flight": waiting,
        }));
    }
    let key = |it: &OperationFacts| (it.front.clone(), it.operation.clone());
    let old: BTreeMap<_, &OperationFacts> =
        last.operations.iter().map(|it| (key(it), it)).collect();
    text += "OPERATION              answered/s   failed/s   average us\n";
    for operation in &now.operations {
        let old = old.get(&key(operation));
        let grown = |of: fn(&OperationFacts) -> u64| {
            of(operation).saturating_sub(old.map_or(0, |old| of(old)))
        };
        let answered = grown(|it| it.answered);
        if answered == 0 {
            continue;
        }
        let (failed, latency_us) =
            (grown(|it| it.failed), grown(|it| it.latency_ns) / answered / 1000);
        let name = printable(&format!("{} {}", operation.front, operation.operation));
        let (a, f) = (rate(answered), rate(failed));
        let _ = writeln!(text, "{name:<22} {a:>10} {f:>10} {latency_us:>12}");
        operations.push(json!({
            "front": operation.front, "operation": operation.operation,
            "answered_per_second": a, "failed_per_second": f, "average_us": latency_us,
        }));
    }
    (text, json!({ "milliseconds": ms, "clients": clients, "operations": operations }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::PathFacts;

    #[test]
    fn what_happened_since_the_last_look_is_told_by_client_and_kind() {
        let client = |address: &str, since, requests| ClientFacts {
            front: "nfs".to_owned(),
            address: address.to_owned(),
            since,
            connections: 1,
            requests,
            received_bytes: requests * 100,
            sent_bytes: 0,
            in_flight: 2,
        };
        let operation = |name: &str, answered| OperationFacts {
            front: "nfs".to_owned(),
            operation: name.to_owned(),
            answered,
            failed: 0,
            latency_ns: answered * 50_000,
        };
        let at = Instant::now();
        let clients = vec![client("10.0.0.1", 1, 1000), client("10.0.0.2", 2, 500)];
        let operations = vec![operation("READ", 1000), operation("NULL", 5)];
        let last = Look { at, clients, operations };
        let clients = vec![client("10.0.0.1", 1, 3000), client("10.0.0.2", 9, 640)];
        let operations = vec![operation("READ", 1400), operation("NULL", 5)];
        let now = Look { at: at + Duration::from_secs(2), clients, operations };
        let (text, facts) = difference(&last, &now);
        assert_eq!(facts["clients"][0]["requests_per_second"], 1000);
        assert_eq!(facts["clients"][1]["requests_per_second"], 320, "it has connected again");
        assert_eq!(facts["operations"][0]["answered_per_second"], 200);
        assert_eq!(facts["operations"][0]["average_us"], 50);
        assert!(text.contains("10.0.0.1") && text.contains("READ") && !text.contains("NULL"));
    }

    /// Goal: what is busiest is shown first and as people read rates, and all is told to programs.
    #[test]
    fn directories_are_told_by_client() {
        let facts = |client: &str, path: Option<&str>, answered| PathFacts {
            front: "nfs".to_owned(),
            client: client.to_owned(),
            place: "/home".to_owned(),
            path: path.map(str::to_owned),
            answered,
            failed: 20,
            latency_ns: answered * 50_000,
        };
        let mut list = vec![facts("10.0.0.1", Some("/home/a\u{1b}nn"), 3000)];
        list.extend((0..ROWS_MAX).map(|_| facts("10.0.0.2", None, 10)));
        let (text, told) = by_directory(&PathsFacts { lasted_ms: 2000, list });
        assert_eq!(told.as_array().map(Vec::len), Some(ROWS_MAX + 1));
        assert_eq!(told[0]["answered_per_second"], 1500);
        assert_eq!(
            (&told[0]["failed_per_second"], &told[0]["average_us"]),
            (&json!(10), &json!(50))
        );
        assert!(text.contains("50  /home/a\\u{1b}nn\n"), "{text}");
        assert!(text.contains("/home (others)") && text.ends_with("and 1 more, less used\n"));
    }

    #[test]
    fn a_slow_request_is_a_line() {
        let mut slow = SlowFacts {
            number: 3,
            at_ms: 1_800_000_000_007,
            took_us: 312_045,
            front: "fuse".to_owned(),
            client: "/mnt".to_owned(),
            user: Some(1000),
            thread: Some(77),
            operation: "FSYNC".to_owned(),
            path: "/mnt/a b".to_owned(),
            is_failed: true,
        };
        assert_eq!(
            line_of(&slow),
            "2027-01-15 08:00:00.007     312.045 ms  fuse FSYNC /mnt/a b (failed)  by /mnt user \
             1000 thread 77"
        );
        (slow.user, slow.thread, slow.is_failed) = (None, None, false);
        assert!(line_of(&slow).ends_with("fuse FSYNC /mnt/a b  by /mnt"));
    }
}
