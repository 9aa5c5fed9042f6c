//! Checks that a device is blank before a pool is created on it, and names other systems' contents.
//!
//! The four possible places of a superblock and the first and last [`ENDS_BYTES`] are read
//! completely. Of the ranges between that may have data, up to [`READ_BYTES_MAX`] are read
//! completely. Larger amounts are read at [`SAMPLES`] evenly spaced places, which takes seconds
//! whatever the size.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use format::geometry::{Geometry, POOL_BYTES_MIN, SUPERBLOCK_COPIES};
use format::page::PAGE_BYTES;
use storage::device::{Device, DeviceError, FileDevice, IoPurpose};

/// Bytes read at each end: superblocks, boot sectors, partition tables and their backups, labels of
/// other file systems.
const ENDS_BYTES: u64 = 1 << 20;
/// Most bytes read completely between the ends, which takes half a second on a disk.
const READ_BYTES_MAX: u64 = 64 << 20;
/// Number and length of the samples of a larger device. Together they are [`READ_BYTES_MAX`].
const SAMPLES: u64 = 1024;
const SAMPLE_BYTES: u64 = READ_BYTES_MAX / SAMPLES;
const RANGES_MAX: usize = 4096;
const PIECE_BYTES: u64 = 1 << 20;
const ALIGN_BYTES: u64 = 4096;

const POOL_MAGIC: &[u8] = b"HOLDFAST";
/// Magic numbers of other systems, by offset. The last entry is the least specific.
const KNOWN: [(usize, &[u8], &str); 12] = [
    (0, b"XFSB", "an XFS file system"),
    (0, b"LUKS", "an encrypted volume (LUKS)"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (512, b"EFI PART", "a partition table"),
    (512, b"LABELONE", "an LVM volume"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4096, b"EFI PART", "a partition table"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (510, &[0x55, 0xaa], "a boot sector or a partition table"),
];
pub(super) const KNOWN_BYTES: usize = 0x10048;

/// Returns the name of the system whose magic number is in `head`, the first bytes of a device.
pub(super) fn known_in(head: &[u8]) -> Option<&'static str> {
    let has = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    KNOWN.iter().find(|(offset, magic, _)| has(*offset, magic)).map(|(_, _, name)| *name)
}

pub(super) fn what_is_there(
    path: &Path,
    device: &FileDevice,
) -> Result<Option<String>, DeviceError> {
    let size_bytes = device.info().size_bytes;
    if has_superblock(device, size_bytes)? {
        return Ok(Some("a Holdfast pool".to_owned()));
    }
    let head = read(device, 0..size_bytes.min(PIECE_BYTES))?;
    if let Some(name) = known_in(&head) {
        return Ok(Some(name.to_owned()));
    }
    // `None` if the file system lacks SEEK_DATA. Then all of the file may have data.
    let ranges = device.written_ranges(RANGES_MAX).ok().flatten();
    let whole = 0..size_bytes;
    let ranges = ranges.unwrap_or_else(|| vec![whole.clone()]);
    let ends = [whole.start..ENDS_BYTES, size_bytes.saturating_sub(ENDS_BYTES)..whole.end];
    for range in ends.into_iter().chain(samples(&ranges)) {
        if let Some(offset) = first_written(device, range.start..range.end.min(size_bytes))? {
            return Ok(Some(format!("data that Holdfast does not know (at byte {offset})")));
        }
    }
    Ok(tail_is_written(path, size_bytes).then(|| "data at its end".to_owned()))
}

/// Returns whether a file has data after its last whole page, which its [`FileDevice`] does not
/// show.
fn tail_is_written(path: &Path, size_bytes: u64) -> bool {
    let mut tail = [0; PAGE_BYTES];
    let read = File::open(path).and_then(|file| file.read_at(&mut tail, size_bytes));
    path.is_file() && read.is_ok() && tail.iter().any(|&byte| byte != 0)
}

fn has_superblock(device: &FileDevice, size_bytes: u64) -> Result<bool, DeviceError> {
    if size_bytes < POOL_BYTES_MIN {
        return Ok(read(device, 0..ALIGN_BYTES)?.starts_with(POOL_MAGIC));
    }
    for copy in 0..SUPERBLOCK_COPIES {
        let offset = Geometry::superblock_offset(size_bytes, copy);
        if read(device, offset..offset + ALIGN_BYTES)?.starts_with(POOL_MAGIC) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the parts of `ranges` to read: all if they are few, or else evenly spaced samples.
fn samples(ranges: &[Range<u64>]) -> Vec<Range<u64>> {
    let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    if total <= READ_BYTES_MAX {
        return ranges.to_vec();
    }
    let mut samples = Vec::new();
    let (step, mut before, mut next) = (total / SAMPLES, 0, 0);
    for range in ranges {
        let end = before + (range.end - range.start);
        while next < end {
            let start = range.start + (next - before);
            samples.push(start..range.end.min(start + SAMPLE_BYTES));
            next += step;
        }
        before = end;
    }
    samples
}

fn first_written(device: &FileDevice, range: Range<u64>) -> Result<Option<u64>, DeviceError> {
    let mut start = range.start - range.start % ALIGN_BYTES;
    while start < range.end {
        let end = range.end.next_multiple_of(ALIGN_BYTES).min(start + PIECE_BYTES);
        let bytes = read(device, start..end)?;
        if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
            return Ok(Some(start + u64::try_from(at).unwrap_or(0)));
        }
        start = end;
    }
    Ok(None)
}

fn read(device: &FileDevice, range: Range<u64>) -> Result<Vec<u8>, DeviceError> {
    let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    Ok(device.read(IoPurpose::Superblock, range.start, length)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_spread_over_what_was_written() {
        const GIB: u64 = 1 << 30;
        assert_eq!(samples(&[]), []);
        assert_eq!(samples(&[5..7, 4096..READ_BYTES_MAX]), [5..7, 4096..READ_BYTES_MAX]);
        for ranges in
            [vec![0..GIB, GIB..1 << 50], vec![0..4096, GIB..2 * GIB, 8 * GIB..8 * GIB + 4096]]
        {
            let samples = samples(&ranges);
            let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            let count = u64::try_from(samples.len()).expect("few");
            assert!((SAMPLES..=SAMPLES + 1).contains(&count), "{count}");
            assert!(samples.windows(2).all(|pair| pair[0].start < pair[1].start));
            let inside = |sample: &Range<u64>| {
                ranges.iter().any(|range| range.start <= sample.start && sample.end <= range.end)
            };
            assert!(samples.iter().all(inside));
            let last = samples.last().expect("there are some");
            let end = ranges.last().expect("there is one").end;
            assert!(end - last.start < 8 * GIB + total / SAMPLES, "{last:?}");
        }
    }
}
