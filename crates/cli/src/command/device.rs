//! `holdfast device`: shows, fails, replaces, attaches, removes and grows the devices of a pool,
//! and keeps spares.

mod chosen;
mod failing;

use std::path::Path;

use format::members::Layout;
use serde_json::json;

use self::chosen::{DeviceArgument, UnknownDeviceRule};
use super::controlled::{ControlledPool, Opener};
use super::waiting::{JobWait, check_goes_on};
use crate::args::device::{AttachModeName, DeviceArgs, DeviceCommand};
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use crate::table::Column::{IfAny, Left, Right};
use control::size::ByteSize;
use control::text::printable;
use control::{Answer, DeviceFacts, GroupGrowthFacts, JobFacts, NewGroup, Request};
use server::backend::Backend;
use server::named::PoolArgument;
use server::named_device::the_one_here;

const SINGLE: &str = "single";
const MIRROR: &str = "mirror";
/// Name of the round-robin layout, in which each device has whole files.
const ROUND_ROBIN: &str = "round-robin";

/// Names of the layouts with striped segments, with and without parity.
const SPREAD: [&str; 2] = ["raid5", "stripe"];
/// Prefix of the name of the job that moves segments to a device added to a stripe or raid5.
const SPREADING: &str = "spreading ";
/// Prefixes of the name of the job that rebuilds a device.
const REBUILDING: [&str; 2] = ["rebuilding ", "bringing back "];
/// Prefix of the name of the job that empties a device of a stripe or raid5.
const TAKING_OUT: &str = "taking a device out ";

pub(crate) fn run(args: &DeviceArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let is_change = !matches!(args.command, DeviceCommand::List { .. });
    let opener = Opener { backend, members: &args.members };
    let at = match (ControlledPool::find(args.command.pool(), opener, is_change), &args.command) {
        (Err(refused), DeviceCommand::List { pool, devices: names }) => {
            return list_by_labels((pool, names), opener, refused, output);
        }
        (at, _) => at?,
    };
    let done = done(&at, &args.command, output);
    at.finish(done)?;
    Ok(exit::DONE)
}

/// Lists the devices by their labels, after opening the pool failed with `refused`.
fn list_by_labels(
    (pool, names): (&Path, &[String]),
    opener: Opener<'_>,
    refused: anyhow::Error,
    output: &Output,
) -> anyhow::Result<u8> {
    let listed = PoolArgument::of(pool).ok().and_then(|named| named.device().ok());
    let listed = listed.and_then(|path| opener.backend.listed(&path, &opener.members.hints()).ok());
    // For a pool of one device, the error says more than the label.
    let Some(all) = listed.filter(|all| all.len() > 1 && names.is_empty()) else {
        return Err(refused);
    };
    list(&all, output);
    output.warning(&format!(
        "the pool could not be opened, so the list shows what the labels say: {refused}"
    ));
    Ok(exit::DONE)
}

