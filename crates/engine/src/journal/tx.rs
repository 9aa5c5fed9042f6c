//! A transaction: a list of page updates, built in private and applied at its end.
//!
//! No other transaction sees the updates before the end, so until then the transaction may fail or
//! be dropped at no cost. Its end declares, logs and applies all updates in one step that neither
//! waits nor fails.
//!
//! Two sorts of update serve two sorts of page:
//!
//! - *Bytes*: the transaction edits a copy of a *window* of the page ([`Tx::add_edit`]); the bytes
//!   that differ at the end are the update. The caller must own them: its vnode's anode slot, its
//!   directory's pages, its map pages.
//! - *Deltas*: pages shared by all transactions (bitmaps, counts) get operations, which apply to
//!   the page's content at the end: [`Tx::set_bits`], [`Tx::add_u32`], [`Tx::add_u64`],
//!   [`Tx::put`].
//!
//! The end changes a page's bytes in place, or copies them first if a reader holds them.

use std::ops::Range;
use std::sync::Arc;

use format::bytes::is_zero;
use format::ids::{Epoch, Place};
use format::journal::{
    LogDataOwner, PAGE_UPDATE_BYTES, PageRuns, RECORD_HEAD_BYTES, RECORD_UNIT_BYTES, RUN_HEAD_BYTES,
};
use format::page::{PAGE_BYTES, PageBytes, STAMP_BYTES, read_u32, read_u64, write_u32, write_u64};
use storage::device::{AlignedBuffer, SharedBytes};

use crate::buffer::{PageBuffer, PageRef, page_of_mut};
use crate::convert::index_wide;
use crate::gate::LogCreditGuard;

use super::LogCredits;

/// Equal runs up to this length do not split a changed run: a run's head costs as much.
const RUN_GAP_BYTES: usize = 4;
/// [`RUN_GAP_BYTES`] for a window that was all zero, where only the new bytes are logged.
const RUN_GAP_BYTES_OF_ZEROS: usize = 8;

/// Long operations are chains of transactions of at most this many pages.
pub(crate) const TX_PAGES_MAX: usize = 512;

/// With this many windows of one page, a transaction takes the whole page.
const PAGE_WINDOWS_MAX: usize = 6;

const SPARE_BYTES_MAX: usize = 64 << 10;

/// A range of a page, copied for editing.
#[derive(Debug)]
pub(super) struct EditWindow {
    pub(super) place: Place,
    /// The cached page; `None` until the end for a new page, which is logged whole.
    pub(super) buffer: Option<Arc<PageBuffer>>,
    /// The page from which the bytes were copied, until [`TxMemory::compare`].
    base: Option<PageRef>,
    range: Range<usize>,
    at: usize,
    /// Changed bytes, as indexes into [`TxMemory::runs`].
    runs: Range<usize>,
    pub(super) is_new: bool,
}

impl EditWindow {
    fn bytes_at(&self, range: &Range<usize>) -> Range<usize> {
        let start = self.at + (range.start - self.range.start);
        start..start + range.len()
    }

    fn holds(&self, range: &Range<usize>) -> bool {
        self.range.start <= range.start && range.end <= self.range.end
    }

