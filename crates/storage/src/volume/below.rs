//! The layout under an overlay, for a pool whose changes stay in memory. Its copies are read and
//! never rewritten.
//!
//! # Invariants
//!
//! - BW1: A range with any write in the overlay is read from the overlay alone, because the copies
//!   below are older.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::ids::Place;
use format::page::PAGE_BYTES;

use super::Volume;
use super::composite::{Composite, RepairOutcome, Verify};
use super::striped::KnownRows;
use crate::convert::to_u64;
use crate::device::{AlignedBuffer, Device, DeviceError, IoPurpose, OverlayDevice, RequestKind};

#[derive(Clone, Debug)]
pub(super) struct OverlayBase {
    pub(super) over: Arc<OverlayDevice>,
    pub(super) composite: Arc<dyn Composite>,
}

impl OverlayBase {
    /// Does as [`Composite::read_copy`], under the overlay (BW1).
    pub(super) fn read_copy(
        &self,
        copy: usize,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        if self.over.has_any(offset, to_u64(length_bytes)) {
            // The overlay alone (BW1).
            return (copy == 0).then(|| self.over.read(purpose, offset, length_bytes));
        }
        self.composite.read_copy(copy, purpose, offset, length_bytes)
    }

    pub(super) fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<KnownRows> {
        // The layout below lacks later writes (BW1).
        let is_before = !self.over.has_any(offset, to_u64(length_bytes));
        is_before.then(|| self.composite.read_known(offset, length_bytes, known)).flatten()
    }

    pub(super) fn look(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        if self.over.has_any(offset, to_u64(length_bytes)) {
            // The overlay alone (BW1).
            let written = self.over.read(purpose, offset, length_bytes);
            return RepairOutcome::of_copies(std::iter::once(written), verify);
        }
        self.composite.look(purpose, offset, length_bytes, verify)
    }
}

impl Volume {
    /// Marks the page at `place` unreadable in the overlay: its contents are unreadable, so a
    /// change to it cannot be applied. Returns `false` without an overlay.
    #[must_use]
    pub fn lose_page(&self, place: Place) -> bool {
        let Some(below) = self.below() else { return false };
        let Ok(offset) = self.offset_of(RequestKind::Read, place, to_u64(PAGE_BYTES)) else {
            return false;
        };
        below.over.lose(offset, to_u64(PAGE_BYTES));
        true
    }
}
