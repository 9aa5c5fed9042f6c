//! Pins: a segment in use whose kind must stay as it is while somebody works on what lies there.
//!
//! Not here: who keeps writers from it meanwhile (`storage::volume`).

use format::group::SegmentKind;
use format::ids::{Epoch, Place};
use runtime::planted::{self, Planted};
use storage::device::Redundancy;

use super::{Allocator, Extent, SegmentId};
use crate::convert::index;
use crate::error::FsResult;

/// G6: until it is dropped the segment is neither opened nor made one of another kind.
#[derive(Debug)]
pub(crate) struct Pin<'a> {
    alloc: &'a Allocator,
    pub(crate) id: SegmentId,
    /// How what lies there is kept.
    pub(crate) kept: Redundancy,
    /// Epoch in which it was opened.
    pub(crate) incarnation: Epoch,
}

impl Allocator {
    /// Pins a segment; `None`: it is free, and nothing in it is of use to anybody.
    ///
    /// # Errors
    ///
    /// What is wrong with the maps of its group.
    pub(crate) fn pin(&self, id: SegmentId) -> FsResult<Option<Pin<'_>>> {
        let mut state = self.state.lock();
        if !state.groups.contains_key(&id.group) && !self.is_initialised(id.group)? {
            return Ok(None);
        }
        self.ensure_group(&mut state, id.group)?;
        let group = state.groups.get_mut(&id.group);
        let segment = group.and_then(|group| group.segments.get_mut(index(id.segment)));
        let Some(segment) = segment.filter(|segment| !segment.is_free()) else { return Ok(None) };
        if segment.is_open && planted::is(Planted::RebuildSkipsOpen) {
            return Ok(None);
        }
        let kept = match segment.kind {
            SegmentKind::Data | SegmentKind::Free => Redundancy::Parity,
            SegmentKind::Metadata | SegmentKind::Journal => Redundancy::Copies,
        };
        segment.pins += 1;
        Ok(Some(Pin { alloc: self, id, kept, incarnation: segment.incarnation }))
    }

    /// Whether the page at `place`, in a metadata segment of a loaded group, is in use and nobody
    /// could make it anew: of the front of a group descriptor, maps and usage.
    pub(crate) fn is_page_used(&self, place: Place) -> bool {
        let geometry = self.geometry();
        if place.fragment() < geometry.front_fragments() {
            return self.pages_to_load(place.group()).contains(&place);
        }
        let state = self.state.lock();
        let extent = Extent { place, fragments: geometry.page_fragments() };
        state.groups.get(&place.group()).is_some_and(|group| group.has_given(extent, geometry))
    }
}

impl Drop for Pin<'_> {
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

    use crate::vnode::api::{Caller, FileKind, FileSystem, NewInode};
    use crate::{CreateOptions, OpenOptions, Pool};

    const POOL_BYTES: u64 = 24 << 20;

    /// G6: a segment that empties while it is pinned is given to nobody, and is free when the pin
    /// goes.
    #[test]
    fn a_segment_that_empties_while_it_is_pinned_is_free_only_afterwards() {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        let create = CreateOptions::new(POOL_BYTES, [5; 64]);
        Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
        let pool = Pool::open(device, Arc::new(ManualClock::new()), OpenOptions::default());
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
