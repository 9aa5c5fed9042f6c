//! Claimed pages of a walk: from the sweep, or read separately.

use std::collections::BTreeMap;

use format::page::PageBytes;

use crate::context::Check;
use crate::reader::{PageRequest, ReadError};
use crate::sweep::SweepPage;

impl Check<'_> {
    /// Starts reading claimed pages. Pages that the sweep will not read soon are read here,
    /// together.
    pub(crate) fn ask(&mut self, wanted: &[PageRequest]) -> SeparateReads {
        let mut asked = SeparateReads { alone: BTreeMap::new() };
        let mut missing = Vec::new();
        for (index, page) in wanted.iter().enumerate() {
            match self.reader.page_offset(page.place) {
                Some(offset) if self.sweep.is_coming(offset) => self.sweep.expect(offset),
                _ => missing.push((index, *page)),
            }
        }
        let pages: Vec<PageRequest> = missing.iter().map(|&(_, page)| page).collect();
        for ((index, _), page) in missing.into_iter().zip(self.reader.read_pages(&pages)) {
            asked.alone.insert(index, page);
        }
        asked
    }

    pub(crate) fn asked(
        &mut self,
        asked: &mut SeparateReads,
        index: usize,
        wanted: &PageRequest,
    ) -> Result<SweepPage, ReadError> {
        if let Some(page) = asked.alone.remove(&index) {
            return page.map(SweepPage::Alone);
        }
        let offset =
            self.reader.page_offset(wanted.place).ok_or(ReadError::Outside(wanted.place))?;
        let Some(bytes) = self.sweep.take(&self.reader, &self.space, offset) else {
            return self.reader.read_page(wanted).map(SweepPage::Alone);
        };
        let page = SweepPage::Swept(bytes);
        match self.reader.verify(wanted, &page) {
            Ok(()) => Ok(page),
            Err(_) if self.reader.has_copies() => {
                self.reader.read_page(wanted).map(SweepPage::Alone)
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Debug)]
pub(crate) struct SeparateReads {
    alone: BTreeMap<usize, Result<Box<PageBytes>, ReadError>>,
}
