//! Reading together what lies near to each other: one request of the device for several runs.
//!
//! Of one segment, over gaps of up to [`GAP_BYTES_MAX`], and the whole way between the first and
//! the last where more than a half of the segment is wanted (Shirriff, "Sawmill: A Logging File
//! System for a High-Performance RAID Disk Array", 1995, sections 4.3.3 and 4.3.4). What lies in
//! the gaps is thrown away. Where such a read has failed, or met what a member did not give,
//! nothing is read over gaps any more ([`Apart`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use storage::device::{SharedBytes, Ticket};

use super::Core;
use super::read::{RUN_BYTES_MAX, Run, Way};
use crate::alloc::Extent;
use crate::buffer::io;
use crate::convert::narrow;
use crate::error::FsResult;
use crate::sync::Mutex;

/// Longest gap between what one device read brings in: three blocks of 16 KiB.
const GAP_BYTES_MAX: u64 = 48 << 10;

/// Most segments that are remembered for a read over gaps that failed.
const APART_MAX: usize = 256;

/// A segment that a pointer names: disk group, group and number.
type Segment = (u8, u32, u32);

/// Segments of which a read over gaps has failed, on any device: what lies in a gap nobody wants,
/// so nobody mends it, and each such read would meet it again. Bounded; the oldest is forgotten.
#[derive(Debug, Default)]
pub(super) struct Apart {
    segments: Mutex<VecDeque<Segment>>,
    /// Whether there is one: so nobody locks to find none.
    has_any: AtomicBool,
}

impl Apart {
    fn has(&self, segment: Segment) -> bool {
        self.has_any.load(Ordering::Acquire) && self.segments.lock().contains(&segment)
    }

    fn add(&self, segment: Segment) {
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

/// What the device is asked for: all of an extent, for some runs.
pub(super) struct Request {
    pub(super) extent: Extent,
    pub(super) runs: usize,
    pub(super) ticket: Option<Ticket>,
    /// Kept for the runs that are still to come.
    answer: Option<FsResult<SharedBytes>>,
}

impl Request {
    fn new(extent: Extent) -> Request {
        Request { extent, runs: 1, ticket: None, answer: None }
    }

    /// Waits for the answer, and keeps it for its runs.
    pub(super) fn settle(&mut self) {
        if self.answer.is_none() && self.ticket.is_some() {
            self.answer = Some(self.wait());
        }
    }

    /// Waits for the answer, on behalf of one of the runs.
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

impl Core {
    /// Returns what the device is to be asked for, and which request brings each run.
    pub(super) fn requests<'p>(
        &self,
        runs: impl Iterator<Item = (&'p Run, &'p Way)>,
    ) -> (Vec<Request>, Vec<Option<usize>>) {
        let (mut requests, mut of_runs, mut alone) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (run, way)) in runs.enumerate() {
            of_runs.push(None);
            match way {
                Way::Held(..) | Way::Ahead(..) | Way::Coming | Way::Later => {}
                Way::Fill(fill) => {
                    of_runs[at] = Some(requests.len());
                    requests.push(Request::new(fill.extent));
                }
                Way::Alone => alone.push((run.extent(), at)),
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
                    None => requests.push(Request::new(*extent)),
                }
                of_runs[*run] = Some(requests.len() - 1);
            }
        }
        (requests, of_runs)
    }

    fn segment_of(&self, extent: Extent) -> Segment {
        let place = extent.place;
        let segment = place.fragment() / self.store.geometry().segment_fragments;
        (place.disk_group(), place.group(), segment)
    }

    /// Returns what brings both extents, of one segment and in order of place, if that is worth it.
    /// `is_most`: more than a half of the segment is wanted.
    fn joined(&self, one: Extent, next: Extent, is_most: bool) -> Option<Extent> {
        let shift = self.store.geometry().fragment_shift;
        let joined = one.up_to(next)?;
        let is_near = one.gap_to(next) <= GAP_BYTES_MAX >> shift
            && u64::from(joined.fragments) <= RUN_BYTES_MAX >> shift;
        (is_most || is_near).then_some(joined)
    }

    /// Returns how many bytes lie before `run` in what a read of `extent` brings.
    pub(super) fn lead_in(&self, extent: Extent, run: &Run) -> usize {
        let (_, _, lead) = self.store.volume.pages_around(extent.place, extent.fragments);
        lead + self.stored_bytes(narrow(run.place.bits() - extent.place.bits()))
    }

    /// Remembers what is better not read together again: what failed of `requests`, and all where a
    /// member did not give something.
    pub(super) fn note_apart(&self, requests: &[Request], has_errors: bool) {
        for request in requests.iter().filter(|request| request.runs > 1) {
            if has_errors || matches!(request.answer, Some(Err(_))) {
                self.apart.add(self.segment_of(request.extent));
            }
        }
    }
}
