//! Creates a pool on files or block devices.
//!
//! # Invariants
//!
//! - MK1: A refusal changes nothing. Every check that may refuse precedes the first write, and a
//!   file that could not be resized keeps its old length.
//! - MK2: No existing file is removed. An existing file is overwritten in place, so it keeps its
//!   names, mode and owner. After a failure, only files created by this call are removed.
//!
//! # Crashes
//!
//! All old superblocks are overwritten durably before the new pool is written (`wipe`). So an
//! interrupted creation leaves no pool, rather than old superblocks over new pages.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use runtime::clock::SystemClock;
use storage::device::{
    AlignedBuffer, CountingDevice, Device, DeviceError, DeviceOpenError, DeviceOperation,
    FileDevice, FileOptions, IoPurpose, RequestKind, SharedDevice,
};
use storage::pool::check_writable;

use super::blank::what_is_there;
use super::growth::slack_of;
use super::{
    cannot_open, cannot_start, cannot_use, failed, open_device_with, openness_of, random_bytes,
    refuse_used,
};
use crate::backend::{BackendCreateOptions, BackendError, CreateReport, GroupLayoutSpec};
use crate::neighbours::LinuxHostProcesses;
use control::size::ByteSize;

/// How much smaller a file is made if the requested size exceeds the limit of the file system
/// below. The limit is often just below a round number: on ext4, 4 KiB below 16 TiB.
const SIZE_SLACK_BYTES: u64 = 1 << 20;
const DEVICE_ALIGN_BYTES: u64 = 4096;
/// Unused bytes at the end of a device from which a warning is issued.
const UNUSED_TOLD_BYTES: u64 = 1 << 20;
const DISCARD_BYTES: u64 = 64 << 30;

pub(super) fn create(options: &BackendCreateOptions) -> Result<CreateReport, BackendError> {
    let paths = paths_of(options)?;
    let mut made = Vec::new();
    let created = create_on(options, &paths, &mut made);
    created.inspect_err(|_| {
        // MK2: only files created by this call.
        for path in &made {
            let _ = std::fs::remove_file(path);
        }
    })
}

