//! Holes: made, found, and left out of copies.

use engine::api::{Caller, FsError, Seek};
use testkit::ops::bytes_of;
use whole_system::behaviours;

fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("a test's offset fits")
}

static ROOT: Caller = Caller::root();

behaviours! {
    fn a_punched_hole_reads_as_zeros_and_gives_space_back(at) {
        for sync in ["getattr /f", "sync"] {
            at.does("create /f file 644");
            let mut expected = bytes_of(3, 400_000);
            at.write("/f", 0, &expected);
            at.does(sync);
            let full = at.attr("/f").blocks_512;
            let holes = [(100, 50), (5000, 70_000), (131_072, 65_536), (390_000, 90_000)];
            for (offset, length) in holes {
                at.does(&format!("punch /f {offset} {length}"));
                let end = (offset + length).min(expected.len());
                expected[offset..end].fill(0);
                assert!(at.content("/f") == expected, "{sync}, {length} at {offset}");
            }
            at.does("sync");
            assert!(at.content("/f") == expected, "{sync}, later");
            assert!(at.attr("/f").blocks_512 + 64_000 / 512 < full);
            at.does("punch /f 0 400000");
            assert!(at.content("/f").iter().all(|&byte| byte == 0));
            at.does("unlink /f");
        }
    }

    fn zeros_extend_a_file_unless_its_size_is_kept(at) {
        at.does("create /f file 644");
        at.write("/f", 0, &bytes_of(3, 100));
        at.does("zero-keep /f 50 1000");
        assert_eq!(at.attr("/f").size_bytes, 100);
        at.does("zero /f 90 1000");
        let mut expected = bytes_of(3, 50);
        expected.resize(1090, 0);
        assert_eq!(at.content("/f"), expected);
    }

    fn space_taken_ahead_reads_as_zeros_and_is_a_hole(at) {
        for (name, length) in [("/none", 0), ("/tiny", 100), ("/short", 3000), ("/long", 90_000)] {
            at.does(&format!("create {name} file 644"));
            let mut expected = bytes_of(3, length);
            at.write(name, 0, &expected);
            at.does(&format!("allocate-keep {name} 50 200000"));
            assert!(at.content(name) == expected, "{name}");
            at.does(&format!("allocate {name} 10 400000\nallocate {name} 0 300"));
            expected.resize(400_010, 0);
            assert!(at.content(name) == expected, "{name}");
            at.does(&format!("seek {name} 0 data\nseek {name} 0 hole\nsync"));
            let (fs, ino) = (at.fs(), at.ino(name));
            let hole = fs.seek(&ROOT, ino, 0, Seek::Hole).expect("the end is a hole");
            assert!(hole < 200_000, "{name}: a hole at {hole}");
            for (offset, fill) in [(60_000, 5), (130_000, 6), (61_000, 7), (399_000, 8)] {
                let data = bytes_of(fill, 9000);
                at.write(name, offset, &data);
                let (start, end) = (usize_of(offset), usize_of(offset) + data.len());
                expected.resize(expected.len().max(end), 0);
                expected[start..end].copy_from_slice(&data);
            }
            assert!(at.content(name) == expected, "{name}");
            at.does("sync");
            assert!(at.content(name) == expected, "{name}, later");
        }
    }

    fn room_behind_the_end_stays_unseen(at) {
        at.does("create /f file 644\nallocate-keep /f 0 1000000\ngetattr /f");
        assert_eq!(at.content("/f"), b"");
        at.write("/f", 70_000, b"data");
        let mut expected = vec![0; 70_000];
        expected.extend_from_slice(b"data");
        assert!(at.content("/f") == expected);
        at.does("truncate /f 50\ntruncate /f 900000");
        assert!(at.content("/f").iter().all(|&byte| byte == 0));
        at.does("allocate-keep /f 0 2000000\npunch /f 1000000 900000\nzero /f 1990000 20000");
        assert_eq!(at.attr("/f").size_bytes, 2_010_000);
        at.does("truncate /f 0\ntruncate /f 0");
        assert_eq!(at.attr("/f").blocks_512, 0);
    }

    fn space_is_told_as_it_will_be_stored(at) {
        at.does("create /f file 644\nallocate /f 4095 2");
        at.write("/f", 4095, b"xy");
        let told = at.attr("/f").blocks_512;
        assert!(told <= 32, "room for one block of 16 KiB, which is written: {told}");
        let (offsets, lengths) = ([0, 255, 4095, 20_000, 70_000, 131_072], [1, 300, 5000, 50_000]);
        for number in 0..300 {
            // Each with each, in no order that a map or a segment has.
            let step = number * 7 + number / 24;
            let (offset, length) = (offsets[step % 6], lengths[step / 6 % 4]);
            match step % 5 {
                0 => at.does(&format!("allocate-keep /f {offset} {length}")),
                1 => at.does(&format!("punch /f {offset} {length}")),
                2 if step % 3 == 0 => at.does(&format!("truncate /f {offset}")),
                _ => {
                    let offset = u64::try_from(offset).expect("it fits");
                    at.write("/f", offset, &bytes_of(3, length));
                }
            }
            let told = at.attr("/f");
            at.does("sync");
            let stored = at.attr("/f");
            assert!(!stored.blocks_may_change);
            let lasts = told.blocks_512 == stored.blocks_512;
            assert!(lasts || told.blocks_may_change, "step {number}: {told:?}, {stored:?}");
        }
    }

    fn what_can_not_be_taken_or_cut_out_is_refused(at) {
        at.does("create /f file 644\ncreate /d directory 755");
        at.refuses("allocate /f 0 0", &FsError::Invalid);
        at.refuses("allocate /d 0 100", &FsError::IsDirectory);
        at.refuses("allocate /f 9223372036854775807 1", &FsError::FileTooLarge);
        at.refuses("collapse /f 0 16384", &FsError::NotSupported);
        at.refuses("insert /f 0 16384", &FsError::NotSupported);
        at.refuses("punch /f 0 0", &FsError::Invalid);
        at.refuses("punch /f 9223372036854775807 1", &FsError::FileTooLarge);
    }

    fn data_and_holes_are_found(at) {
        at.does("create /f file 644\ntruncate /f 10000000000");
        at.write("/f", 5_000_000_000, b"data");
        for sync in ["getattr /f", "sync"] {
            at.does(sync);
            let (fs, ino) = (at.fs(), at.ino("/f"));
            let data = fs.seek(&ROOT, ino, 7, Seek::Data).expect("there is data");
            assert!((4_999_900_000..=5_000_000_000).contains(&data), "{data}");
            let hole = fs.seek(&ROOT, ino, data, Seek::Hole).expect("the end is a hole");
            assert!((5_000_000_004..5_000_100_000).contains(&hole), "{hole}");
            assert_eq!(fs.seek(&ROOT, ino, hole, Seek::Hole), Ok(hole));
            assert_eq!(fs.seek(&ROOT, ino, hole, Seek::Data), Err(FsError::NoSuchOffset));
            assert_eq!(fs.seek(&ROOT, ino, 10_000_000_000, Seek::Hole), Err(FsError::NoSuchOffset));
            at.does("seek /f 0 data\nseek /f 0 hole\nseek /f 5000000001 hole");
        }
    }

    fn a_copy_inside_the_server_is_a_copy(at) {
        at.does("create /a file 644\ncreate /b file 644");
        at.write("/a", 0, &bytes_of(3, 300_000));
        let (fs, source, target) = (at.fs(), at.ino("/a"), at.ino("/b"));
        let copied = fs.copy_range(&ROOT, (source, 1000), (target, 50), 1 << 30);
        assert_eq!(copied, Ok(299_000));
        assert!(at.content("/b")[50..] == bytes_of(3, 300_000)[1000..]);
        let behind = fs.copy_range(&ROOT, (source, 300_000), (target, 0), 10);
        assert_eq!(behind, Ok(0));
        let itself = fs.copy_range(&ROOT, (source, 290_000), (source, 400_000), 90_000);
        assert_eq!(itself, Ok(10_000));
        assert_eq!(at.attr("/a").size_bytes, 410_000);
        at.refuses("copy /a 0 /a 10 20", &FsError::Invalid);
    }
}
