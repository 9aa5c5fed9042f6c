//! A [`FileSystem`] wrapper that reports each change to the other mounts of the fileset.

use std::collections::HashMap;
use std::sync::Arc;

use engine::api::{
    AccessRights, Attr, AttributeChange, Caller, Completion, DirEntry, Fallocate, FileHandle,
    FileKind, FileReadRequest, FileSystem, FilesetUuid, FsResult, Ino, NewInode, ReadCallback,
    RenameMode, Seek, SetAttr, Stability, StatFs, WriteData, XattrMode,
};
use parking_lot::{Mutex, MutexGuard};

use super::{SharedFilesets, Viewer};

/// Root credentials, to look up a name's target whatever the permissions of the caller.
static ANYBODY: Caller = Caller::checked_by_kernel(0, 0);

/// The file system of one front, with reporting of changes to the other viewers.
pub struct NotifyingFileSystem {
    fs: Arc<dyn FileSystem>,
    shares: Arc<SharedFilesets>,
    own: Option<OwnViewer>,
}

struct OwnViewer {
    viewer: Arc<Viewer>,
    /// References that the mount's kernel holds (SH4).
    references: Mutex<HashMap<Ino, u64>>,
}

impl Drop for NotifyingFileSystem {
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        for (ino, count) in std::mem::take(&mut *own.references.lock()) {
            self.fs.forget(ino, count);
        }
    }
}

impl NotifyingFileSystem {
    /// Wraps `fs` for a front without a cache of its own (NFS exports).
    #[must_use]
    pub fn of(fs: Arc<dyn FileSystem>, shares: &Arc<SharedFilesets>) -> Arc<NotifyingFileSystem> {
        Arc::new(NotifyingFileSystem { fs, shares: Arc::clone(shares), own: None })
    }

    /// Wraps `fs` for the mount of `viewer`. The viewer gets no reports of its own mount's changes.
    #[must_use]
    pub fn for_viewer(
        fs: Arc<dyn FileSystem>,
        shares: &Arc<SharedFilesets>,
        viewer: &Arc<Viewer>,
    ) -> Arc<NotifyingFileSystem> {
        let own = OwnViewer { viewer: Arc::clone(viewer), references: Mutex::default() };
        Arc::new(NotifyingFileSystem { fs, shares: Arc::clone(shares), own: Some(own) })
    }

    fn others(&self, ino: Ino) -> Vec<Arc<Viewer>> {
        self.shares.others(ino, self.own.as_ref().map(|own| &own.viewer))
    }

    /// Reports changed inodes, after the change and before its answer (SH1). Also called after an
    /// error, if a part of the change may have happened.
    fn tell(&self, inos: &[Ino]) {
        let Some(first) = inos.first() else { return };
        for other in self.others(*first) {
            other.changed(inos);
        }
    }

    /// Locks the names against changes by other fronts, or nothing if there is no other viewer
    /// (SH5).
    fn alone_with(&self, names: &[(Ino, &[u8])]) -> Vec<MutexGuard<'_, ()>> {
        let Some((directory, _)) = names.first() else { return Vec::new() };
        if self.others(*directory).is_empty() {
            return Vec::new();
        }
        self.shares.lock_names(names)
    }

    /// Returns the current targets of names about to change, or none without other viewers.
    fn led_to(&self, names: &[(Ino, &[u8])]) -> Vec<Ino> {
        let Some((directory, _)) = names.first() else { return Vec::new() };
        if self.others(*directory).is_empty() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (directory, name) in names {
            if let Ok(attr) = self.fs.lookup(&ANYBODY, *directory, name) {
                self.fs.forget(attr.ino, 1);
                found.push(attr.ino);
            }
        }
        found
    }

    /// Counts a reference given to the kernel (SH4).
    fn taken(&self, attr: Attr) -> Attr {
        if let Some(own) = &self.own {
            *own.references.lock().entry(attr.ino).or_default() += 1;
        }
        attr
    }
}

impl NotifyingFileSystem {
    /// Runs a request that changes nothing.
    fn unwatched<T>(&self, run: impl FnOnce(&Arc<dyn FileSystem>) -> FsResult<T>) -> FsResult<T> {
        run(&self.fs)
    }
}

impl FileSystem for NotifyingFileSystem {
    engine::forward! { unwatched:
        getattr access parent_of name_in readlink read seek cookie_verifier getxattr
        listxattr fsync sync
    }

    fn main_fileset(&self) -> FilesetUuid {
        self.fs.main_fileset()
    }

    fn root(&self) -> Ino {
        self.fs.root()
    }

