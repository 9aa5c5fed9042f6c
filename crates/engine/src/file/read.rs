//! Reading file content.
//!
//! Small files are read from the segment cache, filled with their surroundings
//! ([`crate::segment`]); longer ones have readahead ([`crate::file::steps`]). Adjacent reads share
//! requests ([`crate::file::together`]).

use crate::file::BlockReader;
use std::ops::Range;
use std::sync::Arc;

use format::anode::AnodeKind;
use format::defect::DefectCode;
use format::ids::Place;
use format::pointer::{BlockPointer, QUARTER_BYTES};
use runtime::planted;
use runtime::sync::RwLockReadGuard;
use storage::device::{AlignedBuffer, IoPurpose, SharedBytes};
use storage::volume::RepairOutcome;

use crate::alloc::Extent;
use crate::api::{Caller, FileReadRequest, Ino, ReadCallback};
use crate::buffer::{corrupt, io};
use crate::container::PointerRange;
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::file::access::READ;
use crate::file::inline::{inline_bytes, is_inline};
use crate::file::steps::FileRead;
use crate::file::together::MergedRead;
use crate::file::unit::BlockSpan;
use crate::file::{Files, Vnode, VnodeState};
use crate::segment::{ChunkFill, ReadaheadLookup, SMALL_FILE_BYTES, SegmentCacheLookup, Segments};

/// Most bytes of a device read, except to fill the segment cache.
pub(super) const RUN_BYTES_MAX: u64 = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The sources of a range's bytes, in order, and the device reads. Valid while the file is locked,
/// since freed places are reused.
#[derive(Default)]
pub(super) struct ReadPlan {
    pieces: Vec<ReadPiece>,
    runs: Vec<BlockRun>,
    /// Whether the file is small, so that its surroundings are cached.
    is_small: bool,
    step: Option<FileRead>,
}

struct ReadPiece {
    source: ReadSource,
    length: usize,
}

enum ReadSource {
    Zeros,
    /// Memory of a dirty block or a write in flight, from an offset.
    Held(SharedBytes, usize),
    Inline(Vec<u8>),
    /// Result of a run, from an offset.
    Stored {
        run: usize,
        from: usize,
    },
}

pub(super) struct BlockRun {
    pub(super) place: Place,
    fragments: u32,
    pointers: Vec<BlockPointer>,
}

pub(super) enum ReadRoute {
    /// From the segment cache, at an offset.
    Held(SharedBytes, usize),
    /// From readahead, at an offset.
    Ahead(SharedBytes, usize),
    /// From a readahead in progress.
    Coming,
    /// From the device, with surroundings that fill the segment cache.
    Fill(ChunkFill),
    /// From the segment cache, once another run has filled it.
    Later,
    /// From the device.
    Alone,
}

impl ReadRoute {
    fn is_read(&self) -> bool {
        !matches!(self, ReadRoute::Held(..) | ReadRoute::Ahead(..))
    }

    fn is_ahead(&self) -> bool {
        matches!(self, ReadRoute::Ahead(..) | ReadRoute::Coming)
    }
}

/// The verified bytes of a run.
struct RunBytes {
    data: SharedBytes,
    lead: usize,
}

impl BlockRun {
    pub(super) fn extent(&self) -> Extent {
        Extent { place: self.place, fragments: self.fragments }
    }
}

impl ReadPlan {
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.runs.iter().map(BlockRun::extent)
    }

    fn push(&mut self, source: ReadSource, length: usize) {
        match (self.pieces.last_mut(), &source) {
            _ if length == 0 => return,
            (Some(last), ReadSource::Zeros) if matches!(last.source, ReadSource::Zeros) => {
                last.length += length;
                return;
            }
            (Some(last), ReadSource::Stored { run, from }) => {
                if let ReadSource::Stored { run: last_run, from: last_from } = last.source
                    && (last_run, last_from + last.length) == (*run, *from)
                {
                    last.length += length;
                    return;
                }
            }
            _ => {}
        }
        self.pieces.push(ReadPiece { source, length });
    }

    /// Appends `length` bytes: `held` of `data`, then zeros.
    fn push_held(&mut self, data: SharedBytes, held: Range<usize>, length: usize) {
        let count = held.len().min(length);
        self.push(ReadSource::Held(data, held.start), count);
        self.push(ReadSource::Zeros, length - count);
    }

    fn slices<'p>(&'p self, brought: &'p [RunBytes]) -> Vec<&'p [u8]> {
        let mut slices = Vec::with_capacity(self.pieces.len());
        for ReadPiece { source, length } in &self.pieces {
            let length = *length;
            let slice = match source {
                ReadSource::Held(data, from) => &data[*from..*from + length],
                ReadSource::Inline(bytes) => &bytes[..length],
                ReadSource::Stored { run, from } => {
                    let RunBytes { data, lead } = &brought[*run];
                    &data[lead + from..lead + from + length]
                }
                ReadSource::Zeros => {
                    let whole = std::iter::repeat_n(&ZEROS[..], length / ZEROS.len());
                    slices.extend(whole);
                    &ZEROS[..length % ZEROS.len()]
                }
            };
            slices.push(slice);
        }
        slices
    }
}

