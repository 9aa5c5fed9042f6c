use engine::api::{AlignedBuffer, Caller, FileReadRequest, FsError, Stability, WriteData};
use testkit::ops::bytes_of;
use whole_system::behaviours;

static ROOT: Caller = Caller::root();

const FRAGMENT: u64 = 4 << 10;
const BLOCK: u64 = 16 << 10;
const SEGMENT: u64 = 1 << 20;

behaviours! {
    fn what_is_written_is_read(at) {
        at.does("create /f file 644");
        at.write("/f", 0, b"hello");
        at.write("/f", 5, b", world");
        assert_eq!(at.content("/f"), b"hello, world");
        assert_eq!(at.attr("/f").size_bytes, 12);
    }

    fn a_write_in_the_middle_changes_only_its_bytes(at) {
        at.does("create /f file 644");
        let mut expected = bytes_of(1, 100_000);
        at.write("/f", 0, &expected);
        for (offset, length) in [(10_usize, 5), (4090, 20), (16_000, 40_000), (99_999, 1)] {
            let data = bytes_of(2, length);
            at.write("/f", u64::try_from(offset).expect("small"), &data);
            expected[offset..offset + length].copy_from_slice(&data);
            assert_eq!(at.content("/f"), expected, "{length} at {offset}");
        }
    }

    /// What a file keeps of a long write is not changed by later ones, neither before its blocks
    /// are sealed nor after, and each of two files that were written with one buffer has its own.
    fn what_is_kept_of_a_write_is_never_changed(at) {
        at.does("create /f file 644\ncreate /g file 644");
        let before = bytes_of(1, 1 << 20);
        let data = WriteData::Shared(AlignedBuffer::copy_of(&before).into());
        // At blocks, at pages only, and at neither: kept, in part, and copied.
        for (round, start) in [0, BLOCK, 4 * FRAGMENT + FRAGMENT, 100].into_iter().enumerate() {
            let mut expected = vec![0; usize::try_from(start).expect("small")];
            expected.extend_from_slice(&before);
            for place in ["/f", "/g"] {
                at.does(&format!("truncate {place} 0"));
                let ino = at.ino(place);
                let stability = Stability::Unstable;
                let written = at.fs().write_some(&ROOT, ino, start, &data, stability, None);
                assert_eq!(written, Ok(data.len()));
            }
            let mut changed = expected.clone();
            for (number, is_synced) in [(2, false), (3, true)] {
                // In the blocks that were placed last and still fill.
                let (offset, change) = (expected.len() - 30_000, bytes_of(number, 20_000));
                if is_synced {
                    at.does("fsync /g");
                }
                at.write("/g", u64::try_from(offset).expect("small"), &change);
                changed[offset..offset + change.len()].copy_from_slice(&change);
                assert!(data[..] == before, "round {round}: memory of the caller changed");
                assert!(at.content("/f") == expected, "round {round}: the other file changed");
                assert!(at.content("/g") == changed, "round {round}: not what was written");
            }
        }
    }

    fn writes_around_every_boundary_are_read_back(at) {
        for (number, boundary) in [FRAGMENT, BLOCK, SEGMENT].into_iter().enumerate() {
            at.does(&format!("create /f{number} file 644"));
            let place = format!("/f{number}");
            for (offset, length) in [(boundary - 1, 1), (boundary, 1), (boundary - 7, 14),
                (2 * boundary - 1, 2)]
            {
                let data = bytes_of(u32::try_from(length).expect("small"), length);
                at.write(&place, offset, &data);
                let mut bytes = Vec::new();
                let read = at.fs().read(&ROOT, at.ino(&place), offset, length, &mut bytes);
                assert_eq!((read, bytes), (Ok(length), data), "{length} at {offset}");
            }
            assert_eq!(at.attr(&place).size_bytes, 2 * boundary + 1);
        }
    }

    fn a_file_larger_than_a_segment_keeps_every_byte(at) {
        at.does("create /f file 644");
        let data = bytes_of(9, 3_000_001);
        for (number, piece) in data.chunks(70_001).enumerate() {
            at.write("/f", u64::try_from(number * 70_001).expect("small"), piece);
        }
        assert!(at.content("/f") == data);
    }

    fn a_read_stops_at_the_end(at) {
        at.does("create /f file 644");
        at.write("/f", 0, b"0123456789");
        let read = |offset, length| {
            let mut bytes = b"kept ".to_vec();
            let count = at.fs().read(&ROOT, at.ino("/f"), offset, length, &mut bytes);
            (count, bytes)
        };
        assert_eq!(read(8, 100), (Ok(2), b"kept 89".to_vec()));
        assert_eq!(read(10, 1), (Ok(0), b"kept ".to_vec()));
        assert_eq!(read(u64::MAX, 1), (Ok(0), b"kept ".to_vec()));
        assert_eq!(read(3, 0), (Ok(0), b"kept ".to_vec()));
    }

    fn reads_at_once_bring_what_each_brings_alone(at) {
        at.does("create /stored file 644\ncreate /small file 644\ncreate /d directory 755");
        let data = bytes_of(3, 100_000);
        at.write("/stored", 0, &data);
        at.write("/stored", 200_000, &data);
        at.does("sync");
        at.write("/stored", 40_000, b"still in memory");
        at.write("/small", 3, b"in the anode");
        let (stored, small) = (at.ino("/stored"), at.ino("/small"));
        let of = |ino, ranges: &[(u64, usize)]| -> Vec<FileReadRequest> {
            let asked = |&(offset, length_bytes): &(u64, usize)| {
                FileReadRequest { caller: &ROOT, ino, offset, length_bytes }
            };
            ranges.iter().map(asked).collect()
        };
        let mut asked = of(stored, &[(0, 300_000), (39_999, 20), (99_000, 2000), (4096, 4096)]);
        asked.extend(of(at.ino("/d"), &[(0, 1)]));
        asked.extend(of(small, &[(0, 100), (4, 2), (15, 1), (u64::MAX, 1)]));
        asked.extend(of(stored, &[(150_000, 10), (299_999, 10), (1, 0), (16_383, 2)]));
        let mut told = vec![None; asked.len()];
        at.fs().read_each(&asked, &mut |index, read| {
            let before = told[index].replace(read.map(|pieces| pieces.concat()));
            assert_eq!(before, None, "told twice: {index}");
        });
        for (request, told) in asked.into_iter().zip(told) {
            let FileReadRequest { ino, offset, length_bytes, .. } = request;
            let mut alone = Vec::new();
            let read = at.fs().read(&ROOT, ino, offset, length_bytes, &mut alone);
            assert!(told == Some(read.map(|_| alone)), "{length_bytes} at {offset}");
        }
        let mut expected = data.clone();
        expected[40_000..40_015].copy_from_slice(b"still in memory");
        expected.resize(200_000, 0);
        expected.extend(&data);
        assert!(at.content("/stored") == expected);
    }

    fn a_hole_reads_as_zeros_and_takes_no_space(at) {
        at.does("create /f file 644");
        at.write("/f", 100 << 20, b"end");
        let attr = at.attr("/f");
        assert_eq!(attr.size_bytes, (100 << 20) + 3);
        assert!(attr.blocks_512 < 1000, "{} blocks", attr.blocks_512);
        let mut bytes = Vec::new();
        let count = at.fs().read(&ROOT, attr.ino, (100 << 20) - 70_000, 70_003, &mut bytes);
        assert_eq!(count, Ok(70_003));
        assert!(bytes[..70_000].iter().all(|&byte| byte == 0));
        assert_eq!(bytes[70_000..], b"end"[..]);
    }

    fn holes_are_filled_in_any_order(at) {
        at.does("create /f file 644");
        let mut expected = vec![0; 40 * 5000];
        for number in (0..40).rev().step_by(3).chain((0..40).step_by(7)) {
            let data = bytes_of(u32::try_from(number).expect("small"), 5000);
            at.write("/f", u64::try_from(number * 5000).expect("small"), &data);
            expected[number * 5000..][..5000].copy_from_slice(&data);
        }
        assert!(at.content("/f") == expected);
    }

    fn a_write_of_nothing_changes_nothing(at) {
        at.does("create /f file 644");
        let before = at.attr("/f");
        at.pass_time();
        at.write("/f", 1000, b"");
        assert_eq!(at.attr("/f"), before);
    }

    fn only_regular_files_have_content(at) {
        at.does("create /d directory 755\nsymlink /s =t\ncreate /p fifo 600");
        at.refuses("write /d 0 1 1", &FsError::IsDirectory);
        at.refuses("read /d 0 1", &FsError::IsDirectory);
        at.refuses("write /s 0 1 1", &FsError::Invalid);
        at.refuses("write /p 0 1 1", &FsError::Invalid);
    }

    fn far_offsets_work_up_to_the_largest_file(at) {
        at.does("create /f file 644");
        let limit = i64::MAX.unsigned_abs();
        for power in [32, 40, 48, 56, 62] {
            let offset = 1_u64 << power;
            at.write("/f", offset - 2, b"abcd");
            let mut bytes = Vec::new();
            assert_eq!(at.fs().read(&ROOT, at.ino("/f"), offset - 2, 4, &mut bytes), Ok(4));
            assert_eq!(bytes, b"abcd");
        }
        at.write("/f", limit - 1, b"x");
        assert_eq!(at.attr("/f").size_bytes, limit);
        let past = at.fs().write(&ROOT, at.ino("/f"), limit, b"x");
        assert_eq!(past, Err(FsError::FileTooLarge));
        at.does("truncate /f 0");
        assert_eq!(at.attr("/f").blocks_512, 0);
    }
}
