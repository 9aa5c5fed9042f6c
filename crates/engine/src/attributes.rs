//! Extended attributes, in a container of their own.
//!
//! # Layout
//!
//! See [`format::attributes`]. Page numbers are allocated from the lowest free one, so that few
//! attributes need no map page.
//!
//! # Invariants
//!
//! - X1 to X3 of [`format::attributes`].
//! - AT1: No entry page except page 0 is empty. The caller frees an empty container.
//!
//! # Concurrency
//!
//! The caller holds the lock of the vnode with the attributes.

use std::collections::BTreeSet;

use format::anode::Anode;
use format::attributes::{
    self as page, AttributeName, AttributeValueLocation, ENTRY_PAGES_MAX, ENTRY_VALUE_BYTES_MAX,
    VALUE_PAGE_BYTES,
};
use format::defect::DefectCode;
use format::page::{PageBytes, PageKind};

use crate::buffer::corrupt;
use crate::error::{FsError, FsResult};
use crate::store::{Change, PageView, Store};

const KIND: PageKind = PageKind::Attributes;

#[derive(Clone, Debug)]
struct AttributePosition {
    /// The entry page, and the previous one in the chain.
    number: u64,
    before: Option<u64>,
    value_bytes: usize,
    value_pages: std::ops::Range<u64>,
}

#[derive(Debug, Default)]
struct AttributeSearch {
    found: Option<AttributePosition>,
    taken: BTreeSet<u64>,
    /// Entry pages in order.
    chain: Vec<u64>,
}

