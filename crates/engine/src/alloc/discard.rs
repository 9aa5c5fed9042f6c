//! Discard of free segments.
//!
//! After a discard the contents of a segment are undefined, as after an interrupted write. So
//! exactly those segments may be discarded that may be opened and overwritten.
//!
//! # Invariants
//!
//! - DH1: Only free segments are discarded: released by a checkpoint (G2), not open, not pinned
//!   (G6). Until every member has answered, the segment is held: it is neither opened nor given
//!   another kind. After an expired discard, which may still take effect (D6), it is held until the
//!   pool is closed, and counts as promised (G4).
//! - DH2: Held segments cause no ENOSPC. A disk group keeps [`FREE_KEPT`] free segments that are
//!   not held, and a writer without one waits for the discard in flight. A thread that holds
//!   segments waits for devices only.
//!
//! # Crashes
//!
//! A discard leaves no record. The segment is free in the durable state before and after, and free
//! segments are not read: recovery begins after all log records about them, and the cleaner, scrub
//! and check read segments in use.
//!
//! Not here: when to discard, and how much at a time (`jobs::discards`).

use std::sync::atomic::{AtomicU64, Ordering};

use format::group::SegmentKind;
use runtime::planted;
use storage::device::DeviceError;

use super::group::{AllocationGroup, SegmentState};
use super::{Allocator, AllocatorState, LOW_SEGMENTS, SegmentId};
use crate::convert::{index, narrow, wide};
use crate::error::FsResult;
use crate::sync::MutexGuard;

/// Free segments that are not held, for writers during a discard.
pub(crate) const FREE_KEPT: u32 = LOW_SEGMENTS;

/// What the device may hold in a free segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FreeSegmentContents {
    /// Old contents. The segment became free since the last [`Allocator::note_free_long`].
    #[default]
    Kept,
    /// Old contents. The segment was free at the last [`Allocator::note_free_long`].
    KeptLong,
    /// No contents: discarded or never used.
    Nothing,
}

/// Which free segments to discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiscardSelection {
    /// Those in memory with [`FreeSegmentContents::KeptLong`].
    FreeLong,
    Free,
}

/// Adjacent free segments, held until `end` or drop (DH1).
#[derive(Debug)]
pub(crate) struct HeldSegments<'a> {
    alloc: &'a Allocator,
    pub(crate) first: SegmentId,
    pub(crate) count: u32,
    is_over: bool,
}

/// Fragments held because their discard has expired, since open.
#[derive(Debug, Default)]
pub(crate) struct ExpiredDiscards(AtomicU64);

