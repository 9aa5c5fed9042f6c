//! Whether what is found bad on a member is written again (RH4).

use super::MemberSet;

impl MemberSet {
    /// From now on it is not, in no disk group.
    pub(in crate::volume) fn mend_no_more(&self) {
        self.roster.sets().iter().for_each(|set| set.ranges.hold_no_more());
    }

    pub(in crate::volume) fn mends(&self) -> bool {
        self.ranges.holds_any()
    }

    /// Whether what is bad at `offset` of the member in `slot` is to be told: once, if it is not
    /// mended.
    pub(in crate::volume) fn is_news(&self, slot: usize, offset: u64) -> bool {
        self.ranges.is_news(slot, offset)
    }
}
