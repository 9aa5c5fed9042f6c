//! A transaction: an ordered list of page updates, built in private and applied at its end.
//!
//! While a transaction is built it sees its own changes and nobody else does, so it may fail or be
//! dropped at any moment before its end at no cost. At its end all its updates are declared,
//! logged and applied in one step that neither waits nor fails.
//!
//! Two sorts of update serve two sorts of page:
//!
//! - *Bytes*: the transaction works on a copy of the page ([`Tx::add_edit`]); what differs at the
//!   end is the update. The bytes that differ must belong to the caller: its vnode's anode slot,
//!   its directory's pages, its map pages.
//! - *Deltas*: pages that everyone changes (bitmaps, counts) get operations instead of bytes, which
//!   are applied to the page as it is at the end: [`Tx::set_bits`], [`Tx::add_u32`],
//!   [`Tx::add_u64`], [`Tx::put`].

use std::ops::Range;
use std::sync::Arc;

use format::ids::{Epoch, Place};
use format::journal::RideOwner;
use format::page::{PAGE_BYTES, PageBytes, read_u32, read_u64, write_u32, write_u64};
use storage::device::{AlignedBuffer, SharedBytes};

use crate::buffer::{Buffer, PageRef, page_of, page_of_mut};
use crate::convert::index_wide;

use super::Reservation;

/// Runs of equal bytes shorter than this do not split a run of changed bytes: a run's head and the
/// bytes kept twice cost as much.
const RUN_GAP_BYTES: usize = 4;

/// Most pages that one transaction may touch; long operations are chains of transactions.
pub(crate) const TX_PAGES_MAX: usize = 512;

/// Pages that a transaction touches as a rule.
const PAGES_USUAL: usize = 8;
/// Runs of changed bytes that a page has as a rule.
const RUNS_USUAL: usize = 16;

/// A page that the transaction works on.
#[derive(Debug)]
pub(super) struct EditedPage {
    pub(super) place: Place,
    /// The page that was copied; `None`: the page is new and logged whole.
    pub(super) base: Option<(Arc<Buffer>, PageRef)>,
    pub(super) work: AlignedBuffer,
    /// The bytes that were given out to change: no others differ from the page that was copied.
    pub(super) touched: Range<usize>,
}

impl EditedPage {
    fn touch(&mut self, range: Range<usize>) -> &mut [u8] {
        self.touched.start = self.touched.start.min(range.start);
        self.touched.end = self.touched.end.max(range.end);
        &mut self.work[range]
    }

    /// Returns the runs of bytes that the transaction has changed.
    pub(super) fn runs(&self) -> Vec<(usize, usize)> {
        match &self.base {
            Some((_, base)) => differing_runs(base, &self.work, self.touched.clone()),
            None => Vec::new(),
        }
    }
}

/// Operations on a page that everyone changes.
#[derive(Debug)]
pub(super) struct DeltaPage {
    pub(super) buffer: Arc<Buffer>,
    pub(super) deltas: Vec<Delta>,
}

/// One operation on a page that everyone changes.
#[derive(Debug)]
pub(super) enum Delta {
    /// Sets or clears `count` bits of a bitmap page from `first` on.
    Bits { first: u32, count: u32, is_set: bool },
    /// Adds to a 32-bit count.
    AddU32 { offset: usize, delta: i64 },
    /// Adds to a 64-bit count.
    AddU64 { offset: usize, delta: i64 },
    /// Sets bytes.
    Put { offset: usize, bytes: Vec<u8> },
}

