//! Tests of file devices, by every available transport.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::device::Ticket;
use runtime::prng::Prng;

/// A path in the temporary folder, removed on drop.
struct TemporaryPath(PathBuf);

impl TemporaryPath {
    fn new() -> TemporaryPath {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdfast-device-{}-{nth}", std::process::id());
        TemporaryPath(std::env::temp_dir().join(name))
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        open::remove(&self.0);
    }
}

fn options(transport: FileTransportChoice) -> FileOptions {
    FileOptions { transport, ..FileOptions::default() }
}

/// Runs `test` with each transport. Skips io_uring with a message if it is unavailable.
fn with_each_transport(size_bytes: u64, test: impl Fn(&Arc<FileDevice>, &Path)) {
    for transport in [FileTransportChoice::Pread, FileTransportChoice::Uring] {
        for is_buffered in [false, true] {
            let path = TemporaryPath::new();
            let options = FileOptions { is_buffered, ..options(transport) };
            match FileDevice::create(&path.0, size_bytes, options) {
                Ok(device) => test(&device, &path.0),
                Err(DeviceOpenError::NoUring { source, .. }) => {
                    eprintln!("SKIPPED io_uring: {source}")
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn filled(length: usize, seed: u64) -> AlignedBuffer {
    let mut prng = Prng::from_seed(seed);
    let mut buffer = AlignedBuffer::zeroed(length);
    for word in buffer.chunks_exact_mut(8) {
        word.copy_from_slice(&prng.next_u64().to_le_bytes());
    }
    buffer
}

fn write_of(offset: u64, buffer: AlignedBuffer) -> DeviceOperation {
    DeviceOperation::Write { offset, data: vec![SharedBytes::from(buffer)] }
}

fn read_of(offset: u64, length: usize) -> DeviceOperation {
    DeviceOperation::Read { offset, buffer: AlignedBuffer::zeroed(length) }
}

fn bytes_of(ticket: Ticket) -> AlignedBuffer {
    ticket.wait().expect("the disk works").buffer.expect("a read returns its buffer")
}

/// Method: more requests than the queue holds, waited for in reverse.
#[test]
fn many_requests_in_flight_are_each_answered_with_their_own_data() {
    const COUNT: u64 = 3 * 128 + 5;
    with_each_transport(COUNT * 8192, |device, _| {
        let submit =
            |nth: u64| device.submit(IoPurpose::Data, write_of(nth * 8192, filled(8192, nth)));
        let mut tickets: Vec<Ticket> = (0..COUNT).map(submit).collect();
        while let Some(ticket) = tickets.pop() {
            ticket.wait().expect("the disk works");
        }
        device.submit(IoPurpose::Data, DeviceOperation::Flush).wait().expect("the disk works");
        let read = |nth: u64| device.submit(IoPurpose::Data, read_of(nth * 8192, 8192));
        let mut tickets: Vec<(u64, Ticket)> = (0..COUNT).map(|nth| (nth, read(nth))).collect();
        while let Some((nth, ticket)) = tickets.pop() {
            assert_eq!(*bytes_of(ticket), *filled(8192, nth), "{nth}");
        }
    });
}

/// Goal: write-through works on any file system, at worst as an ordinary write.
#[test]
fn what_is_written_through_is_read_back() {
    with_each_transport(1 << 20, |device, _| {
        for nth in 0..4 {
            let data = vec![SharedBytes::from(filled(8192, nth)), filled(4096, 9).into()];
            let through = DeviceOperation::WriteThrough { offset: nth * 16384, data };
            device.submit(IoPurpose::Journal, through).wait().expect("the disk works");
        }
        for nth in 0..4 {
            let read = bytes_of(device.submit(IoPurpose::Data, read_of(nth * 16384, 12288)));
            assert_eq!(read[..8192], *filled(8192, nth), "{nth}");
            assert_eq!(read[8192..], *filled(4096, 9), "{nth}");
        }
    });
}

/// Method: threads submit, wait out of order, drop tickets and read directly, each in its own
/// range.
#[test]
fn threads_share_a_device_without_losing_an_answer() {
    const THREADS: u64 = 6;
    const SLOTS: u64 = 16;
    with_each_transport(THREADS * SLOTS * 4096, |device, _| {
        let work = |me: u64| {
            let mut prng = Prng::from_seed(me);
            let offset_of = |slot: u64| (me * SLOTS + slot) * 4096;
            for round in 0..20 {
                let count = 1 + prng.below(SLOTS);
                let seed = |slot: u64| me << 32 | round << 16 | slot;
                let write = |slot: u64| {
                    let data = filled(4096, seed(slot));
                    device.submit(IoPurpose::Data, write_of(offset_of(slot), data))
                };
                let mut tickets: Vec<Ticket> = (0..count).map(write).collect();
                while !tickets.is_empty() {
                    let nth = crate::convert::to_usize(prng.below(to_u64(tickets.len())));
                    tickets.swap_remove(nth).wait().expect("the disk works");
                }
                drop(device.submit(IoPurpose::Data, read_of(offset_of(0), 4096)));
                for slot in 0..count {
                    let read = device.read(IoPurpose::Data, offset_of(slot), 4096);
                    assert_eq!(*read.expect("the disk works"), *filled(4096, seed(slot)));
                }
            }
        };
        let work = &work;
        std::thread::scope(|scope| {
            for me in 0..THREADS {
                scope.spawn(move || work(me));
            }
        });
    });
}

#[test]
fn pieces_are_written_one_after_the_other() {
    with_each_transport(1 << 20, |device, _| {
        let buffer = Arc::new(filled(16384, 1));
        let ranges = [8192..12288, 0..4096, 4096..8192];
        let pieces =
            |range: &std::ops::Range<usize>| SharedBytes::new(Arc::clone(&buffer), range.clone());
        let data = ranges.iter().map(pieces).collect();
        let write = DeviceOperation::Write { offset: 4096, data };
        device.submit(IoPurpose::Data, write).wait().expect("the disk works");
        let read = device.read(IoPurpose::Data, 4096, 12288).expect("the disk works");
        let expected: Vec<u8> = ranges.iter().flat_map(|r| buffer[r.clone()].to_vec()).collect();
        assert_eq!(read[..], expected[..]);
    });
}

#[test]
fn dropped_device_finishes_what_was_submitted() {
    for transport in [FileTransportChoice::Pread, FileTransportChoice::Automatic] {
        let path = TemporaryPath::new();
        let device = FileDevice::create(&path.0, 1 << 20, options(transport)).expect("room");
        for nth in 0..64 {
            drop(device.submit(IoPurpose::Data, write_of(nth * 4096, filled(4096, nth))));
        }
        drop(device);
        let device = FileDevice::open(&path.0, options(transport)).expect("closed before");
        for nth in 0..64 {
            let read = device.read(IoPurpose::Data, nth * 4096, 4096).expect("the disk works");
            assert_eq!(*read, *filled(4096, nth), "{nth}");
        }
    }
}

#[test]
fn device_in_use_is_refused_until_it_is_dropped() {
    let path = TemporaryPath::new();
    let reader = FileOptions { access: DeviceAccess::ReadOnly, ..FileOptions::default() };
    let device = FileDevice::create(&path.0, 1 << 20, FileOptions::default()).expect("room");
    for options in [FileOptions::default(), reader] {
        let refused = FileDevice::open(&path.0, options).expect_err("in use");
        assert!(matches!(refused, DeviceOpenError::InUse { .. }), "{refused}");
        assert!(refused.to_string().contains("unmount"), "{refused}");
    }
    drop(device);
    let first = FileDevice::open(&path.0, reader).expect("free again");
    let second = FileDevice::open(&path.0, reader).expect("readers share");
    let refused = FileDevice::open(&path.0, FileOptions::default());
    assert!(matches!(refused, Err(DeviceOpenError::InUse { .. })));
    let write = first.write(IoPurpose::Data, 0, AlignedBuffer::zeroed(4096));
    assert!(matches!(write, Err(DeviceError::Io { .. })));
    drop((first, second));
    FileDevice::open(&path.0, FileOptions::default()).expect("free again");
}

#[test]
fn what_is_no_device_is_refused_and_left_as_it_was() {
    let path = TemporaryPath::new();
    let open = || FileDevice::open(&path.0, FileOptions::default());
    assert!(matches!(open(), Err(DeviceOpenError::NotFound { .. })));
    std::fs::write(&path.0, b"small").expect("room");
    assert!(matches!(open(), Err(DeviceOpenError::TooSmall { size_bytes: 5, .. })));
    let created = FileDevice::create(&path.0, 1 << 20, FileOptions::default());
    assert!(matches!(created, Err(DeviceOpenError::Exists { .. })));
    assert_eq!(std::fs::read(&path.0).expect("still there"), b"small");
    let folder = FileDevice::open(&std::env::temp_dir(), FileOptions::default());
    assert!(matches!(folder, Err(DeviceOpenError::NotADevice { .. })));

    let other = TemporaryPath::new();
    let huge = FileDevice::create(&other.0, 1 << 62, FileOptions::default());
    assert!(matches!(huge, Err(DeviceOpenError::TooLarge { .. })));
    assert!(!other.0.exists(), "a file was left behind");
    let tiny = FileDevice::create(&other.0, 4095, FileOptions::default());
    assert!(matches!(tiny, Err(DeviceOpenError::TooSmall { .. })));
}

#[test]
fn created_file_is_sparse_and_says_what_it_is() {
    let path = TemporaryPath::new();
    let device = FileDevice::create(&path.0, 1 << 40, FileOptions::default()).expect("room");
    assert_eq!(device.info().size_bytes, 1 << 40);
    assert!((512..=4096).contains(&device.info().sector_bytes));
    assert_eq!(device.info().name, path.0.display().to_string());
    let last = device.read(IoPurpose::Data, (1 << 40) - 4096, 4096).expect("a hole is zeros");
    assert!(last.iter().all(|&byte| byte == 0));
    let blocks = std::fs::metadata(&path.0).expect("it is there").blocks();
    assert!(blocks < 1 << 11, "{blocks} blocks of 512 bytes");
    drop(device);
    let options = FileOptions { is_buffered: true, ..options(FileTransportChoice::Pread) };
    let device = FileDevice::open(&path.0, options).expect("free again");
    assert_eq!(device.info().transport, "pread, buffered");
}

#[test]
fn requests_outside_or_not_aligned_do_not_reach_the_file() {
    with_each_transport(1 << 20, |device, _| {
        let past = device.read(IoPurpose::Data, 1 << 20, 4096);
        assert!(matches!(past, Err(DeviceError::OutOfRange { .. })));
        let unaligned = device.submit(IoPurpose::Data, write_of(512, filled(4096, 1))).wait();
        assert!(matches!(unaligned, Err(DeviceError::OutOfRange { .. })));
        let sector = crate::convert::to_usize(u64::from(device.info().sector_bytes));
        let journal = device.submit(IoPurpose::Journal, write_of(0, filled(sector, 1)));
        journal.wait().expect("a sector is enough for the journal");
    });
}

#[test]
fn discard_is_taken_and_harms_nothing_outside_its_range() {
    with_each_transport(1 << 20, |device, _| {
        device.write(IoPurpose::Data, 0, filled(12288, 1)).expect("the disk works");
        let discard = DeviceOperation::Discard { offset: 4096, length_bytes: 4096 };
        let discarded = device.submit(IoPurpose::Cleaner, discard).wait();
        let is_taken = matches!(discarded, Ok(_) | Err(DeviceError::NoDiscard { .. }));
        assert!(is_taken, "{discarded:?}");
        let read = device.read(IoPurpose::Data, 0, 12288).expect("the disk works");
        let expected = filled(12288, 1);
        assert_eq!(read[..4096], expected[..4096]);
        assert_eq!(read[8192..], expected[8192..]);
    });
}

/// Goal: a discard frees space in the file system, and a file with holes is reported as sparse.
#[test]
fn what_is_discarded_of_a_file_is_room_again() {
    use std::os::unix::fs::MetadataExt;
    with_each_transport(1 << 20, |device, path| {
        assert!(device.info().is_sparse, "a new file has holes");
        let blocks = || std::fs::metadata(path).expect("it is there").blocks();
        device.write(IoPurpose::Data, 0, filled(1 << 19, 1)).expect("the disk works");
        device.flush(IoPurpose::Data).expect("the disk works");
        let before = blocks();
        let discard = DeviceOperation::Discard { offset: 0, length_bytes: 1 << 19 };
        match device.submit(IoPurpose::Cleaner, discard).wait() {
            Ok(_) => assert!(blocks() + 1000 < before, "{before} {}", blocks()),
            Err(DeviceError::NoDiscard { .. }) => eprintln!("SKIPPED: no holes here"),
            Err(error) => panic!("{error}"),
        }
    });
}

/// Goal: after one refusal, discards fail without a system call (D6).
#[test]
fn a_device_that_cannot_discard_says_so_at_once() {
    with_each_transport(1 << 20, |device, _| {
        let refused = Err(TransferError::System(Errno::OPNOTSUPP));
        let error = device.target.answer(RequestKind::Discard, 0, 4096, refused);
        assert!(matches!(error, Err(DeviceError::NoDiscard { .. })), "{error:?}");
        let discard = DeviceOperation::Discard { offset: 0, length_bytes: 4096 };
        let error = device.submit(IoPurpose::Cleaner, discard).wait();
        assert!(matches!(error, Err(DeviceError::NoDiscard { .. })), "{error:?}");
        device.write(IoPurpose::Data, 0, filled(4096, 1)).expect("still trusted");
    });
}

/// Goal: a failed flush fails the device (D3). Method: converts system errors, which are hard to
/// provoke.
#[test]
fn failed_flush_fails_the_device_and_a_full_disk_does_not() {
    with_each_transport(1 << 20, |device, _| {
        let answer = |kind, errno| {
            device
                .target
                .answer(kind, 0, 4096, Err(TransferError::System(errno)))
                .expect_err("an errno")
        };
        let full = answer(RequestKind::Write, Errno::NOSPC);
        assert!(matches!(full, DeviceError::NoSpace { offset: 0, .. }));
        let refused = answer(RequestKind::Write, Errno::PERM);
        assert!(matches!(refused, DeviceError::ReadOnly { .. }), "{refused}");
        let broken = answer(RequestKind::Write, Errno::IO);
        assert!(matches!(broken, DeviceError::Io { kind: RequestKind::Write, .. }));
        device.write(IoPurpose::Data, 0, filled(4096, 1)).expect("still trusted");

        let flush = answer(RequestKind::Flush, Errno::NOSPC);
        assert!(matches!(flush, DeviceError::Io { kind: RequestKind::Flush, .. }));
        let write = device.write(IoPurpose::Data, 0, filled(4096, 2));
        assert!(matches!(write, Err(DeviceError::Failed { .. })));
        let flush = device.submit(IoPurpose::Data, DeviceOperation::Flush).wait();
        assert!(matches!(flush, Err(DeviceError::Failed { .. })));
        let read = device.read(IoPurpose::Data, 0, 4096).expect("reads go on");
        assert_eq!(*read, *filled(4096, 1));
    });
}

#[test]
fn file_cut_short_under_the_device_is_an_error_and_no_endless_read() {
    with_each_transport(1 << 20, |device, path| {
        let file = std::fs::File::options().write(true).open(path).expect("it is there");
        file.set_len(1 << 19).expect("it is ours");
        let direct = device.read(IoPurpose::Data, 1 << 19, 4096);
        let queued = device.submit(IoPurpose::Data, read_of(1 << 19, 4096)).wait().map(drop);
        // The first half exists: a short read, and then another.
        let half = device.submit(IoPurpose::Data, read_of((1 << 19) - 4096, 8192)).wait().map(drop);
        for result in [direct.map(drop), queued, half] {
            let error = result.expect_err("nothing is there");
            assert!(error.to_string().contains("became shorter"), "{error}");
        }
    });
}

/// Goal: a shortened device is detected without a request, and stays so.
#[test]
fn lost_end_is_told_to_who_asks_for_nothing_else() {
    with_each_transport(1 << 20, |device, path| {
        device.check_end().expect("all of it is there");
        let file = std::fs::File::options().write(true).open(path).expect("it is there");
        file.set_len((1 << 20) - 1).expect("it is ours");
        device.check_end().expect_err("a byte is lost");
        file.set_len(1 << 20).expect("it is ours");
        let error = device.check_end().expect_err("it was lost");
        assert!(matches!(error, DeviceError::Shortened { size_bytes: 0x10_0000, .. }), "{error}");
        device.write(IoPurpose::Data, 0, filled(4096, 1)).expect_err("D5");
    });
}

/// Goal: once a read or flush finds the device shortened, all changes fail, even one that would
/// restore the length and so hide the loss.
#[test]
fn device_that_lost_its_end_takes_no_more_changes() {
    for is_read_first in [false, true] {
        with_each_transport(1 << 20, |device, path| {
            device.write(IoPurpose::Data, 0, filled(4096, 1)).expect("the disk works");
            device.flush(IoPurpose::Data).expect("all of it is there");
            let file = std::fs::File::options().write(true).open(path).expect("it is there");
            file.set_len(1 << 19).expect("it is ours");
            if is_read_first {
                device.read(IoPurpose::Data, 1 << 19, 4096).expect_err("nothing is there");
            } else {
                device.write(IoPurpose::Data, 3 << 18, filled(4096, 2)).expect("not seen yet");
                device.flush(IoPurpose::Data).expect_err("the last quarter is lost");
            }
            file.set_len(1 << 20).expect("it is ours");
            let last = device.write(IoPurpose::Data, (1 << 20) - 4096, filled(4096, 3));
            for refused in [last, device.flush(IoPurpose::Data)] {
                let error = refused.expect_err("D5");
                assert!(matches!(error, DeviceError::Shortened { size_bytes: 0x10_0000, .. }));
                let advice = format!("truncate -s 1048576 {}", path.display());
                assert!(error.to_string().contains(&advice), "{error}");
            }
            let read = device.read(IoPurpose::Data, 0, 4096).expect("reads go on");
            assert_eq!(*read, *filled(4096, 1));
        });
    }
}
