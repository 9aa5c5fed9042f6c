//! What all mounts of a pool were asked, by operation: those too that have ended.

use std::sync::Arc;

use front::counts::OperationCounts;
use front::fuse::FuseCounts;

/// What mounts were asked.
#[derive(Default)]
pub(super) struct Counted {
    mounted: Vec<Arc<FuseCounts>>,
    /// By those that have ended.
    ended: Vec<OperationCounts>,
}

impl Counted {
    /// From now on those of a mount are among them.
    pub(super) fn add(&mut self, counts: &Arc<FuseCounts>) {
        self.fold_ended();
        self.mounted.push(Arc::clone(counts));
    }

    /// Keeps the sums alone of mounts that have ended.
    fn fold_ended(&mut self) {
        // Of one that has ended nobody else has the counts.
        let is_on = |counts: &Arc<FuseCounts>| Arc::strong_count(counts) > 1;
        let (on, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.mounted).into_iter().partition(is_on);
        for counts in ended {
            self.ended = sum(std::mem::take(&mut self.ended), counts.get());
        }
        self.mounted = on;
    }

    /// Returns the sums, by operation.
    pub(super) fn get(&mut self) -> Vec<OperationCounts> {
        self.fold_ended();
        let none = FuseCounts::default().get();
        let begun = sum(none, self.ended.clone());
        self.mounted.iter().map(|counts| counts.get()).fold(begun, sum)
    }
}

/// Returns the sums of counts of the same operations.
pub(crate) fn sum(
    mut some: Vec<OperationCounts>,
    others: Vec<OperationCounts>,
) -> Vec<OperationCounts> {
    if some.is_empty() {
        return others;
    }
    for (own, other) in some.iter_mut().zip(&others) {
        own.add(other);
    }
    some
}
