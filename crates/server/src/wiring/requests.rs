//! Administrative requests to an open pool, executed by the engine.

use std::path::Path;
use std::sync::PoisonError;

use engine::api::{FileSystem, FsError};
use engine::{
    DiskGroupError, FilesetChange, FilesetInfo, Fullness, JobStatus, NewFileset, Pace, Percent,
    Pool, ScrubReport, TrimReport,
};
use format::fileset::{FilesetName, NamePart, ROOT_SLOT};
use format::placement::Placement;

use super::{EnginePool, devices, failed, groups, growth, quota, random_bytes};
use crate::backend::BackendError;
use crate::peer::Peer;
use control::{
    Answer, FilesetFacts, JobFacts, LIST_MAX, Properties, Request, ScrubFacts, TrimFacts, name_of,
    parse_placement, snapshot_of,
};

pub(super) fn asked(
    served: &EnginePool,
    request: &Request,
    peer: Peer,
) -> Result<Answer, BackendError> {
    if let Some(done) = devices::change(served, request) {
        return done.map(|()| Answer::Done);
    }
    if let Request::GroupAdd(new) = request {
        return groups::add(served, new).map(Answer::Groups);
    }
    if let Request::DeviceGrow { devices, size_bytes } = request {
        return growth::grow(served, devices, *size_bytes).map(Answer::Grown);
    }
    let answer = control(&served.path, &served.pool, request, peer)?;
    // The served fileset has another name now if it, or a fileset above it, was renamed.
    if matches!(request, Request::FilesetRename { .. }) {
        let main = served.pool.fileset_admin().filesets_from(served.pool.root().slot(), 1);
        if let Ok([main]) = main.as_deref() {
            *served.fileset.lock().unwrap_or_else(PoisonError::into_inner) = main.name.clone();
        }
    }
    Ok(answer)
}

