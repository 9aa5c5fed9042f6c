//! The devices of a pool are found, whichever of them is named.
//!
//! The one that is named says in its label where the others were last: their paths are looked at,
//! then the folders of the members known, then what the user names besides. A path is a hint: the
//! label of what lies there decides. Whatever is not wanted is not opened as a device, which would
//! keep it from others and wait for them (`look.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::members::{Member, MemberState};
use format::superblock::Superblock;
use storage::device::{FileDevice, FileOptions, SharedDevice};
use storage::pool::{SuperblockReport, read_superblock};
use storage::volume::{Opening, Slot, Volume};

use super::look::{Looks, Seen};
use super::{cannot_use, failed, open_device_with};
use crate::backend::{BackendError, Members};

/// Most files of a folder that are looked at: more are no folder of pools.
const FOLDER_FILES_MAX: usize = 1024;

/// The devices of one pool, the one that was named first.
pub(super) struct FoundDevices {
    pub(super) files: Vec<(PathBuf, Arc<FileDevice>)>,
    /// Paths at which others are now than those that the labels know there and that were not found.
    pub(super) others: Vec<Vec<u8>>,
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
        let (path, state) = (format::text::shown(&member.path), state.word());
        format!("{path} (slot {slot}) is {state}: nothing that only it holds was looked at")
    };
    Ok(ToRead { device: Arc::clone(volume.device()), away: away.map(words).collect() })
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
    let mut found = FoundDevices { files, others: Vec::new(), accepts_missing };
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
    let mut search = Search::new(&read, path);
    for hint in &members.hints {
        // Whoever judges says whether it fits.
        if search.is_new(hint) {
            found.files.push((hint.clone(), open_device_with(hint, options)?));
            search.follow(&found.files)?;
        }
    }
    let named = found.files.len();
    let (mut looks, mut unopened) = (Looks::default(), Vec::new());
    while let Some(candidate) = search.next().filter(|_| !accepts_missing) {
        if search.is_full() || !search.is_new(&candidate) {
            continue;
        }
        let is_labelled = search.is_labelled(&candidate);
        let Seen::Label(label) = looks.at(&candidate, is_labelled) else { continue };
        if !search.is_of_pool(&label) || !search.wants(&label) {
            continue;
        }
        let device = match open_device_with(&candidate, options) {
            Ok(device) => device,
            Err(error) => {
                unopened.push((label, error));
                continue;
            }
        };
        // Between a member that was replaced, or a copy, and a member only the label tells.
        let is_wanted = label_of(&device).is_ok_and(|label| search.wants(&label));
        if is_wanted {
            found.files.push((candidate, device));
            search.follow(&found.files)?;
        }
    }
    // Another name of the same device may have been opened; one that is in use may be written to
    // by somebody else, and the pool must not go on without it.
    let is_needed = |label: &Superblock| search.wants(label) && !search.is_away(label);
    if let Some((_, error)) = unopened.into_iter().find(|(label, _)| is_needed(label)) {
        return Err(error);
    }
    found.others = search.others(&found.files, &mut looks);
    // An older label may have led to a device that the newest does not know: what the user has not
    // named is of no pool then. A crash in the middle of an update leaves that.
    let is_listed = |device: &Arc<FileDevice>| {
        label_of(device).is_ok_and(|label| search.lists(&label.device_id()))
    };
    let mut at = 0..;
    found.files.retain(|(_, device)| at.next().is_some_and(|at| at < named) || is_listed(device));
    Ok(found)
}

fn label_of(device: &Arc<FileDevice>) -> Result<Superblock, storage::pool::PoolError> {
    read_superblock(device.as_ref()).map(|report| report.current)
}

/// Returns the numbers of a file, by which it is known whatever it is called.
fn number_of(path: &Path) -> Option<(u64, u64)> {
    let stat = std::fs::metadata(path).ok()?;
    // All nodes of one block device are the same.
    let is_block_device = stat.file_type().is_block_device();
    Some(if is_block_device { (u64::MAX, stat.rdev()) } else { (stat.dev(), stat.ino()) })
}

