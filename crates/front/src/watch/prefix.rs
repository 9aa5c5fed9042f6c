//! What was counted by file, by the directories that people know: the first few names of a path.
//!
//! Names are looked for when somebody asks, by the parents that files remember. What has moved
//! since is counted where it is now.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::vnode::api::{FileKind, FileSystem, Ino};

use super::{Key, Looked, Place, Tally};

/// Most names of a prefix.
pub const DEPTH_MAX: usize = 8;
/// Most prefixes of all clients that are told apart, the busiest; the rest of each client at each
/// place is told together.
pub const PREFIXES_MAX: usize = 256;
/// Most directories between a file and its root that are climbed.
const ASCENT_MAX: usize = 256;
/// Longest path that is told.
const PATH_BYTES_MAX: usize = 1024;
/// How long names are looked for at most: somebody waits. What is not found by then has none.
const NAMING_TIME_MAX: Duration = Duration::from_secs(1);

/// What a client asked about files below one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfPrefix {
    /// The front: `fuse` or `nfs`.
    pub front: &'static str,
    /// The machine; `None`: this one, or many that there was no room for.
    pub address: Option<IpAddr>,
    /// The mount, or the export.
    pub place: String,
    /// The directory, from the root that clients see: `place` and names. `None`: others than those
    /// that are told apart, and files whose directory is not known any more.
    pub path: Option<String>,
    /// How many requests that were.
    pub tally: Tally,
}

/// Returns what was asked, by client and by the first `depth` directories of paths, the busiest
/// first.
#[must_use]
pub fn by_prefix(looked: &Looked, depth: usize) -> Vec<OfPrefix> {
    let mut names = Names::begin();
    let mut sums: HashMap<Key, Tally> = HashMap::new();
    for (key, tally) in &looked.files {
        let place = looked.places.get(&key.place);
        let ino = key.ino.zip(place).and_then(|(ino, place)| {
            let directories = names.directories(place, ino)?;
            // They are from the file upwards; the root is none of the names.
            let at = directories.len().saturating_sub(1 + depth.min(DEPTH_MAX));
            directories.get(at).copied()
        });
        sums.entry(Key { ino, ..*key }).or_default().add(*tally);
    }
    let mut sums: Vec<(Key, Tally)> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(key, tally)| (std::cmp::Reverse(tally.answered), *key));
    let mut rest: BTreeMap<Key, Tally> = BTreeMap::new();
    let mut told = Vec::new();
    for (at, (key, tally)) in sums.into_iter().enumerate() {
        let Some(place) = looked.places.get(&key.place) else { continue };
        match key.ino {
            Some(ino) if at < PREFIXES_MAX => {
                let path = Some(names.path_of(place, ino));
                told.push(of_prefix(place, key, path, tally));
            }
            _ => {
                // Of many machines the last are one.
                let address = key.address.filter(|_| rest.len() < PREFIXES_MAX);
                rest.entry(Key { ino: None, address, ..key }).or_default().add(tally);
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

fn of_prefix(place: &Place, key: Key, path: Option<String>, tally: Tally) -> OfPrefix {
    OfPrefix { front: place.front, address: key.address, place: place.name.clone(), path, tally }
}

/// What was found of files while one question is answered.
pub(super) struct Names {
    ends: Instant,
    /// By place and file: the directory above it, and whether it is one itself; `None`: nobody
    /// knows.
    above: HashMap<(u64, Ino), Option<(Ino, bool)>>,
    names: HashMap<(u64, Ino), Option<Vec<u8>>>,
}

impl Names {
    pub(super) fn begin() -> Names {
        let ends = Instant::now() + NAMING_TIME_MAX;
        Names { ends, above: HashMap::new(), names: HashMap::new() }
    }

    fn is_overdue(&self) -> bool {
        Instant::now() >= self.ends
    }

    fn above(&mut self, place: &Place, fs: &dyn FileSystem, ino: Ino) -> Option<(Ino, bool)> {
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

    /// Returns the directories from a file, itself where it is one, up to the root of a place.
    fn directories(&mut self, place: &Place, ino: Ino) -> Option<Vec<Ino>> {
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
                // It is not below the directory that is exported, or was moved away from there.
                return None;
            }
            at = parent;
        }
        None
    }

    fn name(&mut self, place: &Place, fs: &dyn FileSystem, at: (Ino, Ino)) -> Option<Vec<u8>> {
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

    /// Returns the path of a file from where clients see it; what has no name is told by its
    /// number.
    pub(super) fn path_of(&mut self, place: &Arc<Place>, ino: Ino) -> String {
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
