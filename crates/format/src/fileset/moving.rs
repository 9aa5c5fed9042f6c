//! What a fileset entry says of a move to another pool.

use super::FilesetState;

const MOVE_LEAVING: u8 = 1;
const MOVE_ARRIVING: u8 = 2;
const MOVE_ARRIVED: u8 = 3;

/// Names one move of a fileset: random, and not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveToken(pub [u8; 16]);

/// What a fileset is on its way to another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moving {
    /// Of the pool that it is in: that other pool knows whether it is there. Nobody uses it.
    Leaving {
        /// Which move.
        token: MoveToken,
        /// The other pool.
        to: [u8; 16],
    },
    /// Of the pool that it goes to: what has come of it. Nobody uses it.
    Arriving {
        /// Which move.
        token: MoveToken,
    },
    /// It is here, and in use. That other pool may not know yet.
    Arrived {
        /// Which move.
        token: MoveToken,
        /// The other pool.
        from: [u8; 16],
    },
}

impl Moving {
    /// Returns which move.
    #[must_use]
    pub fn token(self) -> MoveToken {
        match self {
            Moving::Leaving { token, .. }
            | Moving::Arriving { token }
            | Moving::Arrived { token, .. } => token,
        }
    }

    /// Returns what an entry in `state` says with this code; `None`: it can't be so.
    pub(super) fn decode(
        code: u8,
        state: FilesetState,
        (token, other): ([u8; 16], [u8; 16]),
    ) -> Option<Option<Moving>> {
        let token = MoveToken(token);
        let moving = match (code, state) {
            (0, _) => None,
            (MOVE_LEAVING, FilesetState::Writable) => Some(Moving::Leaving { token, to: other }),
            (MOVE_ARRIVED, FilesetState::Writable) => Some(Moving::Arrived { token, from: other }),
            (MOVE_ARRIVING, FilesetState::Writable | FilesetState::Receiving(_)) => {
                Some(Moving::Arriving { token })
            }
            _ => return None,
        };
        let is_named = token.0 != [0; 16];
        (moving.is_some() == is_named).then_some(moving)
    }

    /// Returns the other pool, where it is said.
    pub(super) fn other(self) -> Option<[u8; 16]> {
        match self {
            Moving::Leaving { to: other, .. } | Moving::Arrived { from: other, .. } => Some(other),
            Moving::Arriving { .. } => None,
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Moving::Leaving { .. } => MOVE_LEAVING,
            Moving::Arriving { .. } => MOVE_ARRIVING,
            Moving::Arrived { .. } => MOVE_ARRIVED,
        }
    }

    /// Returns what it is, as people say it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Moving::Leaving { .. } => "leaving",
            Moving::Arriving { .. } => "arriving",
            Moving::Arrived { .. } => "arrived",
        }
    }

    /// Whether nobody may use it.
    #[must_use]
    pub fn is_closed(self) -> bool {
        match self {
            Moving::Leaving { .. } | Moving::Arriving { .. } => true,
            Moving::Arrived { .. } => false,
        }
    }
}
