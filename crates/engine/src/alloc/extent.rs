//! Runs of fragments, and joining them.

use format::ids::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) place: Place,
    pub(crate) fragments: u32,
}

impl Extent {
    /// Returns the range of fragments. It may pass the end of the group if a map is damaged.
    fn bounds(self) -> (u64, u64) {
        let start = u64::from(self.place.fragment());
        (start, start + u64::from(self.fragments))
    }

    /// Returns whether `other` is part of `self`.
    pub(crate) fn has(self, other: Extent) -> bool {
        let ((start, end), (other_start, other_end)) = (self.bounds(), other.bounds());
        self.place.disk_group() == other.place.disk_group()
            && self.place.group() == other.place.group()
            && start <= other_start
            && other_end <= end
    }

    pub(crate) fn overlaps(self, other: Extent) -> bool {
        let ((start, end), (other_start, other_end)) = (self.bounds(), other.bounds());
        self.place.disk_group() == other.place.disk_group()
            && self.place.group() == other.place.group()
            && start < other_end
            && other_start < end
    }

    /// Returns the distance to a later extent of the group.
    pub(crate) fn gap_to(self, other: Extent) -> u64 {
        other.bounds().0.saturating_sub(self.bounds().1)
    }

    /// Returns the run up to the end of a later extent of the group.
    pub(crate) fn up_to(self, other: Extent) -> Option<Extent> {
        let end = self.bounds().1.max(other.bounds().1);
        let fragments = u32::try_from(end - self.bounds().0).ok()?;
        Some(Extent { place: self.place, fragments })
    }

    pub(crate) fn touches(self, other: Extent) -> bool {
        let ((start, end), (other_start, other_end)) = (self.bounds(), other.bounds());
        self.place.disk_group() == other.place.disk_group()
            && self.place.group() == other.place.group()
            && (end == other_start || other_end == start)
    }

    pub(crate) fn join(&mut self, other: Extent) {
        self.place = self.place.min(other.place);
        self.fragments = self.fragments.saturating_add(other.fragments);
    }
}

/// Extents to change together, joined where adjacent.
#[derive(Debug, Default)]
pub(crate) struct Extents(Vec<Extent>);

impl Extents {
    /// Adds an extent that overlaps none.
    pub(crate) fn add(&mut self, extent: Extent) {
        match self.0.last_mut() {
            Some(last) if last.touches(extent) => last.join(extent),
            _ => self.0.push(extent),
        }
    }

    pub(crate) fn fragments(&self) -> u64 {
        self.0.iter().map(|extent| u64::from(extent.fragments)).sum()
    }

    /// Returns the extents, joined, in order of place.
    pub(crate) fn in_order(mut self) -> Vec<Extent> {
        self.0.sort_unstable_by_key(|extent| extent.place);
        let mut joined = Extents(Vec::with_capacity(self.0.len()));
        self.0.into_iter().for_each(|extent| joined.add(extent));
        joined.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(group: u32, fragment: u32, fragments: u32) -> Extent {
        Extent { place: Place::new(0, group, fragment), fragments }
    }

    #[test]
    fn extents_side_by_side_become_one_in_whatever_order_they_come() {
        let mut extents = Extents::default();
        for (group, fragment) in [(1, 8), (1, 12), (0, 4), (0, 0), (1, 4), (1, 20), (2, 24)] {
            extents.add(extent(group, fragment, 4));
        }
        assert_eq!((extents.fragments(), extents.0.len()), (28, 5));
        let expected = [extent(0, 0, 8), extent(1, 4, 12), extent(1, 20, 4), extent(2, 24, 4)];
        assert_eq!(extents.in_order(), expected);
    }

    #[test]
    fn a_run_that_ends_where_no_fragment_can_be_is_no_panic() {
        let (mut last, next) = (extent(0, u32::MAX - 1, u32::MAX), extent(0, 0, 4));
        assert!(!last.touches(next));
        last.join(next);
        assert_eq!(last.fragments, u32::MAX);
    }
}
