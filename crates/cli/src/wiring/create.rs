//! How a pool is made on a file or a block device.
//!
//! # Invariants
//!
//! - MK1: A refusal leaves everything as it was: whatever can be refused is refused before the
//!   first byte is written, and a file that could not be made longer or shorter has its old length.
//! - MK2: Nothing that was there is removed. A file is overwritten in place and keeps its names,
//!   its mode and its owner. Only a file that this very creation made goes again if it fails.
//!
//! # Crashes
//!
//! What was there is first made unrecognisable (`wipe`), durably. So a creation that was cut off
//! leaves no pool, and never the superblocks of the old one above pages of the new.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use runtime::clock::SystemClock;
use storage::device::{
    AlignedBuffer, CountingDevice, Device, DeviceError, FileDevice, FileOptions, OpenError,
    Operation, Purpose, RequestKind, SharedDevice,
};
use storage::pool::check_writable;

use super::blank::what_is_there;
use super::growth::slack_of;
use super::neighbours::ThisMachine;
use super::{
    cannot_open, cannot_start, cannot_use, failed, open_device_with, openness_of, random_bytes,
    refuse_used,
};
use crate::backend::{BackendError, CreateOptions, CreateReport, GroupToMake};
use crate::size::ByteSize;

/// A file of the size that was asked for may be too large for the file system below by a little
/// (ext4 ends 4 KiB below 16 TiB): so much less is tried.
const SIZE_SLACK_BYTES: u64 = 1 << 20;
/// A device is as long as this goes into its file.
const DEVICE_ALIGN_BYTES: u64 = 4096;
/// What a device has more than the shortest of its disk group and is not told of.
const UNUSED_TOLD_BYTES: u64 = 1 << 20;
/// Bytes of a file that are given back at once: well within the deadline of a request.
const DISCARD_BYTES: u64 = 64 << 30;

/// Makes a pool. See the module's header.
pub(super) fn create(options: &CreateOptions) -> Result<CreateReport, BackendError> {
    let paths = paths_of(options)?;
    let mut made = Vec::new();
    let created = create_on(options, &paths, &mut made);
    created.inspect_err(|_| {
        // MK2: where there was nothing before, nothing is left behind.
        for path in &made {
            let _ = std::fs::remove_file(path);
        }
    })
}

/// Returns the paths that are named: of several absolute ones, for the labels keep them.
fn paths_of(options: &CreateOptions) -> Result<Vec<PathBuf>, BackendError> {
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

/// A device that is ready to be made a member, and whether anything is on it.
struct Ready {
    path: PathBuf,
    device: Arc<FileDevice>,
    is_used: bool,
}

fn create_on(
    options: &CreateOptions,
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
        all.push(Ready { path: path.clone(), device, is_used: false });
    }
    // MK1: of several disk groups nobody else asks before a file is cut.
    if options.groups.len() > 1 {
        let sizes: Vec<u64> = all.iter().map(|ready| size_to_be(options, ready)).collect();
        planned(options, paths, &sizes)?;
    }
    for ready in all.iter_mut().filter(|ready| !made.contains(&ready.path)) {
        ready.device = resized(options, &ready.path, Arc::clone(&ready.device))?;
    }
    let sizes: Vec<u64> = all.iter().map(|ready| ready.device.info().size_bytes).collect();
    let plan = planned(options, paths, &sizes)?;
    // MK1: from here on only the device can fail.
    for Ready { path, device, .. } in all.iter().filter(|ready| ready.is_used) {
        wipe(device.as_ref(), path.is_file()).map_err(|error| failed(path, error))?;
    }
    make(options, &all, &plan)
}

/// Returns how large a device will be that is there: a file gets the size that was asked for.
fn size_to_be(options: &CreateOptions, ready: &Ready) -> u64 {
    let found = ready.device.info().size_bytes;
    let wanted = options.size_bytes.filter(|_| ready.path.is_file());
    wanted.map_or(found, |wanted| wanted - wanted % DEVICE_ALIGN_BYTES)
}

