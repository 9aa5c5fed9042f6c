//! State of a fileset that moves to another pool.

use super::FilesetState;

const MOVE_LEAVING: u8 = 1;
const MOVE_ARRIVING: u8 = 2;
const MOVE_ARRIVED: u8 = 3;

/// Random identity of one move, not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveToken(pub [u8; 16]);

/// Progress of a move, as the fileset entry stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveState {
    /// In the source pool, closed: only the target pool shows whether the fileset has arrived.
    Leaving {
        /// The move.
        token: MoveToken,
        /// Target pool.
        to: [u8; 16],
    },
    /// In the target pool, closed and incomplete.
    Arriving {
        /// The move.
        token: MoveToken,
    },
    /// In the target pool and in use. The source pool may not know.
    Arrived {
        /// The move.
        token: MoveToken,
        /// Source pool.
        from: [u8; 16],
    },
}

impl MoveState {
    /// Returns the identity of the move.
    #[must_use]
    pub fn token(self) -> MoveToken {
        match self {
            MoveState::Leaving { token, .. }
            | MoveState::Arriving { token }
            | MoveState::Arrived { token, .. } => token,
        }
    }

    /// Decodes the field of an entry in `state`; outer `None` if invalid.
    pub(super) fn decode(
        code: u8,
        state: FilesetState,
        (token, other): ([u8; 16], [u8; 16]),
    ) -> Option<Option<MoveState>> {
        let token = MoveToken(token);
        let moving = match (code, state) {
            (0, _) => None,
            (MOVE_LEAVING, FilesetState::Writable) => Some(MoveState::Leaving { token, to: other }),
            (MOVE_ARRIVED, FilesetState::Writable) => {
                Some(MoveState::Arrived { token, from: other })
            }
            (MOVE_ARRIVING, FilesetState::Writable | FilesetState::Receiving(_)) => {
                Some(MoveState::Arriving { token })
            }
            _ => return None,
        };
        let is_named = token.0 != [0; 16];
        (moving.is_some() == is_named).then_some(moving)
    }

    /// Returns the other pool, if stored.
    pub(super) fn other(self) -> Option<[u8; 16]> {
        match self {
            MoveState::Leaving { to: other, .. } | MoveState::Arrived { from: other, .. } => {
                Some(other)
            }
            MoveState::Arriving { .. } => None,
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            MoveState::Leaving { .. } => MOVE_LEAVING,
            MoveState::Arriving { .. } => MOVE_ARRIVING,
            MoveState::Arrived { .. } => MOVE_ARRIVED,
        }
    }

    /// Returns the word in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            MoveState::Leaving { .. } => "leaving",
            MoveState::Arriving { .. } => "arriving",
            MoveState::Arrived { .. } => "arrived",
        }
    }

    /// Whether the fileset is closed to use.
    #[must_use]
    pub fn is_closed(self) -> bool {
        match self {
            MoveState::Leaving { .. } | MoveState::Arriving { .. } => true,
            MoveState::Arrived { .. } => false,
        }
    }
}
