//! Preallocation by fallocate(2).
//!
//! A preallocation has no place, since each version of a block gets a new one. The pointer marks
//! room for the whole block as reserved, and the pool counts all these reservations (G4). A write
//! within the preallocation finds room (G5), and the stored part of a block counts towards the
//! reservation. The reservation ends with the pointer: by a punch, a truncate, or deletion.
//!
//! # Invariants
//!
//! - PA1: A failed preallocation leaves no additional reservation. But a preallocation takes many
//!   transactions, and a crash between them keeps the earlier ones.
//! - PA2: A fileset that has a pointer with a reservation is marked in its table entry.

use std::ops::Range;
use std::sync::Arc;

use format::anode::INLINE_BYTES_MAX;

use crate::api::Caller;
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::file::access::{WRITE, is_exempt};
use crate::file::inline::{is_inline, settle_storage};
use crate::file::{Core, Files, Vnode};
use crate::journal::LogCredits;
use crate::sync::Mutex;

/// Number of locks, shared by files with equal numbers modulo this.
const LOCKS: usize = 16;
/// Most ranges remembered for a rollback: 1 MiB. Further ones stay reserved.
const RANGES_MAX: usize = 1 << 16;

/// A preallocation is tight if it leaves less of the available room than one part in this many. Map
/// pages take at most one part in 124.
const TIGHT_SHARE: u64 = 32;

/// Serialises preallocations of a file, so that a rollback frees only its own (PA1).
#[derive(Debug)]
pub(super) struct PreallocationLocks([Mutex<()>; LOCKS]);

impl Default for PreallocationLocks {
    fn default() -> PreallocationLocks {
        PreallocationLocks(std::array::from_fn(|_| Mutex::new(())))
    }
}

impl PreallocationLocks {
    fn of(&self, vnode: &Vnode) -> &Mutex<()> {
        &self.0[index_wide(vnode.number.0 % wide(LOCKS))]
    }
}

#[derive(Debug, Default)]
struct PreallocatedRanges(Vec<Range<u64>>);

impl PreallocatedRanges {
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
    /// Fails early if `range` finds no room, even supposing that all blocks of the file are in it.
    /// Returns whether the preallocation is tight.
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
    /// Reserves every block that `range` touches, and raises the size unless `keeps_size`.
    pub(super) fn preallocate(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        range: Range<u64>,
        keeps_size: bool,
    ) -> FsResult<()> {
        let _preallocating = self.preallocating.of(vnode).lock();
        let mut taken = PreallocatedRanges::default();
        let done = self.allocate(caller, vnode, &range, &mut taken).and_then(|()| {
            let (inside, mut state) = self.settled(vnode)?;
            self.writeback().note_write(&mut state, caller, vnode)?;
            drop((state, inside));
            if keeps_size { Ok(()) } else { self.reach(caller, vnode, range.end) }
        });
        if done.is_err()
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
        taken: &mut PreallocatedRanges,
    ) -> FsResult<()> {
        self.space_reclaim().make_room()?;
        let is_tight =
            self.space_reclaim().with_reclaim(|| self.check_allocation(caller, vnode, range))?;
        self.note_may_reserve()?;
        let mut at = range.start;
        while at < range.end {
            let (next, ranges) = self
                .space_reclaim()
                .with_reclaim(|| self.allocate_some(caller, vnode, at..range.end, is_tight))?;
            taken.add(ranges);
            at = next;
        }
        Ok(())
    }

    /// PA2: marks the fileset's entry. A clone or restore reads all maps of a marked fileset only.
    ///
    /// CRASH: the mark is durable before the reservation, whose class may be another.
    fn note_may_reserve(&self) -> FsResult<()> {
        if self.fileset.anodes.may_reserve() {
            return Ok(());
        }
        let mut change = self.begin(LogCredits::SMALL)?;
        let mut guard = self.fileset.anodes.lock();
        guard.change_entry(&mut change, |entry| entry.may_reserve = true)?;
        let applied = change.end();
        // Closes the class first: other operations rely on the mark as soon as it is visible.
        self.store.journal.close_open();
        guard.settle(applied.lsn);
        self.store.journal.commit(applied.class)
    }

    /// Reserves a prefix of `range`, as far as one transaction permits. Returns the start of the
    /// rest, and the ranges without an earlier reservation.
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
            // Content in the anode needs no reservation.
            return Ok((range.end, Vec::new()));
        }
        if is_inline(&anode) && (anode.size_bytes > 0 || !state.pending.is_empty()) {
            self.writeback().leave_inline(&mut state)?;
            self.note_dirty(vnode);
            drop((state, change));
            self.writeback().install_all(vnode)?;
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

    /// PA1: rolls back `taken`, last first, except for blocks written since.
    fn give_back(&self, vnode: &Arc<Vnode>, taken: PreallocatedRanges) -> FsResult<()> {
        for range in taken.0.into_iter().rev() {
            let mut at = range.start;
            while at < range.end {
                let (mut change, mut state) = self.begin_settled(vnode)?;
                let mut anode = state.anode()?.clone();
                at = self.store.release_blocks(&mut change, &mut anode, at..range.end)?;
                // With dirty data the size on disk may be outdated, so the file keeps its block
                // map.
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
