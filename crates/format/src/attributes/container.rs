//! Cross-page checks of one container of extended attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{count, entries, is_value_page, next};
use crate::page::PageBytes;

/// Facts gathered from the pages of one container, page by page.
#[derive(Default)]
pub struct ContainerPages {
    /// Next page of each entry page.
    next: BTreeMap<u64, u64>,
    /// Bytes in each value page.
    values: BTreeMap<u64, u32>,
    /// Length and pages of each value outside its entry.
    wanted: Vec<(usize, Range<u64>)>,
    names: Vec<Vec<u8>>,
}

impl ContainerPages {
    /// Adds a verified page. Memory use is bounded by the names in it.
    pub fn add(&mut self, index: u64, page: &PageBytes) {
        if is_value_page(page) {
            self.values.insert(index, count(page));
            return;
        }
        self.next.insert(index, next(page));
        for entry in entries(page) {
            self.names.push(entry.name.full());
            if !entry.value_pages().is_empty() {
                self.wanted.push((entry.value_bytes, entry.value_pages()));
            }
        }
    }

    /// Returns the length of a list of all names, each with a NUL.
    #[must_use]
    pub fn list_bytes(&self) -> usize {
        self.names.iter().map(|name| name.len() + 1).sum()
    }

    /// Whether X3 holds and names are unique (X2).
    #[must_use]
    pub fn add_up(&self) -> bool {
        let names: BTreeSet<&[u8]> = self.names.iter().map(Vec::as_slice).collect();
        names.len() == self.names.len() && self.is_one_chain() && self.are_values_whole()
    }

    fn is_one_chain(&self) -> bool {
        let mut seen = BTreeSet::new();
        let mut number = 0;
        while let Some(&next) = self.next.get(&number) {
            if !seen.insert(number) {
                return false;
            }
            number = next;
            if next == 0 {
                break;
            }
        }
        number == 0 && seen.len() == self.next.len()
    }

    fn are_values_whole(&self) -> bool {
        let mut seen = BTreeSet::new();
        for (bytes, range) in &self.wanted {
            let mut found = 0;
            for number in range.clone() {
                let Some(&count) = self.values.get(&number).filter(|_| seen.insert(number)) else {
                    return false;
                };
                found += usize::try_from(count).unwrap_or(usize::MAX / 64);
            }
            if found != *bytes {
                return false;
            }
        }
        seen.len() == self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::ContainerPages;

    fn sound() -> ContainerPages {
        let mut pages = ContainerPages::default();
        pages.next.extend([(0, 3), (3, 0)]);
        pages.values.extend([(1, 3968), (2, 32)]);
        pages.wanted.push((4000, 1..3));
        pages.names.extend([b"user.a".to_vec(), b"user.b".to_vec()]);
        pages
    }

    #[test]
    fn pages_add_up_when_each_is_somebodys() {
        assert!(ContainerPages::default().add_up());
        assert!(sound().add_up());
        assert_eq!(sound().list_bytes(), 14);
        let scrambled: [fn(&mut ContainerPages); 8] = [
            |pages| pages.names.push(b"user.a".to_vec()),
            |pages| pages.next.extend([(3, 4)]),
            |pages| pages.next.extend([(3, 3)]),
            |pages| pages.next.extend([(5, 0)]),
            |pages| pages.values.extend([(7, 1)]),
            |pages| pages.values.extend([(2, 31)]),
            |pages| pages.values.retain(|&number, _| number != 2),
            |pages| pages.wanted.push((4000, 1..3)),
        ];
        for (which, scramble) in scrambled.into_iter().enumerate() {
            let mut pages = sound();
            scramble(&mut pages);
            assert!(!pages.add_up(), "{which}");
        }
    }
}
