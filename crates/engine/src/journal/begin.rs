//! Transactions begin: each reserves what it may need at most, and gets its epoch.
//!
//! Not here: how they end (`journal`), and what they hold meanwhile (`tx`).

use format::defect::DefectCode;
use format::ids::{EPOCH_MAX, Epoch};

use super::tx::{TX_PAGES_MAX, Tx};
use super::{Journal, State, recovery};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;

/// Most clones and filesets that may hold one block: what moving it changes stays well below what
/// one transaction may.
const MOVED_MEMBERS_MAX: usize = 256;
const _: () = assert!(MOVED_MEMBERS_MAX + 64 < TX_PAGES_MAX);

/// What a transaction may need at most: `begin` takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    /// Bytes of log.
    pub(crate) log_bytes: u64,
    /// Pages.
    pub(crate) pages: usize,
    /// Pages at home between which content moves: they share the double-write area.
    pub(crate) moves: usize,
}

impl Reservation {
    /// For an operation that touches a handful of pages: names, attributes.
    pub(crate) const SMALL: Reservation = Reservation { log_bytes: 48 << 10, pages: 32, moves: 24 };
    /// For an operation that installs or frees many blocks.
    pub(crate) const LARGE: Reservation =
        Reservation { log_bytes: 160 << 10, pages: 128, moves: 0 };
    /// For an operation on names that hands down long access lists.
    pub(crate) const LARGE_NAMES: Reservation =
        Reservation { moves: Reservation::SMALL.moves, ..Reservation::LARGE };
    /// For what must not wait: see [`Journal::begin_unreserved`].
    pub(super) const NONE: Reservation = Reservation { log_bytes: 0, pages: 0, moves: 0 };

    /// Returns what moving blocks that up to `members` hold may need: a page of each, those that
    /// more pointers are in, and the maps of free space.
    pub(crate) fn for_move(members: usize) -> Reservation {
        Reservation { pages: 64 + members, ..Reservation::LARGE }
    }

    /// Returns what `count` transactions of this kind and one `other` may need.
    pub(crate) fn times_and(self, count: usize, other: Reservation) -> Reservation {
        Reservation {
            log_bytes: self.log_bytes * wide(count) + other.log_bytes,
            pages: self.pages * count + other.pages,
            moves: self.moves * count + other.moves,
        }
    }

    fn without(self, other: Reservation) -> Option<Reservation> {
        Some(Reservation {
            log_bytes: self.log_bytes.checked_sub(other.log_bytes)?,
            pages: self.pages.checked_sub(other.pages)?,
            moves: self.moves.checked_sub(other.moves)?,
        })
    }

    /// Whether a transaction that reserved this may log so many bytes of so many pages.
    pub(super) fn bears(self, logged_bytes: u64, pages: usize) -> bool {
        self.log_bytes == Reservation::NONE.log_bytes
            || (logged_bytes <= self.log_bytes && pages <= self.pages)
    }
}

/// Why a transaction is not begun.
enum NotYet {
    /// The log or the set of dirty pages has no room for it.
    NoRoom,
    /// Whoever keeps the gate of its fileset said no.
    NotLetIn,
}

