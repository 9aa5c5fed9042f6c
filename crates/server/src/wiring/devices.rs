//! Administrative requests about the devices of an open pool.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::api::FileSystem as _;
use engine::{MemberStatus, Pool, PoolStatus, ScrubReport, SpareStatus};
use format::members::{Layout, MemberState};
use format::superblock::SuperblockError;
use storage::device::{Device, FileDevice, FileOptions, RequestKind};
use storage::pool::{PoolError, check_writable};
use storage::volume::{AttachError, ReplaceError, ReturnError, SpareError};

use super::blank::what_is_there;
use super::shares::DevicePoolRanges;
use super::{
    EnginePool, cannot_open, cannot_use, failed, failures, open_device_with, random_bytes,
    refuse_used,
};
use crate::backend::BackendError;
use crate::holders::mount_from;
use crate::named_device::the_one;
use crate::neighbours::LinuxHostProcesses;
use control::{DeviceFacts, Request};

/// Number of polls while a device that was detached or closed has requests in flight. Together they
/// take five seconds.
const ANSWERS_WAITED_FOR: u32 = 100;
const ANSWER_POLL: Duration = Duration::from_millis(50);

/// Returns the devices of a pool, spares included. The entry of a pool on a single device has few
/// facts.
pub(super) fn list(pool: &Pool) -> Vec<DeviceFacts> {
    let status = pool.status();
    let spares = spares_of(&status);
    let pool_bytes = status.geometry.member_bytes();
    let mut devices: Vec<DeviceFacts> =
        status.members.iter().map(|member| facts_of(member, &status)).collect();
    if devices.is_empty() {
        devices.push(DeviceFacts {
            path: status.device,
            state: "online".to_owned(),
            size_bytes: pool_bytes,
            pool_bytes,
            ..DeviceFacts::default()
        });
    }
    devices.extend(spares);
    devices
}

pub(super) fn spares_of(status: &PoolStatus) -> Vec<DeviceFacts> {
    let facts = |(slot, SpareStatus { spare, is_there }): (u64, &SpareStatus)| DeviceFacts {
        slot,
        id: hex(spare.id),
        path: format::text::shown(&spare.path),
        state: if *is_there { "spare" } else { "spare away" }.to_owned(),
        size_bytes: spare.size_bytes,
        ..DeviceFacts::default()
    };
    // Not the number of members, because slots of removed members stay unused.
    let slots = status.members.iter().map(|member| member.slot + 1);
    let behind = u64::try_from(slots.max().unwrap_or(0)).unwrap_or(0);
    (behind..).zip(&status.spares).map(facts).collect()
}

