//! Request counts of all mounts of a pool by operation, including ended mounts.

use std::sync::Arc;

use front::counts::OperationCounts;
use front::fuse::FuseCounts;

#[derive(Default)]
pub(super) struct MountRequestCounts {
    mounted: Vec<Arc<FuseCounts>>,
    ended: Vec<OperationCounts>,
}

impl MountRequestCounts {
    pub(super) fn add(&mut self, counts: &Arc<FuseCounts>) {
        self.fold_ended();
        self.mounted.push(Arc::clone(counts));
    }

    fn fold_ended(&mut self) {
        // Only this list still refers to the counts of an ended mount.
        let is_on = |counts: &Arc<FuseCounts>| Arc::strong_count(counts) > 1;
        let (on, ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.mounted).into_iter().partition(is_on);
        for counts in ended {
            self.ended = sum(std::mem::take(&mut self.ended), counts.get());
        }
        self.mounted = on;
    }

    pub(super) fn get(&mut self) -> Vec<OperationCounts> {
        self.fold_ended();
        let none = FuseCounts::default().get();
        let begun = sum(none, self.ended.clone());
        self.mounted.iter().map(|counts| counts.get()).fold(begun, sum)
    }
}

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