    fn meets(&self, range: &Range<usize>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

#[derive(Debug)]
pub(super) struct DeltaPage {
    pub(super) buffer: Arc<PageBuffer>,
    runs: Range<usize>,
    /// Start in [`TxMemory::bytes`] of the old bytes of `runs`.
    saved_at: usize,
    first: usize,
}

#[derive(Debug)]
enum Delta {
    Bits { first: u32, count: u32, is_set: bool },
    AddU32 { offset: usize, delta: i64 },
    AddU64 { offset: usize, delta: i64 },
    Put { offset: usize, bytes: Range<usize> },
}

impl Delta {
    fn range(&self) -> (usize, usize) {
        match self {
            Delta::Bits { first, count, .. } => {
                let (start, _) = format::bitmap::position(*first);
                let (last, _) = format::bitmap::position(first + count - 1);
                (start, last + 1)
            }
            Delta::AddU32 { offset, .. } => (*offset, offset + 4),
            Delta::AddU64 { offset, .. } => (*offset, offset + 8),
            Delta::Put { offset, bytes } => (*offset, offset + bytes.len()),
        }
    }

    fn absorb(&mut self, other: &Delta) -> bool {
        match (self, other) {
            (Delta::AddU32 { offset, delta: sum }, Delta::AddU32 { offset: same, delta })
            | (Delta::AddU64 { offset, delta: sum }, Delta::AddU64 { offset: same, delta })
                if offset == same =>
            {
                *sum += delta;
                true
            }
            _ => false,
        }
    }

    /// Applies the operation. `None` if a bit has its new value already or a count leaves its
    /// bounds: a map is damaged, or the allocator allocated a place twice.
    #[must_use]
    fn apply(&self, page: &mut PageBytes, memory: &[u8]) -> Option<()> {
        match self {
            Delta::Bits { first, count, is_set } => {
                for bit in *first..first + count {
                    if format::bitmap::is_set(page, bit) == *is_set {
                        return None;
                    }
                    format::bitmap::set(page, bit, *is_set);
                }
            }
            Delta::AddU32 { offset, delta } => {
                let sum = i64::from(read_u32(page, *offset)) + delta;
                write_u32(page, *offset, u32::try_from(sum).ok()?);
            }
            Delta::AddU64 { offset, delta } => {
                let sum = read_u64(page, *offset).checked_add_signed(*delta);
                write_u64(page, *offset, sum?);
            }
            Delta::Put { offset, bytes } => {
                page[*offset..offset + bytes.len()].copy_from_slice(&memory[bytes.clone()]);
            }
        }
        Some(())
    }
}

#[derive(Debug)]
pub(super) struct LogData {
    pub(super) place: Place,
    pub(super) owner: LogDataOwner,
    pub(super) data: SharedBytes,
}

/// Reused, so that most transactions allocate nothing.
#[derive(Debug, Default)]
pub(super) struct TxMemory {
    pub(super) windows: Vec<EditWindow>,
    pub(super) delta_pages: Vec<DeltaPage>,
    /// Operations, each with the index of the next one on its page; the last has its own index.
    deltas: Vec<(Delta, usize)>,
    /// Window copies, bytes to put, and old bytes of delta runs.
    bytes: Vec<u8>,
    runs: Vec<(usize, usize)>,
    pub(super) classes: Vec<u64>,
}

impl TxMemory {
    pub(super) fn clear(&mut self) {
        if self.bytes.capacity() > SPARE_BYTES_MAX {
            *self = TxMemory::default();
            return;
        }
        self.windows.clear();
        self.delta_pages.clear();
        self.deltas.clear();
        self.bytes.clear();
        self.runs.clear();
        self.classes.clear();
    }

    /// Finds the changed bytes of each window, and sorts windows by page.
    pub(super) fn compare(&mut self) {
        self.windows.sort_by_key(|window| window.place);
        for window in &mut self.windows {
            let start = self.runs.len();
            if let Some(base) = window.base.take() {
                let (old, new) = (&base[window.range.clone()], &self.bytes[window.at..]);
                RunFinder::new(&mut self.runs, old).compare(old, new, window.range.start);
            }
            window.runs = start..self.runs.len();
        }
    }

    /// Applies all operations, or none and returns `false` if one is impossible.
    #[must_use]
    pub(super) fn apply_deltas(&mut self) -> bool {
        for index in 0..self.delta_pages.len() {
            self.plan_runs(index);
            if self.apply_to(index).is_none() {
                for applied in 0..=index {
                    self.restore(applied);
                }
                return false;
            }
        }
        true
    }

    fn plan_runs(&mut self, index: usize) {
        let start = self.runs.len();
        let own = deltas_of(&self.deltas, &self.delta_pages[index]);
        self.runs.extend(own.map(Delta::range));
        let end = start + join(&mut self.runs[start..]);
        self.runs.truncate(end);
        self.delta_pages[index].runs = start..end;
        self.delta_pages[index].saved_at = self.bytes.len();
    }

    fn apply_to(&mut self, index: usize) -> Option<()> {
        let page = &self.delta_pages[index];
        let mut state = page.buffer.state.lock();
        let current = page_of_mut(Arc::make_mut(&mut state.bytes));
        for &(start, end) in &self.runs[page.runs.clone()] {
            self.bytes.extend_from_slice(&current[start..end]);
        }
        let mut own = deltas_of(&self.deltas, page);
        own.try_for_each(|delta| delta.apply(current, &self.bytes))
    }

    fn restore(&self, index: usize) {
        let page = &self.delta_pages[index];
        let mut state = page.buffer.state.lock();
        let current = page_of_mut(Arc::make_mut(&mut state.bytes));
        for (start, old) in self.saved_runs(page) {
            current[start..start + old.len()].copy_from_slice(old);
        }
    }

    /// Returns the changed runs of a delta page: their starts and old bytes.
    fn saved_runs(&self, page: &DeltaPage) -> impl Iterator<Item = (usize, &[u8])> {
        let mut saved = page.saved_at;
        self.runs[page.runs.clone()].iter().map(move |&(start, end)| {
            let old = &self.bytes[saved..saved + (end - start)];
            saved += end - start;
            (start, old)
        })
    }

    pub(super) fn log_deltas(&self, log: &mut PageRuns<'_>, page: &DeltaPage, current: &PageBytes) {
        for (start, old) in self.saved_runs(page) {
            log.put(start, old, &current[start..start + old.len()]);
        }
    }

    pub(super) fn log_and_apply(
        &self,
        log: &mut PageRuns<'_>,
        window: &EditWindow,
        current: &mut PageBytes,
    ) {
        for &(start, end) in &self.runs[window.runs.clone()] {
            let new = &self.bytes[window.bytes_at(&(start..end))];
            log.put(start, &current[start..end], new);
            current[start..end].copy_from_slice(new);
        }
    }

    pub(super) fn new_page(&self, window: &EditWindow) -> &PageBytes {
        self.bytes[window.at..].first_chunk().expect("a new page is a whole one")
    }

    pub(super) fn page_count(&self) -> usize {
        self.windows.chunk_by(|a, b| a.place == b.place).count() + self.delta_pages.len()
    }

    pub(super) fn record_bytes_max(&self) -> usize {
        let pages = self.windows.len() + self.delta_pages.len();
        let images = self.windows.iter().filter(|window| window.is_new).count();
        let changed: usize = self.runs.iter().map(|(start, end)| end - start).sum();
        let ends = RECORD_HEAD_BYTES + RECORD_UNIT_BYTES;
        ends + pages * (PAGE_UPDATE_BYTES + STAMP_BYTES)
            + images * PAGE_BYTES
            + self.runs.len() * RUN_HEAD_BYTES
            + 2 * changed
    }
}

/// Returns each touched page once. `windows` must be sorted by page.
pub(super) fn buffers_of<'m>(
    windows: &'m [EditWindow],
    delta_pages: &'m [DeltaPage],
) -> impl Iterator<Item = &'m Arc<PageBuffer>> {
    let pages = windows.chunk_by(|a, b| a.place == b.place);
    let of_windows = pages.filter_map(|windows| windows.first()?.buffer.as_ref());
    of_windows.chain(delta_pages.iter().map(|page| &page.buffer))
}

