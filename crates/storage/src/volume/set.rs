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
//!   writing.
//! - MS4: A joining member gets every write, and is never read.
//!
//! # Concurrency
//!
//! Who sends a request takes a snapshot of the members ([`MemberSet::view`]), after it has told its
//! range ([`MemberSet::begin_write`]): so whoever holds the range afterwards knows that each write
//! before went to the members of before. LOCK: the lock of the label is behind every lock of the
//! engine and held while labels are written.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use format::geometry::SUPERBLOCK_COPIES;
use format::members::{MemberState, Membership};
use format::superblock::Superblock;
use parking_lot::RwLock;
use runtime::planted::{self, Planted};
use runtime::sync::Mutex;

use super::ranges::{Hold, InFlight, Ranges};
use super::spares::SpareDevices;
use crate::counters::{IoCounters, IoCounts};
use crate::device::{
    AlignedBuffer, Completion, DeviceError, Operation, PendingRequest, Purpose, RequestKind,
    SharedDevice, Ticket,
};
use crate::pool::{SEQUENCE_OF_CREATION, submit_superblock_copy};

/// What happened to a member since the pool was opened.
#[derive(Debug, Default)]
pub(super) struct MemberCounters {
    io: IoCounters,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    repaired: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberCounts {
    /// Requests and bytes, labels apart.
    pub io: IoCounts,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Ranges that were read and did not verify.
    pub checksum_errors: u64,
    /// Ranges that were written again with what another member had.
    pub repaired: u64,
}

/// A slot, and the member in it.
#[derive(Clone, Debug)]
pub struct Slot {
    /// `None`: it was not found.
    pub device: Option<SharedDevice>,
    /// What it is to the pool.
    pub state: MemberState,
    counters: Arc<MemberCounters>,
}

impl Slot {
    /// Returns a slot whose counters stand at zero.
    #[must_use]
    pub fn new(device: Option<SharedDevice>, state: MemberState) -> Slot {
        Slot { device, state, counters: Arc::default() }
    }

    /// Returns the device that reads may go to.
    #[must_use]
    pub fn readable(&self) -> Option<&SharedDevice> {
        self.device.as_ref().filter(|_| self.state == MemberState::Online)
    }

    /// Returns the device that writes go to (MS4).
    #[must_use]
    pub fn writable(&self) -> Option<&SharedDevice> {
        let is_written = match self.state {
            MemberState::Online => true,
            MemberState::Joining => !planted::is(Planted::JoiningMissesWrites),
            MemberState::Missing | MemberState::Failed | MemberState::Gone => false,
        };
        self.device.as_ref().filter(|_| is_written)
    }

    /// Returns what happened to it.
    #[must_use]
    pub fn counts(&self) -> MemberCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MemberCounts {
            io: self.counters.io.snapshot(),
            read_errors: of(&self.counters.read_errors),
            write_errors: of(&self.counters.write_errors),
            checksum_errors: of(&self.counters.checksum_errors),
            repaired: of(&self.counters.repaired),
        }
    }

    /// Counts a range that did not verify, and whether it was written again.
    pub fn count_damage(&self, is_repaired: bool) {
        self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        self.counters.repaired.fetch_add(u64::from(is_repaired), Ordering::Relaxed);
    }

    fn count_error(&self, kind: RequestKind) {
        match kind {
            RequestKind::Read => self.counters.read_errors.fetch_add(1, Ordering::Relaxed),
            RequestKind::Write | RequestKind::Flush => {
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed)
            }
            RequestKind::Discard => 0,
        };
    }

    fn is_on(&self, device: &SharedDevice) -> bool {
        self.device.as_ref().is_some_and(|own| Arc::ptr_eq(own, device))
    }
}

/// The members at one moment, by slot.
pub type View = Arc<Vec<Slot>>;

