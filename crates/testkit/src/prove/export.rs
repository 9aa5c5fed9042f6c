//! A workload as a base image and a log, in the form of the kernel's dm-log-writes, so that a
//! replayer that is not ours can make the images.
//!
//! # Layout
//!
//! ```text
//!   sector 0     magic 8, version 8, entries 8, bytes of a sector 4      (little-endian)
//!   each entry   one sector: first sector 8, sectors 8, flags 8, bytes of a mark 8, the mark;
//!                then what was written, in whole sectors
//! ```
//!
//! As in the kernel's log a write stands before the first flush that makes it durable, and what
//! no flush covers stands at the end. A mark stands at each checkpoint of the workload.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use storage::device::sim::{Image, RecordedEvent, RecordedWrite};

use super::run::{Run, new_pool, run};
use super::{Options, Set, chosen};
use crate::number::u64_of;

/// `WRITE_LOG_MAGIC` of the kernel.
pub(super) const MAGIC: u64 = 0x006a_7366_7773_6872;
/// `WRITE_LOG_VERSION` of the kernel.
pub(super) const VERSION: u64 = 1;
/// Bytes of a sector of the log.
pub(super) const SECTOR_BYTES: usize = 512;
/// `LOG_FLUSH_FLAG` of the kernel.
pub(super) const FLAG_FLUSH: u64 = 1;
/// `LOG_MARK_FLAG` of the kernel.
pub(super) const FLAG_MARK: u64 = 8;

/// Writes each chosen workload into `directory`: `workload-N.base`, `.log` and its text, `.txt`.
///
/// # Errors
///
/// What the file system below said, or why a workload did not run.
pub fn export(options: &Options, directory: &Path) -> Result<u64, String> {
    let set = Set::new(options.bound, options.alphabet);
    let base = new_pool();
    std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
    let mut count = 0;
    for index in chosen(&set, options) {
        let workload = set.get(index);
        let done = run(&base, &workload)?;
        let path = |ending: &str| directory.join(format!("workload-{index}.{ending}"));
        let written = write_base(&base, &path("base"))
            .and_then(|()| std::fs::write(path("log"), log_of(&done)))
            .and_then(|()| std::fs::write(path("txt"), workload.to_string()));
        written.map_err(|error| error.to_string())?;
        count += 1;
    }
    Ok(count)
}

fn write_base(base: &Image, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut result = Ok(());
    base.for_each_page(|offset, bytes| {
        if result.is_ok() {
            let sought = file.seek(SeekFrom::Start(offset));
            result = sought.and_then(|_| file.write_all(bytes));
        }
    });
    result?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.set_len(base.size_bytes())
}

/// The log while it is made.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    entry_count: u64,
}

impl Log {
    fn entry(&mut self, sector: u64, sector_count: u64, flags: u64, mark: &[u8]) {
        let start = self.bytes.len();
        for field in [sector, sector_count, flags, u64_of(mark.len())] {
            self.bytes.extend(field.to_le_bytes());
        }
        self.bytes.extend(mark);
        self.bytes.resize(start + SECTOR_BYTES, 0);
        self.entry_count += 1;
    }

    fn write(&mut self, write: &RecordedWrite) {
        let sector_bytes = u64_of(SECTOR_BYTES);
        let sector_count = write.length_bytes() / sector_bytes;
        self.entry(write.offset / sector_bytes, sector_count, 0, &[]);
        for piece in write.pieces() {
            self.bytes.extend_from_slice(piece);
        }
    }

    fn finished(self) -> Vec<u8> {
        let mut all = Vec::with_capacity(SECTOR_BYTES + self.bytes.len());
        for field in [MAGIC, VERSION, self.entry_count] {
            all.extend(field.to_le_bytes());
        }
        all.extend(u32::try_from(SECTOR_BYTES).expect("512").to_le_bytes());
        all.resize(SECTOR_BYTES, 0);
        all.extend(self.bytes);
        all
    }
}

/// Returns the log of what was done.
pub(super) fn log_of(done: &Run) -> Vec<u8> {
    let recording = done.device.recording();
    let mut log = Log::default();
    let mut pending: BTreeMap<u64, Arc<RecordedWrite>> = BTreeMap::new();
    let mut writes_begun = 0;
    let mut marks = done.checkpoints.iter().peekable();
    for (position, event) in recording.events().iter().enumerate() {
        while let Some((_, number)) = marks.next_if(|(at, _)| *at <= position) {
            log.entry(0, 0, FLAG_MARK, format!("checkpoint {number}").as_bytes());
        }
        match event {
            RecordedEvent::Submitted(write) => {
                pending.insert(writes_begun, Arc::clone(write));
                writes_begun += 1;
            }
            RecordedEvent::Flushed(covered) => {
                let covered: BTreeSet<u64> = covered.iter().copied().collect();
                for id in covered {
                    if let Some(write) = pending.remove(&id) {
                        log.write(&write);
                    }
                }
                log.entry(0, 0, FLAG_FLUSH, &[]);
            }
            RecordedEvent::Answered(_) | RecordedEvent::Rotted { .. } => {}
        }
    }
    for (_, number) in marks {
        log.entry(0, 0, FLAG_MARK, format!("checkpoint {number}").as_bytes());
    }
    for write in pending.values() {
        log.write(write);
    }
    log.finished()
}
