//! Hard links of an archive, and the entries that they must not be made to.
//!
//! # Invariants
//!
//! - UL1: A hard link is made only if the last entry of its target came in, or the archive has no
//!   entry of it. Otherwise the name of the target leads to an older file, and a link would put
//!   that in the place of what has the name of the link. Such a link counts as the entry did: as
//!   failed or as left out, also for links to it.

use std::collections::BTreeMap;

use engine::vnode::api::FileKind;

use super::{Reading, is_clear};
use crate::tree::archive::Entry;
use crate::tree::copy::Purpose;
use crate::tree::totals::count;
use crate::tree::{Tree, TreeError, TreeResult, names_of, placing};

/// Bytes of paths that are held; tests have fewer.
const PATHS_BYTES_MAX: usize = if cfg!(test) { 64 << 10 } else { 16 << 20 };

/// Why an entry did not come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    Failed,
    LeftOut,
    /// More entries failed than are held: it may be one of them.
    Unknown,
}

/// Paths whose last entry did not come in.
#[derive(Default)]
pub(super) struct Absent {
    paths: BTreeMap<Vec<u8>, Absence>,
    held_bytes: usize,
    is_incomplete: bool,
}

impl Absent {
    /// An entry of this path comes.
    pub(super) fn begins(&mut self, path: &[u8]) {
        if self.paths.remove(path).is_some() {
            self.held_bytes -= held_bytes(path);
        }
    }

    /// An entry did not come in.
    pub(super) fn add(&mut self, path: &[u8], absence: Absence) {
        self.begins(path);
        if self.held_bytes + held_bytes(path) > PATHS_BYTES_MAX {
            self.is_incomplete = true;
            return;
        }
        self.held_bytes += held_bytes(path);
        self.paths.insert(path.to_vec(), absence);
    }

    fn find(&self, path: &[u8]) -> Option<Absence> {
        let found = self.paths.get(path).copied();
        found.or(self.is_incomplete.then_some(Absence::Unknown))
    }
}

fn held_bytes(path: &[u8]) -> usize {
    size_of::<(Vec<u8>, Absence)>() + path.len()
}

fn wrong(cause: &str) -> TreeError {
    TreeError::of_file(format!("what it is a link to: {cause}"))
}

impl<T: Tree> Reading<'_, '_, T> {
    pub(super) fn link(&self, directory: &T::Node, name: &[u8], entry: &Entry) -> TreeResult<()> {
        let (job, target) = (self.job, self.job.target);
        let names = names_of(&entry.target).map_err(|cause| wrong(&cause))?;
        let path = names.join(&b'/');
        drop(job.wait(|queue| is_clear(queue, &path)));
        let absence = job.absent().find(&path);
        match absence {
            None => {}
            Some(Absence::LeftOut) => {
                job.leave_out(&entry.path, "what it is a link to is left out");
                return Ok(());
            }
            Some(Absence::Failed) => return Err(wrong("it was not imported")),
            Some(Absence::Unknown) => {
                return Err(wrong("it may be one of the many files that were not imported"));
            }
        }
        let Some((last, above)) = names.split_last() else {
            return Err(wrong("it has no name"));
        };
        let mut at = target.root();
        for name in above {
            let there = target.find(&at, name)?.filter(|it| it.kind == FileKind::Directory);
            let there = there.ok_or_else(|| wrong("it is not there"))?;
            at = target.open(&at, name, &there)?;
        }
        let old = target.find(&at, last)?.ok_or_else(|| wrong("it is not there"))?;
        if old.kind == FileKind::Directory {
            return Err(wrong("it is a directory"));
        }
        if job.rules.leaves_out(old.kind) {
            return Ok(());
        }
        let there = target.find(directory, name)?;
        let is_it = there.as_ref().is_some_and(|there| there.id == old.id);
        match (job.purpose, is_it) {
            (Purpose::Verify, true) => count(&job.totals.verified),
            (Purpose::Verify, false) => {
                return Err(TreeError::of_file("it is no name of the same file there"));
            }
            (Purpose::Copy, true) => count(&job.totals.skipped),
            (Purpose::Copy, false) => {
                let node = target.open(&at, last, &old)?;
                placing::link(target, &node, (directory, name), there.as_ref(), job.totals)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_bound_any_target_may_be_absent() {
        let mut absent = Absent::default();
        absent.add(b"a", Absence::Failed);
        absent.add(b"b", Absence::LeftOut);
        absent.begins(b"a");
        assert_eq!((absent.find(b"a"), absent.find(b"b")), (None, Some(Absence::LeftOut)));
        let many = PATHS_BYTES_MAX / held_bytes(&[0; 200]) + 2;
        for number in 0..many {
            absent.add(format!("{number:0>200}").as_bytes(), Absence::Failed);
        }
        assert!(absent.held_bytes <= PATHS_BYTES_MAX);
        assert_eq!(absent.find(b"b"), Some(Absence::LeftOut));
        assert_eq!(absent.find(b"c"), Some(Absence::Unknown));
    }
}
