//! Extended attributes.
//!
//! Names and values are checked first, then who asks, then whether the attribute is there.

use engine::vnode::api::{Caller, FileKind, FsError, FsResult, Ino, XattrMode};

use super::access::{self, READ, STICKY, WRITE};
use super::{Asked, Node, State};

const NAME_BYTES_MAX: usize = 255;
const VALUE_BYTES_MAX: usize = 65_536;
/// All names with a NUL behind each: what listxattr(2) can return.
const LIST_BYTES_MAX: usize = 65_536;
const CAPABILITY: &[u8] = b"security.capability";

/// What names begin with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
}

fn space_of(name: &[u8]) -> FsResult<Space> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(FsError::Range);
    }
    if name.contains(&0) {
        return Err(FsError::Invalid);
    }
    let spaces: [(&[u8], Space); 3] =
        [(b"user.", Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
    for (prefix, space) in spaces {
        if name == prefix {
            return Err(FsError::Invalid);
        }
        if name.starts_with(prefix) {
            return Ok(space);
        }
    }
    Err(FsError::NotSupported)
}

/// What xattr(7) says of each sort of name.
fn require(caller: &Caller, node: &Node, space: Space, wanted: u16) -> FsResult<()> {
    let no = || Err(if wanted == READ { FsError::NoAttribute } else { FsError::NotPermitted });
    match space {
        Space::Trusted => {
            if access::is_privileged(caller) {
                Ok(())
            } else {
                no()
            }
        }
        Space::Security => {
            if wanted == READ || access::is_privileged(caller) {
                Ok(())
            } else {
                no()
            }
        }
        Space::User => {
            let is_sticky = node.is_directory() && node.mode & STICKY != 0;
            if !matches!(node.kind, FileKind::Regular | FileKind::Directory) {
                return no();
            }
            if is_sticky && wanted == WRITE && !access::is_owner(caller, node) {
                return no();
            }
            access::require(caller, node, wanted)
        }
    }
}

fn require_value(name: &[u8], value: &[u8]) -> FsResult<()> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(FsError::TooBig);
    }
    if name == CAPABILITY && !value.is_empty() {
        let revision = value.get(3).copied();
        let is_known = matches!((value.len(), revision), (20, Some(2)) | (24, Some(3)));
        return if is_known { Ok(()) } else { Err(FsError::Invalid) };
    }
    Ok(())
}

impl State {
    pub(super) fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        let space = space_of(name)?;
        let node = self.node(ino)?;
        require(caller, node, space, READ)?;
        node.attributes.get(name).cloned().ok_or(FsError::NoAttribute)
    }

    pub(super) fn setxattr(
        &mut self,
        asked: Asked<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        let space = space_of(name)?;
        require_value(name, value)?;
        let node = self.node_mut(ino)?;
        require(asked.caller, node, space, WRITE)?;
        match (node.attributes.contains_key(name), mode) {
            (true, XattrMode::Create) => return Err(FsError::Exists),
            (false, XattrMode::Replace) => return Err(FsError::NoAttribute),
            (true, XattrMode::Set | XattrMode::Replace) => {}
            (false, XattrMode::Set | XattrMode::Create) => {
                let names = node.attributes.keys().map(Vec::as_slice).chain([name]);
                let bytes: usize = names.map(|name| name.len() + 1).sum();
                if bytes > LIST_BYTES_MAX {
                    return Err(FsError::NoSpace);
                }
            }
        }
        node.attributes.insert(name.to_vec(), value.to_vec());
        node.ctime = asked.now;
        Ok(())
    }

    pub(super) fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        let names = self.node(ino)?.attributes.keys();
        let is_seen = |name: &&Vec<u8>| caller.uid == 0 || !name.starts_with(b"trusted.");
        Ok(names.filter(is_seen).cloned().collect())
    }

    pub(super) fn removexattr(&mut self, asked: Asked<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        let space = space_of(name)?;
        let node = self.node_mut(ino)?;
        require(asked.caller, node, space, WRITE)?;
        node.attributes.remove(name).ok_or(FsError::NoAttribute)?;
        node.ctime = asked.now;
        Ok(())
    }
}
