//! How the segments of a disk group lie while it gets a member more, or loses one.

use format::reshape::Lay;
use format::stripes::{Stripes, Without};
use runtime::planted::{self, Planted};

use super::{MemberSet, NOBODY};

impl MemberSet {
    /// Returns how segments lie if that was ever changed.
    pub(in crate::volume) fn lay(&self) -> Option<Lay> {
        *self.lay.read()
    }

    /// Segments lie so from now on: `lay` counts members as the label does, which knows nothing of
    /// those that were taken out.
    pub(in crate::volume) fn set_lay(&self, lay: Lay) {
        let gone = self.gone();
        let own = |stripes: Stripes| {
            let counted = |member: usize| match planted::is(Planted::GoneNotCounted) {
                true => member,
                false => gone.nth(member),
            };
            let without = stripes.without.iter().fold(gone, |all, it| all.and(counted(it)));
            Stripes { without, ..stripes }
        };
        let lay = Lay { narrow: own(lay.narrow), wide: own(lay.wide), ..lay };
        *self.lay.write() = Some(lay);
    }

    /// As [`MemberSet::take_slot`], but its own slot is behind all others, as the label counts it:
    /// of a disk group in stripes.
    pub(in crate::volume) fn take_last_slot(&self, slot: usize) {
        self.numbers.write().push(slot);
    }

    /// Returns how many own slots it has, of those that were taken out too.
    pub(in crate::volume) fn own_count(&self) -> usize {
        self.numbers.read().len()
    }

    /// Returns its own slots whose members were taken out since the pool was opened.
    fn gone(&self) -> Without {
        let numbers = self.numbers.read();
        let gone = numbers.iter().enumerate().filter(|(_, number)| **number == NOBODY);
        gone.take(Without::COUNTED_MAX).fold(Without::NONE, |all, (own, _)| all.and(own))
    }

    /// Whether there is no own slot left for a further member of a disk group in stripes.
    pub(in crate::volume) fn has_many_gone(&self) -> bool {
        self.own_count() >= Without::COUNTED_MAX
    }
}
