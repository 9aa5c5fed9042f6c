//! Directory listing. Names are copied page by page under the directory's lock, and reported
//! without the lock.

use crate::file::Names;
use std::sync::Arc;

use format::anode::AnodeKind;
use format::directory::hash_in;
use format::ids::AnodeNo;

use crate::api::{Attr, Caller, DirEntry, FileKind, Ino};
use crate::dir::{self, ListedDirent};
use crate::error::{FsError, FsResult};
use crate::file::access::READ;
use crate::file::names::directory;
use crate::file::readahead::ListingRange;
use crate::file::{Vnode, VnodeState, attr_of_anode, kind_of};
use crate::fileset_table::places::AnodePlaces;

/// Cookie of `.`; hashes give cookies of 128 and more.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

struct ListingReference {
    number: AnodeNo,
    vnode: Option<Arc<Vnode>>,
}

impl Names<'_> {
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
        let mut told = ListingRange { directory: vnode.number, after, count: 0 };
        self.fileset.readahead.arrive(vnode.number, after);
        loop {
            let (listed, taken) = self.names_and_references_after(caller, &vnode, after)?;
            let Some(last) = listed.last() else { return Ok(()) };
            after = last.cookie;
            let places = self.bring_in(&taken);
            let mut each = |entry: &DirEntry, attr: Option<&Attr>| {
                let is_told = each(entry, attr);
                if is_told {
                    told = ListingRange { after: entry.cookie, count: told.count + 1, ..told };
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

    /// Reports names with attributes. Returns whether the receiver requests more. Drops the
    /// references of unreported names.
    fn tell_names(
        &self,
        listed: Vec<ListedDirent>,
        taken: Vec<ListingReference>,
        places: &AnodePlaces,
        each: &mut dyn FnMut(&DirEntry, Option<&Attr>) -> bool,
    ) -> bool {
        let mut taken = taken.into_iter();
        for name in listed {
            let reference = taken.next();
            let ino = self.ino(name.target.anode);
            // On an error the name has no attributes; a lookup returns the error.
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

    /// Returns the attributes of a referenced file, or drops the reference. Loads no vnode, since a
    /// listing needs only the attributes.
    fn taken_attr(&self, taken: ListingReference, places: &AnodePlaces) -> FsResult<Attr> {
        let ListingReference { number, vnode } = taken;
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

    /// Returns the directory's generation. Cookies depend only on its hash key, which is constant;
    /// see [`crate::api::FileSystem::cookie_verifier`].
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

    /// Returns the names after cookie `after`, as far as they are on the page of the first of them.
    fn names_after(&self, state: &VnodeState, after: u64) -> FsResult<Vec<ListedDirent>> {
        let anode = directory(state)?;
        if anode.nlink == 0 {
            return Ok(Vec::new());
        }
        let listed = dir::list_after(&self.store, anode, after)?;
        debug_assert!(listed.iter().all(|name| hash_in(name.cookie) > 0));
        Ok(listed)
    }

    /// Returns [`Names::names_after`], with references unless `caller` may not search the
    /// directory.
    fn names_and_references_after(
        &self,
        caller: &Caller,
        vnode: &Vnode,
        after: u64,
    ) -> FsResult<(Vec<ListedDirent>, Vec<ListingReference>)> {
        let state = vnode.state.read();
        let listed = self.names_after(&state, after)?;
        if self.searched(caller, &state).is_err() {
            return Ok((listed, Vec::new()));
        }
        // References are taken under the directory's lock, before the files could be freed.
        let take = |name: &ListedDirent| {
            let number = name.target.anode;
            ListingReference { number, vnode: self.table.add_reference(self.ino(number)) }
        };
        let taken = listed.iter().map(take).collect();
        Ok((listed, taken))
    }

    fn bring_in(&self, taken: &[ListingReference]) -> AnodePlaces {
        let unknown = taken.iter().filter(|taken| taken.vnode.is_none()).map(|taken| taken.number);
        let places = self.fileset.anodes.places_of(&self.store, unknown);
        self.store.cache.bring_in(places.iter().collect());
        places
    }

    fn entry_of(&self, name: ListedDirent) -> DirEntry {
        DirEntry {
            ino: self.ino(name.target.anode),
            kind: kind_of(name.target.kind),
            cookie: name.cookie,
            name: name.name,
        }
    }

    /// Lists `.` and `..`; returns whether the receiver requests more.
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
