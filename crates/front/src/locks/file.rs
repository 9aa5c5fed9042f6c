//! The locks of one file.

use super::{HolderId, Lock, LockAnswer, LockInterface, LockOwner, LockRange, WaitId};
use runtime::clock::Timestamp;

/// The locks of one file. Methods that change what is held return by how many locks it is more.
#[derive(Default)]
pub(super) struct FileLocks {
    /// LT1, LT2. In no order.
    pub(super) held: Vec<HeldLock>,
    /// In order of arrival.
    pub(super) waiting: Vec<WaitingLock>,
}

#[derive(Clone, Copy)]
pub(super) struct HeldLock {
    pub(super) lock: Lock,
    pub(super) since: Timestamp,
    /// A reference on its open file was closed since. Others may be left.
    pub(super) is_closing: bool,
}

pub(super) struct WaitingLock {
    pub(super) id: WaitId,
    pub(super) lock: Lock,
    pub(super) answer: LockAnswer,
    pub(super) since: Timestamp,
}

impl FileLocks {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty()
    }

    /// Returns a held lock that conflicts, rather one that is not closing.
    pub(super) fn conflict(&self, lock: &Lock) -> Option<&HeldLock> {
        let mut conflicts = self.held.iter().filter(|held| held.lock.conflicts_with(lock));
        let first = conflicts.next()?;
        Some(conflicts.find(|held| !held.is_closing).filter(|_| first.is_closing).unwrap_or(first))
    }

    pub(super) fn waiting_of(&self, id: WaitId) -> Option<&Lock> {
        self.waiting.iter().find(|waiting| waiting.id == id).map(|waiting| &waiting.lock)
    }

    /// Adds a lock that conflicts with none. A new lock replaces the owner's earlier locks of its
    /// range, and joins neighbours of one mode and open file (LT2).
    pub(super) fn hold(&mut self, lock: Lock, now: Timestamp) -> isize {
        let before = self.held.len();
        self.release(lock.owner, lock.interface, lock.range);
        let mut joined = lock;
        self.held.retain(|held| {
            let is_neighbour = is_of(held, lock.owner, lock.interface)
                && held.lock.mode == lock.mode
                && held.lock.open_file == lock.open_file
                && held.lock.range.touches(lock.range);
            if is_neighbour {
                joined.range.first = joined.range.first.min(held.lock.range.first);
                joined.range.last = joined.range.last.max(held.lock.range.last);
            }
            !is_neighbour
        });
        self.held.push(HeldLock { lock: joined, since: now, is_closing: false });
        more(before, self.held.len())
    }

    /// Releases a range. A lock that has more on both sides becomes two.
    pub(super) fn release(
        &mut self,
        owner: LockOwner,
        interface: LockInterface,
        range: LockRange,
    ) -> isize {
        let before = self.held.len();
        let mut rests = Vec::new();
        self.held.retain(|held| {
            let own = held.lock.range;
            if !is_of(held, owner, interface) || !own.overlaps(range) {
                return true;
            }
            let mut keep =
                |range| rests.push(HeldLock { lock: Lock { range, ..held.lock }, ..*held });
            if let Some(last) = range.first.checked_sub(1).filter(|last| own.first <= *last) {
                keep(LockRange { first: own.first, last });
            }
            if let Some(first) = range.last.checked_add(1).filter(|first| *first <= own.last) {
                keep(LockRange { first, last: own.last });
            }
            false
        });
        self.held.append(&mut rests);
        more(before, self.held.len())
    }

    /// Returns whether a release of this range makes two locks of one.
    pub(super) fn would_split(
        &self,
        owner: LockOwner,
        interface: LockInterface,
        range: LockRange,
    ) -> bool {
        self.held.iter().any(|held| {
            let own = held.lock.range;
            is_of(held, owner, interface) && own.first < range.first && range.last < own.last
        })
    }

    pub(super) fn note_closing(&mut self, holder: HolderId, open_file: u64) {
        for held in &mut self.held {
            held.is_closing |= held.lock.owner.holder == holder && held.lock.open_file == open_file;
        }
    }

    /// Releases what the owner of `lock` holds in the other mode, before it is converted.
    pub(super) fn release_other_mode(&mut self, lock: &Lock) -> isize {
        self.remove(|held| {
            held.owner == lock.owner && held.interface == lock.interface && held.mode != lock.mode
        })
    }

    pub(super) fn remove(&mut self, is_removed: impl Fn(&Lock) -> bool) -> isize {
        let before = self.held.len();
        self.held.retain(|held| !is_removed(&held.lock));
        more(before, self.held.len())
    }

    /// Grants the first waiting request that conflicts with nothing held (LT3).
    pub(super) fn grant_next(&mut self, now: Timestamp) -> Option<(WaitingLock, isize)> {
        let is_free = |waiting: &WaitingLock| self.conflict(&waiting.lock).is_none();
        let index = self.waiting.iter().position(is_free)?;
        let granted = self.waiting.remove(index);
        let more = self.hold(granted.lock, now);
        Some((granted, more))
    }
}

fn is_of(held: &HeldLock, owner: LockOwner, interface: LockInterface) -> bool {
    held.lock.owner == owner && held.lock.interface == interface
}

fn more(before: usize, after: usize) -> isize {
    after.cast_signed() - before.cast_signed()
}
