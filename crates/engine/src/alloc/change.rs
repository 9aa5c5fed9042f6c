//! Logged changes of free maps and space counts.

use std::sync::Arc;

use format::bitmap::BITS_PER_PAGE;
use format::defect::DefectCode;
use format::group::{
    DESCRIPTOR_FRAGMENTS_USED_OFFSET, SegmentUsage, TOTAL_FRAGMENTS_USED_OFFSET, USAGES_PER_PAGE,
};

use super::group::AllocationGroup;
use super::{Allocator, Extent, Ledger};
use crate::buffer::{PageBuffer, PageRef, corrupt, page_of};
use crate::convert::index;
use crate::error::FsResult;
use crate::journal::Tx;

/// The map and usage pages used last. Extents in order of place need each page once.
#[derive(Default)]
pub(super) struct LastUsedPages {
    /// A free map page, by group and page.
    free_map: Option<((u32, u32), Arc<PageBuffer>, PageRef)>,
    /// A segment usage page, by group and page.
    usage: Option<((u32, u32), Arc<PageBuffer>)>,
}

impl Allocator {
    /// Frees extents, which stay pending until the next checkpoint (G2). Sorted extents need one
    /// lookup per map page.
    ///
    /// # Errors
    ///
    /// [`FsError::Corrupt`](crate::error::FsError::Corrupt) if an extent is not allocated, or a
    /// failure to read the maps.
    pub(crate) fn free(
        &self,
        tx: &mut Tx,
        ledger: &mut Ledger,
        extents: &[Extent],
    ) -> FsResult<()> {
        let geometry = self.geometry();
        let (mut state, mut looked) = (self.state.lock(), LastUsedPages::default());
        for &extent in extents {
            let bad = || {
                let what = "a pointer leads where nobody has anything";
                corrupt(DefectCode::MP001.found(what).at(extent.place))
            };
            if geometry.device_offset(extent.place, extent.fragments).is_none()
                || extent.place.disk_group() != 0
            {
                return Err(bad());
            }
            self.ensure_group(&mut state, extent.place.group())?;
            let group = &state.groups[&extent.place.group()];
            if !group.has_given(extent, geometry) {
                return Err(bad());
            }
            self.log_change(tx, group, extent, false, &mut looked)?;
            ledger.freed.push(extent);
        }
        Ok(())
    }

    /// Logs that blocks in open segments are in use. Sorted extents need one lookup per map page.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn install(
        &self,
        tx: &mut Tx,
        ledger: &mut Ledger,
        extents: &[Extent],
    ) -> FsResult<()> {
        let (mut state, mut looked) = (self.state.lock(), LastUsedPages::default());
        for &extent in extents {
            self.ensure_group(&mut state, extent.place.group())?;
            let group = &state.groups[&extent.place.group()];
            self.log_change(tx, group, extent, true, &mut looked)?;
            ledger.installed += u64::from(extent.fragments);
            let group = state.groups.get_mut(&extent.place.group()).expect("ensured");
            let segment = self.volume.geometry().segment_of(extent.place);
            group.segments[index(segment)].held += extent.fragments;
            ledger.taken.push(extent);
        }
        Ok(())
    }

    /// Logs a change of an extent in map, usage, descriptor and totals.
    pub(super) fn log_change(
        &self,
        tx: &mut Tx,
        group: &AllocationGroup,
        extent: Extent,
        is_taken: bool,
        looked: &mut LastUsedPages,
    ) -> FsResult<()> {
        let number = extent.place.group();
        let (mut fragment, end) =
            (extent.place.fragment(), extent.place.fragment() + extent.fragments);
        while fragment < end {
            let page = fragment / BITS_PER_PAGE;
            let count = (end - fragment).min((page + 1) * BITS_PER_PAGE - fragment);
            let (buffer, bytes) = self.look_at_map(looked, number, page)?;
            let first = fragment % BITS_PER_PAGE;
            let mut bits = first..first + count;
            if bits.any(|bit| format::bitmap::is_set(page_of(bytes), bit) == is_taken) {
                let code = if is_taken { DefectCode::AG009 } else { DefectCode::AG003 };
                let what =
                    if is_taken { "taken, but marked in use" } else { "freed, but marked free" };
                return Err(corrupt(code.found(what).at(extent.place)));
            }
            tx.set_bits(buffer, first, count, is_taken);
            fragment += count;
        }
        let sign = if is_taken { 1 } else { -1 };
        let delta = sign * i64::from(extent.fragments);
        let segment = self.geometry().segment_of(extent.place);
        let usage = self.look_at_usage(looked, number, segment)?;
        let live_offset = SegmentUsage::offset(segment) + 4;
        tx.add_u32(usage, live_offset, delta);
        tx.add_u32(&group.descriptor, DESCRIPTOR_FRAGMENTS_USED_OFFSET, delta);
        tx.add_u64(&self.root, TOTAL_FRAGMENTS_USED_OFFSET, delta);
        Ok(())
    }

    fn look_at_map<'l>(
        &self,
        looked: &'l mut LastUsedPages,
        group: u32,
        page: u32,
    ) -> FsResult<(&'l Arc<PageBuffer>, &'l PageRef)> {
        let known = looked.free_map.take().filter(|(which, ..)| *which == (group, page));
        let known = match known {
            Some(known) => known,
            None => {
                let buffer = self.free_map_buffer(group, page)?;
                let bytes = buffer.bytes();
                ((group, page), buffer, bytes)
            }
        };
        let (_, buffer, bytes) = looked.free_map.insert(known);
        Ok((buffer, bytes))
    }

    fn look_at_usage<'l>(
        &self,
        looked: &'l mut LastUsedPages,
        group: u32,
        segment: u32,
    ) -> FsResult<&'l Arc<PageBuffer>> {
        let page = segment / USAGES_PER_PAGE;
        let known = looked.usage.take().filter(|(which, _)| *which == (group, page));
        let known = match known {
            Some(known) => known,
            None => ((group, page), self.usage_buffer(group, segment)?),
        };
        Ok(&looked.usage.insert(known).1)
    }
}
