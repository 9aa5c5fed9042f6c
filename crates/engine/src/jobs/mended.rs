//! Finds the files of blocks that a read found bad on one member and rewrote.

use format::ids::Place;
use storage::device::IoPurpose;

use super::pieces::{block_at, listed_in};
use crate::alloc::SegmentId;
use crate::buffer::io;
use crate::convert::index_wide;
use crate::error::{FilePart, FsResult};
use crate::file::Core;
use crate::log_of_file;

/// Most blocks named per tick. Each costs the read of a segment.
const AT_ONCE: usize = 4;

/// Names some repaired blocks, in the log and for `status`. Drops blocks without an owner.
pub(crate) fn name_some(core: &Core) {
    let unnamed = core.segments.mended.take_unnamed();
    if unnamed > 0 {
        tracing::warn!(
            blocks = unnamed,
            "more blocks were bad on a device, and are written again, than can be named: scrub"
        );
    }
    for place in std::iter::from_fn(|| core.segments.mended.next()).take(AT_ONCE) {
        match file_at(core, place) {
            Ok(Some(file)) => {
                log_of_file!(
                    warn,
                    Some(&file),
                    "was bad on a device, and is written again from the others"
                );
                core.segments.mended.name(file);
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%place, %error, "a block was mended, and not named"),
        }
    }
}

fn file_at(core: &Core, place: Place) -> FsResult<Option<FilePart>> {
    let (geometry, volume) = (core.store.geometry(), &core.store.volume);
    let id = SegmentId { group: place.group(), segment: geometry.segment_of(place) };
    let Some(pin) = core.store.alloc.pin(id)? else { return Ok(None) };
    let start = geometry.segment_place(id.group, id.segment);
    let length = index_wide(geometry.segment_bytes());
    let bytes = volume.read(IoPurpose::Cleaner, start, length).map_err(io)?;
    match block_at(&listed_in(core, &pin, &bytes), place) {
        Some(block) => core.who_has(&block.entry, block.place),
        None => Ok(None),
    }
}