/// Executes a request for which the pool alone suffices. See [`crate::backend::OpenPool::control`].
fn control(
    path: &Path,
    pool: &Pool,
    request: &Request,
    peer: Peer,
) -> Result<Answer, BackendError> {
    let named = |name: &str| name_of(name).map_err(|cause| failed(path, cause));
    let done = match request {
        Request::FilesetList { from } => return list(pool, *from).map_err(|e| refused(path, &e)),
        Request::JobList {} => {
            return Ok(Answer::Jobs(job_list(pool)));
        }
        // A network server handles these requests before they get here.
        Request::ExportList { .. }
        | Request::ExportAdd { .. }
        | Request::ExportRemove { .. }
        | Request::ClientList {}
        | Request::LockList {}
        | Request::OperationList {}
        | Request::PathList { .. }
        | Request::SlowList { .. }
        | Request::ScheduleSet { .. }
        | Request::ScheduleList {}
        | Request::ScrubScheduleSet { .. }
        | Request::ScrubSchedule {}
        | Request::NotifyTest {}
        | Request::Reload {} => {
            let advice = format!("start `holdfast serve {} --nfs ADDRESS:PORT`", path.display());
            return Err(failed(path, format!("the pool is not served over the network: {advice}")));
        }
        // [`asked`] has handled the changes of devices, so only the listing comes here.
        Request::DeviceList {}
        | Request::DeviceFail { .. }
        | Request::DeviceClear { .. }
        | Request::DeviceReplace { .. }
        | Request::DeviceOnline { .. }
        | Request::DeviceAdd { .. }
        | Request::DeviceAttach { .. }
        | Request::DeviceDetach { .. }
        | Request::DeviceGrow { .. }
        | Request::DeviceRemove { .. } => {
            return Ok(Answer::Devices(devices::list(pool)));
        }
        Request::GroupList {} | Request::GroupAdd(_) => {
            return groups::list(path, pool).map(Answer::Groups);
        }
        Request::GroupRemove { group } => {
            pool.devices().remove_disk_group(*group).map_err(|error| failed(path, error))?;
            return groups::list(path, pool).map(Answer::Groups);
        }
        Request::GroupMetadata { group } => {
            pool.devices().make_main(*group).map_err(|error| failed(path, error))?;
            return groups::list(path, pool).map(Answer::Groups);
        }
        Request::PoolRename { name } => {
            pool.devices().rename(name).map_err(|error| failed(path, error))?;
            return Ok(Answer::Done);
        }
        Request::Scrub {} => {
            pool.devices().scrub().map_err(|error| failed(path, error))?;
            return Ok(Answer::Done);
        }
        Request::ScrubStatus {} => {
            return Ok(Answer::Scrub(pool.devices().scrub_report().map(scrub_facts)));
        }
        Request::Trim {} => {
            pool.devices().trim().map_err(|error| failed(path, error))?;
            return Ok(Answer::Done);
        }
        Request::TrimStatus {} => {
            return Ok(Answer::Trim(pool.devices().trim_report().map(trim_facts)));
        }
        Request::FilesetCreate { name, properties } => {
            let random = random_bytes()?;
            let new = NewFileset {
                block_shift: shift_of(properties),
                is_read_only: properties.is_read_only,
                quota_bytes: properties.quota_bytes.unwrap_or(0),
                reservation_bytes: properties.reservation_bytes.unwrap_or(0),
                placement: placement_of(path, pool, properties)?,
                owner: (peer.uid, peer.gid),
                random: *random.first_chunk().expect("32 of 64 bytes"),
            };
            pool.fileset_admin().create_fileset(&named(name)?, &new).map(|_| ())
        }
        Request::FilesetSet { name, properties } => {
            return set(path, pool, &named(name)?, properties);
        }
        Request::QuotaOn { .. }
        | Request::QuotaOff { .. }
        | Request::QuotaSet { .. }
        | Request::QuotaGrace { .. }
        | Request::QuotaProject { .. }
        | Request::QuotaReport { .. } => return quota::control(path, pool, request),
        Request::PlacementSet { fileset, path: inside, placement, is_recursive } => {
            let wanted = parse_placement(placement);
            let wanted = wanted.map_err(|cause| failed(path, cause))?;
            let how = (wanted, *is_recursive);
            let done = pool.set_placement(&named(fileset)?, &quota::parts_of(inside), how);
            return done.map(Answer::Count).map_err(|error| not_placed(path, pool, &error));
        }
        Request::PlacementShow { fileset, path: inside } => {
            let placement = pool.placement(&named(fileset)?, &quota::parts_of(inside));
            let placement = placement.map_err(|error| refused_by(path, pool, &error))?;
            return Ok(Answer::Placement(placement.to_string()));
        }
        Request::FilesetRename { name, to } => rename(path, pool, name, to)?,
        Request::FilesetDelete { name } => pool.fileset_admin().delete_fileset(&named(name)?),
        Request::CloneCreate { fileset, snapshot, to } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            let random = random_bytes()?;
            let random = *random.first_chunk().expect("16 of 64 bytes");
            pool.fileset_admin()
                .create_clone((&named(fileset)?, &snapshot), &named(to)?, random)
                .map(|_| ())
        }
        Request::FilesetRestore { fileset, snapshot } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            let restored = pool.fileset_admin().restore_fileset(&named(fileset)?, &snapshot);
            let later = restored.map(|restored| restored.later);
            return later.map(Answer::Names).map_err(|error| refused_by(path, pool, &error));
        }
        Request::FilesetPromote { name } => {
            let names = pool.fileset_admin().promote_fileset(&named(name)?);
            return names.map(Answer::Names).map_err(|error| refused_by(path, pool, &error));
        }
        Request::FilesetHere { name } => pool.fileset_admin().take_as_here(&named(name)?),
        Request::ReceiveAbort { name } => match pool.fileset_admin().abort_receiving(&named(name)?)
        {
            Ok(false) => {
                let list = path.display();
                let cause = format!(
                    "nothing of a stream has come to {name}: `holdfast fileset \
                                     list {list}` shows what is there"
                );
                return Err(failed(path, cause));
            }
            done => done.map(drop),
        },
        Request::SnapshotCreate { fileset, snapshot } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            let random = random_bytes()?;
            let random = *random.first_chunk().expect("16 of 64 bytes");
            pool.fileset_admin().create_snapshot(&named(fileset)?, &snapshot, random).map(|_| ())
        }
        Request::SnapshotCreateBelow { fileset, snapshot } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            let names = snapshots_below(pool, &named(fileset)?, &snapshot)?;
            return names.map(Answer::Names).map_err(|error| refused_by(path, pool, &error));
        }
        Request::SnapshotHold { fileset, snapshot, hold, is_held } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            let hold = NamePart::new(hold)
                .map_err(|error| failed(path, format!("{hold}: {error}: name a hold as backup")))?;
            pool.fileset_admin().set_hold((&named(fileset)?, &snapshot), &hold, *is_held)
        }
        Request::SnapshotUnique { fileset, snapshot } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            let bytes = pool.fileset_admin().unique_bytes(&named(fileset)?, &snapshot);
            return bytes.map(Answer::Bytes).map_err(|error| refused(path, &error));
        }
        Request::SnapshotDelete { fileset, snapshot, uuid } => {
            let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
            match uuid {
                None => pool.fileset_admin().delete_snapshot(&named(fileset)?, &snapshot),
                Some(uuid) => {
                    let uuid = u128::from_str_radix(uuid, 16).map_err(|_| {
                        failed(path, format!("{uuid}: what identifies a snapshot is 32 digits"))
                    })?;
                    pool.fileset_admin().delete_this_snapshot(
                        &named(fileset)?,
                        &snapshot,
                        engine::api::FilesetUuid(uuid),
                    )
                }
            }
        }
        Request::JobPause { job, is_paused } if pool.pause_job(*job, *is_paused) => Ok(()),
        Request::JobPace { job, percent } if pool.pace_job(*job, pace_of(path, *percent)?) => {
            Ok(())
        }
        Request::JobPause { job, .. } | Request::JobPace { job, .. } => {
            let list = path.display();
            let cause = format!("there is no job {job}: `holdfast job list {list}` shows them");
            return Err(failed(path, cause));
        }
    };
    done.map(|()| Answer::Done).map_err(|error| refused_by(path, pool, &error))
}