/// What the sets of a pool have together.
#[derive(Debug)]
struct Roster {
    /// The label as it was written last; `None`: there is no pool yet.
    label: Mutex<Option<Superblock>>,
    /// By slot. Held for a copy or an exchange only: a plain lock.
    sets: RwLock<Vec<Weak<MemberSet>>>,
}

/// See the module's header.
#[derive(Debug)]
pub struct MemberSet {
    roster: Arc<Roster>,
    /// Slot of the pool that its first member is in.
    first_slot: usize,
    /// Held for a copy or an exchange only, never across a scheduling point: a plain lock.
    view: RwLock<View>,
    /// Online members that the layout cannot do without (MS3).
    needed: usize,
    ranges: Arc<Ranges>,
    /// The spares that are there, of the first disk group's set; which there are the label says.
    pub(super) spares: SpareDevices,
}

fn online_count(slots: &[Slot]) -> usize {
    slots.iter().filter(|slot| slot.state == MemberState::Online).count()
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
        while slots.len() < set.first_slot {
            slots.push(Slot::new(None, MemberState::Gone));
        }
        slots.extend(set.view().iter().cloned());
    }
    slots
}

/// Gives each of `sets` what `slots` have of it.
fn spread(sets: &[Arc<MemberSet>], slots: &[Slot]) {
    for set in sets {
        let own = slots.iter().skip(set.first_slot).take(set.width());
        let own: View = Arc::new(own.cloned().collect());
        *set.view.write() = own;
    }
}

/// Whether one of `sets` has fewer members online than its layout needs.
fn is_short(sets: &[Arc<MemberSet>], slots: &[Slot]) -> bool {
    sets.iter().any(|set| {
        let own = slots.iter().skip(set.first_slot).take(set.width());
        own.filter(|slot| slot.state == MemberState::Online).count() < set.needed
    })
}

impl MemberSet {
    /// Returns the members in `slots`, of which at least `needed` must stay online. `label` is the
    /// newest of theirs; `None` while the pool is being made.
    #[must_use]
    pub fn new(slots: Vec<Slot>, label: Option<Superblock>, needed: usize) -> Arc<MemberSet> {
        let roster = Roster { label: Mutex::new(label), sets: RwLock::default() };
        let set = MemberSet::of(Arc::new(roster), 0, slots, needed);
        set.join_roster();
        set
    }

    /// Returns the members of another disk group, whose first slot is `first_slot`. Labels are
    /// written to them once they have joined ([`MemberSet::join_roster`]).
    #[must_use]
    pub(super) fn beside(
        &self,
        first_slot: usize,
        slots: Vec<Slot>,
        needed: usize,
    ) -> Arc<MemberSet> {
        MemberSet::of(Arc::clone(&self.roster), first_slot, slots, needed)
    }

    fn of(
        roster: Arc<Roster>,
        first_slot: usize,
        slots: Vec<Slot>,
        needed: usize,
    ) -> Arc<MemberSet> {
        let view = RwLock::new(Arc::new(slots));
        let (ranges, spares) = (Arc::default(), SpareDevices::default());
        Arc::new(MemberSet { roster, first_slot, view, needed, ranges, spares })
    }

    /// Labels are written to these members too from now on.
    pub(super) fn join_roster(self: &Arc<MemberSet>) {
        let mut sets = self.roster.sets.write();
        sets.push(Arc::downgrade(self));
        sets.sort_by_key(|set| set.upgrade().map_or(usize::MAX, |set| set.first_slot));
    }

    /// Labels are written to these members no more.
    pub(super) fn leave_roster(self: &Arc<MemberSet>) {
        let is_other = |set: &Weak<MemberSet>| !std::ptr::eq(set.as_ptr(), Arc::as_ptr(self));
        self.roster.sets.write().retain(is_other);
    }

    fn width(&self) -> usize {
        self.view.read().len()
    }