/// What is looked for, and where.
struct Search {
    /// The newest label so far, and by what it is known to be that.
    label: Superblock,
    age: (u64, u64),
    /// Identities that were found.
    found: BTreeSet<[u8; 16]>,
    /// Files that were looked at, by device and inode.
    seen: BTreeSet<(u64, u64)>,
    waiting: VecDeque<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Search {
    fn new(read: &SuperblockReport, path: &Path) -> Search {
        let mut search = Search {
            label: read.current.clone(),
            age: read.age(),
            found: BTreeSet::from([read.current.device_id()]),
            seen: BTreeSet::new(),
            waiting: VecDeque::new(),
            folders: BTreeSet::new(),
        };
        search.is_new(path);
        search.add_paths(path);
        search
    }

    /// Adds where the label says that members were, and the folder of a member.
    fn add_paths(&mut self, path: &Path) {
        let members = self.label.members.iter().map(|member| &member.path);
        let paths = members.chain(self.label.spares.iter().map(|spare| &spare.path));
        let known = paths.filter(|path| !path.is_empty());
        self.waiting.extend(known.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))));
        let folder = std::fs::canonicalize(path).ok().and_then(|path| Some(path.parent()?.into()));
        let Some(folder) = folder.filter(|folder| self.folders.insert(PathBuf::clone(folder)))
        else {
            return;
        };
        let files = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> =
            files.take(FOLDER_FILES_MAX).map(|entry| entry.path()).collect();
        files.sort();
        self.waiting.extend(files);
    }

    /// Whether a label names this path.
    fn is_labelled(&self, path: &Path) -> bool {
        let members = self.label.members.iter().map(|member| &member.path);
        let paths = members.chain(self.label.spares.iter().map(|spare| &spare.path));
        paths.into_iter().any(|known| known == path.as_os_str().as_bytes())
    }

    /// Whether the newest label calls the device away whose label this is.
    fn is_away(&self, label: &Superblock) -> bool {
        let id = label.device_id();
        let member = self.label.members.iter().find(|member| member.id == id);
        member.is_some_and(|it| matches!(it.state, MemberState::Missing | MemberState::Failed))
    }

    /// Goes on from the labels of what was found.
    fn follow(&mut self, files: &[(PathBuf, Arc<FileDevice>)]) -> Result<(), BackendError> {
        let Some((path, device)) = files.last() else { return Ok(()) };
        let read = read_superblock(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
        self.found.insert(read.current.device_id());
        // What the label of a spare says is not believed (MJ5), unless there is no other yet.
        let is_newer = read.age() > self.age || self.label.is_of_spare();
        if is_newer && !read.current.is_of_spare() {
            (self.age, self.label) = (read.age(), read.current);
        }
        self.add_paths(path);
        Ok(())
    }

    fn next(&mut self) -> Option<PathBuf> {
        self.waiting.pop_front()
    }

    /// Whether all members and spares were found; in a slot that is free there is none.
    fn is_full(&self) -> bool {
        let has = |id: &[u8; 16]| self.found.contains(id);
        self.label.members.iter().all(|member| member.is_gone() || has(&member.id))
            && self.label.spares.iter().all(|spare| has(&spare.id))
    }

    /// Whether the file at `path` was not looked at yet.
    fn is_new(&mut self, path: &Path) -> bool {
        number_of(path).is_some_and(|number| self.seen.insert(number))
    }

    /// Whether a label is of this pool.
    fn is_of_pool(&self, label: &Superblock) -> bool {
        label.pool_id == self.label.pool_id
    }

    /// Returns the paths of members and spares that were not found at which others are now: one of
    /// `files` by another name, or one whose label says so. Where a blank device is now the path is
    /// kept: that is how the place of a disk is called that was exchanged.
    fn others(&self, files: &[(PathBuf, Arc<FileDevice>)], looks: &mut Looks) -> Vec<Vec<u8>> {
        let members = self.label.members.iter().filter(|member| !member.is_gone());
        let members = members.map(|member| (member.id, &member.path));
        let spares = self.label.spares.iter().map(|spare| (spare.id, &spare.path));
        let absent = members.chain(spares).filter(|(id, _)| !self.found.contains(id));
        let mut is_other = |id: [u8; 16], path: &[u8]| {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            let Some(number) = number_of(path) else { return false };
            if files.iter().any(|(file, _)| number_of(file) == Some(number)) {
                return true;
            }
            match looks.at(path, true) {
                Seen::Label(label) => !self.is_of_pool(&label) || label.device_id() != id,
                Seen::NoLabel => false,
            }
        };
        let known = absent.filter(|(_, path)| !path.is_empty());
        known.filter(|(id, path)| is_other(*id, path)).map(|(_, path)| path.clone()).collect()
    }

    /// Whether a label is of a member that is missing so far. One of another history is wanted too:
    /// whoever judges refuses it by name.
    fn wants(&self, label: &Superblock) -> bool {
        let id = label.device_id();
        let is_newer = label.membership().number > self.label.membership().number;
        !self.found.contains(&id) && (self.lists(&id) || is_newer)
    }

    /// Whether the newest label so far lists a device as member or spare.
    fn lists(&self, id: &[u8; 16]) -> bool {
        self.label.members.iter().any(|member| member.id == *id && !member.is_gone())
            || self.label.spares.iter().any(|spare| spare.id == *id)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

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

    /// Makes a mirror of the files d0 and d1 in a new folder, opens it once, and closes it.
    fn mirror_in(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let made = |name: &str| -> SharedDevice {
            let path = folder.join(name);
            FileDevice::create(&path, 10 << 20, FileOptions::default()).expect("a file")
        };
        let options = CreateOptions::new(10 << 20, [8; 64]);
        let devices = [made("d0"), made("d1")];
        Pool::create_on(&devices, Layout::Mirror, &ManualClock::new(), &options).expect("it fits");
        let opening = Opening { devices: devices.to_vec(), accepts_missing: false };
        let clock = Arc::new(SystemClock::new());
        let pool = Pool::open_members(opening, clock, OpenOptions::default()).expect("it is new");
        pool.close().expect("nothing fails");
        folder
    }

    fn search_from(first: &Path) -> Result<FoundDevices, BackendError> {
        find(first, &Members::default(), FileOptions::default())
    }

    /// Goal: a member whose first label is gone is found by another copy of it, and one that
    /// somebody has open under the name that the labels know by another name; where there is no
    /// other the pool is not opened without it.
    #[test]
    fn a_member_is_found_by_any_copy_of_its_label_and_by_any_name() {
        let folder = mirror_in("copies");
        let path = |name: &str| folder.join(name);
        let file = std::fs::File::options().write(true).open(path("d1")).expect("it is there");
        file.write_all_at(&[0; 4096], 0).expect("it can be written");
        assert_eq!(search_from(&path("d0")).expect("both are there").files.len(), 2);
        std::fs::rename(path("d1"), path("e1")).expect("it is ours");
        std::fs::copy(path("e1"), path("d1")).expect("there is room");
        let in_use = FileDevice::open(&path("d1"), FileOptions::default()).expect("it is free");
        let found = search_from(&path("d0")).expect("it is there by another name");
        let names: Vec<PathBuf> = found.files.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(names, [path("d0"), path("e1")]);
        drop(found);
        std::fs::remove_file(path("e1")).expect("it is ours");
        let error = search_from(&path("d0")).err().expect("it is in use").to_string();
        assert!(error.contains("/d1"), "{error}");
        drop(in_use);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    /// Goal: where a stranger lies at the path of a member that is not there, the path is not
    /// believed; where a blank device does it is.
    #[test]
    fn a_path_at_which_a_stranger_is_now_is_not_believed() {
        let folder = mirror_in("strangers");
        let path = |name: &str| folder.join(name);
        std::fs::remove_file(path("d1")).expect("it is ours");
        let others = || search_from(&path("d0")).expect("one of two").others;
        assert!(others().is_empty());
        std::fs::write(path("d1"), vec![0; 10 << 20]).expect("there is room");
        assert!(others().is_empty());
        std::fs::remove_file(path("d1")).expect("it is ours");
        let stranger: SharedDevice =
            FileDevice::create(&path("d1"), 10 << 20, FileOptions::default()).expect("a file");
        let options = CreateOptions::new(10 << 20, [9; 64]);
        Pool::create(&stranger, &ManualClock::new(), &options).expect("it fits");
        let known = path("d1").as_os_str().as_bytes().to_vec();
        assert_eq!(others(), std::slice::from_ref(&known));
        std::fs::remove_file(path("d1")).expect("it is ours");
        std::os::unix::fs::symlink(path("d0"), path("d1")).expect("a link");
        assert_eq!(others(), [known]);
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }

    /// Goal: nobody is searched for in a slot that is free.
    #[test]
    fn a_slot_that_is_free_is_not_searched_for() {
        let folder = mirror_in("free");
        let found = search_from(&folder.join("d0")).expect("both are there");
        let mut read = read_superblock(found.files[0].1.as_ref()).expect("it has one");
        read.current.members.push(Member::gone());
        let mut search = Search::new(&read, &folder.join("d0"));
        assert!(!search.is_full());
        search.found.insert(read.current.members[1].id);
        assert!(search.is_full(), "the third has gone");
        std::fs::remove_dir_all(&folder).expect("it is ours");
    }
}
