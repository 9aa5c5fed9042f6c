//! One call of the vnode interface, on a few names and files that all threads share.

use engine::api::{
    Attr, Caller, DirEntry, Fallocate, FileKind, FileSystem, FsResult, Ino, NewInode, RenameMode,
    SetAttr,
};
use runtime::prng::Prng;
use testkit::canon::{CanonAttr, Identity, Times};
use testkit::ops::{bytes_of, sync};

/// An inode that every thread holds from the beginning to the end, whatever becomes of its names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inode {
    Root,
    /// The directory that is `/b` at first.
    D,
    /// The directory that is `/b/b` or `/c` at first.
    E,
    /// The file that is `/a` at first.
    F,
    /// The file that is `/b/a` at first.
    G,
}

const DIRECTORIES: [Inode; 3] = [Inode::Root, Inode::D, Inode::E];
const FILES: [Inode; 2] = [Inode::F, Inode::G];
const NAMES: [&str; 3] = ["a", "b", "c"];
const RENAMES: [RenameMode; 4] =
    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
/// Where writes and truncates begin and end: in the anode, in a fragment, in a block, past one.
const OFFSETS: [u64; 7] = [0, 100, 4096, 5000, 16_384, 20_000, 40_000];
/// What is punched: inside a page, a page, with an edge on either side, to behind the end.
const HOLES: [(u64, u64); 8] = [
    (0, 100),
    (100, 1),
    (5000, 3000),
    (16_384, 100),
    (20_000, 400),
    (0, 16_384),
    (100, 20_000),
    (5000, 40_000),
];
/// Past the end of every file.
const BYTES_MAX: usize = 128 << 10;

/// What is held, in the order of [`Inode`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held([Identity; 5]);

impl Held {
    /// Makes what the threads share, with one directory below the other if `is_deep`.
    pub(crate) fn prepare(fs: &dyn FileSystem, is_deep: bool) -> Held {
        let made = |parent: Identity, name: &str, kind| {
            let attr = fs.create(&Caller::root(), parent.ino, name.as_bytes(), new(kind), None);
            identity(&attr.expect("an empty file system takes it"))
        };
        let root = identity(&fs.getattr(&Caller::root(), fs.root()).expect("there is a root"));
        let d = made(root, "b", FileKind::Directory);
        let (above, name) = if is_deep { (d, "b") } else { (root, "c") };
        let e = made(above, name, FileKind::Directory);
        let f = made(root, "a", FileKind::Regular);
        let g = made(d, "a", FileKind::Regular);
        Held([root, d, e, f, g])
    }

    /// Returns all that is held.
    pub(crate) fn all(&self) -> [Identity; 5] {
        self.0
    }

    fn of(&self, inode: Inode) -> Ino {
        let [root, d, e, f, g] = self.0;
        let held = match inode {
            Inode::Root => root,
            Inode::D => d,
            Inode::E => e,
            Inode::F => f,
            Inode::G => g,
        };
        held.ino
    }
}

fn identity(attr: &Attr) -> Identity {
    Identity { ino: attr.ino, generation: attr.generation }
}

fn new(kind: FileKind) -> NewInode {
    NewInode::new(kind, 0o644)
}

/// What the calls of a program are about: threads that do little else meet more often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Focus {
    Any,
    Names,
    /// Renames, most of which move a directory.
    Moves,
    Content,
}

impl Focus {
    /// Returns what `random` chooses.
    pub(crate) fn random(random: &mut Prng) -> Focus {
        one_of(random, &[Focus::Any, Focus::Names, Focus::Moves, Focus::Content])
    }
}

/// A name in a directory.
pub(crate) type At = (Inode, &'static str);

/// A call.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    /// Which inode it is: what the answer says of it may be younger than the name.
    Lookup(At),
    /// The inode and its attributes, when nobody changes anything.
    Stat(At),
    Create(At, FileKind),
    Link(Inode, At),
    Unlink(At),
    Rmdir(At),
    Rename(At, At, RenameMode),
    List(Inode),
    /// One name of a listing.
    Entry(At),
    GetAttr(Inode),
    SetMode(Inode, u16),
    Read(Inode, u64, usize),
    /// Offset, bytes, and which ([`bytes_of`]).
    Write(Inode, u64, usize, u32),
    Truncate(Inode, u64),
    Punch(Inode, u64, u64),
    Fsync(Inode),
}

