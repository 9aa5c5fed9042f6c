//! Extended attributes: permissions and storage.
//!
//! Short attributes are in the anode while there is room. Others are in a container of the file,
//! which is created with the first of them and freed with the last.
//!
//! # Invariants
//!
//! - E1: An attribute is in the anode or in the container, never in both.
//! - E2: A container of attributes is named by one anode, its `parent`, and freed before that
//!   anode.
//!
//! # Crashes
//!
//! Setting and removing are one transaction each. The containers of a freed file are freed in
//! further transactions, while the file is in the orphan list (F2).

use crate::file::Xattrs;
use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, StorageMode};
use format::attributes::{
    ATTRIBUTE_LIST_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTE_VALUE_BYTES_MAX, AttributeName,
    Namespace, value_pages,
};
use format::defect::DefectCode;
use format::ids::{AnodeNo, Lsn};
use format::page::PageKind;
use format::placement::Placement;

use crate::alloc::Urgency;
use crate::api::{AttributeChange, Caller, Ino, XattrMode};
use crate::buffer::corrupt;
use crate::container::ContainerContent;
use crate::convert::narrow;
use crate::error::{FsError, FsResult};
use crate::file::access::{READ, WRITE, is_privileged, mode_allowed_with_list};
use crate::file::acl::{self, ACCESS, AclPart, DEFAULT};
use crate::file::placement::{self, PLACEMENT};
use crate::file::{Files, Vnode, VnodeState, seen, tell};
use crate::fileset_table::FilesetGuard;
use crate::journal::LogCredits;
use crate::store::Change;

const STICKY: u16 = 0o1000;
const ACCESS_BITS: u16 = 0o777;
/// Most bytes of a file's `user.` attributes. Any writer may set them, and block quotas do not
/// count them, so only inode quotas and this bound limit them. Room for three values of the largest
/// size, and for all names of a listxattr(2).
const USER_ATTRIBUTES_BYTES_MAX: usize = 256 << 10;
const _: () =
    assert!(USER_ATTRIBUTES_BYTES_MAX >= 3 * ATTRIBUTE_VALUE_BYTES_MAX + ATTRIBUTE_LIST_BYTES_MAX);
/// Most pages of an attribute besides its value: an entry page, map pages, the anode's.
const PAGES_BESIDE_VALUE: u64 = 8;
/// Name of `security.capability` without its prefix. The forms below are size and revision of its
/// value (`linux/capability.h`).
const CAPABILITY: &[u8] = b"capability";
const CAPABILITY_NAME: AttributeName<'_> =
    AttributeName { namespace: Namespace::Security, suffix: CAPABILITY };
const CAPABILITY_FORMS: [(usize, u8); 2] = [(20, 2), (24, 3)];

pub(crate) fn has_containers(anode: &Anode) -> bool {
    anode.xattr != AnodeNo(0) || anode.acl != AnodeNo(0)
}

fn container_field(anode: &mut Anode, namespace: Namespace) -> &mut AnodeNo {
    if namespace.is_acl() { &mut anode.acl } else { &mut anode.xattr }
}

fn container_number(anode: &Anode, namespace: Namespace) -> AnodeNo {
    if namespace.is_acl() { anode.acl } else { anode.xattr }
}

/// Checks that `found` is the container of `anode` (E2).
fn container_of(anode: &Anode, found: Option<Anode>) -> FsResult<Anode> {
    let is_its = |found: &Anode| {
        found.kind == AnodeKind::Internal
            && found.parent == anode.number
            && found.number >= FIRST_FILE_ANODE
    };
    let error = || {
        corrupt(
            DefectCode::XA002
                .found("has no container of attributes")
                .of(anode.fileset, anode.number),
        )
    };
    found.filter(is_its).ok_or_else(error)
}

fn parse(name: &[u8]) -> FsResult<AttributeName<'_>> {
    if name.is_empty() || name.len() > ATTRIBUTE_NAME_BYTES_MAX {
        return Err(FsError::Range);
    }
    if name.contains(&0) {
        return Err(FsError::Invalid);
    }
    for namespace in Namespace::ALL {
        match name.strip_prefix(namespace.prefix()) {
            Some([]) if !namespace.is_acl() => return Err(FsError::Invalid),
            Some(suffix) if suffix.is_empty() == namespace.is_acl() => {
                return Ok(AttributeName { namespace, suffix });
            }
            Some(_) | None => {}
        }
    }
    Err(FsError::NotSupported)
}

