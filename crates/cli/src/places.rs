//! How many things a server does at a time, each in a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many places, of which some are taken.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// A place that is taken, until this is dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Places {
    /// Returns `most` places.
    pub(crate) fn new(most: usize) -> Places {
        Places { taken: Arc::default(), most }
    }

    /// Takes one. `None`: all are taken.
    pub(crate) fn take(&self) -> Option<Place> {
        let more = |count: usize| (count < self.most).then_some(count + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(Arc::clone(&self.taken)))
    }
}

#[test]
fn places_are_taken_up_to_their_number_and_given_back() {
    let places = Places::new(2);
    let first = places.take();
    let second = places.take();
    assert!(first.is_some() && second.is_some() && places.clone().take().is_none());
    drop(first);
    assert!(places.take().is_some());
}