fn done(at: &ControlledPool, command: &DeviceCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        DeviceCommand::List { devices: names, .. } => {
            let all = devices(at)?;
            let chosen = chosen::of_pool(at, &all, names, UnknownDeviceRule::Refused)?;
            let mut chosen: Vec<DeviceFacts> =
                chosen.into_iter().filter_map(|it| it.facts).collect();
            if names.is_empty() {
                chosen = all;
            }
            list(&chosen, output);
            Ok(())
        }
        DeviceCommand::Fail { devices: names, wait, .. } => {
            let chosen = chosen::of_pool(at, &devices(at)?, names, UnknownDeviceRule::Refused)?;
            failing::fail(at, &chosen, *wait, output)
        }
        DeviceCommand::Clear { devices: names, .. } => clear(at, names, output),
        DeviceCommand::Replace { old, new, wait: must_wait, force, .. } => {
            replace(at, (old, new), (*must_wait, *force), output)
        }
        DeviceCommand::Online { devices: names, wait, .. } => {
            let chosen = chosen::of_pool(at, &devices(at)?, names, UnknownDeviceRule::Allowed)?;
            chosen::each(&chosen, output, &mut |device, has_next| {
                // Only one device can be joining at a time.
                online(at, device, *wait || has_next, output)
            })
        }
        DeviceCommand::Add { devices, spare, joins, size, wait, force, .. } => {
            let chosen = chosen::to_come(devices)?;
            chosen::each(&chosen, output, &mut |device, has_next| {
                let how = (size.map(|size| size.0), *wait || has_next, *force);
                let path = &device.path;
                match joins.beside() {
                    Some((old, what)) => attach(at, (old, path, what), (old, how), output),
                    None if *spare => add_spare(at, path, *force, output),
                    None => add(at, path, how, output),
                }
            })
        }
        DeviceCommand::Grow { devices, size, .. } => grow(at, devices, *size, output),
        DeviceCommand::Remove { devices: names, wait, accept_no_redundancy, .. } => {
            let chosen = chosen::of_pool(at, &devices(at)?, names, UnknownDeviceRule::Refused)?;
            check_enough_stay(at, &chosen)?;
            chosen::each(&chosen, output, &mut |device, has_next| {
                // Only one device can be leaving at a time.
                remove(at, device, (*wait || has_next, *accept_no_redundancy), output)
            })
        }
    }
}

/// Refuses to remove more devices from a raid5 or stripe than it can lose, before any is removed.
fn check_enough_stay(at: &ControlledPool, chosen: &[DeviceArgument]) -> anyhow::Result<()> {
    if chosen.len() < 2 {
        return Ok(());
    }
    for group in at.groups()? {
        let least = match group.kind.as_str() {
            "raid5" => *Layout::Raid5 { unit_shift: 0 }.widths().start(),
            "stripe" => *Layout::Stripe { unit_shift: 0 }.widths().start(),
            _ => continue,
        };
        let is_own = |device: &&DeviceArgument| {
            device.facts.as_ref().is_some_and(|facts| group.slots.contains(&facts.slot))
        };
        let leave = chosen.iter().filter(is_own).count();
        anyhow::ensure!(
            leave == 0 || group.slots.len() >= least + leave,
            "{}: disk group {} is a {} of {}, and {leave} of it are to leave: {least} are the \
             fewest of a {}. Nothing was done; name fewer, or add others first",
            at.pool.display(),
            group.number,
            group.kind,
            group.slots.len(),
            group.kind
        );
    }
    Ok(())
}

fn clear(at: &ControlledPool, names: &[String], output: &Output) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    if names.is_empty() {
        at.ask(&Request::DeviceClear { device: None })?;
        let facts = json!({ "cleared": pool });
        output.fact(&format!("{pool}: the error counters of all devices are cleared"), &facts);
        return Ok(());
    }
    let chosen = chosen::of_pool(at, &devices(at)?, names, UnknownDeviceRule::Refused)?;
    chosen::each(&chosen, output, &mut |device, _| {
        at.ask(&Request::DeviceClear { device: Some(device.asked.clone()) })?;
        let given = &device.given;
        let facts = json!({ "cleared": given, "pool": pool });
        output.fact(&format!("{}: the error counters are cleared", printable(given)), &facts);
        Ok(())
    })
}

fn add_spare(
    at: &ControlledPool,
    device: &Path,
    is_forced: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    let path = device.display().to_string();
    at.ask(&Request::DeviceAdd { device: device.to_owned(), is_forced })?;
    let facts = json!({ "added": path, "as": "spare", "pool": pool });
    output.fact(&format!("{} is a spare of {pool}", printable(&path)), &facts);
    Ok(())
}

fn one_spread(at: &ControlledPool) -> anyhow::Result<Option<String>> {
    let groups = at.groups()?;
    let one =
        groups.first().filter(|group| groups.len() == 1 && SPREAD.contains(&group.kind.as_str()));
    Ok(one.and_then(|group| group.slots.first()).map(u64::to_string))
}

