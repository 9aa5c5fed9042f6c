//! Searches for the devices of a pool, starting at those that the user names.
//!
//! Order of the search: the folders of the named devices, the paths in labels, the folders of these
//! paths. A path is only a hint, and the label on the device decides. To read a label, a candidate
//! is not opened as a device, because that would lock the device and wait for it (`look.rs`).
//!
//! # Invariants
//!
//! - FD1: If a whole pool was copied to another folder, a device named there opens the copy without
//!   the original, because the named devices' folders are searched before the paths in labels.
//! - FD2: All names of a device are one candidate: hard and symbolic links, bind mounts, a loop
//!   device of the file, two paths to one disk. A device with holders (multipath) is no candidate.
//! - FD3: Of several candidates for one member, the one with the newest label is used and the
//!   others are reported. If two are equally new, the search fails and the user must choose.
//! - FD4: A device that the user names is never replaced by a copy. With `--member`, copies of it
//!   are only reported. Without, the search fails if a copy is at least as new.
//! - FD5: If a path in a label leads to another copy of a found member, and that copy is at least
//!   as new, then the labels describe that other copy of the pool. Devices found only by paths in
//!   labels are then not opened.

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

use super::look::{LabelReadResult, LabelReader};
use super::members::label_of;
use super::{cannot_use, failed, open_device_with};
use crate::backend::BackendError;
use crate::holders::{is_below_another, is_one_device};

/// Most names read per folder, which takes a second on a disk. If there are more, a warning says
/// so.
const FOLDER_NAMES_MAX: usize = 1 << 18;
/// Most labels read per folder, which takes some seconds.
const FOLDER_LOOKS_MAX: usize = 1 << 16;

type MemberFiles = Vec<(PathBuf, Arc<FileDevice>)>;

struct MemberCandidate {
    path: PathBuf,
    label: Box<Superblock>,
}

impl MemberCandidate {
    fn id(&self) -> [u8; 16] {
        self.label.device_id()
    }
}

struct AcceptedMember {
    path: PathBuf,
    sequence: u64,
    is_named: bool,
}

pub(super) struct MemberSearch {
    /// The newest label so far, and its sort key ([`SuperblockReport::age`]).
    label: Superblock,
    age: (u64, u64),
    /// Label and path of the first named device.
    first: Superblock,
    first_path: PathBuf,
    is_decided: bool,
    options: FileOptions,
    /// Devices in use for the pool, by device id.
    found: BTreeMap<[u8; 16], AcceptedMember>,
    seen: BTreeSet<(u64, u64)>,
    waiting: VecDeque<PathBuf>,
    folders: BTreeSet<PathBuf>,
    unopened: Vec<(Box<Superblock>, BackendError)>,
    looks: LabelReader,
    reports: Vec<String>,
}

impl MemberSearch {
    pub(super) fn new(
        read: &SuperblockReport,
        path: &Path,
        (is_decided, options): (bool, FileOptions),
    ) -> MemberSearch {
        let mut search = MemberSearch {
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
            looks: LabelReader::default(),
            reports: Vec::new(),
        };
        search.is_new(path);
        search.add(path, &read.current, true);
        search
    }

    /// Adds a device to the pool, and queues the paths in its label.
    fn add(&mut self, path: &Path, label: &Superblock, is_named: bool) {
        let known = AcceptedMember { path: path.to_owned(), sequence: label.sequence, is_named };
        self.found.insert(label.device_id(), known);
        self.waiting.extend(paths_in(label).map(|path| path_of(path).to_owned()));
        if is_named {
            self.folders.extend(folder_of(path));
        }
    }

    /// Adds the last of `files` to the pool, and takes over its label if that is newer.
    pub(super) fn follow(
        &mut self,
        files: &MemberFiles,
        is_named: bool,
    ) -> Result<(), BackendError> {
        let Some((path, device)) = files.last() else { return Ok(()) };
        let read = read_superblock(device.as_ref()).map_err(|error| cannot_use(path, &error))?;
        self.add(path, &read.current, is_named);
        // MJ5: a spare's label serves only until a member's label is found.
        let is_newer = read.age() > self.age || self.label.is_of_spare();
        if is_newer && !read.current.is_of_spare() {
            (self.age, self.label) = (read.age(), read.current);
        }
        Ok(())
    }

    /// Opens the candidates in the folders of the named devices that the pool needs (FD1).
    pub(super) fn take_beside(&mut self, files: &mut MemberFiles) -> Result<(), BackendError> {
        let beside = self.beside();
        self.take(beside, files)
    }

