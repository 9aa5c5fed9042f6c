//! Numbers of inodes as a front sees them, and as the pool has them that the fileset is in.
//!
//! The number of an inode in its fileset is the same in every pool; the slot of the fileset is
//! another. What a front sees beside the fileset itself are its clones, each in a slot of its own:
//! of those only what was shown is known (RY3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::vnode::api::{FsError, FsResult, Ino};
use parking_lot::Mutex;

/// The slot of what can't be shown: it leads nowhere.
const NOWHERE: u32 = (1 << 24) - 1;
/// The first slot that is shown for one that has another number below. They fall from there.
pub(super) const FIRST_UNSHOWN: u32 = NOWHERE - 1;
/// And end here: a pool has far fewer filesets, so none of its slots is as high.
const LAST_UNSHOWN: u32 = 1 << 23;
/// Most clones that a front sees of a fileset that has moved.
pub(super) const CLONES_MAX: usize = 4096;

/// The numbers of a fileset where it is.
pub(super) enum Numbers {
    /// Where fronts found it: they see what the pool has.
    Own,
    /// Elsewhere.
    Moved {
        /// Its slot, as fronts see it and as the pool has it.
        slots: (u32, u32),
        clones: Mutex<Clones>,
        unshown: Arc<AtomicU32>,
    },
}

/// Slots of clones: as fronts see them, and as the pool has them.
#[derive(Default)]
pub(super) struct Clones {
    shown: BTreeMap<u32, u32>,
    below: BTreeMap<u32, u32>,
}

impl Numbers {
    pub(super) fn own() -> Numbers {
        Numbers::Own
    }

    /// Returns the numbers where the slot that fronts see first is the second below. `unshown` is
    /// the next that no front has seen.
    pub(super) fn moved(slots: (u32, u32), unshown: &Arc<AtomicU32>) -> Numbers {
        Numbers::Moved { slots, clones: Mutex::default(), unshown: Arc::clone(unshown) }
    }

    /// Whether fronts see what the pool has.
    pub(super) fn is_own(&self) -> bool {
        matches!(self, Numbers::Own)
    }

    /// Returns what the pool has for a number that a front has seen.
    pub(super) fn below(&self, ino: Ino) -> FsResult<Ino> {
        match self {
            Numbers::Own => Ok(ino),
            Numbers::Moved { slots: (shown, below), .. } if ino.slot() == *shown => {
                Ok(ino.in_slot(*below))
            }
            Numbers::Moved { clones, .. } => {
                let below = clones.lock().below.get(&ino.slot()).copied();
                below.map(|below| ino.in_slot(below)).ok_or(FsError::Stale)
            }
        }
    }

    /// Returns what a front sees of a number of the pool.
    pub(super) fn shown(&self, ino: Ino) -> Ino {
        match self {
            Numbers::Own => ino,
            Numbers::Moved { slots: (shown, below), .. } if ino.slot() == *below => {
                ino.in_slot(*shown)
            }
            Numbers::Moved { clones, unshown, .. } => {
                ino.in_slot(clones.lock().show(ino.slot(), unshown))
            }
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

    fn moved(slots: (u32, u32)) -> Numbers {
        Numbers::moved(slots, &Arc::new(AtomicU32::new(FIRST_UNSHOWN)))
    }

    #[test]
    fn a_moved_fileset_keeps_its_numbers_and_its_clones_get_others() {
        let (own, clone) = (Ino(77).in_slot(5), Ino(77).in_slot(8));
        assert_eq!(Numbers::own().below(clone), Ok(clone));
        let numbers = moved((5, 9));
        assert_eq!(numbers.below(own), Ok(Ino(77).in_slot(9)));
        assert_eq!(numbers.shown(Ino(77).in_slot(9)), own);
        // RY3: what is in slots 5 and 8 of the pool is of others.
        assert_eq!(numbers.below(clone), Err(FsError::Stale));
        let shown = numbers.shown(Ino(77).in_slot(5));
        assert_ne!(shown.slot(), 5);
        assert_eq!(numbers.below(shown), Ok(Ino(77).in_slot(5)));
        assert_eq!(numbers.shown(Ino(78).in_slot(5)), Ino(78).in_slot(shown.slot()));
        let same = moved((5, 5));
        assert_eq!(same.below(own), Ok(own));
        assert_eq!(same.below(clone), Err(FsError::Stale));
    }

    #[test]
    fn what_can_not_be_shown_leads_nowhere() {
        let numbers = moved((1, 2));
        for slot in (10..).take(CLONES_MAX) {
            assert_ne!(numbers.shown(Ino(16).in_slot(slot)).slot(), NOWHERE);
        }
        let unseen = numbers.shown(Ino(16).in_slot(9));
        assert_eq!((unseen.slot(), numbers.below(unseen)), (NOWHERE, Err(FsError::Stale)));
        let last = Arc::new(AtomicU32::new(LAST_UNSHOWN));
        let numbers = Numbers::moved((1, 2), &last);
        assert_eq!(numbers.shown(Ino(16).in_slot(3)).slot(), LAST_UNSHOWN);
        assert_eq!(numbers.shown(Ino(16).in_slot(4)).slot(), NOWHERE);
    }
}
