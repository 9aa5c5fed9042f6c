//! Attributes that are set.

use engine::api::{
    Attr, Caller, FILE_BYTES_MAX, FileKind, FsError, FsResult, Ino, SetAttr, SetTime, Timestamp,
};

use super::access::{self, WRITE};
use super::{Asked, Node, State, acl};

const MODE_MASK: u16 = 0o7777;
const NANOSECONDS_MAX: u32 = 999_999_999;

impl State {
    pub(super) fn setattr(
        &mut self,
        asked: Asked<'_>,
        ino: Ino,
        change: &SetAttr,
    ) -> FsResult<Attr> {
        let node = self.node_mut(ino)?;
        require_sound(node, change)?;
        require_permitted(asked.caller, node, change)?;
        apply(asked, node, change)?;
        self.attr(ino)
    }
}

fn require_sound(node: &Node, change: &SetAttr) -> FsResult<()> {
    if let Some(size_bytes) = change.size_bytes {
        node.content()?;
        if size_bytes > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
    }
    if change.mode.is_some() && node.kind == FileKind::Symlink {
        return Err(FsError::NotSupported);
    }
    require_ids(change.uid, change.gid)?;
    let mut set = [change.atime, change.mtime, change.ctime.map(SetTime::To)].into_iter().flatten();
    if set.all(is_sound_time) { Ok(()) } else { Err(FsError::Invalid) }
}

/// What chown(2) takes for "leave it" is nobody's number.
pub(super) fn require_ids(uid: Option<u32>, gid: Option<u32>) -> FsResult<()> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) { Err(FsError::Invalid) } else { Ok(()) }
}

/// Whether a time is one at all.
pub(super) fn is_sound_time(set: SetTime) -> bool {
    match set {
        SetTime::To(time) => time.nanoseconds <= NANOSECONDS_MAX,
        SetTime::Now => true,
    }
}

fn require_permitted(caller: &Caller, node: &Node, change: &SetAttr) -> FsResult<()> {
    if change.size_bytes.is_some() {
        access::require(caller, node, WRITE)?;
    }
    if change.project.is_some() && caller.uid != 0 {
        return Err(FsError::NotPermitted);
    }
    if access::is_privileged(caller) {
        return Ok(());
    }
    let is_owner = access::is_owner(caller, node);
    let may_set_uid = change.uid.is_none_or(|uid| is_owner && uid == node.uid);
    let may_set_gid = change
        .gid
        .is_none_or(|gid| is_owner && (gid == node.gid || access::is_in_group(caller, gid)));
    let may_set_mode = change.mode.is_none() || is_owner;
    if !may_set_uid || !may_set_gid || !may_set_mode {
        return Err(FsError::NotPermitted);
    }
    if is_owner {
        return Ok(());
    }
    // utime(2) without times needs no more than permission to write.
    match (change.atime, change.mtime) {
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => access::require(caller, node, WRITE),
        (Some(_), _) | (None, Some(_)) => Err(FsError::NotPermitted),
    }
}

fn apply(asked: Asked<'_>, node: &mut Node, change: &SetAttr) -> FsResult<()> {
    if let Some(size_bytes) = change.size_bytes {
        access::lose_by_write(asked.caller, node);
        node.content_mut()?.resize(size_bytes);
        node.mtime = asked.now;
    }
    let is_his = asked.caller.uid == 0 || asked.caller.uid == node.uid;
    let names_nobody = *change == SetAttr::default() && is_his;
    if change.uid.is_some() || change.gid.is_some() || names_nobody {
        access::lose_by_chown(asked.caller, node);
    }
    node.uid = change.uid.unwrap_or(node.uid);
    node.gid = change.gid.unwrap_or(node.gid);
    node.project = change.project.unwrap_or(node.project);
    if let Some(mode) = change.mode {
        node.mode = access::mode_allowed(asked.caller, mode & MODE_MASK, node.gid);
        if let Some(list) = node.access.as_mut() {
            acl::set_mode(list, mode);
        }
    }
    let moment = |time: SetTime| -> Timestamp {
        match time {
            SetTime::Now => asked.now,
            SetTime::To(time) => time,
        }
    };
    node.atime = change.atime.map_or(node.atime, moment);
    node.mtime = change.mtime.map_or(node.mtime, moment);
    node.ctime = change.ctime.unwrap_or(asked.now);
    Ok(())
}
