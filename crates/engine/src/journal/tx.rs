//! A transaction: an ordered list of page updates, built in private and applied at its end.
//!
//! While a transaction is built it sees its own changes and nobody else does, so it may fail or be
//! dropped at any moment before its end at no cost. At its end all its updates are declared,
//! logged and applied in one step that neither waits nor fails.
//!
//! Two sorts of update serve two sorts of page:
//!
//! - *Bytes*: the transaction works on a copy of a *window* of the page ([`Tx::add_edit`]); what
//!   differs at the end is the update. The bytes that differ must belong to the caller: its vnode's
//!   anode slot, its directory's pages, its map pages.
//! - *Deltas*: pages that everyone changes (bitmaps, counts) get operations instead of bytes, which
//!   are applied to the page as it is at the end: [`Tx::set_bits`], [`Tx::add_u32`],
//!   [`Tx::add_u64`], [`Tx::put`].
//!
//! At the end the bytes of a page are changed where they are, unless somebody still reads them.

use std::ops::Range;
use std::sync::Arc;

use format::bytes::is_zero;
use format::ids::{Epoch, Place};
use format::journal::{
    LogDataOwner, PAGE_UPDATE_BYTES, PageRuns, RECORD_HEAD_BYTES, RECORD_UNIT_BYTES, RUN_HEAD_BYTES,
};
use format::page::{PAGE_BYTES, PageBytes, STAMP_BYTES, read_u32, read_u64, write_u32, write_u64};
use storage::device::{AlignedBuffer, SharedBytes};

use crate::buffer::{Buffer, PageRef, page_of_mut};
use crate::convert::index_wide;
use crate::gate::Reserves;

use super::Reservation;

/// So many equal bytes do not split a run of changed bytes: a run's head and the bytes kept twice
/// cost as much.
const RUN_GAP_BYTES: usize = 4;
/// The same in a window that was all zero, of which bytes are kept once.
const RUN_GAP_BYTES_OF_ZEROS: usize = 8;

/// Most pages that one transaction may touch; long operations are chains of transactions.
pub(crate) const TX_PAGES_MAX: usize = 512;

/// Windows that a transaction has of one page before it takes all of it: many small ones cost more.
const PAGE_WINDOWS_MAX: usize = 6;

/// Most bytes of working memory that outlive a transaction, for the next one.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// A window of a page that the transaction works on.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) place: Place,
    /// The page in memory; `None` until the end: it is new, and logged whole.
    pub(super) buffer: Option<Arc<Buffer>>,
    /// The page as it was when its bytes were copied; given up once they were compared.
    base: Option<PageRef>,
    /// Which bytes of the page.
    range: Range<usize>,
    /// Where they are in [`Memory::bytes`].
    at: usize,
    /// Which of [`Memory::runs`] are its changed bytes.
    runs: Range<usize>,
    /// Whether nothing was in this place.
    pub(super) is_new: bool,
}

impl Window {
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

/// A page that everyone changes, on which the transaction has operations.
#[derive(Debug)]
pub(super) struct DeltaPage {
    pub(super) buffer: Arc<Buffer>,
    /// Which of [`Memory::runs`] its operations change.
    runs: Range<usize>,
    /// Where in [`Memory::bytes`] the bytes of these runs are as they were.
    saved_at: usize,
    /// Its first operation, in [`Memory::deltas`].
    first: usize,
}

/// One operation on a page that everyone changes.
#[derive(Debug)]
enum Delta {
    /// Sets or clears `count` bits of a bitmap page from `first` on.
    Bits { first: u32, count: u32, is_set: bool },
    /// Adds to a 32-bit count.
    AddU32 { offset: usize, delta: i64 },
    /// Adds to a 64-bit count.
    AddU64 { offset: usize, delta: i64 },
    /// Sets bytes, which are in [`Memory::bytes`].
    Put { offset: usize, bytes: Range<usize> },
}

impl Delta {
    /// Returns the range of bytes that the operation may change.
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

    /// Makes `other` part of this operation, if both add to the same count.
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

