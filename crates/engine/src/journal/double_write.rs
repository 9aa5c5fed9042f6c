//! The double-write area: pages that must reach their home locations all together or not at all.
//!
//! A group is written here whole and flushed before the first of its pages is overwritten at its
//! home location. Opening the pool copies a whole group to the home locations if the journal's head
//! does not record it as written back.
//!
//! Not here: which pages form a group (`checkpoint.rs`, `lsn_pages.rs`).

use format::double_write::DoubleWriteHead;
use format::geometry::{DOUBLE_WRITE_ENTRIES_PER_HEAD, Geometry};
use format::ids::{Lsn, Place, PoolId};
use format::journal::JournalHead;
use format::page::{PAGE_BYTES, page_crc};
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, SharedBytes};
use storage::volume::Volume;

use super::RecoveryError;
use crate::buffer::{PageRef, page_of};
use crate::convert::{index_wide, wide};

/// Writes `pages` to the double-write area as group `sequence`, at `lsn` of the log. Does not
/// flush.
pub(super) fn write_group(
    volume: &Volume,
    pool_id: PoolId,
    (sequence, lsn): (u64, Lsn),
    pages: &[(Place, PageRef)],
) -> Result<(), DeviceError> {
    let geometry = volume.geometry();
    assert!(wide(pages.len()) <= geometry.double_write_pages, "begin bounds what moves");
    let mut tickets = Vec::new();
    let entries: Vec<(Place, u32)> =
        pages.iter().map(|(place, bytes)| (*place, page_crc(page_of(bytes)))).collect();
    for (index, (_, bytes)) in pages.iter().enumerate() {
        let offset = DoubleWriteHead::page_offset(geometry, wide(index));
        let data = vec![SharedBytes::new(PageRef::clone(bytes), 0..PAGE_BYTES)];
        tickets.push(volume.submit_fixed_write(IoPurpose::DoubleWrite, offset, data));
    }
    for (index, entries) in entries.chunks(index_wide(DOUBLE_WRITE_ENTRIES_PER_HEAD)).enumerate() {
        let head = DoubleWriteHead {
            sequence,
            head_index: wide(index),
            page_count: wide(pages.len()),
            lsn,
            entries: entries.to_vec(),
        };
        let offset = DoubleWriteHead::head_offset(geometry, wide(index));
        let bytes = AlignedBuffer::copy_of(&head.encode(pool_id, geometry));
        let data = vec![SharedBytes::from(bytes)];
        tickets.push(volume.submit_fixed_write(IoPurpose::DoubleWrite, offset, data));
    }
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
}

/// Sequence numbers skipped if the area cannot be read: it may hold groups that no head records,
/// and two groups must never share a sequence.
const UNREAD_SEQUENCES: u64 = 1 << 20;

/// Copies the group in `area` home, if it is whole and `head` does not record it as written back.
/// `area` is the newest or only copy. Returns the number of pages, and the sequence of the last
/// group.
///
/// An unreadable group counts as incomplete: the log has every byte of a checkpoint's pages, and
/// LSN pages that do not verify are rebuilt. A pool without a whole log is refused later.
pub(super) fn restore_double_writes(
    volume: &Volume,
    area: &Volume,
    pool_id: PoolId,
    head: &JournalHead,
) -> Result<(u64, u64), RecoveryError> {
    let geometry = volume.geometry();
    let note_unread = |error: &RecoveryError| {
        tracing::warn!(%error, "the double-write area cannot be read; the log has what was in it");
    };
    let first = match read_double_write_head(area, pool_id, 0) {
        Ok(first) => first,
        Err(error) => {
            note_unread(&error);
            return Ok((0, head.double_write_sequence + UNREAD_SEQUENCES));
        }
    };
    let Some(first) = first else { return Ok((0, head.double_write_sequence)) };
    let sequence = first.sequence.max(head.double_write_sequence);
    if first.sequence <= head.double_write_sequence {
        return Ok((0, sequence));
    }
    let group = read_group(area, pool_id, geometry, &first);
    let Some(group) = group.inspect_err(note_unread).ok().flatten() else {
        return Ok((0, sequence));
    };
    let count = wide(group.len());
    for (place, bytes) in group {
        let pieces = vec![SharedBytes::from(bytes)];
        volume.submit_write(IoPurpose::Home, place, pieces).wait()?;
    }
    volume.flush(IoPurpose::Home)?;
    Ok((count, sequence))
}

pub(super) fn read_double_write_head(
    volume: &Volume,
    pool_id: PoolId,
    index: u64,
) -> Result<Option<DoubleWriteHead>, RecoveryError> {
    let geometry = volume.geometry();
    let offset = DoubleWriteHead::head_offset(geometry, index);
    let bytes = volume.read_fixed(IoPurpose::DoubleWrite, offset, PAGE_BYTES)?;
    Ok(DoubleWriteHead::decode(page_of(&bytes), pool_id, geometry, index))
}

pub(super) fn read_group(
    volume: &Volume,
    pool_id: PoolId,
    geometry: &Geometry,
    first: &DoubleWriteHead,
) -> Result<Option<Vec<(Place, AlignedBuffer)>>, RecoveryError> {
    if first.page_count > geometry.double_write_pages {
        return Ok(None);
    }
    let mut entries = first.entries.clone();
    let mut head_index = 1;
    while wide(entries.len()) < first.page_count {
        match read_double_write_head(volume, pool_id, head_index)? {
            Some(head) if head.sequence == first.sequence && !head.entries.is_empty() => {
                entries.extend(head.entries);
            }
            _ => return Ok(None),
        }
        head_index += 1;
    }
    let mut group = Vec::with_capacity(entries.len());
    for (index, (place, crc)) in entries.into_iter().enumerate() {
        let offset = DoubleWriteHead::page_offset(geometry, wide(index));
        let bytes = volume.read_fixed(IoPurpose::DoubleWrite, offset, PAGE_BYTES)?;
        if page_crc(page_of(&bytes)) != crc || geometry.device_offset(place, 1).is_none() {
            return Ok(None);
        }
        group.push((place, bytes));
    }
    Ok(Some(group))
}
