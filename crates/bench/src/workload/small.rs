//! Creation of small files, without sync, with sync, and sustained.

use std::io;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, file_names};
use crate::access::TransferBuffer;
use crate::number::to_f64;
use crate::plan::SMALL_BYTES;

/// Space per file of 4 KiB: possibly a larger block, and the inode.
const FILE_BYTES: u64 = 16 << 10;

pub(super) static SMALL: WorkloadGroup = WorkloadGroup {
    name: "small",
    measures: &[Measure {
        name: "create-4k",
        what: "create, write 4 KiB, close",
        unit: MeasureUnit::Files,
    }],
    is_threaded: true,
    bytes: |plan| plan.small_files * FILE_BYTES,
    run: |lap| run(lap, "create-4k", lap.plan.small_files, false),
};

pub(super) static DURABLE: WorkloadGroup = WorkloadGroup {
    name: "durable",
    measures: &[Measure {
        name: "create-4k-fsync",
        what: "create, write 4 KiB, fsync, close",
        unit: MeasureUnit::Files,
    }],
    is_threaded: true,
    bytes: |plan| plan.durable_files * FILE_BYTES,
    run: |lap| run(lap, "create-4k-fsync", lap.plan.durable_files, true),
};

/// Files per directory of the sustained run.
const SUSTAINED_DIR_FILES: u64 = 1000;
/// File size of the sustained run: one block and a part of the next.
const SUSTAINED_FILE_BYTES: usize = 6 << 10;

pub(super) static SUSTAINED: WorkloadGroup = WorkloadGroup {
    name: "sustained",
    measures: &[
        Measure {
            name: "sustained-create",
            what: "create, write 6 KiB, close, for long, 1,000 files a directory",
            unit: MeasureUnit::Files,
        },
        Measure {
            name: "sustained-remove",
            what: "remove those files and directories, as rm -rf does",
            unit: MeasureUnit::Files,
        },
    ],
    is_threaded: false,
    bytes: |plan| plan.sustained_files * FILE_BYTES,
    run: run_sustained,
};

fn run_sustained(lap: &mut Lap<'_>) -> io::Result<()> {
    let files = lap.plan.sustained_files;
    let names = file_names("file-", SUSTAINED_DIR_FILES);
    let dirs = file_names("dir-", files.div_ceil(SUSTAINED_DIR_FILES));
    let top = lap.access.open_dir(&lap.dir, ".")?;
    lap.time_on(1, "sustained-create", to_f64(files), |worker| {
        let data = TransferBuffer::new(SUSTAINED_FILE_BYTES);
        let mut left = files;
        for name in &dirs {
            worker.access.make_dir(&top, name)?;
            let dir = worker.access.open_dir(&top, name)?;
            let here = left.min(SUSTAINED_DIR_FILES);
            left -= here;
            let mut names = names.iter();
            let access = worker.access;
            let made = worker.each(here, |_, _| {
                let Some(name) = names.next() else { return Ok(()) };
                let file = access.create(&dir, name, false)?;
                let written = access.write(&file, 0, data.bytes());
                access.close(file);
                written
            });
            worker.access.close(dir);
            made?;
        }
        Ok(())
    })?;
    if lap.wants(&["sustained-remove"]) {
        lap.time_on(1, "sustained-remove", to_f64(files), |worker| {
            dirs.iter().try_for_each(|name| super::remove_all(worker.access, &top, name, 0))
        })?;
    }
    lap.access.close(top);
    Ok(())
}

fn run(lap: &mut Lap<'_>, measure: &str, files: u64, is_synced: bool) -> io::Result<()> {
    let count = lap.part_of(files);
    let names = file_names("file-", count);
    let dirs = lap.thread_dirs()?;
    lap.time(measure, to_f64(count), |worker| {
        let (access, dir) = (worker.access, &dirs[worker.index]);
        let data = TransferBuffer::new(SMALL_BYTES);
        let mut names = names.iter();
        worker.each(count, |_, _| {
            let Some(name) = names.next() else { return Ok(()) };
            let file = access.create(dir, name, false)?;
            let written = access.write(&file, 0, data.bytes());
            let synced = written.and_then(|()| match is_synced {
                true => access.sync_file(&file),
                false => Ok(()),
            });
            access.close(file);
            synced
        })
    })?;
    lap.close_all(dirs);
    Ok(())
}