/// Adds a device to the pool's raid5 or stripe if that is its only disk group, or else as a further
/// disk group.
fn add(
    at: &ControlledPool,
    device: &Path,
    (size_bytes, must_wait, is_forced): (Option<u64>, bool, bool),
    output: &Output,
) -> anyhow::Result<()> {
    if let Some(old) = one_spread(at)? {
        let how = (size_bytes, must_wait, is_forced);
        return attach(at, (&old, device, AttachModeName::Spread), (&old, how), output);
    }
    let group = add_for_data(at, device, size_bytes, is_forced)?;
    let (path, pool) = (device.display().to_string(), at.pool.display().to_string());
    let facts = json!({ "added": path, "as": "group", "group": group, "pool": pool });
    output.fact(&format!("{} is disk group {group} of {pool}", printable(&path)), &facts);
    Ok(())
}

fn add_for_data(
    at: &ControlledPool,
    device: &Path,
    size_bytes: Option<u64>,
    is_forced: bool,
) -> anyhow::Result<u64> {
    let pool = at.pool.display();
    let new = printable(&device.display().to_string());
    let size = size_bytes.map_or_else(String::new, |bytes| format!(" --size {}", ByteSize(bytes)));
    if let Some(group) = at.groups()?.into_iter().find(|group| group.kind != SINGLE) {
        anyhow::bail!(
            "{pool}: disk group {} is a {}, and this would be a disk group of one device, without \
             redundancy. Say what it is to be: `holdfast device add {pool} {new}{size} --{} OLD` \
             adds it to a disk group of that kind, with OLD one of its devices; `holdfast device \
             add {pool} {new} --spare` keeps an existing device as a spare; `holdfast group add \
             {pool} single:{new}{size}` adds a disk group without redundancy",
            group.number,
            group.kind,
            group.kind
        );
    }
    let (kind, devices) = (SINGLE.to_owned(), vec![device.to_owned()]);
    let new = NewGroup { kind, devices, size_bytes, is_forced, roles: Vec::new() };
    let Answer::Groups(added) = at.ask(&Request::GroupAdd(new))? else {
        anyhow::bail!("{pool}: the server answered nonsense");
    };
    let number = added.first().map(|group| group.number);
    number.ok_or_else(|| anyhow::anyhow!("{pool}: the server answered nonsense"))
}

fn grow(
    at: &ControlledPool,
    devices: &[String],
    size: Option<ByteSize>,
    output: &Output,
) -> anyhow::Result<()> {
    let devices = devices.iter().map(|device| asked(at, device)).collect::<Result<_, _>>()?;
    let size_bytes = size.map(|size| size.0);
    let Answer::Grown(grown) = at.ask(&Request::DeviceGrow { devices, size_bytes })? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display());
    };
    for facts in grown {
        output.fact(&grown_line(&facts), &json!(facts));
    }
    Ok(())
}

fn grown_line(facts: &GroupGrowthFacts) -> String {
    let GroupGrowthFacts { group, kind, was_bytes, member_bytes, more_bytes, limit } = facts;
    let limit = limit.as_deref().map(printable).unwrap_or_default();
    if *more_bytes == 0 {
        return format!("disk group {group} has gained nothing: {limit}");
    }
    let mut line = format!(
        "disk group {group}, a {kind}, has room for {} more: it used {} of each device, and uses \
         {}",
        ByteSize(*more_bytes),
        ByteSize(*was_bytes),
        ByteSize(*member_bytes)
    );
    if !limit.is_empty() {
        line += &format!("; it cannot use the rest: {limit}");
    }
    line
}

