//! Which size of block a part of a file has, or takes when it is written.
//!
//! Policy: a file is written in blocks of its own size. A small overwrite of a block of 16 KiB that
//! is in the map takes blocks of 4 KiB instead, and installing these splits the leaf, without
//! reading what the block holds ([`crate::container`]). Below a split leaf whatever does not cover
//! 16 KiB takes blocks of 4 KiB.
//!
//! # Invariants
//!
//! - UN1: Blocks that wait to be installed do not overlap.
//! - UN2: Over a leaf that is not split, a block of 4 KiB is placed only where the block of 16 KiB
//!   lies wholly inside the size on disk; what then cuts or passes the end goes by 16 KiB again. So
//!   V4 can be kept block by block.

use std::sync::Arc;

use format::map::{COARSE_SHIFT, FINE_SHIFT};

use super::file::Writing;
use super::{Core, VnodeState};
use crate::error::FsResult;
use crate::segment::Block;

/// Files of at most this many bytes are never split: two map pages would cost more than they save.
const UNSPLIT_BYTES_MAX: u64 = 32 << 10;

/// A range of a file that is written as one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where it begins in the file, in bytes.
    pub(crate) start: u64,
    /// Its size: binary logarithm.
    pub(crate) shift: u8,
}

impl Span {
    /// Returns the span of `1 << shift` bytes that has the byte at `offset`.
    pub(crate) fn around(offset: u64, shift: u8) -> Span {
        Span { start: offset >> shift << shift, shift }
    }

    /// Returns its size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        1 << self.shift
    }

    /// Returns where it ends in the file, in bytes.
    pub(crate) fn end(self) -> u64 {
        self.start.saturating_add(self.bytes())
    }

    /// Returns how many of the first `size_bytes` of the file lie in it.
    pub(crate) fn valid_bytes(self, size_bytes: u64) -> u64 {
        size_bytes.saturating_sub(self.start).min(self.bytes())
    }
}

impl Block {
    /// Returns the part of the file that the block holds.
    pub(crate) fn span(&self) -> Span {
        let shift = self.owner.block_shift;
        Span { start: self.owner.index << shift, shift }
    }
}

impl VnodeState {
    /// Returns the block that waits to be installed and has the byte at `offset`.
    pub(super) fn waiting_at(&self, offset: u64) -> Option<&Arc<Block>> {
        let (_, block) = self.pending.range(..=offset).next_back()?;
        (block.span().end() > offset).then_some(block)
    }

    /// Returns the block that waits to be installed and holds just this part of the file.
    pub(super) fn waiting_as(&self, span: Span) -> Option<&Arc<Block>> {
        self.pending.get(&span.start).filter(|block| block.span() == span)
    }

    /// Returns where the blocks begin that wait to be installed and lie in `span` (UN1: wholly).
    pub(super) fn waiting_in(&self, span: Span) -> Vec<u64> {
        self.pending.range(span.start..span.end()).map(|(start, _)| *start).collect()
    }
}

impl Writing<'_> {
    /// Returns the span that a write of `length` bytes at `offset` begins in.
    pub(super) fn span_to_write(&mut self, offset: u64, length: u64) -> FsResult<Span> {
        let anode = self.state.anode()?;
        let span = Span::around(offset, anode.block_shift);
        let covers_all = span.start == offset && length >= span.bytes();
        if span.shift != COARSE_SHIFT || covers_all || self.state.waiting_as(span).is_some() {
            return Ok(span);
        }
        let unit = self.leaves.unit(anode, offset)?;
        let is_overwrite = span.end() <= anode.size_bytes
            && anode.size_bytes > UNSPLIT_BYTES_MAX
            && unit.pointer.is_some_and(|pointer| pointer.is_divisible());
        let is_fine = unit.is_fine(anode) || is_overwrite;
        Ok(if is_fine { Span::around(offset, FINE_SHIFT) } else { span })
    }

    /// Returns the block of the file's own size around `span` if its leaf would be split for that.
    pub(super) fn unsplit_span(&mut self, span: Span) -> FsResult<Option<Span>> {
        let anode = self.state.anode()?;
        let is_whole = span.shift == anode.block_shift;
        if is_whole || self.leaves.unit(anode, span.start)?.is_fine(anode) {
            return Ok(None);
        }
        Ok(Some(Span::around(span.start, anode.block_shift)))
    }
}

impl Core {
    /// Returns the span that has the last byte of the file, or begins at its end.
    pub(super) fn span_of_end(&self, state: &VnodeState) -> FsResult<Span> {
        let anode = state.anode()?;
        let span = Span::around(state.size_bytes, anode.block_shift);
        if span.shift != COARSE_SHIFT
            || span.start == state.size_bytes
            || state.waiting_as(span).is_some()
        {
            return Ok(span);
        }
        let unit = self.store.unit(anode, state.size_bytes)?;
        Ok(if unit.is_fine(anode) { Span::around(state.size_bytes, FINE_SHIFT) } else { span })
    }
}
