use std::sync::Arc;

use engine::api::{
    Attr, Caller, FileSystem, FsError, Ino, RenameMode, SetAttr, SetTime, Timestamp,
};
use runtime::clock::{Clock, ManualClock};

use super::super::Model;
use super::{ROOT, directory, file};

const DAY_NS: u64 = 24 * 60 * 60 * 1_000_000_000;

struct Ground {
    fs: Model,
    clock: Arc<ManualClock>,
}

impl Ground {
    fn new() -> Ground {
        let clock = Arc::new(ManualClock::new());
        Ground { fs: Model::new(clock.clone()), clock }
    }

    /// Which of atime, mtime and ctime of `ino` did `step` set to the time it ran at?
    fn set_by(&self, ino: Ino, step: impl FnOnce(&Model)) -> String {
        self.clock.advance_ns(1000);
        let now = self.clock.now();
        step(&self.fs);
        let attr: Attr = self.fs.getattr(&Caller::root(), ino).expect("it is there");
        let times = [('a', attr.atime), ('m', attr.mtime), ('c', attr.ctime)];
        times.into_iter().filter(|&(_, time)| time == now).map(|(letter, _)| letter).collect()
    }
}

fn read(fs: &Model, ino: Ino) {
    fs.read(&Caller::root(), ino, 0, 10, &mut Vec::new()).expect("a file can be read");
}

#[test]
fn content_and_attributes_each_set_their_times() {
    let ground = Ground::new();
    let ino = file(&ground.fs, ground.fs.root(), "f");
    let set = |change: SetAttr| {
        ground.set_by(ino, |fs| {
            fs.setattr(&ROOT, ino, &change, None).expect("the superuser may");
        })
    };
    let write = |data: &'static [u8]| {
        ground.set_by(ino, |fs| fs.write(&ROOT, ino, 0, data).expect("a file takes bytes"))
    };
    assert_eq!(write(b"x"), "mc");
    assert_eq!(write(b""), "");
    assert_eq!(set(SetAttr { size_bytes: Some(1), ..SetAttr::default() }), "mc");
    assert_eq!(set(SetAttr { mode: Some(0o600), ..SetAttr::default() }), "c");
    assert_eq!(set(SetAttr { uid: Some(0), ..SetAttr::default() }), "c");
    assert_eq!(set(SetAttr { atime: Some(SetTime::Now), ..SetAttr::default() }), "ac");
    assert_eq!(set(SetAttr::default()), "c");
    let past = Timestamp { seconds: -3, nanoseconds: 999_999_999 };
    let change = SetAttr {
        size_bytes: Some(0),
        mtime: Some(SetTime::To(past)),
        ctime: Some(past),
        ..SetAttr::default()
    };
    assert_eq!(set(change), "");
    let attr = ground.fs.getattr(&Caller::root(), ino).expect("it is there");
    assert_eq!((attr.mtime, attr.ctime), (past, past));
    let wrong = Timestamp { nanoseconds: 1_000_000_000, ..past };
    let change = SetAttr { atime: Some(SetTime::To(wrong)), ..SetAttr::default() };
    assert_eq!(ground.fs.setattr(&ROOT, ino, &change, None), Err(FsError::Invalid));
}

#[test]
fn names_set_the_times_of_directories_and_the_ctime_of_what_they_name() {
    let ground = Ground::new();
    let (a, b) = (directory(&ground.fs, Ino(1), "a", 0o755), directory(&ground.fs, Ino(1), "b", 0));
    let (ino, over) = (file(&ground.fs, a, "f"), file(&ground.fs, a, "over"));
    // Each step on a copy, once for each inode that is watched.
    let sets = |step: &dyn Fn(&Model)| {
        [a, b, ino, over].map(|watched| {
            let copy = Ground { fs: ground.fs.fork(), clock: Arc::clone(&ground.clock) };
            copy.set_by(watched, step)
        })
    };
    let expect = "the superuser may";
    let link = sets(&|fs| {
        fs.link(&ROOT, ino, b, b"l", None).expect(expect);
    });
    assert_eq!(link, ["", "mc", "c", ""]);
    let unlink = sets(&|fs| fs.unlink(&ROOT, a, b"f", None).expect(expect));
    assert_eq!(unlink, ["mc", "", "c", ""]);
    let rename = |target: (Ino, &'static [u8]), mode| {
        sets(&|fs| fs.rename(&ROOT, (a, b"f"), target, mode, None).expect(expect))
    };
    assert_eq!(rename((b, b"g"), RenameMode::Replace), ["mc", "mc", "c", ""]);
    assert_eq!(rename((a, b"over"), RenameMode::Replace), ["mc", "", "c", "c"]);
    assert_eq!(rename((a, b"over"), RenameMode::Exchange), ["mc", "", "c", "c"]);
    assert_eq!(rename((a, b"f"), RenameMode::Replace), ["", "", "", ""]);
    let mkdir = sets(&|fs| {
        directory(fs, b, "d", 0);
    });
    assert_eq!(mkdir, ["", "mc", "", ""]);
}

#[test]
fn reading_sets_atime_when_it_is_behind_or_a_day_old() {
    let ground = Ground::new();
    let ino = file(&ground.fs, ground.fs.root(), "f");
    let reading = || ground.set_by(ino, |fs| read(fs, ino));
    assert_eq!(reading(), "a", "as old as the last change");
    assert_eq!(reading(), "", "after the last change");
    ground.fs.write(&ROOT, ino, 0, b"x").expect("a file takes bytes");
    assert_eq!(reading(), "a", "behind the last change");
    ground.clock.advance_ns(DAY_NS);
    assert_eq!(reading(), "a", "a day old");
    let nothing = ground.set_by(ino, |fs| {
        fs.write(&ROOT, ino, 0, b"x").expect("a file takes bytes");
        fs.read(&Caller::root(), ino, 0, 0, &mut Vec::new()).expect("nothing is read");
    });
    assert_eq!(nothing, "mc");
    let list =
        |fs: &Model| fs.readdir(&Caller::root(), fs.root(), 0, &mut |_| true).expect("a directory");
    assert_eq!(ground.set_by(ground.fs.root(), list), "a");
}

#[test]
fn birth_is_stamped_once() {
    let ground = Ground::new();
    let born = ground.clock.now();
    let ino = file(&ground.fs, ground.fs.root(), "f");
    ground.set_by(ino, |fs| fs.write(&ROOT, ino, 0, b"x").expect("a file takes bytes"));
    assert_eq!(ground.fs.getattr(&Caller::root(), ino).map(|attr| attr.btime), Ok(born));
}
