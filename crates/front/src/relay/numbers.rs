//! Translation between the inode numbers that a front sees and those of the current pool.
//!
//! An inode's number within its fileset is equal in every pool, but the fileset's slot differs.
//! Fronts see a constant slot that no pool assigns, so an NFS handle stays valid after a move and a
//! restart. Snapshots have slots of their own, valid after a move only if shown since then (RY3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::api::{FsError, FsResult, Ino};
use parking_lot::Mutex;

/// Slot shown when none is left: it leads to no file. From here down the highest bit of an inode
/// number is clear, as some programs mishandle it.
const NOWHERE: u32 = (1 << 23) - 1;
/// The slot in which fronts see the fileset.
pub(super) const OWN: u32 = NOWHERE - 1;
/// The first slot shown for a snapshot after a move. Slots are assigned downwards.
pub(super) const FIRST_UNSHOWN: u32 = OWN - 1;
/// Lowest slot assigned here. A pool has far fewer filesets, so its own slots are all lower.
const LAST_UNSHOWN: u32 = 1 << 22;
const SNAPSHOTS_MAX: usize = 4096;

pub(super) struct RelayNumbers {
    slot: u32,
    /// Slots of snapshots, or `None` before the first move, when fronts see the pool's own slots.
    snapshots: Option<Mutex<SnapshotSlots>>,
    unshown: Arc<AtomicU32>,
}

#[derive(Default)]
struct SnapshotSlots {
    shown: BTreeMap<u32, u32>,
    below: BTreeMap<u32, u32>,
}

impl RelayNumbers {
    /// Returns the translation for the first location, slot `slot`. `unshown` is the next slot that
    /// no front has seen.
    pub(super) fn first(slot: u32, unshown: &Arc<AtomicU32>) -> RelayNumbers {
        RelayNumbers { slot, snapshots: None, unshown: Arc::clone(unshown) }
    }

    pub(super) fn moved(slot: u32, unshown: &Arc<AtomicU32>) -> RelayNumbers {
        RelayNumbers { snapshots: Some(Mutex::default()), ..RelayNumbers::first(slot, unshown) }
    }

    pub(super) fn below(&self, ino: Ino) -> FsResult<Ino> {
        if ino.slot() == OWN {
            return Ok(ino.in_slot(self.slot));
        }
        match &self.snapshots {
            None if ino.slot() < LAST_UNSHOWN && ino.slot() != self.slot => Ok(ino),
            None => Err(FsError::Stale),
            Some(snapshots) => {
                let below = snapshots.lock().below.get(&ino.slot()).copied();
                below.map(|below| ino.in_slot(below)).ok_or(FsError::Stale)
            }
        }
    }

    pub(super) fn shown(&self, ino: Ino) -> Ino {
        if ino.slot() == self.slot {
            return ino.in_slot(OWN);
        }
        match &self.snapshots {
            None => ino,
            Some(snapshots) => ino.in_slot(snapshots.lock().show(ino.slot(), &self.unshown)),
        }
    }
}

impl SnapshotSlots {
    fn show(&mut self, below: u32, unshown: &AtomicU32) -> u32 {
        if let Some(shown) = self.shown.get(&below) {
            return *shown;
        }
        let next = |next: u32| (next >= LAST_UNSHOWN).then(|| next - 1);
        let is_full = self.shown.len() >= SNAPSHOTS_MAX;
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
    fn a_moved_fileset_keeps_its_numbers_and_its_snapshots_get_others() {
        let (own, snapshot) = (Ino(77).in_slot(OWN), Ino(77).in_slot(8));
        let first = RelayNumbers::first(5, &unshown());
        assert_eq!(first.below(own), Ok(Ino(77).in_slot(5)));
        assert_eq!(first.shown(Ino(77).in_slot(5)), own);
        assert_eq!((first.below(snapshot), first.shown(snapshot)), (Ok(snapshot), snapshot));
        assert_eq!(first.below(Ino(77).in_slot(5)), Err(FsError::Stale), "it was never shown");
        let moved = RelayNumbers::moved(9, &unshown());
        assert_eq!(moved.below(own), Ok(Ino(77).in_slot(9)));
        assert_eq!(moved.shown(Ino(77).in_slot(9)), own);
        // RY3: neither slot 5 nor slot 8 was shown since the move.
        assert_eq!(moved.below(snapshot), Err(FsError::Stale));
        let shown = moved.shown(Ino(77).in_slot(5));
        assert_ne!(shown.slot(), 5);
        assert_eq!(moved.below(shown), Ok(Ino(77).in_slot(5)));
        assert_eq!(moved.shown(Ino(78).in_slot(5)), Ino(78).in_slot(shown.slot()));
        assert_eq!(first.below(shown), Err(FsError::Stale));
    }

    #[test]
    fn what_can_not_be_shown_leads_nowhere() {
        let numbers = RelayNumbers::moved(2, &unshown());
        for slot in (10..).take(SNAPSHOTS_MAX) {
            assert_ne!(numbers.shown(Ino(16).in_slot(slot)).slot(), NOWHERE);
        }
        let unseen = numbers.shown(Ino(16).in_slot(9));
        assert_eq!((unseen.slot(), numbers.below(unseen)), (NOWHERE, Err(FsError::Stale)));
        let numbers = RelayNumbers::moved(2, &Arc::new(AtomicU32::new(LAST_UNSHOWN)));
        assert_eq!(numbers.shown(Ino(16).in_slot(3)).slot(), LAST_UNSHOWN);
        assert_eq!(numbers.shown(Ino(16).in_slot(4)).slot(), NOWHERE);
    }
}
