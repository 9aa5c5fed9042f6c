//! The search for the devices of a pool, from those that the user names.
//!
//! The folders of the named devices are searched first, then the paths in labels, then the folders
//! of these paths. A path is only a hint: the label on the device decides. Candidates that are not
//! needed are not opened as devices, because that locks them and waits for them (`look.rs`).
//!
//! # Invariants
//!
//! - FD1: A whole pool that was copied to another folder is opened there without the original: the
//!   folders of the named devices come before the paths in labels.
//! - FD2: All names of a device are one candidate: hard and symbolic links, bind mounts, a loop
//!   device of the file, two paths to one disk. A device with holders (multipath) is none.
//! - FD3: Of several candidates for one member the one with the newest label is taken, and the
//!   others are reported. If none is the newest, the search fails: the user must choose.
//! - FD4: A device that the user names is never replaced by another. With `--member` the named
//!   devices are used for their members; without it, a named device with a copy that is as new or
//!   newer is refused.
//! - FD5: If a path in a label leads to another copy of a member that was found, as new or newer,
//!   then devices that are known from labels only are not opened: they belong to that other copy.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use format::members::MemberState;
use format::superblock::{SUPERBLOCK_HEAD_BYTES, Superblock};
use storage::device::{FileDevice, FileOptions};
use storage::pool::{SuperblockReport, read_superblock};

use super::look::{Looks, Seen};
use super::members::label_of;
use super::{cannot_use, failed, open_device_with};
use crate::backend::BackendError;
use crate::holders::{is_below_another, is_one_device};

/// Most names of a folder that are read: a second on a disk. What is behind them is reported.
const FOLDER_NAMES_MAX: usize = 1 << 18;
/// Most files of a folder whose labels are read: some seconds.
const FOLDER_LOOKS_MAX: usize = 1 << 16;

/// The devices of one pool, each with its path.
type Files = Vec<(PathBuf, Arc<FileDevice>)>;

/// What may be a member of the pool.
struct Candidate {
    path: PathBuf,
    label: Box<Superblock>,
}

impl Candidate {
    fn id(&self) -> [u8; 16] {
        self.label.device_id()
    }
}

/// A device that was found.
struct Known {
    path: PathBuf,
    sequence: u64,
    /// Whether the user names it.
    is_named: bool,
}

/// What is looked for, and where.
pub(super) struct Search {
    /// The newest label so far, and by what it is known to be that.
    label: Superblock,
    age: (u64, u64),
    /// The label of the device that was named first, and its path.
    first: Superblock,
    first_path: PathBuf,
    /// Whether the user names devices by `--member` (FD4).
    is_decided: bool,
    options: FileOptions,
    /// What was found, by identity.
    found: BTreeMap<[u8; 16], Known>,
    /// Files that were looked at, by device and inode.
    seen: BTreeSet<(u64, u64)>,
    /// Paths in labels.
    waiting: VecDeque<PathBuf>,
    /// Folders of the named devices.
    folders: BTreeSet<PathBuf>,
    /// Candidates that could not be opened, and why.
    unopened: Vec<(Box<Superblock>, BackendError)>,
    looks: Looks,
    /// What was found and is not used, for the user.
    reports: Vec<String>,
}

impl Search {
    /// Begins at the device at `path`, whose label was `read`. `is_decided`: others are named too.
    pub(super) fn new(
        read: &SuperblockReport,
        path: &Path,
        (is_decided, options): (bool, FileOptions),
    ) -> Search {
        let mut search = Search {
            label: read.current.clone(),
            age: read.age(),
            first: read.current.clone(),
            first_path: path.to_owned(),
            is_decided,
            options,
            found: BTreeMap::new(),
            seen: BTreeSet::new(),
            waiting: VecDeque::new(),
            folders: BTreeSet::new(),
            unopened: Vec::new(),
            looks: Looks::default(),
            reports: Vec::new(),
        };
        search.is_new(path);
        search.add(path, &read.current, true);
        search
    }

