//! Placement of files and directories: which disk group new data should come from, as users see and
//! set it: an extended attribute that is not stored as one.
//!
//! # Invariants
//!
//! - PC1: A file and a directory take the placement of the directory that they are made in. What
//!   was written before it was set stays where it is until it is moved for another reason.
//!
//! Not here: what the allocator makes of it (`alloc`).

use format::anode::{Anode, AnodeKind};
use format::placement::Placement;
use runtime::planted::{self, Planted};

use super::Files;
use super::api::{Around, Caller, Ino, XattrMode};
use crate::error::{FsError, FsResult};

/// Its name among extended attributes. Lists do not have it, as those of Ceph's layouts do not:
/// whoever copies a file with its attributes should not pin the copy.
pub(crate) const PLACEMENT: &[u8] = b"user.holdfast.placement";

/// Whether what is of this kind has a placement.
fn has_placement(kind: AnodeKind) -> bool {
    matches!(kind, AnodeKind::Regular | AnodeKind::Directory)
}

/// Returns the placement of what is made in a directory (PC1).
pub(crate) fn handed_down(directory: &Anode, kind: AnodeKind) -> Placement {
    if !has_placement(kind) || planted::is(Planted::PlacementNotInherited) {
        return Placement::Any;
    }
    directory.placement
}

/// Reads a placement as programs write it.
pub(crate) fn parse(value: &[u8]) -> FsResult<Placement> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(Placement::from_text).ok_or(FsError::Invalid)
}

impl Files<'_> {
    /// Returns which disk group new data of a file should come from.
    pub(crate) fn placement(&self, ino: Ino) -> FsResult<Placement> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        Ok(state.anode()?.placement)
    }

    /// Sets which disk group new data of a file should come from; of a directory, what is made in
    /// it.
    ///
    /// # Errors
    ///
    /// [`FsError::NotPermitted`] to who is not the owner, and of what is neither a file nor a
    /// directory; [`FsError::Invalid`] if the pool has no such disk group, or it leaves;
    /// [`FsError::ReadOnly`] in a clone and in what is read-only.
    pub(crate) fn set_placement(
        &self,
        caller: &Caller,
        ino: Ino,
        (placement, mode): (Placement, XattrMode),
        mut around: Option<&mut Around>,
    ) -> FsResult<()> {
        self.check_writable()?;
        self.with_reclaim(|| {
            self.change_attribute(ino, around.as_deref_mut(), &mut |_, _, anode| {
                // A kernel asks no more than whether the file may be written.
                let is_owner = caller.uid == 0 || caller.uid == anode.uid;
                if !is_owner || !has_placement(anode.kind) {
                    return Err(FsError::NotPermitted);
                }
                // It is always there.
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
