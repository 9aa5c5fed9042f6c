//! A tree of files: extracted as by tar, walked, read and removed.
//!
//! Generated from a seed, so equal for all targets and runs. About twenty files and eight
//! directories per directory, with file sizes as in source trees: two thirds up to 4 KiB, one in a
//! hundred 256 KiB, 9 KiB on average.

use std::io;

use runtime::prng::Prng;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, WorkloadThread};
use crate::access::{BenchHandle, OpenMode, TargetAccess, TransferBuffer};
use crate::number::{to_f64, to_usize};
use crate::plan::BenchPlan;

const FILES_PER_DIR: u64 = 20;
const DIRS_PER_DIR: usize = 8;
const FILE_BYTES_MAX: usize = 256 << 10;
/// Modification time of extracted files.
const FILE_SECONDS: i64 = 1_000_000_000;
const TOP: &str = "tree";

pub(super) const fn measure(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, unit: MeasureUnit::Files }
}

pub(super) static TREE: WorkloadGroup = WorkloadGroup {
    name: "tree",
    measures: &[
        measure("tree-extract", "make a tree of small files, as tar does"),
        measure("tree-stat", "list every directory and stat every file, as git status does"),
        measure("tree-read", "list every directory and read every file, as grep -r does"),
        measure("tree-remove", "remove the tree, as rm -rf does"),
    ],
    is_threaded: false,
    bytes: BenchPlan::tree_bytes,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = to_f64(lap.plan.tree_files);
    // Every round uses the same tree.
    let tree = GeneratedDirectory::new(lap.plan.tree_files, 1);
    // The lap is borrowed mutably.
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
pub(super) struct GeneratedDirectory {
    files: Vec<(String, usize)>,
    dirs: Vec<(String, GeneratedDirectory)>,
}

impl GeneratedDirectory {
    pub(super) fn new(files: u64, seed: u64) -> GeneratedDirectory {
        let mut prng = Prng::from_seed(seed);
        let dir_count = to_usize(files.div_ceil(FILES_PER_DIR).max(1));
        let mut left = files;
        let mut dirs: Vec<GeneratedDirectory> = (0..dir_count)
            .map(|_| {
                let count = left.min(FILES_PER_DIR);
                left -= count;
                let name = |number| format!("file-{number}.c");
                let files = (0..count).map(|number| (name(number), size(&mut prng))).collect();
                GeneratedDirectory { files, dirs: Vec::new() }
            })
            .collect();
        // Directory n is a child of (n - 1) / 8, so parents have lower numbers. In descending
        // order, each directory has all its children before it is moved into its parent.
        for index in (1..dir_count).rev() {
            let Some(dir) = dirs.pop() else { break };
            if let Some(parent) = dirs.get_mut((index - 1) / DIRS_PER_DIR) {
                parent.dirs.push((format!("dir-{index}"), dir));
            }
        }
        dirs.pop().unwrap_or(GeneratedDirectory { files: Vec::new(), dirs: Vec::new() })
    }

    pub(super) fn extract(
        &self,
        worker: &WorkloadThread<'_>,
        at: &BenchHandle,
        name: &str,
    ) -> io::Result<()> {
        self.extract_with(worker, at, name, &TransferBuffer::new(FILE_BYTES_MAX))
    }

    fn extract_with(
        &self,
        worker: &WorkloadThread<'_>,
        at: &BenchHandle,
        name: &str,
        data: &TransferBuffer,
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

    pub(super) fn make_dirs(
        &self,
        worker: &WorkloadThread<'_>,
        at: &BenchHandle,
        name: &str,
    ) -> io::Result<()> {
        worker.go_on()?;
        worker.access.make_dir(at, name)?;
        within(worker.access, at, name, |dir| {
            self.dirs.iter().try_for_each(|(name, tree)| tree.make_dirs(worker, dir, name))
        })
    }

    /// Returns the number of directories, this one included.
    pub(super) fn dir_count(&self) -> u64 {
        1 + self.dirs.iter().map(|(_, tree)| tree.dir_count()).sum::<u64>()
    }

    /// Calls `each` for every file, with the file's directory in two copies of the tree.
    pub(super) fn each_pair(
        &self,
        worker: &WorkloadThread<'_>,
        (source, target): (&BenchHandle, &BenchHandle),
        each: &mut dyn FnMut(&BenchHandle, &BenchHandle, &str) -> io::Result<()>,
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

/// Returns a random file size, distributed as in source trees.
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

pub(super) fn within<T>(
    access: &dyn TargetAccess,
    at: &BenchHandle,
    name: &str,
    work: impl FnOnce(&BenchHandle) -> io::Result<T>,
) -> io::Result<T> {
    let dir = access.open_dir(at, name)?;
    let done = work(&dir);
    access.close(dir);
    done
}

/// Creates a file with contents and times.
pub(super) fn write_file(
    access: &dyn TargetAccess,
    dir: &BenchHandle,
    name: &str,
    data: &[u8],
) -> io::Result<()> {
    let file = access.create(dir, name, false)?;
    let written = access.write(&file, 0, data);
    let done = written.and_then(|()| access.set_times(&file, FILE_SECONDS));
    access.close(file);
    done
}

pub(super) fn read_file(
    access: &dyn TargetAccess,
    dir: &BenchHandle,
    name: &str,
    data: &mut TransferBuffer,
) -> io::Result<usize> {
    let file = access.open(dir, name, OpenMode::Read)?;
    let read = access.read(&file, 0, data);
    access.close(file);
    read
}

/// Lists `name` recursively and calls `each` with every file.
fn walk(
    worker: &WorkloadThread<'_>,
    at: &BenchHandle,
    name: &str,
    each: &mut dyn FnMut(&BenchHandle, &str) -> io::Result<()>,
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

pub(super) fn stat_all(
    worker: &WorkloadThread<'_>,
    at: &BenchHandle,
    name: &str,
) -> io::Result<()> {
    let access = worker.access;
    walk(worker, at, name, &mut |dir, name| access.stat(dir, name).map(|_| ()))
}

pub(super) fn read_all(
    worker: &WorkloadThread<'_>,
    at: &BenchHandle,
    name: &str,
) -> io::Result<()> {
    let access = worker.access;
    let mut data = TransferBuffer::new(FILE_BYTES_MAX);
    walk(worker, at, name, &mut |dir, name| read_file(access, dir, name, &mut data).map(|_| ()))
}

/// Removes a tree, even after a stop, so that cleanup has less to do.
pub(super) fn remove(worker: &WorkloadThread<'_>, at: &BenchHandle, name: &str) -> io::Result<()> {
    super::remove_all(worker.access, at, name, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tree: &GeneratedDirectory) -> (usize, usize) {
        let below: Vec<_> = tree.dirs.iter().map(|(_, tree)| count(tree)).collect();
        let files = tree.files.len() + below.iter().map(|(files, _)| files).sum::<usize>();
        let bytes = tree.files.iter().map(|(_, bytes)| bytes).sum::<usize>();
        (files, bytes + below.iter().map(|(_, bytes)| bytes).sum::<usize>())
    }

    fn depth(tree: &GeneratedDirectory) -> usize {
        1 + tree.dirs.iter().map(|(_, tree)| depth(tree)).max().unwrap_or(0)
    }

    #[test]
    fn a_tree_has_its_files_and_no_more_bytes_than_planned() {
        for files in [1, 19, 20, 21, 1000, 50_000] {
            let tree = GeneratedDirectory::new(files, 1);
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