    /// Returns the set that has `slot` of the pool, and which of its own that is.
    #[must_use]
    pub fn of_slot(&self, slot: usize) -> Option<(Arc<MemberSet>, usize)> {
        let has = |set: &Arc<MemberSet>| {
            let own = slot.checked_sub(set.first_slot)?;
            (own < set.width()).then(|| (Arc::clone(set), own))
        };
        self.roster.sets().iter().find_map(has)
    }

    /// Returns the members as they are now.
    #[must_use]
    pub fn view(&self) -> View {
        Arc::clone(&self.view.read())
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

    /// Whether the layout can do without the member in `slot`.
    #[must_use]
    pub fn can_lose(&self, slot: &Slot) -> bool {
        let others = online_count(&self.view()) - usize::from(slot.state == MemberState::Online);
        others >= self.needed
    }

    /// Tells the range, in bytes of the pool, of a write that is about to begin; waits while
    /// somebody holds it. To be called before [`MemberSet::view`].
    #[must_use]
    pub fn begin_write(&self, range: Range<u64>) -> InFlight {
        self.ranges.begin_write(range)
    }

    /// Holds a range, in bytes of the pool, against writers; `None` while one is at it.
    #[must_use]
    pub fn try_hold(&self, range: Range<u64>) -> Option<Hold> {
        self.ranges.try_hold(range)
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
        let ticket = device.submit(purpose, operation);
        Ticket::new(Box::new(Counted { ticket, kind, slot: slot.clone() }))
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
        let tickets = device.submit_all(purpose, operations);
        let counted = kinds.into_iter().zip(tickets).map(|(kind, ticket)| {
            Ticket::new(Box::new(Counted { ticket, kind, slot: slot.clone() }))
        });
        counted.collect()
    }

    /// Returns one ticket for requests to several members, each with its slot in `view`: it is
    /// answered when all are. A member that did not do what it was asked fails before that (MS1).
    #[must_use]
    pub fn together(
        self: &Arc<MemberSet>,
        view: &View,
        tickets: Vec<(usize, Ticket)>,
        in_flight: Option<InFlight>,
    ) -> Ticket {
        let (set, view) = (Arc::clone(self), Arc::clone(view));
        Ticket::new(Box::new(Together { set, view, tickets, in_flight }))
    }

    /// Makes every write answered so far durable, on every member.
    pub fn submit_flush(self: &Arc<MemberSet>, purpose: Purpose) -> Ticket {
        let view = self.view();
        let tickets = (0..).zip(view.iter()).filter(|(_, slot)| slot.writable().is_some());
        let tickets = tickets.map(|(at, slot)| (at, self.submit(slot, purpose, Operation::Flush)));
        let tickets: Vec<_> = tickets.collect();
        self.together(&view, tickets, None)
    }

    /// The member in `slot`, which was on `device`, has not done what it was asked: see the
    /// module's header.
    ///
    /// # Errors
    ///
    /// `error`, if the layout needs the member, or what another said whose label was to tell of it:
    /// the pool must stop writing.
    pub fn fail(
        &self,
        slot: usize,
        device: &SharedDevice,
        error: DeviceError,
    ) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        let sets = self.roster.sets();
        let mut slots = gather(&sets);
        let is_there = |slot: &&mut Slot| slot.is_on(device) && slot.writable().is_some();
        let Some(member) = slots.get_mut(self.first_slot + slot).filter(is_there) else {
            // Another was first.
            return Ok(());
        };
        let was_joining = member.state == MemberState::Joining;
        member.state = MemberState::Failed;
        let Some(known) = label.as_ref() else { return Err(error) };
        if !was_joining && is_short(&sets, &slots) {
            return Err(error);
        }
        tracing::error!(
            device = device.info().name,
            "{error}; the member has failed, and the pool goes on without it: replace it"
        );
        let mut superblock = known.clone();
        note_states(&mut superblock, &slots);
        superblock.add_membership();
        if !planted::is(Planted::FailureNotLabelled) {
            write_labels(&sets, &mut slots, &mut superblock)?;
        }
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
        if let Some(known) = label.as_ref() {
            superblock.sequence = superblock.sequence.max(known.sequence);
            take_table(superblock, known);
        }
        let sets = self.roster.sets();
        let mut slots = gather(&sets);
        write_labels(&sets, &mut slots, superblock)?;
        *label = Some(superblock.clone());
        spread(&sets, &slots);
        Ok(())
    }

