//! The begin of transactions: each reserves log credits and pages for its worst case, and gets its
//! epoch.
//!
//! Not here: the end of transactions (`journal`) and their content (`tx`).

use format::defect::DefectCode;
use format::ids::{EPOCH_MAX, Epoch};

use super::tx::{TX_PAGES_MAX, Tx};
use super::{Journal, JournalState, recovery};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;

/// Bounds the transaction that moves a block well below [`TX_PAGES_MAX`].
const MOVED_MEMBERS_MAX: usize = 256;
const _: () = assert!(MOVED_MEMBERS_MAX + 64 < TX_PAGES_MAX);

/// The worst case of a transaction, reserved by `begin`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogCredits {
    pub(crate) log_bytes: u64,
    pub(crate) pages: usize,
    /// Existing pages between which content moves (K4).
    pub(crate) moves: usize,
}

impl LogCredits {
    /// A handful of pages: names, attributes.
    pub(crate) const SMALL: LogCredits = LogCredits { log_bytes: 48 << 10, pages: 32, moves: 24 };
    /// Map updates or frees of many blocks.
    pub(crate) const LARGE: LogCredits = LogCredits { log_bytes: 160 << 10, pages: 128, moves: 0 };
    /// Operations on names that inherit long access lists.
    pub(crate) const LARGE_NAMES: LogCredits =
        LogCredits { moves: LogCredits::SMALL.moves, ..LogCredits::LARGE };
    pub(super) const NONE: LogCredits = LogCredits { log_bytes: 0, pages: 0, moves: 0 };

    /// Credits for moving a block: a page of each family member, shared pages of pointers, and free
    /// maps.
    pub(crate) fn for_move(members: usize) -> LogCredits {
        LogCredits { pages: 64 + members, ..LogCredits::LARGE }
    }

    pub(crate) fn times_and(self, count: usize, other: LogCredits) -> LogCredits {
        LogCredits {
            log_bytes: self.log_bytes * wide(count) + other.log_bytes,
            pages: self.pages * count + other.pages,
            moves: self.moves * count + other.moves,
        }
    }

    fn without(self, other: LogCredits) -> Option<LogCredits> {
        Some(LogCredits {
            log_bytes: self.log_bytes.checked_sub(other.log_bytes)?,
            pages: self.pages.checked_sub(other.pages)?,
            moves: self.moves.checked_sub(other.moves)?,
        })
    }

    pub(super) fn bears(self, logged_bytes: u64, pages: usize) -> bool {
        self.log_bytes == LogCredits::NONE.log_bytes
            || (logged_bytes <= self.log_bytes && pages <= self.pages)
    }
}

enum BeginRefusal {
    NoRoom,
    NotLetIn,
}

