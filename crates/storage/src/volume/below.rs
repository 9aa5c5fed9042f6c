//! What lies beneath a space whose changes stay in memory: copies to read, none to write again.
//!
//! # Invariants
//!
//! - BW1: A range of which anything was written is read as it was written, and in no other way:
//!   what lies below is of before.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::ids::Place;
use format::page::PAGE_BYTES;

use super::Volume;
use super::composite::{Composite, Healed, Verify};
use super::striped::RowsKnown;
use crate::convert::to_u64;
use crate::device::{AlignedBuffer, Device, DeviceError, OverlayDevice, Purpose, RequestKind};

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Below {
    pub(super) over: Arc<OverlayDevice>,
    pub(super) composite: Arc<dyn Composite>,
}

impl Below {
    /// As [`Composite::read_copy`].
    pub(super) fn read_copy(
        &self,
        copy: usize,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        if self.over.has_any(offset, to_u64(length_bytes)) {
            // BW1.
            return (copy == 0).then(|| self.over.read(purpose, offset, length_bytes));
        }
        self.composite.read_copy(copy, purpose, offset, length_bytes)
    }

    /// As [`Composite::read_known`].
    pub(super) fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<RowsKnown> {
        // BW1.
        let is_before = !self.over.has_any(offset, to_u64(length_bytes));
        is_before.then(|| self.composite.read_known(offset, length_bytes, known)).flatten()
    }

    /// As [`Composite::heal`], but that nothing is written again.
    pub(super) fn look(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Healed {
        if self.over.has_any(offset, to_u64(length_bytes)) {
            // BW1.
            let written = self.over.read(purpose, offset, length_bytes);
            return Healed::of_copies(std::iter::once(written), verify);
        }
        self.composite.look(purpose, offset, length_bytes, verify)
    }
}

impl Volume {
    /// Notes that the page at `place` changes, and that what it was cannot be read; returns whether
    /// it can be left out: of a space whose changes stay in memory it cannot be read from now on.
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
