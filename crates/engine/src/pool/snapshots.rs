//! The virtual directory `.snapshots` at the root of a fileset. Each entry leads to the root
//! directory of one snapshot.
//!
//! The directory is not stored. A lookup of its name finds it unless the fileset has a file of that
//! name, and no listing shows it. Its inode number has the fileset's slot and the last anode
//! number, which no file can have. Inodes in a snapshot have the snapshot's slot in their number,
//! and are read-only.
//!
//! A lookup of the older name `.clones` finds a symbolic link to `.snapshots`, with the second-last
//! anode number.
//!
//! # Concurrency
//!
//! The first lookup of a snapshot opens it. It stays open until it is deleted or the pool is
//! closed. Each operation enters the snapshot's gate, so that it never reads a page that a deletion
//! has freed (PO1).

use format::fileset::NamePart;
use runtime::clock::Timestamp;
use runtime::sync::Mutex;

use super::Pool;
use crate::api::{AccessRights, Attr, Caller, DirEntry, FileHandle, FileKind, FilesetUuid, Ino};
use crate::error::{FsError, FsResult};
use crate::file::{AdmittedFiles, Files, mix};

pub(super) const SNAPSHOTS_NAME: &[u8] = b".snapshots";
const OLD_NAME: &[u8] = b".clones";
/// Mask of the lower half of a fileset UUID.
const HALF: u128 = u128::MAX >> 64;
const FIRST_COOKIE: u64 = 3;

#[derive(Debug, Default)]
pub(super) struct SnapshotsDirectoryTime(Mutex<Option<(u64, Timestamp)>>);

fn just_after(time: Timestamp) -> Timestamp {
    match time.nanoseconds {
        ..999_999_999 => Timestamp { nanoseconds: time.nanoseconds + 1, ..time },
        _ => Timestamp { seconds: time.seconds.saturating_add(1), nanoseconds: 0 },
    }
}

