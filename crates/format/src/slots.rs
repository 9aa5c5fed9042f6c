//! Slots of the members of a disk group, in the order in which its layout counts them.
//!
//! They need not lie next to each other: a member that is attached gets the lowest slot that is
//! free, wherever that is, and one that is removed leaves a slot free between others. So a slot
//! names one member for as long as the member is there (MB1).

use std::ops::Range;

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots(Vec<usize>);

impl Slots {
    /// Returns how many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a slot of the pool is one of them.
    #[must_use]
    pub fn contains(&self, slot: usize) -> bool {
        self.0.contains(&slot)
    }

    /// Returns which of them a slot of the pool is, counted from the first; `None`: it is none.
    #[must_use]
    pub fn position(&self, slot: usize) -> Option<usize> {
        self.0.iter().position(|own| *own == slot)
    }

    /// Returns them, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.0.iter().copied()
    }

    /// Returns one more than the highest of them; 0: there is none.
    #[must_use]
    pub fn end(&self) -> usize {
        self.iter().max().map_or(0, |last| last + 1)
    }

    /// Adds a slot behind the others.
    pub fn push(&mut self, slot: usize) {
        self.0.push(slot);
    }

    /// Takes a slot out; nothing if it is none of them.
    pub fn remove(&mut self, slot: usize) {
        self.0.retain(|own| *own != slot);
    }

    /// Returns those of `of`, which has one entry a slot of the pool, that these slots name; fewer
    /// where `of` is shorter.
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
