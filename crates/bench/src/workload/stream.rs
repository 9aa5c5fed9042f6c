//! Streams: one file from end to end in requests of 1 MiB, by one client.
//!
//! What was written counts when it is on the device: the sync is in the time. What is read was
//! dropped from the cache first.

use std::io;

use super::{Group, Lap, Measure, Unit, Worker};
use crate::access::{Buffer, Handle, OpenFor};
use crate::number::{to_f64, to_u64};
use crate::plan::STREAM_REQUEST_BYTES;

const fn measure(name: &'static str, what: &'static str) -> Measure {
    Measure { name, what, unit: Unit::Mebibytes }
}

pub(super) static STREAM: Group = Group {
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
        both_ways(lap, ["stream-write", "stream-read"], OpenFor::Read)?;
    }
    if lap.wants(&["stream-write-direct", "stream-read-direct"]) {
        both_ways(lap, ["stream-write-direct", "stream-read-direct"], OpenFor::ReadDirect)?;
    }
    Ok(())
}

fn both_ways(lap: &mut Lap<'_>, measures: [&str; 2], read_for: OpenFor) -> io::Result<()> {
    let is_direct = read_for == OpenFor::ReadDirect;
    let (name, access) = ("stream", lap.access);
    let bytes = lap.plan.stream_bytes;
    let mebibytes = to_f64(bytes >> 20);
    let file = match access.create(&lap.dir, name, is_direct) {
        // A file system without O_DIRECT is not measured with it.
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
pub(super) fn fill(worker: &mut Worker<'_>, file: &Handle, bytes: u64) -> io::Result<()> {
    let access = worker.access;
    let data = Buffer::new(STREAM_REQUEST_BYTES);
    let request = to_u64(STREAM_REQUEST_BYTES);
    worker.each(bytes / request, |number, _| access.write(file, number * request, data.bytes()))?;
    access.sync_file(file)
}

fn drain(worker: &mut Worker<'_>, file: &Handle, bytes: u64) -> io::Result<()> {
    let access = worker.access;
    let mut data = Buffer::new(STREAM_REQUEST_BYTES);
    let request = to_u64(STREAM_REQUEST_BYTES);
    worker.each(bytes / request, |number, _| {
        let count = access.read(file, number * request, &mut data)?;
        if count == STREAM_REQUEST_BYTES {
            return Ok(());
        }
        Err(io::Error::other(format!("a read of 1 MiB gave {count} bytes")))
    })
}
