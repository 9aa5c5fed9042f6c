//! Finds the anodes that differ between two nodes of a family, by number. Skips pages of the anode
//! tables that both nodes share. Changes nothing.
//!
//! An unlinked anode counts as absent, and so do the containers of its attributes: a snapshot may
//! hold files that were unlinked while open.

use std::ops::ControlFlow;

use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE};
use format::fileset::Fileset;
use format::ids::{AnodeNo, FilesetId};
use format::page::SLOTS_PER_PAGE;

use super::read_anode_in;
use crate::container::ContainerVersions;
use crate::convert::wide;
use crate::error::FsResult;
use crate::store::Store;

/// A node of a family that does not change while it is read.
#[derive(Clone, Debug)]
pub(crate) struct NodeView {
    pub(crate) table: Anode,
    pub(crate) family: FilesetId,
    /// Whether to treat unlinked files as present.
    has_all: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct ChangedAnode {
    pub(crate) number: AnodeNo,
    /// `None` if absent or unlinked in the earlier node.
    pub(crate) before: Option<Anode>,
    pub(crate) after: Option<Anode>,
}

impl NodeView {
    pub(crate) fn of(entry: &Fileset) -> NodeView {
        NodeView { table: entry.table_anode(), family: entry.family, has_all: false }
    }

    pub(crate) fn whole(entry: &Fileset) -> NodeView {
        NodeView { has_all: true, ..NodeView::of(entry) }
    }

    /// Returns an anode, if it is linked or is an attribute container of a linked one.
    pub(crate) fn anode(&self, store: &Store, number: AnodeNo) -> FsResult<Option<Anode>> {
        let is_files = number == ROOT_ANODE || number >= FIRST_FILE_ANODE;
        if !is_files {
            return Ok(None);
        }
        let found = read_anode_in(store, &self.table, None, self.family, number)?;
        let Some(anode) = found else { return Ok(None) };
        if self.has_all {
            return Ok(Some(anode));
        }
        if anode.kind != AnodeKind::Internal {
            return Ok(Some(anode).filter(|anode| anode.nlink > 0));
        }
        let owner = read_anode_in(store, &self.table, None, self.family, anode.parent)?;
        let is_named = owner.is_some_and(|owner| {
            owner.nlink > 0 && [owner.xattr, owner.acl].contains(&anode.number)
        });
        Ok(is_named.then_some(anode))
    }
}

impl Store {
    /// Passes each differing anode to `tell`, by number, from `from` on. Without an earlier node
    /// every anode differs.
    pub(crate) fn differing_anodes(
        &self,
        before: Option<&NodeView>,
        after: &NodeView,
        from: AnodeNo,
        tell: &mut dyn FnMut(&ChangedAnode) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let per_page = wide(SLOTS_PER_PAGE);
        let tables = ContainerVersions::new(before.map(|node| &node.table), Some(&after.table));
        let seen = |node: Option<&NodeView>, number| match node {
            Some(node) => node.anode(self, number),
            None => Ok(None),
        };
        self.differing_pages(tables, from.0 / per_page, &mut |page| {
            let first = page.index.saturating_mul(per_page);
            for number in (first.max(from.0)..first.saturating_add(per_page)).map(AnodeNo) {
                let changed = ChangedAnode {
                    number,
                    before: seen(before, number)?,
                    after: seen(Some(after), number)?,
                };
                if changed.before != changed.after && tell(&changed)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}
