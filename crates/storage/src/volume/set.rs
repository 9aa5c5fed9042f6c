//! The members of a disk group at work: which are there, what goes to each of them, and what
//! happens when one fails.
//!
//! Every layout over several devices is built on it, and adds nothing but arithmetic. The sets of
//! all disk groups of a pool have one label together, which is written to the members of all. What
//! speaks of the pool ([`MemberSet::all`], [`MemberSet::change`]) goes by slots of the pool, what
//! speaks of a disk group by slots of its own.
//!
//! # Invariants
//!
//! - MS1: Before a write or a flush is answered that a member has not done, the labels of all that
//!   remain say, durably, that this member has failed.
//! - MS2: A member gets everything until that is so, and nothing afterwards.
//! - MS3: A member that the layout needs never fails: its error goes up, and the pool must stop
//!   writing. It goes on where memory has all that its set has (`set/lost.rs`).
//! - MS4: A joining member gets every write, and is never read.
//! - MS5: Before a write is answered that a member which is away has not done, the map of that
//!   member in the labels has its parts, durably; and from the moment it went, all parts that were
//!   written before and may not be durable on it (MP1, RH2).
//!
//! # Concurrency
//!
//! Who sends a request takes a snapshot of the members ([`MemberSet::view`]), after it has told its
//! range ([`MemberSet::begin_write`]): so whoever holds the range afterwards knows that each write
//! before went to the members of before. While labels are written and the members change no write
//! begins: a write that begins before is in flight, and one that begins afterwards sees the members
//! as they are then, so no write falls between a map and the writes that it is to have (MS5).
//! LOCK: the label's lock is behind every lock of the engine; held while labels are written.

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
use format::missed::Parts;
use format::reshape::Lay;
use format::slots::Slots;
use format::superblock::Superblock;
use parking_lot::{Mutex as PlainMutex, RwLock};
use runtime::planted::{self, Planted};
use runtime::sync::Mutex;

use self::failures::Failures;
pub use self::failures::MemberFailure;
pub(super) use self::labels::take_table;
use self::labels::{Begun, note_states, write_copies, write_labels};
use self::lost::Loss;
pub use self::mending::MendsCounted;
use super::lone::Before;
use super::ranges::{Closed, Hold, InFlight, Ranges};
use super::slot::{Counted, Pending, Slot};
use super::spares::SpareDevices;
use crate::device::{AlignedBuffer, DeviceError, Operation, Purpose, RequestKind, Ticket};
use crate::pool::SEQUENCE_OF_CREATION;

/// In place of a slot of the pool: none.
const NOBODY: usize = usize::MAX;

/// The members at one moment, by slot.
pub type View = Arc<Vec<Slot>>;

/// What a change of members and their table comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing: it was refused, and no label is written.
    Nothing,
    /// Something in the table, that tells of no state.
    Table,
    /// States of members or disk groups: an epoch of membership begins.
    States,
}

/// What a set is to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Its disk group is being added: no label knows it. A member that has not done what it was
    /// asked cannot be marked, so its error goes up, and the disk group is not added.
    New,
    /// Labels are written to its members.
    Of,
    /// Its disk group was taken out: what becomes of its members is nobody's concern.
    Gone,
}

/// What the sets of a pool have together.
#[derive(Debug)]
struct Roster {
    /// The label as it was written last; `None`: there is no pool yet.
    label: Mutex<Option<Superblock>>,
    /// Sequence of the last label that all members have which get writes.
    settled: AtomicU64,
    /// The last label that was begun: an update that failed may be whole on some. Held for a copy
    /// or an exchange only: a plain lock.
    begun: PlainMutex<Begun>,
    /// By slot. Held for a copy or an exchange only: a plain lock.
    sets: RwLock<Vec<Weak<MemberSet>>>,
    /// The spares that are there; which there are the label says.
    spares: SpareDevices,
    /// How many walks count repairs that are not told one by one meanwhile.
    counted_by: AtomicU64,
    /// Which members have failed, or were replaced by a spare, since the pool was opened. Held for
    /// a copy or a change only: a plain lock.
    failures: PlainMutex<Failures>,
}