    /// Applies the operation; `None` if it can't be so: a bit is set that is set, cleared that is
    /// clear, or a count leaves its bounds. Either a damaged map has misled the allocator, or it
    /// has given a place out twice. `memory` has the bytes to put.
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

/// Inline log data: bytes of a file in the log, with the transaction that points to them.
#[derive(Debug)]
pub(super) struct LogData {
    pub(super) place: Place,
    pub(super) owner: LogDataOwner,
    pub(super) data: SharedBytes,
}

/// What a transaction works in. One serves many, one after the other, so that none of them has to
/// ask for memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) windows: Vec<Window>,
    pub(super) delta_pages: Vec<DeltaPage>,
    /// Operations, each with the position of the next one on its page, or its own.
    deltas: Vec<(Delta, usize)>,
    /// Bytes of windows, bytes to put, and bytes as they were.
    bytes: Vec<u8>,
    /// Ranges of pages.
    runs: Vec<(usize, usize)>,
    /// For the classes of its pages.
    pub(super) classes: Vec<u64>,
}

impl Memory {
    /// Forgets all but the room that it has, if that is not too much.
    pub(super) fn clear(&mut self) {
        if self.bytes.capacity() > SPARE_BYTES_MAX {
            *self = Memory::default();
            return;
        }
        self.windows.clear();
        self.delta_pages.clear();
        self.deltas.clear();
        self.bytes.clear();
        self.runs.clear();
        self.classes.clear();
    }

    /// Finds which bytes of each window differ from what was copied, and lets go of that. Then
    /// windows of one page are side by side.
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

    /// Applies the operations to the pages that everyone changes. If one can't be so, none was.
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

    /// Finds which runs of delta page `index` change.
    fn plan_runs(&mut self, index: usize) {
        let start = self.runs.len();
        let own = deltas_of(&self.deltas, &self.delta_pages[index]);
        self.runs.extend(own.map(Delta::range));
        let end = start + join(&mut self.runs[start..]);
        self.runs.truncate(end);
        self.delta_pages[index].runs = start..end;
        self.delta_pages[index].saved_at = self.bytes.len();
    }

    /// Keeps the bytes that change, and changes them.
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

    /// Returns the runs of a page to which deltas were applied: where they begin, and their bytes
    /// as they were.
    fn saved_runs(&self, page: &DeltaPage) -> impl Iterator<Item = (usize, &[u8])> {
        let mut saved = page.saved_at;
        self.runs[page.runs.clone()].iter().map(move |&(start, end)| {
            let old = &self.bytes[saved..saved + (end - start)];
            saved += end - start;
            (start, old)
        })
    }

    /// Logs the runs of a page to which its deltas were applied.
    pub(super) fn log_deltas(&self, log: &mut PageRuns<'_>, page: &DeltaPage, current: &PageBytes) {
        for (start, old) in self.saved_runs(page) {
            log.put(start, old, &current[start..start + old.len()]);
        }
    }

    /// Logs what changes in a window, and changes it in `current`.
    pub(super) fn log_and_apply(
        &self,
        log: &mut PageRuns<'_>,
        window: &Window,
        current: &mut PageBytes,
    ) {
        for &(start, end) in &self.runs[window.runs.clone()] {
            let new = &self.bytes[window.bytes_at(&(start..end))];
            log.put(start, &current[start..end], new);
            current[start..end].copy_from_slice(new);
        }
    }

    /// Returns the content of a new page.
    pub(super) fn new_page(&self, window: &Window) -> &PageBytes {
        self.bytes[window.at..].first_chunk().expect("a new page is a whole one")
    }

    /// Returns how many pages all this changes.
    pub(super) fn page_count(&self) -> usize {
        self.windows.chunk_by(|a, b| a.place == b.place).count() + self.delta_pages.len()
    }

    /// Returns the most bytes that a record of all this takes.
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

/// Returns the pages of windows, which are side by side where they are of one page, and those of
/// deltas.
pub(super) fn buffers_of<'m>(
    windows: &'m [Window],
    delta_pages: &'m [DeltaPage],
) -> impl Iterator<Item = &'m Arc<Buffer>> {
    let pages = windows.chunk_by(|a, b| a.place == b.place);
    let of_windows = pages.filter_map(|windows| windows.first()?.buffer.as_ref());
    of_windows.chain(delta_pages.iter().map(|page| &page.buffer))
}

