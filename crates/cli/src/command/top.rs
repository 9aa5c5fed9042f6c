//! `holdfast top` and `holdfast trace`: load by client and directory, and slow requests.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::controlled::{ControlledPool, Opener};
use crate::args::top::{TopArgs, TraceArgs};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{Left, Right};
use crate::table::table;
use control::size::ByteSize;
use control::text::printable;
use control::{Answer, ClientFacts, OperationFacts, PathsFacts, Request, SlowFacts, moment};
use server::backend::Backend;
use server::facts::own_number;

/// Most directories that are shown. JSON has all.
const ROWS_MAX: usize = 20;
/// How late the next request may be before the server stops counting for this command.
const LATENESS: Duration = Duration::from_secs(10);

struct TopSample {
    at: Instant,
    clients: Vec<ClientFacts>,
    operations: Vec<OperationFacts>,
}

impl TopSample {
    fn take(at: &ControlledPool) -> anyhow::Result<TopSample> {
        let (clients, operations) =
            (at.ask(&Request::ClientList {})?, at.ask(&Request::OperationList {})?);
        let (Answer::Clients(clients), Answer::Operations(operations)) = (clients, operations)
        else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        Ok(TopSample { at: Instant::now(), clients, operations })
    }
}

struct PathSampler<'a> {
    at: &'a ControlledPool,
    /// Number of this observer. `None` with depth 0, or after a failed request.
    look: Option<u64>,
    depth: u8,
    every: Duration,
}

impl PathSampler<'_> {
    /// Returns the counts since the last call. `goes_on` if another call will follow.
    fn take(&mut self, goes_on: bool, output: &Output) -> anyhow::Result<Option<PathsFacts>> {
        let Some(look) = self.look else { return Ok(None) };
        let lasts = if goes_on { self.every + LATENESS } else { Duration::ZERO };
        let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        match self.at.ask(&Request::PathList { look, depth: self.depth, lasts_ms }) {
            Ok(Answer::Paths(paths)) => Ok(Some(paths)),
            Ok(_) => anyhow::bail!("{}: the server answered nonsense", self.at.pool.display()),
            // The other tables are shown without counts by directory.
            Err(error) => {
                output.remark(&format!("Directories are not shown: {error:#}"));
                self.look = None;
                Ok(None)
            }
        }
    }
}

pub(crate) fn top(args: &TopArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let at = ControlledPool::find(&args.pool, Opener::plain(backend), false)?;
    let at = at.need_server("clients are of a server")?;
    let look = (args.depth > 0).then(own_number);
    let mut by_path = PathSampler { at: &at, look, depth: args.depth, every: args.every };
    let mut last = TopSample::take(&at)?;
    by_path.take(args.times != Some(0), output)?;
    let mut done = 0;
    while args.times.is_none_or(|times| done < times) {
        std::thread::park_timeout(args.every);
        done += 1;
        let now = TopSample::take(&at)?;
        let paths = by_path.take(args.times.is_none_or(|times| done < times), output)?;
        let (mut text, mut facts) = difference(&last, &now, output.width());
        if let Some(paths) = paths {
            let (shown, list) = by_directory(&paths, output.width());
            text += &shown;
            facts["paths"] = list;
        }
        output.fact(&text, &facts);
        last = now;
    }
    Ok(exit::DONE)
}

fn number(number: u64) -> String {
    number.to_string()
}

fn by_directory(paths: &PathsFacts, width: Option<usize>) -> (String, Value) {
    let rate = |count: u64| count.saturating_mul(1000) / paths.lasted_ms.max(1);
    let (mut rows, mut list) = (Vec::new(), Vec::new());
    for (row, facts) in paths.list.iter().enumerate() {
        let (answered, failed) = (rate(facts.answered), rate(facts.failed));
        let average_us = facts.latency_ns / facts.answered.max(1) / 1000;
        let path = facts.path.clone().unwrap_or_else(|| format!("{} (others)", facts.place));
        if row < ROWS_MAX {
            let [answered, failed, average] = [answered, failed, average_us].map(number);
            rows.push([facts.client.clone(), answered, failed, average, path]);
        }
        list.push(json!({
            "front": facts.front, "client": facts.client, "place": facts.place,
            "path": facts.path, "answered_per_second": answered, "failed_per_second": failed,
            "average_us": average_us,
        }));
    }
    let columns = [
        Left("CLIENT"),
        Right("ANSWERED/S"),
        Right("FAILED/S"),
        Right("AVERAGE US"),
        Left("DIRECTORY"),
    ];
    let mut text = table(columns, rows, width);
    if let Some(more) = paths.list.len().checked_sub(ROWS_MAX).filter(|&more| more > 0) {
        let _ = writeln!(text, "and {more} more, less used");
    }
    (text, json!(list))
}

