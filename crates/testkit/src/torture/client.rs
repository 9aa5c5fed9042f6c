//! A client: its operations, and what it may be answered.

use std::sync::{Arc, Mutex};

use engine::api::{FileKind, FileSystem, FsError};
use runtime::prng::Prng;
use runtime::sync::{
    self,
    sim::{self, Scheduler},
};
use storage::device::sim::{PowerSupply, SimDevice};

use super::fault_plan::{LifeFault, is_chain, is_change, is_sync, takes_space};
use super::life::{lock, top_name};
use super::{Fault, HasFailed};
use crate::canon::Times;
use crate::crash::History;
use crate::number::u64_of;
use crate::ops::{Applied, Generator, Op, Outcome, Profile, Route, Session, Step, bytes_of};

/// For how many scheduling points a cut by time waits until two operations are in flight.
const COMPANY_POINTS_MAX: u64 = 4096;
/// One operation in so many is followed by a sleep of less than 2 to a power below the second, in
/// nanoseconds.
const THINK_ONE_IN: u64 = 8;
const THINK_NS_POWER_MAX: u64 = 22;
/// One client in so many syncs most of what it writes.
const SYNCING_ONE_IN: u64 = 3;
/// One rename in so many that may leave a whiteout does.
const WHITEOUT_ONE_IN: u64 = 4;
/// What a client tries to make in a pool that has failed.
const LATE_NAME: &[u8] = b"late";

/// What the threads of a life share.
pub(super) struct Shared<'a> {
    pub(super) scheduler: &'a Arc<Scheduler>,
    pub(super) power: &'a PowerSupply,
    pub(super) device: &'a SimDevice,
    pub(super) planned: &'a LifeFault,
    pub(super) has_failed: &'a HasFailed,
    /// Whether there are snapshots: what gives room back may need some first.
    pub(super) has_snapshots: bool,
    pub(super) history: Mutex<History>,
    pub(super) fault: Mutex<Option<Fault>>,
    pub(super) progress: sync::Mutex<Progress>,
    /// Notified at each change of `progress`.
    pub(super) has_progressed: sync::Condvar,
}

#[derive(Clone, Copy)]
pub(super) struct Progress {
    pub(super) operations_begun: u64,
    pub(super) clients_left: usize,
}

impl Shared<'_> {
    fn progressed(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock());
        self.has_progressed.notify_all();
    }

    pub(super) fn are_clients_done(&self) -> bool {
        self.progress.lock().clients_left == 0
    }

    /// Cuts the power some time after `operations` were begun, while several are in flight.
    pub(super) fn cut_power(&self, operations: u64, pause_ns: u64) {
        let mut progress = self.progress.lock();
        while progress.operations_begun < operations && progress.clients_left > 0 {
            self.has_progressed.wait(&mut progress);
        }
        drop(progress);
        sim::sleep_until(self.scheduler.now_ns() + pause_ns);
        for _ in 0..COMPANY_POINTS_MAX {
            if self.scheduler.statistics().in_flight >= 2 || self.are_clients_done() {
                break;
            }
            sim::yield_now();
        }
        self.power.cut();
    }

    /// Whether the pool says that it takes no changes any more. Not asked where it cannot.
    fn has_pool_failed(&self) -> bool {
        self.planned.is_of_device() && (self.has_failed)()
    }
}

/// Counts a client down however its thread ends.
struct ClientMark<'a, 'b>(&'a Shared<'b>);

impl Drop for ClientMark<'_, '_> {
    fn drop(&mut self) {
        self.0.progressed(|progress| progress.clients_left -= 1);
    }
}

/// One client.
pub(super) struct Client {
    pub(super) index: usize,
    pub(super) generator: Generator,
    pub(super) random: Prng,
    pub(super) steps: u64,
    /// Answers of the pool that it has met a fault.
    pub(super) errors: u64,
    /// Answers that there is no space.
    pub(super) refusals: u64,
    /// TR3: a part of its last operation may have happened.
    pub(super) is_uncertain: bool,
}

