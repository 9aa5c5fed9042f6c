//! The bytes of a file: a size, and those pages that somebody wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::canon::{PAGE_BYTES, Page};
use crate::number::{u64_of, usize_of};

/// Sparse content. A page that is not there reads as zeros.
///
/// Pages are shared between copies of a model, so a copy costs its names and little more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pages: BTreeMap<u64, Page>,
    size_bytes: u64,
}

/// One piece of a byte range that lies within one page.
struct Piece {
    page: u64,
    within: usize,
    length: usize,
}

fn pieces(offset: u64, length: usize) -> impl Iterator<Item = Piece> {
    let end = offset + u64_of(length);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let within = usize_of(at % u64_of(PAGE_BYTES));
        let length = usize_of((end - at).min(u64_of(PAGE_BYTES - within)));
        let piece = Piece { page: at / u64_of(PAGE_BYTES), within, length };
        at += u64_of(length);
        Some(piece)
    })
}

impl Content {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn page_count(&self) -> u64 {
        u64_of(self.pages.len())
    }

    pub(super) fn pages(&self) -> Vec<(u64, Page)> {
        self.pages.iter().map(|(&number, page)| (number, Page::clone(page))).collect()
    }

    pub(super) fn read(&self, offset: u64, length_bytes: usize, into: &mut Vec<u8>) -> usize {
        let available = self.size_bytes.saturating_sub(offset);
        let length = usize_of(available.min(u64_of(length_bytes)));
        for piece in pieces(offset, length) {
            match self.pages.get(&piece.page) {
                Some(page) => {
                    into.extend_from_slice(&page[piece.within..piece.within + piece.length]);
                }
                None => into.resize(into.len() + piece.length, 0),
            }
        }
        length
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut rest = data;
        for piece in pieces(offset, data.len()) {
            let (bytes, after) = rest.split_at(piece.length);
            let page = self.pages.entry(piece.page).or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[piece.within..piece.within + piece.length].copy_from_slice(bytes);
            rest = after;
        }
        self.size_bytes = self.size_bytes.max(offset + u64_of(data.len()));
    }

    /// Makes what lies in the file from `offset` to before `end` zero.
    pub(super) fn zero(&mut self, offset: u64, end: u64) {
        let end = end.min(self.size_bytes);
        let page_bytes = u64_of(PAGE_BYTES);
        let whole = offset.div_ceil(page_bytes)..end / page_bytes;
        let numbers = self
            .pages
            .range(offset / page_bytes..end.div_ceil(page_bytes).max(offset / page_bytes));
        let numbers: Vec<u64> = numbers.map(|(&number, _)| number).collect();
        for number in numbers {
            if whole.contains(&number) {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                let start = number * page_bytes;
                let first = usize_of(offset.saturating_sub(start).min(page_bytes));
                let last = usize_of(end.saturating_sub(start).min(page_bytes));
                if first < last {
                    Arc::make_mut(page)[first..last].fill(0);
                }
            }
        }
    }

    /// Returns the first byte at or behind `offset` that is in a page, or in none, as `in_page`
    /// says; the size if there is none.
    pub(super) fn seek(&self, offset: u64, in_page: bool) -> u64 {
        let page_bytes = u64_of(PAGE_BYTES);
        let mut number = offset / page_bytes;
        if in_page {
            let next = self.pages.range(number..).next();
            number = next.map_or(u64::MAX, |(&number, _)| number);
        } else {
            while self.pages.contains_key(&number) {
                number += 1;
            }
        }
        number.saturating_mul(page_bytes).max(offset).min(self.size_bytes)
    }

    /// Cuts, or extends with a hole. What was cut off reads as zeros when it comes back.
    pub(super) fn resize(&mut self, size_bytes: u64) {
        let within = usize_of(size_bytes % u64_of(PAGE_BYTES));
        let boundary = size_bytes / u64_of(PAGE_BYTES);
        let _cut_off = self.pages.split_off(&(boundary + u64::from(within != 0)));
        if within != 0
            && let Some(page) = self.pages.get_mut(&boundary)
        {
            Arc::make_mut(page)[within..].fill(0);
        }
        self.size_bytes = size_bytes;
    }
}
