//! Holes: made, found, and left out of copies.

use engine::vnode::api::{Caller, FsError, Seek};
use testkit::ops::bytes_of;
use whole_system::behaviours;

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

    fn space_is_not_promised_ahead(at) {
        at.does("create /f file 644");
        at.refuses("allocate /f 0 100", &FsError::NotSupported);
        at.refuses("collapse /f 0 16384", &FsError::NotSupported);
        at.refuses("punch /f 0 0", &FsError::Invalid);
        at.refuses("punch /f 9223372036854775807 1", &FsError::FileTooLarge);
    }

    fn data_and_holes_are_found(at) {
        at.does("create /f file 644\ntruncate /f 10000000000");
        at.write("/f", 5_000_000_000, b"data");
        for sync in ["getattr /f", "sync"] {
            at.does(sync);
            let (fs, ino) = (at.fs(), at.ino("/f"));
            let data = fs.seek(ino, 7, Seek::Data).expect("there is data");
            assert!((4_999_900_000..=5_000_000_000).contains(&data), "{data}");
            let hole = fs.seek(ino, data, Seek::Hole).expect("the end is a hole");
            assert!((5_000_000_004..5_000_100_000).contains(&hole), "{hole}");
            assert_eq!(fs.seek(ino, hole, Seek::Hole), Ok(hole));
            assert_eq!(fs.seek(ino, hole, Seek::Data), Err(FsError::NoSuchOffset));
            assert_eq!(fs.seek(ino, 10_000_000_000, Seek::Hole), Err(FsError::NoSuchOffset));
            at.does("seek /f 0 data\nseek /f 0 hole\nseek /f 5000000001 hole");
        }
    }

    fn a_copy_inside_the_server_is_a_copy(at) {
        at.does("create /a file 644\ncreate /b file 644");
        at.write("/a", 0, &bytes_of(3, 300_000));
        let (fs, source, target) = (at.fs(), at.ino("/a"), at.ino("/b"));
        let copied = fs.copy_range(&Caller::root(), (source, 1000), (target, 50), 1 << 30);
        assert_eq!(copied, Ok(299_000));
        assert!(at.content("/b")[50..] == bytes_of(3, 300_000)[1000..]);
        let behind = fs.copy_range(&Caller::root(), (source, 300_000), (target, 0), 10);
        assert_eq!(behind, Ok(0));
        let itself = fs.copy_range(&Caller::root(), (source, 290_000), (source, 400_000), 90_000);
        assert_eq!(itself, Ok(10_000));
        assert_eq!(at.attr("/a").size_bytes, 410_000);
        at.refuses("copy /a 0 /a 10 20", &FsError::Invalid);
    }
}