pub(crate) fn trace(
    args: &TraceArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let at = ControlledPool::find(&args.pool, Opener::plain(backend), false)?;
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
        // Requests that were dropped before the first request of this command do not matter.
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

fn line_of(slow: &SlowFacts) -> String {
    let at = moment(slow.at_ms / 1000);
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

fn difference(last: &TopSample, now: &TopSample, width: Option<usize>) -> (String, Value) {
    let ms = u64::try_from((now.at - last.at).as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = |count: u64| count.saturating_mul(1000) / ms;
    let key = |it: &ClientFacts| (it.front.clone(), it.address.clone(), it.since);
    let before: BTreeMap<_, &ClientFacts> = last.clients.iter().map(|it| (key(it), it)).collect();
    let (mut clients, mut operations) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for client in &now.clients {
        // If a client has reconnected or remounted, its counts start at 0.
        let old = before.get(&key(client));
        let grown = |of: fn(&ClientFacts) -> u64| {
            rate(of(client).saturating_sub(old.map_or(0, |old| of(old))))
        };
        let (requests, received, sent) =
            (grown(|it| it.requests), grown(|it| it.received_bytes), grown(|it| it.sent_bytes));
        let waiting = client.in_flight;
        let [received_size, sent_size] = [received, sent].map(|it| ByteSize(it).to_string());
        let (requested, waits) = (number(requests), number(waiting));
        rows.push([client.address.clone(), requested, received_size, sent_size, waits]);
        clients.push(json!({
            "front": client.front, "address": client.address, "requests_per_second": requests,
            "received_bytes_per_second": received, "sent_bytes_per_second": sent,
            "in_flight": waiting,
        }));
    }
    let key = |it: &OperationFacts| (it.front.clone(), it.operation.clone());
    let old: BTreeMap<_, &OperationFacts> =
        last.operations.iter().map(|it| (key(it), it)).collect();
    let columns = [
        Left("CLIENT"),
        Right("REQUESTS/S"),
        Right("RECEIVED/S"),
        Right("SENT/S"),
        Right("WAITING"),
    ];
    let mut text = table(columns, rows, width);
    let mut rows = Vec::new();
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
        let name = format!("{} {}", operation.front, operation.operation);
        let (a, f) = (rate(answered), rate(failed));
        rows.push([name, number(a), number(f), number(latency_us)]);
        operations.push(json!({
            "front": operation.front, "operation": operation.operation,
            "answered_per_second": a, "failed_per_second": f, "average_us": latency_us,
        }));
    }
    let columns = [Left("OPERATION"), Right("ANSWERED/S"), Right("FAILED/S"), Right("AVERAGE US")];
    text += &table(columns, rows, width);
    (text, json!({ "milliseconds": ms, "clients": clients, "operations": operations }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::PathFacts;

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
        let last = TopSample { at, clients, operations };
        let clients = vec![client("10.0.0.1", 1, 3000), client("10.0.0.2", 9, 640)];
        let operations = vec![operation("READ", 1400), operation("NULL", 5)];
        let now = TopSample { at: at + Duration::from_secs(2), clients, operations };
        let (text, facts) = difference(&last, &now, None);
        assert_eq!(facts["clients"][0]["requests_per_second"], 1000);
        assert_eq!(facts["clients"][1]["requests_per_second"], 320, "it has connected again");
        assert_eq!(facts["operations"][0]["answered_per_second"], 200);
        assert_eq!(facts["operations"][0]["average_us"], 50);
        assert!(text.contains("10.0.0.1") && text.contains("READ") && !text.contains("NULL"));
    }

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
        let (text, told) = by_directory(&PathsFacts { lasted_ms: 2000, list }, None);
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
