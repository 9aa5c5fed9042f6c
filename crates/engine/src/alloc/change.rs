//! Taking extents into use and giving them back, with the maps and counts that say so.

use std::sync::Arc;

use format::bitmap::BITS_PER_PAGE;
use format::defect::DefectCode;
use format::group::{
    DESCRIPTOR_FRAGMENTS_USED_OFFSET, SegmentUsage, TOTAL_FRAGMENTS_USED_OFFSET, USAGES_PER_PAGE,
};
use runtime::planted::{self, Planted};

use super::group::Group;
use super::{Allocator, Extent, Ledger};
use crate::buffer::{Buffer, PageRef, corrupt, page_of};
use crate::convert::index;
use crate::error::FsResult;
use crate::journal::Tx;

/// The pages that were looked at last, for those who change several extents in order of place.
#[derive(Default)]
pub(super) struct Looked {
    /// A page of a free map, by group and number.
    free_map: Option<((u32, u32), Arc<Buffer>, PageRef)>,
    /// A page of segment usages, in the same way.
    usage: Option<((u32, u32), Arc<Buffer>)>,
}

impl Allocator {
    /// Gives fragments back. They are pending until the next checkpoint is past them (G2). In order
    /// of place, each page of the maps is looked at once.
    ///
    /// # Errors
    ///
    /// [`FsError::Corrupt`](crate::error::FsError::Corrupt) if a place is none that was given
    /// out, or a failure to read the maps.
    pub(crate) fn free(
        &self,
        tx: &mut Tx,
        ledger: &mut Ledger,
        extents: &[Extent],
    ) -> FsResult<()> {
        let geometry = self.geometry();
        let (mut state, mut looked) = (self.state.lock(), Looked::default());
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

    /// Logs that blocks written to open data segments are in use. In order of place, each page of
    /// the maps is looked at once.
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
        let (mut state, mut looked) = (self.state.lock(), Looked::default());
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

    /// Logs that an extent is taken or freed: map, segment usage, descriptor and totals.
    pub(super) fn log_change(
        &self,
        tx: &mut Tx,
        group: &Group,
        extent: Extent,
        is_taken: bool,
        looked: &mut Looked,
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
            if is_taken || !planted::is(Planted::BitmapBitLeaked) {
                tx.set_bits(buffer, first, count, is_taken);
            }
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
        looked: &'l mut Looked,
        group: u32,
        page: u32,
    ) -> FsResult<(&'l Arc<Buffer>, &'l PageRef)> {
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
        looked: &'l mut Looked,
        group: u32,
        segment: u32,
    ) -> FsResult<&'l Arc<Buffer>> {
        let page = segment / USAGES_PER_PAGE;
        let known = looked.usage.take().filter(|(which, _)| *which == (group, page));
        let known = match known {
            Some(known) => known,
            None => ((group, page), self.usage_buffer(group, segment)?),
        };
        Ok(&looked.usage.insert(known).1)
    }
}
