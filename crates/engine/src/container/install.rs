//! Map updates: point the map of a file to its written blocks.
//!
//! Blocks below one leaf share one walk. Taken and freed extents are joined, so that free maps and
//! counts change once per run.
//!
//! A leaf of blocks of 16 KiB is split at the first block of 4 KiB below it; see [`super::data`].

use std::collections::BTreeSet;

use format::anode::{Anode, StorageMode};
use format::defect::DefectCode;
use format::ids::Epoch;
use format::map::{
    COARSE_SHIFT, FINE_PER_COARSE, FINE_SHIFT, POINTERS_PER_PAGE, fine_slot, page_index,
    pointer_at, split, split_slot,
};
use format::page::PageKind;
use format::pointer::BlockPointer;

use super::data::{check_split, fine_owner};
use super::entry::{PointerChange, ReservationChange};
use super::map_page::MapPage;
use super::take_off;
use crate::alloc::{Extent, Extents};
use crate::buffer::corrupt;
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::store::{Change, Store};

/// Leaves split per transaction: each logs up to six whole pages.
const SPLITS_MAX: usize = 3;
/// Map pages changed per transaction, except for the last leaf.
const MAP_PAGES_MAX: usize = 64;
// The parts of a divided block share a fine leaf.
const _: () = assert!(POINTERS_PER_PAGE.is_multiple_of(FINE_PER_COARSE));

/// A placed block that awaits its map update.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewBlock {
    /// Offset in the file, in bytes.
    pub(crate) start: u64,
    /// Binary logarithm of the block size.
    pub(crate) shift: u8,
    pub(crate) pointer: BlockPointer,
    /// Least size of the file after the map update.
    pub(crate) size_bytes: u64,
}

/// The limits of one transaction, and its work so far.
#[derive(Debug)]
pub(crate) struct MapUpdateStep {
    groups_max: usize,
    /// Groups with allocated or freed extents.
    groups: BTreeSet<u32>,
    splits: usize,
    /// Map pages changed, including the block at `last_index`.
    map_pages: usize,
    last_index: Option<u64>,
    taken: Extents,
    /// Extents to free: no snapshot has them.
    dropped: Extents,
    /// Fragments that left the file.
    given_up: u64,
    shared_epoch: Epoch,
    kept_fragments: Vec<u32>,
}

impl MapUpdateStep {
    /// Begins a step that ends at `groups_max` changed groups.
    pub(crate) fn new(groups_max: usize) -> MapUpdateStep {
        MapUpdateStep {
            groups_max,
            groups: BTreeSet::new(),
            splits: 0,
            map_pages: 0,
            last_index: None,
            taken: Extents::default(),
            dropped: Extents::default(),
            given_up: 0,
            shared_epoch: Epoch(0),
            kept_fragments: Vec::new(),
        }
    }

    /// Returns the mapped fragments of each block: all, except for a divided block that passes the
    /// end of the file.
    pub(crate) fn kept_fragments(&self) -> &[u32] {
        &self.kept_fragments
    }

    pub(crate) fn is_over(&self) -> bool {
        self.groups.len() >= self.groups_max
            || self.splits >= SPLITS_MAX
            || self.map_pages >= MAP_PAGES_MAX
    }

    /// Counts a leaf, and the pages above it that the previous leaf does not share.
    fn note_leaf(&mut self, index: u64, height: u8) {
        let is_own = |level: &u8| {
            self.last_index.is_none_or(|last| page_index(last, *level) != page_index(index, *level))
        };
        self.map_pages += (0..height).take_while(is_own).count();
        self.last_index = Some(index);
    }

    /// Allocates the mapped extents and frees the replaced ones.
    pub(crate) fn end(self, change: &mut Change<'_>) -> FsResult<()> {
        change.install(&self.taken.in_order())?;
        change.free(&self.dropped.in_order())?;
        Ok(())
    }

    fn note_taken(&mut self, pointer: &BlockPointer, kept: u32) {
        self.groups.insert(pointer.place.group());
        self.kept_fragments.push(kept);
        if kept > 0 {
            self.taken.add(Extent { place: pointer.place, fragments: kept });
        }
    }

    fn note_dropped(&mut self, old: Option<BlockPointer>) {
        if let Some(old) = old {
            self.given_up += u64::from(old.fragments);
            if old.birth <= self.shared_epoch {
                return;
            }
            self.groups.insert(old.place.group());
            self.dropped.add(Extent { place: old.place, fragments: old.fragments });
        }
    }
}