/// Checks that the caller may read (`READ`) or change (`WRITE`) attributes of this namespace
/// (xattr(7)).
fn check_namespace(
    files: &Files<'_>,
    caller: &Caller,
    anode: &Anode,
    namespace: Namespace,
    wanted: u16,
) -> FsResult<()> {
    let refused = if wanted == WRITE { FsError::NotPermitted } else { FsError::NoAttribute };
    match namespace {
        Namespace::User => {
            if !matches!(anode.kind, AnodeKind::Regular | AnodeKind::Directory) {
                return Err(refused);
            }
            let is_sticky = anode.kind == AnodeKind::Directory && anode.mode & STICKY != 0;
            let is_owner = is_privileged(caller) || caller.uid == anode.uid;
            if is_sticky && wanted == WRITE && !is_owner {
                return Err(refused);
            }
            files.check_access(caller, anode, wanted)
        }
        Namespace::Trusted if !is_privileged(caller) => Err(refused),
        Namespace::Security if wanted == WRITE && !is_privileged(caller) => Err(refused),
        Namespace::Trusted | Namespace::Security => Ok(()),
        Namespace::AccessAcl | Namespace::DefaultAcl if anode.kind == AnodeKind::Symlink => {
            Err(FsError::NotSupported)
        }
        Namespace::AccessAcl | Namespace::DefaultAcl => Ok(()),
    }
}

fn check_value(name: AttributeName<'_>, value: &[u8]) -> FsResult<()> {
    if value.len() > ATTRIBUTE_VALUE_BYTES_MAX {
        return Err(FsError::TooBig);
    }
    let is_capability = name == CAPABILITY_NAME;
    let form = (value.len(), value.get(3).copied().unwrap_or(0));
    let is_sound = !is_capability || value.is_empty() || CAPABILITY_FORMS.contains(&form);
    if is_sound { Ok(()) } else { Err(FsError::Invalid) }
}

