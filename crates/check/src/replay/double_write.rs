//! The double-write area: a whole group that is not yet written back.
//!
//! An unreadable group counts as incomplete: the log has every byte of a checkpoint's pages, and
//! LSN pages that do not verify are rebuilt.

use format::defect::DefectCode;
use format::double_write::DoubleWriteHead;
use format::ids::Place;
use format::journal::JournalHead;
use format::page::{PAGE_BYTES, PageBytes, PageHeader, page_crc, page_lsn};
use storage::device::DeviceError;

use super::{OverlayReplay, page_of};
use crate::convert::to_u64;
use crate::reader::PoolReader;

impl OverlayReplay<'_> {
    /// Applies a whole group that is not recorded as written back. Older groups are ignored,
    /// because their places may have been reused.
    pub(super) fn double_write(&mut self, head: &JournalHead) {
        let Some((_, group)) = self.newest_group(head) else { return };
        for (place, copy) in group {
            let geometry = &self.reader.geometry;
            let Some(offset) = geometry.device_offset(place, geometry.page_fragments()) else {
                let what = format!("the double-write area has {place}");
                self.defect(DefectCode::JR003, None, what);
                continue;
            };
            let home = self.reader.read(offset, PAGE_BYTES).ok().map(|home| page_of(&home));
            let is_newer = home.is_some_and(|home| {
                let is_whole = PageHeader::decode(&home, self.reader.pool_id, place).is_ok();
                is_whole && page_lsn(&home) >= page_lsn(&copy)
            });
            if !is_newer {
                self.done.double_written += 1;
                self.overwrite(offset, &copy, false);
            }
        }
    }

    fn newest_group(&mut self, head: &JournalHead) -> Option<DoubleWriteGroup> {
        let log = self.reader.fixed.take();
        let copies = self.reader.fixed_copies(self.reader.geometry.double_write_offset);
        let copies =
            if copies.is_empty() { vec![None] } else { copies.into_iter().map(Some).collect() };
        let mut newest: Option<DoubleWriteGroup> = None;
        for copy in copies {
            self.reader.fixed = copy;
            match group_of(self.reader, head) {
                Ok(Some(group)) if newest.as_ref().is_none_or(|other| group.0 > other.0) => {
                    newest = Some(group);
                }
                Ok(_) => {}
                Err(error) => {
                    let what = "the log has what a mount needs of it";
                    self.report.notes.push(format!("{error}: in the double-write area; {what}"));
                }
            }
        }
        self.reader.fixed = log;
        newest
    }
}

type DoubleWriteGroup = (u64, Vec<(Place, PageBytes)>);

/// Sequence of a group, with places and checksums of its pages.
type DoubleWriteListing = (u64, Vec<(Place, u32)>);

/// Returns the group in the area; `None` if it is incomplete or written back.
fn group_of(
    reader: &PoolReader,
    journal: &JournalHead,
) -> Result<Option<DoubleWriteGroup>, DeviceError> {
    let Some((sequence, entries)) = entries_of(reader, journal)? else { return Ok(None) };
    let mut pages = Vec::new();
    for (index, (place, crc)) in (0..).zip(entries) {
        let offset = DoubleWriteHead::page_offset(&reader.geometry, index);
        let copy = page_of(&reader.read_fixed(offset, PAGE_BYTES)?);
        if page_crc(&copy) != crc {
            return Ok(None);
        }
        pages.push((place, copy));
    }
    Ok(Some((sequence, pages)))
}

fn entries_of(
    reader: &PoolReader,
    journal: &JournalHead,
) -> Result<Option<DoubleWriteListing>, DeviceError> {
    let geometry = &reader.geometry;
    let mut entries = Vec::new();
    let mut group: Option<(u64, u64)> = None;
    for index in 0..geometry.double_write_heads() {
        let offset = DoubleWriteHead::head_offset(geometry, index);
        let bytes = page_of(&reader.read_fixed(offset, PAGE_BYTES)?);
        let head = DoubleWriteHead::decode(&bytes, reader.pool_id, geometry, index);
        let Some(head) = head else { return Ok(None) };
        let found = (head.sequence, head.page_count);
        let is_home = head.sequence <= journal.double_write_sequence;
        if *group.get_or_insert(found) != found || is_home {
            return Ok(None);
        }
        entries.extend(head.entries);
        if to_u64(entries.len()) >= head.page_count {
            break;
        }
    }
    let group = group.filter(|&(_, count)| count == to_u64(entries.len()));
    Ok(group.map(|(sequence, _)| (sequence, entries)))
}
