//! `holdfast device`: shows the devices of a pool, fails, replaces and brings them back, attaches
//! and removes them, keeps spares, and uses devices that have become longer.

mod chosen;
mod failing;

use std::path::Path;

use format::members::Layout;
use serde_json::json;

use self::chosen::{Chosen, Unknown};
use super::controlled::{Controlled, Opener};
use crate::args::device::{DeviceArgs, DeviceCommand, Joining};
use crate::backend::Backend;
use crate::control::device::the_one_here;
use crate::control::{Answer, DeviceFacts, GrownFacts, JobFacts, NewGroup, Request};
use crate::exit;
use crate::named::Named;
use crate::output::{Output, printable};
use crate::patience::Patience;
use crate::size::ByteSize;

/// The kind of a disk group of one device.
const SINGLE: &str = "single";
/// That of one whose devices hold the same.
const MIRROR: &str = "mirror";
/// That of one whose devices have files of their own.
const ROUND_ROBIN: &str = "round-robin";

/// Those of one whose segments lie over all of its devices, with parity and without.
const SPREAD: [&str; 2] = ["raid5", "stripe"];
/// How the name of the job begins that spreads one of these over a device more.
const SPREADING: &str = "spreading ";
/// That of the one that takes a device out of one.
const TAKING_OUT: &str = "taking a device out ";

pub(crate) fn run(args: &DeviceArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let is_change = !matches!(args.command, DeviceCommand::List { .. });
    let opener = Opener { backend, members: &args.members };
    let at = match (Controlled::find(args.command.pool(), opener, is_change), &args.command) {
        (Err(refused), DeviceCommand::List { pool, devices: names }) => {
            return list_by_labels((pool, names), opener, refused, output);
        }
        (at, _) => at?,
    };
    let done = done(&at, &args.command, output);
    at.finish(done)?;
    Ok(exit::DONE)
}

/// Shows what labels tell of a pool that cannot be opened, which `refused` says why.
fn list_by_labels(
    (pool, names): (&Path, &[String]),
    opener: Opener<'_>,
    refused: anyhow::Error,
    output: &Output,
) -> anyhow::Result<u8> {
    let listed = Named::of(pool).ok().and_then(|named| named.device().ok());
    let listed = listed.and_then(|path| opener.backend.listed(&path, &opener.members.hints()).ok());
    // Of one device the refusal says more.
    let Some(all) = listed.filter(|all| all.len() > 1 && names.is_empty()) else {
        return Err(refused);
    };
    let has_groups = all.iter().any(|device| device.group > 0);
    for device in all {
        output.fact(&line_of(&device, has_groups), &json!(device));
    }
    output.warning(&format!(
        "the pool could not be opened, so the list shows what the labels say: {refused}"
    ));
    Ok(exit::DONE)
}

