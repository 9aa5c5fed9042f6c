//! Tests of the whole system, by behaviour: one folder and one binary for each area.
//!
//! A behaviour is a function of a [`Ground`]: what it asks is asked of every implementation. To add
//! one, write a function in `grounds.rs` and one line in [`on_every_ground`].

pub mod gate;
pub mod grounds;
pub mod lockstep;
pub mod nodes;
pub mod soak;

use std::fmt::Write as _;

use engine::api::{Attr, Caller, FileSystem, FsError, FsResult, Ino, StatFs};
use testkit::canon::Times;
use testkit::ops::{Outcome, Place, Session, Step};

/// Makes a test of each behaviour, on each ground.
#[macro_export]
macro_rules! on_every_ground {
    ($($name:ident)*) => {
        $crate::on_ground!(on_model, model, $($name)*);
        $crate::on_ground!(on_pool, pool, $($name)*);
    };
}

/// Makes a test of each behaviour on one ground: a function of [`grounds`].
#[macro_export]
macro_rules! on_ground {
    ($module:ident, $ground:ident, $($name:ident)*) => {
        mod $module {
            $(#[test] fn $name() { $crate::grounds::$ground(super::$name); })*
        }
    };
}

/// Behaviours: functions of a [`Ground`], each a test on every ground.
#[macro_export]
macro_rules! behaviours {
    ($($(#[$meta:meta])* fn $name:ident($at:ident) $body:block)*) => {
        $($(#[$meta])* fn $name($at: &mut $crate::Ground<'_>) $body)*
        $crate::on_every_ground!($($name)*);
    };
}

/// An empty file system under test, and a client of it that speaks in steps of
/// [`testkit::ops`].
///
/// A step that names nobody is the superuser's; `u7 ...` is that of user 7, who is checked.
pub struct Ground<'a> {
    session: Session<'a>,
    pass_time: &'a dyn Fn(),
}

impl<'a> Ground<'a> {
    /// Stands on `fs`, where `pass_time` makes it later.
    pub fn new(fs: &'a dyn FileSystem, pass_time: &'a dyn Fn()) -> Ground<'a> {
        Ground { session: Session::new(fs, Times::Ignored), pass_time }
    }

    /// Returns the file system itself.
    pub fn fs(&self) -> &'a dyn FileSystem {
        self.session.file_system()
    }

    /// Makes it later than anything that was done.
    pub fn pass_time(&self) {
        (self.pass_time)();
    }

    fn step(&mut self, line: &str) -> (Step, Outcome) {
        let mut text = String::new();
        let has_user = line.starts_with('u') && line[1..].starts_with(|c: char| c.is_ascii_digit());
        write!(text, "{}{line}", if has_user { "" } else { "u0 " }).expect("a String takes it");
        let step: Step = text.parse().expect("the test writes a step");
        let outcome = self.session.apply(&step).outcome;
        (step, outcome)
    }

    /// Does the steps of `lines`, each on a line, and expects them to be done.
    #[track_caller]
    pub fn does(&mut self, lines: &str) {
        for line in lines.lines() {
            let (step, outcome) = self.step(line.trim());
            assert!(outcome.is_done(), "{step}: {outcome:?}");
        }
    }

    /// Expects one step to be refused with `error`.
    #[track_caller]
    pub fn refuses(&mut self, line: &str, error: &FsError) {
        let (step, outcome) = self.step(line);
        let Outcome::Refused(refused) = &outcome else { panic!("{step}: {outcome:?}") };
        assert_eq!(refused.errno(), error.errno(), "{step}: {refused}, and not {error}");
    }

    /// Expects one step to be refused, whatever for.
    #[track_caller]
    pub fn is_refused(&mut self, line: &str) {
        let (step, outcome) = self.step(line);
        assert!(!outcome.is_done(), "{step}: {outcome:?}");
    }

    /// Returns the attributes of `place`, a route or a slot.
    #[track_caller]
    pub fn attr(&self, place: &str) -> Attr {
        self.probe(place).expect("it is there")
    }

    /// Returns whether `place` is there.
    pub fn is_there(&self, place: &str) -> bool {
        self.probe(place).is_some()
    }

    /// Returns the number of `place`.
    #[track_caller]
    pub fn ino(&self, place: &str) -> Ino {
        self.attr(place).ino
    }

    /// Returns the attributes of `place`, if it is there.
    pub fn probe(&self, place: &str) -> Option<Attr> {
        self.session.probe(&place_of(place))
    }

    /// Returns the sizes and counts of the file system.
    #[track_caller]
    pub fn sizes(&self) -> StatFs {
        let fs = self.fs();
        fs.statfs(&Caller::root(), fs.main_fileset()).expect("there are sizes")
    }

    /// Returns the whole content of a file.
    #[track_caller]
    pub fn content(&self, place: &str) -> Vec<u8> {
        let attr = self.attr(place);
        let length = usize::try_from(attr.size_bytes).expect("a test's file fits in memory");
        let mut bytes = Vec::new();
        let count = self.fs().read(&Caller::root(), attr.ino, 0, length + 1, &mut bytes);
        assert_eq!(count, Ok(length));
        assert_eq!(bytes.len(), length);
        bytes
    }

    /// Writes `data` as the superuser.
    #[track_caller]
    pub fn write(&self, place: &str, offset: u64, data: &[u8]) {
        self.fs().write(&Caller::root(), self.ino(place), offset, data).expect("it is written");
    }

    /// Returns the names in a directory, sorted, as routes have them.
    #[track_caller]
    pub fn names(&mut self, place: &str) -> Vec<String> {
        let (_, outcome) = self.step(&format!("list {place}"));
        let Outcome::Names(names) = outcome else { panic!("list {place}: {outcome:?}") };
        names.into_iter().map(|(name, _)| name.escape_ascii().to_string()).collect()
    }

    /// Returns where a symbolic link leads.
    #[track_caller]
    pub fn target(&self, place: &str) -> FsResult<Vec<u8>> {
        self.fs().readlink(&Caller::root(), self.ino(place))
    }

    /// Gives back what the slots hold.
    pub fn close_all(&mut self) {
        self.session.close_all();
    }
}

fn place_of(text: &str) -> Place {
    let step: Step = format!("u0 getattr {text}").parse().expect("the test writes a place");
    let testkit::ops::Op::GetAttr { file } = step.op else {
        unreachable!("getattr was written, not {step}")
    };
    file
}