impl Pool {
    fn files_of_snapshots(&self, ino: Ino) -> FsResult<Files<'_>> {
        self.core.files_of(ino)
    }

    pub(super) fn virtual_of_name(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        let found: fn(u32) -> Ino = match name {
            SNAPSHOTS_NAME => Ino::snapshots_of_slot,
            OLD_NAME => Ino::snapshots_link_of_slot,
            _ => return None,
        };
        let files = self.core.files_of(parent).ok()?;
        let is_there = parent == files.root() && !files.is_of_snapshot();
        is_there.then(|| found(parent.slot()))
    }

    pub(super) fn refuse_snapshots_name(&self, parent: Ino, name: &[u8]) -> FsResult<()> {
        if self.virtual_of_name(parent, name).is_some() { Err(FsError::Exists) } else { Ok(()) }
    }

    /// Turns "not found" into a refusal, if a virtual file has the name to be removed.
    pub(super) fn keep_snapshots_name(
        &self,
        parent: Ino,
        name: &[u8],
        removed: FsResult<()>,
    ) -> FsResult<()> {
        match removed {
            Err(FsError::NotFound) if self.virtual_of_name(parent, name).is_some() => {
                Err(FsError::NotPermitted)
            }
            removed => removed,
        }
    }

    pub(super) fn virtual_target(ino: Ino) -> Option<Vec<u8>> {
        ino.is_snapshots_link().then(|| SNAPSHOTS_NAME.to_vec())
    }

    pub(super) fn virtual_name(ino: Ino) -> Vec<u8> {
        if ino.is_snapshots_link() { OLD_NAME.to_vec() } else { SNAPSHOTS_NAME.to_vec() }
    }

    pub(super) fn virtual_attr(&self, ino: Ino) -> FsResult<Attr> {
        let directory = self.snapshots_attr(ino)?;
        if !ino.is_snapshots_link() {
            return Ok(directory);
        }
        let size_bytes = u64::try_from(SNAPSHOTS_NAME.len()).unwrap_or(0);
        Ok(Attr { kind: FileKind::Symlink, mode: 0o777, nlink: 1, size_bytes, ..directory })
    }

    fn snapshots_attr(&self, ino: Ino) -> FsResult<Attr> {
        let files = self.files_of_snapshots(ino)?;
        let root = files.attributes(files.root())?;
        let changed = self.snapshots_changed()?;
        Ok(Attr {
            ino,
            generation: root.generation,
            mtime: changed,
            ctime: changed,
            mode: 0o555,
            nlink: 2,
            size_bytes: 0,
            blocks_512: 0,
            // Entries appear and vanish without the kernel's knowledge: it must not cache the
            // attributes.
            blocks_may_change: true,
            ..root
        })
    }

    /// Returns the change time of every `.snapshots` directory, by which NFS clients revalidate
    /// their caches. Any snapshot created or deleted advances it.
    fn snapshots_changed(&self) -> FsResult<Timestamp> {
        let changes = self.core.filesets.table.lock(&self.core.store)?.snapshots_changes();
        let mut seen = self.snapshots_seen.0.lock();
        let last = *seen;
        if let Some((_, time)) = last.filter(|(seen, _)| *seen == changes) {
            return Ok(time);
        }
        // Set past the last time returned: the clock may be coarse, or set back.
        let later = last.map(|(_, time)| just_after(time));
        let time = later.into_iter().fold(self.core.store.now(), Timestamp::max);
        *seen = Some((changes, time));
        Ok(time)
    }

    /// Looks up a snapshot by name, or `.` or `..`. Takes a reference.
    pub(super) fn lookup_snapshot(&self, caller: &Caller, dir: Ino, name: &[u8]) -> FsResult<Attr> {
        let files = self.files_of_snapshots(dir)?;
        match name {
            b"." => return self.snapshots_attr(dir),
            b".." => return files.names().lookup_name(caller, files.root(), b"."),
            _ => {}
        }
        let name = std::str::from_utf8(name).ok().and_then(|name| NamePart::new(name).ok());
        let name = name.ok_or(FsError::NotFound)?;
        let slot = {
            let index = self.core.filesets.table.lock(&self.core.store)?;
            index.snapshot_of(dir.slot(), &name).map(|node| node.slot).ok_or(FsError::NotFound)?
        };
        let gone = |error| if error == FsError::Stale { FsError::NotFound } else { error };
        let snapshot = self.core.hold_snapshot_in(slot).map_err(gone)?;
        let root = snapshot.names().lookup_name(caller, snapshot.root(), b".")?;
        Ok(Attr { blocks_may_change: true, ..root })
    }

    pub(super) fn list_snapshots(
        &self,
        dir: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let root = self.files_of_snapshots(dir)?.root();
        let fixed = [(1, &b"."[..], dir), (2, b"..", root)];
        let mut entries: Vec<DirEntry> = Vec::new();
        for (at, name, ino) in fixed {
            let name = name.to_vec();
            entries.push(DirEntry { name, ino, kind: FileKind::Directory, cookie: at });
        }
        {
            let index = self.core.filesets.table.lock(&self.core.store)?;
            for node in index.snapshots_of(dir.slot()) {
                let name = node.name.as_str().as_bytes().to_vec();
                // Slots rise with time, and none is reused while the pool is open.
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

    pub(super) fn snapshots_access() -> AccessRights {
        AccessRights { reads: true, writes: false, executes: true }
    }

    /// Resolves a handle of a virtual file, or of a file in a snapshot of the handle's fileset.
    pub(super) fn resolve_in_snapshots(&self, handle: FileHandle) -> FsResult<Attr> {
        let ino = handle.ino;
        if ino.is_virtual() {
            let attr = self.virtual_attr(ino)?;
            let is_it = self.files_of_snapshots(ino)?.uuid() == handle.fileset;
            let is_it = is_it && attr.generation == handle.generation;
            return if is_it { Ok(attr) } else { Err(FsError::Stale) };
        }
        // The snapshot may be closed: the handle may be from before a restart.
        let of = {
            let index = self.core.filesets.table.lock(&self.core.store)?;
            let snapshot = index.node(ino.slot()).filter(|node| node.is_snapshot());
            snapshot.and_then(|snapshot| index.node(snapshot.above?)).map(|node| node.uuid)
        };
        if of.map(u128::from_le_bytes) != Some(handle.fileset.0) {
            return Err(FsError::Stale);
        }
        let snapshot = self.core.hold_snapshot_in(ino.slot())?;
        let generation = handle.generation ^ self.core.salt_of(ino, handle.fileset);
        snapshot.names().resolve(FileHandle { fileset: snapshot.uuid(), generation, ..handle })
    }
}

impl crate::file::Core {
    /// Returns a salt for the generation in handles made through `fileset`: 0 except for a file in
    /// a snapshot of `fileset`. A file has one number and generation in all snapshots, and slots
    /// are reused after a close. So without the salt a handle could lead into a later snapshot.
    /// Does not block.
    pub(super) fn salt_of(&self, ino: Ino, fileset: FilesetUuid) -> u64 {
        let snapshot = self.snapshot_of_slot(ino.slot()).filter(|uuid| *uuid != fileset);
        snapshot.map_or(0, |FilesetUuid(uuid)| {
            let [low, high] =
                [uuid, uuid >> 64].map(|half| u64::try_from(half & HALF).unwrap_or(0));
            mix(low ^ mix(high))
        })
    }

    fn hold_snapshot_in(&self, slot: u32) -> FsResult<AdmittedFiles<'_>> {
        self.hold_slot(slot)?;
        self.enter(Ino::root_of_slot(slot))
    }
}
