use engine::api::{Caller, FsError};
use testkit::ops::bytes_of;
use whole_system::behaviours;

static ROOT: Caller = Caller::root();

behaviours! {
    fn a_file_unlinked_while_open_stays_readable_and_writable(at) {
        at.does("create /f file 644\nopen @0 /f");
        at.write("/f", 0, b"before");
        at.does("unlink /f");
        at.write("@0", 6, b" and after");
        assert_eq!(at.content("@0"), b"before and after");
        at.does("truncate @0 3\nmode @0 600\nfsync @0");
        assert_eq!((at.attr("@0").nlink, at.attr("@0").size_bytes), (0, 3));
        assert!(at.names("/").is_empty());
    }

    fn an_orphan_is_gone_when_the_last_reference_is_given_back(at) {
        at.does("create /f file 644\nopen @0 /f\nopen @1 /f\nunlink /f");
        let ino = at.ino("@0");
        at.does("close @0");
        assert!(at.fs().getattr(&ROOT, ino).is_ok());
        at.does("close @1");
        let gone = at.fs().getattr(&ROOT, ino).map_err(|error| error.errno());
        assert!(gone == Err(FsError::NotFound.errno()) || gone == Err(FsError::Stale.errno()));
    }

    fn an_orphan_gives_its_space_back(at) {
        let before = at.sizes().inode_count;
        at.does("create /f file 644\nopen @0 /f");
        at.write("/f", 0, &bytes_of(1, 500_000));
        at.does("unlink /f");
        assert_eq!(at.sizes().inode_count, before + 1);
        at.does("close @0");
        assert_eq!(at.sizes().inode_count, before);
    }

    /// Small ones wait for others like them, and are gone all the while.
    fn small_orphans_are_gone_at_once_however_many_they_are(at) {
        let before = at.sizes().inode_count;
        for count in 1..=8 {
            let inos: Vec<_> = (0..count).map(|nth| {
                at.does(&format!("create /{nth} file 644\nopen @{nth} /{nth}"));
                at.write(&format!("@{nth}"), 0, b"tiny");
                at.does(&format!("unlink /{nth}"));
                at.ino(&format!("@{nth}"))
            }).collect();
            for (nth, ino) in inos.into_iter().enumerate() {
                at.does(&format!("close @{nth}"));
                assert!(at.fs().getattr(&ROOT, ino).is_err(), "{nth} of {count} is still there");
            }
            assert_eq!(at.sizes().inode_count, before);
        }
    }

    /// So many blocks that no single transaction frees them.
    fn what_was_cut_off_an_orphan_never_comes_back(at) {
        const STLOG_DATA_BYTES: u64 = 64 << 10;
        at.does("create /f file 644\nopen @0 /f");
        for block in 0..1200 {
            at.write("/f", block * STLOG_DATA_BYTES, b"x");
        }
        at.fs().sync().expect("nothing fails");
        at.does("unlink /f\ntruncate @0 1");
        at.write("@0", 1200 * STLOG_DATA_BYTES - 1, b"y");
        let mut expected = vec![0; at.content("@0").len()];
        (expected[0], *expected.last_mut().expect("it is long")) = (b'x', b'y');
        assert!(at.content("@0") == expected, "something came back");
    }

    fn a_directory_removed_while_open_is_empty_and_takes_no_names(at) {
        at.does("create /d directory 755\nopen @0 /d\nrmdir /d");
        assert_eq!(at.attr("@0").nlink, 0);
        at.does("create /d directory 755\ncreate /d/f file 644");
        assert_ne!(at.ino("@0"), at.ino("/d"));
        at.does("close @0");
        assert!(at.is_there("/d/f"));
    }

    fn an_orphan_and_a_new_file_of_its_name_are_two_files(at) {
        at.does("create /f file 644\nopen @0 /f\nunlink /f\ncreate /f file 644");
        at.write("@0", 0, b"orphan");
        at.write("/f", 0, b"new");
        assert_eq!((at.content("@0"), at.content("/f")), (b"orphan".to_vec(), b"new".to_vec()));
    }
}