/// Attaches `device` to the disk group of `old`, as a further copy or member. Messages call the
/// group `shown`.
fn attach(
    at: &ControlledPool,
    (old, device, joining): (&str, &Path, AttachModeName),
    (shown, (size_bytes, must_wait, is_forced)): (&str, (Option<u64>, bool, bool)),
    output: &Output,
) -> anyhow::Result<()> {
    let (device, beside) = (device.to_owned(), asked(at, old)?);
    let path = device.display().to_string();
    let (is_spread, is_in_turn) =
        (joining == AttachModeName::Spread, joining == AttachModeName::InTurn);
    let request =
        Request::DeviceAttach { beside, device, size_bytes, is_forced, is_spread, is_in_turn };
    at.ask(&request)?;
    let (kind, words) = match joining {
        AttachModeName::Spread => {
            ("spread", "a job spreads what there is over it, and then there is more room")
        }
        AttachModeName::Copy => {
            (MIRROR, "it gets every write from now on, and is read when it has all")
        }
        AttachModeName::InTurn => (ROUND_ROBIN, "it has its turn of new files from now on"),
    };
    let facts = json!({ "added": path, "as": kind, "beside": shown });
    output.fact(&format!("{} joins {}: {words}", printable(&path), printable(shown)), &facts);
    if joining == AttachModeName::InTurn {
        return Ok(());
    }
    // Without a server, the job would stop when this command ends.
    if must_wait || !at.is_served() { wait(at, output) } else { Ok(()) }
}

/// Removes a spare, or a member from its disk group. If it is the only member, removes the group.
fn remove(
    at: &ControlledPool,
    chosen: &DeviceArgument,
    (must_wait, accepts_no_redundancy): (bool, bool),
    output: &Output,
) -> anyhow::Result<()> {
    let pool = at.pool.display();
    let name = named(&chosen.given);
    let Some(device) = chosen.facts.as_ref().filter(|it| !is_spare(it)) else {
        at.ask(&Request::DeviceRemove { device: chosen.asked.clone() })?;
        let facts = json!({ "removed": name, "pool": pool.to_string() });
        output.fact(&format!("{} is no spare any more", printable(&name)), &facts);
        return Ok(());
    };
    // Removing an earlier device may have changed the group, or removed this device too.
    let now = devices(at)?.into_iter().find(|it| it.id == device.id);
    let Some(device) = Some(device).filter(|it| it.id.is_empty()).or(now.as_ref()) else {
        let facts = json!({ "removed": name, "pool": pool.to_string() });
        output.fact(&format!("{} is of no pool any more", printable(&name)), &facts);
        return Ok(());
    };
    let group = at.groups()?.into_iter().find(|group| group.number == device.group);
    let group = group.ok_or_else(|| anyhow::anyhow!("{pool}: the server answered nonsense"))?;
    let (number, kind) = (group.number, &group.kind);
    if kind == MIRROR {
        // By ID, because a spare may take the slot at any time.
        let device = device.id.clone();
        at.ask(&Request::DeviceDetach { device, accepts_no_redundancy })?;
        let facts = json!({ "removed": name, "pool": pool.to_string(), "group": number });
        let words = if group.slots.len() == 2 {
            format!("disk group {number} is a single, without redundancy")
        } else {
            format!("disk group {number} is a mirror of {}", group.slots.len() - 1)
        };
        output.fact(&format!("{} is of no pool any more; {words}", printable(&name)), &facts);
        return Ok(());
    }
    if SPREAD.contains(&kind.as_str()) {
        return narrow(at, device, (number, must_wait), output);
    }
    if kind == ROUND_ROBIN {
        return take_out_of_turn(at, device, must_wait, output);
    }
    let number = u8::try_from(number)?;
    super::group::remove(at, number, must_wait, output)
}

fn take_out_of_turn(
    at: &ControlledPool,
    device: &DeviceFacts,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let request = Request::DeviceDetach { device: device.id.clone(), accepts_no_redundancy: false };
    at.ask(&request)?;
    let (pool, path) = (at.pool.display().to_string(), printable(&device.path));
    // The leaving device is a disk group of its own by now.
    let now = devices(at)?.into_iter().find(|it| it.id == device.id);
    let group = now.map(|device| u8::try_from(device.group)).transpose()?;
    if let (Some(group), false, true) = (group, must_wait, at.is_served()) {
        let facts = json!({ "leaving": device.path, "pool": pool, "group": group });
        let words = "leaves: a job moves what it holds elsewhere, and it is disk group";
        output.fact(&format!("{path} {words} {group} until it is gone"), &facts);
        return Ok(());
    }
    if let Some(group) = group {
        super::group::wait_until_gone(at, group, output)?;
    }
    let facts = json!({ "removed": device.path, "pool": pool });
    output.fact(&format!("{path} is of no pool any more"), &facts);
    Ok(())
}