/// What a call was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Number of the error.
    Refused(i32),
    Done,
    /// An inode with one more reference on it.
    Named(Identity, Option<CanonAttr>),
    Attr(CanonAttr),
    Bytes(Vec<u8>),
    /// What a directory lists.
    Names(Vec<DirEntry>),
    /// What it lists by one name.
    Entry(Option<(FileKind, Ino)>),
}

impl Answer {
    /// Returns what of `fs` the caller has one more reference on.
    pub(crate) fn reference(&self, fs: &dyn FileSystem) -> Option<Ino> {
        let Answer::Named(identity, _) = self else { return None };
        (identity.ino != fs.root()).then_some(identity.ino)
    }
}

fn one_of<T: Copy>(random: &mut Prng, choices: &[T]) -> T {
    let nth = random.below(u64::try_from(choices.len()).expect("a few"));
    choices[usize::try_from(nth).expect("a few")]
}

impl Call {
    /// Returns a call that `random` chooses; of the writes of a history no two have one `fill`.
    pub(crate) fn random(random: &mut Prng, focus: Focus, fill: u32) -> Call {
        let names = if focus == Focus::Moves { &NAMES[1..] } else { &NAMES };
        let at = |random: &mut Prng| (one_of(random, &DIRECTORIES), one_of(random, names));
        let file = one_of(random, &FILES);
        let kind = match focus {
            Focus::Any => random.below(20),
            Focus::Names => random.below(15),
            Focus::Moves => 10 + random.below(5),
            Focus::Content => 15 + random.below(5),
        };
        match kind {
            0 if random.one_in(3) => Call::Lookup((one_of(random, &DIRECTORIES), "..")),
            0 | 1 => Call::Lookup(at(random)),
            2 | 3 => Call::Create(at(random), FileKind::Regular),
            4 => Call::Create(at(random), FileKind::Directory),
            5 | 6 => Call::Link(file, at(random)),
            7 | 8 => Call::Unlink(at(random)),
            9 => Call::Rmdir(at(random)),
            10..=13 => Call::Rename(at(random), at(random), one_of(random, &RENAMES)),
            14 => Call::List(one_of(random, &DIRECTORIES)),
            15 => match random.below(3) {
                0 => Call::GetAttr(one_of(random, &[Inode::D, Inode::F, Inode::G])),
                1 => Call::SetMode(file, one_of(random, &[0o600, 0o640])),
                _ => Call::Fsync(one_of(random, &[Inode::D, Inode::F, Inode::G])),
            },
            16 => Call::Read(file, one_of(random, &OFFSETS), BYTES_MAX),
            17 | 18 => {
                let length = usize::try_from(1 + one_of(random, &OFFSETS)).expect("small");
                Call::Write(file, one_of(random, &OFFSETS), length, fill)
            }
            _ if random.one_in(3) => {
                let (offset, length_bytes) = one_of(random, &HOLES);
                Call::Punch(file, offset, length_bytes)
            }
            _ => Call::Truncate(file, one_of(random, &OFFSETS)),
        }
    }

    /// Returns the calls that tell all there is to know, when nobody changes anything any more.
    pub(crate) fn survey() -> Vec<Call> {
        let names = NAMES.into_iter().chain([".."]);
        let stats = |inode| names.clone().map(move |name| Call::Stat((inode, name)));
        let mut calls: Vec<Call> = DIRECTORIES.into_iter().flat_map(stats).collect();
        calls.extend(DIRECTORIES.into_iter().chain(FILES).map(Call::GetAttr));
        calls.extend(DIRECTORIES.into_iter().map(Call::List));
        calls.extend(FILES.into_iter().map(|file| Call::Read(file, 0, BYTES_MAX)));
        calls
    }

    /// Whether the call changes nothing, whenever it is made.
    pub(crate) fn only_asks(&self) -> bool {
        matches!(
            self,
            Call::Lookup(_)
                | Call::Stat(_)
                | Call::List(_)
                | Call::Entry(_)
                | Call::GetAttr(_)
                | Call::Read(..)
                | Call::Fsync(_)
        )
    }

    /// Makes the call. The caller owes the reference of an [`Answer::Named`].
    pub(crate) fn on(&self, fs: &dyn FileSystem, held: &Held) -> Answer {
        self.answered(fs, held).unwrap_or_else(|error| Answer::Refused(error.errno()))
    }

