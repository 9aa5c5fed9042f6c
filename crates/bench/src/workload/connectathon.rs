//! Nine tests like those of Connectathon's basic suite, each a phase.
//!
//! After the list in "The Episode File System" (Chutani and others, 1992): 1 creates a deep tree, 2
//! removes it; 3 stats a directory and its parent, as getwd does; 4 chmods and stats a group of
//! files; 5 writes and reads a file of 1 MB; 6 reads a directory; 7 renames and links a group of
//! files; 8 creates and reads symbolic links; 9 calls statfs. Each is repeated until the time is
//! measurable.

use std::io;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, file_names, stream, tree};
use crate::access::{OpenMode, TransferBuffer};
use crate::number::{to_f64, to_u64};
use crate::plan::STREAM_REQUEST_BYTES;
use tree::GeneratedDirectory;

const TREE: &str = "tree";
const LARGE: &str = "large";
const GROUP: &str = "group";
/// Directory size in test 6, as in the suite.
const LISTED: u64 = 200;
/// Maximum files in test 5.
const LARGE_FILES_MAX: u64 = 200;

const fn measure(name: &'static str, what: &'static str, unit: MeasureUnit) -> Measure {
    Measure { name, what, unit }
}

pub(super) static CONNECTATHON: WorkloadGroup = WorkloadGroup {
    name: "connectathon",
    measures: &[
        measure("cthon-1", "test 1: make a tree of directories and files", MeasureUnit::Files),
        measure("cthon-2", "test 2: remove it", MeasureUnit::Files),
        measure("cthon-3", "test 3: stat of one directory and its parent", MeasureUnit::Operations),
        measure("cthon-4", "test 4: chmod and stat of a group of files", MeasureUnit::Operations),
        measure("cthon-5", "test 5: write a file of 1 MiB, then read it", MeasureUnit::Mebibytes),
        measure("cthon-6", "test 6: list a directory of 200 names", MeasureUnit::Operations),
        measure("cthon-7", "test 7: rename and link a group of files", MeasureUnit::Operations),
        measure("cthon-8", "test 8: make symbolic links and read them", MeasureUnit::Operations),
        measure("cthon-9", "test 9: statfs", MeasureUnit::Operations),
    ],
    is_threaded: false,
    bytes: |plan| plan.connectathon_files * (16 << 10) + (LARGE_FILES_MAX << 20),
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    if lap.wants(&["cthon-1", "cthon-2"]) {
        trees(lap)?;
    }
    if lap.wants_from("cthon-3") {
        names(lap)?;
    }
    Ok(())
}

fn trees(lap: &mut Lap<'_>) -> io::Result<()> {
    let files = lap.plan.connectathon_files;
    let tree = GeneratedDirectory::new(files, 3);
    let dir = lap.access.open_dir(&lap.dir, ".")?;
    lap.time_on(1, "cthon-1", to_f64(files), |worker| tree.extract(worker, &dir, TREE))?;
    lap.time_on(1, "cthon-2", to_f64(files), |worker| tree::remove(worker, &dir, TREE))?;
    lap.access.close(dir);
    Ok(())
}

fn names(lap: &mut Lap<'_>) -> io::Result<()> {
    let (access, count) = (lap.access, lap.plan.connectathon_files);
    let names = file_names("file-", LISTED);
    let (renamed, links) = (file_names("name-", LISTED), file_names("link-", count));
    access.make_dir(&lap.dir, GROUP)?;
    let dir = access.open_dir(&lap.dir, GROUP)?;
    for name in &names {
        access.close(access.create(&dir, name, false)?);
    }
    lap.time_on(1, "cthon-3", to_f64(2 * count), |worker| {
        worker.each(count, |_, _| {
            access.stat(&dir, ".")?;
            access.stat(&dir, "..").map(|_| ())
        })
    })?;
    lap.time_on(1, "cthon-4", to_f64(2 * count), |worker| {
        let mut names = names.iter().cycle();
        worker.each(count, |number, _| {
            let Some(name) = names.next() else { return Ok(()) };
            access.set_mode(&dir, name, if number.is_multiple_of(2) { 0o600 } else { 0o644 })?;
            access.stat(&dir, name).map(|_| ())
        })
    })?;
    if lap.wants(&["cthon-5"]) {
        large(lap)?;
    }
    let lists = (count / 10).max(1);
    lap.time_on(1, "cthon-6", to_f64(lists), |worker| {
        worker.each(lists, |_, _| access.list(&dir, &mut |_, _| {}))
    })?;
    let passes = (count / LISTED).max(1);
    lap.time_on(1, "cthon-7", to_f64(3 * passes * LISTED), |worker| {
        worker.each(passes, |_, _| {
            names.iter().zip(&renamed).try_for_each(|(name, renamed)| {
                access.rename(&dir, name, renamed)?;
                access.link(&dir, renamed, name)?;
                access.unlink(&dir, renamed)
            })
        })
    })?;
    lap.time_on(1, "cthon-8", to_f64(2 * count), |worker| {
        let mut links = links.iter();
        worker.each(count, |_, _| {
            let Some(name) = links.next() else { return Ok(()) };
            access.symlink(&dir, name, "/this/is/a/symlink")?;
            access.read_link(&dir, name).map(|_| ())
        })
    })?;
    lap.time_on(1, "cthon-9", to_f64(count), |worker| {
        worker.each(count, |_, _| access.free_bytes().map(|_| ()))
    })?;
    access.close(dir);
    Ok(())
}

fn large(lap: &mut Lap<'_>) -> io::Result<()> {
    let (access, plan) = (lap.access, lap.plan);
    let files = (plan.connectathon_files / 25).clamp(1, LARGE_FILES_MAX);
    let dir = access.open_dir(&lap.dir, GROUP)?;
    let bytes = to_u64(STREAM_REQUEST_BYTES);
    lap.time_on(1, "cthon-5", to_f64(2 * files), |worker| {
        let mut data = TransferBuffer::new(STREAM_REQUEST_BYTES);
        for _ in 0..files {
            let file = access.create(&dir, LARGE, false)?;
            let filled = stream::fill(worker, &file, bytes);
            access.close(file);
            filled?;
            let file = access.open(&dir, LARGE, OpenMode::Read)?;
            let read = access.read(&file, 0, &mut data);
            access.close(file);
            read?;
            access.unlink(&dir, LARGE)?;
        }
        Ok(())
    })?;
    access.close(dir);
    Ok(())
}
