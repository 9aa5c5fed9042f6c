//! New names: create, symlink, link.

use engine::api::{
    Attr, FileKind, FsError, FsResult, Ino, LINKS_MAX, NewInode, SYMLINK_BYTES_MAX, SetTime,
};

use crate::canon::Attributes;

use super::access::{self, SEARCH, WRITE};
use super::content::Content;
use super::{Asked, Body, Directory, Node, State, acl, attr, require_name};

const MODE_MASK: u16 = 0o7777;

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
        let project = directory.project;
        let (mode, gid) =
            access::inherited(asked.caller, directory, new.kind, new.mode & MODE_MASK);
        let default = directory.default.as_ref();
        let (mode, access, default) = acl::handed_down(default, new.kind, mode, new.umask);
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let mode = match new.gid {
            Some(gid) if new.kind != FileKind::Directory => {
                access::mode_allowed(asked.caller, mode, gid)
            }
            _ => mode,
        };
        let time = |set: Option<SetTime>| match set {
            None | Some(SetTime::Now) => asked.now,
            Some(SetTime::To(time)) => time,
        };
        let given = || [time(new.atime), time(new.mtime)];
        let [atime, mtime] = new.verifier.map_or_else(given, NewInode::times_of);
        let node = Node {
            kind: new.kind,
            mode,
            uid: new.uid.unwrap_or(asked.caller.uid),
            gid: new.gid.unwrap_or(gid),
            project,
            rdev: new.rdev,
            names: 0,
            is_linkable: true,
            references: 0,
            atime,
            mtime,
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

    /// Refuses what makes no sense, whoever asks.
    fn require_sound_birth(new: NewInode) -> FsResult<()> {
        attr::require_ids(new.uid, new.gid)?;
        let is_sound = match new.verifier {
            Some(_) => new.kind == FileKind::Regular && new.atime.is_none() && new.mtime.is_none(),
            None => [new.atime, new.mtime].into_iter().flatten().all(attr::is_sound_time),
        };
        if is_sound { Ok(()) } else { Err(FsError::Invalid) }
    }

    /// Refuses an owner or a group that chown(2) would not let the caller give.
    fn require_owner(&self, asked: Asked<'_>, parent: Ino, new: NewInode) -> FsResult<()> {
        let caller = asked.caller;
        let (_, inherited) = access::inherited(caller, self.node(parent)?, new.kind, new.mode);
        let is_own = new.uid.is_none_or(|uid| uid == caller.uid)
            && new.gid.is_none_or(|gid| gid == inherited || access::is_in_group(caller, gid));
        let may = access::is_privileged(caller) || is_own;
        if may { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// The file that an exclusive creation has made before, if it did.
    fn made_before(&self, asked: Asked<'_>, at: (Ino, &[u8]), new: NewInode) -> Option<Ino> {
        let times = NewInode::times_of(new.verifier?);
        let ino = self.find(asked.caller, at.0, at.1).ok()??;
        let node = self.node(ino).ok()?;
        let is_same = [node.atime, node.mtime] == times
            && node.kind == FileKind::Regular
            && node.size_bytes() == 0
            && node.uid == new.uid.unwrap_or(asked.caller.uid);
        is_same.then_some(ino)
    }

    pub(super) fn tmpfile(
        &mut self,
        asked: Asked<'_>,
        parent: Ino,
        new: NewInode,
    ) -> FsResult<Attr> {
        State::require_sound_birth(new)?;
        if new.kind != FileKind::Regular || new.verifier.is_some() {
            return Err(FsError::Invalid);
        }
        self.searched(asked.caller, parent)?;
        access::require(asked.caller, self.node(parent)?, WRITE | SEARCH)?;
        self.require_owner(asked, parent, new)?;
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
        State::require_sound_birth(new)?;
        if let Some(ino) = self.made_before(asked, (parent, name), new) {
            return self.referenced(ino);
        }
        if new.kind == FileKind::Symlink {
            return Err(FsError::Invalid);
        }
        self.require_new(asked, parent, name)?;
        let is_device = matches!(new.kind, FileKind::BlockDevice | FileKind::CharDevice);
        if is_device && !access::is_privileged(asked.caller) {
            return Err(FsError::NotPermitted);
        }
        self.require_owner(asked, parent, new)?;
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
        (parent, name): (Ino, &[u8]),
        target: &[u8],
        new: NewInode,
    ) -> FsResult<Attr> {
        State::require_sound_birth(new)?;
        if new.kind != FileKind::Symlink {
            return Err(FsError::Invalid);
        }
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        self.require_new(asked, parent, name)?;
        self.require_owner(asked, parent, new)?;
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
        access::require_link(asked.caller, node)?;
        if node.names == 0 && !node.is_linkable {
            return Err(FsError::NotFound);
        }
        if node.names >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        access::require_project(self.node(ino)?, self.node(parent)?)?;
        let node = self.held(ino);
        node.is_linkable = false;
        node.names += 1;
        node.ctime = asked.now;
        self.add_name(asked, parent, name, ino);
        self.referenced(ino)
    }
}
