//! Workloads of one, two or three operations, each after what it needs and before what makes it
//! durable, as bounded black-box crash testing makes them.
//!
//! The operations and their arguments are a table here; what an operation needs (a file that is
//! there, 32 KiB in it, an attribute) is done first unless an earlier one did it; then comes a
//! persistence point: an fsync of a file or directory near what was touched, a sync, or (but for
//! the last) none. The names are four files and two directories: `foo` and `bar` in the root
//! `test`, the same in `A`, and `B`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use engine::api::Fallocate;

/// Bytes that a file has before it is changed.
const FILLED_BYTES: u64 = 32 << 10;

/// A file or directory of the workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// The root.
    Test,
    /// A directory.
    A,
    /// Another.
    B,
    /// `/foo`.
    Foo,
    /// `/bar`.
    Bar,
    /// `/A/foo`.
    AFoo,
    /// `/A/bar`.
    ABar,
}

impl Name {
    /// Returns the names from the root down.
    #[must_use]
    pub fn route(self) -> &'static [&'static str] {
        match self {
            Name::Test => &[],
            Name::A => &["A"],
            Name::B => &["B"],
            Name::Foo => &["foo"],
            Name::Bar => &["bar"],
            Name::AFoo => &["A", "foo"],
            Name::ABar => &["A", "bar"],
        }
    }

    fn is_directory(self) -> bool {
        matches!(self, Name::Test | Name::A | Name::B)
    }

    /// What an fsync may be of after something was done here.
    fn family(self) -> &'static [Name] {
        match self {
            Name::Test | Name::A | Name::B => &[Name::Test, Name::B, Name::A],
            Name::Foo | Name::Bar => &[Name::Foo, Name::Bar, Name::Test],
            Name::AFoo | Name::ABar => &[Name::AFoo, Name::ABar, Name::A],
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.route().concat();
        f.write_str(if name.is_empty() { "test" } else { &name })
    }
}

/// One operation of a workload, as a line of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Makes a directory.
    Mkdir(Name),
    /// Opens a file, and makes it where it is not there.
    Open(Name),
    /// Opens a directory.
    OpenDir(Name),
    /// Closes what was opened.
    Close(Name),
    /// Writes so many bytes at an offset, through the cache.
    Write(Name, u64, u64),
    /// The same past the cache; closes the file.
    WriteDirect(Name, u64, u64),
    /// The same through a mapping, which grows the file first, and is made durable last.
    WriteMapped(Name, u64, u64),
    /// Takes or gives back space.
    Fallocate(Name, FallocateKind, u64, u64),
    /// Sets the size.
    Truncate(Name, u64),
    /// Gives a file another name.
    Link(Name, Name),
    /// Moves a name.
    Rename(Name, Name),
    /// Takes a name away.
    Unlink(Name),
    /// The same by remove(3).
    Remove(Name),
    /// Sets `user.xattr1` to `val1`.
    SetXattr(Name),
    /// Removes it.
    RemoveXattr(Name),
    /// Makes a file or directory durable.
    Fsync(Name),
    /// Makes everything durable.
    Sync,
    /// Takes a snapshot of the fileset, which is durable then, with all that came before.
    Snapshot,
    /// Deletes the oldest snapshot.
    DeleteSnapshot,
    /// What was persisted before must survive every cut after.
    Checkpoint(u64),
}

/// [`Fallocate`] with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FallocateKind {
    /// Takes space and extends.
    Allocate,
    /// Takes space.
    AllocateKeepSize,
    /// Gives space back.
    PunchHole,
    /// Zeros and extends.
    Zero,
    /// Zeros.
    ZeroKeepSize,
}

impl FallocateKind {
    /// Returns what the interface calls it.
    #[must_use]
    pub fn mode(self) -> Fallocate {
        match self {
            FallocateKind::Allocate => Fallocate::Allocate { keep_size: false },
            FallocateKind::AllocateKeepSize => Fallocate::Allocate { keep_size: true },
            FallocateKind::PunchHole => Fallocate::PunchHole,
            FallocateKind::Zero => Fallocate::ZeroRange { keep_size: false },
            FallocateKind::ZeroKeepSize => Fallocate::ZeroRange { keep_size: true },
        }
    }
}

