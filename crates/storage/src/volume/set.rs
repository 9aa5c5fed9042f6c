//! The members of a disk group: their states, requests to them, their labels, and the failure of
//! one. Every layout over several devices uses it, and adds only arithmetic.
//!
//! The sets of all disk groups share one label, which is written to the members of all. A *slot of
//! the pool* numbers a member in the whole pool, an *own slot* in one set. [`MemberSet::all`] and
//! [`MemberSet::change`] use slots of the pool, other methods own slots.
//!
//! # Invariants
//!
//! - MS1: Before a write or a flush completes that a member has not done, all remaining labels mark
//!   that member failed, durably.
//! - MS2: A member gets every request until the labels mark it failed, and none afterwards.
//! - MS3: A member that the layout needs is never marked failed: its error is returned, and the
//!   pool must stop writing. The exception is a set whose contents are in memory too
//!   (`set/lost.rs`).
//! - MS4: A joining member gets every write, and is never read.
//! - MS5: Before a write completes that an absent member has not done, the stale parts of that
//!   member in the labels include its range, durably. When a member leaves, its stale parts begin
//!   with all parts whose earlier writes may not be durable on it (RH2 in
//!   [`ranges`](super::ranges), MP1 in [`format::missed`]).
//!
//! # Concurrency
//!
//! A request first registers its range ([`MemberSet::begin_write`]), and then copies the members
//! ([`MemberSet::view`]). So when a range is held, every earlier write to it went to the earlier
//! members. No write begins while labels are written and members change, so no stale part is missed
//! (MS5). LOCK: the label's lock is taken after every lock of the engine, and is held while labels
//! are written.

mod failures;
mod labels;
mod lay;
mod leaving;
mod lost;
mod mending;
mod needs;
mod together;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use format::geometry::{Geometry, SUPERBLOCK_COPIES};
use format::members::{MemberState, Membership};
use format::missed::StaleParts;
use format::reshape::StripeMapping;
use format::slots::Slots;
use format::superblock::Superblock;
use parking_lot::{Mutex as PlainMutex, RwLock};
use runtime::sync::Mutex;
use runtime::{planted, unless_planted};

use self::failures::Failures;
pub use self::failures::MemberFailure;
pub(super) use self::labels::take_table;
use self::labels::{UsedLabelValues, note_states, write_copies, write_labels};
use self::lost::MemberSetLoss;
pub use self::mending::RepairCounting;
use super::lone::SingleDeviceWrites;
use super::ranges::{InFlightWrite, RangeHold, RangeLocks, WriteExclusion};
use super::slot::{CountedRequest, MemberSlot, UnansweredRequest};
use super::spares::SpareDevices;
use crate::device::{AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, RequestKind, Ticket};
use crate::pool::SEQUENCE_OF_CREATION;

/// An unused own slot.
const NOBODY: usize = usize::MAX;

/// The members at one moment, by own slot.
pub type MemberView = Arc<Vec<MemberSlot>>;

/// The extent of a change to members and label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelChange {
    /// Refused: no label is written.
    Nothing,
    /// Only table fields other than states.
    Table,
    /// States of members or disk groups: an epoch of membership begins.
    States,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberSetState {
    /// Being added. No label lists its members, so none can be marked failed: an error is returned,
    /// and the addition fails.
    New,
    /// Part of the pool: labels are written to its members.
    Of,
    /// Taken out: failures of its members are ignored.
    Gone,
}

#[derive(Debug)]
struct Roster {
    /// The last written label. `None` during creation.
    label: Mutex<Option<Superblock>>,
    /// Sequence of the last label that all writable members have.
    settled: AtomicU64,
    /// The last label update begun. If it failed, some members may have its label. Held for a copy
    /// or an exchange only: a plain lock.
    begun: PlainMutex<UsedLabelValues>,
    /// Held for a copy or an exchange only: a plain lock.
    sets: RwLock<Vec<Weak<MemberSet>>>,
    /// The devices of those spares in the label that are present.
    spares: SpareDevices,
    /// Number of walks that count repairs instead of logging.
    counted_by: AtomicU64,
    /// Held for a copy or a change only: a plain lock.
    failures: PlainMutex<Failures>,
}

