//! What the files of a clone reserve: whoever becomes like it takes that on.
//!
//! A clone reserves nothing itself, and no count of it is kept: its pointers say what its fileset
//! had reserved. A fork has the same pointers and is written to, so the pool counts them once more.

use std::ops::ControlFlow;

use format::anode::AnodeKind;
use format::fileset::{Cursor, Fileset};
use format::ids::AnodeNo;
use format::page::SLOTS_PER_PAGE;

use super::{MountedFileset, read_anode_in};
use crate::container::{Content, Target, Visit, Visitor};
use crate::convert::wide;
use crate::error::FsResult;
use crate::store::Store;

impl MountedFileset {
    /// Whether its entry says that pointers of its files may reserve room.
    pub(crate) fn may_reserve(&self) -> bool {
        self.state.lock().entry.may_reserve
    }
}

struct Sum {
    fragment_shift: u8,
    fragments: u64,
}

impl Visitor for Sum {
    fn enters(&mut self, _page: &Visit) -> FsResult<bool> {
        Ok(true)
    }

    fn visit(&mut self, visit: &Visit) -> FsResult<ControlFlow<()>> {
        if let Target::Data { shift } = visit.target {
            let reserved = visit.pointer.reserved_fragments(shift, self.fragment_shift);
            self.fragments = self.fragments.saturating_add(u64::from(reserved));
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Returns how many fragments the files of a clone reserve. Reads all of its maps, but of a clone
/// whose fileset had never reserved anything none (PA2).
pub(crate) fn reserved_of(store: &Store, entry: &Fileset) -> FsResult<u64> {
    if !entry.may_reserve {
        return Ok(0);
    }
    let fragment_shift = store.geometry().fragment_shift;
    let mut sum = Sum { fragment_shift, fragments: 0 };
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
            let walked =
                store.walk_container((&anode, number), Content::Data, Cursor::START, &mut sum)?;
            debug_assert!(walked.is_continue(), "it never breaks");
        }
    }
    Ok(sum.fragments)
}
