//! Permission checks: mode bits, access lists, the sticky bit, setuid and setgid.
//!
//! Names are checked in the order of Linux's path walk, so that programs see the errors they
//! expect: the directory, the length of the name, its existence, write permission on the directory,
//! the sticky bit, file kinds, and then the rest. Content is checked in the order of open(2): the
//! kind of the file, the permission, and then the rest.
//!
//! A caller with [`PermissionChecks::ByKernel`] has the permissions of the superuser.

use format::anode::{Anode, AnodeKind};
use runtime::{planted, unless_planted};

use crate::api::{
    AccessRights, Caller, FileKind, Ino, NAME_BYTES_MAX, PermissionChecks, SetAttr, SetTime,
};
use crate::error::{FsError, FsResult};
use crate::file::write::check_regular_anode;
use crate::file::{Files, VnodeState};

pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
/// Access bit for executing a file or searching a directory.
pub(crate) const SEARCH: u16 = 1;
pub(crate) const MODE_MASK: u16 = 0o7777;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o0010;
const EXECUTE_BITS: u16 = 0o0111;
const NANOSECONDS_MAX: u32 = 999_999_999;

pub(crate) fn is_privileged(caller: &Caller) -> bool {
    caller.checks == PermissionChecks::ByKernel || caller.uid == 0
}

/// Whether account limits are waived, as `CAP_SYS_RESOURCE` does on Linux.
pub(crate) fn is_exempt(caller: &Caller) -> bool {
    caller.uid == 0
}

/// Refuses to bring a file into a directory that hands down another project, since the file would
/// stay in its old account. `EXDEV`, as in XFS, makes mv(1) copy it.
pub(crate) fn check_project(file: &Anode, directory: &Anode) -> FsResult<()> {
    if directory.project != 0 && file.project != directory.project {
        return Err(FsError::CrossFileset);
    }
    Ok(())
}

pub(crate) fn is_in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

impl Files<'_> {
    pub(crate) fn access_of(&self, caller: &Caller, ino: Ino) -> FsResult<AccessRights> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        let anode = state.anode()?;
        let may = |wanted| {
            let checked = self.check_access(caller, anode, wanted);
            let is_refused = checked == Err(FsError::AccessDenied);
            if is_refused { Ok(false) } else { checked.map(|()| true) }
        };
        let is_kept = matches!(anode.kind, AnodeKind::Regular | AnodeKind::Directory);
        // Even the superuser can't execute a file without any execute bit (capabilities(7)).
        let is_no_program = caller.checks == PermissionChecks::Here
            && caller.uid == 0
            && anode.kind == AnodeKind::Regular
            && anode.mode & EXECUTE_BITS == 0;
        Ok(AccessRights {
            reads: may(READ)?,
            writes: may(WRITE)? && !(is_kept && self.check_writable().is_err()),
            executes: may(SEARCH)? && !is_no_program,
        })
    }

    pub(crate) fn check_content(
        &self,
        caller: &Caller,
        state: &VnodeState,
        wanted: u16,
    ) -> FsResult<()> {
        let anode = state.anode()?;
        check_regular_anode(anode)?;
        self.check_access(caller, anode, wanted)
    }

    /// Checks that the caller could open the file for reading or writing, as a sync needs.
    pub(crate) fn check_open(&self, caller: &Caller, anode: &Anode) -> FsResult<()> {
        let reads = self.check_access(caller, anode, READ);
        if reads == Err(FsError::AccessDenied) {
            return self.check_access(caller, anode, WRITE);
        }
        reads
    }

    pub(crate) fn check_access(&self, caller: &Caller, anode: &Anode, wanted: u16) -> FsResult<()> {
        if is_privileged(caller) {
            return Ok(());
        }
        let is_granted = if caller.uid == anode.uid {
            anode.mode >> 6 & wanted == wanted
        } else if let Some(is_granted) = self.xattrs().acl_grants(caller, anode, wanted)? {
            is_granted
        } else {
            let shift = if is_in_group(caller, anode.gid) { 3 } else { 0 };
            anode.mode >> shift & wanted == wanted
        };
        if is_granted { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    /// Checks that the caller may remove `file` from `directory`. In a sticky directory the caller
    /// must own the file or the directory.
    pub(crate) fn check_removal(
        &self,
        caller: &Caller,
        directory: &Anode,
        file: &Anode,
    ) -> FsResult<()> {
        self.check_access(caller, directory, WRITE | SEARCH)?;
        let is_free = is_privileged(caller)
            || directory.mode & STICKY == 0
            || planted!(StickyIgnored)
            || caller.uid == directory.uid
            || caller.uid == file.uid;
        if is_free { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Checks that the caller may link a file (`protected_hardlinks`). A link keeps a file alive
    /// after its owner removes it, and can put it where the linker's files are expected.
    pub(crate) fn check_link(&self, caller: &Caller, anode: &Anode) -> FsResult<()> {
        if is_privileged(caller) || caller.uid == anode.uid {
            return Ok(());
        }
        let runs_as_group = anode.mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
        let is_plain =
            anode.kind == AnodeKind::Regular && anode.mode & SETUID == 0 && !runs_as_group;
        let may_use = self.check_access(caller, anode, READ | WRITE);
        match (is_plain, may_use) {
            (true, Ok(())) => Ok(()),
            (false, _) | (true, Err(FsError::AccessDenied)) => Err(FsError::NotPermitted),
            (true, error) => error,
        }
    }

    /// Returns the anode of a directory that exists and that the caller may search.
    pub(crate) fn searched<'s>(
        &self,
        caller: &Caller,
        state: &'s VnodeState,
    ) -> FsResult<&'s Anode> {
        let anode = state.anode()?;
        if anode.kind != AnodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        self.check_access(caller, anode, SEARCH)?;
        if anode.nlink == 0 { Err(FsError::NotFound) } else { Ok(anode) }
    }

    /// Refuses invalid and forbidden changes (chmod(2), chown(2), truncate(2), utimensat(2)).
    pub(crate) fn check_change(
        &self,
        caller: &Caller,
        anode: &Anode,
        change: &SetAttr,
    ) -> FsResult<()> {
        check_sound(anode, change)?;
        if change.size_bytes.is_some() {
            self.check_access(caller, anode, WRITE)?;
        }
        if change.project.is_some() && !is_exempt(caller) {
            return Err(FsError::NotPermitted);
        }
        if is_privileged(caller) {
            return Ok(());
        }
        let is_owner = caller.uid == anode.uid;
        let may_set_uid = change.uid.is_none_or(|uid| is_owner && uid == anode.uid);
        let may_set_gid =
            change.gid.is_none_or(|gid| is_owner && (gid == anode.gid || is_in_group(caller, gid)));
        let may_set_mode = change.mode.is_none() || is_owner;
        if !may_set_uid || !may_set_gid || !may_set_mode {
            return Err(FsError::NotPermitted);
        }
        match (change.atime, change.mtime) {
            _ if is_owner => Ok(()),
            (None, None) => Ok(()),
            // utime(2) without times needs only write permission.
            (Some(SetTime::Now), Some(SetTime::Now)) => self.check_access(caller, anode, WRITE),
            (Some(_), _) | (None, Some(_)) => Err(FsError::NotPermitted),
        }
    }
}

pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    let is_none = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_none || name == b"." || name == b".." { Err(FsError::Invalid) } else { Ok(()) }
}