fn narrow(
    at: &ControlledPool,
    device: &DeviceFacts,
    (number, must_wait): (u64, bool),
    output: &Output,
) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    let path = printable(&device.path);
    let request = Request::DeviceDetach { device: device.id.clone(), accepts_no_redundancy: false };
    at.ask(&request)?;
    let is_there = |at: &ControlledPool| -> anyhow::Result<bool> {
        Ok(devices(at)?.iter().any(|it| it.id == device.id))
    };
    // Without a server, the job would stop when this command ends.
    if !must_wait && at.is_served() && is_there(at)? {
        let facts = json!({ "leaving": device.path, "pool": pool, "group": number });
        let words = "leaves: a job moves what it holds to the other devices";
        output.fact(&format!("{path} {words}"), &facts);
        return Ok(());
    }
    let mut waiting = JobWait::new(output)?;
    loop {
        let jobs = at.jobs()?;
        let job = jobs.iter().find(|job| job.name.starts_with(TAKING_OUT));
        if job.is_none() && !is_there(at)? {
            waiting.finish();
            let facts = json!({ "removed": device.path, "pool": pool, "group": number });
            output.fact(&format!("{path} is of no pool any more"), &facts);
            return Ok(());
        }
        waiting.step(at, (WorkUnit::Share, "moved"), job)?;
    }
}

/// Returns the name by which the server may know a device. The path of an existing device is made
/// canonical.
fn named(device: &str) -> String {
    let is_path = device.contains('/') || Path::new(device).exists();
    let whole = if is_path { std::fs::canonicalize(device).ok() } else { None };
    whole.map_or_else(|| device.to_owned(), |whole| whole.display().to_string())
}

/// Returns the name to use in requests: the ID if known, because the server has another working
/// directory and paths may change.
fn asked(at: &ControlledPool, given: &str) -> anyhow::Result<String> {
    let whole = named(given);
    let found = the_one_here(devices(at)?, &whole);
    let found = found.map_err(|words| anyhow::anyhow!("{}: {words}", at.pool.display()))?;
    let id = found.map(|facts| facts.id).filter(|id| !id.is_empty());
    Ok(id.unwrap_or(whole))
}

fn replace(
    at: &ControlledPool,
    (old, new): (&str, &Path),
    (must_wait, is_forced): (bool, bool),
    output: &Output,
) -> anyhow::Result<()> {
    let new = std::path::absolute(new)?;
    let path = new.display().to_string();
    let own = the_one_here(devices(at)?, &named(old)).ok().flatten().filter(|it| !is_spare(it));
    if let Some(device) = own {
        let mut groups = at.groups()?.into_iter();
        if groups.any(|group| group.number == device.group && group.kind == ROUND_ROBIN) {
            // A round-robin group has no copies, so the new device is attached first, and the job
            // that removes the old one moves its files.
            let how = (None, false, is_forced);
            attach(at, (&device.id, &new, AttachModeName::InTurn), (&device.path, how), output)?;
            return take_out_of_turn(at, &device, must_wait, output);
        }
    }
    at.ask(&Request::DeviceReplace { old: asked(at, old)?, new, is_forced })?;
    let facts = json!({ "replaced": old, "by": path });
    output.fact(&format!("{} is replaced by {}", printable(old), printable(&path)), &facts);
    if must_wait || !at.is_served() { wait(at, output) } else { Ok(()) }
}

fn online(
    at: &ControlledPool,
    chosen: &DeviceArgument,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    at.ask(&Request::DeviceOnline { device: chosen.asked.clone() })?;
    let device = &chosen.given;
    let facts = json!({ "online": device, "pool": at.pool.display().to_string() });
    let words = "is back, and gets what was written while it was away";
    output.fact(&format!("{} {words}", printable(device)), &facts);
    if must_wait || !at.is_served() { wait(at, output) } else { Ok(()) }
}