/// Returns the operations on `page`, in their order.
fn deltas_of<'m>(
    deltas: &'m [(Delta, usize)],
    page: &DeltaPage,
) -> impl Iterator<Item = &'m Delta> {
    let follow = |at: &usize| deltas.get(*at).map(|(_, next)| *next).filter(|next| next != at);
    let positions = std::iter::successors(Some(page.first), follow);
    positions.filter_map(|at| deltas.get(at)).map(|(delta, _)| delta)
}

/// A transaction that is being built.
#[derive(Debug)]
pub(crate) struct Tx {
    /// Number in the pool's count of transactions.
    pub(crate) epoch: Epoch,
    /// What `begin` took for it.
    pub(super) reservation: Reservation,
    pub(super) memory: Memory,
    pub(super) log_data: Vec<LogData>,
    /// The class may commit only after this data write is durable.
    pub(super) data_sequence: u64,
    /// Pages that were at home before, between which content moved.
    pub(super) moved: Vec<Place>,
    /// Of one that has a part of the log reserved.
    _reserves: Option<Reserves>,
}

/// What a transaction has of a range of a page.
pub(crate) enum OwnRange<'t> {
    /// All of it is as everyone sees it.
    Nothing,
    /// All of it is the transaction's.
    All(&'t [u8]),
    /// It has windows in it.
    Part,
}

/// Where a transaction has bytes of its own version of a page.
pub(crate) struct OwnAt(Range<usize>);

/// A page as a transaction has changed it.
pub(crate) enum Own<'t> {
    /// It has a copy of all of it.
    Whole(&'t PageBytes),
    /// It has windows of it: a copy of the page with these.
    Patched(PageRef),
}

impl Tx {
    /// Starts a transaction that works in `memory`, which is clear.
    pub(super) fn new(epoch: Epoch, reservation: Reservation, memory: Memory) -> Tx {
        let (log_data, moved) = (Vec::new(), Vec::new());
        let _reserves = (reservation.log_bytes > 0).then(Reserves::new);
        Tx { epoch, reservation, memory, log_data, data_sequence: 0, moved, _reserves }
    }

    /// Content moves from page `source` to page `target`: neither may be at home without the
    /// other, or a crash that loses the log too would lose or double a name.
    pub(crate) fn moves(&mut self, source: Place, target: Place) {
        if source != target {
            for place in [source, target] {
                if !self.moved.contains(&place) {
                    self.moved.push(place);
                }
            }
        }
    }

    /// Content moves, or what leads to it changes, among `places`: as [`Tx::moves`]. Pages that
    /// this transaction makes go home before all others anyway. Returns whether the reservation,
    /// less `kept`, allows it; if not, nothing was noted.
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

    fn windows_of(&self, place: Place) -> impl Iterator<Item = &Window> {
        self.memory.windows.iter().filter(move |window| window.place == place)
    }

