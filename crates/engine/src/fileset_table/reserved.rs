//! Space reserved by the files of a snapshot, which the pool counts for each of its clones.
//!
//! A snapshot itself reserves nothing, and has no count: its pointers only repeat the
//! preallocations of its fileset. A clone has the same pointers and is writable, so the pool counts
//! them again.

use std::ops::ControlFlow;

use format::anode::AnodeKind;
use format::fileset::{Cursor, Fileset};
use format::ids::AnodeNo;
use format::page::SLOTS_PER_PAGE;

use super::{MountedFileset, read_anode_in};
use crate::container::{ContainerContent, PointerTarget, PointerVisit, PointerVisitor};
use crate::convert::wide;
use crate::error::FsResult;
use crate::store::Store;

impl MountedFileset {
    pub(crate) fn may_reserve(&self) -> bool {
        self.state.lock().entry.may_reserve
    }
}

struct ReservedSum {
    fragment_shift: u8,
    fragments: u64,
}

impl PointerVisitor for ReservedSum {
    fn enters(&mut self, _page: &PointerVisit) -> FsResult<bool> {
        Ok(true)
    }

    fn visit(&mut self, visit: &PointerVisit) -> FsResult<ControlFlow<()>> {
        if let PointerTarget::Data { shift } = visit.target {
            let reserved = visit.pointer.reserved_fragments(shift, self.fragment_shift);
            self.fragments = self.fragments.saturating_add(u64::from(reserved));
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns the fragments reserved by the files of a snapshot. Reads all its maps, unless its
/// fileset has never reserved anything (PA2).
pub(crate) fn reserved_of(store: &Store, entry: &Fileset) -> FsResult<u64> {
    if !entry.may_reserve {
        return Ok(0);
    }
    let fragment_shift = store.geometry().fragment_shift;
    let mut sum = ReservedSum { fragment_shift, fragments: 0 };
    let table = entry.table_anode();
    let per_page = wide(SLOTS_PER_PAGE);
    let mut next = 0;
    while let Some((page, _)) = store.next_page(&table, next)? {
        next = page + 1;
        for number in page * per_page..(page + 1) * per_page {
            let anode = read_anode_in(store, &table, None, entry.family, AnodeNo(number))?;
            let Some(anode) = anode.filter(|anode| anode.kind == AnodeKind::Regular) else {
                continue;
            };
            let walked = store.walk_container(
                (&anode, number),
                ContainerContent::Data,
                Cursor::START,
                &mut sum,
            )?;
            debug_assert!(walked.is_continue(), "it never breaks");
        }
    }
    Ok(sum.fragments)
}