/// See the module's header.
#[derive(Debug)]
pub struct MemberSet {
    roster: Arc<Roster>,
    /// Slots of the pool that its members are in, by its own; [`NOBODY`]: its member was removed.
    /// Changed with the roster's label locked. Held for a copy or an exchange only: a plain lock.
    numbers: RwLock<Vec<usize>>,
    /// Held for a copy or an exchange only, never across a scheduling point: a plain lock.
    view: RwLock<View>,
    /// Held for a copy only: a plain lock.
    standing: RwLock<Standing>,
    /// Online members that the layout cannot do without (MS3), the idle one apart.
    needed: AtomicUsize,
    /// The own slot of a member on which no segment lies; [`NOBODY`]: there is none such.
    idle: AtomicUsize,
    /// How segments lie that are told apart since the pool was opened: of a disk group that is
    /// reshaped, or was. Held for a copy only: a plain lock.
    lay: RwLock<Option<Lay>>,
    ranges: Arc<Ranges>,
    /// Of what was one device alone: the writes that went to it before (LN1).
    before: OnceLock<Arc<Before>>,
    loss: Loss,
}

impl Roster {
    fn sets(&self) -> Vec<Arc<MemberSet>> {
        self.sets.read().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Returns the slots of all of `sets`, by slot of the pool.
fn gather(sets: &[Arc<MemberSet>]) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for set in sets {
        for (number, own) in set.numbers().into_iter().zip(set.view().iter()) {
            if number == NOBODY {
                continue;
            }
            while slots.len() <= number {
                slots.push(Slot::gone());
            }
            slots[number] = own.clone();
        }
    }
    slots
}

/// Lets no write to any of `sets` begin (MS5).
fn close(sets: &[Arc<MemberSet>]) -> Vec<Closed> {
    sets.iter().map(|set| set.ranges.close()).collect()
}

/// Returns what of the writes so far the member in slot `at` of the pool may not have.
fn unflushed(sets: &[Arc<MemberSet>], member: &Slot, at: usize) -> Parts {
    let own = sets.iter().find(|set| set.own_of(at).is_some());
    own.map_or(Parts::NONE, |set| set.ranges.unflushed(member.flushed()))
}

/// Gives each of `sets` what `slots` have of it.
fn spread(sets: &[Arc<MemberSet>], slots: &[Slot]) {
    for set in sets {
        let of = |number: usize| slots.get(number).cloned();
        let own = set.numbers().into_iter().map(|number| of(number).unwrap_or_else(Slot::gone));
        let own: View = Arc::new(own.collect());
        *set.view.write() = own;
    }
}

/// Whether one of `sets` has fewer members online than its layout needs.
fn is_short(sets: &[Arc<MemberSet>], slots: &[Slot]) -> bool {
    sets.iter().any(|set| set.online_of(slots) < set.needed())
}

impl MemberSet {
    /// Returns the members of a pool of this geometry, each with the slot of the pool that it is
    /// in, of which at least `needed` must stay online. `label` is the newest of theirs, and the
    /// sequence of one that all of them have that should be current; `None` while the pool is being
    /// made.
    #[must_use]
    pub fn new(
        (numbers, slots): (Slots, Vec<Slot>),
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
        let set = MemberSet::of(Arc::new(roster), numbers, slots, (needed, Ranges::new(geometry)));
        set.join_roster();
        set
    }

    /// Returns the members of another disk group, which are in the slots `numbers` of the pool.
    /// Labels are written to them once they have joined ([`MemberSet::join_roster`]).
    #[must_use]
    pub(super) fn beside(&self, numbers: Slots, slots: Vec<Slot>, needed: usize) -> Arc<MemberSet> {
        let ranges = self.ranges.beside();
        MemberSet::of(Arc::clone(&self.roster), numbers, slots, (needed, ranges))
    }