    /// Returns this transaction's own version of the page at `place`, if it has one.
    pub(crate) fn view(&self, place: Place) -> Option<Own<'_>> {
        let first = self.windows_of(place).next()?;
        if first.range == (0..PAGE_BYTES) {
            let bytes = self.memory.bytes[first.at..].first_chunk();
            return Some(Own::Whole(bytes.expect("it is a whole page")));
        }
        Some(Own::Patched(Arc::new(self.patched(place)?)))
    }

    /// Returns what this transaction has of `range` of the page at `place`.
    pub(crate) fn peek(&self, place: Place, range: &Range<usize>) -> OwnRange<'_> {
        match self.windows_of(place).find(|window| window.meets(range)) {
            None => OwnRange::Nothing,
            Some(own) if own.holds(range) => OwnRange::All(&self.memory.bytes[own.bytes_at(range)]),
            Some(_) => OwnRange::Part,
        }
    }

    /// Returns a copy of the page at `place` as it is now, of which the transaction has windows,
    /// with these.
    fn patched(&self, place: Place) -> Option<AlignedBuffer> {
        let (_, now) = self.page_of_window(place)?;
        Some(self.with_windows(place, &now))
    }

    /// Returns a copy of `page`, which is at `place`, with the windows that the transaction has of
    /// it.
    fn with_windows(&self, place: Place, page: &AlignedBuffer) -> AlignedBuffer {
        let mut page = AlignedBuffer::clone(page);
        for window in self.windows_of(place) {
            let own = &self.memory.bytes[window.bytes_at(&window.range)];
            page[window.range.clone()].copy_from_slice(own);
        }
        page
    }

    /// Takes `range` of a page with its bytes as they are, of which this transaction has no window
    /// yet that meets it; returns its own version, to change: only bytes that belong to the caller.
    pub(crate) fn add_edit(
        &mut self,
        (buffer, base): (Arc<Buffer>, PageRef),
        range: Range<usize>,
    ) -> &mut [u8] {
        assert!(range.start.is_multiple_of(WORD_BYTES) && range.len().is_multiple_of(WORD_BYTES));
        let (place, at) = (buffer.place, self.memory.bytes.len());
        self.memory.bytes.extend_from_slice(&base[range.clone()]);
        let (buffer, base) = (Some(buffer), Some(base));
        self.push_window(Window { place, buffer, base, range, at, runs: 0..0, is_new: false });
        &mut self.memory.bytes[at..]
    }

    /// Returns where the transaction has `range` of its own version of the page at `place`, if it
    /// has one that meets it, or has so many that it takes the whole page.
    pub(crate) fn own_range(&mut self, place: Place, range: &Range<usize>) -> Option<OwnAt> {
        let (mut apart, mut meets) = (0, false);
        for own in self.windows_of(place) {
            if own.holds(range) {
                return Some(OwnAt(own.bytes_at(range)));
            }
            meets |= own.meets(range);
            apart += 1;
        }
        if !meets && apart < PAGE_WINDOWS_MAX {
            return None;
        }
        let at = self.make_whole(place)?;
        Some(OwnAt(at + range.start..at + range.end))
    }

    /// Returns the page of which the transaction has a window, as it is now: another transaction
    /// may have changed what is outside of the window since that was copied, and the caller may
    /// have come to own that only then.
    pub(crate) fn page_of_window(&self, place: Place) -> Option<(Arc<Buffer>, PageRef)> {
        let buffer = self.windows_of(place).next()?.buffer.clone()?;
        let now = buffer.bytes();
        Some((buffer, now))
    }

    /// Whether the transaction has any of the page at `place`.
    pub(crate) fn has_page(&self, place: Place) -> bool {
        self.windows_of(place).next().is_some()
    }

    /// Returns what [`Tx::own_range`] found, to change.
    pub(crate) fn own_bytes(&mut self, OwnAt(at): OwnAt) -> &mut [u8] {
        &mut self.memory.bytes[at]
    }

    /// Makes one window of the windows of the page at `place`: all of it, the rest as it is now.
    /// Returns where that is.
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

    /// Returns this transaction's own version of the page at `place`, if it has one, to change.
    pub(crate) fn own_mut(&mut self, place: Place) -> Option<&mut PageBytes> {
        let at = self.own_range(place, &(0..PAGE_BYTES))?;
        self.own_bytes(at).first_chunk_mut()
    }

    /// Returns a new page at `place`, zero, to fill; it is logged whole. `None` if the transaction
    /// has a page there: who says that the place is free is wrong.
    pub(crate) fn new_page(&mut self, place: Place) -> Option<&mut PageBytes> {
        if self.windows_of(place).next().is_some() {
            return None;
        }
        let at = self.memory.bytes.len();
        self.memory.bytes.resize(at + PAGE_BYTES, 0);
        let (range, runs) = (0..PAGE_BYTES, 0..0);
        let (buffer, base) = (None, None);
        self.push_window(Window { place, buffer, base, range, at, runs, is_new: true });
        self.memory.bytes[at..].first_chunk_mut()
    }

    fn push_window(&mut self, window: Window) {
        assert!(self.memory.windows.len() < TX_PAGES_MAX, "a transaction touches too many pages");
        self.memory.windows.push(window);
    }

    /// Adds an operation to those on the page of `buffer`, unless `join` makes it part of one.
    fn delta(
        &mut self,
        buffer: &Arc<Buffer>,
        delta: Delta,
        join: impl Fn(&mut Delta, &Delta) -> bool,
    ) {
        let Memory { delta_pages, deltas, .. } = &mut self.memory;
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

    /// Sets or clears `count` bits of a bitmap page from `first` on.
    pub(crate) fn set_bits(&mut self, buffer: &Arc<Buffer>, first: u32, count: u32, is_set: bool) {
        self.delta(buffer, Delta::Bits { first, count, is_set }, |_, _| false);
    }

    /// Adds `delta` to the 32-bit count at `offset`.
    pub(crate) fn add_u32(&mut self, buffer: &Arc<Buffer>, offset: usize, delta: i64) {
        self.delta(buffer, Delta::AddU32 { offset, delta }, Delta::absorb);
    }

    /// Adds `delta` to the 64-bit count at `offset`.
    pub(crate) fn add_u64(&mut self, buffer: &Arc<Buffer>, offset: usize, delta: i64) {
        self.delta(buffer, Delta::AddU64 { offset, delta }, Delta::absorb);
    }

    /// Sets bytes of a page that everyone changes; the last to end decides.
    pub(crate) fn put(&mut self, buffer: &Arc<Buffer>, offset: usize, bytes: &[u8]) {
        let at = self.memory.bytes.len();
        self.memory.bytes.extend_from_slice(bytes);
        self.delta(buffer, Delta::Put { offset, bytes: at..at + bytes.len() }, |_, _| false);
    }

    /// Puts `data`, the block of `owner` whose home is `place`, into the log with this
    /// transaction.
    pub(crate) fn add_log_data(&mut self, place: Place, owner: LogDataOwner, data: SharedBytes) {
        self.log_data.push(LogData { place, owner, data });
    }

    /// The transaction points to data of this write: it may commit only after it is durable.
    pub(crate) fn depends_on_data(&mut self, sequence: u64) {
        self.data_sequence = self.data_sequence.max(sequence);
    }

    /// Whether the transaction would change nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.windows.is_empty() && self.memory.delta_pages.is_empty()
    }

    /// How many pages the transaction touches, at most.
    pub(crate) fn page_count(&self) -> usize {
        self.memory.windows.len() + self.memory.delta_pages.len()
    }
}

