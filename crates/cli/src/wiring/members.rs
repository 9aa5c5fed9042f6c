//! The devices of a pool are opened, whichever of them is named: what the user names, and what is
//! found by that (`search.rs`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::members::{Member, MemberState, Spare};
use format::superblock::Superblock;
use storage::device::{FileDevice, FileOptions, SharedDevice};
use storage::pool::read_superblock;
use storage::volume::{Opening, Slot, Volume};

use super::devices::{called, hex};
use super::search::Search;
use super::{cannot_use, failed, open_device_with};
use crate::backend::{BackendError, Members};
use crate::control::DeviceFacts;

/// The devices of one pool, the one that was named first.
pub(super) struct FoundDevices {
    pub(super) files: Vec<(PathBuf, Arc<FileDevice>)>,
    /// Paths at which others are now than those that the labels know there and that were not found.
    pub(super) others: Vec<Vec<u8>>,
    /// What was found and is not used, for the user.
    pub(super) reports: Vec<String>,
    accepts_missing: bool,
}

impl FoundDevices {
    /// Returns them as the engine opens them.
    pub(super) fn opening(&self) -> Opening {
        let shared = |(_, file): &(PathBuf, Arc<FileDevice>)| -> SharedDevice {
            Arc::<FileDevice>::clone(file)
        };
        let devices = self.files.iter().map(shared).collect();
        Opening { devices, accepts_missing: self.accepts_missing }
    }
}

/// A pool that is read and not opened.
pub(super) struct ToRead {
    /// It, as one device, whatever it lies on.
    pub(super) device: SharedDevice,
    /// What is said of each member that cannot be looked at.
    pub(super) away: Vec<String>,
}

/// Opens the pool on `path` to be read.
pub(super) fn to_read(
    path: &Path,
    members: &Members,
    options: FileOptions,
) -> Result<ToRead, BackendError> {
    let found = find(path, members, options)?;
    if let [(_, device)] = found.files.as_slice()
        && !label_of(device).is_ok_and(|label| label.members.len() > 1)
    {
        return Ok(ToRead { device: Arc::<FileDevice>::clone(device), away: Vec::new() });
    }
    let mut opening = found.opening();
    // Nothing is written: what is there can be looked at.
    opening.accepts_missing = true;
    let (volume, label) =
        Volume::open_members(opening).map_err(|error| cannot_use(path, &error))?;
    let slots = volume.members().map(|members| members.all()).unwrap_or_default();
    // Until somebody mounts the pool, the labels may not know that one is missing.
    let is_away = |slot: &Slot| slot.readable().is_none() && slot.state != MemberState::Gone;
    let away = slots.iter().zip(&label.members).enumerate().filter(|(_, (slot, _))| is_away(slot));
    let words = |(slot, (it, member)): (usize, (&Slot, &Member))| {
        let is_unknown = it.state == MemberState::Online;
        let state = if is_unknown { MemberState::Missing } else { it.state };
        let (path, state) = (called(&member.path, member.id), state.word());
        format!("{path} (slot {slot}) is {state}: nothing that only it holds was looked at")
    };
    Ok(ToRead { device: Arc::clone(volume.device()), away: away.map(words).collect() })
}

/// Returns the devices of the pool on `path` as the newest label of those that are found has them.
pub(super) fn listed(
    path: &Path,
    members: &Members,
    options: FileOptions,
) -> Result<Vec<DeviceFacts>, BackendError> {
    // Where copies keep others from being chosen, the one that is named is looked at alone.
    let alone = Members { accepts_missing: true, ..members.clone() };
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

/// Opens the device at `path`, and all other members of its pool that are found.
pub(super) fn find(
    path: &Path,
    members: &Members,
    options: FileOptions,
) -> Result<FoundDevices, BackendError> {
    let device = open_device_with(path, options)?;
    let accepts_missing = members.accepts_missing;
    let files = vec![(path.to_owned(), device)];
    let mut found =
        FoundDevices { files, others: Vec::new(), reports: Vec::new(), accepts_missing };
    // What the user names must be there.
    for hint in &members.hints {
        std::fs::metadata(hint).map_err(|error| {
            let is_missing = error.kind() == ErrorKind::NotFound;
            let missing = || BackendError::Missing { device: hint.clone() };
            if is_missing { missing() } else { failed(hint, error) }
        })?;
    }
    let has_others = |label: &Superblock| label.members.len() > 1 || !members.hints.is_empty();
    // What is wrong with it whoever opens it says.
    let read = read_superblock(found.files[0].1.as_ref()).ok();
    let Some(read) = read.filter(|read| has_others(&read.current)) else { return Ok(found) };
    let mut search = Search::new(&read, path, (!members.hints.is_empty(), options));
    for hint in &members.hints {
        // Whoever judges says whether it fits.
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
    // An older label may have led to a device that the newest does not know: what the user has not
    // named is of no pool then. A crash in the middle of an update leaves that.
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
    use engine::{CreateOptions, OpenOptions, Pool};
    use format::members::Layout;
    use runtime::clock::{ManualClock, SystemClock};
    use storage::pool::write_superblock_copy;
    use storage::volume::NewGroup;

    use super::*;

    /// Goal: what the user names besides is looked at, in a pool of one device too: what is not
    /// there, and what is of no pool or of another, is refused by name.
    #[test]
    fn what_is_named_besides_must_be_there_and_of_the_pool() {
        let folder = std::env::temp_dir().join(format!("named-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = |name: &str| folder.join(name);
        for (name, seed) in [("one", 1), ("other", 2)] {
            let made = FileDevice::create(&path(name), 10 << 20, FileOptions::default());
            let device: SharedDevice = made.expect("a file");
            let options = CreateOptions::new(10 << 20, [seed; 64]);
            Pool::create(&device, &ManualClock::new(), &options).expect("it fits");
        }
        std::fs::write(path("blank"), vec![0; 1 << 20]).expect("it can be written");
        let open = |hint: &str| {
            let members = Members { hints: vec![path(hint)], ..Members::default() };
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

    /// Goal: a crash in the middle of the update that takes a disk group out leaves a pool that is
    /// found, by whichever of its members. Method: the label of one member knows of it, that of the
    /// other still lists the device that is gone.
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
        let options = CreateOptions::new(10 << 20, [7; 64]);
        Pool::create(&shared(0), &ManualClock::new(), &options).expect("it fits");
        let clock = Arc::new(SystemClock::new());
        let pool = Pool::open(shared(0), clock, OpenOptions::default()).expect("just made");
        for at in [1, 2] {
            let id = [u8::try_from(at).expect("small"); 16];
            let group = NewGroup {
                layout: Layout::Single,
                devices: vec![(shared(at), id)],
                roles: format::disk_group::Roles::DATA,
            };
            pool.add_disk_group(&group).expect("it fits");
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
            let found = find(&path(first), &Members::default(), FileOptions::default());
            let found = found.unwrap_or_else(|error| panic!("{first}: {error}"));
            assert_eq!(found.files.len(), 2, "{first}");
            Volume::open_members(found.opening()).unwrap_or_else(|error| panic!("{error}"));
        }
        // Who names the device is told what it is.
        let named = find(&path("gone"), &Members::default(), FileOptions::default());
        let error = Volume::open_members(named.expect("they are there").opening());
        assert!(error.expect_err("it is gone").to_string().contains("no member"));
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
