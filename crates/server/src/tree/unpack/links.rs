//! Hard links of an archive. Their targets must have been copied.
//!
//! # Invariants
//!
//! - UL1: A hard link is made only if the last entry of its target was copied, or if the archive
//!   has no entry of the target. Otherwise the target's name leads to an older file, by which the
//!   link would replace an existing file. A link that is not made counts as failed or left out, as
//!   its target does, for further links to it.

use std::collections::BTreeMap;

use engine::api::FileKind;

use super::{UnpackReader, is_clear};
use crate::tree::archive::ArchiveEntry;
use crate::tree::copy::CopyPurpose;
use crate::tree::totals::count;
use crate::tree::{FileTree, TreeError, TreeResult, names_of, placing};

/// Most bytes of paths held for entries that were not copied. Smaller in tests.
const PATHS_BYTES_MAX: usize = if cfg!(test) { 64 << 10 } else { 16 << 20 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingEntryReason {
    Failed,
    LeftOut,
    /// Unknown, because too many entries were not copied to hold all of their paths.
    Unknown,
}

#[derive(Default)]
pub(super) struct MissingEntries {
    paths: BTreeMap<Vec<u8>, MissingEntryReason>,
    held_bytes: usize,
    is_incomplete: bool,
}

impl MissingEntries {
    pub(super) fn begins(&mut self, path: &[u8]) {
        if self.paths.remove(path).is_some() {
            self.held_bytes -= held_bytes(path);
        }
    }

    pub(super) fn add(&mut self, path: &[u8], absence: MissingEntryReason) {
        self.begins(path);
        if self.held_bytes + held_bytes(path) > PATHS_BYTES_MAX {
            self.is_incomplete = true;
            return;
        }
        self.held_bytes += held_bytes(path);
        self.paths.insert(path.to_vec(), absence);
    }

    fn find(&self, path: &[u8]) -> Option<MissingEntryReason> {
        let found = self.paths.get(path).copied();
        found.or(self.is_incomplete.then_some(MissingEntryReason::Unknown))
    }
}

fn held_bytes(path: &[u8]) -> usize {
    size_of::<(Vec<u8>, MissingEntryReason)>() + path.len()
}

fn wrong(cause: &str) -> TreeError {
    TreeError::of_file(format!("what it is a link to: {cause}"))
}

impl<T: FileTree> UnpackReader<'_, '_, T> {
    pub(super) fn link(
        &self,
        directory: &T::Node,
        name: &[u8],
        entry: &ArchiveEntry,
    ) -> TreeResult<()> {
        let (job, target) = (self.job, self.job.target);
        let names = names_of(&entry.target).map_err(|cause| wrong(&cause))?;
        let path = names.join(&b'/');
        drop(job.wait(|queue| is_clear(queue, &path)));
        let absence = job.absent().find(&path);
        match absence {
            None => {}
            Some(MissingEntryReason::LeftOut) => {
                job.leave_out(&entry.path, "what it is a link to is left out");
                return Ok(());
            }
            Some(MissingEntryReason::Failed) => return Err(wrong("it was not copied")),
            Some(MissingEntryReason::Unknown) => {
                return Err(wrong("it may be one of the many files that were not copied"));
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
        if crate::tree::leaves_out(job.rules, old.kind) {
            return Ok(());
        }
        let there = target.find(directory, name)?;
        let is_it = there.as_ref().is_some_and(|there| there.id == old.id);
        match (job.purpose, is_it) {
            (CopyPurpose::Verify, true) => count(&job.totals.verified),
            (CopyPurpose::Verify, false) => {
                return Err(TreeError::of_file("it is no name of the same file there"));
            }
            (CopyPurpose::Copy, true) => count(&job.totals.skipped),
            (CopyPurpose::Copy, false) => {
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
        let mut absent = MissingEntries::default();
        absent.add(b"a", MissingEntryReason::Failed);
        absent.add(b"b", MissingEntryReason::LeftOut);
        absent.begins(b"a");
        assert_eq!(
            (absent.find(b"a"), absent.find(b"b")),
            (None, Some(MissingEntryReason::LeftOut))
        );
        let many = PATHS_BYTES_MAX / held_bytes(&[0; 200]) + 2;
        for number in 0..many {
            absent.add(format!("{number:0>200}").as_bytes(), MissingEntryReason::Failed);
        }
        assert!(absent.held_bytes <= PATHS_BYTES_MAX);
        assert_eq!(absent.find(b"b"), Some(MissingEntryReason::LeftOut));
        assert_eq!(absent.find(b"c"), Some(MissingEntryReason::Unknown));
    }
}
