//! Slots of a disk group's members, in the order of its layout.
//!
//! An attached member gets the lowest free slot of the pool, and a removed one leaves a gap, so
//! that slots keep their members (MB1).

use std::ops::Range;

/// Slots of a disk group, in layout order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(Vec<usize>);

impl Slots {
    /// Returns the number of slots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether slot `slot` of the pool belongs to the disk group.
    #[must_use]
    pub fn contains(&self, slot: usize) -> bool {
        self.0.contains(&slot)
    }

    /// Returns the index of a slot in the disk group.
    #[must_use]
    pub fn position(&self, slot: usize) -> Option<usize> {
        self.0.iter().position(|own| *own == slot)
    }

    /// Iterates in layout order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Returns one more than the highest slot; 0 if there is none.
    #[must_use]
    pub fn end(&self) -> usize {
        self.iter().max().map_or(0, |last| last + 1)
    }

    /// Appends a slot.
    pub fn push(&mut self, slot: usize) {
        self.0.push(slot);
    }

    /// Removes a slot, if present.
    pub fn remove(&mut self, slot: usize) {
        self.0.retain(|own| *own != slot);
    }

    /// Returns the entries at these slots of `of`, a list by slot of the pool, which may be
    /// shorter.
    pub fn pick<'a, T>(&'a self, of: &'a [T]) -> impl Iterator<Item = &'a T> + Clone {
        self.0.iter().filter_map(|slot| of.get(*slot))
    }
}

impl From<Range<usize>> for Slots {
    fn from(slots: Range<usize>) -> Slots {
        Slots(slots.collect())
    }
}

impl FromIterator<usize> for Slots {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Slots {
        Slots(slots.into_iter().collect())
    }
}

impl IntoIterator for Slots {
    type Item = usize;
    type IntoIter = std::vec::IntoIter<usize>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