pub(crate) fn check_length(name: &[u8]) -> FsResult<()> {
    if name.len() > NAME_BYTES_MAX { Err(FsError::NameTooLong) } else { Ok(()) }
}

pub(crate) fn inherited(
    caller: &Caller,
    directory: &Anode,
    kind: FileKind,
    mode: u16,
) -> (u16, u32) {
    if directory.mode & SETGID == 0 {
        return (mode, caller.gid);
    }
    if kind == FileKind::Directory {
        return (mode | SETGID, directory.gid);
    }
    let is_program = mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
    let mode = if is_program { mode_allowed(caller, mode, directory.gid) } else { mode };
    (mode, directory.gid)
}

/// Returns `mode`, without setgid unless the caller is a member of `gid`.
pub(crate) fn mode_allowed(caller: &Caller, mode: u16, gid: u32) -> u16 {
    if is_privileged(caller) || is_in_group(caller, gid) { mode } else { mode & !SETGID }
}

/// Returns [`mode_allowed`] for a mode set by an access list. With [`PermissionChecks::ByKernel`]
/// the group check is in [`Caller::loses_set_bits`].
pub(crate) fn mode_allowed_with_list(caller: &Caller, mode: u16, gid: u32) -> u16 {
    if caller.checks == PermissionChecks::ByKernel && caller.loses_set_bits {
        return mode & !SETGID;
    }
    mode_allowed(caller, mode, gid)
}

/// Clears setuid and setgid at a write or truncate without `CAP_FSETID`, also with
/// [`PermissionChecks::ByKernel`].
pub(crate) fn clear_set_bits_of_write(caller: &Caller, anode: &mut Anode) {
    if caller.loses_set_bits {
        clear_set_bits(is_in_group(caller, anode.gid), anode);
    }
}

/// Clears the bits as Linux does: a group member keeps setgid without group execution, which once
/// meant mandatory locking.
fn clear_set_bits(is_member: bool, anode: &mut Anode) {
    unless_planted!(SetuidKept, anode.mode &= !SETUID);
    if anode.mode & GROUP_EXECUTE != 0 || !is_member {
        anode.mode &= !SETGID;
    }
}

fn check_sound(anode: &Anode, change: &SetAttr) -> FsResult<()> {
    if let Some(size_bytes) = change.size_bytes {
        check_regular_anode(anode)?;
        if size_bytes > crate::api::FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
    }
    if change.mode.is_some() && anode.kind == AnodeKind::Symlink {
        return Err(FsError::NotSupported);
    }
    check_ids(change.uid, change.gid)?;
    let mut set = [change.atime, change.mtime, change.ctime.map(SetTime::To)].into_iter().flatten();
    if set.all(is_sound_time) { Ok(()) } else { Err(FsError::Invalid) }
}

/// Refuses the id -1, which for chown(2) means "unchanged".
pub(crate) fn check_ids(uid: Option<u32>, gid: Option<u32>) -> FsResult<()> {
    if [uid, gid].contains(&Some(u32::MAX)) { Err(FsError::Invalid) } else { Ok(()) }
}

pub(crate) fn is_sound_time(set: SetTime) -> bool {
    match set {
        SetTime::To(time) => time.nanoseconds <= NANOSECONDS_MAX,
        SetTime::Now => true,
    }
}

/// Clears setuid and setgid, as Linux does even if the superuser sets the same owner.
pub(crate) fn clear_set_bits_of_chown(caller: &Caller, anode: &mut Anode) {
    if anode.kind != AnodeKind::Directory {
        clear_set_bits(is_privileged(caller) || is_in_group(caller, anode.gid), anode);
    }
}

pub(crate) fn set_owner_and_mode(caller: &Caller, anode: &mut Anode, change: &SetAttr) {
    if change.uid.is_some() || change.gid.is_some() {
        clear_set_bits_of_chown(caller, anode);
    }
    anode.uid = change.uid.unwrap_or(anode.uid);
    anode.gid = change.gid.unwrap_or(anode.gid);
    if let Some(mode) = change.mode {
        anode.mode = mode_allowed(caller, mode & MODE_MASK, anode.gid);
    }
}