impl fmt::Display for FallocateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FallocateKind::Allocate => "0",
            FallocateKind::AllocateKeepSize => "FALLOC_FL_KEEP_SIZE",
            FallocateKind::PunchHole => "FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE",
            FallocateKind::Zero => "FALLOC_FL_ZERO_RANGE",
            FallocateKind::ZeroKeepSize => "FALLOC_FL_ZERO_RANGE|FALLOC_FL_KEEP_SIZE",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Mkdir(name) => write!(f, "mkdir {name} 0777"),
            Action::Open(name) => write!(f, "open {name} O_RDWR|O_CREAT 0777"),
            Action::OpenDir(name) => write!(f, "opendir {name} 0777"),
            Action::Close(name) => write!(f, "close {name}"),
            Action::Write(name, offset, length) => write!(f, "write {name} {offset} {length}"),
            Action::WriteDirect(name, offset, length) => {
                write!(f, "dwrite {name} {offset} {length}")
            }
            Action::WriteMapped(name, offset, length) => {
                write!(f, "mmapwrite {name} {offset} {length}")
            }
            Action::Fallocate(name, kind, offset, length) => {
                write!(f, "falloc {name} {kind} {offset} {length}")
            }
            Action::Truncate(name, size_bytes) => write!(f, "truncate {name} {size_bytes}"),
            Action::Link(old, new) => write!(f, "link {old} {new}"),
            Action::Rename(old, new) => write!(f, "rename {old} {new}"),
            Action::Unlink(name) => write!(f, "unlink {name}"),
            Action::Remove(name) => write!(f, "remove {name}"),
            Action::SetXattr(name) => write!(f, "fsetxattr {name}"),
            Action::RemoveXattr(name) => write!(f, "removexattr {name}"),
            Action::Fsync(name) => write!(f, "fsync {name}"),
            Action::Sync => f.write_str("sync"),
            Action::Snapshot => f.write_str("snapshot"),
            Action::DeleteSnapshot => f.write_str("snapshot-delete"),
            Action::Checkpoint(number) => write!(f, "checkpoint {number}"),
        }
    }
}

/// A sequence of actions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Workload(pub Vec<Action>);

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|action| writeln!(f, "{action}"))
    }
}

/// Returns the operations that workloads are made of.
#[must_use]
pub fn alphabet() -> Vec<Action> {
    use Name::{A, ABar, AFoo, B, Bar, Foo};
    let mut all = vec![Action::Open(Foo), Action::Open(AFoo), Action::Mkdir(A)];
    let kinds = [
        FallocateKind::Zero,
        FallocateKind::ZeroKeepSize,
        FallocateKind::PunchHole,
        FallocateKind::AllocateKeepSize,
        FallocateKind::Allocate,
    ];
    let behind = (FILLED_BYTES, FILLED_BYTES);
    let across = (FILLED_BYTES - 2000, 5000);
    for file in [Foo, AFoo] {
        for kind in kinds {
            let ranges = [behind, (0, 5000), across];
            all.extend(ranges.map(|(at, count)| Action::Fallocate(file, kind, at, count)));
        }
        let ranges = [(0, FILLED_BYTES), (0, 5000), across];
        all.extend(ranges.map(|(at, count)| Action::Write(file, at, count)));
        let ranges = [(0, FILLED_BYTES), (0, 8192)];
        all.extend(ranges.map(|(at, count)| Action::WriteDirect(file, at, count)));
        all.extend([behind, (0, 8192)].map(|(at, count)| Action::WriteMapped(file, at, count)));
        all.extend([Action::SetXattr(file), Action::RemoveXattr(file)]);
        all.extend([0, 2500].map(|size_bytes| Action::Truncate(file, size_bytes)));
    }
    let pairs = [(Foo, Bar), (AFoo, ABar), (Foo, ABar), (AFoo, Bar), (Bar, ABar), (ABar, Bar)];
    all.extend(pairs.map(|(old, new)| Action::Link(old, new)));
    all.extend(pairs.map(|(old, new)| Action::Rename(old, new)));
    all.push(Action::Rename(A, B));
    for file in [Foo, AFoo, Bar, ABar] {
        all.extend([Action::Unlink(file), Action::Remove(file)]);
    }
    all
}

