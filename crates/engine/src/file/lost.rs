//! Paths in errors, and the owners of lost blocks.

use std::fmt;

use format::ids::Place;
use format::summary::SummaryEntry;

use crate::api::Ino;
use crate::error::{FilePart, FsError, FsResult};
use crate::file::{Core, Files};
use crate::segment::LostBlock;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AffectedObject {
    File(FilePart),
    /// Description of an object that is not a file.
    Other(String),
}

impl AffectedObject {
    pub(crate) fn file(&self) -> Option<&FilePart> {
        let AffectedObject::File(file) = self else { return None };
        Some(file)
    }

    pub(crate) fn other(&self) -> Option<&str> {
        let AffectedObject::Other(words) = self else { return None };
        Some(words)
    }
}

impl fmt::Display for AffectedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AffectedObject::File(file) => file.fmt(f),
            AffectedObject::Other(words) => f.write_str(words),
        }
    }
}

impl From<String> for AffectedObject {
    fn from(words: String) -> AffectedObject {
        AffectedObject::Other(words)
    }
}

/// Logs an [`AffectedObject`] with file and bytes in fields, as for errors. A macro, so that the
/// log shows the caller's module.
macro_rules! log_affected {
    ($what:expr, $message:literal) => {{
        let what: &$crate::file::AffectedObject = $what;
        $crate::log_of_file!(error, what.file(), what = what.other(), $message);
    }};
}
pub(crate) use log_affected;

impl Core {
    /// Logs the files of blocks that recovery overwrote because no member returned them. Called
    /// with no lock held.
    pub(crate) fn tell_lost(&self, lost: &[LostBlock]) {
        for block in lost {
            let what = match &block.entry {
                Some(entry) => self.who_lost(entry, block.place),
                None => Some(AffectedObject::Other(format!("the page at {}", block.place))),
            };
            // The block is unused.
            let Some(what) = what else { continue };
            log_affected!(
                &what,
                "lost, unless a member that is away comes back with it: no member gave it when the \
                 log was replayed"
            );
        }
    }

    /// Whether a file's map has the block exactly as the summary lists it, checksum included.
    /// Called with no lock held.
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
            let is_it = |unit: &crate::container::PointerRange| {
                unit.pointer.as_ref().is_some_and(|pointer| {
                    (pointer.place, pointer.fragments) == (place, entry.fragments)
                        && (pointer.birth, pointer.check) == (entry.birth, entry.check)
                })
            };
            let units = self.store.units(anode, start, end);
            units.is_ok_and(|units| units.iter().any(is_it))
        })
    }

    /// Returns the owner of a lost block, listed in a summary as `entry`; `None` if unused. Called
    /// with no lock held.
    pub(crate) fn who_lost(&self, entry: &SummaryEntry, place: Place) -> Option<AffectedObject> {
        match self.who_has(entry, place) {
            Ok(who) => who.map(AffectedObject::File),
            Err(error) => Some(AffectedObject::Other(format!("the block at {place}: {error}"))),
        }
    }

    /// Returns the file and range of the block that a summary lists as `entry`; `None` if unused.
    /// Called with no lock held.
    ///
    /// # Errors
    ///
    /// Damaged metadata on the way: report the block without a file.
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
                let is_here = |unit: &crate::container::PointerRange| {
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
            let path = files.names().path_of(files.ino(entry.anode));
            let path = path.map_or_else(
                |_| format!("inode {} (without a name)", entry.anode.0),
                |path| format::text::shown(&path),
            );
            let mut file = files.file_part(path);
            file.bytes = Some((start, end - 1));
            return Ok(Some(file));
        }
        // A fileset is being opened, so the search is incomplete: a possible loss is reported
        // rather than hidden.
        Ok((!is_all).then(|| FilePart {
            pool: self.store.pool_id(),
            fileset: None,
            path: format!("inode {}", entry.anode.0),
            bytes: Some((start, end - 1)),
        }))
    }
}

impl Files<'_> {
    /// Adds the file's path to an I/O or corruption error. Called with no lock held.
    pub(crate) fn named<T>(&self, ino: Ino, name: &[u8], result: FsResult<T>) -> FsResult<T> {
        let mut result = result;
        let (Err(FsError::Io { file, .. }) | Err(FsError::Corrupt { file, .. })) = &mut result
        else {
            return result;
        };
        if file.is_some() {
            return result;
        }
        let Ok(mut path) = self.names().path_of(ino) else { return result };
        if !name.is_empty() {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(name);
        }
        *file = Some(Box::new(self.file_part(format::text::shown(&path))));
        result
    }

    /// Returns a file at `path`, with the name of its fileset, since paths of two filesets may be
    /// equal.
    fn file_part(&self, path: String) -> FilePart {
        let index = self.filesets.table.lock(&self.store);
        let fileset = index.ok().map(|index| index.path_of(self.fileset.anodes.slot));
        FilePart { pool: self.store.pool_id(), fileset, path, bytes: None }
    }
}
