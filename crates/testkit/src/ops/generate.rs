//! Histories by chance: the same seed and profile give the same history.
//!
//! The generator keeps a model of what it has asked for, so most of its steps are about something
//! that is there; the rest are about nothing, on purpose.

use std::sync::Arc;

use engine::api::{
    Caller, DirEntry, Fallocate, FileKind, FileSystem, RenameMode, Seek, SetTime, Timestamp,
    XattrMode,
};
use runtime::clock::ManualClock;
use runtime::prng::Prng;

use super::{AclEntry, AclText, Op, Outcome, Place, Route, SLOTS, Session, Step};
use crate::canon::Times;
use crate::model::Model;
use crate::number::{u64_of, usize_of};

/// How often each sort of step comes, relative to the others.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    /// Files.
    pub create: u64,
    /// Directories.
    pub mkdir: u64,
    /// Devices, fifos, sockets.
    pub special: u64,
    /// Symbolic links.
    pub symlink: u64,
    /// More names.
    pub link: u64,
    /// Names of files that go.
    pub unlink: u64,
    /// Directories that go.
    pub rmdir: u64,
    /// Names that move.
    pub rename: u64,
    /// Slots taken and given back.
    pub slot: u64,
    /// Writes.
    pub write: u64,
    /// Reads.
    pub read: u64,
    /// Holes, zeros, searches for holes, copies.
    pub hole: u64,
    /// Truncations, both ways.
    pub truncate: u64,
    /// Modes, owners, times.
    pub attr: u64,
    /// Extended attributes set, asked for, removed.
    pub xattr: u64,
    /// Access lists set.
    pub acl: u64,
    /// Questions: getattr, readlink, list.
    pub ask: u64,
    /// fsync and fdatasync.
    pub fsync: u64,
    /// sync.
    pub sync: u64,
}

/// What histories are like.
#[derive(Clone, Debug)]
pub struct Profile {
    /// How often each sort of step comes.
    pub weights: Weights,
    /// Names to choose from: few, so that they meet.
    pub names: Vec<Vec<u8>>,
    /// Directories one inside the other, at most.
    pub depth_max: usize,
    /// Where files normally end, at most.
    pub near_bytes_max: u64,
    /// Longest read or write.
    pub io_bytes_max: usize,
    /// One in so many offsets is far out, near a power of two; 0: none.
    pub far_one_in: u64,
    /// One in so many renames that may leave a whiteout does; 0: none.
    pub whiteout_one_in: u64,
    /// Who acts; 0 is the superuser.
    pub uids: Vec<u32>,
    /// Projects that files are given to; none: they have none.
    pub projects: Vec<u32>,
}

/// Block sizes around whose boundaries offsets lie: fragment, block, segment.
const BOUNDARIES: [u64; 3] = [4 << 10, 16 << 10, 1 << 20];
/// Files about as long as an anode holds, and a little longer.
const TINY_BYTES_MAX: u64 = 300;
/// Far offsets are near 2 to a power from here to below 2^63.
const FAR_POWER_MIN: u64 = 22;
const FAR_POWER_MAX: u64 = 62;
/// How far from the power of two a far offset is, and how much is written there: the walk of a
/// huge file reads that much around it.
const FAR_BYTES_MAX: u64 = 16 << 10;

/// Names of every sort: plain, not UTF-8, of the greatest length and one more.
pub const NAMES_DEFAULT: [(&[u8], usize); 10] = [
    (b"a", 1),
    (b"b", 1),
    (b"c", 1),
    (b"dir", 1),
    (b"two words", 1),
    (b"\xff\xfe\x80", 1),
    (b"caf\xe9", 1),
    (b"%2f", 1),
    (b"n", 255),
    (b"n", 256),
];

/// Of changes of attributes one in so many gives to a project, where there are any.
const PROJECT_ONE_IN: u64 = 3;

