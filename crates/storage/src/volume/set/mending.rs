//! Whether what is found bad on a member is written again (RH4).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use runtime::planted::{self, Planted};

use super::{MemberSet, Roster};

/// While this exists, repairs are counted and not logged one by one: a walk over the pool logs its
/// findings together.
#[derive(Debug)]
pub struct MendsCounted(Arc<Roster>);

impl Drop for MendsCounted {
    fn drop(&mut self) {
        self.0.counted_by.fetch_sub(1, Ordering::SeqCst);
    }
}

impl MemberSet {
    /// From now on it is not, in no disk group.
    pub(in crate::volume) fn mend_no_more(&self) {
        self.roster.sets().iter().for_each(|set| set.ranges.hold_no_more());
    }

    pub(in crate::volume) fn mends(&self) -> bool {
        self.ranges.holds_any()
    }

    pub(in crate::volume) fn count_mends(&self) -> MendsCounted {
        self.roster.counted_by.fetch_add(1, Ordering::SeqCst);
        MendsCounted(Arc::clone(&self.roster))
    }

    /// Whether each repair is told by itself.
    pub(in crate::volume) fn tells_mends(&self) -> bool {
        self.roster.counted_by.load(Ordering::SeqCst) == 0 || planted::is(Planted::EachMendTold)
    }

    /// Whether what is bad at `offset` of the member in `slot` is to be told: once, if it is not
    /// mended.
    pub(in crate::volume) fn is_news(&self, slot: usize, offset: u64) -> bool {
        self.ranges.is_news(slot, offset)
    }
}
