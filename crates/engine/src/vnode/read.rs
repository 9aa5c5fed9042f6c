//! Reading the content of files.
//!
//! What a small file has is looked for in the segment cache first, and brings what lies around it
//! ([`crate::segment`]). Of longer files what comes next may have been read ahead
//! ([`super::steps`]).
//!
//! What lies near to each other is read in one request ([`super::together`]).

use std::ops::Range;
use std::sync::Arc;

use format::anode::AnodeKind;
use format::defect::DefectCode;
use format::ids::Place;
use format::pointer::{BlockPointer, QUARTER_BYTES};
use runtime::planted::{self, Planted};
use runtime::sync::RwLockReadGuard;
use storage::device::{AlignedBuffer, Purpose, SharedBytes};
use storage::volume::Healed;

use super::access::READ;
use super::api::{Caller, Ino, ReadAsked, ReadTold};
use super::inline::{inline_bytes, is_inline};
use super::steps::Step;
use super::together::Request;
use super::unit::Span;
use super::{Core, Files, Vnode, VnodeState};
use crate::alloc::Extent;
use crate::buffer::corrupt;
use crate::buffer::io;
use crate::container::Unit;
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};
use crate::segment::{Fill, Looked, Nearby, SMALL_FILE_BYTES, Segments};

/// Most bytes that one device read brings in, but for that of a segment.
pub(super) const RUN_BYTES_MAX: u64 = 1 << 20;
/// What holes read as, a piece at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// How to read a range of a file: what its bytes are, in order, and what a device must bring first.
///
/// It is good for as long as the lock of the file is held: places are given to others then.
#[derive(Default)]
pub(super) struct Plan {
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    /// Whether the file is so small that what lies around it may be of use.
    is_small: bool,
    /// What somebody asked for, if he may go on.
    step: Option<Step>,
}

/// Bytes that follow one another in a file and in memory.
struct Piece {
    source: Source,
    length: usize,
}

enum Source {
    Zeros,
    /// In memory, from a byte on: to be written, or on the way to the device.
    Held(SharedBytes, usize),
    /// In the anode.
    Inline(Vec<u8>),
    /// What a run of the plan brings, from a byte on.
    Stored {
        run: usize,
        from: usize,
    },
}

/// Blocks that lie side by side on the device.
pub(super) struct Run {
    pub(super) place: Place,
    fragments: u32,
    pointers: Vec<BlockPointer>,
}

/// How the bytes of a run come.
pub(super) enum Way {
    /// From memory: they begin so many bytes behind the first.
    Held(SharedBytes, usize),
    /// From memory, as they were read ahead.
    Ahead(SharedBytes, usize),
    /// From memory, once somebody has read them ahead.
    Coming,
    /// From the device, with what lies around them.
    Fill(Fill),
    /// From memory, once another run of the same plans has brought them.
    Later,
    /// From the device.
    Alone,
}

impl Way {
    fn is_read(&self) -> bool {
        !matches!(self, Way::Held(..) | Way::Ahead(..))
    }

    fn is_ahead(&self) -> bool {
        matches!(self, Way::Ahead(..) | Way::Coming)
    }
}

/// The bytes of a run, verified.
struct Brought {
    data: SharedBytes,
    /// Where the first block begins.
    lead: usize,
}

impl Run {
    pub(super) fn extent(&self) -> Extent {
        Extent { place: self.place, fragments: self.fragments }
    }
}