fn done(at: &Controlled, command: &DeviceCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        DeviceCommand::List { devices: names, .. } => {
            let all = devices(at)?;
            let has_groups = all.iter().any(|device| device.group > 0);
            let chosen = chosen::of_pool(at, &all, names, Unknown::Refused)?;
            let mut chosen: Vec<DeviceFacts> =
                chosen.into_iter().filter_map(|it| it.facts).collect();
            if names.is_empty() {
                chosen = all;
            }
            for device in chosen {
                output.fact(&line_of(&device, has_groups), &json!(device));
            }
            Ok(())
        }
        DeviceCommand::Fail { devices: names, wait, .. } => {
            let chosen = chosen::of_pool(at, &devices(at)?, names, Unknown::Refused)?;
            failing::fail(at, &chosen, *wait, output)
        }
        DeviceCommand::Clear { devices: names, .. } => clear(at, names, output),
        DeviceCommand::Replace { old, new, wait: must_wait, force, .. } => {
            replace(at, (old, new), (*must_wait, *force), output)
        }
        DeviceCommand::Online { devices: names, wait, .. } => {
            let chosen = chosen::of_pool(at, &devices(at)?, names, Unknown::Allowed)?;
            chosen::each(&chosen, output, &mut |device, has_next| {
                // One joins at a time.
                online(at, device, *wait || has_next, output)
            })
        }
        DeviceCommand::Add { devices, spare, joins, size, wait, force, .. } => {
            let chosen = chosen::to_come(devices)?;
            chosen::each(&chosen, output, &mut |device, has_next| {
                // One joins at a time.
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
            let chosen = chosen::of_pool(at, &devices(at)?, names, Unknown::Refused)?;
            check_enough_stay(at, &chosen)?;
            chosen::each(&chosen, output, &mut |device, has_next| {
                // One leaves at a time.
                remove(at, device, (*wait || has_next, *accept_no_redundancy), output)
            })
        }
    }
}

/// Refuses devices of which the first could leave a raid5 or stripe, and the others could not then.
fn check_enough_stay(at: &Controlled, chosen: &[Chosen]) -> anyhow::Result<()> {
    if chosen.len() < 2 {
        return Ok(());
    }
    for group in at.groups()? {
        let least = match group.kind.as_str() {
            "raid5" => *Layout::Raid5 { unit_shift: 0 }.widths().start(),
            "stripe" => *Layout::Stripe { unit_shift: 0 }.widths().start(),
            _ => continue,
        };
        let is_own = |device: &&Chosen| {
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

/// Clears the error counters of devices; with no names, of all devices.
fn clear(at: &Controlled, names: &[String], output: &Output) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    if names.is_empty() {
        at.ask(&Request::DeviceClear { device: None })?;
        let facts = json!({ "cleared": pool });
        output.fact(&format!("{pool}: the error counters of all devices are cleared"), &facts);
        return Ok(());
    }
    let chosen = chosen::of_pool(at, &devices(at)?, names, Unknown::Refused)?;
    chosen::each(&chosen, output, &mut |device, _| {
        at.ask(&Request::DeviceClear { device: Some(device.asked.clone()) })?;
        let given = &device.given;
        let facts = json!({ "cleared": given, "pool": pool });
        output.fact(&format!("{}: the error counters are cleared", printable(given)), &facts);
        Ok(())
    })
}

/// Keeps a device as a spare.
fn add_spare(
    at: &Controlled,
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

/// Returns a member of the raid5 or stripe that is all of a pool: a device that is added goes
/// there. `None`: the pool is another.
fn one_spread(at: &Controlled) -> anyhow::Result<Option<String>> {
    let groups = at.groups()?;
    let one =
        groups.first().filter(|group| groups.len() == 1 && SPREAD.contains(&group.kind.as_str()));
    Ok(one.and_then(|group| group.slots.first()).map(u64::to_string))
}

/// Adds a device where it belongs: to the raid5 or stripe that the pool is, or as a disk group of
/// its own.
fn add(
    at: &Controlled,
    device: &Path,
    (size_bytes, must_wait, is_forced): (Option<u64>, bool, bool),
    output: &Output,
) -> anyhow::Result<()> {
    if let Some(old) = one_spread(at)? {
        let how = (size_bytes, must_wait, is_forced);
        return attach(at, (&old, device, Joining::Spread), (&old, how), output);
    }
    let group = add_for_data(at, device, size_bytes, is_forced)?;
    let (path, pool) = (device.display().to_string(), at.pool.display().to_string());
    let facts = json!({ "added": path, "as": "group", "group": group, "pool": pool });
    output.fact(&format!("{} is disk group {group} of {pool}", printable(&path)), &facts);
    Ok(())
}

/// Adds a device as a disk group of its own; returns the number of that.
fn add_for_data(
    at: &Controlled,
    device: &Path,
    size_bytes: Option<u64>,
    is_forced: bool,
) -> anyhow::Result<u64> {
    let pool = at.pool.display();
    if let Some(group) = at.groups()?.into_iter().find(|group| group.kind != SINGLE) {
        anyhow::bail!(
            "{pool}: disk group {} is a {}, and this would be a disk group of one device, without \
             redundancy: if the pool is to have one, say so (`holdfast group add {pool} \
             single:{}`); or make it a copy more of a mirror (`device add --mirror OLD`), spread \
             a raid5 or stripe over it (`device add --raid5 OLD`, `--stripe OLD`), have files in \
             turn with a round-robin there (`device add --round-robin OLD`), or keep it as a \
             spare (`device add --spare`)",
            group.number,
            group.kind,
            printable(&device.display().to_string())
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

/// Makes disk groups longer, and says what each has gained.
fn grow(
    at: &Controlled,
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

fn grown_line(facts: &GrownFacts) -> String {
    let GrownFacts { group, kind, was_bytes, member_bytes, more_bytes, limit } = facts;
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

/// Makes a device a copy more of the disk group of `old`, or one more of its raid5, stripe or
/// round-robin; that one is told as `shown`.
fn attach(
    at: &Controlled,
    (old, device, joining): (&str, &Path, Joining),
    (shown, (size_bytes, must_wait, is_forced)): (&str, (Option<u64>, bool, bool)),
    output: &Output,
) -> anyhow::Result<()> {
    let (device, beside) = (device.to_owned(), asked(at, old)?);
    let path = device.display().to_string();
    let (is_spread, is_in_turn) = (joining == Joining::Spread, joining == Joining::InTurn);
    let request =
        Request::DeviceAttach { beside, device, size_bytes, is_forced, is_spread, is_in_turn };
    at.ask(&request)?;
    let (kind, words) = match joining {
        Joining::Spread => {
            ("spread", "a job spreads what there is over it, and then there is more room")
        }
        Joining::Copy => (MIRROR, "it gets every write from now on, and is read when it has all"),
        Joining::InTurn => (ROUND_ROBIN, "it has its turn of new files from now on"),
    };
    let facts = json!({ "added": path, "as": kind, "beside": shown });
    output.fact(&format!("{} joins {}: {words}", printable(&path), printable(shown)), &facts);
    if joining == Joining::InTurn {
        return Ok(());
    }
    // Without a server nobody else goes on with the copy.
    if must_wait || !at.is_served() { wait(at, output) } else { Ok(()) }
}

/// Takes out a spare, one of a mirror, raid5, stripe or round-robin, or the disk group of which
/// `chosen` is the only device.
fn remove(
    at: &Controlled,
    chosen: &Chosen,
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
    // What it is part of may have changed while another left.
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
        // By what it is, not by where: a spare may take its slot meanwhile.
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

/// Takes `device` out of its round-robin: a job moves what it holds to the others, and elsewhere.
fn take_out_of_turn(
    at: &Controlled,
    device: &DeviceFacts,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let request = Request::DeviceDetach { device: device.id.clone(), accepts_no_redundancy: false };
    at.ask(&request)?;
    let (pool, path) = (at.pool.display().to_string(), printable(&device.path));
    // It is a disk group of its own until it is gone.
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

/// Takes `device` out of its disk group, a raid5 or stripe: a job moves what it holds to the
/// others.
fn narrow(
    at: &Controlled,
    device: &DeviceFacts,
    (number, must_wait): (u64, bool),
    output: &Output,
) -> anyhow::Result<()> {
    let pool = at.pool.display().to_string();
    let path = printable(&device.path);
    let request = Request::DeviceDetach { device: device.id.clone(), accepts_no_redundancy: false };
    at.ask(&request)?;
    let is_there = |at: &Controlled| -> anyhow::Result<bool> {
        Ok(devices(at)?.iter().any(|it| it.id == device.id))
    };
    // Without a server nobody else goes on with it. One to which nothing was moved is gone at once.
    if !must_wait && at.is_served() && is_there(at)? {
        let facts = json!({ "leaving": device.path, "pool": pool, "group": number });
        let words = "leaves: a job moves what it holds to the other devices";
        output.fact(&format!("{path} {words}"), &facts);
        return Ok(());
    }
    let (mut progress, mut patience) = (output.progress(), Patience::new());
    loop {
        let jobs = at.jobs()?;
        let job = jobs.into_iter().find(|job| job.name.starts_with(TAKING_OUT));
        let is_there = is_there(at)?;
        match job {
            Some(job) => {
                check_goes_on(at, &job)?;
                progress.tell("moved", job.done, job.total);
            }
            None if is_there => {}
            None => {
                progress.finish();
                let facts = json!({ "removed": device.path, "pool": pool, "group": number });
                output.fact(&format!("{path} is of no pool any more"), &facts);
                return Ok(());
            }
        }
        patience.wait();
    }
}

/// Returns a device as the server finds it: a path that leads somewhere from here in full.
fn named(device: &str) -> String {
    let is_path = device.contains('/') || Path::new(device).exists();
    let whole = if is_path { std::fs::canonicalize(device).ok() } else { None };
    whole.map_or_else(|| device.to_owned(), |whole| whole.display().to_string())
}

/// Returns how the pool is asked for the device that `given` names: by what it is, for the server
/// has another directory, and a path may lead elsewhere by now.
fn asked(at: &Controlled, given: &str) -> anyhow::Result<String> {
    let whole = named(given);
    let found = the_one_here(devices(at)?, &whole);
    let found = found.map_err(|words| anyhow::anyhow!("{}: {words}", at.pool.display()))?;
    let id = found.map(|facts| facts.id).filter(|id| !id.is_empty());
    Ok(id.unwrap_or(whole))
}

fn replace(
    at: &Controlled,
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
            // Nothing is a copy of what one has: another comes, and then it goes.
            let how = (None, false, is_forced);
            attach(at, (&device.id, &new, Joining::InTurn), (&device.path, how), output)?;
            return take_out_of_turn(at, &device, must_wait, output);
        }
    }
    at.ask(&Request::DeviceReplace { old: asked(at, old)?, new, is_forced })?;
    let facts = json!({ "replaced": old, "by": path });
    output.fact(&format!("{} is replaced by {}", printable(old), printable(&path)), &facts);
    // Without a server nobody else goes on with the copy.
    if must_wait || !at.is_served() { wait(at, output) } else { Ok(()) }
}

fn online(
    at: &Controlled,
    chosen: &Chosen,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    at.ask(&Request::DeviceOnline { device: chosen.asked.clone() })?;
    let device = &chosen.given;
    let facts = json!({ "online": device, "pool": at.pool.display().to_string() });
    let words = "is back, and gets what was written while it was away";
    output.fact(&format!("{} {words}", printable(device)), &facts);
    // Without a server nobody else goes on with it.
    if must_wait || !at.is_served() { wait(at, output) } else { Ok(()) }
}

/// Waits until no device is joining any more.
fn wait(at: &Controlled, output: &Output) -> anyhow::Result<()> {
    let (mut progress, mut patience) = (output.progress(), Patience::new());
    loop {
        let joining = devices(at)?.into_iter().find(|device| device.state == "joining");
        let jobs = at.jobs()?;
        let spreading = jobs.iter().find(|job| job.name.starts_with(SPREADING)).cloned();
        match (joining, spreading) {
            (Some(device), _) => {
                progress.tell("made anew, in bytes", device.copied_bytes, device.pool_bytes);
            }
            (None, Some(job)) => {
                let (done, total) = (job.done, job.total);
                progress.tell("spread, in segments", done, total);
            }
            (None, None) => {
                progress.finish();
                return tell_lost(at, output);
            }
        }
        stop_with_its_job(at, &jobs)?;
        patience.wait();
    }
}

/// How the names of jobs begin that no device waits for.
const OTHER_JOBS: [&str; 2] = ["scrub", "freeing "];

/// Waits no longer for a job that does not go on.
fn stop_with_its_job(at: &Controlled, jobs: &[JobFacts]) -> anyhow::Result<()> {
    let is_other = |job: &&JobFacts| OTHER_JOBS.iter().any(|word| job.name.starts_with(word));
    jobs.iter().filter(|job| !is_other(job)).try_for_each(|job| check_goes_on(at, job))
}

/// Refuses to wait for a job that was paused or has failed.
fn check_goes_on(at: &Controlled, job: &JobFacts) -> anyhow::Result<()> {
    if !job.is_paused && job.failure.is_none() {
        return Ok(());
    }
    let why = job.failure.as_deref().unwrap_or("it was paused");
    let (pool, id, name) = (at.pool.display(), job.id, &job.name);
    anyhow::bail!("{pool}: {name} has stopped ({why}): `holdfast job resume {pool} {id}`")
}

/// Says what no other device gave.
fn tell_lost(at: &Controlled, output: &Output) -> anyhow::Result<()> {
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

fn devices(at: &Controlled) -> anyhow::Result<Vec<DeviceFacts>> {
    let Answer::Devices(list) = at.ask(&Request::DeviceList {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display());
    };
    Ok(list)
}

fn is_spare(device: &DeviceFacts) -> bool {
    device.state.starts_with("spare")
}

/// Returns what is said of a device, with its disk group where there are several.
fn line_of(device: &DeviceFacts, has_groups: bool) -> String {
    let DeviceFacts { slot, group, path, state, id, .. } = device;
    let path = if path.is_empty() { "(no path is known)" } else { path };
    let is_spare = is_spare(device);
    let slot = if is_spare { "-".to_owned() } else { slot.to_string() };
    let group = match (has_groups, is_spare) {
        (false, _) => String::new(),
        (true, true) => "group -  ".to_owned(),
        (true, false) => format!("group {group}  "),
    };
    let mut line = format!(
        "{slot}  {group}{state:<8}  {}  {}  id {id}",
        printable(path),
        ByteSize(device.size_bytes)
    );
    for (count, what) in [
        (device.read_errors, "reads failed"),
        (device.write_errors, "writes failed"),
        (device.checksum_errors, "did not verify"),
        (device.repaired, "repaired"),
        (device.lost, "lost in the rebuild"),
    ] {
        if count > 0 {
            line += &format!(", {count} {what}");
        }
    }
    if device.missed_bytes > 0 && state != "joining" {
        line += &format!(", {} changed while it is away", ByteSize(device.missed_bytes));
    }
    if state == "joining" {
        line += &format!(", {} made anew", ByteSize(device.copied_bytes));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the disk group of a device is named where there are several, and a spare has none.
    #[test]
    fn a_line_names_the_disk_group_where_there_are_several() {
        let device = DeviceFacts {
            slot: 3,
            group: 1,
            path: "/d3".to_owned(),
            state: "online".to_owned(),
            ..DeviceFacts::default()
        };
        assert!(line_of(&device, true).starts_with("3  group 1  online    /d3"));
        assert!(line_of(&device, false).starts_with("3  online    /d3"));
        let spare = DeviceFacts { state: "spare".to_owned(), ..device };
        assert!(line_of(&spare, true).starts_with("-  group -  spare     /d3"));
    }
}
