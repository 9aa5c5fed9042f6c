//! Files of at most 256 bytes, with their content in the anode.
//!
//! A write changes size and bytes of the anode together, so every transaction writes a consistent
//! state (V3). Growth past 256 bytes moves the content to blocks; a truncate to zero returns it to
//! the anode.
//!
//! # Invariants
//!
//! - I1: While a file with content in its anode has dirty blocks, the first block is one of them
//!   and has that content. V4 maps it first, which drops the content from the anode.
//! - I2: The anode's bytes past the size are zero ([`format::anode`], A3).

use crate::file::Writeback;
use std::ops::Range;

use format::anode::{Anode, INLINE_BYTES_MAX, StorageMode};
use storage::device::AlignedBuffer;

use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::file::VnodeState;
use crate::file::unit::BlockSpan;
use crate::segment::BlockOrigin;

pub(super) fn is_inline(anode: &Anode) -> bool {
    anode.storage == StorageMode::Inline
}

pub(super) fn inline_bytes(anode: &Anode, range: Range<u64>) -> &[u8] {
    let limit = wide(INLINE_BYTES_MAX);
    &anode.root[index_wide(range.start.min(limit))..index_wide(range.end.min(limit))]
}

/// I2: zeroes the content past `size_bytes`.
pub(super) fn cut_inline(anode: &mut Anode, size_bytes: u64) {
    anode.root[index_wide(size_bytes.min(wide(INLINE_BYTES_MAX)))..].fill(0);
}

pub(super) fn zero_inline(anode: &mut Anode, range: Range<u64>) {
    let limit = wide(INLINE_BYTES_MAX);
    let (start, end) = (range.start.min(limit), range.end.min(limit));
    if start < end {
        anode.root[index_wide(start)..index_wide(end)].fill(0);
    }
}

/// Gives an anode without content the storage for its size: inline or blocks.
pub(super) fn settle_storage(anode: &mut Anode) {
    if anode.size_bytes == 0 && anode.height == 0 && anode.fragments == 0 {
        anode.storage = StorageMode::Inline;
        anode.root.fill(0);
    } else if is_inline(anode) && anode.size_bytes > wide(INLINE_BYTES_MAX) {
        anode.storage = StorageMode::Blocked;
        anode.root.fill(0);
    }
}

impl Writeback<'_> {
    /// Writes into the anode if the file stays inline; returns whether it did.
    pub(super) fn write_inline(
        &self,
        state: &mut VnodeState,
        offset: u64,
        data: &[u8],
    ) -> FsResult<bool> {
        let end = offset.saturating_add(wide(data.len()));
        let fits = end <= wide(INLINE_BYTES_MAX) && state.pending.is_empty();
        if !fits || !is_inline(state.anode()?) {
            return Ok(false);
        }
        let size_bytes = state.size_bytes.max(end);
        let anode = state.anode_mut()?;
        anode.root[index_wide(offset)..index_wide(end)].copy_from_slice(data);
        anode.size_bytes = size_bytes;
        state.size_bytes = size_bytes;
        Ok(true)
    }

    /// I1: moves the anode's content into a dirty first block.
    pub(super) fn leave_inline(&self, state: &mut VnodeState) -> FsResult<()> {
        let anode = state.anode()?;
        if !is_inline(anode) || anode.size_bytes == 0 || !state.pending.is_empty() {
            return Ok(());
        }
        let span = BlockSpan::around(0, anode.block_shift);
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        buffer[..INLINE_BYTES_MAX].copy_from_slice(&anode.root);
        let size_bytes = anode.size_bytes;
        let (mut writing, length) = (self.writing(state), index_wide(size_bytes));
        self.place_block(&mut writing, span, buffer.into(), length, BlockOrigin::User)?;
        if let Some(block) = state.pending.get(&span.start) {
            block.set_file_bytes(size_bytes);
        }
        Ok(())
    }
}
