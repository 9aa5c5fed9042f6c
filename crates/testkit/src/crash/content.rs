//! What the content of a file may be after a crash (C5).

use std::collections::{BTreeMap, BTreeSet};

use super::replay::{Life, Touch, page_within};
use crate::canon::{PAGE_BYTES, Page};
use crate::number::u64_of;

/// What may be found in a file.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Each size that it may have.
    sizes: BTreeSet<u64>,
    /// Each content that a page may have; of a page that is not here, zeros alone. The last is the
    /// newest.
    pages: BTreeMap<u64, Vec<Page>>,
    size_newest: u64,
}

/// How the content of a file is none of those that it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContentFault {
    Size,
    Page(u64),
}

fn zeros() -> Page {
    Page::new([0; PAGE_BYTES])
}

impl Candidates {
    /// What `life` may hold if exactly `ordered` of its ordered operations survived, and the writes
    /// before moment `durable_end` are durable.
    pub(super) fn of(life: &Life, ordered: usize, durable_end: usize) -> Candidates {
        let mut candidates =
            Candidates { sizes: BTreeSet::from([0]), pages: BTreeMap::new(), size_newest: 0 };
        if let Some(start) = &life.start {
            candidates.size_newest = start.size_bytes;
            candidates.pages =
                start.pages.iter().map(|(&number, page)| (number, vec![page.clone()])).collect();
        }
        candidates.collapse();
        let mut ordered_seen = 0;
        for (index, moment) in life.moments.iter().enumerate() {
            ordered_seen += usize::from(moment.touch.is_ordered());
            match &moment.touch {
                Touch::Truncated(size_bytes) => {
                    if ordered_seen > ordered {
                        break;
                    }
                    candidates.truncate(*size_bytes);
                }
                Touch::Wrote { pages, size_bytes } => candidates.write(pages, *size_bytes),
                Touch::Names | Touch::Attr => {}
            }
            if index + 1 == durable_end {
                candidates.collapse();
            }
        }
        candidates
    }

    /// All is durable: only the newest remains.
    fn collapse(&mut self) {
        self.sizes = BTreeSet::from([self.size_newest]);
        for versions in self.pages.values_mut() {
            versions.drain(..versions.len() - 1);
        }
    }

    fn write(&mut self, pages: &[(u64, Page)], size_bytes: u64) {
        // A part of the write may be all that survives; it ends with one of its pages.
        let least = self.sizes.first().copied().unwrap_or(0);
        let ends = pages.iter().map(|(number, _)| (number + 1) * u64_of(PAGE_BYTES));
        self.sizes.extend(ends.filter(|&end| end > least && end < size_bytes));
        self.size_newest = size_bytes;
        self.sizes.insert(size_bytes);
        for (number, page) in pages {
            self.pages.entry(*number).or_insert_with(|| vec![zeros()]).push(page.clone());
        }
    }

    /// What was cut off, in whichever version, reads as zeros from now on.
    fn truncate(&mut self, size_bytes: u64) {
        self.size_newest = size_bytes;
        self.sizes = BTreeSet::from([size_bytes]);
        for (&number, versions) in &mut self.pages {
            for page in versions.iter_mut() {
                *page = page_within(number, page, size_bytes);
            }
        }
    }

    /// Says how a file with `size_bytes` and `pages` is none of the candidates.
    pub(super) fn fault(
        &self,
        size_bytes: u64,
        pages: &BTreeMap<u64, Page>,
    ) -> Option<ContentFault> {
        if !self.sizes.contains(&size_bytes) {
            return Some(ContentFault::Size);
        }
        let numbers: BTreeSet<u64> = self.pages.keys().chain(pages.keys()).copied().collect();
        let shown = numbers.into_iter().filter(|number| number * u64_of(PAGE_BYTES) < size_bytes);
        for number in shown {
            let found = pages.get(&number).cloned().unwrap_or_else(zeros);
            let is_candidate = match self.pages.get(&number) {
                Some(versions) => {
                    versions.iter().any(|version| page_within(number, version, size_bytes) == found)
                }
                None => found == zeros(),
            };
            if !is_candidate {
                return Some(ContentFault::Page(number));
            }
        }
        None
    }
}
