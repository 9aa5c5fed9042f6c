//! The directory `.clones` at the root of a fileset: its entries are the clones of the fileset, and
//! lead to their roots.
//!
//! It is on no disk: whoever looks its name up finds it, where the fileset has no name of its own
//! like that, and no listing tells of it. Its number has the fileset's slot and the last anode
//! number, which no file can have. What is below a clone has the clone's slot in its number, and
//! is read-only as every clone is.
//!
//! # Concurrency
//!
//! A clone that is looked up is opened, and stays so until it is deleted or the pool is closed.
//! Each operation goes in, so that nobody comes to a page of it that is free (PO1).

use format::fileset::NamePart;
use runtime::clock::Timestamp;
use runtime::sync::Mutex;

use super::Pool;
use crate::error::{FsError, FsResult};
use crate::vnode::api::{Access, Attr, Caller, DirEntry, FileKind, FilesetUuid, Handle, Ino};
use crate::vnode::{Entered, Files, mix};

/// The name by which the directory is found.
pub(super) const CLONES_NAME: &[u8] = b".clones";
/// Half of the bits of a number of a fileset.
const HALF: u128 = u128::MAX >> 64;
/// Cookies below this are those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// The count of changes when somebody last looked at a directory of clones, and when that was new.
#[derive(Debug, Default)]
pub(super) struct Seen(Mutex<Option<(u64, Timestamp)>>);

fn just_after(time: Timestamp) -> Timestamp {
    match time.nanoseconds {
        ..999_999_999 => Timestamp { nanoseconds: time.nanoseconds + 1, ..time },
        _ => Timestamp { seconds: time.seconds.saturating_add(1), nanoseconds: 0 },
    }
}

