//! Streams: which blocks go to one segment after the other.

use format::ids::{Epoch, Place};
use format::placement::Placement;
use runtime::planted::{self, Planted};

use super::{BlockOwner, OPEN_SEGMENTS_MAX, Segments, State};
use crate::alloc::{Level, Preference, Urgency};
use crate::error::{FsError, FsResult};

/// Who has a block written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A user.
    User,
    /// The cleaner, who moves it: it keeps this birth.
    Cleaner(Epoch),
}

impl Origin {
    /// Returns how urgent what it writes is.
    pub(super) fn urgency(self) -> Urgency {
        match self {
            Origin::User => Urgency::User,
            Origin::Cleaner(_) => Urgency::System,
        }
    }

    /// Returns the birth of a block that was there before.
    pub(super) fn kept_birth(self) -> Option<Epoch> {
        match self {
            Origin::User => None,
            Origin::Cleaner(birth) => Some(birth),
        }
    }

    /// Returns the level of all that it writes where levels are not told apart.
    fn plain(self) -> Level {
        match self {
            Origin::User => Level::FIRST,
            Origin::Cleaner(_) => Level::MOVED,
        }
    }

    /// Returns the level of a block whose last version has level `before`, if it has one.
    fn level_after(self, before: Option<Level>) -> Level {
        let next = match self {
            Origin::User => Level::risen,
            Origin::Cleaner(_) => Level::sunk,
        };
        before.map_or(self.plain(), next)
    }
}

/// Blocks that go to one segment after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stream {
    pub(super) level: Level,
    /// The group in which they belong, if the policy has one.
    pub(super) home: Option<u32>,
    /// Which disk group, and which member of one, they should go to.
    pub(super) preference: Preference,
}

impl Segments {
    /// Returns where a block goes: among those that have lasted as long.
    pub(super) fn stream_of(
        &self,
        origin: Origin,
        owner: BlockOwner,
        previous: Option<Place>,
    ) -> FsResult<Stream> {
        let alloc = &self.store.alloc;
        let home = alloc.home_group(owner.directory);
        let is_planted = origin != Origin::User && planted::is(Planted::MovesForgetPlacement);
        let placement = if is_planted { Placement::Any } else { owner.placement };
        let preference = alloc.preference_of(owner.anode, placement);
        let level = origin.level_after(previous.map(|place| alloc.level_at(place)));
        // Directories that keep together what is theirs have two streams each, and so has each
        // turn and each placement; so have all while segments are scarce: a user takes nothing of
        // what the cleaner needs to copy into.
        let is_apart = home.is_some() || preference != Preference::default();
        let is_plain = is_apart || (level > Level::FIRST && alloc.is_scarce()?);
        Ok(Stream { level: if is_plain { origin.plain() } else { level }, home, preference })
    }

    /// Opens a segment for `wanted`; returns that stream, or the one that has to do instead.
    pub(super) fn open_stream(
        &self,
        state: &mut State,
        origin: Origin,
        wanted: Stream,
        fragments: u32,
    ) -> FsResult<Stream> {
        if origin != Origin::User
            && self.store.alloc.is_scarce()?
            && let Some(other) = self.other_with_room(state, origin, fragments)
        {
            return Ok(other);
        }
        // Two of each turn: to close one for another would cost its rest for each file.
        let turns = usize::from(self.store.alloc.turns());
        // As many again may be open for files with a placement, so that these close none of those
        // of others.
        let is_like =
            |stream: &Stream| stream.preference.is_placed() == wanted.preference.is_placed();
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
            // What is open elsewhere serves as well: a policy costs speed, never space.
            Err(FsError::NoSpace) => {
                self.other_with_room(state, origin, fragments).ok_or(FsError::NoSpace)
            }
            Err(error) => Err(error),
        }
    }

    /// Seals what is open in the groups that `leaves` says, and puts nothing more there.
    pub(crate) fn leave(&self, leaves: impl Fn(u32) -> bool) {
        let mut state = self.lock();
        let open = state.open.iter().filter(|(_, segment)| leaves(segment.id.group));
        let streams: Vec<Stream> = open.map(|(stream, _)| *stream).collect();
        for stream in streams {
            if let Some(segment) = state.open.remove(&stream) {
                self.finish(&mut state, segment);
            }
        }
    }

    /// Returns another open stream with room for `fragments`: for a user's block one that the
    /// cleaner does not need.
    fn other_with_room(&self, state: &State, origin: Origin, fragments: u32) -> Option<Stream> {
        let is_for = |stream: &Stream| (stream.level == Level::FIRST) == (origin == Origin::User);
        let mut open = state.open.iter();
        let found =
            open.find(|(stream, segment)| is_for(stream) && self.has_room(segment, fragments));
        found.map(|(stream, _)| *stream)
    }
}
