//! Names: lookup, creation, links and removal.

use crate::file::Names;
use std::collections::BTreeSet;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind, INLINE_BYTES_MAX, StorageMode};
use format::defect::DefectCode;
use format::hash::siphash13;
use format::ids::{AnodeNo, Epoch};
use runtime::planted;
use storage::device::AlignedBuffer;

use crate::alloc::Urgency;
use crate::api::{
    Attr, AttributeChange, Caller, FileHandle, FileKind, Ino, LINKS_MAX, NewInode,
    SYMLINK_BYTES_MAX, SetTime,
};
use crate::convert::{index_wide, wide};
use crate::dir::{self, DirentInsertPoint, DirentLookup, DirentTarget};
use crate::error::{FsError, FsResult};
use crate::file::access::{
    MODE_MASK, SEARCH, WRITE, check_ids, check_length, check_name, check_project, inherited,
    is_exempt, is_in_group, is_privileged, is_sound_time, mode_allowed,
};
use crate::file::acl::{ACCESS, DEFAULT, InheritedAccess, handed_down};
use crate::file::write::make_blocked;
use crate::file::xattr::LazyFilesetGuard;
use crate::file::{
    Core, OpenFileset, Vnode, VnodeState, anode_kind_of, attr_of, kind_of, placement, seen, tell,
    to_disk,
};
use crate::journal::LogCredits;
use crate::segment::{Block, BlockOwner, Segments};
use crate::store::Change;

const PATH_DEPTH_MAX: usize = 4096;
pub(crate) struct EarlierLookup {
    pub(crate) found: DirentLookup,
    /// Version of the directory. While it is unchanged, so are the names and their page indexes.
    data_version: u64,
}

pub(crate) fn directory(state: &VnodeState) -> FsResult<&Anode> {
    let anode = state.anode()?;
    if anode.kind != AnodeKind::Directory {
        return Err(FsError::NotDirectory);
    }
    Ok(anode)
}

pub(crate) fn target_of(anode: &Anode) -> DirentTarget {
    DirentTarget { anode: anode.number, generation: anode.generation, kind: anode.kind }
}

impl Core {
    /// Refuses a new name without room for its pages and for `pages` further ones.
    pub(crate) fn check_space_of(
        &self,
        fileset: &OpenFileset,
        pages: u64,
        urgency: Urgency,
    ) -> FsResult<()> {
        let fragments = (4 + pages) * u64::from(self.store.geometry().page_fragments());
        self.store.alloc.check_room(fragments, urgency, fileset.anodes.usage.counts().kept)
    }
}

