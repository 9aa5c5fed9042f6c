//! `holdfast schedule` and `holdfast top`: clones by schedule, and what clients do now.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::schedule::{NotifyArgs, Often, ScheduleArgs, ScheduleCommand, TopArgs};
use crate::backend::Backend;
use crate::control::{Answer, ClientFacts, OperationFacts, Request, Schedule};
use crate::exit;
use crate::named::Named;
use crate::output::{Output, printable};

pub(crate) fn run(
    args: &ScheduleArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let argument = args.command.path();
    let at = Controlled::find(argument, Opener::plain(backend), false)?;
    let at = at.need_server("schedules are of a server")?;
    let pool = at.pool.display().to_string();
    match &args.command {
        ScheduleCommand::Set { keep, gone, .. } => {
            let (fileset, is_gone) = (at.named(argument)?, *gone);
            at.ask(&Request::ScheduleSet { fileset: fileset.clone(), keep: *keep, is_gone })?;
            let facts = json!({ "fileset": fileset, "keep": keep, "gone": gone, "pool": pool });
            let which = if is_gone { ", which is gone," } else { "" };
            output.fact(&format!("{pool}:{fileset}{which} keeps {}", keep.text()), &facts);
        }
        ScheduleCommand::List { .. } => {
            let Answer::Schedules(list) = at.ask(&Request::ScheduleList {})? else {
                anyhow::bail!("{pool}: the server answered nonsense")
            };
            let meant = Named::of(argument)?.fileset.map(|name| name.to_string());
            let is_meant = |schedule: &&Schedule| {
                meant.as_ref().is_none_or(|name| {
                    let rest = schedule.fileset.strip_prefix(name.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                })
            };
            let meant_ones: Vec<&Schedule> = list.iter().filter(is_meant).collect();
            if let (true, Some(name)) = (meant_ones.is_empty(), &meant) {
                at.known(name, &at.filesets()?)?;
            }
            if meant_ones.is_empty() {
                output.remark("No clones are taken by schedule.");
            }
            for schedule in meant_ones {
                let name = printable(&schedule.fileset);
                let mut line = format!("{name}  {}", schedule.keep.text());
                if schedule.is_gone && schedule.is_configured {
                    line += ", but there is no such fileset: change the [[schedule]]";
                } else if schedule.is_gone {
                    line += &format!(
                        ", but that fileset is gone: `holdfast schedule set {pool}:{name} none \
                         --gone`"
                    );
                }
                if schedule.is_configured {
                    line += " (configuration)";
                }
                if let Some(aside) = &schedule.set_aside {
                    line += &format!(
                        "\n  a command has said {}: it counts once the configuration says nothing",
                        aside.text()
                    );
                }
                for stays in &schedule.stays {
                    line += &format!("\n  is not deleted: {}", printable(stays));
                }
                output.fact(&line, &json!(schedule));
            }
            if meant.is_none() {
                show_scrubs(&at, output)?;
            }
        }
        ScheduleCommand::Scrub { every: None, .. } => show_scrubs(&at, output)?,
        ScheduleCommand::Scrub { every: Some(Often(every)), .. } => {
            at.ask(&Request::ScrubScheduleSet { every: *every })?;
            show_scrubs(&at, output)?;
        }
    }
    Ok(exit::DONE)
}

/// Shows how often a pool is scrubbed.
fn show_scrubs(at: &Controlled, output: &Output) -> anyhow::Result<()> {
    let Answer::ScrubSchedule(said) = at.ask(&Request::ScrubSchedule {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display())
    };
    output.fact(&printable(&said.line()), &json!({ "scrub": said }));
    Ok(())
}

/// `holdfast notify test`.
pub(crate) fn notify(
    args: &NotifyArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let at = Controlled::find(args.pool(), Opener::plain(backend), false)?;
    let at = at.need_server("notices are of a server")?;
    let Answer::Told(told) = at.ask(&Request::NotifyTest {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display())
    };
    let pool = at.pool.display();
    anyhow::ensure!(
        !told.is_empty(),
        "{pool}: nobody is told: write a [[notify]] into the configuration of its server, and \
         `holdfast reload {pool}`"
    );
    for came in &told {
        let outcome = came.error.as_deref().unwrap_or("told");
        output.fact(&printable(&format!("{}: {outcome}", came.receiver)), &json!(came));
    }
    // Each has said why above.
    let is_all_told = told.iter().all(|came| came.ok);
    Ok(if is_all_told { exit::DONE } else { exit::FAILED })
}

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

/// `holdfast top`.
pub(crate) fn top(args: &TopArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let at = Controlled::find(&args.pool, Opener::plain(backend), false)?;
    let at = at.need_server("clients are of a server")?;
    let mut last = Look::take(&at)?;
    let mut done = 0;
    while args.times.is_none_or(|times| done < times) {
        std::thread::park_timeout(args.every);
        let now = Look::take(&at)?;
        let (text, facts) = difference(&last, &now);
        output.fact(&text, &facts);
        last = now;
        done += 1;
    }
    Ok(exit::DONE)
}

/// Returns what happened between two looks.
fn difference(last: &Look, now: &Look) -> (String, serde_json::Value) {
    let ms = u64::try_from((now.at - last.at).as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = |count: u64| count.saturating_mul(1000) / ms;
    let before: BTreeMap<&str, &ClientFacts> =
        last.clients.iter().map(|it| (it.address.as_str(), it)).collect();
    let (mut clients, mut operations) = (Vec::new(), Vec::new());
    let mut text =
        String::from("CLIENT                 requests/s   received/s       sent/s  waiting\n");
    for client in &now.clients {
        let old = before.get(client.address.as_str());
        // One that has connected again counts from its beginning.
        let grown = |of: fn(&ClientFacts) -> u64| {
            let old = old.map_or(0, |old| of(old));
            rate(of(client).checked_sub(old).unwrap_or_else(|| of(client)))
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_happened_since_the_last_look_is_told_by_client_and_kind() {
        let client = |address: &str, requests| ClientFacts {
            front: "nfs".to_owned(),
            address: address.to_owned(),
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
        let clients = vec![client("10.0.0.1", 1000), client("10.0.0.2", 500)];
        let operations = vec![operation("READ", 1000), operation("NULL", 5)];
        let last = Look { at, clients, operations };
        let clients = vec![client("10.0.0.1", 3000), client("10.0.0.2", 40)];
        let operations = vec![operation("READ", 1400), operation("NULL", 5)];
        let now = Look { at: at + Duration::from_secs(2), clients, operations };
        let (text, facts) = difference(&last, &now);
        assert_eq!(facts["clients"][0]["requests_per_second"], 1000);
        assert_eq!(facts["clients"][1]["requests_per_second"], 20, "it has connected again");
        assert_eq!(facts["operations"][0]["answered_per_second"], 200);
        assert_eq!(facts["operations"][0]["average_us"], 50);
        assert!(text.contains("10.0.0.1") && text.contains("READ") && !text.contains("NULL"));
    }
}