impl Xattrs<'_> {
    pub(crate) fn get_attribute(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
    ) -> FsResult<Vec<u8>> {
        let is_placement = name == PLACEMENT;
        let name = parse(name)?;
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        check_namespace(self, caller, state.anode()?, name.namespace, READ)?;
        let anode = state.anode()?;
        if is_placement {
            return Ok(anode.placement.to_string().into_bytes());
        }
        let value = match name.namespace {
            Namespace::AccessAcl => self.access_acl(anode)?.as_ref().map(acl::to_kernel),
            Namespace::DefaultAcl => self.default_acl(anode)?.as_ref().map(acl::to_kernel),
            Namespace::User | Namespace::Trusted | Namespace::Security => {
                self.value_of(anode, name)?
            }
        };
        value.ok_or(FsError::NoAttribute)
    }

    pub(crate) fn list_attributes(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<Vec<u8>>> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        let mut names = Vec::new();
        self.each_name(state.anode()?, &mut |name| {
            // The kernel does not filter lists, so this does not depend on [`Caller::checks`].
            if name.namespace != Namespace::Trusted || caller.uid == 0 {
                names.push(name.full());
            }
        })?;
        Ok(names)
    }

    pub(crate) fn set_attribute(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        (value, mode): (&[u8], XattrMode),
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.check_writable()?;
        if name == PLACEMENT {
            let placement = placement::parse(value)?;
            return self.set_placement(caller, ino, (placement, mode), around);
        }
        let name = parse(name)?;
        check_value(name, value)?;
        if name.namespace.is_acl() {
            let parts = acl::from_kernel(value)?;
            return self.set_acl(caller, ino, name, parts.as_deref(), around);
        }
        {
            // Checked early, to avoid a useless reclaim.
            let vnode = self.vnode(ino)?;
            let state = vnode.state.read();
            check_namespace(self, caller, state.anode()?, name.namespace, WRITE)?;
            self.check_user_bytes(state.anode()?, name, value.len())?;
        }
        self.space_reclaim().with_reclaim(|| {
            self.change_attribute(ino, around.as_deref_mut(), &mut |change, fileset, anode| {
                check_namespace(self, caller, anode, name.namespace, WRITE)?;
                match (self.has_value(anode, name)?, mode) {
                    (true, XattrMode::Create | XattrMode::CreateAndReplace) => {
                        return Err(FsError::Exists);
                    }
                    (false, XattrMode::Replace | XattrMode::CreateAndReplace) => {
                        return Err(FsError::NoAttribute);
                    }
                    (false, XattrMode::Set | XattrMode::Create) => self.check_list(anode, name)?,
                    (true, XattrMode::Set | XattrMode::Replace) => {}
                }
                self.check_user_bytes(anode, name, value.len())?;
                self.put_value(change, fileset, anode, name, value).map(|()| true)
            })
        })
    }

    pub(crate) fn remove_attribute(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.check_writable()?;
        if name == PLACEMENT {
            let any = (Placement::Any, XattrMode::Set);
            return self.set_placement(caller, ino, any, around);
        }
        let name = parse(name)?;
        if name.namespace.is_acl() {
            return self.set_acl(caller, ino, name, None, around);
        }
        self.space_reclaim().with_reclaim(|| {
            self.change_attribute(ino, around.as_deref_mut(), &mut |change, fileset, anode| {
                check_namespace(self, caller, anode, name.namespace, WRITE)?;
                if self.drop_value(change, fileset, anode, name)? {
                    Ok(true)
                } else {
                    Err(FsError::NoAttribute)
                }
            })
        })
    }

    /// Removes capabilities before a change of size or owner by any caller (capabilities(7)). The
    /// kernel does so for its own mounts, NFS clients do not.
    ///
    /// CRASH: the removal is logged first, so that no changed program has capabilities after a
    /// crash.
    pub(super) fn drop_capability(&self, ino: Ino, vnode: &Vnode) -> FsResult<()> {
        if !self.has_capability(&vnode.state.read())? {
            return Ok(());
        }
        self.remove_capability(ino)
    }

    pub(crate) fn drop_capability_before_write(&self, caller: &Caller, ino: Ino) -> FsResult<()> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        if !self.has_capability(&state)? {
            return Ok(());
        }
        self.check_writable()?;
        self.check_content(caller, &state, WRITE)?;
        drop(state);
        self.remove_capability(ino)
    }

    pub(super) fn has_capability(&self, state: &VnodeState) -> FsResult<bool> {
        let anode = state.anode()?;
        Ok(anode.kind == AnodeKind::Regular && self.has_value(anode, CAPABILITY_NAME)?)
    }

    pub(super) fn remove_capability(&self, ino: Ino) -> FsResult<()> {
        self.space_reclaim().with_reclaim(|| {
            self.change_attribute(ino, None, &mut |change, fileset, anode| {
                self.drop_value(change, fileset, anode, CAPABILITY_NAME)
            })
        })
    }

    /// Sets or removes an access list. Removing a missing one succeeds.
    fn set_acl(
        &self,
        caller: &Caller,
        ino: Ino,
        name: AttributeName<'_>,
        parts: Option<&[AclPart]>,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.space_reclaim().with_reclaim(|| {
            self.change_attribute(ino, around.as_deref_mut(), &mut |change, fileset, anode| {
                check_namespace(self, caller, anode, name.namespace, WRITE)?;
                if name == DEFAULT && anode.kind != AnodeKind::Directory {
                    return if parts.is_some() { Err(FsError::AccessDenied) } else { Ok(false) };
                }
                if !is_privileged(caller) && caller.uid != anode.uid {
                    return Err(FsError::NotPermitted);
                }
                let Some(parts) = parts else {
                    return self.drop_value(change, fileset, anode, name);
                };
                let list = acl::assembled(parts)?;
                if name == ACCESS {
                    let mode = anode.mode & !ACCESS_BITS | acl::mode_of(&list);
                    anode.mode = mode_allowed_with_list(caller, mode, anode.gid);
                }
                if name == ACCESS && acl::is_mode(&list) {
                    self.drop_value(change, fileset, anode, name)?;
                    return Ok(true);
                }
                let stored = if name == ACCESS { acl::stored(&list) } else { list.encode() };
                self.put_value(change, fileset, anode, name, &stored).map(|()| true)
            })
        })
    }

    /// Runs `work` on a copy of the anode, which is kept if `work` returns `true`.
    pub(super) fn change_attribute(
        &self,
        ino: Ino,
        around: Option<&mut AttributeChange>,
        work: &mut dyn FnMut(
            &mut Change<'_>,
            &mut LazyFilesetGuard<'_>,
            &mut Anode,
        ) -> FsResult<bool>,
    ) -> FsResult<()> {
        let vnode = self.vnode(ino)?;
        let mut change = self.begin(LogCredits::LARGE)?;
        let mut state = vnode.state.write();
        let before = seen(self, &around, &state)?;
        let mut anode = state.anode()?.clone();
        let mut fileset = LazyFilesetGuard::new(self);
        if !work(&mut change, &mut fileset, &mut anode)? {
            return tell(self, around, before, &state);
        }
        anode.ctime = self.now();
        self.end_attribute_change(change, fileset, &mut state, anode)?;
        tell(self, around, before, &state)
    }

    fn end_attribute_change(
        &self,
        mut change: Change<'_>,
        fileset: LazyFilesetGuard<'_>,
        state: &mut VnodeState,
        anode: Anode,
    ) -> FsResult<()> {
        fileset.write_anode(&mut change, &anode)?;
        // Attribute containers are charged to the fileset only.
        change.admit(true)?;
        let applied = change.end();
        fileset.settle(applied.lsn);
        self.names().replace(state, anode, applied.class);
        Ok(())
    }

    fn container(&self, anode: &Anode, namespace: Namespace) -> FsResult<Option<Anode>> {
        let number = container_number(anode, namespace);
        if number == AnodeNo(0) {
            return Ok(None);
        }
        container_of(anode, self.fileset.anodes.read_anode(&self.store, number)?).map(Some)
    }

    fn container_in(
        &self,
        change: &Change<'_>,
        fileset: &LazyFilesetGuard<'_>,
        anode: &Anode,
        namespace: Namespace,
    ) -> FsResult<Option<Anode>> {
        let number = container_number(anode, namespace);
        if number == AnodeNo(0) {
            return Ok(None);
        }
        let found = match &fileset.guard {
            Some(guard) => guard.read_anode(&self.store, change, number)?,
            None => self.fileset.anodes.read_anode_of(&self.store, change, number)?,
        };
        container_of(anode, found).map(Some)
    }

    pub(crate) fn value_of(
        &self,
        anode: &Anode,
        name: AttributeName<'_>,
    ) -> FsResult<Option<Vec<u8>>> {
        if let Some(value) = anode.attributes.get(name) {
            return Ok(Some(value.to_vec()));
        }
        match self.container(anode, name.namespace)? {
            Some(container) => self.store.attribute(&container, name),
            None => Ok(None),
        }
    }

    fn has_value(&self, anode: &Anode, name: AttributeName<'_>) -> FsResult<bool> {
        if anode.attributes.get(name).is_some() {
            return Ok(true);
        }
        match self.container(anode, name.namespace)? {
            Some(container) => self.store.has_attribute(&container, name),
            None => Ok(false),
        }
    }

    fn each_name(&self, anode: &Anode, each: &mut dyn FnMut(AttributeName<'_>)) -> FsResult<()> {
        anode.attributes.iter().for_each(|(name, _)| each(name));
        for namespace in [Namespace::User, Namespace::AccessAcl] {
            if let Some(container) = self.container(anode, namespace)? {
                self.store.attribute_names(&container, each)?;
            }
        }
        Ok(())
    }

    /// Refuses a name that would make the list too long for a listxattr(2). The names of both
    /// access lists are counted even if absent.
    fn check_list(&self, anode: &Anode, name: AttributeName<'_>) -> FsResult<()> {
        if anode.xattr == AnodeNo(0) {
            return Ok(());
        }
        let lists = [ACCESS, DEFAULT].map(|name| name.full().len() + 1);
        let mut bytes = name.full().len() + 1 + lists.iter().sum::<usize>();
        self.each_name(anode, &mut |name| {
            bytes += if name.namespace.is_acl() { 0 } else { name.full().len() + 1 };
        })?;
        if bytes > ATTRIBUTE_LIST_BYTES_MAX { Err(FsError::NoSpace) } else { Ok(()) }
    }

    /// Refuses a value beyond the bound on `user.` attributes, unless it is not longer than before:
    /// a received file may exceed the bound.
    fn check_user_bytes(
        &self,
        anode: &Anode,
        name: AttributeName<'_>,
        value_bytes: usize,
    ) -> FsResult<()> {
        // Without a container, all attributes are in the anode, far below the bound.
        let is_bounded = name.namespace == Namespace::User;
        let container = if is_bounded { self.container(anode, name.namespace)? } else { None };
        let Some(container) = container else { return Ok(()) };
        let (mut bytes, mut before) = (name.full().len() + value_bytes, None);
        let mut each = |it: AttributeName<'_>, value_bytes: usize| {
            if it == name {
                before = Some(value_bytes);
            } else if it.namespace == Namespace::User {
                bytes += it.full().len() + value_bytes;
            }
        };
        anode.attributes.iter().for_each(|(name, value)| each(name, value.len()));
        self.store.attribute_sizes(&container, &mut each)?;
        let is_longer = before.is_none_or(|before| value_bytes > before);
        if is_longer && bytes > USER_ATTRIBUTES_BYTES_MAX {
            return Err(FsError::NoSpace);
        }
        Ok(())
    }

    /// Sets an attribute, in the anode if it fits (E1).
    pub(crate) fn put_value(
        &self,
        change: &mut Change<'_>,
        fileset: &mut LazyFilesetGuard<'_>,
        anode: &mut Anode,
        name: AttributeName<'_>,
        value: &[u8],
    ) -> FsResult<()> {
        if let Some(attributes) = anode.attributes.with(name, value) {
            if anode.attributes.get(name).is_none() {
                self.drop_value(change, fileset, anode, name)?;
            }
            anode.attributes = attributes;
            return Ok(());
        }
        let pages = value_pages(value.len()) + PAGES_BESIDE_VALUE;
        self.names().check_space(pages, Urgency::User)?;
        self.store.alloc.check_pages(narrow(pages))?;
        anode.attributes = anode.attributes.without(name);
        let mut container = match self.container_in(change, fileset, anode, name.namespace)? {
            Some(container) => container,
            None => self.new_container(change, fileset, anode, name.namespace)?,
        };
        self.store.set_attribute(change, &mut container, name, value)?;
        fileset.write_anode(change, &container)
    }

    fn new_container(
        &self,
        change: &mut Change<'_>,
        fileset: &mut LazyFilesetGuard<'_>,
        anode: &mut Anode,
        namespace: Namespace,
    ) -> FsResult<Anode> {
        let number = fileset.guard().allocate_anode(&self.store, change)?;
        let mut container = Anode::new(AnodeKind::Internal, number, anode.fileset, 12);
        container.storage = StorageMode::Blocked;
        container.generation = self.generation_of(change);
        container.birth = change.epoch();
        container.parent = anode.number;
        *container_field(anode, namespace) = number;
        Ok(container)
    }

    pub(crate) fn drop_value(
        &self,
        change: &mut Change<'_>,
        fileset: &mut LazyFilesetGuard<'_>,
        anode: &mut Anode,
        name: AttributeName<'_>,
    ) -> FsResult<bool> {
        if anode.attributes.get(name).is_some() {
            anode.attributes = anode.attributes.without(name);
            return Ok(true);
        }
        let found = self.container_in(change, fileset, anode, name.namespace)?;
        let Some(mut container) = found else { return Ok(false) };
        if !self.store.remove_attribute(change, &mut container, name)? {
            return Ok(false);
        }
        if self.store.has_no_attributes(change, &container)?
            && self.free_container(change, fileset.guard(), &mut container)?
        {
            *container_field(anode, name.namespace) = AnodeNo(0);
        } else {
            fileset.write_anode(change, &container)?;
        }
        Ok(true)
    }

    fn free_container(
        &self,
        change: &mut Change<'_>,
        fileset: &mut FilesetGuard<'_>,
        container: &mut Anode,
    ) -> FsResult<bool> {
        let content = ContainerContent::Pages(PageKind::Attributes);
        if !self.store.truncate_blocks(change, container, 0, content)? {
            return Ok(false);
        }
        fileset.free_anode(&self.store, change, container.number)?;
        Ok(true)
    }

    /// E2: frees the containers of a freed file, as far as one transaction permits. Returns whether
    /// that is complete.
    pub(crate) fn free_attributes(
        &self,
        change: &mut Change<'_>,
        fileset: &mut FilesetGuard<'_>,
        anode: &mut Anode,
    ) -> FsResult<bool> {
        for namespace in [Namespace::User, Namespace::AccessAcl] {
            let Some(mut container) = self.container(anode, namespace)? else { continue };
            if !self.free_container(change, fileset, &mut container)? {
                fileset.write_anode(&self.store, change, &container)?;
                return Ok(false);
            }
            *container_field(anode, namespace) = AnodeNo(0);
        }
        Ok(true)
    }
}

/// The fileset's lock, taken on demand. LOCK: after the vnode's.
pub(crate) struct LazyFilesetGuard<'f> {
    files: Files<'f>,
    guard: Option<FilesetGuard<'f>>,
}

impl<'f> LazyFilesetGuard<'f> {
    pub(crate) fn new(files: &Files<'f>) -> LazyFilesetGuard<'f> {
        LazyFilesetGuard { files: *files, guard: None }
    }

    pub(crate) fn guard(&mut self) -> &mut FilesetGuard<'f> {
        let files = self.files;
        self.guard.get_or_insert_with(|| files.fileset.anodes.lock())
    }

    pub(crate) fn write_anode(&self, change: &mut Change<'_>, anode: &Anode) -> FsResult<()> {
        match &self.guard {
            Some(guard) => guard.write_anode(&self.files.store, change, anode),
            None => self.files.fileset.anodes.write_anode(&self.files.store, change, anode),
        }
    }

    pub(crate) fn settle(self, lsn: Lsn) {
        if let Some(guard) = self.guard {
            guard.settle(lsn);
        }
    }
}