impl Store {
    fn attribute_page<'a>(
        &self,
        change: Option<&'a Change<'_>>,
        container: &Anode,
        number: u64,
    ) -> FsResult<PageView<'a>> {
        let page = self.content(change, container, number, KIND)?;
        page.ok_or_else(|| missing(container, number))
    }

    /// Calls `each` for every entry page, until it returns `false`.
    fn each_entry_page(
        &self,
        change: Option<&Change<'_>>,
        container: &Anode,
        each: &mut dyn FnMut(u64, &PageBytes) -> bool,
    ) -> FsResult<()> {
        let mut number = 0;
        for _ in 0..ENTRY_PAGES_MAX {
            if container.pages == 0 {
                return Ok(());
            }
            let view = self.attribute_page(change, container, number)?;
            if page::is_value_page(&view) {
                return Err(missing(container, number));
            }
            let next = page::next(&view);
            if !each(number, &view) || next == 0 {
                return Ok(());
            }
            number = next;
        }
        Err(corrupt(
            DefectCode::XA004.found(format!("the entry pages of {} do not end", container.number)),
        ))
    }

    pub(crate) fn attribute(
        &self,
        container: &Anode,
        name: AttributeName<'_>,
    ) -> FsResult<Option<Vec<u8>>> {
        let mut value = None;
        let mut pages = None;
        self.each_entry_page(None, container, &mut |_, bytes| {
            let Some(entry) = page::find(bytes, name) else { return true };
            match entry.value {
                AttributeValueLocation::Here(here) => value = Some(here.to_vec()),
                AttributeValueLocation::Pages(_) => {
                    pages = Some((entry.value_bytes, entry.value_pages()))
                }
            }
            false
        })?;
        let Some((value_bytes, pages)) = pages else { return Ok(value) };
        let mut value = Vec::with_capacity(value_bytes);
        for number in pages {
            let view = self.attribute_page(None, container, number)?;
            let part = page::value(&view).ok_or_else(|| missing(container, number))?;
            value.extend_from_slice(part);
        }
        if value.len() != value_bytes {
            let (number, found) = (container.number, value.len());
            let what = format!("a value in {number} has {found} bytes of {value_bytes}");
            return Err(corrupt(DefectCode::XA004.found(what)));
        }
        Ok(Some(value))
    }

    pub(crate) fn has_attribute(
        &self,
        container: &Anode,
        name: AttributeName<'_>,
    ) -> FsResult<bool> {
        let mut is_there = false;
        self.each_entry_page(None, container, &mut |_, bytes| {
            is_there = page::find(bytes, name).is_some();
            !is_there
        })?;
        Ok(is_there)
    }

    pub(crate) fn attribute_names(
        &self,
        container: &Anode,
        each: &mut dyn FnMut(AttributeName<'_>),
    ) -> FsResult<()> {
        self.each_entry_page(None, container, &mut |_, bytes| {
            page::entries(bytes).for_each(|entry| each(entry.name));
            true
        })
    }

    pub(crate) fn attribute_sizes(
        &self,
        container: &Anode,
        each: &mut dyn FnMut(AttributeName<'_>, usize),
    ) -> FsResult<()> {
        self.each_entry_page(None, container, &mut |_, bytes| {
            page::entries(bytes).for_each(|entry| each(entry.name, entry.value_bytes));
            true
        })
    }

    fn survey(
        &self,
        change: &Change<'_>,
        container: &Anode,
        name: AttributeName<'_>,
    ) -> FsResult<AttributeSearch> {
        let mut survey = AttributeSearch::default();
        self.each_entry_page(Some(change), container, &mut |number, bytes| {
            survey.taken.insert(number);
            for entry in page::entries(bytes) {
                survey.taken.extend(entry.value_pages());
                if entry.name == name {
                    survey.found = Some(AttributePosition {
                        number,
                        before: survey.chain.last().copied(),
                        value_bytes: entry.value_bytes,
                        value_pages: entry.value_pages(),
                    });
                }
            }
            survey.chain.push(number);
            true
        })?;
        Ok(survey)
    }

    pub(crate) fn set_attribute(
        &self,
        change: &mut Change<'_>,
        container: &mut Anode,
        name: AttributeName<'_>,
        value: &[u8],
    ) -> FsResult<()> {
        let mut survey = self.survey(change, container, name)?;
        self.take_out(change, container, name, &mut survey)?;
        let value_at = if value.len() <= ENTRY_VALUE_BYTES_MAX {
            AttributeValueLocation::Here(value)
        } else {
            AttributeValueLocation::Pages(self.add_value(
                change,
                container,
                value,
                &mut survey.taken,
            )?)
        };
        for &number in &survey.chain {
            if page::insert(edit(self, change, container, number)?, name, value.len(), value_at) {
                return Ok(());
            }
        }
        if survey.chain.len() >= ENTRY_PAGES_MAX {
            return Err(FsError::NoSpace);
        }
        let number = if survey.chain.is_empty() { 0 } else { lowest_run(&survey.taken, 1) };
        let bytes = self.add_content(change, container, number, KIND)?;
        let is_in = page::insert(bytes, name, value.len(), value_at);
        assert!(is_in, "a page of its own has room for every entry");
        if let Some(last) = survey.chain.last() {
            page::set_next(edit(self, change, container, *last)?, number);
        }
        Ok(())
    }

    /// Removes an attribute. Returns whether it existed.
    pub(crate) fn remove_attribute(
        &self,
        change: &mut Change<'_>,
        container: &mut Anode,
        name: AttributeName<'_>,
    ) -> FsResult<bool> {
        let mut survey = self.survey(change, container, name)?;
        let is_there = survey.found.is_some();
        self.take_out(change, container, name, &mut survey)?;
        Ok(is_there)
    }

    pub(crate) fn has_no_attributes(
        &self,
        change: &Change<'_>,
        container: &Anode,
    ) -> FsResult<bool> {
        let mut is_empty = true;
        self.each_entry_page(Some(change), container, &mut |_, bytes| {
            is_empty &= page::count(bytes) == 0;
            is_empty
        })?;
        Ok(is_empty)
    }

    /// Removes the entry found, its value pages, and its page if empty (AT1).
    fn take_out(
        &self,
        change: &mut Change<'_>,
        container: &mut Anode,
        name: AttributeName<'_>,
        survey: &mut AttributeSearch,
    ) -> FsResult<()> {
        let Some(found) = survey.found.take() else { return Ok(()) };
        debug_assert!(found.value_pages.is_empty() || found.value_bytes > ENTRY_VALUE_BYTES_MAX);
        for number in found.value_pages {
            self.remove_content(change, container, number, KIND)?;
            survey.taken.remove(&number);
        }
        let bytes = edit(self, change, container, found.number)?;
        page::remove(bytes, name);
        let (count, next) = (page::count(bytes), page::next(bytes));
        if count > 0 {
            return Ok(());
        }
        let Some(before) = found.before else { return Ok(()) };
        page::set_next(edit(self, change, container, before)?, next);
        self.remove_content(change, container, found.number, KIND)?;
        survey.taken.remove(&found.number);
        survey.chain.retain(|&number| number != found.number);
        Ok(())
    }

    /// Stores a value in pages. Returns the first number.
    fn add_value(
        &self,
        change: &mut Change<'_>,
        container: &mut Anode,
        value: &[u8],
        taken: &mut BTreeSet<u64>,
    ) -> FsResult<u64> {
        let first = lowest_run(taken, page::value_pages(value.len()));
        for (number, part) in (first..).zip(value.chunks(VALUE_PAGE_BYTES)) {
            page::put_value(self.add_content(change, container, number, KIND)?, part);
            taken.insert(number);
        }
        Ok(first)
    }
}

fn edit<'c>(
    store: &Store,
    change: &'c mut Change<'_>,
    container: &Anode,
    number: u64,
) -> FsResult<&'c mut PageBytes> {
    let bytes = store.edit_content(change, container, number, KIND)?;
    bytes.ok_or_else(|| missing(container, number))
}

fn missing(container: &Anode, number: u64) -> FsError {
    let what = format!("page {number} of attributes in {} is missing", container.number);
    corrupt(DefectCode::XA004.found(what))
}

/// Returns the first of `count` adjacent free numbers. Page 0 is always an entry page.
fn lowest_run(taken: &BTreeSet<u64>, count: u64) -> u64 {
    let mut first = 1;
    for &number in taken.range(first..) {
        if number >= first + count {
            break;
        }
        first = number + 1;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_gap_that_is_long_enough_is_taken() {
        let taken = BTreeSet::from([0, 1, 3, 7]);
        assert_eq!([1, 2, 3, 4].map(|count| lowest_run(&taken, count)), [2, 4, 4, 8]);
        assert_eq!(lowest_run(&BTreeSet::new(), 1), 1);
    }
}