impl Plan {
    /// Returns where the device has what is to be read.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> {
        self.runs.iter().map(Run::extent)
    }

    /// Adds `length` bytes at the end.
    fn push(&mut self, source: Source, length: usize) {
        match (self.pieces.last_mut(), &source) {
            _ if length == 0 => return,
            (Some(last), Source::Zeros) if matches!(last.source, Source::Zeros) => {
                last.length += length;
                return;
            }
            (Some(last), Source::Stored { run, from }) => {
                if let Source::Stored { run: last_run, from: last_from } = last.source
                    && (last_run, last_from + last.length) == (*run, *from)
                {
                    last.length += length;
                    return;
                }
            }
            _ => {}
        }
        self.pieces.push(Piece { source, length });
    }

    /// Adds `length` bytes at the end, the first of which `data` has in `held`; zeros follow them.
    fn push_held(&mut self, data: SharedBytes, held: Range<usize>, length: usize) {
        let count = held.len().min(length);
        self.push(Source::Held(data, held.start), count);
        self.push(Source::Zeros, length - count);
    }

    /// Returns the bytes of the range, `brought` by the runs in their order.
    fn slices<'p>(&'p self, brought: &'p [Brought]) -> Vec<&'p [u8]> {
        let mut slices = Vec::with_capacity(self.pieces.len());
        for Piece { source, length } in &self.pieces {
            let length = *length;
            let slice = match source {
                Source::Held(data, from) => &data[*from..*from + length],
                Source::Inline(bytes) => &bytes[..length],
                Source::Stored { run, from } => {
                    let Brought { data, lead } = &brought[*run];
                    &data[lead + from..lead + from + length]
                }
                Source::Zeros => {
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

impl Core {
    /// Asks the device for all that `plans` need, and tells the bytes of each as soon as they are
    /// there, with its number. Returns the numbers of the others, and why. What a member did not
    /// give is written again to it.
    fn carry_out(
        &self,
        plans: &[FsResult<Plan>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Vec<(usize, FsError)> {
        let ways = self.ways(plans.iter().flatten());
        if ways.is_empty() {
            return self.carry_out_by(ways, plans, told);
        }
        let is_read: Vec<bool> = ways.iter().map(Way::is_read).collect();
        let steps = steps_of(plans.iter().flatten(), &ways);
        let failed = self.carry_out_and_mend(ways, &is_read, plans, told);
        // Behind the answers: nobody reads ahead before what is asked for.
        for (step, is_ahead) in steps {
            self.steps.note(step, is_ahead, self.segments.ahead.limit_bytes());
        }
        failed
    }

    fn carry_out_and_mend(
        &self,
        ways: Vec<Way>,
        is_read: &[bool],
        plans: &[FsResult<Plan>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Vec<(usize, FsError)> {
        if !is_read.contains(&true) {
            return self.carry_out_by(ways, plans, told);
        }
        let volume = &self.store.volume;
        let errors = volume.read_errors();
        let failed = self.carry_out_by(ways, plans, told);
        let is_in_vain = || !volume.mends() || planted::is(Planted::UnreadNotMended);
        if volume.read_errors() != errors && !is_in_vain() {
            let runs = plans.iter().flatten().flat_map(|plan| &plan.runs);
            for (run, _) in runs.zip(is_read).filter(|(_, is_read)| **is_read) {
                // What is still bad has been read all the same.
                let _ = self.healed(run, FsError::NoSpace);
            }
        }
        failed
    }

    fn carry_out_by(
        &self,
        ways: Vec<Way>,
        plans: &[FsResult<Plan>],
        told: &mut dyn FnMut(usize, &[&[u8]]),
    ) -> Vec<(usize, FsError)> {
        let mut failed = Vec::new();
        let errors = self.store.volume.read_errors();
        let (mut requests, of_runs) = self.ask_for(plans, &ways);
        if ways.iter().any(|way| matches!(way, Way::Coming)) {
            // Before anybody else is waited for: a device may begin only when it is asked how far
            // it is, and its deadline has begun.
            requests.iter_mut().for_each(Request::settle);
        }
        let mut ways = ways.into_iter().enumerate();
        for (index, plan) in plans.iter().enumerate() {
            let read = match plan {
                Ok(plan) => {
                    // All of them, whatever becomes of the first: what comes behind is the next
                    // plan's.
                    let ways = ways.by_ref().take(plan.runs.len());
                    let brought: Vec<FsResult<Brought>> = plan
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

    /// Asks the device for what `ways` say. Returns the requests, and which of them brings each
    /// run; no request, no runs.
    fn ask_for(
        &self,
        plans: &[FsResult<Plan>],
        ways: &[Way],
    ) -> (Vec<Request>, Vec<Option<usize>>) {
        if !ways.iter().any(Way::is_read) {
            return (Vec::new(), Vec::new());
        }
        let runs = plans.iter().flatten().flat_map(|plan| &plan.runs);
        let (mut requests, of_runs) = self.requests(runs.zip(ways));
        let places = requests.iter().map(|request| {
            let Extent { place, fragments } = request.extent;
            let (start, length, _) = self.store.volume.pages_around(place, fragments);
            (start, length)
        });
        let tickets = self.store.volume.submit_reads(Purpose::Data, places);
        for (request, ticket) in requests.iter_mut().zip(tickets) {
            request.ticket = Some(ticket);
        }
        (requests, of_runs)
    }

    /// Returns how each run of `plans` comes, in order.
    fn ways<'p>(&self, plans: impl Iterator<Item = &'p Plan>) -> Vec<Way> {
        let mut ways = Vec::new();
        let mut coming: Vec<Extent> = Vec::new();
        for plan in plans {
            for run in &plan.runs {
                let extent = run.extent();
                ways.push(if !plan.is_small {
                    match self.segments.ahead.look(extent) {
                        Looked::Held(data, lead) => Way::Ahead(data, lead),
                        Looked::Coming => Way::Coming,
                        Looked::Nothing => Way::Alone,
                    }
                } else if coming.iter().any(|coming| coming.has(extent)) {
                    Way::Later
                } else {
                    match self.segments.cache.look(extent) {
                        Nearby::Held(data, lead) => Way::Held(data, lead),
                        Nearby::Alone => Way::Alone,
                        Nearby::Fill(fill) => {
                            coming.push(fill.extent);
                            Way::Fill(fill)
                        }
                    }
                });
            }
        }
        ways
    }

    /// Plans the reading of `range`, which the caller has cut to the size.
    pub(super) fn plan_range(&self, state: &VnodeState, range: Range<u64>) -> FsResult<Plan> {
        let is_small = state.size_bytes <= SMALL_FILE_BYTES;
        let mut plan = Plan { is_small, ..Plan::default() };
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
                plan.push(Source::Inline(stored), length);
                plan.push(Source::Zeros, behind);
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

    /// Plans what of `wanted` lies in `unit`.
    fn plan_unit(&self, unit: &Unit, wanted: &Range<u64>, plan: &mut Plan) {
        let (start, end) = (unit.start.max(wanted.start), unit.end().min(wanted.end));
        let length = index_wide(end - start);
        let Some(pointer) = unit.pointer else {
            plan.push(Source::Zeros, length);
            return;
        };
        let from = index_wide(start - unit.start);
        let fragment_shift = self.store.geometry().fragment_shift;
        let is_whole = start == unit.start && end == unit.end();
        if is_whole || !pointer.is_divisible() {
            self.plan_block(pointer, from, length, plan);
            return;
        }
        // Only the quarters that are asked for: each has a check of its own.
        let mut at = from;
        while at < from + length {
            let (quarter, skip) = (at / QUARTER_BYTES, at % QUARTER_BYTES);
            let count = (QUARTER_BYTES - skip).min(from + length - at);
            match pointer.quarter(quarter, fragment_shift) {
                Some(pointer) => self.plan_block(pointer, skip, count, plan),
                None => plan.push(Source::Zeros, count),
            }
            at += count;
        }
    }

    /// Plans `length` bytes from byte `from` of a block on; past what it stores it reads as zeros.
    fn plan_block(&self, pointer: BlockPointer, from: usize, length: usize, plan: &mut Plan) {
        let stored = self.stored_bytes(pointer.fragments);
        if let Some((data, before)) = self.segments.in_flight(Segments::extent(&pointer)) {
            plan.push_held(data, before + from..before + stored, length);
            return;
        }
        let count = stored.saturating_sub(from).min(length);
        if count > 0 {
            let (run, before) = self.run_of(pointer, plan);
            plan.push(Source::Stored { run, from: before + from }, count);
        }
        plan.push(Source::Zeros, length - count);
    }

    pub(crate) fn stored_bytes(&self, fragments: u32) -> usize {
        crate::convert::index(fragments) << self.store.geometry().fragment_shift
    }

    /// Adds a block to the runs of `plan`; returns to which, and how many bytes lie before it.
    fn run_of(&self, pointer: BlockPointer, plan: &mut Plan) -> (usize, usize) {
        let (place, fragments) = (pointer.place, pointer.fragments);
        let limit = RUN_BYTES_MAX >> self.store.geometry().fragment_shift;
        match plan.runs.last_mut() {
            // A pointer may name any place: no device has looked at it yet.
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
                plan.runs.push(Run { place, fragments, pointers: vec![pointer] });
                (plan.runs.len() - 1, 0)
            }
        }
    }

    /// Waits for the bytes of `run`, and verifies them. `request`: what brings them, if anything
    /// does.
    fn take_run(&self, run: &Run, way: Way, request: Option<&mut Request>) -> FsResult<Brought> {
        let held = match (way, request) {
            (Way::Alone, Some(request)) => {
                let is_shared = request.runs > 1;
                let lead = self.lead_in(request.extent, run);
                return match request.wait() {
                    Ok(data) => self.verified_or_healed(run, Brought { data, lead }),
                    // What lies around it may be what can't be read.
                    Err(_) if is_shared => self.read_alone(run),
                    Err(error) => self.healed(run, error),
                };
            }
            (Way::Held(data, lead), _) => Some(Brought { data, lead }),
            (Way::Ahead(data, lead), _) => {
                return self.take_ahead(run, Brought { data, lead });
            }
            (Way::Coming, _) => {
                return match self.segments.ahead.take(run.extent()) {
                    Some((data, lead)) => self.take_ahead(run, Brought { data, lead }),
                    None => self.read_alone(run),
                };
            }
            (Way::Fill(fill), Some(request)) => {
                let lead = self.lead_in(request.extent, run);
                let data = request.wait().ok();
                self.segments.cache.end_fill(&fill, run.extent(), data.as_ref());
                data.map(|data| Brought { data, lead })
            }
            (Way::Later | Way::Alone | Way::Fill(_), _) => {
                let held = self.segments.cache.held_now(run.extent());
                held.map(|(data, lead)| Brought { data, lead })
            }
        };
        let held = held.map(|held| self.verified(run, held));
        match held {
            Some(Ok(held)) => Ok(held),
            // What lies around it can't be read, or what is in memory is not it: the device alone
            // knows.
            other => {
                if other.is_some() {
                    self.segments.cache.refuse(run.place);
                }
                self.read_alone(run)
            }
        }
    }

    /// Returns what was read ahead, if it verifies, else what the device has.
    fn take_ahead(&self, run: &Run, brought: Brought) -> FsResult<Brought> {
        self.verified(run, brought).or_else(|error| {
            self.segments.ahead.refuse(run.place);
            // Of several members one may have it, and the one that was read is mended.
            self.healed(run, error).or_else(|_| self.read_alone(run))
        })
    }

    fn verified_or_healed(&self, run: &Run, brought: Brought) -> FsResult<Brought> {
        self.verified(run, brought).or_else(|error| self.healed(run, error))
    }

    fn read_alone(&self, run: &Run) -> FsResult<Brought> {
        let volume = &self.store.volume;
        let (start, length, lead) = volume.pages_around(run.place, run.fragments);
        let read = volume.read(Purpose::Data, start, length).map_err(io);
        let brought = read.and_then(|buffer| {
            let data = buffer.into();
            self.verified(run, Brought { data, lead })
        });
        brought.or_else(|error| self.healed(run, error))
    }

    /// Returns the bytes of a run, each block as a copy has it, or the rest of its row says, that
    /// verifies: the blocks of one run may be whole on different members. `error`: there is one
    /// device.
    fn healed(&self, run: &Run, error: FsError) -> FsResult<Brought> {
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
            let healed = volume.heal(Purpose::Data, start, length, &is_it).map_err(io)?;
            if healed.repaired > 0 {
                self.segments.mended.note(pointer.place);
            }
            let bytes = found_of(pointer, healed)?;
            whole[at..at + stored.len()].copy_from_slice(&bytes[stored.clone()]);
            at += stored.len();
        }
        Ok(Brought { data: whole.into(), lead: 0 })
    }

    /// Returns the bytes of a run, if each block of it is the one that its pointer names.
    fn verified(&self, run: &Run, brought: Brought) -> FsResult<Brought> {
        let mut at = brought.lead;
        for pointer in &run.pointers {
            let end = at + self.stored_bytes(pointer.fragments);
            if !pointer.verifies(&brought.data[at..end])
                && !planted::is(Planted::DataChecksumNotCompared)
            {
                return Err(bad_data(pointer));
            }
            at = end;
        }
        Ok(brought)
    }

    /// Fills `bytes` with what the file holds from `offset` on; the caller has cut it to the size.
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

    /// Reads several ranges of a file, each cut to the size by the caller: asks the device for all
    /// of them, and tells each in order as soon as it is there. One that can't be read is left out.
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

    /// Returns the whole of a block, its first `valid_bytes` as stored and zeros behind them.
    pub(crate) fn block_content(
        &self,
        state: &VnodeState,
        span: Span,
        valid_bytes: usize,
    ) -> FsResult<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        self.fill(state, span.start, &mut buffer[..valid_bytes])?;
        Ok(buffer)
    }
}

impl Files<'_> {
    /// Reads; see [`super::api::FileSystem::read`].
    pub(crate) fn read_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let mut done = Ok(0);
        self.read_files(&[ReadAsked { caller, ino, offset, length_bytes }], &mut |_, read| {
            done = read.map(|slices| {
                let before = into.len();
                slices.iter().for_each(|slice| into.extend_from_slice(slice));
                into.len() - before
            });
        });
        done
    }

    /// Reads several; see [`super::api::FileSystem::read_each`].
    pub(crate) fn read_files(&self, asked: &[ReadAsked<'_>], told: &mut ReadTold<'_>) {
        let mut from = 0;
        while from < asked.len() {
            from += self.read_together(from, &asked[from..], told);
        }
    }

    /// Reads as many of `asked`, whose first is number `from`, as can be locked at once: one at
    /// least. Returns how many.
    ///
    /// The lock of the first is waited for while none is held, and for none of the others: so the
    /// order of locks among files is kept, whatever is asked for.
    fn read_together(
        &self,
        from: usize,
        asked: &[ReadAsked<'_>],
        told: &mut ReadTold<'_>,
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
        let failed = self.carry_out(&plans, &mut |index, slices| told(from + index, Ok(slices)));
        drop(guards);
        // An error names the path of its file, for which locks are taken.
        for (index, error) in failed {
            told(from + index, Err(error));
        }
        plans.len()
    }

    /// Returns the vnode of a file that is read from now on, whose access time says so. Called with
    /// no lock held.
    fn vnode_to_read(&self, asked: &ReadAsked<'_>) -> FsResult<Arc<Vnode>> {
        let vnode = self.vnode(asked.ino)?;
        if asked.length_bytes > 0 {
            // Who is refused reads nothing.
            let may = |state: &VnodeState| self.check_content(asked.caller, state, READ).is_ok();
            self.touch_atime(asked.caller, &vnode, &may);
        }
        Ok(vnode)
    }

    fn plan_of(&self, state: &VnodeState, asked: &ReadAsked<'_>) -> FsResult<Plan> {
        self.check_content(asked.caller, state, READ)?;
        let behind = state.size_bytes.saturating_sub(asked.offset);
        let count = behind.min(wide(asked.length_bytes));
        let mut plan = self.plan_range(state, asked.offset..asked.offset + count)?;
        let step = Step { ino: asked.ino, offset: asked.offset, length_bytes: count };
        plan.step = (!plan.is_small).then_some(step);
        Ok(plan)
    }

    /// Returns the target of a symbolic link.
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
        let mut target = vec![0; length.min(super::api::SYMLINK_BYTES_MAX)];
        self.fill(state, 0, &mut target)?;
        Ok(target)
    }
}

/// Returns who may go on reading as he does, and whether any of what he asks for was read ahead.
fn steps_of<'p>(plans: impl Iterator<Item = &'p Plan>, ways: &[Way]) -> Vec<(Step, bool)> {
    let (mut ways, mut steps) = (ways, Vec::new());
    for plan in plans {
        let (of_plan, rest) = ways.split_at(plan.runs.len());
        ways = rest;
        if let Some(step) = plan.step.filter(|_| !of_plan.is_empty()) {
            steps.push((step, of_plan.iter().any(Way::is_ahead)));
        }
    }
    steps
}

/// Returns what was found of a block; what nobody gives is damage only if all could be read.
pub(crate) fn found_of(pointer: &BlockPointer, healed: Healed) -> FsResult<AlignedBuffer> {
    match healed {
        Healed { bytes: Some(bytes), .. } => Ok(bytes),
        Healed { unread: Some(error), .. } if !planted::is(Planted::UnreadIsDamage) => {
            Err(io(error))
        }
        Healed { .. } => Err(bad_data(pointer)),
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
