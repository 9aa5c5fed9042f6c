//! A fileset that is changed in a life: its steps, what is expected of them, and their history.

use std::collections::VecDeque;

use engine::Pool;
use engine::api::{Caller, FileKind, FilesetUuid, FsError, Ino, Timestamp};

use super::owners::{Before, bytes_of as bytes_taken, check_sums};
use super::world::NodeId;
use crate::canon::Times;
use crate::crash::History;
use crate::model::Model;
use crate::number::u64_of;
use crate::ops::{Applied, Generator, Op, Outcome, Place, Route, Session, Step, bytes_of};
use crate::torture::{is_chain, is_change, takes_space};

/// What of a quota a write of some bytes may need besides: its first and its last block, whole, and
/// pages of its map.
const QUOTA_SLACK_BYTES: u64 = 512 << 10;

/// What a pool is filled with, and by how many bytes at a time.
const BALLAST_NAME: &[u8] = b"ballast";
const BALLAST_WRITE_BYTES: [usize; 3] = [1 << 20, 64 << 10, 4 << 10];

/// A fileset that is being changed.
pub(super) struct Seat<'a> {
    pool: &'a Pool,
    root: Ino,
    pub(super) id: NodeId,
    pub(super) name: String,
    uuid: FilesetUuid,
    generator: Generator,
    pub(super) history: History,
    session: Session<'a>,
    expected: Session<'a>,
    /// Whether users work there, who are checked.
    pub(super) has_users: bool,
    /// Whether a part of its last step may have happened: nothing more is done with it.
    pub(super) is_uncertain: bool,
}

/// What a step met besides its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    Nothing,
    /// There was no room, in the pool or the quota.
    Full,
    /// A limit of a user or a group is passed.
    OverLimit,
}

/// The fileset's quota and whether snapshots hold a part of it, and what time it is.
pub(super) type Terms = ((u64, bool), Timestamp);

/// A fileset as a pool that is open has it.
pub(super) struct At<'a> {
    pub(super) pool: &'a Pool,
    pub(super) root: Ino,
    pub(super) uuid: FilesetUuid,
}