    /// Notes a device that was found, and where its label says that others are.
    fn add(&mut self, path: &Path, label: &Superblock, is_named: bool) {
        let known = Known { path: path.to_owned(), sequence: label.sequence, is_named };
        self.found.insert(label.device_id(), known);
        self.waiting.extend(paths_in(label).map(|path| path_of(path).to_owned()));
        if is_named {
            self.folders.extend(folder_of(path));
        }
    }

    /// Goes on from the label of the last of `files`.
    pub(super) fn follow(&mut self, files: &Files, is_named: bool) -> Result<(), BackendError> {
        let Some((path, device)) = files.last() else { return Ok(()) };
        let read = read_superblock(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
        self.add(path, &read.current, is_named);
        // What the label of a spare says is not believed (MJ5), unless there is no other yet.
        let is_newer = read.age() > self.age || self.label.is_of_spare();
        if is_newer && !read.current.is_of_spare() {
            (self.age, self.label) = (read.age(), read.current);
        }
        Ok(())
    }

    /// Opens what is wanted of what lies beside the named devices (FD1).
    pub(super) fn take_beside(&mut self, files: &mut Files) -> Result<(), BackendError> {
        let beside = self.beside();
        self.take(beside, files)
    }

    /// Returns the candidates beside the named devices.
    fn beside(&mut self) -> Vec<Candidate> {
        let folders: Vec<PathBuf> = self.folders.iter().cloned().collect();
        let is_beside = |path: &&PathBuf| folder_of(path).is_some_and(|it| folders.contains(&it));
        let labelled: Vec<PathBuf> = self.waiting.iter().filter(is_beside).cloned().collect();
        let mut found: Vec<Candidate> =
            labelled.iter().filter_map(|path| self.look(path, true)).collect();
        for folder in &folders {
            found.extend(self.in_folder(folder, &found, false));
        }
        // Disks may sleep: they are asked only if one is lacking, or is not where it was.
        if !self.is_home() || self.lacks(&found) {
            for folder in &folders {
                found.extend(self.in_folder(folder, &found, true));
            }
        }
        found
    }

    /// Whether the named device is where its label says.
    fn is_home(&self) -> bool {
        let id = self.first.device_id();
        let own = self.first.members.iter().find(|member| member.id == id);
        let is_there = |path: &[u8]| is_one_device(path_of(path), &self.first_path);
        own.is_none_or(|own| own.path.is_empty() || is_there(&own.path))
    }

    /// Whether a member or spare is neither found nor among `candidates`.
    fn lacks(&self, candidates: &[Candidate]) -> bool {
        let has = |id: &[u8; 16]| {
            self.is_current(id) || candidates.iter().any(|candidate| candidate.id() == *id)
        };
        let members = self.label.members.iter().filter(|member| !member.is_gone());
        !members.map(|it| &it.id).chain(self.label.spares.iter().map(|it| &it.id)).all(has)
    }

    /// Whether a device was found, and no newer one is to be looked for.
    fn is_current(&self, id: &[u8; 16]) -> bool {
        let Some(known) = self.found.get(id) else { return false };
        let is_online = self.label.members.iter().any(|it| it.id == *id && it.is_online());
        known.is_named || known.sequence >= self.label.sequence || !is_online
    }

    /// Returns what lies at `path`, if it is of the pool and was not looked at yet.
    fn look(&mut self, path: &Path, is_labelled: bool) -> Option<Candidate> {
        // FD2.
        if !self.is_new(path) || is_below_another(path) {
            return None;
        }
        let Seen::Label(label) = self.looks.at(path, is_labelled) else { return None };
        self.is_of_pool(&label).then(|| Candidate { path: path.to_owned(), label })
    }

    /// Returns the candidates in a folder: files, or block devices. Where nothing is lacking beside
    /// `candidates` only files that are large enough are looked at: they may be copies.
    fn in_folder(
        &mut self,
        folder: &Path,
        candidates: &[Candidate],
        is_of_devices: bool,
    ) -> Vec<Candidate> {
        let least = match self.lacks(candidates) {
            true => u64::try_from(SUPERBLOCK_HEAD_BYTES).unwrap_or(0),
            false => self.first.own_bytes(),
        };
        let is_meant = |stat: &Metadata| match is_of_devices {
            true => stat.file_type().is_block_device(),
            false => stat.is_file() && stat.len() >= least,
        };
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names = entries.take(FOLDER_NAMES_MAX + 1);
        let mut paths: Vec<PathBuf> = names
            .by_ref()
            .take(FOLDER_NAMES_MAX)
            .filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .filter(|path| std::fs::metadata(path).is_ok_and(|stat| is_meant(&stat)))
            .collect();
        if names.next().is_some() || paths.len() > FOLDER_LOOKS_MAX {
            self.report(format!(
                "{} has too many files to search them all: name the devices of the pool that are \
                 in it with --member",
                folder.display()
            ));
        }
        paths.sort();
        paths.truncate(FOLDER_LOOKS_MAX);
        paths.iter().filter_map(|path| self.look(path, false)).collect()
    }

    /// Opens what is wanted of `candidates`, of each member the newest (FD3).
    fn take(&mut self, candidates: Vec<Candidate>, files: &mut Files) -> Result<(), BackendError> {
        let mut rest = Vec::new();
        for candidate in candidates {
            match self.found.contains_key(&candidate.id()) {
                true => self.check_copy(&candidate)?,
                false => rest.push(candidate),
            }
        }
        // A newer label may list others.
        while let Some(id) = rest.iter().find(|it| self.wants(&it.label)).map(Candidate::id) {
            let (own, others) = rest.into_iter().partition(|it| it.id() == id);
            rest = others;
            let ranked = self.newest_of(own)?;
            self.open_one(ranked, files)?;
        }
        Ok(())
    }

    /// FD4: refuses a device that was found where `candidate` may be the one that is meant.
    fn check_copy(&mut self, candidate: &Candidate) -> Result<(), BackendError> {
        let Some(known) = self.found.get(&candidate.id()) else { return Ok(()) };
        if is_one_device(&known.path, &candidate.path) {
            return Ok(());
        }
        if !self.is_decided && candidate.label.sequence >= known.sequence {
            let is_newer = candidate.label.sequence > known.sequence;
            return Err(self.refused(&known.path, &candidate.path, is_newer));
        }
        let used = known.path.clone();
        self.report_unused(&candidate.path, &used);
        Ok(())
    }

    /// Reports a candidate that is another copy of a member.
    fn report_unused(&mut self, unused: &Path, used: &Path) {
        let (unused, used) = (unused.display(), used.display());
        self.report(format!(
            "{unused} is not used: it is another copy of the same member as {used}. Move it to \
             another folder, or name it with --member if it is the right one"
        ));
    }

    fn report(&mut self, words: String) {
        tracing::warn!("{words}");
        self.reports.push(words);
    }

    /// Returns what was found and is not used, to be told with the state of the pool.
    pub(super) fn reports(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reports)
    }