/// Bytes in which what differs is looked for.
const WORD_BYTES: usize = 8;
/// Bytes of a window that are compared at once, in a few instructions: most are as they were.
const LINE_BYTES: usize = 64;

/// Finds the runs of changed bytes of one window.
struct RunFinder<'m> {
    /// All runs; those from `first` on are of this window.
    runs: &'m mut Vec<(usize, usize)>,
    first: usize,
    /// Most equal bytes that do not split a run.
    gap_bytes: usize,
}

impl<'m> RunFinder<'m> {
    /// Returns a finder that adds to `runs` those of a window that was `old`.
    fn new(runs: &'m mut Vec<(usize, usize)>, old: &[u8]) -> RunFinder<'m> {
        let first = runs.len();
        let gap_bytes = if is_zero(old) { RUN_GAP_BYTES_OF_ZEROS } else { RUN_GAP_BYTES };
        RunFinder { runs, first, gap_bytes }
    }

    /// Adds the runs in which `new` differs from `old`, which begins at `offset` of its page: whole
    /// words.
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

/// Whether two lines are the same: without a branch, so that it is a few wide instructions.
fn is_same_line(old: &[u8; LINE_BYTES], new: &[u8; LINE_BYTES]) -> bool {
    let (old, new) = (old.as_chunks::<WORD_BYTES>().0, new.as_chunks::<WORD_BYTES>().0);
    let words = old.iter().zip(new);
    words.fold(0, |any, (old, new)| any | differing_bits(*old, *new)) == 0
}

fn differing_bits(old: [u8; WORD_BYTES], new: [u8; WORD_BYTES]) -> u64 {
    u64::from_le_bytes(old) ^ u64::from_le_bytes(new)
}

/// Returns the range from the first byte to the last that has one of `bits`.
fn differing_bytes(bits: u64) -> Option<(usize, usize)> {
    let byte_of = |bit: u32| index_wide(u64::from(bit / u8::BITS));
    (bits != 0).then(|| (byte_of(bits.trailing_zeros()), byte_of(63 - bits.leading_zeros()) + 1))
}

/// Joins ranges that touch, so that each byte is logged once; returns how many are left, in front.
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