    fn root_of(&self, fileset: FilesetUuid) -> FsResult<Ino> {
        self.fs.root_of(fileset)
    }

    fn verifier(&self) -> u64 {
        self.fs.verifier()
    }

    fn resolve(&self, caller: &Caller, handle: FileHandle) -> FsResult<Attr> {
        self.fs.resolve(caller, handle).map(|attr| self.taken(attr))
    }

    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> FileHandle {
        self.fs.handle_of(attr, fileset)
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.fs.lookup(caller, parent, name).map(|attr| self.taken(attr))
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Some(own) = &self.own {
            let mut references = own.references.lock();
            if let Some(held) = references.get_mut(&ino) {
                *held = held.saturating_sub(count);
                if *held == 0 {
                    references.remove(&ino);
                }
            }
        }
        self.fs.forget(ino, count);
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        // A failed setattr may already have changed the size or the owner.
        let changed = self.fs.setattr(caller, ino, change, around);
        self.tell(&[ino]);
        changed
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let _alone = self.alone_with(&[(parent, name)]);
        let made = self.fs.create(caller, parent, name, new, around)?;
        self.tell(&[parent]);
        Ok(self.taken(made))
    }

    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let _alone = self.alone_with(&[(parent, name)]);
        let made = self.fs.symlink(caller, parent, name, target, new, around)?;
        self.tell(&[parent]);
        Ok(self.taken(made))
    }

    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let _alone = self.alone_with(&[(parent, name)]);
        let linked = self.fs.link(caller, ino, parent, name, around)?;
        self.tell(&[parent, ino]);
        Ok(self.taken(linked))
    }

    fn link_over(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let _alone = self.alone_with(&[(parent, name)]);
        let mut changed = self.led_to(&[(parent, name)]);
        let linked = self.fs.link_over(caller, ino, parent, name)?;
        changed.extend([parent, ino]);
        self.tell(&changed);
        Ok(self.taken(linked))
    }

    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let _alone = self.alone_with(&[(parent, name)]);
        let mut changed = self.led_to(&[(parent, name)]);
        self.fs.unlink(caller, parent, name, around)?;
        changed.push(parent);
        self.tell(&changed);
        Ok(())
    }

    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let _alone = self.alone_with(&[(parent, name)]);
        let mut changed = self.led_to(&[(parent, name)]);
        self.fs.rmdir(caller, parent, name, around)?;
        changed.push(parent);
        self.tell(&changed);
        Ok(())
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        let _alone = self.alone_with(&[source, target]);
        let mut changed = self.led_to(&[source, target]);
        self.fs.rename(caller, source, target, mode, around)?;
        changed.extend([source.0, target.0]);
        self.tell(&changed);
        Ok(())
    }

    fn read_each(&self, asked: &[FileReadRequest<'_>], told: &mut ReadCallback<'_>) {
        self.fs.read_each(asked, told);
    }

    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        stability: Stability,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<usize> {
        let done = self.fs.write_some(caller, ino, offset, data, stability, around);
        self.tell(&[ino]);
        done
    }

    fn run_deferred_work(&self) {
        self.fs.run_deferred_work();
    }

    fn has_deferred_work(&self) -> bool {
        self.fs.has_deferred_work()
    }

    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        self.fs.readdir(caller, ino, cookie, each)
    }

    fn readdir_plus(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> FsResult<()> {
        self.fs.readdir_plus(caller, ino, cookie, &mut |entry, attr| {
            let is_taken = each(entry, attr);
            if let (true, Some(attr), Some(own)) = (is_taken, attr, &self.own) {
                *own.references.lock().entry(attr.ino).or_default() += 1;
            }
            is_taken
        })
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.fs.setxattr(caller, ino, name, value, mode, around)?;
        self.tell(&[ino]);
        Ok(())
    }

    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.fs.removexattr(caller, ino, name, around)?;
        self.tell(&[ino]);
        Ok(())
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        self.fs.tmpfile(caller, parent, new).map(|attr| self.taken(attr))
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()> {
        let done = self.fs.fallocate(caller, ino, offset, length_bytes, mode);
        self.tell(&[ino]);
        done
    }

    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        let done = self.fs.copy_range(caller, source, target, length_bytes);
        self.tell(&[target.0]);
        done
    }

    fn commit_then(&self, caller: &Caller, ino: Ino, data_only: bool, completion: Completion) {
        self.fs.commit_then(caller, ino, data_only, completion);
    }

    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        self.fs.commit_each(caller, files);
    }

    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.fs.statfs(caller, fileset)
    }
}
