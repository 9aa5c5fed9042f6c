//! A tree of files: extracted as tar would, walked, read, removed.
//!
//! The tree is generated from a seed, so that each target and each run has the same one: a
//! directory for about twenty files, eight directories in each, sizes as source trees have them
//! (two thirds up to 4 KiB, one in a hundred 256 KiB, 9 KiB on average).

use std::io;

use runtime::prng::Prng;

use super::{Group, Lap, Measure, Unit, Worker};
use crate::access::{Access, Buffer, Handle, OpenFor};
use crate::number::{to_f64, to_usize};
use crate::plan::Plan;

/// Files of a directory.
const FILES_PER_DIR: u64 = 20;
/// Directories of a directory.
const DIRS_PER_DIR: usize = 8;
/// Largest file.
const FILE_BYTES_MAX: usize = 256 << 10;
/// The time that an extracted file is given.
const FILE_SECONDS: i64 = 1_000_000_000;
/// The tree's own directory.
const TOP: &str = "tree";

pub(super) const fn measure(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, unit: Unit::Files }
}

pub(super) static TREE: Group = Group {
    name: "tree",
    measures: &[
        measure("tree-extract", "make a tree of small files, as tar does"),
        measure("tree-stat", "list every directory and stat every file, as git status does"),
        measure("tree-read", "list every directory and read every file, as grep -r does"),
        measure("tree-remove", "remove the tree, as rm -rf does"),
    ],
    is_threaded: false,
    bytes: Plan::tree_bytes,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = to_f64(lap.plan.tree_files);
    // The same tree in every round.
    let tree = Tree::new(lap.plan.tree_files, 1);
    // Another borrow of the lap's directory than the lap itself.
    let dir = lap.access.open_dir(&lap.dir, ".")?;
    lap.time_on(1, "tree-extract", count, |worker| tree.extract(worker, &dir, TOP))?;
    if lap.wants(&["tree-stat"]) {
        lap.time_on(1, "tree-stat", count, |worker| stat_all(worker, &dir, TOP))?;
    }
    if lap.wants(&["tree-read"]) {
        lap.time_on(1, "tree-read", count, |worker| read_all(worker, &dir, TOP))?;
    }
    if lap.wants(&["tree-remove"]) {
        lap.time_on(1, "tree-remove", count, |worker| remove(worker, &dir, TOP))?;
    }
    lap.access.close(dir);
    Ok(())
}

/// A directory of a generated tree.
#[derive(Debug)]
pub(super) struct Tree {
    /// Names and bytes.
    files: Vec<(String, usize)>,
    /// Names and what is below.
    dirs: Vec<(String, Tree)>,
}

impl Tree {
    /// Returns a tree of `files` files.
    pub(super) fn new(files: u64, seed: u64) -> Tree {
        let mut prng = Prng::from_seed(seed);
        let dir_count = to_usize(files.div_ceil(FILES_PER_DIR).max(1));
        let mut left = files;
        let mut dirs: Vec<Tree> = (0..dir_count)
            .map(|_| {
                let count = left.min(FILES_PER_DIR);
                left -= count;
                let name = |number| format!("file-{number}.c");
                let files = (0..count).map(|number| (name(number), size(&mut prng))).collect();
                Tree { files, dirs: Vec::new() }
            })
            .collect();
        // Directory n lies in directory (n - 1) / 8; from the last on, each is whole when it is put
        // into the one above.
        for index in (1..dir_count).rev() {
            let Some(dir) = dirs.pop() else { break };
            if let Some(parent) = dirs.get_mut((index - 1) / DIRS_PER_DIR) {
                parent.dirs.push((format!("dir-{index}"), dir));
            }
        }
        dirs.pop().unwrap_or(Tree { files: Vec::new(), dirs: Vec::new() })
    }

    /// Makes the tree as `name`.
    pub(super) fn extract(&self, worker: &Worker<'_>, at: &Handle, name: &str) -> io::Result<()> {
        self.extract_with(worker, at, name, &Buffer::new(FILE_BYTES_MAX))
    }

    fn extract_with(
        &self,
        worker: &Worker<'_>,
        at: &Handle,
        name: &str,
        data: &Buffer,
    ) -> io::Result<()> {
        let access = worker.access;
        access.make_dir(at, name)?;
        within(access, at, name, |dir| {
            for (name, bytes) in &self.files {
                worker.go_on()?;
                write_file(access, dir, name, data.first(*bytes))?;
            }
            let mut dirs = self.dirs.iter();
            dirs.try_for_each(|(name, tree)| tree.extract_with(worker, dir, name, data))
        })
    }

    /// Makes the directories alone; returns how many.
    pub(super) fn make_dirs(&self, worker: &Worker<'_>, at: &Handle, name: &str) -> io::Result<()> {
        worker.go_on()?;
        worker.access.make_dir(at, name)?;
        within(worker.access, at, name, |dir| {
            self.dirs.iter().try_for_each(|(name, tree)| tree.make_dirs(worker, dir, name))
        })
    }

