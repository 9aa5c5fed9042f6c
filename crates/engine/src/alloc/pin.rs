//! Pins: keep the kind of a segment in use while a job works on its contents.
//!
//! Not here: the exclusion of writers (`storage::volume`).

use format::bitmap::{self, BITS_PER_PAGE};
use format::group::SegmentKind;
use format::ids::{Epoch, Place};
use runtime::planted;
use storage::device::Redundancy;

use super::{Allocator, Extent, SegmentId};
use crate::buffer::page_of;
use crate::convert::index;
use crate::error::FsResult;

/// Keeps a segment from being opened or changing its kind, until dropped (G6).
#[derive(Debug)]
pub(crate) struct SegmentPin<'a> {
    alloc: &'a Allocator,
    pub(crate) id: SegmentId,
    pub(crate) kept: Redundancy,
    pub(crate) incarnation: Epoch,
    /// Fragments written since `incarnation`. Later ones are from an earlier use of the segment.
    pub(crate) filled: u32,
}

impl Allocator {
    /// Pins a segment. `None` if it is free.
    ///
    /// # Errors
    ///
    /// Damage of its group's maps.
    pub(crate) fn pin(&self, id: SegmentId) -> FsResult<Option<SegmentPin<'_>>> {
        let mut state = self.state.lock();
        if !state.groups.contains_key(&id.group) && !self.is_initialised(id.group)? {
            return Ok(None);
        }
        self.ensure_group(&mut state, id.group)?;
        let group = state.groups.get_mut(&id.group);
        let segment = group.and_then(|group| group.segments.get_mut(index(id.segment)));
        let segment = segment.filter(|it| !(it.is_open && planted!(RebuildSkipsOpen)));
        let Some(segment) = segment.filter(|it| !it.is_free() && !it.is_held) else {
            return Ok(None);
        };
        let kept = kept_as(segment.kind);
        segment.pins += 1;
        let (incarnation, filled) = (segment.incarnation, segment.filled);
        Ok(Some(SegmentPin { alloc: self, id, kept, incarnation, filled }))
    }

    /// Pins a free segment in the groups that `is_wanted` selects, after their first `behind`
    /// segments.
    ///
    /// # Errors
    ///
    /// Damage of a group's maps.
    pub(crate) fn pin_free(
        &self,
        is_wanted: impl Fn(u32) -> bool,
        behind: u64,
    ) -> FsResult<Option<SegmentPin<'_>>> {
        let mut state = self.state.lock();
        let mut passed = 0;
        for number in self.geometry().group_layout().groups().filter(|number| is_wanted(*number)) {
            let from = u32::try_from(behind.saturating_sub(passed)).unwrap_or(u32::MAX);
            passed += u64::from(self.geometry().segments_of(number));
            let is_there = state.groups.contains_key(&number) || self.is_initialised(number)?;
            if !is_there || !self.can_give(&mut state, number)? {
                continue;
            }
            let Some(group) = state.groups.get_mut(&number) else { continue };
            let Some(free) = group.free_at_or_after(from) else { continue };
            let Some(segment) = group.segments.get_mut(index(free)) else { continue };
            segment.pins += 1;
            group.free_count -= 1;
            let (id, kept) = (SegmentId { group: number, segment: free }, Redundancy::Parity);
            let (incarnation, filled) = (segment.incarnation, segment.filled);
            return Ok(Some(SegmentPin { alloc: self, id, kept, incarnation, filled }));
        }
        Ok(None)
    }

    /// Returns the redundancy of a segment, `Some(None)` if it is free. `None` if the maps are
    /// unreadable, or the lock is busy, since its holder may wait for the caller.
    pub(crate) fn kind_now(&self, id: SegmentId) -> Option<Option<Redundancy>> {
        let mut state = self.state.try_lock()?;
        if !state.groups.contains_key(&id.group) && !self.is_initialised(id.group).ok()? {
            return Some(None);
        }
        self.ensure_group(&mut state, id.group).ok()?;
        let segment = state.groups.get(&id.group)?.segments.get(index(id.segment))?;
        if segment.is_free() || segment.is_held {
            return Some(None);
        }
        Some(Some(kept_as(segment.kind)))
    }

    /// Returns whether `place` is in the front of its group.
    pub(crate) fn is_in_front(&self, place: Place) -> bool {
        place.fragment() < self.geometry().front_fragments(place.group())
    }

    /// Returns whether a metadata page is in use and not pending. In the front, only pages that
    /// cannot be rebuilt count: descriptor, maps and usage.
    ///
    /// # Errors
    ///
    /// Damage of its group's maps.
    pub(crate) fn is_page_used(&self, place: Place) -> FsResult<bool> {
        if self.is_in_front(place) {
            return Ok(self.pages_to_load(place.group()).contains(&place));
        }
        let geometry = self.geometry();
        let extent = Extent { place, fragments: geometry.page_fragments() };
        let state = self.state.lock();
        let group = state.groups.get(&place.group());
        if !group.is_some_and(|group| group.has_given(extent, geometry)) {
            return Ok(false);
        }
        let map = self.free_map_buffer(place.group(), place.fragment() / BITS_PER_PAGE)?.bytes();
        Ok(bitmap::is_set(page_of(&map), place.fragment() % BITS_PER_PAGE))
    }
}

