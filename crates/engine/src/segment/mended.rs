//! Blocks that a read found bad on a member, and that were written again: they wait to be named by
//! the files that have them.
//!
//! Not at once: who reads has the lock of a file, and a path takes those of directories. A job's
//! turn names them (`jobs/mended.rs`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use format::ids::Place;

use crate::error::FilePart;
use crate::sync::{Mutex, MutexGuard};

/// Blocks that wait; more are counted alone.
const WAITING_MAX: usize = 64;
/// Files that `status` shows: the last.
const NAMED_MAX: usize = 16;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Mended {
    /// Whether anything was ever kept: of a pool that is well nobody takes the lock.
    is_used: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Place>,
    unnamed: u64,
    named: VecDeque<FilePart>,
}

impl Mended {
    /// Keeps the block at `place` until it is named.
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

    /// Takes the number of blocks that had no room to wait.
    pub(crate) fn take_unnamed(&self) -> u64 {
        self.used().map_or(0, |mut state| std::mem::take(&mut state.unnamed))
    }

    /// Takes the block that waits longest.
    pub(crate) fn next(&self) -> Option<Place> {
        self.used()?.waiting.pop_front()
    }

    /// Keeps a file for `status`.
    pub(crate) fn name(&self, file: FilePart) {
        let named = &mut self.state.lock().named;
        named.retain(|other| *other != file);
        named.push_back(file);
        if named.len() > NAMED_MAX {
            named.pop_front();
        }
    }

    /// Returns the last files of which blocks were mended, the last first.
    pub(crate) fn named(&self) -> Vec<FilePart> {
        self.used().map_or_else(Vec::new, |state| state.named.iter().rev().cloned().collect())
    }

    fn used(&self) -> Option<MutexGuard<'_, State>> {
        self.is_used.load(Ordering::Acquire).then(|| self.state.lock())
    }
}

#[cfg(test)]
mod tests {
    use format::ids::PoolId;

    use super::*;

    /// Goal: what is kept is bounded, each block waits once, and the last files are shown.
    #[test]
    fn the_last_are_kept() {
        let mended = Mended::default();
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
