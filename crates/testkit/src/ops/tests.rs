use std::collections::BTreeSet;
use std::sync::Arc;

use engine::api::{
    AccessRights, Attr, AttributeChange, Caller, DirEntry, Fallocate, FileHandle, FileSystem,
    FilesetUuid, FsResult, Ino, NewInode, RenameMode, Seek, SetAttr, Stability, StatFs, WriteData,
    XattrMode,
};
use runtime::clock::ManualClock;

use super::{
    Divergence, Generator, LockstepOptions, Op, Outcome, ParseError, Place, Profile, Route,
    Session, Step, bytes_of, history_from_text, history_to_text, run_lockstep, shrink,
};
use crate::canon::Times;
use crate::model::Model;

const STEPS: usize = 1500;

fn profiles() -> [Profile; 5] {
    let whiteouts = Profile { whiteout_one_in: 3, ..Profile::names() };
    [Profile::everyday(), Profile::names(), Profile::data(), Profile::crash(), whiteouts]
}

/// A model with one fault, of which the lockstep must tell.
struct Faulty {
    inner: Model,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A write that ends within a page of 4 KiB zeros the rest of it.
    WriteZerosRestOfPage,
    /// A rename over a name does not take that name from what had it.
    RenameLeavesCtime,
    /// A truncation to 0 does nothing.
    TruncateLost,
    /// An unlink of a file with several names takes them for granted.
    UnlinkRefusedForLinks,
}

impl Faulty {
    fn inner<T>(&self, run: impl FnOnce(&Model) -> FsResult<T>) -> FsResult<T> {
        run(&self.inner)
    }
}

impl FileSystem for Faulty {
    engine::forward! { inner:
        resolve lookup getattr access create symlink readlink link rmdir read
        cookie_verifier getxattr setxattr listxattr removexattr tmpfile fallocate seek
        copy_range fsync sync
    }

    fn main_fileset(&self) -> FilesetUuid {
        self.inner.main_fileset()
    }
    fn root(&self) -> Ino {
        self.inner.root()
    }
    fn verifier(&self) -> u64 {
        self.inner.verifier()
    }
    fn forget(&self, ino: Ino, count: u64) {
        self.inner.forget(ino, count);
    }
    fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        if self.fault == Fault::TruncateLost && change.size_bytes == Some(0) {
            return self.inner.getattr(caller, ino);
        }
        self.inner.setattr(caller, ino, change, around)
    }
    fn unlink(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        around: Option<&mut AttributeChange>,
    ) -> FsResult<()> {
        if self.fault == Fault::UnlinkRefusedForLinks
            && let Ok(attr) = self.inner.lookup(caller, parent, name)
        {
            self.inner.forget(attr.ino, 1);
            if attr.nlink > 1 {
                return Ok(());
            }
        }
        self.inner.unlink(caller, parent, name, around)
    }
    fn rename(
        &self,
        caller: &Caller,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        around: Option<&mut [AttributeChange; 2]>,
    ) -> FsResult<()> {
        let moved = self.inner.lookup(caller, source.0, source.1);
        let answer = self.inner.rename(caller, source, target, mode, around);
        if let Ok(attr) = moved {
            if self.fault == Fault::RenameLeavesCtime && answer.is_ok() {
                let change = SetAttr { ctime: Some(attr.ctime), ..SetAttr::default() };
                self.inner.setattr(&Caller::root(), attr.ino, &change, None)?;
            }
            self.inner.forget(attr.ino, 1);
        }
        answer
    }
    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        data: &WriteData<'_>,
        _stability: Stability,
        _around: Option<&mut AttributeChange>,
    ) -> FsResult<usize> {
        self.inner.write(caller, ino, offset, data)?;
        let attr = self.inner.getattr(caller, ino)?;
        let end = offset + u64::try_from(data.len()).expect("64 bits");
        let page_end = end.next_multiple_of(4096).min(attr.size_bytes);
        if self.fault == Fault::WriteZerosRestOfPage && end < page_end {
            let zeros = vec![0; usize::try_from(page_end - end).expect("below a page")];
            self.inner.write(caller, ino, end, &zeros)?;
        }
        Ok(data.len())
    }
    fn readdir(
        &self,
        caller: &Caller,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        self.inner.readdir(caller, ino, cookie, each)
    }
    fn statfs(&self, caller: &Caller, fileset: FilesetUuid) -> FsResult<StatFs> {
        self.inner.statfs(caller, fileset)
    }
}

fn diverges(history: &[Step], fault: Fault) -> Option<Box<Divergence>> {
    let clock = Arc::new(ManualClock::new());
    let model = Model::new(clock.clone());
    let faulty = Faulty { inner: Model::new(clock.clone()), fault };
    let options = LockstepOptions { clock: Some(&*clock), walk_every: 200, background: &|| () };
    run_lockstep(&model, &faulty, history, options).err()
}

#[test]
fn two_models_agree_on_every_profile() {
    for (seed, profile) in (0..).zip(profiles()) {
        let history = Generator::history(seed, profile, STEPS);
        if let Some(divergence) = diverges(&history, Fault::None) {
            panic!("seed {seed}: {}", divergence.report(&history));
        }
    }
}

#[test]
fn lockstep_tells_of_each_fault_and_the_history_shrinks_to_a_few_steps() {
    for (fault, profile, steps_max) in [
        (Fault::WriteZerosRestOfPage, Profile::data(), 4),
        (Fault::RenameLeavesCtime, Profile::names(), 2),
        (Fault::TruncateLost, Profile::data(), 3),
        (Fault::UnlinkRefusedForLinks, Profile::names(), 3),
    ] {
        let history = Generator::history(3, profile, STEPS);
        let divergence = diverges(&history, fault).expect("the fault shows");
        let history = &history[..divergence.step_count()];
        let short = shrink(history, |history| diverges(history, fault).is_some());
        assert!(short.len() <= steps_max, "{fault:?}:\n{}", history_to_text(&short));
        assert!(diverges(&short, fault).is_some());
        assert!(diverges(&short, Fault::None).is_none());
    }
}