/// Returns what the engine is asked for, on devices of `sizes`, or why it would refuse.
fn planned(
    options: &CreateOptions,
    paths: &[PathBuf],
    sizes: &[u64],
) -> Result<engine::CreateOptions, BackendError> {
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

/// Returns how many of `device_bytes` are left unused: of block devices, unless the user says how
/// much is used. Disks of one size differ by some blocks, and the next one may be the smaller.
fn slack_in(options: &CreateOptions, paths: &[PathBuf], device_bytes: u64) -> u64 {
    let is_said = options.uses_all || options.size_bytes.is_some();
    // Each of several disk groups is as large as its devices.
    let is_one = options.groups.len() == 1;
    match !is_said && is_one && paths.iter().any(|path| !path.is_file()) {
        true => slack_of(device_bytes),
        false => 0,
    }
}

/// Returns what the disk groups are to be, in order of their devices.
fn plans_of(groups: &[GroupToMake], sizes: &[u64]) -> Vec<engine::GroupPlan> {
    let mut rest = sizes;
    let plan = |group: &GroupToMake| {
        let (own, others) = rest.split_at(group.width.min(rest.len()));
        rest = others;
        let (layout, roles) = (group.layout, group.roles);
        let member_bytes = own.iter().copied().min().unwrap_or(0);
        engine::GroupPlan { layout, members: own.len(), member_bytes, roles }
    };
    groups.iter().map(plan).collect()
}

/// Returns a device that is there, if it may be overwritten.
fn existing(options: &CreateOptions, path: &Path) -> Result<Ready, BackendError> {
    let device = open_device_with(path, FileOptions::default())?;
    refuse_used(path)?;
    check_writable(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
    let found = what_is_there(path, &device).map_err(|error| failed(path, error))?;
    if let (Some(found), false) = (&found, options.is_forced) {
        return Err(BackendError::Foreign { device: path.to_owned(), found: found.clone() });
    }
    // Somebody may have it whom no lock knows.
    let shared: SharedDevice = Arc::<FileDevice>::clone(&device);
    storage::heartbeat::wait_until_free(&shared, &ThisMachine)
        .map_err(|error| cannot_use(path, &error))?;
    Ok(Ready { path: path.to_owned(), device, is_used: found.is_some() })
}

/// Returns what the engine is asked for, on a device of `device_bytes`, or why it would refuse.
fn plan_of(
    options: &CreateOptions,
    device_bytes: u64,
) -> Result<engine::CreateOptions, BackendError> {
    if !options.block_bytes.is_power_of_two() {
        let reason = "a block is a power of two from 4 KiB to 1 MiB".to_owned();
        return Err(BackendError::Option { option: "--block", reason });
    }
    let pool_bytes = options.size_bytes.unwrap_or(device_bytes).min(device_bytes);
    let mut plan = engine::CreateOptions::new(pool_bytes, random_bytes()?);
    plan.geometry.fragment_bytes = u32::try_from(options.fragment_bytes).unwrap_or(0);
    plan.geometry.group_bytes = options.group_bytes;
    plan.geometry.journal_bytes = options.journal_bytes;
    plan.block_shift = u8::try_from(options.block_bytes.ilog2()).unwrap_or(0);
    plan.label.clone_from(&options.label);
    plan.owner = (options.owner_uid, options.owner_gid);
    let first = options.devices.first().map_or(Path::new(""), PathBuf::as_path);
    // Several disk groups are planned together, when all sizes are known.
    if let [only] = options.groups.as_slice() {
        let planned = plan.plan_on(only.layout, options.devices.len());
        planned.map_err(|error| cannot_start(first, error))?;
    }
    Ok(plan)
}

/// Calls `sized` with the size that was asked for, or with a little less where that is too large;
/// with none for which there could be no pool.
fn with_slack(
    options: &CreateOptions,
    (path, wanted): (&Path, u64),
    sized: &mut dyn FnMut(u64) -> Result<Arc<FileDevice>, OpenError>,
) -> Result<Arc<FileDevice>, BackendError> {
    plan_of(options, wanted - wanted % DEVICE_ALIGN_BYTES)?;
    match sized(wanted) {
        Err(OpenError::TooLarge { .. }) if wanted > SIZE_SLACK_BYTES => {
            let smaller = wanted - SIZE_SLACK_BYTES;
            plan_of(options, smaller - smaller % DEVICE_ALIGN_BYTES)?;
            sized(smaller)
        }
        sized => sized,
    }
    .map_err(|error| cannot_open(path, error))
}

fn new_file(options: &CreateOptions, path: &Path) -> Result<Arc<FileDevice>, BackendError> {
    let wanted = options.size_bytes.ok_or_else(|| BackendError::Option {
        option: "--size",
        reason: format!("{} is not there yet: say how large to make it", path.display()),
    })?;
    with_slack(options, (path, wanted), &mut |size_bytes| {
        FileDevice::create(path, size_bytes, FileOptions::default())
    })
}

/// Returns the device at the length that was asked for: a file gets it, a block device has it.
fn resized(
    options: &CreateOptions,
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

/// Makes what is on the device unrecognisable, durably, and gives its room back where that is
/// possible.
///
/// CRASH: before the flush, an old pool has lost some copies of its superblock and nothing else;
/// after it there is none.
fn wipe(device: &FileDevice, is_file: bool) -> Result<(), DeviceError> {
    let size_bytes = device.info().size_bytes;
    let ends = [0, 1, 2, 3].map(|copy| Geometry::superblock_offset(size_bytes, copy));
    let area_bytes = usize::try_from(SUPERBLOCK_AREA_BYTES).unwrap_or(0);
    for offset in ends {
        device.write(Purpose::Superblock, offset, AlignedBuffer::zeroed(area_bytes))?;
    }
    device.flush(Purpose::Superblock)?;
    // A block device is not discarded: that may take minutes, and is its user's to decide.
    let step = usize::try_from(DISCARD_BYTES).unwrap_or(usize::MAX);
    for offset in (0..size_bytes).step_by(step).filter(|_| is_file) {
        let length_bytes = (size_bytes - offset).min(DISCARD_BYTES);
        let discard = Operation::Discard { offset, length_bytes };
        match device.submit(Purpose::Superblock, discard).wait() {
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

/// Returns what is not used of devices that are longer than others of their disk group.
fn unused_of(groups: &[GroupToMake], all: &[Ready]) -> Vec<String> {
    let (mut rest, mut told) = (all, Vec::new());
    for group in groups {
        let (own, others) = rest.split_at(group.width.min(rest.len()));
        rest = others;
        let size_of = |ready: &Ready| ready.device.info().size_bytes;
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

/// Makes a pool on what is blank by now.
fn make(
    options: &CreateOptions,
    all: &[Ready],
    plan: &engine::CreateOptions,
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
            let new = |group: &GroupToMake| {
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
    let others = geometry.added.iter().map(|range| geometry.bytes_of(range));
    let bytes_of = |bytes: std::ops::Range<u64>| bytes.end - bytes.start;
    Ok(CreateReport {
        pool_id: superblock.pool_id.to_string(),
        size_bytes: geometry.device_bytes + others.map(bytes_of).sum::<u64>(),
        fragment_bytes: geometry.fragment_bytes(),
        block_bytes: 1 << superblock.block_shift,
        group_bytes: u64::from(geometry.group_fragments) << geometry.fragment_shift,
        group_count: u64::try_from(geometry.groups().count()).unwrap_or(u64::MAX),
        journal_bytes: geometry.journal_bytes,
        pages_written: written_bytes.div_ceil(4096),
        warnings,
    })
}
