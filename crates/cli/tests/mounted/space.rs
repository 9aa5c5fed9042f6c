//! fallocate(2), holes and copies inside the server, as the kernel asks for them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;

use crate::{Mounted, can_mount, errno, write};

const BLOCK: u64 = 16 << 10;
const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

fn open(mounted: &Mounted, name: &str) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(mounted.path(name)).expect("open")
}

fn of(value: u64) -> usize {
    usize::try_from(value).expect("a test's file fits in memory")
}

#[test]
fn fallocate_takes_gives_back_and_zeroes() {
    if !can_mount("fallocate_takes_gives_back_and_zeroes") {
        return;
    }
    let mounted = Mounted::new();
    let file = open(&mounted, "file");
    let stat = || file.metadata().expect("stat");
    fallocate(&file, KEEP, 0, 64 * BLOCK).expect("keep size");
    assert_eq!(stat().len(), 0);
    assert!(stat().blocks() * 512 >= 64 * BLOCK);
    fallocate(&file, FallocateFlags::empty(), 0, 32 * BLOCK).expect("mode 0");
    assert_eq!(stat().len(), 32 * BLOCK);
    let mut expected = vec![7; of(40 * BLOCK)];
    file.write_all_at(&expected, 0).expect("write");
    let full = stat().blocks();
    fallocate(&file, KEEP | FallocateFlags::PUNCH_HOLE, 4 * BLOCK, 8 * BLOCK).expect("punch");
    expected[of(4 * BLOCK)..of(12 * BLOCK)].fill(0);
    assert!(stat().blocks() + 8 * BLOCK / 512 <= full);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 39 * BLOCK, 2 * BLOCK).expect("zero");
    expected.truncate(of(39 * BLOCK));
    expected.resize(of(41 * BLOCK), 0);
    fallocate(&file, KEEP | FallocateFlags::ZERO_RANGE, 20 * BLOCK + 5, BLOCK).expect("zero");
    expected[of(20 * BLOCK) + 5..of(21 * BLOCK) + 5].fill(0);
    assert!(fs::read(mounted.path("file")).expect("read") == expected);
    for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        let refused = fallocate(&file, mode, 0, BLOCK).map_err(std::io::Error::from);
        assert_eq!(errno(refused), Errno::OPNOTSUPP.raw_os_error(), "{mode:?}");
    }
    drop(file);
    mounted.remount(&[]);
    assert!(fs::read(mounted.path("file")).expect("read") == expected);
    mounted.finish();
}

/// Goal: what fallocate(2) gave can be written once the pool is full, after a remount too.
#[test]
fn what_was_taken_ahead_is_there_when_the_pool_is_full() {
    const AHEAD: u64 = 40 << 20;
    if !can_mount("what_was_taken_ahead_is_there_when_the_pool_is_full") {
        return;
    }
    let mounted = Mounted::new();
    fallocate(open(&mounted, "ahead"), FallocateFlags::empty(), 0, AHEAD).expect("mode 0");
    let too_much = fallocate(open(&mounted, "much"), FallocateFlags::empty(), 0, 1 << 40);
    assert_eq!(errno(too_much.map_err(std::io::Error::from)), Errno::NOSPC.raw_os_error());
    let mut filler = open(&mounted, "filler");
    let piece = vec![3; 1 << 20];
    let full = loop {
        if let Err(error) = filler.write_all(&piece) {
            break error;
        }
    };
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    drop(filler);
    mounted.remount(&[]);
    let file = open(&mounted, "ahead");
    for fill in [1, 2] {
        let piece = vec![fill; of(BLOCK) * 8];
        for offset in (0..AHEAD).step_by(piece.len()) {
            file.write_all_at(&piece, offset).expect("room was taken ahead");
        }
        file.sync_all().expect("room was taken ahead");
    }
    drop(file);
    let bytes = fs::read(mounted.path("ahead")).expect("read");
    assert!(bytes.len() == of(AHEAD) && bytes.iter().all(|byte| *byte == 2));
    mounted.finish();
}

