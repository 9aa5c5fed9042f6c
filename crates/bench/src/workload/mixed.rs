//! A mix of operations, in the shares of NHFSSTONE's standard mix for NFS.
//!
//! "The Episode File System" (Chutani and others, 1992) ran NHFSTONE on a local file system, "13 %
//! fstat, 22 % read, 15 % write, etc."; the rest of the mix is the one that the program became
//! known for. Nothing is synced.

use std::io;

use runtime::prng::Prng;

use super::{Group, Lap, Measure, Unit, file_names, tree};
use crate::access::{Buffer, Handle, OpenFor};
use crate::number::{to_f64, to_u64, to_usize};
use crate::plan::SMALL_BYTES;

/// Files of a client.
const FILES: u64 = 200;
/// Bytes of a file.
const FILE_BYTES: usize = 32 << 10;
/// Links of a client.
const LINKS: u64 = 20;

/// What is done, and its share in percent.
const MIX: [(Operation, u64); 10] = [
    (Operation::Lookup, 34),
    (Operation::Read, 22),
    (Operation::Write, 15),
    (Operation::Attributes, 13),
    (Operation::ReadLink, 8),
    (Operation::List, 3),
    (Operation::Create, 2),
    (Operation::Remove, 1),
    (Operation::SetMode, 1),
    (Operation::StatFs, 1),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
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

pub(super) static MIXED: Group = Group {
    name: "mixed",
    measures: &[Measure {
        name: "mixed",
        what: "NHFSSTONE's mix: lookup 34, read 22, write 15, fstat 13, readlink 8, ... %",
        unit: Unit::Operations,
    }],
    is_threaded: true,
    bytes: |plan| plan.mixed_operations * 1024 + (64 << 20),
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    let count = lap.part_of(lap.plan.mixed_operations);
    let dirs = lap.thread_dirs()?;
    let (files, links) = (file_names("file-", FILES), file_names("link-", LINKS));
    let data = Buffer::new(FILE_BYTES);
    for dir in &dirs {
        for name in &files {
            tree::write_file(lap.access, dir, name, data.bytes())?;
        }
        for name in &links {
            lap.access.symlink(dir, name, "file-0000000")?;
        }
    }
    let set = Set { files: &files, links: &links };
    lap.time("mixed", to_f64(count), |worker| {
        let mut client = Client { made: 0, removed: 0, data: Buffer::new(SMALL_BYTES) };
        let dir = &dirs[worker.index];
        // A handle for what is done to an open file, as NFS has it.
        let open = worker.access.open(dir, &set.files[0], OpenFor::Read)?;
        let access = worker.access;
        let done = worker.each(count, |_, prng| client.step(access, (dir, &open), &set, prng));
        access.close(open);
        done
    })?;
    lap.close_all(dirs);
    Ok(())
}

struct Set<'a> {
    files: &'a [String],
    links: &'a [String],
}

impl Set<'_> {
    fn file(&self, prng: &mut Prng) -> &str {
        pick(self.files, prng)
    }
}

fn pick<'a>(names: &'a [String], prng: &mut Prng) -> &'a str {
    names.get(to_usize(prng.below(to_u64(names.len())))).map_or("", String::as_str)
}

struct Client {
    made: u64,
    removed: u64,
    data: Buffer,
}

impl Client {
    fn step(
        &mut self,
        access: &dyn crate::access::Access,
        (dir, open): (&Handle, &Handle),
        set: &Set<'_>,
        prng: &mut Prng,
    ) -> io::Result<()> {
        match operation(prng.below(100)) {
            Operation::Lookup => access.stat(dir, set.file(prng)).map(|_| ()),
            Operation::Attributes => access.stat_file(open).map(|_| ()),
            Operation::Read => {
                let file = access.open(dir, set.file(prng), OpenFor::Read)?;
                let read = access.read(&file, offset(prng), &mut self.data);
                access.close(file);
                read.map(|_| ())
            }
            Operation::Write => {
                let file = access.open(dir, set.file(prng), OpenFor::Write)?;
                let written = access.write(&file, offset(prng), self.data.bytes());
                access.close(file);
                written
            }
            Operation::ReadLink => access.read_link(dir, pick(set.links, prng)).map(|_| ()),
            Operation::List => access.list(dir, &mut |_, _| {}),
            Operation::Create => {
                self.made += 1;
                let name = format!("new-{}", self.made);
                access.create(dir, &name, false).map(|file| access.close(file))
            }
            Operation::Remove if self.removed < self.made => {
                self.removed += 1;
                access.unlink(dir, &format!("new-{}", self.removed))
            }
            // Nothing to remove: the file system is asked all the same.
            Operation::Remove => access.stat(dir, set.file(prng)).map(|_| ()),
            Operation::SetMode => access.set_mode(dir, set.file(prng), 0o640),
            Operation::StatFs => access.free_bytes().map(|_| ()),
        }
    }
}

fn offset(prng: &mut Prng) -> u64 {
    prng.below(to_u64(FILE_BYTES / SMALL_BYTES)) * to_u64(SMALL_BYTES)
}

/// Returns the operation that percent `at` falls to.
fn operation(at: u64) -> Operation {
    let mut end = 0;
    for (operation, share) in MIX {
        end += share;
        if at < end {
            return operation;
        }
    }
    Operation::StatFs
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