pub(super) fn hex(id: [u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn change(served: &EnginePool, request: &Request) -> Option<Result<(), BackendError>> {
    let is_of_members = matches!(
        request,
        Request::DeviceFail { .. }
            | Request::DeviceReplace { .. }
            | Request::DeviceOnline { .. }
            | Request::DeviceAdd { .. }
            | Request::DeviceRemove { .. }
            | Request::DeviceAttach { .. }
            | Request::DeviceDetach { .. }
    );
    if let (true, Err(error)) = (is_of_members, served.pool.devices().check_members_change()) {
        return Some(Err(failed(&served.path, error)));
    }
    if let Request::DeviceFail { device } = request {
        Some(fail(served, device))
    } else if let Request::DeviceClear { device } = request {
        Some(clear(served, device.as_deref()))
    } else if let Request::DeviceReplace { old, new, is_forced } = request {
        Some(replace(served, old, new, *is_forced))
    } else if let Request::DeviceOnline { device } = request {
        Some(online(served, device))
    } else if let Request::DeviceAdd { device, is_forced } = request {
        Some(add_spare(served, device, *is_forced))
    } else if let Request::DeviceRemove { device } = request {
        Some(remove_spare(served, device))
    } else if let Request::DeviceAttach {
        beside,
        device,
        size_bytes,
        is_forced,
        is_spread,
        is_in_turn,
    } = request
    {
        let how = match (is_spread, is_in_turn) {
            (_, true) => AttachMode::InTurn,
            (true, false) => AttachMode::Spread,
            (false, false) => AttachMode::Copy,
        };
        Some(attach(served, (beside, how), device, (*size_bytes, *is_forced)))
    } else if let Request::DeviceDetach { device, accepts_no_redundancy } = request {
        Some(detach(served, device, *accepts_no_redundancy))
    } else {
        None
    }
}

pub(super) fn facts_of(status: &MemberStatus, pool: &PoolStatus) -> DeviceFacts {
    let MemberStatus { slot, member, counts, rebuilt } = status;
    let geometry = &pool.geometry;
    let group = pool.groups.iter().find(|group| group.slots.contains(*slot));
    let share = group.map(|group| DevicePoolRanges::of(geometry, group, *slot));
    let pool_bytes = share.as_ref().map_or(geometry.member_bytes(), |share| share.device_bytes);
    let rebuilt = rebuilt.clone().unwrap_or_default();
    // The cursor counts MiB of the pool.
    let cursor = u64::from(member.copied_mib) << 20;
    let copied_bytes = share.as_ref().map_or(0, |share| share.walked(cursor));
    let missed_bytes = share.zip(member.missed);
    let missed_bytes = missed_bytes.map_or(0, |(share, missed)| share.missed(geometry, missed));
    let io = |kind| counts.io.of_kind(kind);
    DeviceFacts {
        slot: u64::try_from(*slot).unwrap_or(0),
        group: group.map_or(0, |group| u64::from(group.number)),
        id: hex(member.id),
        path: format::text::shown(&member.path),
        state: member.state.word().to_owned(),
        size_bytes: member.size_bytes,
        pool_bytes,
        missed_bytes,
        copied_bytes,
        lost: rebuilt.lost,
        lost_names: rebuilt.names,
        reads: io(RequestKind::Read).requests,
        read_bytes: io(RequestKind::Read).bytes,
        writes: io(RequestKind::Write).requests,
        written_bytes: io(RequestKind::Write).bytes,
        flushes: io(RequestKind::Flush).requests,
        read_errors: counts.read_errors,
        write_errors: counts.write_errors,
        checksum_errors: counts.checksum_errors,
        repaired: counts.repaired,
    }
}

pub(super) fn named(served: &EnginePool, name: &str) -> Result<DeviceFacts, BackendError> {
    let found = the_one(list(&served.pool), name).map_err(|words| failed(&served.path, words))?;
    found.ok_or_else(|| {
        let pool = served.path.display();
        let words = format!("there is no device {name}: `holdfast device list {pool}` shows them");
        failed(&served.path, words)
    })
}

pub(super) fn is_spare(device: &DeviceFacts) -> bool {
    device.state.starts_with("spare")
}

fn slot_of(served: &EnginePool, name: &str) -> Result<usize, BackendError> {
    let device = named(served, name)?;
    if is_spare(&device) {
        let (pool, path) = (served.path.display(), &device.path);
        let words = format!(
            "{path} is a spare, which holds nothing: `holdfast device remove {pool} {path}` takes \
             it out"
        );
        return Err(failed(&served.path, words));
    }
    Ok(usize::try_from(device.slot).unwrap_or(usize::MAX))
}

fn refused(served: &EnginePool, error: &ReplaceError) -> BackendError {
    failed(&served.path, error)
}

fn add_spare(served: &EnginePool, path: &Path, is_forced: bool) -> Result<(), BackendError> {
    let id = *random_bytes()?.first_chunk().expect("16 of 64 bytes");
    refuse_own(served, path)?;
    let was_there = path.exists();
    // Which member the spare replaces is decided when one fails. So it must fit at least the
    // smallest member that has redundancy.
    let status = served.pool.status();
    let is_of_use = |layout: Layout| matches!(layout, Layout::Mirror | Layout::Raid5 { .. });
    let groups = status.groups.iter().filter(|group| is_of_use(group.layout));
    let needed = groups.map(|group| group.member_bytes).min();
    let needed = needed.unwrap_or(status.geometry.member_bytes());
    let device = device_for(path, needed, is_forced, "device add --spare --force")?;
    let added = served.pool.devices().add_spare(Arc::<FileDevice>::clone(&device), id);
    added.map_err(|error| {
        // Removes the file if it was created here, unless a label may list the device already.
        let may_be_listed =
            matches!(error, SpareError::Device(_) | SpareError::Unfit(ReplaceError::Device(_)));
        if !was_there && !may_be_listed {
            let _ = std::fs::remove_file(path);
        }
        let is_single = matches!(error, SpareError::Unfit(ReplaceError::NotSeveral));
        let words = if is_single {
            "the pool lies on one device, and no other can take its place: spares are for a mirror \
             or raid5"
                .to_owned()
        } else {
            error.to_string()
        };
        failed(&served.path, words)
    })?;
    served.watch(path, &device);
    Ok(())
}

fn remove_spare(served: &EnginePool, name: &str) -> Result<(), BackendError> {
    let device = named(served, name)?;
    let pool = served.path.display();
    let id = served.pool.devices().spares().into_iter().map(|spare| spare.spare.id);
    let Some(id) = id.into_iter().find(|id| hex(*id) == device.id) else {
        let words = format!(
            "{name} is a member of the pool, and only spares can be removed: `holdfast device \
             replace {pool} {name} NEW` puts another in its place"
        );
        return Err(failed(&served.path, words));
    };
    served.pool.devices().remove_spare(id).map_err(|error| failed(&served.path, error))?;
    Ok(())
}

fn fail(served: &EnginePool, name: &str) -> Result<(), BackendError> {
    let slot = slot_of(served, name)?;
    let device = named(served, name)?;
    let at = if device.path.is_empty() { &served.path } else { Path::new(&device.path) };
    served.pool.devices().fail_member(slot).map_err(|error| failed(at, error))
}

fn clear(served: &EnginePool, name: Option<&str>) -> Result<(), BackendError> {
    let slot = name.map(|name| slot_of(served, name)).transpose()?;
    served.pool.devices().clear_errors(slot);
    Ok(())
}

/// Brings back the named device: an absent member, or a device at the path `name` that is one.
fn online(served: &EnginePool, name: &str) -> Result<(), BackendError> {
    let words = |error: &dyn std::fmt::Display| failed(&served.path, error);
    let known = the_one(list(&served.pool), name).map_err(|error| words(&error))?;
    if let Some(device) = known.as_ref().filter(|device| device.state == "online") {
        return Err(words(&format!("{} is online: there is nothing to bring back", device.path)));
    }
    if known.as_ref().is_some_and(|device| device.state == "joining") {
        return Ok(());
    }
    let slot = known.as_ref().filter(|device| !is_spare(device)).map(|device| device.slot);
    let slot = slot.and_then(|slot| usize::try_from(slot).ok());
    // A missing member whose device was found at the open, and has not failed since, is still open
    // and can be used.
    let is_missing = known.as_ref().is_some_and(|device| device.state == "missing");
    if let Some(slot) = slot.filter(|_| is_missing)
        && served.pool.devices().return_member_in(slot).is_ok()
    {
        return Ok(());
    }
    // The member's old file is still locked, so it must be closed before the device is opened
    // again. Without a known slot, all absent members are closed, except those with requests in
    // flight.
    let members = served.pool.devices().members();
    let asked = members.iter().map(|member| member.slot);
    end_what_is_under_way(served);
    for at in asked.filter(|at| slot.is_none_or(|slot| slot == *at)) {
        let let_go = match slot {
            Some(_) => when_answered(|| served.pool.devices().let_go_of_member(at)),
            None => served.pool.devices().let_go_of_member(at),
        };
        match let_go {
            Ok(_) => {}
            Err(error) if slot.is_some() => return Err(words(&returned(served, &error))),
            Err(error) => tracing::warn!(slot = at, "{error}"),
        }
    }
    end_what_is_under_way(served);
    let path = known.map_or_else(|| name.to_owned(), |device| device.path);
    let path = Path::new(&path);
    refuse_own(served, path)?;
    let device = open_device_with(path, FileOptions::default())?;
    check_writable(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
    when_answered(|| served.pool.devices().return_member(Arc::<FileDevice>::clone(&device)))
        .map_err(|error| failed(path, returned(served, &error)))?;
    served.watch(path, &device);
    Ok(())
}

/// Syncs, so that no segment is left that is being filled. Such a segment keeps the devices open
/// that the group had when the segment was begun.
fn end_what_is_under_way(served: &EnginePool) {
    if let Err(error) = served.pool.sync() {
        tracing::warn!(%error, "what is under way could not be ended first");
    }
}

fn when_answered<T>(mut act: impl FnMut() -> Result<T, ReturnError>) -> Result<T, ReturnError> {
    let mut turns = 0..ANSWERS_WAITED_FOR;
    loop {
        match act() {
            Err(ReturnError::Unanswered { .. }) if turns.next().is_some() => {
                std::thread::park_timeout(ANSWER_POLL);
            }
            ended => return ended,
        }
    }
}

fn returned(served: &EnginePool, error: &ReturnError) -> String {
    let pool = served.path.display();
    if let ReturnError::Label(PoolError::Superblock { cause, .. }) = error
        && matches!(cause, SuperblockError::BadMagic { .. })
    {
        return format!(
            "it has no label of a pool, and so nothing to bring back: check the path \
             (`holdfast device list {pool}` shows where each was last), or make it a new one in \
             the place of the old one (`holdfast device replace {pool} OLD NEW --force`)"
        );
    }
    let is_other = matches!(error, ReturnError::Member(_) | ReturnError::Label(_));
    if is_other {
        return format!("{error}: `holdfast device replace {pool} OLD NEW` copies everything");
    }
    if matches!(error, ReturnError::Unanswered { .. }) {
        let waited = ANSWER_POLL * ANSWERS_WAITED_FOR;
        return format!("{error} ({} seconds were waited for)", waited.as_secs());
    }
    error.to_string()
}

fn replace(
    served: &EnginePool,
    old: &str,
    new: &Path,
    is_forced: bool,
) -> Result<(), BackendError> {
    let slot = slot_of(served, old)?;
    let is_of = id_in(served, slot);
    let id = *random_bytes()?.first_chunk().expect("16 of 64 bytes");
    refuse_own(served, new)?;
    let known = named(served, old)?;
    let is_away = known.state == "failed" || known.state == "missing";
    if is_away && std::fs::canonicalize(new).is_ok_and(|new| new == Path::new(&known.path)) {
        // If `new` is the absent member itself, the pool must close its old file first.
        end_what_is_under_way(served);
        when_answered(|| served.pool.devices().let_go_of_member(slot))
            .map_err(|error| failed(&served.path, returned(served, &error)))?;
        end_what_is_under_way(served);
    }
    let was_there = new.exists();
    let needed = bytes_in(served, slot);
    let device = device_for(new, needed, is_forced, "device replace --force")?;
    let leave_nothing = || {
        if !was_there {
            let _ = std::fs::remove_file(new);
        }
    };
    check_same(served, slot, is_of, new).inspect_err(|_| leave_nothing())?;
    let begun = served.pool.devices().replace_member(slot, Arc::<FileDevice>::clone(&device), id);
    begun.map_err(|error| {
        if !matches!(error, ReplaceError::Device(_)) {
            leave_nothing();
        }
        refused(served, &error)
    })?;
    served.watch(new, &device);
    check_joined(served, slot, new)
}

#[derive(Clone, Copy, Debug)]
enum AttachMode {
    Copy,
    Spread,
    InTurn,
}

fn attach(
    served: &EnginePool,
    (beside, how): (&str, AttachMode),
    path: &Path,
    (size_bytes, is_forced): (Option<u64>, bool),
) -> Result<(), BackendError> {
    let slot = slot_of(served, beside)?;
    let is_of = id_in(served, slot);
    let id = *random_bytes()?.first_chunk().expect("16 of 64 bytes");
    refuse_own(served, path)?;
    let was_there = path.exists();
    let device = if was_there {
        blank(path, is_forced, "device add --force")?
    } else {
        let needed = bytes_in(served, slot);
        let size_bytes = size_bytes.unwrap_or(needed) & !4095;
        FileDevice::create(path, size_bytes, FileOptions::default())
            .map_err(|error| cannot_open(path, error))?
    };
    let own = Arc::<FileDevice>::clone(&device);
    let leave_nothing = |may_be_listed: bool| {
        if !was_there && !may_be_listed {
            let _ = std::fs::remove_file(path);
        }
    };
    check_same(served, slot, is_of, path).inspect_err(|_| leave_nothing(false))?;
    let attached = match how {
        AttachMode::Spread => served.pool.devices().widen(slot, own, id),
        AttachMode::Copy => served.pool.devices().attach_member(slot, own, id),
        AttachMode::InTurn => {
            served.pool.devices().add_lane(slot, own, id).map_err(|error| {
                leave_nothing(error.may_be_listed());
                failed(&served.path, error)
            })?;
            served.watch(path, &device);
            return Ok(());
        }
    };
    let slot = attached.map_err(|error| {
        leave_nothing(matches!(error, AttachError::Unfit(ReplaceError::Device(_))));
        failed(&served.path, error)
    })?;
    served.watch(path, &device);
    check_joined(served, slot, path)
}

/// Fails if the device failed while its label was written. The other labels then list it as failed.
fn check_joined(served: &EnginePool, slot: usize, path: &Path) -> Result<(), BackendError> {
    let members = served.pool.devices().members();
    let has_failed =
        |status: &MemberStatus| status.slot == slot && status.member.state == MemberState::Failed;
    if !members.iter().any(has_failed) {
        return Ok(());
    }
    let pool = served.path.display();
    let words = format!(
        "it failed as it joined: `holdfast device replace {pool} {slot} NEW` puts another in its \
         place, `holdfast device remove {pool} {slot}` gives the place up"
    );
    Err(failed(path, words))
}

/// Removes a member from its mirror. For a raid5, stripe or round-robin group, only starts the job
/// that empties the member.
fn detach(
    served: &EnginePool,
    name: &str,
    accepts_no_redundancy: bool,
) -> Result<(), BackendError> {
    let slot = slot_of(served, name)?;
    let status = served.pool.status();
    let group = status.groups.iter().find(|group| group.slots.contains(slot));
    if group.is_some_and(|group| group.layout == Layout::RoundRobin) {
        let left = served.pool.devices().remove_lane(slot);
        return left.map(drop).map_err(|error| failed(&served.path, error));
    }
    let is_spread = group.is_some_and(|group| group.layout.spreads());
    let taken = if is_spread { served.pool.devices().take_member_back(slot) } else { Ok(None) };
    let detached = match taken.map_err(|error| failed(&served.path, error))? {
        Some(taken) => taken,
        None if is_spread => {
            return served.pool.devices().narrow(slot).map_err(|error| failed(&served.path, error));
        }
        None => served
            .pool
            .devices()
            .detach_member(slot, accepts_no_redundancy)
            .map_err(|error| failed(&served.path, error))?,
    };
    // In-flight writes must end first, since the device may be used for something else then.
    let mut turns = 0..ANSWERS_WAITED_FOR;
    while detached.unanswered() > 0 && turns.next().is_some() {
        std::thread::park_timeout(ANSWER_POLL);
    }
    if let Err(error) = detached.blank() {
        tracing::warn!("{error}; the device is of the pool no more, and may still have its label");
    }
    Ok(())
}

fn id_in(served: &EnginePool, slot: usize) -> Option<[u8; 16]> {
    let members = served.pool.devices().members();
    members.iter().find(|status| status.slot == slot).map(|status| status.member.id)
}

/// Fails if another request has replaced the member in `slot` since this request was checked.
/// Opening a device may take long enough for that.
fn check_same(
    served: &EnginePool,
    slot: usize,
    is_of: Option<[u8; 16]>,
    new: &Path,
) -> Result<(), BackendError> {
    if id_in(served, slot) == is_of {
        return Ok(());
    }
    let pool = served.path.display();
    let words = format!(
        "another device has come into slot {slot} while this one was opened: nothing was done; \
         `holdfast device list {pool}` shows what is there now"
    );
    Err(failed(new, words))
}

/// Refuses a device that lies on a mount of this pool: the pool and the device would wait for each
/// other.
pub(super) fn refuse_own(served: &EnginePool, path: &Path) -> Result<(), BackendError> {
    let Some(directory) = mount_from(path, &served.path) else { return Ok(()) };
    let (pool, directory) = (served.path.display(), directory.display());
    let words = format!(
        "it lies on {directory}, where this pool ({pool}) is mounted, so that each would wait for \
         the other: name a device elsewhere"
    );
    Err(failed(path, words))
}

fn bytes_in(served: &EnginePool, slot: usize) -> u64 {
    let status = served.pool.status();
    let group = status.groups.iter().find(|group| group.slots.contains(slot));
    group.map_or(status.geometry.member_bytes(), |group| group.member_bytes)
}

/// Opens the device at `new`, or creates a file of `needed` bytes. Refuses a device that is in use
/// or too small. `command` is the option that the error suggests for overwriting.
fn device_for(
    new: &Path,
    needed: u64,
    is_forced: bool,
    command: &str,
) -> Result<Arc<FileDevice>, BackendError> {
    if !new.exists() {
        return FileDevice::create(new, needed, FileOptions::default())
            .map_err(|error| cannot_open(new, error));
    }
    let device = blank(new, is_forced, command)?;
    if device.info().size_bytes < needed {
        let words = format!("{} bytes, and a member has {needed}", device.info().size_bytes);
        return Err(failed(new, format!("{words}: give a larger device")));
    }
    Ok(device)
}

/// Opens an existing device that is to become a member. Refuses a device that is in use or not
/// blank. `way` is the option that the error suggests for overwriting.
pub(super) fn blank(
    path: &Path,
    is_forced: bool,
    way: &str,
) -> Result<Arc<FileDevice>, BackendError> {
    let device = open_device_with(path, FileOptions::default())?;
    refuse_used(path)?;
    check_writable(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
    let found = what_is_there(path, &device).map_err(|error| failed(path, error))?;
    if let (Some(found), false) = (found, is_forced) {
        let words = format!("there is {found}: check the path (`{way}` overwrites what is there)");
        return Err(failed(path, words));
    }
    let shared: storage::device::SharedDevice = Arc::<FileDevice>::clone(&device);
    storage::heartbeat::wait_until_free(&shared, &LinuxHostProcesses)
        .map_err(|error| cannot_use(path, &error))?;
    Ok(device)
}

pub(super) fn called(path: &[u8], id: [u8; 16]) -> String {
    match path {
        [] => format!("the device with id {}", hex(id)),
        path => format::text::shown(path),
    }
}

pub(super) fn damage_of(found: &ScrubReport) -> Option<String> {
    if found.lost + found.unread == 0 {
        return None;
    }
    let what = match (found.lost, found.unread) {
        (0, unread) => format!("{unread} pages and blocks that could not be read"),
        (lost, 0) => format!("{lost} pages and blocks without a good copy"),
        (lost, unread) => format!(
            "{lost} pages and blocks without a good copy, and {unread} that could not be read"
        ),
    };
    let first = found.names.first().map_or("", String::as_str);
    let when = if found.is_done { "the last scrub found" } else { "the running scrub has found" };
    Some(format!(
        "{when} {what}; the first: {first}. Bring missing devices back, restore the files that \
         the log names, then run `holdfast scrub POOL`"
    ))
}

pub(super) fn away(status: &PoolStatus) -> impl Iterator<Item = String> {
    degraded(status).into_iter().chain(lacking(status))
}

fn degraded(status: &PoolStatus) -> Option<String> {
    let away = status.members.iter().filter(|member| !member.member.is_online());
    let away: Vec<String> = away
        .map(|MemberStatus { slot, member, .. }| {
            let path = called(&member.path, member.id);
            let cause = failures::cause_in(status, *slot);
            let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
            format!("{path} (slot {slot}) is {}{cause}", member.state.word())
        })
        .collect();
    let is_joining = |it: &MemberStatus| it.member.state == MemberState::Joining;
    let what = match status.members.iter().filter(|it| !it.member.is_online()).all(is_joining) {
        true => "until the rebuild has ended (`holdfast job list POOL` shows its progress)",
        false => {
            "until the member is back (`holdfast device online POOL DEVICE`) or replaced \
             (`holdfast device replace POOL OLD NEW`)"
        }
    };
    (!away.is_empty()).then(|| {
        format!("the pool is degraded: {}; its data has less redundancy {what}", away.join(", "))
    })
}

fn lacking(status: &PoolStatus) -> Option<String> {
    let missing = status.lost_with.as_ref()?;
    Some(format!(
        "data is missing with {missing}: files that had some of it there give an error, and \
         nothing is written to the others (`holdfast check POOL` names those files)"
    ))
}

pub(super) fn lost_journal(status: &PoolStatus) -> Option<String> {
    let devices = status.lost_journal.as_ref()?;
    Some(format!(
        "the journal was on {devices}, and the last of these has failed: it is where \
         the metadata is, with all that was acknowledged, and commits wait for that; give it \
         devices of its own again (`holdfast group add POOL mirror:NEW,NEW=journal`)"
    ))
}