fn deltas_of<'m>(
    deltas: &'m [(Delta, usize)],
    page: &DeltaPage,
) -> impl Iterator<Item = &'m Delta> {
    let follow = |at: &usize| deltas.get(*at).map(|(_, next)| *next).filter(|next| next != at);
    let positions = std::iter::successors(Some(page.first), follow);
    positions.filter_map(|at| deltas.get(at)).map(|(delta, _)| delta)
}

#[derive(Debug)]
pub(crate) struct Tx {
    pub(crate) epoch: Epoch,
    pub(super) reservation: LogCredits,
    pub(super) memory: TxMemory,
    pub(super) log_data: Vec<LogData>,
    pub(super) data_sequence: u64,
    pub(super) moved: Vec<Place>,
    /// Present while log credits are reserved.
    _reserves: Option<LogCreditGuard>,
}

pub(crate) enum TxPageRange<'t> {
    Nothing,
    All(&'t [u8]),
    Part,
}

pub(crate) struct TxRangePosition(Range<usize>);

pub(crate) enum TxPage<'t> {
    Whole(&'t PageBytes),
    Patched(PageRef),
}

impl Tx {
    pub(super) fn new(epoch: Epoch, reservation: LogCredits, memory: TxMemory) -> Tx {
        let (log_data, moved) = (Vec::new(), Vec::new());
        let _reserves = (reservation.log_bytes > 0).then(LogCreditGuard::new);
        Tx { epoch, reservation, memory, log_data, data_sequence: 0, moved, _reserves }
    }