fn kept_as(kind: SegmentKind) -> Redundancy {
    match kind {
        SegmentKind::Data | SegmentKind::Free => Redundancy::Parity,
        SegmentKind::Metadata | SegmentKind::Journal => Redundancy::Copies,
    }
}

impl Drop for SegmentPin<'_> {
    fn drop(&mut self) {
        let mut state = self.alloc.state.lock();
        let Some(group) = state.groups.get_mut(&self.id.group) else { return };
        let Some(segment) = group.segments.get_mut(index(self.id.segment)) else { return };
        let was_free = segment.is_free();
        segment.pins -= 1;
        if !was_free && segment.is_free() {
            group.free_count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use runtime::clock::ManualClock;
    use storage::device::{MemoryDevice, SharedDevice};

    use crate::api::{Caller, FileKind, FileSystem, NewInode};
    use crate::{Pool, PoolCreateOptions, PoolOpenOptions};

    const POOL_BYTES: u64 = 24 << 20;

    /// Goal: a data segment that becomes a metadata segment gets a new incarnation, also after a
    /// reopen, so that its pages differ from older ones.
    #[test]
    fn a_segment_that_comes_to_hold_pages_begins_another_life() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let create = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let opened = || {
            let device = SharedDevice::clone(&device);
            let pool = Pool::open(device, Arc::new(ManualClock::new()), PoolOpenOptions::default());
            pool.expect("it was closed")
        };
        let pool = opened();
        let (caller, root) = (Caller::root(), pool.root());
        let make = |pool: &Pool, name: &[u8]| {
            let new = NewInode::new(FileKind::Regular, 0o644);
            pool.create(&caller, root, name, new, None).expect("there is room").ino
        };
        let ino = make(&pool, b"f");
        pool.write(&caller, ino, 0, &vec![7; 12 << 20]).expect("there is room");
        pool.fsync(&caller, ino, false).expect("nothing fails");
        pool.unlink(&caller, root, b"f", None).expect("it is there");
        pool.forget(ino, 1);
        for _ in 0..4 {
            pool.tick().expect("nothing fails");
            pool.checkpoint().expect("nothing fails");
        }
        for number in 0..2000 {
            make(&pool, format!("{number}{}", "x".repeat(200)).as_bytes());
        }
        let lives = |pool: &Pool| {
            let alloc = &pool.core().store.alloc;
            let pin = |segment| {
                let id = crate::alloc::SegmentId { group: 0, segment };
                let pin = alloc.pin(id).expect("the maps are whole")?;
                (pin.kept == storage::device::Redundancy::Copies).then_some(pin.incarnation)
            };
            let segments = alloc.geometry().segments_of(0);
            (0..segments).map(pin).collect::<Vec<_>>()
        };
        let before = lives(&pool);
        assert!(before.iter().flatten().count() > 1, "{before:?}");
        pool.close().expect("nothing fails");
        drop(pool);
        assert_eq!(before, lives(&opened()));
    }

    /// Goal: a segment that empties while pinned is not allocated before the unpin (G6).
    #[test]
    fn a_segment_that_empties_while_it_is_pinned_is_free_only_afterwards() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let create = PoolCreateOptions::new(POOL_BYTES, [5; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let pool = Pool::open(device, Arc::new(ManualClock::new()), PoolOpenOptions::default());
        let pool = pool.expect("just made");
        let (caller, root) = (Caller::root(), pool.root());
        let new = NewInode::new(FileKind::Regular, 0o644);
        let ino = pool.create(&caller, root, b"f", new, None).expect("there is room").ino;
        pool.write(&caller, ino, 0, &vec![7; 4 << 20]).expect("there is room");
        pool.fsync(&caller, ino, false).expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
        pool.core().segments.tidy();
        let alloc = &pool.core().store.alloc;
        let chosen = alloc.candidates().first().expect("a full segment").segment;
        let id = chosen.into();
        let pin = alloc.pin(id).expect("the maps are whole").expect("it is in use");
        pool.unlink(&caller, root, b"f", None).expect("it is there");
        pool.forget(ino, 1);
        for _ in 0..4 {
            pool.tick().expect("nothing fails");
            pool.checkpoint().expect("nothing fails");
        }
        let before = alloc.free_segments(u32::MAX).expect("the maps are whole");
        assert!(alloc.candidates().iter().all(|view| view.segment != chosen), "it is empty");
        drop(pin);
        let after = alloc.free_segments(u32::MAX).expect("the maps are whole");
        assert_eq!(after, before + 1, "it is free now, and was not before");
        assert!(alloc.pin(id).expect("the maps are whole").is_none(), "nothing in it is in use");
    }
}
