//! Preallocation: space that is taken ahead, by fallocate(2).
//!
//! Space that is taken ahead has no place yet, since every version of a block takes a new one: the
//! pointer says that room for the whole block is reserved, and the pool counts what all pointers
//! reserve, so that nobody else can have it (G4). What is stored of the block counts against it; a
//! write of what is stored or reserved finds room (G5). A reservation ends with the pointer: when
//! the block is punched, cut off, or its file is deleted.
//!
//! # Invariants
//!
//! - PA1: A preallocation that fails keeps no room that the file did not have before. It is many
//!   transactions: a crash between two of them keeps what they have taken.
//! - PA2: The entry of a fileset of which any pointer reserves room says so.

use std::ops::Range;
use std::sync::Arc;

use format::anode::INLINE_BYTES_MAX;
use runtime::planted::{self, Planted};

use super::access::{WRITE, is_exempt};
use super::api::Caller;
use super::inline::{is_inline, settle_storage};
use super::{Core, Files, Vnode};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;
use crate::sync::Mutex;

/// Locks of those who preallocate: files share them by number.
const LOCKS: usize = 16;
/// Most ranges that a preallocation remembers to give back: 1 MiB. It takes a file with as many
/// preallocated ranges to have more between them; what lies behind these stays reserved.
const RANGES_MAX: usize = 1 << 16;

/// A preallocation is tight if it leaves less than one part in so many of what is available: map
/// pages take one part in 124 at most.
const TIGHT_SHARE: u64 = 32;

/// Files in which somebody preallocates: one at a time in each, so that what one gives back is not
/// what another was given (PA1).
#[derive(Debug)]
pub(super) struct Preallocating([Mutex<()>; LOCKS]);

impl Default for Preallocating {
    fn default() -> Preallocating {
        Preallocating(std::array::from_fn(|_| Mutex::new(())))
    }
}

impl Preallocating {
    fn of(&self, vnode: &Vnode) -> &Mutex<()> {
        &self.0[index_wide(vnode.number.0 % wide(LOCKS))]
    }
}

/// Ranges of a file that one preallocation has reserved, in order.
#[derive(Debug, Default)]
struct Taken(Vec<Range<u64>>);

impl Taken {
    fn add(&mut self, ranges: Vec<Range<u64>>) {
        for range in ranges {
            let count = self.0.len();
            match self.0.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ if count < RANGES_MAX => self.0.push(range),
                _ => {}
            }
        }
    }
}

impl Core {
    /// Refuses at once what the pool can't have even if all that the file has lies in `range`.
    /// Returns whether little is left besides.
    fn check_allocation(
        &self,
        caller: &Caller,
        vnode: &Vnode,
        range: &Range<u64>,
    ) -> FsResult<bool> {
        let wanted_bytes = range.end - range.start;
        let wanted = wanted_bytes >> self.store.geometry().fragment_shift;
        let held = vnode.state.read().anode()?.fragments;
        let own = self.fileset_of(vnode).anodes.usage.counts().kept;
        let available = self.store.alloc.counts().available + own;
        if wanted > held.saturating_add(available) {
            return Err(FsError::NoSpace);
        }
        let (anodes, more) = (&self.fileset_of(vnode).anodes, wanted.saturating_sub(held));
        anodes.usage.check(more)?;
        let exempt = is_exempt(caller);
        anodes.check_owners(&self.store, vnode.state.read().anode()?, more, exempt)?;
        Ok(more > available - available / TIGHT_SHARE)
    }
}