    /// Notes that content moves from page `source` to page `target`. Writing back one without the
    /// other, and losing the log, would lose or double a name.
    pub(crate) fn moves(&mut self, source: Place, target: Place) {
        if source != target {
            for place in [source, target] {
                if !self.moved.contains(&place) {
                    self.moved.push(place);
                }
            }
        }
    }

    /// [`Tx::moves`] between all existing pages of `places` (new pages are written back first
    /// anyway). Returns `false`, and notes nothing, if the reservation less `kept` does not allow
    /// it.
    #[must_use]
    pub(crate) fn moves_among(&mut self, places: &[Place], kept: usize) -> bool {
        let is_new = |place: &Place| self.windows_of(*place).any(|window| window.is_new);
        let old: Vec<Place> = places.iter().copied().filter(|place| !is_new(place)).collect();
        if old.len() < 2 {
            return true;
        }
        let mut moved = self.moved.clone();
        for place in old {
            if !moved.contains(&place) {
                moved.push(place);
            }
        }
        let is_allowed = moved.len() + kept <= self.reservation.moves;
        if is_allowed {
            self.moved = moved;
        }
        is_allowed
    }

    fn windows_of(&self, place: Place) -> impl Iterator<Item = &EditWindow> {
        self.memory.windows.iter().filter(move |window| window.place == place)
    }