    fn beside(&mut self) -> Vec<MemberCandidate> {
        let folders: Vec<PathBuf> = self.folders.iter().cloned().collect();
        let is_beside = |path: &&PathBuf| folder_of(path).is_some_and(|it| folders.contains(&it));
        let labelled: Vec<PathBuf> = self.waiting.iter().filter(is_beside).cloned().collect();
        let mut found: Vec<MemberCandidate> =
            labelled.iter().filter_map(|path| self.look(path, true)).collect();
        for folder in &folders {
            found.extend(self.in_folder(folder, &found, false));
        }
        // Block devices may be disks in standby. They are examined only if a member is lacking, or
        // if the named device is not where its label says.
        if !self.is_home() || self.lacks(&found) {
            for folder in &folders {
                found.extend(self.in_folder(folder, &found, true));
            }
        }
        found
    }

    fn is_home(&self) -> bool {
        let id = self.first.device_id();
        let own = self.first.members.iter().find(|member| member.id == id);
        let is_there = |path: &[u8]| is_one_device(path_of(path), &self.first_path);
        own.is_none_or(|own| own.path.is_empty() || is_there(&own.path))
    }

    /// Returns whether any member or spare is neither in use nor among `candidates`.
    fn lacks(&self, candidates: &[MemberCandidate]) -> bool {
        let has = |id: &[u8; 16]| {
            self.is_current(id) || candidates.iter().any(|candidate| candidate.id() == *id)
        };
        let members = self.label.members.iter().filter(|member| !member.is_gone());
        !members.map(|it| &it.id).chain(self.label.spares.iter().map(|it| &it.id)).all(has)
    }

    /// Returns whether a device is in use, and as new as it must be.
    fn is_current(&self, id: &[u8; 16]) -> bool {
        let Some(known) = self.found.get(id) else { return false };
        let is_online = self.label.members.iter().any(|it| it.id == *id && it.is_online());
        known.is_named || known.sequence >= self.label.sequence || !is_online
    }

    fn look(&mut self, path: &Path, is_labelled: bool) -> Option<MemberCandidate> {
        // FD2: one candidate per device, and none below multipath.
        if !self.is_new(path) || is_below_another(path) {
            return None;
        }
        let LabelReadResult::Label(label) = self.looks.at(path, is_labelled) else { return None };
        self.is_of_pool(&label).then(|| MemberCandidate { path: path.to_owned(), label })
    }

    /// Returns the candidates in a folder: files, or block devices. If `candidates` complete the
    /// pool already, only files large enough to be a copy of a member are examined.
    fn in_folder(
        &mut self,
        folder: &Path,
        candidates: &[MemberCandidate],
        is_of_devices: bool,
    ) -> Vec<MemberCandidate> {
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

    /// Opens the candidates that the pool needs, for each member the newest (FD3).
    fn take(
        &mut self,
        candidates: Vec<MemberCandidate>,
        files: &mut MemberFiles,
    ) -> Result<(), BackendError> {
        let mut rest = Vec::new();
        for candidate in candidates {
            match self.found.contains_key(&candidate.id()) {
                true => self.check_copy(&candidate)?,
                false => rest.push(candidate),
            }
        }
        // Each opened device may have a newer label, which lists further members.
        while let Some(id) = rest.iter().find(|it| self.wants(&it.label)).map(MemberCandidate::id) {
            let (own, others) = rest.into_iter().partition(|it| it.id() == id);
            rest = others;
            let ranked = self.newest_of(own)?;
            self.open_one(ranked, files)?;
        }
        Ok(())
    }

    /// Fails if `candidate` is a copy of a device in use, and at least as new (FD4).
    fn check_copy(&mut self, candidate: &MemberCandidate) -> Result<(), BackendError> {
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

    pub(super) fn reports(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reports)
    }

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

    /// Returns the newest of the candidates for one member, with all of its names. Reports the
    /// others (FD3).
    fn newest_of(
        &mut self,
        mut all: Vec<MemberCandidate>,
    ) -> Result<Vec<MemberCandidate>, BackendError> {
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
            // The older candidate may belong to the same older copy of the pool as the named
            // device, so the user must choose.
            if !is_newer || is_ahead && other.label.sequence == named {
                return Err(self.refused(&other.path, &best.path, is_newer));
            }
            self.report_unused(&other.path, &best.path);
        }
        Ok(names)
    }