/// How things stood when an operation began.
struct Before {
    has_pool_failed: bool,
    has_write_failed: bool,
}

impl Client {
    pub(super) fn new(index: u64, random: &mut Prng, steps_max: u64, history: &History) -> Client {
        let seed = random.next_u64();
        let top = Route(vec![top_name(index)]);
        let like =
            if random.one_in(SYNCING_ONE_IN) { Profile::syncing() } else { Profile::crash() };
        let profile = Profile { whiteout_one_in: WHITEOUT_ONE_IN, ..like };
        Client {
            index: crate::number::usize_of(index),
            generator: Generator::below(seed, profile, top, history.base()),
            random: random.fork(),
            steps: 1 + random.below(steps_max),
            errors: 0,
            refusals: 0,
            is_uncertain: false,
        }
    }

    pub(super) fn top(&self) -> Route {
        Route(vec![top_name(u64_of(self.index))])
    }

    pub(super) fn live(&mut self, shared: &Shared<'_>, fs: &dyn FileSystem) {
        let _mark = ClientMark(shared);
        let model = self.generator.model();
        let mut expected = Session::new(&*model, Times::Ignored);
        let mut session = Session::new(fs, Times::Ignored);
        for _ in 0..self.steps {
            if self.random.one_in(THINK_ONE_IN) {
                let think_ns = self.random.below_power(THINK_NS_POWER_MAX);
                sim::sleep_until(shared.scheduler.now_ns() + think_ns);
            }
            if shared.power.is_cut() {
                return;
            }
            if let Err(fault) = self.step(shared, &mut session, &mut expected) {
                lock(&shared.fault).get_or_insert(fault);
                shared.power.cut();
                return;
            }
            if self.is_uncertain {
                break;
            }
        }
        if let Err(fault) = self.try_late(shared, &mut session) {
            lock(&shared.fault).get_or_insert(fault);
            shared.power.cut();
            return;
        }
        session.close_all();
    }

    fn step(
        &mut self,
        shared: &Shared<'_>,
        session: &mut Session<'_>,
        expected: &mut Session<'_>,
    ) -> Result<(), Fault> {
        let step = self.generator.propose();
        let number = lock(&shared.history).begin(self.index, step.clone());
        let before = Before {
            has_pool_failed: shared.has_pool_failed(),
            has_write_failed: shared.device.harm().failed_writes > 0,
        };
        let mark = shared.scheduler.operation();
        shared.progressed(|progress| progress.operations_begun += 1);
        let applied = session.apply(&step);
        // An answer after the cut reaches nobody: the operation stays in flight.
        let is_heard = !shared.power.is_cut();
        drop(mark);
        if !is_heard {
            return Ok(());
        }
        if let Outcome::Refused(error) = &applied.outcome
            && (shared.device.harm() != Default::default() || shared.device.has_failed())
            && shared.planned.excuses(error, shared.has_pool_failed())
        {
            self.errors += 1;
            self.refused(shared, number, &step, &applied, &before);
            return Ok(());
        }
        let may_need_space =
            takes_space(&step.op, expected) || shared.has_snapshots && is_change(&step.op);
        if applied.outcome == Outcome::Refused(FsError::NoSpace) && may_need_space {
            self.refusals += 1;
            self.refused_for_space(shared, number, &step, &applied, session, expected);
            return Ok(());
        }
        let step = done_part(step, &applied.outcome);
        lock(&shared.history).end_as(number, step.clone(), &applied);
        if applied.outcome.is_done() {
            // TR2.
            // A copy from behind the end of a file changes nothing.
            let changes = is_change(&step.op) && applied.outcome != Outcome::Count(0);
            let is_late = before.has_pool_failed && (changes || is_sync(&step.op));
            // A sync of everything waits for every write, so it knows of one that failed before,
            // unless another client is just being told. One of a file need not wait for writes of
            // others; what it owes is looked for after the cut.
            let is_unnoticed = before.has_write_failed && !shared.has_pool_failed();
            if is_late || is_unnoticed && step.op == Op::Sync {
                return Err(self.fault(&step, &applied.outcome, "an error: the device failed"));
            }
        }
        let expected = self.generator.accept(expected, &step);
        if expected.agrees(&applied.outcome) {
            return Ok(());
        }
        Err(self.fault(&step, &applied.outcome, &format!("{expected:?}")))
    }