/// See the module's header.
#[derive(Debug)]
pub struct MemberSet {
    roster: Arc<Roster>,
    /// Slots of the pool by own slot. Changed under the label's lock. Held for a copy or an
    /// exchange only: a plain lock.
    numbers: RwLock<Vec<usize>>,
    /// Held for a copy or an exchange only, never across a scheduling point: a plain lock.
    view: RwLock<MemberView>,
    standing: RwLock<MemberSetState>,
    /// Number of online members that the layout needs (MS3), besides the idle one.
    needed: AtomicUsize,
    /// Own slot of a member without segments, or [`NOBODY`].
    idle: AtomicUsize,
    /// The layout of segments, if a reshape changed it. Held for a copy only: a plain lock.
    lay: RwLock<Option<StripeMapping>>,
    ranges: Arc<RangeLocks>,
    /// Writes in flight that began on a single device, before others were attached (LN1).
    before: OnceLock<Arc<SingleDeviceWrites>>,
    loss: MemberSetLoss,
}

impl Roster {
    fn sets(&self) -> Vec<Arc<MemberSet>> {
        self.sets.read().iter().filter_map(Weak::upgrade).collect()
    }
}

fn gather(sets: &[Arc<MemberSet>]) -> Vec<MemberSlot> {
    let mut slots: Vec<MemberSlot> = Vec::new();
    for set in sets {
        for (number, own) in set.numbers().into_iter().zip(set.view().iter()) {
            if number == NOBODY {
                continue;
            }
            while slots.len() <= number {
                slots.push(MemberSlot::gone());
            }
            slots[number] = own.clone();
        }
    }
    slots
}

fn close(sets: &[Arc<MemberSet>]) -> Vec<WriteExclusion> {
    sets.iter().map(|set| set.ranges.close()).collect()
}

/// Returns the parts with writes that may not be durable on the member in slot `at` of the pool.
fn unflushed(sets: &[Arc<MemberSet>], member: &MemberSlot, at: usize) -> StaleParts {
    let own = sets.iter().find(|set| set.own_of(at).is_some());
    own.map_or(StaleParts::NONE, |set| set.ranges.unflushed(member.flushed()))
}

fn spread(sets: &[Arc<MemberSet>], slots: &[MemberSlot]) {
    for set in sets {
        let of = |number: usize| slots.get(number).cloned();
        let own =
            set.numbers().into_iter().map(|number| of(number).unwrap_or_else(MemberSlot::gone));
        let own: MemberView = Arc::new(own.collect());
        *set.view.write() = own;
    }
}

fn is_short(sets: &[Arc<MemberSet>], slots: &[MemberSlot]) -> bool {
    sets.iter().any(|set| set.online_of(slots) < set.needed())
}

impl MemberSet {
    /// Returns the members of the main disk group, with their slots of the pool. `needed` of them
    /// must stay online. `label` is the newest label, with the sequence of the last one that all
    /// members have, or `None` during creation.
    #[must_use]
    pub fn new(
        (numbers, slots): (Slots, Vec<MemberSlot>),
        label: Option<(Superblock, u64)>,
        needed: usize,
        geometry: &Geometry,
    ) -> Arc<MemberSet> {
        let (label, settled) = label.unzip();
        let settled = AtomicU64::new(settled.unwrap_or_default());
        let (label, sets, begun) = (Mutex::new(label), RwLock::default(), PlainMutex::default());
        let roster = Roster {
            label,
            settled,
            begun,
            sets,
            spares: SpareDevices::default(),
            counted_by: AtomicU64::new(0),
            failures: PlainMutex::default(),
        };
        let set =
            MemberSet::of(Arc::new(roster), numbers, slots, (needed, RangeLocks::new(geometry)));
        set.join_roster();
        set
    }

    /// Returns the members of another disk group. Labels are written to them after
    /// [`MemberSet::join_roster`].
    #[must_use]
    pub(super) fn beside(
        &self,
        numbers: Slots,
        slots: Vec<MemberSlot>,
        needed: usize,
    ) -> Arc<MemberSet> {
        let ranges = self.ranges.beside();
        MemberSet::of(Arc::clone(&self.roster), numbers, slots, (needed, ranges))
    }

    fn of(
        roster: Arc<Roster>,
        numbers: Slots,
        slots: Vec<MemberSlot>,
        (needed, ranges): (usize, Arc<RangeLocks>),
    ) -> Arc<MemberSet> {
        let view = RwLock::new(Arc::new(slots));
        let (standing, before) = (RwLock::new(MemberSetState::New), OnceLock::new());
        let numbers = RwLock::new(numbers.into_iter().collect());
        let (needed, idle) = (AtomicUsize::new(needed), AtomicUsize::new(NOBODY));
        let lay = RwLock::default();
        Arc::new(MemberSet {
            roster,
            numbers,
            view,
            standing,
            needed,
            idle,
            lay,
            ranges,
            before,
            loss: MemberSetLoss::default(),
        })
    }