impl Names<'_> {
    pub(crate) fn check_room(&self) -> FsResult<()> {
        self.check_space(0, Urgency::User)?;
        self.store.alloc.check_pages(0)
    }

    pub(crate) fn check_space(&self, pages: u64, urgency: Urgency) -> FsResult<()> {
        self.check_space_of(self.fileset, pages, urgency)
    }

    pub(crate) fn lookup_name(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let directory = self.vnode(parent)?;
        let (number, target, vnode) = {
            let state = directory.state.read();
            let mut target = None;
            let number = match name {
                b"." if state.anode()?.kind != AnodeKind::Directory => directory.number,
                b"." => self.searched(caller, &state)?.number,
                b".." => self.searched(caller, &state)?.parent,
                _ => {
                    check_name(name)?;
                    let found = self.find_name(caller, &state, name)?;
                    target.insert(found.ok_or(FsError::NotFound)?.target).anode
                }
            };
            // The reference is taken under the directory's lock, before the file could be freed.
            (number, target, self.table.add_reference(self.ino(number)))
        };
        let attr = self.referenced_attr(number, vnode)?;
        if let Some(target) = target
            && let Err(error) = self.check_target(&target, attr.generation)
        {
            self.table.drop_references(self.ino(number), 1);
            return Err(error);
        }
        Ok(attr)
    }

    /// Compares generations: after a lost write, a name could lead to another file.
    pub(crate) fn check_target(&self, target: &DirentTarget, generation: u64) -> FsResult<()> {
        if target.generation.0 == generation {
            return Ok(());
        }
        Err(self.store.journal.fail_corrupt(DefectCode::DR011.found(format!(
            "a name leads to {} of generation {}, and the file there is of generation \
             {generation}: a write of one of them was lost. Copy what can be read, and run \
             `holdfast check POOL`",
            target.anode, target.generation.0
        ))))
    }

    pub(crate) fn resolve(&self, handle: FileHandle) -> FsResult<Attr> {
        let vnode = self.vnode(handle.ino)?;
        // While the file is locked it can't be freed, nor its number reused.
        let state = vnode.state.read();
        let anode = state.anode()?;
        let is_gone = anode.nlink == 0 && !self.table.is_referenced(self.ino(anode.number));
        if is_gone || anode.generation.0 != handle.generation {
            return Err(FsError::Stale);
        }
        let attr = attr_of(self, &state)?;
        self.table.add_reference(self.ino(anode.number));
        Ok(attr)
    }

    pub(crate) fn find_name(
        &self,
        caller: &Caller,
        state: &VnodeState,
        name: &[u8],
    ) -> FsResult<Option<DirentLookup>> {
        let anode = self.searched(caller, state)?;
        check_length(name)?;
        dir::find(&self.store, None, anode, name)
    }

    fn check_new(
        &self,
        caller: &Caller,
        state: &VnodeState,
        name: &[u8],
    ) -> FsResult<(Anode, DirentInsertPoint)> {
        let anode = self.searched(caller, state)?;
        check_length(name)?;
        let spot = dir::spot_for(&self.store, anode, name)?.ok_or(FsError::Exists)?;
        self.check_access(caller, anode, WRITE | SEARCH)?;
        Ok((anode.clone(), spot))
    }

    /// Returns the attributes of a file with a reference just taken; drops the reference on
    /// failure.
    pub(super) fn referenced_attr(
        &self,
        number: AnodeNo,
        vnode: Option<Arc<Vnode>>,
    ) -> FsResult<Attr> {
        let vnode = vnode.map_or_else(|| self.vnode_of(number), Ok);
        let attr = vnode.and_then(|vnode| attr_of(self, &vnode.state.read()));
        attr.map_err(|error| {
            self.table.drop_references(self.ino(number), 1);
            if error == FsError::Stale { FsError::NotFound } else { error }
        })
    }

    /// Returns one path of a file, along the parents in anodes.
    pub(crate) fn path_of(&self, ino: Ino) -> FsResult<Vec<u8>> {
        let mut number = self.number(ino)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        for _ in 0..PATH_DEPTH_MAX {
            let parent = self.vnode_of(number)?.state.read().anode()?.parent;
            if parent == number {
                let mut path = Vec::new();
                for name in names.iter().rev() {
                    path.push(b'/');
                    path.extend_from_slice(name);
                }
                return Ok(if path.is_empty() { b"/".to_vec() } else { path });
            }
            names.push(self.name_in(parent, number)?);
            number = parent;
        }
        Err(FsError::Invalid)
    }

    pub(crate) fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        let anode = state.anode()?;
        Ok((self.ino(anode.parent), kind_of(anode.kind)))
    }

    pub(crate) fn name_of(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        self.name_in(self.number(directory)?, self.number(ino)?)
    }

    fn name_in(&self, parent: AnodeNo, child: AnodeNo) -> FsResult<Vec<u8>> {
        let vnode = self.vnode_of(parent)?;
        let state = vnode.state.read();
        dir::name_of(&self.store, directory(&state)?, child)?.ok_or(FsError::NotFound)
    }

    pub(crate) fn make(
        &self,
        caller: &Caller,
        at: (Ino, &[u8]),
        new: NewInode,
        link_target: Option<&[u8]>,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        if link_target.is_some_and(|target| target.is_empty()) {
            return Err(FsError::NotFound);
        }
        if link_target.is_some_and(|target| target.len() > SYMLINK_BYTES_MAX) {
            return Err(FsError::NameTooLong);
        }
        check_name(at.1)?;
        check_new_inode(&new, link_target.is_some())?;
        self.space_reclaim()
            .with_reclaim(|| self.make_once(caller, at, new, link_target, around.as_deref_mut()))
    }

    fn make_once(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        new: NewInode,
        link_target: Option<&[u8]>,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        let vnode = self.vnode(parent)?;
        let (mut change, mut state) = self.begin_making(&vnode)?;
        let before = seen(self, &around, &state)?;
        let (mut directory, spot) = match self.check_new(caller, &state, name) {
            Err(FsError::Exists) if new.verifier.is_some() => {
                let found = self.find_name(caller, &state, name)?.ok_or(FsError::NotFound)?;
                // The reference is taken under the directory's lock, before the file could be
                // freed.
                let made = self.table.add_reference(self.ino(found.target.anode));
                tell(self, around, before, &state)?;
                drop((state, change));
                return self.made_before(caller, found.target.anode, made, new);
            }
            checked => checked?,
        };
        check_kind(caller, new.kind)?;
        check_owner(caller, &directory, &new)?;
        self.check_room()?;
        let mut fileset = LazyFilesetGuard::new(self);
        let mut anode = self.make_anode(caller, &mut change, &mut fileset, &directory, new)?;
        let long = self.put_link_target(caller, &mut change, &mut anode, link_target)?;
        let target = target_of(&anode);
        let store = &self.store;
        let result = dir::insert_at(store, &mut change, &mut directory, &spot, name, target)
            .and_then(|()| {
                directory.mtime = anode.btime;
                directory.ctime = anode.btime;
                directory.data_version += 1;
                directory.nlink += u32::from(new.kind == FileKind::Directory);
                fileset.write_anode(&mut change, &directory)?;
                fileset.write_anode(&mut change, &anode)?;
                change.admit(is_exempt(caller))
            });
        if let Err(error) = result {
            if let Some(long) = &long {
                self.segments.kill(long);
            }
            return Err(error);
        }
        // V1: the locked vnode is in the table before the anode can be found on its page.
        let child = Arc::new(Vnode::new(self.ino(anode.number), anode));
        let mut child_state = child.state.write();
        self.table.insert(Arc::clone(&child));
        let applied = change.end();
        fileset.settle(applied.lsn);
        self.settle_link_target(long, applied.log_data);
        self.replace(&mut state, directory, applied.class);
        child_state.class = applied.class;
        tell(self, around, before, &state)?;
        attr_of(self, &child_state)
    }

    /// Completes an exclusive creation whose name exists. The owner must be the same too, since
    /// other users may guess the verifier from the times.
    fn made_before(
        &self,
        caller: &Caller,
        number: AnodeNo,
        vnode: Option<Arc<Vnode>>,
        new: NewInode,
    ) -> FsResult<Attr> {
        let attr = self.referenced_attr(number, vnode)?;
        let is_same = new.verifier.is_some_and(|verifier| {
            [attr.atime, attr.mtime] == NewInode::times_of(verifier)
                && (attr.kind, attr.size_bytes) == (new.kind, 0)
                && attr.uid == new.uid.unwrap_or(caller.uid)
        });
        if is_same {
            return Ok(attr);
        }
        self.forget(attr.ino, 1);
        Err(FsError::Exists)
    }

    /// Allocates an anode with inherited access lists, to be written by the caller. May need
    /// [`LogCredits::LARGE_NAMES`].
    pub(crate) fn make_anode(
        &self,
        caller: &Caller,
        change: &mut Change<'_>,
        fileset: &mut LazyFilesetGuard<'_>,
        directory: &Anode,
        new: NewInode,
    ) -> FsResult<Anode> {
        let number = fileset.guard().allocate_anode(&self.store, change)?;
        let (mut anode, given) = self.new_anode(caller, change, directory, number, new)?;
        for (name, list) in [(ACCESS, given.access), (DEFAULT, given.default)] {
            if let Some(list) = list {
                self.xattrs().put_value(change, fileset, &mut anode, name, &list)?;
            }
        }
        Ok(anode)
    }

    fn new_anode(
        &self,
        caller: &Caller,
        change: &Change<'_>,
        directory: &Anode,
        number: AnodeNo,
        new: NewInode,
    ) -> FsResult<(Anode, InheritedAccess)> {
        let kind = anode_kind_of(new.kind);
        let shift = if kind == AnodeKind::Directory { 12 } else { self.fileset.anodes.block_shift };
        let mut anode = Anode::new(kind, number, self.fileset.anodes.family, shift);
        let now = self.now();
        anode.generation = self.generation_of(change);
        anode.birth = change.epoch();
        let (mode, gid) = inherited(caller, directory, new.kind, new.mode & MODE_MASK);
        let default = self.xattrs().default_acl(directory)?;
        let given = handed_down(default.as_ref(), kind, mode, new.umask);
        (anode.mode, anode.gid) = (given.mode, gid);
        if let Some(gid) = new.gid {
            anode.gid = gid;
            if kind != AnodeKind::Directory {
                anode.mode = mode_allowed(caller, anode.mode, gid);
            }
        }
        anode.nlink = if kind == AnodeKind::Directory { 2 } else { 1 };
        anode.uid = new.uid.unwrap_or(caller.uid);
        anode.rdev = if is_device(new.kind) { new.rdev } else { 0 };
        anode.parent = directory.number;
        anode.project = directory.project;
        anode.placement = placement::handed_down(directory, kind);
        if kind == AnodeKind::Directory {
            anode.key = self.new_key(number, change.epoch());
        }
        if kind != AnodeKind::Regular {
            make_blocked(&mut anode);
        }
        let time = |set: Option<SetTime>| match set {
            None | Some(SetTime::Now) => now,
            Some(SetTime::To(time)) => to_disk(time),
        };
        (anode.atime, anode.mtime) = match new.verifier {
            Some(verifier) => NewInode::times_of(verifier).map(to_disk).into(),
            None => (time(new.atime), time(new.mtime)),
        };
        (anode.ctime, anode.btime) = (now, now);
        Ok((anode, given))
    }

    /// Returns the hash key of a directory, derived from a secret. Handles disclose number and
    /// epoch, and with a known key a user could choose names that collide.
    fn new_key(&self, number: AnodeNo, epoch: Epoch) -> [u64; 2] {
        let (low, high) = self.segments.secret().split_at(8);
        let secret =
            [low, high].map(|half| half.first_chunk().map_or(0, |h| u64::from_le_bytes(*h)));
        let half = |half: u64| {
            let of = [number.0, epoch.0, half].map(u64::to_le_bytes);
            siphash13(secret, of.as_flattened())
        };
        [half(0), half(1)]
    }

    /// Starts the creation of a file. Inherited access lists outside the anode need more log
    /// credits.
    pub(crate) fn begin_making<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
    ) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        let is_large = |state: &VnodeState| FsResult::Ok(state.anode()?.acl != AnodeNo(0));
        loop {
            let takes_large = is_large(&vnode.state.read())?;
            let reservation = if takes_large { LogCredits::LARGE_NAMES } else { LogCredits::SMALL };
            let change = self.begin(reservation)?;
            let state = vnode.state.write();
            if takes_large || !is_large(&state)? {
                return Ok((change, state));
            }
        }
    }

    /// Stores a link's target in the anode, or in a block as in-line log data.
    pub(super) fn put_link_target(
        &self,
        caller: &Caller,
        change: &mut Change<'_>,
        anode: &mut Anode,
        target: Option<&[u8]>,
    ) -> FsResult<Option<Arc<Block>>> {
        let Some(target) = target else { return Ok(None) };
        anode.size_bytes = wide(target.len());
        if target.len() <= INLINE_BYTES_MAX {
            anode.storage = StorageMode::Inline;
            anode.root[..target.len()].copy_from_slice(target);
            return Ok(None);
        }
        let owner = BlockOwner {
            fileset: anode.fileset,
            anode: anode.number,
            generation: anode.generation,
            index: 0,
            block_shift: anode.block_shift,
            directory: anode.parent,
            placement: anode.placement,
        };
        let mut buffer = AlignedBuffer::zeroed(index_wide(anode.block_bytes()));
        buffer[..target.len()].copy_from_slice(target);
        let anodes = &self.fileset.anodes;
        let payer = anodes.payer(&self.store, anode, is_exempt(caller))?;
        let (block, pointer, data) =
            self.segments.place_for_log(&payer, owner, buffer.into(), target.len())?;
        anode.set_root_pointer(0, Some(&pointer));
        anode.fragments += u64::from(pointer.fragments);
        if let Err(error) = change.install(&[Segments::extent(&pointer)]) {
            self.segments.kill(&block);
            return Err(error);
        }
        change.note_usage(&anodes.usage, 0, block.accepted_fragments());
        if let Some(owners) = block.owners() {
            change.note_waited(&anodes.usage, owners, block.accepted_fragments());
        }
        change.tx_mut().add_log_data(pointer.place, block.log_data_owner(&pointer), data);
        Ok(Some(block))
    }

    /// Stores a received target that is too long for the anode.
    pub(crate) fn put_long_target(&self, base: &Anode, target: &[u8]) -> FsResult<()> {
        let mut change = self.begin(LogCredits::LARGE)?;
        let mut anode = Anode { birth: change.epoch(), ..base.clone() };
        let long = self.put_link_target(&Caller::root(), &mut change, &mut anode, Some(target))?;
        let written = self.fileset.anodes.write_anode(&self.store, &mut change, &anode);
        if let Err(error) = written {
            if let Some(long) = &long {
                self.segments.kill(long);
            }
            return Err(error);
        }
        let applied = change.end();
        self.settle_link_target(long, applied.log_data);
        Ok(())
    }

    fn settle_link_target(&self, long: Option<Arc<Block>>, id: Option<crate::journal::LogDataId>) {
        if let (Some(block), Some(id)) = (long, id) {
            let fragments = block.fragments();
            self.segments.installed([(&block, fragments)]);
            self.segments.note_logged(&BTreeSet::from([block.place]), id);
        }
    }

    pub(crate) fn link_name(
        &self,
        caller: &Caller,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        check_name(name)?;
        let (file, directory) = (self.vnode(ino)?, self.vnode(parent)?);
        let mut change = self.begin(LogCredits::SMALL)?;
        if Arc::ptr_eq(&file, &directory) {
            self.check_new(caller, &directory.state.read(), name)?;
            return Err(FsError::NotPermitted);
        }
        let (mut file_state, mut directory_state) = lock_two(&file, &directory);
        let before = seen(self, &around, &directory_state)?;
        let (mut directory, spot) = self.check_new(caller, &directory_state, name)?;
        let mut anode = file_state.anode()?.clone();
        if anode.kind == AnodeKind::Directory {
            return Err(FsError::NotPermitted);
        }
        self.check_link(caller, &anode)?;
        let mut fileset = LazyFilesetGuard::new(self);
        if anode.nlink == 0 {
            self.unorphan(&mut fileset, &mut change, &file_state, &mut anode)?;
        }
        if anode.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        check_project(&anode, &directory)?;
        self.check_space(0, Urgency::User)?;
        let target = target_of(&anode);
        dir::insert_at(&self.store, &mut change, &mut directory, &spot, name, target)?;
        anode.nlink += 1;
        anode.ctime = self.now();
        touch(&mut directory, anode.ctime);
        fileset.write_anode(&mut change, &directory)?;
        fileset.write_anode(&mut change, &anode)?;
        change.admit(is_exempt(caller))?;
        let applied = change.end();
        fileset.settle(applied.lsn);
        self.table.mark_named(file.ino);
        self.replace(&mut directory_state, directory, applied.class);
        self.replace(&mut file_state, anode, applied.class);
        self.table.add_reference(file.ino);
        tell(self, around, before, &directory_state)?;
        attr_of(self, &file_state)
    }

    pub(crate) fn replace(&self, state: &mut VnodeState, anode: Anode, class: u64) {
        if anode.kind == AnodeKind::Directory {
            state.size_bytes = anode.size_bytes;
        }
        state.anode = Some(anode);
        state.class = class;
    }

    pub(crate) fn remove_name(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        wants_directory: bool,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.check_writable()?;
        check_name(name)?;
        let directory = self.vnode(parent)?;
        let mut gone = None;
        loop {
            let seen = self.child_of(caller, &directory, name)?;
            let number = seen.found.target.anode;
            let child = match self.vnode_of(number) {
                // The file was removed since the lookup: retry. If it is found again, the dirent is
                // damaged.
                Err(FsError::Stale) if gone.replace(number) != Some(number) => continue,
                child => child?,
            };
            let locked = (&directory, &child, around.as_deref_mut());
            if let Some(is_last) =
                self.remove_locked(caller, locked, name, &seen, wants_directory)?
            {
                if is_last && !self.table.is_referenced(self.ino(number)) {
                    self.doom(&child);
                }
                return Ok(());
            }
        }
    }

    pub(crate) fn child_of(
        &self,
        caller: &Caller,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> FsResult<EarlierLookup> {
        let state = directory.state.read();
        let found = self.find_name(caller, &state, name)?.ok_or(FsError::NotFound)?;
        Ok(EarlierLookup { found, data_version: state.anode()?.data_version })
    }

    /// Removes `name` if it still leads to `child`, and else returns `None`. Returns whether it was
    /// the child's last name.
    fn remove_locked(
        &self,
        caller: &Caller,
        (directory, child, around): (&Arc<Vnode>, &Arc<Vnode>, Option<&mut AttributeChange>),
        name: &[u8],
        looked_up: &EarlierLookup,
        wants_directory: bool,
    ) -> FsResult<Option<bool>> {
        let mut change = self.begin(LogCredits::SMALL)?;
        let (mut directory_state, mut child_state) = lock_two(directory, child);
        let mut directory = self::directory(&directory_state)?.clone();
        let before = seen(self, &around, &directory_state)?;
        let found = if directory.data_version == looked_up.data_version {
            looked_up.found.again(&self.store, &directory)?
        } else {
            dir::find(&self.store, None, &directory, name)?.ok_or(FsError::NotFound)?
        };
        if found.target.anode != child.number {
            return Ok(None);
        }
        let mut anode = child_state.anode()?.clone();
        self.check_target(&found.target, anode.generation.0)?;
        self.check_removal(caller, &directory, &anode)?;
        check_removable(&anode, wants_directory)?;
        dir::remove(&self.store, &mut change, &mut directory, &found)?;
        let now = self.now();
        touch(&mut directory, now);
        let mut fileset = LazyFilesetGuard::new(self);
        let is_last = drop_link(&mut anode, now);
        if is_last {
            if anode.kind == AnodeKind::Directory {
                directory.nlink -= 1;
            }
            self.orphan(fileset.guard(), &mut change, &mut anode)?;
        }
        fileset.write_anode(&mut change, &directory)?;
        fileset.write_anode(&mut change, &anode)?;
        let applied = change.end();
        fileset.settle(applied.lsn);
        self.replace(&mut directory_state, directory, applied.class);
        self.replace(&mut child_state, anode, applied.class);
        tell(self, around, before, &directory_state)?;
        Ok(Some(is_last))
    }
}