/// Returns operations that longer sequences are made of, each kind of them once, with the
/// arguments that do the most:
///
/// 1. What changes bytes does so in one file, `foo`, so that three changes meet in the same blocks;
///    the same in `A/foo` differs by its directory only, which names are there for.
/// 2. Ranges begin or end inside a block and some reach past the end; writes are of a whole file
///    too.
/// 3. Names go from directory to directory and back, onto names that are there, and the directory
///    itself moves.
/// 4. remove(3) of a file is unlink(2) and is left out.
///
/// Every persistence point that there is follows some of them: nothing, an fsync of the file, of
/// its neighbour, of its directory and of another directory, a mapping that is synced, and sync.
#[must_use]
pub fn alphabet_of_kinds() -> Vec<Action> {
    use Name::{A, ABar, AFoo, B, Bar, Foo};
    let across = FILLED_BYTES - 2000;
    vec![
        Action::Open(AFoo),
        Action::Mkdir(A),
        Action::Fallocate(Foo, FallocateKind::Zero, across, 5000),
        Action::Fallocate(Foo, FallocateKind::ZeroKeepSize, 0, 5000),
        Action::Fallocate(Foo, FallocateKind::PunchHole, 0, 5000),
        Action::Fallocate(Foo, FallocateKind::AllocateKeepSize, FILLED_BYTES, FILLED_BYTES),
        Action::Fallocate(Foo, FallocateKind::Allocate, across, 5000),
        Action::Write(Foo, 0, FILLED_BYTES),
        Action::Write(Foo, across, 5000),
        Action::WriteDirect(Foo, 0, 8192),
        Action::WriteMapped(Foo, FILLED_BYTES, FILLED_BYTES),
        Action::Truncate(Foo, 2500),
        Action::SetXattr(Foo),
        Action::RemoveXattr(Foo),
        Action::Link(Foo, ABar),
        Action::Rename(Foo, ABar),
        Action::Rename(ABar, Bar),
        Action::Rename(A, B),
        Action::Unlink(Foo),
    ]
}

/// Returns the operations of [`alphabet_of_kinds`] of which all sequences of three can be tried in
/// an hour: one for each thing that recovery puts together. A name comes, goes, is one of
/// two, moves onto another, and moves with its directory; bytes come past the end, go from the
/// middle, and go from the end.
#[must_use]
pub fn core_alphabet() -> Vec<Action> {
    use Name::{A, ABar, AFoo, B, Foo};
    vec![
        Action::Open(AFoo),
        Action::Fallocate(Foo, FallocateKind::PunchHole, 0, 5000),
        Action::Write(Foo, FILLED_BYTES - 2000, 5000),
        Action::Truncate(Foo, 2500),
        Action::Link(Foo, ABar),
        Action::Rename(Foo, ABar),
        Action::Rename(A, B),
        Action::Unlink(Foo),
    ]
}

/// Returns the operations of [`core_alphabet`] and those on snapshots: what is changed after a
/// snapshot is copied first, and what is given up stays where a snapshot has it.
#[must_use]
pub fn alphabet_with_snapshots() -> Vec<Action> {
    core_alphabet().into_iter().chain([Action::Snapshot, Action::DeleteSnapshot]).collect()
}

/// What is there while a workload is made.
#[derive(Clone, Debug, Default)]
struct Scene {
    done: Vec<Action>,
    /// Bytes of each file.
    files: BTreeMap<Name, u64>,
    directories: BTreeSet<Name>,
    with_xattr: BTreeSet<Name>,
    /// In the order in which they were opened.
    open: Vec<Name>,
    snapshots: u32,
}

impl Scene {
    fn add(&mut self, action: Action) {
        self.done.push(action);
        match action {
            Action::Mkdir(name) => drop(self.directories.insert(name)),
            Action::Open(name) => {
                self.files.entry(name).or_insert(0);
                self.open.push(name);
            }
            Action::OpenDir(name) => self.open.push(name),
            Action::Close(name) => self.open.retain(|&open| open != name),
            Action::Write(name, offset, length) | Action::WriteMapped(name, offset, length) => {
                self.grow(name, offset + length);
            }
            Action::WriteDirect(name, offset, length) => {
                self.grow(name, offset + length);
                self.open.retain(|&open| open != name);
            }
            Action::Fallocate(name, kind, offset, length) => {
                if matches!(kind, FallocateKind::Allocate | FallocateKind::Zero) {
                    self.grow(name, offset + length);
                }
            }
            Action::Truncate(name, size_bytes) => drop(self.files.insert(name, size_bytes)),
            Action::Link(old, new) => {
                let bytes = self.files.get(&old).copied().unwrap_or(0);
                self.files.insert(new, bytes);
            }
            Action::Rename(old, new) => self.rename(old, new),
            Action::Unlink(name) | Action::Remove(name) => self.forget(name),
            Action::SetXattr(name) => drop(self.with_xattr.insert(name)),
            Action::RemoveXattr(name) => drop(self.with_xattr.remove(&name)),
            Action::Snapshot => self.snapshots += 1,
            Action::DeleteSnapshot => self.snapshots = self.snapshots.saturating_sub(1),
            Action::Fsync(_) | Action::Sync | Action::Checkpoint(_) => {}
        }
    }

