//! Naming the files of blocks that a read found bad on a member, and that were written again.

use format::ids::Place;
use runtime::planted::{self, Planted};
use storage::device::Purpose;

use super::pieces::{block_at, listed_in};
use crate::alloc::SegmentId;
use crate::buffer::io;
use crate::convert::index_wide;
use crate::error::{FilePart, FsResult};
use crate::log_of_file;
use crate::vnode::Core;

/// Blocks that are named in one turn: for each a segment is read.
const AT_ONCE: usize = 4;

/// Names some of the blocks that wait for it, in the log and for `status`. What cannot be named is
/// let go: nobody has it any more, or something else is wrong, which a reader is told.
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

/// Returns the file that has the block at `place`.
fn file_at(core: &Core, place: Place) -> FsResult<Option<FilePart>> {
    let (geometry, volume) = (core.store.geometry(), &core.store.volume);
    let id = SegmentId { group: place.group(), segment: geometry.segment_of(place) };
    let Some(pin) = core.store.alloc.pin(id)? else { return Ok(None) };
    let start = geometry.segment_place(id.group, id.segment);
    let length = index_wide(geometry.segment_bytes());
    let bytes = volume.read(Purpose::Cleaner, start, length).map_err(io)?;
    match block_at(&listed_in(core, &pin, &bytes), place) {
        Some(block) if !planted::is(Planted::MendedNotNamed) => {
            core.who_has(&block.entry, block.place)
        }
        Some(_) | None => Ok(None),
    }
}