    pub(crate) fn view(&self, place: Place) -> Option<TxPage<'_>> {
        let first = self.windows_of(place).next()?;
        if first.range == (0..PAGE_BYTES) {
            let bytes = self.memory.bytes[first.at..].first_chunk();
            return Some(TxPage::Whole(bytes.expect("it is a whole page")));
        }
        Some(TxPage::Patched(Arc::new(self.patched(place)?)))
    }

    pub(crate) fn peek(&self, place: Place, range: &Range<usize>) -> TxPageRange<'_> {
        match self.windows_of(place).find(|window| window.meets(range)) {
            None => TxPageRange::Nothing,
            Some(own) if own.holds(range) => {
                TxPageRange::All(&self.memory.bytes[own.bytes_at(range)])
            }
            Some(_) => TxPageRange::Part,
        }
    }

    fn patched(&self, place: Place) -> Option<AlignedBuffer> {
        let (_, now) = self.page_of_window(place)?;
        Some(self.with_windows(place, &now))
    }

    fn with_windows(&self, place: Place, page: &AlignedBuffer) -> AlignedBuffer {
        let mut page = AlignedBuffer::clone(page);
        for window in self.windows_of(place) {
            let own = &self.memory.bytes[window.bytes_at(&window.range)];
            page[window.range.clone()].copy_from_slice(own);
        }
        page
    }

    /// Copies `range` of a page into a new window, and returns the copy for editing. The range must
    /// not overlap another window. The caller must own the bytes that it changes.
    pub(crate) fn add_edit(
        &mut self,
        (buffer, base): (Arc<PageBuffer>, PageRef),
        range: Range<usize>,
    ) -> &mut [u8] {
        assert!(range.start.is_multiple_of(WORD_BYTES) && range.len().is_multiple_of(WORD_BYTES));
        let (place, at) = (buffer.place, self.memory.bytes.len());
        self.memory.bytes.extend_from_slice(&base[range.clone()]);
        let (buffer, base) = (Some(buffer), Some(base));
        self.push_window(EditWindow { place, buffer, base, range, at, runs: 0..0, is_new: false });
        &mut self.memory.bytes[at..]
    }

    /// Returns the transaction's own version of `range`, with one window of the whole page if
    /// needed. `None` if no window overlaps it and there are fewer than [`PAGE_WINDOWS_MAX`].
    pub(crate) fn own_range(
        &mut self,
        place: Place,
        range: &Range<usize>,
    ) -> Option<TxRangePosition> {
        let (mut apart, mut meets) = (0, false);
        for own in self.windows_of(place) {
            if own.holds(range) {
                return Some(TxRangePosition(own.bytes_at(range)));
            }
            meets |= own.meets(range);
            apart += 1;
        }
        if !meets && apart < PAGE_WINDOWS_MAX {
            return None;
        }
        let at = self.make_whole(place)?;
        Some(TxRangePosition(at + range.start..at + range.end))
    }

    /// Returns the cached page as it is now: since a window was copied, other transactions may have
    /// changed bytes outside of it.
    pub(crate) fn page_of_window(&self, place: Place) -> Option<(Arc<PageBuffer>, PageRef)> {
        let buffer = self.windows_of(place).next()?.buffer.clone()?;
        let now = buffer.bytes();
        Some((buffer, now))
    }

    pub(crate) fn has_page(&self, place: Place) -> bool {
        self.windows_of(place).next().is_some()
    }

    pub(crate) fn own_bytes(&mut self, TxRangePosition(at): TxRangePosition) -> &mut [u8] {
        &mut self.memory.bytes[at]
    }

    /// Replaces the windows of a page by one of the whole current page. Returns its start.
    fn make_whole(&mut self, place: Place) -> Option<usize> {
        let (_, now) = self.page_of_window(place)?;
        let (page, at) = (self.with_windows(place, &now), self.memory.bytes.len());
        self.memory.bytes.extend_from_slice(&page);
        let mut whole = AlignedBuffer::clone(&now);
        for window in self.windows_of(place) {
            let base = window.base.as_ref()?;
            whole[window.range.clone()].copy_from_slice(&base[window.range.clone()]);
        }
        let whole: PageRef = Arc::new(whole);
        let mut is_first = true;
        self.memory.windows.retain_mut(|window| {
            if window.place != place {
                return true;
            }
            (window.range, window.at) = (0..PAGE_BYTES, at);
            window.base = Some(Arc::clone(&whole));
            std::mem::take(&mut is_first)
        });
        Some(at)
    }

    pub(crate) fn own_mut(&mut self, place: Place) -> Option<&mut PageBytes> {
        let at = self.own_range(place, &(0..PAGE_BYTES))?;
        self.own_bytes(at).first_chunk_mut()
    }

    /// Returns a new zeroed page, logged whole. `None` if the transaction has a page there already:
    /// the map that reported the place as free is wrong.
    pub(crate) fn new_page(&mut self, place: Place) -> Option<&mut PageBytes> {
        if self.windows_of(place).next().is_some() {
            return None;
        }
        let at = self.memory.bytes.len();
        self.memory.bytes.resize(at + PAGE_BYTES, 0);
        let (range, runs) = (0..PAGE_BYTES, 0..0);
        let (buffer, base) = (None, None);
        self.push_window(EditWindow { place, buffer, base, range, at, runs, is_new: true });
        self.memory.bytes[at..].first_chunk_mut()
    }

    fn push_window(&mut self, window: EditWindow) {
        assert!(self.memory.windows.len() < TX_PAGES_MAX, "a transaction touches too many pages");
        self.memory.windows.push(window);
    }

    fn delta(
        &mut self,
        buffer: &Arc<PageBuffer>,
        delta: Delta,
        join: impl Fn(&mut Delta, &Delta) -> bool,
    ) {
        let TxMemory { delta_pages, deltas, .. } = &mut self.memory;
        let new = deltas.len();
        let Some(page) = delta_pages.iter().find(|page| page.buffer.place == buffer.place) else {
            let (buffer, runs) = (Arc::clone(buffer), 0..0);
            delta_pages.push(DeltaPage { buffer, runs, saved_at: 0, first: new });
            deltas.push((delta, new));
            return;
        };
        let mut at = page.first;
        loop {
            let (known, next) = &mut deltas[at];
            if join(known, &delta) {
                return;
            }
            if *next == at {
                *next = new;
                break;
            }
            at = *next;
        }
        deltas.push((delta, new));
    }

    pub(crate) fn set_bits(
        &mut self,
        buffer: &Arc<PageBuffer>,
        first: u32,
        count: u32,
        is_set: bool,
    ) {
        self.delta(buffer, Delta::Bits { first, count, is_set }, |_, _| false);
    }

    pub(crate) fn add_u32(&mut self, buffer: &Arc<PageBuffer>, offset: usize, delta: i64) {
        self.delta(buffer, Delta::AddU32 { offset, delta }, Delta::absorb);
    }

    pub(crate) fn add_u64(&mut self, buffer: &Arc<PageBuffer>, offset: usize, delta: i64) {
        self.delta(buffer, Delta::AddU64 { offset, delta }, Delta::absorb);
    }

    /// Sets bytes of a shared page. The transaction that ends last wins.
    pub(crate) fn put(&mut self, buffer: &Arc<PageBuffer>, offset: usize, bytes: &[u8]) {
        let at = self.memory.bytes.len();
        self.memory.bytes.extend_from_slice(bytes);
        self.delta(buffer, Delta::Put { offset, bytes: at..at + bytes.len() }, |_, _| false);
    }

    pub(crate) fn add_log_data(&mut self, place: Place, owner: LogDataOwner, data: SharedBytes) {
        self.log_data.push(LogData { place, owner, data });
    }

    pub(crate) fn depends_on_data(&mut self, sequence: u64) {
        self.data_sequence = self.data_sequence.max(sequence);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.memory.windows.is_empty() && self.memory.delta_pages.is_empty()
    }

    /// Returns an upper bound of the number of pages touched.
    pub(crate) fn page_count(&self) -> usize {
        self.memory.windows.len() + self.memory.delta_pages.len()
    }
}

