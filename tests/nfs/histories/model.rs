//! What NFS has to answer: a tree of two directories with a few names, as a value.

use std::collections::BTreeMap;

/// Directories that all clients use.
pub(super) const DIRECTORIES: u64 = 2;
/// Names in each: of files first, of directories behind.
pub(super) const FILE_NAMES: u64 = 3;
pub(super) const NAMES: u64 = 5;
/// Places in a file that are written and read, so many bytes apart.
pub(super) const CELLS: u64 = 2;
pub(super) const CELL_STEP: u64 = 4096;
pub(super) const CELL_BYTES: u64 = 64;

pub(super) const NOT_FOUND: u32 = 2;
pub(super) const EXISTS: u32 = 17;
pub(super) const STALE: u32 = 70;

/// A directory, and a name in it, by number.
pub(super) type Place = (u64, u64);
/// A file, by the number of what made it.
pub(super) type FileNo = usize;
/// A handle, by the order in which they were first seen.
pub(super) type HandleNo = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Unchecked { truncates: bool },
    Guarded,
    Exclusive(u64),
}

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Create(Place, How),
    MakeDirectory(Place),
    RemoveDirectory(Place),
    Remove(Place),
    Rename(Place, Place),
    Link(HandleNo, Place),
    Lookup(Place),
    List(u64),
    Attributes(HandleNo),
    Read(HandleNo, u64),
    Write { of: HandleNo, cell: u64, tag: u32, is_stable: bool },
    Truncate(HandleNo),
    Commit(HandleNo),
}

impl Op {
    pub(super) fn is_change(&self) -> bool {
        use Op::{Attributes, Commit, List, Lookup, Read};
        !matches!(self, Lookup(_) | List(_) | Attributes(_) | Read(..) | Commit(_))
    }

    /// Whether others may see that it was done, though nobody was answered: a read changes a time,
    /// in which an exclusive creation has its number.
    pub(super) fn leaves_a_trace(&self) -> bool {
        self.is_change() || matches!(self, Op::Read(..))
    }

    /// Whether its answer says that it is on disk.
    pub(super) fn is_durable(&self) -> bool {
        !matches!(self, Op::Write { is_stable: false, .. })
    }

    pub(super) fn handle(&self) -> Option<HandleNo> {
        match *self {
            Op::Link(of, _)
            | Op::Attributes(of)
            | Op::Read(of, _)
            | Op::Write { of, .. }
            | Op::Truncate(of)
            | Op::Commit(of) => Some(of),
            Op::Create(..)
            | Op::MakeDirectory(_)
            | Op::RemoveDirectory(_)
            | Op::Remove(_)
            | Op::Rename(..)
            | Op::Lookup(_)
            | Op::List(_) => None,
        }
    }
}

