//! Attributes, and who may do what.

use std::sync::Arc;

use format::anode::Anode;

use super::api::{Attr, Caller, FileKind, Ino, SetAttr, SetTime};
use super::file::clear_setid;
use super::{Files, Vnode, VnodeState, attr_of, kind_of, to_disk};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;

/// Wanted access, as in the permission bits.
pub(super) const WRITE: u16 = 2;
/// Wanted access, as in the permission bits.
pub(super) const EXECUTE: u16 = 1;
/// Sticky bit of a directory.
const STICKY: u16 = 0o1000;
/// Nanoseconds after which relatime renews an access time all the same: a day.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;

/// Whether the caller belongs to `gid`.
fn is_in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// Checks `wanted` against the permission bits.
pub(crate) fn check_access(caller: &Caller, anode: &Anode, wanted: u16) -> FsResult<()> {
    if !caller.is_checked || caller.uid == 0 {
        return Ok(());
    }
    let bits = if caller.uid == anode.uid {
        anode.mode >> 6
    } else if is_in_group(caller, anode.gid) {
        anode.mode >> 3
    } else {
        anode.mode
    };
    if bits & wanted == wanted { Ok(()) } else { Err(FsError::AccessDenied) }
}

/// In a sticky directory only the owner of the file, or of the directory, may take a name away.
pub(crate) fn check_sticky(caller: &Caller, directory: &Anode, file: &Anode) -> FsResult<()> {
    let is_free = !caller.is_checked
        || caller.uid == 0
        || directory.mode & STICKY == 0
        || caller.uid == directory.uid
        || caller.uid == file.uid;
    if is_free { Ok(()) } else { Err(FsError::NotPermitted) }
}

impl Files {
    /// Returns the attributes of a file.
    pub(crate) fn attributes(&self, ino: Ino) -> FsResult<Attr> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        attr_of(self, &state)
    }

    /// Changes attributes; see [`super::api::FileSystem::setattr`].
    pub(crate) fn set_attributes(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        {
            let state = vnode.state.read();
            check_change(caller, state.anode()?, change)?;
        }
        if let Some(size_bytes) = change.size_bytes {
            match self.truncate(&vnode, size_bytes) {
                Err(FsError::NoSpace) => {
                    self.reclaim()?;
                    self.truncate(&vnode, size_bytes)?;
                }
                other => other?,
            }
        }
        let is_only_size =
            *change == SetAttr { size_bytes: change.size_bytes, ..SetAttr::default() };
        if !is_only_size {
            self.set_anode(caller, &vnode, change)?;
        }
        let state = vnode.state.read();
        attr_of(self, &state)
    }

    fn set_anode(&self, caller: &Caller, vnode: &Arc<Vnode>, change: &SetAttr) -> FsResult<()> {
        let mut tx = self.store.begin(Reservation::SMALL)?;
        let mut state = vnode.state.write();
        let mut anode = state.anode()?.clone();
        let now = self.now();
        if let Some(mode) = change.mode {
            anode.mode = mode & 0o7777;
            if caller.is_checked && caller.uid != 0 && !is_in_group(caller, anode.gid) {
                anode.mode &= !0o2000;
            }
        }
        if change.uid.is_some() || change.gid.is_some() {
            anode.uid = change.uid.unwrap_or(anode.uid);
            anode.gid = change.gid.unwrap_or(anode.gid);
            if change.mode.is_none() && kind_of(anode.kind) == FileKind::Regular {
                clear_setid(&mut anode);
            }
        }
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => to_disk(time),
        };
        anode.atime = change.atime.map_or(anode.atime, time);
        anode.mtime = change.mtime.map_or(anode.mtime, time);
        anode.ctime = change.ctime.map_or(now, to_disk);
        self.fileset.write_anode(&self.store, &mut tx, &anode)?;
        let applied = tx.end();
        state.anode = Some(anode);
        state.class = applied.class;
        Ok(())
    }

    /// relatime: a read renews the access time if that is no later than the last change, or a day
    /// old. In memory: it is written with the next change, or when the file is flushed.
    pub(crate) fn touch_atime(&self, vnode: &Arc<Vnode>) {
        if self.options.no_atime || self.options.is_read_only {
            return;
        }
        let now = self.now();
        let is_due = |state: &VnodeState| {
            state.anode.as_ref().is_some_and(|anode| {
                anode.atime <= anode.mtime
                    || anode.atime <= anode.ctime
                    || now.seconds - anode.atime.seconds >= RELATIME_SECONDS
            })
        };
        if !is_due(&vnode.state.read()) {
            return;
        }
        let mut state = vnode.state.write();
        if is_due(&state)
            && let Some(anode) = state.anode.as_mut()
        {
            anode.atime = now;
            state.is_attr_dirty = true;
            self.table.mark_dirty(vnode.number, self.store.clock.monotonic_ns());
        }
    }
}

/// Who may change what (chmod(2), chown(2), utimensat(2)).
fn check_change(caller: &Caller, anode: &Anode, change: &SetAttr) -> FsResult<()> {
    if change.mode.is_some() && anode.kind == format::anode::AnodeKind::Symlink {
        return Err(FsError::NotSupported);
    }
    if !caller.is_checked || caller.uid == 0 {
        return Ok(());
    }
    let is_owner = caller.uid == anode.uid;
    if change.mode.is_some() && !is_owner {
        return Err(FsError::NotPermitted);
    }
    if change.uid.is_some_and(|uid| !is_owner || uid != anode.uid) {
        return Err(FsError::NotPermitted);
    }
    if change.gid.is_some_and(|gid| !is_owner || (gid != anode.gid && !is_in_group(caller, gid))) {
        return Err(FsError::NotPermitted);
    }
    let times = [change.atime, change.mtime];
    if times.iter().flatten().any(|time| matches!(time, SetTime::To(_))) && !is_owner {
        return Err(FsError::NotPermitted);
    }
    if times.iter().any(Option::is_some) && !is_owner {
        check_access(caller, anode, WRITE)?;
    }
    if change.size_bytes.is_some() {
        check_access(caller, anode, WRITE)?;
    }
    Ok(())
}