/// Names of extended attributes of every sort.
const XATTR_NAMES: [&[u8]; 6] = [
    b"user.a",
    b"user.b",
    b"user.caf\xe9",
    b"user.a name that is longer than what lies in an anode",
    b"trusted.t",
    b"security.label",
];
/// Names that are refused, or whose values mostly are.
const XATTR_NAMES_WRONG: [&[u8]; 4] = [b"security.capability", b"user.", b"other.a", b""];
/// Lengths of values around what fits into an entry, a page, and at all.
const XATTR_LENGTHS: [u64; 6] = [960, 961, 3968, 3969, 65_536, 65_537];

impl Profile {
    /// A bit of everything.
    #[must_use]
    pub fn everyday() -> Profile {
        Profile {
            weights: Weights {
                create: 10,
                mkdir: 6,
                special: 1,
                symlink: 2,
                link: 4,
                unlink: 6,
                rmdir: 3,
                rename: 8,
                slot: 6,
                write: 20,
                read: 8,
                hole: 6,
                truncate: 6,
                attr: 8,
                xattr: 6,
                acl: 4,
                ask: 8,
                fsync: 4,
                sync: 1,
            },
            names: NAMES_DEFAULT.iter().map(|(name, count)| name.repeat(*count)).collect(),
            depth_max: 4,
            near_bytes_max: 3 << 20,
            io_bytes_max: 160 << 10,
            far_one_in: 40,
            whiteout_one_in: 0,
            uids: vec![0, 0, 0, 0, 0, 7, 8],
            projects: Vec::new(),
        }
    }

    /// Names above all: rename storms, links, directories that come and go.
    #[must_use]
    pub fn names() -> Profile {
        let mut profile = Profile::everyday();
        profile.weights.rename = 40;
        profile.weights.link = 12;
        profile.weights.mkdir = 12;
        profile.weights.rmdir = 8;
        profile.weights.write = 2;
        profile.weights.truncate = 1;
        profile
    }

    /// Content above all, in few files.
    #[must_use]
    pub fn data() -> Profile {
        let mut profile = Profile::everyday();
        profile.weights.write = 60;
        profile.weights.read = 20;
        profile.weights.truncate = 15;
        profile.weights.hole = 15;
        profile.weights.rename = 2;
        profile.weights.unlink = 2;
        profile.names.truncate(3);
        profile.depth_max = 1;
        profile
    }

    /// For crashes: nothing far, nobody but the superuser, many fsyncs, small content.
    #[must_use]
    pub fn crash() -> Profile {
        let mut profile = Profile::everyday();
        profile.weights.fsync = 10;
        profile.weights.sync = 2;
        profile.near_bytes_max = 256 << 10;
        profile.io_bytes_max = 48 << 10;
        profile.far_one_in = 0;
        profile.uids = vec![0];
        profile
    }

    /// For crashes too: as a data base or a mail server works, little is written at a time, and
    /// most of it is synced.
    #[must_use]
    pub fn syncing() -> Profile {
        let mut profile = Profile::crash();
        profile.weights.write = 60;
        profile.weights.fsync = 60;
        profile.near_bytes_max = 64 << 10;
        profile.io_bytes_max = 6 << 10;
        profile
    }
}

/// Makes steps.
pub struct Generator {
    random: Prng,
    profile: Profile,
    /// The directory that every step stays below.
    top: Route,
    model: Arc<Model>,
    clock: Arc<ManualClock>,
    slots: [bool; SLOTS],
    fills: u32,
}