impl Journal {
    /// Starts a transaction. Waits until the log and the set of dirty pages have room for its worst
    /// case. Called with no lock held (T2).
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`](crate::error::FsError::ReadOnly) if the journal has failed, or fails
    /// during the wait.
    pub(crate) fn begin(&self, reservation: LogCredits) -> FsResult<Tx> {
        loop {
            if let Some(tx) = self.begin_if(reservation, &mut || true)? {
                return Ok(tx);
            }
        }
    }

    /// [`Journal::begin`] with a condition: calls `enter` once there is room, under the manager's
    /// lock. `None` if `enter` returns false.
    pub(crate) fn begin_if(
        &self,
        reservation: LogCredits,
        enter: &mut dyn FnMut() -> bool,
    ) -> FsResult<Option<Tx>> {
        {
            let mut state = self.state.lock();
            if state.waiting == 0 {
                match self.begin_now(&mut state, reservation, enter)? {
                    Ok(tx) => return Ok(Some(tx)),
                    Err(BeginRefusal::NotLetIn) => return Ok(None),
                    Err(BeginRefusal::NoRoom) => {}
                }
            }
            state.waiting += 1;
        }
        let begun = self.begin_in_turn(reservation, enter);
        self.state.lock().waiting -= 1;
        begun
    }

    fn begin_now(
        &self,
        state: &mut JournalState,
        reservation: LogCredits,
        enter: &mut dyn FnMut() -> bool,
    ) -> FsResult<Result<Tx, BeginRefusal>> {
        self.check_alive()?;
        if state.next_epoch > EPOCH_MAX - recovery::EPOCH_JUMP {
            self.fail_of(
                &DefectCode::JR007.found("the pool's epochs are used up: copy it to a new pool"),
            );
            return self.check_alive().map(|()| Err(BeginRefusal::NoRoom));
        }
        if !self.has_room(state, reservation) {
            return Ok(Err(BeginRefusal::NoRoom));
        }
        if !enter() {
            return Ok(Err(BeginRefusal::NotLetIn));
        }
        state.reserve(reservation);
        Ok(Ok(state.new_tx(reservation)))
    }

    /// Waits for room. Callers take turns, or small reservations could overtake a large one for
    /// ever.
    fn begin_in_turn(
        &self,
        reservation: LogCredits,
        enter: &mut dyn FnMut() -> bool,
    ) -> FsResult<Option<Tx>> {
        let _turn = self.turn.lock();
        let mut state = self.state.lock();
        loop {
            match self.begin_now(&mut state, reservation, enter)? {
                Ok(tx) => return Ok(Some(tx)),
                Err(BeginRefusal::NotLetIn) => return Ok(None),
                Err(BeginRefusal::NoRoom) => {}
            }
            if state.reserved_bytes > 0 && self.would_have_room(&state, reservation) {
                // Running transactions return the room; a slow device delays that until its
                // deadline.
                self.space.wait(&mut state);
            } else {
                drop(state);
                self.checkpoint()?;
                state = self.state.lock();
            }
        }
    }

    /// Starts a small transaction that must not wait. It uses the half of the ring that T4 leaves
    /// free.
    pub(crate) fn begin_unreserved(&self) -> Tx {
        self.state.lock().new_tx(LogCredits::NONE)
    }

    fn has_room(&self, state: &JournalState, reservation: LogCredits) -> bool {
        let both = LogCredits {
            log_bytes: state.reserved_bytes + reservation.log_bytes,
            pages: state.reserved_pages + reservation.pages,
            moves: state.reserved_moves + reservation.moves,
        };
        self.would_have_room(state, both)
    }

    fn would_have_room(&self, state: &JournalState, reservation: LogCredits) -> bool {
        let active = state.log.position().0 - state.tail.0 + state.log.pending_bytes();
        active + reservation.log_bytes <= self.options.active_bytes_max
            && state.dirty.len() + reservation.pages <= self.options.dirty_pages_max
            && state.moved.len() + reservation.moves <= self.double_write_pages()
    }

    /// Returns the most pages that can be written back as one group (K4).
    pub(super) fn double_write_pages(&self) -> usize {
        index_wide(self.volume.geometry().double_write_pages)
    }

    /// Returns how many transactions have room at once in a quarter of the bounds; at least one.
    pub(crate) fn at_once(&self, reservation: LogCredits) -> usize {
        let bytes = index_wide(self.options.active_bytes_max / 4 / reservation.log_bytes.max(1));
        let pages = self.options.dirty_pages_max / 4 / reservation.pages.max(1);
        bytes.min(pages).max(1)
    }

    /// Returns how many snapshots and filesets may hold a block that is moved: two such
    /// transactions have room at once.
    pub(crate) fn moved_members_max(&self) -> usize {
        let for_one = self.options.dirty_pages_max / 2;
        for_one.saturating_sub(LogCredits::for_move(0).pages).min(MOVED_MEMBERS_MAX)
    }

    /// Starts a transaction on unused credits of `pot`, without a wait. `None` if `pot` has too
    /// few.
    pub(crate) fn begin_from(&self, pot: &mut Tx, reservation: LogCredits) -> Option<Tx> {
        pot.reservation = pot.reservation.without(reservation)?;
        Some(self.state.lock().new_tx(reservation))
    }

    pub(crate) fn abandon(&self, tx: Tx) {
        let mut state = self.state.lock();
        self.give_back(&mut state, tx.reservation);
        state.keep(tx.memory);
    }

    pub(super) fn give_back(&self, state: &mut JournalState, reservation: LogCredits) {
        state.reserved_bytes -= reservation.log_bytes;
        state.reserved_pages -= reservation.pages;
        state.reserved_moves -= reservation.moves;
        self.space.notify_all();
    }
}

impl JournalState {
    fn reserve(&mut self, reservation: LogCredits) {
        self.reserved_bytes += reservation.log_bytes;
        self.reserved_pages += reservation.pages;
        self.reserved_moves += reservation.moves;
    }

    fn new_tx(&mut self, reservation: LogCredits) -> Tx {
        let epoch = Epoch(self.next_epoch);
        self.next_epoch += 1;
        Tx::new(epoch, reservation, self.spare.pop().unwrap_or_default())
    }
}