impl ExpiredDiscards {
    pub(crate) fn fragments(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl SegmentState {
    /// Returns whether the segment may be discarded (DH1).
    fn is_discardable(&self, which: DiscardSelection) -> bool {
        match which {
            _ if planted!(PendingDiscarded) && self.has_only_pending() => true,
            DiscardSelection::FreeLong => {
                self.is_free() && self.below == FreeSegmentContents::KeptLong
            }
            DiscardSelection::Free => self.is_free(),
        }
    }

    fn has_only_pending(&self) -> bool {
        self.kind == SegmentKind::Data
            && !self.is_open
            && self.held > 0
            && self.held == self.pending
    }
}

impl AllocationGroup {
    /// Finds the first discardable run, cut to `most` segments.
    fn discardable(&self, which: DiscardSelection, from: u32, most: u32) -> Option<(u32, u32)> {
        let is_it = |segment: &SegmentState| segment.is_discardable(which);
        let behind = self.segments.get(index(from)..)?;
        let first = behind.iter().position(is_it)?;
        let run = behind[first..].iter().take(index(most)).take_while(|it| is_it(it)).count();
        Some((from + narrow(wide(first)), narrow(wide(run))))
    }

    fn hold(&mut self, segment: u32, is_held: bool) {
        let Some(entry) = self.segments.get_mut(index(segment)) else { return };
        let was_free = entry.is_free();
        entry.is_held = is_held;
        match (was_free, entry.is_free()) {
            (true, false) => self.free_count -= 1,
            (false, true) => self.free_count += 1,
            (true, true) | (false, false) => {}
        }
    }

    fn note_free_long(&mut self) {
        for segment in self.segments.iter_mut().filter(|segment| segment.is_free()) {
            if segment.below == FreeSegmentContents::Kept {
                segment.below = FreeSegmentContents::KeptLong;
            }
        }
    }
}

impl Allocator {
    /// Marks all free segments as free for long.
    pub(crate) fn note_free_long(&self) {
        let numbers: Vec<u32> = self.state.lock().groups.keys().copied().collect();
        for number in numbers {
            // The lock is released between groups.
            if let Some(group) = self.state.lock().groups.get_mut(&number) {
                group.note_free_long();
            }
        }
    }

    pub(crate) fn loaded_from(&self, number: u32) -> Option<u32> {
        self.state.lock().groups.range(number..).next().map(|(number, _)| *number)
    }

    /// Holds a discardable run in `from`'s group, and leaves [`FREE_KEPT`] free segments (DH2).
    /// `None` if there is no such run, or the group is unused or being removed.
    ///
    /// # Errors
    ///
    /// Damage of a group's maps.
    pub(crate) fn hold_free(
        &self,
        which: DiscardSelection,
        from: SegmentId,
        most: u32,
    ) -> FsResult<Option<HeldSegments<'_>>> {
        let mut state = self.state.lock();
        let is_there = state.groups.contains_key(&from.group) || self.is_initialised(from.group)?;
        if !is_there || !self.can_give(&mut state, from.group)? {
            return Ok(None);
        }
        let shares = state.shares.iter();
        let at = shares.into_iter().position(|share| share.numbers.contains(&from.group));
        let Some(at) = at.filter(|at| state.shares[*at].gives_room()) else { return Ok(None) };
        let free =
            self.group_space().count_free_in(&mut state, at, FREE_KEPT.saturating_add(most))?;
        let most = most.min(free.saturating_sub(FREE_KEPT));
        let Some(group) = state.groups.get_mut(&from.group) else { return Ok(None) };
        let Some((first, count)) = group.discardable(which, from.segment, most) else {
            return Ok(None);
        };
        if count == 0 {
            return Ok(None);
        }
        (first..first + count).for_each(|segment| group.hold(segment, true));
        state.discarding += 1;
        let first = SegmentId { group: from.group, segment: first };
        Ok(Some(HeldSegments { alloc: self, first, count, is_over: false }))
    }

    /// Waits for a discard to end. Returns false if none is in flight (DH2).
    pub(super) fn await_discard(&self, state: &mut MutexGuard<'_, AllocatorState>) -> bool {
        if state.discarding == 0 {
            return false;
        }
        let ended = state.discards_ended;
        while state.discards_ended == ended {
            self.discard_ended.wait(state);
        }
        true
    }
}

impl HeldSegments<'_> {
    /// Releases the segments, except after an expired discard (DH1).
    pub(crate) fn end(mut self, answer: &Result<(), DeviceError>) {
        let is_expired = matches!(answer, Err(DeviceError::Expired { .. }));
        let stays = is_expired && !planted!(ExpiredDiscardReleased);
        self.is_over = true;
        self.give_back(stays, Some(FreeSegmentContents::Nothing));
    }

    fn give_back(&self, stays: bool, below: Option<FreeSegmentContents>) {
        let mut state = self.alloc.state.lock();
        state.discarding -= 1;
        state.discards_ended += 1;
        if let Some(group) = state.groups.get_mut(&self.first.group) {
            for segment in self.first.segment..self.first.segment + self.count {
                let Some(entry) = group.segments.get_mut(index(segment)) else { continue };
                entry.below = below.unwrap_or(entry.below);
                if !stays {
                    group.hold(segment, false);
                }
            }
        }
        if stays {
            let fragments =
                u64::from(self.count) * u64::from(self.alloc.geometry().segment_fragments);
            state.promised += fragments;
            self.alloc.withheld.0.fetch_add(fragments, Ordering::Relaxed);
        }
        drop(state);
        self.alloc.discard_ended.notify_all();
    }
}

