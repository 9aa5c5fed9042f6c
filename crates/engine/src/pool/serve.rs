//! The file system interface of a pool, for front ends.

use std::sync::Arc;

use super::Pool;
use crate::alloc::Urgency;
use crate::api::{
    AccessRights, Attr, AttributeChange, Caller, Completion, DirEntry, Fallocate, FileHandle,
    FileKind, FileReadRequest, FileSystem, FilesetUuid, Ino, NewInode, ReadCallback, RenameMode,
    Seek, SetAttr, Stability, StatFs, WriteData, XattrMode,
};
use crate::error::{FsError, FsResult};
use crate::file::{AdmittedFiles, Files};

impl Pool {
    /// Returns the files of the main or a held fileset that contains `ino`. While the result
    /// exists, none of them is freed.
    fn files_of(&self, ino: Ino) -> FsResult<AdmittedFiles<'_>> {
        if ino.is_virtual() {
            return Err(FsError::ReadOnlySnapshot);
        }
        self.core.note_asked();
        self.core.enter(ino)
    }

    fn named<T>(&self, ino: Ino, name: &[u8], result: FsResult<T>) -> FsResult<T> {
        self.core.named(ino, name, result)
    }

    fn named_when_done(&self, ino: Ino, completion: Completion) -> Completion {
        let core = Arc::clone(&self.core);
        Box::new(move |done| completion(core.named(ino, b"", done)))
    }

    fn read_one_by_one(&self, asked: &[FileReadRequest<'_>], told: &mut ReadCallback<'_>) {
        for (index, asked) in asked.iter().enumerate() {
            let FileReadRequest { caller, ino, offset, length_bytes } = asked;
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

    fn resolve(&self, _caller: &Caller, handle: FileHandle) -> FsResult<Attr> {
        let files = self.core.enter(handle.ino);
        match files.ok().filter(|files| files.uuid() == handle.fileset) {
            Some(files) if !handle.ino.is_virtual() => {
                self.named(handle.ino, b"", files.names().resolve(handle))
            }
            _ => self.resolve_in_snapshots(handle),
        }
    }

    fn handle_of(&self, attr: &Attr, fileset: FilesetUuid) -> FileHandle {
        let handle = attr.handle(fileset);
        FileHandle {
            generation: handle.generation ^ self.core.salt_of(attr.ino, fileset),
            ..handle
        }
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        if parent.is_snapshots_directory() {
            return self.lookup_snapshot(caller, parent, name);
        }
        match self.files_of(parent)?.names().lookup_name(caller, parent, name) {
            Err(FsError::NotFound) => match self.virtual_of_name(parent, name) {
                Some(ino) => self.virtual_attr(ino),
                None => self.named(parent, name, Err(FsError::NotFound)),
            },
            found => self.named(parent, name, found),
        }
    }

    fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        if ino.is_virtual() {
            return Ok((Ino::root_of_slot(ino.slot()), FileKind::Directory));
        }
        // Bypasses the count of requests, since a display of paths is no use of the pool.
        self.core.enter(ino)?.names().parent_of(ino)
    }

    fn name_in(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        if ino.is_virtual() {
            return Ok(Pool::virtual_name(ino));
        }
        self.core.enter(directory)?.names().name_of(directory, ino)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Ok(files) = self.files_of(ino) {
            files.forget(ino, count);
        }
    }

    fn getattr(&self, _caller: &Caller, ino: Ino) -> FsResult<Attr> {
        if ino.is_virtual() {
            return self.virtual_attr(ino);
        }
        self.named(ino, b"", self.files_of(ino)?.attributes(ino))
    }

    fn access(&self, caller: &Caller, ino: Ino) -> FsResult<AccessRights> {
        if ino.is_virtual() {
            return Ok(Pool::snapshots_access());
        }
        self.named(ino, b"", self.files_of(ino)?.access_of(caller, ino))
    }

    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let files = self.files_of(ino)?;
        let urgency = if change.size_bytes.is_some() { Urgency::Name } else { Urgency::User };
        let changed = files.unsharing(urgency, || {
            files.set_attributes(caller, ino, change, around.as_deref_mut())
        });
        self.named(ino, b"", changed)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        self.refuse_snapshots_name(parent, name)?;
        let files = self.files_of(parent)?;
        let made = files.unsharing(Urgency::User, || {
            files.names().make(caller, (parent, name), new, None, around.as_deref_mut())
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
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        self.refuse_snapshots_name(parent, name)?;
        let files = self.files_of(parent)?;
        let made = files.unsharing(Urgency::User, || {
            files.names().make(caller, (parent, name), new, Some(target), around.as_deref_mut())
        });
        self.named(parent, name, made)
    }

    fn readlink(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        match Pool::virtual_target(ino) {
            Some(target) => Ok(target),
            None => self.named(ino, b"", self.files_of(ino)?.read_link(caller, ino)),
        }
    }

    fn link(
        &self,
        caller: &Caller,
        ino: Ino,
        parent: Ino,
        name: &[u8],
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        if ino.slot() != parent.slot() {
            return Err(FsError::CrossFileset);
        }
        self.files_of(parent)?;
        self.refuse_snapshots_name(parent, name)?;
        let files = self.files_of(ino)?;
        let linked = files.space_reclaim().with_reclaim(|| {
            files.unsharing(Urgency::User, || {
                files.names().link_name(caller, ino, (parent, name), around.as_deref_mut())
            })
        });
        self.named(parent, name, linked)
    }

    fn link_over(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        if ino.slot() != parent.slot() {
            return Err(FsError::CrossFileset);
        }
        self.files_of(parent)?;
        self.refuse_snapshots_name(parent, name)?;
        let files = self.files_of(ino)?;
        let linked = files.space_reclaim().with_reclaim(|| {
            files.unsharing(Urgency::User, || {
                files.names().link_name_over(caller, ino, (parent, name))
            })
        });
        self.named(parent, name, linked)
    }

    fn tmpfile(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        let files = self.files_of(parent)?;
        let made =
            files.unsharing(Urgency::User, || files.names().make_nameless(caller, parent, new));
        self.named(parent, b"", made)
    }

    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let files = self.files_of(parent)?;
        let removed = files.space_reclaim().with_reclaim(|| {
            files.unsharing(Urgency::Name, || {
                files.names().remove_name(caller, (parent, name), false, around.as_deref_mut())
            })
        });
        self.named(parent, name, self.keep_snapshots_name(parent, name, removed))
    }

    fn rmdir(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let files = self.files_of(parent)?;
        let removed = files.space_reclaim().with_reclaim(|| {
            files.unsharing(Urgency::Name, || {
                files.names().remove_name(caller, (parent, name), true, around.as_deref_mut())
            })
        });
        self.named(parent, name, self.keep_snapshots_name(parent, name, removed))
    }

    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        mut around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        if source.0.slot() != target.0.slot() {
            return Err(FsError::CrossFileset);
        }
        self.files_of(target.0)?;
        self.refuse_snapshots_name(target.0, target.1)?;
        let files = self.files_of(source.0)?;
        let renamed = files.space_reclaim().with_reclaim(|| {
            files.unsharing(Urgency::Name, || {
                files.names().rename_name(caller, source, target, mode, around.as_deref_mut())
            })
        });
        self.named(source.0, source.1, self.keep_snapshots_name(source.0, source.1, renamed))
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

    fn read_each(&self, asked: &[FileReadRequest<'_>], told: &mut ReadCallback<'_>) {
        let is_of_main = |asked: &FileReadRequest<'_>| self.core.is_of_main(asked.ino);
        if !asked.iter().all(is_of_main) {
            return self.read_one_by_one(asked, told);
        }
        self.files().read_files(asked, &mut |index, read| {
            let FileReadRequest { ino, offset, length_bytes, .. } = asked[index];
            let read = self.named(ino, b"", read);
            told(index, read.map_err(|error| error.in_bytes(offset, length_bytes)));
        });
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
        let files = self.files_of(ino)?;
        let written = files.write_some(caller, ino, offset, data, around);
        let written = written.and_then(|count| {
            let is_durable = stability == Stability::Durable;
            if is_durable { files.sync_file(caller, ino).map(|()| count) } else { Ok(count) }
        });
        self.named(ino, b"", written).map_err(|error| error.in_bytes(offset, data.len()))
    }

    fn run_deferred_work(&self) {
        if let Err(error) = self.core.space_reclaim().run_deferred_work() {
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
        if ino.is_snapshots_directory() {
            return self.list_snapshots(ino, cookie, each);
        }
        self.named(ino, b"", self.files_of(ino)?.names().list(caller, ino, cookie, each))
    }

    fn readdir_plus(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> FsResult<()> {
        if ino.is_snapshots_directory() {
            return self.list_snapshots(ino, cookie, &mut |entry| each(entry, None));
        }
        self.named(
            ino,
            b"",
            self.files_of(ino)?.names().list_with_attributes(caller, ino, cookie, each),
        )
    }

    fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        if ino.is_virtual() {
            return Ok(0);
        }
        self.named(ino, b"", self.files_of(ino)?.names().cookie_verifier(caller, ino))
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        if ino.is_virtual() {
            return Err(FsError::NoAttribute);
        }
        self.named(ino, b"", self.files_of(ino)?.xattrs().get_attribute(caller, ino, name))
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let files = self.files_of(ino)?;
        let set = files.unsharing(Urgency::User, || {
            files.xattrs().set_attribute(caller, ino, name, (value, mode), around.as_deref_mut())
        });
        self.named(ino, b"", set)
    }

    fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        if ino.is_virtual() {
            return Ok(Vec::new());
        }
        self.named(ino, b"", self.files_of(ino)?.xattrs().list_attributes(caller, ino))
    }

    fn removexattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        let files = self.files_of(ino)?;
        let removed = files.unsharing(Urgency::User, || {
            files.xattrs().remove_attribute(caller, ino, name, around.as_deref_mut())
        });
        self.named(ino, b"", removed)
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
        let dropped = if is_change {
            files.xattrs().drop_capability_before_write(caller, ino)
        } else {
            Ok(())
        };
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
        if ino.is_virtual() {
            return Ok(());
        }
        let files = self.files_of(ino)?;
        // A snapshot has no dirty data to sync.
        if files.is_of_snapshot() {
            return Ok(());
        }
        self.named(ino, b"", files.sync_file(caller, ino))
    }

    fn commit_then(&self, caller: &Caller, ino: Ino, _data_only: bool, completion: Completion) {
        let completion = self.named_when_done(ino, completion);
        match self.files_of(ino) {
            // A snapshot has no dirty data to sync. Its gate is left first, because the completion
            // callback may enter a gate.
            Ok(files) if files.is_of_snapshot() => {
                drop(files);
                completion(Ok(()));
            }
            Ok(files) => files.sync_file_then(caller, ino, completion),
            Err(error) => completion(Err(error)),
        }
    }

    fn commit_each(&self, caller: &Caller, files: Vec<(Ino, Completion)>) {
        let named = |(ino, completion)| (ino, self.named_when_done(ino, completion));
        self.core.writeback().sync_each_then(caller, files.into_iter().map(named).collect());
    }

    fn sync(&self) -> FsResult<()> {
        self.core.writeback().sync_all()
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
        // The size of the fileset is its usage and what it may still take, since other filesets
        // share the pool.
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