    pub(super) fn spare_devices(&self) -> &SpareDevices {
        &self.roster.spares
    }

    pub(super) fn join_roster(self: &Arc<MemberSet>) {
        *self.standing.write() = MemberSetState::Of;
        self.roster.sets.write().push(Arc::downgrade(self));
    }

    fn numbers(&self) -> Vec<usize> {
        self.numbers.read().clone()
    }

    #[must_use]
    pub(super) fn own_of(&self, slot: usize) -> Option<usize> {
        let own = self.numbers.read().iter().position(|number| *number == slot)?;
        // A member being attached is not in the view before the labels list it.
        (own < self.view.read().len()).then_some(own)
    }

    /// Adds `slot` of the pool at the first unused own slot. Called inside a [`MemberSet::change`].
    pub(super) fn take_slot(&self, slot: usize) {
        let mut numbers = self.numbers.write();
        match numbers.iter_mut().find(|number| **number == NOBODY) {
            Some(free) => *free = slot,
            None => numbers.push(slot),
        }
    }

    /// Removes `slot` of the pool. The own slot stays unused, because requests in flight use own
    /// slots. Called inside a [`MemberSet::change`].
    pub(super) fn leave_slot(&self, slot: usize) {
        let mut numbers = self.numbers.write();
        numbers.iter_mut().filter(|number| **number == slot).for_each(|number| *number = NOBODY);
    }

    /// Returns the set that has `slot` of the pool, and its own slot there.
    #[must_use]
    pub fn of_slot(&self, slot: usize) -> Option<(Arc<MemberSet>, usize)> {
        let sets = self.roster.sets();
        sets.iter().find_map(|set| Some((Arc::clone(set), set.own_of(slot)?)))
    }

    /// Returns the current members.
    #[must_use]
    pub fn view(&self) -> MemberView {
        Arc::clone(&self.view.read())
    }

    /// Returns the current members, with the returning one in slot `returning` readable. The caller
    /// must detect stale contents (RN5).
    #[must_use]
    pub(super) fn view_with(&self, returning: Option<usize>) -> MemberView {
        let (view, returning) = (self.view(), returning.and_then(|slot| self.own_of(slot)));
        let is_back =
            |slot: &MemberSlot| slot.state == MemberState::Joining && slot.missed.is_some();
        let Some(at) = returning.filter(|at| view.get(*at).is_some_and(is_back)) else {
            return view;
        };
        let mut slots = Vec::clone(&view);
        slots[at].state = MemberState::Online;
        Arc::new(slots)
    }

    /// Returns the current members of all disk groups, by slot of the pool.
    #[must_use]
    pub fn all(&self) -> Vec<MemberSlot> {
        gather(&self.roster.sets())
    }

    /// Returns the last written label.
    #[must_use]
    pub fn label(&self) -> Option<Superblock> {
        self.roster.label.lock().clone()
    }