    fn open_one(
        &mut self,
        names: Vec<MemberCandidate>,
        files: &mut MemberFiles,
    ) -> Result<(), BackendError> {
        let mut failure = None;
        for MemberCandidate { path, label } in names {
            match open_device_with(&path, self.options) {
                // Since it was examined, the path may have got another device. So its label is
                // compared again.
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

    pub(super) fn follow_labels(&mut self, files: &mut MemberFiles) -> Result<(), BackendError> {
        while self.lacks(&[]) {
            let mut led: Vec<MemberCandidate> = Vec::new();
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

    /// Opens the candidates from paths in labels that the pool needs, unless they belong to another
    /// copy of the pool (FD5).
    fn take_led(
        &mut self,
        led: Vec<MemberCandidate>,
        files: &mut MemberFiles,
    ) -> Result<(), BackendError> {
        let of_copy = led.iter().find_map(|it| {
            let known = self.found.get(&it.id()).filter(|_| self.is_current(&it.id()))?;
            let is_as_new = it.label.sequence >= known.sequence;
            (is_as_new && !is_one_device(&known.path, &it.path)).then_some((known, it))
        });
        if let Some((known, other)) = of_copy {
            let is_online = |id| self.label.members.iter().any(|it| it.id == id && it.is_online());
            let wanted: Vec<&MemberCandidate> =
                led.iter().filter(|it| self.wants(&it.label)).collect();
            if !self.is_decided && wanted.iter().any(|it| is_online(it.id())) {
                let is_newer = other.label.sequence > known.sequence;
                return Err(self.refused(&known.path, &other.path, is_newer));
            }
            let other = other.path.display().to_string();
            let words = |it: &&MemberCandidate| {
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

    /// Fails if a needed member could not be opened, because another process may be writing to it.
    pub(super) fn refuse_unopened(&mut self) -> Result<(), BackendError> {
        for (label, error) in std::mem::take(&mut self.unopened) {
            // The device may have been opened by another name.
            if self.wants(&label) && !self.is_away(&label) {
                return Err(error);
            }
        }
        Ok(())
    }

    fn is_away(&self, label: &Superblock) -> bool {
        let id = label.device_id();
        let member = self.label.members.iter().find(|member| member.id == id);
        member.is_some_and(|it| matches!(it.state, MemberState::Missing | MemberState::Failed))
    }

    pub(super) fn is_new(&mut self, path: &Path) -> bool {
        number_of(path).is_some_and(|number| self.seen.insert(number))
    }

    fn is_of_pool(&self, label: &Superblock) -> bool {
        label.pool_id == self.label.pool_id
    }

    /// Returns the recorded paths of absent members and spares that lead to another device at
    /// present: to one of `files`, or to one with another label. A path to a blank device is not
    /// returned, because a replacement disk may be in that place.
    pub(super) fn others(&mut self, files: &MemberFiles) -> Vec<Vec<u8>> {
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
                LabelReadResult::Label(label) => {
                    !self.is_of_pool(&label) || label.device_id() != id
                }
                LabelReadResult::NoLabel => false,
            }
        };
        let others = known.into_iter().filter(|(id, path)| is_other(*id, path_of(path)));
        others.map(|(_, path)| path).collect()
    }

    /// Returns whether the pool lacks the device of a label. A member that only a newer membership
    /// lists counts too, so that opening the pool can refuse it by name.
    fn wants(&self, label: &Superblock) -> bool {
        let id = label.device_id();
        let is_newer = label.membership().number > self.label.membership().number;
        !self.found.contains_key(&id) && (self.lists(&id) || is_newer)
    }

    pub(super) fn lists(&self, id: &[u8; 16]) -> bool {
        self.label.members.iter().any(|member| member.id == *id && !member.is_gone())
            || self.label.spares.iter().any(|spare| spare.id == *id)
    }
}

fn paths_in(label: &Superblock) -> impl Iterator<Item = &[u8]> {
    let members = label.members.iter().map(|member| member.path.as_slice());
    let paths = members.chain(label.spares.iter().map(|spare| spare.path.as_slice()));
    paths.filter(|path| !path.is_empty())
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

fn folder_of(path: &Path) -> Option<PathBuf> {
    std::fs::canonicalize(path).ok()?.parent().map(Path::to_owned)
}

/// Identifies the file or block device behind a path.
pub(super) fn number_of(path: &Path) -> Option<(u64, u64)> {
    let stat = std::fs::metadata(path).ok()?;
    // All device nodes of one block device count as one file.
    let is_block_device = stat.file_type().is_block_device();
    Some(if is_block_device { (u64::MAX, stat.rdev()) } else { (stat.dev(), stat.ino()) })
}

#[cfg(test)]
mod tests;
