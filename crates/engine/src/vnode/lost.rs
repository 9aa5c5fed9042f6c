//! Which file an error is about, and who has a block that is lost: people know files by paths.

use std::fmt;

use format::ids::Place;
use format::summary::SummaryEntry;

use super::api::Ino;
use super::{Core, Files};
use crate::error::{FilePart, FsError, FsResult};
use crate::segment::LostBlock;

/// What is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Affected {
    /// Bytes of a file.
    File(FilePart),
    /// Something else, in words.
    Other(String),
}

impl Affected {
    /// Returns the file, where it is one.
    pub(crate) fn file(&self) -> Option<&FilePart> {
        let Affected::File(file) = self else { return None };
        Some(file)
    }

    /// Returns what it is where it is no file.
    pub(crate) fn other(&self) -> Option<&str> {
        let Affected::Other(words) = self else { return None };
        Some(words)
    }
}

impl fmt::Display for Affected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Affected::File(file) => file.fmt(f),
            Affected::Other(words) => f.write_str(words),
        }
    }
}

impl From<String> for Affected {
    fn from(words: String) -> Affected {
        Affected::Other(words)
    }
}

/// Logs what became of something: its file and bytes in fields of their own, as all errors have
/// them. A macro, so that the log names the module that tells.
macro_rules! log_affected {
    ($what:expr, $message:literal) => {{
        let what: &$crate::vnode::Affected = $what;
        $crate::log_of_file!(error, what.file(), what = what.other(), $message);
    }};
}
pub(crate) use log_affected;

impl Core {
    /// Tells of what a recovery wrote over, for no member gave it, by paths. Called with no lock
    /// held.
    pub(crate) fn tell_lost(&self, lost: &[LostBlock]) {
        for block in lost {
            let what = match &block.entry {
                Some(entry) => self.who_lost(entry, block.place),
                None => Some(Affected::Other(format!("the page at {}", block.place))),
            };
            // Nobody has it any more.
            let Some(what) = what else { continue };
            log_affected!(
                &what,
                "lost, unless a member that is away comes back with it: no member gave it when the \
                 log was replayed"
            );
        }
    }

    /// Whether somebody has the block at `place`, whole and as a summary lists it in `entry`:
    /// nothing else can lie there then. Called with no lock held.
    pub(crate) fn is_as_listed(&self, entry: &SummaryEntry, place: Place) -> bool {
        let start = entry.index.checked_mul(1 << entry.block_shift.min(20));
        let (Some(start), Ok((filesets, _))) = (start, self.filesets_of_family(entry.fileset))
        else {
            return false;
        };
        let end = start.saturating_add(1 << entry.block_shift.min(20));
        filesets.into_iter().any(|fileset| {
            let vnode = Files { core: self, fileset }.vnode_of(entry.anode);
            let Ok(vnode) = vnode else { return false };
            let state = vnode.state.read();
            let Ok(anode) = state.anode() else { return false };
            let is_it = |unit: &crate::container::Unit| {
                unit.pointer.as_ref().is_some_and(|pointer| {
                    (pointer.place, pointer.fragments) == (place, entry.fragments)
                        && (pointer.birth, pointer.check) == (entry.birth, entry.check)
                })
            };
            let units = self.store.units(anode, start, end);
            units.is_ok_and(|units| units.iter().any(is_it))
        })
    }

    /// Returns who loses the block at `place`, which a summary lists as `entry`; `None`: nobody has
    /// it any more. Called with no lock held.
    pub(crate) fn who_lost(&self, entry: &SummaryEntry, place: Place) -> Option<Affected> {
        match self.who_has(entry, place) {
            Ok(who) => who.map(Affected::File),
            Err(error) => Some(Affected::Other(format!("the block at {place}: {error}"))),
        }
    }

    /// Returns the file that has the block at `place`, which a summary lists as `entry`, and where
    /// in the file it lies; `None`: nobody has it any more. Called with no lock held.
    ///
    /// # Errors
    ///
    /// What is wrong with the metadata that leads there.
    pub(crate) fn who_has(&self, entry: &SummaryEntry, place: Place) -> FsResult<Option<FilePart>> {
        let Some(start) = entry.index.checked_mul(1 << entry.block_shift.min(20)) else {
            return Ok(None);
        };
        let end = start.saturating_add(1 << entry.block_shift.min(20));
        let (filesets, is_all) = self.filesets_of_family(entry.fileset)?;
        let fragment_shift = self.store.geometry().fragment_shift;
        for fileset in filesets {
            let files = Files { core: self, fileset };
            let vnode = match files.vnode_of(entry.anode) {
                Ok(vnode) => vnode,
                Err(FsError::Stale) => continue,
                Err(error) => return Err(error),
            };
            let has_it = {
                let state = vnode.state.read();
                let Ok(anode) = state.anode() else { continue };
                let is_here = |unit: &crate::container::Unit| {
                    let before = unit.start.checked_sub(start);
                    let expected = before.map(|before| place.bits() + (before >> fragment_shift));
                    let pointer = unit.pointer.as_ref();
                    pointer.is_some_and(|pointer| Some(pointer.place.bits()) == expected)
                };
                anode.generation == entry.generation
                    && self.store.units(anode, start, end)?.iter().any(is_here)
            };
            if !has_it {
                continue;
            }
            let path = files.path_of(files.ino(entry.anode));
            let path = path.map_or_else(
                |_| format!("inode {} (without a name)", entry.anode.0),
                |path| format::text::shown(&path),
            );
            let mut file = files.file_part(path);
            file.bytes = Some((start, end - 1));
            return Ok(Some(file));
        }
        // Whoever opens a fileset now keeps others from looking: better told than kept back.
        Ok((!is_all).then(|| FilePart {
            pool: self.store.pool_id(),
            fileset: None,
            path: format!("inode {}", entry.anode.0),
            bytes: Some((start, end - 1)),
        }))
    }
}

impl Files<'_> {
    /// Says which file a failure of a device or damage is about, where its path is known. Called
    /// with no lock held.
    pub(crate) fn named<T>(&self, ino: Ino, name: &[u8], result: FsResult<T>) -> FsResult<T> {
        let mut result = result;
        let (Err(FsError::Io { file, .. }) | Err(FsError::Corrupt { file, .. })) = &mut result
        else {
            return result;
        };
        if file.is_some() {
            return result;
        }
        let Ok(mut path) = self.path_of(ino) else { return result };
        if !name.is_empty() {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        *file = Some(Box::new(self.file_part(format::text::shown(&path))));
        result
    }

    /// Returns the file at `path` of this fileset, as a whole. Paths in two filesets may be equal,
    /// so its fileset is named too, where the table of filesets can be read.
    fn file_part(&self, path: String) -> FilePart {
        let index = self.filesets.table.lock(&self.store);
        let fileset = index.ok().map(|index| index.path_of(self.fileset.anodes.slot));
        FilePart { pool: self.store.pool_id(), fileset, path, bytes: None }
    }
}
