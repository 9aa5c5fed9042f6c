//! Extended attributes.
//!
//! Names and values are checked first, then who asks, then whether the attribute is there.

use engine::api::{Caller, FileKind, FsError, FsResult, Ino, XattrMode};

use super::access::{self, READ, STICKY, WRITE};
use super::{Asked, Node, State, acl};
use crate::canon::Attributes;

const NAME_BYTES_MAX: usize = 255;
const VALUE_BYTES_MAX: usize = 65_536;
/// All names with a NUL behind each, less the names of the two access lists: what listxattr(2) can
/// return.
const LIST_BYTES_MAX: usize = 65_536 - 49;
/// Names and values of `user.` attributes.
const USER_BYTES_MAX: usize = 256 << 10;
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// What names begin with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    Access,
    Default,
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
    match name {
        acl::ACCESS => Ok(Space::Access),
        acl::DEFAULT => Ok(Space::Default),
        _ => Err(FsError::NotSupported),
    }
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
        Space::Access | Space::Default if node.kind == FileKind::Symlink => {
            Err(FsError::NotSupported)
        }
        Space::Access | Space::Default => Ok(()),
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

impl Node {
    /// Extended attributes with the access lists among them.
    pub(super) fn all_attributes(&self) -> Attributes {
        let mut all = self.attributes.clone();
        let lists = [(acl::ACCESS, &self.access), (acl::DEFAULT, &self.default)];
        for (name, list) in lists {
            if let Some(list) = list {
                all.insert(name.to_vec(), acl::to_value(list));
            }
        }
        all
    }

    /// Sets or removes an access list.
    fn set_list(
        &mut self,
        asked: Asked<'_>,
        space: Space,
        list: Option<acl::List>,
    ) -> FsResult<()> {
        if space == Space::Default && !self.is_directory() {
            return if list.is_some() { Err(FsError::AccessDenied) } else { Ok(()) };
        }
        if !access::is_owner(asked.caller, self) {
            return Err(FsError::NotPermitted);
        }
        if list.as_ref().is_some_and(|list| !acl::is_valid(list)) {
            return Err(FsError::Invalid);
        }
        let is_nothing = list.is_none();
        let slot = if space == Space::Default { &mut self.default } else { &mut self.access };
        if is_nothing && slot.is_none() {
            return Ok(());
        }
        self.ctime = asked.now;
        let Some(list) = list else {
            *slot = None;
            return Ok(());
        };
        if space == Space::Default {
            *slot = Some(list);
            return Ok(());
        }
        let (bits, is_all) = acl::as_mode(&list);
        let mode = self.mode & !0o777 | bits;
        self.mode = access::mode_allowed_with_list(asked.caller, mode, self.gid);
        self.access = (!is_all).then_some(list);
        Ok(())
    }
}

impl State {
    pub(super) fn getxattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> FsResult<Vec<u8>> {
        let space = space_of(name)?;
        let node = self.node(ino)?;
        require(caller, node, space, READ)?;
        node.all_attributes().remove(name).ok_or(FsError::NoAttribute)
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
        let is_list = matches!(space, Space::Access | Space::Default);
        let list = if is_list { Some(acl::parse(value)?) } else { None };
        let node = self.node_mut(ino)?;
        require(asked.caller, node, space, WRITE)?;
        if let Some(list) = list {
            return node.set_list(asked, space, list);
        }
        match (node.attributes.contains_key(name), mode) {
            (true, XattrMode::Create | XattrMode::CreateAndReplace) => return Err(FsError::Exists),
            (false, XattrMode::Replace | XattrMode::CreateAndReplace) => {
                return Err(FsError::NoAttribute);
            }
            (true, XattrMode::Set | XattrMode::Replace) => {}
            (false, XattrMode::Set | XattrMode::Create) => {
                let names = node.attributes.keys().map(Vec::as_slice).chain([name]);
                let bytes: usize = names.map(|name| name.len() + 1).sum();
                if bytes > LIST_BYTES_MAX {
                    return Err(FsError::NoSpace);
                }
            }
        }
        let length = |it: &[u8]| node.attributes.get(it).map_or(0, Vec::len);
        let is_longer = !node.attributes.contains_key(name) || value.len() > length(name);
        let others = node.attributes.keys().filter(|it| it.starts_with(b"user.") && *it != name);
        let others: usize = others.map(|it| it.len() + length(it)).sum();
        let is_past = others + name.len() + value.len() > USER_BYTES_MAX;
        if space == Space::User && is_longer && is_past {
            return Err(FsError::NoSpace);
        }
        node.attributes.insert(name.to_vec(), value.to_vec());
        node.ctime = asked.now;
        Ok(())
    }

    pub(super) fn listxattr(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        let names = self.node(ino)?.all_attributes().into_keys();
        let is_seen = |name: &Vec<u8>| caller.uid == 0 || !name.starts_with(b"trusted.");
        Ok(names.filter(is_seen).collect())
    }

    pub(super) fn removexattr(&mut self, asked: Asked<'_>, ino: Ino, name: &[u8]) -> FsResult<()> {
        let space = space_of(name)?;
        let node = self.node_mut(ino)?;
        require(asked.caller, node, space, WRITE)?;
        if matches!(space, Space::Access | Space::Default) {
            return node.set_list(asked, space, None);
        }
        node.attributes.remove(name).ok_or(FsError::NoAttribute)?;
        node.ctime = asked.now;
        Ok(())
    }
}