pub(crate) fn check_new_inode(new: &NewInode, has_link_target: bool) -> FsResult<()> {
    check_ids(new.uid, new.gid)?;
    let is_sound = match new.verifier {
        Some(_) => new.kind == FileKind::Regular && (new.atime, new.mtime) == (None, None),
        None => [new.atime, new.mtime].into_iter().flatten().all(is_sound_time),
    };
    let is_link = new.kind == FileKind::Symlink;
    if is_sound && is_link == has_link_target { Ok(()) } else { Err(FsError::Invalid) }
}

/// Refuses an owner or group that the caller could not set with chown(2).
pub(crate) fn check_owner(caller: &Caller, directory: &Anode, new: &NewInode) -> FsResult<()> {
    let (_, inherited) = inherited(caller, directory, new.kind, new.mode);
    let may_set_uid = new.uid.is_none_or(|uid| uid == caller.uid);
    let may_set_gid = new.gid.is_none_or(|gid| gid == inherited || is_in_group(caller, gid));
    let may = is_privileged(caller) || may_set_uid && may_set_gid;
    if may { Ok(()) } else { Err(FsError::NotPermitted) }
}

fn is_device(kind: FileKind) -> bool {
    matches!(kind, FileKind::BlockDevice | FileKind::CharDevice)
}