const WORD_BYTES: usize = 8;
const LINE_BYTES: usize = 64;

struct RunFinder<'m> {
    runs: &'m mut Vec<(usize, usize)>,
    first: usize,
    gap_bytes: usize,
}

impl<'m> RunFinder<'m> {
    fn new(runs: &'m mut Vec<(usize, usize)>, old: &[u8]) -> RunFinder<'m> {
        let first = runs.len();
        let gap_bytes = if is_zero(old) { RUN_GAP_BYTES_OF_ZEROS } else { RUN_GAP_BYTES };
        RunFinder { runs, first, gap_bytes }
    }

    /// Adds the runs in which `new` differs from `old`. `offset` is the start in the page.
    fn compare(&mut self, old: &[u8], new: &[u8], offset: usize) {
        let (old_lines, old_rest) = old.as_chunks::<LINE_BYTES>();
        let (new_lines, new_rest) = new[..old.len()].as_chunks::<LINE_BYTES>();
        let mut at = offset;
        for (old, new) in old_lines.iter().zip(new_lines) {
            if !is_same_line(old, new) {
                self.compare_words(old, new, at);
            }
            at += LINE_BYTES;
        }
        self.compare_words(old_rest, new_rest, at);
    }

    fn compare_words(&mut self, old: &[u8], new: &[u8], offset: usize) {
        let (old, new) = (old.as_chunks::<WORD_BYTES>().0, new.as_chunks::<WORD_BYTES>().0);
        let mut at = offset;
        for (old, new) in old.iter().zip(new) {
            if let Some((start, end)) = differing_bytes(differing_bits(*old, *new)) {
                self.add(at + start, at + end);
            }
            at += WORD_BYTES;
        }
    }

    fn add(&mut self, start: usize, end: usize) {
        match self.runs[self.first..].last_mut() {
            Some((_, last_end)) if start <= *last_end + self.gap_bytes => *last_end = end,
            _ => self.runs.push((start, end)),
        }
    }
}

/// Branch-free, so that the compiler uses a few wide instructions.
fn is_same_line(old: &[u8; LINE_BYTES], new: &[u8; LINE_BYTES]) -> bool {
    let (old, new) = (old.as_chunks::<WORD_BYTES>().0, new.as_chunks::<WORD_BYTES>().0);
    let words = old.iter().zip(new);
    words.fold(0, |any, (old, new)| any | differing_bits(*old, *new)) == 0
}

fn differing_bits(old: [u8; WORD_BYTES], new: [u8; WORD_BYTES]) -> u64 {
    u64::from_le_bytes(old) ^ u64::from_le_bytes(new)
}

fn differing_bytes(bits: u64) -> Option<(usize, usize)> {
    let byte_of = |bit: u32| index_wide(u64::from(bit / u8::BITS));
    (bits != 0).then(|| (byte_of(bits.trailing_zeros()), byte_of(63 - bits.leading_zeros()) + 1))
}

/// Joins ranges that touch, in front of the slice; returns their count.
fn join(ranges: &mut [(usize, usize)]) -> usize {
    ranges.sort_unstable();
    let mut count = 0;
    for index in 0..ranges.len() {
        let (start, end) = ranges[index];
        match ranges[..count].last_mut() {
            Some((_, last_end)) if start <= *last_end => *last_end = end.max(*last_end),
            _ => {
                ranges[count] = (start, end);
                count += 1;
            }
        }
    }
    count
}

#[cfg(test)]
mod tests;