impl Delta {
    /// Applies the operation; returns the range of bytes that it may have changed, or `None` if it
    /// can't be so: a bit is set that is set, cleared that is clear, or a count leaves its bounds.
    /// Either a damaged map has misled the allocator, or it has given a place out twice.
    #[must_use]
    pub(super) fn apply(&self, page: &mut PageBytes) -> Option<(usize, usize)> {
        match self {
            Delta::Bits { first, count, is_set } => {
                for bit in *first..first + count {
                    if format::bitmap::is_set(page, bit) == *is_set {
                        return None;
                    }
                    format::bitmap::set(page, bit, *is_set);
                }
                let (start, _) = format::bitmap::position(*first);
                let (last, _) = format::bitmap::position(first + count - 1);
                Some((start, last + 1))
            }
            Delta::AddU32 { offset, delta } => {
                let sum = i64::from(read_u32(page, *offset)) + delta;
                write_u32(page, *offset, u32::try_from(sum).ok()?);
                Some((*offset, offset + 4))
            }
            Delta::AddU64 { offset, delta } => {
                let sum = read_u64(page, *offset).checked_add_signed(*delta);
                write_u64(page, *offset, sum?);
                Some((*offset, offset + 8))
            }
            Delta::Put { offset, bytes } => {
                page[*offset..offset + bytes.len()].copy_from_slice(bytes);
                Some((*offset, offset + bytes.len()))
            }
        }
    }
}

/// Bytes of a file that ride in the log with the transaction that points to them.
#[derive(Debug)]
pub(super) struct RidingBytes {
    pub(super) place: Place,
    pub(super) owner: RideOwner,
    pub(super) data: SharedBytes,
}

/// A transaction that is being built.
#[derive(Debug)]
pub(crate) struct Tx {
    /// Number in the pool's count of transactions.
    pub(crate) epoch: Epoch,
    /// What `begin` took for it.
    pub(super) reservation: Reservation,
    pub(super) edited: Vec<EditedPage>,
    pub(super) deltas: Vec<DeltaPage>,
    pub(super) rides: Vec<RidingBytes>,
    /// The class may commit only after this data write is durable.
    pub(super) data_sequence: u64,
    /// Pages that were at home before, between which content moved.
    pub(super) moved: Vec<Place>,
}

