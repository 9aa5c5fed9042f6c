//! Listing directories: a page of names at a time is copied under the directory's lock, and told
//! with no lock held.

use std::sync::Arc;

use format::anode::AnodeKind;
use format::directory::hash_in;
use format::ids::AnodeNo;

use super::access::READ;
use super::api::{Attr, Caller, DirEntry, FileKind, Ino};
use super::names::directory;
use super::readahead::Stretch;
use super::{Files, Vnode, VnodeState, attr_of_anode, kind_of};
use crate::dir::{self, Listed};
use crate::error::{FsError, FsResult};
use crate::fileset::places::AnodePlaces;

/// Cookie of `.`; hashes give cookies of 128 and more.
const COOKIE_SELF: u64 = 1;
/// Cookie of `..`.
const COOKIE_PARENT: u64 = 2;

/// A reference that was taken for a listing, with the vnode if it was in memory.
struct Taken {
    number: AnodeNo,
    vnode: Option<Arc<Vnode>>,
}

impl Files<'_> {
    /// Lists a directory; see [`super::api::FileSystem::readdir`].
    pub(crate) fn list(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let vnode = self.begin_listing(caller, ino)?;
        if !self.list_dots(&vnode, cookie, each)? {
            return Ok(());
        }
        let mut after = cookie.max(COOKIE_PARENT);
        loop {
            let listed = self.names_after(&vnode.state.read(), after)?;
            let Some(last) = listed.last() else { return Ok(()) };
            after = last.cookie;
            if !listed.into_iter().all(|name| each(&self.entry_of(name))) {
                return Ok(());
            }
        }
    }

    /// Lists a directory with attributes; see [`super::api::FileSystem::readdir_plus`].
    pub(crate) fn list_with_attributes(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> FsResult<()> {
        let vnode = self.begin_listing(caller, ino)?;
        if !self.list_dots(&vnode, cookie, &mut |entry| each(entry, None))? {
            return Ok(());
        }
        let mut after = cookie.max(COOKIE_PARENT);
        let mut told = Stretch { directory: vnode.number, after, count: 0 };
        self.fileset.readahead.arrive(vnode.number, after);
        loop {
            let (listed, taken) = self.names_and_references_after(caller, &vnode, after)?;
            let Some(last) = listed.last() else { return Ok(()) };
            after = last.cookie;
            let places = self.bring_in(&taken);
            let mut each = |entry: &DirEntry, attr: Option<&Attr>| {
                let is_told = each(entry, attr);
                if is_told {
                    told = Stretch { after: entry.cookie, count: told.count + 1, ..told };
                }
                is_told
            };
            if !self.tell_names(listed, taken, &places, &mut each) {
                if cookie > COOKIE_PARENT && told.count > 0 {
                    self.fileset.readahead.note(told);
                }
                return Ok(());
            }
        }
    }

    /// Tells each name with its attributes; returns whether more are wanted. References on what is
    /// not told are given back.
    fn tell_names(
        &self,
        listed: Vec<Listed>,
        taken: Vec<Taken>,
        places: &AnodePlaces,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> bool {
        let mut taken = taken.into_iter();
        for name in listed {
            let reference = taken.next();
            let ino = self.ino(name.target.anode);
            // Whoever needs what can't be read looks the name up, and learns why.
            let attr = reference.and_then(|taken| self.taken_attr(taken, places).ok());
            let generation = name.target.generation.0;
            let attr = attr.filter(|attr| {
                let is_it = attr.generation == generation;
                if !is_it {
                    self.forget(ino, 1);
                }
                is_it
            });
            if !each(&self.entry_of(name), attr.as_ref()) {
                if attr.is_some() {
                    self.forget(ino, 1);
                }
                taken.for_each(|rest| self.forget(self.ino(rest.number), 1));
                return false;
            }
        }
        true
    }

    /// Returns the attributes of a file on which there is a reference, which it takes back on
    /// failure. A file that is not in memory stays out of it: nobody asked for more than these.
    fn taken_attr(&self, taken: Taken, places: &AnodePlaces) -> FsResult<Attr> {
        let Taken { number, vnode } = taken;
        if vnode.is_some() {
            return self.referenced_attr(number, vnode);
        }
        let read = || self.fileset.anodes.read_anode_near(&self.store, places, number);
        match self.table.find_or_read(self.ino(number), read) {
            Ok(vnode) => self.referenced_attr(number, Some(vnode)),
            Err(Ok(Some(anode))) if anode.kind != AnodeKind::Internal => {
                Ok(attr_of_anode(self, &anode))
            }
            Err(_) => self.referenced_attr(number, None),
        }
    }

    /// Returns what a directory's cookies are compared by; see
    /// [`super::api::FileSystem::cookie_verifier`]. They go by a key that the directory has from
    /// its birth.
    pub(crate) fn cookie_verifier(&self, caller: &Caller, ino: Ino) -> FsResult<u64> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        let anode = directory(&state)?;
        self.check_access(caller, anode, READ)?;
        Ok(anode.generation.0)
    }

    fn begin_listing(&self, caller: &Caller, ino: Ino) -> FsResult<Arc<Vnode>> {
        let vnode = self.vnode(ino)?;
        {
            let state = vnode.state.read();
            let anode = directory(&state)?;
            self.check_access(caller, anode, READ)?;
            if anode.nlink == 0 {
                return Err(FsError::NotFound);
            }
        }
        self.touch_atime(caller, &vnode, &|_| true);
        Ok(vnode)
    }

    /// Returns the names of the page that has the first after `after`.
    fn names_after(&self, state: &VnodeState, after: u64) -> FsResult<Vec<Listed>> {
        let anode = directory(state)?;
        if anode.nlink == 0 {
            return Ok(Vec::new());
        }
        let listed = dir::list_after(&self.store, anode, after)?;
        debug_assert!(listed.iter().all(|name| hash_in(name.cookie) > 0));
        Ok(listed)
    }

    /// The same with a reference on each file, as if each name had been looked up; with none if
    /// `caller` may look nothing up here.
    fn names_and_references_after(
        &self,
        caller: &Caller,
        vnode: &Vnode,
        after: u64,
    ) -> FsResult<(Vec<Listed>, Vec<Taken>)> {
        let state = vnode.state.read();
        let listed = self.names_after(&state, after)?;
        if self.searched(caller, &state).is_err() {
            return Ok((listed, Vec::new()));
        }
        // While the names are locked: nobody frees the files between here and the references.
        let take = |name: &Listed| {
            let number = name.target.anode;
            Taken { number, vnode: self.table.add_reference(self.ino(number)) }
        };
        let taken = listed.iter().map(take).collect();
        Ok((listed, taken))
    }

    /// Brings the anodes of files that are not in memory there, with one call to the device.
    fn bring_in(&self, taken: &[Taken]) -> AnodePlaces {
        let unknown = taken.iter().filter(|taken| taken.vnode.is_none()).map(|taken| taken.number);
        let places = self.fileset.anodes.places_of(&self.store, unknown);
        self.store.cache.bring_in(places.iter().collect());
        places
    }

    fn entry_of(&self, name: Listed) -> DirEntry {
        DirEntry {
            ino: self.ino(name.target.anode),
            kind: kind_of(name.target.kind),
            cookie: name.cookie,
            name: name.name,
        }
    }

    /// Lists `.` and `..` if they come after `cookie`. Returns whether the caller wants more.
    fn list_dots(
        &self,
        vnode: &Arc<Vnode>,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<bool> {
        let (own, parent) = {
            let state = vnode.state.read();
            let anode = directory(&state)?;
            (anode.number, anode.parent)
        };
        let dots = [(COOKIE_SELF, &b"."[..], own), (COOKIE_PARENT, &b".."[..], parent)];
        for (dot, name, number) in dots {
            let entry = DirEntry {
                name: name.to_vec(),
                ino: self.ino(number),
                kind: FileKind::Directory,
                cookie: dot,
            };
            if dot > cookie && !each(&entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
