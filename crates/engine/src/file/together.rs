//! Merging of nearby runs into one device request.
//!
//! Runs of a segment are merged over gaps of up to [`GAP_BYTES_MAX`], or altogether if they are
//! more than half of it (Shirriff, "Sawmill: A Logging File System for a High-Performance RAID Disk
//! Array", 1995, sections 4.3.3 and 4.3.4). Bytes in gaps are discarded. After a read error the
//! runs of the segment are read separately ([`UnmergedSegments`]).

use crate::file::BlockReader;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use storage::device::{SharedBytes, Ticket};

use crate::alloc::Extent;
use crate::buffer::io;
use crate::convert::narrow;
use crate::error::FsResult;
use crate::file::read::{BlockRun, RUN_BYTES_MAX, ReadRoute};
use crate::sync::Mutex;

/// Longest gap in a merged read: three blocks of 16 KiB.
const GAP_BYTES_MAX: u64 = 48 << 10;

const APART_MAX: usize = 256;

/// Disk group, allocation group and number of a segment.
type SegmentKey = (u8, u32, u32);

/// Segments with a failed merged read, whose runs are read separately. The bad blocks may be in
/// gaps, where no reader repairs them. Bounded; the oldest is dropped.
#[derive(Debug, Default)]
pub(super) struct UnmergedSegments {
    segments: Mutex<VecDeque<SegmentKey>>,
    /// Whether there are any, readable without the lock.
    has_any: AtomicBool,
}

impl UnmergedSegments {
    fn has(&self, segment: SegmentKey) -> bool {
        self.has_any.load(Ordering::Acquire) && self.segments.lock().contains(&segment)
    }

    fn add(&self, segment: SegmentKey) {
        let mut segments = self.segments.lock();
        if segments.contains(&segment) {
            return;
        }
        if segments.len() >= APART_MAX {
            segments.pop_front();
        }
        segments.push_back(segment);
        self.has_any.store(true, Ordering::Release);
    }
}

pub(super) struct MergedRead {
    pub(super) extent: Extent,
    pub(super) runs: usize,
    pub(super) ticket: Option<Ticket>,
    /// Result of the request, kept for the other runs in it.
    answer: Option<FsResult<SharedBytes>>,
}

impl MergedRead {
    fn new(extent: Extent) -> MergedRead {
        MergedRead { extent, runs: 1, ticket: None, answer: None }
    }

    pub(super) fn settle(&mut self) {
        if self.answer.is_none() && self.ticket.is_some() {
            self.answer = Some(self.wait());
        }
    }

    pub(super) fn wait(&mut self) -> FsResult<SharedBytes> {
        if let Some(answer) = &self.answer {
            return answer.clone();
        }
        let ticket = self.ticket.take().expect("each run takes its answer once");
        let answer = ticket
            .wait()
            .map_err(io)
            .map(|answer| SharedBytes::from(answer.buffer.expect("a read returns its buffer")));
        if self.runs > 1 {
            self.answer = Some(answer.clone());
        }
        answer
    }
}

impl BlockReader<'_> {
    pub(super) fn requests<'p>(
        &self,
        runs: impl Iterator<Item = (&'p BlockRun, &'p ReadRoute)>,
    ) -> (Vec<MergedRead>, Vec<Option<usize>>) {
        let (mut requests, mut of_runs, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (run, way)) in runs.enumerate() {
            of_runs.push(None);
            match way {
                ReadRoute::Held(..)
                | ReadRoute::Ahead(..)
                | ReadRoute::Coming
                | ReadRoute::Later => {}
                ReadRoute::Fill(fill) => {
                    of_runs[at] = Some(requests.len());
                    requests.push(MergedRead::new(fill.extent));
                }
                ReadRoute::Alone => alone.push((run.extent(), at)),
            }
        }
        alone.sort_by_key(|(extent, _)| extent.place);
        let segment_fragments = self.store.geometry().segment_fragments;
        let segment_of = |extent: Extent| self.segment_of(extent);
        for same in alone.chunk_by(|(one, _), (next, _)| segment_of(*one) == segment_of(*next)) {
            let wanted: u64 = same.iter().map(|(extent, _)| u64::from(extent.fragments)).sum();
            let is_most = wanted > u64::from(segment_fragments / 2);
            let is_apart = same.len() > 1 && self.apart.has(segment_of(same[0].0));
            let first = requests.len();
            for (extent, run) in same {
                let last = requests[first..].last_mut();
                let joined = last.filter(|_| !is_apart).and_then(|last| {
                    let joined = self.joined(last.extent, *extent, is_most)?;
                    Some((last, joined))
                });
                match joined {
                    Some((last, joined)) => {
                        last.extent = joined;
                        last.runs += 1;
                    }
                    None => requests.push(MergedRead::new(*extent)),
                }
                of_runs[*run] = Some(requests.len() - 1);
            }
        }
        (requests, of_runs)
    }

    fn segment_of(&self, extent: Extent) -> SegmentKey {
        let place = extent.place;
        let segment = place.fragment() / self.store.geometry().segment_fragments;
        (place.disk_group(), place.group(), segment)
    }

    /// Merges two extents in order of place, if worthwhile. `is_most`: more than half of the
    /// segment is requested.
    fn joined(&self, one: Extent, next: Extent, is_most: bool) -> Option<Extent> {
        let shift = self.store.geometry().fragment_shift;
        let joined = one.up_to(next)?;
        let is_near = one.gap_to(next) <= GAP_BYTES_MAX >> shift
            && u64::from(joined.fragments) <= RUN_BYTES_MAX >> shift;
        (is_most || is_near).then_some(joined)
    }

    /// Returns the offset of `run` in a read of `extent`, in bytes.
    pub(super) fn lead_in(&self, extent: Extent, run: &BlockRun) -> usize {
        let (_, _, lead) = self.store.volume.pages_around(extent.place, extent.fragments);
        lead + self.stored_bytes(narrow(run.place.bits() - extent.place.bits()))
    }

    /// Adds the segments of failed merged requests to [`UnmergedSegments`]; of all, if a member had
    /// an error.
    pub(super) fn note_apart(&self, requests: &[MergedRead], has_errors: bool) {
        for request in requests.iter().filter(|request| request.runs > 1) {
            if has_errors || matches!(request.answer, Some(Err(_))) {
                self.apart.add(self.segment_of(request.extent));
            }
        }
    }
}