fn placement_of(
    path: &Path,
    pool: &Pool,
    properties: &Properties,
) -> Result<Option<Placement>, BackendError> {
    let Some(word) = &properties.placement else { return Ok(None) };
    let placement = parse_placement(word).map_err(|cause| failed(path, cause))?;
    pool.check_placement(placement).map_err(|error| failed(path, error))?;
    Ok(Some(placement))
}

fn not_placed(path: &Path, pool: &Pool, error: &DiskGroupError) -> BackendError {
    if let DiskGroupError::Files(error) = error {
        return refused_by(path, pool, error);
    }
    failed(path, error)
}

/// Sets the properties of a fileset. The placement is a property of the root directory, and is set
/// in a separate step. If the other step fails, one of the two may have changed.
fn set(
    path: &Path,
    pool: &Pool,
    name: &FilesetName,
    properties: &Properties,
) -> Result<Answer, BackendError> {
    let placement = placement_of(path, pool, properties)?;
    let place = || match placement {
        Some(placement) => pool
            .set_placement(name, &[], (placement, false))
            .map(drop)
            .map_err(|error| not_placed(path, pool, &error)),
        None => Ok(()),
    };
    // If the fileset is to become read-only, its root directory must be changed before.
    let is_last = properties.is_read_only != Some(true);
    if !is_last {
        place()?;
    }
    if *properties != (Properties { placement: properties.placement.clone(), ..Default::default() })
    {
        let change = FilesetChange {
            block_shift: shift_of(properties),
            is_read_only: properties.is_read_only,
            quota_bytes: properties.quota_bytes,
            reservation_bytes: properties.reservation_bytes,
            name: None,
        };
        pool.fileset_admin()
            .change_fileset(name, &change)
            .map_err(|error| refused_by(path, pool, &error))?;
    }
    if is_last {
        place()?;
    }
    Ok(Answer::Done)
}

