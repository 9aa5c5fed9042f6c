//! Files about as long as an anode holds: 256 bytes.

use testkit::ops::bytes_of;
use whole_system::behaviours;

const SYNCS: [&str; 3] = ["getattr /f", "fsync /f", "sync"];

behaviours! {
    fn a_tiny_file_takes_no_space_and_keeps_its_bytes(at) {
        at.does("create /f file 644");
        for length in [1, 100, 255, 256] {
            let bytes = bytes_of(7, length);
            at.write("/f", 0, &bytes);
            assert_eq!(at.content("/f"), bytes);
            at.does("fsync /f");
            assert_eq!(at.content("/f"), bytes);
        }
        at.write("/f", 100, &[1; 20]);
        let mut expected = bytes_of(7, 256);
        expected[100..120].fill(1);
        assert_eq!(at.content("/f"), expected);
    }

    fn a_tiny_file_keeps_its_bytes_however_it_grows(at) {
        let first = bytes_of(8, 200);
        for sync in SYNCS {
            for (offset, length) in [(200, 57), (150, 300), (300, 1), (16_380, 10), (90_000, 9)] {
                let more = bytes_of(9, length);
                let mut expected = first.clone();
                expected.resize(expected.len().max(offset + length), 0);
                expected[offset..offset + length].copy_from_slice(&more);
                at.does("create /f file 644");
                at.write("/f", 0, &first);
                at.does(sync);
                at.write("/f", u64::try_from(offset).expect("small"), &more);
                assert!(at.content("/f") == expected, "{sync}, {length} at {offset}");
                at.does(sync);
                assert!(at.content("/f") == expected, "{sync}, {length} at {offset}, later");
                at.does("unlink /f");
            }
        }
    }

    fn a_tiny_file_is_cut_and_grown_by_truncation(at) {
        let first = bytes_of(8, 200);
        for sync in SYNCS {
            for (cut, grown) in [(50, 120), (50, 256), (50, 257), (0, 200), (199, 70_000)] {
                at.does("create /f file 644");
                at.write("/f", 0, &first);
                at.does(sync);
                at.does(&format!("truncate /f {cut}"));
                assert!(at.content("/f") == first[..cut], "{sync}, {cut}");
                at.does(&format!("truncate /f {grown}"));
                let mut expected = first[..cut].to_vec();
                expected.resize(grown, 0);
                assert!(at.content("/f") == expected, "{sync}, {cut} to {grown}");
                at.does(sync);
                at.write("/f", 10, &first[..30]);
                expected.resize(expected.len().max(40), 0);
                expected[10..40].copy_from_slice(&first[..30]);
                assert!(at.content("/f") == expected, "{sync}, {cut} to {grown}, written");
                at.does("unlink /f");
            }
        }
    }

    fn a_file_that_is_cut_to_nothing_is_tiny_again(at) {
        at.does("create /f file 644");
        at.write("/f", 0, &bytes_of(1, 100_000));
        at.does("sync\ntruncate /f 0");
        at.write("/f", 5, b"tiny");
        at.does("fsync /f");
        assert_eq!(at.content("/f"), b"\0\0\0\0\0tiny");
        at.write("/f", 0, &bytes_of(2, 5000));
        at.does("truncate /f 100");
        at.write("/f", 90, &[3; 20]);
        let mut expected = bytes_of(2, 90);
        expected.resize(110, 3);
        assert_eq!(at.content("/f"), expected);
    }
}
