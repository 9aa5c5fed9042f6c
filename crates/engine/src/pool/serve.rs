//! A pool as a file system: what fronts call.

use std::sync::Arc;

use super::Pool;
use super::clones::CLONES_NAME;
use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::vnode::api::{
    Access, Around, Attr, Caller, Completion, Data, DirEntry, Fallocate, FileKind, FileSystem,
    FilesetUuid, Handle, Ino, NewInode, ReadAsked, ReadTold, RenameMode, Seek, SetAttr, Stability,
    StatFs, XattrMode,
};
use crate::vnode::{Capabilities, Entered, Files};

impl Pool {
    /// Returns the files of the fileset that `ino` is in: the main one's, or those of one that is
    /// held. They are there until what this returns is dropped.
    fn files_of(&self, ino: Ino) -> FsResult<Entered<'_>> {
        if ino.is_clones_directory() {
            return Err(FsError::ReadOnlyClone);
        }
        self.core.note_asked();
        self.core.enter(ino)
    }

    fn named<T>(&self, ino: Ino, name: &[u8], result: FsResult<T>) -> FsResult<T> {
        self.core.named(ino, name, result)
    }

    /// Returns what calls `completion` with the file that an error is about.
    fn named_when_done(&self, ino: Ino, completion: Completion) -> Completion {
        let core = Arc::clone(&self.core);
        Box::new(move |done| completion(core.named(ino, b"", done)))
    }

    /// Reads files of several filesets.
    fn read_one_by_one(&self, asked: &[ReadAsked<'_>], told: &mut ReadTold<'_>) {
        for (index, asked) in asked.iter().enumerate() {
            let ReadAsked { caller, ino, offset, length_bytes } = asked;
            let mut bytes = Vec::new();
            let read = self.read(caller, *ino, *offset, *length_bytes, &mut bytes);
            let whole = [&bytes[..]];
            told(index, read.map(|_| &whole[..]));
        }
    }

    fn each_held(&self, each: impl FnMut(Files<'_>)) {
        if self.core.has_held() {
            self.core.held_files().for_each(each);
        }
    }
}

impl FileSystem for Pool {
    fn root(&self) -> Ino {
        self.files().root()
    }

    fn main_fileset(&self) -> FilesetUuid {
        self.main_fileset
    }

    fn verifier(&self) -> u64 {
        self.verifier
    }

    fn root_of(&self, fileset: FilesetUuid) -> FsResult<Ino> {
        Ok(self.core.files_named(fileset)?.root())
    }

    fn resolve(&self, _caller: &Caller, handle: Handle) -> FsResult<Attr> {
        let files = self.core.enter(handle.ino);
        match files.ok().filter(|files| files.uuid() == handle.fileset) {
            Some(files) if !handle.ino.is_clones_directory() => {
                self.named(handle.ino, b"", files.resolve(handle))
            }
            _ => self.resolve_in_clones(handle),
        }
    }

    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> Handle {
        let handle = attr.handle(fileset);
        Handle { generation: handle.generation ^ self.core.salt_of(attr.ino, fileset), ..handle }
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        if parent.is_clones_directory() {
            return self.lookup_clone(caller, parent, name);
        }
        match self.files_of(parent)?.lookup_name(caller, parent, name) {
            Err(FsError::NotFound) if self.is_clones_name(parent, name) => {
                self.clones_attr(Ino::clones_of_slot(parent.slot()))
            }
            found => self.named(parent, name, found),
        }
    }

    fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        if ino.is_clones_directory() {
            return Ok((Ino::root_of_slot(ino.slot()), FileKind::Directory));
        }
        // Who looks on does not use the pool.
        self.core.enter(ino)?.parent_of(ino)
    }

    fn name_in(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        if ino.is_clones_directory() {
            return Ok(CLONES_NAME.to_vec());
        }
        self.core.enter(directory)?.name_of(directory, ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Ok(files) = self.files_of(ino) {
            files.forget(ino, count);
        }
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> FsResult<Attr> {
        if ino.is_clones_directory() {
            return self.clones_attr(ino);
        }
        self.named(ino, b"", self.files_of(ino)?.attributes(ino))
    }

    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<Access> {
        if ino.is_clones_directory() {
            return Ok(Pool::clones_access());
        }
        self.named(ino, b"", self.files_of(ino)?.access_of(caller, ino))
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        mut around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let files = self.files_of(ino)?;
        let urgency = if change.size_bytes.is_some() { Urgency::Name } else { Urgency::User };
        files
            .unsharing(urgency, || files.set_attributes(caller, ino, change, around.as_deref_mut()))
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        mut around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.refuse_clones_name(parent, name)?;
        let files = self.files_of(parent)?;
        let made = files.unsharing(Urgency::User, || {
            files.make(caller, (parent, name), new, None, around.as_deref_mut())
        });
        self.named(parent, name, made)
    }

    fn symlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        new: NewInode,
        mut around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.refuse_clones_name(parent, name)?;
        let files = self.files_of(parent)?;
        files.unsharing(Urgency::User, || {
            files.make(caller, (parent, name), new, Some(target), around.as_deref_mut())
        })
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        self.files_of(ino)?.read_link(caller, ino)
    }

    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        mut around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        if ino.slot() != parent.slot() {
            return Err(FsError::CrossFileset);
        }
        self.files_of(parent)?;
        self.refuse_clones_name(parent, name)?;
        let files = self.files_of(ino)?;
        files.with_reclaim(|| {
            files.unsharing(Urgency::User, || {
                files.link_name(caller, ino, (parent, name), around.as_deref_mut())
            })
        })
    }

    fn link_over(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        if ino.slot() != parent.slot() {
            return Err(FsError::CrossFileset);
        }
        self.files_of(parent)?;
        self.refuse_clones_name(parent, name)?;
        let files = self.files_of(ino)?;
        files.with_reclaim(|| {
            files.unsharing(Urgency::User, || files.link_name_over(caller, ino, (parent, name)))
        })
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        let files = self.files_of(parent)?;
        files.unsharing(Urgency::User, || files.make_nameless(caller, parent, new))
    }

    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        let files = self.files_of(parent)?;
        let removed = files.with_reclaim(|| {
            files.unsharing(Urgency::Name, || {
                files.remove_name(caller, (parent, name), false, around.as_deref_mut())
            })
        });
        self.named(parent, name, self.keep_clones_name(parent, name, removed))
    }

    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        let files = self.files_of(parent)?;
        let removed = files.with_reclaim(|| {
            files.unsharing(Urgency::Name, || {
                files.remove_name(caller, (parent, name), true, around.as_deref_mut())
            })
        });
        self.keep_clones_name(parent, name, removed)
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        mut around: Option<&mut [Around; 2]>,
    ) -> FsResult<()> {
        if source.0.slot() != target.0.slot() {
            return Err(FsError::CrossFileset);
        }
        self.files_of(target.0)?;
        self.refuse_clones_name(target.0, target.1)?;
        let files = self.files_of(source.0)?;
        let renamed = files.with_reclaim(|| {
            files.unsharing(Urgency::Name, || {
                files.rename_name(caller, source, target, mode, around.as_deref_mut())
            })
        });
        self.keep_clones_name(source.0, source.1, renamed)
    }

    fn read(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let read = self.files_of(ino)?.read_file(caller, ino, offset, length_bytes, into);
        self.named(ino, b"", read).map_err(|error| error.in_bytes(offset, length_bytes))
    }

    fn read_each(&self, asked: &[ReadAsked<'_>], told: &mut ReadTold<'_>) {
        let is_of_main = |asked: &ReadAsked<'_>| self.core.is_of_main(asked.ino);
        if !asked.iter().all(is_of_main) {
            return self.read_one_by_one(asked, told);
        }
        self.files().read_files(asked, &mut |index, read| {
            let ReadAsked { ino, offset, length_bytes, .. } = asked[index];
            let read = self.named(ino, b"", read);
            told(index, read.map_err(|error| error.in_bytes(offset, length_bytes)));
        });
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let files = self.files_of(ino)?;
        let written = files.write_file(caller, ino, offset, (data, Capabilities::Drop));
        self.named(ino, b"", written).map_err(|error| error.in_bytes(offset, data.len()))
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
        let files = self.files_of(ino)?;
        let written = files.write_some(caller, ino, offset, data, around);
        let written = written.and_then(|count| {
            let is_durable = stability == Stability::Durable;
            if is_durable { files.sync_file(caller, ino).map(|()| count) } else { Ok(count) }
        });
        self.named(ino, b"", written).map_err(|error| error.in_bytes(offset, data.len()))
    }

    fn run_deferred_work(&self) {
        if let Err(error) = self.core.run_deferred_work() {
            tracing::debug!(%error, "what writes have put off is not done");
        }
        self.core.read_ahead_of_readers();
        self.files().read_ahead();
        self.each_held(|files| {
            if let Ok(files) = files.enter() {
                files.read_ahead();
            }
        });
    }

    fn has_deferred_work(&self) -> bool {
        let mut has_more = false;
        self.each_held(|files| has_more |= files.has_read_ahead_to_do());
        has_more
            || self.core.segments.has_full()
            || self.core.has_steps_to_read()
            || self.files().has_read_ahead_to_do()
    }

    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        if ino.is_clones_directory() {
            return self.list_clones(ino, cookie, each);
        }
        self.named(ino, b"", self.files_of(ino)?.list(caller, ino, cookie, each))
    }

    fn readdir_plus(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> FsResult<()> {
        if ino.is_clones_directory() {
            return self.list_clones(ino, cookie, &mut |entry| each(entry, None));
        }
        self.named(ino, b"", self.files_of(ino)?.list_with_attributes(caller, ino, cookie, each))
    }

    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        if ino.is_clones_directory() {
            return Ok(0);
        }
        self.named(ino, b"", self.files_of(ino)?.cookie_verifier(caller, ino))
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        if ino.is_clones_directory() {
            return Err(FsError::NoAttribute);
        }
        self.files_of(ino)?.get_attribute(caller, ino, name)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        let files = self.files_of(ino)?;
        files.unsharing(Urgency::User, || {
            files.set_attribute(caller, ino, name, (value, mode), around.as_deref_mut())
        })
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        if ino.is_clones_directory() {
            return Ok(Vec::new());
        }
        self.files_of(ino)?.list_attributes(caller, ino)
    }

    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        let files = self.files_of(ino)?;
        files.unsharing(Urgency::User, || {
            files.remove_attribute(caller, ino, name, around.as_deref_mut())
        })
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: u64,
        mode: Fallocate,
    ) -> FsResult<()> {
        let files = self.files_of(ino)?;
        let is_change =
            length_bytes > 0 && !matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange);
        let allocate = || files.fallocate_file(caller, ino, offset, length_bytes, mode);
        let dropped =
            if is_change { files.drop_capability_before_write(caller, ino) } else { Ok(()) };
        let done = dropped.and_then(|()| files.unsharing(Urgency::User, allocate));
        self.named(ino, b"", done)
    }

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<u64> {
        self.named(ino, b"", self.files_of(ino)?.seek_file(caller, ino, offset, what))
    }

    fn copy_range(
        &self,
        caller: &Caller,
        source: (Ino, u64),
        target: (Ino, u64),
        length_bytes: u64,
    ) -> FsResult<u64> {
        for ino in [source.0, target.0] {
            self.files_of(ino)?;
        }
        self.core.copy_file_range(caller, source, target, length_bytes)
    }

    fn fsync(&self, caller: &Caller, ino: Ino, _data_only: bool) -> FsResult<()> {
        if ino.is_clones_directory() {
            return Ok(());
        }
        let files = self.files_of(ino)?;
        // Nothing of a clone waits.
        if files.is_of_clone() {
            return Ok(());
        }
        self.named(ino, b"", files.sync_file(caller, ino))
    }

    fn commit_then(&self, caller: &Caller, ino: Ino, _data_only: bool, completion: Completion) {
        let completion = self.named_when_done(ino, completion);
        match self.files_of(ino) {
            // Nothing of a clone waits; and a completion may go into one.
            Ok(files) if files.is_of_clone() => {
                drop(files);
                completion(Ok(()));
            }
            Ok(files) => files.sync_file_then(caller, ino, completion),
            Err(error) => completion(Err(error)),
        }
    }

    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        let named = |(ino, completion)| (ino, self.named_when_done(ino, completion));
        self.core.sync_each_then(caller, files.into_iter().map(named).collect());
    }

    fn sync(&self) -> FsResult<()> {
        self.core.sync_all()
    }

    fn statfs(&self, _caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        let files = self.core.files_named(fileset)?;
        files.reap_doomed();
        let space = files.store.alloc.counts();
        let geometry = files.store.geometry();
        let bytes = |fragments: u64| fragments << geometry.fragment_shift;
        let taken = space.used + space.promised + space.reserved + space.metadata_free;
        let usage = files.fileset.anodes.usage.counts();
        let left = usage.left().unwrap_or(u64::MAX);
        let for_others = space.kept.saturating_sub(usage.kept);
        let free = space.capacity.saturating_sub(taken + for_others).min(left);
        let available = (space.available + usage.kept).min(left);
        // What it has and may still have: the rest of the pool belongs to others.
        let total = usage.used.saturating_add(usage.accepted).saturating_add(free);
        Ok(StatFs {
            block_bytes: 1 << files.fileset.anodes.block_shift,
            fragment_bytes: u32::try_from(geometry.fragment_bytes()).expect("at most 4096"),
            total_bytes: bytes(total),
            free_bytes: bytes(free),
            available_bytes: bytes(available),
            inode_count: files.fileset.anodes.anodes_used(),
            inodes_free: bytes(available) / 512,
        })
    }
}
