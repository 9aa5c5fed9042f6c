//! Limit on the number of threads that do one kind of work for a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
pub(crate) struct ConcurrencyLimit {
    taken: Arc<AtomicUsize>,
    most: usize,
}

#[derive(Debug)]
pub(crate) struct ConcurrencyPermit(Arc<AtomicUsize>);

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ConcurrencyLimit {
    pub(crate) fn new(most: usize) -> ConcurrencyLimit {
        ConcurrencyLimit { taken: Arc::default(), most }
    }

    pub(crate) fn take(&self) -> Option<ConcurrencyPermit> {
        let more = |count: usize| (count < self.most).then_some(count + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(ConcurrencyPermit(Arc::clone(&self.taken)))
    }
}

#[test]
fn places_are_taken_up_to_their_number_and_given_back() {
    let places = ConcurrencyLimit::new(2);
    let first = places.take();
    let second = places.take();
    assert!(first.is_some() && second.is_some() && places.clone().take().is_none());
    drop(first);
    assert!(places.take().is_some());
}