impl BlockReader<'_> {
    /// Performs the device reads of all `plans`, and reports each result when complete. Returns the
    /// errors, each with the index of its plan. Bad copies are rewritten.
    fn carry_out(
        &self,
        plans: &[FsResult<ReadPlan>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Vec<(usize, FsError)> {
        let ways = self.ways(plans.iter().flatten());
        if ways.is_empty() {
            return self.carry_out_by(ways, plans, told);
        }
        let is_read: Vec<bool> = ways.iter().map(ReadRoute::is_read).collect();
        let steps = steps_of(plans.iter().flatten(), &ways);
        let failed = self.carry_out_and_mend(ways, &is_read, plans, told);
        // Noted after the replies: requested data comes before readahead.
        for (step, is_ahead) in steps {
            self.steps.note(step, is_ahead, self.segments.ahead.limit_bytes());
        }
        failed
    }

    fn carry_out_and_mend(
        &self,
        ways: Vec<ReadRoute>,
        is_read: &[bool],
        plans: &[FsResult<ReadPlan>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Vec<(usize, FsError)> {
        if !is_read.contains(&true) {
            return self.carry_out_by(ways, plans, told);
        }
        let volume = &self.store.volume;
        let errors = volume.read_errors();
        let failed = self.carry_out_by(ways, plans, told);
        let is_in_vain = || !volume.mends() || planted!(UnreadNotMended);
        if volume.read_errors() != errors && !is_in_vain() {
            let runs = plans.iter().flatten().flat_map(|plan| &plan.runs);
            for (run, _) in runs.zip(is_read).filter(|(_, is_read)| **is_read) {
                // A remaining error is harmless: the read has returned its data.
                let _ = self.healed(run, FsError::NoSpace);
            }
        }
        failed
    }

    fn carry_out_by(
        &self,
        ways: Vec<ReadRoute>,
        plans: &[FsResult<ReadPlan>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Vec<(usize, FsError)> {
        let mut failed = Vec::new();
        let errors = self.store.volume.read_errors();
        let (mut requests, of_runs) = self.ask_for(plans, &ways);
        if ways.iter().any(|way| matches!(way, ReadRoute::Coming)) {
            // Waits for these reads before those of other threads: a device may begin a request,
            // and count its deadline, only when polled.
            requests.iter_mut().for_each(MergedRead::settle);
        }
        let mut ways = ways.into_iter().enumerate();
        for (index, plan) in plans.iter().enumerate() {
            let read = match plan {
                Ok(plan) => {
                    // Takes all runs of this plan, even after an error: the rest of the iterator
                    // belongs to the next plans.
                    let ways = ways.by_ref().take(plan.runs.len());
                    let brought: Vec<FsResult<RunBytes>> = plan
                        .runs
                        .iter()
                        .zip(ways)
                        .map(|(run, (number, way))| {
                            let of = of_runs.get(number).copied().flatten();
                            self.take_run(run, way, of.and_then(|of| requests.get_mut(of)))
                        })
                        .collect();
                    let brought: FsResult<Vec<_>> = brought.into_iter().collect();
                    brought.map(|brought| told(index, &plan.slices(&brought)))
                }
                Err(error) => Err(error.clone()),
            };
            if let Err(error) = read {
                failed.push((index, error));
            }
        }
        if !requests.is_empty() {
            self.note_apart(&requests, self.store.volume.read_errors() != errors);
        }
        failed
    }

    /// Submits the device reads. Returns the requests, and the index of the request for each run.
    fn ask_for(
        &self,
        plans: &[FsResult<ReadPlan>],
        ways: &[ReadRoute],
    ) -> (Vec<MergedRead>, Vec<Option<usize>>) {
        if !ways.iter().any(ReadRoute::is_read) {
            return (Vec::new(), Vec::new());
        }
        let runs = plans.iter().flatten().flat_map(|plan| &plan.runs);
        let (mut requests, of_runs) = self.requests(runs.zip(ways));
        let places = requests.iter().map(|request| {
            let Extent { place, fragments } = request.extent;
            let (start, length, _) = self.store.volume.pages_around(place, fragments);
            (start, length)
        });
        let tickets = self.store.volume.submit_reads(IoPurpose::Data, places);
        for (request, ticket) in requests.iter_mut().zip(tickets) {
            request.ticket = Some(ticket);
        }
        (requests, of_runs)
    }

    fn ways<'p>(&self, plans: impl Iterator<Item = &'p ReadPlan>) -> Vec<ReadRoute> {
        let mut ways = Vec::new();
        let mut coming: Vec<Extent> = Vec::new();
        for plan in plans {
            for run in &plan.runs {
                let extent = run.extent();
                ways.push(if !plan.is_small {
                    match self.segments.ahead.look(extent) {
                        ReadaheadLookup::Held(data, lead) => ReadRoute::Ahead(data, lead),
                        ReadaheadLookup::Coming => ReadRoute::Coming,
                        ReadaheadLookup::Nothing => ReadRoute::Alone,
                    }
                } else if coming.iter().any(|coming| coming.has(extent)) {
                    ReadRoute::Later
                } else {
                    match self.segments.cache.look(extent) {
                        SegmentCacheLookup::Held(data, lead) => ReadRoute::Held(data, lead),
                        SegmentCacheLookup::Alone => ReadRoute::Alone,
                        SegmentCacheLookup::Fill(fill) => {
                            coming.push(fill.extent);
                            ReadRoute::Fill(fill)
                        }
                    }
                });
            }
        }
        ways
    }

    /// Plans a read of `range`, which must be within the size.
    pub(super) fn plan_range(&self, state: &VnodeState, range: Range<u64>) -> FsResult<ReadPlan> {
        let is_small = state.size_bytes <= SMALL_FILE_BYTES;
        let mut plan = ReadPlan { is_small, ..ReadPlan::default() };
        let (mut at, end) = (range.start, range.end);
        while at < end {
            if let Some(block) = state.waiting_at(at) {
                let span = block.span();
                let next = span.end().min(end);
                let stored = self.stored_bytes(block.fragments());
                let from = index_wide(at - span.start);
                plan.push_held(block.data(), from..stored, index_wide(next - at));
                at = next;
                continue;
            }
            let waiting = state.pending.range(at..end).next();
            let next = waiting.map_or(end, |(start, _)| *start);
            let anode = state.anode()?;
            if is_inline(anode) {
                let stored = inline_bytes(anode, at..next).to_vec();
                let behind = index_wide(next - at) - stored.len();
                let length = stored.len();
                plan.push(ReadSource::Inline(stored), length);
                plan.push(ReadSource::Zeros, behind);
                at = next;
                continue;
            }
            for unit in self.store.units(anode, at, next)? {
                self.plan_unit(&unit, &(at..next), &mut plan);
            }
            at = next;
        }
        Ok(plan)
    }

    fn plan_unit(&self, unit: &PointerRange, wanted: &Range<u64>, plan: &mut ReadPlan) {
        let (start, end) = (unit.start.max(wanted.start), unit.end().min(wanted.end));
        let length = index_wide(end - start);
        let Some(pointer) = unit.pointer else {
            plan.push(ReadSource::Zeros, length);
            return;
        };
        let from = index_wide(start - unit.start);
        let fragment_shift = self.store.geometry().fragment_shift;
        let is_whole = start == unit.start && end == unit.end();
        if is_whole || !pointer.is_divisible() {
            self.plan_block(pointer, from, length, plan);
            return;
        }
        // A part of a divisible block is read by quarters: each has its own checksum.
        let mut at = from;
        while at < from + length {
            let (quarter, skip) = (at / QUARTER_BYTES, at % QUARTER_BYTES);
            let count = (QUARTER_BYTES - skip).min(from + length - at);
            match pointer.quarter(quarter, fragment_shift) {
                Some(pointer) => self.plan_block(pointer, skip, count, plan),
                None => plan.push(ReadSource::Zeros, count),
            }
            at += count;
        }
    }

    /// Plans a read in a block. Bytes that are not stored are zeros.
    fn plan_block(&self, pointer: BlockPointer, from: usize, length: usize, plan: &mut ReadPlan) {
        let stored = self.stored_bytes(pointer.fragments);
        if let Some((data, before)) = self.segments.in_flight(Segments::extent(&pointer)) {
            plan.push_held(data, before + from..before + stored, length);
            return;
        }
        let count = stored.saturating_sub(from).min(length);
        if count > 0 {
            let (run, before) = self.run_of(pointer, plan);
            plan.push(ReadSource::Stored { run, from: before + from }, count);
        }
        plan.push(ReadSource::Zeros, length - count);
    }

    pub(crate) fn stored_bytes(&self, fragments: u32) -> usize {
        crate::convert::index(fragments) << self.store.geometry().fragment_shift
    }

    /// Adds a block to the runs; returns the run's index, and the block's offset in it.
    fn run_of(&self, pointer: BlockPointer, plan: &mut ReadPlan) -> (usize, usize) {
        let (place, fragments) = (pointer.place, pointer.fragments);
        let limit = RUN_BYTES_MAX >> self.store.geometry().fragment_shift;
        match plan.runs.last_mut() {
            // Checked addition, since a damaged pointer may hold any place.
            Some(run)
                if run.place.bits().checked_add(run.fragments.into()) == Some(place.bits())
                    && u64::from(run.fragments + fragments) <= limit =>
            {
                let before = self.stored_bytes(run.fragments);
                run.fragments += fragments;
                run.pointers.push(pointer);
                (plan.runs.len() - 1, before)
            }
            _ => {
                plan.runs.push(BlockRun { place, fragments, pointers: vec![pointer] });
                (plan.runs.len() - 1, 0)
            }
        }
    }

    /// Waits for a run's bytes, and verifies them.
    fn take_run(
        &self,
        run: &BlockRun,
        way: ReadRoute,
        request: Option<&mut MergedRead>,
    ) -> FsResult<RunBytes> {
        let held = match (way, request) {
            (ReadRoute::Alone, Some(request)) => {
                let is_shared = request.runs > 1;
                let lead = self.lead_in(request.extent, run);
                return match request.wait() {
                    Ok(data) => self.verified_or_healed(run, RunBytes { data, lead }),
                    // The request also read other runs and gaps: this run alone may be readable.
                    Err(_) if is_shared => self.read_alone(run),
                    Err(error) => self.healed(run, error),
                };
            }
            (ReadRoute::Held(data, lead), _) => Some(RunBytes { data, lead }),
            (ReadRoute::Ahead(data, lead), _) => {
                return self.take_ahead(run, RunBytes { data, lead });
            }
            (ReadRoute::Coming, _) => {
                return match self.segments.ahead.take(run.extent()) {
                    Some((data, lead)) => self.take_ahead(run, RunBytes { data, lead }),
                    None => self.read_alone(run),
                };
            }
            (ReadRoute::Fill(fill), Some(request)) => {
                let lead = self.lead_in(request.extent, run);
                let data = request.wait().ok();
                self.segments.cache.end_fill(&fill, run.extent(), data.as_ref());
                data.map(|data| RunBytes { data, lead })
            }
            (ReadRoute::Later | ReadRoute::Alone | ReadRoute::Fill(_), _) => {
                let held = self.segments.cache.held_now(run.extent());
                held.map(|(data, lead)| RunBytes { data, lead })
            }
        };
        let held = held.map(|held| self.verified(run, held));
        match held {
            Some(Ok(held)) => Ok(held),
            // The fill failed, or the cached bytes do not verify.
            other => {
                if other.is_some() {
                    self.segments.cache.refuse(run.place);
                }
                self.read_alone(run)
            }
        }
    }

    fn take_ahead(&self, run: &BlockRun, brought: RunBytes) -> FsResult<RunBytes> {
        self.verified(run, brought).or_else(|error| {
            self.segments.ahead.refuse(run.place);
            // Another member may have an intact copy, from which the bad one is repaired.
            self.healed(run, error).or_else(|_| self.read_alone(run))
        })
    }

    fn verified_or_healed(&self, run: &BlockRun, brought: RunBytes) -> FsResult<RunBytes> {
        self.verified(run, brought).or_else(|error| self.healed(run, error))
    }

    fn read_alone(&self, run: &BlockRun) -> FsResult<RunBytes> {
        let volume = &self.store.volume;
        let (start, length, lead) = volume.pages_around(run.place, run.fragments);
        let read = volume.read(IoPurpose::Data, start, length).map_err(io);
        let brought = read.and_then(|buffer| {
            let data = buffer.into();
            self.verified(run, RunBytes { data, lead })
        });
        brought.or_else(|error| self.healed(run, error))
    }

    /// Returns the run with each block from a copy that verifies, or reconstructed from parity. The
    /// blocks may be intact on different members. Returns `error` in a pool without redundancy.
    fn healed(&self, run: &BlockRun, error: FsError) -> FsResult<RunBytes> {
        let volume = &self.store.volume;
        if volume.members().is_none() {
            return Err(error);
        }
        let mut whole = AlignedBuffer::zeroed(self.stored_bytes(run.fragments));
        let mut at = 0;
        for pointer in &run.pointers {
            let (start, length, lead) = volume.pages_around(pointer.place, pointer.fragments);
            let stored = lead..lead + self.stored_bytes(pointer.fragments);
            let is_it = |bytes: &[u8]| pointer.verifies(&bytes[stored.clone()]);
            let healed = volume.heal(IoPurpose::Data, start, length, &is_it).map_err(io)?;
            if healed.repaired > 0 {
                self.segments.mended.note(pointer.place);
            }
            let bytes = found_of(pointer, healed)?;
            whole[at..at + stored.len()].copy_from_slice(&bytes[stored.clone()]);
            at += stored.len();
        }
        Ok(RunBytes { data: whole.into(), lead: 0 })
    }

    fn verified(&self, run: &BlockRun, brought: RunBytes) -> FsResult<RunBytes> {
        let mut at = brought.lead;
        for pointer in &run.pointers {
            let end = at + self.stored_bytes(pointer.fragments);
            if !pointer.verifies(&brought.data[at..end]) && !planted!(DataChecksumNotCompared) {
                return Err(bad_data(pointer));
            }
            at = end;
        }
        Ok(brought)
    }

    /// Fills `bytes` from `offset` on, which must be within the size.
    pub(crate) fn fill(&self, state: &VnodeState, offset: u64, bytes: &mut [u8]) -> FsResult<()> {
        let plan = self.plan_range(state, offset..offset + wide(bytes.len()))?;
        let failed = self.carry_out(&[Ok(plan)], &mut |_, slices| {
            let mut rest = &mut *bytes;
            for slice in slices {
                let (into, behind) = std::mem::take(&mut rest).split_at_mut(slice.len());
                into.copy_from_slice(slice);
                rest = behind;
            }
        });
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Reads ranges within the size in one batch. Reports them in order, and omits unreadable ones.
    pub(crate) fn read_ranges(
        &self,
        state: &VnodeState,
        ranges: &[Range<u64>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) {
        let plans: Vec<_> =
            ranges.iter().map(|range| self.plan_range(state, range.clone())).collect();
        self.carry_out(&plans, told);
    }

    /// Returns a block: `valid_bytes` as stored, then zeros.
    pub(crate) fn block_content(
        &self,
        state: &VnodeState,
        span: BlockSpan,
        valid_bytes: usize,
    ) -> FsResult<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        self.fill(state, span.start, &mut buffer[..valid_bytes])?;
        Ok(buffer)
    }
}

impl Files<'_> {
    pub(crate) fn read_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let mut done = Ok(0);
        self.read_files(
            &[FileReadRequest { caller, ino, offset, length_bytes }],
            &mut |_, read| {
                done = read.map(|slices| {
                    let before = into.len();
                    slices.iter().for_each(|slice| into.extend_from_slice(slice));
                    into.len() - before
                });
            },
        );
        done
    }

    pub(crate) fn read_files(&self, asked: &[FileReadRequest<'_>], told: &mut ReadCallback<'_>) {
        let mut from = 0;
        while from < asked.len() {
            from += self.read_together(from, &asked[from..], told);
        }
    }

    /// Reads a prefix of `asked` that can be locked together; returns its length, at least 1.
    ///
    /// LOCK: waits for the first file only, with none locked, and tries the others, so their order
    /// does not matter.
    fn read_together(
        &self,
        from: usize,
        asked: &[FileReadRequest<'_>],
        told: &mut ReadCallback<'_>,
    ) -> usize {
        let vnodes: Vec<_> = asked.iter().map(|asked| self.vnode_to_read(asked)).collect();
        let mut guards: Vec<(Ino, RwLockReadGuard<'_, VnodeState>)> = Vec::with_capacity(1);
        let mut plans = Vec::with_capacity(asked.len());
        for (asked, vnode) in asked.iter().zip(&vnodes) {
            let vnode = match vnode {
                Ok(vnode) => vnode,
                Err(error) => {
                    plans.push(Err(error.clone()));
                    continue;
                }
            };
            if !guards.iter().any(|(ino, _)| *ino == asked.ino) {
                let guard = if guards.is_empty() {
                    vnode.state.read()
                } else {
                    let Some(guard) = vnode.state.try_read() else { break };
                    guard
                };
                guards.push((asked.ino, guard));
            }
            let state = guards.iter().find(|(ino, _)| *ino == asked.ino);
            let (_, state) = state.expect("locked above");
            plans.push(self.plan_of(state, asked));
        }
        let failed =
            self.reader().carry_out(&plans, &mut |index, slices| told(from + index, Ok(slices)));
        drop(guards);
        // Reported after the files are unlocked, since adding a path to an error takes locks.
        for (index, error) in failed {
            told(from + index, Err(error));
        }
        plans.len()
    }

    /// Returns the vnode of a file to be read, with its access time updated. Called with no lock
    /// held.
    fn vnode_to_read(&self, asked: &FileReadRequest<'_>) -> FsResult<Arc<Vnode>> {
        let vnode = self.vnode(asked.ino)?;
        if asked.length_bytes > 0 {
            // A refused read changes no access time.
            let may = |state: &VnodeState| self.check_content(asked.caller, state, READ).is_ok();
            self.touch_atime(asked.caller, &vnode, &may);
        }
        Ok(vnode)
    }

    fn plan_of(&self, state: &VnodeState, asked: &FileReadRequest<'_>) -> FsResult<ReadPlan> {
        self.check_content(asked.caller, state, READ)?;
        let behind = state.size_bytes.saturating_sub(asked.offset);
        let count = behind.min(wide(asked.length_bytes));
        let mut plan = self.reader().plan_range(state, asked.offset..asked.offset + count)?;
        let step = FileRead { ino: asked.ino, offset: asked.offset, length_bytes: count };
        plan.step = (!plan.is_small).then_some(step);
        Ok(plan)
    }

    pub(crate) fn read_link(&self, caller: &Caller, ino: Ino) -> FsResult<Vec<u8>> {
        let vnode = self.vnode(ino)?;
        let target = self.target_of_link(&vnode.state.read())?;
        self.touch_atime(caller, &vnode, &|_| true);
        Ok(target)
    }

    fn target_of_link(&self, state: &VnodeState) -> FsResult<Vec<u8>> {
        let anode = state.anode()?;
        if anode.kind != AnodeKind::Symlink {
            return Err(FsError::Invalid);
        }
        let length = index_wide(anode.size_bytes);
        if anode.storage == format::anode::StorageMode::Inline {
            return Ok(anode.root[..length.min(anode.root.len())].to_vec());
        }
        let mut target = vec![0; length.min(crate::api::SYMLINK_BYTES_MAX)];
        self.reader().fill(state, 0, &mut target)?;
        Ok(target)
    }
}

/// Returns the reads of files with readahead, and whether each was served from readahead.
fn steps_of<'p>(
    plans: impl Iterator<Item = &'p ReadPlan>,
    ways: &[ReadRoute],
) -> Vec<(FileRead, bool)> {
    let (mut ways, mut steps) = (ways, Vec::new());
    for plan in plans {
        let (of_plan, rest) = ways.split_at(plan.runs.len());
        ways = rest;
        if let Some(step) = plan.step.filter(|_| !of_plan.is_empty()) {
            steps.push((step, of_plan.iter().any(ReadRoute::is_ahead)));
        }
    }
    steps
}

/// Returns the bytes found. A missing block is damage only if all copies were readable.
pub(crate) fn found_of(pointer: &BlockPointer, healed: RepairOutcome) -> FsResult<AlignedBuffer> {
    match healed {
        RepairOutcome { bytes: Some(bytes), .. } => Ok(bytes),
        RepairOutcome { unread: Some(error), .. } => Err(io(error)),
        RepairOutcome { .. } => Err(bad_data(pointer)),
    }
}

pub(crate) fn bad_data(pointer: &BlockPointer) -> FsError {
    let defect = if pointer.is_plain() {
        DefectCode::MP005.found("a block fails its checksum")
    } else {
        DefectCode::MP003.found("a block is stored in a form that is not known")
    };
    corrupt(defect.at(pointer.place))
}
