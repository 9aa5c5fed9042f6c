//! Aggregation of per-file counts by directory, the first few names of a path.
//!
//! Paths are searched at query time through the parent pointers of files. So a moved file counts
//! where it is now.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::api::{FileKind, FileSystem, Ino};

use super::{AccessPoint, Tally, TallyKey, WatchCounts};

/// Most names in a prefix.
pub const DEPTH_MAX: usize = 8;
/// Most prefixes of all clients listed separately, the busiest. All other requests are one sum per
/// client and access point.
pub const PREFIXES_MAX: usize = 256;
const ASCENT_MAX: usize = 256;
const PATH_BYTES_MAX: usize = 1024;
/// Time limit of the path search, as the caller waits. Files not reached in time have no path.
const NAMING_TIME_MAX: Duration = Duration::from_secs(1);

/// One client's requests below one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixTally {
    /// The front: `fuse` or `nfs`.
    pub front: &'static str,
    /// The client, or `None` for this machine and for clients beyond the bound [`PREFIXES_MAX`].
    pub address: Option<IpAddr>,
    /// The mount or export.
    pub place: String,
    /// The directory as clients see it, `place` included. `None` for the sum of the other
    /// directories and of files whose directory is unknown.
    pub path: Option<String>,
    /// Counters.
    pub tally: Tally,
}

/// Returns the counts by client and by the first `depth` directories of paths, the busiest first,
/// then the sums of operations without a path.
#[must_use]
pub fn by_prefix(looked: &WatchCounts, depth: usize) -> Vec<PrefixTally> {
    let mut names = PathCache::begin();
    let mut sums: HashMap<TallyKey, Tally> = HashMap::new();
    for (key, tally) in &looked.files {
        let place = looked.places.get(&key.place);
        let ino = key.ino.zip(place).and_then(|(ino, place)| {
            let directories = names.directories(place, ino)?;
            // Ordered from the file up to the root. `depth` does not count the root.
            let at = directories.len().saturating_sub(1 + depth.min(DEPTH_MAX));
            directories.get(at).copied()
        });
        sums.entry(TallyKey { ino, ..*key }).or_default().add(*tally);
    }
    let mut sums: Vec<(TallyKey, Tally)> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(key, tally)| (std::cmp::Reverse(tally.answered), *key));
    let mut rest: BTreeMap<TallyKey, Tally> = BTreeMap::new();
    let mut told = Vec::new();
    for (at, (key, tally)) in sums.into_iter().enumerate() {
        let Some(place) = looked.places.get(&key.place) else { continue };
        match key.ino {
            Some(ino) if at < PREFIXES_MAX => {
                let path = Some(names.path_of(place, ino));
                told.push(of_prefix(place, key, path, tally));
            }
            _ => {
                // Beyond the bound all clients are one sum.
                let address = key.address.filter(|_| rest.len() < PREFIXES_MAX);
                rest.entry(TallyKey { ino: None, address, ..key }).or_default().add(tally);
            }
        }
    }
    for (key, tally) in rest {
        if let Some(place) = looked.places.get(&key.place) {
            told.push(of_prefix(place, key, None, tally));
        }
    }
    told
}

/// Returns the paths of files of access points, as clients see them. A file that is not reached in
/// time is shown by its number.
#[must_use]
pub fn paths_of(files: &[(Arc<AccessPoint>, Ino)]) -> Vec<String> {
    let mut names = PathCache::begin();
    files.iter().map(|(place, ino)| names.path_of(place, *ino)).collect()
}

fn of_prefix(
    place: &AccessPoint,
    key: TallyKey,
    path: Option<String>,
    tally: Tally,
) -> PrefixTally {
    PrefixTally { front: place.front, address: key.address, place: place.name.clone(), path, tally }
}

pub(super) struct PathCache {
    ends: Instant,
    /// By access point and file: the parent directory, and whether the file is a directory itself.
    /// `None` if the lookup failed.
    above: HashMap<(u64, Ino), Option<(Ino, bool)>>,
    names: HashMap<(u64, Ino), Option<Vec<u8>>>,
}

impl PathCache {
    pub(super) fn begin() -> PathCache {
        let ends = Instant::now() + NAMING_TIME_MAX;
        PathCache { ends, above: HashMap::new(), names: HashMap::new() }
    }

    fn is_overdue(&self) -> bool {
        Instant::now() >= self.ends
    }

    fn above(&mut self, place: &AccessPoint, fs: &dyn FileSystem, ino: Ino) -> Option<(Ino, bool)> {
        if let Some(known) = self.above.get(&(place.number, ino)) {
            return *known;
        }
        if self.is_overdue() {
            return None;
        }
        let found = fs.parent_of(ino).ok();
        let found = found.map(|(parent, kind)| (parent, kind == FileKind::Directory));
        self.above.insert((place.number, ino), found);
        found
    }

    /// Returns the directories from a file up to the root of `place`, including the file itself if
    /// it is a directory.
    fn directories(&mut self, place: &AccessPoint, ino: Ino) -> Option<Vec<Ino>> {
        let fs = place.fs()?;
        let (mut at, mut found) = (ino, Vec::new());
        for _ in 0..ASCENT_MAX {
            if at == place.root {
                found.push(at);
                return Some(found);
            }
            let (parent, is_directory) = self.above(place, &*fs, at)?;
            if is_directory {
                found.push(at);
            }
            if parent == at {
                // The file is not below the exported directory, or has been moved out of it.
                return None;
            }
            at = parent;
        }
        None
    }

    fn name(
        &mut self,
        place: &AccessPoint,
        fs: &dyn FileSystem,
        at: (Ino, Ino),
    ) -> Option<Vec<u8>> {
        if let Some(known) = self.names.get(&(place.number, at.1)) {
            return known.clone();
        }
        if self.is_overdue() {
            return None;
        }
        let found = fs.name_in(at.0, at.1).ok();
        self.names.insert((place.number, at.1), found.clone());
        found
    }

    pub(super) fn path_of(&mut self, place: &Arc<AccessPoint>, ino: Ino) -> String {
        let mut names = Vec::new();
        let mut at = ino;
        let fs = place.fs();
        while let (Some(fs), true) = (&fs, at != place.root && names.len() < ASCENT_MAX) {
            let above = self.above(place, &**fs, at).filter(|(parent, _)| *parent != at);
            let Some((parent, _)) = above else {
                names.push(numbered(at));
                break;
            };
            let name = self.name(place, &**fs, (parent, at));
            names.push(name.unwrap_or_else(|| numbered(at)));
            at = parent;
        }
        if fs.is_none() {
            names.push(numbered(ino));
        }
        let mut path = place.name.trim_end_matches('/').to_owned();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(&String::from_utf8_lossy(name));
        }
        if path.is_empty() {
            path.push('/');
        }
        if path.len() > PATH_BYTES_MAX {
            let is_end = |end: &usize| path.is_char_boundary(*end);
            path.truncate((0..=PATH_BYTES_MAX).rev().find(is_end).unwrap_or(0));
            path.push_str("...");
        }
        path
    }
}

fn numbered(ino: Ino) -> Vec<u8> {
    format!("(inode {})", ino.0).into_bytes()
}