impl Store {
    /// Maps sorted blocks up to the limits of `step`. [`MapUpdateStep::end`] allocates and frees.
    pub(crate) fn install_blocks(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        blocks: &[NewBlock],
        step: &mut MapUpdateStep,
    ) -> FsResult<()> {
        let shift = anode.block_shift;
        let leaf = |block: &NewBlock| page_index(block.start >> shift, 0);
        let (taken, given_up) = (step.taken.fragments(), step.given_up);
        step.shared_epoch = change.shared_epoch();
        // These blocks may be of another file.
        step.last_index = None;
        for below in blocks.chunk_by(|one, next| leaf(one) == leaf(next)) {
            self.install_below_leaf(change, anode, below, step)?;
        }
        anode.fragments += step.taken.fragments() - taken;
        take_off(&mut anode.fragments, step.given_up - given_up, DefectCode::AN004)
    }

    fn install_below_leaf(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        blocks: &[NewBlock],
        step: &mut MapUpdateStep,
    ) -> FsResult<()> {
        let Some(last) = blocks.last().filter(|_| !step.is_over()) else { return Ok(()) };
        change.near = last.pointer.place;
        if anode.storage == StorageMode::Inline {
            // The first block replaces inline data and contains it (I1 of the vnodes).
            anode.storage = StorageMode::Blocked;
            anode.root.fill(0);
        }
        let index = last.start >> anode.block_shift;
        self.grow(change, anode, index)?;
        if anode.height == 0 && blocks.iter().any(|block| block.shift < anode.block_shift) {
            self.raise(change, anode)?;
        }
        let leaf = match anode.height {
            0 => None,
            height => {
                step.note_leaf(index, height);
                Some(self.leaf_to_edit(change, anode, index)?)
            }
        };
        for block in blocks {
            if step.is_over() {
                break;
            }
            anode.size_bytes = anode.size_bytes.max(block.size_bytes);
            let kept = match leaf {
                Some(leaf) => self.install_in_leaf(change, anode, leaf, block, step)?,
                None => {
                    let version = PointerChange::Version(Some(&block.pointer));
                    let old = self.set_unit(change, anode, block.start, block.shift, version)?;
                    step.note_dropped(old);
                    block.pointer.fragments
                }
            };
            step.note_taken(&block.pointer, kept);
        }
        Ok(())
    }

    /// Maps a block, and splits the leaf if necessary. Returns the mapped fragments. Parts past the
    /// end of the file are not mapped, as after a truncation.
    fn install_in_leaf(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        leaf: MapPage,
        block: &NewBlock,
        step: &mut MapUpdateStep,
    ) -> FsResult<u32> {
        let index = block.start >> anode.block_shift;
        let version = PointerChange::Version(Some(&block.pointer));
        if !leaf.is_split(self, change)? {
            if block.shift == anode.block_shift {
                step.note_dropped(self.set_coarse(change, anode, leaf, index, version)?);
                return Ok(block.pointer.fragments);
            }
            self.split_leaf(change, anode, leaf, step)?;
            step.splits += 1;
        }
        check_split(anode)?;
        let fine = block.start >> FINE_SHIFT;
        let dropped = |old| step.note_dropped(Some(old));
        if block.shift == FINE_SHIFT {
            self.set_fine(change, anode, leaf, fine, &[version], dropped)?;
            return Ok(block.pointer.fragments);
        }
        let fragment_shift = self.geometry().fragment_shift;
        let end = anode.size_bytes.div_ceil(1 << FINE_SHIFT);
        let parts = [0, 1, 2, 3].map(|quarter| {
            let part = block.pointer.quarter(quarter, fragment_shift);
            part.filter(|_| fine + wide(quarter) < end)
        });
        let entries = parts.each_ref().map(|part| PointerChange::Version(part.as_ref()));
        self.set_fine(change, anode, leaf, fine, &entries, dropped)?;
        Ok(parts.iter().flatten().map(|part| part.fragments).sum())
    }