#[test]
fn a_wrong_attribute_is_told_at_the_step_that_made_it() {
    let text = "u0 create /a file 644\nu0 rename /a /b replace\nu0 sync\n";
    let history = history_from_text(text).expect("three steps");
    let divergence = diverges(&history, Fault::RenameLeavesCtime).expect("the fault shows");
    assert!(matches!(*divergence, Divergence::Attr { index: 1, .. }), "{divergence}");
}

#[test]
fn a_session_gives_back_every_reference() {
    let clock = Arc::new(ManualClock::new());
    let model = Model::new(clock);
    let mut session = Session::new(&model, Times::Ignored);
    for step in Generator::history(5, Profile::everyday(), STEPS) {
        session.apply(&step);
    }
    session.close_all();
    let inodes = |fs: &Model| {
        fs.statfs(&Caller::root(), fs.main_fileset()).expect("the model has sizes").inode_count
    };
    assert_eq!(inodes(&model), inodes(&model.reopened()), "orphans that nobody holds are gone");
}

#[test]
#[should_panic(expected = "the history fails when it is repeated")]
fn shrinking_a_history_that_does_not_fail_is_a_bug_of_the_test() {
    shrink(&[Step::root(Op::Sync)], |_| false);
}

#[test]
fn every_history_survives_as_text() {
    for (seed, profile) in (0..).zip(profiles()) {
        let history = Generator::history(seed, profile, STEPS);
        let text = history_to_text(&history);
        assert_eq!(text.lines().count(), STEPS);
        assert!(text.is_ascii());
        assert_eq!(history_from_text(&text), Ok(history));
    }
}

#[test]
fn lines_read_as_a_person_writes_them() {
    let at = |names: &[&[u8]]| Route(names.iter().map(|name| name.to_vec()).collect());
    let line = "u7 rename /a/%ff%2f /%{6e*255} exchange";
    let source = at(&[b"a", b"\xff/"]);
    let op = Op::Rename { source, target: at(&[&[b'n'; 255]]), mode: RenameMode::Exchange };
    assert_eq!(line.parse(), Ok(Step { uid: 7, op: op.clone() }));
    assert_eq!(Step { uid: 7, op }.to_string(), line);
    let text = "# why\n\nu0 getattr /\nu0 write @9 0 1 1\n";
    let error = ParseError { line: 4, text: "u0 write @9 0 1 1".to_owned() };
    assert_eq!(history_from_text(text), Err(error));
    let wrong = ["", "u0", "u0 sync x", "u0 unlink a", "u0 mode /a 9", "u0 unlink /%f", "sync"];
    for line in wrong {
        assert!(line.parse::<Step>().is_err(), "{line}");
    }
}

#[test]
fn the_same_seed_makes_the_same_history_and_another_seed_another() {
    let history = |seed| Generator::history(seed, Profile::everyday(), 300);
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

/// Goal: random histories reach what they are for. Method: count what happened in one.
#[test]
fn histories_do_what_their_profile_says() {
    let mut generator = Generator::new(11, Profile::everyday());
    let model = generator.model();
    let mut session = Session::new(&*model, Times::Ignored);
    let (mut done, mut errnos, mut orphan_writes) = (0, BTreeSet::new(), 0);
    let (mut nameless, mut first_names) = (BTreeSet::new(), 0);
    let mut sorts = BTreeSet::new();
    for _ in 0..4000 {
        let (step, outcome) = generator.next_in(&mut session);
        if let Outcome::Refused(error) = &outcome {
            errnos.insert(error.errno());
            continue;
        }
        done += 1;
        let held = |slot| session.probe(&Place::Slot(slot)).map(|attr| attr.ino);
        if let Op::Nameless { slot, .. } = step.op {
            nameless.extend(held(slot));
        } else if let Op::Link { file: Place::Slot(slot), .. } = step.op {
            first_names += usize::from(held(slot).is_some_and(|ino| nameless.remove(&ino)));
        }
        let line = step.to_string();
        sorts.insert(line.split(' ').nth(1).expect("every step has a verb").to_owned());
        if let Op::Write { file: file @ Place::Slot(_), .. } = &step.op {
            orphan_writes += usize::from(session.probe(file).is_some_and(|attr| attr.nlink == 0));
        }
    }
    assert!(done > 2000, "{done} of 4000 steps happened");
    assert_eq!(sorts.len(), 33, "{sorts:?}");
    assert!(first_names > 0, "no file got its first name late");
    assert!(orphan_writes > 3, "{orphan_writes} writes to files without a name");
    // EPERM, ENOENT, EACCES, EEXIST, ENOTDIR, EISDIR, EINVAL, ENAMETOOLONG, ENOTEMPTY.
    for errno in [1, 2, 13, 17, 20, 21, 22, 36, 39] {
        assert!(errnos.contains(&errno), "{errno} is not among {errnos:?}");
    }
}

#[test]
fn written_bytes_are_never_zero_and_differ_by_fill() {
    assert!(bytes_of(5, 100_000).iter().all(|&byte| byte != 0));
    assert_eq!(bytes_of(5, 100)[..50], bytes_of(5, 50)[..]);
    assert_ne!(bytes_of(5, 100), bytes_of(6, 100));
}