    /// Says that one of two devices is a copy of the other.
    fn refused(&self, known: &Path, other: &Path, is_newer: bool) -> BackendError {
        let (known, other) = (known.display(), other.display());
        let which = match is_newer {
            true => format!("{other} is the newer one: name it instead, or"),
            false => "Neither is newer:".to_owned(),
        };
        let words = format!(
            "{known} and {other} are two copies of one member of the pool. {which} choose one copy \
             of each member with --member, for example --member {known}. Nothing was written"
        );
        failed(&self.first_path, words)
    }

    /// Returns the newest of the candidates for one member, by all of its names; the others are
    /// reported (FD3).
    fn newest_of(&mut self, mut all: Vec<Candidate>) -> Result<Vec<Candidate>, BackendError> {
        all.sort_by_key(|it| std::cmp::Reverse(it.label.sequence));
        let mut all = all.into_iter();
        let Some(best) = all.next() else { return Ok(Vec::new()) };
        let named = self.first.sequence;
        let is_ahead = best.label.sequence > named
            && best.label.membership().number == self.first.membership().number;
        let mut names = vec![best];
        for other in all {
            let Some(best) = names.first() else { break };
            if is_one_device(&best.path, &other.path) {
                names.push(other);
                continue;
            }
            let is_newer = best.label.sequence > other.label.sequence;
            // The older one is what belongs to the named device, if that is of a copy.
            if !is_newer || is_ahead && other.label.sequence == named {
                return Err(self.refused(&other.path, &best.path, is_newer));
            }
            self.report_unused(&other.path, &best.path);
        }
        Ok(names)
    }