/// What came back; `F` is how a file is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer<F> {
    Failed(u32),
    Done,
    /// Whether it is on disk.
    Written {
        is_stable: bool,
    },
    File(F),
    Names(Vec<(u64, F)>),
    /// Links and bytes.
    Attributes(u32, u64),
    /// Nothing behind the end.
    Content(Option<u32>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct File {
    is_directory: bool,
    links: u32,
    cells: Vec<u32>,
    /// The number of the exclusive creation that made it. It lies in the times: so a change of the
    /// content forgets it,
    verifier: Option<u64>,
    /// and a read may have.
    is_loose: bool,
}

impl File {
    /// Notes that the content was changed, or was empty and was made so again.
    fn forget(&mut self) {
        if self.cells.is_empty() { self.is_loose = true } else { self.verifier = None }
    }

    fn bytes(&self) -> u64 {
        let last = u64::try_from(self.cells.len()).expect("it is short");
        last.checked_sub(1).map_or(0, |last| last * CELL_STEP + CELL_BYTES)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tree {
    names: BTreeMap<Place, FileNo>,
    /// Those without a name too: a request that waits for its commit keeps them.
    files: BTreeMap<FileNo, File>,
}

/// The handle of each file that was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Handles(BTreeMap<FileNo, HandleNo>);

impl Handles {
    /// Each file has one handle, for ever, and no other has it.
    fn agree(&mut self, file: FileNo, handle: HandleNo) -> bool {
        match self.0.get(&file) {
            Some(&bound) => bound == handle,
            None if self.0.values().any(|&bound| bound == handle) => false,
            None => self.0.insert(file, handle).is_none(),
        }
    }

    pub(super) fn file(&self, handle: HandleNo) -> Option<FileNo> {
        self.0.iter().find(|(_, bound)| **bound == handle).map(|(&file, _)| file)
    }

    /// Whether an answer of the model is the one that came; learns handles.
    pub(super) fn match_answer(&mut self, own: &Answer<FileNo>, came: &Answer<HandleNo>) -> bool {
        match (own, came) {
            (Answer::Failed(own), Answer::Failed(came)) => own == came,
            (Answer::Done, Answer::Done) => true,
            (Answer::File(own), Answer::File(came)) => self.agree(*own, *came),
            (Answer::Names(own), Answer::Names(came)) => {
                let is_same = |((name, file), (other, handle)): (&(_, _), &(_, _))| {
                    name == other && self.agree(*file, *handle)
                };
                own.len() == came.len() && own.iter().zip(came).all(is_same)
            }
            (Answer::Attributes(links, bytes), Answer::Attributes(came, count)) => {
                (links, bytes) == (came, count)
            }
            (Answer::Content(own), Answer::Content(came)) => own == came,
            _ => false,
        }
    }
}

impl Tree {
    /// Returns the file of a handle that has a name, or had one in this life.
    pub(super) fn is_nameless(&self, file: FileNo) -> bool {
        self.files.get(&file).is_some_and(|file| file.links == 0)
    }

    /// Whether the file in `place` was made by exclusive creation `number`, and may know no more.
    pub(super) fn may_have_forgotten(&self, place: Place, number: u64) -> bool {
        let file = self.names.get(&place).and_then(|file| self.files.get(file));
        file.is_some_and(|file| file.verifier == Some(number) && file.is_loose)
    }

    /// It knows no more.
    pub(super) fn forget(&mut self, place: Place) {
        if let Some(file) = self.names.get(&place).and_then(|file| self.files.get_mut(file)) {
            file.verifier = None;
        }
    }

    /// A file was read, which changes a time of it, now or later.
    pub(super) fn loosen(&mut self, file: FileNo) {
        if let Some(file) = self.files.get_mut(&file) {
            file.is_loose = true;
        }
    }

    /// Whether both hold the same of `file`.
    pub(super) fn agrees_on(&self, other: &Tree, file: FileNo) -> bool {
        let cells = |tree: &Tree| tree.files.get(&file).map(|file| file.cells.clone());
        cells(self) == cells(other)
    }

    /// A server of a new life knows no file without a name.
    pub(super) fn after_death(mut self) -> Tree {
        self.files.retain(|_, file| file.links > 0);
        self
    }

    fn make(&mut self, place: Place, number: FileNo, file: File) -> Answer<FileNo> {
        self.names.insert(place, number);
        self.files.insert(number, File { links: 1, ..file });
        Answer::File(number)
    }

    fn unname(&mut self, place: Place) -> bool {
        let Some(file) = self.names.remove(&place) else { return false };
        self.files.get_mut(&file).expect("it has a name").links -= 1;
        true
    }

    /// Does what is asked; what it makes has the number `me`.
    pub(super) fn run(&mut self, op: &Op, me: FileNo, handles: &Handles) -> Answer<FileNo> {
        let done = |was_there| if was_there { Answer::Done } else { Answer::Failed(NOT_FOUND) };
        match *op {
            Op::Create(place, how) => self.create(place, how, me),
            Op::MakeDirectory(place) if self.names.contains_key(&place) => Answer::Failed(EXISTS),
            Op::MakeDirectory(place) => {
                self.make(place, me, File { is_directory: true, ..File::default() })
            }
            Op::Remove(place) | Op::RemoveDirectory(place) => done(self.unname(place)),
            Op::Rename(from, to) => {
                let Some(&file) = self.names.get(&from) else {
                    return Answer::Failed(NOT_FOUND);
                };
                // Two names of one file: nothing happens.
                if self.names.get(&to) != Some(&file) {
                    self.unname(to);
                    self.names.remove(&from);
                    self.names.insert(to, file);
                }
                Answer::Done
            }
            Op::Lookup(place) => {
                self.names.get(&place).map_or(Answer::Failed(NOT_FOUND), |&it| Answer::File(it))
            }
            Op::List(directory) => {
                let here = self.names.range((directory, 0)..(directory + 1, 0));
                Answer::Names(here.map(|((_, name), &file)| (*name, file)).collect())
            }
            Op::Link(of, place) => self.of_handle(of, handles, |tree, file| {
                if tree.is_nameless(file) {
                    return Answer::Failed(NOT_FOUND);
                }
                if tree.names.contains_key(&place) {
                    return Answer::Failed(EXISTS);
                }
                tree.names.insert(place, file);
                tree.files.get_mut(&file).expect("it is there").links += 1;
                Answer::Done
            }),
            Op::Attributes(of) => {
                self.of_file(of, handles, |file| Answer::Attributes(file.links, file.bytes()))
            }
            Op::Read(of, cell) => self.of_file(of, handles, |file| {
                let cell = usize::try_from(cell).expect("it is small");
                Answer::Content(file.cells.get(cell).copied())
            }),
            Op::Write { of, cell, tag, .. } => self.of_file(of, handles, |file| {
                let cell = usize::try_from(cell).expect("it is small");
                file.cells.resize(file.cells.len().max(cell + 1), 0);
                file.cells[cell] = tag;
                file.forget();
                Answer::Done
            }),
            Op::Truncate(of) => self.of_file(of, handles, |file| {
                file.forget();
                file.cells.clear();
                Answer::Done
            }),
            Op::Commit(of) => self.of_file(of, handles, |_| Answer::Done),
        }
    }

    fn create(&mut self, place: Place, how: How, me: FileNo) -> Answer<FileNo> {
        let verifier = if let How::Exclusive(number) = how { Some(number) } else { None };
        let Some(&file) = self.names.get(&place) else {
            return self.make(place, me, File { verifier, ..File::default() });
        };
        let it = self.files.get_mut(&file).expect("it has a name");
        match how {
            How::Unchecked { truncates } => {
                if truncates {
                    it.forget();
                    it.cells.clear();
                }
                Answer::File(file)
            }
            How::Exclusive(_) if it.verifier == verifier && it.cells.is_empty() => {
                Answer::File(file)
            }
            How::Guarded | How::Exclusive(_) => Answer::Failed(EXISTS),
        }
    }

    fn of_handle(
        &mut self,
        of: HandleNo,
        handles: &Handles,
        run: impl FnOnce(&mut Tree, FileNo) -> Answer<FileNo>,
    ) -> Answer<FileNo> {
        match handles.file(of).filter(|file| self.files.contains_key(file)) {
            Some(file) => run(self, file),
            None => Answer::Failed(STALE),
        }
    }

    fn of_file(
        &mut self,
        of: HandleNo,
        handles: &Handles,
        run: impl FnOnce(&mut File) -> Answer<FileNo>,
    ) -> Answer<FileNo> {
        self.of_handle(of, handles, |tree, file| {
            run(tree.files.get_mut(&file).expect("it was looked for"))
        })
    }
}
