//! Streams: one file in sequential requests of 1 MiB, by one client.
//!
//! Write times include the sync. Reads begin with a cold cache.

use std::io;

use super::{Lap, Measure, MeasureUnit, WorkloadGroup, WorkloadThread};
use crate::access::{BenchHandle, OpenMode, TransferBuffer};
use crate::number::{to_f64, to_u64};
use crate::plan::STREAM_REQUEST_BYTES;

const fn measure(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, unit: MeasureUnit::Mebibytes }
}

pub(super) static STREAM: WorkloadGroup = WorkloadGroup {
    name: "stream",
    measures: &[
        measure("stream-write", "write a file in requests of 1 MiB, then fsync"),
        measure("stream-read", "read it, from the device, in requests of 1 MiB"),
        measure("stream-write-direct", "the same write with O_DIRECT, then fsync"),
        measure("stream-read-direct", "the same read with O_DIRECT"),
    ],
    is_threaded: false,
    bytes: |plan| plan.stream_bytes,
    run,
};

fn run(lap: &mut Lap<'_>) -> io::Result<()> {
    if lap.wants(&["stream-write", "stream-read"]) {
        both_ways(lap, ["stream-write", "stream-read"], OpenMode::Read)?;
    }
    if lap.wants(&["stream-write-direct", "stream-read-direct"]) {
        both_ways(lap, ["stream-write-direct", "stream-read-direct"], OpenMode::ReadDirect)?;
    }
    Ok(())
}

fn both_ways(lap: &mut Lap<'_>, measures: [&str; 2], read_for: OpenMode) -> io::Result<()> {
    let is_direct = read_for == OpenMode::ReadDirect;
    let (name, access) = ("stream", lap.access);
    let bytes = lap.plan.stream_bytes;
    let mebibytes = to_f64(bytes >> 20);
    let file = match access.create(&lap.dir, name, is_direct) {
        // Skip a file system without O_DIRECT.
        Err(error) if is_direct && error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
        file => file?,
    };
    let written = lap.time_on(1, measures[0], mebibytes, |worker| fill(worker, &file, bytes));
    let forgotten = written.and_then(|()| access.forget_content(&file));
    access.close(file);
    forgotten?;
    if lap.wants(&measures[1..]) {
        let file = access.open(&lap.dir, name, read_for)?;
        let read = lap.time_on(1, measures[1], mebibytes, |worker| drain(worker, &file, bytes));
        access.close(file);
        read?;
    }
    access.unlink(&lap.dir, name)
}

/// Writes `bytes` in long requests, and syncs.
pub(super) fn fill(
    worker: &mut WorkloadThread<'_>,
    file: &BenchHandle,
    bytes: u64,
) -> io::Result<()> {
    let access = worker.access;
    let data = TransferBuffer::new(STREAM_REQUEST_BYTES);
    let request = to_u64(STREAM_REQUEST_BYTES);
    worker.each(bytes / request, |number, _| access.write(file, number * request, data.bytes()))?;
    access.sync_file(file)
}

fn drain(worker: &mut WorkloadThread<'_>, file: &BenchHandle, bytes: u64) -> io::Result<()> {
    let access = worker.access;
    let mut data = TransferBuffer::new(STREAM_REQUEST_BYTES);
    let request = to_u64(STREAM_REQUEST_BYTES);
    worker.each(bytes / request, |number, _| {
        let count = access.read(file, number * request, &mut data)?;
        if count == STREAM_REQUEST_BYTES {
            return Ok(());
        }
        Err(io::Error::other(format!("a read of 1 MiB gave {count} bytes")))
    })
}