    fn grow(&mut self, name: Name, end: u64) {
        let bytes = self.files.entry(name).or_insert(0);
        *bytes = end.max(*bytes);
    }

    fn forget(&mut self, name: Name) {
        self.files.remove(&name);
        self.with_xattr.remove(&name);
    }

    fn rename(&mut self, old: Name, new: Name) {
        if old.is_directory() {
            self.directories.remove(&old);
            self.directories.insert(new);
            // What was in it has names that no workload speaks of.
            self.forget(Name::AFoo);
            self.forget(Name::ABar);
            return;
        }
        let (bytes, has_xattr) = (self.files.get(&old).copied(), self.with_xattr.contains(&old));
        self.forget(old);
        self.forget(new);
        self.files.insert(new, bytes.unwrap_or(0));
        if has_xattr {
            self.with_xattr.insert(new);
        }
    }

    fn need_parent(&mut self, name: Name) {
        if matches!(name, Name::AFoo | Name::ABar) && !self.directories.contains(&Name::A) {
            self.add(Action::Mkdir(Name::A));
        }
    }

    fn need_file(&mut self, name: Name) {
        self.need_parent(name);
        if !self.files.contains_key(&name) {
            self.add(Action::Open(name));
        }
    }

    fn need_open(&mut self, name: Name) {
        self.need_parent(name);
        if !self.open.contains(&name) {
            self.add(Action::Open(name));
        }
    }

    fn need_filled(&mut self, name: Name) {
        self.need_open(name);
        if self.files.get(&name).is_none_or(|&bytes| bytes < FILLED_BYTES) {
            self.add(Action::Write(name, 0, FILLED_BYTES));
        }
    }

    fn need_closed(&mut self, name: Name) {
        if self.open.contains(&name) {
            self.add(Action::Close(name));
        }
    }

    /// Does `operation`, and what it needs before.
    fn operate(&mut self, operation: Action) {
        match operation {
            Action::Open(name) => {
                self.need_parent(name);
                if self.open.contains(&name) {
                    return;
                }
            }
            Action::Mkdir(name) if self.directories.contains(&name) => return,
            // The first write of a whole file needs nothing in it.
            Action::Write(name, 0, FILLED_BYTES) | Action::WriteDirect(name, 0, FILLED_BYTES) => {
                self.need_open(name);
            }
            Action::Write(name, ..)
            | Action::WriteDirect(name, ..)
            | Action::WriteMapped(name, ..)
            | Action::Fallocate(name, ..)
            | Action::Truncate(name, _) => self.need_filled(name),
            Action::SetXattr(name) => self.need_open(name),
            Action::RemoveXattr(name) => {
                self.need_open(name);
                if !self.with_xattr.contains(&name) {
                    self.add(Action::SetXattr(name));
                }
            }
            Action::Link(old, new) => {
                self.need_new_parent(old, new);
                self.need_file(old);
                if self.files.contains_key(&new) {
                    self.need_closed(new);
                    self.add(Action::Unlink(new));
                }
            }
            Action::Rename(old, new) if old.is_directory() => {
                if !self.directories.contains(&old) {
                    self.add(Action::Mkdir(old));
                }
                // Of open files below no workload speaks any more.
                for file in [Name::AFoo, Name::ABar] {
                    self.need_closed(file);
                }
                if !self.open.contains(&old) {
                    self.add(Action::OpenDir(old));
                }
                self.need_closed(old);
                self.need_closed(new);
            }
            Action::Rename(old, new) => {
                self.need_new_parent(old, new);
                self.need_file(old);
                self.need_closed(old);
                self.need_closed(new);
            }
            Action::Unlink(name) | Action::Remove(name) => {
                self.need_file(name);
                self.need_closed(name);
            }
            Action::DeleteSnapshot if self.snapshots == 0 => self.add(Action::Snapshot),
            Action::Mkdir(_)
            | Action::Snapshot
            | Action::DeleteSnapshot
            | Action::OpenDir(_)
            | Action::Close(_)
            | Action::Fsync(_)
            | Action::Sync
            | Action::Checkpoint(_) => {}
        }
        self.add(operation);
    }