    /// Opens a device by the first of its names that can be opened.
    fn open_one(&mut self, names: Vec<Candidate>, files: &mut Files) -> Result<(), BackendError> {
        let mut failure = None;
        for Candidate { path, label } in names {
            match open_device_with(&path, self.options) {
                // Between a member that was replaced, or a copy, and a member only the label tells.
                Ok(device) if label_of(&device).is_ok_and(|label| self.wants(&label)) => {
                    files.push((path, device));
                    return self.follow(files, false);
                }
                Ok(_) => return Ok(()),
                Err(error) => failure = Some((label, error)),
            }
        }
        self.unopened.extend(failure);
        Ok(())
    }

    /// Looks for what is lacking where the labels say that it was, and beside that.
    pub(super) fn follow_labels(&mut self, files: &mut Files) -> Result<(), BackendError> {
        while self.lacks(&[]) {
            let mut led: Vec<Candidate> = Vec::new();
            while let Some(path) = self.waiting.pop_front() {
                led.extend(self.look(&path, true));
            }
            let folders: BTreeSet<PathBuf> =
                led.iter().filter_map(|it| folder_of(&it.path)).collect();
            for folder in folders.difference(&self.folders.clone()) {
                self.folders.insert(folder.clone());
                led.extend(self.in_folder(folder, &led, false));
                if self.lacks(&led) {
                    led.extend(self.in_folder(folder, &led, true));
                }
            }
            let before = files.len();
            self.take_led(led, files)?;
            if files.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Opens what is wanted of the candidates that labels led to, unless they are of another copy
    /// of the pool (FD5).
    fn take_led(&mut self, led: Vec<Candidate>, files: &mut Files) -> Result<(), BackendError> {
        let of_copy = led.iter().find_map(|it| {
            let known = self.found.get(&it.id()).filter(|_| self.is_current(&it.id()))?;
            let is_as_new = it.label.sequence >= known.sequence;
            (is_as_new && !is_one_device(&known.path, &it.path)).then_some((known, it))
        });
        if let Some((known, other)) = of_copy {
            let is_online = |id| self.label.members.iter().any(|it| it.id == id && it.is_online());
            let wanted: Vec<&Candidate> = led.iter().filter(|it| self.wants(&it.label)).collect();
            if !self.is_decided && wanted.iter().any(|it| is_online(it.id())) {
                let is_newer = other.label.sequence > known.sequence;
                return Err(self.refused(&known.path, &other.path, is_newer));
            }
            let other = other.path.display().to_string();
            let words = |it: &&Candidate| {
                let path = it.path.display();
                format!(
                    "{path} is not used: it belongs to another copy of the pool, as {other} does. \
                     Name it with --member to use it"
                )
            };
            let reports: Vec<String> = wanted.iter().map(words).collect();
            reports.into_iter().for_each(|words| self.report(words));
            return Ok(());
        }
        for newer in &led {
            let id = newer.id();
            let known = self.found.get(&id).filter(|_| !self.is_current(&id));
            let Some(known) = known.filter(|it| it.sequence < newer.label.sequence) else {
                continue;
            };
            let path = known.path.clone();
            if !is_one_device(&path, &newer.path) {
                self.report_unused(&path, &newer.path);
                files.retain(|(own, _)| *own != path);
                self.found.remove(&id);
            }
        }
        self.take(led, files)
    }

    /// Refuses to go on without a member that is there and could not be opened: it is in use, and
    /// may be written to meanwhile.
    pub(super) fn refuse_unopened(&mut self) -> Result<(), BackendError> {
        for (label, error) in std::mem::take(&mut self.unopened) {
            // Another name of it may have been opened.
            if self.wants(&label) && !self.is_away(&label) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether the newest label calls the device away whose label this is.
    fn is_away(&self, label: &Superblock) -> bool {
        let id = label.device_id();
        let member = self.label.members.iter().find(|member| member.id == id);
        member.is_some_and(|it| matches!(it.state, MemberState::Missing | MemberState::Failed))
    }

    /// Whether the file at `path` was not looked at yet.
    pub(super) fn is_new(&mut self, path: &Path) -> bool {
        number_of(path).is_some_and(|number| self.seen.insert(number))
    }

    /// Whether a label is of this pool.
    fn is_of_pool(&self, label: &Superblock) -> bool {
        label.pool_id == self.label.pool_id
    }

    /// Returns the paths of members and spares that were not found at which others are now: one of
    /// `files` by another name, or one whose label says so. Where a blank device is now the path is
    /// kept: that is how the place of a disk is called that was exchanged.
    pub(super) fn others(&mut self, files: &Files) -> Vec<Vec<u8>> {
        let members = self.label.members.iter().filter(|member| !member.is_gone());
        let members = members.map(|member| (member.id, member.path.clone()));
        let spares = self.label.spares.iter().map(|spare| (spare.id, spare.path.clone()));
        let absent = members.chain(spares).filter(|(id, _)| !self.found.contains_key(id));
        let known: Vec<_> = absent.filter(|(_, path)| !path.is_empty()).collect();
        let mut is_other = |id: [u8; 16], path: &Path| {
            let Some(number) = number_of(path) else { return false };
            if files.iter().any(|(file, _)| number_of(file) == Some(number)) {
                return true;
            }
            match self.looks.at(path, true) {
                Seen::Label(label) => !self.is_of_pool(&label) || label.device_id() != id,
                Seen::NoLabel => false,
            }
        };
        let others = known.into_iter().filter(|(id, path)| is_other(*id, path_of(path)));
        others.map(|(_, path)| path).collect()
    }

    /// Whether a label is of a member that is missing so far. One of another history is wanted too:
    /// whoever judges refuses it by name.
    fn wants(&self, label: &Superblock) -> bool {
        let id = label.device_id();
        let is_newer = label.membership().number > self.label.membership().number;
        !self.found.contains_key(&id) && (self.lists(&id) || is_newer)
    }

    /// Whether the newest label so far lists a device as member or spare.
    pub(super) fn lists(&self, id: &[u8; 16]) -> bool {
        self.label.members.iter().any(|member| member.id == *id && !member.is_gone())
            || self.label.spares.iter().any(|spare| spare.id == *id)
    }
}

/// Returns the paths that a label has of members and spares.
fn paths_in(label: &Superblock) -> impl Iterator<Item = &[u8]> {
    let members = label.members.iter().map(|member| member.path.as_slice());
    let paths = members.chain(label.spares.iter().map(|spare| spare.path.as_slice()));
    paths.filter(|path| !path.is_empty())
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Returns the folder of what a path leads to.
fn folder_of(path: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(path).ok()?.parent().map(Path::to_owned)
}

/// Returns the numbers of a file, by which it is known whatever it is called.
fn number_of(path: &Path) -> Option<(u64, u64)> {
    let stat = std::fs::metadata(path).ok()?;
    // All nodes of one block device are the same.
    let is_block_device = stat.file_type().is_block_device();
    Some(if is_block_device { (u64::MAX, stat.rdev()) } else { (stat.dev(), stat.ino()) })
}

#[cfg(test)]
mod tests;