fn check_kind(caller: &Caller, kind: FileKind) -> FsResult<()> {
    if is_device(kind) && !is_privileged(caller) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

pub(crate) fn drop_link(anode: &mut Anode, now: format::anode::DiskTime) -> bool {
    anode.ctime = now;
    if anode.kind == AnodeKind::Directory {
        anode.nlink = 0;
    } else {
        anode.nlink = anode.nlink.saturating_sub(1);
    }
    anode.nlink == 0
}

pub(crate) fn touch(directory: &mut Anode, now: format::anode::DiskTime) {
    directory.mtime = now;
    directory.ctime = now;
    directory.data_version += 1;
}

pub(crate) fn check_removable(anode: &Anode, wants_directory: bool) -> FsResult<()> {
    match (anode.kind == AnodeKind::Directory, wants_directory) {
        (true, false) => Err(FsError::IsDirectory),
        (false, true) => Err(FsError::NotDirectory),
        (true, true) if anode.entries > 0 && !planted!(NonEmptyDirectoryRemoved) => {
            Err(FsError::NotEmpty)
        }
        _ => Ok(()),
    }
}

type StateGuard<'v> = runtime::sync::RwLockWriteGuard<'v, VnodeState>;

/// Locks by rising number; returns the guards in order of arguments.
pub(crate) fn lock_two<'v>(
    first: &'v Arc<Vnode>,
    second: &'v Arc<Vnode>,
) -> (StateGuard<'v>, StateGuard<'v>) {
    if first.number < second.number {
        let first = first.state.write();
        (first, second.state.write())
    } else {
        let second = second.state.write();
        (first.state.write(), second)
    }
}

