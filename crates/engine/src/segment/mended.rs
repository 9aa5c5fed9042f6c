//! Blocks that were bad on a member and repaired by a read, until a job finds their paths
//! (`jobs/mended.rs`). The reader cannot: it holds the lock of a file, and a path lookup needs
//! those of directories.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use format::ids::Place;

use crate::error::FilePart;
use crate::sync::{Mutex, MutexGuard};

/// Blocks kept. Further ones are only counted.
const WAITING_MAX: usize = 64;
/// Files kept for `status`, the last ones.
const NAMED_MAX: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct RepairedBlocks {
    /// Whether any block was kept: a healthy pool never takes the lock.
    is_used: AtomicBool,
    state: Mutex<RepairedBlocksState>,
}

#[derive(Debug, Default)]
struct RepairedBlocksState {
    waiting: VecDeque<Place>,
    unnamed: u64,
    named: VecDeque<FilePart>,
}

impl RepairedBlocks {
    pub(crate) fn note(&self, place: Place) {
        let mut state = self.state.lock();
        self.is_used.store(true, Ordering::Release);
        if state.waiting.contains(&place) {
            return;
        }
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(place);
        } else {
            state.unnamed += 1;
        }
    }

    /// Returns and resets the count of blocks that were not kept.
    pub(crate) fn take_unnamed(&self) -> u64 {
        self.used().map_or(0, |mut state| std::mem::take(&mut state.unnamed))
    }

    pub(crate) fn next(&self) -> Option<Place> {
        self.used()?.waiting.pop_front()
    }

    pub(crate) fn name(&self, file: FilePart) {
        let named = &mut self.state.lock().named;
        named.retain(|other| *other != file);
        named.push_back(file);
        if named.len() > NAMED_MAX {
            named.pop_front();
        }
    }

    /// Returns the files, the newest first.
    pub(crate) fn named(&self) -> Vec<FilePart> {
        self.used().map_or_else(Vec::new, |state| state.named.iter().rev().cloned().collect())
    }

    fn used(&self) -> Option<MutexGuard<'_, RepairedBlocksState>> {
        self.is_used.load(Ordering::Acquire).then(|| self.state.lock())
    }
}

#[cfg(test)]
mod tests {
    use format::ids::PoolId;

    use super::*;

    /// Goal: the queue is bounded, blocks are kept once, and the last files are shown.
    #[test]
    fn the_last_are_kept() {
        let mended = RepairedBlocks::default();
        for round in 0..2 {
            for number in 0..1000 {
                mended.note(Place::from_bits(number));
            }
            let taken: Vec<u64> =
                std::iter::from_fn(|| mended.next()).map(|place| place.bits()).collect();
            assert_eq!(taken, (0..64).collect::<Vec<u64>>(), "round {round}");
            assert_eq!((mended.take_unnamed(), mended.take_unnamed()), (936, 0));
        }
        let file = |number: u64| FilePart {
            pool: PoolId::default(),
            fileset: None,
            path: format!("/f{number}"),
            bytes: None,
        };
        (0..100).chain([90]).for_each(|number| mended.name(file(number)));
        let named = mended.named();
        assert_eq!((named.len(), &named[0], &named[1]), (16, &file(90), &file(99)));
    }
}
