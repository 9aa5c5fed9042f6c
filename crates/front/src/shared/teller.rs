//! The file system as one of several fronts reaches it.

use std::collections::HashMap;
use std::sync::Arc;

use engine::vnode::api::{
    Access, Around, Attr, Caller, Completion, Data, DirEntry, Fallocate, FileKind, FileSystem,
    FilesetUuid, FsResult, Handle, Ino, NewInode, ReadAsked, ReadTold, RenameMode, Seek, SetAttr,
    Stability, StatFs, XattrMode,
};
use parking_lot::{Mutex, MutexGuard};

use super::{Shares, Viewer};

/// Asks for names as they are, whoever it is that changes them.
static ANYBODY: Caller = Caller::checked_by_kernel(0, 0);

/// Does what a front asks, and tells the others what it has changed.
pub struct Teller {
    fs: Arc<dyn FileSystem>,
    shares: Arc<Shares>,
    own: Option<Own>,
}

/// What a front has that is a mount.
struct Own {
    viewer: Arc<Viewer>,
    /// References that its kernel holds (SH4).
    references: Mutex<HashMap<Ino, u64>>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        let Some(own) = &self.own else { return };
        for (ino, count) in std::mem::take(&mut *own.references.lock()) {
            self.fs.forget(ino, count);
        }
    }
}

impl Teller {
    /// Returns `fs` for a front that keeps nothing it was told.
    #[must_use]
    pub fn of(fs: Arc<dyn FileSystem>, shares: &Arc<Shares>) -> Arc<Teller> {
        Arc::new(Teller { fs, shares: Arc::clone(shares), own: None })
    }

    /// Returns `fs` for the mount that `viewer` is, which is told nothing of what it changes.
    #[must_use]
    pub fn for_viewer(
        fs: Arc<dyn FileSystem>,
        shares: &Arc<Shares>,
        viewer: &Arc<Viewer>,
    ) -> Arc<Teller> {
        let own = Own { viewer: Arc::clone(viewer), references: Mutex::default() };
        Arc::new(Teller { fs, shares: Arc::clone(shares), own: Some(own) })
    }

    /// Returns those who are to be told of changes to what `ino` is in.
    fn others(&self, ino: Ino) -> Vec<Arc<Viewer>> {
        self.shares.others(ino, self.own.as_ref().map(|own| &own.viewer))
    }

    /// SH1: called when a change is done and not yet answered; also after an error where some of it
    /// may be done.
    fn tell(&self, inos: &[Ino]) {
        let Some(first) = inos.first() else { return };
        for other in self.others(*first) {
            other.changed(inos);
        }
    }

    /// SH5: keeps other fronts from changing where names lead, if anybody is to be told of it.
    fn alone_with(&self, names: &[(Ino, &[u8])]) -> Vec<MutexGuard<'_, ()>> {
        let Some((directory, _)) = names.first() else { return Vec::new() };
        if self.others(*directory).is_empty() {
            return Vec::new();
        }
        self.shares.lock_names(names)
    }

    /// Returns where names lead that are about to lead elsewhere, as far as anybody is to be told.
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

    /// Counts a reference that was taken (SH4).
    fn taken(&self, attr: Attr) -> Attr {
        if let Some(own) = &self.own {
            *own.references.lock().entry(attr.ino).or_default() += 1;
        }
        attr
    }
}

impl FileSystem for Teller {
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

    fn resolve(&self, caller: &Caller, handle: Handle) -> FsResult<Attr> {
        self.fs.resolve(caller, handle).map(|attr| self.taken(attr))
    }

    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> Handle {
        self.fs.handle_of(attr, fileset)
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.fs.lookup(caller, parent, name).map(|attr| self.taken(attr))
    }

    fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        self.fs.parent_of(ino)
    }

    fn name_in(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        self.fs.name_in(directory, ino)
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

    fn getattr(&self, caller: &Caller, ino: Ino) -> FsResult<Attr> {
        self.fs.getattr(caller, ino)
    }

    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<Access> {
        self.fs.access(caller, ino)
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        // A cut may fail behind the new size, and behind the new owner.
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
        around: Option<&mut Around>,
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
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let _alone = self.alone_with(&[(parent, name)]);
        let made = self.fs.symlink(caller, parent, name, target, new, around)?;
        self.tell(&[parent]);
        Ok(self.taken(made))
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        self.fs.readlink(caller, ino)
    }

    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut Around>,
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
        around: Option<&mut Around>,
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
        around: Option<&mut Around>,
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
        around: Option<&mut [Around; 2]>,
    ) -> FsResult<()> {
        let _alone = self.alone_with(&[source, target]);
        let mut changed = self.led_to(&[source, target]);
        self.fs.rename(caller, source, target, mode, around)?;
        changed.extend([source.0, target.0]);
        self.tell(&changed);
        Ok(())
    }

    fn read(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        self.fs.read(caller, ino, offset, length_bytes, into)
    }

    fn read_each(&self, asked: &[ReadAsked<'_>], told: &mut ReadTold<'_>) {
        self.fs.read_each(asked, told);
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let done = self.fs.write(caller, ino, offset, data);
        self.tell(&[ino]);
        done
    }

    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &Data<'_>,
        stability: Stability,
        around: Option<&mut Around>,
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

    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        self.fs.cookie_verifier(caller, ino)
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        self.fs.getxattr(caller, ino, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.fs.setxattr(caller, ino, name, value, mode, around)?;
        self.tell(&[ino]);
        Ok(())
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        self.fs.listxattr(caller, ino)
    }

    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut Around>,
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

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        self.fs.seek(caller, ino, offset, what)
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

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> FsResult<()> {
        self.fs.fsync(caller, ino, data_only)
    }

    fn commit_then(&self, caller: &Caller, ino: Ino, data_only: bool, completion: Completion) {
        self.fs.commit_then(caller, ino, data_only, completion);
    }

    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        self.fs.commit_each(caller, files);
    }

    fn sync(&self) -> FsResult<()> {
        self.fs.sync()
    }

    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.fs.statfs(caller, fileset)
    }
}