    fn answered(&self, fs: &dyn FileSystem, held: &Held) -> FsResult<Answer> {
        let caller = Caller::root();
        let named =
            |attr: Attr| Answer::Named(identity(&attr), Some(CanonAttr::of(&attr, Times::Ignored)));
        let set = |file: Inode, change| {
            let attr = fs.setattr(&caller, held.of(file), &change, None)?;
            Ok(Answer::Attr(CanonAttr::of(&attr, Times::Ignored)))
        };
        let place = |(directory, name): At| (held.of(directory), name.as_bytes());
        match *self {
            Call::Lookup(at) => {
                let attr = fs.lookup(&caller, place(at).0, place(at).1)?;
                Ok(Answer::Named(identity(&attr), None))
            }
            Call::Stat(at) => fs.lookup(&caller, place(at).0, place(at).1).map(named),
            Call::Create(at, kind) => {
                fs.create(&caller, place(at).0, place(at).1, new(kind), None).map(named)
            }
            Call::Link(file, at) => {
                fs.link(&caller, held.of(file), place(at).0, place(at).1, None).map(named)
            }
            Call::Unlink(at) => {
                fs.unlink(&caller, place(at).0, place(at).1, None).map(|()| Answer::Done)
            }
            Call::Rmdir(at) => {
                fs.rmdir(&caller, place(at).0, place(at).1, None).map(|()| Answer::Done)
            }
            Call::Rename(source, target, mode) => {
                fs.rename(&caller, place(source), place(target), mode, None).map(|()| Answer::Done)
            }
            Call::List(directory) => list(fs, held.of(directory)).map(Answer::Names),
            Call::Entry((directory, name)) => {
                let names = list(fs, held.of(directory)).unwrap_or_default();
                Ok(Answer::Entry(entry_of(&names, name)))
            }
            Call::GetAttr(inode) => {
                let attr = fs.getattr(&Caller::root(), held.of(inode))?;
                Ok(Answer::Attr(CanonAttr::of(&attr, Times::Ignored)))
            }
            Call::SetMode(file, mode) => {
                set(file, SetAttr { mode: Some(mode), ..SetAttr::default() })
            }
            Call::Truncate(file, size_bytes) => {
                set(file, SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() })
            }
            Call::Read(file, offset, length) => {
                let mut bytes = Vec::new();
                fs.read(&Caller::root(), held.of(file), offset, length, &mut bytes)?;
                Ok(Answer::Bytes(bytes))
            }
            Call::Write(file, offset, length, fill) => {
                fs.write(&caller, held.of(file), offset, &bytes_of(fill, length))?;
                Ok(Answer::Done)
            }
            Call::Punch(file, offset, length) => {
                fs.fallocate(&caller, held.of(file), offset, length, Fallocate::PunchHole)?;
                Ok(Answer::Done)
            }
            Call::Fsync(inode) => {
                let is_told = !matches!(inode, Inode::F);
                sync(fs, &Caller::root(), held.of(inode), false, is_told).map(|()| Answer::Done)
            }
        }
    }
}

fn list(fs: &dyn FileSystem, directory: Ino) -> FsResult<Vec<DirEntry>> {
    let mut names = Vec::new();
    fs.readdir(&Caller::root(), directory, 0, &mut |entry: &DirEntry| {
        names.push(entry.clone());
        true
    })?;
    Ok(names)
}

fn entry_of(names: &[DirEntry], name: &str) -> Option<(FileKind, Ino)> {
    let found = names.iter().find(|entry| entry.name == name.as_bytes());
    found.map(|entry| (entry.kind, entry.ino))
}

/// Returns what a listing says of each name that there can be, as calls of their own; `None` if it
/// says anything else, or the same twice.
pub(crate) fn entries_of(
    directory: Inode,
    names: &[DirEntry],
) -> Option<impl Iterator<Item = (Call, Answer)>> {
    let all = || NAMES.into_iter().chain([".", ".."]);
    let told = all().filter(|name| entry_of(names, name).is_some()).count();
    let entry = move |name| (Call::Entry((directory, name)), Answer::Entry(entry_of(names, name)));
    (told == names.len()).then(|| all().map(entry))
}
