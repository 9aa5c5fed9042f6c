//! The layout of segments while a reshape adds or removes a member.

use format::reshape::StripeMapping;
use format::stripes::{ExcludedMembers, Stripes};
use runtime::planted;

use super::{MemberSet, NOBODY};

impl MemberSet {
    pub(in crate::volume) fn lay(&self) -> Option<StripeMapping> {
        *self.lay.read()
    }

    /// Sets the layout. `lay` numbers members as the label does, which has no removed ones.
    pub(in crate::volume) fn set_lay(&self, lay: StripeMapping) {
        let gone = self.gone();
        let own = |stripes: Stripes| {
            let counted = |at: usize| if planted!(GoneNotCounted) { at } else { gone.nth(at) };
            let without = stripes.without.iter().fold(gone, |all, it| all.and(counted(it)));
            Stripes { without, ..stripes }
        };
        let lay = StripeMapping { narrow: own(lay.narrow), wide: own(lay.wide), ..lay };
        *self.lay.write() = Some(lay);
    }

    /// Adds `slot` of the pool after all own slots, where the label's stripes number it.
    pub(in crate::volume) fn take_last_slot(&self, slot: usize) {
        self.numbers.write().push(slot);
    }

    /// Returns the number of own slots, removed members included.
    pub(in crate::volume) fn own_count(&self) -> usize {
        self.numbers.read().len()
    }

    /// Returns the own slots of members removed since the open.
    fn gone(&self) -> ExcludedMembers {
        let numbers = self.numbers.read();
        let gone = numbers.iter().enumerate().filter(|(_, number)| **number == NOBODY);
        gone.take(ExcludedMembers::COUNTED_MAX)
            .fold(ExcludedMembers::NONE, |all, (own, _)| all.and(own))
    }

    pub(in crate::volume) fn has_many_gone(&self) -> bool {
        self.own_count() >= ExcludedMembers::COUNTED_MAX
    }
}