impl Pool {
    /// Returns the files of the fileset whose directory of clones `ino` is.
    fn files_of_clones(&self, ino: Ino) -> FsResult<Files<'_>> {
        self.core.files_of(ino)
    }

    /// Whether `name` in `parent` is the directory of clones, if the fileset has none like that.
    pub(super) fn is_clones_name(&self, parent: Ino, name: &[u8]) -> bool {
        name == CLONES_NAME
            && self
                .core
                .files_of(parent)
                .is_ok_and(|files| parent == files.root() && !files.is_of_clone())
    }

    /// Refuses to make an entry of that name at the root of a fileset.
    pub(super) fn refuse_clones_name(&self, parent: Ino, name: &[u8]) -> FsResult<()> {
        if self.is_clones_name(parent, name) { Err(FsError::Exists) } else { Ok(()) }
    }

    /// Returns what came of taking a name away, which that of the directory of clones is not.
    pub(super) fn keep_clones_name(
        &self,
        parent: Ino,
        name: &[u8],
        removed: FsResult<()>,
    ) -> FsResult<()> {
        match removed {
            Err(FsError::NotFound) if self.is_clones_name(parent, name) => {
                Err(FsError::NotPermitted)
            }
            removed => removed,
        }
    }

    /// Returns what the directory of clones looks like.
    pub(super) fn clones_attr(&self, ino: Ino) -> FsResult<Attr> {
        let files = self.files_of_clones(ino)?;
        let root = files.attributes(files.root())?;
        let changed = self.clones_changed()?;
        Ok(Attr {
            ino,
            generation: root.generation,
            mtime: changed,
            ctime: changed,
            mode: 0o555,
            nlink: 2,
            size_bytes: 0,
            blocks_512: 0,
            // Names come and go behind the kernel's back.
            blocks_may_change: true,
            ..root
        })
    }

    /// Returns when names of clones were last seen to have come or gone, of whatever fileset: the
    /// clients of NFS ask by that whether what they know of a directory is true still.
    fn clones_changed(&self) -> FsResult<Timestamp> {
        let changes = self.core.filesets.table.lock(&self.core.store)?.clones_changes();
        let mut seen = self.clones_seen.0.lock();
        let last = *seen;
        if let Some((_, time)) = last.filter(|(seen, _)| *seen == changes) {
            return Ok(time);
        }
        // The clock may be coarse, or set back.
        let later = last.map(|(_, time)| just_after(time));
        let time = later.into_iter().fold(self.core.store.now(), Timestamp::max);
        *seen = Some((changes, time));
        Ok(time)
    }

    /// Finds a clone by its own name; `.` and `..` as in any directory. Takes a reference.
    pub(super) fn lookup_clone(&self, caller: &Caller, dir: Ino, name: &[u8]) -> FsResult<Attr> {
        let files = self.files_of_clones(dir)?;
        match name {
            b"." => return self.clones_attr(dir),
            b".." => return files.lookup_name(caller, files.root(), b"."),
            _ => {}
        }
        let name = std::str::from_utf8(name).ok().and_then(|name| NamePart::new(name).ok());
        let name = name.ok_or(FsError::NotFound)?;
        let slot = {
            let index = self.core.filesets.table.lock(&self.core.store)?;
            index.clone_of(dir.slot(), &name).map(|node| node.slot).ok_or(FsError::NotFound)?
        };
        let gone = |error| if error == FsError::Stale { FsError::NotFound } else { error };
        let clone = self.core.hold_clone_in(slot).map_err(gone)?;
        let root = clone.lookup_name(caller, clone.root(), b".")?;
        Ok(Attr { blocks_may_change: true, ..root })
    }

    /// Lists the clones, as [`crate::vnode::api::FileSystem::readdir`] does.
    pub(super) fn list_clones(
        &self,
        dir: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let root = self.files_of_clones(dir)?.root();
        let fixed = [(1, &b"."[..], dir), (2, b"..", root)];
        let mut entries: Vec<DirEntry> = Vec::new();
        for (at, name, ino) in fixed {
            let name = name.to_vec();
            entries.push(DirEntry { name, ino, kind: FileKind::Directory, cookie: at });
        }
        {
            let index = self.core.filesets.table.lock(&self.core.store)?;
            for node in index.clones_of(dir.slot()) {
                let name = node.name.as_str().as_bytes().to_vec();
                // Slots rise with time, and none is used twice while the pool is open.
                let cookie = FIRST_COOKIE + u64::from(node.slot);
                let ino = Ino::root_of_slot(node.slot);
                entries.push(DirEntry { name, ino, kind: FileKind::Directory, cookie });
            }
        }
        entries.sort_by_key(|entry| entry.cookie);
        let rest = entries.iter().filter(|entry| entry.cookie > cookie);
        for entry in rest {
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    /// Returns what anybody may do with the directory of clones.
    pub(super) fn clones_access() -> Access {
        Access { reads: true, writes: false, executes: true }
    }

    /// Finds what a handle names that is the directory of clones, or lies in a clone of the fileset
    /// that the handle names.
    pub(super) fn resolve_in_clones(&self, handle: Handle) -> FsResult<Attr> {
        let ino = handle.ino;
        if ino.is_clones_directory() {
            let attr = self.clones_attr(ino)?;
            let is_it = self.files_of_clones(ino)?.uuid() == handle.fileset;
            let is_it = is_it && attr.generation == handle.generation;
            return if is_it { Ok(attr) } else { Err(FsError::Stale) };
        }
        // Its clone may have been opened before a restart.
        let of = {
            let index = self.core.filesets.table.lock(&self.core.store)?;
            let clone = index.node(ino.slot()).filter(|node| node.is_clone());
            clone.and_then(|clone| index.node(clone.above?)).map(|node| node.uuid)
        };
        if of.map(u128::from_le_bytes) != Some(handle.fileset.0) {
            return Err(FsError::Stale);
        }
        let clone = self.core.hold_clone_in(ino.slot())?;
        let generation = handle.generation ^ self.core.salt_of(ino, handle.fileset);
        clone.resolve(Handle { fileset: clone.uuid(), generation, ..handle })
    }
}

impl crate::vnode::Core {
    /// Returns what the generation of a file is mixed with in handles that were made from
    /// `fileset`: 0, but for what lies in a clone of it. Slots of clones are used again once the
    /// pool was closed, and a file is the same in all clones of a fileset: without it a handle of
    /// one clone would lead into another one later. Waits for nobody.
    pub(super) fn salt_of(&self, ino: Ino, fileset: FilesetUuid) -> u64 {
        let clone = self.clone_of_slot(ino.slot()).filter(|uuid| *uuid != fileset);
        clone.map_or(0, |FilesetUuid(uuid)| {
            let [low, high] =
                [uuid, uuid >> 64].map(|half| u64::try_from(half & HALF).unwrap_or(0));
            mix(low ^ mix(high))
        })
    }

    /// Opens the clone in `slot` for fronts, and goes in.
    fn hold_clone_in(&self, slot: u32) -> FsResult<Entered<'_>> {
        self.hold_slot(slot)?;
        self.enter(Ino::root_of_slot(slot))
    }
}