impl Tx {
    pub(super) fn new(epoch: Epoch, reservation: Reservation) -> Tx {
        Tx {
            epoch,
            reservation,
            edited: Vec::with_capacity(PAGES_USUAL),
            deltas: Vec::with_capacity(PAGES_USUAL),
            rides: Vec::new(),
            data_sequence: 0,
            moved: Vec::new(),
        }
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
        let is_new = |place: &Place| {
            self.edited.iter().any(|page| page.place == *place && page.base.is_none())
        };
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

    /// Returns this transaction's own version of the page at `place`, if it has one.
    pub(crate) fn view(&self, place: Place) -> Option<&PageBytes> {
        let page = self.edited.iter().find(|page| page.place == place)?;
        Some(page_of(&page.work))
    }

    /// Takes a page with its bytes as they are, of which this transaction has no version yet;
    /// returns `range` of its own version, to change: only bytes that belong to the caller.
    pub(crate) fn add_edit(
        &mut self,
        base: (Arc<Buffer>, PageRef),
        range: Range<usize>,
    ) -> &mut [u8] {
        let (place, work) = (base.0.place, AlignedBuffer::clone(&base.1));
        let touched = range.clone();
        let position = self.push_edited(EditedPage { place, base: Some(base), work, touched });
        &mut self.edited[position].work[range]
    }

    /// Returns `range` of this transaction's own version of the page at `place`, if it has one, to
    /// change.
    pub(crate) fn own_range_mut(&mut self, place: Place, range: Range<usize>) -> Option<&mut [u8]> {
        let page = self.edited.iter_mut().find(|page| page.place == place)?;
        Some(page.touch(range))
    }

    /// Returns this transaction's own version of the page at `place`, if it has one, to change.
    pub(crate) fn own_mut(&mut self, place: Place) -> Option<&mut PageBytes> {
        let page = self.edited.iter_mut().find(|page| page.place == place)?;
        page.touched = 0..PAGE_BYTES;
        Some(page_of_mut(&mut page.work))
    }

    /// Returns a new page at `place`, zero, to fill; it is logged whole. `None` if the transaction
    /// has a page there: who says that the place is free is wrong.
    pub(crate) fn new_page(&mut self, place: Place) -> Option<&mut PageBytes> {
        if self.view(place).is_some() {
            return None;
        }
        let work = AlignedBuffer::zeroed(PAGE_BYTES);
        let page = EditedPage { place, base: None, work, touched: 0..PAGE_BYTES };
        let position = self.push_edited(page);
        Some(page_of_mut(&mut self.edited[position].work))
    }

    fn push_edited(&mut self, page: EditedPage) -> usize {
        assert!(self.edited.len() < TX_PAGES_MAX, "a transaction touches too many pages");
        self.edited.push(page);
        self.edited.len() - 1
    }

    fn delta(&mut self, buffer: &Arc<Buffer>, delta: Delta) {
        match self.deltas.iter_mut().find(|page| page.buffer.place == buffer.place) {
            Some(page) => page.deltas.push(delta),
            None => self.deltas.push(DeltaPage { buffer: Arc::clone(buffer), deltas: vec![delta] }),
        }
    }

    /// Sets or clears `count` bits of a bitmap page from `first` on.
    pub(crate) fn set_bits(&mut self, buffer: &Arc<Buffer>, first: u32, count: u32, is_set: bool) {
        self.delta(buffer, Delta::Bits { first, count, is_set });
    }

    /// Adds `delta` to the 32-bit count at `offset`.
    pub(crate) fn add_u32(&mut self, buffer: &Arc<Buffer>, offset: usize, delta: i64) {
        let known = self.deltas.iter_mut().find(|page| page.buffer.place == buffer.place);
        for known in known.into_iter().flat_map(|page| page.deltas.iter_mut()) {
            if let Delta::AddU32 { offset: at, delta: sum } = known
                && *at == offset
            {
                *sum += delta;
                return;
            }
        }
        self.delta(buffer, Delta::AddU32 { offset, delta });
    }

    /// Adds `delta` to the 64-bit count at `offset`.
    pub(crate) fn add_u64(&mut self, buffer: &Arc<Buffer>, offset: usize, delta: i64) {
        let known = self.deltas.iter_mut().find(|page| page.buffer.place == buffer.place);
        for known in known.into_iter().flat_map(|page| page.deltas.iter_mut()) {
            if let Delta::AddU64 { offset: at, delta: sum } = known
                && *at == offset
            {
                *sum += delta;
                return;
            }
        }
        self.delta(buffer, Delta::AddU64 { offset, delta });
    }

    /// Sets bytes of a page that everyone changes; the last to end decides.
    pub(crate) fn put(&mut self, buffer: &Arc<Buffer>, offset: usize, bytes: &[u8]) {
        self.delta(buffer, Delta::Put { offset, bytes: bytes.to_vec() });
    }

    /// Lets `data`, the block of `owner` whose home is `place`, ride in the log with this
    /// transaction.
    pub(crate) fn ride(&mut self, place: Place, owner: RideOwner, data: SharedBytes) {
        self.rides.push(RidingBytes { place, owner, data });
    }

    /// The transaction points to data of this write: it may commit only after it is durable.
    pub(crate) fn depends_on_data(&mut self, sequence: u64) {
        self.data_sequence = self.data_sequence.max(sequence);
    }

    /// Whether the transaction would change nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.edited.is_empty() && self.deltas.is_empty()
    }

    /// How many pages the transaction touches.
    pub(crate) fn page_count(&self) -> usize {
        self.edited.len() + self.deltas.len()
    }
}

/// Bytes of a page that are compared at once, by the system's own comparison of memory: most of a
/// page is as it was.
const SPAN_BYTES: usize = 512;
/// Bytes of a span that are compared at once, in a few instructions.
const LINE_BYTES: usize = 64;
/// Bytes in which what differs is looked for.
const WORD_BYTES: usize = 8;

/// Returns the runs of bytes in which `old` and `new` differ, inside `range`.
fn differing_runs(old: &[u8], new: &[u8], range: Range<usize>) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::with_capacity(RUNS_USUAL);
    let first = range.start / SPAN_BYTES * SPAN_BYTES;
    let end = range.end.next_multiple_of(SPAN_BYTES);
    let (old, new) = (old[first..end].chunks(SPAN_BYTES), new[first..end].chunks(SPAN_BYTES));
    for ((old, new), start) in old.zip(new).zip((first..).step_by(SPAN_BYTES)) {
        if old != new {
            add_runs_of_span(&mut runs, old, new, start);
        }
    }
    runs
}