fn wait(at: &ControlledPool, output: &Output) -> anyhow::Result<()> {
    let mut waiting = JobWait::new(output)?;
    loop {
        let is_joining = devices(at)?.iter().any(|device| device.state == "joining");
        let jobs = at.jobs()?;
        let named = |name: &str| jobs.iter().find(|job| job.name.starts_with(name));
        let spreading = named(SPREADING);
        if !is_joining && spreading.is_none() {
            waiting.finish();
            return tell_lost(at, output);
        }
        stop_with_its_job(at, &jobs)?;
        match REBUILDING.iter().find_map(|name| named(name)).filter(|_| is_joining) {
            None if !is_joining => {
                waiting.step(at, (WorkUnit::Items("segments"), "spread"), spreading)?;
            }
            job => waiting.step(at, (WorkUnit::Bytes(""), "rebuilt"), job)?,
        }
    }
}

const OTHER_JOBS: [&str; 2] = ["scrub", "freeing "];

/// Fails if a job has stopped, except those that have nothing to do with devices.
fn stop_with_its_job(at: &ControlledPool, jobs: &[JobFacts]) -> anyhow::Result<()> {
    let is_other = |job: &&JobFacts| OTHER_JOBS.iter().any(|word| job.name.starts_with(word));
    jobs.iter().filter(|job| !is_other(job)).try_for_each(|job| check_goes_on(at, job))
}

/// Reports the blocks that the rebuild could not recover.
fn tell_lost(at: &ControlledPool, output: &Output) -> anyhow::Result<()> {
    for device in devices(at)?.into_iter().filter(|device| device.lost > 0) {
        let (lost, names) = (device.lost, device.lost_names.join("\n  "));
        let words = format!(
            "{}: {lost} blocks and pages are lost, for no other device gives them: {}\n  {names}",
            printable(&device.path),
            "restore these files from a backup"
        );
        output.fact(&words, &json!({ "lost": lost, "lost_names": device.lost_names }));
    }
    Ok(())
}

fn devices(at: &ControlledPool) -> anyhow::Result<Vec<DeviceFacts>> {
    let Answer::Devices(list) = at.ask(&Request::DeviceList {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display());
    };
    Ok(list)
}

fn is_spare(device: &DeviceFacts) -> bool {
    device.state.starts_with("spare")
}

fn list(devices: &[DeviceFacts], output: &Output) {
    let columns = [
        Left("DEVICE"),
        Right("SLOT"),
        Right("GROUP"),
        Left("STATE"),
        Right("SIZE"),
        Right("READ"),
        Right("WRITE"),
        Right("CKSUM"),
        Right("REPAIRED"),
        Left("ID"),
        IfAny("NOTES"),
    ];
    output.list(devices, "There are no devices.", columns, row_of);
}

fn row_of(device: &DeviceFacts) -> [String; 11] {
    let is_member = !is_spare(device);
    let number = |number: u64| if is_member { number.to_string() } else { String::new() };
    let mut notes = Vec::new();
    if device.lost > 0 {
        notes.push(format!("{} lost in the rebuild", device.lost));
    }
    if device.state == "joining" {
        notes.push(format!("{} rebuilt", ByteSize(device.copied_bytes)));
    } else if device.missed_bytes > 0 {
        notes.push(format!("{} changed while it is away", ByteSize(device.missed_bytes)));
    }
    [
        device.path.clone(),
        number(device.slot),
        number(device.group),
        device.state.clone(),
        ByteSize(device.size_bytes).to_string(),
        number(device.read_errors),
        number(device.write_errors),
        number(device.checksum_errors),
        number(device.repaired),
        device.id.clone(),
        notes.join(", "),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_has_a_slot_and_counts_and_a_spare_has_none() {
        let device = DeviceFacts {
            slot: 3,
            group: 1,
            path: "/d3".to_owned(),
            state: "online".to_owned(),
            read_errors: 7,
            ..DeviceFacts::default()
        };
        assert_eq!(row_of(&device)[..6], ["/d3", "3", "1", "online", "0", "7"]);
        let spare = DeviceFacts { state: "spare".to_owned(), ..device };
        assert_eq!(row_of(&spare)[..6], ["/d3", "", "", "spare", "0", ""]);
    }
}