impl<'a> Seat<'a> {
    /// Begins with what the fileset holds; `model` is the generator's.
    pub(super) fn new(
        (id, name): (NodeId, String),
        generator: Generator,
        model: &'a Model,
        at: &At<'a>,
    ) -> Result<Seat<'a>, String> {
        let history = History::after_below(at.pool, at.root).map_err(|error| error.to_string())?;
        let session = Session::below(at.pool, at.root, Times::Ignored);
        let expected = Session::new(model, Times::Ignored);
        let uuid = at.uuid;
        let (is_uncertain, has_users, pool, root) = (false, false, at.pool, at.root);
        Ok(Seat {
            pool,
            root,
            id,
            name,
            uuid,
            generator,
            history,
            session,
            expected,
            has_users,
            is_uncertain,
        })
    }

    /// Does a step; `is_cut` says whether the power is gone. `has_snapshots`: what gives room back
    /// may need some first.
    pub(super) fn step(
        &mut self,
        terms: Terms,
        is_cut: &dyn Fn() -> bool,
        done: &mut Done,
    ) -> Result<(Met, Op), String> {
        let step = self.generator.propose();
        self.does(step, terms, is_cut, done)
    }

    fn does(
        &mut self,
        step: Step,
        (limits, now): Terms,
        is_cut: &dyn Fn() -> bool,
        done: &mut Done,
    ) -> Result<(Met, Op), String> {
        done.add(format!("{}: {step}", self.name));
        let before = Before::look(self.pool, &self.name, &self.session, (&step, now));
        let number = self.history.begin(0, step.clone());
        let applied = self.session.apply(&step);
        if is_cut() {
            return Ok((Met::Nothing, step.op));
        }
        let before = before?;
        if let Some(before) = &before {
            before.check(self.pool, &self.name, (&step, &applied.outcome))?;
            let is_over = applied.outcome == Outcome::Refused(FsError::QuotaExceeded);
            if is_over && before.may_refuse(&step, bytes_taken(&self.session, &step.op)) {
                done.note("over a limit");
                self.refused_for_space(number, &step, &applied, is_cut);
                return Ok((Met::OverLimit, step.op));
            }
        }
        if let Outcome::Refused(error) = &applied.outcome
            && self.may_be_full(&step, error, limits)?
        {
            done.note("no room");
            self.refused_for_space(number, &step, &applied, is_cut);
            return Ok((Met::Full, step.op));
        }
        let step = done_part(step, &applied.outcome);
        self.history.end_as(number, step.clone(), &applied);
        let expected = self.generator.accept(&mut self.expected, &step);
        if expected.agrees(&applied.outcome) {
            return Ok((Met::Nothing, step.op));
        }
        Err(format!("{}: {step}:\n  told {:?}\n  not  {expected:?}", self.name, applied.outcome))
    }

    /// Lets everybody make files at the root.
    pub(super) fn open_to_all(
        &mut self,
        terms: Terms,
        is_cut: &dyn Fn() -> bool,
        done: &mut Done,
    ) -> Result<(), String> {
        let open = Op::SetMode { file: Place::At(Route::default()), mode: 0o777 };
        self.does(Step::root(open), terms, is_cut, done).map(drop)
    }

    /// Fills the pool, or the quota: with less and less, until nothing more finds room. `steps_max`
    /// bounds how often something is written.
    pub(super) fn fill(
        &mut self,
        steps_max: usize,
        limits: Terms,
        is_cut: &dyn Fn() -> bool,
        done: &mut Done,
    ) -> Result<(), String> {
        let at = Route(vec![BALLAST_NAME.to_vec()]);
        let file = Place::At(at.clone());
        let create = Op::Create { at, kind: FileKind::Regular, mode: 0o600 };
        self.does(Step::root(create), limits, is_cut, done)?;
        let mut offset = self.session.probe(&file).map_or(0, |attr| attr.size_bytes);
        for length in BALLAST_WRITE_BYTES {
            for fill in 0..u32::try_from(steps_max).unwrap_or(u32::MAX) {
                if self.is_uncertain || is_cut() {
                    return Ok(());
                }
                let write = Op::Write { file: file.clone(), offset, length, fill };
                if self.does(Step::root(write), limits, is_cut, done)?.0 == Met::Full {
                    break;
                }
                offset += u64_of(length);
            }
        }
        Ok(())
    }

    /// Whether `error` says that there is no room, and may.
    fn may_be_full(
        &self,
        step: &Step,
        error: &FsError,
        (quota_bytes, has_snapshots): (u64, bool),
    ) -> Result<bool, String> {
        let takes = takes_space(&step.op, &self.expected);
        if *error == FsError::NoSpace {
            return Ok(takes || has_snapshots && is_change(&step.op));
        }
        let is_of_quota = *error == FsError::QuotaExceeded && quota_bytes > 0 && takes;
        if is_of_quota {
            self.check_quota(step)?;
        }
        Ok(is_of_quota)
    }

    /// A write is refused only where less is left of the quota than it may need.
    fn check_quota(&self, step: &Step) -> Result<(), String> {
        let Op::Write { length, .. } = &step.op else { return Ok(()) };
        let fs = self.session.file_system();
        let sizes = fs.statfs(&Caller::root(), self.uuid).map_err(|error| error.to_string())?;
        let may_need = u64_of(*length) + QUOTA_SLACK_BYTES;
        if sizes.free_bytes <= may_need {
            return Ok(());
        }
        let left = sizes.free_bytes;
        Err(format!("{}: {step}: refused with {left} bytes left of the quota", self.name))
    }

    /// Of a write that found no room a first part is done, down to nothing: it is as if that part
    /// alone had been asked for.
    fn refused_for_space(
        &mut self,
        number: usize,
        step: &Step,
        refused: &Applied,
        is_cut: &dyn Fn() -> bool,
    ) {
        let Op::Write { file, offset, length, fill } = &step.op else {
            if is_chain(&step.op) {
                // It stays in flight: how much of it is done is not told.
                self.is_uncertain = true;
            } else {
                self.history.end(number, refused);
            }
            return;
        };
        let read = Step::root(Op::Read { file: file.clone(), offset: *offset, length: *length });
        let look = Step::root(Op::GetAttr { file: file.clone() });
        let (read_now, attr_now) = (self.session.apply(&read), self.session.apply(&look));
        if is_cut() {
            return;
        }
        let Outcome::Bytes(found) = &read_now.outcome else {
            self.is_uncertain = true;
            return;
        };
        // What was there before may begin as what was to be written.
        let before = [&read, &look].map(|step| self.generator.accept(&mut self.expected, step));
        if before[0].agrees(&read_now.outcome) && before[1].agrees(&attr_now.outcome) {
            self.history.end(number, refused);
            return;
        }
        let same = |(found, wanted): &(&u8, &u8)| found == wanted;
        let done = found.iter().zip(&bytes_of(*fill, *length)).take_while(same).count();
        if done == 0 {
            self.history.end(number, refused);
            return;
        }
        let op = Op::Write { file: file.clone(), offset: *offset, length: done, fill: *fill };
        let part = Step { uid: step.uid, op };
        let outcome = self.generator.accept(&mut self.expected, &part);
        self.history.end_as(number, part, &Applied { outcome, made: None });
    }

    /// Holds what users have against their files (NQ4).
    pub(super) fn check_sums(&self) -> Result<(), String> {
        check_sums(self.pool, &self.name, (self.root, false))
    }

    /// Takes note that all that was done is to be made durable; returns by which number it ends.
    pub(super) fn begin_sync(&mut self) -> usize {
        self.history.begin(0, Step::root(Op::Sync))
    }

    /// Takes note that it is durable.
    pub(super) fn end_sync(&mut self, number: usize) {
        self.history.end(number, &Applied { outcome: Outcome::Done, made: None });
    }

    /// Gives back what its slots hold.
    pub(super) fn close_all(&mut self) {
        self.session.close_all();
    }
}

/// A copy may stop before its end: it is as if no more had been asked for.
fn done_part(mut step: Step, outcome: &Outcome) -> Step {
    if let (Op::Copy { length, .. }, Outcome::Count(count)) = (&mut step.op, outcome)
        && *count > 0
    {
        *length = (*length).min(*count);
    }
    step
}

/// Lines that a finding tells at most.
const LINES_MAX: usize = 60;

/// What was done in a life, the newest last.
#[derive(Debug, Default)]
pub(super) struct Done(VecDeque<String>);

impl Done {
    pub(super) fn add(&mut self, line: String) {
        if self.0.len() == LINES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    /// Adds to the newest line.
    pub(super) fn note(&mut self, words: &str) {
        if let Some(line) = self.0.back_mut() {
            line.push_str(" -> ");
            line.push_str(words);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }
}
