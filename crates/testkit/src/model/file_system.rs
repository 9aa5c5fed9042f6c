//! The reference behind the interface that every file system has: each operation under its lock.

use engine::api::{
    AccessRights, Attr, AttributeChange, COPY_BYTES_MAX, Caller, DirEntry, Fallocate, FileHandle,
    FileSystem, FilesetUuid, FsError, FsResult, Ino, NewInode, RenameMode, Seek, SetAttr,
    Stability, StatFs, WriteData, XattrMode,
};

use super::access::{self, READ, WRITE};
use super::{BLOCK_BYTES, Body, FILESET, GENERATION, Model, Node, ROOT, TOTAL_BYTES};
use crate::number::{u64_of, usize_of};

impl FileSystem for Model {
    fn main_fileset(&self) -> FilesetUuid {
        FILESET
    }

    fn root(&self) -> Ino {
        ROOT
    }

    fn verifier(&self) -> u64 {
        // It loses nothing.
        0
    }

    fn resolve(&self, _caller: &Caller, handle: FileHandle) -> FsResult<Attr> {
        let mut state = self.locked();
        let is_gone = |node: &Node| node.names == 0 && node.references == 0;
        if handle.fileset != FILESET
            || handle.generation != GENERATION
            || state.nodes.get(&handle.ino).is_none_or(is_gone)
        {
            return Err(FsError::Stale);
        }
        state.referenced(handle.ino)
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        self.locked().lookup(caller, parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if ino != ROOT && count > 0 {
            self.locked().forget(ino, count);
        }
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> FsResult<Attr> {
        self.locked().attr(ino)
    }

    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<AccessRights> {
        Ok(access::access_of(caller, self.locked().node(ino)?))
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let asked = self.asked(caller);
        self.changes(ino, around, |state| state.setattr(asked, ino, change))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let asked = self.asked(caller);
        self.changes(parent, around, |state| state.create(asked, parent, name, new))
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
        let asked = self.asked(caller);
        self.changes(parent, around, |state| state.symlink(asked, (parent, name), target, new))
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        let now = self.clock.now();
        let mut state = self.locked();
        let node = state.node_mut(ino)?;
        let Body::Symlink(target) = &node.body else { return Err(FsError::Invalid) };
        let target = target.clone();
        node.touch_atime(caller, now);
        Ok(target)
    }

    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let asked = self.asked(caller);
        self.changes(parent, around, |state| state.link(asked, ino, parent, name))
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        let asked = self.asked(caller);
        self.locked().tmpfile(asked, parent, new)
    }

    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let asked = self.asked(caller);
        self.changes(parent, around, |state| state.unlink(asked, parent, name))
    }

    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let asked = self.asked(caller);
        self.changes(parent, around, |state| state.rmdir(asked, parent, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        let asked = self.asked(caller);
        let [mut from, mut to] = [AttributeChange::default(), AttributeChange::default()];
        self.changes(source.0, Some(&mut from), |state| {
            state.around(target.0, Some(&mut to), |state| state.rename(asked, source, target, mode))
        })?;
        around.into_iter().for_each(|around| *around = [from.clone(), to.clone()]);
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
        let now = self.clock.now();
        let mut state = self.locked();
        let node = state.node_mut(ino)?;
        let content = node.content()?;
        access::require(caller, node, READ)?;
        let count = content.read(offset, length_bytes, into);
        if length_bytes > 0 {
            node.touch_atime(caller, now);
        }
        Ok(count)
    }

    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        _stability: Stability,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<usize> {
        let asked = self.asked(caller);
        self.changes(ino, around, |state| state.write(asked, ino, offset, data))?;
        Ok(data.len())
    }

    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        let state = self.locked();
        let node = state.node(ino)?;
        node.directory()?;
        access::require(caller, node, READ)?;
        Ok(ino.0)
    }

    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let asked = self.asked(caller);
        // The lock is given back first: `each` may ask about what it is told.
        let entries = self.locked().readdir(asked, ino, cookie)?;
        for entry in &entries {
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, caller: &Caller, ino: Ino, _data_only: bool) -> FsResult<()> {
        access::require_any(caller, self.locked().node(ino)?)
    }

    fn sync(&self) -> FsResult<()> {
        Ok(())
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()> {
        let asked = self.asked(caller);
        self.locked().fallocate(asked, ino, (offset, length_bytes), mode)
    }

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        let state = self.locked();
        let node = state.node(ino)?;
        let content = node.content()?;
        access::require(caller, node, READ)?;
        let found = content.seek(offset, what == Seek::Data);
        let is_none = what == Seek::Data && found == content.size_bytes();
        if offset >= content.size_bytes() || is_none {
            return Err(FsError::NoSuchOffset);
        }
        Ok(found)
    }

    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        {
            let state = self.locked();
            let (from, to) = (state.node(source.0)?, state.node(target.0)?);
            from.content()?;
            to.content()?;
            access::require(caller, from, READ)?;
            access::require(caller, to, WRITE)?;
        }
        let length = length_bytes.min(COPY_BYTES_MAX);
        if source.0 == target.0 && source.1.abs_diff(target.1) < length {
            return Err(FsError::Invalid);
        }
        let mut bytes = Vec::new();
        self.read(caller, source.0, source.1, usize_of(length), &mut bytes)?;
        if !bytes.is_empty() {
            self.write(caller, target.0, target.1, &bytes)?;
        }
        Ok(u64_of(bytes.len()))
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        self.locked().getxattr(caller, ino, name)
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
        let asked = self.asked(caller);
        self.changes(ino, around, |state| state.setxattr(asked, ino, name, value, mode))
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        self.locked().listxattr(caller, ino)
    }

    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let asked = self.asked(caller);
        self.changes(ino, around, |state| state.removexattr(asked, ino, name))
    }

    fn statfs(&self, _caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.root_of(fileset)?;
        let inode_count = u64_of(self.locked().nodes.len());
        Ok(StatFs {
            block_bytes: BLOCK_BYTES,
            fragment_bytes: BLOCK_BYTES,
            total_bytes: TOTAL_BYTES,
            free_bytes: TOTAL_BYTES,
            available_bytes: TOTAL_BYTES,
            inode_count,
            inodes_free: u64::from(u32::MAX),
        })
    }
}