#[cfg(test)]
mod tests {
    use format::page::PageKind;

    use super::*;
    use crate::api::FileSystem;
    use crate::container::content_owner;
    use crate::file::Files;
    use crate::transfer::leave::tests::{part, pool_with_one};

    /// Goal: a removal finds the name although, since the lookup, its page was unshared, and the
    /// old one freed with its snapshot.
    #[test]
    fn a_name_is_removed_where_its_page_is_now() {
        let (pool, _) = pool_with_one();
        let (caller, root) = (Caller::root(), pool.root());
        for number in 0..40 {
            let name = format!("file {number}");
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, root, name.as_bytes(), new, None).expect("there is room");
        }
        let core = pool.core();
        let (path, snapshot) = ([part("root")], part("c"));
        core.snapshotter().create_snapshot(&path, &snapshot, [2; 16]).expect("there is room");

        let fileset = &core.filesets.main;
        let files = Files { core, fileset };
        let directory = files.vnode(root).expect("it is there");
        let seen = files.names().child_of(&caller, &directory, b"file 7").expect("it is there");
        let owner = {
            let state = directory.state.read();
            content_owner(state.anode().expect("it is there"), 0)
        };
        core.unshare(fileset, (PageKind::Directory, owner)).expect("there is room");
        core.snapshotter().delete_snapshot(&path, &snapshot).expect("nothing holds it");

        let child = files.vnode_of(seen.found.target.anode).expect("it is there");
        let removed = files.names().remove_locked(
            &caller,
            (&directory, &child, None),
            b"file 7",
            &seen,
            false,
        );
        assert_eq!(removed, Ok(Some(true)));
        let gone = pool.lookup(&caller, root, b"file 7");
        assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
        pool.lookup(&caller, root, b"file 8").expect("the others stay");
    }
}
