//! Placement: the preferred disk group of new data, visible as an extended attribute.
//!
//! # Invariants
//!
//! - PC1: A new file or directory inherits the placement of its directory. Existing data stays
//!   until it is moved for another reason.
//!
//! Not here: the effect on allocation (`alloc`).

use format::anode::{Anode, AnodeKind};
use format::placement::Placement;

use crate::api::{AttributeChange, Caller, Ino, XattrMode};
use crate::error::{FsError, FsResult};
use crate::file::Files;

/// Attribute name. listxattr(2) omits it, as Ceph's layouts: else a copy of all attributes would
/// also pin the copy to the disk group.
pub(crate) const PLACEMENT: &[u8] = b"user.holdfast.placement";

fn has_placement(kind: AnodeKind) -> bool {
    matches!(kind, AnodeKind::Regular | AnodeKind::Directory)
}

/// Returns the placement of a new file in a directory (PC1).
pub(crate) fn handed_down(directory: &Anode, kind: AnodeKind) -> Placement {
    if !has_placement(kind) {
        return Placement::Any;
    }
    directory.placement
}

pub(crate) fn parse(value: &[u8]) -> FsResult<Placement> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(Placement::from_text).ok_or(FsError::Invalid)
}

impl Files<'_> {
    pub(crate) fn placement(&self, ino: Ino) -> FsResult<Placement> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        Ok(state.anode()?.placement)
    }

    /// Sets the placement of a file, or for new files of a directory.
    ///
    /// # Errors
    /// [`FsError::NotPermitted`] unless the caller owns the file, or for other kinds;
    /// [`FsError::Invalid`] if the disk group does not exist or is being removed;
    /// [`FsError::ReadOnly`] in a snapshot or read-only fileset.
    pub(crate) fn set_placement(
        &self,
        caller: &Caller,
        ino: Ino,
        (placement, mode): (Placement, XattrMode),
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        self.check_writable()?;
        self.space_reclaim().with_reclaim(|| {
            self.xattrs().change_attribute(ino, around.as_deref_mut(), &mut |_, _, anode| {
                // Ownership is checked here, since the kernel checks only write permission.
                let is_owner = caller.uid == 0 || caller.uid == anode.uid;
                if !is_owner || !has_placement(anode.kind) {
                    return Err(FsError::NotPermitted);
                }
                // The attribute always exists, so it cannot be created.
                if matches!(mode, XattrMode::Create | XattrMode::CreateAndReplace) {
                    return Err(FsError::Exists);
                }
                self.store.alloc.check_placement(placement).map_err(|_| FsError::Invalid)?;
                let is_new = anode.placement != placement;
                anode.placement = placement;
                Ok(is_new)
            })
        })
    }
}