impl Files<'_> {
    /// Reserves room for every block that `range` touches, and raises the size to its end unless
    /// that `keeps_size`.
    pub(super) fn preallocate(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        range: Range<u64>,
        keeps_size: bool,
    ) -> FsResult<()> {
        let _preallocating = self.preallocating.of(vnode).lock();
        let mut taken = Taken::default();
        let done = self.allocate(caller, vnode, &range, &mut taken).and_then(|()| {
            let (inside, mut state) = self.settled(vnode)?;
            self.note_write(&mut state, caller, vnode)?;
            drop((state, inside));
            if keeps_size { Ok(()) } else { self.reach(caller, vnode, range.end) }
        });
        if done.is_err()
            && !planted::is(Planted::PreallocationKept)
            && let Err(error) = self.give_back(vnode, taken)
        {
            let anode = vnode.number.0;
            tracing::warn!(%error, anode, "what a failed fallocate has reserved stays reserved");
        }
        done
    }

    fn allocate(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        range: &Range<u64>,
        taken: &mut Taken,
    ) -> FsResult<()> {
        self.make_room()?;
        let is_tight = self.with_reclaim(|| self.check_allocation(caller, vnode, range))?;
        self.note_may_reserve()?;
        let mut at = range.start;
        while at < range.end {
            let (next, ranges) =
                self.with_reclaim(|| self.allocate_some(caller, vnode, at..range.end, is_tight))?;
            taken.add(ranges);
            at = next;
        }
        Ok(())
    }

    /// Before the first file of the fileset reserves room its entry says so: else whoever becomes
    /// like it would have to read all maps to know.
    ///
    /// CRASH: what is reserved may be of another class, so the entry is durable first.
    fn note_may_reserve(&self) -> FsResult<()> {
        if self.fileset.anodes.may_reserve() || planted::is(Planted::ReservingNotNoted) {
            return Ok(());
        }
        let mut change = self.begin(Reservation::SMALL)?;
        let mut guard = self.fileset.anodes.lock();
        guard.change_entry(&mut change, |entry| entry.may_reserve = true)?;
        let applied = change.end();
        // Who sees it now relies on it.
        self.store.journal.close_open();
        guard.settle(applied.lsn);
        self.store.journal.commit(applied.class)
    }

    /// Reserves room for the first blocks of `range`, as many as one transaction can. Returns where
    /// to go on, and for which ranges there was no room before.
    fn allocate_some(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        range: Range<u64>,
        is_tight: bool,
    ) -> FsResult<(u64, Vec<Range<u64>>)> {
        let (mut change, mut state) = self.begin_settled(vnode)?;
        state.is_exempt = is_exempt(caller);
        self.check_content(caller, &state, WRITE)?;
        let mut anode = state.anode()?.clone();
        if is_inline(&anode) && state.pending.is_empty() && range.end <= wide(INLINE_BYTES_MAX) {
            // The anode has room for it.
            return Ok((range.end, Vec::new()));
        }
        if is_inline(&anode) && (anode.size_bytes > 0 || !state.pending.is_empty()) {
            self.leave_inline(&mut state)?;
            self.note_dirty(vnode);
            drop((state, change));
            self.install_all(vnode)?;
            return Ok((range.start, Vec::new()));
        }
        let own = self.fileset.anodes.usage.counts().kept;
        let reserved =
            self.store.reserve_blocks(&mut change, &mut anode, range, (own, is_tight))?;
        self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
        change.admit(is_exempt(caller))?;
        let applied = change.end();
        state.anode = Some(anode);
        state.class = applied.class;
        Ok(reserved)
    }

    /// PA1: reserves `taken` no longer, the last first. What was written there meanwhile stays.
    fn give_back(&self, vnode: &Arc<Vnode>, taken: Taken) -> FsResult<()> {
        for range in taken.0.into_iter().rev() {
            let mut at = range.start;
            while at < range.end {
                let (mut change, mut state) = self.begin_settled(vnode)?;
                let mut anode = state.anode()?.clone();
                at = self.store.release_blocks(&mut change, &mut anode, at..range.end)?;
                // The size on disk may be that of before a write: what is a file of holes by now
                // stays one of blocks.
                if state.pending.is_empty() && state.size_bytes == 0 {
                    settle_storage(&mut anode);
                }
                self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
                let applied = change.end();
                state.anode = Some(anode);
                state.class = applied.class;
            }
        }
        Ok(())
    }
}