/// Returns the paths of the devices. Several paths are made absolute, because labels record them.
fn paths_of(options: &BackendCreateOptions) -> Result<Vec<PathBuf>, BackendError> {
    if let [path] = options.devices.as_slice() {
        return Ok(vec![path.clone()]);
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in &options.devices {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = std::fs::canonicalize(folder.unwrap_or(Path::new(".")));
        let whole = match (std::fs::canonicalize(path), folder, path.file_name()) {
            (Ok(whole), ..) => whole,
            (Err(_), Ok(folder), Some(name)) => folder.join(name),
            (Err(_), ..) => return Err(BackendError::Missing { device: path.clone() }),
        };
        if paths.contains(&whole) {
            let reason = format!(
                "{} is named twice: a device is in one place, so name each once",
                path.display()
            );
            return Err(BackendError::Option { option: "--group", reason });
        }
        paths.push(whole);
    }
    Ok(paths)
}

struct PreparedDevice {
    path: PathBuf,
    device: Arc<FileDevice>,
    is_used: bool,
}

fn create_on(
    options: &BackendCreateOptions,
    paths: &[PathBuf],
    made: &mut Vec<PathBuf>,
) -> Result<CreateReport, BackendError> {
    let mut all = Vec::with_capacity(paths.len());
    for path in paths {
        if path.exists() {
            all.push(existing(options, path)?);
            continue;
        }
        let device = new_file(options, path)?;
        made.push(path.clone());
        all.push(PreparedDevice { path: path.clone(), device, is_used: false });
    }
    // MK1: several disk groups are checked together before the first file is resized.
    if options.groups.len() > 1 {
        let sizes: Vec<u64> = all.iter().map(|ready| size_to_be(options, ready)).collect();
        planned(options, paths, &sizes)?;
    }
    for ready in all.iter_mut().filter(|ready| !made.contains(&ready.path)) {
        ready.device = resized(options, &ready.path, Arc::clone(&ready.device))?;
    }
    let sizes: Vec<u64> = all.iter().map(|ready| ready.device.info().size_bytes).collect();
    let plan = planned(options, paths, &sizes)?;
    // MK1: after this point, only a failing device can make the creation fail.
    for PreparedDevice { path, device, .. } in all.iter().filter(|ready| ready.is_used) {
        wipe(device.as_ref(), path.is_file()).map_err(|error| failed(path, error))?;
    }
    make(options, &all, &plan)
}

fn size_to_be(options: &BackendCreateOptions, ready: &PreparedDevice) -> u64 {
    let found = ready.device.info().size_bytes;
    let wanted = options.size_bytes.filter(|_| ready.path.is_file());
    wanted.map_or(found, |wanted| wanted - wanted % DEVICE_ALIGN_BYTES)
}

fn planned(
    options: &BackendCreateOptions,
    paths: &[PathBuf],
    sizes: &[u64],
) -> Result<engine::PoolCreateOptions, BackendError> {
    let of_first = options.groups.first().map_or(sizes.len(), |group| group.width);
    let shortest = sizes.iter().take(of_first).copied().min().unwrap_or(0);
    let plan = plan_of(options, shortest - slack_in(options, paths, shortest))?;
    let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
    match options.groups.as_slice() {
        [only] => engine::Pool::check_members(only.layout, sizes.len(), &plan),
        groups => plan.plan_groups(&plans_of(groups, sizes)).map(drop),
    }
    .map_err(|error| cannot_start(first, error))?;
    Ok(plan)
}

/// Returns how many of `device_bytes` to leave unused at the end of a block device, so that a
/// slightly smaller disk can replace it later. Zero if the user gave a size.
fn slack_in(options: &BackendCreateOptions, paths: &[PathBuf], device_bytes: u64) -> u64 {
    let is_said = options.uses_all || options.size_bytes.is_some();
    let is_one = options.groups.len() == 1;
    match !is_said && is_one && paths.iter().any(|path| !path.is_file()) {
        true => slack_of(device_bytes),
        false => 0,
    }
}

fn plans_of(groups: &[GroupLayoutSpec], sizes: &[u64]) -> Vec<engine::GroupPlan> {
    let mut rest = sizes;
    let plan = |group: &GroupLayoutSpec| {
        let (own, others) = rest.split_at(group.width.min(rest.len()));
        rest = others;
        let (layout, roles) = (group.layout, group.roles);
        let member_bytes = own.iter().copied().min().unwrap_or(0);
        engine::GroupPlan { layout, members: own.len(), member_bytes, roles }
    };
    groups.iter().map(plan).collect()
}

fn existing(options: &BackendCreateOptions, path: &Path) -> Result<PreparedDevice, BackendError> {
    let device = open_device_with(path, FileOptions::default())?;
    refuse_used(path)?;
    check_writable(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
    let found = what_is_there(path, &device).map_err(|error| failed(path, error))?;
    if let (Some(found), false) = (&found, options.is_forced) {
        return Err(BackendError::Foreign { device: path.to_owned(), found: found.clone() });
    }
    // Another machine may use the device, whose lock is not visible here.
    let shared: SharedDevice = Arc::<FileDevice>::clone(&device);
    storage::heartbeat::wait_until_free(&shared, &LinuxHostProcesses)
        .map_err(|error| cannot_use(path, &error))?;
    Ok(PreparedDevice { path: path.to_owned(), device, is_used: found.is_some() })
}

fn plan_of(
    options: &BackendCreateOptions,
    device_bytes: u64,
) -> Result<engine::PoolCreateOptions, BackendError> {
    if !options.block_bytes.is_power_of_two() {
        let reason = "a block is a power of two from 4 KiB to 1 MiB".to_owned();
        return Err(BackendError::Option { option: "--block", reason });
    }
    let pool_bytes = options.size_bytes.unwrap_or(device_bytes).min(device_bytes);
    let mut plan = engine::PoolCreateOptions::new(pool_bytes, random_bytes()?);
    plan.geometry.fragment_bytes = u32::try_from(options.fragment_bytes).unwrap_or(0);
    plan.geometry.group_bytes = options.group_bytes;
    plan.geometry.journal_bytes = options.journal_bytes;
    plan.block_shift = u8::try_from(options.block_bytes.ilog2()).unwrap_or(0);
    plan.label.clone_from(&options.label);
    plan.owner = (options.owner_uid, options.owner_gid);
    let first = options.devices.first().map_or(Path::new(""), PathBuf::as_path);
    // Several disk groups are checked by [`planned`].
    if let [only] = options.groups.as_slice() {
        let planned = plan.plan_on(only.layout, options.devices.len());
        planned.map_err(|error| cannot_start(first, error))?;
    }
    Ok(plan)
}

/// Calls `sized` with the wanted size, or with a little less if that is too large. Fails first if
/// no pool fits in the size.
fn with_slack(
    options: &BackendCreateOptions,
    (path, wanted): (&Path, u64),
    sized: &mut dyn FnMut(u64) -> Result<Arc<FileDevice>, DeviceOpenError>,
) -> Result<Arc<FileDevice>, BackendError> {
    plan_of(options, wanted - wanted % DEVICE_ALIGN_BYTES)?;
    match sized(wanted) {
        Err(DeviceOpenError::TooLarge { .. }) if wanted > SIZE_SLACK_BYTES => {
            let smaller = wanted - SIZE_SLACK_BYTES;
            plan_of(options, smaller - smaller % DEVICE_ALIGN_BYTES)?;
            sized(smaller)
        }
        sized => sized,
    }
    .map_err(|error| cannot_open(path, error))
}

fn new_file(options: &BackendCreateOptions, path: &Path) -> Result<Arc<FileDevice>, BackendError> {
    let wanted = options.size_bytes.ok_or_else(|| BackendError::Option {
        option: "--size",
        reason: format!("{} is not there yet: say how large to make it", path.display()),
    })?;
    with_slack(options, (path, wanted), &mut |size_bytes| {
        FileDevice::create(path, size_bytes, FileOptions::default())
    })
}

fn resized(
    options: &BackendCreateOptions,
    path: &Path,
    device: Arc<FileDevice>,
) -> Result<Arc<FileDevice>, BackendError> {
    let size_bytes = device.info().size_bytes;
    let wanted = match options.size_bytes {
        Some(wanted) if wanted - wanted % DEVICE_ALIGN_BYTES != size_bytes => wanted,
        Some(_) | None => {
            plan_of(options, size_bytes)?;
            return Ok(device);
        }
    };
    let refused = |reason| BackendError::Option { option: "--size", reason };
    if !path.is_file() {
        plan_of(options, wanted.min(size_bytes))?;
        let reason = || refused(format!("{} has only {size_bytes} bytes", path.display()));
        return if wanted > size_bytes { Err(reason()) } else { Ok(device) };
    }
    if wanted < size_bytes && !options.is_forced {
        let device = path.display();
        return Err(refused(format!("{device} has {size_bytes} bytes: give --force to cut it")));
    }
    let resize = &mut |size_bytes| device.resize(size_bytes, FileOptions::default());
    with_slack(options, (path, wanted), resize)
}

/// Erases the superblocks of a device durably, then discards the contents of a file.
///
/// CRASH: before the flush, an old pool on the device may have lost some copies of its superblock,
/// but nothing else. After the flush it has none.
fn wipe(device: &FileDevice, is_file: bool) -> Result<(), DeviceError> {
    let size_bytes = device.info().size_bytes;
    let ends = [0, 1, 2, 3].map(|copy| Geometry::superblock_offset(size_bytes, copy));
    let area_bytes = usize::try_from(SUPERBLOCK_AREA_BYTES).unwrap_or(0);
    for offset in ends {
        device.write(IoPurpose::Superblock, offset, AlignedBuffer::zeroed(area_bytes))?;
    }
    device.flush(IoPurpose::Superblock)?;
    // A block device is not discarded, because that may take minutes.
    let step = usize::try_from(DISCARD_BYTES).unwrap_or(usize::MAX);
    for offset in (0..size_bytes).step_by(step).filter(|_| is_file) {
        let length_bytes = (size_bytes - offset).min(DISCARD_BYTES);
        let discard = DeviceOperation::Discard { offset, length_bytes };
        match device.submit(IoPurpose::Superblock, discard).wait() {
            Ok(_) => {}
            Err(DeviceError::NoDiscard { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn as_shared(device: &Arc<CountingDevice>) -> SharedDevice {
    Arc::<CountingDevice>::clone(device)
}

/// Warns of devices that are longer than the shortest of their disk group, whose excess is unused.
fn unused_of(groups: &[GroupLayoutSpec], all: &[PreparedDevice]) -> Vec<String> {
    let (mut rest, mut told) = (all, Vec::new());
    for group in groups {
        let (own, others) = rest.split_at(group.width.min(rest.len()));
        rest = others;
        let size_of = |ready: &PreparedDevice| ready.device.info().size_bytes;
        let Some(shortest) = own.iter().min_by_key(|ready| size_of(ready)) else { continue };
        for ready in own {
            let unused = size_of(ready) - size_of(shortest);
            if unused >= UNUSED_TOLD_BYTES {
                told.push(format!(
                    "{}: {} of {} are not used: each device of a {} is used as far as the \
                     shortest, {} ({})",
                    ready.path.display(),
                    ByteSize(unused),
                    ByteSize(size_of(ready)),
                    group.layout.word(),
                    shortest.path.display(),
                    ByteSize(size_of(shortest)),
                ));
            }
        }
    }
    told
}

fn make(
    options: &BackendCreateOptions,
    all: &[PreparedDevice],
    plan: &engine::PoolCreateOptions,
) -> Result<CreateReport, BackendError> {
    let open = all.iter().filter_map(|ready| openness_of(&ready.path, &ready.device));
    let warnings = open.chain(unused_of(&options.groups, all)).collect();
    let counted: Vec<Arc<CountingDevice>> =
        all.iter().map(|ready| CountingDevice::new(ready.device.clone())).collect();
    let devices: Vec<SharedDevice> = counted.iter().map(as_shared).collect();
    let Some((first, device)) = all.iter().map(|ready| &ready.path).zip(&devices).next() else {
        return Err(BackendError::Missing { device: PathBuf::new() });
    };
    match options.groups.as_slice() {
        [only] => engine::Pool::create_on(&devices, only.layout, &SystemClock::new(), plan),
        groups => {
            let mut rest = devices.as_slice();
            let new = |group: &GroupLayoutSpec| {
                let (own, others) = rest.split_at(group.width.min(rest.len()));
                rest = others;
                let (layout, roles) = (group.layout, group.roles);
                engine::NewDiskGroup { layout, devices: own.to_vec(), roles }
            };
            let groups: Vec<engine::NewDiskGroup> = groups.iter().map(new).collect();
            engine::Pool::create_groups(&groups, &SystemClock::new(), plan)
        }
    }
    .map_err(|error| cannot_start(first, error))?;
    let written_bytes: u64 =
        counted.iter().map(|device| device.counts().of_kind(RequestKind::Write).bytes).sum();
    let report = storage::pool::read_superblock(device.as_ref());
    let superblock = report.map_err(|error| cannot_use(first, &error))?.current;
    let geometry = &superblock.geometry;
    let others = geometry.added.iter().map(|range| geometry.group_layout().bytes_of(range));
    let bytes_of = |bytes: std::ops::Range<u64>| bytes.end - bytes.start;
    Ok(CreateReport {
        pool_id: superblock.pool_id.to_string(),
        size_bytes: geometry.device_bytes + others.map(bytes_of).sum::<u64>(),
        fragment_bytes: geometry.fragment_bytes(),
        block_bytes: 1 << superblock.block_shift,
        group_bytes: u64::from(geometry.group_fragments) << geometry.fragment_shift,
        group_count: u64::try_from(geometry.group_layout().groups().count()).unwrap_or(u64::MAX),
        journal_bytes: geometry.journal_bytes,
        pages_written: written_bytes.div_ceil(4096),
        warnings,
    })
}
