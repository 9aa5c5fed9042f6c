//! Names: looking them up, making them, taking them away.

use std::collections::BTreeSet;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind, INLINE_BYTES_MAX, StorageMode};
use format::defect::DefectCode;
use format::hash::siphash13;
use format::ids::{AnodeNo, Epoch};
use runtime::planted::{self, Planted};
use storage::device::AlignedBuffer;

use super::access::{
    MODE_MASK, SEARCH, WRITE, check_ids, check_length, check_name, check_project, inherited,
    is_exempt, is_in_group, is_privileged, is_sound_time, mode_allowed,
};
use super::acl::{ACCESS, DEFAULT, Inherited, handed_down};
use super::api::{
    Around, Attr, Caller, FileKind, Handle, Ino, LINKS_MAX, NewInode, SYMLINK_BYTES_MAX, SetTime,
};
use super::file::make_blocked;
use super::placement;
use super::xattr::Lazy;
use super::{
    Core, Files, Fileset, Vnode, VnodeState, anode_kind_of, attr_of, kind_of, seen, tell, to_disk,
};
use crate::alloc::Urgency;
use crate::convert::{index_wide, wide};
use crate::dir::{self, Found, Spot, Target};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;
use crate::segment::{Block, BlockOwner, Segments};
use crate::store::Change;

/// Most directories above a file that a search for its path looks at.
const PATH_DEPTH_MAX: usize = 4096;

/// A name as it was when its directory was looked through.
pub(crate) struct Seen {
    pub(crate) found: Found,
    /// Version of the directory then: its names are the same, on pages of the same numbers, as long
    /// as it has that.
    data_version: u64,
}

/// Returns the anode of a directory that is still there.
pub(crate) fn directory(state: &VnodeState) -> FsResult<&Anode> {
    let anode = state.anode()?;
    if anode.kind != AnodeKind::Directory {
        return Err(FsError::NotDirectory);
    }
    Ok(anode)
}

pub(crate) fn target_of(anode: &Anode) -> Target {
    Target { anode: anode.number, generation: anode.generation, kind: anode.kind }
}

impl Core {
    /// New names are refused while the pool has no room for their pages, and for `pages` besides.
    pub(super) fn check_space_of(
        &self,
        fileset: &Fileset,
        pages: u64,
        urgency: Urgency,
    ) -> FsResult<()> {
        let fragments = (4 + pages) * u64::from(self.store.geometry().page_fragments());
        self.store.alloc.check_room(fragments, urgency, fileset.anodes.usage.counts().kept)
    }
}