fn snapshots_below(
    pool: &Pool,
    fileset: &FilesetName,
    snapshot: &NamePart,
) -> Result<Result<Vec<String>, FsError>, BackendError> {
    let (mut bits, mut drawn) = (random_bytes()?, 0_u64);
    // Each snapshot needs different bits. Without fresh ones from the system, a counter replaces
    // half of the last ones.
    let random = &mut || {
        let mut own: [u8; 16] = *bits.first_chunk().expect("16 of 64 bytes");
        if let Ok(fresh) = random_bytes() {
            bits = fresh;
        } else {
            drawn += 1;
            own[..8].copy_from_slice(&drawn.to_le_bytes());
        }
        own
    };
    Ok(pool.fileset_admin().create_snapshots_below(fileset, snapshot, random))
}

fn rename(
    path: &Path,
    pool: &Pool,
    name: &str,
    to: &str,
) -> Result<Result<(), FsError>, BackendError> {
    let names = name_of(name).and_then(|name| Ok((name, name_of(to)?)));
    let (name, to) = names.map_err(|cause| failed(path, cause))?;
    let first =
        pool.fileset_admin().filesets_from(ROOT_SLOT, 1).map_err(|error| refused(path, &error))?;
    let is_it = |info: &FilesetInfo| info.slot == ROOT_SLOT && info.name == name.to_string();
    if first.iter().any(is_it) {
        let cause = format!("{name} is the first fileset of the pool, which keeps its name");
        return Err(failed(path, cause));
    }
    let change = FilesetChange { name: Some(to), ..FilesetChange::default() };
    Ok(pool.fileset_admin().change_fileset(&name, &change))
}

/// Returns the binary logarithm of the block size. An invalid size gives 0, which the engine
/// refuses.
fn shift_of(properties: &Properties) -> Option<u8> {
    let bytes = properties.block_bytes?;
    let shift = if bytes.is_power_of_two() { bytes.trailing_zeros() } else { 0 };
    Some(u8::try_from(shift).unwrap_or(0))
}

fn list(pool: &Pool, from: u32) -> Result<Answer, FsError> {
    let found = pool.fileset_admin().filesets_from(from, LIST_MAX + 1)?;
    let next = found.get(LIST_MAX).map(|info| info.slot);
    let count = |snapshots: usize| u64::try_from(snapshots).unwrap_or(u64::MAX);
    let facts = |info: FilesetInfo| FilesetFacts {
        is_mounted: false,
        used_by: Vec::new(),
        name: info.name,
        slot: info.slot,
        uuid: format!("{:032x}", info.uuid.0),
        block_bytes: info.block_bytes.into(),
        is_snapshot: info.is_snapshot,
        holds: info.holds,
        needed_by: info.needed_by,
        is_family_freed: info.is_family_freed,
        snapshots_max: count(pool.fileset_admin().snapshots_max()),
        snapshots_left: count(info.snapshots_left),
        is_receiving: info.is_receiving,
        moving: info.moving.map(|moving| moving.word().to_owned()),
        origin: info.origin,
        unique_bytes: None,
        is_read_only: info.is_read_only,
        created_seconds: info.created_seconds,
        inodes: info.inodes,
        referenced_bytes: info.referenced_bytes,
        available_bytes: (!info.is_snapshot).then_some(info.available_bytes),
        quota_bytes: (info.quota_bytes > 0).then_some(info.quota_bytes),
        reservation_bytes: (info.reservation_bytes > 0).then_some(info.reservation_bytes),
        placement: match info.freed_permille {
            Some(_) => None,
            None => pool.placement_of_root(info.slot).ok().flatten().map(|it| it.to_string()),
        },
        freed_permille: info.freed_permille,
    };
    Ok(Answer::Filesets { list: found.into_iter().take(LIST_MAX).map(facts).collect(), next })
}