impl Journal {
    /// Starts a transaction: waits until the log and the set of dirty pages have room for its
    /// worst case. Called with no lock held (T2).
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`](crate::error::FsError::ReadOnly) if the journal has failed, or fails
    /// while this waits.
    pub(crate) fn begin(&self, reservation: Reservation) -> FsResult<Tx> {
        loop {
            if let Some(tx) = self.begin_if(reservation, &mut || true)? {
                return Ok(tx);
            }
        }
    }

    /// As [`Journal::begin`], if `enter` says so: it is called once there is room, before the
    /// transaction gets its epoch, under the manager's lock. `None`: it said no, and nothing is
    /// reserved.
    pub(crate) fn begin_if(
        &self,
        reservation: Reservation,
        enter: &mut dyn FnMut() -> bool,
    ) -> FsResult<Option<Tx>> {
        {
            let mut state = self.state.lock();
            if state.waiting == 0 {
                match self.begin_now(&mut state, reservation, enter)? {
                    Ok(tx) => return Ok(Some(tx)),
                    Err(NotYet::NotLetIn) => return Ok(None),
                    Err(NotYet::NoRoom) => {}
                }
            }
            state.waiting += 1;
        }
        let begun = self.begin_in_turn(reservation, enter);
        self.state.lock().waiting -= 1;
        begun
    }

    /// Starts a transaction if there is room for it.
    fn begin_now(
        &self,
        state: &mut State,
        reservation: Reservation,
        enter: &mut dyn FnMut() -> bool,
    ) -> FsResult<Result<Tx, NotYet>> {
        self.check_alive()?;
        if state.next_epoch > EPOCH_MAX - recovery::EPOCH_JUMP {
            self.fail_of(
                &DefectCode::JR007.found("the pool's epochs are used up: copy it to a new pool"),
            );
            return self.check_alive().map(|()| Err(NotYet::NoRoom));
        }
        if !self.has_room(state, reservation) {
            return Ok(Err(NotYet::NoRoom));
        }
        if !enter() {
            return Ok(Err(NotYet::NotLetIn));
        }
        state.reserve(reservation);
        Ok(Ok(state.new_tx(reservation)))
    }

    /// Makes room and starts a transaction, one caller after the other: whoever comes later waits
    /// behind them, or a large reservation might wait for ever while small ones go on.
    fn begin_in_turn(
        &self,
        reservation: Reservation,
        enter: &mut dyn FnMut() -> bool,
    ) -> FsResult<Option<Tx>> {
        let _turn = self.turn.lock();
        let mut state = self.state.lock();
        loop {
            match self.begin_now(&mut state, reservation, enter)? {
                Ok(tx) => return Ok(Some(tx)),
                Err(NotYet::NotLetIn) => return Ok(None),
                Err(NotYet::NoRoom) => {}
            }
            if state.reserved_bytes > 0 && self.would_have_room(&state, reservation) {
                // Others hold the room: each gives it back at its end, which a device can delay
                // until its deadline.
                self.space.wait(&mut state);
            } else {
                drop(state);
                self.checkpoint()?;
                state = self.state.lock();
            }
        }
    }

    /// Starts a small transaction of the system's own that must not wait, because its caller holds
    /// locks: it lives on the half of the ring that T4 leaves.
    pub(crate) fn begin_unreserved(&self) -> Tx {
        self.state.lock().new_tx(Reservation::NONE)
    }

    fn has_room(&self, state: &State, reservation: Reservation) -> bool {
        let both = Reservation {
            log_bytes: state.reserved_bytes + reservation.log_bytes,
            pages: state.reserved_pages + reservation.pages,
            moves: state.reserved_moves + reservation.moves,
        };
        self.would_have_room(state, both)
    }

    /// Returns whether there were room if nobody had reserved any.
    fn would_have_room(&self, state: &State, reservation: Reservation) -> bool {
        let active = state.log.position().0 - state.tail.0 + state.log.pending_bytes();
        active + reservation.log_bytes <= self.options.active_bytes_max
            && state.dirty.len() + reservation.pages <= self.options.dirty_pages_max
            && state.moved.len() + reservation.moves <= self.double_write_pages()
    }

    /// K2: as many pages can go home together.
    pub(super) fn double_write_pages(&self) -> usize {
        index_wide(self.volume.geometry().double_write_pages)
    }

    /// Returns how many transactions that may need `reservation` can be given room at once, without
    /// taking more than a quarter of what there is from others; at least one.
    pub(crate) fn at_once(&self, reservation: Reservation) -> usize {
        let bytes = index_wide(self.options.active_bytes_max / 4 / reservation.log_bytes.max(1));
        let pages = self.options.dirty_pages_max / 4 / reservation.pages.max(1);
        bytes.min(pages).max(1)
    }

    /// Returns how many clones and filesets may hold one block, so that a transaction can move it:
    /// it changes a page of each, and two such have room at once.
    pub(crate) fn moved_members_max(&self) -> usize {
        let for_one = self.options.dirty_pages_max / 2;
        for_one.saturating_sub(Reservation::for_move(0).pages).min(MOVED_MEMBERS_MAX)
    }

    /// Starts a transaction with a part of what `pot` has reserved and not used; it gets its epoch
    /// now. Waits for nobody. `None`: not so much is left.
    pub(crate) fn begin_from(&self, pot: &mut Tx, reservation: Reservation) -> Option<Tx> {
        pot.reservation = pot.reservation.without(reservation)?;
        Some(self.state.lock().new_tx(reservation))
    }

    /// Gives a transaction up: nothing of it was ever seen.
    pub(crate) fn abandon(&self, tx: Tx) {
        let mut state = self.state.lock();
        self.give_back(&mut state, tx.reservation);
        state.keep(tx.memory);
    }

    pub(super) fn give_back(&self, state: &mut State, reservation: Reservation) {
        state.reserved_bytes -= reservation.log_bytes;
        state.reserved_pages -= reservation.pages;
        state.reserved_moves -= reservation.moves;
        self.space.notify_all();
    }
}

impl State {
    fn reserve(&mut self, reservation: Reservation) {
        self.reserved_bytes += reservation.log_bytes;
        self.reserved_pages += reservation.pages;
        self.reserved_moves += reservation.moves;
    }

    /// Gives out the next epoch, to a transaction that has reserved what it may need.
    fn new_tx(&mut self, reservation: Reservation) -> Tx {
        let epoch = Epoch(self.next_epoch);
        self.next_epoch += 1;
        Tx::new(epoch, reservation, self.spare.pop().unwrap_or_default())
    }
}