    /// Whether a member of the pool is not online.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let is_away =
            |slot: &MemberSlot| !matches!(slot.state, MemberState::Online | MemberState::Gone);
        self.all().iter().any(is_away)
    }

    /// Registers a write to a range of the pool, after waiting while the range is held. Must
    /// precede [`MemberSet::view`].
    #[must_use]
    pub fn begin_write(&self, range: Range<u64>) -> InFlightWrite {
        self.ranges.begin_write(range)
    }

    /// Completes submitted writes to a range of the pool, and holds the range against further ones.
    /// `None` while another write or hold overlaps. LOCK: not under the label's lock.
    #[must_use]
    pub fn try_hold(&self, range: Range<u64>) -> Option<RangeHold> {
        if let Some(before) = self.before.get() {
            before.end_writes(&range);
            if before.is_at(&range) {
                return None;
            }
        }
        self.ranges.end_writes(&range);
        self.ranges.try_hold(range)
    }

    /// Completes submitted writes of all disk groups, in case no caller collects their answers.
    /// LOCK: not under the label's lock.
    pub(super) fn end_writes(&self) {
        self.roster.sets().iter().for_each(|set| set.ranges.end_writes(&(0..u64::MAX)));
    }

    pub(super) fn note_before(&self, before: Arc<SingleDeviceWrites>) {
        let _ = self.before.set(before);
    }

    /// Submits a request to one member. An error is counted, and does not fail the member.
    #[must_use]
    pub fn submit(
        &self,
        slot: &MemberSlot,
        purpose: IoPurpose,
        operation: DeviceOperation,
    ) -> Ticket {
        let Some(device) = &slot.device else {
            let device = "a member that is not there".to_owned();
            return Ticket::ready(Err(DeviceError::Failed { device }));
        };
        slot.counters.io.add(purpose, &operation);
        let kind = operation.kind();
        super::parity_reads::StripeSubmission::assert_none(kind == RequestKind::Read);
        let pending = UnansweredRequest::new(slot);
        let makes_durable = operation.makes_durable();
        let ticket = slot.send_one(makes_durable, || device.submit(purpose, operation));
        Ticket::new(Box::new(CountedRequest { ticket, kind, pending }))
    }

    /// Submits several requests to one member.
    #[must_use]
    pub fn submit_all(
        &self,
        slot: &MemberSlot,
        purpose: IoPurpose,
        operations: Vec<DeviceOperation>,
    ) -> Vec<Ticket> {
        let Some(device) = &slot.device else {
            let one_by_one = operations.into_iter().map(|one| self.submit(slot, purpose, one));
            return one_by_one.collect();
        };
        operations.iter().for_each(|operation| slot.counters.io.add(purpose, operation));
        let kinds: Vec<RequestKind> = operations.iter().map(DeviceOperation::kind).collect();
        super::parity_reads::StripeSubmission::assert_none(kinds.contains(&RequestKind::Read));
        let pending: Vec<UnansweredRequest> =
            kinds.iter().map(|_| UnansweredRequest::new(slot)).collect();
        let which: Vec<bool> = operations.iter().map(DeviceOperation::makes_durable).collect();
        let tickets = slot.send(&which, || device.submit_all(purpose, operations));
        let counted =
            kinds.into_iter().zip(pending).zip(tickets).map(|((kind, pending), ticket)| {
                Ticket::new(Box::new(CountedRequest { ticket, kind, pending }))
            });
        counted.collect()
    }

    /// Whether any byte of `range` is stale on a member. Fixed regions always are.
    #[must_use]
    pub fn has_missed(&self, slot: &MemberSlot, range: &Range<u64>) -> bool {
        let Some(missed) = slot.missed.filter(|missed| *missed != StaleParts::ALL) else {
            return true;
        };
        range.start < self.ranges.groups_offset() || missed.has_any(&self.ranges.parts_of(range))
    }

    /// Marks `parts` stale on absent members, durably (MS5).
    pub(super) fn note_missed(&self, parts: &StaleParts) -> Result<(), DeviceError> {
        let lacks = |slot: &MemberSlot| {
            slot.is_away() && slot.missed.is_some_and(|map| !map.has_all(parts))
        };
        if !self.view().iter().any(lacks) || planted!(MissedNotMarked) {
            return Ok(());
        }
        let mut label = self.roster.label.lock();
        let sets = self.roster.sets();
        let _closed = close(&sets);
        let Some(known) = label.as_ref() else { return Ok(()) };
        let (mut slots, mut superblock) = (gather(&sets), self.to_change(known));
        if !slots.iter().any(lacks) {
            // Another thread was first.
            return Ok(());
        }
        for slot in slots.iter_mut().filter(|slot| slot.is_away()) {
            slot.missed = slot.missed.map(|missed| missed.with(*parts));
        }
        note_states(&sets, &mut superblock, &mut slots);
        write_labels(&sets, &mut slots, &mut superblock, None)?;
        *label = Some(superblock);
        spread(&sets, &slots);
        Ok(())
    }

    /// Returns the parts with writes in flight.
    #[must_use]
    pub fn in_flight(&self) -> StaleParts {
        self.ranges.in_flight()
    }

    /// Fails `member`, as seen in own slot `slot` of a view, after a failed request (MS1). If the
    /// member has been replaced or has returned since, it is not failed: its stale parts cover the
    /// request (MS5, RN1).
    ///
    /// # Errors
    ///
    /// `error`, if the layout needs the member, or its disk group is being added. Otherwise an
    /// error of another needed member. The pool must stop writing, unless it is an addition.
    pub fn fail(
        &self,
        slot: usize,
        member: &MemberSlot,
        error: DeviceError,
    ) -> Result<(), DeviceError> {
        let stay = member.stay();
        let mut label = self.roster.label.lock();
        match *self.standing.read() {
            MemberSetState::Of => {}
            MemberSetState::New => return Err(error),
            MemberSetState::Gone => return Ok(()),
        }
        let sets = self.roster.sets();
        let _closed = close(&sets);
        let mut slots = gather(&sets);
        let is_there = |slot: &&mut MemberSlot| slot.stay() == stay && slot.writable().is_some();
        let number = self.numbers().get(slot).copied().unwrap_or(NOBODY);
        let Some(member) = slots.get_mut(number).filter(is_there) else {
            // Another thread was first.
            return Ok(());
        };
        let was_joining = member.state == MemberState::Joining;
        let name = member.device.as_ref().map_or_else(String::new, |it| it.info().name.clone());
        member.leave(MemberState::Failed, self.ranges.unflushed(member.flushed()));
        let Some(known) = label.as_ref() else { return Err(error) };
        if !was_joining && is_short(&sets, &slots) {
            self.loses(&error);
            return Err(error);
        }
        tracing::error!(
            device = name,
            "{error}; the member has failed, and the pool goes on without it: replace it"
        );
        let mut superblock = self.to_change(known);
        note_states(&sets, &mut superblock, &mut slots);
        superblock.add_membership();
        let mut write = || write_labels(&sets, &mut slots, &mut superblock, None);
        unless_planted!(FailureNotLabelled, write()?);
        self.roster.failures.lock().note(number, name, error.to_string());
        *label = Some(superblock);
        // CRASH: the labels are durable before the member gets no more requests (MS2).
        spread(&sets, &slots);
        Ok(())
    }

    /// Writes `superblock` to all labels, durably, under the next sequence number, with the current
    /// member table.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn update_labels(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        let sets = self.roster.sets();
        let _closed = close(&sets);
        if let Some(known) = label.as_ref() {
            let known = self.to_change(known);
            superblock.sequence = superblock.sequence.max(known.sequence);
            take_table(superblock, &known);
        }
        let mut slots = gather(&sets);
        write_labels(&sets, &mut slots, superblock, None)?;
        *label = Some(superblock.clone());
        spread(&sets, &slots);
        Ok(())
    }

    /// Sets the size of parts for a changed length of the pool ([`RangeLocks`], RH3). Called inside
    /// a label change, without absent members in the main disk group.
    pub(super) fn cut_rebuild(&self, geometry: &Geometry) {
        self.roster.sets().iter().for_each(|set| set.ranges.cut_rebuild(geometry));
    }

    /// Returns the label to change. After a failed update it continues that one's sequence and
    /// epochs, so a member that got the failed update is not refused as of another history (MJ2).
    fn to_change(&self, known: &Superblock) -> Superblock {
        let mut superblock = known.clone();
        let begun = self.roster.begun.lock();
        if begun.sequence > known.sequence {
            superblock.sequence = begun.sequence;
            superblock.memberships.clone_from(&begun.memberships);
        }
        superblock
    }

    /// Drops the device of an absent member, and returns its name.
    ///
    /// # Errors
    ///
    /// The number of unanswered requests: the device stays.
    pub fn let_go(&self, slot: usize) -> Result<Option<String>, u64> {
        if self.all().get(slot).is_some_and(|away| away.unanswered() > 0) {
            self.end_writes();
        }
        let _label = self.roster.label.lock();
        let sets = self.roster.sets();
        let mut slots = gather(&sets);
        let Some(away) = slots.get_mut(slot).filter(|slot| slot.is_away()) else {
            return Ok(None);
        };
        match away.unanswered() {
            0 => {}
            unanswered => return Err(unanswered),
        }
        let name = away.device.take().map(|device| device.info().name.clone());
        spread(&sets, &slots);
        Ok(name)
    }

    /// Changes members and label. The labels are durable before the change is visible.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Vec<MemberSlot>, &mut Superblock) -> LabelChange,
    ) -> Result<(), DeviceError> {
        self.change_last(None, change)
    }

    /// Does as [`MemberSet::change`], but writes the label of slot `last` after the others are
    /// durable. With a crash in the other order, the members without the new label could go on
    /// without that slot, as a second history.
    ///
    /// # Errors
    ///
    /// See [`MemberSet::change`].
    pub fn change_last(
        &self,
        last: Option<usize>,
        change: impl FnOnce(&mut Vec<MemberSlot>, &mut Superblock) -> LabelChange,
    ) -> Result<(), DeviceError> {
        self.change_with(|slots, label| (change(slots, label), last))
    }

    /// Does as [`MemberSet::change_last`], where `change` returns the last slot.
    ///
    /// # Errors
    ///
    /// See [`MemberSet::change`].
    pub fn change_with(
        &self,
        change: impl FnOnce(&mut Vec<MemberSlot>, &mut Superblock) -> (LabelChange, Option<usize>),
    ) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        let sets = self.roster.sets();
        let _closed = close(&sets);
        let Some(known) = label.as_ref() else { return Ok(()) };
        let (mut slots, mut superblock) = (gather(&sets), self.to_change(known));
        let (changed, last) = change(&mut slots, &mut superblock);
        match changed {
            LabelChange::Nothing => return Ok(()),
            LabelChange::Table => {}
            LabelChange::States => {
                note_states(&sets, &mut superblock, &mut slots);
                superblock.add_membership();
            }
        }
        write_labels(&sets, &mut slots, &mut superblock, last)?;
        *label = Some(superblock);
        spread(&sets, &slots);
        Ok(())
    }

    /// Marks members missing, durably, that are absent or have an older label. Must precede all
    /// other writes.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
    pub fn leave_absent_behind(&self) -> Result<(), DeviceError> {
        self.change(|slots, label| {
            let table = label.members.iter();
            // A member with an older label is marked missing in `slots` already: see
            // `Volume::open_members`.
            let is_older = table.zip(&*slots).any(|(it, slot)| it.is_written() && slot.is_away());
            let absent = slots.iter_mut().filter(|slot| is_newly_absent(slot));
            // No stale parts: recovery writes again, on all present members, what was in flight at
            // a crash (0064).
            let absent =
                absent.map(|slot| slot.leave(MemberState::Missing, StaleParts::NONE)).count();
            if is_older || absent > 0 { LabelChange::States } else { LabelChange::Nothing }
        })
    }

    /// Writes the first labels of a pool. The last writes create it.
    ///
    /// # Errors
    ///
    /// A device error: there is no pool.
    pub fn write_first_labels(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        superblock.sequence = SEQUENCE_OF_CREATION;
        superblock.memberships = vec![Membership::FIRST];
        let slots = self.all();
        let others: Vec<u16> = (1..SUPERBLOCK_COPIES).collect();
        let all: Vec<usize> = (0..slots.len()).collect();
        let same = |slot: usize| slot;
        // CRASH: only the first copies create the pool.
        for copies in [&others[..], &[0]] {
            if let Some((_, error)) = write_copies(&slots, &all, same, superblock, copies).pop() {
                return Err(error);
            }
        }
        self.roster.settled.fetch_max(superblock.sequence, Ordering::SeqCst);
        *label = Some(superblock.clone());
        Ok(())
    }

    /// Writes `superblock`, which other members have already, to the labels of these members,
    /// durably.
    pub(super) fn write_own_labels(&self, superblock: &Superblock) -> Result<(), DeviceError> {
        let view = self.view();
        let all: Vec<usize> = (0..view.len()).collect();
        let numbers = self.numbers();
        let number = |own: usize| numbers.get(own).copied().unwrap_or(NOBODY);
        for copies in [[0, 2], [1, 3]] {
            let failed = write_copies(&view, &all, number, superblock, &copies).pop();
            if let Some((_, error)) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads a range of every readable member in parallel. Returns each answer with its own slot.
    #[must_use]
    pub fn read_each(
        &self,
        view: &MemberView,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Vec<(usize, Result<AlignedBuffer, DeviceError>)> {
        let readable = (0..).zip(view.iter()).filter(|(_, slot)| slot.readable().is_some());
        let submit = |(at, slot): (usize, &MemberSlot)| {
            let buffer = AlignedBuffer::for_reading(length_bytes);
            (at, self.submit(slot, purpose, DeviceOperation::Read { offset, buffer }))
        };
        let tickets: Vec<(usize, Ticket)> = readable.map(submit).collect();
        let wait = |(at, ticket): (usize, Ticket)| {
            let answer = ticket.wait();
            (at, answer.map(|done| done.buffer.expect("a read returns its buffer")))
        };
        tickets.into_iter().map(wait).collect()
    }
}

/// Whether a member is absent that the labels call online or joining.
pub(super) fn is_newly_absent(slot: &MemberSlot) -> bool {
    let is_known = match slot.state {
        MemberState::Missing | MemberState::Failed | MemberState::Gone => true,
        MemberState::Online | MemberState::Joining => false,
    };
    slot.device.is_none() && !is_known
}
