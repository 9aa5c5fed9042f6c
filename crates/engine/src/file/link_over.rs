//! Links that replace an existing file.
//!
//! # Crashes
//!
//! The new link, the removal of the old one, and the changes of the orphan list are one
//! transaction: the name always leads to a file.

use crate::file::Names;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind};

use crate::api::{Attr, Caller, Ino, LINKS_MAX};
use crate::dir;
use crate::error::{FsError, FsResult};
use crate::file::access::{check_name, check_project};
use crate::file::names::{check_removable, directory, drop_link, target_of, touch};
use crate::file::xattr::LazyFilesetGuard;
use crate::file::{Vnode, VnodeState, attr_of};
use crate::journal::LogCredits;

type StateGuard<'v> = runtime::sync::RwLockWriteGuard<'v, VnodeState>;

struct LinkVnodes<'v> {
    file: &'v Arc<Vnode>,
    directory: &'v Arc<Vnode>,
    old: &'v Arc<Vnode>,
}

impl<'v> LinkVnodes<'v> {
    /// Locks by rising number; returns the guards in field order.
    fn lock(&self) -> [StateGuard<'v>; 3] {
        let vnodes = [self.file, self.directory, self.old];
        let mut order = [0, 1, 2];
        order.sort_unstable_by_key(|&index: &usize| vnodes.get(index).map(|it| it.number));
        let mut guards = [None, None, None];
        for index in order {
            if let (Some(guard), Some(vnode)) = (guards.get_mut(index), vnodes.get(index)) {
                *guard = Some(vnode.state.write());
            }
        }
        guards.map(|guard| guard.expect("each of the three was locked"))
    }
}

impl Names<'_> {
    pub(crate) fn link_name_over(
        &self,
        caller: &Caller,
        ino: Ino,
        (parent, name): (Ino, &[u8]),
    ) -> FsResult<Attr> {
        self.check_writable()?;
        check_name(name)?;
        let (file, above) = (self.vnode(ino)?, self.vnode(parent)?);
        let mut gone = None;
        loop {
            let number = match self.child_of(caller, &above, name) {
                Err(FsError::NotFound) => match self.link_name(caller, ino, (parent, name), None) {
                    // The name was created since the lookup.
                    Err(FsError::Exists) => continue,
                    linked => return linked,
                },
                seen => seen?.found.target.anode,
            };
            if number == file.number {
                return self.lookup_name(caller, parent, name);
            }
            let old = match self.vnode_of(number) {
                // The file was removed since the lookup: retry. If it is found again, the dirent is
                // damaged.
                Err(FsError::Stale) if gone.replace(number) != Some(number) => continue,
                old => old?,
            };
            if old.number == above.number || file.number == above.number {
                return Err(FsError::NotPermitted);
            }
            let locked = LinkVnodes { file: &file, directory: &above, old: &old };
            if let Some((attr, is_last)) = self.link_over_locked(caller, &locked, name)? {
                if is_last && !self.table.is_referenced(self.ino(number)) {
                    self.doom(&old);
                }
                return Ok(attr);
            }
        }
    }

    /// Returns the new file's attributes, and whether the old one is unlinked; `None` if the name
    /// has changed.
    fn link_over_locked(
        &self,
        caller: &Caller,
        vnodes: &LinkVnodes<'_>,
        name: &[u8],
    ) -> FsResult<Option<(Attr, bool)>> {
        let mut change = self.begin(LogCredits::SMALL)?;
        let [mut file_state, mut directory_state, mut old_state] = vnodes.lock();
        let mut directory = directory(&directory_state)?.clone();
        let found = dir::find(&self.store, None, &directory, name)?;
        let Some(found) = found.filter(|found| found.target.anode == vnodes.old.number) else {
            return Ok(None);
        };
        let (mut anode, mut old) = (file_state.anode()?.clone(), old_state.anode()?.clone());
        self.check_target(&found.target, old.generation.0)?;
        self.check_link_over(caller, &directory, (&anode, &old))?;
        let mut fileset = LazyFilesetGuard::new(self);
        if anode.nlink == 0 {
            self.unorphan(&mut fileset, &mut change, &file_state, &mut anode)?;
        }
        dir::retarget(&mut change, &directory, &found, target_of(&anode))?;
        let now = self.now();
        (anode.nlink, anode.ctime) = (anode.nlink + 1, now);
        touch(&mut directory, now);
        let is_last = drop_link(&mut old, now);
        if is_last {
            self.orphan(fileset.guard(), &mut change, &mut old)?;
        }
        for anode in [&directory, &anode, &old] {
            fileset.write_anode(&mut change, anode)?;
        }
        let applied = change.end();
        fileset.settle(applied.lsn);
        self.table.mark_named(vnodes.file.ino);
        self.replace(&mut directory_state, directory, applied.class);
        self.replace(&mut file_state, anode, applied.class);
        self.replace(&mut old_state, old, applied.class);
        self.table.add_reference(vnodes.file.ino);
        attr_of(self, &file_state).map(|attr| Some((attr, is_last)))
    }

    fn check_link_over(
        &self,
        caller: &Caller,
        directory: &Anode,
        (new, old): (&Anode, &Anode),
    ) -> FsResult<()> {
        self.check_removal(caller, directory, old)?;
        check_removable(old, false)?;
        if new.kind == AnodeKind::Directory {
            return Err(FsError::NotPermitted);
        }
        self.check_link(caller, new)?;
        if new.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        check_project(new, directory)
    }
}