/// Goal: write(2) into a full pool says how much it took. Method: a file that is appended to until
/// there is no room, as long as what others give back lasts; what was acknowledged is all there is.
#[test]
fn what_a_full_pool_takes_of_a_write_it_says() {
    const PIECE_BYTES: usize = 777_777;
    if !can_mount("what_a_full_pool_takes_of_a_write_it_says") {
        return;
    }
    let mounted = Mounted::new();
    let others = ["other0", "other1"];
    for name in others {
        open(&mounted, name).write_all(&vec![9; 3 << 20]).expect("there is room");
    }
    let mut log = open(&mounted, "log");
    let mut told = 0;
    for other in others {
        let error = loop {
            let fill = told / PIECE_BYTES % 251;
            match log.write(&vec![fill.to_le_bytes()[0]; PIECE_BYTES - told % PIECE_BYTES]) {
                Ok(count) => told += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(of(log.metadata().expect("stat").len()), told);
        fs::remove_file(mounted.path(other)).expect("a full pool can be emptied");
    }
    drop(log);
    mounted.remount(&[]);
    let bytes = fs::read(mounted.path("log")).expect("read");
    assert_eq!(bytes.len(), told);
    for (number, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
        assert!(piece.iter().all(|byte| usize::from(*byte) == number % 251), "piece {number}");
    }
    mounted.finish();
}

#[test]
fn lseek_finds_data_and_holes() {
    if !can_mount("lseek_finds_data_and_holes") {
        return;
    }
    let mounted = Mounted::new();
    let file = open(&mounted, "file");
    file.set_len(100 * BLOCK).expect("truncate");
    file.write_all_at(b"data", 50 * BLOCK + 5).expect("write");
    file.sync_all().expect("fsync");
    fallocate(&file, KEEP, 0, 10 * BLOCK).expect("keep size");
    let seek = |to| rustix::fs::seek(&file, to).map_err(std::io::Error::from);
    assert_eq!(seek(SeekFrom::Data(0)).expect("there is data"), 50 * BLOCK);
    assert_eq!(seek(SeekFrom::Hole(0)).expect("it begins with one"), 0);
    assert_eq!(seek(SeekFrom::Hole(50 * BLOCK)).expect("one follows"), 51 * BLOCK);
    assert_eq!(errno(seek(SeekFrom::Data(51 * BLOCK))), Errno::NXIO.raw_os_error());
    assert_eq!(errno(seek(SeekFrom::Hole(100 * BLOCK))), Errno::NXIO.raw_os_error());
    drop(file);
    mounted.finish();
}

#[test]
fn copy_file_range_copies_between_files_and_inside_one() {
    if !can_mount("copy_file_range_copies_between_files_and_inside_one") {
        return;
    }
    let mounted = Mounted::new();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    write(&mounted.path("source"), &bytes);
    let (source, target) = (open(&mounted, "source"), open(&mounted, "target"));
    let copy = |from: &File, mut at: u64, into: &File, mut to: u64, mut length: usize| {
        while length > 0 {
            let (at, to) = (Some(&mut at), Some(&mut to));
            let count = rustix::fs::copy_file_range(from, at, into, to, length).expect("copy");
            assert!(count > 0, "{length} bytes are missing");
            length -= count;
        }
    };
    copy(&source, 1000, &target, 50, 200_000);
    copy(&source, 0, &source, 300_000, 5000);
    let copied = fs::read(mounted.path("target")).expect("read");
    assert!(copied[..50] == [0; 50] && copied[50..] == bytes[1000..201_000]);
    let whole = fs::read(mounted.path("source")).expect("read");
    assert!(whole[..300_000] == bytes && whole[300_000..] == bytes[..5000]);
    drop((source, target));
    mounted.finish();
}