impl Generator {
    /// A generator of steps below the root.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Generator {
        let clock = Arc::new(ManualClock::new());
        let model = Arc::new(Model::new(clock.clone()));
        Generator {
            random: Prng::from_seed(seed),
            profile,
            top: Route::default(),
            model,
            clock,
            slots: [false; SLOTS],
            fills: 0,
        }
    }

    /// A generator of steps below the directory `top`, which is there in `model`, as is all that
    /// the generator may count on.
    #[must_use]
    pub fn below(seed: u64, profile: Profile, top: Route, model: &Model) -> Generator {
        let mut generator = Generator::new(seed, profile);
        generator.top = top;
        generator.model = Arc::new(model.reopened());
        generator
    }

    /// Returns the next step, which the generator takes to have happened, and what came of it.
    ///
    /// `session` must be of [`Generator::model`], and the only one.
    pub fn next_in(&mut self, session: &mut Session<'_>) -> (Step, Outcome) {
        let step = self.propose();
        let outcome = self.accept(session, &step);
        (step, outcome)
    }

    /// Returns a step, as if it were not to happen.
    pub fn propose(&mut self) -> Step {
        let pick = self.random.below(u64_of(self.profile.uids.len()));
        let uid = self.profile.uids[usize_of(pick)];
        let op = self.op();
        Step { uid, op }
    }

    /// Does `step` in the generator's model, and returns what came of it.
    pub fn accept(&mut self, session: &mut Session<'_>, step: &Step) -> Outcome {
        self.clock.advance_ns(1);
        let outcome = session.apply(step).outcome;
        if let Op::Open { slot, .. } | Op::Nameless { slot, .. } = step.op {
            self.slots[slot] |= outcome.is_done();
        } else if let Op::Close { slot } = step.op {
            self.slots[slot] = false;
        }
        outcome
    }

    /// Returns the model of what has happened.
    #[must_use]
    pub fn model(&self) -> Arc<Model> {
        Arc::clone(&self.model)
    }

    /// Returns a history of `count` steps.
    #[must_use]
    pub fn history(seed: u64, profile: Profile, count: usize) -> Vec<Step> {
        let mut generator = Generator::new(seed, profile);
        let model = generator.model();
        let mut session = Session::new(&*model, Times::Ignored);
        (0..count).map(|_| generator.next_in(&mut session).0).collect()
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize_of(self.random.below(u64_of(choices.len())))]
    }

    fn op(&mut self) -> Op {
        let w = self.profile.weights;
        type Make = fn(&mut Generator) -> Op;
        let choices: [(u64, Make); 19] = [
            (w.create, |g| g.create(FileKind::Regular)),
            (w.mkdir, |g| g.create(FileKind::Directory)),
            (w.special, Generator::special),
            (w.symlink, Generator::symlink),
            (w.link, |g| Op::Link { file: g.place(FileKind::Regular), at: g.fresh() }),
            (w.unlink, |g| Op::Unlink { at: g.existing(FileKind::Regular) }),
            (w.rmdir, |g| Op::Rmdir { at: g.existing(FileKind::Directory) }),
            (w.rename, Generator::rename),
            (w.slot, Generator::slot),
            (w.write, Generator::write),
            (w.read, Generator::read),
            (w.hole, Generator::hole),
            (w.truncate, |g| Op::Truncate {
                file: g.place(FileKind::Regular),
                size_bytes: g.offset().0,
            }),
            (w.attr, Generator::attr),
            (w.xattr, Generator::xattr),
            (w.acl, Generator::acl),
            (w.ask, Generator::ask),
            (w.fsync, Generator::fsync),
            (w.sync, |_| Op::Sync),
        ];
        let total = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.random.below(total);
        for (weight, make) in choices {
            if at < weight {
                return make(self);
            }
            at -= weight;
        }
        unreachable!("a number below the sum of the weights falls into one of them")
    }

    /// Goes down from the top at random, and returns what it stops at: most often of kind `kind`.
    fn existing(&mut self, kind: FileKind) -> Route {
        let mut route = self.top.clone();
        for _ in 0..=self.profile.depth_max {
            let mut names: Vec<DirEntry> = self.names_of(&route);
            let has_kind = names.iter().any(|entry| entry.kind == kind);
            if has_kind && !self.random.one_in(4) {
                names.retain(|entry| entry.kind == kind || entry.kind == FileKind::Directory);
            }
            if names.is_empty() {
                break;
            }
            let pick = usize_of(self.random.below(u64_of(names.len())));
            route = route.join(&names[pick].name);
            let goes_on = names[pick].kind == FileKind::Directory
                && (kind != FileKind::Directory || self.random.one_in(2));
            if !goes_on {
                break;
            }
        }
        if route == self.top { self.fresh() } else { route }
    }

    fn names_of(&self, route: &Route) -> Vec<DirEntry> {
        let session = Session::new(&*self.model, Times::Ignored);
        let Some(attr) = session.probe(&Place::At(route.clone())) else { return Vec::new() };
        let mut names = Vec::new();
        let mut each = |entry: &DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.clone());
            }
            true
        };
        let listed = self.model.readdir(&Caller::root(), attr.ino, 0, &mut each);
        if listed.is_err() {
            names.clear();
        }
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names
    }

    /// A name in some directory: one that may be there or not.
    fn fresh(&mut self) -> Route {
        let mut route = self.top.clone();
        while route.0.len() < self.top.0.len() + self.profile.depth_max && !self.random.one_in(3) {
            let mut names = self.names_of(&route);
            names.retain(|entry| entry.kind == FileKind::Directory);
            if names.is_empty() {
                break;
            }
            let pick = usize_of(self.random.below(u64_of(names.len())));
            route = route.join(&names[pick].name);
        }
        let pick = usize_of(self.random.below(u64_of(self.profile.names.len())));
        route.join(&self.profile.names[pick])
    }

    fn place(&mut self, kind: FileKind) -> Place {
        let held: Vec<usize> = (0..SLOTS).filter(|&slot| self.slots[slot]).collect();
        if !held.is_empty() && self.random.one_in(4) {
            return Place::Slot(self.one_of(&held));
        }
        Place::At(self.existing(kind))
    }

    fn mode(&mut self) -> u16 {
        self.one_of(&[0o644, 0o755, 0o777, 0o600, 0o666, 0o700, 0o000, 0o444, 0o664])
    }

    fn create(&mut self, kind: FileKind) -> Op {
        let is_directory = kind == FileKind::Directory;
        // Directories that nobody may enter make dull histories.
        let mode = if is_directory { self.one_of(&[0o755, 0o777, 0o770]) } else { self.mode() };
        Op::Create { at: self.fresh(), kind, mode }
    }

    fn special(&mut self) -> Op {
        let kinds = [FileKind::BlockDevice, FileKind::CharDevice, FileKind::Fifo, FileKind::Socket];
        let kind = self.one_of(&kinds);
        Op::Create { at: self.fresh(), kind, mode: self.mode() }
    }

    fn symlink(&mut self) -> Op {
        let length = self.one_of(&[1, 5, 59, 60, 100, 1000, 4095, 4096]);
        Op::Symlink { at: self.fresh(), target: vec![b't'; length] }
    }

    fn rename(&mut self) -> Op {
        let kind = self.one_of(&[FileKind::Regular, FileKind::Directory]);
        let source = self.existing(kind);
        let target = if self.random.one_in(2) { self.existing(kind) } else { self.fresh() };
        let mode = self.one_of(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ]);
        let whiteouts = self.profile.whiteout_one_in;
        let leaves_whiteout = whiteouts > 0 && self.random.one_in(whiteouts);
        let mode = match (mode, leaves_whiteout) {
            (RenameMode::Replace, true) => RenameMode::Whiteout,
            (RenameMode::NoReplace, true) => RenameMode::WhiteoutNoReplace,
            (mode, _) => mode,
        };
        Op::Rename { source, target, mode }
    }

    fn slot(&mut self) -> Op {
        let slot = usize_of(self.random.below(u64_of(SLOTS)));
        if self.slots[slot] && self.random.one_in(2) {
            return Op::Close { slot };
        }
        if self.random.one_in(3) {
            let directory = self.existing(FileKind::Directory);
            return Op::Nameless { slot, directory, mode: self.mode() };
        }
        Op::Open { slot, at: self.existing(FileKind::Regular) }
    }

    /// An offset, and how much may be done there.
    fn offset(&mut self) -> (u64, u64) {
        if self.profile.far_one_in > 0 && self.random.one_in(self.profile.far_one_in) {
            let power = FAR_POWER_MIN + self.random.below(FAR_POWER_MAX - FAR_POWER_MIN + 1);
            let offset = (1 << power) - FAR_BYTES_MAX + self.random.below(2 * FAR_BYTES_MAX);
            return (offset, FAR_BYTES_MAX);
        }
        let near = self.profile.near_bytes_max;
        let boundary = self.one_of(&BOUNDARIES);
        let at = self.random.below(near / boundary + 1) * boundary;
        let offset = match self.random.below(6) {
            0 => self.random.below(8192),
            // Where a file leaves its anode.
            5 => self.random.below(TINY_BYTES_MAX),
            1 => self.random.below(near),
            2 => at.saturating_sub(1 + self.random.below(64)),
            3 => at + self.random.below(64),
            _ => at,
        };
        (offset, u64_of(self.profile.io_bytes_max))
    }

    fn length(&mut self, length_max: u64) -> usize {
        let wanted = match self.random.below(5) {
            0 => self.random.below(200),
            1 => self.one_of(&BOUNDARIES),
            2 => self.one_of(&BOUNDARIES) + self.random.below(64),
            3 => self.random.below(20_000),
            _ => self.random.below(length_max),
        };
        usize_of(wanted.min(length_max))
    }

    fn write(&mut self) -> Op {
        let (offset, length_max) = self.offset();
        let length = self.length(length_max);
        self.fills = self.fills.wrapping_add(1);
        Op::Write { file: self.place(FileKind::Regular), offset, length, fill: self.fills }
    }

    fn hole(&mut self) -> Op {
        let file = self.place(FileKind::Regular);
        let (offset, length_max) = self.offset();
        let length = u64_of(self.length(length_max));
        match self.random.below(8) {
            0 => Op::Seek { file, offset, what: Seek::Data },
            1 => Op::Seek { file, offset, what: Seek::Hole },
            2 => {
                let target = self.place(FileKind::Regular);
                let (to, _) = self.offset();
                let length = length.min(FAR_BYTES_MAX);
                Op::Copy { source: file, from: offset, target, to, length }
            }
            3 => {
                let mode = Fallocate::ZeroRange { keep_size: self.random.one_in(2) };
                Op::Fallocate { file, offset, length, mode }
            }
            4 => {
                let mode = Fallocate::Allocate { keep_size: self.random.one_in(2) };
                Op::Fallocate { file, offset, length, mode }
            }
            // Long ones: several transactions.
            5 => {
                let length = length.saturating_mul(8).min(self.profile.near_bytes_max);
                Op::Fallocate { file, offset, length, mode: Fallocate::PunchHole }
            }
            _ => Op::Fallocate { file, offset, length, mode: Fallocate::PunchHole },
        }
    }

    fn read(&mut self) -> Op {
        let (offset, length_max) = self.offset();
        let length = self.length(length_max);
        Op::Read { file: self.place(FileKind::Regular), offset, length }
    }

    fn attr(&mut self) -> Op {
        if !self.profile.projects.is_empty() && self.random.one_in(PROJECT_ONE_IN) {
            let kind = self.one_of(&[FileKind::Directory, FileKind::Directory, FileKind::Regular]);
            let projects = self.profile.projects.clone();
            return Op::SetProject { file: self.place(kind), project: self.one_of(&projects) };
        }
        let kind = self.one_of(&[FileKind::Regular, FileKind::Regular, FileKind::Directory]);
        let file = self.place(kind);
        match self.random.below(3) {
            0 => {
                let set = self.one_of(&[0, 0, 0o4000, 0o2000, 0o6000, 0o1000]);
                Op::SetMode { file, mode: self.mode() | set }
            }
            1 => Op::SetOwner {
                file,
                uid: self.one_of(&[None, Some(0), Some(7), Some(8)]),
                gid: self.one_of(&[None, Some(0), Some(7), Some(super::COMMON_GID)]),
            },
            _ => {
                let past = Timestamp { seconds: -1, nanoseconds: 1 };
                let late = Timestamp { seconds: 1 << 33, nanoseconds: 999_999_999 };
                let times =
                    [None, Some(SetTime::Now), Some(SetTime::To(past)), Some(SetTime::To(late))];
                Op::SetTimes { file, atime: self.one_of(&times), mtime: self.one_of(&times) }
            }
        }
    }

    /// A name of an attribute, mostly one that `file` has, and seldom a wrong one; and whether the
    /// file has it.
    fn xattr_name(&mut self, file: &Place) -> (Vec<u8>, bool) {
        let session = Session::new(&*self.model, Times::Ignored);
        let names = session.probe(file).map(|attr| self.model.attributes_of(attr.ino));
        let names: Vec<Vec<u8>> = names.unwrap_or_default().into_keys().collect();
        if !names.is_empty() && !self.random.one_in(3) {
            return (names[usize_of(self.random.below(u64_of(names.len())))].clone(), true);
        }
        let is_wrong = self.random.one_in(20);
        let names: &[&[u8]] = if is_wrong { &XATTR_NAMES_WRONG } else { &XATTR_NAMES };
        (self.one_of(names).to_vec(), false)
    }

    fn xattr(&mut self) -> Op {
        let is_link = self.random.one_in(10);
        let kind = self.one_of(&[FileKind::Regular, FileKind::Regular, FileKind::Directory]);
        let file = self.place(if is_link { FileKind::Symlink } else { kind });
        let (name, is_there) = self.xattr_name(&file);
        match self.random.below(if is_there { 8 } else { 20 }) {
            0 => Op::GetXattr { file, name },
            1 => Op::ListXattr { file },
            2 => Op::RemoveXattr { file, name },
            3 if is_there => Op::RemoveXattr { file, name },
            _ => {
                let length = usize_of(match self.random.below(8) {
                    0 => 0,
                    1 => self.one_of(&XATTR_LENGTHS),
                    2 => self.random.below(65_537),
                    3 | 4 => self.random.below(2000),
                    _ => self.random.below(50),
                });
                self.fills = self.fills.wrapping_add(1);
                let mode = match self.random.below(6) {
                    0 => XattrMode::Create,
                    1 => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                Op::SetXattr { file, name, length, fill: self.fills, mode }
            }
        }
    }

    /// An access list, one in eight of them not in order.
    fn acl(&mut self) -> Op {
        let is_default = self.random.one_in(2);
        let kind = if is_default || self.random.one_in(3) {
            FileKind::Directory
        } else {
            FileKind::Regular
        };
        let file = self.place(kind);
        let mut list: Vec<AclEntry> = Vec::new();
        let mut add = |generator: &mut Generator, who: char, id: Option<u32>| {
            let permissions = generator.one_of(&[0, 1, 4, 5, 6, 7, 7, 7]);
            list.push(AclEntry { who, id, permissions });
        };
        add(self, 'u', None);
        // Now and then more than an anode has room for.
        let named_max = if self.random.one_in(4) { 30 } else { 3 };
        let users = self.random.below(named_max);
        (0..users).for_each(|n| add(self, 'u', Some(7 + u32::try_from(n).expect("few"))));
        add(self, 'g', None);
        let groups = self.random.below(named_max);
        for n in 0..groups {
            let id = self.one_of(&[7, 8, super::COMMON_GID, 1000]) + u32::try_from(n).expect("few");
            add(self, 'g', Some(id));
        }
        if users + groups > 0 || self.random.one_in(2) {
            add(self, 'm', None);
        }
        add(self, 'o', None);
        if self.random.one_in(8) {
            let at = usize_of(self.random.below(u64_of(list.len())));
            list.swap_remove(at);
        }
        Op::SetAcl { file, is_default, list: AclText(list) }
    }

    fn ask(&mut self) -> Op {
        match self.random.below(3) {
            0 => Op::GetAttr { file: self.place(FileKind::Regular) },
            1 => Op::ReadLink { file: self.place(FileKind::Symlink) },
            _ => Op::List { directory: self.place(FileKind::Directory) },
        }
    }

    fn fsync(&mut self) -> Op {
        let kind = self.one_of(&[FileKind::Regular, FileKind::Regular, FileKind::Directory]);
        Op::Fsync { file: self.place(kind), data_only: self.random.one_in(4) }
    }
}
