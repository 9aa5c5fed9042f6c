//! Streams: kinds of blocks, each with an open segment of its own.

use format::ids::{Epoch, Place};

use super::{BlockOwner, OPEN_SEGMENTS_MAX, Segments, SegmentsState};
use crate::alloc::{LifetimeLevel, PlacementPreference, Urgency};
use crate::error::{FsError, FsResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockOrigin {
    User,
    /// A move by the cleaner, with the birth to keep.
    Cleaner(Epoch),
}

impl BlockOrigin {
    pub(super) fn urgency(self) -> Urgency {
        match self {
            BlockOrigin::User => Urgency::User,
            BlockOrigin::Cleaner(_) => Urgency::System,
        }
    }

    pub(super) fn kept_birth(self) -> Option<Epoch> {
        match self {
            BlockOrigin::User => None,
            BlockOrigin::Cleaner(birth) => Some(birth),
        }
    }

    /// Returns one of two levels, where levels are not separated.
    fn plain(self) -> LifetimeLevel {
        match self {
            BlockOrigin::User => LifetimeLevel::FIRST,
            BlockOrigin::Cleaner(_) => LifetimeLevel::MOVED,
        }
    }

    fn level_after(self, before: Option<LifetimeLevel>) -> LifetimeLevel {
        let next = match self {
            BlockOrigin::User => LifetimeLevel::risen,
            BlockOrigin::Cleaner(_) => LifetimeLevel::sunk,
        };
        before.map_or(self.plain(), next)
    }
}

/// The key of an open segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentStream {
    pub(super) level: LifetimeLevel,
    /// The group for its blocks, if the policy assigns one.
    pub(super) home: Option<u32>,
    /// Preferred disk group and round-robin member.
    pub(super) preference: PlacementPreference,
}

impl Segments {
    /// Returns the stream of a block, with blocks of similar lifetime.
    pub(super) fn stream_of(
        &self,
        origin: BlockOrigin,
        owner: BlockOwner,
        previous: Option<Place>,
    ) -> FsResult<SegmentStream> {
        let alloc = &self.store.alloc;
        let home = alloc.home_group(owner.directory);
        let preference = alloc.preference_of(owner.anode, owner.placement);
        let level = origin.level_after(previous.map(|place| alloc.level_at(place)));
        // Two levels for streams with a home group, round-robin member or placement; and for all
        // while segments are scarce, to leave the cleaner its own.
        let is_apart = home.is_some() || preference != PlacementPreference::default();
        let is_plain = is_apart || (level > LifetimeLevel::FIRST && alloc.is_scarce()?);
        Ok(SegmentStream { level: if is_plain { origin.plain() } else { level }, home, preference })
    }

    /// Opens a segment for `wanted`. Returns that stream, or a substitute.
    pub(super) fn open_stream(
        &self,
        state: &mut SegmentsState,
        origin: BlockOrigin,
        wanted: SegmentStream,
        fragments: u32,
    ) -> FsResult<SegmentStream> {
        if origin != BlockOrigin::User
            && self.store.alloc.is_scarce()?
            && let Some(other) = self.other_with_room(state, origin, fragments)
        {
            return Ok(other);
        }
        // At least two for each round-robin member, or files would close each other's segments.
        let turns = usize::from(self.store.alloc.turns());
        // Files with a placement have their own limit, and close no other segments.
        let is_like =
            |stream: &SegmentStream| stream.preference.is_placed() == wanted.preference.is_placed();
        let like = state.open.keys().filter(|stream| is_like(stream)).count();
        if like >= OPEN_SEGMENTS_MAX.max(2 * turns) {
            self.finish_oldest(state, is_like);
        }
        let (home, preference) = (wanted.home, wanted.preference);
        match self.store.alloc.open_segment(origin.urgency(), home, preference) {
            Ok(opened) => {
                self.enter(state, wanted, opened);
                Ok(wanted)
            }
            // Use another open segment: a policy may cost speed, never space.
            Err(FsError::NoSpace) => {
                self.other_with_room(state, origin, fragments).ok_or(FsError::NoSpace)
            }
            Err(error) => Err(error),
        }
    }

    /// Finishes the open segments in groups that `leaves` selects.
    pub(crate) fn leave(&self, leaves: impl Fn(u32) -> bool) {
        let mut state = self.lock();
        let open = state.open.iter().filter(|(_, segment)| leaves(segment.id.group));
        let streams: Vec<SegmentStream> = open.map(|(stream, _)| *stream).collect();
        for stream in streams {
            if let Some(segment) = state.open.remove(&stream) {
                self.finish(&mut state, segment);
            }
        }
    }

    /// Returns another open stream with room. Users' blocks and moves do not mix.
    fn other_with_room(
        &self,
        state: &SegmentsState,
        origin: BlockOrigin,
        fragments: u32,
    ) -> Option<SegmentStream> {
        let is_for = |stream: &SegmentStream| {
            (stream.level == LifetimeLevel::FIRST) == (origin == BlockOrigin::User)
        };
        let mut open = state.open.iter();
        let found =
            open.find(|(stream, segment)| is_for(stream) && self.has_room(segment, fragments));
        found.map(|(stream, _)| *stream)
    }
}
