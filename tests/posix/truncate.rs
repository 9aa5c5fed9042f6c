use engine::api::FsError;
use testkit::ops::bytes_of;
use whole_system::behaviours;

behaviours! {
    fn truncation_cuts_at_the_byte(at) {
        at.does("create /f file 644");
        let data = bytes_of(3, 50_000);
        for size in [49_999, 16_385, 16_384, 16_383, 4097, 4096, 1, 0] {
            at.write("/f", 0, &data);
            at.does(&format!("truncate /f {size}"));
            assert_eq!(at.content("/f"), data[..size], "{size}");
        }
    }

    fn what_was_cut_off_reads_as_zeros_when_the_file_grows_again(at) {
        at.does("create /f file 644");
        for size in [1_usize, 4095, 4096, 5000, 16_384, 20_000] {
            let mut expected = bytes_of(4, 60_000);
            at.write("/f", 0, &expected);
            at.does(&format!("truncate /f {size}\ntruncate /f 60000"));
            expected[size..].fill(0);
            assert!(at.content("/f") == expected, "by truncation, {size}");
            at.write("/f", 0, &bytes_of(4, 60_000));
            at.does(&format!("truncate /f {size}"));
            at.write("/f", 59_999, &expected[59_999..]);
            assert!(at.content("/f") == expected, "by a write, {size}");
        }
    }

    fn truncation_extends_with_a_hole(at) {
        at.does("create /f file 644");
        at.write("/f", 0, b"data");
        at.does("truncate /f 1000000000000");
        let attr = at.attr("/f");
        assert_eq!(attr.size_bytes, 1_000_000_000_000);
        assert!(attr.blocks_512 < 1000);
        at.does("truncate /f 4");
        assert_eq!(at.content("/f"), b"data");
    }

    fn truncation_gives_space_back(at) {
        at.does("create /f file 644");
        at.write("/f", 0, &bytes_of(1, 1_000_000));
        let full = at.attr("/f").blocks_512;
        at.does("truncate /f 100000");
        let cut = at.attr("/f").blocks_512;
        at.does("truncate /f 0");
        assert!(full >= 1_000_000 / 512);
        assert!(cut < full / 4, "{cut} of {full}");
        assert_eq!(at.attr("/f").blocks_512, 0);
    }

    fn only_regular_files_can_be_truncated(at) {
        at.does("create /d directory 755\nsymlink /s =t\ncreate /p fifo 600\ncreate /f file 644");
        at.refuses("truncate /d 0", &FsError::IsDirectory);
        at.refuses("truncate /s 0", &FsError::Invalid);
        at.refuses("truncate /p 0", &FsError::Invalid);
        at.refuses("truncate /f 9223372036854775808", &FsError::FileTooLarge);
        at.does("truncate /f 9223372036854775807");
    }
}
