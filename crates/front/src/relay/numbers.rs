//! Numbers of inodes as a front sees them, and as the pool has them that the fileset is in.
//!
//! The number of an inode in its fileset is the same in every pool; the slot of the fileset is
//! another. So fronts see a slot that no pool gives out, always the same: what a client of NFS has
//! kept means the same after a move, and after a restart behind it. What a front sees beside the
//! fileset itself are its clones, each in a slot of its own. Once it has moved, only what was shown
//! of those is known (RY3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::vnode::api::{FsError, FsResult, Ino};
use parking_lot::Mutex;

/// The slot of what can't be shown: it leads nowhere. With this and all below the highest bit of a
/// number is not set, which not every program would take for a part of a number.
const NOWHERE: u32 = (1 << 23) - 1;
/// The slot in which fronts see the fileset.
pub(super) const OWN: u32 = NOWHERE - 1;
/// The first slot that is shown for one that has another number below. They fall from there.
pub(super) const FIRST_UNSHOWN: u32 = OWN - 1;
/// And end here: a pool has far fewer filesets, so none of its slots is as high.
const LAST_UNSHOWN: u32 = 1 << 22;
/// Most clones that a front sees of a fileset that has moved.
const CLONES_MAX: usize = 4096;

/// The numbers of a fileset where it is.
pub(super) struct Numbers {
    /// Its slot there.
    slot: u32,
    /// Slots of its clones; `None`: fronts see what the pool has.
    clones: Option<Mutex<Clones>>,
    unshown: Arc<AtomicU32>,
}

/// Slots of clones: as fronts see them, and as the pool has them.
#[derive(Default)]
struct Clones {
    shown: BTreeMap<u32, u32>,
    below: BTreeMap<u32, u32>,
}

impl Numbers {
    /// Returns the numbers where fronts found the fileset, in `slot`. `unshown` is the next slot
    /// that no front has seen.
    pub(super) fn first(slot: u32, unshown: &Arc<AtomicU32>) -> Numbers {
        Numbers { slot, clones: None, unshown: Arc::clone(unshown) }
    }

    /// Returns the numbers where it has moved to.
    pub(super) fn moved(slot: u32, unshown: &Arc<AtomicU32>) -> Numbers {
        Numbers { clones: Some(Mutex::default()), ..Numbers::first(slot, unshown) }
    }

    /// Returns what the pool has for a number that a front has seen.
    pub(super) fn below(&self, ino: Ino) -> FsResult<Ino> {
        if ino.slot() == OWN {
            return Ok(ino.in_slot(self.slot));
        }
        match &self.clones {
            None if ino.slot() < LAST_UNSHOWN && ino.slot() != self.slot => Ok(ino),
            None => Err(FsError::Stale),
            Some(clones) => {
                let below = clones.lock().below.get(&ino.slot()).copied();
                below.map(|below| ino.in_slot(below)).ok_or(FsError::Stale)
            }
        }
    }

    /// Returns what a front sees of a number of the pool.
    pub(super) fn shown(&self, ino: Ino) -> Ino {
        if ino.slot() == self.slot {
            return ino.in_slot(OWN);
        }
        match &self.clones {
            None => ino,
            Some(clones) => ino.in_slot(clones.lock().show(ino.slot(), &self.unshown)),
        }
    }
}

impl Clones {
    fn show(&mut self, below: u32, unshown: &AtomicU32) -> u32 {
        if let Some(shown) = self.shown.get(&below) {
            return *shown;
        }
        let next = |next: u32| (next >= LAST_UNSHOWN).then(|| next - 1);
        let is_full = self.shown.len() >= CLONES_MAX;
        let taken =
            (!is_full).then(|| unshown.fetch_update(Ordering::AcqRel, Ordering::Acquire, next));
        let Some(Ok(shown)) = taken else { return NOWHERE };
        self.shown.insert(below, shown);
        self.below.insert(shown, below);
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unshown() -> Arc<AtomicU32> {
        Arc::new(AtomicU32::new(FIRST_UNSHOWN))
    }

    #[test]
    fn a_moved_fileset_keeps_its_numbers_and_its_clones_get_others() {
        let (own, clone) = (Ino(77).in_slot(OWN), Ino(77).in_slot(8));
        let first = Numbers::first(5, &unshown());
        assert_eq!(first.below(own), Ok(Ino(77).in_slot(5)));
        assert_eq!(first.shown(Ino(77).in_slot(5)), own);
        assert_eq!((first.below(clone), first.shown(clone)), (Ok(clone), clone));
        assert_eq!(first.below(Ino(77).in_slot(5)), Err(FsError::Stale), "it was never shown");
        let moved = Numbers::moved(9, &unshown());
        assert_eq!(moved.below(own), Ok(Ino(77).in_slot(9)));
        assert_eq!(moved.shown(Ino(77).in_slot(9)), own);
        // RY3: what is in slots 5 and 8 of the pool is of others.
        assert_eq!(moved.below(clone), Err(FsError::Stale));
        let shown = moved.shown(Ino(77).in_slot(5));
        assert_ne!(shown.slot(), 5);
        assert_eq!(moved.below(shown), Ok(Ino(77).in_slot(5)));
        assert_eq!(moved.shown(Ino(78).in_slot(5)), Ino(78).in_slot(shown.slot()));
        assert_eq!(first.below(shown), Err(FsError::Stale));
    }

    #[test]
    fn what_can_not_be_shown_leads_nowhere() {
        let numbers = Numbers::moved(2, &unshown());
        for slot in (10..).take(CLONES_MAX) {
            assert_ne!(numbers.shown(Ino(16).in_slot(slot)).slot(), NOWHERE);
        }
        let unseen = numbers.shown(Ino(16).in_slot(9));
        assert_eq!((unseen.slot(), numbers.below(unseen)), (NOWHERE, Err(FsError::Stale)));
        let numbers = Numbers::moved(2, &Arc::new(AtomicU32::new(LAST_UNSHOWN)));
        assert_eq!(numbers.shown(Ino(16).in_slot(3)).slot(), LAST_UNSHOWN);
        assert_eq!(numbers.shown(Ino(16).in_slot(4)).slot(), NOWHERE);
    }
}
