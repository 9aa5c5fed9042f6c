//! The used pages of a metadata segment, to be moved.

use format::bitmap::{self, BITS_PER_PAGE};
use format::group::SegmentKind;
use format::ids::Place;

use super::{Allocator, SegmentId};
use crate::buffer::page_of;
use crate::convert::index;
use crate::error::FsResult;

impl Allocator {
    /// Returns the used pages of a metadata segment, without its group's front.
    ///
    /// # Errors
    ///
    /// Damage of its group's maps.
    pub(crate) fn pages_in_use(&self, id: SegmentId) -> FsResult<Vec<Place>> {
        let geometry = self.geometry();
        let mut state = self.state.lock();
        if !state.groups.contains_key(&id.group) && !self.is_initialised(id.group)? {
            return Ok(Vec::new());
        }
        self.ensure_group(&mut state, id.group)?;
        let segment = state.groups.get(&id.group).map(|group| &group.segments);
        let segment = segment.and_then(|segments| segments.get(index(id.segment)));
        if segment.is_none_or(|segment| segment.kind != SegmentKind::Metadata) {
            return Ok(Vec::new());
        }
        let start = geometry.segment_place(id.group, id.segment);
        let mut used = Vec::new();
        for page in 0..geometry.metadata_pages(id.group) {
            let place = start.advance(page * geometry.page_fragments());
            if place.fragment() < geometry.front_fragments(id.group) {
                continue;
            }
            let map = self.free_map_buffer(id.group, place.fragment() / BITS_PER_PAGE)?.bytes();
            if bitmap::is_set(page_of(&map), place.fragment() % BITS_PER_PAGE) {
                used.push(place);
            }
        }
        Ok(used)
    }
}