    fn split_leaf(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        leaf: MapPage,
        step: &mut MapUpdateStep,
    ) -> FsResult<()> {
        check_split(anode)?;
        let fragment_shift = self.geometry().fragment_shift;
        let page = leaf.edit(change)?;
        let pointers: Vec<Option<BlockPointer>> =
            (0..index_wide(POINTERS_PER_PAGE)).map(|slot| pointer_at(page, slot)).collect();
        let mut stored = pointers.iter().flatten().filter_map(|pointer| pointer.stored());
        if stored.any(|pointer| !pointer.is_divisible()) {
            return Err(corrupt(
                DefectCode::MP003
                    .found("a block that has no quarters")
                    .of(anode.fileset, anode.number),
            ));
        }
        split(page);
        let end = anode.size_bytes.div_ceil(1 << FINE_SHIFT);
        let first = leaf.owner.index * FINE_PER_COARSE;
        let leaves = pointers.chunks(index_wide(POINTERS_PER_PAGE / FINE_PER_COARSE));
        for (first, pointers) in (first..).step_by(index_wide(POINTERS_PER_PAGE)).zip(leaves) {
            let mut parts = Vec::with_capacity(index_wide(POINTERS_PER_PAGE));
            for pointer in pointers {
                self.count_reserved(change, anode, COARSE_SHIFT, *pointer, None)?;
                for quarter in 0..index_wide(FINE_PER_COARSE) {
                    let part = pointer.as_ref().and_then(|p| p.quarter(quarter, fragment_shift));
                    let is_past = first + wide(parts.len()) >= end;
                    step.note_dropped(part.filter(|_| is_past));
                    parts.push((part.filter(|_| !is_past), pointer.is_some_and(|p| p.is_reserved)));
                }
            }
            let entry = |part| match part {
                &(None, true) => PointerChange::Reserved,
                (part, _) => PointerChange::Version(part.as_ref()),
            };
            let entries: Vec<PointerChange<'_>> = parts.iter().map(entry).collect();
            self.set_fine(change, anode, leaf, first, &entries, |_| {})?;
        }
        Ok(())
    }

    /// Changes pointers of a fine leaf below `above`, from 4 KiB block `first` on. Passes blocks to
    /// free to `dropped`.
    pub(super) fn set_fine(
        &self,
        change: &mut Change<'_>,
        anode: &mut Anode,
        above: MapPage,
        first: u64,
        entries: &[PointerChange<'_>],
        mut dropped: impl FnMut(BlockPointer),
    ) -> FsResult<()> {
        let (slot, below) = (split_slot(first), fine_owner(anode, first));
        let leaf = match above.pointer_to_change(change, slot)? {
            Some(found) => found.place,
            None if entries.iter().all(|entry| entry.after(None).is_none()) => return Ok(()),
            None => {
                let leaf = change.add_page(PageKind::Map, below)?;
                let fragments = self.geometry().page_fragments();
                anode.fragments += u64::from(fragments);
                let to_leaf = BlockPointer::to_page(leaf, fragments, change.epoch());
                above.set(change, slot, Some(&to_leaf))?;
                leaf
            }
        };
        let leaf = MapPage::new(leaf, below);
        leaf.raise_birth_max(change)?;
        let mut reserved = ReservationChange::new(FINE_SHIFT, self.geometry().fragment_shift);
        let slots = fine_slot(first)..fine_slot(first) + entries.len();
        leaf.replace(change, slots, |nth, old| {
            let new = entries[nth].after(old);
            reserved.note(old, new);
            entries[nth].dropped(old).map(&mut dropped);
            new
        })?;
        self.count(change, anode, reserved)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use crate::api::{Caller, FileKind, FileSystem, NewInode};
    use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 64 << 20;

    /// Goal: a transaction stays within its log credits (T4, asserted in test builds), however
    /// scattered the blocks.
    #[test]
    fn blocks_far_apart_are_installed_by_several_transactions() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let create = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let open = || {
            let clock = Arc::new(ManualClock::new());
            Pool::open(Arc::clone(&device), clock, PoolOpenOptions::default()).expect("it opens")
        };
        let pool = open();
        let (caller, new) = (Caller::root(), NewInode::new(FileKind::Regular, 0o600));
        let ino = pool.create(&caller, pool.root(), b"f", new, None).expect("there is room").ino;
        let blocks = [(1_u64 << 20, 1), (1 << 30, 2), (64 << 30, 3)];
        for (apart, byte) in blocks {
            for number in 0..64 {
                let offset = number * apart;
                pool.write(&caller, ino, offset, &[byte; 4096]).expect("there is room");
            }
            pool.fsync(&caller, ino, false).expect("memory does not fail");
        }
        drop(pool);
        let pool = open();
        let ino = pool.lookup(&caller, pool.root(), b"f").expect("it is there").ino;
        for (apart, byte) in blocks {
            for number in 1..64 {
                let mut bytes = Vec::new();
                pool.read(&caller, ino, number * apart, 4096, &mut bytes).expect("it is whole");
                assert_eq!(bytes, [byte; 4096], "block {number} of those {apart} apart");
            }
        }
    }
}
