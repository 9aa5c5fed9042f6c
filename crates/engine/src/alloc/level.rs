//! Levels: how long the blocks of a segment have lasted, so that what lasts alike goes together.
//!
//! A block that is overwritten rises one level from where it was, a block that the cleaner moves
//! sinks one: so blocks find the level where they are overwritten about as often as they are
//! moved, and a segment empties as a whole or hardly at all. Nothing is measured, and nothing of it
//! is on the disk: after a mount a segment has level 1, whatever it had.

use format::ids::Place;

use super::{Allocator, CLEANER_SEGMENTS, SegmentId};
use crate::convert::index;
use crate::error::FsResult;

/// Levels, each with an open segment of its own. In a model of the cleaner four write 5 % more at
/// 90 % full with 90 of 100 writes to a tenth of the blocks, six 3 % less; where all blocks are
/// alike each costs 0.5 to 1 %.
const LEVELS: u8 = 5;

/// How long a block is expected to last: the higher the number, the longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(u8);

impl Level {
    /// What has no earlier version.
    pub(crate) const FIRST: Level = Level(0);
    /// What is moved for the first time, or of which nothing is known.
    pub(crate) const MOVED: Level = Level(1);

    /// Returns where a block goes that is overwritten.
    pub(crate) fn risen(self) -> Level {
        Level(self.0.saturating_sub(1))
    }

    /// Returns where a block goes that the cleaner moves.
    pub(crate) fn sunk(self) -> Level {
        Level((self.0 + 1).min(LEVELS - 1))
    }
}

impl Allocator {
    /// Returns the level of the segment that has `place`.
    pub(crate) fn level_at(&self, place: Place) -> Level {
        let segment = self.geometry().segment_of(place);
        let state = self.state.lock();
        let group = state.groups.get(&place.group());
        let known = group.and_then(|group| group.segments.get(index(segment)));
        known.map_or(Level::MOVED, |segment| segment.level)
    }

    /// Notes the level of a segment that was opened.
    pub(crate) fn set_level(&self, id: SegmentId, level: Level) {
        let mut state = self.state.lock();
        let group = state.groups.get_mut(&id.group).expect("the group of an open segment");
        group.segments[index(id.segment)].level = level;
    }

    /// Whether hardly more segments are free than are kept for the cleaner: then no level has one
    /// of its own.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn is_scarce(&self) -> FsResult<bool> {
        let enough = CLEANER_SEGMENTS + 2;
        Ok(self.free_segments(enough)? < enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_end_where_they_end() {
        assert_eq!(Level::FIRST.risen(), Level::FIRST);
        assert_eq!(Level::FIRST.sunk(), Level::MOVED);
        assert_eq!(Level::MOVED.sunk().risen(), Level::MOVED);
        let deepest = (0..u8::MAX).fold(Level::FIRST, |level, _| level.sunk());
        assert_eq!(deepest, Level(LEVELS - 1));
    }
}