    /// Changes members and their table together: `change` is given both, and says whether states
    /// are others afterwards. The labels tell of it, durably, before anybody sees it; `superblock`,
    /// if there is one, becomes what they say.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Vec<Slot>, &mut Superblock) -> bool,
    ) -> Result<(), DeviceError> {
        let mut label = self.roster.label.lock();
        let Some(known) = label.as_ref() else { return Ok(()) };
        let sets = self.roster.sets();
        let (mut slots, mut superblock) = (gather(&sets), known.clone());
        if change(&mut slots, &mut superblock) {
            note_states(&mut superblock, &slots);
            superblock.add_membership();
        }
        write_labels(&sets, &mut slots, &mut superblock)?;
        *label = Some(superblock);
        spread(&sets, &slots);
        Ok(())
    }

    /// The label of a member that is absent and was online says from now on that it has missed
    /// writes, durably. Nothing may be written before that.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn leave_absent_behind(&self) -> Result<(), DeviceError> {
        let is_new = |slot: &Slot| {
            let is_known = match slot.state {
                MemberState::Missing | MemberState::Failed | MemberState::Gone => true,
                MemberState::Online | MemberState::Joining => false,
            };
            slot.device.is_none() && !is_known
        };
        if !self.all().iter().any(is_new) {
            return Ok(());
        }
        self.change(|slots, _| {
            let absent = slots.iter_mut().filter(|slot| is_new(slot));
            absent.for_each(|slot| slot.state = MemberState::Missing);
            true
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
        // CRASH: only the first copies make a pool of what is there.
        for copies in [&others[..], &[0]] {
            if let Some((_, error)) = write_copies(&slots, 0, superblock, copies).pop() {
                return Err(error);
            }
        }
        *label = Some(superblock.clone());
        Ok(())
    }

    /// Writes `superblock`, which others have already, to the labels of these members, durably.
    ///
    /// # Errors
    ///
    /// What a member said.
    pub(super) fn write_own_labels(&self, superblock: &Superblock) -> Result<(), DeviceError> {
        for copies in [[0, 2], [1, 3]] {
            let failed = write_copies(&self.view(), self.first_slot, superblock, &copies).pop();
            if let Some((_, error)) = failed {
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Makes what `superblock` says of members and disk groups what `known` does.
pub(super) fn take_table(superblock: &mut Superblock, known: &Superblock) {
    superblock.members.clone_from(&known.members);
    if !planted::is(Planted::SparesForgotten) {
        superblock.spares.clone_from(&known.spares);
    }
    superblock.memberships.clone_from(&known.memberships);
    superblock.added.clone_from(&known.added);
    superblock.geometry.clone_from(&known.geometry);
}

/// Writes `superblock` to the labels of all of `slots` that get writes. One that does not do it
/// fails, and the others are told.
fn write_labels(
    sets: &[Arc<MemberSet>],
    slots: &mut [Slot],
    superblock: &mut Superblock,
) -> Result<(), DeviceError> {
    loop {
        superblock.sequence += 1;
        let turn = u16::from(!superblock.sequence.is_multiple_of(2));
        let mut failed = Vec::new();
        for copies in [[turn, 2], [1 - turn, 3]] {
            failed.extend(write_copies(slots, 0, superblock, &copies));
            if !failed.is_empty() {
                break;
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        for (at, error) in failed {
            let was_joining = slots[at].state == MemberState::Joining;
            slots[at].count_error(RequestKind::Write);
            slots[at].state = MemberState::Failed;
            if !was_joining && is_short(sets, slots) {
                return Err(error);
            }
            tracing::error!("{error}; the member has failed: replace it");
        }
        note_states(superblock, slots);
        superblock.add_membership();
    }
}

/// Notes in the table what `slots` are now.
fn note_states(superblock: &mut Superblock, slots: &[Slot]) {
    for (member, slot) in superblock.members.iter_mut().zip(slots) {
        member.state = slot.state;
        if slot.state != MemberState::Joining {
            member.copied_mib = 0;
        }
    }
}

/// Writes copies of `superblock` to all of `slots` that get writes, and flushes. `first_slot` is
/// what the first of them has in the pool. Returns who has not done it.
fn write_copies(
    slots: &[Slot],
    first_slot: usize,
    superblock: &Superblock,
    copies: &[u16],
) -> Vec<(usize, DeviceError)> {
    let mut tickets = Vec::new();
    for (at, device) in (0..).zip(slots.iter().map(Slot::writable)) {
        let Some(device) = device else { continue };
        let own = Superblock { device_index: index_of(first_slot + at), ..superblock.clone() };
        for &copy in copies {
            tickets.push((at, submit_superblock_copy(device.as_ref(), &own, copy)));
        }
    }
    let mut failed: Vec<(usize, DeviceError)> = Vec::new();
    let mut wait_for = |tickets: Vec<(usize, Ticket)>| {
        for (at, ticket) in tickets {
            if let Err(error) = ticket.wait()
                && failed.iter().all(|(other, _)| *other != at)
            {
                failed.push((at, error));
            }
        }
    };
    wait_for(tickets);
    let flush = |device: &SharedDevice| device.submit(Purpose::Superblock, Operation::Flush);
    let flushes = (0..).zip(slots).filter_map(|(at, slot)| Some((at, flush(slot.writable()?))));
    wait_for(flushes.collect());
    failed
}

fn index_of(slot: usize) -> u16 {
    u16::try_from(slot).expect("a pool has few members")
}

/// A request to one member.
struct Counted {
    ticket: Ticket,
    kind: RequestKind,
    slot: Slot,
}

impl PendingRequest for Counted {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        self.ticket.wait().inspect_err(|_| self.slot.count_error(self.kind))
    }
}

/// Requests to several members.
struct Together {
    set: Arc<MemberSet>,
    view: View,
    tickets: Vec<(usize, Ticket)>,
    /// Ends when the last has been answered, and whoever failed was told of.
    in_flight: Option<InFlight>,
}

impl PendingRequest for Together {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let Together { set, view, tickets, in_flight } = *self;
        let mut failed = Vec::new();
        let mut is_first = true;
        for (at, ticket) in tickets {
            if planted::is(Planted::OneCopyAcknowledged) && !is_first {
                break;
            }
            is_first = false;
            if let Err(error) = ticket.wait() {
                failed.push((at, error));
            }
        }
        let settled = set.settle(&view, failed);
        drop(in_flight);
        settled.map(|()| Completion::default())
    }
}

impl MemberSet {
    /// Fails the members that `failed` names. Where too few would remain none of them fails: the
    /// pool stops as a whole, and none is worse than the others.
    fn settle(&self, view: &View, failed: Vec<(usize, DeviceError)>) -> Result<(), DeviceError> {
        let Some((_, first)) = failed.first() else { return Ok(()) };
        let now = self.view();
        let is_same = |at: &usize| {
            let device = view.get(*at).and_then(|slot| slot.device.as_ref());
            now.get(*at).zip(device).is_some_and(|(slot, device)| {
                slot.is_on(device) && slot.state == MemberState::Online
            })
        };
        // One that was asked for several things is one.
        let lost: BTreeSet<usize> = failed.iter().map(|(at, _)| *at).filter(is_same).collect();
        let lost = lost.len();
        if lost > 0 && online_count(&now) < self.needed + lost {
            return Err(first.clone());
        }
        for (at, error) in failed {
            let device = view.get(at).and_then(|slot| slot.device.as_ref());
            if let Some(device) = device {
                self.fail(at, device, error)?;
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