impl Files<'_> {
    /// Refuses a new file where there is no room for it.
    pub(crate) fn check_room(&self) -> FsResult<()> {
        self.check_space(0, Urgency::User)?;
        self.store.alloc.check_pages(0)
    }

    /// As [`Core::check_space_of`], of this fileset.
    pub(crate) fn check_space(&self, pages: u64, urgency: Urgency) -> FsResult<()> {
        self.check_space_of(self.fileset, pages, urgency)
    }

    /// Looks a name up and takes a reference.
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
            // While the name is locked: nobody frees the file between here and the reference.
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

    /// Holds what a name says of its file against the file: an older page of either would lead to
    /// the bytes of another file.
    pub(crate) fn check_target(&self, target: &Target, generation: u64) -> FsResult<()> {
        if target.generation.0 == generation {
            return Ok(());
        }
        Err(self.store.journal.fail_corrupt(DefectCode::DR011.found(format!(
            "a name leads to {} of generation {}, and the file there is of generation \
             {generation}: a write of one of them was lost. Copy what can be read, and run \
             holdfast check",
            target.anode, target.generation.0
        ))))
    }

    /// Finds what a handle names, and takes a reference; see
    /// [`super::api::FileSystem::resolve`].
    pub(crate) fn resolve(&self, handle: Handle) -> FsResult<Attr> {
        let vnode = self.vnode(handle.ino)?;
        // Nobody frees the file, and so nobody gets its number, while it is locked.
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

    /// Finds what `name` in a directory names, if anything, as every path walk does.
    pub(crate) fn find_name(
        &self,
        caller: &Caller,
        state: &VnodeState,
        name: &[u8],
    ) -> FsResult<Option<Found>> {
        let anode = self.searched(caller, state)?;
        check_length(name)?;
        dir::find(&self.store, None, anode, name)
    }

    /// Returns the anode of a directory that `name` can be added to, and where it goes.
    fn check_new(
        &self,
        caller: &Caller,
        state: &VnodeState,
        name: &[u8],
    ) -> FsResult<(Anode, Spot)> {
        let anode = self.searched(caller, state)?;
        check_length(name)?;
        let spot = dir::spot_for(&self.store, anode, name)?.ok_or(FsError::Exists)?;
        self.check_access(caller, anode, WRITE | SEARCH)?;
        Ok((anode.clone(), spot))
    }

    /// Returns the attributes of a file that was just given a reference, and whose vnode that is if
    /// it was in memory; takes the reference back on failure.
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

    /// Returns a path from the root to a file: one of its names, by the parents that anodes
    /// remember.
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

    /// Returns the directory that a file remembers as that of a name of it, and the file's kind.
    pub(crate) fn parent_of(&self, ino: Ino) -> FsResult<(Ino, FileKind)> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        let anode = state.anode()?;
        Ok((self.ino(anode.parent), kind_of(anode.kind)))
    }

    /// Returns the name of a file in a directory.
    pub(crate) fn name_of(&self, directory: Ino, ino: Ino) -> FsResult<Vec<u8>> {
        self.name_in(self.number(directory)?, self.number(ino)?)
    }

    fn name_in(&self, parent: AnodeNo, child: AnodeNo) -> FsResult<Vec<u8>> {
        let vnode = self.vnode_of(parent)?;
        let state = vnode.state.read();
        dir::name_of(&self.store, directory(&state)?, child)?.ok_or(FsError::NotFound)
    }

    /// Makes a file; see [`super::api::FileSystem::create`]. Takes a reference.
    pub(crate) fn make(
        &self,
        caller: &Caller,
        at: (Ino, &[u8]),
        new: NewInode,
        link_target: Option<&[u8]>,
        mut around: Option<&mut Around>,
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
        self.with_reclaim(|| self.make_once(caller, at, new, link_target, around.as_deref_mut()))
    }

    fn make_once(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        new: NewInode,
        link_target: Option<&[u8]>,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let vnode = self.vnode(parent)?;
        let (mut change, mut state) = self.begin_making(&vnode)?;
        let before = seen(self, &around, &state)?;
        let (mut directory, spot) = match self.check_new(caller, &state, name) {
            Err(FsError::Exists) if new.verifier.is_some() => {
                let found = self.find_name(caller, &state, name)?.ok_or(FsError::NotFound)?;
                // While the name is locked: nobody frees the file before it is looked at.
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
        let mut fileset = Lazy::new(self);
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
        // V1: the vnode is there, locked, before anybody can find the anode on its page.
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

    /// Answers an exclusive creation whose name is there, on which there is a reference: the file
    /// was made by the same request, or it is in the way. Another's file is in the way: whoever
    /// guesses its verifier, which are its times, must not take it for his own.
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

    /// Takes an anode into use for a new file in `directory`, with the access lists that are handed
    /// down to it; the caller writes it. It may need [`Reservation::LARGE_NAMES`].
    pub(crate) fn make_anode(
        &self,
        caller: &Caller,
        change: &mut Change<'_>,
        fileset: &mut Lazy<'_>,
        directory: &Anode,
        new: NewInode,
    ) -> FsResult<Anode> {
        let number = fileset.guard().allocate_anode(&self.store, change)?;
        let (mut anode, given) = self.new_anode(caller, change, directory, number, new)?;
        for (name, list) in [(ACCESS, given.access), (DEFAULT, given.default)] {
            if let Some(list) = list {
                self.put_value(change, fileset, &mut anode, name, &list)?;
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
    ) -> FsResult<(Anode, Inherited)> {
        let kind = anode_kind_of(new.kind);
        let shift = if kind == AnodeKind::Directory { 12 } else { self.fileset.anodes.block_shift };
        let mut anode = Anode::new(kind, number, self.fileset.anodes.family, shift);
        let now = self.now();
        anode.generation = self.generation_of(change);
        anode.birth = change.epoch();
        let (mode, gid) = inherited(caller, directory, new.kind, new.mode & MODE_MASK);
        let default = self.default_acl(directory)?;
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
        if !planted::is(Planted::ProjectNotInherited) {
            anode.project = directory.project;
        }
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

    /// Returns the key of the hash of a new directory. Number and epoch can be seen from outside,
    /// in handles; whoever knew the key could choose names that meet in one page.
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

    /// Starts a change that makes a file in a directory. One whose access lists lie outside of its
    /// anode may hand down as much, so more is reserved.
    pub(crate) fn begin_making<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
    ) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        let is_large = |state: &VnodeState| FsResult::Ok(state.anode()?.acl != AnodeNo(0));
        loop {
            let takes_large = is_large(&vnode.state.read())?;
            let reservation =
                if takes_large { Reservation::LARGE_NAMES } else { Reservation::SMALL };
            let change = self.begin(reservation)?;
            let state = vnode.state.write();
            if takes_large || !is_large(&state)? {
                return Ok((change, state));
            }
        }
    }

    /// Stores the target of a symbolic link: in the anode, or in a block that is inline log data.
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

    /// Gives a link that was received its target, which is too long for its anode.
    pub(super) fn put_long_target(&self, base: &Anode, target: &[u8]) -> FsResult<()> {
        let mut change = self.begin(Reservation::LARGE)?;
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

    /// Gives a file one more name; see [`super::api::FileSystem::link`]. Takes a reference.
    pub(crate) fn link_name(
        &self,
        caller: &Caller,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        check_name(name)?;
        let (file, directory) = (self.vnode(ino)?, self.vnode(parent)?);
        let mut change = self.begin(Reservation::SMALL)?;
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
        let mut fileset = Lazy::new(self);
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
        if !planted::is(Planted::NameNotAdmitted) {
            change.admit(is_exempt(caller))?;
        }
        let applied = change.end();
        fileset.settle(applied.lsn);
        self.table.mark_named(file.ino);
        self.replace(&mut directory_state, directory, applied.class);
        self.replace(&mut file_state, anode, applied.class);
        self.table.add_reference(file.ino);
        tell(self, around, before, &directory_state)?;
        attr_of(self, &file_state)
    }

    /// Puts an anode that a transaction has written into its vnode.
    pub(crate) fn replace(&self, state: &mut VnodeState, anode: Anode, class: u64) {
        if anode.kind == AnodeKind::Directory {
            state.size_bytes = anode.size_bytes;
        }
        state.anode = Some(anode);
        state.class = class;
    }

    /// Takes a name away; see [`super::api::FileSystem::unlink`] and `rmdir`.
    pub(crate) fn remove_name(
        &self,
        caller: &Caller,
        (parent, name): (Ino, &[u8]),
        wants_directory: bool,
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.check_writable()?;
        check_name(name)?;
        let directory = self.vnode(parent)?;
        let mut gone = None;
        loop {
            let seen = self.child_of(caller, &directory, name)?;
            let number = seen.found.target.anode;
            let child = match self.vnode_of(number) {
                // Somebody has removed it since the look; a second time the name is damaged.
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

    /// Returns the number of the file that `name` leads to now.
    pub(crate) fn child_of(
        &self,
        caller: &Caller,
        directory: &Arc<Vnode>,
        name: &[u8],
    ) -> FsResult<Seen> {
        let state = directory.state.read();
        let found = self.find_name(caller, &state, name)?.ok_or(FsError::NotFound)?;
        Ok(Seen { found, data_version: state.anode()?.data_version })
    }

    /// Takes `name` away from `directory`, if it still leads to `child`. Returns whether that was
    /// the last name; `None` if the name leads elsewhere by now.
    fn remove_locked(
        &self,
        caller: &Caller,
        (directory, child, around): (&Arc<Vnode>, &Arc<Vnode>, Option<&mut Around>),
        name: &[u8],
        looked_up: &Seen,
        wants_directory: bool,
    ) -> FsResult<Option<bool>> {
        let mut change = self.begin(Reservation::SMALL)?;
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
        let mut fileset = Lazy::new(self);
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

/// Refuses what makes no sense, whoever asks.
pub(crate) fn check_new_inode(new: &NewInode, has_link_target: bool) -> FsResult<()> {
    check_ids(new.uid, new.gid)?;
    let is_sound = match new.verifier {
        Some(_) => new.kind == FileKind::Regular && (new.atime, new.mtime) == (None, None),
        None => [new.atime, new.mtime].into_iter().flatten().all(is_sound_time),
    };
    let is_link = new.kind == FileKind::Symlink;
    if is_sound && is_link == has_link_target { Ok(()) } else { Err(FsError::Invalid) }
}

/// Refuses an owner or a group that chown(2) would not let the caller give the new file.
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

/// Refuses devices to all but the superuser.
fn check_kind(caller: &Caller, kind: FileKind) -> FsResult<()> {
    if is_device(kind) && !is_privileged(caller) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Takes one link away; returns whether it was the last.
pub(crate) fn drop_link(anode: &mut Anode, now: format::anode::DiskTime) -> bool {
    if !planted::is(Planted::CtimeMissed) {
        anode.ctime = now;
    }
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
        (true, true) if anode.entries > 0 && !planted::is(Planted::NonEmptyDirectoryRemoved) => {
            Err(FsError::NotEmpty)
        }
        _ => Ok(()),
    }
}

type StateGuard<'v> = runtime::sync::RwLockWriteGuard<'v, VnodeState>;

/// Locks two different vnodes, in order of their numbers; returns them as they were given.
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
    use crate::container::content_owner;
    use crate::vnode::api::FileSystem;
    use crate::vnode::leave::tests::{part, pool_with_one};

    /// Goal: between the look at a name and its removal somebody copies the page that it is on, and
    /// the clone that held the old one is deleted, which frees that.
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
        let (path, clone) = ([part("root")], part("c"));
        core.create_clone(&path, &clone, [2; 16]).expect("there is room");

        let fileset = &core.filesets.main;
        let files = Files { core, fileset };
        let directory = files.vnode(root).expect("it is there");
        let seen = files.child_of(&caller, &directory, b"file 7").expect("it is there");
        let owner = {
            let state = directory.state.read();
            content_owner(state.anode().expect("it is there"), 0)
        };
        core.unshare(fileset, (PageKind::Directory, owner)).expect("there is room");
        core.delete_clone(&path, &clone).expect("nothing holds it");

        let child = files.vnode_of(seen.found.target.anode).expect("it is there");
        let removed =
            files.remove_locked(&caller, (&directory, &child, None), b"file 7", &seen, false);
        assert_eq!(removed, Ok(Some(true)));
        let gone = pool.lookup(&caller, root, b"file 7");
        assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
        pool.lookup(&caller, root, b"file 8").expect("the others stay");
    }
}
