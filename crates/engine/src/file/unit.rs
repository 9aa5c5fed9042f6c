//! Block sizes within a file.
//!
//! Policy: a file is written in blocks of its own size. A small overwrite of a mapped 16 KiB block
//! uses 4 KiB blocks, whose map update splits the leaf, without reading the old block
//! ([`crate::container`]). Under a split leaf, a write that does not cover a whole 16 KiB block
//! uses 4 KiB blocks.
//!
//! # Invariants
//!
//! - UN1: Dirty blocks do not overlap.
//! - UN2: Under an unsplit leaf, a 4 KiB block is placed only within a 16 KiB block wholly inside
//!   the size on disk. Writes and truncates at the end use 16 KiB again. So the last block on disk
//!   and its dirty version have the same span, as V4 needs.

use std::sync::Arc;

use format::map::{COARSE_SHIFT, FINE_SHIFT};

use crate::error::FsResult;
use crate::file::write::FileWriter;
use crate::file::{Core, VnodeState};
use crate::segment::Block;

/// Files up to this size are never split: two map pages would cost more than they save.
const UNSPLIT_BYTES_MAX: u64 = 32 << 10;

/// A range of a file written as one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockSpan {
    pub(crate) start: u64,
    /// Binary logarithm of the size.
    pub(crate) shift: u8,
}

impl BlockSpan {
    pub(crate) fn around(offset: u64, shift: u8) -> BlockSpan {
        BlockSpan { start: offset >> shift << shift, shift }
    }

    pub(crate) fn bytes(self) -> u64 {
        1 << self.shift
    }

    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(self.bytes())
    }

    /// Returns the number of bytes that a file of `size_bytes` has in the span.
    pub(crate) fn valid_bytes(self, size_bytes: u64) -> u64 {
        size_bytes.saturating_sub(self.start).min(self.bytes())
    }
}

impl Block {
    pub(crate) fn span(&self) -> BlockSpan {
        let shift = self.owner.block_shift;
        BlockSpan { start: self.owner.index << shift, shift }
    }
}

impl VnodeState {
    pub(crate) fn waiting_at(&self, offset: u64) -> Option<&Arc<Block>> {
        let (_, block) = self.pending.range(..=offset).next_back()?;
        (block.span().end() > offset).then_some(block)
    }

    pub(super) fn waiting_as(&self, span: BlockSpan) -> Option<&Arc<Block>> {
        self.pending.get(&span.start).filter(|block| block.span() == span)
    }

    /// Returns the starts of the dirty blocks in `span` (UN1: each is wholly in it).
    pub(crate) fn waiting_in(&self, span: BlockSpan) -> Vec<u64> {
        self.pending.range(span.start..span.end()).map(|(start, _)| *start).collect()
    }
}

impl FileWriter<'_> {
    pub(super) fn span_to_write(&mut self, offset: u64, length: u64) -> FsResult<BlockSpan> {
        let anode = self.state.anode()?;
        let span = BlockSpan::around(offset, anode.block_shift);
        let covers_all = span.start == offset && length >= span.bytes();
        if span.shift != COARSE_SHIFT || covers_all || self.state.waiting_as(span).is_some() {
            return Ok(span);
        }
        let unit = self.leaves.unit(anode, offset)?;
        let is_overwrite = span.end() <= anode.size_bytes
            && anode.size_bytes > UNSPLIT_BYTES_MAX
            && unit.pointer.is_some_and(|pointer| pointer.is_divisible());
        let is_fine = unit.is_fine(anode) || is_overwrite;
        Ok(if is_fine { BlockSpan::around(offset, FINE_SHIFT) } else { span })
    }

    /// Returns the full-size block around `span`, if `span` would split its leaf.
    pub(super) fn unsplit_span(&mut self, span: BlockSpan) -> FsResult<Option<BlockSpan>> {
        let anode = self.state.anode()?;
        let is_whole = span.shift == anode.block_shift;
        if is_whole || self.leaves.unit(anode, span.start)?.is_fine(anode) {
            return Ok(None);
        }
        Ok(Some(BlockSpan::around(span.start, anode.block_shift)))
    }
}

impl Core {
    /// Returns the span that contains the file's last byte, or that starts at its end.
    pub(super) fn span_of_end(&self, state: &VnodeState) -> FsResult<BlockSpan> {
        let anode = state.anode()?;
        let span = BlockSpan::around(state.size_bytes, anode.block_shift);
        if span.shift != COARSE_SHIFT
            || span.start == state.size_bytes
            || state.waiting_as(span).is_some()
        {
            return Ok(span);
        }
        let unit = self.store.unit(anode, state.size_bytes)?;
        Ok(if unit.is_fine(anode) { BlockSpan::around(state.size_bytes, FINE_SHIFT) } else { span })
    }
}