    /// Returns how many directories there are, with this one.
    pub(super) fn dir_count(&self) -> u64 {
        1 + self.dirs.iter().map(|(_, tree)| tree.dir_count()).sum::<u64>()
    }

    /// Calls `each` with two directories that have this tree, and the name of each file in them.
    pub(super) fn each_pair(
        &self,
        worker: &Worker<'_>,
        (source, target): (&Handle, &Handle),
        each: &mut dyn FnMut(&Handle, &Handle, &str) -> io::Result<()>,
    ) -> io::Result<()> {
        for (name, _) in &self.files {
            worker.go_on()?;
            each(source, target, name)?;
        }
        let access = worker.access;
        self.dirs.iter().try_for_each(|(name, tree)| {
            within(access, source, name, |source| {
                within(access, target, name, |target| {
                    tree.each_pair(worker, (source, target), each)
                })
            })
        })
    }
}

/// Returns a size as the files of source trees have it.
fn size(prng: &mut Prng) -> usize {
    let bound = match prng.below(100) {
        0 => return FILE_BYTES_MAX,
        1..10 => 64 << 10,
        10..35 => 16 << 10,
        35..75 => 4 << 10,
        _ => 1 << 10,
    };
    to_usize(prng.below(bound) + 1)
}

/// Calls `work` with the open directory `name`.
pub(super) fn within<T>(
    access: &dyn Access,
    at: &Handle,
    name: &str,
    work: impl FnOnce(&Handle) -> io::Result<T>,
) -> io::Result<T> {
    let dir = access.open_dir(at, name)?;
    let done = work(&dir);
    access.close(dir);
    done
}

/// Makes a file with this content, and gives it its time.
pub(super) fn write_file(
    access: &dyn Access,
    dir: &Handle,
    name: &str,
    data: &[u8],
) -> io::Result<()> {
    let file = access.create(dir, name, false)?;
    let written = access.write(&file, 0, data);
    let done = written.and_then(|()| access.set_times(&file, FILE_SECONDS));
    access.close(file);
    done
}

/// Reads a file from end to end; returns how many bytes it has.
pub(super) fn read_file(
    access: &dyn Access,
    dir: &Handle,
    name: &str,
    data: &mut Buffer,
) -> io::Result<usize> {
    let file = access.open(dir, name, OpenFor::Read)?;
    let read = access.read(&file, 0, data);
    access.close(file);
    read
}

/// Lists `name` and all below it; calls `each` with every file.
fn walk(
    worker: &Worker<'_>,
    at: &Handle,
    name: &str,
    each: &mut dyn FnMut(&Handle, &str) -> io::Result<()>,
) -> io::Result<()> {
    let access = worker.access;
    within(access, at, name, |dir| {
        let mut names = Vec::new();
        access.list(dir, &mut |name, is_dir| names.push((name.to_owned(), is_dir)))?;
        names.iter().try_for_each(|(name, is_dir)| {
            worker.go_on()?;
            if *is_dir { walk(worker, dir, name, each) } else { each(dir, name) }
        })
    })
}

/// Lists every directory and asks for the attributes of every file.
pub(super) fn stat_all(worker: &Worker<'_>, at: &Handle, name: &str) -> io::Result<()> {
    let access = worker.access;
    walk(worker, at, name, &mut |dir, name| access.stat(dir, name).map(|_| ()))
}

/// Lists every directory and reads every file.
pub(super) fn read_all(worker: &Worker<'_>, at: &Handle, name: &str) -> io::Result<()> {
    let access = worker.access;
    let mut data = Buffer::new(FILE_BYTES_MAX);
    walk(worker, at, name, &mut |dir, name| read_file(access, dir, name, &mut data).map(|_| ()))
}

/// Removes a tree. Once begun it is ended, so that a run that stops has less to remove.
pub(super) fn remove(worker: &Worker<'_>, at: &Handle, name: &str) -> io::Result<()> {
    super::remove_all(worker.access, at, name, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tree: &Tree) -> (usize, usize) {
        let below: Vec<_> = tree.dirs.iter().map(|(_, tree)| count(tree)).collect();
        let files = tree.files.len() + below.iter().map(|(files, _)| files).sum::<usize>();
        let bytes = tree.files.iter().map(|(_, bytes)| bytes).sum::<usize>();
        (files, bytes + below.iter().map(|(_, bytes)| bytes).sum::<usize>())
    }

    fn depth(tree: &Tree) -> usize {
        1 + tree.dirs.iter().map(|(_, tree)| depth(tree)).max().unwrap_or(0)
    }

    #[test]
    fn a_tree_has_its_files_and_no_more_bytes_than_planned() {
        for files in [1, 19, 20, 21, 1000, 50_000] {
            let tree = Tree::new(files, 1);
            let (found, bytes) = count(&tree);
            assert_eq!(found, to_usize(files));
            assert_eq!(tree.dir_count(), files.div_ceil(FILES_PER_DIR));
            if files >= 1000 {
                let average = bytes / found;
                assert!((7 << 10..12 << 10).contains(&average), "{average} bytes on average");
                assert!((2..=6).contains(&depth(&tree)), "{} levels", depth(&tree));
            }
        }
    }
}
