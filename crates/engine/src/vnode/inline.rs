//! Files of at most 256 bytes, whose content is in the anode.
//!
//! A write to such a file changes the anode in memory, size and bytes at once, so every
//! transaction that writes the anode writes a content that some write has left (V3). A file leaves
//! its anode when a write or a truncate takes it past 256 bytes, and comes back when it is cut to
//! nothing.
//!
//! # Invariants
//!
//! - I1: While blocks of a file wait that still has content in its anode, the first block waits too
//!   and has that content. V4 then installs it before any other, and with it the anode gives the
//!   content up.
//! - I2: The anode's bytes behind the size are zero ([`format::anode`], A3).

use std::ops::Range;

use format::anode::{Anode, INLINE_BYTES_MAX, StorageMode};
use storage::device::AlignedBuffer;

use super::unit::Span;
use super::{Core, VnodeState};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;
use crate::segment::Origin;

/// Whether the content is in the anode.
pub(super) fn is_inline(anode: &Anode) -> bool {
    anode.storage == StorageMode::Inline
}

/// Returns what the anode has of the bytes from `at` to before `end`; behind it they are zero.
pub(super) fn inline_bytes(anode: &Anode, range: Range<u64>) -> &[u8] {
    let limit = wide(INLINE_BYTES_MAX);
    &anode.root[index_wide(range.start.min(limit))..index_wide(range.end.min(limit))]
}

/// I2: cuts the content in the anode.
pub(super) fn cut_inline(anode: &mut Anode, size_bytes: u64) {
    anode.root[index_wide(size_bytes.min(wide(INLINE_BYTES_MAX)))..].fill(0);
}

/// Makes what the anode has of `range` zero.
pub(super) fn zero_inline(anode: &mut Anode, range: Range<u64>) {
    let limit = wide(INLINE_BYTES_MAX);
    let (start, end) = (range.start.min(limit), range.end.min(limit));
    if start < end {
        anode.root[index_wide(start)..index_wide(end)].fill(0);
    }
}

/// Gives an anode the storage that its size needs: blocks past 256 bytes, none for nothing. Nothing
/// is in either but holes.
pub(super) fn settle_storage(anode: &mut Anode) {
    if anode.size_bytes == 0 && anode.height == 0 && anode.fragments == 0 {
        anode.storage = StorageMode::Inline;
        anode.root.fill(0);
    } else if is_inline(anode) && anode.size_bytes > wide(INLINE_BYTES_MAX) {
        anode.storage = StorageMode::Blocked;
        anode.root.fill(0);
    }
}

impl Core {
    /// Writes into the anode if the file is there and stays there. Returns whether it did.
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

    /// I1: before blocks are written, the content of the anode becomes the first of them.
    pub(super) fn leave_inline(&self, state: &mut VnodeState) -> FsResult<()> {
        let anode = state.anode()?;
        if !is_inline(anode) || anode.size_bytes == 0 || !state.pending.is_empty() {
            return Ok(());
        }
        let span = Span::around(0, anode.block_shift);
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        buffer[..INLINE_BYTES_MAX].copy_from_slice(&anode.root);
        let size_bytes = anode.size_bytes;
        let (mut writing, length) = (self.writing(state), index_wide(size_bytes));
        self.place_block(&mut writing, span, buffer.into(), length, Origin::User)?;
        if let Some(block) = state.pending.get(&span.start) {
            block.set_file_bytes(size_bytes);
        }
        Ok(())
    }
}
