//! Opens the devices of a pool: the one that the user names, and those that `search.rs` finds.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::members::{Member, MemberState, Spare};
use format::superblock::Superblock;
use storage::device::{FileDevice, FileOptions, SharedDevice};
use storage::pool::read_superblock;
use storage::volume::{MemberSlot, Volume, VolumeDevices};

use super::devices::{called, hex};
use super::search::MemberSearch;
use super::{cannot_use, failed, open_device_with};
use crate::backend::{BackendError, MemberSearchOptions};
use control::DeviceFacts;

/// Open devices of one pool. The one that the user named is first.
pub(super) struct MemberDevices {
    pub(super) files: Vec<(PathBuf, Arc<FileDevice>)>,
    /// Recorded paths of absent members and spares that lead to another device at present
    /// ([`MemberSearch::others`]).
    pub(super) others: Vec<Vec<u8>>,
    pub(super) reports: Vec<String>,
    accepts_missing: bool,
}

impl MemberDevices {
    pub(super) fn opening(&self) -> VolumeDevices {
        let shared = |(_, file): &(PathBuf, Arc<FileDevice>)| -> SharedDevice {
            Arc::<FileDevice>::clone(file)
        };
        let devices = self.files.iter().map(shared).collect();
        VolumeDevices { devices, accepts_missing: self.accepts_missing }
    }
}

pub(super) struct ReadOnlyPoolDevice {
    pub(super) device: SharedDevice,
    pub(super) away: Vec<String>,
}

pub(super) fn to_read(
    path: &Path,
    members: &MemberSearchOptions,
    options: FileOptions,
) -> Result<ReadOnlyPoolDevice, BackendError> {
    let found = find(path, members, options)?;
    if let [(_, device)] = found.files.as_slice()
        && !label_of(device).is_ok_and(|label| label.members.len() > 1)
    {
        return Ok(ReadOnlyPoolDevice {
            device: Arc::<FileDevice>::clone(device),
            away: Vec::new(),
        });
    }
    let mut opening = found.opening();
    // Reading does no harm, so a pool with too few members is opened too.
    opening.accepts_missing = true;
    let (volume, label) =
        Volume::open_members(opening).map_err(|error| cannot_use(path, &error))?;
    let slots = volume.members().map(|members| members.all()).unwrap_or_default();
    // A member that was not found has no state in the label yet. The next mount records it as
    // missing.
    let is_away = |slot: &MemberSlot| slot.readable().is_none() && slot.state != MemberState::Gone;
    let away = slots.iter().zip(&label.members).enumerate().filter(|(_, (slot, _))| is_away(slot));
    let words = |(slot, (it, member)): (usize, (&MemberSlot, &Member))| {
        let is_unknown = it.state == MemberState::Online;
        let state = if is_unknown { MemberState::Missing } else { it.state };
        let (path, state) = (called(&member.path, member.id), state.word());
        format!("{path} (slot {slot}) is {state}: nothing that only it holds was looked at")
    };
    Ok(ReadOnlyPoolDevice { device: Arc::clone(volume.device()), away: away.map(words).collect() })
}

pub(super) fn listed(
    path: &Path,
    members: &MemberSearchOptions,
    options: FileOptions,
) -> Result<Vec<DeviceFacts>, BackendError> {
    // If there are several copies of a member, the search fails. Then only the named devices are
    // listed.
    let alone = MemberSearchOptions { accepts_missing: true, ..members.clone() };
    let found = find(path, members, options).or_else(|_| find(path, &alone, options))?;
    let mut labels = Vec::with_capacity(found.files.len());
    for (path, device) in &found.files {
        labels.push(read_superblock(device.as_ref()).map_err(|error| cannot_use(path, &error))?);
    }
    let pool = labels.first().map(|read| read.current.pool_id);
    let of_another = labels.iter().position(|read| Some(read.current.pool_id) != pool);
    if let Some((path, _)) = of_another.and_then(|at| found.files.get(at)) {
        return Err(failed(path, "it belongs to another pool: leave it out"));
    }
    let Some(newest) = labels.iter().max_by_key(|read| read.age()) else { return Ok(Vec::new()) };
    let label = &newest.current;
    let is_there = |id| labels.iter().any(|read| read.current.device_id() == id);
    let members = label.members.iter().enumerate().filter(|(_, member)| !member.is_gone());
    let member = |(slot, it): (usize, &Member)| {
        let is_away = it.state == MemberState::Online && !is_there(it.id);
        let state = if is_away { MemberState::Missing } else { it.state };
        let of_added = label.added.iter().find(|group| group.slots.contains(slot));
        DeviceFacts {
            slot: u64::try_from(slot).unwrap_or(0),
            group: of_added.map_or(label.geometry.main, |group| group.number).into(),
            id: hex(it.id),
            path: format::text::shown(&it.path),
            state: state.word().to_owned(),
            size_bytes: it.size_bytes,
            pool_bytes: label.member_bytes(slot),
            ..DeviceFacts::default()
        }
    };
    let spare = |it: &Spare| DeviceFacts {
        slot: u64::try_from(label.members.len()).unwrap_or(0),
        id: hex(it.id),
        path: format::text::shown(&it.path),
        state: if is_there(it.id) { "spare" } else { "spare away" }.to_owned(),
        size_bytes: it.size_bytes,
        ..DeviceFacts::default()
    };
    Ok(members.map(member).chain(label.spares.iter().map(spare)).collect())
}

