//! Small files that are written, with and without a sync of each.

use std::io;

use super::{Group, Lap, Measure, Unit, file_names};
use crate::access::Buffer;
use crate::number::to_f64;
use crate::plan::SMALL_BYTES;

/// A file of 4 KiB may take a larger block, and its inode.
const FILE_BYTES: u64 = 16 << 10;

pub(super) static SMALL: Group = Group {
    name: "small",
    measures: &[Measure {
        name: "create-4k",
        what: "create, write 4 KiB, close",
        unit: Unit::Files,
    }],
    is_threaded: true,
    bytes: |plan| plan.small_files * FILE_BYTES,
    run: |lap| run(lap, "create-4k", lap.plan.small_files, false),
};

pub(super) static DURABLE: Group = Group {
    name: "durable",
    measures: &[Measure {
        name: "create-4k-fsync",
        what: "create, write 4 KiB, fsync, close",
        unit: Unit::Files,
    }],
    is_threaded: true,
    bytes: |plan| plan.durable_files * FILE_BYTES,
    run: |lap| run(lap, "create-4k-fsync", lap.plan.durable_files, true),
};

fn run(lap: &mut Lap<'_>, measure: &str, files: u64, is_synced: bool) -> io::Result<()> {
    let count = lap.part_of(files);
    let names = file_names("file-", count);
    let dirs = lap.thread_dirs()?;
    lap.time(measure, to_f64(count), |worker| {
        let (access, dir) = (worker.access, &dirs[worker.index]);
        let data = Buffer::new(SMALL_BYTES);
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
