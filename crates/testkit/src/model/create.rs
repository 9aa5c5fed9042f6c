//! New names: create, symlink, link.

use engine::vnode::api::{
    Attr, FileKind, FsError, FsResult, Ino, LINKS_MAX, NewInode, SYMLINK_BYTES_MAX,
};

use crate::canon::Attributes;

use super::access::{self, SEARCH, WRITE};
use super::acl;
use super::content::Content;
use super::{Asked, Body, Directory, Node, State, require_name};

const MODE_MASK: u16 = 0o7777;
const SYMLINK_MODE: u16 = 0o777;

impl State {
    /// Refuses a name that cannot be added to `parent`.
    fn require_new(&self, asked: Asked<'_>, parent: Ino, name: &[u8]) -> FsResult<()> {
        require_name(name)?;
        if self.find(asked.caller, parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        access::require(asked.caller, self.node(parent)?, WRITE | SEARCH)
    }

    fn add_name(&mut self, asked: Asked<'_>, parent: Ino, name: &[u8], ino: Ino) {
        let is_directory = self.held(ino).is_directory();
        let node = self.held(parent);
        node.touch_content(asked.now);
        let directory = node.directory_mut();
        directory.set(name, ino);
        directory.subdirectories += u32::from(is_directory);
    }

    fn insert(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        body: Body,
    ) -> FsResult<Attr> {
        let ino = self.insert_unreferenced(asked, parent, name, new, body)?;
        self.referenced(ino)
    }

    pub(super) fn insert_unreferenced(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        name: &[u8],
        new: NewInode,
        body: Body,
    ) -> FsResult<Ino> {
        let ino = self.insert_nameless(asked, parent, new, body)?;
        let node = self.held(ino);
        (node.names, node.is_linkable) = (1, false);
        self.add_name(asked, parent, name, ino);
        Ok(ino)
    }

    fn insert_nameless(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        new: NewInode,
        body: Body,
    ) -> FsResult<Ino> {
        let directory = self.node(parent)?;
        let (mode, gid) =
            access::inherited(asked.caller, directory, new.kind, new.mode & MODE_MASK);
        let default = directory.default.as_ref();
        let (mode, access, default) = acl::handed_down(default, new.kind, mode, new.umask);
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let node = Node {
            kind: new.kind,
            mode,
            uid: asked.caller.uid,
            gid,
            rdev: new.rdev,
            names: 0,
            is_linkable: true,
            references: 0,
            atime: asked.now,
            mtime: asked.now,
            ctime: asked.now,
            btime: asked.now,
            attributes: Attributes::new(),
            access,
            default,
            body,
        };
        self.nodes.insert(ino, node);
        Ok(ino)
    }

    pub(super) fn tmpfile(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        new: NewInode,
    ) -> FsResult<Attr> {
        if new.kind != FileKind::Regular {
            return Err(FsError::Invalid);
        }
        self.searched(asked.caller, parent)?;
        access::require(asked.caller, self.node(parent)?, WRITE | SEARCH)?;
        let body = Body::Regular(Content::default());
        let ino = self.insert_nameless(asked, parent, NewInode { rdev: 0, ..new }, body)?;
        self.referenced(ino)
    }

    pub(super) fn create(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        name: &[u8],
        new: NewInode,
    ) -> FsResult<Attr> {
        self.require_new(asked, parent, name)?;
        let is_device = matches!(new.kind, FileKind::BlockDevice | FileKind::CharDevice);
        if is_device && !access::is_privileged(asked.caller) {
            return Err(FsError::NotPermitted);
        }
        let body = match new.kind {
            FileKind::Regular => Body::Regular(Content::default()),
            FileKind::Directory => Body::Directory(Directory::new(parent)),
            FileKind::Symlink => return Err(FsError::Invalid),
            FileKind::BlockDevice | FileKind::CharDevice | FileKind::Fifo | FileKind::Socket => {
                Body::Special
            }
        };
        let rdev = if is_device { new.rdev } else { 0 };
        self.insert(asked, parent, name, NewInode { rdev, ..new }, body)
    }

    pub(super) fn symlink(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        name: &[u8],
        target: &[u8],
    ) -> FsResult<Attr> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        self.require_new(asked, parent, name)?;
        let new = NewInode { kind: FileKind::Symlink, mode: SYMLINK_MODE, umask: 0, rdev: 0 };
        self.insert(asked, parent, name, new, Body::Symlink(target.to_vec()))
    }

    pub(super) fn link(
        &mut self,
        asked: Asked<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> FsResult<Attr> {
        self.node(ino)?;
        self.require_new(asked, parent, name)?;
        let node = self.held(ino);
        if node.is_directory() {
            return Err(FsError::NotPermitted);
        }
        if node.names == 0 && !node.is_linkable {
            return Err(FsError::NotFound);
        }
        if node.names >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        node.is_linkable = false;
        node.names += 1;
        node.ctime = asked.now;
        self.add_name(asked, parent, name, ino);
        self.referenced(ino)
    }
}
