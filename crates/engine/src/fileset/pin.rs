//! Obstacles to the deletion of a snapshot: pins of readers, holds of users, clones and streams.

use crate::api::ANOTHER_IS_FREED;
use crate::api::FsError;
use crate::fileset::clone::branches_of;
use crate::fileset_table::diff::NodeView;
use crate::fileset_table::table::FilesetNode;
use format::fileset::{Fileset as Entry, NamePart};

use runtime::planted;

use crate::error::FsResult;
use crate::file::{Core, Snapshotter};
use crate::fileset_table::table::FilesetIndex;

/// Protects a snapshot from deletion while its maps are read.
#[derive(Debug)]
pub(crate) struct SnapshotPin<'c> {
    core: &'c Core,
    pub(crate) slot: u32,
    pub(crate) entry: Entry,
    pub(crate) node: NodeView,
}

impl Drop for SnapshotPin<'_> {
    fn drop(&mut self) {
        // The lock succeeds, since pinning has loaded the index.
        if let Ok(mut index) = self.core.filesets.table.lock(&self.core.store) {
            index.unpin(self.slot);
        }
    }
}

impl<'c> Snapshotter<'c> {
    pub(crate) fn pin_snapshot(
        &self,
        path: &[NamePart],
        snapshot: &NamePart,
    ) -> FsResult<SnapshotPin<'c>> {
        let mut index = self.filesets.table.lock(&self.store)?;
        let slot = index.slot_of_node(path, Some(snapshot))?;
        self.pin_slot(&mut index, slot)
    }

    pub(crate) fn pin_slot(
        &self,
        index: &mut FilesetIndex,
        slot: u32,
    ) -> FsResult<SnapshotPin<'c>> {
        let entry = index.read_entry(&self.store, slot)?;
        index.pin(slot);
        Ok(SnapshotPin { core: self.0, slot, node: NodeView::of(&entry), entry })
    }
}

pub(super) fn check_deletable(index: &FilesetIndex, slot: u32) -> FsResult<()> {
    let in_use = |by: String| FsError::FilesetInUse { name: index.path_of(slot), by };
    if index.node(slot).is_some_and(|node| index.is_family_freed(node.family)) {
        return Err(in_use(ANOTHER_IS_FREED.to_owned()));
    }
    needed_by(index, slot).map_or(Ok(()), |by| Err(in_use(by)))
}

pub(crate) fn needed_by(index: &FilesetIndex, slot: u32) -> Option<String> {
    let holds: Vec<_> = index.holds_of(slot).map(NamePart::as_str).collect();
    if !holds.is_empty() && !planted!(HoldIgnored) {
        return Some(format!("it is held by {}: release it first", holds.join(", ")));
    }
    if index.is_pinned(slot) {
        return Some("it is being read: try again when that is done".to_owned());
    }
    let is_receiving = |child: &FilesetNode| child.is_receiving();
    if let Some(child) = index.children_in_family(slot).find(|child| is_receiving(child)) {
        let to = index.path_of(child.slot);
        return Some(format!(
            "a stream to {to} that begins from it comes, or broke off: receive the rest, or give \
             up what came (`holdfast receive POOL:{to} --abort`)"
        ));
    }
    // DL3: two successors could each share other blocks, and the walk compares with one only. A
    // successor being freed does not count.
    let children = index.children_in_family(slot).filter(|child| !child.is_deleted());
    if children.count() < 2 {
        return None;
    }
    let branches = branches_of(index, slot);
    let which = if branches.len() == 2 { "all of one of them" } else { "all of them but one" };
    let (count, branches) = (branches.len(), branches.join(", "));
    Some(format!("{count} branches go back to it, {branches}: delete {which} first"))
}
