//! A mix of operations in the shares of NHFSSTONE's standard NFS mix, without syncs.
//!
//! "The Episode File System" (Chutani and others, 1992) ran NHFSTONE on a local file system with
//! "13 % fstat, 22 % read, 15 % write, etc.". The other shares are the program's well-known
//! defaults.

use std::io;

use runtime::prng::Prng;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, file_names, tree};
use crate::access::{BenchHandle, OpenMode, TransferBuffer};
use crate::number::{to_f64, to_u64, to_usize};
use crate::plan::SMALL_BYTES;

/// Files per client.
const FILES: u64 = 200;
const FILE_BYTES: usize = 32 << 10;
const LINKS: u64 = 20;

/// Operations and shares in percent.
const MIX: [(MixedOperation, u64); 10] = [
    (MixedOperation::Lookup, 34),
    (MixedOperation::Read, 22),
    (MixedOperation::Write, 15),
    (MixedOperation::Attributes, 13),
    (MixedOperation::ReadLink, 8),
    (MixedOperation::List, 3),
    (MixedOperation::Create, 2),
    (MixedOperation::Remove, 1),
    (MixedOperation::SetMode, 1),
    (MixedOperation::StatFs, 1),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MixedOperation {
    Lookup,
    Read,
    Write,
    Attributes,
    ReadLink,
    List,
    Create,
    Remove,
    SetMode,
    StatFs,
}

pub(super) static MIXED: WorkloadGroup = WorkloadGroup {
    name: "mixed",
    measures: &[Measure {
        name: "mixed",
        what: "NHFSSTONE's mix: lookup 34, read 22, write 15, fstat 13, readlink 8, ... %",
        unit: MeasureUnit::Operations,
    }],
    is_threaded: true,
    bytes: |plan| plan.mixed_operations * 1024 + (64 << 20),
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = lap.part_of(lap.plan.mixed_operations);
    let dirs = lap.thread_dirs()?;
    let (files, links) = (file_names("file-", FILES), file_names("link-", LINKS));
    let data = TransferBuffer::new(FILE_BYTES);
    for dir in &dirs {
        for name in &files {
            tree::write_file(lap.access, dir, name, data.bytes())?;
        }
        for name in &links {
            lap.access.symlink(dir, name, "file-0000000")?;
        }
    }
    let set = MixedFileSet { files: &files, links: &links };
    lap.time("mixed", to_f64(count), |worker| {
        let mut client =
            MixedClient { made: 0, removed: 0, data: TransferBuffer::new(SMALL_BYTES) };
        let dir = &dirs[worker.index];
        // fstat uses an open handle, as in NFS.
        let open = worker.access.open(dir, &set.files[0], OpenMode::Read)?;
        let access = worker.access;
        let done = worker.each(count, |_, prng| client.step(access, (dir, &open), &set, prng));
        access.close(open);
        done
    })?;
    lap.close_all(dirs);
    Ok(())
}

struct MixedFileSet<'a> {
    files: &'a [String],
    links: &'a [String],
}

impl MixedFileSet<'_> {
    fn file(&self, prng: &mut Prng) -> &str {
        pick(self.files, prng)
    }
}

fn pick<'a>(names: &'a [String], prng: &mut Prng) -> &'a str {
    names.get(to_usize(prng.below(to_u64(names.len())))).map_or("", String::as_str)
}

struct MixedClient {
    made: u64,
    removed: u64,
    data: TransferBuffer,
}

impl MixedClient {
    fn step(
        &mut self,
        access: &dyn crate::access::TargetAccess,
        (dir, open): (&BenchHandle, &BenchHandle),
        set: &MixedFileSet<'_>,
        prng: &mut Prng,
    ) -> io::Result<()> {
        match operation(prng.below(100)) {
            MixedOperation::Lookup => access.stat(dir, set.file(prng)).map(|_| ()),
            MixedOperation::Attributes => access.stat_file(open).map(|_| ()),
            MixedOperation::Read => {
                let file = access.open(dir, set.file(prng), OpenMode::Read)?;
                let read = access.read(&file, offset(prng), &mut self.data);
                access.close(file);
                read.map(|_| ())
            }
            MixedOperation::Write => {
                let file = access.open(dir, set.file(prng), OpenMode::Write)?;
                let written = access.write(&file, offset(prng), self.data.bytes());
                access.close(file);
                written
            }
            MixedOperation::ReadLink => access.read_link(dir, pick(set.links, prng)).map(|_| ()),
            MixedOperation::List => access.list(dir, &mut |_, _| {}),
            MixedOperation::Create => {
                self.made += 1;
                let name = format!("new-{}", self.made);
                access.create(dir, &name, false).map(|file| access.close(file))
            }
            MixedOperation::Remove if self.removed < self.made => {
                self.removed += 1;
                access.unlink(dir, &format!("new-{}", self.removed))
            }
            // Nothing to remove: issues another call.
            MixedOperation::Remove => access.stat(dir, set.file(prng)).map(|_| ()),
            MixedOperation::SetMode => access.set_mode(dir, set.file(prng), 0o640),
            MixedOperation::StatFs => access.free_bytes().map(|_| ()),
        }
    }
}

fn offset(prng: &mut Prng) -> u64 {
    prng.below(to_u64(FILE_BYTES / SMALL_BYTES)) * to_u64(SMALL_BYTES)
}

/// Returns the operation of percentile `at`.
fn operation(at: u64) -> MixedOperation {
    let mut end = 0;
    for (operation, share) in MIX {
        end += share;
        if at < end {
            return operation;
        }
    }
    MixedOperation::StatFs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_those_of_the_mix() {
        assert_eq!(MIX.iter().map(|(_, share)| share).sum::<u64>(), 100);
        for (wanted, share) in MIX {
            let found = (0..100).filter(|&at| operation(at) == wanted).count();
            assert_eq!(to_u64(found), share, "{wanted:?}");
        }
    }
}
