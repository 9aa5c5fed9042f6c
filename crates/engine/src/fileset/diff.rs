//! Where two nodes of a family differ: which anodes, by number. It goes into no page of the anode
//! tables that both have at the same place, and changes nothing.
//!
//! What has no name, and the containers of its attributes, counts as not there: a clone may hold
//! files that lost their last name while somebody had them open.

use std::ops::ControlFlow;

use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE};
use format::fileset::Fileset;
use format::ids::{AnodeNo, FilesetId};
use format::page::SLOTS_PER_PAGE;
use runtime::planted::{self, Planted};

use super::read_anode_in;
use crate::container::Versions;
use crate::convert::wide;
use crate::error::FsResult;
use crate::store::Store;

/// A node of a family: one that does not change while it is looked at.
#[derive(Clone, Debug)]
pub(crate) struct NodeView {
    pub(crate) table: Anode,
    pub(crate) family: FilesetId,
    /// Whether files without a name count as well.
    has_all: bool,
}

/// An anode that two nodes have differently.
#[derive(Clone, Debug)]
pub(crate) struct ChangedAnode {
    pub(crate) number: AnodeNo,
    /// `None`: the earlier node has it not, or without a name.
    pub(crate) before: Option<Anode>,
    pub(crate) after: Option<Anode>,
}

impl NodeView {
    /// Returns the node that an entry describes.
    pub(crate) fn of(entry: &Fileset) -> NodeView {
        NodeView { table: entry.table_anode(), family: entry.family, has_all: false }
    }

    /// Returns the node that an entry describes, with all anodes that it has.
    pub(crate) fn whole(entry: &Fileset) -> NodeView {
        NodeView { has_all: true, ..NodeView::of(entry) }
    }

    /// Returns an anode that has a name, or belongs to one that has.
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
    /// Tells of each anode, from number `from` on and by rising number, that the two nodes have
    /// differently. Without an earlier one that is every anode.
    pub(crate) fn differing_anodes(
        &self,
        before: Option<&NodeView>,
        after: &NodeView,
        from: AnodeNo,
        tell: &mut dyn FnMut(&ChangedAnode) -> FsResult<ControlFlow<()>>,
    ) -> FsResult<ControlFlow<()>> {
        let per_page = wide(SLOTS_PER_PAGE);
        let tables = Versions::new(before.map(|node| &node.table), Some(&after.table));
        let seen = |node: Option<&NodeView>, number| match node {
            Some(node) => node.anode(self, number),
            None => Ok(None),
        };
        self.differing_pages(tables, from.0 / per_page, &mut |page| {
            if planted::is(Planted::DiffSkipsSubtree) && page.index % 5 == 4 {
                return Ok(ControlFlow::Continue(()));
            }
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
