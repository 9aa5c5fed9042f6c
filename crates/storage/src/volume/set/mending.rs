//! Whether damage found on a member is repaired (RH4).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{MemberSet, Roster};

/// Counts repairs instead of logging each, until dropped.
#[derive(Debug)]
pub struct RepairCounting(Arc<Roster>);

impl Drop for RepairCounting {
    fn drop(&mut self) {
        self.0.counted_by.fetch_sub(1, Ordering::SeqCst);
    }
}

impl MemberSet {
    pub(in crate::volume) fn mend_no_more(&self) {
        self.roster.sets().iter().for_each(|set| set.ranges.hold_no_more());
    }

    pub(in crate::volume) fn mends(&self) -> bool {
        self.ranges.holds_any()
    }

    pub(in crate::volume) fn count_mends(&self) -> RepairCounting {
        self.roster.counted_by.fetch_add(1, Ordering::SeqCst);
        RepairCounting(Arc::clone(&self.roster))
    }

    pub(in crate::volume) fn tells_mends(&self) -> bool {
        self.roster.counted_by.load(Ordering::SeqCst) == 0
    }

    /// Whether to report damage at `offset` of the member in `slot`: unrepaired damage only once.
    pub(in crate::volume) fn is_news(&self, slot: usize, offset: u64) -> bool {
        self.ranges.is_news(slot, offset)
    }
}