pub(super) fn scrub_facts(found: ScrubReport) -> ScrubFacts {
    let ScrubReport {
        read_bytes,
        read_before,
        differing,
        repaired,
        lost,
        unread,
        unwritten,
        unused,
        parities,
        uncompared_bytes,
        away,
        names,
        is_done,
        ended_seconds,
        waits,
    } = found;
    ScrubFacts {
        read_bytes,
        read_before,
        differing,
        repaired,
        lost,
        unread,
        unwritten,
        unused,
        parities,
        uncompared_bytes,
        away,
        names,
        is_done,
        ended_seconds: (ended_seconds > 0).then_some(ended_seconds),
        waits,
    }
}

fn trim_facts(found: TrimReport) -> TrimFacts {
    let TrimReport { discarded_bytes, refused_bytes, striped_bytes, failed, is_done } = found;
    TrimFacts { discarded_bytes, refused_bytes, striped_bytes, failed, is_done }
}

fn pace_of(path: &Path, percent: Option<u8>) -> Result<Pace, BackendError> {
    let Some(number) = percent else { return Ok(Pace::Auto) };
    let refused = || failed(path, format!("a pace of {number} %: give 1 to 100, or auto"));
    Percent::new(number).map(Pace::Percent).ok_or_else(refused)
}

pub(super) fn job_list(pool: &Pool) -> Vec<JobFacts> {
    pool.jobs().into_iter().map(job_facts).collect()
}

fn job_facts(job: JobStatus) -> JobFacts {
    let progress = job.progress.unwrap_or_default();
    JobFacts {
        id: job.id,
        name: job.name,
        done: progress.done,
        total: progress.total,
        ends_in_seconds: job.ends_in_ns.map(|ns| ns.div_ceil(1_000_000_000)),
        is_paused: job.is_paused,
        pace_percent: match job.pace {
            Pace::Auto => None,
            Pace::Percent(percent) => Some(percent.get()),
        },
        failure: job.failure,
    }
}

/// Returns the engine's refusal with advice. If the pool is full, the advice names the snapshots
/// that hold the most space.
pub(super) fn refused_by(path: &Path, pool: &Pool, error: &FsError) -> BackendError {
    let full =
        if *error == FsError::NoSpace { pool.fileset_admin().weigh_snapshots() } else { Ok(None) };
    match full {
        Ok(Some(full)) if full.snapshots > 0 => {
            failed(path, format!("{error}: {}", advised(&full)))
        }
        _ => refused(path, error),
    }
}

pub(super) fn advised(full: &Fullness) -> String {
    if full.snapshots == 0 {
        return full.to_string();
    }
    let named = full.heaviest.as_ref().and_then(|heaviest| heaviest.snapshots.first());
    let advice = match named {
        Some(snapshot) => {
            format!("`holdfast snapshot delete POOL:{}` gives that back", snapshot.name)
        }
        None => "delete snapshots (`holdfast snapshot delete POOL:a@monday`), the oldest first"
            .to_owned(),
    };
    format!("{full}: {advice}")
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
pub(super) fn refused(path: &Path, error: &FsError) -> BackendError {
    let pool = path.display();
    let cause = match error {
        FsError::NoFileset { name } if name.contains('@') => {
            format!(
                "there is no snapshot {name}: `holdfast snapshot list {pool}` shows those that \
                 are there"
            )
        }
        FsError::NoFileset { .. } => {
            format!("{error}: `holdfast fileset list {pool}` shows those that are there")
        }
        FsError::Invalid => {
            "a block is a power of two from 4K to 1M, and a quarter of a segment at most".to_owned()
        }
        FsError::NoSpace => format!("{error}: delete files or filesets, and try again"),
        FsError::Corrupt { .. } => format!("{error}: unmount, and run `holdfast check {pool}`"),
        FsError::Stale => "the fileset was deleted meanwhile".to_owned(),
        _ => error.to_string(),
    };
    failed(path, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the advice about a full pool appears once.
    #[test]
    fn a_full_pool_without_snapshots_is_told_what_to_do_once() {
        let words = advised(&Fullness { refused_ago_ns: 0, snapshots: 0, heaviest: None });
        assert_eq!(words.matches("delete files").count(), 1, "{words}");
    }
}