    /// TR3: takes note of what may have become of a step that was refused because of a fault.
    fn refused(
        &mut self,
        shared: &Shared<'_>,
        number: usize,
        step: &Step,
        applied: &Applied,
        before: &Before,
    ) {
        let is_sure = before.has_pool_failed || !is_change(&step.op);
        if is_sure || !is_chain(&step.op) && !shared.has_pool_failed() {
            lock(&shared.history).end(number, applied);
        } else {
            // It stays in flight: it happened, or it did not.
            self.is_uncertain = true;
        }
    }

    /// TR3: of a write that found no room a first part is done, down to nothing. Takes note of that
    /// part as if it alone had been asked for.
    fn refused_for_space(
        &mut self,
        shared: &Shared<'_>,
        number: usize,
        step: &Step,
        refused: &Applied,
        session: &mut Session<'_>,
        expected: &mut Session<'_>,
    ) {
        let is_told = matches!(step.op, Op::Write { .. } | Op::Truncate { .. });
        if is_chain(&step.op) && (!is_told || shared.has_snapshots && is_truncation(&step.op)) {
            // It stays in flight: how much of it is done is not told.
            self.is_uncertain = true;
            return;
        }
        let Op::Write { file, offset, length, fill } = &step.op else {
            lock(&shared.history).end(number, refused);
            return;
        };
        let read = Op::Read { file: file.clone(), offset: *offset, length: *length };
        let Outcome::Bytes(found) = session.apply(&Step::root(read)).outcome else {
            // What is there is not known: perhaps all.
            self.is_uncertain = true;
            return;
        };
        let same = |(found, wanted): &(&u8, &u8)| found == wanted;
        let done = found.iter().zip(&bytes_of(*fill, *length)).take_while(same).count();
        if shared.power.is_cut() {
            return;
        }
        if done == 0 {
            lock(&shared.history).end(number, refused);
            return;
        }
        let op = Op::Write { file: file.clone(), offset: *offset, length: done, fill: *fill };
        let part = Step { uid: step.uid, op };
        let outcome = self.generator.accept(expected, &part);
        lock(&shared.history).end_as(number, part, &Applied { outcome, made: None });
    }

    /// TR2: a pool that has failed takes no more changes, and acknowledges no sync.
    fn try_late(&mut self, shared: &Shared<'_>, session: &mut Session<'_>) -> Result<(), Fault> {
        if !shared.has_pool_failed() {
            return Ok(());
        }
        let at = self.top().join(LATE_NAME);
        let late = [Op::Create { at, kind: FileKind::Fifo, mode: 0o600 }, Op::Sync];
        for step in late.map(Step::root) {
            let applied = session.apply(&step);
            if shared.power.is_cut() {
                return Ok(());
            }
            if applied.outcome.is_done() {
                return Err(self.fault(&step, &applied.outcome, "an error: the pool has failed"));
            }
            self.errors += 1;
        }
        Ok(())
    }

    fn fault(&self, step: &Step, told: &Outcome, expected: &str) -> Fault {
        Fault::Answer {
            client: self.index,
            step: step.to_string(),
            told: format!("{told:?}"),
            expected: expected.to_owned(),
        }
    }
}

fn is_truncation(op: &Op) -> bool {
    matches!(op, Op::Truncate { .. })
}

/// TR3: a copy may stop before its end, as where a full pool has room for a part: it is as if no
/// more had been asked for.
fn done_part(mut step: Step, outcome: &Outcome) -> Step {
    if let (Op::Copy { length, .. }, Outcome::Count(count)) = (&mut step.op, outcome)
        && *count > 0
    {
        *length = (*length).min(*count);
    }
    step
}