    fn need_new_parent(&mut self, old: Name, new: Name) {
        self.need_parent(old);
        self.need_parent(new);
    }

    /// Makes what was done durable: an fsync, or everything.
    fn persist(&mut self, point: Option<Name>) {
        let Some(name) = point else {
            self.add(Action::Sync);
            return;
        };
        if !self.open.contains(&name) {
            if !name.is_directory() {
                self.need_open(name);
            } else {
                if name != Name::Test && !self.directories.contains(&name) {
                    self.add(Action::Mkdir(name));
                }
                self.add(Action::OpenDir(name));
            }
        }
        self.add(Action::Fsync(name));
    }

    fn ended(mut self, persisted: u64) -> Workload {
        self.add(Action::Checkpoint(persisted));
        for name in self.open.clone() {
            self.add(Action::Close(name));
        }
        Workload(self.done)
    }
}

/// How an operation may be followed: by nothing, or by what is in the list.
pub(super) fn persistence_points(operation: Action) -> Vec<Option<Name>> {
    let near: Vec<Name> = match operation {
        // Durable by itself: its mapping is synced, or all is.
        Action::WriteMapped(..) | Action::Snapshot | Action::DeleteSnapshot => return Vec::new(),
        Action::Link(old, new) | Action::Rename(old, new) => {
            old.family().iter().chain(new.family()).copied().collect()
        }
        Action::Mkdir(name)
        | Action::Open(name)
        | Action::OpenDir(name)
        | Action::Close(name)
        | Action::Write(name, ..)
        | Action::WriteDirect(name, ..)
        | Action::Fallocate(name, ..)
        | Action::Truncate(name, _)
        | Action::Unlink(name)
        | Action::Remove(name)
        | Action::SetXattr(name)
        | Action::RemoveXattr(name)
        | Action::Fsync(name) => name.family().to_vec(),
        Action::Sync | Action::Checkpoint(_) => Vec::new(),
    };
    let near: BTreeSet<Name> = near.into_iter().collect();
    near.into_iter().map(Some).chain([None]).collect()
}

/// Returns how many workloads the operations give, repeats included: each number below names one.
#[must_use]
pub fn count(alphabet: &[Action], bound: u32) -> u64 {
    let last: u64 = alphabet.iter().map(|&action| choices(action, true)).sum();
    let before: u64 = alphabet.iter().map(|&action| choices(action, false)).sum();
    before.pow(bound.saturating_sub(1)) * last
}

fn choices(operation: Action, is_last: bool) -> u64 {
    let points = crate::number::u64_of(persistence_points(operation).len());
    // None at all is a choice, but after the last: there it is one only where nothing else is.
    if is_last { points.max(1) } else { points + 1 }
}

/// Returns workload `index` of those of `bound` operations, counted with repeats.
///
/// # Panics
///
/// If `index` is not below [`count`].
#[must_use]
pub fn workload(alphabet: &[Action], bound: u32, index: u64) -> Workload {
    let mut rest = index;
    let mut scene = Scene::default();
    for position in 0..bound {
        let is_last = position + 1 == bound;
        let sum: u64 = alphabet.iter().map(|&action| choices(action, is_last)).sum();
        let mut digit = rest % sum;
        rest /= sum;
        let operation = alphabet.iter().copied().find(|&action| {
            let width = choices(action, is_last);
            let is_here = digit < width;
            if !is_here {
                digit -= width;
            }
            is_here
        });
        let operation = operation.expect("the digit is below the sum");
        scene.operate(operation);
        let points = persistence_points(operation);
        if let Some(&point) = points.get(crate::number::usize_of(digit)) {
            scene.persist(point);
        }
    }
    assert_eq!(rest, 0, "the index is below the count");
    scene.ended(1)
}

/// Returns every workload of one operation, sorted, each once.
#[must_use]
pub fn workloads_of_one(alphabet: &[Action]) -> Vec<Workload> {
    let all = (0..count(alphabet, 1)).map(|index| workload(alphabet, 1, index));
    all.collect::<BTreeSet<_>>().into_iter().collect()
}
