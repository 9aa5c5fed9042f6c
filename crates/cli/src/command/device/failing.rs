//! `holdfast device fail`: fails devices, and waits for their spares.

use std::time::{Duration, Instant};

use serde_json::json;

use super::chosen::{self, DeviceArgument};
use super::{devices, is_spare, stop_with_its_job, tell_lost};
use crate::command::controlled::ControlledPool;
use crate::command::waiting::JobWait;
use crate::output::Output;
use crate::progress::WorkUnit;
use control::text::printable;
use control::{DeviceFacts, GroupFacts, Request};

/// Longest wait for a spare to take over. The pool checks for work every second.
const TAKING_MAX: Duration = Duration::from_secs(30);

/// Fails the devices in order. If `must_wait`, waits after each until a spare is rebuilt in its
/// place.
pub(super) fn fail(
    at: &ControlledPool,
    chosen: &[DeviceArgument],
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    if must_wait {
        let all = devices(at)?;
        let is_chosen = |it: &DeviceFacts| {
            chosen.iter().any(|one| one.facts.as_ref().is_some_and(|facts| facts.id == it.id))
        };
        let mut joining = all.iter().filter(|it| it.state == "joining");
        if let Some(joining) = joining.find(|it| !is_chosen(it)) {
            let joining = printable(&joining.path);
            anyhow::bail!(
                "{pool}: {joining} is joining, and no spare comes before it has all: nothing was \
                 done; wait for it (`holdfast job list {pool}`)"
            );
        }
        let lacks = without_spare(chosen, &all, &at.groups()?);
        if let Some(device) = lacks {
            let device = printable(device);
            anyhow::bail!(
                "{pool}: there is no spare that could take the place of {device}, so --wait would \
                 have no end: nothing was done; keep a spare first (`holdfast device add {pool} \
                 NEW --spare`), or leave --wait out"
            );
        }
    }
    chosen::each(chosen, output, &mut |device, _| {
        at.ask(&Request::DeviceFail { device: device.asked.clone() })?;
        let given = &device.given;
        let facts = json!({ "failed": given, "pool": pool });
        output.fact(&format!("{} has failed, and gets nothing more", printable(given)), &facts);
        match &device.facts {
            Some(facts) if must_wait => wait_for_spare(at, given, facts, output),
            Some(_) | None => Ok(()),
        }
    })
}

/// Returns the first device that gets no spare, if each takes the smallest spare that fits, as in
/// the pool.
fn without_spare<'a>(
    chosen: &'a [DeviceArgument],
    all: &[DeviceFacts],
    groups: &[GroupFacts],
) -> Option<&'a str> {
    let is_there = |device: &&DeviceFacts| device.state == "spare";
    let mut spares: Vec<u64> = all.iter().filter(is_there).map(|it| it.size_bytes).collect();
    spares.sort_unstable();
    for device in chosen {
        // A spare needs no spare. The pool refuses to fail it.
        let Some(facts) = device.facts.as_ref().filter(|it| !is_spare(it)) else { continue };
        let group = groups.iter().find(|group| group.number == facts.group);
        let needed = group.map_or(facts.pool_bytes, |group| group.member_bytes);
        let Some(fit) = spares.iter().position(|&bytes| bytes >= needed) else {
            return Some(&device.given);
        };
        spares.remove(fit);
    }
    None
}

fn wait_for_spare(
    at: &ControlledPool,
    given: &str,
    failed: &DeviceFacts,
    output: &Output,
) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    let mut waiting = JobWait::new(output)?;
    let begun = Instant::now();
    loop {
        let all = devices(at)?;
        let own = all.into_iter().find(|it| it.slot == failed.slot && !is_spare(it));
        let own = own.ok_or_else(|| anyhow::anyhow!("{pool}: somebody took {given} out"))?;
        let jobs = at.jobs()?;
        if own.id == failed.id {
            anyhow::ensure!(
                own.state != "online" && own.state != "joining",
                "{pool}: somebody brought {given} back"
            );
            anyhow::ensure!(
                begun.elapsed() < TAKING_MAX,
                "{pool}: no spare has taken the place of {given}: look into the log, or replace it \
                 (`holdfast device replace {pool} {} NEW`)",
                failed.slot
            );
        } else if own.state == "joining" {
            stop_with_its_job(at, &jobs)?;
        } else {
            anyhow::ensure!(
                own.state == "online",
                "{pool}: the spare {} that took the place of {given} is {}: `holdfast device \
                 replace {pool} {} NEW` puts another there",
                own.path,
                own.state,
                own.slot
            );
            waiting.finish();
            let facts = json!({ "replaced": given, "by": own.path });
            let words = "a spare, stands for it, and has all";
            output.fact(&format!("{}, {words}", printable(&own.path)), &facts);
            return tell_lost(at, output);
        }
        let job = jobs.iter().find(|job| job.name.starts_with("rebuilding "));
        waiting.step(at, (WorkUnit::Bytes(""), "rebuilt"), job)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_for_which_no_spare_is_left_is_named() {
        let spare = |size_bytes, state: &str| DeviceFacts {
            size_bytes,
            state: state.to_owned(),
            ..DeviceFacts::default()
        };
        let groups = [(0, 100), (1, 200)].map(|(number, member_bytes)| GroupFacts {
            number,
            member_bytes,
            ..GroupFacts::default()
        });
        let chosen = [("a", 0), ("b", 1), ("c", 0)].map(|(given, group)| DeviceArgument {
            given: given.to_owned(),
            asked: given.to_owned(),
            path: given.into(),
            facts: Some(DeviceFacts { group, ..spare(0, "online") }),
        });
        let without = |spares: &[DeviceFacts]| without_spare(&chosen, spares, &groups);
        assert_eq!(without(&[]), Some("a"));
        assert_eq!(without(&[spare(150, "spare"), spare(99, "spare")]), Some("b"));
        assert_eq!(without(&[spare(200, "spare"), spare(100, "spare away")]), Some("b"));
        assert_eq!(without(&[spare(200, "spare"), spare(100, "spare")]), Some("c"));
        let all = [spare(200, "spare"), spare(100, "spare"), spare(100, "spare")];
        assert_eq!(without(&all), None);
    }
}