/// Adds the runs in which two versions of the span at `start` differ.
fn add_runs_of_span(runs: &mut Vec<(usize, usize)>, old: &[u8], new: &[u8], start: usize) {
    let lines = old.as_chunks::<LINE_BYTES>().0.iter().zip(new.as_chunks::<LINE_BYTES>().0);
    for ((old, new), start) in lines.zip((start..).step_by(LINE_BYTES)) {
        if old == new {
            continue;
        }
        let words = old.as_chunks::<WORD_BYTES>().0.iter().zip(new.as_chunks::<WORD_BYTES>().0);
        for ((old, new), start) in words.zip((start..).step_by(WORD_BYTES)) {
            if let Some((first, end)) = differing_bytes(*old, *new) {
                add_to_runs(runs, start + first, start + end);
            }
        }
    }
}

/// Returns the range from the first byte to the last in which two words differ.
fn differing_bytes(old: [u8; WORD_BYTES], new: [u8; WORD_BYTES]) -> Option<(usize, usize)> {
    let bits = u64::from_le_bytes(old) ^ u64::from_le_bytes(new);
    let byte_of = |bit: u32| index_wide(u64::from(bit / u8::BITS));
    (bits != 0).then(|| (byte_of(bits.trailing_zeros()), byte_of(63 - bits.leading_zeros()) + 1))
}

fn add_to_runs(runs: &mut Vec<(usize, usize)>, start: usize, end: usize) {
    match runs.last_mut() {
        Some((_, last_end)) if start <= *last_end + RUN_GAP_BYTES => *last_end = end,
        _ => runs.push((start, end)),
    }
}

/// Joins ranges that touch, so that each byte is logged once.
pub(super) fn joined(mut ranges: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    ranges.sort_unstable();
    let mut joined: Vec<(usize, usize)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match joined.last_mut() {
            Some((_, last_end)) if start <= *last_end => *last_end = end.max(*last_end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_every_difference_and_small_gaps() {
        let old = [0; PAGE_BYTES];
        let mut new = old;
        for offset in [12, 13, 20, 300, 304, 4095] {
            new[offset] = 1;
        }
        let runs = differing_runs(&old, &new, 0..PAGE_BYTES);
        assert_eq!(runs, [(12, 14), (20, 21), (300, 305), (4095, 4096)]);
        let touched = differing_runs(&old, &new, 600..4096);
        assert_eq!(touched, [(4095, 4096)], "what was not given out to change was compared");
    }

    #[test]
    fn deltas_apply_to_the_page_as_it_is() {
        let mut page = [0; PAGE_BYTES];
        page[200] = 5;
        let subtract = Delta::AddU32 { offset: 200, delta: -2 };
        assert_eq!(subtract.apply(&mut page), Some((200, 204)));
        assert_eq!(page[200], 3);
        let set = Delta::Bits { first: 3, count: 10, is_set: true };
        assert_eq!(set.apply(&mut page), Some((128, 130)));
        assert_eq!(format::bitmap::count_set(&page) - 2, 10);
        assert_eq!(joined(vec![(5, 8), (1, 2), (8, 9), (6, 7)]), [(1, 2), (5, 9)]);
    }

    #[test]
    fn a_place_given_out_twice_and_a_count_below_zero_are_refused() {
        let mut page = [0; PAGE_BYTES];
        let set = Delta::Bits { first: 3, count: 1, is_set: true };
        assert!(set.apply(&mut page).is_some());
        assert_eq!(set.apply(&mut page), None);
        assert_eq!(Delta::AddU32 { offset: 200, delta: -1 }.apply(&mut page), None);
        assert_eq!(Delta::AddU64 { offset: 200, delta: -1 }.apply(&mut page), None);
    }
}