impl Drop for HeldSegments<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.give_back(false, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use super::{DiscardSelection, HeldSegments, SegmentId};
    use crate::api::{Caller, FileKind, FileSystem, FsError, Ino, NewInode, SetAttr};
    use crate::convert::{index, wide};
    use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 24 << 20;
    const PIECE: usize = 100_000;

    fn new_pool() -> (Pool, Ino) {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let mut create = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
        create.geometry.segment_bytes = Some(256 << 10);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let pool = Pool::open(device, Arc::new(ManualClock::new()), PoolOpenOptions::default());
        let pool = pool.expect("just made");
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = pool.create(&Caller::root(), pool.root(), b"f", new, None);
        let ino = made.expect("there is room").ino;
        (pool, ino)
    }

    fn fill(pool: &Pool, ino: Ino, written: &AtomicU64) {
        let caller = Caller::root();
        loop {
            let at = written.load(Ordering::SeqCst);
            match pool.write(&caller, ino, at, &[7; PIECE]) {
                Ok(()) => _ = written.fetch_add(wide(PIECE), Ordering::SeqCst),
                Err(FsError::NoSpace) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn hold(pool: &Pool) -> HeldSegments<'_> {
        let alloc = &pool.core().store.alloc;
        let held = alloc.hold_free(DiscardSelection::Free, SegmentId::FIRST, u32::MAX);
        held.expect("the maps are whole").expect("most is free")
    }

    fn is_empty(held: &HeldSegments<'_>) -> bool {
        let state = held.alloc.state.lock();
        let segments = &state.groups[&held.first.group].segments;
        let (first, count) = (index(held.first.segment), index(held.count));
        let is_empty = |it: &super::SegmentState| !it.is_open && it.held == 0 && it.pending == 0;
        segments[first..first + count].iter().all(is_empty)
    }

    /// Goal: open and pending segments are not held, and held ones are not written (DH1).
    #[test]
    fn what_is_held_is_free_and_stays_so() {
        let (pool, ino) = new_pool();
        let caller = Caller::root();
        let new = NewInode::new(FileKind::Regular, 0o644);
        let made = pool.create(&caller, pool.root(), b"g", new, None);
        let other = made.expect("there is room").ino;
        pool.write(&caller, other, 0, &vec![7; 1 << 20]).expect("there is room");
        pool.fsync(&caller, other, false).expect("nothing fails");
        pool.core().segments.tidy();
        let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
        pool.setattr(&caller, other, &cut, None).expect("nothing fails");
        assert!(pool.status().space.pending > 0, "it waits for a checkpoint");
        pool.write(&caller, ino, 0, &vec![7; 1 << 20]).expect("there is room");
        let held = hold(&pool);
        assert!(is_empty(&held), "in use");
        pool.write(&caller, ino, 1 << 20, &vec![7; 1 << 20]).expect("some are kept");
        pool.fsync(&caller, ino, false).expect("nothing fails");
        assert!(is_empty(&held), "given out");
        held.end(&Ok(()));
    }

    /// Goal: a writer that finds only held segments waits, and fills the pool as without discards
    /// (DH2).
    #[test]
    fn a_full_pool_waits_for_the_discard_and_refuses_nobody() {
        let (without, ino) = new_pool();
        let expected = AtomicU64::new(0);
        fill(&without, ino, &expected);
        let (pool, ino) = new_pool();
        let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let held = hold(&pool);
        let count = held.count;
        thread::scope(|scope| {
            scope.spawn(|| {
                fill(&pool, ino, &written);
                is_over.store(true, Ordering::SeqCst);
            });
            // The writer reaches the held segments and blocks there.
            let mut before = u64::MAX;
            while written.load(Ordering::SeqCst) != before {
                before = written.load(Ordering::SeqCst);
                thread::park_timeout(Duration::from_millis(200));
            }
            assert!(!is_over.load(Ordering::SeqCst), "refused after {before} bytes");
            held.end(&Ok(()));
        });
        let (written, expected) = (written.into_inner(), expected.into_inner());
        assert!(count > 10 && written + 2 * wide(PIECE) >= expected, "{written} of {expected}");
    }
}
