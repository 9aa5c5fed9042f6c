//! Access lists, entry by entry as the kernel has them: a machine of states checks them, and one
//! walk over the entries decides. The whole list is kept beside the mode, and chmod changes both.

use engine::api::{Caller, FileKind, FsError, FsResult};

use super::access::is_in_group;

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: [u8; 4] = [2, 0, 0, 0];
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NO_ID: u32 = u32::MAX;

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// An access list.
pub(super) type List = Vec<Entry>;

/// Reads a value of setxattr(2); `None`: remove the list.
pub(super) fn parse(value: &[u8]) -> FsResult<Option<List>> {
    if value.is_empty() {
        return Ok(None);
    }
    if value.len() < 4 {
        return Err(FsError::Invalid);
    }
    if value[..4] != VERSION {
        return Err(FsError::NotSupported);
    }
    if value.len() % 8 != 4 {
        return Err(FsError::Invalid);
    }
    let mut list = List::new();
    for entry in value[4..].chunks(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let perm = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        if ![USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&tag) {
            return Err(FsError::Invalid);
        }
        let has_id = tag == USER || tag == GROUP;
        list.push(Entry { tag, perm, id: if has_id { id } else { NO_ID } });
    }
    Ok(Some(list).filter(|list| !list.is_empty()))
}

/// Returns the list as getxattr(2) does.
pub(super) fn to_value(list: &[Entry]) -> Vec<u8> {
    let mut value = VERSION.to_vec();
    for entry in list {
        value.extend(entry.tag.to_le_bytes());
        value.extend(entry.perm.to_le_bytes());
        value.extend(entry.id.to_le_bytes());
    }
    value
}

/// Whether the entries come in order, each of the three that must be there once, and the mask
/// where somebody is named.
pub(super) fn is_valid(list: &[Entry]) -> bool {
    let mut state = USER_OBJ;
    let mut needs_mask = false;
    for entry in list {
        if entry.perm > 7 {
            return false;
        }
        let is_named = entry.tag == USER || entry.tag == GROUP;
        needs_mask |= is_named;
        state = match (entry.tag, state) {
            (USER_OBJ, USER_OBJ) => USER,
            (USER, USER) | (GROUP, GROUP) if entry.id != NO_ID => state,
            (GROUP_OBJ, USER) => GROUP,
            (MASK, GROUP) => OTHER,
            (OTHER, OTHER) => 0,
            (OTHER, GROUP) if !needs_mask => 0,
            _ => return false,
        };
    }
    state == 0
}

/// Returns the permission bits that the list stands for, and whether they say all of it.
pub(super) fn as_mode(list: &[Entry]) -> (u16, bool) {
    let perm_of = |tag| list.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm);
    let bits = |tag| perm_of(tag).unwrap_or(0);
    let group = perm_of(MASK).unwrap_or(bits(GROUP_OBJ));
    let is_all = list.iter().all(|entry| [USER_OBJ, GROUP_OBJ, OTHER].contains(&entry.tag));
    (bits(USER_OBJ) << 6 | group << 3 | bits(OTHER), is_all)
}

/// What chmod(2) does to a list.
pub(super) fn set_mode(list: &mut [Entry], mode: u16) {
    let has_mask = list.iter().any(|entry| entry.tag == MASK);
    for entry in list {
        match entry.tag {
            USER_OBJ => entry.perm = mode >> 6 & 7,
            GROUP_OBJ if !has_mask => entry.perm = mode >> 3 & 7,
            MASK => entry.perm = mode >> 3 & 7,
            OTHER => entry.perm = mode & 7,
            _ => {}
        }
    }
}

/// Whether the list gives `wanted` to `caller`.
pub(super) fn permits(list: &[Entry], caller: &Caller, owner: (u32, u32), wanted: u16) -> bool {
    let (uid, gid) = owner;
    let has = |perm: u16| perm & wanted == wanted;
    let mask = list.iter().find(|entry| entry.tag == MASK).map_or(7, |entry| entry.perm);
    let mut is_in_some_group = false;
    for entry in list {
        match entry.tag {
            USER_OBJ if caller.uid == uid => return has(entry.perm),
            USER if caller.uid == entry.id => return has(entry.perm & mask),
            GROUP_OBJ | GROUP => {
                let of = if entry.tag == GROUP { entry.id } else { gid };
                if is_in_group(caller, of) {
                    is_in_some_group = true;
                    if has(entry.perm) {
                        return has(entry.perm & mask);
                    }
                }
            }
            OTHER => return !is_in_some_group && has(entry.perm),
            _ => {}
        }
    }
    false
}

/// What a new inode of `kind` that asks for `mode` gets from its directory: its mode, its access
/// list and its default list.
pub(super) fn handed_down(
    default: Option<&List>,
    kind: FileKind,
    mode: u16,
    umask: u16,
) -> (u16, Option<List>, Option<List>) {
    let Some(default) = default else {
        let umask = if kind == FileKind::Symlink { 0 } else { umask & 0o777 };
        return (mode & !umask, None, None);
    };
    if kind == FileKind::Symlink {
        return (mode, None, None);
    }
    let mut list = default.clone();
    let has_mask = list.iter().any(|entry| entry.tag == MASK);
    for entry in &mut list {
        match entry.tag {
            USER_OBJ => entry.perm &= mode >> 6,
            GROUP_OBJ if !has_mask => entry.perm &= mode >> 3,
            MASK => entry.perm &= mode >> 3,
            OTHER => entry.perm &= mode,
            _ => {}
        }
    }
    let (bits, is_all) = as_mode(&list);
    let default = (kind == FileKind::Directory).then(|| default.clone());
    (mode & !0o777 | bits, (!is_all).then_some(list), default)
}