pub(super) fn find(
    path: &Path,
    members: &MemberSearchOptions,
    options: FileOptions,
) -> Result<MemberDevices, BackendError> {
    let device = open_device_with(path, options)?;
    let accepts_missing = members.accepts_missing;
    let files = vec![(path.to_owned(), device)];
    let mut found =
        MemberDevices { files, others: Vec::new(), reports: Vec::new(), accepts_missing };
    for hint in &members.hints {
        std::fs::metadata(hint).map_err(|error| {
            let is_missing = error.kind() == ErrorKind::NotFound;
            let missing = || BackendError::Missing { device: hint.clone() };
            if is_missing { missing() } else { failed(hint, error) }
        })?;
    }
    let has_others = |label: &Superblock| label.members.len() > 1 || !members.hints.is_empty();
    // If the superblock is unreadable, opening the pool reports that.
    let read = read_superblock(found.files[0].1.as_ref()).ok();
    let Some(read) = read.filter(|read| has_others(&read.current)) else { return Ok(found) };
    let mut search = MemberSearch::new(&read, path, (!members.hints.is_empty(), options));
    for hint in &members.hints {
        // If the device is not a member, opening the pool reports that.
        if search.is_new(hint) {
            found.files.push((hint.clone(), open_device_with(hint, options)?));
            search.follow(&found.files, true)?;
        }
    }
    let named = found.files.len();
    if !accepts_missing {
        search.take_beside(&mut found.files)?;
        search.follow_labels(&mut found.files)?;
    }
    search.refuse_unopened()?;
    found.others = search.others(&found.files);
    found.reports = search.reports();
    // After a crash during an update of labels, an older label may have led to a device that the
    // newest label does not list. It is dropped unless the user named it.
    let is_listed = |device: &Arc<FileDevice>| {
        label_of(device).is_ok_and(|label| search.lists(&label.device_id()))
    };
    let mut at = 0..;
    found.files.retain(|(_, device)| at.next().is_some_and(|at| at < named) || is_listed(device));
    Ok(found)
}

pub(super) fn label_of(device: &Arc<FileDevice>) -> Result<Superblock, storage::pool::PoolError> {
    read_superblock(device.as_ref()).map(|report| report.current)
}

#[cfg(test)]
mod tests {
    use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
    use format::members::Layout;
    use runtime::clock::{ManualClock, SystemClock};
    use storage::pool::write_superblock_copy;
    use storage::volume::DiskGroupSpec;

    use super::*;

    /// Goal: every further device that the user names is examined, even for a pool of one device. A
    /// missing or blank device, or one of another pool, is refused by name.
    #[test]
    fn what_is_named_besides_must_be_there_and_of_the_pool() {
        let folder = std::env::temp_dir().join(format!("named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name);
        for (name, seed) in [("one", 1), ("other", 2)] {
            let made = FileDevice::create(&path(name), 10 << 20, FileOptions::default());
            let device: SharedDevice = made.expect("a file");
            let options = PoolCreateOptions::new(10 << 20, [seed; 64]);
            Pool::create(&device, &ManualClock::new(), &options).expect("it fits");
        }
        std::fs::write(path("blank"), vec![0; 1 << 20]).expect("it can be written");
        let open = |hint: &str| {
            let members =
                MemberSearchOptions { hints: vec![path(hint)], ..MemberSearchOptions::default() };
            let found = find(&path("one"), &members, FileOptions::default());
            let found = found.map_err(|error| error.to_string())?;
            Volume::open_members(found.opening()).map(drop).map_err(|error| error.to_string())
        };
        for hint in ["nowhere", "blank", "other"] {
            let error = open(hint).expect_err(hint);
            assert!(error.contains(&*path(hint).to_string_lossy()), "{hint}: {error}");
        }
        open("one").expect("it is the pool itself");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    /// Goal: after a crash during the removal of a disk group, the pool is found from any of its
    /// members. Method: one label without the removed device, and one that still lists it.
    #[test]
    fn the_newest_label_decides_which_of_the_devices_found_belong() {
        let folder = std::env::temp_dir().join(format!("members-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name);
        let open = |name: &str| {
            let made = FileDevice::create(&path(name), 10 << 20, FileOptions::default());
            made.expect("a file")
        };
        let files = ["d0", "gone", "d1"].map(open);
        let shared = |at: usize| -> SharedDevice { Arc::<FileDevice>::clone(&files[at]) };
        let options = PoolCreateOptions::new(10 << 20, [7; 64]);
        Pool::create(&shared(0), &ManualClock::new(), &options).expect("it fits");
        let clock = Arc::new(SystemClock::new());
        let pool = Pool::open(shared(0), clock, PoolOpenOptions::default()).expect("just made");
        for at in [1, 2] {
            let id = [u8::try_from(at).expect("small"); 16];
            let group = DiskGroupSpec {
                layout: Layout::Single,
                devices: vec![(shared(at), id)],
                roles: format::disk_group::DiskGroupRoles::DATA,
            };
            pool.devices().add_disk_group(&group).expect("it fits");
        }
        pool.close().expect("nothing fails");
        drop(pool);
        let mut label = label_of(&files[2]).expect("it has one");
        label.take_out(1);
        label.add_membership();
        label.sequence += 1;
        for copy in 0..4 {
            write_superblock_copy(files[2].as_ref(), &label, copy).expect("it can be written");
        }
        drop(files);
        for first in ["d0", "d1"] {
            let found = find(&path(first), &MemberSearchOptions::default(), FileOptions::default());
            let found = found.unwrap_or_else(|error| panic!("{first}: {error}"));
            assert_eq!(found.files.len(), 2, "{first}");
            Volume::open_members(found.opening()).unwrap_or_else(|error| panic!("{error}"));
        }
        let named = find(&path("gone"), &MemberSearchOptions::default(), FileOptions::default());
        let error = Volume::open_members(named.expect("they are there").opening());
        assert!(error.expect_err("it is gone").to_string().contains("no member"));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