    fn of(
        roster: Arc<Roster>,
        numbers: Slots,
        slots: Vec<Slot>,
        (needed, ranges): (usize, Arc<Ranges>),
    ) -> Arc<MemberSet> {
        let view = RwLock::new(Arc::new(slots));
        let (standing, before) = (RwLock::new(Standing::New), OnceLock::new());
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
            loss: Loss::default(),
        })
    }

    /// Returns the spares of the pool that are there.
    pub(super) fn spare_devices(&self) -> &SpareDevices {
        &self.roster.spares
    }

    /// Labels are written to these members too from now on.
    pub(super) fn join_roster(self: &Arc<MemberSet>) {
        *self.standing.write() = Standing::Of;
        self.roster.sets.write().push(Arc::downgrade(self));
    }

    /// Returns the slots of the pool that its members are in, by its own.
    fn numbers(&self) -> Vec<usize> {
        self.numbers.read().clone()
    }

    /// Returns which of its own slots a slot of the pool is; `None`: it is none of them.
    #[must_use]
    pub(super) fn own_of(&self, slot: usize) -> Option<usize> {
        let own = self.numbers.read().iter().position(|number| *number == slot)?;
        // One that is being attached is a slot when the labels tell of it.
        (own < self.view.read().len()).then_some(own)
    }

    /// A member in `slot` of the pool is one of these from now on: called while the labels come to
    /// tell of it ([`MemberSet::change`]). Its own slot is the first whose member was removed.
    pub(super) fn take_slot(&self, slot: usize) {
        let mut numbers = self.numbers.write();
        match numbers.iter_mut().find(|number| **number == NOBODY) {
            Some(free) => *free = slot,
            None => numbers.push(slot),
        }
    }

    /// The member in `slot` of the pool is none of these any more: as [`MemberSet::take_slot`]. Its
    /// own slot stays, so that no other gets another number while requests are under way.
    pub(super) fn leave_slot(&self, slot: usize) {
        let mut numbers = self.numbers.write();
        numbers.iter_mut().filter(|number| **number == slot).for_each(|number| *number = NOBODY);
    }

    /// Returns the set that has `slot` of the pool, and which of its own that is.
    #[must_use]
    pub fn of_slot(&self, slot: usize) -> Option<(Arc<MemberSet>, usize)> {
        let sets = self.roster.sets();
        sets.iter().find_map(|set| Some((Arc::clone(set), set.own_of(slot)?)))
    }

    /// Returns the members as they are now.
    #[must_use]
    pub fn view(&self) -> View {
        Arc::clone(&self.view.read())
    }

    /// Returns the members as they are now, the one in slot `returning` of the pool, which has come
    /// back, as if it could be read: for who tells what it should have from what it has missed
    /// (RN5).
    #[must_use]
    pub(super) fn view_with(&self, returning: Option<usize>) -> View {
        let (view, returning) = (self.view(), returning.and_then(|slot| self.own_of(slot)));
        let is_back = |slot: &Slot| slot.state == MemberState::Joining && slot.missed.is_some();
        let Some(at) = returning.filter(|at| view.get(*at).is_some_and(is_back)) else {
            return view;
        };
        let mut slots = Vec::clone(&view);
        slots[at].state = MemberState::Online;
        Arc::new(slots)
    }

    /// Returns the members of all disk groups as they are now, by slot of the pool.
    #[must_use]
    pub fn all(&self) -> Vec<Slot> {
        gather(&self.roster.sets())
    }

    /// Returns the label as it was written last.
    #[must_use]
    pub fn label(&self) -> Option<Superblock> {
        self.roster.label.lock().clone()
    }

    /// Whether a member that the pool should have does not get its writes.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        let is_away = |slot: &Slot| !matches!(slot.state, MemberState::Online | MemberState::Gone);
        self.all().iter().any(is_away)
    }

    /// Tells the range, in bytes of the pool, of a write that is about to begin; waits while
    /// somebody holds it. To be called before [`MemberSet::view`].
    #[must_use]
    pub fn begin_write(&self, range: Range<u64>) -> InFlight {
        self.ranges.begin_write(range)
    }

    /// Holds a range, in bytes of the pool, against writers; `None` while one is about to hand a
    /// write there to its devices, or another holds some of it. Ends the writes that the devices
    /// have. Not to be called with the label locked.
    #[must_use]
    pub fn try_hold(&self, range: Range<u64>) -> Option<Hold> {
        if let Some(before) = self.before.get() {
            before.end_writes(&range);
            if before.is_at(&range) {
                return None;
            }
        }
        self.ranges.end_writes(&range);
        self.ranges.try_hold(range)
    }

    /// Ends the writes that devices have, in all disk groups: so that no member has requests
    /// unanswered whose answers only have to be collected. Not to be called with the label locked.
    pub(super) fn end_writes(&self) {
        self.roster.sets().iter().for_each(|set| set.ranges.end_writes(&(0..u64::MAX)));
    }

    /// Writes may be in flight that went to the one device there was, and that `before` knows.
    pub(super) fn note_before(&self, before: Arc<Before>) {
        let _ = self.before.set(before);
    }

    /// Sends a request to one member, and counts it. Its failure is counted when it is waited for,
    /// and fails nobody.
    #[must_use]
    pub fn submit(&self, slot: &Slot, purpose: Purpose, operation: Operation) -> Ticket {
        let Some(device) = &slot.device else {
            let device = "a member that is not there".to_owned();
            return Ticket::ready(Err(DeviceError::Failed { device }));
        };
        slot.counters.io.add(purpose, &operation);
        let kind = operation.kind();
        super::parity_reads::Handing::assert_none(kind == RequestKind::Read);
        let pending = Pending::new(slot);
        let makes_durable = operation.makes_durable();
        let ticket = slot.send_one(makes_durable, || device.submit(purpose, operation));
        Ticket::new(Box::new(Counted { ticket, kind, pending }))
    }

    /// Sends several requests to one member at once, and counts them.
    #[must_use]
    pub fn submit_all(
        &self,
        slot: &Slot,
        purpose: Purpose,
        operations: Vec<Operation>,
    ) -> Vec<Ticket> {
        let Some(device) = &slot.device else {
            let one_by_one = operations.into_iter().map(|one| self.submit(slot, purpose, one));
            return one_by_one.collect();
        };
        operations.iter().for_each(|operation| slot.counters.io.add(purpose, operation));
        let kinds: Vec<RequestKind> = operations.iter().map(Operation::kind).collect();
        super::parity_reads::Handing::assert_none(kinds.contains(&RequestKind::Read));
        let pending: Vec<Pending> = kinds.iter().map(|_| Pending::new(slot)).collect();
        let which: Vec<bool> = operations.iter().map(Operation::makes_durable).collect();
        let tickets = slot.send(&which, || device.submit_all(purpose, operations));
        let counted =
            kinds.into_iter().zip(pending).zip(tickets).map(|((kind, pending), ticket)| {
                Ticket::new(Box::new(Counted { ticket, kind, pending }))
            });
        counted.collect()
    }

    /// Whether a member that was away has missed writes to any byte of `range`, which it must get
    /// when it comes back; all of the fixed regions.
    #[must_use]
    pub fn has_missed(&self, slot: &Slot, range: &Range<u64>) -> bool {
        let Some(mut missed) = slot.missed.filter(|missed| *missed != Parts::ALL) else {
            return true;
        };
        if planted::is(Planted::ReturnEndsEarly)
            && let Some(last) = missed.last()
        {
            missed =
                (0..last).filter(|part| missed.has(*part)).fold(Parts::NONE, |mut all, part| {
                    all.add(part);
                    all
                });
        }
        range.start < self.ranges.groups_offset() || missed.has_any(&self.ranges.parts_of(range))
    }

    /// Notes in the maps of members that are away that `parts` were written, durably (MS5).
    pub(super) fn note_missed(&self, parts: &Parts) -> Result<(), DeviceError> {
        let lacks =
            |slot: &Slot| slot.is_away() && slot.missed.is_some_and(|map| !map.has_all(parts));
        if !self.view().iter().any(lacks) || planted::is(Planted::MissedNotMarked) {
            return Ok(());
        }
        let mut label = self.roster.label.lock();
        let sets = self.roster.sets();
        let _closed = close(&sets);
        let Some(known) = label.as_ref() else { return Ok(()) };
        let (mut slots, mut superblock) = (gather(&sets), self.to_change(known));
        if !slots.iter().any(lacks) {
            // Another was first.
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

    /// Returns the parts that writes in flight write to, some of them not to a member that is away.
    #[must_use]
    pub fn in_flight(&self) -> Parts {
        self.ranges.in_flight()
    }

    /// `member`, as a view had it in `slot`, has not done what it was asked: see the module's
    /// header. Nothing happens to a later stay in that slot, also of the same device: what an
    /// earlier stay has not done is in the map of what the member has missed (MS5, RN1).
    ///
    /// # Errors
    ///
    /// `error`, if the layout needs the member, or what another said whose label was to tell of it:
    /// the pool must stop writing. Of a disk group that is being added `error` too: it is not
    /// added.
    pub fn fail(&self, slot: usize, member: &Slot, error: DeviceError) -> Result<(), DeviceError> {
        let stay = member.stay();
        let mut label = self.roster.label.lock();
        match *self.standing.read() {
            Standing::Of => {}
            Standing::New => return Err(error),
            Standing::Gone => return Ok(()),
        }
        let sets = self.roster.sets();
        let _closed = close(&sets);
        let mut slots = gather(&sets);
        let is_there = |slot: &&mut Slot| slot.stay() == stay && slot.writable().is_some();
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
        if !planted::is(Planted::FailureNotLabelled) {
            write_labels(&sets, &mut slots, &mut superblock, None)?;
        }
        self.roster.failures.lock().note(number, name, error.to_string());
        *label = Some(superblock);
        // CRASH: the labels are durable; only now does nothing more go to it (MS2).
        spread(&sets, &slots);
        Ok(())
    }

    /// Writes `superblock` to the labels of all members, durably; its sequence rises, and what it
    /// says of members is what this set knows.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
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

    /// The pool is as long as `geometry` says, in the maps of members that go from now on. To be
    /// called where members change, when none of the main disk group is away ([`Ranges`], RH3).
    pub(super) fn cut_anew(&self, geometry: &Geometry) {
        self.roster.sets().iter().for_each(|set| set.ranges.cut_anew(geometry));
    }

    /// Returns the label as the next update begins from it: no sequence is used twice, and no epoch
    /// is forgotten, also if an update failed. Who has that label is of no other history (MJ2).
    fn to_change(&self, known: &Superblock) -> Superblock {
        let mut superblock = known.clone();
        let begun = self.roster.begun.lock();
        if begun.sequence > known.sequence {
            superblock.sequence = begun.sequence;
            superblock.memberships.clone_from(&begun.memberships);
        }
        superblock
    }

    /// Lets go of the device of a member that is away, and returns what it is called.
    ///
    /// # Errors
    ///
    /// How many requests to it were not answered: the device stays.
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

    /// Changes members and their table together: `change` is given both, and says what it has
    /// changed. The labels tell of it, durably, before anybody sees it.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Vec<Slot>, &mut Superblock) -> Change,
    ) -> Result<(), DeviceError> {
        self.change_last(None, change)
    }

    /// The same, but the label of the member in slot `last` is written when those of the others are
    /// durable: so it never says what they do not know, and a crash between them, after which the
    /// others go on without that member, does not make two histories of it.
    ///
    /// # Errors
    ///
    /// See [`MemberSet::change`].
    pub fn change_last(
        &self,
        last: Option<usize>,
        change: impl FnOnce(&mut Vec<Slot>, &mut Superblock) -> Change,
    ) -> Result<(), DeviceError> {
        self.change_with(|slots, label| (change(slots, label), last))
    }

    /// The same, where `change` says which slot that is.
    ///
    /// # Errors
    ///
    /// See [`MemberSet::change`].
    pub fn change_with(
        &self,
        change: impl FnOnce(&mut Vec<Slot>, &mut Superblock) -> (Change, Option<usize>),
    ) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        let sets = self.roster.sets();
        let _closed = close(&sets);
        let Some(known) = label.as_ref() else { return Ok(()) };
        let (mut slots, mut superblock) = (gather(&sets), self.to_change(known));
        let (changed, last) = change(&mut slots, &mut superblock);
        match changed {
            Change::Nothing => return Ok(()),
            Change::Table => {}
            Change::States => {
                note_states(&sets, &mut superblock, &mut slots);
                superblock.add_membership();
            }
        }
        write_labels(&sets, &mut slots, &mut superblock, last)?;
        *label = Some(superblock);
        spread(&sets, &slots);
        Ok(())
    }

    /// The label of a member that should be current, and is absent or older than the others, says
    /// from now on that it has missed writes, durably. Nothing may be written before that.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn leave_absent_behind(&self) -> Result<(), DeviceError> {
        self.change(|slots, label| {
            let table = label.members.iter();
            // It has been left out already: see `Volume::open_members`.
            let is_older = table.zip(&*slots).any(|(it, slot)| it.is_written() && slot.is_away());
            let absent = slots.iter_mut().filter(|slot| is_newly_absent(slot));
            // What was in flight at a crash recovery writes again, to all that are there: 0064.
            let absent = absent.map(|slot| slot.leave(MemberState::Missing, Parts::NONE)).count();
            if is_older || absent > 0 { Change::States } else { Change::Nothing }
        })
    }

    /// Writes the first labels of a pool: the last writes make it.
    ///
    /// # Errors
    ///
    /// What a device said: there is no pool.
    pub fn write_first_labels(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        superblock.sequence = SEQUENCE_OF_CREATION;
        superblock.memberships = vec![Membership::FIRST];
        let slots = self.all();
        let others: Vec<u16> = (1..SUPERBLOCK_COPIES).collect();
        let all: Vec<usize> = (0..slots.len()).collect();
        let same = |slot: usize| slot;
        // CRASH: only the first copies make a pool of what is there.
        for copies in [&others[..], &[0]] {
            if let Some((_, error)) = write_copies(&slots, &all, same, superblock, copies).pop() {
                return Err(error);
            }
        }
        self.roster.settled.fetch_max(superblock.sequence, Ordering::SeqCst);
        *label = Some(superblock.clone());
        Ok(())
    }

    /// Writes `superblock`, which others have already, to the labels of these members, durably.
    ///
    /// # Errors
    ///
    /// What a member said.
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

    /// Reads `length_bytes` from byte `offset` of each member that may be read, at once. Returns
    /// what each said, with its slot.
    #[must_use]
    pub fn read_each(
        &self,
        view: &View,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Vec<(usize, Result<AlignedBuffer, DeviceError>)> {
        let readable = (0..).zip(view.iter()).filter(|(_, slot)| slot.readable().is_some());
        let submit = |(at, slot): (usize, &Slot)| {
            let buffer = AlignedBuffer::for_reading(length_bytes);
            (at, self.submit(slot, purpose, Operation::Read { offset, buffer }))
        };
        let tickets: Vec<(usize, Ticket)> = readable.map(submit).collect();
        let wait = |(at, ticket): (usize, Ticket)| {
            let answer = ticket.wait();
            (at, answer.map(|done| done.buffer.expect("a read returns its buffer")))
        };
        tickets.into_iter().map(wait).collect()
    }
}

/// Whether the labels call a member current or joining that is not there.
pub(super) fn is_newly_absent(slot: &Slot) -> bool {
    let is_known = match slot.state {
        MemberState::Missing | MemberState::Failed | MemberState::Gone => true,
        MemberState::Online | MemberState::Joining => false,
    };
    slot.device.is_none() && !is_known
}
